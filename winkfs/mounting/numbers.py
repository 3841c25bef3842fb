"""Numbers of the files and directories of a mount that never changes.

Numbered  what is asked of such a mount
Sheet     a block of the order of names, as entries of directories
Numbers   the numbers, and directories by them
"""

from __future__ import annotations

import bisect
import errno
import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from winkformats.arrays import Int64
from winkfs.container.table import POINTER, POS, FileTable
from winkfs.errors import DerivedDamage
from winkfs.mounting.listing import (
    MOST_AT_ONCE,
    Listing,
    View,
    all_fit,
    attributes,
    has_entry,
    odd_rows,
    walk,
)
from winkfs.names import (
    any_odd,
    name_at,
    name_below,
    shown,
    shown_part,
)
from winkmount.source import UNREADABLE, Attr, DirEntry, Page, refuse

DIRECTORY: Final = 1 << 62  # numbers: of a directory that the order has, with
EPOCH_AT: Final = 57  # the epoch of the order,
INDEX_AT: Final = 12  # the index of a name, and how many of its components are the path; 0: all
EPOCHS: Final = 16
LATER: Final = 53  # offsets: from this bit on the epoch
INDICES: Final = 1 << EPOCH_AT - INDEX_AT
DEPTHS: Final = 1 << INDEX_AT
OTHER: Final = 1 << 61  # of a directory that the order does not have
TOP: Final = 1  # of the top directory
NOTHING: Final = Page([], np.empty(0, np.int64), np.empty((0, len(Attr._fields)), np.int64), [])
RUN_ENTRIES: Final = 64  # entries that are listed as a part of a block
KEPT_SHEETS: Final = 8  # blocks remembered as they are listed
KEPT_PARTS: Final = 16  # parts of directories that are


class Numbered(View, Protocol):
    """The part of a Source that never changes which numbers use."""

    @property
    def generation(self) -> int:
        """Grows when positions do not mean any more what they did."""

    def position(self, path: bytes) -> int:
        """Return the position of the inode of a file. Raises CorruptError."""

    def path_at(self, pos: int) -> bytes:
        """Return the path of the file whose inode is there. Raises CorruptError."""

    def read_at(self, pos: int, offset: int, size: int) -> bytes:
        """Read up to `size` bytes of the file whose inode is there. Raises CorruptError."""

    def present(self, pos: int, size: int) -> bool:
        """See `winkmount.source.Nodes`, of the file whose inode is there."""

    def bring(self, pos: int, size: int) -> None: ...

    def contents(self, rows: Int64) -> Sequence[bytes | memoryview | None]:
        """Return the contents of the files of these rows of the order, one entry each, int64[n, 8];
        good until the next call. None: read it alone."""


class Sheet:
    """A block of the order, each name as an entry of the directory it is in.

    start, stop  which indices it has
    names        of the block
    page         their entries
    above        what names in the directory that each is in begin with, but for a /
    depths       how many components that has
    until        behind each, and behind those of the same directory that follow it
    ends         where the directory ends whose first name this is, if it is one without others
                 below, and ends before the block; else 0
    strange      there are names that cannot be shown, or of which the order does not have all
    """

    def __init__(self, numbers: Numbers, start: int, rows: FileTable) -> None:
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
        if any_odd(shorts):
            shorts = list(map(shown_part, shorts))
        behind = numbers.offset(start + 1)
        nodes = rows.numbers[:, POS].copy()
        attrs = np.ascontiguousarray(attributes(rows, numbers.owner).T)
        for i in np.flatnonzero(rows.directories).tolist():
            path = shown(names[i])
            nodes[i] = numbers.of_directory(path, start + i)
            attrs[i, 0] = numbers.places.directory_id(path)
        self.page = Page(shorts, nodes, attrs, range(behind, behind + n), places=rows.numbers)
        self.strange = bool(odd_rows(rows).any()) or not all_fit(names)

    def _split(self, names: list[bytes]) -> list[bytes]:
        """Fill in the directories of the names -> what each is called there. Names of one directory
        without others between them are looked at together."""
        shorts, n = list[bytes](), len(names)
        self.above, self.depths = [], []
        while (at := len(shorts)) < n:
            above, slash, short = names[at].rpartition(b"/")
            depth, stop = names[at].count(b"/"), at + 1
            if slash:
                stop = bisect.bisect_left(names, above + b"0", at)  # "0" follows "/"
                if b"".join(names[at:stop]).count(b"/") != (stop - at) * depth:
                    stop = at + 1  # there are names below others
            if at and (depth, above) != (self.depths[-1], self.above[-1]):
                first = len(self.until)
                if self.depths[first] and not above.startswith(self.above[first] + b"/"):
                    self.ends[first] = at
                self.until += [at] * (at - first)
            self.above += [above] * (stop - at)
            self.depths += [depth] * (stop - at)
            cut = len(above) + 1
            shorts += [name[cut:] for name in names[at:stop]] if slash else [short]
        return shorts


