"""External terms of Erlang: finding the end of a term in the files of a broker.

A term is a tag and its data; the body of a message of a broker is VERSION and one term. So the end
of a body can be found without the size in the segment.
"""

from __future__ import annotations

import struct
from typing import Final

VERSION: Final = 131
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
# Tag -> bytes after it; for a term with a length: bytes of the length, and further bytes.
FIXED: Final = {70: 8, 97: 1, 98: 4, 99: 31, 106: 0}  # floats, integers, []
SIZED: Final = {
    77: (4, 1),  # bits: their last byte has a count
    100: (2, 0), 118: (2, 0), 115: (1, 0), 119: (1, 0),  # atoms
    107: (2, 0), 109: (4, 0),  # string, binary
    110: (1, 1), 111: (4, 1),  # large integers: a sign
}  # fmt: skip
HOLDS: Final = {104: (1, 1, 0), 105: (4, 1, 0), 108: (4, 1, 1), 116: (4, 2, 0)}
# Tuples, list with its tail, map: bytes of the count, terms for each, further terms.


def begins_as_term(data: bytes) -> bool:
    """Return whether the first byte is that of a term."""
    return data[:1] == bytes([VERSION])


def is_term(data: bytes) -> bool:
    """Return whether the bytes are exactly one term; one with a tag that is unknown counts as a
    term."""
    if not data or data[0] != VERSION:
        return False
    at, left, size = 1, 1, len(data)
    while left:
        if at >= size:
            return False
        tag = data[at]
        at, left = at + 1, left - 1
        if tag in FIXED:
            at += FIXED[tag]
        elif tag in SIZED:
            width, more = SIZED[tag]
            at += width + more + _number(data, at, width)
        elif tag in HOLDS:
            width, each, more = HOLDS[tag]
            left += _number(data, at, width) * each + more
            at += width
        else:
            return True
        if left > size - at:  # each takes at least a byte
            return False
    return at == size


def _number(data: bytes, at: int, width: int) -> int:
    """Return the length or count at an offset; an impossible one if the data end there."""
    if at + width > len(data):
        return len(data)
    if width == 1:
        return data[at]
    return int((_U16 if width == 2 else _U32).unpack_from(data, at)[0])
