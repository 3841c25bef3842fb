"""How the jobs read: columns of a container or data set, as of one generation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from winkfs.dataset.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Batches = Iterator["pa.RecordBatch"]


def read(
    spark: SparkSession,
    source: Snapshot,
    columns: Sequence[str],
    *,
    fail_fast: bool = True,
    everything: bool = False,
) -> DataFrame:
    """The columns of all files (see `winkfs.spark.schema`), in the order they lie in.

    fail_fast   damage is an error; else a row with null content and the reason in `_error`
    everything  directories and symbolic links too
    """
    reader = spark.read.format("winkfs").option("columns", ",".join(columns))
    reader = reader.option("content", "inline" if "content" in columns else "none")
    reader = reader.option("mode", "FAILFAST" if fail_fast else "PERMISSIVE")
    reader = reader.option("includeDirs", str(everything).lower())
    if source.generation:
        reader = reader.option("asOf", str(source.generation))
    return reader.load(json.dumps([source.root]))


def numbered(frame: DataFrame, source: Snapshot) -> DataFrame:
    """With a column `shard int`, the number of the shard in the snapshot, instead of `_contid`."""
    from pyspark.sql import functions as F

    numbers = [(shard.record.contid, number) for number, shard in enumerate(source.shards)]
    table = frame.sparkSession.createDataFrame(numbers, "_contid bigint, shard int")
    return frame.join(F.broadcast(table), "_contid").drop("_contid")


def mapped(
    frame: DataFrame, change: Callable[[pa.RecordBatch], pa.RecordBatch], schema: str
) -> DataFrame:
    """A DataFrame of what `change` makes of each Arrow batch; empty ones are passed over."""

    def run(batches: Batches) -> Batches:
        return (change(batch) for batch in batches if len(batch))

    return frame.mapInArrow(run, schema)


def int64(column: pa.Array) -> Any:
    """A column of integers without nulls -> int64[n]."""
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)
