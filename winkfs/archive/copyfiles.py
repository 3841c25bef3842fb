"""Copy: files of containers and data sets into another one, without decoding them.

What is copied is chosen from the catalogs of the sources. Of several files with one name the one of
the last source counts. A new container is built beside its name, see `building`; an existing one is
synced each 256 MiB, and files that it has equally are skipped; a data set gets one commit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy as copy_object
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np

from winkformats.arrays import Bools, Int64, among
from winkformats.errors import CorruptError, FormatError
from winkfs.archive.compare import Comparison, StoreSide, Xattrs, pairs
from winkfs.archive.items import Note, Notes
from winkfs.archive.packer import Packer, PackReport
from winkfs.archive.update import metadata_row
from winkfs.container.building import building
from winkfs.container.container import Container
from winkfs.container.container import open as open_container
from winkfs.container.copier import Copied, FileIds, copy_entries, unused_fileid
from winkfs.container.ondisk.compressed import word_of
from winkfs.container.table import MODES, NOTHING, FileTable
from winkfs.dataset.dataset import open as open_dataset
from winkfs.dataset.manifest import is_dataset
from winkfs.dataset.reading import Handles
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.snapshot import Snapshot, snapshot
from winkfs.dataset.transaction import begun
from winkfs.errors import LostShard, NoSuchFile, NotAllowed, Refusal
from winkfs.names import DATA, Name, base_of, chooser, excluder, to_bytes, to_str
from winkfs.reader import Reader
from winkfs.registry import kind_of
from winkfs.remote import refuse_far
from winkfs.tables import whole

SYNC_BYTES: Final = 256 << 20  # after which an existing container is synced
FILES_AT_ONCE: Final = 1 << 16  # copied between two looks at that
USUAL_MODES: Final = (0o644, 0o755)  # all that a container without ATTRS has
Progress = Callable[[int], None]
Path = str | os.PathLike[str]
T = TypeVar("T")


@dataclass(slots=True)
class CopyReport(Copied):
    """Result of a copy: numbers of files, and bytes of their content.

    unchanged  the target has them equally
    updated    only their metadata: the target has the contents
    failed     damaged, or listed and not there
    """

    unchanged: int = 0
    updated: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of the files that are copied. A default chooses all.

    include, exclude  globs, see `names.excluder`
    names             the name is one of these; None: any
    where             a condition, see `container.where`
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    names: frozenset[bytes] | None = None
    where: str | None = None

    @property
    def everything(self) -> bool:
        return self == Choice()

    def of(self, rows: FileTable) -> Bools:
        """Return which files are chosen, bool[n], except by `where`."""
        found = np.ones(len(rows), np.bool_)
        if self.names is not None:
            found &= np.fromiter(map(self.names.__contains__, rows.names), np.bool_, len(rows))
        chosen = chooser(excluder(self.include), excluder(self.exclude))
        if chosen is not None:
            left = np.flatnonzero(found)
            names = map(to_str, rows.take(left).names)
            found[left] = np.fromiter(map(bool, map(chosen, names)), np.bool_, len(left))
        return found


def copy(
    sources: Path | Sequence[Path],
    out: Path,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    names: Iterable[Name] | None = None,
    where: str | None = None,
    prefix: Name = b"",
    no_clobber: bool = False,
    dry_run: bool = False,
    note: Notes | None = None,
    changed: Callable[[str, bytes], None] | None = None,
    progress: Progress | None = None,
) -> CopyReport:
    """Copy the files of containers and data sets into a container or a data set.

    sources     their paths, or that of one; of several files with one name that of the last counts
    out         a container, which is made if there is none, or an existing data set. A new
                container has the variant and the compression of the first source, and the columns
                of all. Of an existing one, equal files stay as they are, others are replaced; a
                container gets only the metadata of files whose contents it has
    include     globs of names that are copied, with all below them; exclude: that are not
    names       only files with these names
    where       a condition on the files, see `Reader.scan`
    prefix      put before each name
    no_clobber  a file that is in `out` stays, and of several with one name the first is copied
    dry_run     only report what would be done
    note        called with each damaged file, which is left out, and each of `names` that is
                missing
    changed     called with "+" or "M" and the name of each file that will be added or replaced
    progress    called with the number of files since the last call
    raises      NoSuchFile; Refusal (a column with two types, a file that `out` cannot hold: then
                nothing was changed); NotAllowed; ValueError; Locked; FormatError; OSError. A new
                container, or a data set, is then as it was; an existing container has what was
                synced before
    cost        entries are copied as they are, and verified; frames are made anew only if `out`
                compresses otherwise
    """
    paths = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    if not paths:
        raise ValueError("there is no source")
    listed = None if names is None else frozenset(map(to_bytes, names))
    choice = Choice(include, exclude, listed, where)
    report = CopyReport()

    def count(noted: Note) -> None:
        report.failed += noted.failed
        if note:
            note(noted)

    with contextlib.ExitStack() as stack:
        target = Target(os.fspath(out))
        found = [stack.enter_context(opened(path)) for path in paths]
        target.refuse(found)
        plan = Plan(found, choice, to_bytes(prefix), count, first=no_clobber)
        columns = joined_columns([*([target.columns] if target.there else []), *plan.columns])
        if target.there or changed is not None or not target.holds_all(found):
            plan.list()
        if target.there:
            with target.reading() as reader:
                plan.skip_equal(
                    reader, report, keep=no_clobber, in_place=target.in_place, changed=changed
                )
        elif changed is not None:
            for name in plan.table.names:
                changed("+", name)
        target.check(plan)
        if dry_run:
            plan.count(report)
        elif plan.empty and target.there:
            pass
        else:
            with target.writing(found[0], columns) as container:
                plan.run(container, report, progress, sync=target.there and not target.dataset)
                plan.update(container)
        for source in found:
            for problem in source.problems():
                count(Note(b"", problem, True))
    return report


def copy_some(
    source: Source,
    names: Iterable[bytes],
    container: Container,
    report: PackReport,
    note: Notes,
    progress: Progress | None,
    *,
    sync: bool,
) -> None:
    """Copy files of a source into a container that is open. See `Plan.run`."""
    copied = CopyReport()
    plan = Plan([source], Choice(names=frozenset(names)), b"", note)
    try:
        plan.run(container, copied, progress, sync=sync)
    finally:
        report.add_stored(copied)


def joined_columns(schemas: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the columns of several stores. Raises Refusal if one has two types."""
    found: dict[str, str] = {}
    spelt: dict[str, str] = {}
    for schema in schemas:
        for name, kind in schema.items():
            known = spelt.setdefault(name.lower(), name)
            if found.setdefault(known, kind) != kind:
                raise Refusal(f"is {found[known]} in one store, and {kind} in another", name)
            if known != name:
                raise Refusal(f"is spelt {known} in another store", name)
    return found


