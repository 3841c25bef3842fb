"""Table of a LogStore: recid -> position and length of its entry, and views as of a moment.

To make a view copies nothing: a page of the table is copied for the existing views before it
changes for the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Int64, UInt64
from winkformats.lazy import cached_property
from winkformats.logstore.entry import RECIDS, Entries
from winkfs.errors import Refusal

PAGE_BITS: Final = 12  # lower bits of a recid: its place in a page
PAGE_MASK: Final = (1 << PAGE_BITS) - 1
MIN_RECIDS: Final = 1 << 12  # recids that an empty table has room for
PART_RECIDS: Final = 1 << 18  # recids processed at a time
Words = npt.NDArray[np.uint32]
Page = tuple[UInt64, Words]


class Arrays:
    """The two columns: positions uint64[n], lengths uint32[n], and memoryviews for single look-ups.

    Position 0 means that there is no record. Lengths have the flags of `entry.Entries`.
    """

    __slots__ = ("lengths", "one_length", "one_position", "positions", "recids")

    def __init__(self, positions: UInt64, lengths: Words) -> None:
        self.positions, self.lengths, self.recids = positions, lengths, len(positions)
        self.one_position, self.one_length = positions.data, lengths.data

    @classmethod
    def empty(cls, room: int) -> Arrays:
        return cls(np.zeros(room, np.uint64), np.zeros(room, np.uint32))


class View:
    """The table as of a moment. Reading takes no lock.

    arrays  the table; undo: entries replaced by a change that was under way, None: there was none
    """

    arrays: Arrays
    undo: Entries | None

    def __init__(self) -> None:
        self.needs_files = True  # False: only the table is read
        self.saved: dict[int, Page] = {}  # pages as they were, before they changed

    @cached_property
    def _old(self) -> dict[int, tuple[int, int]]:
        if self.undo is None:
            return {}
        recids, positions, lengths = (column.tolist() for column in self.undo)
        return dict(zip(recids, zip(positions, lengths, strict=True), strict=True))

    def get(self, recid: int) -> tuple[int, int]:
        """Return position and length; position 0: there is no record."""
        arrays = self.arrays
        if not 0 < recid < arrays.recids:
            return 0, 0
        # First the table, then the copy: a page is copied before it changes.
        found = arrays.one_position[recid], arrays.one_length[recid]
        page = self.saved.get(recid >> PAGE_BITS)
        if page is not None:
            found = int(page[0][recid & PAGE_MASK]), int(page[1][recid & PAGE_MASK])
        return self._old.get(recid, found)

    def get_many(self, recids: Int64) -> Entries:
        """Return positions and lengths of many. A recid out of range has no record."""
        arrays = self.arrays
        within = np.where((recids > 0) & (recids < arrays.recids), recids, 0)
        if not arrays.recids:
            return Entries(recids, np.zeros(len(recids), np.uint64), within)
        positions, lengths = arrays.positions[within], arrays.lengths[within].astype(np.int64)
        saved = dict(self.saved)
        if saved:
            pages = within >> PAGE_BITS
            for number in np.intersect1d(pages, np.fromiter(saved, np.int64)).tolist():
                which = np.flatnonzero(pages == number)
                at = within[which] & PAGE_MASK
                positions[which] = saved[number][0][at]
                lengths[which] = saved[number][1][at]
        if old := self._old:
            for i in np.flatnonzero(np.isin(within, list(old))).tolist():
                positions[i], lengths[i] = old[int(within[i])]
        return Entries(recids, positions, lengths)

    def parts(self) -> Iterator[Entries]:
        """Yield all records, by recid."""
        recids = self.arrays.recids  # all are less
        for start in range(0, recids, PART_RECIDS):
            found = self.get_many(np.arange(start, min(start + PART_RECIDS, recids)))
            yield found.take(np.flatnonzero(found.positions))

    def columns(self) -> Page:
        """Return copies of both columns. Memory: 12 bytes a recid."""
        found = Arrays.empty(self.arrays.recids)
        for some in self.parts():
            found.positions[some.recids] = some.positions
            found.lengths[some.recids] = some.lengths
        return found.positions, found.lengths

    def __len__(self) -> int:
        return sum(len(some.recids) for some in self.parts())


class Table:
    """Positions as of the newest commit. One thread at a time changes them; any number read."""

    def __init__(self) -> None:
        self.arrays = Arrays.empty(MIN_RECIDS)
        self.top = 1  # all recids are less
        self._applying: Entries | None = None
        self.views: WeakValueDictionary[int, View] = WeakValueDictionary()  # by their `id`

    @property
    def memory(self) -> int:
        """Bytes of both columns."""
        return self.arrays.positions.nbytes + self.arrays.lengths.nbytes

    def load(self, positions: UInt64, lengths: Words) -> None:
        """Start from a saved table."""
        self.arrays, self.top = Arrays.empty(MIN_RECIDS), 1
        self.reserve(len(positions))
        self.arrays.positions[: len(positions)] = positions
        self.arrays.lengths[: len(lengths)] = lengths

    def view(self) -> View:
        """Return a view of the table as of now. Takes no lock and copies nothing."""
        view = View()
        # In this order: a change that misses this view is seen by the view.
        self.views[id(view)] = view
        view.undo = self._applying
        view.arrays = self.arrays
        return view

    def close(self, view: View) -> None:
        """Copy no more pages for a view."""
        self.views.pop(id(view), None)

    def reserve(self, recids: int) -> None:
        """Make room for all recids below `recids`. Raises Refusal if there is no memory."""
        self.top = max(self.top, recids)
        now = self.arrays
        if recids > now.recids:
            room = min(max(recids + recids // 8, now.recids * 2, MIN_RECIDS), RECIDS)
            try:
                arrays = Arrays.empty(room)
            except MemoryError as error:
                raise Refusal(f"no memory for a table of {recids} recids") from error
            arrays.positions[: now.recids] = now.positions
            arrays.lengths[: now.recids] = now.lengths
            self.arrays = arrays

    def _assign(self, entries: Entries) -> None:
        positions = entries.positions
        gone = entries.lengths == 0
        self.arrays.positions[entries.recids] = np.where(gone, np.uint64(0), positions)
        self.arrays.lengths[entries.recids] = entries.lengths

    def apply(self, entries: Entries) -> Entries:
        """Apply entries as one change; return the former entries of their recids.

        entries  in the order of the log: the last entry of a recid counts
        """
        if not len(entries.recids):
            return entries
        recids = entries.recids
        self.reserve(int(recids.max()) + 1)
        arrays = self.arrays
        lengths = arrays.lengths[recids].astype(np.int64)
        old = Entries(recids, arrays.positions[recids], lengths)
        self._applying = old
        try:
            views = [view for ref in self.views.valuerefs() if (view := ref()) is not None]
            if views:
                self._save(views, np.unique(recids >> PAGE_BITS))
            self._assign(entries)
        finally:
            self._applying = None
        return old

    def _save(self, views: list[View], pages: Int64) -> None:
        arrays = self.arrays
        for number in pages.tolist():
            missing = [view.saved for view in views if number not in view.saved]
            if missing:
                part = slice(number << PAGE_BITS, (number + 1) << PAGE_BITS)
                page = arrays.positions[part].copy(), arrays.lengths[part].copy()
                for saved in missing:
                    saved[number] = page
