"""Select: files by name, time, size and type, through the index that answers soonest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from operator import eq
from typing import Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkfs.container.catalog import Query, positions_met, positions_of
from winkfs.container.columns import Columns
from winkfs.container.ondisk.cols import Chunk, ColumnsFile, open_columns
from winkfs.container.scan import narrow
from winkfs.container.selection import Selection
from winkfs.container.store import Store
from winkfs.names import INODE, base_of, name_of

Problem = Callable[[CorruptError], None]
FILES: Final = 1 << 16  # read from the data file at a time
FEW: Final = 64  # a part of all files that is read from the data file though there is BASE.cols


def select(container: Store | str, selection: Selection, problem: Problem | None = None) -> Columns:
    """The chosen files of a container, an open store or BASE, in order of their inodes.

    By paths through the index, by prefix through BASE.cat, by time in an append-only container
    through BASE.time; all else through BASE.cols, where it is there, or all inodes.

    problem  called with each damaged inode, which is left out; None: CorruptError
    raises   NoSuchFile; FormatError; OSError
    cost     one look-up a path; two binary searches a prefix; else one pass over BASE.cols, or over
             the inodes
    """
    if isinstance(container, Store):
        return _select(container, selection, problem)
    if selection.paths is None and not selection.prefix and selection.where is None:
        with contextlib.suppress(CorruptError):  # as if it were missing
            found = open_columns(container)
            if found is not None:
                with found:
                    return in_file(found, selection)
    store = Store(base_of(container), writable=False)
    try:
        return _select(store, selection, problem)
    finally:
        store.abandon()


def _select(store: Store, selection: Selection, problem: Problem | None) -> Columns:
    positions = None
    if selection.where is not None:
        query = Query.of_prefix(selection.prefix, where=selection.where)
        positions = positions_met(store, query, problem or _raise)
    if selection.paths is not None:
        rows = by_paths(store, selection.paths, problem)
        rows = rows if positions is None else rows.take(np.isin(rows.pos, positions))
        return rows.take(selection.chosen(rows))
    if positions is None and selection.prefix:
        positions = positions_of(store, Query.of_prefix(selection.prefix))
    few = positions is not None and len(positions) < store.index.count // FEW
    file = None if few or selection.where is not None else open_columns(store)
    if file is not None:
        with file:
            try:
                return in_file(file, selection)
            except CorruptError as error:  # as if it were missing
                store.note(error)
    if positions is None:
        positions = store.index.positions()
    if store.times is not None:
        positions = narrow(positions, store, selection.since, selection.until)
    parts = _read(store, positions, problem)
    return Columns.concat([rows.take(selection.chosen(rows)) for rows in parts])


def _read(store: Store, positions: Int64, problem: Problem | None) -> Iterator[Columns]:
    for at in range(0, len(positions), FILES):
        yield Columns.of(store, positions[at : at + FILES], problem)


def _raise(error: CorruptError) -> None:
    raise error


def in_file(file: ColumnsFile, selection: Selection) -> Columns:
    """The chosen ones of BASE.cols. Raises CorruptError.

    Reads no chunk that by its mtimes and sizes has none, and of one whose files have others only
    these columns.
    """
    parts = []
    for number, row in enumerate(file.chunks.tolist()):
        if not selection.may_be_in(Chunk(*row)):
            continue
        if selection.by_number:
            columns = [file.column_of(number, name) for name in ("mtime", "size", "ftype")]
            if not selection.numbers(*columns).any():
                continue
        rows = file.chunk(number)
        chosen = selection.chosen(rows)
        parts.append(rows if chosen.all() else rows.take(chosen))
    return Columns.concat([part for part in parts if len(part)])


def by_paths(store: Store, paths: tuple[bytes, ...], problem: Problem | None = None) -> Columns:
    """The files with these names, in order of their inodes; names that are not there are left out.

    cost    one look-up a name, and reads the inodes
    """
    keys = [path + INODE for path in dict.fromkeys(paths) if path]
    positions = store.index.candidates(keys)
    order = np.argsort(positions, kind="stable")
    order = order[np.searchsorted(positions[order], 1) :]
    rows = Columns.of(store, np.unique(positions[order]), problem)
    names = dict(zip(rows.pos.tolist(), rows.names(), strict=True))
    asked = [name_of(keys[i]) for i in order.tolist()]
    same = list(map(eq, map(names.get, positions[order].tolist()), asked))
    if all(same):
        return rows
    # The cell of another key with the same hash: look it up in the ordinary way.
    others = [store.index.lookup(asked[i] + INODE) for i, ok in enumerate(same) if not ok]
    good = positions[order][np.array(same, bool)]
    known = rows.take(np.isin(rows.pos, good))
    more = np.setdiff1d(np.array([pos for pos in others if pos], np.int64), good)
    rows = Columns.concat([known, Columns.of(store, more, problem)])
    return rows.take(np.argsort(rows.pos))


def columns_between(
    base: str, low: int, high: int, problem: Callable[[CorruptError], None] | None = None
) -> Columns:
    """The files of a container whose inodes stand in [low, high): from BASE.cols where it is good.

    problem  called with each damaged inode, which is left out; None: CorruptError
    raises   NoSuchFile; FormatError; OSError
    cost     reads that part of BASE.cols; without it an index is opened, and inodes are read: see
             `Columns.of`
    """
    found = open_columns(base)
    if found is not None:
        with found, contextlib.suppress(CorruptError):  # as if it were missing
            return found.between(low, high)
    store = Store(base_of(base), writable=False)
    try:
        positions = store.index.positions()
        start, stop = np.searchsorted(positions, [low, max(low, high)]).tolist()
        return Columns.of(store, positions[start:stop], problem)
    finally:
        store.abandon()
