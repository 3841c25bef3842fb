"""Directories of a mount as they are listed.

Listing   an open directory, streamed from an order of names and what changed since
walk      what a directory has in an order

Offsets: i + 1 after the name at index i of the order, LATE_OFFSET + n after the n-th name added
since, LAST_OFFSET after the file of the directory's own name.
"""

from __future__ import annotations

import bisect
import logging
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, Protocol, cast

import numpy as np

from winkformats.arrays import Bools, Int64
from winkformats.errors import CorruptError
from winkfs.container.table import ASK, FILEID, KIND, MODE_AT, SPECIAL, FileTable
from winkfs.entry import DEFAULT_MODES, FileType
from winkfs.errors import DerivedDamage
from winkfs.mounting.ids import OWN_IDS, Places, other_id
from winkfs.mounting.tree import NameOrder, NameTree
from winkfs.names import (
    MAX_COMPONENT,
    SELF,
    any_odd,
    bad_prefix,
    length_fault,
    name_below,
    shown,
    shown_part,
    to_str,
)
from winkmount.source import UNREADABLE, Attr, DirEntry, Page

LATE_OFFSET: Final = 1 << 61
LAST_OFFSET: Final = 3 << 60
FIRST_AT_ONCE: Final = 64  # names of the first batch
MOST_AT_ONCE: Final = 1024
LOGGED_NAMES: Final = 20  # names that cannot be shown and are in the log
FEW_ROWS: Final = 64  # rows that are cheaper one by one than as columns
FILETYPE_DIR: Final = int(FileType.DIR)
FORMAT: Final = 0o170000  # bits of a mode that are the kind of a file
UINT32: Final = (1 << 32) - 1
MODE_OF: Final = [stat.S_IFREG | mode for mode in DEFAULT_MODES]
MODE_OF[FileType.LINK] = stat.S_IFLNK | 0o777
MODE_OF[FileType.DIR] = stat.S_IFDIR | 0o755
FORMATS: Final = np.array([stat.S_IFMT(mode) for mode in MODE_OF], np.int64)
MAKE: Final = cast(Any, tuple.__new__)  # what _make does, without a frame of Python


log = logging.getLogger("winkfs.mount")


def attr_of(row: Sequence[int], owner: tuple[int, int]) -> Attr:
    """Return the attributes of a row of the catalog. `owner`: of files without attributes."""
    _, id, size, mtime, _, ctime, kind, owned = row
    mode, (uid, gid), changed = MODE_OF[kind & 255], owner, 0
    if kind & SPECIAL:
        mode = mode & FORMAT | kind >> MODE_AT
        uid, gid = owned & UINT32, owned >> 32 & UINT32
        changed = ctime if ctime != mtime else 0
    size = size if kind & 255 != FILETYPE_DIR else 0
    return MAKE(Attr, (id, mode, size, mtime, uid, gid, changed))  # type: ignore[no-any-return]


def listed(
    rows: FileTable, owner: tuple[int, int]
) -> tuple[list[Attr], Iterable[int], Iterable[int]]:
    """Return the attributes of rows of the catalog; which of them are directories, whose ids are
    those of their entries; and which rows are incomplete: see `odd_rows`."""
    if len(rows) > FEW_ROWS:
        columns = attributes(rows, owner).tolist()
        made = list(map(MAKE, repeat(Attr), zip(*columns, strict=True)))
        odd = np.flatnonzero(odd_rows(rows)).tolist()
        return made, np.flatnonzero(rows.directories).tolist(), odd
    attrs, directories, odd = list[Attr](), list[int](), list[int]()
    for i, row in enumerate(rows.numbers.tolist()):
        attrs.append(attr_of(row, owner))
        is_directory = row[KIND] & 255 == FILETYPE_DIR
        if is_directory:
            directories.append(i)
        if row[KIND] & ASK or not (is_directory or 0 < row[FILEID] < OWN_IDS):
            odd.append(i)
    return attrs, directories, odd


def attributes(rows: FileTable, owner: tuple[int, int]) -> Int64:
    """Return the fields of `Attr`, int64[7, n]; the ids of directories are those of their entries.

    owner  of files without attributes
    """
    ids, size, mtime, ftype, mode, uid, gid, ctime = rows.stats(owner)
    changed = np.where(ctime != mtime, ctime, 0)
    size = np.where(rows.directories, 0, size)
    return np.stack([ids, FORMATS[ftype] | mode, size, mtime, uid, gid, changed])


