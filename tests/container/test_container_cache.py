"""What a container leaves in the page cache of a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from constants import shrink
from container_checks import assert_sound, path_of
from stored import make

import winkfs
from winkformats.disk import pagecache
from winkfs.container.compact import compact

pytestmark = pytest.mark.on_disk


def resident(path: Path) -> int:
    """Return the bytes of a file that the page cache has."""
    with path.open("rb") as file:
        absent = pagecache.absent(file.fileno(), path.stat().st_size)
    if absent is None:
        pytest.skip("what the page cache has is not known here")
    return int((~absent).sum()) * pagecache.PAGE


def forget(path: Path) -> None:
    """Drop a file from the page cache; skip the test where it is kept nowhere else."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        pagecache.forget(file.fileno(), 0, path.stat().st_size)
    if resident(path) > path.stat().st_size / 2:
        pytest.skip("files of this file system are in the page cache alone")


@pytest.mark.long
@pytest.mark.slow
def test_a_listing_keeps_within_its_page_cache_budget(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 200_000
    make(base, ((f"{i * 7919 % count:06d}/{i}", b"x") for i in range(count)))
    winkfs.reindex(base)
    path = path_of(base, ".cat")
    size = path.stat().st_size
    assert size > 3 << 20
    shrink(monkeypatch, "the catalog", cached=64 << 10, dropped=1 << 20)  # whole folios
    forget(path)
    with winkfs.open(base) as container:
        assert sum(1 for _ in container.names()) == count
        half = container.names()
        assert next(half)
        del half  # a pass that is given up
    assert resident(path) < size / 2
    path.read_bytes()
    with winkfs.open(base) as container:
        assert sum(1 for _ in container.names()) == count
    assert resident(path) > 0.9 * size  # what was there stays; the kernel may need some pages


def test_closing_a_classic_container_drops_its_key_pages(base: Path) -> None:
    """Its index needs the keys of all files anew."""
    files = {b"file %d" % i: b"x" * 20_000 for i in range(400)}
    make(base, files, classic=True)
    forget(path_of(base, ".data"))
    with winkfs.open(base, "a") as c:
        c.put("one", b"1")
    assert resident(path_of(base, ".data")) < 100 * pagecache.PAGE
    assert_sound(base, files | {b"one": b"1"})


def test_a_compaction_leaves_the_page_cache_as_it_was(base: Path) -> None:
    with winkfs.create(base) as c:
        c.put_many((f"{i}", bytes(5000)) for i in range(4000))
        for i in range(0, 4000, 2):
            c.delete(f"{i}")
    forget(path_of(base, ".data"))
    compact(base)
    assert resident(path_of(base, ".data")) < 2 << 20  # of 10
