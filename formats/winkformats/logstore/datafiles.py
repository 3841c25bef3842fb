"""The data files of a LogStore, in its file `datafiles`: which there must be.

    offset  size  type  field     meaning
    0       8     8s    magic     WINKLOGF
    8       8     Q     store     number of the store
    16      4     I     checksum  CRC-32 of the bytes before

and rows of 16 bytes, and zeros behind them:

    offset  size  type  field     meaning
    0       4     I     kind      1: the data file is there; 2: it is removed, or about to be
    4       8     Q     number    of the data file
    12      4     I     checksum  CRC-32 of the bytes before, begun with that of the header

Big-endian. A row of kind 1 comes behind the file, one of kind 2 before its removal. It is derived:
where it is damaged, or not there, a data file that is gone is not noticed, until a writer opens the
store and lists those that are there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Final

NAME: Final = "datafiles"
MAGIC: Final = b"WINKLOGF"
HEAD: Final = struct.Struct(">8sQI")
ROW: Final = struct.Struct(">IQI")
SUM: Final = struct.Struct(">I")
THERE, REMOVED = 1, 2
ROOM: Final = 4096  # bytes, a multiple of which the file has: a full disk has room for some rows
assert (HEAD.size, ROW.size) == (20, 16)


def encode(store: int, numbers: Iterable[int]) -> bytes:
    """The file, for these data files."""
    head = HEAD.pack(MAGIC, store, 0)[: -SUM.size]
    data = head + SUM.pack(zlib.crc32(head))
    data += b"".join(row(store, THERE, number) for number in numbers)
    return data + bytes(ROOM - len(data) % ROOM)


def row(store: int, kind: int, number: int) -> bytes:
    data = ROW.pack(kind, number, 0)[: -SUM.size]
    return data + SUM.pack(zlib.crc32(data, _seed(store)))


def _seed(store: int) -> int:
    return zlib.crc32(HEAD.pack(MAGIC, store, 0)[: -SUM.size])


def decode(data: bytes, store: int) -> tuple[set[int], int] | None:
    """The data files that there must be, and where the next row goes; None: it is of no use."""
    head = HEAD.pack(MAGIC, store, _seed(store))
    if data[: HEAD.size] != head:
        return None
    there: set[int] = set()
    at = HEAD.size
    while at + ROW.size <= len(data):
        kind, number, _ = ROW.unpack_from(data, at)
        if kind not in (THERE, REMOVED) or data[at : at + ROW.size] != row(store, kind, number):
            break
        (there.add if kind == THERE else there.discard)(number)
        at += ROW.size
    # A row that is not whole may be that of a file which is removed.
    return None if data[at:].strip(b"\0") else (there, at)
