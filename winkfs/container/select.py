"""Select: files by name, time, size, type and condition, through the fastest index.

Query      selects rows of a catalog; `all_rows` finds them, and those of later changes
select     returns the files of a `Selection`: paths by the index, all else by a catalog
columns_at returns the files with given inodes
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

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
from winkfs.entry import FileType
from winkfs.names import INODE, after, base_of, name_of
from winkfs.units import LAST, NANO

if TYPE_CHECKING:
    from winkfs.container.where import Condition

FILES_AT_ONCE: Final = 1 << 16  # read from the data file
ROWS_PER_INODE: Final = 64  # of the catalog, up to which decoding them beats reading one inode


class Query(NamedTuple):
    """A query of a catalog: names in [low, high), mtimes, a bound condition.

    columns  columns of the user whose values the rows contain
    at_once  blocks of a run that are read together; None: the default
    between  positions of the inodes in [low, high); None: all
    """

    low: bytes = b""
    high: bytes | None = None
    times: Times = ALWAYS
    where: Condition | None = None
    columns: tuple[str, ...] = ()
    at_once: int | None = None
    between: tuple[int, int] | None = None

    @classmethod
    def of_prefix(
        cls,
        prefix: bytes,
        times: Times = ALWAYS,
        where: Condition | None = None,
        columns: Sequence[str] = (),
    ) -> Query:
        """Return a query of names that begin with a prefix."""
        return cls(prefix, after(prefix), times, where, tuple(columns))

    def kept(self, rows: FileTable, schema: Schema) -> FileTable:
        """Return the rows that match, and those whose inodes must be read to decide."""
        kept = rows.within(self.times)
        if self.where is not None:
            asked = {name: schema[name] for name in self.where.columns() & schema.keys()}
            kept &= rows.met(self.where, rows.columns(asked))
        kept |= rows.asked
        if self.between is not None:
            kept &= (rows.pos >= self.between[0]) & (rows.pos < self.between[1])
        return rows if kept.all() else rows.take(kept)


def rows_now(
    store: DataFile, catalog: Catalog, query: Query, *, end: int | None = None
) -> Iterator[FileTable]:
    """Yield the live rows that match, including those of changes after the catalog, in order.

    Incomplete rows are included whatever their mtimes and values: see `settled`.

    end     end of the data file up to which changes count; None: that of the store
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
    first, *others = catalog.runs  # rows of the others that do not match may still hide a row
    alone = not (others or later)
    asked = () if alone or query.where is None else query.where.columns()
    columns = tuple(dict.fromkeys([*query.columns, *asked]))
    near = query.between if alone else None
    runs = [
        first.rows(low, high, query.times, query.where, columns, query.at_once, near),
        *(run.rows(low, high, columns=columns, at_once=query.at_once) for run in others),
    ]
    rest = query._replace(where=None) if alone else query
    kept = partial(rest.kept, schema=dict(store.schema))
    return filter(len, map(kept, live(joined([*runs, iter(later)]))))


def all_rows(
    store: DataFile, lock: AbstractContextManager[object], problem: Problem, query: Query
) -> Iterator[FileTable]:
    """Yield the live rows that match, in byte order of the names, as of the call.

    lock     guards the store while it is read; the caller has settled its changes
    problem  called with each damage, which is left out: see `read_rows` and `settled`
    raises   CorruptError; OSError
    cost     as `rows_now`; without a valid catalog, or if it is far behind, one is made first, in a
             scratch file
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
    """Yield the rows that were found; after damage of the catalog, those of a new one."""
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
        del found  # before the file is closed: it may have pages to drop
        catalog.close()


def positions_of(store: DataFile, query: Query) -> Int64 | None:
    """Return ascending positions of the files that match, and of those whose inodes must be read.

    ->      None without a valid catalog, or if it is far behind
    cost    reads the blocks of the catalog that may have such files, and the tail; memory: 8 bytes
            a file
    """
    with believed(store, behind=POLICY.short) as catalog:
        if catalog is not None:
            return _positions(rows_now(store, catalog, query))
    return None


def positions_met(store: DataFile, query: Query, problem: Problem) -> Int64:
    """Return ascending positions of the files that match, with or without a valid catalog.

    problem, raises, cost  as `all_rows`
    """
    return _positions(all_rows(store, contextlib.nullcontext(), problem, query))


def _positions(found: Iterator[FileTable]) -> Int64:
    return np.sort(np.concatenate([np.empty(0, np.int64), *(rows.pos for rows in found)]))


def settled(store: DataFile, rows: FileTable, query: Query, problem: Problem) -> FileTable:
    """Read the inodes of incomplete rows -> the rows without those that do not match.

    problem  called with each damaged inode or attributes; the row is left out
    cost     one read for each incomplete row
    """
    kept = np.ones(len(rows), bool)
    for i in np.flatnonzero(rows.asked).tolist():
        try:
            kept[i] = _matches(store, rows.names[i], int(rows.pos[i]), query)
        except CorruptError as error:
            problem(error)
            kept[i] = False
    return rows if kept.all() else rows.take(kept)


def _matches(store: DataFile, name: bytes, pos: int, query: Query) -> bool:
    """Return whether a file matches, by its inode. Raises CorruptError."""
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
    """Return values of the files whose inodes are in [low, high), as far as the catalog has them.

    ->    ascending positions of the inodes, int64[n], and n values of each column; a column that
          the container lacks is null. None without a valid catalog
    cost  reads the numbers and those columns of all blocks that have such files
    """
    with believed(store) as catalog:
        if catalog is None:
            return None
        parts = [run.values_between(low, high, typed) for run in catalog.runs]
        return in_order(itertools.chain.from_iterable(parts), typed)
    return None


def in_order(
    parts: Iterable[tuple[Int64, dict[str, Column]]], typed: Mapping[str, str]
) -> tuple[Int64, dict[str, Column]]:
    """Join positions and values of files, in ascending order of the positions."""
    none = np.empty(0, np.int64), {name: Column.nulls(typed[name], 0) for name in typed}
    places, columns = zip(none, *parts, strict=True)
    pos = np.concatenate(places)
    order = np.argsort(pos)
    return pos[order], {
        name: Column.concat([part[name] for part in columns]).take(order) for name in typed
    }


# --- the files of a selection ---


def select(container: Store | str, selection: Selection, problem: Problem = raise_it) -> FileTable:
    """Return the chosen files of a container, an open store or BASE, in order of their inodes.

    Paths are looked up in the index, all else in the catalog. Without a valid catalog, times are
    looked up in BASE.time in an append-only container, and otherwise all inodes are read.

    problem  called with each damaged inode, which is left out
    raises   NoSuchFile; FormatError; OSError; CorruptError
    cost     one look-up a path; otherwise one pass over the blocks of the catalog that may have
             such files, or over the inodes
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
        parts = [files_at(container, positions[at : at + FILES_AT_ONCE], problem)
                 for at in range(0, len(positions), FILES_AT_ONCE)]  # fmt: skip
    return FileTable.concat([rows.take(selection.chosen(rows)) for rows in parts])


