"""What extents tell: where data and holes are, and a text for people.

PathView: what Sources over an order of names share: ids and paths, open directories.
"""

from __future__ import annotations

import errno
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from winkfs.container.ondisk.inode import Extent
from winkfs.errors import NoSuchFile
from winkfs.mounting.ids import Places
from winkfs.mounting.listing import Listing, View
from winkfs.names import to_str
from winkmount.source import Attr, DirEntry

SHOWN: Final = 64  # extents in a text


def find_data(extents: Sequence[Extent], offset: int, *, hole: bool) -> int:
    """Offset of the first byte from `offset` on that is (not) in a hole; see `Source.seek`."""
    at = 0
    for pointer, _, size in extents:
        at += size
        if at > offset and (pointer == 0) == hole:
            return max(offset, at - size)
    if hole:
        return max(offset, at)
    raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))


def text_of(extents: Sequence[Extent]) -> str:
    """`bytes@position` each, `bytes+skipped@position` where the first of an entry are not used,
    `bytes@hole` and `bytes@memory`; the first of many, and how many there are."""
    parts = []
    for pointer, skip, size in extents[:SHOWN]:
        place = "hole" if pointer == 0 else "memory" if pointer < 0 else str(pointer)
        parts.append(f"{size}+{skip}@{place}" if skip else f"{size}@{place}")
    if len(extents) > SHOWN:
        parts.append(f"... {len(extents)} in all")
    return " ".join(parts)


class PathView(ABC):
    """The part of a Source that finds and lists; whole, it is the `View` of its listings."""

    def __init__(self, seed: int) -> None:
        """`seed`: of the ids of directories, see `Places`."""
        self.places = Places(seed)
        self.root = self.places.directory_id(b"")
        self.places.held[self.root] = b""
        self.left_out: set[bytes] = set()
        self._users: dict[int, int] = {}  # id -> how often it is open
        self._listings: dict[int, Listing] = {}  # by handle
        self._listed: dict[int, int] = {}  # handle -> id of the directory
        self._handles = itertools.count(1)

    # what a subclass gives, and another may be laid over (`timeview`)

    def attr(self, path: bytes) -> Attr | None:
        raise NotImplementedError

    def readlink(self, id: int) -> bytes:
        raise NotImplementedError

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        raise NotImplementedError

    def facts(self, id: int) -> Mapping[str, str]:
        raise NotImplementedError

    # names

    def _path(self, parent: int, name: bytes) -> bytes:
        above = self.places[parent]
        return above + b"/" + name if above else name

    def lookup(self, parent: int, name: bytes) -> Attr:
        path = self._path(parent, name)
        attr = self.attr(path)
        if attr is None:
            raise NoSuchFile("no such file", to_str(path))
        return attr

    def parent(self, directory: int) -> int:
        above = self.places[directory].rpartition(b"/")[0]
        id = self.places.directory_id(above)
        self.places.note(id, above)
        return id

    # directories

    def opendir(self, directory: int) -> int:
        handle = next(self._handles)
        self._listings[handle] = Listing(cast(View, self), self.places[directory])
        self._listed[handle] = directory
        self._use(directory)
        return handle

    def readdir(self, handle: int, offset: int) -> Iterator[DirEntry]:
        return self._listings[handle].entries(offset)

    def releasedir(self, handle: int) -> None:
        del self._listings[handle]
        self._leave(self._listed.pop(handle))

    # users

    def _use(self, id: int) -> None:
        """One user more."""
        users = self._users.get(id, 0)
        if not users:
            self._first_user(id)
        self._users[id] = users + 1

    def _leave(self, id: int) -> bool:
        """One user less -> whether it was the last."""
        self._users[id] -= 1
        if self._users[id]:
            return False
        del self._users[id]
        if id != self.root:
            self._last_gone(id)
        return True

    @abstractmethod
    def _first_user(self, id: int) -> None:
        """It has its first user."""

    @abstractmethod
    def _last_gone(self, id: int) -> None:
        """Its last user has gone."""
