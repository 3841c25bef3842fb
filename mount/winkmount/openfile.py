"""Open files, and the small writes gathered in each.

There is one OpenFile per file, however many descriptors and processes have it open, so all of them
see the same bytes. It holds at most one run of bytes that the Source has not been told yet.
"""

from __future__ import annotations

import errno
import logging
from typing import Final

from winkmount.source import Source

log = logging.getLogger("winkmount")

GATHER: Final = 1 << 20  # bytes held back per file before they are passed on


class OpenFile:
    """One open file: its users, and its bytes in waiting.

    An error while bytes are passed on behind the writer's back (a full disk) drops them and is
    raised once, at the next write, flush or fsync of the file, as Linux does for its page cache.
    """

    __slots__ = ("_error", "_source", "_start", "_waiting", "id", "users")

    def __init__(self, source: Source, id: int) -> None:
        self.id = id
        self.users = 0
        self._source = source
        self._start = 0  # offset of the first byte in waiting
        self._waiting = bytearray()
        self._error: OSError | None = None

    @property
    def waiting(self) -> int:
        """Bytes in waiting."""
        return len(self._waiting)

    def write(self, offset: int, data: bytes) -> None:
        """Take `data`; it is in the Source at the latest after `pass_on`."""
        self.raise_error()
        end = self._start + len(self._waiting)
        if self._waiting and not self._start <= offset <= end:
            self.pass_on()
            self.raise_error()
        if not self._waiting:
            if len(data) >= GATHER or not self._source.gather:
                self._source.write(self.id, offset, data)
                return
            self._start = offset
        at = offset - self._start
        self._waiting[at : at + len(data)] = data
        if len(self._waiting) >= GATHER:
            self.pass_on()
            self.raise_error()

    def read(self, offset: int, size: int) -> bytes:
        """Bytes as the last write left them."""
        if offset < self._start + len(self._waiting) and self._start < offset + size:
            self.pass_on()
        data = self._source.read(self.id, offset, size)
        if len(data) < size and self._waiting:  # the run in waiting lies behind the end
            self.pass_on()
            data = self._source.read(self.id, offset, size)
        return data

    def pass_on(self) -> None:
        """Give the Source what waits. Never raises: see the class."""
        if not self._waiting:
            return
        data, self._waiting = bytes(self._waiting), bytearray()
        try:
            self._source.write(self.id, self._start, data)
        except Exception as error:
            log.error("%d bytes of file %d are lost: %s", len(data), self.id, error)
            self._error = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))

    def raise_error(self) -> None:
        """Report a failed `pass_on`, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error
