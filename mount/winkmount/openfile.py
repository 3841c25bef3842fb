"""Open files, and the small writes gathered in each.

There is one OpenFile per file, however many descriptors and processes have it open, so all of them
see the same bytes. It holds at most one run of bytes that the Source has not been told yet.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterator
from typing import Final

from winkmount.source import Attr, Source

log = logging.getLogger("winkmount")

GATHER: Final = 1 << 20  # bytes held back per file before they are passed on
ALL_WAITING: Final = 64 << 20  # bytes held back over all open files


class OpenFile:
    """One open file: its users, and its bytes in waiting.

    An error while bytes are passed on behind the writer's back (a broken disk; that the disk has
    room is made sure before) drops them and is raised once, at the next write, flush or fsync of
    the file, as Linux does for its page cache.
    """

    __slots__ = ("_error", "_files", "_source", "_start", "_waiting", "_written_ns", "id", "users")

    def __init__(self, files: OpenFiles, id: int) -> None:
        self.id = id
        self.users = 0
        self._files = files
        self._source = files.source
        self._start = 0  # offset of the first byte in waiting
        self._waiting = bytearray()
        self._written_ns = 0
        self._error: OSError | None = None

    @property
    def waiting(self) -> int:
        """Bytes in waiting."""
        return len(self._waiting)

    def write(self, offset: int, data: bytes) -> None:
        """Take `data`; it is in the Source at the latest after `pass_on`. Raises OSError."""
        if self._error is not None:
            self.raise_error()
        waiting = len(self._waiting)
        if waiting and not self._start <= offset <= self._start + waiting:
            self.pass_on()
            self.raise_error()
            waiting = 0
        now = time.time_ns()
        if not waiting:
            if len(data) >= GATHER or not self._source.gather:
                self._source.write(self.id, offset, data, now)
                return
            self._start = offset
        at = offset - self._start
        grown = at + len(data) - waiting
        if grown > 0:
            self._source.allocate(self.id, self._files.waiting + grown)
            self._files.waiting += grown
        self._waiting[at : at + len(data)] = data
        self._written_ns = now
        if len(self._waiting) >= GATHER:
            self.pass_on()
            self.raise_error()
        elif self._files.waiting > ALL_WAITING:
            self._files.pass_on()

    def read(self, offset: int, size: int) -> bytes:
        """Bytes as the last write left them."""
        if self._waiting and offset < self._start + len(self._waiting):
            if self._start < offset + size:
                self.pass_on()
            data = self._source.read(self.id, offset, size)
            if len(data) == size or not self._waiting:
                return data
            self.pass_on()  # the run in waiting lies behind the end, and zeros before it
        return self._source.read(self.id, offset, size)

    def shown(self, attr: Attr) -> Attr:
        """The attributes of the file as of its last write."""
        if not self._waiting:
            return attr
        size = max(attr.size, self._start + len(self._waiting))
        return attr._replace(size=size, mtime_ns=self._written_ns)

    def pass_on(self) -> None:
        """Give the Source what waits. Never raises: see the class."""
        if not self._waiting:
            return
        data, self._waiting = bytes(self._waiting), bytearray()
        self._files.waiting -= len(data)
        try:
            self._source.write(self.id, self._start, data, self._written_ns)
        except Exception as error:
            log.error("%d bytes of file %d are lost: %s", len(data), self.id, error)
            self._error = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))

    def raise_error(self) -> None:
        """Report a failed `pass_on`, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error


class OpenFiles:
    """All open files by their ids. `waiting`: bytes that all of them hold back."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.waiting = 0
        self._files: dict[int, OpenFile] = {}

    def __getitem__(self, id: int) -> OpenFile:
        return self._files[id]

    def __contains__(self, id: int) -> bool:
        return id in self._files

    def __iter__(self) -> Iterator[OpenFile]:
        return iter(self._files.values())

    def get(self, id: int) -> OpenFile | None:
        return self._files.get(id)

    def add(self, id: int) -> OpenFile:
        """One user more. The Source has the file open."""
        file = self._files.get(id)
        if file is None:
            file = self._files[id] = OpenFile(self, id)
        file.users += 1
        return file

    def remove(self, file: OpenFile) -> bool:
        """One user less -> whether it was the last."""
        file.users -= 1
        if file.users:
            return False
        del self._files[file.id]
        return True

    def pass_on(self) -> None:
        """Give the Source what waits in any of them."""
        if self.waiting:
            for file in self._files.values():
                file.pass_on()
