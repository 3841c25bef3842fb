"""Containers that a task keeps open to read contents by references."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from winkfs.arrow.pieces import Piece
from winkfs.arrow.rows import Contents, open_planned

MAX_OPEN: Final = 64


class Held:
    """At most MAX_OPEN containers, by a key; beyond, the one that was used longest ago is closed.

    verify  compare checksums of contents
    """

    def __init__(self, *, verify: bool = True) -> None:
        self._verify = verify
        self._opened: dict[Hashable, Contents] = {}

    def of(self, key: Hashable, piece: Piece) -> Contents:
        """Return a container, which is opened if it is not. Raises StalePlan; FormatError;
        OSError."""
        found = self._opened.pop(key, None)
        if found is None:
            store = open_planned(piece)
            found = Contents(store, store.kv.start, store.kv.end, verify=self._verify)
            if len(self._opened) >= MAX_OPEN:
                _close(self._opened.pop(next(iter(self._opened))))
        self._opened[key] = found  # moved to the end: the first one is closed first
        return found

    def close(self) -> None:
        """Close all. Idempotent."""
        while self._opened:
            _close(self._opened.popitem()[1])


def _close(contents: Contents) -> None:
    contents.close()
    contents.store.abandon()
