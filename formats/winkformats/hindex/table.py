"""Hash tables as arrays: look-up of many keys, and building a whole table.

A cell is CELLSZ big-endian words: kv_pointer, then from CELLSZ 2 on S, then the user's words.
"""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from winkformats import hashing, native
from winkformats.arrays import Int64, UInt64
from winkformats.disk.storage import Storage
from winkformats.hashing import MASK63
from winkformats.kv import pagesums
from winkformats.kv.superblock import SBSIZE, Superblock
from winkformats.lazy import cached_property

Indices = npt.NDArray[Any]
Cells = npt.NDArray[np.int64]  # [n, cellsz], native order
BUCKET: Final = 1 << 16  # cells built at a time: 1 MiB, so that scattering stays in the L2 cache
SEGMENT: Final = 1 << 18  # entries whose buckets are found at a time
LOAD: Final = 0.7  # load factor after which a table grows
MINIMUM: Final = 64  # cells of the smallest table
MAX_PROBES: Final = 256  # cells from a key's slot to its cell, above which a table is built again
PROBED: Final = 8  # cells that a search reads first; in a long run it reads more at a time
MAX_PROBED: Final = 1 << 12  # cells that a search reads at a time
MAX_PROBED_TOGETHER: Final = 1 << 16  # cells that searches for many keys read at a time
Read = Callable[[int, int], bytes]  # offset, length -> bytes, all of them


@dataclass(frozen=True)
class Shape:
    """Dimensions of a table: `htsize` cells of `cellsz` words, and the two marks."""

    htsize: int
    cellsz: int = 2
    htfree: int = 0
    htdel: int = 1

    @classmethod
    def of(cls, block: Mapping[str, int]) -> Self:
        """Return the shape of a table, unchecked, with defaults. Raises KeyError without HTSIZE."""
        return cls(
            block["HTSIZE"], block.get("CELLSZ", 1), block.get("HTFREE", 0), block.get("HTDEL", 1)
        )

    @cached_property
    def width(self) -> int:
        """Size of a cell, bytes."""
        return 8 * self.cellsz


def size_for(live: int) -> int:
    """Return HTSIZE for a table of `live` entries that may grow by half before it is full."""
    return max(MINIMUM, int(live * 1.5 / LOAD)) | 1


def cells_of(shape: Shape, data: mmap.mmap | memoryview, offset: int) -> npt.NDArray[np.void]:
    """Return the cells in a mapped file, void[htsize], without a copy. `offset` is SBSIZE."""
    return np.ndarray((shape.htsize,), f"V{shape.width}", data, offset)


def find_many(
    shape: Shape, cells: npt.NDArray[np.void], s: UInt64, bits: UInt64
) -> tuple[Int64, Int64]:
    """Look up many keys by S -> (kv_pointers, slots), int64[n] each.

    slots   of a missing key: ~slot of the free cell that ended the search, ~HTSIZE if no cell is
            free

    Needs CELLSZ >= 2. The result is the first cell with this S: compare the key, and if it differs
    search on with `probe`, since two keys may have the same 64-bit hash.
    """
    if native.code is not None and shape.cellsz == 2:
        found = np.empty((2, len(s)), np.int64)
        marks = shape.htsize, shape.htfree, shape.htdel
        s, bits = np.ascontiguousarray(s), np.ascontiguousarray(bits)
        if not native.code.find_many(cells, *marks, s, bits, found[0], found[1]):
            return found[0], found[1]
        left = found[1] == shape.htsize  # searches that ended in a long run
        found[:, left] = _find_many(shape, cells, s[left], bits[left])
        return found[0], found[1]
    return _find_many(shape, cells, s, bits)


