"""Grain over rows of stores: order, state, batches. `make test-tools` installs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tables import documents_in, run_program

pytest.importorskip("grain", reason="not installed: make test-tools")
pytestmark = pytest.mark.in_memory
CODE = """import json
import grain, winkfs
def pipeline(base):
    rows = winkfs.Rows(base, columns=["lang"], where="lang is not null")
    order = grain.MapDataset.source(rows).shuffle(seed=7).repeat(2)
    shaped = order.map(lambda row: (row["path"], row["lang"], len(row["content"])))
    return shaped.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4))
for base in ("container", "data set"):
    every = list(pipeline(base))
    half = len(every) // 2
    started = iter(pipeline(base))
    first = [next(started) for _ in range(7)]
    state = json.loads(json.dumps(started.get_state()))
    again = iter(pipeline(base))
    again.set_state(state)
    rows = winkfs.Rows(base)
    batches = list(grain.MapDataset.range(len(rows)).batch(8).map(rows.__getitems__))
    print(json.dumps([len(every), sorted(every[:half]) == sorted(every[half:]),
        every[:half] != every[half:], len(set(every)), first + list(again) == every,
        [[row["path"] for row in batch] for batch in batches] ==
        [[rows[i]["path"] for i in part] for part in (range(8), range(8, 16), range(16, 20))]]))"""


def test_grain_shuffles_and_resumes(tmp_path: Path) -> None:
    for kind in ("container", "data set"):
        documents_in(tmp_path / kind, kind)
    found = [json.loads(line) for line in run_program(CODE, tmp_path).splitlines()]
    assert found == [[32, True, True, 16, True, True]] * 2
