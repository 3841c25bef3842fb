"""What the kernel's paths and handles stand for: open files and directories, and ids.

Paths     the way from a path or a handle to an id
OpenFile  an open file, and the small writes that are held back for it
Hidden    open files whose names libfuse has hidden
Listing   an open directory
Caching   what the kernel may keep
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, Protocol, Self

from winkmount.source import Attr, DirEntry, Page, Paged, Source, refuse

NAME_MAX: Final = 255  # bytes of one component
KNOWN_DIRS: Final = 10_000  # directory paths remembered with their ids
GATHER: Final = 1 << 20  # bytes held back per file before they are passed on
RUNS: Final = 256  # held back per file
ALL_WAITING: Final = 64 << 20  # bytes held back over all open files
CHUNK: Final = 256  # entries: about what one request has room for
DOTS: Final = 2  # what our offsets are ahead of those of the Source
FOREVER: Final = 3600.0  # seconds; only this process changes what it shows, through the kernel
_KERNEL: Final = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
_PATTERN: Final = re.compile(r"/\.fuse_hidden[0-9a-f]{16}\Z")
_KEPT: Final = 1000  # hidden paths of files that were not removed after all
_SOON: Final = 0.1  # seconds within which the next call comes, if it is a part of this one

Stat = dict[str, int]

log = logging.getLogger("winkmount")


class FileInfo(Protocol):
    """The part of libfuse's fuse_file_info that is used here."""

    flags: int
    fh: int
    direct_io: int
    keep_cache: int


