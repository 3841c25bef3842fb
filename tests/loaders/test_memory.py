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

MOST = 48 << 20  # bytes; an array of a number of each row has 80,000,000


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
def test_epochs_of_ten_million_rows(tmp_path: Path) -> None:
    base = numbered(tmp_path / "c", 100_000, size=5)
    with little_memory():
        rows = Rows([base] * 100)
    assert len(rows) == 10**7
    orders: list[Any] = ["blocks", "full", None]
    for shuffle in orders:
        sampler = Sampler(rows, batch=4096, shuffle=shuffle)
        begin = sampler.state_dict()
        with little_memory():
            sampler.load_state_dict(begin | {"seen": 9 * 10**6})
            assert sum(map(len, sampler)) == 10**6
            sampler.load_state_dict(begin | {"seen": 5 * 10**6})
            stream = Stream(rows, sampler, workers=2)
            assert len(deque(islice(stream, 50_000), 1)) == 1
