"""Directories: which paths have something below them, without a look into the catalog for each.

A writer asks for each file, and the catalog does not have its changes yet; a reader may have no
catalog at all. So all directories are read once, and kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from winkfs.container.catalog import POLICY, open_catalog
from winkfs.container.container import Container
from winkfs.reader import Reader

if TYPE_CHECKING:
    from winkfs.fsspec.listing import Listing


class Directories:
    """The directories that have something in them. Memory: one path for each.

    A directory exists by an entry of its own, or by what is below it.
    """

    def __init__(self, listing: Listing, has_entry: Callable[[str], bool]) -> None:
        """Read the directories. `has_entry`: whether there is a file, or a directory's entry."""
        self._has_entry = has_entry
        found = listing.tree("")
        self._inside: Counter[str] = Counter(
            path.rpartition("/")[0] for path in found.files.keys() | found.directories.keys()
        )

    def __contains__(self, path: str) -> bool:
        return not path or self._inside[path] > 0

    def add(self, path: str) -> None:
        """Record a path that is new: there was no file and no directory."""
        while path:
            above = path.rpartition("/")[0]
            self._inside[above] += 1
            if self._inside[above] > 1 or self._has_entry(above):
                return
            path = above

    def remove(self, path: str) -> None:
        """Record that there is no file and no directory any more at a path."""
        while path:
            above = path.rpartition("/")[0]
            self._inside[above] -= 1
            if self._inside[above] > 0:
                return
            del self._inside[above]
            if self._has_entry(above):
                return
            path = above


class ReadDirectories:
    """The directories that a reader sees."""

    def __init__(self, reader: Reader, listing: Listing) -> None:
        self._reader, self._listing = reader, listing
        self._kept: tuple[tuple[int, int], Directories] | None = None  # as of a sync

    def has_below(self, path: str) -> bool:
        """Return whether there is a file or directory below a path.

        cost  one block of the catalog; without one, a pass over all files after each sync
        """
        reader = self._reader
        if not isinstance(reader, Container):
            return self._listing.has_below(path)
        with reader.lock:
            store = reader.settled()
            state, kept = (store.synced, store.generation), self._kept
            if kept is None or kept[0] != state:
                catalog = open_catalog(store, behind=POLICY.short)
                if catalog is not None:
                    catalog.close()
                    return self._listing.has_below(path)
        if kept is None or kept[0] != state:
            kept = self._kept = state, Directories(self._listing, lambda _: False)
        return path in kept[1]
