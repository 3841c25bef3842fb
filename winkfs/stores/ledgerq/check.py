"""Verify a queue, and repair one that is damaged."""

from __future__ import annotations

from collections.abc import Callable

from winkformats.errors import CorruptError, FormatError
from winkformats.ledgerq import index, priorities
from winkformats.ledgerq.entry import DATA, PRIORITY, decode
from winkformats.ledgerq.segment import START, Walk, name_of
from winkfs.container.verify import Report
from winkfs.stores.ledgerq import recovery
from winkfs.stores.ledgerq.files import Files, Segment
from winkfs.stores.ledgerq.queue import Queue


def verify(path: str, progress: Callable[[int], None] | None = None) -> Report:
    """Read every message once, and all that is beside them -> what is wrong, and messages.

    progress  is told of the bytes of each segment
    raises    NoSuchFile; OSError
    cost      reads all, 2 us a message
    """
    report = Report()
    with Queue(path) as queue:
        for line in queue.problems:
            report.add(line)
        queue.files.load(follow=True)  # what consumers have read meanwhile is there now
        before, floor = 0, min(cursor.low for cursor in queue.state.cursors.values())
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
    """`floor`: all messages below are consumed. -> the last id."""
    path, storage = files.path(segment), files.storage(segment)
    walk, size = Walk(storage, START, before), min(segment.size + segment.torn, storage.size())
    rows: list[tuple[int, int, int]] = []
    after = 0
    found = priorities.empty()
    told = len(segment.bad) + bool(segment.torn)
    while walk.step(size):
        for length, kind, flags, id, timestamp, at in walk.rows():
            offset = walk.base + at
            report.entries += 1
            report.bytes += length
            if before and before + 1 < id and id > floor:
                report.add(f"{path}: messages {before + 1} to {id - 1} are missing")
            before = id
            if offset >= after:
                rows.append((id, offset, timestamp))
                after = offset + index.SPACING
            if kind == DATA:
                report.files += 1
                try:
                    decode(walk.data, at, file=path, offset=offset)
                except FormatError as error:
                    report.add(str(error))
                lane = min(walk.data[at + 22], 2) if flags & PRIORITY else 0
                found[lane][0].append(id)
                found[lane][1].append(offset)
    if not told:
        for start, stop in walk.bad:
            report.add(f"{path}: {stop - start} bytes at byte {start} are no messages")
        if walk.tail >= 0:
            report.add(f"{path}: {size - walk.tail} bytes at byte {walk.tail} are no messages")
    head = segment.header
    if rows and head is not None and head.max_id:
        wrong = head.min_id != rows[0][0] or head.max_id > before
        if wrong:
            report.add(f"{path}: its header says messages {head.min_id} to {head.max_id}")
    beside = _check_derived(files, segment, rows, found)
    if storage.size() == size:  # nobody has added to it meanwhile
        for line in beside:
            report.add(line)
    return before


def _check_derived(
    files: Files,
    segment: Segment,
    rows: list[tuple[int, int, int]],
    found: tuple[priorities.Places, priorities.Places, priorities.Places],
) -> list[str]:
    """-> what is wrong. An index may end earlier than its segment."""
    wrong: list[str] = []
    data, name = files.side_file(name_of(segment.number, index.SUFFIX))
    if data is not None:
        try:
            sparse = index.Sparse.decode(data, segment.number, file=name, size=segment.size)
            theirs = list(zip(sparse.ids, sparse.offsets, sparse.times, strict=True))
            if theirs != rows[: len(theirs)]:
                wrong.append(f"{name}: its rows are not those of the segment")
        except CorruptError as error:
            wrong.append(str(error))
    data, name = files.side_file(name_of(segment.number, priorities.SUFFIX))
    if data is not None:
        try:
            tables, _ = priorities.decode(data, file=name, size=segment.size)
            for (ids, offsets), (mine, places) in zip(tables, found, strict=True):
                if ids != mine[: len(ids)] or offsets != places[: len(offsets)]:
                    wrong.append(f"{name}: its rows are not those of the segment")
        except CorruptError as error:
            wrong.append(str(error))
    return wrong


def repair(path: str) -> list[str]:
    """Write anew what is damaged, so that LedgerQ opens it -> what was done, a line each.

    Bytes that are no messages are kept in files of their own. Raises Locked; NoSuchFile; OSError.
    cost  reads all, and writes the segments that are damaged
    """
    with Queue(path, "a") as queue:
        before = 0
        for number in list(queue.files.segments):
            segment = queue.files.segments.get(number)
            if segment is None:
                continue
            queue.files.scan(segment, before, anew=True)
            before = segment.last
        recovery.mend(queue.files, queue.problems.append, lambda: None)
        for segment in list(queue.files.segments.values())[:-1]:
            queue.files.sparse(segment)
            recovery.write_index(queue.files, segment)
        return list(queue.problems)
