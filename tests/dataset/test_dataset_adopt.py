"""Containers become shards: none twice; and who may read what a commit makes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import data_sets
import pytest
import stored
from data_sets import root as root
from seam import disk_calls, once

import winkfs
from winkfs.dataset.compaction import compact, rebalance
from winkfs.dataset.maintain import adopt
from winkfs.dataset.manifest import Log, create
from winkfs.errors import FileExists


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return stored.make(tmp_path / "c", {"a": b"1"})


def test_container_that_is_a_shard_already_is_refused(root: str, base: Path) -> None:
    adopt(root, [base])
    with pytest.raises(FileExists, match="is a shard of the data set already"):
        adopt(root, [base])
    stored.change(base, {"b": b"2"})
    with pytest.raises(FileExists, match="in this state or another"):
        adopt(root, [base])
    assert Log(root).newest() == 1
    assert os.listdir(f"{root}/_pending") == []
    assert compact(root, everything=True).generation == Log(root).newest()
    rebalance(root)
    assert stored.files(root) == {"a": b"1"}
    adopt(root, [base])  # its files are in another container now
    assert stored.files(root) == {"a": b"1", "b": b"2"}


def test_container_that_is_given_twice_is_refused(root: str, base: Path, tmp_path: Path) -> None:
    for suffix in (".data", ".idx"):
        shutil.copy(f"{base}{suffix}", f"{tmp_path}/copy{suffix}")
    for other in (base, tmp_path / "copy"):
        with pytest.raises(FileExists, match="is the same container as"):
            adopt(root, [base, other])
    assert Log(root).newest() == 0


def test_container_that_another_adds_meanwhile_is_refused(root: str, base: Path) -> None:
    late = once("lock", ".lock", lambda: adopt(root, [base]))
    with disk_calls(late), pytest.raises(FileExists, match="is a shard of the data set already"):
        adopt(root, [base])
    assert Log(root).newest() == 1
    assert os.listdir(f"{root}/_pending") == []


def test_classic_containers_have_no_identity_and_are_added(root: str, tmp_path: Path) -> None:
    for name in "ab":
        stored.make(tmp_path / name, {name: b"1"}, classic=True)
    adopt(root, [tmp_path / "a", tmp_path / "b"])
    assert stored.files(root) == {"a": b"1", "b": b"1"}


# --- modes and owners ---


Umask = Callable[[int], int]


@pytest.fixture
def umask() -> Iterator[Umask]:
    """Set the umask; it is as before after the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def modes(root: str, pattern: str) -> set[int]:
    return {path.lstat().st_mode & 0o7777 for path in Path(root).glob(pattern)}


@pytest.mark.parametrize(("made_by", "file", "folder"), [(0o077, 0o600, 0o700),
                                                         (0o022, 0o644, 0o755)])  # fmt: skip
def test_what_a_commit_makes_is_as_private_as_the_data_set(
    tmp_path: Path, umask: Umask, made_by: int, file: int, folder: int
) -> None:
    """The umask of whoever commits decides nothing: that of whoever made the data set does."""
    umask(made_by)
    root = create(tmp_path / "ds").root
    umask(0o022 if made_by == 0o077 else 0o077)
    stored.change(root, {"a": b"1", "b": b"1"})
    stored.change(root, {"a": b"2"})
    stored.files(root)  # makes hidden rows
    assert modes(root, "_winkfs/*") == modes(root, "2*/*.*") == {file}
    assert modes(root, "2*") == {folder}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_commits_belongs_to_the_owner_of_the_data_set(root: str, umask: Umask) -> None:
    for path in [Path(root), *Path(root).rglob("*")]:
        os.chown(path, 12345, 12345)
    umask(0o077)
    with winkfs.open(root, "a") as opened:
        opened.put("a", b"1")
        opened.put("of root", b"1", uid=0, gid=0)
    stored.change(root, {"a": b"2"})
    stored.files(root)
    compact(root)
    made = {path: path.lstat() for path in Path(root).rglob("*") if path.name != "_job"}
    assert {status.st_uid for status in made.values()} == {12345}
    assert all(status.st_mode & 0o044 == 0o044 for status in made.values())
    assert (stored.stat(root, "a").uid, stored.stat(root, "of root").uid) == (12345, 0)


def test_copy_of_a_private_container_stays_private(root: str, base: Path) -> None:
    for path in base.parent.glob("c.*"):
        path.chmod(0o600)
    adopt(root, [base])
    assert modes(root, "2*/*.*") == {0o600}
    data_sets.add(root, {"b": b"1"})
    assert stored.files(root) == {"a": b"1", "b": b"1"}
