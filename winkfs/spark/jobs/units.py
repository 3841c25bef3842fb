"""Units: the input of `ingest`, divided into what one task reads.

The id of a unit is computed from path, size and mtime of each of its files, so that changed input
is a new unit; new messages of a queue are, too.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeVar

import xxhash

from winkformats.errors import FormatError
from winkfs.archive.parquet import partition_of
from winkfs.archive.webrecords import is_archive
from winkfs.errors import NoSuchFile, Refusal
from winkfs.names import to_bytes
from winkfs.registry import find_kind
from winkfs.samples.intake import folders_of, shards_in
from winkfs.samples.mds import ShardInfo
from winkfs.samples.webdataset import brace_list
from winkfs.stores.records import Arrivals, Records

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
        store = records_at(path) if kind in (None, "records") else None
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
    for chosen in groups(files, itemgetter(1), UNIT_BYTES, UNIT_FILES):
        names, size = tuple(name for name, _, _ in chosen), sum(size for _, size, _ in chosen)
        yield Unit(kind, root, size, _id(chosen, f"{kind} {root}"), names)


def groups(
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


def records_at(path: str) -> Records | None:
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
