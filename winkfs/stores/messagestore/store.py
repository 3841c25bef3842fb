"""MessageStore: messages by id in a directory of segments, each held by so many.

    with MessageStore("queue/store", "a") as store:
        store.write(msg_id, body)        # again: one more reference
        store.read(msg_id)
        store.remove(msg_id)             # the last reference: the message is gone

Writes always make segments of version 2. One process writes; others read without a lock, see
`refresh`. What is written stays in memory up to BUFFER bytes, a read or a sync.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import chain, repeat
from typing import Any, Final, cast

import numpy as np

from winkformats.disk.paths import directory_of, is_directory, make_directory, open_folder
from winkformats.disk.storage import TEMPORARY, Handle, Storage, replacing
from winkformats.errors import CorruptError
from winkformats.messagestore import rdq, sqs
from winkformats.messagestore.index import LAST, Place, Rows, words_of
from winkformats.messagestore.journal import (
    END,
    INDEX,
    JOURNAL,
    NO_ID,
    REFS,
    RESET,
    SEALED,
    Entry,
    Journal,
    Snapshot,
    entries,
    write_snapshot,
)
from winkformats.messagestore.segment import ID
from winkfs.container.ondisk.lock import SUFFIX, WriterLock
from winkfs.errors import NoSuchFile, Refusal
from winkfs.stores.handle import Calls, StoreHandle, Sync
from winkfs.stores.kinds import refuse_other
from winkfs.stores.messagestore import broker
from winkfs.stores.messagestore.compaction import Compaction, compact, migrate, planned
from winkfs.stores.messagestore.recovery import (
    Segment,
    State,
    cut,
    end_journals,
    follow,
    load,
    mend,
)
from winkfs.units import as_content

ROLL: Final = 16 << 20  # bytes of a segment behind which a new one begins
LARGE: Final = 4_000_000  # bytes of a body that gets a segment of its own
BUFFER: Final = 1 << 20  # bytes of records that wait to be written
JOURNAL_ROOM: Final = 64 << 20  # bytes of a journal, at least, behind which there is a new snapshot
JOIN: Final = 128 << 10  # bytes of small records that are joined to be written
VECTOR: Final = 1024  # parts that are written at once without that
BATCH: Final = 4096  # messages that are written together, and
BATCH_BYTES: Final = 4 << 20  # their bytes
OPEN: Final = 256  # segments open for reading
SPAN: Final = 1 << 18  # bytes read at once, about, for several messages
GAP: Final = 4096  # bytes between them, from which on they are read apart
TRIES: Final = 100  # of a reader that meets compactions
LOCK: Final = "messages.lock"
CHECKED: Final = bytes([sqs.CHECKED])


def create(path: str, *, checksums: bool = False) -> None:
    """An empty store. Raises Refusal where there is one, or something else; OSError."""
    refuse_other(path, "message store")
    begun = {LOCK, f"{JOURNAL}1", f"{INDEX}{TEMPORARY}"}  # what was interrupted left these
    if is_directory(path) and not begun.issuperset(directory_of(path).list()):
        raise Refusal("is not empty: a store needs a directory of its own", path)
    make_directory(path)
    MessageStore(path, "a", checksums=checksums, make=True).close()


class MessageStore(StoreHandle):
    """A store of messages. Any number of threads may use it.

    mode        "r": to read, also while another process writes; "a": to read and write
    sync        when what was written is made durable: "none": by `sync` and `close`; "interval":
                each `interval` seconds, too; "always": before a call returns
    confirm     is called with the ids of messages that have become durable, on any thread
    checksums   messages are written with a checksum, which reading checks; None: as before
    problems    damage that was found, a line each
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str = "r",
        *,
        sync: Sync = "none",
        interval: float = 0.2,
        confirm: Callable[[list[bytes]], object] | None = None,
        checksums: bool | None = None,
        make: bool = False,
        force: bool = False,
    ) -> None:
        """Raises NoSuchFile; Locked; CorruptError; Refusal: a broker's folder; OSError.

        make   the directory may be empty
        force  a broker's folder may be changed: its `clean.dot` is renamed first, see `broker`
        cost   after a clean end: reads the snapshot, 0.3 us a message; else also what was added
        """
        super().__init__(path, mode, sync)
        if not is_directory(self.path):
            raise NoSuchFile("no such message store", self.path)
        self.directory = open_folder(self.path)
        self._last.callback(self.directory.close)
        self.problems: list[str] = []
        self._confirm, self._wanted, self._checked = confirm, checksums, False
        self._files: dict[int, Handle] = {}  # open for reading
        self._current: Segment | None = None
        self._out: dict[int, Storage] = {}  # open for writing
        self._parts: list[bytes] = []  # records that are not written, behind `_flushed`
        self._waiting, self._flushed = 0, 0  # their bytes; bytes of the current segment
        self._dirty: set[int] = set()  # segments that were not synced
        self._named = False  # whether names have changed since the last sync
        self._done = 0  # changes
        self._ids: list[bytes] = []  # to be confirmed
        self._full = False  # the journal: a new snapshot is wanted
        self._busy: set[int] = set()  # segments that are compacted or migrated
        self._access.ready = self.writable
        self._heard: Handle | None = None  # the journal of the writer that is followed
        self._changed = False  # since the last `refresh`
        if self.writable:
            if not force:
                broker.check(broker.evidence(self.directory), self.path)
            self._keep_lock(WriterLock(self.path, (self.directory, LOCK.removesuffix(SUFFIX))))
        with self._opening(self.sync if sync == "interval" else None, interval):
            self._load(make=make)

    # --- opening and closing ---

    def _load(self, *, make: bool = False) -> None:
        state = load(self.directory, self.problems.append, removed=not self.writable)
        if not (state.generation or state.segments or make):
            raise NoSuchFile("no message store: no index and no segment", self.path)
        if not self.writable:
            self._listen(state)
            return
        broker.take_over(self.directory)
        end_journals(self.directory, state.generation)
        if not state.clean:
            mend(self.directory, state, self.problems.append)
        self._take(state)
        if not state.clean:
            self._checkpoint()
            cut(self.directory, state)
            for number in [n for n, segment in self.segments.items() if not segment.count]:
                self._unlink(self.segments.pop(number))
        else:
            storage = self.directory.open(f"{JOURNAL}{self._generation}", "w", follow=False)
            self._journal = Journal(storage, self._generation, begun=True)
        self._since = self._done

    def _take(self, state: State) -> None:
        self.index, self.segments = state.index, state.segments
        self._generation, self._next = state.generation, state.next_file
        self._state = state
        self._checked = state.checksums if self._wanted is None else self._wanted
        for segment in self.segments.values() if self.writable else ():
            large = segment.count == 1 and segment.size >= LARGE
            good = segment.version is sqs and not segment.sealed and not large and segment.count
            if good and sqs.START <= segment.size < ROLL:
                self._current, self._flushed = segment, segment.size

    def _finish(self) -> None:
        """Also say in a snapshot what there is."""
        self.sync()
        if self._since != self._done:
            self._renew()

    def _let_go(self) -> None:
        self._files, self._heard = {}, None
        for storage in self._out.values():
            self._closing.callback(storage.close)
        if hasattr(self, "_journal"):
            self._closing.callback(self._journal.storage.close)
        super()._let_go()

    # --- writing ---

    def write(self, msg_id: bytes, body: bytes) -> None:
        """Add a message; one that is there has a reference more, and keeps its body.

        raises  ValueError for an id of other than 16 bytes; ReadOnly; Refusal; OSError
        cost    4 us
        """
        with self._lock:
            if not self._access.ready:
                self._access.check()
            self._write(msg_id, body)
            if self._confirm is not None:
                self._ids.append(msg_id)
        if self._always or self._full:
            self._settle()

    def write_many(self, messages: Iterable[tuple[bytes, bytes]]) -> None:
        """The same of many, (id, body) each. Cost: 1.5 us each, where they are new."""
        for some in _batches(messages):
            with self._lock:
                self._access.check()
                if not self._write_new(some):
                    for msg_id, body in some:
                        self._write(msg_id, body)
                if self._confirm is not None:
                    self._ids += [msg_id for msg_id, _ in some]
            if self._full:
                self._renew()
        if self._always:
            self.sync()

    def _write(self, msg_id: bytes, body: bytes) -> None:
        if type(body) is not bytes:  # whose bytes may change before they are written
            body = as_content(body, "a body")
        if type(msg_id) is not bytes:
            _checked_id(msg_id)
        self._done += 1
        current = self._current
        if current is None or current.size >= ROLL:
            current = self._roll()
        if self._waiting > BUFFER:
            self._flush()
        size, offset = sqs.HEAD.size + len(body), current.size
        if self._checked or size > LARGE or len(msg_id) != ID:
            record = sqs.record(msg_id, body, checked=self._checked)
            if len(body) >= LARGE:
                self._write_large(msg_id, record)
                return
            parts, size = (record, b""), len(record)
        else:
            parts = (sqs.HEAD.pack(sqs.MESSAGE, size, msg_id), body)
        if not self.index.add(msg_id, current.number, offset, size):
            self._hold(msg_id, 1)
            return
        self._parts += parts
        self._waiting += size
        current.size = offset + size
        if current.beside != size - len(body):
            current.has(size - len(body))
        current.valid += size
        current.count += 1

    def _write_new(self, some: list[tuple[bytes, bytes]]) -> bool:
        """Write messages by columns; False, and nothing is done: they are not all new and small."""
        ids, bodies = zip(*some, strict=True)
        if {*map(type, ids), *map(type, bodies)} != {bytes}:
            return False
        if self._checked or set(map(len, ids)) != {ID} or len(set(ids)) < len(ids):
            return False
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies)) + sqs.HEAD.size
        words = words_of(b"".join(ids))
        if sizes.max() >= LARGE or self.index.get_many(words)[1].any():
            return False
        at = 0
        while at < len(ids):
            current = self._current
            if current is None or current.size >= ROLL:
                current = self._roll()
            if self._waiting > BUFFER:
                self._flush()
            ends = current.size + np.cumsum(sizes[at:])
            count = min(int(np.searchsorted(ends, ROLL)) + 1, len(ends))
            ends, part = ends[:count], sizes[at : at + count]
            self.index.add_many(
                Rows(
                    words[at : at + count], np.full(count, current.number), ends - part, part,
                    np.ones(count, np.int64),
                )
            )  # fmt: skip
            heads = map(sqs.HEAD.pack, repeat(sqs.MESSAGE), part.tolist(), ids[at : at + count])
            self._parts += chain.from_iterable(zip(heads, bodies[at : at + count], strict=True))
            self._done += count
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
            self._hold(msg_id, 1)
            return
        segment = self._new_segment()
        try:
            self._out[segment.number].write(sqs.START, [record])
        except OSError:
            self._discard(segment)
            raise
        segment.size += len(record)
        segment.valid, segment.count, segment.beside = len(record), 1, -1
        self._dirty.add(segment.number)
        self.index.add(msg_id, segment.number, sqs.START, len(record))

    def _new_segment(self) -> Segment:
        """An empty one, with its header."""
        number = self._next
        if number > LAST:
            raise Refusal("there are no more numbers for segments", self.path)
        segment = Segment(number, "sqs", sqs.START)
        storage = self.directory.create_new(segment.name)
        self._next, self._named = number + 1, True
        try:
            storage.write(0, [sqs.HEADER])
        except OSError:
            storage.close()
            with suppress(OSError):
                self.directory.unlink(segment.name)
            self._journal.add(RESET, number, 0, 0, 0, NO_ID)  # it is not missing
            raise
        self._out[number], self.segments[number] = storage, segment
        return segment

    def _discard(self, segment: Segment) -> None:
        del self.segments[segment.number]
        self._journal.add(RESET, segment.number, 0, 0, 0, NO_ID)  # it is not missing
        with suppress(OSError):
            self._unlink(segment)

    def _roll(self) -> Segment:
        """A new current segment."""
        self._flush()
        before = self._current
        self._full = self._journal.size > max(JOURNAL_ROOM, 32 * self.index.count)
        self._current, self._flushed = self._new_segment(), sqs.START
        if before is not None and not before.count:
            self._remove_segments([before])
        return self._current

    def _hold(self, msg_id: bytes, change: int) -> Place | None:
        place = self.index.hold(msg_id, change)
        if place is not None:
            self._journal.add(REFS, *place, msg_id)
        return place

    def remove(self, msg_id: bytes) -> None:
        """Take a reference away; without any the message is gone. Raises NoSuchFile; as `write`.

        cost  4 us; where a segment is empty then, a sync of the journal
        """
        self.remove_many((msg_id,))

    def remove_many(self, ids: Iterable[bytes]) -> None:
        """The same of many; where one is not there, those before it are removed."""
        empty: list[Segment] = []
        with self._lock:
            self._access.check()
            done: list[bytes] = []
            try:
                for msg_id in ids:
                    place = self._hold(_checked_id(msg_id), -1)
                    if place is None:
                        raise NoSuchFile(f"no message {msg_id.hex()}", self.path)
                    done.append(msg_id)
                    if not place.refs:
                        segment = self.segments[place.file]
                        segment.valid -= place.size
                        segment.count -= 1
                        if not segment.count and segment is not self._current:
                            empty.append(segment)
            finally:
                self._done += len(done)
                self._remove_segments(
                    [s for s in empty if not s.count and s.number not in self._busy]
                )
        if self._always or self._full:
            self._settle()

    def _remove_segments(self, empty: list[Segment]) -> None:
        """Remove the files of segments without messages. What says so is durable first."""
        if not empty:
            return
        for segment in empty:
            self._journal.add(RESET, segment.number, 0, 0, 0, NO_ID)
        self._sync_journal()
        for segment in empty:
            del self.segments[segment.number]
            self._unlink(segment)

    def _unlink(self, segment: Segment) -> None:
        self._dirty.discard(segment.number)
        segment.moved += 1
        if (storage := self._out.pop(segment.number, None)) is not None:
            storage.close()
        self._files.pop(segment.number, None)
        self.directory.unlink(segment.name)
        self._named = True

    # --- durable ---

    def _flush(self) -> None:
        """Write what waits. Where that fails it goes on to wait."""
        if not self._parts:
            return
        current = self._current
        assert current is not None
        storage, parts, at = self._storage_out(current), self._parts, self._flushed
        self._dirty.add(current.number)
        # A join of all takes new pages from the system each time: 0.9 us a KiB.
        step = max(VECTOR, len(parts) * JOIN // self._waiting)
        for start in range(0, len(parts), step):
            some = parts[start : start + step]
            at += storage.write(at, some if step == VECTOR else [b"".join(some)])
        parts.clear()
        self._flushed, self._waiting = current.size, 0

    def _storage_out(self, segment: Segment) -> Storage:
        found = self._out.get(segment.number)
        if found is None:
            found = self.directory.open(segment.name, "w", follow=False)
            self._out[segment.number] = found
        return found

    def _sync_journal(self) -> None:
        self._flush_journal()
        with self._access.final():
            self._journal.storage.sync()
        self._journal.unsynced = False

    def _flush_journal(self) -> None:
        """The records that it speaks of are written before."""
        self._flush()
        self._journal.flush()

    def sync(self) -> None:
        """Return when all that was written and removed before is durable, and confirm it.

        raises  ReadOnly; OSError: nothing is known of what was not confirmed
        """
        ids: list[bytes] = []

        def unsynced(stack: ExitStack) -> Calls:
            nonlocal ids
            calls = self._unsynced(stack)
            ids, self._ids = self._ids, []
            return calls

        self._sync_changes(lambda: self._done, unsynced)
        self._confirmed(ids)

    def _unsynced(self, stack: ExitStack) -> Calls:
        """Write all -> calls that make it durable."""
        self._flush_journal()
        # Those that are removed meanwhile are closed, so duplicates are synced.
        dirty = [self._storage_out(self.segments[number]) for number in self._dirty]
        calls: Calls = [stack.enter_context(storage.duplicate()).sync for storage in dirty]
        if self._named:
            calls.append(self.directory.sync)
        if self._journal.unsynced:
            calls.append(stack.enter_context(self._journal.storage.duplicate()).sync)
        self._dirty.clear()
        self._journal.unsynced = self._named = False
        current = None if self._current is None else self._current.number
        for number in [n for n in self._out if n != current]:
            self._out.pop(number).close()
        return calls

    def _confirmed(self, ids: list[bytes]) -> None:
        """These are durable. Without a lock."""
        if ids and self._confirm is not None:
            self._confirm(ids)

    def _settle(self) -> None:
        """What is to be done behind a change, without the lock."""
        if self._full:
            self._renew()
        if self._always:
            self.sync()

    def _renew(self) -> None:
        """Make all durable by a new snapshot. Others wait for it. Raises OSError."""
        with self._sync_lock, self._lock:
            self._access.check()
            if self._busy:  # the journal says what is being moved
                return
            self._flush()
            with self._access.final():
                for number in self._dirty:
                    self._storage_out(self.segments[number]).sync()
            self._dirty.clear()
            self._checkpoint()
            self._synced, self._full = self._done, False
            ids, self._ids = self._ids, []
        self._confirmed(ids)

    def _checkpoint(self) -> None:
        """A new snapshot, with a new journal. All is synced."""
        number = self._generation + 1
        name = f"{JOURNAL}{number}"
        self.directory.unlink(name)
        storage = self.directory.create_new(name)
        journal = Journal(storage, number)
        try:
            journal.flush()
            storage.sync()
            journal.unsynced = False
            # Segments that were removed must not be back when the journal that says so is gone.
            self.directory.sync()
            head = Snapshot(
                number, self.last_v1_file, self._next,
                {
                    n: (s.beside, s.size if s is self._current else SEALED)
                    for n, s in self.segments.items()
                },
                self._checked,
            )  # fmt: skip
            with replacing(self.directory, INDEX) as index:
                write_snapshot(index, head, self.index.rows(), self.index.count)
        except BaseException:
            storage.close()
            raise
        before, self._generation = self._generation, number
        old: Journal | None = getattr(self, "_journal", None)
        self._journal, self._since = journal, self._done
        if old is None:  # that of a writer that was killed
            end_journals(self.directory, number)
            return
        old.add(END, 0, 0, 0, 0, NO_ID)  # readers have it open
        with suppress(OSError):
            old.flush()
        old.storage.close()
        self.directory.unlink(f"{JOURNAL}{before}")

    # --- reading ---

    def __contains__(self, msg_id: bytes) -> bool:
        with self._lock:
            return _checked_id(msg_id) in self.index

    def __len__(self) -> int:
        return self.index.count

    @property
    def last_v1_file(self) -> int | None:
        """The number of the last segment of version 1."""
        return max((n for n, s in self.segments.items() if s.version is rdq), default=None)

    def places(self, ids: bytes) -> Rows:
        """Of these ids, one behind the other, those that are there. Cost: 0.1 us each."""
        with self._lock:
            return self.index.get_many(words_of(ids))[0]

    def place(self, msg_id: bytes) -> Place | None:
        """Where a message is. Raises ValueError for what can be no id."""
        with self._lock:
            return self.index.get(_checked_id(msg_id))

    def read(self, msg_id: bytes) -> bytes:
        """The body of a message.

        raises  NoSuchFile; CorruptError; OSError
        cost    5 us, and a read
        """
        for _ in range(TRIES):
            with self._lock:
                self._access.check_open()
                place = self.index.get(_checked_id(msg_id))
                if place is None:
                    raise NoSuchFile(f"no message {msg_id.hex()}", self.path)
                number, offset, size, _ = place
                segment = self.segments[number]
                moved = segment.moved
                if segment is self._current and offset >= self._flushed:
                    self._flush()
                handle = self._files.get(number) or self._handle(segment)
            data = b"" if handle is None else handle.storage.read(offset, size)
            if handle is None or (not self.writable and self._overtaken()):
                self._follow()
            if handle is not None and segment.moved == moved:
                if data.startswith(sqs.HEAD.pack(sqs.MESSAGE, size, msg_id)) and len(data) == size:
                    return data[sqs.HEAD.size :]
                return segment.body(data, msg_id, handle.storage.name, offset)
        what = "a segment that changes all the time"
        raise CorruptError(what, file=f"{self.path}/{segment.name}", offset=offset)

    def read_many(self, ids: Sequence[bytes]) -> list[bytes]:
        """The bodies of many messages, in the order of their ids. Raises as `read`.

        cost  2 us each, and the reads, which are in the order of the disk
        """
        if not ids:
            return []
        with self._lock:
            self._access.check_open()
            if set(map(len, ids)) != {ID}:
                list(map(_checked_id, ids))
            rows, there = self.index.get_many(words_of(b"".join(ids)))
            if not there.all():
                missing = ids[int(np.argmin(there))]
                raise NoSuchFile(f"no message {missing.hex()}", self.path)
            self._flush()
            moved = {n: self.segments[n].moved for n in np.unique(rows.file).tolist()}
        found: list[bytes | None] = [None] * len(ids)
        left: list[int] = []  # what is of another form, or no good: for `read`
        order = np.lexsort((rows.offset, rows.file))
        file, start, size = rows.file[order], rows.offset[order], rows.size[order]
        apart = (start[1:] - start[:-1] - size[:-1] >= GAP) | (
            start[1:] // SPAN > start[:-1] // SPAN
        )
        first = np.flatnonzero(np.append(True, apart | (file[1:] > file[:-1]))[: len(ids)])
        stop = np.append(first[1:], len(ids))
        files = file[first]
        lengths = (start[stop - 1] + size[stop - 1] - start[first]).tolist()
        begins, firsts, stops = start[first].tolist(), first.tolist(), stop.tolist()
        places, starts, sizes = order.tolist(), start.tolist(), size.tolist()
        # By columns: 0.3 us a message.
        heads = list(map(sqs.HEAD.pack, repeat(sqs.MESSAGE), sizes, map(ids.__getitem__, places)))
        head = sqs.HEAD.size
        for number in moved:
            spans = slice(*np.searchsorted(files, (number, number + 1)).tolist())
            with self._lock:
                segment = self.segments.get(number)
                handle = None if segment is None else self._handle(segment)
            parts = list[bytes]()
            if handle is not None:
                parts = handle.storage.read_each(begins[spans], lengths[spans])
            short = list(map(len, parts)) != lengths[spans]
            if segment is None or segment.moved != moved[number] or short:
                left += places[firsts[spans][0] : stops[spans][-1]]
                continue
            for low, high, begin, data in zip(
                firsts[spans], stops[spans], begins[spans], parts, strict=True
            ):
                if high - low == 1 and data.startswith(heads[low]):
                    found[places[low]] = data[head:]
                    continue
                for i in range(low, high):
                    at = starts[i] - begin
                    if data.startswith(heads[i], at):
                        found[places[i]] = data[at + head : at + sizes[i]]
                    else:
                        left.append(places[i])
        if not self.writable and self._overtaken():
            self._follow()
            left = list(range(len(ids)))  # what was read may have been another's
        for place in left:
            found[place] = self.read(ids[place])
        return cast("list[bytes]", found)

    def _handle(self, segment: Segment) -> Handle | None:
        """The file of a segment, to read; None: it is gone. Under the lock."""
        number = segment.number
        found = self._files.get(number)
        if found is None:
            try:
                found = Handle(self.directory.open(segment.name, follow=False))
            except FileNotFoundError:
                if self.writable:
                    raise
                return None
            if len(self._files) >= OPEN:
                del self._files[next(iter(self._files))]
            self._files[number] = found
        return found

    def form(self, number: int) -> tuple[str, int]:
        """Of a segment: its name, and the bytes of each of its records beside the body, 0: see
        `beside`."""
        segment = self.segments.get(number)
        if segment is None:  # it went since
            return f"{number}{sqs.SUFFIX}", sqs.LEAST[sqs.MESSAGE]
        return segment.name, max(segment.beside, 0)

    def beside(self, number: int, offset: int) -> int:
        """Bytes of a record of version 2 beside the body. Cost: a read."""
        with self._lock:
            segment = self.segments.get(number)
            if segment is not None and segment is self._current and offset >= self._flushed:
                self._flush()
            handle = None if segment is None else self._handle(segment)
        kind = b"" if handle is None else handle.storage.read(offset, 1)
        return sqs.LEAST[sqs.CHECKED if kind == CHECKED else sqs.MESSAGE]

    def rows(self, numbers: Sequence[int] | None = None) -> Rows:
        """The messages of some segments, or all, by segment and offset. Cost: 1 us each,
        and 20 ns of those of other segments."""
        with self._lock:
            parts = list(self.index.rows())
            if numbers is not None:
                parts = [rows.take(np.isin(rows.file, numbers)) for rows in parts]
            found = Rows.joined(parts)
        return found.take(np.lexsort((found.offset, found.file)))

    def refresh(self) -> bool:
        """Follow the writer -> whether anything has changed since the last time. Raises
        CorruptError; OSError.

        cost  2 us a message that came or went; where a new snapshot was made, as to open
        """
        if not self.writable:
            self._follow()
        found, self._changed = self._changed, False
        return found

    def _follow(self) -> None:
        with self._lock:
            state, heard = self._state, self._heard
            past, end = list[Entry](), 0
            if heard is not None:
                past, end = entries(heard.storage, state.generation, state.journal)
            anew = heard is None and self.directory.exists(INDEX)
            changes = None if anew else follow(self.directory, state, past, self.problems.append)
            self._changed = self._changed or changes != 0
            state.journal = max(state.journal, end)
            if changes is None:
                for segment in state.segments.values():
                    segment.moved += 1
                self._files.clear()
                self._listen(load(self.directory, self.problems.append, removed=True))
            for number in [n for n in self._files if n not in self._state.segments]:
                del self._files[number]

    def _listen(self, state: State) -> None:
        """Read what was found, and hear of what follows."""
        for _ in range(TRIES):
            heard = None
            if state.generation:
                with suppress(FileNotFoundError):
                    name = f"{JOURNAL}{state.generation}"
                    heard = Handle(self.directory.open(name, follow=False))
            if heard is not None or not state.generation:
                break
            state = load(self.directory, self.problems.append, removed=True)
        self._heard = heard
        self._take(state)

    def _overtaken(self) -> bool:
        """Whether a writer has said something since that was not followed. Cost: a system call."""
        heard = self._heard
        return heard is not None and heard.storage.size() > self._state.journal

    # --- compaction and migration ---

    def candidates(self) -> list[Segment]:
        """The segments that a compaction makes smaller by half or more."""
        segments = list(self.segments.values())
        return [segment for segment in segments if 0 < segment.valid * 2 < segment.size]

    def compact(
        self, progress: Callable[[int], object] | None = None, *, dry_run: bool = False
    ) -> Compaction:
        """Compact in place the segments of which more than half is dead; readers and writers go on.

        progress  is told of the bytes of segments that are done
        raises    ReadOnly; OSError
        cost      as the bytes that move, and 2 us a message that stays
        """
        if dry_run:
            return planned(self)
        with self._lock:
            self._access.check()
            current = self._current
            if current is not None and current.valid * 2 < current.size:
                self._flush()
                self._current = None  # the next message begins another
                if not current.count:
                    self._remove_segments([current])
        return compact(self, progress)

    def migrate(self, progress: Callable[[int], object] | None = None) -> int:
        """Write the messages of each segment of version 1 into one of version 2 -> how many there
        were. Readers and writers go on. Raises CorruptError; OSError."""
        self._access.check()
        return migrate(self, progress)

    # --- facts ---

    def stats(self) -> dict[str, Any]:
        """Messages, their bytes, segments, bytes that are dead, and what the index takes; after a
        clean shutdown of a broker, whether its index was read."""
        with self._lock:
            segments = list(self.segments.values())
            size = sum(segment.size for segment in segments)
            valid = sum(segment.valid for segment in segments)
            return {
                "messages": self.index.count, "bytes": valid, "segments": len(segments),
                "segments_v1": sum(segment.version is rdq for segment in segments),
                "last_v1_file": self.last_v1_file, "disk_bytes": size,
                "dead_bytes": size - valid - sum(s.version.START for s in segments),
                "index_memory": self.index.memory,
                "to_compact": len(self.candidates()),
                **self._of_broker(),
            }  # fmt: skip

    def _of_broker(self) -> dict[str, str]:
        recorded = self._state.recorded
        return {} if recorded is None else {"broker_index": "; ".join(recorded.notes) or "read"}


def _batches(messages: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Some thousands each, and not many bytes; a short list as it is, which saves 0.2 us each."""
    if type(messages) is list and 0 < len(messages) <= BATCH:
        yield messages
        return
    some: list[tuple[bytes, bytes]] = []
    size = 0
    for message in messages:
        if not isinstance(message, tuple | list) or len(message) != 2:
            raise TypeError("messages are (id, body) each")
        some.append(message)
        size += len(message[1])
        if len(some) >= BATCH or size > BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _checked_id(msg_id: bytes) -> bytes:
    if not isinstance(msg_id, bytes):
        raise TypeError(f"a message id is bytes, not {type(msg_id).__name__}")
    if len(msg_id) != ID:
        raise ValueError(f"a message id has {ID} bytes, not {len(msg_id)}")
    return msg_id
