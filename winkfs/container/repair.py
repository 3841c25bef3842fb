"""Repair and rollback: a container that a writer refuses, or that has lost something, made sound.

What is taken out is kept in a container beside it, BASE.removed-<time>: damaged ranges as they lay,
below `ranges`; what is left of files whose content is damaged, below `files`, and where the
dictionary is lost that they were compressed with, their frames below `frames`; and files of which
only a mark says that they are gone, for what removed or replaced them is lost, below `replaced`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from winkformats.arrays import Bools, Int64, among
from winkformats.disk.paths import locate, open_file
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError, DamagedRange, raise_it
from winkformats.hindex.table import Rows
from winkformats.kv.entry import Layout
from winkformats.kv.scan import scan_intact
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import Superblock, superblocks, write_second
from winkfs.container.container import create
from winkfs.container.frames import entries_of
from winkfs.container.gone import gone_of
from winkfs.container.ondisk.chain import whole
from winkfs.container.ondisk.compressed import COMPRESS, COMPRESSED
from winkfs.container.ondisk.compressed import KEY as COMPRESSION
from winkfs.container.ondisk.data import CHAINS, CUTID, INCHAIN, LEFT_OUT, Settings, make_room
from winkfs.container.ondisk.inode import FRAME, Inode, attr_key, data_key, is_filler
from winkfs.container.ondisk.lock import WriterLock
from winkfs.container.ondisk.typed import COLUMNS, KEY
from winkfs.container.read import Content
from winkfs.container.recovery import rebuild
from winkfs.container.reindex import reindex
from winkfs.container.salvage import left_of, served, superblock_for
from winkfs.container.store import Store
from winkfs.container.survey import chained, inode_rows
from winkfs.container.verify import Check
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
    cost    that of a verify, and of a reindex where there is something to do; one pass more over
            BASE.data where entries are damaged, and one where a superblock is made up
    A run that is killed can be run again: files go, by tombstones that are durable, before what
    they point to is filled.
    """
    with _held(base, writing=apply) as (path, lock):
        with contextlib.ExitStack() as opened:
            work = _Repair(path, contid, opened)
            done = work.look()
            if lock is not None and done.steps:
                work.keep(done)
        if lock is not None and done.steps:
            work.mend()
            reindex(path, lock=lock)
        return done


@contextlib.contextmanager
def _held(
    base: str | os.PathLike[str], *, writing: bool = True
) -> Iterator[tuple[str, WriterLock | None]]:
    """The path of a container without .data, and its lock. Raises NoSuchFile; Locked."""
    path = base_of(base)
    directory, name = locate(path)
    if directory.info(name + ".data", follow=True) is None:
        raise NoSuchFile("no such container (there is no BASE.data)", path)
    lock = WriterLock(path) if writing else None
    try:
        yield path, lock
    finally:
        if lock is not None:
            lock.release()


