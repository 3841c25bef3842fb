"""Segment of version 1, `.rdq`: messages anywhere, with gaps or garbage between them.

    offset  size  type  field    meaning
    0       8     Q     size     16 + bytes of the body
    8       16    16s   id
    24      size - 16   body
    size+8  1     B     end      255

Big-endian. No header: the first message mostly stands at 0. It is only read, and compacted.

A gap is zeros, or, as a compaction here leaves it, a record of zeros: its size, and zeros up to its
end, which is not 255. Brokers up to 3.13.0 end a scan at a size of zero, and step over such a
record; later ones look for the next message byte by byte.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from winkformats.arrays import Bools, Int64, UInt64, fetch, rows_at
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.messagestore import segment
from winkformats.messagestore.erlang import VERSION, begins_as_term, is_term
from winkformats.messagestore.segment import ID, Plan, Scan, Valid, Window

SUFFIX: Final = ".rdq"
START: Final = 0
HEAD: Final = struct.Struct(f">Q{ID}s")
MORE: Final = 9  # bytes of a record that its size does not count: the size itself, and the end
END: Final = 255
LEAST: Final = HEAD.size + 1  # bytes of a record
SIZE: Final = struct.Struct(">Q")
GAP: Final = MORE + 1  # bytes of a gap, at least: with a size that is not zero
NO_ID: Final = bytes(ID)
PIECE: Final = 1 << 20  # bytes of a gap that are looked at together


def record(msg_id: bytes, body: bytes) -> bytes:
    """A message as version 1 has it."""
    return HEAD.pack(ID + len(body), msg_id) + body + bytes([END])


def decode(data: bytes, *, file: str, offset: int) -> tuple[bytes, bytes]:
    """A whole record -> id and body. Raises CorruptError where it is no message."""
    if len(data) >= LEAST and data[-1] == END:
        length, msg_id = HEAD.unpack_from(data)
        if length + MORE == len(data):
            return msg_id, data[HEAD.size : -1]
    raise CorruptError("no message", file=file, offset=offset)


def scan(storage: Storage, valid: Valid | None = None) -> Scan:
    """The messages of a segment: where the size of a record leads to its last byte.

    A record of zeros, which is a gap, is stepped over.

    valid   asked of each body; behind one that it refuses, or that was seen, the scan goes on with
            the next byte
    cost    0.7 us a record, 10 ns a byte between records
    """
    window, found = Window(storage), Scan()
    seen: set[bytes] = set()
    at, size = 0, window.size
    while at + LEAST <= size:
        place = window.at(at, LEAST)
        length, msg_id = HEAD.unpack_from(window.data, place)
        stop = at + length + MORE
        if length < ID or stop > size:
            at = _candidate(window, at + 1)
            continue
        good = msg_id not in seen and _ends(storage, window, stop - 1)
        if good and (valid is None or valid(_body(window, at, stop))):
            seen.add(msg_id)
            found.rows.append((msg_id, stop - at, at))
            at = stop
        elif msg_id == NO_ID and _first(storage, at + SIZE.size, stop) == stop:
            at = stop
        else:
            at += 1
    found.end = size
    return found


def survey(storage: Storage) -> Scan:
    """The same with `lost`: what is between messages, and no gap, nor a message that was seen.

    Where there is some, and most bodies are terms as a broker writes them, only these are messages:
    a number in a body that lost its size is not taken for the size of another message.

    cost    as `scan`; where something is lost, two more, and 10 us a message
    """
    found = scan(storage)
    found.lost = _lost(storage, found)
    if found.lost:
        broker = scan(storage, begins_as_term)
        terms = scan(storage, is_term)  # a wrong size that leads to some 255 is found out, too
        if 2 * len(terms.rows) >= len(broker.rows):
            broker = terms
        firsts = np.array([offset + HEAD.size for _, _, offset in found.rows], np.int64)
        data, at = fetch(storage, firsts, 1)
        others = np.count_nonzero(np.frombuffer(data, np.uint8)[at] != VERSION)
        if broker.rows and len(broker.rows) >= others:
            found, broker.lost = broker, _lost(storage, broker)
    return found


def _lost(storage: Storage, found: Scan) -> list[tuple[int, int]]:
    """[start, stop) of what is in none of the messages, and is none that was seen, and no gap."""
    ids, end, lost = {row[0] for row in found.rows}, START, list[tuple[int, int]]()
    for start, stop in [*((at, at + size) for _, size, at in found.rows), (found.end, found.end)]:
        while end < start and (after := _behind(storage, end, start, ids)) > end:
            end = after
        if end < start:
            lost.append((end, start))
        end = stop
    return lost


def _behind(storage: Storage, at: int, stop: int, ids: set[bytes]) -> int:
    """Where a gap, or a message with one of these ids, ends that begins at `at`; else `at`."""
    if at + GAP <= stop:
        head = storage.read(at, HEAD.size)
        end = at + SIZE.unpack_from(head)[0] + MORE
        if at + GAP <= end <= stop:
            if _first(storage, at + SIZE.size, end) == end:
                return int(end)
            if head[SIZE.size :] in ids and storage.read(end - 1, 1) == bytes([END]):
                return int(end)
    first = _first(storage, at, stop)  # the size of a record begins with zeros, too
    return first if first == stop else max(first - SIZE.size + 1, at)


def _first(storage: Storage, start: int, stop: int) -> int:
    """The first byte of a part that is not zero; `stop`: all are."""
    for at in range(start, stop, PIECE):
        raw = np.frombuffer(storage.read(at, min(PIECE, stop - at)), np.uint8)
        if raw.any():
            return at + int((raw != 0).argmax())
    return stop


def _ends(storage: Storage, window: Window, last: int) -> bool:
    place = last - window.base
    if place < len(window.data):
        return window.data[place] == END
    return storage.read(last, 1) == bytes([END])


def _body(window: Window, at: int, stop: int) -> bytes:
    place = window.at(at, stop - at)
    return window.data[place + HEAD.size : place + stop - at - 1]


def _candidate(window: Window, at: int) -> int:
    """The first offset from `at` on where a size stands that can be; the end: there is none."""
    while at + LEAST <= window.size:
        place = window.at(at, LEAST)
        count = len(window.data) - place - LEAST + 1
        sizes = np.ndarray((count,), ">u8", window.data, place, (1,))
        room = np.uint64(window.size - MORE - at) - np.arange(count, dtype=np.uint64)
        hits = (sizes >= ID) & (sizes <= room)
        if hits.any():
            return at + int(hits.argmax())
        at += count
    return window.size


def wrong(storage: Storage, ids: UInt64, offsets: Int64, sizes: Int64) -> Bools:
    """Which of some messages have no head with this id, uint64[n, 2], and size, or no end."""
    head, at = fetch(storage, offsets, HEAD.size)
    heads = rows_at(head, at, HEAD.size).view(">u8").reshape(-1, 3)
    data, at = fetch(storage, offsets + sizes - 1, 1)
    ends = np.frombuffer(data, np.uint8)[at] == END
    bad: Bools = (
        ~ends | (heads[:, 0].astype(np.int64) + MORE != sizes) | (heads[:, 1:] != ids).any(1)
    )
    return bad


def plan(offsets: Int64, sizes: Int64) -> Plan:
    """See `segment.plan`: no gap is left that is too short for a record."""
    return segment.plan(offsets, sizes, START, GAP)


def gap(size: int) -> bytes:
    """What is written at the start of a gap of so many bytes, before zeros."""
    return SIZE.pack(size - MORE)


def compact(storage: Storage, offsets: Int64, sizes: Int64, made: Plan | None = None) -> Plan:
    """Move the messages that are kept towards the front; what is between them becomes gaps.

    What is behind the last of them stays as it is. It is not truncated.

    offsets, sizes  of those that are kept, in the order of the file; `made`: their plan
    cost            as the bytes moved, and those of the gaps
    """
    made = made or plan(offsets, sizes)
    stay = len(offsets) - len(made.targets)
    moved = set(made.targets.tolist())
    ends = [START, *(offsets + sizes).tolist()]
    for start, stop in zip(ends[:stay], offsets[:stay].tolist(), strict=True):
        if start < stop and start not in moved:
            head = gap(stop - start) if stop - start >= GAP else b""
            storage.write(start, [head])
            segment.blank(storage, start + len(head), stop)
    segment.move(storage, offsets, sizes, made, gap)
    return made
