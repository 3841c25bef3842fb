"""Direct: answers the kernel for a tree that never changes and whose files have numbers."""

from __future__ import annotations

import errno
import logging
import queue
import stat
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from winkmount.handles import DOTS, NAME_MAX
from winkmount.kernel import protocol as p
from winkmount.kernel.device import Connection
from winkmount.kernel.entries import NO_ENTRY, S_IFMT, Entries, Shown, attr_fields, sized
from winkmount.operations import Operations
from winkmount.source import Healing, Nodes, Page, refuse

HELD: Final = 1100  # bytes that the kernel keeps for a number: an inode, and a name
SHARE: Final = 8  # of the memory that is free: one part of so many is for them
LEAST: Final = 1 << 16  # numbers
LOOK: Final = 1.0  # seconds until the next look at what is free

log = logging.getLogger("winkmount")

FIRST, AHEAD = 8, 64  # files pushed before they are asked for, at first and at most
MOST: Final = 2 << 20  # bytes of them
LARGEST: Final = 1 << 17  # bytes of a file that is pushed
SKIPPED: Final = 3  # files that a reader may leave out and still go in order
STREAMS: Final = 8  # readers at once
RARELY: Final = 16  # reads in no order, of which one is looked for among all files: it takes 60 us

Batch = tuple[Page, npt.NDArray[np.int64]]  # some files of a page
Held = tuple[int, int, bytes]  # a read that waits: its unique number, the file, what is asked


class Rare:
    """What is asked rarely, answered by the operations, whoever answers the rest."""

    def __init__(self, operations: Operations, path: Callable[[int], str]) -> None:
        """`path`: of a number, as the operations have it."""
        self._operations, self._path = operations, path
        self.answers: Mapping[int, Callable[[int, memoryview], bytes]] = {
            p.READLINK: self._readlink,
            p.GETXATTR: self._getxattr,
            p.LISTXATTR: self._listxattr,
            p.STATFS: self._statfs,
            p.ACCESS: self._access,
        }

    def _readlink(self, node: int, body: memoryview) -> bytes:
        return self._operations.readlink(self._path(node)).encode("latin-1")

    def _getxattr(self, node: int, body: memoryview) -> bytes:
        name = bytes(body[p.WORDS.size : -1])
        if name == b"security.capability":
            raise refuse(errno.ENODATA)
        value = self._operations.getxattr(self._path(node), name.decode("latin-1"))
        return sized(value, body)

    def _listxattr(self, node: int, body: memoryview) -> bytes:
        names = self._operations.listxattr(self._path(node))
        return sized("".join(name + "\0" for name in names).encode("latin-1"), body)

    def _statfs(self, node: int, body: memoryview) -> bytes:
        found = self._operations.statfs("/")
        fields = "blocks", "bfree", "bavail", "files", "ffree", "bsize", "namemax", "frsize"
        return p.STATFS_OUT.pack(*(found.get(f"f_{field}", 0) for field in fields))

    def _access(self, node: int, body: memoryview) -> bytes:
        self._operations.access(self._path(node), *p.WORD.unpack_from(body))
        return b""


class Stream:
    """Files of a directory that are read in its order.

    page, order  where they are, and the numbers there
    at           which of them was read last
    done, stop   behind the last one that was pushed; the end of the directory
    window       how many were pushed at once
    """

    __slots__ = ("at", "done", "order", "page", "stop", "window")

    def __init__(self, page: Page, at: int, stop: int, window: int) -> None:
        self.page, self.order = page, page.nodes[:stop].tolist()
        self.at, self.done, self.stop, self.window = at, at + 1, stop, window

    def meets(self, node: int) -> bool:
        """Whether a file is one that comes next, or one behind what was pushed."""
        order, after = self.order, self.at + 1
        for near in (*range(after, min(after + SKIPPED, self.stop)), self.done):
            if near < self.stop and order[near] == node:
                if near < self.done:  # the kernel has let go of what was pushed
                    self.done, self.window = near + 1, 0
                self.at = near
                return True
        return False

    def batch(self) -> Batch | None:
        """What is pushed next: twice as many files as before, and no more than MOST bytes."""
        self.window = min(max(2 * self.window, FIRST), AHEAD)
        start = max(self.done, self.at + 1)
        stop = min(start + self.window, self.stop)
        sizes, modes = self.page.attrs[start:stop, 2], self.page.attrs[start:stop, 1]
        stop = start + int(np.searchsorted(np.cumsum(np.minimum(sizes, LARGEST)), MOST, "right"))
        self.done = stop
        good = (sizes > 0) & (sizes <= LARGEST) & (modes & S_IFMT == stat.S_IFREG)
        chosen = np.flatnonzero(good[: stop - start]) + start
        return (self.page, chosen) if len(chosen) else None


