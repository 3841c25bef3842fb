"""Segments of a queue: the files there are, and the ids of the messages in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOENT
from time import sleep
from typing import Final

from winkformats.disk.storage import Directory, FileType, Storage, replacing
from winkformats.ledgerq import index, priorities
from winkformats.ledgerq.entry import (
    DATA,
    HEAD,
    HIGH,
    LEAST,
    LOW,
    PAD,
    PRIORITY,
)
from winkformats.ledgerq.segment import LAST, NAME, START, SUFFIX, Header, Walk, name_of
from winkfs.errors import CorruptError, Refusal

LOAD_TRIES: Final = 20  # listings of a folder from which compactions remove segments meanwhile
OPEN_SEGMENTS: Final = 64  # segments open for reading
WRITE_SECONDS: Final = 0.05  # seconds in which another process finishes a write
ENTRY_BYTES: Final = LEAST + len(PAD)  # bytes of the shortest entry, with its padding
Warn = Callable[[str], object]
Tables = tuple[priorities.Places, priorities.Places, priorities.Places]  # low, medium, high


@dataclass(slots=True)
class Segment:
    """A file of messages.

    number      in its name
    size        bytes up to the end of its last good entry if that is known, else of the file
    first, last ids in it; without messages 0, and the last id of the segment before
    header      as it was written; None: it is damaged
    torn        bytes behind `size` that are no entries
    indexed     whether its index has a file
    bad         [start, stop) of bytes between entries that are none
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
    sparse: index.Sparse | None = None
    tables: Tables | None = None
    identity: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        return name_of(self.number)

    @property
    def count(self) -> int:
        """The number of messages by their ids."""
        return self.last - self.first + 1 if self.first else 0


