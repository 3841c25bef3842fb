"""Items: the files of a source (a directory tree, a tar file) for `pack`, one item a file; and the
counterpart for `unpack`, a Sink."""

from __future__ import annotations

import re
import struct
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np

from winkformats.arrays import Bools, Int64
from winkformats.errors import FormatError
from winkformats.extsort import BIAS, SortedRecords
from winkfs.container.bulk import Row
from winkfs.entry import DEFAULT_MODES, Entry, FileType
from winkfs.names import to_str
from winkfs.units import CLAMPED, NAMED

STDIN: Final = "-"  # the path of standard input
STREAM_BYTES: Final = 1 << 20  # content from which a file is streamed
SPARSE_BYTES: Final = 64 << 10  # of a file, from which holes are kept; smaller ones become zeros
PERMISSIONS: Final = 0o7777
EXECUTABLE: Final = 0o755
MODES: Final = np.array(DEFAULT_MODES, np.int64)
MAX_RATIO: Final = 1000  # bytes unpacked for each byte that is read
FREE_BYTES: Final = 1 << 30  # unpacked in any case
MTIME: Final = struct.Struct(">Q")  # mtime_ns + BIAS
UNFINISHED_START: Final = b".winkfs-"
UNFINISHED: Final = re.compile(rb"\.winkfs-[0-9a-f]{16}")  # names of files while they are unpacked
USER: Final = "user."  # extended attributes that are the user's own


class Note(NamedTuple):
    """A message about one file of the source.

    name    of the file, bytes
    what    the reason, without the name
    failed  False: nothing a container could hold (a device, a socket), as expected
    often   what many files may have in common: reported once, with a count and so many names
    kept    the file is stored, though not as it was meant to be
    """

    name: bytes
    what: str
    failed: bool
    often: int = 0
    kept: bool = False


Notes = Callable[[Note], None]


def clamped(name: bytes) -> Note:
    """Return the note about a file whose time was clamped."""
    return Note(name, CLAMPED, False, often=NAMED, kept=True)


class Ratio(NamedTuple):
    """Limit of the bytes that are unpacked, against inputs that are made to fill a disk.

    most   bytes unpacked for each byte read; 0: any number
    free   bytes that are unpacked in any case
    """

    most: int = MAX_RATIO
    free: int = FREE_BYTES

    def limit(self, read: int) -> int:
        """Return the bytes that `read` bytes may become."""
        return max(self.free, self.most * read) if self.most else sys.maxsize

    def is_exceeded(self, unpacked: int, read: int) -> bool:
        return unpacked > self.limit(read)

    def reason(self, read: int) -> str:
        return (
            f"{read:,} bytes unpack to more than {self.most:,} times as many: left out, "
            "--max-ratio N takes more"
        )


