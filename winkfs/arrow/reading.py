"""Files of any store as Arrow batches, without Spark: `Reader.to_batches` and what goes with it.

A container or a data set is read by pieces, which open it again: so a read stays at its state, and
its parts can be sent to other processes. By name, and by a writer, files are read through the
handle that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from winkformats.arrays import Int64, among
from winkformats.errors import CorruptError, raise_it
from winkfs.arrow import arrays
from winkfs.arrow.batches import TIMESTAMP, OpenPiece, Reading, batches, ordered
from winkfs.arrow.named import part_of as named_part
from winkfs.arrow.pieces import (
    OPEN,
    POS_BITS,
    POS_MASK,
    Piece,
    PlannedPiece,
    divide,
    piece_of,
    weight_of,
)
from winkfs.arrow.rows import Contents, open_planned
from winkfs.container.arrow import arrow_type
from winkfs.container.container import Container
from winkfs.container.handle import check_columns
from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.typed import USER, Texts
from winkfs.container.select import Query, all_rows
from winkfs.container.selection import Selection
from winkfs.container.store import Store
from winkfs.container.table import FileTable
from winkfs.container.where import parse
from winkfs.dataset.reading import DatasetReading
from winkfs.dataset.shard import may_be_from, may_begin
from winkfs.dataset.snapshot import plain_shard
from winkfs.errors import DamageWarning, StalePlan, warn_caller
from winkfs.names import Name, to_bytes, to_str
from winkfs.reader import Content, Order, Problem, Reader
from winkfs.registry import kind_of
from winkfs.tables import scanned, whole
from winkfs.units import Time, as_int, shown, to_ns

REOPEN: Final = "sync, and open it for reading"
Line = Callable[[str], None]
OnError = Literal["raise", "skip"] | Line
EXACT_FILES: Final = 1 << 10  # of a data set up to which its parts are cut between files
MOST: Final = 1 << 30  # the largest such number
LARGEST: Final = (1 << 31) - 1  # bytes of a value that Arrow can hold
BUILT_IN: Final = {
    "path": pa.string(), "size": pa.int64(), "mtime": TIMESTAMP, "content": pa.binary(),
    "name_raw": pa.binary(), "mtime_ns": pa.int64(), "ftype": pa.int32(), "mode": pa.int32(),
    "ref": pa.int64(),
}  # fmt: skip
USUAL: Final = ("path", "size", "mtime")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read of a store: the checked arguments of `Reader.to_batches`."""

    reading: Reading
    where: str | None
    prefix: bytes
    times: tuple[int | None, int | None]

    @property
    def everything(self) -> bool:
        return self.where is None and not self.prefix and self.times == (None, None)

    @property
    def refs(self) -> bool:
        return "ref" in self.reading.columns


def wanted(
    reader: Reader,
    columns: Sequence[str] | None,
    where: str | None,
    prefix: Name,
    since: Time | None,
    until: Time | None,
    content: Content,
    batch_bytes: int,
    include_dirs: bool,
    problem: Line | None = None,
) -> Wanted:
    """Check the arguments of a read. Raises ValueError; TypeError."""
    typed = reader.columns
    if content not in (True, False, "ref"):
        raise ValueError(f"content is True, False or 'ref', not {shown(content)}")
    if columns is not None and (
        isinstance(columns, str | bytes) or not all(isinstance(name, str) for name in columns)
    ):
        raise TypeError(f"columns is a list of names, not {shown(columns)}")
    if columns is None:
        last = {"ref": ("ref",), True: ("content",), False: ()}[content]
        chosen = (*USUAL, *(name for name in typed if name not in USUAL), *last)
    else:
        chosen = (*columns, *(("ref",) if content == "ref" and "ref" not in columns else ()))
    if twice := {name for name in chosen if chosen.count(name) > 1}:
        raise ValueError(f"columns has a column twice: {', '.join(sorted(twice))}")
    check_columns((name for name in chosen if name not in BUILT_IN), {**typed, **BUILT_IN})
    if where is not None:
        _check_where(reader, where)
    own = {name: kind for name, kind in typed.items() if name in chosen}
    schema = pa.schema([(name, BUILT_IN.get(name) or arrow_type(typed[name])) for name in chosen])
    reading = Reading(
        schema, chosen, batch=as_int(batch_bytes, "batch_bytes", 1, MOST), largest=LARGEST,
        mode="RAISE" if problem is None else "DROPMALFORMED", verify=True,
        include_dirs=include_dirs, typed=own, problem=problem,
    )  # fmt: skip
    return Wanted(reading, where, to_bytes(prefix), (to_ns(since), to_ns(until)))


