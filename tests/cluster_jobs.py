"""What a driver of `drivers` can be told to run, and the same by a plain Python loop.

Functions of Spark take the session first, and return what JSON can hold. The workers import this
module, too.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import winkfs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "path string, content binary"
Batches = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]
Rows = list[list[object]]


def document(number: int) -> tuple[str, bytes]:
    """A file that the tests write: 0 to 6 kB."""
    return f"d{number % 7}/{number}.txt", b"%d\n" % number * (number * 31 % 1000)


def digest(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


# --- plain Python ---


def expected(numbers: Iterable[int]) -> Rows:
    """[path, size, digest] of documents, in order of path."""
    found = [(name, len(data), digest(data)) for name, data in map(document, numbers)]
    return sorted(map(list, found))


def stored(path: Path) -> Rows:
    """The same of what a container or a data set holds, by Python alone."""
    with winkfs.open(path) as container:
        entries = [(e.name, e.size, digest(e.read())) for e in container.scan()]
    return sorted(map(list, entries))


# --- a gate ---


def gated(gate: str | None, at: int = 0) -> Batches:
    """Batches pass; the first task that has passed `at` of them waits for the gate to open."""

    def passed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if gate is not None and number >= at:
                wait_at(Path(gate))
            yield batch

    return passed


def wait_at(gate: Path) -> None:
    if (gate / "held").exists() or (gate / "go").exists():
        return
    mine = gate / f"held-{os.getpid()}"
    mine.write_text(str(os.getpid()))
    try:
        os.link(mine, gate / "held")  # there at once with what it says; one wins
    except FileExistsError:
        return
    deadline = time.monotonic() + 120
    while not (gate / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


# --- Spark ---


def documents(spark: SparkSession, first: int, last: int, parts: int) -> DataFrame:
    """Rows (path, content) of the documents with these numbers."""

    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for start in range(0, batch.num_rows, 100):
                numbers = batch.column(0).slice(start, 100).to_pylist()
                names, contents = zip(*map(document, numbers), strict=True)
                yield pa.RecordBatch.from_pydict({"path": names, "content": contents})

    return spark.range(first, last, numPartitions=parts).mapInArrow(made, SCHEMA)


def summed(table: DataFrame) -> Rows:
    """[path, size, digest] of rows (path, content), in order of path."""
    rows = table.selectExpr("path", "length(content)", "md5(content)").collect()
    return sorted(map(list, rows))


def read(spark: SparkSession, path: str, options: dict[str, str], gate: str | None = None) -> Rows:
    table = spark.read.format("winkfs").options(**options).load(path).select("path", "content")
    return summed(table.mapInArrow(gated(gate, 1), SCHEMA) if gate else table)


def write(
    spark: SparkSession,
    path: str,
    numbers: tuple[int, int],
    mode: str = "append",
    gate: str | None = None,
    parts: int = 4,
) -> None:
    table = documents(spark, *numbers, parts)
    table = table.mapInArrow(gated(gate, 2), SCHEMA)
    table.write.format("winkfs").mode(mode).save(path)


def write_with_failures(spark: SparkSession, root: str) -> None:
    """Four tasks write 1,000 documents each. Of the first and the third of them the first attempt
    fails after 200: the one raises, the Python of the other is killed."""

    def fails_first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        first = task.attemptNumber() == 0
        for number, batch in enumerate(batches):
            if first and number == 2 and task.partitionId() == 0:
                raise RuntimeError("the first attempt fails")
            if first and number == 2 and task.partitionId() == 2:
                os.kill(os.getpid(), 9)
            yield batch

    frame = documents(spark, 0, 4000, 4)
    frame.mapInArrow(fails_first, frame.schema).write.format("winkfs").mode("append").save(root)


def copy(
    spark: SparkSession, source: str, path: str, options: dict[str, str], gate: str | None = None
) -> None:
    """Append what a container holds to a data set; a task waits in the middle of its rows."""
    table = spark.read.format("winkfs").options(**options).load(source).select("path", "content")
    table = table.mapInArrow(gated(gate, 1), SCHEMA)
    table.write.format("winkfs").mode("append").save(path)


def stream(
    spark: SparkSession,
    source: str,
    target: str,
    checkpoint: str,
    gate: str | None = None,
    files: int = 200,
) -> int:
    """Copy all that is new -> how many batches it took."""
    table = spark.readStream.format("winkfs").option("maxFilesPerTrigger", str(files)).load(source)
    rows = table.select("path", "content").mapInArrow(gated(gate, 1), SCHEMA)
    writer = rows.writeStream.format("winkfs").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start(target)
    query.awaitTermination()
    return len([progress for progress in query.recentProgress if progress["numInputRows"]])


def job(spark: SparkSession, name: str, *arguments: str, **options: object) -> dict[str, object]:
    """Run a job of the pipeline -> its summary."""
    found = importlib.import_module(f"winkfs.spark.jobs.{name}").run(spark, *arguments, **options)
    summary: dict[str, object] = json.loads(json.dumps(found))
    return summary


def ordered(spark: SparkSession, path: str, order: str) -> list[list[str]]:
    """Names in an order, a list for each partition."""
    frame = spark.read.format("winkfs").option("orderBy", f"perm:{order}")
    frame = frame.option("columns", "path,size").option("minPartitions", "3").load(path)
    parts = frame.rdd.mapPartitions(lambda rows: [[row.path for row in rows]])
    return list(parts.collect())
