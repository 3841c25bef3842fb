"""Deletes and upserts by query, and what commits changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stored
from sparking import SparkSession, save

import winkfs
import winkfs.spark
from winkfs.dataset.compaction import compact
from winkfs.dataset.dataset import create, open
from winkfs.dataset.manifest import Log
from winkfs.errors import DatasetConflict
from winkfs.spark import session

pytestmark = pytest.mark.spark


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data set of twenty files with columns."""
    with create(tmp_path / "set") as files:
        files.add_columns({"lang": "string", "score": "float64"})
        files.put_many(
            (f"d/{i:02}", b"%d" % i, 1e9, {"lang": "de" if i % 2 else None, "score": i / 10})
            for i in range(20)
        )
    return tmp_path / "set"


def reported(spark: SparkSession, root: Path, **options: Any) -> list[tuple[int, str, str]]:
    """What the commits changed: generation, what, name."""
    frame = winkfs.spark.read(spark, root, readChanges=True, **options)
    return sorted((row["_generation"], row["_change"], row.path) for row in frame.collect())


def test_files_are_deleted_of_which_a_condition_is_true(spark: SparkSession, root: Path) -> None:
    done = winkfs.spark.delete(spark, root, "lang = 'de' and score < 0.6")
    assert done == {"deleted": 3, "generation": 2}
    left = {f"d/{i:02}" for i in range(20)} - {"d/01", "d/03", "d/05"}
    assert set(stored.names(root)) == left
    assert stored.columns(root) == {"lang": "string", "score": "float64"}
    assert winkfs.spark.delete(spark, root, "content = X'3139'")["deleted"] == 1
    assert winkfs.spark.delete(spark, root, "score > 100") == {"deleted": 0, "generation": 3}


def test_nothing_is_deleted_from_an_empty_data_set(spark: SparkSession, tmp_path: Path) -> None:
    create(tmp_path / "set").close()
    done = winkfs.spark.delete(spark, tmp_path / "set", "size > 0")
    assert done == {"deleted": 0, "generation": 0}


