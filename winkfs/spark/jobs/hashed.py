"""Documents as what `digest` and `dedup` know of them: hashes, size, mtime, title; no content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from winkfs.dataset.snapshot import Snapshot
from winkfs.spark import arrow
from winkfs.spark.jobs.documents import hashes, titles
from winkfs.spark.jobs.reading import of_content

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = ("name_raw", "size", "mtime_ns")
SCHEMA: Final = (
    "name binary, size bigint, mtime_ns bigint, xxh3 bigint, mmh3 binary, title binary, "
    "error string"
)


def hashed(spark: SparkSession, source: Snapshot, *, title: bool, fail_fast: bool) -> DataFrame:
    """A row of SCHEMA for each document.

    title    look for titles; else they are empty
    error    null, or why the content cannot be read; hashes and title are then those of nothing
    cost     reads all content once: 1 s of CPU for 1.5 GB, 3 us a document
    """
    return of_content(
        spark, source, COLUMNS, lambda batch: hash_batch(batch, title), SCHEMA, fail_fast=fail_fast
    )


def hash_batch(batch: pa.RecordBatch, title: bool) -> pa.RecordBatch:
    """COLUMNS, content and _error -> SCHEMA."""
    import pyarrow as pa

    name, size, mtime = (batch.column(name) for name in COLUMNS)
    content = batch.column("content")
    xxh3, mmh3 = hashes(content)
    found = titles(content) if title else [b""] * len(batch)
    columns = [
        name, size, mtime, arrow.column(xxh3.view(np.int64)), arrow.rows(mmh3),
        arrow.binaries(found), batch.column("_error"),
    ]  # fmt: skip
    names = ["name", "size", "mtime_ns", "xxh3", "mmh3", "title", "error"]
    return pa.RecordBatch.from_arrays(columns, names)
