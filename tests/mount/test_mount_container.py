"""Ordinary tools on a mounted container, and what the container holds afterwards."""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
import time
from pathlib import Path

import pytest
from mounting import WINKFS, dead, is_readable, mounted, need, need_fuse, run, same

import winkfs
from winkfs import FileType
from winkmount.binding import BINDINGS
from winkmount.mounts import canonical, mount_at

pytestmark = pytest.mark.mount


@pytest.fixture
def base(tmp_path: Path) -> str:
    name = str(tmp_path / "corpus")
    winkfs.create(name).close()
    return name


def sound(base: str) -> dict[str, winkfs.Stat]:
    """The container opens without a lock in the way, and is in order -> its files."""
    report = winkfs.verify(base)
    assert report.problems == []
    with winkfs.open(base, "a") as container:
        return {entry.name: entry for entry in container.scan()}


def make_tree(top: Path) -> Path:
    chance = random.Random(5)
    (top / "a/b").mkdir(parents=True)
    (top / "empty").mkdir()
    for i in range(25):
        (top / f"a/f{i}.txt").write_bytes(chance.randbytes(chance.choice([0, 3, 5000, 40_000])))
    (top / "a/b/big").write_bytes(chance.randbytes(2_500_000))
    (top / "a/b/needle").write_text("one\nneedle\n")
    (top / "run").write_text("#!/bin/sh\necho ran\n")
    (top / "run").chmod(0o755)
    (top / "secret").write_text("s")
    (top / "secret").chmod(0o600)
    (top / "link").symlink_to("a/b")
    for i, path in enumerate(sorted(top.rglob("*"), reverse=True)):
        os.utime(path, ns=(1, 1_111_111_111_222_333_444 + i * 10**10), follow_symlinks=False)
    return top


@pytest.mark.parametrize(
    "copy",
    [
        ["cp", "-a", "{tree}/.", "{to}"],
        ["rsync", "-a", "{tree}/", "{to}/"],
        ["sh", "-c", "tar --format=pax -C {tree} -cf - . | tar -C {to} -xpf -"],
    ],
    ids=["cp", "rsync", "tar"],
)
def test_copies_keep_everything_over_a_remount(base: str, tmp_path: Path, copy: list[str]) -> None:
    tree = make_tree(tmp_path / "tree")
    with mounted(base) as there:
        run(*[part.format(tree=tree, to=there) for part in copy])
        same(tree, there)
    files = sound(base)
    assert files["run"].mode == 0o755
    assert files["secret"].mode == 0o600
    assert files["empty"].ftype == FileType.DIR
    with mounted(base, "--ro") as there:
        same(tree, there)
        assert run("grep", "-rl", "needle", there).split() == [str(there / "a/b/needle")]
        assert run(there / "run") == "ran\n"
        (tmp_path / "out").mkdir()
        run("cp", "-a", f"{there}/.", tmp_path / "out")
    same(tree, tmp_path / "out")


def test_everyday_changes(base: str) -> None:
    with mounted(base) as there:
        run("sh", "-ec", """
            mkdir -p d/e; echo one > d/f; echo two >> d/f; cp d/f d/e/g; mv d/e/g d/e/h
            mv d top; ln -s h top/e/link; sed -i s/one/three/ top/f; touch top/new
            printf XY | dd of=top/f bs=1 seek=3 conv=notrunc status=none
            truncate -s 100 top/e/h; chmod 600 top/new; mkdir gone; rmdir gone; rm -r top/e/link
        """, cwd=there)  # fmt: skip
        assert (there / "top/f").read_bytes() == b"thrXY\ntwo\n"
    files = sound(base)
    assert set(files) == {"top", "top/e", "top/f", "top/e/h", "top/new"}
    assert files["top/new"].mode == 0o600
    with winkfs.open(base) as container:
        assert container.read("top/f") == b"thrXY\ntwo\n"
        assert container.read("top/e/h") == b"one\ntwo\n" + bytes(92)


