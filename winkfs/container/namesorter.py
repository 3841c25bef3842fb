"""Sorting rows of the catalog by name in bounded memory.

A full chunk is sorted and becomes a run; the first chunks stay in memory, later ones go to a
scratch file. Runs are merged when the rows are read. Chunks that follow each other in order make
one run, so names that arrive in order are not sorted. `ClashFinder` finds names that are also a
directory of other names.
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

SORTED_BYTES: Final = 32 << 20  # bytes of rows that are sorted at a time
CHUNKS_IN_MEMORY: Final = 1  # of runs, before later ones go to a scratch file
WIDTH: Final = 8 * len(COLUMNS)  # bytes of the numbers of a row
BLOCK: Final = 2048  # rows read back at a time from each run, at most, and
BLOCK_BYTES: Final = 1 << 19  # bytes of them, about
SORTED_ROWS: Final = 1 << 14  # returned at a time if all are in memory
OBJECT_BYTES: Final = 41  # of a bytes object beside its content, and its place in an array


class RowCollector:
    """Passes the inodes of a data file that is read as a whole to a sorter."""

    def __init__(self, store: DataFile, sorter: NameSorter) -> None:
        self._store, self.sorter = store, sorter
        self._inodes = Inodes(store.kv, store.settings, store.note)

    def take(self, rows: InodeRows) -> None:
        """Add inodes that may be live."""
        found = self._inodes.of(rows)
        self.sorter.add(self._inodes.complete(found, typed=bool(self._store.schema)))


class ClashFinder:
    """Finds files whose name is also a directory, from all names in byte order.

    found   names of files, not directories, such that another name begins with name + "/"

    Names with a common prefix are adjacent. So if the next name does not begin with a name, nothing
    is below that one; for the few others, name + "/" is searched.
    """

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self._open: list[bytes] = []  # name + "/", if all names since begin with that name
        self._last: bytes | None = None  # the last name; None: it is that of a directory

    def seen(self, parts: Iterable[FileTable]) -> Iterator[FileTable]:
        """Add the names of rows, and yield the rows."""
        for rows in parts:
            self.add(rows.column, rows.directories)
            yield rows

    def add(self, names: TextColumn, directories: Bools) -> None:
        """Add the next names, and which are directories.

        cost  one comparison a name, more for names with which the next one begins
        """
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
            elif last.startswith(path[:-1]):  # names below it may follow
                self._open.append(path)


def _begin_next(names: TextColumn) -> Bools:
    """Return with which names the next name begins, bool[n - 1]."""
    if names.dtype == object:
        known = names.tolist()
        return np.fromiter(map(bytes.startswith, known[1:], known), bool, len(known) - 1)
    found: Bools = np.strings.startswith(names[1:], names[:-1])
    return found


class _Block(NamedTuple):
    """The place of rows in the scratch file: bytes of their numbers, names and values.

    names  dtype of the names; objects, and values, are encoded by `_packed`
    """

    offset: int
    sizes: list[int]
    names: np.dtype[Any]


class NameSorter:
    """Sorts rows by their names, in byte order.

    scratch  makes the file for the runs that do not stay in memory
    count    number of rows
    raises   OSError from the disk in `rows`; `add` keeps it back, so that puts can go on
    cost     n log n in memory; rows beyond CHUNKS_IN_MEMORY are written and read once. Names that
             arrive in order are not sorted. Memory: CHUNKS_IN_MEMORY and two more chunks, and up to
             512 KB for each run
    """

    def __init__(self, scratch: Callable[[], Storage], chunk: int = SORTED_BYTES) -> None:
        self._scratch, self._limit = scratch, chunk
        self._storage: Storage | None = None
        self._waiting: list[FileTable] = []
        self._size = 0  # bytes of these
        self._runs: list[list[_Block | FileTable]] = []
        self._room = CHUNKS_IN_MEMORY * chunk  # bytes of further runs that stay in memory
        self._last = b""  # name of the last run
        self._end = 0  # of the scratch file
        self._error: OSError | None = None
        self.count = 0

    def add(self, rows: FileTable) -> None:
        """Add rows in any order."""
        count = len(rows)
        if not count:
            return
        names = rows.column
        # Row by row, so that a row is one range of memory.
        self._waiting.append(rows.with_numbers(np.ascontiguousarray(rows.numbers)))
        self.count += count
        self._size += WIDTH * count + names.nbytes
        for texts in (names if names.dtype == object else None, rows.values):
            if texts is not None:
                self._size += sum(map(len, texts)) + OBJECT_BYTES * count
        if self._size >= self._limit:
            self._put_by()

    def rest(self) -> None:
        """Release the memory of unsorted rows, if they are more than a chunk. Comes after `add`."""
        if self._runs:
            self._put_by()

    def _put_by(self) -> None:
        """Make a run of the rows in memory."""
        try:
            if self._waiting and self._error is None:
                count, size = sum(map(len, self._waiting)), max(self._size, 1)
                self._add_run(self._chunk(max(min(BLOCK, BLOCK_BYTES * count // size), 1)))
        except OSError as error:
            self._error = error
            self.close()  # the disk may be full
        self._room -= self._size
        self._waiting, self._size = [], 0

    def rows(self, chosen: Callable[[FileTable], Bools] | None = None) -> Iterator[FileTable]:
        """Yield all rows in order, some thousand at a time; a table may be empty.

        chosen  returns which rows are wanted, of which no two may have one name; None: all
        """
        if self._runs:
            self._put_by()
        if self._error is not None:
            raise self._error
        # rows that fit into one chunk stay in memory
        found: list[Iterator[FileTable]] = [map(self._read, run) for run in self._runs]
        found = found or [self._chunk(SORTED_ROWS)]
        return joined(found if chosen is None else [_some(run, chosen) for run in found])

    def close(self) -> None:
        """Drop the scratch file. Idempotent."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _chunk(self, each: int) -> Iterator[FileTable]:
        """Yield the rows in memory, in order, `each` at a time."""
        if not self._waiting:
            return
        found = FileTable.concat(self._waiting)
        self._waiting = [found]  # release the parts
        order = text_order(found.column)
        for at in range(0, len(order), each):
            yield found.take(order[at : at + each])

    def _add_run(self, parts: Iterator[FileTable]) -> None:
        """Add rows in order, to the last run or as a new one."""
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
    """Encode texts: their uint32 lengths, then the texts."""
    known = texts.tolist()
    return b"".join([np.array(list(map(len, known)), np.uint32).tobytes(), *known])


def _unpacked(data: bytes, count: int) -> Blobs:
    """Decode texts: the inverse of `_packed`."""
    texts = np.empty(count, object)
    lengths = np.frombuffer(data, np.uint32, count).tolist()
    texts[:] = _cut(data[4 * count :], lengths)
    return texts


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Split bytes into parts of these sizes."""
    return [data[a:b] for a, b in pairwise(accumulate(sizes, initial=0))]


def _some(run: Iterator[FileTable], chosen: Callable[[FileTable], Bools]) -> Iterator[FileTable]:
    return (rows.take(chosen(rows)) for rows in run)
