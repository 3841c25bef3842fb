"""Lives of queues on a simulated disk: random operations by seed, beside a model.

    python tests/simulated/harness.py ledgerq_lives fifo 17      # one life, step by step

A sync acknowledges what was pushed and consumed before. In an image of the disk after a power cut
each message is, for each consumer, as it was acknowledged, or as it was at some moment since: so
nothing that was pushed and synced is lost, nothing that was consumed and synced is handed out
again, and what is handed out twice was consumed since the last sync.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import Any, ClassVar

import ledgerq_oracle
from simulated import harness
from simulated.disk import Event, SimulatedDisk

from winkformats.disk.paths import directory_of
from winkfs.stores.ledgerq.queue import Queue, create
from winkfs.stores.ledgerq.records import verify
from winkfs.stores.ledgerq.tail import Rotation

VARIANTS = ("fifo", "priorities", "shared")
NONE, PENDING, GONE = "not there", "pending", "consumed"
NAMES = ("", "other")
RETRIES = 3


class Life(harness.Life):
    """A queue on a simulated disk.

    sent     id -> payload and priority, of all that was pushed
    now      consumer -> id -> state, of the queue as it is
    since    consumer -> id -> the states since the last sync, the one that was synced first
    """

    SMALL: ClassVar = {"a queue": {"gathered": 700, "journal": 900}}

    def __init__(self, kind: str, seed: int, *, trace: bool = False) -> None:
        super().__init__(kind, seed, trace=trace)
        self.sent: dict[int, set[tuple[bytes, int]]] = defaultdict(set)
        self.now: dict[str, dict[int, str]] = {name: {} for name in NAMES}
        self.since: dict[str, dict[int, list[str]]] = {name: {} for name in NAMES}
        self.leased: dict[str, set[int]] = {name: set() for name in NAMES}
        self.count = 0
        create(self.path, by_priority=kind == "priorities")
        with Queue(self.path, "a", sync="none") as queue:
            queue.add_consumer("other")
        self.queues = [self.open() for _ in range(1 + (kind == "shared"))]
        self.queue = self.queues[0]
        self.often = self.rng.choice((0.01, 0.05, 0.2))

    @property
    def path(self) -> str:
        return f"{self.disk.path}/q"

    def open(self, path: str = "") -> Queue:
        rotation = Rotation(2000, 20)
        return Queue(
            path or self.path, "a", sync="none", rotation=rotation,
            dead_letters=f"{(path or self.path)}.dead",
            retries=RETRIES, shared=self.kind == "shared", compress=self.rng.choice((0, 6)),
            compress_from=100,
        )  # fmt: skip

    def note(self, id: int, state: str, name: str) -> None:
        """It may be so from now on."""
        before = self.now[name].get(id, NONE)
        self.since[name].setdefault(id, [before]).append(state)

    def set(self, id: int, state: str, name: str) -> None:
        self.note(id, state, name)
        self.now[name][id] = state

    # --- what happens ---

    def options(self) -> dict[str, Any]:
        self.count += 1
        size = self.rng.choice((0, 1, 20, 100, 300, 900))
        payload = b"%d " % self.count + self.rng.choice((b"x", self.rng.randbytes(1))) * size
        options: dict[str, Any] = {"payload": payload}
        if self.rng.random() < 0.6:
            options["priority"] = self.rng.randrange(3)
        if self.rng.random() < 0.3:
            options["headers"] = {"a": "1", "b": "2" * self.rng.randrange(50)}
        return options

    def expect(self, options: list[dict[str, Any]]) -> None:
        for i, option in enumerate(options):
            id = self.queue.next_id + i
            self.sent[id].add((option["payload"], option.get("priority", 0)))
            for name in NAMES:
                self.note(id, PENDING, name)

    def push(self) -> None:
        options = self.options()
        self.expect([options])
        id = self.queue.push(**options)
        for name in NAMES:
            self.set(id, PENDING, name)

    def push_many(self) -> None:
        options = [self.options() for _ in range(self.rng.randint(1, 12))]
        self.expect(options)
        for id in self.queue.push_many(options):
            for name in NAMES:
                self.set(id, PENDING, name)

    def push_once(self) -> None:
        options = self.options()
        self.expect([options])
        id, new = self.queue.push_once(key=str(self.rng.randrange(8)), window=3600, **options)
        if new:
            for name in NAMES:
                self.set(id, PENDING, name)
        assert id in self.sent, f"a key of message {id}, which was never there"

    def name(self) -> str:
        return self.rng.choice(NAMES)

    def pop(self) -> None:
        name = self.name()
        for id in [m.id for m in self.queue.messages(consumer=name)][:1]:
            self.note(id, GONE, name)
        message = self.queue.pop(consumer=name)
        if message is not None:
            self.took(message.id, name)
            self.set(message.id, GONE, name)

    def took(self, id: int, name: str) -> None:
        assert self.now[name].get(id) == PENDING, (
            f"{name}: {id} was handed out, which is {self.now[name].get(id)}"
        )

    def pop_many(self) -> None:
        name, count = self.name(), self.rng.randint(1, 15)
        for message in self.queue.messages(consumer=name):
            self.note(message.id, GONE, name)
        for message in self.queue.pop_many(count, consumer=name):
            self.took(message.id, name)
            self.set(message.id, GONE, name)

    def lease(self) -> None:
        name = self.name()
        seconds = self.rng.choice((0.0, 3600.0))
        for message in self.queue.pop_many(self.rng.randint(1, 5), visible=seconds, consumer=name):
            self.took(message.id, name)
            self.leased[name].add(message.id)

    def ack(self) -> None:
        name = self.name()
        ids = self.rng.sample(sorted(self.leased[name]), min(3, len(self.leased[name])))
        for id in ids:
            self.note(id, GONE, name)
        self.queue.ack(*ids, consumer=name)
        for id in ids:
            self.leased[name].discard(id)
            self.set(id, GONE, name)

    def nack(self) -> None:
        name = self.name()
        for id in self.rng.sample(sorted(self.leased[name]), min(1, len(self.leased[name]))):
            self.note(id, GONE, name)
            self.leased[name].discard(id)
            if self.queue.nack(id, "why", consumer=name):
                self.done["dead"] += 1
                self.set(id, GONE, name)
            else:
                self.set(id, PENDING, name)

    def seek(self) -> None:
        name = self.name()
        there = sorted(m.id for m in self.queue.all_messages() if m.expires is None)
        if not there:
            return
        to = self.rng.choice(there)
        for id in there:
            self.note(id, PENDING if id >= to else GONE, name)
        self.queue.seek(to, consumer=name)
        for id in there:
            self.now[name][id] = PENDING if id >= to else GONE
        self.leased[name].clear()

    def sync(self) -> None:
        for queue in self.queues:
            queue.sync()
        self.acknowledge()

    def acknowledge(self) -> None:
        for name in NAMES:
            self.since[name].clear()

    def compact(self) -> None:
        self.done["compacted"] += self.queue.compact().segments

    def reopen(self) -> None:
        for queue in self.queues:
            queue.close()
        self.acknowledge()
        count, self.queues = len(self.queues), []
        while len(self.queues) < count:
            self.queues.append(self.open())
        self.queue = self.queues[0]
        self.compare(self.queue, "after a close", exactly=True)
        assert not self.queue.problems, f"after a close: {self.queue.problems}"

    def abandon(self) -> None:
        """The process ends: what it did not write is lost, what it did the disk may not have."""
        self.queue.abort()
        self.queues.remove(self.queue)
        self.take_up()

    def look(self) -> None:
        self.compare(self.queue, "the queue", exactly=True)

    def step(self) -> None:
        step = self.draw({
            self.push: 8, self.push_many: 6, self.push_once: 2, self.pop: 8, self.pop_many: 4,
            self.lease: 5, self.ack: 4, self.nack: 3, self.seek: 1, self.sync: 3, self.look: 2,
            self.compact: 2, self.reopen: 1, self.abandon: 1,
        })  # fmt: skip
        self.queue = self.rng.choice(self.queues)
        self.say(f"   of queue {self.queues.index(self.queue)}")
        step()

    # --- what is there ---

    def pending(self, queue: Queue, name: str, where: str) -> set[int]:
        """The ids that a consumer can still get, now or when leases have ended."""
        order: dict[int, int] = {}
        found = set()
        messages = list(queue.messages(consumer=name))  # takes up what others did
        leased = set(queue.state.cursors[name].leased)
        for message in messages:
            assert (message.payload, message.priority) in self.sent.get(message.id, ()), (
                f"{where}: {message.id} has another payload"
            )
            assert message.id not in found, f"{where}: {message.id} comes twice"
            found.add(message.id)
            lane = message.priority if queue.by_priority else 0
            if message.id not in leased:
                assert order.get(lane, 0) <= message.id, f"{where}: {message.id} comes late"
                order[lane] = message.id
        there = {m.id for m in queue.all_messages() if m.expires is None} if leased else set()
        return found | leased & there

    def compare(self, queue: Queue, where: str, *, exactly: bool) -> None:
        for name in NAMES:
            assert name in queue.state.cursors, f"{where}: the consumer {name} is lost"
            found = self.pending(queue, name, where)
            for id in self.sent:
                state = self.now[name].get(id, NONE)
                allowed = [state] if exactly else self.since[name].get(id, [state])
                may = PENDING in allowed if id in found else set(allowed) != {PENDING}
                assert may, f"{where}: {name!r} {id} is {id in found}, not {allowed}"

    def check(self, image: SimulatedDisk) -> None:
        """What an image shows to a looker and to a writer, and again to the next one."""
        self.images += 1
        path = f"{image.path}/q"
        with Queue(path) as looker:
            self.compare(looker, "image", exactly=False)
            seen = [self.pending(looker, name, "image") for name in NAMES]
        writer = self.open(path)
        self.compare(writer, "image for a writer", exactly=False)
        assert [self.pending(writer, name, "image for a writer") for name in NAMES] == seen, (
            "a writer finds other messages than a looker"
        )
        id = writer.push(b"after")
        taken = {m.id for m in writer.pop_many(self.rng.choice((0, 3)))}
        writer.close()
        report = verify(path)
        assert not report.problems, f"image: {report.problems}"
        self.oracle(image)
        self.sent[id].add((b"after", 0))
        with Queue(path) as again:
            wanted = [(seen[0] | {id}) - taken, seen[1] | {id}]
            assert not again.problems, f"image again: {again.problems}"
            found = [self.pending(again, name, "image again") for name in NAMES]
            differ = [sorted(a ^ b) for a, b in zip(found, wanted, strict=True)]
            assert found == wanted, f"image again: it differs in {differ}"
        self.sent[id].discard((b"after", 0))
        if not self.sent[id]:
            del self.sent[id]

    def oracle(self, image: SimulatedDisk) -> None:
        """LedgerQ can read it, too."""
        directory = directory_of(f"{image.path}/q")
        files = {}
        for name in directory.list():
            with directory.open(name) as storage:
                files[name] = storage.read(0, storage.size())
        ledgerq_oracle.queue(files)

    def chance(self, event: Event) -> float:
        telling = event.call == "directory sync" or "cursors" in event.path
        return self.often * (3 if telling else 1)

    def abort(self, *ignored: type[Exception]) -> None:
        while self.queues:
            with suppress(*ignored):
                self.queues.pop().abort()

    def take_up(self) -> None:
        """What is there now is what there was."""
        while len(self.queues) < 1 + (self.kind == "shared"):
            self.queues.append(self.open())
        self.queue = self.queues[-1]
        self.compare(self.queue, "after a fault", exactly=False)
        for queue in self.queues:
            queue.sync()
        there = {m.id for m in self.queue.all_messages()}
        for name in NAMES:
            found = self.pending(self.queue, name, "after a fault")
            self.now[name] = {id: PENDING if id in found else GONE for id in self.sent}
            for id in self.sent.keys() - there - found:
                if id >= self.queue.next_id:
                    self.now[name][id] = NONE
            self.leased[name] = found & self.queue.state.cursors[name].leased.keys()
        self.acknowledge()