def test_git_in_a_container(base: str) -> None:
    with mounted(base) as there:
        git = ("git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(there))
        run(*git, "init", "-q")
        for i in range(10):
            (there / f"f{i}").write_text(f"{i}\n" * 1000)
        run(*git, "add", ".")
        run(*git, "commit", "-qm", "first")
    sound(base)
    with mounted(base) as there:
        git = (*git[:-1], str(there))
        run(*git, "fsck", "--strict")
        assert run(*git, "status", "--short") == ""


def test_inode_number_is_the_file_id(base: str) -> None:
    with winkfs.open(base, "a") as container:
        container.put("d/f", b"x")
        expected = container.stat("d/f").fileid
    with mounted(base) as there:
        assert (there / "d/f").stat().st_ino == expected
        assert [entry.inode() for entry in os.scandir(there / "d")] == [expected]
        (there / "d/f").rename(there / "g")
        assert (there / "g").stat().st_ino == expected


def test_implied_directory_stays_until_it_is_removed(base: str) -> None:
    with winkfs.open(base, "a") as container:
        container.put_many([("a/f", b""), ("b/f", b"")])
    with mounted(base) as there:
        run("rm", there / "a/f", there / "b/f")
        assert sorted(os.listdir(there)) == ["a", "b"]
        (there / "a").rmdir()
        os.utime(there / "b", ns=(0, 12_345))  # now it needs an entry of its own
    with mounted(base) as there:
        assert os.listdir(there) == ["b"]
        assert (there / "b").stat().st_mtime_ns == 12_345


def test_time_of_a_directory_follows_its_names(base: str) -> None:
    with mounted(base) as there:
        (there / "d").mkdir()
        os.utime(there / "d", ns=(0, 1000))
        (there / "d/f").touch()
        changed = (there / "d").stat().st_mtime_ns
        assert changed > 1000
    with mounted(base, "--ro") as there:
        assert (there / "d").stat().st_mtime_ns == changed


def test_directory_rename_moves_all_names_or_none(base: str) -> None:
    with winkfs.open(base, "a") as container:
        container.put_many([(f"old/{i}", b"%d" % i) for i in range(500)])
        container.put_many([("old/sub/x", b"x"), ("old/name", b"n"), ("old/name/below", b"b")])
        container.mkdir("new")
    with mounted(base) as there:
        (there / "old").rename(there / "new")
        assert len(os.listdir(there / "new")) == 502
    files = sound(base)
    assert not [name for name in files if name.startswith("old")]
    assert {"new", "new/sub/x", "new/name", "new/name/below", "new/499"} <= set(files)


def test_unlinked_open_file_is_gone_from_the_container_at_once(base: str) -> None:
    with mounted(base) as there:
        with (there / "f").open("w+b", buffering=0) as kept:
            kept.write(b"a" * 3_000_000)
            (there / "f").unlink()
            run("sync", there)
            with winkfs.open(base) as container:
                assert list(container.names()) == []
            kept.write(b"b")
            kept.seek(2_999_999)
            assert kept.read() == b"ab"
            (there / "f").write_bytes(b"another")
            assert kept.seek(0, 2) == 3_000_001
        assert (there / "f").read_bytes() == b"another"
    assert set(sound(base)) == {"f"}


def test_read_only_refuses_every_change(base: str) -> None:
    with winkfs.open(base, "a") as container:
        container.put("f", b"x")
    with mounted(base, "-o", "ro") as there:
        for attempt in (
            lambda: (there / "f").write_bytes(b"y"),
            lambda: (there / "g").touch(),
            lambda: (there / "f").unlink(),
            lambda: (there / "f").chmod(0o600),
            lambda: (there / "d").mkdir(),
            lambda: (there / "f").rename(there / "g"),
            lambda: os.truncate(there / "f", 0),
            lambda: os.utime(there / "f"),
            lambda: os.setxattr(there / "f", "user.x", b""),
        ):
            with pytest.raises(OSError) as caught:
                attempt()
            assert caught.value.errno == errno.EROFS
        with winkfs.open(base, "a") as container:  # it holds no lock
            container.put("later", b"")
        assert (there / "f").read_bytes() == b"x"


def test_damaged_file_is_an_io_error_and_no_other(base: str) -> None:
    with winkfs.open(base, "a") as container:
        container.put("bad", b"B" * 5000)
        container.put("good", b"G" * 5000)
    data = Path(base + ".data")
    raw = bytearray(data.read_bytes())
    raw[raw.index(b"BBBB") + 2000] ^= 1
    data.write_bytes(raw)
    with mounted(base, "--ro") as there:
        with pytest.raises(OSError) as caught:
            (there / "bad").read_bytes()
        assert caught.value.errno == errno.EIO
        assert (there / "good").read_bytes() == b"G" * 5000


def test_classic_container(tmp_path: Path) -> None:
    base = str(tmp_path / "classic")
    winkfs.create(base, classic=True).close()
    with mounted(base) as there:
        (there / "d").mkdir(mode=0o700)
        (there / "d/f").write_bytes(b"x" * 2_000_000)
        (there / "d/run").touch(mode=0o755)
        with (there / "d/f").open("r+b") as file:
            file.seek(1_000_000)
            file.write(b"middle")
        with pytest.raises(OSError) as caught:
            (there / "d/f").chmod(0o600)
        assert caught.value.errno == errno.EOPNOTSUPP
        os.utime(there / "d/f", (5, 5))
    files = sound(base)
    assert files["d/f"].size == 2_000_000 and files["d/f"].mtime == 5
    assert files["d/run"].mode == 0o755


def test_xattrs_are_kept(base: str) -> None:
    with mounted(base) as there:
        (there / "f").touch()
        (there / "d").mkdir()
        for path in (there / "f", there / "d"):
            os.setxattr(path, "user.one", b"1")
            os.setxattr(path, "user.two", b"2")
            os.removexattr(path, "user.two")
    with mounted(base) as there:
        for path in (there / "f", there / "d"):
            assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == {
                "user.one": b"1"
            }


def test_unmounted_container_is_never_locked(base: str) -> None:
    for i in range(3):
        with mounted(base) as there:
            (there / f"f{i}").write_bytes(b"x" * 100_000)
        with winkfs.open(base, "a") as container:
            assert len(container) == i + 1


def test_background_sync_reaches_other_processes(base: str) -> None:
    with mounted(base, "-o", "sync_every=0.2") as there:
        (there / "f").write_bytes(b"closed, not synced")
        with (there / "g").open("wb", buffering=0) as still_open:
            still_open.write(b"open")
            deadline = time.monotonic() + 20
            with winkfs.open(base) as reader:
                while not ("g" in reader and reader.read("g") == b"open"):
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                assert reader.read("f") == b"closed, not synced"


def server_of(there: Path) -> int:
    return int(os.getxattr(there, "user.winkfs.pid"))


def test_sigterm_keeps_what_is_still_open(base: str) -> None:
    with mounted(base) as there:
        file = os.open(there / "f", os.O_WRONLY | os.O_CREAT)
        os.write(file, b"written, not closed")
        server = os.pidfd_open(server_of(there))
        signal.pidfd_send_signal(server, signal.SIGTERM)
        _ended(server)
        with pytest.raises(OSError):
            os.write(file, b"x")
        with dead():
            os.close(file)
        assert mount_at(canonical(there)) is None
        with winkfs.open(base, "a") as container:
            assert container.read("f") == b"written, not closed"
        run(*WINKFS, "mount", base, there)


def _ended(server: int) -> None:
    assert is_readable(server, 30), "the server did not end"
    os.close(server)


def test_killed_server_loses_nothing_that_was_synced(base: str) -> None:
    with mounted(base) as there:
        for i in range(20):
            with (there / f"f{i}").open("wb") as file:
                file.write(b"%d" % i * 1000)
                file.flush()
                os.fsync(file.fileno())
        (there / "unsynced").write_bytes(b"x")
        server = os.pidfd_open(server_of(there))
        signal.pidfd_send_signal(server, signal.SIGKILL)
        _ended(server)
        with pytest.raises(OSError) as caught:
            (there / "f1").read_bytes()
        assert caught.value.errno == errno.ENOTCONN
        run(*WINKFS, "umount", there)
        run(*WINKFS, "mount", base, there)
        for i in range(20):
            assert (there / f"f{i}").read_bytes() == b"%d" % i * 1000


@pytest.mark.parametrize("binding", BINDINGS)
def test_each_binding_serves_a_container(base: str, binding: str) -> None:
    need_fuse(binding)
    with mounted(base, "--binding", binding) as there:
        (there / "d").mkdir()
        run("cp", "/etc/passwd", there / "d/x")
        run("mv", there / "d", there / "e")
    assert set(sound(base)) == {"e", "e/x"}


def test_statfs_is_that_of_the_disk_below(base: str) -> None:
    with mounted(base) as there:
        assert os.statvfs(there).f_blocks == os.statvfs(base + ".data").f_blocks


def test_ftruncate_of_a_set_user_id_file_by_an_ordinary_user(base: str) -> None:
    need("setpriv", "truncate")
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    with mounted(base, "-o", "allow_other") as there:
        (there / "program").write_bytes(b"x" * 100)
        (there / "program").chmod(0o4777)
        user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        run(*user, "truncate", "-s", "10", there / "program")
        assert (there / "program").stat().st_size == 10
        assert stat.S_IMODE((there / "program").stat().st_mode) == 0o777


def test_options_for_owners_and_modes(base: str) -> None:
    with mounted(base, "-o", "uid=123,gid=45,umask=027") as there:
        (there / "f").touch()
        found = (there / "f").stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (123, 45, 0o750)
