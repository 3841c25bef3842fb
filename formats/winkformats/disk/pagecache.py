"""Page cache: what the kernel keeps of a file, how pages leave it, and a pass that leaves none.

A file is its descriptor here. Where kernel or C library offer no help, pages stay.
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
LOOKED: Final = 64 << 20  # bytes looked at at once: several times what a kernel reads ahead
FOLIO: Final = (2 << 20) // PAGE  # pages the kernel keeps as one, at most
RWF_DONTCACHE: Final = 0x80  # linux/fs.h; not named by Python's os
WINDOW: Final = 8 << 20  # bytes of one bulk read
WRITE_ERRORS: Final = (errno.EIO, errno.ENOSPC, errno.EDQUOT)  # what a sync may say
_SFR_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE
_SFR_WAIT: Final = 7  # WAIT_BEFORE | WRITE | WAIT_AFTER


def libc(name: str, *types: Any, result: Any = ctypes.c_int) -> Any:
    """A function of the C library that Python's os does not offer, or None."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
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
    """Where the True stand: [i, j) each."""
    import numpy as np  # a store that only appends starts without it

    edges = np.flatnonzero(np.diff(marks, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def whole(fd: int, stop: int, start: int = 0) -> bool:
    """Whether the page cache holds all pages from that of byte `start` to `stop`.

    ->    False too where an older kernel does not tell
    cost  grows with the pages; half of what `absent` takes
    """
    start -= start % PAGE
    where, found = (ctypes.c_uint64 * 2)(start, stop - start), (ctypes.c_uint64 * 5)()
    if _syscall is None or _syscall(_CACHESTAT, fd, where, found, 0) != 0:
        return False
    return int(found[0]) >= -(-(stop - start) // PAGE)  # the first one counts cached pages


def absent(fd: int, stop: int, start: int = 0) -> npt.NDArray[np.bool_] | None:
    """Which pages from that of byte `start` to `stop` the page cache does not hold: bool[n].

    ->    None: unknown
    cost  grows with the pages; memory: two bytes a page
    """
    start -= start % PAGE
    if _mincore is None or stop <= start:
        return None
    import numpy as np  # a store that only appends starts without it

    try:
        mapped = mmap.mmap(fd, stop - start, access=mmap.ACCESS_READ, offset=start)
    except (OSError, ValueError):  # a disk that has failed maps nothing; a file that was cut short
        return None
    base = None
    try:
        base = np.frombuffer(mapped, np.uint8)
        vector = np.zeros(-(-(stop - start) // PAGE), np.uint8)
        failed = _mincore(base.ctypes.data, stop - start, vector.ctypes.data)
    finally:
        del base  # the mapping cannot close before its last user is gone, also by a Ctrl-C
        mapped.close()
    return None if failed else (vector & 1) == 0


def faults() -> int:
    """How many pages this process has waited for the disk to bring, in mappings. A system call."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def forget(fd: int, first: int, last: int) -> None:
    """Take the pages [first, last) out of the page cache."""
    with contextlib.suppress(OSError):  # only advice, and the file may be closed by now
        os.posix_fadvise(fd, first * PAGE, (last - first) * PAGE, os.POSIX_FADV_DONTNEED)


class Dropper:
    """Takes bytes out of the page cache, save pages that it held when this was made.

    absent  pages of the file from byte `start` on, see `absent`
    """

    def __init__(self, fd: int, start: int, absent: npt.NDArray[np.bool_]) -> None:
        self._fd, self._first, self._absent = fd, start // PAGE, absent

    def __call__(self, start: int, stop: int) -> None:
        """The pages from that of `start` to before that of `stop`, which may be read next.

        The kernel drops a large folio only as a whole: what lies across `start` was left by the
        call that ended there, and goes now.
        """
        low = max(start // PAGE - FOLIO, self._first)
        part = self._absent[low - self._first : max(stop // PAGE - self._first, 0)]
        for i, j in runs(part):
            forget(self._fd, low + i, low + j)

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """All pages of many [start, stop). Cost: a sixth of one by one."""
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
    """For bytes [start, stop); None where the page cache holds all, or that is unknown."""
    if whole(fd, stop, start):
        return None
    found = absent(fd, stop, start)
    return None if found is None or not found.any() else Dropper(fd, start, found)


class ReadOnce:
    """Reads files that are read once, through a buffer that is used again. What was not in the page
    cache does not stay there.

    cost  a copy more than os.read, 1.1 times its time for 28 KB that are in memory; two or three
          system calls where the filesystem does not know RWF_DONTCACHE (btrfs, before 6.14 all)
    """

    def __init__(self) -> None:
        self._buffer, self._flags = memoryview(bytearray(0)), RWF_DONTCACHE

    def __call__(self, fd: int, size: int) -> bytes:
        """The first `size` bytes of a file, fewer where it is shorter."""
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
            got += more  # a network filesystem may give less than was asked for
        return got


class OnceFile(io.FileIO):
    """A file that is read once, front to back, in large pieces: pages that this brings do not stay.

    file    a path, or a descriptor
    memory  two bytes a page of some LOOKED bytes, however large the file is
    """

    def __init__(self, file: str | int, *, closefd: bool = True) -> None:
        super().__init__(file, closefd=closefd)
        status = os.fstat(self.fileno())
        self._size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self._past = 0  # what is before it was dropped
        self._windows: list[tuple[int, int, Dropper | None]] = []  # of a start, a stop

    def read(self, size: int | None = -1, /) -> bytes:
        self._look(self._size if size is None or size < 0 else size)
        return super().read(-1 if size is None else size)

    def readinto(self, into: Any, /) -> int:
        self._look(memoryview(into).nbytes)
        return super().readinto(into)

    def _look(self, size: int) -> None:
        """Note what the page cache holds of what is read next, before the kernel reads it ahead,
        and drop what was read last."""
        if not self._size:
            return
        at = self.tell()
        self._drop(at)
        if not self._windows or not self._windows[0][0] <= at <= self._windows[-1][1]:
            self._windows = []
        start = self._windows[-1][1] if self._windows else at - at % PAGE
        while start < min(at + size + LOOKED // 2, self._size):
            stop = min(start + max(LOOKED, -(-size // PAGE) * PAGE), self._size)
            self._windows.append((start, stop, dropper(self.fileno(), start, stop)))
            start = stop

    def _drop(self, at: int) -> None:
        for start, stop, drop in self._windows if at > self._past else ():
            if drop and self._past < stop + PAGE and at > start:
                drop(max(self._past, start), min(at, stop + PAGE))
            if drop and stop <= at:
                drop(stop, stop)  # a large folio at its end
        self._windows = [window for window in self._windows if window[1] + PAGE > at]
        self._past = at

    def close(self) -> None:
        if self._size and not self.closed:
            self._drop(os.fstat(self.fileno()).st_size + PAGE)
        super().close()


def write_back(fd: int, start: int, stop: int) -> None:
    """Have dirty bytes written to the disk, in the background."""
    if _sync_file_range:
        _sync_file_range(fd, start, stop - start, _SFR_WRITE)


def drop(fd: int, start: int, stop: int) -> int:
    """Take bytes out of the page cache, those that are dirty once they are written.

    ->    errno of a write of the descriptor's file that failed, 0: none did. The kernel tells each
          failure once, so a sync that comes later does not know it
    """
    error = 0
    if _sync_file_range and _sync_file_range(fd, start, stop - start, _SFR_WAIT) < 0:
        error = ctypes.get_errno()
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_DONTNEED)
    return error if error in WRITE_ERRORS else 0


class BulkReader:
    """One pass over a file, front to back, through a buffer that is used again.

    fill    reads into a buffer from an offset -> bytes read
    drop    takes a range of bytes out of the page cache; None: leave the cache alone
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
        """The bytes from `offset`, fewer at the end of the file; valid until the next read.

        Offsets never go back, except into the last piece read.
        """
        if self._drop and offset > self._seen[0] < self._seen[1]:
            # Ordinary reads and DONTNEED behind them take 0.7 of the time of RWF_DONTCACHE reads.
            self._drop(self._seen[0], min(offset, self._seen[1]))
        if length > len(self._buffer):
            self._buffer = memoryview(bytearray(length))
        got = self._fill(self._buffer[:length], offset)
        self._seen = (offset, offset + got)
        return self._buffer[:got]

    def close(self) -> None:
        """Drop the last piece."""
        if self._drop:
            self._drop(self._seen[0], self._seen[1] + PAGE)
