"""Ray Data over parts of a store, and over tables in it. `make test-tools` installs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tables import SIZES, documents_in, run_program, tables_in

pytest.importorskip("ray", reason="not installed: make test-tools")
pytest.importorskip("pyarrow")
pytestmark = pytest.mark.in_memory
CODE = """import json, logging, winkfs
import ray
def read(batch):
    for part in batch["item"]:
        yield part.to_arrow()
if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    for kind in ("container", "data set"):
        with winkfs.open(f"documents of a {kind}") as c:
            parts = c.parts(3, ["path", "size", "content"])
        items = ray.data.from_items(parts, override_num_blocks=len(parts))
        files = items.map_batches(read, batch_size=1).materialize()
        rows = files.take_all()
        fs = winkfs.fs(f"tables of a {kind}")
        tables = [ray.data.read_csv("csv", filesystem=fs).count(),
                  ray.data.read_parquet("pq", filesystem=fs).count()]
        print(json.dumps([files.count(), sum(row["size"] for row in rows),
                          sum(len(row["content"]) for row in rows), tables]))
    ray.shutdown()"""


def test_ray_reads_parts_and_tables(tmp_path: Path) -> None:
    for kind in ("container", "data set"):
        documents_in(tmp_path / f"documents of a {kind}", kind)
        tables_in(tmp_path / f"tables of a {kind}", kind)
    found = [json.loads(line) for line in run_program(CODE, tmp_path).splitlines()]
    assert found == [[20, SIZES, SIZES, [10, 10]]] * 2
