"""Inode entries in bulk: of a range of the data file, for reindex, replay and verify; and at given
positions, plain ones, for scans and listings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Int64, rows_at, texts_at
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.kv.entry import Layout
from winkformats.kv.scan import Batch, entry_rows, scan_intact
from winkfs.container.ondisk.data import Settings
from winkfs.container.ondisk.inode import HEAD, FileType, Inode, InodeForm
from winkfs.names import INODE

HEX: Final = np.full(256, -1, np.int64)
HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
NONE: Final = np.empty(0, np.int64)
FIELDS: Final = 7  # int64 words of an inode before its pairs
KEYS: Final = 255  # bytes of the longest key that is taken: a batch has rows of one width
VALUES: Final = 1024  # bytes of the largest inode


class InodeColumns:
    """Columns of n inodes by their names. `fields`: int64[n, 7 or more], CKSUM .. DCOUNT, pairs."""

    __slots__ = ()
    fields: Int64

    @property
    def fileid(self) -> Int64:
        return self.fields[:, 2]

    @property
    def lsize(self) -> Int64:
        """Bytes of the file."""
        return self.fields[:, 3]

    @property
    def mtime(self) -> Int64:
        """As stored: seconds, or nanoseconds under MTIMENS."""
        return self.fields[:, 5]


@dataclass(frozen=True, slots=True)
class InodeRows(InodeColumns):
    """The inode entries of one batch, as columns of n rows in file order.

    which     int64[n]  their indices in the batch
    pos       int64[n]  kv_pointers
    deleted   bool[n]   delflag
    fields    int64[n, 7]  CKSUM .. DCOUNT; zeros for a tombstone
    size      int64[n]  bytes of the inode's value; 0 for a tombstone
    """

    batch: Batch
    which: Int64
    pos: Int64
    deleted: npt.NDArray[np.bool_]
    fields: Int64
    size: Int64

    @property
    def keys(self) -> list[bytes]:
        """The keys, "<name>/I0"."""
        batch, which = self.batch, self.which
        return texts_at(batch.raw, batch.key[which], batch.key_len[which])

    @property
    def names(self) -> list[bytes]:
        batch, which = self.batch, self.which
        return texts_at(batch.raw, batch.key[which], batch.key_len[which] - len(INODE))

    @property
    def others(self) -> Int64:
        """Indices of the entries of the batch that are not among these."""
        chosen = np.ones(len(self.batch), bool)
        chosen[self.which] = False
        return np.flatnonzero(chosen)

    def value(self, row: int) -> bytes:
        return self.batch.entry(int(self.which[row])).value

    def firsts(self, settings: Settings) -> Int64:
        """Position of the first entry of each file: its inode or what it points to before that."""
        form = settings.form
        found = self.pos.copy()
        one = np.flatnonzero((self.fields[:, 6] == 1) & (self.size >= 56 + form.pair))
        where = self.batch.value[self.which[one]] + 56
        pointers = self.batch.words(where, 1, ">i8")[:, 0].astype(np.int64)
        found[one] = np.where(pointers > 0, np.minimum(pointers, found[one]), found[one])
        for row in np.flatnonzero((self.fields[:, 6] > 1) & (self.size > 0)).tolist():
            pos, file = int(self.pos[row]), self.batch.storage.name
            inode = Inode.decode(self.value(row), form, file=file, offset=pos)
            found[row] = min([pos, *inode.pointers])
        return found


def is_inode(batch: Batch) -> npt.NDArray[np.bool_]:
    """Which entries of the batch are inodes: those whose key ends in "/I0"."""
    tail = batch.key + batch.key_len
    raw = batch.raw
    found = (batch.key_len >= 3) & (tail <= len(raw))  # a damaged length may point anywhere
    if not found.any():
        return found
    if not batch.whole:
        key = batch.keys(np.array([0]))[0]
        return found & key.endswith(INODE)
    last = np.where(found, tail, 3)
    found &= (raw[last - 1] == 0x30) & (raw[last - 2] == 0x49) & (raw[last - 3] == 0x2F)
    return found


def chained(batch: Batch) -> npt.NDArray[np.bool_]:
    """Which entries of the batch are inodes that build on others."""
    found = is_inode(batch) & (batch.value_len >= HEAD.size)
    found &= batch.value + HEAD.size <= len(batch.raw)
    found[found] = batch.words(batch.value[found] + 8, 1, ">i8")[:, 0] != 0
    return found


def fileids(batch: Batch, chosen: Int64) -> Int64:
    """The number in front of the / in the keys of these entries: the FILEID their keys name."""
    found, at = np.zeros(len(chosen), np.int64), batch.key[chosen]
    end = np.minimum(at + batch.key_len[chosen], len(batch.raw))
    going = np.ones(len(chosen), bool)
    for digit in range(16):
        where = at + digit
        value = HEX[batch.raw[np.minimum(where, len(batch.raw) - 1)]]
        going &= (where < end) & (value >= 0)
        if not going.any():
            break
        found = np.where(going, found << 4 | value, found)
    return found


def rows_of(
    batch: Batch,
    settings: Settings,
    problem: Callable[[CorruptError], None],
    known_bad: Int64 | None = None,
) -> InodeRows:
    """The inode entries of a batch, each checked; a bad one is handed to `problem` and left out.

    known_bad  indices of the bad entries of the batch, where they are known already
    """
    which = np.flatnonzero(is_inode(batch))
    bad = set((batch.bad(which) if known_bad is None else known_bad).tolist())
    bad &= set(which.tolist()) if bad else bad
    size = batch.value_len[which]
    short = (size != 0) & (size < HEAD.size)
    for i in [*bad, *which[short].tolist()]:
        problem(CorruptError("bad inode entry", file=batch.storage.name, offset=int(batch.pos[i])))
    keep = ~short
    if bad:
        keep &= ~np.isin(which, list(bad))
    which, size = which[keep], size[keep]
    full = size > 0
    fields = np.zeros((len(which), FIELDS), np.int64)
    fields[full] = batch.words(batch.value[which[full]], FIELDS, ">i8")
    deleted = batch.flags[which] == 1
    rows = InodeRows(batch, which, batch.pos[which], deleted, fields, size)
    return rows if batch.layout.checksum else _check_inodes(rows, settings, problem)


def _check_inodes(
    rows: InodeRows, settings: Settings, problem: Callable[[CorruptError], None]
) -> InodeRows:
    """Check CKSUM one by one, where no entry checksum covers the inode already."""
    good = np.ones(len(rows.which), bool)
    for i in np.flatnonzero(rows.size).tolist():
        try:
            offset, file = int(rows.pos[i]), rows.batch.storage.name
            Inode.decode(rows.value(i), settings.form, file=file, offset=offset)
        except CorruptError as error:
            problem(error)
            good[i] = False
    return InodeRows(
        rows.batch, rows.which[good], rows.pos[good], rows.deleted[good], rows.fields[good],
        rows.size[good],
    )  # fmt: skip


def inode_rows(
    storage: Storage,
    layout: Layout,
    settings: Settings,
    start: int,
    stop: int,
    *,
    problem: Callable[[CorruptError], None],
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[Batch, InodeRows]]:
    """Every batch of [start, stop) with its inode entries, all entries of it checked.

    problem  called with what is damaged, which is skipped
    raises   CorruptError where the chain of entries breaks and there are no checksums to find where
             it goes on
    """
    for batch in scan_intact(storage, layout, start, stop, problem=problem, progress=progress):
        yield batch, rows_of(batch, settings, problem, NONE)


@dataclass(slots=True)
class PlainInodes(InodeColumns):
    """n plain inodes of a batch, in its order; their checksums are good.

    which    int64[n]  their indices among the positions of the batch
    names    n names
    fields   int64[n, 8 or 9]  CKSUM .. DCOUNT, kv_pointer, (0,) bytes
    """

    which: Int64
    names: list[bytes]
    fields: Int64

    def __len__(self) -> int:
        return len(self.names)

    def take(self, chosen: npt.NDArray[np.bool_]) -> PlainInodes:
        """Only the chosen ones, bool[n]."""
        names = [self.names[i] for i in np.flatnonzero(chosen).tolist()]
        return PlainInodes(self.which[chosen], names, self.fields[chosen])

    def plain(self, form: InodeForm) -> npt.NDArray[np.bool_]:
        """Which have one extent, the whole value of an entry, and no attributes, bool[n]."""
        fields = self.fields
        good = (fields[:, 6] == 1) & (fields[:, 7] > 0) & (fields[:, -1] == fields[:, 3])
        if form.pairoff:
            good &= fields[:, 8] == 0
        found: npt.NDArray[np.bool_] = good
        return found

    @property
    def ftype(self) -> Int64:
        return np.where(self.fields[:, 4] == 0, int(FileType.FILE), self.fields[:, 4])

    @property
    def pointer(self) -> Int64:
        """kv_pointer of the one data entry."""
        return self.fields[:, 7]


def plain_inodes(
    data: memoryview, base: int, positions: Int64, layout: Layout, form: InodeForm
) -> PlainInodes:
    """The plain inodes among the entries at `positions`, ascending.

    data, base  a window: bytes of the file from position `base` on
    """
    found = good_inodes(data, positions - base, positions, layout, form)
    good = found.plain(form)
    return found if good.all() else found.take(good)


def good_inodes(
    data: memoryview | bytes, at: Int64, positions: Int64, layout: Layout, form: InodeForm
) -> PlainInodes:
    """The good inodes with room for a pair, and not too large, among the entries at `positions`, in
    any order, each with its first pair.

    at  where in `data` they begin; outside of it: not there
    """
    words = (HEAD.size + form.pair) // 8
    none = PlainInodes(np.empty(0, np.int64), [], np.empty((0, words), np.int64))
    if not layout.standard:
        return none
    rows = entry_rows(data, at, layout, (1 + len(INODE), KEYS), (8 * words, VALUES))
    if not len(rows.which):
        return none
    good = rows.good(layout, positions[rows.which])
    values = rows_at(rows.raw, rows.begin + rows.value, 8 * words)
    fields = values.view(">i8").astype(np.int64)
    good &= (fields[:, 1] == 0) & (fields[:, 2] >= 1) & (fields[:, 3] >= 0) & (fields[:, 6] >= 0)
    names = rows.slices(rows.begin + 3, rows.begin + rows.key_len)
    found = PlainInodes(rows.which, names, fields)
    return found if good.all() else found.take(good)
