"""Rows of the catalog sorted by name in bounded memory.

A full chunk is sorted and becomes a run, after some of them in a scratch file; runs are merged on
the way out. Chunks that follow each other in order make one run: names that come in order are not
sorted. `BulkRows` keeps files put in bulk as columns. `ClashFinder` finds the names that are also a
directory of other names, as they go by in order.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats.arrays import (
    WORD,
    Bools,
    Int64,
    TextColumn,
    UInt8,
    column_at,
    order_at,
    text_column,
    text_order,
)
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkfs.container.ondisk.inode import ATTRS, JUST_CTIME, UINT32, FileType, nanoseconds
from winkfs.container.table import (
    COLUMNS,
    CTIME,
    FILEID,
    KIND,
    MODE_AT,
    MTIME,
    NOTHING,
    OWNER,
    POINTER,
    POS,
    SIZE,
    SPECIAL,
    Blobs,
    FileTable,
    Placed,
    in_order,
    owner_words,
)
from winkfs.names import INODE, name_of

CHUNK: Final = 4 << 20  # bytes of rows that are sorted at a time: they fit into a cache
HELD: Final = 8  # chunks that stay in memory: a scratch file costs as much as the sort
WIDTH: Final = 8 * len(COLUMNS)  # bytes of the numbers of a row
BLOCK: Final = 2048  # rows read back at a time from each run, at most, and
AREA: Final = 1 << 19  # bytes of them, about
PART: Final = 1 << 14  # rows that are put in order at a time
BULK_NAMES: Final = 64 << 20  # bytes of names of files put in bulk that are sorted at a time, and
BULK_FILES: Final = 1 << 20  # of these files: 35 bytes of numbers each, and 50 more to sort them
BULK_TYPES: Final = (np.int64, np.int64, np.int64, np.uint32, np.uint32, np.uint16, np.uint8)
APART: Final = UINT32  # bytes between content and inode, in the place of those of a compressed file
BULK_NAME: Final = 512  # bytes of their names, in the mean: of longer ones parts have fewer rows
EACH: Final = 1 << 13  # rows of a part that goes right into the catalog
OBJECT: Final = 41  # bytes of a bytes object, and its place in an array


def special_rows(
    put: Placed, attrs: Sequence[bytes] | None, unit: int, *, typed: bool
) -> FileTable:
    """Rows of files put in bulk with these attributes: extended ones, or the time of a change.

    attrs   None: they have none
    unit    nanoseconds of their mtimes
    typed   there are columns of the user
    """
    files, times = put.files, nanoseconds(put.mtimes, unit)
    table = FileTable.of(
        [name_of(key) for key in files.keys],
        put.positions, put.fileids, files.lengths, times, put.pointers, _kinds(files.ftypes),
    )  # fmt: skip
    if attrs is None:
        return table
    numbers = table.numbers
    heads = b"".join(word[: ATTRS.size] for word in attrs)
    mode, uid, gid = np.frombuffer(heads, ">i8").astype(np.int64).reshape(-1, 3).T
    numbers[:, KIND] |= SPECIAL | mode << MODE_AT
    numbers[:, OWNER] = owner_words(uid, gid)
    changed = np.fromiter((word[ATTRS.size : -8] == JUST_CTIME for word in attrs), bool, len(attrs))
    if changed.any():
        ctimes = np.frombuffer(b"".join(word[-8:] for word in attrs), ">i8")
        numbers[changed, CTIME] = ctimes[changed]
    if typed:
        table.values = np.empty(len(attrs), object)
        table.values[:] = [word[ATTRS.size :] for word in attrs]
    return table


def _kinds(ftypes: Sequence[int]) -> UInt8:
    """Their FTYPEs, uint8[n]; uint8[1], where all are the same."""
    same = ftypes.count(ftypes[0]) == len(ftypes)  # a twelfth of the time of an array
    kinds = np.array(ftypes[:1] if same else ftypes, np.uint8)
    kinds[kinds == 0] = FileType.FILE
    return kinds


class BulkRows:
    """Files put in bulk, without attributes, as columns in the order in which they come.

    unit    nanoseconds of their mtimes
    count   files
    """

    def __init__(self, unit: int) -> None:
        self._unit, self.count = unit, 0
        self._room = 0  # files
        self._raw = np.empty(0, np.uint8)  # the keys, one behind the other
        self._end = 0  # of these
        self._columns: list[npt.NDArray[Any]] = []
        self._at = self._order = np.empty(0, np.int64)

    def has_room(self, put: Placed) -> bool:
        """Whether there is room for more files."""
        return not self.count or (
            self._end + len(put.keys) + WORD <= len(self._raw)
            and self.count + len(put.positions) <= self._room
        )

    def add(self, put: Placed) -> None:
        """More files."""
        files, keys, positions, pointers, fileids, mtimes = put
        start, n = self.count, len(positions)
        if not start:
            self._make_room(len(keys), n)
        self.count = stop = start + n
        beside, kinds = positions - pointers - files.lengths, files.ftypes
        if (pointers < 0).any():
            beside = np.where(pointers < 0, APART, beside)
        for column, values in zip(
            self._columns,
            (positions, fileids, mtimes, files.lengths, beside, files.key_lengths, _kinds(kinds)),
            strict=True,
        ):
            column[start:stop] = values
        self._raw[self._end : self._end + len(keys)] = np.frombuffer(keys, np.uint8)
        self._end += len(keys)

    def _make_room(self, size: int, files: int) -> None:
        """In one piece, which takes memory only where it is written: small ones that stay would
        keep those of the chunks that are put from being used again."""
        size, self._room = max(BULK_NAMES, size) + WORD, max(BULK_FILES, files)
        widths = [np.dtype(kind).itemsize * self._room for kind in BULK_TYPES]
        whole = np.empty(sum(widths) + size, np.uint8)
        for kind, width in zip(BULK_TYPES, widths, strict=True):
            self._columns.append(whole[:width].view(kind))
            whole = whole[width:]
        self._raw = whole

    def sort(self, each: int) -> list[tuple[int, int]]:
        """No more files come: have them in byte order of their names.

        each    rows of a part, at most; fewer where the names are long
        ->      the parts
        cost    n log n; memory: 50 bytes a file
        """
        n = self.count
        self._raw = self._raw[: self._end + WORD]
        pos, fileid, mtime, size, beside, lengths, kind = (column[:n] for column in self._columns)
        fileid -= np.arange(n)  # mostly one number is left
        lengths -= len(INODE)
        self._columns = [
            column[:1] if (column == column[0]).all() else column
            for column in (pos, fileid, mtime, size, beside, lengths, kind)
        ]
        wide = lengths.astype(np.int64)
        self._at = np.cumsum(wide + len(INODE)) - wide - len(INODE)
        self._order = order_at(self._raw, self._at, wide)
        each = max(min(each, each * BULK_NAME * n // self._end), 1)
        return [(at, min(at + each, n)) for at in range(0, n, each)]

    def part(self, start: int, stop: int) -> FileTable:
        """The rows [start, stop), after `sort`."""
        chosen = self._order[start:stop]
        pos, fileid, mtime, size, beside, lengths, kind = (
            column if len(column) == 1 else column[chosen] for column in self._columns
        )
        numbers = np.zeros((len(COLUMNS), len(chosen)), np.int64)  # as the catalog has them
        numbers[POS], numbers[SIZE], numbers[KIND] = pos, size, kind
        np.add(fileid, chosen, out=numbers[FILEID])
        numbers[MTIME] = numbers[CTIME] = nanoseconds(mtime, self._unit)
        np.subtract(numbers[POS], numbers[SIZE] + beside, out=numbers[POINTER])
        np.copyto(numbers[POINTER], -1, where=beside == APART)
        wide = np.broadcast_to(lengths, len(chosen)).astype(np.int64)
        return FileTable(column_at(self._raw, self._at[chosen], wide), numbers.T)


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

    def __init__(self, scratch: Callable[[], Storage], chunk: int = CHUNK, unit: int = 1) -> None:
        """`unit`: see `BulkRows`."""
        self._scratch, self._limit, self._unit = scratch, chunk, unit
        self._storage: Storage | None = None
        self._waiting: list[FileTable] = []
        self._size = 0  # bytes of these
        self._runs: list[list[_Block | FileTable]] = []
        self._room = HELD * chunk  # bytes of runs that may yet stay in memory
        self._last = b""  # name of the last run
        self._end = 0  # of the scratch file
        self._error: OSError | None = None
        self._bulk = BulkRows(unit)
        self.count = 0

    def add_bulk(self, put: Placed) -> None:
        """See `BulkRows.add`."""
        if not self._bulk.has_room(put):
            self._put_by(self._flush_bulk)
        self._bulk.add(put)
        self.count += len(put.positions)

    def add(self, rows: FileTable) -> None:
        """Rows in any order."""
        if not len(rows):
            return
        names = rows.column
        self._waiting.append(rows)
        self.count += len(rows)
        self._size += WIDTH * len(rows) + names.nbytes
        for texts in (names if names.dtype == object else None, rows.values):
            if texts is not None:
                self._size += sum(map(len, texts)) + OBJECT * len(rows)
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
        found: Iterator[FileTable]
        if self._bulk.count and not (self._runs or self._waiting):
            found = itertools.starmap(self._bulk.part, self._bulk.sort(EACH))
        elif self._bulk.count or self._runs:
            self._flush()
            found = self._merged()
        else:  # only rows that fit into one chunk stay in memory
            found = self._chunk(PART)
        return found if live is None else _at(found, live)

    def close(self) -> None:
        """Drop the scratch file. Idempotent."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _merged(self) -> Iterator[FileTable]:
        cursors = [_Cursor(map(self._read, run), len(run)) for run in self._runs]
        if self._bulk.count:
            parts = self._bulk.sort(BLOCK)
            cursors.append(_Cursor(itertools.starmap(self._bulk.part, parts), len(parts)))
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

    def _flush_bulk(self) -> None:
        bulk, self._bulk = self._bulk, BulkRows(self._unit)
        if self._error is None:
            self._add_run(itertools.starmap(bulk.part, bulk.sort(BLOCK)), held=False)

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
