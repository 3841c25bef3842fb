"""Lives of message stores on a simulated disk: random operations by seed, beside a model.

    python tests/simulated/harness.py message_lives plain 17      # one life, step by step

A sync acknowledges what was written and removed before. In an image of the disk after a power cut
each message is as it was acknowledged, or as it was at some moment since.
"""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar

from simulated import harness
from simulated.disk import Event, SimulatedDisk

from winkformats.disk.paths import directory_of
from winkformats.errors import CorruptError
from winkformats.messagestore import rdq
from winkfs.stores.messagestore.records import verify
from winkfs.stores.messagestore.store import MessageStore, create

VARIANTS = ("plain", "checked", "v1")
IDS = [bytes([i]) * 16 for i in range(1, 30)]
Value = tuple[int, bytes] | None  # references and body; None: there is none


class Life(harness.Life):
    """A message store on a simulated disk.

    acked   what is durable; since: of each id what it has been after that, too
    model   what the store shows
    """

    SMALL: ClassVar = {
        "a message store": {
            "segment": 6000, "large": 3000, "gathered": 900, "journal": 1200, "together": 12_000,
            "looked_up": 12,
        }
    }  # fmt: skip

    def __init__(self, kind: str, seed: int, *, trace: bool = False) -> None:
        super().__init__(kind, seed, trace=trace)
        self.checked = kind == "checked"
        self.acked: dict[bytes, Value] = {}
        self.since: dict[bytes, list[Value]] = {}
        self.model: dict[bytes, Value] = {}
        self.phantoms = 0
        if kind == "v1":
            self._begin_with_v1()
        else:
            create(self.path, checksums=self.checked)
        self.store = MessageStore(self.path, "a", force=kind == "v1")
        self.often = self.rng.choice((0.01, 0.05, 0.2))

    @property
    def path(self) -> str:
        return f"{self.disk.path}/s"

    def _begin_with_v1(self) -> None:
        directory_of(self.disk.path).mkdir("s")
        directory, taken = directory_of(self.path), set()
        for number in range(1, self.rng.randint(2, 4)):
            parts = []
            for _ in range(self.rng.randint(1, 12)):
                msg_id = self.rng.choice(IDS)
                if msg_id not in taken:
                    taken.add(msg_id)
                    body = self.body()
                    self.acked[msg_id] = self.model[msg_id] = 1, body
                    parts.append(rdq.record(msg_id, body))
            with directory.create_new(f"{number}.rdq") as storage:
                storage.write(0, [b"".join(parts)])
                storage.sync()
        directory.sync()
        directory_of(self.disk.path).sync()

    def body(self) -> bytes:
        size = self.rng.choice((0, 1, 20, 100, 300, 700, 700, 3500))
        return self.rng.randbytes(4).ljust(4, b"x") * (size // 4) + b"y" * (size % 4)

    # --- what happens ---

    def write(self) -> None:
        msg_id = self.rng.choice(IDS)
        body = self.body()
        self.note(msg_id, self.referred(msg_id, body))
        self.store.write(msg_id, body)
        self.model[msg_id] = self.since[msg_id][-1]

    def referred(self, msg_id: bytes, body: bytes) -> Value:
        """Return what a write makes of a message."""
        before = self.model.get(msg_id)
        return (1, body) if before is None else (before[0] + 1, before[1])

    def note(self, msg_id: bytes, value: Value) -> None:
        """It may be so from now on."""
        self.since.setdefault(msg_id, [self.model.get(msg_id)]).append(value)

    def write_many(self) -> None:
        new = {msg_id: self.body() for msg_id in self.rng.sample(IDS, self.rng.randint(1, 9))}
        for msg_id, body in new.items():
            self.note(msg_id, self.referred(msg_id, body))
        self.store.write_many(new.items())
        for msg_id in new:
            self.model[msg_id] = self.since[msg_id][-1]

    def remove(self) -> None:
        there = sorted(msg_id for msg_id, value in self.model.items() if value is not None)
        for msg_id in self.rng.sample(there, min(len(there), self.rng.randint(1, 8))):
            value = self.model[msg_id]
            assert value is not None
            self.note(msg_id, (value[0] - 1, value[1]) if value[0] > 1 else None)
            self.store.remove(msg_id)
            self.model[msg_id] = self.since[msg_id][-1]

    def sync(self) -> None:
        self.store.sync()
        self.acknowledge()

    def acknowledge(self) -> None:
        self.acked, self.since = dict(self.model), {}

    def compact(self) -> None:
        self.done["compacted"] += self.store.compact().files

    def migrate(self) -> None:
        self.done["migrated"] += self.store.migrate()

    def reopen(self) -> None:
        self.store.close()
        self.acknowledge()
        self.store = MessageStore(self.path, "a")
        self.compare(self.store, "after a close", exactly=True)
        assert not self.store.problems, f"after a close: {self.store.problems}"

    def abandon(self) -> None:
        """The process ends: what it did not write is lost, what it did the disk may not have."""
        self.store.abort()
        self.take_up()

    def look(self) -> None:
        self.compare(self.store, "the store", exactly=True)

    def step(self) -> None:
        self.draw({self.write: 8, self.write_many: 5, self.remove: 8, self.sync: 3, self.look: 1,
                   self.compact: 2, self.reopen: 1, self.abandon: 1,
                   self.migrate: 1 * (self.kind == "v1")})()  # fmt: skip

    # --- what is there ---

    def compare(self, store: MessageStore, where: str, *, exactly: bool) -> None:
        found = {}
        for msg_id in IDS:
            place = store.place(msg_id)
            if place is not None:
                try:
                    found[msg_id] = place.refs, store.read(msg_id)
                except CorruptError:
                    found[msg_id] = place.refs, b"damaged"
        count = len(found) + self.phantoms
        assert len(store) == count or not (
            exactly or self.checked or not (self.since or self.phantoms)
        ), f"{where}: {len(store)} messages, {len(found)} of ours"
        bodies = store.read_many(sorted(found)) if exactly else []
        assert not exactly or bodies == [found[msg_id][1] for msg_id in sorted(found)], (
            f"{where}: read_many reads otherwise"
        )
        for msg_id in IDS:
            allowed = [self.model.get(msg_id)] if exactly else self.since.get(msg_id)
            allowed = allowed or [self.acked.get(msg_id)]
            value = found.get(msg_id)
            torn = not exactly and not self.checked and self.is_torn(msg_id, value)
            assert torn or value in allowed, (
                f"{where}: {msg_id[0]} is {short(value)}, not {list(map(short, allowed))}"
            )

    def is_torn(self, msg_id: bytes, value: Value) -> bool:
        """A message without a checksum that was not acknowledged may have any body."""
        values = self.since.get(msg_id, [])
        sizes = {len(known[1]) for known in values if known is not None}
        return value is not None and None in values and len(value[1]) in sizes

    def check(self, image: SimulatedDisk) -> None:
        """What an image shows to a reader and to a writer, and again to the next one."""
        self.images += 1
        path = f"{image.path}/s"
        with MessageStore(path) as reader:
            self.compare(reader, "image", exactly=False)
            assert not any("lost" in problem for problem in reader.problems), (
                f"image: {reader.problems}"
            )
        with MessageStore(path, "a") as writer:
            self.compare(writer, "image for a writer", exactly=False)
            found = {msg_id: writer.place(msg_id) for msg_id in IDS}
            refs = {msg_id: place.refs for msg_id, place in found.items() if place is not None}
        report = verify(path)
        assert not report.problems or (self.since and not self.checked), f"image: {report.problems}"
        with MessageStore(path, "a") as again:
            assert not again.problems, f"image again: {again.problems}"
            for msg_id in IDS:
                place = again.place(msg_id)
                assert refs.get(msg_id) == (None if place is None else place.refs), (
                    f"image again: {msg_id[0]} has another state"
                )

    def chance(self, event: Event) -> float:
        telling = event.call == "directory sync" or "/refs." in event.path
        return self.often * (4 if telling else 1)

    def abort(self, *ignored: type[Exception]) -> None:
        with suppress(*ignored):
            self.store.abort()

    def take_up(self) -> None:
        """What is there now is what there was."""
        self.store = MessageStore(self.path, "a")
        self.compare(self.store, "after a fault", exactly=False)
        self.model = {}
        # Of a header that is torn, and has no checksum, some of the id may be there.
        self.phantoms = (
            0
            if self.checked
            else len(self.store) - sum(self.store.place(msg_id) is not None for msg_id in IDS)
        )
        for msg_id in IDS:
            place = self.store.place(msg_id)
            if place is not None:
                self.model[msg_id] = place.refs, self.store.read(msg_id)
        self.acknowledge()


def short(value: Value) -> str:
    return "gone" if value is None else f"{value[0]} x {len(value[1])} {value[1][:4].hex()}"
