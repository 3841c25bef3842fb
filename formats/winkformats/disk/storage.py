"""What a disk implements: `Storage`, one open file, and `Directory`, files by name.

The methods that are not abstract are built on those that are; a disk that does one of them better
overrides it. `paths` says which disk a path is on. `replacing` is the one way in which a file takes
the place of another, at once or not at all.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import time
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from winkformats.closing import Closing
from winkformats.disk import pagecache
from winkformats.disk.pagecache import PAGE, BulkReader, Dropper
from winkformats.errors import CorruptError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Buffer = bytes | bytearray | memoryview | mmap.mmap
TEMPORARY: Final = ".tmp"  # behind the name of a file while it is being written
CUT: Final = ".cut"  # behind the name of a file: what was cut off it
SAMPLE: Final = 16  # looks that show whether the others will wait for the disk
SINGLE: Final = 128 << 10  # bytes that are read in one go at the cost of a page of its own
# A page that is mapped the first time takes 5 us, and its neighbours come with it; a read takes
# 1 us more than a look at what is mapped. 1,000 gets of 10^7 files: 6.4 us each, mapped 8 to 12.
MAPPED: Final = 512 << 10  # bytes of a file for each look that is a read


class Kind(enum.Enum):
    """What stands under a name of a directory."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "symbolic link"
    DEVICE = "block device"
    OTHER = "special file"


