"""Names, attributes and contents of a container as a mount shows them.

ContainerNames   which names there are, as a tree of directories
ContainerView    attributes and contents, by path and by id

What is shown under a name is an entry of the container, a draft, a spool (a file that only the
mount has), or a directory, with or without an entry. File ids are those of the container.
Directories have ids made from the paths they had first.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from winkformats.arrays import Int64
from winkformats.errors import CorruptError, FormatError
from winkfs.container.catalog import DerivedCatalog, build, merge, open_catalog
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.ondisk.compressed import zstd
from winkfs.container.ondisk.inode import Attrs, Extent
from winkfs.container.recovery import tail
from winkfs.container.table import POINTER, POS, SIZE
from winkfs.entry import FileType
from winkfs.errors import DerivedDamage
from winkfs.mounting.ids import OWN_IDS
from winkfs.mounting.listing import MODE_OF
from winkfs.mounting.lookup import CacheBudget, Found, Lookup, facts_of, find_data
from winkfs.mounting.paths import PathSource
from winkfs.mounting.tree import NameTree
from winkfs.names import AT, INODE, MAX_PATH, OWN, key_at, name_of
from winkfs.units import NANO, nearest_ns
from winkmount.source import Attr, refuse

if TYPE_CHECKING:
    from winkfs.container.container import Container
    from winkfs.container.draft import Draft
    from winkfs.mounting.spool import Spool

CHANGES: Final = 1 << 17  # changes of names in memory, at least, before they go into a new order
REPLAYED_NAMES: Final = 1 << 12  # names behind an order that are looked at one by one, or
REPLAYED_PART: Final = 64  # one of so many
OPENING_TAIL: Final = 512 << 20  # bytes behind an order, at least, before a mount makes a new one
SYNCING_TAIL: Final = 256 << 20  # the same for a sync of a mount that runs
REMEMBERED: Final = 1 << 16  # times of changes in memory
NONE: Final[Mapping[bytes, int]] = {}

Known = TypeVar("Known", Attr, Attr | None)

log = logging.getLogger("winkfs.mount")


class ContainerNames:
    """The names of a mounted container, and the parts of its handle that read what they name.

    The names are a tree: BASE.cat and what changed since. It is built when the mount starts, and
    again where a damaged file, a failed write or another process makes that necessary.

    alias   path -> id, where it is not the file id: of files that are not in the container yet
    failed  why nothing can be written any more, "": it can
    recent  the key that was looked up last, and the inode that was found
    """

    def __init__(self, container: Container) -> None:
        self.container, self.writable, self.failed = container, container.writable, ""
        self.alias: dict[bytes, int] = {}
        if self.container.store.settings.compressed:
            zstd(container.base)  # rather no mount than one whose files cannot be read
        if not self.writable:
            self.container.freeze()
        self._attach()

    def _attach(self) -> None:
        """Take up what is behind the handle: after a recovery it may be another."""
        self.recent: tuple[bytes, Found | None] = b"", None
        container = self.container
        self.store, self.changes, self.files = container.store, container.changes, container.files
        self.drafts = self.changes.drafts
        self._generation = self.store.generation
        self.troubles = container.troubles  # as of the last check of the names
        self.lookup = Lookup(self.store, container.content, CacheBudget())
        self._new_tree()
        if self.writable:
            self.store.catalog.follow()

    # --- names ---

    def entry(self, path: bytes) -> int:
        """FTYPE of the entry of the name with this path, 0: there is none."""
        if not path:
            return 0
        key = path + INODE if AT not in path else key_at(path)
        draft = self.drafts.get(key)
        if draft is not None:
            return draft.ftype
        try:
            found = self.lookup.find(key)
        except DerivedDamage:
            raise
        except CorruptError:
            return FileType.UNKNOWN
        return 0 if found is None else found.ftype or FileType.FILE

    def find(self, path: bytes, key: bytes) -> Found | None:
        """Return the inode of the name with a path; None also if it is damaged, but there are names
        below it. Raises CorruptError."""
        try:
            return self.lookup.find(key)
        except DerivedDamage:
            raise
        except CorruptError:
            if self.tree.implied(path):
                return None
            raise

    def move(self, old: bytes, new: bytes) -> None:
        """Note that a file has another path."""
        self.tree.remove(old)
        self.tree.add(new)
        if old in self.alias:
            self.alias[new] = self.alias.pop(old)

    # --- the order below the tree ---

    @property
    def order(self) -> Catalog:
        order = self.tree.overlay.order
        assert isinstance(order, Catalog)
        return order

    def _new_tree(self) -> None:
        try:
            order, ftypes = self._current_order()
            self.tree = NameTree(order, self.entry)
            self.tree.renew(order, ftypes)
        except DerivedDamage as error:
            log.warning("%s: made again", error)
            if not error.file.endswith(DerivedCatalog.suffix):
                self.store.distrust_index(error)
            self.tree = NameTree(build(self.store), self.entry)

    def _current_order(self) -> tuple[Catalog, dict[bytes, int]]:
        """Return the catalog, written if it is missing, and the names that changed since its first
        run, in byte order -> their FTYPEs, see `NameTree.renew`."""
        store = self.store
        order = open_catalog(store)
        if order is None or store.kv.end - order.covered > _longest(order, OPENING_TAIL):
            return build(store), {}
        later = dict(tail(store, order.covered))
        changes = order.row_count - order.count + len(later)
        if changes > max(REPLAYED_NAMES, order.count // REPLAYED_PART):
            return merge(store, order.runs, later), {}
        return order, dict(sorted((order.changes() | dict.fromkeys(later, -1)).items()))

    def _many_changes(self) -> bool:
        """Return whether so much has changed in memory that it should go into a new order."""
        return self.tree.weight > max(CHANGES, self.tree.overlay.order.count // 32)

    @property
    def needs_order(self) -> bool:
        """Return whether a new order costs less than what comes behind the old one."""
        behind = self.store.kv.end - self.order.covered
        return self._many_changes() or behind > _longest(self.order, SYNCING_TAIL)

    def new_order(self) -> None:
        """Take what changed in memory into a new order, on disk if possible. After a sync."""
        if self.container.troubles != self.troubles:
            self.recheck()
        try:
            self.store.catalog.save()
            try:
                self._renew_tree(*self._current_order())
            except DerivedDamage as error:
                log.warning("%s: made again", error)
                self._renew_tree(build(self.store))
            self.store.catalog.follow()
        except (OSError, FormatError) as error:  # the old one goes on, with all that changed
            log.error("the catalog stays as it is: %s", error)

    def _renew_tree(self, order: Catalog, ftypes: Mapping[bytes, int] = NONE) -> None:
        """Go on with an order of the names, and what changed since it was made; files that are not
        in the container yet are in neither."""
        self.tree.renew(order, ftypes)
        self._add_unstored()

    def _add_unstored(self) -> None:
        for path in self.alias:
            if not self.entry(path):
                self.tree.add(path)

    # --- what happens to the container ---

    def recheck(self) -> None:
        """Check which names exist, after the disk refused a write or a sync: files that were not
        synced may be lost.

        As long as it refuses, what can be read is read; changes meet the refusal themselves.
        """
        known = self.container.troubles
        with contextlib.suppress(OSError), self.container.lock:
            self.container.catch_up()
            self.troubles = known
        if self.writable and not self.container.writable and not self.failed:
            self.failed = "the disk below has failed: nothing can be written any more"
            log.error("%s: %s", self.container.base, self.failed)
        if self.container.store.generation != self._generation:
            self._attach()
            self._add_unstored()
        elif self.troubles == known:
            self.tree.recheck(lambda path: path in self.alias or self.entry(path) != 0)
            # A name that came and went since the order was made is noted nowhere, and may be back.
            drafts = list(map(name_of, self.drafts))
            later = (name for name, _ in tail(self.store, self.order.covered))
            self.look_again(chain(later, drafts))

    def look_again(self, names: Iterable[bytes]) -> None:
        """Look up names that may have come, changed or gone. What cannot be read now stays as it
        was noted."""
        with contextlib.suppress(OSError, FormatError):
            self.tree.replay(names)
            self._add_unstored()

    def refresh(self) -> bool:
        """Follow the writer to its last sync -> whether anything has changed. Read-only."""
        covered = self.store.kv.end
        if self.writable or not self.container.follow():
            return False
        self.recent = b"", None
        if self.container.store.generation != self._generation:
            self._attach()
        else:
            self.tree.version += 1
            self.tree.replay(name for name, _ in tail(self.store, covered))
            if self._many_changes():
                self._new_tree()
        return True

    def heal(self, error: Exception) -> bool:
        """Make a damaged index or catalog anew: what failed by it can be done again."""
        if not isinstance(error, DerivedDamage):
            return False
        log.warning("%s: made again, in memory", error)
        if error.file != self.order.storage.name:
            self.store.distrust_index(error)
            return True
        if self.writable:
            self.changes.settle()
        self.store.catalog.drop()
        new, overlay = build(self.store, save=False), self.tree.overlay
        if new.count == overlay.order.count and not any(overlay.paths()):
            overlay.order = new  # listings go on where they are
        else:
            self._renew_tree(new)
        return True


def _longest(order: Catalog, least: int) -> int:
    """Return how many bytes may lie behind an order, `least` for a small one."""
    return max(least, 256 * order.count)


class ContainerView(PathSource):
    """A container as it is now, or as it was at the last sync that was followed.

    names        which names there are
    entry        see `ContainerNames`
    spools       id -> content that only the mount has
    root_mode, root_owner, root_xattrs      of the top directory, which has no entry
    """

    def __init__(self, names: ContainerNames) -> None:
        container = names.container
        folder = os.path.dirname(container.base) or "."
        super().__init__(container.superblock.get("CONTID", 0), folder)
        self.names, self.entry, self.note = names, names.entry, self.places.note_many
        self.spools: dict[int, Spool] = {}
        self._started_ns = int(self.names.store.kv.storage.info().mtime * NANO)
        self.root_mode, self.root_owner = 0o755, self.owner
        self.root_xattrs: Mapping[bytes, bytes] = {}

    # --- what a listing asks for, see `listing.View` ---

    @property
    def tree(self) -> NameTree:
        return self.names.tree

    # --- what numbers ask for, see `numbers.Numbered` ---

    @property
    def generation(self) -> int:
        """Grows when positions do not mean any more what they did."""
        return self.names.store.generation

    @property
    def owner(self) -> tuple[int, int]:
        """Return user and group of files without attributes."""
        return self.names.store.owner

    def implied_attr(self, path: bytes) -> Attr:
        """Return the attributes of a directory that exists only because of names below it."""
        id = self.places.directory_id(path)
        return Attr(id, stat.S_IFDIR | 0o755, 0, self._started_ns, *self.owner)

    def position(self, path: bytes) -> int:
        """Return the position of the inode of a file. Raises CorruptError."""
        names, key = self.names, key_at(path)
        found = names.recent[1] if names.recent[0] == key else names.lookup.find(key)
        if found is None:
            raise refuse(errno.ESTALE)
        return found.pos

    def path_at(self, pos: int) -> bytes:
        """Return the path of the file whose inode is there. Raises CorruptError."""
        return self.tree.file_path(self.names.lookup.name(pos))

    def read_at(self, pos: int, offset: int, size: int) -> bytes:
        """Read up to `size` bytes of the file whose inode is there. Raises CorruptError."""
        names = self.names
        known = names.recent[1]
        found = known if known is not None and known.pos == pos else names.lookup.at(pos)
        return names.lookup.read(found.pos, found.size, offset, size)

    def contents(self, rows: Int64) -> list[memoryview | None]:
        """Return the contents of the files of these rows of the catalog, see `Lookup.contents`."""
        return self.names.lookup.contents(rows[:, POS], rows[:, POINTER], rows[:, SIZE])

    def present(self, pos: int, size: int) -> bool:
        """Return whether the page cache has what `read_at` takes, most likely."""
        return self.names.lookup.present(pos, size)

    def bring(self, pos: int, size: int) -> None:
        """Wait until it has. For any thread."""
        self.names.lookup.bring(pos, size)

    # --- attributes by path ---

    def attr(self, path: bytes) -> Attr | None:
        """Return the attributes of what is shown under a path, whose id is known from now on."""
        if self.times is not None and self.times.has(path):
            return self.times.noted(path)
        names = self.names
        if names.container.troubles != names.troubles:
            names.recheck()
        if AT in path and path.endswith(OWN) and not names.tree.shows_own(path):
            return None
        key = path + INODE if AT not in path else key_at(path)
        alias = names.alias.get(path) if names.alias else None
        found, attr = None, None
        if alias is not None and alias in self.spools:
            attr = self.spool_attr(alias)
        elif (draft := names.drafts.get(key)) is not None:
            attr = None if draft.ftype == FileType.DIR else self.drafted(draft)
        else:
            found = names.find(path, key)
            names.recent = key, found
            if found is None:
                return self.directory_attr(path) if names.tree.implied(path) else None
            _, id, size, ftype, mtime, attrs = found
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
        if self.ctimes:
            attr = self._with_ctime(attr)
        self.places.note(attr[0], path)
        return attr

    def drafted(self, draft: Draft) -> Attr:
        """Return the attributes of a file that is being made or changed; they are not noted."""
        size = draft.body + len(draft.tail)
        attr = self._file_attr(draft.fileid, draft.ftype, size, draft.mtime, draft.attrs)
        return self._with_ctime(attr) if self.ctimes else attr

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
        """Return the attributes of a directory that exists; `found`: what its name holds, if
        known."""
        attr, names, key = self.implied_attr(path), self.names, key_at(path)
        if not path:
            mode, (uid, gid) = stat.S_IFDIR | stat.S_IMODE(self.root_mode), self.root_owner
            attr = attr._replace(mode=mode, uid=uid, gid=gid)
        else:
            stored = names.drafts.get(key) or found or names.find(path, key)
            if stored is not None and stored.ftype == FileType.DIR:
                attr = self._file_attr(attr.id, stored.ftype, 0, stored.mtime, stored.attrs)
        self.places.note(attr.id, path)
        return self.later(attr, path)

    def later(self, attr: Attr, path: bytes) -> Attr:
        """Return attributes with times of changes that the container does not have."""
        mtime = self.mtimes.get(path) if self.mtimes and attr.is_dir else None
        if mtime is not None:
            ctime_ns = attr.ctime_ns if attr.ctime_ns > mtime else 0
            attr = attr._replace(mtime_ns=mtime, ctime_ns=ctime_ns)
        return self._with_ctime(attr) if self.ctimes else attr

    # --- times of changes ---

    def note_change(self, id: int, now: int) -> None:
        """Note that a file or directory has changed. The last REMEMBERED are known as long as the
        mount: not every container keeps that, nor every change."""
        self.ctimes.pop(id, None)
        self.ctimes[id] = now
        if len(self.ctimes) > REMEMBERED:
            del self.ctimes[next(iter(self.ctimes))]

    def _with_ctime(self, attr: Attr) -> Attr:
        known = self.ctimes.get(attr.id, 0)
        return attr._replace(ctime_ns=known) if known > (attr.ctime_ns or attr.mtime_ns) else attr

    # --- attributes by id ---

    def stat(self, id: int) -> Attr:
        if self.spools and id in self.spools:
            return self.spool_attr(id)
        path = self.places[id]
        attr = self.directory_attr(b"") if id == self.root else self.attr(path)
        if attr is None or attr.id != id:
            raise refuse(errno.ESTALE)
        return attr

    def is_directory(self, id: int) -> bool:
        """Return whether a known id is that of a directory."""
        return id >= OWN_IDS and id == self.places.directory_id(self.places[id])

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        if id == self.root:
            return self.root_xattrs
        if id in self.spools:
            return self.spools[id].xattrs
        if self.timed(id) is not None:
            return {}
        path = self.places[id]
        if self.is_directory(id) and self.entry(path) != FileType.DIR:
            return {}
        return self.names.files.attrs(key_at(path)).xattrs

    def facts(self, id: int) -> Mapping[str, str]:
        if id in self.spools or self.timed(id) is not None:
            return {}
        path, files = self.places[id], self.names.files
        ftype = self.entry(path)
        if not ftype or (ftype != FileType.DIR) == self.is_directory(id):
            return {}
        key = key_at(path)
        return facts_of(files.stat(key).fileid, ftype, files.extents(key))

    # --- contents ---

    def read(self, id: int, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        spool = self.spools.get(id) if self.spools else None
        if spool is not None:
            return spool.read(offset, size)
        names = self.names
        if names.container.troubles != names.troubles:
            names.recheck()
        path = self.places[id]
        key = path + INODE if AT not in path else key_at(path)
        if key in names.drafts:
            return names.files.read(key, offset, size)
        # where nothing is opened, each read comes right after a lookup
        fresh = not names.writable and names.recent[0] == key
        found = names.recent[1] if fresh else names.lookup.find(key)
        if found is None:
            raise refuse(errno.ESTALE)
        return names.lookup.read(found.pos, found.size, offset, size)

    def seek(self, id: int, offset: int, *, hole: bool) -> int:
        """See `Source.seek`."""
        size = self.stat(id).size
        if id in self.spools:
            return find_data([Extent(1, 0, size)], offset, hole=hole)
        extents = self.names.files.extents(key_at(self.places[id]))
        return find_data(extents, offset, hole=hole)
