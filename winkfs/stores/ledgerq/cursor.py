"""Who has read what: cursors, their leases, the order in which each reads, and what it gets next.

A cursor has a position for each priority: what is below it is consumed, except what is leased. As
within a priority messages are read in the order of their ids, that says all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from winkformats.errors import CorruptError
from winkformats.ledgerq import cursors as ondisk
from winkformats.ledgerq.cursors import Journal
from winkformats.ledgerq.entry import HIGH, LAST_ID, LOW, MEDIUM, Message
from winkfs.stores.ledgerq.files import Say
from winkfs.stores.ledgerq.reading import Reading
from winkfs.units import NANO, span_ns

MAIN: Final = ""  # the cursor that LedgerQ has, too
PLAIN: Final = (int, float)  # of most numbers of seconds
YEAR: Final = 365 * 86400
NONE: Final[Iterator[Message | None]] = iter(())
ENDED: Final = Message(-1, b"", 0)  # no message: its id is below all positions


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

    def __init__(self, reading: Reading, at: list[int], *, priorities: bool, starved: int) -> None:
        self.reading, self.at, self.starved = reading, at, starved
        self.lanes = [NONE] * (3 if priorities else 1)
        self.heads: list[Message | None] = [None] * len(self.lanes)
        self.lane = 0  # whose head was returned last

    def reset(self) -> None:
        """The positions have gone back, or the segments are others."""
        self.lanes = [NONE] * len(self.lanes)
        self.heads = [None] * len(self.lanes)

    def head(self, now: int) -> Message | None:
        """Return the next message, which stays the next one until it is consumed; None: there is
        none."""
        if len(self.lanes) == 1:
            return self._head(0, now)
        low = self._head(LOW, now)
        if low is None or not self.starved or now - low.timestamp < self.starved:
            for self.lane in (HIGH, MEDIUM):
                message = self._head(self.lane, now)
                if message is not None:
                    return message
        self.lane = LOW
        return low

    def _head(self, lane: int, now: int) -> Message | None:
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
        """Behind a `head` that has found nothing: all that there is is consumed or expired."""
        last = self.reading.files.last + 1
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


class Deliveries:
    """Hands out messages to consumers.

    by_priority  whether messages are read by priority
    """

    def __init__(
        self, reading: Reading, append: Callable[[], Journal], say: Say, *, starved: int
    ) -> None:
        """`append`: returns the journal of cursors, to write; `starved`: see `Order`."""
        self.reading, self.by_priority = reading, False
        self._append, self._say, self._starved = append, say, starved

    def order(self, at: list[int]) -> Order:
        return Order(self.reading, at, priorities=self.by_priority, starved=self._starved)

    def next(self, cursor: Cursor, now: int, visible: float | None) -> Message | None:
        """The next message, which is consumed or leased. None: there is none."""
        deadline = 0 if visible is None else later(now, visible, "visible")
        order = cursor.order
        if order is None:
            order = cursor.order = self.order(cursor.at)
        message = order.head(now)
        if cursor.leased:
            overdue = self._overdue(cursor, now, message)
            if overdue is not None:
                return self._again(cursor, overdue, None if visible is None else deadline)
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
        """The messages that `next` would hand out, which stay."""
        order = self.order(list(cursor.at))
        overdue = sorted(
            (-lease.priority if self.by_priority else 0, id)
            for id, lease in cursor.leased.items()
            if lease.deadline <= now
        )
        while True:
            try:
                message = order.head(now)
            except FileNotFoundError:
                self.reading.look_again()
                continue
            if overdue and (
                message is None or not self.by_priority or message.priority <= -overdue[0][0]
            ):
                id = overdue.pop(0)[1]
                lease, message = cursor.leased.get(id), self.reading.find(id)
                if lease is None or message is None:
                    continue
                if message.expires is not None and message.expires <= now:
                    continue
                message = message._replace(deliveries=lease.deliveries + 1)
            elif message is None:
                return
            else:
                order.consume(message)
            yield message

    def _overdue(self, cursor: Cursor, now: int, head: Message | None) -> Message | None:
        """A message whose lease has ended, if it comes before `head`."""
        while (found := cursor.overdue(now)) is not None:
            id, lease = found
            if self.by_priority and head is not None and head.priority > lease.priority:
                return None
            try:
                message = self.reading.find(id)
            except CorruptError as error:
                self._say(str(error))
                message = None
            if message is not None and (message.expires is None or message.expires > now):
                return message._replace(deliveries=lease.deliveries + 1)
            self.settle(cursor, id)
        return None

    def _again(self, cursor: Cursor, message: Message, deadline: int | None) -> Message:
        """Hand out a message that was leased."""
        if deadline is None:
            self.settle(cursor, message.id)
        else:
            lease = cursor.leased[message.id]
            self.lease(cursor, message.id, lease._replace(
                deadline=deadline, deliveries=message.deliveries
            ))  # fmt: skip
        return message

    def was_popped(self, cursor: Cursor, id: int) -> bool:
        """Whether a message was handed out, or passed by a `seek`. Raises CorruptError; OSError."""
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
        """That of a message, as one that ends `now` where it was consumed. None: it was not."""
        lease = cursor.leased.get(id)
        if lease is None:
            message = self.reading.find(id)
            if message is not None and id < cursor.at[message.priority]:
                lease = Lease(now, 1, 0, message.priority)
        return lease

    def lease(self, cursor: Cursor, id: int, lease: Lease) -> None:
        cursor.lease(id, lease)
        write_lease(self._append(), cursor, id, lease)

    def settle(self, cursor: Cursor, id: int) -> bool:
        """A message is consumed -> whether it was leased."""
        if cursor.leased.pop(id, None) is None:
            return False
        self._append().add(ondisk.DONE, cursor.number, id)
        return True


def write_lease(journal: Journal, cursor: Cursor, id: int, lease: Lease) -> None:
    journal.add(
        ondisk.LEASED, cursor.number, id, lease.deadline, lease.failures,
        deliveries=min(lease.deliveries, 0xFFFF), priority=lease.priority,
    )  # fmt: skip


def later(now: int, seconds: float, what: str = "a time") -> int:
    """Nanoseconds since the epoch. Raises TypeError; ValueError."""
    if type(seconds) in PLAIN and 0 <= seconds < YEAR:
        return now + int(seconds * NANO)
    return min(now + span_ns(seconds, what), LAST_ID)
