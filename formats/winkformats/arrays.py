"""Arrays: their types, gathering bytes from many places, sorting texts, and finding equal keys."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from winkformats.disk.storage import Storage

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
UInt8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
TextColumn = npt.NDArray[Any]
"""Texts without NUL as an array: dtype S of a multiple of 8 bytes or, if one is longer than
MAX_ROW, objects."""
Strings = npt.NDArray[np.bytes_]
Joined = tuple[Int64, UInt8]
"""Concatenated texts: int64[n + 1], the start of the first and the end of each; their bytes."""

FREED_BLOCK: Final = 24 << 20  # bytes; above 32 MiB glibc does not adapt
MAX_GAP: Final = 4 << 10  # bytes between two places up to which one read covers both
MAX_ROW: Final = 256  # bytes of a text that is gathered with others as a row of a matrix
MATRIX_BYTES: Final = 4 << 20  # bytes of such a matrix
ROWS_AT_ONCE: Final = 1 << 16  # rows compared together
WORD: Final = 8  # bytes
MOST: Final = (1 << 63) - 1
RANKED_FROM: Final = 1 << 14  # texts from which pairs of bytes are ranked by a table


@cache
def keep_heap() -> None:
    """Make glibc keep up to 48 MiB of freed memory. Without glibc it has no effect.

    glibc returns freed blocks of 128 KiB and more to the kernel, which has to clear pages for the
    next one. It raises that limit to the largest block freed so far (mallopt(3),
    M_MMAP_THRESHOLD), so one is allocated and freed; its pages are never touched.
    """
    bytes(FREED_BLOCK)


def trim_heap() -> None:
    """Return freed memory that glibc keeps to the kernel, also from between arrays in use. Without
    glibc it has no effect."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def rows_at(view: Any, pos: Int64, width: int) -> UInt8:
    """Gather `width` bytes from each position -> uint8[n, width]. Cost: a memcpy for each row."""
    rows = np.ndarray((len(view) - width + 1,), f"V{width}", view, 0, (1,))[pos]
    return rows.view(np.uint8).reshape(len(pos), width)


def fetch(storage: Storage, pos: Int64, width: int) -> tuple[bytes, Int64]:
    """Read `width` bytes from each of some positions within a file.

    ->    the bytes, with zeros after the end of the file; the offset of each position in them,
          int64[n]
    cost  a read for each, or one for all if they are close together; memory: MAX_GAP bytes each
    """
    if not len(pos):
        return bytes(width), pos
    low = int(pos.min())
    span = int(pos.max()) + width - low
    if span <= MAX_GAP * len(pos):
        return storage.read(low, span).ljust(span, b"\0"), pos - low
    parts = storage.read_each(pos.tolist(), [width] * len(pos))
    data = b"".join(parts)
    if len(data) < width * len(pos):
        data = b"".join(part.ljust(width, b"\0") for part in parts)
    return data, np.arange(0, len(data), width)


