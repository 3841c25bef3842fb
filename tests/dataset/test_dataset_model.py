"""Data sets beside a dict: commits, overwrites, rewrites, vacuums and crashes in any order."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import data_sets
import pytest
import stored
from drawn import examples
from folders import MEMORY
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import winkfs
from winkfs.dataset import dataset
from winkfs.dataset.compaction import Group, compact, compaction, rebalance, rewrite
from winkfs.dataset.hidden import hidden_rows
from winkfs.dataset.maintain import adopt, vacuum
from winkfs.dataset.manifest import Log
from winkfs.dataset.snapshot import snapshot
from winkfs.dataset.transaction import begin
from winkfs.errors import DatasetConflict, StalePlan

pytestmark = pytest.mark.slow

NAMES = ["a", "b", "b/c", "\udcff", "x" * 300]
names = st.sampled_from(NAMES)
contents = st.dictionaries(names, st.binary(max_size=40), max_size=4)
changes = st.lists(st.tuples(names, st.none() | st.binary(max_size=40)), min_size=1, max_size=4)


class Crash(BaseException):
    """Power cut, as far as the data set can tell."""


class Model(RuleBasedStateMachine):
    """`past`: what each generation that is kept has; the newest is `now`."""

    @initialize(ao=st.booleans())
    def begin(self, ao: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="winkfs-model-", dir=MEMORY))
        self.root, self.ao = str(self.folder / "ds"), ao
        dataset.create(self.root).close()
        self.past: dict[int, dict[str, bytes]] = {0: {}}
        self.made = 0

    @property
    def several(self) -> bool:
        return len(Log(self.root).latest().shards) > 1

    @property
    def now(self) -> dict[str, bytes]:
        return self.past[max(self.past)]

    def _committed(self, generation: int, files: dict[str, bytes]) -> None:
        assert generation == max(self.past) + 1
        self.past[generation] = dict(files)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            assert winkfs.verify(self.root).problems == []
            shutil.rmtree(self.folder)

    # --- changes ---

    @rule(changes=changes)
    def put_and_delete(self, changes: list[tuple[str, bytes | None]]) -> None:
        expected, before = dict(self.now), max(self.past)
        with winkfs.open(self.root, "a") as opened:
            for name, content in changes:
                if content is not None:
                    opened.put(name, content)
                    expected[name] = content
                elif name in expected:
                    opened.delete(name)
                    del expected[name]
                else:
                    with pytest.raises(FileNotFoundError):
                        opened.delete(name)
            assert {entry.name: entry.read() for entry in opened.scan()} == expected
            assert len(opened) == len(expected)
            generation = opened.sync()
        if generation > before:
            self._committed(generation, expected)
        assert expected == self.now

    @rule(some=st.lists(changes, min_size=2, max_size=4))
    def several_commits(self, some: list[list[tuple[str, bytes | None]]]) -> None:
        for each in some:
            self.put_and_delete(each)

    @rule(old=names, new=names)
    def rename(self, old: str, new: str) -> None:
        expected = dict(self.now)
        with winkfs.open(self.root, "a") as opened:
            if old not in expected:
                with pytest.raises(FileNotFoundError):
                    opened.rename(old, new)
                return
            opened.rename(old, new)
            expected[new] = expected.pop(old)
            generation = opened.sync()
        if old != new:
            self._committed(generation, expected)

    @rule(shards=st.lists(contents, max_size=3), kind=st.sampled_from([{}, {"htalgo": 3}]))
    def append(self, shards: list[dict[str, bytes]], kind: dict[str, Any]) -> None:
        expected = dict(self.now)
        for files in shards:
            expected |= files
        self._committed(data_sets.add(self.root, *shards, ao=self.ao, **kind), expected)

    @rule(files=contents, meanwhile=contents)
    def overwrite(self, files: dict[str, bytes], meanwhile: dict[str, bytes]) -> None:
        """What is appended meanwhile is newer than what is overwritten."""
        job = begin(self.root, "overwrite")
        record = data_sets.sealed(job, files)
        if meanwhile:
            self.append([meanwhile], {})
        self._committed(job.commit([record]), files | meanwhile)

    @rule(files=contents, classic=st.booleans())
    def adopt_foreign(self, files: dict[str, bytes], classic: bool) -> None:
        self.made += 1
        base = self.folder / f"foreign{self.made}"
        with winkfs.create(base, classic=classic, htalgo=1) as container:
            container.put_many(files.items())
            container.put("gone", b"")
            container.delete("gone")
        self._committed(adopt(self.root, [base]), self.now | files)

    # --- rewrites: nothing is to be seen of them ---

    @rule(size=st.sampled_from([1, 5000, 1 << 30]), everything=st.booleans())
    def compact(self, size: int, everything: bool) -> None:
        done = compact(self.root, shard_size=size, everything=everything)
        if done.generation not in self.past:
            self._committed(done.generation, self.now)

    @rule(shards=st.integers(1, 4))
    def rebalance(self, shards: int) -> None:
        done = rebalance(self.root, shards=shards)
        if done.generation not in self.past:
            self._committed(done.generation, self.now)

    @precondition(lambda self: self.several)
    @rule(data=st.data(), meanwhile=contents, deleted=names)
    def rewrite_any_shards(self, data: Any, meanwhile: dict[str, bytes], deleted: str) -> None:
        """Any subset is replaced by one shard, while others commit."""
        seen = snapshot(self.root)
        numbers = st.sets(st.integers(0, len(seen.shards) - 1), min_size=1)
        members = tuple(sorted(data.draw(numbers)))
        job = begin(self.root, "compact")
        records = rewrite(job, seen, Group(members, 1 << 20, "00000"))
        if meanwhile:
            self.append([meanwhile], {})
        if deleted in self.now:
            self.put_and_delete([(deleted, None)])
        removed = [seen.shards[number].record.path for number in members]
        self._committed(job.commit(records, removed=removed), self.now)

    @precondition(lambda self: self.several)
    @rule(data=st.data())
    def two_rewrites_side_by_side(self, data: Any) -> None:
        seen = snapshot(self.root)
        split = data.draw(st.lists(st.booleans(), min_size=len(seen.shards),
                                   max_size=len(seen.shards)))  # fmt: skip
        for side in (False, True):
            members = tuple(n for n, chosen in enumerate(split) if chosen == side)
            if members:
                job = begin(self.root, "compact")
                records = rewrite(job, seen, Group(members, 1 << 20, "00000"))
                removed = [seen.shards[number].record.path for number in members]
                self._committed(job.commit(records, removed=removed), self.now)

    @precondition(lambda self: self.several)
    @rule()
    def lost_rewrite_is_a_conflict(self) -> None:
        seen = snapshot(self.root)
        groups = compaction(seen, 1 << 30)
        if not groups:
            return
        job = begin(self.root, "compact")
        records = rewrite(job, seen, groups[0])
        self.overwrite({"new": b"1"}, {})
        removed = [seen.shards[number].record.path for number in groups[0].members]
        with pytest.raises(DatasetConflict):
            job.commit(records, removed=removed)
        assert not Path(job.folder).exists()
        assert not Path(job.pending).exists()

    # --- the past ---

    @rule(keep=st.integers(1, 4))
    def vacuum(self, keep: int) -> None:
        done = vacuum(self.root, keep=keep, older_than=0)
        newest = max(self.past)
        for generation in [g for g in self.past if g < done.oldest]:
            del self.past[generation]
        assert len(self.past) >= min(keep, 1)
        if Log(self.root).newest() > newest:
            self._committed(newest + 1, self.now)
        named = {path for g in self.past for path in self._paths(g)}
        there = {str(p)[:-5] for p in Path(self.root).glob("[!_]*/*.data")}
        assert there == named

    def _paths(self, generation: int) -> list[str]:
        records = Log(self.root).state(generation).shards
        return [f"{self.root}/{record.path}" for record in records]

    @rule(data=st.data())
    def read_the_past(self, data: Any) -> None:
        for path in Path(self.root).glob("_winkfs/*.hidden"):
            path.unlink()
        generation = data.draw(st.sampled_from(sorted(self.past)))
        assert stored.files(self.root, as_of=generation) == self.past[generation]
        oldest = Log(self.root).latest().oldest
        if oldest:
            with pytest.raises(StalePlan, match="vacuumed"):
                winkfs.open(self.root, as_of=oldest - 1)

    @rule(files=contents, after=st.integers(0, 12))
    def crash_in_a_commit(self, files: dict[str, bytes], after: int) -> None:
        expected = self.now | files
        job = begin(self.root)
        record = data_sets.sealed(job, files)
        with pytest.MonkeyPatch.context() as patch:
            data_sets.crash_after(patch, after, Crash)
            with contextlib.suppress(Crash):
                job.commit([record])
        if Log(self.root).newest() > max(self.past):
            self._committed(max(self.past) + 1, expected)

    # --- always ---

    @invariant()
    def same_files(self) -> None:
        if not hasattr(self, "root"):
            return
        with winkfs.open(self.root) as opened:
            assert opened.generation == max(self.past)
            assert {entry.name: entry.read() for entry in opened.scan()} == self.now
            assert sorted(opened) == sorted(self.now)
            assert len(opened) == len(self.now)
            for name in NAMES:
                assert (name in opened) == (name in self.now)
                if name in self.now:
                    assert opened.read(name) == self.now[name]
                    assert opened.stat(name).size == len(self.now[name])
                else:
                    with pytest.raises(FileNotFoundError):
                        opened.read(name)
            assert list(opened.get_many(self.now)) == list(self.now.values())
            shards = opened.shards
        fresh = hidden_rows(self.root, [shard.record for shard in shards], {})
        for shard in shards:
            assert list(shard.hidden) == list(fresh[shard.record.path])


@pytest.mark.soak
def test_data_set_beside_a_dict(soak: bool) -> None:
    run_state_machine_as_test(Model, settings=settings(
        max_examples=300 if soak else examples(24), stateful_step_count=20, deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    ))  # fmt: skip
