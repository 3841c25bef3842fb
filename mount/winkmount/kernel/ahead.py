"""Readahead over files: what comes next is pushed into the page cache before it is asked for.

Stream   files of a directory that are read in its order
Ahead    a thread that pushes the next files of a stream, and answers the read that began it
Waiting  threads that wait for the disk in the place of the one that answers
Reads    reads of a tree that never changes, by these
"""

from __future__ import annotations

import logging
import queue
import stat
import threading
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from winkmount.kernel import protocol as p
from winkmount.kernel.device import Connection
from winkmount.kernel.entries import S_IFMT
from winkmount.served import Served
from winkmount.source import Nodes, Page

log = logging.getLogger("winkmount")

FIRST_PUSHED, MOST_PUSHED = 2, 64  # files pushed before they are asked for, at first and at most
BATCH_FILES: Final = MOST_PUSHED // 2  # of a batch; there may be two
BATCH_BYTES: Final = 1 << 20  # bytes of a batch
BEYOND: Final = 16  # files of a batch from which on the next one is pushed while these are read
LARGEST_PUSHED: Final = 1 << 17  # bytes of a file that is pushed
SKIPPED: Final = 3  # files that a reader may leave out and still go in order
STREAMS: Final = 8  # readers at once
NEAR_NUMBERS: Final = 1 << 18  # numbers from one file to one that may be the next
RARELY: Final = 256  # other reads in no order, of which one is looked for among all files: that
# takes as long as many reads where readers go at random
THREADS: Final = 4  # that wait for the disk

Batch = tuple[Page, npt.NDArray[np.int64]]  # some files of a page
Late = tuple[int, int, bytes]  # a read answered later: its unique number, the file, what is asked
Answer = Callable[[int, int, bytes], None]
Begin = Callable[[int], None]  # of the unique number of a read


def no_limit(unique: int) -> None:
    """Do nothing: the Source has no limit."""


