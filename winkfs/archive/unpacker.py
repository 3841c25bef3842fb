"""Unpacker: writes the files of a container into a directory.

A name becomes a path as on a mount, see `names.shown`, so nothing is written outside the directory.
A name too long for a path is left out. Every directory of a path is opened from its parent's
descriptor, links are not followed, and every file is created, never opened.

A file is written without a name (O_TMPFILE; else under a temporary one), and gets its name when it
is whole and its contents are on the disk. A batch of files is synced in a thread while the next one
is written. So neither a kill nor a power cut leaves a file that looks whole and is not, and what is
there with the type, size and mtime of its entry need not be written again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import pickle
import resource
import stat
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from winkformats.disk.posix import link_open, sync_all
from winkformats.errors import FormatError
from winkformats.extsort import SortedRecords
from winkfs.archive.items import (
    PERMISSIONS,
    UNFINISHED,
    UNFINISHED_START,
    USER,
    Allowance,
    Note,
    Notes,
    UnpackReport,
)
from winkfs.container.scan import Run
from winkfs.entry import Entry, FileType, Stat
from winkfs.errors import NoSuchFile
from winkfs.names import OWN, SELF, name_at, part_fault, to_bytes, to_str
from winkfs.reader import Reader
from winkfs.tables import has_below

OPEN_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
UNNAMED: Final = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
PROC: Final = "/proc/self/fd"  # through which a file without a name gets one
CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
LEFT: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NO_USE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
NO_DIRECTORY: Final = frozenset({errno.ENOTDIR, errno.ELOOP})
NO_UNNAMED: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})
FAILURES: Final = (OSError, FormatError, OverflowError, ValueError)  # the last: times, owners
NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
OPEN_PARENTS: Final = 64  # directories kept open
BATCH_BYTES: Final = 256 << 20  # of files that are synced together
BATCH_FILES: Final = 16384  # the same; each is open meanwhile
FEW: Final = 8  # files that are synced one by one
OTHER_FILES: Final = 256  # open files that are left for all else
SWEPT: Final = 1 << 16  # directories in which what a killed run has left is removed
DEPTH: Final = struct.Struct(">H")
SET_ID: Final = 0o6000
STICKY: Final = 0o1000
SHARED: Final = 0o022  # group and others may write
SPECIAL: Final = SET_ID | STICKY
PRIVATE: Final = 0o600
THERE: Final = "another file is in its place: --force replaces it"
DIRECTORY_THERE: Final = "a directory is in its place"
LEADS_OUT: Final = "a link that leads out of the directory: left out, --same-permissions keeps it"
NOT_USER: Final = "without extended attributes but user.*: --same-permissions keeps them"
NO_SPECIAL: Final = "without its set-id and sticky bits: --same-permissions keeps them"
SHOWN_KEY: Final = 40  # bytes of the name of an attribute in a message


class Existing(Enum):
    """Fate of a file that is in the place of another."""

    EQUAL = "stays if it is equal, else it is in the way"
    REPLACE = "is replaced"
    SKIP = "stays"
    NEWER = "stays unless the file of the container is newer"


class Directories:
    """Directories below a root, opened by path, and created if they do not exist."""

    def __init__(self, root: str) -> None:
        self.path = root
        self.root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open: OrderedDict[bytes, int] = OrderedDict()
        self._last, self._last_fd = b"", self.root
        # Those that were created, and stayed open since; the root if it was empty.
        self._new = set[bytes]() if os.listdir(self.root) else {b""}
        self._device = os.fstat(self.root).st_dev
        self.mixed = False  # a directory is on another filesystem
        self.made: Callable[[bytes], None] = lambda path: None  # called for each that is created
        self.found: Callable[[bytes, int], None] = lambda path, fd: None  # for each that was there
        # Called if a file has the path of a directory, with the path and the descriptor of the
        # parent -> whether the directory exists now.
        self.makes_room: Callable[[bytes, int], bool] = lambda path, parent: False

    def close(self) -> None:
        for fd in (*self._open.values(), self.root):
            os.close(fd)
        self._open.clear()

    def is_new(self, path: bytes) -> bool:
        """Return whether a directory is known to have nothing but what was unpacked."""
        return path in self._new

    def get(self, path: bytes, mode: int = 0o777, *, make: bool = True) -> int:
        """Return the descriptor of a directory, valid until the next call.

        mode    for a new one; its parents are created with 0777, all less the umask
        make    create it if it does not exist; otherwise FileNotFoundError is raised
        raises  NotADirectoryError if a file or a link has its path, or that of a parent
        """
        if path == self._last:
            return self._last_fd
        missing = []
        at = path
        while at and at not in self._open:
            at, _, part = at.rpartition(b"/")
            missing.append(part)
        fd = self._open[at] if at else self.root
        if at:
            self._open.move_to_end(at)
        for part in reversed(missing):
            at = at + b"/" + part if at else part
            fd = self._enter(at, part, fd, (mode if at == path else 0o777) if make else None)
            self._open[at] = fd
            if len(self._open) > OPEN_PARENTS:
                closed, number = self._open.popitem(last=False)
                self._new.discard(closed)
                if closed == self._last:
                    self._last, self._last_fd = b"", self.root
                os.close(number)
        self._last, self._last_fd = path, fd
        return fd

    def _enter(self, path: bytes, part: bytes, parent: int, mode: int | None) -> int:
        try:
            fd = self._open_at(part, parent)
            self.mixed = self.mixed or os.fstat(fd).st_dev != self._device
            self.found(path, fd)
            return fd
        except FileNotFoundError:
            if mode is None:
                raise
            os.mkdir(part, mode, dir_fd=parent)
            self.made(path)
            self._new.add(path)
        except NotADirectoryError:
            parent = os.dup(parent)  # making room may close the other one
            try:
                if not self.makes_room(path, parent):
                    raise
                return self._open_at(part, parent)
            finally:
                os.close(parent)
        return self._open_at(part, parent)

    def _open_at(self, part: bytes, parent: int) -> int:
        try:
            return os.open(part, OPEN_DIR, dir_fd=parent)
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                raise NotADirectoryError(
                    errno.ENOTDIR, "a file or link is where its directory should be"
                ) from None
            raise


class Written(NamedTuple):
    """A file that is whole and has no name yet.

    fd         open for writing
    temporary  its name in the directory; b"": it has none
    name       in the container
    replace    what is in its place
    """

    fd: int
    temporary: bytes
    path: bytes
    name: str
    size: int
    replace: bool


class Syncing(threading.Thread):
    """Writes a batch to the disk."""

    def __init__(self, batch: list[Written], root: int, *, mixed: bool) -> None:
        super().__init__(daemon=True)
        self.batch, self._root, self._mixed = batch, root, mixed
        self._error: OSError | None = None

    def run(self) -> None:
        try:
            if len(self.batch) <= FEW:
                for written in self.batch:
                    os.fdatasync(written.fd)
            elif self._mixed:
                os.sync()
            else:
                sync_all(self._root)
        except OSError as error:
            self._error = error

    def done(self) -> None:
        """Wait. Raises OSError if the disk failed."""
        self.join()
        if self._error:
            raise self._error


class Unpacker:
    """Writes entries below a directory: see `Sink`."""

    def __init__(
        self,
        directories: Directories,
        container: Reader,
        allowance: Allowance,
        report: UnpackReport,
        note: Notes,
        *,
        existing: Existing = Existing.EQUAL,
        same_permissions: bool = False,
        same_owner: bool = True,
        name_of: Callable[[bytes], bytes] = name_at,
        some: bool = False,
        exact: str | None = None,
    ) -> None:
        """Prepare.

        name_of  returns the name in the container of the file at a path
        some     not all files are put: directories above these get their metadata, too
        exact    what is there, and gets new metadata, loses extended attributes that its entry
                 does not have and that start with this; None: it keeps them
        """
        self._directories = directories
        self._container, self._allowance = container, allowance
        self._since = 0  # ctime of the first file that was written
        directories.makes_room = self._move_down
        self._report = report
        self._note = note
        self._existing = existing
        self._trusted = same_permissions
        self._name_of, self._some, self._exact = name_of, some, exact
        self._made = SortedRecords(directories.path)
        self._above = SortedRecords(directories.path)
        directories.made = self._made_directory
        self._user, self._group = os.geteuid(), os.getegid()
        self._gives_owners = same_owner and self._user == 0
        self._unnamed = os.path.exists(PROC)  # whether files can be without a name
        self._batch: list[Written] = []
        self._bytes = 0  # of the batch
        self._syncing: Syncing | None = None
        self._owned: bytes | None = None  # a directory, whose new files have this owner
        self._owner = (-1, -1)
        self._most_files = _open_files()
        self._probe = -1
        self._swept = set[bytes]()
        directories.found = self._sweep
        self._sweep(b"", directories.root)

    def put(self, entry: Entry, path: bytes) -> bool:
        """Write one file; see `Sink`."""
        try:
            return self._put_at(entry, path)
        except OSError as error:
            if error.errno != errno.EMFILE or not (self._batch or self._syncing):
                return self._failed(entry.name, error)
        except FAILURES as error:
            return self._failed(entry.name, error)
        self.flush()
        try:
            return self._put_at(entry, path)
        except FAILURES as error:
            return self._failed(entry.name, error)

    def put_run(self, run: Run, paths: list[bytes]) -> bool:
        """Write files whose contents are in memory, as `put` does -> True."""
        for entry, path in zip(run.held(), paths, strict=True):
            self.put(entry, path)
        return True

    def _failed(self, text: str, error: Exception) -> bool:
        """Note a failure -> False. Raises the error if the disk fails or is full."""
        name = to_bytes(text)
        if isinstance(error, FileExistsError):
            what = THERE if error.filename is not None else error.strerror or THERE
            self._note(Note(name, what, True, often=1))
        elif isinstance(error, OSError):
            if error.errno in NO_USE or error.errno == errno.EMFILE:
                raise error
            self._note(Note(name, error.strerror or str(error), True))
        else:
            self._note(Note(name, str(error), True))
        return False

    def _put_at(self, entry: Entry, path: bytes) -> bool:
        if fault := part_fault(path):
            self._note(Note(to_bytes(entry.name), fault, True))
            return False
        if entry.ftype == FileType.DIR:
            self._directories.get(path, 0o700)  # private until it gets its own mode at the end
            self._note_directory(path, entry, entry.xattrs)
            self._report.directories += 1
            return True
        target = entry.read() if entry.ftype == FileType.LINK else b""
        if target and not (self._trusted or stays_below(path, target)):
            self._note(Note(path, LEADS_OUT, True, often=1))
            return False
        head, _, short = path.rpartition(b"/")
        parent = self._directories.get(head)
        new = self._directories.is_new(head) and entry.ftype != FileType.LINK
        found = None if new else status_of(short, parent)  # of files: see `_name`
        if found is not None and stat.S_ISDIR(found.st_mode) and self._is_directory_of(path):
            path, head, short = path + OWN, path, SELF
            parent = self._directories.get(head)
            found = status_of(short, parent)
        if found is not None and self._stays(found, entry, target, short, parent):
            return False
        replace = found is not None
        if entry.ftype == FileType.LINK:
            self._link(path, short, entry, target, replace=replace)
        else:
            self._file(entry, path, parent, replace=replace)
        return True

    # --- what is there ---

    def _stays(
        self, found: os.stat_result, entry: Entry, target: bytes, short: bytes, parent: int
    ) -> bool:
        """Return whether what is in the place of a file stays there; False: it is replaced.

        raises  FileExistsError: it is in the way
        """
        same = partial(os.readlink, short, dir_fd=parent)
        return stays(
            found, entry, target, self._existing, self._report, read=same, is_time=self._is_time
        )

    def _is_time(self, found: int, wanted: int) -> bool:
        """Return whether an mtime is that of the entry, as this filesystem rounds it."""
        if found == wanted:
            return True
        if self._probe < 0:
            self._probe, temporary = self._new_file(self._directories.root)
            if temporary:
                os.unlink(temporary, dir_fd=self._directories.root)
        return held_time(self._probe, wanted) == found

    def _is_directory_of(self, path: bytes) -> bool:
        """Return whether the path of a file is the directory of other names of the container."""
        return has_below(self._container, self._name_of(path), lambda error: None)

    def _move_down(self, path: bytes, parent: int) -> bool:
        """Replace a file that was unpacked by a directory of its name, with the file in it.

        ->  False: the file was not unpacked from this container
        """
        waiting = [*self._batch, *(self._syncing.batch if self._syncing else ())]
        if any(written.path == path for written in waiting):
            self.flush()  # it may replace what is there
        short = path.rpartition(b"/")[2]
        found = os.stat(short, dir_fd=parent, follow_symlinks=False)
        try:
            entry = self._container.stat(self._name_of(path))
        except (NoSuchFile, FormatError):
            return False
        kind = stat.S_ISLNK if entry.ftype == FileType.LINK else stat.S_ISREG
        alike = kind(found.st_mode) and found.st_size == entry.size
        if not alike or entry.ftype == FileType.DIR:
            return False
        ours = 0 < self._since <= found.st_ctime_ns
        if not ours and not self._is_time(found.st_mtime_ns, entry.mtime_ns):
            return False
        made = next(iter(self._free_names(parent)))
        os.rename(short, made + OWN, src_dir_fd=parent, dst_dir_fd=parent)
        os.rename(made, short, src_dir_fd=parent, dst_dir_fd=parent)
        return True

    def _free_names(self, parent: int) -> Iterator[bytes]:
        """Create directories with temporary names -> their names."""
        for number in itertools.count():
            made = b"%b-%d-%d" % (SELF, os.getpid(), number)
            with contextlib.suppress(FileExistsError):
                os.mkdir(made, dir_fd=parent)
                yield made

    def _sweep(self, path: bytes, fd: int) -> None:
        """Remove the temporary files that a killed run has left in a directory; of very many
        directories in the first ones."""
        if path in self._swept or len(self._swept) > SWEPT:
            return
        self._swept.add(path)
        for short in map(os.fsencode, os.listdir(fd)):
            if not UNFINISHED.fullmatch(short):
                continue
            name = self._name_of(path + b"/" + short if path else short)
            with contextlib.suppress(OSError, FormatError):
                if name not in self._container and _is_unlocked(short, fd):
                    os.unlink(short, dir_fd=fd)

    def _made_directory(self, path: bytes) -> None:
        if len(self._swept) <= SWEPT:
            self._swept.add(path)
        if self._some:
            self._above.add(path)

    # --- links and files ---

    def _note_directory(self, path: bytes, stat: Stat, xattrs: Mapping[bytes, bytes]) -> None:
        """Record the metadata that `finish` gives to a directory."""
        mode, kept = self._mode(path, stat), dict(self._kept(path, xattrs))
        given = path, stat.mtime_ns, mode, stat.uid, stat.gid, kept
        self._made.add(DEPTH.pack(0xFFFF - path.count(b"/")) + pickle.dumps(given))

    def _link(
        self, path: bytes, short: bytes, entry: Entry, target: bytes, *, replace: bool
    ) -> None:
        parent = self._directories.get(path.rpartition(b"/")[0])
        temporary = _temporary()
        os.symlink(target, temporary, dir_fd=parent)
        try:
            if self._gives_owners:
                os.chown(temporary, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
            if xattrs := self._kept(path, entry.xattrs):
                self._set_xattrs(path, b"/proc/self/fd/%d/%b" % (parent, temporary), xattrs)
            times = (entry.mtime_ns, entry.mtime_ns)
            os.utime(temporary, ns=times, dir_fd=parent, follow_symlinks=False)
            _publish(temporary, short, parent, replace=replace)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise
        self._report.links += 1

    def _file(self, entry: Entry, path: bytes, parent: int, *, replace: bool) -> None:
        """Write a file that gets its name with its batch."""
        pieces, used = entry.pieces(), self._allowance.used
        piece = next(pieces, None)  # damage raises before the file is created
        fd, temporary = self._new_file(parent)
        try:
            if not self._since:
                self._since = os.fstat(fd).st_ctime_ns
            end = 0
            while piece is not None:
                self._allowance.claim(len(piece[1]))
                end = write_at(fd, piece[1], piece[0])
                piece = next(pieces, None)
            if end < entry.size:
                os.ftruncate(fd, entry.size)  # a hole
            xattrs = self._kept(path, entry.xattrs) if entry.xattrs else {}
            mode, uid, gid = self._mode(path, entry), entry.uid, entry.gid
            owned = self._gives_owners and self._has_owner(fd, path, uid, gid)
            self._give(path, fd, entry.mtime_ns, mode, uid, gid, xattrs, owned=owned)
        except BaseException:
            os.close(fd)
            if temporary:  # no partial file is left
                os.unlink(temporary, dir_fd=parent)
            self._allowance.used = used
            raise
        self._batch.append(Written(fd, temporary, path, entry.name, entry.size, replace))
        self._bytes += entry.size
        if self._bytes >= BATCH_BYTES or len(self._batch) >= self._most_files:
            self._turn()

    def _has_owner(self, fd: int, path: bytes, uid: int, gid: int) -> bool:
        """Return whether a new file has this owner: all new ones of a directory have the same."""
        above = path.rpartition(b"/")[0]
        if above != self._owned:
            found = os.fstat(fd)
            self._owned, self._owner = above, (found.st_uid, found.st_gid)
        return (uid, gid) == self._owner

    def _new_file(self, parent: int) -> tuple[int, bytes]:
        """Create a file in a directory -> its descriptor, and its temporary name; b"": none."""
        if self._unnamed:
            try:
                return os.open(b".", UNNAMED, PRIVATE, dir_fd=parent), b""
            except OSError as error:
                if error.errno not in NO_UNNAMED:
                    raise
                self._unnamed = False
        temporary = _temporary()
        fd = os.open(temporary, CREATE, PRIVATE, dir_fd=parent)
        _lock(fd)
        return fd, temporary

    # --- what `sync` does with what is there ---

    def change(self, stat_: Stat, xattrs: Mapping[bytes, bytes], path: bytes) -> bool:
        """Give a file that is there the metadata of its entry -> False: write it anew."""
        head, _, short = path.rpartition(b"/")
        try:
            fd = os.open(short, LEFT, dir_fd=self._directories.get(head, make=False))
        except OSError:
            return False
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return False
            mode, kept = self._mode(path, stat_), self._kept(path, xattrs)
            self._give(path, fd, stat_.mtime_ns, mode, stat_.uid, stat_.gid, kept, there=True)
        except FAILURES as error:
            self._failed(stat_.name, error)
        finally:
            os.close(fd)
        return True

    def remove(self, path: bytes, directory: bool) -> bool:
        """Remove a file, or a directory if it is empty -> whether it is gone; if not, note it."""
        head, _, short = path.rpartition(b"/")
        try:
            parent = self._directories.get(head, make=False)
            (os.rmdir if directory else os.unlink)(short, dir_fd=parent)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in NO_USE:
                raise
            self._note(Note(path, f"cannot be removed: {error.strerror}", True))
            return False
        return True

    def touched(self, path: bytes) -> None:
        """Have `finish` give a directory its metadata again, if it has an entry."""
        self._above.add(path)

    # --- batches ---

    def _turn(self) -> None:
        """Sync the batch in a thread, after the one before got its names."""
        self._name_synced()
        batch, self._batch, self._bytes = self._batch, [], 0
        if batch:
            self._syncing = Syncing(batch, self._directories.root, mixed=self._directories.mixed)
            self._syncing.start()

    def flush(self) -> None:
        """Sync all files that were written, and give them their names. Raises OSError."""
        self._turn()
        self._name_synced()

    def _name_synced(self) -> None:
        if self._syncing is None:
            return
        self._syncing.done()
        batch = self._syncing.batch
        batch.reverse()
        while batch:
            written = batch[-1]
            try:
                named = self._name(written)
            except FAILURES as error:
                named = self._failed(written.name, error)
            self._close(batch.pop(), keep=named)
        self._syncing = None

    def _close(self, written: Written, *, keep: bool) -> None:
        if written.temporary and not keep:
            with contextlib.suppress(OSError):
                parent = self._directories.get(written.path.rpartition(b"/")[0])
                os.unlink(written.temporary, dir_fd=parent)
        os.close(written.fd)

    def _name(self, written: Written) -> bool:
        """Give a file its name."""
        fd, temporary, path, _, size, replace = written
        head, _, short = path.rpartition(b"/")
        parent = self._directories.get(head)
        try:
            self._name_at(fd, temporary, short, parent, replace=replace)
        except OSError as error:
            found = status_of(short, parent)
            is_directory = found is not None and stat.S_ISDIR(found.st_mode)
            if not is_directory:
                raise
            if not self._is_directory_of(path):
                raise FileExistsError(errno.EEXIST, DIRECTORY_THERE) from error
            below = self._directories.get(path)
            if temporary:
                os.rename(temporary, SELF, src_dir_fd=parent, dst_dir_fd=below)
            else:
                self._name_at(fd, b"", SELF, below, replace=replace)
        self._report.files += 1
        self._report.bytes += size
        return True

    def _name_at(
        self, fd: int, temporary: bytes, short: bytes, parent: int, *, replace: bool
    ) -> None:
        if temporary:
            _publish(temporary, short, parent, replace=replace)
            return
        if not replace:
            link_open(fd, short, parent)
            return
        temporary = _temporary()
        _lock(fd)
        link_open(fd, temporary, parent)
        try:
            os.rename(temporary, short, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.unlink(temporary, dir_fd=parent)
            raise

    def _complete(self) -> None:
        """Record modes and times of directories that were created only for chosen files."""
        with self._above as names:
            for path in names:
                name = self._name_of(path)
                try:
                    stat, xattrs = self._container.stat(name), self._container.getxattrs(name)
                except (NoSuchFile, ValueError):
                    continue
                except FormatError as error:
                    self._note(Note(path, str(error), True))
                    continue
                if stat.ftype == FileType.DIR:
                    self._note_directory(path, stat, xattrs)

    def finish(self) -> None:
        """Name all files, and give the directories their modes and times, the deepest first: a
        change below one would change its time, and its mode may forbid the change."""
        self.flush()
        self._complete()
        with self._made as records:
            for record in records:
                path, *given = pickle.loads(record[DEPTH.size :])
                try:
                    self._give(path, self._directories.get(path), *given, there=True)
                except (OSError, OverflowError) as error:
                    what = getattr(error, "strerror", None) or str(error)
                    self._note(Note(path, what, True))
        self.abort()

    def settle(self) -> None:
        """Name the files that are whole, after an error: see `abort`."""
        with contextlib.suppress(OSError):
            self.flush()

    def abort(self) -> None:
        """Drop the files that have no name."""
        if self._syncing is not None:
            self._syncing.join()
            self._batch = self._syncing.batch + self._batch
            self._syncing = None
        while self._batch:
            self._close(self._batch.pop(), keep=False)
        if self._probe >= 0:
            os.close(self._probe)
            self._probe = -1
        self._made.close()
        self._above.close()

    def _mode(self, path: bytes, entry: Stat) -> int:
        """Return the permission bits that a file gets."""
        if self._trusted or not entry.mode & SPECIAL:
            return entry.mode & PERMISSIONS
        self._note(Note(path, NO_SPECIAL, False, often=1))
        mode: int = safe_mode(entry.mode, entry.ftype == FileType.DIR)
        return mode & PERMISSIONS

    def _kept(self, path: bytes, xattrs: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Return the extended attributes that a file gets."""
        if self._trusted:
            return xattrs
        kept = {key: value for key, value in xattrs.items() if key.startswith(USER.encode())}
        if len(kept) < len(xattrs):
            self._note(Note(path, NOT_USER, False, often=1))
        return kept

    def _give(
        self,
        path: bytes,
        fd: int,
        mtime_ns: int,
        mode: int,
        uid: int,
        gid: int,
        xattrs: Mapping[bytes, bytes],
        *,
        owned: bool = False,
        there: bool = False,
    ) -> None:
        if there and self._exact is not None:
            for key in os.listxattr(fd):
                if key.startswith(self._exact) and os.fsencode(key) not in xattrs:
                    os.removexattr(fd, key)
        if self._gives_owners:
            if not owned:
                os.fchown(fd, uid, gid)  # before the mode: it clears the set-id bits
        elif (uid, gid) != (self._user, self._group):
            mode &= ~SET_ID  # these bits would grant the rights of another user
        if xattrs:
            self._set_xattrs(path, fd, xattrs)
        os.fchmod(fd, mode)
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def _set_xattrs(self, path: bytes, file: int | bytes, xattrs: Mapping[bytes, bytes]) -> None:
        """Set extended attributes. `file`: a descriptor, or a path, which may be that of a link."""
        for key, value in xattrs.items():
            try:
                os.setxattr(file, key, value, follow_symlinks=isinstance(file, int))
            except OSError as error:
                key_text = to_str(key[:SHOWN_KEY]) + "..." * (len(key) > SHOWN_KEY)
                what = f"its extended attribute {key_text}: {error.strerror}"
                self._note(Note(path, what, True, often=1))
            except ValueError as error:  # a NUL in its name
                self._note(Note(path, f"an extended attribute: {error}", True, often=1))


