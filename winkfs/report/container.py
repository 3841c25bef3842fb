"""Facts of a container: its data file as a map, files, columns, index and catalog.

All is read from the superblocks, the index and the catalog. Only if entries are dead, and the data
file has no more than EXACT_BYTES, its entries are read once, to map the dead ones exactly.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64, among
from winkformats.disk.posix import data_ranges
from winkformats.errors import FormatError
from winkformats.hashing import SLOT_FROM_S
from winkformats.hindex.table import BUCKET, bits_of
from winkformats.kv.scan import spans
from winkformats.lazy import cached_property
from winkfs.container.catalog import believed
from winkfs.container.container import Container
from winkfs.container.ondisk.block import BLOCK
from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.idx import Base, open_base
from winkfs.container.store import Store
from winkfs.container.table import BY_INODE, FileTable
from winkfs.container.verify import ENTRY_OVERHEAD, EXACT_BYTES, info
from winkfs.report.totals import ColumnTotals, FileTotals, Record, merged, spread
from winkfs.tables import tables

CELLS: Final = 200  # of the map of the data file
CONTENT_OVERHEAD: Final = 20  # bytes of a data entry beside the content, about
KEPT_ROWS: Final = 1 << 24  # files beyond which stored sizes by type are not estimated
PROBES: Final = np.array([1 << bit for bit in range(16)], np.int64)
FILLS: Final = 10  # classes of how full blocks of the catalog are
Progress = Callable[[int], None]


def facts(base: str, now: int, progress: Progress) -> Record:
    """Return the facts of a container, see `report.facts.gather`."""
    known = info(base, count=False)
    problems: list[str] = known.pop("problems")
    del known["superblock"]
    totals = FileTotals(now)
    with Container(base, "r") as container:
        store = container.store
        rows = Rows(store)
        for table in tables(container, problem=lambda error: problems.append(str(error))):
            rows.add(*totals.add(table))
            progress(len(table))
        totals.add_stored(*rows.stored())
        space = space_of(store, rows)
        known |= {f"{name}_bytes": space[name] for name in ("live", "dead")}
        known["dead_bytes_exact"] = space["exact"]
        found = {"info": known, "space": space, **totals.record(stored=rows.whole)}
        if store.schema:
            columns = {name: ColumnTotals(kind) for name, kind in store.schema.items()}
            columns_of(container, rows.positions, columns)
            found["columns"] = [one.record(name) for name, one in columns.items()]
        found |= index_of(store) | catalog_of(store)
        for problem in container.problems:
            if problem not in problems:
                problems.append(problem)
    return found | {"problems": problems}


class Rows:
    """Places and sizes of files: where their bytes are in the data file, about.

    whole  whether they are all here
    """

    def __init__(self, store: Store) -> None:
        self._store, self.whole, self._count = store, True, 0
        self._parts: list[tuple[Int64, ...]] = []
        self._beside = 0  # bytes of the attributes of a file, about

    def add(self, rows: FileTable, codes: Int64) -> None:
        """Add files; codes: of their types."""
        self._count += len(rows)
        self.whole = self.whole and self._count <= KEPT_ROWS
        if self.whole and len(rows):
            head = rows.name_lengths + ENTRY_OVERHEAD // 2 + self._store.inode_size
            self._parts.append((rows.pos, rows.fileid, rows.pointer, rows.size, codes, head))
        elif not self.whole:
            self._parts.clear()

    @cached_property
    def _columns(self) -> tuple[Int64, ...]:
        """Position and pointer, code, bytes of the inode, and bytes of the content, of all files in
        the order of their positions."""
        none = (np.empty(0, np.int64),) * 6
        parts = [np.concatenate(part) for part in zip(none, *self._parts, strict=True)]
        order = np.argsort(parts[0])
        pos, fileid, pointer, size, codes, head = (part[order] for part in parts)
        near = pointer == BY_INODE
        if not near.any():
            return pos, pointer, codes, head, size
        # The content of a file and its attributes stand before its inode, and nothing else is
        # between that and the inode of the file that was put before. Attributes take what they
        # take with files whose content is known. Contents of other files are like their type.
        free = np.diff(pos, prepend=self._store.kv.start)
        free[1:] -= head[:-1]
        next_to = np.diff(fileid, prepend=0) == 1
        plain = next_to & ~near
        if plain.any():
            left = free[plain] - size[plain] - CONTENT_OVERHEAD * (size[plain] > 0)
            self._beside = max(int(np.median(left)), 0)
            free -= self._beside
        free = np.clip(free - CONTENT_OVERHEAD, 0, size)
        sure = near & next_to
        known = np.bincount(codes[sure], size[sure], int(codes.max()) + 1)
        taken = np.bincount(codes[sure], free[sure], len(known))
        usual = taken.sum() / known.sum() if known.any() else 1.0
        ratio = np.where(known > 0, taken / np.maximum(known, 1), usual)
        like = np.minimum((size * ratio[codes]).astype(np.int64), size)
        stored = np.where(near, np.where(sure, free, like), size)
        return pos, pointer, codes, head, stored

    @property
    def positions(self) -> Int64:
        return self._columns[0]

    def stored(self) -> tuple[Int64, Int64]:
        """Return the types as codes, and how many bytes the contents take, about."""
        _, _, codes, _, stored = self._columns
        return codes, stored

    def ranges(self) -> tuple[Int64, Int64]:
        """Return the live ranges of the data file, about, in order."""
        pos, pointer, _, head, stored = self._columns
        near, some = pointer == BY_INODE, stored > 0
        whole = stored + CONTENT_OVERHEAD
        at = np.where(near, pos - self._beside - whole, pointer)
        return merged([(pos - self._beside, pos + head), (at[some], (at + whole)[some])])


# --- the data file ---


def space_of(store: Store, rows: Rows) -> Record:
    """Return how the bytes of the data file are used, and a map of them.

    cost  one pass over the entries if some are dead and the file is not large
    """
    kv = store.kv
    size = max(kv.storage.size(), kv.end)
    step = max(-(-size // CELLS), 1)
    edges = np.minimum(np.arange(-(-size // step) + 1) * step, size)
    within = np.diff(edges).astype(np.float64)
    head, reserve = (_within(edges, *ends) for ends in ((0, kv.start), (kv.end, size)))
    exact = kv.entries == kv.aentries
    live = _within(edges, kv.start, kv.end)
    if not exact:
        counted = _counted(store, edges) if kv.end - kv.start <= EXACT_BYTES else None
        exact = counted is not None
        live = counted if counted is not None else np.minimum(spread(*rows.ranges(), edges), live)
    dead = np.maximum(within - head - reserve - live, 0)
    holes = np.minimum(_holes(store, edges), dead)
    parts = {"superblocks": head, "live": live, "dead": dead - holes, "holes": holes,
             "reserve": reserve}  # fmt: skip
    sums: Record = {name: round(float(part.sum())) for name, part in parts.items()}
    cells = {name: part.round().astype(np.int64).tolist() for name, part in parts.items()}
    return {"file": kv.storage.name, "size": size, **sums, "exact": exact,
            "map": {"step": step, **cells}}  # fmt: skip


def _within(edges: Int64, start: int, stop: int) -> npt.NDArray[np.float64]:
    return spread(np.array([start]), np.array([max(stop, start)]), edges)


def _counted(store: Store, edges: Int64) -> npt.NDArray[np.float64] | None:
    """Return the live bytes between edges, from the entries; None: one is damaged."""
    kv, live = store.kv, np.zeros(len(edges) - 1)
    with contextlib.suppress(FormatError):  # verify reports what is wrong
        for pos, taken, flags in spans(kv.storage, kv.layout, kv.start, kv.end):
            kept = flags == 0
            live += spread(pos[kept], (pos + taken)[kept], edges)
        return live
    return None


def _holes(store: Store, edges: Int64) -> npt.NDArray[np.float64]:
    """Return the bytes that the data file has no room on the disk for, before its end."""
    kv, file = store.kv, store.kv.storage.name
    if kv.storage.far or not os.path.isfile(file):
        return np.zeros(len(edges) - 1)
    with contextlib.suppress(OSError):
        starts, stops = np.array(data_ranges(file, kv.end), np.int64).reshape(-1, 2).T
        return np.maximum(_within(edges, 0, kv.end) - spread(starts, stops, edges), 0)
    return np.zeros(len(edges) - 1)


# --- columns ---


def columns_of(container: Container, live: Int64, into: Mapping[str, ColumnTotals]) -> None:
    """Add the values of the columns of the user.

    live  ascending positions of the files that count
    cost  reads the values in the catalog; without a current one all attributes
    """
    store = container.store
    typed = {name: kind for name, kind in store.schema.items() if name in into}
    with believed(store, behind=0) as catalog:
        if catalog is not None:
            for run in catalog.runs:
                for pos, columns in run.values_named(b"", None, typed):
                    _add_values(into, columns, among(pos, live))
            return
    for rows in tables(container, problem=lambda error: None, columns=list(typed)):
        _add_values(into, rows.columns(typed), among(rows.pos, live))


def _add_values(
    into: Mapping[str, ColumnTotals], columns: Mapping[str, Column], chosen: Bools
) -> None:
    for name, column in columns.items():
        into[name].add(column if chosen.all() else column.take(chosen))


# --- derived files ---


def index_of(store: Store) -> Record:
    """Return cells, load and probe lengths of BASE.idx. Cost: reads it."""
    if store.kv.storage.far:
        return {}
    kv = store.kv
    base = open_base(store.directory, store.name, store.settings, kv.superblock, kv.end)
    if base is None:
        return {"index": {"current": False}}
    with contextlib.closing(base.storage):
        record: Record = {
            "current": base.covered == kv.end, "bytes": base.storage.size(),
            "cells": base.shape.htsize, "live": base.live,
            "load": round(base.live / base.shape.htsize, 4),
        }  # fmt: skip
        if base.shape.cellsz > 1 and store.settings.htalgo in SLOT_FROM_S:
            with contextlib.suppress(FormatError):  # verify reports what is wrong
                record |= _probes(base)
    return {"index": record}


def _probes(base: Base) -> Record:
    """Return over how many cells a search for each of the files passes. Raises DerivedDamage."""
    classes, total, longest, files = np.zeros(len(PROBES), np.int64), 0, 0, 0
    for cells, slots in _cells(base):
        home = bits_of(cells[:, 1].view(np.uint64)) % np.uint64(base.shape.htsize)
        passed = (slots - home.astype(np.int64)) % base.shape.htsize + 1
        each = np.searchsorted(PROBES, passed, "right") - 1
        classes += np.bincount(each, minlength=len(PROBES))
        total, files = total + int(passed.sum()), files + len(passed)
        longest = max(longest, int(passed.max(initial=0)))
    last = int(np.flatnonzero(classes)[-1]) + 1 if files else 0
    bounds = zip(PROBES[:last].tolist(), classes[:last].tolist(), strict=True)
    return {
        "mean_probes": round(total / files, 3) if files else None, "most_probes": longest,
        "probes": [{"least": low, "below": 2 * low, "files": some} for low, some in bounds],
    }  # fmt: skip


def _cells(base: Base) -> Iterator[tuple[Int64, Int64]]:
    """Yield the used cells, int64[n, cellsz], and their slots."""
    shape = base.shape
    for at in range(0, shape.htsize, BUCKET):
        count = min(BUCKET, shape.htsize - at)
        data = base.read(base.offset + at * shape.width, count * shape.width)
        words = np.frombuffer(data, ">i8").reshape(count, shape.cellsz)
        used = np.flatnonzero((words[:, 0] != shape.htfree) & (words[:, 0] != shape.htdel))
        yield words[used].astype(np.int64), at + used


def catalog_of(store: Store) -> Record:
    """Return runs of BASE.cat, and how full its blocks are. Cost: reads the index of each run."""
    with believed(store) as catalog:
        if catalog is not None:
            fills, runs = np.zeros(FILLS, np.int64), list[Record]()
            for run in catalog.runs:
                rows, gone = run.parts["rows"], run.parts["gone"]
                fills += np.bincount(np.minimum(rows * FILLS // (BLOCK + 1), FILLS - 1),
                                     minlength=FILLS)  # fmt: skip
                runs.append({
                    "blocks": len(rows), "rows": int(rows.sum()), "gone": int(gone.sum()),
                    "bytes": int(run.parts["length"].sum()),
                })  # fmt: skip
            return {"catalog": {
                "current": catalog.covered == store.kv.end, "bytes": catalog.storage.size(),
                "block_rows": BLOCK, "runs": runs, "fills": fills.tolist(),
            }}  # fmt: skip
    return {}
