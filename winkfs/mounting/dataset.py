"""DatasetSource: a data set as what winkmount serves, read-only.

Names and attributes are those of the catalogs of the shards, in one order. The id of a file is the
number of its shard in this mount and the position of its inode there: it stays the same as long as
the file is not replaced.
"""

from __future__ import annotations

import errno
import itertools
import logging
import resource
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from winkformats.arrays import Int64
from winkformats.disk.paths import directory_of
from winkfs.container.ondisk.inode import Extent
from winkfs.container.table import ASK, KIND, MTIME, POINTER, POS, SIZE, SPECIAL
from winkfs.dataset.manifest import AsOf, Log, root_of
from winkfs.dataset.shard import AHEAD, announce
from winkfs.dataset.snapshot import Snapshot, snapshot_of
from winkfs.entry import FileType
from winkfs.errors import DerivedDamage
from winkfs.mounting.datasetnames import MergedOrder
from winkfs.mounting.ids import OWN_IDS, POSITION
from winkfs.mounting.listing import attr_of
from winkfs.mounting.lookup import CacheBudget, facts_of, find_data
from winkfs.mounting.numbers import Numbers
from winkfs.mounting.paths import PathSource
from winkfs.mounting.shards import Row, Seen, ShardFiles, position
from winkfs.mounting.timedir import HOUR, Timed, TimeDirectory
from winkfs.mounting.tree import NameTree
from winkfs.names import AT, MAX_PATH, OWN, name_at, shown
from winkfs.units import NANO
from winkmount.source import Attr, refuse

if TYPE_CHECKING:
    from winkmount.options import Options

Place = tuple[ShardFiles, Row]
"""A file: its shard, and its row."""
SHARD_FILES: Final = 4  # open files a shard, and some
NUMBERED_SHARDS: Final = 1 << 17  # shards of a mount that has numbers

log = logging.getLogger("winkfs.mount")


