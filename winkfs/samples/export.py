"""Export: the files of a store as WebDataset, MDS or Parquet, for loaders of other tools.

Files are read in batches of Arrow, and written shard by shard under temporary names; all shards
take their names at the end. So an export that fails, is interrupted or killed leaves nothing under
these names.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from winkformats.disk.paths import is_directory
from winkformats.disk.schemes import is_far
from winkfs.archive.archivewriter import NewFile
from winkfs.archive.items import Note, Notes
from winkfs.container.container import Container
from winkfs.dataset.reading import DatasetReading
from winkfs.errors import IsDirectory, NotDirectory, Refusal, held_back
from winkfs.names import Name, to_path
from winkfs.reader import BATCH_BYTES, Reader, need_arrow
from winkfs.registry import AsOf, open_silently
from winkfs.samples import mds, webdataset
from winkfs.samples.outputs import BUFFER, Outputs
from winkfs.units import NANO, as_int

if TYPE_CHECKING:
    import pyarrow as pa

    from winkfs.units import Time

FORMATS: Final = ("webdataset", "mds", "parquet")
SHARD_BYTES: Final = {"webdataset": 1 << 30, "mds": 64 << 20, "parquet": 1 << 30}
ROW_GROUP_BYTES: Final = 64 << 20
BY: Final = ("stem", "file")
ALSO: Final = ("size", "mtime", "mtime_ns", "ftype", "mode")  # columns of every file
NUMBER: Final = re.compile(r"%(?:0?(\d+))?d")
MDS_KINDS: Final = {"string": "str", "int64": "int", "float64": "float64", "binary": "bytes",
                    "bool": "uint8"}  # fmt: skip
NULLS: Final[dict[str, Any]] = {"str": "", "int": 0, "float64": float("nan"), "bytes": b"",
                                "uint8": 0, "str_decimal": "NaN", "json": None}  # fmt: skip
FORMS: Final = {"int": "<q", "float64": "<d", "uint8": "<B"}
NO_KEY: Final = "no reader of WebDataset would find it, for its name: left out, --by file takes it"
TWICE: Final = "its sample has another file of that extension: left out, --by file takes it"
DIFFERS: Final = "its column {} has another value than another file of its sample: left out there"
NO_NULL: Final = "column {}: MDS has no null, so it is {!r}"


@dataclass(slots=True)
class ExportReport:
    """Result of an export.

    files    of the store that were written
    samples  of those, for a loader; WebDataset: files of one stem are one
    bytes    of their contents
    shards   paths of the files that were written, without the index
    failed   files that are damaged, or that the format cannot hold
    """

    files: int = 0
    samples: int = 0
    bytes: int = 0
    shards: list[str] = field(default_factory=list)
    failed: int = 0


@dataclass(frozen=True, slots=True)
class _Limits:
    """When a shard ends: bytes, samples. group: bytes of a row group."""

    size: int
    count: int
    group: int


Progress = Callable[[int], None]


def export(
    path: str | os.PathLike[str],
    *,
    webdataset: str | os.PathLike[str] | None = None,
    mds: str | os.PathLike[str] | None = None,
    parquet: str | os.PathLike[str] | None = None,
    by: str = "stem",
    maxsize: int | None = None,
    maxcount: int | None = None,
    row_group: int = ROW_GROUP_BYTES,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    prefix: Name = "",
    since: Time | None = None,
    until: Time | None = None,
    as_of: AsOf | None = None,
    force: bool = False,
    note: Notes | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the files of a store for loaders of other tools -> the report.

    webdataset  pattern of tar files, such as out/part-%06d.tar; .tar.gz compresses them, and
                without %d there is one file
    mds         a folder for MosaicML Streaming: columns path, content, and those of the files
    parquet     a file, or, without a suffix, a folder of files: path, size, mtime, columns, content
    by          of webdataset, "stem": files of one stem are a sample, in order of names; "file":
                each is one, in the order of the disk, with a number as its key
    maxsize     bytes of a shard, about; None: 1 GiB, of MDS 64 MiB
    maxcount    samples of a shard; None: any number
    row_group   bytes of a row group of Parquet, about
    columns     columns to write beside path and content; None: all those of the user
    where, prefix, since, until  see `Reader.to_batches`; as_of: see `winkfs.open`
    force       replace an export that is there
    note        called with each file that is not written, or not as it is
    progress    called with the number of files since the last call
    raises      ValueError; FileExistsError; FileNotFoundError; Refusal without pyarrow; OSError;
                what opening the store raises. Then nothing is left
    cost        memory: a few batches; of MDS a shard
    """
    chosen = {"webdataset": webdataset, "mds": mds, "parquet": parquet}
    given = [name for name in FORMATS if chosen[name] is not None]
    if len(given) != 1:
        raise ValueError("export takes one of webdataset, mds and parquet")
    name, out = given[0], os.fspath(chosen[given[0]] or "")
    limits = _limits(name, maxsize, maxcount, row_group)
    if by not in BY:
        raise ValueError(f"by is 'stem' or 'file', not {by!r}")
    numbered = NUMBER.search(out) if name == "webdataset" else not Path(out).suffix
    if name != "mds" and not numbered and (maxsize is not None or maxcount is not None):
        raise ValueError(f"{out}: one file has no maxsize or maxcount: name several, see the docs")
    need_arrow()
    report, count = ExportReport(), progress or (lambda done: None)

    def noted(what: Note) -> None:
        report.failed += what.failed
        if note:
            note(what)

    outputs = _outputs(name, out, limits, force=force)
    with open_silently(path, as_of=as_of) as reader:
        options: dict[str, Any] = {
            "where": where, "prefix": prefix, "since": since, "until": until,
            "batch_bytes": BATCH_BYTES,
            "problem": lambda line: noted(Note(b"", line, True)),
        }  # fmt: skip
        sink = _sink(name, out, by, reader, columns, outputs, limits, noted)
        try:
            found = reader.to_batches(sink.read, order=sink.order, **options)
            sink.schema = found.schema
            for batch in found:
                sink.put(batch, report)
                count(batch.num_rows)
            sink.end(report)
            with held_back():  # all names, or none
                outputs.publish()
        finally:
            with held_back():
                outputs.abort()
    return report


