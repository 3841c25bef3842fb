"""The sink: a Dataset of Ray into a data set, a shard a task, with one commit.

A task writes its rows into a new shard, which is durable before the task reports it. The driver
publishes the shards of all tasks at the end; if one fails, nothing is published, and the folder of
the job is removed.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from winkformats.disk.paths import absolute
from winkfs.container.arrow import kind_of_arrow
from winkfs.container.ondisk.compressed import level_of
from winkfs.container.ondisk.typed import check_schema
from winkfs.dataset.manifest import new_job
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.transaction import Transaction, begin, join
from winkfs.errors import Refusal, need
from winkfs.reader import need_arrow

need("ray.data", "winkfs.ray", "ray")
from ray.data import Datasink  # noqa: E402
from ray.data.block import BlockAccessor  # noqa: E402

if TYPE_CHECKING:
    import pyarrow as pa

    from winkfs.dataset.records import ShardRecord

MODES: Final = ("append", "overwrite")
IGNORED: Final = frozenset(["size", "mode", "ftype", "ref"])  # of rows that were read from a store
OWN: Final = frozenset(["path", "name", "content", "mtime", "mtime_ns"])


class BadRows(Refusal, ValueError):
    """Rows that cannot be files."""

    number = errno.EINVAL


class WinkDatasink(Datasink[Any]):  # type: ignore[misc]  # Ray is not typed for mypy
    """Writes rows with `path`, `content`, maybe `mtime`, and columns, into a data set, which is
    created if there is none.

    mode      append; overwrite: the rows replace all files
    compress  see `winkfs.create`; None: as the data set
    raises    ValueError; OSError
    """

    def __init__(
        self, path: str | os.PathLike[str], *, mode: str = "append", compress: str | None = None
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is append or overwrite, not {mode!r}")
        if compress is not None:
            level_of(compress)
        need_arrow()
        self._root, self._mode, self._compress = absolute(os.fspath(path)), mode, compress
        self._job = new_job()
        self._transaction: Transaction | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks join the job by its name: Ray may pickle the sink before the job begins.
        return self.__dict__ | {"_transaction": None}

    def get_name(self) -> str:
        """Return the name of its tasks."""
        return "Wink"

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Begin the job, on the driver. Raises OSError; CorruptError."""
        if self._transaction is None:
            self._transaction = begin(self._root, self._mode, self._job)

    def write(self, blocks: Iterable[Any], ctx: Any) -> ShardRecord | None:
        """Write the rows of a task -> the record of its shard; None: there are no rows.

        raises  BadRows, which is a ValueError; OSError. No file of the task is left
        """
        transaction = join(self._root, self._mode, self._job)
        name = f"{ctx.task_idx:05d}-{secrets.token_hex(4)}"  # unique among attempts
        options = {} if self._compress is None else {"compress": self._compress}
        with ShardWriter(transaction, name, **options) as writer:
            for block in blocks:
                table = BlockAccessor.for_block(block).to_arrow()
                if len(table):
                    try:
                        _put(writer, table)
                    except (ValueError, TypeError) as error:
                        raise BadRows(str(error), self._root) from None
            record = writer.finish() if not writer.empty else None
            if record is None:
                writer.abandon()
        return record

    def on_write_complete(self, write_result: Any) -> None:
        """Publish the shards of all tasks. Raises DatasetConflict; OSError."""
        self.on_write_start()
        transaction = self._transaction
        assert transaction is not None
        returned = getattr(write_result, "write_returns", write_result)
        records = [record for record in returned if record is not None]
        if not records and self._mode == "append":
            self.abort()
            return
        metrics = {
            "job": "ray", "tasks": len(records), "files": sum(each.files for each in records),
        }  # fmt: skip
        transaction.commit(records, metrics=metrics)
        self._transaction = None

    def on_write_failed(self, error: Exception) -> None:
        """Remove what the tasks wrote."""
        self.abort()

    def abort(self) -> None:
        """Remove what the tasks wrote, unless it is published."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None


def _put(writer: ShardWriter, table: pa.Table) -> None:
    """Put rows, adding columns that the shard lacks. Raises ValueError."""
    import pyarrow as pa

    drop = [name for name in table.column_names if name in IGNORED]
    if "path" in table.column_names and "name_raw" in table.column_names:
        drop.append("name_raw")
    drop += [field.name for field in table.schema if field.type == pa.null()]
    table = table.drop_columns(drop)
    found: dict[str, str] = {}
    for field in table.schema:
        if field.name in OWN:
            continue
        kind = kind_of_arrow(field.type)
        if kind is None:
            what = f"column {field.name} is {field.type}, which no column of a file can be"
            raise ValueError(f"{what}: cast or drop it")
        found[field.name] = kind
    new = {name: kind for name, kind in found.items() if name not in writer.container.columns}
    if new:
        writer.container.add_columns(check_schema(new))
    writer.container.put_batch(table)
