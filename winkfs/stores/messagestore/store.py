"""MessageStore: messages by id in a directory of segments, with counted references.

    with MessageStore("queue/store", "a") as store:
        store.write(msg_id, body)        # again: one more reference
        store.read(msg_id)
        store.remove(msg_id)             # the last reference: the message is gone

All writes go to segments of version 2. One process writes; others read without a lock, see
`refresh`. Written messages stay in memory up to BUFFER_BYTES bytes, a read or a sync.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import repeat
from typing import Any, Final, cast

import numpy as np

from winkformats.disk.paths import directory_of, is_directory, make_directory, open_folder
from winkformats.disk.storage import TEMPORARY, SharedStorage
from winkformats.messagestore import rdq, sqs
from winkformats.messagestore.index import MessageRows, Place, words_of
from winkformats.messagestore.journal import INDEX, JOURNAL, Entry, entries
from winkformats.messagestore.segment import ID
from winkfs.container.ondisk.lock import SUFFIX, WriterLock
from winkfs.errors import CorruptError, NoSuchFile, Refusal
from winkfs.stores.batches import batched, runs
from winkfs.stores.handle import Calls, StoreHandle, Sync
from winkfs.stores.kinds import refuse_other
from winkfs.stores.messagestore import broker
from winkfs.stores.messagestore.compaction import Compaction, compact, migrate, planned
from winkfs.stores.messagestore.core import Core, checked_id
from winkfs.stores.messagestore.recovery import Segment, StoreState, follow, load

BATCH_MESSAGES: Final = 4096  # messages that are written together
BATCH_BYTES: Final = 4 << 20  # bytes of their bodies
OPEN_SEGMENTS: Final = 256  # segments open for reading
READ_BYTES: Final = 1 << 18  # approximate bytes of one read for several messages
GAP_BYTES: Final = 4096  # bytes between two messages from which on each has its own read
READ_ATTEMPTS: Final = 100  # reads of a message that compactions move
LOCK_NAME: Final = "messages.lock"
CHECKED: Final = bytes([sqs.CHECKED])


def create(path: str, *, checksums: bool = False) -> None:
    """Create an empty store. Raises Refusal if the directory is not empty; OSError."""
    refuse_other(path, "message store")
    begun = {LOCK_NAME, f"{JOURNAL}1", f"{INDEX}{TEMPORARY}"}  # files of an interrupted `create`
    if is_directory(path) and not begun.issuperset(directory_of(path).list()):
        raise Refusal("is not empty: a store needs a directory of its own", path)
    make_directory(path)
    MessageStore(path, "a", checksums=checksums, make=True).close()


class MessageStore(StoreHandle):
    """A store of messages. Any number of threads may use it.

    mode        "r": to read, also while another process writes; "a": to read and write
    sync        when changes are made durable: "none": by `sync` and `close`; "interval": also each
                `interval` seconds; "always": before a call returns
    confirm     called with the ids of messages that have become durable, on any thread
    checksums   whether messages are written with a checksum, which reading verifies; None: as they
                were when the store was last written
    problems    damage that was found, a line each
    core        the state of the open store
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
        """Open a store.

        raises NoSuchFile; Locked; CorruptError; Refusal for a broker's folder; OSError
        make   whether the directory may be empty
        force  whether a broker's folder may be changed; its `clean.dot` is renamed first
        cost   after a clean end: reads the snapshot; otherwise also what was added since
        """
        super().__init__(path, mode, sync)
        if not is_directory(self.path):
            raise NoSuchFile("no such message store", self.path)
        self.directory = open_folder(self.path)
        self._closing.callback(self.directory.close)
        self._confirm = confirm
        self._files: dict[int, SharedStorage] = {}  # open for reading
        self.core = Core(
            self.directory, self._access, self._lock, self._files, self.sync, checksums=checksums
        )
        self.problems = self.core.problems
        self._ids: list[bytes] = []  # to be confirmed
        self._access.ready = self.writable
        self._heard: SharedStorage | None = None  # the journal of the writer that is followed
        self._changed = False  # since the last `refresh`
        if self.writable:
            if not force:
                broker.check(broker.evidence(self.directory), self.path)
            self._keep_lock(WriterLock(self.path, (self.directory, LOCK_NAME.removesuffix(SUFFIX))))
        self._closing.callback(self.core.close)
        self._closing.callback(self._files.clear)
        self._open_by(
            lambda: self._begin(make), self.sync if sync == "interval" else None, interval
        )

    # --- opening and closing ---

    def _begin(self, make: bool) -> None:
        state = load(self.directory, self.problems.append, removed=not self.writable)
        if not (state.generation or state.segments or make):
            raise NoSuchFile("no message store: no index and no segment", self.path)
        (self.core.begin if self.writable else self._listen)(state)

    def _finish(self) -> None:
        """Make all durable, also in a new snapshot."""
        self.sync()
        if self.core.since != self.core.done:
            self._renew()

    def _release(self) -> None:
        self._heard = None
        super()._release()

    def _new_locks(self) -> None:
        super()._new_locks()
        if core := getattr(self, "core", None):
            core.lock = self._lock

    # --- writing ---

    def write(self, msg_id: bytes, body: bytes) -> None:
        """Add a message; one that exists gets one more reference and keeps its body.

        raises  ValueError for an id that does not have 16 bytes; ReadOnly; Refusal; OSError
        """
        with self._lock:
            if not self._access.ready:
                self._access.check()
            self.core.write(msg_id, body)
            if self._confirm is not None:
                self._ids.append(msg_id)
        if self._always or self.core.full:
            self._settle()

    def write_many(self, messages: Iterable[tuple[bytes, bytes]]) -> None:
        """Add many messages, (id, body) each, as `write`, but faster if they are new."""
        if type(messages) is list and 0 < len(messages) <= BATCH_MESSAGES:  # the usual case
            batches: Iterable[list[tuple[bytes, bytes]]] = [messages]
        else:
            batches = batched(messages, _body_size, BATCH_BYTES, BATCH_MESSAGES)
        for some in batches:
            with self._lock:
                self._access.check()
                if not self.core.write_new(some):
                    for msg_id, body in some:
                        self.core.write(msg_id, body)
                if self._confirm is not None:
                    self._ids += [msg_id for msg_id, _ in some]
            if self.core.full:
                self._renew()
        if self._always:
            self.sync()

    def remove(self, msg_id: bytes) -> None:
        """Remove a reference; with the last one the message goes. Raises NoSuchFile; as `write`.

        cost  if a segment becomes empty, a sync of the journal
        """
        self.remove_many((msg_id,))

    def remove_many(self, ids: Iterable[bytes]) -> None:
        """Remove a reference of each; if a message does not exist, those before it are removed."""
        empty: list[Segment] = []
        with self._lock:
            self._access.check()
            done: list[bytes] = []
            try:
                for msg_id in ids:
                    place = self.core.hold(checked_id(msg_id), -1)
                    if place is None:
                        raise NoSuchFile(f"no message {msg_id.hex()}", self.path)
                    done.append(msg_id)
                    if not place.refs:
                        segment = self.core.segments[place.file]
                        segment.valid -= place.size
                        segment.count -= 1
                        if not segment.count and segment is not self.core.current:
                            empty.append(segment)
            finally:
                self.core.done += len(done)
                self.core.remove_segments(
                    [s for s in empty if not s.count and s.number not in self.core.busy]
                )
        if self._always or self.core.full:
            self._settle()

    # --- durable ---

    def sync(self) -> None:
        """Make all earlier changes durable, and confirm them.

        raises  ReadOnly; OSError: changes that were not confirmed may be lost
        """
        ids: list[bytes] = []

        def unsynced(stack: ExitStack) -> Calls:
            nonlocal ids
            calls = self.core.unsynced(stack)
            ids, self._ids = self._ids, []
            return calls

        self._sync_changes(lambda: self.core.done, unsynced)
        self._confirmed(ids)

    def _confirmed(self, ids: list[bytes]) -> None:
        """Report these as durable. Called without a lock."""
        if ids and self._confirm is not None:
            self._confirm(ids)

    def _settle(self) -> None:
        """Do what is due after a change. Called without the lock."""
        if self.core.full:
            self._renew()
        if self._always:
            self.sync()

    def _renew(self) -> None:
        """Make all durable by a new snapshot. Other calls wait meanwhile. Raises OSError."""
        with self._sync_lock, self._lock:
            self._access.check()
            if not self.core.renew():
                return
            self._synced = self.core.done
            ids, self._ids = self._ids, []
        self._confirmed(ids)

    # --- reading ---

    def __contains__(self, msg_id: bytes) -> bool:
        with self._lock:
            return checked_id(msg_id) in self.core.index

    def __len__(self) -> int:
        return self.core.index.count

    def places(self, ids: bytes) -> MessageRows:
        """Return the places of those that exist. `ids`: the bytes of all ids, joined."""
        with self._lock:
            return self.core.index.get_many(words_of(ids))[0]

    def place(self, msg_id: bytes) -> Place | None:
        """Return where a message is. Raises ValueError for a malformed id."""
        with self._lock:
            return self.core.index.get(checked_id(msg_id))

    def read(self, msg_id: bytes) -> bytes:
        """Return the body of a message.

        raises  NoSuchFile; CorruptError; OSError
        cost    one read
        """
        for _ in range(READ_ATTEMPTS):
            with self._lock:
                self._access.check_open()
                place = self.core.index.get(checked_id(msg_id))
                if place is None:
                    raise NoSuchFile(f"no message {msg_id.hex()}", self.path)
                number, offset, size, _ = place
                segment = self.core.segments[number]
                moved = segment.moved
                if segment is self.core.current and offset >= self.core.flushed:
                    self.core.flush()
                handle = self._files.get(number) or self._handle(segment)
            data = b"" if handle is None else handle.storage.read(offset, size)
            if handle is None or (not self.writable and self._overtaken()):
                self._follow()
            if handle is not None and segment.moved == moved:
                if data.startswith(sqs.HEAD.pack(sqs.MESSAGE, size, msg_id)) and len(data) == size:
                    return data[sqs.HEAD.size :]
                return segment.body(data, msg_id, handle.storage.name, offset)
        raise CorruptError(
            "a segment that changes all the time", file=f"{self.path}/{segment.name}", offset=offset
        )

    def read_many(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return the bodies of many messages, in the order of their ids. Raises as `read`.

        cost  reads in the order of the disk, one for messages that are near each other
        """
        if not ids:
            return []
        with self._lock:
            self._access.check_open()
            if set(map(len, ids)) != {ID}:
                list(map(checked_id, ids))
            rows, exist = self.core.index.get_many(words_of(b"".join(ids)))
            if not exist.all():
                missing = ids[int(np.argmin(exist))]
                raise NoSuchFile(f"no message {missing.hex()}", self.path)
            self.core.flush()
            moved = {n: self.core.segments[n].moved for n in np.unique(rows.file).tolist()}
        found: list[bytes | None] = [None] * len(ids)
        singly: list[int] = []  # CHECKED, moved or damaged: for `read`
        order = np.lexsort((rows.offset, rows.file))
        file, start, size = rows.file[order], rows.offset[order], rows.size[order]
        first, stop = runs(file, start, size, gap=GAP_BYTES, length=READ_BYTES)
        files = file[first]
        lengths = (start[stop - 1] + size[stop - 1] - start[first]).tolist()
        begins, firsts, stops = start[first].tolist(), first.tolist(), stop.tolist()
        places, starts, sizes = order.tolist(), start.tolist(), size.tolist()
        # By columns: a call for each message would be slower.
        heads = list(map(sqs.HEAD.pack, repeat(sqs.MESSAGE), sizes, map(ids.__getitem__, places)))
        head = sqs.HEAD.size
        for number in moved:
            spans = slice(*np.searchsorted(files, (number, number + 1)).tolist())
            with self._lock:
                segment = self.core.segments.get(number)
                handle = None if segment is None else self._handle(segment)
            parts = list[bytes]()
            if handle is not None:
                parts = handle.storage.read_each(begins[spans], lengths[spans])
            short = list(map(len, parts)) != lengths[spans]
            if segment is None or segment.moved != moved[number] or short:
                singly += places[firsts[spans][0] : stops[spans][-1]]
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
                        singly.append(places[i])
        if not self.writable and self._overtaken():
            self._follow()
            singly = list(range(len(ids)))  # the bytes may be those of other messages
        for place in singly:
            found[place] = self.read(ids[place])
        return cast("list[bytes]", found)

    def _handle(self, segment: Segment) -> SharedStorage | None:
        """Return the file of a segment, to read; None: it is gone. Called under the lock."""
        number = segment.number
        found = self._files.get(number)
        if found is None:
            try:
                found = SharedStorage(self.directory.open(segment.name, follow=False))
            except FileNotFoundError:
                if self.writable:
                    raise
                return None
            if len(self._files) >= OPEN_SEGMENTS:
                del self._files[next(iter(self._files))]
            self._files[number] = found
        return found

    def form(self, number: int) -> tuple[str, int]:
        """Return the name of a segment, and the bytes of each of its records in addition to the
        body; 0: they differ, see `beside`."""
        segment = self.core.segments.get(number)
        if segment is None:  # removed meanwhile
            return f"{number}{sqs.SUFFIX}", sqs.LEAST[sqs.MESSAGE]
        return segment.name, max(segment.beside, 0)

    def beside(self, number: int, offset: int) -> int:
        """Return the bytes of a record of version 2 in addition to its body. Cost: a read."""
        with self._lock:
            segment = self.core.segments.get(number)
            self.core.flush()
            handle = None if segment is None else self._handle(segment)
        kind = b"" if handle is None else handle.storage.read(offset, 1)
        return sqs.LEAST[sqs.CHECKED if kind == CHECKED else sqs.MESSAGE]

    def rows(self, numbers: Sequence[int] | None = None) -> MessageRows:
        """Return the messages of some segments, or all, sorted by segment and offset.

        cost  a pass over the index
        """
        with self._lock:
            parts = list(self.core.index.rows())
            if numbers is not None:
                parts = [rows.take(np.isin(rows.file, numbers)) for rows in parts]
            found = MessageRows.joined(parts)
        return found.take(np.lexsort((found.offset, found.file)))

    def refresh(self) -> bool:
        """Follow the writer; return whether anything has changed since the last call.

        raises  CorruptError; OSError
        cost    as the number of changes; after a new snapshot, that of opening
        """
        if not self.writable:
            self._follow()
        found, self._changed = self._changed, False
        return found

    def _follow(self) -> None:
        with self._lock:
            state, heard = self.core.state, self._heard
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
            for number in [n for n in self._files if n not in self.core.state.segments]:
                del self._files[number]

    def _listen(self, state: StoreState) -> None:
        """Use a loaded state, and open its journal to follow the writer."""
        for _ in range(READ_ATTEMPTS):
            heard = None
            if state.generation:
                with suppress(FileNotFoundError):
                    name = f"{JOURNAL}{state.generation}"
                    heard = SharedStorage(self.directory.open(name, follow=False))
            if heard is not None or not state.generation:
                break
            state = load(self.directory, self.problems.append, removed=True)
        self._heard = heard
        self.core.take(state)

    def _overtaken(self) -> bool:
        """Return whether the journal has rows that were not followed. Cost: a system call."""
        heard = self._heard
        return heard is not None and heard.storage.size() > self.core.state.journal

    # --- compaction and migration ---

    def compact(
        self, progress: Callable[[int], object] | None = None, *, dry_run: bool = False
    ) -> Compaction:
        """Compact in place the segments of which more than half is dead; readers and writers go on.

        progress  called with the bytes of segments that are done
        raises    ReadOnly; OSError
        cost      as the bytes that move, and the number of messages that stay
        """
        if dry_run:
            return planned(self.core)
        with self._lock:
            self._access.check()
            current = self.core.current
            if current is not None and current.valid * 2 < current.size:
                self.core.flush()
                self.core.current = None  # the next message begins another
                if not current.count:
                    self.core.remove_segments([current])
        return compact(self.core, progress)

    def migrate(self, progress: Callable[[int], object] | None = None) -> int:
        """Rewrite each segment of version 1 as one of version 2; return their number.

        Readers and writers go on. Raises CorruptError; OSError.
        """
        self._access.check()
        return migrate(self.core, progress)

    # --- facts ---

    def stats(self) -> dict[str, Any]:
        """Return messages, their bytes, segments, dead bytes, memory of the index; after a clean
        shutdown of a broker, whether its index was read."""
        with self._lock:
            segments = list(self.core.segments.values())
            size = sum(segment.size for segment in segments)
            valid = sum(segment.valid for segment in segments)
            recorded = self.core.state.recorded and self.core.state.recorded.notes
            return {
                "messages": self.core.index.count, "bytes": valid, "segments": len(segments),
                "segments_v1": sum(segment.version is rdq for segment in segments),
                "last_v1_file": self.core.last_v1_file, "disk_bytes": size,
                "dead_bytes": size - valid - sum(s.version.START for s in segments),
                "index_memory": self.core.index.memory,
                "to_compact": len(self.core.candidates()),
                **({} if recorded is None else {"broker_index": "; ".join(recorded) or "read"}),
            }  # fmt: skip


def _body_size(message: tuple[bytes, bytes]) -> int:
    if not isinstance(message, tuple | list) or len(message) != 2:
        raise TypeError("messages are (id, body) each")
    return len(message[1])
