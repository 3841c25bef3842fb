"""Many cells of a hash table that has some entries already: count, find room, write.

`heads` is int64[HTSIZE], the first word of every cell, usually mapped and big-endian.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from winkformats.arrays import Int64, UInt64
from winkformats.disk.storage import Storage
from winkformats.hindex.table import BUCKET, Cells, Shape

NEAR: Final = 256  # cells; changed ones closer than this are written together, a page at CELLSZ 2


def count(shape: Shape, heads: Int64) -> tuple[int, int]:
    """-> (ENTRIES, AENTRIES): cells that are not free, and those of them that are not deleted."""
    entries = deleted = 0
    for at in range(0, shape.htsize, BUCKET):
        block = heads[at : at + BUCKET]
        entries += int(np.count_nonzero(block != shape.htfree))
        deleted += int(np.count_nonzero(block == shape.htdel))
    return entries, entries - deleted


def used_slots(shape: Shape, heads: Int64) -> Int64:
    """-> int64[AENTRIES], ascending."""
    parts = [np.empty(0, np.int64)]
    for at in range(0, shape.htsize, BUCKET):
        block = heads[at : at + BUCKET]
        parts.append(np.flatnonzero((block != shape.htfree) & (block != shape.htdel)) + at)
    return np.concatenate(parts)


def claim(shape: Shape, heads: Int64, bits: UInt64) -> tuple[Int64, int]:
    """Give each new key the first free or deleted cell of its probe sequence.

    bits    uint64[n] of keys that are not in the table; there must be n such cells
    ->      slots: int64[n], all different; how many of them are free and not deleted
    cost    one pass over the remaining keys for each step of the longest probe sequence
    """
    n = len(bits)
    claimed = np.zeros(shape.htsize, np.bool_)  # pages that nobody touches cost nothing
    slots = np.empty(n, np.int64)
    fresh = 0
    todo = np.arange(n)
    slot = (bits % np.uint64(shape.htsize)).astype(np.int64)
    while len(todo):
        pointer = heads[slot]
        free = pointer == shape.htfree
        open_now = np.flatnonzero((free | (pointer == shape.htdel)) & ~claimed[slot])
        won = open_now[np.unique(slot[open_now], return_index=True)[1]]
        slots[todo[won]] = slot[won]
        claimed[slot[won]] = True
        fresh += int(np.count_nonzero(free[won]))
        lost = np.ones(len(todo), np.bool_)
        lost[won] = False
        todo, slot = todo[lost], slot[lost] + 1
        slot[slot == shape.htsize] = 0
    return slots, fresh


def write_cells(storage: Storage, offset: int, shape: Shape, slots: Int64, cells: Cells) -> None:
    """Write cells: int64[n, cellsz] to their slots: int64[n], neighbours in one write."""
    if not len(slots):
        return
    order = np.argsort(slots)
    slots = slots[order]
    rows = cells[order].astype(">i8").view(f"V{shape.width}").ravel()
    apart = (np.diff(slots) > NEAR) | (np.diff(slots // BUCKET) > 0)
    edges = [0, *(np.flatnonzero(apart) + 1).tolist(), len(slots)]
    for a, b in itertools.pairwise(edges):
        first, last = int(slots[a]), int(slots[b - 1])
        at = offset + first * shape.width
        span = bytearray(storage.read(at, (last - first + 1) * shape.width))
        np.frombuffer(span, rows.dtype)[slots[a:b] - first] = rows[a:b]
        storage.patch(at, span)
