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
import signal
import stat
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, repeat, takewhile
from operator import itemgetter, not_
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkmount.handles import DOTS, FOREVER, KNOWN_DIRS, NAME_MAX
from winkmount.operations import PLUS, Operations
from winkmount.source import UNREADABLE, Attr, DirEntry, Healing, Nodes, Page, refuse

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
S_IFMT: Final = 0o170000
UINT32: Final = (1 << 32) - 1
# libfuse's fuse_fill_dir_t. It never waits and is called for each entry: keeps the GIL.
FILLER: Final = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
)
# linux/fuse.h, the requests that are answered by `Direct` and their structures
LOOKUP, FORGET, GETATTR, READLINK, OPEN, READ, STATFS = 1, 2, 3, 5, 14, 15, 17
FSYNC, GETXATTR, LISTXATTR, FLUSH, OPENDIR, READDIR, FSYNCDIR = 20, 22, 23, 25, 27, 28, 30
ACCESS, INTERRUPT, DESTROY, BATCH_FORGET, READDIRPLUS_OF, LSEEK = 34, 36, 38, 42, 44, 46
SILENT: Final = frozenset({FORGET, INTERRUPT, BATCH_FORGET})  # no answer is awaited
REFUSED: Final = frozenset({4, 6, 8, 9, 10, 11, 12, 13, 16, 21, 24, 35, 43, 45, 47, 51})  # changes
IN: Final = struct.Struct("=IIQQ16x")  # fuse_in_header: length, opcode, unique, nodeid
OUT: Final = struct.Struct("=IiQ")  # fuse_out_header: length, error, unique
READ_IN: Final = struct.Struct("=8xQI")  # of a fuse_read_in: offset, size
LSEEK_IN: Final = struct.Struct("=8xqI")  # offset, whence
LONG: Final = struct.Struct("=Q")
WORD: Final = struct.Struct("=I")
WORDS: Final = struct.Struct("=II")
STATFS_OUT: Final = struct.Struct("=5Q3I28x")
ATTR: Final = "6q10I"  # fuse_attr
ATTR_OUT: Final = struct.Struct("=QII" + ATTR)
ENTRY_OUT: Final = struct.Struct("=QQQQII" + ATTR)
DIRENT: Final = struct.Struct("=QQII")  # id, offset, length of the name, kind
DOT: Final = struct.Struct("=QQII8s")
NO_ENTRY: Final = bytes(ENTRY_OUT.size)
ENTRY: Final = np.dtype({  # fuse_direntplus, without the name; the fields that are filled
    "names": [
        "node", "valid", "id", "size", "blocks", "seconds", "nanos", "mode", "links", "uid", "gid",
        "blksize", "ino", "offset", "length", "kind",
    ],
    "formats": [
        "i8", "(2,)u8", "i8", "i8", "i8", "(3,)i8", "(3,)u4", "u4", "u4", "u4", "u4",
        "u4", "i8", "i8", "u4", "u4",
    ],
    "offsets": [0, 16, 40, 48, 56, 64, 88, 100, 104, 108, 112, 120, 128, 136, 144, 148],
    "itemsize": ENTRY_OUT.size + DIRENT.size,
})  # fmt: skip
HELD: Final = 1 << 18  # numbers that the kernel has, up to which it gets those of files listed
REQUEST: Final = (1 << 20) + 4096  # bytes that the kernel wants room for
ENDS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

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


# --- answers to the kernel without libfuse ---


