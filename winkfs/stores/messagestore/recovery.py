"""Loading and repair of a message store: its segments, and the messages in them.

The snapshot `index` lists the messages up to a moment. Later ones are found in the segments; the
journal records later removals, references and moves. Without a snapshot, as in a directory that
another program wrote, each message of the segments has one reference, unless a broker's index is
there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.pagecache import PAGE
from winkformats.disk.paths import directory_of
from winkformats.disk.storage import Directory, FileType, Storage, keep_aside
from winkformats.messagestore import rdq, sqs
from winkformats.messagestore.index import (
    LAST,
    LOW,
    Index,
    MessageRows,
    Place,
    first_of_each,
    ids_of,
    words_of,
)
from winkformats.messagestore.journal import (
    END,
    INDEX,
    INTENT,
    JOURNAL,
    KEPT,
    MAGIC,
    NO_ID,
    REFS,
    RESET,
    SEALED,
    Entry,
    Journal,
    Snapshot,
    entries,
    read_snapshot,
)
from winkfs.errors import CorruptError, Refusal
from winkfs.stores.messagestore import broker

VERSIONS: Final[dict[str, ModuleType]] = {"rdq": rdq, "sqs": sqs}
SEGMENT_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,9})\.(rdq|sqs)")
NO_LIMIT: Final = 1 << 63  # the end of any segment: none is as long
LOAD_ATTEMPTS: Final = 20  # a writer may replace the snapshot that is being read
ReportLine = Callable[[str], object]


@dataclass(slots=True)
class Segment:
    """A file of messages.

    version rdq or sqs, which read and write it
    size    bytes up to the end of its last record
    valid   bytes of the messages that have references; count: the number of these messages
    beside  bytes of each record in addition to the body; 0: no record, -1: they may differ
    sealed  whether it takes no more messages
    scanned whether its content was not in the snapshot
    moved   counts changes in place: one before a change, one after it
    lost    [start, stop) of bytes that are no message, in what was read of a segment of version 1
    """

    number: int
    version: ModuleType
    size: int
    valid: int = 0
    count: int = 0
    beside: int = 0
    sealed: bool = False
    scanned: bool = False
    moved: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.number}{self.version.SUFFIX}"

    def has(self, beside: int) -> None:
        """Note a record with so many bytes in addition to its body."""
        self.beside = beside if self.beside in (0, beside) else -1

    def body(self, data: bytes, msg_id: bytes, name: str, offset: int) -> bytes:
        """Return the body of a record. Raises CorruptError if it is not that of this message."""
        found, body = self.version.decode(data, file=name, offset=offset)
        if found != msg_id:
            raise CorruptError("another message", file=name, offset=offset)
        return body  # type: ignore[no-any-return]


@dataclass(slots=True)
class StoreState:
    """Content of the directory of a message store.

    index       of all messages
    segments    by number
    generation  of the snapshot, 0: there is none; journal: bytes of its journal that were read
    next_file   no segment has this number or a higher one
    checksums   whether messages are written with a checksum
    clean       whether the snapshot is complete
    cuts        segment -> the end of its good records, if more bytes follow
    torn        segments whose bytes after that end may be messages
    redo        segments whose compaction was interrupted -> the messages that stay
    later       id -> further places of it, for when the first turns out to be removed
    recorded    the index of a broker, None: there is none
    """

    index: Index = field(default_factory=Index)
    segments: dict[int, Segment] = field(default_factory=dict)
    generation: int = 0
    journal: int = 0
    next_file: int = 0
    checksums: bool = False
    clean: bool = False
    cuts: dict[int, int] = field(default_factory=dict)
    torn: set[int] = field(default_factory=set)
    redo: dict[int, MessageRows] = field(default_factory=dict)
    later: dict[bytes, list[Place]] = field(default_factory=dict)
    recorded: broker.Recorded | None = None


def is_store(path: str) -> bool:
    """Return whether a message store is there: its index, or a segment."""
    directory = directory_of(path)
    with suppress(OSError), directory.open(INDEX, follow=False) as storage:
        if storage.read(0, len(MAGIC)) == MAGIC:
            return True
    with suppress(OSError):
        return any(SEGMENT_NAME.fullmatch(name) for name in directory.list())
    return False


def listed(directory: Directory) -> dict[int, Segment]:
    """Return the segments by number, ascending. Raises Refusal if two share one; OSError."""
    found: dict[int, Segment] = {}
    for name in directory.list():
        if not (match := SEGMENT_NAME.fullmatch(name)):
            continue
        number = int(match[1])
        info = directory.info(name)
        if info is None:
            continue
        if info.kind is not FileType.FILE or number > LAST:
            raise Refusal(f"{name} is no segment: a {info.kind.value}", directory.path)
        if number in found:
            raise Refusal(f"{found[number].name} and {name}: remove one of them", directory.path)
        found[number] = segment = Segment(number, VERSIONS[match[2]], info.size)
        segment.beside = rdq.LEAST if segment.version is rdq else 0
    return dict(sorted(found.items()))


def load(directory: Directory, report: ReportLine, *, removed: bool = False) -> StoreState:
    """Load a message store. Raises Refusal; CorruptError; OSError.

    report   called with a line for each damage
    removed  whether a writer may be active, which removes files
    cost     reads the snapshot, the journal, and what was added to the segments since; memory: 100
             bytes a message during the call
    """
    for attempts_left in reversed(range(LOAD_ATTEMPTS if removed else 1)):
        lines: list[str] = []
        try:
            found = _load(directory, lines.append, last=not attempts_left)
        except FileNotFoundError:
            if not attempts_left:
                raise
            continue
        if not lines or not attempts_left or not _moved_on(directory, found):
            break
    for line in lines:
        report(line)
    return found


def _moved_on(directory: Directory, state: StoreState) -> bool:
    """Return whether a writer has changed something meanwhile."""
    if not state.generation:
        return False
    info = directory.info(f"{JOURNAL}{state.generation}")
    return info is None or info.size > state.journal


def _load(directory: Directory, report: ReportLine, *, last: bool) -> StoreState:
    clean = directory.exists(broker.CLEAN)  # an index of ours is older then
    snapshot, state = None if clean else _snapshot(directory, report), StoreState()
    past, ends, covered = list[Entry](), False, dict[int, tuple[int, int]]()
    if snapshot is not None:
        head, known = snapshot
        covered = head.covered
        state.generation, state.next_file = head.generation, head.next_file
        state.checksums = head.checksums
        past, state.journal, ends = _journal(directory, head.generation, report, last=last)
    segments = state.segments = listed(directory)  # after the journal, which lists removals
    state.next_file = max([state.next_file, *(number + 1 for number in segments)])
    changes = Changes(past)
    if snapshot is not None:
        known = _still_there(known, segments, changes.resets, report, directory.path)
        state.index.add_many(changes.applied(known))  # each id once
        _missing(head, past, changes, segments, report, directory.path)
    elif not clean:
        _without_index(directory, segments, report)
    elif found := broker.recorded(directory, {n: s.size for n, s in segments.items()}, report):
        state.index.add_many(found.rows)
        covered = dict.fromkeys(found.numbers, (0, SEALED))
        state.recorded = found
    parts = [_kept(kept) for number, kept in changes.resets.items() if number in segments]
    state.clean = ends and not past and covered.keys() == segments.keys()
    for number, segment in segments.items():
        length = segment.size
        beside, start = covered.get(number, (0, segment.version.START))
        segment.beside = segment.beside or beside
        segment.sealed = number in changes.resets or start == SEALED
        if segment.sealed and number not in covered and segment.version is sqs:
            segment.beside = -1
        if number in changes.intents:
            state.redo[number] = _kept(changes.resets[number])
        elif number in changes.resets:
            stops = [entry.offset + entry.size for entry in changes.resets[number]]
            segment.size = max(stops, default=segment.version.START)
        elif not segment.sealed and (start < length or number not in covered):
            parts.append(_rows(number, _tail(directory, segment, start, report)))
            state.clean, segment.scanned = False, True
            if segment.size < length or (number not in covered and not len(parts[-1].file)):
                state.torn.add(number)
        if segment.size < length:
            state.cuts[number] = segment.size
    state.clean = state.clean and not state.cuts
    for rows in parts:
        add(state, changes.applied(rows))
    _sum_up(state)
    return state


def _snapshot(directory: Directory, report: ReportLine) -> tuple[Snapshot, MessageRows] | None:
    try:
        with directory.open(INDEX, follow=False) as storage:
            return read_snapshot(storage)
    except FileNotFoundError:
        return None
    except CorruptError as error:
        report(f"{error}: made again from the segments, messages that were removed may be back")
        return None


def _journal(
    directory: Directory, generation: int, report: ReportLine, *, last: bool
) -> tuple[list[Entry], int, bool]:
    """Return the rows of a journal, their end, and whether the file ends there, too."""
    name, back = f"{JOURNAL}{generation}", "messages that were removed may be back"
    try:
        with directory.open(name, follow=False) as storage:
            found, end = entries(storage, generation)
            if not end:
                report(f"{storage.name}: its header is wrong: {back}")
            return found, end, end == storage.size()
    except FileNotFoundError:
        if not last:
            raise
        report(f"{directory.path}/{name} is missing: {back}")
        return [], 0, False


def _tail(
    directory: Directory, segment: Segment, start: int, report: ReportLine
) -> list[tuple[bytes, int, int]]:
    """Return id, size and offset of the good messages from `start` on; set `size` to their end.

    A message that was removed and written again is listed twice.
    """
    with directory.open(segment.name, follow=False) as storage:
        length = storage.size()
        with neutral(storage):
            if segment.version is rdq:
                found = rdq.survey(storage)
            else:
                found = sqs.scan(storage, start=start, checked=True, repeated=True)
        if storage.size() < length:
            raise FileNotFoundError(f"{storage.name}: it was cut short meanwhile")
    segment.size = found.end
    if segment.version is sqs and found.rows:
        plain, checked = sqs.LEAST[sqs.MESSAGE], sqs.LEAST[sqs.CHECKED]
        mixed = 0 < found.checked < len(found.rows)
        segment.has(-1 if mixed else checked if found.checked else plain)
    segment.lost = found.lost
    if found.error or found.lost:
        what = f"{found.error_text} at byte {found.end}" if found.error else found.lost_text
        report(f"{directory.path}/{segment.name}: {what}")
    return found.rows


@contextmanager
def neutral(storage: Storage) -> Iterator[None]:
    """Drop from the page cache what the block reads of a file."""
    size = storage.size()
    drop = storage.dropper(0, size)
    try:
        yield
    finally:
        if drop is not None:
            drop(0, size + PAGE)


def _rows(number: int, messages: Iterable[tuple[bytes, int, int]]) -> MessageRows:
    found = [message for message in messages if message[1] <= LOW and message[2] <= LOW]
    ids = b"".join(msg_id for msg_id, _, _ in found)
    count = len(found)
    sizes, offsets = (
        np.fromiter((message[i] for message in found), np.int64, count) for i in (1, 2)
    )
    return MessageRows(
        words_of(ids), np.full(count, number), offsets, sizes, np.ones(count, np.int64)
    )


def _kept(found: list[Entry]) -> MessageRows:
    """Return the rows that a RESET gives a segment."""
    ids = b"".join(entry.msg_id for entry in found)
    return MessageRows(words_of(ids), *np.array([e[1:5] for e in found], np.int64).reshape(-1, 4).T)


def _still_there(
    rows: MessageRows,
    segments: dict[int, Segment],
    resets: dict[int, list[Entry]],
    report: ReportLine,
    path: str,
) -> MessageRows:
    """Return the rows of a snapshot that their segments still contain; report the others."""
    numbers = np.unique(rows.file)
    ends = np.zeros(len(numbers), np.int64)
    for i, number in enumerate(numbers.tolist()):
        if number in segments and number not in resets:
            ends[i] = segments[number].size
    which = np.searchsorted(numbers, rows.file)
    good = rows.offset + rows.size <= ends[which]
    lost = np.bincount(which[~good], minlength=len(numbers))
    for i in np.flatnonzero(lost).tolist():
        number = int(numbers[i])
        if number not in resets:
            what = "is cut short" if number in segments else "is missing"
            report(f"{path}: segment {number} {what}: {lost[i]} messages are lost")
    return rows.take(good) if not good.all() else rows


def _missing(
    head: Snapshot, past: list[Entry], changes: Changes, segments: dict[int, Segment],
    report: ReportLine, path: str,
) -> None:  # fmt: skip
    """Report segments that are gone and whose content is not in the snapshot."""
    spoken_of = {entry.file for entry in past if entry.kind != END}
    made_since = range(head.next_file, max(segments, default=-1))
    for number in sorted(spoken_of.union(made_since) - segments.keys()):
        if rows := changes.resets.get(number):
            report(f"{path}: segment {number} is missing: {len(rows)} messages are lost")
        elif rows is None and number not in head.covered:
            report(
                f"{path}: segment {number} is missing, or was never synced: it is in no index yet"
            )


def _journals(directory: Directory) -> Iterator[tuple[str, int]]:
    """Yield name and generation of each journal."""
    for name in directory.list():
        number = name.removeprefix(JOURNAL)
        if name != number and number.isdecimal():
            yield name, int(number)


def _without_index(directory: Directory, segments: dict[int, Segment], report: ReportLine) -> None:
    """Report that an index is gone if its journal shows that there was one."""
    for name, generation in _journals(directory) if segments else ():
        with directory.open(name, follow=False) as storage:
            past, _ = entries(storage, generation)
        if not past and generation == 1:
            continue  # it was not made yet
        report(
            f"{directory.path}/{INDEX} is missing: made again from the segments, messages "
            "that were removed may be back, and a segment that is gone is not noticed"
        )
        gone = {entry.file for entry in past if entry.kind in (REFS, KEPT) and entry.refs}
        gone -= segments.keys()
        gone.difference_update(n for n, rows in Changes(past).resets.items() if not rows)
        if gone:
            report(f"{directory.path}: segments are missing: {', '.join(map(str, sorted(gone)))}")


class Changes:
    """Content of a journal: the rows of each segment since its last RESET or INTENT.

    resets   segment -> its rows KEPT
    intents  segments whose compaction was interrupted
    """

    def __init__(self, past: list[Entry]) -> None:
        self.resets: dict[int, list[Entry]] = {}
        self.intents: set[int] = set()
        refs: dict[int, dict[int, int]] = defaultdict(dict)  # segment -> offset -> references
        for entry in past:
            if entry.kind == REFS:
                refs[entry.file][entry.offset] = entry.refs
            elif entry.kind in (RESET, INTENT):
                self.resets[entry.file] = []
                refs.pop(entry.file, None)
                (self.intents.add if entry.kind == INTENT else self.intents.discard)(entry.file)
            elif entry.kind == KEPT:
                self.resets[entry.file].append(entry)
        places = [(file << 32 | at, n) for file, some in refs.items() for at, n in some.items()]
        self._places, self._refs = np.array(sorted(places), np.int64).reshape(-1, 2).T

    def applied(self, rows: MessageRows) -> MessageRows:
        """Return the rows with their references as of the journal, without removed ones."""
        if not len(self._places) or not len(rows.file):
            return rows
        places: Int64 = rows.file << 32 | rows.offset
        at = np.minimum(np.searchsorted(self._places, places), len(self._places) - 1)
        hit = self._places[at] == places
        refs = np.where(hit, self._refs[at], rows.refs)
        return rows._replace(refs=refs).take(refs > 0)


def add(state: StoreState, rows: MessageRows) -> None:
    """Add messages that the index does not have; if an id occurs several times, the first."""
    new = ~state.index.get_many(rows.ids)[1]
    first = first_of_each(rows.ids)
    state.index.add_many(rows.take(new & first))
    others = rows.take(~(new & first))
    for i, msg_id in enumerate(ids_of(others)):
        state.later.setdefault(msg_id, []).append(Place(*(int(column[i]) for column in others[1:])))


def _sum_up(state: StoreState) -> None:
    """Count the messages of each segment, and their bytes."""
    for rows in state.index.rows():
        numbers, which = np.unique(rows.file, return_inverse=True)
        valid = np.bincount(which, rows.size, len(numbers)).astype(np.int64)
        counts = np.bincount(which, minlength=len(numbers))
        for number, some, count in zip(numbers, valid, counts, strict=True):
            segment = state.segments[int(number)]
            segment.valid += int(some)
            segment.count += int(count)


# --- following a writer ---


def follow(
    directory: Directory, state: StoreState, past: list[Entry], report: ReportLine
) -> int | None:
    """Apply what a writer has done since: rows of its journal, and new messages of the segments.

    ->  number of changes; None: the store must be loaded again
    """
    changes, count = Changes(past), len(past)
    if any(entry.kind == END for entry in past):
        return None
    for entry in past:
        if entry.kind in (RESET, INTENT) and entry.file in state.segments:
            state.segments[entry.file].moved += 1
    _apply(state, past)
    _void(state, changes)
    try:
        present = listed(directory)
        for number in [n for n in state.segments if n not in present]:
            if any((rows.file == number).any() for rows in state.index.rows()):
                return None
            state.segments.pop(number).moved += 1
        for number, found in present.items():
            segment, length = state.segments.get(number), found.size
            if segment is None:
                segment = state.segments[number] = found
                segment.size = segment.version.START
            if number in changes.resets:  # all its messages: no scan, as others may be moving
                segment.size, segment.sealed, segment.beside = length, True, -1
            if length > segment.size and not segment.sealed:
                rows = _rows(number, _tail(directory, segment, segment.size, report))
                count += len(rows.file)
                add(state, changes.applied(rows))
    except FileNotFoundError:
        return None
    return count


def _apply(state: StoreState, past: list[Entry]) -> None:
    """Apply the rows of a journal to the index."""
    index = state.index
    for kind, number, offset, size, refs, msg_id in past:
        if kind == KEPT:
            index.put(msg_id, Place(number, offset, size, refs))
        elif kind == REFS:
            place = index.get(msg_id)
            if place is not None and place[:2] == (number, offset):
                if refs:
                    index.put(msg_id, place._replace(refs=refs))
                else:
                    index.remove(msg_id)
                    for other in state.later.pop(msg_id, [])[:1]:
                        index.put(msg_id, other)


def _void(state: StoreState, changes: Changes) -> None:
    """Remove from the index what a compaction did not keep: a scan during the compaction may have
    found messages that were about to be overwritten, or had moved already."""
    numbers = list(changes.resets)
    for msg_id, places in list(state.later.items()):
        state.later[msg_id] = [place for place in places if place.file not in changes.resets]
    kept = {(entry.file, entry.offset) for some in changes.resets.values() for entry in some}
    for rows in state.index.rows() if numbers else ():
        mine = rows.take(np.isin(rows.file, numbers))
        where = zip(mine.file.tolist(), mine.offset.tolist(), strict=True)
        for msg_id, at in zip(ids_of(mine), where, strict=True):
            if at not in kept:
                state.index.remove(msg_id)


# --- repair by a writer ---


def mend(directory: Directory, state: StoreState, report: ReportLine) -> None:
    """Cut off what is no record, and finish interrupted compactions. Raises OSError.

    The caller then writes a new snapshot, calls `cut` and removes segments without messages.
    """
    # The process that wrote these files may have ended before it synced them.
    names = [segment.name for segment in state.segments.values() if segment.scanned]
    if state.generation and directory.exists(name := f"{JOURNAL}{state.generation}"):
        names.append(name)
    for name in names:
        with directory.open(name, "w", follow=False) as storage:
            storage.sync()
    directory.sync()
    for number in sorted(state.torn):
        segment = state.segments[number]
        start = segment.size if segment.count else min(segment.size, segment.version.START)
        _keep_aside(directory, segment, [(start, NO_LIMIT)], report)
    for segment in state.segments.values():
        if segment.lost and segment.count:  # a compaction would overwrite it
            _keep_aside(directory, segment, segment.lost, report)
    cut(directory, state)
    for number, kept in state.redo.items():
        segment = state.segments[number]
        with directory.open(segment.name, "w", follow=False) as storage:
            plan = segment.version.compact(storage, kept.offset, kept.size)  # no source is gone
            storage.sync()
        state.index.swap_many(kept, kept._replace(offset=plan.offsets(kept.offset)))
        state.cuts[number] = segment.size = plan.size


def end_journals(directory: Directory, generation: int) -> None:
    """End and remove the journals of other generations, which killed writers have left: readers
    that have one open wait for its END. Raises OSError."""
    for name, number in _journals(directory):
        if number == generation:
            continue
        with directory.open(name, "w", follow=False) as storage:
            _, end = entries(storage, number)
            if end:
                journal = Journal(storage, number, begun=True)
                journal.size = end
                journal.add(END, 0, 0, 0, 0, NO_ID)
                journal.flush()
        directory.unlink(name)


def cut(directory: Directory, state: StoreState) -> None:
    """Truncate the segments in `state.cuts`. Raises OSError."""
    for number, end in state.cuts.items():
        with directory.open(state.segments[number].name, "w", follow=False) as storage:
            storage.truncate(min(end, storage.size()))
            storage.sync()
        state.segments[number].sealed = True
    state.cuts.clear()


def _keep_aside(
    directory: Directory, segment: Segment, places: list[tuple[int, int]], report: ReportLine
) -> None:
    """Keep parts [start, stop) of a segment in a file of their own, unless all are zeros."""
    with directory.open(segment.name, follow=False) as storage:
        size = storage.size()
        parts = [storage.read(start, max(min(stop, size) - start, 0)) for start, stop in places]
        name, length = keep_aside(directory, segment.name, storage, parts)
    if name:
        where = "at its end " if places[-1][1] == NO_LIMIT else ""
        report(f"{directory.path}/{segment.name}: {length} bytes {where}are no messages: in {name}")
