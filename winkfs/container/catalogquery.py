"""What is asked of the catalog of an open container, with what came after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError, DerivedDamage
from winkfs.container.catalog import POLICY, build, changed_rows, open_catalog
from winkfs.container.datafile import DataFile
from winkfs.container.ondisk.catalog import Catalog, Run
from winkfs.container.ondisk.inode import ATTRS, attributes
from winkfs.container.ondisk.typed import Column, Schema
from winkfs.container.recovery import tail
from winkfs.container.survey import Problem
from winkfs.container.table import ALWAYS, FileTable, Times, joined, live, some
from winkfs.container.where import Condition
from winkfs.entry import FileType
from winkfs.names import after
from winkfs.units import LAST


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

    def of_first(self, run: Run, *, alone: bool) -> Iterator[FileTable]:
        """The rows of the first run that may be meant. `alone`: there are no later ones."""
        columns = self.columns if alone else self.needed
        return run.rows(self.low, self.high, self.times, self.where, columns, self.at_once)

    def of_later(self, run: Run) -> Iterator[FileTable]:
        """All rows of a later run: one may hide a row of the first, and not be meant itself."""
        return run.rows(self.low, self.high, columns=self.needed, at_once=self.at_once)

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that the rows must have, so that the condition can be asked of them."""
        asked = () if self.where is None else self.where.columns()
        return tuple(dict.fromkeys([*self.columns, *asked]))

    def kept(self, rows: FileTable, schema: Schema) -> FileTable:
        """Those of some rows that are meant, and those that have to be asked."""
        kept = rows.within(self.times)
        if self.where is not None:
            asked = {name: schema[name] for name in self.where.columns() & schema.keys()}
            kept &= rows.met(self.where, rows.columns(asked))
        return rows.take(kept | rows.asked)


def rows_now(
    store: DataFile, catalog: Catalog, query: Query, *, end: int | None = None
) -> Iterator[FileTable]:
    """The live rows that are meant, also of what came after the catalog, in order.

    Rows that do not say all are there whatever their mtimes and values.

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
    runs = [query.of_first(first, alone=alone), *map(query.of_later, others)]
    found = live(joined([*runs, iter(later)]))
    if query.times == ALWAYS and (query.where is None or alone):
        return found
    schema = dict(store.schema)
    rest = query._replace(where=None) if alone else query
    return filter(some, (rest.kept(rows, schema) for rows in found))


def nearby(store: DataFile) -> Catalog | None:
    """As `open_catalog`; None where it is far behind, too."""
    catalog = open_catalog(store)
    if catalog is None or store.kv.end - catalog.covered <= POLICY.short:
        return catalog
    catalog.close()
    return None


def all_rows(
    store: DataFile, lock: AbstractContextManager[object], lost: Problem, query: Query
) -> Iterator[FileTable]:
    """The live rows that are meant, in byte order of the names, as of the call.

    lock    what guards the store while it is read; the caller has settled what it put
    lost    see `read_rows`
    raises  CorruptError; OSError
    cost    as `rows_now`; where there is no good catalog, or it is far behind, one is made first,
            in a scratch file
    """
    with lock:
        catalog = nearby(store) or build(store, save=False, lost=lost)
        try:
            found = rows_now(store, catalog, query)
        except CorruptError:
            catalog.close()
            raise
    return _healed(store, lock, catalog, found, query)


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
            low = rows.names[-1] + b"\0"
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
    catalog = nearby(store)
    if catalog is None:
        return None
    with catalog:
        try:
            found = [part.pos for part in rows_now(store, catalog, query)]
        except DerivedDamage as error:
            store.remark(error)
            return None
    return np.sort(np.concatenate([np.empty(0, np.int64), *found]))


def positions_met(store: DataFile, query: Query, problem: Problem) -> Int64:
    """Ascending positions of the files that are meant, whether there is a good catalog or not.

    problem  called with each file that has to be asked and is damaged; it is left out
    raises   CorruptError; OSError
    cost     as `all_rows`
    """
    found = all_rows(store, contextlib.nullcontext(), problem, query)
    parts = [settled(store, rows, query, problem).pos for rows in found]
    return np.sort(np.concatenate([np.empty(0, np.int64), *parts]))


def settled(store: DataFile, rows: FileTable, query: Query, problem: Problem | None) -> FileTable:
    """The same rows without those that have to be asked and then are not meant.

    problem  called with each of those whose inode or attributes are damaged; it is left out. None:
             CorruptError
    cost     one read for each row that has to be asked
    """
    asked = np.flatnonzero(rows.asked)
    if not len(asked):
        return rows
    kept = np.ones(len(rows), bool)
    for i in asked.tolist():
        try:
            kept[i] = _is_meant(store, rows.names[i], int(rows.pos[i]), query)
        except CorruptError as error:
            if problem is None:
                raise
            problem(error)
            kept[i] = False
    return rows.take(kept)


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
    size, mtime = np.array([inode.lsize]), np.array([min(max(ns, -LAST - 1), LAST)])
    kind = inode.ftype or FileType.FILE
    table = FileTable.of([name], np.array([pos]), 0, size, mtime, 0, kind)
    table.values = np.empty(1, object)
    table.values[0] = attrs.encode()[ATTRS.size :]
    return bool(table.met(query.where, table.columns(store.schema))[0])


def values_between(
    store: DataFile, low: int, high: int, typed: Mapping[str, str]
) -> tuple[Int64, dict[str, Column]] | None:
    """The values of the files whose inodes stand in [low, high), as far as the catalog goes.

    ->    ascending positions of the inodes, int64[n], and n values of each column; a column that
          the container lacks is null. None where there is no good catalog
    cost  reads the numbers and those columns of all blocks that have such files
    """
    catalog = open_catalog(store)
    if catalog is None:
        return None
    places = [np.empty(0, np.int64)]
    columns: dict[str, list[Column]] = {
        name: [Column.nulls(kind, 0)] for name, kind in typed.items()
    }
    with catalog:
        try:
            for run in catalog.runs:
                for pos, found in run.values_between(low, high, typed):
                    places.append(pos)
                    for name, column in found.items():
                        columns[name].append(column)
        except DerivedDamage as error:
            store.remark(error)
            return None
    pos = np.concatenate(places)
    order = np.argsort(pos)
    joined = {name: Column.concat(parts).take(order) for name, parts in columns.items()}
    return pos[order], joined
