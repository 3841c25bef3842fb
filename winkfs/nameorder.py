"""The name order: the live names of a container in byte order, as of one moment.

It is BASE.names, mapped: pairs (position of the inode, hash of its key); or, where no such file can
be, the positions in memory. The names themselves are read from the data file.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from winkformats import hashing
from winkformats.disk.directory import open_file
from winkformats.errors import FormatError
from winkformats.perm import PAIR, Perm
from winkformats.superblock import Superblock, read_superblock
from winkfs.inodekeys import SUFFIX, InodeKeys
from winkfs.replay import Changes, Replay
from winkfs.rows import Int64
from winkfs.settings import PURPOSE_NAMES, Settings

if TYPE_CHECKING:
    from winkfs.store import Store

CLASHES: Final = "CLASHES"  # extension: how many files have the name of a directory of others
UNKNOWN: Final = -1


class NameOrder:
    """Live names in byte order; immutable. A newer file renamed over its own does not matter to it.

    count     names
    covered   bytes: FILESIZE of the data file whose live names these are
    clashes   files, not directories, with whose name and a / another begins; -1: not known

    A name may have changed hands since: its position is then that of an older inode.
    """

    def __init__(
        self,
        store: Store,
        positions: Int64,
        covered: int,
        clashes: int,
        hashes: Int64 | None = None,
    ) -> None:
        """`positions`, `hashes`: int64[count] of either byte order; inodes below `covered`."""
        kv = store.kv
        kv.view(kv.end - 1)  # all of it written
        self.count, self.covered, self.clashes = len(positions), covered, clashes
        self._positions, self._hashes, self._htalgo = positions, hashes, store.settings.htalgo
        view = kv.storage.view(covered, sparse=True)
        self._keys = InodeKeys(view, kv.layout, kv.start, covered, kv.storage.name)

    def positions(self, start: int, stop: int) -> Int64:
        """Positions of the inodes with these indices, int64[n], unchecked."""
        return self._positions[start:stop].astype(np.int64)

    def pairs(self, start: int, stop: int) -> Int64:
        """Positions and hashes of the keys as BASE.names has them, int64[n, 2]."""
        positions = self.positions(start, stop)
        if self._hashes is not None:
            hashes = self._hashes[start:stop].astype(np.int64)
        else:
            hashes = key_hashes(self._htalgo, self._keys.names_and_keys(positions)[2])
        return np.stack([positions, hashes], 1)

    def names(self, start: int, stop: int) -> list[bytes]:
        """The names with these indices. Cost: 0.2 us a name warm. Raises CorruptError."""
        return self._keys.names(self.positions(start, stop))

    def lower_bound(self, name: bytes, low: int = 0) -> int:
        """Index of the first name >= `name`, at or after `low`; `count` where there is none.

        cost    1 us a step, and the steps grow with the logarithm of the distance from `low`
        raises  CorruptError
        """
        high = self.count
        if low > 0:
            low, high = gallop(self.name, name, low, high)
        return bisect.bisect_left(range(self.count), name, low, high, key=self.name)

    def name(self, index: int) -> bytes:
        """The name with this index. Cost: 1 us. Raises CorruptError."""
        return self._keys.name(self._positions.item(index))

    def close(self) -> None:
        """Let go of the files; the order is empty after that."""
        self._keys.close()
        self._positions = self._hashes = np.empty(0, np.int64)
        self.count = 0


def gallop(name_at: Callable[[int], bytes], name: bytes, low: int, high: int) -> tuple[int, int]:
    """Indices between which a name belongs, [low, high], from a `low` that is near, and not behind
    it. Cost: the steps grow with the logarithm of the distance from `low`."""
    step = 1
    while low < high:
        probe = min(low + step, high) - 1
        if name_at(probe) >= name:
            return low, probe
        low, step = probe + 1, 2 * step
    return low, high


def key_hashes(htalgo: int, keys: list[bytes]) -> Int64:
    """The right integers of a perm with HTSIZE 0, int64[n]."""
    return hashing.hash_keys(htalgo, keys)[1].view(np.int64)


def open_order(store: Store) -> NameOrder | None:
    """BASE.names, if it can be believed.

    ->      None where it is missing, foreign, of the wrong shape, or newer than the data file
    cost    one read; the file is mapped
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
    except (FormatError, OSError, ValueError):
        return None
    finally:
        storage.close()  # what is mapped stays


def is_ours(block: Superblock, settings: Settings) -> bool:
    """Whether a perm with this superblock is a name order of the container, and in our form."""
    return (
        block.purpose == PURPOSE_NAMES
        and settings.contid != 0
        and block.get("CONTID") == settings.contid
        and (block.get("HTALGO"), block.get("HTSIZE", 0)) == (settings.htalgo, 0)
    )


def order_in(store: Store, perm: Perm, covered: int, clashes: int) -> NameOrder:
    """The order that the pairs of a perm are."""
    view = perm.storage.view(perm.sbsize + PAIR.size * len(perm), sparse=True)
    pairs = np.frombuffer(view, ">i8", offset=perm.sbsize).reshape(-1, 2)
    return NameOrder(store, pairs[:, 0], covered, clashes, pairs[:, 1])


def stands_for(path: str, settings: Settings, end: int) -> bool:
    """Whether BASE.names may stay beside a data file that ends at `end`: what it says is true."""
    try:
        with open_file(path) as storage:
            block = read_superblock(storage)
    except (FormatError, OSError):
        return False
    return is_ours(block, settings) and block.get("DATAEND", -1) <= end


def tail(store: Store, covered: int) -> Iterator[tuple[bytes, int]]:
    """What happened to names between `covered` and the end of the data file as the store knows it.

    ->      each name once: (name, position of its inode, or 0 where it is gone)
    raises  CorruptError where the chain of entries breaks
    cost    reads the tail; memory: 200 bytes a name
    """
    kv = store.kv
    if covered >= kv.end:
        return
    kv.view(kv.end - 1)  # all of it written
    changes = Changes()
    Replay(kv, store.settings, changes, None).run(covered, kv.end, kv.end, store.note)
    for key, pos in changes.items():
        yield key[: -len(SUFFIX)], pos