class Shown(NamedTuple):
    """What is shown in the place of owner and permissions; None: they are."""

    uid: int | None = None
    gid: int | None = None
    mode: int | None = None

    @classmethod
    def take(cls, options: dict[str, str | bool]) -> Shown:
        """Take uid, gid and umask, that are libfuse's, from the options."""
        uid, gid, umask = (options.pop(name, None) for name in ("uid", "gid", "umask"))
        return cls(
            None if uid is None else int(uid),
            None if gid is None else int(gid),
            None if umask is None else 0o777 & ~int(str(umask), 8),
        )

    def of(self, attr: Attr) -> Attr:
        if self == _AS_IT_IS:
            return attr
        uid = attr.uid if self.uid is None else self.uid
        gid = attr.gid if self.gid is None else self.gid
        mode = attr.mode if self.mode is None else stat.S_IFMT(attr.mode) | self.mode
        return attr._replace(uid=uid, gid=gid, mode=mode)


_AS_IT_IS: Final = Shown()


class Entries:
    """The entries of a page as the kernel reads them.

    plus    with attributes, for READDIRPLUS
    plain   without, for READDIR
    few     as `plus`, but the kernel gets numbers and attributes of directories only
    behind  bytes of `plus` up to the end of each; `bare`: of `plain`
    kinds   of file; `directories`: how many of them come before each
    """

    def __init__(self, page: Page, shown: Shown, seconds: int) -> None:
        """`seconds`: that the kernel may believe what it is told."""
        rows, n = np.zeros(len(page.names), ENTRY), len(page.names)
        ids, mode, size, mtime_ns, uid, gid, ctime_ns = page.attrs.T
        known = size != UNREADABLE
        rows["node"] = np.where(known, page.nodes, 0)
        rows["valid"], rows["links"], rows["blksize"] = seconds, 1, 4096
        rows["id"] = rows["ino"] = ids
        rows["size"], rows["blocks"], rows["kind"] = size, -(-size // 512), mode >> 12
        rows["mode"] = mode if shown.mode is None else mode & S_IFMT | shown.mode
        rows["uid"] = uid if shown.uid is None else shown.uid
        rows["gid"] = gid if shown.gid is None else shown.gid
        changed = np.where(ctime_ns == 0, mtime_ns, ctime_ns)
        times = np.stack([mtime_ns, mtime_ns, changed], 1)
        rows["seconds"], rows["nanos"] = np.divmod(times, NANO)
        rows["offset"] = np.array(page.offsets, np.int64) + DOTS
        lengths = np.fromiter(map(len, page.names), np.int64, n)
        rows["length"] = lengths
        room = int(lengths.max() + 7) // 8 * 8
        text = np.array(page.names, f"S{room}").view(np.uint8).reshape(n, room)
        head = rows.view(np.uint8).reshape(n, ENTRY.itemsize)
        raw, width = np.concatenate([head, text], 1).tobytes(), ENTRY.itemsize + room
        sizes = ENTRY.itemsize + (lengths + 7) // 8 * 8
        ends = (np.arange(n) * width + sizes).tolist()
        self.plus = [raw[at:end] for at, end in zip(range(0, n * width, width), ends, strict=True)]
        self.plain = [entry[ENTRY_OUT.size :] for entry in self.plus]
        self.kinds: list[int] = rows["kind"].tolist()
        self.directories = [0, *np.cumsum(rows["kind"] == stat.S_IFDIR >> 12).tolist()]
        self._few: list[bytes] | None = None
        self.behind = [0, *np.cumsum(sizes).tolist()]
        self.bare = [0, *np.cumsum(sizes - ENTRY_OUT.size).tolist()]

    @property
    def few(self) -> list[bytes]:
        if self._few is None:
            self._few = [
                entry if kind == stat.S_IFDIR >> 12 else NO_ENTRY + entry[ENTRY_OUT.size :]
                for entry, kind in zip(self.plus, self.kinds, strict=True)
            ]
        return self._few


class Direct:
    """Answers the requests of the kernel for a tree that never changes.

    The kernel is told that nothing is opened: so it lists a directory without opendir and
    releasedir, and what it has listed once it does not ask for again as long as it has memory.

    It keeps an inode of 1 KB for each number that it was given until it forgets it, which it says:
    where that becomes much, it gets none of files that are only listed.

    operations  what is rare is answered by them
    """

    def __init__(self, operations: Operations, nodes: Nodes, shown: Shown) -> None:
        self._operations, self._nodes, self._shown = operations, nodes, shown
        self._seconds = int(operations.caching.names)
        self._missing = ENTRY_OUT.pack(0, 0, int(operations.caching.missing), 0, 0, 0, *[0] * 16)
        self._held = 0  # numbers that the kernel was given and has not forgotten
        self._given: dict[int, int] = {}  # numbers given of directories that are listed, from the
        # second request on
        self._answers: Mapping[int, Callable[[int, memoryview], bytes]] = {
            LOOKUP: self._lookup,
            GETATTR: self._getattr,
            READDIRPLUS_OF: self._list_plus,
            READDIR: self._list_plain,
            READ: self._read,
            READLINK: self._readlink,
            GETXATTR: self._getxattr,
            LISTXATTR: self._listxattr,
            STATFS: self._statfs,
            LSEEK: self._lseek,
            ACCESS: self._access,
            FSYNC: lambda node, body: b"",
            FSYNCDIR: lambda node, body: b"",
            DESTROY: lambda node, body: b"",
        }

    def serve(self, device: int, ending: int) -> None:
        """Read requests and answer them until the mount is gone, or `ending` can be read."""
        room = memoryview(bytearray(REQUEST))
        poll, rooms = select.poll(), [room]
        poll.register(device, select.POLLIN)
        poll.register(ending, select.POLLIN)
        mutex, wait, unpack, answer = self._operations.mutex, poll.poll, IN.unpack_from, self.answer
        while ending not in dict(wait()):
            try:
                length = os.readv(device, rooms)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue  # ENOENT: whoever asked has gone
                if error.errno == errno.ENODEV:
                    return
                raise
            _, opcode, unique, node = unpack(room)
            if opcode in SILENT:
                self.forget(opcode, room[IN.size : length])
                continue
            with mutex:
                code, data = answer(opcode, node, room[IN.size : length])
            try:
                os.writev(device, (OUT.pack(OUT.size + len(data), -code, unique), data))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):  # nobody waits any more
                    raise

    def answer(self, opcode: int, node: int, body: memoryview) -> tuple[int, bytes]:
        """-> an errno or 0, and what is to be said. After damage that was healed, once more."""
        call = self._answers.get(opcode)
        if call is None:  # what the kernel need not ask, or what changes something
            return errno.EROFS if opcode in REFUSED else errno.ENOSYS, b""
        try:
            try:
                return 0, call(node, body)
            except OSError:
                raise
            except Exception as error:
                source = self._operations.source
                if not (isinstance(source, Healing) and source.heal(error)):
                    raise
                return 0, call(node, body)
        except OSError as error:
            if error.errno:
                return error.errno, b""
            log.exception("request %d", opcode)
        except Exception as error:
            log.error("request %d of %d: %s", opcode, node, error)
            log.debug("request %d", opcode, exc_info=True)
        return errno.EIO, b""

    def forget(self, opcode: int, body: memoryview) -> None:
        """The kernel does not hold some numbers any more."""
        if opcode == FORGET:
            gone = LONG.unpack_from(body)[0]
        elif opcode == BATCH_FORGET:
            gone = int(np.frombuffer(body, np.int64)[2::2].sum())
        else:
            return
        self._held = max(self._held - gone, 0)

    def _lookup(self, node: int, body: memoryview) -> bytes:
        name = bytes(body[:-1])
        if len(name) > NAME_MAX:
            raise refuse(errno.ENAMETOOLONG)
        try:
            found, attr = self._nodes.find(node, name)
        except FileNotFoundError:
            return self._missing
        valid = self._seconds
        self._held += 1
        return ENTRY_OUT.pack(found, 0, valid, valid, 0, 0, *self._fields(attr))

    def _getattr(self, node: int, body: memoryview) -> bytes:
        return ATTR_OUT.pack(self._seconds, 0, 0, *self._fields(self._nodes.attr(node)))

    def _fields(self, attr: Attr) -> tuple[int, ...]:
        """A fuse_attr."""
        id, mode, size, mtime_ns, uid, gid, ctime_ns = self._shown.of(attr)
        at, nanos = divmod(mtime_ns, NANO)
        changed, rest = divmod(ctime_ns or mtime_ns, NANO)
        blocks, who = -(-size // 512), (uid & UINT32, gid & UINT32)
        return id, size, blocks, at, at, changed, nanos, nanos, rest, mode, 1, *who, 0, 4096, 0

    def _list_plus(self, node: int, body: memoryview) -> bytes:
        return self._list(node, body, plus=True)

    def _list_plain(self, node: int, body: memoryview) -> bytes:
        return self._list(node, body, plus=False)

    def _list(self, node: int, body: memoryview, *, plus: bool) -> bytes:
        """Entries from an offset on until there is no more room: 1 is behind `.`, 2 behind `..`."""
        offset, room = READ_IN.unpack_from(body)
        first = b""
        if offset < DOTS:
            self._given.pop(node, None)
            first = b"".join(self._dots(node, plus)[offset:])
        page, start, stop = self._nodes.entries(node, max(offset - DOTS, 0))
        if start == stop:
            return first
        found = page.packed
        if found is None:
            found = page.packed = Entries(page, self._shown, self._seconds)
        assert isinstance(found, Entries)
        ends = found.behind if plus else found.bare
        most = ends[start] + room - len(first)
        if ends[stop] > most:
            stop = bisect_right(ends, most, start + 1, stop) - 1
        if not plus:
            entries = found.plain
        elif self._gives(node, offset, stop - start):
            entries = found.plus
            self._held += stop - start
        else:
            entries = found.few
            self._held += found.directories[stop] - found.directories[start]
        return first + b"".join(entries[start:stop])

    def _gives(self, node: int, offset: int, count: int) -> bool:
        """Whether the kernel gets the numbers of so many more files of a directory."""
        if offset < DOTS or self._held >= HELD:
            return self._held < HELD
        given = self._given.pop(node, 0) + count
        self._given[node] = given
        if len(self._given) > KNOWN_DIRS:
            del self._given[next(iter(self._given))]
        return given <= PLUS

    def _dots(self, node: int, plus: bool) -> tuple[bytes, bytes]:
        head, kind = NO_ENTRY if plus else b"", stat.S_IFDIR >> 12
        here, above = self._nodes.ids(node)
        return (
            head + DOT.pack(here, 1, 1, kind, b"."),
            head + DOT.pack(above, 2, 2, kind, b".."),
        )

    def _read(self, node: int, body: memoryview) -> bytes:
        return self._nodes.read(node, *READ_IN.unpack_from(body))

    # what is rare

    def _path(self, node: int) -> str:
        return "/" + self._nodes.path(node).decode("latin-1")

    def _readlink(self, node: int, body: memoryview) -> bytes:
        return self._operations.readlink(self._path(node)).encode("latin-1")

    def _getxattr(self, node: int, body: memoryview) -> bytes:
        name = bytes(body[WORDS.size : -1])
        if name == b"security.capability":
            raise refuse(errno.ENODATA)
        value = self._operations.getxattr(self._path(node), name.decode("latin-1"))
        return self._sized(value, body)

    def _listxattr(self, node: int, body: memoryview) -> bytes:
        names = self._operations.listxattr(self._path(node))
        return self._sized("".join(name + "\0" for name in names).encode("latin-1"), body)

    @staticmethod
    def _sized(value: bytes, body: memoryview) -> bytes:
        """Of extended attributes: the value, or how long it is."""
        (room,) = WORD.unpack_from(body)
        if room == 0:
            return WORDS.pack(len(value), 0)
        if len(value) > room:
            raise refuse(errno.ERANGE)
        return value

    def _statfs(self, node: int, body: memoryview) -> bytes:
        found = self._operations.statfs("/")
        fields = "blocks", "bfree", "bavail", "files", "ffree", "bsize", "namemax", "frsize"
        return STATFS_OUT.pack(*(found[f"f_{field}"] for field in fields))

    def _lseek(self, node: int, body: memoryview) -> bytes:
        offset, whence = LSEEK_IN.unpack_from(body)
        fields: Any = None  # nothing is opened
        return struct.pack("=q", self._operations.lseek(self._path(node), offset, whence, fields))

    def _access(self, node: int, body: memoryview) -> bytes:
        self._operations.access(self._path(node), *WORD.unpack_from(body))
        return b""


@contextmanager
def _ending() -> Iterator[int]:
    """-> a descriptor that can be read when a signal has come that ends a server."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, lambda *_: None) for number in ENDS}
    woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


class _Arguments(ctypes.Structure):
    """libfuse's fuse_args."""

    _fields_ = (
        ("argc", ctypes.c_int),
        ("argv", ctypes.POINTER(ctypes.c_char_p)),
        ("allocated", ctypes.c_int),
    )


def _session(
    mfusepy: Any, operations: Operations, options: Mapping[str, str | bool]
) -> tuple[ctypes.c_void_p, object]:
    """-> libfuse's session, NULL where it refuses an option, and what must live as long as it."""
    libfuse = mfusepy._libfuse
    for name in ("mount", "receive_buf", "process_buf"):
        getattr(libfuse, f"fuse_session_{name}").argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    for name in ("unmount", "destroy", "fd"):
        getattr(libfuse, f"fuse_session_{name}").argtypes = [ctypes.c_void_p]
    new = libfuse.fuse_session_new
    new.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    new.restype = ctypes.c_void_p

    def init(_: Any, connection: Any) -> None:
        conn = connection[0]
        conn.want |= (READDIRPLUS | CACHE_SYMLINKS) & conn.capable
        conn.want &= ~(READDIRPLUS_AUTO | SPLICES | AUTO_INVAL_DATA)
        operations.init("/")

    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(mfusepy.fuse_conn_info))
    first = (kind * 1)(kind(init))  # a fuse_lowlevel_ops with nothing but the first
    text = ",".join(name if value is True else f"{name}={value}" for name, value in options.items())
    words = (ctypes.c_char_p * 3)(b"winkfs", b"-o", text.encode("latin-1"))
    arguments = _Arguments(3, words, 0)
    session = new(ctypes.byref(arguments), ctypes.byref(first), ctypes.sizeof(first), None)
    return ctypes.c_void_p(session), (first, words, arguments)


def serve_nodes(
    mfusepy: Any, operations: Operations, nodes: Nodes, point: str, options: dict[str, str | bool]
) -> bool:
    """Mount with libfuse, and answer the kernel here, until the mount is gone or a signal comes.

    ->      False: libfuse refused; it has said why on stderr
    """
    shown = Shown.take(options)
    session, kept = _session(mfusepy, operations, options)
    libfuse = mfusepy._libfuse
    if not session or libfuse.fuse_session_mount(session, os.fsencode(point)):
        return False
    try:
        with _ending() as ending:
            # what libfuse answers is INIT alone
            buffer = ctypes.create_string_buffer(256)
            while not operations.started:
                got = libfuse.fuse_session_receive_buf(session, buffer)
                if got > 0:
                    libfuse.fuse_session_process_buf(session, buffer)
                elif got not in (-errno.EINTR, -errno.EAGAIN):
                    return True
            Direct(operations, nodes, shown).serve(libfuse.fuse_session_fd(session), ending)
    finally:
        libfuse.fuse_session_unmount(session)
        libfuse.fuse_session_destroy(session)
        del kept
    return True
