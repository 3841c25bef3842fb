"""Rows of the catalog: what is known of files, as columns; several runs of them as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from winkformats.arrays import (
    Bools,
    Int64,
    TextColumn,
    UInt8,
    column_at,
    gather,
    text_column,
)
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


class Put(Protocol):
    """n files of one extent each or of none, as `writemany` puts them."""

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
    positions  of their inodes, int64[n]; pointers: of their contents, -1: see POINTER
    mtimes     as stored, int64[n]
    """

    files: Put
    keys: bytes
    positions: Int64
    pointers: Int64
    fileids: Int64
    mtimes: Int64


NOTHING: Final = Rows([], plain_numbers(np.empty(0, np.int64)))


# --- several runs as one ---


def in_order(found: Rows) -> Rows:
    """Timsort joins rows that are in order in parts in a fifth of the time of `text_order`."""
    return found.ordered(np.argsort(found.column, kind="stable"))


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
    found = in_order(Rows.concat([old, new]))  # stable: the new one comes second
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
