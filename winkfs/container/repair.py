"""Repair and rollback: a container that a writer refuses, or that has lost something, made sound.

What is taken out is kept in a container beside it, BASE.removed-<time>: damaged ranges as they lay,
below `ranges`; what is left of files whose content is damaged, below `files`, and where the
dictionary is lost that they were compressed with, their frames below `frames`; and files of which
only a mark says that they are gone, for what removed or replaced them is lost, below `replaced`.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from winkformats.disk.paths import locate
from winkformats.disk.storage import Directory, Storage
from winkformats.errors import CorruptError, DamagedRange, raise_it
from winkformats.kv.entry import Layout
from winkformats.kv.scan import Batch, scan_intact
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import Superblock, superblocks, write_second
from winkfs.container.container import create
from winkfs.container.datafile import end_of
from winkfs.container.frames import entries_of
from winkfs.container.gone import gone_of
from winkfs.container.ondisk.chain import whole
from winkfs.container.ondisk.compressed import COMPRESS, COMPRESSED
from winkfs.container.ondisk.compressed import KEY as COMPRESSION
from winkfs.container.ondisk.data import CHAINS, CUTID, INCHAIN, LEFT_OUT, Settings, make_room
from winkfs.container.ondisk.idx import covered_by
from winkfs.container.ondisk.inode import FRAME, Inode, attr_key, data_key, is_filler
from winkfs.container.ondisk.lock import WriterLock
from winkfs.container.ondisk.typed import COLUMNS, KEY
from winkfs.container.read import Content
from winkfs.container.recovery import rebuild
from winkfs.container.reindex import reindex
from winkfs.container.salvage import left_of, served, superblock_for
from winkfs.container.store import Store
from winkfs.container.survey import chained, inode_rows
from winkfs.container.verify import verify
from winkfs.errors import NoSuchFile, NotAllowed, Refusal
from winkfs.names import DERIVED, base_of, inode_key, name_of, to_str

FILLER: Final = b"removed/X"  # key of the dead entry in the place of a damaged range
_COUNT: Final = ("", *(f"-{i}" for i in range(2, 1000)))
PIECE: Final = 1 << 20  # bytes of a damaged range in one entry of the side container


@dataclass
class Repair:
    """What a repair does, or would do.

    steps    a line each; none: nothing is wrong
    lost     names of files whose content is damaged, and which go
    bare     names of files whose attributes are damaged, and which get the default ones
    older    names of files that go back to an older version, and of those that are there again, for
             their last version, or what removed them, was in the part that is missing at the end
    removed  BASE of the container that has what was taken out, "": none was needed
    """

    steps: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    removed: str = ""


def repair(
    base: str | os.PathLike[str], *, apply: bool = False, contid: int | None = None
) -> Repair:
    """Make a damaged container sound.

    apply   do it; else only say what there is to do
    contid  CONTID, where both superblocks are lost and nothing else has it
    raises  NoSuchFile; Locked; FormatError, Refusal (it can only be salvaged); OSError
    cost    three passes over BASE.data, four where there is something to do
    A run that is killed can be run again: files go, by tombstones that are durable, before what
    they point to is filled.
    """
    path, directory, name = _located(base)
    lock = WriterLock(path) if apply else None
    try:
        with contextlib.ExitStack() as opened:
            work = _Repair(path, directory, name, contid, opened)
            done = work.look()
            if lock is not None and done.steps:
                work.keep(done)
        if lock is not None and done.steps:
            work.mend()
            reindex(path, lock=lock)
        return done
    finally:
        if lock is not None:
            lock.release()


def _located(base: str | os.PathLike[str]) -> tuple[str, Directory, str]:
    """-> the path of a container without .data, its directory, its name there. NoSuchFile."""
    path = base_of(base)
    directory, name = locate(path)
    if directory.info(name + ".data", follow=True) is None:
        raise NoSuchFile("no such container (there is no BASE.data)", path)
    return path, directory, name


class _Repair:
    """One run: what is wrong, then the changes, each durable before the next."""

    def __init__(
        self,
        base: str,
        directory: Directory,
        name: str,
        contid: int | None,
        opened: contextlib.ExitStack,
    ) -> None:
        """`opened`: closes what is opened to be looked at."""
        self._base, self._directory, self._name, self._opened = base, directory, name, opened
        self._block, self._guessed = superblock_for(base + ".data", contid)
        if not self._guessed:
            self._block.check_known(base + ".data")
        self._layout = Layout.of(self._block, base + ".data")
        self._ranges: list[DamagedRange] = []
        self._targets: dict[int, bytes] = {}  # position in a range that an inode points to -> key
        self._fillers: set[int] = set()  # positions of entries that may fill a range of before
        self._ends: dict[bytes, tuple[int, bool]] = {}  # name -> last inode, whether just flagged
        self._suspects: set[int] = set()  # inodes that build on others, or of which a part is lost
        self._lost: dict[int, bytes] = {}  # position of an inode -> its key
        self._bare: dict[int, tuple[bytes, Inode]] = {}  # the same of those without attributes
        self._latest = 0  # mtime of the last inode, as stored
        # where intact entries of these are
        self._named: dict[str, list[int]] = {COLUMNS: [], COMPRESS: []}
        self._marked: list[int] = []  # entries of live files that are marked deleted
        self._changed: list[str] = []  # steps: what content is compressed with from now on
        with directory.open(name + ".data") as storage:
            self._size = storage.size()
            self._end = self._size
            if not self._guessed:
                covered = covered_by(base + ".idx", self._settings)
                self._end = end_of(KVSeq(storage, self._block, writable=False), covered)
            self._scan(storage)

    @cached_property
    def _store(self) -> Store:
        """What is looked at: without what lies behind its end, as of a writer that was killed."""
        found = served(self._base + ".data", self._block, self._end)
        return self._opened.enter_context(found).store

    @property
    def _settings(self) -> Settings:
        return Settings.of(self._block, self._base)

    @property
    def _filesize(self) -> int:
        return self._block.get("FILESIZE", self._size)

    def _scan(self, storage: Storage) -> None:
        def damaged(error: CorruptError) -> None:
            if not isinstance(error, DamagedRange) or not self._can_fill(error):
                raise Refusal(f"{error}: it can only be salvaged", self._base)
            self._ranges.append(error)

        start, chains = self._layout.aligned(self._block["SBSIZE"]), False
        try:
            for batch in scan_intact(storage, self._layout, start, self._end, problem=damaged):
                for name, key in ((COLUMNS, KEY), (COMPRESS, COMPRESSION)):
                    self._named[name] += batch.pos[entries_of(batch, key)].tolist()
                self._fillers.update(_fillers(batch))
                if self._guessed:
                    chains = chains or bool(chained(batch).any())
        except CorruptError as error:
            raise Refusal(f"{error}: it can only be salvaged", self._base) from None
        self._set_named()
        if self._guessed:
            if not chains and self._block.pop(INCHAIN, None) is not None:
                self._block["INCOMPAT"] &= ~CHAINS
            make_room(self._block, ())
        if self._ranges and self._ranges[-1].last:
            self._end = self._ranges[-1].offset
        if self._ranges or self._fillers or self._end < self._filesize:
            self._read_inodes(storage, start)

    def _set_named(self) -> None:
        """Have the superblock name the last intact entry that says what content is compressed with,
        where it names none; without a superblock also that of the columns of the user."""
        for name, found in self._named.items():
            at = self._block.get(name, 0)
            damaged = name == COMPRESS and at > 0 and at not in found
            if not (self._guessed or damaged):
                continue
            self._block.pop(name, None)
            if found:
                self._block[name] = found[-1]
            if name == COMPRESS and found:
                self._block["INCOMPAT"] |= COMPRESSED
                for default in LEFT_OUT:  # all variables are to lie in one sector
                    self._block.pop(default, None)
            if damaged:
                now = f"that at byte {found[-1]} counts" if found else "content is stored as it is"
                what = "what content is compressed with is damaged"
                self._changed.append(f"{what}, at byte {at}: {now}")

    def _read_inodes(self, storage: Storage, start: int) -> None:
        """Note what points into the ranges, and names whose last word may be lost.

        Behind the last range nothing is: where only the end is cut off the file is as it was then.
        """
        settings = self._settings
        lost = max((d.stop for d in self._ranges if not d.last), default=0)
        lost = lost if settings.tombstones else self._end
        for _, rows in inode_rows(
            storage, self._layout, settings, start, self._end, problem=lambda _: None
        ):
            for row, (name, pos) in enumerate(zip(rows.names, rows.pos.tolist(), strict=True)):
                tomb = not rows.size[row]
                self._ends[name] = pos, bool(rows.deleted[row]) and not tomb and pos < lost
                self._latest = max(self._latest, int(rows.mtime[row]))
                if tomb:
                    continue
                inode = Inode.decode(rows.value(row), settings.form, file=self._base, offset=pos)
                if inode.nexti or any(map(self._is_lost, inode.pointers)):
                    self._suspects.add(pos)
                for number, pointer in enumerate(inode.pointers):
                    if self._is_damaged(pointer):
                        attrs = inode.attrs is not None and pointer == inode.attrs[0]
                        # A number no longer than the one that was there, for the value needs room.
                        key = attr_key(inode.fileid) if attrs else data_key(inode.fileid, number)
                        self._targets[pointer] = key

    def _is_damaged(self, pointer: int) -> bool:
        at = bisect.bisect_right(self._ranges, pointer, key=lambda d: d.offset) - 1
        return at >= 0 and pointer < self._ranges[at].stop

    def _is_lost(self, pointer: int) -> bool:
        return pointer in self._fillers or self._is_damaged(pointer)

    def _can_fill(self, damage: DamagedRange) -> bool:
        layout = self._layout
        fixed = layout.key.room >= 0 or layout.value.room >= 0 or layout.align > 1
        room = damage.stop - damage.offset - layout.minimum
        return damage.last or (not fixed and bool(layout.checksum) and room >= 0)

    def look(self) -> Repair:
        """What is wrong."""
        found = Repair()
        if self._guessed:
            found.steps.append(f"write both superblocks anew, from {self._guessed}")
        elif self._block.damage is not None:
            found.steps.append(f"write the other superblock anew: {self._block.damage}")
        if self._end > self._filesize:
            more = self._end - self._filesize
            found.steps.append(f"end it {more} bytes later: the superblock has lost a sync")
        if self._filesize > self._size and not self._guessed:
            gone = self._filesize - self._size
            found.steps.append(f"end it where the file ends: its last {gone} bytes are missing")
        for damage in self._ranges:
            size = damage.stop - damage.offset
            what = "cut off" if damage.last else "take out"
            found.steps.append(f"{what} {size} damaged bytes from byte {damage.offset} on")
        if self._guessed or self._filesize > self._size or (self._ranges and self._ranges[-1].last):
            self._find_older(found)
        found.steps += self._changed
        if not self._guessed and self._block.get("SYNCSIZE") == self._block["SBSIZE"] < self._end:
            found.steps.append("count everything anew: a repair or rollback was not finished")
        if self._ranges or self._changed or self._fillers:
            self._find_lost(found)
        self._verify(found)
        return found

    def _verify(self, found: Repair) -> None:
        """What only shows once all is read: counters, marks, what is derived."""
        if self._guessed:
            return
        report = verify(self._base)
        self._marked = [pos for pos in report.marked if pos not in self._fillers]
        if not found.steps:
            found.steps += [f"count and index anew: {problem}" for problem in report.problems]

    def _find_older(self, found: Repair) -> None:
        """Files whose last version was behind the end, by an index that is whole."""
        rows, _ = self._store.index.merged()
        block = {} if self._guessed else self._block
        gone = gone_of(self._base, self._settings, block, rows, self._end)
        if gone is None:
            return
        if len(gone.pos):
            found.steps.append(f"leave out what the index has and is gone: {len(gone.pos)}")
        for pos in [*gone.older.tolist(), *gone.back.tolist()]:
            name = to_str(name_of(self._store.key_at(pos)))
            what = f"have {name} there again: what removed it is gone"
            if pos in gone.older:
                what = f"go back to the version of {name} that is there"
            found.older.append(name)
            found.steps.append(what)

    def _find_lost(self, found: Repair) -> None:
        """Files whose inode is good and of whose content or attributes a part is damaged."""
        store = self._store
        for pos in store.index.positions().tolist():
            if pos not in self._suspects and not self._changed:
                continue
            try:
                key, inode, marked = store.inode_at(pos)
                attrs = {inode.attrs[0]} if inode.attrs else set[int]()
                is_lost = self._is_damaged if marked else self._is_lost
                lost = any(map(is_lost, inode.owned - attrs))
                if self._changed and not lost:  # a dictionary may be gone
                    for pointer in _frames_of(inode):
                        store.value_at(pointer, True)
            except CorruptError:  # one that it builds on is damaged, or what it is made with
                key, lost, attrs = store.key_at(pos), True, set()
            if lost:
                self._lost[pos] = key
            elif any(map(self._is_lost, attrs)):
                self._bare[pos] = key, replace(inode, attrs=None)
        for key in self._lost.values():
            found.lost.append(to_str(name_of(key)))
            found.steps.append(f"remove {found.lost[-1]}, whose content is damaged")
        for key, _ in self._bare.values():
            found.bare.append(to_str(name_of(key)))
            found.steps.append(f"give {found.bare[-1]} the default attributes: its are damaged")

    # --- the changes ---

    def keep(self, done: Repair) -> None:
        """Put what is going to be taken out into a container of its own, durable."""
        replaced = [(name, pos) for name, (pos, flagged) in self._ends.items() if flagged]
        if not (self._ranges or self._lost or replaced):
            return
        done.removed, store, content = _removed(self._base), self._store, Content(self._store)
        with create(done.removed) as kept, self._directory.open(self._name + ".data") as storage:
            for damage in self._ranges:
                for at in range(damage.offset, damage.stop, PIECE):
                    size = min(PIECE, damage.stop - at)
                    kept.put(f"ranges/{at}-{at + size}", storage.read(at, size))
            for pos, key in self._lost.items():
                inode, name = store.inode_left(pos), name_of(key)
                kept.put(b"files/" + name, left_of(store, inode)[0])
                frames = []  # whoever has the dictionary that may be lost still can read them
                for pointer in _frames_of(inode) if self._changed else ():
                    with contextlib.suppress(CorruptError):
                        frames.append(store.entry_at(pointer).value)
                if frames:
                    kept.put(b"frames/" + name, b"".join(frames))
            for name, pos in replaced:  # nobody can tell whether they were deleted or replaced
                with contextlib.suppress(CorruptError):
                    inode = store.inode_at(pos)[1]
                    kept.put(b"replaced/" + name, content.read(inode.extents, 0, inode.lsize))

    def mend(self) -> None:
        """Take out files, end the file behind that, write the superblocks; then fill the ranges."""
        additions = list(self._additions())
        if additions and not self._layout.delflag:
            raise NotAllowed("removing a file needs KVDELFL 1: salvage it", self._base)
        with self._directory.open(self._name + ".data", "w") as storage:
            if self._guessed:  # before the only file goes that may have the CONTID
                write_superblocks(storage, self._block, self._size)
            for suffix in DERIVED:
                self._directory.unlink(self._name + suffix)
            self._directory.sync()
            storage.truncate(self._end)
            at = self._end
            for key, value in additions:
                data = self._layout.encode(at, key, value, deleted=not value)
                storage.write(at, [data])
                at += len(data)
            storage.sync()
            write_superblocks(storage, self._block, at)
            for damage in self._ranges:
                if not damage.last:
                    self._fill_range(storage, damage.offset, damage.stop)
            storage.patch_each(self._marked, b"\0")  # nothing has replaced them
            storage.sync()

    def _additions(self) -> Iterator[tuple[bytes, bytes]]:
        """Tombstones of files that have lost content, or of which only a mark says that they are
        gone, for what removed or replaced them is lost; and inodes without the lost attributes."""
        for key in self._lost.values():
            yield key, b""
        for name, (_, flagged) in self._ends.items():
            if flagged:
                yield inode_key(name), b""
        for key, inode in self._bare.values():
            if self._settings.ao:  # mtimes ascend
                inode = replace(inode, mtime=max(self._latest, inode.mtime))
            yield key, inode.encode(self._settings.form, inode.size)

    def _fill_range(self, storage: Storage, start: int, stop: int) -> None:
        """Dead entries in the place of a range: they verify, and where an inode points to, there
        is one of its own."""
        begins, key = [(start, FILLER)], FILLER
        for pointer in sorted(p for p in self._targets if start <= p < stop):
            key = self._targets[pointer]
            least = self._layout.minimum + len(key)
            if pointer == start:
                begins = [(start, key)]
            elif pointer - begins[-1][0] >= least and stop - pointer >= least:
                begins.append((pointer, key))
        edges = [*(at for at, _ in begins[1:]), stop]
        for (at, key), end in zip(begins, edges, strict=True):
            self._fill(storage, at, end, key)

    def _fill(self, storage: Storage, start: int, stop: int, key: bytes) -> None:
        layout = self._layout
        while start < stop:
            room = min(stop - start, layout.value.limit, 1 << 30)
            if 0 < stop - start - room < layout.minimum:
                room -= layout.minimum
            chosen = key[: max(min(room - layout.minimum, len(key), layout.key.limit), 0)]
            value = bytes(room - layout.size(len(chosen), 0))
            data = layout.encode(start, chosen, value, deleted=True)
            storage.write(start, [data])
            start += len(data)


def _frames_of(inode: Inode) -> list[int]:
    """Positions of the frames of a file, each once."""
    return list(dict.fromkeys(e.pointer for e in inode.extents if e.skip >= FRAME))


def _fillers(batch: Batch) -> Iterator[int]:
    """Positions of the entries of a batch that are marked deleted and hold nothing but zeros: a
    repair of an older version filled a range so before it removed the files with content there."""
    chosen = np.flatnonzero((batch.flags == 1) & (batch.value_len > 0))
    for row in chosen[batch.raw[batch.value[chosen]] == 0].tolist():
        if not batch.whole or is_filler(batch.entry(row)):
            yield int(batch.pos[row])


def _removed(base: str) -> str:
    """A free name beside a container for what is taken out of it."""
    name = f"{base}.removed-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    directory, last = locate(name)
    taken = {entry.removesuffix(".data") for entry in directory.list()}
    return next(name + more for more in _COUNT if last + more not in taken)


def write_superblocks(storage: Storage, block: Superblock, end: int) -> None:
    """Write a superblock that ends the file at `end`, counters to be made right by a reindex."""
    block["FILESIZE"] = end
    if "CONTID" in block:  # nothing that was derived before is believed again, wherever it lies
        make_room(block, [CUTID])
        block[CUTID] = secrets.randbits(62) + 1
        block.note_writer()
    if "SYNCSIZE" in block:
        block["SYNCSIZE"] = block["SBSIZE"]  # unlike FILESIZE: the next writer counts
    block.damage = None
    storage.write(0, block.images()[:1])
    storage.sync()
    write_second(storage, block)
    storage.sync()


# --- rollback ---


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a rollback did, or would do.

    before, after  bytes of BASE.data; names: of the files that were written or removed since
    removed        the file that has the bytes cut off, "": none
    """

    before: int
    after: int
    names: list[str]
    removed: str = ""


