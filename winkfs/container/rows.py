"""Rows of the catalog: what is known of files, as columns; sorted in bounded memory, and joined.

A full chunk is sorted and goes to a scratch file as a run; runs are merged on the way out. Chunks
that follow each other in order make one run: names that come in order are not sorted.
`ClashFinder` finds the names that are also a directory of other names, as they go by in order.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, compress
from operator import lt
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64, Strings, texts_at
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkfs.container.ondisk.inode import DEFAULT_MODES, UINT32, FileType
from winkfs.container.ondisk.typed import Column, Schema, Texts, split
from winkfs.container.where import BUILTIN, Condition
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

CHUNK: Final = 4 << 20  # bytes of names, with what Python adds, that are sorted at a time
WIDTH: Final = 8 * len(COLUMNS)  # bytes of the numbers of a row
OVERHEAD: Final = 110 + WIDTH  # bytes of a row beside its name: object, places in lists, numbers
BLOCK: Final = 1024  # rows read back at a time from each run
OBJECT: Final = 41  # bytes of a bytes object, and its place in an array

Blobs = npt.NDArray[np.object_]
Times = tuple[int | None, int | None]
"""[since, until), nanoseconds since the epoch; None: no bound."""
ALWAYS: Final[Times] = (None, None)


class Rows(NamedTuple):
    """n files in byte order of their names, and their COLUMNS, int64[n, 8].

    values  object[n]: the attributes that are columns of the user, bytes as ATTRS has them; None:
            none has any, or nobody has asked for them
    """

    names: list[bytes]
    numbers: Int64
    values: Blobs | None = None

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
        found, (since, until) = np.ones(len(self.names), bool), times
        if since is not None:
            found &= self.numbers[:, MTIME] >= since
        if until is not None:
            found &= self.numbers[:, MTIME] < until
        return found

    def meeting(self, where: Condition, schema: Schema) -> Bools:
        """Of which a condition is true, bool[n]. They have all values that it asks for."""
        blobs = [b""] * len(self.names) if self.values is None else self.values
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
            return [[None] * len(self.names)] * len(schema)
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

    def part(self, start: int, stop: int | None = None) -> Rows:
        """The rows [start, stop), without a copy of the numbers."""
        values = None if self.values is None else self.values[start:stop]
        return Rows(self.names[start:stop], self.numbers[start:stop], values)

    def take(self, chosen: Bools) -> Rows:
        """The chosen ones, bool[n]."""
        values = None if self.values is None else self.values[chosen]
        return Rows(list(compress(self.names, chosen.tolist())), self.numbers[chosen], values)

    def ordered(self, order: list[int]) -> Rows:
        """The rows with these indices, in this order."""
        values = None if self.values is None else self.values[order]
        return Rows(list(map(self.names.__getitem__, order)), self.numbers[order], values)

    @staticmethod
    def concat(parts: list[Rows]) -> Rows:
        """Parts one behind the other; at least one."""
        if len(parts) == 1:
            return parts[0]
        names = list(chain.from_iterable(part.names for part in parts))
        values = None
        if any(part.values is not None for part in parts):
            values = np.concatenate([
                np.full(len(part.names), b"", object) if part.values is None else part.values
                for part in parts
            ])  # fmt: skip
        return Rows(names, np.concatenate([part.numbers for part in parts]), values)


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
            self.add(rows.names)
            yield rows

    def add(self, names: list[bytes]) -> None:
        """The next names. Cost: one comparison a name, more for directories."""
        if names:
            self.add_some(names, compress(names, map(bytes.startswith, names[1:], names)))

    def add_some(self, names: list[bytes] | Strings, begins: Iterable[bytes]) -> None:
        """The next names, at least one, and which of them are the beginning of the next one."""
        paths, self._open = self._open, []
        if self._last is not None and names[0].startswith(self._last):
            paths.append(self._last + b"/")
        for name in begins:
            paths.append(name + b"/")
        self._last = names[-1]
        for path in paths:
            at = bisect_left(names, path)
            if at < len(names):
                if names[at].startswith(path):
                    self.found.append(path[:-1])
            elif self._last.startswith(path[:-1]):  # what is below may yet come
                self._open.append(path)


class _Block(NamedTuple):
    """Where a block lies in the scratch file: its numbers, uint32 lengths, names; where it is
    `typed`, behind the lengths of the names those of the values, and these behind the names."""

    offset: int
    rows: int
    size: int
    typed: bool


class NameSorter:
    """Takes rows in any order, gives them back in byte order of their names.

    Rows with one name come in the order in which they were taken.

    scratch  makes the file for the runs, where they do not fit into one chunk
    count    rows taken
    raises   OSError from the disk, but not from `add`: who puts files has other things to do
    cost     n log n in memory; each row is written and read once. Names that come in order are not
             sorted. Memory: twice the chunk, and 200 KB for each run
    """

    def __init__(self, scratch: Callable[[], Storage], chunk: int = CHUNK) -> None:
        self._scratch, self._limit = scratch, chunk
        self._storage: Storage | None = None
        self._waiting: list[Rows] = []
        self._room = chunk
        self._runs: list[list[_Block]] = []
        self._last = b""  # name of the last run
        self._end = 0  # of the scratch file
        self._error: OSError | None = None
        self.count = 0

    def add(self, rows: Rows) -> None:
        """Rows in any order."""
        self._waiting.append(rows)
        self.count += len(rows.names)
        self._room -= sum(map(len, rows.names)) + OVERHEAD * len(rows.names)
        if rows.values is not None:
            self._room -= sum(map(len, rows.values)) + OBJECT * len(rows.values)
        if self._room <= 0:
            self._put_by()

    def rest(self) -> None:
        """No more rows for now: keep none in memory, if they did not all fit there."""
        if self._runs:
            self._put_by()

    def _put_by(self) -> None:
        try:
            self._flush()
        except OSError as error:
            self._error = error

    def rows(self, live: Int64 | None = None) -> Iterator[Rows]:
        """Everything in order, some thousand rows at a time; a part may be empty.

        live    ascending positions of inodes: what is at others is left out
        """
        if self._error is not None:
            raise self._error
        if self._runs:  # only rows that fit into one chunk stay in memory
            self._flush()
        found = self._merged() if self._runs else iter([self._chunk()])
        return found if live is None else _at(found, live)

    def close(self) -> None:
        """Drop the scratch file. Idempotent."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _merged(self) -> Iterator[Rows]:
        cursors = [_Cursor(map(self._read, run)) for run in self._runs]
        while any(cursor.more for cursor in cursors):
            limit = min(c.names[-1] for c in cursors if c.more)  # what is on the disk is >= limit
            yield _joined([c.take(limit) for c in cursors])
        yield _joined([c.rest() for c in cursors])

    def _chunk(self) -> Rows:
        """What is in memory, in order."""
        found = Rows.concat(self._waiting) if self._waiting else NOTHING
        return found if all(map(lt, found.names, found.names[1:])) else _in_order(found)

    def _flush(self) -> None:
        rows = self._chunk()
        self._waiting = []
        self._room = self._limit
        if not rows.names or self._error is not None:
            return
        if self._storage is None:
            self._storage = self._scratch()
        if not self._runs or rows.names[0] <= self._last:
            self._runs.append([])
        self._last = rows.names[-1]
        for at in range(0, len(rows.names), BLOCK):
            block = rows.part(at, at + BLOCK)
            texts = block.names if block.values is None else [*block.names, *block.values]
            sizes = np.fromiter(map(len, texts), np.uint32, len(texts))
            parts = [block.numbers.tobytes(), sizes.tobytes(), b"".join(texts)]
            size = self._storage.write(self._end, parts)
            typed = block.values is not None
            self._runs[-1].append(_Block(self._end, len(block.names), size, typed))
            self._end += size

    def _read(self, block: _Block) -> Rows:
        assert self._storage is not None
        data = self._storage.read(block.offset, block.size)
        if len(data) != block.size:
            raise CorruptError("names are cut short", file=self._storage.name, offset=block.offset)
        count, raw = block.rows, np.frombuffer(data, np.uint8)
        texts_from = (WIDTH + 4 * (1 + block.typed)) * count
        lengths = raw[WIDTH * count : texts_from].view(np.uint32).astype(np.int64)
        starts = np.cumsum(lengths) - lengths + texts_from
        names = texts_at(raw, starts[:count], lengths[:count])
        numbers = raw[: WIDTH * count].view(np.int64).reshape(-1, len(COLUMNS))
        if not block.typed:
            return Rows(names, numbers)
        values = np.empty(count, object)
        pairs = zip(starts[count:].tolist(), lengths[count:].tolist(), strict=True)
        values[:] = [data[at : at + size] for at, size in pairs]
        return Rows(names, numbers, values)