def odd_rows(rows: FileTable) -> Bools:
    """Return which of some rows are incomplete, so that the file is looked up, bool[n]."""
    ids = rows.numbers[:, FILEID]
    odd: Bools = rows.asked | ~rows.directories & ((ids >= OWN_IDS) | (ids < 1))
    return odd


def all_fit(names: list[bytes]) -> bool:
    """Return whether none of these is too long for a path."""
    return max(map(len, names)) < MAX_COMPONENT or not any(map(bad_prefix, names))


class View(Protocol):
    """The part of a Source that a listing uses."""

    left_out: set[bytes]
    """Names that cannot be shown, which are in the log."""
    places: Places
    ctimes: dict[int, int]
    """id -> time of a change that the order does not include."""
    mtimes: dict[bytes, int]
    """Path of a directory -> its time, if that is later than the order has it."""

    @property
    def tree(self) -> NameTree: ...
    @property
    def owner(self) -> tuple[int, int]:
        """Return user and group of files without attributes."""

    def attr(self, path: bytes) -> Attr | None:
        """Return the attributes of a file or directory as of now; None if nothing has this path."""

    def directory_attr(self, path: bytes) -> Attr:
        """Return the attributes of a directory."""

    def implied_attr(self, path: bytes) -> Attr:
        """Return the attributes of a directory that exists only because of names below it."""

    def later(self, attr: Attr, path: bytes) -> Attr:
        """Return the attributes that an order has, with times of changes that it does not have."""

    def note(self, ids: list[int], paths: list[bytes]) -> None:
        """Remember where files are that are handed out."""