def stays(
    found: os.stat_result,
    entry: Entry,
    target: bytes,
    existing: Existing,
    report: UnpackReport,
    *,
    read: Callable[[], bytes],
    is_time: Callable[[int, int], bool],
) -> bool:
    """Return whether what is in the place of a file stays there, and count it; False: it is
    replaced.

    target   of a symbolic link
    read     returns the target of the link that is there
    is_time  returns whether an mtime that was found is that of an entry
    raises   FileExistsError: it is in the way
    """
    if stat.S_ISDIR(found.st_mode):
        raise FileExistsError(errno.EEXIST, DIRECTORY_THERE)
    if existing == Existing.REPLACE:
        return False
    there, wanted = found.st_mtime_ns, entry.mtime_ns
    if existing == Existing.SKIP or (
        existing == Existing.NEWER and (there >= wanted or is_time(there, wanted))
    ):
        report.kept += 1
        return True
    if existing == Existing.NEWER:
        return False
    if entry.ftype == FileType.LINK:
        equal = stat.S_ISLNK(found.st_mode) and read() == target
    else:
        regular = stat.S_ISREG(found.st_mode)
        equal = regular and found.st_size == entry.size and is_time(there, wanted)
        # An empty file may be one that a stopped run or a power cut has left: older versions gave
        # files their names first, and disks may lose contents that were not synced.
        if regular and not found.st_size and entry.size:
            private = stat.S_IMODE(found.st_mode) == PRIVATE
            if private or is_time(there, wanted):
                return False
    if not equal:
        raise FileExistsError(errno.EEXIST, THERE)
    report.unchanged += 1
    return True


