"""Facts of stores of records: sizes and space; of queues also depth and ages by consumer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from winkformats.errors import CorruptError, FormatError
from winkformats.ledgerq.entry import HIGH, LOW
from winkfs.registry import kind_of, open_silently
from winkfs.report.totals import FileTotals, Record
from winkfs.stores.ledgerq.cursor import Cursor, Order
from winkfs.stores.ledgerq.queue import Queue
from winkfs.stores.records import Records
from winkfs.tables import tables
from winkfs.units import NANO

PRIORITIES: Final = ("low", "medium", "high")
MOST_LEASES: Final = 1000  # unacknowledged messages of which the oldest is looked up
Progress = Callable[[int], None]


def facts(path: str, now: int, progress: Progress) -> Record:
    """Return the facts of a store of records, or of files, see `report.facts.gather`.

    cost  that of a listing
    """
    known: Record = dict(kind_of(path)[0].function("info", path)(path))
    problems: list[str] = list(known.pop("problems", []))
    totals = FileTotals(now)
    with open_silently(path) as store:
        if isinstance(store, Records):
            for ids, sizes in store.listing():
                totals.add_sizes(sizes.astype(np.int64))
                progress(len(ids))
            return {"info": known, **space_of(known), **_sizes(totals), "problems": problems}
        for table in tables(store, problem=lambda error: problems.append(str(error))):
            totals.add(table)
            progress(len(table))
    return {"info": known, **totals.record(), "problems": problems}


def _sizes(totals: FileTotals) -> Record:
    found = totals.record()
    return {"files": {"files": totals.files, "bytes": totals.bytes}, "sizes": found["sizes"]}


def space_of(known: Record) -> Record:
    """Return live and dead bytes, of a store whose facts have them."""
    if "dead_bytes" not in known:
        return {}
    live, dead = known.get("bytes", 0), known["dead_bytes"]
    size = max(known.get("disk_bytes", known.get("file_bytes", 0)), live + dead)
    parts = {"live": live, "dead": dead, "overhead": size - live - dead}
    return {"space": {"size": size, **parts, "exact": True}}


# --- queues ---


def queue_facts(path: str, now: int, progress: Progress) -> Record:
    """Return the facts of a queue, see `report.facts.gather`.

    cost  reads the indexes of its segments, and a few messages; by priority also their tables
    """
    with Queue(path) as queue:
        known: Record = {"base": path, "kind": "queue", **queue.stats()}
        del known["problems"]
        totals = FileTotals(now)
        _add_ages(queue, totals)
        found = totals.record()
        return {
            "info": known, "mtimes": found["mtimes"], "queue": depths(queue, now),
            "problems": list(queue.problems),
        }  # fmt: skip


def _add_ages(queue: Queue, totals: FileTotals) -> None:
    """Add the ages of messages that a consumer has not read, as the rows of the indexes have them:
    one for each 4 KiB."""
    low = min(min(cursor.at) for cursor in queue.state.cursors.values())
    for segment in list(queue.files.segments.values()):
        if not segment.first or segment.last < low:
            continue
        sparse = queue.files.sparse(segment)
        if not len(sparse):
            continue
        ids = np.array(sparse.ids, np.int64)
        counts = np.diff(np.maximum(np.append(ids, segment.last + 1), low))
        sizes = np.diff(np.array(sparse.offsets, np.int64), append=segment.size)
        unread = counts > 0
        times = np.array(sparse.times, np.int64)
        totals.add_ages(times[unread], sizes[unread], counts[unread])


def depths(queue: Queue, now: int) -> list[Record]:
    """Return for each consumer, and each priority of a queue by priority, how many messages wait,
    how many are not acknowledged, and the age of the oldest of each, in seconds.

    cost  reads the oldest messages; by priority the tables of priorities
    """
    lanes = range(LOW, HIGH + 1) if queue.by_priority else range(1)
    return [
        _depth(queue, cursor, lane, now, several=len(lanes) > 1)
        for cursor in queue.state.cursors.values()
        for lane in lanes
    ]


def _depth(queue: Queue, cursor: Cursor, lane: int, now: int, *, several: bool) -> Record:
    order = Order(queue.reading, list(cursor.at), priorities=several, starved=0)
    oldest = None
    try:
        oldest = order.head_of(lane, now)
    except FileNotFoundError:  # a writer has removed a segment
        queue.reading.look_again()
    leased = [id for id, lease in cursor.leased.items() if not several or lease.priority == lane]
    return {
        "consumer": cursor.name, "priority": PRIORITIES[lane] if several else None,
        "waiting": sum(_waiting(queue, cursor, lane, several=several)),
        "oldest_age": None if oldest is None else _age(oldest.timestamp, now),
        "unacknowledged": len(leased), "oldest_unacknowledged_age": _oldest(queue, leased, now),
    }  # fmt: skip


def _waiting(queue: Queue, cursor: Cursor, lane: int, *, several: bool) -> Iterator[int]:
    if not several:
        yield queue.reading.pending(cursor.at)
        return
    for segment in list(queue.files.segments.values()):
        if segment.first and segment.last >= cursor.at[lane]:
            ids = queue.files.tables(segment)[lane][0]
            yield len(ids) - bisect_left(ids, cursor.at[lane])


def _oldest(queue: Queue, leased: list[int], now: int) -> float | None:
    for id in sorted(leased)[:MOST_LEASES]:
        try:
            message = queue.reading.find(id)
        except (CorruptError, FormatError, FileNotFoundError):
            continue
        if message is not None:
            return _age(message.timestamp, now)
    return None


def _age(timestamp: int, now: int) -> float:
    return max(round((now - timestamp) / NANO, 3), 0.0)
