"""Threads that write, read snapshots and compact at once, beside a model."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from simulated.disk import SimulatedDisk

from winkformats.disk.posix import FileStorage
from winkformats.logstore import datafiles
from winkfs.errors import NoSuchFile
from winkfs.stores.logstore import Conflict, LogStore, Snapshot, Transaction
from winkfs.stores.logstore.files import Files

pytestmark = pytest.mark.slow
ACCOUNTS, BALANCE = 40, 1000
SMALL = {"file_size": 16 << 10, "cutoff": 600, "file_bits": 10, "generation_bits": 4,
         "save_every": 5}  # fmt: skip


class Writer:
    """A thread that moves money between accounts of all, and has records of its own."""

    def __init__(self, store: LogStore, accounts: list[int], seed: int) -> None:
        self.store, self.accounts, self.rng = store, accounts, random.Random(seed)
        self.mine: dict[int, bytes | None] = {}
        self.commits = self.conflicts = 0

    def step(self) -> None:
        rng, draft = self.rng, dict(self.mine)
        transaction = self.store.begin()
        try:
            self.transfer(transaction)
            for _ in range(rng.randint(0, 8)):
                self.change(transaction, draft)
        except Conflict:
            self.conflicts += 1
            transaction.rollback()
            return
        if rng.random() < 0.1:
            transaction.rollback()
            return
        transaction.commit(sync=rng.random() < 0.02)
        self.mine = draft
        self.commits += 1
        for recid in rng.sample(sorted(draft), min(len(draft), 3)):
            assert self.store.get(recid) == draft[recid]

    def transfer(self, transaction: Transaction) -> None:
        source, target = self.rng.sample(self.accounts, 2)
        amount = self.rng.randint(1, 9)
        for account, change in ((source, -amount), (target, amount)):
            transaction.update(account, b"0")  # it is ours from here on
            # The newest that others committed, which no one can change any more.
            balance = int(self.store.get(account) or b"0")
            transaction.update(account, b"%d" % (balance + change))

    def change(self, transaction: Transaction, draft: dict[int, bytes | None]) -> None:
        rng = self.rng
        recid = rng.choice(sorted(draft)) if draft else 0
        body = rng.randbytes(rng.choice((0, 20, 300, 700))) if rng.random() < 0.9 else None
        choice = rng.random()
        if (choice < 0.4 and len(draft) < 60) or not draft:
            draft[transaction.put(body)] = body
        elif choice < 0.7:
            transaction.update(recid, body)
            draft[recid] = body
        elif choice < 0.8:
            assert transaction.compare_and_swap(recid, draft[recid], body)
            draft[recid] = body
        else:
            transaction.delete(recid)
            del draft[recid]


def watch(store: LogStore, accounts: list[int], seed: int) -> int:
    """Read one snapshot several times while others write -> reads."""
    rng = random.Random(seed)
    with store.snapshot() as snapshot:
        recids = list(snapshot.recids())
        first = snapshot.get_many(recids)
        balances = [int(snapshot.get(account) or b"x") for account in accounts]
        assert sum(balances) == ACCOUNTS * BALANCE
        for _ in range(rng.randint(1, 4)):
            time.sleep(rng.random() / 50)
            assert list(snapshot.recids()) == recids
            for recid in rng.sample(recids, min(len(recids), 30)):
                assert snapshot.get(recid) == first[recids.index(recid)]
            assert snapshot.get_many(recids) == first
    return len(recids)


def together(path: str, seconds: float, seed: int) -> None:
    """4 threads write, 2 read snapshots, one compacts; then all is as their models say."""
    store = LogStore.create(path, **SMALL)
    accounts = store.put_many([b"%d" % BALANCE] * ACCOUNTS)
    store.commit()
    end = time.monotonic() + seconds
    errors: list[BaseException] = []

    def run(step: Callable[[], object], pause: float = 0.0) -> None:
        try:
            while time.monotonic() < end and not errors:
                step()
                time.sleep(pause)
        except BaseException as error:
            errors.append(error)
            raise

    seeds = iter(range(seed * 1000, seed * 1000 + 10**9))
    writers = [Writer(store, accounts, seed + number) for number in range(4)]
    compacted: list[int] = []
    jobs = [threading.Thread(target=run, args=(writer.step,)) for writer in writers]
    jobs += [
        threading.Thread(target=run, args=(lambda: watch(store, accounts, next(seeds)),))
        for _ in range(2)
    ]
    compact = lambda: compacted.append(store.compact(least=0.3)["files"])  # noqa: E731
    jobs.append(threading.Thread(target=run, args=(compact, 0.02)))
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert not errors, errors
    print([writer.commits for writer in writers], sum(compacted), "files compacted")
    assert sum(compacted) > 0 and all(writer.commits for writer in writers)
    wanted: dict[int, bytes | None] = {}
    for writer in writers:
        wanted.update(writer.mine)
    for reopened in (False, True):
        if reopened:
            store.close()
            store = LogStore(path, "a")
        found = dict(zip(store.recids(), store.get_many(list(store.recids())), strict=True))
        money = [int(found.pop(account) or b"x") for account in accounts]
        assert sum(money) == ACCOUNTS * BALANCE
        assert found == wanted
        assert not store.problems
    store.close()


@pytest.mark.soak
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_that_write_read_and_compact_match_their_models(
    tmp_path: Path, seed: int, soak: bool
) -> None:
    together(str(tmp_path / "s"), 600 if soak else 4, seed)


class Machine(RuleBasedStateMachine):
    """4 transactions, 2 snapshots, compaction and reopening, in any order, beside dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk(1)
        self.path = f"{self.disk.path}/s"
        self.store = LogStore.create(
            self.path, file_size=900, cutoff=120, file_bits=8, generation_bits=3, save_every=3
        )
        self.committed: dict[int, bytes | None] = {}
        self.open: dict[int, tuple[Transaction, dict[int, bytes | None]]] = {}
        self.snapshots: dict[int, tuple[Snapshot, dict[int, bytes | None]]] = {}

    slots = st.integers(0, 3)
    views = st.integers(0, 1)
    bodies = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=118, max_size=200))
    picks = st.integers(0, 1000)

    def of(self, slot: int) -> tuple[Transaction, dict[int, bytes | None]]:
        if slot not in self.open:
            self.open[slot] = self.store.begin(), {}
        return self.open[slot]

    def pick(self, number: int) -> int | None:
        known = sorted(self.committed)
        return known[number % len(known)] if known else None

    def is_others(self, slot: int, recid: int) -> bool:
        return any(recid in changes for other, (_, changes) in self.open.items() if other != slot)

    @rule(slot=slots, body=bodies)
    def put(self, slot: int, body: bytes | None) -> None:
        transaction, changes = self.of(slot)
        recid = transaction.put(body)
        assert recid not in self.committed
        assert not self.is_others(slot, recid)
        changes[recid] = body
        assert transaction.get(recid) == body

    @rule(slot=slots, number=picks, body=bodies, swap=st.booleans())
    def update(self, slot: int, number: int, body: bytes | None, swap: bool) -> None:
        recid = self.pick(number)
        if recid is None:
            return
        transaction, changes = self.of(slot)
        if changes.get(recid, b"") == b"gone":
            with pytest.raises(NoSuchFile):
                transaction.update(recid, body)
        elif self.is_others(slot, recid):
            with pytest.raises(Conflict):
                transaction.update(recid, body)
        elif swap:
            now = changes.get(recid, self.committed[recid])
            assert not transaction.compare_and_swap(recid, b"never", body)
            assert transaction.compare_and_swap(recid, now, body)
            changes[recid] = body
        else:
            transaction.update(recid, body)
            changes[recid] = body

    @rule(slot=slots, number=picks)
    def delete(self, slot: int, number: int) -> None:
        recid = self.pick(number)
        transaction, changes = self.of(slot)
        if recid is None or self.is_others(slot, recid) or changes.get(recid) == b"gone":
            return
        transaction.delete(recid)
        changes[recid] = b"gone"

    @rule(slot=slots, sync=st.booleans())
    def commit(self, slot: int, sync: bool) -> None:
        if slot in self.open:
            transaction, changes = self.open.pop(slot)
            transaction.commit(sync=sync)
            self.committed.update(changes)
            self.committed = {k: v for k, v in self.committed.items() if v != b"gone"}

    @rule(slot=slots)
    def rollback(self, slot: int) -> None:
        if slot in self.open:
            self.open.pop(slot)[0].rollback()

    @rule(view=views)
    def snapshot(self, view: int) -> None:
        if view in self.snapshots:
            self.snapshots.pop(view)[0].close()
        else:
            self.snapshots[view] = self.store.snapshot(), dict(self.committed)

    @rule(least=st.sampled_from([0.1, 0.5]))
    def compact(self, least: float) -> None:
        self.store.compact(least=least)

    @precondition(lambda self: not self.snapshots)
    @rule()
    def reopen(self) -> None:
        for transaction, _ in self.open.values():
            transaction.rollback()
        self.open.clear()
        self.store.close()
        self.store = LogStore(self.path, "a")

    @invariant()
    def all_agree(self) -> None:
        assert content(self.store) == self.committed
        for snapshot, wanted in self.snapshots.values():
            assert content(snapshot) == wanted
            assert all(snapshot.get(recid) == body for recid, body in wanted.items())

    def teardown(self) -> None:
        self.store.close()


def content(store: LogStore | Snapshot) -> dict[int, bytes | None]:
    recids = list(store.recids())
    return dict(zip(recids, store.get_many(recids), strict=True))


class TestMachine(Machine.TestCase):
    settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_threads_list_and_remove_data_files_at_once(tmp_path: Path) -> None:
    """A writer begins a file while a compaction removes another: no row of the list is lost."""
    store = LogStore.create(str(tmp_path / "s"), **SMALL)
    store.put(b"1")
    store.commit()
    files, sync = Files(str(tmp_path / "s")), FileStorage.sync
    before, _ = files.listed() or (set(), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStorage, "sync", lambda storage: (time.sleep(0.002), sync(storage)))
        jobs = [
            threading.Thread(target=files.list_as, args=(datafiles.THERE, 100 + number))
            for number in range(20)
        ]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
    after, _ = files.listed() or (set(), 0)
    assert after == set(before) | {100 + number for number in range(20)}
    files.close()
    store.close()
