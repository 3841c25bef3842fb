"""PlannedPiece of a plan that opens containers: selected files, and their order."""

from __future__ import annotations

import contextlib
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError, raise_it
from winkfs.arrow.named import FoundStore
from winkfs.arrow.pieces import (
    OPEN,
    ROW,
    Cuts,
    Listed,
    Piece,
    PlannedPiece,
    listed,
    pack,
    piece_of,
    weight_of,
    weights_of,
)
from winkfs.container.catalog import open_catalog
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.select import select
from winkfs.container.store import Store
from winkfs.container.table import FileTable
from winkfs.dataset.manifest import Log
from winkfs.dataset.records import Manifest
from winkfs.dataset.shard import NOTHING, Shard
from winkfs.dataset.snapshot import plain_shard, snapshot_of
from winkfs.errors import DerivedDamage, StalePlan
from winkfs.results import orders
from winkfs.spark.reading.chosen import of_container
from winkfs.spark.reading.options import Options
from winkfs.spark.reading.partition import Ordered, Scan, scans, task_count
from winkfs.spark.reading.stores import shards_of, worth_opening

MAX_SMALL_CATALOG: Final = 64  # blocks of a catalog that is cut between any files, not blocks,
MIN_TASK_BLOCKS: Final = 8  # if a task has fewer than so many blocks


def part_now(
    options: Options, contents: bool, base: str, shard: Shard | None = None, generation: int = 0
) -> PlannedPiece | None:
    """Return the selected files of a container in its current state; None: there are none.

    shard   of a data set; None: a single container
    """
    with Store(base, writable=False, load=False) as store:
        if shard is None:
            shard = plain_shard(store)
            if not worth_opening(options, [(shard, generation)]):
                return None
        else:
            shard.check(store)
        if shard.grows and not contents and options.selection.paths is None:
            now = _listed_now(options, shard, generation, store)
            if now is not None:
                return now
        if shard.grows and contents and not options.selection.everything:
            as_planned = replace(shard.record, size=store.kv.end)
            now = of_container(options, replace(shard, record=as_planned), store)
            if now is not None:
                return now
        store.load()
        shard.check(store)
        shard = replace(shard, record=replace(shard.record, size=store.kv.end))
        if options.selection.everything:
            pos = store.index.positions()
            size = np.diff(pos, prepend=store.kv.start)
        else:
            rows = _visible(options, shard, store)
            pos, size = rows.pos, rows.size
    piece = piece_of(shard, generation)
    return PlannedPiece.of_rows(piece, pos, size, contents) if len(pos) else None


def _listed_now(
    options: Options, shard: Shard, generation: int, store: Store
) -> PlannedPiece | None:
    """Return the selected files of a container that may grow, to be listed from its catalog; None:
    the catalog is damaged or not current."""
    catalog = open_catalog(store, behind=0)
    if catalog is None:
        return None
    with catalog, contextlib.suppress(DerivedDamage):
        if not catalog.count:
            return None
        record = replace(shard.record, size=store.kv.end, files=catalog.count)
        shard = replace(shard, record=record)
        piece = listed(piece_of(shard, generation), options.selection)
        piece = replace(piece, place=catalog.place)
        part = PlannedPiece(piece, OPEN + weight_of(shard, False), NOTHING)
        return _with_cuts(options, part, catalog)
    return None


def with_cuts(options: Options, part: PlannedPiece, shard: Shard) -> PlannedPiece:
    """Add the names where a listed shard can be cut, from its catalog; without an intact catalog
    one task lists it all. Cost: opens the catalog; if files are hidden, reads it."""
    with shard.open(load=False) as store:
        catalog = open_catalog(store, behind=0)
        if catalog is None:
            return part
        with catalog, contextlib.suppress(DerivedDamage):
            return _with_cuts(options, part, catalog)
    return part