class DatasetSource(PathSource):
    """The files and directories of one generation; `refresh` goes on to the newest.

    A shard that a later generation does not have stays open as long as one of its files is.

    shown    path of a shard -> the shard
    """

    def __init__(self, root: str, as_of: AsOf = None, *, timedir: bool = False) -> None:
        """Show a data set.

        timedir  show `.time`, in the place of names that begin with it; the times are those of the
                 catalogs, whether or not the shards only append
        raises   NoSuchFile, StalePlan, ValueError (`as_of`), FormatError, OSError
        """
        self._log, self._fixed = Log(root_of(root)), as_of is not None
        snapshot = snapshot_of(self._log, self._log.at(as_of))
        seed = min((shard.record.contid for shard in snapshot.shards), default=0)
        super().__init__(seed, self._log.root)
        self._has_times = timedir
        self._budget, self._logged = CacheBudget(), 0
        self._numbers = itertools.count(1)
        self._shards: dict[int, ShardFiles] = {}  # by number: those shown, and those still in use
        self.shown: dict[str, ShardFiles] = {}  # by path
        self._opened: dict[int, Place] = {}  # files that are open
        folder = directory_of(self.folder).info()
        self.owner = (folder.uid, folder.gid) if folder else (0, 0)
        self.order = MergedOrder.of([], self.owner)
        try:
            self._show(snapshot)
            self._log_problems()
        except BaseException:
            self.close()
            raise

    # generations

    @property
    def generation(self) -> int:
        return self._snapshot.generation

    def _show(self, snapshot: Snapshot) -> None:
        """Show this generation. Cost: as `MergedOrder.updated`."""
        _may_open(SHARD_FILES * (len(snapshot.shards) + len(self._shards)))
        shown, columns = {}, snapshot.columns
        for at, shard in enumerate(snapshot.shards):
            if at % AHEAD == 0:
                some = snapshot.shards[at : at + AHEAD]
                announce(each.base for each in some if each.record.path not in self.shown)
            path = shard.record.path
            files = self.shown.get(path)
            if files is None or files.record != shard.record:
                files = ShardFiles(shard, next(self._numbers), self.owner, self._budget)
                self._shards[files.number] = files
            files.hide(shard.hidden)
            files.columns = columns
            shown[path] = files
        self.shown, self._snapshot = shown, snapshot
        self._take(self._ordered(self.order.updated))
        self._sweep()
        if self._has_times:
            self.times = TimeDirectory(ShardTimes(self), self)

    def _ordered(self, make: Callable[[list[Seen]], MergedOrder]) -> MergedOrder:
        """Make an order of what is shown; catalogs that turn out to be damaged are made anew."""
        while True:
            try:
                return make([files.seen for files in self.shown.values() if files.seen])
            except DerivedDamage as error:
                if not any(files.heal(error) for files in self.shown.values()):
                    raise

    def _take(self, order: MergedOrder) -> None:
        self.order = order
        self.tree = NameTree(order, self.entry)
        self._last: tuple[bytes, int] = b"", -1  # the last name that was found, and its index
        self._recent: tuple[int, Place | None] = 0, None  # the id of the last file, and what it is

    def heal(self, error: Exception) -> bool:
        """Show a shard whose catalog turned out to be damaged without it."""
        if not isinstance(error, DerivedDamage):
            return False
        for files in self.shown.values():
            old = files.seen
            if old is not None and files.heal(error):
                if files.seen is None or not self.order.replace(old, files.seen):
                    self._take(self._ordered(lambda seen: MergedOrder.of(seen, self.owner)))
                return True
        return False

    def refresh(self) -> bool:
        """Show the newest generation -> whether it is another."""
        if self._fixed or self._log.newest() == self._snapshot.generation:
            return False
        newest = self._log.shown()
        self._log_problems()
        if newest.generation == self._snapshot.generation:  # that after it is damaged
            return False
        self._show(snapshot_of(self._log, newest))
        return True

    def _log_problems(self) -> None:
        """Log each problem of the manifests once."""
        while len(self._log.problems) > self._logged:
            log.warning("%s", self._log.problems[self._logged])
            self._logged += 1

    def _sweep(self) -> None:
        """Close the shards that are neither shown nor in use."""
        if len(self._shards) == len(self.shown):
            return
        used = {id >> POSITION for id in self.places.users if id < OWN_IDS}
        used.update(files.number for files in self.shown.values())
        for number in set(self._shards) - used:
            self._shards.pop(number).close()

    # names

    def _index(self, path: bytes) -> int:
        """Return where the order has the name with a path, -1: nowhere. Names that follow each
        other are found fast: programs go through a directory as it is listed."""
        known, last = self._last
        if path == known:
            return last
        at = self.order.find(name_at(path))
        if at >= 0:
            self.order.near(at, at + 1, 2)
            self._last = path, at
        return at

    def find(self, path: bytes) -> Place | None:
        """Return the entry of the name with this path; None if there is none. Raises
        CorruptError."""
        index = self._index(path) if path else -1
        if index < 0:
            return None
        row = self.order.row(index)
        files = self._shards[row[POS] >> POSITION]
        if row[KIND] & ASK:
            row = files.row_at(position(row))
        return files, row

    def entry(self, path: bytes) -> int:
        """FTYPE of the entry of the name with this path, 0: there is none."""
        index = self._index(path) if path else -1
        return 0 if index < 0 else self.order.row(index)[KIND] & 255 or FileType.FILE

    def attr(self, path: bytes) -> Attr | None:
        """Return the attributes of what is shown under a path; None if nothing is."""
        if self.times is not None and self.times.has(path):
            return self.times.noted(path)
        if AT in path and path.endswith(OWN) and not self.tree.shows_own(path):
            return None
        found = self.find(path)
        if found is None:
            return self.directory_attr(path) if self.tree.implied(path) else None
        files, row = found
        attr = attr_of(row, files.owner)
        if row[KIND] & 255 == FileType.DIR:
            return self.directory_attr(path, attr)
        if self.tree.clashes and self.tree.implied(path):
            return self.directory_attr(path)
        if len(path) > MAX_PATH:
            return None
        self._recent = attr.id, found
        return attr

    def directory_attr(self, path: bytes, entry: Attr | None = None) -> Attr:
        """Return the attributes of a directory that exists; `entry`: those of its own entry."""
        attr = self.implied_attr(path)
        self.places.note(attr.id, path)
        if entry is None:
            return attr
        return entry._replace(id=attr.id, mode=stat.S_IFDIR | stat.S_IMODE(entry.mode), size=0)

    def implied_attr(self, path: bytes) -> Attr:
        """Return the attributes of a directory that exists only because of names below it."""
        id, mode = self.places.directory_id(path), stat.S_IFDIR | 0o755
        return Attr(id, mode, 0, self._snapshot.time_ns, *self.owner)

    def stat(self, id: int) -> Attr:
        if id >= OWN_IDS:
            path = self.places[id]
            attr = self.attr(path) if path else self.directory_attr(b"")
            if attr is None or attr.id != id:
                raise refuse(errno.ESTALE)
            return attr
        files, row = self.file(id)
        return attr_of(row, files.owner)

    def file(self, id: int) -> Place:
        """Return the file of an id. Raises ESTALE if it is neither shown any more nor open.

        Where nothing is opened, each read comes right after a look-up.
        """
        recent, known = self._recent
        if id == recent and known is not None:
            return known
        opened = self._opened.get(id)
        if opened is not None:
            return opened
        files, pos = self._placed(id)
        return files, files.row_at(pos)

    def _placed(self, id: int) -> tuple[ShardFiles, int]:
        """Return the shard of a file, and the position of its inode. Raises ESTALE as `file`."""
        files, pos = self._shards.get(id >> POSITION), id & (1 << POSITION) - 1
        if files is not None:
            shown = self.shown.get(files.record.path) is files and not files.hides(pos)
            if shown or id in self.places.users:
                return files, pos
        raise refuse(errno.ESTALE)

    # what a listing asks for, see `listing.View`

    def note(self, ids: list[int], paths: list[bytes]) -> None:
        """Remember the paths of directories; the id of a file has its place."""
        for id, path in zip(ids, paths, strict=True):
            if id >= OWN_IDS:
                self.places.note(id, path)

    # what numbers ask for, see `numbers.Numbered`

    def numbered(self) -> Numbers | None:
        few = all(files.number < NUMBERED_SHARDS for files in self.shown.values())
        return Numbers(self) if self.times is None and few else None

    def position(self, path: bytes) -> int:
        """Return the id of a file, which is its number."""
        found = self.find(path)
        if found is None:
            raise refuse(errno.ESTALE)
        return found[1][POS]

    def path_at(self, id: int) -> bytes:
        """Return the path of a file. Raises CorruptError."""
        files, pos = self._placed(id)
        return self.tree.file_path(files.name_at(pos))

    def read(self, id: int, offset: int, size: int) -> bytes:
        """Read up to `size` bytes of a file. Raises CorruptError."""
        files, row = self.file(id)
        return files.read(row, offset, size)

    read_at = read

    def contents(self, rows: Int64) -> Sequence[memoryview | None]:
        """Return the contents of the files of these rows, see `numbers.Numbered`."""
        first, last = rows[[0, -1], POS] >> POSITION
        files = self._shards.get(int(first))
        if files is None or (rows[:, POS] >> POSITION != last).any():
            return [None] * len(rows)
        return files.contents(rows)

    def present(self, id: int, size: int) -> bool:
        """Return whether the page cache has what `read` takes, most likely."""
        files = self._shards.get(id >> POSITION)
        return files is None or files.present(id & (1 << POSITION) - 1, size)

    def bring(self, id: int, size: int) -> None:
        """Wait until it has. For any thread."""
        files = self._shards.get(id >> POSITION)
        if files is not None:
            files.bring(id & (1 << POSITION) - 1, size)

    # users

    def open(self, id: int, *, write: bool, truncate: bool) -> None:
        if id not in self._opened:
            self._opened[id] = self.file(id)
        self.places.use(id, hold=False)

    def release(self, id: int) -> None:
        if self.places.leave(id):
            del self._opened[id]
            self._sweep()

    # contents

    def seek(self, id: int, offset: int, *, hole: bool) -> int:
        files, row = self.file(id)
        plain = row[POINTER] > 0
        extents = [Extent(row[POINTER], 0, row[SIZE])] if plain else files.extents(position(row))
        return find_data(extents, offset, hole=hole)

    # attributes

    def _entry_file(self, id: int) -> Place | None:
        """Return the place of a file, or of the entry of a directory; None if it has no entry."""
        if id < OWN_IDS:
            return self.file(id)
        found = None if self.timed(id) is not None else self.find(self.places[id])
        return found if found and found[1][KIND] & 255 == FileType.DIR else None

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        found = self._entry_file(id)
        if found is None or not found[1][KIND] & SPECIAL:
            return {}
        files, row = found
        return files.xattrs(position(row))

    def facts(self, id: int) -> Mapping[str, str]:
        found = self._entry_file(id)
        if found is None:
            return {}
        files, row = found
        pos = position(row)
        inode = files.found(pos)
        facts = facts_of(inode.fileid, inode.ftype, files.extents(pos))
        return {"shard": files.record.path, **facts}

    # the whole

    def status(self) -> Mapping[str, object]:
        shards = self.shown.values()
        return {
            "base": self.folder,
            "variant": "data set",
            "writable": False,
            "generation": self.generation,
            "shards": len(self.shown),
            "broken_shards": sum(files.error is not None for files in shards),
            "files": self.order.count,
            "bytes": sum(files.seen.size for files in shards if files.seen),
            "container_bytes": sum(files.record.size for files in shards),
        }

    def close(self) -> None:
        for files in self._shards.values():
            files.close()
        self._shards.clear()