class Listing:
    """An open directory: names of the order in its order; those that came since behind.

    It goes on with the order it began with, until it is listed from the start again.

    path  where the directory is now; `id`: that by which it was opened
    """

    def __init__(self, view: View, path: bytes, id: int = 0) -> None:
        self.path, self.id, self._view = path, id, view
        self._restart()

    def _restart(self) -> None:
        self._overlay = self._view.tree.overlay
        self._late: list[tuple[int, bytes]] | None = None
        self._fixed: list[tuple[int, bytes]] | None = None  # all names, where the path is another
        self._page: tuple[tuple[int, int], Page | None] = (-1, -1), None  # as of which versions
        self.move(self.path)

    def fix(self) -> None:
        """Keep all names before the path changes: the order does not have them under the new path.
        Memory: the names."""
        if self._fixed is None:
            self._fixed = [(entry.offset, entry.name) for entry in self._entries(0)]

    def move(self, path: bytes) -> None:
        """Go on with another path."""
        self.path, self._prefix = path, path + b"/" if path else b""
        self._name = name_below(self._prefix)  # what the names begin with in the order

    def entries(self, offset: int) -> Iterator[DirEntry]:
        """See `Source.readdir`. Cost: a search in the order a subdirectory."""
        if offset == 0:
            self._restart()
        return self._entries(offset)

    def _entries(self, offset: int) -> Iterator[DirEntry]:
        if offset < LATE_OFFSET and self._fixed is None:
            offset = max(offset, (yield from self._ordered(offset)))
        if self._fixed is not None:
            yield from self._named(self._fixed, offset)
            return
        if self._late is None:
            added = self._overlay.of(self.path).added
            self._late = [(LATE_OFFSET + number, short) for short, number in added.items()]
        yield from self._named(self._late, offset)
        if offset < LAST_OFFSET and self._view.tree.has_own(self.path):
            yield from self._named([(LAST_OFFSET, SELF)], offset)

    def page(self, offset: int, version: int) -> Page | None:
        """See `winkmount.source.Source.page`."""
        tree = self._view.tree
        low, high = self._overlay.range(self.path)
        current = self._overlay is tree.overlay and self._fixed is None and not tree.clashes
        if not current or max(offset, low) >= high:
            return None
        versions = version, tree.version
        if self._page[0] == versions and (page := self._page[1]) is not None:
            first, last = page.offsets[0] - 1, page.offsets[-1] - 1
            if first <= offset <= last:
                return page
        found = self._columns(low, high, max(offset, low))
        page = None if found is None else self._as_now(found)
        if page is not None and page.offsets[-1] <= offset:
            page = None
        self._page = versions, page
        return page

    def _columns(self, low: int, high: int, at: int) -> Page | None:
        """Return the names of the block of the order that has the index `at`, those between low and
        high, if all are files of the directory itself."""
        start, rows = self._overlay.order.block(at)
        a, b = max(low - start, 0), min(high - start, len(rows))
        rows = rows if (a, b) == (0, len(rows)) else rows.part(a, b)
        cut, ids, view = len(self._name), rows.numbers[:, FILEID], self._view
        shorts = [name[cut:] for name in rows.names]
        flat = b"".join(shorts).count(b"/") == 0 and all_fit(rows.names)
        if not flat or (odd_rows(rows) | rows.directories).any() or any_odd(shorts):
            return None
        attrs = np.ascontiguousarray(attributes(rows, view.owner).T)
        for i, id in enumerate(ids.tolist()) if view.ctimes else ():
            if id in view.ctimes:
                attrs[i] = view.later(Attr(*attrs[i].tolist()), self._prefix + shorts[i])
        behind = start + a + 1
        return Page(shorts, ids.copy(), attrs, range(behind, behind + len(shorts)))

    def _as_now(self, page: Page) -> Page | None:
        """Return a page with what has changed since the order was made; None if not all are files
        whose ids last, or none is left."""
        states = self._overlay.of(self.path).states
        gone = list[int]()
        for i, short in enumerate(page.names) if states else ():
            if short not in states:
                continue
            attr = self._attr(self._prefix + short)
            if attr is None:
                gone.append(i)
            elif attr.is_dir or attr.id >= OWN_IDS or attr.size == UNREADABLE:
                return None
            else:
                page.attrs[i], page.nodes[i] = attr, attr.id
        if not gone:
            return page
        kept = np.delete(np.arange(len(page.names)), gone).tolist()
        if not kept:
            return None
        names, offsets = [page.names[i] for i in kept], [page.offsets[i] for i in kept]
        return Page(names, page.nodes[kept], page.attrs[kept], offsets)

    def _named(self, names: list[tuple[int, bytes]], offset: int) -> Iterator[DirEntry]:
        """Yield those of some names behind an offset that exist."""
        for number, short in names[bisect.bisect(names, (offset, b"\xff" * 256)) :]:
            attr = self._attr(self._prefix + short)
            if attr is not None:
                yield DirEntry(short, attr, number)

    def _attr(self, path: bytes) -> Attr | None:
        if fault := length_fault(path):
            self._warn(path, f"not shown: {to_str(path)}: {fault}")
            return None
        try:
            return self._view.attr(path)
        except DerivedDamage:
            raise
        except CorruptError as error:
            self._warn(path, f"cannot be read: {to_str(path)}: {error}")
            return Attr(other_id(path, 0), stat.S_IFREG, UNREADABLE, 0, 0, 0)

    def _warn(self, path: bytes, what: str) -> None:
        """Log a warning once for each path."""
        known = self._view.left_out
        if len(known) < LOGGED_NAMES and path not in known:
            known.add(path)
            log.warning("%s", what)

    # names of the order

    def _ordered(self, offset: int) -> Generator[DirEntry, None, int]:
        """Yield entries that the order has -> an offset behind them."""
        order, tree, step = self._overlay.order, self._view.tree, FIRST_AT_ONCE
        low, high = self._overlay.range(self.path)
        behind = max(offset, low)
        for start, rows, k, stop, below in walk(order, low, high, offset, self._name):
            while k < stop and self._fixed is None:
                version = tree.version
                if below is not None:
                    found, k = self._child(below, rows.names, k, start + stop), stop
                else:
                    part, at = rows.part(k, min(k + step, stop)), start + k
                    found, k, step = self._run(part, at), k + len(part), min(2 * step, MOST_AT_ONCE)
                behind = start + k
                for entry in found:
                    if tree.version == version:
                        yield entry
                        continue
                    attr = self._attr(self._prefix + entry.name)  # there was a change meanwhile
                    if attr is not None:
                        yield entry._replace(attr=attr)
            if self._fixed is not None:
                break
        return behind

    def _run(self, rows: FileTable, at: int) -> list[DirEntry]:
        """Return entries of rows that follow each other in the directory itself, the first at an
        index."""
        view, cut = self._view, len(self._name)
        shorts = [name[cut:] for name in rows.names]
        shorts = list(map(shown_part, shorts)) if any_odd(shorts) else shorts
        paths = [self._prefix + short for short in shorts] if self._prefix else shorts
        attrs, directories, odd = listed(rows, view.owner)
        for i in directories:
            attrs[i] = attrs[i]._replace(id=view.places.directory_id(paths[i]))
        if view.ctimes or view.mtimes:
            attrs = list(map(view.later, attrs, paths))
        asked, tree = set(odd), view.tree
        # where the order has all that is shown, nothing is
        whole = self._overlay is tree.overlay and not tree.clashes
        whole = whole and not self._overlay.of(self.path).states
        if not (whole and all_fit(rows.names)):
            asked |= {i for i, name in enumerate(rows.names) if self._is_asked(name, at + i)}
        found = zip(shorts, attrs, range(at + 1, at + 1 + len(rows)), strict=True)
        if not asked:
            view.note([attr[0] for attr in attrs], paths)
            return list(map(MAKE, repeat(DirEntry), found))
        kept = [i for i in range(len(rows)) if i not in asked]
        view.note([attrs[i].id for i in kept], [paths[i] for i in kept])
        entries = list[DirEntry]()
        for i, entry in enumerate(found):
            attr = self._attr(paths[i]) if i in asked else attrs[i]
            if attr is not None:
                entries.append(DirEntry(entry[0], attr, entry[2]))
        return entries

    def _is_asked(self, name: bytes, index: int) -> bool:
        """Return whether a name has to be looked up: it may have changed, is too long, or may be a
        directory, too."""
        short = shown_part(name[len(self._name) :])
        return (
            self._overlay is not self._view.tree.overlay
            or short in self._overlay.of(self.path).states
            or length_fault(self._prefix + short) is not None
            or self._hidden(name, index)
        )

    def _hidden(self, name: bytes, index: int) -> bool:
        """Return whether there are names below a file, at its place in the order."""
        if not self._view.tree.clashes:
            return False
        if shown_part(name[len(self._name) :]) in self._overlay.of(self.path).dirs:
            return True
        order, prefix = self._overlay.order, name + b"/"
        at = order.lower_bound(prefix, index + 1)
        return at < order.count and order.name(at).startswith(prefix)

    def _child(self, above: bytes, names: list[bytes], k: int, offset: int) -> list[DirEntry]:
        """Return a subdirectory at the first of the names below it, the k-th of some; nothing if it
        has another place. `above`: what these begin with, but for a /; `offset`: behind that
        name."""
        short = shown_part(above[len(self._name) :])
        changed, path = self._overlay.of(self.path), self._prefix + short
        if short in changed.states or short in changed.added:
            return []
        current = self._overlay is self._view.tree.overlay
        attr: Attr | None
        if short in changed.over:
            attr = self._attr(path)
        elif has_entry(self._overlay.order, above, names, k):
            return []
        elif (
            current
            and length_fault(shown(names[k])) is None
            and not self._overlay.is_gone(names[k])
        ):
            attr = self._view.later(self._view.implied_attr(path), path)
            self._view.places.note(attr.id, path)
        else:
            attr = self._attr(path)
        return [] if attr is None else [DirEntry(short, attr, offset)]


