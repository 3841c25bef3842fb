"""Job `sort`: an order of the files of a container or data set by a key, see `results.orders`.

The job `group` uses it, too. Only keys and positions are shuffled; content is read only if the key
needs it. `spark.read.format("winkfs").option("orderBy", "perm:ORDER")` reads the files in order,
without a shuffle.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from winkformats.arrays import Bools, Int64
from winkfs.arrow import arrays
from winkfs.arrow.arrays import numbers
from winkfs.dataset.snapshot import Snapshot, snapshot
from winkfs.results import orders
from winkfs.results import store as results
from winkfs.results.orders import Order, OrderedFiles, OrderedShard, OrderPart
from winkfs.spark.jobs.reading import Kept, numbered, read, shard_column
from winkfs.spark.jobs.session import program
from winkfs.spark.jobs.tasks import attempt, cores, guarded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PART_ROWS: Final = 1 << 20  # approximate rows of a part
WRITTEN: Final = "part int, file string, rows bigint, groups bigint, size bigint"
COLUMNS: Final = ("path", "size", "mtime", "content", "name_raw", "mtime_ns", "ftype", "mode")


def run(
    spark: SparkSession,
    source: str,
    target: str,
    key: str,
    *,
    kind: str = "sort",
    descending: bool = False,
    parts: int | None = None,
    as_of: str | int | None = None,
) -> dict[str, Any]:
    """Make the order `target` of all files in `source`, replacing an existing one.

    kind        "sort": by key, equal ones in disk order; "group": equal keys together, the groups
                in any order, which is faster
    key         a SQL expression on the columns of the source: "mtime", "split(path, '/')[0]"; if it
                contains `content`, all content is read
    parts       number of parts; None: one for a million files, and at least two for each core
    ->          files, bytes, groups (different keys), parts, generation, seconds
    raises      ValueError for a wrong key; Refusal, OSError; errors of Spark
    """
    start = time.monotonic()
    snap = snapshot(source, as_of)
    least = 2 * cores(spark) if snap.files > PART_ROWS // 64 else 1
    count = parts or max(least, -(-snap.files // PART_ROWS))
    folder = results.begin(target, orders.NAME)
    try:
        with guarded(spark, f"{kind} {source}"), Kept() as kept:
            keys = _keys(spark, snap, key)
            if kind == "sort" and "content" in key:  # a sort computes its keys twice
                keys = kept(keys)
            chosen = _sorted(keys, descending, count) if kind == "sort" else _grouped(keys, count)
            rows = chosen.select("key", "shard", "_pos", "size").mapInArrow(
                lambda batches: write_part(batches, folder), WRITTEN
            )
            found = sorted(rows.collect(), key=lambda row: row["part"])
        order = _order(folder, snap, kind, key, found)
        orders.publish(folder, order)
    except BaseException:
        results.discard(folder)
        raise
    return {
        "job": kind, "source": snap.root, "generation": snap.generation, "key": key,
        "output": os.path.abspath(target), "files": order.rows, "groups": order.groups,
        "bytes": sum(part.size for part in order.parts), "parts": len(order.parts),
        "seconds": round(time.monotonic() - start, 3),
    }  # fmt: skip


def _keys(spark: SparkSession, snap: Snapshot, key: str) -> DataFrame:
    """Return (key, shard, _pos, size) of all files."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    needed = [name for name in COLUMNS if name in key]  # perhaps more than needed
    shard = shard_column(snap)
    frame = read(spark, snap, list(dict.fromkeys([*needed, "size", shard, "_pos"])))
    try:
        frame = frame.withColumn("key", F.expr(key))
        both = frame.select("key", F.struct("key", F.expr(key)))
        kind = dict(both.dtypes)["key"]  # raises if it generates rows, as explode does
    except (AnalysisException, ParseException) as error:
        line = str(error).strip().splitlines()[0]
        raise ValueError(
            f"key {key!r} is no expression over {', '.join(COLUMNS)}: {line}"
        ) from None
    if kind.startswith(("array", "map", "struct", "variant", "interval", "void")):
        raise ValueError(f"key {key!r} is of type {kind}: sort by something simpler, or cast it")
    if kind in ("float", "double"):
        frame = frame.withColumn("key", F.expr("key + 0.0"))  # -0.0 becomes 0.0, its equal
    return numbered(frame.select("key", shard, "_pos", "size"), snap)


