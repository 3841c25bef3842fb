"""A keyed permutation of 0 .. n-1 without an array of n: a Feistel network with cycle walking.

The network permutes the numbers of as many bits as n - 1 has, and what it leads to beyond n is
permuted again until it is below n: less than twice on average. A few numbers are shuffled instead.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from winkformats.arrays import Int64

UInt64 = npt.NDArray[np.uint64]
ROUNDS: Final = 6
WORD: Final = (1 << 64) - 1
FEW: Final = 1 << 10  # numbers that are shuffled: a network of few bits has few permutations
MIX: Final = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
SHIFT: Final = np.uint64(33)


def key_of(*parts: int) -> int:
    """Return a key of 64 bits that some numbers of 64 bits determine."""
    return xxh3_64_intdigest(struct.pack(f"<{len(parts)}Q", *(part & WORD for part in parts)))


class Permutation:
    """A permutation of 0 .. n-1 that a key determines.

    n  at least 1
    """

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        self._table: tuple[Int64, Int64] | None = None
        if n <= FEW:
            order = np.argsort(_mixed(np.arange(n, dtype=np.uint64), np.uint64(key)), kind="stable")
            self._table = order, np.argsort(order)
            return
        bits = (n - 1).bit_length()
        right = bits // 2
        self._right = np.uint64(right)
        self._low, self._high = np.uint64((1 << right) - 1), np.uint64((1 << bits - right) - 1)
        keys = struct.pack("<Q", key)
        self._keys = [np.uint64(xxh3_64_intdigest(keys, seed)) for seed in range(ROUNDS)]

    def at(self, numbers: Int64) -> Int64:
        """Return where some of 0 .. n-1 lead to, int64[k]."""
        return self._walk(numbers, inverse=False)

    def back(self, numbers: Int64) -> Int64:
        """Return the numbers that lead to these, int64[k]: the inverse of `at`."""
        return self._walk(numbers, inverse=True)

    def _walk(self, numbers: Int64, *, inverse: bool) -> Int64:
        if self._table is not None:
            return self._table[inverse][numbers]
        step = self._decoded if inverse else self._encoded
        found = step(numbers.astype(np.uint64))
        while True:
            beyond = np.flatnonzero(found >= self.n)
            if not len(beyond):
                return found.view(np.int64)
            found[beyond] = step(found[beyond])

    def _encoded(self, numbers: UInt64) -> UInt64:
        left, right = numbers >> self._right, numbers & self._low
        for at in range(0, ROUNDS, 2):
            left = left ^ (_mixed(right, self._keys[at]) & self._high)
            right = right ^ (_mixed(left, self._keys[at + 1]) & self._low)
        return (left << self._right) | right

    def _decoded(self, numbers: UInt64) -> UInt64:
        left, right = numbers >> self._right, numbers & self._low
        for at in range(ROUNDS - 2, -1, -2):
            right = right ^ (_mixed(left, self._keys[at + 1]) & self._low)
            left = left ^ (_mixed(right, self._keys[at]) & self._high)
        return (left << self._right) | right


def _mixed(half: UInt64, key: np.uint64) -> UInt64:
    """Return a hash of each number; products wrap."""
    found = (half ^ key) * MIX[0]
    found ^= found >> SHIFT
    found *= MIX[1]
    found ^= found >> SHIFT
    return found
