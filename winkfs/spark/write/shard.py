"""A task of the sink: Arrow batches become shards of the attempt."""

from __future__ import annotations

import contextlib
import glob
import time
from collections.abc import Iterable
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from winkfs.container.bulkput import NAME_LIMIT, BulkPut
from winkfs.container.ondisk.inode import Attrs, FileType
from winkfs.errors import FileExists, WinkError
from winkfs.spark.read.spool import in_order
from winkfs.spark.write.inputs import Files, Inputs, blame, shown
from winkfs.spark.write.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from winkfs.dataset.records import ShardRecord
    from winkfs.dataset.transaction import Transaction


class NewShard:
    """One container of an attempt, being written."""

    def __init__(self, transaction: Transaction, name: str, options: SinkOptions) -> None:
        self._container = transaction.create(
            name, ao=options.ao, timemp=options.timemp, htalgo=options.htalgo
        )
        self.base = self._container.base
        self._container.follow_columns()
        self._store, self._changes, _ = self._container.parts()
        self._bulk = BulkPut(self._store, self._changes)
        self._strict = options.error_on_conflict

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._store.kv.end

    def put(self, files: Files) -> None:
        """Raises ValueError that names the row; OSError."""
        try:
            self._bulk.put_columns(
                files.names, files.data, files.ns, files.ftypes, self._attrs(files)
            )
        except (ValueError, WinkError):
            fault = blame(files.names, NAME_LIMIT)
            if fault is None:
                raise
            raise ValueError(fault) from None

    def _attrs(self, files: Files) -> list[Attrs | None] | None:
        if files.modes is None:
            return None
        kinds = files.ftypes or repeat(FileType.FILE)
        asked = cache(self._changes.attrs_for)
        return [
            asked(kind, mode, None, None) for kind, mode in zip(kinds, files.modes, strict=False)
        ]

    def close(self) -> None:
        """Durable and whole on return. Raises FileExists for two rows of one name (error)."""
        if self._strict:
            self._changes.settle()
            for pos in self._store.doomed:
                key = self._store.key_at(pos)
                if key.endswith(b"/I0"):
                    raise conflict(key[:-3], "two rows of a task have this path")
        self._container.save_columns()
        self._container.close()

    def abandon(self) -> None:
        """Let go of the files as they are; whoever owns the folder removes them."""
        with contextlib.suppress(OSError):
            self._container.abort()


def conflict(name: bytes, what: str) -> FileExists:
    """The refusal of onConflict=error."""
    return FileExists(f"{what}, and onConflict is error", shown(name))


class Attempt:
    """The shards of one task attempt, one after another.

    name    no other attempt has it
    """

    def __init__(self, transaction: Transaction, name: str, options: SinkOptions) -> None:
        self._transaction, self._name, self._options = transaction, name, options
        self._shard: NewShard | None = None
        self._bases: list[str] = []
        self.records: list[ShardRecord] = []

    def write(self, batches: Iterable[pa.RecordBatch], inputs: Inputs) -> None:
        """Write all batches; the records are of what is durable then.

        raises  ValueError, WinkError, OSError; then no file of the attempt is left
        cost    5 us of CPU for a file of 4 KiB; memory: a batch, and 20 MiB
        """
        now = time.time_ns()
        try:
            if self._options.ao and inputs.mtime is not None:
                root = self._transaction.root
                batches = in_order(batches, inputs.mtime, inputs.content, now, root)
            for batch in batches:
                for files in inputs.files(batch, now):
                    self._shard_for(sum(map(len, files.data))).put(files)
            self._seal()
        except BaseException:
            self._remove()
            raise

    def _shard_for(self, size: int) -> NewShard:
        shard = self._shard
        if shard is not None and shard.size + size > self._options.max_shard_bytes:
            self._seal()
            shard = None
        if shard is None:
            name = self._name + (f".{len(self._bases)}" if self._bases else "")
            self._bases.append(self._transaction.attempt(name))
            shard = self._shard = NewShard(self._transaction, name, self._options)
        return shard

    def _seal(self) -> None:
        if self._shard is not None:
            self._shard.close()
            self.records.append(self._transaction.seal(self._shard.base))
            self._shard = None

    def _remove(self) -> None:
        if self._shard is not None:
            self._shard.abandon()
        for base in self._bases:
            folder = Path(base).parent
            for file in folder.glob(glob.escape(Path(base).name) + ".*"):
                file.unlink(missing_ok=True)
