"""Directories of a listing: which there are, what is in each, and how much is below it.

    Nesting   finds the directories of names in byte order, table by table
    Totals    sums bytes and files below each directory -> Tree
    implied   directories as rows of a table

A directory is there because of names below it, or of an entry of type DIR. Its name is that before
the slash; that of the root is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from winkformats import native
from winkformats.arrays import (
    MAX_ROW,
    Bools,
    Int64,
    Joined,
    TextColumn,
    UInt8,
    column_at,
    ends_of,
    gather,
    row_width,
    rows_at,
    text_column,
    text_order,
    texts_at,
)
from winkfs.container.table import FileTable
from winkfs.entry import FileType
from winkfs.units import LAST

SLASH: Final = 0x2F
SLASH_FIRST: Final = np.arange(256, dtype=np.uint8)
"""The place of each byte in an order that begins with NUL, which no name has, and the slash."""
SLASH_FIRST[1:SLASH] += 1
SLASH_FIRST[SLASH] = 1
MOST_TEXTS: Final = 1 << 24
NO_ROWS: Final = np.empty(0, np.int64)
IMPLIED: Final = -1
"""`pos` and `fileid` of a directory without an entry, whose mtime is not known."""


def implied(
    names: list[bytes] | TextColumn | Joined, count: int, owner: tuple[int, int]
) -> FileTable:
    """Return `count` directories without an entry as a table. owner: uid and gid."""
    pos = np.full(count, IMPLIED)
    return FileTable.of(names, pos, IMPLIED, kind=FileType.DIR).owned(owner)


class Nested(NamedTuple):
    """The directories of a table: n rows, and k directories that begin in it.

    level   directories above each file, below the root: int64[n]
    parent  number of the directory of each file, int64[n]; 0 is the root
    at      row of the first file below each directory that begins, int64[k], ascending
    depth   its level: 1 directly below the root, int64[k]
    over    number of the directory that it is in, int64[k]
    names   its name
    in_order  whether the rows and directories before each directory are before it in a `Tree`
    """

    level: Int64
    parent: Int64
    at: Int64
    depth: Int64
    over: Int64
    names: Joined
    in_order: bool


class Nesting:
    """Finds the directories of names that come in byte order, in tables.

    Directories that begin get the next numbers, in order. In byte order what is below a directory
    is together, so it begins at the first name that does not share its prefix with the name before.

    top    bytes at the start of all names that are not looked at: "docs/" of the names below docs
    depth  levels that are distinguished; what is deeper counts as in the directory above. None: all
    count  directories so far, and the root
    cost   array operations, some for each level
    """

    def __init__(self, top: int = 0, depth: int | None = None) -> None:
        self._top, self._most = top, LAST if depth is None else depth
        self._last = b""  # the last name
        self._open = [0]  # numbers of the directories above it, from the root on
        self.count = 1

    def add(self, rows: FileTable) -> Nested:
        """Return the directories of the next rows, at least one."""
        levels, last, shared = self._paths(rows)
        above = rows.names_joined[: self._top].tobytes().count(b"/")
        levels -= above
        starts, lengths = rows.name_ends[:-1], rows.name_lengths
        begins = np.flatnonzero((levels > 0) & (last >= shared))
        many = levels[begins]
        nth = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
        at = np.repeat(begins, many)
        ends, raw = gather(rows.name_bytes, starts[begins], lengths[begins])
        slashes = np.flatnonzero(raw == SLASH)
        first = np.searchsorted(slashes, ends[:-1]) + above
        end = slashes[np.repeat(first, many) + nth] - np.repeat(ends[:-1], many)
        new = (end >= shared[at]) & (nth < self._most)
        at, depth, end = at[new], nth[new] + 1, end[new]
        level = np.minimum(levels, self._most)
        over, parent = self._numbered(level, at, depth)
        # In byte order "a.b" is before "a/c".
        before = np.append(len(self._last), lengths[:-1])
        in_order = not ((end == shared[at]) & (before[at] > end)).any()
        self._last = rows.last
        names = gather(rows.name_bytes, starts[at], np.maximum(end, 1))  # "/": it begins with it
        return Nested(levels, parent, at, depth, over, names, in_order)

    def _numbered(self, level: Int64, at: Int64, depth: Int64) -> tuple[Int64, Int64]:
        """Number the directories that begin -> where each is, and where each file is."""
        numbers = np.arange(self.count, self.count + len(at))
        over, parent = np.zeros(len(at), np.int64), np.zeros(len(level), np.int64)
        opened = [0]
        for each in range(1, int(level.max()) + 1):
            here = depth == each
            carried = self._open[each] if each < len(self._open) else -1
            known, since = np.append(carried, numbers[here]), at[here]
            files, below = level == each, depth == each + 1
            parent[files] = known[np.searchsorted(since, np.flatnonzero(files), "right")]
            over[below] = known[np.searchsorted(since, at[below], "right")]
            if each <= level[-1]:
                opened.append(int(known[-1]))
        self._open = opened
        self.count += len(at)
        return over, parent

    def _paths(self, rows: FileTable) -> Int64:
        """Return how many slashes are in each name, where the last one is, if there is one, and
        how many bytes the name shares with the name before it, int64[3, n]."""
        if native.code is not None:
            found = np.empty((3, len(rows)), np.int64)
            native.code.paths(rows.name_bytes.data, rows.name_ends, self._last, found)
            return found
        ends = rows.name_ends - rows.name_ends[0]
        slashes = np.flatnonzero(rows.names_joined == SLASH)
        behind = np.searchsorted(slashes, ends)
        last = np.append(slashes, 0)[behind[1:] - 1] - ends[:-1]
        return np.stack([np.diff(behind), last, self._shared(rows)])

    def _shared(self, rows: FileTable) -> Int64:
        """Return how many bytes each name shares with the name before it, int64[n]."""
        lengths = rows.name_lengths
        shared = np.empty(len(rows), np.int64)
        shared[0] = _common(self._last, rows.name(0))
        width = min(row_width(lengths), MAX_ROW)
        raw = np.append(rows.names_joined, np.zeros(width, np.uint8))
        starts = rows.name_ends[:-1] - rows.name_ends[0]
        words = rows_at(raw, starts, width).view("<u8").reshape(len(rows), -1)
        word = (words[1:] != words[:-1]).argmax(1)
        each = np.arange(len(rows) - 1)
        differ = words[1:][each, word] ^ words[:-1][each, word]
        low = np.bitwise_count((differ & (~differ + np.uint64(1))) - np.uint64(1)) >> 3
        least = np.minimum(lengths[1:], lengths[:-1])
        shared[1:] = np.minimum(np.where(differ == 0, width, 8 * word + low), least)
        for i in np.flatnonzero((differ == 0) & (least > width)).tolist():
            shared[i + 1] = _common(rows.name(i), rows.name(i + 1))
        return shared


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes at the start are equal."""
    least = min(len(one), len(other))
    pair = np.frombuffer(one[:least], np.uint8), np.frombuffer(other[:least], np.uint8)
    return int(np.append(pair[0] != pair[1], True).argmax())


