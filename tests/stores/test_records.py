"""What all stores of records share: bodies many at a time, and the tree that a mount shows."""

from __future__ import annotations

import re
import stat
import tracemalloc
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import all_raise, refuses
from shelf import REAL, made, writing

import winkfs
from winkfs.errors import CorruptError, NoSuchFile
from winkfs.stores import general
from winkfs.stores.general import FLAT_RECORDS, NumberFan, RecordSource, TextFan, levels_of
from winkfs.stores.records import BATCH_RECORDS, Ids, Part, Records, Row, batches


class Numbered(Records):
    """Records 0, 1 ...: `gone` and `bad` have no body. Many are read together."""

    numbers = True
    group = 100

    def __init__(self, path: str, ids: Iterable[int]) -> None:
        super().__init__(path)
        self.ids = np.array(list(ids), np.int64)
        self.gone: set[str] = set()
        self.bad: set[str] = set()
        self.read_alone = 0

    def rows(self, *parts: Part) -> Iterator[Row]:
        return (Row(str(id), 3, "f", 8 * id) for id in self.ids.tolist())

    def data_files(self) -> list[Part]:
        return [Part("f", 8 * len(self.ids))]

    def row(self, id: str) -> Row:
        if int(id) not in self.ids or id in self.gone:
            raise NoSuchFile("no such record", id)
        return Row(str(int(id)), 3, "f", 8 * int(id))

    def bodies(self, rows: Iterable[Row]) -> Iterator[bytes]:
        """As stores do: of a group of which one cannot be read there is none."""
        some = list(rows)
        self.read_alone += len(some) == 1
        for at in range(0, len(some), self.group):
            for row in some[at : at + self.group]:
                if row.id in self.gone:
                    raise NoSuchFile("no such record", row.id)
                if row.id in self.bad:
                    raise CorruptError("damaged", file="f", offset=row.offset)
            yield from (b"%3d" % int(row.id) for row in some[at : at + self.group])

    def mtime_ns(self, file: str) -> int:
        return 7

    def refresh(self) -> bool:
        return True

    def stats(self) -> dict[str, Any]:
        return {"bytes": 3 * len(self.ids)}

    def __len__(self) -> int:
        return len(self.ids)

    def put(self, id: str | None, body: bytes) -> str:
        raise NotImplementedError

    remove = sync = compact = put  # type: ignore[assignment]


class Lettered(Numbered):
    """Ids as text, in the place of arrays."""

    numbers = False

    def __init__(self, path: str, count: int) -> None:
        super().__init__(path, ())
        digits = np.random.default_rng(1).bytes(16 * count).hex().encode()
        self.texts = np.frombuffer(digits, "S32")

    def row(self, id: str) -> Row:
        if len(id) != 32:
            raise ValueError("no id")
        return Row(id.lower(), 3, "f", 0)

    def listing(self) -> Iterator[tuple[Ids, Any]]:
        for at in range(0, len(self.texts), 1 << 16):
            some = self.texts[at : at + (1 << 16)]
            yield some, np.full(len(some), 3)

    def __len__(self) -> int:
        return len(self.texts)


@pytest.mark.parametrize("wrong", [(), (0,), (5, 6, 99), (100,), (350, 999), tuple(range(1000))])
def test_no_good_body_is_lost_beside_those_that_are_wrong(
    tmp_path: Path, wrong: tuple[int, ...]
) -> None:
    store = Numbered(str(tmp_path), range(1000))
    store.gone = {str(id) for id in wrong if id % 2}
    store.bad = {str(id) for id in wrong if not id % 2}
    found = list(store.contents(store.rows()))
    assert [row.id for row, _ in found] == [
        str(id) for id in range(1000) if str(id) not in store.gone
    ]
    for row, body in found:
        if row.id in store.bad:
            assert isinstance(body, CorruptError) and body.offset == row.offset
        else:
            assert body == b"%3d" % int(row.id)
    assert not wrong or 0 < store.read_alone <= BATCH_RECORDS


