"""The streaming sink: df.writeStream.format("winkfs").start(DIR), each batch exactly once.

The manifest that publishes a batch says which batch of which query it is. Spark asks for a batch
again where it did not learn that it was published; what is written for it then is swept.

The job of a batch is stream-QUERY-BATCH-RUN: all its tasks know that, and another run of the same
query, whose dead tasks may still write, has another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from pyspark_winkfs import one_line
from winkfs.dataset.manifest import Log, create
from winkfs.dataset.transaction import Transaction, join, sweep_all
from winkfs.spark.reading.options import local_path
from winkfs.spark.writing.inputs import Inputs, SinkOptions
from winkfs.spark.writing.sink import Written, inputs_of, publish, write_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY: Final = "sql.streaming.queryId"  # properties that Spark gives its tasks
BATCH: Final = "streaming.sql.batchId"
RUN: Final = "spark.jobGroup.id"  # Spark has the id of the run there


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
        return BatchWritten(written.records, written.seconds, query, transaction)

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
