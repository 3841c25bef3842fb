"""The sink: df.write.format("winkfs").mode("append" | "overwrite").save(DIR), and
df.writeStream.format("winkfs").start(DIR), each batch exactly once.

A task writes its rows into shards of its own, durable before it reports them; the driver publishes
the shards of the winning attempts with one manifest. What a failed, killed or late attempt wrote is
removed with the folder of the job. With onConflict=error no file is written over.

The manifest that publishes a batch of a stream says which batch of which query it is. Spark asks
for a batch again where it did not learn that it was published; what is written for it then is
removed. The job of a batch is stream-QUERY-BATCH-RUN: all its tasks know that, and another run of
the same query, whose dead tasks may still write, has another.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_winkfs import one_line
from winkfs.dataset.hidden import hidden_of, hidden_rows
from winkfs.dataset.manifest import Log, create, is_dataset
from winkfs.dataset.records import ShardRecord, State, misfit
from winkfs.dataset.shard import NOTHING, Shard
from winkfs.dataset.snapshot import snapshot
from winkfs.dataset.transaction import Transaction, begin, join, sweep_all
from winkfs.names import name_of
from winkfs.spark.reading.options import TYPED, local_path
from winkfs.spark.writing.inputs import Inputs, SinkOptions, conflict
from winkfs.units import Clamped

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY: Final = "sql.streaming.queryId"  # properties that Spark gives its tasks
BATCH: Final = "streaming.sql.batchId"
RUN: Final = "spark.jobGroup.id"  # Spark has the id of the run there


def refuse_duplicates(transaction: Transaction, before: State, records: list[ShardRecord]) -> None:
    """Raise FileExists where a file has the name of one in another shard."""
    old = () if transaction.operation == "overwrite" else before.shards
    new = transaction.located(records)
    known = hidden_of(Log(transaction.root), before) if old else {}
    known = {record.path: known.get(record.path, NOTHING) for record in old}
    found = hidden_rows(transaction.root, [*old, *new], known)
    for record in [*old, *new]:
        more = np.setdiff1d(found[record.path], known.get(record.path, NOTHING))
        if len(more):
            with Shard(f"{transaction.root}/{record.path}", record).open() as store:
                name = name_of(store.key_at(int(more[0])))
            what = "the data set has this file" if record in old else "two tasks have this path"
            raise conflict(name, what)


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]  # PySpark is not typed for mypy
    """What a task reports: its shards, durable, none where it had no rows."""

    records: list[ShardRecord] = field(default_factory=list)
    seconds: float = 0.0
    clamped: Clamped = field(default_factory=Clamped)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> WinkfsWriter:
    """Checks all before a task runs. Raises ValueError, FileExists: what is wrong, what to do."""
    asked = SinkOptions.of(options)
    return WinkfsWriter(asked, inputs_of(schema, asked), overwrite)


class WinkfsWriter(DataSourceArrowWriter):  # type: ignore[misc]  # the same
    """One job. Made on the driver, pickled to the tasks and to the commit."""

    def __init__(self, options: SinkOptions, inputs: Inputs, overwrite: bool) -> None:
        self._options, self._inputs = options, inputs
        self._transaction = begin(options.path, "overwrite" if overwrite else "append")

    @one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_task(iterator, self._transaction, self._inputs, self._options)

    @one_line
    def commit(self, messages: Sequence[Any]) -> None:
        if not any(message and message.records for message in messages) and self._new_columns():
            messages = [Written([self._empty()])]
        publish(self._transaction, messages, self._options)

    def _new_columns(self) -> bool:
        """Return whether what is published without a shard lacks columns of the frame."""
        fresh = self._transaction.operation == "overwrite" or not is_dataset(self._options.path)
        known = {} if fresh else snapshot(self._options.path).columns
        return bool(self._inputs.schema.keys() - known.keys())

    def _empty(self) -> ShardRecord:
        """Write a shard without files: the data set has the columns of an empty frame, too."""
        from winkfs.spark.writing.shard import NewShard

        return NewShard(self._transaction, "empty", self._options, self._inputs.schema).finish()

    def abort(self, messages: Sequence[Any]) -> None:
        self._transaction.abort()


def inputs_of(schema: StructType, options: SinkOptions) -> Inputs:
    """Raises ValueError that names the column that is wrong."""
    fields = [(column.name, column.dataType.simpleString()) for column in schema.fields]
    inputs = Inputs.of(fields, options.ignore_extra)
    if inputs.schema and is_dataset(options.path):
        known = snapshot(options.path).columns
        if what := misfit(known, inputs.schema, TYPED.__getitem__, "cast it"):
            raise ValueError(what)
    return inputs


def write_task(
    batches: Iterator[pa.RecordBatch],
    transaction: Transaction,
    inputs: Inputs,
    options: SinkOptions,
) -> Written:
    """What runs in a task. Raises ValueError, Refusal, OSError; then nothing of it is left."""
    from winkfs.spark.arrow import freeze
    from winkfs.spark.writing.shard import Attempt  # processes of the driver do without

    freeze()
    began = time.monotonic()
    attempt = Attempt(transaction, attempt_name(), options)
    attempt.write(batches, inputs)
    return Written(attempt.records, time.monotonic() - began, attempt.clamped)


def attempt_name() -> str:
    """PARTITION-ATTEMPT and something no other one has: a restarted stream counts from 0 again."""
    from pyspark import TaskContext

    task = TaskContext.get()
    own = secrets.token_hex(4)
    return f"{task.partitionId():05d}-{task.attemptNumber()}-{own}" if task else own


def publish(
    transaction: Transaction,
    messages: Sequence[Any],
    options: SinkOptions,
    streams: dict[str, int] | None = None,
) -> int:
    """Make the shards of all tasks visible at once -> the generation.

    raises  FileExists (onConflict=error); DatasetConflict (also afterGeneration); OSError
    """
    written = [message for message in messages if message is not None]
    records = [record for message in written for record in message.records]
    metrics = {
        "files": sum(record.files for record in records),
        "content": sum(record.content for record in records),
        "bytes": sum(record.size for record in records),
        "seconds": round(sum(message.seconds for message in written), 3),
        "tasks": len(written),
    }
    clamped = Clamped()
    for message in written:
        clamped.add(message.clamped.number, message.clamped.names)
    if clamped.number:
        metrics["clamped"] = clamped.number
        print(f"winkfs: {transaction.root}: {clamped.line()}", file=sys.stderr)

    def check(before: State) -> None:
        if options.error_on_conflict:
            refuse_duplicates(transaction, before, records)

    return transaction.commit(records, streams, metrics, since=options.after, check=check)


@dataclass
class BatchWritten(Written):
    """What a task reports, and which batch that is. None: the batch was published before."""

    query: str = ""
    transaction: Transaction | None = None


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> WinkfsStreamWriter:
    """Checks all before a batch runs. Raises ValueError, FileExists: what is wrong, what to do.

    overwrite   of output mode complete: each batch replaces what is there
    """
    asked = SinkOptions.of(options)
    if asked.after is not None:
        raise ValueError("afterGeneration is no option of a stream: its own batches come after it")
    return WinkfsStreamWriter(asked, inputs_of(schema, asked), overwrite)


class WinkfsStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # PySpark has no types
    """Made anew for each batch, and once more for its commit."""

    def __init__(self, options: SinkOptions, inputs: Inputs, overwrite: bool) -> None:
        self._options, self._inputs = options, inputs
        self._operation = "overwrite" if overwrite else "append"
        self._root = create(options.path).root

    @one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchWritten:
        from pyspark import TaskContext

        task = TaskContext.get()
        query, batch = task.getLocalProperty(QUERY), int(task.getLocalProperty(BATCH))
        if Log(self._root).latest().streams.get(query, (-1, -1))[0] >= batch:
            return BatchWritten(query=query)
        job = f"stream-{query}-{batch}-{(task.getLocalProperty(RUN) or '0')[:8]}"
        transaction = join(self._root, self._operation, job)
        written = write_task(iterator, transaction, self._inputs, self._options)
        return BatchWritten(written.records, written.seconds, written.clamped, query, transaction)

    @one_line
    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        ours = [message.transaction for message in messages if message and message.transaction]
        query = next((message.query for message in messages if message), "")
        if not ours:  # published before, perhaps by a driver that died before it knew
            log = Log(self._root)
            log.confirm(log.latest().streams.get(query, (0, 0))[1])
            return
        first = replace(ours[0], base_generation=min(each.base_generation for each in ours))
        empty = not any(message.records for message in messages)
        if not (empty and self._operation == "append"):
            publish(first, messages, self._options, {query: batchId})
        sweep_all(self._root, f"stream-{query}-")  # those of runs that died, too

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        for message in messages:
            if message and message.transaction:
                message.transaction.abort()
        query = self._query()
        if query:
            sweep_all(self._root, f"stream-{query}-{batchId}-")

    def _query(self) -> str | None:
        """The id of the query, from its checkpoint; None where that cannot be read from here."""
        try:
            folder = local_path(self._options.checkpoint)
            text = Path(folder, "metadata").read_text(encoding="utf-8")
            found = json.loads(text)["id"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return str(found)
