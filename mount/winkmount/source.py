"""Source: the protocol between a mount and the store that it shows.

The mount knows no format. It serves any subclass of `Source`: a winkfs container, another store, a
dict in a test. Files and directories are named by ids (positive 64-bit integers that
become inode numbers). Names are bytes, single path components; there are no paths.

An id is valid while the file or directory is open, and for the next thousand calls. After that a
Source may forget it, so that memory does not grow with the number of files: a call with such an
id changes nothing and raises ESTALE, and the server looks up the names that lead to it. The id of a
file stays the same when it is looked up again, and over a rename.

A refusal is an OSError with the errno that the system call returns (ENOENT, EEXIST, ENOTEMPTY,
EPERM ...). Any other exception is logged and becomes EIO. The mount calls one method at a time,
but not always from the same thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

UNREADABLE: Final = -1
"""The size of a directory entry whose attributes cannot be read: its name is listed, its lookup
fails."""


class Attr(NamedTuple):
    """The attributes of one file, as stat(2) returns them."""

    id: int  # st_ino
    mode: int  # kind and permission bits, as in st_mode
    size: int  # bytes
    mtime_ns: int  # nanoseconds since the epoch
    uid: int
    gid: int
    ctime_ns: int = 0  # when data or metadata changed last; 0: at `mtime_ns`

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)


class DirEntry(NamedTuple):
    """One name of a directory."""

    name: bytes
    attr: Attr
    offset: int  # where `readdir` goes on behind this entry; positive, below 2**63 - 2


class Source(Protocol):
    """A tree of files. Offsets and sizes are bytes."""

    root: int
    """Id of the top directory."""
    writable: bool = False
    """False: the server answers every change with EROFS. True: the Source is a `Changing`."""
    gather: bool = False
    """True: the server may hold small writes of an open file back and pass them on together.
    False: each write(2) is passed on at once, because it may be refused."""
    lasting: int = 0
    """The id of a file that is below this one is never that of another file, also when it is gone,
    so that the kernel may know the file by it."""

    patience: float = 0.0
    """Seconds in which each request is answered or fails: the server calls `limit` before it. 0.0:
    nothing waits for a network."""

    @property
    def failed(self) -> str:
        """Why changes are refused since the disk below failed; "": they are not. While it is set
        the server answers every change with EROFS and every fsync with EIO. Reading goes on."""
        return ""

    # names

    def lookup(self, parent: int, name: bytes) -> Attr:
        """Look up the file `name` in the directory `parent`. Raises FileNotFoundError."""

    def lacks(self, parent: int, name: bytes) -> bool:
        """Return whether there is no file `name` in a directory. False: see `lookup`. Raises
        ESTALE."""
        return False

    def opendir(self, directory: int) -> Any:
        """Open a directory -> what `readdir` takes; costs no memory that grows with the
        directory."""

    def readdir(self, handle: Any, offset: int) -> Iterator[DirEntry]:
        """List the names but `.` and `..` from an offset that an entry gave, 0: from the start.

        A name that is there all the time comes once, whatever changes meanwhile; others may come.
        Any number of iterators of one handle may be half-way.
        """

    def releasedir(self, handle: Any) -> None: ...

    def page(self, handle: Any, offset: int, version: int) -> Page | None:
        """Return entries of an open directory around an offset as columns, files all of them whose
        ids last: `nodes` are these. Nothing comes before the first behind the offset. None:
        `readdir` has them.

        version     as long as it is the same, so are the attributes of all files
        """
        return None

    # attributes

    def stat(self, id: int) -> Attr: ...

    def readlink(self, id: int) -> bytes: ...

    def xattrs(self, id: int) -> Mapping[bytes, bytes]: ...

    def facts(self, id: int) -> Mapping[str, str]:
        """Return what the mount shows as read-only attributes `user.KIND.<name>`: fileid ..."""

    # content

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        """Add a user of the file. truncate: empty it (O_TRUNC)."""

    def release(self, id: int) -> None:
        """Remove a user of the file."""

    def read(self, id: int, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def seek(self, id: int, offset: int, *, hole: bool) -> int:
        """Return the offset of the first byte from `offset` on that is (not) in a hole; the end of
        the file counts as a hole. Raises ENXIO from the end on, or where no data follows."""

    # the whole

    def status(self) -> Mapping[str, object]:
        """Return what `info` of the mount shows, JSON values: what is mounted, files, bytes ..."""

    def statfs(self) -> Mapping[str, int]:
        """Fields of statvfs(3): f_bsize, f_frsize, f_blocks, f_bfree, f_bavail, f_files ..."""

    def numbered(self) -> Nodes | None:
        """Numbers of all that is shown, if that never changes and the Source has them."""
        return None

    def refresh(self) -> bool:
        """Move on to the last synced state of another process -> whether that is a new one."""
        return False

    def heal(self, error: Exception) -> bool:
        """Recover after a call raised `error` -> whether the call is worth repeating."""
        return False

    def limit(self, until: float) -> None:
        """Have what this thread asks for from now on be over by then, by time.monotonic(); after
        that it fails with EIO."""
        return

    def rest(self) -> None:
        """Give memory back: the kernel has forgotten many names, and asks for nothing now."""
        return

    def close(self) -> None:
        """Sync and close. Open files are kept as they are. The last call."""


class Changing(Source, Protocol):
    """A Source that is `writable`."""

    kept: int = 1 << 16
    """How many of the files that were written and closed last the kernel may keep, 1 KB each."""

    # names

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        """Make an empty file, not open yet. Raises FileExistsError."""

    def mkdir(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr: ...

    def symlink(self, parent: int, name: bytes, target: bytes, uid: int, gid: int) -> Attr: ...

    def unlink(self, parent: int, name: bytes) -> None:
        """Take the name away. A file that is open stays usable through its id until `release`."""

    def rmdir(self, parent: int, name: bytes) -> None:
        """Raises ENOTEMPTY."""

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> None:
        """Move a file or directory. A file there is replaced (as by `unlink`), as is an empty
        directory by a directory. All or nothing."""

    # attributes

    def amend(self, id: int, change: Amendment, now_ns: int) -> Attr:
        """Change mode, owner and time of a file -> the attributes after that.

        now_ns  the time of the call
        """

    def set_xattrs(self, id: int, xattrs: Mapping[bytes, bytes]) -> None:
        """Replace all of them."""

    # content

    def write(self, id: int, pieces: Sequence[tuple[int, bytes]], mtime_ns: int) -> None:
        """(offset, data) each, in this order. Behind the end of the file a gap reads as zeros.
        Without any, only the time changes.

        mtime_ns    when the last of them was written: with `gather`, some time ago
        """

    def truncate(self, id: int, size: int) -> None: ...

    def punch(self, id: int, offset: int, size: int) -> None:
        """Make bytes read as zeros, as a hole if the store knows holes. Never changes the size of
        the file: `offset + size` is not behind its end."""

    def allocate(self, id: int, size: int) -> None:
        """Check that there is room for `size` more bytes. Raises ENOSPC."""

    def promise(self, id: int, size: int) -> bool:
        """Return whether the server may hold `size` more bytes back: then the next `write` of the
        file, with all that was promised since the last, finds room. Raises ENOSPC."""

    def syncing(self, id: int | None) -> Steps:
        """Make a file durable as it stands; None: everything written so far. Other calls may be
        served between the steps: what they change may be durable or not."""

    # Short ways to make a file, and to what is done to one that was just made, which mostly is all
    # that is ever done to it.

    def fresh(self, id: int) -> object | None:
        """Return an object for the file that the last `create` made, as long as it is in memory."""
        return None

    def append(self, fresh: Any, offset: int, data: bytes, now_ns: int) -> bool:
        """`write` at the end of such a file. False: it is not its end, or not in memory any more.
        Raises ENOSPC."""
        return False

    def amend_fresh(self, fresh: Any, change: Amendment, now_ns: int) -> Attr | None:
        """`amend` such a file. None: it is not in memory any more."""
        return None


Steps = Generator[Callable[[], None], None, None]
"""A sync as a generator. It yields functions that wait for the disk. The caller calls each one, and
may serve other calls meanwhile; it throws an OSError of the function into the generator."""


NO_LOCK: Final = nullcontext()


def run_steps(steps: Steps, lock: AbstractContextManager[object] = NO_LOCK) -> None:
    """Run all steps, each under the lock, and wait for each without it."""
    with lock:
        wait = next(steps, None)
    while wait is not None:
        error = None
        try:
            wait()
        except OSError as raised:
            error = raised
        with lock:
            wait = next(steps, None) if error is None else steps.throw(error)


class Amendment(NamedTuple):
    """New attributes of a file; None and -1: they stay. If all of them stay, only the time of the
    change moves.

    mode      permission bits
    mtime_ns  nanoseconds since the epoch
    """

    mode: int | None = None
    uid: int = -1
    gid: int = -1
    mtime_ns: int | None = None


@dataclass(slots=True)
class Page:
    """Entries of one directory, or of several one behind the other.

    names    n single names
    nodes    int64[n]: their numbers; 0: the kernel has to ask for it
    attrs    int64[n, 7], rows of `Attr`
    offsets  where `Nodes.entries` goes on behind each: positive, ascending, below 2**63 - 2
    packed   for the server: what it made of them
    places   for the Source: where their contents are
    """

    names: list[bytes]
    nodes: npt.NDArray[np.int64]
    attrs: npt.NDArray[np.int64]
    offsets: Sequence[int]
    packed: Any = None
    places: object = None


class Nodes(Protocol):
    """The files and directories of a tree that never changes, by numbers of 1 to 2**63 - 1 that
    are good as long as the mount: so the server need not remember what the kernel knows.

    1 is the top directory. A number that stands for nothing any more, after damage, raises ESTALE.
    """

    def find(self, parent: int, name: bytes) -> tuple[int, Attr]:
        """Look up the file `name` in a directory -> its number. Raises FileNotFoundError."""

    def attr(self, node: int) -> Attr: ...

    def id(self, node: int) -> int:
        """Return the id by which the Source knows a number now."""

    def entries(self, node: int, offset: int) -> tuple[Page, int, int]:
        """Return the entries of a directory but `.` and `..` behind an offset, 0: from the start:
        those of a page in [start, stop), at least one, if there are any."""

    def around(self, node: int) -> tuple[Page, int, int] | None:
        """Return where a file is among those of its directory: a page that has them in [start,
        stop) is (page, start, stop). None: that is not known."""

    def contents(
        self, page: Page, chosen: npt.NDArray[np.int64]
    ) -> Sequence[bytes | memoryview | None]:
        """Return the contents of some files of a page that `around` gave, int64[n] rows in it, all
        of each; good until the next call. None: it has to be read alone."""

    def present(self, node: int, size: int) -> bool:
        """Return whether the first `size` bytes of a file can be read without waiting for the disk,
        as far as that is known without waiting. Never raises."""

    def bring(self, node: int, size: int) -> None:
        """Wait until that is so, most likely. Any thread may call it at any time. Raises
        OSError."""

    def ids(self, node: int) -> tuple[int, int]:
        """Return the ids of a directory and of the one above."""

    def read(self, node: int, offset: int, size: int) -> bytes:
        """Read up to `size` bytes of a file; fewer only at its end."""


def refuse(code: int) -> OSError:
    """Return the OSError for an errno, to be raised."""
    return OSError(code, os.strerror(code))
