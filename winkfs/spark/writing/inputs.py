r"""Input of the sink: options, columns, and conversion of Arrow batches to files.

option         default   meaning
path                     the folder of the data set; `save(path)` and `start(path)` set it
onConflict     newest    of files with one name the last one counts; error: the job fails
ao             false     append-only shards: files in order of mtime, with a time index
timemp         60        seconds between time marks (ao)
htalgo         2         hash of the index: 1 MD5, 2 XXH3-64, 3 MurmurHash3
compress                 zstd, zstd:LEVEL or none; without it as the data set, see docs/datasets.md
maxShardBytes  64 GiB    size at which a task begins another shard; 4g, 512m and the like
ignoreExtra    false     ignore all columns but those below
afterGeneration          the job fails if a later commit has put or deleted one of its files

    column                      type              meaning
    path or name_raw            string or binary  the name; in a path \xNN is a byte, see `names`
    content                     binary, string    the bytes of the file
    mtime (modificationTime)    timestamp, bigint bigint: nanoseconds; null: now
    mtime_ns                    bigint            nanoseconds; used instead of mtime
    mode                        int, bigint       permission bits; null: the default
    ftype                       int, bigint       winkfs.FileType, or a label, another number up to
                                                  255; null: an ordinary file

The order does not matter. `size` and `length`, which follow from the content, are ignored. Any
other column becomes a column of the files: string, binary, boolean, integers and floats of any
size, timestamp, array<string>.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from winkformats import hashing
from winkformats.arrays import Int64
from winkfs.arrow.pieces import batch_ranges
from winkfs.container.arrow import texts_of_arrow
from winkfs.container.ondisk.compressed import level_of
from winkfs.container.ondisk.inode import check_directory, check_ftype
from winkfs.container.ondisk.typed import Texts, check_schema, decimal_of
from winkfs.entry import FileType
from winkfs.errors import FileExists
from winkfs.names import MARK, names_in, to_path
from winkfs.spark.reading.options import (
    IN_TABLES,
    TYPED,
    Readers,
    check_names,
    count,
    flag,
    given_of,
    number,
    one_of,
    size_of,
    store_path,
    value_of,
    values_of,
)
from winkfs.units import LAST, MICRO, NAMED, Clamped

if TYPE_CHECKING:
    import pyarrow as pa

NUMBERS: Final = ("tinyint", "smallint", "int", "bigint")
TYPES: Final = {
    "path": ("string",),
    "name_raw": ("binary",),
    "content": ("binary", "string"),
    "mtime": ("timestamp", "bigint"),
    "mtime_ns": ("bigint",),
    "mode": NUMBERS,
    "ftype": NUMBERS,
}
ALIASES: Final = {"modificationtime": "mtime"}  # of Spark's binaryFile
DERIVED: Final = ("size", "length")
KINDS: Final = {kind: name for name, kind in TYPED.items()} | {
    "tinyint": "int64", "smallint": "int64", "int": "int64", "float": "float64",
    "array<tinyint>": "list<int64>", "array<smallint>": "list<int64>", "array<int>": "list<int64>",
    "array<float>": "list<float64>",
}  # fmt: skip
"""SQL type -> type of a column of the user; decimal(p,s) is that in both."""
WRITE_BYTES: Final = 4 << 20  # approximate bytes of content written at a time
OF_SPARK: Final = ("checkpointLocation", "queryName")
LEAST_SHARD: Final = 1 << 20  # bytes


def _codec(text: str) -> str:
    try:
        level_of(text)
    except ValueError:
        raise ValueError("zstd, zstd:LEVEL with a level of 1 to 22, or none") from None
    return text


READERS: Final[Readers] = {
    "onConflict": ("error_on_conflict", one_of(newest=False, error=True)),
    "ao": ("ao", flag),
    "timemp": ("timemp", count),
    "htalgo": ("htalgo", one_of(**{"1": 1, "2": 2, "3": 3})),
    "compress": ("compress", _codec),
    "maxShardBytes": ("max_shard_bytes", lambda text: size_of(text, LEAST_SHARD)),
    "ignoreExtra": ("ignore_extra", flag),
    "afterGeneration": ("after", number),
    "compactEvery": ("compact_every", count),
}
LATEST: Final = LAST // MICRO  # microseconds whose nanoseconds still fit into int64


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options of a write.

    compact_every  of a stream: small shards, from which on it compacts
    checkpoint     of a stream, if it was given as an option
    """

    path: str
    error_on_conflict: bool = False
    ao: bool = False
    timemp: int = 60
    htalgo: int = hashing.XXH3
    compress: str | None = None
    max_shard_bytes: int = 64 << 30
    ignore_extra: bool = False
    after: int | None = None
    compact_every: int | None = None
    checkpoint: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Check the options of Spark. Raises ValueError of one line with the allowed values."""
        given = given_of(options)
        check_names(given, (*READERS, "path", *OF_SPARK))
        if not given.get("path"):
            raise ValueError(f"no path: give a folder: .save(DIR){IN_TABLES}")
        values: dict[str, Any] = {"path": value_of(given, "path", store_path)}
        values |= values_of(given, READERS)
        return cls(**values, checkpoint=given.get("checkpointlocation", ""))


class FileBatch(NamedTuple):
    """A batch for `BulkPut.put_columns`, with modes and values instead of attributes.

    texts  for each column of the user the texts of all files
    """

    names: list[bytes]
    data: list[memoryview]
    ns: Int64
    ftypes: list[int] | None
    modes: list[int | None] | None
    texts: list[Texts]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Indices of the columns in a batch; None: there is no such column.

    raw     whether the name is bytes, not text
    schema  the columns of the user; typed: their indices
    """

    name: int
    raw: bool
    content: int
    mtime: int | None
    mode: int | None
    ftype: int | None
    schema: dict[str, str] = field(default_factory=dict)
    typed: tuple[int, ...] = ()

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str]], ignore_extra: bool = False) -> Inputs:
        """Find the columns by their (name, SQL type). Raises ValueError that names a wrong one."""
        found: dict[str, int] = {}
        schema: dict[str, str] = {}
        typed = []
        for at, (name, kind) in enumerate(fields):
            known = ALIASES.get(name.lower(), name.lower())
            if known in found:
                raise ValueError(f"two columns are the {known}: drop one of them")
            if known in TYPES:
                if kind not in TYPES[known]:
                    wanted = " or ".join(TYPES[known])
                    raise ValueError(f"column {name!r} is {kind}: cast it to {wanted}")
                found[known] = at
            elif known not in DERIVED and not ignore_extra:
                if kind not in KINDS and decimal_of(kind) is None:
                    raise ValueError(
                        f"column {name!r} is {kind}, which no column of a file can be: cast it to "
                        f"{', '.join(TYPED.values())}, decimal, or drop it (ignoreExtra drops all "
                        "such)"
                    )
                schema[name] = KINDS.get(kind, kind)
                typed.append(at)
        _check_there(found, fields)
        try:
            check_schema(schema)
        except ValueError as error:
            raise ValueError(f"{error}: rename or drop it (ignoreExtra drops all such)") from None
        raw = "name_raw" in found
        return cls(
            found["name_raw" if raw else "path"], raw, found["content"],
            found.get("mtime_ns", found.get("mtime")), found.get("mode"), found.get("ftype"),
            schema, tuple(typed),
        )  # fmt: skip

    def files(self, batch: pa.RecordBatch, now: int, clamped: Clamped) -> Iterator[FileBatch]:
        """Yield the rows of a batch in order, BATCH_ROWS or about WRITE_BYTES of content at a time.

        now      nanoseconds: the mtime of rows without one
        clamped  counts times that no file can have
        raises   ValueError that names the row
        cost     the content is not copied
        """
        from winkfs.arrow.arrays import layout
        from winkfs.container.bulk import BATCH_ROWS  # late: the driver does not need it

        names, contents = _binary(batch.column(self.name)), _binary(batch.column(self.content))
        self._check_nulls(names, contents)
        ns = self._times(batch, now, clamped)
        name_at, name_bytes = layout(names)
        at, content = layout(contents)
        texts = [
            self._texts(column, kind, batch.column(place), names)
            for (column, kind), place in zip(self.schema.items(), self.typed, strict=True)
        ]
        for start, stop in batch_ranges(np.diff(at), WRITE_BYTES, BATCH_ROWS):
            some: list[bytes] = names.slice(start, stop - start).to_pylist()
            if not self.raw and MARK in bytes(name_bytes[name_at[start] : name_at[stop]]):
                some = names_in("path", some)
            ends = at[start : stop + 1].tolist()
            data = list(map(content.__getitem__, map(slice, ends[:-1], ends[1:])))
            ftypes, modes = self._kinds(batch, some, data, start, stop)
            values = [column[start:stop] for column in texts]
            yield FileBatch(some, data, ns[start:stop], ftypes, modes, values)

    def _texts(self, column: str, kind: str, values: pa.Array, names: pa.Array) -> Texts:
        """Return the texts of a column of the user. Raises ValueError that names the file."""
        try:
            return texts_of_arrow(column, kind, values)
        except ValueError:
            for row in range(len(values)):
                try:
                    texts_of_arrow(column, kind, values[row : row + 1])
                except ValueError as error:
                    name = names[row].as_py()
                    path = to_path(name) if self.raw else name.decode("utf-8", "surrogateescape")
                    raise ValueError(f"{shown(path)}: {error}") from None
            raise

    def _check_nulls(self, names: pa.Array, contents: pa.Array) -> None:
        if names.null_count:
            row = _first_null(names)
            size = len(contents[row].as_py() or b"")
            raise ValueError(
                f"a row with {size} bytes of content has no path (null): leave such rows out, "
                'for instance with .where("path is not null")'
            )
        if contents.null_count:
            row = _first_null(contents)
            path = names[row].as_py()
            raise ValueError(
                f"{shown(path)}: the content is null: leave such rows out, or write an empty "
                'file with coalesce(content, X"")'
            )

    def _times(self, batch: pa.RecordBatch, now: int, clamped: Clamped) -> Int64:
        if self.mtime is None:
            return np.full(len(batch), now, np.int64)
        column = batch.column(self.mtime)
        ns, missing = _numbers(column)
        if column.type != "int64":  # timestamps of Spark are microseconds
            far = np.flatnonzero(((ns > LATEST) | (ns < -LATEST - 1)) & ~missing)
            if len(far):
                column = batch.column(self.name)
                clamped.add(len(far), [shown(column[int(i)].as_py()) for i in far[:NAMED]])
            low, high = ns < -LATEST, ns > LATEST  # a read rounds the earliest time to -LATEST - 1
            ns = np.where(low, -LAST - 1, np.where(high, LAST, ns * MICRO))
        return np.where(missing, now, ns) if missing.any() else ns

    def _kinds(
        self,
        batch: pa.RecordBatch,
        names: list[bytes],
        data: list[memoryview],
        start: int,
        stop: int,
    ) -> tuple[list[int] | None, list[int | None] | None]:
        """Return types and modes of the rows [start, stop); None: all have the default."""
        ftypes, modes = None, None
        if self.ftype is not None:
            numbers, missing = _numbers(batch.column(self.ftype)[start:stop])
            ftypes = np.where(missing, int(FileType.FILE), numbers).tolist()
            for kind in set(ftypes):
                check_ftype(kind)
            if FileType.DIR in ftypes:
                for kind, name, content in zip(ftypes, names, data, strict=True):
                    check_directory(kind, name, len(content))
        if self.mode is not None:
            column = batch.column(self.mode)[start:stop]
            if column.null_count < stop - start:
                modes = column.to_pylist()
        return ftypes, modes


