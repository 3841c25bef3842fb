"""Operations: what libfuse calls, written to fusepy's interface, over any Source.

Both bindings call the methods by name with raw_fi (so `fi` carries flags and the handle) and are
told that paths are Latin-1: each byte is one character, so any name passes through both. Times are
nanoseconds (use_ns).

libfuse answers an unlink of an open file by a rename to `.fuse_hidden...`, see `handles.Hidden`.
Here the name goes from the Source and the file lives on through its id. So no hidden file is ever
listed, kept, or in the way of rmdir.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from winkmount.guard import Durability, change, operation, waiting
from winkmount.handles import (
    KNOWN_DIRS,
    NAME_MAX,
    Caching,
    FileInfo,
    Hidden,
    Listing,
    OpenFile,
    Paths,
    Stat,
    stat_fields,
)
from winkmount.source import (
    Amending,
    Amendment,
    Attr,
    DirEntry,
    Making,
    Page,
    Source,
    amend_singly,
    refuse,
)

RENAME_NOREPLACE: Final = 1
PLUS: Final = 1 << 15  # entries of a listing with attributes: 1.5 KB each until the kernel forgets
PLUS_MEMORY: Final = 160 << 20  # bytes of the server's own up to which they do
LOOK: Final = 64  # directories opened between two looks at that
_UTIME_NOW: Final = (1 << 30) - 1  # linux/stat.h, in the place of nanoseconds, with 0 seconds
_UTIME_OMIT: Final = (1 << 30) - 2
_XATTR_CREATE: Final = 1
_XATTR_REPLACE: Final = 2
LABEL: Final = "security.selinux"  # `ls -l` asks each file for it until it hears EOPNOTSUPP
_XATTR_SPACES: Final = (b"user.", b"trusted.")
_XATTR_EMPTY: Final = (*_XATTR_SPACES, b"security.")
_XATTR_LIST: Final = 1 << 16  # bytes of the names of a file, each with a NUL: more no list holds
_FALLOC_KEEP_SIZE: Final = 1
_FALLOC_PUNCH_HOLE: Final = 2
_FALLOC_ZERO_RANGE: Final = 16

Take = Callable[[list[DirEntry], bool], int]
"""Gets entries, and whether the kernel shall have their attributes, too -> how many it took."""

log = logging.getLogger("winkmount")


class Operations:
    """One mount, from its start to its end. All methods run one at a time under one lock.

    source      what is shown
    caching     what the kernel may keep
    paths       from paths and handles to ids, `opened` and `hidden` of it: open files
    mutex       the lock
    durable     the syncs; `changed`: there is something for the next
    context     -> (uid, gid, pid) of the caller; set by the binding
    beside      how the thread that serves waits for a call; the binding may serve others meanwhile
    started     the kernel has, or had, the mount
    version     grows with each change of what is shown
    """

    use_ns = True
    flag_utime_omit_ok = 1  # libfuse 2: else it drops a utimensat with UTIME_OMIT

    def __init__(
        self,
        source: Source,
        name: str,
        on_start: Callable[[], None] | None = None,
        caching: Caching = Caching(),  # noqa: B008 # it is frozen
        paths: type[Paths] | None = None,
    ) -> None:
        """`name`: the kind of mount; `user.NAME.pid` of the root is the server's process id.
        `on_start`: called once when the kernel has the mount."""
        self.source, self.caching = source, caching
        self.paths = (paths or Paths)(source)
        self.opened, self.hidden = self.paths.opened, self.paths.hidden
        # not `lock`: libfuse has an operation of that name
        self.mutex = threading.RLock()
        self.durable = Durability(source, self.mutex)
        self.changed = self.durable.changed
        self.context: Callable[[], tuple[int, int, int]] = lambda: (os.getuid(), os.getgid(), 0)
        self.beside: Callable[[Callable[[], None]], None] = lambda call: call()
        # libfuse 2: paths only where nothing is opened; else it could not read unlinked files
        self.flag_nullpath_ok = int(not caching.fixed)
        self.started = False
        self.version = 0
        self._on_start = on_start
        self._since = time.time()
        self._facts = f"user.{name}."
        self._made: Attr | None = None  # the file that the last `create` made
        self._groups: dict[int, int | None] = {}  # id of a directory -> what `_handed_on` returned
        self._amend = (
            source.amend if isinstance(source, Amending) else partial(amend_singly, source)
        )
        self._making = source if isinstance(source, Making) else None
        self._refused: set[int] = set()  # files that may have pages of a mapping that nobody took
        self._listings: dict[int, Listing] = {}
        self._last_listing = 0
        self._plus = PLUS  # as of the last look at the memory

    # start, syncs, end

    def init(self, path: str) -> None:
        """The kernel has the mount."""
        self.started = True
        if self._on_start is not None:
            self._on_start()

    def sync(self) -> None:
        """Everything written so far is on the disk. Raises OSError. From any thread, without the
        lock: others are served while the disk is waited for."""
        self.changed.clear()
        soon = False

        def begin() -> None:
            nonlocal soon
            soon = self.hidden.is_new
            if not soon:
                self.carry_out()
            self.opened.pass_on()

        try:
            self.durable.sync(begin, None)
        finally:
            if soon or self.durable.failed:
                self.changed.set()

    def close(self) -> None:
        """After the mount is gone: files that are still open are kept as they stand."""
        with self.mutex:
            self.carry_out()
            self.opened.pass_on()
        self.source.close()
        self.opened.raise_error()

    # attributes

    @operation
    def lookup(self, path: str | None, fi: FileInfo | None = None) -> tuple[Attr, int]:
        """-> the attributes of a file, and its number of links."""
        made, self._made = self._made, None
        if made is not None and fi is not None and fi.fh == made.id:
            return made, 1  # libfuse asks for it at once, in the same request
        attr = self.paths.attr(path, None if self.caching.fixed else fi)
        return attr, self.paths.links(attr.id)

    def lacks(self, directory: int, name: bytes) -> bool:
        """Whether there is no file of a name in a directory, by its id, where that can be told in a
        third of the time of a `lookup`; False: ask that."""
        if self._making is None or len(name) > NAME_MAX:
            return False
        with self.mutex:
            try:
                return self._making.lacks(directory, name)
            except OSError:
                return False

    def getattr(self, path: str | None, fi: FileInfo | None = None) -> Stat:
        attr, links = self.lookup(path, fi)
        return stat_fields(attr) | {"st_nlink": links}

    @operation
    def access(self, path: str, mode: int) -> int:
        """Not asked for under default_permissions. Whoever may come here may read and write; a
        program is what has an x."""
        attr = self.paths.attr(path)
        if mode & os.X_OK and stat.S_ISREG(attr.mode) and not attr.mode & 0o111:
            raise refuse(errno.EACCES)
        if mode & os.W_OK and not self.source.writable:
            raise refuse(errno.EROFS)
        return 0

    @operation
    def readlink(self, path: str) -> str:
        return self.source.readlink(self.paths.attr(path).id).decode("latin-1")

    @operation
    def statfs(self, path: str) -> dict[str, int]:
        return {"f_namemax": NAME_MAX, **self.source.statfs()}

    @change
    def amend(self, path: str | None, what: Amendment, fi: FileInfo | None = None) -> Attr:
        """Change mode, owner and time -> the attributes after that."""
        id = self.paths.id(path, fi)
        opened = self.opened.get(id)
        if opened is not None and (what.is_now or what.mtime_ns is not None):
            opened.pass_on()  # what waits would move the time again
        attr = self._amend(id, what, time.time_ns())
        self._groups.pop(id, None)
        return attr if opened is None else opened.shown(attr)

    def amend_fresh(self, id: int, what: Amendment) -> Attr | None:
        """The same of a new file that is open, in a third of the time -> None: it is another.

        raises  what the Source raises
        """
        with self.mutex:
            file = self.opened.get(id)
            if file is None or file.fresh is None or self._making is None:
                return None
            self.note_change()
            attr = self._making.amend_fresh(file.fresh, what, time.time_ns())
            if attr is None:
                file.fresh = None
            return attr

    def append(self, fh: int, offset: int, data: bytes) -> bool:
        """`write` at the end of a new file, in a third of the time -> False: it is another write.

        raises  what the Source raises
        """
        with self.mutex:
            file = self.opened.get(fh)
            if file is None or file.fresh is None or self._making is None:
                return False
            self.note_change()
            done = self._making.append(file.fresh, offset, data, time.time_ns())
            if not done:
                file.fresh = None
            return done

    def note_change(self) -> None:
        """Something changes now: the next sync has to make it durable."""
        if not self.changed.is_set():
            self.changed.set()
        self.version += 1

    def chmod(self, path: str | None, mode: int, fi: FileInfo | None = None) -> int:
        """By a handle it comes with an ftruncate that takes a set-user-ID bit away."""
        self.amend(path, Amendment(mode=stat.S_IMODE(mode)), fi)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        self.amend(path, Amendment(uid=uid, gid=gid))
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        """Access times are not kept, but setting one is a change."""
        mtime = _UTIME_NOW if times is None else times[1]
        if mtime == _UTIME_NOW:
            self.amend(path, Amendment(is_now=True))
        else:
            self.amend(path, Amendment(mtime_ns=None if mtime == _UTIME_OMIT else mtime))
        return 0

    # extended attributes

    @operation
    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        raw = _xattr_name(name)
        if name.startswith(self._facts):
            fact = self._fact(path, name.removeprefix(self._facts))
            if fact is not None:
                return fact.encode()
        elif raw.startswith(_XATTR_SPACES):
            value = self.source.xattrs(self.paths.settled(path)).get(raw)
            if value is not None:
                return value
        elif raw.startswith(b"system.") or name == LABEL:
            raise refuse(errno.EOPNOTSUPP)  # also ACLs: nobody would enforce them
        raise refuse(errno.ENODATA)

    def _fact(self, path: str, name: str) -> str | None:
        """Read-only attributes; not listed, or `cp -a` and `rsync -X` would want to copy them."""
        if path == "/" and name == "pid":
            return str(os.getpid())
        if path == "/" and name == "status":
            return json.dumps(self._status())
        return self.source.facts(self.paths.settled(path)).get(name)

    def _status(self) -> dict[str, object]:
        waiting = {"open_files": len(self.opened), "waiting_bytes": self.opened.waiting}
        known = {**self.source.status(), "pid": os.getpid(), "since": self._since, **waiting}
        return known | ({"failed": self.durable.failed} if self.durable.failed else {})

    @operation
    def listxattr(self, path: str) -> list[str]:
        return [name.decode("latin-1") for name in self.source.xattrs(self.paths.attr(path).id)]

    @change
    def setxattr(self, path: str, name: str, value: bytes, options: int, position: int = 0) -> int:
        raw = _xattr_name(name)
        if not raw.startswith(_XATTR_SPACES) or name.startswith(self._facts):
            raise refuse(errno.EOPNOTSUPP)
        id = self.paths.settled(path)
        xattrs = dict(self.source.xattrs(id))
        if options & _XATTR_CREATE and raw in xattrs:
            raise refuse(errno.EEXIST)
        if options & _XATTR_REPLACE and raw not in xattrs:
            raise refuse(errno.ENODATA)
        if raw not in xattrs and sum(map(len, xattrs), len(xattrs) + len(raw)) >= _XATTR_LIST:
            raise refuse(errno.ENOSPC)
        self.source.set_xattrs(id, xattrs | {raw: value})
        return 0

    @change
    def removexattr(self, path: str, name: str) -> int:
        raw, id = _xattr_name(name), self.paths.settled(path)
        xattrs = dict(self.source.xattrs(id))
        if xattrs.pop(raw, None) is None:
            raise refuse(errno.ENODATA)
        self.source.set_xattrs(id, xattrs)
        return 0

    # open files; the handle of one is its id

    @operation
    def open(self, path: str, fi: FileInfo) -> int:
        if self.caching.fixed:
            raise refuse(errno.ENOSYS)  # the kernel does not ask again: no open, no release
        write = fi.flags & os.O_ACCMODE != os.O_RDONLY
        truncate = bool(fi.flags & os.O_TRUNC)
        attr = self.paths.attr(path)
        if write or truncate:
            if not self.source.writable or self.source.failed:
                raise refuse(errno.EROFS)
            if truncate:
                self.note_change()
                self.paths.settled(path)
        self._open(attr, fi, write=write, truncate=truncate)
        return 0

    def create(self, path: str, mode: int, fi: FileInfo) -> int:
        self._made = self.make(path, mode, fi)
        return 0

    @change
    def make(self, path: str, mode: int, fi: FileInfo) -> Attr:
        """The same as `create` -> the attributes of what is open now."""
        parent, name = self.paths.split(path)
        write = fi.flags & os.O_ACCMODE != os.O_RDONLY
        try:
            attr = self.source.create(parent, name, stat.S_IMODE(mode), *self._owner(parent))
        except FileExistsError:
            if fi.flags & os.O_EXCL:
                raise
            truncate = bool(fi.flags & os.O_TRUNC)
            self._open(self.paths.attr(path), fi, write=write, truncate=truncate)
            return self.paths.attr(path)
        file = self._open(attr, fi, write=write, truncate=False)
        if self._making is not None:
            file.fresh = self._making.fresh(attr.id)
        return attr

    def _open(self, attr: Attr, fi: FileInfo, *, write: bool, truncate: bool) -> OpenFile:
        self.source.open(attr.id, write=write, truncate=truncate)
        file = self.opened.add(attr.id)
        file.mappers += self._maps(fi)
        fi.fh = attr.id
        if self.caching.past_cache(attr, fi.flags):
            fi.direct_io = 1
        else:
            fi.keep_cache = int(attr.id not in self._refused)
            self._refused.discard(attr.id)
        return file

    @operation
    def read(self, path: str | None, size: int, offset: int, fi: FileInfo) -> bytes:
        if self.caching.fixed:  # nobody has opened it
            return self.source.read(self.paths.attr(path).id, offset, size)
        return self.paths.file(fi).read(offset, size)

    @change
    def write(self, path: str | None, data: bytes, offset: int, fi: FileInfo) -> int:
        try:
            self.paths.file(fi).write(offset, data)
        except OSError:
            self._refused.add(fi.fh)
            raise
        return len(data)

    @change
    def truncate(self, path: str | None, length: int, fi: FileInfo | None = None) -> int:
        self.source.truncate(self.paths.settled(path, fi), length)
        return 0

    @change
    def fallocate(self, path: str | None, mode: int, offset: int, size: int, fi: FileInfo) -> int:
        """Room for a range, or zeros in its place. A punched hole gives no room back to the disk:
        a container only grows."""
        id, end = self._passed_on(fi), offset + size
        held = self.source.stat(id).size
        if mode & ~(_FALLOC_KEEP_SIZE | _FALLOC_PUNCH_HOLE | _FALLOC_ZERO_RANGE):
            raise refuse(errno.EOPNOTSUPP)
        if mode & (_FALLOC_PUNCH_HOLE | _FALLOC_ZERO_RANGE):
            if offset < held:
                self.source.punch(id, offset, min(end, held) - offset)
        else:
            self.source.allocate(id, max(end - held, 0))
        if end > held and not mode & _FALLOC_KEEP_SIZE:
            self.source.truncate(id, end)
        self.source.write(id, [], time.time_ns())  # it has changed, whatever became of it
        return 0

    @operation
    def lseek(self, path: str | None, offset: int, whence: int, fi: FileInfo) -> int:
        """Data and holes. Where a file may be mapped for writing all is data: the kernel may hold
        pages that were written through a mapping and says nothing of them."""
        hole = whence == os.SEEK_HOLE
        id = self.paths.attr(path).id if self.caching.fixed else self._passed_on(fi)
        if self.caching.fixed or not self.paths.file(fi).mappers:
            return self.source.seek(id, offset, hole=hole)
        size = self.source.stat(id).size
        if not 0 <= offset < size:
            raise refuse(errno.ENXIO)
        return size if hole else offset

    @operation
    def flush(self, path: str | None, fi: FileInfo) -> int:
        if self.caching.fixed:
            raise refuse(errno.ENOSYS)
        self._passed_on(fi)
        return 0

    @waiting
    def fsync(self, path: str | None, datasync: int, fi: FileInfo) -> int:
        if self.source.writable:
            id = self._to_sync(fi)
            self.beside(lambda: self.durable.sync(_nothing, id))
        return 0

    @operation
    def _to_sync(self, fi: FileInfo) -> int:
        return self._passed_on(fi)

    def _passed_on(self, fi: FileInfo) -> int:
        """-> the id of a file of which the Source knows every byte. Raises what went wrong."""
        file = self.paths.file(fi)
        file.pass_on()
        file.raise_error()
        return file.id

    def _maps(self, fi: FileInfo) -> bool:
        """Whether a file that is open so may be mapped for writing."""
        return self.caching.pages and fi.flags & os.O_ACCMODE == os.O_RDWR

    @operation
    def release(self, path: str | None, fi: FileInfo) -> int:
        """The kernel waits for no answer: what goes wrong here is only logged."""
        file = self.paths.file(fi)
        file.pass_on()
        file.mappers -= self._maps(fi)
        if self.opened.remove(file) and self.hidden.ids:
            self.hidden.released(file.id)
        try:
            self.source.release(file.id)
        except OSError as error:
            log.error("closing file %d: %s", file.id, error)
        return 0

    # directories

    @operation
    def opendir(self, path: str) -> int:
        listing = Listing(self.source, self.paths.directory(path), self.paths.above(path))
        if self._last_listing % LOOK == 0:
            self._plus = PLUS if own_memory() < PLUS_MEMORY else 0
        self._last_listing += 1
        self._listings[self._last_listing] = listing
        return self._last_listing

    @operation
    def page(self, fh: int, offset: int) -> Page | None:
        """What to list from `offset` on as columns; None: `fill` tells."""
        if self.opened.waiting:  # files are longer than the Source knows
            return None
        return self._listings[fh].page(offset, self.version)

    @operation
    def fill(self, fh: int, offset: int, take: Take) -> int:
        """List from `offset` on until there is no more room."""
        listing, start = self._listings[fh], offset
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
        listing, offset, found = self._listings[fh], 0, []
        while entries := self._next(listing, offset):
            found += [(e.name.decode("latin-1"), stat_fields(e.attr), 0) for e in entries]
            offset = listing.took(len(entries))
        return found

    @operation
    def releasedir(self, path: str | None, fh: int) -> int:
        self._listings.pop(fh).close()
        return 0

    @waiting
    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> int:
        if self.source.writable:
            self.beside(self.sync)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self.make_directory(path, mode)
        return 0

    @change
    def make_directory(self, path: str, mode: int) -> Attr:
        """The same as `mkdir` -> its attributes."""
        parent, name = self.paths.split(path)
        uid, gid = self._owner(parent)
        bits = stat.S_IMODE(mode) | (0 if self._handed_on(parent) is None else stat.S_ISGID)
        return self.source.mkdir(parent, name, bits, uid, gid)

    @change
    def rmdir(self, path: str) -> int:
        self.source.rmdir(*self.paths.split(path))
        self.paths.gone(path)
        self._groups.clear()
        return 0

    # names

    @change
    def symlink(self, path: str, target: str) -> int:
        """path: the new link, target: where it points (both bindings call in this order)."""
        parent, name = self.paths.split(path)
        self.source.symlink(parent, name, target.encode("latin-1"), *self._owner(parent))
        return 0

    @change
    def link(self, path: str, target: str) -> int:
        raise refuse(errno.EPERM)  # one file, one name

    @change
    def mknod(self, path: str, mode: int, device: int) -> int:
        if not stat.S_ISREG(mode):
            raise refuse(errno.EPERM)
        parent, name = self.paths.split(path)
        attr = self.source.create(parent, name, stat.S_IMODE(mode), *self._owner(parent))
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
        parent, name = self.paths.split(old)
        if Hidden.is_hidden(new):
            id = self.source.lookup(parent, name).id
            if id in self.opened:
                self.opened[id].pass_on()  # while the file has its place, there is room for it
                self.source.promise_unlink(id)
                self.hidden.hide(old, new, id)
                return 0
        new_parent, new_name = self.paths.split(new)
        if flags & RENAME_NOREPLACE and self._exists(new_parent, new_name):
            raise refuse(errno.EEXIST)
        self.source.rename(parent, name, new_parent, new_name)
        self.paths.moved(old, new)
        self._groups.clear()
        return 0

    def _exists(self, parent: int, name: bytes) -> bool:
        try:
            self.source.lookup(parent, name)
        except FileNotFoundError:
            return False
        return True

    def _owner(self, directory: int) -> tuple[int, int]:
        """-> (uid, gid) of what the caller makes in a directory."""
        uid, gid, _ = self.context()
        known = directory in self._groups
        group = self._groups[directory] if known else self._handed_on(directory)
        return uid, gid if group is None else group

    def _handed_on(self, directory: int) -> int | None:
        """The group that the set-group-ID bit of a directory hands on; None: it has none."""
        if directory not in self._groups:
            if len(self._groups) >= KNOWN_DIRS:
                self._groups.clear()
            above = self.source.stat(directory)
            self._groups[directory] = above.gid if above.mode & stat.S_ISGID else None
        return self._groups[directory]

    def carry_out(self) -> None:
        """The open file that was hidden last was unlinked, since no rename to its name came."""
        hidden, self.hidden.waiting = self.hidden.waiting, None
        if hidden is None:
            return
        path, _ = self.hidden.names[hidden]
        self.note_change()
        try:
            self._unlink(path)
        except OSError as error:  # the kernel was told another thing
            log.error("not removed: %s: %s", path, error)

    def _unlink(self, path: str) -> None:
        self.source.unlink(*self.paths.split(path))
        self.paths.gone(path)


def _xattr_name(name: str) -> bytes:
    """Raises EINVAL for a name with nothing behind its kind, as every file system of Linux does."""
    raw = name.encode("latin-1")
    if raw in _XATTR_EMPTY:
        raise refuse(errno.EINVAL)
    return raw


def _nothing() -> None:
    """Nothing has to be done before a file is synced: the Source knows every byte of it."""


def own_memory() -> int:
    """Bytes of memory that this process has for itself."""
    fields = Path("/proc/self/statm").read_bytes().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
