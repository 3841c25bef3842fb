"""Sorting names: into byte order, with a pair of numbers each, in bounded memory.

A full chunk is sorted and goes to a scratch file as a run; runs are merged on the way out. Chunks
that follow each other in order make one run: names that come in order are not sorted.
`ClashFinder` finds the names that are also a directory of other names, as they go by in order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import compress
from operator import lt
from typing import Final, NamedTuple

import numpy as np

from winkformats.arrays import Int64, texts_at
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError

CHUNK: Final = 4 << 20  # bytes of names, with what Python adds, that are sorted at a time
OVERHEAD: Final = 120  # bytes of a name beside its own: object, places in lists, pair
BLOCK: Final = 1024  # names read back at a time from each run
FIXED: Final = 20  # bytes of a name in the scratch file beside its own


class ClashFinder:
    """Takes all names in byte order, in pieces of any size.

    Names with a common beginning follow each other. So a name that its successor does not begin
    with has nothing below it, and the few others are looked up: whether name + "/" begins another.
    """

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self._open: list[bytes] = []  # name + "/" that all names since begin with, save for the /
        self._last: bytes | None = None

    def add(self, names: list[bytes]) -> None:
        """The next names. Cost: one comparison a name, more for directories."""
        if not names:
            return
        paths, self._open = self._open, []
        if self._last is not None and names[0].startswith(self._last):
            paths.append(self._last + b"/")
        follows = map(bytes.startswith, names[1:], names)
        for name in compress(names, follows):
            paths.append(name + b"/")
        self._last = names[-1]
        for path in paths:
            at = bisect_left(names, path)
            if at < len(names):
                if names[at].startswith(path):
                    self.found.append(path[:-1])
            elif self._last.startswith(path[:-1]):  # what is below may yet come
                self._open.append(path)


class Sorted(NamedTuple):
    """Names in byte order, and int64[n, 2]: position of the inode, hash of its key."""

    names: list[bytes]
    pairs: Int64


class _Block(NamedTuple):
    """Where a block lies in the scratch file: its pairs, uint32 lengths, names."""

    offset: int
    names: int
    size: int


class NameSorter:
    """Takes names in any order, gives them back in byte order.

    scratch  makes the file for the runs, where they do not fit into one chunk
    count    names taken
    clashing after `pairs`: names that are also a directory of others
    raises   OSError from the disk, but not from `add`: who puts names has other things to do
    cost     n log n in memory; each name is written and read once. Names that come in order
             are not sorted. Memory: twice the chunk, and 100 KB for each run
    """

    def __init__(self, scratch: Callable[[], Storage], chunk: int = CHUNK) -> None:
        self._scratch, self._limit = scratch, chunk
        self._storage: Storage | None = None
        self._names: list[bytes] = []
        self._pairs: list[Int64] = []
        self._room = chunk
        self._runs: list[list[_Block]] = []
        self._last = b""  # name of the last run
        self._end = 0  # of the scratch file
        self._finder: ClashFinder | None = None  # of the only run, as its names come
        self._error: OSError | None = None
        self.count = 0
        self.clashing: list[bytes] = []

    def add(self, names: list[bytes], lengths: Int64, pairs: Int64) -> None:
        """`lengths`: bytes of the names, int64[n]; `pairs`: int64[n, 2]."""
        self._names += names
        self._pairs.append(pairs)
        self.count += len(names)
        self._room -= int(lengths.sum()) + OVERHEAD * len(names)
        if self._room <= 0:
            self._put_by()

    def rest(self) -> None:
        """No more names for now: keep none in memory, if they did not all fit there."""
        if self._runs:
            self._put_by()

    def _put_by(self) -> None:
        try:
            self._flush()
        except OSError as error:
            self._error = error

    def pairs(self, live: Int64 | None = None) -> Iterator[Int64]:
        """The pairs in the order of the names; `live` as with `blocks`."""
        self._finish()
        if live is None and self._finder is not None:  # leave the names alone
            for block in self._runs[0]:
                yield self._read_pairs(block)
            self.clashing = self._finder.found
            return
        finder = ClashFinder()
        for names, pairs in self.blocks(live):
            finder.add(names)
            yield pairs
        self.clashing = finder.found

    def blocks(self, live: Int64 | None = None) -> Iterator[Sorted]:
        """Everything in order, some thousand names at a time; a block may be empty.

        live    ascending positions: what is at others is left out
        """
        self._finish()
        found = self._merged() if self._runs else iter([self._chunk()])
        return found if live is None else _at(found, live)

    def close(self) -> None:
        """Drop the scratch file. Idempotent."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _finish(self) -> None:
        """Only names that fit into one chunk stay in memory."""
        if self._error is not None:
            raise self._error
        if self._runs:
            self._flush()

    def _merged(self) -> Iterator[Sorted]:
        cursors = [_Cursor(map(self._read, run)) for run in self._runs]
        while any(cursor.more for cursor in cursors):
            limit = min(c.names[-1] for c in cursors if c.more)  # what is on the disk is >= limit
            yield _joined([c.take(limit) for c in cursors])
        yield _joined([c.rest() for c in cursors])

    def _chunk(self) -> Sorted:
        """What is in memory, in order."""
        if not self._names:
            return _NOTHING
        found = Sorted(self._names, np.concatenate(self._pairs))
        return found if all(map(lt, found.names, found.names[1:])) else _in_order(found)

    def _flush(self) -> None:
        names, pairs = self._chunk()
        self._names, self._pairs = [], []
        self._room = self._limit
        if not names or self._error is not None:
            return
        if self._storage is None:
            self._storage = self._scratch()
        if not self._runs or names[0] < self._last:
            self._finder = None if self._runs else ClashFinder()
            self._runs.append([])
        if self._finder is not None:
            self._finder.add(names)
        self._last = names[-1]
        for at in range(0, len(names), BLOCK):
            block = names[at : at + BLOCK]
            sizes = np.fromiter(map(len, block), np.uint32, len(block))
            parts = [pairs[at : at + BLOCK].tobytes(), sizes.tobytes(), b"".join(block)]
            size = self._storage.write(self._end, parts)
            self._runs[-1].append(_Block(self._end, len(sizes), size))
            self._end += size

    def _read(self, block: _Block) -> Sorted:
        count = block.names
        raw = np.frombuffer(self._bytes(block.offset, block.size), np.uint8)
        lengths = raw[16 * count : FIXED * count].view(np.uint32).astype(np.int64)
        names = texts_at(raw, np.cumsum(lengths) - lengths + FIXED * count, lengths)
        return Sorted(names, raw[: 16 * count].view(np.int64).reshape(-1, 2))

    def _read_pairs(self, block: _Block) -> Int64:
        data = self._bytes(block.offset, 16 * block.names)
        return np.frombuffer(data, np.int64).reshape(-1, 2)

    def _bytes(self, offset: int, size: int) -> bytes:
        assert self._storage is not None
        data = self._storage.read(offset, size)
        if len(data) != size:
            raise CorruptError("names are cut short", file=self._storage.name, offset=offset)
        return data


