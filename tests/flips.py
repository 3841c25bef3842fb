"""Bytes with bits that are flipped."""

from __future__ import annotations


def flipped(data: bytes, *bits: int) -> bytes:
    """Return a copy in which these bits differ, counted from the lowest one of the first byte."""
    copy = bytearray(data)
    for bit in bits:
        copy[bit >> 3] ^= 1 << (bit & 7)
    return bytes(copy)