def _limits(name: str, maxsize: int | None, maxcount: int | None, group: int) -> _Limits:
    most = mds.MOST_BYTES if name == "mds" else 1 << 62
    size = SHARD_BYTES[name] if maxsize is None else as_int(maxsize, "maxsize", 1, most)
    count = 1 << 62 if maxcount is None else as_int(maxcount, "maxcount", 1)
    return _Limits(size, count, as_int(group, "row_group", 1))


def _outputs(name: str, out: str, limits: _Limits, *, force: bool) -> Outputs:
    """Return the files to be written. Raises ValueError; Refusal; FileExists."""
    if not out or "\0" in out:
        raise ValueError(f"{name}: {'a path has no NUL' if out else 'no path to write to'}")
    if is_far(out):
        raise Refusal("has to be a path of a file system: export there, and copy it", out)
    if name == "webdataset":
        return _tars(out, limits, force=force)
    if name == "parquet" and Path(out).suffix:
        folder, _, last = out.rpartition("/")
        if is_directory(out):
            raise IsDirectory("is a folder: a name without a suffix makes files in it", out)
        _check_folder(folder)
        return Outputs(folder or ("/" if out[:1] == "/" else ""), last.__eq__, None, force=force)
    _check_folder(out)
    if name == "parquet":
        return Outputs(out, re.compile(r"part-\d+\.parquet").fullmatch, None, force=force)
    mine = re.compile(r"index\.json|shard\.\d+\.mds").fullmatch
    return Outputs(out, mine, mds.INDEX, force=force)


def _check_folder(folder: str) -> None:
    at = folder or "."
    if os.path.lexists(at) and not is_directory(at):
        raise NotDirectory("a file is there, where a folder has to be", at)


def _tars(pattern: str, limits: _Limits, *, force: bool) -> Outputs:
    folder, _, last = pattern.rpartition("/")
    folder = folder or ("/" if pattern[:1] == "/" else "")
    if not last.endswith((".tar", ".tar.gz", ".tgz")):
        raise ValueError(f"{pattern}: a pattern of WebDataset ends with .tar, .tar.gz or .tgz")
    if NUMBER.search(folder) or len(NUMBER.findall(last)) > 1 or "%" in NUMBER.sub("", last):
        raise ValueError(f"{pattern}: a pattern has one %06d, in its last part")
    _check_folder(folder)
    numbers = NUMBER.search(last)
    if numbers is None:
        return Outputs(folder, last.__eq__, None, force=force)
    before, after = re.escape(last[: numbers.start()]), re.escape(last[numbers.end() :])
    return Outputs(folder, re.compile(rf"{before}\d+{after}").fullmatch, None, force=force)


