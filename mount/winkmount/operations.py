"""The file system operations, written to fusepy's interface, over any Source.

Both bindings call the methods below by name with raw_fi (so `fi` carries flags and the handle) and
are told that paths are Latin-1: each byte is one character, so any name passes through both. Times
are nanoseconds (use_ns). All methods run one at a time under one lock.

libfuse answers an unlink of an open file by a rename to `.fuse_hidden...`, see `hidden`. Here the
name goes from the Source and the file lives on through its id. So no hidden file is ever listed,
kept, or in the way of rmdir.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from winkmount.attributes import Attributes
from winkmount.contents import Contents
from winkmount.guard import change, operation, refuse, waiting
from winkmount.hidden import Hidden
from winkmount.listing import Listing
from winkmount.paths import Stat, stat_fields
from winkmount.source import DirEntry

RENAME_NOREPLACE: Final = 1
PLUS: Final = 1 << 15  # entries of a listing with attributes: 1.5 KB each until the kernel forgets
PLUS_MEMORY: Final = 160 << 20  # bytes of the server's own up to which they do
LOOK: Final = 64  # directories opened between two looks at that

Take = Callable[[list[DirEntry], bool], int]
"""Gets entries, and whether the kernel shall have their attributes, too -> how many it took."""


class Operations(Attributes, Contents):
    """What libfuse calls, all of it: with directories and names, which are here. See Session."""

    use_ns = True
    flag_utime_omit_ok = 1  # libfuse 2: else it drops a utimensat with UTIME_OMIT
    _plus = PLUS  # as of the last look at the memory
    _last_listing = 0

    # directories

    @operation
    def opendir(self, path: str) -> int:
        listing = Listing(self.source, self.directory(path))
        if self._last_listing % LOOK == 0:
            self._plus = PLUS if own_memory() < PLUS_MEMORY else 0
        self._last_listing += 1
        self.listings[self._last_listing] = listing
        return self._last_listing

    @operation
    def fill(self, fh: int, offset: int, take: Take) -> int:
        """List from `offset` on until there is no more room."""
        listing, start = self.listings[fh], offset
        try:
            while entries := self._next(listing, offset):
                taken = take(entries, listing.given < self._plus)
                offset = listing.took(taken)
                if taken < len(entries):
                    break
        except Exception:
            if offset == start:  # else the next request meets it again, behind what it has now
                raise
        return 0

    def _next(self, listing: Listing, offset: int) -> list[DirEntry]:
        entries = listing.next(offset, self.version)
        return list(map(self._shown, entries)) if self.opened.waiting else entries

    def _shown(self, entry: DirEntry) -> DirEntry:
        opened = self.opened.get(entry.attr.id)
        return entry if opened is None else entry._replace(attr=opened.shown(entry.attr))

    @operation
    def readdir(self, path: str | None, fh: int) -> list[tuple[str, Stat, int]]:
        """All at once, as libfuse 2 has it. libfuse 3: see the binding."""
        listing, offset, found = self.listings[fh], 0, []
        while entries := self._next(listing, offset):
            found += [(e.name.decode("latin-1"), stat_fields(e.attr), 0) for e in entries]
            offset = listing.took(len(entries))
        return found

    @operation
    def releasedir(self, path: str | None, fh: int) -> int:
        self.listings.pop(fh).close()
        return 0

    @waiting
    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> int:
        if self.source.writable:
            self.beside(self.sync)
        return 0

    @change
    def mkdir(self, path: str, mode: int) -> int:
        parent, name = self.split(path)
        uid, gid = self.owner(parent)
        bits = stat.S_IMODE(mode) | (0 if self.handed_on(parent) is None else stat.S_ISGID)
        self.source.mkdir(parent, name, bits, uid, gid)
        return 0

    @change
    def rmdir(self, path: str) -> int:
        self.source.rmdir(*self.split(path))
        self.dirs.pop(path, None)
        self.groups.clear()
        return 0

    # names

    @change
    def symlink(self, path: str, target: str) -> int:
        """path: the new link, target: where it points (both bindings call in this order)."""
        parent, name = self.split(path)
        self.source.symlink(parent, name, target.encode("latin-1"), *self.owner(parent))
        return 0

    @change
    def link(self, path: str, target: str) -> int:
        raise refuse(errno.EPERM)  # one file, one name

    @change
    def mknod(self, path: str, mode: int, device: int) -> int:
        if not stat.S_ISREG(mode):
            raise refuse(errno.EPERM)
        parent, name = self.split(path)
        attr = self.source.create(parent, name, stat.S_IMODE(mode), *self.owner(parent))
        self.source.open(attr.id, write=True, truncate=False)
        self.source.release(attr.id)  # a file enters some Sources when it is closed
        return 0

    @change
    def unlink(self, path: str) -> int:
        if path in self.hidden.names:
            return 0  # it has not lost its name after all
        if self.hidden.ids.pop(path, None) is None:
            self._unlink(path)
        return 0

    @change
    def rename(self, old: str, new: str, flags: int = 0) -> int:
        if flags & ~RENAME_NOREPLACE:
            raise refuse(errno.EINVAL)  # no exchange, no whiteout
        if self.hidden.waiting is not None:
            if new == self.hidden.name(self.hidden.waiting):
                self.hidden.waiting = None
            else:
                self.carry_out()
        parent, name = self.split(old)
        if Hidden.is_hidden(new):
            id = self.source.lookup(parent, name).id
            if id in self.opened:
                self.opened[id].pass_on()  # while the file has its place, there is room for it
                self.source.promise_unlink(id)
                self.hidden.hide(old, new, id)
                return 0
        new_parent, new_name = self.split(new)
        if flags & RENAME_NOREPLACE and self._exists(new_parent, new_name):
            raise refuse(errno.EEXIST)
        self.source.rename(parent, name, new_parent, new_name)
        self.dirs.clear()  # paths below a moved directory
        self.groups.clear()
        if self.hidden.names or self.hidden.ids:
            self.hidden.removed(new, self.opened)
            self.hidden.moved(old, new)
        return 0

    def _exists(self, parent: int, name: bytes) -> bool:
        try:
            self.source.lookup(parent, name)
        except FileNotFoundError:
            return False
        return True


def own_memory() -> int:
    """Bytes of memory that this process has for itself."""
    fields = Path("/proc/self/statm").read_bytes().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
