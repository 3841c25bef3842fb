"""Repairs that a writer makes when it opens a queue that LedgerQ would refuse to open.

Bytes that are no messages are kept in a file of their own, `BASE.log.cut`, and reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from winkformats.disk.storage import Storage, keep_aside, replacing
from winkformats.ledgerq import index, priorities
from winkformats.ledgerq.entry import PAD, encode
from winkformats.ledgerq.segment import START, Header, Walk, name_of
from winkfs.stores.ledgerq.files import Files, Segment, Warn, write_anew

GAP_IDS: Final = 1 << 16  # consecutive missing ids that get expired messages


def mend(files: Files, warn: Warn, before: Callable[[], object]) -> None:
    """Repair the segments that are known to be damaged. Raises OSError.

    before  called before anything changes
    """
    for segment in list(files.segments.values()):
        if segment.header is None and not segment.first:
            before()
            _remove(files, segment, warn)
        elif segment.header is None or segment.bad or segment.last < segment.header.max_id:
            before()
            rewrite(files, segment, warn)
        elif segment.torn:
            before()
            _cut(files, segment, warn)
    for segment in list(files.segments.values())[:-1]:
        if not segment.indexed and segment.first:
            write_index(files, segment)


def _remove(files: Files, segment: Segment, warn: Warn) -> None:
    """Remove a segment without header and messages; its bytes are kept aside."""
    storage = files.storage(segment)
    _keep(files, segment, [storage.read(0, storage.size())], warn)
    files.remove(segment)
    files.directory.sync()


def _cut(files: Files, segment: Segment, warn: Warn) -> None:
    """Cut the torn end of a segment."""
    with files.directory.open(segment.name, "w", follow=False) as storage:
        _keep(files, segment, [storage.read(segment.size, segment.torn)], warn)
        storage.truncate(segment.size)
        storage.sync()
    segment.torn = 0


def _keep(files: Files, segment: Segment, parts: list[bytes], warn: Warn) -> None:
    """Keep bytes of a segment in a file of their own."""
    name, size = keep_aside(files.directory, segment.name, files.storage(segment), parts)
    if name:
        warn(f"{files.path(segment)}: {size} bytes that are no messages are kept in {name}")


def rewrite(files: Files, segment: Segment, warn: Warn) -> None:
    """Write a segment anew from its good entries, with expired messages for missing ids: LedgerQ
    reads id by id. Cost: grows with its bytes."""
    storage = files.storage(segment)
    size = storage.size()
    before = max((s.last for s in files.segments.values() if s.number < segment.number), default=0)
    parts: list[bytes] = []
    header = segment.header
    if header is None:
        parts.append(storage.read(0, START))
        header = Header(segment.number, next(iter(files.sparse(segment).times), 0))
    following = files.next(segment.number)
    until = following.first if following is not None else 0
    with replacing(files.directory, segment.name, like=storage) as made:
        first, last = _copy(storage, made, before, size, until, parts)
        made.write(0, [header._replace(min_id=first, max_id=last if first else 0).encode()])
        _keep(files, segment, parts, warn)
    for suffix in (index.SUFFIX, priorities.SUFFIX):
        files.directory.unlink(name_of(segment.number, suffix))
    number = segment.number
    files.drop(segment)
    files.load()
    again = files.segments[number]
    if again.sparse is None:
        files.sparse(again)
    write_index(files, again)


def _copy(
    storage: Storage, made: Storage, before: int, size: int, until: int, parts: list[bytes]
) -> tuple[int, int]:
    """Copy the good entries -> first and last id. `parts` gets the other bytes.

    before, until  the ids before and behind the segment; 0: unknown
    """
    walk, at, seen = Walk(storage, START, before), START, 0
    first, last, time = 0, before, 1
    while walk.step(size):
        for start, stop in walk.bad[seen:]:
            parts.append(storage.read(start, stop - start))
        seen = len(walk.bad)
        out = []
        for length, _, _, id, timestamp, place in walk.rows():
            time = max(time, min(timestamp, 1 << 62))
            out += expired(last, id, time)
            first = last + 1 if out and not first else first
            out.append(walk.data[place : place + length] + PAD)
            first, last = first or id, id
        at += made.write(at, [b"".join(out)])
    if walk.tail >= 0:
        parts.append(storage.read(walk.tail, size - walk.tail))
    if missing := expired(last, until, time):
        made.write(at, [b"".join(missing)])
        first, last = first or last + 1, until - 1
    return first, last


def expired(last: int, next: int, time: int) -> list[bytes]:
    """Return expired entries for the ids between two; none if there are too many."""
    if not last or not 1 < next - last <= GAP_IDS + 1:
        return []
    return [encode(id, time, b"", expires=time + 1) for id in range(last + 1, next)]


def write_index(files: Files, segment: Segment) -> None:
    """Write the index of a closed segment, and its table of priorities if that is known, unless the
    files have this content."""
    made = {index.SUFFIX: files.sparse(segment).encode(segment.number)}
    if segment.tables is not None:
        made[priorities.SUFFIX] = priorities.encode(segment.tables, segment.size)
    for suffix, data in made.items():
        write_anew(files.directory, name_of(segment.number, suffix), data)
    segment.indexed = True
