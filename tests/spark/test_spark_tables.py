"""Tables of Spark's catalog and temporary views over data sets, in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import stored
from data_sets import add
from sparking import SparkSession

import winkfs
import winkfs.spark
from winkfs.dataset import manifest

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "a set"
    manifest.create(root)
    add(root, {"a": b"1", "b": b"22"})
    return root


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    winkfs.spark.register(spark)
    yield spark
    spark.sql("drop table if exists winkfs_t")


CREATED = ["options (path '{}')", "location '{}'", "options (path '{}') tblproperties ('k' = 'v')"]


@pytest.mark.few(1)
@pytest.mark.parametrize("how", CREATED)
def test_a_query_names_the_path_of_the_table_it_reads_or_writes(
    session: SparkSession, root: Path, how: str
) -> None:
    session.sql(f"create table winkfs_t using winkfs {how.format(root)}")
    table = f"winkfs_t with (path = '{root}')"
    found = session.sql(f"select path, content from {table}").collect()
    assert {row.path: bytes(row.content) for row in found} == {"a": b"1", "b": b"22"}
    session.sql(f"insert into {table} (path, content) values ('c', X'33'), ('a', X'34')")
    assert stored.files(root) == {"a": b"4", "b": b"22", "c": b"3"}
    assert session.sql(f"select sum(size) from {table}").first()[0] == 4  # planned anew
    session.sql(f"insert overwrite {table} select concat(path, '_'), size, mtime, content "
                f"from {table}")  # fmt: skip
    assert stored.files(root) == {"a_": b"4", "b_": b"22", "c_": b"3"}
    assert session.read.option("path", str(root)).table("winkfs_t").count() == 3
    session.sql("drop table winkfs_t")
    assert stored.files(root) == {"a_": b"4", "b_": b"22", "c_": b"3"}


def test_a_table_without_a_path_names_the_remedy(session: SparkSession, root: Path) -> None:
    """Spark 4.3 gives its options to no Python source; what a later one gives is used."""
    session.sql(f"create table winkfs_t using winkfs options (path '{root}')")
    try:
        assert session.sql("select * from winkfs_t").count() == 2
        session.sql("insert into winkfs_t (path, content) values ('c', X'33')")
        assert stored.files(root) == {"a": b"1", "b": b"22", "c": b"3"}
    except Exception as error:
        first = str(error).splitlines()[0]
        assert "no path" in first
        assert "WITH (path = 'DIR')" in first
        assert stored.files(root) == {"a": b"1", "b": b"22"}


def test_a_misspelt_table_option_is_reported(session: SparkSession, root: Path) -> None:
    with pytest.raises(Exception, match="no option 'prefx': did you mean prefix"):
        session.sql(f"create table winkfs_t using winkfs options (path '{root}', prefx 'a')")


def test_a_frame_is_saved_as_a_table(session: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "set"
    frame = session.createDataFrame([("a", b"1"), ("b", b"2")], "path string, content binary")
    writer = frame.write.format("winkfs").mode("append")
    writer.option("path", str(root)).saveAsTable("winkfs_t")
    assert stored.files(root) == {"a": b"1", "b": b"2"}
    rows = session.read.option("path", str(root)).table("winkfs_t").collect()
    assert {row.path: bytes(row.content) for row in rows} == {"a": b"1", "b": b"2"}
    frame.limit(1).writeTo("winkfs_t").option("path", str(root)).append()
    writer.option("path", str(root)).saveAsTable("winkfs_t")
    assert stored.files(root) == {"a": b"1", "b": b"2"}


def test_a_temporary_view_is_read_and_written(session: SparkSession, root: Path) -> None:
    session.sql(f"create temporary view winkfs_v using winkfs options (path '{root}')")
    try:
        session.sql("insert into winkfs_v (path, content) values ('c', X'33')")
        assert stored.files(root) == {"a": b"1", "b": b"22", "c": b"3"}
        assert session.sql("select sum(size) from winkfs_v").first()[0] == 4
        session.sql("insert overwrite winkfs_v (path, content) values ('d', X'34')")
        assert stored.files(root) == {"d": b"4"}
    finally:
        session.sql("drop view winkfs_v")
