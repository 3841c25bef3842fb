"""Compact: a container without what was deleted and replaced, in the place of the old one.

Live entries go to a new BASE.data beside the old one, every checksum looked at on the way; it is
synced and takes the old one's name by one rename. Whatever comes in between, the old or the new one
is there, whole. The new one has another CONTID: no derived file of the old one is believed again.

Entries are moved in whole batches, or one by one where their order or layout is another; where
contents are to be compressed, or no more, they are read and written anew.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Int64, UInt8, among
from winkformats.disk.storage import Kind, Lock
from winkformats.errors import CorruptError, DerivedDamage
from winkformats.hashing import xxh3_many
from winkformats.hindex.table import Rows
from winkformats.kv.entry import Layout
from winkformats.kv.scan import Batch, scan
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import HALF, MAX_VARIABLES, SBSIZE, WRITER, Superblock
from winkfs.container.catalog import Catalog, open_catalog, write_whole
from winkfs.container.draft import COMPRESSIBLE, Copier, Target
from winkfs.container.frames import (
    ENOUGH,
    FEWEST,
    SAMPLE,
    SAMPLE_FILES,
    entries_of,
    trained,
)
from winkfs.container.ondisk.compressed import COMPRESS, PIECE, Compression, level_of, zstd
from winkfs.container.ondisk.compressed import KEY as COMPRESSION
from winkfs.container.ondisk.data import (
    CHAINS,
    INCHAIN,
    UNNAMED,
    Settings,
    let_compress,
)
from winkfs.container.ondisk.inode import CK_XXH3, HEAD, Extent, Inode
from winkfs.container.ondisk.typed import COLUMNS
from winkfs.container.read import Content
from winkfs.container.recovery import Rebuilt, known_sums
from winkfs.container.store import Store
from winkfs.container.survey import chained, is_inode
from winkfs.container.table import BY_INODE, POINTER, POS, FileTable
from winkfs.errors import Locked, NotAllowed, Refusal
from winkfs.names import base_of, name_of

Progress = Callable[[int], None]
ORDERS: Final = ("disk", "name")


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did, or would do: bytes of BASE.data before and after, live files."""

    before: int
    after: int
    files: int


def compact(
    base: str | os.PathLike[str],
    *,
    order: str = "disk",
    dry_run: bool = False,
    progress: Progress | None = None,
    compress: str | None = None,
) -> Compacted:
    """Give the space of deleted and replaced files back.

    order     "disk": the files stay in the order they have; "name": byte order of names
    dry_run   only say what it would give; takes no lock
    progress  called with the number of bytes read since the last call
    compress  "zstd", "zstd:LEVEL" or "none": all contents are written anew, compressed so or not
              at all, and new content will be. A dictionary is trained on them where that pays.
              None: they stay as they are
    raises    NoSuchFile; Locked; Refusal (a shard of a data set; damage: repair it first; what
              cannot have compressed content); ValueError;
              OSError (ENOSPC: there must be room for the live files). Nothing has changed then
    cost      one pass over BASE.data, and one write of what lives; leaves the page cache as it was.
              With `compress` each file is read once more, by way of the page cache; also for
              `dry_run`, which compresses all of it
    """
    if order not in ORDERS:
        raise ValueError(f"order is one of {', '.join(ORDERS)}, not {order!r}")
    if compress is not None:
        level_of(compress)  # before anything is opened
    store = Store(base_of(base), writable=not dry_run)
    try:
        _check(store, order)
        compression = _compression(store, compress)
        if dry_run and compression is None:
            return _would_be(store, progress)
        run = _Compaction(store, order, progress, compression)
        return run.foreseen() if dry_run else run.run()
    finally:
        store.abandon()


def _check(store: Store, order: str) -> None:
    """Refuse what must not be compacted, or not without loss."""
    if store.directory.exists("_job"):
        what = "is a shard of a data set, which would not know it again: winkfs dataset compact"
        raise Refusal(what, store.base)
    info = store.directory.info(store.name + ".data")
    if info is not None and info.kind is Kind.LINK:
        what = "BASE.data is a symbolic link, which would be replaced: compact what it leads to"
        raise Refusal(what, store.base)
    if store.settings.ao and order != "disk":
        raise Refusal("is append-only: its order is that of the mtimes", store.base)
    if store.notes:
        raise Refusal(f"is damaged: {store.notes[0]}: repair it first", store.base)


