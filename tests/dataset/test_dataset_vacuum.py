"""Vacuum beside commits and beside another vacuum; what it reads; what damage makes it leave."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import data_sets
import pytest
import stored
from container_checks import child
from data_sets import checkpoints as checkpoints
from data_sets import root as root
from seam import disk_calls, once, once_after

import winkfs
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.snapshot import snapshot
from winkfs.dataset.transaction import begin

pytestmark = [pytest.mark.slow, pytest.mark.in_memory]


def test_temporary_file_of_a_commit_that_ends_meanwhile(root: str) -> None:
    data_sets.add(root, {"a": b"1"})
    temporary = Path(f"{root}/_winkfs/.deadbeefdeadbeef.tmp")
    temporary.write_bytes(b"")
    ended: list[None] = []
    end = once_after("list", "/_winkfs", lambda: ended.append(temporary.unlink()))
    with disk_calls(end):
        assert vacuum(root, older_than=0).shards == []
    assert ended


@pytest.mark.usefixtures("checkpoints")
def test_another_vacuum_removes_manifests_during_a_read(root: str) -> None:
    for n in range(12):
        data_sets.add(root, {"a": b"%d" % n}, operation="overwrite")
    others = []
    late = once("open", ".json", lambda: others.append(vacuum(root, older_than=0)), nth=8)
    with disk_calls(late):
        done = vacuum(root, older_than=0)
    assert len(others) == 1
    assert done.shards == []
    assert stored.read(root, "a") == b"11"
    assert winkfs.verify(root).problems == []


def test_job_that_is_committed_while_vacuum_looks_stays(root: str) -> None:
    job, record = data_sets.begun(root, {"a": b"1"})
    # seen, and committed before anything else is read
    with disk_calls(once_after("list", "/_pending", lambda: job.commit([record]))):
        vacuum(root, older_than=0)
    assert stored.read(root, "a") == b"1"


def test_vacuum_with_little_to_do_reads_few_manifests(root: str) -> None:
    for n in range(40):
        data_sets.add(root, {f"{n}": b"1"})
    with disk_calls() as calls:
        vacuum(root)
    read = [call for call in calls if call.verb == "open" and call.path.endswith(".json")]
    assert 0 < len(read) < 15  # of 41


def test_what_is_in_pending_goes_whatever_it_is(root: str) -> None:
    job = begin(root)
    Path(job.pending, "deep", "deeper").mkdir(parents=True)
    Path(job.pending, "deep", "deeper", "x").write_bytes(b"1" * 1000)
    Path(root, "_pending", "file").write_bytes(b"2" * 100)
    would = vacuum(root, older_than=0, dry_run=True)
    assert would.bytes == 1100
    assert vacuum(root, older_than=0) == would
    assert os.listdir(f"{root}/_pending") == []


WRITER = """
import sys, winkfs
for i in range(15):
    with winkfs.open(sys.argv[1], "a") as d:
        d.put("n", b"x")
        d.put(f"{sys.argv[2]}/{i}", b"x")
"""
VACUUM = """
import sys, time
from winkfs.dataset.compaction import compact
from winkfs.dataset.maintain import vacuum
from winkfs.errors import DatasetConflict
end = time.monotonic() + 6
while time.monotonic() < end:
    vacuum(sys.argv[1], keep=2, older_than=2)
    try:
        compact(sys.argv[1])
    except DatasetConflict:
        pass
"""


@pytest.mark.long
def test_vacuums_beside_writers_lose_nothing_and_do_not_fail(root: str) -> None:
    programs = ((WRITER, "a"), (WRITER, "b"), (VACUUM, "c"), (VACUUM, "d"))
    running = [child(program, root, name) for program, name in programs]
    for process in running:
        process.communicate(timeout=120)
    assert [process.returncode for process in running] == [0] * 4
    assert len(stored.names(root)) == 31
    assert winkfs.verify(root).problems == []
    time.sleep(1)
    vacuum(root, older_than=0)
    assert winkfs.verify(root).notes == []


@pytest.mark.parametrize("look", [1, 2])
def test_vacuum_goes_on_where_another_removes_a_folder_first(root: str, look: int) -> None:
    data_sets.add(root, {"a": b"1"})
    (old,) = snapshot(root).shards
    data_sets.add(root, {"a": b"2"}, operation="overwrite")
    job = old.record.path.partition("/")[0]
    removed: list[None] = []

    def remove() -> None:
        removed.append(shutil.rmtree(Path(root, job)))

    with disk_calls(once_after("list", f"/{job}", remove, nth=look)):
        assert vacuum(root, older_than=0).shards == [old.record.path]
    assert removed
    assert winkfs.verify(root).problems == []


def test_a_clock_in_the_future_keeps_generations_with_a_note(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_sets.add(root, {"a": b"1"})
    with monkeypatch.context() as patch:
        real = time.time_ns
        patch.setattr(time, "time_ns", lambda: real() + 86400 * 10**9)
        data_sets.add(root, {"a": b"2"}, operation="overwrite")
    done = vacuum(root, older_than=0)
    assert done.shards == []
    assert "dated in the future" in done.notes[0]
