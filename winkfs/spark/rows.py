"""The files of a piece, as columns: from BASE.cols where it has them, else from their inodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Self

import numpy as np

from winkformats.errors import CorruptError
from winkfs.columns import Columns
from winkfs.columnscan import LONGEST, InodeScan
from winkfs.columnsfile import columns_between, open_columns
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shard import Shard
from winkfs.inode import FileType
from winkfs.rows import Int64
from winkfs.spark.contents import Contents
from winkfs.spark.partition import Piece, unpack

ROWS: Final = 1 << 16  # files at a time
SPARSE: Final = 64  # of so many files one: its inode is read, though there is a BASE.cols
SPAN: Final = 4 << 20  # bytes of the data file read for inodes and contents at a time
DENSE: Final = 64 << 10  # bytes a file, with its content, below which that is done
Problem = Callable[[CorruptError], None]


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
        record = ShardRecord(piece.base, piece.contid, piece.size)
        self.store = Shard(piece.base, record, grows=piece.grows).open(load=False)
        self._include_dirs, self._with_contents = include_dirs, contents
        low = max(piece.low, self.store.kv.start)
        self.contents = Contents(self.store, low, min(piece.high, piece.size), verify=verify)
        self._file = open_columns(self.store)
        self._pos: Int64 | None = None

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
            yield self._seen(file.chunk(number).between(piece.low, piece.high))

    def at(self, positions: Int64) -> Columns:
        """The files with these inodes, ascending."""
        return Columns.concat(list(self._at(positions)))

    def _at(self, positions: Int64) -> Iterator[Columns]:
        file = self._file
        if file is not None and len(positions) * SPARSE >= file.files:
            if self._pos is None:
                self._pos = file.column("pos")
            index = np.searchsorted(self._pos, positions)
            there = self._pos[np.minimum(index, file.files - 1)] == positions
            if there.all():  # else one that was replaced since the plan was made
                for at in range(0, len(index), ROWS):
                    yield file.take(index[at : at + ROWS])
                return
        if len(positions) and self._with_contents:
            span = int(positions[-1] - positions[0])
            if span < DENSE * len(positions):
                yield from self._windows(positions)
                return
        for at in range(0, len(positions), ROWS):
            yield Columns.of(self.store, positions[at : at + ROWS], self.problem)

    def _windows(self, positions: Int64) -> Iterator[Columns]:
        """Inodes just before the contents around them are read: from the disk once for both."""
        kv = self.store.kv
        scan = InodeScan(self.store, kv.storage.view(kv.end, sparse=True), self.problem)
        at = 0
        while at < len(positions):
            begin = int(positions[at])
            stop = int(np.searchsorted(positions, begin + SPAN))
            length = min(int(positions[stop - 1]) + LONGEST, kv.end) - begin
            data = self.contents.window(begin, length)
            yield Columns.joined(*scan.piece(positions[at:stop], data, begin))
            at = stop

    def _seen(self, rows: Columns) -> Columns:
        """Without the hidden ones, and those that nobody asked for."""
        seen = np.ones(len(rows), bool)
        if self.piece.hidden is not None:
            seen = ~np.isin(rows.pos, unpack(self.piece.hidden))
        if not self._include_dirs:
            seen &= (rows.ftype != FileType.DIR) & (rows.ftype != FileType.LINK)
        return rows if seen.all() else rows.take(seen)
