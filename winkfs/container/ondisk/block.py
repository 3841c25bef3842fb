"""A block of BASE.cat: rows, in byte order of their names.

A block is, all little-endian:

    offset  size  field
    0       8     number of rows, n
    8       8     bytes of the names as they are stored
    16      16    for each of the COLUMNS, and for `shared` and `rest`: int64 base, uint64 width
    ...     n * w the columns, each at a multiple of 8: n numbers of `width` bytes, to which the
                  base is to be added (modulo 2^64)
    ...           the names: of each the bytes that its predecessor does not begin with

`shared` is the length of the prefix that a name has in common with the name before it; `rest` is
the number of its other bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import accumulate, chain, pairwise, takewhile
from typing import Final

import numpy as np

from winkformats import native
from winkformats.arrays import (
    MAX_ROW,
    WORD,
    Int64,
    TextColumn,
    UInt8,
    UInt64,
    blank,
    ends_of,
    gather,
    row_width,
    rows_at,
    rows_joined,
)
from winkformats.errors import DerivedDamage
from winkformats.lazy import cached_property
from winkfs.container.table import (
    ASK,
    COLUMNS,
    CTIME,
    GONE,
    KIND,
    MTIME,
    POINTER,
    POS,
    SIZE,
    FileTable,
)

TOPS: Final = np.array([0, *((1 << 8 * width) - 1 for width in range(1, 8))], np.uint64)
"""The greatest numbers that 0 .. 7 bytes hold."""
ALIGN: Final = 8
BLOCK: Final = 1024  # rows of a block, at most
AREA: Final = 1 << 20  # rows times bytes of the longest name, at most, except for a single row
SIZES: Final = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}
HEAD: Final = struct.Struct("<QQ")
MOST: Final = (1 << 63) - 1
STORED: Final = len(COLUMNS) + 2  # with `shared` and `rest`
SHARED, REST = STORED - 2, STORED - 1
START: Final = HEAD.size + 16 * STORED  # of the columns
SLACK: Final = MAX_ROW + WORD  # bytes after blocks in memory: nearly no row of names is cut
TOGETHER: Final = 4 << 20  # bytes of a matrix of names of several blocks


def encode_blocks(rows: FileTable, each: int) -> Iterator[tuple[bytes, list[int]]]:
    """Yield the value of each block of `each` rows, and the numbers of its PART from `rows` on; the
    last block has the remaining rows.

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
    # Columns that mostly follow from others are stored as the difference. An entry at `pointer`
    # with `size` bytes ends at or before `pos`, or begins after it: the difference is not 0 or -1.
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
    """Return the low bytes of each number."""
    if width in SIZES:  # much faster than the general way
        return column.astype(SIZES[width]).tobytes()
    return column.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _share(texts: TextColumn, starts: Int64, shared: Int64, rest: Int64) -> list[bytes]:
    """Fill in `shared` and `rest`; names at `starts` share nothing.

    ->  for each block that begins at `starts`, the rests of its names, joined
    """
    if texts.dtype == object:
        texts = texts.astype("S")
    matrix = texts.view(np.uint8).reshape(len(texts), -1)
    lengths = np.strings.str_len(texts)
    np.argmin(matrix[1:] == matrix[:-1], axis=1, out=shared[1:])
    shared[starts] = 0
    np.subtract(lengths, shared, out=rest)
    rows = np.arange(0, matrix.size, matrix.shape[1])
    ends, joined = gather(matrix.ravel(), rows + shared, rest)
    bounds = ends[np.append(starts, len(texts))].tolist()
    return [joined[a:b].tobytes() for a, b in pairwise(bounds)]


def _figures(stored: Int64, starts: Int64, counts: Int64) -> Int64:
    """Return the numbers of PART, from `rows` on, of the blocks that begin at `starts`."""
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


