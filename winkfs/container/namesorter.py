"""Rows of the catalog sorted by name in bounded memory.

A full chunk is sorted and becomes a run, after some of them in a scratch file; runs are merged on
the way out. Chunks that follow each other in order make one run: names that come in order are not
sorted. `ClashFinder` finds the names that are also a directory of other names, as they go by in
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from winkformats.arrays import Bools, TextColumn, text_column, text_order
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkfs.container.datafile import DataFile
from winkfs.container.survey import InodeRows, Inodes
from winkfs.container.table import COLUMNS, Blobs, FileTable, joined

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
        self._inodes = Inodes(store.kv, store.settings, store.note)

    def take(self, rows: InodeRows) -> None:
        """Inodes that may be live."""
        found = self._inodes.of(rows)
        self.sorter.add(self._inodes.complete(found, typed=bool(self._store.schema)))


class ClashFinder:
    """Takes all names in byte order, in pieces of any size.

    found   files, not directories, with whose name and a / another begins

    Names with a common beginning follow each other. So a name that its successor does not begin
    with has nothing below it, and the few others are looked up: whether name + "/" begins another.
    """

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self._open: list[bytes] = []  # name + "/" that all names since begin with, save for the /
        self._last: bytes | None = None  # None: that of a directory

    def seen(self, parts: Iterable[FileTable]) -> Iterator[FileTable]:
        """The same rows, whose names go by."""
        for rows in parts:
            self.add(rows.column, rows.directories)
            yield rows

    def add(self, names: TextColumn, directories: Bools) -> None:
        """The next names, and which are directories. Cost: one comparison a name, more for files
        that the next name begins with."""
        if not len(names):
            return
        paths, self._open = self._open, []
        if self._last is not None and names[0].startswith(self._last):
            paths.append(self._last + b"/")
        files = _begin_next(names) & ~directories[:-1]
        paths += [name + b"/" for name in names[:-1][files].tolist()]
        last = bytes(names[-1])
        self._last = None if directories[-1] else last
        if not paths:
            return
        for path, at in zip(
            paths, np.searchsorted(names, text_column(paths)).tolist(), strict=True
        ):
            if at < len(names):
                if names[at].startswith(path):
                    self.found.append(path[:-1])
            elif last.startswith(path[:-1]):  # what is below may yet come
                self._open.append(path)


def _begin_next(names: TextColumn) -> Bools:
    """Which names the one behind them begins with, bool[n - 1]."""
    if names.dtype == object:
        known = names.tolist()
        return np.fromiter(map(bytes.startswith, known[1:], known), bool, len(known) - 1)
    found: Bools = np.strings.startswith(names[1:], names[:-1])
    return found


class _Block(NamedTuple):
    """Where rows lie in the scratch file: their numbers, names and values, bytes of each of these.

    names  dtype of these; objects, and values, are as `_packed` has them
    """

    offset: int
    sizes: list[int]
    names: np.dtype[Any]


class NameSorter:
    """Takes rows in any order, gives them back in byte order of their names.

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
        # Row by row, so that each is taken from one place of the memory.
        self._waiting.append(rows.with_numbers(np.ascontiguousarray(rows.numbers)))
        self.count += count
        self._size += WIDTH * count + names.nbytes
        for texts in (names if names.dtype == object else None, rows.values):
            if texts is not None:
                self._size += sum(map(len, texts)) + OBJECT * count
        if self._size >= self._limit:
            self._put_by()

    def rest(self) -> None:
        """No more rows for now: keep none that are not sorted, if they are more than a chunk."""
        if self._runs:
            self._put_by()

    def _put_by(self) -> None:
        """Make a run of what is in memory."""
        try:
            if self._waiting and self._error is None:
                count, size = sum(map(len, self._waiting)), max(self._size, 1)
                self._add_run(self._chunk(max(min(BLOCK, AREA * count // size), 1)))
        except OSError as error:
            self._error = error
            self.close()  # the disk may be full
        self._room -= self._size
        self._waiting, self._size = [], 0

    def rows(self, chosen: Callable[[FileTable], Bools] | None = None) -> Iterator[FileTable]:
        """Everything in order, some thousand rows at a time; a part may be empty.

        chosen  which of some rows are wanted; None: all. No two of these may have one name
        """
        if self._runs:
            self._put_by()
        if self._error is not None:
            raise self._error
        # rows that fit into one chunk stay in memory
        found: list[Iterator[FileTable]] = [map(self._read, run) for run in self._runs]
        found = found or [self._chunk(PART)]
        return joined(found if chosen is None else [_some(run, chosen) for run in found])

    def close(self) -> None:
        """Drop the scratch file. Idempotent."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _chunk(self, each: int) -> Iterator[FileTable]:
        """What is in memory, in order, `each` rows at a time."""
        if not self._waiting:
            return
        found = FileTable.concat(self._waiting)
        self._waiting = [found]  # not twice
        order = text_order(found.column)
        for at in range(0, len(order), each):
            yield found.take(order[at : at + each])

    def _add_run(self, parts: Iterator[FileTable]) -> None:
        """Rows in order."""
        run: list[_Block | FileTable] | None = None
        for rows in parts:
            if run is None:
                if not self._runs or rows.column[0] <= self._last:
                    self._runs.append([])
                run = self._runs[-1]
            run.append(rows if self._room > 0 else self._write(rows))
            self._last = bytes(rows.column[-1])

    def _write(self, rows: FileTable) -> _Block:
        if self._storage is None:
            self._storage = self._scratch()
        names = rows.column
        parts = [
            rows.numbers.tobytes(),
            _packed(names) if names.dtype == object else names.tobytes(),
            b"" if rows.values is None else _packed(rows.values),
        ]
        block = _Block(self._end, list(map(len, parts)), names.dtype)
        self._end += self._storage.write(self._end, parts)
        return block

    def _read(self, block: _Block | FileTable) -> FileTable:
        if isinstance(block, FileTable):
            return block
        assert self._storage is not None
        data = self._storage.read(block.offset, sum(block.sizes))
        if len(data) != sum(block.sizes):
            raise CorruptError("names are cut short", file=self._storage.name, offset=block.offset)
        words, names, values = _cut(data, block.sizes)
        numbers = np.frombuffer(words, np.int64).reshape(-1, len(COLUMNS))
        n, long = len(numbers), block.names.hasobject
        column = _unpacked(names, n) if long else np.frombuffer(names, block.names)
        return FileTable(column, numbers, _unpacked(values, n) if values else None)


def _packed(texts: Blobs) -> bytes:
    """uint32 lengths of some texts, and these."""
    known = texts.tolist()
    return b"".join([np.array(list(map(len, known)), np.uint32).tobytes(), *known])


def _unpacked(data: bytes, count: int) -> Blobs:
    """The inverse."""
    texts = np.empty(count, object)
    lengths = np.frombuffer(data, np.uint32, count).tolist()
    texts[:] = _cut(data[4 * count :], lengths)
    return texts


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Parts of these sizes."""
    return [data[a:b] for a, b in pairwise(accumulate(sizes, initial=0))]


def _some(run: Iterator[FileTable], chosen: Callable[[FileTable], Bools]) -> Iterator[FileTable]:
    return (rows.take(chosen(rows)) for rows in run)
