"""What can be done with any store that has a `Reader`: info, verify, a read-only mount.

A store with many files has forms of its own: these read the names of all files into memory, save
those of a store of records.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from winkformats.errors import CorruptError
from winkfs.container.ondisk.inode import FileType
from winkfs.container.verify import Report
from winkfs.errors import NoSuchFile, Refusal
from winkfs.names import to_bytes
from winkfs.reader import Problem, Reader
from winkfs.registry import kind_of, open_silently
from winkfs.stores.recordmount import RecordSource
from winkfs.stores.records import Records, batches
from winkmount.source import Attr, DirEntry, ReadOnlySource

if TYPE_CHECKING:
    from winkmount.options import Options
    from winkmount.source import Source


def info(path: str) -> dict[str, Any]:
    """-> how many files there are, and their bytes; the facts of a store of records.

    cost  a scan, save of a store of records
    """
    with open_silently(path) as store:
        record = {"base": path, "kind": kind_of(path)[0].name}
        if isinstance(store, Records):
            facts = {"records": len(store), **store.stats()}
            return record | facts | {"problems": store.problems}
        sizes = [entry.size for entry in store.scan()]
        return record | {"files": len(sizes), "bytes": sum(sizes), "problems": store.problems}


def verify(path: str, progress: Callable[[int], None] | None = None) -> Report:
    """Read every file once. Memory: the largest file."""
    report = Report()

    def damaged(error: CorruptError) -> None:
        report.add(str(error))

    with open_silently(path) as store:
        for name, told, content in _contents(store, damaged):
            report.files += 1
            if isinstance(content, Exception):
                report.add(f"{path}: {name}: {content}")
                continue
            size = len(content)
            report.bytes += size
            if size != told:
                report.add(f"{path}: {name}: {size} bytes, {told} are told")
            if progress is not None:
                progress(size)
        for problem in store.problems:
            report.add(problem)
    return report


def _contents(store: Reader, damaged: Problem) -> Iterator[tuple[str, int, bytes | Exception]]:
    """Name and size of each file, and its content, or what is wrong with it."""
    if isinstance(store, Records):
        for some in batches(store.rows()):
            for row, content in store.contents(some):
                yield row.id, row.size, content
        return
    for entry in store.scan(problem=damaged):
        try:
            yield entry.name, entry.size, entry.read()
        except (OSError, ValueError) as error:  # FormatError is a ValueError
            yield entry.name, entry.size, error


def mount(path: str, options: Options) -> Source:
    """What `winkfs mount` serves. Raises Refusal for an option that it does not have."""
    for name, given in (("timedir", options.timedir), ("as_of", bool(options.as_of))):
        if given:
            raise Refusal(f"{name} is not for a {kind_of(path)[0].name}", path)
    store = open_silently(path)
    return RecordSource(store) if isinstance(store, Records) else ReaderSource(store)


class ReaderSource(ReadOnlySource):
    """The files of a store as of the mount. Memory: 1 KB a file."""

    root = 1

    def __init__(self, store: Reader) -> None:
        """Raises CorruptError, OSError."""
        self._store = store
        files = {to_bytes(entry.name).strip(b"/"): entry for entry in store.scan()}
        self._below: dict[bytes, list[bytes]] = {b"": []}  # directory -> names in it
        self._paths = [b"", b""]  # by id; none has id 0
        self._ids = {b"": self.root}
        self._handles: dict[int, bytes] = {}
        for path in sorted(files):
            self._add(path, files[path].ftype == FileType.DIR)
        # A file whose name is also that of a directory cannot be shown.
        self._files = {path: entry for path, entry in files.items() if path not in self._below}
        folder = os.stat(store.base)
        self._owner = folder.st_mtime_ns, folder.st_uid, folder.st_gid

    def _add(self, path: bytes, is_directory: bool) -> None:
        if is_directory:
            self._below.setdefault(path, [])
        while path not in self._ids:
            self._ids[path] = len(self._paths)
            self._paths.append(path)
            parent, _, name = path.rpartition(b"/")
            self._below.setdefault(parent, []).append(name)
            path = parent

    # names

    def lookup(self, parent: int, name: bytes) -> Attr:
        above = self._paths[parent]
        path = above + b"/" + name if above else name
        if path not in self._ids:
            raise NoSuchFile("no such file", os.fsdecode(path))
        return self.stat(self._ids[path])

    def opendir(self, directory: int) -> int:
        handle = len(self._handles) + 1
        while handle in self._handles:
            handle += 1
        self._handles[handle] = self._paths[directory]
        return handle

    def readdir(self, handle: int, offset: int) -> Iterator[DirEntry]:
        directory = self._handles[handle]
        parent = self._ids[directory]
        names = self._below[directory]
        for number in range(offset, len(names)):
            yield DirEntry(names[number], self.lookup(parent, names[number]), number + 1)

    def releasedir(self, handle: int) -> None:
        del self._handles[handle]

    # attributes

    def stat(self, id: int) -> Attr:
        path = self._paths[id]
        if path in self._below:
            mtime_ns, uid, gid = self._owner
            return Attr(id, stat.S_IFDIR | 0o755, 0, mtime_ns, uid, gid)
        entry = self._files[path]
        kind = stat.S_IFLNK if entry.ftype == FileType.LINK else stat.S_IFREG
        mode, times = kind | entry.mode, (entry.mtime_ns, entry.uid, entry.gid)
        return Attr(id, mode, entry.size, *times, entry.ctime_ns)

    def readlink(self, id: int) -> bytes:
        return self._store.read(self._files[self._paths[id]].name)

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        return {}

    def facts(self, id: int) -> Mapping[str, str]:
        return {}

    # content

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        """The store is open already."""

    def release(self, id: int) -> None:
        """As `open`."""

    def read(self, id: int, offset: int, size: int) -> bytes:
        entry = self._files[self._paths[id]]
        return self._store.read(entry.name, offset, max(min(size, entry.size - offset), 0))

    def seek(self, id: int, offset: int, *, hole: bool) -> int:
        size = self.stat(id).size
        if not 0 <= offset < size:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return size if hole else offset

    # the whole

    def status(self) -> Mapping[str, object]:
        return {"base": self._store.base, "files": len(self._files)}

    def statfs(self) -> Mapping[str, int]:
        size = sum(entry.size for entry in self._files.values())
        blocks = -(-size // 4096)
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": blocks, "f_bfree": 0,
                "f_bavail": 0, "f_files": len(self._paths), "f_namemax": 255}  # fmt: skip

    def close(self) -> None:
        self._store.close()
