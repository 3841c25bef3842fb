"""Symbolic links in a data set: nothing behind one is removed, by nobody."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import data_sets
import pytest
from data_sets import root as root

from winkfs.dataset.jobfolder import JOB_MARK
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.manifest import Log
from winkfs.dataset.transaction import begin
from winkfs.errors import Refusal


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """Old files that belong to no data set, one of them in a folder: a test must leave them."""
    home = tmp_path / "victim"
    (home / "sub").mkdir(parents=True)
    (home / "named").mkdir()  # as a job
    for name in (
        "doc1", "x.data", "x.idx", JOB_MARK, "sub/deep.data", ".a.tmp", f"named/{JOB_MARK}",
        *(f"{0:020}{suffix}" for suffix in (".json", ".copy", ".hidden")),
        *(f"00000-0{suffix}" for suffix in (".data", ".idx", ".cat")),
    ):  # fmt: skip
        (home / name).write_bytes(b"dear")
    for path in [*home.rglob("*"), home]:
        os.utime(path, (1, 1))
    before = sorted(home.rglob("*"))
    yield home
    assert sorted(home.rglob("*")) == before


def test_vacuum_does_not_follow_a_link_in_pending(root: str, victim: Path) -> None:
    link = Path(root, "_pending", "evil")
    link.symlink_to(victim)
    os.utime(link, (1, 1), follow_symlinks=False)
    (link.parent / "file").symlink_to(victim / "doc1")
    assert vacuum(root, older_than=0).leftovers == ["_pending/evil", "_pending/file"]
    assert os.listdir(link.parent) == []  # the links themselves are gone


def test_vacuum_does_not_follow_a_link_below_a_job(root: str, victim: Path) -> None:
    job = begin(root)
    Path(job.pending, "evil").symlink_to(victim)
    Path(job.pending, "deep").mkdir()
    Path(job.pending, "deep", "evil.data").symlink_to(victim / "x.data")
    Path(job.pending, "deep", "evil").symlink_to(victim)
    assert vacuum(root, older_than=0).leftovers == [f"_pending/{job.job}"]
    assert not Path(job.pending).exists()


def test_vacuum_reports_a_link_at_a_job_s_path_and_leaves_it(root: str, victim: Path) -> None:
    Path(root, "job9").symlink_to(victim)
    done = vacuum(root, older_than=0)
    assert (done.leftovers, done.shards) == ([], [])
    assert len(done.notes) == 1
    assert "job9: a symbolic link, not followed" in done.notes[0]
    assert Path(root, "job9").is_symlink()


def test_vacuum_does_not_follow_a_link_at_an_old_shard_s_path(root: str, victim: Path) -> None:
    data_sets.add(root, {"a": b"1"})
    (record,) = Log(root).latest().shards
    job, name = record.path.split("/")
    data_sets.add(root, {"a": b"2"}, operation="overwrite")
    for path in Path(root, job).glob(f"{name}.*"):
        (victim / path.name).write_bytes(b"dear")
    Path(root, job).rename(victim.parent / "elsewhere")
    Path(root, job).symlink_to(victim)
    done = vacuum(root, older_than=0)
    assert done.shards == [record.path]
    assert len(done.notes) == 1


def test_vacuum_removes_links_and_not_their_targets(root: str, victim: Path) -> None:
    data_sets.add(root, {"a": b"1"})
    (record,) = Log(root).latest().shards
    data_sets.add(root, {"a": b"2"}, operation="overwrite")
    Path(f"{root}/{record.path}.cat").unlink()
    Path(f"{root}/{record.path}.cat").symlink_to(victim / "doc1")
    Path(f"{root}/{record.path}.time").symlink_to(victim)
    vacuum(root, older_than=0)
    assert not Path(root, record.path).parent.exists()


def test_vacuum_does_not_remove_manifests_behind_a_link(root: str, victim: Path) -> None:
    manifests = Path(root, "_winkfs")
    for path in manifests.iterdir():
        (victim / path.name).write_bytes(path.read_bytes())
    manifests.rename(victim.parent / "manifests")
    manifests.symlink_to(victim)
    with pytest.raises(Refusal, match="_winkfs is a symbolic link"):
        vacuum(root, older_than=0)


def test_pending_that_is_a_link_is_not_followed(root: str, victim: Path) -> None:
    job = begin(root, job="named")
    Path(root, "_pending").rename(victim.parent / "pending")
    Path(root, "_pending").symlink_to(victim)
    assert vacuum(root, older_than=0).leftovers == []
    job.abort()


def test_abort_and_commit_do_not_follow_links(root: str, victim: Path) -> None:
    aborted, committed = begin(root), begin(root)
    for job in (aborted, committed):
        Path(job.pending, "evil").symlink_to(victim)
        Path(job.pending, "sub").mkdir()
        Path(job.pending, "sub", "evil").symlink_to(victim)
    aborted.abort()
    committed.commit([data_sets.sealed(committed, {"a": b"1"})])
    assert os.listdir(f"{root}/_pending") == []
    assert not any(path.is_symlink() for path in Path(root).rglob("*"))


def test_abort_leaves_a_link_at_the_job_s_folder_alone(root: str, victim: Path) -> None:
    job = begin(root)
    Path(root, job.job).symlink_to(victim)
    job.abort()
