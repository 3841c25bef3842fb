"""Rows of the catalog sorted by name in bounded memory.

A full chunk is sorted and becomes a run, after some of them in a scratch file; runs are merged on
the way out. Chunks that follow each other in order make one run: names that come in order are not
sorted. `ClashFinder` finds the names that are also a
directory of other names, as they go by in order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from winkformats.arrays import (
    Bools,
    Int64,
    TextColumn,
    text_column,
    text_order,
)
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.kv.scan import Batch
from winkfs.container.datafile import DataFile
from winkfs.container.survey import Inodes
from winkfs.container.table import (
    COLUMNS,
    NOTHING,
    Blobs,
    FileTable,
    in_order,
)

CHUNK: Final = 32 << 20  # bytes of rows that are sorted at a time
HELD: Final = 1  # chunks that stay in memory: a scratch file costs as much as the sort
WIDTH: Final = 8 * len(COLUMNS)  # bytes of the numbers of a row
BLOCK: Final = 2048  # rows read back at a time from each run, at most, and
AREA: Final = 1 << 19  # bytes of them, about
PART: Final = 1 << 14  # rows that are put in order at a time
OBJECT: Final = 41  # bytes of a bytes object, and its place in an array


class RowCollector:
    """Hands the inodes of a data file that is read as a whole to a sorter."""

    def __init__(self, store: DataFile, sorter: NameSorter) -> None:
        self._store, self.sorter = store, sorter
        self._inodes = Inodes(store.kv, store.settings, store.note, checked=True)

    def take(self, batch: Batch, positions: Int64) -> None:
        """Inodes that may be live. Raises CorruptError."""
        found = self._inodes.near(positions, batch.data, batch.base)
        self.sorter.add(self._inodes.complete(found, typed=bool(self._store.schema)))

    def rest(self) -> None:
        """No more inodes come."""
        self.sorter.rest()


class ClashFinder:
    """Takes all names in byte order, in pieces of any size.

    Names with a common beginning follow each other. So a name that its successor does not begin
    with has nothing below it, and the few others are looked up: whether name + "/" begins another.
    """

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self._open: list[bytes] = []  # name + "/" that all names since begin with, save for the /
        self._last: bytes | None = None

    def seen(self, parts: Iterable[FileTable]) -> Iterator[FileTable]:
        """The same rows, whose names go by."""
        for rows in parts:
            self.add(rows.column)
            yield rows

    def add(self, names: list[bytes] | TextColumn) -> None:
        """The next names. Cost: one comparison a name, more for directories."""
        names = text_column(names) if isinstance(names, list) else names
        if not len(names):
            return
        paths, self._open = self._open, []
        if self._last is not None and names[0].startswith(self._last):
            paths.append(self._last + b"/")
        paths += [name + b"/" for name in names[:-1][_begin_next(names)].tolist()]
        self._last = bytes(names[-1])
        if not paths:
            return
        for path, at in zip(
            paths, np.searchsorted(names, text_column(paths)).tolist(), strict=True
        ):
            if at < len(names):
                if names[at].startswith(path):
                    self.found.append(path[:-1])
            elif self._last.startswith(path[:-1]):  # what is below may yet come
                self._open.append(path)


def _begin_next(names: TextColumn) -> Bools:
    """Which names the one behind them begins with, bool[n - 1]."""
    if names.dtype == object:
        known = names.tolist()
        return np.fromiter(map(bytes.startswith, known[1:], known), bool, len(known) - 1)
    found: Bools = np.strings.startswith(names[1:], names[:-1])
    return found


class _Block(NamedTuple):
    """Where a block lies in the scratch file: its numbers, then its names and, where it is `typed`,
    its values. Texts are uint32 lengths and what they are of, but names of a `width`."""

    offset: int
    rows: int
    size: int
    width: int
    typed: bool


class NameSorter:
    """Takes rows in any order, gives them back in byte order of their names.

    Rows with one name come in the order in which they were taken.

    scratch  makes the file for the runs that do not stay in memory
    count    rows taken
    raises   OSError from the disk, but not from `add`: who puts files has other things to do
    cost     n log n in memory; rows beyond HELD chunks are written and read once. Names that come
             in order are not sorted. Memory: HELD and two chunks, and up to 512 KB for each run
    """

    def __init__(self, scratch: Callable[[], Storage], chunk: int = CHUNK) -> None:
        self._scratch, self._limit = scratch, chunk
        self._storage: Storage | None = None
        self._waiting: list[FileTable] = []
        self._size = 0  # bytes of these
        self._runs: list[list[_Block | FileTable]] = []
        self._room = HELD * chunk  # bytes of runs that may yet stay in memory
        self._last = b""  # name of the last run
        self._end = 0  # of the scratch file
        self._error: OSError | None = None
        self.count = 0

    def add(self, rows: FileTable) -> None:
        """Rows in any order."""
        count = len(rows)
        if not count:
            return
        names = rows.column
        self._waiting.append(rows)
        self.count += count
        self._size += WIDTH * count + names.nbytes
        for texts in (names if names.dtype == object else None, rows.values):
            if texts is not None:
                self._size += sum(map(len, texts)) + OBJECT * count
        if self._size >= self._limit:
            self._put_by(self._flush)

    def rest(self) -> None:
        """No more rows for now: keep none that are not sorted, if they are more than a chunk."""
        if self._runs:
            self._put_by(self._flush)

    def _put_by(self, flush: Callable[[], None]) -> None:
        try:
            flush()
        except OSError as error:
            self._error = error
            self.close()  # the disk may be full

    def rows(self, live: Int64 | None = None) -> Iterator[FileTable]:
        """Everything in order, some thousand rows at a time; a part may be empty.

        live    ascending positions of inodes: what is at others is left out
        """
        if self._error is not None:
            raise self._error
        if self._runs:
            self._flush()
        # rows that fit into one chunk stay in memory
        found = self._merged() if self._runs else self._chunk(PART)
        return found if live is None else _at(found, live)

    def close(self) -> None:
        """Drop the scratch file. Idempotent."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _merged(self) -> Iterator[FileTable]:
        cursors = [_Cursor(map(self._read, run), len(run)) for run in self._runs]
        while any(cursor.more for cursor in cursors):
            limit = min(c.last for c in cursors if c.more)  # what is on the disk is >= limit
            yield _joined([c.take(limit) for c in cursors])
        yield _joined([c.rest() for c in cursors])

    def _chunk(self, each: int) -> Iterator[FileTable]:
        """What is in memory, in order, `each` rows at a time."""
        if not self._waiting:
            return
        found = FileTable.concat(self._waiting)
        self._waiting = [found]  # not twice
        order = text_order(found.column)
        for at in range(0, len(order), each):
            yield found.take(order[at : at + each])

    def _flush(self) -> None:
        if not self._waiting or self._error is not None:
            self._waiting, self._size = [], 0
            return
        each = max(min(BLOCK, AREA * sum(map(len, self._waiting)) // max(self._size, 1)), 1)
        self._add_run(self._chunk(each), held=self._room > 0)
        self._room -= self._size
        self._waiting, self._size = [], 0

    def _add_run(self, parts: Iterator[FileTable], *, held: bool) -> None:
        """Rows in order. `held`: they stay in memory."""
        run: list[_Block | FileTable] | None = None
        for rows in parts:
            if run is None:
                if not self._runs or rows.column[0] <= self._last:
                    self._runs.append([])
                run = self._runs[-1]
            run.append(rows if held else self._write(rows))
            self._last = bytes(rows.column[-1])

    def _write(self, rows: FileTable) -> _Block:
        if self._storage is None:
            self._storage = self._scratch()
        names = rows.column
        width = 0 if names.dtype == object else names.dtype.itemsize
        parts = [rows.numbers.tobytes(), *([names.tobytes()] if width else _packed(names))]
        parts += [] if rows.values is None else _packed(rows.values)
        size = self._storage.write(self._end, parts)
        self._end += size
        typed = rows.values is not None
        return _Block(self._end - size, len(rows), size, width, typed)

    def _read(self, block: _Block | FileTable) -> FileTable:
        if isinstance(block, FileTable):
            return block
        assert self._storage is not None
        data = self._storage.read(block.offset, block.size)
        if len(data) != block.size:
            raise CorruptError("names are cut short", file=self._storage.name, offset=block.offset)
        count, at = block.rows, WIDTH * block.rows
        numbers = np.frombuffer(data, np.int64, count * len(COLUMNS)).reshape(count, -1)
        if block.width:
            names = np.frombuffer(data, f"S{block.width}", count, at)
            at += block.width * count
        else:
            names, at = _unpacked(data, at, count)
        return FileTable(names, numbers, _unpacked(data, at, count)[0] if block.typed else None)


def _packed(texts: Blobs) -> list[bytes]:
    """Texts as they are in the scratch file."""
    known = texts.tolist()
    return [np.fromiter(map(len, known), np.uint32, len(known)).tobytes(), b"".join(known)]


def _unpacked(data: bytes, at: int, count: int) -> tuple[Blobs, int]:
    """-> the texts that are at `at`, and where they end."""
    lengths = np.frombuffer(data, np.uint32, count, at)
    ends = (np.cumsum(lengths, dtype=np.int64) + at + 4 * count).tolist()
    texts = np.empty(count, object)
    texts[:] = [data[a:b] for a, b in pairwise([at + 4 * count, *ends])]
    return texts, ends[-1]


class _Cursor:
    """The next rows of one run. `more`: whether there are some behind those in memory."""

    def __init__(self, run: Iterator[FileTable], blocks: int) -> None:
        self._left, self._blocks = run, blocks
        self._advance()

    def _advance(self) -> None:
        self._rows, self._at = next(self._left, NOTHING), 0
        self._blocks -= 1

    @property
    def more(self) -> bool:
        return self._blocks > 0

    @property
    def last(self) -> bytes:
        """The last name in memory."""
        return bytes(self._rows.column[-1])

    def take(self, limit: bytes) -> FileTable:
        """-> the rows in memory with names up to the limit."""
        start = self._at
        self._at = stop = bisect_right(self._rows.column, limit, start)
        out = self._rows.part(start, stop)
        if stop == len(self._rows):
            self._advance()
        return out

    def rest(self) -> FileTable:
        """-> all rows in memory."""
        return self._rows.part(self._at)


def _at(blocks: Iterator[FileTable], live: Int64) -> Iterator[FileTable]:
    """What stands at these positions."""
    for rows in blocks if len(live) else ():
        at = np.searchsorted(live, rows.pos)
        yield rows.take(live[np.minimum(at, len(live) - 1)] == rows.pos)


def _joined(parts: list[FileTable]) -> FileTable:
    """Runs as one."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    return in_order(FileTable.concat(parts))
