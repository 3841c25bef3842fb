"""Entry of a segment: a message, or a mark that a reader skips.

    offset  size  type  field        meaning
    0       4     I     length       bytes from here through the checksum
    4       1     B     kind         DATA, TOMBSTONE, CHECKPOINT
    5       1     B     flags        which optional fields there are
    6       8     Q     id           ascending, from 1 on
    14      8     q     timestamp    nanoseconds since the epoch
    22      1     B     priority     with PRIORITY: LOW, MEDIUM, HIGH; else LOW
    ..      8     q     expires      with TTL: nanoseconds since the epoch
    ..      2     H     headers      with HEADERS: how many; then of each
            2+n   H     key          its length and UTF-8
            2+n   H     value        its length and UTF-8
    ..      1     B     compression  with COMPRESSED: GZIP
    ..                  payload      up to the checksum
    -4      4     I     checksum     CRC-32C of all before

Little-endian. Four zero bytes follow, which neither length nor checksum covers; at the end of a
file they may be missing.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from winkformats.errors import CorruptError, FormatError

DATA, TOMBSTONE, CHECKPOINT = 1, 2, 3
COMPRESSED, ENCRYPTED, TTL, HEADERS, PRIORITY = 1, 2, 4, 8, 16
LOW, MEDIUM, HIGH = 0, 1, 2
GZIP: Final = 1
HEAD: Final = struct.Struct("<IBBQq")
SUM: Final = struct.Struct("<I")
EXPIRES: Final = struct.Struct("<q")
LENGTH: Final = struct.Struct("<H")
PAD: Final = bytes(4)  # after each entry
END: Final = struct.Struct("<I4x")  # the checksum, and the padding
LEAST: Final = HEAD.size + SUM.size  # bytes of the shortest entry
LONGEST: Final = (1 << 32) - 1 - len(PAD)  # bytes of an entry
UNPACKED: Final = 100 << 20  # most bytes of a payload that was compressed
WORTH: Final = 95  # percent of its size below which a payload is stored compressed
LAST_ID: Final = (1 << 63) - 1
WRAP: Final = 16 + zlib.MAX_WBITS  # wbits of zlib for gzip
assert (HEAD.size, LEAST) == (22, 26)


class Message(NamedTuple):
    """A message as it was enqueued.

    id         ascending in the order of arrival
    payload    not compressed
    timestamp  when it was enqueued, nanoseconds since the epoch
    priority   LOW, MEDIUM or HIGH
    expires    nanoseconds since the epoch; None: never
    headers    key -> value
    offset     of the entry in its segment; segment: its number
    deliveries number of deliveries, with this one
    """

    id: int
    payload: bytes
    timestamp: int
    priority: int = LOW
    expires: int | None = None
    headers: Mapping[str, str] = {}
    offset: int = 0
    segment: int = 0
    deliveries: int = 1


def encode(
    id: int,
    timestamp: int,
    payload: bytes,
    *,
    priority: int = LOW,
    expires: int | None = None,
    headers: Mapping[str, str] | None = None,
    compression: int = 0,
) -> bytes:
    """Encode an entry with its padding. Raises ValueError if it is too large."""
    flags, parts = 0, []
    if priority:
        flags |= PRIORITY
        parts.append(bytes((priority,)))
    if expires is not None:
        flags |= TTL
        parts.append(EXPIRES.pack(expires))
    if headers:
        flags |= HEADERS
        parts.append(encode_headers(headers))
    if compression:
        flags |= COMPRESSED
        parts.append(bytes((compression,)))
    parts.append(payload)
    body = b"".join(parts) if flags else payload
    length = LEAST + len(body)
    if length > LONGEST:
        raise ValueError(f"a payload of {len(payload)} bytes is too large for an entry")
    data = HEAD.pack(length, DATA, flags, id, timestamp) + body
    return data + END.pack(crc32c(data))


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Encode headers.

    raises  TypeError for a key or value that is no text; ValueError for more than 65,535 headers,
            or bytes of a key or value
    """
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are a mapping of texts, not {type(headers).__name__}")
    if len(headers) > 0xFFFF:
        raise ValueError(f"a message has at most 65,535 headers, not {len(headers)}")
    parts = [LENGTH.pack(len(headers))]
    for pair in headers.items():
        for text in pair:
            if not isinstance(text, str):
                raise TypeError(f"a header is a text, not {type(text).__name__}")
            data = text.encode("utf-8", "surrogateescape")
            if len(data) > 0xFFFF:
                raise ValueError(f"a header has at most 65,535 bytes, not {len(data)}")
            parts += LENGTH.pack(len(data)), data
    return b"".join(parts)


