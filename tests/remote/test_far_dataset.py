"""Data sets on object storage: what those of a disk are tested by, and what is different."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import data_sets
import pytest
import stored
from dataset.test_dataset_model import Crash, Model, contents
from drawn import examples
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from simulated.objectstore import ObjectStore

import winkfs
from winkfs.dataset import checkpoint, dataset, folder
from winkfs.dataset.maintain import repair, vacuum
from winkfs.dataset.manifest import Log, create
from winkfs.dataset.transaction import begin
from winkfs.errors import DatasetConflict, Refusal


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
        max_examples=examples(24), stateful_step_count=20, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    ))  # fmt: skip


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as made:
        yield made


@pytest.fixture
def root(store: ObjectStore) -> str:
    """An empty data set."""
    return create(store.trusted("ds")).root


def forget_hint(store: ObjectStore) -> None:
    store.objects.pop("ds/_winkfs/latest")
    store.transport.recent.clear()


def test_a_commit_and_a_cold_document_take_few_requests(root: str, store: ObjectStore) -> None:
    for part in range(20):
        data_sets.add(root, {f"{part:02}/{i:03}": b"%d" % i * 100 for i in range(200)})
    with store.counted() as asked, winkfs.open(root) as there:
        assert there.read("13/007") == b"7" * 100
    assert len(asked) - 1 <= 7  # the first asks whether it is a container
    assert sum(request.size for request in asked) < 64 << 10
    with store.counted() as asked:
        data_sets.add(root, {"new": b"1"})
    begun = [request.what for request in asked]
    commit = asked[next(i for i, r in enumerate(asked) if r.key.endswith("_job")) :]
    assert begun.count("put") == 5 and len(commit) == 6


def test_readers_see_whole_generations(root: str, store: ObjectStore) -> None:
    data_sets.add(root, {"a": b"1"})
    with winkfs.open(root) as old:
        data_sets.add(root, {"a": b"2"})
        assert old.read("a") == b"1"
        assert old.refresh() and old.read("a") == b"2"
    assert stored.files(root, as_of=1) == {"a": b"1"}
    store.objects["ds/_winkfs/latest"] = store.objects[f"ds/_winkfs/{0:020}.json"]
    assert stored.files(root) == {"a": b"2"}  # an old hint
    forget_hint(store)
    assert stored.files(root) == {"a": b"2"}


@pytest.mark.parametrize("which", ["json", "part", "hidden"])
def test_damage_is_one_line(
    root: str, store: ObjectStore, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "GENERATIONS", 2)
    for n in range(5):
        data_sets.add(root, {"a": b"%d" % n, f"{n}": b""})
    whole = Log(root).read(5).whole
    assert whole is not None
    key = {
        "json": f"_winkfs/{5:020}.json", "part": whole.parts[0].path,
        "hidden": next(file.path for file in whole.hidden if file),
    }[which]  # fmt: skip
    key = f"ds/{key}"
    data = store.objects[key][0]
    store.put(key, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    forget_hint(store)
    if which == "json":
        with winkfs.open(root) as there:
            assert there.generation == 4 and "generation 4" in there.problems[0]
        with pytest.raises(ValueError, match="checksum of the manifest"):
            winkfs.open(root, "a")
        assert "is given up" in repair(root, apply=True).mended[0]
        assert stored.files(root)["a"] == b"3" and winkfs.verify(root).problems == []
        data_sets.add(root, {"a": b"new"})
        assert stored.files(root)["a"] == b"new"
    else:
        with pytest.raises(ValueError, match=f"checksum of .*{which.replace('json', '')}"):
            winkfs.open(root)


@pytest.mark.parametrize("lost", [False, True])
def test_latest_has_a_copy_of_the_newest_manifest(
    root: str, store: ObjectStore, lost: bool
) -> None:
    for n in range(3):
        data_sets.add(root, {"a": b"%d" % n})
    key = f"ds/_winkfs/{3:020}.json"
    whole = store.objects[key]
    store.objects.pop(key) if lost else store.put(key, whole[0][:-1])
    if not lost:
        assert any("checksum" in line for line in winkfs.verify(root).problems)
        assert "from `latest`" in repair(root, apply=True).mended[0]
        assert store.objects[key] == whole
    assert stored.files(root)["a"] == (b"1" if lost else b"2")
    assert winkfs.verify(root).problems == []


def test_a_lost_manifest_stops_commits_until_repair(root: str, store: ObjectStore) -> None:
    for n in range(3):
        data_sets.add(root, {"a": b"%d" % n})
    job, record = data_sets.begun(root, {"a": b"new"})
    del store.objects[f"ds/_winkfs/{2:020}.json"]
    forget_hint(store)
    late, other = data_sets.begun(root, {"b": b"new"})
    assert late.base_generation == 1
    with pytest.raises(ValueError, match="manifest is lost, and a later one is there"):
        late.commit([other])
    assert stored.files(root)["a"] == b"0"  # as long as nothing is repaired
    assert job.commit([record]) == 4


def test_vacuum_keeps_what_jobs_may_commit(root: str, store: ObjectStore) -> None:
    running, record = data_sets.begun(root, {"running": b"1"})
    for n in range(3):
        data_sets.add(root, {"a": b"%d" % n}, operation="overwrite")
    done = vacuum(root, keep=3, older_than=0)
    assert any(running.job in note for note in done.notes) is (done.oldest == 0)
    late, other = data_sets.begun(root, {"late": b"1"})
    vacuum(root, older_than=0)
    with pytest.raises(DatasetConflict, match="longer than vacuum keeps"):
        running.commit([record])
    assert late.commit([other])
    assert stored.files(root) == {"a": b"2", "late": b"1"}
    assert not any(running.job in key for key in store.objects)
    assert winkfs.verify(root).problems == []


def test_vacuum_that_was_faster_than_an_answer(
    root: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit was made, and replaced, and its manifest is gone: nothing shows that it was."""
    monkeypatch.setattr(folder, "TRIES", 1)
    job, record = data_sets.begun(root, {"a": b"1"})

    def deaf(key: str) -> None:
        if key.endswith(f"{1:020}.json") and key in store.objects:
            raise Refusal("reset")

    store.failing = store.lost = deaf
    with pytest.raises(Refusal, match="is not known"):
        job.commit([record])
    store.failing = store.lost = passes
    for n in range(2):
        data_sets.add(root, {"a": b"%d" % n}, operation="overwrite")
        vacuum(root, older_than=0)
    with pytest.raises(Refusal, match="vacuum was faster"):
        job.commit([record])
    assert stored.files(root) == {"a": b"1"}


