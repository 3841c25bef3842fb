"""Interface of a disk: `Storage`, one open file, and `Directory`, files by name.

The methods that are not abstract are built on those that are; a disk that can do one of them better
overrides it. `paths` finds the disk of a path. `replacing` is the only way to replace a file, and
does so atomically.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import time
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from winkformats.closing import Closing
from winkformats.disk import pagecache
from winkformats.disk.pagecache import PAGE, BulkReader, Dropper
from winkformats.errors import CorruptError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Buffer = bytes | bytearray | memoryview | mmap.mmap
TEMPORARY: Final = ".tmp"  # suffix of a file while it is being written
CUT: Final = ".cut"  # suffix of a file that keeps bytes which were cut off
SAMPLE: Final = 16  # accesses that show whether the others will wait for the disk
BYTES_PER_FAULT: Final = 128 << 10  # bytes whose sequential read costs as much as one page fault
# The first access to a page of a mapping costs more than a read of it, later ones less: so the
# first reads of a handle do not touch the mapping.
BYTES_PER_READ: Final = 512 << 10  # bytes of a file for each access that is a read, not mapped


class FileType(enum.Enum):
    """Type of a name in a directory."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "symbolic link"
    DEVICE = "block device"
    OTHER = "special file"


class Info(NamedTuple):
    """Metadata of a file.

    identity   equal for two names or handles of one file, and only for those
    size       bytes; mtime: seconds since the epoch
    mode       permission bits
    links      names that the file has
    """

    kind: FileType
    identity: tuple[int, int]
    size: int
    mtime: float
    mode: int
    uid: int
    gid: int
    links: int = 1