@contextlib.contextmanager
def _sound(store: Store) -> Iterator[None]:
    """Refuse to go on where something is damaged."""
    try:
        yield
    except CorruptError as error:
        raise Refusal(f"is damaged: {error}: repair it first", store.base) from None


def _kept(batch: Batch, live: Int64, compression: int) -> Int64:
    """Indices of the entries of a batch that a compaction keeps.

    live         inodes, ascending
    compression  position of the entry that says what content is compressed with, 0: none
    """
    keep = batch.flags == 0
    if compression:
        old = entries_of(batch, COMPRESSION)
        keep[old] &= batch.pos[old] == compression
    inodes = np.flatnonzero(is_inode(batch))  # a delflag may be wrong
    keep[inodes] = among(batch.pos[inodes], live)
    return np.flatnonzero(keep)


def _kept_in(store: Store, progress: Progress | None) -> Iterator[tuple[Batch, Int64]]:
    """Every batch with the indices of what is kept of it, each of them checked.

    The dead are not: if one of their lengths is wrong, it leads past entries that are counted.
    """
    kv, live = store.kv, store.index.positions()
    entries, files, compression = 0, 0, kv.superblock.get(COMPRESS, 0)
    with _sound(store):
        for batch in scan(kv.storage, kv.layout, kv.start, kv.end, progress=progress):
            kept = _kept(batch, live, compression)
            batch.check(kept)
            entries, files = entries + len(batch), files + int(is_inode(batch)[kept].sum())
            yield batch, kept
        known = known_sums(kv).get("ENTRIES", entries)
        if (entries, files) != (known, len(live)):
            what = f"has {entries} entries and {files} files, not {known} and {len(live)}"
            raise Refusal(f"is damaged, it {what}: repair it first", store.base)


def _would_be(store: Store, progress: Progress | None) -> Compacted:
    size = 0
    for batch, kept in _kept_in(store, progress):
        size += int((batch.end[kept] - batch.at[kept]).sum())
        for pos in batch.pos[kept[chained(batch)[kept]]].tolist():
            inode = store.inode_at(pos)[1]
            size += len(inode.encode(store.settings.form, store.settings.isz)) - inode.size
    return Compacted(store.kv.end, _superblock(store)["SBSIZE"] + size, store.index.count)


def _superblock(store: Store, compression: Compression | None = None) -> Superblock:
    """That of the new file: the same variables, and a second one where they leave room for it.

    compression  of contents that are written anew; None: they are moved as they are
    """
    old = store.kv.superblock
    block = Superblock(old)
    block.pop(UNNAMED, None)
    block.pop(WRITER, None)
    if block.pop(INCHAIN, None) is not None:  # each inode has all of its extents then
        block["INCOMPAT"] &= ~CHAINS
    block.update({"SYNCTIME": max(int(time.time()), old.get("SYNCTIME", 0) + 1)})
    if store.kv.layout.checksum and "SBCKSUM" in old:
        if len(old.keys() - {WRITER}) < MAX_VARIABLES or old.double:
            block |= {"SBSIZE": 2 * HALF, "SBSEQ": 1}
        if "CONTID" in old:
            block["CONTID"] = secrets.randbits(62) + 1
    size = block["SBSIZE"] if block["SBSIZE"] >= SBSIZE else old["SBSIZE"]
    block.update({"FILESIZE": size})
    counters = ("SYNCSIZE", "ENTRIES", "AENTRIES", "ITOTSZ", "DTOTSZ")
    block.update({name: size if name == "SYNCSIZE" else 0 for name in counters if name in old})
    if compression is not None:
        let_compress(block, compressed=compression.level > 0)
    return block.note_writer() if "CONTID" in block else block


