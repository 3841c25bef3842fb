"""Job `ingest`: directories, tar, WARC and Parquet files, shards of WebDataset and MDS, stores of
records into a data set.

The input is divided into units. A unit is read by one task, and written as a shard. Its id is
computed from path, size and mtime of each of its files, so that changed input is a new unit; new
messages of a queue are, too. When the units of a round are complete, one commit publishes them and
records their ids (as streams of the manifest). So an interrupted run continues with the missing
units, and nothing is read twice.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import xxhash

from winkformats.disk.paths import absolute
from winkformats.errors import FormatError
from winkfs.archive.items import (
    MAX_RATIO,
    Item,
    ItemSource,
    Large,
    Note,
    Notes,
    Ratio,
    Readable,
    Unreadable,
)
from winkfs.archive.pack import Packer, PackReport
from winkfs.archive.parquet import ParquetColumns as ParquetColumns
from winkfs.archive.parquet import Table, partition_of
from winkfs.archive.tar import Tarball
from winkfs.archive.tree import Tree
from winkfs.archive.warc import Capture, Warc
from winkfs.archive.webrecords import is_archive
from winkfs.container.bulk import Row
from winkfs.container.ondisk.typed import (
    RECORD,
    USER,
    Schema,
    parse_schema,
    schema_text,
)
from winkfs.dataset.manifest import Log, is_dataset
from winkfs.dataset.records import ShardRecord, union
from winkfs.dataset.transaction import ShardWriter, Transaction, begun
from winkfs.entry import FileType
from winkfs.errors import NoSuchFile, Refusal
from winkfs.names import to_bytes, to_str
from winkfs.registry import find_kind
from winkfs.samples.intake import MdsSamples, WebSamples, folders_of, kinds_of, shards_in
from winkfs.samples.mds import ShardInfo
from winkfs.samples.webdataset import brace_list
from winkfs.spark.jobs.captures import carry, named_by_url, rename, settle
from winkfs.spark.jobs.reading import SEARCHED, language_of, title_of
from winkfs.spark.jobs.session import MAX_LISTED, Bad, Report, ignore, program
from winkfs.spark.jobs.tasks import attempt, guarded, on_units
from winkfs.stores.records import Arrivals, Records, batches
from winkfs.stores.records import Row as Record
from winkfs.units import NAMED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS: Final = ("tree", "tar", "warc", "parquet", "webdataset", "mds", "records")
SUFFIXES: Final = {
    "tar": (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"),
    "warc": (".warc", ".warc.gz", ".wet", ".wet.gz", ".arc", ".arc.gz"),
    "parquet": (".parquet",),
    "webdataset": (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"),
    "mds": (".mds", ".mds.zstd", ".mds.gz", ".mds.bz2", ".mds.br", ".mds.snappy"),
}
HIDDEN: Final = (".", "_")
UNIT_BYTES: Final = 128 << 20  # bytes of files of a directory in one unit
UNIT_FILES: Final = 20_000  # files of a directory in one unit
DOCUMENT: Final = {"title": "string", "lang": "string"}
COUNTS: Final = ("files", "bytes", "replaced", "bad", "left_out", "changed")
LOOKED_SHARDS: Final = 4  # of WebDataset, until one has columns
MAX_REASONS: Final = 100  # different reasons that are listed
OTHER: Final = "another reason"
MAX_NAME: Final = 100  # characters of a name in a message
ROUND_BYTES: Final = 8 << 30  # bytes of input in one commit, which an interrupted run may lose

Thing = TypeVar("Thing")
Listed = tuple[bytes, int, int]
"""Name from the root, size, mtime in ns."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Input of one task: a file, or a part of a directory or store.

    names    files below the directory `path`, or files with records of the store there
    ids      instead: records with ids [first, stop)
    columns  names and values common to all rows, from the folders of a Parquet file
    shard    of MDS, in the folder `path`; below: a directory for its files
    """

    kind: str
    path: str
    size: int
    id: str
    names: tuple[bytes, ...] = field(default=(), repr=False)
    ids: tuple[int, int] | None = None
    columns: tuple[tuple[str, str | None], ...] = ()
    shard: ShardInfo | None = field(default=None, repr=False)
    below: str = ""

    def rest(self, known: Iterable[str]) -> Unit | None:
        """Return the part of the unit that units with these ids do not cover; None: nothing."""
        if self.ids is None:
            return None if self.id in known else self
        name = self.id.rpartition("-")[0]
        done = [int(id.rpartition("-")[2]) for id in known if id.rpartition("-")[0] == name]
        first, stop = max([self.ids[0], *done]), self.ids[1]
        return replace(self, ids=(first, stop)) if first < stop else None


class TarOptions(NamedTuple):
    """Options of reading tar files: see `winkfs.archive.pack.pack`."""

    ignore_zeros: bool = False
    max_ratio: int = MAX_RATIO


def units(inputs: Sequence[str], kind: str | None, leave_out: str) -> list[Unit]:
    """Return the units of all inputs, in their order.

    kind        one of KINDS; None: detected. With a kind of file, a directory means all files of
                that kind below it
    leave_out   a directory to skip, if it is below an input
    raises      NoSuchFile; Refusal if there is nothing to read; OSError
    cost        walks directories
    """
    found: list[Unit] = []
    given = (each for path in inputs for each in _braces(path, kind))
    for path in map(os.path.abspath, given):
        if not os.path.exists(path):
            raise NoSuchFile("no such directory or file", path)
        store = _records_at(path) if kind in (None, "records") else None
        if store is not None:
            with store:
                found += _record_units(store)
        elif kind == "records":
            raise Refusal("no store of records", path)
        elif kind == "mds":
            found += _mds_units(path)
        elif os.path.isdir(path) and kind in (None, "tree"):
            without = os.fsencode(os.path.realpath(leave_out))
            files = _walk(os.fsencode(os.path.realpath(path)), b"", without)
            found += _joined("tree", path, files)  # in byte order
        elif os.path.isdir(path):
            for file in _files_of(path, str(kind)):
                columns = partition_of(os.path.relpath(file, path)) if kind == "parquet" else ()
                found.append(replace(_file_unit(file, str(kind)), columns=columns))
        else:
            found.append(_file_unit(path, kind or kind_of(path)))
    if not found:
        raise Refusal("nothing to ingest there", ", ".join(inputs))
    return found


def _braces(path: str, kind: str | None) -> list[str]:
    """Return the paths of a brace list of WebDataset. Raises Refusal."""
    if kind != "webdataset" or os.path.exists(path):
        return [path]
    try:
        return brace_list(path)
    except ValueError as error:
        raise Refusal(str(error)) from None


def _mds_units(path: str) -> Iterator[Unit]:
    """Yield the shards of a folder of MDS, or of those below it. Raises Refusal; OSError."""
    root = path if os.path.isdir(path) else os.path.dirname(path)
    try:
        for folder, below in folders_of(root):
            for shard in shards_in(folder):
                marks: list[tuple[object, ...]] = [(below, shard)]
                for name in filter(None, (shard.basename, shard.packed)):
                    with contextlib.suppress(OSError):  # the task that reads it reports it
                        status = os.stat(os.path.join(folder, name))
                        marks.append((name, status.st_size, status.st_mtime_ns))
                id = _id(marks, f"mds {folder}")
                yield Unit("mds", folder, shard.size, id, shard=shard, below=below)
    except FormatError as error:
        raise Refusal(str(error)) from None


def kind_of(path: str) -> str:
    """Return the kind of a file by its first bytes or, if these are not known, by its name."""
    with Path(path).open("rb") as file:
        start = file.read(16)
        if start.startswith(b"\x1f\x8b"):
            file.seek(0)
            with contextlib.suppress(OSError, EOFError, zlib.error):
                start = gzip.GzipFile(fileobj=file).read(16)
    if start.startswith(b"PAR1"):
        return "parquet"
    if is_archive(start):
        return "warc"
    named = (kind for kind, suffixes in SUFFIXES.items() if path.lower().endswith(suffixes))
    return next(named, "tar")


def _files_of(root: str, kind: str) -> list[str]:
    """Return the files of a kind below a directory, without names that begin with . or _, which
    Spark and Hive use for uncommitted files."""
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(HIDDEN)]
        found += [
            os.path.join(folder, name)
            for name in names
            if name.lower().endswith(SUFFIXES[kind]) and not name.startswith(HIDDEN)
        ]
    return sorted(found)


def _file_unit(path: str, kind: str) -> Unit:
    status = os.stat(path)
    return Unit(kind, path, status.st_size, _id([(path, status.st_size, status.st_mtime_ns)], kind))


def _joined(kind: str, root: str, files: Iterable[Listed]) -> Iterator[Unit]:
    """Yield units of several files below a directory, each large enough for a task."""
    for chosen in _groups(files, itemgetter(1), UNIT_BYTES, UNIT_FILES):
        names, size = tuple(name for name, _, _ in chosen), sum(size for _, size, _ in chosen)
        yield Unit(kind, root, size, _id(chosen, f"{kind} {root}"), names)


def _groups(
    things: Iterable[Thing], size_of: Callable[[Thing], int], limit: int, most: int = sys.maxsize
) -> Iterator[list[Thing]]:
    """Yield groups of at most `most` things, which end when their size reaches `limit`."""
    chosen: list[Thing] = []
    size = 0
    for thing in things:
        chosen.append(thing)
        size += size_of(thing)
        if size >= limit or len(chosen) >= most:
            yield chosen
            chosen, size = [], 0
    if chosen:
        yield chosen


def _records_at(path: str) -> Records | None:
    """Open the store of records at a path; None: there is none."""
    found = find_kind(path)
    if found is None or found[0].has("shards") or not found[0].has("open"):
        return None
    store = found[0].function("open", found[1])(found[1])
    if isinstance(store, Records):
        return store
    store.close()
    return None


def _record_units(store: Records) -> Iterator[Unit]:
    """Yield units of files with records, each large enough for a task.

    In a store with ascending ids each file is a unit, whose id ends with the id after its records.
    """
    if isinstance(store, Arrivals):
        for run in store.runs():
            name = _id([(run.file, run.mark)], f"records {store.base}")
            ids = run.first, run.stop
            yield Unit("records", store.base, run.size, f"{name}-{run.stop}", ids=ids)
        return
    files = (
        (os.fsencode(part.file), part.size, store.mtime_ns(part.file))
        for part in store.data_files()
    )
    yield from _joined("records", store.base, files)


def _walk(root: bytes, below: bytes, leave_out: bytes) -> Iterator[Listed]:
    """Yield everything below a directory, directories before their entries."""
    try:
        with os.scandir(os.path.join(root, below)) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except PermissionError:
        return  # the task that reads the directory reports it
    for entry in entries:
        name = below + entry.name
        if os.path.join(root, name) == leave_out:
            continue
        status = entry.stat(follow_symlinks=False)
        yield (
            name,
            status.st_size if entry.is_file(follow_symlinks=False) else 0,
            status.st_mtime_ns,
        )
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, name + b"/", leave_out)


def _id(parts: Iterable[tuple[object, ...]], what: str) -> str:
    state = xxhash.xxh3_128(to_bytes(what))
    for part in parts:
        state.update(repr(part).encode())
    return f"ingest-{state.hexdigest()}"


# --- reading ---


def source_of(
    unit: Unit, note: Notes, scratch: str, columns: ParquetColumns, tar: TarOptions, known: Schema
) -> ItemSource:
    """Open the files of a unit, for a data set with the columns `known`. Reading them raises
    FormatError, Refusal, OSError."""
    ratio = Ratio(tar.max_ratio)
    if unit.kind == "tree":
        return Tree(unit.path, note, scratch, names=unit.names)
    if unit.kind in ("tar", "webdataset"):
        plain = Tarball(unit.path, note, scratch, ignore_zeros=tar.ignore_zeros, ratio=ratio)
        return plain if unit.kind == "tar" else WebSamples(plain, note, known)
    if unit.shard is not None:
        return MdsSamples(unit.path, unit.shard, unit.below, note, scratch, columns, ratio, known)
    if unit.kind == "warc":
        return Warc(unit.path, note, ratio)
    if unit.kind == "records":
        return RecordFiles(unit, note)
    return Table(unit.path, note, columns, dict(unit.columns), known)


class RecordFiles:
    """Records of a unit, with their ids as names; damaged ones are reported."""

    def __init__(self, unit: Unit, note: Notes) -> None:
        self._unit, self._note = unit, note

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        """Yield the records. Raises NoSuchFile if the store is gone; FormatError, OSError."""
        store = _records_at(self._unit.path)
        if store is None:
            raise NoSuchFile("no such store", self._unit.path)
        with store:
            for rows in batches(self._found(store)):
                yield from self._rows(store, rows)

    def _found(self, store: Records) -> Iterator[Record]:
        unit = self._unit
        if unit.ids is not None and isinstance(store, Arrivals):
            where = os.fsencode(unit.path)
            yield from store.between(*unit.ids, lambda what: self._note(Note(where, what, True)))
            return
        files = set(map(os.fsdecode, unit.names))
        parts = [part for part in store.data_files() if part.file in files]
        if parts:
            yield from store.rows(*parts)

    def _rows(self, store: Records, rows: list[Record]) -> Iterator[Row]:
        for row, body in store.contents(rows):
            if isinstance(body, Exception):
                self._note(Note(row.id.encode(), str(body), True))
            else:
                yield Row(row.id.encode(), body, store.mtime_of(row))


class Documents:
    """The files of a source, with title and language (see `spark.jobs.reading`) in the columns of
    DOCUMENT, unless they have a value there already."""

    def __init__(self, source: ItemSource, note: Notes) -> None:
        self._source, self._note = source, note

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        with contextlib.closing(self._source.items(by_mtime=by_mtime)) as items:
            for item in items:
                if isinstance(item, Row) and item.ftype in (FileType.FILE, FileType.EXEC):
                    yield item._replace(xattrs=_described(item.data, item.xattrs))
                elif isinstance(item, Large) and not item.sparse:
                    try:
                        file = _Peeked(item.file)
                    except Unreadable as error:
                        item.file.close()
                        self._note(Note(item.name, str(error), True))
                        continue
                    meta = replace(item.meta, xattrs=_described(file.head, item.meta.xattrs))
                    yield replace(item, file=file, meta=meta)
                else:
                    yield item


class _Peeked:
    """A file without holes whose first SEARCHED bytes have been read, and are returned again."""

    def __init__(self, file: Readable) -> None:
        """Read the start of a file. Raises Unreadable, FormatError."""
        self._file, self.head = file, b""
        while len(self.head) < SEARCHED and (more := file.read(SEARCHED - len(self.head))):
            self.head += more
        self._rest = self.head

    def read(self, size: int = -1, /) -> bytes:
        if not self._rest:
            return self._file.read(size)
        size = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def skip_hole(self) -> int:
        return 0

    def rewind(self) -> bool:
        if not self._file.rewind():
            return False
        self._rest = b""
        return True

    def close(self) -> None:
        self._file.close()


def _described(data: bytes, known: Mapping[bytes, bytes] | None) -> Mapping[bytes, bytes] | None:
    """Return the extended attributes of a file, with those of its title and language."""
    known, view, stop = known or {}, memoryview(data), min(len(data), SEARCHED)
    try:
        schema = parse_schema(known.get(RECORD, b""))
    except ValueError:  # an attribute of other software
        return known
    taken = {name.lower() for name, kind in schema.items() if (name, kind) not in DOCUMENT.items()}
    texts = {"title": title_of(view, 0, stop), "lang": language_of(view, 0, stop)}
    found = {
        USER + name.encode(): word for name, word in texts.items() if word and name not in taken
    }
    if not found:
        return known
    new = {name: kind for name, kind in DOCUMENT.items() if name not in taken}
    return found | dict(known) | {RECORD: schema_text(schema | new)}


class Reason(NamedTuple):
    """Reason why files were left out, or stored differently: their number, the first names."""

    number: int
    first: list[str]
    kept: bool


@dataclass(slots=True)
class Done:
    """Result of a task for a unit; called with a note on each file that is not packed unchanged.

    fail_fast  the first bad record is an error
    record     the new shard; None: it has no files
    """

    where: str = ""
    fail_fast: bool = False
    record: ShardRecord | None = None
    files: int = 0
    bytes: int = 0
    left_out: int = 0
    changed: int = 0
    bad: int = 0
    replaced: int = 0
    listed: list[Bad] = field(default_factory=list)
    reasons: dict[str, Reason] = field(default_factory=dict)
    captures: list[Capture] = field(default_factory=list)

    def __call__(self, note: Note) -> None:
        name = to_str(note.name) or self.where
        if not note.failed:
            self.changed += note.kept
            self.left_out += not note.kept
            _add_reasons(self.reasons, {note.what: Reason(1, [name], note.kept)})
            return
        if self.fail_fast:
            raise Refusal(note.what if name == self.where else f"{name}: {note.what}", self.where)
        self.bad += 1
        if len(self.listed) < MAX_LISTED:
            self.listed.append(Bad(self.where, name, note.what))


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    target: str,
    *,
    kind: str | None = None,
    columns: ParquetColumns | None = None,
    html: bool = False,
    again: bool = False,
    fail_fast: bool = False,
    tar: TarOptions | None = None,
    round_bytes: int = ROUND_BYTES,
    bad: Report = ignore,
    latest: bool = False,
) -> dict[str, Any]:
    """Read all inputs into the data set `target`, which is created if it is missing.

    inputs       directories and files that all workers can read. Names are relative to a directory
                 or as in an archive; for web documents see `winkfs.archive.webnames`. If
                 names are equal, the last input counts
    kind         one of KINDS; None: detected for each, but never webdataset and mds, which are read
                 as tar and tree
    html         add the columns `title` and `lang`, from the document itself
    again        also read units that the data set has recorded as read
    fail_fast    the first bad record is an error, and its round is not committed
    bad          called with each bad record
    latest       keep only the newest capture of each URL
    ->           files, bytes, replaced (web documents that occur twice, or have newer captures),
                 bad, left_out (devices, HTTP errors ..), changed (times or values stored
                 differently), reasons (of these two: {"what": count}), lines (messages),
                 skipped (units read before), units, generation, seconds
    raises       Refusal, OSError; errors of Spark. Committed rounds are kept
    """
    start, target = time.monotonic(), absolute(target)
    work = units(inputs, kind, leave_out=target)
    known = Log(target).latest().streams if is_dataset(target) and not again else {}
    todo = [rest for unit in work if (rest := unit.rest(known)) is not None]
    total: dict[str, Any] = {"job": "ingest", "output": target}
    total |= dict.fromkeys((*COUNTS, "units"), 0)
    reasons: dict[str, Reason] = {}
    total["skipped"] = len(work) - len(todo)
    for part in _groups(todo, attrgetter("size"), round_bytes):
        with begun(target) as transaction:
            with guarded(spark, f"ingest {len(part)} units"):
                have = union(record.schema for record in Log(target).latest().shards)
                task = Task(
                    transaction,
                    columns or ParquetColumns(),
                    html,
                    fail_fast,
                    tar or TarOptions(),
                    _with_columns(have, todo, transaction.scratch),
                )
                found = on_units(spark, part, task)
            found, more = _settled(transaction, found, latest=latest)
            _commit(transaction, part, found, more, again)
        for done in found:
            for record in done.listed:
                bad(record)
            for name in COUNTS:
                total[name] += getattr(done, name)
            _add_reasons(reasons, done.reasons)
        total["units"] += len(part)
    total["reasons"] = {what: reason.number for what, reason in reasons.items()}
    total["lines"] = [*_hints(todo, target), *_lines(reasons)]
    total["generation"] = Log(target).newest() if is_dataset(target) else 0
    return total | {"seconds": round(time.monotonic() - start, 3)}


def _with_columns(known: Schema, work: list[Unit], scratch: str) -> Schema:
    """Return the columns of the target and, of WebDataset, those of the first shard that has any,
    so that all tasks have the same."""
    shards = (unit for unit in work if unit.kind == "webdataset")
    for unit in islice(shards, LOOKED_SHARDS):
        found = kinds_of(Tarball(unit.path, lambda note: None, scratch), known)
        if found != known:
            return found
    return known


def _add_reasons(total: dict[str, Reason], more: dict[str, Reason]) -> None:
    for what, reason in more.items():
        key = what if what in total or len(total) < MAX_REASONS else OTHER
        number, first, kept = total.get(key, Reason(0, [], reason.kept))
        total[key] = Reason(number + reason.number, (first + reason.first)[:NAMED], kept)


def _lines(reasons: dict[str, Reason]) -> Iterator[str]:
    """Yield a line for each reason, the most frequent first."""
    for what, reason in sorted(reasons.items(), key=lambda item: -item[1].number):
        names = ", ".join(
            name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..." for name in reason.first
        )
        more = ", .." if reason.number > len(reason.first) else ""
        verb = "stored, but" if reason.kept else "left out:"
        yield f"{reason.number:,} {verb} {what} ({names}{more})"


def _hints(work: list[Unit], target: str) -> Iterator[str]:
    """Yield a line for each directory read as a tree that has Parquet or WARC files, and one for a
    data set with documents named in two ways."""
    if any(unit.kind == "warc" for unit in work) and named_by_url(target):
        yield (f"{target}: it has documents named by their URLs, of an earlier version, which stay "
               "as they are: the new ones are named host/path, also captures of those")  # fmt: skip
    for kind in ("parquet", "warc", "mds"):
        counts: dict[str, int] = {}
        for unit in work:
            if unit.kind == "tree":
                ends = tuple(map(str.encode, SUFFIXES[kind]))
                there = sum(name.lower().endswith(ends) for name in unit.names)
                counts[unit.path] = counts.get(unit.path, 0) + there
        for path, count in counts.items():
            if count:
                what = {"parquet": "Parquet", "warc": "WARC", "mds": "MDS"}[kind]
                yield (f"{path}: {what} files in it, {count:,}, are stored as they are: "
                       f"--kind {kind} reads what is in them")  # fmt: skip


def _settled(
    transaction: Transaction, found: list[Done], *, latest: bool
) -> tuple[list[Done], list[ShardRecord]]:
    """Rename the captures of web documents -> the results of the tasks afterwards; more shards."""
    if not any(done.captures for done in found):
        return found, []
    captures = [done.captures for done in found]
    todo = settle(transaction.root, transaction.base_generation, captures, latest=latest)
    changed: list[Done] = [Done(replaced=todo.hidden)]
    for unit, done in enumerate(found):
        record, dropped, size = done.record, 0, 0
        if record is not None:
            record, dropped, size = rename(transaction, record, todo.moves.get(unit, {}))
        changed.append(replace(
            done, record=record, files=done.files - dropped, bytes=done.bytes - size,
            replaced=done.replaced + dropped,
        ))  # fmt: skip
    carried = carry(transaction, todo)
    return changed, [carried] if carried else []


def _commit(
    transaction: Transaction,
    part: list[Unit],
    found: list[Done],
    more: list[ShardRecord],
    again: bool,
) -> None:
    known = Log(transaction.root).latest().streams
    streams = {unit.id: known[unit.id][0] + 1 if unit.id in known and again else 0 for unit in part}
    records = more + [done.record for done in found if done.record is not None]
    metrics = {"job": "ingest", "units": len(part), "bad": sum(done.bad for done in found)}
    # The names of captures depend on the files of this generation.
    since = transaction.base_generation if any(done.captures for done in found) else None
    transaction.commit(records, streams=streams, metrics=metrics, since=since)


@dataclass(frozen=True, slots=True)
class Task:
    """The work of a task, called with a unit in a worker."""

    transaction: Transaction
    columns: ParquetColumns
    html: bool
    fail_fast: bool
    tar: TarOptions
    known: Schema

    def __call__(self, unit: Unit) -> Done:
        done, report = Done(unit.path, self.fail_fast), PackReport()
        with ShardWriter(self.transaction, "{:05d}-{}".format(*attempt())) as writer:
            source = source_of(
                unit, done, self.transaction.scratch, self.columns, self.tar, self.known
            )
            warc = source if isinstance(source, Warc) else None
            if self.html:
                source = Documents(source, done)
            try:
                ratio = Ratio(self.tar.max_ratio)
                Packer(writer.container, report, done, None, ratio).run(source)
            except FormatError as error:  # files before the damage are in the container
                what = str(error).removeprefix(f"{unit.path}: ")
                done(Note(to_bytes(unit.path), what, True))
            done.record = None if writer.empty else writer.finish()
        if warc is not None:
            done.replaced, done.captures = warc.again, warc.captures
        done.files, done.bytes = report.files + report.directories + report.links, report.bytes
        return done


if __name__ == "__main__":
    program("ingest")