def test_old_files_stay_as_long_as_the_clock_of_the_store_wants(
    root: str, store: ObjectStore
) -> None:
    for n in range(3):
        data_sets.add(root, {"a": b"%d" % n}, operation="overwrite")
    assert vacuum(root, older_than=3600).oldest == 0
    for key, (data, info) in store.objects.items():
        if key.endswith(".json"):
            store.objects[key] = data, info._replace(mtime=info.mtime - 7200)
    assert vacuum(root, older_than=3600).oldest == 3


@pytest.mark.few(1)
@pytest.mark.parametrize("lost", [False, True])
def test_a_commit_is_there_or_not_whatever_request_is_the_last(
    store: ObjectStore, lost: bool
) -> None:
    before, after, ended = {"a": b"1", "b": b"1"}, {"a": b"2"}, list[bool]()
    for calls in itertools.takewhile(lambda calls: True not in ended, itertools.count()):
        root = store.trusted(f"ds{calls}")
        data_sets.put(root, before)
        left = itertools.count(calls, -1)

        def stop(key: str, left: Iterator[int] = left) -> None:
            if next(left) <= 0:
                raise Crash

        store.failing, store.lost = (passes, stop) if lost else (stop, passes)
        try:
            with winkfs.open(root, "a") as there:
                there.put("a", b"2")
                there.delete("b")
            ended.append(True)
        except Crash:
            pass
        store.failing = store.lost = passes
        assert stored.files(root) in (before, after)
        data_sets.add(root, {"next": b"3"})
        assert winkfs.verify(root).problems == []
    assert calls > (5 if lost else 15)
    assert stored.files(root) == after | {"next": b"3"}
