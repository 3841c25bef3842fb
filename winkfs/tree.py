"""A directory tree as a stream of items: every file, link and directory below it, by name.

Nothing is kept but the names of the directories on the way down, so the size of the tree does not
matter. Directories are opened from their parent's descriptor: depth does not matter either, and no
link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import product
from typing import BinaryIO, Final, NamedTuple

from winkfs.arguments import nearest_ns
from winkfs.basepath import DATA, PARTIAL, SUFFIXES, TEMPORARIES
from winkfs.bulkput import Row
from winkfs.inode import FileType
from winkfs.items import LARGE, PERMISSIONS, Item, Large, Meta, Note, Notes, Unreadable
from winkfs.names import MAX_NAME, path_fault, text
from winkfs.spill import SortedRecords

OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
OPEN_DIR: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
FILE, DIR, LINK, OTHER = b"f", b"d", b"l", b"o"
BY_MTIME: Final = struct.Struct(">Q")
BIAS: Final = 1 << 63  # makes times before 1970 sort first
CHANGED: Final = "changed while it was read"
KINDS: Final = {stat.S_IFREG: FILE, stat.S_IFDIR: DIR, stat.S_IFLNK: LINK}
UNHELD: Final = {
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
}
CHUNK: Final = 1 << 16
OWN: Final = frozenset(
    os.fsencode(partial + suffix + end)
    for partial, suffix, end in product(("", PARTIAL), SUFFIXES, ("", *TEMPORARIES))
)
"""What follows BASE in the names of a container's files."""


class Found(NamedTuple):
    """A name in the tree that is not read yet."""

    path: bytes  # from the directory `fd`
    fd: int
    name: bytes  # from the root
    kind: bytes


class OwnFiles:
    """Recognises the files of the container that is being written, should it lie in the tree.

    data    (device, inode) of BASE.data, which may be a link, or have another name, too
    """

    def __init__(self, base: str) -> None:
        """Raises OSError where the directory of `base` is not there."""
        head, self._short = os.path.split(os.fsencode(base))
        self._directory = _identity(os.stat(head or b"."))
        self.data: tuple[int, int] | None = None
        with contextlib.suppress(FileNotFoundError):
            self.data = _identity(os.stat(base + DATA))

    def hold(self, path: bytes, directory: int, kind: bytes) -> bool:
        """`path` is taken from the open directory."""
        head, _, short = path.rpartition(b"/")
        if not short.startswith(self._short) or short[len(self._short) :] not in OWN:
            return False
        return _identity(os.stat(head or b".", dir_fd=directory)) == self._directory


class OwnFolder:
    """Recognises the data set that is being written, should it lie in the tree."""

    data = None

    def __init__(self, root: str) -> None:
        self._identity = _identity(os.stat(root))

    def hold(self, path: bytes, directory: int, kind: bytes) -> bool:
        """`path` is taken from the open directory."""
        if kind != DIR:
            return False
        return _identity(os.stat(path, dir_fd=directory, follow_symlinks=False)) == self._identity


