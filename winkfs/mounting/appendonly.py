"""AppendOnlySource: an append-only container as what winkmount serves.

A file enters the container when it is closed; until then it is a spool. Truncating a file at open
(`>`) makes a new one that takes its place when it is closed. What the variant forbids is refused
with EPERM by the call that asks for it: other writes to a file that is in the container, except
appending to the last one before it is synced; times, modes and owners; times before that of the
last file.
"""

from __future__ import annotations

import errno
import logging
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from winkformats.errors import CorruptError
from winkfs.container.survey import inode_rows
from winkfs.entry import FileType
from winkfs.errors import NotAllowed
from winkfs.mounting.container import ContainerSource, kept
from winkfs.mounting.spool import Spool
from winkfs.mounting.timedir import HOUR, Timed, TimeDirectory
from winkfs.names import INODE, base_of, key_at, name_at, name_of, to_str
from winkfs.units import NANO
from winkmount.binding import MountError
from winkmount.source import Amendment, Attr, Source, Steps

if TYPE_CHECKING:
    from winkfs.container.container import Container
    from winkfs.container.draft import Draft
    from winkfs.container.ondisk.time import TimeIndex
    from winkfs.mounting.lookup import Found
    from winkfs.mounting.view import ContainerNames
    from winkmount.options import Options

AO: Final = "the container is append-only"

log = logging.getLogger("winkfs.mount")


