"""The numbers by which the kernel knows files and directories, and where those are."""

from __future__ import annotations

import contextlib
import errno

from winkmount.handles import NAME_MAX, FileInfo, Paths
from winkmount.kernel.protocol import TOP
from winkmount.source import Attr, Source, refuse


class Node:
    """What a number stands for. `name` of `above`; it has lost its name where `above` is 0.

    count   how often the kernel was given the number and has not forgotten it
    """

    __slots__ = ("above", "count", "id", "name")

    def __init__(self, id: int, above: int, name: bytes) -> None:
        self.id, self.above, self.name, self.count = id, above, name, 0


class NodePaths(Paths):
    """Paths from a number: `17` is what has it, `17/name` a name in that directory, `/` the top.

    memory  400 bytes for each number that the kernel knows
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.known = {TOP: Node(source.root, TOP, b"")}
        self._names: dict[tuple[int, bytes], int] = {}
        self._last = TOP
        self._asked = self._before = TOP  # the last numbers that ids were asked of

    def _node(self, path: str) -> Node:
        number = TOP if path in ("/", "") else int(path)
        self._asked, self._before = number, self._asked
        try:
            return self.known[number]
        except KeyError:
            raise refuse(errno.ESTALE) from None

    def directory(self, path: str) -> int:
        return self._node(path).id

    def split(self, path: str) -> tuple[int, bytes]:
        above, _, name = path.rpartition("/")
        if len(name) > NAME_MAX:
            raise refuse(errno.ENAMETOOLONG)
        return self._node(above).id, name.encode("latin-1")

    def attr(self, path: str | None, fi: FileInfo | None = None) -> Attr:
        if fi is not None:
            return super().attr(path, fi)
        if path is None:
            raise refuse(errno.ESTALE)
        if "/" in path[1:]:
            found = self.source.lookup(*self.split(path))
        else:
            found = self._stat(self._node(path))
        opened = self.opened.get(found.id)
        return found if opened is None else opened.shown(found)

    def id(self, path: str | None, fi: FileInfo | None = None) -> int:
        if path is None or "/" in path[1:]:
            return super().id(path, fi)
        return self._node(path).id

    def _stat(self, node: Node) -> Attr:
        try:
            return self.source.stat(node.id)
        except OSError as error:  # a damaged inode, whose attributes a directory may have, too
            if error.errno != errno.EIO or not node.above:
                raise
            return self.source.lookup(self.known[node.above].id, node.name)

    def above(self, path: str) -> int:
        return self.known[self._node(path).above or TOP].id

    def links(self, id: int) -> int:
        """What is found by a name has it."""
        return 1

    def look_again(self) -> bool:
        """Look the last numbers up from the top: one of them may have been asked of by an earlier
        call, and stand for nothing any more."""
        for number in (self._asked, self._before):
            with contextlib.suppress(OSError):
                self._look_up(number)
        return True

    def _look_up(self, number: int) -> None:
        way = list[Node]()
        while number != TOP:
            node = self.known.get(number)
            if node is None or not node.above:
                raise refuse(errno.ESTALE)
            way.append(node)
            number = node.above
        id = self.source.root
        for node in reversed(way):
            id = self.source.lookup(id, node.name).id
            if id != node.id:
                raise refuse(errno.ESTALE)

    def give(self, above: int, name: bytes, id: int) -> int:
        """-> the number of a file, which the kernel gets once more."""
        key = above, name
        number = self._names.get(key, 0)
        node = self.known.get(number)
        if node is None or node.id != id:
            if node is not None:
                node.above = 0
            self._last = number = self._last + 1
            node = self.known[number] = Node(id, above, name)
            self._names[key] = number
        node.count += 1
        return number

    def forget(self, number: int, count: int) -> None:
        """The kernel has forgotten a number so often."""
        node = self.known.get(number)
        if node is None or number == TOP:
            return
        node.count -= count
        if node.count <= 0:
            del self.known[number]
            if node.above:
                del self._names[node.above, node.name]

    def gone(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        number = self._names.pop((int(above or TOP), name.encode("latin-1")), None)
        if number is not None:
            self.known[number].above = 0

    def moved(self, old: str, new: str) -> None:
        above, _, name = old.rpartition("/")
        number = self._names.pop((int(above or TOP), name.encode("latin-1")), None)
        self.gone(new)
        if number is not None:
            above, _, name = new.rpartition("/")
            node = self.known[number]
            node.above, node.name = int(above or TOP), name.encode("latin-1")
            self._names[node.above, node.name] = number
