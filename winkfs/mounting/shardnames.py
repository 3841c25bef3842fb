"""Names of a shard by position, as a column that numpy compares."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from winkformats.arrays import WIDEST, Int64, rows_at, texts_at
from winkformats.errors import CorruptError
from winkfs.container.inodescan import inode_rows
from winkfs.container.ondisk.columnsfile import ColumnsFile, open_columns
from winkfs.container.ondisk.inodekeys import SUFFIX
from winkfs.container.store import Store
from winkfs.dataset.shard import NOTHING

NameColumn = npt.NDArray[Any]
"""bytes (dtype S) or, where one is long, objects"""


def tombstones(store: Store, tombs_at: int) -> tuple[list[bytes], Int64]:
    """The names that a shard deletes from older ones, and the positions of their entries.

    tombs_at  where they begin; 0: it has none
    """
    names: list[bytes] = []
    positions = [NOTHING]
    if tombs_at:
        for _, rows in inode_rows(
            store.kv.storage, store.kv.layout, store.settings, tombs_at, store.kv.end,
            problem=store.note,
        ):  # fmt: skip
            gone = rows.deleted & (rows.size == 0)
            names += [name for name, ok in zip(rows.names, gone.tolist(), strict=True) if ok]
            positions.append(rows.pos[gone])
    return names, np.concatenate(positions)


def names_at(store: Store, positions: Int64) -> NameColumn:
    """The names of inodes and tombstones at these positions, in any order. Raises CorruptError.

    cost    0.1 us each from BASE.cols; else they are gathered from the data file, a page each
    """
    columns = open_columns(store)
    if columns is not None:
        with columns:
            found = _from_columns(columns, positions)
        if found is not None:
            return found
    return _from_data(store, positions)


def joined(parts: list[NameColumn]) -> NameColumn:
    """One column of the names of all parts."""
    if any(part.dtype == object for part in parts):
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts)


def _from_columns(columns: ColumnsFile, positions: Int64) -> NameColumn | None:
    """None where one is not there: a tombstone."""
    known = columns.column("pos")
    where = np.searchsorted(known, positions)
    if not len(known) or (known[np.minimum(where, len(known) - 1)] != positions).any():
        return None
    starts = np.cumsum(columns.chunks[:, 0]) - columns.chunks[:, 0]
    of = np.searchsorted(starts, where, "right") - 1
    parts, places = [], []
    for number in np.flatnonzero(np.bincount(of)).tolist():
        rows, chosen = columns.chunk(number), np.flatnonzero(of == number)
        at = where[chosen] - starts[number]
        lengths = rows.name_ends[at + 1] - rows.name_ends[at]
        parts.append(_column(rows.name_bytes, rows.name_ends[at], lengths))
        places.append(chosen)
    names = joined(parts)
    found = np.empty_like(names)
    found[np.concatenate(places)] = names
    return found


def _from_data(store: Store, positions: Int64) -> NameColumn:
    kv, suffix = store.kv, len(SUFFIX)
    if not kv.layout.standard or not len(positions):
        return np.array([store.key_at(p)[:-suffix] for p in positions.tolist()], object)
    if int(positions.min()) < kv.start or int(positions.max()) + suffix > kv.end:
        raise CorruptError("the index points outside", file=kv.storage.name, offset=kv.end)
    view = np.frombuffer(kv.view(kv.end - 1), np.uint8)
    lengths = view[positions + 1].astype(np.int64) << 8 | view[positions + 2]
    return _column(view, positions + 3, np.maximum(lengths - suffix, 0))


def _column(raw: npt.NDArray[np.uint8], at: Int64, lengths: Int64) -> NameColumn:
    """raw[at[i] : at[i] + lengths[i]] as a column. No name ends in NUL, so that S will do."""
    width = -(-int(lengths.max(initial=1)) // 8) * 8
    if width > WIDEST or len(raw) < width or int(at.max(initial=0)) > len(raw) - width:
        return np.array(texts_at(raw, at, lengths), object)
    rows = rows_at(raw, at, width)
    rows[np.arange(width) >= lengths[:, None]] = 0
    return rows.view(f"S{width}").ravel()
