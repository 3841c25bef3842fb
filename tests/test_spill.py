"""Records sorted in bounded memory."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from winkfs.spill import SortedRecords


@pytest.mark.parametrize("run", [1, 100, 5_000, 1 << 20])
def test_sorted_records_are_sorted_however_little_fits_in_memory(tmp_path: Path, run: int) -> None:
    rng = random.Random(run)
    records = [rng.randbytes(rng.randrange(1, 30)) for _ in range(3000)]
    with SortedRecords(tmp_path, run) as spill:
        for record in records:
            spill.add(record)
        assert list(spill) == sorted(records)
    assert os.listdir(tmp_path) == []
