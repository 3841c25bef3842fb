"""ContainerView: the looking half of a container as a mount's Source."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Final

from winkfs.container import Container
from winkfs.entry import to_str
from winkfs.errors import NoSuchFile
from winkfs.nametree import Directory, NameTree
from winkfs.spool import Spool
from winkmount.source import Attr, DirEntry

log = logging.getLogger("winkfs.mount")

RESERVE: Final = 8 << 20  # bytes of the disk kept free, so that files can be removed and synced


class ContainerView:
    """The names, attributes and contents of a container, and of files only a mount knows."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self.writable = container.writable
        self._tree = NameTree(container.scan())
        for line in self._tree.summary():
            log.warning("%s", line)
        self.root = self._tree.root.id
        data = os.stat(container.base + ".data")
        self._owner = data.st_uid, data.st_gid
        self._started_ns = data.st_mtime_ns
        self._keeps_attrs = container.superblock.get("ATTRS") == 1
        self._root_mode = 0o755
        self._users: dict[int, int] = {}  # id -> how often it is open
        self._spools: dict[int, Spool] = {}

    def lookup(self, parent: int, name: bytes) -> Attr:
        _, id = self._tree.find(parent, name)
        if id is None:
            raise NoSuchFile("no such file", to_str(name))
        return self.stat(id)

    def stat(self, id: int) -> Attr:
        if self._tree.is_directory(id):
            return self._stat_directory(self._tree.directory(id))
        spool = self._spools.get(id)
        if spool is not None:
            return Attr(
                id, stat.S_IFREG | spool.mode, spool.size, spool.shown_ns, spool.uid, spool.gid
            )
        found = self._container.stat(self._tree.name_of(id))
        kind = stat.S_IFLNK if id in self._tree.links else stat.S_IFREG
        mode = kind | stat.S_IMODE(found.mode)
        return Attr(id, mode, found.size, found.mtime_ns, found.uid, found.gid)

    def _stat_directory(self, directory: Directory) -> Attr:
        mode, (uid, gid), mtime_ns = 0o755, self._owner, self._started_ns
        if directory.real:
            found = self._container.stat(directory.path())
            mode, uid, gid, mtime_ns = found.mode, found.uid, found.gid, found.mtime_ns
        elif directory.parent is None:
            mode = self._root_mode
        return Attr(
            directory.id, stat.S_IFDIR | stat.S_IMODE(mode), 0,
            directory.mtime_ns or mtime_ns, uid, gid,
        )  # fmt: skip

    def readdir(self, directory: int) -> Iterator[DirEntry]:
        found, links = self._tree.directory(directory), self._tree.links
        for name, below in list(found.dirs.items()):
            yield DirEntry(name, below.id, stat.S_IFDIR)
        for name, id in list(found.files.items()):
            yield DirEntry(name, id, stat.S_IFLNK if id in links else stat.S_IFREG)

    def parent(self, directory: int) -> int:
        above = self._tree.directory(directory).parent
        return directory if above is None else above.id

    def readlink(self, id: int) -> bytes:
        return self._container.read(self._tree.name_of(id))

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        if self._tree.is_directory(id):
            directory = self._tree.directory(id)
            return self._container.getxattrs(directory.path()) if directory.real else {}
        if id in self._spools:
            return {}
        return self._container.getxattrs(self._tree.name_of(id))

    def _disk(self) -> os.statvfs_result:
        return os.statvfs(os.path.dirname(self._container.base) or ".")

    def _need_room(self, size: int) -> None:
        """Refuse before the container meets the end of the disk in the middle of an entry."""
        disk = self._disk()
        if disk.f_bavail * disk.f_frsize < size + RESERVE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def statfs(self) -> Mapping[str, int]:
        disk = self._disk()
        fields = ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail")
        return {f"f_{field}": getattr(disk, f"f_{field}") for field in fields}

    def read(self, id: int, offset: int, size: int) -> bytes:
        spool = self._spools.get(id)
        if spool is not None:
            return spool.read(offset, size)
        return self._container.read(self._tree.name_of(id), offset, size)
