"""Lives of Ring Page buffers on a simulated disk: random operations by seed, beside a model.

    python tests/simulated/harness.py ring_lives overwrite 17     # one life, step by step

A record that was on the disk at a sync is there after a power cut, unless it was popped, or a page
that it lies in was written over since, which with "refuse" happens to those that were popped alone.
Whatever happens, what is read are records that were pushed, whole, in their order.
"""

from __future__ import annotations

import struct
from contextlib import suppress

from simulated import harness
from simulated.disk import Event, SimulatedDisk

from winkformats.ringpage.page import BLOCK
from winkfs.stores.ringpage.pages import Pages, open_buffer
from winkfs.stores.ringpage.records import verify
from winkfs.stores.ringpage.ring import Full, Ring, create

VARIANTS = ("overwrite", "refuse", "synced")  # "synced": overwrite, each page is synced
NUMBER = struct.Struct("<I")


class Life(harness.Life):
    """A buffer on a simulated disk.

    pushed   bodies by the numbers that they begin with; model: numbers in the queue
    durable  of each record that was on the disk at the last sync: the pages that it lies in
    touched  pages that were written since
    saved    whether the disk has all of the queue, and knows what was popped
    """

    FAULTS, STEPS = ("sync", "write"), 60

    def __init__(self, kind: str, seed: int, *, trace: bool = False) -> None:
        super().__init__(kind, seed, trace=trace)
        rng = self.rng
        self.page_size = rng.choice((4096, 4096, 8192))
        full = "refuse" if kind == "refuse" else "overwrite"
        made = create(
            self.path, pages=rng.randint(2, 7), page_size=self.page_size, full=full
        )  # fmt: skip
        self.largest = made.largest
        self.pushed: dict[int, bytes] = {}
        self.model: list[int] = []
        self.popped: set[int] = set()
        self.durable: dict[int, set[int]] = {}
        self.touched: set[int] = set()
        self.saved = False
        self.damaged = False  # a write that was not synced is lost
        self.often = rng.choice((0.05, 0.2, 0.5))
        self.open()

    @property
    def path(self) -> str:
        return f"{self.disk.path}/ring"

    def open(self) -> None:
        sync = "always" if self.kind == "synced" else "none"
        self.ring = Ring(self.path, "a", memory=self.page_size * self.rng.randint(1, 3), sync=sync)

    # --- what happens ---

    def push(self) -> None:
        for _ in range(self.rng.randint(1, 30)):
            number = len(self.pushed)
            size = self.rng.choice((4, 5, 50, 300, 300, 1000, self.largest))
            body = (NUMBER.pack(number) * (size // 4 + 1))[:size]
            before = self.ring.stats()["overwritten"]
            self.saved = False
            self.pushed[number] = body
            try:
                self.ring.push(body)
            except Full:
                self.done["full"] += 1
                del self.pushed[number]
                break
            finally:
                self.forget(self.ring.stats()["overwritten"] - before)
            self.model.append(number)

    def forget(self, overwritten: int) -> None:
        """The oldest were written over. They may be read all the same, so they are none popped."""
        self.done["overwritten"] += overwritten
        gone = self.in_pages()[:overwritten]
        self.model = [number for number in self.model if number not in gone]

    def in_pages(self) -> list[int]:
        """Those that are not in memory already, read from the disk."""
        return self.model[len(self.ring._ready) :]

    def pop(self) -> None:
        for _ in range(self.rng.choice((1, 3, 20, 200))):
            body = self.ring.pop()
            if self.damaged and body is not None:  # what is overwritten may be unreadable, too
                number = self.number(body)
                self.model = [number, *(n for n in self.model if n > number)]
            number = self.model.pop(0) if self.model else None
            assert body == (None if number is None else self.pushed[number]), (
                f"popped {short(body)}, not record {number}"
            )
            if number is None:
                return
            self.popped.add(number)
            self.saved = False  # on the disk it is there still

    def flush(self) -> None:
        before = self.ring.stats()["overwritten"]
        self.saved = False
        try:
            self.ring.flush()
        except Full:
            self.done["full"] += 1
            return
        finally:
            self.forget(self.ring.stats()["overwritten"] - before)
        self.acknowledge()

    def sync(self) -> None:
        self.ring.sync()
        self.acknowledge()

    def acknowledge(self) -> None:
        with open_buffer(self.path) as storage:
            pages = Pages(storage)
            pages.tail = 0
            self.durable = {}
            for record in pages.records(lambda _: None):
                width = record.offset + 4 + len(record.body)
                last = (record.page + (width > self.page_size)) % len(pages.heads)
                self.durable[self.number(record.body)] = {record.page, last}
        # A write over the oldest page that failed has given these up, and they may be there still.
        self.durable = {n: pages for n, pages in self.durable.items() if n in self.model}
        self.touched = set()

    def close(self) -> None:
        """Also as it is, and with a block that raised."""
        way = self.rng.choice(("close", "close", "abort", "raise"))
        self.say(way)
        before = self.ring.stats()["overwritten"]
        self.saved = False
        if way == "abort":
            self.ring.abort()
        else:
            with suppress(Full):
                self.ring.close(save_tail=way == "close")
        found = self.look(self.path)
        lost = self.ring._overwritten - before
        kept = self.model[: len(self.model) - self.ring.dropped]
        assert not (
            way == "close"
            and not self.damaged
            and (len(found) != len(kept) - lost or not set(found) <= set(kept))
        ), f"after a close: {found}, not {self.model}, lost {lost}"
        self.model, self.damaged = found, self.seen_damage
        self.open()
        assert way != "close" or self.damaged or not self.ring.problems, (
            f"after a close: {self.ring.problems}"
        )
        if way != "abort":
            self.acknowledge()
        self.saved = way == "close"

    def step(self) -> None:
        self.draw({self.push: 8, self.pop: 4, self.flush: 1, self.sync: 2, self.close: 1})()
        assert self.damaged or len(self.ring) == len(self.model), (
            f"{len(self.ring)} records, not {len(self.model)}"
        )

    # --- what is there ---

    def number(self, body: bytes) -> int:
        number = NUMBER.unpack_from(body)[0]
        assert self.pushed.get(number) == body, f"{short(body)} was never pushed"
        return int(number)

    def look(self, path: str) -> list[int]:
        """The records that a buffer shows to a reader: whole ones, in their order."""
        with Ring(path) as reader:
            found = [self.number(record.body) for record in reader.records()]
            self.seen_damage = bool(reader.problems)
            assert found == sorted(set(found)), f"not in their order: {found}"
            assert self.seen_damage or len(reader) == len(found), (
                f"{len(found)} records, {len(reader)} are reported"
            )
            assert self.kind != "synced" or not self.seen_damage, f"{reader.problems}"
        return found

    def must(self) -> set[int]:
        """Records that a power cut cannot take away."""
        lost = set() if self.kind == "refuse" else self.touched
        return {n for n, pages in self.durable.items() if n not in self.popped and not pages & lost}

    def check(self, image: SimulatedDisk) -> None:
        """What an image shows to a reader and to a writer, which goes on with it."""
        self.images += 1
        path = f"{image.path}/ring"
        found = self.look(path)
        assert self.must() <= set(found), f"lost {sorted(self.must().difference(found))[:9]}"
        assert not self.saved or found == self.model, (
            f"not as it was saved: {found[:9]}, {self.model[:9]}"
        )
        verify(path)
        added = b"\xff" * 300
        with Ring(path, "a") as writer:
            if self.rng.random() < 0.5:
                before = writer.stats()["overwritten"]
                with suppress(Full):
                    writer.push_many([added] * 3)
                    writer.flush()
                found = found[writer.stats()["overwritten"] - before :]
            bodies = list(iter(writer.pop, None))
            shown = [self.number(body) for body in bodies if body and body != added]
            assert shown == found or writer.problems, (
                f"a writer reads {shown[:9]}, a reader {found[:9]}"
            )
        with Ring(path) as again:
            assert not list(again.records()) and (not len(again) or again.problems), (
                "what was popped is back after a close"
            )

    def watch(self, event: Event) -> None:
        if event.call == "write" and event.offset >= BLOCK:
            self.touched.add((event.offset - BLOCK) // self.page_size)
        super().watch(event)

    def abort(self, *ignored: type[Exception]) -> None:
        with suppress(*ignored):
            self.ring.abort()

    def begin_again(self) -> None:
        """No image of it is checked first: what it leaves is looked at as it is."""
        self.abort()
        self.disk = self.disk.crash(self.rng)
        self.take_up()

    def take_up(self) -> None:
        found = self.look(self.path)
        assert self.must() <= set(found), f"lost {sorted(self.must().difference(found))[:9]}"
        self.model, self.saved = found, False
        self.damaged = self.seen_damage
        self.open()
        self.durable, self.touched = {}, set()


def short(body: bytes | None) -> str:
    return "nothing" if body is None else f"{len(body)} bytes {body[:8].hex()}"
