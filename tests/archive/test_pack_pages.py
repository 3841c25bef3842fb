"""Bulk work leaves the page cache to others: what was not in it before does not stay."""

from __future__ import annotations

import errno
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import stored
from cached import evict, pages
from commands import Run
from folders import mount_disk

import winkfs
from winkformats.disk import pagecache
from winkformats.disk.pagecache import PAGE
from winkfs.archive.items import STREAM_BYTES
from winkfs.archive.pack import pack
from winkfs.cli import read as cli_read

pytestmark = pytest.mark.on_disk

SIZES = [300, 5 * PAGE, 70_000, STREAM_BYTES + 5]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Files of a tree, small and large, on the disk; skipped where it is memory."""
    (tmp_path / "tree").mkdir()
    found = [tmp_path / "tree" / f"file{size}" for size in SIZES]
    for path, size in zip(found, SIZES, strict=True):
        path.write_bytes(os.urandom(size))
    evict(*found)
    return found


def without_dontcache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As btrfs answers, and older kernels."""
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)


@pytest.mark.parametrize("prepare", [lambda _: None, without_dontcache], ids=["ext4", "btrfs"])
def test_pack_drops_its_own_pages_and_keeps_those_cached_before(
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[pytest.MonkeyPatch], None],
) -> None:
    used = files[2]
    assert used.read_bytes()
    before = pages(used)
    assert before > 10
    prepare(monkeypatch)
    pack(tmp_path / "tree", tmp_path / "c")
    assert pages(*(path for path in files if path != used)) == 0
    assert pages(used) > before // 2  # a busy machine takes a page back now and then
    assert [stored.read(tmp_path / "c", path.name) for path in files] == [
        x.read_bytes() for x in files
    ]


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    """It does not know RWF_DONTCACHE, and RWF_NOWAIT has it read ahead."""
    place = tmp_path / "btrfs"
    if not mount_disk(place, "btrfs", 256 << 20):
        pytest.skip("needs mkfs.btrfs, a kernel that knows it, and root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_nor_does_it_on_btrfs(btrfs: Path, tmp_path: Path) -> None:
    """The compiled path asks the kernel itself."""
    (btrfs / "tree").mkdir()
    files = [btrfs / "tree" / f"file{size}" for size in [*SIZES, *range(5001, 90_000, 3000)]]
    for path in files:
        path.write_bytes(os.urandom(int(path.name[4:])))
    evict(*files)
    used, in_part = files[2], files[-1]
    assert used.read_bytes()
    with in_part.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read ahead
        os.pread(file.fileno(), 2 * PAGE, 5 * PAGE)
    before = [pages(path) for path in files]
    assert sum(before) == before[2] + before[-1]
    assert before[2] > 10
    assert 0 < before[-1] < 10
    pack(btrfs / "tree", tmp_path / "c")
    assert [pages(path) for path in files] == before
    assert [stored.read(tmp_path / "c", x.name) for x in files] == [x.read_bytes() for x in files]


def test_pack_of_a_tar_file_leaves_none_of_its_pages(files: list[Path], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for i in range(8):
            tar.add(files[3], f"{i}")
    evict(tmp_path / "t.tar")
    pack(tmp_path / "t.tar", tmp_path / "c")
    assert pages(tmp_path / "t.tar") == 0
    assert stored.read(tmp_path / "c", "7") == files[3].read_bytes()


def test_cat_of_many_files_leaves_few_pages(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_read, "CACHED_BYTES", 1 << 20)
    with winkfs.create(tmp_path / "c") as container:
        container.put_many((f"{i:04d}", os.urandom(30_000)) for i in range(1000))
        container.save_catalog()
    evict(tmp_path / "c.data")
    done = run("cat", tmp_path / "c", "*")
    assert (done.status, len(done.out)) == (0, 30_000_000)
    # What was read before the limit, with what the kernel read ahead: 8 MiB on some disks.
    assert pages(tmp_path / "c.data") * PAGE <= 11 << 20


def test_a_pass_in_pieces_that_cut_large_folios_leaves_no_pages(tmp_path: Path) -> None:
    """The kernel drops a large folio only as a whole; each piece ends within one."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(32 << 20))
    evict(path)
    fd = os.open(path, os.O_RDONLY)
    drop = pagecache.dropper(fd, 0, 32 << 20)
    assert drop is not None
    reader = pagecache.BulkReader(lambda into, at: os.preadv(fd, [into], at), drop)
    at = 0
    while got := len(reader.read(at, (1 << 20) + 5 * PAGE)):
        at += got
    reader.close()
    os.close(fd)
    assert at == 32 << 20
    assert pages(path) <= 16
