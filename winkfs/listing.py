"""Listing: an open directory of a mount, streamed from the name order and what changed since.

Offsets: behind the name at index i of the order i + 1, behind the n-th of those that came LATE + n.
"""

from __future__ import annotations

import bisect
import logging
import stat
from collections.abc import Generator, Iterator
from itertools import repeat
from typing import Any, Final, Protocol, cast

import numpy as np

from winkformats.errors import CorruptError
from winkfs.entry import to_str
from winkfs.inode import FileType, default_mode
from winkfs.names import MAX_COMPONENT, MAX_PATH, bad_prefix
from winkfs.nametree import NameTree
from winkfs.plain import bare_inodes, few_inodes
from winkfs.rows import Int64
from winkfs.settings import NANO
from winkfs.store import Store
from winkmount.source import Attr, DirEntry

log = logging.getLogger("winkfs.mount")

LATE: Final = 1 << 61
FIRST: Final = 64  # names of the first batch
BATCH: Final = 1024
FEW: Final = 64  # names that are cheaper one by one than as columns
UNKNOWN: Final = (b"", 0, 0, 0, 0)
NEAR: Final = 8  # names of the first batch behind a subdirectory
MODE_OF: Final = [stat.S_IFREG | default_mode(ftype) for ftype in range(256)]
MODE_OF[FileType.LINK] = stat.S_IFLNK | 0o777
MODES: Final = np.array(MODE_OF, np.int64)
MAKE: Final = cast(Any, tuple.__new__)  # what _make does, without a frame of Python: 0.2 us less
NAMED: Final = 20  # names that cannot be shown, said by name


class View(Protocol):
    """What a listing asks of the mount."""

    tree: NameTree
    left_out: set[bytes]

    def attr(self, path: bytes) -> Attr | None:
        """Of a file or directory as of now; None where nothing is shown under this name."""

    def directory_attr(self, path: bytes) -> Attr:
        """Of a directory without an entry."""

    def entry(self, path: bytes) -> int:
        """FTYPE of the entry of this name, 0: there is none."""

    def foresee(self, positions: Int64) -> None:
        """Inodes that are read next."""

    def note(self, ids: list[int], paths: list[bytes]) -> None:
        """Remember where files are that are handed out."""


class Listing:
    """An open directory; `path` is where it is now."""

    def __init__(self, view: View, store: Store, path: bytes) -> None:
        self.path = path
        self._view, self._store = view, store
        self._pass = _Pass(view, store, path)

    def entries(self, offset: int) -> Iterator[DirEntry]:
        """See `Source.readdir`. Cost: 2 us a file, a search in the order a subdirectory."""
        if offset == 0:
            self._pass = _Pass(self._view, self._store, self.path)
        return self._pass.entries(offset)

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

    def __init__(self, view: View, store: Store, path: bytes) -> None:
        self.path = path
        self._view, self._store = view, store
        self._since = view.tree.since
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
            added = self._since.of(self.path).added
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
        except CorruptError as error:
            self._leave_out(path, str(error))
            return None

    def _leave_out(self, path: bytes, why: str) -> None:
        known = self._view.left_out
        if len(known) < NAMED and path not in known:
            known.add(path)
            log.warning("not shown: %s: %s", to_str(path), why)

    # names of the order

    def _ordered(self, offset: int) -> Generator[DirEntry, None, int]:
        """-> an offset behind what was given."""
        order, tree = self._since.order, self._view.tree
        low, high = self._since.range(self.path)
        at, step, cut = max(offset, low), FIRST, len(self._prefix)
        if at > low:  # behind a subdirectory: pass over the names below it
            child, slash, _ = order.name(at - 1)[cut:].partition(b"/")
            if slash:
                at = order.lower_bound(self._prefix + child + b"0", at)
        while at < high and self._fixed is None:
            stop = min(at + step, high)
            positions = order.positions(at, stop)
            self._view.foresee(positions)
            batch = _Batch(self._store, positions, cut)
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
        changed = self._since.of(self.path)
        return not (changed.states or tree.clashes) and self._since is tree.since

    def _flat(self, batch: _Batch, at: int) -> list[DirEntry]:
        """A batch of files of this directory, none of which has changed."""
        attrs: list[Attr | None] = batch.attrs
        for i in batch.odd:
            attrs[i] = self._attr(batch.names[i])
        self._view.note(batch.ids, batch.known)
        found = zip(batch.shorts, attrs, range(at + 1, at + 1 + len(attrs)), strict=True)
        if batch.odd:
            return [DirEntry(*entry) for entry in found if entry[1] is not None]  # type: ignore[arg-type]
        return list(map(MAKE, repeat(DirEntry), found))

    def _mixed(self, batch: _Batch, at: int) -> tuple[int, list[DirEntry]]:
        """-> where to go on, and entries. Names below a subdirectory are passed over."""
        order, found = self._since.order, []
        names, shorts, attrs = batch.names, batch.shorts, batch.attrs
        odd, k, n = set(batch.odd), 0, len(batch.names)
        self._view.note(batch.ids, batch.known)
        states, simple = self._since.of(self.path).states, self._since is self._view.tree.since
        while k < n:
            short, slash, _ = shorts[k].partition(b"/")
            if not slash:
                if short in states or not simple or k in odd or self._hidden(names[k], at + k):
                    attr = self._attr(names[k])
                else:
                    attr = attrs[k] if fine(short, names[k]) else self._attr(names[k])
            else:
                attr = self._child(short, names[k], at + k)
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
        if path[len(self._prefix) :] in self._since.of(self.path).dirs:
            return True
        order, prefix = self._since.order, path + b"/"
        at = order.lower_bound(prefix, index + 1)
        return at < order.count and order.name(at).startswith(prefix)

    def _child(self, short: bytes, name: bytes, index: int) -> Attr | None:
        """A subdirectory at the first of the names below it, unless it has another place."""
        changed, path = self._since.of(self.path), self._prefix + short
        if short in changed.states or short in changed.added:
            return None
        if short in changed.over:
            return self._attr(path)
        order = self._since.order
        if self._since is not self._view.tree.since:
            at = order.lower_bound(path)
            if order.name(at) == path:
                return None
        elif self._view.entry(path):
            return None
        elif bad_prefix(name) is None and not self._since.is_gone(name):
            return self._view.directory_attr(path)
        return self._attr(path)