class _Repair:
    """One run: what is wrong, then the changes, each durable before the next."""

    def __init__(self, base: str, contid: int | None, opened: contextlib.ExitStack) -> None:
        """`opened`: closes what is opened to be looked at."""
        self._base = base
        self._block, self._guessed = superblock_for(base + ".data", contid)
        if not self._guessed:
            self._block.check_known(base + ".data")
        self._changed = ""  # a step: what content is compressed with from now on
        self._store = store = self._opened(opened)
        self._settings, self._layout = store.settings, store.kv.layout
        self._size, self._end = store.kv.storage.size(), store.kv.end
        # Under a superblock that is made up derived files and frames prove nothing.
        self._check = Check(store, frames=not (self._guessed or self._changed))
        self._report = self._check.run()
        self._ranges = list(self._damaged())
        if self._ranges and self._ranges[-1].last:
            self._end = self._ranges[-1].offset
        self._lost: dict[int, bytes] = {}  # position of an inode -> its key
        self._bare: list[tuple[bytes, Inode]] = []  # keys and inodes of those without attributes
        self._targets: dict[int, bytes] = {}  # position in a range that an inode points to -> key
        self._replaced: dict[bytes, int] = {}  # name -> its last inode, which is just flagged
        self._marked: list[int] = []  # entries of live files that are marked deleted

    def _opened(self, opened: contextlib.ExitStack) -> Store:
        """What is looked at, by the superblock that it is going to have."""
        end = None
        if not self._guessed:
            store = opened.enter_context(Store(self._base, writable=False, load=False))
            at, end = self._block.get(COMPRESS, 0), store.kv.end
            if not at or (store.key_at(at) == COMPRESSION and not store.is_bad(at)):
                return store
        self._name_entries(end)
        path = self._base + ".data"
        return opened.enter_context(served(path, self._block, end, mapped=True))

    def _name_entries(self, end: int | None) -> None:
        """Have the superblock name the last intact record of what content is compressed with; one
        that is made up also that of the columns of the user. `end`: of the entries."""
        block, chains, last = self._block, False, {COLUMNS: 0, COMPRESS: 0}
        layout = Layout.of(block, self._base)
        with open_file(self._base + ".data") as storage, contextlib.suppress(CorruptError):
            start = layout.aligned(block["SBSIZE"])
            stop = storage.size() if end is None else end
            for batch in scan_intact(storage, layout, start, stop, problem=lambda _: None):
                for name, key in ((COLUMNS, KEY), (COMPRESS, COMPRESSION)):
                    last[name] = max([last[name], *batch.pos[entries_of(batch, key)].tolist()])
                chains = chains or bool(chained(batch).any())
        was = block.get(COMPRESS)
        for name in last if self._guessed else (COMPRESS,):
            block.pop(name, None)
            if last[name]:
                block[name] = last[name]
        if last[COMPRESS]:
            block["INCOMPAT"] |= COMPRESSED
            for default in LEFT_OUT:  # all variables are to lie in one sector
                block.pop(default, None)
        if not self._guessed:
            at = last[COMPRESS]
            now = f"that at byte {at} counts" if at else "content is stored as it is"
            self._changed = f"what content is compressed with is damaged, at byte {was}: {now}"
            return
        if not chains and block.pop(INCHAIN, None) is not None:
            block["INCOMPAT"] &= ~CHAINS
        make_room(block, ())

    def _damaged(self) -> Iterator[DamagedRange]:
        """The ranges in whose places dead entries can be. Raises Refusal for one where none can."""
        layout = self._layout
        fixed = layout.key.room >= 0 or layout.value.room >= 0 or layout.align > 1
        least = sys.maxsize if fixed or not layout.checksum else layout.minimum
        for error in self._check.broken:
            if isinstance(error, DamagedRange) and (
                error.last or error.stop - error.offset >= least
            ):
                yield error
            else:
                raise Refusal(f"{error}: it can only be salvaged", self._base)

    def _damaged_at(self, pointers: Int64) -> Bools:
        """Which lie in the ranges, bool[n]."""
        starts = np.array([damage.offset for damage in self._ranges], np.int64)
        stops = np.array([-1, *(damage.stop for damage in self._ranges)], np.int64)
        return pointers < stops[np.searchsorted(starts, pointers, "right")]

    def look(self) -> Repair:
        """What is wrong."""
        found, known = Repair(), self._block.get("FILESIZE", self._size)
        if self._guessed:
            found.steps.append(f"write both superblocks anew, from {self._guessed}")
        elif self._block.damage is not None:
            found.steps.append(f"write the other superblock anew: {self._block.damage}")
        if self._end > known:
            more = self._end - known
            found.steps.append(f"end it {more} bytes later: the superblock has lost a sync")
        if known > self._size and not self._guessed:
            gone = known - self._size
            found.steps.append(f"end it where the file ends: its last {gone} bytes are missing")
        for damage in self._ranges:
            size = damage.stop - damage.offset
            what = "cut off" if damage.last else "take out"
            found.steps.append(f"{what} {size} damaged bytes from byte {damage.offset} on")
        rows = self._live()
        if self._guessed or known > self._size or (self._ranges and self._ranges[-1].last):
            self._find_older(found, rows)
        if self._changed:
            found.steps.append(self._changed)
        if not self._guessed and self._block.get("SYNCSIZE") == self._block["SBSIZE"] < self._end:
            found.steps.append("count everything anew: a repair or rollback was not finished")
        self._find_lost(found, rows.pos)
        if self._ranges or self._lost or self._bare or self._end < known:
            self._read_inodes()
        if not self._guessed:
            entry_at = self._store.entry_at
            self._marked = [p for p in self._report.marked if not is_filler(entry_at(p))]
        if not found.steps:
            problems = self._report.problems
            found.steps += [f"count and index anew: {problem}" for problem in problems]
        return found

    @property
    def _behind(self) -> int:
        """Where the last range ends that entries follow: something that is lost there may have
        removed or replaced a file that stands before it."""
        return max((d.stop for d in self._ranges if not d.last), default=0)

    def _live(self) -> Rows:
        """The live files; before the last range only those that are not marked deleted."""
        found = self._check.found
        marked = found.flagged[found.flagged < self._behind]
        return found.rows.take(~among(found.rows.pos, marked))

    def _find_older(self, found: Repair, rows: Rows) -> None:
        """Files whose last version was behind the end, by an index that is whole."""
        block = {} if self._guessed else self._block
        gone = gone_of(self._base, self._settings, block, rows, self._end)
        if gone is None:
            return
        if len(gone.pos):
            found.steps.append(f"leave out what the index has and is gone: {len(gone.pos)}")
        for positions, step in (
            (gone.older, "go back to the version of {} that is there"),
            (gone.back, "have {} there again: what removed it is gone"),
        ):
            for key in map(self._store.key_at, positions.tolist()):
                found.older.append(to_str(name_of(key)))
                found.steps.append(step.format(found.older[-1]))

    def _find_lost(self, found: Repair, live: Int64) -> None:
        """Files whose inode is good and of whose content or attributes a part is damaged."""
        store, content = self._store, Content(self._store, keep=0)
        if not self._changed:  # else each may be of a dictionary that is gone
            live = live[among(live, np.unique(self._check.extents.doubtful))]
        for pos in live.tolist():
            try:
                key, inode, _ = store.inode_at(pos)
                attrs = inode.attrs[:1] if inode.attrs else ()
                frames = _frames_of(inode) if self._changed else []
                for pointer in inode.owned.difference(attrs):
                    content.value(pos, pointer, 0, pointer in frames)
            except CorruptError:  # also one that it builds on, or what it is made with
                self._lost[pos] = store.key_at(pos)
                continue
            try:
                for pointer in attrs:
                    content.value(pos, pointer, 0, False)
            except CorruptError:
                self._bare.append((key, replace(inode, attrs=None)))
        found.lost = [to_str(name_of(key)) for key in self._lost.values()]
        found.steps += [f"remove {name}, whose content is damaged" for name in found.lost]
        found.bare = [to_str(name_of(key)) for key, _ in self._bare]
        what = "the default attributes: its are damaged"
        found.steps += [f"give {name} {what}" for name in found.bare]

    def _read_inodes(self) -> None:
        """Note what points into the ranges, and names whose last word may be lost.

        Behind the last range nothing is: where only the end is cut off the file is as it was then.
        """
        kv, settings, ends = self._store.kv, self._settings, dict[bytes, tuple[int, bool]]()
        lost = self._behind if settings.tombstones else self._end
        for _, rows in inode_rows(
            kv.storage, kv.layout, settings, kv.start, self._end, problem=lambda _: None
        ):
            flagged = rows.deleted & (rows.size > 0) & (rows.pos < lost)
            last = zip(rows.pos.tolist(), flagged.tolist(), strict=True)
            ends.update(zip(rows.names, last, strict=True))
            row, pairs = rows.pairs
            first = np.searchsorted(row, row)
            for i in np.flatnonzero(self._damaged_at(pairs[:, 0])).tolist():
                fileid, number = int(rows.fileid[row[i]]), i - int(first[i])
                attrs = number == 0 and pairs[i, 2] < 0
                # A number no longer than the one that was there, for the value needs room.
                key = attr_key(fileid) if attrs else data_key(fileid, number)
                self._targets.setdefault(int(pairs[i, 0]), key)
        self._replaced = {name: pos for name, (pos, flagged) in ends.items() if flagged}

    # --- the changes ---

    def keep(self, done: Repair) -> None:
        """Put what is going to be taken out into a container of its own, durable."""
        if not (self._ranges or self._lost or self._replaced):
            return
        done.removed, store, content = _removed(self._base), self._store, Content(self._store)
        with create(done.removed) as kept:
            for damage in self._ranges:
                for at in range(damage.offset, damage.stop, PIECE):
                    size = min(PIECE, damage.stop - at)
                    kept.put(f"ranges/{at}-{at + size}", store.kv.storage.read(at, size))
            for pos, key in self._lost.items():
                inode, name = store.inode_at(pos, lambda _: None)[1], name_of(key)
                kept.put(b"files/" + name, left_of(store, inode)[0])
                frames = []  # a copy of the dictionary that may be lost can still read them
                for pointer in _frames_of(inode) if self._changed else ():
                    with contextlib.suppress(CorruptError):
                        frames.append(store.entry_at(pointer).value)
                if frames:
                    kept.put(b"frames/" + name, b"".join(frames))
            for name, pos in self._replaced.items():  # deleted or replaced: it is not known
                with contextlib.suppress(CorruptError):
                    inode = store.inode_at(pos)[1]
                    kept.put(b"replaced/" + name, content.read(inode.extents, 0, inode.lsize))

    def mend(self) -> None:
        """Take out files, end the file behind that, write the superblocks; then fill the ranges."""
        added, more = list(self._additions()), bytearray()
        if added and not self._layout.delflag:
            raise NotAllowed("removing a file needs KVDELFL 1: salvage it", self._base)
        for key, value in added:
            more += self._layout.encode(self._end + len(more), key, value, deleted=not value)
        with open_file(self._base + ".data", "w") as storage:
            if self._guessed:  # before the only file goes that may have the CONTID
                write_superblocks(storage, self._block, self._size)
            _end_at(self._base, storage, self._block, self._end, bytes(more))
            for damage in self._ranges:
                if not damage.last:
                    self._fill_range(storage, damage.offset, damage.stop)
            storage.patch_each(self._marked, b"\0")  # nothing has replaced them
            storage.sync()

    def _additions(self) -> Iterator[tuple[bytes, bytes]]:
        """Tombstones of files that have lost content, or of which only a mark says that they are
        gone, for what removed or replaced them is lost; and inodes without the lost attributes."""
        yield from ((key, b"") for key in self._lost.values())
        yield from ((inode_key(name), b"") for name in self._replaced)
        times = self._check.found.times
        for key, inode in self._bare:
            if times is not None and times.last is not None:  # append-only: mtimes ascend
                inode = replace(inode, mtime=max(times.last, inode.mtime))
            yield key, inode.encode(self._settings.form, inode.size)

    def _fill_range(self, storage: Storage, start: int, stop: int) -> None:
        """Dead entries in the place of a range: they verify, and where an inode points to, there
        is one of its own."""
        layout, targets = self._layout, self._targets
        step = min(layout.value.limit, 1 << 30) // 2
        edges = {p for p in targets if start < p < stop}.union(range(start + step, stop, step))
        for edge in [*sorted(edges), stop]:
            least, room = layout.minimum + len(targets.get(edge, b"")), edge - start
            if edge == stop or room >= least <= stop - edge:
                key = targets.get(start, FILLER)
                key = key[: max(min(room - layout.minimum, layout.key.limit), 0)]
                value = bytes(room - layout.size(len(key), 0))
                storage.write(start, [layout.encode(start, key, value, deleted=True)])
                start = edge


