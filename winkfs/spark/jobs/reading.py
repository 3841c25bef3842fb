"""How the jobs read: columns of a container or data set, as of one generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import winkfs.spark
from winkfs.dataset.snapshot import Snapshot
from winkfs.spark.read.fetch import NEEDED, fetcher
from winkfs.spark.read.schema import FIELDS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Batches = Iterator["pa.RecordBatch"]
Change = Callable[["pa.RecordBatch"], "pa.RecordBatch"]
TASK: Final = 128 << 20  # bytes of content for a task
WORTH: Final = 4 << 20  # bytes of content that are worth a task of their own


class Kept(ExitStack):
    """Makes DataFrames that are used more than once stay on disk until the block ends."""

    def __call__(self, frame: DataFrame) -> DataFrame:
        from pyspark import StorageLevel

        frame = frame.persist(StorageLevel.DISK_ONLY)
        self.callback(frame.unpersist)
        return frame


def read(
    spark: SparkSession,
    source: Snapshot,
    columns: Sequence[str],
    *,
    fail_fast: bool = True,
    **options: Any,
) -> DataFrame:
    """The columns of all files (see `winkfs.spark.read.schema`), in the order they lie in.

    fail_fast   damage is an error; else a row with null content and the reason in `_error`
    options     further ones, see `winkfs.spark.read.options`
    """
    return winkfs.spark.read(
        spark, source.root, columns=columns, mode="FAILFAST" if fail_fast else "PERMISSIVE",
        content="inline" if "content" in columns else "none",
        asOf=str(source.generation) if source.generation else None, **options,
    )  # fmt: skip


def of_content(
    spark: SparkSession,
    source: Snapshot,
    columns: Sequence[str],
    change: Change,
    schema: str,
    *,
    fail_fast: bool,
) -> DataFrame:
    """A DataFrame of what `change` makes of batches of `columns`, `content` and `_error`.

    The content is read in the worker that works on it and does not go through the JVM: half the
    CPU seconds of a read with `content` and a `mapInArrow` behind it.
    """
    size = sum(shard.record.content for shard in source.shards)
    cores = spark.sparkContext.defaultParallelism
    tasks = max(-(-size // TASK), min(size // WORTH, cores), 1)
    needed = list(dict.fromkeys([*columns, *NEEDED, "_error"]))
    frame = read(spark, source, needed, fail_fast=fail_fast, minPartitions=tasks)
    fetch = fetcher("FAILFAST" if fail_fast else "PERMISSIVE")

    def run(batches: Batches) -> Batches:
        return map(change, fetch(batch for batch in batches if len(batch)))

    return frame.mapInArrow(run, schema)


def shard_column(source: Snapshot) -> str:
    """The column by which the shards of a snapshot differ. Numbers join faster than paths, but a
    container that was added twice is two shards with one CONTID."""
    contids = {shard.record.contid for shard in source.shards}
    return "_contid" if len(contids) == len(source.shards) else "_container"


def numbered(frame: DataFrame, source: Snapshot) -> DataFrame:
    """With `shard int`, the number of the shard in the snapshot, instead of `shard_column`."""
    from pyspark.sql import functions as F

    column = shard_column(source)
    by_path = column == "_container"
    numbers = [(s.base if by_path else s.record.contid, i) for i, s in enumerate(source.shards)]
    schema = f"{column} {FIELDS[column]}, shard int"
    table = frame.sparkSession.createDataFrame(numbers, schema)
    return frame.join(F.broadcast(table), column).drop(column)


def mapped(frame: DataFrame, change: Change, schema: str) -> DataFrame:
    """A DataFrame of what `change` makes of each Arrow batch; empty ones are passed over."""

    def run(batches: Batches) -> Batches:
        return (change(batch) for batch in batches if len(batch))

    return frame.mapInArrow(run, schema)
