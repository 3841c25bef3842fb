"""The visible names of all shards in byte order: what `winkfs.nameorder` is for one container.

An entry of the order is a row: the rows of the first shard's columns, then those of the second ...
Made at once by sorting eight bytes of all names at a time; 4 bytes a name stay in memory.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from winkformats.gather import rows_at, texts_at
from winkfs.inode import FileType
from winkfs.rows import Int64

if TYPE_CHECKING:
    from winkfs.dataset.shardfiles import ShardFiles

Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

WORD: Final = 8  # bytes of the names that are compared at a time
PROBES: Final = 1 << 13  # names remembered for searches
_KEPT: Final = np.array([0, *(~0 << 8 * (WORD - k) & ~(~0 << 64) for k in range(1, 9))], np.uint64)


class Rows:
    """The files of several shards, numbered through.

    chunks  columns, those of one shard behind those of another
    owners  the shard of each chunk
    base    int64[chunks + 1]  row at which each begins; the last: their number
    """

    def __init__(self, shards: Iterable[ShardFiles]) -> None:
        pairs = [(chunk, shard) for shard in shards for chunk in shard.chunks]
        self.chunks = [chunk for chunk, _ in pairs]
        self.owners = [shard for _, shard in pairs]
        counts = [len(chunk) for chunk in self.chunks]
        self.base = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._bases: list[int] = self.base.tolist()
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
        return texts_at(chunk.name_bytes, begin, chunk.name_ends[at + 1] - begin)

    def name(self, row: int) -> bytes:
        number, at = self.place(row)
        chunk = self.chunks[number]
        ends = chunk.name_ends
        return chunk.name_bytes[ends.item(at) : ends.item(at + 1)].tobytes()

    def names(self, rows: Int64) -> list[bytes]:
        """Cost: 0.2 us a name."""
        found: npt.NDArray[Any] = np.empty(len(rows), object)
        for number, which, at in self.parts(rows):
            found[which] = self.texts(number, at)
        names: list[bytes] = found.tolist()
        return names

    def words(self, rows: Int64, offset: int) -> tuple[Words, Int64]:
        """Bytes [offset, offset + 8) of the names as numbers that compare like them, and how many
        bytes the names have from there on, 0 .. 9 (more than 8)."""
        words, left = np.empty(len(rows), np.uint64), np.empty(len(rows), np.int64)
        for number, which, at in self.parts(rows):
            chunk = self.chunks[number]
            begin, end = chunk.name_ends[at] + offset, chunk.name_ends[at + 1]
            words[which] = _words(chunk.name_bytes, begin, end)
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
    cost    0.3 us a name where few begin alike, else 0.2 us for each 8 bytes that they have in
            common; memory: 60 bytes a name, while it runs
    """
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


def _may_be_above(words: Words, following: Words, left: Int64) -> Bools:
    """Whether names that end in their last word, after `left` bytes, begin those that follow."""
    begins = following & _KEPT[left] == words
    behind = following >> (8 * np.maximum(WORD - 1 - left, 0)).astype(np.uint64) & np.uint64(0xFF)
    may: Bools = begins & ((left == WORD) | (behind <= ord("/")))
    return may


class MergedOrder:
    """Has what listings ask of a `winkfs.nameorder.NameOrder`; entries are rows.

    rows     of which files; memory: 4 bytes a name
    count    names
    clashes  files, not directories, with whose name and a / another begins
    """

    def __init__(self, rows: Rows) -> None:
        """Of the rows that are visible. Cost: see `sort`."""
        self.rows = rows
        order, above = sort(rows, rows.visible())
        self._order = order.astype(np.uint32 if int(rows.base[-1]) < 1 << 32 else np.int64)
        self._probes: dict[int, bytes] = {}
        self.count = len(self._order)
        self.clashes = sum(map(self._clashes, above.tolist()))

    def _clashes(self, index: int) -> bool:
        number, row = self.rows.place(self.row(index))
        is_file = self.rows.chunks[number].ftype.item(row) != FileType.DIR
        return is_file and self._has_below(index)

    def find(self, name: bytes) -> int:
        """The index of a name, -1: there is none. Cost: 10 us."""
        at = bisect.bisect_left(range(self.count), name, key=self._probe)
        return at if at < self.count and self.name(at) == name else -1

    def _probe(self, index: int) -> bytes:
        """Those that all searches look at first are remembered."""
        name = self._probes.get(index)
        if name is None:
            name = self.name(index)
            if len(self._probes) < PROBES:
                self._probes[index] = name
        return name

    def _has_below(self, index: int) -> bool:
        below = self.name(index) + b"/"
        at = self.lower_bound(below, index + 1)
        return at < self.count and self.name(at).startswith(below)

    def positions(self, start: int, stop: int) -> Int64:
        """The rows with these indices, int64[n]."""
        return self._order[start:stop].astype(np.int64)

    def row(self, index: int) -> int:
        return self._order.item(index)  # type: ignore[no-any-return]

    def names(self, start: int, stop: int) -> list[bytes]:
        """The names with these indices. Cost: 0.2 us a name."""
        return self.rows.names(self.positions(start, stop))

    def name(self, index: int) -> bytes:
        """Cost: 1 us."""
        return self.rows.name(self._order.item(index))

    def lower_bound(self, name: bytes, low: int = 0) -> int:
        """See `NameOrder.lower_bound`."""
        high, step = self.count, 1
        if low > 0:
            while low < high:
                probe = min(low + step, high) - 1
                if self.name(probe) >= name:
                    high = probe
                    break
                low, step = probe + 1, 2 * step
        return bisect.bisect_left(range(self.count), name, low, high, key=self.name)
