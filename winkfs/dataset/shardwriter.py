"""A shard being written: a container of a transaction, and the names that it deletes elsewhere."""

from __future__ import annotations

import contextlib
from typing import Final

from winkformats.disk.paths import locate
from winkformats.disk.replace import replacing
from winkfs.container.basepath import FILES
from winkfs.container.container import Container
from winkfs.container.container import open as open_container
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shard import copy_bytes, remove_shard
from winkfs.dataset.transaction import Transaction
from winkfs.errors import WinkError

LOST: Final = (
    "the disk failed, and of what was put since the last commit some is lost: abort, and put the "
    "files again"
)


class ShardWriter:
    """One container of an attempt.

    container  open for writing, until `finish` was called and everything is in it
    gone       names that it deletes from shards of lower ranks, unless it has a file of that name
    """

    def __init__(self, transaction: Transaction, name: str, *, ao: bool = False) -> None:
        """Raises StalePlan where the job is over; OSError."""
        self._transaction = transaction
        self.container: Container = transaction.create(name, ao=ao)
        self.container.follow_columns()
        self.gone: set[bytes] = set()
        self.complete = False  # nothing can be added any more
        self._tried = False
        self._tombs_at = 0
        self._record: ShardRecord | None = None

    @property
    def size(self) -> int:
        """Bytes of the container so far."""
        return self.container.parts()[0].kv.end

    @property
    def empty(self) -> bool:
        """Whether there is nothing to be published."""
        # After a try that failed the container may show nothing of what was put.
        return not self._tried and not self.gone and not len(self.container)

    def check(self) -> None:
        """Raise WinkError where nothing can be added, after a `finish` that failed."""
        if self._lost:
            raise WinkError(LOST, self.container.base)
        if self.complete:
            what = "the last sync failed: sync again, or abort, before going on"
            raise WinkError(what, self.container.base)

    def finish(self) -> ShardRecord:
        """Close it -> its record. Raises OSError; then it can be called again, or `abandon`."""
        if self._record is None:
            again, self._tried = self._tried, True
            if not self.complete:
                self._complete()
            if again:
                self._make_anew()
            self._record = self._transaction.seal(self.container.base, self._tombs_at)
        return self._record

    @property
    def _lost(self) -> bool:
        """Whether a write or a sync has failed, and the container goes on without what it lost."""
        return not self.complete and (self.container.losses > 0 or not self.container.writable)

    def _complete(self) -> None:
        """Put everything into the container, durable, and close it."""
        if self._lost:
            raise WinkError(LOST, self.container.base)
        try:
            gone = [name for name in sorted(self.gone) if name not in self.container]
            # Behind all else, and anew after a try that failed: those from then do not count.
            self._tombs_at = self.container.entomb(gone) if gone else 0
            self.container.save_columns()
        except OSError as error:
            if self._lost:
                raise WinkError(LOST, self.container.base, number=error.errno) from None
            raise
        self.complete = True
        self.container.close()

    def _make_anew(self) -> None:
        """After a try that failed: write all files once more, for what was not synced may be lost.

        raises  WinkError where it was lost
        """
        from winkfs.container.verify.container import verify  # seldom needed

        base = self.container.base
        directory, name = locate(base)
        for suffix in FILES:
            if not directory.exists(name + suffix):
                continue
            with directory.open(name + suffix) as old:
                with replacing(directory, name + suffix, like=old, uncached=True) as new:
                    copy_bytes(old, new)
                new.close()
        open_container(base, "a").close()
        if problems := verify(base).problems:
            what = f"what was written was lost in a failed sync ({problems[0]}): put it again"
            raise WinkError(what, base)

    def abandon(self) -> None:
        """Close it as it is, and remove it."""
        with contextlib.suppress(OSError):
            self.container.abort()
        remove_shard(self.container.base)
