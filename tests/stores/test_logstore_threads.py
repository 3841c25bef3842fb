"""Transactions, snapshots and compaction in any order, and files that threads list at once."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from drawn import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from logstore_lives import content
from simulated.disk import SimulatedDisk
from threaded import in_threads

from winkformats.disk.posix import FileStorage
from winkformats.logstore import datafiles
from winkfs.errors import NoSuchFile
from winkfs.stores.logstore import Conflict, LogStore, Snapshot, Transaction
from winkfs.stores.logstore.files import Files

pytestmark = pytest.mark.slow


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


class TestMachine(Machine.TestCase):
    settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)


def test_threads_list_and_remove_data_files_at_once(tmp_path: Path) -> None:
    """A writer begins a file while a compaction removes another: no row of the list is lost."""
    store = LogStore.create(str(tmp_path / "s"))
    store.put(b"1")
    store.commit()
    files, sync = Files(str(tmp_path / "s")), FileStorage.sync
    before, _ = files.listed() or (set(), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStorage, "sync", lambda storage: (time.sleep(0.002), sync(storage)))
        in_threads(*(partial(files.list_as, datafiles.THERE, number) for number in range(100, 120)))
    after, _ = files.listed() or (set(), 0)
    assert after == {*before, *range(100, 120)}
    files.close()
    store.close()
