"""The sink: df.write.format("winkfs").mode("append" | "overwrite").save(DIR), and
df.writeStream.format("winkfs").start(DIR), each batch exactly once.

A task writes its rows into new shards, and syncs them before it reports them; the driver publishes
the shards of the winning attempts with one manifest. Files of a failed, killed or late attempt are
removed with the folder of the job. With onConflict=error no file is replaced.

The manifest that publishes a batch of a stream records query and batch. Spark repeats a batch if it
did not learn that it was published; the shards written then are removed. The job of a batch is
stream-QUERY-BATCH-MARK, with a mark that the driver has drawn for this try of the batch. Another
try, while dead tasks may still write, has a different job.

With `compactEvery`, small shards are joined after a commit, by one of its own that changes no
visible file. If it fails or is killed, the batch is there, and the data set as before.
"""

from __future__ import annotations

import json
import re
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
from winkfs.dataset.jobfolder import sweep_all
from winkfs.dataset.manifest import Log, create, is_dataset
from winkfs.dataset.records import JOB, ShardRecord, State, misfit
from winkfs.dataset.shard import NOTHING, Shard
from winkfs.dataset.snapshot import snapshot
from winkfs.dataset.transaction import Transaction, begin
from winkfs.errors import DatasetConflict
from winkfs.names import name_of
from winkfs.spark.reading.options import local_path, sql_of
from winkfs.spark.writing.inputs import Inputs, SinkOptions, conflict
from winkfs.units import Clamped

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY: Final = "sql.streaming.queryId"  # properties that Spark gives its tasks
BATCH: Final = "streaming.sql.batchId"
QUERY_ID: Final = re.compile("[0-9a-f-]{36}")  # of Spark; other streams are units of `ingest`


def refuse_duplicates(transaction: Transaction, before: State, records: list[ShardRecord]) -> None:
    """Raise FileExists if two shards have a file of one name."""
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
    """Report of a task: its durable shards, none if it had no rows."""

    records: list[ShardRecord] = field(default_factory=list)
    seconds: float = 0.0
    clamped: Clamped = field(default_factory=Clamped)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> WinkfsWriter:
    """Make the writer of a batch query, after checking all arguments. Raises ValueError, FileExists
    with advice."""
    checked = SinkOptions.of(options)
    if checked.compact_every is not None:
        raise ValueError("compactEvery is an option of a stream: see `winkfs dataset compact`")
    return WinkfsWriter(checked, inputs_of(schema, checked), overwrite)


class WinkfsWriter(DataSourceArrowWriter):  # type: ignore[misc]  # the same
    """Writer of one job, made on the driver, and pickled for the tasks and the commit."""

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
        """Return whether the frame has columns that the data set would lack without a shard."""
        fresh = self._transaction.operation == "overwrite" or not is_dataset(self._options.path)
        known = {} if fresh else snapshot(self._options.path).columns
        return bool(self._inputs.schema.keys() - known.keys())

    def _empty(self) -> ShardRecord:
        """Write a shard without files, which has the columns of an empty frame."""
        from winkfs.spark.writing.shard import NewShard

        return NewShard(self._transaction, "empty", self._options, self._inputs.schema).finish()

    def abort(self, messages: Sequence[Any]) -> None:
        self._transaction.abort()


def inputs_of(schema: StructType, options: SinkOptions) -> Inputs:
    """Find the columns of a frame. Raises ValueError that names a wrong one."""
    fields = [(column.name, column.dataType.simpleString()) for column in schema.fields]
    inputs = Inputs.of(fields, options.ignore_extra)
    if inputs.schema and is_dataset(options.path):
        known = snapshot(options.path).columns
        if what := misfit(known, inputs.schema, sql_of, "cast it"):
            raise ValueError(what)
    return inputs


def write_task(
    batches: Iterator[pa.RecordBatch],
    transaction: Transaction,
    inputs: Inputs,
    options: SinkOptions,
) -> Written:
    """Write the rows of a task. Raises ValueError, Refusal, OSError, after removing its files."""
    from winkfs.spark.workers import freeze
    from winkfs.spark.writing.shard import Attempt  # late: processes of the driver do not need it

    freeze()
    began = time.monotonic()
    attempt = Attempt(transaction, attempt_name(), options)
    attempt.write(batches, inputs)
    return Written(attempt.records, time.monotonic() - began, attempt.clamped)


