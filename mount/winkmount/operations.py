"""The file system operations, written to fusepy's interface, over any Source.

Both bindings call the methods below by name with raw_fi (so `fi` carries flags and the handle) and
are told that paths are Latin-1: each byte is one character, so any name passes through both. Times
are nanoseconds (use_ns). All methods run one at a time under one lock.

libfuse answers an unlink of an open file by a rename to `.fuse_hidden...`. `rename` takes that for
what it means: the name goes from the Source at once, the file lives on through its id, and the
hidden path is known only here. So no hidden file is ever listed, kept, or in the way of rmdir.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from winkmount.guard import change, operation, refuse
from winkmount.openfile import GATHER, OpenFile
from winkmount.paths import NAME_MAX, FileInfo, Paths, Stat, stat_fields
from winkmount.source import Source

log = logging.getLogger("winkmount")

ALL_WAITING: Final = 64 << 20  # bytes held back over all open files
_HIDDEN: Final = re.compile(r"/\.fuse_hidden[0-9a-f]{16}\Z")
_UTIME_NOW: Final = (1 << 30) - 1  # linux/stat.h, in the place of nanoseconds, with 0 seconds
_UTIME_OMIT: Final = (1 << 30) - 2
RENAME_NOREPLACE: Final = 1
_XATTR_CREATE: Final = 1
_XATTR_REPLACE: Final = 2
_XATTR_SPACES: Final = (b"user.", b"trusted.")


class Operations(Paths):
    """What libfuse calls.

    source      what is shown
    name        the kind of mount; `user.NAME.pid` of the root is the server's process id
    context     -> (uid, gid, pid) of the caller; set by the binding
    on_start    called once when the kernel has the mount
    """

    use_ns = True
    # libfuse 2 drops a utimensat with UTIME_OMIT without the one, and needs a path to read an
    # unlinked file without the other
    flag_utime_omit_ok = 1
    flag_nullpath_ok = 1

    def __init__(self, source: Source, name: str, on_start: Callable[[], None] | None = None):
        super().__init__(source)
        self.mutex = threading.RLock()  # not `lock`: libfuse has an operation of that name
        self.changed = threading.Event()  # something the next sync has to make durable
        self.started = False  # the kernel has, or had, the mount
        self.context: Callable[[], tuple[int, int, int]] = lambda: (os.getuid(), os.getgid(), 0)
        self._on_start = on_start
        self._pid_xattr = f"user.{name}.pid"

    # start and end

    def init(self, path: str) -> None:
        """libfuse 2: the kernel has the mount."""
        self.init_with_config(None, None)

    def init_with_config(self, connection: Any, config: Any) -> None:
        """libfuse 3: the same, with its settings."""
        if config is not None:
            config.nullpath_ok = 1  # read, write and the like come with the handle only
        self.started = True
        if self._on_start is not None:
            self._on_start()

    def sync(self) -> None:
        """Everything written so far is on the disk. Raises OSError. From any thread."""
        self.changed.clear()
        try:
            with self.mutex:
                for file in self.opened.values():
                    file.pass_on()
                self.source.sync()
        except BaseException:
            self.changed.set()
            raise

    def close(self) -> None:
        """After the mount is gone: files that are still open are kept as they stand."""
        with self.mutex:
            for file in self.opened.values():
                file.pass_on()
        self.source.close()

    # attributes

    @operation
    def getattr(self, path: str | None, fi: FileInfo | None = None) -> Stat:
        found = stat_fields(self.attr(path, fi))
        if path in self.hidden:
            found["st_nlink"] = 0
        return found

    @operation
    def readlink(self, path: str) -> str:
        return self.source.readlink(self.attr(path).id).decode("latin-1")

    @operation
    def statfs(self, path: str) -> dict[str, int]:
        return {"f_namemax": NAME_MAX, **self.source.statfs()}

    @change
    def chmod(self, path: str, mode: int) -> int:
        self.source.chmod(self.attr(path).id, stat.S_IMODE(mode))
        return 0

    @change
    def chown(self, path: str, uid: int, gid: int) -> int:
        self.source.chown(self.attr(path).id, uid, gid)
        return 0

    @change
    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        """Access times are not kept."""
        mtime = _UTIME_NOW if times is None else times[1]
        if mtime == _UTIME_OMIT:
            return 0
        id = self.attr(path).id  # passes on what waits: a later write would move the time again
        self.source.utime(id, time.time_ns() if mtime == _UTIME_NOW else mtime)
        return 0

    # extended attributes

    @operation
    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        raw = name.encode("latin-1")
        if raw.startswith(_XATTR_SPACES):
            if name == self._pid_xattr and path == "/":
                return b"%d" % os.getpid()
            value = self.source.xattrs(self.attr(path).id).get(raw)
            if value is not None:
                return value
        elif raw.startswith(b"system."):
            raise refuse(errno.EOPNOTSUPP)  # also ACLs: nobody would enforce them
        raise refuse(errno.ENODATA)

    @operation
    def listxattr(self, path: str) -> list[str]:
        return [name.decode("latin-1") for name in self.source.xattrs(self.attr(path).id)]

    @change
    def setxattr(self, path: str, name: str, value: bytes, options: int, position: int = 0) -> int:
        raw = name.encode("latin-1")
        if not raw.startswith(_XATTR_SPACES) or name == self._pid_xattr:
            raise refuse(errno.EOPNOTSUPP)
        id = self.attr(path).id
        xattrs = dict(self.source.xattrs(id))
        if options & _XATTR_CREATE and raw in xattrs:
            raise refuse(errno.EEXIST)
        if options & _XATTR_REPLACE and raw not in xattrs:
            raise refuse(errno.ENODATA)
        self.source.set_xattrs(id, xattrs | {raw: value})
        return 0

    @change
    def removexattr(self, path: str, name: str) -> int:
        id = self.attr(path).id
        xattrs = dict(self.source.xattrs(id))
        if xattrs.pop(name.encode("latin-1"), None) is None:
            raise refuse(errno.ENODATA)
        self.source.set_xattrs(id, xattrs)
        return 0

    # directories

    @operation
    def opendir(self, path: str) -> int:
        return self.directory(path)

    @operation
    def readdir(self, path: str | None, fh: int) -> list[tuple[str, Stat, int]]:
        return list(self._list(fh))

    def _list(self, directory: int) -> Iterator[tuple[str, Stat, int]]:
        above = self.source.parent(directory)
        for name, id in ((".", directory), ("..", above)):
            yield name, {"st_ino": id, "st_mode": stat.S_IFDIR}, 0
        for entry in self.source.readdir(directory):
            yield entry.name.decode("latin-1"), {"st_ino": entry.id, "st_mode": entry.kind}, 0

    @operation
    def releasedir(self, path: str | None, fh: int) -> int:
        return 0

    @operation
    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> int:
        if self.source.writable:
            self.sync()
        return 0

    @change
    def mkdir(self, path: str, mode: int) -> int:
        self.source.mkdir(*self.split(path), stat.S_IMODE(mode), *self.context()[:2])
        return 0

    @change
    def rmdir(self, path: str) -> int:
        self.source.rmdir(*self.split(path))
        self.dirs.pop(path, None)
        return 0

    # names

    @change
    def symlink(self, path: str, target: str) -> int:
        """path: the new link, target: where it points (both bindings call in this order)."""
        uid, gid, _ = self.context()
        self.source.symlink(*self.split(path), target.encode("latin-1"), uid, gid)
        return 0

    @change
    def link(self, path: str, target: str) -> int:
        raise refuse(errno.EPERM)  # one file, one name

    @change
    def mknod(self, path: str, mode: int, device: int) -> int:
        if not stat.S_ISREG(mode):
            raise refuse(errno.EPERM)
        attr = self.source.create(*self.split(path), stat.S_IMODE(mode), *self.context()[:2])
        self.source.open(attr.id, write=True, truncate=False)
        self.source.release(attr.id)  # a file enters some Sources when it is closed
        return 0

    @change
    def unlink(self, path: str) -> int:
        if self.hidden.pop(path, None) is None:
            self.source.unlink(*self.split(path))
        return 0

    @change
    def rename(self, old: str, new: str, flags: int = 0) -> int:
        if flags & ~RENAME_NOREPLACE:
            raise refuse(errno.EINVAL)  # no exchange, no whiteout
        parent, name = self.split(old)
        if _HIDDEN.search(new):
            id = self.source.lookup(parent, name).id
            if id in self.opened:
                self.source.unlink(parent, name)
                self.hidden[new] = id
                return 0
        new_parent, new_name = self.split(new)
        if flags & RENAME_NOREPLACE and self._exists(new_parent, new_name):
            raise refuse(errno.EEXIST)
        self.source.rename(parent, name, new_parent, new_name)
        self.dirs.clear()  # paths below a moved directory
        return 0

    def _exists(self, parent: int, name: bytes) -> bool:
        try:
            self.source.lookup(parent, name)
        except FileNotFoundError:
            return False
        return True

    # content

    @operation
    def open(self, path: str, fi: FileInfo) -> int:
        attr = self.attr(path)
        write = fi.flags & os.O_ACCMODE != os.O_RDONLY
        truncate = bool(fi.flags & os.O_TRUNC)
        if write or truncate:
            if not self.source.writable:
                raise refuse(errno.EROFS)
            if truncate:
                self.changed.set()
        self._opened(attr.id, fi, write=write, truncate=truncate)
        return 0

    @change
    def create(self, path: str, mode: int, fi: FileInfo) -> int:
        parent, name = self.split(path)
        truncate = False
        try:
            attr = self.source.create(parent, name, stat.S_IMODE(mode), *self.context()[:2])
        except FileExistsError:
            if fi.flags & os.O_EXCL:
                raise
            attr = self.attr(path)
            truncate = bool(fi.flags & os.O_TRUNC)
        self._opened(attr.id, fi, write=True, truncate=truncate)
        return 0

    def _opened(self, id: int, fi: FileInfo, *, write: bool, truncate: bool) -> None:
        self.source.open(id, write=write, truncate=truncate)
        file = self.opened.get(id)
        if file is None:
            file = self.opened[id] = OpenFile(self.source, id)
        file.users += 1
        fi.fh = id

    @operation
    def read(self, path: str | None, size: int, offset: int, fi: FileInfo) -> bytes:
        return self.file(fi).read(offset, size)

    @change
    def write(self, path: str | None, data: bytes, offset: int, fi: FileInfo) -> int:
        file = self.file(fi)
        file.write(offset, data)
        if file.waiting and len(self.opened) * GATHER > ALL_WAITING:
            self._limit_waiting()
        return len(data)

    def _limit_waiting(self) -> None:
        if sum(file.waiting for file in self.opened.values()) > ALL_WAITING:
            for file in self.opened.values():
                file.pass_on()

    @change
    def truncate(self, path: str | None, length: int, fi: FileInfo | None = None) -> int:
        self.source.truncate(self.attr(path, fi).id, length)
        return 0

    @operation
    def flush(self, path: str | None, fi: FileInfo) -> int:
        self.source.flush(self._passed_on(fi))
        return 0

    @operation
    def fsync(self, path: str | None, datasync: int, fi: FileInfo) -> int:
        id = self._passed_on(fi)
        if self.source.writable:
            self.source.fsync(id)
        return 0

    def _passed_on(self, fi: FileInfo) -> int:
        """-> the id of a file of which the Source knows every byte."""
        file = self.file(fi)
        file.pass_on()
        file.raise_error()
        return file.id

    @operation
    def release(self, path: str | None, fi: FileInfo) -> int:
        self._release(self.file(fi))
        return 0

    def _release(self, file: OpenFile) -> None:
        """The kernel waits for no answer to a release: what goes wrong here is only logged."""
        file.pass_on()
        file.users -= 1
        if not file.users:
            del self.opened[file.id]
            self.hidden = {path: id for path, id in self.hidden.items() if id != file.id}
        try:
            self.source.release(file.id)
        except OSError as error:
            log.error("closing file %d: %s", file.id, error)
