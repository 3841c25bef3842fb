"""A shard: a container, and which of its files somebody newer has replaced or deleted.

Light, as is all that a plan over a data set needs: Spark's planner imports it anew for each query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.paths import locate
from winkfs.dataset.records import ShardRecord
from winkfs.errors import NoSuchFile, StalePlan
from winkfs.names import SUFFIXES

if TYPE_CHECKING:
    from winkformats.disk.storage import Storage
    from winkfs.container.store import Store

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
