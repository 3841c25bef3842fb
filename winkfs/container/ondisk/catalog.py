"""BASE.cat: the catalog, what is known of all live files, in byte order of their names.

A kvseq of fixed 8-byte keys and 8-byte lengths, KVCKSUM 1, ALIGN 8. Its entries are blocks of rows,
the index of each run of blocks, and the list of the runs.

    key        value
    b/000000   a block: up to BLOCK rows, in byte order of their names
    c/000000   the values of a column of the user of the rows of a block: see `typed`
    i/000000   the index of a run: uint64 n, uint64 bytes of the names, int64[n, 16] (see `Part`),
               uint32[n] lengths of the names, and the names: the first one of each block. Where
               there are columns of the user, behind that at multiples of 8: uint64 bytes of their
               schema, the schema, int64[columns, n, 6] (see `Values`)
    r/000000   int64[runs, 4]: position, bytes and XXH3-64 of the index of each run, and its rows

The superblock has CONTID, DATAEND (of the data file whose files these are), RUNS, RUNBYTES and
RUNHASH (position, bytes and XXH3-64 of the list of runs). Positions are those of the values. So
each byte that is used is vouched for from the superblock on; one that is wrong is DerivedDamage
when it is first read.

A name may stand in several runs: the row in the last of them counts. A row whose KIND has GONE says
that there is no such name any more. So few changes are written as a run behind the others, and a
reader that has the file open goes on with the runs that it knows.

A block is, all little-endian:

    offset  size  field
    0       8     number of rows, n
    8       8     bytes of the names as they are stored
    16      16    for each of the COLUMNS, and for `shared` and `rest`: int64 base, uint64 width
    ...     n * w the columns, each at a multiple of 8: n numbers of `width` bytes, to which the
                  base is to be added (modulo 2^64)
    ...           the names: of each the bytes that its predecessor does not begin with

`shared` is how many bytes a name begins with that the one before it begins with, too; `rest` how
many follow.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import Final, NamedTuple, Self, TypeVar

import numpy as np
import xxhash

from winkformats.arrays import Bools, Int64, TextColumn, Texts, UInt8, rows_at
from winkformats.disk.storage import Storage
from winkformats.errors import FormatError
from winkformats.kv.entry import MASK64, Layout
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import FILEINCR, HALF, KVSEQ, Superblock, read_superblock
from winkfs.container.ondisk.data import PURPOSE_CATALOG
from winkfs.container.ondisk.typed import (
    Column,
    Schema,
    pack,
    parse_schema,
    schema_text,
    split,
)
from winkfs.container.rows import (
    ALWAYS,
    ASK,
    COLUMNS,
    CTIME,
    GONE,
    KIND,
    MTIME,
    POINTER,
    POS,
    SIZE,
    Blobs,
    Rows,
    Times,
    builtin,
)
from winkfs.container.where import BUILTIN, Condition, Zone
from winkfs.errors import DerivedDamage
from winkfs.units import MICRO

TOPS: Final = np.array([0, *((1 << 8 * width) - 1 for width in range(1, 8))], np.uint64)
"""The greatest numbers that 0 .. 7 bytes hold."""
RUNS: Final = "RUNS"
RUNBYTES: Final = "RUNBYTES"
RUNHASH: Final = "RUNHASH"
CLASHES: Final = "CLASHES"  # of the first run: files that have the name of a directory of others
FIXED: Final = 12  # KEYREPR of 8-byte keys
LONG: Final = 3  # VALREPR of 8-byte lengths
ALIGN: Final = 8
NEW: Final = {
    "FILEINCR": FILEINCR, "SYNCSIZE": 0, "SYNCTIME": 0, "KVDELFL": 0, "KEYREPR": FIXED,
    "VALREPR": LONG, "ALIGN": ALIGN, "ENTRIES": 0, "AENTRIES": 0, "KVCKSUM": 1, "INCOMPAT": 1,
    "SBCKSUM": 0, "SBSEQ": 1, "CONTID": 0, "DATAEND": 0, RUNS: 0, RUNBYTES: 0, RUNHASH: 0,
    CLASHES: 0,
}  # fmt: skip
BLOCK: Final = 1024  # rows of a block, at most
AREA: Final = 1 << 20  # rows times bytes of the longest name, at most, but for a single row
TOGETHER: Final = 8  # blocks that are written together
SIZES: Final = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}
KEPT: Final = 32  # blocks kept decoded
BUDGET: Final = 64 << 20  # bytes that a pass leaves in the page cache; what was there stays
STEP: Final = 4 << 20  # bytes beyond, that are dropped at a time
HEAD: Final = struct.Struct("<QQ")
MOST: Final = (1 << 63) - 1
T = TypeVar("T")
NO_NUMBERS: Final = np.empty(0, np.int64)

STORED: Final = len(COLUMNS) + 2  # with `shared` and `rest`


class Part(NamedTuple):
    """What the index of a run says of a block.

    pos, length, hash   where its value lies, bytes, XXH3-64
    rows, gone          number of rows, and of those that are GONE
    content             sum of the sizes, at most 2^63 - 1
    """

    pos: int
    length: int
    hash: int
    rows: int
    gone: int
    content: int
    pos_min: int
    pos_max: int
    size_min: int
    size_max: int
    mtime_min: int
    mtime_max: int
    kinds: int  # FTYPEs as bits, modulo 64
    asked: int  # rows that have ASK; 0 in files of older versions
    spare1: int
    spare2: int


class Values(NamedTuple):
    """What the index of a run says of the values of a column in a block.

    pos, length, hash   as of a `Part`
    nulls, low, high    see `typed.Column.zone`
    """

    pos: int
    length: int
    hash: int
    nulls: int
    low: int
    high: int


class Plain(NamedTuple):
    """What columns say of n rows: some of the COLUMNS, lengths of the names, int64[n] each, and the
    names one behind the other."""

    pos: Int64
    pointer: Int64
    size: Int64
    mtime: Int64
    kind: Int64
    lengths: Int64
    name_bytes: UInt8

    @property
    def last(self) -> bytes:
        """The last name; there is one."""
        return self.name_bytes[len(self.name_bytes) - int(self.lengths[-1]) :].tobytes()


# --- a block ---


def encode_blocks(rows: Rows, each: int) -> Iterator[tuple[bytes, list[int]]]:
    """The value of each block of `each` rows, the last one of what is left, and the numbers of its
    `Part` from `rows` on.

    rows    n >= 1, with different names in byte order
    cost    array operations on a matrix of n times the longest name
    """
    n = len(rows)
    starts = np.arange(0, n, each)
    counts = np.diff(starts, append=n)
    stored = np.empty((STORED, n), np.int64)
    stored[: len(COLUMNS)] = rows.numbers.T
    figures = _figures(stored, starts, counts)
    tails = _share(rows.column, starts, *stored[-2:])
    # What mostly follows from others is stored as the difference. An entry at `pointer` with `size`
    # bytes ends at or before `pos`, or begins behind it: so 0 and -1 are never one.
    plain = stored[POINTER] > 0
    np.subtract(stored[POS] - stored[SIZE], stored[POINTER], out=stored[POINTER], where=plain)
    stored[CTIME] -= stored[MTIME]
    base = np.minimum.reduceat(stored, starts, axis=1)
    spans = np.maximum.reduceat(stored, starts, axis=1) - base
    widths = np.searchsorted(TOPS, spans.view(np.uint64))
    stored -= np.repeat(base, counts, axis=1)
    little = stored.astype("<i8", copy=False)
    heads = np.stack([base, widths], 2).astype("<i8", copy=False)
    ends = np.append(starts[1:], n)
    for i, (start, end, tail) in enumerate(zip(starts.tolist(), ends.tolist(), tails, strict=True)):
        parts = [HEAD.pack(end - start, len(tail)), heads[:, i].tobytes()]
        for number, width in enumerate(widths[:, i].tolist()):
            if width:
                padding = bytes((start - end) * width % ALIGN)
                parts += _narrow(little[number, start:end], width), padding
        yield b"".join([*parts, tail]), figures[i].tolist()


def _narrow(column: Int64, width: int) -> bytes:
    """The low bytes of each number."""
    if width in SIZES:  # a tenth of the time of the general way
        return column.astype(SIZES[width]).tobytes()
    return column.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _share(texts: TextColumn, starts: Int64, shared: Int64, rest: Int64) -> list[bytes]:
    """Fill in what names share with those before them, but at `starts` -> of the names from each
    of these on what they do not share, joined."""
    if texts.dtype == object:
        texts = texts.astype("S")
    matrix = texts.view(np.uint8).reshape(len(texts), -1)
    lengths = np.strings.str_len(texts)
    np.argmin(matrix[1:] == matrix[:-1], axis=1, out=shared[1:])
    shared[starts] = 0
    np.subtract(lengths, shared, out=rest)
    small = np.min_scalar_type(matrix.shape[1])  # with numbers of 8 bytes: six times the time
    column = np.arange(matrix.shape[1], dtype=small)
    mine = column >= shared.astype(small)[:, None]
    mine &= column < lengths.astype(small)[:, None]
    joined = matrix[mine].tobytes()
    ends = np.cumsum(np.add.reduceat(rest, starts)).tolist()
    return [joined[a:b] for a, b in pairwise([0, *ends])]


def _figures(stored: Int64, starts: Int64, counts: Int64) -> Int64:
    """The numbers of a `Part`, from `rows` on, of the blocks that begin at `starts`."""
    kind, numbers = stored[KIND], stored[[POS, SIZE, MTIME]]
    gone, asked = kind & GONE != 0, kind & ASK != 0
    low = high = numbers
    bits = np.uint64(1) << (kind & 63).view(np.uint64)
    if gone.any():
        low, high = np.where(gone, MOST, numbers), np.where(gone, -MOST - 1, numbers)
        asked &= ~gone
        bits[gone] = 0
    sizes = np.where(gone, 0, numbers[1])
    if int(sizes.max()) > MOST // int(counts.max()):
        parts = np.split(sizes, starts[1:])
        content = np.array([min(sum(part.tolist()), MOST) for part in parts])
    else:
        content = np.add.reduceat(sizes, starts)
    lows, highs = (
        edge.reduceat(bound, starts, axis=1)
        for edge, bound in ((np.minimum, low), (np.maximum, high))
    )
    none = np.zeros(len(starts), np.int64)
    left = counts - np.add.reduceat(gone, starts, dtype=np.int64)
    found = np.stack([
        counts, counts - left, content, *chain.from_iterable(zip(lows, highs, strict=True)),
        np.bitwise_or.reduceat(bits, starts).view(np.int64),
        np.add.reduceat(asked, starts, dtype=np.int64), none, none,
    ], 1)  # fmt: skip
    found[left == 0, 2:] = 0
    return found


class Block:
    """A block that was read. Columns and names are decoded when they are asked for."""

    def __init__(self, value: bytes) -> None:
        """Raises ValueError for bytes that are no block."""
        self._raw = np.frombuffer(value, np.uint8)
        if len(value) < HEAD.size + 16 * STORED:
            raise ValueError("a block is cut short")
        self.count, self._tails = HEAD.unpack_from(value)
        head = np.frombuffer(value, "<i8", 2 * STORED, HEAD.size).reshape(STORED, 2)
        self._base, self._width = head[:, 0].tolist(), head[:, 1].tolist()
        at, self._at = HEAD.size + 16 * STORED, list[int]()
        for width in self._width:
            self._at.append(at)
            at += -(-self.count * width // 8) * 8
        wrong = min(self._width) < 0 or max(self._width) > 8 or not 1 <= self.count <= BLOCK
        if wrong or at + self._tails != len(value):
            raise ValueError("a block of another size")
        self._tails_at = at
        self._names: list[bytes] | None = None
        self._numbers: Int64 | None = None

    @property
    def numbers(self) -> Int64:
        """int64[n, 8], the COLUMNS of all rows."""
        if self._numbers is None:
            self._numbers = self._numbers_of(0, self.count)
        return self._numbers

    def _numbers_of(self, start: int, stop: int) -> Int64:
        found = np.empty((stop - start, len(COLUMNS)), np.int64)
        for number in range(len(COLUMNS)):
            found[:, number] = self.column(number, start, stop)
        found[:, CTIME] += found[:, MTIME]
        found[:, POINTER] = self._pointers(found[:, POINTER], found[:, POS], found[:, SIZE])
        return found

    @staticmethod
    def _pointers(stored: Int64, pos: Int64, size: Int64) -> Int64:
        return np.where((stored == 0) | (stored == -1), stored, pos - stored - size)

    def plain(self, chosen: Bools) -> Plain:
        """What columns say of the chosen rows, bool[n], without an object a name. A third of the
        time of `numbers` and `names`. Raises ValueError."""
        pos, size, mtime, stored, kind = (
            self.column(number)[chosen] for number in (POS, SIZE, MTIME, POINTER, KIND)
        )
        shared, rest, _ = self._fronts
        rows, lengths = self._matrix(0, self.count), shared + rest
        inside = np.arange(rows.shape[1]) < lengths[:, None]
        inside &= chosen[:, None]
        return Plain(
            pos, self._pointers(stored, pos, size), size, mtime, kind, lengths[chosen],
            rows[inside],
        )  # fmt: skip

    @property
    def names(self) -> list[bytes]:
        """The names. Raises ValueError."""
        if self._names is None:
            self._names = self.texts().tolist()
        return self._names

    def texts(self) -> Texts:
        """The same, not kept. Raises ValueError."""
        return self._texts_of(0, self.count)

    def part(self, start: int, stop: int) -> Rows:
        """The rows [start, stop), at least one: no others are decoded. Raises ValueError."""
        return Rows(self._texts_of(start, stop).tolist(), self._numbers_of(start, stop))

    def row(self, index: int) -> list[int]:
        """The COLUMNS of one row."""
        row = []
        for width, at, base in zip(self._width, self._at, self._base, strict=True):
            at += index * width
            value = base + int.from_bytes(self._raw[at : at + width].tobytes(), "little")
            row.append(_signed(value))
        if row[POINTER] not in (0, -1):
            row[POINTER] = _signed(row[POS] - row[POINTER] - row[SIZE])
        row[CTIME] = _signed(row[CTIME] + row[MTIME])
        return row[: len(COLUMNS)]

    def name(self, index: int) -> bytes:
        """One name. Raises ValueError. Cost: a tenth of that of all of them."""
        _, rest, ends = self._fronts
        end = self._tails_at + ends.item(index)
        return self._front(index) + self._raw[end - rest.item(index) : end].tobytes()

    def _texts_of(self, start: int, stop: int) -> Texts:
        rows = self._matrix(start, stop)
        return rows.view(f"S{rows.shape[1]}").ravel()

    @cached_property
    def _fronts(self) -> tuple[Int64, Int64, Int64]:
        """`shared`, `rest`, and where each name ends in what is stored of them.

        raises  ValueError for lengths that cannot be
        """
        shared, rest = self.column(STORED - 2), self.column(STORED - 1)
        lengths, ends = shared + rest, np.cumsum(rest)
        longest = int(lengths.max())
        if (
            min(int(shared.min()), int(rest.min())) < 0
            or shared[0]
            or int(ends[-1]) != self._tails
            or (shared[1:] > lengths[:-1]).any()
            or self.count * longest > max(AREA, longest)
        ):
            raise ValueError("names that cannot be")
        return shared, rest, ends

    def _front(self, index: int) -> bytes:
        """What a name shares with the one before: each byte of it stands in the last name that does
        not share it."""
        shared, rest, ends = self._fronts
        least = np.minimum.accumulate(shared[index::-1])
        parts, wanted = list[bytes](), least.item(0)
        for back in (np.flatnonzero(least[1:] < least[:-1]) + 1).tolist():
            row, known = index - back, least.item(back)
            at = self._tails_at + ends.item(row) - rest.item(row)
            parts.append(self._raw[at : at + wanted - known].tobytes())
            wanted = known
        return b"".join(reversed(parts))

    def _matrix(self, start: int, stop: int) -> UInt8:
        """Names as rows of a matrix, uint8[n, longest], with zeros behind them."""
        shared, rest, ends = (column[start:stop] for column in self._fronts)
        begin, front = ends - rest, np.frombuffer(self._front(start), np.uint8)
        lengths = shared + rest
        shared = shared.copy()
        shared[0] = 0  # the first one is whole here
        wide, longest, ahead = int(shared.max()), int(lengths.max()), len(front)
        tails = self._raw[self._tails_at + int(begin[0]) : self._tails_at + int(ends[-1])]
        raw = np.concatenate([np.zeros(wide, np.uint8), front, tails, np.zeros(longest, np.uint8)])
        at = begin - begin[0] + wide + ahead - shared
        at[0] = wide
        rows = rows_at(raw, at, longest)
        if wide:
            # Of what a name shares with others each byte stands in the last row that does not share
            # it. Rows follow each other in `raw`, so that is the highest place.
            column = np.arange(wide)[:, None]
            place = np.where(shared <= column, at + column, 0)
            np.maximum.accumulate(place, axis=1, out=place)
            rows[:, :wide] = raw[place].T
        narrow = np.uint16 if longest < 1 << 16 else np.int64  # half the time
        rows *= np.arange(longest, dtype=narrow) < lengths.astype(narrow)[:, None]
        return rows

    def column(self, number: int, start: int = 0, stop: int | None = None) -> Int64:
        """One of the COLUMNS as it is stored, of the rows [start, stop): all but POINTER and CTIME
        are stored as they are."""
        stop = self.count if stop is None else stop
        width, at = self._width[number], self._at[number] + start * self._width[number]
        if width == 0:
            return np.full(stop - start, self._base[number], np.int64)
        rows = np.zeros((stop - start, 8), np.uint8)
        rows[:, :width] = self._raw[at : at + (stop - start) * width].reshape(-1, width)
        found: Int64 = rows.view("<i8")[:, 0] + self._base[number]
        return found


def _signed(value: int) -> int:
    """A sum of numbers as int64 has it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


