"""NameTree: the names of a container or data set as directories, for a mount.

Overlay    an order of names, and what changed since, by directory
NameTree   which directories there are, and what is in them

A directory is there because of an entry of ftype DIR, because a name below it is (implied), or
because it was: an implied one stays until it is removed or the mount ends, also when it has become
empty. Where a name is both a file and the prefix of others, the directory wins. Names that no path
can have count as if they were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, Protocol

from winkfs.container.ondisk.inode import FileType
from winkfs.names import bad_prefix, within

BATCH: Final = 1024  # names read at a time, most
RANGES: Final = 4096  # ranges of directories remembered
REMEMBERED: Final = 1024  # FTYPEs of directories above names that changed
NEAR: Final = 512  # names below a directory up to which its implied children are remembered


class Order(Protocol):
    """What is asked of an order of names: see `winkfs.container.catalog.Catalog`."""

    @property
    def count(self) -> int: ...
    @property
    def clashes(self) -> int: ...
    def names(self, start: int, stop: int) -> list[bytes]: ...
    def name(self, index: int) -> bytes: ...
    def lower_bound(self, name: bytes, low: int = 0) -> int: ...


class Changed:
    """What is another in one directory than in the order.

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
        """Whether an entry has come or changed, or a child has a place among those that came."""
        return short in self.states or short in self.added or short in self.over

    def forget(self, short: bytes) -> None:
        """An entry that the order does not have went; a directory that stays has its place."""
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

    def __init__(self, order: Order) -> None:
        self.order = order
        self.dirs: dict[bytes, Changed] = {}
        self._ranges: dict[bytes, tuple[int, int]] = {}
        self._implied: dict[bytes, frozenset[bytes]] = {}
        # (a, b, i): what lies behind a and not behind b belongs at index i; b None: it is the last
        self._gap: tuple[bytes, bytes | None, int] = b"", b"", 0

    def of(self, directory: bytes) -> Changed:
        """For looking only."""
        return self.dirs.get(directory, NOTHING)

    def to_change(self, directory: bytes) -> Changed:
        found = self.dirs.get(directory)
        if found is None:
            found = self.dirs[directory] = Changed()
        return found

    def range(self, directory: bytes) -> tuple[int, int]:
        """Indices [a, b) of the names below a directory, at any depth."""
        if not directory:
            return 0, self.order.count
        found = self._ranges.get(directory)
        if found is None:
            low = self.order.lower_bound(directory + b"/")
            found = low, self._end(directory, low)
            if len(self._ranges) >= RANGES:
                self._ranges.clear()
                self._implied.clear()
            self._ranges[directory] = found
        return found

    def _end(self, directory: bytes, low: int) -> int:
        for near in range(low, min(low + 2, self.order.count)):
            if not self.order.name(near).startswith(directory + b"/"):
                return near
        return self.order.lower_bound(directory + b"0", low)  # "0" follows "/"

    def names(self) -> Iterator[bytes]:
        """All entries that are another than in the order, or may be."""
        for directory, changed in self.dirs.items():
            prefix = directory + b"/" if directory else b""
            for short in (*changed.states, *changed.over, *changed.added):
                yield prefix + short

    def is_gone(self, name: bytes) -> bool:
        """Whether an entry of the order is no more."""
        above, _, short = name.rpartition(b"/")
        changed = self.dirs.get(above)
        return changed is not None and changed.states.get(short) is False

    def remaining(self, directory: bytes) -> Iterator[bytes]:
        """Entries below a directory that the order has and that are still there."""
        low, high = self.range(directory)
        for at in range(low, high, BATCH):
            for name in self.order.names(at, min(at + BATCH, high)):
                if not self.is_gone(name):
                    yield name

    def implies(self, path: bytes) -> bool:
        """Whether there are names below a path in the order that are still there and are paths.

        cost    a search of the order, except for a path beside the last one: programs often make
                files one after another
        """
        prefix = path + b"/"
        behind, before, at = self._gap
        if not (behind < prefix and (before is None or prefix <= before)):
            above, _, short = path.rpartition(b"/")
            low, high = self.range(above)
            if low == high:
                return False
            if high - low <= NEAR and short not in self._near(above, low, high):
                return False
            at = self.order.lower_bound(prefix, low)
            behind = self.order.name(at - 1) if at > low else above + b"/" if above else b""
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
        """Implied children of a directory with few names."""
        found = self._implied.get(directory)
        if found is None:
            cut = len(directory) + 1 if directory else 0
            names = self.order.names(low, high)
            shorts = {name[cut:].partition(b"/")[0] for name in names if b"/" in name[cut:]}
            found = self._implied[directory] = frozenset(shorts)
        return found

    def first(self, prefix: bytes, at: int) -> int | None:
        """Index of the first name from `at` on with this prefix that is there and is a path."""
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
            step = min(2 * step, BATCH)
        return None


