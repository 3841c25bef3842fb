"""Whole tables built at once, beside a table filled key by key."""

import struct

import numpy as np
import pytest
from constants import shrink
from drawn import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from winkformats.disk.memory import MemoryStorage
from winkformats.hindex import table
from winkformats.hindex.table import Shape, build, cells_of, find_many, probe, size_for, used

OFFSET = 512
MARKS = ((0, 1), (-1, -2), (7, 0))


def built(shape: Shape, bits: list[int], s: list[int]) -> MemoryStorage:
    """A table whose entry i points to 1000 + i and, from CELLSZ 3 on, carries -i."""

    def words(chosen):
        cells = np.zeros((len(chosen), shape.cellsz), np.int64)
        cells[:, 0] = 1000 + chosen
        if shape.cellsz > 1:
            cells[:, 1] = np.array(s, np.uint64).view(np.int64)[chosen]
        if shape.cellsz > 2:
            cells[:, 2:] = -chosen[:, None]
        return cells

    storage = MemoryStorage(bytes(OFFSET), "f")
    build(storage, OFFSET, shape, np.array(bits, np.uint64), words)
    return storage


def naive(htsize: int, bits: list[int]) -> dict[int, int]:
    """Linear probing, one key at a time -> slot: index of the key."""
    slots: dict[int, int] = {}
    for i, low63 in enumerate(bits):
        slot = low63 % htsize
        while slot in slots:
            slot = (slot + 1) % htsize
        slots[slot] = i
    return slots


def rows_of(storage: MemoryStorage, shape: Shape) -> list[list[int]]:
    """The cells read one by one, without the product."""
    data = bytes(storage.data[OFFSET:])
    assert len(data) == 8 * shape.cellsz * shape.htsize
    return [list(row) for row in struct.iter_unpack(f">{shape.cellsz}q", data)]


def check(storage: MemoryStorage, shape: Shape, bits: list[int], s: list[int]) -> None:
    """The same cells are taken as by the naive table, and every key is found from its slot."""
    rows = rows_of(storage, shape)
    taken = {slot for slot, row in enumerate(rows) if row[0] != shape.htfree}
    assert taken == set(naive(shape.htsize, bits))
    for row in (row for row in rows if row[0] == shape.htfree):
        assert not any(row[1:])
    for i, low63 in enumerate(bits):
        slot = low63 % shape.htsize
        while rows[slot][0] != 1000 + i:
            assert rows[slot][0] != shape.htfree, f"key {i} cannot be reached"
            slot = (slot + 1) % shape.htsize
        signed = s[i] - (s[i] >> 63 << 64)
        assert rows[slot] == [1000 + i, signed, *[-i] * (shape.cellsz - 2)][: shape.cellsz]


def cells_in(storage: MemoryStorage, shape: Shape) -> np.ndarray:
    return cells_of(shape, storage.view(storage.size()), OFFSET)


def check_lookups(storage: MemoryStorage, shape: Shape, bits: list[int], s: list[int]) -> None:
    """`find_many` and `probe` find all of them, and nothing else."""
    cells = cells_in(storage, shape)
    for i, low63 in enumerate(bits):
        pointers = [
            int.from_bytes(cell[:8], "big") for _, cell in probe(shape, storage.read, OFFSET, low63)
        ]
        assert 1000 + i in pointers
    if shape.cellsz > 1:
        asked = np.array(s, np.uint64)
        pointers, slots = find_many(shape, cells, asked, np.array(bits, np.uint64))
        assert sorted(pointers.tolist()) == list(range(1000, 1000 + len(bits)))
        rows = rows_of(storage, shape)
        assert [rows[slot][0] for slot in slots] == pointers.tolist()
        pointers, slots = find_many(
            shape, cells, asked ^ np.uint64(1 << 40), np.array(bits, np.uint64)
        )
        assert (slots < 0).all() and not pointers.any()
        assert all(rows[~slot][0] == shape.htfree for slot in slots)
    found, entries = used(shape, cells, 0, shape.htsize)
    assert entries == len(found) == len(bits)
    assert set(found[:, 0].tolist()) == set(range(1000, 1000 + len(bits)))


def check_built(shape: Shape, bits: list[int], s: list[int]) -> MemoryStorage:
    """A table that is built at once, checked in all ways."""
    storage = built(shape, bits, s)
    check(storage, shape, bits, s)
    check_lookups(storage, shape, bits, s)
    return storage


@pytest.fixture(params=[1, 4, 16, 1 << 16])
def bucket(request, monkeypatch):
    """Cells built, and keys sorted, at a time: small ones make borders everywhere."""
    shrink(monkeypatch, "a table", bucket=request.param, segment=3 * request.param)


@pytest.mark.few(3)
@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_table_built_at_once_is_the_one_filled_key_by_key(bucket, data):
    n = data.draw(st.integers(0, 60))
    htsize = n + data.draw(st.sampled_from((1, 1, 2, 5, 40)))
    # One draw for all keys: a home anywhere or among the last three, and how often around.
    drawn = struct.iter_unpack(">B7s", data.draw(st.binary(min_size=8 * n, max_size=8 * n)))
    bits = [
        (home % htsize if home < 128 else htsize - 1 - home % min(3, htsize))
        + htsize * int.from_bytes(turns, "big")
        for home, turns in drawn
    ]
    s = [(i << 50) + 17 for i in range(n)]
    marks = data.draw(st.sampled_from(MARKS))
    shape = Shape(htsize, data.draw(st.sampled_from((1, 2, 3, 5))), *marks)
    check_built(shape, bits, s)