class AppendOnlySource(ContainerSource):
    """An append-only container. Writes are not gathered, since most are refused."""

    gather = False

    def __init__(self, container: Container, *, timedir: bool = False) -> None:
        """`timedir`: show `.time`, in the place of names that begin with it."""
        super().__init__(container)
        if timedir:
            self.times = TimeDirectory(ContainerTimes(self.names), self)

    # `.time`

    def _refuse_timed(self, path: bytes) -> None:
        if self.times is not None and self.times.has(path):
            raise NotAllowed("what is here follows from the times of files", to_str(path))

    def _free(self, parent: int, name: bytes) -> bytes:
        self._refuse_timed(self.places.child(parent, name))
        return super()._free(parent, name)

    def _place(self, parent: int, name: bytes) -> tuple[bytes, Attr]:
        self._refuse_timed(self.places.child(parent, name))
        return super()._place(parent, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> None:
        self._refuse_timed(self.places.child(new_parent, new_name))
        super().rename(parent, name, new_parent, new_name)

    # names

    def _need_directory(self, path: bytes) -> None:
        raise NotAllowed(f"{AO}: a directory cannot have a file of its name", to_str(path))

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        path = self._free(parent, name)
        self._need_room(0)
        id = self.names.store.new_fileid()
        self._hold(id, path, 0)
        spool = Spool(self.folder, mode, uid, gid)
        spool.dirty = True
        spool.fileid = id
        self.spools[id], self.names.alias[path], self.places.held[id] = spool, id, path
        self.names.tree.add(path)
        self._touch(path)
        return self.spool_attr(id)

    def _put(
        self, path: bytes, data: bytes, ftype: FileType, attrs: tuple[int, int, int]
    ) -> Draft | None:
        self._need_room(len(data))
        owner = dict[str, Any]()
        if self._keeps_attrs:
            owner["mode"], owner["uid"], owner["gid"] = attrs
        self._container.put(name_at(path), data, ftype=ftype, exclusive=True, **owner)
        return None

    def _delete(self, id: int, path: bytes) -> None:
        spool = self.spools.get(id)
        if spool is None or spool.stored:
            super()._delete(id, path)

    def _rename_file(self, id: int, old: bytes, new: bytes, now: int) -> None:
        spool = self.spools.get(id)
        if spool is None or not spool.dirty:
            self._container.rename(name_at(old), name_at(new))
            return
        if spool.stored:
            self._container.delete(name_at(old))
            spool.fileid = self.names.store.new_fileid()  # the other one was a file, and is gone
        # what stood there goes when this one is stored
        spool.stored = name_at(new) in self._container

    def _rename_all(self, names: list[bytes], cut: int, prefix: bytes) -> None:
        if names:
            raise NotAllowed(f"{AO}: its names cannot move", to_str(names[0]))

    def _touch(self, path: bytes) -> None:
        """Note that a name came or went. The time of a directory's entry is fixed."""
        if self.entry(path.rpartition(b"/")[0]) == FileType.DIR:
            self._changed()
        else:
            super()._touch(path)

    # attributes

    def amend(self, id: int, change: Amendment, now_ns: int) -> Attr:
        mtime_ns, has_spool, store = change.mtime_ns, id in self.spools, self.names.store
        last = None if store.times is None else store.times.last
        newest_ns = 0 if last is None else store.settings.ns_of(last)
        if mtime_ns is not None and has_spool and mtime_ns < newest_ns:
            raise NotAllowed(f"{AO}: this is before the time of a stored file")
        if mtime_ns is not None and not has_spool and mtime_ns == self.stat(id).mtime_ns:
            change = change._replace(mtime_ns=None)
        return super().amend(id, change, now_ns)

    def set_xattrs(self, id: int, xattrs: Mapping[bytes, bytes]) -> None:
        raise NotAllowed(f"{AO}: attributes cannot be set")

    def _entry_for(self, id: int) -> bytes:
        path = self.places[id]
        self._refuse_timed(path)
        if id != self.root and self.is_directory(id) and self.entry(path) != FileType.DIR:
            raise NotAllowed(f"{AO}: this directory has no entry")
        return super()._entry_for(id)

    # content

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        attr = self.stat(id)
        if truncate and not (id in self.spools and self.spools[id].orphan):
            self._hold(id, self.places[id], 0)
        super().open(id, write=write, truncate=False)
        if truncate and id in self.spools:
            self.spools[id].truncate(0)
        elif truncate:
            spool = Spool(self.folder, stat.S_IMODE(attr.mode), attr.uid, attr.gid)
            spool.truncate(0)
            spool.stored = True
            self.spools[id], self.names.alias[self.places[id]] = spool, id

    def syncing(self, id: int | None) -> Steps:
        spool = None if id is None else self.spools.get(id)
        if id is not None and spool is not None and not spool.orphan:
            self._settle(id, spool)
        yield from super().syncing(id)

    def release(self, id: int) -> None:
        """Store a file that was written, if this was its last user.

        If that fails it stays a spool, and each sync tries again.
        """
        spool = self.spools.get(id)
        try:
            if spool is not None and self.places.users[id] == 1 and not spool.orphan:
                self._settle(id, spool)
        finally:
            super().release(id)

    def _syncing(self) -> Steps:
        refused = None
        try:
            for id, spool in list(self.spools.items()):
                if id not in self.places.users:
                    self._settle(id, spool)
                    self._drop(id)
        except Exception as error:
            refused = error  # the others are synced all the same
        yield from super()._syncing()
        if refused is not None:
            raise refused

    def _settle(self, id: int, spool: Spool) -> None:
        """Put what the spool has into the container, in the place of what it had."""
        if not spool.dirty:
            return
        path = self.places[id]
        self.names.changes.release(id)
        self._changed_entry(path)  # before: where that fails, it may have changed all the same
        try:
            self._put_in_time(name_at(path), spool)
        except BaseException:
            with suppress(OSError):
                self._hold(id, path, spool.size)
            raise
        spool.stored, spool.dirty = True, False

    def _put_in_time(self, name: bytes, spool: Spool) -> None:
        """Store a spool with the time that a stat has shown, which the kernel may keep for an
        hour."""
        try:
            self._put_spool(name, spool, spool.shown_ns)
        except NotAllowed:
            if spool.mtime_ns is not None:
                text = "%s: stored with the time of now: a later file came first"
                log.warning(text, to_str(name))
            self._put_spool(name, spool, None)

    def _put_spool(self, name: bytes, spool: Spool, mtime_ns: int | None) -> None:
        container, changes = self._container, self.names.changes
        spool.file.seek(0)
        base = self.names.store.index.base
        # One from before the last index, that the index does not know, would cost a rebuild.
        fileid = None if spool.stored or (base and spool.fileid < base.nextfid) else spool.fileid
        ftype, owner, ns = FileType.FILE, None, changes.clamped.nearest(mtime_ns, name)
        if self._keeps_attrs:
            owner = changes.metadata.attrs_for(ftype, spool.mode, spool.uid, spool.gid)
        else:
            ftype = kept(ftype, spool.mode)
        key = container.key(name)
        container.change(changes.put_stream, key, spool.file, ns, ftype, owner, fileid)

    def _hold(self, id: int, path: bytes, size: int) -> None:
        """Keep room in the container for a spool of this size. Raises ENOSPC."""
        self.names.changes.hold(id, self.names.changes.cost(key_at(path), size))

    def write(self, id: int, pieces: Sequence[tuple[int, bytes]], mtime_ns: int) -> None:
        spool = self.spools.get(id)
        if spool is not None:
            self._need_room(sum(len(data) for _, data in pieces))
            if not spool.orphan:
                end = max((offset + len(data) for offset, data in pieces), default=0)
                self._hold(id, self.places[id], max(spool.size, end))
            for offset, data in pieces:
                spool.write(offset, data)
            return
        for offset, data in pieces:
            if offset != self.stat(id).size:
                raise NotAllowed(f"{AO}: overwriting is not possible", to_str(self.places[id]))
            self._need_room(len(data))
            self._container.append(name_at(self.places[id]), data)
            self._changed_entry(self.places[id])

    def truncate(self, id: int, size: int) -> None:
        spool = self.spools.get(id)
        if spool is not None and not spool.orphan:
            self._hold(id, self.places[id], size)
        if spool is not None or size != self.stat(id).size:
            super().truncate(id, size)

    def close(self) -> None:
        for id, spool in list(self.spools.items()):
            try:
                if not spool.orphan:
                    self._settle(id, spool)
            except Exception as error:  # one file must not take the others along
                log.error("lost at the end: %s", error)
        try:
            super().close()
        finally:
            for spool in self.spools.values():
                spool.close()


class ContainerTimes:
    """The files of an append-only container, for `.time`."""

    def __init__(self, names: ContainerNames) -> None:
        self._names = names
        self._marked: tuple[TimeIndex, int, int | None] | None = None  # those that `_hours` knows
        self._hours: set[int] = set()
        self._scanned: dict[tuple[int, int], set[int]] = {}  # positions -> hours of files

    def starts(self, unit: int) -> list[int]:
        times = self._names.store.times
        if times is None:
            return []
        marked = times, len(times.marks), times.last
        if marked != self._marked:
            spans = ((mark // HOUR, (mark + times.timemp - 1) // HOUR) for mark in times.marks)
            self._hours = {n for first, last in spans for n in range(first, last + 1)}
            if self._names.store.settings.classic:
                self._hours |= self._unmarked(times)
            self._marked = marked
        return sorted({hour * HOUR // unit * unit for hour in self._hours})

    def _unmarked(self, times: TimeIndex) -> set[int]:
        """Hours of files between two marks that are hours apart: the original format marks only
        files whose mtime is a multiple of TIMEMP. Each such part of the data file is read once."""
        if times.last is None:
            return set()
        first, end = self._names.store.kv.start, self._names.store.kv.end
        stops = [*times.positions, end]
        latest = times.last * self._names.store.settings.mtime_unit // NANO // HOUR
        hours = [mark // HOUR for mark in times.marks]
        parts = [] if times.positions[:1] == [first] else [(first, stops[0])]
        for i, hour in enumerate(hours):
            later = hours[i + 1] if i + 1 < len(hours) else latest + 1
            if later > hour + 1:
                parts.append((stops[i], stops[i + 1]))
        known = self._scanned
        self._scanned = {
            part: known[part] if part in known else self._scan(*part) for part in parts
        }
        return set().union(*self._scanned.values())

    def _scan(self, start: int, stop: int) -> set[int]:
        store, found = self._names.store, set[int]()
        unit = HOUR * NANO // store.settings.mtime_unit
        store.kv.show(store.kv.end - 1)
        for _, rows in inode_rows(
            store.kv.storage, store.kv.layout, store.settings, start, stop, problem=store.note
        ):
            found.update((rows.mtime[rows.size > 0] // unit).tolist())
        return found

    def find(self, name: bytes) -> Timed | None:
        found = self._names.lookup.find(name + INODE)
        return None if found is None else self._timed(name, found)

    def between(self, start: int, stop: int, offset: int) -> Iterator[Timed]:
        store, times = self._names.store, self._names.store.times
        assert times is not None
        kv = store.kv
        kv.show(kv.end - 1)  # all of it written
        begin = max(times.start(start), kv.start, offset - 1)
        end = times.stop(stop)
        for _, rows in inode_rows(
            kv.storage, kv.layout, store.settings, begin, kv.end if end is None else end,
            problem=store.note,
        ):  # fmt: skip
            for key, pos in zip(rows.keys, rows.pos.tolist(), strict=True):
                found = self._good(key) if pos >= offset else None
                if found is not None and found.pos == pos:
                    yield self._timed(name_of(key), found)

    def _good(self, key: bytes) -> Found | None:
        try:
            return self._names.lookup.find(key)
        except CorruptError as error:
            self._names.store.note(error)
            return None

    def _timed(self, name: bytes, found: Found) -> Timed:
        ns = self._names.store.settings.ns_of(found.mtime)
        return Timed(name, found.fileid, ns, found.ftype, found.pos + 1)


def mount(path: str, options: Options) -> Source:
    """Open a container as a Source, in the process that serves: a handle does not survive a
    fork."""
    from winkfs.container.container import Container

    if options.as_of:
        raise MountError(f"{path}: as_of is for data sets: a container has no generations")
    try:
        opened = Container(base_of(path), "r" if options.ro else "a", mapped=False)
    except OSError as error:
        if not options.ro and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise MountError(
                f"{error.filename}: {error.strerror}: mount it with --ro to read only"
            ) from None
        raise
    for note in opened.notes:
        log.warning("%s", note)
    try:
        if opened.ao and "sync" in options.fuse:  # each write would store the whole file anew
            raise MountError(f"{path}: files enter an append-only container whole: leave out sync")
        if options.timedir and not opened.ao:
            raise MountError(f"{path}: timedir is for append-only containers")
        found = (
            AppendOnlySource(opened, timedir=options.timedir)
            if opened.ao
            else ContainerSource(opened)
        )
        found.wait_at_most(path, options.patience)
        return found
    except BaseException:
        opened.close()
        raise