@dataclass(frozen=True, slots=True)
class Tree:
    """A root, directories and maybe files: each directory, then all that is in it, by name.

    starts      of the name of each in `raw`, int64[n]; lengths: their bytes
    raw         bytes, of which the names are parts
    depth       0 of the root, 1 of what is directly in it, int64[n]
    over        index of the directory that each is in, int64[n]; -1 of the root
    directory   which are directories, bool[n]
    size        bytes of the file, or of all files below the directory, int64[n]
    files       files below the directory, 1 of a file, int64[n]
    """

    starts: Int64
    lengths: Int64
    raw: UInt8
    depth: Int64
    over: Int64
    directory: Bools
    size: Int64
    files: Int64

    @property
    def names(self) -> list[bytes]:
        """The names, bytes[n]. Cost: an object for each."""
        return texts_at(self.raw, self.starts, self.lengths)

    def last(self) -> Tree:
        """Return the last file alone, as a root."""
        size, files = self.size[-1:], self.files[-1:]
        alone, name = np.zeros(1, np.int64), (self.starts[-1:], self.lengths[-1:], self.raw)
        return Tree(*name, alone, alone - 1, self.directory[-1:], size, files)

    def postorder(self) -> Int64:
        """Return the indices such that each directory comes after what is in it."""
        behind = np.arange(len(self.depth)) - self.depth + self._sizes() - 1
        order = np.empty(len(behind), np.int64)
        order[behind] = np.arange(len(behind))
        return order

    def _sizes(self) -> Int64:
        """Return how many there are of each with all below it, int64[n]."""
        found = np.ones(len(self.depth), np.int64)
        _roll_up(self.depth, self.over, found)
        return found


