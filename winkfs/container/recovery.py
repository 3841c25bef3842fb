"""Recovery: what follows from the data file, found anew.

Of the inode entries with one name, and of those with one FILEID, the one at the highest position
decides. Delflags add nothing to that: they are written later than what they follow from, so a copy
that was taken meanwhile may have the delflags of a sync that its superblock does not know.

`rebuild` finds all live files, and every counter, from the whole file; `Replay` brings an index up
to date with the entries that came after it; `finish` sets the delflags that a writer which was
killed did not set, `revive` takes those back that nothing in the file explains.
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
from winkformats.hindex.table import Columns, Rows, hash_rows
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

TOGETHER: Final = 4096  # inodes decoded together
HEAD_READ: Final = 512  # bytes read of each
MOST: Final = (1 << 63) - 1  # of 64 bits
COUNTERS: Final = ("entries", "aentries", "itotsz", "dtotsz")  # of the superblock, see `Counts`


@dataclass(kw_only=True)
class Counts:
    """Counters of the superblock, of all entries or of some.

    entries     all of them; aentries: those with delflag 0
    itotsz      bytes of the live inodes; dtotsz: bytes of the live files
    """

    entries: int = 0
    aentries: int = 0
    itotsz: int = 0
    dtotsz: int = 0

    def add(self, rows: InodeRows) -> None:
        """Count the entries of a batch; what its delflags do not say yet counts as live."""
        flags, live = rows.batch.flags, ~rows.deleted
        self.entries += len(flags)
        self.aentries += len(flags) - int(np.count_nonzero(flags))
        self.itotsz += int(rows.size[live].sum())
        self.dtotsz += int(rows.lsize[live].sum())

    def add_inode(self, entry: KVEntry, settings: Settings, kv: KVSeq, sign: int) -> None:
        """Add an inode to the sums of bytes, or take it off."""
        inode = Inode.decode(entry.value, settings.form, file=kv.storage.name, offset=entry.pos)
        self.itotsz += sign * inode.size
        self.dtotsz += sign * inode.lsize


class Rebuilt(Counts):
    """What a whole data file says: takes its inodes batch by batch, then decides which are live.

    names   is given all inodes that may be live, but for those `flagged`
    marked  take for live what only its delflag says is not: what came later has set it. None: where
            deletions leave tombstones

    lost        set by the caller: entries below were lost, and a tombstone may be among them
    rows        the live files, in file order
    times       time marks; None: the container is not append-only
    nextfid     highest FILEID seen, plus 1
    unfinished  inodes that were superseded but are not marked deleted
    due         how many of them must be: with HAVEDUPS those of names that are gone
    dead        inodes that are marked deleted, int64[..]
    flagged     live inodes that are marked deleted all the same, int64[..]
    columns     entries that declare columns and are not marked deleted; one counts
    heirs       FILEID -> position of the live inode, of files that also have inodes among those
    end         end of the last whole entry
    whole       whether nothing is damaged, and nothing `flagged`
    damaged     places whose files are left out for that
    """

    rows: Rows

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
        self.unfinished, self.columns, self.heirs = list[int](), list[int](), dict[int, int]()
        self.dead = self.flagged = np.empty(0, np.int64)
        self.due, self.whole, self.damaged = 0, True, 0
        bits = [] if settings.htalgo in SLOT_FROM_S else [np.uint64]
        self._seen = Columns(np.int64, np.uint32, bool, bool, np.uint64, *bits)

    def take(self, rows: InodeRows) -> None:
        """Count a batch and note its inodes."""
        batch, block, htalgo = rows.batch, self._kv.superblock, self._settings.htalgo
        self.add(rows)
        self.end = int(batch.base + batch.end[-1])
        if COLUMNS in block:
            declared = entries_with(batch, KEY)
            self.columns += batch.pos[declared[batch.flags[declared] == 0]].tolist()
        tomb, ids = rows.size == 0, rows.fileid
        self.nextfid = min(max(self.nextfid, int(ids.max(initial=0)) + 1), SANE)
        if "NEXTFID" not in block:  # data without an inode: a writer that died
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
        """Decide -> itself. Counters of what is superseded but not marked are taken off."""
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
        self.rows = Rows(s, bits[0] if bits else None, pos)
        if live.all():
            return self
        old = ids[~live & ~tomb]
        if len(old):
            both = np.flatnonzero(live)[np.isin(ids[live], old)]
            self.heirs = dict(zip(ids[both].tolist(), pos[both].tolist(), strict=True))
        self.rows = self.rows.take(live)
        return self

    def superseded_columns(self) -> list[int]:
        """Those that a later one has replaced: they are to be marked deleted."""
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
    """Read the whole data file once; a second time, checking every entry, where it is damaged.

    problem   called with each damaged range, which is skipped
    names     is given all inodes that may be live; they are right only where the result is `whole`
    stop      only what is before it
    marked    see `Rebuilt`
    progress  called with the number of bytes done since the last call
    raises    CorruptError where the chain of entries breaks and there are no checksums to find
              where it goes on; for a reader, or in a file cut short, it just ends there
    cost      one pass; memory: 21 bytes an inode entry, and 12 more while sorting
    """
    end = kv.end if stop is None else stop
    whole, known = end == kv.end and not marked, known_sums(kv)
    if whole and (not kv.layout.checksum or "ENTRIES" in known):
        # Without a look at the checksums of contents. A damaged length leads the walk astray: it
        # then meets something impossible, or other sums than the superblock has.
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
        elif not error.last:  # else the file is as it was when it ended there
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
    """What a file holds whose checksums are right, but not the sums of the superblock.

    A delflag has no checksum. Where deletions need not leave tombstones, files that only a delflag
    takes away are there if the sums then are right.
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
    """Counters of the superblock that are right if nothing is damaged; empty after an unclean end.

    Of AENTRIES a kill between two delflags leaves too many.
    """
    block = kv.superblock
    if not block.get("SYNCSIZE") == block.get("FILESIZE") == kv.end:
        return {}
    return {name: block[name] for name in ("ENTRIES", "ITOTSZ", "DTOTSZ") if name in block}


