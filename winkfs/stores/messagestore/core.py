"""Core: the state of an open message store, and how it is written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import chain, repeat
from typing import Final

import numpy as np

from winkformats.disk.storage import Directory, SharedStorage, Storage, replacing
from winkformats.messagestore import rdq, sqs
from winkformats.messagestore.index import LAST, Index, MessageRows, Place, words_of
from winkformats.messagestore.journal import (
    END,
    INDEX,
    JOURNAL,
    NO_ID,
    REFS,
    RESET,
    SEALED,
    Journal,
    Snapshot,
    write_snapshot,
)
from winkformats.messagestore.segment import ID
from winkfs.access import Access
from winkfs.errors import Refusal
from winkfs.stores.handle import Calls
from winkfs.stores.messagestore import broker
from winkfs.stores.messagestore.recovery import Segment, StoreState, cut, end_journals, mend
from winkfs.units import as_content

SEGMENT_BYTES: Final = 16 << 20  # bytes of a segment after which a new one begins
LARGE_BODY_BYTES: Final = 4_000_000  # bytes of a body that gets a segment of its own
BUFFER_BYTES: Final = 1 << 20  # bytes of records that wait to be written
JOURNAL_BYTES: Final = (
    64 << 20
)  # bytes of a journal, at least, behind which there is a new snapshot
JOIN_BYTES: Final = 128 << 10  # bytes of small records that are joined before they are written
VECTOR_PARTS: Final = 1024  # parts that one write takes without joining them


class Core:
    """State of an open message store. All methods are called under `lock`, but `sync` without it.

    index, segments  the messages and their files
    current          the segment that messages are appended to; flushed: its bytes that are written
    out              segments that are open for writing
    done             number of changes; since: that number when the last snapshot was made
    full             whether the journal is long enough for a new snapshot
    busy             segments that are being compacted or migrated
    sync             makes all changes durable
    """

    index: Index
    segments: dict[int, Segment]

    def __init__(
        self,
        directory: Directory,
        access: Access,
        lock: threading.RLock,
        opened: dict[int, SharedStorage],
        sync: Callable[[], object],
        *,
        checksums: bool | None,
    ) -> None:
        """`opened`: segments that are open for reading; `checksums`: None: as in the snapshot."""
        self.directory, self.access, self.lock, self._opened = directory, access, lock, opened
        self.writable, self._wanted, self.checked = access.writable, checksums, False
        self.sync = sync
        self.problems: list[str] = []
        self.current: Segment | None = None
        self.out: dict[int, Storage] = {}
        self._parts: list[bytes] = []  # records that are not written, behind `flushed`
        self._waiting, self.flushed = 0, 0  # their bytes; bytes of the current segment
        self._dirty: set[int] = set()  # segments that were not synced
        self._named = False  # whether names have changed since the last sync
        self.done, self.full = 0, False
        self.busy: set[int] = set()

    def begin(self, state: StoreState) -> None:
        """Begin to write; after damage or an unclean end, repair and write a new snapshot.

        raises  OSError
        """
        broker.take_over(self.directory)
        end_journals(self.directory, state.generation)
        if not state.clean:
            mend(self.directory, state, self.problems.append)
        self.take(state)
        if not state.clean:
            self.checkpoint()
            cut(self.directory, state)
            for number in [n for n, segment in self.segments.items() if not segment.count]:
                self.unlink(self.segments.pop(number))
        else:
            storage = self.directory.open(f"{JOURNAL}{self.generation}", "w", follow=False)
            self.journal = Journal(storage, self.generation, begun=True)
        self.since = self.done

    def take(self, state: StoreState) -> None:
        """Use what was loaded from the directory."""
        self.index, self.segments = state.index, state.segments
        self.generation, self._next = state.generation, state.next_file
        self.state = state
        self.checked = state.checksums if self._wanted is None else self._wanted
        for segment in self.segments.values() if self.writable else ():
            large = segment.count == 1 and segment.size >= LARGE_BODY_BYTES
            good = segment.version is sqs and not segment.sealed and not large and segment.count
            if good and sqs.START <= segment.size < SEGMENT_BYTES:
                self.current, self.flushed = segment, segment.size

    def write(self, msg_id: bytes, body: bytes) -> None:
        if type(body) is not bytes:  # whose bytes may change before they are written
            body = as_content(body, "a body")
        if type(msg_id) is not bytes:
            checked_id(msg_id)
        self.done += 1
        current = self.current
        if current is None or current.size >= SEGMENT_BYTES:
            current = self.roll()
        if self._waiting > BUFFER_BYTES:
            self.flush()
        size, offset = sqs.HEAD.size + len(body), current.size
        if self.checked or size > LARGE_BODY_BYTES or len(msg_id) != ID:
            record = sqs.record(msg_id, body, checked=self.checked)
            if len(body) >= LARGE_BODY_BYTES:
                self._write_large(msg_id, record)
                return
            parts, size = (record, b""), len(record)
        else:
            parts = (sqs.HEAD.pack(sqs.MESSAGE, size, msg_id), body)
        if not self.index.add(msg_id, current.number, offset, size):
            self.hold(msg_id, 1)
            return
        self._parts += parts
        self._waiting += size
        current.size = offset + size
        if current.beside != size - len(body):
            current.has(size - len(body))
        current.valid += size
        current.count += 1

    def write_new(self, some: list[tuple[bytes, bytes]]) -> bool:
        """Write messages by columns; return False and do nothing unless all are new and small."""
        ids, bodies = zip(*some, strict=True)
        if {*map(type, ids), *map(type, bodies)} != {bytes}:
            return False
        if self.checked or set(map(len, ids)) != {ID} or len(set(ids)) < len(ids):
            return False
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies)) + sqs.HEAD.size
        words = words_of(b"".join(ids))
        if sizes.max() >= LARGE_BODY_BYTES or self.index.get_many(words)[1].any():
            return False
        at = 0
        while at < len(ids):
            current = self.current
            if current is None or current.size >= SEGMENT_BYTES:
                current = self.roll()
            if self._waiting > BUFFER_BYTES:
                self.flush()
            ends = current.size + np.cumsum(sizes[at:])
            count = min(int(np.searchsorted(ends, SEGMENT_BYTES)) + 1, len(ends))
            ends, part = ends[:count], sizes[at : at + count]
            self.index.add_many(
                MessageRows(
                    words[at : at + count], np.full(count, current.number), ends - part, part,
                    np.ones(count, np.int64),
                )
            )  # fmt: skip
            heads = map(sqs.HEAD.pack, repeat(sqs.MESSAGE), part.tolist(), ids[at : at + count])
            self._parts += chain.from_iterable(zip(heads, bodies[at : at + count], strict=True))
            self.done += count
            written = int(part.sum())
            self._waiting += written
            current.size += written
            current.has(sqs.HEAD.size)
            current.valid += written
            current.count += count
            at += count
        return True

    def _write_large(self, msg_id: bytes, record: bytes) -> None:
        if msg_id in self.index:
            self.hold(msg_id, 1)
            return
        segment = self.new_segment()
        try:
            self.out[segment.number].write(sqs.START, [record])
        except OSError:
            self.discard(segment)
            raise
        segment.size += len(record)
        segment.valid, segment.count, segment.beside = len(record), 1, -1
        self._dirty.add(segment.number)
        self.index.add(msg_id, segment.number, sqs.START, len(record))

    def new_segment(self) -> Segment:
        """Create an empty segment, with its header."""
        number = self._next
        if number > LAST:
            raise Refusal("there are no more numbers for segments", self.directory.path)
        segment = Segment(number, sqs, sqs.START)
        storage = self.directory.create_new(segment.name)
        self._next, self._named = number + 1, True
        self.out[number], self.segments[number] = storage, segment
        try:
            storage.write(0, [sqs.HEADER])
        except OSError:
            self.discard(segment)
            raise
        return segment

    def discard(self, segment: Segment) -> None:
        """Remove a segment that could not be written."""
        del self.segments[segment.number]
        self.journal.add(RESET, segment.number, 0, 0, 0, NO_ID)  # it is not missing
        with suppress(OSError):
            self.unlink(segment)

    def roll(self) -> Segment:
        """Begin a new current segment."""
        self.flush()
        before = self.current
        self.full = self.journal.size > max(JOURNAL_BYTES, 32 * self.index.count)
        self.current, self.flushed = self.new_segment(), sqs.START
        if before is not None and not before.count:
            self.remove_segments([before])
        return self.current

    def hold(self, msg_id: bytes, change: int) -> Place | None:
        """Change the number of references of a message; return its place, None: no such message."""
        place = self.index.hold(msg_id, change)
        if place is not None:
            self.journal.add(REFS, *place, msg_id)
        return place

    def remove_segments(self, empty: list[Segment]) -> None:
        """Remove the files of segments without messages, after a durable record of the removal."""
        if not empty:
            return
        for segment in empty:
            self.journal.add(RESET, segment.number, 0, 0, 0, NO_ID)
        self.sync_journal()
        for segment in empty:
            del self.segments[segment.number]
            self.unlink(segment)

    def unlink(self, segment: Segment) -> None:
        self._dirty.discard(segment.number)
        segment.moved += 1
        if (storage := self.out.pop(segment.number, None)) is not None:
            storage.close()
        self._opened.pop(segment.number, None)
        self.directory.unlink(segment.name)
        self._named = True

    # --- durable ---

    def flush(self) -> None:
        """Write the records that wait; if that fails, they go on waiting."""
        if not self._parts:
            return
        current = self.current
        assert current is not None
        storage, parts, at = self.storage_out(current), self._parts, self.flushed
        self._dirty.add(current.number)
        # A join of all parts would take new pages from the system each time.
        step = max(VECTOR_PARTS, len(parts) * JOIN_BYTES // self._waiting)
        for start in range(0, len(parts), step):
            some = parts[start : start + step]
            at += storage.write(at, some if step == VECTOR_PARTS else [b"".join(some)])
        parts.clear()
        self.flushed, self._waiting = current.size, 0

    def storage_out(self, segment: Segment) -> Storage:
        found = self.out.get(segment.number)
        if found is None:
            found = self.directory.open(segment.name, "w", follow=False)
            self.out[segment.number] = found
        return found

    def sync_journal(self) -> None:
        self.flush_journal()
        with self.access.final():
            self.journal.storage.sync()
        self.journal.unsynced = False

    def flush_journal(self) -> None:
        """Write the journal; the messages that it refers to are written first."""
        self.flush()
        self.journal.flush()

    def unsynced(self, stack: ExitStack) -> Calls:
        """Write all; return the calls that make it durable."""
        self.flush_journal()
        # A segment that is removed meanwhile is closed, so duplicates are synced.
        dirty = [self.storage_out(self.segments[number]) for number in self._dirty]
        calls: Calls = [stack.enter_context(storage.duplicate()).sync for storage in dirty]
        if self._named:
            calls.append(self.directory.sync)
        if self.journal.unsynced:
            calls.append(stack.enter_context(self.journal.storage.duplicate()).sync)
        self._dirty.clear()
        self.journal.unsynced = self._named = False
        current = None if self.current is None else self.current.number
        for number in [n for n in self.out if n != current]:
            self.out.pop(number).close()
        return calls

    def renew(self) -> bool:
        """Make all durable by a new snapshot; return False while the journal records segments that
        are being compacted."""
        if self.busy:
            return False
        self.flush()
        with self.access.final():
            for number in self._dirty:
                self.storage_out(self.segments[number]).sync()
        self._dirty.clear()
        self.checkpoint()
        self.full = False
        return True

    def checkpoint(self) -> None:
        """Write a new snapshot and begin a new journal. All segments are synced already."""
        number = self.generation + 1
        name = f"{JOURNAL}{number}"
        self.directory.unlink(name)
        storage = self.directory.create_new(name)
        journal = Journal(storage, number)
        try:
            journal.flush()
            storage.sync()
            journal.unsynced = False
            # Removed segments must not reappear when the journal that records that is gone.
            self.directory.sync()
            head = Snapshot(
                number, self.last_v1_file, self._next,
                {
                    n: (s.beside, s.size if s is self.current else SEALED)
                    for n, s in self.segments.items()
                },
                self.checked,
            )  # fmt: skip
            with replacing(self.directory, INDEX) as index:
                write_snapshot(index, head, self.index.rows(), self.index.count)
        except BaseException:
            storage.close()
            raise
        before, self.generation = self.generation, number
        old: Journal | None = getattr(self, "journal", None)
        self.journal, self.since = journal, self.done
        if old is None:  # the journal is that of a writer that was killed
            end_journals(self.directory, number)
            return
        old.add(END, 0, 0, 0, 0, NO_ID)  # readers have it open
        with suppress(OSError):
            old.flush()
        old.storage.close()
        self.directory.unlink(f"{JOURNAL}{before}")

    # --- facts ---

    @property
    def last_v1_file(self) -> int | None:
        """Number of the last segment of version 1."""
        return max((n for n, s in self.segments.items() if s.version is rdq), default=None)

    def candidates(self) -> list[Segment]:
        """Return the segments of which a compaction would remove half or more."""
        segments = list(self.segments.values())
        return [segment for segment in segments if 0 < segment.valid * 2 < segment.size]

    def close(self) -> None:
        """Close all files without a sync."""
        with ExitStack() as stack:
            for storage in self.out.values():
                stack.callback(storage.close)
            if hasattr(self, "journal"):
                stack.callback(self.journal.storage.close)


def checked_id(msg_id: bytes) -> bytes:
    """Return the id. Raises TypeError, ValueError."""
    if not isinstance(msg_id, bytes):
        raise TypeError(f"a message id is bytes, not {type(msg_id).__name__}")
    if len(msg_id) != ID:
        raise ValueError(f"a message id has {ID} bytes, not {len(msg_id)}")
    return msg_id
