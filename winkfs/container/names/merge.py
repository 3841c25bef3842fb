"""Merging: a name order and what happened since, as one, in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np

from winkformats.arrays import Bools, Int64
from winkfs.container.names.conflicts import ClashFinder
from winkfs.container.names.order import NameOrder
from winkfs.container.names.sort import Sorted

PIECE: Final = 1 << 16  # pairs copied at a time
RARE: Final = 2000  # one name in so many that came or went: cheaper to look up than to count all


class Merge:
    """An order, and changes in byte order of their names: position, or 0 for one that is gone."""

    def __init__(self, order: NameOrder, changes: Iterable[Sorted]) -> None:
        self._order, self._changes = order, changes
        self._moved: list[bytes] = []  # names that came, went or changed, up to `limit`
        self._limit = order.count // RARE + 100
        self._finder: ClashFinder | None = None  # where all names are among the changes

    def pairs(self) -> Iterator[Int64]:
        """All pairs of the new order. Cost: 50 us a change, less where they lie close together."""
        order, done = self._order, 0
        self._moved = []
        self._finder = None if order.count else ClashFinder()
        for names, pairs in self._changes:
            if not names:
                continue
            at, same = self._places(names, done)
            self._note_moved(names, same, pairs[:, 0] != 0)
            if self._finder is not None:
                live = pairs[:, 0].tolist()
                self._finder.add([name for name, pos in zip(names, live, strict=True) if pos])
            end, first = int(at[-1]) + int(same[-1]), 0
            for start in range(done, max(end, done + 1), PIECE):
                stop = min(start + PIECE, end)
                last = len(at) if stop == end else int(np.searchsorted(at, stop))
                part = slice(first, last)
                yield _spliced(order.pairs(start, stop), at[part] - start, same[part], pairs[part])
                first = last
            done = end
        for start in range(done, order.count, PIECE):
            yield order.pairs(start, start + PIECE)

    def clashes(self, new: NameOrder, files_among: Callable[[list[bytes]], int]) -> int:
        """CLASHES of the new order, after `pairs`.

        files_among  tells how many of some names are files
        cost         200 us a name that came, went or changed, or 0.3 us for each that is there
        """
        if self._finder is not None:
            return files_among(self._finder.found)
        if self._order.clashes or len(self._moved) > self._limit:
            return files_among(find_clashes(new))
        touched = sorted({part for name in self._moved for part in _with_directories(name)})
        return files_among(_clashing(new, touched))

    def _places(self, names: list[bytes], low: int) -> tuple[Int64, Bools]:
        """For each name its index in the order, int64[n], and whether it is there, bool[n]."""
        order = self._order
        at, same = np.empty(len(names), np.int64), np.zeros(len(names), bool)
        for i, name in enumerate(names):
            at[i] = low = order.lower_bound(name, low)
            same[i] = low < order.count and order.name(low) == name
        return at, same

    def _note_moved(self, names: list[bytes], same: Bools, stays: Bools) -> None:
        for i in np.flatnonzero(same | stays).tolist():
            if len(self._moved) > self._limit:
                return
            self._moved.append(names[i])


def find_clashes(order: NameOrder) -> list[bytes]:
    """Names of an order that are also a directory of others. Cost: 0.3 us a name."""
    finder = ClashFinder()
    for start in range(0, order.count, PIECE):
        finder.add(order.names(start, start + PIECE))
    return finder.found


def _spliced(old: Int64, at: Int64, same: Bools, new: Int64) -> Int64:
    """Pairs with others put in before the indices `at`, in the place of what is there if `same`."""
    comes = new[:, 0] != 0
    kept = np.ones(len(old), bool)
    kept[at[same]] = False
    joined: Int64 = np.insert(old, at[comes], new[comes], axis=0)
    joined = joined[np.insert(kept, at[comes], True)]
    return joined


def _with_directories(name: bytes) -> list[bytes]:
    """A name and all that it has before a slash."""
    found = [name]
    at = name.find(b"/")
    while at >= 0:
        found.append(name[:at])
        at = name.find(b"/", at + 1)
    return found


def _clashing(order: NameOrder, names: list[bytes]) -> list[bytes]:
    """Those of these ascending names that are in the order, and a directory of others there."""
    found, at = [], 0
    for name in names:
        at = order.lower_bound(name, at)
        if at < order.count and order.name(at) == name:
            below = order.lower_bound(name + b"/", at)
            if below < order.count and order.name(below).startswith(name + b"/"):
                found.append(name)
    return found
