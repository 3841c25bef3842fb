"""The plan of a sync: its source, and the changes by which a target becomes equal to it.

Origin    the source: a side of the comparison, and what is stored of it
compared  the changes to be made
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from winkformats.disk.schemes import is_far
from winkformats.errors import FormatError
from winkfs.archive.compare import (
    NO_DOUBT,
    TYPES,
    Change,
    Comparison,
    Side,
    StoreSide,
    TarSide,
    TreeSide,
)
from winkfs.archive.items import (
    STDIN,
    STREAM_BYTES,
    ChangingItemSource,
    Chooser,
    Copy,
    Item,
    Large,
    Note,
    Notes,
    Seen,
    Some,
    Suspect,
)
from winkfs.archive.pack import root_of
from winkfs.archive.packer import Packer, PackReport, Progress
from winkfs.archive.sources import archive
from winkfs.archive.tree import OwnFile, OwnFiles, OwnFolder, Tree
from winkfs.archive.update import Stored, metadata_of, metadata_row
from winkfs.container.container import Container
from winkfs.container.table import FileTable
from winkfs.dataset.reading import DatasetReading
from winkfs.entry import FileType
from winkfs.errors import NoSuchFile, Refusal
from winkfs.names import DATA, Choose, chooser, excluder
from winkfs.reader import Reader
from winkfs.registry import open_silently
from winkfs.tables import tables

if TYPE_CHECKING:
    from winkfs.archive.copyfiles import Source

IN_THE_WAY: Final = "{} is in the place of this {}: --delete removes it"
NONE_LEFT: Final = "the source is empty: --force removes all files"
NONE_REMOVED: Final = Note(b"", "nothing is removed, because of these errors", False)
ITSELF: Final = "is the source, too: nothing is synced with itself"
Refused = Callable[[Change], Note | None]


class Place(NamedTuple):
    """A side of a sync. what: of the source, as `compare.what_is` returns it; of the target, as
    `sync.target_at`."""

    path: str
    what: str


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
    trusted   into a directory: see `same_permissions` of `unpack`
    owners    into a directory: give files their owners, if we are root
    """

    delete: bool = False
    checksum: bool = False
    dry: bool = False
    force: bool = False
    xattrs: bool = False
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    trusted: bool = False
    owners: bool = True

    @property
    def chosen(self) -> Choose | None:
        return chooser(excluder(self.include), excluder(self.exclude))

    def root(self, source: str) -> int:
        """Return the number of the source for the mark of the container: see `pack.root_of`."""
        return root_of(source, self.exclude, self.include, xattrs=self.xattrs)


# --- what there is to do ---


@dataclass(slots=True)
class Work:
    """The changes to be made.

    decisions  names to store, and of each None, or whether to compare its content before
    replaced   names of another type
    gone       names that the source does not have
    folders    names of decisions that are directories
    removed_folders  names of `replaced` and `gone` that are directories
    """

    decisions: dict[bytes, bool | None] = field(default_factory=dict)
    replaced: list[bytes] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    folders: set[bytes] = field(default_factory=set)
    removed_folders: set[bytes] = field(default_factory=set)
    equal: int = 0
    doubts: bool = False


