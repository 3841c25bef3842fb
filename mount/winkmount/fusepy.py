"""Mounts through fusepy, for a device that libfuse 2 has to serve.

libfuse 2 asks by paths. `Paths` looks them up from the top, and asks the server that answers the
kernel's requests by numbers.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from winkmount.binding import LIBFUSE, LIBRARY_PATH, MountError, library
from winkmount.kernel import protocol as p
from winkmount.kernel.entries import NANO
from winkmount.kernel.names import STATFS
from winkmount.kernel.server import Server
from winkmount.served import FOREVER, Served
from winkmount.source import refuse

KEPT_PATHS: Final = 10_000  # whose numbers are remembered
RENAME_WAIT: Final = 0.1  # seconds within which the rename follows for which a file was hidden
ALL_TIMES: Final = 1 << 32  # more often than the server gave out a number
UTIME_NOW: Final = (1 << 30) - 1  # linux/stat.h, in the place of nanoseconds, with 0 seconds
UTIME_OMIT: Final = (1 << 30) - 2
HIDDEN: Final = re.compile(r"/\.fuse_hidden[0-9a-f]{16}\Z")

Stat = dict[str, int]

log = logging.getLogger("winkmount")


def raw(name: str) -> bytes:
    """Return a name as it is in a request."""
    return name.encode("latin-1") + b"\0"


class Paths:
    """The operations that fusepy calls, with raw_fi: `fi` has flags, fh, direct_io and keep_cache.
    Paths are Latin-1: a character is a byte.

    started     libfuse has, or had, the mount
    """

    use_ns = True
    flag_nullpath_ok = 1  # an open file that has lost its name has no path
    flag_utime_omit_ok = 1  # else libfuse drops a utimensat with UTIME_OMIT

    def __init__(self, served: Served) -> None:
        self._served, self._server = served, Server(served)
        self._known: dict[str, int] = {}  # path -> number
        self._opened: dict[int, int] = {}  # handle -> number, given once for each user of the file
        self._hidden: dict[str, int] = {}  # path that libfuse made up -> number
        self._unlinked = ""  # the path of a file of which the next call decides
        self.started = False

    def __call__(self, name: str, *args: Any) -> Any:
        """Call an operation; once more if a number stands for nothing any more."""
        if self._unlinked and name != "rename":
            self._carry_out()
        try:
            return getattr(self, name)(*args)
        except OSError as error:
            if error.errno != errno.ESTALE or not self._known:
                raise
        self._drop("")
        return getattr(self, name)(*args)

    # numbers

    def ask(self, opcode: int, number: int, *body: bytes) -> bytes:
        """Have a request answered. Raises OSError."""
        source = self._served.source
        if source.patience:
            source.limit(time.monotonic() + source.patience)
        code, data = self._server.answer(opcode, number, memoryview(b"".join(body)))
        if code:
            raise refuse(code)
        return data

    def number(self, path: str | None, fi: Any = None) -> int:
        """Return the number of a path, or of an open file."""
        if fi is not None:
            return self._opened[fi.fh]
        assert path is not None
        number = self._known.get(path) or self._hidden.get(path)
        if number is None:
            number = self._known[path] = self._look_up(path)
            if len(self._known) > KEPT_PATHS:
                self._forget(self._known.pop(next(iter(self._known))))
        return number

    def _look_up(self, path: str) -> int:
        """Return the number of a path, which is held once more. Raises ENOENT."""
        if path == "/":
            return p.TOP
        (number,) = p.LONG.unpack_from(self.ask(p.LOOKUP, *self._place(path)))
        if not number:
            raise refuse(errno.ENOENT)
        return int(number)

    def _place(self, path: str) -> tuple[int, bytes]:
        """Return the number of the directory that a path is in, and the name for a request."""
        above, _, name = path.rpartition("/")
        return self.number(above or "/"), raw(name)

    def _forget(self, number: int, count: int = 1) -> None:
        self._server.forget(p.FORGET, number, memoryview(p.LONG.pack(count)))

    def _drop(self, path: str) -> None:
        """Forget a path, and all below it, which stand for something else now."""
        for known in [known for known in self._known if f"{known}/".startswith(f"{path}/")]:
            self._forget(self._known.pop(known))

    # the mount

    def init(self, path: str) -> None:
        self.started = True
        self._served.on_start()

    def destroy(self, path: str) -> None:
        self._server.close()

    def statfs(self, path: str) -> Stat:
        values = p.STATFS_OUT.unpack(self.ask(p.STATFS, p.TOP))
        return {f"f_{field}": value for field, value in zip(STATFS, values, strict=True)}

    # names and attributes

    def getattr(self, path: str | None, fi: Any = None) -> Stat:
        found = self.ask(p.GETATTR, self.number(path, fi), bytes(p.GETATTR_IN.size))
        _, _, _, id, size, blocks, *times, mode, links, uid, gid, _, blksize, _ = p.ATTR_OUT.unpack(
            found
        )
        at, mtime, ctime = (times[i] * NANO + times[i + 3] for i in range(3))
        return {"st_ino": id, "st_size": size, "st_blocks": blocks, "st_atime": at,
                "st_mtime": mtime, "st_ctime": ctime, "st_mode": mode, "st_nlink": links,
                "st_uid": uid, "st_gid": gid, "st_blksize": blksize}  # fmt: skip

    def readlink(self, path: str) -> str:
        return self.ask(p.READLINK, self.number(path)).decode("latin-1")

    def access(self, path: str, mode: int) -> None:
        self.ask(p.ACCESS, self.number(path), p.WORD.pack(mode))

    def _make(self, opcode: int, path: str, head: bytes, behind: bytes = b"") -> None:
        number, name = self._place(path)
        (self._known[path],) = p.LONG.unpack_from(self.ask(opcode, number, head, name, behind))

    def mkdir(self, path: str, mode: int) -> None:
        self._make(p.MKDIR, path, p.MKDIR_IN.pack(mode))

    def mknod(self, path: str, mode: int, device: int) -> None:
        self._make(p.MKNOD, path, p.MKNOD_IN.pack(mode, device))

    def symlink(self, path: str, target: str) -> None:
        self._make(p.SYMLINK, path, b"", raw(target))

    def link(self, path: str, target: str) -> None:
        self.ask(p.LINK, p.TOP)

    def rmdir(self, path: str) -> None:
        self._remove(p.RMDIR, path)

    def _remove(self, opcode: int, path: str) -> None:
        self.ask(opcode, *self._place(path))
        self._drop(path)

    def unlink(self, path: str) -> None:
        if path not in self._hidden:
            self._remove(p.UNLINK, path)
        elif not self.getattr(path)["st_nlink"]:  # else it has kept its name after all
            self._forget(self._hidden.pop(path), ALL_TIMES)

    def rename(self, old: str, new: str) -> None:
        """libfuse answers an unlink of an open file, and a rename onto one, by a rename of it to
        `.fuse_hidden...`. Behind the first nothing else comes; behind the second the rename that
        was asked for, as the next call. So the file keeps its name until then: a rename that is
        refused, or a crash, takes nothing away."""
        if new == self._unlinked:
            self._unlinked = ""
        self._carry_out()
        if HIDDEN.search(new) and (number := self._look_up(old)) in self._opened.values():
            self._hidden[new], self._unlinked = number, old
            timer = threading.Timer(RENAME_WAIT, self._carry_out, [old])
            timer.daemon = True
            timer.start()
            return
        (above, name), (into, new_name) = self._place(old), self._place(new)
        self.ask(p.RENAME, above, p.RENAME_IN.pack(into), name, new_name)
        self._drop(old)
        self._drop(new)
        for path in [path for path in self._hidden if path.startswith(f"{old}/")]:
            self._hidden[new + path[len(old) :]] = self._hidden.pop(path)

    def _carry_out(self, only: str = "") -> None:
        """Unlink the file that was hidden last, since no rename to its name came. From any thread.
        `only`: if it had this path."""
        try:
            with self._served.mutex:
                path = self._unlinked
                if path and only in ("", path):
                    self._unlinked = ""
                    self._remove(p.UNLINK, path)
        except OSError as error:  # the kernel has another answer
            log.error("not removed: %s: %s", path, error)

    def _set(
        self, number: int, what: int, *, size: int = 0, mtime: int = 0, mode: int = 0,
        uid: int = 0, gid: int = 0,
    ) -> None:  # fmt: skip
        """Set attributes: the fields of SETATTR."""
        body = p.SETATTR_IN.pack(what, 0, size, *divmod(mtime, NANO), mode, uid, gid)
        self.ask(p.SETATTR, number, body)

    def chmod(self, path: str, mode: int) -> None:
        self._set(self.number(path), p.SET_MODE, mode=mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        what = p.SET_UID * (uid != -1) | p.SET_GID * (gid != -1)
        self._set(self.number(path), what, uid=max(uid, 0), gid=max(gid, 0))

    def truncate(self, path: str | None, size: int, fi: Any = None) -> None:
        self._set(self.number(path, fi), p.SET_SIZE, size=size)

    def utimens(self, path: str, times: tuple[int, int]) -> None:
        """Access times are not kept, but setting one is a change."""
        special = {UTIME_NOW: p.SET_MTIME | p.SET_MTIME_NOW, UTIME_OMIT: p.SET_ATIME}
        self._set(self.number(path), special.get(times[1], p.SET_MTIME), mtime=times[1])

    # extended attributes

    def setxattr(self, path: str, name: str, value: bytes, flags: int, position: int = 0) -> None:
        head = p.SETXATTR_IN.pack(len(value), flags)
        self.ask(p.SETXATTR, self.number(path), head, raw(name), value)

    def removexattr(self, path: str, name: str) -> None:
        self.ask(p.REMOVEXATTR, self.number(path), raw(name))

    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        return self.ask(p.GETXATTR, self.number(path), p.WORDS.pack(p.MOST, 0), raw(name))

    def listxattr(self, path: str) -> list[str]:
        found = self.ask(p.LISTXATTR, self.number(path), p.WORDS.pack(p.MOST, 0))
        return found.decode("latin-1").split("\0")[:-1]

    # open files

    def _opens(self, number: int, fi: Any, out: bytes) -> None:
        fi.fh, flags = p.OPEN_OUT.unpack_from(out)
        fi.direct_io = int(flags & p.DIRECT_IO != 0)
        kept = self._served.caching.names == FOREVER  # else auto_cache decides
        fi.keep_cache = int(kept and flags & p.KEEP_CACHE != 0)
        self._opened[fi.fh] = number

    def open(self, path: str, fi: Any) -> None:
        number = self._hidden.get(path) or self._look_up(path)
        self._opens(number, fi, self.ask(p.OPEN, number, p.OPEN_IN.pack(fi.flags, 0)))

    def create(self, path: str, mode: int, fi: Any) -> None:
        number, name = self._place(path)
        out = self.ask(p.CREATE, number, p.CREATE_IN.pack(fi.flags, mode, 0), name)
        self._drop(path)
        self._opens(p.LONG.unpack_from(out)[0], fi, out[p.ENTRY_OUT.size :])

    def read(self, path: str | None, size: int, offset: int, fi: Any) -> bytes:
        return self.ask(p.READ, self._opened[fi.fh], p.READ_IN.pack(fi.fh, offset, size))

    def write(self, path: str | None, data: bytes, offset: int, fi: Any) -> int:
        self.ask(p.WRITE, self._opened[fi.fh], p.WRITE_IN.pack(fi.fh, offset, len(data), 0), data)
        return len(data)

    def flush(self, path: str | None, fi: Any) -> None:
        self.ask(p.FLUSH, self._opened[fi.fh], p.HANDLE.pack(fi.fh))

    def fsync(self, path: str | None, datasync: int, fi: Any) -> None:
        self.ask(p.FSYNC, self._opened[fi.fh], p.FSYNC_IN.pack(fi.fh, datasync))

    def release(self, path: str | None, fi: Any) -> None:
        number = self._opened[fi.fh]
        self.ask(p.RELEASE, number, p.OPEN_OUT.pack(fi.fh, fi.flags))
        if fi.fh not in self._served.opened:
            del self._opened[fi.fh]
        if number not in self._hidden.values():
            self._forget(number)

    # directories

    def opendir(self, path: str) -> int:
        return int(p.OPEN_OUT.unpack(self.ask(p.OPENDIR, self.number(path)))[0])

    def readdir(self, path: str | None, fh: int) -> list[tuple[str, Stat, int]]:
        """Return all entries at once."""
        found, offset = list[tuple[str, Stat, int]](), 0
        while data := self.ask(p.READDIR, p.TOP, p.READ_IN.pack(fh, offset, p.MOST)):
            at = 0
            while at < len(data):
                id, offset, length, kind = p.DIRENT.unpack_from(data, at)
                at += p.DIRENT.size
                name = data[at : at + length].decode("latin-1")
                found.append((name, {"st_ino": id, "st_mode": kind << 12}, 0))
                at += -(-length // 8) * 8
        return found

    def releasedir(self, path: str | None, fh: int) -> None:
        self.ask(p.RELEASEDIR, p.TOP, p.HANDLE.pack(fh))

    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> None:
        self.ask(p.FSYNCDIR, p.TOP, p.HANDLE.pack(fh))


def serve(served: Served, point: str, options: Mapping[str, str | bool]) -> None:
    """Mount and serve until the mount is gone or a signal ends it.

    options     for libfuse: name -> value, or True for a flag
    raises      MountError
    """
    os.environ[LIBRARY_PATH] = library() or ""
    fuse = importlib.import_module("fuse")
    paths, caching = Paths(served), served.caching
    served.caller = fuse.fuse_get_context
    # auto_cache: pages are kept while size and time of the file stay the same
    keeps = "kernel_cache" if caching.names == FOREVER else "auto_cache"
    settings = {
        "use_ino": True, "nothreads": True, "foreground": True, "nonempty": True,
        "big_writes": True, "atomic_o_trunc": True,
        "entry_timeout": caching.names, "attr_timeout": caching.names,
        "negative_timeout": caching.missing, keeps: caching.pages,
    }  # fmt: skip
    mountpoint = os.fsencode(point).decode("latin-1")
    try:
        fuse.FUSE(paths, mountpoint, raw_fi=True, encoding="latin-1", **settings, **options)
    except RuntimeError as error:  # a code of fuse_main_real; also after an end by a signal
        if not paths.started:
            raise MountError(f"{LIBFUSE} on {point} (code {error})") from None
