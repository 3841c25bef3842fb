"""Open files, and the small writes that are held back for them."""

from __future__ import annotations

import errno
import logging
import time
from typing import Final

from winkmount.source import Attr, Changing, refuse

GATHER: Final = 1 << 20  # bytes held back per file before they are passed on
RUNS: Final = 256  # held back per file
ALL_WAITING: Final = 64 << 20  # bytes held back over all open files

log = logging.getLogger("winkmount")


class OpenFile:
    """One open file, however many descriptors and processes have it open: its users, and the small
    writes that are held back. So all of them see the same bytes.

    What is held back are runs: a write that begins in the last run, or at its end, goes into it,
    any other begins a new one. They are passed on in this order.

    An error while bytes are passed on behind the writer's back (a broken disk; that they have room
    was promised) drops them. It is raised once, at the next write, flush or fsync of the file, as
    Linux does for its page cache.
    """

    __slots__ = (
        "_end",
        "_error",
        "_files",
        "_runs",
        "_source",
        "_written_ns",
        "fresh",
        "id",
        "mappers",
        "users",
    )

    def __init__(self, files: OpenFiles, id: int) -> None:
        self.id = id
        self.users = 0
        self.mappers = 0  # users that may write through a mapping
        self.fresh: object | None = None  # see `Changing`; as long as nothing waits here
        self._files = files
        self._source = files.source
        self._runs: list[tuple[int, bytearray]] = []  # (offset, data)
        self._end = 0  # where in the file the last byte in waiting lies, plus one
        self._written_ns = 0
        self._error: OSError | None = None

    @property
    def waiting(self) -> int:
        """Return how many bytes wait."""
        return sum(len(run) for _, run in self._runs)

    def write(self, offset: int, data: bytes) -> None:
        """Take `data`; it is in the Source at the latest after `pass_on`. Raises OSError."""
        if self._error is not None:
            self.raise_error()
        self.fresh, now = None, time.time_ns()
        if not self._source.gather or (len(data) >= GATHER and not self._runs):
            self._source.write(self.id, [(offset, data)], now)
            return
        start, run = self._runs[-1] if self._runs else (-1, bytearray())
        at = offset - start
        if start < 0 or not 0 <= at <= len(run):
            start, run, at = offset, bytearray(), 0
        grown = max(at + len(data) - len(run), 0)
        if grown and not self._source.promise(self.id, grown):
            self.pass_on()
            self.raise_error()
            self._source.write(self.id, [(offset, data)], now)
            return
        if not run:
            self._runs.append((start, run))
        run[at : at + len(data)] = data
        self._files.waiting += grown
        self._written_ns, self._end = now, max(self._end, offset + len(data))
        if len(run) >= GATHER or len(self._runs) > RUNS:
            self.pass_on()
            self.raise_error()
        elif self._files.waiting > ALL_WAITING:
            self._files.pass_on()

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes as the last write left them."""
        if self._runs:
            stop = offset + size
            if any(start < stop and offset < start + len(run) for start, run in self._runs):
                self.pass_on()
            data = self._source.read(self.id, offset, size)
            if len(data) == size or offset + len(data) >= self._end:
                return data
            self.pass_on()  # bytes in waiting lie behind the end, and zeros before them
        return self._source.read(self.id, offset, size)

    def shown(self, attr: Attr) -> Attr:
        """Return the attributes of the file as of its last write."""
        if not self._runs:
            return attr
        written = self._written_ns
        ctime_ns = attr.ctime_ns if attr.ctime_ns > written else 0
        return attr._replace(size=max(attr.size, self._end), mtime_ns=written, ctime_ns=ctime_ns)

    def pass_on(self) -> None:
        """Give the Source what waits. Never raises: see the class."""
        if not self._runs:
            return
        runs = [(start, bytes(run)) for start, run in self._runs]
        size = self.waiting
        self._runs, self._end = [], 0
        self._files.waiting -= size
        try:
            self._source.write(self.id, runs, self._written_ns)
        except Exception as error:
            log.error("%d bytes of file %d are lost: %s", size, self.id, error)
            self._error = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))

    def raise_error(self) -> None:
        """Report a failed `pass_on`, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error


class OpenFiles(dict[int, OpenFile]):
    """All open files by their ids, which are the handles that the kernel has of them.

    waiting  bytes that all of them hold back
    """

    def __init__(self, source: Changing) -> None:
        self.source = source
        self.waiting = 0

    def __missing__(self, id: int) -> OpenFile:
        raise refuse(errno.EBADF)

    def shown(self, attr: Attr) -> Attr:
        """Return the attributes of a file as of its last write."""
        file = self.get(attr.id)
        return attr if file is None else file.shown(attr)

    def settle(self, id: int) -> None:
        """Give the Source what waits in a file, if it is open."""
        file = self.get(id)
        if file is not None:
            file.pass_on()

    def add(self, id: int) -> OpenFile:
        """Add a user of a file, which the Source has open."""
        file = self.get(id)
        if file is None:
            file = self[id] = OpenFile(self, id)
        file.users += 1
        return file

    def remove(self, file: OpenFile) -> bool:
        """Remove a user of a file -> whether it was the last."""
        file.users -= 1
        if file.users:
            return False
        del self[file.id]
        return True

    def raise_error(self) -> None:
        """Report a failed `pass_on` of any of them."""
        for file in self.values():
            file.raise_error()

    def pass_on(self) -> None:
        """Give the Source what waits in any of them."""
        if self.waiting:
            for file in self.values():
                file.pass_on()
