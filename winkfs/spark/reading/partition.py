r"""Names of files as text: UTF-8, and `\xNN` for a byte that is no part of it.

Where a name itself has a backslash, x and two digits of lower-case hex, the backslash is written as
`\x5c`. So each name has one path, and the path gives the name back.

Rows, in order, cut into parts that fit in memory.

What a task is told: pieces of containers. Small, for it is sent to each task.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from winkformats.arrays import Int64

ESCAPE: Final = re.compile(rb"\\x([0-9a-f]{2})")
MARK: Final = b"\\x"


def to_path(name: bytes) -> str:
    """Also of many names with NULs between them, at once."""
    if MARK in name:
        name = ESCAPE.sub(rb"\\x5cx\1", name)
    return name.decode("utf-8", "backslashreplace")


def to_name(path: bytes) -> bytes:
    """The inverse, from the UTF-8 of the path. Cost: 40 ns where there is no backslash and x."""
    if MARK not in path:
        return path
    return ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), path)


def cuts(sizes: Int64, limit: int, most: int = 1 << 62) -> Iterator[tuple[int, int]]:
    """Parts [a, b) of at most `limit` bytes and `most` rows; a larger row is alone in its own.

    sizes   of the rows, bytes
    """
    ends = np.cumsum(sizes)
    at = 0
    while at < len(ends):
        before = int(ends[at - 1]) if at else 0
        full = int(np.searchsorted(ends, before + limit, "right"))
        stop = min(max(full, at + 1), at + most)
        yield at, stop
        at = stop


WIDTHS: Final = (np.int8, np.int16, np.int32, np.int64)


def pack(values: Int64) -> bytes:
    """Numbers as differences, deflated: a byte or two for the position of an inode."""
    steps = np.diff(values, prepend=0)
    low, high = (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
    for width in WIDTHS:
        if np.iinfo(width).min <= low and high <= np.iinfo(width).max:
            break
    return bytes([np.dtype(width).itemsize]) + zlib.compress(steps.astype(width).tobytes(), 1)


def unpack(data: bytes) -> Int64:
    steps = np.frombuffer(zlib.decompress(data[1:]), f"i{data[0]}")
    return np.cumsum(steps, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Piece:
    """Files of a container, by the positions of their inodes.

    base          path without .data
    contid, size  CONTID, FILESIZE it was planned with; grows: it may be larger by now
    low, high     positions of the inodes: [low, high)
    rows          packed: just these, ascending; None: all but the hidden ones
    hidden        packed positions in [low, high)
    generation    of the data set
    """

    base: str
    contid: int
    size: int
    grows: bool
    low: int
    high: int
    rows: bytes | None = None
    hidden: bytes | None = None
    generation: int = 0


class Scan(InputPartition):  # type: ignore[misc]
    """Pieces one after the other, in the order of the inodes."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.pieces = pieces


class Ordered(InputPartition):  # type: ignore[misc]
    """Files in an order of their own, none of them hidden.

    pieces  containers, each as a whole
    shard   packed: which of the pieces; pos: position of the inode
    order   instead: folder, part, first and last row of an order, see `winkfs.orders`
    """

    def __init__(
        self,
        pieces: tuple[Piece, ...],
        shard: bytes = b"",
        pos: bytes = b"",
        order: tuple[Any, ...] | None = None,
    ) -> None:
        super().__init__(None)
        self.pieces, self.shard, self.pos, self.order = pieces, shard, pos, order
