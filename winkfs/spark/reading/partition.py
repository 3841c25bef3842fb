"""The tasks of a scan: pieces of containers, and how these are cut into tasks of equal weight.

What is sent to a task is a Scan or an Ordered. Both are small, and this module is light: the
planner is a new process for each query.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from pyspark.sql.datasource import InputPartition

from winkformats.arrays import Int64
from winkfs.container.selection import Selection
from winkfs.names import after

if TYPE_CHECKING:
    from winkfs.dataset.shard import Shard
    from winkfs.reader import Reader
    from winkfs.spark.reading.options import Options

SPLIT: Final = 512 << 20  # bytes of a task, at most: smaller ones cost more
WORTH: Final = 16 << 20  # bytes that are worth a task of their own
ROW: Final = 256  # bytes that a row counts beside its content: its path, its share of the engine
OPEN: Final = 64 << 10  # bytes that a container counts
MOST: Final = 1 << 20  # rows of a task that is sent them, about: 2 MiB of positions
WIDTHS: Final = (np.int8, np.int16, np.int32, np.int64)  # of packed numbers

# --- rows ---


def batch_ranges(sizes: Int64, limit: int, most: int = 1 << 62) -> Iterator[tuple[int, int]]:
    """Parts [a, b) of at most `limit` bytes and `most` rows; a larger row is alone in its own.

    sizes   of the rows, bytes
    """
    ends = np.cumsum(sizes)
    at = 0
    while at < len(ends):
        before = int(ends[at - 1]) if at else 0
        full = int(np.searchsorted(ends, before + limit, "right"))
        stop = min(max(full, at + 1), at + most)
        yield at, stop
        at = stop


def pack(values: Int64) -> bytes:
    """Numbers as differences, deflated: a byte or two for the position of an inode."""
    steps = np.diff(values, prepend=0)
    low, high = (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
    for width in WIDTHS:
        if np.iinfo(width).min <= low and high <= np.iinfo(width).max:
            break
    return bytes([np.dtype(width).itemsize]) + zlib.compress(steps.astype(width).tobytes(), 1)


def unpack(data: bytes) -> Int64:
    steps = np.frombuffer(zlib.decompress(data[1:]), f"i{data[0]}")
    return np.cumsum(steps, dtype=np.int64)


# --- what a task is sent ---


@dataclass(frozen=True, slots=True)
class Piece:
    """Files of a container, by the positions of their inodes.

    base          path without .data
    contid, size  CONTID, FILESIZE it was planned with; grows: it may be larger by now
    low, high     positions of the inodes: [low, high)
    rows          packed: just these, ascending; None: all but the hidden ones
    hidden        packed positions in [low, high)
    generation    of the data set
    gone          its files are told as deleted; tombs: those that its tombstones from there on name
    """

    base: str
    contid: int
    size: int
    grows: bool
    low: int
    high: int
    rows: bytes | None = None
    hidden: bytes | None = None
    generation: int = 0
    gone: bool = False
    tombs: int = 0


@dataclass(frozen=True, slots=True)
class Listed(Piece):
    """Files that are listed from a catalog, without contents.

    first, stop  names in [first, stop); stop None: all behind
    selection    which of them, not by `paths`
    place        where a container that grows has the catalog of the plan, see `open_older`
    """

    first: bytes = b""
    stop: bytes | None = None
    selection: Selection | None = None
    place: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Named(Piece):
    """Files of a store that is read by name: `names` from number `low` to `high`.

    opener  opens the store, of its path
    """

    names: tuple[str, ...] = ()
    opener: Callable[[str], Reader] | None = None


@dataclass(frozen=True, slots=True)
class Recorded(Piece):
    """Records of a store: those in `files`, or `rows`, their ids, where these are numbers.

    files      relative path and bytes of each
    opener     opens the store, of its path
    selection  which of the records
    arrived    instead: all with ids [low, high), whoever has read them
    whole      of these none may be missing
    """

    files: tuple[tuple[str, int], ...] = ()
    opener: Callable[[str], Reader] | None = None
    selection: Selection = field(default_factory=Selection)
    arrived: bool = False
    whole: bool = False

    def of_files(self, files: Iterable[tuple[str, int]]) -> Recorded:
        return replace(self, files=tuple((name, size) for name, size in files))


class Scan(InputPartition):  # type: ignore[misc]
    """Pieces one after the other, in the order of the inodes."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.pieces = pieces


