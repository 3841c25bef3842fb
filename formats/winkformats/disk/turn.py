"""FileTurn: a lock on a file that processes take in the order of their arrival.

The process whose turn it is has an flock on the file. Waiting processes form a line: each has
locked a byte after those of the processes before it, and waits until none of these is locked. The
bytes need not exist, and the kernel releases the locks of a process that ends.

A process that takes the turn again at once would always be faster than one that the kernel has to
wake. So every SLICE seconds it looks for a line, and goes to its end.
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
FIRST_PLACE: Final = 1  # offset of the first byte that is a place in line


class FileTurn(Turn):
    """A fair lock on a file. For one thread at a time.

    Without such locks on the file system, or permission to write to the file, there is no line:
    processes poll.
    """

    def __init__(self, fd: int) -> None:
        """Use the descriptor of an open file, which `close` closes."""
        self._fd = fd
        self._look_at = 0.0  # when to look for a line
        self._place: _Place | None = None  # where it waits, or where a wait timed out

    def take(self, seconds: float) -> bool:
        now = time.monotonic()
        looks = now >= self._look_at
        try:
            if not (looks and _after_others(self._fd, FIRST_PLACE) > FIRST_PLACE) and self._take():
                self._look_at = now + SLICE if looks else self._look_at
                return True
            place = self._place = _Place()
            place.begin(self._fd)
        except (OSError, RuntimeError):  # no such locks; no new threads as the process ends
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
    """A place in line, and a thread that waits there, since system calls for locks have no timeout.

    If the turn comes after the caller has ceased to wait, it passes to the next process.
    """

    def __init__(self) -> None:
        self.fd, self._at = -1, FIRST_PLACE
        self._lock, self._came = threading.Lock(), threading.Event()
        self._waits = self._left = False

    def begin(self, fd: int) -> None:
        """Open the file once more, to have locks of its own. Raises OSError; RuntimeError."""
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._line_up()
            threading.Thread(target=self._run, name="winkfs-turn", daemon=True).start()
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _line_up(self) -> None:
        while True:
            self._at = _after_others(self.fd, self._at)
            with suppress(BlockingIOError, PermissionError):  # another process was faster
                _lock(self.fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, self._at, 1)
                return

    def _run(self) -> None:
        """Wait, in the thread, for the processes before, and then for the lock."""
        with self._lock:
            if self._left:
                return
            self._waits = True
        before = self._at - FIRST_PLACE
        if before:
            _lock(self.fd, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, FIRST_PLACE, before)
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        _lock(self.fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, FIRST_PLACE, 0)
        with self._lock:
            self._came.set()
            if self._left:
                self.close()

    def wait(self, seconds: float) -> int:
        """Wait for the turn -> the descriptor that has it; -1: it timed out."""
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
            if self._came.is_set() or not self._waits:
                self.close()


def _lock(fd: int, command: int, kind: int, start: int, length: int) -> tuple[int, ...]:
    """Lock bytes of a file, all from `start` on if the length is 0 -> kind, whence, start and
    length of the lock of another process that F_OFD_GETLK finds."""
    return FLOCK.unpack(fcntl.fcntl(fd, command, FLOCK.pack(kind, os.SEEK_SET, start, length, 0)))


def _after_others(fd: int, at: int) -> int:
    """Return the first offset from `at` on after all places of other processes."""
    while True:
        kind, _, start, length, _ = _lock(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, at, 0)
        if kind == fcntl.F_UNLCK:
            return at
        at = start + length
