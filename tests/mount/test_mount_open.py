"""Files and directories that are open while their names change, in a mounted container."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import mounting
import pytest
from container_checks import names_of
from model_operations import LIBC
from mounting import dead, leave_dead, mounted, not_by_libfuse, run
from stored import make

import winkfs
from winkfs.container.compact import compact
from winkmount.binding import BINDINGS

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]
base = mounting.empty  # a fixture


@pytest.fixture
def there(base: str) -> Iterator[Path]:
    with mounted(base) as directory:
        yield directory
    assert winkfs.verify(base).problems == []


def test_test_x_asks_for_the_mode(there: Path) -> None:
    """Shells and git look for programs this way."""
    file = there / "f"
    file.write_text("#!/bin/sh\necho ran\n")
    assert not os.access(file, os.X_OK)
    file.chmod(0o755)
    assert os.access(file, os.X_OK)
    assert run(file) == "ran\n"


@pytest.mark.parametrize("binding", BINDINGS)
def test_an_open_file_without_a_name_keeps_its_attributes(base: str, binding: str) -> None:
    with mounted(base, "--binding", binding) as there:
        (there / "other").touch()
        os.setxattr(there / "other", "user.of_another", b"")
        for lose in (os.unlink, partial(os.replace, there / "other")):
            file = there / "f"
            with file.open("w+b", buffering=0) as opened:
                opened.write(b"abc")
                fd = opened.fileno()
                os.setxattr(fd, "user.a", b"1")
                os.setxattr(fd, "user.b", b"2")
                lose(file)
                assert attributes(fd) == {"user.a": b"1", "user.b": b"2"}
                os.setxattr(fd, "user.c", b"3")
                os.removexattr(fd, "user.a")
                opened.write(b"def")  # its bytes are a copy from now on
                assert attributes(fd) == {"user.b": b"2", "user.c": b"3"}
                assert os.pread(fd, 9, 0) == b"abcdef"
        assert attributes(file) == {"user.of_another": b""}


def attributes(file: Path | int) -> dict[str, bytes]:
    return {name: os.getxattr(file, name) for name in sorted(os.listxattr(file))}


@pytest.mark.parametrize("change", [lambda d: shutil.rmtree(d), lambda d: d.rename(f"{d}2")])
def test_open_file_without_a_name_survives_its_directory(
    there: Path, change: Callable[[Path], object]
) -> None:
    (there / "d").mkdir()
    with (there / "d/f").open("w+b", buffering=0) as kept:
        kept.write(b"x" * 5000)
        (there / "d/f").unlink()
        change(there / "d")
        os.fchmod(kept.fileno(), 0o600)
        found = os.fstat(kept.fileno())
        assert (found.st_mode & 0o777, found.st_size, found.st_nlink) == (0o600, 5000, 0)
        with mmap.mmap(kept.fileno(), 0) as mapped:
            assert mapped[4999:] == b"x"
        kept.write(b"y")
        kept.seek(4999)
        assert kept.read() == b"xy"
        os.fsync(kept.fileno())


def test_open_directory_is_listed_under_its_new_name(there: Path) -> None:
    (there / "d/below").mkdir(parents=True)
    for number in range(3000):
        (there / f"d/f{number}").touch()
    directory = os.open(there / "d", os.O_RDONLY | os.O_DIRECTORY)
    with os.scandir(there / "d") as entries:
        found = [next(entries).name for _ in range(10)]
        (there / "d").rename(there / "e")
        found += [entry.name for entry in entries]
    assert sorted(found) == sorted(os.listdir(directory)) == sorted(os.listdir(there / "e"))
    os.close(os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=directory))
    os.close(directory)
    assert (there / "e/new").exists()


def test_a_new_directory_under_an_open_one_s_name_is_distinct(there: Path) -> None:
    (there / "old").mkdir()
    directory = os.open(there / "old", os.O_RDONLY | os.O_DIRECTORY)
    (there / "old").rename(there / "new")
    (there / "new/below").mkdir()
    (there / "old").mkdir()
    found = sorted(str(path.relative_to(there)) for path in there.rglob("*"))
    listed = os.listdir(directory)
    os.close(directory)
    assert found == ["new", "new/below", "old"]
    assert listed == ["below"]


@pytest.mark.parametrize("binding", BINDINGS)
def test_renamed_directories_keep_their_inode_numbers(base: str, binding: str) -> None:
    """The kernel believes for an hour what it was told of those below."""
    with mounted(base, "--binding", binding) as there:
        (there / "p/x/y").mkdir(parents=True)
        (there / "q").mkdir()
        for old, new in (("p", "r"), ("r", "q/s"), ("q/s/x", "p"), ("q", "r")):
            inodes = {path.name: path.lstat().st_ino for path in there.rglob("*")}
            (there / old).rename(there / new)
            inodes[Path(new).name] = inodes.pop(Path(old).name)
            for path in [there, *there.rglob("*")]:
                with os.scandir(path) as entries:
                    for entry in entries:
                        found = entry.inode(), (path / entry.name).lstat().st_ino
                        assert found == (inodes[entry.name],) * 2, (old, new, entry.path)
        (there / "p").rename(there / "r/x")
        (there / "p").mkdir()
        assert (there / "p").stat().st_ino not in inodes.values()


def test_unlinked_open_file_is_as_long_as_was_written(there: Path) -> None:
    with (there / "f").open("w+b", buffering=0) as kept:
        kept.write(b"12345")
        (there / "f").unlink()
        for size in (3, 7000):
            os.ftruncate(kept.fileno(), size)
            found = os.fstat(kept.fileno())
            assert (found.st_size, found.st_nlink) == (size, 0)
        os.fchmod(kept.fileno(), 0o600)
        os.utime(kept.fileno(), ns=(0, 77))
        found = os.fstat(kept.fileno())
        assert (found.st_mode & 0o777, found.st_mtime_ns) == (0o600, 77)


@not_by_libfuse("has no fallocate")
@pytest.mark.parametrize("how", [0, 1, 3, 16])
@pytest.mark.parametrize("size", [10, 9000])
def test_fallocate_sets_the_time(there: Path, how: int, size: int) -> None:
    (there / "f").write_bytes(b"x" * 5000)
    os.utime(there / "f", (1, 1))
    with (there / "f").open("r+b") as file:
        assert not LIBC.fallocate(file.fileno(), how, ctypes.c_int64(5), ctypes.c_int64(size))
    assert time.time() - (there / "f").stat().st_mtime < 100


@pytest.mark.parametrize("binding", BINDINGS)
def test_a_refused_rename_keeps_the_open_target(tmp_path: Path, binding: str) -> None:
    base = str(tmp_path / "log")
    winkfs.create(base, ao=True).close()
    with mounted(base, "--binding", binding) as there:
        (there / "stored").write_bytes(b"stored")
        run("sync", there)
        with (there / "open").open("wb", buffering=0) as file:
            file.write(b"written")
            with pytest.raises(PermissionError):
                (there / "stored").rename(there / "open")
            assert os.fstat(file.fileno()).st_nlink == 1
            (there / "open").chmod(0o600)
        assert (there / "open").read_bytes() == b"written"
        assert (there / "stored").read_bytes() == b"stored"
        assert (there / "open").stat().st_mode & 0o777 == 0o600
        (there / "open").unlink()
        assert os.listdir(there) == ["stored"]


def test_a_kill_after_unlink_and_sync_removes_the_open_file(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever call comes behind the unlink, or none but the sync in the background."""
    for options in ((), ("-o", "sync_every=0.3")):
        base = tmp_path_factory.mktemp("disk") / "corpus"
        make(base, {"f": b"x"})
        with mounted(base, *options) as there, dead(), (there / "f").open("rb"):
            (there / "f").unlink()
            if options:
                time.sleep(1)
            else:
                run("sync", there)
            leave_dead(there)
        assert names_of(base) == []


@pytest.mark.parametrize("linked", [False, True])
def test_a_refused_writer_learns_the_mount_point(base: str, tmp_path: Path, linked: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    path = tmp_path / "link/empty" if linked else base
    with mounted(base, "--ro"), winkfs.open(path, "a"):
        pass  # one that only reads hinders no writer
    with mounted(base) as there:
        for change in (partial(winkfs.open, path, "a"), partial(compact, path)):
            with pytest.raises(
                winkfs.Locked, match=f"it is mounted at {there}: write there, or winkfs umount"
            ):
                change()
