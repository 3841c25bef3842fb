"""Parquet files as a stream of items: names, contents, mtimes, and columns.

A row that cannot be a file is reported, by its number; a value that its column cannot hold becomes
null, and is counted. A column of a wrong type is refused before a row is read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from winkformats.errors import FormatError
from winkfs.archive.items import Item, Note, Notes, clamped
from winkfs.archive.warc import date_of
from winkfs.archive.webnames import microseconds
from winkfs.container.arrow import fits, kind_of_arrow, texts_of_arrow, times_of_arrow
from winkfs.container.bulk import Row
from winkfs.container.ondisk.typed import (
    RECORD,
    USER,
    Schema,
    Texts,
    check_schema,
    schema_text,
)
from winkfs.entry import FileType
from winkfs.errors import Refusal, need
from winkfs.names import MAX_NAME, names_in
from winkfs.units import nearest_ns

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 1024  # rows read at a time
KNOWN: Final = frozenset({"size", "length", "ftype", "mode", "mtime_ns", "name_raw"})
"""Columns that a Spark read of files has, which are ignored."""
NULL: Final = "__HIVE_DEFAULT_PARTITION__"  # in the name of a folder
# Numbers that are times: (bound of the absolute value, unit in nanoseconds); beyond, nanoseconds.
TIME_UNITS: Final = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3))
TIMES: Final = ("timestamp", "datetime", "date")
DATED: Final = (*TIMES, "int64", "float64", "string", "binary")  # types that can have times
NO_TIME: Final = "column {}: a text that is no time, so the mtime is now"
NO_VALUE: Final = "column {}: a value that does not fit {}, so it is null"


@dataclass(frozen=True, slots=True)
class ParquetColumns:
    """Names of the columns of a Parquet file.

    path    see `names.names_in`
    mtime   a timestamp, a text in ISO 8601, or a number of seconds, milli-, micro- or nanoseconds
            since 1970; "": there is none
    """

    path: str = "path"
    content: str = "content"
    mtime: str = "mtime"


def partition_of(path: str) -> tuple[tuple[str, str | None], ...]:
    """Return names and values in the folders of a path, such as lang=de/part-0.parquet."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return tuple(
        (unquote(name), None if value == NULL else unquote(value))
        for name, equals, value in pairs
        if name and equals
    )


