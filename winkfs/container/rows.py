"""Rows of the catalog: what is known of files, as columns; sorted in bounded memory, and joined.

A full chunk is sorted and becomes a run, after some of them in a scratch file; runs are merged on
the way out. Chunks that follow each other in order make one run: names that come in order are not
sorted. `ClashFinder` finds the names that are also a directory of other names, as they go by in
order.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from winkformats.arrays import (
    WORD,
    Bools,
    Int64,
    TextColumn,
    UInt8,
    column_at,
    gather,
    order_at,
    text_column,
    text_order,
)
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkfs.container.ondisk.inode import (
    ATTRS,
    DEFAULT_MODES,
    JUST_CTIME,
    UINT32,
    FileType,
    nanoseconds,
)
from winkfs.container.ondisk.typed import Column, Schema, Texts, split
from winkfs.container.where import BUILTIN, Condition
from winkfs.names import INODE, name_of
from winkfs.units import MICRO

COLUMNS: Final = ("pos", "fileid", "size", "mtime", "pointer", "ctime", "kind", "owner")
POS, FILEID, SIZE, MTIME, POINTER, CTIME, KIND, OWNER = range(len(COLUMNS))
GONE: Final = 1 << 8  # in KIND
SPECIAL: Final = 1 << 9
ASK: Final = 1 << 10
MODE_AT: Final = 16
MODES: Final = np.array(DEFAULT_MODES, np.int64)
"""A row of the catalog, int64[8].

pos      kv_pointer of the inode
fileid   FILEID
size     bytes
mtime    nanoseconds since the epoch
pointer  kv_pointer of the one data entry whose value is the whole content; 0: there is no content;
         -1: the inode has to be asked
ctime    nanoseconds since the epoch
kind     bits 0..7: FTYPE; GONE; SPECIAL: the file has attributes; ASK: int64 does not hold what
         the inode says; from MODE_AT on: permission bits, of a file that has attributes
