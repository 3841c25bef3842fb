"""The numbers by which the kernel knows files and directories, and where those are."""

from __future__ import annotations

import contextlib
import errno
from typing import Final

import numpy as np

from winkmount.handles import NAME_MAX, FileInfo, Paths
from winkmount.kernel.protocol import TOP
from winkmount.source import UNREADABLE, Attr, DirEntry, Lasting, Source, refuse

BY_ID: Final = 1 << 62  # numbers of files whose ids last: this and the id


class Node:
    """What a number stands for. `name` of `above`; it has lost its name where `above` is 0.

    count   how often the kernel was given the number and has not forgotten it
    """

    __slots__ = ("above", "count", "id", "name")

    def __init__(self, id: int, above: int, name: bytes) -> None:
        self.id, self.above, self.name, self.count = id, above, name, 0


class Run:
    """Files of the directory `above` that were listed together.

    numbers int64[n], in the order of `names`, which `/` separates
    times   how often each was given to the kernel; where that is another, `NodePaths` has it
    left    how many the kernel knows, and nothing but a listing has told it of
    """

    __slots__ = ("above", "left", "names", "numbers", "times")

    def __init__(self, above: int, names: list[bytes], numbers: list[int]) -> None:
        self.above, self.names, self.times, self.left = above, b"/".join(names), 1, len(names)
        self.numbers = np.array(numbers, np.int64)

    def name(self, number: int) -> bytes:
        return self.names.split(b"/")[int(np.flatnonzero(self.numbers == number)[0])]