def _sorted(keys: DataFrame, descending: bool, count: int) -> DataFrame:
    from pyspark.sql import functions as F

    by = F.col("key").desc() if descending else F.col("key").asc()
    return keys.repartitionByRange(count, by).sortWithinPartitions(by, "shard", "_pos")


def _grouped(keys: DataFrame, count: int) -> DataFrame:
    """Put equal keys together. Sorts by hash first, since numbers compare faster than strings."""
    from pyspark.sql import functions as F

    by = F.xxhash64("key")
    return keys.repartition(count, "key").sortWithinPartitions(by, "key", "shard", "_pos")


def write_part(batches: Iterable[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    """Write the part of one task: batches of (key, shard, _pos, size) -> a batch of WRITTEN."""
    number, turn = attempt()
    numbering = Numbering()
    sizes: list[int] = []

    def rows() -> Iterator[OrderedFiles]:
        for batch in batches:
            key, shard, pos, size = (batch.column(i) for i in range(4))
            sizes.append(int(numbers(size).sum()))
            yield OrderedFiles(numbers(shard), numbers(pos), numbering.of(key))

    part = orders.write_part(folder / f"part-{number:05d}.{turn}.perm", rows())
    values = {
        "part": arrays.column(np.array([number], np.int32)),
        "file": arrays.texts([part.file]),
    }
    counts = {"rows": part.rows, "groups": part.groups, "size": sum(sizes)}
    values |= {name: arrays.same(value, 1) for name, value in counts.items()}
    yield pa.RecordBatch.from_pydict(values)


class Numbering:
    """Numbers the runs of equal keys in a sequence of batches, from 0."""

    def __init__(self) -> None:
        self._last: Any = None  # the last key, in a column of its own
        self._number = -1

    def of(self, key: pa.Array) -> Int64:
        """Return the numbers of keys, int64[n]. Two nulls are equal, and so are two NaN."""
        if not len(key):
            return np.empty(0, np.int64)
        first = self._last is None
        column = key if first else pa.concat_arrays([self._last, key])
        changes = np.concatenate([np.full(int(first), True), _differ(column)])
        numbers = self._number + np.cumsum(changes)
        self._last, self._number = key.slice(len(key) - 1), int(numbers[-1])
        return numbers


def _differ(column: pa.Array) -> Bools:
    """Return for each value but the first whether it differs from the one before, bool[n - 1]."""
    import pyarrow.compute as pc  # late, because its import is slow

    a, b = column.slice(0, len(column) - 1), column.slice(1)
    differ = _true(pc.not_equal(a, b)) | (arrays.bools(a.is_null()) ^ arrays.bools(b.is_null()))
    if pa.types.is_floating(column.type):
        differ &= ~(_true(pc.is_nan(a)) & _true(pc.is_nan(b)))
    return differ


def _true(column: pa.Array) -> Bools:
    """Return which values are true, and not null."""
    return arrays.bools(column) & arrays.bools(column.is_valid())


def _order(folder: Path, snap: Snapshot, kind: str, key: str, found: list[Any]) -> Order:
    """Return the order, after renaming its parts to names without attempts."""
    parts = []
    for row in found:
        name = f"part-{row['part']:05d}.perm"
        os.replace(folder / row["file"], folder / name)
        parts.append(OrderPart(name, row["rows"], row["groups"], row["size"]))
    shards = [OrderedShard(s.record.path, s.record.contid, s.record.size) for s in snap.shards]
    return Order(folder, snap.root, snap.generation, kind, key, tuple(shards), tuple(parts))


if __name__ == "__main__":
    program("sort")