def blame(names: Sequence[bytes], limit: int) -> str | None:
    """Return a message on the first of these names that is not valid; None: all are."""
    for name in names:
        if not name:
            return "a row has an empty path: a file needs a name"
        if b"\0" in name:
            return f"{shown(name)}: a path must not have NUL in it"
        if len(name) > limit:
            return f"{shown(name)}: a path may have {limit} bytes, this has {len(name)}"
    return None


def _check_there(found: dict[str, int], fields: Sequence[tuple[str, str]]) -> None:
    missing = []
    if not {"path", "name_raw"} & found.keys():
        missing.append("path (string) or name_raw (binary)")
    if "content" not in found:
        missing.append("content (binary or string)")
    if missing:
        there = ", ".join(name for name, _ in fields) or "none"
        raise ValueError(f"no column {' and no column '.join(missing)}; the columns are: {there}")


def shown(name: str | bytes) -> str:
    """Return a name for a message, on one line and not too long."""
    text = to_path(name) if isinstance(name, bytes) else name
    return repr(text if len(text) <= 200 else text[:200] + "...")[1:-1]


def conflict(name: bytes, what: str) -> FileExists:
    """Return the error of onConflict=error."""
    return FileExists(f"{what}, and onConflict is error", shown(name))


def _binary(column: Any) -> Any:
    """Convert a column to binary, since a string that Spark cast from bytes may be no UTF-8."""
    import pyarrow as pa

    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary() if large else pa.binary())


def _first_null(column: Any) -> int:
    from winkfs.arrow.arrays import bools

    return int(np.argmax(bools(column.is_null())))


def _numbers(column: Any) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Return the numbers of a column, arbitrary for null, and which are null, bool[n]."""
    from winkfs.arrow.arrays import bools, numbers

    return numbers(column), bools(column.is_null())