def _check_where(reader: Reader, where: str) -> None:
    """Check a condition now, not where the first file is read. Raises ValueError; TypeError."""
    if not isinstance(where, str):
        raise TypeError(f"where is a text such as \"lang = 'de'\", not {type(where).__name__}")
    if not reader.takes_where:
        kind = kind_of(reader.base)[0].name
        raise ValueError(f"{reader.base}: is a {kind}: where is for containers and data sets")
    parse(where).bound(reader.columns)


def to_batches(reader: Reader, asked: Wanted, order: Order) -> pa.RecordBatchReader:
    """Return the batches of a read, as of the call: see `Reader.to_batches`."""
    if order not in ("disk", "name", None):
        raise ValueError(f"order is 'disk' or 'name', not {shown(order)}")
    if isinstance(reader, Container | DatasetReading):
        if order == "disk" and reader.writable:
            raise ValueError(f"{reader.base}: a writer reads by name: {REOPEN}")
        by_name = order == "name" or reader.writable
        if by_name or (order is None and not asked.reading.contents and not asked.refs):
            found = _named(reader, asked)
            next(found)  # opens what it reads, which it closes even if it is read no further
            return pa.RecordBatchReader.from_batches(asked.reading.schema, found)
    elif order == "name":
        raise ValueError(f"{reader.base}: order='name' is for containers and data sets")
    found = batches(asked.reading, [_cut(part) for part in planned(reader, asked)])
    return pa.RecordBatchReader.from_batches(asked.reading.schema, found)


