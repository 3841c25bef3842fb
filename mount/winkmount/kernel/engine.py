"""Engine: answers the kernel's requests by the operations of a mount, of any Source."""

from __future__ import annotations

import errno
import itertools
import logging
import stat
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from winkmount.handles import DOTS, FOREVER
from winkmount.kernel import protocol as p
from winkmount.kernel.device import Connection, Pace, mount, signals, unmount
from winkmount.kernel.direct import Direct, Rare
from winkmount.kernel.entries import Entries, Giving, Shown, attr_fields
from winkmount.kernel.nodes import BY_ID, NodePaths
from winkmount.operations import Operations
from winkmount.source import Amendment, Attr, DirEntry, Making, Nodes, Page, Resting

WANTED: Final = (
    p.ASYNC_READ | p.ATOMIC_O_TRUNC | p.BIG_WRITES | p.DO_READDIRPLUS | p.ASYNC_DIO
    | p.PARALLEL_DIROPS | p.MAX_PAGES | p.CACHE_SYMLINKS | p.HANDLE_KILLPRIV_V2 | p.NO_OPEN_SUPPORT
)  # fmt: skip
LATER: Final = frozenset({p.FSYNC, p.FSYNCDIR})  # answered by a thread that waits for the disk
NANO: Final = 1_000_000_000
KEPT: Final = 1 << 16  # files written last whose inodes the kernel may keep, see `Making`
KNOWN: Final = 1 << 18  # numbers of files that it may have, 100 MB here
LISTED: Final = 1 << 20  # those of files that were only listed, 120 MB here
MANY: Final = 1 << 14  # numbers that are forgotten before memory is given back
MOST_PRUNED: Final = 1 << 12  # of those, at once
FEW: Final = 32  # entries that are packed faster one by one
PRUNED: Final = 256  # files that it is told to forget at once
Reply = bytes

log = logging.getLogger("winkmount")


class Info:
    """What an open file is asked with, and answered: see `handles.FileInfo`."""

    __slots__ = ("direct_io", "fh", "flags", "keep_cache")

    def __init__(self, fh: int = 0, flags: int = 0) -> None:
        self.fh, self.flags, self.direct_io, self.keep_cache = fh, flags, 0, 0


