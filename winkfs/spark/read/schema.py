"""Columns of the source, and which of them a DataFrame has.

column      type       meaning
path        string     name in the container, bytes that are no UTF-8 as in `paths`
size        bigint     bytes; alias length
mtime       timestamp  microseconds, rounded down; alias modificationTime
content     binary     the bytes of the file
name_raw    binary     the name, exactly
mtime_ns    bigint     nanoseconds since the epoch
ftype       int        winkfs.FileType: 102 a file, 112 an executable one, 100 a directory,
                       108 a link (its content is the target)
mode        int        permission bits
_error      string     null, or why there is no content
_container  string     path of the container, without .data; these four and `size` are what
_contid     bigint     its CONTID                              `fetch_content` needs
_pos        bigint     kv_pointer of the inode
_pointer    bigint     kv_pointer of the data entry, see `winkfs.container.columns.columns`
_generation bigint     of the data set, as of the plan; 0 for a container
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from winkfs.spark.read.options import Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FIELDS: Final = {
    "path": "string",
    "size": "bigint",
    "mtime": "timestamp",
    "content": "binary",
    "name_raw": "binary",
    "mtime_ns": "bigint",
    "ftype": "int",
    "mode": "int",
    "_error": "string",
    "_container": "string",
    "_contid": "bigint",
    "_pos": "bigint",
    "_pointer": "bigint",
    "_generation": "bigint",
}
ALIASES: Final = {"length": "size", "modificationtime": "mtime"}
REFS: Final = ("_container", "_contid", "_pos", "_pointer")


def column_of(name: str) -> str:
    """The column that a name in a schema stands for. Raises ValueError."""
    known = {field.lower(): field for field in FIELDS} | ALIASES
    found = known.get(name.lower())
    if found is None:
        near = get_close_matches(name.lower(), known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(FIELDS)}"
        raise ValueError(f"format winkfs has no column {name!r}: {hint}")
    return found


def ddl_of(options: Options) -> str:
    """The schema where the user gives none, as DDL. Raises ValueError for a wrong column."""
    names = options.columns or _default(options)
    fields = [f"`{name}` {FIELDS[column_of(name)]}" for name in names]
    if len({name.lower() for name in names}) < len(names):
        raise ValueError(f"option columns names a column twice: {','.join(names)}")
    return ", ".join(fields)


def _default(options: Options) -> tuple[str, ...]:
    named = ("path", "modificationTime", "length") if options.binary_file else (
        "path", "size", "mtime",
    )  # fmt: skip
    content = {"inline": ("content",), "ref": REFS, "none": ()}[options.content]
    return (*named, *content, *(("_error",) if options.mode == "PERMISSIVE" else ()))


def check(schema: StructType) -> list[str]:
    """The columns of a schema that a user may have given. Raises ValueError."""
    columns = []
    for field in schema.fields:
        column = column_of(field.name)
        found = field.dataType.simpleString()
        if found != FIELDS[column]:
            raise ValueError(
                f"column {field.name} is {FIELDS[column]}, not {found}: cast it after load()"
            )
        columns.append(column)
    names = [field.name.lower() for field in schema.fields]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"the schema names a column twice: {', '.join(sorted(twice))}")
    return columns


def arrow_schema(fields: StructType) -> Any:
    """The pyarrow.Schema that Spark takes for these columns, and no other."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(fields, timezone="UTC")
    except TypeError:  # up to Spark 4.1, where UTC is not to be asked for
        return to_arrow_schema(fields)
