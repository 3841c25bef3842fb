"""NameTree: the names of a container or data set as directories, for a mount.

Overlay    an order of names, and what changed since, by directory
NameTree   which directories there are, and what is in them

A directory is there because of an entry of ftype DIR, because a name below it is (implied), or
because it was: an implied one stays until it is removed or the mount ends, also when it has become
empty. Where a name is both a file and the prefix of others, the directory has its path, and the
file is @file in it. Names that are too long for a path count as if they were not there.

Paths are as a mount shows them, an order has names: see `names.shown`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, Protocol

from winkfs.container.table import FileTable
from winkfs.entry import FileType
from winkfs.names import AT, OWN, SELF, bad_prefix, name_below, part_shown, shown, within

NAMES_AT_ONCE: Final = 1024  # names read at a time, most
RANGES: Final = 4096  # ranges of directories remembered
REMEMBERED: Final = 1024  # FTYPEs of directories above names that changed
NEAR_NAMES: Final = 512  # names below a directory up to which its implied children are remembered


class NameOrder(Protocol):
    """Names in byte order: the part of `winkfs.container.catalog.Catalog` that a tree uses."""

    @property
    def count(self) -> int: ...
    @property
    def clashes(self) -> int: ...
    def names(self, start: int, stop: int) -> list[bytes]: ...
    def name(self, index: int) -> bytes: ...
    def lower_bound(self, name: bytes, low: int = 0) -> int: ...
    def block(self, index: int) -> tuple[int, FileTable]:
        """Return the block that has the name with this index: index of its first one, and its
        rows."""


class Changed:
    """The differences of one directory from the order.

    states  entries that the order has: True: changed since, False: gone
    over    entries that came where the order has names below: they have the place of those
    added   children without a place in the order -> their number
    dirs    subdirectories that stay, whatever is below them
    gone    names at any depth below that the order has and that are gone
    """

    __slots__ = ("added", "dirs", "gone", "over", "states")

    def __init__(self) -> None:
        self.states: dict[bytes, bool] = {}
        self.over: set[bytes] = set()
        self.added: dict[bytes, int] = {}
        self.dirs: set[bytes] = set()
        self.gone = 0

    def knows(self, short: bytes) -> bool:
        """Return whether an entry has come or changed, or a child has a place among those that
        came."""
        return short in self.states or short in self.added or short in self.over

    def forget(self, short: bytes) -> None:
        """Forget an entry that the order does not have; a directory that stays keeps its place."""
        self.over.discard(short)
        if short not in self.dirs:
            self.added.pop(short, None)


NOTHING: Final = Changed()


class Overlay:
    """An order of names, and which of them are gone or changed since, and which came.

    The names below a directory are a range of the order; changes are kept by directory. A child of
    a directory has one place for as long as the order lasts: that of its entry in the order, else
    that of the first name below it there, else a number among those that came. So a listing, which
    goes on with the overlay it began with, meets each exactly once.

    cost    a search of the order for a directory that is not remembered
    """

    def __init__(self, order: NameOrder) -> None:
        self.order = order
        self.dirs = defaultdict[bytes, Changed](Changed)
        self._ranges: dict[bytes, tuple[int, int]] = {}
        self._implied: dict[bytes, frozenset[bytes]] = {}
        # (a, b, i): what lies behind a and not behind b belongs at index i; b None: it is the last
        self._gap: tuple[bytes, bytes | None, int] = b"", b"", 0

    def of(self, directory: bytes) -> Changed:
        """Return the changes of a directory, to look at only: `dirs` makes those that it lacks."""
        return self.dirs.get(directory, NOTHING)

    def range(self, directory: bytes) -> tuple[int, int]:
        """Return the indices [a, b) of the names below a directory, at any depth."""
        if not directory:
            return 0, self.order.count
        found = self._ranges.get(directory)
        if found is None:
            name = directory if AT not in directory else name_below(directory)
            low = self.order.lower_bound(name + b"/")
            found = low, self._end(name, low)
            if len(self._ranges) >= RANGES:
                self._ranges.clear()
                self._implied.clear()
            self._ranges[directory] = found
        return found

    def _end(self, name: bytes, low: int) -> int:
        for near in range(low, min(low + 2, self.order.count)):
            if not self.order.name(near).startswith(name + b"/"):
                return near
        return self.order.lower_bound(name + b"0", low)  # "0" follows "/"

    def paths(self) -> Iterator[bytes]:
        """Yield the paths of all entries that differ from the order, or may do so."""
        for directory, changed in self.dirs.items():
            prefix = directory + b"/" if directory else b""
            for short in (*changed.states, *changed.over, *changed.added):
                yield prefix + short

    def is_gone(self, name: bytes) -> bool:
        """Return whether an entry of the order is gone."""
        if not self.dirs:
            return False
        above, _, short = shown(name).rpartition(b"/")
        changed = self.dirs.get(above)
        return changed is not None and changed.states.get(short) is False

    def remaining(self, directory: bytes) -> Iterator[bytes]:
        """Yield the paths of entries below a directory that the order has and that still exist."""
        low, high = self.range(directory)
        for at in range(low, high, NAMES_AT_ONCE):
            for name in self.order.names(at, min(at + NAMES_AT_ONCE, high)):
                if not self.is_gone(name):
                    yield shown(name)

    def implies(self, path: bytes) -> bool:
        """Return whether there are names below a path in the order that still exist and are paths.

        cost    a search of the order, except for a path beside the last one: programs often make
                files one after another
        """
        prefix = (path if AT not in path else name_below(path)) + b"/"
        behind, before, at = self._gap
        if not (behind < prefix and (before is None or prefix <= before)):
            above, _, short = path.rpartition(b"/")
            low, high = self.range(above)
            if low == high:
                return False
            part = short if short[:1] != b"@" else part_shown(short)
            if high - low <= NEAR_NAMES and part not in self._near(above, low, high):
                return False
            at = self.order.lower_bound(prefix, low)
            behind = self.order.name(at - 1) if at > low else prefix[: -len(part) - 1]
            before = self.order.name(at) if at < self.order.count else None
            self._gap = behind, before, at
        if before is None or not before.startswith(prefix):
            return False
        gone = self.of(path).gone
        if gone:
            a, b = self.range(path)
            if b - a <= gone:
                return False
        return self.first(prefix, at) is not None

    def _near(self, directory: bytes, low: int, high: int) -> frozenset[bytes]:
        """Implied children of a directory with few names: the parts of these."""
        found = self._implied.get(directory)
        if found is None:
            cut = len(name_below(directory)) + 1 if directory else 0
            names = self.order.names(low, high)
            shorts = {name[cut:].partition(b"/")[0] for name in names if b"/" in name[cut:]}
            found = self._implied[directory] = frozenset(shorts)
        return found

    def first(self, prefix: bytes, at: int) -> int | None:
        """Return the index of the first name from `at` on with this prefix that exists and is a
        path."""
        step, order = 1, self.order
        while at < order.count:
            several = step > 1
            names = order.names(at, min(at + step, order.count)) if several else [order.name(at)]
            for name in names:
                if not name.startswith(prefix):
                    return None
                fault = bad_prefix(name)
                if fault is None and not self.is_gone(name):
                    return at
                if fault and name.startswith(fault):
                    at = order.lower_bound(fault[:-1] + b"0", at + 1)
                    break
                at += 1
            step = min(2 * step, NAMES_AT_ONCE)
        return None


class NameTree:
    """The directories, and what is in them. The container knows which names have an entry; the tree
    knows the rest, and its overlay has the changes that are reported to it.

    entry   -> the FTYPE of the container's entry of the name with this path, 0: there is none
    weight  changes in memory, about 200 bytes each
    version grows with each change
    """

    def __init__(self, order: NameOrder, entry: Callable[[bytes], int]) -> None:
        self.overlay = Overlay(order)
        self._entry = entry
        self._number = 0
        self.weight = self.version = 0
        self.clashes = order.clashes != 0  # a file may be in the directory of its name

    # looking

    def implied(self, path: bytes) -> bool:
        """Return whether a directory exists for another reason than its entry."""
        above, _, short = path.rpartition(b"/")
        changed = self.overlay.dirs.get(above, NOTHING)
        return not path or short in changed.dirs or self.overlay.implies(path)

    def lacks(self, directory: bytes, short: bytes) -> bool:
        """Return whether a directory has no child of this name. False: that is not known without a
        look-up, since the order has names below it."""
        changed = self.overlay.dirs.get(directory, NOTHING)
        if changed.knows(short) or short in changed.dirs or short == SELF:
            return False
        low, high = self.overlay.range(directory)
        return low == high

    def is_empty(self, directory: bytes) -> bool:
        """Return whether nothing is shown in a directory."""
        return not self.has_own(directory) and self._nothing_below(directory)

    def _nothing_below(self, directory: bytes) -> bool:
        changed = self.overlay.of(directory)
        if changed.added or changed.dirs or changed.over:
            return False
        low, high = self.overlay.range(directory)
        if high - low <= changed.gone:
            return True
        prefix = name_below(directory) + b"/" if directory else b""
        return self.overlay.first(prefix, low) is None

    def has_own(self, directory: bytes) -> bool:
        """Return whether the file of its name is in a directory."""
        return self.clashes and self._entry(directory) not in (0, FileType.DIR)

    def shows_own(self, path: bytes) -> bool:
        """Return whether there is such a file at a path that ends with OWN."""
        directory = path[: -len(OWN)]
        return self.has_own(directory) and self.implied(directory)

    def file_path(self, name: bytes) -> bytes:
        """Return the path of a file that exists."""
        path = shown(name)
        return path + OWN if self.clashes and self.implied(path) else path

    def below(self, directory: bytes) -> Iterator[bytes]:
        """Yield the paths of all entries below a directory."""
        yield from self.overlay.remaining(directory)
        for path, changed in list(self.overlay.dirs.items()):
            if within(path, directory):
                for short in [*changed.added, *changed.over]:
                    if self._entry(path + b"/" + short):
                        yield path + b"/" + short

    # changing

    def add(self, path: bytes, *, was_there: bool = False) -> None:
        """Note that an entry came. `was_there`: a directory that was implied has one now."""
        if AT in path and path.endswith(OWN):
            path, was_there, self.clashes = path[: -len(OWN)], True, True
            self.stay(path, exists=True)
        above, _, short = path.rpartition(b"/")
        changed = self.overlay.dirs[above]
        self.weight += 1
        self.version += 1
        if short in changed.states:
            self._set(above, short, True)
        elif short not in changed.added:
            if was_there or self.overlay.dirs.get(path, NOTHING).gone:
                changed.over.add(short)
            else:
                self._append(changed, short)

    def change(self, path: bytes) -> None:
        """Note that an entry has another inode than before."""
        self.version += 1
        entry = path if AT not in path else path.removesuffix(OWN)
        above, _, short = entry.rpartition(b"/")
        changed = self.overlay.dirs[above]
        if not changed.knows(short):
            changed.states[short] = True
            self.weight += 1

    def remove(self, path: bytes) -> None:
        """Note that an entry went. The directory it was in stays."""
        if AT in path and path.endswith(OWN):
            path = path[: -len(OWN)]
            self.stay(path, exists=True)
        above, _, short = path.rpartition(b"/")
        changed = self.overlay.dirs[above]
        self.version += 1
        if short in changed.added or short in changed.over:
            changed.forget(short)
        else:
            self.weight += 1
            self._set(above, short, False)
        self.stay(above, exists=True)

    def _append(self, changed: Changed, short: bytes) -> None:
        """Add a child without a place in the order: it comes behind all others."""
        self._number += 1
        changed.added[short] = self._number

    def _set(self, directory: bytes, short: bytes, exists: bool) -> None:
        """Note whether an entry of the order exists, now that it has changed."""
        states = self.overlay.dirs[directory].states
        before, states[short] = states.get(short, True), exists
        if before == exists:
            return
        while True:
            self.overlay.dirs[directory].gone += -1 if exists else 1
            if not directory:
                return
            directory = directory.rpartition(b"/")[0]

    def stay(self, directory: bytes, *, exists: bool = False) -> None:
        """Let a directory and those above stay, whatever happens to the names below them.

        It may be new, unless it `exists`.
        """
        while directory:
            above, _, short = directory.rpartition(b"/")
            changed = self.overlay.dirs[above]
            if short in changed.dirs:
                return
            changed.dirs.add(short)
            self.weight += 1
            if not exists and not changed.knows(short):
                low, high = self.overlay.range(directory)
                known = low < high or self._entry(directory) != 0
                if not known and self._place(name_below(directory)) < 0:
                    self._append(changed, short)
            directory = above

    def _place(self, name: bytes) -> int:
        """Return where the order has an entry of this name, -1: nowhere."""
        order = self.overlay.order
        at = order.lower_bound(name)
        return at if at < order.count and order.name(at) == name else -1

    def remove_directory(self, path: bytes, *, entry: bool) -> None:
        """Remove an empty directory, with its entry if it has one. The directory it was in
        stays."""
        self.version += 1
        if entry:
            self.remove(path)
        self._release(path)
        self.stay(path.rpartition(b"/")[0], exists=True)

    def _release(self, directory: bytes) -> None:
        """Let a directory no longer stay when nothing is left below it."""
        above, _, short = directory.rpartition(b"/")
        changed = self.overlay.dirs[above]
        changed.dirs.discard(short)
        if not self._entry(directory):  # else a file becomes visible again
            changed.added.pop(short, None)

    def move_directory(self, old: bytes, new: bytes) -> None:
        """Move the directories that stay, after the entries have moved one by one."""
        self.version += 1
        moved = [item for item in self.overlay.dirs.items() if within(item[0], old)]
        self._release(old)
        self.stay(old.rpartition(b"/")[0], exists=True)
        self.stay(new)
        for path, changed in moved:
            for short in list(changed.dirs):
                self._release(path + b"/" + short)
                self.stay(new + path[len(old) :] + b"/" + short)

    # over a new order

    def replay(self, names: Iterable[bytes]) -> None:
        """Take up names that came, changed or went since the order was made."""
        self.version += 1
        for name in names:
            path = shown(name)
            at = self._place(name)
            above, _, short = path.rpartition(b"/")
            changed, exists = self.overlay.dirs[above], self._entry(path) != 0
            self.weight += 1
            if at >= 0:
                self._set(above, short, exists)
                self._notice_clash(path, at)
            elif exists:
                self._came(path, changed, shows=bad_prefix(name) is None)
            else:
                changed.forget(short)
            if not exists:
                self._forget(above)

    def _notice_clash(self, path: bytes, at: int) -> None:
        """Note a clash at a place where the order may have a directory that is a file now."""
        order = self.overlay.order
        if self.clashes or at + 1 == order.count or self._entry(path) in (0, FileType.DIR):
            return
        if order.name(at + 1).startswith(order.name(at)):  # else there is nothing below it
            self.clashes = self.overlay.implies(path)

    def _forget(self, directory: bytes) -> None:
        """Let directories no longer stay for names that are gone."""
        while directory and self._entry(directory) != FileType.DIR:
            if not self._nothing_below(directory):
                return
            self._release(directory)
            directory = directory.rpartition(b"/")[0]

    def _came(self, path: bytes, changed: Changed, *, shows: bool) -> None:
        """Note a name that came and that the order does not have. `shows`: it is not too long."""
        above, _, short = path.rpartition(b"/")
        low, high = self.overlay.range(path)
        if low < high:
            changed.over.add(short)
            self.clashes = self.clashes or self._entry(path) != FileType.DIR
        elif short not in changed.added:
            self._append(changed, short)
        if shows:
            self.stay(above)
        while above and not self.clashes:
            self.clashes = self._entry(above) not in (0, FileType.DIR)
            above = above.rpartition(b"/")[0]

    def recheck(self, exists: Callable[[bytes], bool]) -> None:
        """Note anew which of the changed entries exist. `exists`: whether a path does."""
        self.version += 1
        for path in list(self.overlay.paths()):
            above, _, short = path.rpartition(b"/")
            changed, found = self.overlay.dirs[above], exists(path)
            if short in changed.states:
                self._set(above, short, found)
            elif not found:
                changed.forget(short)

    def renew(self, order: NameOrder, ftypes: Mapping[bytes, int]) -> None:
        """Go on with another order of the names.

        ftypes  names that changed since it was made -> FTYPE of the entry, 0 if it is gone; -1:
                unknown, ask
        cost    a search for each name; in byte order each block of the order is decoded once
        """
        before, self.overlay, ask = self.overlay, Overlay(order), self._entry
        self.weight, self.clashes = 0, self.clashes or order.clashes != 0

        def known(path: bytes) -> int:
            name = name_below(path)
            found = ftypes.get(name, -1 if self._place(name) >= 0 else 0)
            return ask(path) if found < 0 else found

        self._entry = lru_cache(REMEMBERED)(known)
        try:
            self.replay(ftypes)
        finally:
            self._entry = ask
        for directory, changed in before.dirs.items():
            for short in changed.dirs:
                self.stay(directory + b"/" + short if directory else short)