class Ahead:
    """Pushes the contents of the next files into the page cache when files are read in the order of
    their directory, before the answer to the read: so a reader sleeps once for many files.

    A second thread does so, and answers that read: the kernel lets a push wait while the file is
    being read, and the first thread goes on with what others ask. There is one such read at a time,
    of a file that is not pushed: nothing waits for itself.
    """

    def __init__(
        self, nodes: Nodes, push: Callable[[Batch], None], answer: Callable[[Held], None]
    ) -> None:
        """
        push    the contents of some files
        answer  a read that was held back
        """
        self._nodes, self._push, self._answer = nodes, push, answer
        self._streams: list[Stream] = []  # read last is first
        self._astray = 0  # reads in no order
        self._wanted = queue.SimpleQueue[tuple[Batch, Held] | None]()
        self.busy = False  # something is being pushed
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._wanted.put(None)
        self._thread.join()

    def takes(self, held: Held) -> bool:
        """A file is read from its start -> whether the answer comes from here, in a while."""
        stream = self._stream(held[1])
        if stream is None or self.busy:
            return False
        batch = stream.batch()
        if batch is None:
            return False
        self.busy = True
        self._wanted.put((batch, held))
        return True

    def _stream(self, node: int) -> Stream | None:
        """What a file continues; None: it begins one, or none."""
        for i, stream in enumerate(self._streams):
            if stream.meets(node):
                self._astray = 0
                if i:
                    self._streams.insert(0, self._streams.pop(i))
                return stream
        self._astray += 1
        if self._astray > RARELY and self._astray % RARELY:
            return None
        found = self._nodes.around(node)
        if found is None:
            return None
        # who has read a directory to its end goes on in the next one
        ended = next((one for one in self._streams if one.done == one.stop), None)
        stream = Stream(*found, ended.window if ended else 0)
        self._streams = [stream, *(one for one in self._streams if one is not ended)][:STREAMS]
        return stream if ended else None

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            batch, held = wanted
            try:
                self._push(batch)
            except Exception:  # whoever reads the file is told
                log.debug("readahead", exc_info=True)
            self.busy = False
            try:
                self._answer(held)
            except OSError as error:
                log.error("read: %s", error)