def ends_of(lengths: Int64) -> Int64:
    """Return the start of the first and the end of each of concatenated texts, int64[n + 1]."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def rows_joined(rows: UInt8, lengths: Int64) -> Joined:
    """Concatenate the first lengths[i] bytes, at least one, of each row. Cost: a memcpy each.

    rows  uint8[n, width], contiguous
    """
    width, ends = rows.shape[1], ends_of(lengths)
    total = int(ends[-1])
    room = np.empty(total + width, np.uint8)
    # Each row is written whole, and the next one overwrites the bytes after its end.
    places = np.ndarray((total + 1,), f"V{width}", room, 0, (1,))
    places[ends[:-1]] = rows.view(f"V{width}").ravel()
    return ends, room[:total]


def gather(data: UInt8, starts: Int64, lengths: Int64) -> Joined:
    """Concatenate data[starts[i] : starts[i] + lengths[i]]. Memory: twice the result; 16 times if
    a text is longer than MAX_ROW."""
    longest = int(lengths.max(initial=0))
    if 0 < longest <= MAX_ROW:
        missing = int(starts.max()) + longest - len(data)
        if missing > 0:
            data = np.append(data, np.zeros(missing, np.uint8))
        return rows_joined(rows_at(data, starts, longest), lengths)
    ends = ends_of(lengths)
    where = np.arange(int(ends[-1]))
    where += np.repeat(starts - ends[:-1], lengths)
    return ends, data[where]


def blank(rows: UInt8, lengths: Int64) -> None:
    """Clear all but the first lengths[i] bytes of each row, uint8[n, width]."""
    width = rows.shape[1]
    if len(lengths) and lengths.min() == lengths.max():
        rows[:, int(lengths[0]) :] = 0
    elif width <= MAX_ROW and width % WORD == 0:
        rows &= rows_at(_masks(width), lengths * width, width)
    else:
        rows *= np.arange(width) < lengths[:, None]


def row_bytes(matrix: npt.NDArray[Any]) -> list[bytes]:
    """Return the rows of a contiguous matrix as bytes objects, by one call in C."""
    rows: list[bytes] = matrix.view(f"V{matrix.shape[1] * matrix.itemsize}").ravel().tolist()
    return rows


def column(rows: UInt8, dtype: str, at: int) -> npt.NDArray[Any]:
    """Return the numbers at byte `at` of each row, without a copy."""
    return np.ndarray((len(rows),), dtype, rows, at, (rows.shape[1],))


def number_bytes(numbers: npt.NDArray[Any], dtype: str) -> UInt8:
    """Return the numbers as bytes of this dtype, uint8[n, width]: see `column`."""
    width = np.dtype(dtype).itemsize
    return np.ascontiguousarray(numbers.astype(dtype)).view(np.uint8).reshape(-1, width)


def texts_at(raw: UInt8, at: Int64, lengths: Int64) -> list[bytes]:
    """Return raw[at[i] : at[i] + lengths[i]] as bytes objects, none of which may end in NUL.

    cost    array operations if all have at most MAX_ROW bytes; else a slice each
    """
    width = row_width(lengths)
    if width > MAX_ROW or len(raw) < width:
        ends = (at + lengths).tolist()
        return [raw[a:b].tobytes() for a, b in zip(at.tolist(), ends, strict=True)]
    texts: list[bytes] = []
    step = MATRIX_BYTES // width
    for start in range(0, len(at), step):
        part = slice(start, start + step)
        texts += column_at(raw, at[part], lengths[part]).tolist()
    return texts


def text_column(texts: list[bytes]) -> TextColumn:
    """Return texts, none of which ends in NUL, as a column."""
    width = row_width(np.fromiter(map(len, texts), np.int64, len(texts)))
    if width <= MAX_ROW:
        return np.array(texts, f"S{width}")
    found = np.empty(len(texts), object)
    found[:] = texts
    return found


def column_at(raw: UInt8, at: Int64, lengths: Int64) -> TextColumn:
    """Return the texts of `texts_at` as a column."""
    width = row_width(lengths)
    last = len(raw) - width  # start of the last complete row
    if width > MAX_ROW or last < 0:
        return text_column(texts_at(raw, at, lengths))
    rows = rows_at(raw, np.minimum(at, last), width)
    blank(rows, lengths)
    found: TextColumn = rows.view(f"S{width}").ravel()
    for i in np.flatnonzero(at > last).tolist():
        found[i] = raw[at[i] : at[i] + lengths[i]].tobytes()
    return found


def text_order(texts: TextColumn) -> Int64:
    """Return the indices of texts in byte order; equal texts keep their order."""
    if texts.dtype == object:
        known = texts.tolist()
        return np.array(sorted(range(len(known)), key=known.__getitem__), np.int64)
    if (texts[1:] >= texts[:-1]).all():
        return np.arange(len(texts))
    return _order(np.ascontiguousarray(texts).view(np.uint64).reshape(len(texts), -1))


def number_order(numbers: Int64) -> Int64:
    """Return the indices of numbers, ascending; equal numbers keep their order.

    cost  one sort of the numbers with their indices in the low bits, or a sort of indices, three
          times slower, if they do not fit together
    """
    own = len(numbers).bit_length()  # bits of the index
    low, high = int(numbers.min(initial=MOST)), int(numbers.max(initial=-MOST - 1))
    if high - low > MOST >> own:
        return np.argsort(numbers, kind="stable")
    keys = (numbers - low) << own
    keys |= np.arange(len(keys))
    keys.sort()
    keys &= (1 << own) - 1
    return keys


def _order(words: UInt64) -> Int64:
    """Return the order of at most 2^24 texts, uint64[n, words].

    Each round sorts numbers, which is faster than sorting texts or indices. A number contains the
    group of the text, as many of its next bytes as fit, and its index. A pair of bytes takes as
    many bits as there are different pairs to distinguish. Texts with equal numbers form a group,
    and are sorted by the following bytes in the next round.
    """

    def pairs_at(at: int) -> npt.NDArray[np.uint16]:
        word = np.ascontiguousarray(words[rows, at // WORD])
        return word.view(">u2").reshape(-1, WORD // 2)

    count, width = len(words), WORD * words.shape[1]
    order = np.arange(count)
    todo = np.arange(count)  # undecided places in `order`, ascending
    group = np.zeros(count, np.uint64)  # of each; texts of a group begin alike; from 0, ascending
    rows: Int64 | slice = slice(None)
    at = 0
    while len(todo) and at < width:
        pairs, keys = pairs_at(at), group
        own = len(todo).bit_length()  # bits of the index
        room = 8 * WORD - own - int(group[-1]).bit_length()
        while at < width:
            ranks, bits = _ranks(pairs[:, at % WORD // 2])
            if bits > room:
                break
            if bits:
                keys = keys << np.uint64(bits)
                keys |= ranks
            at, room = at + 2, room - bits
            if at % WORD == 0 and at < width:
                pairs = pairs_at(at)
        keys = keys << np.uint64(own)
        keys |= np.arange(len(todo), dtype=np.uint64)
        keys.sort()
        by = (keys & np.uint64((1 << own) - 1)).view(np.int64)
        order[todo] = order[todo][by]
        keys >>= np.uint64(own)
        follows = np.zeros(len(keys) + 1, bool)  # whether the key equals the one before
        np.equal(keys[1:], keys[:-1], out=follows[1:-1])
        tied = follows[:-1] | follows[1:]
        group = np.cumsum(tied & ~follows[:-1], dtype=np.uint64)[tied] - np.uint64(1)
        todo = todo[tied]
        rows = order[todo]
    return order


def _ranks(values: npt.NDArray[np.uint16]) -> tuple[npt.NDArray[np.uint16], int]:
    """Map numbers to smaller ones in the same order -> these, and how many bits they take."""
    values = values.astype(np.uint16)
    if len(values) < RANKED_FROM:
        low = values.min()
        return values - low, int(values.max() - low).bit_length()
    there = np.zeros(1 << 16, bool)
    there[values] = True
    rank = np.cumsum(there, dtype=np.uint16) - np.uint16(1)
    return rank.take(values), (int(there.sum()) - 1).bit_length()


def row_width(lengths: Int64) -> int:
    """Return the bytes of a row of whole words, at least one, that holds any of these texts."""
    return -(-int(lengths.max(initial=1)) // WORD) * WORD


@lru_cache(maxsize=MAX_ROW // 8)
def _masks(width: int) -> UInt8:
    """Return for each length 0 .. width a row of that many bytes 255, then zeros."""
    masks = np.arange(width) < np.arange(width + 1)[:, None]
    return (masks * np.uint8(255)).ravel()


# --- rows with equal keys, of which the last one counts ---


def among(values: npt.NDArray[Any], ascending: npt.NDArray[Any]) -> Bools:
    """Return which values are in an ascending array. Cost: a binary search each."""
    if not len(ascending):
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    same: Bools = ascending[at] == values
    return same


def superseded(values: npt.NDArray[Any], key_at: Callable[[int], bytes] | None = None) -> Int64:
    """Return the rows whose key occurs again in a later row, ascending.

    values  for each row the hash of its key; without `key_at` the key itself, a number
    key_at  row -> its key; called for rows with equal hashes, to find different keys among them
    cost    a sort; memory: 8 bytes for each row, 17 and more if there are equal ones
    """
    rows, group = alike(values)
    if not len(rows):
        return rows
    if key_at is None:
        return np.sort(rows[outranked(group, rows, group)])
    found = [rows[:0]]
    start = 0
    while start < len(rows):  # whole groups
        last = min(start + ROWS_AT_ONCE, len(rows)) - 1
        stop = int(np.searchsorted(group, group[last], "right"))
        part, known = rows[start:stop], dict[bytes, bytes]()
        keys = np.empty(len(part), object)
        keys[:] = [known.setdefault(key, key) for key in map(key_at, part.tolist())]
        found.append(part[outranked(group[start:stop] - group[start], part, keys)])
        start = stop
    return np.sort(np.concatenate(found))


def alike(values: npt.NDArray[Any]) -> tuple[Int64, Int64]:
    """Return the indices of values that occur more than once, equal ones together, and the number
    of the group of each, ascending from 0."""
    ordered = np.sort(values)
    if not (ordered[1:] == ordered[:-1]).any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    del ordered
    order = np.argsort(values)
    first = np.ones(len(order) + 1, bool)
    for at in range(0, len(order) - 1, ROWS_AT_ONCE):  # in chunks, to save memory
        part = values[order[at : at + ROWS_AT_ONCE + 1]]
        first[at + 1 : at + len(part)] = part[1:] != part[:-1]
    several = ~(first[:-1] & first[1:])
    return order[several], np.cumsum(first[:-1][several]) - 1


def outranked(group: Int64, rank: npt.NDArray[Any], keys: npt.NDArray[Any]) -> Bools:
    """Return which rows have a key that occurs again with a higher rank, bool[n].

    group  number of the group of each row, see `alike`; rows of one key are in one group
    keys   the key of each row; a group with several different keys costs a step in Python for each
           of its rows
    """
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    found: Bools = rank < np.maximum.reduceat(rank, starts)[group]
    clash = keys != keys[starts][group]
    for number in np.unique(group[clash]).tolist():
        rows = np.flatnonzero(group == number).tolist()
        top: dict[bytes, int] = {}
        for i in rows:
            top[keys[i]] = max(int(rank[i]), top.get(keys[i], 0))
        for i in rows:
            found[i] = int(rank[i]) < top[keys[i]]
    return found
