"""Filters of a query that select files, if pushing them down is safe.

Up to Spark 4.3 filters pushed into a reader apply to all scans of one load(), so that a second
query on the DataFrame lacks rows. Python cannot detect that when it happens. So pushdown is refused
for these versions of PySpark, and `leaks` tests other ones once in each session.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource

from winkfs.container.selection import Selection
from winkfs.names import MARK, to_name
from winkfs.spark.reading.options import column_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
CONF: Final = "spark.sql.python.filterPushdown.enabled"
BOUNDS: Final = {
    "EqualTo": (0, 1), "GreaterThan": (1, None), "GreaterThanOrEqual": (0, None),
    "LessThan": (None, 0), "LessThanOrEqual": (None, 1),
}  # fmt: skip
"""Filter -> the first value, and the one after the last, relative to the value of the filter."""
_proved: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def check_version() -> None:
    """Raise ValueError if this PySpark is known to leak filters."""
    if not hasattr(datasource.DataSourceReader, "pushLimit"):
        raise ValueError(
            "pushdown=native is refused: with this Spark, filters that are pushed down leak into "
            "other queries on the same load(), which then lack rows; use the options prefix, "
            "paths, mtimeFrom and the like"
        )


def prove(spark: SparkSession) -> None:
    """Raise ValueError unless filters can be pushed down safely in this session."""
    check_version()
    if spark not in _proved:
        if leaks(spark):
            raise ValueError("pushdown=native is refused: filters leak in this Spark (tried out)")
        _proved.add(spark)


def leaks(spark: SparkSession) -> bool:
    """Return whether a filter of one query changes the result of another query on one load().

    The format must be registered in the session: see `session.register`.
    """
    import winkfs

    before = spark.conf.get(CONF, "false") or "false"
    spark.conf.set(CONF, "true")
    try:
        with tempfile.TemporaryDirectory(prefix="winkfs-") as folder:
            with winkfs.create(Path(folder) / "c") as container:
                container.put_many([("a", b""), ("b", b"")])
            reader = spark.read.format("winkfs").options(pushdown="untried", content="none")
            frame = reader.load(f"{folder}/c")
            one, other = frame.filter("path = 'a'"), frame.filter("path = 'b'")
            found = [one.count(), frame.count(), other.count(), one.union(other).count()]
            return found != [1, 2, 1, 2]
    finally:
        spark.conf.set(CONF, before)


def narrowed(selection: Selection, filters: Iterable[Any]) -> Selection:
    """Return a selection narrowed by filters; unknown filters are ignored."""
    for one in filters:
        selection = _narrowed(selection, one)
    return selection


def _narrowed(selection: Selection, one: Any) -> Selection:
    where: Sequence[str] = getattr(one, "attribute", ())
    if len(where) != 1 or not hasattr(one, "value"):
        return selection
    column, value = column_of(where[0]), one.value
    if column == "path":
        return _by_path(selection, one, value)
    if column in ("size", "mtime", "mtime_ns"):
        return _by_number(selection, one, column, value)
    return selection


def _by_path(selection: Selection, one: Any, value: Any) -> Selection:
    if isinstance(one, datasource.StringStartsWith):
        text = value.encode()
        if MARK[:1] in text or not text.startswith(selection.prefix):
            return selection
        return replace(selection, prefix=text)
    if not isinstance(one, datasource.EqualTo | datasource.In):
        return selection
    values = value if isinstance(one, datasource.In) else (value,)
    names = {to_name(text.encode()) for text in values}
    if selection.paths is not None:
        names &= set(selection.paths)
    return replace(selection, paths=tuple(sorted(names)))


def _by_number(selection: Selection, one: Any, column: str, value: Any) -> Selection:
    """Narrow a selection by a filter on a number; mtime is microseconds, rounded down."""
    unit = 1
    if column == "mtime":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return selection
        unit, value = 1000, (value - EPOCH) // timedelta(microseconds=1)
    steps = BOUNDS.get(type(one).__name__, (None, None))
    low, after = (None if step is None else (value + step) * unit for step in steps)
    if column == "size":
        upper = None if after is None else after - 1
        return replace(
            selection,
            min_size=_bound(max, selection.min_size, low),
            max_size=_bound(min, selection.max_size, upper),
        )
    return replace(
        selection,
        since=_bound(max, selection.since, low),
        until=_bound(min, selection.until, after),
    )


def _bound(choose: Any, *bounds: int | None) -> int | None:
    known = [bound for bound in bounds if bound is not None]
    return choose(known) if known else None