class NodePaths(Paths):
    """Paths from a number: `17` is what has it, `17/name` a name in that directory, `/` the top.

    A file whose id lasts is known by that, any other and a directory by a number made here. Of
    files that are only listed it is remembered with which others.

    known   what was looked up or made, or asked for by its number
    listed  number -> run, of other files
    lasting ids of files below this one last
    memory  400 bytes for each number in `known`, 120 for one that is listed
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.known = {TOP: Node(source.root, TOP, b"")}
        self.listed: dict[int, Run] = {}
        self._more: dict[int, int] = {}  # of listed ones: how often they were given beyond `times`
        self.lasting = source.lasting if isinstance(source, Lasting) else 0
        self._names: dict[tuple[int, bytes], int] = {}
        self._last = TOP
        self._asked = self._before = TOP  # the last numbers that ids were asked of

    def _node(self, path: str) -> Node:
        number = TOP if path in ("/", "") else int(path)
        self._asked, self._before = number, self._asked
        node = self.known.get(number)
        if node is None:
            run = self.listed.get(number)
            if run is None:
                raise refuse(errno.ESTALE)
            name = run.name(number)
            is_gone = (run.above, name) in self._names  # another file has the name by now
            node = self._know(number, 0 if is_gone else run.above, name)
        return node

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
            return self.source.lookup(self._above(node).id, node.name)

    def above(self, path: str) -> int:
        return self._above(self._node(path)).id

    def _above(self, node: Node) -> Node:
        """The directory that a name is in, the top one where the name is gone."""
        above = self.known.get(node.above or TOP)
        if above is None:  # the kernel has forgotten it
            raise refuse(errno.ESTALE)
        return above

    def links(self, id: int) -> int:
        """What is found by a name has it."""
        return 1

    def look_again(self) -> bool:
        """Look the last numbers up: one of them may have been asked of by an earlier call, and
        stand for nothing any more."""
        for number in (self._asked, self._before):
            with contextlib.suppress(OSError):
                self._look_up(number)
        return True

    def _look_up(self, number: int) -> None:
        """From the nearest directory above that the Source still knows: from the top it would be
        0.6 ms in a deep tree."""
        way = list[Node]()
        while number != TOP:
            node = self.known.get(number)
            if node is None or not node.above:
                raise refuse(errno.ESTALE)
            if self._is_found(node):
                break
            way.append(node)
            number = node.above
        for node in reversed(way):
            if not self._is_found(node):
                raise refuse(errno.ESTALE)

    def _is_found(self, node: Node) -> bool:
        """Whether the Source knows the directory that a name is in, and from now on what has it."""
        above = self._above(node)
        try:
            id = self.source.lookup(above.id, node.name).id
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return False
        if id != node.id:
            raise refuse(errno.ESTALE)
        return True

    def _know(self, number: int, above: int, name: bytes, id: int = 0) -> Node:
        """Remember what has a number. `above` 0: its name is gone; `id`: of what has none by its
        id."""
        node = self.known[number] = Node(id or number ^ BY_ID, above, name)
        if above:
            self._names[above, name] = number
        run = self.listed.pop(number, None)
        if run is not None:
            run.left -= 1
            node.count = run.times + self._more.pop(number, 0)
        return node

    def give(self, above: int, name: bytes, attr: Attr) -> int:
        """-> the number of a file, which the kernel gets once more."""
        key, id = (above, name), attr.id
        number = before = self._names.get(key, 0)
        if id < self.lasting and not attr.is_dir:
            number = BY_ID | id
        node = self.known.get(number)
        if node is None or node.id != id or not node.above:
            if before:
                self.known[before].above = 0
            if not number & BY_ID:
                self._last = number = self._last + 1
            count = node.count if node is not None and node.id == id else 0
            node = self._know(number, above, name, id)
            node.count += count
        node.count += 1
        return number

    def give_many(self, above: int, entries: list[DirEntry], *, files: bool) -> list[int]:
        """-> the numbers of what is listed, which the kernel gets once more; 0: it gets none.

        files   whether it gets those of files, too
        """
        numbers, names, listed = list[int](), list[bytes](), list[int]()
        for name, attr, offset in entries:
            number = 0
            if offset <= 0 or attr.size == UNREADABLE:
                pass
            elif attr.is_dir:
                number = self.give(above, name, attr)
            elif files and attr.id < self.lasting:
                number = BY_ID | attr.id
                names.append(name)
                listed.append(number)
            elif files:
                number = self.give(above, name, attr)
            numbers.append(number)
        if listed:
            self.give_listed(above, names, listed)
        return numbers

    def give_listed(self, above: int, names: list[bytes], numbers: list[int]) -> None:
        """The kernel gets the numbers of files whose ids last once more. Cost: 0.2 us each."""
        known, listed = self.known, self.listed
        run = listed.get(numbers[0])
        if run is not None and run.left == len(numbers) and run.numbers.tolist() == numbers:
            run.times += 1
            return
        if not (known.keys().isdisjoint(numbers) and listed.keys().isdisjoint(numbers)):
            new = list[int]()
            for i, number in enumerate(numbers):
                if number in known:
                    known[number].count += 1
                elif number in listed:
                    self._more[number] = self._more.get(number, 0) + 1
                else:
                    new.append(i)
            names, numbers = [names[i] for i in new], [numbers[i] for i in new]
        if numbers:
            listed.update(dict.fromkeys(numbers, Run(above, names, numbers)))

    def forget(self, number: int, count: int) -> None:
        """The kernel has forgotten a number so often."""
        node = self.known.get(number)
        if node is None:
            self._forget_listed(number, count)
            return
        if number == TOP:
            return
        node.count -= count
        if node.count <= 0:
            del self.known[number]
            if node.above:
                del self._names[node.above, node.name]

    def shrink(self) -> None:
        """Give back the tables of what is forgotten: a dict never gets smaller. Cost: 0.1 us each
        number that is known."""
        self.known, self.listed = dict(self.known), dict(self.listed)
        self._more, self._names = dict(self._more), dict(self._names)

    def _forget_listed(self, number: int, count: int) -> None:
        run = self.listed.get(number)
        if run is None:
            return
        more = self._more.pop(number, 0) - count
        if run.times + more > 0:
            self._more[number] = more
        else:
            del self.listed[number]
            run.left -= 1

    def gone(self, path: str) -> None:
        """A file that was only listed is not open: nobody asks for it any more."""
        number = self._number(path)
        if number is not None:
            self.known[number].above = 0

    def moved(self, old: str, new: str) -> None:
        number = self._number(old)
        self.gone(new)
        above, _, name = new.rpartition("/")
        key = int(above or TOP), name.encode("latin-1")
        if number is not None:
            node = self.known[number]
            node.above, node.name = key
            self._names[key] = number
        elif self.listed:  # it may be a file that was only listed
            number = BY_ID | self.source.lookup(*self.split(new)).id
            if number in self.listed:
                self._know(number, *key)

    def _number(self, path: str) -> int | None:
        """Take the name away from a number -> the number."""
        above, _, name = path.rpartition("/")
        return self._names.pop((int(above or TOP), name.encode("latin-1")), None)
