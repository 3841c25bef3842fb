"""Page cache: which pages of a file the kernel holds, dropping them, and passes that leave none.

Files are given as descriptors. If kernel or C library lack a call, pages stay in the cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import mmap
import os
import resource
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PAGE: Final = mmap.PAGESIZE
CHECKED_AHEAD: Final = 64 << 20  # bytes whose pages are checked at once: beyond any read-ahead
MAX_FOLIO: Final = (2 << 20) // PAGE  # pages that the kernel keeps and drops as one
RWF_DONTCACHE: Final = 0x80  # linux/fs.h; not named by Python's os
WINDOW: Final = 8 << 20  # bytes of one bulk read
WRITE_ERRORS: Final = (errno.EIO, errno.ENOSPC, errno.EDQUOT)  # errors that a sync may report
_SFR_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE
_SFR_WAIT: Final = 7  # WAIT_BEFORE | WRITE | WAIT_AFTER


_library = ctypes.CDLL(None, use_errno=True)


def libc(name: str, *types: Any, result: Any = ctypes.c_int) -> Any:
    """Return a function of the C library that Python's os does not offer, or None."""
    function = getattr(_library, name, None)
    if function is not None:
        function.argtypes, function.restype = types, result
    return function


_sync_file_range = libc(
    "sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
)
_syscall = libc("syscall", result=ctypes.c_long)
_CACHESTAT: Final = 451  # Linux 6.5, on all processors; the C library has no name for it
_mincore = libc("mincore", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def runs(marks: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the runs of True as ranges [i, j)."""
    import numpy as np  # late: stores that only append do without it

    edges = np.flatnonzero(np.diff(marks, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def whole(fd: int, stop: int, start: int = 0) -> bool:
    """Return whether the page cache holds all pages from that of byte `start` to `stop`.

    ->    False also if the kernel is too old to know
    cost  grows with the pages, less than that of `absent`
    """
    start -= start % PAGE
    where, found = (ctypes.c_uint64 * 2)(start, stop - start), (ctypes.c_uint64 * 5)()
    if _syscall is None or _syscall(_CACHESTAT, fd, where, found, 0) != 0:
        return False
    return int(found[0]) >= -(-(stop - start) // PAGE)  # the first one counts cached pages


def absent(fd: int, stop: int, start: int = 0) -> npt.NDArray[np.bool_] | None:
    """Return which pages from that of byte `start` to `stop` the page cache does not hold.

    ->    bool[n]; None: unknown
    cost  grows with the pages; memory: two bytes a page
    """
    start -= start % PAGE
    if _mincore is None or stop <= start:
        return None
    import numpy as np  # late: stores that only append do without it

    try:
        mapped = mmap.mmap(fd, stop - start, access=mmap.ACCESS_READ, offset=start)
    except (OSError, ValueError):  # the disk has failed, or the file was truncated
        return None
    base = None
    try:
        base = np.frombuffer(mapped, np.uint8)
        vector = np.zeros(-(-(stop - start) // PAGE), np.uint8)
        failed = _mincore(base.ctypes.data, stop - start, vector.ctypes.data)
    finally:
        del base  # the mapping can only close after its last user, also at a Ctrl-C
        mapped.close()
    return None if failed else (vector & 1) == 0


def faults() -> int:
    """Return the number of major page faults of this process. Cost: a system call."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def forget(fd: int, first: int, last: int) -> None:
    """Drop the pages [first, last) from the page cache."""
    with contextlib.suppress(OSError):  # only advice, and the file may be closed by now
        os.posix_fadvise(fd, first * PAGE, (last - first) * PAGE, os.POSIX_FADV_DONTNEED)


class Dropper:
    """Drops ranges from the page cache, except pages that were in it when this was made.

    absent  the other pages of the file, from that of byte `start` on, see `absent`
    """

    def __init__(self, fd: int, start: int, absent: npt.NDArray[np.bool_]) -> None:
        self._fd, self._first, self._absent = fd, start // PAGE, absent

    def __call__(self, start: int, stop: int) -> None:
        """Drop the pages from that of `start` to before that of `stop`, which may be read next.

        The kernel drops a large folio only as a whole: the call that ended at `start` left one that
        crosses it, and this one drops it.
        """
        low = max(start // PAGE - MAX_FOLIO, self._first)
        part = self._absent[low - self._first : max(stop // PAGE - self._first, 0)]
        for i, j in runs(part):
            forget(self._fd, low + i, low + j)

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Drop all pages of many ranges [start, stop), joining adjacent ones."""
        import numpy as np

        bounds, count = np.array(ranges, np.int64), len(self._absent)
        low = np.clip(bounds[:, 0] // PAGE - self._first, 0, count)
        high = np.clip(-(-bounds[:, 1] // PAGE) - self._first, low, count)
        begin, end = int(low.min()), int(high.max())
        marks = np.zeros(end - begin + 1, np.int64)
        np.add.at(marks, low - begin, 1)
        np.add.at(marks, high - begin, -1)
        for i, j in runs((np.cumsum(marks[:-1]) > 0) & self._absent[begin:end]):
            forget(self._fd, self._first + begin + i, self._first + begin + j)


def dropper(fd: int, start: int, stop: int) -> Dropper | None:
    """Return a Dropper for [start, stop); None: the page cache holds all, or it is unknown."""
    if whole(fd, stop, start):
        return None
    found = absent(fd, stop, start)
    return None if found is None or not found.any() else Dropper(fd, start, found)


class ReadOnce:
    """Reader of files that are read once, which leaves the page cache unchanged. The buffer is
    reused.

    cost  a copy more than os.read; two or three system calls on file systems without RWF_DONTCACHE
          (btrfs; all before Linux 6.14)
    """

    def __init__(self) -> None:
        self._buffer, self._flags = memoryview(bytearray(0)), RWF_DONTCACHE

    def __call__(self, fd: int, size: int) -> bytes:
        """Read the first `size` bytes of a file, fewer if it is shorter."""
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        into, got = self._buffer[:size], 0
        if self._flags:
            try:
                got = self._fill(fd, into, self._flags)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
                self._flags = 0
        if not self._flags:
            drop = dropper(fd, 0, size)
            got = self._fill(fd, into, 0)
            if drop:
                drop(0, size + PAGE)
        return bytes(into[:got])

    def _fill(self, fd: int, into: memoryview, flags: int) -> int:
        got = 0
        while got < len(into) and (more := os.preadv(fd, [into[got:]], got, flags)):
            got += more  # a network file system may return fewer bytes than requested
        return got


class OnceFile(io.FileIO):
    """A file that is read once, from start to end, and leaves the page cache unchanged.

    file    a path, or a descriptor
    memory  two bytes for each page of CHECKED_AHEAD bytes, whatever the size of the file
    """

    def __init__(self, file: str | int, *, closefd: bool = True) -> None:
        super().__init__(file, closefd=closefd)
        status = os.fstat(self.fileno())
        self._size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self._dropped = 0  # offset up to which pages were dropped
        self._windows: list[tuple[int, int, Dropper | None]] = []  # start, stop, dropper

    def read(self, size: int | None = -1, /) -> bytes:
        self._look(self._size if size is None or size < 0 else size)
        return super().read(-1 if size is None else size)

    def readinto(self, into: Any, /) -> int:
        self._look(memoryview(into).nbytes)
        return super().readinto(into)

    def _look(self, size: int) -> None:
        """Record which of the next pages the cache holds, before the kernel reads ahead, and drop
        those read last."""
        if not self._size:
            return
        at = self.tell()
        self._drop(at)
        if not self._windows or not self._windows[0][0] <= at <= self._windows[-1][1]:
            self._windows = []
        start = self._windows[-1][1] if self._windows else at - at % PAGE
        while start < min(at + size + CHECKED_AHEAD // 2, self._size):
            stop = min(start + max(CHECKED_AHEAD, -(-size // PAGE) * PAGE), self._size)
            self._windows.append((start, stop, dropper(self.fileno(), start, stop)))
            start = stop

    def _drop(self, at: int) -> None:
        for start, stop, drop in self._windows if at > self._dropped else ():
            if drop and self._dropped < stop + PAGE and at > start:
                drop(max(self._dropped, start), min(at, stop + PAGE))
            if drop and stop <= at:
                drop(stop, stop)  # a large folio at its end
        self._windows = [window for window in self._windows if window[1] + PAGE > at]
        self._dropped = at

    def close(self) -> None:
        if self._size and not self.closed:
            self._drop(os.fstat(self.fileno()).st_size + PAGE)
        super().close()


def write_back(fd: int, start: int, stop: int) -> None:
    """Start writing dirty bytes to the disk, in the background."""
    if _sync_file_range:
        _sync_file_range(fd, start, stop - start, _SFR_WRITE)


def drop(fd: int, start: int, stop: int) -> int:
    """Write dirty bytes to the disk, and drop the range from the page cache.

    ->    errno of a failed write of the file, 0: none. The kernel reports each failure only once,
          so a later sync does not report it
    """
    error = 0
    if _sync_file_range and _sync_file_range(fd, start, stop - start, _SFR_WAIT) < 0:
        error = ctypes.get_errno()
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_DONTNEED)
    return error if error in WRITE_ERRORS else 0


class BulkReader:
    """One pass over a file, from start to end, through a buffer that is reused.

    fill    reads into a buffer from an offset -> bytes read
    drop    drops a range of bytes from the page cache; None: leave the cache alone
    """

    def __init__(
        self,
        fill: Callable[[memoryview, int], int],
        drop: Callable[[int, int], None] | None,
    ) -> None:
        self._fill, self._drop = fill, drop
        self._buffer = memoryview(bytearray(0))
        self._seen = (0, 0)  # the last piece read

    def read(self, offset: int, length: int) -> memoryview:
        """Read from `offset`, fewer bytes at the end of the file; valid until the next read.

        Offsets never go back, except into the last piece read.
        """
        if self._drop and offset > self._seen[0] < self._seen[1]:
            # Ordinary reads and DONTNEED after them are faster than RWF_DONTCACHE reads.
            self._drop(self._seen[0], min(offset, self._seen[1]))
        if length > len(self._buffer):
            self._buffer = memoryview(bytearray(length))
        got = self._fill(self._buffer[:length], offset)
        self._seen = (offset, offset + got)
        return self._buffer[:got]

    def expect(self, start: int, stop: int) -> bool:
        """Announce that nearly all of [start, stop) will be read -> whether the pass goes on there.
        Only one over an object asks ahead."""
        return False

    def close(self) -> None:
        """Drop the last piece."""
        if self._drop:
            self._drop(self._seen[0], self._seen[1] + PAGE)