class Ordered(InputPartition):  # type: ignore[misc]
    """Files in an order of their own, none of them hidden.

    pieces  containers, each as a whole
    shard   packed: which of the pieces; pos: position of the inode
    order   instead: folder, part, first and last row of an order, see `winkfs.results.orders`
    """

    def __init__(
        self,
        pieces: tuple[Piece, ...],
        shard: bytes = b"",
        pos: bytes = b"",
        order: tuple[Any, ...] | None = None,
    ) -> None:
        super().__init__(None)
        self.pieces, self.shard, self.pos, self.order = pieces, shard, pos, order


# --- planning ---


class Cuts(NamedTuple):
    """Names between which there are about as many files, and how many of the hidden ones are before
    each of them."""

    names: Sequence[bytes]
    before: Sequence[int]


NO_CUTS: Final = Cuts((), ())


@dataclass(frozen=True, slots=True)
class Part:
    """A piece that may be cut into several tasks.

    hidden   positions of inodes in it that do not count, ascending or, with cuts, by name
    rows     positions of its inodes, none of them hidden; None: a range of positions, or of names
    weights  of the rows, bytes
    cuts     where a range of names can be cut
    """

    piece: Piece
    weight: int
    hidden: Int64
    rows: Int64 | None = None
    weights: Int64 | None = None
    cuts: Cuts = NO_CUTS

    @classmethod
    def of_rows(cls, piece: Piece, rows: Int64, sizes: Int64, contents: bool) -> Part:
        """A piece of these rows, at least one."""
        weights = weights_of(sizes, contents)
        weights[0] += OPEN
        return cls(piece, int(weights.sum()), np.empty(0, np.int64), rows, weights)

    def cut(self, low: float, high: float) -> Piece | None:
        """The piece of the weights [low, high) of `weight`; None where that is no file."""
        if isinstance(self.piece, Listed):
            return self._listed(self.piece, low, high)
        if self.rows is None or self.weights is None:
            start, room = self.piece.low, self.piece.high - self.piece.low
            a, b = (start + int(room * part / self.weight) for part in (low, high))
            return self._between(a, b) if a < b else None
        starts = np.cumsum(self.weights) - self.weights
        i, k = np.searchsorted(starts, [low, high]).tolist()
        if i == k:
            return None
        rows = np.sort(self.rows[i:k])
        if isinstance(self.piece, Recorded) and self.piece.files:
            return self.piece.of_files(self.piece.files[number] for number in rows.tolist())
        return replace(self.piece, low=int(rows[0]), high=int(rows[-1]) + 1, rows=pack(rows))

    def _listed(self, piece: Listed, low: float, high: float) -> Listed | None:
        names = [piece.first, *self.cuts.names, piece.stop]
        places = [0, *self.cuts.before, len(self.hidden)]
        last = len(names) - 1
        a, b = round(last * low / self.weight), round(last * high / self.weight)
        first, hidden = names[a], np.sort(self.hidden[places[a] : places[b]])
        if a == b or first is None:
            return None
        return replace(
            piece, first=first, stop=names[b], hidden=pack(hidden) if len(hidden) else None
        )

    def _between(self, low: int, high: int) -> Piece:
        """The piece cut to [low, high), with what is hidden there: a task is sent no more."""
        if isinstance(self.piece, Named):
            names = self.piece.names[low:high]
            return replace(self.piece, low=0, high=len(names), names=names)
        first, stop = np.searchsorted(self.hidden, [low, high]).tolist()
        hidden = pack(self.hidden[first:stop]) if first < stop else None
        return replace(self.piece, low=low, high=high, hidden=hidden)


def weights_of(sizes: Int64, contents: bool) -> Int64:
    """Bytes that rows with contents of these sizes count."""
    return sizes * contents + ROW


def weight_of(shard: Shard, contents: bool) -> int:
    """Bytes that reading all of a shard counts."""
    return ROW * shard.record.files + (shard.record.size if contents else 0)


def piece_of(shard: Shard, generation: int) -> Piece:
    """A whole shard as a piece, hidden rows included."""
    record = shard.record
    return Piece(
        shard.base, record.contid, record.size, shard.grows, 0, record.size, generation=generation
    )


def listed(whole: Piece, selection: Selection) -> Listed:
    """A shard as what is listed from its catalog."""
    return Listed(
        whole.base, whole.contid, whole.size, whole.grows, whole.low, whole.high,
        generation=whole.generation, first=selection.prefix, stop=after(selection.prefix),
        selection=selection,
    )  # fmt: skip


def task_count(options: Options, weight: int, rows: int) -> int:
    """Number of tasks to cut into."""
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
    weight = sum(map(attrgetter("weight"), parts))
    rows = sum(len(part.rows) for part in parts if part.rows is not None)
    count = task_count(options, weight, rows)
    share = weight / count
    tasks: dict[int, list[Piece]] = defaultdict(list)
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
    return list(map(Scan, map(tuple, tasks.values())))
