"""Job `stats`: counts of files in a container or data set by type, size, day and prefix, as text or
plot.

No content is read.
"""

from __future__ import annotations

import datetime
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from winkfs.dataset.snapshot import snapshot
from winkfs.errors import need
from winkfs.spark.jobs.reading import read
from winkfs.spark.jobs.session import program
from winkfs.spark.jobs.tasks import guarded
from winkfs.units import UNITS, size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LABEL: Final = 60  # characters of a label
BARS: Final = 12  # types and prefixes
OTHERS: Final = "(others)"
COUNTED: Final = ("files", "bytes")
STRIPES: Final = 90  # most bars of the time axis
AXIS_SCALE: Final = 1.15  # length of an axis by its longest bar, with room for its number
Row = dict[str, Any]
TOP: Final = 20  # types and prefixes
# The suffix of a path, in lower case.
TYPE: Final = r"lower(regexp_extract(path, '[^/]\\.([A-Za-z0-9]{1,10})$', 1))"
# The site of a URL, or the first directory.
PREFIX: Final = r"regexp_extract(path, '^([A-Za-z][A-Za-z0-9+.-]*://[^/]*|[^/]*(?=/)|)', 1)"
# 0 for an empty file, n for 2^(n-1) .. 2^n - 1 bytes.
SIZE: Final = "if(size = 0, 0, length(bin(size)))"
DAY: Final = "cast(to_date(mtime) as string)"


def need_matplotlib() -> None:
    need("matplotlib", "a plot")


def draw(summary: dict[str, Any], path: str) -> None:
    """Draw days, sizes, types and prefixes as PNG. Raises Refusal without matplotlib; OSError."""
    need_matplotlib()
    figure = picture(summary)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # names are in any script
        figure.savefig(path, format="png", dpi=100)


def picture(summary: dict[str, Any]) -> Any:
    """Return a matplotlib.figure.Figure of a summary."""
    from matplotlib.figure import Figure

    bars = {
        "by size": [(_class_name(row["what"]), row) for row in every_class(summary["sizes"])],
        "by type": [(_label(row["what"]), row) for row in shown(summary["types"])],
        "by site or directory": [(_label(row["what"]), row) for row in shown(summary["prefixes"])],
    }
    heights = [2.4, *(0.7 + 0.22 * max(len(rows), 1) for rows in bars.values())]
    figure = Figure(figsize=(13, sum(heights) + 0.6), layout="constrained")
    axes = figure.subplots(4, 2, gridspec_kw={"height_ratios": heights})
    name = _label(os.path.basename(summary["source"]))
    total = f"{summary['files']:,} files, {size_text(summary['bytes'])}"
    figure.suptitle(f"{name}: {total}")
    if not summary["files"]:
        for axis in axes.flat:
            axis.set_axis_off()
        return figure
    _over_time(axes[0], summary["days"])
    for pair, (title, rows) in zip(axes[1:], bars.items(), strict=True):
        _bars(pair, title, rows)
    return figure


# --- what is drawn ---


def shown(rows: list[Row]) -> list[Row]:
    """Return the first rows, and the sum of all others."""
    named = [row for row in rows if row["what"] != OTHERS]
    rest = [*named[BARS:], *(row for row in rows if row["what"] == OTHERS)]
    if not rest:
        return named
    return [*named[:BARS], {"what": OTHERS} | {n: sum(r[n] for r in rest) for n in COUNTED}]


def every_class(rows: list[Row]) -> list[Row]:
    """Size classes without a gap: those between the least and the greatest have no files."""
    known = {row["what"]: row for row in rows}
    sizes = [size for size in known if size]
    classes = [0] if 0 in known else []
    if sizes:
        bits = range(min(sizes).bit_length() - 1, max(sizes).bit_length())
        classes += [1 << bit for bit in bits]
    return [known.get(size, {"what": size, "files": 0, "bytes": 0}) for size in classes]


