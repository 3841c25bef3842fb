"""ContainerNames: names come, go and move in a container that a mount writes to.

A file that is unlinked while it is open is taken out of the container at once. Its users go on
reading its entries, which stay, and get a copy of them when one of them writes: see `spool`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from typing import Final

from winkfs.container.container import Container
from winkfs.container.entry import to_str
from winkfs.container.ondisk.inode import FileType
from winkfs.errors import FileExists, NoSuchFile, WinkError
from winkfs.mounting.sourceview import ContainerView
from winkfs.mounting.spool import Spool
from winkfs.names import MAX_PATH, within
from winkmount.source import Attr

TOMBSTONE: Final = 80  # bytes that one takes beside the name, at most


class ContainerNames(ContainerView):
    """Each name is in the container, in the tree, and in what is known of ids, times and users."""

    def __init__(self, container: Container) -> None:
        super().__init__(container)
        self._touched: set[bytes] = set()  # directories whose entries may have an older time
        self._dirty_since = 0.0  # when the first change came that is not on disk; 0: none

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

    @contextlib.contextmanager
    def _looking_after(self, *paths: bytes) -> Iterator[None]:
        """Around a change of these names: where it fails, it may have been made all the same."""
        try:
            yield
        except BaseException:
            self._changed()
            self._look_again(paths)
            raise

    # they come

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
        with self._looking_after(path):
            self._put(path, data, ftype, attrs)
        self.tree.add(path)
        self._touch(path)
        made = self.attr(path)
        assert made is not None
        return made

    def _put(self, path: bytes, data: bytes, ftype: FileType, attrs: tuple[int, int, int]) -> None:
        """A new entry, with what the container can keep of its attributes."""
        self._need_room(len(data))
        mode, uid, gid = attrs
        if self._keeps_attrs:
            self._container.engine.begin(path, ftype, mode=mode, uid=uid, gid=gid, free=True)
        else:
            self._container.engine.begin(path, kept(ftype, mode), free=True)
        if data:
            self._container.write(path, 0, data)

    # they go

    def unlink(self, parent: int, name: bytes) -> None:
        path, attr = self._place(parent, name)
        if attr.is_dir:
            raise _refuse(errno.EISDIR, path)
        spool = self._spool_if_open(path, attr)
        self._changes.let_go(-attr.id)
        with self._looking_after(path):
            self._delete(attr.id, path)
        self._gone(path, attr.id, spool)
        self._touch(path)

    def promise_unlink(self, id: int) -> None:
        path = self.places[id]
        if self.entry(path):
            self._store.need_delflag("deleting a file")
        self._changes.hold(-id, TOMBSTONE + len(path))

    def _delete(self, id: int, path: bytes) -> None:
        self._container.delete(path)

    def _spool_if_open(self, path: bytes, attr: Attr | None) -> Spool | None:
        """What the users of a file go on with when its name goes."""
        if attr is None or attr.id in self._spools or attr.id not in self._users:
            return None if attr is None else self._spools.get(attr.id)
        spool = self._new_spool(stat.S_IMODE(attr.mode), attr.uid, attr.gid)
        read, troubles = self._files.reader(path + b"/I0"), self._container.engine.troubles

        def below(offset: int, size: int) -> bytes:
            if self._container.engine.troubles != troubles:  # its entries may be lost
                raise _refuse(errno.EIO, path)
            self._light.reads(size)
            return read(offset, size)

        spool.lay_over(below, attr.size, self._need_room)
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

    def _drop(self, id: int) -> None:
        """Let go of a file without users, save for a spool that is still needed."""
        self._changes.let_go(-id)
        spool = self._spools.get(id) if self._spools else None
        if spool is not None:
            if spool.dirty and not spool.orphan:
                return
            del self._spools[id]
            spool.close()
        if self._alias:
            self._alias = {path: other for path, other in self._alias.items() if other != id}
        self.places.let_go(id)

    def rmdir(self, parent: int, name: bytes) -> None:
        path, attr = self._place(parent, name)
        if not attr.is_dir:
            raise _refuse(errno.ENOTDIR, path)
        if not self.tree.is_empty(path):
            raise _refuse(errno.ENOTEMPTY, path)
        real = self.entry(path) == FileType.DIR
        if real:
            with self._looking_after(path):
                self._container.delete(path)
        self.tree.remove_directory(path, entry=real)
        self._times.pop(path, None)
        self.places.forget(attr.id)
        if attr.id in self._users:
            self.places.renew(path)
        self._touch(path)

    # they move

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> None:
        old, attr = self._place(parent, name)
        new = self._path(new_parent, new_name)
        target, now = self.attr(new), time.time_ns()
        if old == new:
            return
        if attr.is_dir:
            self._rename_directory(old, new, target)
        elif target is not None and target.is_dir:
            raise _refuse(errno.EISDIR, new)
        else:
            _check_length(new)
            spool = self._spool_if_open(new, target)
            with self._looking_after(old, new):
                self._rename_file(attr.id, old, new, now)
            if target is not None:
                self._gone(new, target.id, spool)
            self._moved(attr.id, old, new)
        self._note_change(attr.id, now)
        self._touch(old)
        self._touch(new)

    def _rename_file(self, id: int, old: bytes, new: bytes, now: int) -> None:
        self._container.rename(old, new, ctime_ns=now)

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
        with self._looking_after(*names, *(new + name[len(old) :] for name in names)):
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
                itself = len(name) == cut  # what is below has not changed
                now = time.time_ns() if itself else None
                self._container.rename(name, prefix + name[cut:], ctime_ns=now)
                done.append(name)
        except OSError:
            for name in reversed(done):
                self._container.rename(prefix + name[cut:], name)
            raise


def kept(ftype: FileType, mode: int) -> FileType:
    """The ftype that says of a mode what a container without ATTRS can keep."""
    return FileType.EXEC if ftype == FileType.FILE and mode & 0o100 else ftype


def _check_length(name: bytes) -> None:
    """A longer one would not be shown by the next mount."""
    if len(name) > MAX_PATH:
        raise _refuse(errno.ENAMETOOLONG, name[:80])


def _refuse(code: int, name: bytes) -> WinkError:
    return WinkError(os.strerror(code), to_str(name), number=code)
