"""A shard that is missing, cut short or damaged costs a pass over all files its own files alone."""

from __future__ import annotations

import os
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import data_sets
import pytest
import stored
from commands import Run

import winkfs
from winkfs.dataset.compaction import compact
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.manifest import Log, create
from winkfs.errors import CorruptError, LostShard, StalePlan

LEFT = {"a/1": b"word a\n", "a/2": b"word\n", "c/1": b"word c\n"}
LOST = {"b/1": b"word b\n", "b/2": b"word\n"}
KINDS = ("gone", "cut", "no superblock")


def make(path: str = "set") -> str:
    """A data set -> the path of its shard with LOST."""
    root = create(path).root
    for start in "abc":
        data_sets.add(root, {n: d for n, d in (LEFT | LOST).items() if n[0] == start})
    return f"{root}/{Log(root).latest().shards[1].path}"


def harm(shard: str, kind: str) -> None:
    data = Path(f"{shard}.data")
    if kind == "gone":
        for path in data.parent.glob(f"{data.stem}.*"):
            path.unlink()
    elif kind == "cut":
        os.truncate(data, data.stat().st_size - 100)
    else:
        raw = bytearray(data.read_bytes())
        raw[:512] = raw[4096:4608] = bytes(512)
        data.write_bytes(raw)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A data set, and the path of a shard below it."""
    root = tmp_path_factory.mktemp("made") / "set"
    return root, os.path.relpath(make(str(root)), root)


@pytest.fixture
def shard(request: pytest.FixtureRequest, run: Run, template: tuple[Path, str]) -> str:
    """A data set `set` that has lost a shard, beside a copy `whole` -> the path of the shard."""
    root, path = template
    for name in ("set", "whole"):
        shutil.copytree(root, name)
    harm(f"set/{path}", getattr(request, "param", "gone"))
    return os.path.abspath(f"set/{path}")


EACH_KIND = pytest.mark.parametrize("shard", KINDS, indirect=True)


def is_line_of(shard: str, line: str) -> bool:
    return f"{shard}: a shard with 2 files is" in line and "restore it from a backup" in line


@pytest.mark.parametrize(
    "args",
    [
        "ls set", "ls -R set", "ls --json set", "find set", "find set -name [a-c]*", "du -a set",
        "tree set", "grep set word", "verify --checksum sha256 set", "cat set *",
    ],
)  # fmt: skip
def test_what_prints_files_prints_those_of_the_others(run: Run, shard: str, args: str) -> None:
    words = args.split()
    done, whole = run(*words), run(*["whole" if word == "set" else word for word in words])
    lines = done.err.splitlines()
    assert (done.status, whole.status, len(lines)) == (1, 0, 1)
    assert is_line_of(shard, lines[0])
    known = whole.out.splitlines()
    left = [line for line in done.out.splitlines() if line in known]
    assert left
    gone = [line for line in known if line not in left]
    assert any(b"b/1" in line or b"word b" in line or b"b" in line for line in gone)
    assert not any(b"a/1" in line or b"c/1" in line for line in gone)


@pytest.mark.parametrize(
    "args",
    [
        "unpack set out", "get set * out/", "cp set out", "sync set out", "sync set out/",
        "unpack set --tar out.tar", "unpack set --zip out.zip",
        "split set out --shards 1", "export set --parquet out.parquet",
        "export set --webdataset out.tar --columns=",
    ],
)  # fmt: skip
def test_what_copies_files_copies_those_of_the_others(run: Run, shard: str, args: str) -> None:
    if args.startswith("export"):
        pytest.importorskip("pyarrow")
    done = run(*args.split())
    assert done.status == 1
    lines = [line for line in done.err.splitlines() if "zip file cannot have" not in line]
    assert len(lines) == 1
    assert (
        is_line_of(shard, lines[0])
        or "a shard is damaged" in lines[0]
        or "a shard is gone" in (lines[0])
    )
    assert copied() == set(LEFT)


def copied() -> set[str]:
    """Names of the files in what a command has made."""
    if Path("out.parquet").exists():
        import pyarrow.parquet as pq

        return set(pq.read_table("out.parquet", columns=["path"])["path"].to_pylist())
    if Path("out.zip").exists():
        import zipfile

        with zipfile.ZipFile("out.zip") as archive:
            return set(archive.namelist())
    if Path("out.tar").exists():
        with tarfile.open("out.tar") as tar:
            return {name.removesuffix(".bin") for name in tar.getnames() if "/" in name}
    if Path("out.data").exists() or Path("out/_winkfs").exists():
        return set(stored.names("out"))
    return {str(path.relative_to("out")) for path in Path("out").rglob("*") if path.is_file()}


@EACH_KIND
def test_nothing_of_a_lost_shard_is_removed(run: Run, shard: str) -> None:
    for name, data in (LEFT | LOST | {"more": b""}).items():
        Path("tree", name).parent.mkdir(parents=True, exist_ok=True)
        Path("tree", name).write_bytes(data)
    stored.make("box", LEFT | LOST)
    for target in ("tree/", "box"):
        done = run("sync", "set", target, "--delete")
        assert done.status == 1
        assert "nothing is removed" in done.err
    assert Path("tree/b/1").read_bytes() == LOST["b/1"]
    assert set(stored.names("box")) == set(LEFT | LOST)
    assert run("dataset", "vacuum", "set", "--older-than", "0").status == 0
    done = run("dataset", "compact", "set", "--all")
    assert done.status == 1
    assert is_line_of(os.path.relpath(shard), done.err)
    shutil.copytree("whole", "set", dirs_exist_ok=True)
    assert stored.files("set") == LEFT | LOST


@pytest.mark.parametrize("args", ["pack --update tree set", "sync tree set --delete"])
def test_a_tree_brings_the_files_back(run: Run, shard: str, args: str) -> None:
    for name, data in (LEFT | LOST).items():
        Path("tree", name).parent.mkdir(parents=True, exist_ok=True)
        Path("tree", name).write_bytes(data)
    done = run(*args.split())
    assert done.status == 1
    assert is_line_of(shard, done.err)
    found = run("cat", "set", "b/1", "b/2")
    assert found.out == b"".join(LOST.values())


def test_a_split_without_a_shard_is_not_taken_for_whole(run: Run, shard: str) -> None:
    assert run("split", "set", "part", "--files", "100").status == 1
    assert run("split", "set", "other", "--shards", "1").status == 1
    shutil.copytree("whole", "set", dirs_exist_ok=True)
    for rule in (["part", "--files", "100"], ["other", "--shards", "1"]):
        done = run("split", "set", *rule)
        assert done.status == 1
        assert "lacks 2 damaged files" in done.err


@EACH_KIND
def test_what_checks_or_saves_names_the_shard(run: Run, shard: str) -> None:
    done = run("verify", "set")
    assert done.status == 1
    assert is_line_of(os.path.relpath(shard), done.out.decode())
    assert "vacuum removes it" not in done.err
    assert b"1 problem" in done.out
    done = run("report", "set", "-o", "r.html")
    assert done.status == 1
    assert is_line_of(os.path.relpath(shard), done.err)
    assert Path("r.html").exists()
    done = run("backup", "set", "saved")
    assert done.status == 1
    assert is_line_of(os.path.relpath(shard), done.err)


def test_older_versions_that_it_replaced_are_reported(run: Run) -> None:
    root = create("set").root
    data_sets.add(root, {"a": b"old", "b": b"b"})
    data_sets.add(root, {"a": b"new"})
    harm(f"{root}/{Log(root).latest().shards[1].path}", "gone")
    done = run("ls", "set")
    assert (done.status, done.out) == (1, b"a\nb\n")
    assert "older files that were replaced or deleted there may be seen again" in done.err


# --- the Python API ---


@EACH_KIND
def test_without_a_callback_a_pass_raises(shard: str) -> None:
    with winkfs.open("set") as found:
        for each in (found.names, found.items, found.walk, found.scan, found.sizes):
            try:
                list(each())
            except LostShard as error:  # no ExceptionInfo: it would keep stores open
                assert isinstance(error, CorruptError)
                assert isinstance(error, StalePlan)
                assert error.filename == shard
                again = pickle.loads(pickle.dumps(error))
                assert (type(again), str(again)) == (LostShard, str(error))
            else:
                pytest.fail(f"{each.__name__} has lost files")
        assert found.problems == []  # the caller knows


@EACH_KIND
def test_a_callback_gets_the_shard(shard: str) -> None:
    pytest.importorskip("pyarrow")
    problems: list[Any] = []
    with winkfs.open("set") as found:
        assert list(found.names(problem=problems.append)) == list(LEFT)
        assert {entry.name for entry in found.scan(problem=problems.append)} == set(LEFT)
        assert [error.filename for error in problems] == [shard, shard]
        lines: list[str] = []
        for order in ("disk", "name"):
            table = found.to_batches(order=order, problem=lines.append).read_all()
            assert sorted(table["path"].to_pylist()) == list(LEFT)
        assert len(lines) == 2
        assert all(shard in line and "restore it" in line for line in lines)


def test_walk_of_fsspec_goes_on(shard: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("wink", fo="set", skip_instance_cache=True)
    problems: list[Any] = []
    walked = [(top, below, here) for top, below, here in files.walk("", on_error=problems.append)]
    assert walked == [("", ["a", "c"], []), ("a", [], ["1", "2"]), ("c", [], ["1"])]
    assert [error.filename for error in problems] == [shard]
    with pytest.warns(winkfs.DamageWarning, match="a shard with 2 files"):
        assert list(files.walk("")) == walked
    with pytest.raises(LostShard):
        list(files.walk("", on_error="raise"))
    files.close()


def test_a_shard_that_was_vacuumed_is_not_lost(run: Run) -> None:
    make()
    with winkfs.open("set") as found:
        compact("set", everything=True)
        vacuum("set", older_than=0)
        with pytest.raises(StalePlan) as raised:
            list(found.names(problem=lambda error: None))
        assert not isinstance(raised.value, LostShard)


@pytest.mark.parametrize("shard", ["cut", "no superblock"], indirect=True)
def test_what_is_left_of_a_shard_can_be_taken(run: Run, shard: str) -> None:
    run("salvage", f"{shard}.data", "out")
    assert "b/1" in stored.names("out")
    run("cp", "out", "set")
    assert run("cat", "set", "b/1").out == LOST["b/1"]


@EACH_KIND
@pytest.mark.parametrize("args", ["", "--quick", "--sample 100%", "--part 1/1"])
def test_each_way_to_verify_names_it_and_advises_no_repair(run: Run, shard: str, args: str) -> None:
    done = run("verify", "set", *args.split())
    assert done.status == 1
    lines = done.out.decode().splitlines() + done.err.splitlines()
    assert sum(is_line_of(os.path.relpath(shard), line) for line in lines) == 1
    assert not any("winkfs repair" in line for line in lines)
