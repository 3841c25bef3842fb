"""Segment of version 2, `.sqs`: a header, then records with their kind and size.

    offset  size  type  field     meaning
    0       4     4s    magic     RSQS
    4       1     B     version   2
    5       59                    zeros

    the header is not read

    record         bytes
    SMALL_HOLE     1: 1
    HOLE           2: 1, size: 4, anything: size - 5
    MESSAGE        3: 1, size: 4, id: 16, body: size - 21
    CHECKED        4: 1, size: 4, id: 16, checksum: 4, body: size - 25

Big-endian. `size` counts the whole record. At most 4 small holes follow each other, and no hole
follows a hole. The checksum is CRC-32 over id and body.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np

from winkformats.arrays import Bools, Int64, UInt64, fetch, rows_at
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.messagestore import segment
from winkformats.messagestore.segment import ID, Plan, SegmentScan, Valid, Window

SUFFIX: Final = ".sqs"
HEADER: Final = struct.pack(">4sB59x", b"RSQS", 2)
START: Final = len(HEADER)
SMALL_HOLE, HOLE, MESSAGE, CHECKED = 1, 2, 3, 4
RECORD: Final = struct.Struct(">BI")
_HEAD: Final = np.dtype([("kind", "u1"), ("size", ">u4"), ("id", ">u8", 2)])
HEAD: Final = struct.Struct(f">BI{ID}s")
SUM: Final = struct.Struct(">I")
LEAST: Final = {HOLE: RECORD.size, MESSAGE: HEAD.size, CHECKED: HEAD.size + SUM.size}  # bytes
SMALL_HOLES: Final = 4  # most small holes that follow each other
LONGEST: Final = (1 << 32) - 1  # bytes of a record
assert START == 64
assert (RECORD.size, HEAD.size, _HEAD.itemsize) == (5, 21, 21)


def record(msg_id: bytes, body: bytes, *, checked: bool = False) -> bytes:
    """Encode a message. Raises ValueError if it is too large, or its id has not 16 bytes."""
    if len(msg_id) != ID:
        raise ValueError(f"a message id has {ID} bytes, not {len(msg_id)}")
    size = LEAST[CHECKED if checked else MESSAGE] + len(body)
    if size > LONGEST:
        raise ValueError(f"a message of {len(body)} bytes is too large for a segment")
    if not checked:
        return HEAD.pack(MESSAGE, size, msg_id) + body
    return HEAD.pack(CHECKED, size, msg_id) + SUM.pack(_sum(msg_id, body)) + body


def hole(size: int) -> bytes:
    """Return the bytes to write at the start of a gap of `size` bytes, so that it is skipped."""
    return bytes([SMALL_HOLE]) * size if size <= SMALL_HOLES else RECORD.pack(HOLE, size)


def decode(data: bytes, *, file: str, offset: int) -> tuple[bytes, bytes]:
    """Decode a whole record -> id and body. Raises CorruptError if it is no message."""
    if len(data) >= HEAD.size:
        kind, size, msg_id = HEAD.unpack_from(data)
        least = LEAST.get(kind, 0) if kind != HOLE else 0
        if least and least <= size == len(data):
            body = data[least:]
            if kind == MESSAGE or SUM.unpack_from(data, HEAD.size)[0] == _sum(msg_id, body):
                return msg_id, body
            raise CorruptError("checksum of a message", file=file, offset=offset)
    raise CorruptError("no message", file=file, offset=offset)


def _sum(msg_id: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(msg_id))


def scan(
    storage: Storage,
    valid: Valid | None = None,
    *,
    start: int = START,
    checked: bool = False,
    repeated: bool = False,
) -> SegmentScan:
    """Find the messages of a segment from its records.

    valid     called with each body; False is an error
    start     offset of the first record
    checked   a wrong checksum of a message is an error, too
    repeated  return all records of an id: the first one may have been removed
    cost      holes, and bodies longer than a window, are not read
    """
    window, found = Window(storage), SegmentScan(end=start)
    seen: set[bytes] = set()
    know, add, unpack, size = seen.add, found.rows.append, HEAD.unpack_from, window.size
    at, run, hole_before = start, 0, False  # run: small holes before `at`
    data, base, last = b"", 0, -1
    while at < size:
        place = at - base
        if place > last:
            place = window.at(at, HEAD.size)
            data, base, last = window.data, window.base, len(window.data) - HEAD.size
        if place <= last:
            kind, length, msg_id = unpack(data, place)
        else:  # the file ends before the head of a message
            kind, length, msg_id = *_head(data[place:]), b""
        if kind == SMALL_HOLE:
            if hole_before:
                return _failed(found, at, "hole_after_hole")
            run += 1
            if run > SMALL_HOLES:
                return _failed(found, at - SMALL_HOLES, "small_hole_run_too_long")
            at += 1
            continue
        if kind not in LEAST:
            return _failed(found, at, "unrecognised_record_type", kind)
        if length < 0:
            break
        if kind == HOLE and (hole_before or run):
            return _failed(found, at, "hole_after_hole")
        if length < LEAST[kind]:
            return _failed(found, at, f"invalid_{'hole' if kind == HOLE else 'message'}_size")
        if at + length > size:
            break
        hole_before, run = kind == HOLE, 0
        if kind != HOLE:
            if valid is not None and not valid(_body(window, at, kind, length)):
                return _failed(found, at, "invalid_message_body")
            if kind == CHECKED:
                if checked and not _good(window, at, length):
                    return _failed(found, at, "wrong_checksum")
                found.checked += 1
            if repeated or msg_id not in seen:
                know(msg_id)
                add((msg_id, length, at))
        at += length
    found.end = at
    return found


def _head(data: bytes) -> tuple[int, int]:
    """Return kind and size of a record; size -1: it is torn, or the file was truncated."""
    if not data:
        return MESSAGE, -1
    return RECORD.unpack_from(data) if len(data) >= RECORD.size else (data[0], -1)


def _good(window: Window, at: int, length: int) -> bool:
    place = window.at(at, length)
    try:
        decode(window.data[place : place + length], file="", offset=at)
    except CorruptError:
        return False
    return True


def _body(window: Window, at: int, kind: int, length: int) -> bytes:
    place = window.at(at, length)
    return window.data[place + LEAST[kind] : place + length]


def _failed(found: SegmentScan, at: int, error: str, value: int | None = None) -> SegmentScan:
    found.end, found.error, found.value = at, error, value
    return found


def wrong(storage: Storage, ids: UInt64, offsets: Int64, sizes: Int64) -> Bools:
    """Return which messages have no head with this id, uint64[n, 2], and size."""
    head, at = fetch(storage, offsets, HEAD.size)
    heads = rows_at(head, at, HEAD.size).view(_HEAD).ravel()
    kinds = (heads["kind"] == MESSAGE) | (heads["kind"] == CHECKED)
    bad: Bools = ~kinds | (heads["size"] != sizes) | (heads["id"] != ids).any(1)
    return bad


def plan(offsets: Int64, sizes: Int64) -> Plan:
    """Plan the compaction of a segment: see `segment.plan`."""
    return segment.plan(offsets, sizes, START)


def compact(storage: Storage, offsets: Int64, sizes: Int64, made: Plan | None = None) -> Plan:
    """Move the kept messages towards the front, without truncating the segment.

    The rest of a gap that a message moved into becomes a hole of zeros; other gaps are unchanged.

    offsets, sizes  of the kept messages, in file order; made: their plan
    cost            grows with the bytes moved
    """
    made = made or plan(offsets, sizes)
    segment.move(storage, offsets, sizes, made, hole)
    return made