class Unreadable(Exception):
    """A streamed file cannot be read any further; the rest of the source can. Has the reason."""


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes. Raises Unreadable, FormatError."""

    def skip_hole(self) -> int:
        """Skip a hole at this place -> its bytes, 0: there is none. Raises Unreadable.

        A reader that does not call it reads zeros.
        """

    def rewind(self) -> bool:
        """Go back to the start -> whether that is possible."""

    def close(self) -> None: ...


class Content:
    """A stream of data and holes.

    take     returns its next bytes of data; raises Unreadable
    holes    (offset, bytes) of each range of data; None: there are no holes
    """

    def __init__(
        self, take: Callable[[int], bytes], size: int, holes: list[tuple[int, int]] | None
    ) -> None:
        self._take, self._size = take, size
        self._at = 0
        self._stop = size  # start of the next hole, once `skip_hole` was called
        self._data = deque([(0, size)] if holes is None else [pair for pair in holes if pair[1]])

    def read(self, size: int = -1, /) -> bytes:
        room = self._stop - self._at
        left = min(size, room) if size >= 0 else room
        parts: list[bytes] = []
        while left:
            self._pass()
            start, length = self._data[0] if self._data else (self._size, 0)
            if self._at < start:
                parts.append(bytes(min(start - self._at, left)))
            else:
                parts.append(self._take(min(start + length - self._at, left)))
            self._at += len(parts[-1])
            left -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip_hole(self) -> int:
        self._pass()
        start, length = self._data[0] if self._data else (self._size, 0)
        gap = max(start - self._at, 0)
        self._at += gap
        self._stop = start + length
        return gap

    def _pass(self) -> None:
        while self._data and sum(self._data[0]) <= self._at:
            self._data.popleft()

    def rewind(self) -> bool:
        return False

    def close(self) -> None: ...


class Meta(NamedTuple):
    """Metadata of a file, without its name and content."""

    mtime_ns: int
    mode: int  # permission bits
    uid: int
    gid: int
    xattrs: Mapping[bytes, bytes] | None = None


class Large(NamedTuple):
    """A file to be streamed; the consumer reads `file` and closes it.

    sparse  has holes
    read    bytes read of the archive until now; 0: it is not in an archive
    """

    name: bytes
    file: Readable
    size: int
    meta: Meta
    sparse: bool = False
    read: int = 0


class Copy(NamedTuple):
    """Another name of an earlier file (a hard link in a tar file). read: see `Large`."""

    name: bytes
    target: bytes
    meta: Meta
    read: int = 0

    @property
    def lost(self) -> Note:
        """The note if its target is missing."""
        return Note(self.name, f"a hard link to {to_str(self.target)}, which was not packed", True)


Item = Row | Large | Copy
Shapes = dict[bytes, tuple[int, int]]
"""FileType and bytes of content, by name."""


def shape_of(item: Item, known: Shapes) -> tuple[int, int] | None:
    """Return FileType and bytes of an item. known: those of the items before it; None: the target
    of a hard link is not among them."""
    if isinstance(item, Copy):
        return known.get(item.target)
    return (FileType.FILE, item.size) if isinstance(item, Large) else (item.ftype, len(item.data))


class Block(NamedTuple):
    """n files and directories without extended attributes, as columns.

    data     their contents, parts of one buffer
    facts    int64[5, n]: bytes of content, mtime_ns, mode with its other bits, uid, gid
    folders  bool[n], which are directories
    """

    names: list[bytes]
    data: list[memoryview]
    facts: Int64
    folders: Bools

    def part(self, start: int, stop: int) -> Block:
        """Return the files [start, stop)."""
        facts, folders = self.facts[:, start:stop], self.folders[start:stop]
        return Block(self.names[start:stop], self.data[start:stop], facts, folders)

    def types(self, *, attrs: bool) -> Int64:
        """Return FileTypes, int64[n]. `attrs`: whether the container keeps modes, too."""
        modes = self.facts[2] & PERMISSIONS
        run = modes == EXECUTABLE if attrs else (modes & 0o100) != 0
        return np.where(self.folders, FileType.DIR, np.where(run, FileType.EXEC, FileType.FILE))

    def usual(self, ftypes: Int64, owner: tuple[int, int]) -> Bools:
        """Return which files have this owner and the default mode of their type, bool[n]."""
        _, _, modes, uids, gids = self.facts
        found: Bools = (uids == owner[0]) & (gids == owner[1])
        found &= modes & PERMISSIONS == MODES[ftypes]
        return found

    def rows(self) -> Iterator[Row]:
        columns = self.names, self.data, self.folders.tolist(), self.facts.T.tolist()
        for name, data, folder, (_, mtime, mode, uid, gid) in zip(*columns, strict=True):
            ftype = FileType.DIR if folder else FileType.FILE
            yield Row(name, bytes(data), mtime, ftype, mode & PERMISSIONS, uid, gid, None)


def in_time_order(scratch: str, found: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Sort pairs (mtime in nanoseconds, bytes), by mtime, then by the bytes.

    scratch  a directory for a temporary file
    """
    with SortedRecords(scratch) as records:
        for mtime_ns, more in found:
            records.add(MTIME.pack(mtime_ns + BIAS) + more)
        for record in records:
            yield MTIME.unpack_from(record)[0] - BIAS, record[MTIME.size :]


