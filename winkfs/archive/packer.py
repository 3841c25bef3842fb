"""Packer: puts the items of a source into open containers, small ones many at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from winkformats.disk.room import has_ample_memory
from winkformats.errors import FormatError
from winkfs.archive.items import (
    EXECUTABLE,
    PERMISSIONS,
    STREAM_BYTES,
    Block,
    ChangingItemSource,
    Chooser,
    Copy,
    Item,
    ItemSource,
    Large,
    Meta,
    Note,
    Notes,
    Ratio,
    Readable,
    Seen,
    Some,
    Suspect,
    Unreadable,
)
from winkfs.archive.tree import Tree, WatchedFile
from winkfs.archive.update import (
    Finder,
    Mark,
    Stored,
    Update,
    differences,
    metadata_of,
    same_content,
)
from winkfs.container.bulk import BATCH_BYTES, BATCH_ROWS, BulkPut, Row
from winkfs.container.container import Container
from winkfs.container.frames import SAMPLE_BYTES
from winkfs.container.ondisk.inode import Attrs
from winkfs.entry import FileType, default_mode
from winkfs.names import DATA, Name, to_bytes
from winkfs.units import CLAMPED

SYNC_BYTES: Final = 256 << 20  # after which an update syncs: an interrupt loses no more
BUILD_BYTES: Final = 1 << 30  # after which a new container is synced, for a pack that goes on
WAITING_BYTES: Final = 8 << 20  # of rows that wait to be put together
SMALL_BATCH_BYTES: Final = 512 << 10  # of a batch, if memory is not ample
PER_ROW: Final = 200  # bytes of a row beside its content, about
UNCHANGEABLE: Final = (
    "its mode, owner or attributes are other ones now: an append-only container cannot change them"
)
NO_HOLES: Final = "its holes are stored as zeros: the container knows no holes"
NO_XATTRS: Final = "its extended attributes are left out: a classic container keeps none"
PROGRESS_FILES: Final = 256  # files between two calls of `progress`
Progress = Callable[[int], None]
Line = Callable[[bytes], None]


@dataclass(slots=True)
class PackReport:
    """Result of a pack: numbers of files.

    files, directories, links  stored
    bytes      of content of the stored files
    updated    only their metadata: mtime, mode, owner, extended attributes
    unchanged  in the container already
    left_out   devices, sockets and fifos: no container can hold them
    failed     could not be read, are not stored as they are, or changed meanwhile
    clamped    have the nearest time that a file can have, in place of their own
    resumed    whether it went on from where an earlier one was stopped
    """

    files: int = 0
    directories: int = 0
    links: int = 0
    bytes: int = 0
    updated: int = 0
    unchanged: int = 0
    left_out: int = 0
    failed: int = 0
    clamped: int = 0
    resumed: bool = False

    def add(self, ftype: int, size: int, files: int = 1) -> None:
        """Count files of a type that were stored, with `size` bytes in all."""
        if ftype == FileType.DIR:
            self.directories += files
        elif ftype == FileType.LINK:
            self.links += files
        else:
            self.files += files
            self.bytes += size

    def add_stored(self, other: Any) -> None:
        """Add what another report counts as stored."""
        for name in ("files", "directories", "links", "bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def count(self, noted: Note) -> None:
        """Count a file that was not packed as it is."""
        if noted.failed:
            self.failed += 1
        elif noted.what == CLAMPED:
            self.clamped += 1
        else:
            self.left_out += 1


class Gatherer:
    """Collects files as columns, and puts them together, in their order."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._most = BATCH_BYTES if has_ample_memory() else SMALL_BATCH_BYTES
        self._columns: list[Any] = [[], [], [], [], []]
        self._size = 0

    def add_row(self, row: Row) -> None:
        attrs = self._container.changes.metadata.attrs_for(*row[3:])
        self.add([to_bytes(row.name)], [row.data], [row.mtime_ns], [row.ftype], [attrs])

    def add(
        self,
        names: list[bytes],
        data: Sequence[bytes | memoryview],
        mtimes: Sequence[int | None],
        ftypes: list[int],
        attrs: Sequence[Attrs | None],
    ) -> None:
        for column, more in zip(self._columns, (names, data, mtimes, ftypes, attrs), strict=True):
            column += more
        self._size += sum(map(len, data))
        if self._size >= self._most or len(self._columns[0]) >= BATCH_ROWS:
            self.put()

    def put(self) -> None:
        """Put the collected files. Raises what the container raises."""
        columns, self._columns, self._size = self._columns, [[], [], [], [], []], 0
        if columns[0]:
            with self._container.lock:
                bulk = BulkPut(self._container.store, self._container.changes)
                self._container.change(bulk.put_columns, *columns)


