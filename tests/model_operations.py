"""System calls on a tree, described so that they can be done again; drawn in model_chooser.py.

An operation is a list: the name of a method of Twin, then its arguments, all of JSON. Names and
data are Latin-1 text; data is [seed, size], so that a history stays short.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import stat
from contextlib import suppress

Operation = list[object]

LIBC = ctypes.CDLL(None, use_errno=True)
LONG = 300_000  # bytes from which on no file is written
NOW_SINCE, NOW_UNTIL = 16 * 10**17, 30 * 10**17  # times that no operation sets by hand
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2

MAY_BE_MISSING = {("fallocate", "ENOTSUP"), ("copy", "ENOTSUP"), ("rename_flags", "EINVAL")}


class Now(int):
    """A time that was set by the clock: two trees give it a little apart."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Now) and abs(int(self) - int(other)) < 5 * 10**9

    __hash__ = int.__hash__


def content(data: list[int]) -> bytes:
    seed, size = data
    return random.Random(seed).randbytes(size)


def fields(found: os.stat_result) -> tuple[object, ...]:
    """What both trees have to say alike of a file."""
    time = found.st_mtime_ns
    time = Now(time) if NOW_SINCE < time < NOW_UNTIL else time
    plain = not stat.S_ISDIR(found.st_mode)  # a directory's size and links are its own affair
    size, links = (found.st_size, found.st_nlink) if plain else (None, None)
    return found.st_mode, size, links, found.st_uid, found.st_gid, time


def refused() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def _opened(path: bytes, flags: int, mode: int, above: int | None = None) -> int:
    """A link of somebody else in a sticky directory is EACCES for who would create a file. The
    kernel knows nothing of sticky directories of a FUSE mount without default_permissions."""
    try:
        return os.open(path, flags, mode, dir_fd=above)
    except PermissionError:
        if not flags & os.O_CREAT or not stat.S_ISLNK(os.lstat(path, dir_fd=above).st_mode):
            raise
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