def _named(reader: Container | DatasetReading, asked: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield an empty batch once the files are listed, then those of the files by name."""
    piece = Piece(reader.base, 0, 0, True, 0, 0)
    with OpenPiece(asked.reading, piece, _ByName(reader, asked)) as opened:
        yield pa.RecordBatch.from_pylist([], asked.reading.schema)
        yield from opened.batches()


def _cut(part: PlannedPiece) -> Piece:
    """Return all of a part."""
    piece = part.cut(0, part.weight)
    assert piece is not None
    return piece


def stream(reader: Reader, asked: Wanted) -> pa.RecordBatchReader:
    """Return the batches of a read as of the first one that is read: consumers often take several
    streams, most of them for the schema alone."""
    if isinstance(reader, DatasetReading):
        reader.shards_now()  # Closed is raised here, not in the tool

    def found() -> Iterator[pa.RecordBatch]:
        yield from to_batches(reader, asked, None)

    return pa.RecordBatchReader.from_batches(asked.reading.schema, found())


# --- damage, by choice ---


def problem_of(on_error: OnError) -> Line | None:
    """Return the `problem` of a read, see `Reader.to_batches`.

    on_error  of a damaged file: "raise"; "skip": it is left out, with a DamageWarning; or a
              function that is called with a line for each, in the process that reads it
    raises    ValueError
    """
    if callable(on_error):
        return on_error
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error is 'raise', 'skip' or a function, not {shown(on_error)}")
    return _left_out if on_error == "skip" else None


def _left_out(line: str) -> None:
    warn_caller(f"a file is left out: {line}", DamageWarning)


# --- parts ---


@dataclass(frozen=True, slots=True)
class Part:
    """A share of the files of a store, see `Reader.parts`. It can be pickled; each read opens the
    store anew, where it runs.

    base    of the store
    weight  approximate bytes that a read takes
    """

    base: str
    weight: int
    reading: Reading
    pieces: tuple[Piece, ...]

    @property
    def schema(self) -> pa.Schema:
        return self.reading.schema

    def to_batches(self) -> pa.RecordBatchReader:
        """Return the batches of this part.

        raises  while they are read: CorruptError; StalePlan if the store was replaced; OSError
        """
        found = batches(self.reading, self.pieces)
        return pa.RecordBatchReader.from_batches(self.schema, found)

    def to_arrow(self) -> pa.Table:
        """Return the files of this part as a table."""
        return self.to_batches().read_all()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_batches().__arrow_c_stream__(requested_schema)


def parts(reader: Reader, asked: Wanted, count: int) -> list[Part]:
    """Divide the files of a store: see `Reader.parts`."""
    count = as_int(count, "n", 1)
    if isinstance(reader, Container | DatasetReading) and reader.writable:
        raise ValueError(f"{reader.base}: a writer has no parts: {REOPEN}")
    exact = (
        isinstance(reader, DatasetReading)
        and len(reader) <= EXACT_FILES
        and len(reader.shards_now()) <= count
    )
    found = planned(reader, asked, exact=exact)
    if not found:
        return []
    found = list(map(_without_open, found))
    count = min(count, len(reader))
    weight = sum(part.weight for part in found) // count
    return [Part(reader.base, weight, asked.reading, some) for some in divide(found, count)]


def _without_open(part: PlannedPiece) -> PlannedPiece:
    """Return a part without the weight of opening it, for parts of equal bytes."""
    if part.weights is None:
        return part
    weights = part.weights.copy()
    weights[0] -= OPEN
    return replace(part, weight=int(weights.sum()), weights=weights)


def planned(reader: Reader, asked: Wanted, *, exact: bool = False) -> list[PlannedPiece]:
    """Return the chosen files as pieces, in disk order.

    exact   the pieces of a data set are cut between files, not anywhere
    raises  ValueError; FormatError; OSError
    cost    a container, `exact`, or any condition: the positions of its files; else only manifests
    """
    if isinstance(reader, Container):
        return list(_of_container(reader, asked))
    if isinstance(reader, DatasetReading):
        return list(_of_dataset(reader, asked, exact))
    since, until = asked.times
    chosen = Selection(prefix=asked.prefix, since=since, until=until)
    store = kind_of(reader.base)
    try:
        part = named_part(store, chosen, asked.reading.contents, refs=asked.refs)
    except ValueError as error:
        raise ValueError(f"{reader.base}: {error}") from None
    return [part] if part is not None else []


def _piece_now(reader: Container) -> Piece:
    """Return a container in its current state."""
    with reader.lock:
        return piece_of(plain_shard(reader.settled()), 0)


def _of_container(reader: Container, asked: Wanted) -> Iterator[PlannedPiece]:
    with reader.lock:
        piece = _piece_now(reader)
        if asked.everything:
            pos = reader.store.index.positions()
        else:
            pos = reader.positions(asked.prefix, _report(asked), asked.times, asked.where)
        sizes = np.diff(pos, prepend=reader.store.kv.start)
    if len(pos):
        yield PlannedPiece.of_rows(piece, pos, sizes, asked.reading.contents)


def _of_dataset(reader: DatasetReading, asked: Wanted, exact: bool) -> Iterator[PlannedPiece]:
    contents = asked.reading.contents
    for number, shard in enumerate(reader.shards_now()):
        names = shard.record.names
        if not shard.files or (names is not None and not may_begin(names, asked.prefix)):
            continue
        if not may_be_from(shard.record, *asked.times):
            continue
        piece = _shard_piece(reader, number)
        if asked.everything and not exact:
            weight = OPEN + weight_of(shard, contents)
            yield PlannedPiece(piece, weight, shard.hidden)
            continue
        pos = reader.positions(number, asked.prefix, _report(asked), asked.times, asked.where)
        pos = pos[~among(pos, shard.hidden)]
        if len(pos):
            sizes = np.diff(pos, prepend=pos[0])
            yield PlannedPiece.of_rows(piece, pos, sizes, contents)


def _shard_piece(reader: DatasetReading, number: int) -> Piece:
    """Return a shard of a data set."""
    return replace(piece_of(reader.shards[number], reader.generation), number=number)


def _report(asked: Wanted) -> Problem | None:
    """Return a function that reports damage as a line; None: it is raised."""
    problem = asked.reading.problem
    return None if problem is None else lambda error: problem(str(error))


# --- rows ---


def read_rows(reader: Reader, refs: Any, asked: Wanted) -> pa.Table:
    """Read files by their references: see `Reader.read_rows`."""
    if not isinstance(reader, Container | DatasetReading) or reader.writable:
        raise ValueError(f"{reader.base}: read_rows is for containers and data sets, for reading")
    found = _numbers(refs)
    shard, pos = found >> POS_BITS, found & POS_MASK
    shards = None if isinstance(reader, Container) else reader.shards_now()
    count = 1 if shards is None else len(shards)
    wrong = found[(shard < 0) | (shard >= count)]
    if len(wrong):
        raise ValueError(f"{reader.base}: a reference to no file: {wrong[0]}")
    pieces = {
        number: _piece_now(reader)
        if isinstance(reader, Container)
        else _shard_piece(reader, number)
        for number in np.unique(shard).tolist()
    }
    table = pa.Table.from_batches(
        ordered(asked.reading, pieces, shard, pos), schema=asked.reading.schema
    )
    if len(table) < len(found) and asked.reading.problem is None:
        raise ValueError(f"{reader.base}: there is no file at {len(found) - len(table)} of the "
                         f"{len(found)} references")  # fmt: skip
    return table


def _numbers(refs: Any) -> Int64:
    """Return references as int64[n]. Raises TypeError."""
    found = np.asarray(refs)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and len(found)):
        raise TypeError("references are whole numbers, of the column ref of to_batches")
    return found.astype(np.int64)


# --- by name, through the open handle ---


class _ByName:
    """The files of a container or data set by name: the counterpart of `rows.PieceSource`.

    A container is read by positions: a writer's through its handle, otherwise one that is opened
    here. A data set is read by names; one with unpublished changes, or very many shards, in the
    order of its scan.
    """

    def __init__(self, reader: Container | DatasetReading, asked: Wanted) -> None:
        """Begin to list the files, as of now. Raises ValueError; FormatError; OSError."""
        if asked.refs:
            raise ValueError("content='ref' is for files in disk order: leave order out")
        self._reader, self._asked, self._typed = reader, asked, asked.reading.typed
        self.contents: Any = self
        columns, report = tuple(self._typed), _report(asked)
        self._own: Store | None = None
        found: Iterator[FileTable] | None
        if isinstance(reader, Container) and not reader.writable:
            condition = None if asked.where is None else parse(asked.where).bound(reader.columns)
            query = Query.of_prefix(asked.prefix, asked.times, condition, columns)
            self._own = open_planned(_piece_now(reader), load=True)
            try:
                self.contents = Contents(self._own, self._own.kv.start, self._own.kv.end)
                found = all_rows(self._own, nullcontext(), report or raise_it, query)
            except BaseException:
                self._own.abandon()
                raise
        else:
            found = reader.rows(asked.prefix, report, asked.times, asked.where, columns)
        if isinstance(reader, Container) and reader.writable:
            self.contents = _Locked(reader)
        self._listed = found is not None
        if found is None:
            found = scanned(reader, asked.prefix, report, asked.times, {"where": asked.where})
        self._found = found

    def __exit__(self, *exc: object) -> None:
        """Close what was opened here; the handle stays open."""
        self._found = iter(())  # a data set has opened shards for it
        if self._own is not None:
            self.contents.close()
            self._own.abandon()

    def chunks(self) -> Iterator[FileTable]:
        """Yield the files in parts. Raises CorruptError; OSError."""
        for rows in self._found:
            seen = rows.visible(None, include_dirs=self._asked.reading.include_dirs)
            if len(seen):
                yield whole(self._reader, seen, None)

    def of(self, rows: FileTable) -> tuple[pa.Array, dict[int, Exception]]:
        """Read contents in bulk; after damage one by one: see `rows.Contents.of`."""
        values: list[bytes | Exception | None]
        try:
            values = list(self._reader.get_many(rows.names))
        except (CorruptError, FileNotFoundError):
            values = [self._one(name) for name in rows.names]
        changed = [i for i, value in enumerate(values)
                   if isinstance(value, bytes) and len(value) != int(rows.size[i])]  # fmt: skip
        for i in changed:
            values[i] = StalePlan("was changed while it was read", to_str(rows.name(i)))
        return arrays.contents(values)

    def _one(self, name: bytes) -> bytes | Exception:
        try:
            return self._reader.read(name)
        except (CorruptError, OSError) as error:
            return error

    def values(self, rows: FileTable) -> dict[str, Column]:
        """Return the values of the columns of the user: see `rows.PieceSource.values`."""
        if self._listed and not rows.asked.any():
            return rows.columns(self._typed)
        texts: dict[str, Texts] = {name: [] for name in self._typed}
        for name in rows.names:
            xattrs = self._reader.getxattrs(name)
            for column, found in texts.items():
                found.append(xattrs.get(USER + column.encode()))
        return {name: Column.of(kind, texts[name]) for name, kind in self._typed.items()}

    def mode(self, rows: FileTable, i: int) -> int:
        return self._reader.stat(rows.name(i)).mode

    def drop(self) -> None:
        """Do nothing: the handle keeps no pages."""


class _Locked:
    """The contents of a writer's files by their positions, read with its lock."""

    def __init__(self, writer: Container) -> None:
        self._writer, self._store = writer, writer.store
        self._contents = Contents(self._store, self._store.kv.start, self._store.kv.end)

    def of(self, rows: FileTable) -> tuple[pa.Array, dict[int, Exception]]:
        """Read contents: see `rows.Contents.of`. Raises StalePlan after a compaction; Closed."""
        with self._writer.lock:
            self._writer.need_writable()
            if self._writer.store is not self._store:
                raise StalePlan("was compacted while it was read", self._writer.base)
            return self._contents.of(rows)

    def mode(self, rows: FileTable, i: int) -> int:
        with self._writer.lock:
            return self._contents.mode(rows, i)

    def drop(self) -> None:
        """Drop the ranges that were read from the page cache."""
        self._contents.drop()
