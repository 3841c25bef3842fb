"""Segment, `BASE.log` with 20 digits: a header, followed by entries.

    offset  size  type  field     meaning
    0       4     I     magic     0x4C445151
    4       2     H     version   1
    6       2     H     flags     0
    8       8     Q     base      the number in the name of the file
    16      8     q     created   nanoseconds since the epoch
    24      8     Q     min_id    of its messages, 0 until the segment is closed
    32      8     Q     max_id    the same
    40      20                    zeros
    60      4     I     checksum  CRC-32C of the 60 bytes before

Little-endian. Of the last segment the header may have been written when there were fewer entries.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.ledgerq.entry import CHECKPOINT, HEAD, LAST_ID, LEAST, PAD, SUM

SUFFIX: Final = ".log"
NAME: Final = re.compile(r"([0-9]{20})\.log")
MAGIC: Final = 0x4C445151
VERSION: Final = 1
HEADER: Final = struct.Struct("<IHHQqQQ20sI")
START: Final = HEADER.size
LAST: Final = (1 << 63) - 1  # highest number of a segment
WINDOW: Final = 1 << 18  # bytes read at a time
SEARCH_STEP: Final = 1 << 20  # bytes searched at a time for the next entry
ALWAYS_CHECKED: Final = 4096  # bytes of entries that a search always checks
HASH_BUDGET: Final = 64 << 20  # bytes of longer entries that a search checks
FLAGS: Final = 31  # all bits that may be set
# CRC-32C of any bytes followed by their own CRC-32C, little-endian.
RESIDUE: Final = 0x48674BC7
assert START == 64


class Header(NamedTuple):
    base: int
    created: int
    min_id: int = 0
    max_id: int = 0

    def encode(self) -> bytes:
        data = HEADER.pack(MAGIC, VERSION, 0, *self, bytes(20), 0)[: -SUM.size]
        return data + SUM.pack(crc32c(data))

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> Header:
        """Decode the header of a segment. Raises CorruptError."""
        if len(data) < START:
            raise CorruptError(
                "header of a segment", file=file, offset=0, expected=f"{START} bytes",
                found=len(data),
            )  # fmt: skip
        magic, version, _, *fields, _, checksum = HEADER.unpack_from(data)
        if magic != MAGIC or checksum != crc32c(data[: START - SUM.size]):
            raise CorruptError("header of a segment", file=file, offset=0)
        if version != VERSION:
            raise CorruptError(
                "version of a segment", file=file, offset=4, expected=VERSION, found=version
            )
        return cls(*fields)


def name_of(base: int, suffix: str = SUFFIX) -> str:
    return f"{base:020d}{suffix}"


@dataclass
class Walk:
    """Pass over the entries of a segment, in windows.

    offset  of the next entry
    last    id of the last entry; later entries have higher ids
    data    bytes of the current window, from offset `base` of the file
    places  offsets in `data` of the entries in the window
    bad     ranges [start, stop) of damaged bytes before an intact entry
    tail    offset from which on no entry follows before the end of the file; -1: the file ends
            with an entry

    An entry is intact if its checksum is right, and its id higher than that before.
    """

    storage: Storage
    offset: int = START
    last: int = 0
    places: list[int] = field(default_factory=list)
    data: bytes = b""
    base: int = 0
    bad: list[tuple[int, int]] = field(default_factory=list)
    tail: int = -1

    def step(self, size: int, window: int = WINDOW) -> bool:
        """Read the next window of a file of `size` bytes -> False at the end, without an entry."""
        self.places, self.tail = [], -1
        while not self.places and self.offset < size:
            self._load(min(window, size - self.offset))
            self._take()
            if not self.places and not self._longer(size) and not self._skip(size):
                self.tail = self.offset
                return False
        return bool(self.places)

    def rows(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Yield length, kind, flags, id and timestamp of each entry, and its offset in `data`."""
        for at in self.places:
            yield *HEAD.unpack_from(self.data, at), at

    def _load(self, length: int) -> None:
        self.base = self.offset
        self.data = self.storage.read(self.base, length)

    def _take(self) -> None:
        """Find the intact entries that are completely in `data`.

        Only offsets are kept, since many tuples would slow down the garbage collector.
        """
        data, at, last, add = self.data, self.offset - self.base, self.last, self.places.append
        unpack, checksum = HEAD.unpack_from, crc32c
        room = len(data)
        while at <= room - LEAST:
            length, kind, _, id, _ = unpack(data, at)
            stop = at + length
            if not (
                length >= LEAST
                and stop <= room
                and last < id <= LAST_ID
                and 1 <= kind <= CHECKPOINT
                and checksum(data[at:stop]) == RESIDUE
            ):
                break
            add(at)
            last, at = id, stop + 4
        self.offset, self.last = self.base + at, last

    def _longer(self, size: int) -> bool:
        """Read an entry that is longer than a window -> whether it is intact."""
        head = self.data[:LEAST]
        if len(head) < LEAST:
            return False
        length = HEAD.unpack_from(head)[0]
        if not len(self.data) < length <= size - self.base:
            return False
        self._load(length)
        self._take()
        return bool(self.places)

    def _skip(self, size: int) -> bool:
        """Skip damaged bytes -> False if no intact entry follows."""
        start = self.offset
        found = self._next_by_length(start, size) or self._search(start + 1, size)
        if not found:
            return False
        self.bad.append((start, found))
        self.offset = found
        return True

    def _next_by_length(self, start: int, size: int) -> int:
        """Return the offset of the next entry by the length of this one; 0: none is there."""
        head = self.storage.read(start, HEAD.size)
        if len(head) < HEAD.size:
            return 0
        length, kind, *_ = HEAD.unpack(head)
        after = start + length + len(PAD)
        if length < LEAST or not 1 <= kind <= CHECKPOINT or after + LEAST > size:
            return 0
        return after if self._good(after, size) else 0

    def _good(self, at: int, size: int) -> bool:
        head = self.storage.read(at, HEAD.size)
        if len(head) < HEAD.size:
            return False
        length, kind, _, id, _ = HEAD.unpack(head)
        if (
            not LEAST <= length <= size - at
            or not self.last < id <= LAST_ID
            or not 1 <= kind <= CHECKPOINT
        ):
            return False
        data = self.storage.read(at, length)
        return len(data) == length and bool(crc32c(data) == RESIDUE)

    def _search(self, start: int, size: int) -> int:
        """Search byte by byte for the next intact entry -> its offset; 0: there is none."""
        budget = HASH_BUDGET
        for base in range(start, size - LEAST + 1, SEARCH_STEP):
            data = self.storage.read(base, min(SEARCH_STEP + LEAST, size - base))
            count = len(data) - LEAST + 1
            for at in self._candidates(data, max(count, 0), base, start, size):
                length = HEAD.unpack_from(data, at)[0]
                if length > ALWAYS_CHECKED:
                    budget -= length
                    if budget < 0:
                        continue
                if self._good(base + at, size):
                    return base + at
        return 0

    def _candidates(self, data: bytes, count: int, base: int, start: int, size: int) -> list[int]:
        """Return the offsets in `data` where an entry may begin."""
        import numpy as np  # late: a queue without damage does not need it

        def field_at(offset: int, kind: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
            return np.ndarray((count,), kind, data, offset, (1,))

        kinds = field_at(4, "u1")
        hits = np.flatnonzero((kinds >= 1) & (kinds <= CHECKPOINT) & (field_at(5, "u1") <= FLAGS))
        lengths, ids = field_at(0, "<u4")[hits], field_at(6, "<u8")[hits]
        hits = hits[(lengths >= LEAST) & (lengths <= size - base - hits)
                    & (ids > np.uint64(self.last))]  # fmt: skip
        if self.last:  # at most as many ids are missing as entries fit into the damaged bytes
            most = self.last + 1 + (base + hits - start + 1) // (LEAST + len(PAD))
            hits = hits[field_at(6, "<u8")[hits] <= most.astype(np.uint64)]
        return hits.tolist()
