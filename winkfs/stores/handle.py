"""StoreHandle: the part that all stores share: mode, locks, sync, close, and the end of the
process."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import ClassVar, Final, Literal

from winkformats.closing import Closing
from winkfs.access import Access, keep_open, leave, watch_forks
from winkfs.container.ondisk.lock import WriterLock

MODES: Final = ("r", "a")
SYNCS: Final = ("none", "interval", "always")
Sync = Literal["none", "interval", "always"]
Calls = list[Callable[[], object]]


def one_of(what: str, given: object, known: Sequence[str]) -> None:
    """Raise ValueError if `given` is not one of `known`."""
    if given not in known:
        *others, last = map(repr, known)
        raise ValueError(f"{what} must be {', '.join(others)} or {last}, not {given!r}")


class StoreHandle(Closing):
    """An open store: to read ("r"), or to read and write ("a"). Threads may share it.

    No change of a writer is lost: `close` makes all durable, and runs at the end of a `with` block,
    also after an exception, and at the normal end of the process. A writer stays open until then,
    even if no reference to it is left. In a forked child a writer is closed.

    _what, _read_only  for messages: the name of the store, and why it cannot be written
    _access            whether it is open and may be written
    _lock              lock of the threads
    _section           lock that a call holds: `_lock`, or a wider one
    _held              lock of the one writer
    _closing           closes what is open, the last first
    _beside            stores that are closed before this one
    """

    drops_on_exception: Final = False
    _what: ClassVar[str] = "the store"
    _read_only: ClassVar[str] = "the store was opened for reading"

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str,
        sync: str = "none",
        *,
        syncs: Sequence[str] = SYNCS,
    ) -> None:
        """Raises ValueError."""
        one_of("mode", mode, MODES)
        one_of("sync", sync, syncs)
        self.path, self.writable = os.fspath(path), mode == "a"
        self._access = Access(self.path, self._what, self._read_only, writable=self.writable)
        self._always, self._synced = sync == "always", 0  # changes that are durable
        self._closing = ExitStack()
        self._held: WriterLock | None = None
        self._beside: list[StoreHandle] = []
        self._new_locks()

    def _new_locks(self) -> None:
        self._lock, self._sync_lock = threading.RLock(), threading.Lock()
        self._section: AbstractContextManager[object] = self._lock

    def _open_by(
        self,
        begin: Callable[[], object],
        sync: Callable[[], object] | None = None,
        interval: float = 0.0,
    ) -> None:
        """Open the store by calling `begin`; close it again if that raises.

        sync  called each `interval` seconds from then on
        """
        watch_forks(self)
        try:
            begin()
        except BaseException:
            self._release()
            raise
        if self.writable:
            keep_open(self, self.path, self._lock)
            if sync is not None:
                self._access.repeat(sync, interval, "winkfs-sync")

    def _keep_lock(self, lock: WriterLock) -> None:
        """Hold the lock of the one writer until the store is closed."""
        self._held = lock
        self._closing.callback(lock.release)

    # --- durable ---

    def _sync_changes(
        self, changes: Callable[[], int], unsynced: Callable[[ExitStack], Calls]
    ) -> bool:
        """Make all changes so far durable; return False if another thread has done so.

        changes   returns the number of changes
        unsynced  writes all and returns the calls that make it durable, during which other calls go
                  on; it registers on the stack what is to be closed afterwards
        """
        with self._lock:
            self._access.check()
            wanted = changes()
        with self._sync_lock:
            if self._synced >= wanted:
                return False
            with ExitStack() as stack:
                with self._section:
                    self._access.check()
                    calls, done = unsynced(stack), changes()
                with self._access.final():
                    for call in calls:
                        call()
            self._synced = max(self._synced, done)
        return True

    # --- the end ---

    def close(self) -> None:
        """Make all durable and close the store. Idempotent. Raises OSError, after closing."""
        if self._access.closed:
            return
        try:
            self._access.end()
            for other in self._beside:
                other.close()
            if self._access.ready:
                self._finish()
        finally:
            self._release()

    @abstractmethod
    def _finish(self) -> None:
        """Make all changes durable and write what only a clean end leaves. Raises OSError."""

    def abort(self) -> None:
        """Close without a sync: changes that are not durable may be lost. Idempotent."""
        self._access.end()
        for other in self._beside:
            other.abort()
        self._release()

    def _release(self) -> None:
        leave(self)
        self._access.close()
        self._closing.close()

    @property
    def closed(self) -> bool:
        return self._access.closed

    def after_fork(self) -> None:
        """Renew the locks in a forked child, and close a writer, which belongs to the parent."""
        self._new_locks()
        if self.writable:
            self._access.close(forked=True)
        if self._held is not None:
            self._held.forget()

    def __repr__(self) -> str:
        return self._access.picture(self)
