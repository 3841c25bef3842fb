"""Metadata block of a Ring Page buffer: two copies of its settings, and two states in turn.

    offset  size  content
    0       512   settings
    1024    512   state, where its turn is even
    2048    512   the settings once more
    3072    512   state, where its turn is odd

All else of its 4096 bytes is zeros. Little-endian. The settings do not change:

    offset  size  type  field       meaning
    0       8     8s    magic       WINKRING
    8       4     I     version     1
    12      4     I     page_size   bytes of a page, a multiple of 4096
    16      4     I     page_count  2 to 65,535
    20      4     I     largest     bytes of the largest record
    24      4     I     flags       REFUSE: no page is written over that has unread records
    28      4     I     ring        number of this buffer, by chance; its pages have it, too
    32      4     I     crc         CRC-32 of the bytes before

Of the two states the one with the higher turn counts:

    offset  size  type  field        meaning
    0       4     I     ring         as in the settings
    4       1     B     num_pages    pages that were written, up to 3
    5       1     B     looped       1: page 0 was written again
    6       1     B     clean        1: written at a clean end
    7       1     B     reserved     0
    8       8     Q     turn         of this state
    16      8     Q     tail         number of the oldest record that is unread
    24      8     Q     next         number that follows that of the last record on the disk
    32      8     Q     written      bytes that were written to the buffer
    40      8     Q     stored       of these, bytes of records
    48      8     Q     overwritten  records that were written over unread
    56      4     I     crc          CRC-32 of the bytes before

`tail` is valid only in a clean state, and only if `next` agrees with the pages.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple, Self

from winkformats.errors import CorruptError, FormatError
from winkformats.ringpage import page
from winkformats.ringpage.page import BLOCK

MAGIC: Final = b"WINKRING"
VERSION: Final = 1
SETTINGS: Final = struct.Struct("<8s6I")
STATE: Final = struct.Struct("<I4B6Q")
CRC: Final = struct.Struct("<I")
PLACES: Final = (0, 2048)  # offsets of the settings
TURNS: Final = (1024, 3072)  # offsets of the states
REFUSE: Final = 1
MAX_PAGES: Final = 65_535  # a sequence number has 16 bits
MAX_SIZE: Final = 1 << 24  # bytes of a page
NUM_PAGES: Final = 3
assert (SETTINGS.size, STATE.size) == (32, 56)


class Settings(NamedTuple):
    """The settings of a buffer: see the table. refuse: the flag REFUSE."""

    page_size: int
    page_count: int
    largest: int
    refuse: bool
    ring: int

    @property
    def size(self) -> int:
        """Size of the whole buffer, bytes."""
        return BLOCK + self.page_size * self.page_count

    def offset(self, index: int) -> int:
        """Return the offset of a page."""
        return BLOCK + self.page_size * index

    def check(self) -> None:
        """Raise ValueError for settings that are not valid."""
        size, count = self.page_size, self.page_count
        if size <= 0 or size % BLOCK or size > MAX_SIZE:
            raise ValueError(f"a page has a multiple of {BLOCK} bytes, up to 16 MiB, not {size:,}")
        if not 2 <= count <= MAX_PAGES:
            raise ValueError(f"a buffer has 2 to {MAX_PAGES:,} pages, not {count:,}")
        room = page.largest(size)
        if not 0 < self.largest <= room:
            raise ValueError(
                f"a page of {size:,} bytes holds a record of up to {room:,}, not {self.largest:,}"
            )

    def encode(self) -> bytes:
        """Encode the metadata block of a new buffer."""
        head = SETTINGS.pack(
            MAGIC, VERSION, self.page_size, self.page_count, self.largest,
            REFUSE * self.refuse, self.ring,
        )  # fmt: skip
        half = summed(head).ljust(TURNS[0], b"\0")
        return b"".join(
            half + BufferState(turn=turn).encode(self.ring).ljust(len(half), b"\0")
            for turn in range(2)
        )

    @classmethod
    def decode(cls, block: bytes, *, name: str) -> tuple[Self, list[str]]:
        """Decode the settings -> these, and a line for a damaged copy of them.

        raises  FormatError if it is no metadata block; CorruptError if both copies are damaged
        """
        found, wrong = [], []
        block = block.ljust(BLOCK, b"\0")
        for place in PLACES:
            raw = block[place : place + SETTINGS.size + CRC.size]
            if not raw.startswith(MAGIC):
                wrong.append(f"{name}: no settings at byte {place}")
            elif summed(raw[:-4]) != raw:
                wrong.append(f"{name}: the checksum of the settings at byte {place} is wrong")
            else:
                found.append(raw)
        if not found and len(wrong) == sum("no settings" in line for line in wrong):
            raise FormatError(f"{name}: no Ring Page buffer")
        if not found:
            raise CorruptError("both copies of the settings are damaged", file=name, offset=0)
        _, version, size, count, largest, flags, ring = SETTINGS.unpack(found[0][:-4])
        if version != VERSION or flags & ~REFUSE:
            raise FormatError(f"{name}: a Ring Page buffer of a later version, {version}.{flags}")
        settings = cls(size, count, largest, bool(flags & REFUSE), ring)
        try:
            settings.check()
        except ValueError as error:
            raise CorruptError(str(error), file=name, offset=0) from None
        return settings, wrong


class BufferState(NamedTuple):
    """The state of a buffer: see the table."""

    num_pages: int = 0
    looped: bool = False
    clean: bool = False
    turn: int = 0
    tail: int = 0
    next: int = 0
    written: int = 0
    stored: int = 0
    overwritten: int = 0

    @property
    def offset(self) -> int:
        """Its offset in the block."""
        return TURNS[self.turn % 2]

    def encode(self, ring: int) -> bytes:
        return summed(STATE.pack(ring, *self[:3], 0, *self[3:]))

    @classmethod
    def decode(cls, block: bytes, ring: int) -> Self | None:
        """Decode the newer one of the intact states; None: both are damaged."""
        found = []
        block = block.ljust(BLOCK, b"\0")
        for place in TURNS:
            raw = block[place : place + STATE.size + CRC.size]
            if summed(raw[:-4]) == raw:
                whose, num_pages, looped, clean, _, *rest = STATE.unpack(raw[:-4])
                state = cls(num_pages, bool(looped), bool(clean), *rest)
                sane = num_pages <= NUM_PAGES and max(rest) <= page.LAST
                if whose == ring and sane and state.offset == place:
                    found.append(state)
        return max(found, key=lambda state: state.turn, default=None)


def summed(data: bytes) -> bytes:
    """Return the bytes, followed by their checksum."""
    return data + CRC.pack(zlib.crc32(data))