class _Cursor:
    """The next rows of one run. `more`: whether there are some behind those in memory."""

    def __init__(self, blocks: Iterator[Rows]) -> None:
        self._blocks = blocks
        self._next = next(blocks, None)
        self._advance()

    def _advance(self) -> None:
        self._rows = self._next or NOTHING
        self.names, self._at = self._rows.names, 0
        self._next = next(self._blocks, None)

    @property
    def more(self) -> bool:
        return self._next is not None

    def take(self, limit: bytes) -> Rows:
        """-> the rows in memory with names up to the limit."""
        start = self._at
        self._at = stop = bisect_right(self.names, limit, start)
        out = self._rows.part(start, stop)
        if stop == len(self.names):
            self._advance()
        return out

    def rest(self) -> Rows:
        """-> all rows in memory."""
        return self._rows.part(self._at)


NOTHING: Final = Rows([], plain_numbers(np.empty(0, np.int64)))


def _in_order(found: Rows) -> Rows:
    return found.ordered(sorted(range(len(found.names)), key=found.names.__getitem__))


def _at(blocks: Iterator[Rows], live: Int64) -> Iterator[Rows]:
    """What stands at these positions."""
    for rows in blocks if len(live) else ():
        at = np.searchsorted(live, rows.pos)
        yield rows.take(live[np.minimum(at, len(live) - 1)] == rows.pos)


