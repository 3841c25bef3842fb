"""Threads on one writing handle of a store: each sees at once what its calls have changed, whatever
the others do meanwhile. Of containers: see test_read_your_writes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from message_lives import Life
from threaded import FileOwner, Owner, run_owners
from threaded import threads_change_often as threads_change_often  # a fixture

import winkfs
import winkfs.dataset
from winkfs.errors import NoSuchFile
from winkfs.stores import ledgerq, messagestore, ringpage
from winkfs.stores.ledgerq import Queue, Rotation
from winkfs.stores.logstore import Conflict, LogStore, Snapshot, Transaction
from winkfs.stores.messagestore import MessageStore
from winkfs.stores.ringpage import Ring

pytestmark = [pytest.mark.usefixtures("threads_change_often"), pytest.mark.in_memory]
SECONDS = 0.6
THREADS = range(4)


def again_and_again(action: Callable[[], object]) -> Callable[[float], None]:
    """What a further thread does all the time."""

    def run(until: float) -> None:
        while time.monotonic() < until:
            action()
            time.sleep(0.01)

    return run


# --- message store ---


class Messages(Owner[MessageStore]):
    def verbs(self) -> list[Callable[[], object]]:
        return [self.write, self.write_each, self.write_many, self.remove, self.remove_many]

    def new(self) -> bytes:
        return b"%d %014d" % (self.me, self.random.randrange(10**12))

    def write(self) -> None:
        id, body = self.new(), self.content()
        self.handle.write(id, body)
        self.model[id] = body

    def write_each(self) -> None:
        for _ in range(30):
            self.write()

    def write_many(self) -> None:
        new = {self.new(): self.content() for _ in range(5)}
        self.handle.write_many(new.items())
        self.model |= new

    def remove(self) -> None:
        if self.model:
            id = self.random.choice(sorted(self.model))
            self.handle.remove(id)
            del self.model[id]
            assert id not in self.handle
            with pytest.raises(NoSuchFile):
                self.handle.read(id)

    def remove_many(self) -> None:
        ids = sorted(self.model)[::3]
        self.handle.remove_many(ids)
        for id in ids:
            del self.model[id]
        assert not any(id in self.handle for id in ids)

    def look(self, after: str) -> None:
        ids = self.random.sample(sorted(self.model), min(len(self.model), 4))
        for id in ids:
            assert id in self.handle, after
            assert self.handle.read(id) == self.model[id], after
        assert self.handle.read_many(ids) == [self.model[id] for id in ids], after

    def look_at_all(self) -> None:
        ids = sorted(self.model)
        assert self.handle.read_many(ids) == [self.model[id] for id in ids]


@pytest.mark.slow
def test_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Life.small(monkeypatch)
    path, compacted = str(tmp_path / "s"), list[int]()
    messagestore.create(path)
    with MessageStore(path, "a", sync="interval", interval=0.01) as store:
        owners = [Messages(store, me) for me in THREADS]
        compaction = again_and_again(lambda: compacted.append(store.compact().files))
        model = run_owners(owners, 2 * SECONDS, compaction)
        assert len(store) == len(model) and sum(compacted) > 10
    with MessageStore(path) as reader:
        assert reader.read_many(list(model)) == list(model.values())
    assert not winkfs.verify(path).problems


# --- log store ---


ACCOUNTS, BALANCE = 40, 1000


class Records(Owner[LogStore]):
    """Each change is a transaction of its own, or one of several changes; money goes from one of
    the first records to another, which all threads have."""

    def __init__(self, store: LogStore, me: int) -> None:
        super().__init__(store, me)
        self.commits = 0

    def verbs(self) -> list[Callable[[], object]]:
        return [self.put, self.change_several, self.swap, self.delete, self.roll_back,
                self.transfer, self.transfer]  # fmt: skip

    def put(self) -> None:
        with self.handle.begin() as transaction:
            body = self.content()
            recid = transaction.put(body)
            assert transaction.get(recid) == body
        self.model[recid] = body

    def change_several(self) -> None:
        draft = dict(self.model)
        transaction = self.handle.begin()
        self._change(transaction, draft)
        transaction.commit(sync=False)
        self.model = draft

    def transfer(self) -> None:
        transaction = self.handle.begin()
        accounts, amount = self.random.sample(range(1, ACCOUNTS + 1), 2), self.random.randint(1, 9)
        try:
            for account, change in zip(accounts, (-amount, amount), strict=True):
                transaction.update(account, b"")  # no other thread can change it from here on
                balance = int(self.handle.get(account) or b"")
                transaction.update(account, b"%d" % (balance + change))
        except Conflict:
            transaction.rollback()
            return
        transaction.commit(sync=False)
        self.commits += 1

    def _change(self, transaction: Transaction, draft: dict[int, bytes]) -> None:
        for recid in self.random.sample(sorted(draft), min(len(draft), 4)):
            draft[recid] = self.content()
            transaction.update(recid, draft[recid])
            assert transaction.get(recid) == draft[recid]
            assert self.handle.get(recid) == self.model[recid]  # as it was committed
        body = self.random.choice([self.content(), None])
        draft[transaction.put(body)] = body

    def swap(self) -> None:
        if self.model:
            recid, new = self.random.choice(sorted(self.model)), self.content()
            with self.handle.begin() as transaction:
                assert not transaction.compare_and_swap(recid, b"never there", new)
                assert transaction.compare_and_swap(recid, self.model[recid], new)
            self.model[recid] = new

    def delete(self) -> None:
        if len(self.model) > 20:
            recid = self.random.choice(sorted(self.model))
            with self.handle.begin() as transaction:
                transaction.delete(recid)
                assert self.handle.get(recid) == self.model[recid]
            del self.model[recid]

    def roll_back(self) -> None:
        transaction = self.handle.begin()
        self._change(transaction, dict(self.model))
        transaction.rollback()

    def sync(self) -> None:
        self.handle.commit()

    def look(self, after: str) -> None:
        recids = self.random.sample(sorted(self.model), min(len(self.model), 4))
        for recid in recids:
            assert self.handle.get(recid) == self.model[recid], after
        assert self.handle.get_many(recids) == [self.model[recid] for recid in recids], after

    def look_at_all(self) -> None:
        with self.handle.snapshot() as snapshot:
            assert self.model.keys() <= set(snapshot.recids())
            for recid, body in self.model.items():
                assert snapshot.get(recid) == body


def balances(store: LogStore | Snapshot) -> list[bytes | None]:
    found = store.get_many(range(1, ACCOUNTS + 1))
    assert sum(int(balance or b"") for balance in found) == ACCOUNTS * BALANCE
    return found


def watch(store: LogStore) -> None:
    """Read one snapshot several times while others write."""
    with store.snapshot() as snapshot:
        first, recids = balances(snapshot), list(snapshot.recids())
        bodies = snapshot.get_many(recids)
        for pause in (0.0, 0.01, 0.03):
            time.sleep(pause)
            assert balances(snapshot) == first and list(snapshot.recids()) == recids
            assert snapshot.get_many(recids) == bodies
            assert [snapshot.get(recid) for recid in recids[::7]] == bodies[::7]


@pytest.mark.slow
@pytest.mark.soak
def test_records(tmp_path: Path, soak: bool) -> None:
    path, compacted = str(tmp_path / "s"), list[int]()
    with LogStore.create(path, file_size=16 << 10, cutoff=600, file_bits=10, generation_bits=4,
                         save_every=5) as store:  # fmt: skip
        store.put_many([b"%d" % BALANCE] * ACCOUNTS)
        store.commit()
        owners = [Records(store, me) for me in THREADS]
        looks = [again_and_again(partial(watch, store)) for _ in range(2)]
        compaction = again_and_again(lambda: compacted.append(store.compact(least=0.3)["files"]))
        model = run_owners(owners, 600 if soak else 2, compaction, *looks)
        model |= dict(enumerate(balances(store), 1))
        assert set(store.recids()) == model.keys() and not store.problems
    with LogStore(path) as reader:
        assert {recid: reader.get(recid) for recid in reader.recids()} == model
        assert not reader.problems
    assert sum(compacted) > 0 and all(owner.commits for owner in owners)
    assert not winkfs.verify(path).problems


# --- queue and ring: a thread that has pushed a message finds one ---


class Pushers(Owner[Queue]):
    """Each pushes, then pops at most as many, so that there is one for it; and reads all with a
    consumer of its own."""

    def __init__(self, queue: Queue, me: int) -> None:
        super().__init__(queue, me)
        self.popped: list[bytes] = []
        self.seen: list[int] = []
        self.own = f"own {me}"
        queue.add_consumer(self.own)

    def verbs(self) -> list[Callable[[], object]]:
        return [self.push, self.push, self.push_many, self.push_once, self.fail]

    def pushed(self, id: int, body: bytes) -> None:
        self.model[id] = body
        assert self.handle.read(id).payload == body
        assert self.handle.next_id > id

    def pop(self) -> None:
        message = self.handle.pop(visible=1000)
        assert message is not None  # mine, if nobody's else
        self.popped.append(message.payload)
        self.handle.ack(message.id)

    def push(self) -> None:
        body = self.content()
        self.pushed(self.handle.push(body), body)
        self.pop()

    def push_many(self) -> None:
        bodies = [self.content() + b"%d" % number for number in range(4)]
        for id, body in zip(self.handle.push_many(bodies), bodies, strict=True):
            self.pushed(id, body)
        for _ in bodies:
            self.pop()

    def push_once(self) -> None:
        body, key = self.content(), f"{self.me} {self.turn}"
        id, new = self.handle.push_once(body, key, window=1000)
        assert new
        assert self.handle.push_once(b"", key, window=1000) == (id, False)
        self.pushed(id, body)
        self.pop()

    def fail(self) -> None:
        body = self.content()
        self.pushed(self.handle.push(body), body)
        message = self.handle.pop(visible=1000)
        assert message is not None
        assert not self.handle.nack(message.id)
        self.pop()

    def look(self, after: str) -> None:
        """With the own consumer: everything once, in order, and all that is mine."""
        mine = max(self.model)
        while not self.seen or self.seen[-1] < mine:
            message = self.handle.pop(consumer=self.own)
            assert message is not None, after
            assert self.model.get(message.id, message.payload) == message.payload
            self.seen.append(message.id)
        assert self.seen == list(range(1, len(self.seen) + 1)), after

    def look_at_all(self) -> None:
        start = min(self.model)
        found = {m.id: m.payload for m in self.handle.all_messages(start) if m.id in self.model}
        assert found == self.model


@pytest.mark.slow
def test_a_queue(tmp_path: Path) -> None:
    path = str(tmp_path / "q")
    ledgerq.create(path)
    with Queue(path, "a", sync="none", rotation=Rotation(100_000, 200)) as queue:
        owners = [Pushers(queue, me) for me in THREADS]
        model = run_owners(owners, SECONDS)
        popped = [body for owner in owners for body in owner.popped]
        assert Counter(popped) == Counter(model.values())
        assert queue.pop() is None
    with Queue(path) as reader:
        assert {message.id: message.payload for message in reader.all_messages()} == model
        assert reader.pending() == 0
    assert not winkfs.verify(path).problems


class RingPushers(Owner[Ring]):
    def __init__(self, ring: Ring, me: int) -> None:
        super().__init__(ring, me)
        self.popped: list[bytes] = []

    def verbs(self) -> list[Callable[[], object]]:
        return [self.push, self.push_many]

    def new(self) -> bytes:
        """Return a body with the number of the thread and of the body."""
        body = b"%d %06d " % (self.me, len(self.model)) + self.content()
        self.model[self.me, len(self.model)] = body
        return body

    def push(self) -> None:
        self.handle.push(self.new())
        assert len(self.handle) > 0
        self.pop()

    def push_many(self) -> None:
        self.handle.push_many([self.new() for _ in range(4)])
        self.popped += (some := self.handle.pop_many(3))
        assert len(some) == 3
        self.pop()

    def pop(self) -> None:
        body = self.handle.pop()
        assert body is not None
        self.popped.append(body)

    def look(self, after: str) -> None:
        """What it has popped last of one thread has come in its order."""
        of_one = [body for body in self.popped[-99:] if body.startswith(b"0 ")]
        assert of_one == sorted(of_one), after

    def sync(self) -> None:
        self.handle.sync() if self.turn % 100 else self.handle.flush()


@pytest.mark.slow
def test_a_ring(tmp_path: Path) -> None:
    path = str(tmp_path / "ring")
    ringpage.create(path, pages=200)
    with Ring(path, "a", memory=16 << 10) as ring:
        owners = [RingPushers(ring, me) for me in THREADS]
        for owner in owners:
            owner.sync()
        model = run_owners(owners, SECONDS)
        popped = [body for owner in owners for body in owner.popped]
        assert Counter(popped) == Counter(model.values())
        assert ring.pop() is None and ring.empty()
    assert not winkfs.verify(path).problems


# --- data set ---


@pytest.mark.slow
def test_a_data_set(tmp_path: Path) -> None:
    path = str(tmp_path / "d")
    with winkfs.dataset.create(path) as dataset:
        owners = [FileOwner(dataset, me) for me in THREADS]
        model = run_owners(owners, SECONDS)
    with winkfs.open(path) as reader:
        assert {entry.name: entry.read() for entry in reader.scan()} == model
    assert not winkfs.verify(path).problems