class ShardTimes:
    """The files of all shards, for `timedir`. An offset is 1 + the number of the shard and the row,
    as an id has the position."""

    def __init__(self, view: DatasetSource) -> None:
        self._view = view
        self._hours: list[int] | None = None

    def starts(self, unit: int) -> list[int]:
        if self._hours is None:
            hours = [seen.hours(HOUR * NANO) for seen in self._all()]
            self._hours = sorted(set().union(*hours))
        return sorted({hour * HOUR // unit * unit for hour in self._hours})

    def _all(self) -> list[Seen]:
        """Return the files that are shown, in the order of the numbers of the shards."""
        files = sorted(self._view.shown.values(), key=lambda files: files.number)
        return [shard.seen for shard in files if shard.seen]

    def find(self, name: bytes) -> Timed | None:
        found = self._view.find(shown(name))
        return None if found is None else _timed(name, found[1], 0)

    def between(self, start: int, stop: int, offset: int) -> Iterator[Timed]:
        for seen in self._all():
            begin = seen.number << POSITION
            for at, rows in seen.within((start * NANO, stop * NANO), max(offset - begin, 0)):
                for name, row, i in zip(rows.names, rows.numbers.tolist(), at, strict=True):
                    yield _timed(name, row, begin + i + 1)


def _timed(name: bytes, row: Row, offset: int) -> Timed:
    return Timed(name, row[POS], row[MTIME], row[KIND] & 255, offset)


def mount(path: str, options: Options) -> DatasetSource:
    """Return the Source of a data set for `winkfs mount`. Raises Refusal, ValueError,
    FormatError."""
    found = DatasetSource(path, options.as_of or None, timedir=options.timedir)
    found.wait_at_most(path, options.patience)
    return found


def _may_open(files: int) -> None:
    """Let this process have so many files open, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
