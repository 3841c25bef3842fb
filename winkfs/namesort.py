"""Names with a pair of numbers each, put into byte order in bounded memory.

A full chunk is sorted and goes to a scratch file as a run; runs are merged on the way out. Chunks
that follow each other in order make one run: names that come in order are not sorted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from operator import lt
from typing import Final, NamedTuple

import numpy as np

from winkformats.errors import CorruptError
from winkformats.storage import Storage
from winkfs.rows import Int64

CHUNK: Final = 48 << 20  # bytes of names, with what Python adds, that are sorted at a time
OVERHEAD: Final = 120  # bytes of a name beside its own: object, places in lists, pair
BLOCK: Final = 2048  # names read back at a time from each run


class Sorted(NamedTuple):
    """Names in byte order, and int64[n, 2]: position of the inode, hash of its key."""

    names: list[bytes]
    pairs: Int64


class _Block(NamedTuple):
    """Where a block lies in the scratch file: uint32 lengths, pairs, names."""

    offset: int
    names: int
    size: int


class NameSorter:
    """Takes names in any order, gives them back once in byte order; equal ones as they came.

    scratch  makes the file for the runs, which is closed at the end
    raises   OSError from the disk
    cost     n log n in memory; each name is written and read once
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

    def add(self, names: list[bytes], pairs: Int64) -> None:
        """`pairs`: int64[n, 2]."""
        self._names += names
        self._pairs.append(pairs)
        self._room -= sum(map(len, names)) + OVERHEAD * len(names)
        if self._room <= 0:
            self._flush()

    def blocks(self) -> Iterator[Sorted]:
        """Everything in order, some thousand names at a time."""
        self._flush()
        cursors = [_Cursor(self._read(run)) for run in self._runs]
        while any(cursor.more for cursor in cursors):
            # What is not in memory yet is >= limit. Names equal to it go out in the order of the
            # runs: from the runs behind `first` only when that has no more of them on the disk.
            limit, first = min((c.names[-1], i) for i, c in enumerate(cursors) if c.more)
            found = [c.take(limit, i <= first) for i, c in enumerate(cursors)]
            yield _joined([part for part in found if part.names])
        rest = _joined([Sorted(c.names, c.pairs) for c in cursors if c.names])
        if rest.names:
            yield rest

    def close(self) -> None:
        """Drop the scratch file. Safe to call twice."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _flush(self) -> None:
        if not self._names:
            return
        found = _in_order(self._names, np.concatenate(self._pairs))
        self._names, self._pairs, self._room = [], [], self._limit
        if self._storage is None:
            self._storage = self._scratch()
        if not self._runs or found.names[0] < self._last:
            self._runs.append([])
        self._last = found.names[-1]
        for at in range(0, len(found.names), BLOCK):
            names, pairs = found.names[at : at + BLOCK], found.pairs[at : at + BLOCK]
            lengths = np.fromiter(map(len, names), np.uint32, len(names))
            parts = [lengths.tobytes(), pairs.tobytes(), b"".join(names)]
            size = self._storage.write(self._end, parts)
            self._runs[-1].append(_Block(self._end, len(names), size))
            self._end += size

    def _read(self, run: list[_Block]) -> Iterator[Sorted]:
        assert self._storage is not None
        for offset, count, size in run:
            data = self._storage.read(offset, size)
            if len(data) != size:
                raise CorruptError("names are cut short", file=self._storage.name, offset=offset)
            lengths = np.frombuffer(data, np.uint32, count)
            pairs = np.frombuffer(data, np.int64, 2 * count, 4 * count).reshape(-1, 2)
            ends = np.cumsum(lengths, dtype=np.int64) + 20 * count
            starts = ends - lengths
            spans = zip(starts.tolist(), ends.tolist(), strict=True)
            yield Sorted([data[a:b] for a, b in spans], pairs)


class _Cursor:
    """The next names of one run. `more`: whether there are some behind those in memory."""

    def __init__(self, blocks: Iterator[Sorted]) -> None:
        self._blocks = blocks
        self._next = next(blocks, None)
        self._advance()

    def _advance(self) -> None:
        self.names, self.pairs = self._next or Sorted([], np.empty((0, 2), np.int64))
        self._next = next(self._blocks, None)

    @property
    def more(self) -> bool:
        return self._next is not None

    def take(self, limit: bytes, inclusive: bool) -> Sorted:
        """-> the names in memory below the limit; inclusive: and those equal to it."""
        n = (bisect_right if inclusive else bisect_left)(self.names, limit)
        out = Sorted(self.names[:n], self.pairs[:n])
        if n < len(self.names):
            self.names, self.pairs = self.names[n:], self.pairs[n:]
        else:
            self._advance()
        return out


def _in_order(names: list[bytes], pairs: Int64) -> Sorted:
    if all(map(lt, names, names[1:])):
        return Sorted(names, pairs)
    order = sorted(range(len(names)), key=names.__getitem__)
    return Sorted([names[i] for i in order], pairs[order])


def _joined(parts: list[Sorted]) -> Sorted:
    """Runs as one; sorting joins them in the time of looking through them."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Sorted([], np.empty((0, 2), np.int64))
    names = [name for part in parts for name in part.names]
    return _in_order(names, np.concatenate([part.pairs for part in parts]))