# --- the file ---


class Run:
    """A run of blocks, names ascending from each to the next.

    parts   int64[b, 16], rows of `Part`
    firsts  the first name of each block
    starts  which rows a block has, [starts[i], starts[i + 1])
    count   rows, with those that are GONE
    schema  the columns of the user; values: int64[columns, b, 6], rows of `Values`
    """

    def __init__(self, storage: Storage, value: bytes) -> None:
        """Raises ValueError for bytes that are no index."""
        count, size = HEAD.unpack_from(value)
        width = 8 * len(Part._fields)
        end = HEAD.size + count * (width + 4) + size
        if len(value) < end:
            raise ValueError("an index of another size")
        self._storage = storage
        self.schema, self.values = _typed(value, end, count)
        at = HEAD.size + count * width
        self.parts = np.frombuffer(value, "<i8", count * len(Part._fields), HEAD.size).reshape(
            count, len(Part._fields)
        )
        ends = np.cumsum(np.frombuffer(value, "<u4", count, at), dtype=np.int64).tolist()
        texts = value[at + 4 * count : end]
        self.firsts = [texts[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        rows = np.cumsum(self._field("rows"))
        self.starts: list[int] = [0, *rows.tolist()]
        self.count = self.starts[-1]
        if (ends[-1] if ends else 0) != size or (self.parts[:, :2] < 0).any():
            raise ValueError("an index that cannot be")
        self._blocks: dict[int, Block] = {}
        self._columns: dict[tuple[int, str], Column] = {}

    def _field(self, name: str) -> Int64:
        """A field of `Part`, of all blocks."""
        field: Int64 = self.parts[:, Part._fields.index(name)]
        return field

    def totals(self) -> tuple[int, int, int, int]:
        """Of the live rows number and sum of the sizes, least and greatest mtime; 0, 0: no rows."""
        live = self._field("rows") - self._field("gone")
        some = live > 0
        if not some.any():
            return 0, 0, 0, 0
        times = self._field("mtime_min")[some].min(), self._field("mtime_max")[some].max()
        return int(live.sum()), sum(self._field("content").tolist()), int(times[0]), int(times[1])

    def asked(self) -> list[int]:
        """Positions of the inodes that have to be asked. Raises DerivedDamage. Cost: reads the
        blocks that have some."""
        found: list[int] = []
        for i in np.flatnonzero(self._field("asked")).tolist():
            numbers = self.block(i).numbers
            found += numbers[numbers[:, KIND] & ASK != 0, POS].tolist()
        return found

    def mtimes(self, number: int) -> tuple[int, int]:
        """The least and the greatest mtime of the live rows of a block."""
        part = Part(*self.parts[number].tolist())
        return part.mtime_min, part.mtime_max

    def find(self, index: int) -> int:
        """Number of the block that has this row."""
        return bisect_right(self.starts, index) - 1

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, slice]]:
        """The blocks that have some of the rows [start, stop), and which of theirs these are."""
        stop = min(stop, self.count)
        number = self.find(start)
        while start < stop:
            first, end = self.starts[number], self.starts[number + 1]
            yield number, slice(start - first, min(stop, end) - first)
            start, number = end, number + 1

    def lower_bound(self, name: bytes) -> int:
        """Index of the first row whose name is >= `name`; `count`: there is none.

        cost    decodes the names of one block
        raises  DerivedDamage
        """
        number = bisect_right(self.firsts, name) - 1
        if number < 0:
            return 0
        return self.starts[number] + bisect_left(self.names(number), name)

    def rows(
        self,
        low: bytes = b"",
        high: bytes | None = None,
        times: Times = ALWAYS,
        wanted_columns: Sequence[str] = (),
    ) -> Iterator[Rows]:
        """The rows with names in [low, high), a block at a time. Raises DerivedDamage.

        times           blocks that have no mtime in it are left out
        wanted_columns  of the user, whose values the rows are to have
        """
        for i, part in self.within(low, high, times):
            values = self.blobs(i, wanted_columns)
            yield Rows(
                self.names(i)[part], self.block(i).numbers[part],
                None if values is None else values[part],
            )  # fmt: skip

    def within(
        self, low: bytes, high: bytes | None, times: Times = ALWAYS, chosen: Bools | None = None
    ) -> Iterator[tuple[int, slice]]:
        """The blocks that have names in [low, high), and which rows. Raises DerivedDamage.

        chosen  bool[b]: of which blocks; None: of all
        """
        first_block = max(bisect_right(self.firsts, low) - 1, 0)
        stop = len(self.firsts) if high is None else bisect_left(self.firsts, high)
        wanted = np.arange(first_block, stop)
        if chosen is not None:
            wanted = wanted[chosen[wanted]]
        since, until = times
        asked = self._field("asked") > 0
        if since is not None:  # an mtime at either end may be one beyond it
            late = self._field("mtime_max") >= min(since, MOST)
            wanted = wanted[(late | asked)[wanted]]
        if until is not None:
            early = self._field("mtime_min") < max(until, -MOST)
            wanted = wanted[(early | asked)[wanted]]
        with self._within_budget(wanted) as passed:
            yield from self._parts_of(wanted, low, high, passed)

    def _parts_of(
        self, wanted: Int64, low: bytes, high: bytes | None, passed: Callable[[int], None]
    ) -> Iterator[tuple[int, slice]]:
        for i in wanted.tolist():
            first, last = 0, self.starts[i + 1] - self.starts[i]
            if self.firsts[i] < low:
                first = bisect_left(self.names(i), low)
            if high is not None and (i + 1 == len(self.firsts) or self.firsts[i + 1] > high):
                last = bisect_left(self.names(i), high)
            if first < last:
                yield i, slice(first, last)
            passed(i)

    @contextmanager
    def _within_budget(self, wanted: Int64) -> Iterator[Callable[[int], None]]:
        """Of a pass over these blocks no more than BUDGET stays in the page cache.

        ->  is told of each block that was read
        """
        pos, size = self.parts[wanted, :2].T
        beyond = np.flatnonzero(np.cumsum(size) > BUDGET)
        at = int(pos[beyond[0]]) if len(beyond) else 0
        drop = self._storage.dropper(at, int((pos + size).max())) if at else None

        def passed(block: int) -> None:
            nonlocal at
            here = int(self.parts[block, 0])
            if drop is not None and here > at + STEP:
                drop(at, here)
                at = here

        try:
            yield passed
        finally:
            if drop is not None:
                with suppress(OSError):  # somebody may have closed it, before all was read
                    drop(at, self._storage.size())

    def near(self, positions: Int64) -> Int64:
        """The blocks that may have one of these ascending positions, int64[b]."""
        low = np.searchsorted(positions, self._field("pos_min"))
        high = np.searchsorted(positions, self._field("pos_max"), "right")
        return np.flatnonzero((low < high) & (self._field("gone") < self._field("rows")))

    def positions(self) -> Int64:
        """Positions of all inodes, in order. Raises DerivedDamage. Cost: reads all blocks."""
        wanted = np.arange(len(self.firsts))
        with self._within_budget(wanted) as passed:
            parts = [NO_NUMBERS]
            for i in wanted.tolist():
                parts.append(self.block(i).column(POS))
                passed(i)
        return np.concatenate(parts)

    def rows_in(self, blocks: Int64) -> int:
        """How many rows these blocks have."""
        return int(self._field("rows")[blocks].sum())

    def at(self, positions: Int64, blocks: Int64) -> Iterator[Plain]:
        """The rows of these blocks that have one of these ascending positions, and say all.

        raises  DerivedDamage
        """
        with self._within_budget(blocks) as passed:
            for i in blocks.tolist():
                block = self.block(i)
                pos = block.column(POS)
                place = np.minimum(np.searchsorted(positions, pos), len(positions) - 1)
                chosen = positions[place] == pos
                if chosen.any():
                    yield self._plain(i, chosen)
                passed(i)

    def plain(self, low: bytes, high: bytes | None, times: Times) -> Iterator[Plain | Rows]:
        """As `rows`; of a block whose rows all say all in less time. Raises DerivedDamage."""
        for i, part in self.within(low, high, times):
            block = self.block(i)
            if (block.column(KIND) & (GONE | ASK)).any():
                yield Rows(self.names(i)[part], block.numbers[part])
                continue
            chosen = np.zeros(block.count, bool)
            chosen[part] = True
            yield self._plain(i, chosen)

    def _plain(self, number: int, chosen: Bools) -> Plain:
        block = self.block(number)
        try:
            return block.plain(chosen & (block.column(KIND) & (GONE | ASK) == 0))
        except ValueError as error:
            raise self.damage(number, error) from None

    def values_between(
        self, low: int, high: int, typed: Mapping[str, str]
    ) -> Iterator[tuple[Int64, dict[str, Column]]]:
        """Of files whose inodes stand in [low, high) positions and values, a block at a time; a
        column that there is not is null. Raises DerivedDamage."""
        near = (self._field("pos_max") >= low) & (self._field("pos_min") < high)
        for i in np.flatnonzero(near & (self._field("gone") < self._field("rows"))).tolist():
            numbers = self.block(i).numbers
            pos = numbers[:, POS]
            chosen = np.flatnonzero((pos >= low) & (pos < high) & (numbers[:, KIND] & GONE == 0))
            if len(chosen):
                found = {}
                for name, kind in typed.items():
                    there = name in self.schema
                    column = self.column(i, name) if there else Column.nulls(kind, len(pos))
                    found[name] = column.take(chosen).cast(kind)
                yield pos[chosen], found

    def possible(self, where: Condition) -> Bools:
        """Of which blocks a condition can be true for some file, or nobody knows: bool[b]."""
        rows, none = self._field("rows"), np.zeros(len(self.firsts), np.int64)
        zones = {
            name: Zone(self.schema[name], rows, *table[:, 3:].T)
            for name, table in zip(self.schema, self.values, strict=True)
        }
        for name, unit in (("size", 1), ("mtime", MICRO)):
            low, high = (self._field(f"{name}_{end}") // unit for end in ("min", "max"))
            zones[name] = Zone(BUILTIN[name], rows, none, low, high)
        # A block that has only rows of GONE has no bounds, and nothing to choose.
        possible = where.possible(zones.get, len(rows)).true & (self._field("gone") < rows)
        return possible | (self._field("asked") > 0)

    def chosen(
        self, where: Condition, low: bytes, high: bytes | None, times: Times, columns: Sequence[str]
    ) -> Iterator[Rows]:
        """As `rows`, but only those of which a condition is true, and rows that have to be asked.

        cost  blocks of which it cannot be true are not read
        """
        for i, part in self.within(low, high, times, self.possible(where)):
            rows = self.block(i).numbers
            found = rows[:, KIND] & ASK != 0
            found |= where.truth(partial(self._asked, i)).true
            outside = np.ones(len(found), bool)
            outside[part] = False
            found &= ~outside
            if found.any():
                values = self.blobs(i, columns)
                yield Rows(self.names(i), rows, values).take(found)

    def _asked(self, number: int, name: str) -> Column:
        if name in self.schema:
            return self.column(number, name)
        names = self.names(number) if name == "path" else []
        return builtin(name, names, self.block(number).numbers)

    def column(self, number: int, name: str) -> Column:
        """The values of a column in a block; the last KEPT ones stay in memory.

        raises  DerivedDamage; KeyError for a column that there is not
        cost    one read
        """
        found = self._columns.get((number, name))
        if found is None:
            where = self.values[list(self.schema).index(name), number, :3].tolist()
            kind, rows = self.schema[name], int(self.parts[number, Part._fields.index("rows")])
            if not where[1]:
                return Column.nulls(kind, rows)
            decode = partial(Column.decode, kind, rows=rows)
            found = _checked(self._storage, where, decode)
            if len(self._columns) >= KEPT:
                del self._columns[next(iter(self._columns))]
            self._columns[number, name] = found
        return found

    def blobs(self, number: int, names: Sequence[str]) -> Blobs | None:
        """The values of columns in a block as rows have them; None: there are none."""
        there = [name for name in names if name in self.schema]
        if not there:
            return None
        return pack([self.column(number, name).texts() for name in there], there)

    def block(self, number: int) -> Block:
        """A block; the last KEPT ones stay in memory. Raises DerivedDamage. Cost: one read."""
        found = self._blocks.get(number)
        if found is None:
            found = self.read(number)
            if len(self._blocks) >= KEPT:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = found
        return found

    def read(self, number: int) -> Block:
        """A block, that is not kept. Raises DerivedDamage. Cost: one read."""
        return _checked(self._storage, self.parts[number, :3].tolist(), Block)

    def blocks_at(self, positions: Int64) -> list[int]:
        """The blocks that may have inodes at these ascending positions."""
        low, high = self._field("pos_min"), self._field("pos_max")
        few = np.searchsorted(positions, low) < np.searchsorted(positions, high, "right")
        return np.flatnonzero(few).tolist()

    def names(self, number: int) -> list[bytes]:
        """The names of a block. Raises DerivedDamage."""
        try:
            return self.block(number).names
        except ValueError as error:
            raise self.damage(number, error) from None

    def damage(self, number: int, error: ValueError) -> DerivedDamage:
        """What to raise for a block that cannot be decoded."""
        return DerivedDamage(str(error), file=self._storage.name, offset=int(self.parts[number, 0]))


class CatalogFile:
    """BASE.cat, open for reading.

    contid, covered  whose it is: CONTID, and FILESIZE of the data file
    clashes          of the first run: files, not directories, with whose name and a / another
                     begins; -1: not known
    runs             the oldest first; at least one
    """

    def __init__(self, storage: Storage) -> None:
        """Takes the storage; it is closed where this raises. Raises FormatError; OSError."""
        self.storage = storage
        try:
            self.superblock = block = read_superblock(storage)
            check_form(block, storage, PURPOSE_CATALOG)
            self.contid, self.covered = block.get("CONTID", 0), block.get("DATAEND", -1)
            self.clashes = block.get(CLASHES, -1)
            where = [block.get(name, 0) for name in (RUNS, RUNBYTES, RUNHASH)]
            words = _checked(storage, where, _words)
            self.listed: list[list[int]] = words.reshape(-1, 4).tolist()
            make = partial(Run, storage)
            self.runs = [_checked(storage, row[:3], make) for row in self.listed]
            if not self.runs:
                raise DerivedDamage("a catalog without a run", file=storage.name, offset=0)
        except ValueError as error:
            storage.close()
            raise DerivedDamage(str(error), file=storage.name, offset=0) from None
        except BaseException:
            storage.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.storage.close()

    @property
    def rows(self) -> int:
        """Rows of all runs."""
        return sum(run.count for run in self.runs)


def check_form(block: Superblock, storage: Storage, purpose: str) -> Layout:
    """Refuse what is no kvseq in the form of BASE.cat and BASE.cols, or not all of it.

    raises  FormatError
    """
    layout = Layout.of(block, storage.name)
    shape = (layout.delflag, layout.key.code, layout.value.code, layout.align, layout.checksum)
    whole = block["SBSIZE"] <= block.get("FILESIZE", 0) <= storage.size()
    mine = (block["FORMAT"], block.purpose) == (KVSEQ, purpose) and "SBCKSUM" in block
    if not (mine and whole and shape == (0, FIXED, LONG, ALIGN, 4)):
        raise FormatError(f"{storage.name}: not {purpose} of a container, or not all of it")
    block.check_known(storage.name)
    return layout


def _checked(storage: Storage, where: Sequence[int], make: Callable[[bytes], T]) -> T:
    """What is made of a value. `where`: its position, bytes and hash. Raises DerivedDamage."""
    pos, length, hashed = where
    if pos < 0 or not 0 <= length <= storage.size() - pos:
        raise DerivedDamage("the catalog is cut short", file=storage.name, offset=pos)
    value = storage.read(pos, length)
    if _hash(value) != hashed:
        raise DerivedDamage("a block of the catalog is wrong", file=storage.name, offset=pos)
    try:
        return make(value)
    except (ValueError, struct.error) as error:
        raise DerivedDamage(str(error), file=storage.name, offset=pos) from None


def _typed(value: bytes, at: int, blocks: int) -> tuple[dict[str, str], Int64]:
    """The end of the index of a run, from `at` on -> its schema and the table of `Values`."""
    if len(value) == at:
        return {}, np.empty((0, blocks, len(Values._fields)), np.int64)
    at += -at % ALIGN
    size = int.from_bytes(value[at : at + 8], "little")
    schema = parse_schema(value[at + 8 : at + 8 + size])
    at += 8 + size + -size % ALIGN
    shape = (len(schema), blocks, len(Values._fields))
    words = np.frombuffer(value, "<i8", -1, at)
    if words.size != shape[0] * shape[1] * shape[2]:
        raise ValueError("an index of another size")
    return schema, words.reshape(shape)


def _words(value: bytes) -> Int64:
    return np.frombuffer(value, "<i8").astype(np.int64)


def _hash(value: bytes) -> int:
    return int.from_bytes(xxhash.xxh3_64_digest(value), "little", signed=True)


class CatalogWriter:
    """Writes a BASE.cat, or more runs behind those of one."""

    def __init__(self, kv: KVSeq, runs: list[list[int]], schema: Schema) -> None:
        self._kv, self._runs, self._schema = kv, runs, schema
        self._parts: list[list[int]] = []  # rows of `Part`
        self._values: list[list[Values]] = []
        self._firsts: list[bytes] = []

    @classmethod
    def create(cls, storage: Storage, contid: int, schema: Schema) -> Self:
        """A new file in an empty storage. `schema`: the columns of the user."""
        block = Superblock.new(KVSEQ, PURPOSE_CATALOG, NEW | {"CONTID": contid}, 2 * HALF)
        storage.write(0, block.images())
        return cls(KVSeq(storage, block, writable=True), [], schema)

    @classmethod
    def append_to(cls, storage: Storage, file: CatalogFile, kept: int, schema: Schema) -> Self:
        """More runs behind the first `kept` of a file; `storage`: the same, open for writing.

        raises  DerivedDamage where it is not the same any more; the storage is closed then
        """
        try:
            kv = KVSeq.open(storage, writable=True)
            if kv.superblock != file.superblock:
                raise DerivedDamage("somebody has changed it", file=storage.name, offset=0)
        except BaseException:
            storage.close()
            raise
        return cls(kv, file.listed[:kept], schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file; what was not finished is dropped."""
        self._kv.release()
        self._kv.storage.close()

    def write_run(self, rows: Iterable[Rows]) -> int:
        """A run of rows in byte order of their names, given in parts of any size -> rows.

        raises  OSError
        cost    one write; memory: a few blocks
        """
        waiting: list[Rows] = []
        count = 0
        for part in rows:
            waiting.append(part)
            count += len(part)
            if count >= TOGETHER * BLOCK or (count >= BLOCK and part.column.dtype == object):
                joined = Rows.concat(waiting)
                whole = count - count % BLOCK
                self._write_blocks(joined.part(0, whole))
                waiting, count = [joined.part(whole)], count - whole
        if count:
            self._write_blocks(Rows.concat(waiting))
        return self._end_run()

    def _write_blocks(self, rows: Rows) -> None:
        if rows.column.dtype != object:
            self._write_each(rows, BLOCK)
            return
        for at in range(0, len(rows), BLOCK):
            stop = min(at + BLOCK, len(rows))
            step = max(AREA // max(map(len, rows.column[at:stop])), 1)
            for low in range(at, stop, step):
                self._write_each(rows.part(low, min(low + step, stop)), step)

    def _write_each(self, rows: Rows, each: int) -> None:
        for at, (value, figures) in zip(
            range(0, len(rows), each), encode_blocks(rows, each), strict=True
        ):
            pos = self._append(b"b/000000", value)
            self._parts.append([pos, len(value), _hash(value), *figures])
            self._firsts.append(bytes(rows.column[at]))
            if self._schema:
                self._values.append(self._write_values(rows.part(at, at + each)))

    def _write_values(self, rows: Rows) -> list[Values]:
        if rows.values is None:
            return [Values(0, 0, 0, len(rows), 0, 0)] * len(self._schema)
        found = []
        for kind, texts in zip(
            self._schema.values(), split(rows.values, self._schema), strict=True
        ):
            column = Column.of(kind, texts)
            value, zone = column.encode(), column.zone()
            there = column.valid.any()
            pos = self._append(b"c/000000", value) if there else 0
            found.append(Values(pos, len(value) * bool(there), _hash(value) if there else 0, *zone))
        return found

    def _append(self, key: bytes, value: bytes) -> int:
        """Add an entry -> the position of its value."""
        kv = self._kv
        padding = -kv.end % ALIGN
        pos, head = kv.end + padding, key + len(value).to_bytes(8, "big")
        state = xxhash.xxh3_64(head, seed=(kv.layout.contid + pos) & MASK64)  # as a kvseq has it
        state.update(value)
        kv.append_parts([bytes(padding), head, value, state.digest()[-4:]], 1, 1)
        return pos + len(head)

    def _end_run(self) -> int:
        parts, firsts = self._parts, self._firsts
        self._parts, self._firsts = [], []
        lengths = np.fromiter(map(len, firsts), "<u4", len(firsts))
        texts = b"".join(firsts)
        words = np.array(parts, "<i8").tobytes()
        value = HEAD.pack(len(parts), len(texts)) + words + lengths.tobytes() + texts
        if self._schema:
            schema, table = schema_text(self._schema), np.array(self._values, "<i8")
            self._values = []
            value += bytes(-len(value) % ALIGN) + len(schema).to_bytes(8, "little") + schema
            shape = (len(parts), len(self._schema), len(Values._fields))
            value += bytes(-len(value) % ALIGN)
            value += table.reshape(shape).transpose(1, 0, 2).tobytes()
        count = sum(part[Part._fields.index("rows")] for part in parts)
        pos = self._append(b"i/000000", value)
        self._runs.append([pos, len(value), _hash(value), count])
        return count

    def finish(self, covered: int, now: int, clashes: int | None = None) -> None:
        """Write the list of the runs and the superblock. Raises OSError.

        A new file is to be synced by the caller, one that has grown is durable on return.

        covered  DATAEND
        clashes  of the first run; None: it is as before
        """
        value = np.array(self._runs, "<i8").tobytes()
        pos = self._append(b"r/000000", value)
        places = {RUNS: pos, RUNBYTES: len(value), RUNHASH: _hash(value)}
        places["DATAEND"] = covered
        if clashes is None:
            self._kv.sync(places, now=now)
        else:
            self._kv.flush()
            self._kv.drain()
            counts = {"ENTRIES": self._kv.entries, "AENTRIES": self._kv.aentries, CLASHES: clashes}
            ends = {"FILESIZE": self._kv.end, "SYNCSIZE": self._kv.end, "SYNCTIME": now}
            self._kv.superblock.update(places | counts | ends)
            self._kv.storage.write(0, self._kv.superblock.images())
        self._kv.release()
