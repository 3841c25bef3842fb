"""Write-behind: a thread that writes chunks while the caller makes the next one."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from winkformats.disk.pagecache import PAGE
from winkformats.disk.storage import Buffer, Storage

DEPTH: Final = 3  # chunks in flight; memory is DEPTH + 1 chunks
ALIGNED_FROM: Final = 64 * PAGE  # bytes of a chunk from which writes end at a page boundary


class WriteBehind:
    """Writes chunks in the given order, from a thread, since pwritev releases the GIL.

    The end of a large chunk that fills no page is written with the next one, because a page that is
    written twice is waited for twice, and read again if it was dropped.

    After a failed write nothing more is written. `failed` is the offset of that chunk, or of the
    one before if its end was to be written with it. A signal may interrupt `put` and `drain`
    anywhere: each chunk has a lock of its own that the thread releases, so there is no counter that
    could be wrong, as in queue.Queue.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._jobs: queue.SimpleQueue[tuple[int, Sequence[Buffer], threading.Lock] | None]
        self._jobs = queue.SimpleQueue()
        self._flying: deque[threading.Lock] = deque()
        self._idle, self._end = True, 0  # no chunk since the last drain; offset after the last one
        self._error: BaseException | None = None
        self.failed: int | None = None
        self._thread = threading.Thread(target=self._run, name="winkfs-write", daemon=True)
        self._thread.start()

    def put(self, offset: int, parts: Sequence[Buffer]) -> None:
        """Queue a chunk of consecutive parts; waits while DEPTH are in flight.

        raises  the error of an earlier chunk
        """
        self._raise()
        self._idle, self._end = False, offset + sum(map(len, parts))
        self._flying.append(self._give(offset, parts))
        if len(self._flying) > DEPTH:
            self._flying.popleft().acquire()

    def drain(self) -> None:
        """Wait until all is written. Raises the error of the thread, until `forget`."""
        self._wait()
        self._raise()

    def forget(self) -> None:
        """Drop the error, after the caller has dropped the data."""
        self._wait()
        self._error = self.failed = None

    def close(self) -> None:
        """End the thread after it has written all."""
        self._give(self._end, ())
        self._jobs.put(None)
        if self._thread is not threading.current_thread():  # else it collects a dropped handle
            self._thread.join()

    def _give(self, offset: int, parts: Sequence[Buffer]) -> threading.Lock:
        done = threading.Lock()
        done.acquire()
        self._jobs.put((offset, parts, done))
        return done

    def _wait(self) -> None:
        if not self._idle:
            self._give(self._end, ()).acquire()
            self._flying.clear()
            self._idle = True

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        rest: list[Buffer] = []  # the end of a chunk that is not written yet, and where that begins
        before = 0
        while (job := self._jobs.get()) is not None:
            offset, parts, done = job
            try:
                if self._error is None:
                    rest = self._write(offset, rest, parts)
            except BaseException as error:  # handed to the caller by put or drain
                self._error, self.failed, rest = error, before if rest else offset, []
            finally:
                done.release()
            before = offset
            del job, parts  # else the chunk would stay in memory until the next one

    def _write(self, offset: int, rest: list[Buffer], parts: Sequence[Buffer]) -> list[Buffer]:
        """Write `rest`, which ends at `offset`, and the parts after it -> the end of the parts that
        fills no page, unwritten. Without parts all is written."""
        start, size = offset - sum(map(len, rest)), sum(map(len, parts))
        odd = (offset + size) % PAGE if size >= ALIGNED_FROM else 0
        whole, left = _split([*rest, *parts], odd)
        if whole:
            self._storage.write(start, whole)
        return left


def _split(parts: list[Buffer], size: int) -> tuple[list[Buffer], list[Buffer]]:
    """Split off the last `size` bytes of some parts -> the parts before, and a copy of the end."""
    left: list[Buffer] = []
    while size and parts:
        last = memoryview(parts.pop())
        cut = max(len(last) - size, 0)
        size -= len(last) - cut
        left.append(bytes(last[cut:]))
        if cut:
            parts.append(last[:cut])
    return parts, left[::-1]
