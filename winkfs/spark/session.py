"""What a driver calls: register the format, read with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def register(spark: SparkSession) -> None:
    """Make format("winkfs") known to a session.

    Needed where Spark does not find it by name: PYSPARK_PYTHON is a Python without winkfs that gets
    it by `spark.sparkContext.addPyFile`, which has to come before.
    """
    from winkfs.spark.source import WinkfsDataSource

    spark.dataSource.register(WinkfsDataSource)


def read(
    spark: SparkSession,
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    schema: StructType | str | None = None,
    **options: Any,
) -> DataFrame:
    """The files of containers and data sets as a DataFrame, as of now: each call plans anew.

    path     BASE, or DIR of a data set; or several
    schema   columns, as `spark.read.schema` takes them
    options  as in `winkfs.spark.options`; columns, paths and glob may be lists, times datetimes
    raises   AnalysisException, whose text says what is wrong with an option or path
    """
    many = [path] if isinstance(path, str | os.PathLike) else list(path)
    reader = spark.read.format("winkfs").option("path", json.dumps([os.fspath(p) for p in many]))
    if schema is not None:
        reader = reader.schema(schema)
    for name, value in options.items():
        if value is not None:
            reader = reader.option(name, _text(name, value))
    return reader.load()


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.astimezone().isoformat()
    if isinstance(value, Iterable):
        items = [item if isinstance(item, str) else os.fspath(item) for item in value]
        return ",".join(items) if name.lower() == "columns" else json.dumps(items)
    return str(value)
