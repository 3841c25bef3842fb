"""Batches: items taken some at a time, with a limit on their number and on their size in all; and
records that are near each other in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from winkformats.arrays import Int64, UInt64

T = TypeVar("T")


def batched(
    items: Iterable[T], size_of: Callable[[T], int], size: int, most: int
) -> Iterator[list[T]]:
    """Yield lists of at most `most` items whose sizes add up to at most `size`; a larger item is
    alone."""
    batch: list[T] = []
    room = size
    for item in items:
        needed = size_of(item)
        if batch and (needed > room or len(batch) == most):
            yield batch
            batch, room = [], size
        batch.append(item)
        room -= needed
    if batch:
        yield batch


def runs(
    files: Int64 | UInt64, begin: Int64, size: Int64, *, gap: int, length: int
) -> tuple[Int64, Int64]:
    """Return first and stop of the runs of records that one read takes. The records are sorted by
    file and offset.

    gap     bytes between two records from which on each is in a run of its own
    length  approximate bytes of a run
    """
    apart = begin[1:] - begin[:-1] - size[:-1] >= gap
    apart |= begin[1:] // length != begin[:-1] // length
    apart |= files[1:] != files[:-1]
    ends = np.append(np.flatnonzero(apart) + 1, len(files))
    return np.append(0, ends[:-1]), ends
