"""ContainerSource: a container as what winkmount serves: attributes and contents change, a sync.

The entry of a directory is made where a tool sets mode, owner or time of an implied one. Changed
times of directories reach the container with a sync.
"""

from __future__ import annotations

import logging
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Final

from winkformats.arrays import keep_heap
from winkformats.errors import DerivedDamage, FormatError
from winkfs.container.arguments import check_attrs, nearest_ns
from winkfs.container.container import Container
from winkfs.container.ondisk.inode import Attrs, FileType
from winkfs.container.ondisk.names import build, merge
from winkfs.container.store import NO_ROOM
from winkfs.container.write import PIECE
from winkfs.mounting.sourceattrs import longest
from winkfs.mounting.sourcenames import ContainerNames
from winkmount.source import Steps, run_steps

log = logging.getLogger("winkfs.mount")

AHEAD: Final = 1024  # inodes that are read ahead of a look at them
TAIL: Final = 256 << 20  # bytes behind an order, at least, before that happens for their number


class ContainerSource(ContainerNames):
    """A plain container. Owns it: `close` closes it."""

    gather = True

    def __init__(self, container: Container) -> None:
        super().__init__(container)
        keep_heap()

    # attributes

    def _entry_for(self, id: int) -> bytes:
        """Name in the container of a file or directory; an implied directory gets its entry."""
        path = self.places[id]
        self._changed()
        if self._is_directory(id) and self.entry(path) != FileType.DIR:
            mtime_ns = self.directory_attr(path).mtime_ns
            with self._looking_after(path):
                self._container.put(
                    path, b"", ftype=FileType.DIR, exclusive=True, mtime_ns=mtime_ns
                )
            self.tree.add(path, was_there=True)
            self._times.pop(path, None)
        else:
            self.tree.change(path)
        return path

    def chmod(self, id: int, mode: int) -> None:
        same, now = stat.S_IMODE(self.stat(id).mode) == mode, time.time_ns()
        if id in self._spools:
            self._spools[id].mode = mode
        elif id == self.root:
            self._root_mode = mode
        elif not same:
            self._container.chmod(self._entry_for(id), mode, ctime_ns=now)
        self._note_change(id, now)

    def chown(self, id: int, uid: int, gid: int) -> None:
        attr, now = self.stat(id), time.time_ns()
        uid, gid = attr.uid if uid == -1 else uid, attr.gid if gid == -1 else gid
        if id in self._spools:
            self._spools[id].uid, self._spools[id].gid = uid, gid
        elif id == self.root:
            self._owner_of_root = uid, gid
        elif (attr.uid, attr.gid) != (uid, gid):
            self._container.chown(self._entry_for(id), uid, gid, ctime_ns=now)
        self._note_change(id, now)

    def utime(self, id: int, mtime_ns: int, now_ns: int) -> None:
        mtime_ns = nearest_ns(mtime_ns)
        if id in self._spools:
            self._spools[id].mtime_ns = mtime_ns
        elif id == self.root:
            self._times[b""] = mtime_ns
        else:
            path = self._entry_for(id)
            self._container.utime(path, mtime_ns=mtime_ns, ctime_ns=now_ns)
            self._times.pop(path, None)
        self._note_change(id, now_ns)

    def set_xattrs(self, id: int, xattrs: Mapping[bytes, bytes]) -> None:
        now = time.time_ns()
        if id == self.root:
            self._root_xattrs = check_attrs(Attrs(0, 0, 0, dict(xattrs))).xattrs
        else:
            self._container.setxattrs(self._entry_for(id), dict(xattrs), ctime_ns=now)
        self._note_change(id, now)

    # content

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        if truncate:
            self.truncate(id, 0)
        self._use(id)

    def release(self, id: int) -> None:
        if self._leave(id):
            self._drop(id)

    def flush(self, id: int) -> None:
        pass

    def fsync(self, id: int) -> None:
        run_steps(self.syncing(id))

    def write(self, id: int, pieces: Sequence[tuple[int, bytes]], mtime_ns: int) -> None:
        if not self._changes.let_go(id):  # nothing was promised
            self._need_room(sum(len(data) for _, data in pieces))
        spool = self._spools.get(id) if self._spools else None
        if spool is not None:
            for offset, data in pieces:
                spool.write(offset, data)
            return
        path = self.places[id]
        self._changed_entry(path)  # before: where that fails, it may have changed all the same
        self._container.write_many(path, pieces, mtime_ns=mtime_ns)

    def truncate(self, id: int, size: int) -> None:
        spool = self._spools.get(id)
        if spool is not None:
            spool.truncate(size)
            return
        self._changed_entry(self.places[id])
        self._container.truncate(self.places[id], size)

    def punch(self, id: int, offset: int, size: int) -> None:
        spool = self._spools.get(id)
        if spool is not None:
            spool.punch(offset, size)
            return
        self._changed_entry(self.places[id])
        self._container.punch(self.places[id], offset, size)

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
        run_steps(self.syncing(None))

    def syncing(self, id: int | None) -> Steps:
        yield from self._syncing()
        order = self._name_order
        many = self._many_changes() or self._store.kv.end - order.covered > longest(order, TAIL)
        if many and id is None:  # nobody waits for an order of names
            if self._drafts or self._store.kv.end != self._store.synced:
                self._container.sync()  # what came meanwhile: an order is of what is durable
            self._new_order()

    def _syncing(self) -> Steps:
        since, self._dirty_since = self._dirty_since, 0.0
        try:
            self._store_times()
            yield from self._container.engine.syncing()
        except BaseException as error:
            self._dirty_since = since or self._dirty_since
            if isinstance(error, OSError):
                self._recheck()
            raise

    def _new_order(self) -> None:
        """What changed in memory goes into a new order, on disk where that can be. After a sync."""
        if self._container.engine.troubles != self._troubles:
            self._recheck()
        since = self.tree.since
        try:
            changes = self._positions([*since.names()])
            try:
                order = merge(self._store, self._name_order, changes)
            except DerivedDamage as error:
                log.warning("%s: made again", error)
                order = build(self._store)
            self._renew_tree(order)
        except (OSError, FormatError) as error:  # the old one goes on, with all that changed
            log.error("the order of names stays as it is: %s", error)

    def _positions(self, names: list[bytes]) -> dict[bytes, int]:
        """Where the inodes of names are, 0: none. Asked in their order there, reading ahead: one by
        one it is 150 us a name that the page cache does not have, and so 10."""
        index, keys = self._store.index, [name + b"/I0" for name in names]
        near = index.candidates(keys)
        order, found = near.argsort(), dict[bytes, int]()
        for start in range(0, len(order), AHEAD):
            part = order[start : start + AHEAD]
            ahead = near[part]
            if (ahead > 0).any():
                self.foresee(ahead[ahead > 0])
            found |= {names[i]: index.lookup(keys[i]) for i in part.tolist()}
        return found

    def _store_times(self) -> None:
        """What changed names in directories did to their times."""
        for path in list(self._touched):
            if path in self._times and self.entry(path) == FileType.DIR:
                self.tree.change(path)
                try:
                    time_ns = self._times[path]
                    self._container.utime(path, mtime_ns=time_ns, ctime_ns=time_ns)
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                    continue  # the contents of files come first
                del self._times[path]
            self._touched.discard(path)

    def close(self) -> None:
        try:
            if self.writable:
                run_steps(self._syncing())
                if self._name_order.covered != self._store.kv.end:
                    self._new_order()
        finally:
            self._container.close()
