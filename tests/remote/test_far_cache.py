"""The cache of blocks on the disk: fewer requests, and never a wrong answer."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import stored
from commands import Run, one_line
from commands import run as run  # a fixture
from simulated.objectstore import ObjectStore, web_server
from threaded import in_threads

import winkfs
from winkformats.hashing import xxh3_signed
from winkfs.remote.cache import BlockCache

pytestmark = [pytest.mark.in_memory, pytest.mark.slow]
FILES = {f"d{i // 100:03}/{i:05}": b"%d" % i * 30 for i in range(20_000)}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored.make(tmp_path_factory.mktemp("cache") / "c", FILES)


@pytest.fixture
def store(base: Path, cache: Path) -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        store.put_container(base, "c")
        store.transport.cache = BlockCache(cache, 1 << 20)
        yield store


def test_blocks_come_from_the_cache(store: ObjectStore) -> None:
    with winkfs.open(f"{store.url}/c") as there:
        assert sorted(there.names()) == sorted(FILES)
    with store.counted() as asked, winkfs.open(f"{store.url}/c") as there:
        assert there.read("d031/03100") == FILES["d031/03100"]
    assert len(asked) <= 3
    with store.counted() as asked, winkfs.open(f"{store.url}/c") as there:
        assert sorted(there.names()) == sorted(FILES)
    assert len(asked) <= 3


def test_another_container_with_equal_blocks_finds_them(store: ObjectStore) -> None:
    with winkfs.open(f"{store.url}/c") as there:
        list(there.names())
    for suffix in (".data", ".cat"):
        store.put(f"other{suffix}", store.objects[f"c{suffix}"][0])
    with store.counted() as asked, winkfs.open(f"{store.url}/other") as there:
        assert sorted(there.names()) == sorted(FILES)
    assert len(asked) <= 3


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "a directory", "no permission"])
def test_a_damaged_cache_costs_requests_alone(store: ObjectStore, cache: Path, damage: str) -> None:
    with winkfs.open(f"{store.url}/c") as there:
        list(there.names())
    for path in cache.glob("??/*"):
        data = path.read_bytes()
        path.unlink()
        if damage == "a directory":
            path.mkdir()
        elif damage != "no permission":
            changed = {"flipped": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:-5], "empty": b""}
            path.write_bytes(changed[damage])
    if damage == "no permission":
        cache.chmod(0o500)
    with winkfs.open(f"{store.url}/c") as there:
        assert sorted(there.names()) == sorted(FILES)
    cache.chmod(0o700)


def test_the_least_used_blocks_are_removed(cache: Path) -> None:
    small, blocks = BlockCache(cache, 100_000), [bytes([i]) * 10_000 for i in range(30)]
    for i, block in enumerate(blocks):
        small.put(xxh3_signed(block), block)
        time.sleep(0.002)
        if i % 5 == 0:
            assert small.get(xxh3_signed(blocks[0]), 10_000) == blocks[0]
    kept = [
        i for i, block in enumerate(blocks) if small.get(xxh3_signed(block), 10_000) is not None
    ]
    assert kept[0] == 0 and kept[-1] == 29 and sum(size for _, size, _ in small.files()) <= 110_000


def test_many_threads_share_it(cache: Path) -> None:
    blocks = [random.Random(i).randbytes(3000) for i in range(40)]

    def work(seed: int) -> None:
        mine = BlockCache(cache, 50_000)
        for i in random.Random(seed).choices(range(40), k=150):
            mine.put(xxh3_signed(blocks[i]), blocks[i])
            j = (i * 7 + seed) % 40
            assert mine.get(xxh3_signed(blocks[j]), 3000) in (None, blocks[j])

    in_threads(*[partial(work, seed) for seed in range(6)])


def test_what_is_no_such_block_is_not_kept(cache: Path) -> None:
    one = BlockCache(cache, 1 << 20)
    one.put(5, b"other bytes")
    assert one.get(5, 11) is None and not list(one.files())


def test_commands(
    store: ObjectStore, run: Run, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web_server(store) as url:
        assert run("cache", "prefetch", f"{url}/c").out.split() == [b"20000", b"names"]
        assert f"folder: {cache}".encode() in run("cache", "info").out.replace(b"  ", b"")
        assert b"bytes removed" in run("cache", "clear").out and not list(cache.glob("??"))
    assert "is on this machine" in one_line(run("cache", "prefetch", "c"))
    monkeypatch.setenv("WINKFS_CACHE_SIZE", "0")
    assert BlockCache.of_user() is None and run("cache", "info").out.split() == [b"limit:", b"0"]
    monkeypatch.setenv("WINKFS_CACHE_SIZE", "much")
    assert "WINKFS_CACHE_SIZE is 'much'" in one_line(run("cache", "info"))
