"""What `ingest` takes: directories, tar, WARC and Parquet files, cut into units of work.

A unit is what one task reads and, with its shards, what is committed as a whole. Its id says what
was read (path, size and mtime of each file): an input that changes is another one.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import xxhash

from winkformats.errors import FormatError
from winkfs.archive.items import Item, Note, Notes, Source
from winkfs.archive.tar import Tarball
from winkfs.archive.tree import Tree
from winkfs.archive.warc import Warc
from winkfs.container.bulkput import Row
from winkfs.container.ondisk.inode import FileType
from winkfs.errors import NoSuchFile, WinkError

if TYPE_CHECKING:
    import pyarrow as pa

KINDS: Final = ("tree", "tar", "warc", "parquet")
SUFFIXES: Final = {
    "tar": (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"),
    "warc": (".warc", ".warc.gz"),
    "parquet": (".parquet",),
}
UNIT: Final = 128 << 20  # bytes of files of a directory in one unit
FILES: Final = 20_000  # of a directory in one unit
BATCH: Final = 1024  # rows of a Parquet file read at a time


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of work. names: files below the directory `path`; else the whole file."""

    kind: str
    path: str
    size: int
    id: str
    names: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ParquetColumns:
    """Which columns of a Parquet file are what. mtime: a timestamp; "": there is none."""

    path: str = "path"
    content: str = "content"
    mtime: str = "mtime"


def units(inputs: Sequence[str], kind: str | None, leave_out: str) -> list[Unit]:
    """The work of all inputs, in their order.

    kind        one of KINDS, or None: found out; with a kind other than tree, a directory stands
                for the files of that kind below it
    leave_out   a directory that is not looked into, should it lie below an input
    raises  NoSuchFile; WinkError where nothing is to be read; OSError
    cost    a directory is walked: 5 us a file
    """
    found: list[Unit] = []
    for path in map(os.path.abspath, inputs):
        if not os.path.exists(path):
            raise NoSuchFile("no such directory or file", path)
        if os.path.isdir(path) and kind in (None, "tree"):
            found += _tree_units(path, os.fsencode(os.path.realpath(leave_out)))
        elif os.path.isdir(path):
            found += [_file_unit(file, str(kind)) for file in _files_of(path, str(kind))]
        else:
            found.append(_file_unit(path, kind or kind_of(path)))
    if not found:
        raise WinkError("nothing to ingest there", ", ".join(inputs))
    return found


def kind_of(path: str) -> str:
    """Of a file, by its first bytes."""
    with Path(path).open("rb") as file:
        start = file.read(8)
        if start.startswith(b"\x1f\x8b"):
            file.seek(0)
            with contextlib.suppress(OSError, EOFError, zlib.error):
                start = gzip.GzipFile(fileobj=file).read(8)
    if start.startswith(b"PAR1"):
        return "parquet"
    return "warc" if start.startswith(b"WARC/") else "tar"


def _files_of(root: str, kind: str) -> list[str]:
    return sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(root)
        for name in names
        if name.lower().endswith(SUFFIXES[kind]) and not name.startswith((".", "_"))
    )


def _file_unit(path: str, kind: str) -> Unit:
    status = os.stat(path)
    return Unit(kind, path, status.st_size, _id([(path, status.st_size, status.st_mtime_ns)], kind))


def _tree_units(root: str, leave_out: bytes) -> Iterator[Unit]:
    """The names below a directory in byte order, so many together that a task has enough to do."""
    chosen: list[tuple[bytes, int, int]] = []
    size = 0
    for name, length, mtime in _walk(os.fsencode(os.path.realpath(root)), b"", leave_out):
        chosen.append((name, length, mtime))
        size += length
        if size >= UNIT or len(chosen) >= FILES:
            yield _tree_unit(root, chosen, size)
            chosen, size = [], 0
    if chosen:
        yield _tree_unit(root, chosen, size)


def _tree_unit(root: str, chosen: list[tuple[bytes, int, int]], size: int) -> Unit:
    names = tuple(name for name, _, _ in chosen)
    return Unit("tree", root, size, _id(chosen, f"tree {root}"), names)


def _walk(root: bytes, below: bytes, leave_out: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(name from the root, size, mtime in ns) of everything, directories before what is in them."""
    try:
        with os.scandir(os.path.join(root, below)) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except PermissionError:
        return  # the task that reads the directory itself says so
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
    state = xxhash.xxh3_128(what.encode("utf-8", "surrogateescape"))
    for part in parts:
        state.update(repr(part).encode())
    return f"ingest-{state.hexdigest()}"


# --- reading ---


def source_of(unit: Unit, note: Notes, scratch: str, columns: ParquetColumns) -> Source:
    """The files of a unit. Raises as they are read: FormatError, WinkError, OSError."""
    if unit.kind == "tree":
        return Tree(unit.path, note, scratch, names=unit.names)
    if unit.kind == "tar":
        return Tarball(unit.path, note, scratch, exclude=None)
    if unit.kind == "warc":
        return Warc(unit.path, note)
    return Table(unit.path, note, columns)


class Table:
    """The rows of a Parquet file; those without a path or content are noted."""

    def __init__(self, path: str, note: Notes, columns: ParquetColumns) -> None:
        self._path, self._note, self._columns = path, note, columns

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        """Raises FormatError for no Parquet file; WinkError for missing columns."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self._path) as file:
                wanted = self._wanted(file.schema_arrow)
                for batch in file.iter_batches(BATCH, columns=wanted):
                    yield from self._rows(batch)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            line = str(error).splitlines()[0]
            raise FormatError(f"{self._path}: not a whole Parquet file: {line}") from None

    def _wanted(self, schema: pa.Schema) -> list[str]:
        columns = self._columns
        missing = {columns.path, columns.content} - set(schema.names)
        if missing:
            what = f"has no column {min(missing)!r}; its columns are {', '.join(schema.names)}"
            raise WinkError(f"{what}: name the right ones", self._path)
        return [n for n in (columns.path, columns.content, columns.mtime) if n in schema.names]

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        import pyarrow as pa

        names = batch.column(self._columns.path).cast(pa.binary()).to_pylist()
        contents = batch.column(self._columns.content).cast(pa.binary()).to_pylist()
        times: list[Any] = [None] * len(names)
        if self._columns.mtime in batch.schema.names:
            stamps = batch.column(self._columns.mtime).cast(pa.timestamp("ns", "UTC"))
            times = stamps.cast(pa.int64()).to_pylist()
        for name, content, mtime in zip(names, contents, times, strict=True):
            if name and content is not None:
                yield Row(name, content, mtime, FileType.FILE, None, None, None)
            else:
                what = "a row without content" if name else "a row without a path"
                self._note(Note(name or self._path.encode(), what, True))
