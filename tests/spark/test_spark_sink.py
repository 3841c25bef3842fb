"""The sink in Spark: save modes, errors before and in tasks, retries, what is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import stored
from sparking import DataFrame, SparkSession, refusal, save

import winkfs

pytestmark = pytest.mark.spark


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a data set is to be."""
    return tmp_path / "set"


def rows(spark: SparkSession, files: dict[str, bytes], partitions: int = 2) -> DataFrame:
    frame = spark.createDataFrame(list(files.items()), "path string, content binary")
    return frame.repartition(partitions)


def test_rows_are_in_the_data_set_and_come_back(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    files = {f"d{i % 7}/{i}": b"%d" % i * (i % 300) for i in range(3000)}
    save(rows(spark, files, 3), root)
    assert stored.files(root) == files
    with winkfs.open(root) as opened:
        newest = next(iter(opened.history()))
    assert newest.operation == "append"
    assert newest.metrics["files"] == 3000 and newest.metrics["tasks"] == 3
    assert newest.metrics["content"] == sum(map(len, files.values()))
    back = spark.read.format("winkfs").load(str(root))
    save(back, tmp_path / "copy")  # with size and mtime, as the source has them
    assert stored.files(tmp_path / "copy") == files
    with winkfs.open(root) as one, winkfs.open(tmp_path / "copy") as two:
        assert one.stat("d0/0").mtime_ns // 1000 == two.stat("d0/0").mtime_ns // 1000


def test_append_adds_overwrite_replaces_and_readers_keep_theirs(
    spark: SparkSession, root: Path
) -> None:
    save(rows(spark, {"a": b"1", "b": b"1"}), root)
    save(rows(spark, {"b": b"2", "c": b"2"}), root)
    assert stored.files(root) == {"a": b"1", "b": b"2", "c": b"2"}
    with winkfs.open(root) as before:
        save(rows(spark, {"z": b"3"}), root, "overwrite")
        assert before.read("a") == b"1"
    assert stored.files(root) == {"z": b"3"}
    assert stored.files(root, as_of=2) == {"a": b"1", "b": b"2", "c": b"2"}
    save(rows(spark, {"z": b"3"}).where("path = 'none'"), root, "overwrite")
    assert stored.files(root) == {}


def test_empty_partitions_make_no_shard(spark: SparkSession, root: Path) -> None:
    save(rows(spark, {"a": b"1"}, 8), root)
    assert len(list(root.glob("*/*.data"))) == 1
    before = stored.paths(root)
    save(rows(spark, {"a": b"1"}).where("path = 'none'"), root)
    assert stored.files(root) == {"a": b"1"}
    assert all(path.startswith("_winkfs/") for path in stored.paths(root) - before)


@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_other_save_modes_are_refused_by_spark(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    answer = refusal(save, rows(spark, {"a": b"1"}), tmp_path / "set", mode)
    assert "append" in answer.lower() or "mode" in answer.lower()
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_wrong_options_are_reported_before_any_task(
    spark: SparkSession, tmp_path: Path, step: int
) -> None:
    """Of each case by the writer, of one in so many by Spark."""
    from winkfs.spark.writing.sink import batch_writer

    root, good = tmp_path / "set", rows(spark, {"a": b"1"})
    stored.make(tmp_path / "single", {"x": b"1"})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    before = stored.paths(tmp_path)
    cases = [
        (good.drop("content"), root, "append", {}, "no column content"),
        (good.withColumnRenamed("path", "name"), root, "append", {}, "no column path"),
        (good.selectExpr("*", "map(1, 2) as rank"), root, "append", {}, "column 'rank' is map"),
        (good.selectExpr("path", "array(1) content"), root, "append", {}, "cast it to binary"),
        (good, root, "append", {"onConflikt": "error"}, "did you mean onConflict?"),
        (good, tmp_path / "single", "append", {}, "is a single container"),
        (good, tmp_path / "single", "overwrite", {}, "is a single container"),
        (good, tmp_path / "single.data", "overwrite", {}, "is a single container"),
        (good, tmp_path / "other", "overwrite", {}, "and no data set"),
        (good, tmp_path / "other", "append", {}, "and no data set"),
    ]
    for frame, where, mode, options, answer in cases:
        given = {"path": str(where), **options}
        line = refusal(batch_writer, given, frame.schema, mode == "overwrite")
        assert answer in line and "\n" not in line
    for frame, where, mode, options, answer in cases[::step]:
        assert answer in refusal(save, frame, where, mode, **options)
    assert stored.paths(tmp_path) == before
    save(good.selectExpr("*", "1 as rank"), root, ignoreExtra="true")
    assert stored.files(root) == {"a": b"1"}


def test_a_job_that_fails_leaves_the_folder_as_it_was(spark: SparkSession, root: Path) -> None:
    save(rows(spark, {"a": b"1"}), root)
    before = stored.paths(root)
    frame = spark.range(0, 4000, 1, 4).selectExpr(
        "concat('p', id) path", "if(id = 3999, null, cast(repeat('x', 2000) as binary)) content"
    )
    assert "p3999: the content is null" in refusal(save, frame, root)
    assert "p3999: the content is null" in refusal(save, frame, root, "overwrite")
    assert stored.paths(root) == before and stored.files(root) == {"a": b"1"}


def test_on_conflict_error_ends_the_job(spark: SparkSession, root: Path) -> None:
    save(rows(spark, {"a": b"1"}), root, onConflict="error")
    before = stored.paths(root)
    frame = spark.range(0, 2, 1, 2).selectExpr("'b' path", "cast(id as string) content")
    assert "two tasks have this path" in refusal(save, frame, root, onConflict="error")
    assert "the data set has this file" in refusal(save, rows(spark, {"a": b"2"}), root,
                                                   onConflict="error")  # fmt: skip
    assert stored.paths(root) == before and stored.files(root) == {"a": b"1"}
