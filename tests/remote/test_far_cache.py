"""The cache of blocks on the disk: fewer requests, and never a wrong answer."""

from __future__ import annotations

import json
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
from winkfs.remote.cache import SEGMENT, DiskCache

pytestmark = [pytest.mark.in_memory, pytest.mark.slow]
FILES = {f"d{i // 100:03}/{i:05}": b"%d" % i * 30 for i in range(20_000)}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored.make(tmp_path_factory.mktemp("cache") / "c", FILES)


@pytest.fixture
def store(base: Path, cache: Path) -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        store.put_container(base, "c")
        store.transport.cache = DiskCache(cache, 1 << 24)
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
    small, blocks = DiskCache(cache, 100_000), [bytes([i]) * 10_000 for i in range(30)]
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
        mine = DiskCache(cache, 50_000)
        for i in random.Random(seed).choices(range(40), k=150):
            mine.put(xxh3_signed(blocks[i]), blocks[i])
            j = (i * 7 + seed) % 40
            assert mine.get(xxh3_signed(blocks[j]), 3000) in (None, blocks[j])

    in_threads(*[partial(work, seed) for seed in range(6)])


def test_what_is_no_such_block_is_not_kept(cache: Path) -> None:
    one = DiskCache(cache, 1 << 20)
    one.put(5, b"other bytes")
    assert one.get(5, 11) is None and not list(one.files())