class _Places:
    """Where entries were, and where they are now, as runs that moved together."""

    def __init__(self) -> None:
        # Of each call of `add`: first old positions of the runs, their ends, new minus old.
        self._parts: list[tuple[Int64, Int64, Int64]] = []
        self._firsts: list[int] = []

    def add(self, old: Int64, new: Int64, sizes: Int64) -> tuple[Int64, Int64]:
        """Note entries behind those noted before, int64[n] each.

        ->      indices of the first and of the last entry of each run that stays together
        """
        moved = new - old
        first = np.flatnonzero(np.diff(moved, prepend=moved[0] - 1))
        last = np.append(first[1:], len(old)) - 1
        self._parts.append((old[first], old[last] + sizes[last], moved[first]))
        self._firsts.append(int(old[0]))
        return first, last

    def of(self, old: Int64) -> Int64:
        """New positions, int64[n]; -1 for what was not noted."""
        new = np.full(len(old), -1, np.int64)
        part = np.searchsorted(np.array(self._firsts, np.int64), old, "right") - 1
        for k in np.unique(part[part >= 0]).tolist():
            rows = np.flatnonzero(part == k)
            starts, ends, moved = self._parts[k]
            run = np.searchsorted(starts, old[rows], "right") - 1
            new[rows] = np.where(old[rows] < ends[run], old[rows] + moved[run], -1)
        return new


class _OddContainerError(Exception):
    """Its entries are not as our writers order them: they have to be moved one by one."""


# --- contents anew ---


class _Measure:
    """A target of entries that keeps nothing but its size."""

    def __init__(self, layout: Layout, start: int) -> None:
        self._layout, self.end = layout, start

    def append(self, key: bytes, value: bytes) -> int:
        pos = self._layout.aligned(self.end)
        self.end = pos + self._layout.size(len(key), len(value))
        return pos


def _compression(store: Store, compress: str | None) -> Compression | None:
    """What contents are to be compressed with; None: they stay as they are.

    raises  ValueError; NotAllowed where the container cannot have compressed content; Refusal, also
            where the library is missing, or content is damaged
    """
    level = -1 if compress is None else level_of(compress)
    if level < 0 or (not level and not store.settings.compressed):
        return None
    if store.settings.classic:
        raise NotAllowed("a classic container cannot have compressed content", store.base)
    if not store.kv.layout.standard or "INCOMPAT" not in store.kv.superblock:
        what = "is of a variant that cannot have compressed content: pack its files anew"
        raise NotAllowed(what, store.base)
    zstd(store.base)
    if not level:
        return Compression(0)
    with _sound(store):
        samples = list(_samples(store))
    if len(samples) < FEWEST or sum(map(len, samples)) < ENOUGH:
        return Compression(level)  # files that are put later train a dictionary
    return trained(samples, level, store.dtotsz, store.base)


def _samples(store: Store) -> Iterator[bytes]:
    """Contents of some files, anywhere in the container; of large ones the first piece.

    raises  CorruptError
    cost    SAMPLE bytes are read at most
    """
    content, live, left = Content(store), store.index.positions().tolist(), SAMPLE
    # the same container becomes the same one again
    for pos in random.Random(0).sample(live, min(SAMPLE_FILES, len(live))):
        inode = store.inode_at(pos)[1]
        if inode.ftype in COMPRESSIBLE and inode.lsize and left > 0:
            data = content.read(inode.extents, 0, min(PIECE, inode.lsize))
            left -= len(data)
            yield data


# --- the run ---


