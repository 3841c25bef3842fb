"""What both versions of a segment have: what a scan finds, and how a segment is compacted in place.

Source: seeds/cq-message-store-v2.txt; where the document is silent, what the reference does.
"""

from __future__ import annotations

import errno
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from winkformats.arrays import Bools, Int64
from winkformats.disk.storage import Storage

ID: Final = 16  # bytes of a message id
WINDOW: Final = 1 << 18  # bytes read at a time
COPY: Final = 1 << 20  # bytes moved or blanked at a time
NEAR: Final = 4096  # bytes between messages up to which they are moved at once
Valid = Callable[[bytes], bool]  # of a body
Hole = Callable[[int], bytes]  # of a size -> what stands at its start


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
    lost      [start, stop) of what is neither a message nor a gap, of version 1: see `rdq.survey`
    """

    rows: list[tuple[bytes, int, int]] = field(default_factory=list)
    end: int = 0
    error: str = ""
    value: int | None = None
    checked: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)

    @property
    def lost_bytes(self) -> int:
        return sum(stop - start for start, stop in self.lost)

    @property
    def lost_said(self) -> str:
        """Where bytes are that are no message, for people."""
        places = ", ".join(f"{start} to {stop}" for start, stop in self.lost[:3])
        more = f" and {len(self.lost) - 3} more" if len(self.lost) > 3 else ""
        return (
            f"bytes {places}{more} are no message: damage, or what a broker left when it compacted"
        )

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
    """How a segment is compacted: the last messages that are kept move into gaps before them.

    targets  int64[m]: the new offsets of the last m messages, the very last one first; ascending
    gaps     [start, stop): what is left of those that messages moved into
    size     bytes of the segment when it is truncated
    """

    targets: Int64
    gaps: list[tuple[int, int]]
    size: int

    def offsets(self, before: Int64) -> Int64:
        """Where the messages that are kept are then, whose offsets were these."""
        after = before.copy()
        after[len(after) - len(self.targets) :] = self.targets[::-1]
        return after


def plan(offsets: Int64, sizes: Int64, start: int, least: int = 1) -> Plan:
    """The last message moves into the first gap that holds it, and so on until they meet.

    offsets, sizes  of the messages that are kept, in the order of the file
    start           bytes before the first record of a segment
    least           bytes that a gap has, at least, where one is left
    cost            0.1 us a message, 0.4 us one that moves
    """
    ends = offsets + sizes
    starts = np.concatenate(([start], ends))[: len(offsets)]
    wide = np.flatnonzero(offsets - starts >= sizes.min(initial=0))  # gaps that may hold one
    lengths, last = sizes.tolist(), len(offsets) - 1
    targets: list[int] = []
    gaps: list[tuple[int, int]] = []
    at = start
    for i, begin, stop in zip(
        wide.tolist(), starts[wide].tolist(), offsets[wide].tolist(), strict=True
    ):
        if i > last:
            break
        place = begin
        while i <= last and ((rest := stop - place - lengths[last]) >= least or not rest):
            targets.append(place)
            place += lengths[last]
            last -= 1
        if place > begin:
            at = place
            if place < stop:
                gaps.append((place, stop))
    end = int(ends[last]) if last >= 0 else start
    return Plan(np.array(targets, np.int64), gaps, max(at, end))


def blank(storage: Storage, start: int, stop: int) -> None:
    """Fill a part of a segment with zeros."""
    for at in range(start, stop, COPY):
        storage.write(at, [bytes(min(COPY, stop - at))])


def move(
    storage: Storage, offsets: Int64, sizes: Int64, made: Plan, hole: Hole | None = None
) -> None:
    """Copy messages to their new offsets, each into a gap before it.

    hole  what is written at the start of what is left of a gap, before zeros; None: that stays
    cost  a read and a write for messages that are less than NEAR bytes apart, which write what
          is between them again as it is: of 1 KiB a quarter of what calls for each cost
    """
    count, targets = len(made.targets), made.targets
    sources, lengths = (column[::-1][:count] for column in (offsets, sizes))
    gaps, hole = made.gaps if hole is not None else [], hole or bytes
    begins = [start for start, _ in gaps]  # each where a message that moved ends
    for first, last in _near(targets, lengths, lengths[1:] > COPY):
        start, stop = int(targets[first]), int(targets[last - 1] + lengths[last - 1])
        mine = gaps[bisect(begins, start) : bisect(begins, stop)]
        if lengths[first] > COPY:
            _move_large(storage, int(sources[first]), start, stop - start)
        else:
            small = [gap for gap in mine if gap[1] - gap[0] < NEAR]
            end = max([stop, *(end for _, end in small)])
            data = bytearray(end - start)
            if last - first > 1:
                storage.read_into(memoryview(data), start)
            part = slice(last - 1, first - 1 if first else None, -1)  # sources ascend
            _copy(storage, data, sources[part], lengths[part], targets[part] - start)
            for begin, end in small:
                data[begin - start : end - start] = hole(end - begin).ljust(end - begin, b"\0")
            storage.write(start, [data])
            mine = [gap for gap in mine if gap[1] - gap[0] >= NEAR]
        for begin, end in mine:
            head = hole(end - begin)
            storage.write(begin, [head])
            blank(storage, begin + len(head), end)


def _near(starts: Int64, sizes: Int64, apart: Bools) -> Iterator[tuple[int, int]]:
    """Runs [first, last) of places that ascend, near each other, of COPY bytes, about."""
    apart = apart | (starts[1:] - starts[:-1] - sizes[:-1] >= NEAR)
    apart |= starts[1:] // COPY != starts[:-1] // COPY
    return pairwise([0, *(np.flatnonzero(apart) + 1).tolist(), len(starts)] if len(starts) else [])


def _copy(
    storage: Storage, data: bytearray, sources: Int64, lengths: Int64, targets: Int64
) -> None:
    """Read records, whose places ascend, and put them into `data`."""
    view = memoryview(data)
    for first, last in _near(sources, lengths, np.zeros(len(sources) - 1, bool)):
        base = int(sources[first])
        length = int(sources[last - 1] + lengths[last - 1]) - base
        piece = memoryview(storage.read(base, length))
        if len(piece) < length:
            raise OSError(errno.EIO, "was cut while it was compacted", storage.name)
        here = slice(first, last)
        columns = (targets[here], sources[here] - base, lengths[here])
        for into, at, size in zip(*(column.tolist() for column in columns), strict=True):
            view[into : into + size] = piece[at : at + size]


def _move_large(storage: Storage, source: int, target: int, size: int) -> None:
    for at in range(0, size, COPY):
        length = min(COPY, size - at)
        piece = storage.read(source + at, length)
        if len(piece) < length:
            raise OSError(errno.EIO, "was cut while it was compacted", storage.name)
        storage.write(target + at, [piece])
