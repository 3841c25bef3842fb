"""The names of a mounted data set.

Rows         the files of all shards, numbered through
sort         rows into byte order of their names: eight bytes of all names are compared at a time,
             as numbers
MergedOrder  the visible rows in that order: what a `Catalog` is for one container
RowsBatch    rows as files that a directory shows, from the columns alone
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64, UInt8, rows_at, texts_at
from winkfs.container.ondisk.cols import FileArray
from winkfs.container.ondisk.inode import FileType
from winkfs.mounting.ids import POSITION
from winkfs.mounting.listing import MAKE, MODES, Batch
from winkfs.names import gallop
from winkmount.source import Attr

if TYPE_CHECKING:
    from winkfs.mounting.shards import ShardFiles

Words = npt.NDArray[np.uint64]

SOME: Final = 1 << 20  # names that are sorted at once
WORD: Final = 8  # bytes of the names that are compared at a time
FEW: Final = 1 << 10  # names that are put into an order one by one, or a part of all names:
PART: Final = 64
SAMPLE: Final = 1 << 14  # names remembered for searches, at most
FEW_ATTRS: Final = 24  # attributes that are cheaper one by one than as columns
_KEPT: Final = np.array([0, *(~0 << 8 * (WORD - k) & ~(~0 << 64) for k in range(1, 9))], np.uint64)


class Rows:
    """The files of several shards, numbered through.

    chunks  columns, those of one shard behind those of another
    owners  the shard of each chunk
    base    int64[chunks + 1]  row at which each begins; the last: `count`, their number
    """

    def __init__(self, shards: Iterable[ShardFiles]) -> None:
        pairs = [(chunk, shard) for shard in shards for chunk in shard.chunks]
        self.chunks = [chunk for chunk, _ in pairs]
        self.owners = [shard for _, shard in pairs]
        counts = [len(chunk) for chunk in self.chunks]
        self.base = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._bases: list[int] = self.base.tolist()
        self.count = self._bases[-1]
        self._number = np.uint16 if len(pairs) < 0xFFFF else np.int64  # 16 bits: a radix sort

    def visible(self) -> Int64:
        """The rows that are to be seen, ascending."""
        found = [owner.visible(chunk) + base for chunk, owner, base
                 in zip(self.chunks, self.owners, self._bases, strict=False)]  # fmt: skip
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def place(self, row: int) -> tuple[int, int]:
        """-> number of the chunk, row in it."""
        chunk = bisect.bisect_right(self._bases, row) - 1
        return chunk, row - self._bases[chunk]

    def parts(self, rows: Int64) -> Iterator[tuple[int, Any, Int64]]:
        """By chunk: its number, which of the `rows` are in it (an index), and their rows there."""
        if not len(rows):
            return
        chunks = (np.searchsorted(self.base, rows, "right") - 1).astype(self._number)
        first = int(chunks[0])
        if (chunks == first).all():
            yield first, slice(None), rows - self._bases[first]
            return
        order = np.argsort(chunks, kind="stable")
        ordered = chunks[order]
        stops = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        start = 0
        for stop in (*stops.tolist(), len(rows)):
            which = order[start:stop]
            chunk = int(ordered[start])
            yield chunk, which, rows[which] - self._bases[chunk]
            start = stop

    def texts(self, number: int, at: Int64) -> list[bytes]:
        """The names of rows of one chunk."""
        chunk = self.chunks[number]
        begin = chunk.name_ends[at]
        lengths = chunk.name_ends[at + 1] - begin
        if isinstance(chunk.name_bytes, FileArray):
            return chunk.name_bytes.texts(begin, lengths)
        return texts_at(chunk.name_bytes, begin, lengths)

    def name(self, row: int) -> bytes:
        number, at = self.place(row)
        chunk = self.chunks[number]
        begin, end = chunk.name_ends[at : at + 2].tolist()
        return chunk.name_bytes[begin:end].tobytes()

    def names(self, rows: Int64) -> list[bytes]:
        """The names of rows."""
        found: npt.NDArray[Any] = np.empty(len(rows), object)
        for number, which, at in self.parts(rows):
            found[which] = self.texts(number, at)
        names: list[bytes] = found.tolist()
        return names

    def words(self, rows: Int64, offset: int) -> tuple[Words, UInt8]:
        """Bytes [offset, offset + 8) of the names as numbers that compare like them, and how many
        bytes the names have from there on, 0 .. 9 (more than 8)."""
        words, left = np.empty(len(rows), np.uint64), np.empty(len(rows), np.uint8)
        for number, which, at in self.parts(rows):
            chunk = self.chunks[number]
            begin, end = chunk.name_ends[at] + offset, chunk.name_ends[at + 1]
            words[which] = _words(np.asarray(chunk.name_bytes), begin, end)
            left[which] = np.clip(end - begin, 0, WORD + 1)
        return words, left


def _words(raw: npt.NDArray[np.uint8], begin: Int64, end: Int64) -> Words:
    """Eight bytes from `begin` on, zeros from `end` on."""
    if len(raw) < WORD:
        raw = np.concatenate([raw, np.zeros(WORD, np.uint8)])
    at = np.minimum(begin, len(raw) - WORD)
    words = rows_at(raw, at, WORD).view(">u8")[:, 0].astype(np.uint64)
    late = begin > at  # at the end of the buffer: they stand further behind
    if late.any():
        words[late] <<= (8 * np.minimum(begin[late] - at[late], 7)).astype(np.uint64)
    kept: Words = words & _KEPT[np.clip(end - begin, 0, WORD)]
    return kept


def sort(rows: Rows, chosen: Int64) -> tuple[Int64, Int64]:
    """The chosen rows in byte order of their names; no two of them have the same.

    ->      int64[n], and the indices of the names that others may be below: the next name begins
            with them, and goes on with no more than a /
    cost    a pass over the names for each 8 bytes that they have in common; twice that from SOME
            names on. Memory: 8 bytes a name, and 80 MiB while it runs
    """
    if len(chosen) <= SOME:
        return _sort(rows, chosen)
    runs = [_sort(rows, chosen[at : at + SOME])[0] for at in range(0, len(chosen), SOME)]
    some = sorted(rows.names(chosen[:: len(chosen) // (64 * len(runs))]))
    places = [[bisect.bisect_left(run, name, key=rows.name) for run in runs]
              for name in some[64::64]]  # fmt: skip
    found, above, at = np.empty(len(chosen), np.int64), [], 0
    edges = [[0] * len(runs), *places, [len(run) for run in runs]]
    for low, high in pairwise(edges):  # what is between two names, of all runs
        part = np.concatenate([run[a:b] for run, a, b in zip(runs, low, high, strict=True)])
        stop = at + len(part)
        found[at:stop], indices = _sort(rows, part)
        above += [indices + at, np.arange(max(stop - 1, at), stop)]  # the last: who knows
        at = stop
    return found, np.concatenate(above)


def _sort(rows: Rows, chosen: Int64) -> tuple[Int64, Int64]:
    """All at once. Memory: 80 bytes a name."""
    found = chosen.copy()
    todo = np.arange(len(found))  # places in `found` that are not decided yet, ascending
    group = np.zeros(len(found), np.int64)  # those with one number begin alike
    offset, above = 0, [todo[:0]]
    while len(todo):
        part = found[todo]
        words, left = rows.words(part, offset)
        by = np.argsort(words) if group[0] == group[-1] else np.lexsort((words, group))
        found[todo] = part[by]
        words, left = words[by], left[by]  # the groups stay where they are
        near, more = group[1:] == group[:-1], left > WORD
        same = near & (words[1:] == words[:-1]) & (more[1:] | more[:-1])
        ends = np.flatnonzero(near & ~same & ~more[:-1])
        above.append(todo[ends[_may_be_above(words[ends], words[ends + 1], left[ends])]])
        tied = np.zeros(len(todo), np.bool_)
        tied[1:] = same
        tied[:-1] |= same
        todo, group = todo[tied], np.concatenate([[0], np.cumsum(~same)])[tied]
        offset += WORD
    return found, np.sort(np.concatenate(above))


def _may_be_above(words: Words, following: Words, left: UInt8) -> Bools:
    """Whether names that end after `left` bytes of their words begin those that follow. One that
    ends with its word, and is the beginning of another, is not decided before the next word."""
    begins = following & _KEPT[left] == words
    behind = following >> (8 * np.maximum(WORD - 1 - left.astype(np.int64), 0)).astype(
        np.uint64
    ) & np.uint64(0xFF)
    may: Bools = begins & (behind <= ord("/"))
    return may


class MergedOrder:
    """Has what listings ask of a `winkfs.container.catalog.Catalog`; entries are rows.

    rows     of which files; memory: 4 bytes a name
    count    names
    clashes  files, not directories, with whose name and a / another begins
    """

    def __init__(self, rows: Rows, order: npt.NDArray[Any]) -> None:
        """`order`: int64 or uint32[n]; for all that is visible see `merged` and `updated`."""
        self.rows = rows
        self._order = order.astype(np.uint32 if rows.count < 1 << 32 else np.int64, copy=False)
        self._sample: tuple[int, list[bytes]] | None = None
        self.count = len(self._order)
        self.clashes = 0

    # how it is made

    @classmethod
    def merged(cls, rows: Rows) -> Self:
        """Of all rows that are visible. Cost: see `sort`."""
        order, above = sort(rows, rows.visible())
        made = cls(rows, order)
        made.clashes = sum(map(made._is_clash, above.tolist()))
        return made

    def updated(self, rows: Rows) -> MergedOrder:
        """The same for other rows, of which some are those of this order.

        cost    as `merged`, but where few names come a copy, and a search for each that comes
        """
        if self.clashes:
            return self.merged(rows)
        kept, added = self._kept_and_added(rows)
        if len(added) > FEW + len(kept) // PART:
            return self.merged(rows)
        added, _ = sort(rows, added)
        old, at, places = MergedOrder(rows, kept), 0, []
        for name in rows.names(added):
            places.append(at := old.lower_bound(name, at))
        new = MergedOrder(rows, np.insert(old._order, places, added))
        new.clashes = new._clashes_of(place + i for i, place in enumerate(places))
        return new

    def _kept_and_added(self, rows: Rows) -> tuple[Int64, Int64]:
        """Rows of this order that are still visible, by name, and the others that are, ascending.
        As numbered now."""
        now = {
            id(chunk): base for chunk, base in zip(rows.chunks, rows.base.tolist(), strict=False)
        }
        base = np.array([now.get(id(chunk), -1) for chunk in self.rows.chunks], np.int64)
        kept = self._order.astype(np.int64)
        if not np.array_equal(base, self.rows.base[:-1]):
            chunk = np.searchsorted(self.rows.base, kept, "right") - 1
            kept += (base - self.rows.base[:-1])[chunk]
            kept = kept[base[chunk] >= 0]
        new = np.zeros(rows.count, np.bool_)
        new[rows.visible()] = True
        kept = kept[new[kept]]
        new[kept] = False
        return kept, np.flatnonzero(new)

    def _clashes_of(self, indices: Iterable[int]) -> int:
        """How many there are, where each has to do with one of these names."""
        found, seen = set(), {b""}
        for index in indices:
            found.add(index)
            path = self.name(index).rpartition(b"/")[0]
            while path not in seen:
                seen.add(path)
                found.add(self.find(path))
                path = path.rpartition(b"/")[0]
        return sum(map(self._is_clash, found - {-1}))

    def _is_clash(self, index: int) -> bool:
        number, row = self.rows.place(self.row(index))
        is_file = self.rows.chunks[number].ftype.item(row) != FileType.DIR
        return is_file and self._has_below(index)

    def _has_below(self, index: int) -> bool:
        below = self.name(index) + b"/"
        at = self.lower_bound(below, index + 1)
        return at < self.count and self.name(at).startswith(below)

    # what is asked of it

    def find(self, name: bytes) -> int:
        """The index of a name, -1: there is none. Cost: a search."""
        at = self.lower_bound(name)
        return at if at < self.count and self.name(at) == name else -1

    def positions(self, start: int, stop: int) -> Int64:
        """The rows with these indices, int64[n]."""
        return self._order[start:stop].astype(np.int64)

    def row(self, index: int) -> int:
        return self._order.item(index)  # type: ignore[no-any-return]

    def names(self, start: int, stop: int) -> list[bytes]:
        """The names with these indices."""
        return self.rows.names(self.positions(start, stop))

    def name(self, index: int) -> bytes:
        """The name with this index."""
        return self.rows.name(self._order.item(index))

    def lower_bound(self, name: bytes, low: int = 0) -> int:
        """See `Catalog.lower_bound`."""
        if low > 0:
            low, high = gallop(self.name, name, low, self.count)
        else:
            each, some = self._sampled()
            place = bisect.bisect_left(some, name)
            low, high = max((place - 1) * each + 1, 0), min(place * each, self.count)
        return bisect.bisect_left(range(self.count), name, low, high, key=self.name)

    def _sampled(self) -> tuple[int, list[bytes]]:
        """Each how many-th name is remembered for searches, and those."""
        if self._sample is None:
            each = self.count // SAMPLE + 1
            self._sample = each, self.rows.names(self._order[::each].astype(np.int64))
        return self._sample


class RowsBatch(Batch):
    """What the columns say of some rows. No names for the mount to remember: ids tell the place."""

    ids: list[int] = []  # noqa: RUF012 - never changed
    known: list[bytes] = []  # noqa: RUF012

    def __init__(self, rows: Rows, chosen: Int64, cut: int) -> None:
        """`chosen`: int64[n], rows in the order of their names; `cut`: as with `Batch`."""
        if len(chosen) <= FEW_ATTRS:
            self._each(rows, chosen.tolist())
        else:
            self._all(rows, chosen)
        self.odd = [i for i, attr in enumerate(self.attrs) if attr is None]
        self._cut(cut)

    def _each(self, rows: Rows, chosen: list[int]) -> None:
        self.names, self.attrs = [], []
        for row in chosen:
            number, at = rows.place(row)
            chunk = rows.chunks[number]
            self.names.append(chunk.name(at))
            odd = chunk.special.item(at) or chunk.ftype.item(at) == FileType.DIR
            self.attrs.append(None if odd else rows.owners[number].attr(chunk, at))

    def _all(self, rows: Rows, chosen: Int64) -> None:
        n = len(chosen)
        ids, sizes, mtimes, uids, gids = np.empty((5, n), np.int64)
        ftypes, special = np.empty((2, n), np.uint8)
        texts: npt.NDArray[Any] = np.empty(n, object)
        for number, which, at in rows.parts(chosen):
            chunk, owner = rows.chunks[number], rows.owners[number]
            ids[which] = chunk.pos[at] | owner.number << POSITION
            sizes[which], mtimes[which] = chunk.size[at], chunk.mtime[at]
            ftypes[which], special[which] = chunk.ftype[at], chunk.special[at]
            uids[which], gids[which] = owner.owner
            texts[which] = rows.texts(number, at)
        self.names = texts.tolist()
        columns = ids, MODES[ftypes], sizes, mtimes, uids, gids
        self.attrs = list(map(
            MAKE, repeat(Attr), zip(*(column.tolist() for column in columns), repeat(0))
        ))  # fmt: skip
        for i in np.flatnonzero((special != 0) | (ftypes == FileType.DIR)).tolist():
            self.attrs[i] = None
