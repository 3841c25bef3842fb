"""Orders of the rows of an epoch: where each position of the order leads to.

    Disk    as the rows lie
    Full    a permutation of all rows
    Blocks  blocks of neighbours, of which one from each part of the rows goes into a window, and
            the rows of a window are permuted: so a window is read in large pieces, and its rows are
            from everywhere

Each is a function of the number of rows and a key: any position is found at once, without an array
of the rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate
from typing import Final, Protocol

import numpy as np

from winkformats.arrays import Int64
from winkfs.loaders.permutation import Permutation, key_of

AT_ONCE: Final = 1 << 12  # rows that are read together in orders without windows


class Order(Protocol):
    """n rows in an order."""

    n: int

    def take(self, start: int, stop: int) -> Int64:
        """Return the rows at the positions [start, stop), int64[stop - start]."""

    def ahead(self, position: int) -> int:
        """Return the end of the positions that are best read together with this one."""


class Disk:
    """Rows as they lie."""

    def __init__(self, n: int) -> None:
        self.n = n

    def take(self, start: int, stop: int) -> Int64:
        return np.arange(start, stop)

    def ahead(self, position: int) -> int:
        return min(position + AT_ONCE, self.n)


class Full:
    """A permutation of all rows."""

    def __init__(self, n: int, key: int) -> None:
        self.n, self._all = n, Permutation(max(n, 1), key)

    def take(self, start: int, stop: int) -> Int64:
        return self._all.at(np.arange(start, stop))

    def ahead(self, position: int) -> int:
        return min(position + AT_ONCE, self.n)


class Blocks:
    """Windows of permuted blocks, whose rows are permuted.

    The blocks are cut into `window` parts of neighbours, and the blocks of each part are permuted.
    Window i has the i-th block of each part. Where the last parts have a block less, and the last
    block fewer rows, some windows are shorter.
    """

    def __init__(self, n: int, key: int, block: int, window: int) -> None:
        self.n, self._key, self._block = n, key, block
        blocks = -(-n // block)
        self._window = min(window, max(blocks, 1))
        self._count = -(-blocks // self._window)  # of windows, and of blocks of a part
        self._parts = [
            Permutation(max(self._count, 1), key_of(key, part)) for part in range(self._window)
        ]
        self._missing = defaultdict[int, dict[int, int]](dict)  # window -> part -> rows
        for number in range(n // block, self._window * self._count):
            part, at = divmod(number, self._count)
            missing = block - max(n - number * block, 0)
            if missing:
                where = int(self._parts[part].back(np.array([at]))[0])
                self._missing[where][part] = missing
        self._short = sorted(self._missing)
        lost = (sum(self._missing[at].values()) for at in self._short)
        self._lost = list(accumulate(lost, initial=0))
        self._made: tuple[int, Int64, Int64, Permutation] | None = None

    def _start(self, number: int) -> int:
        """Return the position at which a window begins."""
        whole = number * self._window * self._block
        return whole - self._lost[bisect_right(self._short, number - 1)]

    def _at(self, position: int) -> int:
        """Return the number of the window that has a position."""
        return bisect_right(range(self._count), position, key=self._start) - 1

    def ahead(self, position: int) -> int:
        return self._start(self._at(position) + 1)

    def take(self, start: int, stop: int) -> Int64:
        found = [np.empty(0, np.int64)]
        while start < stop:
            number = self._at(start)
            low, high = self._start(number), min(self._start(number + 1), stop)
            ends, firsts, rows = self._of(number)
            inside = rows.at(np.arange(start - low, high - low))
            part = np.searchsorted(ends, inside, "right")
            found.append(firsts[part] + inside)
            start = high
        return np.concatenate(found)

    def _of(self, number: int) -> tuple[Int64, Int64, Permutation]:
        """Return of a window where its blocks end in it, what has to be added there to get rows,
        and the permutation of its rows."""
        if self._made is None or self._made[0] != number:
            sizes = np.full(self._window, self._block)
            for part, missing in self._missing.get(number, {}).items():
                sizes[part] -= missing
            at = np.array([number])
            blocks = np.array([int(each.at(at)[0]) for each in self._parts])
            blocks += np.arange(self._window) * self._count
            ends = np.cumsum(sizes)
            rows = Permutation(max(int(ends[-1]), 1), key_of(self._key, -1, number))
            self._made = number, ends, blocks * self._block - (ends - sizes), rows
        return self._made[1:]
