"""Records sorted in bounded memory."""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path

import pytest

from winkformats.extsort import SortedRecords

MIB = 1 << 20


@pytest.mark.parametrize("run", [1, 100, 5_000, 1 << 20])
def test_sorted_records_are_sorted_however_little_fits_in_memory(tmp_path: Path, run: int) -> None:
    rng = random.Random(run)
    records = [rng.randbytes(rng.randrange(1, 30)) for _ in range(3000)]
    with SortedRecords(tmp_path, run) as spill:
        for record in records:
            spill.add(record)
        assert list(spill) == sorted(records)
    assert os.listdir(tmp_path) == []


def test_large_records_are_merged_in_little_memory(tmp_path: Path) -> None:
    """Of each run a few are read back at a time, not all of them."""
    with SortedRecords(tmp_path, 4 * MIB) as spill:
        tracemalloc.start()
        try:
            for i in range(600):
                spill.add(b"%04d" % (i * 7 % 600) + bytes(100_000))
            assert [int(record[:4]) for record in spill] == list(range(600))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 16 * MIB  # of 57 MiB, in 15 runs


def test_records_may_be_added_many_at_a_time(tmp_path: Path) -> None:
    records = [b"%05d" % (i * 7919 % 30_000) for i in range(30_000)]
    with SortedRecords(tmp_path, 100_000) as spill:
        for at in range(0, len(records), 1000):
            spill.extend(records[at : at + 1000])
        assert list(spill) == sorted(records)
