"""Positions and leases of the consumers of a queue, `cursors.dat`: a header, then a journal.

    offset  size  type  field     meaning
    0       8     8s    magic     WINKQCUR
    8       8     Q     seed      random: rows of another file are none of this one
    16      4     I     checksum  CRC-32C of the 16 bytes before

    row     offset  size  type  field
            0       1     B     kind
            1       1     B     cursor    0: the main one
            2       2     H     deliveries
            4       4     I     priority
            8       32    4Q    values
            40      4     I     checksum: CRC-32C of seed and row before this field

    kind     values
    NAME     the name of a cursor, UTF-8 with zeros behind it; it begins, or begins again
    AT       ids, of low, medium and high priority: what is below them is consumed, unless LEASED
    SEEK     the same, and nothing is leased any more
    LEASED   id, deadline (nanoseconds since the epoch), failures; also deliveries and priority,
             whose position is behind it
    DONE     id: it is not leased any more
    GONE     the cursor is removed
    WRITTEN  next and read id that metadata.dat is about to have
    FILES    segments are about to come, go or change
    MODE     1: messages are read by priority, 0: by arrival
    KEY      SHA-256 of an id of the user's; the next row is KEPT
    KEPT     message id, when it was enqueued, when the window ends, offset

Little-endian. The journal ends at the first row whose checksum is wrong.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from google_crc32c import extend, value

from winkformats.disk.storage import Storage
from winkformats.ledgerq.entry import SUM

CURSORS: Final = "cursors.dat"
MAGIC: Final = b"WINKQCUR"
HEADER: Final = struct.Struct("<8sQI")
ROW: Final = struct.Struct("<BBHI4Q")
TEXT: Final = struct.Struct("<BBHI32s")
STRIDE: Final = ROW.size + SUM.size
NAME, AT, SEEK, LEASED, DONE, GONE, WRITTEN, FILES, MODE, KEY, KEPT = range(1, 12)
MAX_NAME: Final = 32  # bytes of the name of a cursor
assert (HEADER.size, ROW.size, STRIDE) == (20, 40, 44)


class Row(NamedTuple):
    kind: int
    cursor: int
    deliveries: int
    priority: int
    values: tuple[int, int, int, int]
    text: bytes


class Journal:
    """Writer of a journal: rows are buffered, and written by `flush`.

    size      bytes written
    unsynced  whether some of them were not synced; the caller that syncs sets it to False
    """

    def __init__(self, storage: Storage, seed: int | None = None, size: int = 0) -> None:
        """Continue a journal with this seed and `size` bytes; None: `storage` is empty."""
        self.storage = storage
        self.seed = int.from_bytes(os.urandom(8)) if seed is None else seed
        self._sum = value(self.seed.to_bytes(8, "little"))
        self.rows: list[bytes] = [header(self.seed)] if seed is None else []
        self.size, self.unsynced = size, False

    def add(
        self, kind: int, cursor: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0,
        *, deliveries: int = 0, priority: int = 0,
    ) -> None:  # fmt: skip
        row = ROW.pack(kind, cursor, deliveries, priority, a, b, c, d)
        self.rows.append(row + SUM.pack(extend(self._sum, row)))

    def add_text(self, kind: int, cursor: int, text: bytes) -> None:
        row = TEXT.pack(kind, cursor, 0, 0, text)
        self.rows.append(row + SUM.pack(extend(self._sum, row)))

    def flush(self) -> None:
        """Write the buffered rows. Raises OSError, and keeps the rows."""
        if self.rows:
            data = b"".join(self.rows)
            self.storage.write(self.size, [data])
            self.size, self.unsynced = self.size + len(data), True
            self.rows.clear()


def header(seed: int) -> bytes:
    head = HEADER.pack(MAGIC, seed, 0)[: -SUM.size]
    return head + SUM.pack(value(head))


def seed_of(storage: Storage) -> int | None:
    """Return the seed of a journal; None: its header is missing or damaged."""
    data = storage.read(0, HEADER.size)
    if len(data) < HEADER.size:
        return None
    seed: int = HEADER.unpack(data)[1]
    return seed if data == header(seed) else None


def rows(storage: Storage, seed: int, start: int = HEADER.size) -> Iterator[tuple[Row, int]]:
    """Yield the rows from byte `start` on, each with the offset of its end."""
    data = storage.read(start, max(storage.size() - start, 0))
    begun = value(seed.to_bytes(8, "little"))
    for at in range(0, len(data) - STRIDE + 1, STRIDE):
        row = data[at : at + ROW.size]
        if SUM.unpack_from(data, at + ROW.size)[0] != extend(begun, row):
            break
        kind, cursor, count, priority, *rest = ROW.unpack(row)
        values = rest[0], rest[1], rest[2], rest[3]
        yield Row(kind, cursor, count, priority, values, row[8:]), start + at + STRIDE
