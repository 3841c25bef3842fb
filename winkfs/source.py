"""ContainerSource: a container as what winkmount serves.

File ids are those of the container. Directories have ids made for the mount, also those with an
entry of their own, which is read, and where a tool sets mode, owner or time of an implied
directory, made. Changed times of directories reach the container with a sync.

A file that is unlinked while it is open is taken out of the container at once; what it held is
copied to a spool first, from which its users go on.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Mapping
from typing import Final

from winkfs.container import Container
from winkfs.entry import to_str
from winkfs.errors import FileExists, NoSuchFile, NotAllowed, WinkError
from winkfs.inode import FileType
from winkfs.nametree import MAX_PATH, Directory
from winkfs.sourceview import ContainerView
from winkfs.spool import Spool
from winkmount.source import Attr

COPY: Final = 1 << 20  # bytes read at a time for a spool


class ContainerSource(ContainerView):
    """A plain container. Owns it: `close` closes it."""

    gather = True

    def __init__(self, container: Container) -> None:
        super().__init__(container)
        self._touched: set[Directory] = set()  # real ones whose entry has an older time

    # names

    def _free(self, parent: int, name: bytes) -> Directory:
        """-> the directory, in which there is no `name` yet."""
        directory, id = self._tree.find(parent, name)
        if id is not None:
            raise FileExists("exists already", to_str(directory.path(name)))
        _check_length(directory.path(name))
        return directory

    def _place(self, parent: int, name: bytes) -> tuple[Directory, int]:
        """-> the directory, and the id of the file or directory `name` in it."""
        directory, id = self._tree.find(parent, name)
        if id is None:
            raise NoSuchFile("no such file", to_str(directory.path(name)))
        return directory, id

    def _touch(self, directory: Directory) -> None:
        directory.mtime_ns = time.time_ns()
        if directory.real:
            self._touched.add(directory)

    def _put(
        self, name: bytes, data: bytes, ftype: FileType, mode: int, uid: int, gid: int
    ) -> None:
        """A new entry, with what the container can keep of its attributes."""
        self._need_room(len(data))
        if self._keeps_attrs:
            self._container.put(
                name, data, ftype=ftype, exclusive=True, mode=mode, uid=uid, gid=gid
            )
            return
        if ftype == FileType.FILE and mode & 0o100:
            ftype = FileType.EXEC
        self._container.put(name, data, ftype=ftype, exclusive=True)

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        return self._new_file(parent, name, b"", FileType.FILE, (mode, uid, gid))

    def symlink(self, parent: int, name: bytes, target: bytes, uid: int, gid: int) -> Attr:
        return self._new_file(parent, name, target, FileType.LINK, (0o777, uid, gid))

    def _new_file(
        self, parent: int, name: bytes, data: bytes, ftype: FileType, attrs: tuple[int, int, int]
    ) -> Attr:
        directory = self._free(parent, name)
        path = directory.path(name)
        self._put(path, data, ftype, *attrs)
        id = self._container.stat(path).fileid
        self._tree.add_file(directory, name, id, link=ftype == FileType.LINK)
        self._touch(directory)
        return self.stat(id)

    def mkdir(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        directory = self._free(parent, name)
        self._put(directory.path(name), b"", FileType.DIR, mode, uid, gid)
        below = self._tree.add_directory(directory, name)
        below.real, below.mtime_ns = True, None
        self._touch(directory)
        return self.stat(below.id)

    def unlink(self, parent: int, name: bytes) -> None:
        directory, id = self._place(parent, name)
        if self._tree.is_directory(id):
            raise _refuse(errno.EISDIR, directory.path(name))
        spool = self._copy_if_open(id)
        self._delete(id, directory.path(name))
        self._gone(directory, name, id, spool)
        self._touch(directory)

    def _delete(self, id: int, name: bytes) -> None:
        self._container.delete(name)

    def _copy_if_open(self, id: int | None) -> Spool | None:
        """What the users of a file go on with when its name goes."""
        if id is None or id in self._spools or id not in self._users:
            return None if id is None else self._spools.get(id)
        attr = self.stat(id)
        spool = self._new_spool(stat.S_IMODE(attr.mode), attr.uid, attr.gid)
        for offset in range(0, attr.size, COPY):
            spool.write(offset, self.read(id, offset, min(COPY, attr.size - offset)))
        spool.mtime_ns = attr.mtime_ns
        return spool

    def _new_spool(self, mode: int, uid: int, gid: int) -> Spool:
        return Spool(os.path.dirname(self._container.base), mode, uid, gid)

    def _gone(self, directory: Directory, name: bytes, id: int, spool: Spool | None) -> None:
        self._tree.remove_file(directory, name)
        if spool is not None:
            spool.orphan = True
            self._spools[id] = spool
            if id not in self._users:
                self._drop(id)

    def rmdir(self, parent: int, name: bytes) -> None:
        directory, id = self._place(parent, name)
        if not self._tree.is_directory(id):
            raise _refuse(errno.ENOTDIR, directory.path(name))
        below = self._tree.directory(id)
        if not below.empty:
            raise _refuse(errno.ENOTEMPTY, below.path())
        if below.real:
            self._container.delete(below.path())
        self._touched.discard(below)
        self._tree.remove_directory(below)
        self._touch(directory)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> None:
        old, id = self._place(parent, name)
        new, target = self._tree.find(new_parent, new_name)
        if target == id:
            return
        if self._tree.is_directory(id):
            self._rename_directory(self._tree.directory(id), new, new_name)
        elif target is not None and self._tree.is_directory(target):
            raise _refuse(errno.EISDIR, new.path(new_name))
        else:
            _check_length(new.path(new_name))
            spool = self._copy_if_open(target)
            self._rename_file(id, old.path(name), new.path(new_name))
            if target is not None:
                self._gone(new, new_name, target, spool)
            self._tree.move_file(old, name, new, new_name)
        self._touch(old)
        self._touch(new)

    def _rename_file(self, id: int, old: bytes, new: bytes) -> None:
        self._container.rename(old, new)

    def _rename_directory(self, directory: Directory, new: Directory, new_name: bytes) -> None:
        """All names below it, or none. A crash in the middle leaves some under each name."""
        if new_name in new.files:
            raise _refuse(errno.ENOTDIR, new.path(new_name))
        target = new.dirs.get(new_name)
        if target is not None and not target.empty:
            raise _refuse(errno.ENOTEMPTY, target.path())
        names, cut = self._tree.names_below(directory), len(directory.path())
        prefix = new.path(new_name)
        for name in names:
            _check_length(prefix + name[cut:])
        self._rename_all(names, cut, prefix)
        if target is not None:
            self._touched.discard(target)
            if target.real and not directory.real:  # its entry stays, as that of the one moved here
                directory.real, directory.mtime_ns = True, None
        self._tree.move_directory(directory, new, new_name)

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

    def _name(self, id: int) -> bytes:
        """Name in the container of a file or directory; an implied directory gets its entry."""
        if not self._tree.is_directory(id):
            return self._tree.name_of(id)
        directory = self._tree.directory(id)
        if directory.parent is None:
            raise NotAllowed("the top directory has no entry to keep this in")
        path = directory.path()
        if not directory.real:
            mtime_ns = self._stat_directory(directory).mtime_ns
            self._container.put(path, b"", ftype=FileType.DIR, exclusive=True, mtime_ns=mtime_ns)
            directory.real, directory.mtime_ns = True, None
        return path

    def chmod(self, id: int, mode: int) -> None:
        if stat.S_IMODE(self.stat(id).mode) == mode:
            return
        if id in self._spools:
            self._spools[id].mode = mode
        elif id == self.root:
            self._root_mode = mode
        else:
            self._container.chmod(self._name(id), mode)

    def chown(self, id: int, uid: int, gid: int) -> None:
        attr = self.stat(id)
        uid, gid = attr.uid if uid == -1 else uid, attr.gid if gid == -1 else gid
        if (attr.uid, attr.gid) == (uid, gid):
            return
        if id in self._spools:
            self._spools[id].uid, self._spools[id].gid = uid, gid
        else:
            self._container.chown(self._name(id), uid, gid)

    def utime(self, id: int, mtime_ns: int) -> None:
        if id in self._spools:
            self._spools[id].mtime_ns = mtime_ns
        elif id == self.root:
            self._tree.root.mtime_ns = mtime_ns
        else:
            self._container.utime(self._name(id), mtime_ns=mtime_ns)
            if self._tree.is_directory(id):
                directory = self._tree.directory(id)
                directory.mtime_ns = None
                self._touched.discard(directory)

    def set_xattrs(self, id: int, xattrs: Mapping[bytes, bytes]) -> None:
        self._container.setxattrs(self._name(id), dict(xattrs))

    # content

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        if truncate:
            self.truncate(id, 0)
        self._users[id] = self._users.get(id, 0) + 1

    def release(self, id: int) -> None:
        self._users[id] -= 1
        if not self._users[id]:
            del self._users[id]
            self._drop(id)

    def _drop(self, id: int) -> None:
        """A spool that is not needed any more."""
        spool = self._spools.get(id)
        if spool is not None and (spool.orphan or not spool.dirty):
            del self._spools[id]
            spool.close()

    def flush(self, id: int) -> None:
        pass

    def fsync(self, id: int) -> None:
        self.sync()

    def write(self, id: int, offset: int, data: bytes) -> None:
        spool = self._spools.get(id)
        if spool is not None:
            spool.write(offset, data)
        else:
            self._need_room(len(data))
            self._container.write(self._tree.name_of(id), offset, data)

    def truncate(self, id: int, size: int) -> None:
        spool = self._spools.get(id)
        if spool is not None:
            spool.truncate(size)
        else:
            self._container.truncate(self._tree.name_of(id), size)

    # the whole

    def sync(self) -> None:
        self._store_times()
        self._container.sync()

    def _store_times(self) -> None:
        """What changed names in directories did to their times."""
        while self._touched:
            directory = self._touched.pop()
            if directory.mtime_ns is not None:
                self._container.utime(directory.path(), mtime_ns=directory.mtime_ns)
                directory.mtime_ns = None

    def close(self) -> None:
        try:
            if self.writable:
                self._store_times()
        finally:
            self._container.close()


def _check_length(name: bytes) -> None:
    """A longer one would not be shown by the next mount."""
    if len(name) > MAX_PATH:
        raise _refuse(errno.ENAMETOOLONG, name[:80])


def _refuse(code: int, name: bytes) -> WinkError:
    return WinkError(os.strerror(code), to_str(name), number=code)
