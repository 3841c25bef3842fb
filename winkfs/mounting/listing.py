"""Directories of a mount as they are listed.

Batch     names of the order one after another as files that a directory shows
Listing   an open directory, streamed from an order of names and what changed since
Listings  the open directories of a mount, by handle
Numbers   numbers of the files and directories of a container that never changes

Offsets: behind the name at index i of the order i + 1, behind the n-th of those that came LATE + n.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import logging
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkfs.container.ondisk.inode import DEFAULT_MODES, FileType
from winkfs.container.rows import ASK, COLUMNS, FILEID, KIND, MODE_AT, POINTER, POS, SPECIAL, Rows
from winkfs.errors import DerivedDamage
from winkfs.mounting.ids import OWN_IDS, Places, other_id
from winkfs.mounting.tree import NameTree, Order
from winkfs.names import MAX_COMPONENT, MAX_PATH, bad_prefix, to_str
from winkmount.source import UNREADABLE, Attr, DirEntry, Page, refuse

LATE: Final = 1 << 61
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
MODES: Final = np.array(MODE_OF, np.int64)
FORMATS: Final = np.array([stat.S_IFMT(mode) for mode in MODE_OF], np.int64)
MAKE: Final = cast(Any, tuple.__new__)  # what _make does, without a frame of Python

DIRECTORY: Final = 1 << 62  # numbers: of a directory that the order has, with
EPOCH_AT: Final = 57  # the epoch of the order,
INDEX_AT: Final = 12  # the index of a name, and how many of its components are the path; 0: all
EPOCHS: Final = 16
LATER: Final = 53  # offsets: from this bit on the epoch
INDICES: Final = 1 << EPOCH_AT - INDEX_AT
DEPTHS: Final = 1 << INDEX_AT
OTHER: Final = 1 << 61  # of a directory that the order does not have
TOP: Final = 1  # of the top directory
NO_ROWS: Final = Rows([], np.empty((0, len(COLUMNS)), np.int64))
NOTHING: Final = Page([], np.empty(0, np.int64), np.empty((0, len(Attr._fields)), np.int64), [])
SHEETS: Final = 8  # blocks remembered as they are listed
PAGES: Final = 16  # parts of directories that are

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
    attrs           n attributes, None at the indices in `odd`: look one by one
    ids, known      of the others: ids and names, where the mount is to remember them
    flat            all of them can be shown, and are files of the directory itself
    """

    names: list[bytes]
    attrs: list[Attr | None]
    ids: list[int]
    known: list[bytes]
    odd: list[int]

    def _cut(self, cut: int) -> None:
        """`cut`: bytes of each name up to what is below the directory."""
        self.shorts = [name[cut:] for name in self.names] if cut else self.names
        joined = b"/".join(self.shorts)
        self.flat = (
            joined.count(b"/") == len(self.names) - 1
            and max(map(len, self.shorts)) <= MAX_COMPONENT
            and max(map(len, self.names)) <= MAX_PATH
            and not {b"", b".", b".."}.intersection(self.shorts)
        )