# --- sources ---


class Source:
    """A container or a data set as of now.

    columns  of the user: name -> type
    """

    def __init__(self, path: str) -> None:
        kind, base = kind_of(path)
        if kind.name not in ("container", "data set"):
            raise Refusal(f"is a {kind.name}: only containers and data sets can be copied", base)
        self.path = base
        self.snapshot: Snapshot = snapshot(base)
        self._handles = Handles(self.snapshot.shards)
        self.columns = self.snapshot.columns

    @property
    def parts(self) -> Iterator[Part]:
        """Yield the shards that can be opened, the winner last; the container of one is valid until
        the next."""
        for number in self._handles.coming(range(len(self.snapshot.shards))):
            shard = self.snapshot.shards[number]
            if shard.files and self._opens(number):
                yield Part(self, number, shard.hidden)

    def container(self, number: int) -> Container:
        return self._handles.container(number)

    def _opens(self, number: int) -> bool:
        with contextlib.suppress(LostShard):
            self.container(number)
        return number not in self._handles.lost

    @property
    def newest(self) -> Container | None:
        """The shard whose variant a new container has; None: an empty data set."""
        numbers = reversed(range(len(self.snapshot.shards)))
        return next((self.container(number) for number in numbers if self._opens(number)), None)

    @property
    def lost_files(self) -> int:
        """Number of files of shards that could not be opened."""
        return sum(self.snapshot.shards[number].files for number in self._handles.lost)

    def problems(self) -> list[str]:
        lost, shards = self._handles.lost, self.snapshot.shards
        lines = [str(LostShard(why, shards[number].base)) for number, why in lost.items()]
        return [*lines, *self._handles.problems()]

    def close(self) -> None:
        self._handles.close()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Source]:
    """Open a source. Raises Refusal for a store of another kind; as `open`."""
    with contextlib.closing(Source(os.fspath(path))) as source:
        yield source


