"""A data set remembers what its contents are compressed with: whoever writes to it goes by that,
until a compaction changes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import commands
import pytest
import stored
from commands import Run
from commands import run as run
from compressed_files import document, documents, frames_of, make
from data_sets import forge, put
from folders import write_files

import winkfs
import winkfs.dataset
from winkfs import Refusal
from winkfs.dataset.compaction import compact, rebalance
from winkfs.dataset.maintain import adopt
from winkfs.dataset.manifest import Log
from winkfs.dataset.records import Manifest, ShardRecord, State

pytestmark = pytest.mark.in_memory

pytest.importorskip("zstandard")
FILES = documents()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "größe und maß"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_files(tmp_path / "tree", FILES)


def levels(root: Path) -> list[int]:
    """Of the shards that there are, by rank: as their records say, and as they do."""
    records = Log(str(root)).latest().shards
    found = []
    for record in records:
        with winkfs.open(root / record.path) as shard:
            found.append(shard.store.frames.level)
            framed = any(frames_of(shard, name) for name in shard.names())
            assert shard.store.settings.compressed == (found[-1] > 0)
            assert not framed or found[-1]
    assert [record.level for record in records] == found
    return found


def contents(root: Path) -> dict[str, bytes]:
    assert winkfs.verify(root).problems == []
    return stored.documents(root)


# --- who writes goes by it ---


@pytest.mark.slow
def test_all_that_comes_later_is_compressed(root: Path, tree: Path, run: Run) -> None:
    assert run("pack", "--shards", "2", "--compress", "zstd:4", tree, root).status == 0
    files = dict(FILES)
    assert levels(root) == [4, 4]
    files["d/001.html"] = document(70)
    (tree / "d/001.html").write_bytes(files["d/001.html"])
    assert run("pack", "--update", tree, root).status == 0
    files["notes/ä.txt"] = document(71)
    assert run("put", root, "notes/ä.txt", stdin=files["notes/ä.txt"]).status == 0
    with winkfs.open(root, "a") as found:
        assert isinstance(found, winkfs.Dataset)
        found.put_many((f"many/{i}", document(i)) for i in range(50))
        found.rename("d/002.html", "moved")
    files |= {f"many/{i}": document(i) for i in range(50)}
    files["moved"] = files.pop("d/002.html")
    assert run("rm", root, "d/003.html").status == 0
    del files["d/003.html"]
    assert levels(root) == [4] * 6
    assert contents(root) == files
    rebalance(root, shards=2)
    assert set(levels(root)) == {4}
    assert contents(root) == files


@pytest.mark.slow
def test_the_last_explicit_level_stays_in_force(root: Path) -> None:
    put(root, {"a": document(1)}, compress="zstd:3")
    put(root, {"b": document(2)}, compress="none")
    with winkfs.dataset.open(root, "a", compress="zstd:7") as found:
        found.put("c", document(3))
        found.sync()
        found.put("d", document(4))
    put(root, {"e": document(5)})
    assert levels(root) == [3, 0, 7, 7, 7]
    assert contents(root) == {name: document(i) for i, name in enumerate("abcde", 1)}


@pytest.mark.slow
def test_a_plain_set_is_compressed_from_its_first_such_shard_on(
    root: Path, tree: Path, run: Run
) -> None:
    assert run("pack", "--shards", "1", tree, root).status == 0
    assert run("put", root, "a", stdin=document(1)).status == 0
    assert levels(root) == [0, 0]
    (tree / "new").write_bytes(document(2))
    assert run("pack", "--update", "--compress", "zstd", tree, root).status == 0
    assert run("put", root, "b", stdin=document(3)).status == 0
    assert levels(root) == [0, 0, 9, 9]
    (tree / "newer").write_bytes(document(4))
    assert run("pack", "--update", "--compress", "none", tree, root).status == 0
    assert run("put", root, "c", stdin=document(5)).status == 0
    assert levels(root) == [0, 0, 9, 9, 0, 9]


def test_a_container_that_is_added_ends_nothing(root: Path, tmp_path: Path) -> None:
    put(root, {"a": document(1)}, compress="zstd:3")
    make(tmp_path / "plain", {"b": document(2)}, compress=None)
    make(tmp_path / "other", {"c": document(3)}, compress="zstd:5")
    adopt(root, [tmp_path / "plain"])
    stored.change(root, {"d": document(4)})
    assert levels(root) == [3, 0, 3]
    adopt(root, [tmp_path / "other"])
    stored.change(root, {"e": document(5)})
    assert levels(root) == [3, 0, 3, 5, 5]


def test_an_older_generation_keeps_its_own_level(root: Path) -> None:
    put(root, {"a": document(1)}, compress="zstd:3")
    compact(root, compress="none")
    log = Log(str(root))
    assert [log.state(number).compress for number in range(3)] == [None, "zstd:3", None]


# --- compaction ---


@pytest.mark.slow
def test_a_compaction_compresses_what_is_not(root: Path, tmp_path: Path) -> None:
    put(root, {"a": document(1)}, compress="zstd:3")
    for i in range(3):
        put(root, {f"b{i}": document(i)}, compress="none")
    assert levels(root) == [3, 0, 0, 0]
    assert compact(root).added == 1
    assert levels(root) == [3]
    # and a group in which nothing is
    make(tmp_path / "plain", {f"{i}": document(i) for i in range(30)}, compress=None)
    adopt(root, [tmp_path / "plain"])
    stored.change(root, {"a": document(7), **dict.fromkeys(map(str, range(20)))})
    size = (root / f"{Log(str(root)).latest().shards[1].path}.data").stat().st_size
    compact(root, shard_size=size)
    assert set(levels(root)) == {3}
    wanted = {f"{i}": document(i) for i in range(20, 30)} | {"a": document(7)}
    assert contents(root) == wanted | {f"b{i}": document(i) for i in range(3)}


@pytest.mark.slow
def test_a_compaction_changes_it(root: Path, run: Run) -> None:
    """Also of large shards without any waste; and only of those that are stored otherwise."""
    files = {f"{i}": document(i) for i in range(3)}
    for name, data in files.items():
        assert run("dataset", "create", root).status == 0
        assert run("put", root, name, stdin=data).status == 0
    one = ("dataset", "compact", "--shard-size", "1", root)
    assert run(*one).out == b"nothing to do\n"
    old = [record.path for record in Log(str(root)).latest().shards]
    dry = run(*one, "--compress", "zstd", "-n")
    assert dry.out.startswith(b"3 shards of ") and levels(root) == [0, 0, 0]
    done = json.loads(run(*one, "--compress", "zstd", "--json").out)
    assert done["removed"] == 3 and done["bytes_after"] < done["bytes_before"]
    assert set(levels(root)) == {9}
    assert not {record.path for record in Log(str(root)).latest().shards} & set(old)
    assert run(*one, "--compress", "zstd").out == b"nothing to do\n"
    assert run("put", root, "a", stdin=document(1)).status == 0
    assert levels(root)[-1] == 9
    assert run(*one, "--compress", "zstd:3").status == 0
    assert set(levels(root)) == {3}
    assert run(*one, "--compress", "none").status == 0
    assert set(levels(root)) == {0}
    assert run(*one, "--compress", "none").out == b"nothing to do\n"
    assert run("put", root, "b", stdin=document(2)).status == 0
    assert set(levels(root)) == {0}
    assert contents(root) == files | {"a": document(1), "b": document(2)}


@pytest.mark.slow
@pytest.mark.parametrize("ao", [False, True])
def test_a_set_of_which_nothing_is_left_remembers_it(root: Path, ao: bool) -> None:
    put(root, {"a": document(1), "b": document(2)}, ao=ao, compress="zstd:3")
    stored.change(root, {"a": None, "b": None})
    compact(root, everything=True)
    generation = compact(root, everything=True).generation
    assert (levels(root), contents(root)) == ([3], {})
    assert generation == Log(str(root)).newest() == 3
    stored.change(root, {"c": document(3)})
    assert levels(root) == [3, 3]
    compact(root, compress="none", everything=True)
    assert (levels(root), contents(root)) == ([0], {"c": document(3)})


# --- what the manifest says ---


def test_a_set_without_compression_has_the_manifests_of_before(root: Path) -> None:
    put(root, {"a": document(1)})
    for path in (root / "_winkfs").glob("*.json"):
        assert b"compress" not in path.read_bytes()


@pytest.mark.parametrize("word", ["", "zstd:23", "zstd", "lz4:3", "zstd:\u00b2", "none"])
def test_unknown_compression_words_are_ignored(word: str) -> None:
    """What only a later version knows is as if it was not there."""
    values = {"path": "j/0", "contid": 1, "size": 9000, "rank": [1, 0], "compress": word}
    record = ShardRecord.of(values)
    assert record.level == (9 if word == "zstd" else 0)
    state = Manifest(1, 1, "append", added=(record,)).apply(State(0, 0))
    assert state.compress == ("zstd" if word == "zstd" else None)
    with pytest.raises(TypeError):
        ShardRecord.of(values | {"compress": 3})


def test_a_record_of_an_older_version_is_no_damage(root: Path) -> None:
    """It says nothing of compression; the next compaction notes what the shards are."""
    put(root, {"a": document(1)}, compress="zstd:3")

    def forget(values: Any) -> None:
        for record in (*values["added"], *values["checkpoint"]["shards"]):
            assert record.pop("compress") == "zstd:3"

    forge(root, 1, forget)
    assert winkfs.verify(root).problems == []
    assert Log(str(root)).latest().compress is None
    stored.change(root, {"b": document(2)})
    assert compact(root).added == 1
    assert levels(root) == [3]
    assert contents(root) == {"a": document(1), "b": document(2)}


def test_info_shows_it(root: Path, tree: Path, run: Run) -> None:
    assert run("pack", "--shards", "1", tree, root).status == 0
    assert "compression" not in json.loads(run("info", "--json", root).out)
    put(root, {"a": document(1)}, compress="zstd:19")
    answer = json.loads(run("info", "--json", root).out)["compression"]
    assert answer == {"codec": "zstd", "level": 19, "compressed_shards": 1}


# --- refusals ---


def test_a_codec_that_there_is_not(root: Path, run: Run) -> None:
    for call in (winkfs.dataset.create, winkfs.dataset.Dataset):
        with pytest.raises(ValueError, match="zstd"):
            call(root, compress="gzip")
    assert not root.exists()
    put(root, {"a": document(1)})
    with pytest.raises(ValueError, match="zstd"):
        compact(root, compress="gzip")
    commands.one_line(run("dataset", "compact", "--compress", "gzip", root), 2)
    assert Log(str(root)).newest() == 1


def test_without_zstandard_there_is_one_line_and_nothing_is_left(
    root: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    put(root, {"a": document(1)}, compress="zstd")
    plain = root.with_name("plain")
    put(plain, {"a": document(1)})
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "zstandard", None)
        answer = commands.one_line(run("put", root, "b", stdin=b"x"))
        assert "pip install 'winkfs[compress]'" in answer
        with pytest.raises(Refusal, match=r"winkfs\[compress\]"):
            compact(plain, compress="zstd")
        with winkfs.open(root, "a") as found:
            for _ in range(3):
                with pytest.raises(Refusal, match=r"winkfs\[compress\]"):
                    found.put("b", b"x")
        put(root, {"b": b"x"}, compress="none")
    assert list((root / "_pending").iterdir()) == list((plain / "_pending").iterdir()) == []
    assert contents(root) == {"a": document(1), "b": b"x"}
