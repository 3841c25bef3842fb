"""Sync: makes a container equal to a directory, a tar file or another store.

Both sides are compared first, see `winkfs.archive.compare`; then what differs is stored, and last,
if wanted, what the source does not have is removed. Contents are read where metadata leave a doubt.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from winkformats.errors import FormatError
from winkfs.archive.compare import (
    Change,
    Comparison,
    Side,
    StoreSide,
    TarSide,
    TreeSide,
    what_is,
)
from winkfs.archive.items import (
    STREAM_BYTES,
    ChangingItemSource,
    Chooser,
    Item,
    Large,
    Meta,
    Note,
    Notes,
    Seen,
    Some,
    Suspect,
)
from winkfs.archive.pack import root_of, scratch_of
from winkfs.archive.packer import Packer, PackReport, Progress
from winkfs.archive.sources import archive
from winkfs.archive.tree import OwnFiles, Tree
from winkfs.archive.update import Mark, Stored, now_ns
from winkfs.container.building import building
from winkfs.container.bulk import Row
from winkfs.container.container import Container
from winkfs.container.container import open as open_container
from winkfs.container.ondisk.inode import INT64
from winkfs.container.table import FileTable
from winkfs.entry import FileType
from winkfs.errors import NoSuchFile, Refusal
from winkfs.names import DATA, Choose, base_of, chooser, excluder
from winkfs.reader import Reader
from winkfs.registry import open_silently
from winkfs.remote import refuse_far
from winkfs.tables import tables

IN_THE_WAY: Final = "{} is in the place of this {}: --delete removes it"
NONE_LEFT: Final = "the source is empty: --force removes all files"
NEVER: Final = INT64  # a ctime, and a position, that no file has


@dataclass(slots=True)
class SyncReport(PackReport):
    """Result of a sync: as of a pack, and how many names were removed."""

    removed: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a sync.

    delete    remove what the source does not have
    checksum  compare the contents of all files of equal size
    dry       change nothing
    force     delete also if the source is empty
    xattrs    all readable extended attributes of a directory, not only those called user.*
    include, exclude  globs, see `names.excluder`: names that are looked at
    """

    delete: bool = False
    checksum: bool = False
    dry: bool = False
    force: bool = False
    xattrs: bool = False
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()

    @property
    def chosen(self) -> Choose | None:
        return chooser(excluder(self.include), excluder(self.exclude))

    def root(self, source: str) -> int:
        """Return the number of the source for the mark of the container: see `pack.root_of`."""
        return root_of(source, self.exclude, self.include, xattrs=self.xattrs)


def sync(
    source: str,
    base: str,
    options: Options,
    *,
    note: Notes,
    changed: Callable[[Change], None],
    progress: Progress | None = None,
) -> SyncReport:
    """Make the container `base`, which is made if it is not there, equal to a source.

    note      called with each file that was not stored as it is
    changed   called with each difference before it is carried out
    progress  called with the number of files since the last call
    raises    NoSuchFile; Refusal (an empty source); Locked; FormatError; OSError
    """
    target = base_of(base)
    refuse_far(target)
    report = SyncReport()

    def count(noted: Note) -> None:
        report.count(noted)
        note(noted)

    exists = os.path.lexists(target + DATA)
    with contextlib.ExitStack() as stack:
        origin = _Origin(source, target, options, count, stack)
        if exists and options.dry:
            container = stack.enter_context(contextlib.closing(open_container(target)))
        elif exists:
            container = stack.enter_context(_changing(target))
        elif options.dry:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="winkfs-"))
            container = stack.enter_context(building(os.path.join(scratch, "none")))
        else:
            container = stack.enter_context(building(target))
        began = now_ns()
        mark = Mark.of(container, options.root(source))
        work = _compared(origin, container, mark, options, count, changed)
        if options.dry:
            return report
        packer = Packer(container, report, count, progress)
        origin.declare(container)
        for name in work.replaced:
            container.delete(name)
        if work.decisions:
            packer.put_chosen(origin.items(list(work.decisions)), _Decided(work.decisions))
        if not report.failed:
            for name in work.gone:
                container.delete(name)
            report.removed = len(work.gone)
        report.unchanged += work.equal
        container.save_catalog()
        stored = bool(work.decisions or work.gone or not exists)
        if origin.what == "tree" and not report.failed and (stored or work.doubts):
            Mark(mark.root, began, 0).keep(container)
    return report


