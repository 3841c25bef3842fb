"""Repair and rollback of a damaged container.

All that is taken out is kept in a container beside it, BASE.removed-<time>: damaged ranges, as they
are, below `ranges`; the rest of files with damaged content below `files`; if the dictionary of
these is lost, their frames below `frames`; and files that are marked deleted although the entry
that removed or replaced them is lost, below `replaced`.
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
from winkformats.hindex.table import IndexRows
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
_SUFFIXES: Final = ("", *(f"-{i}" for i in range(2, 1000)))
RANGE_BYTES: Final = 1 << 20  # of a damaged range in one file of the side container


@dataclass
class Repair:
    """Result of a repair, or its plan.

    steps    a line each; none: nothing is wrong
    lost     names of files whose content is damaged, which are removed
    bare     names of files whose attributes are damaged, which get the defaults
    older    names of files that return to an older version, or that exist again, because their last
             version or their removal was in the missing end of the file
    removed  BASE of the container with what was taken out, "": none
    """

    steps: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    removed: str = ""


def repair(
    base: str | os.PathLike[str], *, apply: bool = False, contid: int | None = None
) -> Repair:
    """Repair a damaged container.

    apply   repair it; otherwise only report what there is to do
    contid  the CONTID, if both superblocks are lost and no other file has it
    raises  NoSuchFile; Locked; FormatError, Refusal (it can only be salvaged); OSError
    cost    that of a verify, and of a reindex if there is something to do; a further pass over
            BASE.data if entries are damaged, and one if a superblock is reconstructed
    A run that is killed can be repeated: files are removed, by durable tombstones, before the
    ranges that they point to are filled.
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
    """Hold the lock of a container -> its path without .data, and the lock, if `writing`.

    raises  NoSuchFile; Locked
    """
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
    """A run of a repair: finds the faults, then makes the changes, each durable before the next."""

    def __init__(self, base: str, contid: int | None, opened: contextlib.ExitStack) -> None:
        """Check a container. `opened`: closes its files later."""
        self._base = base
        self._block, self._guessed = superblock_for(base + ".data", contid)
        if not self._guessed:
            self._block.check_known(base + ".data")
        self._changed = ""  # the step that replaces a damaged record of the compression
        self._store = store = self._opened(opened)
        self._settings, self._layout = store.settings, store.kv.layout
        self._size, self._end = store.kv.storage.size(), store.kv.end
        # With a reconstructed superblock, derived files and frames prove nothing.
        self._check = Check(store, frames=not (self._guessed or self._changed))
        self._report = self._check.run()
        self._ranges = list(self._damaged())
        if self._ranges and self._ranges[-1].last:
            self._end = self._ranges[-1].offset
        self._lost: dict[int, bytes] = {}  # position of an inode -> its key
        self._bare: list[tuple[bytes, Inode]] = []  # keys and inodes of those without attributes
        self._targets: dict[int, bytes] = {}  # position in a range that an inode points to -> key
        self._replaced: dict[bytes, int] = {}  # name -> its last inode, which is marked deleted
        self._marked: list[int] = []  # entries of live files that are marked deleted

    def _opened(self, opened: contextlib.ExitStack) -> Store:
        """Open the container with the superblock that it is going to have."""
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
        """Have the superblock name the last intact record of the compression, and a reconstructed
        one also that of the columns of the user. `end`: of the entries."""
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
        """Yield the damaged ranges. Raises Refusal for one that dead entries cannot fill."""
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
        """Return which positions are in damaged ranges, bool[n]."""
        starts = np.array([damage.offset for damage in self._ranges], np.int64)
        stops = np.array([-1, *(damage.stop for damage in self._ranges)], np.int64)
        return pointers < stops[np.searchsorted(starts, pointers, "right")]

    def look(self) -> Repair:
        """Find the faults -> the plan."""
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
        """End of the last damaged range that entries follow: a lost entry in it may have removed or
        replaced a file before it."""
        return max((d.stop for d in self._ranges if not d.last), default=0)

    def _live(self) -> IndexRows:
        """Return the live files; before the last range only those that are not marked deleted."""
        found = self._check.found
        marked = found.flagged[found.flagged < self._behind]
        return found.rows.take(~among(found.rows.pos, marked))

    def _find_older(self, found: Repair, rows: IndexRows) -> None:
        """Add files whose last version was after the new end, as an intact index shows."""
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
        """Add files whose inode is intact, but content or attributes are damaged."""
        store, content = self._store, Content(self._store, keep=0)
        if not self._changed:  # otherwise any file may need a dictionary that is lost
            live = live[among(live, np.unique(self._check.extents.doubtful))]
        for pos in live.tolist():
            try:
                key, inode, _ = store.inode_at(pos)
                attrs = inode.attrs[:1] if inode.attrs else ()
                frames = _frames_of(inode) if self._changed else []
                for pointer in inode.owned.difference(attrs):
                    content.value(pos, pointer, 0, pointer in frames)
            except CorruptError:  # of content, of an inode it builds on, or of a dictionary
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
        """Find inodes that point into damaged ranges, and names whose last inode is marked deleted
        while the entry that deleted it may be lost.

        Only inodes before the last range count: no entry after them is lost.
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
                # The number is no longer than the lost one, so that the value fits.
                key = attr_key(fileid) if attrs else data_key(fileid, number)
                self._targets.setdefault(int(pairs[i, 0]), key)
        self._replaced = {name: pos for name, (pos, flagged) in ends.items() if flagged}

    # --- the changes ---

    def keep(self, done: Repair) -> None:
        """Copy all that will be taken out into a container of its own, durably."""
        if not (self._ranges or self._lost or self._replaced):
            return
        done.removed, store, content = _removed(self._base), self._store, Content(self._store)
        with create(done.removed) as kept:
            for damage in self._ranges:
                for at in range(damage.offset, damage.stop, RANGE_BYTES):
                    size = min(RANGE_BYTES, damage.stop - at)
                    kept.put(f"ranges/{at}-{at + size}", store.kv.storage.read(at, size))
            for pos, key in self._lost.items():
                inode, name = store.inode_at(pos, lambda _: None)[1], name_of(key)
                kept.put(b"files/" + name, left_of(store, inode)[0])
                frames = []  # readable with a copy of the dictionary, if there is one
                for pointer in _frames_of(inode) if self._changed else ():
                    with contextlib.suppress(CorruptError):
                        frames.append(store.entry_at(pointer).value)
                if frames:
                    kept.put(b"frames/" + name, b"".join(frames))
            for name, pos in self._replaced.items():  # deleted or replaced: that is not known
                with contextlib.suppress(CorruptError):
                    inode = store.inode_at(pos)[1]
                    kept.put(b"replaced/" + name, content.read(inode.extents, 0, inode.lsize))

    def mend(self) -> None:
        """Append tombstones, end the file after them, write the superblocks, fill the ranges."""
        added, more = list(self._additions()), bytearray()
        if added and not self._layout.delflag:
            raise NotAllowed("removing a file needs KVDELFL 1: salvage it", self._base)
        for key, value in added:
            more += self._layout.encode(self._end + len(more), key, value, deleted=not value)
        with open_file(self._base + ".data", "w") as storage:
            if self._guessed:  # before derived files are removed, which may alone have the CONTID
                write_superblocks(storage, self._block, self._size)
            _end_at(self._base, storage, self._block, self._end, bytes(more))
            for damage in self._ranges:
                if not damage.last:
                    self._fill_range(storage, damage.offset, damage.stop)
            storage.patch_each(self._marked, b"\0")  # nothing has replaced them
            storage.sync()

    def _additions(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield tombstones of files that have lost content, or are marked deleted by a lost entry;
        and inodes without the lost attributes."""
        yield from ((key, b"") for key in self._lost.values())
        yield from ((inode_key(name), b"") for name in self._replaced)
        times = self._check.found.times
        for key, inode in self._bare:
            if times is not None and times.last is not None:  # append-only: mtimes ascend
                inode = replace(inode, mtime=max(times.last, inode.mtime))
            yield key, inode.encode(self._settings.form, inode.size)

    def _fill_range(self, storage: Storage, start: int, stop: int) -> None:
        """Fill a range with valid dead entries; one begins at each position that an inode points
        to."""
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
    """Return the positions of the frames of a file, each once."""
    return list(dict.fromkeys(e.pointer for e in inode.extents if e.skip >= FRAME))