class Files:
    """The segments in a directory. Not for several threads at once.

    segments     by number, ascending
    active       the segment that this process writes to, if any
    flush        called before the active segment is read
    by_priority  whether a pass over entries also notes their priorities
    changes      grows when positions of messages that were read have become invalid
    """

    def __init__(self, directory: Directory, warn: Warn) -> None:
        self.directory, self._warn = directory, warn
        self.segments: dict[int, Segment] = {}
        self.active: Segment | None = None
        self.flush: Callable[[], object] = lambda: None
        self.by_priority = False
        self.changes = 0
        self._open: dict[int, Storage] = {}
        self._warned: set[str] = set()

    def warn(self, line: str) -> None:
        """Report damage, each line once."""
        if line not in self._warned:
            self._warned.add(line)
            self._warn(line)

    def path(self, segment: Segment, suffix: str = SUFFIX) -> str:
        """Return the path of a segment, or of the file beside it with this suffix."""
        return f"{self.directory.path}/{name_of(segment.number, suffix)}"

    # --- which there are ---

    def load(self, *, follow: bool = False) -> None:
        """Find the segments, and read what has no index yet. Raises Refusal; OSError.

        follow  another process may be writing: a torn end is not reported
        cost    a read of each segment; the last one from its last index row on
        """
        for _ in range(LOAD_TRIES):  # a compaction may remove segments that were just listed
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
        """Take up the entries that another process has added."""
        if segment.sparse is None:
            self.sparse(segment)
        if size >= segment.size - len(PAD):
            walk = Walk(self.storage(segment), segment.size, segment.last)
            self.extend(segment, walk, size, follow=True)
        else:
            self.scan(segment, max(segment.first - 1, 0), anew=True)
            self.changes += 1

    def _listed(self, names: Iterable[str]) -> dict[int, tuple[int, tuple[int, int]]]:
        """Return bytes and identity of each segment, by number."""
        found = {}
        for name in names:
            if not (match := NAME.fullmatch(name)):
                continue
            info = self.directory.info(name)
            if info is None:
                raise FileNotFoundError(ENOENT, os.strerror(ENOENT), self.directory.path)
            if info.kind is not FileType.FILE or int(match[1]) > LAST:
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
            self.warn(str(error))

    def _know(self, segment: Segment, before: int, *, last: bool, follow: bool) -> None:
        """Find the ids of a segment that follows the id `before`."""
        head = segment.header
        if head is not None and head.max_id and not last:
            room = max(segment.size - START + len(PAD), 0) // ENTRY_BYTES
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
        """Read the entries of a segment that its index does not cover.

        before  the last id of the segments before
        anew    read all of them
        """
        storage = self.storage(segment)
        size = storage.size()
        segment.first, segment.last, segment.sparse, segment.bad = 0, before, index.Sparse(), ()
        segment.tables = priorities.empty() if self.by_priority else None
        walk = Walk(storage, START, before)
        if not anew and (known := self._read_index(segment, size)) and known.ids[0] > before:
            segment.sparse, segment.first, segment.tables = known, known.ids[0], None
            walk.offset, walk.last = known.offsets[-1], known.ids[-1] - 1
        self.extend(segment, walk, size, follow=follow)

    def extend(self, segment: Segment, walk: Walk, size: int, *, follow: bool = False) -> None:
        """Take up the entries that a walk finds from where it is."""
        start = walk.last
        while walk.step(size):
            note(segment, walk)
        if walk.last > start:
            segment.last = walk.last
        segment.bad += tuple(walk.bad)
        segment.size = max(walk.offset if walk.tail < 0 else walk.tail, START)
        segment.torn = max(size - segment.size, 0)
        for begin, stop in walk.bad:
            self.warn_bad(segment, begin, stop)
        if segment.torn and not follow:
            self.warn_bad(segment, segment.size, size)

    def warn_torn(self) -> None:
        """Report torn ends, unless another process is just writing them."""
        torn = {n: (s.size, s.torn) for n, s in self.segments.items() if s.torn}
        if torn:
            sleep(WRITE_SECONDS)
            self.load(follow=True)
        for segment in self.segments.values():
            if torn.get(segment.number) == (segment.size, segment.torn):
                self.warn_bad(segment, segment.size, segment.size + segment.torn)

    def warn_bad(self, segment: Segment, start: int, stop: int) -> None:
        self.warn(f"{self.path(segment)}: {stop - start} bytes at byte {start} are no messages")

    def _read_index(self, segment: Segment, size: int) -> index.Sparse | None:
        """Return the index of a segment from its file; None: it is missing, damaged or empty."""
        data, path = self.beside(segment, index.SUFFIX), self.path(segment, index.SUFFIX)
        if data is not None:
            try:
                found = index.Sparse.decode(data, segment.number, file=path, size=size)
                return found if len(found) and self._leads(segment, found) else None
            except CorruptError as error:
                self.warn(f"{error}: made again in memory")
        return None

    def _leads(self, segment: Segment, found: index.Sparse) -> bool:
        """Return whether the first and last row are entries of the segment."""
        storage = self.storage(segment)
        for at in (0, -1):
            head = storage.read(found.offsets[at], HEAD.size)
            if len(head) < HEAD.size or HEAD.unpack(head)[3] != found.ids[at]:
                self.warn(
                    f"{self.path(segment)}: its index is that of another: made again in memory"
                )
                return False
        return True

    def beside(self, segment: Segment, suffix: str) -> bytes | None:
        """Return the content of the file beside a segment; None: there is none."""
        return content_of(self.directory, name_of(segment.number, suffix))

    def removable(
        self, floor: int, before: int | None, bytes: int | None, count: int | None, least: int
    ) -> list[Segment]:
        """Return the first segments without messages from the id `floor` on that ended `before` a
        time (nanoseconds since the epoch), or exceed the limits; see `Queue.compact`."""
        segments = list(self.segments.values())
        size, gone = sum(segment.size for segment in segments), []
        for i, segment in enumerate(segments[:-1]):
            if len(segments) - i <= max(least, 1) or segment.last >= floor:
                break
            following = segments[i + 1].header
            if not (
                (before, bytes, count) == (None, None, None)
                or (before is not None and following is not None and following.created < before)
                or (bytes is not None and size > bytes)
                or (count is not None and len(segments) - i > count)
            ):
                break
            size -= segment.size
            gone.append(segment)
        return gone

    def missing(self, floor: int, end: int) -> list[tuple[int, int]]:
        """Return first and last of the ids in [floor, end) that no segment has, except where bytes
        are damaged."""
        found, before, damaged = [], 0, False
        for segment in self.segments.values():
            damaged = damaged or bool(segment.bad or segment.torn) or segment.header is None
            if segment.first:
                found.append((max(floor, before + 1), min(segment.first, end) - 1, damaged))
                before, damaged = segment.last, bool(segment.bad or segment.torn)
        found.append((max(floor, before + 1), end - 1, damaged))
        return [(first, last) for first, last, damaged in found if first <= last and not damaged]

    def left_by_compaction(self, floor: int) -> list[Segment]:
        """Return the segments that an interrupted compaction has left: later ones, below the id
        `floor`, are gone."""
        segments = [segment for segment in self.segments.values() if segment.first]
        for i in range(len(segments) - 1, 0, -1):
            if segments[i - 1].last + 1 < segments[i].first <= floor:
                return segments[:i]
        return []

    def remove(self, segment: Segment) -> None:
        """Remove a segment and the files beside it; the caller syncs the directory."""
        for suffix in (SUFFIX, index.SUFFIX, priorities.SUFFIX):
            self.directory.unlink(name_of(segment.number, suffix))
        self.drop(segment)

    def drop(self, segment: Segment) -> None:
        """Forget a segment whose file is gone, or was replaced."""
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
        """The highest id of all messages."""
        return max((segment.last for segment in self.segments.values()), default=0)

    @property
    def newest(self) -> Segment | None:
        """The last segment, which may have no messages yet."""
        return next(reversed(self.segments.values()), None)

    def storage(self, segment: Segment) -> Storage:
        found = self._open.get(segment.number)
        if found is None:
            found = self.directory.open(segment.name, follow=False)
            if len(self._open) >= OPEN_SEGMENTS:
                self._open.pop(next(iter(self._open))).close()
                self.changes += 1  # iterators over it have to begin again
            self._open[segment.number] = found
        return found

    def readable(self, segment: Segment) -> int:
        """Return how many bytes of a segment can be read from its file."""
        if segment is self.active:
            self.flush()
        return segment.size

    def sparse(self, segment: Segment) -> index.Sparse:
        """Return the index of a segment. Cost: reads its file, or without one the segment."""
        if segment.sparse is None:
            segment.sparse = self._read_index(segment, segment.size)
            if segment.sparse is None:
                before = max(segment.first - 1, 0)
                self.scan(segment, before, anew=True)
        assert segment.sparse is not None
        return segment.sparse

    def tables(self, segment: Segment) -> Tables:
        """Return ids and offsets by priority. Cost: reads their file, or all of the segment."""
        if segment.tables is None:
            walk = Walk(self.storage(segment), START, max(segment.first - 1, 0))
            size, found = self.readable(segment), priorities.empty()
            data = self.beside(segment, priorities.SUFFIX)
            if data is not None:
                path = self.path(segment, priorities.SUFFIX)
                try:
                    found, walk.offset = priorities.decode(data, file=path, size=size)
                    walk.last = max([walk.last, *(ids[-1] for ids, _ in found if ids)])
                except CorruptError as error:
                    self.warn(f"{error}: made again in memory")
            while walk.step(size):
                _sort(walk, found)
            self.warn_short(segment, walk)
            segment.tables = found
        return segment.tables

    def next(self, number: int) -> Segment | None:
        """Return the next segment with messages."""
        return next((s for n, s in self.segments.items() if n > number and s.first), None)

    def warn_short(self, segment: Segment, walk: Walk) -> None:
        """Report a closed segment that ends before the last id of its header: it was cut behind an
        entry. Damaged bytes are reported as such."""
        if walk.last < segment.last and walk.tail < 0 and not segment.bad:
            self.warn(
                f"{self.path(segment)}: messages {walk.last + 1} to {segment.last} are missing: "
                "the segment is cut short"
            )


