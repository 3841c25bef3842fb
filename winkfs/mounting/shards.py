"""ShardFiles: one shard of a mounted data set: what its files are, from its catalog, and what is in
them; Seen: those of them that are to be seen, by name.

Only contents, and rows of the catalog that are not complete, need its data file. If that is lost,
the files are still listed, and reading one is EIO.
"""

from __future__ import annotations

import errno
import logging
import stat
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from winkformats.arrays import Bools, Int64, TextColumn, among
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.paths import locate, open_file
from winkformats.disk.schemes import is_far
from winkformats.errors import FormatError
from winkfs.container.catalog import POLICY, build
from winkfs.container.ondisk.block import Blocks
from winkfs.container.ondisk.catalog import Catalog, CatalogWriter
from winkfs.container.ondisk.inode import Extent
from winkfs.container.ondisk.typed import Schema
from winkfs.container.read import Content
from winkfs.container.store import Store
from winkfs.container.table import (
    BY_INODE,
    KIND,
    MODE_AT,
    MTIME,
    POINTER,
    POS,
    SIZE,
    SPECIAL,
    FileTable,
    Times,
    joined,
    live,
    owner_word,
)
from winkfs.dataset.shard import Shard
from winkfs.entry import FileType
from winkfs.errors import DerivedDamage, StalePlan
from winkfs.mounting.ids import POSITION, SHARDS
from winkfs.mounting.lookup import CacheBudget, Found, Lookup
from winkfs.units import nearest_ns
from winkmount.source import refuse

log = logging.getLogger("winkfs.mount")

Row = list[int]
"""A row of the catalog, COLUMNS, but for `pos` and `fileid`: both are the id in the mount."""


