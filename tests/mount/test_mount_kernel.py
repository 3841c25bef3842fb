"""winkmount through the kernel, over a Source of dicts, under each binding."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import sqlite3
import stat
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from fsx import Exerciser
from mounting import TESTS, all_at_once, all_refused, need_fuse, refused, run, same, serving
from mounting import place as place  # a fixture

from winkmount.binding import BINDINGS

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]


@pytest.fixture(scope="module", params=BINDINGS)
def mount(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    need_fuse(request.param)
    directory = tmp_path_factory.mktemp("mount")
    program = [sys.executable, str(TESTS / "memory_source.py"), str(directory), request.param]
    with serving(program, directory, patience=120):
        yield directory


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory tree with what trees have: modes, links, old times, odd names, an empty one."""
    top = tmp_path_factory.mktemp("tree")
    chance = random.Random(7)
    (top / "sub/deeper").mkdir(parents=True)
    (top / "empty").mkdir()
    for i in range(30):
        (top / f"sub/f{i}").write_bytes(chance.randbytes(chance.choice([0, 1, 4096, 70_000])))
    (top / "sub/deeper/big").write_bytes(chance.randbytes(3_000_001))
    (top / "runs").write_text("#!/bin/sh\necho ran\n")
    (top / "runs").chmod(0o755)
    (top / "ünï cödé\n").write_text("odd")
    Path(os.fsdecode(os.fsencode(top) + b"/\xff\xfe latin")).write_text("bytes")
    (top / "link").symlink_to("sub/f1")
    (top / "dangling").symlink_to("/nowhere/at all")
    for i, path in enumerate(sorted(top.rglob("*"), reverse=True)):
        os.utime(path, ns=(1, 1_234_567_890_123_456_789 + i * 10**12), follow_symlinks=False)
    return top


@pytest.mark.few(1)
def test_cp_keeps_everything(tree: Path, place: Path, tmp_path: Path) -> None:
    run("cp", "-a", tree, place / "in")
    same(tree, place / "in")
    run("cp", "-a", place / "in", tmp_path / "out")
    same(tree, tmp_path / "out")


def test_tar_both_ways(tree: Path, place: Path, tmp_path: Path) -> None:
    run("tar", "--format=pax", "-cf", tmp_path / "t.tar", "-C", tree, ".")
    run("tar", "-xpf", tmp_path / "t.tar", "-C", place)
    same(tree, place)
    run("tar", "--format=pax", "-cf", tmp_path / "u.tar", "-C", place, ".")
    run("tar", "-df", tmp_path / "u.tar", "-C", tree)


def test_rsync_twice_moves_nothing_the_second_time(tree: Path, place: Path) -> None:
    run("rsync", "-a", f"{tree}/", f"{place}/")
    same(tree, place)
    assert run("rsync", "-ai", f"{tree}/", f"{place}/") == ""


def test_find_and_grep_and_rm(tree: Path, place: Path) -> None:
    run("cp", "-r", tree, place / "t")
    (place / "t/sub/needle").write_text("hay\nneedle\nhay\n")
    assert run("grep", "-rl", "needle", place).strip().endswith("t/sub/needle")
    assert len(run("find", place, "-type", "f", "-print0").split("\0")) - 1 == 35
    assert run(place / "t/runs") == "ran\n"
    run("rm", "-r", place / "t")
    assert list(place.iterdir()) == []


@pytest.fixture
def file(place: Path) -> Path:
    return place / "f"


def test_shell_writes(place: Path, file: Path) -> None:
    run("sh", "-c", f"echo one > {file}; echo two >> {file}; cat {file} {file} > {file}2")
    assert file.read_text() == "one\ntwo\n"
    assert (place / "f2").read_text() == "one\ntwo\none\ntwo\n"
    run("sed", "-i", "s/one/three/", file)
    assert file.read_text() == "three\ntwo\n"
    run("truncate", "-s", "5", file)
    run("truncate", "-s", "8", file)
    assert file.read_bytes() == b"three\0\0\0"
    run("sh", "-c", f"{{ /bin/echo a; /bin/echo b; }} > {file}")
    assert file.read_text() == "a\nb\n"


