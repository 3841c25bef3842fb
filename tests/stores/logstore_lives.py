"""Random lives of a LogStore on a simulated disk, with power cuts at any moment.

The model is the list of states that commits made, and how many of these were acknowledged as
durable. What a power cut leaves must open, and show one of those from the last acknowledged on.
"""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from dataclasses import dataclass, field

from simulated.disk import Event, SimulatedDisk

from winkfs.errors import Refusal
from winkfs.stores.logstore import Full, LogStore
from winkfs.stores.logstore import store as store_module

State = dict[int, bytes | None]
SMALL = {"file_size": 700, "cutoff": 90, "file_bits": 5, "generation_bits": 3, "save_every": 2}
FAULTS = ("write", "sync", "create", "truncate", "rename", "unlink", "directory sync")


def content(store: LogStore) -> State:
    recids = list(store.recids())
    return dict(zip(recids, store.get_many(recids), strict=True))


@dataclass
class Life:
    """A store, what it should hold, and how many images of it were checked."""

    seed: int
    chance: float = 0.05  # of an image at an event
    faults: bool = False
    images: int = 0
    full: int = 0  # commits that found no file number
    states: list[State] = field(default_factory=lambda: [{}])
    acknowledged: int = 0  # index in `states`

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.disk = SimulatedDisk(self.seed, torn=self.rng.choice((1, 512)))
        self.heir: SimulatedDisk | None = None
        self.draft: State = {}
        self.store = LogStore.create(f"{self.disk.path}/s", **SMALL)
        self.disk.watch = self.look

    # --- images ---

    def look(self, event: Event) -> None:
        if self.rng.random() < self.chance:
            self.check(self.disk.crash(self.rng), event)

    def check(self, image: SimulatedDisk, event: Event | None = None) -> None:
        self.images += 1
        path, allowed = f"{image.path}/s", self.states[self.acknowledged :]
        with LogStore(path) as reader:
            seen = content(reader)
            assert seen in allowed, self.said(seen, event)
            assert not reader.problems, (self.seed, reader.problems, event)
        if self.rng.random() < 0.4:
            self.write(image, seen)

    def write(self, image: SimulatedDisk, seen: State) -> None:
        """What a writer made durable is there after another power cut."""
        path = f"{image.path}/s"
        with LogStore(path, "a") as store:
            assert content(store) == seen, (self.seed, "another state to write")
            if self.rng.random() < 0.5:
                seen[store.put(b"behind the cut")] = b"behind the cut"
                store.commit()
            again = image.crash(self.rng)
        with LogStore(f"{again.path}/s", "a") as store:
            assert content(store) == seen, (self.seed, "after a second cut")
            assert not store.problems

    def said(self, seen: State, event: Event | None) -> str:
        wanted = self.states[self.acknowledged]
        lost = [recid for recid in wanted if seen.get(recid, 0) != wanted[recid]]
        back = [recid for recid in seen if recid not in wanted]
        return f"life {self.seed}, at {event}: lost or old {lost}, not there before {back}"

    # --- the life ---

    def live(self, steps: int) -> int:
        for _ in range(steps):
            try:
                self.step()
            except Full:
                self.full += 1
                self.reopen()
            except Refusal:  # it writes nothing any more
                self.reopen()
            except OSError:
                if not self.faults:
                    raise
                self.failed()
        self.disk.watch = None
        with suppress(OSError):
            self.store.close()
        return self.images

    def failed(self) -> None:
        """A call failed: what was not acknowledged is there or not."""
        self.disarm()
        self.draft = dict(self.states[-1])
        with suppress(OSError):
            self.store.rollback()
        self.reopen()

    def disarm(self) -> None:
        for call in FAULTS:
            self.disk.arm(call, 0)

    def reopen(self) -> None:
        """A close commits what was changed; what is seen then is durable."""
        self.disarm()
        self.states.append(dict(self.draft))
        with suppress(OSError):
            self.store.close()
        self.store = LogStore(f"{self.disk.path}/s", "a")
        seen = content(self.store)
        assert seen in self.states[self.acknowledged :], self.said(seen, None)
        self.states, self.acknowledged, self.draft = [seen], 0, dict(seen)

    def step(self) -> None:
        rng = self.rng
        if self.faults and rng.random() < 0.03:
            call = rng.choice(FAULTS)
            full = call in ("write", "create") and rng.random() < 0.7
            error = errno.ENOSPC if full else errno.EIO
            self.disk.arm(call, rng.randint(1, 4), error)
        choice = rng.random()
        if choice < 0.70:
            self.change()
        elif choice < 0.90:
            self.commit(rng.random() < 0.5)
        elif choice < 0.93:
            self.store.rollback()
            self.draft = dict(self.states[-1])
        elif choice < 0.96:
            self.store.compact(least=rng.choice((0.1, 0.5)))
        elif choice < 0.98:
            self.states.append(dict(self.draft))
            self.store.close()
            self.acknowledged = len(self.states) - 1
            self.reopen()
        else:
            with self.store.snapshot() as snapshot:
                store_module.PATIENCE = 0.0  # nobody else closes it
                self.change()
                self.commit(False)
                self.store.compact(least=0.2)
                assert content(snapshot) in self.states

    def commit(self, sync: bool) -> None:
        self.states.append(dict(self.draft))
        self.store.commit(sync=sync)
        if sync:
            self.acknowledged = len(self.states) - 1
        assert content(self.store) == self.draft, self.said(content(self.store), None)

    def body(self) -> bytes | None:
        size = self.rng.choice((0, 5, 40, 90, 91, 150))
        return None if self.rng.random() < 0.1 else self.rng.randbytes(size)

    def change(self) -> None:
        rng, draft = self.rng, self.draft
        many = rng.random() < 0.05
        for _ in range(rng.randint(10, 30) if many else 1):
            recid = rng.choice(list(draft)) if draft else 0
            choice = rng.random()
            if (choice < 0.4 and len(draft) < 25) or not draft:
                body = self.body()
                draft[self.store.put(body)] = body
            elif choice < 0.75:
                body = self.body()
                self.store.update(recid, body)
                draft[recid] = body
            else:
                self.store.delete(recid)
                del draft[recid]