def compared(
    target: Side,
    origin: Origin,
    doubt: tuple[int, int],
    options: Options,
    note: Notes,
    changed: Callable[[Change], None],
    *,
    side: Side | None = None,
    everything: bool | None = None,
    ignored: str = "",
    refused: Refused | None = None,
) -> Work:
    """Compare the sides, and report the changes to be made.

    doubt    (ctime, position) of a source that is a directory: see `Comparison`
    side     the source as it is compared; None: that of the origin
    everything  all extended attributes count; None: as of the origin
    ignored  a difference that does not count
    refused  returns a note on a change that cannot be made
    raises   Refusal: the source is empty
    """
    work = Work()
    comparison = Comparison(
        target, side or origin.side, checksum=options.checksum,
        everything=origin.everything if everything is None else everything,
        chosen=options.chosen, doubt=doubt if origin.what == "tree" else NO_DOUBT,
    )  # fmt: skip
    left = 0  # names that the source has
    for change in comparison.changes():
        if ignored in change.what:
            change = change._replace(what=tuple(what for what in change.what if what != ignored))
            if not change.what:
                work.equal += 1
                continue
        sign, name, what, old, new = change
        left += new is not None
        if new is None and not options.delete:
            continue
        if sign == "T" and not options.delete:
            assert old is not None
            assert new is not None
            note(Note(name, IN_THE_WAY.format(f"a {old.type}", new.type), True))
            continue
        if refused is not None and (noted := refused(change)) is not None:
            if noted.what:
                note(noted)
            continue
        if sign != "+" and sign != "M":
            assert old is not None
            (work.replaced if sign == "T" else work.gone).append(name)
            if old.type == TYPES[FileType.DIR]:
                work.removed_folders.add(name)
        if new is not None:
            whole = sign != "M" or not {"content", "size"}.isdisjoint(what)
            work.decisions[name] = None if whole else False
            if new.type == TYPES[FileType.DIR]:
                work.folders.add(name)
        changed(change)
    work.equal += comparison.totals.equal
    work.doubts = comparison.doubts > 0
    for problem in () if origin.reader is None else origin.reader.problems:
        origin.problem(problem)
    if work.gone and not (work.equal or left) and not options.force:
        raise Refusal(NONE_LEFT, origin.path)
    return work


class Decided:
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


class Origin:
    """The source of a sync: a side, and what is stored of it.

    what        what is at its path, see `compare.what_is`
    everything  its extended attributes are all that it has
    reader      of a store
    columns     of the user: name -> type
    """

    def __init__(
        self,
        source: Place,
        target: str,
        own: OwnFiles | OwnFolder | None,
        scratch: str,
        options: Options,
        note: Notes,
        stack: contextlib.ExitStack,
    ) -> None:
        """Open the source.

        target  path of the target, of a container that of its data file
        own     its files, which are left out if they are in the source
        raises  Refusal if it is the target; ValueError of standard input; as `open`
        """
        path, self._stack = source.path, stack
        self.path, self.what = source
        self._options, self._note, self._scratch, self._own = options, note, scratch, own
        self._exclude = excluder(options.exclude)
        self.everything = options.xattrs or self.what == "store"
        self.reader: Reader | None = None
        self.columns: dict[str, str] = {}
        self._source: Source | None = None
        self.side: Side
        if self.what == "store":
            self.reader = stack.enter_context(open_silently(path))
            data = DATA if isinstance(self.reader, Container) else ""
            if _real(self.reader.base + data) == _real(target):
                raise Refusal(ITSELF, path)
            self.columns = self.reader.columns
            self.side = StoreSide(self.reader, self.problem)
        elif self.what == "tree":
            if _real(path) == _real(target):
                raise Refusal(ITSELF, path)
            self.side = TreeSide(
                path, note, scratch, everything=options.xattrs, exclude=self._exclude, own=own
            )
        else:
            if path == STDIN:
                raise ValueError("a tar file is read twice: standard input cannot be synced")
            chosen = options.chosen
            self._exclude = None if chosen is None else lambda name: not chosen(name)
            self.side = TarSide(
                path, note, scratch, contents=True, xattrs=options.xattrs, exclude=self._exclude
            )

    def problem(self, line: str) -> None:
        self._note(Note(b"", line, True))

    def set_since(self, since: int) -> None:
        """Have a directory not ask for attributes of files with an earlier ctime, nanoseconds."""
        if isinstance(self.side, TreeSide):
            self.side.since = since

    def own_files(self) -> OwnFiles | OwnFolder | OwnFile | None:
        """Return the files of the source, to be recognised in a directory that is the target."""
        if is_far(self.path):
            return None
        if isinstance(self.reader, Container):
            return OwnFiles(self.reader.base)
        return OwnFolder(self.path) if os.path.isdir(self.path) else OwnFile(self.path)

    # --- into a container ---

    def like(self) -> dict[str, Any]:
        """Return the options of a new container: the compression of the one that is copied."""
        from winkfs.archive.copyfiles import like

        copied = self._copied()
        return {} if copied is None else {"compress": like(copied, {}).get("compress")}

    def adopt(self, container: Container) -> None:
        """Compress contents with the dictionary of the container that is copied."""
        from winkfs.archive.copyfiles import adopt_dictionary

        if (copied := self._copied()) is not None:
            adopt_dictionary(container, copied)

    def declare(self, container: Container) -> None:
        """Declare the columns of the source in a container. Raises ValueError for other types."""
        from winkfs.archive.copyfiles import declare

        if not container.classic:
            declare(container, self.columns)

    def _copied(self) -> Source | None:
        """Return the source whose entries can be copied as they are; None: it has none such."""
        if self._source is None and isinstance(self.reader, Container | DatasetReading):
            from winkfs.archive.copyfiles import opened

            self._source = self._stack.enter_context(opened(self.path))
        return self._source

    def put(
        self,
        packer: Packer,
        decisions: dict[bytes, bool | None],
        report: SyncReport,
        progress: Progress | None,
        *,
        sync: bool,
    ) -> None:
        """Store files in a container, as `Work.decisions` has them. sync: from time to time."""
        container, copied = packer.container, None
        whole = [name for name, content in decisions.items() if content is None]
        rest = {name: False for name, content in decisions.items() if content is not None}
        if container.store.settings.attrs:
            copied = self._copied()
        if copied is None:
            if self.what == "tree" and not rest:  # quicker than by a chooser
                packer.run(self.items(whole), synced=sync)
            elif decisions:
                packer.put_chosen(self.items(list(decisions)), Decided(decisions))
            return
        assert self.reader is not None
        for name in rest:
            try:
                if not packer.change(metadata_row(self.reader, name)):
                    whole.append(name)
            except (NoSuchFile, FormatError) as error:
                self._note(Note(name, str(error), True))
        if whole:
            from winkfs.archive.copyfiles import copy_some

            copy_some(copied, whole, container, report, self._note, progress, sync=sync)

    # --- what is stored ---

    def with_targets(self, names: Iterable[bytes]) -> list[bytes]:
        """Return names, and the files of an archive that hard links among them are to."""
        found, targets = dict.fromkeys(names), getattr(self.side, "targets", {})
        for name in list(found) if targets else ():
            while (name := targets.get(name, b"")) and name not in found:
                found[name] = None
        return list(found)

    def items(self, names: list[bytes]) -> ChangingItemSource:
        """Return a source of files; the chooser selects these among them."""
        if self.reader is not None:
            return _StoreItems(self.reader, self._note, frozenset(names))
        if self.what == "tree":
            return Tree(
                self.path, self._note, self._scratch, own=self._own, xattrs=self._options.xattrs,
                names=names,
            )  # fmt: skip
        found = archive(
            self.path, _ignored, self._scratch, xattrs=self._options.xattrs, exclude=self._exclude
        )
        return _Members(found, frozenset(names))


