"""Directories as libfuse reads them: any number of entries at a time, from any offset.

Offset 1 is behind `.`, 2 behind `..`, and o + 2 behind the entry to which the Source gave o. One
open directory costs one iterator, however many names it has.

From what the kernel names, paths and handles, to the ids of the Source.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final, Protocol

from winkmount.guard import refuse
from winkmount.openfile import Hidden, OpenFile, OpenFiles
from winkmount.source import Attr, DirEntry, Source

CHUNK: Final = 256  # entries: about what one request has room for
DOTS: Final = 2  # what our offsets are ahead of those of the Source


class Listing:
    """One open directory."""

    def __init__(self, source: Source, directory: int) -> None:
        self._source = source
        here = Attr(directory, stat.S_IFDIR | 0o755, 0, 0, 0, 0)
        above = here._replace(id=source.parent(directory))
        self._dots = [DirEntry(b".", here, 1 - DOTS), DirEntry(b"..", above, 2 - DOTS)]
        self._handle = source.opendir(directory)
        self._entries: Iterator[DirEntry] = iter(())
        self._next: list[DirEntry] = []
        self._at = self._version = -1  # the offset at which `_next` goes on, and as of when
        self.given = 0  # entries handed out so far

    def next(self, offset: int, version: int) -> list[DirEntry]:
        """Entries from an offset on, none at the end. They come again until they are `took`.

        version     grows with each change of what is shown
        """
        if (offset, version) != (self._at, self._version):
            self._at, self._version = offset, version
            behind = self._source.readdir(self._handle, max(offset - DOTS, 0))
            self._next, self._entries = [], chain(self._dots[offset:], behind)
        if not self._next:
            self._next = list(islice(self._entries, CHUNK))
        return self._next

    def took(self, count: int) -> int:
        """So many of the last entries are used -> the offset behind them."""
        if count:
            self._at = self._next[count - 1].offset + DOTS
            self._next = self._next[count:]
            self.given += count
        return self._at

    def close(self) -> None:
        self._entries = iter(())
        self._source.releasedir(self._handle)


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
