"""`.time/`: files by the hour of their mtime (UTC), as links.

    .time/2026-11-20/12/logs%2Fa.txt -> ../../../logs/a.txt

In the name of a link a `/` is `%2F` and a `%` is `%25`; one of more than 255 bytes is cut, and ends
with `~` and the file id. Days and hours of a container are those of the time index; one whose files
have all been removed is empty.

TimeView: `.time` laid over what a Source shows, in the place of names that begin with it.
"""

from __future__ import annotations

import calendar
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from winkformats.errors import CorruptError
from winkfs.container.inodescan import inode_rows
from winkfs.container.ondisk.inode import FileType
from winkfs.container.store import Store
from winkfs.mounting.ids import OWN_IDS, directory_id, other_id
from winkfs.mounting.lookup import Found
from winkfs.mounting.pathview import PathView
from winkfs.names import MAX_COMPONENT, bad_prefix, within
from winkfs.units import NANO
from winkmount.source import Attr, DirEntry

TOP: Final = b".time"
HOUR: Final = 3600
DAY: Final = 24 * HOUR
UP: Final = b"../../../"
PATH: Final = re.compile(rb"\.time(?:/(\d{4,}-\d\d-\d\d)(?:/(\d\d)(?:/(.+))?)?)?", re.DOTALL)


def is_inside(path: bytes) -> bool:
    """Whether a path is `.time` or below it."""
    return within(path, TOP)


def link_name(name: bytes, fileid: int) -> bytes:
    """What a file is called in its hour."""
    made = name.replace(b"%", b"%25").replace(b"/", b"%2F")
    if len(made) <= MAX_COMPONENT:
        return made
    end = b"~%x" % fileid
    return made[: MAX_COMPONENT - len(end)] + end


class Timed(NamedTuple):
    """A file; `offset`: where a listing of its hour goes on behind it."""

    name: bytes
    id: int
    mtime_ns: int
    ftype: int
    offset: int


class ByTime(Protocol):
    """What is asked of the files."""

    @property
    def owner(self) -> tuple[int, int]: ...

    def starts(self, unit: int) -> list[int]:
        """Days or hours in which files may have come, seconds since the epoch, ascending."""

    def find(self, name: bytes) -> Timed | None:
        """The file of this name."""

    def between(self, start: int, stop: int, offset: int) -> Iterator[Timed]:
        """Those behind an offset whose mtime is in [start, stop) seconds, and maybe others."""


class TimeDirectory:
    """What is below `.time`."""

    def __init__(self, files: ByTime, seed: int) -> None:
        """`seed`: of the ids, see `Places`."""
        self._files, self._seed = files, seed

    def attr(self, path: bytes) -> Attr | None:
        """The attributes of a directory or link, None where there is none."""
        parsed = PATH.fullmatch(path)
        if parsed is None:
            return None
        day, hour, link = parsed.groups()
        if link is not None:
            return self._link(path, _seconds(day, hour), link)
        start = 0 if day is None else _seconds(day, hour or b"00")
        if day is not None and start not in self._files.starts(HOUR if hour else DAY):
            return None
        uid, gid = self._files.owner
        return Attr(directory_id(path, self._seed), stat.S_IFDIR | 0o555, 0, start * NANO, uid, gid)

    def target(self, path: bytes) -> bytes:
        """Where a link points to that is there."""
        *_, name = path.split(b"/", 3)
        return UP + self._name(path, name)

    def entries(self, path: bytes, offset: int) -> Iterator[DirEntry]:
        """See `Source.readdir`. Behind a link the offset is 1 + the position of its inode."""
        day, hour, _ = PATH.fullmatch(path).groups()  # type: ignore[union-attr]
        if hour is not None:
            yield from self._links(path, _seconds(day, hour), offset)
            return
        form, unit = ("%H", HOUR) if day else ("%Y-%m-%d", DAY)
        low = _seconds(day, b"00") if day else None
        for n, start in enumerate(self._files.starts(unit), 1):
            if n > offset and (low is None or low <= start < low + DAY):
                short = time.strftime(form, time.gmtime(start)).encode()
                attr = self.attr(path + b"/" + short)
                if attr is not None:
                    yield DirEntry(short, attr, n)

    def _links(self, path: bytes, start: int, offset: int) -> Iterator[DirEntry]:
        for file in self._files.between(start, start + HOUR, offset):
            short = link_name(file.name, file.id)
            attr = self._attr(path + b"/" + short, start, file)
            if attr is not None:
                yield DirEntry(short, attr, file.offset)

    def _link(self, path: bytes, start: int, link: bytes) -> Attr | None:
        name = self._name(path, link)
        found = self._files.find(name) if name else None
        if found is None or link_name(name, found.id) != link:
            return None
        return self._attr(path, start, found)

    def _attr(self, path: bytes, start: int, file: Timed) -> Attr | None:
        inside = start <= file.mtime_ns // NANO < start + HOUR
        if not inside or file.ftype == FileType.DIR or bad_prefix(file.name) is not None:
            return None
        uid, gid = self._files.owner
        size = len(UP) + len(file.name)
        return Attr(other_id(path, self._seed), stat.S_IFLNK | 0o777, size, file.mtime_ns, uid, gid)

    def _name(self, path: bytes, link: bytes) -> bytes:
        """The file a link stands for; empty where there is none."""
        name = re.sub(rb"%(2F|25)", lambda m: b"/" if m[1] == b"2F" else b"%", link)
        if len(link) < MAX_COMPONENT or b"~" not in link or self._files.find(name):
            return name
        directory = path.rpartition(b"/")[0]  # cut: look through the hour for it
        _, day, hour = directory.split(b"/")
        start = _seconds(day, hour)
        for file in self._files.between(start, start + HOUR, 0):
            if len(file.name) > MAX_COMPONENT // 3 and link_name(file.name, file.id) == link:
                return file.name
        return b""