def attempt_name() -> str:
    """Return a unique name: PARTITION-ATTEMPT, and a random number, because a restarted stream
    counts from 0 again."""
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
    """Publish the shards of all tasks with one commit -> the generation.

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
    """Report of a task of a stream. transaction None: the batch was published before."""

    query: str = ""
    transaction: Transaction | None = None


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> WinkfsStreamWriter:
    """Make the writer of a stream, after checking all arguments. Raises ValueError, FileExists with
    advice.

    overwrite   output mode complete: each batch replaces all files
    """
    checked = SinkOptions.of(options)
    if checked.after is not None:
        raise ValueError("afterGeneration is no option of a stream: its own batches come after it")
    return WinkfsStreamWriter(checked, inputs_of(schema, checked), overwrite)


class WinkfsStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # PySpark has no types
    """Writer of one batch, made again for its commit."""

    def __init__(self, options: SinkOptions, inputs: Inputs, overwrite: bool) -> None:
        self._options, self._inputs = options, inputs
        self._operation = "overwrite" if overwrite else "append"
        log = create(options.path)
        now = log.latest()  # here, and not in each task
        self._root = log.root
        self._log: Log | None = log
        self._begun = Transaction(
            log.root, secrets.token_hex(4), self._operation, now.generation, now.compress
        )  # fmt: skip
        self._published = {
            query: batch for query, (batch, _) in now.streams.items() if QUERY_ID.fullmatch(query)
        }
        self._known = self._query()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log": None}  # of the driver alone

    @one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchWritten:
        from pyspark import TaskContext

        query, batch = self._batch_of(TaskContext.get())
        if batch is not None and self._published.get(query, -1) >= batch:
            return BatchWritten(query=query)
        number = "" if batch is None else batch
        transaction = replace(self._begun, job=f"stream-{query}-{number}-{self._begun.job}")
        transaction.join()
        written = write_task(iterator, transaction, self._inputs, self._options)
        return BatchWritten(written.records, written.seconds, written.clamped, query, transaction)

    def _batch_of(self, task: Any) -> tuple[str, int | None]:
        """Return the query of a task, and its batch, None if Spark does not name it: then `commit`
        finds out whether it was published before. Raises ValueError."""
        query = task.getLocalProperty(QUERY) or self._known
        if not query or not JOB.fullmatch(query):
            raise ValueError(
                "this Spark does not name the query of a task: give the query the option "
                "checkpointLocation, a path that all machines see"
            )
        number = task.getLocalProperty(BATCH) or ""
        return query, int(number) if number.isdecimal() else None

    @one_line
    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        ours = [message.transaction for message in messages if message and message.transaction]
        query = next((message.query for message in messages if message), "")
        if not ours:  # published before, perhaps by a driver that then died
            log = self._log or Log(self._root)
            log.confirm(log.latest().streams.get(query, (0, 0))[1])
            return
        base = min(each.base_generation for each in ours)
        first = replace(ours[0], base_generation=base, log=self._log)
        empty = not any(message.records for message in messages)
        if not (empty and self._operation == "append"):
            publish(first, messages, self._options, {query: batchId})
        sweep_all(self._root, f"stream-{query}-")  # also jobs of runs that died
        if self._options.compact_every and not empty and self._operation == "append":
            added = sum(len(message.records) for message in messages if message)
            self._compact(f"stream-{query}-compact-{secrets.token_hex(4)}", added)

    def _compact(self, job: str, added: int) -> None:
        """Join small shards if there are many. Reports an error: the batch is committed."""
        from winkfs.dataset.compaction import compact_recent

        assert self._options.compact_every is not None
        try:
            compact_recent(self._root, self._options.compact_every, job, added)
        except DatasetConflict:
            """Another process compacts, or replaces all."""
        except Exception as error:
            line = f"small shards were not compacted: {error}"
            print(f"winkfs: {self._root}: {line}", file=sys.stderr)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        for message in messages:
            if message and message.transaction:
                message.transaction.abort()
        query = self._query()
        if query:
            sweep_all(self._root, f"stream-{query}-{batchId}-")

    def _query(self) -> str | None:
        """Return the id of the query from its checkpoint; None if that cannot be read."""
        try:
            folder = local_path(self._options.checkpoint)
            text = Path(folder, "metadata").read_text(encoding="utf-8")
            found = json.loads(text)["id"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return str(found)
