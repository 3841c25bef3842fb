"""Records of a store as Spark rows: planned by files or, if ids are numbers, by ids.

A task opens the store and reads its current records. A record with a text id stays in its file, so
each file is read by one task; a record with a number may move, so tasks are sent the numbers.
Records that were removed since the plan are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from winkfs.arrow.pieces import OPEN, ROW, PlannedPiece, Recorded, unpack
from winkfs.container.ondisk.column import Column
from winkfs.container.table import FileTable
from winkfs.entry import FileType
from winkfs.errors import StalePlan
from winkfs.stores.records import MODE, Arrivals, Records, Row, batches, values_of
from winkfs.stores.records import Part as File
from winkfs.units import MICRO

if TYPE_CHECKING:
    import pyarrow as pa


UNLIMITED: Final = 1 << 62  # bytes of records whose bodies are not read yet
RECORDS_AT_ONCE: Final = 1 << 16  # numbered records looked up together, and read in file order


def part_of(store: Records, piece: Recorded, contents: bool) -> PlannedPiece | None:
    """Return all records of a store; None: there are none.

    contents  whether bodies are read
    cost      lists numbered records
    """
    if not store.numbers:
        files = store.data_files()
        sizes = np.array([file.size for file in files], np.int64)
        piece = piece.of_files(files)
        return PlannedPiece.of_rows(piece, np.arange(len(files)), sizes, True) if files else None
    found = list(store.listing())
    if not found:
        return None
    ids, sizes = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(ids)
    return PlannedPiece.of_rows(piece, ids[order], sizes[order], contents)


def part_between(store: Arrivals, piece: Recorded, contents: bool) -> PlannedPiece:
    """Return the records with ids in [low, high) of the piece, existing or not, which the task
    checks. They are one piece, because each piece opens the store."""
    weight = OPEN + ROW * (piece.high - piece.low)
    for run in store.runs():
        share = (min(piece.high, run.stop) - max(piece.low, run.first)) / (run.stop - run.first)
        weight += int(max(share, 0) * run.size * contents)
    return PlannedPiece(piece, weight, np.empty(0, np.int64))


def lost(base: str, what: str) -> StalePlan:
    """Return the error for missing records, if every record must be read once."""
    line = f"{what}. Option failOnDataLoss=false goes on without them"
    return StalePlan(f"the stream cannot go on: {line}", base)


class RecordsSource:
    """An open store in a task: the counterpart of `rows.PieceSource`."""

    def __init__(
        self, piece: Recorded, *, contents: bool, batch: int, largest: int, typed: Mapping[str, str]
    ) -> None:
        assert piece.opener is not None
        self._piece, self._with_contents, self._batch = piece, contents, batch
        self._largest, self._typed = largest, typed
        self._store = cast(Records, piece.opener(piece.base))
        self._rows: list[Row] = []  # of the chunk
        self._bodies: list[bytes | Exception | None] = []
        self.contents = self

    def __exit__(self, *exc: object) -> None:
        self._store.close()

    def chunks(self) -> Iterator[FileTable]:
        """Yield the records of the piece with their bodies, in parts that fit into a batch."""
        selection = self._piece.selection
        for some in batches(self._found(), UNLIMITED):
            if not selection.everything:
                chosen = selection.chosen(self._columns(some)).tolist()
                some = [row for row, good in zip(some, chosen, strict=True) if good]
            for part in batches(some, self._batch):
                self._take(part)
                if self._rows:
                    yield self._columns(self._rows)

    def _found(self) -> Iterator[Row]:
        store, piece = self._store, self._piece
        if piece.arrived:
            yield from cast(Arrivals, store).between(piece.low, piece.high, self._lost)
            return
        if piece.rows is None:
            yield from store.rows(*(File(name, size) for name, size in piece.files))
            return
        ids = unpack(piece.rows)
        for at in range(0, len(ids), RECORDS_AT_ONCE):
            found = store.find(map(str, ids[at : at + RECORDS_AT_ONCE].tolist()))
            yield from sorted(found, key=lambda row: (row.file, row.offset))

    def _lost(self, what: str) -> None:
        if self._piece.whole:
            raise lost(self._piece.base, what)

    def _take(self, rows: list[Row]) -> None:
        """Set the rows of the chunk, and read their bodies if requested."""
        if not self._with_contents:
            self._rows, self._bodies = rows, []
            return
        self._rows = [row for row in rows if row.size > self._largest]
        self._bodies = [None] * len(self._rows)
        for row, body in self._store.contents(row for row in rows if row.size <= self._largest):
            new = row if isinstance(body, Exception) else row._replace(size=len(body))
            self._rows.append(new)
            self._bodies.append(body)
        if len(self._rows) < len(rows):
            self._lost("messages were removed while they were read")

    def _columns(self, rows: list[Row]) -> FileTable:
        """Return records as files whose positions are their numbers."""
        names = [row.id.encode() for row in rows]
        count = len(rows)
        mtimes = np.array([self._store.mtime_of(row) for row in rows], np.int64)
        sizes = np.array([row.size for row in rows], np.int64)
        return FileTable.of(names, np.arange(count), 0, sizes, mtimes, kind=FileType.FILE)

    def of(self, rows: FileTable) -> tuple[pa.Array, dict[int, Exception]]:
        """Return bodies of the chunk: see `rows.Contents.of`."""
        from winkfs.arrow import arrays

        return arrays.contents([self._bodies[at] for at in rows.pos.tolist()])

    def values(self, rows: FileTable) -> dict[str, Column]:
        """Return the columns of the store, such as id, file and offset: see
        `rows.PieceSource.values`."""
        chosen = [values_of(self._rows[at]) for at in rows.pos.tolist()]
        known = self._store.columns
        return {
            name: _column(kind, [row[name] for row in chosen] if name in known else None, len(rows))
            for name, kind in self._typed.items()
        }

    def mode(self, rows: FileTable, i: int) -> int:
        return MODE

    def drop(self) -> None:
        """Do nothing: the next chunk replaces this one."""


def _column(kind: str, values: list[Any] | None, count: int) -> Column:
    if values is None:
        return Column.nulls(kind, count)
    valid = np.array([value is not None for value in values], bool)
    if kind != "string":
        numbers = np.array([0 if value is None else value for value in values], np.int64)
        return Column(kind, valid, numbers // MICRO if kind == "timestamp" else numbers, [])
    there = dict.fromkeys(value for value in values if value is not None)
    codes = {word: code for code, word in enumerate(there)}
    numbers = np.array([codes.get(value, 0) for value in values], np.int64)
    return Column(kind, valid, numbers, [word.encode() for word in codes])