class _Compaction:
    """One run: an open writer's store, and the file that takes its place.

    compression  of contents that are written anew; None: they are moved as they are
    """

    def __init__(
        self,
        store: Store,
        order: str,
        progress: Progress | None,
        compression: Compression | None,
    ) -> None:
        self._store, self._order, self._progress = store, order, progress
        self._compression = compression
        self._live = store.index.positions()
        self._places = _Places()
        # of the live inodes, where they are moved one by one: where they are now, and the content
        self._inodes = self._contents = np.empty(0, np.int64)
        # inodes that build on others, ascending, and where they are now
        self._chained: list[tuple[int, int]] = []
        self._grown = 0  # bytes that all inodes together are larger
        self._known = compression is None  # whether the old catalog says how the new inodes look
        self._lock: Lock | None = None
        self._named = dict.fromkeys((COLUMNS, COMPRESS), 0)  # entries of the superblock, now

    def _moved(self, old: Int64) -> Int64:
        """New positions of inodes, int64[n]."""
        if not len(self._inodes):
            new = self._places.of(old)
            if self._chained:
                before, now = np.array(self._chained, np.int64).T
                there = np.isin(old, before)
                new[there] = now[np.searchsorted(before, old[there])]
            return new
        return self._inodes[np.searchsorted(self._live, old)]

    def _moved_rows(self, rows: FileTable) -> FileTable:
        """Rows of the catalog with what is in another place now."""
        numbers = rows.numbers.copy()
        plain = np.flatnonzero(numbers[:, POINTER] > 0)
        if len(self._inodes):
            contents = self._contents[np.searchsorted(self._live, rows.pos[plain])]
        else:
            contents = self._places.of(numbers[plain, POINTER])
        numbers[plain, POINTER], numbers[:, POS] = contents, self._moved(rows.pos)
        return rows.with_numbers(numbers)

    def run(self) -> Compacted:
        store, before = self._store, self._store.kv.end
        quick = store.kv.layout.standard and store.settings.ckalgo == CK_XXH3
        moves: list[Callable[[KVSeq], None]] = [self._move_one_by_one]
        if self._compression is not None:
            moves = [self._write_anew]
        elif quick and self._order == "disk":
            moves.insert(0, self._move_batches)
        try:
            for move in moves:
                with contextlib.suppress(_OddContainerError):
                    new = self._replace(move)
                    break
            derived = _Derived.of(store, new, self._moved, self._moved_rows, known=self._known)
        finally:
            if self._lock is not None:
                self._lock.release()
        store.abandon()
        derived.write(store.base)
        return Compacted(before, new.end, len(self._live))

    def foreseen(self) -> Compacted:
        """What `run` would do where contents are written anew."""
        target = _Measure(self._store.kv.layout, _superblock(self._store)["SBSIZE"])
        self._write_anew(target)
        return Compacted(self._store.kv.end, target.end, len(self._live))

    def _replace(self, move: Callable[[KVSeq], None]) -> KVSeq:
        """Make the new file with `move`, and give it the name."""
        store, block = self._store, _superblock(self._store, self._compression)

        def unsure() -> None:
            # After a power cut either the name is good or the old file is back, so it need not be
            # durable; where it cannot be written nobody else will write here either.
            kv.superblock[UNNAMED] = 1
            with contextlib.suppress(OSError, ValueError):
                storage.write(0, kv.superblock.images())

        with store.deriving(".data", uncached=True, unsure=unsure) as storage:
            storage.write(0, block.images())
            self._lock = store.directory.lock(os.path.basename(storage.name))
            if self._lock is None:
                raise Locked("somebody has the new file open", store.base)
            kv = KVSeq(storage, block, writable=True)
            try:
                self._grown = 0
                move(kv)
                store.itotsz += self._grown
                sums = {"ITOTSZ": store.itotsz, "DTOTSZ": store.dtotsz, "NEXTFID": store.nextfid}
                sums |= self._named
                known = {name: value for name, value in sums.items() if name in block}
                kv.sync(known, now=block.get("SYNCTIME"))
            finally:
                kv.release()
        storage.close()
        return kv

    # --- whole batches ---

    def _move_batches(self, kv: KVSeq) -> None:
        for batch, chosen in _kept_in(self._store, self._progress):
            if not len(chosen):
                continue
            if not batch.whole:
                if is_inode(batch).any():
                    raise _OddContainerError
                self._places.add(batch.pos, np.array([kv.end]), batch.end - batch.at)
                entry = batch.entry(0)
                kv.append(entry.key, entry.value)
                continue
            others = chained(batch)[chosen]
            self._chained += [(pos, 0) for pos in batch.pos[chosen[others]].tolist()]
            if not others.all():
                chosen = chosen[~others]
                kv.append_encoded([self._encoded(batch, chosen, kv)], len(chosen))
        self._chained = [(pos, self._move_chained(kv, pos)) for pos, _ in self._chained]
        for name in self._named:
            old = self._store.kv.superblock.get(name, 0)
            self._named[name] = max(int(self._places.of(np.array([old], np.int64))[0]), 0)

    def _move_chained(self, kv: KVSeq, pos: int) -> int:
        """Append an inode with all of its extents, whose entries have been moved -> where it is."""
        key, inode, _ = self._store.inode_at(pos)
        pointers = np.array(inode.pointers, np.int64)
        places = self._places.of(pointers)
        if (places < 0).any():
            raise _OddContainerError
        new = dict(zip(pointers.tolist(), places.tolist(), strict=True))
        return kv.append(key, self._pointing(inode, new))

    def _pointing(self, inode: Inode, new: Mapping[int, int]) -> bytes:
        """The value of an inode whose entries are in other places."""
        extents = [Extent(new.get(e.pointer, 0), e.skip, e.size) for e in inode.extents]
        attrs = (new[inode.attrs[0]], inode.attrs[1]) if inode.attrs else None
        moved = Inode(inode.fileid, inode.lsize, inode.ftype, inode.mtime, extents, attrs)
        value = moved.encode(self._store.settings.form, inode.size)
        self._known &= len(extents) > 1 or not inode.links
        self._grown += len(value) - inode.size
        return value

    def _encoded(self, batch: Batch, chosen: Int64, kv: KVSeq) -> bytearray:
        """The chosen entries as they stand from the end of the new file on."""
        sizes = batch.end[chosen] - batch.at[chosen]
        offsets = np.cumsum(sizes) - sizes
        old, new = batch.pos[chosen], kv.end + offsets
        first, last = self._places.add(old, new, sizes)
        begins, stops = batch.at[chosen[first]].tolist(), batch.end[chosen[last]].tolist()
        data = batch.data
        out = bytearray().join([data[a:b] for a, b in zip(begins, stops, strict=True)])
        inner = is_inode(batch)[chosen]
        if inner.any():
            self._point(out, batch, chosen[inner], offsets[inner])
        with memoryview(out) as view:
            pairs = zip((offsets + 1).tolist(), (offsets + sizes - 4).tolist(), strict=True)
            sums = kv.layout.sums(new, (view[a:b] for a, b in pairs))
            raw = np.frombuffer(out, np.uint8)
            raw[(offsets + sizes - 4)[:, None] + np.arange(4)] = _bytes(sums, ">u4")
            del raw
        return out

    def _point(self, out: bytearray, batch: Batch, chosen: Int64, offsets: Int64) -> None:
        """Let inodes point to where their entries are now, and sum them anew.

        chosen    their indices in the batch; offsets: of the entries in `out`
        """
        form = self._store.settings.form
        raw = np.frombuffer(out, np.uint8)
        values = offsets + batch.value[chosen] - batch.at[chosen]
        counts = batch.words(batch.value[chosen] + 48, 1, ">i8")[:, 0].astype(np.int64)
        ends = values + HEAD.size + counts * form.pair
        where = np.repeat(values + HEAD.size, counts)
        where += (np.arange(len(where)) - np.repeat(np.cumsum(counts) - counts, counts)) * form.pair
        pointers = raw[where[:, None] + np.arange(8)].view(">i8")[:, 0].astype(np.int64)
        there = pointers != 0  # a hole points nowhere
        pointers[there] = self._places.of(pointers[there])
        if (pointers < 0).any():
            raise _OddContainerError
        raw[where[:, None] + np.arange(8)] = _bytes(pointers, ">i8")
        with memoryview(out) as view:
            bodies = (view[a:b] for a, b in zip((values + 8).tolist(), ends.tolist(), strict=True))
            sums = xxh3_many(bodies)
        raw[values[:, None] + np.arange(8)] = _bytes(sums, ">u8")

    # --- one by one ---

    def _move_one_by_one(self, kv: KVSeq) -> None:
        """Any layout, any order: entry by entry."""
        store = self._store
        self._move_others(kv, self._progress)
        self._inodes, self._contents = np.zeros((2, len(self._live)), np.int64)
        for pos in self._in_order():
            key, inode, _ = store.inode_at(pos)
            new = {old: _append(store, kv, old) for old in inode.pointers}
            extents, value = inode.extents, self._pointing(inode, new)
            at = int(np.searchsorted(self._live, pos))
            self._inodes[at] = kv.append(key, value)
            self._contents[at] = new.get(extents[0].pointer, 0) if len(extents) == 1 else BY_INODE

    def _write_anew(self, target: Target) -> None:
        """Any order: file by file, with contents in other entries."""
        store, compression, done, said = self._store, self._compression, 0, 0
        assert compression is not None
        form = Settings.of(_superblock(store, compression), store.base)
        copier = Copier(form, compression, Content(store).read, store.entry_at, store.base)
        with _sound(store):
            if compression.level:
                self._named[COMPRESS] = target.append(COMPRESSION, compression.encode())
            self._move_others(target, None)
            places: list[tuple[int, int]] = []
            files = ((pos, *store.inode_at(pos)[:2]) for pos in self._in_order())
            for old, inode, pos, more in copier.copy(files, target):
                places.append((old, pos))
                self._grown, done = self._grown + more, done + inode.lsize
                if self._progress and done <= store.dtotsz:
                    reached = store.kv.end * done // max(store.dtotsz, 1)
                    self._progress(reached - said)
                    said = reached
        self._inodes = np.array(sorted(places), np.int64).reshape(-1, 2)[:, 1]

    def _move_others(self, target: Target, progress: Progress | None) -> None:
        """Entries that are neither inodes nor parts of files."""
        for batch, chosen in _kept_in(self._store, progress):
            for i in chosen[~is_inode(batch)[chosen]].tolist():
                entry = batch.entry(i)
                if _is_part(entry.key) or (entry.key == COMPRESSION and self._compression):
                    continue
                at = target.append(entry.key, entry.value)
                for name in self._named:
                    if batch.pos[i] == self._store.kv.superblock.get(name):
                        self._named[name] = at

    def _in_order(self) -> Iterator[int]:
        positions = self._live.tolist()
        if self._order == "name":
            keys = {pos: name_of(self._store.key_at(pos)) for pos in positions}
            positions.sort(key=keys.__getitem__)
        return iter(positions)


