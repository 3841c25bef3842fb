"""NameTree: the names of a container as directories, for a mount.

A directory is there because of an entry of ftype DIR, because a name below it is (implied), or
because it was: an implied one stays until it is removed or the mount ends, also when it has become
empty. Where a name is both a file and the prefix of others, the directory wins. Names that no path
can have count as if they were not there.

Whether there is an entry of a name the container knows; the tree knows the rest, and notes in
`since` what it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from winkfs.container.ondisk.inode import FileType
from winkfs.mounting.overlay import Changed, Order, Since
from winkfs.names import bad_prefix, within


class NameTree:
    """Which directories there are, and what is in them.

    entry   tells the FTYPE of the container's entry of this name, 0: there is none
    weight  changes in memory, about 200 bytes each
    version grows with each change
    """

    def __init__(self, order: Order, entry: Callable[[bytes], int]) -> None:
        self.since = Since(order)
        self._entry = entry
        self._number = 0
        self.weight = self.version = 0
        self.clashes = order.clashes != 0  # a file may be hidden by a directory

    # looking

    def implied(self, path: bytes) -> bool:
        """Whether a directory is there for another reason than its entry."""
        above, _, short = path.rpartition(b"/")
        return not path or short in self.since.of(above).dirs or self.since.implies(path)

    def is_empty(self, directory: bytes) -> bool:
        """Whether nothing is shown in it."""
        changed = self.since.of(directory)
        if changed.added or changed.dirs or changed.over:
            return False
        low, high = self.since.range(directory)
        if high - low <= changed.gone:
            return True
        return self.since.first(directory + b"/" if directory else b"", low) is None

    def below(self, directory: bytes) -> Iterator[bytes]:
        """Names of all entries below a directory."""
        yield from self.since.remaining(directory)
        for path, changed in list(self.since.dirs.items()):
            if within(path, directory):
                for short in [*changed.added, *changed.over]:
                    if self._entry(path + b"/" + short):
                        yield path + b"/" + short

    # changing

    def add(self, path: bytes, *, was_there: bool = False) -> None:
        """An entry came. `was_there`: a directory that was implied has one now."""
        above, _, short = path.rpartition(b"/")
        changed = self.since.to_change(above)
        self.weight += 1
        self.version += 1
        if short in changed.states:
            self._set(above, short, True)
        elif short in changed.added:
            pass
        elif was_there or self.since.of(path).gone:
            changed.over.add(short)
        else:
            self._append(changed, short)

    def change(self, path: bytes) -> None:
        """An entry has another inode than before."""
        self.version += 1
        above, _, short = path.rpartition(b"/")
        changed = self.since.dirs.get(above) or self.since.to_change(above)
        if not changed.knows(short):
            changed.states[short] = True
            self.weight += 1

    def remove(self, path: bytes) -> None:
        """An entry went. The directory it was in stays."""
        above, _, short = path.rpartition(b"/")
        changed = self.since.to_change(above)
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
        states = self.since.to_change(directory).states
        before, states[short] = states.get(short, True), there
        if before == there:
            return
        while True:
            self.since.to_change(directory).gone += -1 if there else 1
            if not directory:
                return
            directory = directory.rpartition(b"/")[0]

    def stay(self, directory: bytes, *, exists: bool = False) -> None:
        """A directory and those above stay, whatever happens to the names below them.

        It may be new, unless it `exists`.
        """
        while directory:
            above, _, short = directory.rpartition(b"/")
            changed = self.since.to_change(above)
            if short in changed.dirs:
                return
            changed.dirs.add(short)
            self.weight += 1
            if not exists and not changed.knows(short):
                low, high = self.since.range(directory)
                if low == high and not self._entry(directory):
                    self._append(changed, short)
            directory = above

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
        changed = self.since.to_change(above)
        changed.dirs.discard(short)
        if not self._entry(directory):  # else a file comes to light
            changed.added.pop(short, None)

    def move_directory(self, old: bytes, new: bytes) -> None:
        """After its entries have moved one by one: the directories that stay go with them."""
        moved = [item for item in self.since.dirs.items() if within(item[0], old)]
        self._let_go(old)
        self.stay(old.rpartition(b"/")[0], exists=True)
        self.stay(new)
        for path, changed in moved:
            for short in list(changed.dirs):
                self._let_go(path + b"/" + short)
                self.stay(new + path[len(old) :] + b"/" + short)

    # over a new order

    def replay(self, tail: Iterable[bytes]) -> None:
        """Names that came, changed or went since the order was made, whichever."""
        order = self.since.order
        for name in tail:
            at = order.lower_bound(name)
            known = at < order.count and order.name(at) == name
            above, _, short = name.rpartition(b"/")
            changed, there = self.since.to_change(above), self._entry(name) != 0
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
        low, high = self.since.range(name)
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
        for name in list(self.since.names()):
            above, _, short = name.rpartition(b"/")
            changed, found = self.since.to_change(above), there(name)
            if short in changed.states:
                self._set(above, short, found)
            elif not found:
                changed.forget(short)

    def renew(self, order: Order) -> None:
        """Go on with an order of the names as they are now."""
        before, self.since = self.since, Since(order)
        self.version += 1
        self.weight, self.clashes = 0, self.clashes or order.clashes != 0
        for directory, changed in before.dirs.items():
            for short in changed.dirs:
                self.stay(directory + b"/" + short if directory else short)
