"""ContainerSource: a container as what winkmount serves.

File ids are those of the container. Directories have ids made from the paths they had first. The
entry of a directory is read where it has one, and made where a tool sets mode, owner or time of an
implied one. Changed times of directories reach the container with a sync.

A file that is unlinked while it is open is taken out of the container at once; what it held is
copied to a spool first, from which its users go on.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from winkformats.errors import FormatError
from winkformats.heap import keep_heap
from winkfs.changes import PIECE
from winkfs.container import Container
from winkfs.entry import to_str
from winkfs.errors import FileExists, NoSuchFile, NotAllowed, WinkError
from winkfs.inode import FileType
from winkfs.names import MAX_PATH, within
from winkfs.namesfile import merge
from winkfs.sourceview import CHANGES, ContainerView
from winkfs.spool import Spool
from winkfs.store import NO_ROOM
from winkmount.source import Attr

log = logging.getLogger("winkfs.mount")

COPY: Final = 1 << 20  # bytes read at a time for a spool
TAIL: Final = 256 << 20  # bytes behind an order, at least, before that happens for their number


class ContainerSource(ContainerView):
    """A plain container. Owns it: `close` closes it."""

    gather = True

    def __init__(self, container: Container) -> None:
        super().__init__(container)
        keep_heap()
        self._touched: set[bytes] = set()  # directories whose entries may have an older time
        self._dirty_since = 0.0  # when the first change came that is not on disk; 0: none

    # names

    def _free(self, parent: int, name: bytes) -> bytes:
        """-> the path, where there is nothing yet."""
        path = self._path(parent, name)
        if self.attr(path) is not None:
            raise FileExists("exists already", to_str(path))
        _check_length(path)
        return path

    def _place(self, parent: int, name: bytes) -> tuple[bytes, Attr]:
        """-> path and attributes of what is there."""
        path = self._path(parent, name)
        attr = self.attr(path)
        if attr is None:
            raise NoSuchFile("no such file", to_str(path))
        return path, attr

    def _touch(self, path: bytes) -> None:
        """A name came or went: the directory it is in is as new as that."""
        self._changed()
        above = path.rpartition(b"/")[0]
        self._times[above] = time.time_ns()
        self._touched.add(above)

    def _changed(self) -> None:
        """Something is not on the disk yet."""
        if not self._dirty_since:
            self._dirty_since = time.time()

    def _changed_entry(self, path: bytes) -> None:
        """A name has another inode."""
        self._changed()
        self.tree.change(path)

    def _put(self, path: bytes, data: bytes, ftype: FileType, attrs: tuple[int, int, int]) -> None:
        """A new entry, with what the container can keep of its attributes."""
        self._need_room(len(data))
        mode, uid, gid = attrs
        if self._keeps_attrs:
            self._container.begin(path, ftype, mode=mode, uid=uid, gid=gid, free=True)
        else:
            self._container.begin(path, kept(ftype, mode), free=True)
        if data:
            self._container.write(path, 0, data)

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        return self._new(parent, name, b"", FileType.FILE, (mode, uid, gid))

    def symlink(self, parent: int, name: bytes, target: bytes, uid: int, gid: int) -> Attr:
        return self._new(parent, name, target, FileType.LINK, (0o777, uid, gid))

    def mkdir(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        return self._new(parent, name, b"", FileType.DIR, (mode, uid, gid))

    def _new(
        self, parent: int, name: bytes, data: bytes, ftype: FileType, attrs: tuple[int, int, int]
    ) -> Attr:
        path = self._free(parent, name)
        self._put(path, data, ftype, attrs)
        self.tree.add(path)
        self._touch(path)
        made = self.attr(path)
        assert made is not None
        return made

    def unlink(self, parent: int, name: bytes) -> None:
        path, attr = self._place(parent, name)
        if attr.is_dir:
            raise _refuse(errno.EISDIR, path)
        spool = self._copy_if_open(attr)
        self._delete(attr.id, path)
        self._gone(path, attr.id, spool)
        self._touch(path)

    def _delete(self, id: int, path: bytes) -> None:
        self._container.delete(path)

    def _copy_if_open(self, attr: Attr | None) -> Spool | None:
        """What the users of a file go on with when its name goes."""
        if attr is None or attr.id in self._spools or attr.id not in self._users:
            return None if attr is None else self._spools.get(attr.id)
        spool = self._new_spool(stat.S_IMODE(attr.mode), attr.uid, attr.gid)
        for offset in range(0, attr.size, COPY):
            spool.write(offset, self.read(attr.id, offset, min(COPY, attr.size - offset)))
        spool.mtime_ns = attr.mtime_ns
        return spool

    def _new_spool(self, mode: int, uid: int, gid: int) -> Spool:
        return Spool(self._folder, mode, uid, gid)

    def _gone(self, path: bytes, id: int, spool: Spool | None) -> None:
        self.tree.remove(path)
        self._changes.let_go(id)
        self._alias.pop(path, None)
        self.places.forget(id)
        if spool is not None:
            spool.orphan = True
            self._spools[id] = spool
            if id not in self._users:
                self._drop(id)

    def rmdir(self, parent: int, name: bytes) -> None:
        path, attr = self._place(parent, name)
        if not attr.is_dir:
            raise _refuse(errno.ENOTDIR, path)
        if not self.tree.is_empty(path):
            raise _refuse(errno.ENOTEMPTY, path)
        real = self.entry(path) == FileType.DIR
        if real:
            self._container.delete(path)
        self.tree.remove_directory(path, entry=real)
        self._times.pop(path, None)
        self.places.forget(attr.id)
        if attr.id in self._users:
            self.places.renew(path)
        self._touch(path)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> None:
        old, attr = self._place(parent, name)
        new = self._path(new_parent, new_name)
        target = self.attr(new)
        if old == new:
            return
        if attr.is_dir:
            self._rename_directory(old, new, target)
        elif target is not None and target.is_dir:
            raise _refuse(errno.EISDIR, new)
        else:
            _check_length(new)
            spool = self._copy_if_open(target)
            self._rename_file(attr.id, old, new)
            if target is not None:
                self._gone(new, target.id, spool)
            self._moved(attr.id, old, new)
        self._touch(old)
        self._touch(new)

    def _rename_file(self, id: int, old: bytes, new: bytes) -> None:
        self._container.rename(old, new)

    def _moved(self, id: int, old: bytes, new: bytes) -> None:
        self.tree.remove(old)
        self.tree.add(new)
        if old in self._alias:
            self._alias[new] = self._alias.pop(old)
        self.places.move(id, new)

    def _rename_directory(self, old: bytes, new: bytes, target: Attr | None) -> None:
        """All names below it, or none. A crash in the middle leaves some under each name."""
        if target is not None and not target.is_dir:
            raise _refuse(errno.ENOTDIR, new)
        if target is not None and not self.tree.is_empty(new):
            raise _refuse(errno.ENOTEMPTY, new)
        names = list(self.tree.below(old))
        real, replaced = self.entry(old) == FileType.DIR, self.entry(new) == FileType.DIR
        if real:
            names.insert(0, old)
        waiting = [name for name in self._alias if within(name, old)]
        for name in (*names, *waiting):
            _check_length(new + name[len(old) :])
        listings = [each for each in self._listings.values() if within(each.path, old)]
        for listing in listings:
            listing.fix()
        self._rename_all(names, len(old), new)
        for listing in listings:
            listing.move(new + listing.path[len(old) :])
        if real:
            del names[0]
            self.tree.remove(old)
            if replaced:
                self.tree.change(new)
            else:
                self.tree.add(new, was_there=target is not None)
        if target is not None:
            self.places.forget(target.id)
            self._times.pop(new, None)
        self._moved_below(old, new, dict.fromkeys((*names, *waiting)))

    def _moved_below(self, old: bytes, new: bytes, names: Iterable[bytes]) -> None:
        """The entries and spools of these names are below `new` now: so is all that is known."""
        for name in names:
            moved = new + name[len(old) :]
            self.tree.remove(name)
            self.tree.add(moved)
            self.tree.stay(moved.rpartition(b"/")[0])
            if name in self._alias:
                self._alias[moved] = self._alias.pop(name)
        self.tree.move_directory(old, new)
        self.places.move_below(old, new)
        for path in [path for path in self._times if within(path, old)]:
            moved = new + path[len(old) :]
            self._times[moved] = self._times.pop(path)
            self._touched.add(moved)

    def _rename_all(self, names: list[bytes], cut: int, prefix: bytes) -> None:
        done: list[bytes] = []
        try:
            for name in names:
                self._container.rename(name, prefix + name[cut:])
                done.append(name)
        except OSError:
            for name in reversed(done):
                self._container.rename(prefix + name[cut:], name)
            raise

    # attributes

    def _entry_for(self, id: int) -> bytes:
        """Name in the container of a file or directory; an implied directory gets its entry."""
        path = self.places[id]
        self._changed()
        if id == self.root:
            raise NotAllowed("the top directory has no entry to keep this in")
        if self._is_directory(id) and self.entry(path) != FileType.DIR:
            mtime_ns = self.directory_attr(path).mtime_ns
            self._container.put(path, b"", ftype=FileType.DIR, exclusive=True, mtime_ns=mtime_ns)
            self.tree.add(path, was_there=True)
            self._times.pop(path, None)
        else:
            self.tree.change(path)
        return path

    def chmod(self, id: int, mode: int) -> None:
        if stat.S_IMODE(self.stat(id).mode) == mode:
            return
        if id in self._spools:
            self._spools[id].mode = mode
        elif id == self.root:
            self._root_mode = mode
        else:
            self._container.chmod(self._entry_for(id), mode)

    def chown(self, id: int, uid: int, gid: int) -> None:
        attr = self.stat(id)
        uid, gid = attr.uid if uid == -1 else uid, attr.gid if gid == -1 else gid
        if (attr.uid, attr.gid) == (uid, gid):
            return
        if id in self._spools:
            self._spools[id].uid, self._spools[id].gid = uid, gid
        else:
            self._container.chown(self._entry_for(id), uid, gid)

    def utime(self, id: int, mtime_ns: int) -> None:
        if id in self._spools:
            self._spools[id].mtime_ns = mtime_ns
        elif id == self.root:
            self._times[b""] = mtime_ns
        else:
            path = self._entry_for(id)
            self._container.utime(path, mtime_ns=mtime_ns)
            self._times.pop(path, None)

    def set_xattrs(self, id: int, xattrs: Mapping[bytes, bytes]) -> None:
        self._container.setxattrs(self._entry_for(id), dict(xattrs))

    # content

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        if truncate:
            self.truncate(id, 0)
        self._use(id)

    def release(self, id: int) -> None:
        if self._leave(id):
            self._drop(id)

    def _drop(self, id: int) -> None:
        """Let go of a file without users, save for a spool that is still needed."""
        spool = self._spools.get(id) if self._spools else None
        if spool is not None:
            if spool.dirty and not spool.orphan:
                return
            del self._spools[id]
            spool.close()
        if self._alias:
            self._alias = {path: other for path, other in self._alias.items() if other != id}
        self.places.let_go(id)

    def flush(self, id: int) -> None:
        pass

    def fsync(self, id: int) -> None:
        self.sync()

    def write(self, id: int, pieces: Sequence[tuple[int, bytes]], mtime_ns: int) -> None:
        promised = self._changes.let_go(id)
        spool = self._spools.get(id) if self._spools else None
        if spool is not None:
            for offset, data in pieces:
                spool.write(offset, data)
            return
        path = self.places[id]
        if not promised:
            self._need_room(sum(len(data) for _, data in pieces))
        self._container.write_many(path, pieces, mtime_ns=mtime_ns)
        self._changed_entry(path)

    def truncate(self, id: int, size: int) -> None:
        spool = self._spools.get(id)
        if spool is not None:
            spool.truncate(size)
            return
        self._container.truncate(self.places[id], size)
        self._changed_entry(self.places[id])

    def punch(self, id: int, offset: int, size: int) -> None:
        spool = self._spools.get(id)
        if spool is not None:
            spool.punch(offset, size)
            return
        self._container.punch(self.places[id], offset, size)
        self._changed_entry(self.places[id])

    def allocate(self, id: int, size: int) -> None:
        self._need_room(size)

    def promise(self, id: int, size: int) -> bool:
        """Not for spools, nor where an overwrite may be a copy, or a gap zeros."""
        settings, changes = self._store.settings, self._changes
        if (self._spools and id in self._spools) or not (settings.pairoff and settings.holes):
            return False
        self._need_room(size)
        held = changes.held.get(id)
        if held is None:
            held = changes.cost_of_change(self.places[id] + b"/I0")
        changes.hold(id, held + size + PIECE)
        return True

    # the whole

    def status(self) -> Mapping[str, object]:
        drafts = sum(len(draft.tail) for draft in self._drafts.values())
        waiting = self._store.kv.end - self._store.synced + drafts
        return {
            **super().status(),
            "unsynced_bytes": waiting,
            "unsynced_since": self._dirty_since or None,
        }

    def sync(self) -> None:
        self._store_times()
        self._container.sync()
        self._dirty_since = 0.0
        count = self.tree.since.order.count
        tail = self._store.kv.end - self.tree.since.order.covered
        if self.tree.weight > max(CHANGES, count // 32) or tail > max(TAIL, 256 * count):
            self._new_order()

    def _new_order(self) -> None:
        """What changed in memory goes into a new order, on disk where that can be. After a sync."""
        lookup, since = self._store.index.lookup, self.tree.since
        changes = {name: lookup(name + b"/I0") for name in since.names()}
        try:
            self.tree.renew(merge(self._store, since.order, changes))
        except (OSError, FormatError) as error:  # the old one goes on, with all that changed
            log.error("the order of names stays as it is: %s", error)

    def _store_times(self) -> None:
        """What changed names in directories did to their times."""
        for path in list(self._touched):
            if path in self._times and self.entry(path) == FileType.DIR:
                try:
                    self._container.utime(path, mtime_ns=self._times[path])
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                    continue  # the contents of files come first
                self.tree.change(path)
                del self._times[path]
            self._touched.discard(path)

    def close(self) -> None:
        try:
            if self.writable:
                self._store_times()
                self._container.sync()
                if self.tree.since.order.covered != self._store.kv.end:
                    self._new_order()
        finally:
            self._container.close()


def kept(ftype: FileType, mode: int) -> FileType:
    """The ftype that says of a mode what a container without ATTRS can keep."""
    return FileType.EXEC if ftype == FileType.FILE and mode & 0o100 else ftype


def _check_length(name: bytes) -> None:
    """A longer one would not be shown by the next mount."""
    if len(name) > MAX_PATH:
        raise _refuse(errno.ENAMETOOLONG, name[:80])


def _refuse(code: int, name: bytes) -> WinkError:
    return WinkError(os.strerror(code), to_str(name), number=code)