def test_a_container_has_no_other_writer_while_files_are_chosen(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "c"
    stored.make(base, {"a": b"old"})
    chosen = session.read

    def meanwhile(*args: Any, **options: Any) -> Any:
        with pytest.raises(winkfs.Locked):
            winkfs.open(base, "a")
        return chosen(*args, **options)

    monkeypatch.setattr(session, "read", meanwhile)
    assert winkfs.spark.delete(spark, base, "size = 3")["deleted"] == 1
    assert stored.names(base) == []


def test_files_of_a_container_are_deleted(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(b"a\xff", b"1", None, {"lang": "de"}), ("b", b"2")]
    stored.make(tmp_path / "c", rows, columns={"lang": "string"})
    assert winkfs.spark.delete(spark, tmp_path / "c", "lang = 'de'")["deleted"] == 1
    assert stored.names(tmp_path / "c") == ["b"]


def test_a_delete_keeps_what_is_committed_meanwhile(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from winkfs.dataset import transaction

    begin = transaction.begin

    def other(*args: Any, **kwargs: Any) -> Any:
        stored.change(root, {"d/01": b"newer"})
        return begin(*args, **kwargs)

    monkeypatch.setattr(transaction, "begin", lambda *a, **k: (
        monkeypatch.undo(), other(*a, **k))[1])  # fmt: skip
    with pytest.raises(DatasetConflict):
        winkfs.spark.delete(spark, root, "lang = 'de'")
    assert stored.read(root, "d/01") == b"newer"
    assert len(stored.names(root)) == 20


def test_upsert_keeps_what_it_has_no_column_for(spark: SparkSession, root: Path) -> None:
    rows = [("d/01", "fr"), ("d/02", None)]
    winkfs.spark.upsert(spark.createDataFrame(rows, "path string, lang string"), root)
    with open(root) as files:
        assert files.getcolumns("d/01") == {"lang": "fr", "score": 0.1}
        assert files.getcolumns("d/02") == {"lang": None, "score": 0.2}
        assert (files.read("d/01"), files.stat("d/01").mtime, len(files)) == (b"1", 1e9, 20)
    rows = [("d/01", b"new"), ("e", b"new")]
    winkfs.spark.upsert(spark.createDataFrame(rows, "path string, content binary"), root)
    with open(root) as files:
        assert (files.read("d/01"), files.read("e")) == (b"new", b"new")
        assert files.getcolumns("d/01") == {"lang": "fr", "score": 0.1}
        assert files.stat("d/01").mtime > 1e9


def test_upsert_keeps_the_metadata_of_unchanged_content(spark: SparkSession, root: Path) -> None:
    with open(root, "a") as files:
        files.put("run", b"#!", ftype=winkfs.FileType.EXEC, mode=0o750, mtime_ns=10**18 + 1)
    winkfs.spark.upsert(spark.createDataFrame([("run", "sh")], "path string, lang string"), root)
    with open(root) as files:
        stat = files.stat("run")
        assert files.getcolumns("run")["lang"] == "sh"
        assert (stat.ftype, stat.mode) == (winkfs.FileType.EXEC, 0o750)
        assert stat.mtime_ns == 10**18 + 1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("verb", "name", "refused"), [("put", "d/01", True), ("delete", "d/01", True),
                                  ("put", "d/02", False)],
)  # fmt: skip
def test_upsert_keeps_what_is_committed_meanwhile(
    verb: str, name: str, refused: bool, spark: SparkSession, root: Path
) -> None:
    newer = b"newer" if verb == "put" else None

    def meanwhile(batches: Iterator[Any]) -> Iterator[Any]:
        """Runs in a task: after the generation was chosen, before the commit."""
        for batch in batches:
            stored.change(root, {name: newer})
            yield batch

    rows = spark.createDataFrame([("d/01", "fr")], "path string, lang string").coalesce(1)
    frame = rows.mapInArrow(meanwhile, rows.schema)
    if refused:
        with pytest.raises(DatasetConflict, match=f"{root}: was changed meanwhile .{name}."):
            winkfs.spark.upsert(frame, root)
    else:
        winkfs.spark.upsert(frame, root)
    with open(root) as files:
        assert (name in files) == (verb == "put")
        assert name not in files or files.read(name) == b"newer"
        if not refused:
            assert files.getcolumns("d/01")["lang"] == "fr"


def test_upsert_refuses_what_it_cannot_put(spark: SparkSession, root: Path) -> None:
    with pytest.raises(ValueError, match="needs the column path"):
        winkfs.spark.upsert(spark.createDataFrame([("a",)], "name string"), root)
    with pytest.raises(Exception, match="new: the content is null"):
        winkfs.spark.upsert(
            spark.createDataFrame([("new", "fr")], "path string, lang string"), root
        )
    assert len(stored.names(root)) == 20


def test_changes_of_each_commit(spark: SparkSession, root: Path) -> None:
    with open(root, "a") as files:
        files.delete("d/00")
        files.put("d/01", b"again")
        files.put("e", b"new", columns={"lang": "en"})
    compact(root)  # changes no file
    frame = spark.createDataFrame([("z", b"only")], "path string, content binary")
    save(frame, root, "overwrite")
    first = [(1, "put", f"d/{i:02}") for i in range(20)]
    second = [(2, "delete", "d/00"), (2, "put", "d/01"), (2, "put", "e")]
    gone = sorted({f"d/{i:02}" for i in range(1, 20)} | {"e"})
    last = Log(str(root)).newest()
    assert reported(spark, root) == sorted(
        [*first, *second, *((last, "delete", name) for name in gone), (last, "put", "z")]
    )
    assert reported(spark, root, startingGeneration=2, endingGeneration=2) == second
    row = (
        winkfs.spark.read(spark, root, readChanges=True)
        .where("path = 'e'")
        .orderBy("_generation")
        .first()
    )
    assert (row.content, row.lang, row.score) == (b"new", "en", None)
    deleted = winkfs.spark.read(spark, root, readChanges=True).where("_change = 'delete'").first()
    assert (deleted.content, deleted["size"], deleted.mtime, deleted.lang) == (None,) * 4


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"startingGeneration": 1}, "go with readChanges"),
        ({"readChanges": True, "prefix": "d/"}, "reads all changes"),
        ({"readChanges": True, "endingGeneration": 9}, "the newest is 1"),
        ({"readChanges": "maybe"}, "true or false"),
    ],
)
def test_wrong_options_of_changes(
    spark: SparkSession, root: Path, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(Exception, match=what):
        winkfs.spark.read(spark, root, **options).count()


def test_a_container_has_no_change_feed(spark: SparkSession, tmp_path: Path) -> None:
    winkfs.create(tmp_path / "c").close()
    with pytest.raises(Exception, match="only that has generations"):
        winkfs.spark.read(spark, tmp_path / "c", readChanges=True).count()
