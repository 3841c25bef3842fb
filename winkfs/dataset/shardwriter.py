"""ShardWriter: one container of a transaction, and the names that it deletes from older shards."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Self

from winkformats.disk.paths import locate
from winkformats.disk.storage import replacing
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shard import copy_bytes
from winkfs.errors import Refusal
from winkfs.names import FILES

if TYPE_CHECKING:
    from winkfs.container.container import Container
    from winkfs.dataset.transaction import Transaction

LOST: Final = (
    "the disk failed, and of what was put since the last commit some is lost: abort, and put the "
    "files again"
)


class ShardWriter:
    """One container of an attempt. A `with` block that is left by an exception abandons it.

    container  open for writing until `finish` has completed it
    gone       names that it deletes from shards of lower ranks, unless it has a file of that name
    complete   whether all is written: nothing more can be added
    """

    def __init__(self, transaction: Transaction, name: str, **settings: Any) -> None:
        """Create the container; `settings`: see `Transaction.create`.

        raises  StalePlan if the job is over; OSError
        """
        self._transaction = transaction
        self.container: Container = transaction.create(name, **settings)
        self.container.follow_files()
        self.gone: set[bytes] = set()
        self.complete = False
        self._tried = False
        self._tombs_at = 0
        self._record: ShardRecord | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            self.abandon()

    @property
    def size(self) -> int:
        """Current size of the container, bytes."""
        return self.container.store.kv.end

    @property
    def empty(self) -> bool:
        """True if there is nothing to publish."""
        # After a failed `finish` the container may not show what was put.
        return not self._tried and not self.gone and not len(self.container)

    def copy(self, source: Container, name: bytes, new: bytes) -> None:
        """Copy a file with all its metadata except the FILEID. Raises CorruptError; OSError."""
        from winkfs.container.copier import FileCopier  # not needed for a commit alone

        key = source.key(name)
        with source.lock:
            copier = FileCopier(source.settled(), self.container)
            pos, inode = source.files.inode(key)
            copier.copy(pos, inode, source.files.attrs(key), source.key(new))

    def check(self) -> None:
        """Raise Refusal if nothing can be added, after a failed `finish`."""
        if self._lost:
            raise Refusal(LOST, self.container.base)
        if self.complete:
            what = "the last sync failed: sync again, or abort, before going on"
            raise Refusal(what, self.container.base)

    def finish(self) -> ShardRecord:
        """Close it -> its record. Raises OSError; then call it again, or `abandon`."""
        if self._record is None:
            again, self._tried = self._tried, True
            if not self.complete:
                self._complete()
            if again:
                self._rewrite()
            self._record = self._transaction.seal(self.container.base, self._tombs_at)
        return self._record

    @property
    def _lost(self) -> bool:
        """True if a write or a sync has failed, so that files are missing from the container."""
        return not self.complete and (self.container.losses > 0 or not self.container.writable)

    def _complete(self) -> None:
        """Write everything to the container, make it durable, and close it."""
        if self._lost:
            raise Refusal(LOST, self.container.base)
        try:
            gone = [name for name in sorted(self.gone) if name not in self.container]
            # At the end, and again after a failed attempt, whose tombstones do not count.
            self._tombs_at = self.container.append_tombstones(gone) if gone else 0
            self.container.save_catalog()
        except OSError as error:
            if self._lost:
                raise Refusal(LOST, self.container.base, number=error.errno) from None
            raise
        self.complete = True
        self.container.close()

    def _rewrite(self) -> None:
        """Write all files once more after a failed attempt, because unsynced data may be lost.

        raises  Refusal if data was lost
        """
        from winkfs.container.container import open as open_container
        from winkfs.container.verify import verify

        base = self.container.base
        directory, name = locate(base)
        for suffix in FILES:
            if not directory.exists(name + suffix):
                continue
            with (
                directory.open(name + suffix) as old,
                replacing(directory, name + suffix, like=old, uncached=True) as new,
            ):
                copy_bytes(old, new)
        open_container(base, "a").close()
        if problems := verify(base).problems:
            what = f"what was written was lost in a failed sync ({problems[0]}): put it again"
            raise Refusal(what, base)

    def abandon(self) -> None:
        """Close the container without a sync, and remove it."""
        from winkfs.container.datafile import remove_files

        with contextlib.suppress(OSError):
            self.container.abort()
        remove_files(self.container.base)
