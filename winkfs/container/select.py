"""Select: files by name, time, size, type and condition, through the index that answers soonest.

Query      which rows of a catalog; `all_rows` finds them, with what came after the catalog
select     the files that a `Selection` means: by paths through the index, all else by a catalog
columns_at the files with given inodes
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError, DerivedDamage, raise_it
from winkfs.container.catalog import POLICY, believed, build, changed_rows, open_catalog
from winkfs.container.datafile import DataFile
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.inode import ATTRS, attributes
from winkfs.container.ondisk.typed import Schema
from winkfs.container.recovery import tail
from winkfs.container.selection import Selection
from winkfs.container.store import Store
from winkfs.container.survey import Problem, files_at
from winkfs.container.table import ALWAYS, FileTable, Times, joined, live
from winkfs.container.where import Asked, Both, Condition
from winkfs.entry import FileType
from winkfs.names import INODE, after, base_of, name_of
from winkfs.units import LAST, NANO

FILES: Final = 1 << 16  # read from the data file at a time
SPARSE: Final = 64  # rows of the catalog that are decoded rather than read one inode


class Query(NamedTuple):
    """Which rows of a catalog: names in [low, high), mtimes, a condition that is bound.

    columns  of the user, whose values the rows are to have
    at_once  blocks of a run that are read together; None: as many as are worth it
    """

    low: bytes = b""
    high: bytes | None = None
    times: Times = ALWAYS
    where: Condition | None = None
    columns: tuple[str, ...] = ()
    at_once: int | None = None

    @classmethod
    def of_prefix(
        cls,
        prefix: bytes,
        times: Times = ALWAYS,
        where: Condition | None = None,
        columns: Sequence[str] = (),
    ) -> Query:
        """Names that begin so."""
        return cls(prefix, after(prefix), times, where, tuple(columns))

    def kept(self, rows: FileTable, schema: Schema) -> FileTable:
        """Those of some rows that are meant, and those that have to be asked."""
        kept = rows.within(self.times)
        if self.where is not None:
            asked = {name: schema[name] for name in self.where.columns() & schema.keys()}
            kept &= rows.met(self.where, rows.columns(asked))
        kept |= rows.asked
        return rows if kept.all() else rows.take(kept)


def rows_now(
    store: DataFile, catalog: Catalog, query: Query, *, end: int | None = None
) -> Iterator[FileTable]:
    """The live rows that are meant, also of what came after the catalog, in order.

    Rows that do not say all are there whatever their mtimes and values: see `settled`.

    end     where the data file ends for that; None: where the store knows it to end
    raises  CorruptError
    cost    as `Run.rows`, and reads the tail; memory: 300 bytes a name in it
    """
    low, high = query.low, query.high
    changes = {
        name: pos
        for name, pos in tail(store, catalog.covered, end)
        if low <= name and (high is None or name < high)
    }
    later = [changed_rows(store, changes)] if changes else []
    first, *others = catalog.runs  # a row of the others may hide one that is not meant
    alone = not (others or later)
    asked = () if alone or query.where is None else query.where.columns()
    columns = tuple(dict.fromkeys([*query.columns, *asked]))
    runs = [
        first.rows(low, high, query.times, query.where, columns, query.at_once),
        *(run.rows(low, high, columns=columns, at_once=query.at_once) for run in others),
    ]
    rest = query._replace(where=None) if alone else query
    kept = partial(rest.kept, schema=dict(store.schema))
    return filter(len, map(kept, live(joined([*runs, iter(later)]))))


def all_rows(
    store: DataFile, lock: AbstractContextManager[object], problem: Problem, query: Query
) -> Iterator[FileTable]:
    """The live rows that are meant, in byte order of the names, as of the call.

    lock     what guards the store while it is read; the caller has settled what it put
    problem  called with what is damaged and left out: see `read_rows` and `settled`
    raises   CorruptError; OSError
    cost     as `rows_now`; where there is no good catalog, or it is far behind, one is made first,
             in a scratch file
    """

    def met(rows: FileTable) -> FileTable:
        with lock:
            return settled(store, rows, query, problem)

    with lock:
        catalog = open_catalog(store, behind=POLICY.short)
        catalog = catalog or build(store, save=False, lost=problem)
        found = rows_now(store, catalog, query)
    return map(met, _healed(store, lock, catalog, found, query))


def _healed(
    store: DataFile,
    lock: AbstractContextManager[object],
    catalog: Catalog,
    found: Iterator[FileTable],
    query: Query,
) -> Iterator[FileTable]:
    """The rows that were found; where the catalog turns out to be damaged, others from there on."""
    low = query.low
    try:
        for rows in found:
            yield rows
            low = rows.last + b"\0"
    except DerivedDamage as error:
        with lock:
            store.remark(error)
            again = build(store, save=False, lost=store.note)
        with again:
            yield from rows_now(store, again, query._replace(low=low))
    finally:
        del found  # first: it may have pages to drop
        catalog.close()


def positions_of(store: DataFile, query: Query) -> Int64 | None:
    """Ascending positions of the files that are meant, and of those that have to be asked.

    ->      None where there is no good catalog, or it is far behind
    cost    reads the blocks of the catalog that may have such files, and the tail; memory: 8 bytes
            a file
    """
    with believed(store, behind=POLICY.short) as catalog:
        if catalog is not None:
            return _positions(rows_now(store, catalog, query))
    return None


def positions_met(store: DataFile, query: Query, problem: Problem) -> Int64:
    """Ascending positions of the files that are meant, whether there is a good catalog or not.

    problem, raises, cost  as `all_rows`
    """
    return _positions(all_rows(store, contextlib.nullcontext(), problem, query))


def _positions(found: Iterator[FileTable]) -> Int64:
    return np.sort(np.concatenate([np.empty(0, np.int64), *(rows.pos for rows in found)]))


def settled(store: DataFile, rows: FileTable, query: Query, problem: Problem) -> FileTable:
    """The same rows without those that have to be asked and then are not meant.

    problem  called with each of those whose inode or attributes are damaged; it is left out
    cost     one read for each row that has to be asked
    """
    kept = np.ones(len(rows), bool)
    for i in np.flatnonzero(rows.asked).tolist():
        try:
            kept[i] = _is_meant(store, rows.names[i], int(rows.pos[i]), query)
        except CorruptError as error:
            problem(error)
            kept[i] = False
    return rows if kept.all() else rows.take(kept)


def _is_meant(store: DataFile, name: bytes, pos: int, query: Query) -> bool:
    """Whether a file is, by its inode. Raises CorruptError."""
    inode = store.inode_at(pos)[1]
    ns, (since, until) = store.settings.ns_of(inode.mtime), query.times  # int64 may not hold it
    if not ((since is None or ns >= since) and (until is None or ns < until)):
        return False
    if query.where is None and not query.columns:
        return True
    attrs = attributes(inode, (0, 0), store.kv.get, store.kv.storage.name)
    if query.where is None:
        return True
    kind, mtime = inode.ftype or FileType.FILE, min(max(ns, -LAST - 1), LAST)
    table = FileTable.of([name], np.array([pos]), 0, inode.lsize, mtime, 0, kind)
    table.values = np.array([attrs.encode()[ATTRS.size :]], object)
    return bool(table.met(query.where, table.columns(store.schema))[0])


def values_between(
    store: DataFile, low: int, high: int, typed: Mapping[str, str]
) -> tuple[Int64, dict[str, Column]] | None:
    """The values of the files whose inodes stand in [low, high), as far as the catalog goes.

    ->    ascending positions of the inodes, int64[n], and n values of each column; a column that
          the container lacks is null. None where there is no good catalog
    cost  reads the numbers and those columns of all blocks that have such files
    """
    found = [(np.empty(0, np.int64), {name: Column.nulls(typed[name], 0) for name in typed})]
    with believed(store) as catalog:
        if catalog is None:
            return None
        for run in catalog.runs:
            found += run.values_between(low, high, typed)
        places, columns = zip(*found, strict=True)
        pos = np.concatenate(places)
        order = np.argsort(pos)
        return pos[order], {
            name: Column.concat([part[name] for part in columns]).take(order) for name in typed
        }
    return None


# --- what a selection means ---


def select(container: Store | str, selection: Selection, problem: Problem = raise_it) -> FileTable:
    """The chosen files of a container, an open store or BASE, in order of their inodes.

    By paths through the index, all else through the catalog; where there is no good one, by time in
    an append-only container through BASE.time, else all inodes.

    problem  called with each damaged inode, which is left out
    raises   NoSuchFile; FormatError; OSError; CorruptError
    cost     one look-up a path; else one pass over the blocks of the catalog that may have such
             files, or over the inodes
    """
    if not isinstance(container, Store):
        with Store(base_of(container), writable=False) as store:
            return select(store, selection, problem)
    if selection.paths is None:
        found = from_catalog(container, selection, problem)
        if found is not None:
            return found
    query = Query.of_prefix(selection.prefix, where=selection.where)
    meant = None if query.where is None else positions_met(container, query, problem)
    if selection.paths is not None:
        rows = by_paths(container, selection.paths, problem)
        parts = [rows if meant is None else rows.take(np.isin(rows.pos, meant))]
    else:
        positions = container.index.positions() if meant is None else meant
        positions = between_times(positions, container, selection.since, selection.until)
        parts = [files_at(container, positions[at : at + FILES], problem)
                 for at in range(0, len(positions), FILES)]  # fmt: skip
    return FileTable.concat([rows.take(selection.chosen(rows)) for rows in parts])


def from_catalog(store: Store, selection: Selection, problem: Problem) -> FileTable | None:
    """The chosen files, in order of their inodes; None: there is no good catalog."""
    query = query_of(selection)
    with believed(store, behind=POLICY.short) as catalog:
        if catalog is not None:
            found = rows_now(store, catalog, query)
            parts = [listed(store, rows, query, selection, problem) for rows in found]
            return FileTable.concat(parts).by_position()
    return None


def listed(
    store: Store, rows: FileTable, query: Query, selection: Selection, problem: Problem
) -> FileTable:
    """The chosen ones of rows of the catalog.

    query   of which they are, that of the selection or a part of it
    raises  CorruptError
    """
    found = settled(store, rows, query, problem)
    asked = found.asked
    if asked.any():
        again = files_at(store, np.sort(found.pos[asked]), problem)
        found = FileTable.concat([found.take(~asked), again])
    chosen = selection.chosen(found)
    return found if chosen.all() else found.take(chosen)


def query_of(selection: Selection) -> Query:
    """What the selection asks of the catalog; names that its globs and paths do not mean, and
    sizes, are left to it."""
    where = [] if selection.where is None else [selection.where]
    if selection.min_size is not None:
        where.append(Asked("size", ">=", min(selection.min_size, LAST), "int64"))
    if selection.max_size is not None:
        where.append(Asked("size", "<=", min(selection.max_size, LAST), "int64"))
    times = selection.since, selection.until
    return Query.of_prefix(selection.prefix, times, Both(tuple(where)) if where else None)


def by_paths(store: Store, paths: tuple[bytes, ...], problem: Problem = raise_it) -> FileTable:
    """The files with these names, in order of their inodes; names that are not there are left out.

    cost    one look-up a name, and reads the inodes
    """
    keys = [path + INODE for path in dict.fromkeys(paths) if path]
    positions = store.index.candidates(keys)
    rows = files_at(store, np.unique(positions[positions > 0]), problem)
    names = dict(zip(rows.pos.tolist(), rows.names, strict=True))
    pairs = zip(keys, positions.tolist(), strict=True)
    if all(pos <= 0 or names.get(pos) == name_of(key) for key, pos in pairs):
        return rows
    # A cell of another key with the same hash: look them up in the ordinary way.
    found = sorted({pos for pos in map(store.index.lookup, keys) if pos})
    return files_at(store, np.array(found, np.int64), problem)


def between_times(positions: Int64, store: Store, low: int | None, high: int | None) -> Int64:
    """Of positions, ascending, in an append-only container those between the time marks around
    [low, high), nanoseconds; elsewhere all."""
    times = store.times
    if times is None:
        return positions
    start = 0 if low is None else times.start(low // NANO)
    stop = None if high is None else times.stop(-(-high // NANO))
    last = len(positions) if stop is None else np.searchsorted(positions, stop)
    return positions[np.searchsorted(positions, start) : last].copy()


# --- files by their inodes ---


def columns_between(base: str, low: int, high: int, problem: Problem = raise_it) -> FileTable:
    """The files of a container whose inodes stand in [low, high), in order of these.

    problem  called with each damaged inode, which is left out
    raises   NoSuchFile; FormatError; OSError
    cost     an index is opened; see `columns_at`
    """
    with Store(base_of(base), writable=False) as store:
        return columns_at(store, between(store, low, high), problem)


def between(store: Store, low: int, high: int) -> Int64:
    """Positions in [low, high) of the inodes of a container, ascending."""
    positions = store.index.positions()
    start, stop = np.searchsorted(positions, [low, max(low, high)]).tolist()
    return positions[start:stop]


def columns_at(store: Store, positions: Int64, problem: Problem = raise_it) -> FileTable:
    """The files whose inodes stand at these ascending positions.

    problem  called with each damaged inode, which is left out
    raises   CorruptError; OSError
    cost     one pass over the blocks of the catalog that may have them; where these have many
             others, too, the inodes are read
    """
    known = FileTable.concat(list(catalogued(store, positions)))
    rest = positions if not len(known) else np.setdiff1d(positions, known.pos, assume_unique=True)
    found = FileTable.concat([known, files_at(store, rest, problem)]) if len(rest) else known
    return found.by_position()


def catalogued(store: Store, positions: Int64) -> Iterator[FileTable]:
    """Those of the files with these inodes that the catalog has, a block at a time; none where it
    would decode more than SPARSE rows for each of them."""
    with believed(store) as catalog:
        if catalog is not None and len(positions):
            yield from catalog.at(positions, SPARSE)
