"""Who has read what: cursors, their leases, and the order in which each reads.

A cursor has a position for each priority: what is below it is consumed, except what is leased. As
within a priority messages are read in the order of their ids, that says all.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

from winkformats.disk.storage import Storage
from winkformats.ledgerq import cursors as ondisk
from winkformats.ledgerq.cursors import Journal, Row
from winkformats.ledgerq.entry import HIGH, LOW, MEDIUM, Message
from winkformats.ledgerq.state import Dedup, Metadata
from winkfs.stores.ledgerq.files import Files

MAIN: Final = ""  # the cursor that LedgerQ has, too
NONE: Final[Iterator[Message | None]] = iter(())
BY_PRIORITY: Final = (HIGH, MEDIUM, LOW)


class Lease(NamedTuple):
    """A message that was handed out, and is not acknowledged: until when nobody else gets it."""

    deadline: int  # nanoseconds since the epoch
    deliveries: int
    failures: int
    priority: int


class Order:
    """The messages that are not consumed, in the order in which they are read.

    at        what is below is consumed, of each priority; the one who consumes moves it
    starved   nanoseconds after which a message of low priority comes first; 0: never
    """

    def __init__(self, files: Files, at: list[int], *, priorities: bool, starved: int) -> None:
        self.files, self.at, self.starved = files, at, starved
        self.lanes = [NONE] * (3 if priorities else 1)
        self.heads: list[Message | None] = [None] * len(self.lanes)
        self.lane = 0  # whose head was returned last

    def reset(self) -> None:
        """The positions have gone back, or the segments are others."""
        self.lanes = [NONE] * len(self.lanes)
        self.heads = [None] * len(self.lanes)

    def head(self, now: int) -> Message | None:
        """The next message, which stays the next one until it is `taken`. None: there is none."""
        if len(self.lanes) == 1:
            message = self.heads[0]
            return message if message is not None and self._is_due(message, now) else self._next(
                0, now
            )  # fmt: skip
        low = self._head(LOW, now)
        if low is not None and self.starved and now - low.timestamp >= self.starved:
            self.lane = LOW
            return low
        for self.lane in (HIGH, MEDIUM):
            message = self._head(self.lane, now)
            if message is not None:
                return message
        self.lane = LOW
        return low

    def _head(self, lane: int, now: int) -> Message | None:
        message = self.heads[lane]
        if message is not None and self._is_due(message, now):
            return message
        return self._next(lane, now)

    def _is_due(self, message: Message, now: int) -> bool:
        return message.id >= self.at[message.priority] and (
            message.expires is None or message.expires > now
        )

    def _next(self, lane: int, now: int) -> Message | None:
        at, anew = self.at, 0
        while True:
            for message in self.lanes[lane]:
                if message is None:
                    self.heads[lane] = None
                    return None
                if message.id >= at[message.priority] and (
                    message.expires is None or message.expires > now
                ):
                    self.heads[lane] = message
                    return message
            anew += 1
            if len(self.lanes) == 1:
                self.lanes[0] = self.files.arrivals(min(at))
            else:
                self.lanes[lane] = self.files.of_priority(lane, at[lane])

    def taken(self) -> None:
        """The message that `head` returned is consumed."""
        self.heads[self.lane] = None

    def seen(self) -> None:
        """Behind a `head` that has found nothing: all that there is is consumed or expired."""
        last = self.files.last + 1
        self.at[:] = [max(position, last) for position in self.at]


class Cursor:
    """A reader of the queue.

    at       position by priority; see `Order`
    leased   id -> its lease, also those whose deadline has passed
    moved    `at` has changed since it was written
    """

    def __init__(self, name: str, number: int, start: int = 1) -> None:
        self.name, self.number = name, number
        self.at = [start] * 3
        self.leased: dict[int, Lease] = {}
        self.due: list[tuple[int, int]] = []  # heap of deadline and id, also of former leases
        self.ready: list[tuple[int, int]] = []  # heap of -priority and id whose deadline has passed
        self.moved = False
        self.order: Order | None = None

    @property
    def low(self) -> int:
        """All below is consumed."""
        return min(*self.at, *self.leased) if self.leased else min(self.at)

    def seek(self, at: list[int]) -> None:
        self.at[:] = at
        self.leased.clear()
        self.due.clear()
        self.ready.clear()
        self.moved = False
        if self.order is not None:
            self.order.reset()

    def lease(self, id: int, lease: Lease) -> None:
        self.leased[id] = lease
        heapq.heappush(self.due, (lease.deadline, id))

    def overdue(self, now: int) -> tuple[int, Lease] | None:
        """The first message whose lease has ended: of the highest priority, and of these the first
        that arrived."""
        while self.due and self.due[0][0] <= now:
            deadline, id = heapq.heappop(self.due)
            lease = self.leased.get(id)
            if lease is not None and lease.deadline == deadline:
                heapq.heappush(self.ready, (-lease.priority, id))
        while self.ready:
            id = self.ready[0][1]
            lease = self.leased.get(id)
            if lease is not None and lease.deadline <= now:
                return id, lease
            heapq.heappop(self.ready)
        return None

    def past(self, last: int) -> None:
        """What is up to an id is consumed: somebody else did that."""
        for id in [id for id in self.leased if id <= last]:
            del self.leased[id]
        self.at[:] = [max(position, last + 1) for position in self.at]
        self.moved = True


class State:
    """What the journal of cursors says.

    cursors    by name; the main one is always there
    mode       whether messages are read by priority; None: nobody has said
    written    the last two states of metadata.dat that were about to be written
    files      how often segments came, went or changed
    dedup      by hash
    """

    def __init__(self) -> None:
        self.cursors = {MAIN: Cursor(MAIN, 0)}
        self.mode: bool | None = None
        self.written: list[Metadata] = []
        self.files = 0
        self.dedup: dict[str, Dedup] = {}
        self._numbers = {0: self.cursors[MAIN]}
        self._key = b""

    def add(self, name: str, number: int | None = None) -> Cursor:
        """A cursor that begins. Raises ValueError where there is no number left for it."""
        if number is None:
            number = next((n for n in range(1, 256) if n not in self._numbers), -1)
            if number < 0:
                raise ValueError("a queue has 255 consumers at most")
        old = self._numbers.get(number)
        if old is not None:
            self.cursors.pop(old.name, None)
        cursor = self._numbers[number] = self.cursors[name] = Cursor(name, number)
        return cursor

    def remove(self, cursor: Cursor) -> None:
        del self.cursors[cursor.name], self._numbers[cursor.number]

    def apply(self, row: Row) -> None:
        """What a row says. Rows that make no sense are ignored: they have a checksum."""
        kind, number, count, priority, values, text = row
        cursor = self._numbers.get(number)
        if kind == ondisk.NAME:
            self.add(text.rstrip(b"\0").decode("utf-8", "replace"), number)
        elif kind == ondisk.MODE:
            self.mode = bool(values[0])
        elif kind == ondisk.WRITTEN:
            self.written = [*self.written[-1:], Metadata(values[0], values[1])]
        elif kind == ondisk.FILES:
            self.files += 1
        elif kind == ondisk.KEY:
            self._key = text
        elif kind == ondisk.KEPT:
            key = self._key.hex()
            self.dedup[key] = Dedup(key, values[0], values[1], values[2], values[3])
        elif cursor is None:
            return
        elif kind == ondisk.AT:
            cursor.at[:] = values[:3]
        elif kind == ondisk.SEEK:
            cursor.seek(list(values[:3]))
        elif kind == ondisk.LEASED:
            lane, id = min(priority, HIGH), values[0]
            cursor.lease(id, Lease(values[1], count, values[2], lane))
            cursor.at[lane] = max(cursor.at[lane], id + 1)
        elif kind == ondisk.DONE:
            cursor.leased.pop(values[0], None)
        elif kind == ondisk.GONE and number:
            self.remove(cursor)

    def store(self, journal: Journal) -> None:
        """Rows that say all of it."""
        if self.mode is not None:
            journal.add(ondisk.MODE, 0, int(self.mode))
        for metadata in self.written:
            journal.add(ondisk.WRITTEN, 0, *metadata)
        for cursor in self.cursors.values():
            if cursor.number:
                journal.add_text(ondisk.NAME, cursor.number, cursor.name.encode())
            for id, lease in cursor.leased.items():
                write_lease(journal, cursor, id, lease)
            journal.add(ondisk.AT, cursor.number, *cursor.at)
            cursor.moved = False
        for entry in self.dedup.values():
            write_key(journal, entry)


def write_lease(journal: Journal, cursor: Cursor, id: int, lease: Lease) -> None:
    journal.add(
        ondisk.LEASED, cursor.number, id, lease.deadline, lease.failures,
        deliveries=min(lease.deliveries, 0xFFFF), priority=lease.priority,
    )  # fmt: skip


def write_key(journal: Journal, entry: Dedup) -> None:
    journal.add_text(ondisk.KEY, 0, bytes.fromhex(entry.key))
    journal.add(ondisk.KEPT, 0, entry.message_id, entry.enqueued, entry.expires, entry.offset)


def read_state(storage: Storage) -> tuple[State, int | None, int]:
    """The state that a journal gives, its seed, and where it ends; None, 0: it has no header."""
    state, seed = State(), ondisk.seed_of(storage)
    if seed is None:
        return state, None, 0
    end = ondisk.HEADER.size
    for row, end in ondisk.rows(storage, seed):  # noqa: B007
        state.apply(row)
    return state, seed, end
