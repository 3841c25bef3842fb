"""ContainerView: what a mount shows of a container: attributes and contents, by path and by id.

What is shown under a name is an entry of the container, a draft, a spool (a file that only the
mount has), or a directory, with or without an entry. File ids are those of the container.
Directories have ids made from the paths they had first.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from winkformats.errors import CorruptError
from winkfs.container.ondisk.inode import Attrs, FileType
from winkfs.mounting.ids import OWN_IDS, Places
from winkfs.mounting.listing import MODE_OF, Batch, InodeBatch
from winkfs.mounting.lookup import Found, find_data, text_of
from winkfs.mounting.tree import NameTree, Order
from winkfs.names import INODE, MAX_PATH
from winkfs.units import NANO, nearest_ns
from winkmount.source import Attr

if TYPE_CHECKING:
    from winkfs.mounting.names import ContainerNames
    from winkfs.mounting.spool import Spool
    from winkfs.mounting.timedir import TimeDirectory

REMEMBERED: Final = 1 << 16  # times of changes in memory


class ContainerView:
    """A container as it is now, or as it was at the last sync that was followed.

    names        which names there are
    places       which paths the ids have
    spools       id -> content that only the mount has
    times        what is shown under `.time`, None: nothing
    mtimes       directory -> its mtime, where the mount knows a later one than the container
    root_mode, root_owner, root_xattrs      of the top directory, which has no entry
    """

    def __init__(self, names: ContainerNames) -> None:
        self.names = names
        self.places = Places(names.container.superblock.get("CONTID", 0))
        self.root = self.places.root
        self.left_out: set[bytes] = set()
        self.spools: dict[int, Spool] = {}
        self.times: TimeDirectory | None = None
        self.mtimes: dict[bytes, int] = {}
        data = self.names.store.kv.storage.info()
        self._owner = data.uid, data.gid
        self._started_ns = int(data.mtime * NANO)
        self.root_mode, self.root_owner = 0o755, self._owner
        self.root_xattrs: Mapping[bytes, bytes] = {}
        self._ctimes: dict[int, int] = {}  # id -> when a change came that is not in the container

    # what a listing asks for, see `listing.View`

    @property
    def tree(self) -> NameTree:
        return self.names.tree

    def entry(self, path: bytes) -> int:
        """FTYPE of the entry of this name, 0: there is none."""
        return self.names.entry(path)

    def note(self, ids: list[int], paths: list[bytes]) -> None:
        self.places.note_many(ids, paths)

    def batch(self, order: Order, start: int, stop: int, cut: int) -> Batch:
        positions = order.positions(start, stop)
        self.names.budget.inodes(positions)
        batch, known = InodeBatch(self.names.store, positions, cut), self._ctimes
        if known:
            batch.attrs = [
                self._with_ctime(attr) if attr and attr.id in known else attr
                for attr in batch.attrs
            ]
        return batch

    # attributes by path

    def attr(self, path: bytes) -> Attr | None:
        """The attributes of what is shown under a name, whose id is known from now on."""
        if self.times is not None and self.times.has(path):
            return self.times.noted(path, self.places)
        names = self.names
        if names.engine.troubles != names.troubles:
            names.recheck()
        key = path + INODE
        alias = names.alias.get(path) if names.alias else None
        found, attr = None, None
        if alias is not None and alias in self.spools:
            attr = self.spool_attr(alias)
        elif (draft := names.drafts.get(key)) is not None:
            if draft.ftype != FileType.DIR:
                attr = self._file_attr(
                    draft.fileid, draft.ftype, draft.lsize, draft.mtime, draft.attrs
                )
        else:
            try:
                found = names.lookup.find(key)
            except CorruptError:  # there may be names below it all the same
                found = names.find(path, key)
            names.recent = key, found
            if found is None:
                return self.directory_attr(path) if names.tree.implied(path) else None
            _, id, size, ftype, mtime, _, attrs = found
            if ftype != FileType.DIR:
                if id >= OWN_IDS or self.places.held.get(id, path) != path:
                    id = self.places.other_id(path)
                attr = self._file_attr(id, ftype, size, mtime, attrs)
        if attr is None or (names.tree.clashes and names.tree.implied(path)):
            return self.directory_attr(path, found)
        if len(path) > MAX_PATH:
            return None
        if alias is not None:
            attr = attr._replace(id=alias)
        if self._ctimes:
            attr = self._with_ctime(attr)
        self.places.note(attr[0], path)
        names.budget.touches(1)
        return attr

    def made(self, path: bytes, size: int) -> Attr:
        """The same of what was made just now, of `size` bytes, where there was nothing."""
        draft = self.names.drafts.get(path + INODE)
        if draft is None or draft.ftype == FileType.DIR:
            attr = self.attr(path)
            assert attr is not None
            return attr
        attr = self._file_attr(draft.fileid, draft.ftype, size, draft.mtime, draft.attrs)
        self.places.note(attr[0], path)
        return attr

    def _file_attr(self, id: int, ftype: int, size: int, mtime: int, attrs: Attrs | None) -> Attr:
        """`mtime` as stored; `attrs` None: the defaults."""
        mode, store = MODE_OF[ftype & 255], self.names.store
        if store.settings.mtime_unit != 1:
            mtime = nearest_ns(store.settings.ns_of(mtime))
        if attrs is None:
            uid, gid = store.owner
            return Attr(id, mode, size, mtime, uid, gid)
        mode = stat.S_IFMT(mode) | stat.S_IMODE(attrs.mode)
        return Attr(id, mode, size, mtime, attrs.uid, attrs.gid, attrs.ctime_ns or 0)

    def spool_attr(self, id: int) -> Attr:
        spool = self.spools[id]
        mode = stat.S_IFREG | spool.mode
        return self._with_ctime(
            Attr(id, mode, spool.size, spool.shown_ns, spool.uid, spool.gid, spool.changed_ns)
        )

    def directory_attr(self, path: bytes, found: Found | None = None) -> Attr:
        """The attributes of a directory that is there; `found`: what its name holds, if known."""
        id, names = self.places.directory_id(path), self.names
        mode, (uid, gid), mtime_ns, ctime_ns = 0o755, self._owner, self._started_ns, 0
        key = path + INODE
        if not path:
            mode, (uid, gid) = self.root_mode, self.root_owner
        elif key in names.drafts:
            if names.drafts[key].ftype == FileType.DIR:
                stored = names.files.stat(key)
                mode, uid, gid, mtime_ns = stored.mode, stored.uid, stored.gid, stored.mtime_ns
                ctime_ns = stored.ctime_ns
        elif (found := found or names.find(path, key)) and found.ftype == FileType.DIR:
            uid, gid = names.store.owner
            if found.attrs is not None:
                mode, uid, gid = found.attrs.mode, found.attrs.uid, found.attrs.gid
                ctime_ns = found.attrs.ctime_ns or 0
            mtime_ns = nearest_ns(names.store.settings.ns_of(found.mtime))
        self.places.note(id, path)
        if path in self.mtimes:
            mtime_ns = self.mtimes[path]
            ctime_ns = ctime_ns if ctime_ns > mtime_ns else 0
        mode = stat.S_IFDIR | stat.S_IMODE(mode)
        return self._with_ctime(Attr(id, mode, 0, mtime_ns, uid, gid, ctime_ns))

    # times of changes

    def note_change(self, id: int, now: int) -> None:
        """Something of a file or directory has changed. The last REMEMBERED are known as long as
        the mount: not every container keeps that, nor every change."""
        self._ctimes.pop(id, None)
        self._ctimes[id] = now
        if len(self._ctimes) > REMEMBERED:
            del self._ctimes[next(iter(self._ctimes))]

    def _with_ctime(self, attr: Attr) -> Attr:
        known = self._ctimes.get(attr.id, 0)
        return attr._replace(ctime_ns=known) if known > (attr.ctime_ns or attr.mtime_ns) else attr

    # attributes by id

    def stat(self, id: int) -> Attr:
        if self.spools and id in self.spools:
            return self.spool_attr(id)
        path = self.places[id]
        attr = self.directory_attr(b"") if id == self.root else self.attr(path)
        if attr is None or attr.id != id:
            raise _stale()
        return attr

    def is_directory(self, id: int) -> bool:
        """Of an id that is known."""
        return id >= OWN_IDS and id == self.places.directory_id(self.places[id])

    def readlink(self, id: int) -> bytes:
        path = self.places[id]
        if self.times is not None and self.times.has(path):
            return self.times.target(path)
        return self.names.files.read(path + INODE, 0, -1)

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        if id == self.root:
            return self.root_xattrs
        if id in self.spools or self._is_timed(id):
            return {}
        path = self.places[id]
        if self.is_directory(id) and self.entry(path) != FileType.DIR:
            return {}
        return self.names.files.attrs(path + INODE).xattrs

    def facts(self, id: int) -> Mapping[str, str]:
        if id in self.spools or self._is_timed(id):
            return {}
        path, files = self.places[id], self.names.files
        ftype = self.entry(path)
        if not ftype or (ftype != FileType.DIR) == self.is_directory(id):
            return {}
        key = path + INODE
        return {
            "fileid": str(files.stat(key).fileid),
            "ftype": chr(ftype) if 32 < ftype < 127 else str(ftype),
            "extents": text_of(files.extents(key)),
        }

    def _is_timed(self, id: int) -> bool:
        return self.times is not None and id >= OWN_IDS and self.times.has(self.places[id])

    # contents

    def read(self, id: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        spool = self.spools.get(id) if self.spools else None
        if spool is not None:
            return spool.read(offset, size)
        names = self.names
        if names.engine.troubles != names.troubles:
            names.recheck()
        key = self.places[id] + INODE
        if key in names.drafts:
            return names.files.read(key, offset, size)
        # where nothing is opened, each read comes right after a lookup
        fresh = not names.writable and names.recent[0] == key
        found = names.recent[1] if fresh else names.lookup.find(key)
        if found is None:
            raise _stale()
        names.budget.reads(min(size, found.size))
        return names.lookup.read(found, offset, size)

    def seek(self, id: int, offset: int, *, hole: bool) -> int:
        """See `Source.seek`."""
        size = self.stat(id).size
        if not 0 <= offset < size:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        if id in self.spools:
            return size if hole else offset
        extents = self.names.files.extents(self.places[id] + INODE)
        return find_data(extents, offset, hole=hole)


def _stale() -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))
