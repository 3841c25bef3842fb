"""A directory tree as a stream of items: every file, link and directory below it, by name.

Nothing is kept but the names of the directories on the way down, so the size of the tree does not
matter. Directories are opened from their parent's descriptor: depth does not matter either, and no
link is followed.

The compiled path reads plain files and directories by the hundred, in threads, while those before
are stored: see `Tree._ahead`. What is not plain, and all without it, is read by `Tree._read`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice, product
from typing import IO, Final

from winkformats import native
from winkformats.disk.pagecache import OnceFile, ReadOnce
from winkformats.extsort import SortedRecords
from winkfs.archive.ahead import DIR, FILE, LINK, OTHER, Ahead, Found, Walk
from winkfs.archive.items import (
    PERMISSIONS,
    SPARSE_BYTES,
    STREAM_BYTES,
    UNFINISHED,
    UNFINISHED_START,
    USER,
    Block,
    Chooser,
    Item,
    Large,
    Meta,
    Note,
    Notes,
    Seen,
    Suspect,
    Unreadable,
    clamped,
    in_time_order,
)
from winkfs.container.bulk import Row
from winkfs.container.ondisk.inode import INT64
from winkfs.entry import FileType
from winkfs.names import (
    DATA,
    MAX_NAME,
    MAX_PATH,
    PARTIAL,
    SUFFIXES,
    TEMPORARIES,
    Choose,
    path_fault,
    to_str,
)
from winkfs.units import LAST, nearest_ns

OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
OPEN_DIR: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
MARKS: Final = (None, False, True)
LEFT_BY_UNPACK: Final = "a temporary file of unpack: left out"
CHANGED: Final = "changed while it was read"
KINDS: Final = {stat.S_IFREG: FILE, stat.S_IFDIR: DIR, stat.S_IFLNK: LINK}
FTYPES: Final = {FILE: FileType.FILE, DIR: FileType.DIR, LINK: FileType.LINK, OTHER: 0}
UNHELD: Final = {
    stat.S_IFBLK: "a device: left out",
    stat.S_IFCHR: "a device: left out",
    stat.S_IFIFO: "a fifo: left out",
    stat.S_IFSOCK: "a socket: left out",
}
NAMES_BYTES: Final = 1 << 16
LISTED_NAMES: Final = 1024  # of a directory, taken at once
NO_NAME: Final = b"\0"
BLOCK: Final = 512  # bytes that st_blocks counts
OWN: Final = frozenset(
    os.fsencode(partial + suffix + end)
    for partial, suffix, end in product(("", PARTIAL), SUFFIXES, ("", *TEMPORARIES))
)
"""What follows BASE in the names of a container's files."""


Facts = tuple[int, int, int, int, int, int, int]
"""Of a file: size, mtime and ctime in nanoseconds, FileType, mode, uid, gid."""
Chosen = tuple[bytes, Seen, bool | None]
"""With its kind; see `items.Chooser`."""


class OwnFiles:
    """Recognises the files of the container that is being written, if it is in the tree.

    prefix  common prefix of their names
    data    (device, inode) of BASE.data, which may be a link, or have further names
    """

    def __init__(self, base: str) -> None:
        """Prepare. Raises OSError if the directory of `base` does not exist."""
        head, self.prefix = os.path.split(os.fsencode(base))
        self._directory = _identity(os.stat(head or b"."))
        self.data: tuple[int, int] | None = None
        with contextlib.suppress(FileNotFoundError):
            self.data = _identity(os.stat(base + DATA))

    def hold(self, path: bytes, directory: int, kind: bytes) -> bool:
        """Return whether it is one of these files. `path`: from the open directory."""
        head, _, short = path.rpartition(b"/")
        if not short.startswith(self.prefix) or short[len(self.prefix) :] not in OWN:
            return False
        return _identity(os.stat(head or b".", dir_fd=directory)) == self._directory


class OwnFolder:
    """Recognises the data set that is being written, if it is in the tree."""

    prefix = b""
    data = None

    def __init__(self, root: str) -> None:
        self._identity = _identity(os.stat(root))

    def hold(self, path: bytes, directory: int, kind: bytes) -> bool:
        """Return whether it is the folder. `path`: from the open directory."""
        if kind != DIR:
            return False
        return _identity(os.stat(path, dir_fd=directory, follow_symlinks=False)) == self._identity


