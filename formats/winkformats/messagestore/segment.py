"""Common parts of both versions of a segment: results of a scan, and compaction in place.

Source: seeds/cq-message-store-v2.txt, and for what it leaves open the reference implementation.
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
COPY: Final = 1 << 20  # bytes moved or cleared at a time
MAX_GAP: Final = 4096  # bytes between messages up to which they are moved together
Valid = Callable[[bytes], bool]  # body -> whether it is valid
Hole = Callable[[int], bytes]  # size of a gap -> the bytes at its start


class Message(NamedTuple):
    """A message of a segment: `size` bytes from `offset`, with header and trailer."""

    msg_id: bytes
    size: int
    offset: int


@dataclass
class SegmentScan:
    """Result of a scan.

    rows      id, size and offset of each message, in file order, each id once
    end       offset where the scan ended
    error     the error there; "": the end of the file, or of a torn record
    value     the byte that is wrong; None: not known
    checked   number of messages with a checksum, repeated ids included
    lost      ranges [start, stop) that are neither a message nor a gap, see `rdq.survey`
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
    def lost_text(self) -> str:
        """Message on the lost ranges."""
        places = ", ".join(f"{start} to {stop}" for start, stop in self.lost[:3])
        more = f" and {len(self.lost) - 3} more" if len(self.lost) > 3 else ""
        return (
            f"bytes {places}{more} are no message: damage, or what a broker left when it compacted"
        )

    @property
    def messages(self) -> list[Message]:
        return list(map(Message._make, self.rows))

    @property
    def error_text(self) -> str:
        """Message on the error."""
        return self.error.replace("_", " ") + ("" if self.value is None else f" {self.value}")


class Window:
    """Bytes of a file around the position of a scan."""

    def __init__(self, storage: Storage) -> None:
        self._read, self.size = storage.read, storage.size()
        self.data, self.base = b"", 0

    def at(self, offset: int, least: int) -> int:
        """Return the index in `data` of an offset, after reading `least` bytes from it; fewer only
        at the end of the file."""
        place = offset - self.base
        if place < 0 or place + least > len(self.data):
            self.data, self.base = self._read(offset, max(WINDOW, least)), offset
            place = 0
        return place


class Plan(NamedTuple):
    """Plan of a compaction: the last kept messages move into gaps before them.

    targets  int64[m]: new offsets of the last m messages, the last one first; ascending
    gaps     rests [start, stop) of the gaps that messages move into
    size     bytes of the segment when it is truncated
    """

    targets: Int64
    gaps: list[tuple[int, int]]
    size: int

    def offsets(self, before: Int64) -> Int64:
        """Return the new offsets of the kept messages, whose old offsets are `before`."""
        after = before.copy()
        after[len(after) - len(self.targets) :] = self.targets[::-1]
        return after


def plan(offsets: Int64, sizes: Int64, start: int, least: int = 1) -> Plan:
    """Move the last message into the first gap that holds it, and so on until they meet.

    offsets, sizes  of the kept messages, in file order
    start           bytes before the first record of a segment
    least           smallest gap that may be left, bytes
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
    """Fill a range of a segment with zeros."""
    for at in range(start, stop, COPY):
        storage.write(at, [bytes(min(COPY, stop - at))])


def move(
    storage: Storage, offsets: Int64, sizes: Int64, made: Plan, hole: Hole | None = None
) -> None:
    """Copy messages to their new offsets, each into a gap before it.

    hole  returns the start of the rest of a gap, before zeros; None: these rests are unchanged
    cost  a read and a write for messages that are less than MAX_GAP bytes apart; bytes between them
          are written again unchanged
    """
    count, targets = len(made.targets), made.targets
    sources, lengths = (column[::-1][:count] for column in (offsets, sizes))
    gaps, hole = made.gaps if hole is not None else [], hole or bytes
    begins = [start for start, _ in gaps]  # each is the end of a moved message
    for first, last in _near(targets, lengths, lengths[1:] > COPY):
        start, stop = int(targets[first]), int(targets[last - 1] + lengths[last - 1])
        mine = gaps[bisect(begins, start) : bisect(begins, stop)]
        if lengths[first] > COPY:
            _move_large(storage, int(sources[first]), start, stop - start)
        else:
            small = [gap for gap in mine if gap[1] - gap[0] < MAX_GAP]
            end = max([stop, *(end for _, end in small)])
            data = bytearray(end - start)
            if last - first > 1:
                storage.read_into(memoryview(data), start)
            part = slice(last - 1, first - 1 if first else None, -1)  # sources ascend
            _copy(storage, data, sources[part], lengths[part], targets[part] - start)
            for begin, end in small:
                data[begin - start : end - start] = hole(end - begin).ljust(end - begin, b"\0")
            storage.write(start, [data])
            mine = [gap for gap in mine if gap[1] - gap[0] >= MAX_GAP]
        for begin, end in mine:
            head = hole(end - begin)
            storage.write(begin, [head])
            blank(storage, begin + len(head), end)


def _near(starts: Int64, sizes: Int64, apart: Bools) -> Iterator[tuple[int, int]]:
    """Yield runs [first, last) of ascending places that are close together, about COPY bytes."""
    apart = apart | (starts[1:] - starts[:-1] - sizes[:-1] >= MAX_GAP)
    apart |= starts[1:] // COPY != starts[:-1] // COPY
    return pairwise([0, *(np.flatnonzero(apart) + 1).tolist(), len(starts)] if len(starts) else [])


def _copy(
    storage: Storage, data: bytearray, sources: Int64, lengths: Int64, targets: Int64
) -> None:
    """Read records at ascending offsets into `data`."""
    view = memoryview(data)
    for first, last in _near(sources, lengths, np.zeros(len(sources) - 1, bool)):
        base = int(sources[first])
        length = int(sources[last - 1] + lengths[last - 1]) - base
        chunk = memoryview(storage.read(base, length))
        if len(chunk) < length:
            raise OSError(errno.EIO, "was cut while it was compacted", storage.name)
        here = slice(first, last)
        columns = (targets[here], sources[here] - base, lengths[here])
        for into, at, size in zip(*(column.tolist() for column in columns), strict=True):
            view[into : into + size] = chunk[at : at + size]


def _move_large(storage: Storage, source: int, target: int, size: int) -> None:
    for at in range(0, size, COPY):
        length = min(COPY, size - at)
        chunk = storage.read(source + at, length)
        if len(chunk) < length:
            raise OSError(errno.EIO, "was cut while it was compacted", storage.name)
        storage.write(target + at, [chunk])
