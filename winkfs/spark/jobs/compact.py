"""Job `compact`: `winkfs dataset compact` with a task for each group of shards."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from winkfs.dataset.compaction import (
    SHARD_SIZE,
    WASTE_SHARE,
    Group,
    checked_level,
    compaction,
    rewrite,
)
from winkfs.dataset.manifest import is_dataset, root_of
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.snapshot import Snapshot, snapshot
from winkfs.dataset.transaction import Transaction, begun
from winkfs.errors import NotAllowed
from winkfs.spark.jobs.session import program
from winkfs.spark.jobs.tasks import attempt, guarded, on_units

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    spark: SparkSession,
    source: str,
    *,
    shard_size: int = SHARD_SIZE,
    everything: bool = False,
    compress: str | None = None,
) -> dict[str, Any]:
    """Join small shards, and rewrite those with many hidden files or dead bytes.

    shard_size  target size of a shard, bytes
    everything  rewrite all shards that have hidden files or tombstones, and all that are small
    compress    see `winkfs.dataset.compaction.compact`
    ->          files and bytes of the new shards, shards (now), removed, added (shards),
                generation, seconds
    raises      DatasetConflict if another commit replaced one of the shards; CorruptError;
                StalePlan; ValueError; OSError; errors of Spark. Then nothing is changed
    """
    start = time.monotonic()
    seen = snapshot(root_of(source))
    if not is_dataset(source):
        raise NotAllowed("is a single container: only data sets are compacted", source)
    level = checked_level(compress, source)
    groups = compaction(seen, shard_size, 0.0 if everything else WASTE_SHARE, level)
    summary: dict[str, Any] = {"job": "compact", "source": seen.root}
    summary |= {"files": 0, "bytes": 0, "removed": 0, "added": 0, "generation": seen.generation}
    if groups:
        summary |= _run(spark, seen, groups, compress)
    shards = len(seen.shards) - summary["removed"] + summary["added"]
    return summary | {"shards": shards, "seconds": round(time.monotonic() - start, 3)}


def _run(
    spark: SparkSession, seen: Snapshot, groups: list[Group], compress: str | None
) -> dict[str, Any]:
    with begun(seen.root, "compact") as transaction:
        with guarded(spark, f"compact {seen.root}"):
            found = on_units(spark, groups, _task(transaction, seen, compress))
        records = [record for group in found for record in group]
        old = [seen.shards[number].record.path for group in groups for number in group.members]
        generation = transaction.commit(records, removed=old)
    counts = {"files": sum(r.files for r in records), "bytes": sum(r.size for r in records)}
    return counts | {"removed": len(old), "added": len(records), "generation": generation}


def _task(
    transaction: Transaction, seen: Snapshot, compress: str | None
) -> Callable[[Group], list[ShardRecord]]:
    def run(group: Group) -> list[ShardRecord]:  # Spark broadcasts it, if `seen` is large
        name = f"{group.name}.{attempt()[1]}"
        return rewrite(transaction, seen, replace(group, name=name), compress=compress)

    return run


if __name__ == "__main__":
    program("compact")