owner    uid + (gid << 32), of a file that has attributes
"""

CHUNK: Final = 4 << 20  # bytes of rows that are sorted at a time: they fit into a cache
HELD: Final = 8  # chunks that stay in memory: a scratch file costs as much as the sort
WIDTH: Final = 8 * len(COLUMNS)  # bytes of the numbers of a row
BLOCK: Final = 2048  # rows read back at a time from each run, at most, and
AREA: Final = 1 << 19  # bytes of them, about
PART: Final = 1 << 14  # rows that are put in order at a time
BULK_NAMES: Final = 64 << 20  # bytes of names of files put in bulk that are sorted at a time, and
BULK_FILES: Final = 1 << 20  # of these files: 35 bytes of numbers each, and 50 more to sort them
BULK_TYPES: Final = (np.int64, np.int64, np.int64, np.uint32, np.uint32, np.uint16, np.uint8)
BULK_NAME: Final = 512  # bytes of their names, in the mean: of longer ones parts have fewer rows
EACH: Final = 1 << 13  # rows of a part that goes right into the catalog
OBJECT: Final = 41  # bytes of a bytes object, and its place in an array

Blobs = npt.NDArray[np.object_]
Times = tuple[int | None, int | None]
"""[since, until), nanoseconds since the epoch; None: no bound."""
ALWAYS: Final[Times] = (None, None)


class Rows:
    """n files in byte order of their names, and their COLUMNS, int64[n, 8].

    values  object[n]: the attributes that are columns of the user, bytes as ATTRS has them; None:
            none has any, or nobody has asked for them
    """

    __slots__ = ("_column", "_names", "numbers", "values")

    def __init__(
        self, names: list[bytes] | TextColumn, numbers: Int64, values: Blobs | None = None
    ) -> None:
        self._names = names if isinstance(names, list) else None
        self._column = None if isinstance(names, list) else names
        self.numbers, self.values = numbers, values

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def names(self) -> list[bytes]:
        """The names. Cost: made from the column when they are first asked for."""
        if self._names is None:
            assert self._column is not None
            self._names = self._column.tolist()
        return self._names

    @property
    def column(self) -> TextColumn:
        """The same as an array; made from the list when it is first asked for."""
        if self._column is None:
            assert self._names is not None
            self._column = text_column(self._names)
        return self._column

    def with_numbers(self, numbers: Int64) -> Rows:
        """The same names and values with other numbers."""
        return Rows(self._either, numbers, self.values)

    @property
    def _either(self) -> list[bytes] | TextColumn:
        """What there is."""
        return self.names if self._column is None else self._column

    @property
    def last(self) -> bytes:
        """The last name; there is one."""
        return self.names[-1]

    @property
    def pos(self) -> Int64:
        """Positions of the inodes, int64[n]."""
        return self.numbers[:, POS]

    @property
    def asked(self) -> Bools:
        """Which rows do not say all: their inodes have to be asked, bool[n]."""
        asked: Bools = self.numbers[:, KIND] & ASK != 0
        return asked

    @property
    def directories(self) -> Bools:
        """Which are directories, bool[n]."""
        directories: Bools = self.numbers[:, KIND] & 255 == FileType.DIR
        return directories

    @property
    def links(self) -> Bools:
        """Which are symbolic links, bool[n]."""
        links: Bools = self.numbers[:, KIND] & 255 == FileType.LINK
        return links

    def within(self, times: Times) -> Bools:
        """Which have an mtime in these times, bool[n]."""
        found, (since, until) = np.ones(len(self), bool), times
        if since is not None:
            found &= self.numbers[:, MTIME] >= since
        if until is not None:
            found &= self.numbers[:, MTIME] < until
        return found

    def meeting(self, where: Condition, schema: Schema) -> Bools:
        """Of which a condition is true, bool[n]. They have all values that it asks for."""
        blobs = [b""] * len(self) if self.values is None else self.values
        asked = {name: kind for name, kind in schema.items() if name in where.columns()}
        texts = dict(zip(asked, split(blobs, asked), strict=True))

        def get(name: str) -> Column:
            if name in texts:
                return Column.of(asked[name], texts[name])
            return builtin(name, self.names, self.numbers)

        return where.truth(get).true

    def typed(self, schema: Schema) -> list[Texts]:
        """The texts of each column; null is what is none of its type."""
        if self.values is None:
            return [[None] * len(self)] * len(schema)
        pairs = zip(schema.values(), split(self.values, schema), strict=True)
        return [Column.of(kind, texts).texts() for kind, texts in pairs]

    def stats(self, owner: tuple[int, int]) -> tuple[Int64, ...]:
        """FILEIDs, sizes, mtimes, FTYPEs, permission bits, uids, gids and ctimes, int64[n] each.
        `owner`: of files without attributes."""
        kind = self.numbers[:, KIND]
        ftype, special = kind & 255, kind & SPECIAL != 0
        mode = np.where(special, kind >> MODE_AT, MODES[ftype])
        words = np.where(special, self.numbers[:, OWNER], owner_word(*owner))
        fileid, size, mtime, ctime = self.numbers[:, [FILEID, SIZE, MTIME, CTIME]].T
        return fileid, size, mtime, ftype, mode, words & UINT32, words >> 32 & UINT32, ctime

    @property
    def gone(self) -> Bools:
        """Which rows say that there is no such name any more, bool[n]."""
        gone: Bools = self.numbers[:, KIND] & GONE != 0
        return gone

    def owned(self, owner: tuple[int, int]) -> Rows:
        """The same rows, with mode and owner in those of files without attributes, too."""
        plain = np.flatnonzero(self.numbers[:, KIND] & SPECIAL == 0)
        if not len(plain):
            return self
        numbers = self.numbers.copy()
        kind = numbers[plain, KIND]
        numbers[plain, KIND] = kind | SPECIAL | MODES[kind & 255] << MODE_AT
        numbers[plain, OWNER] = owner_word(*owner)
        return self.with_numbers(numbers)

    def part(self, start: int, stop: int | None = None) -> Rows:
        """The rows [start, stop), without a copy of the numbers."""
        values = None if self.values is None else self.values[start:stop]
        return Rows(self._either[start:stop], self.numbers[start:stop], values)

    def take(self, chosen: Bools) -> Rows:
        """The chosen ones, bool[n]."""
        values = None if self.values is None else self.values[chosen]
        if self._column is None:
            return Rows(list(compress(self.names, chosen.tolist())), self.numbers[chosen], values)
        return Rows(self._column[chosen], self.numbers[chosen], values)

    def ordered(self, order: Int64) -> Rows:
        """The rows with these indices, in this order."""
        values = None if self.values is None else self.values[order]
        return Rows(self.column.take(order), self.numbers.take(order, 0), values)

    @staticmethod
    def concat(parts: list[Rows]) -> Rows:
        """Parts one behind the other; at least one."""
        if len(parts) == 1:
            return parts[0]
        values = None
        if any(part.values is not None for part in parts):
            values = np.concatenate([
                np.full(len(part), b"", object) if part.values is None else part.values
                for part in parts
            ])  # fmt: skip
        names = np.concatenate([part.column for part in parts])
        return Rows(names, np.concatenate([part.numbers for part in parts]), values)


class Plain(NamedTuple):
    """What columns say of n rows: some of the COLUMNS, lengths of the names, int64[n] each, and the
    names one behind the other."""

    pos: Int64
    pointer: Int64
    size: Int64
    mtime: Int64
    kind: Int64
    lengths: Int64
    name_bytes: UInt8

    @property
    def last(self) -> bytes:
        """The last name; there is one."""
        return self.name_bytes[len(self.name_bytes) - int(self.lengths[-1]) :].tobytes()

    def part(self, start: int, stop: int) -> Plain:
        """The rows [start, stop), without a copy."""
        names = self.name_bytes[self.lengths[:start].sum() :][: self.lengths[start:stop].sum()]
        return Plain._make([*(column[start:stop] for column in self[:-1]), names])

    def take(self, index: Int64 | Bools) -> Plain:
        """The rows with these indices, int64[m] in any order, or those marked, bool[n]."""
        index = np.flatnonzero(index) if index.dtype == np.bool_ else index
        starts = np.cumsum(self.lengths) - self.lengths
        names = gather(self.name_bytes, starts[index], self.lengths[index])
        return Plain._make([*(column[index] for column in self[:-1]), names])

    @classmethod
    def of(cls, rows: Rows) -> Plain:
        """The same of rows."""
        pos, pointer, size, mtime, kind = rows.numbers[:, [POS, POINTER, SIZE, MTIME, KIND]].T
        lengths = np.fromiter(map(len, rows.names), np.int64, len(rows.names))
        names = np.frombuffer(b"".join(rows.names), np.uint8)
        return cls(pos, pointer, size, mtime, kind, lengths, names)

    def changed(self, changes: Rows) -> Plain:
        """The live rows of both, in order; of those with one name that of the changes."""
        starts = np.cumsum(self.lengths) - self.lengths
        names = column_at(self.name_bytes, starts, self.lengths)
        places = np.searchsorted(names, changes.column)
        inside = np.flatnonzero(places < len(names))
        kept = np.ones(len(names), bool)
        kept[places[inside][names[places[inside]] == changes.column[inside]]] = False
        live = ~changes.gone
        old, new = self.take(kept), Plain.of(changes.take(live))
        both = Plain._make([
            np.concatenate([getattr(old, field), getattr(new, field)]) for field in Plain._fields
        ])  # fmt: skip
        order = np.concatenate([2 * np.flatnonzero(kept) + 1, 2 * places[live]])
        return both.take(np.argsort(order, kind="stable"))


def builtin(name: str, names: list[bytes], numbers: Int64) -> Column:
    """What a condition asks of all files, see `where.BUILTIN`; what no file has is null."""
    if name not in BUILTIN:
        return Column.nulls("string", len(numbers))
    valid = np.ones(len(numbers), bool)
    if name == "path":
        return Column("string", valid, np.arange(len(names)), names)
    if name == "mtime":
        return Column("timestamp", valid, numbers[:, MTIME] // MICRO, [])
    return Column(
        "int64", valid, numbers[:, SIZE] if name == "size" else numbers[:, KIND] & 255, []
    )


def owner_word(uid: int, gid: int) -> int:
    """The `owner` of a row."""
    return uid | (gid - (gid >> 31 << 32)) << 32


def owner_words(uid: Int64, gid: Int64) -> Int64:
    """The same of many, int64[n]."""
    return uid | gid << 32


def plain_numbers(
    pos: Int64,
    fileid: Int64 | int = 0,
    size: Int64 | int = 0,
    mtime: Int64 | int = 0,
    pointer: Int64 | int = 0,
    kind: npt.NDArray[np.integer] | int = 0,
) -> Int64:
    """The COLUMNS of files without attributes, last changed at their mtime, int64[n, 8]."""
    numbers = np.zeros((len(pos), len(COLUMNS)), np.int64)
    for column, values in (
        (POS, pos), (FILEID, fileid), (SIZE, size), (MTIME, mtime), (POINTER, pointer),
        (CTIME, mtime), (KIND, kind),
    ):  # fmt: skip
        numbers[:, column] = values
    return numbers


# --- of files put in bulk ---


class Put(Protocol):
    """n files of one extent each, as `writemany` puts them."""

    @property
    def keys(self) -> list[bytes]: ...
    @property
    def key_lengths(self) -> Int64: ...
    @property
    def lengths(self) -> Int64: ...
    @property
    def ftypes(self) -> Sequence[int]: ...


class Placed(NamedTuple):
    """Files put in bulk, and where they are.

    keys       joined
    positions  of their inodes, int64[n]; pointers: of their contents
    mtimes     as stored, int64[n]
    """

    files: Put
    keys: bytes
    positions: Int64
    pointers: Int64
    fileids: Int64
    mtimes: Int64


def special_rows(put: Placed, attrs: Sequence[bytes], unit: int, *, typed: bool) -> Rows:
    """Rows of files put in bulk with these attributes: extended ones, or the time of a change.

    unit    nanoseconds of their mtimes
    typed   there are columns of the user
    """
    files, times = put.files, nanoseconds(put.mtimes, unit)
    numbers = plain_numbers(
        put.positions, put.fileids, files.lengths, times, put.pointers, _kinds(files.ftypes)
    )
    heads = b"".join(word[: ATTRS.size] for word in attrs)
    mode, uid, gid = np.frombuffer(heads, ">i8").astype(np.int64).reshape(-1, 3).T
    numbers[:, KIND] |= SPECIAL | mode << MODE_AT
    numbers[:, OWNER] = owner_words(uid, gid)
    changed = np.fromiter((word[ATTRS.size : -8] == JUST_CTIME for word in attrs), bool, len(attrs))
    if changed.any():
        ctimes = np.frombuffer(b"".join(word[-8:] for word in attrs), ">i8")
        numbers[changed, CTIME] = ctimes[changed]
    values = None
    if typed:
        values = np.empty(len(attrs), object)
        values[:] = [word[ATTRS.size :] for word in attrs]
    return Rows([name_of(key) for key in files.keys], numbers, values)


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

    def part(self, start: int, stop: int) -> Rows:
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
        wide = np.broadcast_to(lengths, len(chosen)).astype(np.int64)
        return Rows(column_at(self._raw, self._at[chosen], wide), numbers.T)


# --- sorted ---


class ClashFinder:
    """Takes all names in byte order, in pieces of any size.

    Names with a common beginning follow each other. So a name that its successor does not begin
    with has nothing below it, and the few others are looked up: whether name + "/" begins another.
    """

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self._open: list[bytes] = []  # name + "/" that all names since begin with, save for the /
        self._last: bytes | None = None

    def seen(self, parts: Iterable[Rows]) -> Iterator[Rows]:
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
        self._waiting: list[Rows] = []
        self._size = 0  # bytes of these
        self._runs: list[list[_Block | Rows]] = []
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

    def add(self, rows: Rows) -> None:
        """Rows in any order."""
        if not len(rows):
            return
        names = rows.column
        self._waiting.append(Rows(names, rows.numbers, rows.values))
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

    def rows(self, live: Int64 | None = None) -> Iterator[Rows]:
        """Everything in order, some thousand rows at a time; a part may be empty.

        live    ascending positions of inodes: what is at others is left out
        """
        if self._error is not None:
            raise self._error
        found: Iterator[Rows]
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

    def _merged(self) -> Iterator[Rows]:
        cursors = [_Cursor(map(self._read, run), len(run)) for run in self._runs]
        if self._bulk.count:
            parts = self._bulk.sort(BLOCK)
            cursors.append(_Cursor(itertools.starmap(self._bulk.part, parts), len(parts)))
        while any(cursor.more for cursor in cursors):
            limit = min(c.last for c in cursors if c.more)  # what is on the disk is >= limit
            yield _joined([c.take(limit) for c in cursors])
        yield _joined([c.rest() for c in cursors])

    def _chunk(self, each: int) -> Iterator[Rows]:
        """What is in memory, in order, `each` rows at a time."""
        if not self._waiting:
            return
        found = Rows.concat(self._waiting)
        self._waiting = [found]  # not twice
        order = text_order(found.column)
        for at in range(0, len(order), each):
            yield found.ordered(order[at : at + each])

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

    def _add_run(self, parts: Iterator[Rows], *, held: bool) -> None:
        """Rows in order. `held`: they stay in memory."""
        run: list[_Block | Rows] | None = None
        for rows in parts:
            if run is None:
                if not self._runs or rows.column[0] <= self._last:
                    self._runs.append([])
                run = self._runs[-1]
            run.append(rows if held else self._write(rows))
            self._last = bytes(rows.column[-1])

    def _write(self, rows: Rows) -> _Block:
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

    def _read(self, block: _Block | Rows) -> Rows:
        if isinstance(block, Rows):
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
        return Rows(names, numbers, _unpacked(data, at, count)[0] if block.typed else None)


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

    def __init__(self, run: Iterator[Rows], blocks: int) -> None:
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

    def take(self, limit: bytes) -> Rows:
        """-> the rows in memory with names up to the limit."""
        start = self._at
        self._at = stop = bisect_right(self._rows.column, limit, start)
        out = self._rows.part(start, stop)
        if stop == len(self._rows):
            self._advance()
        return out

    def rest(self) -> Rows:
        """-> all rows in memory."""
        return self._rows.part(self._at)


NOTHING: Final = Rows([], plain_numbers(np.empty(0, np.int64)))


def _in_order(found: Rows) -> Rows:
    """Timsort joins rows that are in order in parts in a fifth of the time of `text_order`."""
    return found.ordered(np.argsort(found.column, kind="stable"))


def _at(blocks: Iterator[Rows], live: Int64) -> Iterator[Rows]:
    """What stands at these positions."""
    for rows in blocks if len(live) else ():
        at = np.searchsorted(live, rows.pos)
        yield rows.take(live[np.minimum(at, len(live) - 1)] == rows.pos)


def _joined(parts: list[Rows]) -> Rows:
    """Runs as one."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    return _in_order(Rows.concat(parts))


