"""FileTurn: a lock on a file that processes take in the order in which they came.

The process whose turn it is has an flock on the file. Processes that wait stand in line: each has
locked a byte behind those of the processes before it, and waits until none of these is locked. The
bytes need not exist, and the kernel releases the locks of a process that ends.

A process that takes the turn again at once would always be faster than one that the kernel has to
wake. So it looks for a line once in SLICE seconds, and goes to its end.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from contextlib import suppress
from typing import Final

from winkformats.disk.storage import Turn

SLICE: Final = 4e-3  # seconds in which a process takes the turn without looking for a line
FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid
FIRST: Final = 1  # offset of the first byte that is a place in line


class FileTurn(Turn):
    """1 us to take it and to release it, while no other process waits. For one thread at a time.

    Where the filesystem has no such locks, or the file cannot be written to, there is no line:
    processes try again and again.
    """

    def __init__(self, fd: int) -> None:
        """`fd` of the file, for `close` to close."""
        self._fd = fd
        self._look_at = 0.0  # when to look for a line
        self._place: _Place | None = None  # where it waits, or has waited in vain

    def take(self, seconds: float) -> bool:
        now = time.monotonic()
        looks = now >= self._look_at
        try:
            if not (looks and _behind(self._fd, FIRST) > FIRST) and self._take():
                self._look_at = now + SLICE if looks else self._look_at
                return True
            place = self._place = _Place()
            place.begin(self._fd)
        except (OSError, RuntimeError):  # no such locks; no new thread at the end of the process
            return super().take(seconds)
        fd = place.wait(seconds)
        if fd < 0:
            return False
        os.close(self._fd)
        self._fd, self._place, self._look_at = fd, None, time.monotonic() + SLICE
        return True

    def _take(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def forget(self) -> None:
        self.close()
        if self._place is not None:
            self._place.close()


class _Place:
    """A place in line, and a thread that waits there: a system call for a lock has no timeout.

    A turn that comes after its caller has ceased to wait goes to the next in line.
    """

    def __init__(self) -> None:
        self.fd, self._at = -1, FIRST
        self._lock, self._came = threading.Lock(), threading.Event()
        self._stands = self._left = False

    def begin(self, fd: int) -> None:
        """Open the file once more, to have locks of its own. Raises OSError; RuntimeError."""
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._line_up()
            threading.Thread(target=self._stand, name="winkfs-turn", daemon=True).start()
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _line_up(self) -> None:
        while True:
            self._at = _behind(self.fd, self._at)
            with suppress(BlockingIOError, PermissionError):  # another process was faster
                _lock(self.fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, self._at, 1)
                return

    def _stand(self) -> None:
        """Wait for the processes before, and for the one whose turn it is."""
        with self._lock:
            if self._left:
                return
            self._stands = True
        if self._at > FIRST:
            _lock(self.fd, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, FIRST, self._at - FIRST)
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        _lock(self.fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, FIRST, 0)
        with self._lock:
            self._came.set()
            if self._left:
                self.close()

    def wait(self, seconds: float) -> int:
        """Wait for the turn -> the descriptor that has it; -1: it has not come."""
        came = False
        try:
            came = self._came.wait(seconds)
        finally:
            if not came:
                self._leave()
        return self.fd if came else -1

    def _leave(self) -> None:
        with self._lock:
            self._left = True
            if self._came.is_set() or not self._stands:
                self.close()


def _lock(fd: int, command: int, kind: int, start: int, length: int) -> tuple[int, ...]:
    """Lock bytes of a file, all from `start` on if the length is 0 -> kind, whence, start and
    length of the lock of another process that F_OFD_GETLK finds."""
    return FLOCK.unpack(fcntl.fcntl(fd, command, FLOCK.pack(kind, os.SEEK_SET, start, length, 0)))


def _behind(fd: int, at: int) -> int:
    """Return the first offset from `at` on behind all places of others."""
    while True:
        kind, _, start, length, _ = _lock(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, at, 0)
        if kind == fcntl.F_UNLCK:
            return at
        at = start + length
