"""Job `group`: an order of the files of a container or data set grouped by a key, see `sort`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from winkfs.spark.jobs import sort

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    spark: SparkSession,
    source: str,
    target: str,
    key: str,
    *,
    parts: int | None = None,
    as_of: str | int | None = None,
) -> dict[str, Any]:
    """Make the order `target` of all files in `source`, grouped by `key`: see `sort.run`.

    Each group is in one partition when the order is read.
    """
    return sort.run(spark, source, target, key, kind="group", parts=parts, as_of=as_of)


if __name__ == "__main__":
    from winkfs.spark.jobs.session import program

    program("group")
