"""Page sums: checksums of the pages of a file that is finished, in a table behind its FILESIZE.

    offset           size  type  field  meaning
    PAGESUMS + 8 i   8     Q     sum    of page i, see below
    PAGESUMS + 8 n   8     Q     own    XXH3-64 of the n sums, seed CONTID + PAGESUMS

Big-endian. Page i is bytes 4096 i to 4096 (i + 1), the last of the n pages ends with FILESIZE; its
sum is XXH3-64 with the seed CONTID + 4096 i. The variable PAGESUMS is FILESIZE rounded up to a
multiple of 8; missing or 0: there are no sums. Page 0 has the superblock in it, so a table belongs
to its file as it is, and not to what stood there before. Who changes the file sets PAGESUMS to 0.
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
PIECE: Final = 256  # pages read at a time where all are checked
FEW: Final = 64  # pages that are checked together when the first of them is needed
PART: Final = 8  # one page in so many was asked for: then the others are checked too
MASK64: Final = (1 << 64) - 1

Read = Callable[[int, int], bytes]


def place(size: int) -> int:
    """PAGESUMS of a file with this FILESIZE."""
    return -(-size // 8) * 8


def write(storage: Storage, block: Superblock) -> None:
    """Write the table of a file whose other bytes are all written, not synced.

    block   its superblock, with PAGESUMS
    cost    one pass over the file
    """
    size, at, contid = block["FILESIZE"], block[VARIABLE], block.get("CONTID", 0)
    table = np.concatenate(list(_in_pieces(storage.read, contid, size))).astype(">u8").tobytes()
    storage.write(at, [table, xxhash.xxh3_64_digest(table, (contid + at) & MASK64)])


class PageSums:
    """The sums of one file, and which of its pages were found right. Safe between threads.

    good    of each page, whether it was; whole: whether all were
    """

    def __init__(self, read: Read, name: str, sums: UInt64, contid: int, size: int) -> None:
        self._read, self._name, self._sums = read, name, sums
        self._contid, self._size = contid, size
        self.good = bytearray(len(sums))
        self._asked = 0
        self.whole = False

    @classmethod
    def load(cls, storage: Storage, block: Mapping[str, int]) -> Self | None:
        """The sums of a file, which has to stay open; None where it has none.

        block   its superblock
        raises  DerivedDamage: the table or the superblock is not right; OSError
        cost    a read of 8 bytes a page
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
        """Check the pages that have a byte of [start, stop). Raises DerivedDamage; OSError."""
        if self.whole:
            return
        good = self.good
        for page in range(start // PAGE, (stop - 1) // PAGE + 1):
            if not good[page]:
                self._asked += 1
                if len(good) <= max(FEW, self._asked * PART):
                    self.check_all()
                    return
                self._check_page(page)

    def check_spans(self, starts: Int64, stops: Int64) -> None:
        """The same for many ranges, int64[n] each. Many or long ones: all pages are checked."""
        if self.whole or not len(starts):
            return
        first, last = starts // PAGE, (stops - 1) // PAGE
        if len(starts) * PART > len(self.good) or (last > first + 1).any():
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
        """Offsets of the pages that are wrong now. Reads the whole file."""
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
    """The sums that all pages have now, up to PIECE of them at a time."""
    pages = -(-size // PAGE)
    for first in range(0, pages, PIECE):
        yield _sums(read, contid, first, min(first + PIECE, pages), size)


def _sums(read: Read, contid: int, first: int, stop: int, size: int) -> UInt64:
    """The sums that the pages [first, stop) have now. A page that is cut short has a wrong one."""
    start, end = first * PAGE, stop * PAGE
    data = memoryview(read(start, min(end, size) - start))
    begins = range(0, end - start, PAGE)
    pages = map(data.__getitem__, map(slice, begins, range(PAGE, end - start + PAGE, PAGE)))
    seeds = np.arange(start, end, PAGE).astype(np.uint64) + np.uint64(contid & MASK64)
    return xxh3_many(pages, seeds)