def fine(short: bytes, path: bytes) -> bool:
    """Whether this can be shown as a file."""
    usual = short not in (b"", b".", b"..")
    return usual and len(short) <= MAX_COMPONENT and len(path) <= MAX_PATH


class _Batch:
    """Names of the order one after another, with what their inodes say.

    names, shorts   n names, and what of them is below the directory
    attrs           n attributes, None at the indices in `odd`: look one by one
    ids, known      of the others: ids and names
    flat            all of them can be shown, and are files of the directory itself
    """

    def __init__(self, store: Store, positions: Int64, cut: int) -> None:
        self.names: list[bytes]
        self.attrs: list[Attr | None]
        n = len(positions)
        if n <= FEW:
            self._each(store, positions.tolist())
        else:
            self._all(store, positions)
        self.odd = [i for i, attr in enumerate(self.attrs) if attr is None]
        for i in self.odd:
            self.names[i] = self.names[i] or store.key_at(int(positions[i]))[:-3]
        self.shorts = [name[cut:] for name in self.names] if cut else self.names
        joined = b"/".join(self.shorts)
        self.flat = (
            joined.count(b"/") == n - 1
            and max(map(len, self.shorts)) <= MAX_COMPONENT
            and max(map(len, self.names)) <= MAX_PATH
            and not {b"", b".", b".."}.intersection(self.shorts)
        )

    def _each(self, store: Store, positions: list[int]) -> None:
        kv, settings, (uid, gid) = store.kv, store.settings, store.owner
        unit = 1 if settings.nanoseconds else NANO
        view = kv.view(kv.end - 1)
        self.names, self.attrs, self.ids, self.known = [], [], [], []
        for found in few_inodes(view, positions, kv.layout, settings.form, store.inode_size):
            name, fileid, size, ftype, mtime = found or UNKNOWN
            self.names.append(name)
            if fileid and ftype != FileType.DIR:
                mode = MODE_OF[ftype & 255]
                self.attrs.append(MAKE(Attr, (fileid, mode, size, mtime * unit, uid, gid)))
                self.ids.append(fileid)
                self.known.append(name)
            else:
                self.attrs.append(None)

    def _all(self, store: Store, positions: Int64) -> None:
        kv, settings, n = store.kv, store.settings, len(positions)
        rows = bare_inodes(memoryview(kv.view(kv.end - 1)), 0, positions, kv.layout, settings.form)
        files = rows.ftype != FileType.DIR
        rows = rows if files.all() else rows.take(files)
        self.ids, self.known = rows.fileid.tolist(), rows.names
        times = rows.mtime if settings.nanoseconds else rows.mtime * NANO
        attrs: list[Attr] = list(map(
            MAKE,
            repeat(Attr),
            zip(
                self.ids, MODES[rows.ftype & 255].tolist(), rows.lsize.tolist(), times.tolist(),
                repeat(store.owner[0]), repeat(store.owner[1]),
            ),
        ))  # fmt: skip
        if len(attrs) == n:
            self.attrs, self.names = [*attrs], rows.names
            return
        self.attrs, self.names = [None] * n, [b""] * n
        for i, attr, name in zip(rows.which.tolist(), attrs, rows.names, strict=True):
            self.attrs[i], self.names[i] = attr, name
