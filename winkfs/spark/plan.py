"""From a snapshot and a selection to partitions, by bytes. Runs in a short process on the driver.

A data set's shards never change: a task is told a range of positions and finds the files itself.
A container may grow while a query runs, so its tasks are told their files, as of the plan.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from winkformats.errors import CorruptError
from winkformats.storage import FileStorage
from winkfs import orders
from winkfs.columns import Columns
from winkfs.columnsfile import open_columns
from winkfs.datafile import base_of
from winkfs.dataset.manifest import is_dataset
from winkfs.dataset.shard import Shard
from winkfs.dataset.snapshot import snapshot
from winkfs.errors import NoSuchFile, StalePlan
from winkfs.inode import FileType
from winkfs.rows import Int64
from winkfs.select import select
from winkfs.spark.options import Options
from winkfs.spark.partition import Ordered, Piece, Scan, pack
from winkfs.store import Store

SPLIT: Final = 128 << 20  # bytes of a task, at most
WORTH: Final = 16 << 20  # bytes that are worth a task of their own, which costs 20 ms of CPU
ROW: Final = 256  # bytes that a row counts beside its content: its path, its share of the engine
OPEN: Final = 64 << 10  # bytes that a container counts
MOST: Final = 1 << 20  # rows of a task that is told them, about: 2 MiB of positions


@dataclass(frozen=True, slots=True)
class Part:
    """A piece that may be cut.

    rows     positions of its inodes; None: a range of positions
    weights  of the rows, bytes
    """

    piece: Piece
    weight: int
    rows: Int64 | None = None
    weights: Int64 | None = None

    def cut(self, low: float, high: float) -> Piece | None:
        """What weighs in from `low` to `high`, of 0 to `weight`; None where that is no file."""
        if self.rows is None or self.weights is None:
            start, room = self.piece.low, self.piece.high - self.piece.low
            a, b = (start + int(room * part / self.weight) for part in (low, high))
            return replace(self.piece, low=a, high=b) if a < b else None
        starts = np.cumsum(self.weights) - self.weights
        i, k = np.searchsorted(starts, [low, high]).tolist()
        if i == k:
            return None
        rows, upto = self.rows[i:k], int(self.rows[k - 1]) + 1
        before = int(self.rows[i - 1]) + 1 if i else 0
        return replace(self.piece, low=before, high=upto, rows=pack(rows))


def partitions(options: Options, *, contents: bool) -> list[Scan | Ordered]:
    """The tasks of a scan.

    contents  whether contents are read, not only what is known of files
    raises    NoSuchFile, StalePlan, ValueError, FormatError, OSError
    cost      without a selection none but reading the manifest; a selection: see `select`
    """
    if options.order.startswith("perm:"):
        return _by_order(options, contents)
    shards = _shards(options)
    if options.order != "offset":
        return _sorted(options, contents, shards)
    parts = [part for shard, number in shards for part in _parts(options, contents, shard, number)]
    return scans(options, parts)


def _shards(options: Options, as_of: int | str | None = None) -> list[tuple[Shard, int]]:
    """-> shards, and the generation they are of."""
    found = []
    for path in dict.fromkeys(p for source in options.sources for p in expand(source)):
        seen = snapshot(path, options.as_of if as_of is None else as_of)
        found += [(shard, seen.generation) for shard in seen.shards]
    return found


def expand(source: str) -> list[str]:
    """The containers and data sets that a path or pattern names, absolute.

    raises  NoSuchFile
    """
    path = os.path.abspath(source)
    if is_dataset(path) or os.path.exists(base_of(path) + ".data"):
        return [path if is_dataset(path) else base_of(path)]
    if glob.has_magic(path):
        bases = [name.removesuffix(".data") for name in glob.glob(f"{base_of(path)}.data")]
        found = sorted({*filter(is_dataset, glob.glob(path)), *bases})
        if found:
            return found
        raise NoSuchFile("no container or data set fits this pattern", source)
    raise NoSuchFile("no such container or data set (there is no BASE.data)", source)


# --- pieces ---


def _parts(options: Options, contents: bool, shard: Shard, generation: int) -> Iterator[Part]:
    if not shard.grows and options.selection.everything:
        record = shard.record
        if record.files > len(shard.hidden):
            weight = ROW * record.files + (record.size if contents else 0)
            yield Part(_piece(shard, generation), OPEN + weight)
        return
    shard, pos, size = _files(options, shard)
    if len(pos):
        weights = size + ROW if contents else np.full(len(pos), ROW, np.int64)
        weights[0] += OPEN
        yield Part(_piece(shard, generation), int(weights.sum()), pos, weights)


def _piece(shard: Shard, generation: int) -> Piece:
    record = shard.record
    hidden = pack(shard.hidden) if len(shard.hidden) else None
    return Piece(
        shard.base, record.contid, record.size, shard.grows, 0, record.size,
        hidden=hidden, generation=generation,
    )  # fmt: skip


def _files(options: Options, shard: Shard) -> tuple[Shard, Int64, Int64]:
    """-> the shard as of now, positions of its chosen files, and their sizes, about."""
    with _opened(shard) as store:
        shard = replace(shard, record=replace(shard.record, size=store.kv.end))
        if not options.selection.everything:
            rows = _seen(options, shard, select(store, options.selection, _problem(options)))
            return shard, rows.pos, rows.size
        pos = _positions(store)
        return shard, pos, np.diff(pos, prepend=store.kv.start)


@contextlib.contextmanager
def _opened(shard: Shard) -> Iterator[Store]:
    """Open for a moment that leaves the page cache as it was, save for the index."""
    with FileStorage(shard.base + ".data") as data:
        drop = data.dropper(0, data.size())
        store = shard.open()
        try:
            yield store
        finally:
            store.abandon()
            if drop is not None:
                drop(0, data.size())


def _positions(store: Store) -> Int64:
    """Of all inodes."""
    file = open_columns(store)
    if file is not None:
        with file, contextlib.suppress(CorruptError):  # as if it were missing
            return file.column("pos")
    return store.index.positions()


def _chosen(options: Options, shard: Shard) -> Columns:
    """The chosen files of a shard that can be seen."""
    with _opened(shard) as store:
        return _seen(options, shard, select(store, options.selection, _problem(options)))


def _seen(options: Options, shard: Shard, rows: Columns) -> Columns:
    seen = ~np.isin(rows.pos, shard.hidden) if len(shard.hidden) else np.ones(len(rows), bool)
    if not options.include_dirs:
        seen &= (rows.ftype != FileType.DIR) & (rows.ftype != FileType.LINK)
    return rows if seen.all() else rows.take(seen)


def _problem(options: Options) -> Callable[[CorruptError], None] | None:
    """A damaged inode cannot be chosen by its name: it is left out, or ends the job."""
    return None if options.mode == "FAILFAST" else lambda error: None


# --- tasks ---


def _tasks(options: Options, weight: int, rows: int) -> int:
    """Into how many tasks to cut."""
    if options.split is not None:
        count = -(-weight // options.split)
    else:
        cores = len(os.sched_getaffinity(0))
        count = max(-(-weight // SPLIT), min(weight // WORTH, cores))
        even = -(-count // cores) * cores
        count = even if even * WORTH <= weight else count
    return max(count, options.partitions, -(-rows // MOST), 1)


def scans(options: Options, parts: list[Part]) -> list[Scan | Ordered]:
    """The parts one after the other, cut into tasks of equal weight."""
    weight = sum(part.weight for part in parts)
    told = sum(len(part.rows) for part in parts if part.rows is not None)
    count = _tasks(options, weight, told)
    share = weight / count
    tasks: list[list[Piece]] = [[] for _ in range(count)]
    begin = 0
    for part in parts:
        end = begin + part.weight
        number = min(int(begin / share), count - 1)
        low = 0.0
        while low < part.weight:
            last = number == count - 1 or (number + 1) * share >= end
            high = float(part.weight) if last else (number + 1) * share - begin
            piece = part.cut(low, high)
            if piece is not None:
                tasks[number].append(piece)
            low, number = high, number + 1
        begin = end
    return [Scan(tuple(pieces)) for pieces in tasks if pieces]


# --- orders ---


def _sorted(
    options: Options, contents: bool, shards: list[tuple[Shard, int]]
) -> list[Scan | Ordered]:
    """All files by path or mtime, those of equal ones as they come."""
    found = [(shard, number, _chosen(options, shard)) for shard, number in shards]
    found = [(shard, number, rows) for shard, number, rows in found if len(rows)]
    if not found:
        return []
    pieces = [_piece(shard, number) for shard, number, _ in found]
    columns = [rows for _, _, rows in found]
    if options.order == "path":
        names = [name for rows in columns for name in rows.names()]
        order = np.array(sorted(range(len(names)), key=names.__getitem__))
    else:
        order = np.argsort(np.concatenate([rows.mtime for rows in columns]), kind="stable")
    shard = np.repeat(np.arange(len(columns)), list(map(len, columns)))[order]
    pos = np.concatenate([rows.pos for rows in columns])[order]
    weights = np.full(len(order), ROW, np.int64)
    if contents:
        weights += np.concatenate([rows.size for rows in columns])[order]
    return _told(options, pieces, shard, pos, weights)


def _told(
    options: Options, pieces: list[Piece], shard: Int64, pos: Int64, weights: Int64
) -> list[Scan | Ordered]:
    """Rows in an order, cut into tasks that are told them."""
    ends = np.cumsum(weights)
    count = _tasks(options, int(ends[-1]), len(pos))
    cuts = np.searchsorted(ends - weights, ends[-1] * (np.arange(count + 1) / count))
    made: list[Scan | Ordered] = []
    for a, b in itertools.pairwise(np.unique(cuts).tolist()):
        used, number = np.unique(shard[a:b], return_inverse=True)
        mine = tuple(pieces[i] for i in used.tolist())
        made.append(Ordered(mine, pack(number), pack(pos[a:b])))
    return made


def _by_order(options: Options, contents: bool) -> list[Scan | Ordered]:
    """As an order says that was made of this data set, as of its generation."""
    folder = options.order.removeprefix("perm:")
    order = orders.open(folder)
    sources = [path for source in options.sources for path in expand(source)]
    if len(sources) != 1:
        raise ValueError("orderBy=perm is for one container or data set")
    if options.as_of is not None and options.as_of.strip() != str(order.generation):
        raise ValueError(f"{folder} is an order of generation {order.generation}: leave out asOf")
    root = sources[0]
    shards = _shards(options, order.generation if is_dataset(root) else None)
    pieces = _pieces_of(order, root, shards)
    content = sum(part.size for part in order.parts) if contents else 0
    if options.selection.everything:
        count = _tasks(options, content + ROW * order.rows, 0)
        ranges = order.ranges(-(-order.rows // count))
        return [Ordered(pieces, order=(folder, *where)) for where in ranges]
    rows = [order.read(orders.Range(n, 0, part.rows)) for n, part in enumerate(order.parts)]
    shard = np.concatenate([part.shard for part in rows])
    pos = np.concatenate([part.pos for part in rows])
    chosen = np.zeros(len(pos), bool)
    size = np.zeros(len(pos), np.int64)
    by_base = {shard.base: shard for shard, _ in shards}
    for number, piece in enumerate(pieces):
        found = _chosen(options, by_base[piece.base])
        mine = np.flatnonzero(shard == number)
        mine = mine[np.isin(pos[mine], found.pos)]
        chosen[mine] = True
        size[mine] = found.size[np.searchsorted(found.pos, pos[mine])]
    if not chosen.any():
        return []
    weights = size[chosen] * contents + ROW
    return _told(options, list(pieces), shard[chosen], pos[chosen], weights)


def _pieces_of(
    order: orders.Order, root: str, shards: list[tuple[Shard, int]]
) -> tuple[Piece, ...]:
    """The containers of an order by their numbers in it. Raises StalePlan."""
    known = {shard.base: (shard, number) for shard, number in shards}
    found = []
    for ordered in order.shards:
        base = f"{root}/{ordered.path}" if ordered.path else root
        if base not in known or known[base][0].record.contid != ordered.contid:
            raise StalePlan(f"the order {order.folder} is of other files: make it anew", base)
        found.append(replace(_piece(*known[base]), size=ordered.size))
    return tuple(found)
