"""The files that a truncated data file has lost, found by an intact index."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from winkformats.arrays import Int64, UInt64
from winkformats.disk.paths import locate
from winkformats.errors import DerivedDamage
from winkformats.hindex.table import IndexRows
from winkfs.container.ondisk.data import Settings
from winkfs.container.ondisk.idx import open_base
from winkfs.names import name_of, to_str


class Gone(NamedTuple):
    """Files that an index has and a truncated data file has not.

    s, pos   of their cells, by ascending S: uint64[n], int64[n]
    older    positions of their older versions that are left, ascending, int64[..]
    back     positions of files under names that the index does not have: only an entry in the
             missing part removed or renamed them. Ascending, int64[..]
    rows     the live files that the index has, too
    """

    s: UInt64
    pos: Int64
    older: Int64
    back: Int64
    rows: IndexRows

    def find(self, s: UInt64) -> Int64:
        """Return the positions of the cells with these hashes, 0: there is none, int64[n]."""
        if not len(self.s):
            return np.zeros(len(s), np.int64)
        at = np.minimum(np.searchsorted(self.s, s), len(self.s) - 1)
        return np.where(self.s[at] == s, self.pos[at], 0)

    def lines(self, file: str, key_at: Callable[[int], bytes]) -> Iterator[str]:
        """Yield a line for all files, then one for each file with an older version."""
        if len(self.pos):
            yield f"{file}: files of its index in the part that is gone: {len(self.pos)}"
        if len(self.back):
            what = "files that were removed or renamed there, and are back after a repair"
            yield f"{file}: {what}: {len(self.back)}"
        for pos in self.older.tolist():
            name = to_str(name_of(key_at(pos)))
            yield f"{name}: its last version is gone, winkfs repair goes back to the one before"


def gone_of(
    base: str, settings: Settings, block: Mapping[str, int], rows: IndexRows, end: int
) -> Gone | None:
    """Return the files of BASE.idx that are not in a data file truncated at `end`.

    block  its superblock; rows: the live files of the rest
    ->     None if there is no intact index that covers more; only positions if its cells have no S
    cost   reads the index; memory: 32 bytes a file
    """
    last = block.get("FILESIZE", sys.maxsize)
    index = open_base(*locate(base), settings, block, last, mapped=False)
    if index is None:
        return None
    try:
        if index.covered <= end:
            return None
        index.check()
        cells = np.concatenate(list(index.parts()))
    except DerivedDamage:
        return None
    finally:
        index.storage.close()
    pos = cells[:, 0]
    known = np.isin(pos, rows.pos)
    if 2 * np.count_nonzero(known) < np.count_nonzero(pos < end):
        return None  # the index belongs to another data file
    if cells.shape[1] < 2:
        none = np.empty(0, np.int64)
        return Gone(none.view(np.uint64), np.sort(pos[~known]), none, none, rows)
    s, pos = cells[~known, 1].view(np.uint64), pos[~known]
    order = np.argsort(s, kind="stable")
    kept = np.isin(rows.pos, cells[:, 0])
    older = np.isin(rows.s, s) & ~kept
    earlier, back = np.sort(rows.pos[older]), np.sort(rows.pos[~kept & ~older])
    return Gone(s[order], pos[order], earlier, back, rows.take(kept))
