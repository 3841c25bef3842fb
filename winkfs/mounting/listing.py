"""Directories of a mount as they are listed.

Batch     names of the order one after another as files that a directory shows
Listing   an open directory, streamed from an order of names and what changed since

Offsets: behind the name at index i of the order i + 1, behind the n-th of those that came LATE + n,
behind the file of the directory's own name LAST.
"""

from __future__ import annotations

import bisect
import logging
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import compress, repeat
from typing import Any, Final, Protocol, cast

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkfs.container.table import ASK, FILEID, KIND, MODE_AT, SPECIAL, FileTable
from winkfs.entry import DEFAULT_MODES, FileType
from winkfs.errors import DerivedDamage
from winkfs.mounting.ids import OWN_IDS, other_id
from winkfs.mounting.tree import NameTree, Order
from winkfs.names import (
    MAX_COMPONENT,
    MAX_PATH,
    SELF,
    any_odd,
    length_fault,
    name_below,
    shown_all,
    shown_part,
    to_str,
)
from winkmount.source import UNREADABLE, Attr, DirEntry, Page

LATE: Final = 1 << 61
LAST: Final = 3 << 60
FIRST: Final = 64  # names of the first batch
BATCH: Final = 1024
NEAR: Final = 8  # names of the first batch behind a subdirectory
NAMED: Final = 20  # names that cannot be shown, said by name
FEW: Final = 64  # rows that are cheaper one by one than as columns
FILETYPE_DIR: Final = int(FileType.DIR)
FORMAT: Final = 0o170000  # bits of a mode that say what a file is
UINT32: Final = (1 << 32) - 1
MODE_OF: Final = [stat.S_IFREG | mode for mode in DEFAULT_MODES]
MODE_OF[FileType.LINK] = stat.S_IFLNK | 0o777
DIRECTORY_MODE: Final = stat.S_IFDIR | 0o755  # of one without attributes
FORMATS: Final = np.array([stat.S_IFMT(mode) for mode in MODE_OF], np.int64)
MAKE: Final = cast(Any, tuple.__new__)  # what _make does, without a frame of Python


log = logging.getLogger("winkfs.mount")


def attr_of(row: Sequence[int], owner: tuple[int, int]) -> Attr:
    """The attributes of a row of the catalog. `owner`: of files without attributes."""
    _, id, size, mtime, _, ctime, kind, owned = row
    mode, (uid, gid), changed = MODE_OF[kind & 255], owner, 0
    if kind & SPECIAL:
        mode = mode & FORMAT | kind >> MODE_AT
        uid, gid = owned & UINT32, owned >> 32 & UINT32
        changed = ctime if ctime != mtime else 0
    return MAKE(Attr, (id, mode, size, mtime, uid, gid, changed))  # type: ignore[no-any-return]


class Batch:
    """What is to say of some names.

    names, shorts   n names, and what of them is below the directory
    paths           of the names
    attrs           n attributes, None at the indices in `odd`: look one by one
    ids, known      of the others: ids and paths, where the mount is to remember them
    flat            all of them can be shown, and are files of the directory itself
    """

    names: list[bytes]
    paths: list[bytes]
    attrs: list[Attr | None]
    ids: list[int]
    known: list[bytes]
    odd: list[int]

    def _cut(self, cut: int) -> None:
        """`cut`: bytes of each name up to what is below the directory."""
        self.shorts = [name[cut:] for name in self.names] if cut else self.names
        self.flat = flat(self.names, self.shorts)
        if self.paths is not self.names:
            self.flat = self.flat and not any_odd(self.shorts)


def flat(names: list[bytes], shorts: list[bytes]) -> bool:
    """Whether none is too long, and all are in the directory itself: see `Batch`."""
    return (
        b"/".join(shorts).count(b"/") == len(names) - 1
        and max(map(len, shorts)) <= MAX_COMPONENT
        and max(map(len, names)) <= MAX_PATH // 2  # of the paths it may be twice as many
    )