def _find_many(
    shape: Shape, cells: npt.NDArray[np.void], s: UInt64, bits: UInt64
) -> tuple[Int64, Int64]:
    pointers, slots = np.zeros(len(s), np.int64), np.full(len(s), ~shape.htsize, np.int64)
    slot = (bits % np.uint64(shape.htsize)).astype(np.int64)
    todo, step, seen = np.arange(len(s)), 1, 0
    while seen < 3 * shape.htsize:  # cells before the end of the table may be read twice
        last = shape.htsize - step
        near = int(slot.max(initial=0)) > last  # then windows begin earlier
        first = np.minimum(slot, last) if near else slot
        window = _cells_at(shape, cells, first, step)
        pointer = window[:, :, 0].astype(np.int64)
        free = pointer == shape.htfree
        ends = free | ((window[:, :, 1] == s[todo, None]) & (pointer != shape.htdel))
        if near:
            ends &= np.arange(step) >= (slot - first)[:, None]
        at, rows = ends.argmax(1), np.arange(len(todo))
        done = ends[rows, at]
        hit = done & ~free[rows, at]
        missed = done & ~hit
        pointers[todo[hit]], slots[todo[hit]] = pointer[rows, at][hit], (first + at)[hit]
        slots[todo[missed]] = ~(first + at)[missed]
        todo, slot, seen = todo[~done], first[~done] + step, seen + step
        slot[slot == shape.htsize] = 0
        if not len(todo):
            break
        # From the second cell on 8 at a time, which ends most searches. The others are in long
        # runs: their windows grow, as long as all of them together stay small.
        most = min(4 * step, MAX_PROBED, MAX_PROBED_TOGETHER // len(todo))
        step = min(max(PROBED, most), shape.htsize)
    return pointers, slots


def _cells_at(
    shape: Shape, cells: npt.NDArray[np.void], slot: Int64, count: int
) -> npt.NDArray[np.uint64]:
    """Gather `count` cells from each slot, all within the table -> [n, count, cellsz]."""
    wide = np.ndarray(
        (shape.htsize - count + 1,), f"V{count * shape.width}", cells, 0, (shape.width,)
    )
    return wide[slot].view(">u8").reshape(len(slot), count, shape.cellsz)


def probe(
    shape: Shape, read: Read, offset: int, bits: int, stored: bytes | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield (slot, cell) of the used cells of a probe sequence, up to the first free one.

    stored  the 8 bytes of S: only cells with this S
    cost    one step for each cell; in a long run array operations, and one step for each result
    """
    width = shape.width
    for slot, cells in _windows(shape, read, offset, bits % shape.htsize):
        if len(cells) > PROBED * width:
            words = np.frombuffer(cells, f"V{width}").view(">i8").reshape(-1, shape.cellsz)
            free = np.flatnonzero(words[:, 0] == shape.htfree)
            words = words[: int(free[0])] if len(free) else words
            chosen = words[:, 0] != shape.htdel
            if stored is not None and shape.cellsz > 1:
                chosen &= words[:, 1] == int.from_bytes(stored, "big", signed=True)
            for at in np.flatnonzero(chosen).tolist():
                yield slot + at, cells[at * width : (at + 1) * width]
            if len(free):
                return
            continue
        for at in range(0, len(cells), width):
            cell = cells[at : at + width]
            pointer = int.from_bytes(cell[:8], "big", signed=True)
            if pointer == shape.htfree:
                return
            if pointer != shape.htdel and (stored is None or width == 8 or cell[8:16] == stored):
                yield slot, cell
            slot += 1


def end_of_run(
    shape: Shape, read: Read, offset: int, home: int, marks: tuple[int, ...] = ()
) -> int:
    """Return the slot of the first free cell from slot `home` on, with wrap-around; -1: none.

    marks  pointers that end the search, instead of HTFREE
    """
    for slot, cells in _windows(shape, read, offset, home):
        pointers = np.frombuffer(cells, f"V{shape.width}").view(">i8")[:: shape.cellsz]
        ends = np.flatnonzero(np.isin(pointers, marks) if marks else pointers == shape.htfree)
        if len(ends):
            return slot + int(ends[0])
    return -1


def _windows(shape: Shape, read: Read, offset: int, home: int) -> Iterator[tuple[int, bytes]]:
    """Yield (slot, cells) for all cells from slot `home` on, PROBED at first, then more."""
    slot, left, most = home, shape.htsize, PROBED
    while left > 0:
        count = min(most, shape.htsize - slot, left)
        yield slot, read(offset + slot * shape.width, count * shape.width)
        slot, left, most = (slot + count) % shape.htsize, left - count, min(4 * most, MAX_PROBED)


def used(shape: Shape, cells: npt.NDArray[np.void], start: int, stop: int) -> tuple[Cells, int]:
    """Return the used cells among [start, stop), int64[n, cellsz]; how many are not HTFREE."""
    words = cells[start:stop].view(">i8").reshape(-1, shape.cellsz).astype(np.int64)
    taken = words[:, 0] != shape.htfree
    return words[taken & (words[:, 0] != shape.htdel)], int(taken.sum())


def write(
    storage: Storage,
    block: Superblock,
    bits: UInt64,
    words: Callable[[Indices], Cells],
    size: int = 0,
) -> Shape:
    """Write a whole hindex into an empty storage, not synced: superblock, cells, and checksums of
    the pages if the superblock has PAGESUMS.

    block   its HTSIZE and FILESIZE are set, and SYNCSIZE and PAGESUMS if it has them
    size    HTSIZE; 0: by the number of keys, with a random one if hostile keys collide
    raises  OSError
    cost    as `build`; twice for colliding keys
    """
    block["HTSIZE"] = size or size_for(len(bits))
    shape = Shape.of(block)
    block["FILESIZE"] = SBSIZE + shape.htsize * shape.width
    if "SYNCSIZE" in block:
        block["SYNCSIZE"] = block["FILESIZE"]
    if pagesums.VARIABLE in block:
        block[pagesums.VARIABLE] = pagesums.place(block["FILESIZE"])
    storage.write(0, [block.encode()])
    if build(storage, SBSIZE, shape, bits, words) > MAX_PROBES and not size:
        storage.truncate(0)
        return write(storage, block, bits, words, _other_size(shape.htsize))
    if pagesums.VARIABLE in block:
        pagesums.write(storage, block)
    return shape


def _other_size(size: int) -> int:
    """Return a random, unpredictable HTSIZE, for which keys that share a slot of the odd `size` are
    spread over all slots."""
    import secrets  # late: few tables need it

    while True:
        other = size + 2 * (1 + secrets.randbelow(size // 4))
        if math.gcd(other, size) == 1:
            return other


def build(
    storage: Storage, offset: int, shape: Shape, bits: UInt64, words: Callable[[Indices], Cells]
) -> int:
    """Write a whole table by linear probing.

    bits    uint64[n]: the 63 bits of each key; a 64th is ignored
    words   returns the cells int64[k, cellsz] for the indices int64[k] into `bits`
    ->      the most cells that a search for one of the keys passes
    raises  ValueError if n >= HTSIZE
    cost    one pass, BUCKET cells at a time; memory: 14 bytes for each entry, and a few MiB
    """
    n, width = len(bits), shape.width
    if n >= shape.htsize:
        raise ValueError(f"{n} entries do not fit into {shape.htsize} cells")
    count = -(-shape.htsize // BUCKET)
    order, ends = _by_bucket(bits, shape.htsize, count)
    carry = np.empty((0, shape.cellsz), np.int64)  # cells pushed past the end of their bucket
    passed = 0
    for bucket in range(count):
        first = bucket * BUCKET
        length = min(BUCKET, shape.htsize - first)
        part = order[ends[bucket] : ends[bucket + 1]]
        slot = _slots(bits[part], shape.htsize) - first
        by_slot = np.argsort(slot.astype(np.uint16), kind="stable")  # 16 bits: a radix sort
        # Carried cells take the first places; then each entry takes its slot, or the cell after its
        # predecessor: q[i] = max(slot[i], q[i - 1] + 1).
        ramp = np.arange(len(part))
        homes = slot[by_slot]
        q = np.maximum.accumulate(np.maximum(homes, len(carry)) - ramp) + ramp
        passed = max(passed, int((q - homes).max(initial=0)))
        cells = np.concatenate([carry, words(part[by_slot].astype(np.int64))])
        q = np.concatenate([np.arange(len(carry)), q])
        inside = int(np.searchsorted(q, length))
        block = np.zeros((length, shape.cellsz), ">i8")
        if shape.htfree:
            block[:, 0] = shape.htfree
        block[q[:inside]] = cells[:inside]
        storage.write(offset + first * width, [block.data.cast("B")])
        carry = cells[inside:]
    if len(carry):
        _wrap(storage, offset, shape, carry)
    return passed


def _slots(bits: UInt64, htsize: int) -> Int64:
    slots: Int64 = ((bits & np.uint64(MASK63)) % np.uint64(htsize)).astype(np.int64)
    return slots


def _by_bucket(bits: UInt64, htsize: int, count: int) -> tuple[npt.NDArray[np.uint32], list[int]]:
    """Return the indices sorted by bucket, stable, and the start of each bucket in them."""
    bucket = np.empty(len(bits), np.uint16 if count <= 1 << 16 else np.uint32)
    sizes = np.zeros(count, np.int64)
    for at in range(0, len(bits), SEGMENT):
        part = _slots(bits[at : at + SEGMENT], htsize) // BUCKET
        bucket[at : at + SEGMENT] = part
        sizes += np.bincount(part, minlength=count)
    order = np.argsort(bucket, kind="stable").astype(np.uint32)  # radix sort for 16 bits
    return order, [0, *np.cumsum(sizes).tolist()]


def _wrap(storage: Storage, offset: int, shape: Shape, carry: Cells) -> None:
    """Put the entries that did not fit before the last cell into the first free cells."""
    slot = 0
    for cell in carry:
        while True:
            head = storage.read(offset + slot * shape.width, 8)
            if int.from_bytes(head, "big", signed=True) == shape.htfree:
                break
            slot += 1
        storage.write(offset + slot * shape.width, [cell.astype(">i8").tobytes()])


def bits_of(s: UInt64) -> UInt64:
    """Return the slot bits of stored hashes S, for the algorithms where they follow from S."""
    return s & np.uint64(MASK63)


@dataclass
class IndexRows:
    """Files to be indexed, as columns.

    s       uint64[n]  S of the key
    bits    uint64[n]  slot bits; None: they follow from S
    pos     int64[n]   kv_pointer of the inode
    """

    s: UInt64
    bits: UInt64 | None
    pos: Int64

    def slot_bits(self) -> UInt64:
        return bits_of(self.s) if self.bits is None else self.bits

    def take(self, chosen: Indices | slice) -> IndexRows:
        """Return some rows: `chosen` are indices, bool[n] or a slice."""
        bits = None if self.bits is None else self.bits[chosen]
        return IndexRows(self.s[chosen], bits, self.pos[chosen])


def hash_rows(htalgo: int, keys: Iterable[hashing.Key], pos: Int64) -> IndexRows:
    s, bits = hashing.hash_keys(htalgo, keys)
    return IndexRows(s, None if htalgo in hashing.SLOT_FROM_S else bits, pos)


class GrowingColumns:
    """Columns of equal length that grow in place, because joining parts would need twice the
    memory."""

    def __init__(self, *types: npt.DTypeLike) -> None:
        self._data: list[npt.NDArray[Any]] = list(map(np.empty, itertools.repeat(0), types))
        self._count = 0

    def add(self, *parts: npt.NDArray[Any]) -> None:
        """Append values to each column; one of 4 bytes becomes int64 if they do not fit."""
        start = self._count
        self._count = stop = start + len(parts[0])
        for i, part in enumerate(parts):
            data = self._data[i]
            if data.itemsize == 4 and len(part) and (part.min() < 0 or part.max() >= 1 << 32):
                data = self._data[i] = data.astype(np.int64)
            if stop > len(data):  # realloc moves the pages of a large block without a copy
                data.resize(max(stop, len(data) + len(data) // 8), refcheck=False)
            data[start:stop] = part

    def take(self) -> list[npt.NDArray[Any]]:
        """Return the values of each column; the object cannot be used afterwards."""
        for data in self._data:
            data.resize(self._count, refcheck=False)
        taken, self._data = self._data, []
        return taken


def join_rows(parts: list[IndexRows]) -> IndexRows:
    """Join rows; `parts` is emptied column by column, so that memory is not needed twice."""
    whole = [part for part in parts if len(part.pos)]
    if len(whole) < 2:
        parts.clear()
        none = IndexRows(np.empty(0, np.uint64), None, np.empty(0, np.int64))
        return whole[0] if whole else none
    s = np.concatenate([p.s for p in parts])
    bits = None
    if whole[0].bits is not None:
        bits = np.concatenate([p.bits for p in parts if p.bits is not None])
    for part in parts:
        part.s = np.empty(0, np.uint64)
    pos = np.concatenate([p.pos for p in parts])
    parts.clear()
    return IndexRows(s, bits, pos)