class Paths:
    """The way from a path or a handle to an id of the Source. Paths are Latin-1.

    opened   the open files
    hidden   those whose names libfuse has hidden
    dirs     path of a directory -> its id, of the last that were looked up
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.opened = OpenFiles(source)
        self.hidden = Hidden()
        self.dirs: dict[str, int] = {}

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
        parent = self.dirs.get(above) if above else self.source.root
        if parent is None:
            parent = self.directory(above)
        return parent, last.encode("latin-1")

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

    def id(self, path: str | None, fi: FileInfo | None = None) -> int:
        return self.attr(path, fi).id

    def settled(self, path: str | None, fi: FileInfo | None = None) -> int:
        """-> the id of a file of which the Source knows every byte."""
        id = self.id(path, fi)
        opened = self.opened.get(id)
        if opened is not None:
            opened.pass_on()
        return id

    def file(self, fi: FileInfo) -> OpenFile:
        try:
            return self.opened[fi.fh]
        except KeyError:
            raise refuse(errno.EBADF) from None

    def above(self, path: str) -> int:
        """-> the id of the directory in which a directory is; of the top, its own."""
        return self.directory(path.rpartition("/")[0])

    def links(self, id: int) -> int:
        """0: the file has lost its name."""
        return 0 if id in self.hidden.ids.values() else 1

    def look_again(self) -> bool:
        """Forget ids that the Source may have forgotten -> whether there were any."""
        found = bool(self.dirs)
        self.dirs.clear()
        return found

    def gone(self, path: str) -> None:
        """What had this path was removed. `opened` may still have it."""
        self.dirs.pop(path, None)
        if self.hidden.names:
            self.hidden.removed(path, self.opened)

    def moved(self, old: str, new: str) -> None:
        """What had the path `old` has another; what had that one is gone."""
        self.dirs.clear()  # paths below a moved directory
        if self.hidden.names or self.hidden.ids:
            self.hidden.removed(new, self.opened)
            self.hidden.moved(old, new)


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


class OpenFile:
    """One open file, however many descriptors and processes have it open: its users, and the small
    writes that are held back. So all of them see the same bytes.

    What is held back are runs: a write that begins in the last run, or at its end, goes into it,
    any other begins a new one. They are passed on in this order.

    An error while bytes are passed on behind the writer's back (a broken disk; that they have room
    was promised) drops them. It is raised once, at the next write, flush or fsync of the file, as
    Linux does for its page cache.
    """

    __slots__ = (
        "_end",
        "_error",
        "_files",
        "_runs",
        "_source",
        "_written_ns",
        "fresh",
        "id",
        "mappers",
        "users",
    )

    def __init__(self, files: OpenFiles, id: int) -> None:
        self.id = id
        self.users = 0
        self.mappers = 0  # users that may write through a mapping
        self.fresh: object | None = None  # see `Making`; as long as nothing waits here
        self._files = files
        self._source = files.source
        self._runs: list[tuple[int, bytearray]] = []  # (offset, data)
        self._end = 0  # where in the file the last byte in waiting lies, plus one
        self._written_ns = 0
        self._error: OSError | None = None

    @property
    def waiting(self) -> int:
        """Bytes in waiting."""
        return sum(len(run) for _, run in self._runs)

    def write(self, offset: int, data: bytes) -> None:
        """Take `data`; it is in the Source at the latest after `pass_on`. Raises OSError."""
        if self._error is not None:
            self.raise_error()
        self.fresh, now = None, time.time_ns()
        if not self._source.gather or (len(data) >= GATHER and not self._runs):
            self._source.write(self.id, [(offset, data)], now)
            return
        start, run = self._runs[-1] if self._runs else (-1, bytearray())
        at = offset - start
        if start < 0 or not 0 <= at <= len(run):
            start, run, at = offset, bytearray(), 0
        grown = max(at + len(data) - len(run), 0)
        if grown and not self._source.promise(self.id, grown):
            self.pass_on()
            self.raise_error()
            self._source.write(self.id, [(offset, data)], now)
            return
        if not run:
            self._runs.append((start, run))
        run[at : at + len(data)] = data
        self._files.waiting += grown
        self._written_ns, self._end = now, max(self._end, offset + len(data))
        if len(run) >= GATHER or len(self._runs) > RUNS:
            self.pass_on()
            self.raise_error()
        elif self._files.waiting > ALL_WAITING:
            self._files.pass_on()

    def read(self, offset: int, size: int) -> bytes:
        """Bytes as the last write left them."""
        if self._runs:
            stop = offset + size
            if any(start < stop and offset < start + len(run) for start, run in self._runs):
                self.pass_on()
            data = self._source.read(self.id, offset, size)
            if len(data) == size or offset + len(data) >= self._end:
                return data
            self.pass_on()  # bytes in waiting lie behind the end, and zeros before them
        return self._source.read(self.id, offset, size)

    def shown(self, attr: Attr) -> Attr:
        """The attributes of the file as of its last write."""
        if not self._runs:
            return attr
        written = self._written_ns
        ctime_ns = attr.ctime_ns if attr.ctime_ns > written else 0
        return attr._replace(size=max(attr.size, self._end), mtime_ns=written, ctime_ns=ctime_ns)

    def pass_on(self) -> None:
        """Give the Source what waits. Never raises: see the class."""
        if not self._runs:
            return
        runs = [(start, bytes(run)) for start, run in self._runs]
        size = self.waiting
        self._runs, self._end = [], 0
        self._files.waiting -= size
        try:
            self._source.write(self.id, runs, self._written_ns)
        except Exception as error:
            log.error("%d bytes of file %d are lost: %s", size, self.id, error)
            self._error = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))

    def raise_error(self) -> None:
        """Report a failed `pass_on`, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error


