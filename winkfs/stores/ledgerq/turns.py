"""The turns of several processes that write one queue: call by call, one of them at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from winkformats.disk.storage import Directory, Lock
from winkfs.access import Access
from winkfs.errors import Locked

LOCK: Final = "ledgerq.lock"
TURN: Final = "ledgerq.turn"
PATIENCE: Final = 60.0  # seconds that a process waits for its turn
PAUSE: Final = 0.02  # seconds between looks at the lock of all
Call = Callable[[], object]


class Turns:
    """A context manager: within it other processes wait, and other threads. It may be entered again
    by the one who is within. Nobody waits for who may not write any more.

    lock    of the threads
    begin   called when a turn has begun, `end` before it ends
    """

    def __init__(
        self, directory: Directory, access: Access, lock: threading.RLock, begin: Call, end: Call
    ) -> None:
        """Take the lock that all who share it have. Raises Locked; OSError."""
        self.directory, self.lock, self.begin, self.end = directory, lock, begin, end
        self._access, self._depth = access, 0
        for name in (LOCK, TURN):
            with suppress(FileExistsError):
                directory.create_new(name).close()
        until = time.monotonic() + 1.0  # who leaves may have it alone for a moment
        while (shares := directory.lock(LOCK, shared=True)) is None:
            if time.monotonic() > until:
                what = "another process has the queue open for itself: stop it"
                raise Locked(what, access.path)
            time.sleep(PAUSE)
        self._shares: Lock | None = shares
        self._turn = directory.turn(TURN)

    def __enter__(self) -> None:
        self.lock.acquire()
        try:
            if self._depth == 0 and self._access.ready:
                self._take()
            self._depth += 1
        except BaseException:
            self.lock.release()
            raise

    def _take(self) -> None:
        if not self._turn.take(PATIENCE):
            what = f"another process keeps the turn for {PATIENCE:.0f} seconds"
            raise Locked(what, self._access.path)
        try:
            self.begin()
        except BaseException:
            self._turn.release()
            raise

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        try:
            if self._depth == 0:
                try:
                    if self._access.ready:
                        with self._access.final():  # others go on behind what is there
                            self.end()
                finally:
                    self._turn.release()
        finally:
            self.lock.release()

    @contextmanager
    def leave(self) -> Iterator[bool]:
        """Share it no more -> whether nobody else does, who is kept out meanwhile."""
        if self._shares is not None:
            self._shares.release()
            self._shares = None
        alone = self.directory.lock(LOCK)
        try:
            yield alone is not None
        finally:
            if alone is not None:
                alone.release()

    def forget(self) -> None:
        """In a forked child, which does not write."""
        self._turn.forget()

    def close(self) -> None:
        self._turn.close()
        if self._shares is not None:
            self._shares.release()
