"""Files of any store, as users get them: the `Stat` of a file, the `Entry` of a scan, which can be
read, and a `FileReader`, the file as a Python file object.
"""

from __future__ import annotations

import enum
import errno
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from winkfs.names import Name, to_str
from winkfs.units import NANO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

BUFFER_BYTES: Final = 256 << 10  # up to which a file is read at once
FIELDS: Final = attrgetter(
    "name", "fileid", "size", "mtime_ns", "ftype", "mode", "uid", "gid", "ctime_ns"
)  # of a Stat


class FileType(enum.IntEnum):
    """FTYPE: ASCII codes; never renumbered."""

    FILE = 102  # f
    EXEC = 112  # p, mode 0755
    DIR = 100  # d
    LINK = 108  # l, the content is the target
    GZIP = 99  # c
    ARCHIVE = 97  # a
    UNKNOWN = 120  # x
    ZSTD = 122  # z


DEFAULT_MODE: Final = {FileType.EXEC: 0o755, FileType.DIR: 0o755, FileType.LINK: 0o777}


def default_mode(ftype: int) -> int:
    """Return the permission bits of a file without attributes."""
    return DEFAULT_MODE.get(ftype, 0o644)  # type: ignore[call-overload,no-any-return]


DEFAULT_MODES: Final = [default_mode(ftype) for ftype in range(256)]
"""The result of `default_mode` for each valid type."""


@dataclass(frozen=True, slots=True)
class Stat:
    """A file's metadata.

    size      bytes
    mtime_ns  nanoseconds since the epoch; whole seconds in containers without MTIMENS
    ftype     winkfs.FileType
    mode      permission bits
    ctime_ns  time of the last change, if it was recorded; otherwise mtime_ns
    """

    name: str
    fileid: int
    size: int
    mtime_ns: int
    ftype: int
    mode: int
    uid: int
    gid: int
    ctime_ns: int

    @property
    def mtime(self) -> float:
        """Seconds since the epoch; an int if the time is in whole seconds."""
        whole, rest = divmod(self.mtime_ns, NANO)
        return whole if rest == 0 else self.mtime_ns / NANO


class _OpenStat(Stat):
    """A Stat whose fields can still be set."""

    __slots__ = ()
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__  # with only one of both set here, setting a field is slow


def stat_of(
    name: Name,
    fileid: int,
    size: int,
    mtime_ns: int,
    ftype: int,
    mode: int,
    uid: int,
    gid: int,
    ctime_ns: int,
) -> Stat:
    """Return a Stat, faster than its constructor."""
    made: Any = object.__new__(_OpenStat)
    made.name = name if type(name) is str else to_str(name)
    made.fileid, made.size, made.mtime_ns, made.ftype = fileid, size, mtime_ns, ftype
    made.mode, made.uid, made.gid, made.ctime_ns = mode, uid, gid, ctime_ns
    made.__class__ = Stat
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Stat):
    """A file of a scan. `read` returns its content as of the scan. Entries of any classes are equal
    if their fields are."""

    _read: Callable[[], bytes] = field(repr=False, compare=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and FIELDS(self) == FIELDS(other)

    def __hash__(self) -> int:
        return hash(FIELDS(self))

    def read(self) -> bytes:
        """Return the whole content. Raises CorruptError."""
        return self._read()

    @property
    def xattrs(self) -> Mapping[bytes, bytes]:
        """Extended attributes."""
        return {}

    @property
    def columns(self) -> dict[str, Any]:
        """The values of the columns of its container, None: null; {} if it never had columns."""
        return {}

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield the content without its holes, (offset, bytes) each, in order.

        raises  CorruptError
        """
        return iter([(0, self.read())])

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of the content between its holes, (offset, bytes) each, in order.

        raises  CorruptError
        cost    reads no content
        """
        return [(0, self.size)] if self.size else []


class OpenEntry(Stat):
    """An Entry whose fields can still be set; its class can be changed to Entry."""

    __slots__ = ("_read",)
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__  # with only one of both set here, setting a field is slow

    def __init__(
        self: Any,
        name: str,
        fileid: int,
        size: int,
        mtime_ns: int,
        ftype: int,
        mode: int,
        uid: int,
        gid: int,
        ctime_ns: int,
        read: Callable[[], bytes],
    ) -> None:
        self.name, self.fileid, self.size, self.mtime_ns = name, fileid, size, mtime_ns
        self.ftype, self.mode, self.uid, self.gid = ftype, mode, uid, gid
        self.ctime_ns, self._read = ctime_ns, read


def entries(*columns: Iterable[Any]) -> Iterator[Entry]:
    """Yield entries from columns in the order of their fields, until the shortest ends.

    cost  less than the constructor of a frozen dataclass
    """
    for made in map(OpenEntry, *columns):
        made.__class__ = Entry  # type: ignore[assignment]
        yield made  # type: ignore[misc]


class Readable(Protocol):
    """A store of any kind that has the file."""

    def read(self, name: str, offset: int = 0, size: int = -1) -> bytes: ...

    def read_into(self, name: str, offset: int, into: memoryview) -> int: ...


class FileReader(io.RawIOBase):
    """A file as a seekable, read-only file object. Its length is that of the file at opening."""

    mode = "rb"

    def __init__(self, container: Readable, name: str, size: int) -> None:
        self._container, self.name, self._size, self._at = container, name, size, 0

    @property
    def best_buffer(self) -> int:
        """Bytes for a buffer: a small file is read at once."""
        return min(max(self._size, 1), BUFFER_BYTES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        raise io.UnsupportedOperation("not open for writing: use put, write and append")

    def truncate(self, size: int | None = None) -> int:
        raise io.UnsupportedOperation("not open for writing: use put, write and append")

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}.get(whence)
        if base is None:
            raise ValueError(f"whence {whence} is not known")
        if base + offset < 0:
            raise OSError(errno.EINVAL, "seek before the start of the file", self.name)
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        self._check()
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._check()
        with memoryview(buffer).cast("B") as whole:
            want = max(min(len(whole), self._size - self._at), 0)
            if want == self._size and want <= BUFFER_BYTES:
                data = self._container.read(self.name)[:want]
                whole[: len(data)], got = data, len(data)
            else:
                with whole[:want] as part:
                    got = self._container.read_into(self.name, self._at, part) if want else 0
        self._at += got
        return got

    def readall(self) -> bytes:
        """Read the rest of the file. Memory: its size."""
        self._check()
        want = max(self._size - self._at, 0)
        if want == self._size:  # a read of the whole file is quicker
            data = self._container.read(self.name)[:want]
        else:
            data = self._container.read(self.name, self._at, want) if want else b""
        self._at += len(data)
        return data

    def _check(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")
