"""Sparse index of a segment, `BASE.idx`, written when the segment is closed.

    offset  size  type  field     meaning
    0       4     I     magic     0x4C445149
    4       2     H     version   1
    6       2     H     flags     0
    8       8     Q     base      that of the segment
    16      8     Q     count     rows
    24      4     I     zero
    28      4     I     checksum  CRC-32C of the 28 bytes before

    a row   id Q, offset in the segment Q, timestamp q

Little-endian. The first entry has a row, then each entry that begins at least SPACING bytes after
the last one with a row.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice
from operator import lt
from typing import Final

from google_crc32c import value as crc32c

from winkformats.errors import DerivedDamage
from winkformats.ledgerq.entry import SUM

SUFFIX: Final = ".idx"
MAGIC: Final = 0x4C445149
VERSION: Final = 1
HEADER: Final = struct.Struct("<IHHQQII")
ROW: Final = struct.Struct("<QQq")
SPACING: Final = 4096
assert (HEADER.size, ROW.size) == (32, 24)


class Sparse:
    """The rows of an index, 24 bytes each."""

    def __init__(self) -> None:
        self.ids, self.offsets, self.times = array("Q"), array("Q"), array("q")
        self.next = 0  # an entry from this offset on gets a row

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, id: int, offset: int, timestamp: int) -> None:
        """Add the row of an entry at offset `next` or later."""
        self.ids.append(id)
        self.offsets.append(offset)
        self.times.append(timestamp)
        self.next = offset + SPACING

    def before(self, id: int) -> int:
        """Return the last row whose id is at most `id`; -1: there is none."""
        return bisect_right(self.ids, id) - 1

    def before_time(self, timestamp: int) -> int:
        """Return the last row whose time is before `timestamp`; -1: there is none."""
        return bisect_left(self.times, timestamp) - 1

    def encode(self, base: int) -> bytes:
        head = HEADER.pack(MAGIC, VERSION, 0, base, len(self), 0, 0)[: -SUM.size]
        rows = array("Q", bytes(len(self) * ROW.size))
        for at, column in enumerate((self.ids, self.offsets, array("Q", self.times.tobytes()))):
            rows[at::3] = column
        return head + SUM.pack(crc32c(head)) + little(rows)

    @classmethod
    def decode(cls, data: bytes, base: int, *, file: str, size: int) -> Sparse:
        """Decode an index; size: bytes of the segment. Raises DerivedDamage."""
        head = data[: HEADER.size - SUM.size]
        if len(data) < HEADER.size or HEADER.unpack_from(data)[6] != crc32c(head):
            raise DerivedDamage("header of an index", file=file, offset=0)
        magic, version, _, theirs, count, _, _ = HEADER.unpack_from(data)
        if (magic, version, theirs) != (MAGIC, VERSION, base):
            raise DerivedDamage("header of an index", file=file, offset=0)
        if len(data) - HEADER.size != count * ROW.size:
            raise DerivedDamage("length of an index", file=file, offset=len(data))
        rows = array("Q", data[HEADER.size :])
        if sys.byteorder == "big":
            rows.byteswap()
        ids, offsets = rows[::3], rows[1::3]
        ascend = ascending(ids) and ascending(offsets)
        if count and not (ascend and offsets[0] >= 64 and offsets[-1] < size and ids[0]):
            raise DerivedDamage("rows of an index", file=file, offset=HEADER.size)
        made = cls()
        made.ids, made.offsets, made.times = ids, offsets, array("q", rows[2::3].tobytes())
        if count:
            made.next = made.offsets[-1] + SPACING
        return made


def little(column: array[int]) -> bytes:
    """Return the bytes of numbers, little-endian."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def ascending(column: array[int]) -> bool:
    """Return whether the numbers are strictly ascending."""
    return all(map(lt, column, islice(column, 1, None)))