class Blocks:
    """Blocks in one buffer, decoded together, so that calls of numpy are few. Columns and names are
    decoded at their first use."""

    def __init__(self, raw: UInt8, at: Int64, lengths: Int64, file: str = "", pos: int = 0) -> None:
        """Decode the heads of blocks. Raises DerivedDamage, as do methods that decode names.

        raw      the values of the blocks, and SLACK bytes after the last one
        at       offsets of the blocks in `raw`, int64[k], ascending; lengths: their bytes, int64[k]
        file     the file they were read from, and pos: the position of the first one in it
        """
        self._raw, self._places, self._file, self._pos = raw, (at, lengths), file, pos
        if int(lengths.min()) < START:
            raise self._damage("a block is cut short")
        heads = rows_at(raw, at, START).view("<i8")
        self.counts, self._tails = heads[:, 0], heads[:, 1]
        self._base, self._width = heads[:, 2::2].T, heads[:, 3::2].T
        counts, width = self.counts, self._width
        if (width.view(np.uint64) > WORD).any() or (counts.view(np.uint64) - 1 >= BLOCK).any():
            raise self._damage("blocks that cannot be")
        sizes = counts * width + ALIGN - 1 & -ALIGN
        ends = at + START + np.cumsum(sizes, axis=0)
        self._at, self._tails_at = ends - sizes, ends[-1]
        if (self._tails_at + self._tails != at + lengths).any():
            raise self._damage("blocks of another size")
        known: list[int] = counts.tolist()
        self.starts = list(accumulate(known, initial=0))
        self._even = len(list(takewhile(known[0].__eq__, known)))  # blocks with as many rows
        if self._even == 1:  # which takes twice as long as a matrix
            self._even = 0

    def _damage(self, what: str) -> DerivedDamage:
        return DerivedDamage(what, file=self._file, offset=self._pos)

    def column(self, number: int, into: Int64 | None = None) -> Int64:
        """One of the COLUMNS of all rows as it is stored, in `into` or an array of its own: all but
        POINTER and CTIME are stored as they are."""
        at, width, base = self._at[number], self._width[number], self._base[number]
        found = np.empty(self.starts[-1], np.int64) if into is None else into
        n, even, widths = self.starts[1], self._even, width.tolist()
        alike = found[: even * n].reshape(even, n)
        for each in set(widths[:even]):
            blocks = np.flatnonzero(width[:even] == each)
            rows = rows_at(self._raw, at[blocks], n * each + WORD)
            alike[blocks] = base[blocks, None] + (_numbers(rows, each, n) if each else 0)
        for i in range(even, len(widths)):
            part = found[self.starts[i] : self.starts[i + 1]]
            part[:] = base.item(i)
            if widths[i]:
                part += _numbers(self._raw[at.item(i) :], widths[i], len(part))
        return found

    @cached_property
    def table(self) -> FileTable:
        """All rows, not to be changed, without an object a name."""
        columns = np.empty((len(COLUMNS), self.starts[-1]), np.int64)
        if native.code is not None and len(self.counts) > 1:
            ends = np.empty(self.starts[-1] + 1, np.int64)
            names = native.code.blocks(self._raw.data, *self._places, columns, ends)
            if names is not None:  # else the reference reports what is wrong
                return FileTable((ends, np.frombuffer(names, np.uint8)), columns.T)
        for number, column in enumerate(columns):
            self.column(number, column)
        columns[CTIME] += columns[MTIME]
        stored = columns[POINTER]
        unlike = (stored != 0) & (stored != -1)
        np.subtract(columns[POS] - columns[SIZE], stored, out=stored, where=unlike)
        if len(self.counts) == 1:
            return FileTable(self.texts, columns.T)
        at, shared, lengths = self._fronts
        wide = len(at) * row_width(lengths) > TOGETHER
        parts = [
            rows_joined(_whole(self._raw, at[a:b], shared[a:b], lengths[a:b]), lengths[a:b])
            for a, b in pairwise(self.starts if wide else [0, len(at)])
        ]
        joined = parts[0]
        if wide:
            joined = ends_of(lengths), np.concatenate([raw for _, raw in parts])
        return FileTable(joined, columns.T)

    @cached_property
    def texts(self) -> TextColumn:
        """The names of one block."""
        at, shared, lengths = self._fronts
        rows = _whole(self._raw, at, shared, lengths)
        blank(rows, lengths)
        found: TextColumn = rows.view(f"S{rows.shape[1]}").ravel()
        return found if rows.shape[1] <= MAX_ROW else found.astype(object)

    @cached_property
    def _fronts(self) -> tuple[Int64, Int64, Int64]:
        """`at` and `shared` as `_whole` takes them, and the lengths of the names.

        raises  DerivedDamage for lengths that cannot be
        """
        shared, rest = self.column(SHARED), self.column(REST)
        starts, lengths, ends = np.array(self.starts[:-1]), shared + rest, np.cumsum(rest)
        longest = np.maximum.reduceat(lengths, starts)
        if (
            min(int(column.min()) for column in (shared, rest, lengths)) < 0
            or shared[starts].any()
            or (np.add.reduceat(rest, starts) != self._tails).any()
            or (shared[1:] > lengths[:-1]).any()
            or ((longest > AREA // self.counts) & (self.counts > 1)).any()
        ):
            raise self._damage("names that cannot be")
        at = ends - lengths  # of names that share nothing, in all that is stored of them
        at += np.repeat(self._tails_at - at[starts], self.counts)
        return at, shared, lengths

    def name(self, index: int) -> bytes:
        """One name of one block. Cost: a fifth of that of all of them.

        What it shares with the one before stands, byte by byte, in the last name that does not
        share it.
        """
        at, shared, lengths = self._fronts
        least = np.minimum.accumulate(shared[index::-1])
        parts, stop = list[bytes](), lengths.item(index)
        for back in (0, *(np.flatnonzero(least[1:] < least[:-1]) + 1).tolist()):
            start, begin = least.item(back), at.item(index - back)
            parts.append(self._raw[begin + start : begin + stop].tobytes())
            stop = start
        return b"".join(reversed(parts))

    def row(self, index: int) -> list[int]:
        """Return the COLUMNS of one row of the first block, without decoding the others."""
        row, fields = [], (self._base[:, 0], self._width[:, 0], self._at[:, 0])
        for base, width, at in zip(*(field.tolist() for field in fields), strict=True):
            at += index * width
            row.append(_signed(base + int.from_bytes(self._raw[at : at + width], "little")))
        if row[POINTER] not in (0, -1):
            row[POINTER] = _signed(row[POS] - row[POINTER] - row[SIZE])
        row[CTIME] = _signed(row[CTIME] + row[MTIME])
        return row[: len(COLUMNS)]


def _numbers(raw: UInt8, width: int, count: int) -> Int64:
    """Return `count` contiguous numbers of `width` bytes at the start of `raw`, or of each of its
    rows; WORD bytes must follow them."""
    wide = 1 << max(width - 1, 0).bit_length()  # bytes read for each; the excess is masked out
    strides = (*raw.strides[:-1], width)
    found: Int64 = np.ndarray(
        (*raw.shape[:-1], count), f"<u{wide}", raw, 0, strides
    ).astype(np.int64)  # fmt: skip
    if width < wide:
        found &= (1 << 8 * width) - 1
    return found


def _whole(raw: UInt8, at: Int64, shared: Int64, lengths: Int64) -> UInt8:
    """Return names as rows of a matrix, uint8[n, row_width(lengths)], with any bytes after their
    ends.

    at      offset of the rest of each name in `raw`, minus the bytes it shares
    shared  0 for the first name
    """
    width, wide = row_width(lengths), int(shared.max())
    missing = int(at.max()) + width - len(raw)
    if missing > 0:
        raw = np.append(raw, np.zeros(missing, np.uint8))
    rows = rows_at(raw, at, width)
    words = rows.view("<u8")
    for number in range(-(-wide // WORD)):
        words[:, number] = _filled_in(words[:, number], shared - WORD * number)
    return rows


def _filled_in(words: UInt64, shared: Int64) -> UInt64:
    """Return 8 bytes of each name, with those filled in that it shares with the name before.

    Names that share the most bytes have these from the last name that shares fewer. So the others,
    which mostly are few, are filled in first.
    """
    most = min(int(shared.max()), WORD)
    if most <= 0:
        return words
    own = np.flatnonzero(shared < most)
    ends = np.concatenate([own[1:], [len(words)]])
    found = np.repeat(_filled_in(words[own], shared[own]), ends - own)
    if most < WORD:
        mask = np.uint64((1 << 8 * most) - 1)
        found &= mask
        found |= words & ~mask
    return found


def _signed(value: int) -> int:
    """Wrap a sum to int64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
