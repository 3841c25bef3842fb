"""winkfs in Spark: a source, a sink, streams, and the jobs of the pipeline.

register(spark)                 register the format, if Spark does not find it by name
read(spark, path, ...)          a DataFrame of files
delete(spark, path, condition)  delete files by a condition of Spark SQL
upsert(df, path)                put files, or some of their columns, replacing existing ones
fetch_content(df)               add the contents of files that a DataFrame refers to
unused(df)                      the scans of a query that read contents which it does not use
session_conf()                  settings that make this faster
mount_conf()                    settings for Spark's own sources on a mounted container
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.spark.reading.fetch import fetch_content as fetch_content
    from winkfs.spark.reading.lazy import unused as unused
    from winkfs.spark.session import delete as delete
    from winkfs.spark.session import mount_conf as mount_conf
    from winkfs.spark.session import read as read
    from winkfs.spark.session import register as register
    from winkfs.spark.session import session_conf as session_conf
    from winkfs.spark.session import upsert as upsert

_HOMES = {
    "delete": "session",
    "fetch_content": "reading.fetch",
    "mount_conf": "session",
    "session_conf": "session",
    "read": "session",
    "register": "session",
    "unused": "reading.lazy",
    "upsert": "session",
}
__all__ = list(_HOMES)
__getattr__ = exports(globals(), _HOMES)
