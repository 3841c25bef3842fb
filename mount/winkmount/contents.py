"""Operations on the bytes of files, from `open` or `create` to `release`."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from typing import Final

from winkmount.guard import change, operation, refuse, waiting
from winkmount.paths import FileInfo
from winkmount.session import Session
from winkmount.source import Attr

log = logging.getLogger("winkmount")

_FALLOC_KEEP_SIZE: Final = 1
_FALLOC_PUNCH_HOLE: Final = 2
_FALLOC_ZERO_RANGE: Final = 16


class Contents(Session):
    """Open files. The handle of one is its id."""

    @operation
    def open(self, path: str, fi: FileInfo) -> int:
        if self.caching.fixed:
            raise refuse(errno.ENOSYS)  # the kernel does not ask again: no open, no release
        write = _writes(fi)
        truncate = bool(fi.flags & os.O_TRUNC)
        attr = self.attr(path)
        if write or truncate:
            if not self.source.writable or self.source.failed:
                raise refuse(errno.EROFS)
            if truncate:
                self.changed.set()
                self.version += 1
                self.settled(path)
        self._opened(attr, fi, write=write, truncate=truncate)
        return 0

    @change
    def create(self, path: str, mode: int, fi: FileInfo) -> int:
        parent, name = self.split(path)
        truncate = False
        try:
            attr = self.source.create(parent, name, stat.S_IMODE(mode), *self.owner(parent))
        except FileExistsError:
            if fi.flags & os.O_EXCL:
                raise
            attr = self.attr(path)
            truncate = bool(fi.flags & os.O_TRUNC)
        else:
            self._made = attr
        self._opened(attr, fi, write=_writes(fi), truncate=truncate)
        return 0

    def _opened(self, attr: Attr, fi: FileInfo, *, write: bool, truncate: bool) -> None:
        self.source.open(attr.id, write=write, truncate=truncate)
        self.opened.add(attr.id).mappers += self._maps(fi)
        fi.fh = attr.id
        if self.caching.past_cache(attr, fi.flags):
            fi.direct_io = 1
        else:
            fi.keep_cache = int(attr.id not in self.refused)
            self.refused.discard(attr.id)

    @operation
    def read(self, path: str | None, size: int, offset: int, fi: FileInfo) -> bytes:
        if self.caching.fixed:  # nobody has opened it
            return self.source.read(self.attr(path).id, offset, size)
        return self.file(fi).read(offset, size)

    @change
    def write(self, path: str | None, data: bytes, offset: int, fi: FileInfo) -> int:
        try:
            self.file(fi).write(offset, data)
        except OSError:
            self.refused.add(fi.fh)
            raise
        return len(data)

    @change
    def truncate(self, path: str | None, length: int, fi: FileInfo | None = None) -> int:
        self.source.truncate(self.settled(path, fi), length)
        return 0

    @change
    def fallocate(self, path: str | None, mode: int, offset: int, size: int, fi: FileInfo) -> int:
        """Room for a range, or zeros in its place. A punched hole gives no room back to the disk:
        a container only grows."""
        id, end = self._passed_on(fi), offset + size
        held = self.source.stat(id).size
        if mode & ~(_FALLOC_KEEP_SIZE | _FALLOC_PUNCH_HOLE | _FALLOC_ZERO_RANGE):
            raise refuse(errno.EOPNOTSUPP)
        if mode & (_FALLOC_PUNCH_HOLE | _FALLOC_ZERO_RANGE):
            if offset < held:
                self.source.punch(id, offset, min(end, held) - offset)
        else:
            self.source.allocate(id, max(end - held, 0))
        if end > held and not mode & _FALLOC_KEEP_SIZE:
            self.source.truncate(id, end)
        self.source.write(id, [], time.time_ns())  # it has changed, whatever became of it
        return 0

    @operation
    def lseek(self, path: str | None, offset: int, whence: int, fi: FileInfo) -> int:
        """Data and holes. Where a file may be mapped for writing all is data: the kernel may hold
        pages that were written through a mapping and says nothing of them."""
        hole = whence == os.SEEK_HOLE
        id = self.attr(path).id if self.caching.fixed else self._passed_on(fi)
        if self.caching.fixed or not self.file(fi).mappers:
            return self.source.seek(id, offset, hole=hole)
        size = self.source.stat(id).size
        if not 0 <= offset < size:
            raise refuse(errno.ENXIO)
        return size if hole else offset

    @operation
    def flush(self, path: str | None, fi: FileInfo) -> int:
        if self.caching.fixed:
            raise refuse(errno.ENOSYS)
        self.source.flush(self._passed_on(fi))
        return 0

    @waiting
    def fsync(self, path: str | None, datasync: int, fi: FileInfo) -> int:
        if self.source.writable:
            id = self._to_sync(fi)
            self.beside(lambda: self.sync_file(id))
        return 0

    @operation
    def _to_sync(self, fi: FileInfo) -> int:
        return self._passed_on(fi)

    def _passed_on(self, fi: FileInfo) -> int:
        """-> the id of a file of which the Source knows every byte. Raises what went wrong."""
        file = self.file(fi)
        file.pass_on()
        file.raise_error()
        return file.id

    def _maps(self, fi: FileInfo) -> bool:
        """Whether a file that is open so may be mapped for writing."""
        return self.caching.pages and fi.flags & os.O_ACCMODE == os.O_RDWR

    @operation
    def release(self, path: str | None, fi: FileInfo) -> int:
        """The kernel waits for no answer: what goes wrong here is only logged."""
        file = self.file(fi)
        file.pass_on()
        file.mappers -= self._maps(fi)
        if self.opened.remove(file) and self.hidden.ids:
            self.hidden.released(file.id)
        try:
            self.source.release(file.id)
        except OSError as error:
            log.error("closing file %d: %s", file.id, error)
        return 0


def _writes(fi: FileInfo) -> bool:
    return fi.flags & os.O_ACCMODE != os.O_RDONLY
