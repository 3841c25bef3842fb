"""List of the data files that a LogStore must have, in its file `datafiles`.

    offset  size  type  field     meaning
    0       8     8s    magic     WINKLOGF
    8       8     Q     store     number of the store
    16      4     I     checksum  CRC-32 of the bytes before

and rows of 16 bytes, followed by zeros:

    offset  size  type  field     meaning
    0       4     I     kind      1: the data file is there; 2: it is removed, or about to be
    4       8     Q     number    of the data file
    12      4     I     checksum  CRC-32 of the bytes before, begun with that of the header

Big-endian. A row of kind 1 is written after the file, one of kind 2 before its removal. It is a
derived file: if it is damaged or missing, a missing data file is not noticed, until a writer opens
the store and lists the data files.
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
ROOM: Final = 4096  # the size is a multiple of so many bytes, so that rows fit on a full disk
assert (HEAD.size, ROW.size) == (20, 16)


def encode(store: int, numbers: Iterable[int]) -> bytes:
    """Encode the file for these data files."""
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
    """Return the numbers of the required data files, and the offset of the next row; None: the file
    cannot be used."""
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
    # A damaged row may record that a file is removed.
    return None if data[at:].strip(b"\0") else (there, at)
