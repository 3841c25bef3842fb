"""Verification of a part of the entries: of a container, or of all shards of a data set.

The data files, one after the other, are divided into blocks, and a block has the entries from the
first inode in it up to the first one in the next: so each entry is in one block. Which blocks are
read is a matter of their numbers alone, which a keyed permutation orders for a sample.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import FormatError
from winkformats.kv.superblock import SBSIZE
from winkfs.container.select import Query, positions_of
from winkfs.container.store import Store
from winkfs.container.verify import Check, Report
from winkfs.dataset.manifest import Log
from winkfs.dataset.shard import Shard
from winkfs.dataset.verify import (
    FAULTS,
    check_manifests,
    check_visible,
)
from winkfs.dataset.workers import Send, in_processes
from winkfs.loaders.permutation import Permutation, key_of
from winkfs.names import base_of

Progress = Callable[[int], None]
BLOCKS: Final = 1000  # of all files together, but for the bounds
LEAST_BLOCK: Final = 64 << 10  # bytes
MOST_BLOCK: Final = 8 << 20
AT_ONCE: Final = 8  # blocks that one process reads together
REST: Final = "index, catalog and counters were not compared with them"


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice of the entries that a verification reads: those of some blocks.

    quick    none: the derived files are checked, and compared with each other
    part     (number from 1, how many): one of equal parts, in the order of the files
    share    of the blocks, 0 < share <= 1, chosen by `seed`
    seconds  at most, in the order that `seed` gives; None: no limit
    jobs     processes
    """

    quick: bool = False
    part: tuple[int, int] = (1, 1)
    share: float = 1.0
    seed: int = 0
    seconds: float | None = None
    jobs: int = 1

    def numbers(self, count: int) -> Int64:
        """Return the numbers of the blocks, of `count`, in the order in which they are read."""
        number, parts = self.part
        first, end = count * (number - 1) // parts, count * number // parts
        found = np.arange(first, end)
        if len(found) and (self.share < 1 or self.seconds is not None):
            order = Permutation(len(found), key_of(self.seed)).at(np.arange(len(found)))
            found = found[order][: math.ceil(len(found) * self.share)]
        return found if self.seconds is not None else np.sort(found)

    def scope(self, read: int, total: int) -> str:
        """Return what was read, for a report."""
        of = f", part {self.part[0]} of {self.part[1]}" if self.part[1] > 1 else ""
        by = f", seed {self.seed}" if self.share < 1 or self.seconds is not None else ""
        share = 100 * min(read / total, 1) if total else 100.0
        digits = f"{share:.3g}" if read >= total or share < 99.95 else "99.9"
        return f"{digits} % of the entries read, by bytes{of}{by}; {REST}"


class Unit(NamedTuple):
    """Entries of a container in [low, high). live: positions of its files there, ascending."""

    base: str
    low: int
    high: int
    live: Int64


def verify_container(base: str, choice: Choice, progress: Progress | None = None) -> Report:
    """Check a part of a container -> a report, whose `scope` states what was checked.

    raises  FileNotFoundError
    cost    reads the catalog and the chosen entries; memory: 8 bytes a file
    """
    try:
        with Store(base_of(base), writable=False, load=False) as store:
            if choice.quick:
                return Check(store).quick()
            size = store.kv.end - store.kv.start
        report = Report()
        _check([(base_of(base), size, None)], choice, report, progress)
    except FormatError as error:
        return Report([str(error)], scope="nothing was read")
    return report


def verify_dataset(root: str, choice: Choice, progress: Progress | None = None) -> Report:
    """Check the manifests of a data set, and a part of the entries of all its shards."""
    log, report = Log(root), Report()
    records = check_manifests(log, report)
    shards = [Shard(f"{root}/{record.path}", record) for record in records]
    if choice.quick:
        for shard in shards:
            try:
                with shard.pass_over(), shard.open(load=False) as store:
                    _add(report, Check(store).quick())
            except (*FAULTS, OSError) as error:
                report.add(str(error))
        report.scope = "manifests, superblocks, indexes and catalogs; no entry was read"
    else:
        each = [(one.base, max(one.record.size - SBSIZE, 0), one) for one in shards]
        _check(each, choice, report, progress)
    check_visible(log, report)
    return report