def test_batches_hold_so_many_bytes() -> None:
    sizes = [3, 3, 3, 10, 0, 0, 9, 1, 1]
    rows = [Row(str(number), size, "f", 0) for number, size in enumerate(sizes)]
    found = list(batches(rows, 9))
    assert [row for some in found for row in some] == rows
    assert [[row.size for row in some] for some in found] == [[3, 3, 3], [10], [0, 0, 9], [1, 1]]
    assert [len(some) for some in batches(rows[:1] * (BATCH_RECORDS + 1))] == [BATCH_RECORDS, 1]


def test_the_listing_has_all_ids(tmp_path: Path) -> None:
    store = Numbered(str(tmp_path), range(3, 20_000, 3))
    ids, sizes = (np.concatenate(parts) for parts in zip(*store.listing(), strict=True))
    assert ids.tolist() == store.ids.tolist() and ids.dtype == np.int64
    assert (sizes == 3).all()
    assert list(Numbered(str(tmp_path), ()).listing()) == []


@pytest.mark.parametrize("kind", REAL)
def test_rows_go_on_while_a_writer_takes_files_away(kind: str, tmp_path: Path) -> None:
    """As a scan does whose reads follow the writer."""
    bodies = [b"%d" % number * 4_000_000 for number in range(4)]  # each has a file of its own
    ids = made(tmp_path / "s", kind, bodies)
    with winkfs.open(tmp_path / "s") as reader, writing(tmp_path / "s") as writer:
        assert isinstance(reader, Records)
        rows = reader.rows()
        first = next(rows)
        for id in ids[1:3]:
            writer.remove(id)
        writer.sync()
        writer.compact()
        writer.sync()
        assert reader.refresh() and not reader.refresh()
        found = dict(reader.contents([first, *rows]))
        assert {row.id: body for row, body in found.items()} == {
            ids[0]: bodies[0],
            ids[3]: bodies[3],
        }
        parts = reader.data_files()
        gone = re.sub(r"[0-9](?=[^0-9]*$)", "9", parts[0].file)
        assert {row.id for row in reader.rows(*parts)} == {ids[0], ids[3]}
        assert list(reader.rows(parts[0]._replace(file=gone))) == []


@pytest.mark.parametrize("kind", REAL)
def test_find_leaves_out_what_is_not_there(kind: str, tmp_path: Path) -> None:
    ids = made(tmp_path / "s", kind, [b"x" * number for number in range(1000)])
    with writing(tmp_path / "s") as store:
        for id in ids[::3]:
            store.remove(id)
        store.sync()
        left = [id for number, id in enumerate(ids) if number % 3]
        found = list(store.find(ids[::-1]))
        assert [row.id for row in found] == left[::-1]
        assert found == [store.row(id) for id in left[::-1]]
        assert list(store.find([])) == list(store.find(ids[:1])) == []


# --- the tree of a mount ---


@pytest.mark.parametrize(
    ("count", "width", "levels"),
    [(0, 256, 0), (FLAT_RECORDS, 256, 0), (FLAT_RECORDS + 1, 256, 1), (FLAT_RECORDS << 8, 256, 1),
     ((FLAT_RECORDS << 8) + 1, 256, 2), (10**7, 256, 2), (FLAT_RECORDS + 1, 1000, 1),
     (10**7, 1000, 2)],
)  # fmt: skip
def test_there_are_so_many_levels(count: int, width: int, levels: int) -> None:
    assert levels_of(count, width) == levels


def tree(source: RecordSource, directory: int, path: str = "") -> dict[str, int]:
    """All files below: path -> id."""
    found: dict[str, int] = {}
    handle = source.opendir(directory)
    for entry in source.readdir(handle, 0):
        name = path + entry.name.decode()
        assert source.lookup(directory, entry.name) == entry.attr
        if stat.S_ISDIR(entry.attr.mode):
            found |= tree(source, entry.attr.id, name + "/")
        else:
            found[name] = entry.attr.id
    source.releasedir(handle)
    return found


