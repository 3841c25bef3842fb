"""Store: an open container: its data file, and the derived files.

It handles entries and inodes by position. Files with names are handled by `read` and `write`.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from winkformats import hashing
from winkformats.arrays import Int64
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.storage import TEMPORARY
from winkformats.errors import CorruptError, DerivedDamage
from winkformats.hindex.table import IndexRows, hash_rows, join_rows, size_for
from winkformats.kv.superblock import SBSIZE, read_superblock
from winkfs.container.catalog import DerivedCatalog, open_catalog
from winkfs.container.catalogindex import CatalogIndex, Expected
from winkfs.container.datafile import DataFile, end_of
from winkfs.container.frames import find_all
from winkfs.container.gone import Gone, gone_of
from winkfs.container.index import MERGE_OVERLAY, Index
from winkfs.container.ondisk.compressed import COMPRESS
from winkfs.container.ondisk.data import CUTID, SANE
from winkfs.container.ondisk.idx import (
    DAMAGED,
    Base,
    covered_by,
    named_positions,
    open_base,
    write_base,
)
from winkfs.container.ondisk.lock import WriterLock
from winkfs.container.ondisk.time import ENTRY, TimeIndex
from winkfs.container.recovery import (
    COUNTERS,
    Rebuilt,
    Replay,
    due,
    finish,
    finish_rebuilt,
    rebuild,
    resume,
    revive,
)
from winkfs.errors import Refusal
from winkfs.names import INODE

MERGE_TAIL: Final = 64 << 20  # bytes of a tail, at least, that is long enough for a new index
# A close leaves the index as it is if a replay of the tail costs the next opening less than a new
# index costs the close: up to MAX_LEFT changes, and one change for FILES_PER_CHANGE files.
MAX_LEFT: Final = 1 << 14
FILES_PER_CHANGE: Final = 128
SMALL_INDEX: Final = FILES_PER_CHANGE**2  # files; a smaller index is always written
REPLAYED_BYTES: Final = 10_000  # that a rebuild reads in the time in which a change is replayed
SAMPLE_CELLS: Final = 512  # looked at when an index is opened


class Store(DataFile):
    """An open container, by positions: data file, index, time index and catalog.

    times    the time marks; None: it is not append-only
    packed   the variables PACKED of BASE.idx, which `pack --update` uses
    damaged  number of damaged places of the data file, whose files the index does not have
    """

    def __init__(
        self,
        base: str,
        *,
        writable: bool,
        load: bool = True,
        mapped: bool = True,
        lock: WriterLock | None = None,
    ) -> None:
        """Open a container. `load`: find or make the index; `mapped`, `lock`: see `DataFile`.

        raises  NoSuchFile, Locked, FormatError, OSError
        """
        self.frozen = False  # whether a reader ignores later syncs: see Handle.freeze
        self.generation = 0  # number of reopenings
        self.packed: dict[str, int] = {}
        self.damaged, self._healing = 0, False  # whether a writer has to replace a damaged BASE.idx
        self.times: TimeIndex | None = None
        self._timed = -1  # FILESIZE up to which BASE.time covers the data file; -1: no BASE.time
        self._replaying = False
        try:
            super().__init__(base, writable=writable, mapped=mapped, lock=lock)
            self.index = Index(self.settings, None, self.key_at, self.is_bad, self.distrust_index)
            self.catalog = DerivedCatalog(self)
            if load:
                self.load()
            else:
                self._take_lost_sync()
        except BaseException:
            self.abandon()
            raise

    def new_fileid(self) -> int:
        """Return a FILEID never used before in this container. Raises Refusal EOVERFLOW."""
        if not self.nextfid:  # classic: the highest + 1, by scan
            self.kv.show(self.kv.end - 1)  # all of it written
            self.nextfid = rebuild(self.kv, self.settings, problem=self.note).nextfid
        if self.nextfid >= SANE:
            what = "no FILEID is left: one of its files has the highest there can be"
            raise Refusal(what, self.base, number=errno.EOVERFLOW)
        self.nextfid += 1
        return self.nextfid - 1

    # --- opening ---

    def load(self) -> None:
        """Open the index, or make it anew. Raises OSError."""
        if self.kv.storage.far:
            self._load_far()
            return
        self._load()
        if not self.writable:
            self.refresh()
        elif self.kv.superblock.damage is not None:
            self.sync_data()

    def _load(self) -> None:
        """Open the derived files and bring them up to date, or make them anew."""
        kv, settings, block = self.kv, self.settings, self.kv.superblock
        self._take_lost_sync()
        if self.writable:
            for suffix in (".data", ".idx", ".time", ".cat"):  # left by a killed writer
                self.directory.unlink(self.name + suffix + TEMPORARY)
            self.catalog.sweep()
        base = self._load_index()
        if settings.havedups:  # older inodes need not be marked, so a cell of one is wrong
            self.index.check()
            base = self.index.base
        if base is not None and base.sums is None and not self._plausible(base):
            with contextlib.suppress(CorruptError):  # if it fails, there is no better index
                self._rebuild()
                return
        unclean = block.get("SYNCSIZE", kv.end) != kv.end
        if base is None or kv.truncated or (unclean and self.writable):
            self._rebuild()
            return
        if settings.ao and not self._load_times(base.covered):
            self._rebuild()
            return
        try:
            self._catch_up(base.covered)
        except CorruptError:
            self._rebuild()

    def _load_far(self) -> None:
        """Take the catalog as the index; without a valid one the whole data file is read."""
        self.frozen = True  # an object never changes
        self._take_lost_sync()
        catalog = open_catalog(self)
        if catalog is None:
            self.remark(f"{self.base}: no valid catalog (.cat): the whole container is read")
            self._rebuild()
            return
        self.index = CatalogIndex(
            self.settings, catalog, self.key_at, self.is_bad, self._distrust_catalog
        )
        try:
            self._catch_up(catalog.covered)
        except CorruptError:
            self._rebuild()

    def _distrust_catalog(self, error: DerivedDamage) -> None:
        """Replace a damaged catalog of a container that is far by an index in memory.

        raises  `error` itself during a replay, as `distrust_index`; OSError
        """
        if self._replaying:
            raise error
        self.remark(error)
        self._rebuild()

    def expect(self, keys: Sequence[bytes], *, content: bool = True) -> Iterator[Expected]:
        """Announce that files will be read, for a container that is far, and yield them, a batch
        at a time; what they need is then in memory.

        content  their contents, not the inodes alone
        raises   OSError
        """
        if isinstance(self.index, CatalogIndex):
            fetch = self.kv.storage.fetch
            return self.index.expect(keys, fetch, self.inode_size, content=content)
        return iter([Expected(np.zeros((len(keys), 3), np.int64), [])])

    # --- BASE.idx: `index.base`, on disk or, for a reader, made in memory ---

    def _load_index(self) -> Base | None:
        """Open BASE.idx as the index; None: it is missing or unusable, and the index is empty."""
        base = open_base(
            self.directory, self.name, self.settings, self.kv.superblock, self.kv.end, self.remark,
            mapped=self.mapped,
        )  # fmt: skip
        self.index.replace(base)
        self.packed, self.damaged = (base.packed, base.damaged) if base is not None else ({}, 0)
        if self.damaged:
            self.note(
                f"{self.kv.storage.name}: files in {self.damaged} damaged places are not in its "
                "index: winkfs verify shows them, winkfs repair mends it"
            )
        return base

    def _save_index(self) -> None:
        self._healing = False
        try:
            self.index.replace(self._write_index(*self._merged()))
        except OSError as error:
            self.record_unwritten(error)
            self.index.fold()  # the next opening replays the tail

    def _merged(self) -> tuple[IndexRows, Int64 | None]:
        """Return all rows of the index. If a cell does not determine its slot, the keys of all
        files are read, and their pages dropped from the page cache."""
        settings, storage = self.settings, self.kv.storage
        from_cells = settings.htalgo in hashing.SLOT_FROM_S and settings.cellsz > 1
        drop = None if from_cells else storage.dropper(0, storage.size())
        try:
            return self.index.merged()
        finally:
            if drop is not None:
                drop(0, storage.size())

    def _write_index(self, rows: IndexRows, extra: Int64 | None = None) -> Base:
        """Write a new BASE.idx. Raises OSError."""
        with self.deriving(".idx") as storage:
            storage.mapped = self.mapped
            return write_base(storage, self.settings, rows, extra, self._variables())

    def _in_memory(self, rows: IndexRows, variables: dict[str, int]) -> Base:
        """Return an index of these rows in memory."""
        memory = MemoryStorage(name=self.base + ".idx (in memory)")
        room = 8 * self.settings.cellsz * (size_for(len(rows.pos)) + 1)
        memory.preallocate(SBSIZE + room)  # a growing bytearray would be copied
        return write_base(memory, self.settings, rows, None, variables, sums=False)

    def _variables(self) -> dict[str, int]:
        """Return the variables of an index that is written now."""
        now = self.kv.superblock.get("SYNCTIME", int(time.time()))
        known = {"DATAEND": self.kv.end, "NEXTFID": self.nextfid, "SYNCTIME": now} | self.packed
        return known | ({DAMAGED: self.damaged} if self.damaged else {})

    # --- BASE.time ---

    def _load_times(self, covered: int) -> bool:
        """Load the time marks of an append-only container from BASE.time -> whether it is valid and
        covers as much as the index."""
        settings, block, end = self.settings, self.kv.superblock, self.kv.end
        loaded = TimeIndex.load(self.base + ".time", settings, block, end, self.remark)
        if loaded is not None and settings.classic:  # other layouts record CONTID and DATAEND
            marks = loaded[0].positions
            some = marks[:: max(len(marks) // 16, 1)] + marks[-1:]
            loaded = loaded if all(ENTRY.fullmatch(self.key_at(pos)) for pos in some) else None
        self.times, self._timed = loaded or (TimeIndex(settings), -1)
        return self._timed >= covered

    def _save_times(self) -> None:
        if self.times is None:
            return
        try:
            with self.deriving(".time") as storage:
                self.times.write(storage, self.settings, self.kv.superblock)
            storage.close()
            self._timed = self.kv.end
        except OSError as error:
            self.record_unwritten(error)

    # --- entries that neither has ---

    def _take_lost_sync(self) -> None:
        """Accept entries after FILESIZE if the disk has lost the last write of the superblock.

        An index that covers more than FILESIZE proves that: it covers durable entries only. Readers
        read the superblock again, for a writer may have synced meanwhile.
        """
        kv = self.kv
        if kv.storage.size() <= kv.end or not kv.layout.checksum:  # no entries follow
            return
        covered = covered_by(self.base + ".idx", self.settings)
        if covered > kv.end:
            block = read_superblock(kv.storage)
            covered *= block.get("FILESIZE") == kv.superblock.get("FILESIZE")
        end = end_of(kv, covered)
        if end > kv.end:
            self.remarks.append(
                f"{kv.storage.name}: the superblock has lost a sync, {end - kv.end} bytes of "
                "entries behind its end were found"
            )
            if self.writable and self.settings.compressed:
                self._places[COMPRESS] = max([self.place(COMPRESS), *find_all(kv, kv.end, end)])
            kv.extend(end)

    def _plausible(self, base: Base) -> bool:
        """Return whether most cells of a sample point to inodes whose keys lead to the same cell.

        Detects an index of another container, or of zeros, whose superblock is right.
        """
        words = base.used(0, min(SAMPLE_CELLS, base.shape.htsize))[0]
        if not len(words):
            return base.live < max(base.shape.htsize // 32, 1)
        sample = words[:: max(len(words) // 16, 1), 0].tolist()
        keys = list(map(self.key_at, sample))
        good = [
            k.endswith(INODE) and self.index.lookup(k) == p
            for k, p in zip(keys, sample, strict=True)
        ]
        return 2 * good.count(True) >= len(good)  # a few damaged inodes do not condemn an index

    def _catch_up(self, start: int) -> None:
        """Replay the entries from `start` on into the index and the time index."""
        start = max(start, self.kv.start)
        if start >= self.kv.end:
            return
        self._replaying = True
        try:
            if self.writable and self.settings.cellsz == 1:  # larger cells are checked when used
                self.index.check()  # delflags are set for the inodes that the index had
            self._replay(start)
        except DerivedDamage as error:
            self.remark(error)
            self._rebuild()
        finally:
            self._replaying = False

    def _replay(self, start: int) -> None:
        replay, damaged = Replay(self.kv, self.settings, self.index, self.times), self.damaged
        try:
            replay.run(start, self.kv.end, max(start, self._timed), self._left_out)
        except CorruptError as error:
            if self.writable or self.kv.layout.checksum:
                raise
            self.note(error)  # files that the index names can still be read
            return
        if not replay.known:
            self.catalog.drop()
        lost = self.damaged > damaged  # a tombstone may be lost
        if not replay.known or lost or (self.writable and replay.declares):
            self._rebuild()
        elif self.writable:
            marked = replay.settled()
            if marked:
                self._remark_marked(len(marked))
                revive(self, marked)
            self._finish(replay)

    def _finish(self, replay: Replay) -> None:
        """Set the delflags that the tail lacks.

        With HAVEDUPS older inodes need no delflag until a name is removed (`mark_older`), and
        AENTRIES may or may not count them, so a rebuild follows if any was set.
        """
        dups = self.settings.havedups
        if dups and not replay.tombstones:
            return
        if finish(self, replay.superseded, replay.successors()) and dups:
            self._rebuild()

    def mark_older(self) -> None:
        """Mark all older inodes deleted (HAVEDUPS); from now on, a superseded one is a pending
        delete at once. The caller has synced.

        cost    one pass over the data file
        """
        self.keeps_older = False
        self.kv.show(self.kv.end - 1)
        try:
            found = rebuild(self.kv, self.settings, problem=self.note)
        except CorruptError as error:  # inodes after the damage stay as they are
            self.note(error)
            return
        todo = due(self, found.unfinished, found.successors)
        if todo:  # AENTRIES first, so that after a kill the next writer marks the rest
            self.kv.aentries = found.aentries - len(todo)
            self.sync_data()
            self.kv.mark_deleted(todo)

    def distrust_index(self, error: DerivedDamage) -> None:
        """Replace a damaged BASE.idx by an index in memory.

        A writer replaces the file at its next sync or close.
        raises  `error` itself during a replay; CorruptError; OSError
        cost    that of a reindex
        """
        old = self.index.base
        if self._replaying or old is None:
            raise error
        self.remark(error)
        self.kv.show(self.kv.end - 1)  # all of it written
        found = rebuild(self.kv, self.settings, problem=self.note, stop=old.covered)
        if not (found.whole or self.kv.layout.checksum or self.writable):
            self._take_cells(found)
        self.damaged = found.damaged
        variables = self._variables() | {"DATAEND": old.covered, "NEXTFID": old.nextfid}
        self._healing = self.writable
        self.index.adopt(self._in_memory(found.rows, variables))
        if not self.writable and not self.frozen and self.moved():
            self.refresh()  # a delflag may stem from a sync that this reader has not seen

    def _rebuild(self) -> None:
        """Make index, time index and counters anew from the data file; a writer writes them."""
        self.packed = {}
        found = rebuild(self.kv, self.settings, problem=self.note)
        if not (found.whole or self.kv.layout.checksum or self.writable):
            self._take_cells(found)
        gone = self._gone(found) if self.kv.truncated else None
        self.take(found)
        self.index.gone = gone

    def _gone(self, found: Rebuilt) -> Gone | None:
        """Leave out files of a truncated data file whose newer inode or tombstone is missing, as
        the index shows -> what is known of files that are gone; None: nothing."""
        block = self.kv.superblock
        gone = gone_of(self.base, self.settings, block, found.rows, found.end)
        if gone is not None:
            found.rows = gone.rows
            for line in gone.lines(self.kv.storage.name, self.key_at):
                self.note(line)
        return gone

    def _left_out(self, problem: CorruptError) -> None:
        self.damaged += 1
        self.note(problem)

    def _take_cells(self, found: Rebuilt) -> None:
        """Add the files after the place where a chain without checksums breaks.

        BASE.idx has their positions. Even a stale one can be used, for inodes have checksums.
        """
        keys, positions = [], []
        for pos in named_positions(self.base + ".idx", self.settings):
            if not found.end <= pos < self.kv.end:
                continue
            with contextlib.suppress(CorruptError):
                key, _, deleted = self.inode_at(pos)
                if key.endswith(INODE) and not deleted:
                    keys.append(key)
                    positions.append(pos)
        later = hash_rows(self.settings.htalgo, keys, np.array(positions, np.int64))
        keep = ~np.isin(found.rows.s, later.s)  # drop older inodes of those names
        bits = None if found.rows.bits is None else found.rows.bits[keep]
        earlier = IndexRows(found.rows.s[keep], bits, found.rows.pos[keep])
        found.rows = join_rows([earlier, later])

    def _remark_marked(self, count: int) -> None:
        """Record that live files are marked deleted; a writer clears the delflags."""
        self.remark(
            f"{self.kv.storage.name}: {count} files are marked deleted, but nothing replaced "
            "them (a copy of a container in use, or wrong delflags): they are there"
        )

    def take(self, found: Rebuilt) -> None:
        """Use the result of a rebuild from now on; a writer writes it to disk."""
        if len(found.flagged):
            self._remark_marked(len(found.flagged))
        self.kv.end = found.end if self.kv.truncated else self.kv.end
        self.times = found.times
        self.damaged = found.damaged
        self.kv.entries, self.kv.aentries = found.entries, found.aentries
        self.itotsz, self.dtotsz = found.itotsz, found.dtotsz
        self.nextfid = max(self.nextfid, found.nextfid)
        if not self.writable:
            self.index.replace(self._in_memory(found.rows, self._variables()))
            return
        finish_rebuilt(self, found)
        self.kv.sync_storage()  # delflags: an index never covers what is not finished
        try:
            base = self._write_index(found.rows)
        except OSError as error:
            self.record_unwritten(error)
            base = self._in_memory(found.rows, self._variables())
        self.index.replace(base)
        self._save_times()

    # --- staying current ---

    def refresh(self) -> None:
        """Take in the last sync of the writer, for a reader; reopen files that were replaced."""
        now = self.directory.info(self.name + ".data", follow=True)
        if now is not None and now.identity != self._identity:  # a deleted one stays readable
            self.reopen()
            return
        if self.filesize_at and not self.moved():
            return
        # A delflag in the replayed range may stem from a later sync. Replaying until there is no
        # later one ensures that the entry which explains the flag is in the index, too.
        while (
            end := (block := read_superblock(self.kv.storage)).get("FILESIZE", 0)
        ) != self.synced:
            gone_back = block.get(CUTID, 0) != self.settings.cutid
            if gone_back or end < self.kv.end or end > self.kv.storage.size():
                self.reopen()  # rolled back, or cut short
                return
            old, self.synced = self.kv.end, end
            self.kv.advance(block)
            self.note_chains()
            self._remember_filesize()
            self._catch_up(old)
        if len(self.index.overlay) > MERGE_OVERLAY:
            self._load()

    def fall_back(self) -> None:
        """Become a reader of the last successful sync, after a failed one, but keep the lock."""
        with contextlib.suppress(OSError):
            self.kv.release()
        self.writable, self.pending_deletes = False, []
        self.catalog.close()
        self.reopen()

    def reopen(self) -> None:
        """Open everything anew, after the files were replaced."""
        self.generation += 1
        self.recoveries += 1
        self.index.close()
        self.kv.storage.close()
        self.kv.drop_view()
        self._open_data()
        self._load()

    # --- durability ---

    def merge(self) -> None:
        """Write index and time index anew, for all that is durable now.

        raises  OSError if the data file cannot be synced
        """
        self.kv.sync_storage()  # delflags: an index never covers what is not finished
        self._save_index()
        self._save_times()

    @property
    def should_merge(self) -> bool:
        """True if the tail or the changes in memory have grown enough for a new index."""
        base = self.index.base
        tail = self.kv.end - (base.covered if base else 0)
        limit = max(MERGE_TAIL, 4 * base.size if base else 0)
        return (
            self._healing
            or self.index.must_merge
            or self.index.pending > MERGE_OVERLAY
            or (tail > limit and self.index.pending > 0)
        )

    @property
    def is_behind(self) -> bool:
        """True if the index or the time index does not cover all of the data file."""
        base, end = self.index.base, self.kv.end
        late = self.times is not None and self._timed != end
        return late or base is None or base.covered != end or self.index.pending > 0

    @property
    def may_leave_tail(self) -> bool:
        """True if it costs less to replay the tail at the next opening than to write an index now.

        False without checksums: only the index has entries after a break in the chain of entries.
        """
        base = self.index.base
        if base is None or base.live < SMALL_INDEX or not self.kv.layout.checksum:
            return False
        covered = base.covered if self.times is None else min(base.covered, self._timed)
        on_disk = not isinstance(base.storage, MemoryStorage)
        same = (self.packed, self.damaged) == (base.packed, base.damaged)
        return (
            on_disk
            and same
            and not (self._healing or self.settings.classic)
            and not self.index.must_merge
            and covered >= 0
            and self.kv.end - covered <= min(MERGE_TAIL, base.size)
            and self.index.pending <= min(MAX_LEFT, base.live // FILES_PER_CHANGE)
        )

    def recover(self, broken: bool) -> None:
        """Recover from a failed write (`broken`) or an interrupted call: count entries anew.

        The caller has settled `kv`. Incomplete entries are dropped before anything is published.

        cost    reads the entries that are not in the index, or the whole file if that takes less
        """
        self.recoveries += 1
        self.kept.clear()  # other entries may take their positions
        self.keeps_older = self.settings.havedups
        if broken:
            self.pending_deletes = []  # their replacements may be lost
        self.kv.cut(self.synced)
        self._places = {name: at for name, at in self._places.items() if at < self.kv.end}
        if self._resume():
            return
        self.catalog.drop()  # half a rename may be in the file
        # SYNCSIZE stays until all is right: after a kill the next writer sees that it is not.
        block = self.kv.superblock
        if self.kv.end > self.synced:  # otherwise the superblock is right
            self.kv.sync({"SYNCSIZE": block["SYNCSIZE"]} if "SYNCSIZE" in block else {})
        self.synced = self.kv.end
        self._set_delflags(self.pending_deletes, [])
        self._rebuild()

    def _resume(self) -> bool:
        """Replay the entries after the index that was written last -> False: that does not find
        everything, or takes longer than a rebuild.

        raises  OSError
        """
        base, kv, block, settings = self.index.base, self.kv, self.kv.superblock, self.settings
        last = block.get("FILESIZE", -1)
        counted = block.get("SYNCSIZE") == last and all(f.upper() in block for f in COUNTERS)
        plain = kv.layout.checksum and kv.layout.delflag and not settings.havedups
        if base is None or not counted or not plain or settings.classic or self._syncing:
            return False
        many = self.index.pending > base.live + base.covered // REPLAYED_BYTES
        if many or not base.covered <= last <= kv.end:
            return False
        self.catalog.close()
        self.index.replace(base)
        self.packed = base.packed
        if settings.ao and not self._load_times(base.covered):
            return False
        self._replaying = True
        try:
            if settings.cellsz == 1:
                self.index.check()
            nameless = resume(self, self.index, self.times, base.covered, self._timed)
        except CorruptError:
            return False
        finally:
            self._replaying = False
        if nameless is None:
            return False
        if nameless:
            self.catalog.drop()
        if last != self.synced:  # the interrupted sync may or may not be in the file
            self.sync_data()
        return True

    def abandon(self) -> None:
        """Close everything without a sync."""
        if hasattr(self, "catalog"):
            self.index.replace(None)
            self.catalog.close()
        super().abandon()