def test_commands(
    store: ObjectStore, run: Run, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINKFS_CACHE_SIZE", "1G")  # and an option of a command sets it
    with web_server(store) as url:
        assert run("cache", "prefetch", f"{url}/c").out.split() == [b"20000", b"names"]
        found = json.loads(run("cache", "info", "--json").out)
        assert found["folder"] == str(cache) and found["catalogs"]["blocks"] > 0
        assert found["contents"] == {"pieces": 0, "bytes": 0}
        done = run("cache", "prefetch", f"{url}/c", "d031/*", "d000/00007", "none")
        assert done.out.startswith(b"20000 names, 101 files of ") and "none" in done.err
        line = one_line(run("--cache-size", "1000", "cache", "prefetch", f"{url}/c", "d03*"))
        assert "see winkfs --cache-size" in line
        monkeypatch.setenv("WINKFS_CACHE_SIZE", "1G")
        found = json.loads(run("cache", "info", "--json").out)
        assert found["bytes"] == found["catalogs"]["bytes"] + found["contents"]["bytes"]
        assert found["contents"]["bytes"] > 100 * 90
        assert b"bytes removed" in run("cache", "clear").out and not list(cache.glob("??"))
    assert "is on this machine" in one_line(run("cache", "prefetch", "c"))
    monkeypatch.setenv("WINKFS_CACHE_SIZE", "0")
    assert DiskCache.of_user() is None and run("cache", "info").out.split() == [b"limit:", b"0"]
    assert "its size is 0" in one_line(run("cache", "prefetch", "http://127.0.0.1:9/c"))
    monkeypatch.setenv("WINKFS_CACHE_SIZE", "much")
    assert "WINKFS_CACHE_SIZE is 'much'" in one_line(run("cache", "info"))
    assert b"524288000" in run("--cache-size", "500M", "cache", "info").out
    assert run("--no-cache", "cache", "info").out.split() == [b"limit:", b"0"]
    assert "500M, 2G" in one_line(run("--cache-size", "much", "cache", "info"), 2)


# --- contents ---


def test_documents_come_from_the_cache(store: ObjectStore) -> None:
    chosen = random.Random(3).sample(sorted(FILES), 300)
    with winkfs.open(f"{store.url}/c") as there:
        assert list(there.get_many(chosen)) == [FILES[name] for name in chosen]
    with store.counted() as asked, winkfs.open(f"{store.url}/c") as there:
        assert [there.read(name) for name in chosen] == [FILES[name] for name in chosen]
        with there.open_file(chosen[0]) as file:
            assert file.read() == FILES[chosen[0]]
    assert len(asked) <= 3 and sum(r.key == "c.data" for r in asked) == 1


def test_a_pass_takes_what_is_there_and_adds_nothing(store: ObjectStore, cache: Path) -> None:
    with winkfs.open(f"{store.url}/c") as there:
        assert len(list(there.scan())) == len(FILES)
        assert not list(cache.glob("??/*.pieces"))
        list(there.get_many(FILES))
    with store.counted() as asked, winkfs.open(f"{store.url}/c") as there:
        assert sorted((e.name, e.read()) for e in there.scan()) == sorted(FILES.items())
    assert sum(r.size for r in asked if r.key == "c.data") < 64 << 10


def test_a_verify_reads_the_store(store: ObjectStore) -> None:
    with winkfs.open(f"{store.url}/c") as there:
        list(there.get_many(list(FILES)[:500]))
    with store.counted() as asked:
        assert winkfs.verify(f"{store.url}/c").problems == []
    assert sum(r.size for r in asked if r.key == "c.data") >= store.objects["c.data"][1].size


def test_another_object_of_that_name_is_read_anew(store: ObjectStore, tmp_path: Path) -> None:
    """Also one with the ETag and size of the first."""
    with winkfs.open(f"{store.url}/c") as there:
        list(there.get_many(list(FILES)[3000:3300]))
    other = stored.make(tmp_path / "other", {name: data[::-1] for name, data in FILES.items()})
    data, info = other.with_suffix(".data").read_bytes(), store.objects["c.data"][1]
    assert len(data) == info.size
    store.put_container(other, "c")
    store.objects["c.data"] = data, info
    with winkfs.open(f"{store.url}/c") as there:
        assert there.read("d031/03100") == FILES["d031/03100"][::-1]


@pytest.mark.parametrize("etag", ["", 'W/"1"'])
def test_what_has_no_sure_etag_is_not_kept(store: ObjectStore, cache: Path, etag: str) -> None:
    data, info = store.objects["c.data"]
    store.objects["c.data"] = data, info._replace(etag=etag)
    with winkfs.open(f"{store.url}/c") as there:
        assert there.read("d031/03100") == FILES["d031/03100"]
    assert not list(cache.glob("??/*.pieces"))


PIECES = {0: b"a" * 9000, 9000: b"b" * 300, SEGMENT - 10: b"c" * 20, 5 * SEGMENT: b"d" * SEGMENT}


def found(there: DiskCache, identity: bytes = b"me") -> set[tuple[int, bytes]]:
    return set(there.pieces(identity, 0, 7 * SEGMENT))


@pytest.fixture
def kept(cache: Path) -> DiskCache:
    made = DiskCache(cache, 1 << 30)
    for start, data in PIECES.items():
        made.keep(b"me", start, data)
    return made


def test_pieces_are_found(kept: DiskCache) -> None:
    wanted = {**PIECES, SEGMENT - 10: b"c" * 10, SEGMENT: b"c" * 10}
    assert found(kept) == set(wanted.items()) and not found(kept, b"other")
    assert set(kept.pieces(b"me", 9100, 9101)) == {(9000, b"b" * 300)}


def test_what_a_kill_left_is_ignored(kept: DiskCache, cache: Path) -> None:
    """Cut anywhere; and what is written after it is no wrong answer."""
    whole = found(kept)
    for path in cache.glob("??/*.pieces"):
        data = path.read_bytes()
        for cut in {0, 5, 23, 24, 25, len(data) // 2, len(data) - 1}:
            path.write_bytes(data[:cut])
            assert found(kept) <= whole
            kept.keep(b"me", 9000, b"b" * 300)
            assert found(kept) <= whole
            path.write_bytes(data)


def test_a_flipped_byte_of_a_piece_is_no_answer(kept: DiskCache, cache: Path) -> None:
    whole = found(kept)
    for path in cache.glob("??/*.pieces"):
        data = path.read_bytes()
        for at in (0, 7, 8, 15, 16, 23, 24, 30, len(data) - 1):
            path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            assert found(kept) < whole
            path.write_bytes(data)


def test_pieces_that_overlap_do_not_grow_without_end(kept: DiskCache, cache: Path) -> None:
    for start in range(0, 3000, 10):
        kept.keep(b"me", start, bytes(SEGMENT // 4))
    assert sum(path.stat().st_size for path in cache.glob("??/*.pieces")) < 6 * SEGMENT


def test_many_short_processes_keep_the_limit(cache: Path) -> None:
    for number in range(400):
        DiskCache(cache, 100_000).keep(b"%d" % number, 0, bytes(1000))
    assert sum(size for _, size, _ in DiskCache(cache, 100_000).files()) < 200_000


def test_many_threads_share_pieces(cache: Path) -> None:
    data = random.Random(1).randbytes(3 * SEGMENT)

    def work(seed: int) -> None:
        mine, draw = DiskCache(cache, 2 * SEGMENT), random.Random(seed)
        for _ in range(100):
            start = draw.randrange(len(data))
            mine.keep(b"me", start, data[start : start + draw.randrange(30_000)])
            for at, piece in mine.pieces(b"me", start, start + 100):
                assert data[at : at + len(piece)] == piece

    in_threads(*[partial(work, seed) for seed in range(6)])
