"""Blocks of a catalog that are decoded together are those that are decoded one by one."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from constants import shrink
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from winkformats.arrays import blank, rows_joined
from winkformats.disk.memory import MemoryStorage
from winkfs.container.ondisk.block import SLACK, Blocks, encode_blocks
from winkfs.container.ondisk.catalog import Catalog, CatalogWriter
from winkfs.container.ondisk.run import Run
from winkfs.container.table import (
    ASK,
    COLUMNS,
    GONE,
    KIND,
    MTIME,
    POINTER,
    POS,
    SIZE,
    FileTable,
    joined,
    live,
)
from winkfs.errors import DerivedDamage

STEMS = st.sampled_from([b"", b"a/", b"a" * 9, b"deep/" * 7, b"x" * 300])
NAMES = st.builds(bytes.__add__, STEMS, st.binary(min_size=1, max_size=12)).map(
    lambda name: name.replace(b"\0", b"1")
)
INTS = st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1))
Row = tuple[bytes, int, int, int, int, int]


def rows_of(names: list[bytes], *, kinds: list[int] | None = None) -> FileTable:
    places = 1000 * np.arange(len(names)) + 5000
    kind = np.array(kinds or [1] * len(names))
    return FileTable.of(names, places, 1, places % 77, places << 20, places - 500, kind)


def listed(found: FileTable) -> list[Row]:
    """Name, pos, pointer, size, mtime and kind of each row."""
    some = found.numbers[:, [POS, POINTER, SIZE, MTIME, KIND]].tolist()
    return [(name, *row) for name, row in zip(found.names, some, strict=True)]


def laid_out(values: list[bytes], gap: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lengths = np.array(list(map(len, values)))
    at = np.cumsum(lengths + gap) - lengths
    raw = np.full(int(at[-1] + lengths[-1]) + SLACK, 255, np.uint8)
    for start, value in zip(at.tolist(), values, strict=True):
        raw[start : start + len(value)] = np.frombuffer(value, np.uint8)
    return raw, at, lengths


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.sets(NAMES, min_size=1, max_size=60), st.integers(1, 30), st.integers(0, 9),
    st.sampled_from([1, 1 << 22]), st.data(),
)  # fmt: skip
def test_blocks_decoded_together_equal_single_blocks(
    found: set[bytes], each: int, gap: int, together: int, data: st.DataObject
) -> None:
    names = sorted(found)
    row = st.lists(INTS, min_size=len(COLUMNS), max_size=len(COLUMNS))
    numbers = np.array([data.draw(row) for _ in names], np.int64)
    numbers[:, SIZE] &= 2**63 - 1
    numbers[:, POINTER] = -1
    values = [value for value, _ in encode_blocks(FileTable(names, numbers), each)]
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, "the catalog", decoded=together)
        blocks = Blocks(*laid_out(values, gap))
        plain, alone = blocks.table, [Blocks(*laid_out([value], 0)) for value in values]
        assert [name for block in alone for name in block.table.names] == names
    assert blocks.counts.tolist() == [block.starts[-1] for block in alone]
    assert listed(plain) == listed(FileTable(names, numbers))
    for number in range(len(COLUMNS) + 2):
        wanted = np.concatenate([block.column(number) for block in alone])
        assert np.array_equal(blocks.column(number), wanted)
    singles = [(block.name(i), block.row(i)) for block in alone for i in range(block.starts[-1])]
    assert singles == list(zip(names, numbers.tolist(), strict=True))
    start = data.draw(st.integers(0, len(names)))
    stop = data.draw(st.integers(start, len(names)))
    assert listed(plain.part(start, stop)) == listed(plain)[start:stop]
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(names),
                                         max_size=len(names))))  # fmt: skip
    assert listed(plain.take(chosen)) == [row for row, ok in zip(listed(plain), chosen, strict=True)
                                        if ok]  # fmt: skip


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=20), st.sampled_from([32, 33, 264]))
def test_rows_are_cut_and_joined(parts: list[bytes], width: int) -> None:
    rows = np.full((len(parts), width), 255, np.uint8)
    for row, part in zip(rows, parts, strict=True):
        row[: len(part)] = np.frombuffer(part, np.uint8)
    lengths = np.array(list(map(len, parts)))
    assert rows_joined(rows, lengths)[1].tobytes() == b"".join(parts)
    blank(rows, lengths)
    assert rows.tobytes() == b"".join(part.ljust(width, b"\0") for part in parts)


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_bytes_that_are_no_blocks_are_refused(data: st.DataObject) -> None:
    names = sorted({b"%d" % (i * 37 % 1000) for i in range(40)})
    values = [value for value, _ in encode_blocks(rows_of(names), 9)]
    raw, at, lengths = laid_out(values, 3)
    for _ in range(data.draw(st.integers(1, 3))):
        word = int(at[data.draw(st.integers(0, len(at) - 1))]) + data.draw(st.integers(0, 300))
        number = data.draw(st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1)))
        size = data.draw(st.sampled_from([1, 8]))
        some = number.to_bytes(8, "little")[:size]
        raw[word : word + size] = np.frombuffer(some, np.uint8)[: len(raw) - word]
    if data.draw(st.booleans()):
        lengths[data.draw(st.integers(0, len(at) - 1))] -= data.draw(st.integers(1, 100))
    try:
        found = Blocks(raw, at, lengths).table
    except ValueError:
        return
    assert int(found.name_lengths.min()) >= 0 and int(found.name_lengths.sum()) == len(
        found.name_bytes
    )


def test_names_that_share_what_is_not_there_are_refused() -> None:
    ((value, _),) = encode_blocks(rows_of([b"ab", b"abc"]), 2)
    raw, at, lengths = laid_out([value, value], 0)
    assert [row[0] for row in listed(Blocks(raw, at, lengths).table)] == [b"ab", b"abc"] * 2
    (shared,) = (i for i in range(len(value)) if value[i : i + 2] == b"\0\2" and i > 176)
    for row, number in ((0, 1), (1, 3), (1, 200)):
        for block in at.tolist():
            place = block + shared + row
            before, raw[place] = int(raw[place]), number
            with pytest.raises(ValueError, match="names that cannot be"):
                listed(Blocks(raw, at, lengths).table)
            raw[place] = before


# --- of a file ---


def written(rows: FileTable, schema: dict[str, str] | None = None) -> Catalog:
    storage = MemoryStorage(name="c.cat")
    writer = CatalogWriter.create(storage, {"CONTID": 5}, schema or {})
    writer.write_run([rows])
    writer.finish(9, 9, 0)
    return Catalog(storage)


def plainly(run: Run, low: bytes = b"", high: bytes | None = None) -> list[Row]:
    return [row for rows in run.rows(low, high) for row in listed(rows)]


@pytest.fixture(autouse=True)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few rows there are many blocks, and those of other rows are not read with them; as many
    as are given are decoded together."""
    shrink(monkeypatch, "the catalog", block=6, gap=10, together=getattr(request, "param", 64))


