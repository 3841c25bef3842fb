"""Store: one container that is open: its data file, and the files that are derived from it.

It knows entries and inodes by position. Files with names are handled by `read` and `write`.
"""

from __future__ import annotations

import contextlib
import errno
import time
from typing import Final

import numpy as np

from winkformats import hashing
from winkformats.arrays import Int64
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.storage import TEMPORARY
from winkformats.errors import CorruptError, DerivedDamage
from winkformats.hindex.table import Rows, hash_rows, join_rows, size_for
from winkformats.kv.superblock import SBSIZE, read_superblock
from winkfs.container.catalog import DerivedCatalog
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

MERGE_TAIL: Final = 64 << 20  # bytes of tail, at least, before that happens for its length
# A close leaves the index as it is where it costs less to replay the tail: 2 us a change for a
# reader, 8 for a writer, 12 where it replaces a file, and 0.5 ns a byte; a new index costs 0.25 us
# a file. With 1,000 changes and a reader between two closes, all of it together costs least at
# 7,000 changes over 10^6 files, and 23,000 over 10^7. A reader pays 35 ms for LEFT of them.
LEFT: Final = 1 << 14  # changes, and one for
SHARE: Final = 128  # files of the index
LARGE: Final = SHARE * SHARE  # files: an index of fewer is written in the time of its fsync
REPLAYED: Final = 10_000  # bytes that a rebuild reads while a change is replayed, or one file
SAMPLE: Final = 512  # cells looked at when an index is opened