def test_dd_writes_anywhere(place: Path, file: Path) -> None:
    run("dd", "if=/dev/zero", f"of={file}", "bs=1000", "count=3", "status=none")
    command = f"printf XY | dd of={file} bs=1 seek=4000 conv=notrunc status=none"
    run("sh", "-c", command)
    assert file.read_bytes() == bytes(4000) + b"XY"
    run("sh", "-c", command.replace("4000", "10"))
    assert file.read_bytes() == bytes(10) + b"XY" + bytes(3988) + b"XY"


def test_open_flags(place: Path, file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        os.open(file, os.O_RDWR)
    os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    with pytest.raises(FileExistsError):
        os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    file.write_bytes(b"12345")
    fd = os.open(file, os.O_RDWR | os.O_APPEND)
    os.pwrite(fd, b"67", 0)  # O_APPEND wins over the offset
    assert os.pread(fd, 100, 0) == b"1234567"
    os.close(fd)
    fd = os.open(file, os.O_WRONLY | os.O_TRUNC)
    assert file.stat().st_size == 0
    os.close(fd)
    with pytest.raises(NotADirectoryError):
        (file / "below").write_bytes(b"")


def test_writes_are_seen_at_once(place: Path, file: Path) -> None:
    with file.open("wb", buffering=0) as writer:
        for i in range(1, 20):
            writer.write(b"x" * 100)
            assert file.stat().st_size == 100 * i
            assert run("cat", file) == "x" * 100 * i


def test_unlinked_open_file_lives_until_it_is_closed(place: Path) -> None:
    (place / "d").mkdir()
    file = place / "d/f"
    with file.open("w+b", buffering=0) as kept:
        kept.write(b"before")
        file.unlink()
        assert list((place / "d").iterdir()) == []
        kept.write(b" after")
        assert os.fstat(kept.fileno()).st_size == 12
        assert os.fstat(kept.fileno()).st_nlink == 0
        kept.truncate(8)
        (place / "d").rmdir()
        kept.seek(0)
        assert kept.read() == b"before a"
    assert [name for _, _, names in os.walk(place) for name in names] == []


def test_renamed_over_file_lives_until_it_is_closed(place: Path) -> None:
    old, new = place / "old", place / "new"
    old.write_bytes(b"old")
    new.write_bytes(b"new")
    with old.open("rb", buffering=0) as kept:
        new.rename(old)
        assert kept.read() == b"old"
        assert old.read_bytes() == b"new"
    assert [path.name for path in place.iterdir()] == ["old"]


def test_open_file_follows_its_rename(place: Path) -> None:
    (place / "d").mkdir()
    file = place / "f"
    with file.open("wb", buffering=0) as writer:
        writer.write(b"one")
        file.rename(place / "d/g")
        writer.write(b"two")
    assert (place / "d/g").read_bytes() == b"onetwo"
    (place / "d").rename(place / "e")
    assert (place / "e/g").read_bytes() == b"onetwo"
    assert not (place / "d").exists()


def renameat2(old: Path, new: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def test_rename_flags_are_not_dropped(place: Path) -> None:
    (place / "a").write_bytes(b"a")
    (place / "b").write_bytes(b"b")
    for flags in (1, 2):  # NOREPLACE, EXCHANGE
        with refused(errno.EEXIST, errno.EINVAL):
            renameat2(place / "a", place / "b", flags)
    assert (place / "a").read_bytes() + (place / "b").read_bytes() == b"ab"


def test_directory_refusals(place: Path) -> None:
    (place / "d/e").mkdir(parents=True)
    with refused(errno.ENOTEMPTY):
        (place / "d").rmdir()
    with refused(errno.EINVAL):
        (place / "d").rename(place / "d/e/f")
    (place / "f").write_bytes(b"")
    with pytest.raises(IsADirectoryError):
        (place / "f").rename(place / "d")
    with pytest.raises(NotADirectoryError):
        (place / "d").rename(place / "f")
    (place / "empty").mkdir()
    (place / "d").rename(place / "empty")
    assert (place / "empty/e").is_dir()


def test_what_a_mount_cannot_hold_is_not_permitted(place: Path) -> None:
    (place / "f").write_bytes(b"")
    with pytest.raises(PermissionError):
        os.link(place / "f", place / "g")
    with pytest.raises(PermissionError):
        os.mkfifo(place / "pipe")
    os.mknod(place / "plain", stat.S_IFREG | 0o600)
    assert sorted(path.name for path in place.iterdir()) == ["f", "plain"]


def test_times_to_the_nanosecond(place: Path, file: Path) -> None:
    file.write_bytes(b"x")
    os.utime(file, ns=(5, -1_500_000_001))
    assert file.stat().st_mtime_ns == -1_500_000_001
    run("touch", "-a", file)  # UTIME_OMIT for the mtime
    assert file.stat().st_mtime_ns == -1_500_000_001
    run("touch", "-m", "-d", "2001-02-03 04:05:06.000000007 UTC", file)
    assert file.stat().st_mtime_ns == 981_173_106_000_000_007
    run("touch", file)
    assert file.stat().st_mtime_ns > 1_600_000_000_000_000_000
    with file.open("ab", buffering=0) as writer:  # cp -p sets the time before it closes
        writer.write(b"y")
        os.utime(writer.fileno(), ns=(7, 7_000_000_007))
    assert file.stat().st_mtime_ns == 7_000_000_007


def test_modes_and_owners(place: Path, file: Path) -> None:
    file.write_bytes(b"x")
    run("chmod", "u+x,g-r", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o704
    if os.geteuid() == 0:
        os.chown(file, 12, -1)
        os.chown(file, -1, 34)
        assert (file.stat().st_uid, file.stat().st_gid) == (12, 34)
    assert file.stat().st_nlink == 1
    assert place.stat().st_nlink == 1
    assert [entry.inode() for entry in os.scandir(place)] == [file.stat().st_ino]
    assert [entry.is_file(follow_symlinks=False) for entry in os.scandir(place)] == [True]


def test_xattrs(place: Path, file: Path) -> None:
    file.write_bytes(b"x")
    os.setxattr(file, "user.one", b"1\0")
    os.setxattr(file, "user.two", b"")
    assert sorted(os.listxattr(file)) == ["user.one", "user.two"]
    assert os.getxattr(file, "user.one") == b"1\0"
    with pytest.raises(FileExistsError):
        os.setxattr(file, "user.one", b"", os.XATTR_CREATE)
    all_refused(
        errno.ENODATA,
        lambda: os.setxattr(file, "user.three", b"", os.XATTR_REPLACE),
        lambda: os.getxattr(file, "user.three"),
        lambda: os.removexattr(file, "user.three"),
    )
    os.removexattr(file, "user.two")
    assert os.listxattr(file) == ["user.one"]
    with refused(errno.EOPNOTSUPP):
        os.setxattr(file, "user.memory.pid", b"1")


def test_an_attribute_has_a_name_behind_its_kind(place: Path) -> None:
    (place / "f").touch()
    for name in ("user.", "trusted.", "security."):
        for attempt in (
            partial(os.setxattr, place / "f", name, b"v"),
            partial(os.getxattr, place / "f", name),
            partial(os.removexattr, place / "f", name),
        ):
            with pytest.raises(OSError) as caught:
                attempt()
            assert caught.value.errno == errno.EINVAL, name
    assert os.listxattr(place / "f") == []


def test_a_file_has_no_more_attributes_than_can_be_listed(place: Path) -> None:
    file, taken = place / "f", 65_536 // 201
    file.touch()
    for number in range(taken):
        os.setxattr(file, f"user.{number:0195}", b"v")
    with refused(errno.ENOSPC):
        os.setxattr(file, f"user.{taken:0195}", b"v")
    os.setxattr(file, f"user.{0:0195}", b"another")  # one that it has
    os.setxattr(file, "user." + "x" * (65_536 % 201 - 6), b"v")  # the last that fits
    assert len(os.listxattr(file)) == taken + 1


def test_long_names(place: Path) -> None:
    (place / ("n" * 255)).write_bytes(b"x")
    with refused(errno.ENAMETOOLONG):
        (place / ("n" * 256)).write_bytes(b"x")
    deep = place.joinpath(*["d" * 200] * 12)
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"deep")
    assert (deep / "f").read_bytes() == b"deep"


def test_mapped_files(place: Path, file: Path) -> None:
    data = random.Random(1).randbytes(1_000_003)
    file.write_bytes(data)
    with file.open("r+b") as opened:
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert mapped[:] == data
        with mmap.mmap(opened.fileno(), 0) as mapped:
            mapped[500_000:500_004] = b"TEST"
            mapped.flush()
    assert file.read_bytes() == data[:500_000] + b"TEST" + data[500_004:]


def test_git(place: Path) -> None:
    def git(*arguments: str) -> str:
        return run("git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments, cwd=place)

    git("init", "-q", ".")
    for i in range(20):
        (place / f"f{i}").write_text(f"file {i}\n" * i)
    git("add", ".")
    git("commit", "-qm", "first")
    (place / "f3").write_text("changed\n")
    git("mv", "f4", "g4")
    git("commit", "-qam", "second")
    git("gc", "-q")
    git("fsck", "--strict")
    assert git("status", "--short") == ""
    assert len(git("log", "--oneline").splitlines()) == 2


def test_directory_with_the_set_group_id_bit_hands_its_group_on(place: Path) -> None:
    os.chown(place, -1, 6)
    place.chmod(0o2775)
    (place / "file").touch()
    (place / "link").symlink_to("file")
    (place / "sub").mkdir()
    (place / "sub/deep").touch()
    assert [path.lstat().st_gid for path in sorted(place.rglob("*"))] == [6] * 4
    assert stat.S_IMODE((place / "sub").stat().st_mode) == 0o2755
    os.chown(place, -1, 7)
    (place / "seven").touch()
    place.chmod(0o775)
    (place / "mine").touch()
    assert [(place / name).stat().st_gid for name in ("seven", "mine")] == [7, os.getgid()]


def test_statfs(place: Path) -> None:
    figures = os.statvfs(place)
    assert (figures.f_blocks, figures.f_bfree, figures.f_namemax) == (1000, 500, 255)


def test_appenders_in_several_processes_lose_no_line(place: Path) -> None:
    script = "import os,sys\nf=os.open(sys.argv[1],os.O_WRONLY|os.O_APPEND|os.O_CREAT)\n" + (
        "for i in range(200): os.write(f, b'%s %03d\\n' % (sys.argv[2].encode(), i))"
    )
    file = place / "log"
    all_at_once(*[["-c", script, file, name] for name in "abcd"])
    lines = file.read_text().splitlines()
    assert sorted(lines) == [f"{name} {i:03}" for name in "abcd" for i in range(200)]


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite(place: Path, journal: str) -> None:
    connection = sqlite3.connect(place / "db")
    connection.execute(f"pragma journal_mode={journal}")
    connection.execute("create table t (n integer primary key, text)")
    with connection:
        connection.executemany("insert into t values (?, ?)", [(i, "x" * i) for i in range(300)])
    with connection:
        connection.execute("delete from t where n % 3 = 0")
    assert connection.execute("select count(*), sum(length(text)) from t").fetchone() == (
        200,
        30_000,
    )
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    connection.close()
    assert [path.name for path in place.iterdir()] == ["db"]


@pytest.mark.few(1)
def test_listing_while_names_go(place: Path) -> None:
    for i in range(3000):
        (place / f"name-{i:05}").touch()
    assert len(os.listdir(place)) == 3000
    with os.scandir(place) as entries:
        for entry in entries:
            os.unlink(entry.path)
    assert os.listdir(place) == []


@pytest.mark.few(1)
def test_random_reads_and_writes_of_one_file(place: Path) -> None:
    Exerciser(place / "f", 3, 3_000_000, b"").run(400)
