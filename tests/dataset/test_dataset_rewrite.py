"""Compact, rebalance, vacuum: the same files in other shards, and what may go."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import data_sets
import pytest
import stored
from data_sets import checkpoints as checkpoints
from data_sets import root as root
from flips import flip
from seam import Call, disk_calls, once
from trees import small_disk as small_disk

import winkfs
from winkformats.errors import CorruptError
from winkfs.cli._common import explain
from winkfs.dataset import compaction, manifest, workers
from winkfs.dataset.compaction import Group, compact, compact_recent, rebalance, rewrite
from winkfs.dataset.maintain import adopt, vacuum
from winkfs.dataset.manifest import Log
from winkfs.dataset.snapshot import snapshot
from winkfs.dataset.transaction import begin
from winkfs.errors import DatasetConflict, StalePlan

pytestmark = pytest.mark.in_memory


def seen(root: str) -> dict[str, Any]:
    """All that can be seen of all files, but for the FILEID."""
    found = {}
    with winkfs.open(root) as opened:
        for entry in opened.scan():
            stat = opened.stat(entry.name)
            attributes = (stat.size, stat.mtime_ns, stat.ftype, stat.mode, stat.uid, stat.gid)
            found[entry.name] = (*attributes, opened.getxattrs(entry.name), entry.read())
    return found


def fill_all_kinds(container: winkfs.Container) -> None:
    container.put("plain", b"p", mtime_ns=1_234_567_890_123_456_789)
    container.put("empty", b"", mtime=1)
    container.put("mode", b"m", mode=0o4751, uid=12, gid=34)
    container.put("exec", b"#!", ftype=winkfs.FileType.EXEC)
    container.put("odd type", b"x", ftype=122)
    container.mkdir("dir")
    container.symlink("plain", "link")
    container.put("large", bytes(range(256)) * 12_000)
    container.put("xattrs", b"x" * 100, mtime=77)
    container.setxattrs("xattrs", {b"user.a": b"1" * 300, b"user.b": b""})
    container.put("grown", b"1")
    container.append("grown", b"2")
    container.put("hole", b"1")
    container.truncate("hole", 3_000_000)
    container.put(b"\xff\n", b"no utf-8")


@pytest.mark.parametrize("rewritten", [
    lambda root: compact(root), lambda root: rebalance(root, shards=3),
])  # fmt: skip
def test_all_kinds_of_files_stay_what_they_are(root: str, rewritten: Any) -> None:
    data_sets.commit(root, [fill_all_kinds])
    data_sets.add(root, {"other": b"1", "plain": b"new"})
    before = seen(root)
    assert len(before) == 13
    assert rewritten(root).removed == 2
    assert seen(root) == before
    assert winkfs.verify(root).problems == []


@pytest.mark.slow
def test_append_only_shards_stay_append_only_and_sorted(root: str) -> None:
    for start in (0, 1, 2):
        rows = ((f"{n:03}", b"x" * 50, n) for n in range(start, 300, 3))
        data_sets.put(root, rows, ao=True)
    before = seen(root)
    assert rebalance(root, shards=3).added == 3
    assert seen(root) == before
    spans = [(r.mtime_min, r.mtime_max) for r in Log(root).latest().shards]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))  # type: ignore[operator]
    data_sets.add(root, {"plain": b"1"})
    assert compact(root).removed == 3  # a plain one alone saves nothing
    assert [record.ao for record in Log(root).latest().shards] == [True, False]
    before["plain"] = seen(root)["plain"]
    assert seen(root) == before
    with winkfs.open(root) as opened:
        assert {e.name for e in opened.scan(10, 13)} == {"010", "011", "012"}


def test_rebalanced_shards_are_even(root: str) -> None:
    for n in range(5):
        data_sets.add(root, {f"{n}/{i}": b"x" * 1000 for i in range(20 + 60 * (n % 2))})
    before = seen(root)
    assert rebalance(root, shards=4).added == 4
    sizes = [record.size for record in Log(root).latest().shards]
    assert max(sizes) < 1.2 * min(sizes)
    assert seen(root) == before


@pytest.mark.slow
def test_compact_leaves_good_shards_alone(root: str) -> None:
    data_sets.add(root, {f"a{n}": b"x" * 1000 for n in range(30)})
    data_sets.add(root, {f"b{n}": b"x" * 1000 for n in range(30)})
    assert compact(root, shard_size=40_000).removed == 0
    assert compact(root, shard_size=1 << 30).removed == 2
    assert compact(root, shard_size=1 << 30).removed == 0
    data_sets.add(root, {f"a{n}": b"y" * 1000 for n in range(10)})
    assert compact(root, shard_size=10_000).removed == 0  # a sixth is hidden
    data_sets.add(root, {f"b{n}": b"y" * 1000 for n in range(10)})
    young = [record.path for record in Log(root).latest().shards[1:]]
    assert compact(root, shard_size=10_000).removed == 1
    assert [record.path for record in Log(root).latest().shards[-2:]] == young
    assert len(seen(root)) == 60


def test_compacted_older_shard_does_not_win_over_a_younger_one(root: str) -> None:
    """1 and 3 become one, 2 stays: what 3 replaced of 2 stays replaced, what 2 did of 1 too."""
    data_sets.add(root, {"a": b"1", "b": b"1", "c": b"1"})
    data_sets.add(root, {"a": b"2", "b": b"2", "d": b"2", "e": b"2"})
    stored.change(root, {"b": b"3", "d": None})
    data_sets.add(root, {"e": b"4"})
    before = seen(root)
    state = snapshot(root)
    job = begin(root, "compact")
    records = rewrite(job, state, Group((0, 2), 1 << 20, "00000"))
    assert [record.tombstones for record in records] == [1]
    job.commit(records, removed=[state.shards[n].record.path for n in (0, 2)])
    assert seen(root) == before
    assert {name: values[-1] for name, values in before.items()} == {
        "a": b"2", "b": b"3", "c": b"1", "e": b"4",
    }  # fmt: skip


def test_deletes_go_when_nothing_is_left_for_them(root: str) -> None:
    data_sets.add(root, {"a": b"1", "b": b"1"})
    data_sets.delete(root, "a")
    assert compact(root).added == 1
    (record,) = Log(root).latest().shards
    assert (record.tombstones, record.files) == (0, 1)
    data_sets.delete(root, "b")
    done = compact(root)
    assert (done.removed, done.added, seen(root)) == (2, 0, {})
    assert Log(root).latest().shards == ()
    assert rebalance(root).removed == 0


def test_compact_retries_after_a_concurrent_commit(root: str) -> None:
    data_sets.add(root, {"a": b"1"}, {"b": b"1"})

    def overwrite() -> None:
        data_sets.add(root, {"a": b"0"}, {"b": b"o"}, operation="overwrite")

    def always(call: Call) -> None:
        if call.verb == "link" and call.path.endswith(".json"):
            overwrite()

    with disk_calls(once("link", ".json", overwrite)):
        assert compact(root).removed == 2
    assert seen(root)["b"][-1] == b"o"
    data_sets.add(root, {"c": b"1"})
    with disk_calls(always), pytest.raises(DatasetConflict):
        compact(root)
    assert os.listdir(f"{root}/_pending") == []
    assert winkfs.verify(root).notes == []


def test_damaged_file_stops_a_rewrite_and_nothing_is_lost(root: str) -> None:
    data_sets.add(root, {f"{n}": b"x" * 5000 for n in range(50)}, {"y": b"1"})
    path = Path(f"{root}/{Log(root).latest().shards[0].path}.data")
    flip(path, 60_000)
    before = Log(root).newest()
    with pytest.raises(ValueError, match="at byte"):
        compact(root)
    assert Log(root).newest() == before
    assert os.listdir(f"{root}/_pending") == []
    with winkfs.open(root) as opened:
        good = 0
        for name in opened.names():
            with contextlib.suppress(ValueError):
                good += len(opened.read(name)) > 0
    assert good == 50  # of 51: the damage costs one file
    assert len([line for line in winkfs.verify(root).problems if "byte" in line]) >= 1


COMPACT = """
import sys, time
from winkfs.dataset import compaction as rewrite
real = rewrite.ShardWriter.finish
def slow(self):
    print("here", flush=True)
    time.sleep(60)