class Stream:
    """Files of a directory that are read in its order.

    page, order  where they are, and the numbers there
    at           which of them was read last
    done, stop   behind the last one that was pushed; the end of the directory
    mark         one that is left out, so that its reader asks for it: the kernel does not report
                 what is read from the page cache; -1: none
    left_out     the last one that was read was not to be pushed: it may wait for what is
    window       how many were pushed at once
    """

    __slots__ = ("at", "done", "left_out", "mark", "order", "page", "stop", "window")

    def __init__(self, page: Page, at: int, stop: int, window: int) -> None:
        self.page, self.order = page, page.nodes[:stop].tolist()
        self.at, self.done, self.stop, self.window = at, at + 1, stop, window
        self.mark, self.left_out = -1, False

    @property
    def ended(self) -> bool:
        return self.done == self.stop and self.mark < 0

    def meets(self, node: int) -> bool:
        """Return whether a file is one that comes next, or that follows what was pushed, or one
        among those that was not pushed."""
        after, done = self.at + 1, self.done
        try:
            at = self.order.index(node, after, min(max(after + SKIPPED, done + 1), self.stop))
        except ValueError:
            return False
        left_out = at < done and (at == self.mark or not self._pushes(at, at + 1).all())
        if at < done and not left_out:
            if at >= after + SKIPPED:
                return False
            self.done, self.window = at + 1, 0  # the kernel has let go of it
        self.at, self.left_out = at, left_out
        if not at < self.mark < self.done:
            self.mark = -1
        return True

    def batches(self) -> tuple[Batch | None, Batch | None]:
        """Return what is pushed before the answer, and after it: twice as many files as before.

        Where many are read, most are pushed after it, and their reader comes back for one that is
        left out before these, while they are being pushed.
        """
        if self.mark >= 0:
            return None, None  # it is a large file, and others behind it are pushed
        self.window = min(max(2 * self.window, FIRST_PUSHED), BATCH_FILES)
        if self.window < BEYOND:
            return self._batch(self.window), None
        first = None if self.left_out else self._batch(self.window // 4)
        found = np.flatnonzero(self._pushes(self.done, min(self.done + MOST_PUSHED, self.stop)))
        if not len(found):
            return first, None
        self.mark = self.done + int(found[0])
        self.done = self.mark + 1
        return first, self._batch(self.window)

    def _batch(self, files: int) -> Batch | None:
        start = max(self.done, self.at + 1)
        stop = min(start + files, self.stop)
        sizes = np.minimum(self.page.attrs[start:stop, 2], LARGEST_PUSHED)
        self.done = start + int(np.searchsorted(np.cumsum(sizes), BATCH_BYTES, "right"))
        chosen = np.flatnonzero(self._pushes(start, self.done)) + start
        return (self.page, chosen) if len(chosen) else None

    def _pushes(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return which of some files are pushed, bool[n]: not empty ones, nor large ones."""
        sizes, modes = self.page.attrs[start:stop, 2], self.page.attrs[start:stop, 1]
        pushes: npt.NDArray[np.bool_] = (
            (sizes > 0) & (sizes <= LARGEST_PUSHED) & (modes & S_IFMT == stat.S_IFREG)
        )
        return pushes


class Ahead:
    """Pushes the contents of the next files into the page cache when files are read in the order of
    their directory, before the answer to a read: so a reader sleeps once for many files.

    A second thread does so, and answers that read: the kernel lets a push wait while the file is
    being read, and the first thread goes on with what others ask. What is held back is of a file
    that is in nothing that is still to be pushed: nothing waits for itself.
    """

    def __init__(
        self, nodes: Nodes, push: Callable[[Batch], None], answer: Answer, begin: Begin = no_limit
    ) -> None:
        """
        push    the contents of some files
        answer  a read that was held back; never raises
        """
        self._begin = begin
        self._nodes, self._push, self._answer = nodes, push, answer
        self._streams: list[Stream] = []  # read last is first
        self._astray = 0  # reads in no order
        self._strays: list[int] = []  # the last of them
        self._wanted = queue.SimpleQueue[tuple[Batch | None, Late, Batch | None] | None]()
        self._pushed: Stream | None = None  # of which something is pushed, or was last
        self._given = self._done = 0  # what the thread was to do, and has done
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Return whether something is being pushed."""
        return self._given != self._done

    def end(self) -> None:
        self._wanted.put(None)
        self._thread.join()

    def takes(self, read: Late) -> bool:
        """Take a read from the start of a file -> whether the answer comes from here, in a
        while."""
        stream = self._stream(read[1])
        if stream is None:
            return False
        busy = self.busy
        if busy and not (stream.left_out and stream is self._pushed):
            return False
        first, beyond = stream.batches()
        if not busy and first is None and beyond is None:
            return False
        self._pushed = stream
        self._given += 1
        self._wanted.put((first, read, beyond))
        return True

    def _stream(self, node: int) -> Stream | None:
        """Return the stream that a file continues; None: it begins one, or none."""
        for i, stream in enumerate(self._streams):
            if stream.meets(node):
                self._astray = 0
                if i:
                    self._streams.insert(0, self._streams.pop(i))
                return stream
        self._astray += 1
        if self._astray % RARELY == 0:
            self._streams.clear()
        if not self._may_begin(node):
            return None
        found = self._nodes.around(node)
        if found is None:
            return None
        # a reader of a whole directory goes on in the next one
        ended = next((one for one in self._streams if one.ended), None)
        stream = Stream(*found, ended.window if ended else 0)
        self._streams = [stream, *(one for one in self._streams if one is not ended)][:STREAMS]
        return stream if ended else None

    def _may_begin(self, node: int) -> bool:
        """Return whether a file is to be looked for. Files of a directory were mostly stored
        together, and their numbers are near each other: those of random reads are not."""
        near = any(0 < node - other <= NEAR_NUMBERS for other in self._strays)
        self._strays = [node, *self._strays[: STREAMS - 1]]
        return near or self._astray <= STREAMS or not self._astray % RARELY

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            first, read, beyond = wanted
            self._begin(read[0])
            self._advance(first)
            self._answer(*read)
            self._advance(beyond)
            self._done += 1

    def _advance(self, batch: Batch | None) -> None:
        if batch is not None:
            try:
                self._push(batch)
            except Exception:  # the read of the file raises it
                log.debug("readahead", exc_info=True)


class Waiting:
    """Threads that wait for the disk, where several readers would wait for each other: they have
    what a read needs brought to the page cache, and answer it.

    busy  reads that are not answered
    """

    def __init__(self, nodes: Nodes, answer: Answer, begin: Begin = no_limit) -> None:
        self._nodes, self._answer, self._begin = nodes, answer, begin
        self._wanted = queue.SimpleQueue[tuple[Late, int] | None]()
        self._threads: list[threading.Thread] = []
        self._lock, self.busy = threading.Lock(), 0
        self._caller = 0

    def takes(self, read: Late, size: int, caller: int) -> bool:
        """Take a read of a file -> whether the answer comes from here, in a while: not where there
        is one reader, or where the page cache has it.

        caller  the thread that reads
        """
        several = self.busy or self._caller not in (0, caller)
        self._caller = caller
        if not several or self._nodes.present(read[1], size):
            return False
        with self._lock:
            self.busy += 1
        if len(self._threads) < min(self.busy, THREADS):
            self._threads.append(threading.Thread(target=self._run, daemon=True))
            self._threads[-1].start()
        self._wanted.put((read, size))
        return True

    def end(self) -> None:
        for _ in self._threads:
            self._wanted.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            read, size = wanted
            self._begin(read[0])
            try:
                self._nodes.bring(read[1], size)
            except OSError:  # the read raises it
                log.debug("bring", exc_info=True)
            self._answer(*read)
            with self._lock:
                self.busy -= 1


class Reads:
    """Reads of files of a tree that never changes which other threads answer."""

    def __init__(
        self, served: Served, nodes: Nodes, connection: Connection, answer: Answer, begin: Begin
    ) -> None:
        """
        answer  a read, by its unique number, the file and what is asked
        begin   to be called before that, by the thread that reads
        """
        self._mutex, self._nodes, self._connection = served.mutex, nodes, connection
        self._ahead = Ahead(nodes, self._push, answer, begin)
        self._waiting = Waiting(nodes, answer, begin)

    @property
    def busy(self) -> bool:
        """Return whether another thread reads."""
        return self._ahead.busy or self._waiting.busy > 0

    def close(self) -> None:
        self._ahead.end()
        self._waiting.end()

    def later(self, unique: int, node: int, body: memoryview) -> bool:
        """Return whether another thread answers a read."""
        _, offset, size = p.READ_IN.unpack_from(body)
        if offset:
            return False
        read = unique, node, bytes(body)
        self._connection.hold(unique)
        try:
            with self._mutex:
                taken = self._ahead.takes(read) or self._waiting.takes(
                    read, size, self._connection.caller()[2]
                )
        except Exception:  # the read of the next files raises it
            log.debug("readahead", exc_info=True)
            taken = False
        if not taken:
            self._connection.callers.waiting.pop(unique, None)
        return taken

    def _push(self, batch: Batch) -> None:
        page, chosen = batch
        with self._mutex:
            contents = self._nodes.contents(page, chosen)
        for i, found in zip(chosen.tolist(), contents, strict=True):
            node, data = int(page.nodes[i]), found
            if data is None:
                with self._mutex:
                    data = self._nodes.read(node, 0, int(page.attrs[i, 2]))
            if not self._connection.store(node, data):  # the kernel has forgotten it
                return
