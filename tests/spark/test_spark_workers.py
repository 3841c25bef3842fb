"""The Python processes of Spark: what they spend before they do anything, and what they print."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import data_sets
import pytest
import stored
from sparkfiles import damage, with_columns
from sparking import PATIENCE, SparkSession, application, environment, need_spark
from warm import PACKAGES

import winkfs

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")

# Each function does what a task does, in a process that has imported what Spark's worker has.
TASKS = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyspark.worker
from pyspark_winkfs import DefaultSource
from sparkfiles import struct
from winkfs.spark.reading.options import FIELDS

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

def scan():
    assert found("content binary")
    assert found("path string, size long, mtime timestamp, content binary", prefix="dir1/")

def columns():
    [batch] = found("n long, ok bool, x double, t timestamp, d date, p decimal, lang string, "
                    "raw binary, tags strings, ids longs, content binary")
    assert batch.column("lang").null_count == 1 and batch.column("ids").null_count == 1

def fetch():
    from winkfs.spark.reading.fetch import fetcher
    refs = "_container string, _contid long, _pos long, _pointer long, size long"
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        parts = found(refs, orderBy="mtime")
        assert sum(map(len, fetcher(mode)(parts))) >= sum(map(len, parts)) - 1

def write():
    from winkfs.dataset.transaction import begin
    from winkfs.spark.writing import sink
    from winkfs.spark.writing.inputs import Inputs
    from winkfs.spark.writing.inputs import SinkOptions
    kinds = {"path": "string", "content": "binary", "mtime": "timestamp", "mode": "int"}
    rows = found("path string, content binary, mtime timestamp, mode int", mode="DROPMALFORMED")
    for ao in ("false", "true"):
        options = SinkOptions.of({"path": str(place / ao), "ao": ao})
        job = begin(options.path)
        written = sink.write_task(iter(rows), job, Inputs.of(list(kinds.items())), options)
        sink.publish(job, [written], options)

def jobs():
    from winkfs.arrow import arrays
    from winkfs.spark.jobs import dedup, digest, reading, sort
    names = "name_raw binary, size long, mtime_ns long, "
    rows = found(names + "content binary, _error string", mode="PERMISSIVE")
    numbered = digest._numbered([reading.hash_batch(batch, True) for batch in rows], 1)
    assert len(list(digest.write_shards(numbered, place))) == 2  # a shard, and an error
    names += "_container string, _contid long, _pos long, _pointer long, content binary, "
    rows = found(names + "_error string", mode="PERMISSIVE")
    compare = dedup.Comparing([(base, rows[0].column("_contid")[0].as_py())], 0.5, False)
    for batch in rows:
        signed = dedup.sign_batch(batch, {base: 0})
        ids, signatures, pointer, size = map(signed.column, ("id", "signature", "pointer", "size"))
        last = len(ids) - 1
        heads = [column.take(arrays.column(np.full(len(ids), last)))
                 for column in (ids, signatures, pointer, size)]
        columns = [ids, signatures, pointer, size, *heads]
        names = ["id", "signature", "pointer", "size"]
        names += [f"other_{name}" for name in names]
        pairs = pa.RecordBatch.from_arrays(columns, names).slice(0, last)
        assert not last or sum(map(len, compare([compare.worth(pairs)]))) <= last

    def keyed(batch):
        size, pos = batch.columns
        shard = arrays.column(np.zeros(len(batch), np.int32))
        return pa.RecordBatch.from_arrays([size, shard, pos, size], ["key", "shard", "p", "size"])

    assert list(sort.write_part(map(keyed, found("size long, _pos long")), place))

globals()[sys.argv[1]]()
print(*{"pandas", "pyarrow.compute"} & set(sys.modules))
"""