rewrite.ShardWriter.finish = slow
from winkfs.cli import main
sys.exit(main(["dataset", "compact", *sys.argv[1:]]))
"""
TWO = ["--jobs", "2", "--shard-size", "45000", "--all"]


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signal_in_a_compaction_leaves_the_data_set_as_it_was(root: str, number: int) -> None:
    before = fill(root)
    process = subprocess.Popen(
        [sys.executable, "-c", COMPACT, root, *TWO], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    process.send_signal(number)
    _, answer = process.communicate(timeout=30)  # of its children, too: they have its stderr
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in answer
    assert seen(root) == before
    if number != signal.SIGKILL:
        assert os.listdir(f"{root}/_pending") == []
    vacuum(root, older_than=0)
    assert os.listdir(f"{root}/_pending") == []
    assert compact(root).removed == 6


# --- in several processes, and bit by bit ---


def fill(root: str, shards: int = 6) -> dict[str, Any]:
    """Shards of some 20 kB, in which names are replaced."""
    for number in range(shards):
        files = {f"{number}/{i}": bytes([number]) * 2000 for i in range(9)}
        data_sets.add(root, files | {"same": b"%d" % number})
    return seen(root)


def test_several_processes_make_the_same_shards(root: str) -> None:
    before = fill(root)
    with winkfs.open(root, "a") as handle:
        handle.put("new", b"not synced before")
        done = handle.compact(shard_size=45_000, everything=True, jobs=3)
        assert handle.read("new") == b"not synced before"
        assert handle.generation == done.generation == 8
    after = seen(root)
    assert after.keys() - before.keys() == {"new"}
    assert {name: after[name] for name in before} == before
    shards = [(r.files, r.rank) for r in Log(root).latest().shards]
    assert done.removed >= 6 and done.added <= len(shards)
    assert len(shards) > 1
    assert os.listdir(f"{root}/_pending") == []
    with pytest.raises(ValueError, match="jobs is at least 1"):
        compact(root, jobs=0)


@pytest.mark.parametrize("fault", ["killed", "damaged"])
def test_a_process_that_fails_changes_nothing(
    root: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, made = fill(root), list[Any]()
    start = workers.started

    def started() -> Any:
        made.append(start())
        if fault == "killed":
            made[-1].kill()
        return made[-1]

    monkeypatch.setattr(workers, "started", started)
    state = Log(root).latest()
    if fault == "damaged":
        flip(f"{root}/{state.shards[2].path}.data", state.shards[2].size // 2)
    with pytest.raises(ChildProcessError if fault == "killed" else CorruptError) as caught:
        compact(root, shard_size=45_000, everything=True, jobs=2)
    assert fault != "killed" or "was killed (signal 9)" in explain(caught.value)
    assert [process.poll() is not None for process in made] == [True]
    assert Log(root).latest() == state
    assert os.listdir(f"{root}/_pending") == []
    if fault == "killed":
        assert seen(root) == before


def test_a_full_disk_ends_all_processes_and_leaves_nothing(small_disk: Path) -> None:
    root = str(small_disk / "d")
    manifest.create(root)
    before, state = fill(root), Log(root).latest()
    room = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * (room.f_bavail * room.f_frsize - 65_536))
    with pytest.raises(OSError, match="No space left"):
        compact(root, shard_size=45_000, everything=True, jobs=2)
    assert os.listdir(f"{root}/_pending") == []
    assert (seen(root), Log(root).latest()) == (before, state)
    (small_disk / "ballast").unlink()
    assert compact(root, shard_size=45_000, everything=True, jobs=2).removed == 5
    assert seen(root) == before


def test_a_stream_keeps_the_number_of_small_shards_bounded(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, most = 0, 0
    for number in range(20):
        data_sets.add(root, {f"{number}": b"x" * 5000, "same": b"%d" % number})
        done = compact_recent(root, 4, f"stream-q-compact-{number}", 1)
        written += done.after if done else 0
        most = max(most, len(Log(root).latest().shards))
    assert most <= 4 + 4 // 2 + 1
    assert written < 20 * 5000 * 4, "a shard is written again and again"
    found = stored.files(root)
    assert found == {f"{i}": b"x" * 5000 for i in range(20)} | {"same": b"19"}
    # more than is rewritten at a time: the rest is left to the next commits
    monkeypatch.setattr(compaction, "RECENT_BYTES", 60_000)
    for number in range(20, 32):
        data_sets.add(root, {f"{number}": b"x" * 9000})
        compact_recent(root, 4, f"stream-q-compact-{number}", 1)
    assert len(Log(root).latest().shards) < 12
    assert stored.files(root) == found | {f"{i}": b"x" * 9000 for i in range(20, 32)}


# --- vacuum ---


def shards_there(root: str) -> int:
    return len(list(Path(root).glob("[!_]*/*.data")))


def test_vacuum_keeps_what_is_young(root: str) -> None:
    for n in range(4):
        data_sets.add(root, {"a": b"%d" % n}, operation="overwrite")
    assert vacuum(root).shards == []
    assert vacuum(root, keep=1, older_than=3600).oldest == 0
    assert vacuum(root, keep=3, older_than=0, dry_run=True).shards != []
    assert shards_there(root) == 4
    done = vacuum(root, keep=3, older_than=0)
    assert (done.oldest, len(done.shards), shards_there(root)) == (2, 1, 3)
    assert done.bytes > 0
    assert vacuum(root, keep=3, older_than=0).oldest == 3  # its own generation counts
    with pytest.raises(StalePlan, match="oldest generation kept is 3"):
        winkfs.open(root, as_of=2)
    assert stored.read(root, "a", as_of=3) == b"2"


def test_vacuum_with_nothing_to_remove_makes_no_generation(root: str) -> None:
    data_sets.add(root, {"a": b"1"})
    data_sets.add(root, {"a": b"2"}, operation="overwrite")
    assert vacuum(root, older_than=0).oldest == 2
    newest = Log(root).newest()
    for _ in range(2):
        assert vacuum(root, older_than=0).oldest == 2
    assert Log(root).newest() == newest


@pytest.mark.slow
def test_vacuum_keeps_generations_that_were_newest_in_its_span(root: str) -> None:
    data_sets.add(root, {"a": b"1"})
    time.sleep(0.3)
    data_sets.add(root, {"a": b"2"}, operation="overwrite")
    assert vacuum(root, older_than=0.2).shards == []
    assert len(vacuum(root, older_than=0).shards) == 1


@pytest.mark.usefixtures("checkpoints")
def test_vacuum_removes_unneeded_manifests(root: str) -> None:
    for n in range(10):
        data_sets.add(root, {f"{n}": b"1"})
    done = vacuum(root, keep=2, older_than=0)
    assert done.manifests == list(range(8))
    assert sorted(Log(root).store.numbers()) == [8, 9, 10, 11]
    assert len(seen(root)) == 10
    assert winkfs.verify(root).problems == []


def test_an_open_reader_outlives_a_vacuum_and_a_late_one_fails(root: str) -> None:
    data_sets.add(root, {"a": b"1"})
    with winkfs.open(root) as early, winkfs.open(root) as late:
        assert early.read("a") == b"1"
        data_sets.add(root, {"a": b"2"}, operation="overwrite")
        vacuum(root, older_than=0)
        assert early.read("a") == b"1"
        with pytest.raises(StalePlan, match="gone"):
            late.read("a")
        assert late.refresh()
        assert late.read("a") == b"2"


def test_vacuum_leaves_alone_what_is_not_of_a_job(root: str) -> None:
    mine = Path(root, "mine")
    mine.mkdir()
    stored.make(mine / "corpus", {"a": b"1"})
    Path(root, "notes.txt").write_text("mine")
    data_sets.add(root, {"a": b"1"})
    vacuum(root, older_than=0)
    assert Path(mine, "corpus.data").exists()
    assert Path(root, "notes.txt").exists()


def test_running_job_is_no_leftover_before_its_time(root: str) -> None:
    job, record = data_sets.begun(root, {"a": b"1"})
    assert vacuum(root, older_than=60).leftovers == []
    assert len(winkfs.verify(root).notes) == 1
    assert job.commit([record]) == 1
    dead = begin(root)
    assert vacuum(root, older_than=0).leftovers == [f"_pending/{dead.job}"]


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"older_than": -1}])
def test_vacuum_with_wrong_limits(root: str, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        vacuum(root, **wrong)  # type: ignore[arg-type]


# --- dead bytes ---


def overwritten(root: str, tmp_path: Path, *, times: int = 4, keep: int = 0) -> None:
    """Add a container of which all but one of `times` states are dead, beside `keep` live files."""
    with winkfs.create(tmp_path / "worn") as container:
        container.put_many((f"kept{n}", b"x" * 10_000) for n in range(keep))
        for time in range(times):
            container.put_many((f"{n}", b"%d" % time * 10_000) for n in range(30))
            container.sync()
    adopt(root, [tmp_path / "worn"])


def test_compact_rewrites_a_shard_that_is_mostly_dead(root: str, tmp_path: Path) -> None:
    overwritten(root, tmp_path)
    before = seen(root)
    would = compact(root, dry_run=True)
    assert Log(root).newest() == 1
    done = compact(root)
    assert (done.generation, done.removed, done.added) == (2, 1, 1)
    assert (would.removed, would.added, would.before) == (1, 1, done.before)
    assert done.after * 0.9 < would.after < done.after * 1.1
    assert done.after < done.before / 3
    assert seen(root) == before
    assert compact(root, everything=True).removed == 0
    assert winkfs.verify(root).problems == []


def test_shard_with_little_that_is_dead_is_left_alone_or_not(root: str, tmp_path: Path) -> None:
    overwritten(root, tmp_path, times=2, keep=120)  # 30 of 180 files
    assert compact(root).removed == 0
    assert compact(root, dry_run=True).removed == 0
    done = compact(root, everything=True)
    assert (done.removed, done.after < done.before) == (1, True)
    assert compact(root, everything=True).removed == 0


def test_long_names_are_no_dead_bytes(root: str, tmp_path: Path) -> None:
    """What a superblock tells of the size of names is nothing."""
    base = stored.make(tmp_path / "c", {f"{n}" + "x" * 500: b"1" for n in range(100)})
    stored.change(base, {"7" + "x" * 500: None})
    adopt(root, [base])
    assert compact(root).removed == 0


def test_dead_and_hidden_count_together(root: str, tmp_path: Path) -> None:
    overwritten(root, tmp_path, times=2, keep=120)
    data_sets.add(root, {f"kept{n}": b"new" for n in range(20)})
    assert compact(root, shard_size=1 << 20).removed == 1


def test_tombstones_that_are_needed_are_not_dead(root: str, tmp_path: Path) -> None:
    data_sets.add(root, {f"{n}": b"x" * 5000 for n in range(60)})
    stored.change(root, {"new": b"1"} | {f"{n}": None for n in range(10)})
    big = snapshot(root).shards[0].record.size
    assert compact(root, shard_size=big).removed == 0
    assert len(seen(root)) == 51


def test_shard_that_is_gone_stops_a_compaction(root: str, tmp_path: Path) -> None:
    overwritten(root, tmp_path)
    data_sets.add(root, {"a": b"1"})
    shard = snapshot(root).shards[0]
    Path(shard.base + ".data").unlink()
    with pytest.raises(StalePlan, match="gone"):
        compact(root)
    assert os.listdir(f"{root}/_pending") == []
