"""FileTable: n files of a container as columns, and several runs of them as one.

A table has the COLUMNS of the catalog, the names, and, if requested, the values of the columns of
the user. It is made from inodes (`survey`), from blocks of the catalog (`ondisk/block.py`), and
from files that are put in bulk (`namesorter`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from winkformats.arrays import (
    Bools,
    Int64,
    Joined,
    TextColumn,
    UInt8,
    among,
    column_at,
    ends_of,
    gather,
    rows_joined,
    text_column,
    texts_at,
)
from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.inode import ATTRS, PERMISSIONS, UINT32
from winkfs.container.ondisk.typed import Schema, Texts, split
from winkfs.entry import DEFAULT_MODES, FileType
from winkfs.names import shown_all, to_strs
from winkfs.units import MICRO

if TYPE_CHECKING:
    from winkfs.container.where import Condition

COLUMNS: Final = ("pos", "fileid", "size", "mtime", "pointer", "ctime", "kind", "owner")
POS, FILEID, SIZE, MTIME, POINTER, CTIME, KIND, OWNER = range(len(COLUMNS))
GONE: Final = 1 << 8  # in KIND
SPECIAL: Final = 1 << 9
ASK: Final = 1 << 10
FILLED: Final = 1 << 11
MODE_AT: Final = 16
MODES: Final = np.array(DEFAULT_MODES, np.int64)
"""A row, int64[8].

pos      kv_pointer of the inode
fileid   FILEID
size     bytes
mtime    nanoseconds since the epoch
pointer  kv_pointer of the one data entry whose value is the whole content; EMPTY: there is no
         content; BY_INODE: the inode must be read
ctime    nanoseconds since the epoch
kind     bits 0..7: FTYPE; GONE: a name that was removed; SPECIAL: the file has attributes; ASK: a
         field does not fit into int64, the inode must be read; FILLED: the file has no attributes,
         mode and owner are the defaults, see `FileTable.owned`; from MODE_AT on: permission bits,
         of a file that has attributes
owner    uid + (gid << 32), of a file that has attributes