class RowBatch(Batch):
    """What rows of the catalog say."""

    def __init__(
        self, rows: Rows, owner: tuple[int, int], cut: int, directory_id: Callable[[bytes], int]
    ) -> None:
        """`owner`: of files without attributes; `cut`: bytes of each name up to what is below the
        directory; `directory_id`: of the directory with a path."""
        self.names, self.odd = rows.names, []
        if len(rows.names) <= FEW:
            self._each(rows, owner, directory_id)
        else:
            self._all(rows, owner, directory_id)
        self._cut(cut)

    def _each(
        self, rows: Rows, owner: tuple[int, int], directory_id: Callable[[bytes], int]
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
                id = directory_id(rows.names[i])
                mode = attr.mode if kind & SPECIAL else DIRECTORY_MODE
                attr = attr._replace(id=id, size=0, mode=stat.S_IFDIR | stat.S_IMODE(mode))
            self.attrs.append(attr)
            self.ids.append(id)
            self.known.append(rows.names[i])

    def _all(
        self, rows: Rows, owner: tuple[int, int], directory_id: Callable[[bytes], int]
    ) -> None:
        other = rows.asked | (rows.numbers[:, FILEID] >= OWN_IDS) | (rows.numbers[:, FILEID] < 1)
        columns = attributes(rows, owner)
        for i in np.flatnonzero(rows.directories).tolist():
            columns[0, i] = directory_id(rows.names[i])
        made = map(MAKE, repeat(Attr), zip(*columns.tolist(), strict=True))
        self.attrs = list(made)
        self.odd = np.flatnonzero(other).tolist()
        for i in self.odd:
            self.attrs[i] = None
        self.ids = columns[0][~other].tolist()
        self.known = rows.take(~other).names


def attributes(rows: Rows, owner: tuple[int, int]) -> Int64:
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
    usual = short not in (b"", b".", b"..")
    return usual and len(short) <= MAX_COMPONENT and len(path) <= MAX_PATH


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
    """An open directory; `path` is where it is now."""

    def __init__(self, view: View, path: bytes) -> None:
        self.path = path
        self._view = view
        self._pass = _Pass(view, path)

    def entries(self, offset: int) -> Iterator[DirEntry]:
        """See `Source.readdir`. Cost: a search in the order a subdirectory."""
        if offset == 0:
            self._pass = _Pass(self._view, self.path)
        return self._pass.entries(offset)

    def fix(self) -> None:
        """Before the path changes. Memory: the names."""
        self._pass.fix()

    def move(self, path: bytes) -> None:
        """After that."""
        self.path = path
        self._pass.move(path)


class Listings:
    """The open directories of a mount, by handle."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._open: dict[int, tuple[int, Listing]] = {}  # handle -> id of the directory, listing
        self._handles = itertools.count(1)

    def open(self, directory: int, path: bytes) -> int:
        """-> a handle for a directory. `directory`: its id, that `close` returns."""
        handle = next(self._handles)
        self._open[handle] = directory, Listing(self._view, path)
        return handle

    def __getitem__(self, handle: int) -> Listing:
        return self._open[handle][1]

    def __iter__(self) -> Iterator[Listing]:
        return (listing for _, listing in self._open.values())

    def close(self, handle: int) -> int:
        """-> the id of the directory."""
        return self._open.pop(handle)[0]


class _Pass:
    """One time through a directory: names of the order in its order; those that came since behind.

    It goes on with the order it began with.
    """

    def __init__(self, view: View, path: bytes) -> None:
        self.path = path
        self._view = view
        self._overlay = view.tree.overlay
        self._prefix = path + b"/" if path else b""
        self._late: list[tuple[int, bytes]] | None = None
        self._fixed: list[tuple[int, bytes]] | None = None  # all names, where the path is another

    def fix(self) -> None:
        """The order does not have the names under the path to come: remember them."""
        if self._fixed is None:
            self._fixed = [(entry.offset, entry.name) for entry in self.entries(0)]

    def move(self, path: bytes) -> None:
        self.path, self._prefix = path, path + b"/"

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

    def _named(self, names: list[tuple[int, bytes]], offset: int) -> Iterator[DirEntry]:
        """The names behind an offset that are there."""
        for number, short in names[bisect.bisect(names, (offset, b"\xff" * 256)) :]:
            attr = self._attr(self._prefix + short)
            if attr is not None:
                yield DirEntry(short, attr, number)

    def _attr(self, path: bytes) -> Attr | None:
        if bad_prefix(path) is not None:
            self._leave_out(path, "no path can have this name")
            return None
        try:
            return self._view.attr(path)
        except DerivedDamage:
            raise
        except CorruptError as error:
            self._say(path, f"cannot be read: {to_str(path)}: {error}")
            return Attr(other_id(path, 0), stat.S_IFREG, UNREADABLE, 0, 0, 0)

    def _leave_out(self, path: bytes, why: str) -> None:
        self._say(path, f"not shown: {to_str(path)}: {why}")

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
        at, step, cut = max(offset, low), FIRST, len(self._prefix)
        if at > low:  # behind a subdirectory: pass over the names below it
            child, slash, _ = order.name(at - 1)[cut:].partition(b"/")
            if slash:
                at = order.lower_bound(self._prefix + child + b"0", at)
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
            attrs[i] = self._attr(batch.names[i])
        self._view.note(batch.ids, batch.known)
        found = zip(batch.shorts, attrs, range(at + 1, at + 1 + len(attrs)), strict=True)
        if batch.odd:
            return [DirEntry(*entry) for entry in found if entry[1] is not None]  # type: ignore[arg-type]
        return list(map(MAKE, repeat(DirEntry), found))

    def _mixed(self, batch: Batch, at: int) -> tuple[int, list[DirEntry]]:
        """-> where to go on, and entries. Names below a subdirectory are passed over."""
        order, found = self._overlay.order, []
        names, shorts, attrs = batch.names, batch.shorts, batch.attrs
        odd, k, n = set(batch.odd), 0, len(batch.names)
        self._view.note(batch.ids, batch.known)
        states, simple = (
            self._overlay.of(self.path).states,
            self._overlay is self._view.tree.overlay,
        )
        while k < n:
            short, slash, _ = shorts[k].partition(b"/")
            if not slash:
                if short in states or not simple or k in odd or self._hidden(names[k], at + k):
                    attr = self._attr(names[k])
                else:
                    attr = attrs[k] if fine(short, names[k]) else self._attr(names[k])
            else:
                attr = self._child(short, batch, k)
            if attr is not None:
                found.append(DirEntry(short, attr, at + k + 1))
            k += 1
            if slash:
                behind = self._prefix + short + b"0"  # "0" follows "/"
                k = bisect.bisect_left(names, behind, k)
                if k == n:
                    return order.lower_bound(behind, at + n), found
        return at + n, found

    def _hidden(self, path: bytes, index: int) -> bool:
        """Whether there are names below a file, at its place in the order."""
        if not self._view.tree.clashes:
            return False
        if path[len(self._prefix) :] in self._overlay.of(self.path).dirs:
            return True
        order, prefix = self._overlay.order, path + b"/"
        at = order.lower_bound(prefix, index + 1)
        return at < order.count and order.name(at).startswith(prefix)

    def _child(self, short: bytes, batch: Batch, k: int) -> Attr | None:
        """A subdirectory at the first of the names below it, the k-th of a batch; None where it has
        another place."""
        changed, path = self._overlay.of(self.path), self._prefix + short
        if short in changed.states or short in changed.added:
            return None
        if short in changed.over:
            return self._attr(path)
        if has_entry(self._overlay.order, path, batch.names, k):
            return None
        name, current = batch.names[k], self._overlay is self._view.tree.overlay
        if current and bad_prefix(name) is None and not self._overlay.is_gone(name):
            return self._view.directory_attr(path)
        return self._attr(path)


def has_entry(order: Order, path: bytes, names: list[bytes], stop: int) -> bool:
    """Whether a directory has an entry in an order, before the first name below it, which is
    `names[stop]` of some that follow each other there."""
    i = bisect.bisect_left(names, path, 0, stop)
    if i or names[0] == path:
        return names[i] == path
    return order.name(order.lower_bound(path)) == path


# --- numbers ---


class Blocks(Order, Protocol):
    """An order that has its names in blocks."""

    def block(self, index: int) -> tuple[int, Rows]:
        """The block that has the name with this index: index of its first one, and its rows."""


class Numbered(View, Protocol):
    """What numbers ask of a mount that never changes."""

    places: Places

    @property
    def order(self) -> Blocks: ...
    @property
    def generation(self) -> int:
        """Grows when positions do not mean any more what they did."""

    @property
    def owner(self) -> tuple[int, int]:
        """Of files without attributes."""

    def implied_attr(self, path: bytes) -> Attr:
        """Of a directory that nothing but names below it tells of."""

    def position(self, path: bytes) -> int:
        """Of the inode of a file. Raises CorruptError."""

    def path_at(self, pos: int) -> bytes:
        """The name of the file whose inode is there. Raises CorruptError."""

    def read_at(self, pos: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes of the file whose inode is there. Raises CorruptError."""

    def present(self, pos: int, size: int) -> bool:
        """See `winkmount.source.Nodes`, of the file whose inode is there."""

    def bring(self, pos: int, size: int) -> None: ...

    def contents(self, rows: Int64) -> Sequence[bytes | memoryview | None]:
        """The contents of the files of these rows of the order, one entry each, int64[n, 8]; good
        until the next call. None: read it alone."""


class Sheet:
    """A block of the order, each name as an entry of the directory it is in.

    start, stop  which indices it has
    names        of the block
    page         their entries
    above        the directory that each is in
    depths       how many components that has
    until        behind each, and behind those of the same directory that follow it
    ends         where the directory ends whose first name this is, if it is one without others
                 below, and ends before the block; else 0
    strange      there are names that cannot be shown, or that the order does not tell all of
    """

    def __init__(self, numbers: Numbers, start: int, rows: Rows) -> None:
        names, n = rows.names, len(rows.names)
        self.start, self.stop, self.names = start, start + n, names
        self.ends, self.until = [0] * n, list[int]()
        above, depth = names[0].rpartition(b"/")[0], names[0].count(b"/")
        cut = len(above) + 1 if depth else 0
        if names[-1].startswith(names[0][:cut]) and b"".join(names).count(b"/") == n * depth:
            self.above, self.depths = [above] * n, [depth] * n  # all in one directory
            shorts = [name[cut:] for name in names]
        else:
            shorts = self._split(names)
        self.until += [n] * (n - len(self.until))
        behind = numbers.offset(start + 1)
        nodes = rows.numbers[:, POS].copy()
        attrs = np.ascontiguousarray(attributes(rows, numbers.owner).T)
        for i in np.flatnonzero(rows.directories).tolist():
            nodes[i] = numbers.of_directory(names[i], start + i)
            attrs[i, 0] = numbers.places.directory_id(names[i])
        self.page = Page(shorts, nodes, attrs, range(behind, behind + n), places=rows.numbers)
        ids = rows.numbers[:, FILEID]
        odd = rows.asked | ~rows.directories & ((ids >= OWN_IDS) | (ids < 1))
        self.strange = bool(odd.any()) or not all_shown(names)

    def _split(self, names: list[bytes]) -> list[bytes]:
        """Fill in the directories of the names -> what each is called there. Names of one directory
        without others between them are looked at together: a third of the time of each alone."""
        shorts, n = list[bytes](), len(names)
        self.above, self.depths = [], []
        while (at := len(shorts)) < n:
            above, slash, short = names[at].rpartition(b"/")
            depth, stop = names[at].count(b"/"), at + 1
            if slash:
                stop = bisect.bisect_left(names, above + b"0", at)  # "0" follows "/"
                if b"".join(names[at:stop]).count(b"/") != (stop - at) * depth:
                    stop = at + 1  # there are names below others
            if at and above != self.above[-1]:
                first = len(self.until)
                if self.depths[first] and not above.startswith(self.above[first] + b"/"):
                    self.ends[first] = at
                self.until += [at] * (at - first)
            self.above += [above] * (stop - at)
            self.depths += [depth] * (stop - at)
            cut = len(above) + 1
            shorts += [name[cut:] for name in names[at:stop]] if slash else [short]
        return shorts


def all_shown(names: list[bytes]) -> bool:
    """Whether all of these can be paths."""
    text = b"/" + b"/\0/".join(names) + b"/"
    dots = b"/." in text and (b"/./" in text or b"/../" in text)
    usual = not (b"//" in text or dots)
    return usual and (
        max(map(len, names)) <= MAX_COMPONENT or all(bad_prefix(name) is None for name in names)
    )


class Part(NamedTuple):
    """Entries of one directory behind `first`, up to the end of the page or of the directory."""

    first: int
    page: Page
    whole: bool


class Numbers:
    """Numbers of what a container shows that never changes: see `winkmount.source.Nodes`.

    That of a file is the position of its inode, so nothing has to be remembered of it; that of a
    directory is the index of the first name below it in the order. Other directories, of names that
    came since the order was made, are remembered: they are few.

    cost    memory: SHEETS blocks, PAGES parts of directories
    """

    def __init__(self, view: Numbered) -> None:
        self._view, self.places, self.owner = view, view.places, view.owner
        self._generation, self._epoch = view.generation, 0
        self._base = 0  # what the offsets are ahead of those of a listing
        self._overlay, self._order = view.tree.overlay, view.order
        self._orders = {0: self._order}  # of the last EPOCHS epochs
        self._others: dict[bytes, int] = {}
        self._known: list[bytes] = []  # the path with each of these numbers
        self._sheets: dict[int, Sheet] = {}
        self._parts: dict[int, Part] = {}
        self._streams: dict[bytes, tuple[int, Iterator[DirEntry]]] = {}  # from which offset on
        self._sheet: Sheet | None = None
        self._in_order = False  # it is the one behind the one before
        self._last: tuple[int, Rows] = 0, NO_ROWS  # the last block, and its first index
        self._above: tuple[bytes, int] = b"", self.places.root

    # numbers

    def of_directory(self, path: bytes, near: int = -1) -> int:
        """The number of a directory. `near`: index of its entry in the order."""
        if not path:
            return TOP
        order, prefix = self._order, path + b"/"
        at = order.lower_bound(prefix, near + 1)
        if at < order.count and order.name(at).startswith(prefix):
            return self._number(at, path.count(b"/") + 1)
        if near < 0:
            near = order.lower_bound(path)
            if near == order.count or order.name(near) != path:
                if path not in self._others:
                    self._others[path] = len(self._known)
                    self._known.append(path)
                return OTHER | self._others[path]
        return self._number(near, 0)

    def _number(self, index: int, depth: int) -> int:
        return DIRECTORY | self._epoch << EPOCH_AT | index << INDEX_AT | depth

    def _of(self, path: bytes, attr: Attr) -> int:
        return self.of_directory(path) if attr.is_dir else self._view.position(path)

    def path(self, node: int) -> bytes:
        self._check()
        if node == TOP:
            return b""
        if node & DIRECTORY:
            index, depth = node >> INDEX_AT & INDICES - 1, node & DEPTHS - 1
            epoch, sheet = node >> EPOCH_AT & EPOCHS - 1, self._sheet
            if sheet is not None and epoch == self._epoch and sheet.start <= index < sheet.stop:
                if depth and sheet.depths[index - sheet.start] == depth:
                    return sheet.above[index - sheet.start]
                name = sheet.names[index - sheet.start]
            else:
                name = self._name(epoch, index)
            return b"/".join(name.split(b"/", depth)[:depth]) if depth else name
        if node & OTHER:
            return self._known[node ^ OTHER]
        if self._view.generation != self._generation:
            raise refuse(errno.ESTALE)
        return self._view.path_at(node)

    def _name(self, epoch: int, index: int) -> bytes:
        """Of a row of the order, or of one that was damaged and made anew."""
        order = self._orders[epoch]
        if epoch == self._epoch:
            return order.name(index)
        try:
            return order.name(index)
        except DerivedDamage:
            raise refuse(errno.EIO) from None

    def _check(self) -> None:
        """Go on with another order, where a damaged one was made anew."""
        overlay = self._view.tree.overlay
        if overlay.order is self._order:
            return
        if overlay is not self._overlay:  # the indices are others
            self._epoch = (self._epoch + 1) % EPOCHS
        self._overlay, self._order = overlay, self._view.order
        self._base = self._epoch << LATER
        self._orders[self._epoch] = self._order
        self._sheets, self._parts, self._streams = {}, {}, {}
        self._sheet, self._last = None, (0, NO_ROWS)

    # files

    def find(self, parent: int, name: bytes) -> tuple[int, Attr]:
        above = self.path(parent)
        path = above + b"/" + name if above else name
        attr = self._view.attr(path)
        if attr is None:
            raise refuse(errno.ENOENT)
        return self._of(path, attr), attr

    def attr(self, node: int) -> Attr:
        attr = self._view.attr(self.path(node)) if node != TOP else self._view.directory_attr(b"")
        if attr is None:
            raise refuse(errno.ESTALE)
        return attr

    def ids(self, node: int) -> tuple[int, int]:
        path = self.path(node)
        above = path.rpartition(b"/")[0]
        if self._above[0] != above:
            self._above = above, self.places.directory_id(above)
        return self.places.directory_id(path), self._above[1]

    def read(self, node: int, offset: int, size: int) -> bytes:
        if self._view.generation != self._generation:
            raise refuse(errno.ESTALE)
        return self._view.read_at(node, offset, size)

    def around(self, node: int) -> tuple[Page, int, int] | None:
        self._check()
        path = self.path(node)
        at = self._order.lower_bound(path)
        if at == self._order.count:
            return None
        sheet = self._sheet_of(at)
        i = at - sheet.start
        if sheet.names[i] != path or sheet.page.nodes[i] != node:
            return None
        return sheet.page, i, sheet.until[i]

    def contents(self, page: Page, chosen: Int64) -> Sequence[bytes | memoryview | None]:
        if self._view.generation != self._generation:
            raise refuse(errno.ESTALE)
        assert isinstance(page.places, np.ndarray)
        rows = page.places[chosen]
        return self._view.contents(rows) if (rows[:, POINTER] > 0).all() else [None] * len(rows)

    def present(self, node: int, size: int) -> bool:
        return self._view.present(node, size)

    def bring(self, node: int, size: int) -> None:
        self._view.bring(node, size)

    # directories

    def entries(self, node: int, offset: int) -> tuple[Page, int, int]:
        self._check()
        if offset and offset >> LATER & EPOCHS - 1 != self._epoch:
            raise refuse(errno.EIO)  # where it stood in the order that was damaged nobody knows
        if node >> EPOCH_AT == self._epoch | EPOCHS << 1:
            index, depth = node >> INDEX_AT & INDICES - 1, node & DEPTHS - 1
            sheet = self._sheet_of(index)
            first = index - sheet.start
            stop = sheet.ends[first]
            plain = stop and not sheet.strange and sheet.depths[first] == depth
            if plain and self._tells_all(sheet.above[first]):
                if offset:
                    first = min(max(offset - self._base - sheet.start, first), stop)
                return sheet.page, first, stop
        part = self._parts.get(node)
        if part is None or not (part.first <= offset and (offset < last_of(part) or part.whole)):
            path = self.path(node)
            run = self._run(path, offset)
            if run is not None:
                return run
            part = self._part(path, offset)
            if len(self._parts) >= PAGES:
                del self._parts[next(iter(self._parts))]
            self._parts[node] = part
        return part.page, bisect.bisect(part.page.offsets, offset), len(part.page.names)

    def _run(self, path: bytes, offset: int) -> tuple[Page, int, int] | None:
        """Entries of a directory behind an offset where many are files one behind the other, or
        there are none."""
        low, high = self._overlay.range(path)
        at = max(offset - self._base, low)
        if not self._tells_all(path):
            return None
        if at >= high:
            return NOTHING, 0, 0
        sheet = self._sheet_of(at)
        first = at - sheet.start
        stop = sheet.until[first]
        many = stop - first >= FEW or sheet.start + stop in (high, sheet.stop)
        if sheet.strange or sheet.above[first] != path or not many:
            return None
        return sheet.page, first, stop

    def _tells_all(self, path: bytes) -> bool:
        """Whether the order is all that there is to know of a directory."""
        return path not in self._overlay.dirs and not self._view.tree.clashes

    def offset(self, offset: int) -> int:
        """Here, of one of a listing."""
        return offset + self._base

    def prepare(self) -> tuple[Page, bool] | None:
        sheet = self._sheet
        if sheet is None or not self._in_order or sheet.stop >= self._order.count:
            return None
        start, _ = self._order.block(sheet.stop)
        known = start in self._sheets
        return self._made(sheet.stop).page, not known

    def _sheet_of(self, index: int) -> Sheet:
        sheet = self._sheet
        if sheet is None or not sheet.start <= index < sheet.stop:
            before, sheet = sheet, self._made(index)
            self._in_order = before is not None and sheet.start == before.stop
            self._sheet = sheet
        return sheet

    def _made(self, index: int) -> Sheet:
        """The sheet that has an index; the last SHEETS stay in memory."""
        start, rows = self._order.block(index)
        sheet = self._sheets.get(start)
        if sheet is None:
            sheet = Sheet(self, start, rows)
            if len(self._sheets) >= SHEETS:
                del self._sheets[next(iter(self._sheets))]
            self._sheets[start] = sheet
        return sheet

    def _part(self, path: bytes, offset: int) -> Part:
        """Entries of a directory behind an offset, about BATCH."""
        found = self._ordered(path, offset) if self._tells_all(path) else None
        return self._streamed(path, offset) if found is None else found

    def _streamed(self, path: bytes, offset: int) -> Part:
        """As a listing has it, which knows everything."""
        at, behind = self._streams.pop(path, (-1, iter(())))
        if at != offset:
            behind = Listing(self._view, path).entries(max(offset - self._base, 0))
        entries = list(itertools.islice(behind, BATCH))
        if entries:
            if len(self._streams) >= PAGES:
                del self._streams[next(iter(self._streams))]
            self._streams[path] = entries[-1].offset + self._base, behind
        prefix = path + b"/" if path else b""
        nodes = [self._listed(prefix + entry.name, entry) for entry in entries]
        columns, n = len(Attr._fields), len(entries)
        values = itertools.chain.from_iterable(entry.attr for entry in entries)
        attrs = np.fromiter(values, np.int64, columns * n).reshape(n, columns)
        page = Page(
            [entry.name for entry in entries],
            np.array(nodes, np.int64),
            attrs,
            [entry.offset + self._base for entry in entries],
        )
        return Part(offset, page, len(entries) < BATCH)

    def _listed(self, path: bytes, entry: DirEntry) -> int:
        """The number of what a listing gives; from the order, where that has not changed."""
        if entry.attr.size == UNREADABLE:
            return 0
        if not entry.attr.is_dir and entry.offset <= self._order.count:
            above, _, short = path.rpartition(b"/")
            start, rows = self._block(entry.offset - 1)
            i = entry.offset - 1 - start
            if rows.names[i] == path and short not in self._overlay.of(above).states:
                return int(rows.numbers[i, POS])
        return self._of(path, entry.attr)

    def _ordered(self, path: bytes, offset: int) -> Part | None:
        """As the order alone has it; None where that is not all that there is to know."""
        order, prefix = self._order, path + b"/" if path else b""
        low, high = self._overlay.range(path)
        cut, depth = len(prefix), path.count(b"/") + 1 + (path != b"")
        base, at = self._base, max(offset - self._base, low)
        if at > low and b"/" in (name := order.name(at - 1))[cut:]:  # pass over a subdirectory
            at = self._behind(name[: name.index(b"/", cut)], at)
        names, nodes, attrs, offsets = list[bytes](), [], list[Sequence[int]](), []
        while at < high and len(names) < BATCH:
            start, rows = self._block(at)
            i = at - start
            name, at = rows.names[i], at + 1
            slash = name.find(b"/", cut)
            if slash < 0:
                sheet = self._sheet_of(at - 1)
                if sheet.strange:
                    return None
                names.append(sheet.page.names[i])
                nodes.append(int(sheet.page.nodes[i]))
                attrs.append(sheet.page.attrs[i].tolist())
                offsets.append(base + at)
                continue
            if not all_shown([name]):
                return None
            child = name[:slash]
            if not has_entry(order, child, rows.names, i):
                names.append(child[cut:])
                nodes.append(self._number(at - 1, depth))
                attrs.append(self._view.implied_attr(child))
                offsets.append(base + at)
            at = self._behind(child, at)
        numbers = np.array(attrs, np.int64).reshape(-1, len(Attr._fields))
        return Part(offset, Page(names, np.array(nodes, np.int64), numbers, offsets), at >= high)

    def _block(self, index: int) -> tuple[int, Rows]:
        """The block that has this name: index of its first one, and its rows."""
        if not 0 <= index - self._last[0] < len(self._last[1].names):
            self._last = self._order.block(index)
        return self._last

    def _behind(self, directory: bytes, at: int) -> int:
        """Index of the first name from `at` on that is not below a directory."""
        behind = directory + b"0"  # "0" follows "/"
        start, names = self._last[0], self._last[1].names
        if 0 <= at - start < len(names) and behind <= names[-1]:
            return start + bisect.bisect_left(names, behind, at - start)
        return self._order.lower_bound(behind, at)


def last_of(part: Part) -> int:
    """The offset behind its last entry."""
    return part.page.offsets[-1] if part.page.offsets else part.first