# --- several runs as one ---


def joined(runs: list[Iterator[Rows]]) -> Iterator[Rows]:
    """Several runs as one, the oldest first: of rows with one name that of the last run."""
    runs = [filter(some, run) for run in runs]
    while len(runs) > 1:  # neighbours, so that each row is joined few times
        alone = runs[-1:] if len(runs) % 2 else []
        runs = [*map(_pair, runs[::2], runs[1::2]), *alone]
    return runs[0] if runs else iter(())


def some(rows: Rows) -> bool:
    """Whether there are any."""
    return len(rows) > 0


def _pair(older: Iterator[Rows], newer: Iterator[Rows]) -> Iterator[Rows]:
    """Two runs as one, in pieces of the older."""
    waiting = next(newer, None)
    for rows in older:
        last, parts = rows.names[-1], list[Rows]()
        while waiting is not None and waiting.names[0] <= last:
            stop = bisect_right(waiting.names, last)
            parts.append(waiting.part(0, stop))
            waiting = waiting.part(stop) if stop < len(waiting) else next(newer, None)
        yield _over(rows, Rows.concat(parts)) if parts else rows
    if waiting is not None:
        yield waiting
    yield from newer


def _over(old: Rows, new: Rows) -> Rows:
    """Rows in byte order of their names; of two with one name the new one."""
    found = _in_order(Rows.concat([old, new]))  # stable: the new one comes second
    kept = np.ones(len(found), bool)
    kept[:-1] = found.column[1:] != found.column[:-1]
    return found.take(kept)


def overlaid(parts: Iterable[Plain | Rows], changes: Rows) -> Iterator[Plain | Rows]:
    """The live rows of both, each in byte order; of those with one name that of the changes, which
    are not ASK."""
    at = 0
    for part in parts:
        stop = bisect_right(changes.names, part.last, at)
        if stop == at:
            yield part
        elif isinstance(part, Rows):
            yield from live(joined([iter([part]), iter([changes.part(at, stop)])]))
        else:
            both = part.changed(changes.part(at, stop))
            if len(both.pos):
                yield both
        at = stop
    yield from live(filter(some, [changes.part(at)]))


def live(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Without rows that say that a name is gone."""
    for rows in parts:
        kept = ~rows.gone
        if kept.all():
            yield rows
        elif kept.any():
            yield rows.take(kept)
