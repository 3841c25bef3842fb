"""StoreHandle: what every store has while it is open: its mode and locks, how it is synced, closed,
and kept until then."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import ClassVar, Final, Literal

from winkformats.closing import Closing
from winkfs.access import Access, keep_open, leave, tell_of_forks
from winkfs.container.ondisk.lock import WriterLock

MODES: Final = ("r", "a")
SYNCS: Final = ("none", "interval", "always")
Sync = Literal["none", "interval", "always"]
Calls = list[Callable[[], object]]


def one_of(what: str, given: object, known: Sequence[str]) -> None:
    """Raises ValueError for what is none of them."""
    if given not in known:
        *others, last = map(repr, known)
        raise ValueError(f"{what} must be {', '.join(others)} or {last}, not {given!r}")


class StoreHandle(Closing):
    """A store that is open: to read ("r"), or to write, too ("a"). Threads may share it.

    A writer keeps what it was given: `close` makes it durable, and is called where a `with` block
    ends, also by an exception, and at the normal end of the process. Until it is closed it stays
    open, also where nothing refers to it any more. In a forked child a writer is closed.

    _what, _read_only  for messages: what it is, and that it cannot be written to
    _access            whether it is open, and may be written to
    _lock              of the threads
    _section           what a call holds: this lock, or more
    _held              the lock of the one writer
    _closing           closes what is open, the last first
    _beside            stores that are closed before
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
        """Open it by a call that closes it if it fails.

        sync  is called each `interval` seconds from then on
        """
        tell_of_forks(self)
        try:
            begin()
        except BaseException:
            self._let_go()
            raise
        if self.writable:
            keep_open(self, self.path, self._lock)
            if sync is not None:
                self._access.repeat(sync, interval, "winkfs-sync")

    def _keep_lock(self, lock: WriterLock) -> None:
        """Have the lock of the one writer, until it is closed."""
        self._held = lock
        self._closing.callback(lock.release)

    # --- durable ---

    def _sync_changes(
        self, changes: Callable[[], int], unsynced: Callable[[ExitStack], Calls]
    ) -> bool:
        """Make all changes durable that there are now -> False: another thread has done so.

        changes   how many there are
        unsynced  writes all -> what makes it durable, for which other calls need not wait; the
                  stack closes what that needs
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
        """Make all durable and close it. Idempotent. Raises OSError; it is closed then, too."""
        if self._access.closed:
            return
        try:
            self._access.end()
            for other in self._beside:
                other.close()
            if self._access.ready:
                self._finish()
        finally:
            self._let_go()

    @abstractmethod
    def _finish(self) -> None:
        """Make all durable, and write what only a clean end leaves. Raises OSError."""

    def abort(self) -> None:
        """Close it as it is: what is not durable may be lost. Idempotent."""
        self._access.end()
        for other in self._beside:
            other.abort()
        self._let_go()

    def _let_go(self) -> None:
        leave(self)
        self._access.close()
        self._closing.close()

    @property
    def closed(self) -> bool:
        return self._access.closed

    def after_fork(self) -> None:
        """In a forked child another thread may have held the lock; a writer is the parent's."""
        self._new_locks()
        if self.writable:
            self._access.close(forked=True)
        if self._held is not None:
            self._held.forget()

    def __repr__(self) -> str:
        return self._access.picture(self)
