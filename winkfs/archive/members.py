"""Members of archives: names, which of them an update takes; and archives that are read at any
place, as zip files are, as sources of `pack`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from winkformats.errors import FormatError
from winkfs.archive.items import (
    STREAM_BYTES,
    Chooser,
    Content,
    Copy,
    Item,
    Large,
    Meta,
    Note,
    Notes,
    Ratio,
    Seen,
    Suspect,
    Unreadable,
    clamped,
)
from winkfs.container.bulk import Row
from winkfs.entry import FileType
from winkfs.names import MAX_NAME, MAX_PATH, clean, to_bytes, to_str
from winkfs.units import nearest_ns

LOOKUP_MEMBERS: Final = 4096  # looked up at once
LOOKUP_BYTES: Final = 16 << 20  # content of them, about
LINK_TO_NOTHING: Final = "a symbolic link to nothing"


def name_fault(name: bytes) -> str | None:
    """Return why no file of a container may have this name; None: one may."""
    if b".." in name.split(b"/"):
        return 'its name has a part ".."'
    if b"\0" in name:
        return "its name has a NUL"
    if len(name) > MAX_NAME:
        return f"its name has {len(name):,} bytes, a container takes {MAX_NAME:,}"
    return None


@dataclass(frozen=True, slots=True)
class Entry:
    """A member of an archive that is read at any place.

    ftype    FILE, DIR or LINK
    size     bytes of its content
    content  opens it, and returns whether it has holes; raises Unreadable
    fault    why it cannot be stored
    unheld   why no container can hold it, which is as expected
    lacks    what is not taken of it
    """

    name: bytes
    ftype: int
    size: int
    meta: Meta
    content: Callable[[], tuple[Content, bool]]
    fault: str | None = None
    unheld: str | None = None
    lacks: str | None = None


def missing(name: bytes, fault: str) -> Entry:
    """Return a member that cannot be stored."""
    return Entry(name, FileType.FILE, 0, Meta(0, 0, 0, 0), _nothing, fault)


def _nothing() -> tuple[Content, bool]:
    raise Unreadable("it has no content")


class Opener(Protocol):
    def __call__(self, path: str, /) -> AbstractContextManager[Iterable[Entry]]:
        """Open an archive -> its entries. Raises FormatError, Refusal, OSError."""


class Archive:
    """The entries of an archive, as a source of `pack`.

    path      a file
    opened    opens it
    note      called with entries that cannot be read or stored
    exclude   names to leave out, with all below them
    ratio     limit of the bytes that the file may become
    raises    OSError; FormatError; Refusal if a package is missing
    """

    def __init__(
        self,
        path: str,
        opened: Opener,
        note: Notes,
        *,
        exclude: Callable[[str], object] | None = None,
        ratio: Ratio | None = None,
    ) -> None:
        self._path, self._opened, self._note = path, opened, note
        self._exclude, self._ratio = exclude, ratio or Ratio()
        self._unpacked = 0

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        self._unpacked, whole = 0, os.stat(self._path).st_size
        try:
            with self._opened(self._path) as entries:
                wanted: Iterable[Entry] = filter(self._is_wanted, entries)
                if by_mtime:
                    wanted = sorted(wanted, key=lambda entry: (entry.meta.mtime_ns, entry.name))
                for entry in wanted:
                    if item := self._item(entry, whole):
                        yield item
        except FormatError as error:
            raise type(error)(f"{self._path}: {error}") from None

    def changed(self, update: Chooser, *, by_mtime: bool) -> Generator[Item | Suspect, None, None]:
        with contextlib.closing(self.items(by_mtime=by_mtime)) as items:
            yield from chosen(items, update)

    def _is_wanted(self, entry: Entry) -> bool:
        """Return whether an entry is wanted and can be packed; note one that cannot."""
        name = clean(entry.name)
        if self._exclude and name and self._exclude(to_str(name)):
            return False
        if entry.unheld:
            self._note(Note(name, entry.unheld, False))
            return False
        if not name and entry.ftype == FileType.DIR:  # the root has no entry
            return False
        fault = entry.fault or name_fault(name) or (None if name else "it has no name")
        if fault:
            self._note(Note(name, fault, True))
        return fault is None

    def _item(self, entry: Entry, whole: int) -> Item | None:
        """Return the item of an entry; None after a note. whole: bytes of the archive."""
        name, size, meta = clean(entry.name), entry.size, entry.meta
        if self._ratio.is_exceeded(self._unpacked + size, whole):
            self._note(Note(name, self._ratio.reason(whole), True))
            return None
        self._unpacked += size
        mtime = nearest_ns(meta.mtime_ns)
        if mtime != meta.mtime_ns:
            self._note(clamped(name))
        if entry.lacks:
            self._note(Note(name, entry.lacks, False, often=1, kept=True))
        rest = meta.uid, meta.gid, meta.xattrs
        if entry.ftype == FileType.DIR:
            return Row(name, b"", mtime, FileType.DIR, meta.mode, *rest)
        link = entry.ftype == FileType.LINK
        if link and size > MAX_PATH:
            self._note(Note(name, f"a symbolic link to a path of {size:,} bytes", True))
            return None
        try:
            content, sparse = entry.content()
            if not link and (size >= STREAM_BYTES or sparse):
                meta = Meta(mtime, meta.mode, *rest)
                return Large(name, content, size, meta, sparse, whole)
            data = content.read()
        except Unreadable as error:
            self._note(Note(name, str(error), True))
            return None
        if not link:
            return Row(name, data, mtime, FileType.FILE, meta.mode, *rest)
        if not data or b"\0" in data:
            self._note(Note(name, LINK_TO_NOTHING, True))
            return None
        return Row(name, data, mtime, FileType.LINK, None, *rest)


def chosen(items: Iterable[Item], update: Chooser) -> Iterator[Item | Suspect]:
    """Yield the items that `update` chooses, in the same order. Small members are looked up many at
    a time; their content is in memory anyway."""
    rows: list[tuple[Item, Seen]] = []
    size = 0
    for item in items:
        if isinstance(item, Row):
            name, mtime = to_bytes(item.name), item.mtime_ns or 0
            rows.append((item, Seen(name, item.ftype, len(item.data), mtime, None)))
            size += len(item.data)
            if len(rows) < LOOKUP_MEMBERS and size < LOOKUP_BYTES:
                continue
        yield from _suspected(update.choose(rows))
        rows, size = [], 0
        if isinstance(item, Large):
            meta = item.meta
            seen = Seen(item.name, FileType.FILE, item.size, meta.mtime_ns, None)
            yield from _suspected(update.choose([(item, seen)]))
        elif isinstance(item, Copy):
            yield Suspect(item, True)
    yield from _suspected(update.choose(rows))


def _suspected(found: Iterable[tuple[Item, Seen, bool | None]]) -> Iterator[Item | Suspect]:
    for item, _, compare in found:
        yield item if compare is None else Suspect(item, compare)
