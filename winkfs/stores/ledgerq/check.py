"""Verify a queue, and repair one that is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

from winkformats.errors import CorruptError, FormatError
from winkformats.ledgerq import index, priorities
from winkformats.ledgerq.entry import DATA, decode
from winkformats.ledgerq.index import Sparse
from winkformats.ledgerq.segment import START, Walk
from winkfs.container.verify import Report
from winkfs.stores.ledgerq import recovery
from winkfs.stores.ledgerq.files import Files, Segment, note
from winkfs.stores.ledgerq.queue import Queue

COLUMNS: Final = attrgetter("ids", "offsets", "times")  # of an index


def verify(path: str, progress: Callable[[int], None] | None = None) -> Report:
    """Read every message once, and all derived files -> a report of problems and messages.

    progress  called with the bytes of each segment
    raises    NoSuchFile; OSError
    """
    report = Report()
    with Queue(path) as queue:
        for line in queue.problems:
            report.add(line)
        queue.files.load(follow=True)  # messages that were consumed meanwhile
        before, floor = 0, queue.state.low
        for segment in queue.files.segments.values():
            before = _check(queue.files, segment, before, floor, report)
            if progress is not None:
                progress(segment.size)
        known = [queue.next_id, before + 1]
        for cursor in queue.state.cursors.values():
            if max(cursor.at) > max(known):
                report.add(f"{path}: consumer {cursor.name!r} is at message {max(cursor.at)}")
    return report


def _check(files: Files, segment: Segment, before: int, floor: int, report: Report) -> int:
    """Check the segment behind the message `before` -> the last id.

    floor   the id below which all messages are consumed
    """
    path, storage = files.path(segment), files.storage(segment)
    walk, size = Walk(storage, START, before), min(segment.size + segment.torn, storage.size())
    found = Segment(segment.number, segment.size, sparse=Sparse(), tables=priorities.empty())
    while walk.step(size):
        note(found, walk)
        for length, kind, _, id, _, at in walk.rows():
            report.entries += 1
            report.bytes += length
            if before and before + 1 < id and id > floor:
                report.add(f"{path}: messages {before + 1} to {id - 1} are missing")
            before = id
            if kind == DATA:
                report.files += 1
                try:
                    decode(walk.data, at, file=path, offset=walk.base + at)
                except FormatError as error:
                    report.add(str(error))
    if not (segment.bad or segment.torn):  # else it is reported
        for start, stop in [*walk.bad, (walk.tail, size)]:
            if start >= 0:
                report.add(f"{path}: {stop - start} bytes at byte {start} are no messages")
    head = segment.header
    if (
        head is not None and head.max_id and found.first
        and (head.min_id != found.first or head.max_id > before)
    ):  # fmt: skip
        report.add(f"{path}: its header has messages {head.min_id} to {head.max_id}")
    wrong = list(_check_derived(files, found))
    if storage.size() == size:  # no writer has added to it meanwhile
        for line in wrong:
            report.add(line)
    return before


def _check_derived(files: Files, segment: Segment) -> Iterator[str]:
    """Yield what is wrong with the files beside a segment, which may cover less than all of it."""
    assert segment.sparse is not None and segment.tables is not None
    for suffix in (index.SUFFIX, priorities.SUFFIX):
        data, path = files.beside(segment, suffix), files.path(segment, suffix)
        if data is None:
            continue
        try:
            if suffix == index.SUFFIX:
                sparse = Sparse.decode(data, segment.number, file=path, size=segment.size)
                pairs: Iterable[Any] = [(COLUMNS(sparse), COLUMNS(segment.sparse))]
            else:
                tables, _ = priorities.decode(data, file=path, size=segment.size)
                pairs = zip(tables, segment.tables, strict=True)
        except CorruptError as error:
            yield str(error)
            continue
        for theirs, ours in pairs:
            if any(a != b[: len(a)] for a, b in zip(theirs, ours, strict=True)):
                yield f"{path}: its rows are not those of the segment"


def repair(path: str) -> list[str]:
    """Write damaged segments and indexes anew, so that LedgerQ opens them -> steps, a line each.

    Bytes that are no messages are kept in files of their own. Raises Locked; NoSuchFile; OSError.
    cost  reads all, and writes the segments that are damaged
    """
    with Queue(path, "a") as queue:
        before = 0
        for segment in queue.files.segments.values():
            queue.files.scan(segment, before, anew=True)
            before = segment.last
        recovery.mend(queue.files, queue.problems.append, lambda: None)
        for segment in list(queue.files.segments.values())[:-1]:
            recovery.write_index(queue.files, segment)
        return list(queue.problems)
