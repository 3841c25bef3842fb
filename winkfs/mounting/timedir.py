"""`.time/`: files by the hour of their mtime (UTC), as links.

    .time/2026-11-20/12/logs%2Fa.txt -> ../../../logs/a.txt

In the name of a link a `/` is `%2F` and a `%` is `%25`, and it is shown as a part of a path is, see
`names.shown_part`; one of more than 255 bytes is cut, and ends
with `~` and the file id. Days and hours of a container are those of the time index; one whose files
have all been removed is empty.

It is laid over what a Source shows, in the place of names that begin with `.time`. The Source has
the files, see `ByTime`.
"""

from __future__ import annotations

import calendar
import re
import stat
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from winkfs.entry import FileType
from winkfs.mounting.ids import directory_id, other_id
from winkfs.mounting.listing import Listing, View
from winkfs.names import MAX_COMPONENT, length_fault, part_shown, shown_part, within
from winkfs.units import NANO
from winkmount.source import Attr, DirEntry

TOP: Final = b".time"
HOUR: Final = 3600
DAY: Final = 24 * HOUR
UP: Final = b"../../../"
LAST_OFFSET: Final = 1 << 62  # offset behind `.time` in the top directory
PATH: Final = re.compile(rb"\.time(?:/(\d{4,}-\d\d-\d\d)(?:/(\d\d)(?:/(.+))?)?)?", re.DOTALL)


def link_name(name: bytes, fileid: int) -> bytes:
    """Return the name of a file in its hour."""
    made = shown_part(name.replace(b"%", b"%25").replace(b"/", b"%2F"))
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
    """The files of a mount, by their times."""

    def starts(self, unit: int) -> list[int]:
        """Days or hours in which files may have come, seconds since the epoch, ascending."""

    def find(self, name: bytes) -> Timed | None:
        """Return the file of this name, or None."""

    def between(self, start: int, stop: int, offset: int) -> Iterator[Timed]:
        """Yield the files behind an offset whose mtime is in [start, stop) seconds, and maybe
        others."""


class TimeDirectory:
    """The directory `.time` and all below it."""

    def __init__(self, files: ByTime, view: View) -> None:
        """`view`: of the mount, which has its names and ids."""
        self._files, self._view, self._seed = files, view, view.places.seed

    @staticmethod
    def has(path: bytes) -> bool:
        """Return whether a path is `.time` or below it."""
        return within(path, TOP)

    def noted(self, path: bytes) -> Attr | None:
        """Return the attributes as `attr` does, and remember the id."""
        attr = self.attr(path)
        if attr is not None:
            self._view.places.note(attr.id, path)
        return attr

    def attr(self, path: bytes) -> Attr | None:
        """Return the attributes of a directory or link, None if there is none."""
        parsed = PATH.fullmatch(path)
        if parsed is None:
            return None
        day, hour, link = parsed.groups()
        if link is not None:
            return self._link(path, _seconds(day, hour), link)
        start = 0 if day is None else _seconds(day, hour or b"00")
        if day is not None and start not in self._files.starts(HOUR if hour else DAY):
            return None
        uid, gid = self._view.owner
        return Attr(directory_id(path, self._seed), stat.S_IFDIR | 0o555, 0, start * NANO, uid, gid)

    def target(self, path: bytes) -> bytes:
        """Return the target of a link that exists."""
        *_, name = path.split(b"/", 3)
        return UP + self._view.tree.file_path(self._name(path, name))

    def list(self, listing: Listing, offset: int) -> Iterator[DirEntry]:
        """See `Source.readdir`: any directory of the mount, `.time` is the last of the top one."""
        if self.has(listing.path):
            return self.entries(listing.path, offset)
        if listing.path:
            return listing.entries(offset)
        return self._top(listing.entries(offset)) if offset < LAST_OFFSET else iter(())

    def _top(self, others: Iterable[DirEntry]) -> Iterator[DirEntry]:
        for entry in others:
            if entry.name != TOP:
                yield entry
        top = self.attr(TOP)
        if top is not None:
            yield DirEntry(TOP, top, LAST_OFFSET)

    def entries(self, path: bytes, offset: int) -> Iterator[DirEntry]:
        """List `.time` or a directory below it. Behind a link the offset is 1 + the position of its
        inode."""
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
        if not inside or file.ftype == FileType.DIR:
            return None
        target = self._view.tree.file_path(file.name)
        if length_fault(target) is not None:
            return None
        (uid, gid), size = self._view.owner, len(UP) + len(target)
        return Attr(other_id(path, self._seed), stat.S_IFLNK | 0o777, size, file.mtime_ns, uid, gid)

    def _name(self, path: bytes, link: bytes) -> bytes:
        """Return the name of the file that a link stands for; empty if there is none."""
        made = part_shown(link)
        name = re.sub(rb"%(2F|25)", lambda m: b"/" if m[1] == b"2F" else b"%", made)
        if len(link) < MAX_COMPONENT or b"~" not in link or self._files.find(name):
            return name
        directory = path.rpartition(b"/")[0]  # cut: look through the hour for it
        _, day, hour = directory.split(b"/")
        start = _seconds(day, hour)
        for file in self._files.between(start, start + HOUR, 0):
            if len(file.name) > MAX_COMPONENT // 3 and link_name(file.name, file.id) == link:
                return file.name
        return b""


def _seconds(day: bytes, hour: bytes) -> int:
    """When an hour began, seconds since the epoch; -1 where there is no such day."""
    try:
        parsed = time.strptime((day + hour).decode(), "%Y-%m-%d%H")
    except ValueError:
        return -1
    return calendar.timegm(parsed)
