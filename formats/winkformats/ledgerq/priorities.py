"""Offsets of the messages of each priority in a segment, `BASE.pri`, a derived file.

    offset  size  type  field     meaning
    0       8     8s    magic     WINKQPRI
    8       8     Q     covered   bytes of the segment whose messages are all there
    16      24    3Q    counts    messages of low, medium and high priority
    40      8     Q     checksum  XXH3-64 of the 40 bytes before and of all behind

    then of low, medium and high priority the ids, 8 bytes each, and the offsets, 8 bytes each

Little-endian.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Final

import xxhash

from winkformats.errors import DerivedDamage
from winkformats.ledgerq.index import little

SUFFIX: Final = ".pri"
MAGIC: Final = b"WINKQPRI"
HEADER: Final = struct.Struct("<8sQ3Q")
SUM: Final = struct.Struct("<Q")
START: Final = HEADER.size + SUM.size
assert START == 48
Places = tuple["array[int]", "array[int]"]  # ids and offsets, "Q", ascending


def empty() -> tuple[Places, Places, Places]:
    return tuple((array("Q"), array("Q")) for _ in range(3))  # type: ignore[return-value]


def encode(tables: Sequence[Places], covered: int) -> bytes:
    head = HEADER.pack(MAGIC, covered, *(len(ids) for ids, _ in tables))
    body = b"".join(little(column) for places in tables for column in places)
    return head + SUM.pack(_sum(head, body)) + body


def decode(data: bytes, *, file: str, size: int) -> tuple[tuple[Places, Places, Places], int]:
    """Decode the places, and the bytes of the segment that they cover. Raises DerivedDamage."""
    if len(data) < START:
        raise DerivedDamage("table of priorities", file=file, offset=0)
    head, body = data[: HEADER.size], data[START:]
    magic, covered, *counts = HEADER.unpack(head)
    good = magic == MAGIC and sum(counts) * 16 == len(body) and covered <= size
    if not good or SUM.unpack_from(data, HEADER.size)[0] != _sum(head, body):
        raise DerivedDamage("table of priorities", file=file, offset=0)
    found, at = empty(), 0
    for places, count in zip(found, counts, strict=True):
        for column in places:
            column.frombytes(body[at : at + 8 * count])
            if sys.byteorder == "big":
                column.byteswap()
            at += 8 * count
    return found, covered


def _sum(head: bytes, body: bytes) -> int:
    hashed = xxhash.xxh3_64(head)
    hashed.update(body)
    return hashed.intdigest()