class Table:
    """The rows of a Parquet file, as a source of `pack`.

    path     the file
    note     called with each row that cannot be a file, and each column that is left out
    columns  names of its columns
    same     names and values of further columns, of type string, equal in all rows
    known    the columns of the target, whose types count where they hold the values
    """

    def __init__(
        self,
        path: str,
        note: Notes,
        columns: ParquetColumns,
        same: dict[str, str | None],
        known: Schema | None = None,
    ) -> None:
        self._path, self._note, self._columns, self._same = path, note, columns, same
        self._known = known or {}

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        """Yield the rows. Raises FormatError if it is not a Parquet file; Refusal for columns that
        are missing, or of a wrong type."""
        pa = need("pyarrow", "reading Parquet files")
        import pyarrow.parquet as pq

        try:
            # INT96, as Spark writes times: nanoseconds would wrap around in the year 2262.
            with pq.ParquetFile(self._path, coerce_int96_timestamp_unit="us") as file:
                wanted = self._wanted(file.schema_arrow)
                columns = map(file.schema.column, range(len(file.schema.names)))
                utc = {each.path for each in columns if each.physical_type == "INT96"}
                schema = self._typed(file.schema_arrow, wanted, utc)
                unit = self._unit(file)
                yield from self._all(file, wanted, schema, unit)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._no_table(error) from None
        except OSError as error:
            if error.errno is not None:
                raise
            raise self._no_table(error) from None

    def _no_table(self, error: Exception) -> FormatError:
        line = (str(error).splitlines() or [""])[0]
        return FormatError(f"{self._path}: not a whole Parquet file: {line}")

    def _wanted(self, schema: pa.Schema) -> list[str]:
        import pyarrow.types as of

        columns, types = self._columns, dict(zip(schema.names, schema.types, strict=True))
        missing = {columns.path, columns.content} - types.keys()
        if missing:
            what = f"has no column {min(missing)!r}; its columns are {', '.join(schema.names)}"
            raise Refusal(f"{what}: name the right ones", self._path)
        for name in (columns.path, columns.content):
            if kind_of_arrow(types[name]) not in ("string", "binary"):
                what = f"column {name} is {types[name]}, not text"
                raise Refusal(f"{what}: name another one, or cast it", self._path)
        if columns.mtime not in types:
            return [columns.path, columns.content]
        form = types[columns.mtime]
        if kind_of_arrow(form) not in DATED and not of.is_null(form):
            what = f"column {columns.mtime} is {form}, not a time"
            raise Refusal(f"{what}: name another one, or cast it", self._path)
        return [columns.path, columns.content, columns.mtime]

    def _typed(self, schema: pa.Schema, wanted: list[str], utc: set[str]) -> dict[str, str]:
        """Return the other columns, which become columns of the files; note those that cannot.

        utc  columns whose times are in UTC, though their type does not state it
        """
        found: dict[str, str] = {}
        there = {name.lower() for name in schema.names}
        forms: list[tuple[str, Any]] = list(zip(schema.names, schema.types, strict=True))
        forms += [(name, None) for name in self._same if name.lower() not in there]
        for name, form in forms:
            if name in wanted or name.lower() in KNOWN:
                continue
            kind = "string" if form is None else kind_of_arrow(form)
            try:
                if kind is None:
                    raise ValueError(f"column {name} is {form}")
                known = "timestamp" if name in utc else self._known.get(name)
                if known is not None and form is not None and fits(form, known):
                    kind = known
                check_schema(found | {name: kind})
                found[name] = kind
            except ValueError as error:
                self._note(Note(self._path.encode(), f"{error}: left out", False))
        return found

    def _unit(self, file: Any) -> int:
        """Return the unit, in nanoseconds, of times that are numbers, for the whole file."""
        import pyarrow.compute as pc
        import pyarrow.types as of

        name = self._columns.mtime
        if name not in file.schema_arrow.names:
            return 1
        form = file.schema_arrow.field(name).type
        if not (of.is_integer(form) or of.is_floating(form)):
            return 1
        ends = pc.min_max(file.read(columns=[name]).column(name)).as_py()
        most = max((abs(value) for value in ends.values() if value is not None), default=0)
        return next((unit for bound, unit in TIME_UNITS if most < bound), 1)

    def _all(
        self, file: Any, wanted: list[str], schema: dict[str, str], unit: int
    ) -> Iterator[Row]:
        number, there = 0, [name for name in schema if name in file.schema_arrow.names]
        for batch in file.iter_batches(BATCH_ROWS, columns=[*wanted, *there]):
            yield from self._rows(batch, schema, unit, number)
            number += batch.num_rows

    def _rows(
        self, batch: pa.RecordBatch, schema: dict[str, str], unit: int, first: int
    ) -> Iterator[Row]:
        import pyarrow as pa

        paths = batch.column(self._columns.path).cast(pa.large_binary()).to_pylist()
        names = names_in(self._columns.path, paths)
        contents = batch.column(self._columns.content).cast(pa.large_binary()).to_pylist()
        times = self._times(batch, names, unit)
        texts = [self._texts(batch, name, kind, names) for name, kind in schema.items()]
        keys, record = [USER + name.encode() for name in schema], schema_text(schema)
        for i, (name, content, mtime) in enumerate(zip(names, contents, times, strict=True)):
            if (what := _fault(name, content)) is not None:
                self._note(Note(name or self._path.encode(), f"row {first + i}: {what}", True))
                continue
            assert name is not None  # a fault
            xattrs = None
            if schema:
                pairs = ((k, column[i]) for k, column in zip(keys, texts, strict=True))
                xattrs = {k: text for k, text in pairs if text is not None} | {RECORD: record}
            ns = None if mtime is None else nearest_ns(mtime)
            if ns != mtime:
                self._note(clamped(name))
            yield Row(name, content, ns, FileType.FILE, None, None, None, xattrs)

    def _times(
        self, batch: pa.RecordBatch, names: list[bytes | None], unit: int
    ) -> list[int | None]:
        import pyarrow as pa
        import pyarrow.types as of

        column = self._columns.mtime
        if column not in batch.schema.names:
            return [None] * len(names)
        array = batch.column(column)
        if of.is_dictionary(array.type):
            array = array.dictionary_decode()
        if of.is_null(array.type):
            return [None] * len(names)
        if of.is_integer(array.type):
            return [None if n is None else n * unit for n in array.to_pylist()]
        if of.is_floating(array.type):
            return [None if n is None or n - n else round(n * unit) for n in array.to_pylist()]
        if kind_of_arrow(array.type) in TIMES:
            if not of.is_timestamp(array.type):
                array = array.cast(pa.timestamp("ms"))
            return times_of_arrow(array)
        found: list[int | None] = []
        for name, text in zip(names, array.cast(pa.large_binary()).to_pylist(), strict=True):
            us = None if text is None else microseconds(date_of(text))
            if us is None and text:
                self._note(Note(name or b"", NO_TIME.format(column), False, kept=True))
            found.append(None if us is None else us * 1000)
        return found

    def _texts(
        self, batch: pa.RecordBatch, name: str, kind: str, names: list[bytes | None]
    ) -> Texts:
        """Return the values of a column; null for those that it cannot hold."""
        if name not in batch.schema.names:
            value = self._same[name]
            return [None if value is None else value.encode("utf-8", "replace")] * len(names)
        array = batch.column(name)
        try:
            return texts_of_arrow(name, kind, array)
        except ValueError:
            pass
        found: Texts = []
        for i in range(len(names)):
            try:
                found += texts_of_arrow(name, kind, array.slice(i, 1))
            except ValueError:
                what = NO_VALUE.format(name, kind)
                self._note(Note(names[i] or b"", what, False, kept=True))
                found.append(None)
        return found


def _fault(name: bytes | None, content: bytes | None) -> str | None:
    """Return why a row cannot be a file, None if it can."""
    if not name:
        return "a row without a path"
    if content is None:
        return "a row without content"
    if b"\0" in name:
        return "its path has NUL in it"
    if len(name) > MAX_NAME:
        return f"its path has {len(name):,} bytes, more than {MAX_NAME:,}"
    return None