def _columns_of(reader: Reader, columns: Sequence[str] | None) -> dict[str, str]:
    """Return the columns to write and their types. Raises ValueError."""
    known = reader.columns
    if columns is None:
        return dict(known)
    if isinstance(columns, str | bytes):
        raise TypeError("columns is a list of names")
    for name in columns:
        if name not in known and name not in ALSO:
            there = ", ".join((*known, *ALSO))
            raise ValueError(f"{reader.base}: there is no column {name!r}: there are {there}")
    own = {"mtime": "timestamp"}
    return {name: known.get(name) or own.get(name, "int64") for name in dict.fromkeys(columns)}


def _sink(
    name: str, out: str, by: str, reader: Reader, columns: Sequence[str] | None,
    outputs: Outputs, limits: _Limits, note: Notes,
) -> _Tars | _Mds | _Parquet:  # fmt: skip
    typed = _columns_of(reader, columns)
    if name == "webdataset":
        found = _Tars(os.path.basename(out), by, typed, outputs, limits, note)
        if not isinstance(reader, Container | DatasetReading):  # records have no order of names
            found.order = None
        return found
    if name == "mds":
        return _Mds(typed, outputs, limits, note)
    if columns is None:
        typed = {"size": "int64", "mtime": "timestamp", **typed}
    single = os.path.basename(out) if Path(out).suffix else None
    return _Parquet(single, typed, outputs, limits)


@dataclass(slots=True)
class _File:
    """A file that waits for the others of its sample."""

    name: bytes
    extension: bytes
    data: Any
    mtime: int
    values: dict[str, Any]


