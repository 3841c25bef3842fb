"""Operations on what a file is, beside its name and its content: attributes, also extended ones."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from typing import Final

from winkmount.guard import change, operation, refuse
from winkmount.paths import NAME_MAX, FileInfo, Stat, stat_fields
from winkmount.session import Session
from winkmount.source import Attr

_UTIME_NOW: Final = (1 << 30) - 1  # linux/stat.h, in the place of nanoseconds, with 0 seconds
_UTIME_OMIT: Final = (1 << 30) - 2
_XATTR_CREATE: Final = 1
_XATTR_REPLACE: Final = 2
_XATTR_SPACES: Final = (b"user.", b"trusted.")


class Attributes(Session):
    """stat and its like, and extended attributes."""

    @operation
    def look(self, path: str | None, fi: FileInfo | None = None) -> tuple[Attr, int]:
        """-> the attributes of a file, and its number of links."""
        made, self._made = self._made, None
        if made is not None and fi is not None and fi.fh == made.id:
            return made, 1  # libfuse asks for it at once, in the same request
        attr = self.attr(path, None if self.caching.fixed else fi)
        return attr, 0 if attr.id in self.hidden.ids.values() else 1

    def getattr(self, path: str | None, fi: FileInfo | None = None) -> Stat:
        attr, links = self.look(path, fi)
        return stat_fields(attr) | {"st_nlink": links}

    @operation
    def access(self, path: str, mode: int) -> int:
        """Not asked for under default_permissions. Whoever may come here may read and write; a
        program is what has an x."""
        attr = self.attr(path)
        if mode & os.X_OK and stat.S_ISREG(attr.mode) and not attr.mode & 0o111:
            raise refuse(errno.EACCES)
        if mode & os.W_OK and not self.source.writable:
            raise refuse(errno.EROFS)
        return 0

    @operation
    def readlink(self, path: str) -> str:
        return self.source.readlink(self.attr(path).id).decode("latin-1")

    @operation
    def statfs(self, path: str) -> dict[str, int]:
        return {"f_namemax": NAME_MAX, **self.source.statfs()}

    @change
    def chmod(self, path: str | None, mode: int, fi: FileInfo | None = None) -> int:
        """By a handle it comes with an ftruncate that takes a set-user-ID bit away."""
        id = self.attr(path, fi).id
        self.source.chmod(id, stat.S_IMODE(mode))
        self.groups.pop(id, None)
        return 0

    @change
    def chown(self, path: str, uid: int, gid: int) -> int:
        id = self.attr(path).id
        self.source.chown(id, uid, gid)
        self.groups.pop(id, None)
        return 0

    @change
    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        """Access times are not kept."""
        mtime = _UTIME_NOW if times is None else times[1]
        if mtime == _UTIME_OMIT:
            return 0
        id, now = self.settled(path), time.time_ns()  # what waits would move the time again
        self.source.utime(id, now if mtime == _UTIME_NOW else mtime, now)
        return 0

    # extended attributes

    @operation
    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        raw = name.encode("latin-1")
        if name.startswith(self._facts):
            fact = self._fact(path, name.removeprefix(self._facts))
            if fact is not None:
                return fact.encode()
        elif raw.startswith(_XATTR_SPACES):
            value = self.source.xattrs(self.settled(path)).get(raw)
            if value is not None:
                return value
        elif raw.startswith(b"system."):
            raise refuse(errno.EOPNOTSUPP)  # also ACLs: nobody would enforce them
        raise refuse(errno.ENODATA)

    def _fact(self, path: str, name: str) -> str | None:
        """Read-only attributes; not listed, or `cp -a` and `rsync -X` would want to copy them."""
        if path == "/" and name == "pid":
            return str(os.getpid())
        if path == "/" and name == "status":
            return json.dumps(self._status())
        return self.source.facts(self.settled(path)).get(name)

    def _status(self) -> dict[str, object]:
        waiting = {"open_files": len(self.opened), "waiting_bytes": self.opened.waiting}
        known = {**self.source.status(), "pid": os.getpid(), "since": self._since, **waiting}
        return known | ({"failed": self.failed} if self.failed else {})

    @operation
    def listxattr(self, path: str) -> list[str]:
        return [name.decode("latin-1") for name in self.source.xattrs(self.attr(path).id)]

    @change
    def setxattr(self, path: str, name: str, value: bytes, options: int, position: int = 0) -> int:
        raw = name.encode("latin-1")
        if not raw.startswith(_XATTR_SPACES) or name.startswith(self._facts):
            raise refuse(errno.EOPNOTSUPP)
        id = self.settled(path)
        xattrs = dict(self.source.xattrs(id))
        if options & _XATTR_CREATE and raw in xattrs:
            raise refuse(errno.EEXIST)
        if options & _XATTR_REPLACE and raw not in xattrs:
            raise refuse(errno.ENODATA)
        self.source.set_xattrs(id, xattrs | {raw: value})
        return 0

    @change
    def removexattr(self, path: str, name: str) -> int:
        id = self.settled(path)
        xattrs = dict(self.source.xattrs(id))
        if xattrs.pop(name.encode("latin-1"), None) is None:
            raise refuse(errno.ENODATA)
        self.source.set_xattrs(id, xattrs)
        return 0
