"""Batches: items taken some at a time, with a limit on their number and on their size in all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batched(
    items: Iterable[T], size_of: Callable[[T], int], size: int, most: int
) -> Iterator[list[T]]:
    """Yield lists of at most `most` items whose sizes add up to at most `size`; a larger item is
    alone."""
    batch: list[T] = []
    left = size
    for item in items:
        needed = size_of(item)
        if batch and (needed > left or len(batch) == most):
            yield batch
            batch, left = [], size
        batch.append(item)
        left -= needed
    if batch:
        yield batch
