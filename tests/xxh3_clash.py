"""Different byte strings with one XXH3-64 (seed 0), made from how it hashes 16 bytes.

There it is a function of len + swap(a) + b + fold(a * b), a and b being the halves XORed with
constants: with a = 0 it is len + b, with b = 0 it is len + swap(a).
"""

from __future__ import annotations

import struct

import xxhash

SECRET = bytes.fromhex(
    "72 40 a4 a4 b7 b3 67 1f cb 79 e6 4e cc c0 e5 78"  # bytes 24 .. 39 of the default secret
    "82 5a d0 7d cc ff 72 21 b8 08 46 74 f7 43 24 8e"  # .. 55
)
WORDS = struct.unpack("<4Q", SECRET)
FLIPS = (WORDS[0] ^ WORDS[1], WORDS[2] ^ WORDS[3])


def clash(number: int) -> tuple[bytes, bytes]:
    """Two strings of 16 bytes; other numbers give others. Held against the real function here."""
    value = (number * 0x9E3779B97F4A7C15 + 0x0123456789ABCDEF) % 2**64
    swapped = int.from_bytes(value.to_bytes(8, "little"), "big")
    one = struct.pack("<2Q", FLIPS[0], value ^ FLIPS[1])
    two = struct.pack("<2Q", swapped ^ FLIPS[0], FLIPS[1])
    assert one != two
    assert xxhash.xxh3_64_intdigest(one) == xxhash.xxh3_64_intdigest(two)
    return one, two
