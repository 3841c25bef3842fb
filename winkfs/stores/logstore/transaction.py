"""Transactions of a LogStore: changes that become visible and durable together or not at all; and
their shared state: free recids, owners, files to be deleted when no snapshot needs them."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, cast

import numpy as np

from winkformats.arrays import Int64
from winkformats.logstore.entry import (
    BLOB_HEAD,
    HEAD,
    IS_BLOB,
    IS_NULL,
    PART,
    RECIDS,
    RECORD,
    Blob,
    Entries,
    deletion,
    record,
)
from winkfs.access import Access
from winkfs.errors import Closed, FormatError, NoSuchFile, Refusal
from winkfs.stores.logstore.compact import compact, remove
from winkfs.stores.logstore.log import Batch, Full, Log
from winkfs.stores.logstore.table import View
from winkfs.units import as_content, as_int

MAX_FREE_RECIDS: Final = 1 << 20  # free recids that are collected at the opening
SNAPSHOT_PATIENCE: Final = 5.0  # seconds to wait for snapshots if no file number is left
DELETED: Final = object()
Body = bytes | bytearray | memoryview | None


class Conflict(Refusal):
    """A different transaction, which has not ended, changes the record."""

    number = errno.EBUSY


class Recids:
    """Free recids. That of a deleted record is reused when every transaction has ended that was
    open at the time of the deletion."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._next = 1
        self._freed: list[tuple[int, list[int]]] = []  # epoch, recids
        self._epoch = 0
        self._open: dict[int, int] = {}  # transaction -> epoch of its beginning

    def load(self, log: Log) -> None:
        """Collect the recids without a record. Cost: a pass over the table."""
        table = log.table
        self._next = table.top
        found = np.empty(0, np.int64)
        for start in range(1, table.top, MAX_FREE_RECIDS):
            part = table.arrays.positions[start : min(start + MAX_FREE_RECIDS, table.top)]
            found = np.append(found, np.flatnonzero(part == 0) + start)
            if len(found) >= MAX_FREE_RECIDS:
                break
        self._free = found[:MAX_FREE_RECIDS][::-1].tolist()

    def begin(self, transaction: object) -> int:
        with self._lock:
            self._open[id(transaction)] = self._epoch
            return self._epoch

    def end(self, transaction: object, unused: list[int]) -> None:
        """End a transaction. unused: its recids that no record got."""
        with self._lock:
            self._open.pop(id(transaction), None)
            self._free += unused

    def free(self, recids: list[int]) -> None:
        """Add recids whose records have been deleted."""
        with self._lock:
            self._epoch += 1
            self._freed.append((self._epoch, recids))

    def _refill(self) -> None:
        known = min(self._open.values(), default=self._epoch)
        while self._freed and self._freed[0][0] <= known:
            self._free += self._freed.pop(0)[1]

    def take(self) -> int:
        with self._lock:
            if not self._free and self._freed:
                self._refill()
            if self._free:
                return self._free.pop()
            return self._fresh(1)

    def _fresh(self, count: int) -> int:
        first, self._next = self._next, self._next + count
        if self._next > RECIDS:
            self._next = first
            raise Refusal(f"no recids left: all are less than {RECIDS}")
        return first

    def take_many(self, count: int) -> list[int]:
        with self._lock:
            self._refill()
            old = self._free[len(self._free) - min(count, len(self._free)) :]
            first = self._fresh(count - len(old))
            del self._free[len(self._free) - len(old) :]
            return [*old, *range(first, first + count - len(old))]


class PendingDelete(NamedTuple):
    """Files to be deleted once these views are closed and `synced` bytes of the log are durable."""

    views: Sequence[weakref.ref[View]]
    synced: int
    remove: Callable[[], None]
    files: tuple[int, ...] = ()


