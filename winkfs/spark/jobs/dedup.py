"""Job `dedup`: which documents are the same as others, and a data set without them.

Exact: equal XXH3-64, size and MurmurHash3 128: two contents with one 64-bit hash are two documents.
The oldest of those that are equal stays (least mtime, then least name); the others are its
duplicates.

Near: see `near`. A document is compared, by its content, with the oldest of each band that it
shares. It is a duplicate where one that is older and stays is similar to it. So no chain of small
changes makes duplicates of two documents that are not similar.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from winkformats.disk.paths import sync_directory
from winkfs.dataset.manifest import check_free, is_dataset
from winkfs.dataset.snapshot import Snapshot, snapshot
from winkfs.dataset.transaction import ShardWriter, begin
from winkfs.errors import FileExists, NotAllowed
from winkfs.names import to_path, to_str
from winkfs.spark import arrow
from winkfs.spark.jobs import near
from winkfs.spark.jobs.near import POSITION, compared
from winkfs.spark.jobs.reading import Kept, hashed, mapped, of_content, read
from winkfs.spark.jobs.session import Bad, Report, guarded, ignore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BROADCAST: Final = 2_000_000  # names that every worker may hold
COLUMNS: Final = ("name_raw", "size", "mtime_ns")
SIGNED: Final = (
    "id bigint, name binary, size bigint, mtime_ns bigint, pointer bigint, bands array<bigint>, "
    "signature binary, error string"
)
TABLE: Final = (
    "path string, same_as string, size bigint, mtime_ns bigint, name_raw binary, same_as_raw binary"
)


def run(
    spark: SparkSession,
    source: str,
    *,
    table: str | None = None,
    delete: bool = False,
    into: str | None = None,
    threshold: float | None = None,
    min_size: int = 1,
    fail_fast: bool = False,
    bad: Report = ignore,
) -> dict[str, Any]:
    """Find the duplicates in `source`.

    table       a Parquet folder to make, a row for each double: path, same_as (the document that
                stays), size, mtime_ns, name_raw, same_as_raw
    delete      delete the duplicates from the data set `source`, with one commit
    into        a data set to make, or to add to: all of `source` but the duplicates
    threshold   None: exact ones; else near ones, by the Jaccard index of word shingles, 0.5 .. 1
    min_size    smaller documents are not looked at; 1: empty ones are no duplicates
    ->          files (looked at), groups, doubles, bytes (of those), bad, generation, seconds
    raises      DatasetConflict where `source` was changed meanwhile and was to be changed;
                FileExistsError (the table); Refusal, OSError; what Spark raises
    """
    start = time.monotonic()
    snap = snapshot(source)
    _check(source, table, delete, into, threshold)
    summary: dict[str, Any] = {"job": "dedup", "source": snap.root, "generation": snap.generation}
    with guarded(spark, f"dedup {source}"), Kept() as kept:
        if threshold is None:
            every = kept(hashed(spark, snap, title=False, fail_fast=fail_fast))
            duplicates = kept(_exact(every, min_size))
        else:
            every = kept(_signed(spark, snap, fail_fast))
            near_ones = every.where(f"error is null and size >= {min_size}")
            duplicates = kept(_near(spark, snap, near_ones, threshold, fail_fast))
        summary |= _counts(every, duplicates, min_size)
        for row in every.where("error is not null").select("name", "error").toLocalIterator():
            bad(Bad(snap.root, to_str(bytes(row[0])), row[1]))
        if table is not None:
            _write_table(duplicates, table)
            summary["table"] = os.path.abspath(table)
        if into is not None:
            _copy_others(spark, snap, duplicates, summary["doubles"], into)
            summary["output"] = os.path.abspath(into)
        if delete and summary["doubles"]:
            names = {bytes(row[0]) for row in duplicates.select("name").toLocalIterator()}
            summary["generation"] = _delete(snap, names)
    return summary | {"seconds": round(time.monotonic() - start, 3)}


def _check(
    source: str, table: str | None, delete: bool, into: str | None, threshold: float | None
) -> None:
    if threshold is not None and not 0.5 <= threshold <= 1:
        raise ValueError(f"a threshold is 0.5 to 1, not {threshold}")
    if delete and not is_dataset(source):
        what = "is a single container: doubles are deleted from data sets; copy the others instead"
        raise NotAllowed(what, source)
    if table is not None and os.path.exists(table):
        raise FileExists("the table exists already: choose another name", table)
    if into is not None:
        check_free(into)
        if os.path.realpath(source) == os.path.realpath(into):
            raise FileExists("is what is read: delete the doubles, or give another data set", into)


def _counts(every: DataFrame, duplicates: DataFrame, min_size: int) -> dict[str, int]:
    from pyspark.sql import functions as F

    looked = F.col("error").isNull() & (F.col("size") >= min_size)
    of_all = every.agg(F.count_if(looked), F.count("error")).head()
    found = duplicates.agg(F.countDistinct("same_as"), F.count("*"), F.sum("size")).head()
    assert of_all is not None and found is not None
    return {
        "files": of_all[0], "bad": of_all[1],
        "groups": found[0], "doubles": found[1], "bytes": found[2] or 0,
    }  # fmt: skip


def _oldest(frame: DataFrame, *group: str) -> DataFrame:
    """The duplicates in each group: (name, size, mtime_ns, same_as)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy(*group).orderBy("mtime_ns", "name")
    frame = frame.withColumn("same_as", F.first("name").over(order))
    return frame.where("name != same_as").select("name", "size", "mtime_ns", "same_as")


# --- exact ---


def _exact(every: DataFrame, min_size: int) -> DataFrame:
    good = every.where(f"error is null and size >= {min_size}")
    return _oldest(good, "xxh3", "size", "mmh3")