def test_numbers_lie_in_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general, "FLAT_RECORDS", 2)
    last = (1 << 63) - 1
    source = RecordSource(
        Numbered(str(tmp_path), [0, 1, 999, 1000, 4711, last, *range(10_000, 12_100)])
    )
    found = tree(source, source.root)
    assert len(found) == 2106
    assert {"0-999999/0-999/0", "0-999999/0-999/999", "0-999999/1000-1999/1000"} <= found.keys()
    assert "0-999999/4000-4999/4711" in found
    assert f"{last // 10**6 * 10**6}-{last // 10**6 * 10**6 + 999999}/" in "".join(found)
    assert source.lookup(source.root, b"4711").id == found["0-999999/4000-4999/4711"]
    refuses(
        partial(source.lookup, source.root),
        (
            b"2000000-2999999",
            b"0-999",
            b"1-1000000",
            b"00-999999",
            b"-1",
            b"04711",
            b"0-99",
            b"x",
            b"99999999999999999999",
            b"99999999999999999999-0",
        ),
        FileNotFoundError,
    )


def test_letters_lie_by_their_beginnings(tmp_path: Path) -> None:
    store = Lettered(str(tmp_path), FLAT_RECORDS + 1)
    source = RecordSource(store)
    found = tree(source, source.root)
    texts = [text.decode() for text in store.texts.tolist()]
    assert sorted(found) == sorted(f"{text[:2]}/{text}" for text in texts)
    assert len(set(found.values())) == len(texts)
    text = texts[5]
    assert source.lookup(source.root, text.encode()).id == found[f"{text[:2]}/{text}"]
    refuses(
        partial(source.lookup, source.root),
        (
            b"0",
            b"0g",
            b"000",
            text[:2].upper().encode() + b"!",
            text.upper().encode() + b"F",
        ),
        FileNotFoundError,
    )


@pytest.mark.parametrize("fan", [TextFan(2), NumberFan(2)])
@pytest.mark.parametrize("path", [b"", b"a", b"../", b"ab", b"0-1/", b"00/000/", b"/", b"0-999/"])
def test_no_other_path_is_a_directory(fan: TextFan | NumberFan, path: bytes) -> None:
    assert (fan.bounds(path) is not None) == (not path)


def test_a_listing_goes_on_as_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in parts, while the store changes; the next one shows the change."""
    monkeypatch.setattr(general, "LISTING_LIFETIME", 0)
    store = Numbered(str(tmp_path), range(1000))
    source = RecordSource(store)
    handle = source.opendir(source.root)
    first = [entry.offset for _, entry in zip(range(300), source.readdir(handle, 0), strict=False)]
    store.ids = np.concatenate([np.arange(500, 1000), np.arange(2000, 2100)])
    source.refresh()
    rest = [entry.name for entry in source.readdir(handle, first[-1])]
    assert rest == [b"%d" % id for id in range(500, 1000)]
    again = source.opendir(source.root)
    assert len(list(source.readdir(again, 0))) == 600


def test_ids_are_not_collected_again_and_again(tmp_path: Path) -> None:
    store = Numbered(str(tmp_path), range(1000))
    source = RecordSource(store)
    source.releasedir(source.opendir(source.root))
    source._good_until = float("inf")  # it took long
    store.ids = np.arange(2000)
    source.refresh()
    handle = source.opendir(source.root)
    assert len(list(source.readdir(handle, 0))) == 1000
    assert source.lookup(source.root, b"1500").size == 3  # a look-up asks the store
    source._good_until = 0
    assert len(list(source.readdir(source.opendir(source.root), 0))) == 2000


def test_a_record_takes_few_bytes_of_memory(tmp_path: Path) -> None:
    count = 300_000
    store = Lettered(str(tmp_path), count)
    tracemalloc.start()
    source = RecordSource(store)
    source.releasedir(source.opendir(source.root))
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now / count < 40
    assert peak / count < 100


def test_bodies_are_kept_while_they_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Numbered(str(tmp_path), range(100))
    source = RecordSource(store)
    ids = [source.lookup(source.root, b"%d" % id).id for id in range(100)]
    source.open(ids[1], write=False, truncate=False)
    assert source.read(ids[1], 0, 1) == b" "
    store.gone = {"1", "2"}
    assert source.read(ids[1], 1, 9) == b" 1"
    assert source.read(ids[1], 0, 9) == b"  1"
    source.release(ids[1])
    all_raise(FileNotFoundError, (partial(source.read, id, 0, 9) for id in ids[1:3]))
    monkeypatch.setattr(general, "BODY_CACHE_BYTES", 30)
    for id in ids[3:]:
        assert source.read(id, 0, 2) == source.read(id, 0, 2)
    assert len(source._bodies) <= 11