class Commits:
    """State that all transactions of a store share.

    owners      recid -> token of the transaction that changes it
    compacting  held by the one compaction
    """

    def __init__(self, log: Log, access: Access) -> None:
        """Begin to write if the store is writable; raises as `Log.start_writing`."""
        self.log, self.access, self.recids = log, access, Recids()
        self.owners: dict[int, object] = {}
        self._pending: list[PendingDelete] = []
        self._pending_lock, self.compacting = threading.Lock(), threading.Lock()
        if access.writable:
            log.start_writing()
            self.recids.load(log)

    def check(self) -> None:
        """Raise Closed; ReadOnly; Refusal if a write has failed."""
        if not self.access.ready:
            self.access.check()
        self.log.check()

    def commit(self, batch: Batch, blobs: bool, gone: list[int]) -> None:
        log = self.log
        if blobs:
            log.sure(log.files.blob.sync)
        for _ in range(log.layout.generations):
            with log.write_lock:
                try:
                    old = log.append(batch)
                except Full:
                    oldest = log.oldest
                else:
                    if (old.lengths & IS_BLOB).any():
                        self._delete_blobs_later(old)
                    break
            self._make_room(oldest)
        else:
            raise Full("no file numbers left for records that are live", self.log.files.path)
        if gone:
            self.recids.free(gone)

    def _make_room(self, oldest: int) -> None:
        """Free the oldest generation if it is still this one. Raises Full."""
        deadline = time.monotonic() + SNAPSHOT_PATIENCE
        while True:
            with self.compacting:
                if self.log.oldest == oldest:
                    with contextlib.suppress(Full):
                        self._compact(None, False, 1.0, True)
                    self.sweep()
                if self.log.oldest != oldest:
                    return
                waits = bool(self._pending)
            if not waits or time.monotonic() > deadline:
                raise Full("no file numbers left; close old snapshots", self.log.files.path)
            time.sleep(0.01)  # for the snapshots of other threads

    def _delete_blobs_later(self, old: Entries) -> None:
        """Schedule the deletion of the files of replaced blobs."""
        log, which = self.log, np.flatnonzero(old.lengths & IS_BLOB)
        recids, positions = old.recids[which].tolist(), old.positions[which].tolist()
        for recid, position in zip(recids, positions, strict=True):
            with contextlib.suppress(OSError, FormatError):  # the next opening finds them
                number = log.blob_at(recid, position).number
                self._delete_later(partial(log.files.blob.unlink, f"{number:016x}"))

    def _delete_later(self, remove: Callable[[], None], files: tuple[int, ...] = ()) -> None:
        refs = self.log.table.views.valuerefs()
        views = [ref for ref in refs if (view := ref()) is not None and view.needs_files]
        with self._pending_lock:
            self._pending.append(PendingDelete(views, self.log.written, remove, files))

    def sweep(self) -> None:
        """Delete the pending files that no view needs any more."""
        if not self._pending:
            return
        known = self.log.table.views
        with self._pending_lock:
            unneeded: list[PendingDelete] = []
            kept: list[PendingDelete] = []
            for one in self._pending:
                views = [view for ref in one.views if (view := ref()) is not None]
                needed = any(known.get(id(view)) is view for view in views)
                wait = needed or one.synced > self.log.synced
                (kept if wait else unneeded).append(one)
            self._pending = kept
        for one in unneeded:
            one.remove()

    def finish_commit(self) -> None:
        """Do what is due after a commit."""
        self.log.save_planned()
        if self._pending and self.compacting.acquire(blocking=False):
            try:
                self.sweep()
            except OSError as error:  # the commit has been done
                self.log.notes.append(f"files that are not needed: {error}")
            finally:
                self.compacting.release()

    def compact(
        self,
        progress: Callable[[int], None] | None,
        dry_run: bool,
        least: float,
        oldest: bool,
    ) -> dict[str, Any]:
        """Compact: see `LogStore.compact`."""
        self.check()
        with self.compacting:
            self.sweep()
            try:
                found = self._compact(progress, dry_run, least, oldest)
            except Full:
                if oldest:
                    raise
                found = self._compact(progress, dry_run, least, True)
            self.sweep()
        self.log.save_planned()
        return found

    def _compact(
        self, progress: Callable[[int], None] | None, dry_run: bool, least: float, oldest: bool
    ) -> dict[str, Any]:
        taken = {number for one in self._pending for number in one.files}
        return compact(self.log, progress, dry_run, least, oldest, taken, self._removed)

    def _removed(self, group: tuple[int, ...]) -> None:
        """Schedule the deletion of compacted data files."""
        self._delete_later(lambda: remove(self.log, group), group)
        self.sweep()


