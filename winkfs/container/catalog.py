"""The catalog of an open container: all live files in byte order of their names.

Catalog         a state of the catalog: rows by name and by index; `select` has the queries
CatalogTrail    the files that a writer puts, so that they need not be read again
DerivedCatalog  BASE.cat of an open container: writes it and brings it up to date

A few changes are appended as a further run; once the runs after the first have many rows, all runs
are written anew as one.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Final

import numpy as np

from winkformats.arrays import Bools, Int64, among, text_order
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError, DerivedDamage, FormatError
from winkformats.kv.superblock import read_superblock
from winkfs.container.datafile import DataFile
from winkfs.container.namesorter import SORTED_BYTES, ClashFinder, NameSorter
from winkfs.container.ondisk.catalog import Catalog, CatalogWriter
from winkfs.container.ondisk.run import Place, Run
from winkfs.container.recovery import tail
from winkfs.container.survey import Problem, read_rows
from winkfs.container.table import GONE, FileTable, joined, live
from winkfs.names import INODE, OLD


class Policy:
    """Limits of the work that is done for BASE.cat: five numbers, and others derived from them.

    read       inodes that a close reads for it, or files of a container that gets a catalog
    tail       bytes of a tail that a close reads for them
    dense      bytes of the data file per file put in bulk: beyond `bulk`, a close writes so many
    part       1 / part of all files are few
    runs       runs, at most: beyond, a run is merged with all later ones if these are as large
    few        runs up to which a close merges none
    joined     rows of runs that a close merges
    bulk       rows that a close writes: a row in memory costs less than one that has to be read
    sure       rows put in bulk that are kept until a close, even if it does not write them; also
               files of a catalog that is kept in memory if it cannot be written
    kept       rows kept for a close, at most: most of them in a scratch file
    changes    changed names that are always added as a run; beyond, up to 1 / part of all files
    behind     rows after the first run that always stay there; beyond, up to 2 / part of its rows
    short      bytes of a tail that always becomes a run; beyond, up to 1 / part of the covered ones
    """

    read = 1 << 13
    tail = 4 << 20
    dense = 2 << 10
    part = 64
    runs = 16
    few = 4
    joined = 4 * read
    bulk = 16 * read
    sure = 32 * read
    kept = read << 13
    changes = 8 * read
    behind = 2 * read
    short = 16 * tail


POLICY: Final = Policy()
MAX_GONE_NAMES: Final = 1 << 20  # removed names that a trail keeps


def _whole_runs(runs: Sequence[Run], columns: Iterable[str]) -> list[Iterator[FileTable]]:
    return [run.rows(columns=tuple(columns)) for run in runs]


def open_catalog(
    store: DataFile, *, behind: int | None = None, storage: Storage | None = None
) -> Catalog | None:
    """Open BASE.cat, if it is valid.

    behind   bytes of the data file that it may not cover; None: any number
    storage  the file, open already; it is closed with the catalog
    ->       None if it is missing, foreign, of the wrong form, or newer than the data file; a
             damaged block raises DerivedDamage when it is first read
    cost     reads the index of the blocks
    """
    try:
        found = Catalog(storage or store.open_derived(DerivedCatalog.suffix))
    except DerivedDamage as error:
        store.remark(error)
        return None
    except (FormatError, OSError):
        return None
    end, schema, settings = store.kv.end, store.schema.items(), store.settings
    least = max(store.catalog_from, store.kv.start, 0 if behind is None else end - behind)
    mine = settings.contid != 0 and settings.made(found.superblock)
    mine = mine and (not schema or all(schema <= run.schema.items() for run in found.runs))
    if mine and least <= found.covered <= end:
        return found
    found.close()
    return None


@contextmanager
def believed(store: DataFile, behind: int | None = None) -> Iterator[Catalog | None]:
    """Open BASE.cat as `open_catalog`; damage that is found later ends the block, and is recorded
    in `store.remarks`."""
    with open_catalog(store, behind=behind) or nullcontext() as catalog:
        try:
            yield catalog
        except DerivedDamage as error:
            store.remark(error)


def open_older(store: DataFile, covered: int, place: Place) -> Catalog | None:
    """Open BASE.cat as it was when it covered `covered` bytes, if that can still be read.

    place   of the list of its runs at that time, see `Catalog`
    ->      None if it was replaced or is damaged; a damaged block raises DerivedDamage when it is
            first read
    """
    try:
        found = Catalog(store.directory.open(store.name + DerivedCatalog.suffix), place)
    except (FormatError, OSError):
        return None
    if not store.settings.made(found.superblock):
        found.close()
        return None
    found.covered = covered
    return found


def build(
    store: DataFile,
    *,
    save: bool = True,
    lost: Problem | None = None,
    positions: Int64 | None = None,
) -> Catalog:
    """Make the catalog of all live files, from the inodes. A writer has synced.

    save       write BASE.cat, if there is a writer, the container is not classic and the disk has
               room; otherwise it is a scratch file, in memory for few files
    positions  ascending, of the inodes of the files; None: all live files
    raises     OSError
    cost       reads the inodes and sorts the names, n log n; memory: 100 MiB
    """
    if positions is None:
        positions = store.index.positions()
    with closing(new_sorter(store)) as sorter:
        for rows in read_rows(store, positions, lost):
            sorter.add(rows)
        return _written(store, sorter.rows(), len(positions), save=save)


def merge(store: DataFile, runs: Sequence[Run], changes: Mapping[bytes, int]) -> Catalog:
    """Make a catalog of one run from runs of an older one and later changes. A writer has synced.

    changes  name -> position of its inode, 0: it was removed
    raises   CorruptError; OSError
    cost     reads the inodes of the changes, and writes the catalog anew
    """
    parts = [*_whole_runs(runs, store.schema), iter([changed_rows(store, changes)])]
    return _written(store, joined(parts), store.index.count)


def new_sorter(store: DataFile) -> NameSorter:
    """Return a sorter with its scratch file beside the container, or in the temporary directory."""
    return NameSorter(store.directory.scratch, SORTED_BYTES)


def changed_rows(store: DataFile, changes: Mapping[bytes, int]) -> FileTable:
    """Return rows of changed names, in byte order; a position 0 makes a row with GONE."""
    positions = np.array(sorted(pos for pos in changes.values() if pos), np.int64)
    gone = [name for name, pos in changes.items() if not pos]
    parts = [*read_rows(store, positions), *([gone_rows(gone)] if gone else [])]
    found = FileTable.concat(parts)
    return found.take(text_order(found.column))


def gone_rows(names: list[bytes]) -> FileTable:
    """Return rows for removed names."""
    return FileTable.of(names, np.zeros(len(names), np.int64), kind=GONE)


def write_whole(store: DataFile, rows: Iterator[FileTable]) -> Storage:
    """Write BASE.cat, durably, as one run of all rows, without those with GONE. Raises OSError."""
    with store.deriving(DerivedCatalog.suffix, uncached=True) as storage:
        _fill(store, CatalogWriter.create(storage, store.settings.ids, store.schema), rows)
    return storage


def _written(
    store: DataFile, rows: Iterator[FileTable], count: int, *, save: bool = True
) -> Catalog:
    """Write rows, about `count`, as BASE.cat, or, if `save` is False or it fails, as a scratch file
    -> the open catalog."""
    if save and store.writable and not store.settings.classic:
        try:
            return Catalog(write_whole(store, rows))
        except OSError as error:
            store.record_unwritten(error)
            return build(store, save=False)
    few = count <= POLICY.sure
    memory = MemoryStorage(name=f"{store.base}.cat (in memory)") if few else None
    storage = memory or store.directory.scratch()
    storage.uncached = True
    _fill(store, CatalogWriter.create(storage, store.settings.ids, store.schema), rows)
    return Catalog(storage)


def _fill(store: DataFile, writer: CatalogWriter, rows: Iterator[FileTable]) -> None:
    finder = ClashFinder()
    writer.write_run(finder.seen(live(rows)))
    now = store.kv.superblock.get("SYNCTIME", int(time.time()))
    writer.finish(store.kv.end, now, clashes=len(finder.found))


class CatalogTrail:
    """Files that a writer put and removed since the data file ended at `since`; -1: not all.

    Files put in bulk are kept as rows, of all others only the positions of the inodes.

    wanted  whether to keep them even if a close does not write them
    """

    def __init__(self, store: DataFile, *, wanted: bool) -> None:
        self._store, self.since, self.sorter = store, store.kv.end, new_sorter(store)
        self.wanted = wanted
        self.positions, self.gone = array("q"), set[bytes]()

    def note(self, name: bytes, pos: int) -> None:
        """Record that the inode of a name is now at `pos`; 0: the name was removed."""
        if pos:
            self.positions.append(pos)
            return
        self.gone.add(name)
        if len(self.gone) > MAX_GONE_NAMES:  # they are read from the tail instead
            self.gone.clear()
            self.since = -1

    @property
    def count(self) -> int:
        """Number of rows there will be, about."""
        return self.sorter.count + len(self.positions) + len(self.gone)

    @property
    def is_cheap(self) -> bool:
        """True if writing it takes little time compared with the puts."""
        return self.count <= max(POLICY.bulk, (self._store.kv.end - self.since) // POLICY.dense)

    def reaches(self, covered: int) -> bool:
        """Extend it back to the end `covered` of the data file, by reading the entries since.

        ->      False: these are too many
        raises  CorruptError
        """
        if not 0 <= self.since - covered <= POLICY.tail:
            return False
        before = dict(tail(self._store, covered, self.since))
        self.since = covered
        for name, pos in before.items():
            self.note(name, pos)
        return self.since >= 0

    def rows(self, *, whole: bool) -> Iterator[FileTable]:
        """Yield the live files that were put and, unless `whole`, removed names, in byte order.

        It is called once, and no file is put after that.

        whole   all live files of the container were put since
        raises  OSError
        """
        store, sorter = self._store, self.sorter
        positions, self.positions = np.array(sorted(set(self.positions)), np.int64), array("q")
        for rows in read_rows(store, positions):
            sorter.add(rows)
        if not whole:
            gone = [name for name in self.gone if not store.index.lookup(name + INODE)]
            sorter.add(gone_rows(gone))
        if whole and sorter.count == store.index.count:
            return sorter.rows()
        return sorter.rows(at_any(store.index.positions(self.since)))


def at_any(positions: Int64) -> Callable[[FileTable], Bools]:
    """Return a function that marks rows at one of these ascending positions, and removed names."""
    return lambda rows: among(rows.pos, positions) | rows.gone


class DerivedCatalog:
    """BASE.cat of an open container.

    trail   records all files that are put; None: not wanted
    """

    suffix = ".cat"

    def __init__(self, store: DataFile) -> None:
        self._store = store
        self._opened = store.kv.end
        self.trail: CatalogTrail | None = None
        self._tried = False  # whether `follow_bulk` was called

    def follow(self, *, wanted: bool = True) -> None:
        """Record files that are put from now on, so that `save` need not read them again."""
        self.close()
        if not self._store.settings.classic:
            self.trail = CatalogTrail(self._store, wanted=wanted)
            self._store.index.trail = self.trail.note

    def follow_bulk(self) -> None:
        """Record files put in bulk from now on, for `keep_up`, if that can use them."""
        if self._tried or self.trail is not None:
            return
        covered, kv = self._covered(), self._store.kv
        if kv.end - (kv.start if covered is None else covered) <= POLICY.tail:
            self.follow(wanted=False)
        self._tried = True

    def put_many(self, made: Callable[[], FileTable]) -> None:
        """Record files that were put in bulk, if there is a trail."""
        trail = self.trail
        if trail is None:
            return
        many = trail.count > POLICY.sure
        if many and not trail.wanted and not (trail.is_cheap and trail.count < POLICY.kept):
            self.close()
            return
        try:
            trail.sorter.add(made())
        except MemoryError:  # the put itself needs less memory and can go on
            self.close()

    def sweep(self) -> None:
        """Remove derived files of older versions, and an invalid BASE.cat."""
        store = self._store
        self._opened = store.kv.end
        for suffix in OLD:
            store.directory.unlink(store.name + suffix)
        if self._covered() is None:
            store.directory.unlink(store.name + self.suffix)  # before .data grows to its DATAEND

    def _covered(self) -> int | None:
        """Return DATAEND of the file on disk; None: it is missing or invalid."""
        store = self._store
        try:
            with store.directory.open(store.name + self.suffix) as storage:
                block = read_superblock(storage)
        except (FormatError, OSError):
            return None
        mine = store.settings.contid != 0 and store.settings.made(block)
        covered = block.get("DATAEND", -1)
        return covered if mine and 0 <= covered <= store.kv.end else None

    def drop(self) -> None:
        """Remove BASE.cat, and make older ones invalid."""
        store = self._store
        store.catalog_from = store.kv.end
        self.close()
        if store.writable:
            store.directory.unlink(store.name + self.suffix)

    def close(self) -> None:
        """Drop the trail; the changes are read from the tail instead. Idempotent."""
        if self.trail is not None:
            self.trail.sorter.close()
            self.trail = self._store.index.trail = None

    def keep_up(self) -> None:
        """Save for a close, if anything was changed and it takes little time.

        cost    limited by `Policy`. More changes, more small files put in bulk, and a missing
                catalog of many files are left out: readers make what they miss in memory
        """
        if self._store.kv.end != self._opened:
            self.save(quickly=True)

    def save(self, sorter: NameSorter | None = None, *, quickly: bool = False) -> None:
        """Bring BASE.cat up to date with all that is durable. The writer has synced.

        Nothing is done if it is current, in classic layout, and if the disk is full.

        sorter   has the rows of all live files, and maybe of others; None: see `_save`
        quickly  only if it takes little time
        raises   ValueError (there is something to sync); OSError
        cost     little after few changes, otherwise as `build`
        """
        store = self._store
        if store.settings.classic:
            return
        if not store.writable or store.kv.end != store.synced:
            raise ValueError("a catalog is saved by a writer that has synced")
        try:
            if sorter is not None:
                some = sorter.count > store.index.count
                chosen = at_any(store.index.positions()) if some else None
                write_whole(store, sorter.rows(chosen)).close()
            elif not self._save(quickly):
                return
            if self.trail is not None:
                self.follow()
        except CorruptError as error:
            store.note(error)
            self.close()  # a part of its rows is consumed
        except OSError as error:
            store.record_unwritten(error)
            self.close()  # its scratch file may take the space that the index needs

    def _save(self, quickly: bool) -> bool:
        """Add the changes, if they are few; otherwise write the file anew.

        quickly  leave it as it is if that takes long
        ->       whether it is current
        """
        store, trail, storage = self._store, self.trail, None
        with suppress(OSError):  # it is missing, not writable, or a symbolic link
            storage = store.directory.open(
                store.name + self.suffix, "w", uncached=True, follow=False
            )
        catalog = open_catalog(store, storage=storage)
        small = store.index.count <= POLICY.read or not quickly
        try:
            if catalog is not None and catalog.covered == store.kv.end:
                return True
            if trail is not None and quickly and not trail.is_cheap:
                trail = None
            if (
                trail is not None
                and (catalog is None or trail.since == store.kv.start)
                and trail.reaches(store.kv.start)  # all files were put since
            ):
                write_whole(store, trail.rows(whole=True)).close()
            elif catalog is not None and (changes := self._changes(catalog, trail, quickly)):
                self._add(catalog, *changes, quickly, storage is not None)
            elif small:
                build(store).close()
            else:
                return False
        except DerivedDamage as error:  # of the catalog that was there
            store.remark(error)
            if not small:
                self.close()
                store.directory.unlink(store.name + self.suffix)
                return False
            build(store).close()
        finally:
            if catalog is not None:
                catalog.close()
        return True

    def _changes(
        self, catalog: Catalog, trail: CatalogTrail | None, quickly: bool
    ) -> tuple[Iterator[FileTable], int] | None:
        """Return the changes since the catalog, and their number, about; None: too many to add."""
        store, covered = self._store, catalog.covered
        if trail is not None and trail.reaches(covered):
            return trail.rows(whole=False), trail.count
        limit = POLICY.read if quickly else max(POLICY.changes, catalog.count // POLICY.part)
        changes = store.index.changes(covered)
        if changes is None:
            if store.kv.end - covered > (
                POLICY.tail if quickly else max(POLICY.short, covered // POLICY.part)
            ):
                return None
            changes = dict(itertools.islice(tail(store, covered), limit + 1))
        if len(changes) > limit:
            return None
        return iter([changed_rows(store, changes)]), len(changes)

    def _add(
        self,
        catalog: Catalog,
        changes: Iterator[FileTable],
        count: int,
        quickly: bool,
        writable: bool,
    ) -> None:
        """Add a run, merged with those that are not much larger. So runs stay few, and a row is
        written again only when they have doubled."""
        store = self._store
        behind = count + catalog.row_count - catalog.count
        many = behind > max(POLICY.behind, 2 * catalog.count // POLICY.part)
        if many and quickly:
            many = 2 * behind > catalog.count and catalog.count + behind <= POLICY.bulk
        sizes = [run.count for run in catalog.runs]
        kept = 0 if many or not writable else self._kept(sizes, count, quickly)
        rows = joined([*_whole_runs(catalog.runs[kept:], store.schema), changes])
        if not kept:
            write_whole(store, rows).close()
            return
        writer = CatalogWriter.append_to(catalog, kept, store.schema)
        try:
            writer.write_run(rows)
            writer.finish(store.kv.end, store.kv.superblock.get("SYNCTIME", int(time.time())))
        finally:
            writer.release()

    @staticmethod
    def _kept(sizes: list[int], count: int, quickly: bool) -> int:
        """Return how many runs of these sizes stay as they are if `count` rows are added; 0: all
        are written anew."""
        kept = len(sizes)
        while kept > (POLICY.few if quickly else 1) and sizes[kept - 1] <= 2 * count:
            if quickly and sizes[kept - 1] + count > POLICY.joined:
                break
            kept, count = kept - 1, count + sizes[kept - 1]
        if kept < POLICY.runs:
            return kept
        large = (at for at in range(kept) if sizes[at] <= count + sum(sizes[at + 1 : kept]))
        return next(large, kept)
