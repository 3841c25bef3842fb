"""FileTotals of files: by size, age, type and directory, and of the values of columns.

All is added table by table, in array operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Int64, UInt8, column_at
from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.typed import LISTS, is_number, to_value
from winkfs.container.table import FileTable
from winkfs.names import to_str
from winkfs.units import NANO, column_json

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86_400, 31_557_600  # seconds
AGES: Final = (0, MINUTE, HOUR, DAY, 7 * DAY, 30 * DAY, 91 * DAY, YEAR, 2 * YEAR, 4 * YEAR,
               8 * YEAR, 16 * YEAR, 32 * YEAR)  # fmt: skip
"""Seconds at which a class of ages begins; before the first one are times in the future."""
SIZES: Final = np.array([1 << bit for bit in range(63)], np.int64)
SLASH, DOT = b"/."
LONGEST_TYPE: Final = 12  # characters of a type
TYPES: Final = 24  # types that are listed
DEPTH: Final = 4  # parts of a name that are summed as directories
FOLDERS: Final = 1 << 16  # directories of a depth that are kept while they are summed
AT_ONCE: Final = 1024  # directories of a depth that are taken from a table, the largest ones
CHILDREN: Final = 24  # directories of one that are listed
DISTINCT: Final = 10_000  # different values of a column that are counted
Record = dict[str, Any]
Sums = dict[bytes, list[int]]


class FileTotals:
    """Sums of files and their bytes.

    now      nanoseconds since the epoch, from which ages count
    types    the types so far: a code is an index of them
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self.files = self.directories = self.links = self.bytes = 0
        self.oldest: int | None = None
        self.newest: int | None = None
        self._sizes = np.zeros((2, len(SIZES) + 1), np.int64)
        self._ages = np.zeros((2, len(AGES) + 1), np.int64)
        self.types: dict[bytes, int] = {}
        self._by_type: list[list[int]] = []  # files, bytes, stored bytes
        self._folders: list[Sums] = [{} for _ in range(DEPTH)]

    def add(self, rows: FileTable) -> tuple[FileTable, Int64]:
        """Add files -> those of them that are neither directories nor links, and their types as
        codes, int64[n]."""
        folders, links = rows.directories, rows.links
        self.directories += int(folders.sum())
        self.links += int(links.sum())
        if (folders | links).any():
            rows = rows.take(~(folders | links))
        if not len(rows):
            return rows, np.empty(0, np.int64)
        size, mtime = rows.size, rows.mtime
        self.files += len(rows)
        self.bytes += int(size.sum())
        low, high = int(mtime.min()), int(mtime.max())
        self.oldest = low if self.oldest is None else min(self.oldest, low)
        self.newest = high if self.newest is None else max(self.newest, high)
        _add(self._sizes, np.searchsorted(SIZES, size, "right"), size)
        self.add_ages(mtime, size)
        raw = rows.names_joined
        ends = rows.name_ends - rows.name_ends[0]
        self._add_folders(raw, ends, size)
        return rows, self._coded(raw, ends, size)

    def add_sizes(self, sizes: Int64) -> None:
        """Add records, of which nothing but the size is known."""
        self.files += len(sizes)
        self.bytes += int(sizes.sum())
        _add(self._sizes, np.searchsorted(SIZES, sizes, "right"), sizes)

    def add_ages(self, mtime: Int64, size: Int64, counts: Int64 | None = None) -> None:
        """Add only to the ages. counts: of files, for each time; None: 1."""
        age = (self.now - mtime.astype(np.float64)) / NANO  # a difference may exceed int64
        _add(self._ages, np.searchsorted(AGES, age, "right"), size, counts)

    def add_stored(self, codes: Int64, stored: Int64) -> None:
        """Add the bytes that files take in the data file. codes: of their types."""
        sums = np.bincount(codes, stored, len(self.types))
        for entry, some in zip(self._by_type, sums.tolist(), strict=True):
            entry[2] += int(some)

    # --- types ---

    def _coded(self, raw: UInt8, ends: Int64, size: Int64) -> Int64:
        """Add to the types -> their codes."""
        place = np.arange(len(raw))
        starts = ends[:-1]
        slash = np.maximum.reduceat(np.where(raw == SLASH, place, -1), starts)
        dot = np.maximum.reduceat(np.where(raw == DOT, place, -1), starts)
        length = ends[1:] - dot - 1
        typed = (dot > np.maximum(slash, starts - 1) + 1) & (length > 0) & (length <= LONGEST_TYPE)
        which = np.flatnonzero(typed)
        codes = np.full(len(starts), self._code(b""), np.int64)
        if len(which):
            texts = column_at(raw, dot[which] + 1, length[which])
            known, inverse = np.unique(texts, return_inverse=True)
            words = map(_type_of, known.tolist())
            codes[which] = np.array(list(map(self._code, words)), np.int64)[inverse]
        count = len(self.types)
        sums = (np.bincount(codes, minlength=count), np.bincount(codes, size, count))
        for entry, files, size_ in zip(self._by_type, *(s.tolist() for s in sums), strict=True):
            entry[0] += int(files)
            entry[1] += int(size_)
        return codes

    def _code(self, word: bytes) -> int:
        code = self.types.setdefault(word, len(self.types))
        if code == len(self._by_type):
            self._by_type.append([0, 0, 0])
        return code

    def by_type(self, *, stored: bool) -> list[Record]:
        """Return files and bytes by type, the most bytes first; the last one is all others."""
        found = sorted(zip(self.types, self._by_type, strict=True), key=_weight, reverse=True)
        found = [pair for pair in found if pair[1][0]]
        rest = [sum(column) for column in zip(*(sums for _, sums in found[TYPES:]), strict=True)]
        records = [_typed(word.decode("ascii"), sums, stored) for word, sums in found[:TYPES]]
        return records + ([_typed(None, rest, stored)] if rest else [])

    # --- directories ---

    def _add_folders(self, raw: UInt8, ends: Int64, size: Int64) -> None:
        """Add to each directory of the first DEPTH levels."""
        at = np.flatnonzero(raw == SLASH)
        row = np.searchsorted(ends, at, "right") - 1
        count = np.bincount(row, minlength=len(ends) - 1)
        first = np.cumsum(count) - count  # of the slashes of each row
        for depth, sums in enumerate(self._folders):
            having = np.flatnonzero(count > depth)
            if not len(having):
                return
            starts = ends[having]
            paths = column_at(raw, starts, at[first[having] + depth] - starts)
            begin = np.flatnonzero(np.append(True, paths[1:] != paths[:-1]))
            files = np.diff(begin, append=len(having))
            total = np.add.reduceat(size[having], begin)
            if len(begin) > AT_ONCE:  # the first and the last may go on in other tables
                largest = np.argpartition(total, -AT_ONCE)[-AT_ONCE:]
                kept = np.unique(np.append(largest, [0, len(begin) - 1]))
                begin, files, total = begin[kept], files[kept], total[kept]
            each = zip(paths[begin].tolist(), files.tolist(), total.tolist(), strict=True)
            for path, some, bytes_ in each:
                entry = sums.setdefault(path, [0, 0])
                entry[0] += some
                entry[1] += bytes_
            if len(sums) > FOLDERS:  # the largest stay: names in order do not return to others
                most = sorted(sums.items(), key=_weight)[-FOLDERS // 4 :]
                sums.clear()
                sums.update(most)

    def tree(self) -> Record:
        """Return the largest directories, in each the largest of its own."""
        below: dict[bytes | None, list[tuple[bytes, list[int]]]] = {}
        for depth, sums in enumerate(self._folders):
            for path, entry in sums.items():
                above = path.rpartition(b"/")[0] if depth else None
                below.setdefault(above, []).append((path, entry))

        def node(name: bytes | None, entry: list[int], depth: int) -> Record:
            inner = below.get(name, []) if depth < DEPTH else []
            largest = sorted(inner, key=_weight, reverse=True)[:CHILDREN]
            children = [node(path, own, depth + 1) for path, own in largest]
            made: Record = {"name": to_str(name or b""), "files": entry[0], "bytes": entry[1]}
            return made | ({"children": children} if children else {})

        return node(None, [self.files, self.bytes], 0)

    # --- all ---

    def record(self, *, stored: bool = False) -> Record:
        """Return all sums."""
        return {
            "files": {
                "files": self.files, "directories": self.directories, "links": self.links,
                "bytes": self.bytes,
            },
            "sizes": size_classes(self._sizes),
            "mtimes": age_classes(self._ages),
            "types": self.by_type(stored=stored),
            "directories": self.tree(),
        }  # fmt: skip


def _add(into: Int64, classes: Int64, size: Int64, counts: Int64 | None = None) -> None:
    width = into.shape[1]
    files = np.bincount(classes, counts, width)
    into[0] += files.astype(np.int64)
    into[1] += np.bincount(classes, size, width).astype(np.int64)


def _weight(pair: tuple[bytes, list[int]]) -> tuple[int, int, bytes]:
    return pair[1][1], pair[1][0], pair[0]


def _typed(word: str | None, sums: list[int], stored: bool) -> Record:
    made = {"type": word, "files": sums[0], "bytes": sums[1]}
    return made | ({"stored": sums[2]} if stored else {})


def _type_of(word: bytes) -> bytes:
    """Return the suffix of a name as a type; b"": it is none, as a number."""
    return word.lower() if word.isalnum() and not word.isdigit() else b""


def size_classes(sums: Int64) -> list[Record]:
    """Return classes of sizes [least, below), from the first to the last with files."""
    edges = [0, *SIZES.tolist(), 1 << 63]
    return _classes(sums, [{"least": a, "below": b} for a, b in itertools.pairwise(edges)])


def age_classes(sums: Int64) -> list[Record]:
    """Return classes of ages [least, below) in seconds; least None: in the future, below None:
    any age."""
    edges = [None, *AGES, None]
    return _classes(sums, [{"least": a, "below": b} for a, b in itertools.pairwise(edges)])


def _classes(sums: Int64, bounds: list[Record]) -> list[Record]:
    there = np.flatnonzero(sums[0])
    if not len(there):
        return []
    low, high = int(there[0]), int(there[-1]) + 1
    files, size = sums[:, low:high].tolist()
    each = zip(bounds[low:high], files, size, strict=True)
    return [bound | {"files": some, "bytes": total} for bound, some, total in each]


class ColumnTotals:
    """Nulls, different values, least and greatest value of a column of the user."""

    def __init__(self, kind: str) -> None:
        self.kind, self.values, self.nulls = kind, 0, 0
        self._known: set[Any] = set()
        self._ends: list[tuple[Any, Any]] = []  # least and greatest: a key, and the value

    def add(self, column: Column) -> None:
        count = int(column.valid.sum())
        self.nulls += len(column) - count
        self.values += count
        if count and self.kind not in LISTS:
            self._add_values(column if count == len(column) else column.take(column.valid))

    def _add_values(self, column: Column) -> None:
        numbers = column.numbers
        if is_number(self.kind):
            keys: list[Any] = np.unique(numbers).tolist()
            ends = [_number_at(column, end) for end in (np.argmin, np.argmax)]
        else:
            keys = [column.words[code] for code in np.unique(numbers).tolist()]
            ends = [(key, column_json(to_value(self.kind, key))) for key in (min(keys), max(keys))]
        if len(self._known) <= DISTINCT:
            self._known.update(keys[: DISTINCT + 1])
        if self.kind.startswith("list"):
            return
        least, most = self._ends or ends
        self._ends = [min(least, ends[0], key=_key), max(most, ends[1], key=_key)]

    def record(self, name: str) -> Record:
        """Return the facts. "distinct" is DISTINCT + 1 if there are more values than DISTINCT, None
        for lists of numbers."""
        least, most = (end[1] for end in self._ends) if self._ends else (None, None)
        distinct = None if self.kind in LISTS else min(len(self._known), DISTINCT + 1)
        return {
            "name": name, "type": self.kind, "values": self.values, "nulls": self.nulls,
            "distinct": distinct, "least": least, "greatest": most,
        }  # fmt: skip


def _key(end: tuple[Any, Any]) -> Any:
    return end[0]


def _number_at(column: Column, end: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return the least or greatest number as key, and as value for JSON."""
    numbers = column.numbers
    if numbers.dtype.kind == "f" and not (whole := ~np.isnan(numbers)).all():
        if not whole.any():
            return 0.0, "nan"
        column, numbers = column.take(whole), numbers[whole]
    at = int(end(numbers))
    text = column.take(np.array([at])).texts()[0]
    return numbers[at], column_json(to_value(column.kind, text))


def spread(starts: Int64, stops: Int64, edges: Int64) -> npt.NDArray[np.float64]:
    """Return how many bytes of ascending ranges are between each two neighbouring edges.

    starts, stops  int64[n] each
    edges          int64[m], ascending
    ->             float64[m - 1]
    """
    if not len(starts):
        return np.zeros(len(edges) - 1)
    sums = np.cumsum(stops - starts)
    points = np.column_stack([starts, stops]).ravel()
    below = np.column_stack([sums - (stops - starts), sums]).ravel()
    return np.diff(np.interp(edges, points, below))


def merged(ranges: Iterable[tuple[Int64, Int64]]) -> tuple[Int64, Int64]:
    """Return ranges in order, cut where they overlap."""
    starts, stops = (np.concatenate(part) for part in zip(*ranges, strict=True))
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    starts[1:] = np.maximum(starts[1:], stops[:-1])
    return starts, np.maximum(starts, stops)
