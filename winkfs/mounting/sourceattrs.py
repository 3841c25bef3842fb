"""ContainerAttrs: what is shown under a name, with its attributes.

A name is that of an entry of the container, of a draft, of a file that only a mount knows (a
spool), or of a directory, with or without an entry. File ids are those of the container.
Directories have ids made from the paths they had first.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final

from winkformats.errors import CorruptError, FormatError
from winkfs.container.arguments import nearest_ns
from winkfs.container.container import Container
from winkfs.container.nameorder import NameOrder, open_order, tail
from winkfs.container.ondisk.data import SUFFIX
from winkfs.container.ondisk.inode import Attrs, FileType
from winkfs.container.ondisk.names import build, merge
from winkfs.errors import DerivedDamage
from winkfs.mounting.ids import OWN_IDS
from winkfs.mounting.listing import MODE_OF
from winkfs.mounting.lookup import Found, Light, Look
from winkfs.mounting.pathview import PathView
from winkfs.mounting.spool import Spool
from winkfs.mounting.tree import GoodOrder, NameTree
from winkfs.names import MAX_PATH
from winkfs.units import NANO
from winkmount.source import Attr

log = logging.getLogger("winkfs.mount")

CHANGES: Final = 1 << 17  # changes of names in memory, at least, before they go into a new order
REMEMBERED: Final = 1 << 16  # times of changes in memory
NAMES: Final = 1 << 12  # names behind an order up to which they are looked up one by one
TAIL: Final = 512 << 20  # bytes behind an order, at least, before a new one costs less than theirs


def longest(order: NameOrder, least: int) -> int:
    """Bytes that may lie behind an order, `least` for a small one."""
    return max(least, 256 * order.count)


class ContainerAttrs(PathView):
    """A container as it is now, or as it was at the last sync that was followed."""

    def __init__(self, container: Container) -> None:
        super().__init__(container.superblock.get("CONTID", 0))
        self._container = container
        self.writable, self.failed = container.writable, ""
        if not self.writable:
            container.engine.freeze()
        self._attach()
        data = self._store.kv.storage.info()
        self._owner = data.uid, data.gid
        self._started_ns = int(data.mtime * NANO)
        self._keeps_attrs = container.superblock.get("ATTRS") == 1
        self._root_mode, self._owner_of_root = 0o755, self._owner
        self._root_xattrs: Mapping[bytes, bytes] = {}
        self._times: dict[bytes, int] = {}  # directory -> mtime, where a mount knows better
        self._spools: dict[int, Spool] = {}
        self._alias: dict[bytes, int] = {}  # name -> id, where it is not the container's file id
        self._ctimes: dict[int, int] = {}  # id -> when a change came that is not in the container
        self._found: tuple[bytes, Found | None] = b"", None  # key and inode of the last look-up

    # the container

    def _attach(self) -> None:
        """Take up what is behind the handle: also after a recovery it may be another."""
        engine = self._container.engine
        self._store, self._content = engine.store, engine.content
        self._files, self._changes = engine.files, engine.changes
        self._generation = self._store.generation
        self._troubles = self._container.engine.troubles
        self._light = Light(self._store.kv)
        self._look = Look(self._store, self._content)
        self._drafts = self._changes.drafts
        self._new_tree()
        order = self.tree.since.order
        if order.clashes:
            files = "files that have" if order.clashes > 1 else "file that has"
            log.warning("not shown: %d %s names below it", order.clashes, files)

    def _new_tree(self) -> None:
        order, names = self._order()
        self.tree = NameTree(GoodOrder(order), self.entry)
        self.tree.replay(names)

    @property
    def _name_order(self) -> NameOrder:
        return self._good_order.order

    @property
    def _good_order(self) -> GoodOrder:
        order = self.tree.since.order
        assert isinstance(order, GoodOrder)
        return order

    def _order(self) -> tuple[NameOrder, list[bytes]]:
        """The name order, and the names that changed since. Written where it is missing."""
        store = self._store
        order = open_order(store)
        if order is None or store.kv.end - order.covered > longest(order, TAIL):
            return build(store), []
        changes = dict(tail(store, order.covered))
        if len(changes) <= NAMES:
            return order, list(changes)
        try:
            return merge(store, order, changes), []
        except DerivedDamage as error:
            log.warning("%s: made again", error)
            return build(store), []

    def _recheck(self) -> None:
        """The disk refused a write or a sync, and files that were not synced may be lost.

        As long as it refuses, what can be read is read; changes meet the refusal themselves.
        """
        known = self._container.engine.troubles
        with contextlib.suppress(OSError):
            self._container.engine.check()
            self._troubles = known
        if self.writable and not self._container.writable and not self.failed:
            self.failed = "the disk below has failed: nothing can be written any more"
            log.error("%s: %s", self._container.base, self.failed)
        if self._container.engine.store.generation != self._generation:
            self._attach()
            self._add_unstored()
        elif self._troubles == known:
            self.tree.recheck(lambda path: path in self._alias or self.entry(path) != 0)
            # A name that came and went since the order was made is noted nowhere, and may be back.
            drafts = [key[: -len(SUFFIX)] for key in self._drafts]
            later = (name for name, _ in tail(self._store, self._name_order.covered))
            self._look_again(chain(later, drafts))

    def _look_again(self, names: Iterable[bytes]) -> None:
        """These may have come, changed or gone. What cannot be read now stays as it was noted."""
        with contextlib.suppress(OSError, FormatError):
            self.tree.replay(names)
            self._add_unstored()

    def entry(self, path: bytes) -> int:
        """FTYPE of the entry of this name, 0: there is none."""
        if not path:
            return 0
        key = path + b"/I0"
        draft = self._drafts.get(key)
        if draft is not None:
            return draft.ftype
        try:
            found = self._look.find(key)
        except DerivedDamage:
            raise
        except CorruptError:
            return FileType.UNKNOWN
        return 0 if found is None else found.ftype or FileType.FILE

    def refresh(self) -> bool:
        """Follow the writer to its last sync -> whether anything has changed. Read-only."""
        covered = self._store.kv.end
        if self.writable or not self._container.engine.follow():
            return False
        self._found = b"", None
        if self._container.engine.store.generation != self._generation:
            self._attach()
        else:
            self.tree.version += 1
            self._look.renew()
            self.tree.replay(name for name, _ in tail(self._store, covered))
            if self._many_changes():
                self._new_tree()
        return True

    def _many_changes(self) -> bool:
        """Whether so much has changed in memory that it had better go into a new order."""
        return self.tree.weight > max(CHANGES, self.tree.since.order.count // 32)

    def heal(self, error: Exception) -> bool:
        """Make a damaged index or order of names anew: what failed by it can be done again."""
        if not isinstance(error, DerivedDamage):
            return False
        log.warning("%s: made again, in memory", error)
        if error.file.endswith(".names"):
            self._new_order_in_memory()
        else:
            self._store.distrust_index(error)
        return True

    def _new_order_in_memory(self) -> None:
        if self.writable:
            self._changes.settle()
        self._store.names.drop()
        new, old = build(self._store, save=False), self._good_order
        if new.count == old.count and not any(self.tree.since.names()):
            old.order, old.covered = new, new.covered  # listings go on where they are
        else:
            self._renew_tree(new)

    def _renew_tree(self, order: NameOrder) -> None:
        """Go on with an order of the names as they are now; files that are not in the container
        yet are not in it."""
        self.tree.renew(GoodOrder(order))
        self._add_unstored()

    def _add_unstored(self) -> None:
        for path in self._alias:
            if not self.entry(path):
                self.tree.add(path)

    # names

    def attr(self, path: bytes) -> Attr | None:
        """The attributes of what is shown under a name, whose id is known from now on."""
        if self._container.engine.troubles != self._troubles:
            self._recheck()
        key = path + b"/I0"
        alias = self._alias.get(path) if self._alias else None
        found, attr = None, None
        if alias is not None and alias in self._spools:
            attr = self._spool_attr(alias, self._spools[alias])
        elif (draft := self._drafts.get(key)) is not None:
            if draft.ftype != FileType.DIR:
                attr = self._file_attr(
                    draft.fileid, draft.ftype, draft.lsize, draft.mtime, draft.attrs
                )
        else:
            found = self._find(path, key)
            self._found = key, found
            if found is None:
                return self.directory_attr(path) if self.tree.implied(path) else None
            _, id, size, ftype, mtime, _, attrs = found
            if ftype != FileType.DIR:
                if id >= OWN_IDS or self.places.held.get(id, path) != path:
                    id = self.places.other_id(path)
                attr = self._file_attr(id, ftype, size, mtime, attrs)
        if attr is None or (self.tree.clashes and self.tree.implied(path)):
            return self.directory_attr(path, found)
        if len(path) > MAX_PATH:
            return None
        if alias is not None:
            attr = attr._replace(id=alias)
        if self._ctimes:
            attr = self._with_ctime(attr)
        self.places.note(attr[0], path)
        self._light.touches(1)
        return attr

    def _find(self, path: bytes, key: bytes) -> Found | None:
        """The inode of a name; None too where it is damaged, but there are names below it. Raises
        CorruptError."""
        try:
            return self._look.find(key)
        except DerivedDamage:
            raise
        except CorruptError:
            if self.tree.implied(path):
                return None
            raise

    def _file_attr(self, id: int, ftype: int, size: int, mtime: int, attrs: Attrs | None) -> Attr:
        """`mtime` as stored; `attrs` None: the defaults."""
        mode, settings = MODE_OF[ftype & 255], self._store.settings
        if not settings.nanoseconds:
            mtime = nearest_ns(settings.ns_of(mtime))
        if attrs is None:
            uid, gid = self._store.owner
            return Attr(id, mode, size, mtime, uid, gid)
        mode = stat.S_IFMT(mode) | stat.S_IMODE(attrs.mode)
        return Attr(id, mode, size, mtime, attrs.uid, attrs.gid, attrs.ctime_ns or 0)

    def _spool_attr(self, id: int, spool: Spool) -> Attr:
        mode = stat.S_IFREG | spool.mode
        return self._with_ctime(
            Attr(id, mode, spool.size, spool.shown_ns, spool.uid, spool.gid, spool.changed_ns)
        )

    def _note_change(self, id: int, now: int) -> None:
        """Something of a file or directory has changed. The last REMEMBERED are known as long as
        the mount: not every container keeps that, nor every change."""
        self._ctimes.pop(id, None)
        self._ctimes[id] = now
        if len(self._ctimes) > REMEMBERED:
            del self._ctimes[next(iter(self._ctimes))]

    def _with_ctime(self, attr: Attr) -> Attr:
        known = self._ctimes.get(attr.id, 0)
        return attr._replace(ctime_ns=known) if known > (attr.ctime_ns or attr.mtime_ns) else attr

    def directory_attr(self, path: bytes, found: Found | None = None) -> Attr:
        """The attributes of a directory that is there; `found`: what its name holds, if known."""
        id = self.places.directory_id(path)
        mode, (uid, gid), mtime_ns, ctime_ns = 0o755, self._owner, self._started_ns, 0
        key = path + b"/I0"
        if not path:
            mode, (uid, gid) = self._root_mode, self._owner_of_root
        elif key in self._drafts:
            if self._drafts[key].ftype == FileType.DIR:
                stored = self._files.stat(key)
                mode, uid, gid, mtime_ns = stored.mode, stored.uid, stored.gid, stored.mtime_ns
                ctime_ns = stored.ctime_ns
        elif (found := found or self._find(path, key)) and found.ftype == FileType.DIR:
            uid, gid = self._store.owner
            if found.attrs is not None:
                mode, uid, gid = found.attrs.mode, found.attrs.uid, found.attrs.gid
                ctime_ns = found.attrs.ctime_ns or 0
            mtime_ns = nearest_ns(self._store.settings.ns_of(found.mtime))
        self.places.note(id, path)
        if path in self._times:
            mtime_ns = self._times[path]
            ctime_ns = ctime_ns if ctime_ns > mtime_ns else 0
        mode = stat.S_IFDIR | stat.S_IMODE(mode)
        return self._with_ctime(Attr(id, mode, 0, mtime_ns, uid, gid, ctime_ns))

    def stat(self, id: int) -> Attr:
        spool = self._spools.get(id) if self._spools else None
        if spool is not None:
            return self._spool_attr(id, spool)
        path = self.places[id]
        attr = self.directory_attr(b"") if id == self.root else self.attr(path)
        if attr is None or attr.id != id:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return attr

    def _is_directory(self, id: int) -> bool:
        """Of an id that is known."""
        return id >= OWN_IDS and id == self.places.directory_id(self.places[id])
