"""The names that a writer puts, kept for a name order that need not read them again."""

from __future__ import annotations

from typing import Final

import numpy as np

from winkfs.container.names.sort import NameSorter
from winkfs.container.rows import Rows, hash_rows

TOGETHER: Final = 1024  # names put one by one that are hashed at a time


class NameTrail:
    """Names put into a container since its data file ended at `since`; some are no longer live.

    raises  OSError from the disk
    """

    def __init__(self, sorter: NameSorter, htalgo: int, since: int) -> None:
        self.since = since
        self._sorter, self._htalgo = sorter, htalgo
        self._keys: list[bytes] = []
        self._positions: list[int] = []

    def add(self, key: bytes, pos: int) -> None:
        """One name. Cost: 1 us."""
        self._keys.append(key)
        self._positions.append(pos)
        if len(self._keys) >= TOGETHER:
            self._flush()

    def add_many(self, keys: list[bytes], rows: Rows) -> None:
        names = [key[:-3] for key in keys]
        lengths = np.fromiter(map(len, names), np.int64, len(names))
        hashes = rows.slot_bits().astype(np.int64)
        self._sorter.add(names, lengths, np.stack([rows.pos, hashes], 1))

    def sorter(self) -> NameSorter:
        """What sorts them; all of them are in it."""
        self._flush()
        return self._sorter

    def close(self) -> None:
        """Drop everything. Safe to call twice."""
        self._sorter.close()

    def _flush(self) -> None:
        if self._keys:
            positions = np.array(self._positions, np.int64)
            keys, self._keys, self._positions = self._keys, [], []
            self.add_many(keys, hash_rows(self._htalgo, keys, positions))
