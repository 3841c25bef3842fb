"""Bits that are flipped, in bytes and in files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def flipped(data: bytes, *bits: int) -> bytes:
    """Return a copy in which these bits differ, counted from the lowest one of the first byte."""
    copy = bytearray(data)
    for bit in bits:
        copy[bit >> 3] ^= 1 << (bit & 7)
    return bytes(copy)


def flip(path: str | Path, *places: int, bits: int = 1) -> None:
    """Flip the same bits of the bytes at these places of a file; again, and all is as before."""
    with Path(path).open("r+b") as file:
        for at in places:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ bits]))


@contextmanager
def flipping(path: str | Path, *places: int, bits: int = 1) -> Iterator[None]:
    """Flip bits of a file for a while."""
    flip(path, *places, bits=bits)
    yield
    flip(path, *places, bits=bits)
