"""The segments of a queue: which there are, what is in them, and their messages in order."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOENT
from time import sleep
from typing import Final

from google_crc32c import value as crc32c

from winkformats.disk.storage import Directory, Kind, Storage
from winkformats.errors import CorruptError, FormatError
from winkformats.ledgerq import index, priorities
from winkformats.ledgerq.entry import (
    DATA,
    HEAD,
    HIGH,
    LEAST,
    LOW,
    PAD,
    PRIORITY,
    SUM,
    Message,
    decode,
)
from winkformats.ledgerq.index import Sparse
from winkformats.ledgerq.priorities import Places
from winkformats.ledgerq.segment import LAST, NAME, RESIDUE, START, WINDOW, Header, Walk, name_of
from winkfs.errors import NoSuchFile, Refusal

RACES: Final = 20  # compactions, one right behind the other, that a look survives
OPEN: Final = 64  # segments open for reading
NEAR: Final = 8192  # bytes between messages of one priority up to which they are read together
PROBE: Final = 1 << 20  # bytes of each segment looked at for priorities
WRITING: Final = 0.05  # seconds in which a write goes on
SHORTEST: Final = LEAST + len(PAD)  # bytes of an entry and what is behind it
Say = Callable[[str], object]
_new: Final = tuple.__new__


@dataclass(slots=True)
class Segment:
    """A file of messages.

    number      in its name
    size        bytes up to the end of its last good entry, as far as that is known; else of all
    first, last ids in it; 0, and that of the segment before: it has none
    header      as it was written, None: it is damaged
    torn        bytes behind `size` that are no entries
    indexed     whether there is a file of its index
    bad         [start, stop) of others
    identity    of the file
    """

    number: int
    size: int
    first: int = 0
    last: int = 0
    header: Header | None = None
    torn: int = 0
    indexed: bool = False
    bad: tuple[tuple[int, int], ...] = ()
    sparse: Sparse | None = None
    tables: tuple[Places, Places, Places] | None = None
    identity: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        return name_of(self.number)

    @property
    def count(self) -> int:
        """Messages, as far as ids tell."""
        return self.last - self.first + 1 if self.first else 0


class Files:
    """The segments in a directory. Not for several threads at once.

    segments     by number, ascending
    active       what is written to, by this process; None: nothing is
    flush        is called before the active one is read
    by_priority  whether who reads entries for their ids also notes their priorities
    changes      grows when what is known of where messages are has become void
    """

    def __init__(self, directory: Directory, say: Say) -> None:
        self.directory, self._tell = directory, say
        self.segments: dict[int, Segment] = {}
        self.active: Segment | None = None
        self.flush: Callable[[], object] = lambda: None
        self.by_priority = False
        self.changes = 0
        self._open: dict[int, Storage] = {}
        self._told: set[str] = set()

    def say(self, line: str) -> None:
        """Tell of damage, once each."""
        if line not in self._told:
            self._told.add(line)
            self._tell(line)

    def path(self, segment: Segment) -> str:
        return f"{self.directory.path}/{segment.name}"

    # --- which there are ---

    def load(self, *, follow: bool = False) -> None:
        """Find the segments, and read what has no index yet. Raises Refusal; OSError.

        follow  somebody else may be writing: a torn end is none that is told
        cost    a read of each segment; the last one from its last index row on
        """
        for _ in range(RACES):  # somebody may remove segments that were just listed
            with suppress(FileNotFoundError):
                self._load(follow=follow)
                return
        self._load(follow=follow)

    def _load(self, *, follow: bool) -> None:
        names = set(self.directory.list())
        found = self._listed(names)
        numbers, before = sorted(found), 0
        for number in numbers:
            size, identity = found[number]
            segment = self.segments.get(number)
            if segment is not None and segment.identity != identity:
                self.drop(segment)
                segment = None
            if segment is None:
                segment = self.segments[number] = Segment(number, size, identity=identity)
                segment.indexed = name_of(number, index.SUFFIX) in names
                self._read_header(segment)
                self._know(segment, before, last=number == numbers[-1], follow=follow)
            elif segment is not self.active and size != segment.size + segment.torn:
                self.grow(segment, size)
            before = max(before, segment.last)
        for number in [n for n in self.segments if n not in found]:
            self.drop(self.segments[number])
        self.segments = dict(sorted(self.segments.items()))

    def grow(self, segment: Segment, size: int) -> None:
        """Take up what somebody else has added."""
        if segment.sparse is None:
            self.sparse(segment)
        if size >= segment.size - len(PAD):
            walk = Walk(self.storage(segment), segment.size, segment.last)
            self.extend(segment, walk, size, follow=True)
        else:
            self.scan(segment, max(segment.first - 1, 0), anew=True)
            self.changes += 1

    def _listed(self, names: Iterable[str]) -> dict[int, tuple[int, tuple[int, int]]]:
        """Number -> bytes, identity."""
        found = {}
        for name in names:
            if not (match := NAME.fullmatch(name)):
                continue
            info = self.directory.info(name)
            if info is None:
                raise FileNotFoundError(ENOENT, os.strerror(ENOENT), self.directory.path)
            if info.kind is not Kind.FILE or int(match[1]) > LAST:
                raise Refusal(f"{name} is no segment: a {info.kind.value}", self.directory.path)
            found[int(match[1])] = info.size, info.identity
        return found

    def _read_header(self, segment: Segment) -> None:
        try:
            data = self.storage(segment).read(0, START)
            segment.header = Header.decode(data, file=self.path(segment))
            if segment.header.base != segment.number:
                raise CorruptError(
                    "number of a segment", file=self.path(segment), offset=8,
                    expected=segment.number, found=segment.header.base,
                )  # fmt: skip
        except CorruptError as error:
            segment.header = None
            self.say(str(error))

    def _know(self, segment: Segment, before: int, *, last: bool, follow: bool) -> None:
        """Find out which ids are in a segment behind that with id `before`."""
        head = segment.header
        if head is not None and head.max_id and not last:
            room = max(segment.size - START + len(PAD), 0) // SHORTEST
            first = self.storage(segment).read(START, HEAD.size)
            if (
                before < head.min_id <= head.max_id < head.min_id + room
                and len(first) == HEAD.size
                and HEAD.unpack(first)[3] == head.min_id
            ):
                segment.first, segment.last = head.min_id, head.max_id
                return
        self.scan(segment, before, follow=follow)

    def scan(
        self, segment: Segment, before: int, *, anew: bool = False, follow: bool = False
    ) -> None:
        """Read the entries of a segment, those of which there is no index yet.

        before  the last id of the segments before
        anew    all of them
        """
        storage = self.storage(segment)
        size = storage.size()
        segment.first, segment.last, segment.sparse, segment.bad = 0, before, Sparse(), ()
        segment.tables = priorities.empty() if self.by_priority else None
        walk = Walk(storage, START, before)
        if not anew and (known := self._read_index(segment, size)) and known.ids[0] > before:
            segment.sparse, segment.first, segment.tables = known, known.ids[0], None
            walk.offset, walk.last = known.offsets[-1], known.ids[-1] - 1
        self.extend(segment, walk, size, follow=follow)

    def extend(self, segment: Segment, walk: Walk, size: int, *, follow: bool = False) -> None:
        """Take up the entries that a walk finds from where it is."""
        sparse = segment.sparse
        assert sparse is not None
        start = walk.last
        while walk.step(size):
            base, unpack = walk.base, HEAD.unpack_from
            segment.first = segment.first or unpack(walk.data, walk.places[0])[3]
            due = sparse.next - base
            for at in walk.places:
                if at >= due:
                    _, _, _, id, timestamp = unpack(walk.data, at)
                    sparse.add(id, base + at, timestamp)
                    due = sparse.next - base
            if segment.tables is not None:
                _sort(walk, segment.tables)
        if walk.last > start:
            segment.last = walk.last
        segment.bad += tuple(walk.bad)
        segment.size = max(walk.offset if walk.tail < 0 else walk.tail, START)
        segment.torn = max(size - segment.size, 0)
        for begin, stop in walk.bad:
            self._say_bad(segment, begin, stop)
        if segment.torn and not follow:
            self._say_bad(segment, segment.size, size)

    def tell_torn(self) -> None:
        """Tell of ends that are torn and stay so: others may be somebody's who is just writing."""
        torn = {n: (s.size, s.torn) for n, s in self.segments.items() if s.torn}
        if torn:
            sleep(WRITING)
            self.load(follow=True)
        for segment in self.segments.values():
            if torn.get(segment.number) == (segment.size, segment.torn):
                self._say_bad(segment, segment.size, segment.size + segment.torn)

    def _say_bad(self, segment: Segment, start: int, stop: int) -> None:
        self.say(f"{self.path(segment)}: {stop - start} bytes at byte {start} are no messages")

    def _read_index(self, segment: Segment, size: int) -> Sparse | None:
        """The index file of a segment; None: there is none, or none that is any good, or no row."""
        data, path = self.side_file(name_of(segment.number, index.SUFFIX))
        if data is None:
            return None
        try:
            found = Sparse.decode(data, segment.number, file=path, size=size)
            return found if len(found) and self._leads(segment, found) else None
        except CorruptError as error:
            self.say(f"{error}: made again in memory")
            return None

    def _leads(self, segment: Segment, found: Sparse) -> bool:
        """Whether the first and last row are entries of the segment."""
        storage = self.storage(segment)
        for at in (0, -1):
            head = storage.read(found.offsets[at], HEAD.size)
            if len(head) < HEAD.size or HEAD.unpack(head)[3] != found.ids[at]:
                self.say(
                    f"{self.path(segment)}: its index is that of another: made again in memory"
                )
                return False
        return True

    def side_file(self, name: str) -> tuple[bytes | None, str]:
        """What is in a file, None: there is none; and its path."""
        path = f"{self.directory.path}/{name}"
        try:
            with self.directory.open(name, follow=False) as storage:
                return storage.read(0, storage.size()), path
        except FileNotFoundError:
            return None, path

    def removable(
        self, floor: int, before: int | None, bytes: int | None, count: int | None, least: int
    ) -> list[Segment]:
        """The first segments, without messages from the id `floor` on, which ended `before` a time
        (nanoseconds since the epoch), or until limits are met; see `Queue.compact`."""
        there = list(self.segments.values())
        size, gone = sum(segment.size for segment in there), []
        for i, segment in enumerate(there[:-1]):
            if len(there) - i <= max(least, 1) or segment.last >= floor:
                break
            following = there[i + 1].header
            if not (
                (before, bytes, count) == (None, None, None)
                or (before is not None and following is not None and following.created < before)
                or (bytes is not None and size > bytes)
                or (count is not None and len(there) - i > count)
            ):
                break
            size -= segment.size
            gone.append(segment)
        return gone

    def missing(self, floor: int, end: int) -> list[tuple[int, int]]:
        """First and last of ids in [floor, end) which are in no segment, and not in the place of
        bytes that are damaged."""
        found, before, damaged = [], 0, False
        for segment in self.segments.values():
            damaged = damaged or bool(segment.bad or segment.torn) or segment.header is None
            if segment.first:
                found.append((max(floor, before + 1), min(segment.first, end) - 1, damaged))
                before, damaged = segment.last, bool(segment.bad or segment.torn)
        found.append((max(floor, before + 1), end - 1, damaged))
        return [(first, last) for first, last, damaged in found if first <= last and not damaged]

    def left(self, floor: int) -> list[Segment]:
        """Segments that an interrupted compaction has left: others behind them, below the id
        `floor`, are gone."""
        there = [segment for segment in self.segments.values() if segment.first]
        for i in range(len(there) - 1, 0, -1):
            if there[i - 1].last + 1 < there[i].first <= floor:
                return there[:i]
        return []

    def remove(self, segment: Segment) -> None:
        """Remove a segment and what is beside it; who calls syncs the directory."""
        for suffix in (".log", index.SUFFIX, priorities.SUFFIX):
            self.directory.unlink(name_of(segment.number, suffix))
        self.drop(segment)

    def drop(self, segment: Segment) -> None:
        """Of a segment whose file is gone, or another."""
        self.segments.pop(segment.number, None)
        if (storage := self._open.pop(segment.number, None)) is not None:
            storage.close()
        self.changes += 1

    def close(self) -> None:
        for storage in self._open.values():
            storage.close()
        self._open.clear()

    # --- what is in them ---

    @property
    def last(self) -> int:
        """The highest id."""
        return max((segment.last for segment in self.segments.values()), default=0)

    @property
    def newest(self) -> Segment | None:
        """The last one, which also may have no messages yet."""
        return next(reversed(self.segments.values()), None)

    def storage(self, segment: Segment) -> Storage:
        found = self._open.get(segment.number)
        if found is None:
            found = self.directory.open(segment.name, follow=False)
            if len(self._open) >= OPEN:
                self._open.pop(next(iter(self._open))).close()
                self.changes += 1  # who reads from it has to begin anew
            self._open[segment.number] = found
        return found

    def readable(self, segment: Segment) -> int:
        """Bytes of a segment that can be read from its file."""
        if segment is self.active:
            self.flush()
        return segment.size

    def sparse(self, segment: Segment) -> Sparse:
        """Its index. Cost: reads the file; without one the segment."""
        if segment.sparse is None:
            segment.sparse = self._read_index(segment, segment.size)
            if segment.sparse is None:
                before = max(segment.first - 1, 0)
                self.scan(segment, before, anew=True)
        assert segment.sparse is not None
        return segment.sparse

    def tables(self, segment: Segment) -> tuple[Places, Places, Places]:
        """Where the messages of each priority are. Cost: reads the file, or all of the segment."""
        if segment.tables is None:
            walk = Walk(self.storage(segment), START, max(segment.first - 1, 0))
            size, found = self.readable(segment), priorities.empty()
            data, path = self.side_file(name_of(segment.number, priorities.SUFFIX))
            if data is not None:
                try:
                    found, walk.offset = priorities.decode(data, file=path, size=size)
                    walk.last = max([walk.last, *(ids[-1] for ids, _ in found if ids)])
                except CorruptError as error:
                    self.say(f"{error}: made again in memory")
            while walk.step(size):
                _sort(walk, found)
            self._say_short(segment, walk)
            segment.tables = found
        return segment.tables

    def pending(self, at: list[int]) -> int:
        """Messages that are not below the position of their priority, as far as ids tell."""
        count, lowest, highest = 0, min(at), max(at)
        for segment in self._from(lowest):
            if lowest == highest or segment.first >= highest:
                count += segment.last - max(segment.first, lowest) + 1
            else:
                for (ids, _), position in zip(self.tables(segment), at, strict=True):
                    count += len(ids) - bisect_left(ids, position)
        return count

    def have_priorities(self, start: int) -> bool:
        """Whether a message from this id on has a priority, as far as a look into the first PROBE
        bytes of each segment tells."""
        for segment in self._from(start):
            if segment.tables is not None:
                if any(ids for ids, _ in segment.tables[1:]):
                    return True
                continue
            try:
                walk = Walk(self.storage(segment), *self._at(segment, start))
            except FileNotFoundError:  # somebody has removed it
                continue
            size = min(self.readable(segment), walk.offset + PROBE)
            while walk.step(size):
                if any(row[2] & PRIORITY for row in walk.rows()):
                    return True
        return False

    def _at(self, segment: Segment, id: int) -> tuple[int, int]:
        """Where to read a segment from for the messages from an id on: offset, and an id below."""
        at = -1 if id <= segment.first else self.sparse(segment).before(id)
        return self._row(segment, at) or (START, max(segment.first - 1, 0))

    def _row(self, segment: Segment, at: int) -> tuple[int, int] | None:
        """The place of a row of the index, as `_at`; None: there is no such entry. Rows have no
        checksum."""
        if at < 0:
            return None
        sparse = self.sparse(segment)
        offset, id = sparse.offsets[at], sparse.ids[at]
        self.readable(segment)
        head = self.storage(segment).read(offset, HEAD.size)
        if len(head) == HEAD.size:
            _, _, _, found, timestamp = HEAD.unpack(head)
            if (found, timestamp) == (id, sparse.times[at]):
                return offset, id - 1
        self.say(f"{self.path(segment)}: a row of its index is wrong: message {id}")
        return None

    def _from(self, id: int) -> list[Segment]:
        """The segments with an id, or a higher one."""
        return [
            segment for segment in self.segments.values() if segment.last >= id and segment.first
        ]

    def next(self, number: int) -> Segment | None:
        """The next segment with messages."""
        return next((s for n, s in self.segments.items() if n > number and s.first), None)

    def find(self, id: int) -> Message | None:
        """The message with an id; None: there is none. Raises CorruptError; FormatError; OSError.

        cost  a read of 4 KiB, and of the segment's index the first time
        """
        for segment in self._from(id):
            if segment.first > id:
                break
            walk = Walk(self.storage(segment), *self._at(segment, id))
            size = self.readable(segment)
            while walk.last < id and walk.step(size, NEAR):
                for _, kind, _, found, _, at in walk.rows():
                    if found == id and kind == DATA:
                        return decode(
                            walk.data, at, file=self.path(segment), offset=walk.base + at,
                            segment=segment.number,
                        )  # fmt: skip
        return None

    def at_time(self, timestamp: int) -> int:
        """The id of the first message that was enqueued then or later; that behind the last one."""
        segments = [segment for segment in self.segments.values() if segment.first]
        first = bisect_left([self.sparse(one).times[0] for one in segments], timestamp) - 1
        if first >= 0 and self._row(segments[first], 0) is None:
            first = 0
        for segment in segments[max(first, 0) :]:
            place = self._row(segment, self.sparse(segment).before_time(timestamp))
            walk = Walk(self.storage(segment), *(place or (START, segment.first - 1)))
            size = self.readable(segment)
            while walk.step(size, NEAR):
                for _, _, _, id, time, _ in walk.rows():
                    if time >= timestamp:
                        return id
        return self.last + 1

    # --- in order ---

    def arrivals(self, start: int) -> Iterator[Message | None]:
        """The messages from an id on, by arrival. None where there is none any more: then the next
        one is looked for anew. Damage is told and skipped. Ends when `changes` has grown.

        cost  1.3 us a message
        """
        changes = self.changes
        segment = next(iter(self._from(start)), None) or self.newest
        while segment is None:
            yield None
            if changes != self.changes:
                return
            segment = next(iter(self.segments.values()), None)
        while segment is not None:
            number, path = segment.number, self.path(segment)
            walk = Walk(self.storage(segment), *self._at(segment, start))
            changes = self.changes  # to open it may have closed another
            while True:
                more = walk.step(self.readable(segment))
                self._say_walk(segment, walk)
                if not more:
                    following = self.next(number)
                    if following is not None:
                        if walk.tail >= 0:
                            self._say_bad(segment, walk.tail, segment.size)
                        self._say_short(segment, walk)
                        break
                    yield None
                    if changes != self.changes:
                        return
                    continue
                data, base, unpack = walk.data, walk.base, HEAD.unpack_from
                for at in walk.places:
                    length, kind, flags, id, timestamp = unpack(data, at)
                    if kind != DATA or id < start:
                        continue
                    if flags:
                        message = self._decoded(data, at, path, base + at, number)
                        if message is None:
                            continue
                    else:
                        payload = data[at + HEAD.size : at + length - SUM.size]
                        message = _new(
                            Message,
                            (id, payload, timestamp, LOW, None, {}, base + at, number, 1),
                        )
                    yield message
                    if changes != self.changes:
                        return
            segment = following

    def all(self, start: int = 1) -> Iterator[Message]:
        """All messages from an id on, by arrival, also while the segments change."""
        lane = self.arrivals(start)
        while True:
            try:
                message = next(lane)
            except StopIteration:
                lane = self.arrivals(start)
                continue
            except FileNotFoundError:
                self.look_again()
                lane = self.arrivals(start)
                continue
            if message is None:
                return
            start = message.id + 1
            yield message

    def look_again(self) -> None:
        """A segment is gone: who looks has to see what a writer has done. Raises NoSuchFile."""
        before = self.changes
        self.load(follow=True)
        if before == self.changes:
            raise NoSuchFile("a segment is gone: open it anew", self.directory.path)

    def _say_walk(self, segment: Segment, walk: Walk) -> None:
        for begin, stop in walk.bad:
            self._say_bad(segment, begin, stop)
        walk.bad.clear()

    def _say_short(self, segment: Segment, walk: Walk) -> None:
        """A segment that has ended may end before the last id of its header: it was cut behind an
        entry. Damaged bytes are reported as such."""
        if walk.last < segment.last and walk.tail < 0 and not segment.bad:
            first = walk.last + 1
            ids = f"messages {first} to {segment.last}"
            self.say(f"{self.path(segment)}: {ids} are missing: the segment is cut short")

    def _decoded(self, data: bytes, at: int, path: str, offset: int, number: int) -> Message | None:
        """A message; None: it cannot be read, which was told."""
        try:
            return decode(data, at, file=path, offset=offset, segment=number)
        except FormatError as error:
            self.say(str(error))
            return None

    def of_priority(self, priority: int, start: int) -> Iterator[Message | None]:
        """The messages of a priority from an id on; see `arrivals`. Cost: 2 us a message, and 16
        bytes of memory each in the segments that are being read."""
        changes = self.changes
        segment: Segment | None = next(iter(self._from(start)), None)
        number = segment.number if segment else max(self.segments, default=0)
        while True:
            segment = self.segments.get(number)
            ids = offsets = None
            if segment is not None:
                ids, offsets = self.tables(segment)[priority]
                changes = self.changes
                at = bisect_left(ids, start)
            while segment is not None and ids is not None and offsets is not None:
                if at >= len(ids):
                    break
                stop = min(at + 256, len(ids))
                for message in self._read(segment, ids[at:stop], offsets[at:stop]):
                    yield message
                    if changes != self.changes:
                        return
                at = stop
                start = ids[stop - 1] + 1
            following = self.next(number)
            if following is not None:
                number = following.number
                continue
            yield None
            if changes != self.changes:
                return

    def _read(
        self,
        segment: Segment,
        ids: array[int],
        offsets: "array[int]",  # noqa: UP037
    ) -> Iterator[Message]:
        """The messages with these ids, which are at these offsets."""
        size, storage, path = self.readable(segment), self.storage(segment), self.path(segment)
        count, data, base = len(ids), b"", 0
        for i, (id, offset) in enumerate(zip(ids, offsets, strict=True)):
            at = offset - base
            if not data or at + HEAD.size > len(data):
                far = offsets[-1] - offset
                wanted = min(far + NEAR, WINDOW) if far <= (count - i) * NEAR else NEAR
                data, base, at = storage.read(offset, min(wanted, size - offset)), offset, 0
            if at + HEAD.size <= len(data):
                length, kind, _, found, _ = HEAD.unpack_from(data, at)
                if at + length > len(data) and LEAST <= length <= size - offset:
                    data, base, at = storage.read(offset, max(length, NEAR)), offset, 0
                good = LEAST <= length <= len(data) - at and found == id and kind == DATA
                if good and crc32c(data[at : at + length]) == RESIDUE:
                    message = self._decoded(data, at, path, offset, segment.number)
                    if message is not None:
                        yield message
                    continue
            self.say(f"{path}: message {id} at byte {offset} is damaged")


def _sort(walk: Walk, tables: tuple[Places, Places, Places]) -> None:
    """Note where the messages are that a walk has found. Cost: 0.1 us a message."""
    import numpy as np  # a queue by arrival starts without it

    at = np.array(walk.places)
    heads = np.frombuffer(walk.data, np.uint8)[at[:, None] + np.arange(HEAD.size + 1)]
    ids, offsets = heads[:, 6:14].copy().view("<u8")[:, 0], at.astype(np.uint64) + walk.base
    given = (heads[:, 5] & PRIORITY) > 0
    # What no priority can be is that of a message that cannot be read.
    lanes = np.where(given, np.minimum(heads[:, HEAD.size], HIGH), LOW)
    for lane, places in enumerate(tables):
        chosen = (lanes == lane) & (heads[:, 4] == DATA)
        for column, values in zip(places, (ids, offsets), strict=True):
            column.frombytes(values[chosen].astype(np.uint64).tobytes())