class Suspect(NamedTuple):
    """An item that the container has already, and that may have changed.

    content   whether to compare its bytes; otherwise only its metadata
    """

    item: Item
    content: bool


class Seen(NamedTuple):
    """Metadata of a file before it is read.

    ftype      FILE, DIR or LINK
    ctime_ns   time of the last change; None: the source does not know
    """

    name: bytes
    ftype: int
    size: int
    mtime_ns: int
    ctime_ns: int | None


Some = TypeVar("Some")


class Chooser(Protocol):
    def choose(
        self, files: Iterable[tuple[Some, Seen]]
    ) -> Iterator[tuple[Some, Seen, bool | None]]:
        """Yield the files that may have changed, each with its companion and None: it is new, or
        a bool: it is a Suspect, and whether to compare its content.

        Many files are looked up at once, so a companion must stay valid meanwhile.
        """


class ItemSource(Protocol):
    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        """Yield all files; with `by_mtime` in ascending order of mtime.

        An item is valid until the next one is requested. A file that cannot be read becomes a Note.
        raises  OSError or FormatError if the source as a whole cannot be read
        """


class ChangingItemSource(ItemSource, Protocol):
    """A source that can be packed repeatedly."""

    def changed(self, update: Chooser, *, by_mtime: bool) -> Generator[Item | Suspect, None, None]:
        """Yield, as `items`, the files that `update` chooses."""


# --- the counterpart ---


@dataclass(slots=True)
class UnpackReport:
    """Result of an unpack: numbers of files.

    files, directories, links  that were written
    bytes      of the contents of files that were written
    unchanged  files and links that were there already, equal
    kept       that were there, and stay as they are by an option
    failed     that were not unpacked, and damaged places of the container
    """

    files: int = 0
    directories: int = 0
    links: int = 0
    bytes: int = 0
    unchanged: int = 0
    kept: int = 0
    failed: int = 0


class Sink(Protocol):
    """Where `unpack` writes files: a directory, an archive, a pipe."""

    def put(self, entry: Entry, path: bytes) -> bool:
        """Write one file -> whether it is written, or will be by `finish`. A file that cannot be
        written becomes a Note.

        path    its name in the target: see `names.shown`
        raises  OSError if the target fails or is full
        """

    def finish(self) -> None:
        """Write what is left: metadata of directories, the end of an archive; sync; give names."""

    def abort(self) -> None:
        """Remove what is not whole. Idempotent; nothing after `finish`."""


class Allowance:
    """Limit of the content that is written of a container.

    Content exceeds the bytes of a container only if extents share an entry, or if it is compressed:
    then a small container could fill any disk.

    most    bytes of content that it can have, if no entry is content of two files
    stored  its bytes
    """

    def __init__(self, most: int, stored: int, ratio: Ratio) -> None:
        self._most, self._stored, self._ratio = most, stored, ratio
        self._limit = ratio.limit(stored)
        self.used = self._holes = 0

    def has(self, size: int) -> bool:
        """Return whether so many bytes of content may be claimed."""
        used = self.used + size
        return used - self._holes <= self._most and used <= self._limit

    def claim(self, size: int, *, holes: int = 0) -> None:
        """Count bytes of content. Raises FormatError if they are too many, and counts none.

        holes  bytes of them that are holes, which are written as zeros
        """
        used, gaps = self.used + size, self._holes + holes
        if used - gaps > self._most:
            raise FormatError("more content than the container has bytes: left out")
        if used > self._limit:
            raise FormatError(self._ratio.reason(self._stored))
        self.used, self._holes = used, gaps