@contextlib.contextmanager
def _changing(target: str) -> Iterator[Container]:
    """Open a container for changes, which stay if an error ends them: the next sync goes on."""
    with contextlib.closing(open_container(target, "a")) as container:
        try:
            yield container
        except Exception:
            raise
        except BaseException:  # a signal: recovering the interrupted call would take long
            container.abort()
            raise


# --- what there is to do ---


@dataclass(slots=True)
class _Work:
    """The changes to be made.

    decisions  names to store, and of each None, or whether to compare its content before
    replaced   names of another type
    gone       names that the source does not have
    """

    decisions: dict[bytes, bool | None] = field(default_factory=dict)
    replaced: list[bytes] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    equal: int = 0
    doubts: bool = False


def _compared(
    origin: _Origin,
    container: Container,
    mark: Mark,
    options: Options,
    note: Notes,
    changed: Callable[[Change], None],
) -> _Work:
    work = _Work()

    def problem(line: str) -> None:
        note(Note(b"", line, True))

    target = StoreSide(container, problem)
    doubt = (mark.since, mark.end) if origin.what == "tree" else (NEVER, NEVER)
    comparison = Comparison(
        target, origin.side, checksum=options.checksum, everything=origin.everything,
        chosen=options.chosen, doubt=doubt,
    )  # fmt: skip
    for change in comparison.changes():
        name, sign = change.name, change.sign
        if sign == "-":
            if not options.delete:
                comparison.totals.removed -= 1
                continue
            work.gone.append(name)
        elif sign == "T" and not options.delete:
            assert change.old is not None
            assert change.new is not None
            note(Note(name, IN_THE_WAY.format(f"a {change.old.type}", change.new.type), True))
            continue
        elif sign == "T":
            work.replaced.append(name)
            work.decisions[name] = None
        else:
            whole = sign == "+" or not {"content", "size"}.isdisjoint(change.what)
            work.decisions[name] = None if whole else False
        changed(change)
    totals = comparison.totals
    work.equal, work.doubts = totals.equal, comparison.doubts > 0
    left = totals.equal + totals.added + totals.modified + totals.retyped
    if work.gone and not left and not options.force:
        raise Refusal(NONE_LEFT, origin.path)
    return work


class _Decided:
    """Selects the files that are stored: see `items.Chooser`."""

    def __init__(self, decisions: dict[bytes, bool | None]) -> None:
        self._decisions = decisions

    def choose(
        self, files: Iterable[tuple[Some, Seen]]
    ) -> Iterator[tuple[Some, Seen, bool | None]]:
        for some, seen in files:
            if seen.name in self._decisions:
                yield some, seen, self._decisions[seen.name]


# --- the source ---