class OwnFile:
    """Recognises a file, if it is in the tree."""

    data = None

    def __init__(self, path: str) -> None:
        self.prefix = os.path.basename(os.fsencode(path))
        self._identity = _identity(os.stat(path))

    def hold(self, path: bytes, directory: int, kind: bytes) -> bool:
        """Return whether it is the file. `path`: from the open directory."""
        status = os.stat(path, dir_fd=directory, follow_symlinks=False)
        return kind == FILE and _identity(status) == self._identity


class Tree:
    """The tree below `root`, as a source of `pack`.

    note        called with files that cannot be read or stored
    own         files to leave out silently
    xattrs      take all extended attributes, not only those called user.*
    exclude     names to leave out, with all below them
    include     take only these; directories above them are not taken
    names       take only these, in the order given, and nothing below a directory among them
    scratch     a directory for temporary files
    raises      OSError if the root is not a readable directory
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        note: Notes,
        scratch: str,
        *,
        own: OwnFiles | OwnFolder | OwnFile | None = None,
        xattrs: bool = False,
        exclude: Choose | None = None,
        include: Choose | None = None,
        names: Iterable[bytes] | None = None,
    ) -> None:
        self._root = os.fspath(root)
        self._note = note
        self._scratch = scratch
        self._own = own
        self._xattrs = XAttrs(everything=xattrs)
        self._read_once = ReadOnce()
        self._exclude, self._include = exclude, include
        self._names = names

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        if by_mtime:
            yield from self.changed(None, by_mtime=True)  # type: ignore[misc]  # no suspects
            return
        for some in self.blocks():
            yield from some.rows() if isinstance(some, Block) else (some,)

    def blocks(self) -> Generator[Item | Block, None, None]:
        """Yield all files; the compiled path yields plain ones as columns."""
        with self._opened() as root:
            if native.code is None:
                yield from filter(None, map(self._read, self._found(root)))
            else:
                yield from self._ahead(partial(self._found, root))

    def changed(
        self, update: Chooser | None, *, by_mtime: bool
    ) -> Generator[Item | Suspect, None, None]:
        """Yield the files that `update` chooses; None: all."""
        with self._opened() as root:
            chosen = self._chosen(root, update)
            if native.code is not None and not by_mtime:
                yield from self._changed_ahead(root, chosen)
                return
            for kind, seen, compare in self._sorted(chosen) if by_mtime else chosen:
                mtime_ns = seen.mtime_ns if by_mtime else None
                if item := self._read(_found(root, kind, seen), mtime_ns):
                    yield item if compare is None else Suspect(item, compare)

    def _changed_ahead(
        self, root: int, chosen: Iterator[Chosen]
    ) -> Generator[Item | Suspect, None, None]:
        """Yield the chosen files; the next ones are read while these are compared and stored."""
        marks: deque[tuple[bytes, bool | None]] = deque()  # of files that are being read

        def walk(leave: Callable[[int], None]) -> Generator[Found, None, None]:
            for kind, seen, compare in chosen:
                marks.append((seen.name, compare))
                yield _found(root, kind, seen)

        for some in self._ahead(walk):
            for item in some.rows() if isinstance(some, Block) else (some,):
                name, compare = marks.popleft()
                while name != item.name:  # that one could not be read
                    name, compare = marks.popleft()
                yield item if compare is None else Suspect(item, compare)

    def sizes(
        self,
        update: Chooser | None = None,
        same: Callable[[Suspect], bool] = lambda suspect: False,
    ) -> Generator[Seen, None, None]:
        """Yield the files to be packed, before they are read; size 0 for anything but a file. Their
        names are those that another Tree takes as `names`.

        same    returns whether a file that `update` suspects is unchanged
        """
        with self._opened() as root:
            for kind, seen, compare in self._chosen(root, update):
                if compare is not None:
                    item = self._read(_found(root, kind, seen), None)
                    try:
                        if item is None or same(Suspect(item, compare)):
                            continue
                    finally:
                        if isinstance(item, Large):
                            item.file.close()
                yield seen

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    def _chosen(self, root: int, update: Chooser | None) -> Iterator[Chosen]:
        files = self._seen(root)
        if update is not None:
            return update.choose(files)
        return ((kind, seen, None) for kind, seen in files)

    def listed(
        self, *, since: int | None = 0
    ) -> Generator[tuple[bytes, Facts, dict[bytes, bytes] | None], None, None]:
        """Yield names, facts and extended attributes of the files that a container can hold, and
        note all others. No content is read.

        since  ns: extended attributes only of files with this ctime or a later one; None: of none
        """
        with self._opened() as root:
            for found, status in self._stated(root):
                kind = found.kind
                if kind == OTHER:
                    self._note(Note(found.name, _unheld(status), False))
                    continue
                xattrs, ctime = None, status.st_ctime_ns
                if since is not None and ctime >= since:
                    try:
                        path = b"/proc/self/fd/%d/%b" % (found.fd, found.path)
                        xattrs = self._xattrs.of(path, status)
                    except OSError as error:
                        self._failed(found.name, error)
                mtime = status.st_mtime_ns
                mtime = mtime if -LAST <= mtime <= LAST else nearest_ns(mtime)  # rarely a call
                facts = (
                    status.st_size if kind != DIR else 0, mtime, ctime,
                    FTYPES[kind], status.st_mode & PERMISSIONS, status.st_uid, status.st_gid,
                )  # fmt: skip
                yield found.name, facts, xattrs

    def _seen(self, root: int) -> Iterator[tuple[bytes, Seen]]:
        """Yield all files, with their kinds."""
        for found, status in self._stated(root):
            kind = found.kind
            size = status.st_size if kind in (FILE, LINK) else 0
            mtime = nearest_ns(status.st_mtime_ns)
            yield kind, Seen(found.name, FTYPES[kind], size, mtime, status.st_ctime_ns)

    def _stated(self, root: int) -> Iterator[tuple[Found, os.stat_result]]:
        for found in self._found(root):
            try:
                status = os.stat(found.path, dir_fd=found.fd, follow_symlinks=False)
            except OSError as error:
                self._failed(found.name, error)
                continue
            yield found, status

    def _sorted(self, files: Iterator[Chosen]) -> Iterator[Chosen]:
        """Sort by mtime. Only names and times are kept of the files."""
        found = (
            (seen.mtime_ns, kind + bytes([MARKS.index(compare)]) + seen.name)
            for kind, seen, compare in files
        )
        for mtime, record in in_time_order(self._scratch, found):
            kind, name = record[:1], record[2:]
            yield kind, Seen(name, FTYPES[kind], 0, mtime, None), MARKS[record[1]]

    # What is there

    def _found(
        self, root: int, leave: Callable[[int], None] = os.close
    ) -> Generator[Found, None, None]:
        """Walk the tree. `leave`: called with the descriptor of each directory that the walk has
        left."""
        return self._walk(root, leave) if self._names is None else self._listed(root, self._names)

    def _walk(self, root: int, leave: Callable[[int], None]) -> Generator[Found, None, None]:
        stack = [(root, b"", self._entries(root, b"."))]
        exclude, include = self._exclude, self._include
        left_out = (self._own.prefix if self._own else NO_NAME, UNFINISHED_START)
        try:
            while stack:
                fd, prefix, entries = stack[-1]
                for entry in entries:
                    short, kind = entry[:-2], entry[-1:]
                    name = prefix + short
                    if (exclude or short.startswith(left_out)) and self._leave_out(
                        name, short, fd, kind
                    ):
                        continue
                    if include is None or include(to_str(name)):
                        yield Found(short, fd, name, kind)
                    if kind == DIR and (below := self._enter(name, short, fd)) is not None:
                        stack.append((below, name + b"/", self._entries(below, name)))
                        break
                else:
                    stack.pop()
                    if stack:
                        leave(fd)
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
        """Yield the names in a directory in byte order, each followed by NUL and its kind."""
        if native.code is not None and (listed := native.code.names_in(fd)) is not None:
            yield from listed
            return
        with SortedRecords(self._scratch) as records:
            try:
                with os.scandir(fd) as entries:
                    while some := list(islice(entries, LISTED_NAMES)):
                        names = os.fsencode("\0".join([entry.name for entry in some]))
                        kinds = map(_kind, some)
                        pairs = zip(names.split(b"\0"), kinds, strict=True)
                        records.extend([name + b"\0" + kind for name, kind in pairs])
            except OSError as error:
                self._failed(name, error)
            yield from records

    def _listed(self, root: int, names: Iterable[bytes]) -> Generator[Found, None, None]:
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
            wanted = self._include is None or self._include(to_str(name))
            if wanted and not self._leave_out(name, name, root, kind):
                yield Found(name, root, name, kind)

    def _leave_out(self, name: bytes, path: bytes, fd: int, kind: bytes) -> bool:
        if self._exclude and self._exclude(to_str(name)):
            return True
        started = UNFINISHED_START in path and kind != DIR
        if started and UNFINISHED.fullmatch(path.rpartition(b"/")[2]):
            self._note(Note(name, LEFT_BY_UNPACK, False, often=1))
            return True
        try:
            return self._own is not None and self._own.hold(path, fd, kind)
        except OSError:  # it was removed, which is reported when it is read
            return False

    # What is in it

    def _ahead(self, walk: Walk) -> Generator[Item | Block, None, None]:
        """Yield the files of a walk; the next ones are read while these are stored."""
        leave = self._own.data if self._own else None
        return Ahead(self._read, xattrs=self._xattrs.everything, leave=leave).items(walk)

    def _read(self, found: Found, mtime_ns: int | None = None) -> Item | None:
        """Read a file -> the item, or None after a note. `mtime_ns`: the mtime to store."""
        if len(found.name) > MAX_NAME:
            what = f"its name has {len(found.name):,} bytes, a container takes {MAX_NAME:,}"
            self._note(Note(found.name, what, True))
            return None
        read = self._file if found.kind == FILE else self._no_file
        try:
            if len(found.path) > MAX_PATH:
                with _nearer(found) as near:
                    return read(near, mtime_ns)
            return read(found, mtime_ns)
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
            mtime = self._mtime(found.name, before, mtime_ns)
            mode, uid, gid = before.st_mode & PERMISSIONS, before.st_uid, before.st_gid
            xattrs = self._xattrs.of(fd, before)
            sparse = (
                size >= SPARSE_BYTES and before.st_blocks * BLOCK < size and _has_hole(fd, size)
            )
            if size >= STREAM_BYTES or sparse:
                watched = WatchedFile(fd, before, found.name, self._note, sparse=sparse)
                fd = -1
                return Large(found.name, watched, size, Meta(mtime, mode, uid, gid, xattrs), sparse)
            data = self._read_once(fd, size) if size else b""
            if _state(os.fstat(fd)) != _state(before) or len(data) != size:
                self._note(Note(found.name, CHANGED, True))
        finally:
            if fd >= 0:
                os.close(fd)
        return Row(found.name, data, mtime, FileType.FILE, mode, uid, gid, xattrs)

    def _no_file(self, found: Found, mtime_ns: int | None) -> Row | None:
        path, fd, name, kind = found
        status = os.stat(path, dir_fd=fd, follow_symlinks=False)
        if kind == OTHER:
            self._note(Note(name, _unheld(status), False))
            return None
        mtime = self._mtime(name, status, mtime_ns)
        target = os.readlink(path, dir_fd=fd) if kind == LINK else b""
        mode = None if kind == LINK else status.st_mode & PERMISSIONS
        xattrs = self._xattrs.of(b"/proc/self/fd/%d/%b" % (fd, path), status)
        owner = status.st_uid, status.st_gid
        return Row(name, target, mtime, FTYPES[kind], mode, *owner, xattrs)

    def _mtime(self, name: bytes, status: os.stat_result, given: int | None) -> int:
        """Return the mtime of a file, or the given one; note one that had to be clamped."""
        nearest = nearest_ns(status.st_mtime_ns)
        if nearest != status.st_mtime_ns:
            self._note(clamped(name))
        return nearest if given is None else given

    def _failed(self, name: bytes, error: OSError) -> None:
        what = "vanished before it was read" if error.errno == errno.ENOENT else error.strerror
        self._note(Note(name, what or str(error), True))


class XAttrs:
    """Reads extended attributes: those called user.*, or all. Remembers the filesystems without
    any."""

    def __init__(self, *, everything: bool) -> None:
        self.everything = everything
        self._prefix = "" if everything else USER
        self._without: set[int] = set()

    def of(self, file: int | bytes, status: os.stat_result) -> dict[bytes, bytes] | None:
        """Return the attributes of an open file, or of a path, whose links are not followed; None:
        it has none."""
        if status.st_dev in self._without or (stat.S_ISLNK(status.st_mode) and self._prefix):
            return None  # the kernel stores no user.* for links
        found, follow = {}, isinstance(file, int)
        try:
            names = os.listxattr(file, follow_symlinks=follow)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._without.add(status.st_dev)
            return None
        for name in names:
            if name.startswith(self._prefix):
                with contextlib.suppress(FileNotFoundError):
                    found[os.fsencode(name)] = os.getxattr(file, name, follow_symlinks=follow)
        return found or None


class WatchedFile:
    """A large file with its size at opening; notes if it changes meanwhile."""

    def __init__(
        self, fd: int, before: os.stat_result, name: bytes, note: Notes, *, sparse: bool
    ) -> None:
        self._file = OnceFile(fd)
        self._before, self._name, self._note = before, name, note
        self._sparse = sparse
        self._left = before.st_size
        self._data = 0 if sparse else self._left  # bytes up to the next hole; 0: not known
        self._short = False  # whether it ended before its size; not when the reader gave up

    def read(self, size: int = -1, /) -> bytes:
        wanted = min(self._left, self._data or self._left)
        try:
            data = self._file.read(min(size, wanted) if size >= 0 else wanted)
        except OSError as error:
            raise Unreadable(error.strerror) from error
        self._left -= len(data)
        self._data = max(self._data - len(data), 0)
        self._short = not data and self._left > 0
        return data

    def skip_hole(self) -> int:
        size = self._before.st_size
        at = size - self._left
        if self._data or not self._left:
            return 0
        fd = self._file.fileno()
        try:
            start = min(_seek_data(fd, at), size)
            stop = min(os.lseek(fd, start, os.SEEK_HOLE), size) if start < size else size
            os.lseek(fd, start, os.SEEK_SET)
        except OSError as error:
            raise Unreadable(error.strerror) from error
        self._left, self._data = size - start, stop - start
        return start - at

    def rewind(self) -> bool:
        os.lseek(self._file.fileno(), 0, os.SEEK_SET)
        self._left, self._short = self._before.st_size, False
        self._data = 0 if self._sparse else self._left
        return True

    def close(self) -> None:
        if self._file.closed:
            return
        changed = self._short or _state(os.fstat(self._file.fileno())) != _state(self._before)
        self._file.close()
        if changed:
            self._note(Note(self._name, CHANGED, True))


def listed_names(file: IO[bytes], *, null: bool = False) -> Iterator[bytes]:
    """Yield the names in a list: one a line, or each ended by NUL, as by `find -print0`.

    null    each is ended by NUL; otherwise if there is one in the first 64 KiB
    """
    data = file.read(NAMES_BYTES)
    end = b"\0" if null or b"\0" in data else b"\n"
    rest = b""
    while data:
        *whole, rest = (rest + data).split(end)
        yield from filter(None, whole)
        data = file.read(NAMES_BYTES)
    if rest:
        yield rest


@contextlib.contextmanager
def _nearer(found: Found) -> Iterator[Found]:
    """Yield the name with a directory so near that the kernel accepts the rest of the path."""
    fd, path = found.fd, found.path
    try:
        while len(path) > MAX_PATH:
            cut = path.rindex(b"/", 0, MAX_PATH)
            above, fd = fd, os.open(path[:cut], OPEN_DIR, dir_fd=fd)
            if above != found.fd:
                os.close(above)
            path = path[cut + 1 :]
        yield Found(path, fd, found.name, found.kind)
    finally:
        if fd != found.fd:
            os.close(fd)


def _has_hole(fd: int, size: int) -> bool:
    try:
        return os.lseek(fd, 0, os.SEEK_HOLE) < size
    finally:
        os.lseek(fd, 0, os.SEEK_SET)


def _seek_data(fd: int, at: int) -> int:
    """Return the offset of the next data; INT64 if there are none."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return INT64


def _kind(entry: os.DirEntry[str]) -> bytes:
    if entry.is_file(follow_symlinks=False):
        return FILE
    if entry.is_dir(follow_symlinks=False):
        return DIR
    return LINK if entry.is_symlink() else OTHER


def _unheld(status: os.stat_result) -> str:
    """Return why no container can hold a file."""
    return UNHELD.get(stat.S_IFMT(status.st_mode), "a file of an unknown kind: left out")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _found(root: int, kind: bytes, seen: Seen) -> Found:
    """Return a Found by its name from the root: the directory of the walk may be closed."""
    return Found(seen.name, root, seen.name, kind)