class NameTree:
    """Which directories there are, and what is in them. The container knows which names have an
    entry; the tree knows the rest, and notes in the overlay what it is told.

    entry   tells the FTYPE of the container's entry of this name, 0: there is none
    weight  changes in memory, about 200 bytes each
    version grows with each change
    """

    def __init__(self, order: Order, entry: Callable[[bytes], int]) -> None:
        self.overlay = Overlay(order)
        self._entry = entry
        self._number = 0
        self.weight = self.version = 0
        self.clashes = order.clashes != 0  # a file may be hidden by a directory

    # looking

    def implied(self, path: bytes) -> bool:
        """Whether a directory is there for another reason than its entry."""
        above, _, short = path.rpartition(b"/")
        changed = self.overlay.dirs.get(above, NOTHING)
        return not path or short in changed.dirs or self.overlay.implies(path)

    def lacks(self, directory: bytes, short: bytes) -> bool:
        """Whether a directory has no child of this name. False: that cannot be told without a
        look-up, since the order has names below it."""
        changed = self.overlay.dirs.get(directory, NOTHING)
        if changed.knows(short) or short in changed.dirs:
            return False
        low, high = self.overlay.range(directory)
        return low == high

    def is_empty(self, directory: bytes) -> bool:
        """Whether nothing is shown in it."""
        changed = self.overlay.of(directory)
        if changed.added or changed.dirs or changed.over:
            return False
        low, high = self.overlay.range(directory)
        if high - low <= changed.gone:
            return True
        return self.overlay.first(directory + b"/" if directory else b"", low) is None

    def below(self, directory: bytes) -> Iterator[bytes]:
        """Names of all entries below a directory."""
        yield from self.overlay.remaining(directory)
        for path, changed in list(self.overlay.dirs.items()):
            if within(path, directory):
                for short in [*changed.added, *changed.over]:
                    if self._entry(path + b"/" + short):
                        yield path + b"/" + short

    # changing

    def add(self, path: bytes, *, was_there: bool = False) -> None:
        """An entry came. `was_there`: a directory that was implied has one now."""
        above, _, short = path.rpartition(b"/")
        changed = self.overlay.to_change(above)
        self.weight += 1
        self.version += 1
        if short in changed.states:
            self._set(above, short, True)
        elif short in changed.added:
            pass
        elif was_there or self.overlay.of(path).gone:
            changed.over.add(short)
        else:
            self._append(changed, short)

    def change(self, path: bytes) -> None:
        """An entry has another inode than before."""
        self.version += 1
        above, _, short = path.rpartition(b"/")
        changed = self.overlay.dirs.get(above) or self.overlay.to_change(above)
        if not changed.knows(short):
            changed.states[short] = True
            self.weight += 1

    def remove(self, path: bytes) -> None:
        """An entry went. The directory it was in stays."""
        above, _, short = path.rpartition(b"/")
        changed = self.overlay.to_change(above)
        self.version += 1
        if short in changed.added or short in changed.over:
            changed.forget(short)
        else:
            self.weight += 1
            self._set(above, short, False)
        self.stay(above, exists=True)

    def _append(self, changed: Changed, short: bytes) -> None:
        """A child without a place in the order comes behind all others."""
        self._number += 1
        changed.added[short] = self._number

    def _set(self, directory: bytes, short: bytes, there: bool) -> None:
        """Whether an entry of the order is there, now that it has changed."""
        states = self.overlay.to_change(directory).states
        before, states[short] = states.get(short, True), there
        if before == there:
            return
        while True:
            self.overlay.to_change(directory).gone += -1 if there else 1
            if not directory:
                return
            directory = directory.rpartition(b"/")[0]

    def stay(self, directory: bytes, *, exists: bool = False) -> None:
        """A directory and those above stay, whatever happens to the names below them.

        It may be new, unless it `exists`.
        """
        while directory:
            above, _, short = directory.rpartition(b"/")
            changed = self.overlay.to_change(above)
            if short in changed.dirs:
                return
            changed.dirs.add(short)
            self.weight += 1
            if not exists and not changed.knows(short):
                low, high = self.overlay.range(directory)
                if low == high and not (self._entry(directory) or self._has_place(directory)):
                    self._append(changed, short)
            directory = above

    def _has_place(self, name: bytes) -> bool:
        """Whether the order has an entry of this name."""
        order = self.overlay.order
        at = order.lower_bound(name)
        return at < order.count and order.name(at) == name

    def remove_directory(self, path: bytes, *, entry: bool) -> None:
        """An empty one, with its entry if it has one. The directory it was in stays."""
        self.version += 1
        if entry:
            self.remove(path)
        self._let_go(path)
        self.stay(path.rpartition(b"/")[0], exists=True)

    def _let_go(self, directory: bytes) -> None:
        """It does not stay any more."""
        above, _, short = directory.rpartition(b"/")
        changed = self.overlay.to_change(above)
        changed.dirs.discard(short)
        if not self._entry(directory):  # else a file becomes visible again
            changed.added.pop(short, None)

    def move_directory(self, old: bytes, new: bytes) -> None:
        """After its entries have moved one by one: the directories that stay go with them."""
        self.version += 1
        moved = [item for item in self.overlay.dirs.items() if within(item[0], old)]
        self._let_go(old)
        self.stay(old.rpartition(b"/")[0], exists=True)
        self.stay(new)
        for path, changed in moved:
            for short in list(changed.dirs):
                self._let_go(path + b"/" + short)
                self.stay(new + path[len(old) :] + b"/" + short)

    # over a new order

    def replay_all(self, ftypes: Mapping[bytes, int]) -> None:
        """All names that changed since the order was made, before anything else is done: name ->
        FTYPE of its entry, 0 where it is gone; -1: unknown, ask.

        cost    in byte order each block of the order is decoded once; 12 us a name
        """
        ask = self._entry

        def known(name: bytes) -> int:
            found = ftypes.get(name, -1 if self._has_place(name) else 0)
            return ask(name) if found < 0 else found

        self._entry = lru_cache(REMEMBERED)(known)
        try:
            self.replay(ftypes)
        finally:
            self._entry = ask

    def replay(self, names: Iterable[bytes]) -> None:
        """Names that came, changed or went since the order was made, whichever."""
        self.version += 1
        for name in names:
            if name.startswith(b"/"):  # no path, and what follows is no child of the top directory
                continue
            known = self._has_place(name)
            above, _, short = name.rpartition(b"/")
            changed, there = self.overlay.to_change(above), self._entry(name) != 0
            self.weight += 1
            if known:
                self._set(above, short, there)
            elif there:
                self._came(name, changed)
            else:
                changed.forget(short)
            if not there:
                self._forget(above)

    def _forget(self, directory: bytes) -> None:
        """A directory does not stay for names that went elsewhere."""
        while directory and not self._entry(directory) and self.is_empty(directory):
            self._let_go(directory)
            directory = directory.rpartition(b"/")[0]

    def _came(self, name: bytes, changed: Changed) -> None:
        """A name that the order does not have."""
        above, _, short = name.rpartition(b"/")
        low, high = self.overlay.range(name)
        if low < high:
            changed.over.add(short)
            self.clashes = self.clashes or self._entry(name) != FileType.DIR
        elif short not in changed.added:
            self._append(changed, short)
        if bad_prefix(name) is None:
            self.stay(above)
        while above and not self.clashes:
            self.clashes = self._entry(above) not in (0, FileType.DIR)
            above = above.rpartition(b"/")[0]

    def recheck(self, there: Callable[[bytes], bool]) -> None:
        """Which of the changed entries are there may be another than was noted."""
        self.version += 1
        for name in list(self.overlay.names()):
            above, _, short = name.rpartition(b"/")
            changed, found = self.overlay.to_change(above), there(name)
            if short in changed.states:
                self._set(above, short, found)
            elif not found:
                changed.forget(short)

    def renew(self, order: Order) -> None:
        """Go on with an order of the names as they are now."""
        before, self.overlay = self.overlay, Overlay(order)
        self.version += 1
        self.weight, self.clashes = 0, self.clashes or order.clashes != 0
        for directory, changed in before.dirs.items():
            for short in changed.dirs:
                self.stay(directory + b"/" + short if directory else short)
