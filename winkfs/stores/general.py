"""Functions for any store that has a `Reader`: info, verify, a read-only mount.

They read the names of all files into memory, except for a store of records. A kind of store with
many files registers functions of its own.

A mount of a store of records shows up to FLAT_RECORDS records in the top directory. If there are
more when it is mounted, they are in subdirectories: `ab/cd/abcd...` for hexadecimal ids,
`5000-5999/5123` for numbers. A look-up of `5123` in the top directory finds that record, too. A
look-up asks the store. A listing needs the sorted ids of all records, which are collected when a
directory is first listed or looked up.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from winkfs.container.verify import Report
from winkfs.entry import FileType
from winkfs.errors import CorruptError, NoSuchFile, Refusal
from winkfs.mounting.ids import Places
from winkfs.names import OWN, length_fault, shown, to_bytes, to_str
from winkfs.reader import Problem, Reader
from winkfs.registry import kind_of, open_silently
from winkfs.stores.records import MODE, Ids, Records, Row, batches
from winkmount.options import Options
from winkmount.source import Attr, DirEntry, Source, refuse

FLAT_RECORDS: Final = 4096  # records of a directory without subdirectories, on average
LISTING_LIFETIME: Final = 10  # ids are reused for so many times the span that collecting them took
BODY_CACHE_BYTES: Final = 64 << 20  # bytes of bodies kept while they are read in parts
NAMES_AT_ONCE: Final = 256  # ids turned into names at a time
MAX_ID: Final = (1 << 63) - 1

log = logging.getLogger("winkfs.mount")


def info(path: str) -> dict[str, Any]:
    """Return the number of files and their bytes; of a store of records its `stats`.

    cost  a scan; none of a store of records
    """
    with open_silently(path) as store:
        record = {"base": path, "kind": kind_of(path)[0].name}
        if isinstance(store, Records):
            return {**record, "records": len(store), **store.stats(), "problems": store.problems}
        sizes = [entry.size for entry in store.scan()]
        return record | {"files": len(sizes), "bytes": sum(sizes), "problems": store.problems}


def verify(path: str, progress: Callable[[int], None] | None = None) -> Report:
    """Read every file once. Memory: the largest file."""
    report = Report()

    def damaged(error: CorruptError) -> None:
        report.add(str(error))

    with open_silently(path) as store:
        for name, listed, content in _contents(store, damaged):
            report.files += 1
            if isinstance(content, Exception):
                report.add(f"{path}: {name}: {content}")
                continue
            size = len(content)
            report.bytes += size
            if size != listed:
                report.add(f"{path}: {name}: {size} bytes, {listed} are listed")
            if progress is not None:
                progress(size)
        for problem in store.problems:
            report.add(problem)
    return report


def _contents(store: Reader, damaged: Problem) -> Iterator[tuple[str, int, bytes | Exception]]:
    """Yield name and size of each file, and its content or the error that reading it raised."""
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
    """Return the Source that `winkfs mount` serves. Raises Refusal for an option that it lacks."""
    for name, given in (("timedir", options.timedir), ("as_of", bool(options.as_of))):
        if given:
            raise Refusal(f"{name} is not for a {kind_of(path)[0].name}", path)
    store = open_silently(path)
    if not isinstance(store, Records):
        return ReaderSource(store)
    if options.follow and store.numbers:
        options.cache = "none"  # the kernel would cut a new version off at the size of the old one
    return RecordSource(store)


class StoreSource(Source):
    """Base of the mounts of stores, which are read-only."""

    def __init__(self, store: Reader) -> None:
        """Raises OSError."""
        self._store = store
        self._look()

    def _look(self) -> None:
        """Note time and owner of the folder, which all directories have."""
        folder = os.stat(self._store.base)
        self._owner = folder.st_mtime_ns, folder.st_uid, folder.st_gid

    def _folder(self, id: int) -> Attr:
        """Return the attributes of a directory."""
        return Attr(id, stat.S_IFDIR | 0o755, 0, *self._owner)

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        return {}

    def seek(self, id: int, offset: int, *, hole: bool) -> int:
        """Find data or a hole in a file without holes. Raises OSError (ENXIO)."""
        size = self.stat(id).size
        if not 0 <= offset < size:
            raise refuse(errno.ENXIO)
        return size if hole else offset

    def releasedir(self, handle: object) -> None:
        """Do nothing: a listing needs no release."""

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        """Do nothing: the store is open already."""

    def release(self, id: int) -> None:
        """Do nothing, as `open`."""

    def close(self) -> None:
        self._store.close()


class ReaderSource(StoreSource):
    """The files of a store as of the mount. Memory: 1 KB a file."""

    root = 1

    def __init__(self, store: Reader) -> None:
        """Raises CorruptError, OSError."""
        super().__init__(store)
        files = {shown(to_bytes(entry.name)): entry for entry in store.scan()}
        for path in [path for path in files if length_fault(path)]:
            log.warning("not shown: %s: %s", to_str(path), length_fault(path))
            del files[path]
        self._below: dict[bytes, list[bytes]] = {b"": []}  # directory -> names in it
        self._paths = [b"", b""]  # by id; id 0 is not used
        self._ids = {b"": self.root}
        for path in sorted(files):
            self._add(path, files[path].ftype == FileType.DIR)
        for path in [path for path in files if path in self._below]:
            entry = files.pop(path)
            if entry.ftype != FileType.DIR:
                files[path + OWN] = entry
                self._add(path + OWN, False)
        self._files = files

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
        return directory

    def readdir(self, directory: int, offset: int) -> Iterator[DirEntry]:
        names = self._below[self._paths[directory]]
        for number in range(offset, len(names)):
            yield DirEntry(names[number], self.lookup(directory, names[number]), number + 1)

    # attributes

    def stat(self, id: int) -> Attr:
        path = self._paths[id]
        if path in self._below:
            return self._folder(id)
        entry = self._files[path]
        kind = stat.S_IFLNK if entry.ftype == FileType.LINK else stat.S_IFREG
        mode, times = kind | entry.mode, (entry.mtime_ns, entry.uid, entry.gid)
        return Attr(id, mode, entry.size, *times, entry.ctime_ns)

    def readlink(self, id: int) -> bytes:
        return self._store.read(self._files[self._paths[id]].name)

    def facts(self, id: int) -> Mapping[str, str]:
        return {}

    # content

    def read(self, id: int, offset: int, size: int) -> bytes:
        entry = self._files[self._paths[id]]
        return self._store.read(entry.name, offset, max(min(size, entry.size - offset), 0))

    # the whole

    def status(self) -> Mapping[str, object]:
        return {"base": self._store.base, "files": len(self._files)}

    def statfs(self) -> Mapping[str, int]:
        size = sum(entry.size for entry in self._files.values())
        return _statfs(size, len(self._paths))


def _statfs(size: int, files: int) -> dict[str, int]:
    """Return the fields of statvfs(3) for a full file system."""
    return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": -(-size // 4096), "f_bfree": 0,
            "f_bavail": 0, "f_files": files, "f_namemax": 255}  # fmt: skip


# --- the mount of a store of records ---


@dataclass(slots=True)
class TextFan:
    """Directories by the first characters of hexadecimal ids, two a level."""

    levels: int
    width: ClassVar[int] = 256

    def folder(self, id: bytes, level: int) -> bytes:
        """Return the directory of an id, with `/` after each level; b"": the top directory."""
        return b"".join(id[2 * i : 2 * i + 2] + b"/" for i in range(level))

    def bounds(self, path: bytes) -> tuple[Any, Any] | None:
        """Return the first and last id that a directory may have; None if it cannot exist."""
        key, level = path.replace(b"/", b""), path.count(b"/")
        if level > self.levels or not re.fullmatch(rb"[0-9a-f]{%d}" % (2 * level), key):
            return None
        return (key, key + b"g") if self.folder(key, level) == path else None


@dataclass(slots=True)
class NumberFan:
    """Directories by ranges of numbers: of a thousand, of a million ..."""

    levels: int
    width: ClassVar[int] = 1000

    def _unit(self, level: int) -> int:
        return int(1000 ** (self.levels + 1 - level))

    def folder(self, id: bytes, level: int) -> bytes:
        """See `TextFan`."""
        starts = ((int(id) // unit * unit, unit) for unit in map(self._unit, range(1, level + 1)))
        return b"".join(b"%d-%d/" % (start, start + unit - 1) for start, unit in starts)

    def bounds(self, path: bytes) -> tuple[Any, Any] | None:
        """See `TextFan`."""
        level = path.count(b"/")
        if not path:
            return 0, MAX_ID
        found = re.search(rb"([0-9]{1,19})-[0-9]+/\Z", path)
        if found is None or level > self.levels or self.folder(found[1], level) != path:
            return None
        low = int(found[1])
        return (low, min(low + self._unit(level) - 1, MAX_ID)) if low <= MAX_ID else None


def levels_of(count: int, width: int) -> int:
    """Return the depth of the directories for so many records."""
    levels = 0
    while count > FLAT_RECORDS * width**levels:
        levels += 1
    return levels


@dataclass(slots=True)
class _Listing:
    """Ids [at, stop) of all ids: those of one directory, as of the time it was opened."""

    path: bytes
    ids: Ids
    at: int
    stop: int


class RecordSource(StoreSource):
    """Records of a store as of the mount, or of the last `refresh`.

    Memory in addition to the store's, once a directory has been listed: the id of each record, as
    a number or as text; twice that while the ids are collected.
    """

    _store: Records

    def __init__(self, store: Records) -> None:
        """Raises OSError."""
        super().__init__(store)
        fan = NumberFan if store.numbers else TextFan
        self._fan: TextFan | NumberFan = fan(levels_of(len(store), fan.width))
        self._places = Places()  # paths of directories end with "/"
        self.root = self._places.root
        self._ids: Ids | None = None
        self._stale, self._good_until = False, 0.0
        self._bodies: dict[int, bytes] = {}

    def refresh(self) -> bool:
        """See `winkmount.source.Source`."""
        if not self._store.refresh():
            return False
        self._look()
        self._stale = True
        return True

    # all ids

    def _all(self) -> Ids:
        """Return the ids of all records, ascending; with --follow they may be seconds old."""
        if self._ids is None or (self._stale and time.monotonic() >= self._good_until):
            started = time.monotonic()
            self._stale = False
            self._ids = self._collected()
            now = time.monotonic()
            self._good_until = now + LISTING_LIFETIME * (now - started)
        return self._ids

    def _collected(self) -> Ids:
        parts = [ids for ids, _ in self._store.listing()]
        if not parts:
            return np.empty(0, np.int64 if self._store.numbers else "S1")
        ids = np.concatenate(parts)
        parts.clear()
        ids.sort()
        return ids

    def _listed(self, path: bytes) -> _Listing:
        ids = self._all()
        bounds = self._fan.bounds(path)
        assert bounds is not None
        at, stop = np.searchsorted(ids, bounds[0]), np.searchsorted(ids, bounds[1], "right")
        return _Listing(path, ids, int(at), int(stop))

    # names

    def lookup(self, parent: int, name: bytes) -> Attr:
        above = self._places[parent]
        path = above + name + b"/"
        if self._fan.bounds(path) is not None:
            found = self._listed(path)
            if found.at < found.stop:
                return self._directory(path)
        row = self._store.named(name)
        if above not in (b"", self._fan.folder(name, self._fan.levels)):
            raise NoSuchFile("no such record", os.fsdecode(path))
        return self._record(row, name)

    def opendir(self, directory: int) -> _Listing:
        return self._listed(self._places[directory])

    def readdir(self, found: _Listing, offset: int) -> Iterator[DirEntry]:
        level = found.path.count(b"/")
        if level < self._fan.levels:
            return self._directories(found, level, offset)
        return self._records(found, offset)

    def _directories(self, found: _Listing, level: int, offset: int) -> Iterator[DirEntry]:
        at = found.at + offset
        while at < found.stop:
            path = self._fan.folder(_name(found.ids[at]), level + 1)
            bounds = self._fan.bounds(path)
            assert bounds is not None
            at = int(np.searchsorted(found.ids, bounds[1], "right"))
            yield DirEntry(path[len(found.path) : -1], self._directory(path), at - found.at)

    def _records(self, found: _Listing, offset: int) -> Iterator[DirEntry]:
        for first in range(found.at + offset, found.stop, NAMES_AT_ONCE):
            some = found.ids[first : min(first + NAMES_AT_ONCE, found.stop)].tolist()
            names = map(_name, some)
            behind = {name: at for at, name in enumerate(names, first + 1 - found.at)}
            for row in self._store.find(map(os.fsdecode, behind)):
                name = row.id.encode()
                yield DirEntry(name, self._record(row, name), behind[name])

    # attributes

    def stat(self, id: int) -> Attr:
        path = self._places[id]
        if not path or path.endswith(b"/"):
            return self._directory(path)
        return self._record(self._store.named(path), path)

    def _directory(self, path: bytes) -> Attr:
        id = self._places.directory_id(path)
        self._places.note(id, path)
        return self._folder(id)

    def _record(self, row: Row, name: bytes) -> Attr:
        id = self._places.other_id(name)
        self._places.note(id, name)
        return Attr(id, stat.S_IFREG | MODE, row.size, self._store.mtime_of(row), *self._owner[1:])

    def readlink(self, id: int) -> bytes:
        raise refuse(errno.EINVAL)

    def facts(self, id: int) -> Mapping[str, str]:
        path = self._places[id]
        if not path or path.endswith(b"/"):
            return {}
        row = self._store.named(path)
        known = {"file": row.file, "offset": row.offset, "refs": row.refs, **(row.facts or {})}
        return {name: str(value) for name, value in known.items() if value is not None}

    # content

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        if id not in self._places.users:
            self._bodies.pop(id, None)
        self._places.use(id)

    def release(self, id: int) -> None:
        if self._places.leave(id):
            self._bodies.pop(id, None)

    def read(self, id: int, offset: int, size: int) -> bytes:
        """Read from one version of the body as long as the file is open and the cache has room."""
        body = self._bodies.pop(id, None)
        if body is None:
            body = next(iter(self._store.bodies([self._store.named(self._places[id])])))
        if id in self._places.users or offset + size < len(body):
            self._bodies[id] = body
            while len(self._bodies) > 1 and sum(map(len, self._bodies.values())) > BODY_CACHE_BYTES:
                del self._bodies[next(iter(self._bodies))]
        return body[offset : offset + size]

    # the whole

    def status(self) -> Mapping[str, object]:
        return {"base": self._store.base, "files": len(self._store)}

    def statfs(self) -> Mapping[str, int]:
        return _statfs(int(self._store.stats()["bytes"]), len(self._store))


def _name(id: Any) -> bytes:
    """Return the name of a record for an item of `Ids`."""
    return bytes(id) if isinstance(id, bytes) else b"%d" % id