def _frames_of(inode: Inode) -> list[int]:
    """Positions of the frames of a file, each once."""
    return list(dict.fromkeys(e.pointer for e in inode.extents if e.skip >= FRAME))


def _end_at(base: str, storage: Storage, block: Superblock, end: int, more: bytes = b"") -> None:
    """End a data file at `end`, with `more` entries there: without derived files before, and with
    new superblocks after that is durable."""
    directory, name = locate(base)
    for suffix in DERIVED:
        directory.unlink(name + suffix)
    directory.sync()
    storage.truncate(end)
    storage.write(end, [more])
    storage.sync()
    write_superblocks(storage, block, end + len(more))


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
    with _held(base) as (path, lock):
        with open_file(path + ".data", "r" if dry_run else "w") as storage:
            done = _rolled_back(path, storage, previous, dry_run)
        if not dry_run and done.before != done.after:
            reindex(path, lock=lock)
        return done


def _rolled_back(base: str, storage: Storage, previous: bool, dry_run: bool) -> RolledBack:
    found = superblocks(storage)
    for block in found:
        block.check_known(storage.name)
    found.sort(key=lambda block: block.get("SBSEQ", 0), reverse=True)
    block, size = found[0], storage.size()
    end = block.get("FILESIZE", size)
    target = block.get("SYNCSIZE", end)
    if target == block["SBSIZE"]:  # of a repair or rollback that was killed: all is to be kept
        target = end
    if previous:
        block = found[-1]
        if block.get("FILESIZE", target) >= target:
            raise Refusal("nothing is known of an earlier sync", base)
        target = block["FILESIZE"]
    if target > size:
        raise Refusal("the file is cut short: repair it", base)
    names, fileids, last = _since(storage, block, target)
    shown, removed = sorted(map(to_str, names)), ""
    if dry_run or last == target == size == end:
        return RolledBack(size, target, shown)
    if last > target:
        removed = _removed(base)
        _keep(storage, removed, target, last)
    _revive(storage, block, target, names, fileids)
    _end_at(base, storage, block, target)
    return RolledBack(size, target, shown, removed)