class Twin:
    """One of two trees, with the files a program has open in it. Paths are relative to `top`."""

    def __init__(self, top: str | os.PathLike[str], *, disk: bool = False) -> None:
        self.top, self.disk = os.fsencode(top) + b"/", disk
        self.files: dict[int, int] = {}

    def do(self, operation: Operation) -> object:
        """-> what the call gave, the name of its errno, or why it could not be made."""
        verb, *arguments = operation
        try:
            return getattr(self, str(verb))(*arguments)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        except KeyError:
            return "no such file is open"

    def path(self, name: str) -> bytes:
        return self.top + name.encode("latin-1")

    def close_all(self) -> None:
        for file in self.files.values():
            os.close(file)
        self.files.clear()

    # open files

    def _keep(self, slot: int, file: int) -> None:
        old, self.files[slot] = self.files.get(slot), file
        if old is not None:
            os.close(old)

    def open(self, slot: int, name: str, flags: int, mode: int) -> None:
        self._keep(slot, _opened(self.path(name), flags, mode))

    def open_at(self, slot: int, opened: int, base: str, flags: int, mode: int) -> None:
        name = base.encode("latin-1")
        self._keep(slot, _opened(name, flags, mode, self.files[opened]))

    def close(self, opened: int) -> None:
        os.close(self.files.pop(opened))

    def pwrite(self, opened: int, offset: int, data: list[int]) -> int:
        return os.pwrite(self.files[opened], content(data), offset)

    def write(self, opened: int, data: list[int]) -> int:
        if os.fstat(self.files[opened]).st_size > LONG:
            return 0
        return os.write(self.files[opened], content(data))

    def pread(self, opened: int, offset: int, size: int) -> bytes:
        return os.pread(self.files[opened], size, offset)

    def read(self, opened: int, size: int) -> bytes:
        return os.read(self.files[opened], size)

    def lseek(self, opened: int, offset: int, whence: int) -> object:
        file = self.files[opened]
        if stat.S_ISDIR(os.fstat(file).st_mode):
            return None  # positions in a directory mean nothing outside
        return os.lseek(file, offset, whence)

    def ftruncate(self, opened: int, offset: int) -> None:
        os.ftruncate(self.files[opened], offset)

    def fstat(self, opened: int) -> object:
        return fields(os.fstat(self.files[opened]))

    def fsync(self, opened: int) -> None:
        os.fsync(self.files[opened])

    def fallocate(self, opened: int, how: int, offset: int, size: int) -> None:
        """Whether it counts as a change of the file is up to the file system."""
        file, off = self.files[opened], ctypes.c_int64
        if LIBC.fallocate(file, how, off(offset), off(size)):
            raise refused()
        os.utime(file, (0, 1_234_567_890))

    def holes(self, opened: int) -> object:
        """Where a hole is, zeros are; where the holes are is up to the file system."""
        file = self.files[opened]
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return None
        at, size = 0, found.st_size
        data = os.pread(file, size, 0)
        while at < size:
            try:
                begin = os.lseek(file, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                begin = size
            if not at <= begin <= size or data[at:begin].strip(b"\0"):
                return f"SEEK_DATA {at}: {begin} of {size}"
            at = os.lseek(file, begin, os.SEEK_HOLE) if begin < size else size
            if not begin < at <= size and begin < size:
                return f"SEEK_HOLE {begin}: {at} of {size}"
        os.lseek(file, 0, os.SEEK_SET)
        return size

    def mapped_read(self, opened: int, offset: int, size: int) -> object:
        try:
            with mmap.mmap(self.files[opened], 0, access=mmap.ACCESS_READ) as mapped:
                return mapped[offset : offset + size]
        except ValueError:
            return "empty"

    def mapped_write(self, opened: int, offset: int, data: list[int]) -> object:
        try:
            with mmap.mmap(self.files[opened], 0) as mapped:
                written = content(data)[: max(0, len(mapped) - offset)]
                mapped[offset : offset + len(written)] = written
                mapped.flush()
                return len(written)
        except ValueError:
            return "empty"

    def fchmod(self, opened: int, mode: int) -> None:
        os.fchmod(self.files[opened], mode)

    def fchown(self, opened: int, uid: int, gid: int) -> None:
        os.fchown(self.files[opened], uid, gid)

    def futimens(self, opened: int, time: list[int]) -> object:
        self._set_time(self.files[opened], None, time)
        return fields(os.fstat(self.files[opened]))

    def flock(self, opened: int, lock: int) -> None:
        fcntl.flock(self.files[opened], lock | fcntl.LOCK_NB)

    def lockf(self, opened: int, lock: int, offset: int, size: int) -> None:
        wait = 0 if lock == fcntl.LOCK_UN else fcntl.LOCK_NB
        fcntl.lockf(self.files[opened], lock | wait, size, offset)

    def copy(self, opened: int, second: int, size: int, offset: int, to: int) -> int:
        source, target = self.files[opened], self.files[second]
        return os.copy_file_range(source, target, size, offset, to)

    def list_open(self, opened: int) -> object:
        return sorted(os.listdir(self.files[opened]))

    def same_file(self, name: str, opened: int) -> bool:
        return os.path.samestat(os.lstat(self.path(name)), os.fstat(self.files[opened]))

    # names

    def put(self, name: str, data: list[int]) -> None:
        with open(self.path(name), "wb") as file:  # noqa: PTH123
            file.write(content(data))

    def get(self, name: str) -> bytes:
        with open(self.path(name), "rb") as file:  # noqa: PTH123
            return file.read()

    def stat(self, name: str, follow: bool) -> object:
        return fields(os.stat(self.path(name), follow_symlinks=follow))

    def truncate(self, name: str, offset: int) -> None:
        os.truncate(self.path(name), offset)

    def unlink(self, name: str) -> None:
        os.unlink(self.path(name))

    def mkdir(self, name: str, mode: int) -> None:
        os.mkdir(self.path(name), mode)

    def rmdir(self, name: str) -> None:
        os.rmdir(self.path(name))

    def rename(self, name: str, other: str) -> None:
        os.rename(self.path(name), self.path(other))

    def rename_flags(self, name: str, other: str) -> None:
        noreplace = 1
        if LIBC.renameat2(-100, self.path(name), -100, self.path(other), noreplace):
            raise refused()

    def symlink(self, target: str, name: str) -> None:
        os.symlink(target.encode(), self.path(name))

    def readlink(self, name: str) -> bytes:
        return os.readlink(self.path(name))

    def link(self, name: str, other: str) -> object:
        """A mount has no hard links: the disk is not asked, and nothing may come of it."""
        with suppress(OSError):
            if not self.disk:
                os.link(self.path(name), self.path(other))
                return "linked"
        return None

    def mknod(self, name: str, mode: int) -> None:
        os.mknod(self.path(name), stat.S_IFREG | stat.S_IMODE(mode))

    def chmod(self, name: str, mode: int) -> None:
        os.chmod(self.path(name), mode)

    def chown(self, name: str, uid: int, gid: int) -> None:
        os.chown(self.path(name), uid, gid, follow_symlinks=False)

    def utimens(self, name: str, time: list[int], follow: bool) -> None:
        self._set_time(-100, self.path(name), time, 0 if follow else 0x100)

    @staticmethod
    def _set_time(at: int, path: bytes | None, time: list[int], flags: int = 0) -> None:
        times = (ctypes.c_long * 4)(0, UTIME_OMIT, *time)
        if LIBC.utimensat(at, path, times, flags):
            raise refused()

    def setxattr(self, name: str, key: str, data: list[int], how: int) -> None:
        os.setxattr(self.path(name), key, content([data[0], data[1] % 99]), how)

    def getxattr(self, name: str, key: str) -> bytes:
        return os.getxattr(self.path(name), key)

    def removexattr(self, name: str, key: str) -> None:
        os.removexattr(self.path(name), key)

    def listxattr(self, name: str) -> object:
        return sorted(os.listxattr(self.path(name)))

    def list(self, name: str) -> object:
        found = {}
        with os.scandir(self.path(name)) as entries:
            for entry in entries:
                kinds = entry.is_dir(follow_symlinks=False), entry.is_symlink()
                same = entry.inode() == entry.stat(follow_symlinks=False).st_ino
                found[entry.name] = *kinds, same
        return found

    def access(self, name: str, mode: int) -> bool:
        return os.access(self.path(name), mode & 7)

    def umask(self, mode: int) -> None:
        os.umask(mode & 0o77)  # of the process: the second call sets what the first has set

    # the whole

    def state(self) -> dict[bytes, tuple[object, ...]]:
        """Everything below `top`: path -> fields, attributes, content."""
        found: dict[bytes, tuple[object, ...]] = {}
        waiting = [self.top.rstrip(b"/")]
        while waiting:
            for entry in os.scandir(waiting.pop()):
                what: object = None
                if entry.is_symlink():
                    what = os.readlink(entry.path)
                elif entry.is_dir():
                    waiting.append(entry.path)
                else:
                    with open(entry.path, "rb") as file:  # noqa: PTH123
                        what = file.read()
                names = os.listxattr(entry.path, follow_symlinks=False)
                xattrs = {
                    key: os.getxattr(entry.path, key, follow_symlinks=False)
                    for key in names
                    if key.startswith(("user.", "trusted."))
                }
                shown = fields(entry.stat(follow_symlinks=False))
                found[entry.path[len(self.top) :]] = shown, xattrs, what
        return found
