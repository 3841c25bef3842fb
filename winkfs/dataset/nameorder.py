"""The visible names of all shards in byte order: what `container.names.order` is for one container.

Its entries are rows, see `namerows`. Made at once when a data set is mounted.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Int64
from winkfs.container.names.order import gallop
from winkfs.container.ondisk.inode import FileType
from winkfs.dataset.namerows import Rows, sort

FEW: Final = 1 << 10  # names that are put into an order one by one, or a part of all names:
PART: Final = 64
SAMPLE: Final = 1 << 14  # names remembered for searches, at most


class MergedOrder:
    """Has what listings ask of a `winkfs.container.names.order.NameOrder`; entries are rows.

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

        cost    as `merged`, but where few names come: 10 ns a name, and 20 us for each that comes
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
        """The index of a name, -1: there is none. Cost: 5 us among 100,000."""
        at = self.lower_bound(name)
        return at if at < self.count and self.name(at) == name else -1

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
