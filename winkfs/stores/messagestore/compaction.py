"""Compaction of a message store, in place, and migration of its segments of version 1.

The journal lists the messages that stay in a segment before any of them moves (INTENT), and their
new offsets before the file is truncated (RESET). No message is overwritten before that, so an
interrupted compaction can be repeated. One sync of the journal serves several segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from operator import attrgetter
from typing import Final, Literal, NamedTuple

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.storage import Storage
from winkformats.errors import FormatError
from winkformats.messagestore import rdq, sqs
from winkformats.messagestore.index import MessageRows, ids_of
from winkformats.messagestore.journal import INTENT, RESET
from winkformats.messagestore.segment import COPY, Plan
from winkfs.stores.batches import batched
from winkfs.stores.messagestore.core import Core
from winkfs.stores.messagestore.recovery import Segment, neutral

PASS_MESSAGES: Final = 1 << 20  # messages looked up in one pass over the index
GROUP_BYTES: Final = 128 << 20  # bytes of segments between two syncs of the journal
GROUP_SEGMENTS: Final = 64  # segments of a group
MESSAGE_COUNT: Final = attrgetter("count")  # of a segment
BYTE_COUNT: Final = attrgetter("size")
Progress = Callable[[int], object]


class Compaction(NamedTuple):
    """Result of a compaction: segments, bytes before and after, messages moved; which segments were
    skipped, and why."""

    files: int = 0
    before: int = 0
    after: int = 0
    moved: int = 0
    problems: tuple[str, ...] = ()


class Job(NamedTuple):
    """A segment of `size` bytes, the messages that stay, in the order of the file, and the plan."""

    segment: Segment
    storage: Storage
    size: int
    kept: MessageRows
    plan: Plan


class Group(NamedTuple):
    """Segments that are compacted together; `stack` closes their files."""

    jobs: list[Job]
    stack: ExitStack


def planned(core: Core) -> Compaction:
    """Return what `compact` would do now."""
    done = Compaction()
    if core.writable:
        with core.lock:
            core.flush()
    for part in batched(core.candidates(), MESSAGE_COUNT, PASS_MESSAGES, GROUP_SEGMENTS):
        with ExitStack() as stack:
            done = _add(done, *_checked(_begun(core, part, _kept(core, part), stack, "r").jobs))
    return done


def compact(core: Core, progress: Progress | None) -> Compaction:
    """Compact in place the segments that are mostly dead: see `MessageStore.compact`."""
    done = Compaction()
    for part in batched(core.candidates(), MESSAGE_COUNT, PASS_MESSAGES, GROUP_SEGMENTS):
        with _claimed(core, part) as mine, ExitStack() as stack:
            core.sync()  # the journal is going to record these messages
            kept, before = _kept(core, mine), list[Group]()
            for some in batched(mine, BYTE_COUNT, GROUP_BYTES, GROUP_SEGMENTS):
                before.append(_begun(core, some, kept, stack))
                if len(before) == 2:  # the disk reads one while the other is worked on
                    done = _compact(core, before.pop(0), done, progress)
            for group in before:
                done = _compact(core, group, done, progress)
    return done


def _add(done: Compaction, jobs: list[Job], problems: list[str]) -> Compaction:
    return Compaction(
        done.files + len(jobs),
        done.before + sum(job.size for job in jobs),
        done.after + sum(job.plan.size for job in jobs),
        done.moved + sum(len(job.plan.targets) for job in jobs),
        (*done.problems, *problems),
    )


@contextmanager
def _claimed(core: Core, segments: list[Segment]) -> Iterator[list[Segment]]:
    """Yield those that no other compaction has claimed; they are not removed meanwhile."""
    with core.lock:
        core.access.check()
        mine = [
            segment for segment in segments
            if segment.number in core.segments and segment.number not in core.busy
            and segment is not core.current
        ]  # fmt: skip
        core.busy.update(segment.number for segment in mine)
    try:
        yield mine
    finally:
        with core.lock:
            core.busy.difference_update(segment.number for segment in mine)
            if not core.access.failed:
                core.remove_segments([s for s in mine if not s.count and s.number in core.segments])


def _kept(core: Core, segments: list[Segment]) -> dict[int, MessageRows]:
    """Return the messages of segments to which nothing is added, in the order of each file.

    Some may have been removed meanwhile. Cost: a pass over the index.
    """
    numbers = np.array(sorted(segment.number for segment in segments), np.int64)
    parts, found = list[MessageRows](), core.index.rows()
    while True:
        with core.lock:
            rows = next(found, None)
        if rows is None:
            break
        parts.append(rows.take(np.isin(rows.file, numbers)))
    every = MessageRows.joined(parts)
    every = every.take(np.argsort(every.file << 32 | every.offset))
    starts = np.searchsorted(every.file, numbers)
    stops = np.searchsorted(every.file, numbers, "right")
    return {
        number: every.take(slice(start, stop))
        for number, start, stop in zip(
            numbers.tolist(), starts.tolist(), stops.tolist(), strict=True
        )
    }


def _begun(
    core: Core, segments: list[Segment], kept: dict[int, MessageRows], outer: ExitStack,
    mode: Literal["r", "w"] = "w",
) -> Group:  # fmt: skip
    """Open the segments and start reading ahead what is going to move."""
    stack = outer.enter_context(ExitStack())
    jobs = []
    for segment in segments:
        rows = kept.pop(segment.number)
        storage = stack.enter_context(core.directory.open(segment.name, mode, follow=False))
        stack.enter_context(neutral(storage))
        made = segment.version.plan(rows.offset, rows.size)
        if len(made.targets):
            for at in range(int(made.targets[0]), segment.size, COPY):
                storage.read_ahead(at, COPY)
        jobs.append(Job(segment, storage, segment.size, rows, made))
    return Group(jobs, stack)


def _checked(jobs: list[Job]) -> tuple[list[Job], list[str]]:
    """Return the jobs that can be done, and the problems of the others, a line each."""
    good, problems = list[Job](), list[str]()
    for job in jobs:
        segment, storage, _, kept, made = job
        movers = kept.take(slice(len(kept.file) - len(made.targets), None))
        bad = segment.version.wrong(storage, movers.ids, movers.offset, movers.size)
        bad |= movers.offset + movers.size > storage.size()
        if bad.any():
            msg_id = ids_of(movers.take(bad))[0].hex()
            problems.append(f"{storage.name}: {bad.sum()} messages are none, {msg_id}: verify it")
        elif len(kept.file) < segment.count:
            problems.append(
                f"{storage.name}: {segment.count - len(kept.file)} messages are missing"
            )
        else:
            good.append(job)
    return good, problems


def _compact(core: Core, group: Group, done: Compaction, progress: Progress | None) -> Compaction:
    """Compact a group; return `done` with its results added."""
    jobs, problems = _checked(group.jobs)
    before = sum(job.size for job in group.jobs)
    with core.lock:
        core.access.check()
        for job in jobs:
            still = _held(core.index.swap_many(job.kept, job.kept), job.kept)
            core.journal.add_all(INTENT, job.segment.number, still)
            job.segment.moved += 1
        core.done += 1
    core.sync()
    # If this fails half-way, the next opening repeats it.
    with core.access.final():
        for segment, storage, _, kept, made in jobs:
            segment.version.compact(storage, kept.offset, kept.size, made)
        for job in jobs:
            job.storage.sync()
    with core.lock:
        core.access.check()
        for segment, _, _, kept, made in jobs:
            after = kept._replace(offset=made.offsets(kept.offset))
            after = _held(core.index.swap_many(kept, after), after)
            core.journal.add_all(RESET, segment.number, after)
            segment.moved += 1
            segment.size = made.size
        core.done += 1
    core.sync()
    with core.access.final():
        for job in jobs:
            job.storage.truncate(job.plan.size)
        for job in jobs:
            job.storage.sync()
    group.stack.close()
    if progress is not None:
        progress(before)
    return _add(done, jobs, problems)


def _held(refs: Int64, rows: MessageRows) -> MessageRows:
    """Return the rows that still have references."""
    return rows._replace(refs=refs).take(refs > 0)


# --- migration ---


def migrate(core: Core, progress: Progress | None) -> int:
    """Rewrite the segments of version 1: see `MessageStore.migrate`."""
    old = [segment for segment in list(core.segments.values()) if segment.version is rdq]
    for part in batched(old, MESSAGE_COUNT, PASS_MESSAGES, GROUP_SEGMENTS):
        with _claimed(core, part) as mine:
            kept = _kept(core, mine)
            for segment in mine:
                _migrate(core, segment, kept.pop(segment.number))
                if progress is not None:
                    progress(segment.size)
    return len(old)


def _migrate(core: Core, segment: Segment, kept: MessageRows) -> None:
    with core.lock:
        core.access.check()
        new = core.new_segment()
        core.busy.add(new.number)
        into = core.out[new.number].duplicate()
    try:
        copied, end = _copy(core, segment, kept, new.number, into)
        with core.lock:
            core.access.check()
            core.directory.sync()
            moved = _held(core.index.swap_many(kept, copied), copied)
            new.valid, new.count = int(moved.size.sum()), len(moved.size)
            new.size, new.beside = end, -1
            segment.count = segment.valid = 0
            core.journal.add_all(RESET, new.number, moved)
            core.done += 1
            core.sync_journal()
            core.busy.difference_update((segment.number, new.number))
            core.remove_segments([segment, *([] if new.count else [new])])
    except (OSError, FormatError):
        if not new.count:
            with core.lock, suppress(KeyError):
                core.discard(new)
        raise
    finally:
        with core.lock:
            core.busy.discard(new.number)


def _copy(
    core: Core, segment: Segment, kept: MessageRows, number: int, into: Storage
) -> tuple[MessageRows, int]:
    """Copy messages into a new segment, durable; return their places in it, and its end."""
    sizes, at = list[int](), sqs.START
    with into, core.directory.open(segment.name, follow=False) as storage:
        parts, room = list[bytes](), 0
        places = zip(ids_of(kept), kept.offset.tolist(), kept.size.tolist(), strict=True)
        for msg_id, offset, size in places:
            body = segment.body(storage.read(offset, size), msg_id, storage.name, offset)
            record = sqs.record(msg_id, body, checked=core.checked)
            sizes.append(len(record))
            parts.append(record)
            room += len(record)
            if room > COPY:
                into.write(at, parts)
                at, parts, room = at + room, [], 0
        into.write(at, parts)
        into.sync()
    size = np.array(sizes, np.int64)
    file, offset = np.full(len(size), number), sqs.START + np.cumsum(size) - size
    return kept._replace(file=file, offset=offset, size=size), at + room
