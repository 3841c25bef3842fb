"""What libfuse 3 can do beyond mfusepy's own callbacks, and the callbacks that must be fast.

mfusepy's way to an operation makes a dict for every stat and drops what readdir-plus, lseek and the
flags of a rename need. The callbacks here fill libfuse's structures themselves. With readdir-plus
the kernel has the attributes of the files that it lists, and does not ask for each.

Fuse3    what mfusepy mounts
Direct   a mount of a tree that never changes and whose files have numbers: libfuse only mounts it,
         the requests of the kernel are read and answered here
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import errno
import logging
import os
import select
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, repeat, takewhile
from operator import itemgetter, not_
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from winkmount.handles import DOTS, FOREVER
from winkmount.operations import Operations
from winkmount.source import UNREADABLE, Attr, DirEntry

AUTO_INVAL_DATA: Final = 1 << 12  # FUSE_CAP_ of libfuse's fuse_common.h
SPLICES: Final = 7 << 7  # a pipe between kernel and libfuse: two calls a request instead of one
READDIRPLUS: Final = 1 << 13
READDIRPLUS_AUTO: Final = 1 << 14
CACHE_SYMLINKS: Final = 1 << 23
READDIR_PLUS: Final = 1
FILL_DIR_PLUS: Final = 2
STAT: Final = {  # the fields that are filled -> which value
    "st_ino": 0, "st_mode": 1, "st_nlink": 2, "st_uid": 3, "st_gid": 4, "st_size": 5,
    "st_blksize": 6, "st_blocks": 7, "st_atimespec": 8, "st_mtimespec": 8, "st_ctimespec": 10,
}  # fmt: skip
TIME: Final = 8  # from here on the values are seconds, and the nanoseconds behind them
NANO: Final = 1_000_000_000
DEEPEST: Final = 16  # requests that wait, one begun while another was served, at most
FEW: Final = 32  # attributes that are cheaper one by one than as columns
# libfuse's fuse_fill_dir_t. It never waits and is called for each entry: keeps the GIL.
FILLER: Final = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
)

log = logging.getLogger("winkmount")


class StatForm:
    """Packs attributes into the machine's struct stat, all fields at once.

    c_stat  ctypes structure
    """

    def __init__(self, c_stat: type[ctypes.Structure]) -> None:
        self.size = ctypes.sizeof(c_stat)
        fields = [(getattr(c_stat, name), which) for name, which in STAT.items()]
        letters, at, order = "=", 0, list[int]()
        for field, which in sorted(fields, key=lambda pair: pair[0].offset):
            letters += f"{field.offset - at}x" + {4: "I", 8: "q", 16: "qq"}[field.size]
            order += [which] if which < TIME else [which, which + 1]
            at = field.offset + field.size
        self._struct = struct.Struct(f"{letters}{self.size - at}x")
        self._order = itemgetter(*order)
        self._rows = np.dtype({
            "names": list(STAT),
            "formats": [{4: "u4", 8: "i8", 16: "(2,)i8"}[field.size] for field, _ in fields],
            "offsets": [field.offset for field, _ in fields],
            "itemsize": self.size,
        })  # fmt: skip

    def pack_into(self, view: memoryview, attr: Attr, links: int, at: int = 0) -> None:
        """view    the bytes of a struct stat, from `at` on"""
        id, mode, size, mtime_ns, uid, gid, ctime_ns = attr
        times = *divmod(mtime_ns, NANO), *divmod(ctime_ns or mtime_ns, NANO)
        values = (id, mode, links, uid, gid, size, 4096, -(-size // 512), *times)
        self._struct.pack_into(view, at, *self._order(values))

    def pack(self, attrs: Sequence[Attr]) -> npt.NDArray[Any]:
        """-> a struct stat for each."""
        rows = np.zeros(len(attrs), self._rows)
        if len(attrs) < FEW:
            self._pack_each(rows, attrs)
            return rows
        width = len(Attr._fields)
        try:
            numbers = np.fromiter(chain.from_iterable(attrs), np.int64, width * len(attrs))
        except OverflowError:  # nanoseconds of a time whose seconds fit
            self._pack_each(rows, attrs)
            return rows
        id, mode, size, mtime_ns, uid, gid, ctime_ns = numbers.reshape(-1, width).T
        values = (id, mode, 1, uid, gid, size, 4096, -(-size // 512))
        for name, which in STAT.items():
            if which < TIME:
                rows[name] = values[which]
        times = rows["st_mtimespec"]
        times[:, 0], times[:, 1] = np.divmod(mtime_ns, NANO)
        rows["st_atimespec"] = rows["st_ctimespec"] = times
        changed = np.flatnonzero(ctime_ns)
        if len(changed):
            times = rows["st_ctimespec"]
            times[changed, 0], times[changed, 1] = np.divmod(ctime_ns[changed], NANO)
        return rows

    def _pack_each(self, rows: npt.NDArray[Any], attrs: Sequence[Attr]) -> None:
        view = rows.view(np.uint8).data
        for at, attr in zip(range(0, len(view), self.size), attrs, strict=True):
            self.pack_into(view, attr, 1, at)


class Beside:
    """Runs calls that wait in a thread, and answers the kernel meanwhile, as libfuse's loop does.

    libfuse has one loop and one thread, and the loop is in the middle of a request that waits: so
    the next requests are read and answered right here, before that one is.
    """

    def __init__(self, mfusepy: Any) -> None:
        self._buf, self._libfuse = mfusepy.fuse_buf, mfusepy._libfuse
        self._session = ctypes.c_void_p()
        self._thread = ThreadPoolExecutor(1, "winkmount-sync")
        self._buffers: list[Any] = []  # those not in use
        self._depth = 0

    def __call__(self, call: Callable[[], None]) -> None:
        """Raises what `call` raises."""
        if self._depth >= DEEPEST:
            call()
            return
        future, done = self._thread.submit(call), os.eventfd(0, os.EFD_CLOEXEC)
        self._depth += 1
        try:
            future.add_done_callback(lambda _: os.eventfd_write(done, 1))
            self._serve(future, done)
            future.result()
        finally:
            self._depth -= 1
            concurrent.futures.wait([future])  # before the descriptor it writes to is another
            os.close(done)

    def _serve(self, future: Future[None], done: int) -> None:
        """Answer requests until the call is done, or the mount gone."""
        libfuse, session = self._libfuse, self._find_session()
        poll = select.poll()
        poll.register(done, select.POLLIN)
        poll.register(libfuse.fuse_session_fd(session), select.POLLIN)
        # libfuse may know a longer struct, and fills in where its buffer is
        buffer = self._buffers.pop() if self._buffers else ctypes.create_string_buffer(256)
        while not future.done() and not libfuse.fuse_session_exited(session):
            if any(fd == done for fd, _ in poll.poll()):
                break
            got = libfuse.fuse_session_receive_buf(session, buffer)
            if got > 0:
                libfuse.fuse_session_process_buf(session, buffer)
            elif got not in (-errno.EINTR, -errno.EAGAIN):
                break
        self._buffers.append(buffer)

    def _find_session(self) -> ctypes.c_void_p:
        if not self._session:
            libfuse = self._libfuse
            libfuse.fuse_get_session.argtypes = [ctypes.c_void_p]
            libfuse.fuse_get_session.restype = ctypes.c_void_p
            libfuse.fuse_session_fd.argtypes = [ctypes.c_void_p]
            libfuse.fuse_session_exited.argtypes = [ctypes.c_void_p]
            for name in ("fuse_session_receive_buf", "fuse_session_process_buf"):
                getattr(libfuse, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
            fuse = libfuse.fuse_get_context().contents.fuse
            self._session = ctypes.c_void_p(libfuse.fuse_get_session(fuse))
        return self._session


def make(mfusepy: Any) -> Any:
    """-> the class to mount with, on top of mfusepy's FUSE."""
    base: Any = mfusepy.FUSE
    form = StatForm(mfusepy.c_stat)
    pack_into = form.pack_into

    class Fuse3(base):  # type: ignore[misc] # mfusepy has no types here
        operations: Operations

        def _wrapper(self, method: Any, *args: Any) -> int:
            try:
                return method(*args) or 0
            except OSError as error:
                return -(error.errno or errno.EIO)
            except Exception:
                log.exception("%s", method.__name__)
                return -errno.EIO

        def init_fuse_3(self, connection: Any, config: Any) -> None:
            caching, conn, settings = self.operations.caching, connection[0], config[0]
            conn.want |= (READDIRPLUS | CACHE_SYMLINKS) & conn.capable
            conn.want &= ~(READDIRPLUS_AUTO | SPLICES)
            if caching.names == FOREVER:  # else the kernel drops the pages of a file that changed
                conn.want &= ~AUTO_INVAL_DATA
            settings.entry_timeout = settings.attr_timeout = caching.names
            settings.negative_timeout = caching.missing
            settings.kernel_cache = 0  # each open says it
            settings.nullpath_ok = int(not caching.fixed)  # a handle is enough, where there is one
            if settings.nullpath_ok:  # then libfuse locks no path meanwhile
                self.operations.beside = Beside(mfusepy)
            super().init_fuse_3(connection, config)

        def getattr_fuse_3(self, path: bytes | None, buf: Any, fip: Any) -> int:
            name = None if path is None else path.decode("latin-1")
            attr, links = self.operations.lookup(name, fip.contents if fip else None)
            pack_into(memoryview(buf.contents).cast("B"), attr, links)
            return 0

        def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> Any:
            return self.operations.rename(old.decode("latin-1"), new.decode("latin-1"), flags)

        def chmod_fuse_3(self, path: bytes | None, mode: int, fip: Any) -> Any:
            name = None if path is None else path.decode("latin-1")
            return self.operations.chmod(name, mode, fip.contents if fip else None)

        def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> Any:
            name = None if path is None else path.decode("latin-1")
            return self.operations.truncate(name, length, fip.contents if fip else None)

        def create(self, path: bytes, mode: int, fip: Any) -> int:
            info = fip.contents
            self.operations.create(path.decode("latin-1"), mode, info)
            info.noflush = self.noflush
            return 0

        def open(self, path: bytes, fip: Any) -> int:
            info = fip.contents
            self.operations.open(path.decode("latin-1"), info)
            info.noflush = self.noflush
            return 0

        @property
        def noflush(self) -> int:
            """Where the engine holds bytes back it has made sure of room for them: a close has no
            error to tell, and need not wait."""
            return int(self.operations.source.gather)

        def write(self, path: bytes | None, buf: Any, size: int, offset: int, fip: Any) -> int:
            return self.operations.write(None, ctypes.string_at(buf, size), offset, fip.contents)

        def getxattr(self, path: bytes, name: bytes, value: Any, size: int, *args: Any) -> int:
            if name == b"security.capability":
                return -errno.ENODATA  # the kernel asks before every write
            return int(super().getxattr(path, name, value, size, *args))

        def lseek(self, path: bytes | None, offset: int, whence: int, fip: Any) -> int:
            name = None if path is None else path.decode("latin-1")
            return self.operations.lseek(name, offset, whence, fip.contents)

        def fallocate(self, path: bytes | None, mode: int, offset: int, size: int, fip: Any) -> int:
            return self.operations.fallocate(None, mode, offset, size, fip.contents)

        def opendir(self, path: bytes, fip: Any) -> int:
            info = fip.contents
            info.fh = self.operations.opendir(path.decode("latin-1"))
            info.cache_readdir = info.keep_cache = int(self.operations.caching.pages)
            return 0

        def readdir_fuse_3(
            self, path: bytes | None, buf: Any, filler: Any, offset: int, fip: Any, flags: int
        ) -> int:
            fill, into = ctypes.cast(filler, FILLER), repeat(ctypes.c_void_p(buf))

            def take(entries: list[DirEntry], plus: bool) -> int:
                names, attrs, offsets = zip(*entries, strict=True)
                stats = form.pack(attrs)
                start, step = stats.ctypes.data, stats.itemsize
                places = range(start, start + len(entries) * step, step)
                behind = map(DOTS.__add__, offsets)
                how: Iterable[int] = repeat(0)
                if plus and flags & READDIR_PLUS:
                    known = stats["st_size"] != UNREADABLE
                    how = repeat(FILL_DIR_PLUS) if known.all() else (FILL_DIR_PLUS * known).tolist()
                full = map(fill, into, names, places, behind, how)
                return len(list(takewhile(not_, full)))  # no step of it in Python

            return self.operations.fill(fip.contents.fh, offset, take)

    return Fuse3