class Direct:
    """Answers the requests of the kernel for a tree that never changes.

    The kernel is told that nothing is opened: so it lists a directory without opendir and
    releasedir, and what it has listed once it does not ask for again as long as it has memory.

    It keeps an inode of 1 KB for each number that it was given until it forgets it, which it says:
    where that becomes more than a part of the memory that is free, it gets none of files that are
    only listed.

    operations  what is rare is answered by them
    """

    def __init__(
        self, operations: Operations, nodes: Nodes, shown: Shown, connection: Connection
    ) -> None:
        self._connection = connection
        self._ahead = Ahead(nodes, self._push, self._answer_held)
        self._operations, self._nodes, self._shown = operations, nodes, shown
        self._seconds = int(operations.caching.names)
        self._missing = p.ENTRY_OUT.pack(0, 0, int(operations.caching.missing), 0, 0, 0, *[0] * 16)
        self._held = 0  # numbers that the kernel was given and has not forgotten
        self._most, self._due = 0, 0.0  # how many it may have; when that is looked at again
        self._answers: Mapping[int, Callable[[int, memoryview], bytes]] = {
            p.LOOKUP: self._lookup,
            p.GETATTR: self._getattr,
            p.READDIRPLUS: self._list_plus,
            p.READDIR: self._list_plain,
            p.READ: self._read,
            p.LSEEK: self._lseek,
            **Rare(operations, self._path).answers,
            p.FSYNC: lambda node, body: b"",
            p.FSYNCDIR: lambda node, body: b"",
            p.DESTROY: lambda node, body: b"",
        }

    def start(self) -> None:
        self._ahead.start()

    def close(self) -> None:
        self._ahead.end()

    def idle(self) -> bool:
        return not self._ahead.busy

    def request(self, opcode: int, unique: int, node: int, body: memoryview) -> bool:
        """Answer a request, or have it answered."""
        with self._operations.mutex:
            if opcode == p.READ and not p.READ_IN.unpack_from(body)[0]:
                try:
                    if self._ahead.takes((unique, node, bytes(body))):
                        return False
                except Exception:  # whoever reads the next files is told
                    log.debug("readahead", exc_info=True)
            code, data = self.answer(opcode, node, body)
        self._connection.reply(unique, code, data)
        return True

    def _answer_held(self, held: Held) -> None:
        unique, node, body = held
        with self._operations.mutex:
            code, data = self.answer(p.READ, node, memoryview(body))
        self._connection.reply(unique, code, data)

    def _push(self, batch: Batch) -> None:
        page, chosen = batch
        with self._operations.mutex:
            contents = self._nodes.contents(page, chosen)
        for i, found in zip(chosen.tolist(), contents, strict=True):
            node, data = int(page.nodes[i]), found
            if data is None:
                with self._operations.mutex:
                    data = self._nodes.read(node, 0, int(page.attrs[i, 2]))
            if not self._connection.store(node, data):  # the kernel has forgotten it
                return

    def answer(self, opcode: int, node: int, body: memoryview) -> tuple[int, bytes]:
        """-> an errno or 0, and what is to be said. After damage that was healed, once more."""
        call = self._answers.get(opcode)
        if call is None:  # what the kernel need not ask, or what changes something
            return errno.EROFS if opcode in p.CHANGES else errno.ENOSYS, b""
        try:
            try:
                return 0, call(node, body)
            except OSError:
                raise
            except Exception as error:
                source = self._operations.source
                if not (isinstance(source, Healing) and source.heal(error)):
                    raise
                return 0, call(node, body)
        except OSError as error:
            if error.errno:
                return error.errno, b""
            log.exception("request %d", opcode)
        except Exception as error:
            log.error("request %d of %d: %s", opcode, node, error)
            log.debug("request %d", opcode, exc_info=True)
        return errno.EIO, b""

    def forget(self, opcode: int, node: int, body: memoryview) -> None:
        """The kernel does not hold some numbers any more."""
        if opcode == p.FORGET:
            gone = p.LONG.unpack_from(body)[0]
        elif opcode == p.BATCH_FORGET:
            gone = int(np.frombuffer(body, np.int64)[2::2].sum())
        else:
            return
        self._held = max(self._held - gone, 0)

    def _lookup(self, node: int, body: memoryview) -> bytes:
        name = bytes(body[:-1])
        if len(name) > NAME_MAX:
            raise refuse(errno.ENAMETOOLONG)
        try:
            found, attr = self._nodes.find(node, name)
        except FileNotFoundError:
            return self._missing
        valid = self._seconds
        self._held += 1
        return p.ENTRY_OUT.pack(found, 0, valid, valid, 0, 0, *attr_fields(self._shown.of(attr)))

    def _getattr(self, node: int, body: memoryview) -> bytes:
        return p.ATTR_OUT.pack(
            self._seconds, 0, 0, *attr_fields(self._shown.of(self._nodes.attr(node)))
        )

    def _list_plus(self, node: int, body: memoryview) -> bytes:
        return self._list(node, body, plus=True)

    def _list_plain(self, node: int, body: memoryview) -> bytes:
        return self._list(node, body, plus=False)

    def _list(self, node: int, body: memoryview, *, plus: bool) -> bytes:
        """Entries from an offset on until there is no more room: 1 is behind `.`, 2 behind `..`."""
        offset, room = p.READ_IN.unpack_from(body)
        first = b""
        if offset < DOTS:
            first = b"".join(self._dots(node, plus)[offset:])
        page, start, stop = self._nodes.entries(node, max(offset - DOTS, 0))
        if start == stop:
            return first
        found = page.packed
        if found is None:
            found = page.packed = Entries(page, self._shown, self._seconds, 0)
        assert isinstance(found, Entries)
        ends = found.behind if plus else found.bare
        most = ends[start] + room - len(first)
        if ends[stop] > most:
            stop = bisect_right(ends, most, start + 1, stop) - 1
        if not plus:
            return first + found.plain[ends[start] : ends[stop]]
        if self._gives(offset, stop - start):
            entries = found.plus
            self._held += stop - start
        else:
            entries = found.few
            self._held += found.directories[stop] - found.directories[start]
        return first + entries[ends[start] : ends[stop]]

    def _gives(self, offset: int, count: int) -> bool:
        """Whether the kernel gets the numbers of so many more files."""
        now = time.monotonic()
        if offset < DOTS and now >= self._due:
            self._most, self._due = _most(), now + LOOK
        return self._held + count <= self._most

    def _dots(self, node: int, plus: bool) -> tuple[bytes, bytes]:
        head, kind = NO_ENTRY if plus else b"", stat.S_IFDIR >> 12
        here, above = self._nodes.ids(node)
        return (
            head + p.DOT.pack(here, 1, 1, kind, b"."),
            head + p.DOT.pack(above, 2, 2, kind, b".."),
        )

    def _read(self, node: int, body: memoryview) -> bytes:
        offset, size = p.READ_IN.unpack_from(body)
        return self._nodes.read(node, offset, size)

    # what is rare

    def _path(self, node: int) -> str:
        return "/" + self._nodes.path(node).decode("latin-1")

    def _lseek(self, node: int, body: memoryview) -> bytes:
        offset, whence = p.LSEEK_IN.unpack_from(body)
        fields: Any = None  # nothing is opened
        return struct.pack("=q", self._operations.lseek(self._path(node), offset, whence, fields))


def _most() -> int:
    """How many numbers the kernel may have of files that are only listed."""
    with Path("/proc/meminfo").open("rb") as file:
        free = next((line for line in file if line.startswith(b"MemAvailable:")), b" 0")
    return max(int(free.split()[1]) * 1024 // SHARE // HELD, LEAST)