@pytest.fixture
def chance() -> random.Random:
    return random.Random(7)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("small", [1, 3, 64], indirect=True)
@pytest.mark.parametrize("odd", [0, 3])
def test_any_range_of_names(odd: int, chance: random.Random) -> None:
    names = sorted({b"%d/%d" % (chance.randrange(9), chance.randrange(99)) for _ in range(200)})
    kinds = [1] * len(names)
    for i in chance.sample(range(len(names)), odd):
        kinds[i] |= chance.choice([GONE, ASK])
    wanted = listed(rows_of(names, kinds=kinds))
    run = written(rows_of(names, kinds=kinds)).runs[0]
    assert len(run.firsts) > 20
    assert plainly(run) == wanted
    for _ in range(40):
        low, high = sorted(chance.choices([b"", b"5", b"6x", *names], k=2))
        assert plainly(run, low, high) == [row for row in wanted if low <= row[0] < high]
        assert plainly(run, low) == [row for row in wanted if low <= row[0]]
    positions = np.array(sorted(chance.sample(range(5000, 5000 + 1000 * len(names)), 900)))
    positions = np.union1d(positions, [row[1] for row in chance.sample(wanted, 20)])
    found = [row for rows in run.at(positions, run.near(positions)) for row in listed(rows)]
    assert found == [row for row in wanted if row[1] in positions and row[5] == 1]


