"""Spark on object storage: what is tested of folders, and what is different there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import stored
from buckets import s3, trust
from folders import write_files
from sparking import DataFrame, SparkSession, load, refusal, save

import winkfs
import winkfs.spark
from winkfs.dataset.manifest import Log

pytestmark = pytest.mark.spark
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3() as url:
        yield url


@pytest.fixture
def root(bucket: str) -> str:
    """Where a data set is to be."""
    return trust(f"{bucket}/set{next(_numbers)}")


def frame(
    spark: SparkSession, start: int, stop: int, content: str = "cast(id as string)"
) -> DataFrame:
    return spark.range(start, stop, 1, 2).selectExpr(
        "concat('d/', lpad(id, 4, '0')) as path", f"cast({content} as binary) as content",
        "cast(id % 7 as bigint) as k",
    )  # fmt: skip


def files(start: int, stop: int) -> dict[str, bytes]:
    return {f"d/{i:04}": b"%d" % i for i in range(start, stop)}


def test_rows_are_written_read_and_changed(spark: SparkSession, root: str) -> None:
    save(frame(spark, 0, 300), root)
    assert stored.files(root) == files(0, 300)
    there = load(spark, root)
    assert there.where("k = 3").count() == len(range(3, 300, 7))
    assert there.where("path < 'd/0010'").count() == 10
    save(frame(spark, 0, 20, "'new'"), root)
    assert load(spark, root).where("cast(content as string) = 'new'").count() == 20
    assert load(spark, root, asOf="1").where("cast(content as string) = 'new'").count() == 0
    assert winkfs.spark.delete(spark, root, "k = 0")["deleted"] == len(range(0, 300, 7))
    assert load(spark, root).count() == 300 - len(range(0, 300, 7))
    more = spark.createDataFrame([("d/0001", 5)], "path string, k bigint")
    winkfs.spark.upsert(more, root)
    assert [tuple(r) for r in load(spark, root).where("path = 'd/0001'").select("k", "content")
            .collect()] == [(5, b"new")]  # fmt: skip
    save(frame(spark, 7, 9), root.replace("s3:", "s3a:"), "overwrite")
    assert stored.files(root) == files(7, 9)
    assert winkfs.verify(root).problems == []


def test_names_that_are_there_are_refused(spark: SparkSession, root: str) -> None:
    save(frame(spark, 0, 10), root)
    line = refusal(save, frame(spark, 9, 12), root, onConflict="error")
    assert "the data set has this file" in line
    assert stored.files(root) == files(0, 10)


def test_a_store_that_was_not_checked_is_refused(spark: SparkSession, bucket: str) -> None:
    assert "winkfs remote check" in refusal(save, frame(spark, 0, 2), f"{bucket}/unchecked")
    assert "paths of a file system" in refusal(load, spark, "abc://host/set")


@pytest.mark.long
def test_a_stream_takes_each_file_once(
    spark: SparkSession, root: str, bucket: str, tmp_path: Path
) -> None:
    target = trust(f"{bucket}/copy{next(_numbers)}")

    def run() -> None:
        query = (
            spark.readStream.format("winkfs").load(root).writeStream.format("winkfs")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start(target)
        )  # fmt: skip
        query.awaitTermination()

    save(frame(spark, 0, 10), root)
    run()
    assert stored.files(target) == files(0, 10)
    save(frame(spark, 10, 15), root)
    run()
    run()
    assert stored.files(target) == files(0, 15)
    assert [m.metrics.get("files") for m in Log(target).manifests(2, 1)] == [5, 10]


def test_containers_are_read(spark: SparkSession, bucket: str, tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put_many(files(0, 50).items())
    winkfs.push(tmp_path / "c", f"{bucket}/dir/c")
    both = spark.read.format("winkfs").load(f"{bucket}/dir/c, {tmp_path}/c")
    assert both.where("path = 'd/0007'").count() == 2


@pytest.mark.long
def test_jobs_take_urls(spark: SparkSession, root: str, bucket: str, tmp_path: Path) -> None:
    from winkfs.spark.jobs import compact, dedup, digest, ingest, sort, stats

    flat = {name[2:]: data for name, data in files(0, 60).items()}
    write_files(tmp_path / "tree", flat | {"same": b"7"})
    done = ingest.run(spark, [str(tmp_path / "tree")], root)
    assert (done["files"], done["output"]) == (61, root)
    assert ingest.run(spark, [str(tmp_path / "tree")], root)["skipped"] == 1
    assert stats.run(spark, root)["files"] == 61
    order = sort.run(spark, root, str(tmp_path / "order"), "path", descending=True)
    assert order["files"] == 61
    there = load(spark, root, orderBy=f"perm:{tmp_path}/order", columns="path")
    assert [row.path for row in there.collect()][:2] == ["same", "0059"]
    assert digest.run(spark, root, str(tmp_path / "digests"))["files"] == 61
    into = trust(f"{bucket}/into{next(_numbers)}")
    assert dedup.run(spark, root, into=into)["doubles"] == 1
    assert stored.names(into) == sorted(flat)
    assert dedup.run(spark, root, delete=True)["doubles"] == 1
    save(frame(spark, 0, 30), root)
    assert compact.run(spark, root, everything=True)["removed"] > 1
    assert stored.files(root) == flat | files(0, 30)
    assert winkfs.verify(root).problems == []