class _Origin:
    """The source of a sync, as a side, and as items.

    everything  its extended attributes are all that it has
    """

    def __init__(
        self, path: str, target: str, options: Options, note: Notes, stack: contextlib.ExitStack
    ) -> None:
        self.path, self.what = path, what_is(path)
        self._options, self._note, self._scratch = options, note, scratch_of(target)
        self._exclude = excluder(options.exclude)
        self.everything = options.xattrs or self.what == "store"
        self._reader: Reader | None = None
        self._own = None
        self.side: Side
        if self.what == "store":
            self._reader = stack.enter_context(open_silently(path))
            self.side = StoreSide(self._reader, self._problem)
        elif self.what == "tree":
            self._own = OwnFiles(target)
            self.side = TreeSide(
                path, note, self._scratch, everything=options.xattrs, exclude=self._exclude,
                own=self._own,
            )  # fmt: skip
        else:
            if path == "-":
                raise ValueError("a tar file is read twice: standard input cannot be synced")
            chosen = options.chosen
            self._exclude = None if chosen is None else lambda name: not chosen(name)
            self.side = TarSide(
                path, note, self._scratch, contents=True, xattrs=options.xattrs,
                exclude=self._exclude,
            )  # fmt: skip

    def _problem(self, line: str) -> None:
        self._note(Note(b"", line, True))

    def declare(self, container: Container) -> None:
        """Declare the columns of the source in a container. Raises ValueError for other types."""
        columns = {} if self._reader is None else self._reader.columns
        known = container.columns
        missing = {name: kind for name, kind in columns.items() if name not in known}
        if missing and not container.classic:
            container.add_columns(missing)

    def items(self, names: list[bytes]) -> ChangingItemSource:
        """Return a source of files; the chooser selects these among them."""
        if self._reader is not None:
            return _StoreItems(self._reader, self._note, frozenset(names))
        if self.what == "tree":
            return Tree(
                self.path, self._note, self._scratch, own=self._own, xattrs=self._options.xattrs,
                names=names,
            )  # fmt: skip
        return archive(
            self.path, _ignored, self._scratch, xattrs=self._options.xattrs, exclude=self._exclude
        )


def _ignored(noted: Note) -> None:
    """Ignore a note that the comparison has reported already."""


class _StoreItems:
    """The files of a store as a source of items."""

    def __init__(self, reader: Reader, note: Notes, names: frozenset[bytes]) -> None:
        self._reader, self._note, self._names = reader, note, names

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        for found in self.changed(_All(), by_mtime=by_mtime):
            yield found.item if isinstance(found, Suspect) else found

    def changed(self, update: Chooser, *, by_mtime: bool) -> Generator[Item | Suspect, None, None]:
        whole = FileTable.concat(list(tables(self._reader, problem=lambda error: None)))
        chosen = np.fromiter(map(self._names.__contains__, whole.names), np.bool_, len(whole))
        rows = whole.take(chosen)
        order = np.argsort(rows.mtime, kind="stable") if by_mtime else np.argsort(rows.pos)
        rows = rows.take(order)
        seen = (
            (None, Seen(name, int(ftype), size, mtime, None))
            for name, ftype, size, mtime in zip(
                rows.names, rows.ftype.tolist(), rows.size.tolist(), rows.mtime.tolist(),
                strict=True,
            )
        )  # fmt: skip
        for _, one, compare in update.choose(seen):
            try:
                item = self._item(one.name)
            except (NoSuchFile, FormatError) as error:
                self._note(Note(one.name, str(error), True))
                continue
            yield item if compare is None else Suspect(item, compare)

    def _item(self, name: bytes) -> Item:
        reader = self._reader
        stat, xattrs = reader.stat(name), reader.getxattrs(name) or None
        mode = None if stat.ftype == FileType.LINK else stat.mode
        ftype = FileType.FILE if stat.ftype == FileType.EXEC else stat.ftype
        if stat.size < STREAM_BYTES or not isinstance(reader, Container):
            data = reader.read(name)
            return Row(name, data, stat.mtime_ns, ftype, mode, stat.uid, stat.gid, xattrs)
        meta = Meta(stat.mtime_ns, stat.mode, stat.uid, stat.gid, xattrs)
        holes = any(extent.pointer == 0 for extent in reader.extents(name))
        return Large(name, Stored(reader, name), stat.size, meta, holes)


class _All:
    def choose(
        self, files: Iterable[tuple[Some, Seen]]
    ) -> Iterator[tuple[Some, Seen, bool | None]]:
        return ((some, seen, None) for some, seen in files)
