"""Names of a shard by position, as a column that numpy compares.

A shard: a container, and which of its files somebody newer has replaced or deleted.

Light, as is all that a plan over a data set needs: Spark's planner imports it anew for each query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from winkformats.arrays import WIDEST, Int64, rows_at, texts_at
from winkformats.disk.paths import locate
from winkformats.errors import CorruptError
from winkfs.container.inodescan import inode_rows
from winkfs.container.ondisk.cols import ColumnsFile, open_columns
from winkfs.container.ondisk.data import SUFFIX
from winkfs.container.store import Store
from winkfs.dataset.records import ShardRecord
from winkfs.errors import NoSuchFile, StalePlan
from winkfs.names import SUFFIXES

if TYPE_CHECKING:
    from winkformats.disk.storage import Storage

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


NOTHING: Final[Int64] = np.empty(0, np.int64)
NOTHING.flags.writeable = False
PIECE: Final = 8 << 20  # bytes copied at a time


@dataclass(frozen=True, slots=True)
class Shard:
    """A container as of a snapshot.

    base    its path without .data
    hidden  int64[..], ascending: positions of inodes that are not to be seen
    grows   a container that is no shard: it may have grown since, up to record.size it is the same
    """

    base: str
    record: ShardRecord
    hidden: Int64 = field(default_factory=lambda: NOTHING, compare=False)
    grows: bool = False

    @property
    def files(self) -> int:
        """How many can be seen; -1: not known."""
        return self.record.files - len(self.hidden) if self.record.files >= 0 else -1

    def open(self, *, load: bool = True, mapped: bool = True) -> Store:
        """For reading. `load`: its index too; `mapped`: see `DataFile`.

        raises  StalePlan where it is gone, or another; FormatError; OSError
        """
        from winkfs.container.store import Store

        try:
            store = Store(self.base, writable=False, load=load, mapped=mapped)
        except NoSuchFile:
            raise StalePlan("a shard is gone: it was vacuumed, or lost", self.base) from None
        try:
            self.check(store)
        except BaseException:
            store.abandon()
            raise
        return store

    def check(self, store: Store) -> None:
        """Raises StalePlan where an open container is not the one of the record."""
        contid, size, record = store.settings.contid, store.kv.end, self.record
        right = size >= record.size if self.grows else size == record.size
        if contid != record.contid or not right:
            what = "is another container" if contid != record.contid else "has another size"
            raise StalePlan(
                f"{what} than planned (CONTID {record.contid:x}, {record.size} bytes; found "
                f"{contid:x}, {size}): plan anew", self.base,
            )  # fmt: skip


def copy_bytes(
    source: Storage, target: Storage, progress: Callable[[int], None] | None = None
) -> None:
    """Copy a file into an empty one. `progress`: see `adopt`. Raises OSError."""
    at = 0
    while data := source.read(at, PIECE):
        at += target.write(at, [data])
        if progress:
            progress(len(data))


def remove_shard(base: str) -> None:
    """Remove the files of a container; a missing one is none to remove."""
    directory, name = locate(base)
    for suffix in SUFFIXES:
        directory.unlink(name + suffix)
