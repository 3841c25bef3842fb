"""Transactions: all or nothing, whatever dies, and however many commit at once."""

from __future__ import annotations

import errno
import os
import pickle
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import data_sets
import pytest
import stored
from container_checks import child, run
from data_sets import checkpoints as checkpoints
from data_sets import root as root
from seam import disk_calls, once

import winkfs
from winkformats.errors import FormatError
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.manifest import Log, create, interval, is_dataset
from winkfs.dataset.records import Manifest, applied
from winkfs.dataset.snapshot import snapshot
from winkfs.dataset.transaction import begin
from winkfs.errors import DatasetConflict, Refusal, StalePlan

pytestmark = pytest.mark.in_memory

# --- one commit ---


def test_attempts_that_lost_are_not_published(root: str) -> None:
    job = pickle.loads(pickle.dumps(begin(root)))
    winner = data_sets.sealed(job, {"a": b"winner"}, "00000-1")
    data_sets.sealed(job, {"a": b"loser", "b": b"loser"}, "00000-0")
    stored.make(job.attempt("00001-0"), {"c": b"never sealed"})
    Path(job.pending, "scratch of a task").mkdir()
    assert job.commit([winner]) == 1
    assert stored.files(root) == {"a": b"winner"}
    assert {p.name for p in Path(job.folder).iterdir()} == {
        "00000-1.data", "00000-1.idx", "00000-1.cat", "_job",
    }  # fmt: skip
    assert os.listdir(f"{root}/_pending") == []


def test_zombie_attempt_finds_no_folder(root: str) -> None:
    job, record = data_sets.begun(root, {"a": b"1"})
    job.commit([record])
    with pytest.raises(StalePlan, match="committed or aborted"):
        job.attempt("00001-0")
    assert not Path(job.pending).exists()


def test_container_that_is_not_closed_is_refused(root: str) -> None:
    job = begin(root)
    container = winkfs.create(job.attempt("00000"))
    container.put("a", b"1" * 5_000_000)
    try:
        with pytest.raises(OSError, match=r"another writer|not closed"):
            job.seal(job.attempt("00000"))
    finally:
        container.close()


def test_sealed_container_that_is_gone_is_refused(root: str) -> None:
    job, record = data_sets.begun(root, {"a": b"1"})
    os.unlink(f"{job.pending}/00000-0.data")
    with pytest.raises(StalePlan, match="gone"):
        job.commit([record])
    job.abort()
    assert stored.files(root) == {}


@pytest.mark.parametrize("name", ["", "../x", "a/b", "_x", ".x", "x" * 101, "a\nb"])
def test_names_that_are_no_names_of_jobs(root: str, name: str) -> None:
    with pytest.raises(ValueError, match="named by letters"):
        begin(root).attempt(name)
    if name:
        with pytest.raises(ValueError, match="named by letters"):
            begin(root, job=name)


def test_abort_leaves_nothing(root: str) -> None:
    before = stored.paths(root)
    job, _ = data_sets.begun(root, {"a": b"1"})
    job.abort()
    job.abort()
    assert stored.paths(root) == before


def test_abort_after_the_commit_removes_nothing(root: str) -> None:
    job, record = data_sets.begun(root, {"a": b"1"})
    job.commit([record])
    job.abort()
    assert stored.files(root) == {"a": b"1"}


def test_second_commit_of_a_job_is_the_first(root: str) -> None:
    job, record = data_sets.begun(root, {"a": b"1"})
    assert (job.commit([record]), job.commit([record])) == (1, 1)
    assert Log(root).newest() == 1


def test_job_of_a_name_that_was_committed_is_refused(root: str) -> None:
    job, record = data_sets.begun(root, {"a": b"1"}, job="x")
    job.commit([record])
    with pytest.raises(FileExistsError):
        begin(root, job="x")


