"""Directories as libfuse reads them: any number of entries at a time, from any offset.

Offset 1 is behind `.`, 2 behind `..`, and o + 2 behind the entry to which the Source gave o. One
open directory costs one iterator, however many names it has.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import NamedTuple

from winkmount.source import Attr, Source


class Entry(NamedTuple):
    name: bytes
    attr: Attr
    offset: int  # where to go on behind this entry


class Listing:
    """One open directory."""

    def __init__(self, source: Source, directory: int) -> None:
        self._source = source
        here = Attr(directory, stat.S_IFDIR | 0o755, 0, 0, 0, 0)
        above = here._replace(id=source.parent(directory))
        self._dots = [Entry(b".", here, 1), Entry(b"..", above, 2)]
        self._handle = source.opendir(directory)
        self._entries: Iterator[Entry] = iter(())
        self._refused: tuple[Entry, int] | None = None  # an entry without room, and its version
        self._at = -1  # the offset at which `_entries` goes on
        self.given = 0  # entries handed out so far

    def entries(self, offset: int, version: int) -> Iterator[Entry]:
        """The entries from an offset on. Give the first that is not used to `refuse`.

        version     grows with each change of what is shown
        """
        refused, self._refused = self._refused, None
        if offset != self._at or (refused and refused[1] != version):
            self._entries, refused = self._from(offset), None
        if refused:
            yield refused[0]
        for entry in self._entries:
            self._at = entry.offset
            self.given += 1
            yield entry

    def refuse(self, entry: Entry, offset: int, version: int) -> None:
        """The entry comes again when the listing goes on at `offset`, as it does."""
        self._refused, self._at = (entry, version), offset

    def _from(self, offset: int) -> Iterator[Entry]:
        if offset < 2:
            yield from self._dots[offset:]
        for name, attr, behind in self._source.readdir(self._handle, max(offset - 2, 0)):
            yield Entry(name, attr, behind + 2)

    def close(self) -> None:
        self._entries = iter(())
        self._source.releasedir(self._handle)
