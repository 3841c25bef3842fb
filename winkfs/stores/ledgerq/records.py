"""Messages of a queue as `Records`, by id: the unread ones, or all; verify and repair."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.ledgerq import index, priorities
from winkformats.ledgerq.entry import DATA, HIGH, LAST_ID, LOW, Message, decode
from winkformats.ledgerq.segment import START, Walk, name_of
from winkfs.container.verify import Report
from winkfs.errors import CorruptError, FormatError, NoSuchFile
from winkfs.stores.ledgerq import recovery
from winkfs.stores.ledgerq.files import Files, Segment, note
from winkfs.stores.ledgerq.queue import Queue
from winkfs.stores.records import Arrivals, HandleRecords, Ids, Part, Progress, Row, Run

ID: Final = re.compile(r"[1-9][0-9]{0,18}")
GAP_IDS: Final = 64  # ids between two messages that are read together
COLUMNS: Final = attrgetter("ids", "offsets", "times")  # of an index


class QueueRecords(HandleRecords, Arrivals):
    """The messages that a consumer has not read, or has leased and not acknowledged, and that have
    not expired, as of the opening. Only `Queue` changes them."""

    store: Queue
    elsewhere = "messages of a queue come and go by winkfs queue push and pop"

    def __init__(self, path: str, mode: str = "r") -> None:
        """Raises as `Queue` does."""
        super().__init__(path)
        self.store = Queue(path)
        self._look()

    def _look(self) -> None:
        """Note the lowest position of all consumers, by priority, and what is leased below it."""
        cursors = self.store.state.cursors.values()
        self._at = [min(cursor.at[lane] for cursor in cursors) for lane in range(LOW, HIGH + 1)]
        leases = {id: lease.priority for cursor in cursors for id, lease in cursor.leased.items()}
        self._leased = {id for id, lane in leases.items() if id < self._at[lane]}
        self._low = min(*self._leased, *self._at)

    @property
    def columns(self) -> dict[str, str]:
        own = {"timestamp": "timestamp", "priority": "int64", "expires": "timestamp"}
        return super().columns | own | {"headers": "string"}

    # --- to read ---

    def rows(self, *parts: Part) -> Iterator[Row]:
        runs = [(1, LAST_ID)]
        if parts:
            files, segments = {part.file for part in parts}, self.store.files.segments
            runs = [(s.first, s.last) for s in segments.values() if s.first and s.name in files]
        for first, last in runs:
            for message in self.store.all_messages(max(first, self._low)):
                if message.id <= last and self._waits(message):
                    yield self._row(message)
                if message.id >= last:
                    break

    def _waits(self, message: Message) -> bool:
        """Return whether a consumer has not read a message yet."""
        if message.expires is not None and message.expires <= time.time_ns():
            return False
        return message.id >= self._at[message.priority] or message.id in self._leased

    def _row(self, message: Message) -> Row:
        facts = {
            "timestamp": message.timestamp, "priority": message.priority,
            "expires": message.expires,
            "headers": json.dumps(message.headers) if message.headers else None,
        }  # fmt: skip
        file = name_of(message.segment)
        return Row(str(message.id), len(message.payload), file, message.offset, None, facts)

    def listing(self) -> Iterator[tuple[Ids, Int64]]:
        """Yield the ids of unread messages, also of expired ones.

        cost  little; if positions differ by priority, reads the tables of priorities
        """
        if self._leased:
            yield np.array(sorted(self._leased)), np.zeros(len(self._leased), np.int64)
        for segment in list(self.store.files.segments.values()):
            ids = self._unread(segment)
            if len(ids):
                yield ids, np.full(len(ids), segment.size // segment.count)

    def _unread(self, segment: Segment) -> Int64:
        """Return the ids of a segment from the lowest positions on."""
        if not segment.first:
            return np.empty(0, np.int64)
        if segment.first >= max(self._at) or len(set(self._at)) == 1:
            return np.arange(max(segment.first, self._at[LOW]), segment.last + 1)
        try:
            with self.store._lock:
                tables = self.store.files.tables(segment)
        except FileNotFoundError:  # it was removed meanwhile
            return np.empty(0, np.int64)
        found = [np.array(ids, np.int64) for ids, _ in tables]
        return np.concatenate([ids[ids >= at] for ids, at in zip(found, self._at, strict=True)])

    def __len__(self) -> int:
        """Count the unread messages by their ids: expired ones count, too."""
        return sum(len(ids) for ids, _ in self.listing())

    def data_files(self) -> list[Part]:
        segments = self.store.files.segments.values()
        return [Part(s.name, s.size) for s in segments if s.first and s.last >= self._low]

    def row(self, id: str) -> Row:
        if not ID.fullmatch(id):
            raise ValueError(f"{id!r} is no id of a message")
        message = self.store.read(int(id))
        if not self._waits(message):
            raise NoSuchFile(f"message {id} was read, or has expired", self.base)
        return self._row(message)

    def find(self, ids: Iterable[str]) -> Iterator[Row]:
        for message in self._messages(map(int, ids)):
            if isinstance(message, Message) and self._waits(message):
                yield self._row(message)

    def bodies(self, rows: Iterable[Row]) -> Iterator[bytes]:
        """Yield bodies, also of messages that were read since."""
        for message in self._messages(int(row.id) for row in rows):
            if not isinstance(message, Message):
                raise message
            yield message.payload

    def _messages(self, ids: Iterable[int]) -> Iterator[Message | Exception]:
        """Yield the message of each id, or the error. Those that ascend are read together."""
        lane: Iterator[Message] | None = None
        ahead: Message | None = None
        before = 0
        for id in ids:
            if not before < id <= before + GAP_IDS:
                lane = None
                try:
                    yield self.store.read(id)
                except FileNotFoundError:  # also of its segment
                    yield NoSuchFile(f"no message {id}", self.base)
                except FormatError as error:
                    yield error
            else:
                if lane is None:
                    lane = self.store.all_messages(id)
                    ahead = next(lane, None)
                while ahead is not None and ahead.id < id:
                    ahead = next(lane, None)
                if ahead is not None and ahead.id == id:
                    yield ahead
                else:
                    yield NoSuchFile(f"no message {id}", self.base)
            before = id

    def mtime_of(self, row: Row) -> int:
        """Return when the message was pushed."""
        assert row.facts is not None
        return int(row.facts["timestamp"])

    def refresh(self) -> bool:
        changed = super().refresh()
        if changed:
            self._look()
        return changed

    def stats(self) -> Mapping[str, Any]:
        return {"bytes": sum(part.size for part in self.data_files())} | self.store.stats()

    # --- by arrival ---

    @property
    def next_id(self) -> int:
        return self.store.files.last + 1 if self.store.files.last else self.store.next_id

    def runs(self) -> list[Run]:
        return [
            Run(s.name, s.size, s.first, s.last + 1, s.header.created if s.header else 0)
            for s in list(self.store.files.segments.values())
            if s.first
        ]

    def between(self, first: int, stop: int, lost: Callable[[str], object]) -> Iterator[Row]:
        at = first
        for message in self.store.all_messages(first):
            self._report(at, min(message.id, stop), lost)
            at = message.id + 1
            filler = not message.payload and message.expires == message.timestamp + 1
            if at <= stop and not filler:
                yield self._row(message)
            if at >= stop:
                return
        self._report(at, min(stop, self.next_id), lost)

    def _report(self, first: int, stop: int, lost: Callable[[str], object]) -> None:
        if first < stop:
            ids = (
                f"message {first} is"
                if stop == first + 1
                else f"messages {first} to {stop - 1} are"
            )
            lost(f"{ids} not there any more: removed by a compaction, or damaged")


# --- to check, and to repair ---


def verify(path: str, progress: Progress | None = None) -> Report:
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
    found = Segment(segment.number, segment.size, sparse=index.Sparse(), tables=priorities.empty())
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
                sparse = index.Sparse.decode(data, segment.number, file=path, size=segment.size)
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
