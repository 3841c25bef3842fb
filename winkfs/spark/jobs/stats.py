"""Job `stats`: what is in a container or data set: types, sizes, days, where it comes from.

No content is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from winkfs.dataset.snapshot import snapshot
from winkfs.spark.jobs.common import guarded
from winkfs.spark.jobs.plot import OTHERS, draw, need_matplotlib
from winkfs.spark.jobs.reading import read
from winkfs.units import size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOP: Final = 20  # types and prefixes
# What stands behind the last dot of the last part of a path, in lower case.
TYPE: Final = r"lower(regexp_extract(path, '[^/]\\.([A-Za-z0-9]{1,10})$', 1))"
# The site of a URL, or the first directory.
PREFIX: Final = r"regexp_extract(path, '^([A-Za-z][A-Za-z0-9+.-]*://[^/]*|[^/]*(?=/)|)', 1)"
# 0 for an empty file, n for 2^(n-1) .. 2^n - 1 bytes.
SIZE: Final = "if(size = 0, 0, length(bin(size)))"
DAY: Final = "cast(to_date(mtime) as string)"


def run(
    spark: SparkSession,
    source: str,
    *,
    plot: str | None = None,
    as_of: str | int | None = None,
) -> dict[str, Any]:
    """Count the files of `source` in several ways.

    plot     a PNG to make, needs matplotlib
    ->       files, bytes, first and last (mtime, ISO 8601, UTC), types, sizes, days and prefixes:
             lists of {"what", "files", "bytes"}; sizes by powers of two ("what" is the lower end),
             days in order, types and prefixes by bytes, at most 20 and the rest as "(others)"
    raises   WinkError, OSError; what Spark raises
    """
    start = time.monotonic()
    if plot is not None:
        need_matplotlib()
    snap = snapshot(source, as_of)
    with guarded(spark, f"stats {source}"):
        rows = _counted(spark, snap)
    whole = {"files": 0, "bytes": 0, "first": None, "last": None}
    parts: dict[str, list[dict[str, Any]]] = {"type": [], "size_class": [], "day": [], "prefix": []}
    for row in rows:
        if row["by"] == "all":
            whole = {name: row[name] for name in whole}
        else:
            parts[row["by"]].append({n: row[n] for n in ("what", "files", "bytes")})
    sizes = sorted(parts["size_class"], key=lambda row: int(row["what"]))
    for row in sizes:
        row["what"] = 1 << int(row["what"]) - 1 if row["what"] != "0" else 0
    summary = {
        "job": "stats", "source": snap.root, "generation": snap.generation, **whole,
        "types": _top(parts["type"]), "sizes": sizes,
        "days": sorted(parts["day"], key=lambda row: row["what"]),
        "prefixes": _top(parts["prefix"]),
        "seconds": round(time.monotonic() - start, 3),
    }  # fmt: skip
    if plot is not None:
        draw(summary, plot)
        summary["plot"] = os.path.abspath(plot)
    return summary


def _counted(spark: SparkSession, snap: Any) -> list[Any]:
    """One pass over the listing, grouped in four ways and as a whole."""
    listing = read(spark, snap, ("path", "size", "mtime"))
    listing.selectExpr(
        f"{TYPE} as type", f"{SIZE} as size_class", f"{DAY} as day", f"{PREFIX} as prefix",
        "size", "mtime",
    ).createOrReplaceTempView("winkfs_stats")  # fmt: skip
    kinds = ("type", "size_class", "day", "prefix")
    by = " ".join(f"when grouping({kind}) = 0 then '{kind}'" for kind in kinds)
    what = ", ".join(f"cast({kind} as string)" for kind in kinds)
    sets = ", ".join(f"({kind})" for kind in kinds)
    found = spark.sql(
        f"select case {by} else 'all' end as by, coalesce({what}) as what, count(*) as files, "
        "coalesce(sum(size), 0) as bytes, "
        "date_format(min(mtime), \"yyyy-MM-dd'T'HH:mm:ss'Z'\") as first, "
        "date_format(max(mtime), \"yyyy-MM-dd'T'HH:mm:ss'Z'\") as last "
        f"from winkfs_stats group by grouping sets ({sets}, ())"
    )
    try:
        return list(found.collect())
    finally:
        spark.catalog.dropTempView("winkfs_stats")


def _top(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = sorted(rows, key=lambda row: (-row["bytes"], -row["files"], row["what"]))
    kept, rest = rows[:TOP], rows[TOP:]
    if rest:
        counts = {n: sum(row[n] for row in rest) for n in ("files", "bytes")}
        kept.append({"what": OTHERS} | counts)
    return kept


# --- for people ---


def lines(summary: dict[str, Any]) -> Iterator[str]:
    """The summary as a table for a terminal."""
    total = max(summary["bytes"], 1)
    when = f"from {summary['first']} to {summary['last']}" if summary["files"] else "none"
    yield f"{summary['files']:,} files, {size_text(summary['bytes'])}, {when}"
    for title in ("types", "prefixes", "sizes", "days"):
        rows = summary[title]
        if title == "days" and len(rows) > TOP:
            rows = rows[-TOP:]
            title = f"the last {TOP} days"
        yield ""
        yield f"{title:<40} {'files':>12} {'bytes':>12}   share"
        for row in rows:
            name = row["what"]
            if title == "sizes":
                name = f"{size_text(name)} ..." if name else "empty"
            share = row["bytes"] / total
            yield (
                f"{_fit(str(name) or '(none)'):<40} {row['files']:>12,} "
                f"{size_text(row['bytes']):>12} {share:>6.1%} {'#' * round(20 * share)}"
            )


def _fit(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:37]}..."


if __name__ == "__main__":
    from winkfs.spark.jobs.common import program

    program("stats")
