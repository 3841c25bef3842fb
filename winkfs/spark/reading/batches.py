"""Reading a partition as Arrow batches, in exactly the types that Spark requires."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import numpy as np
import pyarrow as pa

from winkformats.arrays import Int64
from winkfs.arrow import arrays
from winkfs.arrow.batches import Found, OpenPiece, Reading, kept
from winkfs.arrow.batches import batches as batches_of
from winkfs.arrow.pieces import batch_ranges, unpack
from winkfs.spark.reading.partition import Ordered, Scan

ROWS_AT_ONCE: Final = 1 << 13  # rows of an order that are looked up together


def batches(reading: Reading, partition: Scan | Ordered) -> Iterator[pa.RecordBatch]:
    """Read a partition: see `winkfs.arrow.batches.batches`."""
    arrays.freeze()
    if isinstance(partition, Ordered):
        yield from _ordered(reading, partition)
    else:
        yield from batches_of(reading, partition.pieces)


def _ordered(reading: Reading, partition: Ordered) -> Iterator[pa.RecordBatch]:
    shard, pos = _order_of(partition)
    with ExitStack() as stack:
        opened: dict[int, OpenPiece] = {}
        for at in range(0, len(pos), ROWS_AT_ONCE):
            numbers, places = shard[at : at + ROWS_AT_ONCE], pos[at : at + ROWS_AT_ONCE]
            parts = []
            for number in np.unique(numbers).tolist():
                if number not in opened:
                    piece = partition.pieces[number]
                    opened[number] = stack.enter_context(OpenPiece(reading, piece))
                    opened[number].source.prepare(np.unique(pos[shard == number]))
                parts.append(opened[number].found(np.flatnonzero(numbers == number), places))
            yield from _in_order(reading, parts)
        for one in opened.values():
            yield from one.damaged()


def _order_of(partition: Ordered) -> tuple[Int64, Int64]:
    if partition.order is None:
        return unpack(partition.shard), unpack(partition.pos)
    from winkfs.results import orders  # late: most tasks do not need it

    folder, part, start, stop = partition.order
    rows = orders.open(folder).read(orders.Range(part, start, stop))
    return rows.shard, rows.pos


def _in_order(reading: Reading, parts: list[Found]) -> Iterator[pa.RecordBatch]:
    place = np.concatenate([part.place for part in parts])
    weight = reading.weights(np.concatenate([part.rows.size for part in parts]))
    order = np.argsort(place)
    place = place[order]
    for at, stop in batch_ranges(weight[order], reading.batch):
        found, good, places = [], [], []
        for part in parts:
            a, b = np.searchsorted(part.place, [place[at], place[stop - 1] + 1]).tolist()
            if a < b:
                whole, fine = part.opened.batch(part.rows.take(np.arange(a, b)))
                found.append(whole)
                good.append(fine)
                places.append(part.place[a:b])
                part.opened.source.contents.drop()
        back = np.argsort(np.concatenate(places))
        whole = found[0] if len(found) == 1 else pa.concat_batches(found).take(arrays.column(back))
        yield from kept(reading, whole, np.concatenate(good)[back])
