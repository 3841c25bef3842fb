"""Push of a container: copies it to object storage, as of its last sync.

    NAME.X.cat   its catalog, all of it; X, in PUSHED of the data file, is of one state alone
    NAME.data    entries and superblock, as a backup has them

The catalog goes first, and no object that is there uses it. Then one request puts the data file in
its place, under the condition that what was looked at is still there. So a reader sees one state or
the other with its own catalog, whenever a push ends; and of two pushes one changes nothing.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from winkformats.disk.objects import ObjectDirectory, ObjectInfo
from winkformats.disk.parts import Read, etag_of, part_bytes
from winkformats.disk.paths import locate
from winkformats.disk.schemes import is_far
from winkformats.errors import DerivedDamage, FormatError
from winkformats.kv.superblock import WRITER, Superblock, read_superblock
from winkfs.archive.copying import COMPARED, Copying, Progress, is_same, published
from winkfs.container.catalog import believed, build, merge, open_catalog
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.ondisk.data import CUTID, PUSHED, UNNAMED, USUAL, catalog_names, set_pushed
from winkfs.container.ondisk.lock import WriterLock
from winkfs.container.ondisk.typed import COLUMNS
from winkfs.container.recovery import tail
from winkfs.container.store import Store
from winkfs.errors import FileExists, NoSuchFile, NotAllowed, Refusal, StalePlan
from winkfs.names import DATA, MANIFESTS, base_of, inode_key
from winkfs.units import size_text

TRIES: Final = 5  # of a request with a condition whose answer was lost
PAUSE: Final = 0.1  # seconds before the second try; the pauses double
TAIL_BYTES: Final = 16 << 20  # of entries after the catalog; beyond, it is made from all inodes
LEFT: Final = 86_400.0  # seconds after which a catalog without its data file is removed
SUM_BYTES: Final = 8  # at the end of the last entry, with its checksum and without a delflag
CHANGING: Final = frozenset({"SBSEQ", "SBCKSUM", WRITER, PUSHED, UNNAMED})
"""Variables that may differ between copies of one state."""
_OWN: Final = re.compile(r"\.[0-9a-f]{16}\.cat")


@dataclass
class Pushed:
    """Result of a push.

    url       of the container
    size      bytes of its objects
    sent      bytes that were sent; after a dry run those that would be, at most
    replaces  whether another state, or another container, was in its place
    same      whether it was there already
    problems  damage of the source, a line each; it was sent as it is
    notes     what did not succeed beside it, a line each
    """

    url: str
    size: int = 0
    sent: int = 0
    replaces: bool = False
    same: bool = False
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def push_container(
    base: str,
    url: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Pushed:
    """Copy a container to object storage: see `push.push`."""
    directory, name = place_of(url)
    pushing = _Push(base, directory, name, progress)
    with contextlib.ExitStack() as stack:
        pushing.run(stack, force=force, dry_run=dry_run)
    return pushing.done


def place_of(url: str) -> tuple[ObjectDirectory, str]:
    """Return the directory that a URL of a container is in, and its name. Raises Refusal."""
    if not is_far(url):
        raise Refusal("is no URL of object storage: winkfs backup copies to a path", url)
    head, _, key = url.partition("://")
    key = key.strip("/")
    if "/" not in key:
        raise Refusal(f"names no container: {head}://BUCKET/NAME does", url)
    directory, name = locate(base_of(f"{head}://{key}"))
    assert isinstance(directory, ObjectDirectory)
    return directory, name


class _State:
    """The bytes of an object: a container as of the sync that its store has seen, while others
    write to it.

    Nothing below its end changes but delflags. Those that later syncs set are cleared: of entries
    that live in this state, and not in the next. They are found in the entries that were added
    before the flags were set.
    """

    def __init__(self, store: Store, new: Superblock) -> None:
        self._store, self._head, self._end = store, b"".join(new.images()), store.kv.end
        self._size = store.filesize  # of the sync that was seen last, as stored
        self._seen, self._columns = store.kv.end, new.get(COLUMNS, 0)
        self._cleared, self._lock = np.empty(0, np.int64), threading.Lock()

    def read(self, start: int, length: int) -> bytes:
        """Read a range; several threads may call it. Raises Refusal; OSError."""
        first = self._head[start : start + length]
        begin, storage = start + len(first), self._store.kv.storage
        rest = storage.read(begin, length - len(first))
        if len(first) + len(rest) < length:
            raise Refusal("was cut short meanwhile", self._store.base)
        if self._store.kv.layout.delflag and self._store.filesize_at:
            with self._lock:
                if storage.read(self._store.filesize_at, 8) != self._size:
                    self._follow()
                low, high = np.searchsorted(self._cleared, [begin, begin + len(rest)])
                places = (self._cleared[low:high] - begin).tolist()
            if places:
                cleared = bytearray(rest)
                for at in places:
                    cleared[at] = 0
                rest = bytes(cleared)
        return first + rest

    def _follow(self) -> None:
        """Find the entries that were superseded since. Raises Refusal."""
        store, kv = self._store, self._store.kv
        block = read_superblock(kv.storage)
        stop = block.get("FILESIZE", 0)
        if stop < self._seen or block.get(CUTID, 0) != store.settings.cutid:
            raise Refusal("was rolled back meanwhile: push it again", store.base)
        kv.advance(block)
        found = [self._columns] if self._columns and block.get(COLUMNS) != self._columns else []
        for name, _ in tail(store, self._seen, stop):
            if 0 < (pos := store.index.lookup(inode_key(name))) < self._end:
                found += [pos, *store.inode_at(pos)[1].pointers]
        self._cleared = np.union1d(self._cleared, np.array(found, np.int64))
        self._seen, self._size = stop, stop.to_bytes(8, "big")


class _Push(Copying):
    """A push of one container. `there`: what the data file in its place is, None: there is none."""

    def __init__(
        self, base: str, directory: ObjectDirectory, name: str, progress: Progress | None
    ) -> None:
        super().__init__(base, progress)
        self._directory, self._name, self._transport = directory, name, directory.transport
        self._key = directory.key(name)
        self._there: tuple[ObjectInfo, Superblock | None] | None = None
        self.done = Pushed(f"{directory.path}/{name}", problems=self.problems)

    def run(self, stack: contextlib.ExitStack, *, force: bool, dry_run: bool) -> None:
        store = self._open(stack)
        new = published(store.kv.superblock, store.kv.end)
        if "CONTID" in new:
            set_pushed(new)
        end, read = store.kv.end, _State(store, new).read
        with contextlib.suppress(FileNotFoundError):
            self._there = self._look()
        same, from_there = self._judge(new, end, read, force=force)
        catalog = None if store.settings.classic else stack.enter_context(complete(store))
        self.done.size = end + (catalog.superblock["FILESIZE"] if catalog is not None else 0)
        self.done.replaces, self.done.same = self._there is not None and not same, same
        if dry_run:
            self.done.sent = 0 if same else self.done.size
            return
        if not same:
            self._verify(store, new, end, from_there, read, force=force)
        there = self._there[1] if self._there is not None else None
        mine = catalog_names(self._name, there if same and there is not None else new)[0]
        if catalog is not None:
            self._send_catalog(catalog, mine)
        if not same:
            self._send_data(end, read)
            self._read_back(store, new, end, read)
        self._clean(mine, there)

    def _open(self, stack: contextlib.ExitStack) -> Store:
        """Open the container as of its last sync."""
        store = stack.enter_context(Store(self.base, writable=False, mapped=False))
        if not store.kv.layout.checksum:  # a torn copy would not be detected
            stack.callback(WriterLock(self.base).release)
            store = stack.enter_context(Store(self.base, writable=False, mapped=False))
        store.frozen = True
        if store.kv.truncated:
            raise Refusal("is cut short: winkfs repair mends it", self.base)
        return store

    # --- what is there ---

    def _look(self) -> tuple[ObjectInfo, Superblock | None]:
        """Return the data file that is there; its superblock is None if it has none.

        raises  FileNotFoundError
        """
        self._transport.recent.clear()
        with self._directory.open(self._name + DATA) as storage:
            known = storage.known
            try:
                return known, read_superblock(storage)
            except FormatError:
                return known, None

    def _judge(self, new: Superblock, end: int, read: Read, *, force: bool) -> tuple[bool, int]:
        """Decide what to do with what is there -> whether it is the same state; if it is an earlier
        one, its end, else 0. Raises FileExists."""
        if self._there is None:
            with contextlib.suppress(NotAllowed):
                for _ in self._transport.list(f"{self._key}/{MANIFESTS}/"):
                    raise FileExists("a data set is there: choose another name", self.done.url)
            return False, 0
        info, old = self._there
        if old is None and not force:
            what = f"is there, and is no container ({size_text(info.size)}): --force replaces it"
            raise FileExists(what, self.done.url + DATA)
        if old is None:
            return False, 0
        if not is_same(old, new):
            if "CONTID" not in new and is_equal(info, end, read):
                return True, 0
            if not force:
                what = "another container is there, or this one was compacted or rolled back since"
                raise FileExists(f"{what}: --force replaces it", self.done.url)
            return False, 0
        there = old["FILESIZE"]
        alike = all(
            old.get(name, USUAL.get(name)) == new.get(name, USUAL.get(name))
            for name in (old.keys() | new.keys()) - CHANGING
        )
        if alike and info.size == end and self._ends_alike(read, end - SUM_BYTES, end):
            return True, 0
        if there > end and not force:
            what = f"a later state is there, of {there} bytes, and here are {end}"
            raise FileExists(f"{what}: --force replaces it", self.done.url)
        return False, there if there <= end else 0

    def _ends_alike(self, read: Read, start: int, end: int) -> bool:
        """Return whether the object there has the same bytes in a range."""
        assert self._there is not None
        key = self._directory.key(self._name + DATA)
        _, data, _ = self._transport.get(key, start, end - start, self._there[0])
        return data == read(start, end - start)

    def _verify(
        self, store: Store, new: Superblock, end: int, there: int, read: Read, *, force: bool
    ) -> None:
        """Verify all entries of the source; if an earlier state is there, it ends as here."""
        start = store.kv.start
        if there > start:
            last, _ = self.check(store.kv, start, there)
            begin = max(last + 1, there - COMPARED)  # without the delflag
            if not force and not self._ends_alike(read, begin, there):
                what = "what is there has other files, though its id is the same"
                raise FileExists(f"{what}: --force replaces it", self.done.url)
        self.check(store.kv, max(there, start), end)
        if self.problems and not force:
            what = f"is damaged: {self.problems[0]}: winkfs repair mends it, --force sends it as is"
            raise Refusal(what, self.base)

    # --- sending ---

    def _send_catalog(self, catalog: Catalog, name: str) -> None:
        size, key = catalog.superblock["FILESIZE"], self._directory.key(name)
        there = self._transport.head(key)
        if is_equal(there, size, catalog.storage.read) or (there is not None and self.done.same):
            self._progress(size)
            return
        _, sent = self._transport.put_from(key, size, catalog.storage.read, self._progress)
        self.done.sent += sent

    def _send_data(self, end: int, read: Read) -> None:
        """Put the data file in its place: with that the state is there. A lost answer is settled by
        looking at what is there."""
        key, before = self._directory.key(self._name + DATA), self._there
        like = before[0] if before is not None else None
        for left in range(TRIES, 0, -1):
            try:
                _, sent = self._transport.put_from(
                    key, end, read, self._progress, absent=like is None, like=like
                )
                self.done.sent += sent
                return
            except OSError as error:
                if self._is_there(key, end, read):
                    self.done.sent += end
                    return
                if isinstance(error, FileExists | StalePlan):
                    what = "another program has written there meanwhile: nothing was changed"
                    raise StalePlan(what, self.done.url) from None
                if left == 1 or isinstance(error, NotAllowed | NoSuchFile):
                    raise
                time.sleep(PAUSE * 2 ** (TRIES - left))

    def _is_there(self, key: str, size: int, read: Read) -> bool:
        """Return whether an object has these bytes; a large one whose ETag is no MD5 has not."""
        there = self._transport.head(key)
        if is_equal(there, size, read):
            return True
        if there is None or there.size != size or size > part_bytes(size):
            return False
        return self._transport.get(key, 0, size, there)[1] == read(0, size)

    def _read_back(self, store: Store, new: Superblock, end: int, read: Read) -> None:
        """Open what is there now, as a reader does, and compare it at its ends."""
        self._transport.recent.clear()
        try:
            with Store(self.done.url, writable=False, load=False) as far, believed(far) as catalog:
                kv, start = far.kv, end - SUM_BYTES
                sound = kv.end == end and dict(kv.superblock) == dict(new)
                sound = sound and kv.storage.read(start, SUM_BYTES) == read(start, SUM_BYTES)
                found = (catalog.covered, catalog.count) if catalog is not None else None
                sound = sound and (store.settings.classic or found == (end, store.index.count))
        except NotAllowed as error:
            self.done.notes.append(f"{self.done.url}: not read back: {error.strerror}")
            return
        if not sound:
            raise Refusal("what was read back is not what was sent: push it again", self.done.url)

    def _clean(self, mine: str, old: Superblock | None) -> None:
        """Remove the catalog of the state that was replaced, and those that killed pushes left, by
        the clock of the store."""
        gone = set() if old is None or self.done.same else {*catalog_names(self._name, old)}
        gone = {self._directory.key(name) for name in gone}
        try:
            listed = self._transport.list(self._directory.key(""))  # they list whole folders
            found = {key: info.mtime for key, info in listed if info is not None}
            late = max(found.values(), default=0.0) - LEFT
            own = (key for key in found if _OWN.fullmatch(key.removeprefix(self._key)))
            gone = (gone & found.keys()) | {key for key in own if found[key] < late}
            if gone := gone - {self._directory.key(mine)}:
                self._transport.delete(sorted(gone))
        except OSError as error:
            self.done.notes.append(f"{self.done.url}: older catalogs stay: {error.strerror}")


def is_equal(there: ObjectInfo | None, size: int, read: Read) -> bool:
    """Return whether an object has these bytes, as the store has computed its ETag."""
    return there is not None and there.size == size and there.etag.strip('"') == etag_of(size, read)


@contextlib.contextmanager
def complete(store: Store) -> Iterator[Catalog]:
    """Return a catalog of one run that has all files of a store, in a scratch file. Raises OSError.

    cost    writes it anew, from BASE.cat and the changes after it, else from all inodes
    """
    made: Catalog | None = None
    with contextlib.ExitStack() as stack:
        older = open_catalog(store, behind=TAIL_BYTES)
        if older is not None:
            stack.callback(older.close)
            with contextlib.suppress(DerivedDamage):
                made = merge(store, older.runs, dict(tail(store, older.covered)))
        made = stack.enter_context(made or build(store, save=False, lost=store.note))
        yield made