def stripes(days: list[Row]) -> tuple[int, list[datetime.date], dict[str, list[int]]]:
    """Join days to at most STRIPES bars -> days in each, their first days, files and bytes."""
    dates = [datetime.date.fromisoformat(row["what"]) for row in days]
    first = dates[0].toordinal()
    width = -(-(dates[-1].toordinal() + 1 - first) // STRIPES)
    place = np.array([(date.toordinal() - first) // width for date in dates])
    starts = [datetime.date.fromordinal(first + width * i) for i in range(int(place[-1]) + 1)]
    sums = {name: np.zeros(len(starts), np.int64) for name in COUNTED}
    for name, total in sums.items():
        np.add.at(total, place, [row[name] for row in days])
    return width, starts, {name: total.tolist() for name, total in sums.items()}


def _class_name(size: int) -> str:
    return f"{size_text(size)} to {size_text(2 * size)}" if size else "empty"


def _label(text: str) -> str:
    """Return a label on one line, with its middle cut out if it is long, and $ escaped."""
    text = repr(text or "(none)")[1:-1].replace("$", r"\$")
    half = (LABEL - 3) // 2
    return text if len(text) <= LABEL else f"{text[:half]}...{text[-half:]}"


# --- axes ---


def _unit(counts: list[int], name: str) -> tuple[str, int, Callable[[float], str]]:
    """Return label and unit of an axis, and the function that formats its counts."""
    if name == "files":
        return "files", 1, lambda count: f"{count:,.0f}"
    power = min(max(max(counts).bit_length() - 1, 0) // 10, len(UNITS) - 1)
    return UNITS[power], 1 << 10 * power, size_text


def _over_time(axes: Any, days: list[Row]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    width, starts, sums = stripes(days)
    each = f"{width} days" if width > 1 else "a day"
    for axis, (name, counts) in zip(axes, sums.items(), strict=True):
        label, one, _ = _unit(counts, name)
        heights = [count / one for count in counts]
        axis.bar(starts, heights, width=datetime.timedelta(days=width), align="edge")
        axis.set_title(f"{name} by mtime, {each} a bar")
        axis.set_ylabel(label)
        axis.set_ylim(0, max(heights) * AXIS_SCALE or 1)
        axis.locator_params(axis="y", nbins=5)
        ticks = AutoDateLocator(maxticks=8)
        axis.xaxis.set_major_locator(ticks)
        axis.xaxis.set_major_formatter(ConciseDateFormatter(ticks))


def _bars(axes: Any, title: str, rows: list[tuple[str, Row]]) -> None:
    """Draw horizontal bars, the first on top, with their numbers, and names to the left."""
    places = range(len(rows))
    for axis, name in zip(axes, COUNTED, strict=True):
        counts = [row[name] for _, row in rows]
        label, one, text = _unit(counts, name)
        colours = ["tab:grey" if row["what"] == OTHERS else "tab:blue" for _, row in rows]
        drawn = axis.barh(places, [count / one for count in counts], color=colours)
        axis.bar_label(drawn, [text(count) for count in counts], padding=3, fontsize=8)
        axis.set_yticks(
            places, [what if name == COUNTED[0] else "" for what, _ in rows], fontsize=8
        )
        axis.set_xlim(0, max(counts) / one * AXIS_SCALE or 1)
        axis.invert_yaxis()
        axis.set_title(f"{name} {title}")
        axis.set_xlabel(label)


def run(
    spark: SparkSession,
    source: str,
    *,
    plot: str | None = None,
    as_of: str | int | None = None,
) -> dict[str, Any]:
    """Count the files of `source` in several ways.

    plot     path of a PNG to draw, which needs matplotlib
    ->       files, bytes, first and last (mtime, ISO 8601, UTC), types, sizes, days and prefixes:
             lists of {"what", "files", "bytes"}; sizes by powers of two ("what" is the lower end),
             days in order, types and prefixes by bytes, at most 20 and the rest as "(others)"
    raises   Refusal, OSError; errors of Spark
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
    """Count files and bytes in one pass, in four groupings and in all."""
    listing = read(spark, snap, ("path", "size", "mtime")).selectExpr(
        f"{TYPE} as type", f"{SIZE} as size_class", f"{DAY} as day", f"{PREFIX} as prefix",
        "size", "mtime",
    )  # fmt: skip
    kinds = ("type", "size_class", "day", "prefix")
    by = " ".join(f"when grouping({kind}) = 0 then '{kind}'" for kind in kinds)
    what = ", ".join(f"cast({kind} as string)" for kind in kinds)
    sets = ", ".join(f"({kind})" for kind in kinds)
    found = spark.sql(
        f"select case {by} else 'all' end as by, coalesce({what}) as what, count(*) as files, "
        "coalesce(sum(size), 0) as bytes, "
        "date_format(min(mtime), \"yyyy-MM-dd'T'HH:mm:ss'Z'\") as first, "
        "date_format(max(mtime), \"yyyy-MM-dd'T'HH:mm:ss'Z'\") as last "
        f"from {{listing}} group by grouping sets ({sets}, ())",
        listing=listing,
    )
    return list(found.collect())


def _top(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = sorted(rows, key=lambda row: (-row["bytes"], -row["files"], row["what"]))
    kept, rest = rows[:TOP], rows[TOP:]
    if rest:
        counts = {n: sum(row[n] for row in rest) for n in ("files", "bytes")}
        kept.append({"what": OTHERS} | counts)
    return kept


# --- for people ---


def lines(summary: dict[str, Any]) -> Iterator[str]:
    """Format a summary as a table for a terminal."""
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
            name = str(row["what"]) or "(none)"
            if title == "sizes":
                name = f"{size_text(row['what'])} ..." if row["what"] else "empty"
            share = row["bytes"] / total
            yield (
                f"{name if len(name) <= 40 else f'{name[:37]}...':<40} {row['files']:>12,} "
                f"{size_text(row['bytes']):>12} {share:>6.1%} {'#' * round(20 * share)}"
            )


if __name__ == "__main__":
    program("stats")
