"""Compact: a container without what was deleted and replaced, in the place of the old one.

Live entries go to a new BASE.data beside the old one, every checksum looked at on the way; it is
synced and takes the old one's name by one rename. Whatever comes in between, the old or the new one
is there, whole. The new one has another CONTID: no derived file of the old one is believed again.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from winkformats.disk.storage import Kind
from winkformats.errors import DerivedDamage
from winkformats.hindex.table import Rows
from winkformats.kv.entry import Layout
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import HALF, MAX_VARIABLES, SBSIZE, WRITER, Superblock
from winkfs.container.catalog import open_catalog, write_whole
from winkfs.container.draft import COMPRESSIBLE
from winkfs.container.frames import ENOUGH, FEWEST, SAMPLE, SAMPLE_FILES, trained
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.ondisk.compressed import PIECE, Compression, level_of, zstd
from winkfs.container.ondisk.data import CHAINS, INCHAIN, UNNAMED, Settings, let_compress
from winkfs.container.ondisk.inode import CK_XXH3
from winkfs.container.read import Content
from winkfs.container.recovery import Rebuilt
from winkfs.container.rewrite import OddContainerError, Progress, Rewrite, kept_in, sound
from winkfs.container.store import Store
from winkfs.container.survey import chained
from winkfs.container.table import POINTER, POS, FileTable
from winkfs.errors import Locked, NotAllowed, Refusal
from winkfs.names import base_of, name_of

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
    with Store(base_of(base), writable=not dry_run) as store:
        _check(store, order)
        run = _Compaction(store, order, progress, _compression(store, compress))
        return run.foreseen() if dry_run else run.run()


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
    with sound(store):
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


class _Measure:
    """A target of entries that keeps nothing but its size."""

    def __init__(self, layout: Layout, start: int) -> None:
        self._layout, self.end = layout, start

    def append(self, key: bytes, value: bytes) -> int:
        pos = self._layout.aligned(self.end)
        self.end = pos + self._layout.size(len(key), len(value))
        return pos


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

    def foreseen(self) -> Compacted:
        """What `run` would do."""
        store, compression = self._store, self._compression
        block, form = _superblock(store, compression), store.settings.form
        size = block["SBSIZE"]
        if compression is not None:
            target = _Measure(store.kv.layout, size)
            settings = Settings.of(block, store.base)
            Rewrite(store, target, settings, self._progress).anew(self._in_order(), compression)
            return Compacted(store.kv.end, target.end, store.index.count)
        for batch, kept in kept_in(store, self._progress):
            size += int((batch.end[kept] - batch.at[kept]).sum())
            for pos in batch.pos[kept[chained(batch)[kept]]].tolist():
                inode = store.inode_at(pos)[1]
                size += len(inode.encode(form, store.settings.isz)) - inode.size
        return Compacted(store.kv.end, size, store.index.count)

    def run(self) -> Compacted:
        store, before, files = self._store, self._store.kv.end, self._store.index.count
        quick = store.kv.layout.standard and store.settings.ckalgo == CK_XXH3
        with contextlib.ExitStack() as held:
            try:
                kv, moved = self._replace(held, batches=quick and self._order == "disk")
            except OddContainerError:
                kv, moved = self._replace(held, batches=False)
            derived = _derived(store, kv, moved)
        store.abandon()
        _write_derived(store.base, moved, *derived)
        return Compacted(before, kv.end, files)

    def _replace(self, held: contextlib.ExitStack, *, batches: bool) -> tuple[KVSeq, Rewrite]:
        """Make the new file, and give it the name. `held`: releases its lock."""
        store, compression = self._store, self._compression
        block = _superblock(store, compression)

        def unsure() -> None:
            # After a power cut either the name is good or the old file is back, so it need not be
            # durable; where it cannot be written nobody else will write here either.
            kv.superblock[UNNAMED] = 1
            with contextlib.suppress(OSError, ValueError):
                storage.write(0, kv.superblock.images())

        with store.deriving(".data", uncached=True, unsure=unsure) as storage:
            storage.write(0, block.images())
            lock = store.directory.lock(os.path.basename(storage.name))
            if lock is None:
                raise Locked("somebody has the new file open", store.base)
            held.callback(lock.release)
            kv = KVSeq(storage, block, writable=True)
            moved = Rewrite(store, kv, Settings.of(block, store.base), self._progress)
            try:
                if compression is not None:
                    moved.anew(self._in_order(), compression)
                elif batches:
                    moved.batches(kv)
                else:
                    moved.files(self._in_order())
                itotsz = store.itotsz + moved.grown
                sums = {"ITOTSZ": itotsz, "DTOTSZ": store.dtotsz, "NEXTFID": store.nextfid}
                sums |= moved.named
                known = {name: value for name, value in sums.items() if name in block}
                kv.sync(known, now=block.get("SYNCTIME"))
            finally:
                kv.release()
        storage.close()
        return kv, moved

    def _in_order(self) -> Iterator[int]:
        """Positions of the live inodes."""
        positions = self._store.index.positions().tolist()
        if self._order == "name":
            keys = {pos: name_of(self._store.key_at(pos)) for pos in positions}
            positions.sort(key=keys.__getitem__)
        return iter(positions)


# --- derived files ---


def _derived(
    store: Store, kv: KVSeq, moved: Rewrite
) -> tuple[Rebuilt | None, dict[str, int], Catalog | None]:
    """What those of the new container are made of, while the old one is open.

    ->  what a rebuild would find, None: it has to be read; what `pack --update` goes by; the old
        catalog, None: it says other things of the new files, or there was none
    """
    found = None
    if not store.settings.ao and store.settings.cellsz <= 2:
        rows, _ = store.index.merged()
        found = Rebuilt(
            Rows(rows.s, rows.bits, moved.places.of(rows.pos)), None, store.nextfid, end=kv.end,
            entries=kv.entries, aentries=kv.aentries, itotsz=store.itotsz + moved.grown,
            dtotsz=store.dtotsz,
        )  # fmt: skip
    packed = store.packed
    # Files behind PACKEND are others than those that were packed: they lie anywhere now.
    known = packed and packed["PACKEND"] == store.kv.end
    packed = packed | {"PACKEND": kv.end} if known else {}
    return found, packed, open_catalog(store, behind=0) if moved.known else None


def _write_derived(
    base: str,
    moved: Rewrite,
    found: Rebuilt | None,
    packed: dict[str, int],
    catalog: Catalog | None,
) -> None:
    """Write them. What cannot be written now is made when it is needed."""

    def placed(rows: FileTable) -> FileTable:
        numbers = rows.numbers.copy()
        plain = numbers[:, POINTER] > 0
        numbers[plain, POINTER] = moved.places.of(numbers[plain, POINTER])
        numbers[:, POS] = moved.places.of(rows.pos)
        return rows.with_numbers(numbers)

    with (
        catalog or contextlib.nullcontext(),
        contextlib.suppress(Locked),  # another was faster
        Store(base, writable=True, load=found is None) as store,
    ):
        if found is not None:
            store.packed = packed
            store.take(found)
        if catalog is not None:
            with contextlib.suppress(DerivedDamage):  # it is made anew when it is needed
                write_whole(store, map(placed, catalog.rows(list(store.schema)))).close()
        elif not moved.known:
            store.catalog.save()
        store.close()
