"""Memory of an epoch of many rows: 8 bytes a row in a file, and no array of their numbers."""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from samples import numbered

from winkfs.loaders import Rows, Sampler, Stream

MOST = 32 << 20  # bytes; an array of a number of each row has 80,000,000


@contextmanager
def little_memory() -> Iterator[None]:
    """Fail if objects, arrays included, take more than MOST at a time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST, f"{peak:,} bytes"


@pytest.mark.long
@pytest.mark.in_memory
@pytest.mark.parametrize("shuffle", ["blocks", "full", None])
def test_an_epoch_of_ten_million_rows(tmp_path: Path, shuffle: Any) -> None:
    base = numbered(tmp_path / "c", 100_000, size=5)
    with little_memory():
        rows = Rows([base] * 100)
        assert len(rows) == 10**7
        sampler = Sampler(rows, batch=4096, shuffle=shuffle)
        assert sum(map(len, sampler)) == 10**7
        sampler.load_state_dict(sampler.state_dict() | {"seen": 5 * 10**6})
        deque(islice(Stream(rows, sampler, workers=2), 100_000), 0)
