"""Directories: what the kernel asks of their entries.

Directories        what both kinds share: entries as columns, cut to what a reply has room for
OpenDirectories    directories of a Source that changes
FixedDirectories   those of a tree that never changes, which are not opened
Listing            an open directory
"""

from __future__ import annotations

import itertools
import stat
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

import numpy as np

from winkmount.kernel import protocol as p
from winkmount.kernel.entries import DOTS, NO_ENTRY, Entries, Shown
from winkmount.kernel.giving import Giving
from winkmount.kernel.names import lasting
from winkmount.kernel.nodes import BY_ID, NodeTable
from winkmount.kernel.protocol import Calls
from winkmount.served import FOREVER, Served
from winkmount.source import Attr, DirEntry, Nodes, Page, Source

ENTRIES_READ: Final = 256  # at a time: about what one request has room for
ENTRIES_AS_COLUMNS: Final = 32  # fewer are packed faster one by one


class Directories(ABC):
    """Requests for directories.

    calls   the answers: by opcode, of a number and the body of the request
    """

    def __init__(
        self, served: Served, table: NodeTable | None, giving: Giving, shown: Shown
    ) -> None:
        """`table`: None: numbers are not remembered."""
        self._served, self._source, self._giving = served, served.source, giving
        self._table, self._shown, self._valid = table, shown, lasting(served.caching.names)
        self.calls: Calls = {
            p.READDIR: self._readdir,
            p.READDIRPLUS: self._readdirplus,
            p.FSYNCDIR: self._fsyncdir,
        }

    def _readdir(self, node: int, body: memoryview) -> bytes:
        return self._list(node, body, plus=False)

    def _readdirplus(self, node: int, body: memoryview) -> bytes:
        return self._list(node, body, plus=True)

    @abstractmethod
    def _list(self, node: int, body: memoryview, *, plus: bool) -> bytes:
        """Return entries from an offset on, until there is no more room: 1 is behind `.`, 2 behind
        `..`."""

    def _fsyncdir(self, node: int, body: memoryview) -> bytes:
        """Make everything durable, without the lock."""
        if self._source.writable:
            self._served.sync()
        return b""

    def _cut(self, node: int, page: Page, start: int, stop: int, room: int, *, plus: bool) -> bytes:
        """Return those of the entries [start, stop) of a directory for which there is room, and
        note the numbers that the kernel gets."""
        if page.packed is None:
            page.packed = Entries(page, self._shown, *self._valid)
        found: Entries = page.packed
        ends = found.behind if plus else found.bare
        if ends[stop] - ends[start] > room:
            stop = bisect_right(ends, ends[start] + room, start, stop) - 1
        if not plus:
            return found.plain[ends[start] : ends[stop]]
        until = start + self._giving.gives(node, stop - start)
        if self._table is not None and until > start:
            numbers = page.nodes[start:until].tolist()
            self._table.give_listed(node, page.names[start:until], numbers)
        directories = found.directories
        self._giving.gave(until - start + directories[stop] - directories[until])
        if until == stop:
            return found.plus[ends[start] : ends[stop]]
        full = found.plus[ends[start] : ends[until]] if until > start else b""
        return full + found.few[ends[until] : ends[stop]]  # of these directories only


