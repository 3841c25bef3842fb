"""Checks of a whole name order against the files it should hold, in little memory."""

from __future__ import annotations

from operator import lt
from typing import TYPE_CHECKING, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkfs.container.names.conflicts import ClashFinder
from winkfs.container.names.order import UNKNOWN, NameOrder, key_hashes, tail
from winkfs.container.names.sort import NameSorter
from winkfs.container.ondisk.inode import FileType
from winkfs.container.ondisk.inodekeys import SUFFIX

if TYPE_CHECKING:
    from winkfs.container.store import Store

PIECE: Final = 1 << 15  # names looked at together


def same_names(store: Store, order: NameOrder, names: NameSorter, live: Int64) -> bool:
    """Whether an order of today holds all live files and nothing else, and says so rightly.

    names   the names that may be live
    live    ascending positions of those that are, int64[n]
    """
    at = 0
    for pairs in names.pairs(None if names.count == len(live) else live):
        if not np.array_equal(order.pairs(at, at + len(pairs)), pairs):
            return False
        at += len(pairs)
    if at != order.count:
        return False
    files = sum(not _is_directory(store, order, name) for name in names.clashing)
    return order.clashes in (UNKNOWN, files)


def _is_directory(store: Store, order: NameOrder, name: bytes) -> bool:
    at = order.lower_bound(name)
    inode = store.inode_at(int(order.positions(at, at + 1)[0]))[1]
    return inode.ftype == FileType.DIR


def were_names(store: Store, order: NameOrder, live: Int64) -> bool:
    """Whether an older order holds what was live when it was written; `live` as it is today.

    cost    0.5 us a name, and reads the tail; memory: 9 bytes a name
    """
    try:
        return _in_order(order, store.settings.htalgo) and _explained(store, order, live)
    except CorruptError:  # it points to what is no inode
        return False


def _in_order(order: NameOrder, htalgo: int) -> bool:
    """Whether names ascend, hashes are theirs, and CLASHES is possible."""
    finder, last = ClashFinder(), b""
    for start in range(0, order.count, PIECE):
        names = order.names(start, start + PIECE)
        hashes = key_hashes(htalgo, [name + SUFFIX for name in names])
        same = np.array_equal(order.pairs(start, start + PIECE)[:, 1], hashes)
        if not (same and last < names[0] and all(map(lt, names, names[1:]))):
            return False
        finder.add(names)
        last = names[-1]
    return UNKNOWN <= order.clashes <= len(finder.found)


def _explained(store: Store, order: NameOrder, live: Int64) -> bool:
    """Whether the order has all older files of today, and of others only names that changed."""
    positions = order.positions(0, order.count)
    older = live[: np.searchsorted(live, order.covered)]
    places = np.searchsorted(older, positions)
    there = np.zeros(order.count, bool)
    if len(older):
        there = older[np.minimum(places, len(older) - 1)] == positions
    if np.count_nonzero(there) != len(older):
        return False
    gone = {order.name(i) for i in np.flatnonzero(~there).tolist()}
    for name, _ in tail(store, order.covered) if gone else ():
        gone.discard(name)
    return not gone