def _with_cuts(options: Options, part: PlannedPiece, catalog: Catalog) -> PlannedPiece:
    """Add the names where a listed shard can be cut. Raises DerivedDamage."""
    piece, hidden = part.piece, part.hidden
    assert isinstance(piece, Listed)
    run = catalog.runs[0]
    names, starts = run.firsts, np.array(run.starts[:-1], np.int64)
    tasks = task_count(options, part.weight, 0)
    if tasks > 1 and len(names) <= min(MAX_SMALL_CATALOG, MIN_TASK_BLOCKS * tasks):
        names, starts = catalog.names(0, catalog.count), np.arange(catalog.count)
    first = bisect_right(names, piece.first)
    stop = len(names) if piece.stop is None else bisect_left(names, piece.stop)
    weight = OPEN + (part.weight - OPEN) * (stop - first + 1) // (len(names) + 1)
    places = np.zeros(stop - first, np.int64)
    if len(hidden):
        if len(catalog.runs) > 1:
            return part
        pos = run.positions()
        gone = np.isin(pos, hidden)
        before = np.concatenate([[0], np.cumsum(gone)])
        places = before[starts[first:stop]]
        hidden = pos[gone]
    cuts = Cuts(names[first:stop], places.tolist())
    return replace(part, weight=weight, hidden=hidden, cuts=cuts)


def _selected(options: Options, shard: Shard) -> FileTable:
    """Return the selected visible files of a shard."""
    with shard.open() as store:
        return _visible(options, shard, store)


def _visible(options: Options, shard: Shard, store: Store) -> FileTable:
    """Return the selected visible files of an open shard, leaving the page cache as it was except
    for the index."""
    drop = store.kv.storage.dropper(0, store.kv.end)
    try:
        rows = select(store, options.selection, _problem(options))
    finally:
        if drop is not None:
            drop(0, store.kv.end)
    return rows.visible(shard.hidden, include_dirs=options.include_dirs)


def _problem(options: Options) -> Callable[[CorruptError], None]:
    """Return what to do with a damaged inode, whose name is unknown: ignore it, or end the job."""
    return raise_it if options.mode == "FAILFAST" else lambda error: None


# --- orders ---


def in_order(
    options: Options, contents: bool, shards: list[tuple[Shard, int]]
) -> list[Scan | Ordered]:
    """Return the tasks of all files by path or mtime; stable."""
    found = [(shard, number, _selected(options, shard)) for shard, number in shards]
    found = [(shard, number, rows) for shard, number, rows in found if len(rows)]
    if not found:
        return []
    pieces = [piece_of(shard, number) for shard, number, _ in found]
    columns = [rows for _, _, rows in found]
    if options.order == "path":
        names = [name for rows in columns for name in rows.names]
        order = np.array(sorted(range(len(names)), key=names.__getitem__))
    else:
        order = np.argsort(np.concatenate([rows.mtime for rows in columns]), kind="stable")
    shard = np.repeat(np.arange(len(columns)), list(map(len, columns)))[order]
    pos = np.concatenate([rows.pos for rows in columns])[order]
    weights = weights_of(np.concatenate([rows.size for rows in columns])[order], contents)
    return _cut(options, pieces, shard, pos, weights)


def _cut(
    options: Options, pieces: list[Piece], shard: Int64, pos: Int64, weights: Int64
) -> list[Scan | Ordered]:
    """Divide ordered rows into tasks that are sent their positions."""
    ends = np.cumsum(weights)
    count = task_count(options, int(ends[-1]), len(pos))
    cuts = np.searchsorted(ends - weights, ends[-1] * (np.arange(count + 1) / count))
    made: list[Scan | Ordered] = []
    for a, b in itertools.pairwise(np.unique(cuts).tolist()):
        used, number = np.unique(shard[a:b], return_inverse=True)
        mine = tuple(pieces[i] for i in used.tolist())
        made.append(Ordered(mine, pack(number), pack(pos[a:b])))
    return made