def imported(tmp_path: Path, task: str, base: Path) -> list[str]:
    """Which of pandas and pyarrow.compute a task imports."""
    done = subprocess.run(
        [sys.executable, "-c", TASKS, task, str(base), str(tmp_path)],
        env=environment(PYTHONPATH=f"{PACKAGES}{os.pathsep}{Path(__file__).parents[1]}"),
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.few(2)
@pytest.mark.parametrize("task", ["read", "fetch", "write", "jobs"])
def test_a_task_does_not_import_pandas(tmp_path: Path, task: str) -> None:
    """That takes half a second of CPU, in each worker, and `pa.array` is enough for it."""
    base = with_columns(tmp_path / "c")
    damage(base, "one entry")
    assert "pandas" not in imported(tmp_path, task, base)


def test_a_scan_does_not_import_pyarrow_compute(tmp_path: Path) -> None:
    """Half of what pyarrow costs each new worker."""
    assert imported(tmp_path, "scan", with_columns(tmp_path / "c")) == []


def test_a_scan_of_columns_does_not_import_pyarrow_compute(tmp_path: Path) -> None:
    """Of each type, with values that are equal, of their own, and null."""
    kinds = {"n": "int64", "ok": "bool", "x": "float64", "t": "timestamp", "d": "date",
             "p": "decimal(9,2)", "lang": "string", "raw": "binary", "tags": "list<string>",
             "ids": "list<int64>"}  # fmt: skip
    with winkfs.create(tmp_path / "c", columns=kinds) as c:
        for i in range(20):
            c.put(str(i), b"content", columns={
                "n": i, "ok": True, "x": i / 2, "t": i, "d": date(2026, 1, 1 + i),
                "p": Decimal(i), "lang": "de", "raw": b"%d" % i, "tags": ["a", str(i)],
                "ids": [i, 1],
            })  # fmt: skip
        c.put("none", b"")
    assert imported(tmp_path, "columns", tmp_path / "c") == []


README = Path(__file__).parents[2] / "README.md"


def example() -> str:
    """The Spark example of the README, which then shows what it has read."""
    code = (
        README.read_text()
        .partition("## Spark\n")[2]
        .partition("```python\n")[2]
        .partition("```")[0]
    )
    assert "df = " in code
    refs = 'spark.read.format("winkfs").option("content", "ref").load("set")'
    return f"{code}\ndf.show()\nwinkfs.spark.fetch_content({refs}).show()\nspark.stop()\n"


@pytest.mark.long
def test_the_readme_example_logs_no_warning(tmp_path: Path) -> None:
    """Where a query has enough rows, the JVM hangs up on its workers."""
    need_spark()
    data_sets.put(tmp_path / "set", {f"bash/{i}.html": b"<p>" * 2000 for i in range(3000)})
    done = subprocess.run(
        [sys.executable, "-c", example()], env=environment(), cwd=tmp_path, timeout=PATIENCE,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "bash/0.html" in done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    assert "BrokenPipe" not in done.stderr, done.stderr
    assert "replaced" not in done.stderr, done.stderr
    with winkfs.open(tmp_path / "copy") as copy:
        assert len(copy) == 3000


PLACES = """
from winkfs.spark.session import compiled
from pyspark.sql.datasource import DataSource, DataSourceReader

class Place(DataSource):
    name = classmethod(lambda cls: "place")
    schema = lambda self: "planner string, task string, imported string"

    def reader(self, schema):
        import pyspark
        return PlaceReader(pyspark.__file__)

class PlaceReader(DataSourceReader):
    def __init__(self, planner):
        self.planner = planner

    def read(self, partition):
        import sys
        import pyspark
        name = "winkfs.spark.reading.batches"
        yield self.planner, pyspark.__file__, name if name in sys.modules else "not imported"

before = spark.sparkContext.pythonExec
with compiled(spark):
    spark.dataSource.register(Place)
assert spark.sparkContext.pythonExec == before
where = spark.read.format("place").load().first()
"""


def test_processes_of_a_local_session_import_a_compiled_pyspark(spark: SparkSession) -> None:
    """Spark puts one in front that is not: a second of CPU for each of them. The daemon has
    imported what the workers need before it forks them."""
    import pyspark

    script: dict[str, Any] = {"spark": spark, "__name__": "__main__"}  # travels by value
    exec(PLACES, script)
    if "SPARK_HOME" in os.environ:
        pytest.skip("another PySpark than that of pip")
    planner, task, imported = script["where"]
    assert planner == task == pyspark.__file__
    assert imported == "winkfs.spark.reading.batches"


@pytest.mark.long
def test_a_python_that_is_not_this_one_is_left_alone(tmp_path: Path) -> None:
    """As one without winkfs, or one of another environment."""
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    code = """if True:
        from winkfs.spark.session import compiled
        with compiled(spark):
            print(spark.sparkContext.pythonExec)
    """
    done = application(code, python=str(other))
    assert done.stdout.split() == [str(other)], done.stderr


LOGGED = """#!/bin/sh
echo "$3" >> {log}
exec {python} "$@"
"""
FIRST = """
import sys, winkfs.spark
winkfs.spark.register(spark)
print(spark.read.format("winkfs").load(sys.argv[1]).selectExpr("sum(length(content))").first()[0])
print(spark.read.format("winkfs").schema("path string").load(sys.argv[1]).count())
"""


@pytest.mark.long
def test_the_first_query_starts_one_python_for_each_purpose(tmp_path: Path) -> None:
    """And none to look for other formats: with what Spark has them import, that is a second."""
    stored.make(tmp_path / "c", ((f"{i}", b"x" * 1000) for i in range(100)))
    log, logged = tmp_path / "log", tmp_path / "python"
    logged.write_text(LOGGED.format(log=log, python=sys.executable))
    logged.chmod(0o700)
    done = application(FIRST, tmp_path / "c", python=str(logged))
    assert done.stdout.split() == ["100000", "100"], done.stderr
    started = [name.rpartition(".")[2] for name in log.read_text().split()]
    assert started == ["create_data_source", "plan_data_source_read", "worker"]
