"""RecordSource: the records of a store as files that winkmount serves, named by their ids.

Up to FLAT records lie in the top directory. Where there are more at the mount, they lie in
directories: `ab/cd/abcd...` for hexadecimal ids, `5000-5999/5123` for numbers. A look-up of
`5123` in the top directory finds that record, too.

A look-up asks the store. A listing needs the ids of all records, in order, which are collected when
a directory is listed, or looked up, for the first time.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from winkfs.errors import NoSuchFile
from winkfs.mounting.ids import Places, Users
from winkfs.stores.records import MODE, Ids, Records, Row
from winkmount.source import Attr, DirEntry, ReadOnlySource, refuse

FLAT: Final = 4096  # records in a directory that is not divided further, on average
RARELY: Final = 10  # how many times as long as collecting the ids took, these are good at least
KEPT: Final = 64 << 20  # bytes of bodies that are kept while they are read in parts
AT_ONCE: Final = 256  # names made of ids at a time
LAST: Final = (1 << 63) - 1


class TextFan:
    """Directories by the first characters of hexadecimal ids, two a level."""

    width = 256

    def __init__(self, levels: int) -> None:
        self.levels = levels

    def folder(self, id: bytes, level: int) -> bytes:
        """The path of the directory of an id, `/` behind each level; b"": the top directory."""
        return b"".join(id[2 * i : 2 * i + 2] + b"/" for i in range(level))

    def bounds(self, path: bytes) -> tuple[Any, Any] | None:
        """The ids [low, high) of a directory; None for what can be none."""
        key = path.replace(b"/", b"")
        level = path.count(b"/")
        if level > self.levels or not re.fullmatch(rb"([0-9a-f]{2})*", key):
            return None
        return (key, key + b"g") if self.folder(key, level) == path else None


class NumberFan:
    """Directories by ranges of numbers: of a thousand, of a million ..."""

    width = 1000

    def __init__(self, levels: int) -> None:
        self.levels = levels

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
            return 0, LAST
        found = re.search(rb"([0-9]{1,19})-[0-9]+/\Z", path)
        if found is None or level > self.levels or self.folder(found[1], level) != path:
            return None
        low = int(found[1])
        return (low, min(low + self._unit(level), LAST)) if low < LAST else None


def levels_of(count: int, width: int) -> int:
    """How deep so many records lie."""
    levels = 0
    while count > FLAT * width**levels:
        levels += 1
    return levels


@dataclass(slots=True)
class _Listing:
    """Ids of a directory, [at, stop) of all: what a handle lists does not change."""

    path: bytes
    ids: Ids
    at: int
    stop: int


class RecordSource(ReadOnlySource):
    """The records of a store as of the mount, or of the last `refresh`.

    Memory beside that of the store, once a directory was listed: a number, or the text of the id,
    for each record, twice while they are collected.
    """

    def __init__(self, store: Records) -> None:
        """Raises OSError."""
        self._store = store
        fan = NumberFan if store.numbers else TextFan
        self._fan: TextFan | NumberFan = fan(levels_of(len(store), fan.width))
        self._places = Places()  # directories with "/" behind them
        self.root = self._places.root
        self._users = Users()
        self._handles: dict[int, _Listing] = {}
        self._ids: Ids | None = None
        self._stale, self._good_until = False, 0.0
        self._bodies: dict[int, bytes] = {}
        self._look()

    def _look(self) -> None:
        self._mtimes: dict[str, int] = {}
        folder = os.stat(self._store.base)
        self._owner = folder.st_mtime_ns, folder.st_uid, folder.st_gid

    def refresh(self) -> bool:
        """See `winkmount.source.Following`."""
        if not self._store.refresh():
            return False
        self._look()
        self._stale = True
        return True

    # all ids

    def _all(self) -> Ids:
        """The ids of all records, ascending; with --follow from a moment ago."""
        if self._ids is None or (self._stale and time.monotonic() >= self._good_until):
            started = time.monotonic()
            self._stale = False
            self._ids = self._collected()
            now = time.monotonic()
            self._good_until = now + RARELY * (now - started)
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
        at, stop = (0, len(ids)) if not path else np.searchsorted(ids, bounds).tolist()
        return _Listing(path, ids, at, stop)

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

    def opendir(self, directory: int) -> int:
        handle = max(self._handles, default=0) + 1
        self._handles[handle] = self._listed(self._places[directory])
        return handle

    def readdir(self, handle: int, offset: int) -> Iterator[DirEntry]:
        found = self._handles[handle]
        level = found.path.count(b"/")
        below = level < self._fan.levels
        return self._directories(found, level, offset) if below else self._records(found, offset)

    def _directories(self, found: _Listing, level: int, offset: int) -> Iterator[DirEntry]:
        at = found.at + offset
        while at < found.stop:
            path = self._fan.folder(_name(found.ids[at]), level + 1)
            bounds = self._fan.bounds(path)
            assert bounds is not None
            at = min(int(np.searchsorted(found.ids, bounds[1])), found.stop)
            yield DirEntry(path[len(found.path) : -1], self._directory(path), at - found.at)

    def _records(self, found: _Listing, offset: int) -> Iterator[DirEntry]:
        for first in range(found.at + offset, found.stop, AT_ONCE):
            some = found.ids[first : min(first + AT_ONCE, found.stop)].tolist()
            for behind, id in enumerate(some, first + 1 - found.at):
                name = _name(id)
                try:
                    attr = self._record(self._store.named(name), name)
                except NoSuchFile:  # since the ids were collected
                    continue
                yield DirEntry(name, attr, behind)

    def releasedir(self, handle: int) -> None:
        del self._handles[handle]

    # attributes

    def stat(self, id: int) -> Attr:
        path = self._places[id]
        if not path or path.endswith(b"/"):
            return self._directory(path)
        return self._record(self._store.named(path), path)

    def _directory(self, path: bytes) -> Attr:
        id = self._places.directory_id(path)
        self._places.note(id, path)
        mtime_ns, uid, gid = self._owner
        return Attr(id, stat.S_IFDIR | 0o755, 0, mtime_ns, uid, gid)

    def _record(self, row: Row, name: bytes) -> Attr:
        id = self._places.other_id(name)
        self._places.note(id, name)
        mtime = self._mtimes.get(row.file)
        if mtime is None:
            mtime = self._mtimes[row.file] = self._store.mtime_ns(row.file)
        return Attr(id, stat.S_IFREG | MODE, row.size, mtime, *self._owner[1:])

    def readlink(self, id: int) -> bytes:
        raise refuse(errno.EINVAL)

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        return {}

    def facts(self, id: int) -> Mapping[str, str]:
        path = self._places[id]
        if not path or path.endswith(b"/"):
            return {}
        row = self._store.named(path)
        refs = {} if row.refs is None else {"refs": str(row.refs)}
        return {"file": row.file, "offset": str(row.offset)} | refs

    # content

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        self._places.hold(id)
        self._users.add(id)
        self._bodies.pop(id, None)

    def release(self, id: int) -> None:
        if self._users.remove(id):
            self._places.let_go(id)
            self._bodies.pop(id, None)

    def read(self, id: int, offset: int, size: int) -> bytes:
        """What is read in parts is kept until it is read to its end, and is one version of it."""
        body = self._bodies.pop(id, None)
        if body is None:
            body = next(iter(self._store.bodies([self._store.named(self._places[id])])))
        if offset + size < len(body):
            self._bodies[id] = body
            while len(self._bodies) > 1 and sum(map(len, self._bodies.values())) > KEPT:
                del self._bodies[next(iter(self._bodies))]
        return body[offset : offset + size]

    def seek(self, id: int, offset: int, *, hole: bool) -> int:
        size = self.stat(id).size
        if not 0 <= offset < size:
            raise refuse(errno.ENXIO)
        return size if hole else offset

    # the whole

    def status(self) -> Mapping[str, object]:
        return {"base": self._store.base, "files": len(self._store)}

    def statfs(self) -> Mapping[str, int]:
        blocks = -(-int(self._store.stats()["bytes"]) // 4096)
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": blocks, "f_bfree": 0,
                "f_bavail": 0, "f_files": len(self._store), "f_namemax": 255}  # fmt: skip

    def close(self) -> None:
        self._store.close()


def _name(id: Any) -> bytes:
    """The name of a record by its id in `Ids`."""
    return bytes(id) if isinstance(id, bytes) else b"%d" % id
