"""Task of the sink: writes Arrow batches as shards of an attempt.

Rows of append-only shards are sorted by mtime, with a scratch file if they exceed the memory.
"""

from __future__ import annotations

import mmap
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from winkformats.arrays import Int64
from winkfs.arrow import arrays
from winkfs.arrow.pieces import batch_ranges
from winkfs.container.bulk import NAME_LIMIT, BulkPut
from winkfs.container.datafile import remove_files
from winkfs.container.ondisk.inode import Attrs
from winkfs.container.ondisk.typed import Schema
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.entry import FileType
from winkfs.errors import Refusal
from winkfs.names import INODE, name_of
from winkfs.spark.writing.inputs import FileBatch, Inputs, SinkOptions, blame, conflict
from winkfs.units import MICRO, Clamped

if TYPE_CHECKING:
    from winkfs.dataset.records import ShardRecord
    from winkfs.dataset.transaction import Transaction

MEMORY: Final = 128 << 20  # bytes of rows that are kept in memory
BATCH_ROWS: Final = 2048  # rows of a sorted batch
BATCH_BYTES: Final = 8 << 20  # approximate bytes of its content


def in_order(
    batches: Iterable[pa.RecordBatch], mtime: int, content: int, now: int, folder: str
) -> Iterator[pa.RecordBatch]:
    """Sort rows by ascending mtime, stable; null becomes now.

    mtime, content  indices of the columns
    now     nanoseconds
    folder  place of a scratch file without a name, if one is needed
    raises  OSError, also if there is no space for the scratch file
    cost    more than MEMORY bytes are written and read once more; 50 bytes of memory for each row
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
    times = np.concatenate([arrays.numbers(batch.column(mtime)) for batch in held])
    if (np.diff(times) >= 0).all():
        yield from held
        return
    sizes = np.concatenate([np.diff(arrays.layout(batch.column(content))[0]) for batch in held])
    order = np.argsort(times, kind="stable")
    starts = np.cumsum([0, *map(len, held)])
    for at, stop in batch_ranges(sizes[order], BATCH_BYTES, BATCH_ROWS):
        yield _gather(held, starts, order[at:stop])


def _filled(batch: Any, mtime: int, now: int) -> Any:
    found = batch.column(mtime)
    if not found.null_count:
        return batch
    number = now if found.type == "int64" else now // MICRO  # a timestamp of Spark
    times = np.where(arrays.bools(found.is_null()), number, arrays.numbers(found))
    return batch.set_column(mtime, batch.schema.field(mtime), arrays.column(times, found.type))


def _spooled(batches: Iterable[Any], folder: str) -> list[Any]:
    """Write batches to a scratch file, and return them as a mapping of it."""
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


def _gather(held: list[Any], starts: Int64, rows: Int64) -> Any:
    """Return the rows with these numbers, in this order, as one batch."""
    which = np.searchsorted(starts, rows, "right") - 1
    by_batch = np.argsort(which, kind="stable")
    parts = []
    for number in np.unique(which).tolist():
        mine = rows[by_batch[which[by_batch] == number]] - starts[number]
        parts.append(held[number].take(arrays.column(mine)))
    back = np.empty(len(rows), np.int64)
    back[by_batch] = np.arange(len(rows))
    joined = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    return joined.take(arrays.column(back))


class NewShard:
    """A shard of an attempt, written by columns."""

    def __init__(
        self, transaction: Transaction, name: str, options: SinkOptions, schema: Schema
    ) -> None:
        """Create the shard; schema: the columns of the user."""
        self._writer = ShardWriter(
            transaction, name, ao=options.ao, timemp=options.timemp, htalgo=options.htalgo,
            columns=schema, compress=options.compress,
        )  # fmt: skip
        container = self._writer.container
        self._store, self._changes = container.store, container.changes
        self._bulk = BulkPut(self._store, self._changes)
        self._strict = options.error_on_conflict

    @property
    def size(self) -> int:
        """Current size of the shard, bytes."""
        return self._store.kv.end

    def put(self, files: FileBatch) -> None:
        """Put files. Raises ValueError that names the row; OSError."""
        try:
            self._bulk.put_columns(
                files.names, files.data, files.ns, files.ftypes, self._attrs(files)
            )
        except (ValueError, Refusal):
            fault = blame(files.names, NAME_LIMIT)
            if fault is None:
                raise
            raise ValueError(fault) from None

    def _attrs(self, files: FileBatch) -> list[Attrs | bytes | None] | None:
        words = self._changes.metadata.attribute_entries(files.texts) if files.texts else None
        if files.modes is None and (words is None or files.ftypes is None):
            return words  # type: ignore[return-value]
        kinds = files.ftypes or repeat(FileType.FILE)
        modes = files.modes or repeat(None)
        if words is None:
            asked = cache(self._changes.metadata.attrs_for)
            pairs = zip(kinds, modes, files.names, strict=False)
            return [asked(kind, mode, None, None) for kind, mode, _ in pairs]
        base, made = self._store.base, self._changes.metadata.attrs_for
        return [
            made(kind, mode, None, None, Attrs.decode(word, file=base, offset=0).xattrs)
            for kind, mode, word in zip(kinds, modes, words, strict=False)
        ]

    def finish(self) -> ShardRecord:
        """Close it -> its record. Raises FileExists for two rows of one name (error); OSError."""
        if self._strict:
            self._changes.settle()
            for pos in self._store.pending_deletes:
                key = self._store.key_at(pos)
                if key.endswith(INODE):
                    raise conflict(name_of(key), "two rows of a task have this path")
        return self._writer.finish()

    def abandon(self) -> None:
        """Close the shard without a sync, and remove it."""
        self._writer.abandon()


class Attempt:
    """The shards of one task attempt, written one after another; name: unique."""

    def __init__(self, transaction: Transaction, name: str, options: SinkOptions) -> None:
        self._transaction, self._name, self._options = transaction, name, options
        self._shard: NewShard | None = None
        self._bases: list[str] = []
        self.records: list[ShardRecord] = []
        self.clamped = Clamped()

    def write(self, batches: Iterable[pa.RecordBatch], inputs: Inputs) -> None:
        """Write all batches; `records` then has the durable shards.

        raises  ValueError, Refusal, OSError; then no file of the attempt is left
        memory  a batch, and 20 MiB
        """
        now = time.time_ns()
        try:
            if self._options.ao and inputs.mtime is not None:
                scratch = self._transaction.scratch
                batches = in_order(batches, inputs.mtime, inputs.content, now, scratch)
            for batch in batches:
                for files in inputs.files(batch, now, self.clamped):
                    self._shard_for(sum(map(len, files.data)), inputs.schema).put(files)
            self._seal()
        except BaseException:
            self._remove()
            raise

    def _shard_for(self, size: int, schema: Schema) -> NewShard:
        shard = self._shard
        if shard is not None and shard.size + size > self._options.max_shard_bytes:
            self._seal()
            shard = None
        if shard is None:
            name = self._name + (f".{len(self._bases)}" if self._bases else "")
            self._bases.append(self._transaction.attempt(name))
            shard = self._shard = NewShard(self._transaction, name, self._options, schema)
        return shard

    def _seal(self) -> None:
        if self._shard is not None:
            self.records.append(self._shard.finish())
            self._shard = None

    def _remove(self) -> None:
        if self._shard is not None:
            self._shard.abandon()
        for base in self._bases:
            remove_files(base)