class RowBatch(Batch):
    """What rows of the catalog say."""

    def __init__(
        self,
        rows: FileTable,
        owner: tuple[int, int],
        cut: int,
        directory_id: Callable[[bytes], int],
    ) -> None:
        """`owner`: of files without attributes; `cut`: bytes of each name up to what is below the
        directory; `directory_id`: of the directory with a path."""
        self.names, self.paths, self.odd = rows.names, shown_all(rows.names), []
        if len(rows.names) <= FEW:
            self._each(rows, owner, directory_id)
        else:
            self._all(rows, owner, directory_id)
        self._cut(cut)

    def _each(
        self, rows: FileTable, owner: tuple[int, int], directory_id: Callable[[bytes], int]
    ) -> None:
        self.attrs, self.ids, self.known = [], [], []
        for i, row in enumerate(rows.numbers.tolist()):
            id, kind = row[FILEID], row[KIND]
            if not 0 < id < OWN_IDS or kind & ASK:
                self.odd.append(i)
                self.attrs.append(None)
                continue
            attr = attr_of(row, owner)
            if kind & 255 == FILETYPE_DIR:
                id = directory_id(self.paths[i])
                mode = attr.mode if kind & SPECIAL else DIRECTORY_MODE
                attr = attr._replace(id=id, size=0, mode=stat.S_IFDIR | stat.S_IMODE(mode))
            self.attrs.append(attr)
            self.ids.append(id)
            self.known.append(self.paths[i])

    def _all(
        self, rows: FileTable, owner: tuple[int, int], directory_id: Callable[[bytes], int]
    ) -> None:
        other = rows.asked | (rows.numbers[:, FILEID] >= OWN_IDS) | (rows.numbers[:, FILEID] < 1)
        columns = attributes(rows, owner)
        for i in np.flatnonzero(rows.directories).tolist():
            columns[0, i] = directory_id(self.paths[i])
        made = map(MAKE, repeat(Attr), zip(*columns.tolist(), strict=True))
        self.attrs = list(made)
        self.odd = np.flatnonzero(other).tolist()
        for i in self.odd:
            self.attrs[i] = None
        self.ids = columns[0][~other].tolist()
        self.known = list(compress(self.paths, (~other).tolist())) if self.odd else self.paths


def attributes(rows: FileTable, owner: tuple[int, int]) -> Int64:
    """The fields of `Attr`, int64[7, n]; the ids of directories are those of their entries.

    owner  of files without attributes
    """
    ids, size, mtime, ftype, mode, uid, gid, ctime = rows.stats(owner)
    changed = np.where(ctime != mtime, ctime, 0)
    size = np.where(rows.directories, 0, size)
    format = np.where(rows.directories, stat.S_IFDIR, FORMATS[ftype])
    return np.stack([ids, format | mode, size, mtime, uid, gid, changed])


def fine(short: bytes, path: bytes) -> bool:
    """Whether this can be shown as a file."""
    return len(short) <= MAX_COMPONENT and len(path) <= MAX_PATH


Columns = Callable[[Order, int, int, int, int], Page | None]
"""Of an order, [low, high), at, cut: the names of the block of the order that has the index `at`,
those between low and high, if all are files of the directory itself; `cut` as above."""


class View(Protocol):
    """What a listing asks of the mount."""

    left_out: set[bytes]
    """Names that cannot be shown, of which the log has told."""

    @property
    def tree(self) -> NameTree: ...

    def attr(self, path: bytes) -> Attr | None:
        """Of a file or directory as of now; None where nothing is shown under this name."""

    def directory_attr(self, path: bytes) -> Attr:
        """Of a directory without an entry."""

    def batch(self, order: Order, start: int, stop: int, cut: int) -> Batch:
        """What the files are that an order has at these indices; `cut`: bytes of their names up to
        what is below the directory."""

    def note(self, ids: list[int], paths: list[bytes]) -> None:
        """Remember where files are that are handed out."""


