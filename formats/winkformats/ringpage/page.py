"""Page of a Ring Page buffer: a header, and records one after another.

    offset  size  type  field     meaning
    0       2     H     sequence  counts up from 1 in even passes, down from page_count in odd ones
    2       2     H     flags     TURN: the pass, from 0 on, of which bit 0 is the parity;
                                  GOES_ON: the last record does, in the next page
    4       4     I     crc       CRC-32 of all of the page but this field
    8       4     I     ring      the buffer it is of; others are left over from what was here
    12      4     I     records   that begin here
    16      8     Q     number    of the first one of them
    24      4     I     first     bytes at the start that end a record of the page before
    28      4     I     used      bytes of records; padding follows
    32      used        data      records: each its length and its body
    32+used             padding   zeros

Little-endian. A length has 2 bytes, in pages of more than 65,536 bytes 4. A record, and also its
length, may begin in one page and end in the next one. If `first` is 0 there, its end was never
written.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from winkformats.errors import CorruptError

HEAD: Final = struct.Struct("<HHIIIQII")
BLOCK: Final = 4096  # bytes before the first page; pages are multiples of it
TURN: Final = 0x7FFF
GOES_ON: Final = 0x8000
SHORT_LENGTH: Final = struct.Struct("<H")
LONG_LENGTH: Final = struct.Struct("<I")
LAST: Final = (1 << 63) - 1  # highest number of a record
assert HEAD.size == 32


def length_of(page_size: int) -> struct.Struct:
    """Return the struct of the length of a record."""
    return SHORT_LENGTH if page_size <= 1 << 16 else LONG_LENGTH


def largest(page_size: int) -> int:
    """Return the bytes of the largest record, which fills a page."""
    return page_size - HEAD.size - length_of(page_size).size


class Head(NamedTuple):
    """The header of a page: see the table."""

    sequence: int
    flags: int
    crc: int
    ring: int
    records: int
    number: int
    first: int
    used: int

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        return cls._make(HEAD.unpack_from(raw))

    @property
    def end(self) -> int:
        """The number after that of its last record."""
        return self.number + self.records

    @property
    def turn(self) -> int:
        """The pass, modulo 2^15."""
        return self.flags & TURN

    @property
    def goes_on(self) -> bool:
        return bool(self.flags & GOES_ON)

    def fits(self, index: int, page_count: int, page_size: int, ring: int) -> bool:
        """Return whether it may be the header of this page of this buffer."""
        return (
            self.ring == ring
            and self.sequence == sequence_of(index, self.flags, page_count)
            and self.first <= self.used <= page_size - HEAD.size
            and self.records <= self.used - self.first
            and self.end <= LAST
        )

    def leads_to(self, after: Head) -> bool:
        """Return whether the next page, with header `after`, has the end of the last record."""
        return self.goes_on and after.first > 0 and self.end == after.number


def sequence_of(index: int, turn: int, page_count: int) -> int:
    return page_count - index if turn % 2 else index + 1


def encode(
    index: int, turn: int, page_count: int, page_size: int, *,
    ring: int, number: int, records: int, first: int, goes_on: bool, data: bytes,
) -> tuple[Head, bytes]:  # fmt: skip
    """Encode a page -> its header, and its bytes. See the table."""
    flags = turn & TURN | GOES_ON * goes_on
    sequence = sequence_of(index, turn, page_count)
    head = Head(sequence, flags, 0, ring, records, number, first, len(data))
    raw = HEAD.pack(*head) + data.ljust(page_size - HEAD.size, b"\0")
    head = head._replace(crc=checksum(raw))
    return head, HEAD.pack(*head) + raw[HEAD.size :]


def checksum(raw: bytes) -> int:
    view = memoryview(raw)
    return zlib.crc32(view[8:], zlib.crc32(view[:4]))


def is_whole(raw: bytes, page_size: int) -> bool:
    return len(raw) == page_size and Head.decode(raw).crc == checksum(raw)


class Record(NamedTuple):
    """A record; offset: that of its length in the page in which it begins."""

    number: int
    page: int
    offset: int
    body: bytes


class Records:
    """Reader that joins the records of consecutive pages.

    before  header of the last page, if its last record continues in the next one
    """

    def __init__(self, page_size: int, *, name: str) -> None:
        self._size, self._length, self._name = page_size, length_of(page_size), name
        self._begun: tuple[Head, int, int, bytes] | None = None  # start of a record

    @property
    def before(self) -> Head | None:
        return None if self._begun is None else self._begun[0]

    def break_off(self) -> None:
        """Drop the start of a record, because a page is missing before the next one."""
        self._begun = None

    def read(self, index: int, raw: bytes) -> list[Record]:
        """Return the records that end in a page, whose checksum was checked.

        raises  CorruptError if the lengths do not agree with the header
        """
        head = Head.decode(raw)
        data = raw[HEAD.size : HEAD.size + head.used]
        begun, self._begun = self._begun, None
        found = []
        if begun is not None and begun[0].leads_to(head):
            whole = begun[3] + data[: head.first]
            body = whole[self._length.size :]
            if len(whole) < self._length.size or self._length.unpack_from(whole)[0] != len(body):
                raise self._wrong(index)
            found.append(Record(head.number - 1, *begun[1:3], body))
        width, unpack = self._length.size, self._length.unpack_from
        at, stop, number = head.first, len(data), head.number
        while at + width <= stop:
            end = at + width + unpack(data, at)[0]
            if end > stop:
                break
            found.append(Record(number, index, HEAD.size + at, data[at + width : end]))
            at, number = end, number + 1
        if (at < stop) != head.goes_on or number + head.goes_on != head.end:
            raise self._wrong(index)
        if head.goes_on:
            self._begun = head, index, HEAD.size + at, data[at:]
        return found

    def _wrong(self, index: int) -> CorruptError:
        at = BLOCK + index * self._size
        return CorruptError("lengths of records that cannot be", file=self._name, offset=at)


# --- order of pages ---


def in_order(heads: list[Head | None], whole: Callable[[int], bool]) -> list[int]:
    """Return the indices of the valid pages of a buffer, the oldest first.

    The newest page has the highest number. The pages up to it are of its pass, those after it of
    the pass before; others are left over from a write that did not reach the disk. Without damage
    it is also the end of the run of pages with the parity of the first one.

    heads   headers of all pages; None: not valid. Those of pages that are left out become None
    whole   returns whether the checksum of a page is right
    cost    reads two pages, and those whose numbers do not fit
    """
    ends = sorted((head.end, head.number, at) for at, head in enumerate(heads) if head is not None)
    while ends and not whole(ends[-1][2]):
        heads[ends.pop()[2]] = None  # half written, or damaged
    if not ends:
        return []
    newest = ends[-1][2]
    last = heads[newest]
    assert last is not None
    for index, head in enumerate(heads):
        if head is not None and head.turn != (last.turn - (index > newest)) & TURN:
            heads[index] = None
    after = (newest + 1) % len(heads)
    if after != newest and heads[after] is not None and not whole(after):
        heads[after] = None  # half written, with the header of the pass before
    found: list[tuple[int, int]] = []  # number after its last record, index
    for index in (*range(newest + 1, len(heads)), *range(newest + 1)):
        head = heads[index]
        if head is None:
            continue
        if found and found[-1][0] > head.number and not whole(index):
            heads[index] = None
            continue
        while found and found[-1][0] > head.number:
            heads[found.pop()[1]] = None
        found.append((head.end, index))
    return [index for _, index in found]