def held_time(fd: int, mtime_ns: int) -> int | None:
    """Return an mtime as the filesystem of an open file rounds it; None: it takes none such."""
    try:
        os.utime(fd, ns=(mtime_ns, mtime_ns))
    except (OSError, OverflowError):
        return None
    return os.fstat(fd).st_mtime_ns


def safe_mode(mode: Any, directory: Any) -> Any:
    """Return modes without set-id and sticky bits, of one file or of arrays.

    A directory that loses the sticky bit is writable by its owner only: any user could remove the
    files of others.
    """
    return mode & ~SPECIAL & ~(SHARED * (directory & (mode & STICKY != 0)))


def status_of(short: bytes, parent: int) -> os.stat_result | None:
    """Return what is under a name in a directory; None: nothing."""
    try:
        return os.stat(short, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _temporary() -> bytes:
    return UNFINISHED_START + os.urandom(8).hex().encode()


def _lock(fd: int) -> None:
    with contextlib.suppress(OSError):  # a filesystem without locks
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_unlocked(short: bytes, parent: int) -> bool:
    """Return whether a temporary file belongs to no run. Raises OSError."""
    found = os.stat(short, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        return True
    if not stat.S_ISREG(found.st_mode):
        return False
    fd = os.open(short, LEFT, dir_fd=parent)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _publish(temporary: bytes, short: bytes, parent: int, *, replace: bool) -> None:
    """Give a file its name instead of a temporary one. Raises FileExistsError unless `replace`."""
    if not replace:
        try:
            os.link(temporary, short, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if status_of(short, parent) is not None:
                raise FileExistsError(errno.EEXIST, THERE) from None
        else:
            os.unlink(temporary, dir_fd=parent)
            return
    os.rename(temporary, short, src_dir_fd=parent, dst_dir_fd=parent)


def _open_files() -> int:
    """Return how many files of a batch may be open, after the limit was raised if that is
    permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * BATCH_FILES + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        return BATCH_FILES
    return max(min((soft - OTHER_FILES) // 2, BATCH_FILES), FEW)


def stays_below(name: bytes, target: bytes) -> bool:
    """Return whether a link stays below the root even if other such links are followed.

    So `..` may be at the start of its target only, and not more often than the link is deep.
    """
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    up = next((i for i, part in enumerate(parts) if part != b".."), len(parts))
    return not target.startswith(b"/") and up <= name.count(b"/") and b".." not in parts[up:]


def write_at(fd: int, data: bytes, offset: int) -> int:
    """Write all of `data` at an offset -> the end of it."""
    done = os.pwrite(fd, data, offset)
    while done < len(data):  # a write may be cut by a full disk or a signal
        done += os.pwrite(fd, memoryview(data)[done:], offset + done)
    return offset + done
