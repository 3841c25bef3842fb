"""What the benchmarks put: names and contents, the same in every run."""

from __future__ import annotations

import random
from typing import Final

import numpy as np

KIB: Final = 1024
SEED: Final = 20_240


def names(count: int, *, shuffled: bool = False) -> list[str]:
    """Names of 20 to 31 bytes, ascending (as a walk over a tree gives them) or shuffled."""
    tails = (".md", ".html", "-index.html", "-contents.html")
    found = [f"s{i // 1000:04d}/page{i:07d}{tails[i % 4]}" for i in range(count)]
    if shuffled:
        random.Random(SEED).shuffle(found)
    return found


def values(sizes: list[int]) -> list[bytes]:
    """Random contents of these sizes, no two the same, each an object of its own."""
    generator = np.random.default_rng(SEED)
    return [generator.bytes(size) for size in sizes]


def equal_sizes(count: int, size: int) -> list[int]:
    return [size] * count


def mixed_sizes(count: int, low: int, high: int, mean: int) -> list[int]:
    """Sizes from `low` to `high` with this mean: many small ones and few large ones.

    A beta distribution over the range, whose first parameter is 1, has its mean at 1 / (1 + b).
    """
    part = (mean - low) / (high - low)
    drawn = np.random.default_rng(SEED).beta(1.0, 1.0 / part - 1.0, count)
    found: list[int] = np.round(low + drawn * (high - low)).astype(int).tolist()
    return found


def in_random_order(items: list[str]) -> list[str]:
    return random.Random(SEED + 1).sample(items, len(items))
