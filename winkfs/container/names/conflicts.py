"""Clashes: names that are also a directory of other names, found as the names go by in order."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np


class ClashFinder:
    """Takes all names in byte order, in pieces of any size.

    Names with a common beginning follow each other. So a name that its successor does not begin
    with has nothing below it, and the few others are looked up: whether name + "/" begins another.
    """

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self._open: list[bytes] = []  # name + "/" that all names since begin with, save for the /
        self._last: bytes | None = None

    def add(self, names: list[bytes]) -> None:
        """The next names. Cost: 0.1 us a name."""
        if not names:
            return
        if self._last is not None and names[0].startswith(self._last):
            self._open.append(self._last + b"/")
        self._open = [path for path in self._open if self._stays_open(path, names, 0)]
        follows = np.fromiter(map(bytes.startswith, names[1:], names), bool, len(names) - 1)
        for i in np.flatnonzero(follows).tolist():
            if self._stays_open(names[i] + b"/", names, i + 1):
                self._open.append(names[i] + b"/")
        self._last = names[-1]

    def _stays_open(self, path: bytes, names: list[bytes], low: int) -> bool:
        """Look for a name below `path` -> whether it may yet come in a later piece."""
        at = bisect_left(names, path, low)
        if at < len(names):
            if names[at].startswith(path):
                self.found.append(path[:-1])
            return False
        return names[-1].startswith(path[:-1])