class Tree:
    """The tree below `root`.

    note        hears of what could not be read or cannot be held
    own         files to leave out silently
    exclude     names to leave out, with all below them
    names       take only these, in the order given, and nothing below a directory among them
    scratch     a directory for temporary files
    raises      OSError where the root is no readable directory
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        note: Notes,
        scratch: str,
        *,
        own: OwnFiles | OwnFolder | None = None,
        exclude: Callable[[str], object] | None = None,
        names: Iterable[bytes] | None = None,
    ) -> None:
        self._root = os.fspath(root)
        self._note = note
        self._scratch = scratch
        self._own = own
        self._exclude = exclude
        self._names = names

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = self._walk(fd) if self._names is None else self._listed(fd, self._names)
            if by_mtime:
                yield from self._by_mtime(fd, found)
            else:
                yield from filter(None, (self._read(f, None) for f in found))
        finally:
            os.close(fd)

    def sizes(self) -> Generator[tuple[bytes, int, int], None, None]:
        """(name, bytes, mtime in nanoseconds) of all that `items` gives; bytes 0 of what is no
        file. The names are those that another Tree takes as `names`."""
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for path, at, name, kind in (
                self._walk(fd) if self._names is None else self._listed(fd, self._names)
            ):
                try:
                    status = os.stat(path, dir_fd=at, follow_symlinks=False)
                except OSError as error:
                    self._failed(name, error)
                    continue
                yield name, status.st_size if kind == FILE else 0, _mtime(status)
        finally:
            os.close(fd)

    def _by_mtime(self, root: int, found: Iterable[Found]) -> Iterator[Item]:
        with SortedRecords(self._scratch) as records:
            for path, fd, name, kind in found:
                try:
                    mtime = _mtime(os.stat(path, dir_fd=fd, follow_symlinks=False))
                except OSError as error:
                    self._failed(name, error)
                    continue
                records.add(BY_MTIME.pack(mtime + BIAS) + kind + name)
            for record in records:
                (mtime,) = BY_MTIME.unpack_from(record)
                name = record[9:]
                item = self._read(Found(name, root, name, record[8:9]), mtime - BIAS)
                if item:
                    yield item

    # What is there

    def _walk(self, root: int) -> Iterator[Found]:
        stack = [(root, b"", self._entries(root, b"."))]
        try:
            while stack:
                fd, prefix, entries = stack[-1]
                entry = next(entries, None)
                if entry is None:
                    stack.pop()
                    if stack:
                        os.close(fd)
                    continue
                short, kind = entry[:-2], entry[-1:]
                name = prefix + short
                if self._leave_out(name, short, fd, kind):
                    continue
                yield Found(short, fd, name, kind)
                if kind == DIR and (below := self._enter(name, short, fd)) is not None:
                    stack.append((below, name + b"/", self._entries(below, name)))
        finally:
            for fd, _, entries in stack:
                entries.close()
                if fd != root:
                    os.close(fd)

    def _enter(self, name: bytes, short: bytes, parent: int) -> int | None:
        try:
            return os.open(short, OPEN_DIR, dir_fd=parent)
        except OSError as error:
            self._failed(name, error)
            return None

    def _entries(self, fd: int, name: bytes) -> Generator[bytes, None, None]:
        """The names in a directory in byte order, each followed by NUL and its kind."""
        with SortedRecords(self._scratch) as records:
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        records.add(os.fsencode(entry.name) + b"\0" + _kind(entry))
            except OSError as error:
                self._failed(name, error)
            yield from records

    def _listed(self, root: int, names: Iterable[bytes]) -> Iterator[Found]:
        for listed in names:
            name = listed.removeprefix(b"./").rstrip(b"/")
            if name == b".":  # the root has no entry; `find` names it first
                continue
            if fault := path_fault(name):
                self._note(Note(listed, f"{fault}: give it from the packed directory on", True))
                continue
            try:
                mode = os.stat(name, dir_fd=root, follow_symlinks=False).st_mode
                kind = KINDS.get(stat.S_IFMT(mode), OTHER)
            except OSError as error:
                self._failed(name, error)
                continue
            if not self._leave_out(name, name, root, kind):
                yield Found(name, root, name, kind)

    def _leave_out(self, name: bytes, path: bytes, fd: int, kind: bytes) -> bool:
        if self._exclude and self._exclude(text(name)):
            return True
        try:
            return self._own is not None and self._own.hold(path, fd, kind)
        except OSError:  # gone, which is said when it is read
            return False

    # What is in it

    def _read(self, found: Found, mtime_ns: int | None) -> Item | None:
        """-> the file, or None and a note. `mtime_ns`: the time to give it, whatever it has now."""
        if len(found.name) > MAX_NAME:
            what = f"its name has {len(found.name):,} bytes, a container takes {MAX_NAME:,}"
            self._note(Note(found.name, what, True))
            return None
        try:
            if found.kind == FILE:
                return self._file(found, mtime_ns)
            return self._no_file(found, mtime_ns)
        except OSError as error:
            self._failed(found.name, error)
            return None

    def _file(self, found: Found, mtime_ns: int | None) -> Item | None:
        fd = os.open(found.path, OPEN_FILE, dir_fd=found.fd)
        try:
            before = os.fstat(fd)
            if self._own and _identity(before) == self._own.data:
                return None
            size = before.st_size
            mtime = _mtime(before) if mtime_ns is None else mtime_ns
            if size >= LARGE:
                watched = WatchedFile(fd, before, found.name, self._note)
                fd = -1
                return Large(found.name, watched, size, _meta(before, mtime))
            data = os.read(fd, size) if size else b""
            while len(data) < size and (more := os.read(fd, size - len(data))):
                data += more  # a network filesystem may give less than was asked for
            if _state(os.fstat(fd)) != _state(before) or len(data) != size:
                self._note(Note(found.name, CHANGED, True))
        finally:
            if fd >= 0:
                os.close(fd)
        mode = before.st_mode & PERMISSIONS
        return Row(found.name, data, mtime, FileType.FILE, mode, before.st_uid, before.st_gid)

    def _no_file(self, found: Found, mtime_ns: int | None) -> Row | None:
        path, fd, name, kind = found
        status = os.stat(path, dir_fd=fd, follow_symlinks=False)
        meta = _meta(status, _mtime(status) if mtime_ns is None else mtime_ns)
        if kind == DIR:
            return Row(name, b"", meta.mtime_ns, FileType.DIR, meta.mode, meta.uid, meta.gid)
        if kind == LINK:
            target = os.readlink(path, dir_fd=fd)
            return Row(name, target, meta.mtime_ns, FileType.LINK, None, meta.uid, meta.gid)
        what = UNHELD.get(stat.S_IFMT(status.st_mode), "a file of an unknown kind")
        self._note(Note(name, what, False))
        return None

    def _failed(self, name: bytes, error: OSError) -> None:
        what = "vanished before it was read" if error.errno == errno.ENOENT else error.strerror
        self._note(Note(name, what or str(error), True))


class WatchedFile:
    """A large file, as long as it was when it was opened; notes if it changes meanwhile."""

    def __init__(self, fd: int, before: os.stat_result, name: bytes, note: Notes) -> None:
        self._file = open(fd, "rb", buffering=0)  # noqa: SIM115 - closed in close
        self._before, self._name, self._note = before, name, note
        self._left = before.st_size
        self._short = False  # whether it ended before its size; not when the reader gave up

    def read(self, size: int = -1, /) -> bytes:
        try:
            data = self._file.read(min(size, self._left) if size >= 0 else self._left)
        except OSError as error:
            raise Unreadable(error.strerror) from error
        self._left -= len(data)
        self._short = not data and self._left > 0
        return data

    def close(self) -> None:
        changed = self._short or _state(os.fstat(self._file.fileno())) != _state(self._before)
        self._file.close()
        if changed:
            self._note(Note(self._name, CHANGED, True))


def listed_names(file: BinaryIO) -> Iterator[bytes]:
    """The names in a list: one a line, or each ended by NUL, as `find -print0` writes them."""
    data = file.read(CHUNK)
    end = b"\0" if b"\0" in data else b"\n"
    rest = b""
    while data:
        *whole, rest = (rest + data).split(end)
        yield from filter(None, whole)
        data = file.read(CHUNK)
    if rest:
        yield rest


def _kind(entry: os.DirEntry[str]) -> bytes:
    if entry.is_file(follow_symlinks=False):
        return FILE
    if entry.is_dir(follow_symlinks=False):
        return DIR
    return LINK if entry.is_symlink() else OTHER


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _mtime(status: os.stat_result) -> int:
    return nearest_ns(status.st_mtime_ns)


def _meta(status: os.stat_result, mtime_ns: int) -> Meta:
    return Meta(mtime_ns, status.st_mode & PERMISSIONS, status.st_uid, status.st_gid)
