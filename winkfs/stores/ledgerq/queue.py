"""Queue: messages in the order of their arrival or by priority, in the files of LedgerQ.

    with Queue("jobs", "a") as queue:
        queue.push(b"payload", priority=HIGH)
        message = queue.pop(visible=30)  # no other consumer gets it for 30 seconds
        queue.ack(message.id)

A reader needs no lock and writes nothing: mode "r", and `refresh`. One process writes, or several
with `shared`, which take turns. Changes stay in memory, up to 1 MiB, until a read or a sync.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any, Final, NamedTuple

from winkformats.disk.paths import directory_of, is_directory, make_directory, open_folder
from winkformats.disk.storage import TEMPORARY
from winkformats.ledgerq import cursors as ondisk
from winkformats.ledgerq.entry import LAST_ID, LOW, Message, encode_headers
from winkformats.ledgerq.segment import NAME
from winkformats.ledgerq.state import METADATA, Dedup, Retry, time_text
from winkfs.container.ondisk.lock import SUFFIX, WriterLock
from winkfs.errors import FileExists, NoSuchFile, Refusal
from winkfs.stores.handle import StoreHandle, Sync
from winkfs.stores.ledgerq.core import LOCK, TURN, Core, Turns
from winkfs.stores.ledgerq.cursor import (
    MAIN,
    Cursor,
    later,
)
from winkfs.stores.ledgerq.tail import Defaults, NewMessage, Rotation
from winkfs.units import Time, as_int, as_timeout, span_ns, to_ns

POLL_SECONDS: Final = 0.02  # between attempts of a stream to pop
STARVED_SECONDS: Final = 30.0  # after which a message of low priority comes first
RETRIES: Final = 3  # failures of a message before it goes to the dead letter queue
KEYS_KEPT: Final = 100_000  # ids that are remembered for deduplication
COMPRESSED_FROM: Final = 1024  # bytes from which a payload is compressed
DLQ_PREFIX: Final = "dlq."  # of the headers that a dead letter has in addition
PushOptions = Mapping[str, Any]


class Compaction(NamedTuple):
    """Result of a compaction: removed segments, their bytes, and ids of unread messages."""

    segments: int = 0
    bytes: int = 0
    unread: int = 0


def create(
    path: str | os.PathLike[str], *, by_priority: bool = False, exist_ok: bool = False
) -> None:
    """Make an empty queue.

    exist_ok  accept an existing queue, which stays as it is
    raises    FileExists if there is a queue, or another store; Refusal for other folders, and for
              an existing queue that is not read by priority; OSError
    """
    from winkfs.stores.kinds import refuse_other  # not needed to open a queue

    path = os.fspath(path)
    refuse_other(path, "queue")
    if is_queue(path):
        if not exist_ok:
            raise FileExists("is a queue already: open it, or create it with exist_ok", path)
        with Queue(path) as existing:
            if by_priority and not existing.by_priority:
                raise Refusal("is a queue already, and is read by arrival", path)
        return
    cursors = ondisk.CURSORS
    begun = {LOCK, TURN, cursors, f"{cursors}{TEMPORARY}"}  # left by an interrupted call
    if is_directory(path) and not begun.issuperset(directory_of(path).list()):
        raise Refusal("is not empty: a queue needs a directory of its own", path)
    Queue(path, "a", sync="none", by_priority=by_priority, make=True).close()


def is_queue(path: str) -> bool:
    """Return whether there is a queue: a segment, or its metadata."""
    try:
        names = directory_of(path).list()
    except OSError:
        return False
    return any(NAME.fullmatch(name) for name in names) or (
        METADATA in names and (ondisk.CURSORS in names or len(names) == 1)
    )


ROTATION: Final = Rotation()


class Queue(StoreHandle):
    """A queue of messages. Any number of threads may use it.

    mode          "r": to read, also while other processes write; "a": to push and pop
    shared        several processes open it with this option; they take turns, call by call
    sync          when changes become durable: "interval": each `interval` seconds, by `sync` and
                  by `close`; "none": by these two alone; "always": before a call returns
    by_priority   whether messages are read by priority; None: as before, or as they were written
    starved       seconds after which a message of low priority comes before others; 0: never
    ttl           seconds after which a message expires, unless `push` has another
    compress      level of gzip, 1 to 9, of payloads from `compress_from` bytes on; 0: none
    window        seconds in which a `key` is pushed once
    dead_letters  path of the queue that gets a message after `retries` failures
    keys          how many keys are remembered for `push_once`
    rotation      when a new segment begins
    problems      damage that was found, a line each

    After a sync, messages that were pushed are not lost, and messages that were popped or
    acknowledged are not handed out again, whatever happens. Changes without a sync may be lost.
    """

    _what = "the queue"
    _read_only = "the queue was opened for looking"
    _turns: Turns | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str = "r",
        *,
        shared: bool = False,
        sync: Sync = "interval",
        interval: float = 1.0,
        by_priority: bool | None = None,
        starved: float = STARVED_SECONDS,
        ttl: float | None = None,
        compress: int = 0,
        compress_from: int = COMPRESSED_FROM,
        window: float = 0,
        keys: int = KEYS_KEPT,
        dead_letters: str | os.PathLike[str] | None = None,
        retries: int = RETRIES,
        rotation: Rotation = ROTATION,
        make: bool = False,
    ) -> None:
        """Raises NoSuchFile; Locked; Refusal; OSError.

        make  make the directory, if there is none
        cost  a read of each segment, and of the messages that the last index does not cover
        """
        super().__init__(path, mode, sync)
        span_ns(interval, "interval", zero=False)
        NewMessage(b"", ttl=ttl, compress=compress).check()
        rotation.check()
        for what, number, least in (
            ("retries", retries, 0), ("keys", keys, 1), ("compress_from", compress_from, 0),
        ):  # fmt: skip
            as_int(number, what, least)
        self.shared = shared
        if not is_directory(self.path):
            if not (make and self.writable):
                raise NoSuchFile("no such queue", self.path)
            make_directory(self.path)
        self.directory = open_folder(self.path)
        self._closing.callback(self.directory.close)
        self.retries = retries
        self._sync_how = sync, interval
        self._window, self._keys = span_ns(window, "window"), keys
        self._dead_path = None if dead_letters is None else os.fspath(dead_letters)
        self._dead: Queue | None = None
        self._core = core = Core(
            self.directory, self._access, rotation, Defaults(ttl, compress, compress_from),
            shared=shared, by_priority=by_priority, starved=span_ns(starved, "starved"),
        )  # fmt: skip
        self.files, self.reading, self.state = core.files, core.reading, core.state
        self._ledgerq, self._tail, self._deliveries = core.ledgerq, core.tail, core.deliveries
        self.problems = core.problems
        self._open_by(
            lambda: self._begin(make), self.sync if sync == "interval" else None, interval
        )

    # --- opening and closing ---

    def _begin(self, make: bool) -> None:
        if self.shared and self.writable:
            self._section = self._turns = Turns(
                self.directory, self._access, self._lock, self._core.open, self._core.flush
            )
            self._closing.callback(self._turns.close)
        elif self.writable:
            self._keep_lock(WriterLock(self.path, (self.directory, LOCK.removesuffix(SUFFIX))))
        self._closing.callback(self._core.close)
        self._access.ready = self.writable
        if self._turns is not None:
            with self._section:
                self._turns.begin = self._core.catch_up
        elif self.writable:
            self._core.open()
        else:
            self._core.look()
            self.files.warn_torn()
            if not (self.files.segments or self.directory.exists(METADATA) or make):
                raise NoSuchFile("no queue: no segment and no metadata", self.path)

    def _finish(self) -> None:
        """Sync, and write the files that LedgerQ reads, unless another process has it open."""
        self.sync()
        with nullcontext(True) if self._turns is None else self._turns.leave() as last:
            if last:
                with self._section:
                    self._core.end(self.retries)

    def after_fork(self) -> None:
        super().after_fork()
        if self._turns is not None:
            self._turns.lock, self._section = self._lock, self._turns
            self._turns.forget()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the section during a call that changes the queue; sync after it if "always"."""
        with self._section:
            self._access.check()
            yield
        if self._always:
            self.sync()

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
        """
        with self._section:
            if not self._access.ready:
                self._access.check()
            id = self._tail.push(payload, priority, ttl, headers, compress)
        if self._always:
            self.sync()
        return id

    def push_once(
        self, payload: bytes, key: str, *, window: float | None = None, **options: Any
    ) -> tuple[int, bool]:
        """Add a message unless one was pushed with this key in the window -> the id of the message
        with the key, and whether it is new. Options as of `push`."""
        span = self._window if window is None else span_ns(window, "window", zero=False)
        if not span:
            raise ValueError("a key needs a window, in seconds")
        if not isinstance(key, str):
            raise TypeError(f"a key is a text, not {type(key).__name__}")
        new = NewMessage(payload, **options)
        with self._changing():
            now, hashed = time.time_ns(), hashlib.sha256(key.encode()).hexdigest()
            known = self.state.dedup.get(hashed)
            if known is not None and now < known.expires:
                return known.message_id, False
            new.check()
            id = self._tail.push(*new)
            if len(self.state.dedup) >= self._keys:
                self.state.forget_keys(now, self._keys)
            expires = min(now + span, LAST_ID)
            self.state.keep_key(Dedup(hashed, id, now, expires, self._tail.offset))
        return id, True

    def push_many(self, messages: Iterable[bytes | PushOptions], **options: Any) -> range:
        """Add messages -> their ids. With sync "always" there is one sync for all of them.

        messages  payloads, or mappings of `payload` and options of `push`
        options   of messages that have no others
        """
        with self._changing():
            first, some = self._tail.next_id, list(messages)
            if self._tail.plain and not options and set(map(type, some)) == {bytes}:
                self._tail.push_all(some)  # type: ignore[arg-type]
                some = []
            new = [
                NewMessage(**{**options, **(one if isinstance(one, Mapping) else {"payload": one})})
                for one in some
            ]
            for one in new:  # all or none
                one.check()
                if one.headers:
                    encode_headers(one.headers)
            for one in new:
                self._tail.push(*one)
            made = range(first, self._tail.next_id)
        return made

    # --- durable ---

    def sync(self) -> None:
        """Make all changes durable that were made before this call.

        raises  ReadOnly; OSError: changes since the last sync may be lost
        """
        if not self._sync_changes(lambda: self._core.changes, self._core.unsynced):
            return
        if self.state.is_long():
            with self._sync_lock, self._section:
                self._access.check()
                if self.state.is_long():
                    self._core.sync()
                    with self._access.final():
                        self.state.renew()

    # --- popping ---

    def _cursor(self, name: str) -> Cursor:
        cursor = self.state.cursors.get(name)
        if cursor is None:
            raise NoSuchFile(f"no consumer {name!r}: add it first", self.path)
        return cursor

    def pop(
        self, *, visible: float | None = None, timeout: float = 0, consumer: str = MAIN
    ) -> Message | None:
        """Consume the next message; None: no message is left.

        visible  lease it for so many seconds: without an `ack` it is handed out again then
        timeout  seconds to wait for a message; infinite: for ever
        consumer the main one, or one of `add_consumer`
        raises   ReadOnly; NoSuchFile: no such consumer; OSError. Damage is skipped, see `problems`
        """
        with self._section:
            if not self._access.ready:
                self._access.check()
            message = self._deliveries.next(self._cursor(consumer), time.time_ns(), visible)
        if message is None and timeout != 0:
            return self._wait(as_timeout(timeout), visible, consumer, lambda: False)
        if self._always and message is not None:
            self.sync()
        return message

    def pop_many(
        self, count: int, *, visible: float | None = None, consumer: str = MAIN
    ) -> list[Message]:
        """Consume up to `count` messages. With sync "always" there is one sync for all of them."""
        count = as_int(count, "count", 0)
        found = []
        with self._section:
            self._access.check()
            cursor, now, take = self._cursor(consumer), time.time_ns(), self._deliveries.next
            for _ in range(count):
                message = take(cursor, now, visible)
                if message is None:
                    break
                found.append(message)
        if self._always and found:
            self.sync()
        return found

    def ack(self, *ids: int, consumer: str = MAIN) -> int:
        """Acknowledge messages -> how many were leased; the others are consumed already.

        raises  NoSuchFile: one of them was not popped; none is acknowledged then
        """
        with self._section:
            if not self._access.ready:
                self._access.check()
            cursor = self._cursor(consumer)
            done, passed, retry = 0, min(cursor.at), self._ledgerq.retry
            for id in ids:
                known = type(id) is int and (0 < id < passed or id in cursor.leased)
                if not (known or self._deliveries.was_popped(cursor, as_int(id, "an id"))):
                    raise NoSuchFile(f"no message {id} that was popped", self.path)
            for id in ids if cursor.leased or retry else ():
                done += self._deliveries.end_lease(cursor, id)
                retry.pop(id, None)
        if self._always:
            self.sync()
        return done

    def give_back(self, *messages: Message, consumer: str = MAIN) -> None:
        """Give back messages that `pop` handed out: they come next, as if never popped."""
        with self._changing():
            cursor, now = self._cursor(consumer), time.time_ns()
            for message in messages:
                self._deliveries.give_back(cursor, message, now)

    def touch(self, id: int, visible: float, *, consumer: str = MAIN) -> None:
        """Extend the lease of a message to `visible` seconds from now.

        raises  NoSuchFile: it is not leased: acknowledged, or popped without `visible`
        """
        with self._changing():
            cursor, deadline = self._cursor(consumer), later(time.time_ns(), visible, "visible")
            id = as_int(id, "an id")  # not one of numpy, which JSON does not take
            lease = cursor.leased.get(id)
            if lease is None:
                raise NoSuchFile(f"no message {id} that is leased", self.path)
            self._deliveries.lease(cursor, id, lease._replace(deadline=deadline))

    def nack(self, id: int, reason: str = "", *, delay: float = 0.0, consumer: str = MAIN) -> bool:
        """Record that a message has failed -> whether it went to the dead letter queue.

        It goes there after `retries` failures, if there is such a queue; else it is handed out
        again in `delay` seconds.

        raises  NoSuchFile: it does not exist, or was not popped
        """
        if not isinstance(reason, str):
            raise TypeError(f"a reason is a text, not {type(reason).__name__}")
        with self._changing():
            cursor, now = self._cursor(consumer), time.time_ns()
            again, id = later(now, delay, "delay"), as_int(id, "an id")
            lease = self._deliveries.last_lease(cursor, id, now)
            if lease is None:
                raise NoSuchFile(f"no message {id} that was popped", self.path)
            known = self._ledgerq.retry.get(id)
            failures = max(lease.failures, known.failures if known and consumer == MAIN else 0) + 1
            if consumer == MAIN:
                self._ledgerq.retry[id] = Retry(id, failures, now, reason)
            dead = self._dead_path is not None and 0 < self.retries <= failures
            if dead:
                self._bury(id, failures, reason, now)
                cursor.leased.setdefault(id, lease)
                self._deliveries.end_lease(cursor, id)
                self._ledgerq.retry.pop(id, None)
            else:
                self._deliveries.lease(cursor, id, lease._replace(
                    deadline=again, failures=failures
                ))  # fmt: skip
        return dead

    # --- dead letters ---

    def dead_letters(self) -> Queue:
        """Return the queue of messages that failed too often. Raises ValueError without one."""
        if self._dead_path is None:
            raise ValueError("the queue was opened without dead_letters")
        if self._dead is None:
            self._dead = Queue(
                self._dead_path, "a", shared=self.shared, sync=self._sync_how[0],
                interval=self._sync_how[1], make=True,
            )  # fmt: skip
            self._beside.append(self._dead)
        return self._dead

    def _bury(self, id: int, failures: int, reason: str, now: int) -> None:
        """Copy a message to the dead letter queue, durable."""
        message = self.reading.find(id)
        if message is None:
            return
        headers = {
            **message.headers, f"{DLQ_PREFIX}original_msg_id": str(id),
            f"{DLQ_PREFIX}retry_count": str(failures),
            f"{DLQ_PREFIX}failure_reason": _shortened(reason),
            f"{DLQ_PREFIX}last_failure": time_text(now, 3),
        }  # fmt: skip
        dead = self.dead_letters()
        dead.push(message.payload, priority=message.priority, headers=headers)
        dead.sync()

    def requeue(self, count: int | None = None) -> int:
        """Push messages of the dead letter queue again, the oldest first -> how many. Durable."""
        if count is not None:
            count = as_int(count, "count", 0)
        dead, done = self.dead_letters(), 0
        while count is None or done < count:
            some = 100 if count is None else min(count - done, 100)
            messages = dead.pop_many(some, visible=3600.0)
            if not messages:
                break
            for message in messages:
                headers = {k: v for k, v in message.headers.items() if not k.startswith(DLQ_PREFIX)}
                self.push(message.payload, priority=message.priority, headers=headers)
            self.sync()
            dead.ack(*(message.id for message in messages))
            dead.sync()
            done += len(messages)
        return done

    # --- looking ---

    def messages(self, *, consumer: str = MAIN) -> Iterator[Message]:
        """Yield the messages that are neither consumed nor leased, in the order in which they would
        be popped. Writes nothing."""
        with self._section:
            lane = self._deliveries.pending(self._cursor(consumer), time.time_ns())
        yield from self._without_lock_between(lane)

    def all_messages(self, start: int = 1) -> Iterator[Message]:
        """Yield all messages from an id on by arrival, also consumed and expired ones."""
        with self._section:
            lane = self.reading.all(start)
        yield from self._without_lock_between(lane)

    def _without_lock_between(self, lane: Iterator[Message]) -> Iterator[Message]:
        while True:
            with self._lock:
                self._access.check_open()
                message = next(lane, None)
            if message is None:
                return
            yield message

    def peek(self, count: int = 1, *, consumer: str = MAIN) -> list[Message]:
        """Return the next messages, which stay."""
        return list(islice(self.messages(consumer=consumer), count))

    def read(self, id: int) -> Message:
        """Return a message, also a consumed one. Raises NoSuchFile; CorruptError; OSError."""
        with self._section:
            self._access.check_open()
            message = self.reading.find(as_int(id, "an id"))
        if message is None:
            raise NoSuchFile(f"no message {id}", self.path)
        return message

    def refresh(self) -> bool:
        """Follow the writers -> whether anything has changed. For mode "r"."""
        with self._lock:
            if self.writable or self._access.closed:
                return False
            before = self._core.picture()
            self._core.look()
            return before != self._core.picture()

    @property
    def by_priority(self) -> bool:
        """True if messages are read by priority."""
        return self._deliveries.by_priority

    @property
    def next_id(self) -> int:
        """The id of the next message that is pushed."""
        with self._section:
            if self.writable:
                return self._tail.next_id
            known = self._ledgerq.metadata.next_id if self._ledgerq.metadata is not None else 1
            return max(self.files.last + 1, known)

    # --- moving ---

    def seek(self, id: int, *, consumer: str = MAIN) -> None:
        """Move a consumer to a message, also back; its leases end. 1: to the start."""
        id = as_int(id, "an id")
        if not 0 < id <= LAST_ID:
            raise ValueError(f"no message can have the id {id}")
        with self._changing():
            self.state.seek(self._cursor(consumer), self._start(id))

    def _start(self, id: int) -> int:
        """Return the id, limited to those from the first message to the next id."""
        firsts = (segment.first for segment in self.files.segments.values() if segment.first)
        return max(min(id, self._tail.next_id), next(firsts, self._tail.next_id))

    def seek_time(self, seconds: Time, *, consumer: str = MAIN) -> int:
        """Move a consumer to the first message pushed at `seconds` since the epoch, or a datetime,
        or later -> its id.

        cost  a read of each index the first time, and of 4 KiB
        """
        since = to_ns(seconds)
        if since is None:
            raise TypeError("a time is seconds since the epoch, not None")
        with self._changing():
            id = self.reading.at_time(since)
            self.state.seek(self._cursor(consumer), self._start(id))
        return id

    def clear(self, *, consumer: str = MAIN) -> None:
        """Consume all messages; leases end. `seek` can undo that."""
        with self._changing():
            self.state.seek(self._cursor(consumer), self._tail.next_id)

    def add_consumer(self, name: str, *, start: int = 1) -> None:
        """Add a consumer with a position of its own, at a message. An existing one stays as it is.

        name    32 bytes at most, as UTF-8
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a consumer is a text, not {type(name).__name__}")
        start = as_int(start, "start")
        data = name.encode()
        if not 0 < len(data) <= ondisk.MAX_NAME or b"\0" in data:
            raise ValueError(f"a consumer has a name of 1 to {ondisk.MAX_NAME} bytes, not {name!r}")
        with self._changing():
            if name not in self.state.cursors:
                cursor = self.state.add(name)
                self.state.append().add_text(ondisk.NAME, cursor.number, data)
                self.state.seek(cursor, self._start(start))

    def remove_consumer(self, name: str) -> None:
        """Remove a consumer. Raises NoSuchFile; ValueError for the main one."""
        if name == MAIN:
            raise ValueError("the main consumer stays")
        with self._changing():
            cursor = self._cursor(name)
            self.state.remove(cursor)
            self.state.append().add(ondisk.GONE, cursor.number)

    def stream(
        self,
        *,
        timeout: float | None = None,
        visible: float | None = None,
        consumer: str = MAIN,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Message]:
        """Pop messages as they come; end if none has come for `timeout` seconds (None: never), or
        if `stop` returns true."""
        wait = math.inf if timeout is None else as_timeout(timeout)
        while not stop():
            message = self._wait(wait, visible, consumer, stop)
            if message is None:
                return
            yield message

    def _wait(
        self, seconds: float, visible: float | None, consumer: str, stop: Callable[[], bool]
    ) -> Message | None:
        until = time.monotonic() + seconds
        while True:
            message = self.pop(visible=visible, consumer=consumer)
            remaining = until - time.monotonic()
            if message is not None or remaining <= 0 or stop():
                return message
            time.sleep(min(remaining, POLL_SECONDS))

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

        seconds, bytes, segments  remove while the oldest ended before so many seconds, or while
                the queue has more bytes or segments; without limits, all such segments
        least   keep at least so many segments
        unread  also segments with messages that a consumer has not read
        """
        age = None if seconds is None else span_ns(seconds, "seconds")
        for what, number in (("bytes", bytes), ("segments", segments), ("least", least)):
            if number is not None:
                as_int(number, what, 0)
        with self._section:
            if not dry_run:
                self._access.check()
            floor = self.state.low
            before = None if age is None else time.time_ns() - age
            end = LAST_ID + 1 if unread else floor
            gone = self.files.removable(end, before, bytes, segments, least)
            unread_ids = sum(max(s.last - max(s.first, floor) + 1, 0) for s in gone if s.first)
            made = Compaction(len(gone), sum(s.size for s in gone), unread_ids)
            if gone and not dry_run:
                self._core.remove(gone)
        return made

    # --- facts ---

    def pending(self, consumer: str = MAIN) -> int:
        """Return how many messages are not consumed, from their ids: expired ones count, too."""
        with self._section:
            cursor = self._cursor(consumer)
            return len(cursor.leased) + self.reading.pending(cursor.at)

    def __len__(self) -> int:
        """The number of messages that the main consumer has not consumed, also leased ones."""
        return self.pending()

    def __bool__(self) -> bool:
        """True, also for an empty queue: see `empty`."""
        return True

    def __iter__(self) -> Iterator[Message]:
        """Iterate as `messages` does: nothing is consumed."""
        return self.messages()

    def empty(self, *, consumer: str = MAIN) -> bool:
        """Return whether `pop` would find nothing now."""
        return next(self.messages(consumer=consumer), None) is None

    def stats(self) -> dict[str, Any]:
        """Return counts of messages, ids, segments, bytes, consumers and leases."""
        with self._section:
            segments = list(self.files.segments.values())
            cursors, main = self.state.cursors.values(), self.state.cursors[MAIN]
            failed = {id for id, lease in main.leased.items() if lease.failures}
            return {
                "pending": self.pending(), "next_id": self.next_id,
                "read_id": main.low, "in_flight": len(main.leased),
                "messages": sum(segment.count for segment in segments),
                "segments": len(segments), "disk_bytes": sum(s.size for s in segments),
                "by_priority": self._deliveries.by_priority,
                "consumers": {
                    cursor.name: {
                        "read_id": cursor.low, "pending": self.pending(cursor.name),
                        "in_flight": len(cursor.leased),
                    }
                    for cursor in cursors
                    if cursor.name != MAIN
                },
                "keys": len(self.state.dedup), "retrying": len(self._ledgerq.retry.keys() | failed),
                "removable": len(self.files.removable(self.state.low, None, None, None, 1)),
                "problems": len(self.problems),
            }  # fmt: skip


def _shortened(text: str) -> str:
    """Return a text for a header: no control characters, at most 1,000 characters."""
    return "".join(c if c.isprintable() else " " for c in text[:1000])
