"""ColumnsBatch: names of a data set as files that a directory shows, from the columns alone."""

from __future__ import annotations

from itertools import repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Int64
from winkfs.container.ondisk.inode import FileType
from winkfs.dataset.namerows import Rows
from winkfs.mounting.listbatch import MAKE, MODES, Batch
from winkfs.mounting.shardfiles import POSITION
from winkmount.source import Attr

FEW: Final = 24  # names that are cheaper one by one than as columns


class ColumnsBatch(Batch):
    """What the columns say of some rows. No names for the mount to remember: ids tell the place."""

    ids: list[int] = []  # noqa: RUF012 - never changed
    known: list[bytes] = []  # noqa: RUF012

    def __init__(self, rows: Rows, chosen: Int64, cut: int) -> None:
        """`chosen`: int64[n], rows in the order of their names; `cut`: as with `Batch`."""
        if len(chosen) <= FEW:
            self._each(rows, chosen.tolist())
        else:
            self._all(rows, chosen)
        self.odd = [i for i, attr in enumerate(self.attrs) if attr is None]
        self._cut(cut)

    def _each(self, rows: Rows, chosen: list[int]) -> None:
        self.names, self.attrs = [], []
        for row in chosen:
            number, at = rows.place(row)
            chunk = rows.chunks[number]
            self.names.append(chunk.name(at))
            odd = chunk.special.item(at) or chunk.ftype.item(at) == FileType.DIR
            self.attrs.append(None if odd else rows.owners[number].attr(chunk, at))

    def _all(self, rows: Rows, chosen: Int64) -> None:
        n = len(chosen)
        ids, sizes, mtimes, uids, gids = np.empty((5, n), np.int64)
        ftypes, special = np.empty((2, n), np.uint8)
        texts: npt.NDArray[Any] = np.empty(n, object)
        for number, which, at in rows.parts(chosen):
            chunk, owner = rows.chunks[number], rows.owners[number]
            ids[which] = chunk.pos[at] | owner.number << POSITION
            sizes[which], mtimes[which] = chunk.size[at], chunk.mtime[at]
            ftypes[which], special[which] = chunk.ftype[at], chunk.special[at]
            uids[which], gids[which] = owner.owner
            texts[which] = rows.texts(number, at)
        self.names = texts.tolist()
        columns = ids, MODES[ftypes], sizes, mtimes, uids, gids
        self.attrs = list(map(
            MAKE, repeat(Attr), zip(*(column.tolist() for column in columns), repeat(0))
        ))  # fmt: skip
        for i in np.flatnonzero((special != 0) | (ftypes == FileType.DIR)).tolist():
            self.attrs[i] = None
