"""From what the kernel names, paths and handles, to the ids of the Source."""

from __future__ import annotations

import errno
from typing import Final, Protocol

from winkmount.guard import refuse
from winkmount.hidden import Hidden
from winkmount.openfile import OpenFile, OpenFiles
from winkmount.source import Attr, Source

NAME_MAX: Final = 255  # bytes of one component
KNOWN_DIRS: Final = 10_000  # directory paths remembered with their ids

Stat = dict[str, int]


class FileInfo(Protocol):
    """The part of libfuse's fuse_file_info that is used here."""

    flags: int
    fh: int
    direct_io: int
    keep_cache: int


class Paths:
    """The open files, the hidden ones, and the way from a path to an id. Paths are Latin-1."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.opened = OpenFiles(source)
        self.hidden = Hidden()
        self.dirs: dict[str, int] = {}  # path of a directory -> its id

    def directory(self, path: str) -> int:
        known = self.dirs.get(path)
        if known is not None:
            return known
        if path in ("/", ""):
            return self.source.root
        attr = self.source.lookup(*self.split(path))
        if not attr.is_dir:
            raise refuse(errno.ENOTDIR)
        if len(self.dirs) >= KNOWN_DIRS:
            self.dirs.clear()
        self.dirs[path] = attr.id
        return attr.id

    def split(self, path: str) -> tuple[int, bytes]:
        """-> id of the parent directory, name."""
        above, _, last = path.rpartition("/")
        if len(last) > NAME_MAX:
            raise refuse(errno.ENAMETOOLONG)
        return self.directory(above), last.encode("latin-1")

    def attr(self, path: str | None, fi: FileInfo | None = None) -> Attr:
        """The file as of its last write."""
        if fi is not None:
            file = self.file(fi)
            return file.shown(self.source.stat(file.id))
        if path is None:
            raise refuse(errno.ESTALE)
        if path == "/":
            return self.source.stat(self.source.root)
        id = self.hidden.ids.get(path)
        if id is not None:
            found = self.source.stat(id)
        else:
            known = self.hidden.name(path) if self.hidden.names else path
            found = self.source.lookup(*self.split(known))
        opened = self.opened.get(found.id)
        return found if opened is None else opened.shown(found)

    def settled(self, path: str | None, fi: FileInfo | None = None) -> int:
        """-> the id of a file of which the Source knows every byte."""
        id = self.attr(path, fi).id
        opened = self.opened.get(id)
        if opened is not None:
            opened.pass_on()
        return id

    def file(self, fi: FileInfo) -> OpenFile:
        try:
            return self.opened[fi.fh]
        except KeyError:
            raise refuse(errno.EBADF) from None


def stat_fields(attr: Attr) -> Stat:
    return {
        "st_ino": attr.id,
        "st_mode": attr.mode,
        "st_nlink": 1,  # of a directory: how many it has is not known
        "st_size": attr.size,
        "st_blocks": -(-attr.size // 512),
        "st_blksize": 4096,
        "st_uid": attr.uid,
        "st_gid": attr.gid,
        "st_mtime": attr.mtime_ns,
        "st_ctime": attr.ctime_ns or attr.mtime_ns,
        "st_atime": attr.mtime_ns,
    }
