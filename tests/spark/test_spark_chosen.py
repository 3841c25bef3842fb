"""Selections whose files the tasks choose: as the planner would, in the same order."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stored
from data_sets import add
from flips import flip
from sparkfiles import (
    ALL,
    KINDS,
    Kinds,
    as_files,
    documents,
    kinds,  # noqa: F401 - a fixture
    plain,
    read,
    struct,
)
from test_spark_source import CHANGES, SELECTIONS

import winkfs

pytest.importorskip("pyspark")

from pyspark_winkfs import DefaultSource
from winkfs.arrow.pieces import Chosen
from winkfs.spark.reading import chosen
from winkfs.spark.reading.options import Options
from winkfs.spark.reading.reader import partitions

pytestmark = pytest.mark.spark
NAMES = "name_raw binary, content binary"


@pytest.fixture
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few files there are."""
    monkeypatch.setattr(chosen, "MAX_DECIDED", -1)


def planned(path: Path, **options: Any) -> list[Any]:
    texts = {name: str(value) for name, value in options.items()}
    return partitions(Options.of({"path": str(path)} | texts), contents=True)


def pieces(path: Path, **options: Any) -> list[Any]:
    return [piece for task in planned(path, **options) for piece in task.pieces]


@pytest.mark.usefixtures("in_tasks")
@pytest.mark.few(5)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "classic"])
@pytest.mark.parametrize("what", [what for what in SELECTIONS if what != "paths"])
def test_tasks_choose_what_a_loop_would(kinds: Kinds, kind: str, what: str) -> None:  # noqa: F811
    options, right = SELECTIONS[what]
    wanted = {n: f for n, f in documents(kinds[kind]).items() if right(n, f)}
    found = read(kinds[kind], **options, splitBytes="64k")
    assert as_files(found) == wanted
    assert len(found) == len(wanted)  # a file at a cut is in one task
    if wanted and kind != "plain":  # which has no catalog
        assert {type(piece) for piece in pieces(kinds[kind], **options)} == {Chosen}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["columns", "ao", "dataset"])
