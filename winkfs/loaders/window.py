"""Windows: rows of a shard on object storage that are read together, ahead of their use.

What they take is requested in large pieces, and lies in a file without a name on the disk of this
machine, from which rows are then read as from a local container.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import Final

import numpy as np

from winkformats.arrays import Bools, Int64
from winkfs.loaders.places import Words, positions, spans
from winkfs.loaders.reading import Found, ShardRows

GAP_BYTES: Final = 16 << 10  # between rows, that are requested with them
STEP_BYTES: Final = 32 << 20  # that are requested at a time


class Window:
    """The bytes of some rows. Threads may share it."""

    def __init__(self, shard: ShardRows, words: Words) -> None:
        """Request the rows. Raises OSError."""
        self._shard = shard
        pos = positions(words)
        low, high = pos - spans(words), np.minimum(pos + shard.tail, shard.end)
        order = np.argsort(low, kind="stable")
        low, high = low[order], np.maximum.accumulate(high[order])
        heads = np.flatnonzero(np.append(True, low[1:] > high[:-1] + GAP_BYTES))
        self._starts, self._stops = low[heads], high[np.append(heads[1:], len(low)) - 1]
        lengths = self._stops - self._starts
        self._places = np.cumsum(lengths) - lengths - self._starts  # to add, for offsets in `_data`
        with tempfile.TemporaryFile(prefix=".winkfs-window-", buffering=0) as file:
            for start, stop in _steps(self._starts, self._stops):
                for data in shard.brought(start, stop):
                    view = memoryview(data)
                    while view:
                        view = view[file.write(view) :]
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def has(self, words: Words) -> Bools:
        """Return which rows it has, bool[n]."""
        pos = positions(words)
        which = np.maximum(np.searchsorted(self._starts, pos, "right") - 1, 0)
        there: Bools = (pos - spans(words) >= self._starts[which]) & (pos < self._stops[which])
        return there

    def read(self, words: Words, content: bool, attributes: bool) -> Found:
        """Return rows that it has: see `ShardRows.read`."""
        pos = positions(words)
        at = pos + self._places[np.searchsorted(self._starts, pos, "right") - 1]
        return self._shard.read_in(self._data, at, words, content, attributes)


def _steps(starts: Int64, stops: Int64) -> list[tuple[Int64, Int64]]:
    """Cut ranges into groups of some STEP_BYTES."""
    low = [
        np.arange(a, b, STEP_BYTES) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
    cut = np.concatenate(low)
    ends = np.minimum(cut + STEP_BYTES, np.repeat(stops, list(map(len, low))))
    group = np.cumsum(ends - cut) // STEP_BYTES
    return [(cut[group == each], ends[group == each]) for each in np.unique(group).tolist()]
