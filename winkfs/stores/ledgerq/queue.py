"""Queue: messages in the order of their arrival or by priority, in the files of LedgerQ.

    with Queue("jobs", "a") as queue:
        queue.push(b"payload", priority=HIGH)
        message = queue.pop(visible=30)  # nobody else gets it for 30 seconds
        queue.ack(message.id)

To look needs no lock and writes nothing: mode "r", and `refresh`. One process writes, or several
with `shared`, which take turns. What is pushed and popped stays in memory up to BUFFER bytes, a
read or a sync.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, Self

from winkformats.disk.paths import directory_of, is_directory, make_directory
from winkformats.disk.storage import TEMPORARY, Lock, Storage, Turn, replacing
from winkformats.errors import CorruptError
from winkformats.ledgerq import cursors as ondisk
from winkformats.ledgerq import index, priorities, state
from winkformats.ledgerq.cursors import CURSORS, Journal
from winkformats.ledgerq.entry import (
    GZIP,
    HIGH,
    LAST_ID,
    LOW,
    UNPACKED,
    Message,
    encode,
    encode_headers,
    packed,
)
from winkformats.ledgerq.segment import name_of
from winkformats.ledgerq.state import Dedup, Metadata, Retry
from winkfs.container.ondisk.lock import SUFFIX, WriterLock
from winkfs.errors import Locked, NoSuchFile, Refusal
from winkfs.reader import Access, tell_of_forks
from winkfs.stores.ledgerq import recovery
from winkfs.stores.ledgerq.cursor import (
    BY_PRIORITY,
    MAIN,
    Cursor,
    Lease,
    Order,
    State,
    read_state,
    write_key,
    write_lease,
)
from winkfs.stores.ledgerq.files import Files, Segment
from winkfs.stores.ledgerq.tail import Rotation, Tail
from winkfs.units import NANO

LOCK: Final = "ledgerq.lock"
TURN: Final = "ledgerq.turn"
JOURNAL_ROOM: Final = 1 << 20  # bytes of a journal, at least, behind which it is written anew
PATIENCE: Final = 60.0  # seconds that a process waits for its turn
POLL: Final = 0.02  # seconds between looks of a stream
STARVED: Final = 30.0  # seconds after which a message of low priority comes first
RETRIES: Final = 3  # failures of a message before it goes to the dead letter queue
KEYS: Final = 100_000  # ids remembered for deduplication
COMPRESSED_FROM: Final = 1024  # bytes of a payload that is compressed
DEAD: Final = "dlq."
Sync = Literal["none", "interval", "always"]
Put = Mapping[str, Any]


class Compaction(NamedTuple):
    """What was removed: segments, their bytes, and ids of messages that nobody had read."""

    segments: int = 0
    bytes: int = 0
    unread: int = 0


def create(path: str, *, by_priority: bool = False) -> None:
    """An empty queue. Raises Refusal where there is one, or something else; OSError."""
    begun = {LOCK, TURN, CURSORS, f"{CURSORS}{TEMPORARY}"}  # what was interrupted left these
    if is_directory(path) and not begun.issuperset(directory_of(path).list()):
        raise Refusal("is not empty: a queue needs a directory of its own", path)
    Queue(path, "a", by_priority=by_priority, make=True).close()


def is_queue(path: str) -> bool:
    """Whether there is a queue: a segment, or its metadata."""
    try:
        names = directory_of(path).list()
    except OSError:
        return False
    return any(recovery.NAME.fullmatch(name) for name in names) or (
        state.METADATA in names and (CURSORS in names or len(names) == 1)
    )


ROTATION: Final = Rotation()


class Queue:
    """A queue of messages. Any number of threads may use it.

    mode          "r": to look, also while others write; "a": to push and pop
    shared        several processes have it open so; they take turns, call by call
    sync          when what was pushed, popped and acknowledged is durable: "none": by `sync` and
                  `close`; "interval": each `interval` seconds, too; "always": before a call returns
    by_priority   whether messages are read by priority; None: as before, or as they were written
    starved       seconds after which a message of low priority comes before others; 0: never
    ttl           seconds after which a message expires, where `push` says nothing else
    compress      level of gzip, 1 to 9, of payloads from `compress_from` bytes on; 0: none
    window        seconds in which a `key` is pushed once
    dead_letters  path of the queue that gets a message behind `retries` failures
    rotation      when a new segment begins
    problems      damage that was found, a line each

    After a sync what was pushed is not lost, and what was popped or acknowledged is not handed out
    again, whatever happens. What was not synced may be lost, and handed out again.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str = "r",
        *,
        shared: bool = False,
        sync: Sync = "none",
        interval: float = 1.0,
        by_priority: bool | None = None,
        starved: float = STARVED,
        ttl: float | None = None,
        compress: int = 0,
        compress_from: int = COMPRESSED_FROM,
        window: float = 0,
        keys: int = KEYS,
        dead_letters: str | os.PathLike[str] | None = None,
        retries: int = RETRIES,
        rotation: Rotation = ROTATION,
        make: bool = False,
    ) -> None:
        """Raises NoSuchFile; Locked; Refusal; OSError.

        make  make the directory, if there is none
        cost  a read of each segment, and the messages behind the index of the last one: those since
              it was closed
        """
        if mode not in ("r", "a"):
            raise ValueError(f"mode must be 'r' or 'a', not {mode!r}")
        if sync not in ("none", "interval", "always"):
            raise ValueError(f"sync must be 'none', 'interval' or 'always', not {sync!r}")
        if not 0 <= compress <= 9:
            raise ValueError(f"compress must be 0 to 9, not {compress}")
        if rotation.bytes < 1 or not 1 <= rotation.messages < 1 << 32:
            raise ValueError(f"rotation must be after a byte and a message at least: {rotation}")
        self.path, self.writable, self.shared = os.fspath(path), mode == "a", shared
        self.directory = directory_of(self.path)
        self.problems: list[str] = []
        self.retries = retries
        self._always, self._wanted = sync == "always", by_priority
        self._starved, self._ttl = int(starved * NANO), ttl
        self._compress, self._compress_from = compress, compress_from
        self._window, self._keys = window, keys
        self._dead_path = None if dead_letters is None else os.fspath(dead_letters)
        self._dead: Queue | None = None
        self._lock, self._sync_lock = threading.RLock(), threading.Lock()
        self._section: AbstractContextManager[object] = self._lock
        self._mode = False  # whether messages are read by priority
        self._seed: int | None = None  # of the journal
        self._metadata: Metadata | None = None
        self._heeded = False  # LedgerQ has read on: the journal has to say so
        self._done = self._synced = 0  # changes, and those that are durable
        self._access = Access(self.path, "the queue", writable=self.writable, purpose="looking")
        self._held: WriterLock | None = None
        self._shares: Lock | None = None
        self._turn: Turn | None = None
        self._depth = 0  # of calls in a turn
        self._journal: Journal | None = None
        self._heard: Storage | None = None  # the journal, to read
        self._journal_at: tuple[tuple[int, int], int] = ((0, 0), 0)  # identity; bytes read
        self._retry: dict[int, Retry] = {}
        self._told = False  # whether the files of LedgerQ say all
        self.files = Files(self.directory, self._say)
        self._tail = Tail(self.files, rotation, self._before_segment, self._access.final)
        self.state = State()
        tell_of_forks(self)
        if not is_directory(self.path):
            if not (make and self.writable):
                raise NoSuchFile("no such queue", self.path)
            make_directory(self.path)
        try:
            self._begin(make=make)
        except BaseException:
            self._let_go()
            raise
        if sync == "interval" and self.writable:
            self._access.repeat(self.sync, interval, "winkfs-queue")

    # --- opening and closing ---

    def _begin(self, *, make: bool) -> None:
        if not self.writable:
            self._load()
            if not (self.files.segments or self.directory.exists(state.METADATA) or make):
                raise NoSuchFile("no queue: no segment and no metadata", self.path)
            return
        if self.shared:
            self._join()
            self._section = self._in_turn()
        else:
            self._held = WriterLock(self.path, (self.directory, LOCK.removesuffix(SUFFIX)))
        self._access.ready = True
        if not self.shared:
            self._open()
            return
        assert self._turn is not None
        if not self._turn.take(PATIENCE):
            raise self._waited()
        try:
            self._open()
            self._flush_all()
        finally:
            self._turn.release()

    def _join(self) -> None:
        """Take the lock that all who share it have."""
        for name in (LOCK, TURN):
            with suppress(FileExistsError):
                self.directory.create_new(name).close()
        until = time.monotonic() + 1.0  # who leaves may have it alone for a moment
        while (lock := self.directory.lock(LOCK, shared=True)) is None:
            if time.monotonic() > until:
                raise Locked("another process has the queue open for itself: stop it", self.path)
            time.sleep(POLL)
        self._shares, self._turn = lock, self.directory.turn(TURN)

    def _waited(self) -> Refusal:
        return Locked(f"another process keeps the turn for {PATIENCE:.0f} seconds", self.path)

    def _open(self) -> None:
        self._load()
        recovery.mend(self.files, self._say, self._before_change)
        self._sync_found()
        if self._heard is not None and self._heard.size() > self._journal_at[1]:
            # Rows behind one that is torn must not be good again when that is written over.
            self._renew_journal()
        if self._heeded:
            journal = self._append()
            journal.add(ondisk.SEEK, 0, *self.state.cursors[MAIN].at)
            journal.add(ondisk.WRITTEN, 0, *self.state.written[-1])
            self._heeded = False
        if self._mode != self.state.mode:
            self.state.mode = self._mode
            if self._seed is not None:
                self._append().add(ondisk.MODE, 0, int(self._mode))
        self._read_trackers()
        self._settle_ids()
        self._end_compaction()

    def _end_compaction(self) -> None:
        """Of an interrupted one some segments may be gone, and others before them not."""
        floor = min(cursor.low for cursor in self.state.cursors.values())
        there = [segment for segment in self.files.segments.values() if segment.first]
        for i in range(len(there) - 1, 0, -1):
            if there[i - 1].last + 1 < there[i].first <= floor:
                self._remove(there[:i])
                break

    def _sync_found(self) -> None:
        """Who wrote it may have ended before the disk had it."""
        last = next(reversed(self.files.segments.values()), None)
        for name in ([] if last is None else [last.name]) + [CURSORS] * (self._seed is not None):
            with self.directory.open(name, "w", follow=False) as storage:
                storage.sync()
        self.directory.sync()

    def _before_segment(self) -> None:
        # LedgerQ looks for the highest id in the last segment alone, which is empty for a moment.
        self._write_metadata()
        self._before_change()

    def _before_change(self) -> None:
        """Segments are about to come, go or change: others have to know, whatever happens then."""
        if self.shared:
            journal = self._append()
            journal.add(ondisk.FILES)
            journal.flush()
            self._heard_all()

    def _load(self, *, follow: bool = False) -> None:
        """Read what there is."""
        self.files.load(follow=follow)
        self._read_journal()

    def _read_journal(self) -> None:
        """All of the journal, and the metadata of LedgerQ beside it."""
        before, self._heard = self._heard, None
        if before is not None:
            before.close()
        if self._journal is not None:
            self._journal.storage.close()
            self._journal = None
        self.state, seed, end = State(), None, 0
        with suppress(FileNotFoundError):
            self._heard = self.directory.open(CURSORS, follow=False)
            self.state, seed, end = read_state(self._heard)
            if seed is None and self._heard.size():
                self._say(f"{self._heard.name}: its header is wrong: all is read from metadata.dat")
            self._journal_at = self._heard.info().identity, end
        self._seed = seed
        self._heed_metadata(known=seed is not None)
        mode = self.state.mode if self._wanted is None else self._wanted
        if mode is None:
            mode = self.files.have_priorities(self.state.cursors[MAIN].low)
        self._mode = self._tail.by_priority = mode

    def _heed_metadata(self, *, known: bool) -> None:
        """LedgerQ says in its metadata what it has read; we say what we were about to write."""
        main = self.state.cursors[MAIN]
        self._metadata = self._read_metadata()
        if self._metadata is None:
            return
        if known and self._metadata in self.state.written:
            return
        read = self._metadata.read_id
        if read > max(self._metadata.next_id, self.files.last + 1):
            self._say(f"{self.path}/{state.METADATA}: its read id is {read}: it is not used")
        elif read != main.low:
            main.seek([read] * 3)
        self.state.written = [*self.state.written[-1:], self._metadata]
        self._heeded = known

    def _read_metadata(self) -> Metadata | None:
        try:
            with self.directory.open(state.METADATA, follow=False) as storage:
                return Metadata.decode(storage.read(0, state.LAYOUT.size), file=storage.name)
        except FileNotFoundError:
            return None
        except CorruptError as error:
            self._say(f"{error}: made again from the segments")
            return None

    def _settle_ids(self) -> None:
        """The next id: no message ever had it."""
        known = [position for cursor in self.state.cursors.values() for position in cursor.at]
        if self._metadata is not None:
            known.append(self._metadata.next_id)
        self._tail.next_id = max(self.files.last + 1, self._tail.next_id, *known)
        last = next(reversed(self.files.segments.values()), None)
        if last is not None:
            sparse = self.files.sparse(last)
            self._tail.time = max(self._tail.time, sparse.times[-1] if sparse else 0)

    def _say(self, line: str) -> None:
        self.problems.append(line)

    def close(self) -> None:
        """Make all durable, and write what LedgerQ reads. Idempotent. Raises OSError."""
        if self._access.closed:
            return
        try:
            self._access.end()
            if self._dead is not None:
                self._dead.close()
            if self._access.ready:
                self.sync()
                self._leave() if self.shared else self._finish()
        finally:
            self._let_go()

    def _leave(self) -> None:
        """The last one who shares it finishes it."""
        assert self._shares is not None
        self._shares.release()
        self._shares = None
        alone = self.directory.lock(LOCK)
        if alone is not None:
            try:
                with self._section:
                    self._finish()
            finally:
                alone.release()

    def abort(self) -> None:
        """Close as it is: what is not durable may be lost."""
        self._access.end()
        if self._dead is not None:
            self._dead.abort()
        self._let_go()

    def _let_go(self) -> None:
        self._access.close()
        self.files.close()
        journal = None if self._journal is None else self._journal.storage
        for storage in (self._heard, self._tail.out, journal):
            if storage is not None:
                storage.close()
        if self._turn is not None:
            self._turn.close()
        for lock in (self._held, self._shares):
            if lock is not None:
                lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close() if kind is None else self.abort()

    def after_fork(self) -> None:
        """In a forked child another thread may have held the lock; a writer is the parent's."""
        self._lock, self._sync_lock = threading.RLock(), threading.Lock()
        if self._turn is None:
            self._section = self._lock
        if self.writable:
            self._access.close()
            if self._held is not None:
                self._held.forget()

    # --- turns of several processes ---

    def _in_turn(self) -> AbstractContextManager[object]:
        queue = self

        class InTurn:
            """A call of one process, while others wait."""

            def __enter__(self) -> None:
                queue._lock.acquire()
                try:
                    if queue._depth == 0 and queue._access.ready:
                        assert queue._turn is not None
                        if not queue._turn.take(PATIENCE):
                            raise queue._waited()
                        try:
                            queue._catch_up()
                        except BaseException:
                            queue._turn.release()
                            raise
                    queue._depth += 1
                except BaseException:
                    queue._lock.release()
                    raise

            def __exit__(self, *exc: object) -> None:
                queue._depth -= 1
                try:
                    if queue._depth == 0 and queue._turn is not None:
                        try:
                            if queue._access.ready:
                                with queue._access.final():  # others go on behind what is there
                                    queue._flush_all()
                        finally:
                            queue._turn.release()
                finally:
                    queue._lock.release()

        return InTurn()

    def _catch_up(self) -> None:
        """Take up what others did since our last turn."""
        info = self.directory.info(CURSORS)
        identity, read = self._journal_at
        files = self.state.files
        if info is not None and info.identity != identity:
            self._read_journal()
            files = -1
        elif info is not None and info.size != read:
            assert self._heard is not None and self._seed is not None
            for row, end in ondisk.rows(self._heard, self._seed, read):
                self._apply(row)
                read = end
            if read < info.size:  # somebody was killed while writing
                with self.directory.open(CURSORS, "w", follow=False) as storage:
                    storage.truncate(read)
            self._journal_at = identity, read
            if self._journal is not None:
                self._journal.size = read
        if files != self.state.files:
            self._tail.let_go()
            self.files.load()
            self._tail.named = True  # whoever made them may have ended since
            recovery.mend(self.files, self._say, self._before_change)
            self._settle_ids()
            return
        last = next(reversed(self.files.segments.values()), None)
        if last is None:
            self.files.load()
            self._settle_ids()
        elif (size := self.files.storage(last).size()) > last.size:
            self.files.grow(last, size)
            if last is self.files.active:
                self._tail.caught_up(last)
            if last.torn:
                recovery.mend(self.files, self._say, self._before_change)
            self._settle_ids()

    def _apply(self, row: ondisk.Row) -> None:
        self.state.apply(row)
        if row.kind == ondisk.MODE and self._mode != self.state.mode and self._wanted is None:
            self._mode = self._tail.by_priority = bool(self.state.mode)
            for cursor in self.state.cursors.values():
                cursor.order = None

    def _heard_all(self) -> None:
        """Behind a flush of the journal: what is in it is ours."""
        if self._journal is not None:
            self._journal_at = self._journal_at[0], self._journal.size

    # --- pushing ---

    def push(
        self,
        payload: bytes,
        *,
        priority: int = LOW,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        compress: int | None = None,
    ) -> int:
        """Add a message -> its id.

        raises  ValueError for a wrong option; ReadOnly; Refusal; OSError
        cost    2 us
        """
        with self._section:
            if not self._access.ready:
                self._access.check()
            id = self._push(payload, priority, ttl, headers, compress)
        if self._always:
            self.sync()
        return id

    def push_once(
        self, payload: bytes, key: str, *, window: float | None = None, **options: Any
    ) -> tuple[int, bool]:
        """Add a message unless one was pushed with this key in the window -> the id of the one that
        there is, and whether it is new. Options as of `push`. Cost: 10 us."""
        seconds = self._window if window is None else window
        if seconds <= 0:
            raise ValueError("a key needs a window, in seconds")
        with self._section:
            self._access.check()
            now, hashed = time.time_ns(), hashlib.sha256(key.encode()).hexdigest()
            known = self.state.dedup.get(hashed)
            if known is not None and now < known.expires:
                return known.message_id, False
            id = self._push(payload, **{"priority": LOW, **options})
            if len(self.state.dedup) >= self._keys:
                self._forget_keys(now)
            entry = Dedup(hashed, id, now, now + int(seconds * NANO), self._tail.offset)
            self.state.dedup.pop(hashed, None)
            self.state.dedup[hashed] = entry
            write_key(self._append(), entry)
        if self._always:
            self.sync()
        return id, True

    def _forget_keys(self, now: int) -> None:
        """Those whose window has ended, and a tenth of the others: those that end first."""
        dedup = self.state.dedup
        for key in [key for key, entry in dedup.items() if entry.expires <= now]:
            del dedup[key]
        if len(dedup) >= self._keys:
            first = sorted(dedup.values(), key=lambda entry: entry.expires)
            for entry in first[: len(dedup) - self._keys * 9 // 10]:
                del dedup[entry.key]

    def push_many(self, messages: Iterable[bytes | Put], **options: Any) -> range:
        """Add messages -> their ids. With sync "always" there is one sync for all of them.

        messages  payloads, or mappings of `payload` and options of `push`
        options   of those that say nothing else
        cost      1 us a payload without options
        """
        with self._section:
            self._access.check()
            first, plain = self._tail.next_id, not options and self._plain
            some = list(messages)
            if plain and some and set(map(type, some)) == {bytes}:
                self._tail.push_all(some)  # type: ignore[arg-type]
                some = []
            puts = [
                {**options, **(one if isinstance(one, Mapping) else {"payload": one})}
                for one in some
            ]
            for put in puts:  # all or none
                self._check_put(**put)
            for put in puts:
                self._push(**put)
            made = range(first, self._tail.next_id)
        if self._always:
            self.sync()
        return made

    @property
    def _plain(self) -> bool:
        return self._ttl is None and not self._compress

    def _push(
        self,
        payload: bytes,
        priority: int = LOW,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        compress: int | None = None,
    ) -> int:
        if type(payload) is not bytes:  # whose bytes may change before they are written
            payload = bytes(payload)
        if not (priority or headers or compress) and ttl is None and self._plain:
            return self._tail.push(payload)
        self._check_put(payload, priority, ttl, None, compress)
        seconds = self._ttl if ttl is None else ttl
        timestamp, expires = self._tail.now(), None
        if seconds:
            expires = max(_later(timestamp, seconds), timestamp + 1)
        level, kept = self._compress if compress is None else compress, None
        if level and self._compress_from <= len(payload) <= UNPACKED:
            kept = packed(payload, level)
        id = self._tail.next_id
        entry = encode(
            id, timestamp, payload if kept is None else kept, priority=priority, expires=expires,
            headers=headers, compression=0 if kept is None else GZIP,
        )  # fmt: skip
        self._tail.add(id, timestamp, entry, priority)
        return id

    @staticmethod
    def _check_put(
        payload: bytes,
        priority: int = LOW,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        compress: int | None = None,
    ) -> None:
        """Raises ValueError."""
        if not LOW <= priority <= HIGH:
            raise ValueError(f"priority must be 0 (low), 1 or 2 (high), not {priority}")
        if ttl is not None and not 0 < ttl < float("inf"):
            raise ValueError(f"a message expires in more than 0 seconds, not in {ttl}")
        if compress is not None and not 0 <= compress <= 9:
            raise ValueError(f"compress must be 0 to 9, not {compress}")
        if headers:
            encode_headers(headers)

    # --- durable ---

    def _append(self) -> Journal:
        """The journal of cursors, to write."""
        if self._journal is None:
            self._begin_journal()
        assert self._journal is not None
        self._done += 1
        return self._journal

    def _begin_journal(self) -> None:
        if self._seed is None:
            self._renew_journal()
            return
        storage = self.directory.open(CURSORS, "w", follow=False)
        self._journal = Journal(storage, self._seed, self._journal_at[1])

    def _renew_journal(self) -> None:
        """A journal that says how it is now, and nothing else. Durable."""
        now = time.time_ns()
        for key in [key for key, entry in self.state.dedup.items() if entry.expires <= now]:
            del self.state.dedup[key]
        with replacing(self.directory, CURSORS) as storage:
            journal = Journal(storage)
            self.state.store(journal)
            journal.flush()
        journal.unsynced = False
        for old in (self._heard, None if self._journal is None else self._journal.storage):
            if old is not None:
                old.close()
        self._journal, self._seed = journal, journal.seed
        self._heard = storage.duplicate()
        self._journal_at = storage.info().identity, journal.size

    def _flush_all(self) -> None:
        """Write what waits to the segment and to the journal."""
        self._tail.flush()
        for cursor in self.state.cursors.values():
            if cursor.moved:
                self._append().add(ondisk.AT, cursor.number, *cursor.at)
                cursor.moved = False
        if self._journal is not None:
            self._journal.flush()
            self._heard_all()

    def sync(self) -> None:
        """Return when all that was pushed, popped and acknowledged before is durable.

        raises  ReadOnly; OSError: nothing is known of what was not synced
        """
        with self._lock:
            self._access.check()
            wanted = self._done + self._tail.done
        with self._sync_lock:
            if self._synced >= wanted and not self._moved():
                return  # by another thread, meanwhile
            with ExitStack() as stack:
                with self._section:
                    self._access.check()
                    self._flush_all()
                    out = journal = None
                    if self._tail.dirty and self._tail.out is not None:
                        out = stack.enter_context(self._tail.out.duplicate())
                    if self._journal is not None and self._journal.unsynced:
                        journal = stack.enter_context(self._journal.storage.duplicate())
                        self._journal.unsynced = False
                    named, self._tail.named, self._tail.dirty = self._tail.named, False, False
                    done = self._done + self._tail.done
                with self._access.final():
                    if out is not None:
                        out.sync()
                    if named:
                        self.directory.sync()
                    if journal is not None:
                        journal.sync()
            self._synced = max(self._synced, done)
        if self._journal is not None and self._journal.size > JOURNAL_ROOM:
            self._shrink_journal()

    def _moved(self) -> bool:
        return any(cursor.moved for cursor in self.state.cursors.values())

    def _shrink_journal(self) -> None:
        with self._sync_lock, self._section:
            self._access.check()
            live = sum(len(cursor.leased) for cursor in self.state.cursors.values())
            live += 2 * len(self.state.dedup)
            journal = self._journal  # None: another process has written it anew
            if journal and journal.size > max(JOURNAL_ROOM, 4 * live * ondisk.STRIDE):
                self._sync_all()
                with self._access.final():
                    self._renew_journal()

    def _sync_all(self) -> None:
        """Make all durable, under the lock."""
        self._flush_all()
        with self._access.final():
            if self._tail.dirty and self._tail.out is not None:
                self._tail.out.sync()
            if self._tail.named:
                self.directory.sync()
            self._tail.dirty = self._tail.named = False
            if self._journal is not None and self._journal.unsynced:
                self._journal.storage.sync()
                self._journal.unsynced = False

    def _write_metadata(self) -> None:
        """What LedgerQ reads first. What it says is durable before."""
        firsts = [segment.first for segment in self.files.segments.values() if segment.first]
        # LedgerQ waits for a message that is not there.
        read = max(self.state.cursors[MAIN].low, *firsts[:1] or [self._tail.next_id])
        metadata = Metadata(self._tail.next_id, min(read, self._tail.next_id))
        if self.shared:
            self._metadata = self._read_metadata()
        if metadata == self._metadata:
            return
        self.state.written = [one for one in (self._metadata, metadata) if one is not None]
        for one in self.state.written:  # until it is there, the other one is
            self._append().add(ondisk.WRITTEN, 0, *one)
        self._sync_all()
        with self._access.final(), replacing(self.directory, state.METADATA) as storage:
            storage.write(0, [metadata.encode()])
        storage.close()
        self._metadata = metadata

    def _finish(self) -> None:
        """Write what LedgerQ reads."""
        with self._lock:
            last = next(reversed(self.files.segments.values()), None)
            if last is not None and last.first:
                self._tail.fill(last)
                self._tail.end(last)
            self._write_metadata()
            self._write_trackers()

    # --- what LedgerQ keeps as JSON ---

    def _read_trackers(self) -> None:
        for name, read in ((state.DEDUP, self._take_dedup), (state.RETRY, self._take_retry)):
            try:
                with self.directory.open(name, follow=False) as storage:
                    if storage.size() > state.MOST:
                        raise CorruptError("state of a queue", file=storage.name, offset=0)
                    read(storage.read(0, state.MOST), storage.name)
            except FileNotFoundError:
                pass
            except CorruptError as error:
                self._say(f"{error}: it is not used")

    def _take_dedup(self, data: bytes, name: str) -> None:
        now = time.time_ns()
        for entry in state.decode_dedup(data, file=name):
            known = self.state.dedup.get(entry.key)
            if entry.expires > now and len(entry.key) == 64 and known is None:
                with suppress(ValueError):
                    bytes.fromhex(entry.key)
                    self.state.dedup[entry.key] = entry

    def _take_retry(self, data: bytes, name: str) -> None:
        for entry in state.decode_retry(data, file=name):
            self._retry.setdefault(entry.message_id, entry)

    def _write_trackers(self) -> None:
        now = time.time_ns()
        kept = [entry for entry in self.state.dedup.values() if entry.expires > now]
        self._write_tracker(state.DEDUP, state.encode_dedup(kept), used=bool(kept))
        failed = {
            id: Retry(id, lease.failures, now)
            for id, lease in self.state.cursors[MAIN].leased.items()
            if lease.failures
        }
        rows = (failed | self._retry).values()
        self._write_tracker(state.RETRY, state.encode_retry(rows, self.retries), used=bool(rows))

    def _write_tracker(self, name: str, data: bytes, *, used: bool) -> None:
        there = None
        with suppress(FileNotFoundError), self.directory.open(name, follow=False) as storage:
            there = storage.read(0, len(data) + 1)
        if there == data or (there is None and not used):
            return
        with replacing(self.directory, name) as storage:
            storage.write(0, [data])
        storage.close()

    # --- popping ---

    def _cursor(self, name: str) -> Cursor:
        cursor = self.state.cursors.get(name)
        if cursor is None:
            raise NoSuchFile(f"no consumer {name!r}: add it first", self.path)
        return cursor

    def _order(self, cursor: Cursor) -> Order:
        if cursor.order is None:
            cursor.order = Order(
                self.files, cursor.at, priorities=self._mode, starved=self._starved
            )
        return cursor.order

    def pop(self, *, visible: float | None = None, consumer: str = MAIN) -> Message | None:
        """The next message, which is consumed; None: there is none.

        visible  seconds for which it is leased: who does not `ack` it meanwhile leaves it to others
        consumer whose position it is, the main one's or that of `add_consumer`
        raises   ReadOnly; NoSuchFile: no such consumer; OSError. Damage is in `problems`, skipped
        cost     3 us
        """
        with self._section:
            if not self._access.ready:
                self._access.check()
            message = self._pop(self._cursor(consumer), time.time_ns(), visible)
        if self._always and message is not None:
            self.sync()
        return message

    def pop_many(
        self, count: int, *, visible: float | None = None, consumer: str = MAIN
    ) -> list[Message]:
        """Up to so many messages. With sync "always" there is one sync for all of them."""
        found = []
        with self._section:
            self._access.check()
            cursor, now = self._cursor(consumer), time.time_ns()
            for _ in range(count):
                message = self._pop(cursor, now, visible)
                if message is None:
                    break
                found.append(message)
        if self._always and found:
            self.sync()
        return found

    def _pop(self, cursor: Cursor, now: int, visible: float | None) -> Message | None:
        order = cursor.order or self._order(cursor)
        deadline = 0 if visible is None else _later(now, visible)
        message = order.head(now)
        if cursor.leased:
            overdue = self._overdue(cursor, now, message)
            if overdue is not None:
                return self._hand_out(cursor, overdue, now, visible)
        if message is None:
            before = list(cursor.at)
            order.seen()
            cursor.moved = cursor.moved or before != cursor.at
            return None
        order.heads[order.lane] = None
        at, after = cursor.at, message.id + 1
        if self._mode:
            at[message.priority] = after
        else:
            if at[0] < after:
                at[0] = after
            if at[1] < after:
                at[1] = after
            if at[2] < after:
                at[2] = after
        cursor.moved = True
        self._done += 1
        if visible is not None:
            self._lease(cursor, message.id, Lease(
                deadline, 1, 0, message.priority
            ))  # fmt: skip
        return message

    def _overdue(self, cursor: Cursor, now: int, head: Message | None) -> Message | None:
        """A message whose lease has ended, if it comes before `head`."""
        while (found := cursor.overdue(now)) is not None:
            id, lease = found
            if self._mode and head is not None and head.priority > lease.priority:
                return None
            try:
                message = self.files.find(id)
            except CorruptError as error:
                self._say(str(error))
                message = None
            if message is not None and (message.expires is None or message.expires > now):
                return message._replace(deliveries=lease.deliveries + 1)
            self._settle(cursor, id)
        return None

    def _hand_out(
        self, cursor: Cursor, message: Message, now: int, visible: float | None
    ) -> Message:
        """A message again."""
        if visible is None:
            self._settle(cursor, message.id)
        else:
            lease = cursor.leased[message.id]
            self._lease(cursor, message.id, lease._replace(
                deadline=_later(now, visible), deliveries=message.deliveries
            ))  # fmt: skip
        return message

    def _lease(self, cursor: Cursor, id: int, lease: Lease) -> None:
        cursor.lease(id, lease)
        write_lease(self._append(), cursor, id, lease)

    def _settle(self, cursor: Cursor, id: int) -> bool:
        """It is consumed -> whether it was leased."""
        if cursor.leased.pop(id, None) is None:
            return False
        self._append().add(ondisk.DONE, cursor.number, id)
        return True

    def ack(self, *ids: int, consumer: str = MAIN) -> int:
        """Messages are done with -> how many of them were leased; others are consumed already.

        cost  2 us
        """
        with self._section:
            self._access.check()
            cursor = self._cursor(consumer)
            done = 0
            for id in ids:
                done += self._settle(cursor, id)
                self._retry.pop(id, None)
        if self._always:
            self.sync()
        return done

    def nack(self, id: int, reason: str = "", *, delay: float = 0.0, consumer: str = MAIN) -> bool:
        """A message has failed: it comes again, in `delay` seconds; behind the last of `retries` it
        goes to the dead letter queue, if there is one -> whether it did so.

        raises  NoSuchFile: it is not there, or nobody has popped it
        """
        with self._section:
            self._access.check()
            cursor, now = self._cursor(consumer), time.time_ns()
            lease = cursor.leased.get(id)
            if lease is None:
                message = self.files.find(id)
                if message is None or id >= cursor.at[message.priority]:
                    raise NoSuchFile(f"no message {id} that was popped", self.path)
                lease = Lease(now, 1, 0, message.priority)
            known = self._retry.get(id)
            failures = max(lease.failures, known.failures if known and consumer == MAIN else 0) + 1
            if consumer == MAIN:
                self._retry[id] = Retry(id, failures, now, reason)
            dead = self._dead_path is not None and 0 < self.retries <= failures
            if dead:
                self._bury(id, failures, reason, now)
                cursor.leased.setdefault(id, lease)
                self._settle(cursor, id)
                self._retry.pop(id, None)
            else:
                self._lease(cursor, id, lease._replace(
                    deadline=_later(now, delay), failures=failures
                ))  # fmt: skip
        if self._always:
            self.sync()
        return dead

    # --- dead letters ---

    def dead_letters(self) -> Queue:
        """The queue of messages that failed too often. Raises ValueError where there is none."""
        if self._dead_path is None:
            raise ValueError("the queue was opened without dead_letters")
        if self._dead is None:
            self._dead = Queue(self._dead_path, "a", shared=self.shared, make=True)
        return self._dead

    def _bury(self, id: int, failures: int, reason: str, now: int) -> None:
        """Copy a message to the dead letter queue, durable."""
        message = self.files.find(id)
        if message is None:
            return
        headers = {
            **message.headers, f"{DEAD}original_msg_id": str(id),
            f"{DEAD}retry_count": str(failures), f"{DEAD}failure_reason": _shortened(reason),
            f"{DEAD}last_failure": state.time_text(now, 3),
        }  # fmt: skip
        dead = self.dead_letters()
        dead.push(message.payload, priority=message.priority, headers=headers)
        dead.sync()

    def requeue(self, count: int | None = None) -> int:
        """Push messages of the dead letter queue again, the oldest first -> how many. Durable."""
        dead, done = self.dead_letters(), 0
        while count is None or done < count:
            some = 100 if count is None else min(count - done, 100)
            messages = dead.pop_many(some, visible=3600.0)
            if not messages:
                break
            for message in messages:
                headers = {k: v for k, v in message.headers.items() if not k.startswith(DEAD)}
                self.push(message.payload, priority=message.priority, headers=headers)
            self.sync()
            dead.ack(*(message.id for message in messages))
            dead.sync()
            done += len(messages)
        return done

    # --- looking ---

    def messages(self, *, consumer: str = MAIN) -> Iterator[Message]:
        """The messages that are not consumed, in the order in which they would be popped; not those
        that are leased to somebody. It writes nothing.

        cost  2 us a message
        """
        with self._section:
            cursor, now = self._cursor(consumer), time.time_ns()
            order = Order(self.files, list(cursor.at), priorities=self._mode, starved=self._starved)
            overdue = sorted(
                (-lease.priority if self._mode else 0, id)
                for id, lease in cursor.leased.items()
                if lease.deadline <= now
            )
        yield from self._in_order(order, cursor, overdue, now)

    def _in_order(
        self, order: Order, cursor: Cursor, overdue: list[tuple[int, int]], now: int
    ) -> Iterator[Message]:
        while True:
            with self._lock:
                self._access.check_open()
                try:
                    message = order.head(now)
                except FileNotFoundError:
                    self._look_again()
                    continue
                first = bool(overdue) and (
                    message is None or not self._mode or message.priority <= -overdue[0][0]
                )
                if first:
                    id = overdue.pop(0)[1]
                    lease, message = cursor.leased.get(id), self.files.find(id)
                    if lease is None or message is None:
                        continue
                    if message.expires is not None and message.expires <= now:
                        continue
                    message = message._replace(deliveries=lease.deliveries + 1)
                elif message is not None:
                    order.taken()
                    for lane in (message.priority,) if self._mode else BY_PRIORITY:
                        order.at[lane] = max(order.at[lane], message.id + 1)
            if message is None:
                return
            yield message

    def _look_again(self) -> None:
        """A segment is gone: who looks has to see what a writer has done."""
        before = self.files.changes
        self.files.load(follow=True)
        if before == self.files.changes:
            raise NoSuchFile("a segment is gone: open it anew", self.path)

    def all_messages(self, start: int = 1) -> Iterator[Message]:
        """All messages that are there from an id on, also those that are consumed or have expired,
        by arrival."""
        with self._section:
            lane = self.files.arrivals(start)
        while True:
            with self._lock:
                self._access.check_open()
                try:
                    message = next(lane, self)
                except FileNotFoundError:
                    self._look_again()
                    message = self
                if message is self:  # the files have changed
                    lane = self.files.arrivals(start)
                    continue
            if not isinstance(message, Message):
                return
            start = message.id + 1
            yield message

    def peek(self, count: int = 1, *, consumer: str = MAIN) -> list[Message]:
        """The next messages, which stay. Cost: as to begin to read."""
        return list(islice(self.messages(consumer=consumer), count))

    def read(self, id: int) -> Message:
        """A message, also one that is consumed. Raises NoSuchFile; CorruptError; OSError.

        cost  20 us
        """
        with self._section:
            self._access.check_open()
            message = self.files.find(id)
        if message is None:
            raise NoSuchFile(f"no message {id}", self.path)
        return message

    def refresh(self) -> bool:
        """Follow those who write -> whether anything has changed. For mode "r"."""
        with self._lock:
            if self.writable or self._access.closed:
                return False
            before = self._picture()
            self._load(follow=True)
            return before != self._picture()

    def _picture(self) -> object:
        cursors = [
            (c.name, tuple(c.at), sorted(c.leased.items())) for c in self.state.cursors.values()
        ]
        return cursors, [(n, s.size, s.first, s.identity) for n, s in self.files.segments.items()]

    @property
    def by_priority(self) -> bool:
        """Whether messages are read by priority."""
        return self._mode

    @property
    def next_id(self) -> int:
        """The id of the next message that is pushed."""
        with self._section:
            if self.writable:
                return self._tail.next_id
            known = self._metadata.next_id if self._metadata is not None else 1
            return max(self.files.last + 1, known)

    # --- moving ---

    def seek(self, id: int, *, consumer: str = MAIN) -> None:
        """Read on from a message, whoever has read it; leases end. 1: from the start."""
        if not 0 < id <= LAST_ID:
            raise ValueError(f"no message can have the id {id}")
        with self._section:
            self._access.check()
            self._seek(self._cursor(consumer), min(id, self._tail.next_id))
        if self._always:
            self.sync()

    def _seek(self, cursor: Cursor, id: int) -> None:
        cursor.seek([id] * 3)
        self._append().add(ondisk.SEEK, cursor.number, *cursor.at)

    def seek_time(self, seconds: float, *, consumer: str = MAIN) -> int:
        """Read on from the first message pushed then (seconds since the epoch) or later -> its id.

        cost  a look into the index of each segment the first time, and a read of 4 KiB
        """
        with self._section:
            self._access.check()
            id = self.files.at_time(int(seconds * NANO))
            self._seek(self._cursor(consumer), max(min(id, self._tail.next_id), 1))
        if self._always:
            self.sync()
        return id

    def add_consumer(self, name: str, *, start: int = 1) -> None:
        """Add a consumer that reads on its own, from a message on. One that is there stays.

        name    32 bytes at most, as UTF-8
        """
        data = name.encode()
        if not 0 < len(data) <= ondisk.LONGEST or b"\0" in data:
            raise ValueError(f"a consumer has a name of 1 to {ondisk.LONGEST} bytes, not {name!r}")
        with self._section:
            self._access.check()
            if name not in self.state.cursors:
                cursor = self.state.add(name)
                self._append().add_text(ondisk.NAME, cursor.number, data)
                self._seek(cursor, min(max(start, 1), self._tail.next_id))
        if self._always:
            self.sync()

    def remove_consumer(self, name: str) -> None:
        """Raises NoSuchFile; ValueError for the main one."""
        if name == MAIN:
            raise ValueError("the main consumer stays")
        with self._section:
            self._access.check()
            cursor = self._cursor(name)
            self.state.remove(cursor)
            self._append().add(ondisk.GONE, cursor.number)
        if self._always:
            self.sync()

    def stream(
        self,
        *,
        timeout: float | None = None,
        visible: float | None = None,
        consumer: str = MAIN,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Message]:
        """Pop messages as they come; ends where none has come for `timeout` seconds, or where
        `stop` says so."""
        last = time.monotonic()
        while not stop():
            message = self.pop(visible=visible, consumer=consumer)
            if message is not None:
                yield message
                last = time.monotonic()
                continue
            left = POLL if timeout is None else last + timeout - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, POLL))

    # --- compaction ---

    def compact(
        self,
        *,
        seconds: float | None = None,
        bytes: int | None = None,
        segments: int | None = None,
        least: int = 1,
        unread: bool = False,
        dry_run: bool = False,
    ) -> Compaction:
        """Remove segments whose messages all consumers have consumed, the oldest first.

        seconds, bytes, segments  only until the oldest is not older, or all are not more; None of
                them: as many as there are
        least   so many segments stay
        unread  also those that somebody has not read
        """
        with self._section:
            if not dry_run:
                self._access.check()
            gone = self._removable(seconds, bytes, segments, least, unread=unread)
            floor = min(cursor.low for cursor in self.state.cursors.values())
            left = sum(
                max(segment.last - max(segment.first, floor) + 1, 0)
                for segment in gone
                if segment.first
            )
            made = Compaction(len(gone), sum(segment.size for segment in gone), left)
            if gone and not dry_run:
                self._remove(gone)
        return made

    def _removable(
        self,
        seconds: float | None,
        bytes: int | None,
        count: int | None,
        least: int,
        *,
        unread: bool,
    ) -> list[Segment]:
        there = list(self.files.segments.values())
        size, now = sum(segment.size for segment in there), time.time_ns()
        floor = min(cursor.low for cursor in self.state.cursors.values())
        free, gone = (seconds, bytes, count) == (None, None, None), []
        for i, segment in enumerate(there[:-1]):
            if len(there) - i <= max(least, 1) or (segment.last >= floor and not unread):
                break
            following = there[i + 1].header
            age = now - (following.created if following is not None else now)
            if not (
                free
                or (seconds is not None and age > seconds * NANO)
                or (bytes is not None and size > bytes)
                or (count is not None and len(there) - i > count)
            ):
                break
            size -= segment.size
            gone.append(segment)
        return gone

    def _remove(self, gone: list[Segment]) -> None:
        last = max(segment.last for segment in gone)
        for cursor in self.state.cursors.values():
            if cursor.low <= last:  # unread
                cursor.past(last)
                for id in cursor.leased:
                    write_lease(self._append(), cursor, id, cursor.leased[id])
        self._write_metadata()
        self._sync_all()  # what is removed must not be wanted any more
        self._before_change()
        for segment in gone:
            for suffix in (".log", index.SUFFIX, priorities.SUFFIX):
                self.directory.unlink(name_of(segment.number, suffix))
            self.files.drop(segment)
        with self._access.final():
            self.directory.sync()

    # --- facts ---

    def pending(self, consumer: str = MAIN) -> int:
        """Messages that are not consumed, as far as ids tell: expired ones count, too."""
        with self._section:
            cursor = self._cursor(consumer)
            count = len(cursor.leased)
            if len(set(cursor.at)) == 1:
                for segment in self.files.segments.values():
                    if segment.first:
                        count += max(segment.last - max(segment.first, cursor.at[0]) + 1, 0)
                return count
            return count + self._pending_by_priority(cursor)

    def _pending_by_priority(self, cursor: Cursor) -> int:
        low, count = min(cursor.at), 0
        for segment in self.files.segments.values():
            if segment.first and segment.last >= low:
                if segment.first >= max(cursor.at):
                    count += segment.count
                    continue
                for (ids, _), position in zip(self.files.tables(segment), cursor.at, strict=True):
                    count += len(ids) - bisect_left(ids, position)
        return count

    def stats(self) -> dict[str, Any]:
        """Messages and ids, segments, bytes, consumers, what is leased. Cost: little."""
        with self._section:
            segments = list(self.files.segments.values())
            cursors = self.state.cursors.values()
            return {
                "pending": self.pending(), "next_id": self.next_id,
                "read_id": self.state.cursors[MAIN].low,
                "in_flight": len(self.state.cursors[MAIN].leased),
                "messages": sum(segment.count for segment in segments),
                "segments": len(segments), "disk_bytes": sum(s.size for s in segments),
                "by_priority": self._mode,
                "consumers": {
                    cursor.name: {
                        "read_id": cursor.low, "pending": self.pending(cursor.name),
                        "in_flight": len(cursor.leased),
                    }
                    for cursor in cursors
                    if cursor.name != MAIN
                },
                "keys": len(self.state.dedup), "retrying": len(self._retry),
                "removable": len(self._removable(None, None, None, 1, unread=False)),
                "problems": len(self.problems),
            }  # fmt: skip


def _later(now: int, seconds: float) -> int:
    """Nanoseconds since the epoch. Raises ValueError."""
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"a time must be 0 seconds or more, not {seconds}")
    return min(now + int(seconds * NANO), LAST_ID)


def _shortened(text: str) -> str:
    """For a header: no control characters, 1,000 characters at most."""
    return "".join(c if c.isprintable() else " " for c in text[:1000])
