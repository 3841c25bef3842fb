"""DatasetView: the names of a data set as a mount's Source has them, as of one generation.

Names, sizes and times are those of the columns of the shards, in one order. The id of a file is the
number of its shard in this mount and the position of its inode there: it stays the same as long as
the file is not replaced.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import resource
import stat
from typing import Final

import numpy as np

from winkformats.disk.paths import directory_of
from winkfs.container.columns.columns import Columns
from winkfs.container.ondisk.inode import FileType
from winkfs.dataset.manifest import AsOf, Log, root_of
from winkfs.dataset.nameorder import MergedOrder
from winkfs.dataset.namerows import Rows
from winkfs.dataset.snapshot import Snapshot, snapshot_of
from winkfs.errors import DerivedDamage
from winkfs.mounting.columnsbatch import ColumnsBatch
from winkfs.mounting.ids import OWN_IDS
from winkfs.mounting.listbatch import Batch
from winkfs.mounting.overlay import Order
from winkfs.mounting.pathview import PathView
from winkfs.mounting.shardfiles import POSITION, Footprint, ShardFiles
from winkfs.mounting.tree import NameTree
from winkfs.names import MAX_PATH
from winkmount.readonly import ReadOnlySource
from winkmount.source import Attr

log = logging.getLogger("winkfs.mount")

Place = tuple[ShardFiles, Columns, int]
"""Where a file is: its shard, the chunk of the columns, and the row in it."""
FILES: Final = 3  # open files a shard, and some


class DatasetView(ReadOnlySource, PathView):
    """Directories and files are found, listed and open; `refresh` goes on to the newest generation.

    A shard that a later generation does not have stays open as long as one of its files is.
    """

    def __init__(self, root: str, as_of: AsOf = None) -> None:
        """Raises NoSuchFile, StalePlan, ValueError (`as_of`), FormatError, OSError."""
        self._log, self._fixed = Log(root_of(root)), as_of is not None
        snapshot = snapshot_of(self._log, self._log.at(as_of))
        super().__init__(min((shard.record.contid for shard in snapshot.shards), default=0))
        self._trace, self._told = Footprint(), 0
        self._numbers = itertools.count(1)
        self._shards: dict[int, ShardFiles] = {}  # by number: those shown, and those still in use
        self.shown: dict[str, ShardFiles] = {}  # by path
        self._opened: dict[int, Place] = {}  # files that are open
        self._order = MergedOrder(Rows(()), np.empty(0, np.int64))
        folder = directory_of(self._log.root).info()
        self.owner = (folder.uid, folder.gid) if folder else (0, 0)
        try:
            self._show(snapshot)
            self._tell()
        except BaseException:
            self.close()
            raise

    # generations

    def _show(self, snapshot: Snapshot) -> None:
        """Show this generation. Cost: 1 us a file of the shards that are not shown already."""
        _may_open(FILES * (len(snapshot.shards) + len(self._shards)))
        shown = {}
        for shard in snapshot.shards:
            path = shard.record.path
            files = self.shown.get(path)
            if files is None or files.record != shard.record:
                files = ShardFiles(shard, next(self._numbers), self.owner, self._trace)
                self._shards[files.number] = files
            files.hidden = shard.hidden
            shown[path] = files
        self.shown, self._snapshot = shown, snapshot
        self._take(self._order.updated(Rows(shown.values())))
        self._sweep()
        if self._order.clashes:
            files_that = "files that have" if self._order.clashes > 1 else "file that has"
            log.warning("not shown: %d %s names below it", self._order.clashes, files_that)

    def _take(self, order: MergedOrder) -> None:
        self._order = order
        self.tree = NameTree(order, self.entry)
        self._last: tuple[bytes, int] = b"", -1  # the last name that was found, and its index
        self._recent: tuple[int, Place | None] = 0, None  # the id of the last file, and where it is

    def heal(self, error: Exception) -> bool:
        """A shard whose columns cannot be read any more is shown without them."""
        damaged = [files for files in self.shown.values() if _is_of(error, files)]
        for files in damaged:
            log.warning("%s: not used any more", error)
            files.forget_columns()
        if damaged:
            self._opened.clear()
            self._take(MergedOrder.merged(Rows(self.shown.values())))
        return bool(damaged)

    def refresh(self) -> bool:
        """Show the newest generation -> whether it is another."""
        if self._fixed or self._log.newest() == self._snapshot.generation:
            return False
        newest = self._log.shown()
        self._tell()
        if newest.generation == self._snapshot.generation:  # that after it is damaged
            return False
        self._show(snapshot_of(self._log, newest))
        return True

    def _tell(self) -> None:
        """Log what was found wrong with manifests, once."""
        while len(self._log.problems) > self._told:
            log.warning("%s", self._log.problems[self._told])
            self._told += 1

    def _sweep(self) -> None:
        """Let go of the shards that are neither shown nor in use."""
        if len(self._shards) == len(self.shown):
            return
        used = {id >> POSITION for id in self._users if id < OWN_IDS}
        used.update(files.number for files in self.shown.values())
        for number in set(self._shards) - used:
            self._shards.pop(number).close()

    # names

    def _index(self, path: bytes) -> int:
        """Where a name is in the order, -1: nowhere. Those that follow each other are found fast:
        programs go through a directory as it is listed."""
        known, last = self._last
        if path == known:
            return last
        order, at = self._order, last + 1
        if not (at < order.count and order.name(at) == path):
            at = order.find(path)
        if at >= 0:
            self._last = path, at
        return at

    def find(self, path: bytes) -> Place | None:
        """The entry of this name: its shard, chunk and row; None where there is none."""
        index = self._index(path) if path else -1
        if index < 0:
            return None
        rows = self._order.rows
        number, at = rows.place(self._order.row(index))
        return rows.owners[number], rows.chunks[number], at

    def entry(self, path: bytes) -> int:
        """FTYPE of the entry of this name, 0: there is none."""
        found = self.find(path)
        return 0 if found is None else found[1].ftype.item(found[2]) or FileType.FILE

    def attr(self, path: bytes) -> Attr | None:
        """The attributes of what is shown under a name; None where nothing is."""
        found = self.find(path)
        if found is None:
            return self.directory_attr(path) if self.tree.implied(path) else None
        files, chunk, at = found
        if chunk.ftype.item(at) == FileType.DIR:
            return self.directory_attr(path, files.attr(chunk, at))
        if self.tree.clashes and self.tree.implied(path):
            return self.directory_attr(path)
        if len(path) > MAX_PATH:
            return None
        attr = files.attr(chunk, at)
        self._recent = attr.id, found
        return attr

    def directory_attr(self, path: bytes, entry: Attr | None = None) -> Attr:
        """The attributes of a directory that is there; `entry`: what its own entry says."""
        id = self.places.directory_id(path)
        self.places.note(id, path)
        if entry is None:
            mode, time = stat.S_IFDIR | 0o755, self._snapshot.time_ns
            return Attr(id, mode, 0, time, *self.owner)
        return entry._replace(id=id, mode=stat.S_IFDIR | stat.S_IMODE(entry.mode), size=0)

    def stat(self, id: int) -> Attr:
        if id >= OWN_IDS:
            path = self.places[id]
            attr = self.attr(path) if path else self.directory_attr(b"")
            if attr is None or attr.id != id:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return attr
        files, chunk, row = self._file(id)
        return files.attr(chunk, row)

    def _file(self, id: int) -> Place:
        """The file of an id. Raises ESTALE where it is not shown any more, nor open.

        Where nothing is opened, each read comes right after a look-up.
        """
        recent, known = self._recent
        if id == recent and known is not None:
            return known
        opened = self._opened.get(id)
        if opened is not None:
            return opened
        files, pos = self._shards.get(id >> POSITION), id & (1 << POSITION) - 1
        found = None if files is None else files.locate(pos)
        if files is None or found is None or not (id in self._users or self._shows(files, pos)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return files, *found

    def _shows(self, files: ShardFiles, pos: int) -> bool:
        return self.shown.get(files.record.path) is files and not files.hides(pos)

    # directories

    def batch(self, order: Order, start: int, stop: int, cut: int) -> Batch:
        assert isinstance(order, MergedOrder)  # maybe that of an earlier generation
        return ColumnsBatch(order.rows, order.positions(start, stop), cut)

    def note(self, ids: list[int], paths: list[bytes]) -> None:
        """Ids of files tell where they are."""

    # users

    def _first_user(self, id: int) -> None:
        if id >= OWN_IDS:
            self.places.hold(id)
        else:
            self._opened[id] = self._file(id)

    def _last_gone(self, id: int) -> None:
        if id < OWN_IDS:
            self._opened.pop(id, None)
            self._sweep()
        else:
            self.places.let_go(id)

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        self._use(id)

    def release(self, id: int) -> None:
        self._leave(id)

    def close(self) -> None:
        for files in self._shards.values():
            files.close()
        self._shards.clear()


def _is_of(error: Exception, files: ShardFiles) -> bool:
    """Whether it tells of damage to the columns of this shard."""
    return isinstance(error, DerivedDamage) and error.file == files.base + ".cols"


def _may_open(files: int) -> None:
    """Let this process have so many files open, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
