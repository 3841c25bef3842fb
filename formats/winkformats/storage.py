"""The seam to the disk: all bytes of a container go through here, and so does the page cache.

    FileStorage     one open file: positional reads and writes, sync, preallocate, a view
    MemoryStorage   the same over a bytearray, see `memory`

Page-cache policy
    cached      ordinary reads and writes; the kernel keeps the pages
    uncached    the pages a pass touches do not stay. Writes: RWF_DONTCACHE where kernel and
                filesystem know it (6.14+), else sync_file_range and POSIX_FADV_DONTNEED in a window
                that slides behind the write. Reads (`bulk`): ordinary reads, and DONTNEED behind
                them for the pages that were not resident before. Sparse views: the same, for all of
                the file, with each `drop_seen`.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from winkformats import pagecache
from winkformats.memory import MemoryStorage as MemoryStorage
from winkformats.pagecache import PAGE, BulkReader, Dropper

Buffer = bytes | bytearray | memoryview | mmap.mmap

RWF_DONTCACHE: Final = 0x80  # linux/fs.h; not named by Python's os
WINDOW: Final = 8 << 20  # bytes of one bulk read; the ceiling is 64 MiB
BEHIND: Final = 16 << 20  # bytes of dirty pages kept behind an uncached write without DONTCACHE
RUNS: Final = 4096  # of pages, the longest, that `drop_seen` drops: a call each
SMALL: Final = 128 << 10  # a smaller uncached write waits in the cache for the next sync


class Storage(Protocol):
    """What a format asks of the disk. Offsets and lengths are bytes from the start of the file."""

    name: str
    uncached: bool

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""

    def read_into(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` -> bytes read, fewer only at the end of the file."""

    def view(self, length: int, *, sparse: bool = False) -> memoryview | mmap.mmap:
        """The first `length` bytes, read-only, without a copy; later writes may show through.

        sparse  only the pages touched are read, and none around them
        """

    def bulk(self, start: int, stop: int, *, uncached: bool = True) -> BulkReader:
        """A reader for one pass over [start, stop) through a reused buffer.

        uncached    pages that were not in the page cache before the pass do not stay in it
        """

    def remember_resident(self) -> None:
        """What is in the page cache now stays there in `drop_seen`. Cost: 1 ms a GiB."""

    def drop_seen(self) -> None:
        """Take what was read since, also through sparse views, out of the page cache.

        cost    4 us a cold file; reading with RWF_DONTCACHE instead takes 80
        """

    def read_ahead(self, offset: int, length: int) -> None:
        """Have these bytes brought into the page cache, in the background."""

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers back to back from `offset` -> bytes written. Raises OSError."""

    def patch(self, offset: int, data: Buffer) -> None:
        """Change a few bytes of what was written long ago; always through the page cache."""

    def sync(self) -> None:
        """Return when everything written is on the disk."""

    def size(self) -> int: ...

    def preallocate(self, length: int) -> None:
        """Make the file at least `length` bytes long with blocks behind it, where the disk can.

        raises  OSError ENOSPC: no room, and nothing is changed
        """

    def truncate(self, length: int) -> None: ...

    def duplicate(self) -> Storage:
        """The same file, to be closed on its own."""

    def close(self) -> None: ...


class FileStorage:
    """One file on disk.

    path        the file
    mode        "r": reading, "w": reading and writing, "x": the same, and the file must not exist
    uncached    page-cache policy of `write`; `bulk` takes its own
    raises      OSError as `open` does
    """

    def __init__(self, path: str | os.PathLike[str], mode: str = "r", *, uncached: bool = False):
        flags = {"r": os.O_RDONLY, "w": os.O_RDWR, "x": os.O_RDWR | os.O_CREAT | os.O_EXCL}[mode]
        self._adopt(os.open(path, flags | os.O_CLOEXEC, 0o666), os.fspath(path), uncached)

    def _adopt(self, fd: int, name: str, uncached: bool) -> None:
        self.fd, self.name, self.uncached = fd, name, uncached
        self._dontcache = uncached
        self._written = 0  # start of the window of dirty pages behind an uncached write
        self._small: tuple[int, int] | None = None  # range of small writes, to drop at sync
        self._sparse: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._not_resident: list[tuple[int, int]] = []  # pages

    def __enter__(self) -> FileStorage:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self.fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]  # a read may be cut at 2 GiB or by a signal
        got = len(data)
        while got < length and (data := os.pread(self.fd, length - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_into(self, into: memoryview, offset: int) -> int:
        got = 0
        while got < len(into) and (n := os.preadv(self.fd, [into[got:]], offset + got)):
            got += n
        return got

    def view(self, length: int, *, sparse: bool = False) -> memoryview | mmap.mmap:
        if length == 0:
            return memoryview(b"")
        mapped = mmap.mmap(self.fd, length, access=mmap.ACCESS_READ)
        if sparse:
            mapped.madvise(mmap.MADV_RANDOM)
            self._sparse.add(mapped)
        return mapped

    def remember_resident(self) -> None:
        size = self.size()
        absent = pagecache.absent(self.fd, size)
        runs = [] if absent is None else pagecache.runs(absent)
        if len(runs) > RUNS:
            runs = sorted(runs, key=lambda run: run[0] - run[1])[:RUNS]
        self._not_resident = [*runs, (-(-size // PAGE), 1 << 50)]

    def drop_seen(self) -> None:
        end = -(-self.size() // PAGE)
        runs = [(i, min(j, end)) for i, j in self._not_resident if i < end]
        if runs:
            for mapped in self._sparse:
                mapped.madvise(mmap.MADV_DONTNEED)  # pages that are mapped would stay
        for i, j in runs:
            pagecache.forget(self.fd, i, j)

    def read_ahead(self, offset: int, length: int) -> None:
        with contextlib.suppress(OSError):  # only advice
            os.posix_fadvise(self.fd, offset, length, os.POSIX_FADV_WILLNEED)

    def bulk(self, start: int, stop: int, *, uncached: bool = True) -> BulkReader:
        return BulkReader(self.read_into, self.dropper(start, stop) if uncached else None)

    def dropper(self, start: int, stop: int) -> Dropper | None:
        """For bytes of [start, stop); None where the page cache holds all, or nobody tells."""
        stop = min(stop, self.size())
        if pagecache.whole(self.fd, stop, start):
            return None
        absent = pagecache.absent(self.fd, stop, start)
        return None if absent is None or not absent.any() else Dropper(self.fd, start, absent)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        total = 0
        flags = RWF_DONTCACHE if self._dontcache and sum(map(len, buffers)) >= SMALL else 0
        for at in range(0, len(buffers), 1024):  # IOV_MAX
            total += self._write(offset + total, list(buffers[at : at + 1024]), flags)
        if self.uncached and not self._dontcache:
            self._drop_behind(offset, offset + total)
        elif self.uncached and total < SMALL:
            low, high = self._small or (offset, 0)
            self._small = (min(low, offset), max(high, offset + total))
        return total

    def patch(self, offset: int, data: Buffer) -> None:
        done = os.pwrite(self.fd, data, offset)
        if done < len(data):
            self._write(offset + done, [memoryview(data)[done:]], 0)

    def _write(self, offset: int, parts: list[Buffer], flags: int) -> int:
        total = 0
        while parts:
            n = self._pwritev(parts, offset + total, flags)
            total += n
            while parts and n >= len(parts[0]):
                n -= len(parts.pop(0))
            if n:
                parts[0] = memoryview(parts[0])[n:]
        return total

    def _pwritev(self, parts: list[Buffer], offset: int, flags: int) -> int:
        if flags and self._dontcache:
            try:
                return os.pwritev(self.fd, parts, offset, flags)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
                self._dontcache = False
        return os.pwritev(self.fd, parts, offset)

    def _drop_behind(self, start: int, stop: int) -> None:
        if start < self._written or self._written == 0:
            self._written = start
        if stop - self._written < BEHIND:
            pagecache.write_back(self.fd, start, stop)
            return
        pagecache.drop(self.fd, self._written, stop)
        self._written = stop

    def sync(self) -> None:
        os.fdatasync(self.fd)  # also flushes the size, where reading needs it
        if self.uncached and not self._dontcache and self._written:
            pagecache.drop(self.fd, self._written, self.size())
            self._written = 0
        if self._small:
            os.posix_fadvise(self.fd, self._small[0], self._small[1] - self._small[0],
                             os.POSIX_FADV_DONTNEED)  # fmt: skip
            self._small = None

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def preallocate(self, length: int) -> None:
        size = self.size()
        if length <= size:
            return
        try:
            os.posix_fallocate(self.fd, size, length - size)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                return
            os.ftruncate(self.fd, size)  # part of it may have been done
            raise

    def truncate(self, length: int) -> None:
        os.ftruncate(self.fd, length)

    def duplicate(self) -> FileStorage:
        other = FileStorage.__new__(FileStorage)
        other._adopt(os.dup(self.fd), self.name, self.uncached)
        return other

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1  # first: a second close must not close a stranger's file
            os.close(fd)


def unnamed(path: str) -> FileStorage:
    """An empty file without a name in the directory of `path`, or where temporary files go.

    raises  OSError
    """
    try:
        fd, name = tempfile.mkstemp(prefix=".winkfs-", dir=Path(path).absolute().parent)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        fd, name = tempfile.mkstemp(prefix="winkfs-")
    os.close(fd)
    storage = FileStorage(name, "w")
    Path(name).unlink()
    return storage


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in the directory of `path` durable."""
    fd = os.open(Path(path).absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(temporary: str, final: str) -> None:
    """Give a finished, synced file its name, over what was there, then sync the directory."""
    os.replace(temporary, final)
    sync_directory(final)