def _end_at(base: str, storage: Storage, block: Superblock, end: int, more: bytes = b"") -> None:
    """End a data file at `end`, with `more` entries there. Derived files are removed before, and
    new superblocks written after that is durable."""
    directory, name = locate(base)
    for suffix in DERIVED:
        directory.unlink(name + suffix)
    directory.sync()
    storage.truncate(end)
    storage.write(end, [more])
    storage.sync()
    write_superblocks(storage, block, end + len(more))


def _removed(base: str) -> str:
    """Return a free name beside a container, for what is taken out of it."""
    name = f"{base}.removed-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    directory, last = locate(name)
    taken = {entry.removesuffix(".data") for entry in directory.list()}
    return next(name + more for more in _SUFFIXES if last + more not in taken)


def write_superblocks(storage: Storage, block: Superblock, end: int) -> None:
    """Write a superblock that ends the file at `end`; a reindex must correct the counters."""
    block["FILESIZE"] = end
    if "CONTID" in block:  # so that older derived files are invalid, also copies elsewhere
        make_room(block, [CUTID])
        block[CUTID] = secrets.randbits(62) + 1
        block.note_writer()
    if "SYNCSIZE" in block:
        block["SYNCSIZE"] = block["SBSIZE"]  # differs from FILESIZE, so that the next writer counts
    block.damage = None
    storage.write(0, block.images()[:1])
    storage.sync()
    write_second(storage, block)
    storage.sync()


# --- rollback ---


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Result of a rollback, or its plan.

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
    """Return a container to the state of the last sync: cut it off at SYNCSIZE.

    previous  return to the sync before that, if the second superblock still records it: a sync that
              was not acknowledged may have written the first
    dry_run   only report what would be removed
    raises    NoSuchFile; Locked; FormatError (damaged: repair it); Refusal (no earlier state);
              OSError
    The bytes cut off are kept beside it. A run that is killed can be repeated.
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
    if target == block["SBSIZE"]:  # a repair or rollback was killed: keep everything
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
    """Return names and FILEIDs of the inodes after the target, and the end of the entries."""
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
    """Copy a range to a new file, durably."""
    directory, name = locate(path)
    with directory.create_new(name, like=storage) as kept:
        for at in range(start, stop, RANGE_BYTES):
            kept.write(at - start, [storage.read(at, min(RANGE_BYTES, stop - at))])
        kept.sync()
    directory.sync()


def _revive(
    storage: Storage, block: Superblock, target: int, names: set[bytes], fileids: set[int]
) -> None:
    """Clear the delflags of entries that only entries after the target have replaced.

    These belong to inodes that are the last of their names and files before the target, and are
    marked deleted without a tombstone.
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
    storage.sync()  # before their inodes, by which a repeated run finds them
    storage.patch_each(revived, b"\0")
    storage.sync()
