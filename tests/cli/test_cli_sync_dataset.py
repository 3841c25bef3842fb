"""The command sync into a data set, and of stores into each other."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import data_sets
import pytest
import stored
import trees
from commands import Done, Run, one_line

import winkfs
from winkfs.archive import syncplan
from winkfs.container.frames import Frames
from winkfs.dataset import dataset
from winkfs.dataset.shardwriter import ShardWriter

pytestmark = [pytest.mark.slow, pytest.mark.in_memory]

tree = trees.tree  # fixtures
small_disk = trees.small_disk
NOTHING = Done(0, b"", "")


def generation(path: str = "set") -> int:
    with winkfs.open(path) as found:
        assert isinstance(found, winkfs.Dataset)
        return found.generation


def change(tree: Path) -> None:
    (tree / "docs/a.html").write_bytes(b"<p>b</p>")
    (tree / "empty").unlink()
    shutil.rmtree(tree / "docs/old")
    (tree / "new\nline").write_bytes(b"new")
    Path(os.fsdecode(bytes(tree) + b"/\xff")).write_bytes(b"latin")
    (tree / "secret").chmod(0o640)
    (tree / "link").unlink()
    (tree / "link").mkdir()


@pytest.mark.parametrize("kind", ["tree", "tar", "container", "data set"])
def test_a_data_set_becomes_equal_by_one_commit(run: Run, tree: Path, kind: str) -> None:
    os.link(tree / "large", tree / "zlarge")
    assert run("dataset", "create", "set").status == 0
    options = ["--shards", "2"] if kind == "data set" else []

    def source() -> Path | str:
        if kind == "tar":
            command = ["tar", "--format=pax", "-cf", "t.tar", "-C", str(tree), "."]
            subprocess.run(command, check=True)
            return "t.tar"
        if kind == "tree":
            return tree
        shutil.rmtree("a", ignore_errors=True)
        Path("a.data").unlink(missing_ok=True)
        assert run("pack", tree, "a", *options).status == 0
        return "a"

    before = generation()
    assert run("sync", source(), "set") == NOTHING
    assert generation() == before + 1
    assert run("diff", tree, "set", "-c") == NOTHING
    change(tree)
    now = source()
    planned = run("sync", now, "set", "--delete", "-n")
    assert b"M docs/a.html\t" in planned.out and generation() == before + 1
    assert run("sync", now, "set", "--delete", "-v") == planned
    assert generation() == before + 2
    assert run("diff", tree, "set", "-c") == NOTHING
    assert "docs/old/b.html" not in stored.names("set")
    assert run("sync", now, "set", "--delete", "-v") == NOTHING
    assert generation() == before + 2
    assert winkfs.verify("set").problems == []


def test_what_others_have_put_since_is_compared_by_its_content(run: Run, tree: Path) -> None:
    assert run("pack", tree, "set", "--shards", "1").status == 0
    stat = stored.stat("set", "docs/a.html")
    with winkfs.open("set", "a") as found:
        found.put("docs/a.html", b"<p>x</p>", mtime=stat.mtime_ns / 10**9, mode=stat.mode)
        found.put_rows([_row(stat)])
    assert run("sync", tree, "set", "-v").out == b"M docs/a.html\tcontent\n"
    assert run("sync", tree, "set", "-v") == NOTHING


def _row(stat: winkfs.Stat):  # type: ignore[no-untyped-def]
    from winkfs.container.bulk import Row

    return Row("docs/a.html", b"<p>x</p>", stat.mtime_ns, stat.ftype, stat.mode, stat.uid, stat.gid)


def test_only_names_that_are_gone_make_a_commit(run: Run, tree: Path) -> None:
    assert run("pack", tree, "set", "--shards", "2").status == 0
    before = generation()
    stored.change("set", {"mine": b"1"})
    assert run("sync", tree, "set") == NOTHING
    assert generation() == before + 1
    assert run("sync", tree, "set", "--delete", "-v") == Done(0, b"- mine\n", "")
    assert generation() == before + 2 and "mine" not in stored.names("set")


def test_entries_are_copied_compressed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = {f"{i}": b"word " * 2000 + b"%d" % i for i in range(9)}
    stored.make("a", text, compress="zstd")

    def decoded(*args: object) -> bytes:
        raise AssertionError("a frame was decoded")

    dataset.create("set", compress="zstd").close()
    with monkeypatch.context() as patch:
        patch.setattr(Frames, "content", decoded)
        assert run("sync", "a", "b") == NOTHING
    assert stored.files("b") == text
    assert os.path.getsize("b.data") < 20_000
    assert run("sync", "a", "set") == NOTHING
    assert stored.files("set") == text
    stored.change("a", {"0": b"other " * 500, "1": None})
    assert run("sync", "a", "b", "--delete", "-v").out == b"M 0\tsize, mtime\n- 1\n"
    assert run("diff", "a", "b", "-c") == NOTHING


def test_an_append_only_source_makes_a_container_that_can_change(run: Run) -> None:
    stored.make("a", [("a", b"1", 1), ("b", b"2", 2)], ao=True)
    assert run("sync", "a", "b") == NOTHING
    stored.make("c", [("a", b"1", 1)])
    assert run("sync", "c", "b", "--delete", "-v") == Done(0, b"- b\n", "")


def test_columns_of_other_types_are_refused(run: Run) -> None:
    for name, kind in (("a", "string"), ("b", "int64")):
        with winkfs.create(name) as c:
            c.add_columns({"lang": kind})
            c.put("x", b"1")
    assert run("dataset", "create", "set").status == 0
    assert run("sync", "a", "set") == NOTHING
    assert "lang" in one_line(run("sync", "b", "set"))
    assert stored.names("set") == ["x"]


def test_a_full_disk_leaves_the_data_set_as_it_was(
    run: Run, tmp_path: Path, small_disk: Path
) -> None:
    root = f"{small_disk}/set"
    assert run("dataset", "create", root).status == 0
    stored.change(root, {"old": b"1"})
    stored.make("a", {f"{i}": b"%d" % i * 300_000 for i in range(6)})
    done = run("sync", "a", root, "--delete")
    assert done.status == 1 and "No space left" in done.err
    assert stored.files(root) == {"old": b"1"}
    (small_disk / "filler").unlink(missing_ok=True)
    stored.change("a", {f"{i}": None for i in range(5)})
    assert run("sync", "a", root, "--delete").status == 0
    assert stored.names(root) == ["5"]


def test_a_stopped_sync_leaves_the_data_set_as_it_was(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("dataset", "create", "set").status == 0
    before = generation()

    def stop(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "finish", stop)
        assert run("sync", tree, "set").status == 130
    assert generation() == before and stored.names("set") == []
    assert run("sync", tree, "set") == NOTHING
    assert run("diff", tree, "set", "-c") == NOTHING


def test_a_stopped_sync_of_a_container_is_finished_by_the_next(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from winkfs.archive.packer import Packer

    stored.make("c", {"mine": b"1"})

    def stop(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Packer, "end", stop)
        assert run("sync", tree, "c", "--delete").status == 130
    assert "mine" in stored.names("c")
    assert run("sync", tree, "c", "--delete").status == 0
    assert run("diff", tree, "c", "-c") == NOTHING


def test_a_data_set_in_its_source_is_left_out(run: Run, tree: Path) -> None:
    assert run("dataset", "create", "tree/set").status == 0
    assert run("sync", tree, "tree/set", "--delete") == NOTHING
    assert not any(name.startswith("set") for name in stored.names("tree/set"))
    assert run("sync", tree, "tree/set", "--delete", "-v").status == 0


def test_cp_changes_only_metadata_of_what_is_there(run: Run, tree: Path) -> None:
    assert run("pack", tree, "a").status == 0
    assert run("cp", "a", "b").status == 0
    with winkfs.open("a", "a") as a:
        a.add_columns({"lang": "string"})
        a.chmod("large", 0o600)
        a.setxattrs("large", {b"user.note": b"1"})
        a.setcolumns("large", {"lang": "de"})
        a.utime("docs", mtime_ns=5)
    size = os.path.getsize("b.data")
    done = run("cp", "a", "b", "-v", "--prefix", "")
    assert done == Done(0, b"M docs\nM large\n", "")
    assert os.path.getsize("b.data") < size + 10_000
    assert run("diff", "a", "b", "-c") == NOTHING
    assert winkfs.verify("b").problems == []
    assert run("cp", "a", "b", "-v") == NOTHING


def test_an_empty_data_set_makes_an_empty_container(run: Run) -> None:
    assert run("dataset", "create", "set").status == 0
    assert run("sync", "set", "made") == NOTHING
    assert stored.names("made") == []


def test_a_large_file_of_a_data_set_is_a_stream(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A classic container cannot take its entries as they are."""
    data = bytes(range(256)) * 4000
    winkfs.create("made", classic=True).close()
    data_sets.put("set", {"large": data, "small": b"1"})
    monkeypatch.setattr(syncplan, "STREAM_BYTES", 1 << 16)
    read, sizes = winkfs.Dataset.read, set[int]()

    def reading(self: winkfs.Dataset, name: str, offset: int = 0, size: int = -1) -> bytes:
        if name == "large":
            sizes.add(size)
        return read(self, name, offset, size)

    monkeypatch.setattr(winkfs.Dataset, "read", reading)
    assert run("sync", "set", "made").status == 0
    assert min(sizes) >= 0  # of a part; -1: of the whole file
    assert stored.files("made") == {"large": data, "small": b"1"}