A reader of the value at `pointer` must verify its checksum, and that it has `size` bytes.
"""
EMPTY: Final = 0
BY_INODE: Final = -1

Blobs = npt.NDArray[np.object_]
Times = tuple[int | None, int | None]
"""[since, until), nanoseconds since the epoch; None: no bound."""
ALWAYS: Final[Times] = (None, None)


class FileTable:
    """n files and their COLUMNS, int64[n, 8] in any memory order. Immutable.

    names   a list, an array or joined; another form is made at its first use
    values  object[n]: the attributes that are columns of the user, bytes as ATTRS has them; None:
            no file has any, or they were not requested
    """

    __slots__ = ("_column", "_joined", "_names", "numbers", "values")

    def __init__(
        self, names: list[bytes] | TextColumn | Joined, numbers: Int64, values: Blobs | None = None
    ) -> None:
        self._names = names if isinstance(names, list) else None
        self._joined = names if isinstance(names, tuple) else None
        column = text_column(names) if isinstance(names, list) else names
        self._column: TextColumn | None = None if isinstance(column, tuple) else column
        self.numbers, self.values = numbers, values

    @classmethod
    def of(
        cls,
        names: list[bytes] | TextColumn | Joined,
        pos: Int64,
        fileid: Int64 | int = 0,
        size: Int64 | int = 0,
        mtime: Int64 | int = 0,
        pointer: Int64 | int = 0,
        kind: npt.NDArray[np.integer] | int = 0,
    ) -> FileTable:
        """Return a table of files without attributes, whose ctime is their mtime."""
        numbers = np.zeros((len(COLUMNS), len(pos)), np.int64)
        for column, values in (
            (POS, pos), (FILEID, fileid), (SIZE, size), (MTIME, mtime), (POINTER, pointer),
            (CTIME, mtime), (KIND, kind),
        ):  # fmt: skip
            numbers[column] = values
        return cls(names, numbers.T)

    @classmethod
    def concat(cls, parts: Sequence[FileTable]) -> FileTable:
        """Concatenate tables."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return NOTHING
        values = None
        if any(part.values is not None for part in parts):
            values = np.concatenate([
                np.full(len(part), b"", object) if part.values is None else part.values
                for part in parts
            ])  # fmt: skip
        names: TextColumn | Joined
        if all(part._joined is not None for part in parts):
            lengths = np.concatenate([part.name_lengths for part in parts])
            names = ends_of(lengths), np.concatenate([part.names_joined for part in parts])
        else:
            names = np.concatenate([part.column for part in parts])
        columns = np.concatenate([part.numbers.T for part in parts], axis=1)
        return cls(names, columns.T, values)

    def __len__(self) -> int:
        return len(self.numbers)

    # --- names ---

    @property
    def names(self) -> list[bytes]:
        """The names. Cost: an object for each at the first use."""
        if self._names is None:
            if self._column is not None:
                self._names = self._column.tolist()
            else:
                self._names = texts_at(self.name_bytes, self.name_ends[:-1], self.name_lengths)
        return self._names

    @property
    def column(self) -> TextColumn:
        """The names as an array."""
        if self._column is None:
            self._column = column_at(self.name_bytes, self.name_ends[:-1], self.name_lengths)
        return self._column

    @property
    def joined(self) -> Joined:
        """The names concatenated: (ends, bytes)."""
        if self._joined is None:
            column = self.column
            if column.dtype != object and len(column):
                matrix = np.ascontiguousarray(column).view(np.uint8).reshape(len(column), -1)
                lengths = np.strings.str_len(column)
                self._joined = rows_joined(matrix, lengths)
            else:
                lengths = np.fromiter(map(len, self.names), np.int64, len(self))
                self._joined = ends_of(lengths), np.frombuffer(b"".join(self.names), np.uint8)
        return self._joined

    @property
    def name_ends(self) -> Int64:
        """int64[n + 1]: name i is name_bytes[name_ends[i] : name_ends[i + 1]]."""
        return self.joined[0]

    @property
    def name_bytes(self) -> UInt8:
        return self.joined[1]

    @property
    def name_lengths(self) -> Int64:
        """Bytes of each name, int64[n]."""
        return np.diff(self.name_ends)

    @property
    def names_joined(self) -> UInt8:
        """The names of these files alone, concatenated."""
        ends, raw = self.joined
        return raw[ends[0] : ends[-1]]

    def has_below(self, directory: bytes) -> bool:
        """Return whether names are below a directory; the rows are in byte order of the names."""
        start = directory + b"/"
        at = bisect_left(range(len(self)), start, key=self.name)
        return at < len(self) and self.name(at).startswith(start)

    def name(self, index: int) -> bytes:
        """Return one name."""
        if self._column is not None:
            return bytes(self._column[index])
        ends = self.name_ends
        index %= len(self)
        return self.name_bytes[ends[index] : ends[index + 1]].tobytes()

    @property
    def last(self) -> bytes:
        """The last name; the table must not be empty."""
        return self.name(-1)

    # --- columns ---

    @property
    def pos(self) -> Int64:
        """Positions of the inodes, int64[n]."""
        return self.numbers[:, POS]

    @property
    def fileid(self) -> Int64:
        return self.numbers[:, FILEID]

    @property
    def size(self) -> Int64:
        """Bytes of the files, int64[n]."""
        return self.numbers[:, SIZE]

    @property
    def mtime(self) -> Int64:
        """Nanoseconds since the epoch, int64[n]; a time beyond int64 becomes the nearest one."""
        return self.numbers[:, MTIME]

    @property
    def pointer(self) -> Int64:
        """See COLUMNS, int64[n]."""
        return self.numbers[:, POINTER]

    @property
    def kind(self) -> Int64:
        return self.numbers[:, KIND]

    @property
    def ftype(self) -> UInt8:
        """FileType, uint8[n]."""
        return self.kind.astype(np.uint8)

    @property
    def special(self) -> Bools:
        """True for files with attributes, bool[n]."""
        special: Bools = self.kind & SPECIAL != 0
        return special

    @property
    def asked(self) -> Bools:
        """True for rows that are incomplete, so that the inode must be read, bool[n]."""
        asked: Bools = self.kind & ASK != 0
        return asked

    @property
    def gone(self) -> Bools:
        """True for names that were removed, bool[n]."""
        gone: Bools = self.kind & GONE != 0
        return gone

    @property
    def directories(self) -> Bools:
        """True for directories, bool[n]."""
        directories: Bools = self.kind & 255 == FileType.DIR
        return directories

    def paths(self) -> Iterator[tuple[str, bool]]:
        """Yield the path of each file, see `winkfs.path_of`, and whether it is a directory."""
        paths = to_strs(shown_all(self.names))
        return zip(paths, self.directories.tolist(), strict=True)

    @property
    def links(self) -> Bools:
        """True for symbolic links, bool[n]."""
        links: Bools = self.kind & 255 == FileType.LINK
        return links

    def stats(self, owner: tuple[int, int]) -> tuple[Int64, ...]:
        """Return FILEIDs, sizes, mtimes, FTYPEs, modes, uids, gids and ctimes, int64[n] each.

        owner  (uid, gid) of files without attributes
        """
        kind, special = self.kind, self.special
        ftype = kind & 255
        mode = np.where(special, kind >> MODE_AT, MODES[ftype])
        words = np.where(special, self.numbers[:, OWNER], owner_word(*owner))
        fileid, size, mtime, ctime = self.numbers[:, [FILEID, SIZE, MTIME, CTIME]].T
        return fileid, size, mtime, ftype, mode, words & UINT32, words >> 32 & UINT32, ctime

    def columns(self, schema: Schema) -> dict[str, Column]:
        """Return the values of columns of the user; a value of a different type is null."""
        texts = split([b""] * len(self) if self.values is None else self.values, schema)
        pairs = zip(schema.items(), texts, strict=True)
        return {name: Column.of(kind, column) for (name, kind), column in pairs}

    def typed(self, schema: Schema) -> list[Texts]:
        """Return the values of columns of the user as texts, for each column."""
        return [column.texts() for column in self.columns(schema).values()]

    def owned(self, owner: tuple[int, int]) -> FileTable:
        """Return the rows with mode and owner filled in for files without attributes."""
        found = np.flatnonzero(~self.special)
        if not len(found):
            return self
        plain = found if len(found) < len(self) else slice(None)
        numbers = self.numbers.copy("K")
        kind = numbers[plain, KIND]
        numbers[plain, KIND] = kind | SPECIAL | FILLED | MODES[kind & 255] << MODE_AT
        numbers[plain, OWNER] = owner_word(*owner)
        return self.with_numbers(numbers)

    def attribute(self, rows: Sequence[int], words: Sequence[bytes]) -> Bools:
        """Set mode and owner of rows from their attributes, while the table is made.

        ->  which of them are valid, bool[..]; for the others ASK is set
        """
        heads = np.frombuffer(b"".join([word[: ATTRS.size] for word in words]), ">i8")
        mode, uid, gid = heads.astype(np.int64).reshape(-1, 3).T
        good: Bools = (mode & ~PERMISSIONS | uid & ~UINT32 | gid & ~UINT32) == 0
        self.numbers[rows, KIND] |= np.where(good, SPECIAL | mode << MODE_AT, ASK)
        self.numbers[rows, OWNER] = np.where(good, uid | gid << 32, 0)
        return good

    # --- selection of rows ---

    def within(self, times: Times) -> Bools:
        """Return which files have an mtime in these times, bool[n]."""
        found, (since, until) = np.ones(len(self), bool), times
        if since is not None:
            found &= self.mtime >= since
        if until is not None:
            found &= self.mtime < until
        return found

    def met(self, where: Condition, columns: Mapping[str, Column]) -> Bools:
        """Return for which files a condition is true, bool[n]. `columns`: those of the user that it
        uses."""
        return where.met(lambda name: columns[name] if name in columns else self.builtin(name))

    def builtin(self, name: str) -> Column:
        """Return a column that all files have, see `where.BUILTIN`; nulls for any other name."""
        from winkfs.container.where import BUILTIN  # late: most commands have no condition

        if name not in BUILTIN:
            return Column.nulls("string", len(self))
        valid = np.ones(len(self), bool)
        if name == "path":
            return Column("string", valid, np.arange(len(self)), self.names)
        if name == "mtime":
            return Column("timestamp", valid, self.mtime // MICRO, [])
        return Column("int64", valid, self.size if name == "size" else self.kind & 255, [])

    def with_names(self, names: list[bytes]) -> FileTable:
        """Return a table with these numbers and values, and other names."""
        return FileTable(names, self.numbers, self.values)

    def with_numbers(self, numbers: Int64) -> FileTable:
        """Return a table with these names and values, and other numbers."""
        return FileTable(self._any(), numbers, self.values)

    def _any(self) -> TextColumn | Joined:
        """Return the names in a form that exists already."""
        return self.joined if self._column is None else self._column

    def part(self, start: int, stop: int | None = None) -> FileTable:
        """Return the rows [start, stop), without a copy of the numbers."""
        if start == 0 and (stop is None or stop == len(self)):
            return self
        names = self._any()
        if isinstance(names, tuple):
            stop = len(self) if stop is None else min(stop, len(self))
            some: TextColumn | Joined = (names[0][start : stop + 1], names[1])
        else:
            some = names[start:stop]
        values = None if self.values is None else self.values[start:stop]
        return FileTable(some, self.numbers[start:stop], values)

    def take(self, index: Int64 | Bools) -> FileTable:
        """Return the rows with these indices, int64[m] in any order, or those marked, bool[n]."""
        if index.dtype == np.bool_:
            if index.all():
                return self
            index = np.flatnonzero(index)
        names = self._any()
        some: TextColumn | Joined
        if isinstance(names, tuple):
            some = gather(names[1], names[0][:-1][index], self.name_lengths[index])
        else:
            some = names.take(index)
        numbers = self.numbers
        if numbers.flags.c_contiguous:
            numbers = numbers.take(index, 0)
        else:
            numbers = numbers.T.take(index, 1).T
        return FileTable(some, numbers, None if self.values is None else self.values[index])

    def visible(self, hidden: Int64 | None, *, include_dirs: bool) -> FileTable:
        """Return the rows without files whose inodes are in `hidden`, ascending, and, unless
        `include_dirs`, without directories and links."""
        seen = np.ones(len(self), np.bool_)
        if hidden is not None and len(hidden):
            seen = ~among(self.pos, hidden)
        if not include_dirs:
            seen &= ~(self.directories | self.links)
        return self if seen.all() else self.take(seen)

    def by_position(self) -> FileTable:
        """Return the rows in the order of the positions of their inodes."""
        pos = self.pos
        return self if (pos[1:] > pos[:-1]).all() else self.take(np.argsort(pos))


def owner_word(uid: int, gid: int) -> int:
    """Return the column `owner` of a row."""
    return uid | (gid - (gid >> 31 << 32)) << 32


NOTHING: Final = FileTable([], np.empty((0, len(COLUMNS)), np.int64))


# --- several runs as one ---


def joined(runs: list[Iterator[FileTable]]) -> Iterator[FileTable]:
    """Merge runs, each in byte order of the names, the oldest run first; of several rows with one
    name, the last run wins. At its end, and at an error of one, all runs are closed."""
    with ExitStack() as stack:
        for run in runs:
            if close := getattr(run, "close", None):  # that of a generator
                stack.callback(close)
        yield from _merged(runs)


def _merged(runs: list[Iterator[FileTable]]) -> Iterator[FileTable]:
    waiting = [(NOTHING, filter(len, run)) for run in runs]
    while True:
        waiting = [(rows or next(run, NOTHING), run) for rows, run in waiting]
        waiting = [(rows, run) for rows, run in waiting if rows]
        if len(waiting) < 2:
            for rows, run in waiting:
                yield rows
                yield from run
            return
        last, parts = min(rows.last for rows, _ in waiting), list[FileTable]()
        for i, (rows, run) in enumerate(waiting):
            stop = len(rows)
            if rows.last != last:
                stop = bisect_right(range(stop), last, key=rows.name)
            parts.append(rows.part(0, stop))
            waiting[i] = rows.part(stop), run
        yield _over(list(filter(len, parts)))


def _over(parts: list[FileTable]) -> FileTable:
    """Merge tables, the oldest first, in byte order of the names; of several rows with one name,
    the last wins."""
    if len(parts) == 1:
        return parts[0]
    return latest(FileTable.concat(parts))


def latest(rows: FileTable) -> FileTable:
    """Return rows in byte order of the names; of several with one name, the last."""
    # Timsort merges sorted parts quickly. It is stable, so the last row of a name stays behind.
    found = rows.take(np.argsort(rows.column, kind="stable"))
    kept = np.ones(len(found), bool)
    kept[:-1] = found.column[1:] != found.column[:-1]
    return found if kept.all() else found.take(kept)


def live(parts: Iterator[FileTable]) -> Iterator[FileTable]:
    """Yield the tables without rows of removed names."""
    for rows in parts:
        kept = ~rows.gone
        if kept.all():
            yield rows
        elif kept.any():
            yield rows.take(kept)
