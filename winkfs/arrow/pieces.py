"""Pieces: what a task reads of a container or of another store, and how it is divided.

Pieces are small and can be pickled. This module imports little, since Spark's planner is a new
process for each query.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from winkformats.arrays import Int64
from winkfs.container.selection import Selection
from winkfs.names import after

if TYPE_CHECKING:
    from winkfs.dataset.shard import Shard
    from winkfs.reader import Reader

ROW: Final = 256  # weight of a row beside its content, bytes: its path, and work of the engine
OPEN: Final = 64 << 10  # weight of opening a container, bytes
POS_BITS: Final = 44  # of a reference that are the position of the inode; above: the shard
POS_MASK: Final = (1 << POS_BITS) - 1
WIDTHS: Final = (np.int8, np.int16, np.int32, np.int64)  # of packed numbers

# --- rows ---


def batch_ranges(sizes: Int64, limit: int, most: int = 1 << 62) -> Iterator[tuple[int, int]]:
    """Yield ranges [a, b) of rows of at most `limit` bytes and `most` rows; a larger row is alone.

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
    """Encode numbers as compressed differences: a byte or two for the position of an inode."""
    steps = np.diff(values, prepend=0)
    low, high = (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
    for width in WIDTHS:
        if np.iinfo(width).min <= low and high <= np.iinfo(width).max:
            break
    return bytes([np.dtype(width).itemsize]) + zlib.compress(steps.astype(width).tobytes(), 1)


def unpack(data: bytes) -> Int64:
    steps = np.frombuffer(zlib.decompress(data[1:]), f"i{data[0]}")
    return np.cumsum(steps, dtype=np.int64)


# --- pieces ---


@dataclass(frozen=True, slots=True)
class Piece:
    """Files of a container, by the positions of their inodes.

    base          path without .data
    contid, size  CONTID and FILESIZE in the plan
    grows         the container may have grown since
    low, high     range of the positions: [low, high)
    rows          packed positions, ascending; None: all except the hidden ones
    hidden        packed positions in [low, high)
    generation    of the data set
    gone          report its files as deleted
    tombs         with `gone`: instead the names of its tombstones from this position on; 0: none
    number        of the shard in its snapshot
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
    number: int = 0


@dataclass(frozen=True, slots=True)
class Listed(Piece):
    """Files that are listed from a catalog, without contents.

    first, stop  names in [first, stop); stop None: no end
    selection    of files, without `paths`
    place        of the catalog of the plan in a container that grows, see `open_older`
    """

    first: bytes = b""
    stop: bytes | None = None
    selection: Selection | None = None
    place: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Chosen(Piece):
    """Files that the task chooses: those of the selection with inodes in [low, high).

    selection, place  as of Listed
    strict            a damaged inode, whose name is unknown, is an error
    """

    selection: Selection = field(default_factory=Selection)
    place: tuple[int, int, int] = (0, 0, 0)
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Named(Piece):
    """Files of a store that is read by name: `names` from number `low` to `high`.

    opener  opens the store at a path
    """

    names: tuple[str, ...] = ()
    opener: Callable[[str], Reader] | None = None


@dataclass(frozen=True, slots=True)
class Recorded(Piece):
    """Records of a store: those in `files`, or those with the ids `rows`, if ids are numbers.

    files      relative path and bytes of each
    opener     opens the store at a path
    selection  of records
    arrived    instead: all records with ids [low, high), consumed or not
    whole      it is an error if one of these is missing
    """

    files: tuple[tuple[str, int], ...] = ()
    opener: Callable[[str], Reader] | None = None
    selection: Selection = field(default_factory=Selection)
    arrived: bool = False
    whole: bool = False

    def of_files(self, files: Iterable[tuple[str, int]]) -> Recorded:
        return replace(self, files=tuple((name, size) for name, size in files))


# --- planning ---


class Cuts(NamedTuple):
    """Names that divide files evenly, and the number of hidden files before each."""

    names: Sequence[bytes]
    before: Sequence[int]


NO_CUTS: Final = Cuts((), ())


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """A piece that may be divided into several tasks.

    weight   bytes that it counts
    hidden   positions of its hidden inodes, ascending or, with cuts, by name
    rows     positions of its visible inodes; None: a range of positions, or of names
    weights  of the rows, bytes
    cuts     names where a range of names can be cut
    """

    piece: Piece
    weight: int
    hidden: Int64
    rows: Int64 | None = None
    weights: Int64 | None = None
    cuts: Cuts = NO_CUTS

    @classmethod
    def of_rows(cls, piece: Piece, rows: Int64, sizes: Int64, contents: bool) -> PlannedPiece:
        """Return a piece of these rows, at least one."""
        weights = weights_of(sizes, contents)
        weights[0] += OPEN
        return cls(piece, int(weights.sum()), np.empty(0, np.int64), rows, weights)

    def cut(self, low: float, high: float) -> Piece | None:
        """Return the part with the weights [low, high) of `weight`; None if it has no file."""
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
        """Return the piece cut to [low, high), with the hidden positions in it only."""
        if isinstance(self.piece, Named):
            names = self.piece.names[low:high]
            return replace(self.piece, low=0, high=len(names), names=names)
        first, stop = np.searchsorted(self.hidden, [low, high]).tolist()
        hidden = pack(self.hidden[first:stop]) if first < stop else None
        return replace(self.piece, low=low, high=high, hidden=hidden)


def weights_of(sizes: Int64, contents: bool) -> Int64:
    """Return the weights of rows with contents of these sizes, bytes."""
    return sizes * contents + ROW


def weight_of(shard: Shard, contents: bool) -> int:
    """Return the weight of reading a whole shard, bytes."""
    return ROW * shard.record.files + (shard.record.size if contents else 0)


def piece_of(shard: Shard, generation: int) -> Piece:
    """Return a whole shard as a piece, hidden rows included."""
    record = shard.record
    return Piece(
        shard.base, record.contid, record.size, shard.grows, 0, record.size, generation=generation
    )


def listed(whole: Piece, selection: Selection) -> Listed:
    """Return a piece whose files are listed from its catalog."""
    return Listed(
        whole.base, whole.contid, whole.size, whole.grows, whole.low, whole.high,
        generation=whole.generation, first=selection.prefix, stop=after(selection.prefix),
        selection=selection,
    )  # fmt: skip


def divide(parts: Sequence[PlannedPiece], count: int) -> list[tuple[Piece, ...]]:
    """Divide parts, in their order, into at most `count` lists of pieces of equal weight."""
    share = sum(part.weight for part in parts) / count
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
    return list(map(tuple, tasks.values()))