@dataclass(slots=True, eq=False)
class Part:
    """A container of a source.

    hidden  positions of files that newer shards have replaced, ascending
    chosen  positions of the files that are copied, int64[n]; None: all
    """

    source: Source
    number: int
    hidden: Int64
    chosen: Int64 | None = None

    @property
    def container(self) -> Container:
        return self.source.container(self.number)

    def positions(self) -> Int64:
        """Return positions of the files that are copied, ascending."""
        if self.chosen is not None:
            return self.chosen
        found = self.container.store.index.positions()
        return found if not len(self.hidden) else found[~among(found, self.hidden)]

    def rows(
        self, choice: Choice, problem: Callable[[CorruptError], None], columns: Sequence[str]
    ) -> FileTable:
        """Return the chosen files, in byte order of the names, with modes and owners, and with the
        values of columns."""
        container, tables = self.container, list[FileTable]()
        schema = self.source.columns
        found = container.rows(b"", problem, where=choice.where, columns=columns, schema=schema)
        for some in found:
            rows = some.visible(self.hidden, include_dirs=True)
            rows = rows.take(choice.of(rows)).owned(container.store.owner)
            tables.append(whole(container, rows, problem))
        return FileTable.concat(tables)


# --- what is copied ---


class Plan:
    """The files that are copied.

    prefix  put before each name
    note    called with each damaged file
    first   of several files with one name the first counts, not the last
    table   the files in byte order of their new names, after `list`
    """

    def __init__(
        self,
        sources: Sequence[Source],
        choice: Choice,
        prefix: bytes,
        note: Notes,
        *,
        first: bool = False,
    ) -> None:
        self.parts = [part for source in sources for part in source.parts]
        self.columns = [source.columns for source in sources]
        self._choice, self._prefix, self._note, self._first = choice, prefix, note, first
        self.table, self._part = NOTHING, np.empty(0, np.int64)
        self._listed, self._updates = False, list[tuple[Part, FileTable]]()
        if not choice.everything or len(sources) > 1:
            self.list()

    @property
    def empty(self) -> bool:
        return self._listed and not len(self.table) and not self._updates

    def list(self, columns: Sequence[str] = ()) -> None:
        """List the files by the catalogs, with values of columns, unless that was done."""
        if self._listed:
            return
        self._listed = True
        tables = [part.rows(self._choice, self._damage, columns) for part in self.parts]
        rows = FileTable.concat(tables)
        numbers = np.repeat(np.arange(len(tables)), list(map(len, tables)))
        order = np.argsort(rows.column, kind="stable")
        rows, numbers = rows.take(order), numbers[order]
        kept, again = np.ones(len(rows), np.bool_), rows.column[1:] == rows.column[:-1]
        beside = kept[1:] if self._first else kept[:-1]
        beside[again] = False
        if not kept.all():
            rows, numbers = rows.take(kept), numbers[kept]
        missing = self._choice.names and self._choice.names.difference(rows.names)
        for name in sorted(missing or ()):
            self._note(Note(name, "no source has a file of this name", True))
        if self._prefix:
            rows = rows.with_names([self._prefix + name for name in rows.names])
        self._keep(rows, numbers)

    def _keep(self, rows: FileTable, numbers: Int64) -> None:
        self.table, self._part = rows, numbers
        for i, part in enumerate(self.parts):
            part.chosen = np.sort(rows.pos[numbers == i])

    def _damage(self, error: CorruptError) -> None:
        self._note(Note(b"", str(error), True))

    def skip_equal(
        self,
        there: Reader,
        report: CopyReport,
        *,
        keep: bool,
        in_place: bool,
        changed: Callable[[str, bytes], None] | None,
    ) -> None:
        """Leave out files that the target has equally, or, with `keep`, at all, and count them.

        in_place  the target can change metadata: `update` changes those of files that it has
        changed   see `copy`
        cost      contents are compared of files of equal size
        """
        target = StoreSide(there, self._problem)
        olds = FileTable.concat(list(target.tables()))
        old, new = pairs(olds, self.table)
        left = np.ones(len(self.table), np.bool_)
        left[new] = False
        added, only = left.copy(), np.zeros(len(left), np.bool_)
        if not keep and len(new):
            side = _Side(self)
            comparison = Comparison(target, side, checksum=True, everything=True)
            both = self.table.take(new)
            changes = {one.name: one for one in comparison.changed(olds.take(old), both)}
            left[new] = np.fromiter(map(changes.__contains__, both.names), np.bool_, len(new))
            updated = [
                in_place and change.sign == "M" and {"content", "size"}.isdisjoint(change.what)
                for change in map(changes.get, both.names) if change is not None
            ]  # fmt: skip
            only[new[left[new]]] = updated
        if changed is not None:
            for name, is_new in zip(self.table.take(left).names, added[left].tolist(), strict=True):
                changed("+" if is_new else "M", name)
        report.unchanged = len(left) - int(left.sum())
        report.updated = int(only.sum())
        self._updates = list(self.by_part(self.table.take(only)))
        left &= ~only
        self._keep(self.table.take(left), self._part[left])

    def update(self, container: Container) -> None:
        """Give files of the target that have the content already the metadata of the source."""
        packer = Packer(container, PackReport(), self._note, None)
        for part, rows in self._updates:
            for name in rows.names:
                try:
                    row = metadata_row(part.container, name)
                    packer.change(row._replace(name=self._prefix + name))
                except (NoSuchFile, FormatError) as error:
                    self._note(Note(self._prefix + name, str(error), True))

    def _problem(self, line: str) -> None:
        self._note(Note(b"", line, True))

    def count(self, report: CopyReport) -> None:
        """Count the files as if they were copied."""
        self.list()
        if len(self.table):
            files = (self.table.kind & 255).astype(np.int64)
            report.count(files, int(self.table.size.sum()))

    def by_part(self, rows: FileTable) -> Iterator[tuple[Part, FileTable]]:
        """Yield the parts that have some files of the table, with these, under their old names."""
        number = self._part[np.searchsorted(self.table.column, rows.column)]
        for i in np.unique(number).tolist():
            some = rows.take(number == i)
            cut = len(self._prefix)
            yield self.parts[i], some.with_names([name[cut:] for name in some.names])

    @property
    def prefix(self) -> bytes:
        return self._prefix

    def in_order(self) -> Int64:
        """Return the rows of the table in the order of the source, int64[n]."""
        return np.lexsort((self.table.pos, self._part))

    def part_of(self, rows: Int64) -> Plan:
        """Return a plan of some rows of the table, ascending."""
        found = copy_object(self)
        found.parts = [replace(part) for part in self.parts]
        found._keep(self.table.take(rows), self._part[rows])
        return found

    def runs(self, *, by_time: bool) -> Iterator[tuple[Part, Int64]]:
        """Yield the parts with positions, in the order in which they are copied.

        by_time  in the order of the mtimes, for an append-only container
        """
        if not by_time or (len(self.parts) == 1 and self.parts[0].container.ao):
            for part in self.parts:
                positions = part.positions()
                if len(positions):
                    yield part, positions
            return
        self.list()
        order = np.lexsort((self.table.pos, self._part, self.table.mtime))
        number, pos = self._part[order], self.table.pos[order]
        cuts = np.flatnonzero((np.diff(number) != 0) | (np.diff(pos) < 0)) + 1
        for some in np.split(np.arange(len(pos)), cuts):
            if len(some):
                yield self.parts[number[some[0]]], pos[some]

    def run(
        self, target: Container, report: CopyReport, progress: Progress | None, *, sync: bool
    ) -> None:
        """Copy the files. sync: each SYNC_BYTES. Raises as `copy_entries`."""
        some = [part for part in self.parts if part.chosen is None or len(part.chosen)]
        beyond = [unused_fileid(part.container.store) for part in some]
        fileids, last, before = FileIds(target.store, beyond), None, target.stored_bytes
        target.follow_files()
        for part, positions in self.runs(by_time=target.ao):
            if last is not None and part is not last:
                fileids.next_source()
            last = part
            store = part.container.store

            def damage(pos: int, name: bytes | None, error: CorruptError) -> None:
                self._note(Note(self._prefix + name if name else b"", str(error), True))

            for at in range(0, len(positions), FILES_AT_ONCE):
                copy_entries(
                    store, positions[at : at + FILES_AT_ONCE], target, fileids, report,
                    on_damage=damage, prefix=self._prefix, progress=progress,
                )  # fmt: skip
                if sync and target.stored_bytes - before > SYNC_BYTES:
                    target.sync()
                    before = target.stored_bytes