class Listing:
    """An open directory; `path` is where it is now, `id` that by which it was opened."""

    def __init__(self, view: View, path: bytes, id: int = 0) -> None:
        self.path, self.id = path, id
        self._view = view
        self._pass = _Pass(view, path)

    def entries(self, offset: int) -> Iterator[DirEntry]:
        """See `Source.readdir`. Cost: a search in the order a subdirectory."""
        if offset == 0:
            self._pass = _Pass(self._view, self.path)
        return self._pass.entries(offset)

    def page(self, offset: int, version: int, columns: Columns) -> Page | None:
        """See `winkmount.source.Paged`."""
        return self._pass.page(offset, version, columns)

    def fix(self) -> None:
        """Before the path changes. Memory: the names."""
        self._pass.fix()

    def move(self, path: bytes) -> None:
        """After that."""
        self.path = path
        self._pass.move(path)


class _Pass:
    """One time through a directory: names of the order in its order; those that came since behind.

    It goes on with the order it began with.
    """

    def __init__(self, view: View, path: bytes) -> None:
        self.path = path
        self._view = view
        self._overlay = view.tree.overlay
        self._prefix = path + b"/" if path else b""
        self._name = name_below(self._prefix)  # what the names begin with in the order
        self._late: list[tuple[int, bytes]] | None = None
        self._fixed: list[tuple[int, bytes]] | None = None  # all names, where the path is another
        self._page: tuple[tuple[int, int], Page | None] = (-1, -1), None  # as of which versions

    def fix(self) -> None:
        """The order does not have the names under the path to come: remember them."""
        if self._fixed is None:
            self._fixed = [(entry.offset, entry.name) for entry in self.entries(0)]

    def move(self, path: bytes) -> None:
        self.path, self._prefix = path, path + b"/"
        self._name = name_below(self._prefix)

    def entries(self, offset: int) -> Iterator[DirEntry]:
        if offset < LATE and self._fixed is None:
            offset = max(offset, (yield from self._ordered(offset)))
        if self._fixed is not None:
            yield from self._named(self._fixed, offset)
            return
        if self._late is None:
            added = self._overlay.of(self.path).added
            self._late = [(LATE + number, short) for short, number in added.items()]
        yield from self._named(self._late, offset)
        if offset < LAST and self._view.tree.has_own(self.path):
            yield from self._named([(LAST, SELF)], offset)

    def page(self, offset: int, version: int, columns: Columns) -> Page | None:
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
        order, cut = self._overlay.order, len(self._name)
        found = columns(order, low, high, max(offset, low), cut)
        page = None if found is None else self._as_now(found)
        if page is not None and page.offsets[-1] <= offset:
            page = None
        self._page = versions, page
        return page

    def _as_now(self, page: Page) -> Page | None:
        """The same with what has changed since the order was made; None where not all are files
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
        """The names behind an offset that are there."""
        for number, short in names[bisect.bisect(names, (offset, b"\xff" * 256)) :]:
            attr = self._attr(self._prefix + short)
            if attr is not None:
                yield DirEntry(short, attr, number)

    def _attr(self, path: bytes) -> Attr | None:
        if fault := length_fault(path):
            self._say(path, f"not shown: {to_str(path)}: {fault}")
            return None
        try:
            return self._view.attr(path)
        except DerivedDamage:
            raise
        except CorruptError as error:
            self._say(path, f"cannot be read: {to_str(path)}: {error}")
            return Attr(other_id(path, 0), stat.S_IFREG, UNREADABLE, 0, 0, 0)

    def _say(self, path: bytes, what: str) -> None:
        """Once for each path."""
        known = self._view.left_out
        if len(known) < NAMED and path not in known:
            known.add(path)
            log.warning("%s", what)

    # names of the order

    def _ordered(self, offset: int) -> Generator[DirEntry, None, int]:
        """-> an offset behind what was given."""
        order, tree = self._overlay.order, self._view.tree
        low, high = self._overlay.range(self.path)
        at, step, cut = max(offset, low), FIRST, len(self._name)
        if at > low:  # behind a subdirectory: pass over the names below it
            child, slash, _ = order.name(at - 1)[cut:].partition(b"/")
            if slash:
                at = order.lower_bound(self._name + child + b"0", at)
        while at < high and self._fixed is None:
            stop = min(at + step, high)
            batch = self._view.batch(order, at, stop, cut)
            version, then = tree.version, at
            if batch.flat and self._simple:
                at, found = stop, self._flat(batch, at)
            else:
                at, found = self._mixed(batch, at)
            step = min(2 * step, BATCH) if at == stop else NEAR
            for entry in found:
                if tree.version == version:
                    yield entry
                    continue
                attr = self._attr(self._prefix + entry.name)  # there was a change meanwhile
                if attr is not None:
                    yield entry._replace(attr=attr)
            assert at > then
        return at

    @property
    def _simple(self) -> bool:
        """Whether the order tells all that there is to know."""
        tree = self._view.tree
        changed = self._overlay.of(self.path)
        return not (changed.states or tree.clashes) and self._overlay is tree.overlay

    def _flat(self, batch: Batch, at: int) -> list[DirEntry]:
        """A batch of files of this directory, none of which has changed."""
        attrs: list[Attr | None] = batch.attrs
        for i in batch.odd:
            attrs[i] = self._attr(batch.paths[i])
        self._view.note(batch.ids, batch.known)
        found = zip(batch.shorts, attrs, range(at + 1, at + 1 + len(attrs)), strict=True)
        if batch.odd:
            return [DirEntry(*entry) for entry in found if entry[1] is not None]  # type: ignore[arg-type]
        return list(map(MAKE, repeat(DirEntry), found))

    def _mixed(self, batch: Batch, at: int) -> tuple[int, list[DirEntry]]:
        """-> where to go on, and entries. Names below a subdirectory are passed over."""
        order, found = self._overlay.order, []
        names, paths, attrs = batch.names, batch.paths, batch.attrs
        odd, k, n = set(batch.odd), 0, len(batch.names)
        ids, known = list[int](), list[bytes]()  # only of what is still there: it may have moved
        states, simple = (
            self._overlay.of(self.path).states,
            self._overlay is self._view.tree.overlay,
        )
        while k < n:
            part, slash, _ = batch.shorts[k].partition(b"/")
            short = shown_part(part)
            if not slash:
                if short in states or not simple or k in odd or self._hidden(names[k], at + k):
                    attr = self._attr(paths[k])
                elif (attr := attrs[k]) is not None and fine(short, paths[k]):
                    ids.append(attr.id)
                    known.append(paths[k])
                else:
                    attr = self._attr(paths[k])
            else:
                attr = self._child(short, self._name + part, batch, k)
            if attr is not None:
                found.append(DirEntry(short, attr, at + k + 1))
            k += 1
            if slash:
                behind = self._name + part + b"0"  # "0" follows "/"
                k = bisect.bisect_left(names, behind, k)
                if k == n:
                    at, n = order.lower_bound(behind, at + n), 0
        self._view.note(ids, known)
        return at + n, found

    def _hidden(self, name: bytes, index: int) -> bool:
        """Whether there are names below a file, at its place in the order."""
        if not self._view.tree.clashes:
            return False
        if shown_part(name[len(self._name) :]) in self._overlay.of(self.path).dirs:
            return True
        order, prefix = self._overlay.order, name + b"/"
        at = order.lower_bound(prefix, index + 1)
        return at < order.count and order.name(at).startswith(prefix)

    def _child(self, short: bytes, above: bytes, batch: Batch, k: int) -> Attr | None:
        """A subdirectory at the first of the names below it, the k-th of a batch; None where it has
        another place. `above`: what these begin with, but for a /."""
        changed, path = self._overlay.of(self.path), self._prefix + short
        if short in changed.states or short in changed.added:
            return None
        if short in changed.over:
            return self._attr(path)
        if has_entry(self._overlay.order, above, batch.names, k):
            return None
        name, current = batch.names[k], self._overlay is self._view.tree.overlay
        shows = length_fault(batch.paths[k]) is None
        if current and shows and not self._overlay.is_gone(name):
            return self._view.directory_attr(path)
        return self._attr(path)


def has_entry(order: Order, name: bytes, names: list[bytes], stop: int) -> bool:
    """Whether a directory has an entry of its name in an order, before the first name below it,
    which is `names[stop]` of some that follow each other there."""
    i = bisect.bisect_left(names, name, 0, stop)
    if i or names[0] == name:
        return names[i] == name
    return order.name(order.lower_bound(name)) == name
