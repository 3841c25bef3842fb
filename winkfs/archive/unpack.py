"""Unpack: writes the files of a container into a directory.

A name becomes a path as on a mount, see `names.shown`, so nothing is written outside the directory.
A name too long for a path is left out. Every directory of a path is opened from its parent's
descriptor, links are not followed, and every file is created, never opened.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pickle
import stat
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from winkformats.errors import CorruptError, FormatError
from winkformats.extsort import SortedRecords
from winkfs.archive.items import MAX_RATIO, PERMISSIONS, USER, Note, Notes, Ratio
from winkfs.entry import Entry, FileType, Stat
from winkfs.errors import NoSuchFile, warn_of_damage
from winkfs.names import (
    OWN,
    SELF,
    literal_prefix,
    matcher,
    name_at,
    part_fault,
    shown,
    to_bytes,
    to_str,
)
from winkfs.reader import Reader
from winkfs.registry import open_silently

OPEN_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
NO_USE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
NO_DIRECTORY: Final = frozenset({errno.ENOTDIR, errno.ELOOP})
OPEN_PARENTS: Final = 64  # directories kept open
PROGRESS_FILES: Final = 256  # files between two calls of `progress`
DEPTH: Final = struct.Struct(">H")
SET_ID: Final = 0o6000
STICKY: Final = 0o1000
SHARED: Final = 0o022  # group and others may write
SPECIAL: Final = SET_ID | STICKY
THERE: Final = "is there already: --force replaces it"
LEADS_OUT: Final = "a link that leads out of the directory: left out, --same-permissions keeps it"
NOT_USER: Final = "without extended attributes but user.*: --same-permissions keeps them"
NO_SPECIAL: Final = "without its set-id and sticky bits: --same-permissions keeps them"
SHOWN_KEY: Final = 40  # bytes of the name of an attribute in a message
Progress = Callable[[int], None]
Made = TypeVar("Made")


@dataclass(slots=True)
class UnpackReport:
    """Result of an unpack: numbers of files; `bytes` of their content; `failed`: names that were
    not unpacked, and damaged places of the container."""

    files: int = 0
    directories: int = 0
    links: int = 0
    bytes: int = 0
    failed: int = 0


def unpack(
    base: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    glob: str | None = None,
    *,
    force: bool = False,
    same_permissions: bool = False,
    same_owner: bool = True,
    as_of: str | int | None = None,
    note: Notes | None = None,
    progress: Progress | None = None,
    max_ratio: int = MAX_RATIO,
) -> UnpackReport:
    """Unpack a container or a data set into a directory, which is made if it is not there.

    glob      only names that match; `*` crosses `/`
    force     replace files that exist; without it they are left as they are and noted
    same_permissions  trust the container: keep set-id and sticky bits, and links that lead out of
              the directory. Without it modes are those of the container without these bits,
              independent of the umask; a directory that loses its sticky bit is writable by its
              owner only
    same_owner  give files their owners, if we are root
    as_of     of a data set: a generation or time, see `winkfs.open`
    note      called with each file that was not unpacked, or not as it is in the container; with
              no name for damage whose file is not known; None: that is a DamageWarning
    progress  called with the number of files since the last call
    max_ratio  bytes of content written for each of the container, beyond 1 GiB; 0: any number
    raises    FileNotFoundError, FormatError (the container); OSError (the directory, a full disk)
    """
    report = UnpackReport()

    def count(noted: Note) -> None:
        report.failed += noted.failed
        if note:
            note(noted)

    match = matcher(glob) if glob is not None else None
    damages: list[str] = []

    def damaged(error: CorruptError | str) -> None:
        damages.append(str(error))
        count(Note(b"", str(error), True))

    with open_silently(base, as_of=as_of) as container:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with contextlib.closing(Directories(os.fspath(directory))) as directories:
            unpacker = Unpacker(
                directories, container, Ratio(max_ratio), report, count,
                force=force, same_permissions=same_permissions, same_owner=same_owner,
                some=match is not None,
            )  # fmt: skip
            found = container.scan(prefix=literal_prefix(glob or ""), problem=damaged)
            for done, entry in enumerate(found, 1):
                if match is None or match(entry.name):
                    unpacker.put(entry)
                if progress and done % PROGRESS_FILES == 0:
                    progress(PROGRESS_FILES)
            if match is not None:
                unpacker.complete(container)
            unpacker.finish()
        for problem in container.problems:  # a scan does not have files that no index has
            if problem not in damages:
                damaged(problem)
    if note is None:
        warn_of_damage(os.fspath(base), damages)
    return report


class Directories:
    """Directories below a root, opened by path, and created if they do not exist."""

    def __init__(self, root: str) -> None:
        self.path = root
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open: OrderedDict[bytes, int] = OrderedDict()
        self.made: Callable[[bytes], None] = lambda path: None  # called for each that is created
        # Called if a file has the path of a directory, with the path and the descriptor of the
        # parent -> whether the directory exists now.
        self.makes_room: Callable[[bytes, int], bool] = lambda path, parent: False

    def close(self) -> None:
        for fd in (*self._open.values(), self._root):
            os.close(fd)
        self._open.clear()

    def get(self, path: bytes, mode: int = 0o777) -> int:
        """Return the descriptor of a directory, valid until the next call.

        mode    for a new one; its parents are created with 0777, all less the umask
        raises  NotADirectoryError if a file or a link has its path, or that of a parent
        """
        missing = []
        at = path
        while at and at not in self._open:
            at, _, part = at.rpartition(b"/")
            missing.append(part)
        fd = self._open[at] if at else self._root
        if at:
            self._open.move_to_end(at)
        for part in reversed(missing):
            at = at + b"/" + part if at else part
            fd = self._enter(at, part, fd, mode if at == path else 0o777)
            self._open[at] = fd
            if len(self._open) > OPEN_PARENTS:
                os.close(self._open.popitem(last=False)[1])
        return fd

    def _enter(self, path: bytes, part: bytes, parent: int, mode: int) -> int:
        try:
            return self._open_at(part, parent)
        except FileNotFoundError:
            os.mkdir(part, mode, dir_fd=parent)
            self.made(path)
        except NotADirectoryError:
            if not self.makes_room(path, parent):
                raise
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


class Unpacker:
    """Writes entries below a directory. `finish` at the end gives the directories their modes."""

    def __init__(
        self,
        directories: Directories,
        container: Reader,
        ratio: Ratio,
        report: UnpackReport,
        note: Notes,
        *,
        force: bool,
        same_permissions: bool,
        same_owner: bool,
        some: bool,
    ) -> None:
        """Prepare. `some`: not all files are put, and `complete` is called afterwards."""
        self._directories = directories
        self._container, self._ratio = container, ratio
        self._most, self._stored = container.most_content, container.stored_bytes
        self._used = 0  # bytes of content that were written
        self._since = 0  # ctime of the first file that was created
        directories.makes_room = self._move_down
        self._report = report
        self._note = note
        self._force = force
        self._trusted = same_permissions
        self._made = SortedRecords(directories.path)
        self._above = SortedRecords(directories.path)
        if some:
            directories.made = self._above.add
        self._user, self._group = os.geteuid(), os.getegid()
        self._gives_owners = same_owner and self._user == 0

    def put(self, entry: Entry) -> None:
        """Write one file; a failure becomes a note. Raises OSError if the disk fails or is full."""
        name = to_bytes(entry.name)
        path = shown(name)
        if fault := part_fault(path):
            self._note(Note(name, fault, True))
            return
        try:
            try:
                self._put(path, entry)
            except FileExistsError:
                if not self._has_directory(name, path):
                    raise
                self._put(path + OWN, entry)
        except FileExistsError:
            what = THERE if not self._force else "a directory is in its place"
            self._note(Note(name, what, True, often=1))
        except (FormatError, OverflowError, ValueError) as error:  # invalid times and owners
            self._note(Note(name, str(error), True))
        except OSError as error:
            if error.errno in NO_USE:
                raise
            self._note(Note(name, error.strerror or str(error), True))

    def _has_directory(self, name: bytes, path: bytes) -> bool:
        """Return whether the path of a file is the directory of other names of the container."""
        above, _, short = path.rpartition(b"/")
        found = os.stat(short, dir_fd=self._directories.get(above), follow_symlinks=False)
        return stat.S_ISDIR(found.st_mode) and any(self._container.scan(prefix=name + b"/"))

    def _move_down(self, path: bytes, parent: int) -> bool:
        """Replace a file that was unpacked by a directory of its name, with the file in it.

        ->  False: the file was not unpacked from this container
        """
        short = path.rpartition(b"/")[2]
        found = os.stat(short, dir_fd=parent, follow_symlinks=False)
        try:
            entry = self._container.stat(name_at(path))
        except (NoSuchFile, FormatError):
            return False
        kind = stat.S_ISLNK if entry.ftype == FileType.LINK else stat.S_ISREG
        alike = kind(found.st_mode) and found.st_size == entry.size
        if not alike or entry.ftype == FileType.DIR or not 0 < self._since <= found.st_ctime_ns:
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

    def _put(self, path: bytes, entry: Entry) -> None:
        if entry.ftype == FileType.DIR:
            self._directories.get(path, 0o700)  # private until it gets its own mode at the end
            self._note_directory(path, entry, entry.xattrs)
            self._report.directories += 1
            return
        head, _, short = path.rpartition(b"/")
        if entry.ftype == FileType.LINK:
            target = entry.read()
            if not (self._trusted or stays_below(path, target)):
                self._note(Note(path, LEADS_OUT, True, often=1))
                return
            self._link(path, entry, target, self._directories.get(head))
        else:
            self._file(entry, path, short, self._directories.get(head))

    def _note_directory(self, path: bytes, stat: Stat, xattrs: Mapping[bytes, bytes]) -> None:
        """Record the metadata that `finish` gives to a directory."""
        mode, kept = self._mode(path, stat), dict(self._kept(path, xattrs))
        given = path, stat.mtime_ns, mode, stat.uid, stat.gid, kept
        self._made.add(DEPTH.pack(0xFFFF - path.count(b"/")) + pickle.dumps(given))

    def _link(self, path: bytes, entry: Entry, target: bytes, parent: int) -> None:
        short = path.rpartition(b"/")[2]
        self._create(short, parent, lambda: os.symlink(target, short, dir_fd=parent))
        if self._gives_owners:
            os.chown(short, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        if xattrs := self._kept(path, entry.xattrs):
            self._set_xattrs(path, b"/proc/self/fd/%d/%b" % (parent, short), xattrs)
        times = (entry.mtime_ns, entry.mtime_ns)
        os.utime(short, ns=times, dir_fd=parent, follow_symlinks=False)
        self._report.links += 1

    def _file(self, entry: Entry, path: bytes, short: bytes, parent: int) -> None:
        pieces, used = entry.pieces(), self._used
        piece = next(pieces, None)  # damage raises before the file is created
        fd = self._create(short, parent, lambda: os.open(short, CREATE, 0o600, dir_fd=parent))
        try:
            try:
                end = 0
                while piece is not None:
                    self._claim(len(piece[1]))
                    end = write_at(fd, piece[1], piece[0])
                    piece = next(pieces, None)
                if end < entry.size:
                    os.ftruncate(fd, entry.size)  # a hole
            except BaseException:
                os.unlink(short, dir_fd=parent)  # no partial file is left
                self._used = used
                raise
            xattrs = self._kept(path, entry.xattrs) if entry.xattrs else {}
            mode = self._mode(path, entry)
            self._give(path, fd, entry.mtime_ns, mode, entry.uid, entry.gid, xattrs)
        finally:
            os.close(fd)
        self._report.files += 1
        self._report.bytes += entry.size

    def _claim(self, size: int) -> None:
        """Count bytes of content. Raises FormatError if they are more than the container can have.

        Content exceeds the bytes of a container only if extents share an entry, or if it is
        compressed: then a small container could fill any disk.
        """
        self._used += size
        if self._used > self._most:
            raise FormatError("more content than the container has bytes: left out")
        if self._ratio.is_exceeded(self._used, self._stored):
            raise FormatError(self._ratio.reason(self._stored))

    def _create(self, short: bytes, parent: int, make: Callable[[], Made]) -> Made:
        """Create a file that must not exist; with `force`, remove an existing one first."""
        try:
            made = make()
            if not self._since:
                self._since = os.stat(short, dir_fd=parent, follow_symlinks=False).st_ctime_ns
            return made
        except FileExistsError:
            if not self._force:
                raise
        try:
            os.unlink(short, dir_fd=parent)
        except IsADirectoryError:
            raise FileExistsError(errno.EEXIST, "a directory is in its place") from None
        return make()

    def complete(self, container: Reader) -> None:
        """Record modes and times of directories that were created only for chosen files."""
        with self._above as names:
            for path in names:
                name = name_at(path)
                try:
                    stat, xattrs = container.stat(name), container.getxattrs(name)
                except NoSuchFile:
                    continue
                except FormatError as error:
                    self._note(Note(path, str(error), True))
                    continue
                if stat.ftype == FileType.DIR:
                    self._note_directory(path, stat, xattrs)

    def finish(self) -> None:
        """Give the directories their modes and times, the deepest first: a change below one would
        change its time, and its mode may forbid the change."""
        with self._made as records:
            for record in records:
                path, *given = pickle.loads(record[DEPTH.size :])
                try:
                    self._give(path, self._directories.get(path), *given)
                except (OSError, OverflowError) as error:
                    what = getattr(error, "strerror", None) or str(error)
                    self._note(Note(path, what, True))

    def _mode(self, path: bytes, entry: Stat) -> int:
        """Return the permission bits that a file gets."""
        if self._trusted or not entry.mode & SPECIAL:
            return entry.mode & PERMISSIONS
        self._note(Note(path, NO_SPECIAL, False, often=1))
        mode = entry.mode & ~SPECIAL
        if entry.ftype == FileType.DIR and entry.mode & STICKY:
            mode &= ~SHARED  # without that bit any user could remove the files of others
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
    ) -> None:
        if self._gives_owners:
            os.fchown(fd, uid, gid)  # before the mode: it clears the set-id bits
        elif (uid, gid) != (self._user, self._group):
            mode &= ~SET_ID  # these bits would grant the rights of another user
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
