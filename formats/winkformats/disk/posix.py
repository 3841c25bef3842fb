"""Disk of this machine.

    FileStorage      one open file: positional reads and writes, mappings, the page cache
    DeviceStorage    a block device
    PosixDirectory   files by name
    PosixFolder      the folder of a store
    FileLock         a lock on a file that no child process inherits

Page-cache policy
    cached      ordinary reads and writes; the kernel keeps the pages
    uncached    the pages that a pass touches do not stay. Writes: RWF_DONTCACHE if kernel and file
                system know it (6.14+); a window that slides behind the write, with sync_file_range
                and POSIX_FADV_DONTNEED, bounds the dirty pages. Reads (`bulk`): ordinary reads,
                followed by DONTNEED for the pages that were not resident before. Sparse views:
                `drop_seen` does this for all pages of the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import time
import warnings
import weakref
from collections.abc import Sequence
from itertools import repeat
from typing import Final, Self

from winkformats.disk import pagecache
from winkformats.disk.pagecache import PAGE, BulkReader, Dropper
from winkformats.disk.room import has_ample_memory
from winkformats.disk.storage import Buffer, Directory, FileType, Info, Storage
from winkformats.disk.turn import FileTurn

RWF_DONTCACHE: Final = pagecache.RWF_DONTCACHE
WRITE_WINDOW: Final = 16 << 20  # bytes of uncached writes that wait for the disk
FAST_WRITE_WINDOW: Final = 64 << 20  # bytes on a fast disk: one late request delays no others
FAST: Final = 1 << 30  # bytes a second from which a disk is fast, if memory is ample, too
WRITE_STEP: Final = 8 << 20  # bytes of the window that are waited for at once
MAX_DROPPED_RUNS: Final = 4096  # longest runs of pages that `drop_seen` drops, a system call each
PATCHED_AT_ONCE: Final = 64  # places whose pages are read in parallel
IOV_MAX: Final = 1024  # buffers of one system call
SMALL_WRITE: Final = 128 << 10  # bytes below which an uncached write stays cached until the sync
MODES: Final = {
    "r": os.O_RDONLY | os.O_CLOEXEC,
    "w": os.O_RDWR | os.O_CLOEXEC,
    "x": os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
}
DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
KINDS: Final = {
    stat.S_IFREG: FileType.FILE, stat.S_IFDIR: FileType.DIRECTORY, stat.S_IFLNK: FileType.LINK,
    stat.S_IFBLK: FileType.DEVICE,
}  # fmt: skip
MADV_DONTFORK: Final = 10  # linux/mman.h
MAP_FAILED: Final = ctypes.c_void_p(-1).value
_void, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_mmap = pagecache.libc("mmap", _void, _size, _int, _int, _int, ctypes.c_int64, result=_void)
_munmap = pagecache.libc("munmap", _void, _size)
_madvise = pagecache.libc("madvise", _void, _size, _int)
_syncfs = pagecache.libc("syncfs", _int)
_fstatfs = pagecache.libc("fstatfs", _int, _void)
_linkat = pagecache.libc("linkat", _int, ctypes.c_char_p, _int, ctypes.c_char_p, _int)
AT_EMPTY_PATH: Final = 0x1000
STATFS_ROOM: Final = 256  # bytes that hold a struct statfs
# linux/magic.h: ext4, xfs, tmpfs. There a mapping refers to the open file it was made from.
MAPPING_KEEPS_LOCK: Final = frozenset({0xEF53, 0x58465342, 0x01021994})


def sync_all(fd: int) -> None:
    """Return when all that was written to the filesystem of an open file is on the disk.

    raises  OSError, as of `fsync`
    """
    if _syncfs is None:
        os.sync()
    elif _syncfs(fd) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def link_open(fd: int, name: bytes, parent: int) -> None:
    """Give an open file a name in an open directory; it may have none (O_TMPFILE).

    raises  FileExistsError; OSError
    cost    Linux permits it to root, since 6.10 to all; else through /proc, which takes longer
    """
    if _linkat is not None and _linkat(fd, b"", parent, name, AT_EMPTY_PATH) == 0:
        return
    os.link(b"/proc/self/fd/%d" % fd, name, dst_dir_fd=parent)


class FileStorage(Storage):
    """One file of this machine.

    path        the file
    mode        "r": reading, "w": reading and writing, "x": as "w", for a new file
    uncached    page-cache policy of `write`; `bulk` has its own
    fd          descriptor of the file if it is already open; the storage closes it
    raises      OSError as `open` does, and if it is no regular file
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str = "r",
        *,
        uncached: bool = False,
        fd: int | None = None,
    ) -> None:
        name = os.fspath(path)
        self.fd = fd = _open_regular(name, MODES[mode], name) if fd is None else fd
        self.name, self.uncached = name, uncached
        self._finalizer = weakref.finalize(self, _close_unclosed, fd, name, os.getpid())
        self._finalizer.atexit = False  # then the kernel closes it; other exit handlers may use it
        self._dontcache = uncached
        self._errno = 0  # of a failed write that no sync will report, see `pagecache.drop`
        self._window, self._fast_window = WRITE_WINDOW, 0  # 0: not known yet
        self._waited = 0.0  # time of the last wait for the disk
        self._written: int | None = None  # start of the window of dirty pages
        self._small: tuple[int, int] | None = None  # range of small writes, to drop at sync
        self._sparse: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._not_resident: list[tuple[int, int]] = []  # ranges of pages
        self._read_ahead = (0, 0)  # pages that `drop_seen` keeps

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self.fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]  # a read may be cut at 2 GiB or by a signal
        got = len(data)
        while got < length and (data := os.pread(self.fd, length - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_each(self, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return list(map(os.pread, repeat(self.fd), lengths, offsets))

    def read_into(self, into: memoryview, offset: int) -> int:
        got = 0
        while got < len(into) and (n := os.preadv(self.fd, [into[got:]], offset + got)):
            got += n
        return got

    def view(self, length: int, *, sparse: bool = False) -> memoryview | mmap.mmap:
        if not self.mapped:
            raise ValueError(f"{self.name}: must be read by pread, not mapped")
        if length == 0:
            return memoryview(b"")
        mapped = mmap.mmap(self.fd, length, access=mmap.ACCESS_READ)
        if sparse:
            mapped.madvise(mmap.MADV_RANDOM)
            self._sparse.add(mapped)
        return mapped

    def remember_resident(self) -> None:
        size = self.size()
        absent = pagecache.absent(self.fd, size)
        runs = [] if absent is None else pagecache.runs(absent)
        if len(runs) > MAX_DROPPED_RUNS:
            runs = sorted(runs, key=lambda run: run[0] - run[1])[:MAX_DROPPED_RUNS]
        self._not_resident = [*runs, (-(-size // PAGE), 1 << 50)]

    def drop_seen(self) -> None:
        end = -(-self.size() // PAGE)
        runs = [(i, min(j, end)) for i, j in self._not_resident if i < end]
        if runs:
            for mapped in self._sparse:
                mapped.madvise(mmap.MADV_DONTNEED)  # mapped pages would stay
        (low, high), self._read_ahead = self._read_ahead, (0, 0)
        for i, j in runs:
            for start, stop in ((i, min(j, low)), (max(i, high), j)) if low < high else ((i, j),):
                if start < stop:
                    pagecache.forget(self.fd, start, stop)

    def read_ahead(self, offset: int, length: int) -> None:
        self._read_ahead = offset // PAGE, -(-(offset + length) // PAGE)
        with contextlib.suppress(OSError):  # only advice
            os.posix_fadvise(self.fd, offset, length, os.POSIX_FADV_WILLNEED)

    def present(self, offset: int, length: int) -> bool:
        if len(self._not_resident) < 2:
            return True
        byte = [bytearray(1)]
        try:
            for at in (offset, offset + length - 1):
                os.preadv(self.fd, byte, at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # this file system does not know RWF_NOWAIT
            return True
        return True

    def bulk(self, start: int, stop: int, *, uncached: bool = True) -> BulkReader:
        return BulkReader(self.read_into, self.dropper(start, stop) if uncached else None)

    def dropper(self, start: int, stop: int) -> Dropper | None:
        """Return a Dropper for [start, stop); None: the page cache holds all, or it is unknown."""
        return pagecache.dropper(self.fd, start, min(stop, self.size()))

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        try:
            total = sum(map(len, buffers))
            if self.uncached:
                self._write_uncached(offset, buffers, total)
            elif total:
                done = os.pwritev(self.fd, buffers[:IOV_MAX], offset)
                if done < total:
                    self._write_rest(offset, buffers, done, 0)
            return total
        except OSError as error:
            raise self._named(error) from None

    def patch(self, offset: int, data: Buffer) -> None:
        try:
            done = os.pwrite(self.fd, data, offset)
            if done < len(data):
                self._write_rest(offset, [data], done, 0)
        except OSError as error:
            raise self._named(error) from None

    def patch_each(self, offsets: Sequence[int], data: Buffer) -> None:
        # A page that is not in the page cache is read before a part of it is written: the pages of
        # many places are read in parallel.
        for at in range(0, len(offsets), PATCHED_AT_ONCE):
            some = offsets[at : at + PATCHED_AT_ONCE]
            with contextlib.suppress(OSError):  # only advice
                for offset in some:
                    os.posix_fadvise(self.fd, offset, len(data), os.POSIX_FADV_WILLNEED)
            super().patch_each(some, data)

    def _write_uncached(self, offset: int, buffers: Sequence[Buffer], total: int) -> None:
        done, flags = 0, RWF_DONTCACHE if self._dontcache and total >= SMALL_WRITE else 0
        if flags:
            try:
                done = os.pwritev(self.fd, buffers[:IOV_MAX], offset, flags)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
                self._dontcache, flags = False, 0
        self._write_rest(offset, buffers, done, flags)
        if self._dontcache and total < SMALL_WRITE:
            low, high = self._small or (offset, 0)
            self._small = (min(low, offset), max(high, offset + total))
        else:
            self._drop_behind(offset, offset + total)

    def _write_rest(self, offset: int, buffers: Sequence[Buffer], done: int, flags: int) -> None:
        """Write the rest of the buffers, of which `done` bytes are written."""
        parts, skip = list(buffers) if done < sum(map(len, buffers)) else [], done
        while parts:
            while parts and skip >= len(parts[0]):
                skip -= len(parts.pop(0))
            if parts:
                part = [memoryview(parts[0])[skip:], *parts[1:IOV_MAX]]
                n = os.pwritev(self.fd, part, offset + done, flags)
                done, skip = done + n, skip + n

    def _drop_behind(self, start: int, stop: int) -> None:
        """Wait for the oldest part of the window, while the disk writes the rest.

        Otherwise pages of RWF_DONTCACHE would wait for a slow disk in memory, up to the limit of
        the kernel for dirty pages.
        """
        written = self._written  # `sync` of another thread may set it meanwhile
        if written is None or start < written:
            written = start
        if not self._dontcache:
            pagecache.write_back(self.fd, start, stop)
        if stop - written >= self._window:
            until, now = stop - self._window + WRITE_STEP, time.monotonic()
            self._drop(written, until)
            fast = until - written > FAST * (now - self._waited)
            if fast and not self._fast_window:
                self._fast_window = FAST_WRITE_WINDOW if has_ample_memory() else WRITE_WINDOW
            self._window, self._waited = self._fast_window if fast else WRITE_WINDOW, now
            written = until
        self._written = written

    def _drop(self, start: int, stop: int) -> None:
        self._errno = pagecache.drop(self.fd, start, stop) or self._errno

    def sync(self) -> None:
        try:
            os.fdatasync(self.fd)  # also writes the size, if reading needs it
            if self._errno:
                raise OSError(self._errno, os.strerror(self._errno))
            written, self._written = self._written, None
            if written is not None:
                self._drop(written, self.size())
            small, self._small = self._small, None
            if small is not None:
                start, stop = small
                os.posix_fadvise(self.fd, start, stop - start, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        """Add the name of the file to an error."""
        error.filename = error.filename or self.name
        return error

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def preallocate(self, length: int) -> None:
        try:
            size = self.size()
            if length <= size:
                return
            try:
                os.posix_fallocate(self.fd, size, length - size)
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    return
                os.ftruncate(self.fd, size)  # some blocks may have been allocated
                raise
        except OSError as error:
            raise self._named(error) from None

    def info(self) -> Info:
        return _info(os.fstat(self.fd))

    def truncate(self, length: int) -> None:
        try:
            os.ftruncate(self.fd, length)
        except OSError as error:
            raise self._named(error) from None

    def duplicate(self) -> Self:
        other = type(self)(self.name, uncached=self.uncached, fd=os.dup(self.fd))
        other.mapped = self.mapped
        return other

    def close(self) -> None:
        if self._finalizer.detach():  # first: a second close must not close a reused descriptor
            fd, self.fd = self.fd, -1
            os.close(fd)


def _close_unclosed(fd: int, name: str, pid: int) -> None:
    """Close the file of a collected object, with a warning unless a forked child inherited it."""
    os.close(fd)
    if os.getpid() == pid:
        warnings.warn(f"unclosed file {name}", ResourceWarning, stacklevel=3)


class DeviceStorage(FileStorage):
    """A block device. Opened for writing, it is exclusive: it is not mounted, and no other process
    can open it exclusively.

    raises  OSError: it is no block device; EBUSY: it is in use
    """

    def __init__(self, path: str, mode: str = "r") -> None:
        flags = MODES[mode] | (0 if mode == "r" else os.O_EXCL) | os.O_NONBLOCK
        if not stat.S_ISBLK(os.stat(path).st_mode):  # before it is opened, which may have effects
            raise OSError(errno.ENOTBLK, os.strerror(errno.ENOTBLK), path)
        super().__init__(path, fd=os.open(path, flags))

    def size(self) -> int:
        return os.lseek(self.fd, 0, os.SEEK_END)

    def info(self) -> Info:
        return super().info()._replace(size=self.size())


class PosixDirectory(Directory):
    """A directory of this machine.

    fd    descriptor of the directory: names are looked up in it without following symbolic links,
          even if its path changes. None: names are looked up by its path
    """

    def __init__(self, path: str, fd: int | None = None) -> None:
        self.path, self._fd = path, fd
        self._folder = "" if path == "." else f"{path.rstrip('/')}/"  # prefix of full paths
        self._before = self._folder if fd is None else ""  # prefix of names for `dir_fd`

    def open(
        self, name: str, mode: str = "r", *, uncached: bool = False, follow: bool = True
    ) -> FileStorage:
        flags = MODES[mode] | (0 if follow and self._fd is None else os.O_NOFOLLOW)
        path = self._folder + name
        fd = _open_regular(self._before + name, flags, path, self._fd)
        return FileStorage(path, uncached=uncached, fd=fd)

    def create_new(
        self, name: str, *, like: Storage | None = None, uncached: bool = False
    ) -> FileStorage:
        model = like.info() if like is not None else None
        # Never more than the model's mode, not for a moment, to protect names and contents.
        mode = 0o666 if model is None else model.mode & 0o666
        flags = MODES["x"] | os.O_NOFOLLOW
        path = self._folder + name
        fd = os.open(self._before + name, flags, mode, dir_fd=self._fd)
        if model is not None:
            _take_after(fd, model)
        return FileStorage(path, uncached=uncached, fd=fd)

    def rename(self, old: str, new: str) -> None:
        before = self._before
        os.replace(before + old, before + new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def link(self, old: str, new: str) -> None:
        old_at, new_at = self._before + old, self._before + new
        os.link(old_at, new_at, src_dir_fd=self._fd, dst_dir_fd=self._fd, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._before + name, dir_fd=self._fd)

    def list(self) -> list[str]:
        return os.listdir(self.path if self._fd is None else self._fd)

    def sync(self) -> None:
        fd = os.open(self.path, DIRECTORY) if self._fd is None else self._fd
        try:
            os.fsync(fd)
        finally:
            if self._fd is None:
                os.close(fd)

    def info(self, name: str = "", *, follow: bool = False) -> Info | None:
        try:
            if self._fd is not None and not name:
                return _info(os.fstat(self._fd))
            links, path = self._fd is None and (follow or not name), self._before + name or "."
            return _info(os.stat(path, dir_fd=self._fd, follow_symlinks=links))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def mkdir(self, name: str) -> None:
        os.mkdir(self._before + name, dir_fd=self._fd)

    def take_after(self, name: str) -> None:
        fd = os.open(self._before + name, DIRECTORY | os.O_NOFOLLOW, dir_fd=self._fd)
        try:
            model = self.info()
            if model is not None:
                _take_after(fd, model)
        finally:
            os.close(fd)

    def rmdir(self, name: str) -> None:
        os.rmdir(self._before + name, dir_fd=self._fd)

    def subdirectory(self, name: str) -> Self:
        fd = os.open(self._before + name, DIRECTORY | os.O_NOFOLLOW, dir_fd=self._fd)
        return type(self)(self._folder + name, fd)

    def scratch(self) -> FileStorage:
        import tempfile  # late, because its import is slow

        for folder in (self.path, tempfile.gettempdir()):  # ours may be read-only
            try:
                fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT):
                    continue
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                    raise
                fd, made = tempfile.mkstemp(prefix=".winkfs-", dir=folder)
                os.unlink(made)
            return FileStorage(f"{folder}/(scratch file)", fd=fd)
        raise PermissionError(errno.EACCES, "no directory for temporary files", self.path)

    def lock(self, name: str, *, shared: bool = False) -> FileLock | None:
        lock = FileLock(self._folder + name, self._before + name, self._fd, shared=shared)
        return lock if lock.held else None

    def turn(self, name: str) -> FileTurn:
        path, flags = self._folder + name, MODES["r"] | os.O_NOFOLLOW
        return FileTurn(_open_regular(self._before + name, flags, path, self._fd))

    def close(self) -> None:
        if self._fd is not None and self._fd >= 0:
            fd, self._fd = self._fd, -1  # not None, which would mean the working directory
            os.close(fd)


class PosixFolder(PosixDirectory):
    """The open folder of a store: only files in it are opened, never through symbolic links."""

    @classmethod
    def at(cls, path: str) -> Self:
        """Open a folder; its path may contain symbolic links. Raises OSError."""
        return cls(path, os.open(path, DIRECTORY))

    def __del__(self) -> None:
        self.close()


class FileLock:
    """An flock on a file, which no child process inherits.

    The kernel keeps an flock as long as anything refers to the open file, and a process forked by C
    code has copies of all descriptors. So the descriptor is closed, and a mapping that is never
    touched refers to the file, with MADV_DONTFORK.

    held      False: another process has the lock
    shared    several processes may have it with `shared`
    identity  of the file, see `Info`
    raises    OSError if the file cannot be opened
    """

    def __init__(self, path: str, at: str, folder: int | None, *, shared: bool = False) -> None:
        """Lock a file.

        at      its name in `folder`
        folder  descriptor of a directory in which no link is followed; None: the working directory
        """
        self._path, self._at, self._folder = path, at, folder
        self._how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._fds: list[int] = []
        self._maps: list[int | None] = []  # addresses
        self._pid, self.held = os.getpid(), False
        self._finalizer = weakref.finalize(self, _release, self._fds, self._maps, self._pid)
        self._finalizer.atexit = False
        try:
            self._fds.append(self._open())
            self.identity = _info(os.fstat(self._fds[0])).identity
            self.held = self._take()
            if self.held and self._map():
                sure = _filesystem(self._fds[0]) in MAPPING_KEEPS_LOCK
                os.close(self._fds.pop())
                # On overlayfs a mapping refers to the file of the lower layer.
                if not (sure or self._is_kept()):
                    self._unmap()
                    self._fds.append(self._open())
                    same = self.identity == _info(os.fstat(self._fds[0])).identity
                    self.held = self._take() and same
        except BaseException:
            self.held = False
            raise
        finally:
            if not self.held:
                self.release()

    def _open(self) -> int:
        flags = MODES["r"] | (0 if self._folder is None else os.O_NOFOLLOW)
        return _open_regular(self._at, flags, self._path, self._folder)

    def _take(self) -> bool:
        try:
            fcntl.flock(self._fds[0], self._how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _map(self) -> bool:
        """Map the file, to keep it open -> whether that succeeded."""
        if _mmap is None or _munmap is None or _madvise is None:
            return False
        self._maps.append(_mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, self._fds[0], 0))
        if self._maps[0] in (None, MAP_FAILED):
            self._maps.clear()
            return False
        if _madvise(self._maps[0], PAGE, MADV_DONTFORK) == 0:
            return True
        self._unmap()
        return False

    def _unmap(self) -> None:
        _munmap(self._maps.pop(), PAGE)

    def _is_kept(self) -> bool:
        """Return whether the kernel lists the lock after the descriptor was closed.

        cost  reading /proc/locks waits for all processors
        """
        device, inode = self.identity
        wanted = b"%02x:%02x:%d" % (os.major(device), os.minor(device), inode)
        try:
            with open("/proc/locks", "rb") as file:  # noqa: PTH123 - not a method of a new Path
                lines = file.readlines()
        except OSError:
            return False
        mine = {b"FLOCK", b"%d" % self._pid, wanted}
        return any(map(mine.issubset, map(bytes.split, lines)))

    def release(self) -> None:
        """Release the lock. Idempotent, also after a call that Ctrl-C interrupted."""
        _release(self._fds, self._maps, self._pid)
        self._finalizer.detach()


def _filesystem(fd: int) -> int:
    """Return the type of the file system (f_type, the first word of statfs); 0: not known."""
    found = (ctypes.c_long * (STATFS_ROOM // ctypes.sizeof(ctypes.c_long)))()
    return 0 if _fstatfs is None or _fstatfs(fd, found) else found[0]


def _release(fds: list[int], maps: list[int | None], pid: int) -> None:
    """Close the descriptor of a lock, and its mapping, which a forked child does not have.

    A number is popped in the statement that closes it, so that no signal comes in between.
    """
    mine = pid == os.getpid()
    while maps and mine and _munmap:
        _munmap(maps.pop(), PAGE)
    while fds:
        if mine:
            fcntl.flock(fds[0], fcntl.LOCK_UN)  # a child may have it open
        os.close(fds.pop())


def _open_regular(at: str, flags: int, path: str, dir_fd: int | None = None) -> int:
    """Open a regular file -> its descriptor. Raises OSError, also for a fifo, without waiting."""
    try:
        fd = os.open(at, flags | os.O_NONBLOCK, 0o666, dir_fd=dir_fd)
    except OSError as error:
        error.filename = path
        if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
            error.strerror = "a symbolic link, not a file"
        raise
    if stat.S_ISREG(mode := os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a directory, not a file", path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def _info(found: os.stat_result) -> Info:
    kind = KINDS.get(stat.S_IFMT(found.st_mode), FileType.OTHER)
    identity = (found.st_dev, found.st_ino)
    mode = stat.S_IMODE(found.st_mode)
    return Info(
        kind, identity, found.st_size, found.st_mtime, mode, found.st_uid, found.st_gid,
        found.st_nlink,
    )  # fmt: skip


def _take_after(fd: int, model: Info) -> None:
    """Give a new file the mode and owner of another one, if permitted."""
    mine = os.fstat(fd)
    if (mine.st_uid, mine.st_gid) != (model.uid, model.gid):
        with contextlib.suppress(PermissionError):
            os.fchown(fd, model.uid, model.gid)
    bits = 0o7777 if stat.S_ISDIR(mine.st_mode) else 0o666
    with contextlib.suppress(PermissionError):
        os.fchmod(fd, model.mode & bits)


class PatchedStorage(FileStorage):
    """A file that is read as if it began with other bytes than it does."""

    _head: bytes

    @classmethod
    def behind(cls, file: FileStorage, head: bytes) -> Self:
        """Return a second handle of an open file."""
        patched = cls(file.name, uncached=True, fd=os.dup(file.fd))
        patched._head = head
        return patched

    def read_into(self, into: memoryview, offset: int) -> int:
        got = super().read_into(into, offset)
        if offset < len(self._head):
            part = self._head[offset : offset + len(into)]
            into[: len(part)] = part
            got = max(got, len(part))
        return got

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        return bytes(data[: self.read_into(memoryview(data), offset)])

    def duplicate(self) -> Self:
        other = super().duplicate()
        other._head = self._head
        return other


def data_ranges(path: str, end: int) -> list[tuple[int, int]]:
    """Return the ranges [start, stop) of a file before `end` that are not holes, ascending.

    raises  OSError
    cost    two system calls a range
    """
    found: list[tuple[int, int]] = []
    at, fd = 0, os.open(path, MODES["r"])
    try:
        with contextlib.suppress(OSError):  # ENXIO: no data follow
            while at < end:
                start = os.lseek(fd, at, os.SEEK_DATA)
                at = os.lseek(fd, start, os.SEEK_HOLE)
                found.append((min(start, end), min(at, end)))
    finally:
        os.close(fd)
    return found
