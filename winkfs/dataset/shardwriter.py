"""A shard being written: a container of a transaction, and the names that it deletes elsewhere."""

from __future__ import annotations

import contextlib

from winkfs.container import Container, create
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shard import remove_shard
from winkfs.dataset.transaction import Transaction
from winkfs.inode import inode_key


class ShardWriter:
    """One container of an attempt.

    container  open for writing
    gone       names that it deletes from shards of lower ranks, unless it has a file of that name
    """

    def __init__(self, transaction: Transaction, name: str, *, ao: bool = False) -> None:
        """Raises StalePlan where the job is over; OSError."""
        self._transaction = transaction
        self.container: Container = create(transaction.attempt(name), ao=ao)
        self.container.follow_columns()
        self.gone: set[bytes] = set()
        self._tombs_at = 0
        self._record: ShardRecord | None = None

    @property
    def size(self) -> int:
        """Bytes of the container so far."""
        return self.container.parts()[0].kv.end

    @property
    def empty(self) -> bool:
        """Whether there is nothing to be published."""
        return self._record is None and not self.gone and not len(self.container)

    def finish(self) -> ShardRecord:
        """Close it -> its record. Raises OSError; then it can be called again, or `abandon`."""
        if self._record is None:
            self.container.sync()
            self._bury()
            self.container.save_columns()
            self.container.close()
            self._record = self._transaction.seal(self.container.base, self._tombs_at)
        return self._record

    def _bury(self) -> None:
        """Append the tombstones, behind all else."""
        buried = [name for name in sorted(self.gone) if name not in self.container]
        if self._tombs_at or not buried:
            return
        store = self.container.parts()[0]
        self._tombs_at = store.kv.end
        for name in buried:
            store.kv.append(inode_key(name), b"", deleted=True)

    def abandon(self) -> None:
        """Close it as it is, and remove it."""
        with contextlib.suppress(OSError):
            self.container.close()
        remove_shard(self.container.base)
