"""Page sums: checksums of the pages of a complete file, in a table after its FILESIZE.

    offset           size  type  field  meaning
    PAGESUMS + 8 i   8     Q     sum    of page i, see below
    PAGESUMS + 8 n   8     Q     own    XXH3-64 of the n sums, seed CONTID + PAGESUMS

Big-endian. Page i is bytes 4096 i to 4096 (i + 1), the last of the n pages ends with FILESIZE; its
sum is XXH3-64 with the seed CONTID + 4096 i. The variable PAGESUMS is FILESIZE rounded up to a
multiple of 8; missing or 0: there are no sums. Page 0 contains the superblock, so that a table is
valid only for the current state of the file. A writer that changes the file sets PAGESUMS to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Self

import numpy as np
import xxhash

from winkformats.arrays import Int64, UInt64
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError, DerivedDamage
from winkformats.hashing import xxh3_many
from winkformats.kv.superblock import Superblock

VARIABLE: Final = "PAGESUMS"
PAGE: Final = 4096
PAGES_AT_ONCE: Final = 256  # pages read at a time if all are checked
SMALL_FILE: Final = 64  # pages of a file that is checked as a whole at the first read
CHECK_ALL_RATIO: Final = 8  # all pages are checked when one of so many has been read
MASK64: Final = (1 << 64) - 1

Read = Callable[[int, int], bytes]


def place(size: int) -> int:
    """Return PAGESUMS of a file with this FILESIZE."""
    return -(-size // 8) * 8


def write(storage: Storage, block: Superblock) -> None:
    """Write the table of a file whose other bytes are written; not synced.

    block   its superblock, with PAGESUMS
    cost    one pass over the file
    """
    size, at, contid = block["FILESIZE"], block[VARIABLE], block.get("CONTID", 0)
    table = np.concatenate(list(_in_pieces(storage.read, contid, size))).astype(">u8").tobytes()
    storage.write(at, [table, xxhash.xxh3_64_digest(table, (contid + at) & MASK64)])


class PageSums:
    """The sums of one file, and which pages have been checked. Thread-safe.

    good    for each page, whether it has been found intact; whole: whether all have
    """

    def __init__(self, read: Read, name: str, sums: UInt64, contid: int, size: int) -> None:
        self._read, self._name, self._sums = read, name, sums
        self._contid, self._size = contid, size
        self.good = bytearray(len(sums))
        self._checked = 0
        self.whole = False

    @classmethod
    def load(cls, storage: Storage, block: Mapping[str, int]) -> Self | None:
        """Read the sums of a file, which must stay open; None if it has none.

        block   its superblock
        raises  DerivedDamage: the table or the superblock is damaged; OSError
        cost    reads 8 bytes for each page
        """
        at = block.get(VARIABLE, 0)
        if at == 0:
            return None
        size, contid, name = block["FILESIZE"], block.get("CONTID", 0), storage.name
        if at != place(size) or "SBCKSUM" not in block:
            raise DerivedDamage("PAGESUMS", file=name, offset=at, expected=place(size), found=at)
        length = 8 * -(-size // PAGE)
        raw = storage.read(at, length + 8)
        own = xxhash.xxh3_64_digest(memoryview(raw)[:length], (contid + at) & MASK64)
        if len(raw) != length + 8 or own != raw[length:]:
            raise DerivedDamage("the table of page sums is wrong", file=name, offset=at)
        sums = np.frombuffer(raw, ">u8", length // 8)
        made = cls(storage.read, name, sums, contid, size)
        made._check_page(0)
        return made

    def check(self, start: int, stop: int) -> None:
        """Check the pages that overlap [start, stop). Raises DerivedDamage; OSError."""
        if self.whole:
            return
        good = self.good
        for page in range(start // PAGE, (stop - 1) // PAGE + 1):
            if not good[page]:
                self._checked += 1
                if len(good) <= max(SMALL_FILE, self._checked * CHECK_ALL_RATIO):
                    self.check_all()
                    return
                self._check_page(page)

    def check_spans(self, starts: Int64, stops: Int64) -> None:
        """Check the pages of many ranges, int64[n] each; if these are many or long, all pages."""
        if self.whole or not len(starts):
            return
        first, last = starts // PAGE, (stops - 1) // PAGE
        if len(starts) * CHECK_ALL_RATIO > len(self.good) or (last > first + 1).any():
            self.check_all()
            return
        for page in np.unique(np.concatenate([first, last])).tolist():
            self.check(page * PAGE, page * PAGE + 1)

    def check_all(self) -> None:
        """Check every page. Raises DerivedDamage; OSError. Cost: one pass over the file."""
        if not self.whole:
            for page in self._wrong():
                raise self._damage(page)
            self.good[:] = b"\1" * len(self.good)
            self.whole = True

    def bad_pages(self) -> list[int]:
        """Return the offsets of the damaged pages. Reads the whole file."""
        return [page * PAGE for page in self._wrong()]

    def _wrong(self) -> Iterator[int]:
        first = 0
        for found in _in_pieces(self._read, self._contid, self._size):
            wrong = np.flatnonzero(found != self._sums[first : first + len(found)])
            yield from (wrong + first).tolist()
            first += len(found)

    def _check_page(self, page: int) -> None:
        found = _sums(self._read, self._contid, page, page + 1, self._size)
        if found[0] != self._sums[page]:
            raise self._damage(page)
        self.good[page] = 1

    def _damage(self, page: int) -> CorruptError:
        return DerivedDamage("the checksum of a page is wrong", file=self._name, offset=page * PAGE)


def _in_pieces(read: Read, contid: int, size: int) -> Iterator[UInt64]:
    """Compute the sums of all pages, up to PAGES_AT_ONCE of them at a time."""
    pages = -(-size // PAGE)
    for first in range(0, pages, PAGES_AT_ONCE):
        yield _sums(read, contid, first, min(first + PAGES_AT_ONCE, pages), size)


def _sums(read: Read, contid: int, first: int, stop: int, size: int) -> UInt64:
    """Compute the sums of the pages [first, stop); that of a truncated page will not match."""
    start, end = first * PAGE, stop * PAGE
    data = memoryview(read(start, min(end, size) - start))
    begins = range(0, end - start, PAGE)
    pages = map(data.__getitem__, map(slice, begins, range(PAGE, end - start + PAGE, PAGE)))
    seeds = np.arange(start, end, PAGE).astype(np.uint64) + np.uint64(contid & MASK64)
    return xxh3_many(pages, seeds)