class OpenFiles(dict[int, OpenFile]):
    """All open files by their ids. `waiting`: bytes that all of them hold back."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.waiting = 0

    def add(self, id: int) -> OpenFile:
        """One user more. The Source has the file open."""
        file = self.get(id)
        if file is None:
            file = self[id] = OpenFile(self, id)
        file.users += 1
        return file

    def remove(self, file: OpenFile) -> bool:
        """One user less -> whether it was the last."""
        file.users -= 1
        if file.users:
            return False
        del self[file.id]
        return True

    def raise_error(self) -> None:
        """Report a failed `pass_on` of any of them."""
        for file in self.values():
            file.raise_error()

    def pass_on(self) -> None:
        """Give the Source what waits in any of them."""
        if self.waiting:
            for file in self.values():
                file.pass_on()


class Hidden:
    """Open files whose names libfuse has hidden: what is behind the paths that it made up.

    libfuse answers an unlink of an open file, and a rename onto one, by a rename of it to
    `.fuse_hidden...`. Behind the first nothing else comes; behind the second the rename that was
    asked for, as the very next call. So the hidden file keeps its name in the Source until the next
    call tells which of the two it is: a rename that is refused, or a crash, takes nothing away.

    ids     of files without a name
    names   path and id of files that still have theirs; libfuse goes on with the hidden path after
            a rename was refused, also when they are opened later
    waiting the hidden path of the file of which only the next call tells what becomes of it
    """

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.names: dict[str, tuple[str, int]] = {}
        self.waiting: str | None = None
        self._since = 0.0

    @staticmethod
    def is_hidden(path: str) -> bool:
        return _PATTERN.search(path) is not None

    def hide(self, path: str, hidden: str, id: int) -> None:
        if len(self.names) >= _KEPT:
            del self.names[next(iter(self.names))]
        self.names[hidden] = path, id
        self.waiting, self._since = hidden, time.monotonic()

    @property
    def is_new(self) -> bool:
        """Whether the call that tells more may be under way."""
        return self.waiting is not None and time.monotonic() - self._since < _SOON

    def name(self, path: str) -> str:
        """The path that the Source knows."""
        return self.names[path][0] if path in self.names else path

    def removed(self, path: str, opened: Container[int]) -> None:
        """The file that had this name has none any more. opened: ids of files that live on."""
        for hidden, (name, id) in list(self.names.items()):
            if name == path:
                del self.names[hidden]
                if id in opened:
                    self.ids[hidden] = id

    def released(self, id: int) -> None:
        """It is not open any more."""
        self.ids = {path: other for path, other in self.ids.items() if other != id}

    def moved(self, old: str, new: str) -> None:
        """A file or directory has another path: libfuse's paths below it have, too."""

        def move(path: str) -> str:
            return new + path[len(old) :] if path == old or path.startswith(old + "/") else path

        self.ids = {move(path): id for path, id in self.ids.items()}
        self.names = {move(path): (move(name), id) for path, (name, id) in self.names.items()}


class Listing:
    """One open directory, as libfuse reads it: any number of entries at a time, from any offset.

    Offset 1 is behind `.`, 2 behind `..`, and o + 2 behind the entry to which the Source gave o. It
    costs one iterator, however many names it has.
    """

    def __init__(self, source: Source, directory: int, parent: int) -> None:
        """`directory`, `parent`: ids of it and of the one above."""
        self._source = source
        here = Attr(directory, stat.S_IFDIR | 0o755, 0, 0, 0, 0)
        above = here._replace(id=parent)
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

    def page(self, offset: int, version: int) -> Page | None:
        """See `Paged`, by the offsets here; not of the start."""
        if offset <= DOTS or not isinstance(self._source, Paged):
            return None
        return self._source.page(self._handle, offset - DOTS, version)

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


@dataclass(frozen=True, slots=True)
class Caching:
    """What the kernel may keep of what it was told: the rules of one mount.

    names       seconds that the kernel may believe a name and the attributes of a file
    missing     seconds that it may believe that a name is missing
    pages       whether it keeps contents; else every read and write comes here
    fixed       names and contents never change: `open` need not come here
    around      who only writes may write past the kernel's cache, where the kernel does that right
    """

    names: float = FOREVER
    missing: float = FOREVER
    pages: bool = True
    fixed: bool = False
    around: bool = False

    @classmethod
    def of(cls, source: Source, *, pages: bool, follow: bool, sync: bool = False) -> Self:
        """The rules for a Source.

        pages   as above
        follow  another process changes what is shown
        sync    the kernel asks for an fsync after each write through its cache
        """
        if follow:
            return cls(1.0, 1.0, pages)
        around = not sync and _KERNEL >= (6, 6)  # since then it keeps the pages of others true
        return cls(pages=pages, fixed=pages and not source.writable, around=around)

    def past_cache(self, attr: Attr, flags: int) -> bool:
        """Whether a file opened with these flags is read and written past the kernel's cache.

        Writes that do spare a question before each (for security.capability). The kernel then
        takes no setuid away, and does no O_SYNC.
        """
        if not self.pages:
            return True
        alone = flags & (os.O_ACCMODE | os.O_DSYNC) == os.O_WRONLY
        return self.around and alone and not attr.mode & (stat.S_ISUID | stat.S_ISGID)