class _Cursor:
    """The next names of one run. `more`: whether there are some behind those in memory."""

    def __init__(self, blocks: Iterator[Sorted]) -> None:
        self._blocks = blocks
        self._next = next(blocks, None)
        self._advance()

    def _advance(self) -> None:
        self.names, self.pairs = self._next or _NOTHING
        self._at = 0
        self._next = next(self._blocks, None)

    @property
    def more(self) -> bool:
        return self._next is not None

    def take(self, limit: bytes) -> Sorted:
        """-> the names in memory up to the limit."""
        start = self._at
        self._at = stop = bisect_right(self.names, limit, start)
        out = Sorted(self.names[start:stop], self.pairs[start:stop])
        if stop == len(self.names):
            self._advance()
        return out

    def rest(self) -> Sorted:
        """-> all names in memory."""
        return Sorted(self.names[self._at :], self.pairs[self._at :])


_NOTHING: Final = Sorted([], np.empty((0, 2), np.int64))


def _in_order(found: Sorted) -> Sorted:
    name = found.names.__getitem__
    order = sorted(range(len(found.names)), key=name)
    return Sorted(list(map(name, order)), found.pairs[order])


def _at(blocks: Iterator[Sorted], live: Int64) -> Iterator[Sorted]:
    """What stands at these positions."""
    for names, pairs in blocks if len(live) else ():
        at = np.searchsorted(live, pairs[:, 0])
        kept = live[np.minimum(at, len(live) - 1)] == pairs[:, 0]
        yield Sorted(list(compress(names, kept.tolist())), pairs[kept])


def _joined(parts: list[Sorted]) -> Sorted:
    """Runs as one: timsort joins them in little more than the time of looking through them."""
    parts = [part for part in parts if part.names]
    if len(parts) < 2:
        return parts[0] if parts else _NOTHING
    names = [name for part in parts for name in part.names]
    return _in_order(Sorted(names, np.concatenate([part.pairs for part in parts])))
