"""Reading a partition as Arrow batches, in exactly the types that Spark requires."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from winkformats.arrays import Int64
from winkfs.arrow.batches import Reading, ordered
from winkfs.arrow.batches import batches as batches_of
from winkfs.arrow.pieces import unpack
from winkfs.remote.links import accept
from winkfs.spark.reading.partition import Ordered, Scan
from winkfs.spark.workers import freeze


def batches(reading: Reading, partition: Scan | Ordered) -> Iterator[pa.RecordBatch]:
    """Read a partition: see `winkfs.arrow.batches.batches`."""
    freeze()
    accept(partition.links)
    if isinstance(partition, Ordered):
        yield from ordered(reading, partition.pieces, *_order_of(partition))
    elif "_ref" in reading.columns:
        from winkfs.spark.reading.lazy import in_disk_order  # late: most tasks do not need it

        yield from in_disk_order(batches_of(reading, partition.pieces))
    else:
        yield from batches_of(reading, partition.pieces)


def _order_of(partition: Ordered) -> tuple[Int64, Int64]:
    if partition.order is None:
        return unpack(partition.shard), unpack(partition.pos)
    from winkfs.results import orders  # late: most tasks do not need it

    folder, part, start, stop = partition.order
    rows = orders.open(folder).read(orders.Range(part, start, stop))
    return rows.shard, rows.pos
