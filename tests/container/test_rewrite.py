"""What moves files of containers keeps everything that they have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from container_checks import drop, patch, path_of
from flips import flip

import winkfs
from winkfs import dataset
from winkfs.container.compact import compact
from winkfs.container.salvage import salvage
from winkfs.dataset.compaction import compact as compact_dataset
from winkfs.dataset.compaction import rebalance
from winkfs.dataset.maintain import adopt

NS = 1_234_567_890_123_456_789
TEXT = b"the same words, and the same words again, " * 30
Kept = dict[str, tuple[Any, ...]]


def fill(base: Path, **options: Any) -> None:
    """Files with everything that one can have, some of them replaced."""
    with winkfs.create(base, columns={"lang": "string"}, **options) as c:
        c.put("old", b"goes")
        c.put("plain", b"p" * 300, mtime_ns=NS)
        c.put("empty", b"", mtime_ns=NS)
        for name in ("changed", "also mode", "empty and changed"):
            c.put(name, b"" if "empty" in name else name.encode() * 9)
            c.utime(name, NS // 10**9)  # which is a change now
        c.chmod("also mode", 0o600)
        c.put("owner", b"m", mode=0o4751, uid=12, gid=34, mtime_ns=NS)
        c.put_many([("columns", TEXT, 77, {"lang": "de"})])
        c.put("attributes", TEXT, mtime_ns=NS)
        c.setxattrs("attributes", {b"user.a": b"1" * 300, b"user.lang": b"fr"})
        c.put("hole", b"1" * 1000)
        c.write("hole", 300_000, b"2" * 1000)
        c.truncate("hole", 600_000)
        c.put("pieces", TEXT * 50)
        for at in range(9):
            c.write("pieces", at * 4000, b"%d" % at * 10)
        c.put_many((f"many{i}", TEXT + b"%d" % i, NS // 10**9) for i in range(50))
        c.mkdir("dir")
        c.symlink("plain", "dir/link")
        c.put(b"\xff\n", b"no utf-8", mtime_ns=NS)
        c.delete("old")


def kept(base: Path | str, *, ids: bool = True, names: tuple[str, ...] = ()) -> Kept:
    """All that is to be seen of each file; with the FILEID."""
    found = {}
    with winkfs.open(base) as c:
        for name in names or list(c.names()):
            stat = c.stat(name)
            fields = [getattr(stat, field) for field in ("size", "mtime_ns", "ctime_ns", "ftype")]
            owner = stat.mode, stat.uid, stat.gid
            more = c.getxattrs(name), c.getcolumns(name), c.read(name)
            holes = [extent.size for extent in c.extents(name) if not extent.pointer]
            found[name] = (stat.fileid if ids else 0, *fields, *owner, *more, sum(holes))
    assert found["hole"][-1] > 500_000 and found["changed"][2] != found["changed"][3]
    return found


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("compress", [None, "zstd"])
@pytest.mark.parametrize("how", ["disk", "name", "anew", "salvage"])
def test_a_container_keeps_everything(how: str, compress: str | None, tmp_path: Path) -> None:
    base = tmp_path / "c"
    fill(base, compress=compress)
    before = kept(base)
    if how == "salvage":
        found = salvage(base, tmp_path / "out")
        assert (found.files, found.problems) == (len(before), [])
        base = tmp_path / "out"
    else:
        level = {"compress": "none" if compress else "zstd"} if how == "anew" else {"order": how}
        compact(base, **level)  # type: ignore[arg-type]
    assert kept(base) == before
    assert winkfs.verify(base).problems == []
    with winkfs.open(base, "a") as c:
        c.put("new", b"1")
        assert c.stat("new").fileid > max(found[0] for found in before.values())


@pytest.mark.parametrize("compress", [None, "zstd"])
def test_salvage_moves_entries_as_they_are(compress: str | None, tmp_path: Path) -> None:
    fill(tmp_path / "c", compress=compress)
    values = []
    salvage(tmp_path / "c", tmp_path / "out")
    for base in (tmp_path / "c", tmp_path / "out"):
        with winkfs.open(base) as c:
            store = c.store
            owned = [
                p for pos in store.index.positions().tolist() for p in store.inode_at(pos)[1].owned
            ]
            values.append(sorted(store.entry_at(pos).value for pos in owned))
    assert values[0] == values[1]
    assert path_of(tmp_path / "out", ".data").stat().st_size < 300_000


def test_salvage_of_a_classic_container_keeps_its_file_ids(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c", classic=True) as c:
        c.put("gone", b"1")
        c.put("a", b"1", mtime=5)
        c.delete("gone")
        c.put("b", b"2" * 3000, mtime=6)
        c.write("b", 100, b"3")
        ids = [c.stat(name).fileid for name in ("a", "b")]
    salvage(tmp_path / "c", tmp_path / "out")
    with winkfs.open(tmp_path / "out") as c:
        assert [c.stat(name).fileid for name in ("a", "b")] == ids
        assert c.read("b") == b"2" * 100 + b"3" + b"2" * 2899


def test_inodes_of_one_file_that_a_search_finds_are_two_files(tmp_path: Path) -> None:
    """Behind a broken length nothing says that one of them was marked deleted for the other."""
    with winkfs.create(tmp_path / "c", classic=True) as c:
        c.put("first", b"1" * 50)
        c.put("a", b"2" * 50)
        c.sync()
        old = c.store.index.lookup(b"a/I0")
        c.rename("a", "b")
        c.put("last", b"3" * 50)
    path = path_of(tmp_path / "c", ".data")
    data = path.read_bytes()
    assert data[old] == 1
    patch(path, old, b"\0")
    patch(path, data.index(b"1" * 50) - 4, b"\xff" * 4)
    drop(tmp_path / "c", ".idx")
    salvage(tmp_path / "c", tmp_path / "out")
    winkfs.reindex(tmp_path / "out")  # of two inodes with one FILEID it takes the last
    with winkfs.open(tmp_path / "out") as c:
        found = {name: c.read(name) for name in ("a", "b", "last")}
    assert found == {"a": b"2" * 50, "b": b"2" * 50, "last": b"3" * 50}


def test_file_ids_that_leave_no_room_for_others_are_made_anew(tmp_path: Path) -> None:
    """As somebody may have chosen them: what is left without a name needs FILEIDs, too."""
    with winkfs.create(tmp_path / "c") as c:
        c.put("lost", b"1" * 9)
        lost = c.store.index.lookup(b"lost/I0")
        c.store.nextfid = (1 << 62) - 3
        c.put_many([("a", b"2" * 9), ("b", b"3" * 9)])
    flip(path_of(tmp_path / "c", ".data"), lost + 8)
    drop(tmp_path / "c", ".idx")
    salvage(tmp_path / "c", tmp_path / "out")
    with winkfs.open(tmp_path / "out", "a") as c:
        assert {c.read(name) for name in c.names()} == {b"1" * 9, b"2" * 9, b"3" * 9}
        c.put("new", b"it goes on")


def test_salvage_drops_damaged_attributes_and_keeps_the_file(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"content" * 100, mode=0o600)
        c.setxattrs("a", {b"user.x": b"xx5" * 9})
        c.put("b", b"2")
    path = path_of(tmp_path / "c", ".data")
    path.write_bytes(path.read_bytes().replace(b"xx5xx5", b"!!!xx5"))
    done = salvage(tmp_path / "c", tmp_path / "out")
    assert (done.files, done.partial, done.orphans) == (2, 0, 0)
    assert any(line.startswith("a: ") for line in done.problems)
    with winkfs.open(tmp_path / "out") as c:
        assert (c.read("a"), c.stat("a").mode, c.getxattrs("a")) == (b"content" * 100, 0o644, {})


# --- data sets ---


def joined(root: str) -> object:
    return compact_dataset(root)


def renamed(root: str) -> None:
    with winkfs.open(root, "a") as d:
        for name in list(d.names()):
            d.rename(name, "moved")
            d.rename("moved", name)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("compress", [None, "zstd"])
@pytest.mark.parametrize("how", [joined, lambda root: rebalance(root, shards=1), renamed])
def test_a_data_set_keeps_everything(
    how: Callable[[str], object], compress: str | None, tmp_path: Path
) -> None:
    root = os.fspath(tmp_path / "ds")
    fill(tmp_path / "c", compress=compress)
    before = kept(tmp_path / "c", ids=False)
    with dataset.create(root) as d:
        d.put("another", b"1")
    adopt(root, [tmp_path / "c"])
    how(root)
    with winkfs.open(root) as d:
        newest = d.shards[-1]  # type: ignore[union-attr]
    assert kept(newest.base, ids=False, names=tuple(before)) == before
    assert newest.record.size < 200_000
    assert winkfs.verify(root).problems == []
