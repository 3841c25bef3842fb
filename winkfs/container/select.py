"""Select: files by name, time, size and type, through the index that answers soonest."""

from __future__ import annotations

from collections.abc import Iterator
from operator import eq
from typing import Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import DerivedDamage, raise_it
from winkfs.container.catalog import open_catalog
from winkfs.container.catalogquery import Query, nearby, positions_met, rows_now, settled
from winkfs.container.scan import narrow
from winkfs.container.selection import Selection
from winkfs.container.store import Store
from winkfs.container.survey import Problem, files_at
from winkfs.container.table import FileTable
from winkfs.container.where import Asked, Both
from winkfs.names import INODE, base_of, name_of
from winkfs.units import LAST

FILES: Final = 1 << 16  # read from the data file at a time
SPARSE: Final = 64  # rows of the catalog that are decoded rather than read one inode


def select(
    container: Store | str, selection: Selection, problem: Problem | None = None
) -> FileTable:
    """The chosen files of a container, an open store or BASE, in order of their inodes.

    By paths through the index, all else through the catalog; where there is no good one, by time in
    an append-only container through BASE.time, else all inodes.

    problem  called with each damaged inode, which is left out; None: CorruptError
    raises   NoSuchFile; FormatError; OSError
    cost     one look-up a path; else one pass over the blocks of the catalog that may have such
             files, or over the inodes
    """
    if isinstance(container, Store):
        return _select(container, selection, problem)
    with Store(base_of(container), writable=False) as store:
        return _select(store, selection, problem)


def _select(store: Store, selection: Selection, problem: Problem | None) -> FileTable:
    if selection.paths is not None:
        rows = by_paths(store, selection.paths, problem)
        if selection.where is not None:
            query = Query.of_prefix(selection.prefix, where=selection.where)
            rows = rows.take(np.isin(rows.pos, positions_met(store, query, problem or raise_it)))
        return rows.take(selection.chosen(rows))
    found = from_catalog(store, selection, problem)
    if found is not None:
        return found
    if selection.where is not None:
        query = Query.of_prefix(selection.prefix, where=selection.where)
        positions = positions_met(store, query, problem or raise_it)
    else:
        positions = store.index.positions()
    if store.times is not None:
        positions = narrow(positions, store, selection.since, selection.until)
    parts = [files_at(store, positions[at : at + FILES], problem)
             for at in range(0, len(positions), FILES)]  # fmt: skip
    return FileTable.concat([rows.take(selection.chosen(rows)) for rows in parts])


def from_catalog(store: Store, selection: Selection, problem: Problem | None) -> FileTable | None:
    """The chosen files, in order of their inodes; None: there is no good catalog."""
    catalog = nearby(store)
    if catalog is None:
        return None
    query = query_of(selection)
    with catalog:
        try:
            found = FileTable.concat([
                listed(store, rows, query, selection, problem)
                for rows in rows_now(store, catalog, query)
            ])  # fmt: skip
        except DerivedDamage as error:
            store.remark(error)
            return None
    return found.by_position()


def listed(
    store: Store, rows: FileTable, query: Query, selection: Selection, problem: Problem | None
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


def by_paths(store: Store, paths: tuple[bytes, ...], problem: Problem | None = None) -> FileTable:
    """The files with these names, in order of their inodes; names that are not there are left out.

    cost    one look-up a name, and reads the inodes
    """
    keys = [path + INODE for path in dict.fromkeys(paths) if path]
    positions = store.index.candidates(keys)
    order = np.argsort(positions, kind="stable")
    order = order[np.searchsorted(positions[order], 1) :]
    rows = files_at(store, np.unique(positions[order]), problem)
    names = dict(zip(rows.pos.tolist(), rows.names, strict=True))
    asked = [name_of(keys[i]) for i in order.tolist()]
    same = list(map(eq, map(names.get, positions[order].tolist()), asked))
    if all(same):
        return rows
    # The cell of another key with the same hash: look it up in the ordinary way.
    others = [store.index.lookup(asked[i] + INODE) for i, ok in enumerate(same) if not ok]
    good = positions[order][np.array(same, bool)]
    known = rows.take(np.isin(rows.pos, good))
    more = np.setdiff1d(np.array([pos for pos in others if pos], np.int64), good)
    rows = FileTable.concat([known, files_at(store, more, problem)])
    return rows.by_position()


def columns_between(base: str, low: int, high: int, problem: Problem | None = None) -> FileTable:
    """The files of a container whose inodes stand in [low, high), in order of these.

    problem  called with each damaged inode, which is left out; None: CorruptError
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


def columns_at(store: Store, positions: Int64, problem: Problem | None = None) -> FileTable:
    """The files whose inodes stand at these ascending positions.

    problem  called with each damaged inode, which is left out; None: CorruptError
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
    catalog = open_catalog(store) if len(positions) else None
    if catalog is not None:
        with catalog:
            try:
                yield from catalog.at(positions, SPARSE)
            except DerivedDamage as error:
                store.remark(error)
