"""Verify: read everything once and say what is wrong, without changing anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats import table
from winkformats.errors import CorruptError, FormatError
from winkformats.kvscan import Batch, scan
from winkfs.content import attributes
from winkfs.indexfile import Base, open_base
from winkfs.inode import CK_XXH3, FileType, Inode
from winkfs.inodescan import InodeRows, fileids, rows_of
from winkfs.rebuild import Rebuilt, Resolver
from winkfs.settings import NANO
from winkfs.store import Store, base_of
from winkfs.timeindex import TimeIndex

Int64 = npt.NDArray[np.int64]
LIMIT: Final = 1000  # problems named one by one


@dataclass
class Report:
    """What verify found. `problems`: a line each, empty where all is well."""

    problems: list[str] = field(default_factory=list)
    files: int = 0
    entries: int = 0
    bytes: int = 0
    more: int = 0

    def add(self, problem: str) -> None:
        if len(self.problems) < LIMIT:
            self.problems.append(problem)
        else:
            self.more += 1


def verify(base: str | os.PathLike[str], progress: Callable[[int], None] | None = None) -> Report:
    """Check every entry, inode, extent, counter, index cell and time mark.

    progress  called with the number of bytes read since the last call
    ->        a report; damage is in it, not raised
    raises    FileNotFoundError where there is no container
    cost      0.8 million entries/s warm; memory: 60 bytes a file
    """
    report = Report()
    try:
        store = Store(base_of(base), writable=False, load=False)
    except FormatError as error:
        report.add(str(error))
        return report
    try:
        for note in store.notes:
            report.add(note)
        _Check(store, report).run(progress)
    except FormatError as error:
        report.add(str(error))
    finally:
        store.abandon()
    return report


class _Check:
    """One pass over a data file, then what is derived from it."""

    def __init__(self, store: Store, report: Report) -> None:
        self._store, self._report = store, report
        self._name = store.kv.storage.name
        self._data_pos: list[Int64] = []  # of entries that are not inodes
        self._data_len: list[npt.NDArray[np.int64]] = []
        self._data_flag: list[npt.NDArray[np.uint8]] = []
        self._data_owner: list[Int64] = []  # FILEIDs that their keys name
        self._extents: list[Int64] = []  # int64[n, 4]: inode, pointer, bytes of the value, FILEID
        self._last_mtime: int | None = None
        self._unmarked = 0  # entries that only deleted inodes point to, not yet marked deleted

    def run(self, progress: Callable[[int], None] | None) -> None:
        store, kv, report = self._store, self._store.kv, self._report
        resolver = Resolver(kv, store.settings)
        for batch in scan(kv.storage, kv.layout, kv.start, kv.end, progress=progress):
            bad = batch.bad()
            for i in bad.tolist():
                report.add(f"{self._name}: bad entry (delflag, length or checksum) at byte "
                           f"{batch.pos[i]}")  # fmt: skip
            rows = rows_of(batch, store.settings, self._ignore, bad)
            resolver.take(batch, rows)
            self._collect(batch, rows)
        found = resolver.finish()
        report.files, report.entries = len(found.rows.pos), found.entries
        report.bytes = found.dtotsz
        self._check_extents(found.rows.pos)
        self._check_counters(found)
        self._check_index(found)
        self._check_times(found.times)

    def _ignore(self, error: CorruptError) -> None:
        """Bad entries are reported by the check of all entries."""
        if not self._store.kv.layout.checksum:
            self._report.add(str(error))

    # --- extents ---

    def _collect(self, batch: Batch, rows: InodeRows) -> None:
        others = np.ones(len(batch), bool)
        others[rows.which] = False
        self._data_pos.append(batch.pos[others])
        self._data_len.append(batch.value_len[others])
        self._data_flag.append(batch.flags[others])
        self._data_owner.append(fileids(batch, np.flatnonzero(others)))
        self._check_fields(rows)
        form = self._store.settings.form
        pair = form.pair // 8
        plain = (rows.fields[:, 6] == 1) & (rows.size >= 56 + form.pair)
        simple = np.flatnonzero(plain)
        if len(simple):
            where = batch.value[rows.which[simple]]
            stored = batch.words(where, 7 + pair, ">i8")
            words = stored.astype(np.int64)
            self._check_sums(rows, simple, stored)
            need = words[:, 7 + pair - 1] + (words[:, 8] if form.pairoff else 0)
            need = np.where(words[:, -1] < 0, -words[:, -1], need)
            short = (words[:, -1] < words[:, 3]) | (words[:, 1] != 0)
            for row in simple[short].tolist():
                self._inode_problem(rows, row)
            owner = words[:, 2]
            self._extents.append(np.stack([rows.pos[simple], words[:, 7], need, owner], 1))
            for row in simple[words[:, -1] < 0].tolist():
                self._inode_problem(rows, row)
        for row in np.flatnonzero((rows.size > 0) & ~plain).tolist():
            self._inode_problem(rows, row)

    def _check_sums(self, rows: InodeRows, simple: Int64, stored: npt.NDArray[Any]) -> None:
        """CKSUM of inodes with one pair, in one column. `stored`: their words as in the file."""
        form = self._store.settings.form
        covered = np.ascontiguousarray(stored[:, 1:])
        texts = covered.view(f"V{covered.shape[1] * 8}").ravel().tolist()
        digest = xxhash.xxh3_64_intdigest if form.ckalgo == CK_XXH3 else form.sum
        sums = np.fromiter(map(digest, texts), np.uint64, len(texts))
        for row in simple[sums.view(np.int64) != rows.fields[simple, 0]].tolist():
            self._inode_problem(rows, row)

    def _inode_problem(self, rows: InodeRows, row: int) -> None:
        """Decode an inode the slow way: note its extents, or what is wrong with it."""
        pos, form = int(rows.pos[row]), self._store.settings.form
        try:
            inode = Inode.decode(rows.value(row), form, file=self._name, offset=pos)
        except CorruptError as error:
            self._report.add(str(error))
            return
        owner = inode.fileid
        needs = [(pos, e.pointer, e.skip + e.size, owner) for e in inode.extents if e.pointer]
        if inode.attrs:
            needs.append((pos, *inode.attrs, owner))
            self._check_attrs(inode, pos, bool(rows.deleted[row]))
        if needs:
            self._extents.append(np.array(needs, np.int64))

    def _check_extents(self, live: Int64) -> None:
        """Every extent of a live file must point to an entry that is long enough."""
        pos = np.concatenate([np.empty(0, np.int64), *self._data_pos])
        length = np.concatenate([np.empty(0, np.int64), *self._data_len])
        flag = np.concatenate([np.empty(0, np.uint8), *self._data_flag])
        self._data_pos, self._data_len, self._data_flag = [], [], []
        owner = np.concatenate([np.empty(0, np.int64), *self._data_owner])
        extents = np.concatenate([np.empty((0, 4), np.int64), *self._extents])
        self._extents, self._data_owner = [], []
        at = np.minimum(np.searchsorted(live, extents[:, 0]), max(len(live) - 1, 0))
        known = live[at] == extents[:, 0] if len(live) else np.zeros(len(extents), bool)
        if not known.all():
            left = np.setdiff1d(extents[~known, 1], extents[known, 1])
            self._unmarked = int(np.count_nonzero(np.isin(pos[flag == 0], left)))
        extents = extents[known & (extents[:, 1] != 0)]
        at = np.searchsorted(pos, extents[:, 1])
        at[at == len(pos)] = 0
        good = pos[at] == extents[:, 1] if len(pos) else np.zeros(len(extents), bool)
        short = good & (length[at] < extents[:, 2]) if len(pos) else good
        dead = good & (flag[at] == 1) if len(pos) else good
        alien = good & (owner[at] != extents[:, 3]) if len(pos) else good
        for what, wrong in (
            ("extent points to no data entry", ~good),
            ("extent is longer than its entry", short),
            ("data of a live file is marked deleted", dead),
            ("extent points to data of another file", alien),
        ):
            for inode, pointer, *_ in extents[wrong].tolist():
                self._report.add(f"{self._name}: inode at byte {inode}: {what} (at {pointer})")

    def _check_fields(self, rows: InodeRows) -> None:
        """Types, directories, and in the append-only variant the order of mtimes."""
        ftype, full = rows.fields[:, 4], rows.size > 0
        wrong = (ftype < 0) | (ftype > 255) | ((ftype == FileType.DIR) & (rows.lsize != 0))
        for pos in rows.pos[wrong].tolist():
            self._report.add(f"{self._name}: inode at byte {pos}: a type that cannot be")
        if not self._store.settings.ao or not full.any():
            return
        mtimes, pos = rows.mtime[full], rows.pos[full]
        first = mtimes[0] if self._last_mtime is None else self._last_mtime
        for at in pos[np.diff(mtimes, prepend=first) < 0].tolist():
            self._report.add(f"{self._name}: inode at byte {at}: mtime before its predecessor's")
        self._last_mtime = int(mtimes[-1])

    def _check_attrs(self, inode: Inode, pos: int, deleted: bool) -> None:
        store = self._store
        try:
            attributes(inode, store.owner, store.entry_at, self._name)
        except CorruptError as error:
            if not deleted:
                self._report.add(f"{self._name}: inode at byte {pos}: {error}")

    # --- counters and derived files ---

    def _check_counters(self, found: Rebuilt) -> None:
        block = self._store.kv.superblock
        if block.get("SYNCSIZE", self._store.kv.end) != self._store.kv.end:
            return  # an unclean end: the next writer corrects them
        if found.unfinished and not self._store.settings.havedups:
            if self._is_current():
                self._report.add(f"{self._name}: {len(found.unfinished)} superseded inodes are "
                                 "not marked deleted: open it for writing once")  # fmt: skip
            return
        aentries = found.aentries
        if block.get("AENTRIES") == aentries - self._unmarked and not self._is_current():
            aentries -= self._unmarked  # a kill between two delflags: a writer sets the rest
        expected = {
            "ENTRIES": found.entries,
            "AENTRIES": aentries,
            "ITOTSZ": found.itotsz,
            "DTOTSZ": found.dtotsz,
        }
        for name, value in expected.items():
            if name in block and block[name] != value:
                self._report.add(f"{self._name}: {name} is {block[name]}, counted {value}: "
                                 "run reindex")  # fmt: skip
        if "NEXTFID" in block and block["NEXTFID"] < found.nextfid:
            self._report.add(f"{self._name}: NEXTFID {block['NEXTFID']} is in use: run reindex")

    def _is_current(self) -> bool:
        base = self._open_index()
        if base is None:
            return False
        base.storage.close()
        return base.covered == self._store.kv.end

    def _open_index(self) -> Base | None:
        store = self._store
        return open_base(store.base + ".idx", store.settings, store.kv.superblock, store.kv.end)

    def _check_index(self, found: Rebuilt) -> None:
        """A current index must hold exactly the live files; a stale one is no problem."""
        base = self._open_index()
        if base is None or base.covered != self._store.kv.end:
            return
        try:
            words = base.words()
            cells, order = words[:, 0], np.argsort(words[:, 0])
            if not np.array_equal(cells[order], found.rows.pos):
                self._report.add(f"{base.storage.name}: its cells are not those of the files: "
                                 "run reindex")  # fmt: skip
                return
            if base.shape.cellsz > 1:
                self._check_cells(base, found, words[order])
        finally:
            base.storage.close()

    def _check_cells(self, base: Base, found: Rebuilt, words: Int64) -> None:
        wrong = words[:, 1].view(np.uint64) != found.rows.s
        rows = found.rows
        for at in range(0, len(rows.pos), table.BUCKET):
            part = slice(at, at + table.BUCKET)
            pos, _ = table.find_many(base.shape, base.cells, rows.s[part], rows.slot_bits()[part])
            other = np.flatnonzero(pos != rows.pos[part])
            if len(other):  # a twin, another key with the same 64-bit hash, is no fault
                wrong[at + other[~np.isin(pos[other], rows.pos)]] = True
        for pos in rows.pos[wrong].tolist():
            self._report.add(f"{base.storage.name}: the file at byte {pos} cannot be found: "
                             "run reindex")  # fmt: skip

    def _check_times(self, times: TimeIndex) -> None:
        store = self._store
        if not store.settings.ao:
            return
        path = store.base + ".time"
        loaded = TimeIndex.load(path, store.settings, store.kv.superblock, store.kv.end)
        if loaded is None or loaded[1] != store.kv.end:
            return
        mine = loaded[0]
        same = (mine.marks, mine.positions) == (times.marks, times.positions)
        second = NANO if store.settings.nanoseconds else 1
        last = [None if t.last is None else t.last // second for t in (mine, times)]
        if not same or last[0] != last[1] or (times.marks and mine.since != times.since):
            self._report.add(f"{path}: time marks do not fit the files: run reindex")
