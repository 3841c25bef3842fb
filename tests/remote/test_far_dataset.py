"""Data sets on object storage: what those of a disk are tested by, and what is different."""

from __future__ import annotations

import contextlib
import itertools

import data_sets
from dataset.test_dataset_model import Crash, Model, contents
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from simulated.objectstore import ObjectStore

from winkfs.dataset import dataset
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.manifest import Log
from winkfs.dataset.transaction import begin


def passes(key: str) -> None:
    """Let a request pass."""


class FarModel(Model):
    """The same on object storage: a crash is a request that is not answered any more."""

    @initialize(ao=st.booleans())
    def begin(self, ao: bool) -> None:
        super().begin(ao)
        self.store = ObjectStore().__enter__()
        self.root = self.store.trusted("ds")
        dataset.create(self.root).close()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "store"):
            self.store.__exit__()

    def _containers(self) -> set[str]:
        return {
            f"{self.store.url}/{key[:-5]}" for key in self.store.objects if key.endswith(".data")
        }

    @rule(keep=st.integers(1, 4))
    def vacuum(self, keep: int) -> None:
        before = self._containers()
        done = vacuum(self.root, keep=keep, older_than=0)
        newest = max(self.past)
        self.past = {g: files for g, files in self.past.items() if g >= done.oldest}
        if Log(self.root).newest() > newest:
            self._committed(newest + 1, self.now)
        named = {path for g in self.past for path in self._paths(g)}
        gone = {f"{self.root}/{path}" for path in (*done.shards, *done.leftovers)}
        assert named <= self._containers()
        assert before - self._containers() == gone & before

    @rule(files=contents, after=st.integers(0, 8), lost=st.booleans())
    def crash_in_a_commit(self, files: dict[str, bytes], after: int, lost: bool) -> None:
        expected = self.now | files
        job = begin(self.root)
        record = data_sets.sealed(job, files)
        left = itertools.count(after, -1)

        def stop(key: str) -> None:
            if next(left) <= 0:
                raise Crash

        with contextlib.suppress(Crash):
            self.store.failing, self.store.lost = (passes, stop) if lost else (stop, passes)
            job.commit([record])
        self.store.failing = self.store.lost = passes
        if Log(self.root).newest() > max(self.past):
            self._committed(max(self.past) + 1, expected)


def test_a_far_data_set_beside_a_dict() -> None:
    run_state_machine_as_test(FarModel, settings=settings(
        max_examples=8, stateful_step_count=20, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    ))  # fmt: skip
