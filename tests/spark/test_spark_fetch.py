"""Late fetch: the right contents, in the order of the rows, whatever the query did before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flips import flip
from sparkfiles import KINDS, Kinds, damage, documents, plain, read
from sparkfiles import kinds as kinds  # a fixture
from sparking import SparkSession

import winkfs
import winkfs.spark

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from winkfs.names import to_name  # noqa: E402
from winkfs.spark.reading.fetch import _Fetch  # noqa: E402

pytestmark = pytest.mark.spark

REFS = "name_raw binary, size long, _container string, _contid long, _pos long, _pointer long"


def fetch(rows: list[Any], mode: str = "FAILFAST", batch: int = 1 << 20) -> list[Any]:
    """Rows of REFS with their contents, as a task fetches them."""
    given = pa.RecordBatch.from_pylist(rows)
    return [row for found in _Fetch(mode, batch)([given]) for row in found.to_pylist()]


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 30_000, 1 << 30])
def test_contents_in_the_order_of_the_rows(kinds: Kinds, kind: str, batch: int) -> None:
    rows = read(kinds[kind], REFS)
    np.random.default_rng(3).shuffle(rows)
    found = fetch(rows, batch=batch)
    assert [row["name_raw"] for row in found] == [row["name_raw"] for row in rows]
    wanted = {name: file.content for name, file in documents(kinds[kind]).items()}
    assert {row["name_raw"]: row["content"] for row in found} == wanted


def test_rows_of_several_containers_and_rows_that_come_twice(kinds: Kinds) -> None:
    rows = [row for kind in ("plain", "dataset", "ao") for row in read(kinds[kind], REFS)]
    rows = [rows[i] for i in np.random.default_rng(4).integers(0, len(rows), 900).tolist()]
    contents = {
        (kind, name): file.content
        for kind in ("plain", "dataset", "ao")
        for name, file in documents(kinds[kind]).items()
    }
    for row in fetch(rows, batch=100_000):
        kind = next(kind for kind in ("plain", "dataset", "ao")
                    if row["_container"].startswith(str(kinds[kind])))  # fmt: skip
        assert row["content"] == contents[kind, row["name_raw"]]


def test_damage_in_the_three_modes(tmp_path: Path) -> None:
    base = plain(tmp_path / "c")
    rows = read(base, REFS)
    damage(base, "dir1/page 0008.html", "large")
    broken = {b"dir1/page 0008.html", b"large"}
    with pytest.raises(winkfs.WinkError, match="checksum at byte"):
        fetch(rows)
    found = fetch(rows, "PERMISSIVE")
    assert [row["name_raw"] for row in found] == [row["name_raw"] for row in rows]
    assert {row["name_raw"] for row in found if row["_error"]} == broken
    assert all((row["content"] is None) == bool(row["_error"]) for row in found)
    found = fetch(rows, "DROPMALFORMED")
    assert {r["name_raw"] for r in rows} - {r["name_raw"] for r in found} == broken


def test_wrong_references_raise_and_never_return_other_bytes(tmp_path: Path) -> None:
    base = plain(tmp_path / "c")
    rows = read(base, REFS)
    contents = {name: file.content for name, file in documents(base).items()}
    rng = np.random.default_rng(6)
    for key in ("_pointer", "_pos", "size"):
        for row in rows:
            row[key] += int(rng.choice([-9, -1, 1, 5, 1 << 20, 1 << 40]))
        for row in fetch([dict(row) for row in rows], "PERMISSIVE"):
            assert row["_error"] or row["content"] == contents[row["name_raw"]]
        rows = read(base, REFS)


def test_a_container_that_was_replaced_is_a_stale_plan(tmp_path: Path) -> None:
    rows = read(plain(tmp_path / "c"), REFS)
    plain(tmp_path / "d")
    (tmp_path / "d.data").replace(tmp_path / "c.data")
    with pytest.raises(winkfs.WinkError, match=r"another container.*load\(\) again"):
        fetch(rows)
    for name in ("c.data", "c.idx"):
        (tmp_path / name).unlink()
    with pytest.raises(winkfs.WinkError, match=r"gone.*load\(\) again"):
        fetch(rows)


@pytest.mark.long
def test_sort_and_join_then_fetch_in_spark(spark: SparkSession, kinds: Kinds) -> None:
    wanted = {name: file.content for name, file in documents(kinds["dataset"]).items()}
    frame = winkfs.spark.read(spark, kinds["dataset"], content="ref")
    ordered = frame.repartitionByRange(3, "size").sortWithinPartitions("size")
    fetched = winkfs.spark.fetch_content(ordered)
    assert fetched.columns == [*frame.columns, "content"]
    rows = fetched.collect()
    assert [row.size for row in rows] == sorted(len(content) for content in wanted.values())
    assert {to_name(row.path.encode()): bytes(row.content) for row in rows} == wanted

    labels = spark.createDataFrame([("empty", 1), ("dir1/page 0008.html", 2)], "path string, n int")
    joined = winkfs.spark.fetch_content(frame.join(labels, "path"), mode="permissive")
    found = {
        row.path.encode(): (row.n, bytes(row.content), row["_error"]) for row in joined.collect()
    }
    assert found == {
        b"empty": (1, b"", None),
        b"dir1/page 0008.html": (2, wanted[b"dir1/page 0008.html"], None),
    }
    assert winkfs.spark.fetch_content(frame.where("size < 0")).count() == 0


def test_errors_of_a_read_stay_in_a_fetch(spark: SparkSession, tmp_path: Path) -> None:
    """A row without a reference, of a damaged inode, keeps its reason."""
    base = plain(tmp_path / "c")
    data = tmp_path / "c.data"
    flip(data, data.read_bytes().index(b"dir1/page 0008.html/I0") + 40)
    (tmp_path / "c.cat").unlink()  # so that inodes are read to list the files
    columns = ["path", "size", "mode", "_error", "_container", "_contid", "_pos", "_pointer"]
    frame = winkfs.spark.read(spark, base, columns=columns, mode="PERMISSIVE")
    rows = winkfs.spark.fetch_content(frame, mode="PERMISSIVE").where("_error is not null")
    assert "checksum at byte" in rows.first()["_error"]
    assert winkfs.spark.fetch_content(frame, mode="DROPMALFORMED").count() == frame.count() - 1


def test_wrong_calls_are_one_clear_line(spark: SparkSession, kinds: Kinds) -> None:
    frame = winkfs.spark.read(spark, kinds["plain"], content="ref")
    for wrong, line in [
        (lambda: winkfs.spark.fetch_content(frame.drop("_pos")), "needs the column _pos"),
        (lambda: winkfs.spark.fetch_content(frame, mode="x"), "mode is 'x': it takes FAILFAST"),
        (lambda: winkfs.spark.fetch_content(frame.selectExpr("*", "path as content")),
         "which is there already"),
        (lambda: winkfs.spark.fetch_content(
            frame.withColumn("size", frame.size.cast("int"))), "column size is bigint, not int"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=line):
            wrong()


def test_a_fetch_leaves_the_page_cache_as_it_was(tmp_path: Path) -> None:
    from winkformats.disk import pagecache

    base = plain(tmp_path / "c")
    rows = read(base, REFS)
    np.random.default_rng(3).shuffle(rows)
    with (tmp_path / "c.data").open("rb") as data:
        size = data.seek(0, 2)
        os.fsync(data.fileno())
        pagecache.forget(data.fileno(), 0, 1 << 30)
        absent = pagecache.absent(data.fileno(), size)
        if absent is None or not absent.all():
            pytest.skip("this filesystem does not drop pages")
        fetch(rows, batch=50_000)
        absent = pagecache.absent(data.fileno(), size)
    assert absent is not None
    assert len(absent) - int(absent.sum()) <= 8 + 1  # pages; that of the end is left
