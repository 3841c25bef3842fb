"""Names that share hashes: real twins of 64 bits are rare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest


def hash_with(
    patch: pytest.MonkeyPatch,
    first: Callable[[bytes], int],
    second: Callable[[bytes], int] | None = None,
) -> None:
    """Have the two integers of a key follow from these: S, and what its slot is made from."""
    second = second or first

    def hash_key(algorithm: int, key: bytes) -> tuple[int, int]:
        return first(key), second(key)

    def hash_keys(algorithm: int, keys: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        found = [hash_key(algorithm, key) for key in keys]
        both = np.array(found, np.uint64).reshape(-1, 2)
        return both[:, 0].copy(), both[:, 1].copy()

    patch.setattr("winkformats.hashing.hash_key", hash_key)
    patch.setattr("winkformats.hashing.hash_keys", hash_keys)
    # The short way hashes names by itself: all are asked for the ordinary way.
    patch.setattr("winkfs.container.short.XXH3", -1)
