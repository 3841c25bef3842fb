"""Direct: answers the kernel for a tree that never changes and whose files have numbers."""

from __future__ import annotations

import errno
import logging
import stat
import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from winkmount.handles import DOTS, NAME_MAX
from winkmount.kernel import protocol as p
from winkmount.kernel.ahead import Ahead, Batch, Held, Waiting
from winkmount.kernel.device import Connection
from winkmount.kernel.entries import NO_ENTRY, Entries, Giving, Shown, attr_fields, sized
from winkmount.operations import Operations
from winkmount.source import Healing, Nodes, Page, refuse

log = logging.getLogger("winkmount")


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


class Direct:
    """Answers the requests of the kernel for a tree that never changes.

    The kernel is told that nothing is opened: so it lists a directory without opendir and
    releasedir, and what it has listed once it does not ask for again as long as it has memory.

    operations  what is rare is answered by them
    """

    def __init__(
        self, operations: Operations, nodes: Nodes, shown: Shown, connection: Connection
    ) -> None:
        self._connection = connection
        self._ahead = Ahead(nodes, self._push, self._answer_held)
        self._waiting = Waiting(nodes, self._answer_held)
        self._operations, self._nodes, self._shown = operations, nodes, shown
        self._seconds = int(operations.caching.names)
        self._missing = p.ENTRY_OUT.pack(0, 0, int(operations.caching.missing), 0, 0, 0, *[0] * 16)
        self._giving = Giving()
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
        self._waiting.end()

    def rest(self) -> None:
        pass

    def idle(self) -> bool:
        return not (self._ahead.busy or self._waiting.busy)

    def request(self, opcode: int, unique: int, node: int, body: memoryview) -> bool:
        """Answer a request, or have it answered."""
        with self._operations.mutex:
            if opcode == p.READ and self._later(unique, node, body):
                return False
            code, data = self.answer(opcode, node, body)
        self._connection.reply(unique, code, data)
        return True

    def _later(self, unique: int, node: int, body: memoryview) -> bool:
        """Whether another thread answers a read."""
        offset, size = p.READ_IN.unpack_from(body)
        if offset:
            return False
        held = unique, node, bytes(body)
        self._connection.hold(unique)
        try:
            taken = self._ahead.takes(held) or self._waiting.takes(
                held, size, self._connection.caller()[2]
            )
        except Exception:  # whoever reads the next files is told
            log.debug("readahead", exc_info=True)
            taken = False
        if not taken:
            self._connection.callers.waiting.pop(unique, None)
        return taken

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
        else:
            gone = int(np.frombuffer(body, np.int64)[2::2].sum())
        self._giving.forgotten(gone)

    def _lookup(self, node: int, body: memoryview) -> bytes:
        name = bytes(body[:-1])
        if len(name) > NAME_MAX:
            raise refuse(errno.ENAMETOOLONG)
        try:
            found, attr = self._nodes.find(node, name)
        except FileNotFoundError:
            return self._missing
        valid = self._seconds
        self._giving.held += 1
        if not attr.is_dir:
            self._giving.looked_up(node)
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
            self._giving.begins()
            first = b"".join(self._dots(node, plus)[offset:])
        page, start, stop = self._nodes.entries(node, max(offset - DOTS, 0))
        if start == stop:
            return first
        found = self._packed(page)
        ends = found.behind if plus else found.bare
        most = ends[start] + room - len(first)
        if ends[stop] > most:
            stop = bisect_right(ends, most, start + 1, stop) - 1
        if not plus:
            return first + found.plain[ends[start] : ends[stop]]
        given, last = self._giving.gives(node, stop - start)
        until = (stop if last else stop - 1) if given else start
        few = found.directories
        self._giving.held += until - start + few[stop] - few[until]
        if until == stop:
            return first + found.plus[ends[start] : ends[stop]]
        if until == start:
            return first + found.few[ends[start] : ends[stop]]
        return first + found.plus[ends[start] : ends[until]] + found.few[ends[until] : ends[stop]]

    def _packed(self, page: Page) -> Entries:
        found = page.packed
        if found is None:
            found = page.packed = Entries(page, self._shown, self._seconds, 0)
        assert isinstance(found, Entries)
        return found

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
