"""Compare: the files that two sides do not have, or have in different states, in byte order.

A side is a store, a directory or a tar file. Both are listed as tables, which are merged by name.
No content is read, except with `checksum`; extended attributes only of files that have attributes.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

import numpy as np

from winkformats.arrays import Bools, Int64
from winkformats.errors import CorruptError, FormatError
from winkfs.archive.items import (
    PERMISSIONS,
    STDIN,
    STREAM_BYTES,
    USER,
    Copy,
    Item,
    Large,
    Note,
    Notes,
    Shapes,
    Unreadable,
    shape_of,
)
from winkfs.archive.sources import archive
from winkfs.archive.tree import Facts, OwnFile, OwnFiles, OwnFolder, Tree
from winkfs.archive.update import metadata_of
from winkfs.container.bulk import Row
from winkfs.container.container import Container
from winkfs.container.ondisk.inode import ATTRS, INT64, Attrs
from winkfs.container.ondisk.typed import RECORD
from winkfs.container.ondisk.typed import USER as COLUMN
from winkfs.container.select import by_paths
from winkfs.container.survey import with_attributes
from winkfs.container.table import CTIME, FILLED, MODE_AT, MTIME, NOTHING, OWNER, SIZE, FileTable
from winkfs.dataset.reading import DatasetReading
from winkfs.entry import FileType
from winkfs.errors import NoSuchFile
from winkfs.names import DATA, Choose, to_bytes, to_str
from winkfs.reader import Reader
from winkfs.registry import find_kind
from winkfs.tables import has_below, ordered, table_by_name

TYPES: Final = {FileType.DIR: "directory", FileType.LINK: "link"}
NAMES_AT_ONCE: Final = 512  # contents that are read together
EXECUTE: Final = 0o100
NO_OWNER: Final = ATTRS.pack(0, 0, 0)
NO_DOUBT: Final = INT64, INT64  # a ctime, and a position, that no file has
Xattrs = Mapping[bytes, bytes]
Line = Callable[[str], None]


class File(NamedTuple):
    """A file of one side. type: file, directory or link; mtime_ns: nanoseconds since the epoch."""

    type: str
    size: int
    mtime_ns: int
    mode: int
    uid: int
    gid: int


class Change(NamedTuple):
    """A difference between two sides.

    sign  "+" and "-": only the second, the first side has it; "M": another state; "T": another type
    what  of M: which of content, size, mtime, mode, owner, xattrs, columns differ
    """

    sign: str
    name: bytes
    what: tuple[str, ...]
    old: File | None
    new: File | None


@dataclass(slots=True)
class Totals:
    """Numbers of files, and bytes of their contents on either side; `equal` alone has no bytes."""

    added: int = 0
    removed: int = 0
    modified: int = 0
    retyped: int = 0
    equal: int = 0
    added_bytes: int = 0
    removed_bytes: int = 0
    modified_bytes: int = 0  # on the second side

    @property
    def differences(self) -> int:
        return self.added + self.removed + self.modified + self.retyped


class Side(Protocol):
    """The files of a side.

    unit     of its mtimes, nanoseconds
    attrs    False: it keeps no owners, no attributes and, of modes, only that of execution
    columns  names of the columns of the user
    """

    unit: int
    attrs: bool
    columns: frozenset[str]

    def tables(self) -> Iterator[FileTable]:
        """Yield the files in byte order of the names, complete: see `winkfs.tables.tables`."""

    def has_below(self, directory: bytes) -> bool:
        """Return whether names are below a directory, called after `tables`."""

    def xattrs(self, rows: FileTable) -> dict[bytes, Xattrs]:
        """Return the extended attributes of the files that have any."""

    def digests(self, rows: FileTable) -> dict[bytes, bytes]:
        """Return the SHA-256 of contents; a file that cannot be read is reported and left out."""


# --- comparing ---


class Comparison:
    """The differences between two sides.

    checksum      read the contents of files of equal size
    content_only  look at types, sizes and contents alone
    everything    all extended attributes, not only those called user.*
    chosen        return whether to compare a name; None: all
    doubt         (ctime, position): compare the contents of files whose mtimes differ, of those of
                  the second side with this ctime or a later one, nanoseconds, and of those of the
                  first with inodes from this position on; None: not for these reasons
                  Attributes, too, are compared only of these, and if mtimes differ
    doubts        number of files whose contents were compared for the last two reasons
    """

    def __init__(
        self,
        one: Side,
        other: Side,
        *,
        checksum: bool = False,
        content_only: bool = False,
        everything: bool = False,
        chosen: Choose | None = None,
        doubt: tuple[int, int] | None = None,
    ) -> None:
        self._one, self._other, self._chosen, self._doubt = one, other, chosen, doubt
        self._checksum, self._content_only = checksum, content_only
        self._prefix = b"" if everything else USER.encode()
        self._columns = {COLUMN + name.encode() for name in one.columns | other.columns}
        self.totals, self.doubts = Totals(), 0

    def changes(self) -> Iterator[Change]:
        """Yield the differences in byte order of the names.

        raises  FormatError, OSError of a side
        cost    array operations on all names, and an object for each difference
        """
        for old, new in abreast(self._some(self._one), self._some(self._other)):
            yield from self._between(old, new)

    def _some(self, side: Side) -> Iterator[FileTable]:
        for rows in side.tables():
            if self._chosen is None:
                yield rows
                continue
            names = map(to_str, rows.names)
            yield rows.take(np.fromiter(map(bool, map(self._chosen, names)), np.bool_, len(rows)))

    def _between(self, old: FileTable, new: FileTable) -> Iterator[Change]:
        mine, its = pairs(old, new)
        gone, come = _others(len(old), mine), _others(len(new), its)
        both = old if not len(gone) else old.take(mine), new if not len(come) else new.take(its)
        found = list(self.changed(*both))
        gone, come = (
            self._shown(old, gone, new, self._other),
            self._shown(new, come, old, self._one),
        )
        self.totals.equal += len(mine) - len(found)
        for sign, rows in ("-", old.take(gone)), ("+", new.take(come)):
            names = rows.names
            for i, file in enumerate(files_of(rows)):
                sides = (None, file) if sign == "+" else (file, None)
                found.append(Change(sign, names[i], (), *sides))
        if len(gone) or len(come):
            found.sort(key=lambda change: change.name)
        for change in found:
            self._count(change)
            yield change

    def _shown(self, rows: FileTable, only: Int64, near: FileTable, side: Side) -> Int64:
        """Return the rows that one side alone has, without directories that the other has by the
        names below them. near: the rows of the other side about there."""
        if not len(only):
            return only
        implied = []
        for i in only[rows.directories[only]].tolist():
            start = rows.name(i) + b"/"
            at = bisect_left(range(len(near)), start, key=near.name)
            if at < len(near):
                there = near.name(at).startswith(start)
            else:
                there = side.has_below(rows.name(i))
            if there:
                implied.append(i)
        return np.setdiff1d(only, np.array(implied, np.int64)) if implied else only

    def changed(self, old: FileTable, new: FileTable) -> Iterator[Change]:
        """Yield the differences between files of equal names."""
        kinds = kinds_of(old), kinds_of(new)
        same = kinds[0] == kinds[1]
        file = same & (kinds[0] == FileType.FILE)
        what = {"content": self._contents(old, new, same & (kinds[0] != FileType.DIR))}
        what["size"] = same & (kinds[0] != FileType.DIR) & (old.size != new.size)
        if not self._content_only:
            what["mtime"] = same & self._times(old, new)
            modes = (old.kind ^ new.kind) >> MODE_AT
            whole = self._one.attrs and self._other.attrs
            if whole:
                what["mode"] = same & (kinds[0] != FileType.LINK) & (modes != 0)
                what["owner"] = same & (old.numbers[:, OWNER] != new.numbers[:, OWNER])
                what |= self._attributes(old, new, same)
            else:
                what["mode"] = file & (modes & EXECUTE != 0)
        changed = ~same
        for differs in what.values():
            changed = changed | differs
        index = np.flatnonzero(changed)
        if not len(index):
            return
        before, after = old.take(index), new.take(index)
        reasons = [(name, differs[index].tolist()) for name, differs in what.items()]
        rows = zip(
            before.names, files_of(before), files_of(after), same[index].tolist(), strict=True
        )
        for i, (name, one, other, alike) in enumerate(rows):
            parts = tuple(reason for reason, differs in reasons if differs[i])
            yield Change("M" if alike else "T", name, parts, one, other)

    def _contents(self, old: FileTable, new: FileTable, files: Bools) -> Bools:
        found = np.zeros(len(old), np.bool_)
        maybe = files & (old.size == new.size) & (old.size > 0)
        if self._doubt is not None and not self._checksum:
            doubtful = maybe & self._doubtful(old, new, self._doubt)
            self.doubts += int(doubtful.sum())
            maybe = doubtful | (maybe & self._times(old, new))
        elif not self._checksum:
            return found
        index = np.flatnonzero(maybe)
        if not len(index):
            return found
        before, after = old.take(index), new.take(index)
        mine, its = self._one.digests(before), self._other.digests(after)
        # A file of the first side that is damaged differs from one that can be read.
        found[index] = [name in its and mine.get(name) != its[name] for name in before.names]
        return found

    def _times(self, old: FileTable, new: FileTable) -> Bools:
        """Return which mtimes differ."""
        unit = max(self._one.unit, self._other.unit)
        one, other = (old.mtime, new.mtime) if unit == 1 else (old.mtime // unit, new.mtime // unit)
        found: Bools = one != other
        return found

    @staticmethod
    def _doubtful(old: FileTable, new: FileTable, doubt: tuple[int, int]) -> Bools:
        since, end = doubt
        found: Bools = (new.numbers[:, CTIME] >= since) | (old.pos >= end)
        return found

    def _attributes(self, old: FileTable, new: FileTable, same: Bools) -> dict[str, Bools]:
        """Return which files have different extended attributes, and different columns."""
        found = {word: np.zeros(len(old), np.bool_) for word in ("xattrs", "columns")}
        maybe = same & (((old.kind & FILLED) == 0) | ((new.kind & FILLED) == 0))
        if self._alike():
            maybe &= old.pos != new.pos
        if self._doubt is not None and self._doubt != NO_DOUBT:
            maybe &= self._doubtful(old, new, self._doubt) | self._times(old, new)
        index = np.flatnonzero(maybe)
        if not len(index):
            return found
        mine, its = self._one.xattrs(old.take(index)), self._other.xattrs(new.take(index))
        if not mine and not its:
            return found
        for i, name in zip(index.tolist(), old.take(index).names, strict=True):
            for key in _unequal(mine.get(name, {}), its.get(name, {})):
                if key in self._columns:
                    found["columns"][i] = True
                elif key != RECORD and key.startswith(self._prefix):
                    found["xattrs"][i] = True
        return found

    def _alike(self) -> bool:
        """Return whether equal positions mean equal inodes: one is a copy of the other."""
        one, other = self._one, self._other
        return (
            isinstance(one, StoreSide)
            and isinstance(other, StoreSide)
            and one.contid is not None
            and one.contid == other.contid
        )

    def _count(self, change: Change) -> None:
        totals, old, new = self.totals, change.old, change.new
        if new is None or old is None:
            if new is not None:
                totals.added += 1
                totals.added_bytes += new.size
            elif old is not None:
                totals.removed += 1
                totals.removed_bytes += old.size
            return
        if change.sign == "T":
            totals.retyped += 1
        else:
            totals.modified += 1
        totals.modified_bytes += new.size


def abreast(
    one: Iterable[FileTable], other: Iterable[FileTable]
) -> Iterator[tuple[FileTable, FileTable]]:
    """Cut two runs in byte order of the names at the same names -> the parts of both, which may be
    empty."""
    runs = filter(len, one), filter(len, other)
    left, right = NOTHING, NOTHING
    while True:
        left = left if len(left) else next(runs[0], NOTHING)
        right = right if len(right) else next(runs[1], NOTHING)
        if not len(left) or not len(right):
            if len(left) or len(right):
                yield left, right
            else:
                return
            left = right = NOTHING
            continue
        last = min(left.last, right.last)
        a, b = (
            len(rows) if rows.last == last else bisect_right(range(len(rows)), last, key=rows.name)
            for rows in (left, right)
        )
        yield left.part(0, a), right.part(0, b)
        left, right = left.part(a), right.part(b)


def pairs(old: FileTable, new: FileTable) -> tuple[Int64, Int64]:
    """Return the rows of two tables in order that have equal names: int64[n] of each."""
    if (
        len(old) == len(new)
        and np.array_equal(old.name_lengths, new.name_lengths)
        and np.array_equal(old.names_joined, new.names_joined)
    ):
        every = np.arange(len(old))
        return every, every
    if not len(old) or not len(new):
        none = np.empty(0, np.int64)
        return none, none
    both = np.concatenate([old.column, new.column])
    order = np.argsort(both, kind="stable")  # quick, as both parts are sorted
    both = both[order]
    at = np.flatnonzero(both[1:] == both[:-1])
    return order[at], order[at + 1] - len(old)


def _others(count: int, rows: Int64) -> Int64:
    """Return the numbers below `count` that are not in `rows`."""
    if len(rows) == count:
        return rows[:0]
    left = np.ones(count, np.bool_)
    left[rows] = False
    return np.flatnonzero(left)


def _unequal(mine: Xattrs, its: Xattrs) -> list[bytes]:
    if mine == its:
        return []
    return [key for key in mine.keys() | its.keys() if mine.get(key) != its.get(key)]


def kinds_of(rows: FileTable) -> Int64:
    """Return FILE, DIR or LINK of each row, int64[n]."""
    kind = rows.kind & 255
    found: Int64 = np.where((kind == FileType.DIR) | (kind == FileType.LINK), kind, FileType.FILE)
    return found


def files_of(rows: FileTable) -> Iterator[File]:
    """Yield the rows as objects."""
    kinds = [TYPES.get(kind, "file") for kind in kinds_of(rows).tolist()]
    _, _, _, _, modes, uids, gids, _ = rows.stats((0, 0))
    columns = (rows.numbers[:, SIZE], rows.numbers[:, MTIME], modes & PERMISSIONS, uids, gids)
    return map(File, kinds, *(column.tolist() for column in columns))


# --- sides ---


def what_is(path: str) -> Literal["store", "tree", "tar"]:
    """Return what is at a path; "store" if nothing is.

    raises  ValueError if it is a folder and a container
    """
    if path == STDIN:
        return "tar"
    folder, plain = os.path.isdir(path), path.rstrip("/") or "/"
    found = find_kind(plain)
    if found is not None and not found[0].folder:
        if folder and path == plain:
            either = f"{path}/ or {path}{DATA} selects one"
            raise ValueError(f"{path} is a folder, and a container: {either}")
        found = None if path != plain else found
    if found is None and folder:
        return "tree"
    return "tar" if found is None and os.path.isfile(path) else "store"


class StoreSide:
    """A container, a data set or another store as a side.

    problem  called with each damage
    contid   of a container
    """

    def __init__(self, reader: Reader, problem: Line) -> None:
        self._reader, self._problem = reader, problem
        self.unit, self.attrs = 1, True
        self.contid: int | None = None
        self.columns = frozenset(reader.columns)
        if isinstance(reader, Container):
            settings = reader.store.settings
            self.unit, self.attrs, self.contid = (
                settings.mtime_unit,
                settings.attrs,
                settings.contid,
            )

    def _damage(self, error: CorruptError) -> None:
        self._problem(str(error))

    def tables(self) -> Iterator[FileTable]:
        return ordered(self._reader, problem=self._damage)

    def has_below(self, directory: bytes) -> bool:
        return has_below(self._reader, directory, self._damage)

    def xattrs(self, rows: FileTable) -> dict[bytes, Xattrs]:
        maybe = rows.take((rows.kind & FILLED) == 0)
        found: dict[bytes, Xattrs] = {}
        reader = self._reader
        if isinstance(reader, Container):
            with reader.lock:
                self._read(reader, np.sort(maybe.pos), found)
        elif isinstance(reader, DatasetReading):
            for at in range(0, len(maybe), NAMES_AT_ONCE):
                names = maybe.part(at, at + NAMES_AT_ONCE).names
                for _, container, some in reader.homes(names):
                    rows = by_paths(container.store, tuple(some), self._damage)
                    self._read(container, rows.pos, found)
        else:
            for name in maybe.names:
                if xattrs := reader.getxattrs(name):
                    found[name] = xattrs
        return found

    def _read(self, container: Container, pos: Int64, found: dict[bytes, Xattrs]) -> None:
        base = container.store.kv.storage.name
        for rows in with_attributes(container.store, pos, self._damage):
            for i in np.flatnonzero(rows.asked).tolist():
                try:
                    found[rows.name(i)] = container.getxattrs(rows.name(i))
                except FormatError as error:
                    self._problem(str(error))
            if rows.values is None:
                continue
            for i in np.flatnonzero(rows.values != b"").tolist():
                word = NO_OWNER + rows.values[i]
                found[rows.name(i)] = Attrs.decode(word, file=base, offset=int(rows.pos[i])).xattrs

    def digests(self, rows: FileTable) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        small = rows.size < STREAM_BYTES
        names = iter(rows.take(small).names)
        while some := list(islice(names, NAMES_AT_ONCE)):
            try:
                contents = list(self._reader.get_many(some))
                found.update(zip(some, map(digest, contents), strict=True))
            except (OSError, FormatError):  # one of them
                for name in some:
                    self._digest(name, found)
        for name in rows.take(~small).names:
            self._digest(name, found)
        return found

    def _digest(self, name: bytes, found: dict[bytes, bytes]) -> None:
        sum_ = hashlib.sha256()
        try:
            with self._reader.open_file(name) as file:
                while data := file.read(STREAM_BYTES):
                    sum_.update(data)
        except (NoSuchFile, FormatError) as error:
            self._problem(f"{self._reader.base}: {to_str(name)}: {error}")
        else:
            found[name] = sum_.digest()


class Listed:
    """A side that is listed as a whole before it is compared."""

    unit, attrs, columns = 1, True, frozenset[str]()

    def __init__(self) -> None:
        self.table = NOTHING
        self._xattrs: dict[bytes, Xattrs] = {}

    def _take(self, names: list[bytes], facts: Sequence[Sequence[int]]) -> Iterator[FileTable]:
        self.table = table_by_name(names, facts)
        yield self.table

    def has_below(self, directory: bytes) -> bool:
        return self.table.has_below(directory)

    def xattrs(self, rows: FileTable) -> dict[bytes, Xattrs]:
        return {name: self._xattrs[name] for name in rows.names if name in self._xattrs}


class TreeSide(Listed):
    """A directory as a side.

    note        called with files that cannot be read, or that no container holds
    attributes  False: extended attributes are not asked for
    everything  True: all of them, not only those called user.*
    exclude     return whether to leave a name out, with all below it
    own         files to leave out silently, see `Tree`
    since       ns: attributes of files with an earlier ctime are read when they are compared
    """

    def __init__(
        self,
        root: str,
        note: Notes,
        scratch: str,
        *,
        attributes: bool = True,
        everything: bool = False,
        exclude: Choose | None = None,
        own: OwnFiles | OwnFolder | OwnFile | None = None,
    ) -> None:
        super().__init__()
        self._root, self._note, self._scratch = root, note, scratch
        self._attributes, self._everything, self.since = attributes, everything, 0
        self._tree = Tree(root, note, scratch, xattrs=everything, exclude=exclude, own=own)

    def tables(self) -> Iterator[FileTable]:
        names, facts = list[bytes](), list[Facts]()
        since = self.since if self._attributes else None
        for name, of_it, xattrs in self._tree.listed(since=since):
            names.append(name)
            facts.append(of_it)
            if xattrs:
                self._xattrs[name] = xattrs
        return self._take(names, facts)

    def xattrs(self, rows: FileTable) -> dict[bytes, Xattrs]:
        found, early = super().xattrs(rows), rows.numbers[:, CTIME] < self.since
        if self._attributes and early.any():
            names = rows.take(early).names
            tree = Tree(self._root, self._note, self._scratch, xattrs=self._everything, names=names)
            listed = tree.listed()
            found |= {name: xattrs for name, _, xattrs in listed if xattrs}
        return found

    def digests(self, rows: FileTable) -> dict[bytes, bytes]:
        tree = Tree(self._root, self._note, self._scratch, names=rows.names)
        return dict(_digested(tree.items(by_mtime=False), self._note))


class TarSide(Listed):
    """A tar file as a side; it is read once.

    path      a file, or "-" for standard input
    contents  True: `digests` will be called
    targets   of hard links, after `tables`
    """

    def __init__(
        self, path: str, note: Notes, scratch: str, *, contents: bool, **options: Any
    ) -> None:
        super().__init__()
        self._tar = archive(path, note, scratch, **options)
        self._contents, self._note = contents, note
        self._digests: dict[bytes, bytes] = {}
        self.targets: dict[bytes, bytes] = {}

    def tables(self) -> Iterator[FileTable]:
        facts, shapes = dict[bytes, tuple[int, ...]](), Shapes()
        for item in self._tar.items(by_mtime=False):
            name, meta = to_bytes(item.name), metadata_of(item)
            shape = shape_of(item, shapes)
            if shape is None:
                self._note(cast(Copy, item).lost)
                continue
            shapes[name] = ftype, size = shape
            facts[name] = (size, meta.mtime_ns, meta.mtime_ns, ftype, meta.mode & PERMISSIONS,
                           meta.uid, meta.gid)  # fmt: skip
            self._xattrs.pop(name, None)
            if isinstance(item, Copy):
                self.targets[name] = item.target
            else:
                self.targets.pop(name, None)
            if meta.xattrs:
                self._xattrs[name] = meta.xattrs
            elif isinstance(item, Copy) and item.target in self._xattrs:
                self._xattrs[name] = self._xattrs[item.target]
            if self._contents:
                self._sum(name, item)
        return self._take(list(facts), list(facts.values()))

    def _sum(self, name: bytes, item: Item) -> None:
        self._digests.pop(name, None)
        if isinstance(item, Copy):
            if item.target in self._digests:
                self._digests[name] = self._digests[item.target]
            return
        self._digests.update(_digested([item], self._note))

    def digests(self, rows: FileTable) -> dict[bytes, bytes]:
        return {name: self._digests[name] for name in rows.names if name in self._digests}


def digest(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def _digested(items: Iterable[Item], note: Notes) -> Iterator[tuple[bytes, bytes]]:
    """Yield names and SHA-256 of the contents of items."""
    for item in items:
        if isinstance(item, Row):
            yield to_bytes(item.name), digest(item.data)
        elif isinstance(item, Large):
            sum_ = hashlib.sha256()
            try:
                while data := item.file.read(STREAM_BYTES):
                    sum_.update(data)
                yield item.name, sum_.digest()
            except Unreadable as error:
                note(Note(item.name, str(error), True))
            finally:
                item.file.close()
