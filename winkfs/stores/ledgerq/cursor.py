"""Cursors of consumers: their positions and leases, the order in which each reads, deliveries.

A cursor has a position for each priority: all messages below it are consumed, except leased ones.
That is enough because within a priority messages are read in the order of their ids.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from winkformats.errors import CorruptError
from winkformats.ledgerq import cursors as ondisk
from winkformats.ledgerq.entry import HIGH, LAST_ID, LOW, MEDIUM, Message
from winkfs.stores.ledgerq.files import Warn
from winkfs.stores.ledgerq.reading import Reading
from winkfs.units import NANO, span_ns

MAIN: Final = ""  # the name of the cursor that LedgerQ has, too
UNWRITTEN: Final = -1  # number of a copy of a cursor, which no journal has
NUMBERS: Final = (int, float)  # types of most numbers of seconds
YEAR_SECONDS: Final = 365 * 86400
NONE: Final[Iterator[Message | None]] = iter(())
ENDED: Final = Message(-1, b"", 0)  # no message: its id is below all positions


class Lease(NamedTuple):
    """The lease of a message that was handed out and is not acknowledged."""

    deadline: int  # nanoseconds since the epoch
    deliveries: int
    failures: int
    priority: int


class Order:
    """The messages that are not consumed, in the order in which they are read.

    at        position by priority: messages below it are consumed
    starved   nanoseconds after which a message of low priority comes first; 0: never
    """

    def __init__(self, reading: Reading, at: list[int], *, priorities: bool, starved: int) -> None:
        self.reading, self.at, self.starved = reading, at, starved
        self.lanes = [NONE] * (3 if priorities else 1)
        self.heads: list[Message | None] = [None] * len(self.lanes)
        self.lane = 0  # the lane whose head was returned last

    def reset(self) -> None:
        """Begin anew: the positions have gone back, or the segments have changed."""
        self.lanes = [NONE] * len(self.lanes)
        self.heads = [None] * len(self.lanes)

    def head(self, now: int) -> Message | None:
        """Return the next message by priority, which stays the next one until it is consumed; None:
        no message is left."""
        low = self.head_of(LOW, now)
        if low is None or not self.starved or now - low.timestamp < self.starved:
            for self.lane in (HIGH, MEDIUM):
                message = self.head_of(self.lane, now)
                if message is not None:
                    return message
        self.lane = LOW
        return low

    def head_of(self, lane: int, now: int) -> Message | None:
        """Return the next message of a lane; by arrival there is one lane."""
        at, message = self.at, self.heads[lane]
        while (
            message is None
            or message.id < at[message.priority]
            or (message.expires is not None and message.expires <= now)
        ):
            message = next(self.lanes[lane], ENDED)
            if message is None:
                break
            if message is ENDED:
                self.lanes[lane] = (
                    self.reading.arrivals(min(at))
                    if len(self.lanes) == 1
                    else self.reading.of_priority(lane, at[lane])
                )
        self.heads[lane] = message
        return message

    def consume(self, message: Message) -> None:
        """Move behind the message that `head` returned."""
        self.heads[self.lane] = None
        at, after = self.at, message.id + 1
        if len(self.lanes) > 1:
            at[message.priority] = after
            return
        if at[0] < after:
            at[0] = after
        if at[1] < after:
            at[1] = after
        if at[2] < after:
            at[2] = after

    def seen(self) -> None:
        """Move behind all messages, which are consumed or expired if `head` has found none."""
        last = self.reading.files.last + 1
        self.at[:] = [max(position, last) for position in self.at]


class Cursor:
    """A consumer of the queue.

    at       position by priority; see `Order`
    leased   leases by id, also those whose deadline has passed
    moved    whether `at` has changed since it was written
    """

    def __init__(self, name: str, number: int, start: int = 1) -> None:
        self.name, self.number = name, number
        self.at = [start] * 3
        self.leased: dict[int, Lease] = {}
        self.deadlines: list[tuple[int, int]] = []  # heap of deadline and id, also of former leases
        self.ready: list[tuple[int, int]] = []  # heap of -priority and id whose deadline has passed
        self.moved = False
        self.order: Order | None = None

    @property
    def low(self) -> int:
        """The id below which all messages are consumed."""
        return min(*self.at, *self.leased) if self.leased else min(self.at)

    def seek(self, at: list[int]) -> None:
        self.at[:] = at
        self.leased.clear()
        self.deadlines.clear()
        self.ready.clear()
        self.moved = False
        if self.order is not None:
            self.order.reset()

    def lease(self, id: int, lease: Lease) -> None:
        self.leased[id] = lease
        heapq.heappush(self.deadlines, (lease.deadline, id))

    def overdue(self, now: int) -> tuple[int, Lease] | None:
        """Return the message whose lease has ended, with its lease: of several the one of the
        highest priority that arrived first."""
        while self.deadlines and self.deadlines[0][0] <= now:
            deadline, id = heapq.heappop(self.deadlines)
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
        """Move past `last`: all messages up to it are consumed or removed."""
        for id in [id for id in self.leased if id <= last]:
            del self.leased[id]
        self.at[:] = [max(position, last + 1) for position in self.at]
        self.moved = True


class Deliveries:
    """Hands out messages to consumers.

    by_priority  whether messages are read by priority
    """

    def __init__(
        self, reading: Reading, append: Callable[[], ondisk.Journal], warn: Warn, *, starved: int
    ) -> None:
        """append: returns the journal of cursors, to write; starved: see `Order`."""
        self.reading, self.by_priority = reading, False
        self._append, self._warn, self._starved = append, warn, starved

    def next(self, cursor: Cursor, now: int, visible: float | None) -> Message | None:
        """Consume or lease the next message; None: no message is left."""
        deadline = 0 if visible is None else later(now, visible, "visible")
        order = cursor.order
        if order is None:
            order = cursor.order = Order(
                self.reading, cursor.at, priorities=self.by_priority, starved=self._starved
            )
        message = order.head(now) if self.by_priority else order.head_of(0, now)
        if cursor.leased:
            overdue = self._overdue(cursor, now, message)
            if overdue is not None:
                if visible is None:
                    self.end_lease(cursor, overdue.id)
                else:
                    lease = cursor.leased[overdue.id]
                    self.lease(cursor, overdue.id, lease._replace(
                        deadline=deadline, deliveries=overdue.deliveries
                    ))  # fmt: skip
                return overdue
        if message is None:
            before = list(cursor.at)
            order.seen()
            cursor.moved = cursor.moved or before != cursor.at
            return None
        order.consume(message)
        cursor.moved = True
        if visible is not None:
            self.lease(cursor, message.id, Lease(deadline, 1, 0, message.priority))
        return message

    def pending(self, cursor: Cursor, now: int) -> Iterator[Message]:
        """Yield the messages that `next` would hand out; they stay."""
        copy = Cursor(cursor.name, UNWRITTEN)
        copy.at[:] = cursor.at
        for id, lease in cursor.leased.items():
            if lease.deadline <= now:
                copy.lease(id, lease)
        while True:
            try:
                message = self.next(copy, now, None)
            except FileNotFoundError:
                self.reading.look_again()
                continue
            if message is None:
                return
            yield message

    def _overdue(self, cursor: Cursor, now: int, head: Message | None) -> Message | None:
        """Return a message whose lease has ended, if it comes before `head`."""
        while (found := cursor.overdue(now)) is not None:
            id, lease = found
            if self.by_priority and head is not None and head.priority > lease.priority:
                return None
            try:
                message = self.reading.find(id)
            except CorruptError as error:
                self._warn(str(error))
                message = None
            if message is not None and (message.expires is None or message.expires > now):
                return message._replace(deliveries=lease.deliveries + 1)
            self.end_lease(cursor, id)
        return None

    def was_popped(self, cursor: Cursor, id: int) -> bool:
        """Return whether a message was handed out, or passed by a `seek`.

        raises  CorruptError; OSError
        """
        if id in cursor.leased:
            return True
        if not min(cursor.at) <= id < max(cursor.at):
            return 0 < id < min(cursor.at)
        message = self.reading.find(id)
        return message is None or id < cursor.at[message.priority]

    def give_back(self, cursor: Cursor, message: Message, now: int) -> None:
        """Have a message that was handed out come again, as if it had not been."""
        lease = cursor.leased.get(message.id)
        self.lease(cursor, message.id, Lease(
            now, message.deliveries - 1, lease.failures if lease else 0, message.priority
        ))  # fmt: skip

    def last_lease(self, cursor: Cursor, id: int, now: int) -> Lease | None:
        """Return the lease of a message, for a consumed one a lease that ends `now`, else None."""
        lease = cursor.leased.get(id)
        if lease is None:
            message = self.reading.find(id)
            if message is not None and id < cursor.at[message.priority]:
                lease = Lease(now, 1, 0, message.priority)
        return lease

    def lease(self, cursor: Cursor, id: int, lease: Lease) -> None:
        cursor.lease(id, lease)
        write_lease(self._append(), cursor, id, lease)

    def end_lease(self, cursor: Cursor, id: int) -> bool:
        """End the lease of a message -> whether it was leased."""
        if cursor.leased.pop(id, None) is None:
            return False
        if cursor.number != UNWRITTEN:
            self._append().add(ondisk.DONE, cursor.number, id)
        return True


def write_lease(journal: ondisk.Journal, cursor: Cursor, id: int, lease: Lease) -> None:
    journal.add(
        ondisk.LEASED, cursor.number, id, lease.deadline, lease.failures,
        deliveries=min(lease.deliveries, 0xFFFF), priority=lease.priority,
    )  # fmt: skip


def later(now: int, seconds: float, what: str = "a time") -> int:
    """Return `now` plus seconds, in nanoseconds since the epoch. Raises TypeError; ValueError."""
    if type(seconds) in NUMBERS and 0 <= seconds < YEAR_SECONDS:
        return now + int(seconds * NANO)
    return min(now + span_ns(seconds, what), LAST_ID)