class Engine:
    """The requests of one mount.

    operations  with `NodePaths`
    """

    def __init__(self, operations: Operations, connection: Connection, shown: Shown) -> None:
        assert isinstance(operations.paths, NodePaths)
        self.operations, self.nodes, self._shown = operations, operations.paths, shown
        self._connection = connection
        caching = operations.caching
        self._names, (seconds, nanos) = _time(caching.names), _time(caching.missing)
        known = seconds or nanos
        self._missing = known and p.ENTRY_OUT.pack(0, 0, seconds, 0, nanos, 0, *[0] * 16)
        self._open_flags = p.NOFLUSH * operations.source.gather
        # The kernel forgets a listing at each of its own changes. To walk again takes a third.
        # Beside a file of an append-only container a directory by time may change, too.
        mine = caching.names == FOREVER and operations.source.gather
        kept = caching.pages and (caching.fixed or mine)
        self._listing_flags = (p.CACHE_DIR | p.KEEP_CACHE) * kept
        self._thread = ThreadPoolExecutor(1, "winkmount-sync")  # waits for the disk
        # New files that are closed, in this order. The kernel would rather keep their inodes, 1 KB
        # each, than pages of other programs; and the server has 400 bytes of each.
        self._new, self._closed = set[int](), deque[int]()
        source = operations.source
        self._kept = source.kept if isinstance(source, Making) else KEPT
        self._prunes, self._beyond = True, 0  # numbers beyond KNOWN since the last prune
        self._giving = Giving()
        self._forgotten = 0  # numbers since the last rest
        operations.context = connection.caller
        self._answers: Mapping[int, Callable[[int, memoryview], Reply]] = {
            **Rare(operations, _node).answers,
            p.LOOKUP: self._lookup,
            p.GETATTR: self._getattr,
            p.SETATTR: self._setattr,
            p.SYMLINK: self._symlink,
            p.MKNOD: self._mknod,
            p.MKDIR: self._mkdir,
            p.UNLINK: self._unlink,
            p.RMDIR: self._rmdir,
            p.RENAME: self._rename,
            p.RENAME2: self._rename2,
            p.LINK: self._link,
            p.OPEN: self._open,
            p.READ: self._read,
            p.WRITE: self._write,
            p.RELEASE: self._release,
            p.FSYNC: self._fsync,
            p.SETXATTR: self._setxattr,
            p.REMOVEXATTR: self._removexattr,
            p.FLUSH: self._flush,
            p.OPENDIR: self._opendir,
            p.READDIR: self._readdir,
            p.READDIRPLUS: self._readdirplus,
            p.RELEASEDIR: self._releasedir,
            p.FSYNCDIR: self._fsyncdir,
            p.CREATE: self._create,
            p.FALLOCATE: self._fallocate,
            p.LSEEK: self._lseek,
            p.DESTROY: lambda node, body: b"",
        }

    def close(self) -> None:
        self._thread.shutdown()

    def start(self) -> None:
        pass

    # the loop

    def idle(self) -> bool:
        return True

    def request(self, opcode: int, unique: int, node: int, body: memoryview) -> bool:
        """Answer a request, or begin to."""
        if opcode in LATER:
            self._connection.hold(unique)
            self._thread.submit(self._answer_later, opcode, unique, node, bytes(body))
            return False
        code, data = self.answer(opcode, node, body)
        self._connection.reply(unique, code, data)
        return True

    def _answer_later(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        if unique not in self._connection.callers.waiting:  # who asked was let go
            return
        try:
            self._connection.reply(unique, *self.answer(opcode, node, memoryview(body)))
        except OSError as error:
            log.error("the answer to a request that waited: %s", error)

    def answer(self, opcode: int, node: int, body: memoryview) -> tuple[int, Reply]:
        """-> an errno or 0, and what is to be said."""
        call = self._answers.get(opcode)
        if call is None:
            return errno.ENOSYS, b""
        try:
            return 0, call(node, body)
        except OSError as error:
            if error.errno:
                return error.errno, b""
            log.exception("request %d", opcode)
        except Exception:
            log.exception("request %d", opcode)
        return errno.EIO, b""

    def forget(self, opcode: int, node: int, body: memoryview) -> None:
        """The kernel does not hold some numbers any more."""
        with self.operations.mutex:
            if opcode == p.FORGET:
                numbers = [node, *p.LONG.unpack_from(body)]
            else:
                numbers = np.frombuffer(body, np.int64)[1:].tolist()
            for number, count in zip(numbers[::2], numbers[1::2], strict=True):
                self.nodes.forget(number, count)
            self._giving.forgotten(sum(numbers[1::2]))
            self._forgotten += len(numbers) // 2

    def rest(self) -> None:
        if self._forgotten < MANY:
            return
        self._forgotten = 0
        with self.operations.mutex:
            self.nodes.shrink()
            self._closed = deque(number for number in self._closed if number in self.nodes.known)
        source = self.operations.source
        if isinstance(source, Resting):
            source.rest()

    # names

    def _entry(self, node: int, name: bytes, attr: Attr, links: int = 1) -> Reply:
        number = self.nodes.give(node, name, attr)
        self._giving.held += 1
        if len(self.nodes.known) > KNOWN and self._prunes:
            self._prune_oldest()
        seconds, nanos = self._names
        fields = attr_fields(self._shown.of(attr), links)
        return p.ENTRY_OUT.pack(number, 0, seconds, seconds, nanos, nanos, *fields)

    def _prune_oldest(self, count: int = 1) -> None:
        """Have the kernel forget those that it was told of first, now that it was told of so many
        more. What it says of them comes later; what is in use stays, and comes behind all others.
        """
        self._beyond += count
        if self._beyond < PRUNED:
            return
        self._prune(self.nodes.known, 1, 2 * self._beyond)  # without the top directory
        self._beyond = 0

    def _made(self, node: int, name: bytes) -> Reply:
        return self._entry(node, name, self.operations.lookup(_path(node, name))[0])

    def _lookup(self, node: int, body: memoryview) -> Reply:
        name, known = bytes(body[:-1]), self.nodes.known.get(node)
        if known is not None and self._missing and self.operations.lacks(known.id, name):
            return self._missing
        try:
            attr, links = self.operations.lookup(_path(node, name))
        except FileNotFoundError:
            if not self._missing:
                raise
            return self._missing
        if not attr.is_dir:
            self._giving.looked_up(node)
        return self._entry(node, name, attr, links)

    def _symlink(self, node: int, body: memoryview) -> Reply:
        name, target, _ = bytes(body).split(b"\0")
        self.operations.symlink(_path(node, name), target.decode("latin-1"))
        return self._made(node, name)

    def _mknod(self, node: int, body: memoryview) -> Reply:
        name = bytes(body[p.MKNOD_IN.size : -1])
        self.operations.mknod(_path(node, name), *p.MKNOD_IN.unpack_from(body))
        return self._made(node, name)

    def _mkdir(self, node: int, body: memoryview) -> Reply:
        name = bytes(body[p.MKDIR_IN.size : -1])
        attr = self.operations.make_directory(_path(node, name), *p.MKDIR_IN.unpack_from(body))
        return self._entry(node, name, attr)

    def _unlink(self, node: int, body: memoryview) -> Reply:
        self.operations.unlink(_path(node, bytes(body[:-1])))
        return b""

    def _rmdir(self, node: int, body: memoryview) -> Reply:
        self.operations.rmdir(_path(node, bytes(body[:-1])))
        return b""

    def _rename(self, node: int, body: memoryview) -> Reply:
        (into,) = p.RENAME_IN.unpack_from(body)
        return self._move(node, into, body[p.RENAME_IN.size :], 0)

    def _rename2(self, node: int, body: memoryview) -> Reply:
        into, flags = p.RENAME2_IN.unpack_from(body)
        return self._move(node, into, body[p.RENAME2_IN.size :], flags)

    def _move(self, node: int, into: int, names: memoryview, flags: int) -> Reply:
        old, new, _ = bytes(names).split(b"\0")
        self.operations.rename(_path(node, old), _path(into, new), flags)
        return b""

    def _link(self, node: int, body: memoryview) -> Reply:
        self.operations.link("", "")
        return b""

    # attributes

    def _attr(self, node: int, attr: Attr) -> Reply:
        known = self.nodes.known.get(node)
        links = int(known is None or known.above != 0)
        seconds, nanos = self._names
        return p.ATTR_OUT.pack(seconds, nanos, 0, *attr_fields(self._shown.of(attr), links))

    def _getattr(self, node: int, body: memoryview) -> Reply:
        flags, fh = p.GETATTR_IN.unpack_from(body)
        info = Info(fh) if flags & p.FH and fh in self.operations.opened else None
        return self._attr(node, self.operations.lookup(_node(node), info)[0])

    def _setattr(self, node: int, body: memoryview) -> Reply:
        what, fh, size, mtime, nanos, mode, uid, gid = p.SETATTR_IN.unpack_from(body)
        operations = self.operations
        change = Amendment(
            mode & 0o7777 if what & p.SET_MODE else None,
            uid if what & p.SET_UID else -1,
            gid if what & p.SET_GID else -1,
            mtime * NANO + nanos if what & p.SET_MTIME else None,
            what & p.SET_MTIME_NOW != 0,
        )
        known, path = self.nodes.known.get(node), _node(node)
        info = Info(fh) if what & p.SET_FH and fh in operations.opened else None
        if what & p.SET_ANY and not what & p.SET_SIZE:
            attr = None if known is None else operations.amend_fresh(known.id, change)
            attr = attr or operations.amend(path, change, info)
            if what & p.KILLS and attr.mode & (stat.S_ISUID | stat.S_ISGID):
                self._kill(path, info)
                attr, _ = operations.lookup(path, info)
            return self._attr(node, attr)
        if what & (p.SET_MODE | p.SET_UID | p.SET_GID):
            operations.amend(path, change._replace(mtime_ns=None, is_now=False), info)
        if what & p.SET_SIZE:
            operations.truncate(path, size, info)
        if what & p.KILLS or not what & ~p.SET_FH:  # nothing: a chown that keeps both
            self._kill(path, info)
        if what & p.SET_MTIME:
            operations.amend(path, change._replace(mode=None, uid=-1, gid=-1), info)
        return self._attr(node, operations.lookup(path, info)[0])

    def _kill(self, path: str, info: Info | None) -> None:
        """Take set-user-ID and set-group-ID bits away, as a write by who has no right to them."""
        mode = self.operations.lookup(path, info)[0].mode
        group = stat.S_ISGID if mode & stat.S_IXGRP else 0
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | group):
            self.operations.chmod(path, mode & ~(stat.S_ISUID | group), info)

    # extended attributes

    def _setxattr(self, node: int, body: memoryview) -> Reply:
        size, flags = p.SETXATTR_IN.unpack_from(body)
        rest = bytes(body[p.SETXATTR_IN.size :])
        name, _, value = rest.partition(b"\0")
        self.operations.setxattr(_node(node), name.decode("latin-1"), value[:size], flags)
        return b""

    def _removexattr(self, node: int, body: memoryview) -> Reply:
        self.operations.removexattr(_node(node), bytes(body[:-1]).decode("latin-1"))
        return b""

    # open files

    def _opened(self, info: Info) -> Reply:
        flags = p.DIRECT_IO * info.direct_io | p.KEEP_CACHE * info.keep_cache | self._open_flags
        return p.OPEN_OUT.pack(info.fh, flags)

    def _open(self, node: int, body: memoryview) -> Reply:
        flags, how = p.OPEN_IN.unpack_from(body)
        info = Info(flags=flags)
        self.operations.open(_node(node), info)
        if how & p.KILL_AT_OPEN:
            self._kill(_node(node), info)
        return self._opened(info)

    def _create(self, node: int, body: memoryview) -> Reply:
        flags, mode, how = p.CREATE_IN.unpack_from(body)
        name, info = bytes(body[p.CREATE_IN.size : -1]), Info(flags=flags)
        attr = self.operations.make(_path(node, name), mode, info)
        if how & p.KILL_AT_OPEN and attr.mode & (stat.S_ISUID | stat.S_ISGID):
            self._kill(_path(node, name), info)
            attr, _ = self.operations.lookup(_path(node, name), info)
        entry = self._entry(node, name, attr)
        if self._prunes:
            self._new.add(p.LONG.unpack_from(entry)[0])
        return entry + self._opened(info)

    def _read(self, node: int, body: memoryview) -> Reply:
        (fh,), (offset, size) = p.HANDLE.unpack_from(body), p.READ_IN.unpack_from(body)
        return self.operations.read(_node(node), size, offset, Info(fh))

    def _write(self, node: int, body: memoryview) -> Reply:
        fh, offset, size, flags = p.WRITE_IN.unpack_from(body)
        data = bytes(body[p.WRITE_IN.size : p.WRITE_IN.size + size])
        if not flags & p.KILL_AT_WRITE and self.operations.append(fh, offset, data):
            return p.WORDS.pack(size, 0)
        info = Info(fh)
        done = self.operations.write(None, data, offset, info)
        if flags & p.KILL_AT_WRITE:
            self._kill(_node(node), info)
        return p.WORDS.pack(done, 0)

    def _release(self, node: int, body: memoryview) -> Reply:
        fh, flags = p.OPEN_OUT.unpack_from(body)
        self.operations.release(None, Info(fh, flags))
        if node in self._new:
            self._new.discard(node)
            self._closed.append(node)
            if len(self._closed) >= self._kept + PRUNED:
                old = [self._closed.popleft() for _ in range(PRUNED)]
                self._prunes = self._connection.prune(old)
        return b""

    def _flush(self, node: int, body: memoryview) -> Reply:
        self.operations.flush(None, Info(*p.HANDLE.unpack_from(body)))
        return b""

    def _fsync(self, node: int, body: memoryview) -> Reply:
        fh, flags = p.FSYNC_IN.unpack_from(body)
        self.operations.fsync(None, flags & 1, Info(fh))
        return b""

    def _fallocate(self, node: int, body: memoryview) -> Reply:
        fh, offset, size, mode = p.FALLOCATE_IN.unpack_from(body)
        self.operations.fallocate(None, mode, offset, size, Info(fh))
        return b""

    def _lseek(self, node: int, body: memoryview) -> Reply:
        (fh,), (offset, whence) = p.HANDLE.unpack_from(body), p.LSEEK_IN.unpack_from(body)
        return p.LONG.pack(self.operations.lseek(_node(node), offset, whence, Info(fh)))

    # directories

    def _opendir(self, node: int, body: memoryview) -> Reply:
        return p.OPEN_OUT.pack(self.operations.opendir(_node(node)), self._listing_flags)

    def _releasedir(self, node: int, body: memoryview) -> Reply:
        self.operations.releasedir(None, *p.HANDLE.unpack_from(body))
        return b""

    def _fsyncdir(self, node: int, body: memoryview) -> Reply:
        self.operations.fsyncdir(None, 0, *p.HANDLE.unpack_from(body))
        return b""

    def _readdir(self, node: int, body: memoryview) -> Reply:
        return self._list(node, body, asked=False)

    def _readdirplus(self, node: int, body: memoryview) -> Reply:
        return self._list(node, body, asked=True)

    def _list(self, node: int, body: memoryview, *, asked: bool) -> Reply:
        (fh,), (offset, room) = p.HANDLE.unpack_from(body), p.READ_IN.unpack_from(body)
        page = self.operations.page(fh, offset)
        if page is not None:
            return self._list_page(node, page, offset - DOTS, room, asked=asked)
        parts: list[bytes] = []
        left = room
        if offset == 0:
            self._giving.begins()

        def take(entries: list[DirEntry], plus: bool) -> int:
            nonlocal left
            head = p.DIRENT.size + p.ENTRY_OUT.size * asked
            sizes = [head + (len(entry.name) + 7) // 8 * 8 for entry in entries]
            ends = list(itertools.accumulate(sizes))
            count = bisect_right(ends, left)
            if count:
                left -= ends[count - 1]
                parts.extend(self._packed(node, entries[:count], asked))
            return count

        self.operations.fill(fh, offset, take)
        return b"".join(parts)

    def _list_page(self, node: int, page: Page, offset: int, room: int, *, asked: bool) -> Reply:
        """Files whose ids last, from an offset on."""
        packed = page.packed
        if packed is None:
            page.nodes |= BY_ID
            packed = page.packed = Entries(page, self._shown, *self._names)
        assert isinstance(packed, Entries)
        start, stop = bisect_right(page.offsets, offset), len(page.names)
        ends = packed.behind if asked else packed.bare
        stop = bisect_right(ends, ends[start] + room, start, stop + 1) - 1
        if not asked:
            return packed.plain[ends[start] : ends[stop]]
        until = start + self._gives(node, stop - start)
        if until > start:
            numbers = page.nodes[start:until].tolist()
            self.nodes.give_listed(node, page.names[start:until], numbers)
            self._given(until - start)
        given = packed.plus[ends[start] : ends[until]]
        return given if until == stop else given + packed.few[ends[until] : ends[stop]]

    def _gives(self, node: int, count: int) -> int:
        """To how many of so many files that are listed the kernel gets numbers."""
        given, last = self._giving.gives(node, count)
        if not self.nodes.lasting:  # they are remembered as those that are looked up
            given = given and len(self.nodes.known) < KNOWN
        given = given and (self._prunes or len(self.nodes.listed) < LISTED)
        return (count if last else count - 1) if given else 0

    def _given(self, count: int) -> None:
        """It was given so many numbers of what is listed."""
        self._giving.held += count
        if len(self.nodes.known) > KNOWN and self._prunes:
            self._prune_oldest(count)
        beyond = len(self.nodes.listed) - LISTED
        if self._prunes and beyond > 0:
            self._prune(self.nodes.listed, 0, min(beyond, MOST_PRUNED))

    def _packed(self, node: int, entries: list[DirEntry], asked: bool) -> list[bytes]:
        numbers = self._numbers(node, entries) if asked else [0] * len(entries)
        if len(entries) >= FEW:
            names, attrs, offsets = zip(*entries, strict=True)
            columns = np.array(attrs, np.int64)
            page = Page(list(names), np.array(numbers, np.int64), columns, offsets)
            packed = Entries(page, self._shown, *self._names)
            return [packed.plus if asked else packed.plain]
        of, (seconds, nanos), parts = self._shown.of, self._names, list[bytes]()
        for number, (name, attr, offset) in zip(numbers, entries, strict=True):
            part = p.DIRENT.pack(attr.id, offset + DOTS, len(name), attr.mode >> 12) + name
            if asked:
                fields = attr_fields(of(attr))
                parts.append(p.ENTRY_OUT.pack(number, 0, seconds, seconds, nanos, nanos, *fields))
            parts.append(part + bytes(-len(part) % 8))
        return parts

    def _numbers(self, node: int, entries: list[DirEntry]) -> list[int]:
        """-> the numbers of what is listed that the kernel gets, 0: none."""
        files = self._gives(node, len(entries))
        numbers = self.nodes.give_many(node, entries[:files], files=True)
        numbers += self.nodes.give_many(node, entries[files:], files=False)
        self._given(len(numbers) - numbers.count(0))
        return numbers

    def _prune(self, numbers: dict[int, Any], skip: int, count: int) -> None:
        """Have the kernel forget the first of these behind `skip`, which become the last."""
        old = list(itertools.islice(numbers, skip, skip + count))
        for number in old:
            numbers[number] = numbers.pop(number)
        self._prunes = self._connection.prune(old)


def _path(node: int, name: bytes) -> str:
    return f"{node}/{name.decode('latin-1')}"


def _node(node: int) -> str:
    return "/" if node == p.TOP else str(node)


def _time(seconds: float) -> tuple[int, int]:
    """-> seconds and nanoseconds."""
    whole = int(seconds)
    return whole, int((seconds - whole) * NANO)


def serve(
    operations: Operations,
    nodes: Nodes | None,
    point: str,
    options: dict[str, str | bool],
    pace: Pace,
) -> None:
    """Mount, and answer the kernel until the mount is gone or a signal comes. Raises Refused."""
    shown = Shown.take(options)
    device = mount(point, options)
    try:
        connection = Connection(device, pace)
        wanted = WANTED | (p.AUTO_INVAL_DATA if operations.caching.names != FOREVER else 0)
        with signals() as ending:
            if connection.begin(wanted):
                operations.init("/")
                server = (
                    Engine(operations, connection, shown)
                    if nodes is None
                    else Direct(operations, nodes, shown, connection)
                )
                server.start()
                try:
                    connection.serve(server, ending)
                finally:
                    server.close()
    finally:
        unmount(device, point)
