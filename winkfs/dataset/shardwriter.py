"""A shard being written: a container of a transaction, and the names that it deletes elsewhere."""

from __future__ import annotations

import contextlib

from winkfs.container import Container, create
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shard import remove_shard
from winkfs.dataset.transaction import Transaction


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
            gone = [name for name in sorted(self.gone) if name not in self.container]
            # Behind all else, and anew after a try that failed: those from then do not count.
            tombs_at = self.container.entomb(gone) if gone else 0
            self.container.save_columns()
            self.container.close()
            self._record = self._transaction.seal(self.container.base, tombs_at)
        return self._record

    def abandon(self) -> None:
        """Close it as it is, and remove it."""
        with contextlib.suppress(OSError):
            self.container.close()
        remove_shard(self.container.base)