def test_blocks_that_lie_apart(chance: random.Random) -> None:
    names = sorted({b"%d" % chance.randrange(10**6) for _ in range(100)})
    rows = rows_of(names)
    run = written(rows).runs[0]
    mtimes = rows.numbers[:, MTIME]
    since, until = int(mtimes[40]), int(mtimes[60])
    found = [row for part in run.rows(times=(since, until)) for row in listed(part)]
    wanted = {row for row in listed(rows) if since <= row[4] < until}
    assert wanted <= set(found) < set(listed(rows))
    assert plainly(run) == listed(rows)


@settings(deadline=None)
@given(
    st.lists(NAMES, min_size=1, max_size=30, unique=True),
    st.dictionaries(NAMES, st.sampled_from([1, 2, 1 | GONE]), max_size=20),
    st.lists(st.integers(1, 9)), st.integers(0, 2), st.data(),
)  # fmt: skip
def test_changes_over_what_was_there(
    names: list[bytes], more: dict[bytes, int], cuts: list[int], asked: int, data: st.DataObject
) -> None:
    kinds = [1 | ASK] * asked + [1] * len(names)
    old = rows_of(sorted(names), kinds=data.draw(st.permutations(kinds[: len(names)])))
    again = data.draw(st.lists(st.sampled_from(names), max_size=5))
    more |= dict.fromkeys(again, 1) | dict.fromkeys(again[:2], 1 | GONE)
    new = rows_of(sorted(more), kinds=[more[name] for name in sorted(more)])
    new.numbers[:, SIZE] += 10**6
    parts, at = list[FileTable](), 0
    for stop in itertools.accumulate([*cuts, len(names)]):
        if part := old.part(at, stop):
            parts.append(part if part.asked.any() else FileTable(part.joined, part.numbers))
        at = stop
    wanted = {row[0]: row for row in listed(old)} | {row[0]: row for row in listed(new)}
    found = list(live(joined([iter(parts), iter([new])])))
    assert all(len(part.pos) for part in found)
    assert [row for part in found for row in listed(part)] == [
        row for _, row in sorted(wanted.items()) if not row[5] & GONE
    ]


def test_blocks_in_another_order() -> None:
    rows = rows_of([b"a%d/%03d" % (i % 10, i) for i in range(10, 99)])
    rows = rows_of(sorted(rows.names))
    file = written(rows)
    run, storage = file.runs[0], file.storage
    assert isinstance(storage, MemoryStorage)
    run.parts = run.parts.copy()
    for part in run.parts[::-1]:
        value = storage.read(int(part[0]), int(part[1]))
        part[0] = len(storage.data)
        storage.write(len(storage.data), [value])
    assert plainly(run) == listed(rows)


def test_every_flipped_byte_is_damage_that_is_named() -> None:
    rows = rows_of([b"%03d" % i for i in range(20)])
    file = written(rows)
    run, storage = file.runs[0], file.storage
    assert isinstance(storage, MemoryStorage)
    for pos, length, *_ in run.parts.tolist():
        for at in range(pos, pos + length, 7):
            storage.data[at] ^= 1
            with pytest.raises(DerivedDamage) as error:
                plainly(run)
            assert error.value.offset == pos
            storage.data[at] ^= 1
    assert plainly(run) == listed(rows)
    storage.truncate(int(run.parts["pos"][-1]))
    with pytest.raises(DerivedDamage, match="cut short"):
        plainly(run)


def test_names_of_any_length() -> None:
    names = sorted([b"%05d" % i * (200 if i % 100 else 13_000) for i in range(600)])
    run = written(rows_of(names)).runs[0]
    assert plainly(run) == listed(rows_of(names))