def note(segment: Segment, walk: Walk) -> None:
    """Note the entries that a walk has found: the first id, rows of the index, priorities."""
    sparse, base, unpack = segment.sparse, walk.base, HEAD.unpack_from
    assert sparse is not None
    segment.first = segment.first or unpack(walk.data, walk.places[0])[3]
    next_row = sparse.next - base
    for at in walk.places:
        if at >= next_row:
            _, _, _, id, timestamp = unpack(walk.data, at)
            sparse.add(id, base + at, timestamp)
            next_row = sparse.next - base
    if segment.tables is not None:
        _sort(walk, segment.tables)


def content_of(directory: Directory, name: str, most: int | None = None) -> bytes | None:
    """Return the first `most` bytes of a file, or all of it; None: there is no such file."""
    with suppress(FileNotFoundError), directory.open(name, follow=False) as storage:
        return storage.read(0, storage.size() if most is None else most)
    return None


def write_anew(directory: Directory, name: str, data: bytes) -> None:
    """Replace a file, unless it has this content."""
    if content_of(directory, name, len(data) + 1) != data:
        with replacing(directory, name) as storage:
            storage.write(0, [data])


def _sort(walk: Walk, tables: Tables) -> None:
    """Note ids and offsets of the messages that a walk has found, by priority."""
    import numpy as np  # a queue by arrival starts without it

    at = np.array(walk.places)
    heads = np.frombuffer(walk.data, np.uint8)[at[:, None] + np.arange(HEAD.size + 1)]
    ids, offsets = heads[:, 6:14].copy().view("<u8")[:, 0], at.astype(np.uint64) + walk.base
    given = (heads[:, 5] & PRIORITY) > 0
    # A number that is no priority belongs to a message that cannot be read.
    lanes = np.where(given, np.minimum(heads[:, HEAD.size], HIGH), LOW)
    for lane, places in enumerate(tables):
        chosen = (lanes == lane) & (heads[:, 4] == DATA)
        for column, values in zip(places, (ids, offsets), strict=True):
            column.frombytes(values[chosen].astype(np.uint64).tobytes())