def decode(data: bytes, at: int, *, file: str, offset: int, segment: int = 0) -> Message:
    """Decode the entry at `at` of `data`, whose checksum was checked.

    offset  of the entry in `file`
    raises  CorruptError; FormatError for an encrypted message
    """
    length, _, flags, id, timestamp = HEAD.unpack_from(data, at)
    place, end = at + HEAD.size, at + length - SUM.size
    if not flags:
        return Message(id, data[place:end], timestamp, LOW, None, {}, offset, segment)
    priority, expires = LOW, None
    headers: dict[str, str] = {}
    if flags & PRIORITY:
        priority, place = data[place], place + 1
        if priority > HIGH:
            raise CorruptError(
                "priority of a message", file=file, offset=offset, expected="0 to 2", found=priority
            )
    if flags & TTL:
        if place + EXPIRES.size > end:
            raise CorruptError("message too short for its fields", file=file, offset=offset)
        (expires,) = EXPIRES.unpack_from(data, place)
        place += EXPIRES.size
    if flags & HEADERS:
        headers, place = _headers(data, place, end, file, offset)
    compression = 0
    if flags & COMPRESSED:
        compression, place = data[place] if place < end else 0, place + 1
    if place > end:
        raise CorruptError("message too short for its fields", file=file, offset=offset)
    payload = data[place:end]
    if flags & ENCRYPTED:
        raise FormatError(f"{file}: message {id} is encrypted")
    if compression:
        payload = unpacked(payload, compression, file=file, offset=offset)
    return Message(id, payload, timestamp, priority, expires, headers, offset, segment)


def _headers(
    data: bytes, place: int, end: int, file: str, offset: int
) -> tuple[dict[str, str], int]:
    def text() -> str:
        nonlocal place
        if place + LENGTH.size > end:
            raise CorruptError("headers of a message", file=file, offset=offset)
        start = place + LENGTH.size
        place = start + LENGTH.unpack_from(data, place)[0]
        if place > end:
            raise CorruptError("headers of a message", file=file, offset=offset)
        return data[start:place].decode("utf-8", "surrogateescape")

    if place + LENGTH.size > end:
        raise CorruptError("headers of a message", file=file, offset=offset)
    (count,) = LENGTH.unpack_from(data, place)
    place += LENGTH.size
    found = {}
    for _ in range(count):
        key = text()
        found[key] = text()
    return found, place


def packed(payload: bytes, level: int = 6) -> bytes | None:
    """Compress a payload with gzip -> None if that saves less than 5 %."""
    made = zlib.compressobj(level, zlib.DEFLATED, WRAP)
    data = made.compress(payload) + made.flush()
    return data if len(data) * 100 < len(payload) * WORTH else None


def unpacked(data: bytes, compression: int, *, file: str, offset: int) -> bytes:
    """Decompress a payload. Raises CorruptError, also for more than UNPACKED bytes."""
    if compression != GZIP:
        raise CorruptError(
            "compression of a message", file=file, offset=offset, expected=GZIP, found=compression
        )
    parts, size = [], 0
    try:
        while data:  # a payload may have several members of gzip
            opened = zlib.decompressobj(WRAP)
            part = opened.decompress(data, UNPACKED - size + 1)
            size += len(part)
            if size > UNPACKED:
                raise CorruptError(
                    f"message that unpacks to more than {UNPACKED} bytes", file=file, offset=offset
                )
            if not opened.eof:
                raise CorruptError("compressed payload that ends early", file=file, offset=offset)
            parts.append(part)
            data = opened.unused_data
    except zlib.error as error:
        raise CorruptError(f"compressed payload ({error})", file=file, offset=offset) from None
    return b"".join(parts)
