"""Flipped bits of a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def flip(file: str | os.PathLike[str], at: int, mask: int = 1) -> None:
    """Flip bits of a byte; the same call again takes it back."""
    data = bytearray(Path(file).read_bytes())
    data[at] ^= mask
    Path(file).write_bytes(data)


@contextmanager
def flipped(file: str | os.PathLike[str], at: int, mask: int = 1) -> Iterator[None]:
    """Flip bits of a byte for a while."""
    flip(file, at, mask)
    yield
    flip(file, at, mask)