class Totals:
    """Sums bytes and files below each directory.

    top    the name of the root with a slash; all names that are added begin with it
    depth  levels of directories and files that the result has; None: all
    files  whether it has files
    cost   array operations; memory: the directories, and the files if the result has them
    """

    def __init__(self, top: bytes = b"", depth: int | None = None, *, files: bool = False) -> None:
        self._most, self._with_files = LAST if depth is None else depth, files
        self._top = top
        self._nesting = Nesting(len(top), depth)
        self._sums = np.zeros((2, 1024), np.int64)  # bytes and files directly in each directory
        self._found: list[Nested] = []
        self._places = [np.zeros(1, np.int64)]  # files that are kept before each directory
        self._files, self._entries = _Kept(), _Kept()
        self._bytes = 0.0

    def add(self, rows: FileTable) -> None:
        """Add the next files, in byte order of the names. Raises ValueError: too many bytes."""
        if not len(rows):
            return
        nested = self._nesting.add(rows)
        if len(nested.at):  # what is of each row need not stay
            self._found.append(nested._replace(level=NO_ROWS, parent=NO_ROWS))
        self._make_room()
        entries = rows.directories
        if entries.any():
            self._entries.add(rows, nested, entries & (nested.level < self._most))
            files = np.flatnonzero(~entries)
            parent, size = nested.parent[files], rows.size[files]
        else:
            parent, size = nested.parent, rows.size
        self._bytes += float(size.sum(dtype=np.float64))
        if self._bytes > LAST:
            raise ValueError("the sizes of its files are more than 2^63 bytes: run winkfs verify")
        np.add.at(self._sums[0], parent, size)
        np.add.at(self._sums[1], parent, 1)
        kept = ~entries & (nested.level < self._most) & self._with_files
        self._places.append(self._files.count + np.append(0, np.cumsum(kept))[nested.at])
        self._files.add(rows, nested, kept)

    def _make_room(self) -> None:
        if self._nesting.count > self._sums.shape[1]:
            more = np.zeros((2, 2 * self._nesting.count), np.int64)
            more[:, : self._sums.shape[1]] = self._sums
            self._sums = more

    def finish(self) -> Tree:
        """Return the root and all that is below it."""
        found, top = self._found, self._top[:-1]
        names = [top, *(name for one in found for name in FileTable.of(one.names, one.at).names)]
        over = np.concatenate([[-1], *(one.over for one in found)])
        depth = np.concatenate([[0], *(one.depth for one in found)])
        sums = self._sums[:, : len(names)].copy()
        entries = self._entries
        if entries.count:
            known = set(names)
            lengths, raw, _, parent = entries.all()
            there = texts_at(raw, ends_of(lengths)[:-1], lengths)
            empty = np.flatnonzero([name not in known for name in there])
            names += [there[i] for i in empty.tolist()]
            over = np.append(over, parent[empty])
            depth = np.append(depth, depth[parent[empty]] + 1)
            sums = np.append(sums, np.zeros((2, len(empty)), np.int64), 1)
        _roll_up(depth, over, *sums)
        return self._sorted(names, depth, over, sums)

    def _sorted(self, names: list[bytes], depth: Int64, over: Int64, sums: Int64) -> Tree:
        """Return directories, and the files if they are kept, as a tree."""
        own, texts, size, parent = self._files.all()
        count, total = len(own), len(own) + len(names)
        lengths = np.concatenate([own, np.fromiter(map(len, names), np.int64, len(names))])
        raw = np.concatenate([texts, np.frombuffer(b"".join(names), np.uint8)])
        starts, places = ends_of(lengths)[:-1], np.concatenate(self._places)
        if len(places) == len(names) and all(one.in_order for one in self._found):
            here = places + np.arange(len(places))  # indices of the directories in the tree
            there = np.delete(np.arange(total), here)  # of the files
        else:  # a file is before a directory of the same name
            order = np.argsort(_keys(column_at(raw, starts, lengths)), kind="stable")
            place = np.empty(total, np.int64)
            place[order] = np.arange(total)
            there, here = place[:count], place[count:]
        directory = np.zeros(total, np.bool_)
        directory[here] = True

        def put(of_files: Int64 | int, of_directories: Int64) -> Int64:
            found = np.empty(total, np.int64)
            found[there], found[here] = of_files, of_directories
            return found

        above = np.where(over < 0, -1, here[over])
        return Tree(
            put(starts[:count], starts[count:]), put(own, lengths[count:]), raw,
            put(depth[parent] + 1, depth), put(here[parent], above), directory,
            put(size, sums[0]), put(1, sums[1]),
        )  # fmt: skip


class _Kept:
    """Names and sizes of rows that are kept, and the numbers of their directories."""

    def __init__(self) -> None:
        self._parts = [(NO_ROWS, np.empty(0, np.uint8), NO_ROWS, NO_ROWS)]
        self.count = 0

    def add(self, rows: FileTable, nested: Nested, wanted: Bools) -> None:
        if count := int(np.count_nonzero(wanted)):
            self.count += count
            lengths = rows.name_lengths[wanted]
            if count == len(rows):
                raw = rows.names_joined
            else:
                _, raw = gather(rows.name_bytes, rows.name_ends[:-1][wanted], lengths)
            self._parts.append((lengths, raw, rows.size[wanted], nested.parent[wanted]))

    def all(self) -> tuple[Int64, UInt8, Int64, Int64]:
        """Return lengths of the names, these joined, sizes and numbers."""
        lengths, raw, size, parent = map(np.concatenate, zip(*self._parts, strict=True))
        return lengths, raw, size, parent


def _roll_up(depth: Int64, over: Int64, *sums: Int64) -> None:
    """Add what each has to the one that it is in, the deepest first."""
    for each in range(int(depth.max()), 0, -1):
        here = np.flatnonzero(depth == each)
        for column in sums:
            np.add.at(column, over[here], column[here])


def order_of(keys: TextColumn) -> Int64:
    """Return the stable order of any number of texts: `text_order` takes 2^24."""
    return text_order(keys) if len(keys) < MOST_TEXTS else np.argsort(keys, kind="stable")


def _keys(names: TextColumn) -> TextColumn:
    """Return texts whose byte order has each directory before what is in it, and that together."""
    table = SLASH_FIRST.tobytes()
    if names.dtype == object:
        return text_column([name.translate(table) for name in names.tolist()])
    found: TextColumn = np.frombuffer(names.tobytes().translate(table), names.dtype)
    return found
