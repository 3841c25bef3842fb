"""A Source over dicts: the plainest thing winkmount can serve. Run as a program, it mounts itself.

python tests/memory_source.py DIR BINDING [kernel|none]     the last: read-only, with a corpus
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from winkmount.options import Options
from winkmount.service import Request, serve
from winkmount.source import Amendment, Attr, Changing, DirEntry, Steps, run_steps


@dataclass
class Node:
    id: int
    mode: int
    uid: int
    gid: int
    parent: int
    content: bytearray = field(default_factory=bytearray)
    names: dict[bytes, int] = field(default_factory=dict)
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    mtime_ns: int = field(default_factory=time.time_ns)
    users: int = 0
    linked: bool = True


class MemorySource(Changing):
    root = 1
    gather = True

    def __init__(self, *, writable: bool = True) -> None:
        self.writable = writable
        self.nodes = {1: Node(1, stat.S_IFDIR | 0o755, os.getuid(), os.getgid(), 1)}
        self.last = 1
        self.syncs = 0
        self.writes: list[tuple[int, int, int]] = []  # id, offset, length, as they arrived
        self.full = False  # writes fail with ENOSPC
        self.room = 1 << 40  # bytes
        self.promised: dict[int, int] = {}
        self.reads = 0

    def lookup(self, parent: int, name: bytes) -> Attr:
        try:
            return self.stat(self.nodes[parent].names[name])
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file") from None

    def stat(self, id: int) -> Attr:
        node = self.nodes[id]
        size = 0 if stat.S_ISDIR(node.mode) else len(node.content)
        return Attr(id, node.mode, size, node.mtime_ns, node.uid, node.gid)

    def opendir(self, directory: int) -> int:
        return directory

    def readdir(self, handle: int, offset: int) -> Iterator[DirEntry]:
        """In the order of ids; the id is the offset. A directory that is gone is empty."""
        names = self.nodes[handle].names if handle in self.nodes else {}
        for id, name in sorted((id, name) for name, id in names.items()):
            if id > offset and id in self.nodes:
                yield DirEntry(name, self.stat(id), id)

    def releasedir(self, handle: int) -> None:
        pass

    def _new(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        names = self.nodes[parent].names
        if name in names:
            raise FileExistsError(errno.EEXIST, "exists")
        self.last += 1
        self.nodes[self.last] = Node(self.last, mode, uid, gid, parent)
        names[name] = self.last
        self.nodes[parent].mtime_ns = time.time_ns()
        return self.stat(self.last)

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        return self._new(parent, name, stat.S_IFREG | mode, uid, gid)

    def mkdir(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        return self._new(parent, name, stat.S_IFDIR | mode, uid, gid)

    def symlink(self, parent: int, name: bytes, target: bytes, uid: int, gid: int) -> Attr:
        attr = self._new(parent, name, stat.S_IFLNK | 0o777, uid, gid)
        self.nodes[attr.id].content += target
        return self.stat(attr.id)

    def unlink(self, parent: int, name: bytes) -> None:
        id = self.lookup(parent, name).id
        del self.nodes[parent].names[name]
        self.nodes[id].linked = False
        self._forget(id)

    def _forget(self, id: int) -> None:
        if not self.nodes[id].linked and not self.nodes[id].users:
            del self.nodes[id]

    def rmdir(self, parent: int, name: bytes) -> None:
        id = self.lookup(parent, name).id
        if self.nodes[id].names:
            raise OSError(errno.ENOTEMPTY, "not empty")
        del self.nodes[parent].names[name]
        del self.nodes[id]

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> None:
        id = self.lookup(parent, name).id
        target = self.nodes[new_parent].names.get(new_name)
        if target is not None:
            if self.stat(target).is_dir:
                self.rmdir(new_parent, new_name)
            else:
                self.unlink(new_parent, new_name)
        self.nodes[new_parent].names[new_name] = self.nodes[parent].names.pop(name)
        self.nodes[id].parent = new_parent

    def amend(self, id: int, change: Amendment, now_ns: int) -> Attr:
        node = self.nodes[id]
        if change.mode is not None:
            node.mode = stat.S_IFMT(node.mode) | change.mode
        node.uid = node.uid if change.uid == -1 else change.uid
        node.gid = node.gid if change.gid == -1 else change.gid
        node.mtime_ns = node.mtime_ns if change.mtime_ns is None else change.mtime_ns
        return self.stat(id)

    def readlink(self, id: int) -> bytes:
        return bytes(self.nodes[id].content)

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        return self.nodes[id].xattrs

    def set_xattrs(self, id: int, xattrs: Mapping[bytes, bytes]) -> None:
        self.nodes[id].xattrs = dict(xattrs)

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        if truncate:
            self.truncate(id, 0)
        self.nodes[id].users += 1

    def release(self, id: int) -> None:
        self.nodes[id].users -= 1
        self._forget(id)

    def read(self, id: int, offset: int, size: int) -> bytes:
        self.reads += 1
        return bytes(self.nodes[id].content[offset : offset + size])

    def write(self, id: int, pieces: Sequence[tuple[int, bytes]], mtime_ns: int) -> None:
        self.promised.pop(id, None)
        if self.full:
            raise OSError(errno.ENOSPC, "full")
        node = self.nodes[id]
        for offset, data in pieces:
            self.writes.append((id, offset, len(data)))
            if offset > len(node.content):
                node.content.extend(bytes(offset - len(node.content)))
            node.content[offset : offset + len(data)] = data
        node.mtime_ns = mtime_ns

    def truncate(self, id: int, size: int) -> None:
        node = self.nodes[id]
        del node.content[size:]
        node.content.extend(bytes(size - len(node.content)))
        node.mtime_ns = time.time_ns()

    def punch(self, id: int, offset: int, size: int) -> None:
        self.nodes[id].content[offset : offset + size] = bytes(size)

    def allocate(self, id: int, size: int) -> None:
        if self.room < size:
            raise OSError(errno.ENOSPC, "full")

    def promise(self, id: int, size: int) -> bool:
        self.allocate(id, sum(self.promised.values()) + size)
        self.promised[id] = self.promised.get(id, 0) + size
        return True

    def seek(self, id: int, offset: int, *, hole: bool) -> int:
        end = len(self.nodes[id].content)
        if offset >= end:
            raise OSError(errno.ENXIO, "behind the end")
        return end if hole else offset

    def facts(self, id: int) -> Mapping[str, str]:
        return {"id": str(id)}

    def status(self) -> Mapping[str, object]:
        return {"files": len(self.nodes), "reads": self.reads}

    def syncing(self, id: int | None) -> Steps:
        self.syncs += 1
        yield from ()

    def statfs(self) -> Mapping[str, int]:
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 1000, "f_bfree": 500}

    def close(self) -> None:
        run_steps(self.syncing(None))


def corpus() -> MemorySource:
    """Read-only: 3,000 files of 1,000 bytes with the number, a large one, a link."""
    source = MemorySource()
    top = source.mkdir(1, b"many", 0o755, 0, 0).id
    for i in range(3000):
        id = source.create(top, b"file-%04d" % i, 0o644, 0, 0).id
        source.write(id, [(0, b"%04d" % i * 250)], i)
    large = source.create(1, b"large", 0o640, 0, 0).id
    source.write(large, [(0, bytes(range(250)) * 40_000)], 5)
    source.symlink(1, b"link", b"large", 0, 0)
    source.writable = False
    return source


if __name__ == "__main__":
    where, binding = sys.argv[1], sys.argv[2]
    options = Options(cache=sys.argv[3]) if len(sys.argv) > 3 else Options()
    opened = corpus if len(sys.argv) > 3 else MemorySource
    serve(Request(opened, "memory", "memory", where, options, binding))
