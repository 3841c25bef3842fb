"""Perm: a sequence of (kv_pointer, hash) pairs that can be sorted and grouped.

    offset         size  type  field  meaning
    SBSIZE + 16 i  8     q     left   usually a kv_pointer
    ..             8     q     right  usually the hash of its key: the slot under HTALGO and HTSIZE

Big-endian. PERMSIZE counts the pairs; FILESIZE = SBSIZE + 16 * PERMSIZE. HTSIZE 0 or missing: the
right integer is the low 63 bits of the hash itself.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from winkformats import hashing
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.extsort import (
    ByKey,
    ByRight,
    Pair,
    PairRun,
    Pairs,
    order_ties,
    sort_run,
    write_run,
)
from winkformats.hindex.cells import (
    MAX_INT64,
    CellFile,
    check_filesize,
    int64_row,
    need_empty,
    need_variable,
    open_superblock,
    scratch,
)
from winkformats.kv.superblock import PERM, SBSIZE, Superblock

PAIR: Final = struct.Struct(">qq")
assert PAIR.size == 16

FLUSH: Final = 1 << 20  # bytes of appended pairs that are written together
BUDGET: Final = 64 << 20  # bytes of memory for a sort

Compare = Callable[[Pair, Pair], int]


class Perm(CellFile):
    """Pairs of int64 in one file. One writer; only group and sort change the index of a pair.

    Pairs are visible to other processes only after `sync` (or `close`).
    """

    def __init__(self, storage: Storage, superblock: Superblock, *, writable: bool) -> None:
        super().__init__(storage, superblock, writable=writable)
        self._written = superblock["PERMSIZE"]  # pairs in the file
        self._tail = bytearray()  # appended pairs that are not in the file

    @classmethod
    def create(
        cls,
        storage: Storage,
        *,
        htalgo: int = hashing.XXH3,
        htsize: int = 0,
        purpose: str = "",
        sbsize: int = SBSIZE,
        sbcksum: bool = True,
        extra: Mapping[str, int] | None = None,
    ) -> Self:
        """Create an empty perm in an empty storage.

        htalgo, htsize  determine the right integers of keys: see `hash_keys`
        extra           further variables, such as DATAEND
        raises          ValueError: the storage is not empty, or a variable is not valid
        """
        need_empty(storage)
        hashing.check(htalgo)
        if htsize < 0:
            raise ValueError(f"HTSIZE {htsize} must be 0 or more")
        variables = {"PERMSIZE": 0, "HTALGO": htalgo, "HTSIZE": htsize}
        variables |= {"SBCKSUM": 0} if sbcksum else {}
        block = Superblock.new(PERM, purpose, variables | dict(extra or {}), sbsize)
        perm = cls(storage, block, writable=True)
        storage.write(0, [block.encode()])
        perm._changed = True
        return perm

    @classmethod
    def open(cls, storage: Storage, writable: bool = False) -> Self:
        """Open an existing perm. Raises FormatError."""
        name = storage.name
        block = open_superblock(storage, PERM)
        count = need_variable(block, "PERMSIZE", 0, MAX_INT64 // PAIR.size, file=name)
        check_filesize(block, PAIR.size * count, file=name)
        if "HTALGO" in block:
            hashing.check(block["HTALGO"], name)
        if "HTSIZE" in block:
            need_variable(block, "HTSIZE", 0, MAX_INT64, file=name)
        return cls(storage, block, writable=writable)

    def __len__(self) -> int:
        return self._written + len(self._tail) // PAIR.size

    def hash_keys(self, keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """Return the right integers of keys, int64[n], by HTALGO (default 2) and HTSIZE."""
        bits = hashing.hash_keys(self.superblock.get("HTALGO", hashing.XXH3), keys)[1]
        htsize = self.superblock.get("HTSIZE", 0)
        return (bits % np.uint64(htsize) if htsize else bits).astype(np.int64)

    def append(self, left: int, right: int) -> int:
        """Add a pair after the last one -> its index. Cost: buffered, one write per FLUSH bytes.

        raises  ValueError for integers that do not fit into int64; OSError
        """
        self._need_writable()
        try:
            self._tail += PAIR.pack(left, right)
        except struct.error:
            raise ValueError(f"pair ({left}, {right}) does not fit into int64") from None
        self._changed = True
        if len(self._tail) >= FLUSH:
            self._flush()
        return len(self) - 1

    def append_many(self, left: npt.ArrayLike, right: npt.ArrayLike) -> int:
        """Add pairs left[i], right[i]: int64[n] each -> index of the first. One write."""
        self._need_writable()
        lefts, rights = int64_row(left), int64_row(right)
        if lefts.shape != rights.shape:
            raise ValueError(f"{lefts.size} left and {rights.size} right integers")
        self._flush()
        first = self._written
        self._changed = True
        offset = self.sbsize + PAIR.size * first
        self._written += _write_pairs(self.storage, offset, [np.stack((lefts, rights), axis=1)])
        return first

    def get(self, index: int) -> Pair:
        """Return (left, right). Raises ValueError outside 0..len-1."""
        left, right = self.get_many([index])[0].tolist()
        return left, right

    def get_many(self, indices: npt.ArrayLike) -> Pairs:
        """Return the pairs at indices int64[n], int64[n, 2]. Raises ValueError."""
        which = int64_row(indices)
        self._check_range(which)
        self._flush()
        if len(which) == 1:  # a mapping costs more than a read
            return next(self._run().part(int(which[0]), int(which[0]) + 1).blocks(1))
        end = self.sbsize + PAIR.size * self._written
        if self.storage.size() < end:  # a mapping would kill the process instead
            raise CorruptError("pairs are cut short", file=self.storage.name, offset=end)
        if not len(which):
            return np.empty((0, 2), np.int64)
        stored = np.frombuffer(self.storage.view(end), ">i8", offset=self.sbsize)
        return stored.reshape(-1, 2)[which].astype(np.int64)

    def iterate(self, start: int = 0) -> Iterator[Pair]:
        """Yield (left, right) from index `start` on, read in blocks."""
        self._flush()
        for pairs in self._run().part(min(start, len(self)), len(self)).blocks(FLUSH // PAIR.size):
            yield from zip(pairs[:, 0].tolist(), pairs[:, 1].tolist(), strict=True)

    def group(self, compare: Compare | None = None, *, budget: int = BUDGET) -> None:
        """Sort by the right integers, and equal ones by `compare`.

        compare     (pair, pair) -> negative, 0 or positive, usually by the keys of the left
                    integers. Without it, and if it returns 0, pairs keep their order
        budget      bytes of memory; more pairs are sorted in runs in a file beside this one
        raises      OSError, and what `compare` raises: then the perm is unchanged
        """
        self._reorder(functools.partial(self._grouped, compare, budget))

    def sort(
        self,
        compare: Compare | None = None,
        *,
        key: Callable[[Pair], Any] | None = None,
        budget: int = BUDGET,
    ) -> None:
        """Sort by a comparison of pairs, or by a key of each pair; stable. See `group`.

        raises  ValueError unless exactly one of compare and key is given
        """
        if (compare is None) == (key is None):
            raise ValueError("sort needs either a comparison or a key")
        if compare is not None:
            key = functools.cmp_to_key(compare)
        assert key is not None
        order = ByKey(key)
        self._reorder(lambda: sort_run(self._run(), order, budget, self._scratch))

    def _grouped(self, compare: Compare | None, budget: int) -> Iterator[Pairs]:
        by_right = sort_run(self._run(), ByRight(), budget, self._scratch)
        if compare is None:
            yield from by_right
            return
        order = ByKey(functools.cmp_to_key(compare))
        with self._scratch() as ordered:
            yield from order_ties(write_run(by_right, ordered), order, budget, self._scratch)

    def _reorder(self, blocks: Callable[[], Iterator[Pairs]]) -> None:
        """Replace the file by one with the pairs in the order of `blocks`."""
        self._need_writable()
        self._flush()

        def fill(new: Storage) -> None:
            self._update_superblock()
            new.write(0, [self.superblock.encode()])
            _write_pairs(new, self.sbsize, blocks())

        self._rewrite(fill)

    def _flush(self) -> None:
        if self._tail:
            self.storage.write(self.sbsize + PAIR.size * self._written, [self._tail])
            self._written = len(self)
            self._tail = bytearray()

    def _update_superblock(self) -> None:
        self._flush()
        self.superblock["PERMSIZE"] = self._written
        self.superblock["FILESIZE"] = self.sbsize + PAIR.size * self._written

    def _run(self) -> PairRun:
        """Return all pairs in the file."""
        return PairRun(self.storage, self.sbsize, 0, self._written, ">i8")

    def _scratch(self) -> Storage:
        return scratch(self.storage)

    def _check_range(self, indices: npt.NDArray[np.int64]) -> None:
        wrong = indices[(indices < 0) | (indices >= len(self))]
        if len(wrong):
            raise ValueError(f"{self.storage.name}: no pair {wrong[0]}: there are {len(self)}")


def _write_pairs(storage: Storage, offset: int, blocks: Iterable[Pairs]) -> int:
    """Write pairs from byte `offset` on, about FLUSH bytes at a time -> number of pairs."""
    waiting: list[bytes] = []
    size = done = 0
    for pairs in blocks:
        waiting.append(pairs.astype(">i8").tobytes())
        size += len(waiting[-1])
        if size >= FLUSH:
            done += storage.write(offset + done, waiting)
            waiting, size = [], 0
    done += storage.write(offset + done, waiting)
    return done // PAIR.size
