"""Job `digest`: a digest set (`winkfs.digests`) of a container or data set.

Content is read once, and hashed in the worker that reads it; only hashes, size, time, path, title
and language of each document are shuffled.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from winkformats import hashing
from winkfs import digests
from winkfs.arrow import arrays
from winkfs.arrow.arrays import numbers
from winkfs.dataset.snapshot import snapshot
from winkfs.names import to_str
from winkfs.results import store as results
from winkfs.results.digests import MAX_SHARDS, shard_name, shard_of
from winkfs.results.digestshard import DigestColumns, DigestShardWriter
from winkfs.spark.jobs.reading import hashed
from winkfs.spark.jobs.session import Bad, Report, ignore, program
from winkfs.spark.jobs.tasks import attempt, cores, guarded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARD_DOCUMENTS: Final = 500_000  # approximate documents of a shard
DEFAULT_SHARDS: Final = 16  # shards, if the number of documents is not known
WRITTEN: Final = (
    "shard int, file string, contid bigint, entries bigint, size bigint, content bigint, "
    "name binary, error string"
)
TYPES: Final = {
    "int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary(),
}  # fmt: skip
KINDS: Final = {name: TYPES[kind] for name, kind in map(str.split, WRITTEN.split(", "))}


def run(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    shards: int | None = None,
    as_of: str | int | None = None,
    fail_fast: bool = False,
    bad: Report = ignore,
) -> dict[str, Any]:
    """Make the digest set `target` of all documents in `source`, replacing an existing one.

    source      a container or data set
    shards      number of shards of the digest set; None: one for 500,000 documents
    as_of       generation of the data set, or a time; None: now
    fail_fast   damage is an error; else a bad record, which is left out
    ->          files, bytes, bad, shards, generation, seconds
    raises      Refusal, OSError; errors of Spark. Then the existing digest set is kept
    """
    start = time.monotonic()
    snap = snapshot(source, as_of)
    known = max(1, math.ceil(snap.files / SHARD_DOCUMENTS))
    count = shards or (known if snap.files >= 0 else DEFAULT_SHARDS)
    if not 1 <= count <= MAX_SHARDS:
        raise ValueError(f"a digest set has 1 to {MAX_SHARDS} shards, not {count}")
    folder = results.begin(target, digests.NAME)
    try:
        with guarded(spark, f"digest {source}"):
            rows = _write(spark, snap, folder, count, fail_fast)
        made = [row for row in rows if row["error"] is None]
        summary = {"source": snap.root, "generation": snap.generation}
        digests.publish(folder, _all_shards(folder, made, count), summary)
    except BaseException:
        results.discard(folder)
        raise
    wrong = [row for row in rows if row["error"] is not None]
    for row in wrong:
        bad(Bad(snap.root, to_str(bytes(row["name"])), row["error"]))
    return {
        "job": "digest", **summary, "output": os.path.abspath(target),
        "files": sum(row["entries"] for row in made), "bytes": sum(row["content"] for row in made),
        "bad": len(wrong), "shards": count, "seconds": round(time.monotonic() - start, 3),
    }  # fmt: skip


def _write(spark: SparkSession, snap: Any, folder: Path, count: int, fail_fast: bool) -> list[Any]:
    """Write the shards -> rows of WRITTEN: one for each shard, and one for each bad record."""
    frame = hashed(spark, snap, title=True, fail_fast=fail_fast)
    schema = ", ".join(["shard int", *(f"`{name}` {kind}" for name, kind in frame.dtypes)])
    numbers = frame.mapInArrow(lambda batches: _numbered(batches, count), schema)
    tasks = min(count, max(2 * cores(spark), 1))
    # A task may have several shards: if its rows are sorted, it writes them one after another.
    sorted_rows = numbers.repartition(tasks, "shard").sortWithinPartitions("shard")
    written = sorted_rows.mapInArrow(lambda batches: write_shards(batches, folder), WRITTEN)
    return list(written.collect())


def _numbered(batches: Iterable[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    """Add the number of the shard as the first column."""
    for batch in batches:
        s, _ = hashing.hash_keys(hashing.XXH3, batch.column("name").to_pylist())
        column = arrays.column(shard_of(s, count).astype(np.int32))
        names = ["shard", *batch.schema.names]
        yield pa.RecordBatch.from_arrays([column, *batch.columns], names)


def write_shards(batches: Iterable[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    """Write the shards of one task, from rows sorted by shard -> batches of WRITTEN."""
    pieces = (piece for batch in batches for piece in _by_shard(batch))
    for number, mine in itertools.groupby(pieces, key=lambda piece: piece[0]):
        name = f"{shard_name(number)}.{attempt()[1]}"
        writer = DigestShardWriter(folder / name)
        try:
            content, errors = 0, []
            for _, piece in mine:
                good = piece.filter(piece.column("error").is_null())
                errors.append(piece.filter(piece.column("error").is_valid()))
                writer.add(columns_of(good))
                content += int(numbers(good.column("size")).sum())
            made = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        made["content"] = content
        yield _written(number, 1, {name: arrays.same(value, 1) for name, value in made.items()})
        for rows in filter(len, errors):
            yield _written(number, len(rows), {n: rows.column(n) for n in ("name", "error")})


def _by_shard(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split a batch, which is sorted by shard, into one for each shard."""
    shards = numbers(batch.column("shard"))
    cuts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(shards)]
    for a, b in itertools.pairwise(cuts):
        if b > a:
            yield int(shards[a]), batch.slice(a, b - a)


def columns_of(batch: pa.RecordBatch) -> DigestColumns:
    """Convert rows of `hashed` without errors to columns for a shard."""
    sums = b"".join(batch.column("mmh3").to_pylist())
    return DigestColumns(
        batch.column("name").to_pylist(), numbers(batch.column("xxh3")).view(np.uint64),
        np.frombuffer(sums, np.uint8).reshape(-1, 16), numbers(batch.column("size")),
        numbers(batch.column("mtime_ns")), batch.column("title").to_pylist(),
        batch.column("lang").to_pylist(),
    )  # fmt: skip


def _written(number: int, count: int, values: dict[str, pa.Array]) -> pa.RecordBatch:
    """Return rows of a shard; columns without values are null."""
    values = {"shard": arrays.column(np.full(count, number, np.int32))} | values
    columns = [values.get(name, pa.nulls(count, kind)) for name, kind in KINDS.items()]
    return pa.RecordBatch.from_arrays(columns, list(KINDS))


def _all_shards(folder: Path, rows: list[Any], count: int) -> list[dict[str, Any]]:
    """Return the record of each shard, after making empty shards for those without documents."""
    made = {row["shard"]: row.asDict() for row in rows}
    for number in set(range(count)) - made.keys():
        made[number] = DigestShardWriter(folder / f"{shard_name(number)}.none").finish()
    return [made[number] for number in range(count)]


if __name__ == "__main__":
    program("digest")
