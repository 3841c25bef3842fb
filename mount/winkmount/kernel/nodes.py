"""The numbers by which the kernel knows files and directories of a Source that changes."""

from __future__ import annotations

import contextlib
import errno
import stat
from typing import Final

import numpy as np

from winkmount.kernel.protocol import TOP
from winkmount.source import UNREADABLE, Attr, DirEntry, Source, refuse

BY_ID: Final = 1 << 62  # numbers of files whose ids last: this and the id


class Node:
    """A file or directory with a number: `name` in `above`. It has lost its name if `above` is 0.

    count   how often the kernel was given the number and has not forgotten it
    """

    __slots__ = ("above", "count", "id", "name")

    def __init__(self, id: int, above: int, name: bytes) -> None:
        self.id, self.above, self.name, self.count = id, above, name, 0


class Run:
    """Files of the directory `above` that were listed together.

    numbers      int64[n], in the order of `names`, which `/` separates
    times        how often each was given to the kernel; where that differs, `NodeTable` has it
    listed_only  how many the kernel knows by this listing alone
    """

    __slots__ = ("above", "listed_only", "names", "numbers", "times")

    def __init__(self, above: int, names: list[bytes], numbers: list[int]) -> None:
        self.above, self.names = above, b"/".join(names)
        self.times, self.listed_only = 1, len(names)
        self.numbers = np.array(numbers, np.int64)

    def name(self, number: int) -> bytes:
        return self.names.split(b"/")[int(np.flatnonzero(self.numbers == number)[0])]


class NodeTable:
    """Numbers of files and directories, and what they stand for.

    A file whose id lasts is known by that, any other and a directory by a number made here. Of
    files that are only listed it is remembered with which others.

    known   what was looked up or made, or asked for by its number
    listed  number -> run, of other files
    lasting ids of files below this one last
    memory  400 bytes for each number in `known`, 120 for one that is listed
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.known = {TOP: Node(source.root, TOP, b"")}
        self.listed: dict[int, Run] = {}
        self._more: dict[int, int] = {}  # of listed ones: how often they were given beyond `times`
        self.lasting = source.lasting
        self._names: dict[tuple[int, bytes], int] = {}
        self._last = TOP
        self._asked = self._before = TOP  # the last numbers that ids were asked of

    # what a number stands for

    def id(self, number: int) -> int:
        """Return the id of a file or directory. Raises ESTALE."""
        self._asked, self._before = number, self._asked
        node = self.known.get(number)
        if node is None:
            run = self.listed.get(number)
            if run is None:
                raise refuse(errno.ESTALE)
            name = run.name(number)
            is_gone = (run.above, name) in self._names  # another file has the name by now
            node = self._know(number, 0 if is_gone else run.above, name)
        return node.id

    def ids(self, number: int) -> tuple[int, int]:
        """Return the ids of a directory and of the one above."""
        return self.id(number), self._above(self.known[number]).id

    def _above(self, node: Node) -> Node:
        """Return the directory that a name is in, the top one if the name is gone."""
        above = self.known.get(node.above or TOP)
        if above is None:  # the kernel has forgotten it
            raise refuse(errno.ESTALE)
        return above

    def find(self, above: int, name: bytes) -> tuple[int, Attr]:
        """Return the file `name` of a directory, whose number the kernel gets once more."""
        attr = self.source.lookup(self.id(above), name)
        return self.give(above, name, attr), attr

    def attr(self, number: int) -> Attr:
        """Return the attributes that the Source has."""
        id = self.id(number)
        try:
            return self.source.stat(id)
        except OSError as error:  # a damaged inode, whose attributes a directory may have, too
            node = self.known[number]
            if error.errno != errno.EIO or not node.above:
                raise
            return self.source.lookup(self._above(node).id, node.name)

    def read(self, number: int, offset: int, size: int) -> bytes:
        return self.source.read(self.id(number), offset, size)

    # ids that the Source has forgotten

    def look_again(self) -> None:
        """Look the last numbers up: one of them may have been asked of by an earlier call, and
        stand for nothing any more."""
        for number in (self._asked, self._before):
            with contextlib.suppress(OSError):
                self._look_up(number)

    def _look_up(self, number: int) -> None:
        """Look up a number from the nearest directory above that the Source still knows, not from
        the top: a tree may be deep."""
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
        """Return whether the Source knows the directory that a name is in, and from now on what has
        the name."""
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

    # numbers that the kernel gets

    def _know(self, number: int, above: int, name: bytes, id: int = 0) -> Node:
        """Remember what has a number. `above` 0: its name is gone; `id` 0: the number has it."""
        node = self.known[number] = Node(id or number ^ BY_ID, above, name)
        if above:
            self._names[above, name] = number
        run = self.listed.pop(number, None)
        if run is not None:
            run.listed_only -= 1
            node.count = run.times + self._more.pop(number, 0)
        return node

    def give(self, above: int, name: bytes, attr: Attr) -> int:
        """Return the number of a file, which the kernel gets once more."""
        key, id = (above, name), attr.id
        number = before = self._names.get(key, 0)
        if id < self.lasting and not stat.S_ISDIR(attr.mode):
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

    def give_many(self, above: int, entries: list[DirEntry], files: int) -> list[int]:
        """Return the numbers of what is listed, which the kernel gets once more; 0: it gets none.

        files   how many of the first entries get one if they are files
        """
        numbers, names, listed = list[int](), list[bytes](), list[int]()
        for i, (name, attr, offset) in enumerate(entries):
            number = 0
            if offset > 0 and attr.size != UNREADABLE and (i < files or attr.is_dir):
                if attr.id >= self.lasting or attr.is_dir:
                    number = self.give(above, name, attr)
                else:
                    number = BY_ID | attr.id
                    names.append(name)
                    listed.append(number)
            numbers.append(number)
        if listed:
            self.give_listed(above, names, listed)
        return numbers

    def give_listed(self, above: int, names: list[bytes], numbers: list[int]) -> None:
        """Note that the kernel gets the numbers of files whose ids last once more."""
        known, listed = self.known, self.listed
        run = listed.get(numbers[0])
        if run is not None and run.listed_only == len(numbers) and run.numbers.tolist() == numbers:
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
        """Note that the kernel has forgotten a number so often."""
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

    def _forget_listed(self, number: int, count: int) -> None:
        run = self.listed.get(number)
        if run is None:
            return
        more = self._more.pop(number, 0) - count
        if run.times + more > 0:
            self._more[number] = more
        else:
            del self.listed[number]
            run.listed_only -= 1

    def shrink(self) -> None:
        """Give back the tables of what is forgotten: a dict never gets smaller."""
        self.known, self.listed = dict(self.known), dict(self.listed)
        self._more, self._names = dict(self._more), dict(self._names)

    # names that go and move

    def gone(self, above: int, name: bytes) -> None:
        """Note that a name was removed. A file that was only listed is not open: nothing asks for
        it."""
        number = self._names.pop((above, name), None)
        if number is not None:
            self.known[number].above = 0

    def moved(self, above: int, name: bytes, new_above: int, new_name: bytes) -> None:
        """Note that a file or directory has another name; the file that had it is gone."""
        number = self._names.pop((above, name), None)
        self.gone(new_above, new_name)
        if number is not None:
            node = self.known[number]
            node.above, node.name = new_above, new_name
            self._names[new_above, new_name] = number
        elif self.listed:  # it may be a file that was only listed
            number = BY_ID | self.source.lookup(self.id(new_above), new_name).id
            if number in self.listed:
                self._know(number, new_above, new_name)