class Packer:
    """Puts the items of a source into an open container, small ones many at a time.

    packers  number of packers that share the memory for waiting items
    names    names of the waiting items of an update
    stored   called with each name that is stored or updated
    """

    def __init__(
        self,
        container: Container,
        report: PackReport,
        note: Notes,
        progress: Progress | None,
        ratio: Ratio | None = None,
        packers: int = 1,
        *,
        stored: Line | None = None,
    ) -> None:
        self.container, self.note, self.names = container, note, set[bytes]()
        self._ratio, self._copied = ratio or Ratio(), 0  # bytes of holes and of hard links
        self._report = report
        # A dictionary is trained on the first files that are put.
        many = packers > 1 or container.changes.may_learn
        self._room = (SAMPLE_BYTES if many else WAITING_BYTES) // packers
        self._progress = progress or (lambda done: None)
        settings = container.store.settings
        self._attrs, self._holes = settings.attrs, settings.holes
        status = Path(container.base + DATA).stat()
        self._owner = status.st_uid, status.st_gid
        self._done = self._size = 0
        self._waiting: list[Row] = []
        self._columns: Gatherer | None = None  # takes all files that are not streamed, as columns
        self._unordered = False
        self._synced: int | None = None  # bytes up to the last sync; None: there are no such
        self._sync_bytes = SYNC_BYTES
        self._unfinished: Mark | None = None  # stored with the first of these
        self._stored = stored

    def run(
        self, source: ItemSource, unfinished: Mark | None = None, *, synced: bool = False
    ) -> None:
        """Put all items; those put before an error stay. Raises as the source and the container.

        unfinished  the mark of this pack: after each BUILD_BYTES it is synced, and has that
        synced      it is synced after each SYNC_BYTES
        """
        if synced:
            self._synced = self.container.stored_bytes
        if unfinished is not None:
            self._unfinished, self._synced = unfinished, self.container.stored_bytes
            self._sync_bytes = BUILD_BYTES
        # A tree has every name once, and the order of its files does not matter.
        self._unordered = isinstance(source, Tree) and not self.container.ao
        items: Generator[Item | Suspect | Block, None, None]
        compressor = self.container.changes.compressor
        if isinstance(source, Tree) and self._unordered and compressor is None:
            self._columns, items = Gatherer(self.container), source.blocks()
        else:
            items = source.items(by_mtime=self.container.ao)
        put_all(items, [self])

    def update(
        self,
        source: ChangingItemSource,
        mark: Mark,
        *,
        checksum: bool,
        seen: Callable[[int], None] | None = None,
    ) -> Update:
        """Store what is new or has changed -> the Update that selected it.

        seen    called with the hash of each name of the source
        raises  as `run`
        """
        finder, ao = Finder(self.container, mark.end), self.container.ao
        again = self.names.__contains__
        chosen = Update(finder, mark.since, checksum, not ao, again, self._progress)
        with contextlib.closing(finder):
            self.put_chosen(source, chosen if seen is None else _Seeing(chosen, seen))
        self._report.unchanged += chosen.unchanged
        return chosen

    def put_chosen(self, source: ChangingItemSource, chooser: Chooser) -> None:
        """Put the files that a chooser selects; of a suspect that is unchanged only its metadata.

        raises  as `run`
        """
        ao = self.container.ao
        self._unordered = isinstance(source, Tree) and not ao
        self._synced = self.container.stored_bytes
        put_all(source.changed(chooser, by_mtime=ao), [self], self._as_it_was)

    def put(self, item: Item | Block, home: Container | None = None) -> None:
        """Put an item; `home` has the target of a hard link, None: this container."""
        if isinstance(item, Block):
            self._block(item)
        elif isinstance(item, Row):
            self._count(item.ftype, len(item.data))
            self._add(self._kept(item))
        else:
            self._stream(item, home or self.container)
        if self._synced is not None:
            self._sync()
        if self._stored is not None:
            for name in item.names if isinstance(item, Block) else [to_bytes(item.name)]:
                self._stored(name)

    def _sync(self) -> None:
        """Sync if much was stored since the last sync."""
        assert self._synced is not None
        if self.container.stored_bytes - self._synced <= self._sync_bytes:
            return
        if self._unfinished is None:
            self.container.sync()
        else:
            self._unfinished.keep(self.container)
            self._unfinished = None
        self._synced = self.container.stored_bytes

    def _block(self, block: Block) -> None:
        assert self._columns is not None
        directories = int(block.folders.sum())
        self._count(FileType.DIR, 0, directories)
        self._count(FileType.FILE, int(block.facts[0].sum()), len(block.names) - directories)
        ftypes, attrs = block.types(attrs=self._attrs), list[Attrs | None]()
        attrs += [None] * len(block.names)
        if self._attrs:
            attrs_for = self.container.changes.metadata.attrs_for
            for i in np.flatnonzero(~block.usual(ftypes, self._owner)).tolist():
                _, _, mode, uid, gid = block.facts[:, i].tolist()
                attrs[i] = attrs_for(int(ftypes[i]), mode & PERMISSIONS, uid, gid)
        times = block.facts[1].tolist()
        self._columns.add(block.names, block.data, times, ftypes.tolist(), attrs)

    def _add(self, row: Row) -> None:
        """Add a file to the waiting ones; put these if they are too many."""
        if self._columns is not None:
            self._columns.add_row(row)
            return
        self._waiting.append(row)
        self._size += len(row.data) + PER_ROW
        if self._size >= self._room:
            self.flush()

    def flush(self) -> None:
        """Put the waiting files.

        If order does not matter, files that are not plain come last: without compiled code, each
        would interrupt a run of plain ones.
        """
        rows, self._waiting, self._size = self._waiting, [], 0
        if self._columns is not None:
            self._columns.put()
        elif self._unordered:
            rows.sort(key=_is_odd)
        if rows:
            self.container.put_rows(rows)
        self.names.clear()

    def end(self) -> None:
        """Put the waiting files, and report the rest of the progress."""
        self.flush()
        self._progress(self._done % PROGRESS_FILES)

    def _as_it_was(self, suspect: Suspect) -> bool:
        """Return whether the container has the content of a file; if so, update its metadata."""
        item = suspect.item
        name = to_bytes(item.name)
        if name not in self.container:
            return False
        if suspect.content and not same_content(item, self.container):
            return False
        return self.change(item)

    def change(self, item: Item) -> bool:
        """Update the metadata of a file of the container -> whether that was possible, or is noted;
        otherwise the file has to be stored again."""
        name, changed = to_bytes(item.name), differences(item, self.container)
        if not changed:
            self._report.unchanged += 1
        elif self.container.ao:
            if "mtime" in changed:
                return False
            self.note(Note(name, UNCHANGEABLE, True, often=1))
        else:
            self._change(name, metadata_of(item), changed)
            self._report.updated += 1
            if self._stored is not None:
                self._stored(name)
        return True

    def _change(self, name: bytes, meta: Meta, changed: set[str]) -> None:
        container = self.container
        if "mtime" in changed:
            container.utime(name, mtime_ns=meta.mtime_ns)
        if "mode" in changed:
            mode = meta.mode if self._attrs else 0o755 if meta.mode & 0o100 else 0o644
            container.chmod(name, mode)
        if "owner" in changed:
            container.chown(name, meta.uid, meta.gid)
        if "xattrs" in changed:
            container.setxattrs(name, dict(meta.xattrs or {}), strict=False)

    def _count(self, ftype: int, size: int, files: int = 1) -> None:
        """Count files of a type, with `size` bytes in all."""
        self._report.add(ftype, size, files)
        before = self._done // PROGRESS_FILES
        self._done += files
        if steps := self._done // PROGRESS_FILES - before:
            self._progress(steps * PROGRESS_FILES)

    def _stream(self, item: Large | Copy, home: Container) -> None:
        if isinstance(item, Copy):
            self._copy(item, home)
            return
        if item.sparse and not self._holes:
            if not self._may_copy(item, item.size):
                return
            self.note(Note(item.name, NO_HOLES, False, often=1))
        size = self._put_file(item.name, item.file, FileType.FILE, item.meta)
        self._count(FileType.FILE, size)

    def _may_copy(self, item: Large | Copy, size: int) -> bool:
        """Return whether the ratio of the archive allows `size` bytes that it does not contain; if
        not, note it."""
        self._copied += size
        if not item.read or not self._ratio.is_exceeded(self._copied, item.read):
            return True
        self._copied -= size
        self.note(Note(item.name, self._ratio.reason(item.read), True))
        return False

    def _copy(self, item: Copy, home: Container) -> None:
        """Put a hard link of a tar file, whose content is in a container already."""
        if item.target not in home:
            self.note(item.lost)
            return
        old, meta = home.stat(item.target), item.meta
        if not self._may_copy(item, old.size):
            return
        if not meta.xattrs:  # GNU tar stores them with the first name only
            meta = meta._replace(xattrs=home.getxattrs(item.target))
        self._put_file(item.name, Stored(home, item.target), old.ftype, meta)
        self._count(old.ftype, old.size)

    def _put_file(self, name: bytes, file: Readable, ftype: int, meta: Meta) -> int:
        row = Row(name, b"", None, ftype, meta.mode, meta.uid, meta.gid, meta.xattrs)
        kept = self._kept(row)
        return self.container.put_file(
            name, file, mtime_ns=meta.mtime_ns, ftype=kept.ftype,
            mode=kept.mode, uid=kept.uid, gid=kept.gid, xattrs=kept.xattrs,
        )  # fmt: skip

    def _kept(self, row: Row) -> Row:
        """Return the file as the container keeps it: without a mode and owner that are defaults,
        or that its variant cannot store."""
        name, data, mtime_ns, ftype, mode, uid, gid, xattrs = row
        if xattrs and not self._attrs:
            self.note(Note(to_bytes(name), NO_XATTRS, False, often=1))
        if ftype == FileType.FILE and (
            mode == EXECUTABLE or (mode and mode & 0o100 and not self._attrs)
        ):
            ftype = FileType.EXEC
        plain = (uid, gid) == self._owner and (mode is None or mode == default_mode(ftype))
        if self._attrs and (xattrs or not plain):
            return row
        return Row(name, data, mtime_ns, ftype)