class Info(NamedTuple):
    """What a disk says of a file.

    identity   equal for two names or handles of one file, and only for those
    size       bytes; mtime: seconds since the epoch
    mode       permission bits
    links      names that the file has
    """

    kind: Kind
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
    mapped     whether `view` may be used: a mapping of a file that is cut short, or on a disk that
               fails, kills the process, which who serves others cannot afford
    """

    name: str
    uncached: bool = False
    mapped: bool = True

    # --- what a disk implements; all raise OSError ---

    @abstractmethod
    def read_into(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` -> bytes read, fewer only at the end of the file."""

    @abstractmethod
    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers back to back from `offset` -> bytes written."""

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Cut or grow the file to `length` bytes; what grows is zeros."""

    @abstractmethod
    def sync(self) -> None:
        """Return when everything written is on the disk.

        After a failure nothing is known of what was written since the last success: the system may
        have dropped it, and a second call may succeed all the same.
        """

    @abstractmethod
    def info(self) -> Info:
        """What the disk says of the file now."""

    @abstractmethod
    def duplicate(self) -> Self:
        """The same file, to be closed on its own."""

    # --- what follows from it ---

    def size(self) -> int:
        """Bytes of the file."""
        return self.info().size

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""
        data = bytearray(length)
        return bytes(data[: self.read_into(memoryview(data), offset)])

    def read_each(self, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Up to so many bytes from each of these offsets, mostly as many as `read` gives."""
        return list(map(self.read, offsets, lengths))

    def patch(self, offset: int, data: Buffer) -> None:
        """Change a few bytes of what was written long ago; always through the page cache."""
        self.write(offset, [data])

    def patch_each(self, offsets: Sequence[int], data: Buffer) -> None:
        """The same few bytes at many places. Cost: one write each."""
        for offset in offsets:
            self.patch(offset, data)

    def preallocate(self, length: int) -> None:
        """Make the file at least `length` bytes long with blocks behind it, where the disk can.

        raises  OSError ENOSPC: no room, and nothing is changed
        """
        if length > self.size():
            self.truncate(length)

    def view(self, length: int, *, sparse: bool = False) -> memoryview | mmap.mmap:
        """The first `length` bytes, read-only; later writes may show through.

        A mapping where the disk has them, which costs nothing until it is read, but kills the
        process where the file was cut short (see `check_view`) or the disk fails. Not for who
        serves others, see `mapped`.

        sparse  only the pages touched are read, and none around them
        """
        return memoryview(self.read(0, length))

    def bulk(self, start: int, stop: int, *, uncached: bool = True) -> BulkReader:
        """A reader for one pass over [start, stop) through a reused buffer.

        uncached    pages that were not in the page cache before the pass do not stay in it
        """
        return BulkReader(self.read_into, None)

    # --- the page cache, where there is one ---

    def dropper(self, start: int, stop: int) -> Dropper | None:
        """For bytes of [start, stop); None where the page cache holds all, or that is unknown."""
        return None

    def remember_resident(self) -> None:
        """`drop_seen` keeps what is in the page cache now. Cost: grows with the file."""

    def drop_seen(self) -> None:
        """Take what was read since, also through sparse views, out of the page cache.

        cost    a system call a range; a twentieth of reading with RWF_DONTCACHE instead
        """

    def read_ahead(self, offset: int, length: int) -> None:
        """Have these bytes brought into the page cache, in the background. The next `drop_seen`
        leaves them there."""

    def present(self, offset: int, length: int) -> bool:
        """Whether the page cache has the first and the last of these bytes; True: unknown, too.

        cost    nothing where it had all when `remember_resident` was called
        """
        return True


class Handle:
    """An open file that several read: it is closed when nobody refers to it any more.

    Keep a reference as long as you read: of a temporary, the file may close in mid-read.
    """

    __slots__ = ("storage",)

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def __del__(self) -> None:
        self.storage.close()


def check_view(view: mmap.mmap | memoryview, length: int, name: str) -> None:
    """To be asked before each batch of looks at a view of a file, which may be closed meanwhile.

    length  bytes of it that are looked at
    raises  CorruptError: the file was cut short, and to look would kill the process
    """
    whole = view.obj if isinstance(view, memoryview) else view
    if isinstance(whole, mmap.mmap) and (size := whole.size()) < length:
        what = "the file was cut short while it was being read"
        raise CorruptError(what, file=name, offset=size, expected=f"{length} bytes", found=size)


class Lookups:
    """A view for looks here and there: a page that is not in the page cache is read alone.

    That holds as long as the pages read so have cost less than the whole file would. Else the
    kernel reads around each as much as it likes, which is hundreds of KiB and more.

    limits  int64[2]: bytes that may be looked at, for who looks without asking here; and how many
            looks are cheaper by `Storage.read`, see MAPPED
    """

    def __init__(self, storage: Storage, length: int, *, few: bool = True) -> None:
        """`few`: False: all of the file will be read, one way or the other. Raises OSError."""
        self.view = storage.view(length, sparse=few)
        self.limits = array("q", [0, length // MAPPED if few else 0])
        self._map = self.view if few and isinstance(self.view, mmap.mmap) else None
        self._name = storage.name
        # Of the faults that bring one page; each read that is left may be one more.
        self._last = pagecache.faults() + length // SINGLE - self.limits[1]

    def check(self, length: int) -> None:
        """To be asked before each batch of looks. See `check_view`."""
        check_view(self.view, length, self._name)
        self.advise()

    def advise(self) -> bool:
        """-> whether a page is still read alone. Cost: a system call."""
        if self._map is not None and pagecache.faults() > self._last + max(self.limits[1], 0):
            self._map.madvise(mmap.MADV_NORMAL)
            self._map = None
        return self._map is not None

    def fetch(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
        """Have the bytes [start, stop) of many places, which were checked, brought in at once.

        cost    where they are there, a few looks; else a system call a page, and a third of the
                time of waiting for one after the other
        """
        if self._map is None or len(starts) < 2 * SAMPLE:
            return
        import numpy as np  # a store that does not map its files starts without it

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
    """Held until `release`, or until the process ends. `identity` of the file: see `Info`."""

    identity: tuple[int, int]

    def release(self) -> None: ...


class Turn:
    """A lock on a file that is taken and released often, and waited for."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory, self._name = directory, name
        self._held: Lock | None = None

    def _take(self) -> bool:
        self._held = self._directory.lock(self._name)
        return self._held is not None

    def take(self, seconds: float) -> bool:
        """Wait for the lock; False: somebody else had it all the time."""
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
        """Release it for good. Idempotent."""
        self.release()

    def forget(self) -> None:
        """In a forked child: the turn, and a place in the line for it, are those of the parent."""


class Directory(Closing):
    """A directory. Names are relative to it and may have slashes in them.

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
        raises  OSError: there is none, or it is a fifo, a device or a directory
        """

    @abstractmethod
    def create_new(
        self, name: str, *, like: Storage | None = None, uncached: bool = False
    ) -> Storage:
        """Make an empty file, open for reading and writing.

        like    a file whose mode and owner it gets, as far as we may
        raises  FileExistsError where the name is taken, also by a symbolic link
        """

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Give a file or directory another name; a file that has it is replaced."""

    @abstractmethod
    def link(self, old: str, new: str) -> None:
        """Give a file a second name. Raises FileExistsError."""

    @abstractmethod
    def unlink(self, name: str) -> None:
        """Remove a name, that of a symbolic link and not what it points to.

        A missing one is none to remove.
        """

    @abstractmethod
    def list(self) -> list[str]:
        """The names, in no order."""

    @abstractmethod
    def sync(self) -> None:
        """Return when the names in this directory are on the disk. See `Storage.sync`."""

    @abstractmethod
    def info(self, name: str = "", *, follow: bool = False) -> Info | None:
        """What stands under a name, None where nothing does; without one: of the directory itself.

        follow  of what a symbolic link points to
        """

    @abstractmethod
    def mkdir(self, name: str) -> None:
        """Raises FileExistsError."""

    def take_after(self, name: str) -> None:
        """Give a directory the mode and owner of this one, as far as we may."""

    @abstractmethod
    def rmdir(self, name: str) -> None:
        """Remove an empty directory."""

    @abstractmethod
    def subdirectory(self, name: str) -> Self:
        """The directory of that name; a symbolic link is refused with NotADirectoryError."""

    @abstractmethod
    def scratch(self) -> Storage:
        """An empty file without a name; it is gone when it is closed."""

    @abstractmethod
    def lock(self, name: str, *, shared: bool = False) -> Lock | None:
        """Lock a file against others who lock it -> None where somebody else has it locked.

        The lock is on the file, whatever becomes of its name.

        shared  others may have it locked so, too
        """

    def turn(self, name: str) -> Turn:
        """Of those who take turns, see `Turn`. The file is there. Raises OSError."""
        return Turn(self, name)

    def close(self) -> None:
        """Close the directory. Idempotent."""

    def exists(self, name: str) -> bool:
        return self.info(name) is not None

    def give(self, old: str, new: str) -> None:
        """Give a file a name that none has. Raises FileExistsError."""
        try:
            self.link(old, new)
        except PermissionError:  # a file system without hard links
            if self.exists(new):
                raise FileExistsError from None
            self.rename(old, new)
        self.unlink(old)

    def remove_tree(self, name: str) -> None:
        """Remove a directory with all that is below it; symbolic links are removed, not followed.

        A missing one is none to remove.
        """
        try:
            folder = self.subdirectory(name)
        except FileNotFoundError:
            return
        with folder:
            for entry in folder.list():
                found = folder.info(entry)
                if found is not None and found.kind is Kind.DIRECTORY:
                    folder.remove_tree(entry)
                else:
                    folder.unlink(entry)
        self.rmdir(name)


# --- a file in the place of another ---


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
    """A new file; where the block ends well it takes the name, durable, over what had it.

    What a killed writer left under the temporary name is removed first; a symbolic link there is
    not followed.

    like    a file whose mode and owner it gets
    new     only where nothing has the name: else FileExistsError
    unsure  is called where the file has the name, and the sync of the directory fails: then no
            later sync of it says anything about the name
    keep    the file stays open behind the block, if that ends well
    raises  OSError; the name then stands for the old file or, after a failed sync of the
            directory, for either of them
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
    """Write parts of a file, before they are cut off, to one of their own, durable -> its name, ""
    if all are zeros and there is none; bytes."""
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
