"""Rows of a task in order of their mtimes, by way of a scratch file where memory would not do."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from winkformats.arrays import Int64
from winkfs.spark.read.batching import cuts
from winkfs.units import MICRO

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY: Final = 128 << 20  # bytes of rows that are kept in memory
ROWS: Final = 2048  # of a batch handed on
BYTES: Final = 8 << 20  # of their content, about


def in_order(
    batches: Iterable[pa.RecordBatch], mtime: int, content: int, now: int, folder: str
) -> Iterator[pa.RecordBatch]:
    """The same rows by ascending mtime, equal ones as they came; where it is null, it is now.

    mtime, content  numbers of the columns
    now     nanoseconds
    folder  where a scratch file without a name goes, if one is needed
    raises  OSError, also where there is no room for the scratch file
    cost    of more than MEMORY bytes: written and read once more; 50 bytes of memory a row
    """
    held: list[Any] = []
    source, size = (_filled(batch, mtime, now) for batch in batches), 0
    for batch in source:
        held.append(batch)
        size += batch.nbytes
        if size > MEMORY:
            held = _spooled(chain(held, source), folder)
            break
    if not held:
        return
    times = np.concatenate([_times(batch.column(mtime)) for batch in held])
    if (np.diff(times) >= 0).all():
        yield from held
        return
    sizes = np.concatenate([_sizes(batch.column(content)) for batch in held])
    order = np.argsort(times, kind="stable")
    starts = np.cumsum([0, *map(len, held)])
    for at, stop in cuts(sizes[order], BYTES, ROWS):
        yield _gather(held, starts, order[at:stop])


def _filled(batch: Any, mtime: int, now: int) -> Any:
    from winkfs.spark import arrow

    found = batch.column(mtime)
    if not found.null_count:
        return batch
    number = now if found.type == "int64" else now // MICRO  # a timestamp of Spark
    times = np.where(arrow.bools(found.is_null()), number, arrow.numbers(found))
    return batch.set_column(mtime, batch.schema.field(mtime), arrow.column(times, found.type))


def _spooled(batches: Iterable[Any], folder: str) -> list[Any]:
    """The batches, now in a file that is mapped."""
    import pyarrow as pa

    source = iter(batches)
    first = next(source)
    with tempfile.TemporaryFile(dir=folder, prefix=".winkfs-") as file:
        with pa.ipc.new_file(file, first.schema) as writer:
            for batch in chain([first], source):
                writer.write_batch(batch)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = pa.ipc.open_file(pa.py_buffer(mapped))
    return [reader.get_batch(i) for i in range(reader.num_record_batches)]


def _times(column: Any) -> Int64:
    from winkfs.spark.arrow import numbers

    return numbers(column)


def _sizes(column: Any) -> Int64:
    from winkfs.spark.arrow import layout

    return np.diff(layout(column)[0])


def _gather(held: list[Any], starts: Int64, rows: Int64) -> Any:
    """Rows by their numbers, in that order, as one batch."""
    import pyarrow as pa

    from winkfs.spark import arrow

    which = np.searchsorted(starts, rows, "right") - 1
    by_batch = np.argsort(which, kind="stable")
    parts = []
    for number in np.unique(which).tolist():
        mine = rows[by_batch[which[by_batch] == number]] - starts[number]
        parts.append(held[number].take(arrow.column(mine)))
    back = np.empty(len(rows), np.int64)
    back[by_batch] = np.arange(len(rows))
    joined = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    return joined.take(arrow.column(back))