class OpenDirectories(Directories):
    """Requests for directories of a Source that changes."""

    def __init__(self, served: Served, table: NodeTable, giving: Giving, shown: Shown) -> None:
        super().__init__(served, table, giving, shown)
        self._nodes = table
        self._open: dict[int, Listing] = {}
        self._handles = itertools.count(1)
        caching = served.caching
        # The kernel forgets a listing at each of its own changes. To walk again takes a third.
        # Beside a file of an append-only container a directory by time may change, too.
        mine = caching.names == FOREVER and served.source.gather
        kept = caching.pages and (caching.fixed or mine)
        self._flags = (p.CACHE_DIR | p.KEEP_CACHE) * kept
        self.calls |= {p.OPENDIR: self._opendir, p.RELEASEDIR: self._releasedir}

    def _opendir(self, node: int, body: memoryview) -> bytes:
        listing, handle = Listing(self._source, *self._nodes.ids(node)), next(self._handles)
        self._open[handle] = listing
        return p.OPEN_OUT.pack(handle, self._flags)

    def _releasedir(self, node: int, body: memoryview) -> bytes:
        self._open.pop(*p.HANDLE.unpack_from(body)).close()
        return b""

    def _list(self, node: int, body: memoryview, *, plus: bool) -> bytes:
        fh, offset, room = p.READ_IN.unpack_from(body)
        listing, version = self._open[fh], self._served.version
        waiting = self._served.opened.waiting  # files are longer than the Source knows
        page = None
        if not waiting and offset > DOTS:
            page = self._source.page(listing.handle, offset - DOTS, version)
        if page is not None:
            if page.packed is None:
                page.nodes |= BY_ID
            start = bisect_right(page.offsets, offset - DOTS)
            return self._cut(node, page, start, len(page.names), room, plus=plus)
        if offset == 0:
            self._giving.begins()
        found, head = b"", p.DIRENT.size + p.ENTRY_OUT.size * plus
        try:
            while entries := listing.take(offset, version, head, room - len(found)):
                found += self._packed(node, entries, plus)
                offset = entries[-1].offset + DOTS
                if listing.waiting:
                    break
        except Exception:
            if not found:  # else the next request meets it again, behind what it has now
                raise
        return found

    def _packed(self, node: int, entries: list[DirEntry], plus: bool) -> bytes:
        numbers = self._numbers(node, entries) if plus else [0] * len(entries)
        opened = self._served.opened
        if opened.waiting:
            entries = [entry._replace(attr=opened.shown(entry.attr)) for entry in entries]
        if len(entries) >= ENTRIES_AS_COLUMNS:
            names, attrs, offsets = zip(*entries, strict=True)
            columns = np.array(attrs, np.int64)
            page = Page(list(names), np.array(numbers, np.int64), columns, offsets)
            packed = Entries(page, self._shown, *self._valid)
            return packed.plus if plus else packed.plain
        shown, (seconds, nanos), parts = self._shown, self._valid, list[bytes]()
        for number, (name, attr, offset) in zip(numbers, entries, strict=True):
            part = p.DIRENT.pack(attr.id, offset + DOTS, len(name), attr.mode >> 12) + name
            if plus:
                head = number, 0, seconds, seconds, nanos, nanos
                parts.append(p.ENTRY_OUT.pack(*head, *shown.fields(attr)))
            parts.append(part + bytes(-len(part) % 8))
        return b"".join(parts)

    def _numbers(self, node: int, entries: list[DirEntry]) -> list[int]:
        """Return the numbers of the entries that the kernel gets, 0: none."""
        files = self._giving.gives(node, len(entries))
        numbers = self._nodes.give_many(node, entries, files)
        self._giving.gave(len(numbers) - numbers.count(0))
        return numbers


class FixedDirectories(Directories):
    """Requests for directories of a tree that never changes.

    The kernel learns that nothing is opened: so it lists a directory without opendir and
    releasedir, and what it has listed once it does not ask for again as long as it has memory.
    """

    def __init__(self, served: Served, nodes: Nodes, giving: Giving, shown: Shown) -> None:
        super().__init__(served, None, giving, shown)
        self._nodes = nodes

    def _list(self, node: int, body: memoryview, *, plus: bool) -> bytes:
        _, offset, room = p.READ_IN.unpack_from(body)
        first = b""
        if offset < DOTS:
            self._giving.begins()
            first = b"".join(self._dots(node, plus)[offset:])
        page, start, stop = self._nodes.entries(node, max(offset - DOTS, 0))
        if start == stop:
            return first
        return first + self._cut(node, page, start, stop, room - len(first), plus=plus)

    def _dots(self, node: int, plus: bool) -> tuple[bytes, bytes]:
        head, kind = NO_ENTRY if plus else b"", stat.S_IFDIR >> 12
        here, above = self._nodes.ids(node)
        return (
            head + p.DOT.pack(here, 1, 1, kind, b"."),
            head + p.DOT.pack(above, 2, 2, kind, b".."),
        )


class Listing:
    """One open directory, as the kernel reads it: any number of entries at a time, from any offset.

    Offset 1 is behind `.`, 2 behind `..`, and o + 2 behind the entry to which the Source gave o. It
    costs one iterator, however many names it has.

    handle   of the Source
    waiting  entries that were read, and for which there was no room
    """

    def __init__(self, source: Source, directory: int, parent: int) -> None:
        """`directory`, `parent`: ids of it and of the one above."""
        self._source = source
        here = Attr(directory, stat.S_IFDIR | 0o755, 0, 0, 0, 0)
        above = here._replace(id=parent)
        self._dots = [DirEntry(b".", here, 1 - DOTS), DirEntry(b"..", above, 2 - DOTS)]
        self.handle = source.opendir(directory)
        self._entries: Iterator[DirEntry] = iter(())
        self.waiting: list[DirEntry] = []
        self._at = self._version = -1  # the offset at which `waiting` goes on, and as of when

    def take(self, offset: int, version: int, head: int, room: int) -> list[DirEntry]:
        """Return entries from an offset on for which there is room; none at the end.

        version  grows with each change of what is shown
        head     bytes of an entry before its name
        """
        if (offset, version) != (self._at, self._version):
            behind = self._source.readdir(self.handle, max(offset - DOTS, 0))
            self.waiting, self._entries = [], itertools.chain(self._dots[offset:], behind)
        self._at = -1  # after an error the next request begins anew
        if not self.waiting:
            self.waiting = list(itertools.islice(self._entries, ENTRIES_READ))
        sizes = (head + (len(entry.name) + 7) // 8 * 8 for entry in self.waiting)
        count = bisect_right(list(itertools.accumulate(sizes)), room)
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self._at, self._version = taken[-1].offset + DOTS if taken else offset, version
        return taken

    def close(self) -> None:
        self._entries = iter(())
        self._source.releasedir(self.handle)
