"""Rows, in order, cut into parts that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from winkformats.arrays import Int64


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
