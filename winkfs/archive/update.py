"""Update: selects the files of a source that a container does not have yet, for `pack`.

A file counts as unchanged if type, size and mtime are equal, and its ctime is before the start of
the last pack of the same tree: any later change, even back to the old mtime, has a later ctime.
Other files are suspects, and their contents are compared. The start of the last pack is kept in
BASE.idx; without it all files are suspects.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from winkformats.errors import CorruptError
from winkfs.archive.items import Content, Item, Large, Meta, Readable, Seen, Some
from winkfs.container.bulk import Row
from winkfs.container.ondisk.idx import PACKED
from winkfs.container.ondisk.typed import RECORD, parse_schema
from winkfs.container.select import by_paths
from winkfs.entry import FileType
from winkfs.errors import NoSuchFile
from winkfs.names import to_bytes, to_str

if TYPE_CHECKING:
    from winkfs.container.container import Container
    from winkfs.container.ondisk.inode import Extent
    from winkfs.reader import Reader

LOOKUP_NAMES: Final = 1024  # looked up at once
LOOKUPS_TO_DROP: Final = 64  # after which the pages that they read are dropped from the cache
COMPARE_BYTES: Final = 1 << 20  # compared at once
COARSE: Final = 5  # CLOCK_REALTIME_COARSE, the clock of the kernel's ctimes


Known = dict[bytes, tuple[int, int, int, bool, int]]
"""Files that a container has: name -> FILE, DIR or LINK; size; mtime in nanoseconds, as in Seen;
whether another process may have written it since the mark; unit of mtimes, nanoseconds."""
Look = Callable[[Sequence[bytes]], Known]


@dataclass(slots=True)
class Update:
    """Selects the files of a source that a container does not have, or has in another state.

    look       finds many names; the result lacks missing ones
    since      ns: ctimes from which on a file is a suspect
    checksum   all files of equal size are suspects
    in_place   whether mtime and attributes of a file can be changed without storing it again
    again      returns whether a name was stored or changed since it was looked up
    progress   called with the number of unchanged files since the last call
    unchanged  number of unchanged files
    suspected  bytes of files that are suspects because of their ctime, or without a mark
    """

    look: Look
    since: int
    checksum: bool
    in_place: bool
    again: Callable[[bytes], bool]
    progress: Callable[[int], None]
    unchanged: int = 0
    suspected: int = 0

    def choose(
        self, files: Iterable[tuple[Some, Seen]]
    ) -> Iterator[tuple[Some, Seen, bool | None]]:
        """Yield the files that may have changed, see `items.Chooser`."""
        source = iter(files)
        while batch := list(islice(source, LOOKUP_NAMES)):
            known = self.look([seen.name for _, seen in batch])
            same = 0
            for some, seen in batch:
                old = known.get(seen.name)
                if old is None or self.again(seen.name):
                    yield some, seen, None
                    continue
                changed, compare = self._compared(old, seen)
                if not changed:
                    same += 1
                    continue
                del known[seen.name]  # so that a second file of this name counts as new
                yield some, seen, compare
            self.unchanged += same
            self.progress(same)

    def _compared(
        self, old: tuple[int, int, int, bool, int], seen: Seen
    ) -> tuple[bool, bool | None]:
        """Return whether a file may have changed, and how to find out: see `items.Chooser`."""
        kind, size, mtime_ns, recent, unit = old
        if (kind, size) != (seen.ftype, seen.size):
            return True, None
        if mtime_ns != seen.mtime_ns // unit * unit:
            return True, (True if self.in_place else None)
        if seen.ctime_ns is None:
            return True, self.checksum
        suspect = recent or seen.ctime_ns >= self.since
        self.suspected += seen.size if suspect else 0
        return suspect or self.checksum, True


class Finder:
    """Finds names in an open container. The page cache keeps no more of it than before.

    end  inodes from this position on are recent
    """

    def __init__(self, container: Container, end: int) -> None:
        self.container, self._end = container, end
        self._storage = container.store.kv.storage
        self._storage.remember_resident()
        self._calls = 0

    def __call__(self, names: Sequence[bytes]) -> Known:
        self._calls += 1
        if self._calls % LOOKUPS_TO_DROP == 0:
            self._storage.drop_seen()
        with self.container.lock:
            store = self.container.settled()
            rows = by_paths(store, tuple(names), store.note)
        file = (rows.ftype != FileType.DIR) & (rows.ftype != FileType.LINK)
        kinds = np.where(file, int(FileType.FILE), rows.ftype)
        columns = kinds, rows.size, rows.mtime, rows.pos >= self._end
        units = np.full(len(kinds), self.container.store.settings.mtime_unit)
        rest = zip(*(column.tolist() for column in (*columns, units)), strict=True)
        return dict(zip(rows.names, rest, strict=True))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of a data set: it may have been closed
            self._storage.drop_seen()


# --- comparing ---


def same_content(item: Item, container: Container, targets: Targets | None = None) -> bool:
    """Return whether a container has these bytes under the name; False if its file is damaged.

    targets  container of the target of a hard link; None: the container
    raises   Unreadable; FormatError (the source); OSError
    """
    if isinstance(item, Row) and item.ftype == FileType.DIR:
        return True
    name = to_bytes(item.name)
    try:
        if isinstance(item, Row):
            return container.read(name) == item.data
        other = item.file if isinstance(item, Large) else Stored(targets or container, item.target)
        return same_bytes(other, Stored(container, name))
    except (CorruptError, NoSuchFile):
        return False


class Targets(Protocol):
    """A container or a data set."""

    def read(self, name: str, offset: int = 0, size: int = -1) -> bytes: ...

    def extents(self, name: str) -> Sequence[Extent]: ...


class Stored(Content):
    """The content of a file of a container or data set, as a stream."""

    def __init__(self, files: Targets, name: bytes) -> None:
        text, end, data = to_str(name), 0, list[tuple[int, int]]()
        for hole, run in groupby(files.extents(text), key=lambda extent: extent.pointer == 0):
            size = sum(extent.size for extent in run)
            if not hole:
                data.append((end, size))
            end += size
        super().__init__(lambda count: files.read(text, self._at, count), end, data)


class _Run:
    """A stream as runs: each is a hole, or bytes."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._data = memoryview(b"")
        self._gap = 0
        self.left = 0

    def fill(self) -> None:
        """Read the next run, if the last one is used up."""
        if self.left:
            return
        self._gap = self.left = self._file.skip_hole()
        if not self._gap:
            self._data = memoryview(self._file.read(COMPARE_BYTES) or b"")
            self.left = len(self._data)

    def take(self, size: int) -> bytes | memoryview | None:
        """Return the next bytes, at most `left`; None: as many zeros."""
        self.left -= size
        if self._gap:
            return None
        taken, self._data = self._data[:size], self._data[size:]
        return taken


