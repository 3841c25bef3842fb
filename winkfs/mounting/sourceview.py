"""ContainerView: the looking half of a container as a mount's Source."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from typing import Final

from winkformats.arrays import Int64
from winkfs.container.container import Container
from winkfs.container.ondisk.inode import FileType
from winkfs.mounting.listing import Batch, InodeBatch
from winkfs.mounting.pathview import find_data, text_of
from winkfs.mounting.sourceattrs import ContainerAttrs
from winkfs.mounting.tree import Order

RESERVE: Final = 8 << 20  # bytes of the disk kept free, so that files can be removed and synced
LOOK: Final = 0.05  # seconds after which it is looked how full the disk is


class ContainerView(ContainerAttrs):
    """Directories and files are open; contents are read; how full it all is."""

    def __init__(self, container: Container) -> None:
        super().__init__(container)
        self._folder = os.path.dirname(container.base) or "."
        self._room, self._room_until = 0, 0.0  # bytes left, and how long to believe it

    # directories

    def note(self, ids: list[int], paths: list[bytes]) -> None:
        self.places.note_many(ids, paths)

    def batch(self, order: Order, start: int, stop: int, cut: int) -> Batch:
        positions = order.positions(start, stop)
        self.foresee(positions)
        batch, known = InodeBatch(self._store, positions, cut), self._ctimes
        if known:
            batch.attrs = [
                self._with_ctime(attr) if attr and attr.id in known else attr
                for attr in batch.attrs
            ]
        return batch

    def foresee(self, positions: Int64) -> None:
        """Inodes that are read next."""
        self._light.inodes(positions)

    # users

    def _first_user(self, id: int) -> None:
        if id not in self._spools:
            self.places.hold(id)

    def _last_gone(self, id: int) -> None:
        if id not in self._spools:
            self.places.let_go(id)

    # attributes

    def readlink(self, id: int) -> bytes:
        return self._files.read(self.places[id] + b"/I0", 0, -1)

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        if id == self.root:
            return self._root_xattrs
        if id in self._spools:
            return {}
        path = self.places[id]
        if self._is_directory(id) and self.entry(path) != FileType.DIR:
            return {}
        return self._files.attrs(path + b"/I0").xattrs

    def facts(self, id: int) -> Mapping[str, str]:
        if id in self._spools:
            return {}
        path = self.places[id]
        ftype = self.entry(path)
        if not ftype or (ftype != FileType.DIR) == self._is_directory(id):
            return {}
        key = path + b"/I0"
        return {
            "fileid": str(self._files.stat(key).fileid),
            "ftype": chr(ftype) if 32 < ftype < 127 else str(ftype),
            "extents": text_of(self._files.extents(key)),
        }

    # contents

    def read(self, id: int, offset: int, size: int) -> bytes:
        spool = self._spools.get(id) if self._spools else None
        if spool is not None:
            return spool.read(offset, size)
        if self._container.engine.troubles != self._troubles:
            self._recheck()
        key = self.places[id] + b"/I0"
        if key in self._drafts:
            return self._files.read(key, offset, size)
        # Where nothing is opened, each read comes right after a look-up: 5 us less.
        fresh = not self.writable and self._found[0] == key
        found = self._found[1] if fresh else self._look.find(key)
        if found is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        self._light.reads(min(size, found.size))
        return self._look.read(found, offset, size)

    def seek(self, id: int, offset: int, *, hole: bool) -> int:
        size = self.stat(id).size
        if not 0 <= offset < size:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        if id in self._spools:
            return size if hole else offset
        extents = self._files.extents(self.places[id] + b"/I0")
        return find_data(extents, offset, hole=hole)

    # the whole

    def _disk(self) -> os.statvfs_result:
        return os.statvfs(self._folder)

    def _need_room(self, size: int) -> None:
        """Refuse what would leave less than RESERVE of the disk, or of what the container has."""
        now = time.monotonic()
        if now > self._room_until or size > self._room:
            disk = self._disk()
            self._room = disk.f_bavail * disk.f_frsize + self._changes.spare - RESERVE
            self._room_until = now + LOOK
            if self._room < size:
                self._room_until = 0.0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._room -= size

    def statfs(self) -> Mapping[str, int]:
        disk = self._disk()
        fields = ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail")
        found = {f"f_{field}": getattr(disk, f"f_{field}") for field in fields}
        if self.writable:  # what `_need_room` refuses is not free
            room = disk.f_bavail * disk.f_frsize + self._changes.spare - RESERVE
            found["f_bavail"] = max(room, 0) // disk.f_frsize
        return found

    def status(self) -> Mapping[str, object]:
        store = self._store
        variant = "append-only" if self._container.ao else "plain"
        return {
            "base": self._container.base,
            "variant": "classic " + variant if self._container.classic else variant,
            "writable": self.writable,
            "files": store.index.count + sum(1 for draft in self._drafts.values() if not draft.old),
            "bytes": store.dtotsz + sum(d.lsize - d.old_lsize for d in self._drafts.values()),
            "container_bytes": store.kv.end,
        }