def walk(
    order: NameOrder, low: int, high: int, offset: int, prefix: bytes
) -> Iterator[tuple[int, FileTable, int, int, bytes | None]]:
    """Walk the entries of a directory in an order, from an offset on.

    Yields (start, rows, k, stop, below): the index of a block's first row, its rows, and some of
    them. below None: rows [k, stop) are entries of the directory itself. Else row k is the first
    name below the subdirectory `below`, a name without the final /; its other names are skipped.

    low, high  indices of all names below the directory
    prefix     what these begin with
    """
    at, cut = max(offset, low), len(prefix)
    if at > low and b"/" in (name := order.name(at - 1))[cut:]:  # behind a subdirectory
        at = order.lower_bound(name[: name.index(b"/", cut)] + b"0", at)  # "0" follows "/"
    while at < high:
        start, rows = order.block(at)
        names, k, n = rows.names, at - start, min(len(rows), high - start)
        at = start + n
        while k < n:
            slash = names[k].find(b"/", cut)
            if slash < 0:
                flat = b"".join(names[k:n]).count(b"/") == prefix.count(b"/") * (n - k)
                stop = n if flat else next(i for i in range(k, n) if names[i].find(b"/", cut) >= 0)
                yield start, rows, k, stop, None
                k = stop
                continue
            below = names[k][:slash]
            yield start, rows, k, k + 1, below
            k = bisect.bisect_left(names, below + b"0", k + 1)
            if k == len(names):
                at = order.lower_bound(below + b"0", start + k)


def has_entry(order: NameOrder, name: bytes, names: list[bytes], stop: int) -> bool:
    """Return whether a directory has an entry of its name in an order, before the first name below
    it, which is `names[stop]` of some that follow each other there."""
    i = bisect.bisect_left(names, name, 0, stop)
    if i or names[0] == name:
        return names[i] == name
    return order.name(order.lower_bound(name)) == name