def as_recids(recids: Sequence[int] | Int64) -> Int64:
    """Return int64[n]. Raises TypeError unless all are ints: numpy would convert other values."""
    if isinstance(recids, bytes | bytearray | memoryview):  # sequences of ints, but not of recids
        raise TypeError(f"recids are ints, not {type(recids).__name__}")
    found = np.asarray(recids)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise TypeError("recids are ints")
    return found.astype(np.int64, copy=False)


class Newest(Protocol):
    """Records that a transaction reads unless it has changed them."""

    def get(self, recid: int) -> bytes | None: ...
    def __contains__(self, recid: object) -> bool: ...


class Transaction:
    """Changes that become visible and durable together or not at all. For one thread.

    A changed record belongs to the transaction until its end: another transaction that changes it
    raises Conflict at once. The end of a `with` block commits, with sync; an exception rolls back.
    Memory: the bodies up to the cut-off for blobs, until the commit.
    """

    def __init__(self, newest: Newest, commits: Commits) -> None:
        self._newest, self._commits, self._log = newest, commits, commits.log
        self._writes: dict[int, Any] = {}  # bytes, None, Blob or DELETED
        self._new: list[int] = []  # recids of this transaction
        self._owned: list[int] = []
        self._token = object()  # of its records; a reference to itself would keep it
        self._blobs: list[Blob] = []
        self.epoch = commits.recids.begin(self)
        self._state = ""

    def _check(self) -> None:
        if self._state:
            raise Closed(f"the transaction is {self._state}", self._log.files.path)
        self._commits.check()

    # --- to read ---

    def get(self, recid: int) -> bytes | None:
        """Return a body as of this transaction, else of the newest commit. See `LogStore.get`."""
        if type(recid) is not int or recid not in self._writes:
            return self._newest.get(recid)
        found = self._writes[recid]
        if found is DELETED:
            raise NoSuchFile(f"no record {recid}", self._log.files.path)
        if isinstance(found, Blob):
            return self._log.files.read_blob(found)
        return cast("bytes | None", found)

    # --- to write ---

    def _take(self, body: Body) -> Any:
        if body is None:
            return None
        data = body if type(body) is bytes else as_content(body, "a record")
        if len(data) <= self._log.layout.cutoff:
            return data
        blob = self._log.files.write_blob(self._log.new_blob(), data)
        self._blobs.append(blob)
        return blob

    def put(self, body: Body) -> int:
        """Add a record; return its recid, which may be that of a deleted record."""
        self._check()
        taken = self._take(body)
        recid = self._commits.recids.take()
        self._new.append(recid)
        self._writes[recid] = taken
        return recid

    def put_many(self, bodies: Iterable[Body]) -> list[int]:
        """Add many records; return their recids, in the order of the bodies."""
        self._check()
        values = list(bodies)
        cutoff = self._log.layout.cutoff
        if not all(type(value) is bytes and len(value) <= cutoff for value in values):
            values = [self._take(value) for value in values]
        recids = self._commits.recids.take_many(len(values))
        self._new += recids
        self._writes.update(zip(recids, values, strict=True))
        return recids

    def preallocate(self, count: int = 1) -> list[int]:
        """Add records that are null; return their recids."""
        if as_int(count, "count", 0) >= RECIDS:
            raise Refusal(f"no recids for {count} records", self._log.files.path)
        return self.put_many(repeat(None, count))

    def restore(self, recid: int, body: Body) -> None:
        """Add a record with this recid to a store that has no record yet."""
        self._check()
        self._writes[recid] = self._take(body)

    def update(self, recid: int, body: Body) -> None:
        """Replace the body of a record. Raises NoSuchFile; Conflict."""
        self._check()
        self._own(recid)
        self._writes[recid] = self._take(body)

    def update_many(self, recids: Sequence[int] | Int64, bodies: Iterable[Body]) -> None:
        """Replace the bodies of many records; if one raises, nothing is changed."""
        self._check()
        wanted = as_recids(recids).tolist()
        for recid in wanted:
            self._own(recid)
        self._writes.update(dict(zip(wanted, map(self._take, bodies), strict=True)))

    def delete(self, recid: int) -> None:
        """Delete a record. Raises NoSuchFile; Conflict."""
        self._check()
        self._own(recid)
        self._writes[recid] = DELETED

    def compare_and_swap(self, recid: int, expected: Body, body: Body) -> bool:
        """Replace the body of a record if it is the expected one; return whether it was."""
        self._check()
        self._own(recid)
        if self.get(recid) != (None if expected is None else as_content(expected, "a record")):
            return False
        self._writes[recid] = self._take(body)
        return True

    def _own(self, recid: int) -> None:
        if type(recid) is not int:
            recid = as_int(recid, "a recid")
        if recid in self._writes:
            if self._writes[recid] is DELETED:
                raise NoSuchFile(f"no record {recid}", self._log.files.path)
            return
        owners = self._commits.owners
        if owners.setdefault(recid, self._token) is not self._token:
            raise Conflict(f"another transaction changes record {recid}", self._log.files.path)
        if recid not in self._newest:
            del owners[recid]
            raise NoSuchFile(f"no record {recid}", self._log.files.path)
        self._owned.append(recid)

    # --- its end ---

    @property
    def ended(self) -> bool:
        return self._state != ""

    def commit(self, *, sync: bool = True) -> None:
        """Make the changes visible together, and with `sync` durable.

        raises  OSError, Full: nothing is changed, and the transaction goes on; OSError of a sync:
                the handle writes nothing any more, and unacknowledged commits may be lost
        """
        self._check()
        if self._writes:
            self._drop_blobs({id(value) for value in self._writes.values()})
            try:
                gone = [recid for recid, value in self._writes.items() if value is DELETED]
                self._commits.commit(self._batch(), bool(self._blobs), gone)
            except OSError:
                raise
            except BaseException:  # it may be in the log: its recids stay used
                self._end("interrupted", [])
                raise
        upto = self._log.written
        self._blobs = []
        self._end("committed", [])
        if sync:
            self._log.sync(upto)
        self._commits.finish_commit()

    def _drop_blobs(self, kept: Collection[int]) -> None:
        """Delete the blob files of this transaction, except those with these ids."""
        drop = [blob for blob in self._blobs if id(blob) not in kept]
        self._blobs = [blob for blob in self._blobs if id(blob) in kept]
        for blob in drop:
            self._log.files.blob.unlink(f"{blob.number:016x}")

    def _batch(self) -> Batch:
        """Return the entries of the transaction. Memory: a copy of the bodies."""
        parts: list[bytes] = []
        lengths: list[int] = []
        add, crc32, part = parts.append, zlib.crc32, PART.pack
        head, kind, width = HEAD.pack, RECORD, HEAD.size
        for recid, body in self._writes.items():
            if type(body) is bytes:
                size = len(body)
                checksum = crc32(body, crc32(part(kind, size, recid)))
                add(head(kind, size, recid, checksum))
                add(body)
                lengths.append(width + size)
            elif body is None:
                add(record(recid, None))
                lengths.append(width | IS_NULL)
            elif body is DELETED:
                add(deletion(recid))
                lengths.append(0)
            else:
                add(body.encode(recid))
                lengths.append(BLOB_HEAD.size | IS_BLOB)
        count = len(lengths)
        recids = np.fromiter(self._writes, np.int64, count)
        return Batch(recids, np.array(lengths, np.int64), b"".join(parts))

    def rollback(self) -> None:
        """Drop the changes. Idempotent; after a commit it does nothing."""
        if not self._state:
            self._drop_blobs(())
            self._end("rolled back", self._new)

    def _end(self, state: str, unused: list[int]) -> None:
        self._state = state
        owners = self._commits.owners
        for recid in self._owned:
            owners.pop(recid, None)
        self._commits.recids.end(self, unused)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._state:
                self.commit()
        finally:
            self.rollback()

    def __del__(self) -> None:
        if getattr(self, "_state", "x") == "" and not self._commits.access.closed:
            self.rollback()
