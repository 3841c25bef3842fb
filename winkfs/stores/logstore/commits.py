"""Commits of a LogStore: which recids are free, and which files go when no snapshot needs them."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from winkformats.errors import FormatError
from winkformats.logstore.entry import IS_BLOB, RECIDS, Entries
from winkfs.access import Access
from winkfs.errors import Refusal
from winkfs.stores.logstore.compact import compact, remove
from winkfs.stores.logstore.log import Batch, Full, Log
from winkfs.stores.logstore.table import View

FREED: Final = 1 << 20  # recids without a record that are known from the opening on
PATIENCE: Final = 5.0  # seconds that a commit waits for snapshots, where no file number is left


class Recids:
    """Which recids are free. One of a deleted record is given away again when every transaction
    that may know it from before has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._next = 1
        self._freed: list[tuple[int, list[int]]] = []  # epoch, recids
        self._epoch = 0
        self._open: dict[int, int] = {}  # transaction -> epoch of its beginning

    def load(self, log: Log) -> None:
        """Find those without a record. Cost: 1 ns a recid."""
        table = log.table
        self._next = table.top
        found = np.empty(0, np.int64)
        for start in range(1, table.top, FREED):
            part = table.arrays.positions[start : min(start + FREED, table.top)]
            found = np.append(found, np.flatnonzero(part == 0) + start)
            if len(found) >= FREED:
                break
        self._free = found[:FREED][::-1].tolist()

    def begin(self, transaction: object) -> int:
        with self._lock:
            self._open[id(transaction)] = self._epoch
            return self._epoch

    def end(self, transaction: object, unused: list[int]) -> None:
        """unused: recids that no record got."""
        with self._lock:
            self._open.pop(id(transaction), None)
            self._free += unused

    def free(self, recids: list[int]) -> None:
        """These have been deleted."""
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


class Doomed(NamedTuple):
    """Files that nobody needs once these views are closed, and so much is synced."""

    views: list[weakref.ref[View]]
    synced: int
    remove: Callable[[], None]
    files: tuple[int, ...] = ()


class Commits:
    """What all transactions of a store share.

    owners      recid -> of which transaction it is
    compacting  the lock of the one compaction
    """

    def __init__(self, log: Log, access: Access) -> None:
        self.log, self.access, self.recids = log, access, Recids()
        self.owners: dict[int, object] = {}
        self._doomed: list[Doomed] = []
        self._dooming, self.compacting = threading.Lock(), threading.Lock()

    def start(self) -> None:
        """Begin to write. Raises as `Log.start_writing`."""
        self.log.start_writing()
        self.recids.load(self.log)

    def check(self) -> None:
        """Raises Closed; ReadOnly; Refusal where a write has failed."""
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
                        self._doom_blobs(old)
                    break
            self._make_room(oldest)
        else:
            raise Full("no file numbers left for records that are live", self.log.files.path)
        if gone:
            self.recids.free(gone)

    def _make_room(self, oldest: int) -> None:
        """Free the oldest generation, if it still is this one. Raises Full."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with self.compacting:
                if self.log.oldest == oldest:
                    with contextlib.suppress(Full):
                        self._compact(None, False, 1.0, True)
                    self.sweep()
                if self.log.oldest != oldest:
                    return
                waits = bool(self._doomed)
            if not waits or time.monotonic() > deadline:
                raise Full("no file numbers left; close old snapshots", self.log.files.path)
            time.sleep(0.01)  # for the snapshots of other threads

    def _doom_blobs(self, old: Entries) -> None:
        """Have the files of blobs that were replaced removed."""
        log, which = self.log, np.flatnonzero(old.lengths & IS_BLOB)
        recids, positions = old.recids[which].tolist(), old.positions[which].tolist()
        for recid, position in zip(recids, positions, strict=True):
            with contextlib.suppress(OSError, FormatError):  # then the next opening finds it
                number = log.blob_at(recid, position).number
                self._doom(partial(log.files.blob.unlink, f"{number:016x}"))

    def _doom(self, remove: Callable[[], None], files: tuple[int, ...] = ()) -> None:
        refs = list(self.log.table._views.values())
        views = [ref for ref in refs if (view := ref()) is not None and view.needs_files]
        with self._dooming:
            self._doomed.append(Doomed(views, self.log.written, remove, files))

    def sweep(self) -> None:
        """Remove the files that nobody needs any more."""
        if not self._doomed:
            return
        known = self.log.table._views
        with self._dooming:
            due: list[Doomed] = []
            kept: list[Doomed] = []
            for one in self._doomed:
                needed = any(ref is known.get(id(ref())) for ref in one.views)
                wait = needed or one.synced > self.log.synced
                (kept if wait else due).append(one)
            self._doomed = kept
        for one in due:
            one.remove()

    def settle(self) -> None:
        """What is due after a commit."""
        self.log.settle()
        if self._doomed and self.compacting.acquire(blocking=False):
            try:
                self.sweep()
            except OSError as error:  # the commit has been done
                self.log.notes.append(f"files that nobody needs: {error}")
            finally:
                self.compacting.release()

    def compact(
        self,
        progress: Callable[[int], None] | None,
        dry_run: bool,
        least: float,
        oldest: bool,
    ) -> dict[str, Any]:
        """See `LogStore.compact`."""
        self.check()
        with self.compacting:
            self.sweep()
            run = partial(self._compact, progress, dry_run, least)
            try:
                found = run(oldest)
            except Full:
                if oldest:
                    raise
                found = run(True)
            self.sweep()
        self.log.settle()
        return found

    def _compact(
        self, progress: Callable[[int], None] | None, dry_run: bool, least: float, oldest: bool
    ) -> dict[str, Any]:
        taken = {number for one in self._doomed for number in one.files}
        return compact(self.log, progress, dry_run, least, oldest, taken, self._removed)

    def _removed(self, group: tuple[int, ...]) -> None:
        """These data files are compacted."""
        self._doom(lambda: remove(self.log, group), group)
        self.sweep()
