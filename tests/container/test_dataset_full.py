"""Data sets on a disk that is really full: no half is published, and on it goes with room."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
import test_full_disk
from container_checks import files_of, put, put_many
from test_full_disk import Disk

import winkfs
from winkfs.dataset.compaction import compact
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.manifest import create
from winkfs.dataset.packing import pack_shards
from winkfs.dataset.transaction import begin

full_disk = test_full_disk.disk  # a fixture


def some_tree(folder: Path) -> Path:
    """Eight files that no codec makes smaller."""
    tree = folder / "tree"
    tree.mkdir()
    for n in range(8):
        (tree / f"{n}").write_bytes(os.urandom(100_000))
    return tree


def test_sync_with_deletes_goes_on_when_there_is_room(full_disk: Disk) -> None:
    root = create(full_disk.folder / "ds").root
    put_many(root, ((f"{n}", b"1") for n in range(200)))
    with winkfs.open(root, "a") as opened:
        for n in range(150):
            opened.delete(f"{n}")
        full_disk.fill()
        for change in (lambda: opened.put("new", b"2" * 50_000), opened.sync):
            with pytest.raises(OSError, match="No space"):
                change()
        full_disk.make_room()
        opened.put("new", b"2" * 50_000)
        assert opened.sync() == 2
    expected = {f"{n}": b"1" for n in range(150, 200)} | {"new": b"2" * 50_000}
    assert files_of(root) == expected
    assert winkfs.verify(root).problems == []


@pytest.mark.slow
def test_compaction_and_pack_leave_the_data_set_as_it_was(full_disk: Disk, tmp_path: Path) -> None:
    root, tree = create(full_disk.folder / "ds").root, some_tree(tmp_path)
    for n in range(8):
        put(root, f"old{n}", os.urandom(100_000))
    before = files_of(root)
    full_disk.fill(500_000)
    with pytest.raises(OSError, match="No space"):
        compact(root)
    with pytest.raises(OSError, match="No space"):
        pack_shards(tree, root, 3, update=True)
    assert os.listdir(f"{root}/_pending") == []
    assert files_of(root) == before
    full_disk.make_room()
    assert compact(root).removed == 8
    vacuum(root, older_than=0)
    pack_shards(tree, root, 3, update=True)
    assert len(files_of(root)) == 16
    assert winkfs.verify(root).problems == []


@pytest.mark.few
@pytest.mark.parametrize("kind", ["folder", "tar"])
@pytest.mark.parametrize("there", [False, True])
def test_a_pack_that_fails_leaves_no_empty_data_set(
    full_disk: Disk, tmp_path: Path, kind: str, there: bool
) -> None:
    tree, root = some_tree(tmp_path), full_disk.folder / "ds"
    if there:
        root.mkdir()
    source = tree
    if kind == "tar":
        source = tmp_path / "t.tar"
        with tarfile.open(source, "w") as archive:
            archive.add(tree, ".")
    for room in (0, 30_000, 500_000):
        full_disk.fill(room)
        with pytest.raises(OSError, match="No space"):
            pack_shards(source, root, 3)
        assert sorted(os.listdir(full_disk.folder)) == (["ds", "filler"] if there else ["filler"])
        assert not there or os.listdir(root) == []
        full_disk.make_room()
    pack_shards(source, root, 3)
    assert len(files_of(root)) >= 8


def test_a_failed_pack_leaves_a_data_set_with_another_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree").mkdir()
    root = str(tmp_path / "ds")
    begun = []

    def fail(*args: object) -> None:
        begun.append(begin(root))
        raise OSError("no more")

    monkeypatch.setattr("winkfs.dataset.packing._pack_tree", fail)
    with pytest.raises(OSError, match="no more"):
        pack_shards(tmp_path / "tree", root, 3)
    assert begun[0].commit([]) == 1
    assert files_of(root) == {}
