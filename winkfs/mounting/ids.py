"""Ids that a mount has handed out: where those files and directories are, and their users."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_64_intdigest

from winkfs.names import within
from winkmount.source import refuse

OWN_IDS: Final = 1 << 62  # ids from here on are made here, for what has no file id in the container
RECENT: Final = 1 << 15  # ids remembered at least, beside those that are held
POSITION: Final = 44  # bits of a file id of a data set: position of the inode; above: the shard
SHARDS: Final = 1 << 18  # that a mount may meet, so that ids stay below OWN_IDS
HASH_MASK: Final = (1 << 61) - 1


def directory_id(path: bytes, seed: int) -> int:
    """Return the id of a directory that has had this path from the start.

    seed    to make paths with equal ids one has to know it
    """
    return OWN_IDS | (xxh3_64_intdigest(path, seed) & HASH_MASK)


def other_id(path: bytes, seed: int) -> int:
    """Return the id of a file whose file id another one has, or that is not in the container
    yet."""
    return OWN_IDS | 1 << 61 | (xxh3_64_intdigest(path, seed) & HASH_MASK)


class Places:
    """id -> path: of what is held, of the last that were looked up, and of the last listed.

    The top directory is held for good.

    A directory keeps its id when it is renamed, as do those below it. Ids are hashes: where that of
    a path is taken by another one, it gets another id.

    seed    see `directory_id`
    root    id of the top directory
    users   id -> how often a file or directory is open
    cost    memory: 3 x RECENT ids, about 15 MB, and 400 bytes a renamed directory
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed & (1 << 64) - 1
        self._apart: dict[bytes, int] = {}  # paths whose ids were taken
        self.held: dict[int, bytes] = {}
        self.users: dict[int, int] = {}
        self._young: dict[int, bytes] = {}
        self._old: dict[int, bytes] = {}
        self._listed: dict[int, bytes] = {}  # apart: a listing must not push the others out
        self._origins: dict[bytes, bytes] = {}  # directory -> path for its id, if it is another
        self._strange = (b"\0%d" % number for number in itertools.count())  # no path of anything
        self.root = self.directory_id(b"")
        self.held[self.root] = b""

    def __getitem__(self, id: int) -> bytes:
        """Raises OSError ESTALE for an id that is forgotten."""
        path = self.held.get(id)
        if path is None:
            path = self._young.get(id)
            if path is None:
                path = self._old.get(id) or self._listed.get(id)
                if path is None:
                    raise refuse(errno.ESTALE)
                self.note(id, path)
        return path

    def child(self, parent: int, name: bytes) -> bytes:
        """Return the path of a name in a directory. Raises as an index does."""
        above = self.held.get(parent)
        if above is None:
            above = self._young.get(parent)
            if above is None:
                above = self[parent]
        return above + b"/" + name if above else name

    def directory_id(self, path: bytes) -> int:
        """Return the id of the directory that has, or would have, this path."""
        origin = self._origin(path) if self._origins else path
        return self._alone(directory_id(origin, self.seed), path)

    def other_id(self, path: bytes) -> int:
        """See `other_id`."""
        return self._alone(other_id(path, self.seed), path)

    def _alone(self, id: int, path: bytes) -> int:
        """Return the id, or a different one if another path has it."""
        known = self._known(id)
        if known is None or known == path:
            return self._apart.get(path, id) if self._apart else id
        if path not in self._apart:
            rest = id & ~HASH_MASK
            hashes = (xxh3_64_intdigest(b"%d\0" % n + path, self.seed) for n in itertools.count())
            ids = (rest | value & HASH_MASK for value in hashes)
            self._apart[path] = next(other for other in ids if self._known(other) is None)
        return self._apart[path]

    def _known(self, id: int) -> bytes | None:
        path = self.held.get(id)
        if path is None:
            path = self._young.get(id)
        return self._old.get(id, self._listed.get(id)) if path is None else path

    def _origin(self, path: bytes) -> bytes:
        above = path
        while above:
            origin = self._origins.get(above)
            if origin is not None:
                return origin + path[len(above) :]
            above = above.rpartition(b"/")[0]
        return path

    def renew(self, path: bytes) -> None:
        """Give the next directory of this path a different id."""
        self._origins[path] = next(self._strange)

    def note(self, id: int, path: bytes) -> None:
        self._young[id] = path
        if len(self._young) > RECENT:
            self._young, self._old = {}, self._young

    def note_many(self, ids: Iterable[int], paths: Iterable[bytes]) -> None:
        if len(self._listed) > RECENT:
            self._listed = {}
        self._listed.update(zip(ids, paths, strict=True))

    def use(self, id: int, *, hold: bool = True) -> None:
        """Add a user of a file or directory. `hold`: its path is remembered until the last user has
        gone. Raises as an index does."""
        if hold and id not in self.users:
            self.held[id] = self._young.get(id) or self[id]
        self.users[id] = self.users.get(id, 0) + 1

    def leave(self, id: int, *, keep: bool = False) -> bool:
        """Remove a user -> whether it was the last. `keep`: the path is still remembered."""
        self.users[id] -= 1
        if self.users[id]:
            return False
        del self.users[id]
        if not keep and id != self.root:
            self.release(id)
        return True

    def release(self, id: int) -> None:
        """Hold the path of an id no longer: it is among the recent ones."""
        path = self.held.pop(id, None)
        if path is not None:
            self.note(id, path)

    def forget(self, id: int) -> None:
        """Forget the path of an id: it has no name any more."""
        self.held.pop(id, None)
        self.forget_recent(id)

    def move(self, id: int, path: bytes) -> None:
        """Note that an id has another path now."""
        self.forget_recent(id)
        if id in self.held:
            self.held[id] = path
        else:
            self._young[id] = path

    def forget_recent(self, id: int) -> None:
        for known in (self._young, self._old, self._listed):
            known.pop(id, None)

    def move_below(self, old: bytes, new: bytes) -> None:
        """Note that a directory has another path now, as has what is held below it; the rest is
        forgotten."""
        self._young, self._old, self._listed = {}, {}, {}
        for id, path in self.held.items():
            if within(path, old):
                self.held[id] = new + path[len(old) :]
        moved = {new: self._origin(old)}
        for path, origin in self._origins.items():
            if within(path, old):
                moved[new + path[len(old) :]] = origin
            elif not within(path, new):
                moved[path] = origin
        self._origins = moved
        self.renew(old)
