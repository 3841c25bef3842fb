"""Segment of version 1, `.rdq`: messages at any offset, with gaps or garbage between them.

    offset  size  type  field    meaning
    0       8     Q     size     16 + bytes of the body
    8       16    16s   id
    24      size - 16   body
    size+8  1     B     end      255

Big-endian. There is no header: the first message is usually at 0. winkfs only reads and compacts
such segments.

A gap is zeros or, after a compaction by winkfs, a record of zeros: its size, and zeros up to its
end, which is not 255. Brokers up to 3.13.0 end a scan at a size of zero, and skip such a record;
later ones search for the next message byte by byte.
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
from winkformats.messagestore.segment import ID, Plan, SegmentScan, Valid, Window

SUFFIX: Final = ".rdq"
START: Final = 0
HEAD: Final = struct.Struct(f">Q{ID}s")
NOT_COUNTED: Final = 9  # bytes of a record beside its `size`: that field and the end
END: Final = 255
LEAST: Final = HEAD.size + 1  # bytes of the shortest record
SIZE: Final = struct.Struct(">Q")
MIN_GAP: Final = NOT_COUNTED + 1  # bytes of a gap, whose size must not be zero
NO_ID: Final = bytes(ID)
GAP_CHUNK: Final = 1 << 20  # bytes of a gap that are read together


def record(msg_id: bytes, body: bytes) -> bytes:
    """Encode a message of version 1."""
    return HEAD.pack(ID + len(body), msg_id) + body + bytes([END])


def decode(data: bytes, *, file: str, offset: int) -> tuple[bytes, bytes]:
    """Decode a whole record -> id and body. Raises CorruptError if it is no message."""
    if len(data) >= LEAST and data[-1] == END:
        length, msg_id = HEAD.unpack_from(data)
        if length + NOT_COUNTED == len(data):
            return msg_id, data[HEAD.size : -1]
    raise CorruptError("no message", file=file, offset=offset)


def scan(storage: Storage, valid: Valid | None = None) -> SegmentScan:
    """Find the messages of a segment: records whose size leads to their end byte.

    A record of zeros, which is a gap, is skipped.

    valid   called with each body; if it returns False, or the id has occurred before, the scan
            continues with the next byte
    cost    grows with the records, and with the bytes between them
    """
    window, found = Window(storage), SegmentScan()
    seen: set[bytes] = set()
    at, size = 0, window.size
    while at + LEAST <= size:
        place = window.at(at, LEAST)
        length, msg_id = HEAD.unpack_from(window.data, place)
        stop = at + length + NOT_COUNTED
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


def survey(storage: Storage) -> SegmentScan:
    """Find the messages of a segment, and the ranges `lost` that are neither messages nor gaps.

    If there are such ranges, and most bodies are Erlang terms, as brokers write them, only these
    count as messages: otherwise a number in a body might be taken for the size of a message.

    cost    as `scan`; with lost ranges three scans, and parsing the terms
    """
    found = scan(storage)
    found.lost = _lost(storage, found)
    if found.lost:
        broker = scan(storage, begins_as_term)
        terms = scan(storage, is_term)  # also rejects a wrong size that leads to a byte 255
        if 2 * len(terms.rows) >= len(broker.rows):
            broker = terms
        firsts = np.array([offset + HEAD.size for _, _, offset in found.rows], np.int64)
        data, at = fetch(storage, firsts, 1)
        others = np.count_nonzero(np.frombuffer(data, np.uint8)[at] != VERSION)
        if broker.rows and len(broker.rows) >= others:
            found, broker.lost = broker, _lost(storage, broker)
    return found


def _lost(storage: Storage, found: SegmentScan) -> list[tuple[int, int]]:
    """Return the ranges [start, stop) that are neither a message, nor a repeated one, nor a gap."""
    ids, end, lost = {row[0] for row in found.rows}, START, list[tuple[int, int]]()
    for start, stop in [*((at, at + size) for _, size, at in found.rows), (found.end, found.end)]:
        while end < start and (after := _end_of_gap(storage, end, start, ids)) > end:
            end = after
        if end < start:
            lost.append((end, start))
        end = stop
    return lost


def _end_of_gap(storage: Storage, at: int, stop: int, ids: set[bytes]) -> int:
    """Return the end of a gap, or of a message with one of these ids, at `at`; else `at`."""
    if at + MIN_GAP <= stop:
        head = storage.read(at, HEAD.size)
        end = at + SIZE.unpack_from(head)[0] + NOT_COUNTED
        if at + MIN_GAP <= end <= stop:
            if _first(storage, at + SIZE.size, end) == end:
                return int(end)
            if head[SIZE.size :] in ids and storage.read(end - 1, 1) == bytes([END]):
                return int(end)
    first = _first(storage, at, stop)  # the size of a record begins with zeros, too
    return first if first == stop else max(first - SIZE.size + 1, at)


def _first(storage: Storage, start: int, stop: int) -> int:
    """Return the offset of the first byte of a range that is not zero; `stop`: all are zero."""
    for at in range(start, stop, GAP_CHUNK):
        raw = np.frombuffer(storage.read(at, min(GAP_CHUNK, stop - at)), np.uint8)
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
    """Return the first offset from `at` on with a possible size; the end: there is none."""
    while at + LEAST <= window.size:
        place = window.at(at, LEAST)
        count = len(window.data) - place - LEAST + 1
        sizes = np.ndarray((count,), ">u8", window.data, place, (1,))
        room = np.uint64(window.size - NOT_COUNTED - at) - np.arange(count, dtype=np.uint64)
        hits = (sizes >= ID) & (sizes <= room)
        if hits.any():
            return at + int(hits.argmax())
        at += count
    return window.size


def wrong(storage: Storage, ids: UInt64, offsets: Int64, sizes: Int64) -> Bools:
    """Return which messages have no head with this id, uint64[n, 2], and size, or no end."""
    head, at = fetch(storage, offsets, HEAD.size)
    heads = rows_at(head, at, HEAD.size).view(">u8").reshape(-1, 3)
    data, at = fetch(storage, offsets + sizes - 1, 1)
    ends = np.frombuffer(data, np.uint8)[at] == END
    bad: Bools = ~ends | (heads[:, 1:] != ids).any(1)
    bad |= heads[:, 0].astype(np.int64) + NOT_COUNTED != sizes
    return bad


def plan(offsets: Int64, sizes: Int64) -> Plan:
    """Plan the compaction of a segment, without gaps too short for a record: see `segment.plan`."""
    return segment.plan(offsets, sizes, START, MIN_GAP)


def gap(size: int) -> bytes:
    """Return the bytes to write at the start of a gap of `size` bytes, before zeros."""
    return SIZE.pack(size - NOT_COUNTED)


def compact(storage: Storage, offsets: Int64, sizes: Int64, made: Plan | None = None) -> Plan:
    """Move the kept messages towards the front, without truncating the segment; ranges between them
    become gaps.

    Bytes after the last kept message are unchanged.

    offsets, sizes  of the kept messages, in file order; made: their plan
    cost            grows with the bytes moved, and with those of the gaps
    """
    made = made or plan(offsets, sizes)
    stay = len(offsets) - len(made.targets)
    moved = set(made.targets.tolist())
    ends = [START, *(offsets + sizes).tolist()]
    for start, stop in zip(ends[:stay], offsets[:stay].tolist(), strict=True):
        if start < stop and start not in moved:
            head = gap(stop - start) if stop - start >= MIN_GAP else b""
            storage.write(start, [head])
            segment.blank(storage, start + len(head), stop)
    segment.move(storage, offsets, sizes, made, gap)
    return made
