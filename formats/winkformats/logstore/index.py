"""Saved index table of a LogStore, in its file `index`: the entry of each recid up to a commit.

    offset  size  type  field     meaning
    0       8     8s    magic     WINKLOGI
    8       8     Q     store     number of the store
    16      8     Q     position  behind the last commit that it knows
    24      8     Q     sequence  of that commit
    32      8     Q     recids    n: the recids are less
    40      8     Q     blobs     number of the next blob file
    48      4     I     checksum  CRC-32 of the bytes before

    52          8n    position of each recid; 0: there is no record
    52 + 8n     4n    its bytes in the log; bit 31: a blob record, bit 30: null
    52 + 12n    4     checksum: CRC-32 of the two tables

Big-endian. It is a derived file: without it all data files are read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats.arrays import UInt64
from winkformats.disk.storage import Storage
from winkformats.errors import DerivedDamage

NAME: Final = "index"
MAGIC: Final = b"WINKLOGI"
HEAD: Final = struct.Struct(">8sQQQQQI")
SUM: Final = struct.Struct(">I")
RECIDS_AT_ONCE: Final = 1 << 18  # recids that are read or written at a time
Words = npt.NDArray[np.uint32]
assert HEAD.size == 52


class Head(NamedTuple):
    """Header of a saved table."""

    store: int
    position: int
    sequence: int
    recids: int
    blobs: int

    def encode(self) -> bytes:
        data = HEAD.pack(MAGIC, *self, 0)[: -SUM.size]
        return data + SUM.pack(zlib.crc32(data))


def write(storage: Storage, head: Head, positions: UInt64, lengths: Words) -> None:
    """Write a table. positions, lengths: of at least `head.recids` recids. Raises OSError."""
    at = storage.write(0, [head.encode()])
    checksum = 0
    for data in _parts(positions[: head.recids], lengths[: head.recids]):
        checksum = zlib.crc32(data, checksum)
        at += storage.write(at, [data])
    storage.write(at, [SUM.pack(checksum)])


def _parts(positions: UInt64, lengths: Words) -> Iterator[bytes]:
    for column, dtype in ((positions, ">u8"), (lengths, ">u4")):
        for at in range(0, len(column), RECIDS_AT_ONCE):
            yield column[at : at + RECIDS_AT_ONCE].astype(dtype).tobytes()


def read(storage: Storage) -> tuple[Head, UInt64, Words]:
    """Read a table. Raises DerivedDamage; OSError."""
    head = _head(storage)
    checksum, at, n = 0, HEAD.size, head.recids
    positions, lengths = np.empty(n, np.uint64), np.empty(n, np.uint32)
    for into, dtype in ((positions, ">u8"), (lengths, ">u4")):
        for start in range(0, n, RECIDS_AT_ONCE):
            part = into[start : start + RECIDS_AT_ONCE]
            data = storage.read(at, part.nbytes)
            checksum = zlib.crc32(data, checksum)
            if len(data) < part.nbytes:
                raise DerivedDamage("the index table ends", file=storage.name, offset=at)
            part[:] = np.frombuffer(data, dtype)
            at += len(data)
    if storage.read(at, SUM.size) != SUM.pack(checksum):
        raise DerivedDamage("checksum of the index table", file=storage.name, offset=at)
    return head, positions, lengths


def _head(storage: Storage) -> Head:
    data = storage.read(0, HEAD.size)
    if len(data) < HEAD.size or data[:8] != MAGIC:
        raise DerivedDamage("no index table", file=storage.name, offset=0)
    _, *fields, checksum = HEAD.unpack(data)
    head = Head(*fields)
    whole = HEAD.size + 12 * head.recids + SUM.size
    if checksum != zlib.crc32(data[: -SUM.size]) or storage.size() != whole:
        raise DerivedDamage("header of the index table", file=storage.name, offset=0)
    return head
