"""What both versions of a segment have: what a scan finds, and how a segment is compacted in place.

Source: seeds/cq-message-store-v2.txt; where the document is silent, what the reference does.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from winkformats.disk.storage import Storage

ID: Final = 16  # bytes of a message id
WINDOW: Final = 1 << 18  # bytes read at a time
COPY: Final = 1 << 20  # bytes moved or blanked at a time
NEAR: Final = 4096  # bytes between messages up to which they are moved at once
Valid = Callable[[bytes], bool]  # of a body


class Message(NamedTuple):
    """A message of a segment: `size` bytes from `offset`, its header and trailer too."""

    msg_id: bytes
    size: int
    offset: int


@dataclass
class Scan:
    """What a scan found.

    rows      id, size and offset of each message, in the order of the file, each id once
    end       bytes: where the scan ended
    error     what is wrong there; "" at the end of the file, or where a record is torn
    value     the byte that says so, where one does
    checked   messages with a checksum, those with an id that came before, too
    """

    rows: list[tuple[bytes, int, int]] = field(default_factory=list)
    end: int = 0
    error: str = ""
    value: int | None = None
    checked: int = 0

    @property
    def messages(self) -> list[Message]:
        return list(map(Message._make, self.rows))

    @property
    def said(self) -> str:
        """What is wrong, for people."""
        return self.error.replace("_", " ") + ("" if self.value is None else f" {self.value}")


class Window:
    """Bytes of a file, read a piece at a time as a scan goes on."""

    def __init__(self, storage: Storage) -> None:
        self._read, self.size = storage.read, storage.size()
        self.data, self.base = b"", 0

    def at(self, offset: int, least: int) -> int:
        """-> where in `data` an offset is: with `least` bytes from it, unless the file ends."""
        place = offset - self.base
        if place < 0 or place + least > len(self.data):
            self.data, self.base = self._read(offset, max(WINDOW, least)), offset
            place = 0
        return place


class Plan(NamedTuple):
    """How a segment is compacted: messages move into gaps nearer to the front.

    moves  message, and its new offset, in order
    gaps   [start, stop): what is left of those that messages moved into
    size   bytes of the segment when it is truncated
    """

    moves: list[tuple[Message, int]]
    gaps: list[tuple[int, int]]
    size: int

    @property
    def moved(self) -> list[Message]:
        """The messages that move, at their new offsets."""
        return [Message(msg_id, size, at) for (msg_id, size, _), at in self.moves]


def plan(kept: list[Message], start: int) -> Plan:
    """The last message moves into the first gap that holds it, and so on until they meet.

    kept   in the order of the file
    start  bytes before the first record of a segment
    """
    moves: list[tuple[Message, int]] = []
    gaps: list[tuple[int, int]] = []
    first, last, at, used = 0, len(kept) - 1, start, False
    while first <= last:
        here, mover = kept[first], kept[last]
        fits = mover.size <= here.offset - at
        if fits:
            moves.append((mover, at))
            at, used, last = at + mover.size, True, last - 1
        if used and at < here.offset and (not fits or last < first):
            gaps.append((at, here.offset))
        if not fits:
            at, used, first = here.offset + here.size, False, first + 1
    return Plan(moves, gaps, at)


def blank(storage: Storage, start: int, stop: int) -> None:
    """Fill a part of a segment with zeros."""
    for at in range(start, stop, COPY):
        storage.write(at, [bytes(min(COPY, stop - at))])


def move(storage: Storage, moves: list[tuple[Message, int]]) -> None:
    """Copy messages to their new offsets, each into a gap before it.

    moves  as `plan` makes them: new offsets ascend, old ones descend and are behind all new ones
    cost   a read and a write for messages that are less than NEAR bytes apart, which write what
           is between them again as it is: of 1 KiB a quarter of what calls for each cost
    """
    for some in _together(moves):
        if len(some) == 1 and some[0][0].size > COPY:
            _move_large(storage, *some[0])
            continue
        pieces = _read_near(storage, [message for message, _ in reversed(some)])
        start = some[0][1]
        stop = some[-1][1] + some[-1][0].size
        data = bytearray(storage.read(start, stop - start)) if len(some) > 1 else bytearray()
        for (message, offset), piece in zip(some, reversed(pieces), strict=True):
            data[offset - start : offset - start + message.size] = piece
        storage.write(start, [data])


def _together(moves: list[tuple[Message, int]]) -> Iterator[list[tuple[Message, int]]]:
    """Runs of moves whose new places are near each other, of COPY bytes, about."""
    some: list[tuple[Message, int]] = []
    for one in moves:
        if some:
            end = some[-1][1] + some[-1][0].size
            if one[1] - end >= NEAR or one[1] + one[0].size - some[0][1] > COPY:
                yield some
                some = []
        some.append(one)
    if some:
        yield some


def _read_near(storage: Storage, messages: list[Message]) -> list[bytes]:
    """Their records, which ascend; those that are near each other are read at once."""
    found: list[bytes] = []
    first = 0
    for i in range(1, len(messages) + 1):
        if i < len(messages):
            before, start = messages[i - 1], messages[first].offset
            end = messages[i].offset + messages[i].size
            if messages[i].offset - before.offset - before.size < NEAR and end - start <= COPY:
                continue
        start = messages[first].offset
        length = messages[i - 1].offset + messages[i - 1].size - start
        data = storage.read(start, length)
        if len(data) < length:
            raise OSError(errno.EIO, "was cut while it was compacted", storage.name)
        found += [data[m.offset - start : m.offset - start + m.size] for m in messages[first:i]]
        first = i
    return found


def _move_large(storage: Storage, message: Message, offset: int) -> None:
    for at in range(0, message.size, COPY):
        piece = storage.read(message.offset + at, min(COPY, message.size - at))
        storage.write(offset + at, [piece])
