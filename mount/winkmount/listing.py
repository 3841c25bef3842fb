"""Directories as libfuse reads them: any number of entries at a time, from any offset.

Offset 1 is behind `.`, 2 behind `..`, and o + 2 behind the entry to which the Source gave o. One
open directory costs one iterator, however many names it has.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from winkmount.source import Attr, DirEntry, Source

CHUNK: Final = 256  # entries: about what one request has room for
DOTS: Final = 2  # what our offsets are ahead of those of the Source


class Listing:
    """One open directory."""

    def __init__(self, source: Source, directory: int) -> None:
        self._source = source
        here = Attr(directory, stat.S_IFDIR | 0o755, 0, 0, 0, 0)
        above = here._replace(id=source.parent(directory))
        self._dots = [DirEntry(b".", here, 1 - DOTS), DirEntry(b"..", above, 2 - DOTS)]
        self._handle = source.opendir(directory)
        self._entries: Iterator[DirEntry] = iter(())
        self._next: list[DirEntry] = []
        self._at = self._version = -1  # the offset at which `_next` goes on, and as of when
        self.given = 0  # entries handed out so far

    def next(self, offset: int, version: int) -> list[DirEntry]:
        """Entries from an offset on, none at the end. They come again until they are `took`.

        version     grows with each change of what is shown
        """
        if (offset, version) != (self._at, self._version):
            self._at, self._version = offset, version
            behind = self._source.readdir(self._handle, max(offset - DOTS, 0))
            self._next, self._entries = [], chain(self._dots[offset:], behind)
        if not self._next:
            self._next = list(islice(self._entries, CHUNK))
        return self._next

    def took(self, count: int) -> int:
        """So many of the last entries are used -> the offset behind them."""
        if count:
            self._at = self._next[count - 1].offset + DOTS
            self._next = self._next[count:]
            self.given += count
        return self._at

    def close(self) -> None:
        self._entries = iter(())
        self._source.releasedir(self._handle)
