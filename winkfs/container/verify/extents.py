"""Extents: whether inodes point to data entries of their own, in little memory.

Mostly a data entry lies right before its inode, in the same batch of a scan: then the extent is
checked there and forgotten. Of the other inodes the position is kept, and they are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64
from winkformats.kv.scan import Batch
from winkfs.container.inodescan import InodeRows, fileids
from winkfs.container.store import Store
from winkfs.container.verify.claims import Claims, rows_of_inodes

PIECE: Final = 1 << 15  # inodes read again at a time


class Extents:
    """Takes the batches of a whole data file, then says which extents are wrong.

    problem  is told of each wrong extent, in a line
    cost     memory: 4 bytes a data entry, and 8 an inode with data in another batch
    """

    def __init__(self, store: Store, problem: Callable[[str], None]) -> None:
        self._store, self._problem = store, problem
        self._name = store.kv.storage.name
        self._claims = Claims(store, problem)
        self._again = Claims(store, lambda _: None)  # what is wrong with inodes was said before
        self._places = _Places()
        self._left: list[Int64] = []  # positions of inodes, int64[..] for each batch

    def take(self, batch: Batch, rows: InodeRows) -> None:
        """Check what can be checked within a batch."""
        claims = self._claims.of(rows)
        chosen = rows.others
        self._places.add(batch.base, batch.at[chosen])
        doubt = _Verdict.of(_Data.of(batch, chosen), claims).any & (claims[:, 1] != 0)
        if doubt.any():
            left = np.unique(claims[doubt, 0])
            left = left[~rows.deleted[np.searchsorted(rows.pos, left)]]
            self._left.append(left)

    def check(self, live: Int64) -> None:
        """Every extent of a live file must point to an entry of its own that is long enough.

        live    int64[n], ascending: inodes of the live files
        """
        for left in self._left:
            for claims in self._read(left[_among(left, live)]):
                self._check(claims[claims[:, 1] != 0])
        self._left = []

    def _check(self, claims: Int64) -> None:
        verdict = _Verdict.of(self._data(np.unique(claims[:, 1])), claims)
        for what, wrong in (
            ("extent points to no data entry", verdict.missing),
            ("extent is longer than its entry", verdict.short),
            ("data of a live file is marked deleted", verdict.dead),
            ("extent points to data of another file", verdict.alien),
        ):
            for inode, pointer, *_ in claims[wrong].tolist():
                self._problem(f"{self._name}: inode at byte {inode}: {what} (at {pointer})")

    def unmarked(self, live: Int64, others: Int64) -> int:
        """How many data entries only `others` point to, but are not marked deleted.

        live    int64[n], ascending: inodes of the live files
        others  int64[m]: inodes of the files that are not
        cost    reads all these inodes again
        """
        pointers = [np.unique(claims[:, 1]) for claims in self._read(np.sort(others))]
        if not pointers:
            return 0
        left = np.unique(np.concatenate(pointers))
        for claims in self._read(live):
            left = left[~_among(left, np.unique(claims[:, 1]))]
        return sum(
            int(np.count_nonzero(self._data(left[at : at + PIECE]).flag == 0))
            for at in range(0, len(left), PIECE)
        )

    def _read(self, inodes: Int64) -> Iterator[Int64]:
        """The claims of inodes at ascending positions, read again."""
        for at in range(0, len(inodes), PIECE):
            yield self._again.of(rows_of_inodes(self._batch(inodes[at : at + PIECE])))

    def _data(self, pointers: Int64) -> _Data:
        """The data entries at those of these ascending positions where there are any."""
        batch = self._batch(pointers[self._places.has(pointers)])
        return _Data.of(batch, np.arange(len(batch)))

    def _batch(self, positions: Int64) -> Batch:
        kv = self._store.kv
        return Batch(kv.storage, kv.layout, 0, memoryview(kv.view(kv.end - 1)), positions)


class _Places:
    """Positions of entries, 4 bytes each."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._offsets: list[npt.NDArray[np.uint32]] = []

    def add(self, base: int, offsets: Int64) -> None:
        """Note the entries of a batch. `offsets` from `base`, ascending: less than MAX_WINDOW."""
        if len(offsets):
            self._bases.append(base)
            self._offsets.append(offsets.astype(np.uint32))

    def has(self, positions: Int64) -> Bools:
        """At which of these ascending positions an entry lies."""
        found = np.zeros(len(positions), bool)
        part = np.searchsorted(np.array(self._bases, np.int64), positions, "right") - 1
        starts = np.flatnonzero(np.diff(part, prepend=-2))  # -1: before all of them
        for a, b in zip(starts.tolist(), [*starts[1:].tolist(), len(part)], strict=True):
            k = int(part[a])
            if k < 0:
                continue
            found[a:b] = _among(positions[a:b] - self._bases[k], self._offsets[k].astype(np.int64))
        return found


class _Data(NamedTuple):
    """Data entries in file order: position, bytes of the value, delflag, FILEID in the key."""

    pos: Int64
    length: Int64
    flag: npt.NDArray[np.uint8]
    owner: Int64

    @classmethod
    def of(cls, batch: Batch, chosen: Int64) -> _Data:
        owner = fileids(batch, chosen)
        return cls(batch.pos[chosen], batch.value_len[chosen], batch.flags[chosen], owner)


class _Verdict(NamedTuple):
    """What is wrong with each claim, if anything."""

    missing: Bools
    short: Bools
    dead: Bools
    alien: Bools

    @classmethod
    def of(cls, data: _Data, claims: Int64) -> _Verdict:
        if not len(data.pos):
            none = np.zeros(len(claims), bool)
            return cls(~none, none, none, none)
        at = np.searchsorted(data.pos, claims[:, 1])
        at[at == len(data.pos)] = 0
        good = data.pos[at] == claims[:, 1]
        return cls(
            ~good,
            good & (data.length[at] < claims[:, 2]),
            good & (data.flag[at] == 1),
            good & (data.owner[at] != claims[:, 3]),
        )

    @property
    def any(self) -> Bools:
        return self.missing | self.short | self.dead | self.alien


def _among(values: Int64, ascending: Int64) -> Bools:
    """Which values are in an ascending array."""
    if not len(ascending):
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    same: Bools = ascending[at] == values
    return same
