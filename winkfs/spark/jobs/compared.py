"""Pairs of documents that may be similar, compared by what is in them.

Their contents are read again, in the worker that compares them: of the one that several are held
against once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from winkformats.arrays import Int64, UInt64
from winkfs.dataset.snapshot import Snapshot
from winkfs.spark import arrow
from winkfs.spark.jobs import near
from winkfs.spark.jobs.reading import mapped
from winkfs.spark.read.fetch import fetcher

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

POSITION: Final = 44  # bits of an id that are the position; the others are the number of the shard
PARTS: Final = 16  # tasks, at most, that those held against one document are spread over
PLACES: Final = ("id", "pointer", "size", "other_id", "other_pointer", "other_size")
SIMILAR: Final = "id bigint, other bigint"


def compared(pairs: DataFrame, snap: Snapshot, threshold: float, fail_fast: bool) -> DataFrame:
    """The pairs that are similar, rows of SIMILAR.

    pairs   id, signature, pointer, size, and the same of the other with `other_` before the names
    cost    of those with a sufficient estimate the content is read
    """
    from pyspark.sql import functions as F

    containers = [(shard.base, shard.record.contid) for shard in snap.shards]
    compare = Comparing(containers, threshold, fail_fast)
    schema = ", ".join(f"{name} bigint" for name in PLACES)
    chosen = mapped(pairs, compare.worth, schema)
    part = F.pmod(F.xxhash64("id"), F.lit(PARTS))
    return (
        chosen.repartition("other_id", part)
        .sortWithinPartitions("other_id", "id")
        .mapInArrow(compare, SIMILAR)
    )


@dataclass(frozen=True)
class Comparing:
    """What the tasks do."""

    containers: Sequence[tuple[str, int]]  # path and CONTID, by the number of the shard
    threshold: float
    fail_fast: bool

    def worth(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Of pairs, at least one, those whose contents are worth a look: PLACES."""
        a, b = (_signatures(batch.column(name)) for name in ("signature", "other_signature"))
        enough = near.estimate(a, b) >= near.worth(self.threshold, a.shape[1])
        return batch.select(PLACES).filter(arrow.column(enough))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pairs, in the order of `other_id` -> those that are similar."""
        import pyarrow as pa

        fetch = fetcher("FAILFAST" if self.fail_fast else "PERMISSIVE")
        head: Any = None
        for part in fetch(self._documents(batches)):
            ids, others = (arrow.numbers(part.column(name)) for name in ("id", "other"))
            similar = np.zeros(len(part), np.bool_)
            for i, found in enumerate(near.shingle_sets(part.column("content"))):
                if ids[i] == others[i]:
                    head = found
                else:
                    similar[i] = near.jaccard(head, found) >= self.threshold
            columns = [arrow.column(ids[similar]), arrow.column(others[similar])]
            yield pa.RecordBatch.from_arrays(columns, ["id", "other"])

    def _documents(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What to read: each document that others are held against, then these."""
        last = -1
        for batch in batches:
            if not len(batch):
                continue
            other = arrow.numbers(batch.column("other_id"))
            first = np.flatnonzero(np.diff(other, prepend=last))
            last = int(other[-1])

            def with_heads(name: str, batch: Any = batch, first: Int64 = first) -> Int64:
                mine, heads = (arrow.numbers(batch.column(n)) for n in (name, f"other_{name}"))
                return np.insert(mine, first, heads[first])

            ids, pointer, size = map(with_heads, ("id", "pointer", "size"))
            yield self._references(ids, np.insert(other, first, other[first]), pointer, size)

    def _references(self, ids: Int64, other: Int64, pointer: Int64, size: Int64) -> pa.RecordBatch:
        """Rows as `fetcher` takes them, with `id` and `other`."""
        import pyarrow as pa

        places = [self.containers[number] for number in (ids >> POSITION).tolist()]
        columns = {
            "id": arrow.column(ids), "other": arrow.column(other),
            "_container": arrow.texts([base for base, _ in places]),
            "_contid": arrow.column(np.array([contid for _, contid in places], np.int64)),
            "_pos": arrow.column(ids & (1 << POSITION) - 1),
            "_pointer": arrow.column(pointer), "size": arrow.column(size),
        }  # fmt: skip
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _signatures(column: pa.Array) -> UInt64:
    return np.frombuffer(b"".join(column.to_pylist()), np.uint64).reshape(len(column), -1)
