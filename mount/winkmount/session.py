"""What the operations of one mount share, its start, its syncs and its end."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable

from winkmount.guard import AwakeLock
from winkmount.options import Caching
from winkmount.paths import KNOWN_DIRS, Listing, Paths
from winkmount.source import Attr, Source, Steps, Stepwise, error_of, next_step

log = logging.getLogger("winkmount")


class Session(Paths):
    """One mount, from its start to its end.

    source      what is shown
    name        the kind of mount; `user.NAME.pid` of the root is the server's process id
    on_start    called once when the kernel has the mount
    caching     what the kernel may keep
    context     -> (uid, gid, pid) of the caller; set by the binding
    """

    def __init__(
        self,
        source: Source,
        name: str,
        on_start: Callable[[], None] | None = None,
        caching: Caching = Caching(),  # noqa: B008 # it is frozen
    ) -> None:
        super().__init__(source)
        self.caching = caching
        self._made: Attr | None = None  # the file that the last `create` made
        # id of a directory -> what `handed_on` says of it; spares 8 us a file
        self.groups: dict[int, int | None] = {}
        self.version = 0  # grows with each change of what is shown
        # libfuse 2: paths only where nothing is opened; else it could not read unlinked files
        self.flag_nullpath_ok = int(not caching.fixed)
        self.listings: dict[int, Listing] = {}
        self.refused: set[int] = set()  # files that may have pages of a mapping that nobody took
        # not `lock`: libfuse has an operation of that name
        self.mutex: threading.RLock | AwakeLock = threading.RLock()
        self.changed = threading.Event()  # something the next sync has to make durable
        self.started = False  # the kernel has, or had, the mount
        self.failed = ""  # why the last sync did not make everything durable
        self.context: Callable[[], tuple[int, int, int]] = lambda: (os.getuid(), os.getgid(), 0)
        self._on_start = on_start
        self._one_sync = threading.Lock()  # taken before `mutex`
        # how the thread that serves waits for a call; the binding may serve others meanwhile
        self.beside: Callable[[Callable[[], None]], None] = lambda call: call()
        self._since = time.time()
        self._facts = f"user.{name}."

    def owner(self, directory: int) -> tuple[int, int]:
        """-> (uid, gid) of what the caller makes in a directory."""
        uid, gid, _ = self.context()
        group = self.handed_on(directory)
        return uid, gid if group is None else group

    def handed_on(self, directory: int) -> int | None:
        """The group that the set-group-ID bit of a directory hands on; None: it has none."""
        if directory not in self.groups:
            if len(self.groups) >= KNOWN_DIRS:
                self.groups.clear()
            above = self.source.stat(directory)
            self.groups[directory] = above.gid if above.mode & stat.S_ISGID else None
        return self.groups[directory]

    def init(self, path: str) -> None:
        """The kernel has the mount."""
        self.started = True
        if self._on_start is not None:
            self._on_start()

    def sync(self) -> None:
        """Everything written so far is on the disk. Raises OSError. From any thread, without the
        lock: others are served while the disk is waited for."""
        self.changed.clear()
        soon = False

        def begin() -> None:
            nonlocal soon
            soon = self.hidden.is_new
            if not soon:
                self.carry_out()
            self.opened.pass_on()

        try:
            self._make_durable(begin, None)
        finally:
            if soon or self.failed:
                self.changed.set()

    def sync_file(self, id: int) -> None:
        """The same of a file of which the Source knows every byte."""
        self._make_durable(lambda: None, id)

    def _make_durable(self, begin: Callable[[], None], id: int | None) -> None:
        """`begin` is called under the lock."""
        try:
            with self._one_sync:
                with self.mutex:
                    begin()
                    self.check_failed()
                    steps = self._steps(id)
                    wait = next(steps, None)
                while wait is not None:
                    error = error_of(wait)
                    with self.mutex:
                        wait = next_step(steps, error)
        except BaseException as error:
            self._sync_failed(error)
            raise
        self.failed = ""

    def _steps(self, id: int | None) -> Steps:
        if isinstance(self.source, Stepwise):
            yield from self.source.syncing(id)
        elif id is None:
            self.source.sync()
        else:
            self.source.fsync(id)

    def check_failed(self) -> None:
        """Raise EIO where nothing can be made durable any more."""
        if self.source.failed:
            raise OSError(errno.EIO, self.source.failed)

    def _sync_failed(self, error: BaseException) -> None:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if what != self.failed:  # once, not each time that it is tried again
            self.failed = what
            log.error("what was written is not on the disk: %s", what)

    def close(self) -> None:
        """After the mount is gone: files that are still open are kept as they stand."""
        with self.mutex:
            self.carry_out()
            self.opened.pass_on()
        self.source.close()
        self.opened.raise_error()

    def carry_out(self) -> None:
        """The open file that was hidden last was unlinked, since no rename to its name came."""
        hidden, self.hidden.waiting = self.hidden.waiting, None
        if hidden is None:
            return
        path, _ = self.hidden.names[hidden]
        self.changed.set()
        self.version += 1
        try:
            self._unlink(path)
        except OSError as error:  # the kernel was told another thing
            log.error("not removed: %s: %s", path, error)

    def _unlink(self, path: str) -> None:
        self.source.unlink(*self.split(path))
        if self.hidden.names:
            self.hidden.removed(path, self.opened)