def test_commit_without_link_is_refused(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    job, record = data_sets.begun(root, {"a": b"1"})
    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(Refusal, match="no hard links"):
        job.commit([record])
    monkeypatch.undo()
    job.abort()
    assert stored.files(root) == {}


def test_a_link_with_a_lost_answer_counts(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS asks again, and is told that the file exists."""
    real = os.link

    def twice(source: str, target: str, **how: Any) -> None:
        real(source, target, **how)
        if target.endswith(".json"):
            real(source, target, **how)

    monkeypatch.setattr(os, "link", twice)
    assert data_sets.add(root, {"a": b"1"}) == 1
    assert stored.files(root) == {"a": b"1"}


def test_full_disk_at_any_call_leaves_the_data_set_as_it_was(root: str) -> None:
    data_sets.add(root, {"a": b"old"})
    for number in range(200):
        content, newest = stored.files(root), Log(root).newest()
        before = stored.paths(root)
        job, record = data_sets.begun(root, {"a": b"%d" % number})
        with pytest.MonkeyPatch.context() as patch:
            full = data_sets.NEED_ROOM
            data_sets.crash_after(patch, number, lambda: OSError(errno.ENOSPC, "full"), full)
            try:
                job.commit([record])
                break
            except OSError as error:
                assert error.errno == errno.ENOSPC
        if Log(root).newest() == newest:
            job.abort()
            more = stored.paths(root) ^ before
            assert more <= {f"_winkfs/{newest:020}.copy"}  # of a commit that was made durable late
            assert stored.files(root) == content
    else:
        raise AssertionError("the commit never came to its end")
    assert number > 3
    assert stored.files(root) == {"a": b"%d" % number}


# --- death between any two calls ---

KILLED = """
import os, sys, data_sets, winkfs
from winkfs.dataset.manifest import Log
from winkfs.dataset.transaction import begin
from winkfs.dataset.maintain import vacuum

root, number, before = sys.argv[1], 0, 0
while True:
    newest = Log(root).newest()
    job = begin(root)
    with winkfs.create(job.attempt("00000")) as c:
        c.put("n", b"%d" % number)
    record = job.seal(job.attempt("00000"))
    child = os.fork()
    if not child:
        class Patch:
            setattr = staticmethod(setattr)
        die = lambda: os._exit(9)
        data_sets.crash_after(Patch, number, die)
        try:
            job.commit([record])
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with winkfs.open(root) as d:
        found = d.read("n")
        assert winkfs.verify(root).problems == []
    published = Log(root).newest() == newest + 1
    assert found == (b"%d" % (number if published else before)), (number, found)
    assert published or status == 9
    if published:
        before = number
    elif number % 2:  # the driver lives, and tries again; else it is dead too
        assert job.commit([record]) == newest + 1
        before = number
    if status == 0:
        break
    number += 1
vacuum(root, older_than=0)
assert os.listdir(root + "/_pending") == []
print(number)
"""


@pytest.mark.slow
def test_death_between_any_two_calls_of_a_commit(root: str) -> None:
    data_sets.add(root, {"n": b"0"})
    assert int(run(KILLED, root)) > 6


# --- many at once ---

RACER = """
import sys, winkfs
from winkfs.dataset.transaction import begin
for i in range(int(sys.argv[3])):
    job = begin(sys.argv[1])
    with winkfs.create(job.attempt("00000")) as c:
        c.put(f"{sys.argv[2]}/{i}", b"x")
        c.put("last", f"{sys.argv[2]}/{i}".encode())
    print(job.commit([job.seal(job.attempt("00000"))]), flush=True)
"""


@pytest.mark.slow
def test_racing_committers_all_get_generations_of_their_own(root: str) -> None:
    each, racers = 6, 3
    running = [child(RACER, root, f"r{n}", str(each)) for n in range(racers)]
    outputs = [process.communicate(timeout=100)[0] for process in running]
    assert [process.returncode for process in running] == [0] * racers
    generations = [int(line) for out in outputs for line in out.split()]
    assert sorted(generations) == list(range(1, each * racers + 1))
    assert len(stored.files(root)) == each * racers + 1
    assert winkfs.verify(root).problems == []
    log = Log(root)
    times = [log.read(n).time_ns for n in range(each * racers + 1)]
    assert times == sorted(set(times))


def test_two_overwrites_of_one_generation_conflict(root: str) -> None:
    for first in ({}, {"a": b"1"}):
        if first:
            data_sets.add(root, first)
        one, ours = data_sets.begun(root, {"b": b"one"}, operation="overwrite")
        two, theirs = data_sets.begun(root, {"b": b"two"}, operation="overwrite")
        one.commit([ours])
        with pytest.raises(DatasetConflict, match="try again"):
            two.commit([theirs])
        assert stored.files(root) == {"b": b"one"}
        assert not Path(two.folder).exists()


# --- streams ---


def test_batch_of_a_query_is_published_once(root: str) -> None:
    for files, streams, generation in (
        ({"a": b"1"}, {"q": 3}, 1), ({"a": b"2"}, {"q": 3}, 1), ({"a": b"3"}, {"q": 2}, 1),
        ({"b": b"4"}, {"p": 3}, 2),
    ):  # fmt: skip
        job, record = data_sets.begun(root, files)
        assert job.commit([record], streams=streams) == generation
    assert stored.files(root) == {"a": b"1", "b": b"4"}
    assert len(list(Path(root).glob("2*"))) == 2  # folders of those that were not taken are gone
    assert os.listdir(f"{root}/_pending") == []
    assert dict(Log(root).latest().streams) == {"q": (3, 1), "p": (3, 2)}


def test_a_batch_with_a_vacuumed_manifest_is_still_known(root: str) -> None:
    first, record = data_sets.begun(root, {"a": b"1"})
    first.commit([record], streams={"q": 3})
    for n in range(3):
        data_sets.add(root, {"a": b"%d" % n}, operation="overwrite")
    vacuum(root, older_than=0)
    Log(root).store.remove(1)
    again, record = data_sets.begun(root, {"a": b"2"})
    assert again.commit([record], streams={"q": 3}) == 1
    assert stored.files(root) == {"a": b"2"}


def test_batch_is_published_once_by_two_at_a_time(root: str) -> None:
    """The other one is published after we looked."""
    ours, mine = data_sets.begun(root, {"a": b"ours"})
    theirs, other = data_sets.begun(root, {"a": b"theirs"})
    results = list[int]()

    def late() -> None:
        results.append(theirs.commit([other], streams={"q": 0}))

    with disk_calls(once("link", f"{1:020}.json", late)):
        assert ours.commit([mine], streams={"q": 0}) == 1
    assert results == [1]
    assert stored.files(root) == {"a": b"theirs"}
    assert not Path(ours.folder).exists()


# --- manifests ---


@pytest.mark.usefixtures("checkpoints")
def test_checkpoints_agree_with_the_manifests_between(root: str) -> None:
    for number in range(10):
        data_sets.add(root, {f"n{number}": b"1"})
    log = Log(root)
    assert [n for n in range(11) if log.read(n).checkpoint] == [0, 4, 8]
    for number in range(11):
        assert len(Log(root).state(number).shards) == number
    Log(root).store.remove(2)  # before a checkpoint: needed by none after it
    assert len(stored.files(root)) == 10
    with pytest.raises(StalePlan):
        Log(root).state(3)


def test_manifest_is_json_that_a_person_can_read(root: str) -> None:
    data_sets.add(root, {b"caf\xe9": b"1"})
    values = data_sets.manifest(root, 1)
    assert values["format"] == "winkfs-dataset"
    assert values["added"][0]["first"] == "caf\udce9"


def test_manifest_of_a_later_version_is_refused(root: str) -> None:
    data_sets.add(root, {"a": b"1"})
    data_sets.forge(root, 1, lambda values: values.update(version=3))
    with pytest.raises(ValueError, match="update winkfs"):
        winkfs.open(root)


def test_fields_of_records_of_a_later_version_are_written_back(root: str) -> None:
    data_sets.add(root, {"a": b"1"})

    def extend(values: Any) -> None:
        for record in (*values["added"], *values["checkpoint"]["shards"]):
            record["later"] = ["of", "later"]

    data_sets.forge(root, 1, extend)
    data_sets.add(root, {"b": b"2"})
    values = data_sets.manifest(root, 2)
    assert [shard.get("later") for shard in values["checkpoint"]["shards"]] == [
        ["of", "later"],
        None,
    ]
    assert winkfs.verify(root).problems == []


def test_data_set_without_manifests_is_not_an_empty_one(root: str) -> None:
    Log(root).store.remove(0)
    for open in (winkfs.open, lambda root: winkfs.open(root, "a"), create):
        with pytest.raises(ValueError, match="lost its manifests"):
            open(root)


def test_readers_never_see_half_a_new_data_set(tmp_path: Path) -> None:
    root, seen = tmp_path / "ds", []
    with disk_calls(once("link", f"{0:020}.json", lambda: seen.append(is_dataset(root)))):
        create(root)
    assert seen == [False]
    assert stored.names(root) == []


def test_two_make_a_data_set_at_the_same_time(tmp_path: Path) -> None:
    root = tmp_path / "ds"

    def late() -> None:
        data_sets.add(create(root).root, {"a": b"of the other"})

    with disk_calls(once("rename", "/_winkfs", late)):
        assert create(root).newest() == 1
    assert stored.read(root, "a") == b"of the other"
    assert not list((root / "_pending").iterdir())


def test_a_creation_broken_off_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ds"
    with monkeypatch.context() as patch:
        patch.delattr(os, "replace")
        with pytest.raises(AttributeError):
            create(root)
    assert not is_dataset(root)
    assert create(root).newest() == 0


# --- the past ---


def test_as_of_takes_a_generation_or_a_time(root: str) -> None:
    edges = []
    for number in range(3):
        data_sets.add(root, {"n": b"%d" % number})
        edges.append(time.time())
        time.sleep(0.02)
    when = datetime.fromtimestamp(edges[0], UTC)
    for as_of in (1, "1", edges[0], when, when.isoformat(), datetime.fromtimestamp(edges[0])):
        assert stored.files(root, as_of=as_of) == {"n": b"0"}
    assert stored.files(root, as_of=time.time() + 100) == {"n": b"2"}
    assert stored.files(root, as_of=0) == {}
    for wrong, kind, what in (
        (7, FileNotFoundError, "newest is 3"), ("1999-01-01", FileNotFoundError, "nothing was"),
        ("yesterday", ValueError, "no generation and no time"),
    ):  # fmt: skip
        with pytest.raises(kind, match=what):
            winkfs.open(root, as_of=wrong)


def test_as_of_of_a_container_is_refused(tmp_path: Path) -> None:
    winkfs.create(tmp_path / "c").close()
    for call in (winkfs.open, snapshot):
        with pytest.raises(ValueError, match="data set"):
            call(tmp_path / "c", as_of=1)  # type: ignore[operator]


# --- what a plan is bound to ---


def test_shard_that_is_another_is_a_stale_plan(root: str) -> None:
    data_sets.add(root, {"a": b"1"})
    (shard,) = snapshot(root).shards
    stored.change(shard.base, {"b": b"not by a commit"})
    for action in (shard.open, lambda: stored.files(root)):
        with pytest.raises(StalePlan, match="another size"):
            action()
    assert any("another size" in line for line in winkfs.verify(root).problems)
    os.unlink(shard.base + ".data")
    winkfs.create(shard.base).close()
    with pytest.raises(StalePlan, match="another container"):
        shard.open()
    os.unlink(shard.base + ".data")
    with pytest.raises(StalePlan, match="gone"):
        shard.open()


def test_snapshot_of_a_container_lets_it_grow_but_not_change(tmp_path: Path) -> None:
    base = tmp_path / "c"
    with winkfs.create(base) as container:
        container.put("a", b"1")
        container.sync()
        taken = pickle.loads(pickle.dumps(snapshot(base)))
        (shard,) = taken.shards
        size = shard.record.size
        container.put("b", b"2")
    assert (taken.generation, shard.grows, len(shard.hidden)) == (0, True, 0)
    shard.open().abandon()
    assert snapshot(base).shards[0].record.size > size
    for path in tmp_path.iterdir():
        path.unlink()
    winkfs.create(base).close()
    with pytest.raises(StalePlan):
        shard.open()


def test_snapshot_opens_no_shard(root: str) -> None:
    data_sets.add(root, {"a": b"1"}, {"a": b"2"})
    stored.files(root)
    with disk_calls() as calls:
        assert snapshot(root).files == 1
    assert calls
    assert not [call for call in calls if call.path.endswith((".data", ".idx", ".cat"))]


# --- many shards ---


def test_a_commit_decodes_no_manifest_again(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        data_sets.add(root, {f"{number}": b"x"})
    with winkfs.open(root, "a") as handle:
        handle.put("a", b"1")
        handle.sync()
        monkeypatch.setattr(Manifest, "decode", None)
        for name in ("b", "c"):
            handle.put(name, b"2")
            handle.sync()
        monkeypatch.undo()
        data_sets.add(root, {"b": b"of another process"})
        handle.put("c", b"3")
        handle.sync()
    assert stored.files(root).keys() == {*"01234abc"}
    assert (stored.files(root)["b"], stored.files(root)["c"]) == (b"of another process", b"3")


def test_the_more_shards_the_fewer_checkpoints(
    root: str, checkpoints: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [interval(n) for n in (0, 8191, 8192, 20_000)] == [4, 4, 8, 16]
    monkeypatch.setattr("winkfs.dataset.manifest.INTERVAL_RECORDS", 4)
    for number in range(20):
        data_sets.add(root, {f"{number}": b"x"})
    whole = [number for number, made in Log(root).history() if isinstance(made, Manifest)
             and made.checkpoint is not None]  # fmt: skip
    assert whole == [16, 8, 4, 0]  # of 4 shards each 4th, of 8 each 8th, of 16 each 16th
    assert stored.files(root).keys() == {f"{number}" for number in range(20)}
    assert stored.files(root, as_of=11).keys() == {f"{number}" for number in range(11)}


def test_states_follow_ranks_whatever_the_order_of_commits(root: str) -> None:
    job, record = data_sets.begun(root, {"a": b"old", "b": b"old"}, operation="overwrite")
    assert job.commit([record]) == 1
    job, record = data_sets.begun(root, {"a": b"all"}, operation="overwrite")
    state = Log(root).state(1)
    assert job.commit([record]) == 2
    manifest = Log(root).read(2)
    assert applied(state, []) is state
    assert applied(state, [manifest]).shards == Log(root).latest().shards
    late = replace(manifest, removed=(), added=(replace(record, rank=(0, 0)),))
    assert [r.rank for r in applied(state, [late]).shards] == [(0, 0), state.shards[0].rank]
    with pytest.raises(FormatError, match="does not follow"):
        applied(state, [manifest, manifest])
    with pytest.raises(FormatError, match="which is not there"):
        applied(replace(state, shards=()), [manifest])
