"""ContainerSource: a container as what winkmount serves.

The entry of a directory is made where a tool sets mode, owner or time of an implied one. Changed
times of directories reach the container with a sync.

A file that is unlinked while it is open is taken out of the container at once. Its users go on
reading its entries, which stay, and get a copy of them when one of them writes: see `spool`.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from winkformats.arrays import keep_heap, trim_heap
from winkformats.disk.room import has_ample_memory
from winkformats.errors import FormatError
from winkformats.kv.superblock import MAGIC
from winkfs.container.datafile import NO_ROOM
from winkfs.container.draft import PATCH_BYTES
from winkfs.container.ondisk.inode import PERMISSIONS, Attrs, check_attrs, check_length
from winkfs.entry import FileType
from winkfs.errors import FileExists, NoSuchFile, Refusal
from winkfs.mounting.ids import OWN_IDS
from winkfs.mounting.listing import Listing
from winkfs.mounting.lookup import PAGE
from winkfs.mounting.numbers import Numbers
from winkfs.mounting.owncopy import OwnCopies
from winkfs.mounting.spool import Spool
from winkfs.mounting.tree import NameTree
from winkfs.mounting.view import ContainerNames, ContainerView
from winkfs.names import AT, INODE, MAX_PATH, OWN, SELF, key_at, name_at, name_of, to_str, within
from winkfs.units import CLAMPED, NAMED, Clamped
from winkmount.source import Amendment, Attr, Changing, Page, Steps, refuse, run_steps

if TYPE_CHECKING:
    from winkfs.container.container import Container
    from winkfs.container.draft import Draft

RESERVE: Final = 8 << 20  # bytes of the disk kept free, so that files can be removed and synced
ROOM_GOOD_FOR: Final = 0.05  # seconds after which it is looked how full the disk is
KEPT_FILES: Final = 1 << 16  # see `Changing`; in a small cgroup
KEPT_FILES_SMALL: Final = 1 << 12

log = logging.getLogger("winkfs.mount")
P = ParamSpec("P")
R = TypeVar("R")


class ContainerSource(ContainerView, Changing):
    """A plain container. Owns it: `close` closes it."""

    gather = True

    def __init__(self, container: Container) -> None:
        super().__init__(ContainerNames(container))
        self._container, self.writable = container, container.writable
        self.lasting = OWN_IDS if self.writable and self.gather else 0
        self._room, self._room_until = 0, 0.0  # bytes left, and how long to believe it
        room = self.names.store.kv.layout.key.limit - len(INODE)
        self._longest = min(MAX_PATH, room)  # bytes of a path
        self._keeps_attrs = container.superblock.get("ATTRS") == 1
        settings = self.names.store.settings
        self._keeps_times = settings.attrs and settings.nanoseconds and not settings.ao
        self.kept = KEPT_FILES if has_ample_memory() else KEPT_FILES_SMALL
        self._touched: set[bytes] = set()  # directories whose entries may have an older time
        self._copies = OwnCopies()
        self._clamped = Clamped()  # times that no file can have
        self._dirty_since = 0.0  # when the first change came that is not on disk; 0: none
        # what `lookup` did not find, and as of when
        self._missing: tuple[bytes, NameTree, int, int] | None = None
        self._made: Draft | None = None  # of what was made last
        keep_heap()

    @property
    def failed(self) -> str:
        return self.names.failed

    def heal(self, error: Exception) -> bool:
        """Get over damage to the index or the catalog -> whether a call may succeed now."""
        return self.names.heal(error)

    def refresh(self) -> bool:
        """Follow the writer to its last sync -> whether anything has changed. Read-only."""
        return self.names.refresh()

    def numbered(self) -> Numbers | None:
        """Numbers of all that is shown, where that never changes."""
        return None if self.writable or self.times is not None else Numbers(self)

    # finding

    def lookup(self, parent: int, name: bytes) -> Attr:
        path = self.places.child(parent, name)
        attr = self.attr(path)
        if attr is None:
            tree = self.names.tree
            self._missing = path, tree, tree.version, self._container.troubles
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return attr

    def lacks(self, parent: int, name: bytes) -> bool:
        names = self.names
        sound = self._container.troubles == names.troubles and self.times is None
        return sound and names.tree.lacks(self.places[parent], name)

    def _free(self, parent: int, name: bytes) -> bytes:
        """Return the path of a name that does not exist yet; raise FileExists if it does. The
        kernel has looked just before."""
        path, tree = self.places.child(parent, name), self.names.tree
        known = self._missing == (path, tree, tree.version, self._container.troubles)
        if not (known or self.lacks(parent, name)) and self.attr(path) is not None:
            raise FileExists("exists already", to_str(path))
        if name == SELF:
            self._need_directory(path)
        if len(path) > self._longest:
            raise _refuse(errno.ENAMETOOLONG, path[:80])
        return path

    def _need_directory(self, path: bytes) -> None:
        """Prepare a directory for the file of its name, which comes into it. Its entry takes the
        place of that of the directory. Raises Refusal: the top directory has no name."""
        if path == SELF:
            raise _refuse(errno.EPERM, path)
        directory = path[: -len(OWN)]
        self.names.tree.stay(directory, exists=True)
        if self.entry(directory) == FileType.DIR:
            self._change((directory,), self._container.delete, name_at(directory))
            self.names.tree.remove(directory)

    def _place(self, parent: int, name: bytes) -> tuple[bytes, Attr]:
        """Return path and attributes of a name that exists."""
        path = self.places.child(parent, name)
        attr = self.attr(path)
        if attr is None:
            raise NoSuchFile("no such file", to_str(path))
        return path, attr

    def page(self, listing: Listing, offset: int, version: int) -> Page | None:
        if not self.lasting or self.times is not None or self.names.alias:
            return None
        return listing.page(offset, version)

    # what every change notes

    def _touch(self, path: bytes) -> None:
        """Note that a name came or went: that sets the time of its directory."""
        self._dirty_since = self._dirty_since or time.time()
        above = path.rpartition(b"/")[0]
        self.mtimes[above] = time.time_ns()
        self._touched.add(above)

    def _changed(self) -> None:
        """Note that something is not on the disk yet."""
        self._dirty_since = self._dirty_since or time.time()

    def _changed_entry(self, path: bytes) -> None:
        """Note that a name has another inode."""
        self._dirty_since = self._dirty_since or time.time()
        self.names.tree.change(path)

    def _change(
        self,
        paths: Iterable[bytes],
        change: Callable[P, R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Make a change of these names: where it fails, it may have been made all the same."""
        try:
            return change(*args, **kwargs)
        except BaseException:
            self._changed()
            self.names.look_again(map(name_at, paths))
            raise

    # names come

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        return self._new(parent, name, b"", FileType.FILE, (mode, uid, gid))

    def symlink(self, parent: int, name: bytes, target: bytes, uid: int, gid: int) -> Attr:
        return self._new(parent, name, target, FileType.LINK, (0o777, uid, gid))

    def mkdir(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        return self._new(parent, name, b"", FileType.DIR, (mode, uid, gid))

    def _new(
        self, parent: int, name: bytes, data: bytes, ftype: FileType, attrs: tuple[int, int, int]
    ) -> Attr:
        if ftype == FileType.DIR and name == SELF:
            raise _refuse(errno.EPERM, name)
        path = self._free(parent, name)
        if ftype == FileType.DIR and not can_have_entry(path):
            self.names.tree.stay(path)
            self._touch(path)
            return self.directory_attr(path)
        draft = self._made = self._change((path,), self._put, path, data, ftype, attrs)
        self.names.tree.add(path)
        self._touch(path)
        if draft is None or ftype == FileType.DIR:
            attr = self.attr(path)
            assert attr is not None
            return attr
        self.places.note(draft.fileid, path)
        return self.drafted(draft)

    def _put(
        self, path: bytes, data: bytes, ftype: FileType, attrs: tuple[int, int, int]
    ) -> Draft | None:
        """Make an entry, with what the container can keep of its attributes -> its draft, if it is
        one."""
        self._need_room(len(data))
        mode, uid, gid = attrs
        if self._keeps_attrs:
            owner = self.names.changes.metadata.attrs_for(ftype, mode & PERMISSIONS, uid, gid)
        else:
            ftype, owner = kept(ftype, mode), None
        key = path + INODE if AT not in path else key_at(path)
        draft = self._container.change(self.names.changes.begin, key, None, ftype, owner)
        if data:
            self._container.write(name_at(path), 0, data)
        return draft

    # they go

    def unlink(self, parent: int, name: bytes) -> None:
        path, attr = self._place(parent, name)
        if attr.is_dir:
            raise _refuse(errno.EISDIR, path)
        spool = self._spool_if_open(path, attr)
        self._change((path,), self._delete, attr.id, path)
        self._gone(path, attr.id, spool)
        self._touch(path)

    def _delete(self, id: int, path: bytes) -> None:
        self._container.delete(name_at(path))

    def _spool_if_open(self, path: bytes, attr: Attr | None) -> Spool | None:
        """Return a spool with which the users of a file go on when its name goes."""
        if attr is None or attr.id in self.spools or attr.id not in self.places.users:
            return None if attr is None else self.spools.get(attr.id)
        spool = Spool(self.folder, stat.S_IMODE(attr.mode), attr.uid, attr.gid)
        read, troubles = self.names.files.reader(key_at(path)), self._container.troubles

        def below(offset: int, size: int) -> bytes:
            if self._container.troubles != troubles:  # its entries may be lost
                raise _refuse(errno.EIO, path)
            self.names.lookup.touches(size // PAGE + 1)
            return read(offset, size)

        spool.lay_over(below, attr.size, self._need_room)
        spool.mtime_ns, spool.xattrs = attr.mtime_ns, self.xattrs(attr.id)
        return spool

    def _gone(self, path: bytes, id: int, spool: Spool | None) -> None:
        self.names.tree.remove(path)
        self.names.changes.release(id)
        self.names.alias.pop(path, None)
        self.places.forget(id)
        if spool is not None:
            spool.orphan = True
            self.spools[id] = spool
            if id not in self.places.users:
                self._drop(id)

    def _drop(self, id: int) -> None:
        """Let go of a file without users, except a spool that is still needed."""
        self._copies.pop(id, None)
        spool = self.spools.get(id) if self.spools else None
        if spool is not None:
            if spool.dirty and not spool.orphan:
                return
            del self.spools[id]
            spool.close()
        alias = self.names.alias
        for path in [path for path, other in alias.items() if other == id] if alias else ():
            del alias[path]
        self.places.release(id)

    def rmdir(self, parent: int, name: bytes) -> None:
        path, attr = self._place(parent, name)
        tree = self.names.tree
        if not attr.is_dir:
            raise _refuse(errno.ENOTDIR, path)
        if not tree.is_empty(path):
            raise _refuse(errno.ENOTEMPTY, path)
        real = self.entry(path) == FileType.DIR
        if real:
            self._change((path,), self._container.delete, name_at(path))
        self.names.tree.remove_directory(path, entry=real)
        self.mtimes.pop(path, None)
        self.places.forget(attr.id)
        if attr.id in self.places.users:
            self.places.renew(path)
        self._touch(path)

    # they move

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> None:
        old, attr = self._place(parent, name)
        new = self.places.child(new_parent, new_name)
        target, now = self.attr(new), time.time_ns()
        if old == new:
            return
        if attr.is_dir:
            self._rename_directory(old, new, target)
        elif target is not None and target.is_dir:
            raise _refuse(errno.EISDIR, new)
        else:
            if len(new) > MAX_PATH:
                raise _refuse(errno.ENAMETOOLONG, new[:80])
            if new_name == SELF and target is None:
                self._need_directory(new)
            spool = self._spool_if_open(new, target)
            self._change((old, new), self._rename_file, attr.id, old, new, now)
            if target is not None:
                self._gone(new, target.id, spool)
            self.names.move(old, new)
            self.places.move(attr.id, new)
        self.note_change(attr.id, now)
        self._touch(old)
        self._touch(new)

    def _rename_file(self, id: int, old: bytes, new: bytes, now: int) -> None:
        self._container.rename(name_at(old), name_at(new), ctime_ns=now)

    def _rename_directory(self, old: bytes, new: bytes, target: Attr | None) -> None:
        """Move all names below a directory, or none. A crash in the middle leaves some under each
        name."""
        names = self.names
        if target is not None and not target.is_dir:
            raise _refuse(errno.ENOTDIR, new)
        if target is not None and not names.tree.is_empty(new):
            raise _refuse(errno.ENOTEMPTY, new)
        stored = list(names.tree.below(old))
        itself, replaced = self.entry(old) != 0, self.entry(new) == FileType.DIR
        loses = self.entry(old) == FileType.DIR and not can_have_entry(new)
        if itself and not loses:  # the entry of the directory, or the file of its name
            stored.insert(0, old)
        waiting = [name for name in names.alias if within(name, old)]
        cut = len(old)
        for name in (*stored, *waiting):
            if len(new + name[cut:]) > MAX_PATH:
                raise _refuse(errno.ENAMETOOLONG, (new + name[cut:])[:80])
        listings = [each for each in self.listings if within(each.path, old)]
        for listing in listings:
            listing.fix()
        moved = [new + name[cut:] for name in stored]
        self._change((*stored, *moved), self._rename_all, stored, cut, new)
        for listing in listings:
            listing.move(new + listing.path[cut:])
        if loses:
            self._change((old,), self._container.delete, name_at(old))
            names.tree.remove(old)
        elif itself:
            del stored[0]
            names.tree.remove(old)
            if replaced:
                names.tree.change(new)
            else:
                names.tree.add(new, was_there=target is not None)
        if target is not None:
            self.places.forget(target.id)
            self.mtimes.pop(new, None)
        self._moved_below(old, new, dict.fromkeys((*stored, *waiting)))

    def _moved_below(self, old: bytes, new: bytes, names: Iterable[bytes]) -> None:
        """Move all that is known of these names, which are below `new` now."""
        for name in names:
            moved = new + name[len(old) :]
            self.names.move(name, moved)
            self.names.tree.stay(moved.rpartition(b"/")[0])
        self.names.tree.move_directory(old, new)
        self.places.move_below(old, new)
        for path in [path for path in self.mtimes if within(path, old)]:
            moved = new + path[len(old) :]
            self.mtimes[moved] = self.mtimes.pop(path)
            self._touched.add(moved)

    def _rename_all(self, names: list[bytes], cut: int, prefix: bytes) -> None:
        done: list[bytes] = []
        try:
            for name in names:
                itself = len(name) == cut  # what is below has not changed
                now = time.time_ns() if itself else None
                self._container.rename(name_at(name), name_at(prefix + name[cut:]), ctime_ns=now)
                done.append(name)
        except OSError:
            for name in reversed(done):
                self._container.rename(name_at(prefix + name[cut:]), name_at(name))
            raise

    # attributes

    def _entry_for(self, id: int) -> bytes:
        """Path of a file or directory that has an entry; an implied directory gets one. Raises
        Refusal where that is of a file."""
        path = self.places[id]
        self._changed()
        ftype = self.entry(path)
        if self.is_directory(id) and ftype != FileType.DIR:
            if ftype or not can_have_entry(path):
                raise _refuse(errno.EPERM, path)
            self._change(
                (path,), self._container.put, name_at(path), b"", exclusive=True,
                ftype=FileType.DIR, mtime_ns=self.directory_attr(path).mtime_ns,
            )  # fmt: skip
            self.names.tree.add(path, was_there=True)
            self.mtimes.pop(path, None)
        else:
            self.names.tree.change(path)
        return path

    def _nearest(self, ns: int, name: bytes) -> int:
        """Return the nearest time that a file can have; the first times that differ are logged."""
        nearest = self._clamped.nearest(ns, name)
        assert nearest is not None
        if nearest != ns and self._clamped.number <= NAMED:
            log.warning("%s: %s", to_str(name), CLAMPED)
        return nearest

    def _may_have_entry(self, path: bytes) -> bool:
        """Return whether a directory has an entry, or can have one. The top directory has none, nor
        one with @file."""
        return can_have_entry(path) and self.entry(path) in (0, FileType.DIR)

    def amend(self, id: int, change: Amendment, now_ns: int) -> Attr:
        """See `Changing`. Programs that unpack archives do this to each file they have made."""
        names, draft = self.names, None
        sound = self._keeps_times and self._container.troubles == names.troubles
        if sound and id not in self.spools:
            path = self.places[id]
            draft = names.drafts.get(key_at(path))
        folder = draft is not None and draft.ftype == FileType.DIR and self.is_directory(id)
        if draft is None or not (draft.fileid == id or folder):
            return self._amend_singly(id, change, now_ns)
        self._changed_entry(path)
        attr = self._amend(draft, id, change, now_ns)
        if not folder:
            return attr
        if change.mtime_ns is not None:
            self.mtimes.pop(path, None)
        return self.directory_attr(path)

    def _amend_singly(self, id: int, change: Amendment, now_ns: int) -> Attr:
        """Amend what is no draft: mode, owner and time one after the other."""
        attr, spool, container = self.stat(id), self.spools.get(id), self._container
        mode = stat.S_IMODE(attr.mode) if change.mode is None else change.mode
        uid = attr.uid if change.uid == -1 else change.uid
        gid = attr.gid if change.gid == -1 else change.gid
        if spool is not None:
            spool.mode, spool.uid, spool.gid = mode, uid, gid
        elif id == self.root:
            self.root_mode, self.root_owner = mode, (uid, gid)
        else:
            if mode != stat.S_IMODE(attr.mode):
                container.chmod(name_at(self._entry_for(id)), mode, ctime_ns=now_ns)
            if (uid, gid) != (attr.uid, attr.gid):
                container.chown(name_at(self._entry_for(id)), uid, gid, ctime_ns=now_ns)
        if change.mtime_ns is not None:
            self._set_time(id, change.mtime_ns, now_ns)
        self.note_change(id, now_ns)
        return self.stat(id)

    def _set_time(self, id: int, mtime_ns: int, now_ns: int) -> None:
        spool = self.spools.get(id)
        is_gone = spool is not None and spool.orphan
        mtime_ns = self._nearest(mtime_ns, b"a removed file" if is_gone else self.places[id])
        if spool is not None:
            spool.mtime_ns = mtime_ns
        elif self.is_directory(id) and not self._may_have_entry(self.places[id]):
            self.mtimes[self.places[id]] = mtime_ns
        else:
            path = self._entry_for(id)
            self._container.utime(name_at(path), mtime_ns=mtime_ns, ctime_ns=now_ns)
            self.mtimes.pop(path, None)

    def _amend(self, draft: Draft, id: int, change: Amendment, now_ns: int) -> Attr:
        """Amend a draft; `id`: that by which the mount knows it."""
        (mode, uid, gid, mtime_ns), changes = change, self.names.changes
        if mtime_ns is not None:
            mtime_ns = self._nearest(mtime_ns, name_of(draft.key))
        if mtime_ns is None and changes.keeps(draft, mode, uid, gid):  # `tar` sets each owner
            self.note_change(id, now_ns)  # which the container does not have
        else:
            self._container.change(changes.amend, draft, mode, uid, gid, mtime_ns, now_ns)
        return self.drafted(draft)

    # files that were just made: see `winkmount.source.Changing`

    def fresh(self, id: int) -> Draft | None:
        draft = self._made
        return draft if draft is not None and draft.fileid == id and self._keeps_times else None

    def append(self, fresh: Draft, offset: int, data: bytes, now_ns: int) -> bool:
        if not self._is_fresh(fresh) or offset != fresh.body + len(fresh.tail):
            return False
        if offset == 0 or self._copies:
            self._refuse_own_copy(fresh.fileid, offset, data)
        self._need_room(len(data))
        return self._container.change(self.names.changes.grow, fresh, data, now_ns)

    def amend_fresh(self, fresh: Draft, change: Amendment, now_ns: int) -> Attr | None:
        if not self._is_fresh(fresh):
            return None
        return self._amend(fresh, fresh.fileid, change, now_ns)

    def _is_fresh(self, draft: Draft) -> bool:
        names = self.names
        sound = self._container.troubles == names.troubles and not names.failed
        return sound and names.drafts.get(draft.key) is draft

    def set_xattrs(self, id: int, xattrs: Mapping[bytes, bytes]) -> None:
        now = time.time_ns()
        if id in self.spools:
            self.spools[id].xattrs = check_attrs(Attrs(0, 0, 0, dict(xattrs))).xattrs
        elif id == self.root:
            self.root_xattrs = check_attrs(Attrs(0, 0, 0, dict(xattrs))).xattrs
        else:
            self._container.setxattrs(name_at(self._entry_for(id)), dict(xattrs), ctime_ns=now)
        self.note_change(id, now)

    # contents

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        if truncate:
            self.truncate(id, 0)
        self.places.use(id)

    def release(self, id: int) -> None:
        if self.places.leave(id, keep=id in self.spools):
            self._drop(id)

    def write(self, id: int, pieces: Sequence[tuple[int, bytes]], mtime_ns: int) -> None:
        if not self.names.changes.release(id):  # nothing was promised
            self._need_room(sum(len(data) for _, data in pieces))
        spool = self.spools.get(id) if self.spools else None
        if spool is not None:
            for offset, data in pieces:
                spool.write(offset, data)
            return
        path = self.places[id]
        key = key_at(path)
        for offset, data in pieces:
            self._refuse_own_copy(id, offset, data)
            check_length(offset + len(data), key)
        self._changed_entry(path)  # before: where that fails, it may have changed all the same
        self._container.change(self.names.changes.write_many, key, pieces, mtime_ns)

    def _refuse_own_copy(self, id: int, offset: int, data: bytes) -> None:
        if id in self._copies or (offset == 0 and data.startswith(MAGIC)):
            self._copies.check(self.names.store, id, offset, data, self.places[id])

    def truncate(self, id: int, size: int) -> None:
        spool = self.spools.get(id)
        if spool is not None:
            spool.truncate(size)
            return
        self._changed_entry(self.places[id])
        self._container.truncate(name_at(self.places[id]), size)

    def punch(self, id: int, offset: int, size: int) -> None:
        spool = self.spools.get(id)
        if spool is not None:
            spool.punch(offset, size)
            return
        self._changed_entry(self.places[id])
        self._container.punch(name_at(self.places[id]), offset, size)

    # room on the disk

    def allocate(self, id: int, size: int) -> None:
        self._need_room(size)

    def promise(self, id: int, size: int) -> bool:
        """Not for spools, nor where an overwrite may be a copy, or a gap zeros, nor for a copy of
        the data file, of which a part is refused."""
        settings, changes = self.names.store.settings, self.names.changes
        apart = id in self.spools or id in self._copies
        if apart or not (settings.pairoff and settings.holes):
            return False
        self._need_room(size)
        promised = changes.held.get(id)
        if promised is None:
            promised = changes.cost_of_change(key_at(self.places[id]))
        changes.hold(id, promised + size + PATCH_BYTES)
        return True

    def rest(self) -> None:
        trim_heap()

    def _need_room(self, size: int) -> None:
        """Refuse what would leave less than RESERVE of the disk, or of what the container has."""
        now = time.monotonic()
        if now > self._room_until or size > self._room:
            self._room = self._spare(super().statfs())
            self._room_until = now + ROOM_GOOD_FOR
            if self._room < size:
                self._room_until = 0.0
                raise refuse(errno.ENOSPC)
        self._room -= size

    def _spare(self, disk: Mapping[str, int]) -> int:
        """Return how many bytes may be written. `disk`: fields of statvfs(3)."""
        return disk["f_bavail"] * disk["f_frsize"] + self.names.changes.spare - RESERVE

    def statfs(self) -> Mapping[str, int]:
        disk = super().statfs()
        if not self.writable:
            return disk
        return {**disk, "f_bavail": max(self._spare(disk), 0) // disk["f_frsize"]}

    # the whole

    def status(self) -> Mapping[str, object]:
        store, drafts = self.names.store, self.names.drafts.values()
        variant = "append-only" if self._container.ao else "plain"
        waiting = store.kv.end - store.synced + sum(len(draft.tail) for draft in drafts)
        return {
            "base": self._container.base,
            "variant": "classic " + variant if self._container.classic else variant,
            "writable": self.writable,
            "files": store.index.count + sum(1 for draft in drafts if not draft.old),
            "bytes": store.dtotsz + sum(draft.lsize - draft.under.lsize for draft in drafts),
            "container_bytes": store.kv.end,
            "unsynced_bytes": waiting,
            "unsynced_since": self._dirty_since or None,
            "clamped_times": self._clamped.number,
        }

    def syncing(self, id: int | None) -> Steps:
        yield from self._syncing()
        names = self.names
        if id is None and names.needs_order:  # an fsync does not wait for a catalog
            if names.drafts or names.store.kv.end != names.store.synced:
                self._container.sync()  # what came meanwhile: an order is of what is durable
            names.new_order()

    def _syncing(self) -> Steps:
        since, self._dirty_since = self._dirty_since, 0.0
        try:
            self._store_times()
            yield from self._container.syncing()
        except BaseException as error:
            self._dirty_since = since or self._dirty_since
            if isinstance(error, OSError):
                self.names.recheck()
            raise

    def _store_times(self) -> None:
        """Store the times of directories in which names came or went."""
        for path in list(self._touched):
            if path in self.mtimes and self.entry(path) == FileType.DIR:
                self.names.tree.change(path)
                try:
                    time_ns = self.mtimes[path]
                    self._container.utime(name_at(path), mtime_ns=time_ns, ctime_ns=time_ns)
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                    continue  # the contents of files come first
                del self.mtimes[path]
            self._touched.discard(path)

    def close(self) -> None:
        if self._clamped.number > NAMED:
            log.warning("%s", self._clamped.line())
        try:
            if self.writable and not self._container.closed:
                run_steps(self._syncing())
                if self.names.order.covered != self.names.store.kv.end:
                    try:
                        self._container.save_catalog()
                    except (OSError, FormatError) as error:
                        log.error("the catalog stays as it is: %s", error)
        finally:
            self.names.lookup.close()
            self._container.close()


def kept(ftype: FileType, mode: int) -> FileType:
    """Return the ftype that keeps what a container without ATTRS can store of a mode."""
    return FileType.EXEC if ftype == FileType.FILE and mode & 0o100 else ftype


def can_have_entry(path: bytes) -> bool:
    """Return whether a directory with this path can have an entry: its name ends with no /."""
    return path not in (b"", b"@") and not path.endswith(b"/@")


def _refuse(code: int, name: bytes) -> Refusal:
    return Refusal(os.strerror(code), to_str(name), number=code)