class Storage(Closing):
    """One open file. Offsets and lengths are bytes from the start of the file.

    name       the path, for messages
    uncached   page-cache policy of `write`: the pages written do not stay in the page cache
    mapped     whether `view` may be used: reading a mapping of a truncated file, or on a failing
               disk, kills the process, which a server cannot risk
    far        whether each read is a request over a network, so that `fetch` pays, and whether the
               file never changes
    cached     whether one that is far may take bytes from a cache of this machine
    """

    name: str
    uncached: bool = False
    mapped: bool = True
    far: bool = False
    cached: bool = True

    # --- what a disk implements; all raise OSError ---

    @abstractmethod
    def read_into(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` -> bytes read, fewer only at the end of the file."""

    @abstractmethod
    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers back to back from `offset` -> bytes written."""

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Cut the file, or extend it with zeros, to `length` bytes."""

    @abstractmethod
    def sync(self) -> None:
        """Return when everything written is on the disk.

        After a failure it is unknown what of the writes since the last success reached the disk:
        the kernel may have dropped them, and a second call may succeed nevertheless.
        """

    @abstractmethod
    def info(self) -> Info:
        """Return the current metadata of the file."""

    @abstractmethod
    def duplicate(self) -> Self:
        """Return a second handle of the file, which is closed separately."""

    # --- built on these ---

    def size(self) -> int:
        """Return the bytes of the file."""
        return self.info().size

    def read(self, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`; fewer only at the end of the file."""
        data = bytearray(length)
        return bytes(data[: self.read_into(memoryview(data), offset)])

    def read_each(self, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Read from each offset the given length; unlike `read`, any result may be shorter."""
        return list(map(self.read, offsets, lengths))

    def begin(self, last: int = 0) -> Info:
        """Return as `info`; of one that is `far`, the first request asks for the last bytes, so
        many, instead of the first ones."""
        return self.info()

    def fetch(self, ranges: Iterable[tuple[int, int]], hashes: Iterable[int] = ()) -> None:
        """Announce ranges [start, stop) that will be read next. One that is `far` asks for all of
        them at once; any other does nothing.

        hashes  the XXH3-64 that the bytes of each range must have, by which a cache can find them
        """

    def patch(self, offset: int, data: Buffer) -> None:
        """Overwrite a few old bytes, always through the page cache."""
        self.write(offset, [data])

    def patch_each(self, offsets: Sequence[int], data: Buffer) -> None:
        """Overwrite a few old bytes at many offsets with equal data. Cost: one write each."""
        for offset in offsets:
            self.patch(offset, data)

    def preallocate(self, length: int) -> None:
        """Extend the file to at least `length` bytes, with allocated blocks if the disk can.

        raises  OSError ENOSPC: no space, and the file is unchanged
        """
        if length > self.size():
            self.truncate(length)

    def view(self, length: int, *, sparse: bool = False) -> memoryview | mmap.mmap:
        """Return the first `length` bytes, read-only; later writes may be visible in them.

        Usually a mapping, which costs nothing until it is read. Reading it kills the process if the
        file was truncated (see `check_view`) or the disk fails; servers must not use it, see
        `mapped`.

        sparse  read only the pages that are touched, without read-ahead
        """
        return memoryview(self.read(0, length))

    def bulk(self, start: int, stop: int, *, uncached: bool = True) -> BulkReader:
        """Return a reader for one pass over [start, stop) through a reused buffer.

        uncached    pages that were not in the page cache before the pass do not stay in it
        """
        return BulkReader(self.read_into, None)

    # --- the page cache, on disks that have one ---

    def dropper(self, start: int, stop: int) -> Dropper | None:
        """Return a Dropper for [start, stop); None: the page cache holds all, or it is unknown."""
        return None

    def remember_resident(self) -> None:
        """Record the cached pages, for `drop_seen` to keep. Cost: grows with the file."""

    def drop_seen(self) -> None:
        """Drop from the page cache what was read since then, also through sparse views.

        cost    a system call for each range of pages
        """

    def read_ahead(self, offset: int, length: int) -> None:
        """Start reading these bytes into the page cache; the next `drop_seen` keeps them."""

    def present(self, offset: int, length: int) -> bool:
        """Return whether the page cache has the first and the last of these bytes, or that is
        unknown.

        cost    none if it had the whole file when `remember_resident` was called
        """
        return True


class SharedStorage:
    """An open file of several readers, closed when the last reference to it is gone.

    A reader must keep its reference while it reads; without one the file may close meanwhile.
    """

    __slots__ = ("storage",)

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def __del__(self) -> None:
        self.storage.close()


def check_view(view: mmap.mmap | memoryview, length: int, name: str) -> None:
    """Check, before each batch of accesses to a view, that its file has not been truncated.

    view    its file may be closed
    length  bytes that will be accessed
    raises  CorruptError: the file was truncated, and access would kill the process
    """
    whole = view.obj if isinstance(view, memoryview) else view
    if isinstance(whole, mmap.mmap) and (size := whole.size()) < length:
        what = "the file was cut short while it was being read"
        raise CorruptError(what, file=name, offset=size, expected=f"{length} bytes", found=size)


class Lookups:
    """A view for random access: a page that is not in the cache is read without its neighbours.

    When the pages read so have cost as much as a read of the whole file, the kernel reads ahead
    again.

    limits  int64[2]: bytes that the compiled reader may access without a check; number of accesses
            that are cheaper by `Storage.read`, see BYTES_PER_READ
    """

    def __init__(self, storage: Storage, length: int, *, few: bool = True) -> None:
        """Map `length` bytes; few: False: most of the file will be read. Raises OSError."""
        self.view = storage.view(length, sparse=few)
        self.limits = array("q", [0, length // BYTES_PER_READ if few else 0])
        self._map = self.view if few and isinstance(self.view, mmap.mmap) else None
        self._name = storage.name
        # Count of faults at which read-ahead begins; each read that is left may be one more.
        self._last = pagecache.faults() + length // BYTES_PER_FAULT - self.limits[1]

    def check(self, length: int) -> None:
        """Check the view before each batch of accesses, see `check_view`."""
        check_view(self.view, length, self._name)
        self.advise()

    def advise(self) -> bool:
        """Return whether pages are still read without neighbours. Cost: a system call."""
        if self._map is not None and pagecache.faults() > self._last + max(self.limits[1], 0):
            self._map.madvise(mmap.MADV_NORMAL)
            self._map = None
        return self._map is not None

    def fetch(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
        """Read the ranges [start, stop), which were checked, into the page cache in parallel.

        cost    a few accesses if they are in it; else a system call for each range of pages
        """
        if self._map is None or len(starts) < 2 * SAMPLE:
            return
        import numpy as np  # late: stores that do not map their files do without it

        before = pagecache.faults()
        for at in starts[:: len(starts) // SAMPLE].tolist():
            self.view[at]
        if pagecache.faults() - before < SAMPLE // 4:
            return
        first, stop = starts // PAGE, (stops - 1) // PAGE + 1
        order = np.argsort(first, kind="stable")
        first, stop = first[order], np.maximum.accumulate(stop[order])
        heads = np.flatnonzero(np.append(True, first[1:] > stop[:-1]))
        begins, ends = first[heads], stop[np.append(heads[1:], len(stop)) - 1]
        self._last -= int((ends - begins).sum())
        if self.advise():
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                self._map.madvise(mmap.MADV_WILLNEED, begin * PAGE, (end - begin) * PAGE)


class Lock(Protocol):
    """A lock on a file, held until `release` or the end of the process. identity: see `Info`."""

    identity: tuple[int, int]

    def release(self) -> None: ...


class Turn:
    """A lock on a file that is taken and released often, and can be waited for."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory, self._name = directory, name
        self._held: Lock | None = None

    def _take(self) -> bool:
        self._held = self._directory.lock(self._name)
        return self._held is not None

    def take(self, seconds: float) -> bool:
        """Wait for the lock -> False if it timed out."""
        if self._take():
            return True
        until, pause = time.monotonic() + seconds, 2e-5
        while time.monotonic() < until:
            time.sleep(pause)
            if self._take():
                return True
            pause = min(2 * pause, 2e-3)
        return False

    def release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    def close(self) -> None:
        """Release it and close its file. Idempotent."""
        self.release()

    def forget(self) -> None:
        """Give up, in a forked child, the lock and the place in line, which are the parent's."""


class Directory(Closing):
    """A directory. Names are relative to it and may contain slashes.

    path    of the directory, for messages and for `locate`
    All methods raise OSError.
    """

    path: str

    @abstractmethod
    def open(
        self, name: str, mode: str = "r", *, uncached: bool = False, follow: bool = True
    ) -> Storage:
        """Open a regular file: "r" for reading, "w" for reading and writing.

        follow  whether the name may be a symbolic link
        raises  OSError: it is missing, or a fifo, a device or a directory
        """

    def expect(self, names: Iterable[tuple[str, int]]) -> None:
        """Announce files that will be opened next, and how many of their last bytes are read first,
        0: the first ones. One that is far asks for all of them at once; any other does nothing."""

    @abstractmethod
    def create_new(
        self, name: str, *, like: Storage | None = None, uncached: bool = False
    ) -> Storage:
        """Create an empty file, open for reading and writing.

        like    copy mode and owner from this file, if permitted
        raises  FileExistsError if the name exists, also as a symbolic link
        """

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory, replacing a file of the new name."""

    @abstractmethod
    def link(self, old: str, new: str) -> None:
        """Give a file a second name. Raises FileExistsError."""

    @abstractmethod
    def unlink(self, name: str) -> None:
        """Remove a name; a symbolic link is not followed. A missing name is ignored."""

    @abstractmethod
    def list(self) -> list[str]:
        """Return the names, in no order."""

    @abstractmethod
    def sync(self) -> None:
        """Return when the names in this directory are on the disk. See `Storage.sync`."""

    @abstractmethod
    def info(self, name: str = "", *, follow: bool = False) -> Info | None:
        """Return the metadata of a name, None if it is missing; without one of the directory.

        follow  follow a symbolic link
        """

    @abstractmethod
    def mkdir(self, name: str) -> None:
        """Create a directory. Raises FileExistsError."""

    def take_after(self, name: str) -> None:
        """Give a directory below the mode and owner of this one, if permitted."""

    @abstractmethod
    def rmdir(self, name: str) -> None:
        """Remove an empty directory."""

    @abstractmethod
    def subdirectory(self, name: str) -> Self:
        """Open the directory of that name. Raises NotADirectoryError for a symbolic link."""

    @abstractmethod
    def scratch(self) -> Storage:
        """Create an empty file without a name, which is removed when it is closed."""

    @abstractmethod
    def lock(self, name: str, *, shared: bool = False) -> Lock | None:
        """Lock a file -> None if another process has locked it.

        The lock stays on the file when that is renamed or removed.

        shared  several processes may have it locked with `shared`
        """

    def turn(self, name: str) -> Turn:
        """Return a lock on an existing file that can be waited for. Raises OSError."""
        return Turn(self, name)

    def close(self) -> None:
        """Close the directory. Idempotent."""

    def exists(self, name: str) -> bool:
        return self.info(name) is not None

    def give(self, old: str, new: str) -> None:
        """Rename a file without replacing another one. Raises FileExistsError."""
        try:
            self.link(old, new)
        except PermissionError:  # a file system without hard links
            if self.exists(new):
                raise FileExistsError from None
            self.rename(old, new)
        self.unlink(old)

    def remove_tree(self, name: str) -> None:
        """Remove a directory with all that is below it; symbolic links are removed, not followed.

        A missing directory is ignored.
        """
        try:
            folder = self.subdirectory(name)
        except FileNotFoundError:
            return
        with folder:
            for entry in folder.list():
                found = folder.info(entry)
                if found is not None and found.kind is FileType.DIRECTORY:
                    folder.remove_tree(entry)
                else:
                    folder.unlink(entry)
        self.rmdir(name)


# --- replacing a file ---


@contextlib.contextmanager
def replacing(
    directory: Directory,
    name: str,
    *,
    like: Storage | None = None,
    uncached: bool = False,
    new: bool = False,
    unsure: Callable[[], object] | None = None,
    keep: bool = False,
) -> Iterator[Storage]:
    """Write a new file, which takes the name durably if the block ends without an exception.

    What a killed writer left under the temporary name is removed first, without following a
    symbolic link.

    like    copy mode and owner from this file
    new     raise FileExistsError instead of replacing a file
    unsure  called if the sync of the directory fails after the rename: a later sync of it would
            not report whether the name is durable
    keep    leave the file open if the block ends without an exception
    raises  OSError; the name then refers to the old file or, after a failed sync of the
            directory, to either of them
    """
    temporary = name + TEMPORARY
    directory.unlink(temporary)
    storage = directory.create_new(temporary, like=like, uncached=uncached)
    final = storage.name.removesuffix(TEMPORARY)
    try:
        yield storage
        storage.sync()
        if new:
            directory.give(temporary, name)
        else:
            directory.rename(temporary, name)
        storage.name = final
        try:
            directory.sync()
        except OSError:
            if unsure is not None:
                unsure()
            raise
    except BaseException:
        storage.close()
        with contextlib.suppress(OSError):
            directory.unlink(temporary)
        raise
    if not keep:
        storage.close()


def keep_aside(
    directory: Directory, name: str, like: Storage, parts: Sequence[bytes]
) -> tuple[str, int]:
    """Save parts of a file, before they are cut off, durably to a new file -> its name and bytes;
    "" and 0 if all are zeros, and no file is made."""
    if not any(part.strip(b"\0") for part in parts):
        return "", 0
    number = 0
    while directory.exists(made := f"{name}{CUT}{number or ''}"):
        number += 1
    with directory.create_new(made, like=like) as aside:
        aside.write(0, parts)
        aside.sync()
    directory.sync()
    return made, sum(map(len, parts))
