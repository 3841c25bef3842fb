"""Commits that were decided by an older generation: whether what came meanwhile is of their files.

A change is written as words: "put a delete b".
"""

from __future__ import annotations

from pathlib import Path

import data_sets
import pytest
import stored

from winkfs.dataset.compaction import compact
from winkfs.dataset.dataset import open
from winkfs.dataset.hidden import refuse_changed
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.manifest import Log
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.transaction import begin
from winkfs.errors import DatasetConflict


@pytest.fixture
def root(tmp_path: Path) -> Path:
    data_sets.put(tmp_path / "set", {f"d/{i}": b"old" for i in range(5)})
    return tmp_path / "set"


def pairs(words: str) -> list[tuple[str, str]]:
    every = words.split()
    return list(zip(every[::2], every[1::2], strict=True))


def change(root: Path, words: str) -> None:
    """Commit it, whatever came before."""
    verbs = {"put": b"theirs", "delete": None}
    stored.change(root, {name: verbs[verb] for verb, name in pairs(words)})


def commit(root: Path, seen: int, words: str) -> None:
    """Commit it if it may follow what was decided by generation `seen`."""
    transaction = begin(root)
    writer = ShardWriter(transaction, "00000")
    for verb, name in pairs(words):
        if verb == "put":
            writer.container.put(name, b"ours")
        else:
            writer.gone.add(name.encode())
    record, log = writer.finish(), Log(transaction.root)
    transaction.commit(
        [record],
        check=lambda now: refuse_changed(log, seen, now, transaction.located([record])),
    )


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "ours", "refused"),
    [
        ("put d/1", "put d/1", True),
        ("delete d/1", "put d/1", True),
        ("put d/1", "delete d/1", True),
        ("delete d/1", "delete d/1", False),
        ("put d/2", "put d/1", False),
        ("delete d/2", "put d/1", False),
        ("put d/2", "delete d/1", False),
        ("put new", "put new", True),
        ("put d/0 put d/4", "put d/1", False),
        ("put d/0 put d/1", "put d/1 put d/4", True),
    ],
)
@pytest.mark.parametrize("rewritten", [False, True])
def test_a_file_that_both_change_is_refused(
    theirs: str, ours: str, refused: bool, rewritten: bool, root: Path
) -> None:
    change(root, theirs)
    if rewritten:  # their shard has gone into another one, but is still there
        assert compact(root, everything=True).generation == 3
    before = stored.files(root)
    if refused:
        with pytest.raises(DatasetConflict, match=r"changed meanwhile \((d/1|new)\)"):
            commit(root, 1, ours)
        assert stored.files(root) == before
        return
    commit(root, 1, ours)
    for verb, name in pairs(ours):
        before.pop(name, None)
        before |= {name: b"ours"} if verb == "put" else {}
    assert stored.files(root) == before


def test_a_rewrite_changes_nothing(root: Path) -> None:
    change(root, "put e")
    assert compact(root, everything=True).generation == 3
    commit(root, 2, "put d/1")
    assert stored.files(root)["d/1"] == b"ours"


def test_what_cannot_be_read_any_more_is_refused(root: Path) -> None:
    change(root, "delete d/1")
    compact(root, everything=True)
    vacuum(root, older_than=0)  # nothing says any more that it was deleted
    with pytest.raises(DatasetConflict, match="cannot be read any more"):
        commit(root, 1, "put d/1")
    assert "d/1" not in stored.files(root)


def test_an_overwrite_is_refused(root: Path) -> None:
    transaction = begin(root, "overwrite")
    writer = ShardWriter(transaction, "00000")
    writer.container.put("other", b"1")
    transaction.commit([writer.finish()])
    with pytest.raises(DatasetConflict, match="overwritten"):
        commit(root, 1, "put d/1")
    assert stored.files(root) == {"other": b"1"}


@pytest.mark.slow
@pytest.mark.parametrize(("theirs", "refused"), [("put d/1", True), ("put d/2", False)])
def test_a_writer_that_expects_no_change_is_refused(theirs: str, refused: bool, root: Path) -> None:
    with open(root, "a") as files:
        files.expect_unchanged()
        files.delete("d/1")
        change(root, theirs)
        if refused:
            with pytest.raises(DatasetConflict, match=r"changed meanwhile \(d/1\)"):
                files.sync()
        else:
            files.sync()
    assert ("d/1" in stored.files(root)) == refused
    assert not refused or stored.files(root)["d/1"] == b"theirs"


def test_its_own_commit_is_no_conflict_with_the_next(root: Path) -> None:
    with open(root, "a") as files:
        files.expect_unchanged()
        for data in (b"1", b"2"):
            files.put("d/1", data)
            files.sync()
    assert stored.files(root)["d/1"] == b"2"
