"""Byte records in sorted order, any number of them, in bounded memory.

A list of five million Python objects takes a gigabyte; a tree walk needs its names sorted. So a
full list is sorted and written to an unnamed scratch file as a run, and the runs are merged on the
way out.
"""

from __future__ import annotations

import heapq
import os
import pickle
import tempfile
from collections.abc import Iterator
from itertools import chain
from typing import IO, Final, Self

RUN: Final = 24 << 20  # bytes of records, with what Python adds, that are kept in memory
OVERHEAD: Final = 48  # bytes Python adds to a record: the object's head and its place in a list
BIAS: Final = 1 << 63  # added to an mtime in a record: times before 1970 sort first
BLOCK: Final = 256 << 10  # bytes of records read back at a time, of each run


class SortedRecords:
    """Takes records in any order, gives them back once in byte order.

    directory   where the scratch file lies, if one is needed
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add(self, record: bytes) -> None:
        self._records.append(record)
        self._room -= len(record) + OVERHEAD
        if self._room <= 0:
            self._flush()

    def extend(self, records: list[bytes]) -> None:
        """Add many, which together are no more than a small part of a run."""
        self._records += records
        self._room -= sum(map(len, records)) + OVERHEAD * len(records)
        if self._room <= 0:
            self._flush()

    def __iter__(self) -> Iterator[bytes]:
        self._records.sort()
        if not self._runs:
            return self._drained()
        return heapq.merge(self._drained(), *(map(self._read, self._runs)))

    def close(self) -> None:
        """Drop the scratch file. Safe to call twice."""
        if self._scratch:
            self._scratch.close()
            self._scratch = None

    def _drained(self) -> Iterator[bytes]:
        records, self._records = self._records, []
        return iter(records)

    def _flush(self) -> None:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryFile(dir=self._directory, prefix=".winkfs-")  # noqa: SIM115 - lives as long as self
        self._records.sort()
        ends = [self._scratch.tell()]
        size = sum(map(len, self._records)) + OVERHEAD * len(self._records)
        step = max(len(self._records) * BLOCK // size, 1)
        for at in range(0, len(self._records), step):
            pickle.dump(self._records[at : at + step], self._scratch, pickle.HIGHEST_PROTOCOL)
            ends.append(self._scratch.tell())
        self._scratch.flush()
        self._runs.append(ends)
        self._records.clear()
        self._room = self._limit

    def _read(self, ends: list[int]) -> Iterator[bytes]:
        return chain.from_iterable(map(self._block, ends, ends[1:]))

    def _block(self, start: int, stop: int) -> list[bytes]:
        assert self._scratch is not None
        block: list[bytes] = pickle.loads(os.pread(self._scratch.fileno(), stop - start, start))
        return block
