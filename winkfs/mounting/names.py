"""ContainerNames: which names a mounted container has, as a tree of directories.

The tree is BASE.names and what changed since. It is built when the mount starts, and again where a
damaged file, a failed write or another process makes that necessary.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final

from winkformats.errors import CorruptError, FormatError
from winkfs.container.nameorder import NameOrder, open_order
from winkfs.container.ondisk.inode import FileType
from winkfs.container.ondisk.names import build, merge
from winkfs.container.recovery import tail
from winkfs.errors import DerivedDamage
from winkfs.mounting.lookup import CacheBudget, Found, Lookup
from winkfs.mounting.tree import GoodOrder, NameTree
from winkfs.names import INODE, name_of

if TYPE_CHECKING:
    from winkfs.container.container import Container

CHANGES: Final = 1 << 17  # changes of names in memory, at least, before they go into a new order
FEW: Final = 1 << 12  # names behind an order up to which they are looked up one by one
OPENING_TAIL: Final = 512 << 20  # bytes behind an order, at least, before a mount makes a new one
SYNCING_TAIL: Final = 256 << 20  # the same for a sync of a mount that runs
AHEAD: Final = 1024  # inodes that are read ahead of a lookup

log = logging.getLogger("winkfs.mount")


class ContainerNames:
    """The names of a container, and the parts of its handle that find and read what they name.

    alias   name -> id, where it is not the file id: of files that are not in the container yet
    failed  why nothing can be written any more, "": it can
    recent  the key that was looked up last, and the inode that was found
    """

    def __init__(self, container: Container) -> None:
        self.container, self.writable, self.failed = container, container.writable, ""
        self.alias: dict[bytes, int] = {}
        self.engine = container.engine
        if not self.writable:
            self.engine.freeze()
        self._attach()

    def _attach(self) -> None:
        """Take up what is behind the handle: after a recovery it may be another."""
        self.recent: tuple[bytes, Found | None] = b"", None
        engine = self.engine
        self.store, self.changes, self.files = engine.store, engine.changes, engine.files
        self.drafts = self.changes.drafts
        self._generation = self.store.generation
        self.troubles = engine.troubles  # as of the last check of the names
        self.budget = CacheBudget(self.store.kv)
        self.lookup = Lookup(self.store, engine.content)
        self._new_tree()
        conflicts = self.tree.overlay.order.clashes
        if conflicts:
            files = "files that have" if conflicts > 1 else "file that has"
            log.warning("not shown: %d %s names below it", conflicts, files)

    # names

    def entry(self, path: bytes) -> int:
        """FTYPE of the entry of this name, 0: there is none."""
        if not path:
            return 0
        key = path + INODE
        draft = self.drafts.get(key)
        if draft is not None:
            return draft.ftype
        try:
            found = self.lookup.find(key)
        except DerivedDamage:
            raise
        except CorruptError:
            return FileType.UNKNOWN
        return 0 if found is None else found.ftype or FileType.FILE

    def find(self, path: bytes, key: bytes) -> Found | None:
        """The inode of a name; None too where it is damaged, but there are names below it. Raises
        CorruptError."""
        try:
            return self.lookup.find(key)
        except DerivedDamage:
            raise
        except CorruptError:
            if self.tree.implied(path):
                return None
            raise

    def move(self, old: bytes, new: bytes) -> None:
        """A file has another name."""
        self.tree.remove(old)
        self.tree.add(new)
        if old in self.alias:
            self.alias[new] = self.alias.pop(old)

    # the order below the tree

    @property
    def _good_order(self) -> GoodOrder:
        order = self.tree.overlay.order
        assert isinstance(order, GoodOrder)
        return order

    @property
    def order(self) -> NameOrder:
        return self._good_order.order

    def _new_tree(self) -> None:
        order, names = self._current_order()
        self.tree = NameTree(GoodOrder(order), self.entry)
        self.tree.replay(names)

    def _current_order(self) -> tuple[NameOrder, list[bytes]]:
        """The name order, and the names that changed since. Written where it is missing."""
        store = self.store
        order = open_order(store)
        if order is None or store.kv.end - order.covered > _longest(order, OPENING_TAIL):
            return build(store), []
        changes = dict(tail(store, order.covered))
        if len(changes) <= FEW:
            return order, list(changes)
        try:
            return merge(store, order, changes), []
        except DerivedDamage as error:
            log.warning("%s: made again", error)
            return build(store), []

    def _many_changes(self) -> bool:
        """Whether so much has changed in memory that it had better go into a new order."""
        return self.tree.weight > max(CHANGES, self.tree.overlay.order.count // 32)

    @property
    def needs_order(self) -> bool:
        """Whether a new order costs less than what comes behind the old one."""
        behind = self.store.kv.end - self.order.covered
        return self._many_changes() or behind > _longest(self.order, SYNCING_TAIL)

    def new_order(self) -> None:
        """What changed in memory goes into a new order, on disk where that can be. After a sync."""
        if self.engine.troubles != self.troubles:
            self.recheck()
        try:
            changes = self._positions([*self.tree.overlay.names()])
            try:
                order = merge(self.store, self.order, changes)
            except DerivedDamage as error:
                log.warning("%s: made again", error)
                order = build(self.store)
            self._renew_tree(order)
        except (OSError, FormatError) as error:  # the old one goes on, with all that changed
            log.error("the order of names stays as it is: %s", error)

    def _positions(self, names: list[bytes]) -> dict[bytes, int]:
        """Where the inodes of names are, 0: none. Looked up in disk order, reading ahead: without
        that each name that the page cache does not have costs a seek."""
        index, keys = self.store.index, [name + INODE for name in names]
        near = index.candidates(keys)
        order, found = near.argsort(), dict[bytes, int]()
        for start in range(0, len(order), AHEAD):
            part = order[start : start + AHEAD]
            ahead = near[part]
            if (ahead > 0).any():
                self.budget.inodes(ahead[ahead > 0])
            found |= {names[i]: index.lookup(keys[i]) for i in part.tolist()}
        return found

    def _renew_tree(self, order: NameOrder) -> None:
        """Go on with an order of the names as they are now; files that are not in the container
        yet are not in it."""
        self.tree.renew(GoodOrder(order))
        self._add_unstored()

    def _add_unstored(self) -> None:
        for path in self.alias:
            if not self.entry(path):
                self.tree.add(path)

    # what happens to the container

    def recheck(self) -> None:
        """The disk refused a write or a sync, and files that were not synced may be lost.

        As long as it refuses, what can be read is read; changes meet the refusal themselves.
        """
        known = self.engine.troubles
        with contextlib.suppress(OSError):
            self.engine.check()
            self.troubles = known
        if self.writable and not self.container.writable and not self.failed:
            self.failed = "the disk below has failed: nothing can be written any more"
            log.error("%s: %s", self.container.base, self.failed)
        if self.engine.store.generation != self._generation:
            self._attach()
            self._add_unstored()
        elif self.troubles == known:
            self.tree.recheck(lambda path: path in self.alias or self.entry(path) != 0)
            # A name that came and went since the order was made is noted nowhere, and may be back.
            drafts = list(map(name_of, self.drafts))
            later = (name for name, _ in tail(self.store, self.order.covered))
            self.look_again(chain(later, drafts))

    def look_again(self, names: Iterable[bytes]) -> None:
        """These may have come, changed or gone. What cannot be read now stays as it was noted."""
        with contextlib.suppress(OSError, FormatError):
            self.tree.replay(names)
            self._add_unstored()

    def refresh(self) -> bool:
        """Follow the writer to its last sync -> whether anything has changed. Read-only."""
        covered = self.store.kv.end
        if self.writable or not self.engine.follow():
            return False
        self.recent = b"", None
        if self.engine.store.generation != self._generation:
            self._attach()
        else:
            self.tree.version += 1
            self.lookup.renew()
            self.tree.replay(name for name, _ in tail(self.store, covered))
            if self._many_changes():
                self._new_tree()
        return True

    def heal(self, error: Exception) -> bool:
        """Make a damaged index or order of names anew: what failed by it can be done again."""
        if not isinstance(error, DerivedDamage):
            return False
        log.warning("%s: made again, in memory", error)
        if error.file.endswith(".names"):
            self._new_order_in_memory()
        else:
            self.store.distrust_index(error)
        return True

    def _new_order_in_memory(self) -> None:
        if self.writable:
            self.changes.settle()
        self.store.names.drop()
        new, old = build(self.store, save=False), self._good_order
        if new.count == old.count and not any(self.tree.overlay.names()):
            old.order, old.covered = new, new.covered  # listings go on where they are
        else:
            self._renew_tree(new)


def _longest(order: NameOrder, least: int) -> int:
    """Bytes that may lie behind an order, `least` for a small one."""
    return max(least, 256 * order.count)
