"""External terms of Erlang, as far as a broker's files need them: where one ends.

A term is a tag and what belongs to it; a body of a broker begins with VERSION and is one term. So
the end of a body can be found without the size that a segment has for it.
"""

from __future__ import annotations

import struct
from typing import Final

VERSION: Final = 131
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
# tag -> bytes behind it; of what has a length in front: bytes of the length, and of each unit more
FIXED: Final = {70: 8, 97: 1, 98: 4, 99: 31, 106: 0}  # floats, integers, []
SIZED: Final = {
    77: (4, 1),  # bits: their last byte has a count
    100: (2, 0), 118: (2, 0), 115: (1, 0), 119: (1, 0),  # atoms
    107: (2, 0), 109: (4, 0),  # string, binary
    110: (1, 1), 111: (4, 1),  # large integers: a sign
}  # fmt: skip
HOLDS: Final = {104: (1, 1, 0), 105: (4, 1, 0), 108: (4, 1, 1), 116: (4, 2, 0)}
# tuples, list with its tail, map: bytes of the count, terms of each, and beside them


def begins_as_term(data: bytes) -> bool:
    """Whether the first byte is that of a term."""
    return data[:1] == bytes([VERSION])


def is_term(data: bytes) -> bool:
    """Whether bytes are one whole term, to the last. What has a tag that a broker's message does
    not have is believed."""
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
        if left > size - at:  # each takes a byte at least
            return False
    return at == size


def _number(data: bytes, at: int, width: int) -> int:
    """The length or count at a place; where the data end, more than there can be."""
    if at + width > len(data):
        return len(data)
    if width == 1:
        return data[at]
    return int((_U16 if width == 2 else _U32).unpack_from(data, at)[0])
