"""A block of BASE.cat: some rows, in byte order of their names.

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
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import Final

import numpy as np

from winkformats.arrays import WIDEST, Bools, Int64, Strings, TextColumn, UInt8, rows_at
from winkfs.container.rows import (
    ASK,
    COLUMNS,
    CTIME,
    GONE,
    KIND,
    MTIME,
    POINTER,
    POS,
    SIZE,
    Plain,
    Rows,
)

TOPS: Final = np.array([0, *((1 << 8 * width) - 1 for width in range(1, 8))], np.uint64)
"""The greatest numbers that 0 .. 7 bytes hold."""
ALIGN: Final = 8
BLOCK: Final = 1024  # rows of a block, at most
AREA: Final = 1 << 20  # rows times bytes of the longest name, at most, but for a single row
SIZES: Final = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}
HEAD: Final = struct.Struct("<QQ")
MOST: Final = (1 << 63) - 1
STORED: Final = len(COLUMNS) + 2  # with `shared` and `rest`


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
    mine = _between(shared, lengths, matrix.shape[1])
    joined = matrix[mine].tobytes()
    ends = np.cumsum(np.add.reduceat(rest, starts)).tolist()
    return [joined[a:b] for a, b in pairwise([0, *ends])]


def _between(low: Int64, high: Int64, width: int) -> Bools:
    """Which of `width` places are in [low, high), bool[n, width]."""
    if width <= WIDEST:  # half the time
        below = _below(width)
        found = below.take(high, 0)
        found ^= below.take(low, 0)
        return found
    small = np.min_scalar_type(width)  # with numbers of 8 bytes: six times the time
    place = np.arange(width, dtype=small)
    found = place >= low.astype(small)[:, None]
    found &= place < high.astype(small)[:, None]
    return found


@lru_cache(maxsize=WIDEST // 8)
def _below(width: int) -> Bools:
    """For each number 0 .. width which places are below it."""
    return np.arange(width) < np.arange(width + 1)[:, None]


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
        rows, inside = self._matrix(0, self.count)
        inside &= chosen[:, None]
        return Plain(
            pos, self._pointers(stored, pos, size), size, mtime, kind, (shared + rest)[chosen],
            rows[inside],
        )  # fmt: skip

    @property
    def names(self) -> list[bytes]:
        """The names. Raises ValueError."""
        if self._names is None:
            self._names = self.texts().tolist()
        return self._names

    def texts(self) -> Strings:
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

    def _texts_of(self, start: int, stop: int) -> Strings:
        rows, inside = self._matrix(start, stop)
        rows *= inside
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

    def _matrix(self, start: int, stop: int) -> tuple[UInt8, Bools]:
        """Names as rows of a matrix, uint8[n, longest], and which of its bytes are theirs."""
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
        narrow = np.dtype(np.uint16 if longest < 1 << 16 else np.int64)  # half the time
        inside: Bools = np.arange(longest).astype(narrow) < lengths.astype(narrow)[:, None]
        return rows, inside

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