@dataclass
class _Derived:
    """What the derived files of the new container hold.

    found      None: it has to be read
    catalog    of the old container, open; None: there was none
    moved      its rows -> those of the new one
    packed     what `pack --update` goes by
    stale      the old catalog says other things of the new files
    """

    found: Rebuilt | None
    catalog: Catalog | None
    moved: Callable[[FileTable], FileTable]
    packed: dict[str, int]
    stale: bool

    @classmethod
    def of(
        cls,
        store: Store,
        kv: KVSeq,
        moved: Callable[[Int64], Int64],
        moved_rows: Callable[[FileTable], FileTable],
        *,
        known: bool,
    ) -> Self:
        """Before the old container is closed."""
        found = None
        if not store.settings.ao and store.settings.cellsz <= 2:
            rows, _ = store.index.merged()
            found = Rebuilt(
                Rows(rows.s, rows.bits, moved(rows.pos)), None, store.nextfid, end=kv.end,
                entries=kv.entries, aentries=kv.aentries, itotsz=store.itotsz, dtotsz=store.dtotsz,
            )  # fmt: skip
        packed = store.idx.packed
        if packed and packed["PACKEND"] == store.kv.end:
            packed = packed | {"PACKEND": kv.end}
        else:  # files behind PACKEND are others than those that were packed: they lie anywhere now
            packed = {}
        catalog = open_catalog(store, exactly=True) if known else None
        return cls(found, catalog, moved_rows, packed, not known)

    def write(self, base: str) -> None:
        """Write them. What cannot be written now is made when it is needed."""
        with contextlib.suppress(Locked):  # another writer was faster, and makes them
            store = Store(base, writable=True, load=self.found is None)
            try:
                if self.found is not None:
                    store.idx.packed = self.packed
                    store.take(self.found)
                if self.catalog is not None:
                    self._write_catalog(store, self.catalog)
                elif self.stale:
                    store.catalog.save()
                store.close()
            except BaseException:
                store.abandon()
                raise

    def _write_catalog(self, store: Store, old: Catalog) -> None:
        """The rows of the old one, with new places. One that is damaged is left out, and made anew
        when it is needed."""
        with old, contextlib.suppress(DerivedDamage):
            write_whole(store, map(self.moved, old.rows(list(store.schema)))).close()


def _append(store: Store, target: Target, old: int) -> int:
    entry = store.entry_at(old)
    return target.append(entry.key, entry.value)


def _bytes(numbers: npt.NDArray[np.generic], dtype: str) -> UInt8:
    """-> uint8[n, width]."""
    width = np.dtype(dtype).itemsize
    return np.ascontiguousarray(numbers.astype(dtype)).view(np.uint8).reshape(-1, width)


def _is_part(key: bytes) -> bool:
    """Whether a key is that of content or attributes of some file."""
    return key.rpartition(b"/")[2][:1] in (b"D", b"A")