class _Tars:
    """Writes shards of WebDataset."""

    schema: Any = None

    def __init__(
        self, pattern: str, by: str, typed: dict[str, str], outputs: Outputs, limits: _Limits,
        note: Notes,
    ) -> None:  # fmt: skip
        self._pattern, self._stem, self._outputs, self._note = pattern, by == "stem", outputs, note
        self._limits, self._typed = limits, tuple(typed)
        self.order: Any = "name" if self._stem else None
        need = ("name_raw", "mtime_ns")
        self.read = [*need, *(name for name in typed if name not in need), "content"]
        self._key: bytes | None = None
        self._sample: list[_File] = []
        self._number = self._count = self._size = 0
        self._file: NewFile | None = None
        self._out: Any = None

    def put(self, batch: pa.RecordBatch, report: ExportReport) -> None:
        names, times = (batch.column(name).to_pylist() for name in ("name_raw", "mtime_ns"))
        values = {name: batch.column(name).to_pylist() for name in self._typed}
        contents = batch.column("content")
        for row, name in enumerate(names):
            mine = {column: found[row] for column, found in values.items()}
            data = memoryview(contents[row].as_buffer())
            self._add(name, data, times[row] // NANO, mine, report)
        if self._sample:  # the batch is released
            for file in self._sample:
                file.data = bytes(file.data)

    def _add(
        self, name: bytes, data: Any, mtime: int, values: dict[str, Any], report: ExportReport
    ) -> None:
        if not self._stem:
            extension = webdataset.extension_of(name)
            values = {webdataset.PATH: to_path(name), **values}
            self._sample = [_File(name, extension, data, mtime, values)]
            self._key = b"%09d" % report.samples
            self._write(report)
            return
        found = webdataset.sample_of(name)
        if found is None:
            self._note(Note(name, NO_KEY, True))
            return
        key, extension = found
        if key != self._key:
            self._write(report)
            self._key = key
        if any(file.extension.lower() == extension.lower() for file in self._sample):
            self._note(Note(name, TWICE, True))
            return
        self._sample.append(_File(name, extension, data, mtime, values))

    def _write(self, report: ExportReport) -> None:
        """Write the sample that waits."""
        sample, self._sample = self._sample, []
        if not sample or self._key is None:
            return
        size = sum(len(file.data) + 2 * webdataset.BLOCK for file in sample)
        full = self._size + size > self._limits.size or self._count >= self._limits.count
        if self._count and full and self._next_name(self._number) != self._next_name(0):
            self._close()
        if self._out is None:
            self._begin(report)
        self._size += size
        self._count += 1
        for file in sample:
            self._member(self._key + b"." + file.extension, file.data, file.mtime)
            report.bytes += len(file.data)
        if sample[0].values:
            there = any(file.extension.lower() == webdataset.COLUMNS for file in sample)
            extension = webdataset.COLUMNS_TOO if there else webdataset.COLUMNS
            text = webdataset.columns_text(self._merged(sample))
            self._member(self._key + b"." + extension, text, max(file.mtime for file in sample))
        report.files += len(sample)
        report.samples += 1

    def _merged(self, sample: list[_File]) -> dict[str, Any]:
        """Return the values of the columns of a sample, from the first file that has each."""
        found = dict(sample[0].values)
        for file in sample[1:]:
            for name, value in file.values.items():
                if found[name] is None:
                    found[name] = value
                elif value is not None and value != found[name]:
                    self._note(Note(file.name, DIFFERS.format(name), True, often=3))
        return found

    def _member(self, name: bytes, data: Any, mtime: int) -> None:
        self._out.write(webdataset.member(name, len(data), mtime))
        self._out.write(data)
        self._out.write(webdataset.padding(len(data)))

    def _next_name(self, number: int) -> str:
        return NUMBER.sub(lambda found: found[0] % number, self._pattern)

    def _begin(self, report: ExportReport) -> None:
        name = self._next_name(self._number)
        self._number += 1
        self._file = self._outputs.create(name)
        self._out = io.BufferedWriter(self._file, BUFFER)
        if name.endswith("gz"):
            self._out = gzip.GzipFile("", "wb", 6, self._out, mtime=0)
        report.shards.append(os.path.join(self._outputs.folder, name))

    def _close(self) -> None:
        out, file = self._out, self._file
        if out is None or file is None:
            return
        out.write(webdataset.END)
        if isinstance(out, gzip.GzipFile):
            plain: Any = out.fileobj
            out.close()
            out = plain
        out.flush()
        self._outputs.finish(file)
        self._out, self._size, self._count = None, 0, 0

    def end(self, report: ExportReport) -> None:
        self._write(report)
        if not self._number:
            self._begin(report)
        self._close()


class _Mds:
    """Writes shards of MDS and their index."""

    order: Any = None
    schema: Any = None

    def __init__(
        self, typed: dict[str, str], outputs: Outputs, limits: _Limits, note: Notes
    ) -> None:
        self._outputs, self._limits, self._note, self._typed = outputs, limits, note, typed
        codes = {name: _encoding(kind) for name, kind in typed.items()}
        codes |= {"path": "str", "content": "bytes"}
        self._columns = [mds.Column(name, codes[name], _width(codes[name]))
                         for name in sorted(codes)]  # fmt: skip
        self.read = ["path", *typed, "content"]
        config = mds.config_of(self._columns, limits.size)
        self._config = json.dumps(config, sort_keys=True).encode()
        self._samples: list[list[Any]] = []
        self._sizes: list[int] = []
        self._bytes = 0
        self._records: list[dict[str, Any]] = []

    def put(self, batch: pa.RecordBatch, report: ExportReport) -> None:
        encoded: list[list[Any]] = []
        names = [name.encode() for name in batch.column("path").to_pylist()]
        for column in self._columns:
            if column.name == "content":
                contents = batch.column("content")
                encoded.append([memoryview(value.as_buffer()) for value in contents])
            elif column.name == "path":
                encoded.append(names)
            else:
                encoded.append(self._encoded(column, batch.column(column.name), names))
        free = [number for number, column in enumerate(self._columns) if not column.size]
        for row, values in enumerate(zip(*encoded, strict=True)):
            head = b"".join(len(values[number]).to_bytes(4, "little") for number in free)
            size = len(head) + sum(map(len, values))
            room = self._limits.size - 4 * (len(self._sizes) + 3) - len(self._config)
            full = self._bytes + size > room or len(self._sizes) >= self._limits.count
            if self._sizes and full:
                self._close(report)
            self._samples.append([head, *values])
            self._sizes.append(size)
            self._bytes += size
            report.files += 1
            report.bytes += batch.column("content")[row].as_buffer().size
        report.samples = report.files

    def _encoded(self, column: mds.Column, array: Any, names: list[bytes]) -> list[bytes]:
        code, kind = column.encoding, self._typed[column.name]
        instead = NULLS[code]
        if array.null_count and code != "json":
            what = NO_NULL.format(column.name, instead)
            for row in range(len(names)):
                if not array[row].is_valid:
                    self._note(Note(names[row], what, False, often=3, kept=True))
        found = []
        for value in array.to_pylist():
            value = instead if value is None else value
            found.append(_encode(code, kind, value))
        return found

    def _close(self, report: ExportReport) -> None:
        name = f"shard.{len(self._records):05d}.mds"
        head = mds.encode_head(self._sizes, self._config)
        file = self._outputs.create(name)
        with io.BufferedWriter(file, BUFFER) as out:
            out.write(head)
            for sample in self._samples:
                for part in sample:
                    out.write(part)
            out.flush()
            self._outputs.finish(file)
        size = len(head) + self._bytes
        self._records.append(
            mds.shard_record(name, size, len(self._sizes), self._columns, self._limits.size)
        )
        report.shards.append(os.path.join(self._outputs.folder, name))
        self._samples, self._sizes, self._bytes = [], [], 0

    def end(self, report: ExportReport) -> None:
        if self._sizes:
            self._close(report)
        with closing(self._outputs.create(mds.INDEX)) as file:
            file.write(mds.index_text(self._records))
            self._outputs.finish(file)


def _encoding(kind: str) -> str:
    """Return the encoding of MDS for a type of column."""
    if kind.startswith("decimal"):
        return "str_decimal"
    return MDS_KINDS.get(kind) or ("json" if kind.startswith("list") else "str")


def _width(code: str) -> int:
    return struct.calcsize(FORMS[code]) if code in FORMS else 0


def _encode(code: str, kind: str, value: Any) -> bytes:
    """Return a value in an encoding of MDS."""
    if code in ("int", "float64", "uint8"):
        return struct.pack(FORMS[code], value)
    if code == "bytes":
        return bytes(value)
    if code == "json":
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if kind in ("timestamp", "date", "datetime") and value != "":
        value = value.isoformat().replace("+00:00", "Z")
    text = value if isinstance(value, str) else f"{value:f}"
    return str(text).encode("utf-8", "surrogatepass")


class _Parquet:
    """Writes Parquet files, by pyarrow."""

    order: Any = None
    schema: Any = None

    def __init__(
        self, single: str | None, typed: dict[str, str], outputs: Outputs, limits: _Limits
    ) -> None:
        self._single, self._outputs, self._limits = single, outputs, limits
        self.read = ["path", *typed, "content"]
        self._file: NewFile | None = None
        self._writer: Any = None
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = self._size = self._rows = 0
        self._number = 0

    def put(self, batch: pa.RecordBatch, report: ExportReport) -> None:
        for part in self._parts(batch):
            self._waiting.append(part)
            self._bytes += part.nbytes
            self._rows += part.num_rows
            if self._bytes >= self._limits.group:
                self._flush(report)
            if self._single is None and (
                self._size + self._bytes >= self._limits.size or self._rows >= self._limits.count
            ):
                self._flush(report)
                self._close()
        report.files += batch.num_rows
        report.samples = report.files
        report.bytes += sum(value.as_buffer().size for value in batch.column("content"))

    def _parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch, cut where a file of at most `maxcount` rows ends."""
        at = 0
        while at < batch.num_rows:
            room = batch.num_rows - at
            if self._single is None:
                room = min(room, self._limits.count - self._rows)
            yield batch.slice(at, room)
            at += room

    def _begin(self, report: ExportReport) -> None:
        import pyarrow.parquet as pq

        name = self._single or f"part-{self._number:05d}.parquet"
        self._number += 1
        self._file = self._outputs.create(name)
        self._writer = pq.ParquetWriter(self._file, self.schema)
        report.shards.append(os.path.join(self._outputs.folder, name))

    def _flush(self, report: ExportReport) -> None:
        import pyarrow as pa

        if not self._waiting:
            return
        if self._writer is None:
            self._begin(report)
        table = pa.Table.from_batches(self._waiting)
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._size += self._bytes
        self._waiting, self._bytes = [], 0

    def _close(self) -> None:
        if self._writer is not None and self._file is not None:
            self._writer.close()
            self._outputs.finish(self._file)
        self._writer, self._size, self._rows = None, 0, 0

    def end(self, report: ExportReport) -> None:
        self._flush(report)
        if not self._number:
            self._begin(report)
        self._close()