@pytest.mark.few(24)
@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("home", [0, 5, 9])
@pytest.mark.parametrize("cellsz", [1, 2, 3])
def test_all_keys_in_one_slot_wrap_around_the_end(bucket, home, cellsz, marks):
    bits, s = [home + 10 * i for i in range(9)], list(range(2**63, 2**63 + 9))
    shape = Shape(10, cellsz, *marks)
    check_built(shape, bits, s)


def test_a_run_that_wraps_into_a_run_at_the_start(bucket):
    bits = [0, 0, 1, 2, 17, 18, 18, 18, 19, 19]
    s = list(range(10))
    shape = Shape(20)
    storage = check_built(shape, bits, s)
    assert [row[0] for row in rows_of(storage, shape)][8:17] == [0] * 9


@pytest.mark.parametrize("bucket", [8], indirect=True)
def test_the_last_bucket_is_shorter_than_what_is_carried_into_it(bucket):
    bits, s = [7] * 12, list(range(12))  # 11 cells are carried out of the first bucket into one
    shape = Shape(17)
    check_built(shape, bits, s)


@pytest.mark.slow
@pytest.mark.parametrize("htfree", [0, -1])
def test_a_real_bucket_border(htfree):
    border = table.BUCKET
    bits = [border - 1] * 3 + [border - 2] * 2 + [border] + list(range(100, 200)) + [2 * border]
    s = [i * 3 + 1 for i in range(len(bits))]
    shape = Shape(2 * border + 1, 2, htfree, -2)
    check_built(shape, bits, s)


@pytest.mark.parametrize("n", [3, 4])
def test_a_table_must_keep_a_free_cell(n):
    with pytest.raises(ValueError, match=f"{n} entries do not fit into 3 cells"):
        built(Shape(3), list(range(n)), list(range(n)))


def table_of(shape: Shape, rows: list[tuple[int, ...]]) -> MemoryStorage:
    data = b"".join(n.to_bytes(8, "big", signed=True) for row in rows for n in row)
    return MemoryStorage(bytes(OFFSET) + data, "f")


# The cells; S and slots of what is looked up, and what is found of it; a slot, and those that are
# looked at from there on.
SEARCHES = {
    "deleted cells are passed, free ones end it": (
        Shape(5, 2, 0, 1), [(9, 7), (1, 0), (0, 0), (8, 7), (1, 0)],
        [7] * 5, [0, 1, 2, 3, 4], [9, 0, 0, 8, 9], [0, ~2, ~2, 3, 0], 3, [3, 0],
    ),
    "S of 0 is that of no free or deleted cell": (
        Shape(3, 2, -1, -2), [(-2, 0), (-1, 0), (5, 0)], [0, 0], [0, 2], [0, 5], [~1, 2], 2, [2],
    ),
    "a table without a free cell": (
        Shape(4, 2, 0, 1), [(1, 0), (9, 7), (1, 0), (8, 6)], [5, 6], [2, 2], [0, 8], [~4, 3],
        2, [3, 1],
    ),
    "a table of one free cell": (Shape(1, 2, -1, -2), [(-1, 0)], [5], [5], [0], [~0], 5, []),
    "two keys with one hash": (
        Shape(8, 2), [(0, 0)] * 6 + [(1000, 99), (1001, 99)], [99], [6], [1000], [6], 6, [6, 7],
    ),
    "nothing to look up": (Shape(3), [(0, 0), (1000, 1), (0, 0)], [], [], [], [], 1, [1]),
}  # fmt: skip


@pytest.mark.parametrize("case", SEARCHES)
def test_a_search_in_a_table_made_by_hand(case):
    shape, rows, s, bits, pointers, slots, home, probed = SEARCHES[case]
    storage = table_of(shape, rows)
    cells = cells_in(storage, shape)
    found = find_many(shape, cells, np.array(s, np.uint64), np.array(bits, np.uint64))
    assert [column.tolist() for column in found] == [pointers, slots]
    looked_at = list(probe(shape, storage.read, OFFSET, home))
    assert [slot for slot, _ in looked_at] == probed
    assert [struct.unpack(">2q", cell) for _, cell in looked_at] == [rows[slot] for slot in probed]
    taken = [row for row in rows if row[0] != shape.htfree]
    live = [list(row) for row in taken if row[0] != shape.htdel]
    found, entries = used(shape, cells, 0, shape.htsize)
    assert (found.tolist(), entries) == (live, len(taken))


@pytest.mark.parametrize("live", [0, 1, 29, 30, 1000, 10**6, 5 * 10**6])
def test_a_new_table_has_room_for_half_as_many_again(live):
    htsize = size_for(live)
    assert htsize >= 64 and htsize % 2 == 1
    assert live * 1.5 <= table.LOAD * htsize + 1
    assert htsize <= max(65, 2.2 * live)


def test_slot_bits_of_stored_hashes_lose_the_top_bit():
    assert table.bits_of(np.array([2**64 - 1, 5], np.uint64)).tolist() == [2**63 - 1, 5]