def _resolve(
    pos: Int64, ids: npt.NDArray[Any], s: UInt64, tomb: Bools, kv: KVSeq
) -> tuple[Bools, Bools]:
    """Of all inode entries of the file -> which are the last of their name and their file, and
    which have a later one; tombstones are neither."""
    beaten = np.zeros(len(pos), bool)
    beaten[superseded(s, lambda row: kv.get(int(pos[row])).key)] = True
    older = superseded(ids)
    beaten[older[~tomb[older]]] = True  # tombstones all have FILEID 0, and are no files
    return ~(beaten | tomb), beaten & ~tomb


class Replay:
    """One pass over a tail.

    superseded  positions of inodes that the tail replaced: a writer marks them and their entries
                deleted, where a kill came between the flags. Of no use to a reader, who need not
                look up the names of new files for it
    tombstones  whether there were any
    known       False where a file of the tail has an older inode that the tail does not name: then
                only a rebuild can find it
    left        names that a file of the tail has left for another one, without a tombstone
    counts      of the entries of the tail; None: nobody asks
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
        """`marked`: see `Rebuilt`."""
        self._kv, self._settings, self._index, self._times = kv, settings, index, times
        self._marked = settings.tombstones if marked is None else marked
        self.declares = False  # columns: what the new ones replace may be far up in the file
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

    def heirs(self) -> dict[int, int]:
        """FILEID -> position of the live inode, of the files in the tail."""
        found = {fileid: self._index.lookup(key) for fileid, key in self._newest.items()}
        return {fileid: pos for fileid, pos in found.items() if pos}

    def settled(self) -> list[int]:
        """Add those of the tail that are marked deleted to `superseded` -> those that are live."""
        live = [pos for key, pos in self._flagged if self._index.lookup(key) == pos]
        self.superseded += sorted({pos for _, pos in self._flagged}.difference(live))
        self._flagged = []
        return live

    def run(
        self, start: int, stop: int, times_from: int, problem: Callable[[CorruptError], None]
    ) -> None:
        """Take in the entries of [start, stop); the time index those from `times_from` on."""
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
        """Take in the inodes of a batch."""
        keys, index, superseded = rows.keys, self._index, self.superseded
        flagged = np.flatnonzero(rows.deleted & (rows.size > 0)) if self._kv.writable else ()
        self._flagged += [(keys[row], int(rows.pos[row])) for row in flagged]
        base = index.base
        self.tombstones |= bool((rows.size == 0).any())
        known_below = (base.nextfid or MOST) if base is not None else 0
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
        """Where the inodes of the keys have been up to now, as far as that is of use."""
        if not self._kv.writable:
            old = np.flatnonzero((fileids > 0) & (fileids < known_below))
            keys = [keys[i] for i in old.tolist()]
        return dict(zip(keys, self._index.lookup_many(keys), strict=True))

    def _rename(self, fileid: int, name: bytes, now: dict[bytes, int]) -> None:
        """A file that the tail had under this key has another one. `now`: see `_take`."""
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
    """What happened to names between `covered` and `end`, by default that of the data file as the
    store knows it.

    ->      each name once: (name, position of its inode, or 0 where it is gone)
    raises  CorruptError where the chain of entries breaks
    cost    reads the tail; memory: 200 bytes a name
    """
    kv = store.kv
    end = kv.end if end is None else end
    if covered >= end:
        return
    kv.show(end - 1)  # all of it written
    # A delflag may be that of a later sync; but where a tombstone may be lost they count.
    damage = list[CorruptError]()
    for marked, problem in ((True, damage.append), (False, store.note)):
        index = Index(store.settings, None, store.key_at, store.is_bad)
        replay = Replay(kv, store.settings, index, marked=marked)
        replay.run(covered, end, end, problem)
        if not damage:
            break
    # Where a file has lost its name without a tombstone, the index of the container is rebuilt
    # (`Replay.known`), and what stands beside it dropped.
    for key, pos in index.overlay.items():
        yield name_of(key), pos


def finish_rebuilt(data: DataFile, found: Rebuilt) -> None:
    """After a rebuild, for a writer. Counters that were wrong are right on disk on return."""
    kv, block = data.kv, data.kv.superblock
    counters = {"ENTRIES": kv.entries, "ITOTSZ": data.itotsz, "DTOTSZ": data.dtotsz}
    if len(found.flagged):
        kv.aentries += revive(data, found.flagged.tolist())
    unclean = block.get("SYNCSIZE", kv.end) != kv.end
    if unclean or found.due or block.get("AENTRIES") != kv.aentries:
        # AENTRIES counts what should be marked deleted as if it were: equal means nothing is left.
        done = finish(data, found.unfinished, found.heirs)
        kv.aentries -= done + finish(data, found.dead.tolist(), found.heirs)
    if found.columns and (old := found.superseded_columns()) and kv.layout.delflag:
        kv.confirm()
        kv.mark_deleted(old)
        kv.aentries -= len(old)
    counters["AENTRIES"] = kv.aentries
    said = {**counters, **block}  # with counters that the superblock does not have
    if not counters.items() <= said.items() or unclean or block.damage is not None:
        data.sync_data()


def finish(data: DataFile, superseded: Sequence[int], heirs: Mapping[int, int]) -> int:
    """Set the delflags that are `due` -> how many."""
    todo = due(data, superseded, heirs)
    if todo:
        data.kv.confirm()  # or what replaces them may not be on the disk
        data.kv.mark_deleted(todo)
    return len(todo)


def due(data: DataFile, superseded: Sequence[int], heirs: Mapping[int, int]) -> list[int]:
    """Superseded inodes and the entries that only they own, of those not marked deleted yet.

    heirs   FILEID -> position of the live inode, of files whose older inodes are among them
    """
    kv = data.kv
    if not kv.layout.delflag or not superseded:
        return []
    kv.show(kv.end - 1)
    todo: list[int] = []
    others: list[int] = []
    inodes = Inodes(kv, data.settings, None)
    for at in range(0, len(superseded), TOGETHER):
        part = np.array(superseded[at : at + TOGETHER], np.int64)
        raw, places = fetch(kv.storage, part, HEAD_READ)
        found, which = inodes.gathered(part, raw, places)
        table = found.table
        plain = (table.pointer > 0) & ~table.special & ~np.isin(table.fileid, list(heirs))
        todo += np.stack([table.pos[plain], table.pointer[plain]], axis=1).ravel().tolist()
        others += np.delete(part, which[plain]).tolist()  # a sixth as fast
    seen: set[int] = set()
    kept: dict[int, set[int]] = {}  # FILEID -> the entries of the live inode
    for pos in sorted(others):
        try:
            fileid, named = entries_of(
                pos, seen, data.entry_at, data.settings.form, kv.storage.name, data.note
            )
            heir = heirs.get(fileid)
            if fileid not in kept:
                kept[fileid] = set(data.inode_at(heir)[1].pointers) if heir else set()
        except CorruptError as error:
            data.note(error)
            continue
        todo += [pos, *(named - kept[fileid])]
    return unmarked(kv, todo)


def unmarked(kv: KVSeq, positions: Sequence[int]) -> list[int]:
    """Each of these positions once whose entry is not marked deleted. They are in the file."""
    return [pos for pos in dict.fromkeys(positions) if kv.storage.read(pos, 1) == b"\0"]


def resume(
    data: DataFile, index: Index, times: TimeIndex | None, start: int, times_from: int
) -> bool | None:
    """Bring an index that covers `start` up to date with all entries, synced or not, after a call
    that was broken off, and count them: the counters of the superblock are of the last sync.

    times   are brought up to date from `times_from` on
    ->      whether a file has lost its name without a tombstone: no older catalog is to be
            believed; None where only a rebuild can find out
    raises  CorruptError; DerivedDamage
    cost    reads what came after `start`: 10 us a change
    """
    kv, block, damage = data.kv, data.kv.superblock, list[CorruptError]()
    last = block["FILESIZE"]
    kv.show(kv.end - 1)
    replay = Replay(kv, data.settings, index, times)
    replay.run(start, last, times_from, damage.append)
    unknown = replay.settled() or not replay.known
    before = due(data, replay.superseded, replay.heirs())
    replay.superseded, replay.counts = [], Counts(**{f: block[f.upper()] for f in COUNTERS})
    replay.run(last, kv.end, times_from, damage.append)
    if unknown or replay.settled() or damage or not replay.known or replay.declares:
        return None
    counts = replay.counts
    for entry in map(kv.get, sorted(set(replay.superseded))):
        if entry.pos < last or not entry.deleted:
            counts.add_inode(entry, data.settings, kv, -1)
    others = unmarked(kv, [pos for pos in data.doomed if pos >= last])
    doomed = {*due(data, replay.superseded, replay.heirs()), *others}.difference(before)
    kv.entries, kv.aentries = counts.entries, counts.aentries - len(doomed)
    data.itotsz, data.dtotsz = counts.itotsz, counts.dtotsz
    data.doomed = sorted(doomed.union(before))
    return bool(replay.left)


def revive(data: DataFile, flagged: Sequence[int]) -> int:
    """Take the delflags of live inodes and of what they point to back -> how many there were.

    They stem from a sync that is not in this copy of the file, or a bit of them flipped.
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