def rollback(
    base: str | os.PathLike[str], *, previous: bool = False, dry_run: bool = False
) -> RolledBack:
    """Go back to what the last sync left: to SYNCSIZE.

    previous  to the sync before, if the second superblock still knows it: one that was not
              acknowledged may have written the first
    dry_run   only say what would go
    raises    NoSuchFile; Locked; FormatError (damaged: repair it); Refusal (nothing to go back
              to); OSError
    The bytes cut off are kept beside it. A run that is killed can be run again.
    """
    path, directory, name = _located(base)
    lock = WriterLock(path)
    try:
        with directory.open(name + ".data", "r" if dry_run else "w") as storage:
            done = _Rollback(path, directory, storage, previous).run(dry_run)
        if not dry_run and done.before != done.after:
            reindex(path, lock=lock)
        return done
    finally:
        lock.release()


class _Rollback:
    def __init__(self, base: str, directory: Directory, storage: Storage, previous: bool) -> None:
        self._base, self._directory, self._storage = base, directory, storage
        found = superblocks(storage)
        for block in found:
            block.check_known(storage.name)
        block = max(found, key=lambda b: b.get("SBSEQ", 0))
        end = block.get("FILESIZE", storage.size())
        target = block.get("SYNCSIZE", end)
        if target == block["SBSIZE"]:  # of a repair or rollback that was killed: all is to be kept
            target = end
        if previous:
            block = min(found, key=lambda b: b.get("SBSEQ", 0))
            if block.get("FILESIZE", target) >= target:
                raise Refusal("nothing is known of an earlier sync", base)
            target = block["FILESIZE"]
        self._block, self._target, self._ended = block, target, end == target
        self._layout = Layout.of(block, storage.name)
        self._settings = Settings.of(block, storage.name)

    def run(self, dry_run: bool) -> RolledBack:
        size = self._storage.size()
        if self._target > size:
            raise Refusal("the file is cut short: repair it", self._base)
        names, fileids, last = self._since(size)
        shown = sorted(to_str(name) for name in names)
        if dry_run or (last == self._target == size and self._ended):
            return RolledBack(size, self._target, shown)
        removed = ""
        if last > self._target:
            removed = _removed(self._base)
            self._keep(removed, last)
        self._revive(names, fileids)
        for suffix in DERIVED:
            self._directory.unlink(os.path.basename(self._base) + suffix)
        self._directory.sync()
        self._storage.truncate(self._target)
        self._storage.sync()
        write_superblocks(self._storage, self._block, self._target)
        return RolledBack(size, self._target, shown, removed)

    def _since(self, size: int) -> tuple[set[bytes], set[int], int]:
        """Names and FILEIDs of the inodes behind the target, and where the entries there end."""
        names: set[bytes] = set()
        fileids: set[int] = set()
        last = self._target
        with contextlib.suppress(CorruptError):
            for batch, rows in inode_rows(
                self._storage, self._layout, self._settings, self._target, size, problem=raise_it
            ):
                names.update(rows.names)
                fileids.update(rows.fileid[rows.fileid > 0].tolist())
                last = int(batch.base + batch.end[-1])
        return names, fileids, last

    def _keep(self, path: str, stop: int) -> None:
        directory, name = locate(path)
        with directory.create_new(name, like=self._storage) as kept:
            for at in range(self._target, stop, PIECE):
                data = self._storage.read(at, min(PIECE, stop - at))
                kept.write(at - self._target, [data])
            kept.sync()
        directory.sync()

    def _revive(self, names: set[bytes], fileids: set[int]) -> None:
        """Take delflags back from what only entries behind the target have replaced.

        Those are the last inodes of their names and of their files that are marked deleted though
        no tombstone follows them.
        """
        storage, form = self._storage, self._settings.form
        kv = KVSeq(storage, self._block, writable=False)
        found = rebuild(kv, self._settings, problem=raise_it, stop=self._target, marked=True)
        revived: list[int] = []
        for pos in found.flagged.tolist():
            entry = kv.get(pos)
            inode = Inode.decode(entry.value, form, file=self._base, offset=pos)
            if name_of(entry.key) in names or inode.fileid in fileids:
                revived.append(pos)
                pointers = whole(inode, pos, kv.get, form, self._base).pointers
                storage.patch_each(pointers, b"\0")
        storage.sync()  # before their inodes: a run that was killed goes by these
        storage.patch_each(revived, b"\0")
        storage.sync()
