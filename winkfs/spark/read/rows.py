"""The files of a piece, as columns: from BASE.cols where it has them, else from their inodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Self

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkfs.container.columns.columns import Columns
from winkfs.container.columns.scan import LONGEST, InodeScan
from winkfs.container.ondisk.columnsfile import columns_between, open_columns
from winkfs.container.store import Store
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shard import Shard
from winkfs.errors import StalePlan
from winkfs.spark.read.contents import Contents
from winkfs.spark.read.partition import Piece, unpack

ROWS: Final = 1 << 16  # files at a time
SPARSE: Final = 64  # of so many files one: its inode is read, though there is a BASE.cols
SPAN: Final = 4 << 20  # bytes of the data file read for inodes and contents at a time
DENSE: Final = 64 << 10  # bytes a file, with its content, below which that is done
Problem = Callable[[CorruptError], None]


def open_planned(base: str, contid: int, size: int, *, grows: bool) -> Store:
    """A container without its index. Raises StalePlan where it is not the one of the plan."""
    try:
        return Shard(base, ShardRecord(base, contid, size), grows=grows).open(
            load=False, mapped=False
        )
    except StalePlan as error:
        raise StalePlan(f"{error.strerror}; call load() again", base) from None


class Source:
    """An open container of a piece.

    verify        of contents
    include_dirs  False: neither directories nor links
    problem       is told of damaged inodes
    """

    def __init__(
        self, piece: Piece, *, verify: bool, include_dirs: bool, contents: bool, problem: Problem
    ) -> None:
        """Raises StalePlan, FormatError, OSError."""
        self.piece, self.problem = piece, problem
        self.store = open_planned(piece.base, piece.contid, piece.size, grows=piece.grows)
        self._include_dirs, self._with_contents = include_dirs, contents
        low = max(piece.low, self.store.kv.start)
        self.contents = Contents(self.store, low, min(piece.high, piece.size), verify=verify)
        self._file = open_columns(self.store, mapped=False)
        self._pos: Int64 | None = None
        self._hidden = None if piece.hidden is None else unpack(piece.hidden)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.contents.close()
        if self._file is not None:
            self._file.close()
        self.store.abandon()

    def chunks(self) -> Iterator[Columns]:
        """The files of the piece, some at a time, in order. Raises CorruptError; OSError."""
        piece = self.piece
        if piece.rows is not None:
            yield from map(self._seen, self._at(unpack(piece.rows)))
            return
        file = self._file
        if file is None:
            rows = columns_between(piece.base, piece.low, piece.high, self.problem)
            yield self._seen(rows)
            return
        first = int(np.searchsorted(file.chunks[:, 3], piece.low))
        stop = int(np.searchsorted(file.chunks[:, 2], piece.high))
        for number in range(first, stop):
            try:
                rows = file.chunk(number).between(piece.low, piece.high)
            except CorruptError:  # as if it were missing
                low, high = file.chunks[number, 2:4].tolist()
                low, high = max(low, piece.low), min(high + 1, piece.high)
                rows = columns_between(piece.base, low, high, self.problem)
            yield self._seen(rows)

    def at(self, positions: Int64) -> Columns:
        """The files with these inodes, ascending, that are to be seen."""
        return self._seen(Columns.concat(list(self._at(positions))))

    def _at(self, positions: Int64) -> Iterator[Columns]:
        index = self._index(positions)
        if index is not None and self._file is not None:
            try:
                for at in range(0, len(index), ROWS):
                    yield self._file.take(index[at : at + ROWS])
                    positions = positions[ROWS:]
                return
            except CorruptError:
                self._file.close()
                self._file = None
        if len(positions) and self._with_contents:
            span = int(positions[-1] - positions[0])
            if span < DENSE * len(positions):
                yield from self._windows(positions)
                return
        for at in range(0, len(positions), ROWS):
            yield Columns.of(self.store, positions[at : at + ROWS], self.problem)

    def _index(self, positions: Int64) -> Int64 | None:
        """Which rows of BASE.cols these are; None where it lacks one, or they are but a few."""
        file = self._file
        if file is None or not len(positions) or len(positions) * SPARSE < file.files:
            return None
        try:
            self._pos = file.column("pos") if self._pos is None else self._pos
        except CorruptError:
            return None
        index = np.searchsorted(self._pos, positions)
        # One may have been replaced since the plan was made, and be in the columns no more.
        there = self._pos[np.minimum(index, file.files - 1)] == positions
        return index if there.all() else None

    def _windows(self, positions: Int64) -> Iterator[Columns]:
        """Inodes just before the contents around them are read: from the disk once for both."""
        kv = self.store.kv
        scan = InodeScan(self.store, self.problem)
        at = 0
        while at < len(positions):
            begin = int(positions[at])
            stop = int(np.searchsorted(positions, begin + SPAN))
            length = min(int(positions[stop - 1]) + LONGEST, kv.end) - begin
            data = self.contents.window(begin, length)
            yield Columns.joined(*scan.piece(positions[at:stop], data, begin))
            at = stop

    def _seen(self, rows: Columns) -> Columns:
        return rows.visible(self._hidden, include_dirs=self._include_dirs)