class DirectoryPart(NamedTuple):
    """Entries of one directory behind `first`, up to the end of the page or of the directory."""

    first: int
    page: Page
    whole: bool


class Numbers:
    """Numbers of what a container shows that never changes: see `winkmount.source.Nodes`.

    That of a file is the position of its inode, so nothing has to be remembered of it; that of a
    directory is the index of the first name below it in the order. Other directories, of names that
    came since the order was made, are remembered: they are few.

    cost    memory: KEPT_SHEETS blocks, KEPT_PARTS parts of directories
    """

    def __init__(self, view: Numbered) -> None:
        self._view, self.places, self.owner = view, view.places, view.owner
        self.present, self.bring = view.present, view.bring
        self._generation, self._epoch = view.generation, 0
        self._base = 0  # what the offsets are ahead of those of a listing
        self._overlay = view.tree.overlay
        self._order = self._overlay.order
        self._orders = {0: self._order}  # of the last EPOCHS epochs
        self._others: dict[bytes, int] = {}
        self._known: list[bytes] = []  # the path with each of these numbers
        self._sheets: dict[int, Sheet] = {}
        self._parts: dict[int, DirectoryPart] = {}
        self._streams: dict[bytes, tuple[int, Iterator[DirEntry]]] = {}  # from which offset on
        self._sheet: Sheet | None = None
        self._above: tuple[bytes, int] = b"", self.places.root

    # numbers

    def of_directory(self, path: bytes, near: int = -1) -> int:
        """Return the number of a directory. `near`: index of its entry in the order."""
        if not path:
            return TOP
        order, name = self._order, name_below(path)
        prefix = name + b"/"
        at = order.lower_bound(prefix, near + 1)
        if at < order.count and order.name(at).startswith(prefix):
            return self._number(at, depth_of(path))
        if near < 0:
            near = order.lower_bound(name)
            if near == order.count or order.name(near) != name:
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
                    return shown(sheet.above[index - sheet.start])
                name = sheet.names[index - sheet.start]
            else:
                name = self._name(epoch, index)
            return shown(b"/".join(name.split(b"/", depth)[:depth]) if depth else name)
        if node & OTHER:
            return self._known[node ^ OTHER]
        if self._view.generation != self._generation:
            raise refuse(errno.ESTALE)
        return self._view.path_at(node)

    def _name(self, epoch: int, index: int) -> bytes:
        """Return the name of a row of the order, or of one that was damaged and made anew."""
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
        self._overlay, self._order = overlay, overlay.order
        self._base = self._epoch << LATER
        self._orders[self._epoch] = self._order
        self._sheets, self._parts, self._streams = {}, {}, {}
        self._sheet = None

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

    def id(self, node: int) -> int:
        return self.attr(node).id

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
        name = name_at(self.path(node))
        at = self._order.lower_bound(name)
        if at == self._order.count:
            return None
        sheet = self._sheet_of(at)
        i = at - sheet.start
        if sheet.names[i] != name or sheet.page.nodes[i] != node:
            return None
        return sheet.page, i, sheet.until[i]

    def contents(self, page: Page, chosen: Int64) -> Sequence[bytes | memoryview | None]:
        if self._view.generation != self._generation:
            raise refuse(errno.ESTALE)
        assert isinstance(page.places, np.ndarray)
        rows = page.places[chosen]
        return self._view.contents(rows) if (rows[:, POINTER] > 0).all() else [None] * len(rows)

    # directories

    def entries(self, node: int, offset: int) -> tuple[Page, int, int]:
        self._check()
        if offset and offset >> LATER & EPOCHS - 1 != self._epoch:
            raise refuse(errno.EIO)  # where it was in the order that was damaged is not known
        if node >> EPOCH_AT == self._epoch | EPOCHS << 1:
            index, depth = node >> INDEX_AT & INDICES - 1, node & DEPTHS - 1
            sheet = self._sheet_of(index)
            first = index - sheet.start
            stop = sheet.ends[first]
            plain = stop and not sheet.strange and sheet.depths[first] == depth
            if plain and self._is_complete(shown(sheet.above[first])):
                if offset:
                    first = min(max(offset - self._base - sheet.start, first), stop)
                return sheet.page, first, stop
        part = self._parts.get(node)
        if part is None or not (part.first <= offset and (offset < last_of(part) or part.whole)):
            path = self.path(node)
            run = self._run(path, offset)
            if run is not None:
                return run
            part = self._ordered(path, offset) if self._is_complete(path) else None
            if part is None:
                part = self._streamed(path, offset)
            if len(self._parts) >= KEPT_PARTS:
                del self._parts[next(iter(self._parts))]
            self._parts[node] = part
        return part.page, bisect.bisect(part.page.offsets, offset), len(part.page.names)

    def _run(self, path: bytes, offset: int) -> tuple[Page, int, int] | None:
        """Return entries of a directory behind an offset, if many are files one behind the other or
        there are none."""
        low, high = self._overlay.range(path)
        at = max(offset - self._base, low)
        if not self._is_complete(path):
            return None
        if at >= high:
            return NOTHING, 0, 0
        sheet = self._sheet_of(at)
        first = at - sheet.start
        stop = sheet.until[first]
        many = stop - first >= RUN_ENTRIES or sheet.start + stop in (high, sheet.stop)
        here = sheet.above[first] == name_below(path) and sheet.depths[first] == depth_of(path)
        if sheet.strange or not here or not many:
            return None
        return sheet.page, first, stop

    def _is_complete(self, path: bytes) -> bool:
        """Return whether the order has all that is shown of a directory."""
        return path not in self._overlay.dirs and not self._view.tree.clashes

    def offset(self, offset: int) -> int:
        """Here, of one of a listing."""
        return offset + self._base

    def _sheet_of(self, index: int) -> Sheet:
        sheet = self._sheet
        if sheet is None or not sheet.start <= index < sheet.stop:
            start, rows = self._order.block(index)
            sheet = self._sheets.get(start)
            if sheet is None:
                sheet = Sheet(self, start, rows)
                if len(self._sheets) >= KEPT_SHEETS:
                    del self._sheets[next(iter(self._sheets))]
                self._sheets[start] = sheet
            self._sheet = sheet
        return sheet

    def _ordered(self, path: bytes, offset: int) -> DirectoryPart | None:
        """Return entries as the order alone has them; None if some of their names are odd."""
        prefix, (low, high) = name_below(path) + b"/" if path else b"", self._overlay.range(path)
        base, depth, whole = self._base, depth_of(path) + 1, False
        names, nodes = list[bytes](), list[int]()
        attrs, offsets = list[Sequence[int]](), list[int]()
        at = max(offset - base, 0)
        for start, rows, k, stop, below in walk(self._order, low, high, at, prefix):
            rest = MOST_AT_ONCE - len(names)
            if not rest:
                break
            if below is None:
                sheet = self._sheet_of(start + k)
                if sheet.strange:
                    return None
                page, some = sheet.page, slice(k, min(stop, k + rest))
                names += page.names[some]
                nodes += page.nodes[some].tolist()
                attrs += page.attrs[some].tolist()
                offsets += page.offsets[some]
                if stop > k + rest:
                    break
            elif not all_fit([rows.names[k]]):
                return None
            elif not has_entry(self._order, below, rows.names, k):
                names.append(shown_part(below[len(prefix) :]))
                nodes.append(self._number(start + k, depth))
                attrs.append(self._view.implied_attr(shown(below)))
                offsets.append(base + start + k + 1)
        else:
            whole = True
        numbers = np.array(attrs, np.int64).reshape(-1, len(Attr._fields))
        return DirectoryPart(
            offset, Page(names, np.array(nodes, np.int64), numbers, offsets), whole
        )

    def _streamed(self, path: bytes, offset: int) -> DirectoryPart:
        """Return entries as a listing has them, which knows everything."""
        at, behind = self._streams.pop(path, (-1, iter(())))
        if at != offset:
            behind = Listing(self._view, path).entries(max(offset - self._base, 0))
        entries = list(itertools.islice(behind, MOST_AT_ONCE))
        if entries:
            if len(self._streams) >= KEPT_PARTS:
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
        return DirectoryPart(offset, page, len(entries) < MOST_AT_ONCE)

    def _listed(self, path: bytes, entry: DirEntry) -> int:
        """Return the number of an entry of a listing; from the order, if that has not changed."""
        index, attr = entry.offset - 1, entry.attr
        if attr.size == UNREADABLE:
            return 0
        if index < self._order.count:
            start, rows = self._order.block(index)
            known, name = rows.names[index - start], name_below(path)
            if attr.is_dir and known.startswith(name + b"/"):
                return self._number(index, depth_of(path))
            above, _, short = path.rpartition(b"/")
            if known == name and short not in self._overlay.of(above).states:
                pos = rows.numbers[index - start, POS]
                return self.of_directory(path, index) if attr.is_dir else int(pos)
        return self._of(path, attr)


def depth_of(path: bytes) -> int:
    """Return how many components a path has; 0 for the top directory."""
    return path.count(b"/") + 1 if path else 0


def last_of(part: DirectoryPart) -> int:
    """Return the offset behind the last entry."""
    return part.page.offsets[-1] if part.page.offsets else part.first
