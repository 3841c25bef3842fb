"""What a new Python worker of Spark spends before it has done anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sparkfiles import damage, with_columns
from sparking import PACKAGES, environment

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")

# Each function does what a task does, in a process that has imported what Spark's worker has.
TASKS = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyspark.worker
from pyspark_winkfs import DefaultSource
from sparkfiles import struct
from winkfs.spark.schema import FIELDS

base, place = sys.argv[2], Path(sys.argv[3])
names = {"bigint": "long"}
EVERY = ", ".join(f"{name} {names.get(kind, kind)}" for name, kind in FIELDS.items())

def found(schema, **options):
    reader = DefaultSource(options={"path": base, **options}).reader(struct(schema))
    return [batch for task in reader.partitions() for batch in reader.read(task)]

def read():
    for order in ("offset", "path"):
        for mode in ("PERMISSIVE", "DROPMALFORMED"):
            options = {"mode": mode, "maxContentBytes": "1000000", "batchBytes": "100k"}
            assert found(EVERY, orderBy=order, includeDirs="true", **options)

def fetch():
    from winkfs.spark.fetch import fetcher
    refs = "_container string, _contid long, _pos long, _pointer long, size long"
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        parts = found(refs, orderBy="mtime")
        assert sum(map(len, fetcher(mode)(parts))) >= sum(map(len, parts)) - 1

def write():
    from winkfs.dataset.transaction import begin
    from winkfs.spark import sink
    from winkfs.spark.inputs import Inputs
    from winkfs.spark.sinkoptions import SinkOptions
    kinds = {"path": "string", "content": "binary", "mtime": "timestamp", "mode": "int"}
    rows = found("path string, content binary, mtime timestamp, mode int", mode="DROPMALFORMED")
    for ao in ("false", "true"):
        options = SinkOptions.of({"path": str(place / ao), "ao": ao})
        job = begin(options.path)
        written = sink.write_task(iter(rows), job, Inputs.of(list(kinds.items())), options)
        sink.publish(job, [written], options)

def jobs():
    from winkfs.spark import arrow
    from winkfs.spark.jobs import dedup, digest, hashed, ordering
    names = "name_raw binary, size long, mtime_ns long, "
    rows = found(names + "content binary, _error string", mode="PERMISSIVE")
    numbered = digest._numbered([hashed.hash_batch(batch, True) for batch in rows], 1)
    assert len(list(digest.write_shards(numbered, place))) == 2  # a shard, and an error
    names += "_container string, _pos long, content binary, _error string"
    for batch in found(names, mode="PERMISSIVE"):
        assert len(dedup.sign_batch(batch, {base: 0})) == len(batch)

    def keyed(batch):
        size, pos = batch.columns
        shard = arrow.column(np.zeros(len(batch), np.int32))
        return pa.RecordBatch.from_arrays([size, shard, pos, size], ["key", "shard", "p", "size"])

    assert list(ordering.write_part(map(keyed, found("size long, _pos long")), place))

globals()[sys.argv[1]]()
print("pandas" in sys.modules)
"""


@pytest.mark.parametrize("task", ["read", "fetch", "write", "jobs"])
def test_a_task_does_not_import_pandas(tmp_path: Path, task: str) -> None:
    """That takes half a second of CPU, in each worker, and `pa.array` is enough for it."""
    base = with_columns(tmp_path / "c")
    damage(base, "one entry")
    done = subprocess.run(
        [sys.executable, "-c", TASKS, task, str(base), str(tmp_path)],
        env=environment(PYTHONPATH=f"{PACKAGES}{os.pathsep}{Path(__file__).parent}"),
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False"]