def _since(storage: Storage, block: Superblock, target: int) -> tuple[set[bytes], set[int], int]:
    """Names and FILEIDs of the inodes behind the target, and where the entries there end."""
    names, fileids, last = set[bytes](), set[int](), target
    layout, settings = Layout.of(block, storage.name), Settings.of(block, storage.name)
    with contextlib.suppress(CorruptError):
        for batch, rows in inode_rows(
            storage, layout, settings, target, storage.size(), problem=raise_it
        ):
            names.update(rows.names)
            fileids.update(rows.fileid[rows.fileid > 0].tolist())
            last = int(batch.base + batch.end[-1])
    return names, fileids, last


def _keep(storage: Storage, path: str, start: int, stop: int) -> None:
    """Copy a range to a new file, durable."""
    directory, name = locate(path)
    with directory.create_new(name, like=storage) as kept:
        for at in range(start, stop, PIECE):
            kept.write(at - start, [storage.read(at, min(PIECE, stop - at))])
        kept.sync()
    directory.sync()


def _revive(
    storage: Storage, block: Superblock, target: int, names: set[bytes], fileids: set[int]
) -> None:
    """Take delflags back from what only entries behind the target have replaced.

    Those are the last inodes of their names and of their files that are marked deleted though no
    tombstone follows them.
    """
    settings, kv = Settings.of(block, storage.name), KVSeq(storage, block, writable=False)
    found, revived = rebuild(kv, settings, problem=raise_it, stop=target, marked=True), list[int]()
    for pos in found.flagged.tolist():
        entry = kv.get(pos)
        inode = Inode.decode(entry.value, settings.form, file=storage.name, offset=pos)
        if name_of(entry.key) in names or inode.fileid in fileids:
            revived.append(pos)
            pointers = whole(inode, pos, kv.get, settings.form, storage.name).pointers
            storage.patch_each(pointers, b"\0")
    storage.sync()  # before their inodes: a run that was killed goes by these
    storage.patch_each(revived, b"\0")
    storage.sync()
