"""Tail: the end of a queue, where messages are added to the last segment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from winkformats.disk.storage import Storage
from winkformats.ledgerq import priorities
from winkformats.ledgerq.entry import (
    DATA,
    END,
    GZIP,
    HEAD,
    HIGH,
    LAST_ID,
    LEAST,
    LOW,
    UNPACKED,
    encode,
    packed,
)
from winkformats.ledgerq.index import Sparse
from winkformats.ledgerq.segment import LAST, START, Header, name_of
from winkfs.errors import Refusal
from winkfs.stores.ledgerq import recovery
from winkfs.stores.ledgerq.cursor import later
from winkfs.stores.ledgerq.files import Files, Segment
from winkfs.units import as_content, as_int, span_ns

BUFFER_BYTES: Final = 1 << 20  # of entries in memory
SEGMENT_BYTES: Final = 64 << 20
SEGMENT_MESSAGES: Final = 1_000_000


class Rotation(NamedTuple):
    """Limits behind which a new segment begins: bytes, messages, seconds since it began."""

    bytes: int = SEGMENT_BYTES
    messages: int = SEGMENT_MESSAGES
    seconds: float | None = None

    def check(self) -> None:
        """Raises TypeError; ValueError."""
        as_int(self.bytes, "bytes of a rotation", 1)
        if as_int(self.messages, "messages of a rotation", 1) >> 32:
            raise ValueError(f"a rotation has fewer than 2^32 messages, not {self.messages}")
        if self.seconds is not None:
            span_ns(self.seconds, "seconds of a rotation", zero=False)


class NewMessage(NamedTuple):
    """A message to push, and its options; None: the default of the queue.

    ttl       seconds until it expires
    compress  level of gzip, 0: none
    """

    payload: bytes
    priority: int = LOW
    ttl: float | None = None
    headers: Mapping[str, str] | None = None
    compress: int | None = None

    def check(self) -> None:
        """Raises TypeError; ValueError. `encode` raises them for wrong headers."""
        payload, priority, ttl, _, compress = self
        if not isinstance(payload, bytes | bytearray | memoryview):
            as_content(payload, "a payload")
        if not LOW <= as_int(priority, "priority") <= HIGH:
            raise ValueError(f"priority must be 0 (low), 1 or 2 (high), not {priority}")
        if ttl is not None:
            span_ns(ttl, "ttl", zero=False)
        if compress is not None and not 0 <= as_int(compress, "compress") <= 9:
            raise ValueError(f"compress must be 0 to 9, not {compress}")


class Defaults(NamedTuple):
    """Default options of messages, and the size from which payloads are compressed."""

    ttl: float | None
    compress: int
    compress_from: int


class Tail:
    """Messages that are pushed wait in memory up to BUFFER_BYTES, or until the segment is read. Not
    for several threads at once.

    defaults     of messages; plain: whether those without options are written as they are
    prepare      called before a segment is made
    final        a context manager: an error within it is final
    out          the active segment, to write; dirty: whether it has changed since the last sync
    named        whether names of segments have changed since the last sync
    next_id      of the next message; time, offset: of the last one
    done         the number of messages that were pushed
    by_priority  whether new segments have tables of priorities
    """

    def __init__(
        self,
        files: Files,
        rotation: Rotation,
        defaults: Defaults,
        prepare: Callable[[], object],
        final: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.files, self.rotation, self.defaults = files, rotation, defaults
        self.plain = defaults.ttl is None and not defaults.compress
        self._prepare, self._final = prepare, final
        self.out: Storage | None = None
        self.dirty = self.named = self.by_priority = False
        self.next_id, self.time, self.offset, self.done = 1, 0, 0, 0
        self._parts: list[bytes] = []  # entries in memory, which follow `_flushed`
        self._waiting, self._flushed = 0, 0  # their bytes; bytes of the active segment
        self._limit = self._count = 0  # bytes and messages of the active segment: at most, and now
        self._until = LAST_ID  # nanoseconds: when the active segment ends

    def push(
        self,
        payload: bytes,
        priority: int = LOW,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        compress: int | None = None,
    ) -> int:
        """Add a message -> its id. Raises TypeError; ValueError; Refusal; OSError."""
        if type(payload) is not bytes:  # its bytes may change before they are written
            payload = as_content(payload, "a payload")
        timestamp, id = time.time_ns(), self.next_id
        if timestamp < self.time:  # time does not go back: the index of times is in order
            timestamp = self.time
        if self.plain and not (priority or headers or compress) and ttl is None:
            length = LEAST + len(payload)
            if length >> 32:
                raise ValueError(f"a payload of {len(payload)} bytes is too large for an entry")
            data = HEAD.pack(length, DATA, 0, id, timestamp) + payload
            self.add(id, timestamp, data + END.pack(crc32c(data)), LOW)
            return id
        known = type(priority) is int and LOW <= priority <= HIGH
        if not (known and ttl is None and compress is None):
            NewMessage(payload, priority, ttl, headers, compress).check()
        defaults, compression = self.defaults, 0
        ttl = defaults.ttl if ttl is None else ttl
        level = defaults.compress if compress is None else compress
        if level and defaults.compress_from <= len(payload) <= UNPACKED:
            kept = packed(payload, level)
            if kept is not None:
                payload, compression = kept, GZIP
        entry = encode(
            id, timestamp, payload, priority=priority, headers=headers, compression=compression,
            expires=max(later(timestamp, ttl), timestamp + 1) if ttl else None,
        )  # fmt: skip
        self.add(id, timestamp, entry, priority)
        return id

    def push_all(self, payloads: list[bytes]) -> None:
        """Add messages without options, at least one."""
        pack, checksum, ended, at = HEAD.pack, crc32c, END.pack, 0
        if max(map(len, payloads)) + LEAST >> 32:
            raise ValueError("a payload is too large for an entry")
        while at < len(payloads):
            self.push(payloads[at])  # begins a segment if one is due
            active, id, timestamp = self.files.active, self.next_id, self.time
            assert active is not None and active.sparse is not None
            offset, sparse, tables = active.size, active.sparse, active.tables
            room = min(self.rotation.messages - self._count, len(payloads) - at - 1)
            limit, add = min(self._limit, offset + BUFFER_BYTES - self._waiting), self._parts.append
            for payload in payloads[at + 1 : at + 1 + room]:
                if offset >= limit:
                    break
                length = 26 + len(payload)
                data = pack(length, DATA, 0, id, timestamp) + payload
                add(data + ended(checksum(data)))
                if offset >= sparse.next:
                    sparse.add(id, offset, timestamp)
                if tables is not None:
                    tables[LOW][0].append(id)
                    tables[LOW][1].append(offset)
                id, offset = id + 1, offset + length + 4
            count = id - self.next_id
            self._waiting += offset - active.size
            self._count, self.done = self._count + count, self.done + count
            active.size, active.last, self.next_id = offset, id - 1, id
            at += 1 + count

    def add(self, id: int, timestamp: int, entry: bytes, priority: int) -> None:
        active = self.files.active
        if (
            active is None
            or active.size >= self._limit
            or self._count >= self.rotation.messages
            or timestamp >= self._until
        ):
            active = self._roll(timestamp)
        if self._waiting > BUFFER_BYTES:
            self.flush()
        offset = active.size
        self._parts.append(entry)
        self._waiting += len(entry)
        self.offset = offset
        active.size = offset + len(entry)
        active.last = id
        sparse = active.sparse
        if offset >= sparse.next:  # type: ignore[union-attr]
            sparse.add(id, offset, timestamp)  # type: ignore[union-attr]
            active.first = active.first or id
        if active.tables is not None:
            ids, offsets = active.tables[priority]
            ids.append(id)
            offsets.append(offset)
        self.next_id, self.time = id + 1, timestamp
        self._count += 1
        self.done += 1

    def _roll(self, timestamp: int) -> Segment:
        """Return the segment that the next message goes to: the last one, or a new one."""
        if self.next_id >= LAST_ID:
            raise Refusal("there are no more ids for messages", self.files.directory.path)
        last = self.files.newest
        if last is not None:
            self.take_up(last)
        if last is None or (last.first and self._is_full(last, timestamp)):
            if last is not None:
                self.end(last)
            last = self._new_segment(last, timestamp)
        self.fill_gap(last)
        return last

    def _is_full(self, active: Segment, timestamp: int) -> bool:
        return (
            active.size >= self._limit
            or active.count >= self.rotation.messages
            or timestamp >= self._until
        )

    def take_up(self, segment: Segment) -> None:
        """Make a segment the active one, to add messages to it."""
        if segment is self.files.active:
            return
        self.files.sparse(segment)
        self.release()
        self.out = self.files.directory.open(segment.name, "w", follow=False)
        self._use(segment)

    def _use(self, segment: Segment) -> None:
        self.files.active, self.files.flush = segment, self.flush
        self._flushed, self._limit = segment.size, self.rotation.bytes
        self._count = segment.count
        created = segment.header.created if segment.header else 0
        seconds = self.rotation.seconds
        self._until = LAST_ID if seconds is None else later(created, seconds)

    def _new_segment(self, before: Segment | None, timestamp: int) -> Segment:
        self._prepare()
        number = 1 if before is None else before.number + self.rotation.messages
        if number > LAST:
            raise Refusal("there are no more numbers for segments", self.files.directory.path)
        header = Header(number, timestamp)
        storage = self.files.directory.create_new(name_of(number))
        try:
            storage.write(0, [header.encode()])
        except OSError:
            storage.close()
            with suppress(OSError):
                self.files.directory.unlink(name_of(number))
            raise
        self.release()
        self.out, self.named, self.dirty = storage, True, True
        made = Segment(
            number, START, 0, self.files.last, header, sparse=Sparse(),
            identity=storage.info().identity,
            tables=priorities.empty() if self.by_priority else None,
        )  # fmt: skip
        self.files.segments[number] = made
        self._use(made)
        return made

    def fill_gap(self, segment: Segment) -> None:
        """Add expired messages for missing ids: LedgerQ reads id by id."""
        last, timestamp = self.files.last, max(self.time, 1)
        entries = recovery.expired(last, self.next_id, timestamp)
        assert segment.sparse is not None
        for id, entry in enumerate(entries, last + 1):
            if segment.size >= segment.sparse.next:
                segment.sparse.add(id, segment.size, timestamp)
                segment.first = segment.first or id
            if segment.tables is not None:
                segment.tables[LOW][0].append(id)
                segment.tables[LOW][1].append(segment.size)
            self._parts.append(entry)
            self._waiting += len(entry)
            segment.size, segment.last = segment.size + len(entry), id

    def catch_up(self) -> bool:
        """Take up what other processes have added to the last segment -> whether they have."""
        last = self.files.newest
        if last is None:
            self.files.load()
        elif (size := self.files.storage(last).size()) > last.size:
            self.files.grow(last, size)
            if last is self.files.active:
                self._flushed, self._count = last.size, last.count
        else:
            return False
        return True

    def go_on(self, known: list[int]) -> None:
        """Set the next id and the time behind those of all messages; known: other next ids."""
        self.next_id = max(self.files.last + 1, self.next_id, *known)
        last = self.files.newest
        if last is not None and (sparse := self.files.sparse(last)):
            self.time = max(self.time, sparse.times[-1])

    def release(self) -> None:
        """Close the active segment, which another process may have written to."""
        self.files.active = None
        if self.out is not None:
            if self.dirty:
                with self._final():
                    self.out.sync()
                self.dirty = False
            self.out.close()
            self.out = None

    def close(self) -> None:
        """Close the active segment; what is in memory is lost."""
        if self.out is not None:
            self.out.close()

    def flush(self) -> None:
        """Write what is in memory to the active segment. If that fails it stays in memory."""
        if not self._parts:
            return
        active, out = self.files.active, self.out
        assert active is not None and out is not None
        data = b"".join(self._parts)
        try:
            out.write(self._flushed, [data])
        except OSError:  # such as ENOSPC: LedgerQ would not open a segment with a part of it
            with suppress(OSError):
                out.truncate(self._flushed)
            raise
        self.dirty = True
        self._parts.clear()
        self._flushed, self._waiting = active.size, 0

    def end(self, segment: Segment, *, fill: bool = False) -> None:
        """Close a segment as LedgerQ does: write its ids into the header, and its index.

        fill  fill the gap behind its last message, which no message follows
        """
        self.take_up(segment)
        if fill:
            self.fill_gap(segment)
        self.flush()
        assert self.out is not None and segment.header is not None
        with self._final():
            self.out.sync()  # the header must not name messages that are not there
            self.dirty = False
            if self.named:
                self.files.directory.sync()
                self.named = False
            header = segment.header._replace(
                min_id=segment.first, max_id=segment.last if segment.first else 0
            )
            if header != segment.header:
                self.out.write(0, [header.encode()])
                self.out.sync()
                segment.header = header
            recovery.write_index(self.files, segment)
