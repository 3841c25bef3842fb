"""The name order: the live names of a container in byte order, as of one moment.

It is BASE.names: pairs (position of the inode, hash of its key); or, where no such file can be, the
positions in memory. The names themselves are read from the data file. Nothing is mapped.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Final

import numpy as np

from winkformats import hashing
from winkformats.arrays import Int64, fetch
from winkformats.disk.paths import open_file
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.pagesums import PageSums
from winkformats.kv.superblock import Superblock
from winkformats.perm import PAIR, Perm
from winkfs.container.derived import Opened
from winkfs.container.ondisk.data import PURPOSE_NAMES, InodeKeys, Settings
from winkfs.errors import DerivedDamage
from winkfs.names import INODE, lower_bound, name_of

CLASHES: Final = "CLASHES"  # extension: how many files have the name of a directory of others
UNKNOWN: Final = -1
PAGE: Final = 256  # pairs of a page: 4 KiB
PAGES: Final = 64  # kept in memory
HEAD: Final = 512  # bytes read first of an inode, for its name


class PairFile:
    """The pairs of a perm, read a page at a time; the last few pages stay in memory."""

    def __init__(self, perm: Perm) -> None:
        """With a descriptor of its own. Raises DerivedDamage."""
        self.storage, self._offset = perm.storage.duplicate(), perm.sbsize
        self.count = len(perm)
        try:
            self._sums = PageSums.load(self.storage, perm.superblock)
        except BaseException:
            self.storage.close()
            raise
        self._pages: dict[int, Int64] = {}

    def read(self, start: int, stop: int) -> Int64:
        """The pairs with these indices, int64[n, 2]. Raises DerivedDamage."""
        stop = min(stop, self.count)
        first, last = start // PAGE, (stop - 1) // PAGE
        if start >= stop:
            return np.empty((0, 2), np.int64)
        if first == last:
            return self._page(first)[start - first * PAGE : stop - first * PAGE]
        return self._read_pages(first, last + 1)[start - first * PAGE : stop - first * PAGE]

    def _page(self, number: int) -> Int64:
        found = self._pages.get(number)
        if found is None:
            found = self._read_pages(number, number + 1)
            if len(self._pages) >= PAGES:
                del self._pages[next(iter(self._pages))]
            self._pages[number] = found
        return found

    def _read_pages(self, first: int, stop: int) -> Int64:
        """All pairs of some pages, checked. Everything that is read of the pairs comes from here.

        raises  DerivedDamage
        """
        count = min(stop * PAGE, self.count) - first * PAGE
        at = self._offset + first * PAGE * PAIR.size
        data = self.storage.read(at, count * PAIR.size)
        if len(data) < count * PAIR.size:
            end = at + len(data)
            raise DerivedDamage(
                "the order of names is cut short", file=self.storage.name, offset=end
            )
        if self._sums is not None:
            self._sums.check(at, at + len(data))
        return np.frombuffer(data, ">i8").reshape(-1, 2).astype(np.int64)


class NameOrder:
    """Live names in byte order; immutable. A newer file renamed over its own does not matter to it.

    count     names
    covered   bytes: FILESIZE of the data file whose live names these are
    clashes   files, not directories, with whose name and a / another begins; -1: not known

    A name may have changed hands since: its position is then that of an older inode. Names are
    handed out checked: by the hash that BASE.names has of the key, or by the checksum of the inode.
    """

    def __init__(
        self, store: Opened, positions: Int64 | PairFile, covered: int, clashes: int
    ) -> None:
        """`positions`: int64[count], where there is no BASE.names; inodes below `covered`."""
        kv = store.kv
        kv.show(kv.end - 1)  # all of it written
        self.covered, self.clashes = covered, clashes
        self._pairs = positions if isinstance(positions, PairFile) else None
        self._positions = None if isinstance(positions, PairFile) else positions
        self.count = positions.count if isinstance(positions, PairFile) else len(positions)
        self._layout, self._htalgo, self._start = kv.layout, store.settings.htalgo, kv.start
        self._data = kv.storage.duplicate()  # the file of now, whatever becomes of the handle
        files = [self._data, *([self._pairs.storage] if self._pairs else [])]
        self._close = weakref.finalize(self, _close_all, files)

    def positions(self, start: int, stop: int) -> Int64:
        """Positions of the inodes with these indices, int64[n], unchecked. Raises DerivedDamage."""
        if self._positions is not None:
            return self._positions[start:stop].astype(np.int64)
        return self._pairs.read(start, stop)[:, 0] if self._pairs else np.empty(0, np.int64)

    def pairs(self, start: int, stop: int) -> Int64:
        """Positions and hashes of the keys as BASE.names has them, int64[n, 2]."""
        if self._pairs is not None:
            return self._pairs.read(start, stop)
        keys = [name + INODE for name in self.names(start, stop)]
        return np.stack([self.positions(start, stop), key_hashes(self._htalgo, keys)], 1)

    def names(self, start: int, stop: int) -> list[bytes]:
        """The names with these indices. Cost: reads their inodes. Raises CorruptError."""
        if self._pairs is None:
            return [self.name(i) for i in range(start, min(stop, self.count))]
        pairs, low, high = self._pairs.read(start, stop), self._start, self.covered
        positions = pairs[:, 0]
        if not len(pairs) or positions.min() < low or positions.max() >= high:
            return [self.name(i) for i in range(start, min(stop, self.count))]
        data, at = fetch(self._data, positions, HEAD)
        try:
            names, _, keys = InodeKeys(
                data, self._layout, 0, len(data), self._data.name, room=HEAD
            ).names_and_keys(at)
        except CorruptError:  # or a long name
            return [self.name(i) for i in range(start, min(stop, self.count))]
        wrong = np.flatnonzero(key_hashes(self._htalgo, keys) != pairs[:, 1])
        if len(wrong):
            raise self._damaged(int(positions[wrong[0]]))
        return names

    def lower_bound(self, name: bytes, low: int = 0) -> int:
        """Index of the first name >= `name`, at or after `low`; `count` where there is none.

        cost    one name read a step; steps grow with the logarithm of the distance from `low`
        raises  CorruptError
        """
        return lower_bound(self.name, self.count, name, low)

    def name(self, index: int) -> bytes:
        """The name with this index. Cost: reads one inode. Raises CorruptError."""
        if self._pairs is None:
            assert self._positions is not None
            return self._name(self._positions.item(index), None)
        pos, hashed = self._pairs.read(index, index + 1)[0].tolist()
        return self._name(pos, hashed)

    def _name(self, pos: int, hashed: int | None) -> bytes:
        """The name of an inode; `hashed`: of its key, where that is known."""
        if not self._start <= pos < self.covered:
            raise self._damaged(pos)
        data = self._data.read(pos, HEAD)
        span = self._layout.locate(data, 0)
        while span is None or (hashed is None and span.end > len(data)):
            need = self._layout.reach(data)
            if pos + need > self.covered:
                raise self._damaged(pos)
            before, data = len(data), self._data.read(pos, need)
            if len(data) <= before:  # the file is cut short
                raise self._damaged(pos)
            span = self._layout.locate(data, 0)
        key = data[span.key : span.key + span.key_len]
        if len(key) <= len(INODE) or not key.endswith(INODE) or key[-4] == 0:
            raise self._damaged(pos)
        if hashed is None:
            self._layout.check(data, 0, span, pos, self._data.name)
        elif hashing.hash_key(self._htalgo, key)[1] != hashed:
            raise self._damaged(pos)
        return name_of(key)

    def _damaged(self, pos: int) -> CorruptError:
        return CorruptError("no inode with its name", file=self._data.name, offset=pos)

    def close(self) -> None:
        """Close the files; the order is empty after that."""
        self._close()
        self._pairs, self._positions, self.count = None, np.empty(0, np.int64), 0


def _close_all(files: Sequence[Storage]) -> None:
    for storage in files:
        storage.close()


def key_hashes(htalgo: int, keys: list[bytes]) -> Int64:
    """The right integers of a perm with HTSIZE 0, int64[n]."""
    return hashing.hash_keys(htalgo, keys)[1].view(np.int64)


def open_order(store: Opened) -> NameOrder | None:
    """BASE.names, if it can be believed.

    ->      None where it is missing, foreign, of the wrong shape, or newer than the data file; a
            damaged page is DerivedDamage when it is first read
    cost    three reads
    """
    try:
        storage = open_file(store.base + ".names")
    except OSError:
        return None
    try:
        perm = Perm.open(storage)
        covered = perm.superblock.get("DATAEND", -1)
        fits = max(store.names_from, store.kv.start) <= covered <= store.kv.end
        if not (fits and is_ours(perm.superblock, store.settings)):
            return None
        return order_in(store, perm, covered, perm.superblock.get(CLASHES, UNKNOWN))
    except DerivedDamage as error:
        store.remark(error)
        return None
    except (FormatError, OSError, ValueError):
        return None
    finally:
        storage.close()


def is_ours(block: Superblock, settings: Settings) -> bool:
    """Whether a perm with this superblock is a name order of the container, and in our form."""
    return (
        block.purpose == PURPOSE_NAMES
        and settings.contid != 0
        and block.get("CONTID") == settings.contid
        and (block.get("HTALGO"), block.get("HTSIZE", 0)) == (settings.htalgo, 0)
    )


def order_in(store: Opened, perm: Perm, covered: int, clashes: int) -> NameOrder:
    """The order that the pairs of a perm are. The perm may be closed."""
    return NameOrder(store, PairFile(perm), covered, clashes)
