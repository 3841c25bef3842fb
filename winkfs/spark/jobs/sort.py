"""Job `sort`: the files of a container or data set by a key, see `ordering`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from winkfs.spark.jobs import ordering

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    spark: SparkSession,
    source: str,
    target: str,
    key: str,
    *,
    descending: bool = False,
    parts: int | None = None,
    as_of: str | int | None = None,
) -> dict[str, Any]:
    """Make the order `target` of all files in `source`, by `key`: see `ordering.run`."""
    return ordering.run(
        spark, "sort", source, target, key, descending=descending, parts=parts, as_of=as_of
    )


if __name__ == "__main__":
    from winkfs.spark.jobs.session import program

    program("sort")
