"""Compressed content in Spark: the content column, references and conditions give documents."""

from __future__ import annotations

from pathlib import Path

import pytest
import stored
from compressed_files import documents, make
from sparking import SparkSession, save

import winkfs.spark
from winkfs.dataset.manifest import Log

pytest.importorskip("pyspark")

pytestmark = pytest.mark.spark


def test_documents_their_sizes_and_references(spark: SparkSession, tmp_path: Path) -> None:
    files = documents()
    make(tmp_path / "c", files)
    frame = winkfs.spark.read(spark, tmp_path / "c")
    rows = {row.path: row for row in frame.select("path", "size", "content").collect()}
    assert {path: bytes(row.content) for path, row in rows.items()} == files
    assert {path: row.size for path, row in rows.items()} == {n: len(d) for n, d in files.items()}
    large = frame.where("size > 500000").select("path", "content").collect()
    assert {row.path: bytes(row.content) for row in large} == {
        name: data for name, data in files.items() if len(data) > 500_000
    }
    refs = winkfs.spark.read(spark, tmp_path / "c", content="ref").where("path like 'd/%'")
    fetched = winkfs.spark.fetch_content(refs.orderBy("size")).select("path", "content").collect()
    assert {row.path: bytes(row.content) for row in fetched} == {
        name: data for name, data in files.items() if name.startswith("d/")
    }
    save(frame, tmp_path / "set", compress="zstd")
    assert stored.files(tmp_path / "set") == files
    sizes = [path.stat().st_size for path in (tmp_path / "set").rglob("*.data")]
    assert sum(sizes) < sum(map(len, files.values())) * 0.7
    save(frame.limit(3), tmp_path / "set")
    shards = Log(str(tmp_path / "set")).latest().shards
    assert len(shards) > 1 and {record.level for record in shards} == {9}  # it remembers