class Store(DataFile):
    """An open container, without names and bytes of files.

    times    the time marks; None: it is not append-only
    packed   what `pack --update` goes by: the variables of PACKED in BASE.idx
    damaged  damaged places of the data file whose files the index does not have
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
        """`load`: find or make the index; `mapped`, `lock`: see `DataFile`.

        raises  NoSuchFile, Locked, FormatError, OSError
        """
        self.frozen = False  # a reader that stays at the moment it has reached: see Handle.freeze
        self.generation = 0  # how often everything was opened anew
        self.packed: dict[str, int] = {}
        self.damaged, self._healing = 0, False  # whether a writer has to replace a damaged BASE.idx
        self.times: TimeIndex | None = None
        self._timed = -1  # FILESIZE of the data file whose files are all in BASE.time; -1: in none
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
        """A FILEID never used before in this container."""
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
        """Find or make the index. Raises OSError."""
        self._load()
        if not self.writable:
            self.refresh()
        elif self.kv.superblock.damage is not None:
            self.sync_data()

    def _load(self) -> None:
        """Find the derived files and bring them up to date, or make them anew."""
        kv, settings, block = self.kv, self.settings, self.kv.superblock
        self._take_lost_sync()
        if self.writable:
            for suffix in (".data", ".idx", ".time", ".cat"):  # of a writer that was killed
                self.directory.unlink(self.name + suffix + TEMPORARY)
            self.catalog.sweep()
        base = self._load_index()
        if settings.havedups:  # an older inode of a name need not be marked: a cell of one is wrong
            self.index.check()
            base = self.index.base
        if base is not None and base.sums is None and not self._plausible(base):
            with contextlib.suppress(CorruptError):  # else there is nothing better than it
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

    # --- BASE.idx: `index.base`, on disk or, for a reader, made in memory ---

    def _load_index(self) -> Base | None:
        """Take the file for the index; None: it is missing, or no good, and the index empty."""
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
            self.excuse(error)
            self.index.fold()  # the tail will be replayed

    def _merged(self) -> tuple[Rows, Int64 | None]:
        """All rows. Where a slot does not follow from a cell the keys of all files are read; what
        that brings into the page cache does not stay there."""
        settings, storage = self.settings, self.kv.storage
        from_cells = settings.htalgo in hashing.SLOT_FROM_S and settings.cellsz > 1
        drop = None if from_cells else storage.dropper(0, storage.size())
        try:
            return self.index.merged()
        finally:
            if drop is not None:
                drop(0, storage.size())

    def _write_index(self, rows: Rows, extra: Int64 | None = None) -> Base:
        """Write a new file. Raises OSError."""
        with self.deriving(".idx") as storage:
            storage.mapped = self.mapped
            return write_base(storage, self.settings, rows, extra, self._variables())

    def _in_memory(self, rows: Rows, variables: dict[str, int]) -> Base:
        """The same table in memory."""
        memory = MemoryStorage(name=self.base + ".idx (in memory)")
        room = 8 * self.settings.cellsz * (size_for(len(rows.pos)) + 1)
        memory.preallocate(SBSIZE + room)  # at once: a bytearray that grows is copied
        return write_base(memory, self.settings, rows, None, variables, sums=False)

    def _variables(self) -> dict[str, int]:
        """Variables of a file written now."""
        now = self.kv.superblock.get("SYNCTIME", int(time.time()))
        known = {"DATAEND": self.kv.end, "NEXTFID": self.nextfid, "SYNCTIME": now} | self.packed
        return known | ({DAMAGED: self.damaged} if self.damaged else {})

    # --- BASE.time ---

    def _load_times(self, covered: int) -> bool:
        """Take the time marks of an append-only container from BASE.time -> whether it is good, and
        reaches as far as the index does."""
        settings, block, end = self.settings, self.kv.superblock, self.kv.end
        loaded = TimeIndex.load(self.base + ".time", settings, block, end, self.remark)
        if loaded is not None and settings.classic:  # else more vouches for it than this
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
            self.excuse(error)

    # --- entries that neither has ---

    def _take_lost_sync(self) -> None:
        """Take in what the superblock has lost, a write of the disk: entries behind its FILESIZE.

        An index that covers more was written later, and only of what is durable. Readers look
        again, for a writer may have gone on.
        """
        kv = self.kv
        if kv.storage.size() <= kv.end or not kv.layout.checksum:  # there is nothing behind it
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
        """Whether some cells hold what they should: names that are found where they stand.

        Finds an index of another container, or of zeros, that looks right from outside.
        """
        words = base.used(0, min(SAMPLE, base.shape.htsize))[0]
        if not len(words):
            return base.live < max(base.shape.htsize // 32, 1)
        sample = words[:: max(len(words) // 16, 1), 0].tolist()
        keys = list(map(self.key_at, sample))
        good = [
            k.endswith(INODE) and self.index.lookup(k) == p
            for k, p in zip(keys, sample, strict=True)
        ]
        return 2 * good.count(True) >= len(good)  # a damaged inode or two: no foreign index

    def _catch_up(self, start: int) -> None:
        """Take what came from `start` on into the index and the time index."""
        start = max(start, self.kv.start)
        if start >= self.kv.end:
            return
        self._replaying = True
        try:
            if self.writable and self.settings.cellsz == 1:  # else what is asked for is checked
                self.index.check()  # for delflags follow from what the index had
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
            self.note(error)  # what the index names is there all the same
            return
        if not replay.known:
            self.catalog.drop()
        lost = self.damaged > damaged  # a tombstone may be among it
        if not replay.known or lost or (self.writable and replay.declares):
            self._rebuild()
        elif self.writable:
            marked = replay.settled()
            if marked:
                self._remark_marked(len(marked))
                revive(self, marked)
            self._finish(replay)

    def _finish(self, replay: Replay) -> None:
        """Set the delflags that the tail lacks. With HAVEDUPS older inodes may lack theirs until a
        name goes (`mark_older`), and whether AENTRIES counts them is not known."""
        dups = self.settings.havedups
        if dups and not replay.tombstones:
            return
        if finish(self, replay.superseded, replay.heirs()) and dups:
            self._rebuild()

    def mark_older(self) -> None:
        """Mark all older inodes deleted, and from now on as soon as they are superseded (HAVEDUPS).
        All is synced.

        cost    one pass over the data file
        """
        self.keeps_older = False
        self.kv.show(self.kv.end - 1)
        try:
            found = rebuild(self.kv, self.settings, problem=self.note)
        except CorruptError as error:  # those behind it stay as they are
            self.note(error)
            return
        todo = due(self, found.unfinished, found.heirs)
        if todo:  # first that they do not count, so that the writer after a kill marks the rest
            self.kv.aentries = found.aentries - len(todo)
            self.sync_data()
            self.kv.mark_deleted(todo)

    def distrust_index(self, error: DerivedDamage) -> None:
        """Go on without BASE.idx: with a table in memory of what it should hold.

        A writer replaces the file with its next sync or when it closes.
        raises  `error` itself in the midst of a replay; CorruptError; OSError
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
            self.refresh()  # a delflag that was met may stem from a sync that we have not seen

    def _rebuild(self) -> None:
        """Make index, time index and counters from the data file: on disk for a writer."""
        self.packed = {}
        found = rebuild(self.kv, self.settings, problem=self.note)
        if not (found.whole or self.kv.layout.checksum or self.writable):
            self._take_cells(found)
        gone = self._gone(found) if self.kv.truncated else None
        self.take(found)
        self.index.gone = gone

    def _gone(self, found: Rebuilt) -> Gone | None:
        """Leave out what the index knows to be no more: names with older versions or removed names.
        Damage is what it has to be for those whose inodes are gone."""
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
        """Add the files behind the place where a chain without checksums breaks.

        BASE.idx names them, whatever else is to be said of it: inodes have a checksum of their own.
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
        keep = ~np.isin(found.rows.s, later.s)  # older ones of those names
        bits = None if found.rows.bits is None else found.rows.bits[keep]
        earlier = Rows(found.rows.s[keep], bits, found.rows.pos[keep])
        found.rows = join_rows([earlier, later])

    def _remark_marked(self, count: int) -> None:
        """Note that live files are marked deleted; a writer takes the marks back."""
        self.remark(
            f"{self.kv.storage.name}: {count} files are marked deleted, but nothing replaced "
            "them (a copy of a container in use, or wrong delflags): they are there"
        )

    def take(self, found: Rebuilt) -> None:
        """Go on with what a rebuild found."""
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
            self.excuse(error)
            base = self._in_memory(found.rows, self._variables())
        self.index.replace(base)
        self._save_times()

    # --- staying current ---

    def refresh(self) -> None:
        """A reader looks whether the writer has synced, or put other files in our files' place."""
        now = self.directory.info(self.name + ".data", follow=True)
        if now is not None and now.identity != self._identity:  # one that is gone stays readable
            self.reopen()
            return
        if self.filesize_at and not self.moved():
            return
        # A delflag met in the replay may stem from a sync after the one replayed: go on until
        # there is no later one, then what set it is in the index too.
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
        """After a failed sync: go on as a reader of what the last one left, but keep the lock."""
        with contextlib.suppress(OSError):
            self.kv.release()
        self.writable, self.doomed = False, []
        self.catalog.close()
        self.reopen()

    def reopen(self) -> None:
        """Open everything anew: other files are in our files' place."""
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

        raises  OSError where the data file cannot be synced
        """
        self.kv.sync_storage()  # delflags: an index never covers what is not finished
        self._save_index()
        self._save_times()

    @property
    def should_merge(self) -> bool:
        """Whether the tail or the changes in memory have grown enough for a new index."""
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
        """Whether the index or the time index does not cover all of the data file."""
        base, end = self.index.base, self.kv.end
        late = self.times is not None and self._timed != end
        return late or base is None or base.covered != end or self.index.pending > 0

    @property
    def may_leave_tail(self) -> bool:
        """Whether who opens the container next had better replay what came after the index.

        Not without checksums: where their chain of entries breaks, only the index has the others.
        """
        base = self.index.base
        if base is None or base.live < LARGE or not self.kv.layout.checksum:
            return False
        covered = base.covered if self.times is None else min(base.covered, self._timed)
        on_disk = not isinstance(base.storage, MemoryStorage)
        same = (self.packed, self.damaged) == (base.packed, base.damaged)  # but for a replay
        return (
            on_disk
            and same
            and not (self._healing or self.settings.classic)
            and not self.index.must_merge
            and covered >= 0
            and self.kv.end - covered <= min(MERGE_TAIL, base.size)
            and self.index.pending <= min(LEFT, base.live // SHARE)
        )

    def recover(self, broken: bool) -> None:
        """After a failed write (`broken`) or an interrupted call: count anew what is in the file.

        The caller has settled `kv`. What is not whole is dropped before anything is published.

        cost    reads what is not in the index, or the whole data file where that takes less
        """
        self.recoveries += 1
        self.kept.clear()  # other entries may come to stand where some are
        self.keeps_older = self.settings.havedups
        if broken:
            self.doomed = []  # what replaces them may be lost
        self.kv.cut(self.synced)
        self._places = {name: at for name, at in self._places.items() if at < self.kv.end}
        if self._resume():
            return
        self.catalog.drop()  # half a rename may be in the file
        # SYNCSIZE stays until all is right: after a kill the next writer sees that it is not.
        block = self.kv.superblock
        if self.kv.end > self.synced:  # else what the superblock says is right
            self.kv.sync({"SYNCSIZE": block["SYNCSIZE"]} if "SYNCSIZE" in block else {})
        self.synced = self.kv.end
        self._set_delflags(self.doomed, [])
        self._rebuild()

    def _resume(self) -> bool:
        """Go on with the index that was written last, and with what came behind it; False: that
        does not show all of it, or takes longer than to read everything.

        raises  OSError
        """
        base, kv, block, settings = self.index.base, self.kv, self.kv.superblock, self.settings
        last = block.get("FILESIZE", -1)
        counted = block.get("SYNCSIZE") == last and all(f.upper() in block for f in COUNTERS)
        plain = kv.layout.checksum and kv.layout.delflag and not settings.havedups
        if base is None or not counted or not plain or settings.classic or self._syncing:
            return False
        many = self.index.pending > base.live + base.covered // REPLAYED
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
        if last != self.synced:  # a sync was broken off: it may be in the file, and may not
            self.sync_data()
        return True

    def abandon(self) -> None:
        """Close everything as it is."""
        if hasattr(self, "catalog"):
            self.index.replace(None)
            self.catalog.close()
        super().abandon()
