"""Extended attributes of files and directories, and what a mount says of itself in them."""

from __future__ import annotations

import errno
import json
import os
from typing import Final

from winkmount.kernel import protocol as p
from winkmount.kernel.nodes import NodeTable
from winkmount.kernel.protocol import Calls
from winkmount.served import Served
from winkmount.source import Nodes, refuse

CREATE: Final = 1  # flags of setxattr(2)
REPLACE: Final = 2
LABEL: Final = b"security.selinux"  # `ls -l` asks each file for it until it hears EOPNOTSUPP
SPACES: Final = (b"user.", b"trusted.")
EMPTY: Final = (*SPACES, b"security.")
LIST_BYTES: Final = 1 << 16  # of the names of a file, each with a NUL: more no list holds


class Xattrs:
    """Requests for extended attributes.

    calls   the answers: by opcode, of a number and the body of the request
    """

    def __init__(self, served: Served, nodes: Nodes | NodeTable) -> None:
        self._served, self._source, self._nodes = served, served.changing, nodes
        self._facts = b"user.%b." % served.name.encode()
        self.calls: Calls = {
            p.GETXATTR: self._getxattr,
            p.LISTXATTR: self._listxattr,
        }
        if served.source.writable:
            self.calls |= {p.SETXATTR: self._setxattr, p.REMOVEXATTR: self._removexattr}

    def _settled(self, node: int) -> int:
        """The id of a file of which the Source knows every byte."""
        id = self._nodes.id(node)
        self._served.opened.settle(id)
        return id

    def _getxattr(self, node: int, body: memoryview) -> bytes:
        name = known_space(bytes(body[p.WORDS.size : -1]))
        value = None
        if name.startswith(self._facts):
            value = self._fact(node, name.removeprefix(self._facts).decode("latin-1"))
        elif name.startswith(SPACES):
            value = self._source.xattrs(self._settled(node)).get(name)
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
        value = self._source.facts(self._settled(node)).get(name)
        return None if value is None else value.encode()

    def _listxattr(self, node: int, body: memoryview) -> bytes:
        names = self._source.xattrs(self._nodes.id(node))
        return sized(b"".join(name + b"\0" for name in names), body)

    def _setxattr(self, node: int, body: memoryview) -> bytes:
        size, flags = p.SETXATTR_IN.unpack_from(body)
        name, _, rest = bytes(body[p.SETXATTR_IN.size :]).partition(b"\0")
        if not known_space(name).startswith(SPACES) or name.startswith(self._facts):
            raise refuse(errno.EOPNOTSUPP)
        id = self._settled(node)
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
        name, id = known_space(bytes(body[:-1])), self._settled(node)
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
