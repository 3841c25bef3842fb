"""Recovery: live files and counters, computed from the data file.

Of the inode entries with one name, and of those with one FILEID, the one at the highest position
is live. Delflags do not decide that: they are written later than the entries they follow from, so a
copy of a container in use may have delflags of a sync that its superblock does not record.

`rebuild` finds all live files and every counter from the whole file. `Replay` brings an index up to
date with the entries that were added after it. `finish` sets delflags that a killed writer did not
set, and `revive` clears those that no later entry explains.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64, UInt64, fetch, superseded
from winkformats.errors import CorruptError, DamagedRange, raise_it
from winkformats.hashing import SLOT_FROM_S
from winkformats.hindex.table import GrowingColumns, IndexRows, hash_rows
from winkformats.kv.entry import KVEntry
from winkformats.kv.scan import scan
from winkformats.kv.sequence import KVSeq
from winkfs.container.frames import entries_of as entries_with
from winkfs.container.index import UNSEEN, Index
from winkfs.container.namesorter import RowCollector
from winkfs.container.ondisk.chain import entries_of
from winkfs.container.ondisk.data import SANE, Settings
from winkfs.container.ondisk.inode import Inode
from winkfs.container.ondisk.time import TimeIndex
from winkfs.container.ondisk.typed import COLUMNS, KEY
from winkfs.container.survey import InodeRows, Inodes, fileids, inode_rows, rows_of
from winkfs.names import name_of

if TYPE_CHECKING:
    from winkfs.container.datafile import DataFile

INODE_BATCH: Final = 4096  # inodes decoded together
INODE_READ_BYTES: Final = 512  # read of each of them
INT64_MAX: Final = (1 << 63) - 1
COUNTERS: Final = ("entries", "aentries", "itotsz", "dtotsz")  # of the superblock, see `Counts`


@dataclass(kw_only=True)
class Counts:
    """Counters of the superblock, of all entries or of some.

    entries     number of entries; aentries: of those with delflag 0
    itotsz      bytes of the live inodes; dtotsz: bytes of the live files
    """

    entries: int = 0
    aentries: int = 0
    itotsz: int = 0
    dtotsz: int = 0

    def add(self, rows: InodeRows) -> None:
        """Count the entries of a batch; an entry that is not marked deleted counts as live."""
        flags, live = rows.batch.flags, ~rows.deleted
        self.entries += len(flags)
        self.aentries += len(flags) - int(np.count_nonzero(flags))
        self.itotsz += int(rows.size[live].sum())
        self.dtotsz += int(rows.lsize[live].sum())

    def add_inode(self, entry: KVEntry, settings: Settings, kv: KVSeq, sign: int) -> None:
        """Add the sizes of an inode to the sums of bytes; with `sign` -1, subtract them."""
        inode = Inode.decode(entry.value, settings.form, file=kv.storage.name, offset=entry.pos)
        self.itotsz += sign * inode.size
        self.dtotsz += sign * inode.lsize


class Rebuilt(Counts):
    """Result of a rebuild: `take` adds the inodes batch by batch, `finish` decides which are live.

    names   collector that gets all inodes that may be live, except those `flagged`
    marked  whether an inode that is marked deleted, but not superseded, is live: its delflag is
            then of a sync that this copy lacks. None: yes, if deletions leave tombstones

    lost        set by the caller: a position below which entries were lost, maybe a tombstone
    rows        the live files, in file order
    times       time marks; None: the container is not append-only
    nextfid     highest FILEID seen, plus 1
    unfinished  inodes that were superseded but are not marked deleted
    due         how many of them must be marked: with HAVEDUPS those of names that are gone
    dead        inodes that are marked deleted, int64[..]
    flagged     live inodes that are marked deleted nevertheless, int64[..]
    columns     entries that declare columns and are not marked deleted; one is valid
    successors  FILEID -> position of the live inode, of files whose older inodes were superseded
    end         end of the last whole entry
    whole       whether nothing is damaged, and nothing `flagged`
    damaged     damaged places, whose files are left out
    """

    rows: IndexRows

    def __init__(
        self,
        kv: KVSeq,
        settings: Settings,
        names: RowCollector | None = None,
        *,
        marked: bool | None = None,
    ) -> None:
        super().__init__()
        self._kv, self._settings, self._names = kv, settings, names
        self._marked = settings.tombstones if marked is None else marked
        self.times = TimeIndex(settings) if settings.ao else None
        self.nextfid, self.end, self.lost = 1, kv.start, 0
        self.unfinished, self.columns, self.successors = list[int](), list[int](), dict[int, int]()
        self.dead = self.flagged = np.empty(0, np.int64)
        self.due, self.whole, self.damaged = 0, True, 0
        bits = [] if settings.htalgo in SLOT_FROM_S else [np.uint64]
        self._seen = GrowingColumns(np.int64, np.uint32, bool, bool, np.uint64, *bits)

    def take(self, rows: InodeRows) -> None:
        """Count a batch and remember its inodes."""
        batch, block, htalgo = rows.batch, self._kv.superblock, self._settings.htalgo
        self.add(rows)
        self.end = int(batch.base + batch.end[-1])
        if COLUMNS in block:
            declared = entries_with(batch, KEY)
            self.columns += batch.pos[declared[batch.flags[declared] == 0]].tolist()
        tomb, ids = rows.size == 0, rows.fileid
        self.nextfid = min(max(self.nextfid, int(ids.max(initial=0)) + 1), SANE)
        if "NEXTFID" not in block:  # a killed writer leaves data entries without an inode
            named = int(fileids(batch, rows.others).max(initial=0))
            self.nextfid = max(self.nextfid, named + 1)
        if self.times is not None:
            self.times.add_many(rows.mtime[~tomb], rows.firsts[~tomb])
        hashed = hash_rows(htalgo, rows.keys, rows.pos)
        bits = [] if hashed.bits is None else [hashed.bits]
        self._seen.add(rows.pos, ids, rows.deleted, tomb, hashed.s, *bits)
        if self._names is not None:
            self._names.take(rows.take(np.flatnonzero(~(rows.deleted | tomb))))

    def finish(self) -> Rebuilt:
        """Decide which inodes are live, and correct the sums of bytes -> itself."""
        if self._names is not None:
            self._names.sorter.rest()
        pos, ids, deleted, tomb, s, *bits = self._seen.take()
        live, unfinished = _resolve(pos, ids, s, tomb, self._kv)
        live &= ~deleted | (self._marked & (pos >= self.lost))
        unfinished &= ~deleted
        self.unfinished = pos[unfinished].tolist()
        may_stay = np.isin(s[unfinished], s[live]) if self._settings.havedups else False
        self.due = int(np.count_nonzero(unfinished)) - int(np.count_nonzero(may_stay))
        self.dead, self.flagged = pos[deleted & ~tomb & ~live], pos[deleted & live]
        for positions, sign in ((self.flagged.tolist(), 1), (self.unfinished, -1)):
            for at in positions:
                self.add_inode(self._kv.get(at), self._settings, self._kv, sign)
        self.rows = IndexRows(s, bits[0] if bits else None, pos)
        if live.all():
            return self
        old = ids[~live & ~tomb]
        if len(old):
            both = np.flatnonzero(live)[np.isin(ids[live], old)]
            self.successors = dict(zip(ids[both].tolist(), pos[both].tolist(), strict=True))
        self.rows = self.rows.take(live)
        return self

    def superseded_columns(self) -> list[int]:
        """Return positions of declarations that a later one has replaced, to be marked deleted."""
        return [pos for pos in self.columns if pos < self._kv.superblock.get(COLUMNS, 0)]


def rebuild(
    kv: KVSeq,
    settings: Settings,
    *,
    problem: Callable[[CorruptError], None],
    progress: Callable[[int], None] | None = None,
    names: RowCollector | None = None,
    stop: int | None = None,
    marked: bool | None = None,
) -> Rebuilt:
    """Read the whole data file once; if it is damaged, a second time with a check of every entry.

    problem   called with each damaged range, which is skipped
    names     gets all inodes that may be live; they are right only if the result is `whole`
    stop      byte offset at which the pass ends; None: at the end of the file
    marked    see `Rebuilt`
    progress  called with the number of bytes done since the last call
    raises    CorruptError if a length is damaged in a file without checksums: the next
              entry is not known; for a reader, or in a truncated file, the pass ends there instead
    cost      one pass; memory: 21 bytes an inode entry, and 12 more while sorting
    """
    end = kv.end if stop is None else stop
    whole, known = end == kv.end and not marked, known_sums(kv)
    if whole and (not kv.layout.checksum or "ENTRIES" in known):
        # This pass does not verify contents. A damaged length misleads it, but then an entry is
        # impossible, or the sums differ from those of the superblock.
        with contextlib.suppress(CorruptError):
            found = Rebuilt(kv, settings, names)
            for batch in scan(kv.storage, kv.layout, kv.start, end, progress=progress):
                found.take(rows_of(batch, settings, raise_it))
            if _is_counted(found.finish(), known):
                found.whole = not len(found.flagged)
                return found
        progress = names = None
    found = Rebuilt(kv, settings, names, marked=marked)
    damage: list[CorruptError] = []

    def report(error: CorruptError) -> None:
        damage.append(error)
        if not isinstance(error, DamagedRange):
            found.lost = max(found.lost, error.offset)
        elif not error.last:  # nothing follows the last range, so no tombstone is lost
            found.lost = error.stop
        problem(error)

    try:
        for _, rows in inode_rows(
            kv.storage, kv.layout, settings, kv.start, end, problem=report, progress=progress
        ):
            found.take(rows)
    except CorruptError as error:
        if kv.writable:
            raise
        report(error)
    found.finish()
    found.whole, found.damaged = not damage and not len(found.flagged), len(damage)
    if not damage and whole and not _is_counted(found, known):
        return _with_flipped(kv, settings, found, report)
    return found


def _is_counted(found: Rebuilt, known: dict[str, int]) -> bool:
    sums = {"ENTRIES": found.entries, "ITOTSZ": found.itotsz, "DTOTSZ": found.dtotsz}
    return known.items() <= sums.items()


def _with_flipped(
    kv: KVSeq, settings: Settings, found: Rebuilt, problem: Callable[[CorruptError], None]
) -> Rebuilt:
    """Return the live files if all checksums are right but the sums of the superblock differ.

    A delflag has no checksum. If deletions need not leave tombstones, files that only a delflag
    removes are taken as live, provided that the sums agree then.
    """
    again = found
    if not settings.tombstones:
        again = rebuild(kv, settings, problem=lambda _: None, marked=True)
    if not len(again.flagged) or not _is_counted(again, known_sums(kv)):
        what = "the superblock counts other files than there are"
        problem(CorruptError(what, file=kv.storage.name, offset=0))
        found.damaged = 1
        return found
    again.whole = False
    return again


def known_sums(kv: KVSeq) -> dict[str, int]:
    """Return the counters of the superblock that are right in an undamaged file.

    AENTRIES is not among them: it is too large after a kill between two delflags.
    ->  name -> value; empty if the file has bytes that its last sync does not cover
    """
    block = kv.superblock
    if not block.get("SYNCSIZE") == block.get("FILESIZE") == kv.end:
        return {}
    return {name: block[name] for name in ("ENTRIES", "ITOTSZ", "DTOTSZ") if name in block}


def _resolve(
    pos: Int64, ids: npt.NDArray[Any], s: UInt64, tomb: Bools, kv: KVSeq
) -> tuple[Bools, Bools]:
    """Return which inode entries are the last of their name and their file, and which have a later
    one; tombstones are neither."""
    beaten = np.zeros(len(pos), bool)
    beaten[superseded(s, lambda row: kv.get(int(pos[row])).key)] = True
    older = superseded(ids)
    beaten[older[~tomb[older]]] = True  # tombstones all have FILEID 0, and are no files
    return ~(beaten | tomb), beaten & ~tomb


class Replay:
    """A pass over a tail, which updates an index.

    superseded  positions of inodes that the tail replaced: a writer marks them and their entries
                deleted, in case a kill came between the flags. A reader does not need them, and so
                does not look up the names of new files
    tombstones  whether there were any
    known       False if a file of the tail has an older inode that the tail does not name: only a
                rebuild can find it
    left        old names of files that the tail renamed without a tombstone
    counts      counters of the entries of the tail; None: not wanted
    """

    def __init__(
        self,
        kv: KVSeq,
        settings: Settings,
        index: Index,
        times: TimeIndex | None = None,
        *,
        marked: bool | None = None,
    ) -> None:
        """Prepare a pass. `marked`: see `Rebuilt`."""
        self._kv, self._settings, self._index, self._times = kv, settings, index, times
        self._marked = settings.tombstones if marked is None else marked
        self.declares = False  # columns; the declaration they replace may precede the tail
        self._newest: dict[int, bytes] = {}  # FILEID -> key, of the files in the tail
        self._lost: set[int] = set()  # FILEIDs older than the base whose old inode is not yet met
        self.tombstones = False
        self._flagged: list[tuple[bytes, int]] = []  # inodes of the tail that are marked deleted
        self.superseded: list[int] = []
        self.left: set[bytes] = set()
        self.counts: Counts | None = None

    @property
    def known(self) -> bool:
        return not self._lost

    def successors(self) -> dict[int, int]:
        """Return FILEID -> position of the live inode, of the files in the tail."""
        found = {fileid: self._index.lookup(key) for fileid, key in self._newest.items()}
        return {fileid: pos for fileid, pos in found.items() if pos}

    def settled(self) -> list[int]:
        """Add the inodes of the tail that are marked deleted to `superseded`, except live ones.

        ->  positions of the live ones
        """
        live = [pos for key, pos in self._flagged if self._index.lookup(key) == pos]
        self.superseded += sorted({pos for _, pos in self._flagged}.difference(live))
        self._flagged = []
        return live

    def run(
        self, start: int, stop: int, times_from: int, problem: Callable[[CorruptError], None]
    ) -> None:
        """Apply the entries of [start, stop) to the index, those from `times_from` on to the time
        index."""
        kv = self._kv
        for batch, rows in inode_rows(
            kv.storage, kv.layout, self._settings, start, stop, problem=problem
        ):
            self.declares = self.declares or len(entries_with(batch, KEY)) > 0
            if self.counts is not None:
                self.counts.add(rows)
            if self._times is not None:
                new = (rows.pos >= times_from) & (rows.size > 0)
                self._times.add_many(rows.mtime[new], rows.firsts[new])
            self._take(rows)

    def _take(self, rows: InodeRows) -> None:
        """Apply the inodes of a batch."""
        keys, index, superseded = rows.keys, self._index, self.superseded
        flagged = np.flatnonzero(rows.deleted & (rows.size > 0)) if self._kv.writable else ()
        self._flagged += [(keys[row], int(rows.pos[row])) for row in flagged]
        base = index.base
        self.tombstones |= bool((rows.size == 0).any())
        known_below = (base.nextfid or INT64_MAX) if base is not None else 0
        now = self._before(keys, rows.fileid, known_below)
        gone = rows.size == 0 if self._marked else rows.deleted
        live = np.where(gone, 0, rows.pos).tolist()
        numbers = zip(keys, rows.pos.tolist(), rows.fileid.tolist(), live, strict=True)
        for key, pos, fileid, becomes in numbers:
            old = now.get(key, UNSEEN)
            if self.left:
                self.left.discard(key)
            if old < 0 and self._lost:
                old = index.lookup(key)
            if old > 0 and old != pos:
                superseded.append(old)
                if self._lost:
                    self._lost.discard(self._fileid_at(old))
            if fileid:
                other = self._newest.get(fileid)
                if other is None:
                    if fileid < known_below and not (old > 0 and self._fileid_at(old) == fileid):
                        self._lost.add(fileid)
                elif other != key:
                    self._rename(fileid, other, now)
                self._newest[fileid] = key
            index.assign(key, becomes, old=old, at=pos)
            now[key] = becomes

    def _before(self, keys: list[bytes], fileids: Int64, known_below: int) -> dict[bytes, int]:
        """Return positions of the current inodes of keys; for a reader, of old files only."""
        if not self._kv.writable:
            old = np.flatnonzero((fileids > 0) & (fileids < known_below))
            keys = [keys[i] for i in old.tolist()]
        return dict(zip(keys, self._index.lookup_many(keys), strict=True))

    def _rename(self, fileid: int, name: bytes, now: dict[bytes, int]) -> None:
        """Remove the old key of a file that the tail has renamed. `now`: key -> position of its
        inode, updated."""
        left = self._index.lookup(name)
        if left and self._fileid_at(left) == fileid:
            self.superseded.append(left)
            self.left.add(name)
            self._index.assign(name, 0)
            now[name] = 0

    def _fileid_at(self, pos: int) -> int:
        entry = self._kv.get(pos)
        form, file = self._settings.form, self._kv.storage.name
        return Inode.decode(entry.value, form, file=file, offset=pos).fileid if entry.value else 0


def tail(store: DataFile, covered: int, end: int | None = None) -> Iterator[tuple[bytes, int]]:
    """Yield the changes of names between `covered` and `end`, by default the end of the data file
    as the store knows it.

    ->      each name once: (name, position of its inode, 0: it was deleted)
    raises  CorruptError if a length is damaged
    cost    reads the tail; memory: 200 bytes a name
    """
    kv = store.kv
    end = kv.end if end is None else end
    if covered >= end:
        return
    kv.show(end - 1)  # all of it written
    # A delflag may be that of a later sync, so it is ignored, unless a tombstone may be lost.
    damage = list[CorruptError]()
    for marked, problem in ((True, damage.append), (False, store.note)):
        index = Index(store.settings, None, store.key_at, store.is_bad)
        replay = Replay(kv, store.settings, index, marked=marked)
        replay.run(covered, end, end, problem)
        if not damage:
            break
    # If a file has lost its name without a tombstone, the index of the container is rebuilt
    # (`Replay.known`), and its catalog dropped.
    for key, pos in index.overlay.items():
        yield name_of(key), pos


def finish_rebuilt(data: DataFile, found: Rebuilt) -> None:
    """Make the data file agree with a rebuild, for a writer: set delflags, correct counters on
    disk."""
    kv, block = data.kv, data.kv.superblock
    counters = {"ENTRIES": kv.entries, "ITOTSZ": data.itotsz, "DTOTSZ": data.dtotsz}
    if len(found.flagged):
        kv.aentries += revive(data, found.flagged.tolist())
    unclean = block.get("SYNCSIZE", kv.end) != kv.end
    if unclean or found.due or block.get("AENTRIES") != kv.aentries:
        # AENTRIES counts what should be marked deleted as if it were: equal means nothing is left.
        done = finish(data, found.unfinished, found.successors)
        kv.aentries -= done + finish(data, found.dead.tolist(), found.successors)
    if found.columns and (old := found.superseded_columns()) and kv.layout.delflag:
        kv.confirm()
        kv.mark_deleted(old)
        kv.aentries -= len(old)
    counters["AENTRIES"] = kv.aentries
    recorded = {**counters, **block}  # a counter that the superblock lacks is not wrong
    if not counters.items() <= recorded.items() or unclean or block.damage is not None:
        data.sync_data()


def finish(data: DataFile, superseded: Sequence[int], successors: Mapping[int, int]) -> int:
    """Set the delflags that are `due` -> how many were set."""
    todo = due(data, superseded, successors)
    if todo:
        data.kv.confirm()  # their replacements must be durable first
        data.kv.mark_deleted(todo)
    return len(todo)


def due(data: DataFile, superseded: Sequence[int], successors: Mapping[int, int]) -> list[int]:
    """Return positions of superseded inodes, and of the entries that only they own, that are not
    marked deleted yet.

    successors  FILEID -> position of the live inode, of files whose older inodes are among them
    """
    kv = data.kv
    if not kv.layout.delflag or not superseded:
        return []
    kv.show(kv.end - 1)
    todo: list[int] = []
    others: list[int] = []
    inodes = Inodes(kv, data.settings, None)
    for at in range(0, len(superseded), INODE_BATCH):
        part = np.array(superseded[at : at + INODE_BATCH], np.int64)
        raw, places = fetch(kv.storage, part, INODE_READ_BYTES)
        found, which = inodes.gathered(part, raw, places)
        table = found.table
        plain = (table.pointer > 0) & ~table.special & ~np.isin(table.fileid, list(successors))
        todo += np.stack([table.pos[plain], table.pointer[plain]], axis=1).ravel().tolist()
        others += np.delete(part, which[plain]).tolist()
    seen: set[int] = set()
    kept: dict[int, set[int]] = {}  # FILEID -> the entries of the live inode
    for pos in sorted(others):
        try:
            fileid, named = entries_of(
                pos, seen, data.entry_at, data.settings.form, kv.storage.name, data.note
            )
            successor = successors.get(fileid)
            if fileid not in kept:
                kept[fileid] = set(data.inode_at(successor)[1].pointers) if successor else set()
        except CorruptError as error:
            data.note(error)
            continue
        todo += [pos, *(named - kept[fileid])]
    return unmarked(kv, todo)


def unmarked(kv: KVSeq, positions: Sequence[int]) -> list[int]:
    """Return, each once, the positions whose entry is not marked deleted. All are in the file."""
    return [pos for pos in dict.fromkeys(positions) if kv.storage.read(pos, 1) == b"\0"]


def resume(
    data: DataFile, index: Index, times: TimeIndex | None, start: int, times_from: int
) -> bool | None:
    """Recover from an interrupted call: apply all entries after `start`, synced or not, to an index
    that covers `start`, and add them to the counters of the last sync.

    times   the time index, to which entries from `times_from` on are applied
    ->      whether a file has lost its name without a tombstone, so that an older catalog is wrong;
            None if a rebuild is necessary
    raises  CorruptError; DerivedDamage
    cost    reads the entries after `start`
    """
    kv, block, damage = data.kv, data.kv.superblock, list[CorruptError]()
    last = block["FILESIZE"]
    kv.show(kv.end - 1)
    replay = Replay(kv, data.settings, index, times)
    replay.run(start, last, times_from, damage.append)
    unknown = replay.settled() or not replay.known
    before = due(data, replay.superseded, replay.successors())
    replay.superseded, replay.counts = [], Counts(**{f: block[f.upper()] for f in COUNTERS})
    replay.run(last, kv.end, times_from, damage.append)
    if unknown or replay.settled() or damage or not replay.known or replay.declares:
        return None
    counts = replay.counts
    for entry in map(kv.get, sorted(set(replay.superseded))):
        if entry.pos < last or not entry.deleted:
            counts.add_inode(entry, data.settings, kv, -1)
    others = unmarked(kv, [pos for pos in data.pending_deletes if pos >= last])
    new = {*due(data, replay.superseded, replay.successors()), *others}.difference(before)
    kv.entries, kv.aentries = counts.entries, counts.aentries - len(new)
    data.itotsz, data.dtotsz = counts.itotsz, counts.dtotsz
    data.pending_deletes = sorted(new.union(before))
    return bool(replay.left)


def revive(data: DataFile, flagged: Sequence[int]) -> int:
    """Clear the delflags of live inodes and of their entries -> how many were set.

    They stem from a sync that is not in this copy of the file, or from a flipped bit.
    """
    kv, todo = data.kv, list[int]()
    for pos in flagged:
        try:
            _, inode, _ = data.inode_at(pos)
            todo += [pos, *inode.pointers]
        except CorruptError as error:
            data.note(error)
    todo = [pos for pos in dict.fromkeys(todo) if kv.storage.read(pos, 1) == b"\1"]
    kv.storage.patch_each(todo, b"\0")
    return len(todo)