def _check(
    shards: Sequence[tuple[str, int, Shard | None]],
    choice: Choice,
    report: Report,
    progress: Progress | None,
) -> None:
    """Check the chosen blocks of containers, given with the bytes of their entries, and of a data
    set with what its manifest has of them."""
    total = sum(size for _, size, _ in shards)
    block = min(max(total // BLOCKS, LEAST_BLOCK), MOST_BLOCK)
    counts = np.array([-(-size // block) for _, size, _ in shards], np.int64)
    ends = np.cumsum(counts)
    numbers = choice.numbers(int(ends[-1]) if len(ends) else 0)
    units: list[Unit | None] = [None] * len(numbers)
    which = np.searchsorted(ends, numbers, "right")
    for shard in np.unique(which).tolist():
        (base, _, record), at = shards[shard], np.flatnonzero(which == shard)
        first = int(ends[shard] - counts[shard])
        try:
            if record is not None:
                record.must_open()
            found = _units(base, numbers[at] - first, int(counts[shard]), block)
            for i, unit in zip(at.tolist(), found, strict=True):
                units[i] = unit
        except (*FAULTS, OSError) as error:
            report.add(str(error))
    chosen = [unit for unit in units if unit is not None]
    if choice.seconds is None:
        chosen = list(_joined(chosen))
    until = None if choice.seconds is None else time.monotonic() + choice.seconds

    def heard(_: str, done: object) -> None:
        if progress is not None:
            progress(int(str(done)))

    results = in_processes(_run, until, chosen, choice.jobs, heard, own=True)
    read = 0
    for unit, result in zip(chosen, results, strict=True):
        if result is not None:
            read += unit.high - unit.low
            _add(report, result)
    report.scope = choice.scope(read, total)


def _units(base: str, numbers: Int64, count: int, block: int) -> Iterator[Unit]:
    """Yield the entries of some blocks of a container, which has `count` of them."""
    with Store(base, writable=False, load=False) as store:
        start, end = store.kv.start, store.kv.end
        positions = positions_of(store, Query.of_prefix(b""))
    if positions is None:
        with Store(base, writable=False) as store:
            positions = store.index.positions()
    positions = positions[(positions >= start) & (positions < end)]
    bounds = np.append(positions, end)
    edges = np.stack([numbers, numbers + 1])
    wanted = np.where(edges >= count, end, np.minimum(start + edges * block, end))
    edges = bounds[np.searchsorted(bounds, wanted)]
    edges[0, numbers == 0] = start
    for low, high in edges.T.tolist():
        first, last = np.searchsorted(positions, [low, high])
        yield Unit(base, low, high, positions[first:last])


def _joined(units: Iterable[Unit]) -> Iterator[Unit]:
    """Join units that follow each other, AT_ONCE at most."""
    numbered = enumerate(unit for unit in units if unit.low < unit.high)
    for _, some in groupby(numbered, lambda each: (each[1].base, each[0] // AT_ONCE)):
        run: list[Unit] = []
        for _, unit in some:
            if run and run[-1].high != unit.low:
                yield _one(run)
                run = []
            run.append(unit)
        yield _one(run)


def _one(run: Sequence[Unit]) -> Unit:
    live = np.concatenate([unit.live for unit in run])
    return Unit(run[0].base, run[0].low, run[-1].high, live)


def _run(until: float | None, unit: Unit, send: Send) -> Report | None:
    """Check a unit; None: the time is over."""
    if until is not None and time.monotonic() >= until:
        return None
    try:
        with Store(unit.base, writable=False, load=False) as store:
            return Check(store).part(unit.low, unit.high, unit.live, partial(send, "bytes"))
    except (FormatError, OSError) as error:
        return Report([str(error)])


def _add(report: Report, found: Report) -> None:
    report.include(found)
    report.files += found.files
    report.notes += [note for note in found.notes if note not in report.notes]