def same_bytes(one: Readable, other: Readable) -> bool:
    """Return whether two streams have equal bytes; holes are zeros. Memory: some MiB."""
    a, b = _Run(one), _Run(other)
    while True:
        a.fill()
        b.fill()
        size = min(a.left, b.left, COMPARE_BYTES)
        if not size:
            return a.left == b.left
        mine, its = a.take(size), b.take(size)
        if mine is not its and (mine or bytes(size)) != (its or bytes(size)):
            return False


def metadata_of(item: Item) -> Meta:
    """Return the metadata of a file of the source."""
    if not isinstance(item, Row):
        return item.meta
    mode = -1 if item.mode is None else item.mode
    return Meta(item.mtime_ns or 0, mode, item.uid or 0, item.gid or 0, item.xattrs)


def metadata_row(reader: Reader, name: bytes) -> Row:
    """Return a file of a store without its content. Raises NoSuchFile, FormatError."""
    stat, xattrs = reader.stat(name), reader.getxattrs(name) or None
    mode = None if stat.ftype == FileType.LINK else stat.mode
    return Row(name, b"", stat.mtime_ns, stat.ftype, mode, stat.uid, stat.gid, xattrs)


def differences(item: Item, container: Container) -> set[str]:
    """Return which of mtime, mode, owner and xattrs differ between the source and a container, as
    far as the container can store them."""
    name, meta = to_bytes(item.name), metadata_of(item)
    old, settings = container.stat(name), container.store.settings
    link, unit = old.ftype == FileType.LINK, settings.mtime_unit
    found = {"mtime"} if old.mtime_ns != meta.mtime_ns // unit * unit else set()
    if settings.attrs:
        if not link and old.mode != meta.mode:
            found.add("mode")
        if (old.uid, old.gid) != (meta.uid, meta.gid):
            found.add("owner")
        if not _same_xattrs(meta.xattrs or {}, container, name):
            found.add("xattrs")
    elif (
        not link and old.ftype != FileType.DIR and bool(old.mode & 0o100) != bool(meta.mode & 0o100)
    ):
        found.add("mode")
    return found


def _same_xattrs(given: Mapping[bytes, bytes], container: Container, name: bytes) -> bool:
    """Return whether a file has these attributes; a record of columns that are all declared is
    ignored."""
    there = container.getxattrs(name)
    if given == there:
        return True
    try:
        declared = parse_schema(given.get(RECORD, b"")).items() <= container.columns.items()
    except ValueError:  # an attribute of another program
        return False
    return declared and {**given, RECORD: b""} == {**there, RECORD: b""}


# --- the mark ---


class Mark(NamedTuple):
    """The last pack of a whole tree.

    root   63 bits: a hash of its place and of what is left out
    since  ns: time at which the pack began
    end    FILESIZE of BASE.data after it
    """

    root: int
    since: int
    end: int

    @classmethod
    def of(cls, container: Container, root: int) -> Mark:
        """Return the mark of a tree in a container; without one, a mark that makes all suspects."""
        packed = container.store.packed
        if packed.get("PACKROOT") != root:
            return cls(root, 0, 0)
        return cls(root, packed.get("PACKTIME", 0), packed.get("PACKEND", 0))

    def keep(self, container: Container) -> None:
        """Store the mark in the container. Raises OSError."""
        container.sync()
        end = container.store.kv.end
        container.keep_mark(dict(zip(PACKED, (self.root, self.since, end), strict=True)))


def now_ns() -> int:
    """Return the time now, such that no later change on this machine has an earlier ctime."""
    return time.clock_gettime_ns(COARSE)
