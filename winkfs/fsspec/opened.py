"""The store of a filesystem while it is open, the turns of its threads, and how it ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import Any, Final

from winkfs.access import watch_forks
from winkfs.container.container import Container
from winkfs.dataset.dataset import Dataset
from winkfs.errors import ReadOnly
from winkfs.fsspec.changes import Changes
from winkfs.fsspec.contents import Contents
from winkfs.fsspec.directories import ReadDirectories
from winkfs.fsspec.listing import Listing
from winkfs.fsspec.paths import Paths
from winkfs.reader import Reader
from winkfs.registry import AsOf
from winkfs.registry import open as open_store


class Opened:
    """An open store and its parts. `changes`: None if it was opened for reading."""

    def __init__(self, path: str, mode: str, as_of: AsOf | None, where: str | None) -> None:
        self.reader = open_store(path, mode, as_of=as_of)
        try:
            if mode == "a" and not isinstance(self.reader, Container | Dataset):
                what = "only a container or a data set can be written: open it with mode='r'"
                raise ReadOnly(what, path)
            listing = Listing(self.reader, where)
        except BaseException:
            self.reader.close()
            raise
        self.changes: Changes | None = None
        if mode == "a" and isinstance(self.reader, Container | Dataset):
            self.changes = Changes(self.reader, listing)
        directories = self.changes or ReadDirectories(self.reader, listing)
        self.paths = Paths(self.reader, listing, directories.has_below)
        self.contents = Contents(self.reader, self.paths)


class Turn:
    """The lock of the threads, and how many calls that write are inside each other."""

    def __init__(self) -> None:
        self.lock, self.depth = threading.RLock(), 0
        watch_forks(self)

    def after_fork(self) -> None:
        """Renew the lock in a forked child: a thread of the parent may hold the old one."""
        self.lock, self.depth = threading.RLock(), 0


_ends: Final[list[weakref.finalize[..., Any]]] = []  # of filesystems
_hooked = 0  # the process whose end calls them


def close_at_end(end: weakref.finalize[..., Any]) -> None:
    """Close a filesystem at the end of the process, before winkfs reports that its store is still
    open: fsspec's users need not close one, and all but an open transaction has been synced."""
    global _hooked
    _ends[:] = [each for each in _ends if each.alive]
    _ends.append(end)
    if _hooked != os.getpid():
        _hooked = os.getpid()
        atexit.register(_end_all)


def _end_all() -> None:
    for end in _ends:
        end()


def drop(reader: Reader) -> None:
    """Close the store of a filesystem that is not used any more. What was not committed, of a
    transaction that did not end, is discarded."""
    with contextlib.suppress(OSError):
        if isinstance(reader, Dataset):
            reader.abort()
        reader.close()
