"""Random lives of a LogStore on a simulated disk, with power cuts at any moment.

    python tests/simulated/harness.py logstore_lives 'with failing calls' 17

The model is the list of states that commits made, and how many of these were acknowledged as
durable. What a power cut leaves must open, and show one of those from the last acknowledged on.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import ClassVar

from simulated import harness
from simulated.disk import SimulatedDisk

from winkfs.errors import Refusal
from winkfs.stores.logstore import Full, LogStore, Snapshot

State = dict[int, bytes | None]
SMALL = {"file_size": 700, "cutoff": 90, "file_bits": 5, "generation_bits": 3, "save_every": 2}


def content(store: LogStore | Snapshot) -> State:
    recids = list(store.recids())
    return dict(zip(recids, store.get_many(recids), strict=True))


class Life(harness.Life):
    """A LogStore on a simulated disk, whose calls fail in some kind of life.

    states        what commits made, the last that was acknowledged as durable the first
    done["full"]  commits that found no file number
    """

    FAULTS = ("write", "sync", "create", "truncate", "rename", "unlink", "directory sync")
    SMALL: ClassVar = {"a LogStore": {"patience": 0.0}}  # nobody else closes a snapshot
    STEPS = 300
    often = 0.05

    def __init__(self, kind: str, seed: int, *, trace: bool = False) -> None:
        super().__init__(kind, seed, trace=trace)
        self.states: list[State] = [{}]
        self.acknowledged = 0  # index in `states`
        self.draft: State = {}
        self.store = LogStore.create(f"{self.disk.path}/s", **SMALL)

    def is_faulty(self) -> bool:
        return self.kind == "with failing calls"

    def error(self, call: str) -> int:
        full = call in ("write", "create") and self.rng.random() < 0.7
        return errno.ENOSPC if full else errno.EIO

    # --- images ---

    def check(self, image: SimulatedDisk) -> None:
        self.images += 1
        path, allowed = f"{image.path}/s", self.states[self.acknowledged :]
        with LogStore(path) as reader:
            seen = content(reader)
            assert seen in allowed, self.described(seen)
            assert not reader.problems, reader.problems
        if self.rng.random() < 0.4:
            self.write(image, seen)

    def write(self, image: SimulatedDisk, seen: State) -> None:
        """What a writer made durable is there after another power cut."""
        path = f"{image.path}/s"
        with LogStore(path, "a") as store:
            assert content(store) == seen, "another state to write"
            if self.rng.random() < 0.5:
                seen[store.put(b"behind the cut")] = b"behind the cut"
                store.commit()
            again = image.crash(self.rng)
        with LogStore(f"{again.path}/s", "a") as store:
            assert content(store) == seen, "after a second cut"
            assert not store.problems

    def described(self, seen: State) -> str:
        wanted = self.states[self.acknowledged]
        lost = [recid for recid in wanted if seen.get(recid, 0) != wanted[recid]]
        back = [recid for recid in seen if recid not in wanted]
        return f"lost or old {lost}, not there before {back}"

    # --- the life ---

    def abort(self, *ignored: type[Exception]) -> None:
        with suppress(*ignored):
            self.store.close()

    def begin_again(self) -> None:
        """A call failed: what was not acknowledged is there or not."""
        self.disk.watch = self.watch
        self.draft = dict(self.states[-1])
        with suppress(OSError):
            self.store.rollback()
        self.reopen()

    def reopen(self) -> None:
        """A close commits what was changed; what is seen then is durable."""
        self.disarm()
        self.states.append(dict(self.draft))
        with suppress(OSError):
            self.store.close()
        self.store = LogStore(f"{self.disk.path}/s", "a")
        seen = content(self.store)
        assert seen in self.states[self.acknowledged :], self.described(seen)
        self.states, self.acknowledged, self.draft = [seen], 0, dict(seen)

    def step(self) -> None:
        try:
            self.act()
        except Full:
            self.done["full"] += 1
            self.reopen()
        except Refusal:  # it writes nothing any more
            self.reopen()

    def act(self) -> None:
        rng = self.rng
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
                self.change()
                self.commit(False)
                self.store.compact(least=0.2)
                assert content(snapshot) in self.states

    def commit(self, sync: bool) -> None:
        self.states.append(dict(self.draft))
        self.store.commit(sync=sync)
        if sync:
            self.acknowledged = len(self.states) - 1
        assert content(self.store) == self.draft, self.described(content(self.store))

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
