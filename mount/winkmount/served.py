"""A Source as a server serves it: what all parts of the server share.

Caching  what the kernel may keep
Served   the Source, its open files, the lock, and syncs
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self, cast

from winkmount.openfiles import OpenFiles
from winkmount.source import Attr, Changing, Source, refuse, run_steps

FOREVER: Final = 3600.0  # seconds; only this process changes what it shows, through the kernel
_KERNEL: Final = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])

log = logging.getLogger("winkmount")


@dataclass(frozen=True, slots=True)
class Caching:
    """The rules of one mount for what the kernel may keep of the replies.

    names    seconds that the kernel may believe a name and the attributes of a file
    missing  seconds that it may believe that a name is missing
    pages    whether it keeps contents; else every read and write comes here
    fixed    names and contents never change: `open` need not come here
    around   a file that is only written may be written past the kernel's cache, if the kernel does
             that right
    """

    names: float = FOREVER
    missing: float = FOREVER
    pages: bool = True
    fixed: bool = False
    around: bool = False

    @classmethod
    def of(cls, source: Source, *, pages: bool, follow: bool, sync: bool = False) -> Self:
        """Make the rules for a Source.

        pages   as above
        follow  another process changes what is shown
        sync    the kernel asks for an fsync after each write through its cache
        """
        if follow:
            return cls(1.0, 1.0, pages)
        around = not sync and _KERNEL >= (6, 6)  # since then it keeps the pages of others true
        return cls(pages=pages, fixed=pages and not source.writable, around=around)

    def past_cache(self, attr: Attr, flags: int) -> bool:
        """Return whether a file opened with these flags is read and written past the kernel's
        cache.

        Writes that do spare a question before each (for security.capability). The kernel then
        takes no setuid away, and does no O_SYNC.
        """
        if not self.pages:
            return True
        alone = flags & (os.O_ACCMODE | os.O_DSYNC) == os.O_WRONLY
        return self.around and alone and not attr.mode & (stat.S_ISUID | stat.S_ISGID)


class Served:
    """A Source from the start of its mount to the end.

    changing the Source; it is so only if it is writable
    name     kind of mount: `user.NAME.pid` of the top directory is the server's process id
    opened   the open files
    caller   -> (uid, gid, pid) of the process whose request is answered
    mutex    the lock under which one request is answered at a time
    changed  set: there is something that the next sync has to make durable
    failed   why the last sync did not make everything durable, "": it did
    version  grows with each change of what is shown
    on_start to be called once, when the kernel has the mount
    """

    def __init__(
        self,
        source: Source,
        name: str,
        caching: Caching = Caching(),  # it is frozen
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self.source, self.name, self.caching = source, name, caching
        self.changing = cast("Changing", source)
        self.opened = OpenFiles(self.changing)
        self.caller: Callable[[], tuple[int, int, int]] = lambda: (os.getuid(), os.getgid(), 0)
        self.mutex = threading.RLock()
        self.changed = threading.Event()
        self.failed = ""
        self.version = 0
        self.on_start, self._since = on_start, time.time()
        self._one_sync = threading.Lock()  # taken before the mutex

    def close(self) -> None:
        """Close the Source after the mount is gone. Files that are still open are kept as they
        are."""
        with self.mutex:
            self.opened.pass_on()
        self.source.close()
        self.opened.raise_error()

    def status(self) -> Mapping[str, object]:
        """Return what `info` of the mount shows."""
        waiting = {"open_files": len(self.opened), "waiting_bytes": self.opened.waiting}
        known = {**self.source.status(), "pid": os.getpid(), "since": self._since, **waiting}
        return known | ({"failed": self.failed} if self.failed else {})

    # changes

    def begin_change(self) -> None:
        """Note that something changes now: the next sync has to make it durable. Raises EROFS."""
        if not self.source.writable or self.source.failed:
            raise refuse(errno.EROFS)
        if not self.changed.is_set():
            self.changed.set()
        self.version += 1

    # syncs

    def sync(self, id: int | None = None) -> None:
        """Make a file durable, None: everything.

        From any thread, without the lock: other requests are answered while the disk is waited
        for. Raises OSError, and what the Source raises.
        """
        if id is None:
            self.changed.clear()
        try:
            with self._one_sync:
                with self.mutex:
                    if id is None:
                        self.opened.pass_on()
                    if self.source.failed:
                        raise OSError(errno.EIO, self.source.failed)
                run_steps(self.changing.syncing(id), self.mutex)
        except BaseException as error:
            what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            if what != self.failed:  # once, not each time that it is tried again
                self.failed = what
                log.error("what was written is not on the disk: %s", what)
            if id is None:
                self.changed.set()
            raise
        self.failed = ""
