"""HIndex: a hash table of pointers to kvseq entries.

    offset                      size  type  field    meaning
    SBSIZE + 8 CELLSZ i         8     q     pointer  kv_pointer, or HTFREE, or HTDEL
    .. + 8, from CELLSZ 2 on    8     Q     s        S: 64 bits of the key's hash, see `hashing`
    .. + 16, from CELLSZ 3 on   8     q     words    CELLSZ - 2 words of the user

Big-endian; linear probing. Words after the pointer are zero in free and deleted cells.
FILESIZE = SBSIZE + 8 * CELLSZ * HTSIZE.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from winkformats import hashing
from winkformats.arrays import Int64, UInt64
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError, FormatError
from winkformats.hindex import table
from winkformats.hindex.cells import (
    MAX_INT64,
    CellFile,
    check_filesize,
    need_empty,
    need_variable,
    open_superblock,
)
from winkformats.hindex.table import BUCKET, LOAD, Shape
from winkformats.kv.superblock import HINDEX, SBSIZE, Superblock

MAX_CELLSZ: Final = 4096  # words; a larger claim is damage

KeyOf = Callable[[int], bytes]
Cell = tuple[int, ...]


class HIndex(CellFile):
    """A hash table in one file: key -> kv_pointer, one cell for each key.

    key_of  kv_pointer -> the key of that entry, called to compare keys; with CELLSZ >= 2 only for
            cells with an equal S

    One writer. When more than LOAD of its cells are not free, the file is replaced by one with more
    cells, and slots change.
    """

    def __init__(
        self, storage: Storage, superblock: Superblock, key_of: KeyOf | None, *, writable: bool
    ) -> None:
        super().__init__(storage, superblock, writable=writable)
        self._key_of = key_of
        self.shape = Shape.of(superblock)
        self.htalgo = superblock["HTALGO"]
        self._cell = struct.Struct(">qQ"[: self.shape.cellsz + 1] + "q" * (self.shape.cellsz - 2))
        self._counted: tuple[int, int] | None = None  # (ENTRIES, AENTRIES), once counted

    @classmethod
    def create(
        cls,
        storage: Storage,
        *,
        htsize: int,
        htalgo: int = hashing.XXH3,
        cellsz: int = 2,
        htfree: int = 0,
        htdel: int = 1,
        purpose: str = "",
        sbsize: int = SBSIZE,
        sbcksum: bool = True,
        extra: Mapping[str, int] | None = None,
        key_of: KeyOf | None = None,
    ) -> Self:
        """Create an empty table in an empty storage.

        htsize          cells, 1 or more
        cellsz          words of a cell, 1 or more: pointer, S, and the user's
        htfree, htdel   pointers that mark free and deleted cells
        extra           further variables, such as DATAEND
        raises          ValueError: the storage is not empty, or a variable is not valid
        cost            writes the whole table
        """
        need_empty(storage)
        variables = {"HTSIZE": htsize, "HTALGO": htalgo, "CELLSZ": cellsz}
        variables |= {"HTFREE": htfree, "HTDEL": htdel, "ENTRIES": 0, "AENTRIES": 0}
        variables |= {"SBCKSUM": 0} if sbcksum else {}
        block = Superblock.new(HINDEX, purpose, variables | dict(extra or {}), sbsize)
        _check_variables(block, storage.name)
        block["FILESIZE"] = sbsize + 8 * cellsz * htsize
        image = block.encode()
        empty = np.empty((0, cellsz), np.int64)
        table.build(storage, sbsize, Shape.of(block), np.empty(0, np.uint64), lambda _: empty)
        storage.sync()  # a superblock must never name cells that are not there
        storage.write(0, [image])
        storage.sync()
        return cls(storage, block, key_of, writable=True)

    @classmethod
    def open(cls, storage: Storage, writable: bool = False, *, key_of: KeyOf | None = None) -> Self:
        """Open an existing table. Raises FormatError."""
        block = open_superblock(storage, HINDEX)
        _check_variables(block, storage.name)
        shape = Shape.of(block)
        check_filesize(block, shape.width * shape.htsize, file=storage.name)
        return cls(storage, block, key_of, writable=writable)

    # --- look-ups ---

    def hash(self, key: bytes) -> int | None:
        """Return the slot of a key, None if it is not in the table. Cost: one or two reads."""
        s, bits = hashing.hash_key(self.htalgo, key)
        stored = s.to_bytes(8, "big")
        for slot, cell in table.probe(self.shape, self._read, self.sbsize, bits, stored):
            if self._key_at(int.from_bytes(cell[:8], "big", signed=True)) == key:
                return slot
        return None

    def get(self, slot: int) -> Cell:
        """Return the words of a cell, free or not: pointer, S (unsigned), the user's.

        raises  ValueError outside 0..HTSIZE-1
        """
        if not 0 <= slot < self.shape.htsize:
            raise ValueError(f"{self.storage.name}: no slot {slot}: HTSIZE is {self.shape.htsize}")
        return next(self._read_cells(slot, 1))

    def iterate(self, start: int = 0) -> Iterator[tuple[int, Cell]]:
        """Yield (slot, words) of each used cell from slot `start` on."""
        for first in range(start, self.shape.htsize, BUCKET):
            count = min(BUCKET, self.shape.htsize - first)
            for slot, cell in enumerate(self._read_cells(first, count), first):
                if cell[0] != self.shape.htfree and cell[0] != self.shape.htdel:
                    yield slot, cell

    def __len__(self) -> int:
        """Number of keys in the table."""
        if self._counted is None and "AENTRIES" in self.superblock:
            return max(self.superblock["AENTRIES"], 0)
        return self._counts()[1]

    # --- changing ---

    def insert(self, key: bytes, kv_pointer: int, words: Sequence[int] = ()) -> int:
        """Insert a key, or change the pointer of a key in the table.

        kv_pointer  any int64 except HTFREE and HTDEL
        words       int64[CELLSZ - 2], the user's; missing ones are 0
        ->          slot
        raises      ValueError for numbers that do not fit into a cell; OSError
        cost        a read and a write; O(HTSIZE) for the first change and for growth
        """
        self._need_writable()
        s, bits = hashing.hash_key(self.htalgo, key)
        cell = self._pack(kv_pointer, s, words)
        known, (entries, aentries) = self.hash(key), self._counts()
        slot, takes_free = self._room(bits) if known is None else (known, False)
        if takes_free and entries + 1 > LOAD * self.shape.htsize:
            self.grow(1)
            entries, aentries = self._counts()
            slot, _ = self._room(bits)
        self._begin_change()
        self.storage.patch(self._offset(slot), cell)
        self._counted = entries + takes_free, aentries + (known is None)
        return slot

    def delete(self, key: bytes) -> int | None:
        """Mark the cell of a key as deleted -> its slot, None if the key is not in the table."""
        self._need_writable()
        slot = self.hash(key)
        if slot is None:
            return None
        entries, aentries = self._counts()
        self._begin_change()
        empty = self._cell.pack(self.shape.htdel, *[0] * (self.shape.cellsz - 1))
        self.storage.patch(self._offset(slot), empty)
        self._counted = entries, aentries - 1
        return slot

    def grow(self, more: int = 0) -> None:
        """Replace the file by one with space for `more` keys and without deleted cells.

        With HTALGO 2 and 3 and CELLSZ >= 2 the slots follow from the cells; else `key_of` is called
        for every key.
        raises  OSError, and what `key_of` raises; then nothing is changed
        cost    O(HTSIZE), 20 bytes of memory for each key
        """
        self._need_writable()
        shape, offset = self.shape, self.sbsize
        heads = self._words()[:, 0]
        used = np.flatnonzero((heads != shape.htfree) & (heads != shape.htdel))
        bits = self._bits_of(used)
        larger = max(shape.htsize, table.size_for(len(used) + more))
        grown = Shape(larger, shape.cellsz, shape.htfree, shape.htdel)
        old = self._words()
        self._forget_sums()
        block = Superblock(self.superblock)
        block |= {"HTSIZE": larger, "FILESIZE": offset + grown.width * larger}
        _set_counters(block, len(used), len(used))

        def fill(storage: Storage) -> None:
            table.build(storage, offset, grown, bits, lambda i: old[used[i]].astype(np.int64))
            storage.write(0, [block.encode()])

        self._rewrite(fill)
        self.superblock, self.shape = block, grown
        self._counted = len(used), len(used)

    # --- cells ---

    def _room(self, bits: int) -> tuple[int, bool]:
        """Return the slot for a new key, -1 in a full table; whether it is free, not deleted."""
        home, marks = bits % self.shape.htsize, (self.shape.htfree, self.shape.htdel)
        slot = table.end_of_run(self.shape, self._read, self.sbsize, home, marks)
        return slot, slot < 0 or self.get(slot)[0] == self.shape.htfree

    def _key_at(self, pointer: int) -> bytes:
        if self._key_of is None:
            raise ValueError(f"{self.storage.name}: comparing keys needs `key_of`")
        return self._key_of(pointer)

    def _offset(self, slot: int) -> int:
        return self.sbsize + slot * self.shape.width

    def _read_cells(self, slot: int, count: int) -> Iterator[Cell]:
        data = self._read(self._offset(slot), count * self.shape.width)
        return self._cell.iter_unpack(data)

    def _read(self, offset: int, length: int) -> bytes:
        data = self.storage.read(offset, length)
        if len(data) != length:
            raise self._cut(offset + len(data))
        return data

    def _cut(self, offset: int) -> CorruptError:
        return CorruptError("cells are cut short", file=self.storage.name, offset=offset)

    def _words(self) -> npt.NDArray[np.int64]:
        """Return the mapped cells, int64[HTSIZE, CELLSZ], big-endian."""
        end = self._offset(self.shape.htsize)
        if self.storage.size() < end:  # reading the mapping would kill the process
            raise self._cut(end)
        view = self.storage.view(end)
        words: npt.NDArray[np.int64] = np.frombuffer(view, ">i8", offset=self.sbsize)
        return words.reshape(self.shape.htsize, self.shape.cellsz)

    def _bits_of(self, slots: Int64) -> UInt64:
        """Return the slot bits of the keys in used cells, uint64[n], from S if possible."""
        words = self._words()
        if self.htalgo in hashing.SLOT_FROM_S and self.shape.cellsz >= 2:
            return table.bits_of(words[slots, 1].astype(np.int64).view(np.uint64))
        bits = np.empty(len(slots), np.uint64)
        for at in range(0, len(slots), BUCKET):
            keys = [self._key_at(pointer) for pointer in words[slots[at : at + BUCKET], 0].tolist()]
            bits[at : at + BUCKET] = hashing.hash_keys(self.htalgo, keys)[1]
        return bits

    def _pack(self, pointer: int, s: int, words: Sequence[int]) -> bytes:
        free = self.shape.cellsz - 2 - len(words)
        if words and free < 0:
            raise ValueError(
                f"{len(words)} words do not fit into a cell: CELLSZ {self.shape.cellsz}"
            )
        if pointer in (self.shape.htfree, self.shape.htdel):
            raise ValueError(f"kv_pointer {pointer} marks free or deleted cells")
        try:
            return self._cell.pack(*[pointer, s, *words, *[0] * free][: self.shape.cellsz])
        except struct.error:
            raise ValueError("kv_pointer and words must be whole numbers of 64 bits") from None

    # --- counters ---

    def _counts(self) -> tuple[int, int]:
        """Return (ENTRIES, AENTRIES), counted once, since a killed writer leaves wrong ones."""
        if self._counted is None:
            heads = self._words()[:, 0]
            entries = int(np.count_nonzero(heads != self.shape.htfree))
            self._counted = entries, entries - int(np.count_nonzero(heads == self.shape.htdel))
        return self._counted

    def _update_superblock(self) -> None:
        _set_counters(self.superblock, *self._counts())


def _set_counters(block: Superblock, entries: int, aentries: int) -> None:
    counters = {"ENTRIES": entries, "AENTRIES": aentries}
    block.update({name: value for name, value in counters.items() if name in block})


def _check_variables(block: Superblock, file: str) -> None:
    """Check the variables of a table. Raises FormatError."""
    need_variable(block, "HTSIZE", 1, MAX_INT64, file=file)
    hashing.check(need_variable(block, "HTALGO", 1, MAX_INT64, file=file), file)
    shape = Shape.of(block)
    if not 1 <= shape.cellsz <= MAX_CELLSZ:
        raise FormatError(f"{file}: CELLSZ {shape.cellsz} is outside 1 to {MAX_CELLSZ}")
    if shape.htfree == shape.htdel:
        raise FormatError(f"{file}: HTFREE and HTDEL are both {shape.htfree}")
