"""A read-only mount through the kernel: what it gives, and that it is asked for things once."""

from __future__ import annotations

import errno
import json
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from folders import in_memory
from mounting import PATIENCE, TESTS, all_refused, need_fuse, refused, serving

from winkmount.binding import BINDINGS

LARGE = bytes(range(250)) * 40_000
KINDS = [f"{one} {cache}" for one in BINDINGS for cache in ("kernel", "none")]
pytestmark = pytest.mark.mount


@contextmanager
def mounted_by(binding: str, cache: str, patience: float) -> Iterator[Path]:
    need_fuse(binding)
    with in_memory() as folder:
        command = [sys.executable, str(TESTS / "memory_source.py"), str(folder), binding, cache]
        with serving(command, folder, patience):
            yield folder


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """One mount for all tests that only look."""
    with mounted_by(*request.param.split(), patience=4 * PATIENCE) as folder:
        yield folder


def reads(place: Path) -> int:
    return int(json.loads(os.getxattr(place, "user.memory.status"))["reads"])


@pytest.mark.few(1)
def test_contents_and_attributes(place: Path) -> None:
    names = sorted(os.listdir(place / "many"))
    assert names == [f"file-{i:04}" for i in range(3000)]
    assert [(place / "many" / name).read_bytes() for name in names] == [
        b"%04d" % i * 250 for i in range(3000)
    ]
    for i in (0, 7, 2999):
        found = (place / f"many/file-{i:04}").stat()
        assert (found.st_size, found.st_mtime_ns, found.st_mode) == (1000, i, 0o100644)
    assert (place / "link").read_bytes() == LARGE
    assert sorted(entry.name for entry in os.scandir(place) if entry.is_file()) == ["large", "link"]


@pytest.mark.few(2)
def test_large_file_in_pieces_and_mapped(place: Path) -> None:
    fd = os.open(place / "large", os.O_RDONLY)
    for at in (0, 1, 4095, 999_999, len(LARGE) - 10, len(LARGE), len(LARGE) + 5000):
        assert os.pread(fd, 70_001, at) == LARGE[at : at + 70_001]
    assert os.lseek(fd, 10, os.SEEK_DATA) == 10
    assert os.lseek(fd, 10, os.SEEK_HOLE) == len(LARGE)
    with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == LARGE
    os.close(fd)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_read_stays_in_the_kernel_by_default(kind: str) -> None:
    binding, cache = kind.split()
    with mounted_by(binding, cache, PATIENCE) as place:  # nobody has read there
        files = list((place / "many").iterdir())
        for _ in range(2):
            for file in files:
                assert file.stat().st_size == len(file.read_bytes())
        if cache == "kernel":  # but for pages that the kernel took back meanwhile
            assert 3000 <= reads(place) < 3300
        else:
            assert reads(place) == 12_000  # the second read of a file finds its end


def test_changes_are_refused(place: Path) -> None:
    file = place / "large"
    all_refused(
        errno.EROFS,
        lambda: file.write_bytes(b""),
        lambda: os.open(file, os.O_RDWR),
        lambda: file.unlink(),
        lambda: file.rename(place / "x"),
        lambda: (place / "d").mkdir(),
        lambda: os.utime(file),
        lambda: os.truncate(file, 0),
        lambda: os.setxattr(file, "user.x", b""),
    )


def test_facts_are_not_listed_and_not_changed(place: Path) -> None:
    file = place / "large"
    assert os.getxattr(file, "user.memory.id") == str(file.stat().st_ino).encode()
    assert os.listxattr(file) == []
    with refused(errno.ENODATA):
        os.getxattr(file, "user.memory.nothing")
    with refused(errno.EOPNOTSUPP):  # so `ls -l` asks one file alone
        os.getxattr(file, "security.selinux")
