"""Facts of any kind of store as one record, and the comparison of two: JSON, see docs/report.md."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from winkformats.version import VERSION
from winkfs.errors import NoSuchFile, Refusal
from winkfs.registry import find_kind
from winkfs.units import NANO, time_text

FORMAT: Final = "winkfs-report"
SCHEMA: Final = 1  # version of the schema
LARGEST_OLD: Final = 1 << 28  # bytes of a file of facts
Record = dict[str, Any]


def gather(
    path: str, progress: Callable[[int], None] = lambda count: None, *, now: int | None = None
) -> Record:
    """Return the facts of a store, see docs/report.md. Damage is in "problems", and skipped.

    progress  called with the number of files since the last call
    now       nanoseconds since the epoch, from which ages count; None: the clock
    raises    NoSuchFile; Refusal for a kind without a report; FormatError; OSError
    cost      that of a listing, see the kinds
    """
    now = time.time_ns() if now is None else now
    found = find_kind(path.rstrip("/") or "/")
    if found is None:
        raise NoSuchFile("no container, data set or other store", path)
    kind, place = found
    record = kind.function("report", place)(place, now, progress)
    head = {
        "format": FORMAT, "schema": SCHEMA, "winkfs": VERSION, "made": time_text(now // NANO),
        "base": path, "kind": kind.name,
    }  # fmt: skip
    return {**head, **record}


def older(path: str) -> Record:
    """Return earlier facts: from a file that `report --json` has written, or of a store there.

    raises  as `gather`; Refusal for a file that has none, or those of a later version
    """
    file = Path(path)
    if find_kind(path.rstrip("/") or "/") is not None or not file.is_file():
        return gather(path)
    try:
        if file.stat().st_size > LARGEST_OLD:
            raise ValueError
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise Refusal("is neither a store nor what `winkfs report --json` has written", path)
    if found.get("schema") != SCHEMA:
        what = f"has schema {found.get('schema')!r} of facts, and this version knows {SCHEMA}"
        raise Refusal(f"{what}: make it again, or compare with the store itself", path)
    return found


def compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Record]:
    """Return the figures that both have, or one of them, with their old and new values; equal ones
    too. None: it has none."""
    before, after = dict(_figures(old)), dict(_figures(new))
    return [
        {"what": what, "old": before.get(what), "new": after.get(what)}
        for what in [*after, *(what for what in before if what not in after)]
    ]


def _figures(facts: Mapping[str, Any]) -> Iterator[tuple[str, int | float]]:
    """Yield the numbers of facts, except those of classes, by a name such as space.live."""
    for section in ("files", "space", "index", "info"):
        yield from _numbers(section, facts.get(section))
    catalog = facts.get("catalog")
    if isinstance(catalog, Mapping):
        yield from _numbers("catalog", catalog)
        runs = [run for run in catalog.get("runs", ()) if isinstance(run, Mapping)]
        yield "catalog.runs", len(runs)
        yield from _sums("catalog", runs, ("blocks", "rows", "gone"))
    shards = [shard for shard in facts.get("shards", ()) if isinstance(shard, Mapping)]
    if shards:
        yield from _sums("shards", shards, ("bytes", "hidden", "tombstones", "waste"))
    for lane in facts.get("queue", ()):
        if isinstance(lane, Mapping):
            name = f"queue.{lane.get('consumer') or 'main'}.{lane.get('priority') or 'all'}"
            yield from _numbers(name, lane)
    for one in facts.get("types", ()):
        if isinstance(one, Mapping):
            what = "others" if one.get("type") is None else one.get("type") or "none"
            yield from _numbers(f"types.{what}", one)


def _numbers(section: str, record: Any) -> Iterator[tuple[str, int | float]]:
    for name, value in record.items() if isinstance(record, Mapping) else ():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{section}.{name}", value


def _sums(
    section: str, records: list[Mapping[str, Any]], names: tuple[str, ...]
) -> Iterator[tuple[str, int | float]]:
    for name in names:
        values = [record.get(name) for record in records]
        yield f"{section}.{name}", sum(value for value in values if isinstance(value, int | float))