class ContainerTimes:
    """The files of an append-only container. `find`: the inode of a key, None: there is none."""

    def __init__(self, store: Store, find: Callable[[bytes], Found | None]) -> None:
        self._store, self._find = store, find

    @property
    def owner(self) -> tuple[int, int]:
        return self._store.owner

    def starts(self, unit: int) -> list[int]:
        times = self._store.times
        if times is None:
            return []
        spans = ((mark // unit, (mark + times.timemp - 1) // unit) for mark in times.marks)
        return sorted({n * unit for first, last in spans for n in range(first, last + 1)})

    def find(self, name: bytes) -> Timed | None:
        found = self._find(name + b"/I0")
        return None if found is None else self._timed(name, found)

    def between(self, start: int, stop: int, offset: int) -> Iterator[Timed]:
        store, times = self._store, self._store.times
        assert times is not None
        kv = store.kv
        kv.show(kv.end - 1)  # all of it written
        begin = max(times.start(start), kv.start, offset - 1)
        end = times.stop(stop)
        for _, rows in inode_rows(
            kv.storage, kv.layout, store.settings, begin, kv.end if end is None else end,
            problem=store.note,
        ):  # fmt: skip
            for key, pos in zip(rows.keys, rows.pos.tolist(), strict=True):
                found = self._good(key) if pos >= offset else None
                if found is not None and found.pos == pos:
                    yield self._timed(key[:-3], found)

    def _good(self, key: bytes) -> Found | None:
        try:
            return self._find(key)
        except CorruptError as error:
            self._store.note(error)
            return None

    def _timed(self, name: bytes, found: Found) -> Timed:
        ns = self._store.settings.ns_of(found.mtime)
        return Timed(name, found.fileid, ns, found.ftype, found.pos + 1)


def _seconds(day: bytes, hour: bytes) -> int:
    """When an hour began, seconds since the epoch; -1 where there is no such day."""
    try:
        parsed = time.strptime((day + hour).decode(), "%Y-%m-%d%H")
    except ValueError:
        return -1
    return calendar.timegm(parsed)


LAST: Final = 1 << 62  # offset behind `.time` in the top directory


class TimeView(PathView):
    """To stand before the class that it is laid over."""

    _by_time: TimeDirectory | None = None  # None: it is not shown

    def attr(self, path: bytes) -> Attr | None:
        if self._by_time is None or not is_inside(path):
            return super().attr(path)
        attr = self._by_time.attr(path)
        if attr is not None:
            self.places.note(attr.id, path)
        return attr

    def readdir(self, handle: int, offset: int) -> Iterator[DirEntry]:
        path = self._listings[handle].path
        if self._by_time is None or not (path == b"" or is_inside(path)):
            return super().readdir(handle, offset)
        if path:
            return self._by_time.entries(path, offset)
        return self._top(super().readdir(handle, offset)) if offset < LAST else iter(())

    def _top(self, others: Iterator[DirEntry]) -> Iterator[DirEntry]:
        for entry in others:
            if entry.name != TOP:
                yield entry
        top = self.attr(TOP)
        if top is not None:
            yield DirEntry(TOP, top, LAST)

    def _timed(self, id: int) -> bytes | None:
        """The path of what is below `.time`; None for all else."""
        if self._by_time is None or id < OWN_IDS:
            return None
        path = self.places[id]
        return path if is_inside(path) else None

    def readlink(self, id: int) -> bytes:
        path = self._timed(id)
        if path is None or self._by_time is None:
            return super().readlink(id)
        return self._by_time.target(path)

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        return super().xattrs(id) if self._timed(id) is None else {}

    def facts(self, id: int) -> Mapping[str, str]:
        return super().facts(id) if self._timed(id) is None else {}
