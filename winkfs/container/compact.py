"""Compact: replaces a container by one without deleted and replaced entries.

Each entry that moves is verified. Entries keep their keys and values, except inodes, which get the
new positions of their entries; or contents are written as new entries, see `copier.fill`.

A compaction moves live entries to a new BASE.data beside the old one, syncs it, and renames it over
the old one. If it is interrupted, either the old or the new file is there, complete. The new one
has a different CONTID, so derived files of the old one are invalid.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Final

import numpy as np

from winkformats.arrays import Int64, among, number_bytes
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.storage import Buffer, FileType
from winkformats.errors import CorruptError, DerivedDamage, raise_it
from winkformats.hashing import xxh3_at
from winkformats.hindex.table import IndexRows
from winkformats.kv.scan import Batch, scan
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import HALF, MAX_VARIABLES, WRITER, Superblock
from winkfs.container.catalog import open_catalog, write_whole
from winkfs.container.copier import fill
from winkfs.container.draft import COMPRESSIBLE, Draft, DraftWriter, is_usual
from winkfs.container.frames import (
    ENOUGH_BYTES,
    MIN_SAMPLE_FILES,
    SAMPLE_BYTES,
    SAMPLE_FILES,
    Compressor,
    entries_of,
    trained,
)
from winkfs.container.ondisk.compressed import (
    COMPRESS,
    FRAME_CONTENT_BYTES,
    Compression,
    level_of,
    zstd,
)
from winkfs.container.ondisk.compressed import KEY as COMPRESSION
from winkfs.container.ondisk.data import CHAINS, INCHAIN, UNNAMED, Settings, let_compress
from winkfs.container.ondisk.inode import (
    HEAD,
    Extent,
    Inode,
)
from winkfs.container.ondisk.typed import COLUMNS
from winkfs.container.read import Content
from winkfs.container.recovery import Rebuilt, known_sums
from winkfs.container.store import Store
from winkfs.container.survey import chained, is_inode, rows_of
from winkfs.container.table import POINTER, POS, FileTable
from winkfs.errors import Locked, NotAllowed, Refusal
from winkfs.names import base_of, name_of

ORDERS: Final = ("disk", "name")
COMPRESSED_TOGETHER: Final = 4 << 20  # bytes of content that are compressed together
Progress = Callable[[int], None]


class Places:
    """A map from old to new positions of entries, in runs that moved together."""

    def __init__(self) -> None:
        # Of each run its first old position, its old end, and new minus old; in order of old
        # positions unless `_mixed`. The first run is empty.
        self._runs = array("q", [0]), array("q", [0]), array("q", [0])
        self._mixed = False

    def add(self, old: Int64, new: Int64, sizes: Int64) -> tuple[Int64, Int64]:
        """Add entries whose old positions follow all earlier ones, int64[n] each.

        ->      indices of the first and of the last entry of each run that stays together
        """
        moved = new - old
        first = np.flatnonzero(np.diff(moved, prepend=moved[0] - 1))
        last = np.append(first[1:], len(old)) - 1
        runs = old[first], old[last] + sizes[last], moved[first]
        for column, numbers in zip(self._runs, runs, strict=True):
            column.frombytes(numbers.tobytes())
        return first, last

    def note(self, places: Iterable[tuple[int, int]]) -> None:
        """Add entries one by one, in any order: (old, new) position each."""
        starts, ends, moved = self._runs
        for old, new in places:
            starts.append(old)
            ends.append(old + 1)
            moved.append(new - old)
        self._mixed = True

    def of(self, old: Int64) -> Int64:
        """Return new positions, int64[n]; -1 for an entry that was not added."""
        if self._mixed:
            order = np.argsort(np.frombuffer(self._runs[0], np.int64))
            sort = [np.frombuffer(column, np.int64)[order].tobytes() for column in self._runs]
            self._runs = array("q", sort[0]), array("q", sort[1]), array("q", sort[2])
            self._mixed = False
        starts, ends, moved = (np.frombuffer(column, np.int64) for column in self._runs)
        at = np.searchsorted(starts, old, "right") - 1
        return np.where((starts[at] <= old) & (old < ends[at]), old + moved[at], -1)


@contextlib.contextmanager
def sound(store: Store) -> Iterator[None]:
    """Raise Refusal for damage that the block meets."""
    try:
        yield
    except CorruptError as error:
        raise Refusal(f"is damaged: {error}: repair it first", store.base) from None


def kept_in(store: Store, progress: Progress | None) -> Iterator[tuple[Batch, Int64]]:
    """Yield every batch with the indices of the entries that are kept, which are verified: live
    inodes, and all others that are not marked deleted, except old records of the compression.

    Dead entries are not verified: a wrong length of one is found by the count of entries. Raises
    Refusal for damage.
    """
    kv, live = store.kv, store.index.positions()
    entries, files, compression = 0, 0, kv.superblock.get(COMPRESS, 0)
    for batch in scan(kv.storage, kv.layout, kv.start, kv.end, progress=progress):
        keep = batch.flags == 0
        if compression:
            old = entries_of(batch, COMPRESSION)
            keep[old] &= batch.pos[old] == compression
        inodes = np.flatnonzero(is_inode(batch))  # a delflag may be wrong
        keep[inodes] = among(batch.pos[inodes], live)
        kept = np.flatnonzero(keep)
        batch.check(kept)
        entries, files = entries + len(batch), files + int(keep[inodes].sum())
        yield batch, kept
    known = known_sums(kv).get("ENTRIES", entries)
    if (entries, files) != (known, len(live)):
        what = f"has {entries} entries and {files} files, not {known} and {len(live)}"
        raise Refusal(f"is damaged, it {what}: repair it first", store.base)


class OutOfOrderError(Exception):
    """Moving whole batches would break the order of mtimes in an append-only container."""


class Rewrite:
    """Moves the live entries of a container to the end of another file.

    places  old and new positions of moved entries
    grown   bytes by which all inodes together have grown
    known   whether the rows of the old catalog are right for the new inodes, except positions
    compress_at  position of the record of the new compression, 0: contents are moved as they are
    """

    def __init__(self, store: Store, target: KVSeq, progress: Progress | None) -> None:
        self._store, self._target, self._progress = store, target, progress
        self._settings = Settings.of(target.superblock, store.base)
        self.places, self.grown, self.known = Places(), 0, True
        self.compress_at = 0

    # --- whole batches ---

    def batches(self) -> None:
        """Move entries in the order of the file, a batch at a time, in the usual layout.

        Inodes that build on others, or precede an entry that they point to, are moved last; in an
        append-only container they raise OutOfOrderError.
        """
        later: list[int] = []
        for batch, chosen in kept_in(self._store, self._progress):
            odd = self._odd(batch, chosen)
            if len(odd) and self._settings.ao:
                raise OutOfOrderError
            later += batch.pos[odd].tolist()
            chosen = np.setdiff1d(chosen, odd, assume_unique=True)
            if not len(chosen):
                continue
            if batch.whole:
                self._append_all(batch, chosen)
            else:
                new = np.array([self._append(int(batch.pos[0]))])
                self.places.add(batch.pos, new, batch.end - batch.at)
        self.places.note([place for pos in later for place in self._moved(pos, placed=True)])

    def _odd(self, batch: Batch, chosen: Int64) -> Int64:
        """Return the indices of the inodes among the chosen entries that must be moved last."""
        if not batch.whole:
            return chosen[is_inode(batch)[chosen]]
        rows = rows_of(batch, self._store.settings, lambda _: None, checked=True)
        row, pairs = rows.pairs
        old = pairs[:, 0]
        there = (old == 0) | among(old, batch.pos[chosen]) | (self.places.of(old) >= 0)
        odd = rows.fields[:, 1] != 0
        odd[row[~there]] = True
        return np.intersect1d(rows.which[odd], chosen, assume_unique=True)

    def _append_all(self, batch: Batch, chosen: Int64) -> None:
        """Append these entries, with new pointers in inodes, and new checksums."""
        kv, form = self._target, self._settings.form
        sizes = batch.end[chosen] - batch.at[chosen]
        offsets = np.cumsum(sizes) - sizes
        first, last = self.places.add(batch.pos[chosen], kv.end + offsets, sizes)
        begins, stops = batch.at[chosen[first]].tolist(), batch.end[chosen[last]].tolist()
        runs = [batch.data[a:b] for a, b in zip(begins, stops, strict=True)]
        data = memoryview(bytearray().join(runs))
        made = Batch(kv.storage, kv.layout, kv.end, data, offsets)
        rows = rows_of(made, self._settings, raise_it, checked=True)
        _, where = rows.places
        pointers = made.words(where, 1, ">i8")[:, 0].astype(np.int64)
        there = pointers != 0  # a hole points nowhere
        pointers[there] = self.places.of(pointers[there])
        made.raw[where[:, None] + np.arange(8)] = number_bytes(pointers, ">i8")
        start = made.value[rows.which]
        stop = start + HEAD.size + rows.fields[:, 6] * form.pair
        made.raw[start[:, None] + np.arange(8)] = number_bytes(
            xxh3_at(data, start + 8, stop), ">u8"
        )
        stop = made.end - 4
        sums = kv.layout.sums_at(made.pos, data, made.at + 1, stop)
        made.raw[stop[:, None] + np.arange(4)] = number_bytes(sums, ">u4")
        kv.append_encoded([data], len(chosen))

    # --- file by file ---

    def files(self, positions: Iterable[int]) -> None:
        """Move files one by one, in any layout and order. `positions`: of the live inodes."""
        self._others(self._progress)
        for pos in positions:
            self.places.note(self._moved(pos))

    def _moved(self, pos: int, *, placed: bool = False) -> list[tuple[int, int]]:
        """Append a file -> (old, new) position of each entry.

        placed  leave out entries that were moved already
        """
        key, inode, _ = self._store.inode_at(pos)
        new = dict.fromkeys(inode.pointers, -1)
        if placed:
            new = dict(zip(new, self.places.of(np.array([*new], np.int64)).tolist(), strict=True))
        more = {old: self._append(old) for old, at in new.items() if at < 0}
        new |= more
        extents = [Extent(new.get(e.pointer, 0), e.skip, e.size) for e in inode.extents]
        attrs = (new[inode.attrs[0]], inode.attrs[1]) if inode.attrs else None
        self.known &= len(extents) > 1 or not inode.links
        made = replace(inode, extents=extents, attrs=attrs)
        return [*more.items(), (pos, self._inode(key, made, inode.size, inode))]

    def _append(self, old: int) -> int:
        entry = self._store.entry_at(old)
        return self._target.append(entry.key, entry.value)

    def _inode(self, key: bytes, made: Inode, least: int, old: Inode) -> int:
        """Append an inode, of `least` bytes at least, that replaces `old` -> its position."""
        value = made.encode(self._settings.form, least)
        self.grown += len(value) - old.size
        return self._target.append(key, value)

    def _others(self, progress: Progress | None, *, anew: bool = False) -> None:
        """Move entries that are neither inodes nor parts of files. `anew`: except the record of the
        compression."""
        for batch, chosen in kept_in(self._store, progress):
            for i in chosen[~is_inode(batch)[chosen]].tolist():
                entry = batch.entry(i)
                part = entry.key.rpartition(b"/")[2][:1]
                if part not in (b"D", b"A") and not (anew and entry.key == COMPRESSION):
                    self.places.note([(entry.pos, self._target.append(entry.key, entry.value))])

    # --- contents ---

    def anew(self, positions: Iterable[int], compression: Compression) -> None:
        """Move files, and write their contents as new entries: compressed or, with level 0, not."""
        store, content = self._store, Content(self._store)
        writer = DraftWriter(self._target, self._settings, content.read_all)
        self.known = False
        if compression.level:
            writer.compressor = Compressor(compression, store.base)
            self.compress_at = self._target.append(COMPRESSION, compression.encode())
        self._others(None, anew=True)
        waiting, size = list[tuple[int, Inode, Draft]](), 0
        for pos in positions:
            key, inode, _ = store.inode_at(pos)
            size += inode.lsize
            small = inode.lsize <= FRAME_CONTENT_BYTES and all(e.pointer for e in inode.extents)
            if not small or size > COMPRESSED_TOGETHER:
                self._settle(waiting, writer)
                waiting, size = [], inode.lsize
            draft = Draft(key, inode.fileid, inode.ftype, inode.mtime)
            fill(draft, writer, content, inode, COMPRESSED_TOGETHER)
            waiting.append((pos, inode, draft))
            if self._progress:
                self._progress(store.kv.end * inode.lsize // max(store.dtotsz, 1))
        self._settle(waiting, writer)

    def _settle(self, files: list[tuple[int, Inode, Draft]], writer: DraftWriter) -> None:
        """Append the contents in memory of new files, compressed together, and their inodes."""
        tails = [d.tail if d.ftype in COMPRESSIBLE and not d.body else b"" for _, _, d in files]
        frames = writer.compressor.many(tails) if writer.compressor else repeat(None)
        for (pos, inode, draft), frame in zip(files, frames, strict=False):
            if draft.body:
                writer.spill(draft)
            elif draft.tail:
                draft.base = [writer.entry(draft, bytes(draft.tail), frame)]
                draft.body, draft.tail = len(draft.tail), bytearray()
            if inode.attrs:
                draft.attrs_at = self._append(inode.attrs[0]), inode.attrs[1]
            made = writer.settle(draft)
            at = self._inode(draft.key, made, self._settings.isz, inode)
            self.places.note([(pos, at)])


# --- compaction ---


@dataclass(frozen=True, slots=True)
class Compacted:
    """Result of a compaction, or its estimate: bytes of BASE.data before and after, live files."""

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
    """Reclaim the space of deleted and replaced files.

    order     "disk": the files keep their order; "name": byte order of names
    dry_run   only report the sizes; takes no lock
    progress  called with the number of bytes read since the last call
    compress  "zstd", "zstd:LEVEL" or "none": how all contents are written anew, and new content
              later. A dictionary is trained on them if it saves enough. None: no change
    raises    NoSuchFile; Locked; Refusal (a shard of a data set; damage: repair it first; a variant
              that cannot have compressed content); ValueError; OSError (ENOSPC: the live files need
              space). The container is then unchanged
    cost      one pass over BASE.data, and one write of the live entries; leaves the page cache as
              it was. With `compress` each file is read once more, through the page cache, and
              compressed, even for `dry_run`
    """
    if order not in ORDERS:
        raise ValueError(f"order is one of {', '.join(ORDERS)}, not {order!r}")
    level = None if compress is None else level_of(compress)  # before anything is opened
    with Store(base_of(base), writable=not dry_run) as store, sound(store):
        _check(store, order)
        compression = _compression(store, level)
        block, size, files = _superblock(store, compression), store.kv.end, store.index.count
        if dry_run and compression is None:
            return Compacted(size, block["SBSIZE"] + _kept_bytes(store, progress), files)
        move = partial(_move, store, order, compression, progress)
        if dry_run:
            kv = KVSeq(_Nowhere(bytes(block["SBSIZE"])), block, writable=True)
            move(kv)
            kv.stop()
        else:
            try:
                kv = _replace(store, Superblock(block), move)
            except OutOfOrderError:
                kv = _replace(store, block, partial(move, batches=False))
        return Compacted(size, kv.end, files)


def _check(store: Store, order: str) -> None:
    """Raise Refusal for a container that must not be compacted, or not without loss."""
    if store.directory.exists("_job"):
        what = "is a shard of a data set, which would not know it again: winkfs dataset compact"
        raise Refusal(what, store.base)
    info = store.directory.info(store.name + ".data")
    if info is not None and info.kind is FileType.LINK:
        what = "BASE.data is a symbolic link, which would be replaced: compact what it leads to"
        raise Refusal(what, store.base)
    if store.settings.ao and order != "disk":
        raise Refusal("is append-only: its order is that of the mtimes", store.base)
    if store.notes:
        raise Refusal(f"is damaged: {store.notes[0]}: repair it first", store.base)


def _superblock(store: Store, compression: Compression | None = None) -> Superblock:
    """Return the superblock of the new file, with a second one if its variables leave space.

    compression  of contents that are written anew; None: they are moved as they are
    """
    old = store.kv.superblock
    block = Superblock(old)
    block.pop(UNNAMED, None)
    block.pop(WRITER, None)
    if block.pop(INCHAIN, None) is not None:  # each inode is written with all its extents
        block["INCOMPAT"] &= ~CHAINS
    block.update({"SYNCTIME": max(int(time.time()), old.get("SYNCTIME", 0) + 1)})
    if store.kv.layout.checksum and "SBCKSUM" in old:
        if len(old.keys() - {WRITER}) < MAX_VARIABLES or old.double:
            block |= {"SBSIZE": 2 * HALF, "SBSEQ": 1}
        if "CONTID" in old:
            block["CONTID"] = secrets.randbits(62) + 1
    size = block["SBSIZE"]
    counters = dict.fromkeys(("ENTRIES", "AENTRIES", "ITOTSZ", "DTOTSZ"), 0) | {"SYNCSIZE": size}
    block |= {name: number for name, number in counters.items() if name in old}
    block["FILESIZE"] = size
    if compression is not None:
        let_compress(block, compressed=compression.level > 0)
    return block.note_writer() if "CONTID" in block else block


def _compression(store: Store, level: int | None) -> Compression | None:
    """Return the compression of contents that are written anew; None: they are moved as they are.

    raises  NotAllowed if the container cannot have compressed content; Refusal, also if the library
            is missing; CorruptError
    """
    if level is None or (not level and not store.settings.compressed):
        return None
    if store.settings.classic:
        raise NotAllowed("a classic container cannot have compressed content", store.base)
    if not store.kv.layout.standard or "INCOMPAT" not in store.kv.superblock:
        what = "is of a variant that cannot have compressed content: pack its files anew"
        raise NotAllowed(what, store.base)
    zstd(store.base)
    if not level:
        return Compression(0)
    samples = list(_samples(store))
    if len(samples) < MIN_SAMPLE_FILES or sum(map(len, samples)) < ENOUGH_BYTES:
        return Compression(level)  # files that are put later train a dictionary
    return trained(samples, level, store.dtotsz, store.base)


def _samples(store: Store) -> Iterator[bytes]:
    """Yield contents of random files; of large ones the first part.

    raises  CorruptError
    cost    reads SAMPLE_BYTES at most
    """
    content, live, left = Content(store), store.index.positions().tolist(), SAMPLE_BYTES
    # A fixed seed, so that equal containers are compacted to equal ones.
    for pos in random.Random(0).sample(live, min(SAMPLE_FILES, len(live))):
        inode = store.inode_at(pos)[1]
        if inode.ftype in COMPRESSIBLE and inode.lsize and left > 0:
            data = content.read(inode.extents, 0, min(FRAME_CONTENT_BYTES, inode.lsize))
            left -= len(data)
            yield data


class _Nowhere(MemoryStorage):
    """A file that discards what is written."""

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        return sum(map(len, buffers))

    def preallocate(self, length: int) -> None:
        pass


def _kept_bytes(store: Store, progress: Progress | None) -> int:
    """Return the bytes of all entries that are kept, if contents are moved as they are."""
    size, form = 0, store.settings.form
    for batch, kept in kept_in(store, progress):
        size += int((batch.end[kept] - batch.at[kept]).sum())
        for pos in batch.pos[kept[chained(batch)[kept]]].tolist():
            inode = store.inode_at(pos)[1]
            size += len(inode.encode(form, inode.size)) - inode.size
    return size


def _move(
    store: Store,
    order: str,
    compression: Compression | None,
    progress: Progress | None,
    kv: KVSeq,
    *,
    batches: bool = True,
) -> Rewrite:
    """Move all live entries to an empty file.

    compression  of contents that are written anew; None: they are moved as they are
    batches      move whole batches if possible
    raises       OutOfOrderError if whole batches break the order of an append-only container
    """
    moved, positions = Rewrite(store, kv, progress), store.index.positions().tolist()
    if order == "name":
        keys = {pos: name_of(store.key_at(pos)) for pos in positions}
        positions.sort(key=keys.__getitem__)
    if compression is not None:
        moved.anew(positions, compression)
    elif batches and order == "disk" and is_usual(store):
        moved.batches()
    else:
        moved.files(positions)
    return moved


def _replace(store: Store, block: Superblock, move: Callable[[KVSeq], Rewrite]) -> KVSeq:
    """Write the new file, rename it, and write its derived files -> the new file, closed."""

    def unsure() -> None:
        # This mark need not be durable: after a power cut, either the rename is durable or the old
        # file is back. If it cannot be written, no other writer can write here either.
        kv.superblock[UNNAMED] = 1
        with contextlib.suppress(OSError, ValueError):
            storage.write(0, kv.superblock.images())

    with contextlib.ExitStack() as held:
        with store.deriving(".data", uncached=True, unsure=unsure) as storage:
            storage.write(0, block.images())
            lock = store.directory.lock(os.path.basename(storage.name))
            if lock is None:
                raise Locked("another process has the new file open", store.base)
            held.callback(lock.release)
            kv = KVSeq(storage, block, writable=True)
            try:
                moved = move(kv)
                itotsz = store.itotsz + moved.grown
                sums = {"ITOTSZ": itotsz, "DTOTSZ": store.dtotsz, "NEXTFID": store.nextfid}
                was = [store.kv.superblock.get(name, 0) for name in (COLUMNS, COMPRESS)]
                columns, at = np.maximum(moved.places.of(np.array(was, np.int64)), 0).tolist()
                sums |= {COLUMNS: columns, COMPRESS: moved.compress_at or at}
                known = {name: value for name, value in sums.items() if name in block}
                kv.sync(known, now=block.get("SYNCTIME"))
            finally:
                kv.release()
        storage.close()
        _write_derived(store, kv, moved, held)
    return kv


def _write_derived(store: Store, kv: KVSeq, moved: Rewrite, held: contextlib.ExitStack) -> None:
    """Write the derived files of the new container from those of the old one, and close that.

    A file that cannot be written now is derived when it is needed. `held`: lock of the new file.
    """
    found = None
    if not store.settings.ao and store.settings.cellsz <= 2:
        rows, _ = store.index.merged()
        found = Rebuilt(kv, store.settings)
        found.rows = IndexRows(rows.s, rows.bits, moved.places.of(rows.pos))
        found.nextfid, found.end = store.nextfid, kv.end
        found.entries, found.aentries = kv.entries, kv.aentries
        found.itotsz, found.dtotsz = store.itotsz + moved.grown, store.dtotsz
    packed = store.packed
    # Files after PACKEND were not packed; after a compaction they may have any position.
    known = packed and packed["PACKEND"] == store.kv.end
    packed = packed | {"PACKEND": kv.end} if known else {}
    # None: there was none, or its rows are wrong for the new files.
    catalog = open_catalog(store, behind=0) if moved.known else None
    held.close()
    store.abandon()

    def placed(rows: FileTable) -> FileTable:
        numbers = rows.numbers.copy()
        plain = numbers[:, POINTER] > 0
        numbers[plain, POINTER] = moved.places.of(numbers[plain, POINTER])
        numbers[:, POS] = moved.places.of(rows.pos)
        return rows.with_numbers(numbers)

    with (
        catalog or contextlib.nullcontext(),
        contextlib.suppress(Locked),  # another writer was faster
        Store(store.base, writable=True, load=found is None) as new,
    ):
        if found is not None:
            new.packed = packed
            new.take(found)
        if catalog is not None:
            with contextlib.suppress(DerivedDamage):  # it is derived when it is needed
                write_whole(new, map(placed, catalog.rows(list(new.schema)))).close()
        elif not moved.known:
            new.catalog.save()
        new.close()