class _Seeing:
    """A Chooser that also passes on the hashes of all names."""

    def __init__(self, chooser: Chooser, seen: Callable[[int], None]) -> None:
        self._chooser, self._seen = chooser, seen

    def choose(
        self, files: Iterable[tuple[Some, Seen]]
    ) -> Iterator[tuple[Some, Seen, bool | None]]:
        return self._chooser.choose(map(self._pass, files))

    def _pass(self, one: tuple[Some, Seen]) -> tuple[Some, Seen]:
        self._seen(xxhash.xxh3_64_intdigest(one[1].name))
        return one


def packer_of(packers: Sequence[Packer], name: Name) -> Packer:
    """Return the packer for a name, by its hash, so that equal names have the same packer."""
    if len(packers) == 1:
        return packers[0]
    return packers[xxhash.xxh3_64_intdigest(to_bytes(name)) % len(packers)]


def put_all(
    items: Generator[Item | Suspect | Block, None, None],
    packers: Sequence[Packer],
    same: Callable[[Suspect], bool] | None = None,
) -> None:
    """Put the items of a source, each by the packer of its name.

    same    of an update: returns whether a suspect is unchanged; if not, its file is read again
    raises  what the source or a container raises; the items before it are put
    """

    def put(found: Item | Suspect) -> None:
        item = found.item if isinstance(found, Suspect) else found
        packer, home = packer_of(packers, item.name), None
        try:
            if to_bytes(item.name) in packer.names or not isinstance(item, Row):
                for each in packers:  # it may be a waiting file, or a link to one
                    each.flush()
            if isinstance(found, Suspect):
                item = _readable_twice(found, packer.container.base, packer.note)
                if same is not None and same(Suspect(item, found.content)):
                    return
                if isinstance(item, Large):
                    item.file.rewind()
            if isinstance(item, Copy):
                home = packer_of(packers, item.target).container
            elif isinstance(item, Row):
                packer.names.add(to_bytes(item.name))
            packer.put(item, home)
        except Unreadable as error:
            packer.note(Note(to_bytes(item.name), str(error), True))
        finally:
            if isinstance(item, Large):
                item.file.close()

    for packer in packers:
        packer.container.follow_files()
    with contextlib.closing(items):
        try:
            for found in items:
                if isinstance(found, Block):
                    packers[0].put(found)
                elif same is None and isinstance(found, Row):
                    packer_of(packers, found.name).put(found)
                else:
                    put(found)
        except FormatError:  # the items before it are put
            for packer in packers:
                packer.flush()
            raise
    for packer in packers:
        packer.end()


def _readable_twice(found: Suspect, base: str, note: Notes) -> Item:
    """Return an item that can be read twice, to be compared and then stored: if necessary, from a
    scratch file beside `base`."""
    item = found.item
    if not (found.content and isinstance(item, Large)) or item.file.rewind():
        return item
    import tempfile

    with tempfile.TemporaryFile(dir=os.path.dirname(base) or ".", prefix=".winkfs-") as copy:
        while True:
            copy.seek(item.file.skip_hole(), os.SEEK_CUR)
            if not (data := item.file.read(STREAM_BYTES)):
                break
            copy.write(data)
        copy.truncate()
        fd = os.dup(copy.fileno())
    item.file.close()
    os.lseek(fd, 0, os.SEEK_SET)
    file = WatchedFile(fd, os.fstat(fd), item.name, note, sparse=item.sparse)
    return item._replace(file=file)


def _is_odd(row: Row) -> bool:
    """Return whether the container does not write the file as a plain one."""
    return not row.data or row.mode is not None