def _real(path: str) -> str:
    return path if is_far(path) else os.path.realpath(path)


def _ignored(noted: Note) -> None:
    """Ignore a note that the comparison has reported already."""


class _Members:
    """The members of an archive; hard links only of some names."""

    def __init__(self, source: ChangingItemSource, names: Collection[bytes]) -> None:
        self._source, self._names = source, names

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        yield from self._source.items(by_mtime=by_mtime)

    def changed(self, update: Chooser, *, by_mtime: bool) -> Generator[Item | Suspect, None, None]:
        for found in self._source.changed(update, by_mtime=by_mtime):
            item = found.item if isinstance(found, Suspect) else found
            if not isinstance(item, Copy) or item.name in self._names:
                yield found


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
        """Return a file; a large one as a stream, but of stores whose records are read as one."""
        reader = self._reader
        row = metadata_row(reader, name)
        ftype = FileType.FILE if row.ftype == FileType.EXEC else row.ftype
        size = reader.stat(name).size
        if size < STREAM_BYTES or not isinstance(reader, Container | DatasetReading):
            return row._replace(data=reader.read(name), ftype=ftype)
        holes = any(extent.pointer == 0 for extent in reader.extents(name))
        return Large(name, Stored(reader, name), size, metadata_of(row), holes)


class _All:
    def choose(
        self, files: Iterable[tuple[Some, Seen]]
    ) -> Iterator[tuple[Some, Seen, bool | None]]:
        return ((some, seen, None) for some, seen in files)