class Seen:
    """The files of a shard that are to be seen, by name; immutable. Rank n: the n-th of them.

    number, owner   see `ShardFiles`
    catalog         their rows, and those that are hidden
    hidden          int64[..], ascending: which rows are
    count, size     how many are to be seen, sum of their sizes

    It holds the catalog open: listings go on with an order of an earlier generation.
    """

    def __init__(self, number: int, owner: tuple[int, int], catalog: Catalog, positions: Int64):
        """`positions`: ascending, of the inodes that are hidden. Raises DerivedDamage."""
        self.number, self.owner, self.catalog = number, owner, catalog
        self.run = run = catalog.runs[0]
        self.hidden, size = hidden_rows(catalog, positions)
        self._ranks = self.hidden - np.arange(len(self.hidden))  # so many are seen before each
        self.count, self.size = run.count - len(self.hidden), run.totals()[1] - size

    def row(self, rank: int) -> int:
        """Return the row of the catalog that has a rank."""
        return rank + int(self._ranks.searchsorted(rank, "right"))

    def rank(self, row: int) -> int:
        """Return how many are seen before a row."""
        return row - int(self.hidden.searchsorted(row))

    def block(self, number: int) -> Blocks:
        """Read a block. Raises DerivedDamage."""
        return self.run.read(np.array([number]))

    def single(self, block: Blocks, index: int) -> Row:
        """Return a row of a block."""
        row = block.row(index)
        row[:2] = [self.number << POSITION | row[POS]] * 2
        return row

    def rows(self, block: Blocks, number: int, low: int, high: int) -> FileTable:
        """Return those of the rows [low, high) of the catalog, all of one block, that are not
        hidden, with ids: see `Row`. `number`: of the block. Raises DerivedDamage."""
        first = self.run.starts[number]
        rows = block.table.part(low - first, high - first)
        rows = rows.take(self._seen(low, high)) if self._hides(low, high) else rows
        numbers = rows.numbers.copy()
        numbers[:, POS] |= self.number << POSITION
        numbers[:, 1] = numbers[:, POS]
        return rows.with_numbers(numbers)

    def names(self) -> Iterator[tuple[TextColumn, Bools]]:
        """Yield the names, a block at a time, and which are entries of directories. Raises
        DerivedDamage."""
        for (number,), block in self.run.decoded(self.run.wanted(), 1):
            low, high = self.run.starts[number : number + 2]
            names, directories = block.texts, block.column(KIND) & 255 == FileType.DIR
            if self._hides(low, high):
                kept = self._seen(low, high)
                names, directories = names[kept], directories[kept]
            if len(names):
                yield names, directories

    def hours(self, unit: int) -> set[int]:
        """Return the mtimes, divided by so many nanoseconds. Cost: reads blocks that may have
        several."""
        found = set[int]()
        ends = self.run.parts["mtime_min"].tolist(), self.run.parts["mtime_max"].tolist()
        for number, bounds in enumerate(zip(*ends, strict=True)):
            low, high = self.run.starts[number : number + 2]
            if bounds[0] // unit == bounds[1] // unit and self.rank(low) < self.rank(high):
                found.add(bounds[0] // unit)
                continue
            times = self.block(number).column(MTIME)[self._seen(low, high)]
            found.update(np.unique(times // unit).tolist())
        return found

    def within(self, times: Times, least: int) -> Iterator[tuple[list[int], FileTable]]:
        """Yield the rows from `least` on whose mtime is in some times, and which they are: a block
        at a time. Raises DerivedDamage."""
        for (number,), block in self.run.decoded(self.run.wanted(times=times), 1):
            low, high = self.run.starts[number : number + 2]
            low = max(low, least)
            if low < high:
                at = low + np.flatnonzero(self._seen(low, high))
                rows = self.rows(block, number, low, high)
                kept = rows.within(times)
                yield at[kept].tolist(), rows.take(kept)

    def _hides(self, low: int, high: int) -> bool:
        """Return whether some of the rows [low, high) are hidden."""
        return self.rank(high) - self.rank(low) < high - low

    def _seen(self, low: int, high: int) -> Bools:
        """Return which of the rows [low, high) are not hidden, bool[high - low]."""
        seen = np.ones(high - low, bool)
        first, stop = self.hidden.searchsorted([low, high]).tolist()
        seen[self.hidden[first:stop] - low] = False
        return seen


def hidden_rows(catalog: Catalog, positions: Int64) -> tuple[Int64, int]:
    """Return the rows whose inodes are at these ascending positions, and the sum of their sizes.

    raises  DerivedDamage
    cost    one read for each block that may have one
    """
    run = catalog.runs[0]
    found, size = [np.empty(0, np.int64)], 0
    for number in run.near(positions).tolist():
        block = run.read(np.array([number]))
        pos = block.column(POS)
        rows = np.flatnonzero(among(pos, positions))
        size += sum(block.column(SIZE)[rows].tolist())
        found.append(rows + run.starts[number])
    return np.concatenate(found), size


class ShardFiles:
    """The files of one shard.

    number   1 .. SHARDS, part of the ids of its files
    seen     those that are to be seen; None: none can be
    owner    (uid, gid) of files that have none of their own
    error    why contents cannot be read; None where they can
    columns  of the data set, with their types
    """

    def __init__(
        self, shard: Shard, number: int, owner: tuple[int, int], budget: CacheBudget
    ) -> None:
        """Open a shard; log what cannot be read. `owner`: if the data file is lost."""
        self.record, self.base, self.number = shard.record, shard.base, number
        self.owner, self._budget = owner, budget
        self.error: str | None = None
        self.columns: Schema = {}
        self.seen: Seen | None = None
        self._hidden = np.empty(0, np.int64)
        self._store: Store | None = None
        if shard.record.size >> POSITION or number >= SHARDS:
            raise OSError(errno.EFBIG, "too large for a mount, or too many shards", shard.base)
        self._shard = shard
        try:
            self._open(shard)
            self._catalog = self._read_catalog() or self._read_inodes()
        except BaseException:
            self.close()
            raise

    def hide(self, positions: Int64) -> None:
        """`positions`: ascending, of the inodes that are not to be seen.

        cost  where they are others than before, reads the blocks that may have them; a catalog
              that is damaged is made anew
        """
        if self.seen is None or not np.array_equal(positions, self._hidden):
            self._hidden = positions
            try:
                self._see()
            except DerivedDamage as error:
                if not self.heal(error):
                    raise

    def _see(self) -> None:
        catalog, self.seen = self._catalog, None
        if catalog is not None:
            self.seen = Seen(self.number, self.owner, catalog, self._hidden)

    def heal(self, error: DerivedDamage) -> bool:
        """Go on without BASE.cat, where it is the one that is damaged -> whether it is."""
        if self._catalog is None or error.file != self._catalog.storage.name:
            return False
        log.warning("%s: not used any more", error)
        self._catalog = self._read_inodes()
        self._see()
        return True

    # opening

    def _open(self, shard: Shard, *, load: bool = False) -> None:
        try:
            store = shard.open(load=load, mapped=False)
        except (OSError, FormatError) as error:
            if not load and is_far(self.base) and not isinstance(error, FormatError | StalePlan):
                raise  # a store that does not answer would be asked for each shard
            self.error = str(error)
            log.error("%s: its files cannot be read", error)
            return
        store.frozen = True
        self._store, self.owner = store, store.owner
        self._lookup = Lookup(store, Content(store), self._budget)

    def _read_catalog(self) -> Catalog | None:
        """BASE.cat; None where it cannot be believed. It has all files, or is of no use."""
        path = self.base + ".cat"
        try:
            found = Catalog(open_file(path))
            current = (found.contid, found.covered) == (self.record.contid, self.record.size)
            none_gone = len(found.runs) == 1 and found.runs[0].totals()[0] == found.row_count
            if current and none_gone:
                return found
            with found:
                if current:
                    return one_run(found, self.base)
            log.warning("%s: of another container, or an older one: not used", path)
        except FileNotFoundError:
            pass
        except (FormatError, OSError) as error:
            log.warning("%s: not used", error)
        return None

    def _read_inodes(self) -> Catalog | None:
        """Make a catalog from the data file. Cost: see `build`."""
        if self._store is not None:
            self._budget.drop()
            self._store.abandon()
            self._open(self._shard, load=True)  # with its index
        if self._store is None:
            log.error("%s: %d files are not shown", self.base, self.record.files)
            return None
        return build(self._store, save=False, lost=lambda e: log.error("not shown: %s", e))

    def close(self) -> None:
        """Close the data file; the catalog is closed when no order has it any more."""
        if self._store is not None:
            self._budget.drop()
            self._lookup.close()
            self._store.abandon()
            self._store = None
        self._catalog = self.seen = None

    # files by position

    def hides(self, pos: int) -> bool:
        at = int(self._hidden.searchsorted(pos))
        return at < len(self._hidden) and self._hidden.item(at) == pos

    def row_at(self, pos: int) -> Row:
        """Return the file whose inode is at a position, as the inode has it. Raises CorruptError;
        ESTALE if the data file is lost, and the catalog has none."""
        id = self.number << POSITION | pos
        if self._store is None:
            return [id, id, *self._listed(pos).numbers[0, 2:].tolist()]
        found = self.found(pos)
        mtime_ns = nearest_ns(self._store.settings.ns_of(found.mtime))
        kind, owner, ctime_ns = found.ftype & 255 or int(FileType.FILE), 0, mtime_ns
        if (attrs := found.attrs) is not None:
            kind |= SPECIAL | stat.S_IMODE(attrs.mode) << MODE_AT
            owner, ctime_ns = owner_word(attrs.uid, attrs.gid), attrs.ctime_ns or mtime_ns
        return [id, id, found.size, mtime_ns, BY_INODE, ctime_ns, kind, owner]

    def name_at(self, pos: int) -> bytes:
        """Return the name of a file. Raises as `row_at`."""
        if self._store is None:
            return self._listed(pos).names[0]
        return self._lookup.name(pos)

    def _listed(self, pos: int) -> FileTable:
        """Return the file as the catalog has it. Cost: reads the blocks that may have it."""
        catalog = self._catalog
        rows = [] if catalog is None else hidden_rows(catalog, np.array([pos]))[0].tolist()
        if catalog is not None and rows:
            return catalog.part(rows[0], rows[0] + 1)
        raise refuse(errno.ESTALE)

    def found(self, pos: int) -> Found:
        """Return what an inode has. Raises CorruptError; EIO if the data file is lost."""
        return self._readable().at(pos)

    def xattrs(self, pos: int) -> Mapping[bytes, bytes]:
        """Extended attributes. Raises as `found`."""
        attrs = self.found(pos).attrs
        if attrs is None or not attrs.xattrs or self._store is None:
            return {}
        self._store.show_types(self.columns)
        return self._store.shown.shown(attrs.xattrs)

    def extents(self, pos: int) -> Sequence[Extent]:
        """Return where the content lies. Raises as `found`."""
        return self._readable().inode(pos).extents

    # contents

    def read(self, row: Row, offset: int, size: int) -> bytes:
        """Read up to `size` bytes of a file from `offset`. Raises CorruptError; OSError (EIO)."""
        return self._readable().read(position(row), row[SIZE], offset, size, row[POINTER])

    def contents(self, rows: Int64) -> list[memoryview | None]:
        """Return the contents of the files of these rows, see `Lookup.contents`."""
        positions = rows[:, POS] & (1 << POSITION) - 1
        return self._readable().contents(positions, rows[:, POINTER], rows[:, SIZE])

    def present(self, pos: int, size: int) -> bool:
        """See `Lookup.present`."""
        return self.error is not None or self._lookup.present(pos, size)

    def bring(self, pos: int, size: int) -> None:
        """See `Lookup.bring`."""
        if self.error is None:
            self._lookup.bring(pos, size)

    def _readable(self) -> Lookup:
        """Return what reads the data file. Raises EIO if it is lost."""
        if self.error is not None:
            raise refuse(errno.EIO)
        return self._lookup


def position(row: Row) -> int:
    """Return the position of the inode of a row."""
    return row[POS] & (1 << POSITION) - 1


def one_run(catalog: Catalog, base: str) -> Catalog:
    """Join the live rows of all runs of a BASE.cat as one, in memory or in a scratch catalog.

    raises  DerivedDamage; OSError
    """
    few = catalog.row_count <= POLICY.sure
    name = f"{base}.cat (in memory)"
    storage = MemoryStorage(name=name) if few else locate(base)[0].scratch()
    try:
        writer = CatalogWriter.create(storage, {"CONTID": catalog.contid}, {})
        writer.write_run(live(joined([run.rows() for run in catalog.runs])))
        writer.finish(catalog.covered, 0, clashes=-1)
    except BaseException:
        storage.close()
        raise
    return Catalog(storage)