# --- near ---


def _signed(spark: SparkSession, snap: Snapshot, fail_fast: bool) -> DataFrame:
    """Rows of SIGNED."""
    shards = {shard.base: number for number, shard in enumerate(snap.shards)}
    return of_content(
        spark, snap, COLUMNS, lambda batch: sign_batch(batch, shards), SIGNED, fail_fast=fail_fast
    )


def sign_batch(batch: pa.RecordBatch, shards: Mapping[str, int]) -> pa.RecordBatch:
    """COLUMNS, content, _error and where it lies -> SIGNED. One without words has no bands.

    shards  numbers of the containers. An id is that of the container and the position of the inode:
            ids are in the order of the files
    """
    import pyarrow as pa

    containers = batch.column("_container").dictionary_encode()
    known = np.array([shards[base] for base in containers.dictionary.to_pylist()], np.int64)
    shard = known[arrow.numbers(containers.indices)]
    ids = arrow.column(shard << POSITION | arrow.numbers(batch.column("_pos")))
    head = [ids, *map(batch.column, (*COLUMNS, "_pointer"))]
    signatures = near.signatures(batch.column("content"))
    keys = near.band_keys(signatures).view(np.int64)
    some = (signatures != near.EMPTY).any(axis=1)
    offsets = np.concatenate([[0], np.cumsum(np.where(some, keys.shape[1], 0))]).astype(np.int32)
    bands = pa.ListArray.from_arrays(arrow.column(offsets), arrow.column(keys[some].ravel()))
    rows = arrow.rows(signatures.view(np.uint8))
    names = ["id", "name", "size", "mtime_ns", "pointer", "bands", "signature", "error"]
    return pa.RecordBatch.from_arrays([*head, bands, rows, batch.column("_error")], names)


def _near(
    spark: SparkSession, snap: Snapshot, good: DataFrame, threshold: float, fail_fast: bool
) -> DataFrame:
    """Pairs that are similar come together on the driver: 16 bytes each."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    oldest = Window.partitionBy("band").orderBy("mtime_ns", "name")
    banded = good.select("id", "mtime_ns", "name", F.explode("bands").alias("band"))
    pairs = banded.withColumn("other", F.first("id").over(oldest)).where("id != other")
    places = ("id", "signature", "pointer", "size")
    theirs = good.select(*(F.col(name).alias(f"other_{name}") for name in places))
    worth = (
        pairs.select("id", F.col("other").alias("other_id"))
        .distinct()
        .join(good.select(*places), "id")
        .join(theirs, "other_id")
    )
    found = compared(worth, snap, threshold, fail_fast).toArrow()
    return _oldest_of(spark, good, *(found.column(name).to_numpy() for name in ("id", "other")))


def _oldest_of(spark: SparkSession, good: DataFrame, younger: Any, older: Any) -> DataFrame:
    """The duplicates among documents of which these are similar: of each, the oldest that stays."""
    from pyspark.sql import functions as F

    ids, numbers = np.unique(np.concatenate([younger, older]), return_inverse=True)
    stays = near.kept(len(ids), numbers[: len(younger)], numbers[len(younger) :])
    chosen = stays[numbers[len(younger) :]]
    table = spark.createDataFrame(_arrow(id=younger[chosen], other=older[chosen]))
    theirs = good.select(F.col("id").alias("other"), F.struct("mtime_ns", "name").alias("first"))
    first = table.join(theirs, "other").groupBy("id").agg(F.min("first").alias("first"))
    return good.join(first, "id").select(
        "name", "size", "mtime_ns", F.col("first.name").alias("same_as")
    )


def _arrow(**columns: Any) -> pa.Table:
    import pyarrow as pa

    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


# --- what is done with them ---


def _write_table(duplicates: DataFrame, table: str) -> None:
    """As Parquet beside it, then renamed."""
    staging = f"{table}.{secrets.token_hex(8)}"
    try:
        mapped(duplicates.orderBy("same_as", "name"), _shown, TABLE).write.parquet(staging)
        os.rename(staging, table)
        sync_directory(os.path.dirname(os.path.abspath(table)))
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _shown(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa

    name, size, mtime, same = batch.columns
    paths = [arrow.texts(list(map(to_path, column.to_pylist()))) for column in (name, same)]
    names = ["path", "same_as", "size", "mtime_ns", "name_raw", "same_as_raw"]
    return pa.RecordBatch.from_arrays([*paths, size, mtime, name, same], names)


def _copy_others(
    spark: SparkSession, snap: Snapshot, duplicates: DataFrame, count: int, into: str
) -> None:
    from pyspark.sql import functions as F

    names = duplicates.select(F.col("name").alias("name_raw"))
    names = F.broadcast(names) if count <= BROADCAST else names
    columns = ("name_raw", "mtime_ns", "ftype", "mode", "content")
    others = read(spark, snap, columns, includeDirs=True).join(names, "name_raw", "left_anti")
    others = others.withColumnRenamed("mtime_ns", "mtime")
    others.write.format("winkfs").mode("append").save(os.path.abspath(into))


def _delete(snap: Snapshot, names: set[bytes]) -> int:
    """Delete names from the data set, if it is as it was -> the generation."""
    transaction = begin(snap.root, "append")
    try:
        writer = ShardWriter(transaction, "00000-0")
        writer.gone |= names
        record = writer.finish()
        metrics = {"job": "dedup", "deleted": len(names)}
        return transaction.commit([record], metrics=metrics, after=snap.generation)
    except BaseException:
        transaction.abort()
        raise


if __name__ == "__main__":
    from winkfs.spark.jobs.session import program

    program("dedup")
