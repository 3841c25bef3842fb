"""Tables of a catalog, whose options are metadata of a column.

Spark gives a Python source the columns of a table and not its options. So the schema of a new table
carries them: the column `path` (or `name_raw`, or `id` of a queue) is NOT NULL, and its metadata
has, with the key "winkfs", the options of CREATE TABLE as JSON.

Metadata of a column goes wherever the column goes: to the writer of another table, into the footer
of a Parquet file, into a table that is made of a DataFrame. So writers ignore it, and readers take
it from a column that is NOT NULL only: Spark makes all columns of a table that it makes of a query
nullable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import types
from pyspark.sql.types import DataType, StructField, StructType

from winkfs.spark.reading.options import STREAMING, Options, given_of, local_path

KEY: Final = "winkfs"  # of the metadata
NEVER_NULL: Final = ("path", "name_raw", "id")  # columns that may carry the options
SECRET: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/]*@|.*[?#])")
"""What begins like a URL with a password or a signature in it."""
SIMPLE: Final[dict[str, DataType]] = {
    "string": types.StringType(), "binary": types.BinaryType(), "boolean": types.BooleanType(),
    "int": types.IntegerType(), "bigint": types.LongType(), "double": types.DoubleType(),
    "timestamp": types.TimestampType(), "date": types.DateType(),
    "timestamp_ntz": types.TimestampNTZType(),
}  # fmt: skip


def is_table(options: Mapping[str, str]) -> bool:
    """Return whether the options of a schema are those of CREATE TABLE."""
    return any(name.lower() == "provider" for name in options)


def table_schema(
    given: Mapping[str, str], options: Options, fields: list[tuple[str, str]]
) -> StructType:
    """Return the schema of a new table of the catalog.

    given    as Spark passes them; options: the same, checked
    fields   name and SQL type of each column
    raises   ValueError without a column that may carry the options; for a URL with a password
    """
    for source in options.sources:
        if SECRET.match(source):
            raise ValueError(
                "the path of a table must not have a password or a signature in it, which the "
                "catalog and files made of the table would show: give it by the environment"
            )
    carrier = next((name for name, _ in fields if name.lower() in NEVER_NULL), None)
    if carrier is None:
        raise ValueError(f"a table in a catalog has one of the columns {', '.join(NEVER_NULL)}")
    kept = given_of(given) | {"path": json.dumps(options.sources)}
    if "pathsfile" in kept:
        kept["pathsfile"] = local_path(kept["pathsfile"])
    text = json.dumps(kept)
    return StructType([
        StructField(name, type_of_sql(kind), name != carrier,
                    {KEY: text} if name == carrier else None)
        for name, kind in fields
    ])  # fmt: skip


def with_table(
    options: Mapping[str, str], schema: StructType, *, stream: bool = False
) -> dict[str, str]:
    """Return the options of a read, with those of the table that has this schema, if it is one.

    A query that states a path uses none of the table's.
    raises  ValueError for `paths` without the path, which Spark also sets for load([..])
    """
    given = given_of(options)
    kept = {} if "path" in given else _kept(schema)
    if kept and "paths" in given:
        raise ValueError("option paths goes with the path: t WITH (path = 'DIR', paths = '[..]')")
    known = {name.lower() for name in STREAMING}
    return {name: text for name, text in kept.items() if stream or name not in known} | given


def _kept(schema: StructType) -> dict[str, str]:
    """Return the options that a schema carries."""
    for field in schema.fields:
        text = (field.metadata or {}).get(KEY)
        if text is not None and not field.nullable:
            kept: dict[str, str] = json.loads(text)
            return kept
    return {}


def type_of_sql(kind: str) -> Any:
    """Return the type of Spark with a SQL name, one of those that columns can have."""
    if kind.startswith("array<"):
        return types.ArrayType(type_of_sql(kind[len("array<") : -1]))
    if kind.startswith("decimal("):
        precision, scale = kind[len("decimal(") : -1].split(",")
        return types.DecimalType(int(precision), int(scale))
    return SIMPLE[kind]
