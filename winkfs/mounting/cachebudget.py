"""Light: what a mount does to the page cache of its container: it reads ahead, and leaves no trace.

The kernel keeps what was read as pages of the mount. So pages of the container go again when some
thousands have come, save those that were there when the mount began.
"""

from __future__ import annotations

from typing import Final

from winkformats.arrays import Int64
from winkformats.kv.sequence import KVSeq

PAGE: Final = 4096
PAGES: Final = 8192  # that may come before they go
SPREAD: Final = 64 << 10  # bytes from one inode to the next, on average


class Light:
    """Counts what is read. It changes nothing but the page cache."""

    def __init__(self, kv: KVSeq) -> None:
        self._storage = kv.storage
        self._storage.remember_resident()
        self._touched = 0

    def touches(self, pages: int) -> None:
        self._touched += pages
        if self._touched > PAGES:
            self._touched = 0
            self._storage.drop_seen()

    def inodes(self, positions: Int64) -> None:
        """These are read, int64[n]. Where they lie close together, all between comes at once."""
        low, high = int(positions.min()), int(positions.max())
        near = 0 < high - low <= min(SPREAD * len(positions), PAGE * PAGES)
        self.touches((high - low) // PAGE + 1 if near else len(positions))
        if near:
            self._storage.read_ahead(low, high + PAGE - low)

    def reads(self, size: int) -> None:
        """So many bytes of a file. The kernel reads ahead by itself."""
        self.touches(size // PAGE + 1)
