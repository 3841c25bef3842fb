"""Names that were made to share a hash, or a slot, cost what other names cost."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash
from seam import bytes_read, disk_calls
from stored import make

import winkfs
from winkformats import native
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.posix import FileStorage
from winkformats.hashing import MASK63
from winkformats.hindex import table
from winkformats.kv.superblock import SBSIZE, read_superblock
from winkfs import Container, digests
from winkfs.container.verify import verify
from winkfs.digests import NAME
from winkfs.mounting.container import ContainerSource
from winkfs.names import inode_key
from winkfs.results import store as results
from winkfs.results.digestshard import DigestColumns, DigestShardWriter, write_index

COUNT = 4_000
# Of a key of 32 bytes XXH3 multiplies the second word with the first, less a word of its secret:
# where that is 0, the second does not count.
WORD = bytes.fromhex("b8fe6c3923a44bbe")
ALIKE = [WORD + b"%08d the same end" % i for i in range(COUNT)]
HONEST = [b"%08d%08d the same end" % (i, i) for i in range(COUNT)]


def test_they_are_what_they_should_be() -> None:
    hashes = [
        {xxhash.xxh3_64_intdigest(inode_key(name)) for name in names} for names in (ALIKE, HONEST)
    ]
    assert list(map(len, hashes)) == [1, COUNT]


def cost(job: Callable[[], object]) -> float:
    start = time.process_time()
    job()
    return time.process_time() - start


def work(base: str, names: list[bytes]) -> None:
    """Everything that looks for names."""
    with winkfs.create(base) as c:
        c.put_many((name, b"1" + name) for name in names)
        assert c.read(names[7]) == b"1" + names[7]
    with winkfs.open(base, "a") as c:
        c.put_many((name, b"2" + name) for name in names)  # over the base
        c.put_many((name, b"3" + name) for name in names)  # over the overlay
        for name in names[::2]:
            c.put(name, b"4")
        for name in names[1::4]:
            c.delete(name)
    expected = {
        name: b"4" if i % 2 == 0 else b"3" + name for i, name in enumerate(names) if i % 4 != 1
    }
    random.Random(1).shuffle(names := list(names))
    for _ in range(2):
        with winkfs.open(base) as c:
            assert {n.encode("utf-8", "surrogateescape") for n in c.names()} == set(expected)
            for name in names:
                assert (name in c) == (name in expected)
            live = [name for name in names if name in expected]
            assert [c.read(name) for name in live] == [expected[name] for name in live]
            assert list(c.get_many(live)) == [expected[name] for name in live]
            source = ContainerSource(c)
            found = list(map(source.attr, names))
            source.close()
            assert [attr and attr.size for attr in found] == [
                len(expected[name]) if name in expected else None for name in names
            ]
        assert not verify(base).problems
        Path(f"{base}.idx").unlink(missing_ok=True)  # made anew from the data


@pytest.mark.long
@pytest.mark.slow
def test_names_with_one_hash_cost_no_more_than_others(tmp_path: Path) -> None:
    honest = cost(lambda: work(str(tmp_path / "honest"), HONEST))
    assert cost(lambda: work(str(tmp_path / "alike"), ALIKE)) < 4 * honest + 1


def names_of_slot(htsize: int, count: int) -> Iterator[bytes]:
    number = 0
    while count:
        name = b"%d" % number
        if (xxhash.xxh3_64_intdigest(inode_key(name)) & MASK63) % htsize == 0:
            count -= 1
            yield name
        number += 1


@pytest.mark.slow
def test_names_made_for_one_slot_are_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, count = str(tmp_path / "c"), 600
    names = list(names_of_slot(table.size_for(count), count))
    make(base, ((name, name) for name in names))
    with winkfs.open(base) as c:
        assert list(c.get_many(names)) == names
    with FileStorage(f"{base}.idx") as file:
        assert read_superblock(file)["HTSIZE"] > table.size_for(count)
    monkeypatch.setattr(native, "code", None)  # what is compiled reads by itself
    with Container(base, "r", mapped=False) as c:
        for name in names:
            with disk_calls() as calls:
                assert c.read(name) == name
            assert 0 < bytes_read(calls, ".idx") < 100 * 16
    assert not verify(base).problems


def test_a_size_with_a_common_factor_would_not_spread_them(monkeypatch: pytest.MonkeyPatch) -> None:
    size = table.size_for(600)
    common = size + 2 * 257
    assert size % 257 == common % 257 == 0
    draws = iter([256, 7])
    monkeypatch.setattr(secrets, "randbelow", lambda count: next(draws))
    storage = MemoryStorage()
    s = np.arange(1, 601, dtype=np.uint64) * np.uint64(size)
    block = write_index(storage, s, np.arange(600) + SBSIZE, 1, 1 << 20)
    assert block["HTSIZE"] == size + 2 * 8


@pytest.mark.slow
def test_paths_with_colliding_hashes_cost_no_more_than_others(tmp_path: Path) -> None:
    def cost_of(path: Path, paths: list[bytes]) -> float:
        count = len(paths)
        folder, numbers = results.begin(path, NAME), np.arange(count)
        writer = DigestShardWriter(folder / "a")
        writer.add(DigestColumns(paths, numbers.astype(np.uint64), np.zeros((count, 16), np.uint8),
                           numbers, numbers, [b""] * count, [b""] * count))  # fmt: skip
        digests.publish(folder, [writer.finish()], {})

        def look_up() -> None:
            with digests.open(path) as found:
                one_by_one = list(map(found.get, paths))
                assert [digest and digest.xxh3 for digest in one_by_one] == list(range(count))
                assert found.get_many(paths) == one_by_one

        return cost(look_up)

    honest = cost_of(tmp_path / "honest", [name + b"/I0" for name in HONEST])
    assert cost_of(tmp_path / "alike", [name + b"/I0" for name in ALIKE]) < 4 * honest + 1


def test_paths_of_a_digest_set_made_for_one_slot_are_spread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(secrets, "randbelow", lambda count: 0)  # the least that can be drawn
    storage = MemoryStorage()
    htsize = table.size_for(600)
    s = np.arange(1, 601, dtype=np.uint64) * np.uint64(htsize)
    block = write_index(storage, s, np.arange(600) + SBSIZE, 1, 1 << 20)
    assert block["HTSIZE"] > htsize


@pytest.mark.parametrize("htsize", [9, 64, 4_099, 9_001])
def test_find_many_sees_all_of_a_full_table(htsize: int) -> None:
    """Whatever its size is to the windows: each key is found, and one that is not there is not."""
    storage, shape = MemoryStorage(), table.Shape(htsize)
    rng = np.random.default_rng(htsize)
    count = htsize - 1
    s = rng.integers(1, 1 << 63, count + 20, np.uint64)
    s[: htsize // 2] -= s[: htsize // 2] % np.uint64(htsize)  # half of them begin with slot 0
    cells = np.stack([np.arange(2, count + 2), s[:count].view(np.int64)], axis=1)
    table.build(storage, 0, shape, s[:count], lambda chosen: cells[chosen])
    view = table.cells_of(shape, storage.view(16 * htsize), 0)
    pointers, slots = table.find_many(shape, view, s, table.bits_of(s))
    assert pointers[:count].tolist() == list(range(2, count + 2))
    assert (slots[count:] < 0).all()
    for i in (0, count // 2, count - 1):
        found = table.probe(shape, storage.read, 0, int(s[i]), int(s[i]).to_bytes(8, "big"))
        assert i + 2 in [int.from_bytes(cell[:8], "big") for _, cell in found]
