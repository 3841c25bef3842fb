"""External sort: sorted runs are written to a scratch file, and merged when they are read.

SortedRecords   byte records, in byte order, such as names of a tree
sort_run        pairs of int64, stable; in memory if they fit
order_ties      sorts each range of equal right integers

PairRun     a range of pairs in a storage, read in blocks
ByRight     order by the right integers, in numpy
ByKey       order by a Python key, for a comparison of the caller
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from winkformats.closing import Closing
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError

RUN: Final = 24 << 20  # bytes of records, with overhead of Python, that are kept in memory
OVERHEAD: Final = 48  # bytes that Python adds to a record: object header and reference in a list
BIAS: Final = 1 << 63  # added to an mtime in a record, so that times before 1970 sort first
READ_BACK: Final = 256 << 10  # bytes of records read back at a time, of each run
Pairs = npt.NDArray[np.int64]  # shape (n, 2): left and right integers
Pair = tuple[int, int]
PAIR: Final = 16  # bytes of a pair on the disk
MIN_BLOCK: Final = 256  # pairs, 4 KiB, that a merge reads at least at a time from each run


class SortedRecords(Closing):
    """Collects records in any order, and yields them once in byte order.

    directory   place of the scratch file, if one is needed
    raises      OSError from the disk
    cost        n log n in memory; beyond RUN bytes each record is written and read once
    """

    def __init__(self, directory: str | os.PathLike[str], run: int = RUN) -> None:
        self._directory = directory
        self._limit = run
        self._records: list[bytes] = []
        self._room = run
        self._runs: list[list[int]] = []  # ends of the blocks of each run; the first is its start
        self._scratch: IO[bytes] | None = None

    def add(self, record: bytes) -> None:
        self.extend([record])

    def extend(self, records: list[bytes]) -> None:
        """Add several records, together a small part of a run."""
        self._records += records
        self._room -= sum(map(len, records)) + OVERHEAD * len(records)
        if self._room <= 0:
            self._flush()

    def __iter__(self) -> Iterator[bytes]:
        self._records.sort()
        if not self._runs:
            return self._drained()
        blocks = (map(self._block, ends, ends[1:]) for ends in self._runs)
        return heapq.merge(self._drained(), *map(chain.from_iterable, blocks))

    def close(self) -> None:
        """Drop the scratch file. Idempotent."""
        if self._scratch:
            self._scratch.close()
            self._scratch = None

    def _drained(self) -> Iterator[bytes]:
        records, self._records = self._records, []
        return iter(records)

    def _flush(self) -> None:
        import pickle

        if self._scratch is None:
            import tempfile  # late, because its import is slow

            self._scratch = tempfile.TemporaryFile(dir=self._directory, prefix=".winkfs-")  # noqa: SIM115 - lives as long as self
        self._records.sort()
        ends = [self._scratch.tell()]
        size = sum(map(len, self._records)) + OVERHEAD * len(self._records)
        step = max(len(self._records) * READ_BACK // size, 1)
        for at in range(0, len(self._records), step):
            pickle.dump(self._records[at : at + step], self._scratch, pickle.HIGHEST_PROTOCOL)
            ends.append(self._scratch.tell())
        self._scratch.flush()
        self._runs.append(ends)
        self._records.clear()
        self._room = self._limit

    def _block(self, start: int, stop: int) -> list[bytes]:
        import pickle

        assert self._scratch is not None
        block: list[bytes] = pickle.loads(os.pread(self._scratch.fileno(), stop - start, start))
        return block


@dataclass(frozen=True, slots=True)
class PairRun:
    """Pairs `start` to `stop` of those that begin at byte `base` of a storage."""

    storage: Storage
    base: int  # bytes
    start: int  # index of a pair
    stop: int
    dtype: str = "<i8"

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> PairRun:
        """Return pairs [start, stop) of this run, counted from its first."""
        return PairRun(self.storage, self.base, self.start + start, self.start + stop, self.dtype)

    def blocks(self, count: int) -> Iterator[Pairs]:
        """Yield all pairs in order, `count` at a time. Raises CorruptError if the file ends."""
        for at in range(self.start, self.stop, count):
            length = PAIR * min(count, self.stop - at)
            data = self.storage.read(self.base + PAIR * at, length)
            if len(data) != length:
                raise CorruptError(
                    "pairs are cut short", file=self.storage.name,
                    offset=self.base + PAIR * at, expected=length, found=len(data),
                )  # fmt: skip
            yield np.frombuffer(data, self.dtype).astype(np.int64).reshape(-1, 2)


class ByRight:
    """Order by ascending right integers. `cost`: bytes of memory for a pair while it is sorted."""

    cost = 64

    def sort(self, pairs: Pairs) -> Pairs:
        """Return the pairs in order; equal ones keep their order."""
        return pairs[np.argsort(pairs[:, 1], kind="stable")]

    def merge(self, runs: Sequence[PairRun], count: int) -> Iterator[Pairs]:
        """Merge sorted runs, with `count` pairs of each in memory; of equal pairs those of the
        earlier run come first."""
        blocks = [run.blocks(max(count // 2, 1)) for run in runs]
        held = [next(each, np.empty((0, 2), np.int64)) for each in blocks]
        left = [len(run) - len(pairs) for run, pairs in zip(runs, held, strict=True)]
        while any(left):
            # Pairs that are not held are >= limit. Pairs equal to it are yielded in the order of
            # the runs: those of the runs up to `first`, which may have more on the disk, and no
            # others.
            limit, first = min((int(held[i][-1, 1]), i) for i, more in enumerate(left) if more)
            done = []
            for i, pairs in enumerate(held):
                n = np.searchsorted(pairs[:, 1], limit, "right" if i <= first else "left")
                done.append(pairs[:n])
                held[i] = pairs[n:]
                if n == len(pairs) and left[i]:
                    held[i] = next(blocks[i])
                    left[i] -= len(held[i])
            yield self.sort(np.concatenate(done))
        yield self.sort(np.concatenate(held))


class ByKey:
    """Order by ascending key(pair), a function of the caller."""

    cost = 400  # two ints, a tuple, its wrapper and some bytes of key

    def __init__(self, key: Callable[[Pair], Any]) -> None:
        self.key = key

    def sort(self, pairs: Pairs) -> Pairs:
        return _array(sorted(_tuples([pairs]), key=self.key))

    def merge(self, runs: Sequence[PairRun], count: int) -> Iterator[Pairs]:
        merged = heapq.merge(*(_tuples(run.blocks(count)) for run in runs), key=self.key)
        while rows := list(islice(merged, count)):
            yield _array(rows)


PairOrder = ByRight | ByKey


def _tuples(blocks: Iterable[Pairs]) -> Iterator[Pair]:
    for pairs in blocks:
        yield from zip(pairs[:, 0].tolist(), pairs[:, 1].tolist(), strict=True)


def _array(rows: list[Pair]) -> Pairs:
    return np.array(rows, np.int64).reshape(-1, 2)


def sort_run(
    source: PairRun, order: PairOrder, budget: int, scratch: Callable[[], Storage]
) -> Iterator[Pairs]:
    """Sort the pairs of a run.

    budget      approximate bytes of memory; a few KiB at least
    scratch     returns a new empty storage for sorted runs, which is closed at the end
    ->          the pairs in order, in blocks
    cost        n log n in memory; beyond the budget each pair is written and read once, and once
                more for every factor budget / 16 KiB in the number of runs
    """
    limit = max(budget // order.cost, 2)  # pairs in memory
    if len(source) <= limit:
        yield from (order.sort(pairs) for pairs in source.blocks(limit))
        return
    fan_in = max(limit // MIN_BLOCK, 2)
    with contextlib.ExitStack() as stack:
        sorted_ones = ([order.sort(pairs)] for pairs in source.blocks(limit))
        runs = _write_runs(sorted_ones, stack.enter_context(scratch()))
        while len(runs) > fan_in:
            groups = (runs[i : i + fan_in] for i in range(0, len(runs), fan_in))
            merged = (order.merge(group, max(limit // len(group), 1)) for group in groups)
            runs = _write_runs(merged, stack.enter_context(scratch()))
        yield from order.merge(runs, max(limit // len(runs), 1))


def _write_runs(runs: Iterable[Iterable[Pairs]], storage: Storage) -> list[PairRun]:
    done = []
    at = 0
    for blocks in runs:
        run = write_run(blocks, storage, at)
        done.append(run)
        at = run.stop
    return done


def write_run(blocks: Iterable[Pairs], storage: Storage, start: int = 0) -> PairRun:
    """Write pairs from index `start` on -> their run."""
    at = start
    for pairs in blocks:
        storage.write(PAIR * at, [pairs.astype("<i8").tobytes()])
        at += len(pairs)
    return PairRun(storage, 0, start, at)


def order_ties(
    run: PairRun, order: PairOrder, budget: int, scratch: Callable[[], Storage]
) -> Iterator[Pairs]:
    """Sort each range of equal right integers of a sorted run by `order`."""
    count = max(budget // ByRight.cost, 2)
    done = 0
    for start, stop in _ties(run, count):
        yield from run.part(done, start).blocks(count)
        yield from sort_run(run.part(start, stop), order, budget, scratch)
        done = stop
    yield from run.part(done, len(run)).blocks(count)


def _ties(run: PairRun, count: int) -> Iterator[tuple[int, int]]:
    """Yield the index ranges of two or more pairs with equal right integers, across blocks."""
    begun, base, last = 0, 0, None
    for pairs in run.blocks(count):
        right = pairs[:, 1]
        starts = np.flatnonzero(right[1:] != right[:-1]) + base + 1
        head = [begun] if last is None or right[0] == last else [begun, base]
        edges = np.concatenate((np.array(head, np.int64), starts))
        for i in np.flatnonzero(np.diff(edges) > 1).tolist():
            yield int(edges[i]), int(edges[i + 1])
        begun, base, last = int(edges[-1]), base + len(pairs), right[-1]
    if base - begun > 1:
        yield begun, base
