"""Plain inodes: those of one extent and no attributes, found in a window and decoded as columns.

That is what put and put_many write for a file that is not empty. Whatever is another kind, damaged,
or not in the window from end to end is left out, and goes the ordinary way, inode by inode.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from winkformats.arrays import Int64, column, rows_at
from winkformats.kv.entry import MASK64, Layout
from winkfs.container.inodescan import InodeColumns
from winkfs.container.ondisk.inode import HEAD, FileType, InodeForm
from winkfs.container.ondisk.inodekeys import SUFFIX

BareInode = tuple[bytes, int, int, int, int]
"""name, file id, bytes, ftype, mtime as stored"""
KEYS: Final = 255  # bytes of the longest key that is taken: a batch has rows of one width
VALUES: Final = 1024  # bytes of the largest inode


@dataclass(slots=True)
class PlainInodes(InodeColumns):
    """n plain inodes of a batch, in its order; their checksums are good.

    which    int64[n]  their indices among the positions of the batch
    names    n names
    fields   int64[n, 8 or 9]  CKSUM .. DCOUNT, kv_pointer, (0,) bytes
    """

    which: Int64
    names: list[bytes]
    fields: Int64

    def __len__(self) -> int:
        return len(self.names)

    def take(self, chosen: npt.NDArray[np.bool_]) -> PlainInodes:
        """Only the chosen ones, bool[n]."""
        names = [self.names[i] for i in np.flatnonzero(chosen).tolist()]
        return PlainInodes(self.which[chosen], names, self.fields[chosen])

    @property
    def ftype(self) -> Int64:
        return np.where(self.fields[:, 4] == 0, int(FileType.FILE), self.fields[:, 4])

    @property
    def pointer(self) -> Int64:
        """kv_pointer of the one data entry."""
        return self.fields[:, 7]


def plain_inodes(
    data: memoryview, base: int, positions: Int64, layout: Layout, form: InodeForm
) -> PlainInodes:
    """The plain inodes among the entries at `positions`, ascending.

    data, base  a window: bytes of the file from position `base` on
    cost        0.6 us an inode
    """
    found = good_inodes(data, positions - base, positions, layout, form)
    fields = found.fields
    good = (fields[:, 6] == 1) & (fields[:, 7] > 0) & (fields[:, -1] == fields[:, 3])
    if form.pairoff:
        good &= fields[:, 8] == 0
    return found if good.all() else found.take(good)


def few_inodes(
    data: bytes, places: list[int], positions: list[int], layout: Layout, form: InodeForm, size: int
) -> list[BareInode | None]:
    """The inodes at `positions`, each for itself; None for a bad or unusual one. The file id is 0
    where it has attributes, which are not read.

    places  where in `data` they begin
    size    bytes of the usual inode
    cost    2 us each, where `good_inodes` takes 100 us at least
    """
    found: list[BareInode | None] = []
    contid, end = layout.contid, len(data) if layout.standard else 0
    for at, pos in zip(places, positions, strict=True):
        unpack, width = _shape(data[at + 1 : at + 3], size, form.pairoff)
        if at + width > end:
            found.append(None)
            continue
        (
            delflag, name, suffix, length, nexti, fileid, lsize, ftype, mtime, count, nbytes, sum32
        ) = unpack(data, at)  # fmt: skip
        body = data[at + 1 : at + width - 4]
        good = (
            xxh3_64_intdigest(body, (pos + contid) & MASK64) & 0xFFFFFFFF == sum32
            and suffix == SUFFIX
            and length == size
            and delflag <= 1
            and nexti == 0
            and fileid >= 1
            and lsize >= 0
            and count >= 0
        )
        bare = count == 0 or nbytes >= 0
        found.append((name, fileid if bare else 0, lsize, ftype, mtime) if good else None)
    return found


@lru_cache(maxsize=1024)
def _shape(prefix: bytes, size: int, pairoff: bool) -> tuple[Callable[..., Any], int]:
    """How to unpack an entry with this length of a key, and its bytes."""
    key = int.from_bytes(prefix, "big")
    name = max(key - len(SUFFIX), 0)
    code = struct.Struct(
        f">B2x{name}s{len(SUFFIX)}sI8x6q{16 if pairoff else 8}xq"
        f"{size - HEAD.size - (24 if pairoff else 16)}xI"
    )
    return code.unpack_from, code.size


def good_inodes(
    data: memoryview | bytes, at: Int64, positions: Int64, layout: Layout, form: InodeForm
) -> PlainInodes:
    """The good inodes with room for a pair, and not too large, among the entries at `positions`, in
    any order, each with its first pair.

    at  where in `data` they begin; outside of it: not there
    """
    words = (HEAD.size + form.pair) // 8
    none = PlainInodes(np.empty(0, np.int64), [], np.empty((0, words), np.int64))
    which = np.flatnonzero((at >= 0) & (at < len(data) - 7))
    if not layout.standard or not len(which):
        return none
    at = at[which]
    key_len = column(rows_at(data, at, 3), ">u2", 1).astype(np.int64)
    near = (key_len > 3) & (key_len <= KEYS) & (at + 7 + key_len <= len(data))
    at, which, key_len = at[near], which[near], key_len[near]
    value_len = column(rows_at(data, at + 3 + key_len, 4), ">u4", 0).astype(np.int64)
    size = 11 + key_len + value_len  # of the entry
    fits = (value_len >= 8 * words) & (value_len <= VALUES)
    width = int(size[fits].max(initial=11))
    fits &= at + width <= len(data)
    at, which, key_len, size = at[fits], which[fits], key_len[fits], size[fits]
    if not len(at):
        return none

    rows = rows_at(data, at, width)
    raw = rows.tobytes()  # slices of bytes cost half of those of a view, and hash faster
    begin = np.arange(0, len(raw), width)
    ends = (begin + size - 4).tolist()
    bodies = [raw[a:b] for a, b in zip((begin + 1).tolist(), ends, strict=True)]
    good = layout.sums(positions[which], bodies) == column(
        rows_at(raw, begin + size - 4, 4), ">u4", 0
    )
    good &= rows[:, 0] <= 1
    values = rows_at(raw, begin + 7 + key_len, 8 * words)
    fields = values.view(">i8").astype(np.int64)
    good &= (fields[:, 1] == 0) & (fields[:, 2] >= 1) & (fields[:, 3] >= 0) & (fields[:, 6] >= 0)
    stops = (begin + key_len).tolist()
    names = [raw[a:b] for a, b in zip((begin + 3).tolist(), stops, strict=True)]
    found = PlainInodes(which, names, fields)
    return found if good.all() else found.take(good)
