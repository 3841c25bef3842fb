"""Open files: what the kernel asks of the contents of files."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from typing import Final

from winkmount.kernel import protocol as p
from winkmount.kernel.giving import Giving
from winkmount.kernel.names import SETS_IDS, Names
from winkmount.kernel.nodes import NodeTable
from winkmount.kernel.protocol import Calls
from winkmount.openfiles import OpenFile
from winkmount.served import Served
from winkmount.source import Attr, Nodes, refuse

FALLOC_KEEP_SIZE: Final = 1
FALLOC_PUNCH_HOLE: Final = 2
FALLOC_ZERO_RANGE: Final = 16

log = logging.getLogger("winkmount")


class FileRequests:
    """Requests for the contents of files. The handle of an open file is its id; in a mount that
    never changes no file is opened.

    calls   the answers: by opcode, of a number and the body of the request
    """

    def __init__(
        self, served: Served, nodes: Nodes | NodeTable, names: Names, giving: Giving
    ) -> None:
        self._served, self._source, self._opened = served, served.changing, served.opened
        self._nodes, self._names, self._giving = nodes, names, giving
        self._refused = set[int]()  # files that may have pages of a mapping that were not taken
        self._flags = p.NOFLUSH * served.source.gather
        self.calls: Calls = {p.FSYNC: self._fsync}
        if served.caching.fixed:  # nothing is opened: the kernel does not ask again
            self.calls |= {p.READ: self._read_unopened, p.LSEEK: self._seek_unopened}
        else:
            self.calls |= {
                p.OPEN: self._open,
                p.CREATE: self._create,
                p.READ: self._read,
                p.WRITE: self._write,
                p.RELEASE: self._release,
                p.FLUSH: self._flush,
                p.FALLOCATE: self._fallocate,
                p.LSEEK: self._lseek,
            }

    # opening and closing

    def _open(self, node: int, body: memoryview) -> bytes:
        flags, how = p.OPEN_IN.unpack_from(body)
        attr = self._nodes.attr(node)
        if flags & os.O_TRUNC:
            self._served.begin_change()
            self._opened.settle(attr.id)
        elif flags & os.O_ACCMODE and (not self._source.writable or self._source.failed):
            raise refuse(errno.EROFS)
        out = self._opens(attr, flags, truncate=flags & os.O_TRUNC != 0)
        if how & p.KILL_AT_OPEN:
            self._names.kill(node)
        return out

    def _create(self, node: int, body: memoryview) -> bytes:
        flags, mode, how = p.CREATE_IN.unpack_from(body)
        name, above = bytes(body[p.CREATE_IN.size : -1]), self._nodes.id(node)
        owner = self._names.owner(above)
        try:
            attr = self._source.create(above, name, stat.S_IMODE(mode), *owner)
            out = self._opens(attr, flags, truncate=False)
            self._opened[attr.id].fresh = self._source.fresh(attr.id)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            attr = self._source.lookup(above, name)
            out = self._opens(attr, flags, truncate=flags & os.O_TRUNC != 0)
            attr = self._opened.shown(self._source.stat(attr.id))
        assert isinstance(self._nodes, NodeTable)  # only a tree that changes creates files
        number = self._nodes.give(node, name, attr)
        if how & p.KILL_AT_OPEN and attr.mode & SETS_IDS:
            self._names.kill(number)
            attr = self._names.attr(number)
        self._giving.new.add(number)
        return self._names.entry(number, attr) + out

    def _opens(self, attr: Attr, flags: int, *, truncate: bool) -> bytes:
        """Open a file -> the answer."""
        id, caching = attr.id, self._served.caching
        write = flags & os.O_ACCMODE != os.O_RDONLY
        self._source.open(id, write=write, truncate=truncate)
        self._opened.add(id).mappers += self._maps(flags)
        if caching.past_cache(attr, flags):
            return p.OPEN_OUT.pack(id, p.DIRECT_IO | self._flags)
        kept = p.KEEP_CACHE * (id not in self._refused)
        self._refused.discard(id)
        return p.OPEN_OUT.pack(id, kept | self._flags)

    def _maps(self, flags: int) -> bool:
        """Return whether a file opened with these flags may be mapped for writing."""
        return self._served.caching.pages and flags & os.O_ACCMODE == os.O_RDWR

    def _release(self, node: int, body: memoryview) -> bytes:
        """Close a file for one user. The kernel ignores the answer: errors are only logged."""
        fh, flags = p.OPEN_OUT.unpack_from(body)
        file = self._opened[fh]
        file.pass_on()
        file.mappers -= self._maps(flags)
        self._opened.remove(file)
        try:
            self._source.release(fh)
        except OSError as error:
            log.error("closing file %d: %s", fh, error)
        self._giving.closed(node)
        return b""

    # contents

    def _read(self, node: int, body: memoryview) -> bytes:
        fh, offset, size = p.READ_IN.unpack_from(body)
        return self._opened[fh].read(offset, size)

    def _read_unopened(self, node: int, body: memoryview) -> bytes:
        return self._nodes.read(node, *p.READ_IN.unpack_from(body)[1:])

    def _write(self, node: int, body: memoryview) -> bytes:
        fh, offset, size, flags = p.WRITE_IN.unpack_from(body)
        data = bytes(body[p.WRITE_IN.size : p.WRITE_IN.size + size])
        file, kills = self._opened[fh], flags & p.KILL_AT_WRITE
        if kills or not self._appended(file, offset, data):
            try:
                file.write(offset, data)
            except OSError:
                self._refused.add(fh)
                raise
            if kills:
                self._names.kill(node)
        return p.WORDS.pack(size, 0)

    def _appended(self, file: OpenFile, offset: int, data: bytes) -> bool:
        """Append to a new file in memory -> False: nothing was written, use `OpenFile.write`."""
        if file.fresh is None:
            return False
        if not self._source.append(file.fresh, offset, data, time.time_ns()):
            file.fresh = None
        return file.fresh is not None

    def _flush(self, node: int, body: memoryview) -> bytes:
        self._passed_on(*p.HANDLE.unpack_from(body))
        return b""

    def _passed_on(self, fh: int) -> OpenFile:
        """Pass on what waits in a file -> the file. Raises its error."""
        file = self._opened[fh]
        file.pass_on()
        file.raise_error()
        return file

    def _fsync(self, node: int, body: memoryview) -> bytes:
        """Make a file durable, without the lock."""
        if self._source.writable:
            with self._served.mutex:
                id = self._passed_on(*p.HANDLE.unpack_from(body)).id
            self._served.sync(id)
        return b""

    def _fallocate(self, node: int, body: memoryview) -> bytes:
        """Check for room for a range, or put zeros in its place. A punched hole gives no room back
        to the disk: a container only grows."""
        fh, offset, size, mode = p.FALLOCATE_IN.unpack_from(body)
        id, end = self._passed_on(fh).id, offset + size
        before = self._source.stat(id).size
        if mode & ~(FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
            raise refuse(errno.EOPNOTSUPP)
        if mode & (FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
            if offset < before:
                self._source.punch(id, offset, min(end, before) - offset)
        else:
            self._source.allocate(id, max(end - before, 0))
        if end > before and not mode & FALLOC_KEEP_SIZE:
            self._source.truncate(id, end)
        self._source.write(id, [], time.time_ns())  # it has changed, whatever became of it
        return b""

    def _lseek(self, node: int, body: memoryview) -> bytes:
        """Data and holes. Where a file may be mapped for writing all is data: the kernel may hold
        pages that were written through a mapping, and does not report them."""
        fh, offset, whence = p.LSEEK_IN.unpack_from(body)
        if not self._passed_on(fh).mappers:
            return self._sought(fh, offset, whence)
        size = self._source.stat(fh).size
        if not 0 <= offset < size:
            raise refuse(errno.ENXIO)
        return p.LONG.pack(size if whence == os.SEEK_HOLE else offset)

    def _seek_unopened(self, node: int, body: memoryview) -> bytes:
        _, offset, whence = p.LSEEK_IN.unpack_from(body)
        return self._sought(self._nodes.id(node), offset, whence)

    def _sought(self, id: int, offset: int, whence: int) -> bytes:
        return p.LONG.pack(self._source.seek(id, offset, hole=whence == os.SEEK_HOLE))
