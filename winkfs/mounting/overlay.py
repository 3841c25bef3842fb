"""Since: an order of names, and the changes since by directory.

It knows which names the order has, which of them have gone or changed since, and which came. A
child of a directory has one place for as long as the order lasts: that of its entry in the order,
else that of the first name below it there, else a number among those that came. So a listing meets
each exactly once.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Final, Protocol

from winkformats.arrays import Int64
from winkfs.names import bad_prefix

BATCH: Final = 1024  # names read at a time, most
RANGES: Final = 4096  # ranges of directories remembered
PROBES: Final = 1 << 13  # names remembered, for searches in large directories
NEAR: Final = 512  # names below a directory up to which its implied children are remembered


class Order(Protocol):
    """What is asked of an order of names: see `GoodOrder`."""

    @property
    def count(self) -> int: ...
    @property
    def clashes(self) -> int: ...
    def positions(self, start: int, stop: int) -> Int64: ...
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


class Since:
    """The names below a directory are a range of the order; changes are kept by directory.

    A listing goes on with the one it began with, also when the tree has a new one.

    cost    a search of the order for a directory that is not remembered
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.dirs: dict[bytes, Changed] = {}
        self._ranges: dict[bytes, tuple[int, int]] = {}
        self._implied: dict[bytes, frozenset[bytes]] = {}
        self._probes: dict[int, bytes] = {}

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
            low = bisect.bisect_left(range(self.order.count), directory + b"/", key=self._probe)
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
                if name and not self.is_gone(name):
                    yield name

    def implies(self, path: bytes) -> bool:
        """Whether there are names below a path in the order that are still there and are paths."""
        above, _, short = path.rpartition(b"/")
        low, high = self.range(above)
        if low == high:
            return False
        if high - low <= NEAR and short not in self._near(above, low, high):
            return False
        gone = self.of(path).gone
        if gone:
            a, b = self.range(path)
            if b - a <= gone:
                return False
        prefix = path + b"/"
        at = bisect.bisect_left(range(high), prefix, low, high, key=self._probe)
        return at < high and self.first(prefix, at) is not None

    def _probe(self, index: int) -> bytes:
        """A name that a search looks at. The first that all searches look at are remembered."""
        name = self._probes.get(index)
        if name is None:
            name = self.order.name(index)
            if len(self._probes) < PROBES:
                self._probes[index] = name
        return name

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
                if not name:  # damaged
                    at += 1
                    continue
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
