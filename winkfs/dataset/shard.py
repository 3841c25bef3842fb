"""A shard: a container, and which of its files somebody newer has replaced or deleted."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from winkformats.errors import CorruptError
from winkformats.gather import texts_at
from winkfs.dataset.records import NAME, ShardRecord
from winkfs.errors import NoSuchFile, StalePlan, WinkError
from winkfs.inodescan import inode_rows
from winkfs.rows import Int64
from winkfs.store import Store

NOTHING: Final[Int64] = np.empty(0, np.int64)
NOTHING.flags.writeable = False
DERIVED: Final = (".idx", ".time", ".names", ".cols")
SUFFIXES: Final = (".data", *DERIVED, ".lock")
SUFFIX: Final = 3  # bytes of "/I0" at the end of the key of an inode


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

    def open(self, *, load: bool = True) -> Store:
        """For reading. `load`: its index too.

        raises  StalePlan where it is gone, or another; FormatError; OSError
        """
        try:
            store = Store(self.base, writable=False, load=load)
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


def survey(base: str, path: str, tombs_at: int = 0) -> ShardRecord:
    """What a manifest says of a container that was closed.

    path      of the shard below the data set
    tombs_at  position from which its tombstones count; 0: it has none
    raises    WinkError where it was not closed; FormatError; OSError
    """
    store = Store(base, writable=False)
    try:
        kv = store.kv
        if kv.truncated or kv.superblock.get("SYNCSIZE", kv.end) != kv.end or store.notes:
            what = store.notes[0] if store.notes else "it was not closed"
            raise WinkError(f"cannot become a shard: {what}", base, number=errno.EINVAL)
        gone = tombstones(store, tombs_at)[0]
        names, mtimes = _names_and_mtimes(store)
        record = ShardRecord(
            path, store.settings.contid, kv.end, len(names), store.dtotsz,
            len(gone), tombs_at if gone else kv.end, ao=store.settings.ao,
        )  # fmt: skip
        if len(names):
            low, high = int(mtimes.min()), int(mtimes.max())
            record = replace(record, mtime_min=low, mtime_max=high)
        if names or gone:
            ends = [*_ends(names), *gone]
            least, most = min(ends), max(ends)
            if max(len(least), len(most)) <= NAME:
                first, last = (n.decode("utf-8", "surrogateescape") for n in (least, most))
                record = replace(record, first=first, last=last)
        return record
    finally:
        store.abandon()


def _ends(names: list[bytes]) -> list[bytes]:
    return [min(names), max(names)] if names else []


def _names_and_mtimes(store: Store) -> tuple[list[bytes], Int64]:
    """Of all files, in any order."""
    live = store.index.positions()
    names: list[bytes] = []
    mtimes = [NOTHING]
    for _, rows in inode_rows(
        store.kv.storage, store.kv.layout, store.settings, store.kv.start, store.kv.end,
        problem=store.note,
    ):  # fmt: skip
        there = np.isin(rows.pos, live)
        names += [name for name, ok in zip(rows.names, there.tolist(), strict=True) if ok]
        mtimes.append(rows.mtime[there])
    found = np.concatenate(mtimes)
    return names, found if store.settings.nanoseconds else found * 1_000_000_000


def tombstones(store: Store, tombs_at: int) -> tuple[list[bytes], Int64]:
    """The names that a shard deletes from older ones, and the positions of their entries."""
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


def names_at(store: Store, positions: Int64) -> list[bytes]:
    """The names of the inodes at these positions, in any order. Raises CorruptError."""
    kv = store.kv
    if not kv.layout.standard or not len(positions):
        return [store.key_at(pos)[:-SUFFIX] for pos in positions.tolist()]
    if int(positions.min()) < kv.start or int(positions.max()) + SUFFIX > kv.end:
        raise CorruptError("the index points outside", file=kv.storage.name, offset=kv.end)
    view = np.frombuffer(kv.view(kv.end - 1), np.uint8)
    lengths = view[positions + 1].astype(np.int64) << 8 | view[positions + 2]
    return texts_at(view, positions + 3, np.maximum(lengths - SUFFIX, 0))


def remove_shard(base: str) -> None:
    """Remove the files of a container; a missing one is none to remove."""
    for suffix in SUFFIXES:
        Path(base + suffix).unlink(missing_ok=True)