def _joined(parts: list[Rows]) -> Rows:
    """Runs as one: timsort joins them in little more than the time of looking through them."""
    parts = [part for part in parts if part.names]
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    return _in_order(Rows.concat(parts))


# --- several runs as one ---


def joined(runs: list[Iterator[Rows]]) -> Iterator[Rows]:
    """Several runs as one, the oldest first: of rows with one name that of the last run."""
    runs = [filter(some, run) for run in runs]
    while len(runs) > 1:
        runs = [*runs[:-2], _pair(*runs[-2:])]
    return runs[0] if runs else iter(())


def some(rows: Rows) -> bool:
    """Whether there are any."""
    return bool(rows.names)


def _pair(older: Iterator[Rows], newer: Iterator[Rows]) -> Iterator[Rows]:
    """Two runs as one, in pieces of the older."""
    waiting = next(newer, None)
    for rows in older:
        last, parts = rows.names[-1], list[Rows]()
        while waiting is not None and waiting.names[0] <= last:
            stop = bisect_right(waiting.names, last)
            parts.append(waiting.part(0, stop))
            waiting = waiting.part(stop) if stop < len(waiting.names) else next(newer, None)
        yield _over(rows, Rows.concat(parts)) if parts else rows
    if waiting is not None:
        yield waiting
    yield from newer


def _over(old: Rows, new: Rows) -> Rows:
    """Rows in byte order of their names; of two with one name the new one."""
    found = _in_order(Rows.concat([old, new]))  # stable: the new one comes second
    kept = np.ones(len(found.names), bool)
    kept[:-1] = [a != b for a, b in itertools.pairwise(found.names)]
    return found.take(kept)


def live(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Without rows that say that a name is gone."""
    for rows in parts:
        kept = ~rows.gone
        if kept.all():
            yield rows
        elif kept.any():
            yield rows.take(kept)
