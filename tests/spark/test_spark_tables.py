"""Tables of Spark's catalog and temporary views over data sets, in SQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import stored
from data_sets import add
from flips import flip
from sparking import DataFrame, SparkSession, save
from test_spark_stream import limits

import winkfs
import winkfs.spark
from winkfs.dataset import manifest

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")

from pyspark.sql.types import StructType  # noqa: E402 - needs the above

from pyspark_winkfs import DefaultSource  # noqa: E402
from winkfs.spark.reading.options import Options  # noqa: E402
from winkfs.spark.reading.tables import KEY, table_schema  # noqa: E402


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
    spark.sql("drop view if exists winkfs_v")


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


def refusal(action: Callable[[], object]) -> str:
    """Return the one line of what an action raises."""
    with pytest.raises(Exception) as caught:
        action()
    first, *rest = str(caught.value).splitlines()
    assert not any("Traceback" in line for line in rest)
    return first


def names(frame: DataFrame) -> list[str]:
    return sorted(row.path for row in frame.select("path").collect())


def test_a_table_is_read_by_its_name(session: SparkSession, root: Path) -> None:
    """With its options, planned anew by each query; a query adds options, or has its own."""
    add(root, {"c": b"333"})
    made = (
        f"create table winkfs_t using winkfs options (path '{root}', minSize '2', columns 'path')"
    )
    session.sql(made)
    session.sql("create temporary view winkfs_v as select path from winkfs_t where path < 'c'")
    assert names(session.table("winkfs_t")) == ["b", "c"]
    assert names(session.sql("select * from winkfs_t with (maxSize = 2)")) == ["b"]
    assert names(session.sql(f"select * from winkfs_t with (path = '{root}')")) == ["a", "b", "c"]
    add(root, {"bb": b"22", "d": b"4"})
    joined = session.sql("select t.path from winkfs_t t left join winkfs_v v on t.path = v.path "
                         "where v.path is null")  # fmt: skip
    assert names(joined) == ["c"]
    assert [row.tableName for row in session.sql("show tables").collect() if row.tableName[-1:]
            == "t"] == ["winkfs_t"]  # fmt: skip
    described = {row.col_name: row.data_type for row in session.sql("describe extended winkfs_t")
                 .collect()}  # fmt: skip
    assert described["path"] == "string"
    assert described.get("Table", "winkfs_t") == "winkfs_t"  # Spark 4.1 has no such row
    assert "path STRING" in session.sql("show create table winkfs_t").first()[0]


def test_a_column_that_came_later_is_added(session: SparkSession, root: Path) -> None:
    session.sql(f"create table winkfs_t using winkfs location '{root}'")
    save(session.sql("select 'd' path, X'31' content, 7L score"), root)
    assert session.table("winkfs_t").columns == ["path", "size", "mtime", "content"]
    session.sql("alter table winkfs_t add columns (score bigint)")
    session.sql("alter table winkfs_t alter column path comment 'its name'")
    found = session.sql("select path, score from winkfs_t").collect()
    assert {row.path: row.score for row in found} == {"a": None, "b": None, "d": 7}


NO_PATH = [
    "insert into winkfs_t select * from winkfs_u",
    "insert into winkfs_u select * from winkfs_u",
    "create table winkfs_s using winkfs as select * from winkfs_u",
    "create table winkfs_s using winkfs options (path '{}') as select * from winkfs_u",
]


def test_what_does_not_name_its_path_writes_nothing(
    session: SparkSession, root: Path, tmp_path: Path
) -> None:
    """The columns of a query carry the path of the table that it reads, not of the one to write."""
    other = tmp_path / "other"
    add(other, {"x": b"1"})
    session.sql(f"create table winkfs_t using winkfs options (path '{root}')")
    session.sql(f"create table winkfs_u using winkfs options (path '{other}')")
    frame = session.table("winkfs_u")
    try:
        lines = [refusal(partial(session.sql, text.format(tmp_path / "new"))) for text in NO_PATH]
        lines.append(refusal(lambda: frame.write.insertInto("winkfs_t")))
        writer = frame.write.format("winkfs").mode("append")
        lines.append(refusal(lambda: writer.saveAsTable("winkfs_s")))
        assert all("no path" in line and "WITH (path = 'DIR')" in line for line in lines)
        assert stored.files(root) == {"a": b"1", "b": b"22"} and stored.files(other) == {"x": b"1"}
        writer.option("path", str(tmp_path / "third")).saveAsTable("winkfs_s")
        line = refusal(lambda: session.table("winkfs_s").collect())  # not those of winkfs_u
        assert "no path" in line and "CREATE TABLE .. USING winkfs" in line
        session.sql(f"insert into winkfs_t with (path = '{root}') select * from winkfs_u")
        assert names(session.table("winkfs_t")) == ["a", "b", "x"]
    finally:
        session.sql("drop table if exists winkfs_u")
        session.sql("drop table if exists winkfs_s")


def test_what_is_written_from_a_table_is_read_by_other_sources(
    session: SparkSession, root: Path, tmp_path: Path
) -> None:
    session.sql(f"create table winkfs_t using winkfs options (path '{root}')")
    session.table("winkfs_t").write.parquet(str(tmp_path / "p"))
    copy = session.read.parquet(str(tmp_path / "p"))
    assert names(copy) == ["a", "b"] and list(copy.schema[0].metadata) == [KEY]
    save(copy, tmp_path / "copy")
    assert stored.files(tmp_path / "copy") == stored.files(root)


@pytest.mark.long
@limits
def test_a_stream_reads_a_table(session: SparkSession, root: Path, tmp_path: Path) -> None:
    options = f"options (path '{root}', glob 'b*', maxFilesPerTrigger '1')"
    session.sql(f"create table winkfs_t using winkfs {options}")
    assert names(session.table("winkfs_t")) == ["b"]
    add(root, {"b2": b"1"})
    writer = session.readStream.table("winkfs_t").writeStream.format("winkfs")
    writer = writer.option("checkpointLocation", str(tmp_path / "check"))
    assert writer.trigger(availableNow=True).start(str(tmp_path / "copy")).awaitTermination(180)
    assert sorted(stored.files(tmp_path / "copy")) == ["b", "b2"]


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
    session.sql("insert into winkfs_v (path, content) values ('c', X'33')")
    assert stored.files(root) == {"a": b"1", "b": b"22", "c": b"3"}
    assert session.sql("select sum(size) from winkfs_v").first()[0] == 4
    session.sql("insert overwrite winkfs_v (path, content) values ('d', X'34')")
    assert stored.files(root) == {"d": b"4"}


# --- without a JVM ---


def table(path: Path | str, **options: str) -> StructType:
    """Return the schema with which Spark makes a table."""
    given = {"provider": "winkfs", "path": str(path)} | options
    given |= {f"option.{name}": value for name, value in options.items()}
    found = DefaultSource(options=given).schema()
    return StructType.fromJson(json.loads(found.json()))  # as the catalog keeps it


def read_of(schema: StructType, **options: str) -> list[dict[str, Any]]:
    reader = DefaultSource(options=options).reader(schema)
    return [row for task in reader.partitions() for batch in reader.read(task)
            for row in batch.to_pylist()]  # fmt: skip


def test_each_type_of_a_column_is_one_of_spark(tmp_path: Path) -> None:
    kinds = {"f": "float64", "b": "bool", "d": "date", "n": "datetime", "m": "decimal(10,2)",
             "l": "list<int64>", "t": "timestamp", "s": "list<string>", "x": "binary"}  # fmt: skip
    with winkfs.create(tmp_path / "c", columns=kinds) as made:
        made.put("x", b"1", columns={"l": [1, 2], "m": Decimal("1.25")})
    schema = table(tmp_path / "c")
    found = {field.name: field.dataType.simpleString() for field in schema}
    assert list(found.items())[4:] == [
        ("f", "double"), ("b", "boolean"), ("d", "date"), ("n", "timestamp_ntz"),
        ("m", "decimal(10,2)"), ("l", "array<bigint>"), ("t", "timestamp"), ("s", "array<string>"),
        ("x", "binary"),
    ]  # fmt: skip
    assert [row["l"] for row in read_of(schema)] == [[1, 2]]


def test_a_damaged_name_is_empty_in_a_table(tmp_path: Path) -> None:
    """The path of a table is NOT NULL."""
    stored.make(tmp_path / "c", {"a": b"1", "b": b"2"})
    schema = table(tmp_path / "c", mode="PERMISSIVE")
    data = tmp_path / "c.data"
    flip(data, data.read_bytes().index(b"a/I0") + 40)
    rows = read_of(schema)
    assert {row["path"]: row["_error"] is None for row in rows} == {"": False, "b": True}


@pytest.mark.parametrize("path", ["abfs://me:secret@there/x", "https://there/x?sig=secret"])
def test_no_secret_gets_into_a_catalog(path: str) -> None:
    options = replace(Options.of({"path": "/x"}), sources=(path,))
    with pytest.raises(ValueError, match="must not have a password") as caught:
        table_schema({"provider": "winkfs"}, options, [("path", "string")])
    assert "secret" not in str(caught.value)


def test_a_table_has_a_column_that_is_never_null(root: Path) -> None:
    with pytest.raises(ValueError, match="one of the columns path, name_raw, id"):
        table(root, columns="size,mtime")
    assert [row["name_raw"] for row in read_of(table(root, columns="size,name_raw"))] == [
        b"a", b"b"]  # fmt: skip


def test_spark_sets_the_option_paths_too(root: Path) -> None:
    """For load([..]) with the schema of a table, so it may not choose files of the table."""
    with pytest.raises(ValueError, match="option paths goes with the path"):
        read_of(table(root), paths='["/another", "/set"]')
    assert [row["path"] for row in read_of(table(root, paths='["b"]'))] == ["b"]
