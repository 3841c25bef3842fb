"""From a snapshot and a selection to partitions, by bytes. Runs in a short process on the driver.

A data set's shards never change: a task is told a range of positions and finds the files itself.
A container may grow while a query runs, so its tasks are told their files, as of the plan. What has
to look into containers is in `chosen`: to import all of it takes 100 ms of each query.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from winkformats.arrays import Int64
from winkfs.dataset.manifest import is_dataset
from winkfs.dataset.shard import NOTHING, Shard
from winkfs.dataset.snapshot import snapshot
from winkfs.errors import NoSuchFile
from winkfs.names import base_of
from winkfs.spark.reading.options import Options
from winkfs.spark.reading.partition import Ordered, Piece, Scan, pack

SPLIT: Final = 512 << 20  # bytes of a task, at most: half a second; 256 cost 4 % more CPU
WORTH: Final = 16 << 20  # bytes that are worth a task of their own, which costs 20 ms of CPU
ROW: Final = 256  # bytes that a row counts beside its content: its path, its share of the engine
OPEN: Final = 64 << 10  # bytes that a container counts
MOST: Final = 1 << 20  # rows of a task that is told them, about: 2 MiB of positions


@dataclass(frozen=True, slots=True)
class Part:
    """A piece that may be cut.

    hidden   positions of inodes in it that do not count, ascending
    rows     positions of its inodes, none of them hidden; None: a range of positions
    weights  of the rows, bytes
    """

    piece: Piece
    weight: int
    hidden: Int64
    rows: Int64 | None = None
    weights: Int64 | None = None

    @classmethod
    def told(cls, piece: Piece, rows: Int64, sizes: Int64, contents: bool) -> Part:
        """A piece of these rows, at least one."""
        weights = weights_of(sizes, contents)
        weights[0] += OPEN
        return cls(piece, int(weights.sum()), NOTHING, rows, weights)

    def cut(self, low: float, high: float) -> Piece | None:
        """What weighs in from `low` to `high`, of 0 to `weight`; None where that is no file."""
        if self.rows is None or self.weights is None:
            start, room = self.piece.low, self.piece.high - self.piece.low
            a, b = (start + int(room * part / self.weight) for part in (low, high))
            return self._between(a, b) if a < b else None
        starts = np.cumsum(self.weights) - self.weights
        i, k = np.searchsorted(starts, [low, high]).tolist()
        if i == k:
            return None
        rows, upto = self.rows[i:k], int(self.rows[k - 1]) + 1
        before = int(self.rows[i - 1]) + 1 if i else 0
        return replace(self.piece, low=before, high=upto, rows=pack(rows))

    def _between(self, low: int, high: int) -> Piece:
        """The piece cut to [low, high), with what is hidden there: a task is sent no more."""
        first, stop = np.searchsorted(self.hidden, [low, high]).tolist()
        hidden = pack(self.hidden[first:stop]) if first < stop else None
        return replace(self.piece, low=low, high=high, hidden=hidden)


def partitions(options: Options, *, contents: bool) -> list[Scan | Ordered]:
    """The tasks of a scan.

    contents  whether contents are read, not only what is known of files
    raises    NoSuchFile, StalePlan, ValueError, FormatError, OSError
    cost      without a selection none but reading the manifest; a selection: see `select`
    """
    if options.order.startswith("perm:"):
        from winkfs.spark.reading.selected import by_order

        return by_order(options, contents)
    shards = shards_of(options)
    if options.order != "offset":
        from winkfs.spark.reading.selected import in_order

        return in_order(options, contents, shards)
    parts = [part for shard, number in shards for part in _parts(options, contents, shard, number)]
    return scans(options, parts)


def shards_of(options: Options, as_of: int | str | None = None) -> list[tuple[Shard, int]]:
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
        if shard.record.files > len(shard.hidden):
            weight = OPEN + weight_of(shard, contents)
            yield Part(piece_of(shard, generation), weight, shard.hidden)
        return
    from winkfs.spark.reading.selected import files_of

    shard, pos, size = files_of(options, shard)
    if len(pos):
        yield Part.told(piece_of(shard, generation), pos, size, contents)


def weights_of(sizes: Int64, contents: bool) -> Int64:
    """Bytes that rows with contents of these sizes count."""
    return sizes * contents + ROW


def weight_of(shard: Shard, contents: bool) -> int:
    """Bytes that reading all of a shard counts."""
    return ROW * shard.record.files + (shard.record.size if contents else 0)


def piece_of(shard: Shard, generation: int) -> Piece:
    """All of a shard, hidden rows too."""
    record = shard.record
    return Piece(
        shard.base, record.contid, record.size, shard.grows, 0, record.size, generation=generation
    )


# --- tasks ---


def task_count(options: Options, weight: int, rows: int) -> int:
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
    count = task_count(options, weight, told)
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
