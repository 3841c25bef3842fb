"""Chain: an inode that has only the differences from an older inode of its file, so that the cost
of a change does not depend on the size of the file. With INCHAIN and PAIROFF.

    nexti    position of the inode below: an earlier entry "<name>/I0" of the data file with the
             same FILEID, whatever its name and its delflag; it may have a NEXTI, too
    triple   (-1, 0, n): n bytes as in the content of the inode below, at the same offset

The chain ends at an inode with NEXTI 0, which has all of its extents. Of an inode below, only
FILEID, LSIZE, NEXTI and triples are used. A chain has at most LINKS inodes; a writer makes each one
less than half as large as the one below it, so it has about a dozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkformats.kv.entry import KVEntry
from winkfs.container.ondisk.inode import (
    BELOW,
    Extent,
    ExtentArray,
    Inode,
    InodeForm,
    Link,
    cut,
    joined_rows,
)
from winkfs.names import INODE

LINKS: Final = 64  # inodes of a chain, at most
MIN_CHAIN_EXTENTS: Final = 128  # beyond which a writer makes chains: fewer take 3 KB
RATIO: Final = 2  # of the bytes of an inode to those of the inode above it, at least
INODE_OVERHEAD: Final = 160  # bytes of an inode's entry beside its extents, about


def whole(
    inode: Inode,
    pos: int,
    entry_at: Callable[[int], KVEntry],
    form: InodeForm,
    file: str,
    problem: Callable[[CorruptError], None] | None = None,
) -> Inode:
    """Return an inode with all its extents.

    inode    as it was decoded from the entry at `pos`
    entry_at reads and verifies the entry at a position
    problem  called with damage; extents that are unknown because of it are left BELOW. None:
             CorruptError is raised
    """
    if not inode.nexti:
        return inode
    extents = ExtentArray.of(inode.extents)
    links = [link_of(pos, inode.size, inode)]
    try:
        for at, found in _below(inode, pos, entry_at, form, file):
            links.append(link_of(at, found.size, found))
            low = links[-1].extents
            if _reach(extents) > sum_of(low):
                raise CorruptError("NEXTI: it has fewer bytes", file=file, offset=at)
            extents = laid_over(extents, low)
    except CorruptError as error:
        if problem is None:
            raise
        problem(error)
    return replace(inode, extents=extents, nexti=0, links=tuple(links))


def _below(
    inode: Inode, pos: int, entry_at: Callable[[int], KVEntry], form: InodeForm, file: str
) -> Iterator[tuple[int, Inode]]:
    """Yield the inodes below one, each with its position. Raises CorruptError."""
    at, count, fileid = inode.nexti, 1, inode.fileid
    while at:
        if not 0 < at < pos or count == LINKS:
            raise CorruptError("NEXTI", file=file, offset=pos, found=at)
        entry = entry_at(at)
        if not entry.key.endswith(INODE):
            raise CorruptError("NEXTI points to no inode", file=file, offset=pos, found=at)
        found = Inode.decode(entry.value, form, file=file, offset=at)
        if found.fileid != fileid:
            raise CorruptError("NEXTI points to another file", file=file, offset=pos, found=at)
        yield at, found
        pos, at, count = at, found.nexti, count + 1


def entries_of(
    pos: int,
    seen: set[int],
    entry_at: Callable[[int], KVEntry],
    form: InodeForm,
    file: str,
    problem: Callable[[CorruptError], None],
) -> tuple[int, set[int]]:
    """Return the FILEID of an inode, and positions of the entries of it and of the inodes below it.

    seen     positions of inodes at which the walk down ends; those visited are added
    problem  called with damage of an inode below it
    raises   CorruptError if it is damaged itself
    """
    inode = Inode.decode(entry_at(pos).value, form, file=file, offset=pos)
    found = set(inode.pointers)
    try:
        for at, below in _below(inode, pos, entry_at, form, file):
            if at in seen:
                break
            seen.add(at)
            found.update(below.pointers)
    except CorruptError as error:
        problem(error)
    seen.add(pos)
    return inode.fileid, found


def above(
    inode: Inode, under: Inode, pos: int, rows: ExtentArray | None = None
) -> tuple[Inode, tuple[Link, ...]]:
    """Return the inode to write for one that replaces another.

    inode   with all its extents
    under   the one that it replaces, at `pos`, with all its extents
    rows    extents of `inode`, BELOW for parts that are as in `under`; None: they are compared
    ->      `inode`, or one that builds on inodes of `under`; and these, from the newest on
    cost    an extent is written again each time that the extents double: log2 of their number
    """
    old = ExtentArray.of(cut(under.extents, 0, under.lsize))
    links = under.links or (Link(pos, under.size, old),)
    rows = changed(old, ExtentArray.of(inode.extents)) if rows is None else rows
    while links:
        small = links[0].size <= RATIO * (24 * len(rows) + INODE_OVERHEAD)
        if not small and len(links) != LINKS:
            break
        rows, links = laid_over(rows, links[0].extents), links[1:]
    if not links:
        return inode, ()
    return replace(inode, extents=rows, nexti=links[0].pos), links


def changed(old: ExtentArray, new: ExtentArray) -> ExtentArray:
    """Return new extents, BELOW for those that are the same bytes of the same entry as the old."""
    rows = new.rows.copy()
    if not (len(old) and len(new)):
        return ExtentArray(rows)
    starts = new.ends - rows[:, 2]
    at = np.minimum(np.searchsorted(old.ends, starts, "right"), len(old) - 1)
    there = old.rows[at]
    skip = there[:, 1] + starts - (old.ends[at] - there[:, 2])
    same = (there[:, 0] == rows[:, 0]) & (new.ends <= old.ends[at])
    same &= (rows[:, 0] == 0) | (skip == rows[:, 1])
    rows[same, :2] = BELOW, 0
    return ExtentArray(joined_rows(rows))


def laid_over(upper: ExtentArray, lower: ExtentArray) -> ExtentArray:
    """Return the extents of `upper`, with those of `lower` in place of BELOW. `lower` is as long.

    cost    a copy of the rows, and m log n for m rows of `upper`
    """
    if (upper.rows[:, 2] == 0).any():
        upper = ExtentArray(upper.rows[upper.rows[:, 2] > 0])
    if not len(upper):
        return upper
    below = upper.rows[:, 0] == BELOW
    stop = upper.ends[below]
    start = stop - upper.rows[below, 2]
    first, last = (
        np.searchsorted(lower.ends, start, "right"), np.searchsorted(lower.ends, stop, "left"),
    )  # fmt: skip
    count = np.ones(len(upper), np.int64)  # of rows that replace each
    count[below] = n = last - first + 1
    at = np.cumsum(count) - count
    # All rows are taken from one array at once, by the steps between their indices.
    source = np.arange(len(lower), len(lower) + len(upper))
    source[below] = first
    steps = np.ones(int(at[-1] + count[-1]), np.int64)
    steps[at] = np.diff(source, prepend=0)
    steps[at[1:]] -= count[:-1] - 1
    rows = np.concatenate([lower.rows, upper.rows]).take(np.cumsum(steps), axis=0)
    at = at[below]
    head = start - (lower.ends[first] - lower.rows[first, 2])
    rows[at, 1] += np.where(rows[at, 0] > 0, head, 0)
    rows[at, 2] -= head
    rows[at + n - 1, 2] -= lower.ends[last] - stop
    return ExtentArray(joined_rows(rows))


def layer(size: int, patches: Sequence[tuple[int, Extent]]) -> ExtentArray:
    """Return the extents of overwrites of a file of `size` bytes, with BELOW between them.

    patches  (offset in the file, extent) in the order they were written; later ones win. They leave
             no gap after the end
    """
    at = np.array([offset for offset, _ in patches], np.int64)
    new = ExtentArray.of(extent for _, extent in patches).rows
    upto = at + new[:, 2]
    # The bytes between two neighbouring edges come from one extent.
    edges = np.sort(np.concatenate([[0, size], at, upto]))
    edges = edges[np.concatenate([[True], np.diff(edges) != 0])]  # np.unique is slower
    starts = edges[:-1]
    owner = _owners(starts, at, upto)
    kept = owner < 0
    rows = new[owner]
    rows[:, 1] += starts - at[owner]
    rows[kept, 0] = BELOW
    rows[:, 2] = np.diff(edges)
    rows[rows[:, 0] <= 0, 1] = 0
    return ExtentArray(joined_rows(rows))


def _owners(starts: Int64, at: Int64, upto: Int64) -> Int64:
    """Return the index of the patch that has the bytes at each of `starts`, -1: none. int64[n]."""
    owner = np.full(len(starts), -1, np.int64)
    first, last = np.searchsorted(starts, at), np.searchsorted(starts, upto)
    for i, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        owner[a:b] = i  # in the order they were written: the last one stays
    return owner


def _reach(extents: ExtentArray) -> int:
    """Return the end of the last extent that is BELOW, 0: none is."""
    below = np.flatnonzero(extents.rows[:, 0] == BELOW)
    return int(extents.ends[below[-1]]) if len(below) else 0


def sum_of(extents: Sequence[Extent]) -> int:
    """Return the bytes of all extents."""
    if isinstance(extents, ExtentArray):
        return int(extents.ends[-1]) if len(extents) else 0
    return sum(extent.size for extent in extents)


def link_of(pos: int, size: int, inode: Inode) -> Link:
    """Return an inode of a chain as a Link. `pos`: its position, `size`: bytes of its value."""
    return Link(pos, size, ExtentArray.of(cut(inode.extents, 0, inode.lsize)))
