"""Durability: how what was written becomes durable while others are served."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from winkmount.source import Source, Steps, Stepwise, error_of, next_step

log = logging.getLogger("winkmount")


class Durability:
    """The syncs of one mount, one at a time. From any thread, without the lock.

    mutex    the lock of the mount; it is not held while the disk is waited for
    changed  set: there is something that the next sync has to make durable
    failed   why the last sync did not make everything durable, "": it did
    """

    def __init__(self, source: Source, mutex: AbstractContextManager[bool]) -> None:
        self._source, self._mutex = source, mutex
        self.changed = threading.Event()
        self.failed = ""
        self._one_sync = threading.Lock()  # taken before the mutex

    def sync(self, begin: Callable[[], None], id: int | None) -> None:
        """Make a file durable, None: everything. `begin` is called under the lock. Raises OSError,
        and what the Source raises."""
        try:
            with self._one_sync:
                with self._mutex:
                    begin()
                    self.check_failed()
                    steps = self._steps(id)
                    wait = next(steps, None)
                while wait is not None:
                    error = error_of(wait)
                    with self._mutex:
                        wait = next_step(steps, error)
        except BaseException as error:
            self._note_failure(error)
            raise
        self.failed = ""

    def _steps(self, id: int | None) -> Steps:
        if isinstance(self._source, Stepwise):
            yield from self._source.syncing(id)
        elif id is None:
            self._source.sync()
        else:
            self._source.fsync(id)

    def check_failed(self) -> None:
        """Raise EIO where nothing can be made durable any more."""
        if self._source.failed:
            raise OSError(errno.EIO, self._source.failed)

    def _note_failure(self, error: BaseException) -> None:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if what != self.failed:  # once, not each time that it is tried again
            self.failed = what
            log.error("what was written is not on the disk: %s", what)