class _Side:
    """The files of a plan as a side of a comparison: see `compare.Side`."""

    unit, attrs = 1, True

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.columns = frozenset(name for columns in plan.columns for name in columns)
        settings = [part.container.store.settings for part in plan.parts]
        self.unit = max((one.mtime_unit for one in settings), default=1)
        self.attrs = all(one.attrs for one in settings)

    def tables(self) -> Iterator[FileTable]:
        return iter([self._plan.table])

    def has_below(self, directory: bytes) -> bool:
        return self._plan.table.has_below(directory)

    def xattrs(self, rows: FileTable) -> dict[bytes, Xattrs]:
        return self._of(rows, StoreSide.xattrs)

    def digests(self, rows: FileTable) -> dict[bytes, bytes]:
        return self._of(rows, StoreSide.digests)

    def _of(
        self, rows: FileTable, ask: Callable[[StoreSide, FileTable], dict[bytes, T]]
    ) -> dict[bytes, T]:
        found: dict[bytes, T] = {}
        for part, some in self._plan.by_part(rows):
            side = StoreSide(part.container, self._plan._problem)
            values = ask(side, some)
            found |= {self._plan.prefix + name: value for name, value in values.items()}
        return found


# --- the target ---


class Target:
    """The container or data set that gets the files.

    there    whether it exists
    columns  those that it has
    """

    def __init__(self, path: str) -> None:
        self.dataset = is_dataset(path)
        self.base = path if self.dataset else base_of(path)
        if not self.dataset:
            kind, _ = kind_of(path)
            if kind.name != "container":
                raise Refusal(f"a {kind.name} is there, which takes no files of containers", path)
            refuse_far(self.base)
            if os.path.isdir(path):
                if os.path.lexists(self.base + DATA):
                    what = f"{path} is a folder, and a container: {path}{DATA} selects it"
                    raise ValueError(what)
                raise Refusal("is a directory: `unpack` writes to one", path)
        self.there = self.dataset or os.path.lexists(self.base + DATA)
        self.columns: dict[str, str] = {}
        self._last, self._attrs, self._ao, self._generation = None, True, False, 0
        if self.there:
            with self.reading() as found:
                self.columns = dict(found.columns)
                self._ao = found.ao
                if isinstance(found, Container):
                    self._attrs = found.store.settings.attrs
                    times = found.store.times
                    last = None if times is None else times.last
                    unit = found.store.settings.mtime_unit
                    self._last = None if last is None else last * unit
                else:
                    self._generation = found.generation

    def refuse(self, sources: Sequence[Source]) -> None:
        """Raise Refusal if it is one of the sources."""
        for source in sources:
            if os.path.realpath(source.path) == os.path.realpath(self.base):
                raise Refusal("is a source, too: files are not copied onto themselves", self.base)

    def holds_all(self, sources: Sequence[Source]) -> bool:
        """Return whether it holds any file of the sources, so that they need not be listed."""
        first = sources[0].newest
        if self.there or first is None:
            return not self.there
        self._attrs, self._ao = first.store.settings.attrs, first.ao
        stores = [part.container.store for source in sources for part in source.parts]
        return self._attrs or not any(store.settings.attrs for store in stores)

    @property
    def in_place(self) -> bool:
        """Return whether metadata of its files can be changed."""
        return not self.dataset and not self._ao

    @contextlib.contextmanager
    def reading(self) -> Iterator[Any]:
        opener: Any = open_dataset if self.dataset else open_container
        with contextlib.closing(opener(self.base)) as found:
            yield found

    def check(self, plan: Plan) -> None:
        """Raise Refusal for a file of a plan that it cannot hold."""
        rows = plan.table
        if not self._attrs and len(rows):
            _, _, _, ftypes, modes, uids, gids, _ = rows.stats((0, 0))
            odd = (modes != MODES[ftypes]) & ~np.isin(modes, USUAL_MODES)
            odd |= (uids != os.geteuid()) | (gids != os.getegid())
            if odd.any():
                what = "has a mode or an owner, which a container without ATTRS does not hold"
                raise Refusal(what, to_str(rows.name(int(np.argmax(odd)))))
        if self._last is not None and len(rows) and int(rows.mtime.min()) < self._last:
            name = to_str(rows.name(int(np.argmin(rows.mtime))))
            what = "is older than the last file of the container, which is append-only"
            raise NotAllowed(what, name)

    @contextlib.contextmanager
    def writing(self, first: Source, columns: Mapping[str, str]) -> Iterator[Container]:
        """Open the container that is written; what it has gets its name when the block ends."""
        if self.dataset:
            with begun(self.base) as transaction:
                with ShardWriter(transaction, "00000", ao=self._ao, columns=columns) as writer:
                    yield writer.container
                    record = writer.finish()
                transaction.commit([record], since=self._generation)
        elif self.there:
            with contextlib.closing(open_container(self.base, "a")) as container:
                try:
                    declare(container, columns)
                    yield container
                except Exception:
                    raise
                except BaseException:  # a signal: recovering the interrupted call would take long
                    container.abort()
                    raise
                container.save_catalog()
        else:
            with building(self.base, **like(first, columns)) as container:
                adopt_dictionary(container, first)
                yield container
                container.save_catalog()


def declare(container: Container, columns: Mapping[str, str]) -> None:
    """Declare those of the columns that a container does not have."""
    known = container.columns
    if missing := {name: kind for name, kind in columns.items() if name not in known}:
        container.add_columns(missing)


def like(first: Source, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of `create` for a container of the variant of a source."""
    found = first.newest
    if found is None:
        return {"columns": columns}
    settings = found.store.settings
    options: dict[str, Any] = {
        "ao": settings.ao, "classic": settings.classic, "timemp": settings.timemp,
        "htalgo": settings.htalgo, "isz": settings.isz, "havedups": settings.havedups,
        "columns": columns, "compress": word_of(found.store.frames.level) or None,
    }  # fmt: skip
    return options


def adopt_dictionary(container: Container, first: Source) -> None:
    """Compress contents with the dictionary of a source."""
    found = first.newest
    if found is not None and (made := found.store.frames.level) and container.changes.compressor:
        compression = found.store.frames.compression
        if compression.tried and made:
            container.change(container.changes.compress, compression)
