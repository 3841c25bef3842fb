"""Checks of a whole index against the files it should hold, in little memory."""

from __future__ import annotations

import numpy as np

from winkformats.arrays import Int64
from winkformats.hindex import table
from winkfs.container.ondisk.idx import Base
from winkfs.container.rows import Rows


def lost_rows(base: Base, rows: Rows) -> list[int]:
    """Indices of the files that a look-up does not find. Needs CELLSZ >= 2.

    cost    0.2 us a file
    """
    lost = []
    alike: dict[int, set[int]] = {}  # where cells with one S point: names can be made to share it
    for at in range(0, len(rows.pos), table.BUCKET):
        part = slice(at, at + table.BUCKET)
        some = Rows(rows.s[part], None if rows.bits is None else rows.bits[part], rows.pos[part])
        bits = some.slot_bits()
        pos, _ = base.find_many(some.s, bits)
        for i in np.flatnonzero(pos != some.pos).tolist():
            s = int(some.s[i])
            if s not in alike:
                cells = base.probe(int(bits[i]), s.to_bytes(8, "big"))
                alike[s] = {int.from_bytes(cell[:8], "big", signed=True) for _, cell in cells}
            if int(some.pos[i]) not in alike[s]:
                lost.append(at + i)
    return lost


def count_used(base: Base) -> int:
    """How many cells point to a file."""
    return sum(len(part) for part in base.pointers())


def same_files(base: Base, pos: Int64) -> bool:
    """Whether the cells point to these ascending positions, once each. Memory: 8 bytes a file."""
    found, count = np.empty(len(pos), np.int64), 0
    for part in base.pointers():
        stop = count + len(part)
        if stop > len(found):
            return False
        found[count:stop] = part
        count = stop
    found.sort()
    return count == len(pos) and np.array_equal(found, pos)