def from_catalog(store: Store, selection: Selection, problem: Problem) -> FileTable | None:
    """Return the chosen files, in order of their inodes; None: there is no valid catalog."""
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
    """Return the chosen files of rows of the catalog.

    query   that found the rows: that of the selection or a part of it
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
    """Return the query of a selection. Globs and paths are not part of it: `chosen` checks them."""
    from winkfs.container.where import Comparison, Compound  # late: most commands have no condition

    where = [] if selection.where is None else [selection.where]
    if selection.min_size is not None:
        where.append(Comparison("size", ">=", min(selection.min_size, LAST), "int64"))
    if selection.max_size is not None:
        where.append(Comparison("size", "<=", min(selection.max_size, LAST), "int64"))
    times = selection.since, selection.until
    return Query.of_prefix(selection.prefix, times, Compound(tuple(where)) if where else None)


def by_paths(store: Store, paths: tuple[bytes, ...], problem: Problem = raise_it) -> FileTable:
    """Return the files with these names, in order of their inodes; missing names are left out.

    cost    one look-up a name, and reads the inodes
    """
    keys = [path + INODE for path in dict.fromkeys(paths) if path]
    positions = store.index.candidates(keys)
    rows = files_at(store, np.unique(positions[positions > 0]), problem)
    names = dict(zip(rows.pos.tolist(), rows.names, strict=True))
    pairs = zip(keys, positions.tolist(), strict=True)
    if all(pos <= 0 or names.get(pos) == name_of(key) for key, pos in pairs):
        return rows
    # Two keys share a hash: look them up in the ordinary way.
    found = sorted({pos for pos in map(store.index.lookup, keys) if pos})
    return files_at(store, np.array(found, np.int64), problem)


def between_times(positions: Int64, store: Store, low: int | None, high: int | None) -> Int64:
    """Return those of ascending positions that lie between the time marks around [low, high),
    nanoseconds; in a container that is not append-only, all."""
    times = store.times
    if times is None:
        return positions
    start = 0 if low is None else times.start(low // NANO)
    stop = None if high is None else times.stop(-(-high // NANO))
    last = len(positions) if stop is None else np.searchsorted(positions, stop)
    return positions[np.searchsorted(positions, start) : last].copy()


# --- files by their inodes ---


def columns_between(base: str, low: int, high: int, problem: Problem = raise_it) -> FileTable:
    """Return the files of a container whose inodes are in [low, high), in order of these.

    problem  called with each damaged inode, which is left out
    raises   NoSuchFile; FormatError; OSError
    cost     opens an index; see `columns_at`
    """
    with Store(base_of(base), writable=False) as store:
        return columns_at(store, between(store, low, high), problem)


def between(store: Store, low: int, high: int) -> Int64:
    """Return positions in [low, high) of the inodes of a container, ascending."""
    positions = store.index.positions()
    start, stop = np.searchsorted(positions, [low, max(low, high)]).tolist()
    return positions[start:stop]


def columns_at(store: Store, positions: Int64, problem: Problem = raise_it) -> FileTable:
    """Return the files whose inodes are at these ascending positions.

    problem  called with each damaged inode, which is left out
    raises   CorruptError; OSError
    cost     one pass over the blocks of the catalog that may have them; if these have many other
             files, the inodes are read
    """
    known = FileTable.concat(list(catalogued(store, positions)))
    rest = positions if not len(known) else np.setdiff1d(positions, known.pos, assume_unique=True)
    found = FileTable.concat([known, files_at(store, rest, problem)]) if len(rest) else known
    return found.by_position()


def catalogued(store: Store, positions: Int64, *, dense: bool = True) -> Iterator[FileTable]:
    """Yield the files with these inodes that the catalog has, a block at a time.

    dense  none if more than ROWS_PER_INODE rows would be decoded for each of them
    """
    with believed(store) as catalog:
        if catalog is not None and len(positions):
            yield from catalog.at(positions, ROWS_PER_INODE if dense else 1 << 62)
