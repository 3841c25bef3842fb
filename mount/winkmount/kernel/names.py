"""Requests for files and directories that need not be open: names and attributes."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from contextlib import suppress
from typing import Final, cast

from winkmount.kernel import protocol as p
from winkmount.kernel.entries import NANO, Shown
from winkmount.kernel.giving import Giving
from winkmount.kernel.nodes import NodeTable
from winkmount.kernel.protocol import Calls
from winkmount.served import Served
from winkmount.source import Amendment, Attr, Nodes, refuse

NAME_MAX: Final = 255  # bytes of one component
KNOWN_DIRS: Final = 10_000  # directories of which it is remembered which group they hand on
RENAME_NOREPLACE: Final = 1
STATFS: Final = "blocks", "bfree", "bavail", "files", "ffree", "bsize", "namemax", "frsize"
SETS_IDS: Final = stat.S_ISUID | stat.S_ISGID
CREATE: Final = 1  # flags of setxattr(2)
REPLACE: Final = 2
LABEL: Final = b"security.selinux"  # `ls -l` asks each file for it until it hears EOPNOTSUPP
SPACES: Final = (b"user.", b"trusted.")
EMPTY: Final = (*SPACES, b"security.")
LIST_BYTES: Final = 1 << 16  # of the names of a file, each with a NUL: more no list holds


class Names:
    """Requests for names, and for attributes and extended attributes of files and directories.

    calls   the answers: by opcode, of a number and the body of the request
    """

    def __init__(
        self, served: Served, nodes: Nodes | NodeTable, giving: Giving, shown: Shown
    ) -> None:
        self._served, self._source = served, served.changing
        self._nodes, self._giving, self._shown = nodes, giving, shown
        self._table = cast("NodeTable", nodes)  # it is one only of a tree that changes
        self._changes = isinstance(nodes, NodeTable)
        # id of a directory -> the group that its set-group-ID bit hands on; None: it has none
        self._groups: dict[int, int | None] = {}
        self._facts = b"user.%b." % served.name.encode()
        self._valid = lasting(served.caching.names)
        seconds, nanos = lasting(served.caching.missing)
        missing = p.ENTRY_OUT.pack(0, 0, seconds, 0, nanos, 0, *[0] * 16)
        self._missing = missing if seconds or nanos else b""
        self.calls: Calls = {
            p.LOOKUP: self._lookup,
            p.GETATTR: self._getattr,
            p.READLINK: self._readlink,
            p.STATFS: self._statfs,
            p.ACCESS: self._access,
            p.GETXATTR: self._getxattr,
            p.LISTXATTR: self._listxattr,
        }
        if served.source.writable:
            self.calls |= {
                p.SETATTR: self._setattr,
                p.SYMLINK: self._symlink,
                p.MKNOD: self._mknod,
                p.MKDIR: self._mkdir,
                p.UNLINK: self._unlink,
                p.RMDIR: self._rmdir,
                p.RENAME: self._rename,
                p.RENAME2: self._rename2,
                p.LINK: self._link,
                p.SETXATTR: self._setxattr,
                p.REMOVEXATTR: self._removexattr,
            }

    # looking

    def entry(self, number: int, attr: Attr) -> bytes:
        """Return the answer that gives the kernel a number."""
        self._giving.gave()
        seconds, nanos = self._valid
        fields = self._shown.fields(attr)
        return p.ENTRY_OUT.pack(number, 0, seconds, seconds, nanos, nanos, *fields)

    def attr(self, node: int) -> Attr:
        """Return the attributes as of the last write."""
        return self._served.opened.shown(self._nodes.attr(node))

    def _lookup(self, node: int, body: memoryview) -> bytes:
        name = bytes(body[:-1])
        if len(name) > NAME_MAX:  # of each name that another request has
            raise refuse(errno.ENAMETOOLONG)
        # to find the id of a directory of a fixed tree would take longer than what it saves
        if self._changes and self._missing and self._source.lacks(self._nodes.id(node), name):
            return self._missing
        try:
            number, attr = self._nodes.find(node, name)
        except FileNotFoundError:
            if not self._missing:
                raise
            return self._missing
        if not stat.S_ISDIR(attr.mode):
            self._giving.looked_up(node)
        return self.entry(number, self._served.opened.shown(attr))

    def _getattr(self, node: int, body: memoryview) -> bytes:
        return self._attr_out(node, self.attr(node))

    def _attr_out(self, node: int, attr: Attr) -> bytes:
        known = self._changes and self._table.known.get(node)
        links = int(not known or known.above != 0)  # 0 of a file that has lost its name
        seconds, nanos = self._valid
        return p.ATTR_OUT.pack(seconds, nanos, 0, *self._shown.fields(attr, links))

    def _access(self, node: int, body: memoryview) -> bytes:
        """Not asked for under default_permissions. A caller that may come here may read and write;
        a program is what has an x."""
        (mode,) = p.WORD.unpack_from(body)
        attr = self._nodes.attr(node)
        if mode & os.X_OK and stat.S_ISREG(attr.mode) and not attr.mode & 0o111:
            raise refuse(errno.EACCES)
        if mode & os.W_OK and not self._source.writable:
            raise refuse(errno.EROFS)
        return b""

    def _readlink(self, node: int, body: memoryview) -> bytes:
        return self._source.readlink(self._nodes.id(node))

    def _statfs(self, node: int, body: memoryview) -> bytes:
        found = {"f_namemax": NAME_MAX, **self._source.statfs()}
        return p.STATFS_OUT.pack(*(found.get(f"f_{field}", 0) for field in STATFS))

    # attributes

    def _setattr(self, node: int, body: memoryview) -> bytes:
        what, _, size, mtime, nanos, mode, uid, gid = p.SETATTR_IN.unpack_from(body)
        now = time.time_ns()
        given = now if what & p.SET_MTIME_NOW else mtime * NANO + nanos
        change = Amendment(
            mode & 0o7777 if what & p.SET_MODE else None,
            uid if what & p.SET_UID else -1,
            gid if what & p.SET_GID else -1,
            given if what & p.SET_MTIME else None,
        )
        id = self._nodes.id(node)
        if what & p.SET_SIZE:
            self._served.opened.settle(id)
            self._source.truncate(id, size)
        attr = self._amended(id, change, now) if what & p.SET_ANY else self.attr(node)
        kills = what & p.KILLS or not what & ~p.SET_FH  # nothing: a chown that keeps both
        if kills and attr.mode & SETS_IDS:
            self.kill(node)
            attr = self.attr(node)
        return self._attr_out(node, attr)

    def _amended(self, id: int, change: Amendment, now: int) -> Attr:
        """Change mode, owner and time -> the attributes after that."""
        file = self._served.opened.get(id)
        if file is not None and file.fresh is not None:
            attr = self._source.amend_fresh(file.fresh, change, now)
            if attr is not None:
                return attr
            file.fresh = None
        if file is not None and change.mtime_ns is not None:
            file.pass_on()  # what waits would move the time again
        attr = self._source.amend(id, change, now)
        self._groups.pop(id, None)
        return attr if file is None else file.shown(attr)

    def kill(self, node: int) -> None:
        """Take set-user-ID and set-group-ID bits away, as a write by a caller without a right to
        them does."""
        mode = self.attr(node).mode
        group = stat.S_ISGID if mode & stat.S_IXGRP else 0
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | group):
            kept = stat.S_IMODE(mode) & ~(stat.S_ISUID | group)
            self._amended(self._nodes.id(node), Amendment(mode=kept), time.time_ns())

    # names that come

    def _symlink(self, node: int, body: memoryview) -> bytes:
        name, target = two_names(body)
        above = self._nodes.id(node)
        attr = self._source.symlink(above, name, target, *self.owner(above))
        return self._new(node, name, attr)

    def _mknod(self, node: int, body: memoryview) -> bytes:
        mode, _ = p.MKNOD_IN.unpack_from(body)
        name = bytes(body[p.MKNOD_IN.size : -1])
        if not stat.S_ISREG(mode):
            raise refuse(errno.EPERM)
        above = self._nodes.id(node)
        attr = self._source.create(above, name, stat.S_IMODE(mode), *self.owner(above))
        self._source.open(attr.id, write=True, truncate=False)
        self._source.release(attr.id)  # a file enters some Sources when it is closed
        return self._new(node, name, self._source.lookup(above, name))

    def _mkdir(self, node: int, body: memoryview) -> bytes:
        (mode,) = p.MKDIR_IN.unpack_from(body)
        name, above = bytes(body[p.MKDIR_IN.size : -1]), self._nodes.id(node)
        uid, gid = self.owner(above)  # which has noted the group of the directory
        bits = stat.S_IMODE(mode) | (0 if self._groups[above] is None else stat.S_ISGID)
        return self._new(node, name, self._source.mkdir(above, name, bits, uid, gid))

    def _new(self, node: int, name: bytes, attr: Attr) -> bytes:
        return self.entry(self._table.give(node, name, attr), attr)

    def owner(self, directory: int) -> tuple[int, int]:
        """Return (uid, gid) of what the caller makes in a directory."""
        uid, gid, _ = self._served.caller()
        if directory not in self._groups:
            if len(self._groups) >= KNOWN_DIRS:
                self._groups.clear()
            above = self._source.stat(directory)
            self._groups[directory] = above.gid if above.mode & stat.S_ISGID else None
        group = self._groups[directory]
        return uid, gid if group is None else group

    # names that go and move

    def _unlink(self, node: int, body: memoryview) -> bytes:
        name = bytes(body[:-1])
        self._source.unlink(self._nodes.id(node), name)
        return self._gone(node, name)

    def _rmdir(self, node: int, body: memoryview) -> bytes:
        name = bytes(body[:-1])
        self._source.rmdir(self._nodes.id(node), name)
        self._groups.clear()
        return self._gone(node, name)

    def _gone(self, node: int, name: bytes) -> bytes:
        self._table.gone(node, name)
        return b""

    def _rename(self, node: int, body: memoryview) -> bytes:
        (into,) = p.RENAME_IN.unpack_from(body)
        return self._move(node, into, body[p.RENAME_IN.size :], 0)

    def _rename2(self, node: int, body: memoryview) -> bytes:
        into, flags = p.RENAME2_IN.unpack_from(body)
        return self._move(node, into, body[p.RENAME2_IN.size :], flags)

    def _move(self, node: int, into: int, names: memoryview, flags: int) -> bytes:
        if flags & ~RENAME_NOREPLACE:
            raise refuse(errno.EINVAL)  # no exchange, no whiteout
        old, new = two_names(names)
        above, new_above = self._nodes.id(node), self._nodes.id(into)
        if flags & RENAME_NOREPLACE:
            with suppress(FileNotFoundError):
                self._source.lookup(new_above, new)
                raise refuse(errno.EEXIST)
        self._source.rename(above, old, new_above, new)
        self._table.moved(node, old, into, new)
        self._groups.clear()
        return b""

    def _link(self, node: int, body: memoryview) -> bytes:
        raise refuse(errno.EPERM)  # one file, one name

    # extended attributes, and what a mount reports of itself in them

    def _id_passed_on(self, node: int) -> int:
        """Pass on what waits in a file -> its id."""
        id = self._nodes.id(node)
        self._served.opened.settle(id)
        return id

    def _getxattr(self, node: int, body: memoryview) -> bytes:
        name = known_space(bytes(body[p.WORDS.size : -1]))
        value = None
        if name.startswith(self._facts):
            value = self._fact(node, name.removeprefix(self._facts).decode("latin-1"))
        elif name.startswith(SPACES):
            value = self._source.xattrs(self._id_passed_on(node)).get(name)
        elif name.startswith(b"system.") or name == LABEL:
            raise refuse(errno.EOPNOTSUPP)  # also ACLs: nothing would enforce them
        if value is None:
            raise refuse(errno.ENODATA)
        return sized(value, body)

    def _fact(self, node: int, name: str) -> bytes | None:
        """Read-only attributes; not listed, or `cp -a` and `rsync -X` would want to copy them."""
        if node == p.TOP and name == "pid":
            return b"%d" % os.getpid()
        if node == p.TOP and name == "status":
            return json.dumps(self._served.status()).encode()
        value = self._source.facts(self._id_passed_on(node)).get(name)
        return None if value is None else value.encode()

    def _listxattr(self, node: int, body: memoryview) -> bytes:
        names = self._source.xattrs(self._nodes.id(node))
        return sized(b"".join(name + b"\0" for name in names), body)

    def _setxattr(self, node: int, body: memoryview) -> bytes:
        size, flags = p.SETXATTR_IN.unpack_from(body)
        name, _, rest = bytes(body[p.SETXATTR_IN.size :]).partition(b"\0")
        if not known_space(name).startswith(SPACES) or name.startswith(self._facts):
            raise refuse(errno.EOPNOTSUPP)
        id = self._id_passed_on(node)
        xattrs = self._source.xattrs(id)
        if flags & CREATE and name in xattrs:
            raise refuse(errno.EEXIST)
        if flags & REPLACE and name not in xattrs:
            raise refuse(errno.ENODATA)
        if name not in xattrs and sum(map(len, xattrs), len(xattrs) + len(name)) >= LIST_BYTES:
            raise refuse(errno.ENOSPC)
        self._source.set_xattrs(id, {**xattrs, name: rest[:size]})
        return b""

    def _removexattr(self, node: int, body: memoryview) -> bytes:
        name, id = known_space(bytes(body[:-1])), self._id_passed_on(node)
        xattrs = dict(self._source.xattrs(id))
        if xattrs.pop(name, None) is None:
            raise refuse(errno.ENODATA)
        self._source.set_xattrs(id, xattrs)
        return b""


def known_space(name: bytes) -> bytes:
    """Return the name of an attribute. Raises EINVAL if nothing follows its kind, as every file
    system of Linux does."""
    if name in EMPTY:
        raise refuse(errno.EINVAL)
    return name


def sized(value: bytes, body: memoryview) -> bytes:
    """Return a value, or how long it is, as the request asks for."""
    (room,) = p.WORD.unpack_from(body)
    if room == 0:
        return p.WORDS.pack(len(value), 0)
    if len(value) > room:
        raise refuse(errno.ERANGE)
    return value


def two_names(body: memoryview) -> tuple[bytes, bytes]:
    """Return the two names of a request."""
    one, other, _ = bytes(body).split(b"\0")
    return one, other


def lasting(seconds: float) -> tuple[int, int]:
    """Return a time as whole seconds and nanoseconds."""
    whole = int(seconds)
    return whole, int((seconds - whole) * NANO)