def test_the_rows_are_in_the_order_of_before(
    kinds: Kinds, kind: str, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    options = {"glob": "*3.html", "minSize": "100", "splitBytes": "100k"}
    before = read(kinds[kind], NAMES, **options)
    monkeypatch.setattr(chosen, "MAX_DECIDED", -1)
    assert read(kinds[kind], NAMES, **options) == before
    assert len(before) > 10


@pytest.mark.usefixtures("in_tasks")
@pytest.mark.few(4)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("runs", [1, 2])
def test_tasks_choose_among_the_files_of_the_plan(change: str, runs: int, tmp_path: Path) -> None:
    base = KINDS["columns"](tmp_path / "c")
    if runs == 2:
        with winkfs.open(base, "a") as c:
            c.put_many((f"dir{i % 7}/page {3 * i:04d}.html", b"newer") for i in range(20))
            c.delete("dir5/page 0005.html")
    wanted = {n: f for n, f in documents(base).items() if f.size < 5000 and n[:3] == b"dir"}
    options = {"path": str(base), "maxSize": "4999", "prefix": "dir", "minPartitions": "3"}
    reader = DefaultSource(options=options).reader(struct(f"{ALL}, content binary"))
    todo = pickle.loads(pickle.dumps(reader.partitions()))
    CHANGES[change](base)
    rows = [row for task in todo for batch in reader.read(task) for row in batch.to_pylist()]
    assert as_files(rows) == wanted
    assert len(rows) == len(wanted) > 100


@pytest.mark.usefixtures("in_tasks")
def test_columns_are_read_for_few_files_and_for_many(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c", columns={"n": "int64"}) as made:
        for i in range(5000):
            made.put(f"{i:04}", b"%d" % i, columns={"n": i})
    winkfs.reindex(tmp_path / "c")
    for where in ("n >= 100", "n < 5"):
        rows = read(tmp_path / "c", "content binary, n long", where=where)
        assert [row["n"] for row in rows] == [int(row["content"]) for row in rows]
        assert len(rows) == (4900 if ">" in where else 5)


@pytest.mark.usefixtures("in_tasks")
def test_a_damaged_inode_counts_as_in_the_planner(tmp_path: Path) -> None:
    base = plain(tmp_path / "c")
    winkfs.reindex(base)
    wanted = len(read(base, minSize=1))
    data = tmp_path / "c.data"
    flip(data, data.read_bytes().index(b"dir1/page 0008.html/I0") + 40)
    todo = DefaultSource(options={"path": str(base), "minSize": "1", "mode": "PERMISSIVE"})
    reader = todo.reader(struct("path string, _error string, content binary"))
    tasks = reader.partitions()
    (tmp_path / "c.cat").unlink()  # the tasks read the inodes
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert len(rows) == wanted - 1 and not any(row["_error"] for row in rows)
    with pytest.raises(ValueError, match="checksum"):
        read(base, minSize=1)


# --- the plan ---


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 60 shards with 500 files each, sizes 0 to 9."""
    root = tmp_path_factory.mktemp("many") / "set"
    add(root, *({f"d/{s * 500 + i:07}": bytes(i % 10) for i in range(500)} for s in range(60)))
    return root


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "MAX_DECIDED", 20_000)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards that were opened."""
    found: list[str] = []
    whole = winkfs.container.store.Store.__init__

    def counted(self: Any, base: str, *args: Any, **named: Any) -> None:
        found.append(base)
        whole(self, base, *args, **named)

    monkeypatch.setattr(winkfs.container.store.Store, "__init__", counted)
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("option", [
    {"prefix": "d/0012345"}, {"paths": '["d/0012345"]'}, {"glob": "d/0012345"},
    {"where": "path = 'd/0012345'"}, {"pathsFile": "names"},
], ids=lambda option: next(iter(option)))  # fmt: skip
def test_a_plan_for_one_name_opens_one_shard(
    many: Path, opened: list[str], tmp_path: Path, option: dict[str, str]
) -> None:
    (tmp_path / "names").write_text("d/0012345\n")
    options = {name: str(tmp_path / text) if text == "names" else text
               for name, text in option.items()}  # fmt: skip
    (task,) = planned(many, **options)
    assert len(opened) == 1 and len(task.pieces) == 1


def test_a_plan_for_names_that_each_shard_may_have_opens_none(
    opened: list[str], tmp_path: Path
) -> None:
    root = tmp_path / "set"
    add(root, *({f"{i:02}-{s}": b"%d" % s for i in range(20)} for s in range(8)))
    names = ["07-3", "00-0", "19-7", "07-4", "none"]
    options = {"paths": json.dumps(names)}
    with winkfs.open(root) as known:  # records which rows are hidden
        assert len(known) == 160
    opened.clear()
    for contents in (True, False):
        texts = Options.of({"path": str(root), **options})
        tasks = partitions(texts, contents=contents)
        assert not opened
        assert sum(len(task.pieces) for task in tasks) == 8
    for fields in ("path string, content binary", "path string, size long"):
        found = read(root, fields, **options)
        assert [row["path"] for row in found] == ["00-0", "07-3", "07-4", "19-7"]
        assert [row.get("content") for row in found] == (
            [b"0", b"3", b"4", b"7"] if "content" in fields else [None] * 4
        )


@pytest.mark.usefixtures("limited")
def test_a_plan_of_many_files_opens_few_shards(many: Path, opened: list[str]) -> None:
    tasks = planned(many, where="size > 3")
    assert len(opened) == chosen.SAMPLED_SHARDS
    assert sum(len(task.pieces) for task in tasks) >= 60
    assert len(pickle.dumps(tasks)) < 30_000
    opened.clear()
    found = read(many, "path string, content binary", where="size > 3")
    assert len(found) == 18_000
    assert [row["path"] for row in found] == sorted(row["path"] for row in found)


@pytest.mark.usefixtures("limited")
def test_tasks_are_few_where_little_is_chosen(many: Path) -> None:
    assert len(planned(many, where="size = 17", splitBytes="1m")) <= 6
    assert len(planned(many, where="size >= 0", splitBytes="1m")) >= 12


@pytest.mark.usefixtures("limited")
def test_a_large_container_is_chosen_from_in_tasks(tmp_path: Path) -> None:
    stored.make(tmp_path / "c", ((f"{i:06}", b"x" * (i % 3)) for i in range(30_000)))
    winkfs.reindex(tmp_path / "c")
    (piece,) = pieces(tmp_path / "c", minSize=1)
    assert isinstance(piece, Chosen) and len(pickle.dumps(piece)) < 1000
    assert len(read(tmp_path / "c", "path string, content binary", minSize=1)) == 20_000
    (few,) = pieces(tmp_path / "c", prefix="00001")
    assert not isinstance(few, Chosen)


def test_a_listing_of_many_small_shards_opens_none(many: Path, opened: list[str]) -> None:
    asked = Options.of({"path": str(many), "minPartitions": "4", "where": "size > 3"})
    tasks = partitions(asked, contents=False)
    assert len(tasks) == 4 and not opened
    rows = read(many, "path string", where="size > 3", minPartitions=4)
    assert len(rows) == 18_000
    assert len(partitions(replace(asked, partitions=200), contents=False)) == 200  # by cuts