def by_order(options: Options, contents: bool, stores: list[FoundStore]) -> list[Scan | Ordered]:
    """Return the tasks in the order `perm:FOLDER`, as of the generation that was ordered."""
    folder = options.order.removeprefix("perm:")
    order = orders.open(folder)
    if len(stores) != 1:
        raise ValueError("orderBy=perm is for one container or data set")
    if options.as_of is not None and options.as_of.strip() != str(order.generation):
        raise ValueError(f"{folder} is an order of generation {order.generation}: leave out asOf")
    kind, root = stores[0]
    at = replace(options, as_of=str(order.generation)) if kind.versions else options
    shards = shards_of(at, stores)
    pieces = _pieces_of(order, root, shards)
    content = sum(part.size for part in order.parts) if contents else 0
    if options.selection.everything:
        count = task_count(options, content + ROW * order.rows, 0)
        ranges = order.ranges(-(-order.rows // count))
        return [Ordered(pieces, order=(folder, *where)) for where in ranges]
    rows = [order.read(orders.Range(n, 0, part.rows)) for n, part in enumerate(order.parts)]
    shard = np.concatenate([part.shard for part in rows])
    pos = np.concatenate([part.pos for part in rows])
    chosen = np.zeros(len(pos), bool)
    size = np.zeros(len(pos), np.int64)
    by_base = {shard.base: shard for shard, _ in shards}
    for number, piece in enumerate(pieces):
        found = _selected(options, by_base[piece.base])
        mine = np.flatnonzero(shard == number)
        mine = mine[np.isin(pos[mine], found.pos)]
        chosen[mine] = True
        size[mine] = found.size[np.searchsorted(found.pos, pos[mine])]
    if not chosen.any():
        return []
    weights = weights_of(size[chosen], contents)
    return _cut(options, list(pieces), shard[chosen], pos[chosen], weights)


def _pieces_of(
    order: orders.Order, root: str, shards: list[tuple[Shard, int]]
) -> tuple[Piece, ...]:
    """Return the containers of an order by their numbers in it. Raises StalePlan."""
    known = {shard.base: (shard, number) for shard, number in shards}
    found = []
    for ordered in order.shards:
        base = f"{root}/{ordered.path}" if ordered.path else root
        if base not in known or known[base][0].record.contid != ordered.contid:
            raise StalePlan(f"the order {order.folder} is of other files: make it anew", base)
        found.append(replace(piece_of(*known[base]), size=ordered.size))
    return tuple(found)


# --- changes of commits ---


def changes(options: Options, contents: bool, stores: list[FoundStore]) -> list[Scan | Ordered]:
    """Return the tasks of the files that the commits of a data set put and deleted.

    raises  ValueError for other stores; StalePlan if a shard or a generation was vacuumed
    cost    reads the manifests, and finds the files of a commit that its own shards hide
    """
    if len(stores) != 1 or not stores[0][0].versions:
        raise ValueError("readChanges is for one data set: only that has generations")
    log = Log(stores[0][1])
    newest = log.newest()
    first, last = options.first or 1, newest if options.last is None else options.last
    if last > newest:
        raise ValueError(f"endingGeneration is {last}, and the newest is {newest}")
    parts: list[PlannedPiece] = []
    for number in range(max(first, log.head().oldest), last + 1):
        manifest = log.read(number)
        if not manifest.rewrites:
            parts += _changes_of(log, manifest, contents)
    if options.first is not None and options.first < log.head().oldest:
        raise StalePlan(f"generation {options.first} was vacuumed: begin at "
                        f"{log.head().oldest}", log.root)  # fmt: skip
    return scans(options, parts) if parts else []


def _changes_of(log: Log, manifest: Manifest, contents: bool) -> Iterator[PlannedPiece]:
    """Yield the files that one commit deleted, then those that it put."""
    number, added = manifest.generation, {record.path for record in manifest.added}
    if manifest.removed:
        for shard in snapshot_of(log, log.state(number - 1)).shards:
            if shard.record.path in manifest.removed and shard.record.files:
                piece = replace(piece_of(shard, number), gone=True)
                yield PlannedPiece(piece, OPEN + weight_of(shard, False), shard.hidden)
    for shard in snapshot_of(log, log.state(number)).shards if added else ():
        record = shard.record
        if record.path in added and record.tombstones:
            piece = replace(piece_of(shard, number), gone=True, tombs=record.tombs_at)
            # as one row, so that it is in one task only
            yield PlannedPiece.of_rows(piece, np.array([record.size - 1]), np.array([0]), False)
        if record.path in added and record.files > len(shard.hidden):
            weight = OPEN + weight_of(shard, contents)
            yield PlannedPiece(piece_of(shard, number), weight, shard.hidden)
