"""Ordinary tools on a mounted container, and what the container holds afterwards."""

from __future__ import annotations

import errno
import os
import signal
import stat
from pathlib import Path

import mounting
import pytest
from container_checks import names_of
from flips import flip
from mounting import WINKFS, dead, mounted, need, refused, run, same, server_of, wait_for_the_end
from stored import read
from trees import make_tree

import winkfs
from winkfs import FileType
from winkmount.mounts import canonical, mount_at

pytestmark = pytest.mark.mount
base = mounting.empty  # a fixture


def sound(base: str) -> dict[str, winkfs.Stat]:
    """The container opens without a lock in the way, and is in order -> its files."""
    report = winkfs.verify(base)
    assert report.problems == []
    with winkfs.open(base, "a") as container:
        return {entry.name: entry for entry in container.scan()}


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
    assert files["run.sh"].mode == 0o755
    assert files["secret"].mode == 0o600
    assert files["empty dir"].ftype == FileType.DIR
    with mounted(base, "--ro") as there:
        same(tree, there)
        assert run("grep", "-rl", "<p>a</p>", there).split() == [str(there / "docs/a.html")]
        assert run(there / "run.sh") == ""
        run("cp", "-a", there, tmp_path / "out")
    same(tree, tmp_path / "out")


def test_inode_number_is_the_file_id(base: str) -> None:
    with winkfs.open(base, "a") as container:
        container.put("d/f", b"x")
        expected = container.stat("d/f").fileid
    with mounted(base) as there:
        assert (there / "d/f").stat().st_ino == expected
        assert [entry.inode() for entry in os.scandir(there / "d")] == [expected]
        (there / "d/f").rename(there / "g")
        assert (there / "g").stat().st_ino == expected


def test_time_of_a_directory_follows_its_names(base: str) -> None:
    with mounted(base) as there:
        (there / "d").mkdir()
        os.utime(there / "d", ns=(0, 1000))
        (there / "d/f").touch()
        changed = (there / "d").stat().st_mtime_ns
        assert changed > 1000
    with mounted(base, "--ro") as there:
        assert (there / "d").stat().st_mtime_ns == changed


def test_unlinked_open_file_is_gone_from_the_container_at_once(base: str) -> None:
    with mounted(base) as there:
        with (there / "f").open("w+b", buffering=0) as kept:
            kept.write(b"a" * 3_000_000)
            (there / "f").unlink()
            run("sync", there)
            assert names_of(base) == []
            kept.write(b"b")
            kept.seek(2_999_999)
            assert kept.read() == b"ab"
            (there / "f").write_bytes(b"another")
            assert kept.seek(0, 2) == 3_000_001
        assert (there / "f").read_bytes() == b"another"
    assert set(sound(base)) == {"f"}


def test_damaged_file_is_an_io_error_and_no_other(base: str) -> None:
    with winkfs.open(base, "a") as container:
        container.put("bad", b"B" * 5000)
        container.put("good", b"G" * 5000)
    data = Path(base + ".data")
    flip(data, data.read_bytes().index(b"BBBB") + 2000, bits=4)
    with mounted(base, "--ro") as there:
        with refused(errno.EIO):
            (there / "bad").read_bytes()
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
        with refused(errno.EOPNOTSUPP):
            (there / "d/f").chmod(0o600)
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


def test_sigterm_keeps_what_is_still_open(base: str) -> None:
    with mounted(base) as there:
        file = os.open(there / "f", os.O_WRONLY | os.O_CREAT)
        os.write(file, b"written, not closed")
        server = os.pidfd_open(server_of(there))
        signal.pidfd_send_signal(server, signal.SIGTERM)
        wait_for_the_end(server)
        with pytest.raises(OSError):
            os.write(file, b"x")
        with dead():
            os.close(file)
        assert mount_at(canonical(there)) is None
        assert read(base, "f", mode="a") == b"written, not closed"
        run(*WINKFS, "mount", base, there)


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
