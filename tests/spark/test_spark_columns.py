"""Columns of files in Spark: written, read, asked for with `where`, streamed, of mixed schemas."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import stored
from mounting import mounted, need, run, winkfs_command
from sparking import DataFrame, SparkSession, load, refusal, save
from test_spark_stream import pour
from typed_files import DAY, EDGES, SCHEMA, assert_answers, files, known, make, nulls, same

import winkfs
from winkfs import FileType
from winkfs.container.ondisk.typed import EPOCH, to_text, to_value

pytest.importorskip("pyarrow")
import pyarrow.parquet as pq

from winkfs.spark import streaming
from winkfs.spark.jobs import ingest

pytestmark = pytest.mark.spark

DDL = {
    "string": "string", "binary": "binary", "bool": "boolean", "int64": "bigint",
    "float64": "double", "timestamp": "timestamp", "list<string>": "array<string>",
    "date": "date", "datetime": "timestamp_ntz", "decimal(12,3)": "decimal(12,3)",
    "decimal(38,10)": "decimal(38,10)", "list<int64>": "array<bigint>",
    "list<float64>": "array<double>",
}  # fmt: skip
TYPED = ", ".join(f"{name} {DDL[kind]}" for name, kind in SCHEMA.items())
NEAR = [DAY, DAY + timedelta(microseconds=1), datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=UTC)]
QUESTIONS = [
    "lang = 'de'", "lang <> 'de'", "n > 0 or n is null", "not (n > 0)", "n in (0, 1000)", "good",
    "not good", "n not in (0, 1)", "score > 0.05", "score = 0", "score between -1 and 0.5",
    "lang like 'd%'", "lang not like '%e'", "array_contains(tags, 'a')", "tags is null",
    "at > timestamp '2026-01-01T00:00:00Z'", "at <= timestamp '2026-01-01T00:00:00Z'",
    "day >= '2026-01-01'", "day < '2026-01-01'", "day not in ('1969-12-31', '2026-01-01')",
    "local < '2026-01-01 00:00:00'", "local = '2026-01-01 00:00:00'", "local is not null",
    "price = 19.99", "price <= -19.9900001", "price < 20", "price in (0, 19.990)",
    "wide > 0", "wide = 0.0000000001", "wide != 0.00000000010", "wide between -1 and 1",
    "array_contains(counts, 7)", "not array_contains(counts, 7)", "not array_contains(tags, 'a')",
    "array_contains(vector, 0.5)", "counts is null",
    "path like 'd1/%' and lang is not null", "size > 2 and not good", "lang >= 'e' and lang < 'g'",
]  # fmt: skip
TOGETHER = 10  # questions of one query


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a data set is to be."""
    return tmp_path / "set"


def values(i: int) -> dict[str, Any]:
    """As `typed_files.values`, with times that Python and Java agree on."""
    found = {}
    for number, (name, pool) in enumerate((EDGES | {"at": NEAR}).items()):
        null = (i + number) % 5 == 0
        found[name] = None if null else pool[(i * (number + 3) // 2 + number) % len(pool)]
    return found


def frame(spark: SparkSession, count: int, start: int = 0, partitions: int = 2) -> DataFrame:
    rows = [
        (f"d{i % 3}/f{i:05d}", b"%d" % i * (i % 4), *values(i).values())
        for i in range(start, start + count)
    ]
    made = spark.createDataFrame(rows, f"path string, content binary, {TYPED}")
    return made.repartition(partitions)


def plain(value: Any, name: str = "") -> Any:
    if isinstance(value, datetime) and name != "local":
        return value.astimezone(UTC)
    if isinstance(value, Decimal):  # Spark writes 0.0000000001 as 1.00E-10
        places = 3 if name == "price" else 10
        return to_value(f"decimal(38,{places})", f"{value:f}".encode())
    return bytes(value) if isinstance(value, bytearray) else value


def read(rows: DataFrame) -> dict[str, dict[str, Any]]:
    return {
        row["path"]: {name: plain(row[name], name) for name in SCHEMA if name in row}
        for row in rows.collect()
    }


def assert_read(rows: DataFrame, wanted: dict[str, dict[str, Any]]) -> None:
    found = read(rows)
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        off = {key: (found[name][key], value) for key, value in one.items()
               if not same(found[name][key], value)}  # fmt: skip
        assert not off, name


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PySpark 4.3 of pandas 3
def test_frames_of_pandas_are_written_and_read_back(spark: SparkSession, tmp_path: Path) -> None:
    """By Arrow and by rows: pandas 3 has a type of its own for texts and other units of time. By
    rows PySpark makes "nan" of a missing text of that type: such a column is of objects here."""
    pandas = pytest.importorskip("pandas")
    made = pandas.DataFrame({
        "path": ["a.html", "b.html"], "content": [b"<a>", b""], "lang": ["de", None],
        "n": [1, 2], "score": [0.5, -1.0], "at": pandas.to_datetime([DAY, NEAR[2]], utc=True),
    })  # fmt: skip
    kinds = "path string, content binary, lang string, n bigint, score double, at timestamp"
    for arrow in ("true", "false"):
        root = tmp_path / arrow
        if arrow == "false":
            made["lang"] = pandas.Series(["de", None], dtype=object)
        spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", arrow)
        try:
            save(spark.createDataFrame(made, kinds), root)
            rows = load(spark, root).select(*made.columns).orderBy("path")
            found = rows.toPandas()
        finally:
            spark.conf.unset("spark.sql.execution.arrow.pyspark.enabled")
        assert [plain(value) for value in found["content"]] == [b"<a>", b""]
        assert list(found["path"]) == ["a.html", "b.html"] and list(found["n"]) == [1, 2]
        assert found["lang"][0] == "de" and pandas.isna(found["lang"][1])
        # Times of pandas are those of the session's zone, without it.
        assert read(rows)["a.html"]["at"] == DAY and read(rows)["b.html"]["at"] == NEAR[2]
        again = found.assign(path=["c.html", "d.html"], lang=made["lang"])
        save(spark.createDataFrame(again, kinds), root)
        with winkfs.open(root) as data_set:
            assert known(data_set)["c.html"]["at"] == DAY
            assert known(data_set)["d.html"]["lang"] is None
    lengths = rows.mapInPandas(
        lambda frames: (one[["path"]].assign(n=one["content"].map(len)) for one in frames),
        "path string, n long",
    )
    assert sorted(map(tuple, lengths.collect())) == [("a.html", 3), ("b.html", 0)]


@pytest.mark.few(1)
@pytest.mark.parametrize("ao", [False, True])
def test_all_types_are_written_and_read_back(
    ao: bool, spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    save(frame(spark, 300), root, ao=str(ao).lower())
    wanted = {f"d{i % 3}/f{i:05d}": values(i) for i in range(300)}
    with winkfs.open(root) as found:
        assert found.columns == SCHEMA
        for name, one in known(found).items():
            assert same(one, wanted[name]), name
        assert_answers(found)
        assert all(shard.record.ao is ao for shard in found.shards)
    back = load(spark, root)
    kinds = {field.name: field.dataType.simpleString() for field in back.schema.fields}
    assert {name: kinds[name] for name in SCHEMA} == {n: DDL[kind] for n, kind in SCHEMA.items()}
    assert_read(back, wanted)
    assert_read(load(spark, root, content="none"), wanted)
    assert back.select("n").count() == 300
    some = back.select("score", "path", "LANG").where("path = 'd1/f00001'").collect()
    assert some == [(values(1)["score"], "d1/f00001", values(1)["lang"])]
    save(back, tmp_path / "copy")
    assert_read(load(spark, tmp_path / "copy"), wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["container", "behind", "set"])
def test_where_chooses_what_a_filter_of_spark_does(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "c"
    if kind == "set":
        save(frame(spark, 200, partitions=3), path)
        save(frame(spark, 100, 150, 1), path)
    else:
        stored.make(
            path,
            ((f"d{i % 3}/f{i:05d}", b"%d" % i * (i % 4), i, values(i)) for i in range(250)),
            columns=SCHEMA,
        )
        if kind == "behind":
            winkfs.reindex(path)
            with winkfs.open(path, "a") as c:
                c.put_many((f"d{i % 3}/f{i:05d}", b"new", 500.0, values(i + 3)) for i in range(40))
                c.delete("d0/f00060")
    whole = load(spark, path)  # not cached: the statistics of a cache drop rows beside nan
    answers = [f"({question}) is true" for question in QUESTIONS]
    rows = whole.selectExpr("path", *answers).collect()
    for start in range(0, len(QUESTIONS), TOGETHER):
        some = enumerate(QUESTIONS[start : start + TOGETHER], start)
        chosen = [load(spark, path, where=one).selectExpr(f"{n} n", "path") for n, one in some]
        found = reduce(lambda a, b: a.unionAll(b), chosen).collect()
        for number, question in enumerate(QUESTIONS[start : start + TOGETHER], start):
            wanted = sorted(row.path for row in rows if row[1 + number])
            assert sorted(row.path for row in found if row.n == number) == wanted, question
    assert sum(sum(row[1:]) for row in rows) > 1000
    question = "n > 0 or n is null"
    both = load(spark, path, where=question, prefix="d1/", minSize="2")
    assert_read(both, read(whole.where(f"({question}) and path like 'd1/%' and size >= 2")))


@pytest.mark.long
def test_where_takes_names_as_the_column_path_has_them(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a\udcff1", "a\\xff1", "a\\b", "a'\u00e4"]
    with winkfs.create(tmp_path / "c", columns={"lang": "string"}) as c:
        for name in names:
            c.put(name, b"", columns={"lang": r"\xff"})
    paths = [row.path for row in load(spark, tmp_path / "c").collect()]
    assert len(set(paths)) == 4 and "a\\xff1" in paths
    for path in paths:
        quoted = path.replace("'", "''")
        for question in (f"path = '{quoted}'", f"lang is null or not path != '{quoted}'"):
            found = load(spark, tmp_path / "c", where=question, content="none")
            assert [row.path for row in found.collect()] == [path]
    found = load(spark, tmp_path / "c", where=r"path like 'a\xff%' and lang = '\xff'")
    assert [row.path for row in found.collect()] == ["a\\xff1"]


def test_schemas_that_differ_are_one(spark: SparkSession, root: Path) -> None:
    first = spark.createDataFrame([("a", b"", 1), ("b", b"", None)],
                                  "path string, content binary, n int")  # fmt: skip
    save(first, root)
    second = spark.createDataFrame(
        [("c", b"", 2.5, "x"), ("d", b"", None, None)],
        "path string, content binary, n float, s string",
    )
    save(second, root)
    save(spark.createDataFrame([("e", b"")], "path string, content binary"), root)
    back = load(spark, root)
    assert dict(back.dtypes)["n"] == "double"
    found = {row.path: (row.n, row.s) for row in back.collect()}
    assert found == {"a": (1.0, None), "b": (None, None), "c": (2.5, "x"), "d": (None, None),
                     "e": (None, None)}  # fmt: skip
    for question in ("n >= 1", "n is null", "s = 'x'", "s is null or n = 1"):
        wanted = sorted(row.path for row in back.where(question).collect())
        found_now = load(spark, root, where=question)
        assert sorted(row.path for row in found_now.collect()) == wanted, question
    old = load(spark, root, asOf="1")
    assert dict(old.dtypes)["n"] == "bigint"
    assert "s" not in old.columns
    save(second, root, "overwrite")
    assert dict(load(spark, root).dtypes)["s"] == "string"


def test_modes_and_types_of_files_go_with_columns(spark: SparkSession, root: Path) -> None:
    rows = [
        ("plain", b"1", None, None, 1), ("mode", b"2", 0o600, None, 2),
        ("exec", b"3", 0o755, None, 3),
        ("type", b"4", None, int(FileType.GZIP), 4), ("null", b"5", 0o640, None, None),
        ("empty", b"", None, None, 6),
    ]  # fmt: skip
    ddl = "path string, content binary, mode int, ftype int, n bigint"
    save(spark.createDataFrame(rows, ddl).coalesce(1), root)
    back = load(spark, root, columns="path,mode,ftype,n")
    found = {row.path: (row.mode, row.ftype, row.n) for row in back.collect()}
    assert found == {
        "plain": (0o644, int(FileType.FILE), 1), "mode": (0o600, int(FileType.FILE), 2),
        "exec": (0o755, int(FileType.EXEC), 3), "type": (0o644, int(FileType.GZIP), 4),
        "null": (0o640, int(FileType.FILE), None), "empty": (0o644, int(FileType.FILE), 6),
    }  # fmt: skip
    assert [row.path for row in load(spark, root, where="n = 3").collect()] == ["exec"]


def test_a_schema_of_the_user_and_the_option_columns(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "c", 30)
    one = load(spark, tmp_path / "c", columns="n,path").collect()
    assert {row.path: row.n for row in one} == {
        name: value.get("n") for name, _, _, value in files(30)
    }
    some = "wide decimal(38,10), day date, vector array<double>, local timestamp_ntz"
    reader = spark.read.format("winkfs").schema(f"path string, Good boolean, {some}")
    rows = reader.load(str(tmp_path / "c")).collect()
    for found, name in (("Good", "good"), ("wide", "wide"), ("day", "day"), ("local", "local")):
        assert {row.path: row[found] for row in rows} == {
            path: value.get(name) for path, _, _, value in files(30)
        }


@pytest.mark.long
def test_wrong_options_are_reported_in_one_line(spark: SparkSession, root: Path) -> None:
    ddl = "path string, content binary, n int, s string"
    save(spark.createDataFrame([("a", b"", 1, "x")], ddl), root)
    for where, what in (("n = ", "a value at its end"), ("zz = 1", "no column 'zz'"),
                        ("n = 'x'", "n is int64"), ("", "name of a column")):  # fmt: skip
        assert what in refusal(lambda where=where: load(spark, root, where=where).collect())
    for schema, what in (
        ("n string", "n is bigint"),
        ("n decimal(9,2)", "n is bigint"),
        ("zz int", "no column 'zz'"),
    ):
        reader = spark.read.format("winkfs").schema(f"path string, {schema}")
        assert what in refusal(lambda reader=reader: reader.load(str(root)).collect())
    assert "no column 'zz'" in refusal(lambda: load(spark, root, columns="path,zz").collect())
    for kind, what in (("map<string,int>", "is map<string,int>"), ("date", "not date: cast"),
                       ("array<array<int>>", "is array<array<int>>"),
                       ("array<date>", "is array<date>")):  # fmt: skip
        rows = spark.createDataFrame([("a", b"", None)], f"path string, content binary, n {kind}")
        assert what in refusal(save, rows, root)
    for name in ("`a b`", "`1`", "_pos", "N", "S"):
        rows = spark.createDataFrame(
            [("b", b"", "x")], f"path string, content binary, {name} string"
        )
        answer = refusal(save, rows, root)
        assert name.strip("`") in answer
        assert "rename" in answer
    rows = spark.createDataFrame([("b", b"", "x")], "path string, content binary, n string")
    assert "column 'n' is bigint in the data set, not string" in refusal(save, rows, root)
    save(rows, root, ignoreExtra="true")
    back = {row.path: row.n for row in load(spark, root).collect()}
    assert back == {"a": 1, "b": None}


def test_an_empty_frame_has_its_columns(spark: SparkSession, root: Path) -> None:
    empty = spark.createDataFrame([], "path string, content binary, k int")
    for mode in ("append", "append", "overwrite"):
        save(empty, root, mode)
        assert load(spark, root, where="k > 1").collect() == []
        assert "k" in load(spark, root).columns
    with winkfs.open(root) as files:
        assert files.columns == {"k": "int64"} and len(files) == 0
    save(spark.createDataFrame([("a", b"1", 2)], "path string, content binary, k int"), root)
    assert [row.k for row in load(spark, root, where="k > 1").collect()] == [2]
    assert winkfs.verify(root).problems == []


@pytest.mark.long
def test_a_stream_shows_columns_and_writes_them(spark: SparkSession, tmp_path: Path) -> None:
    source, root = tmp_path / "log", tmp_path / "set"
    made = ((f"f{i:04d}", b"x", 1e9 + i, values(i)) for i in range(60))
    stored.make(source, made, ao=True, columns=SCHEMA)
    limit = {} if streaming.ReadMaxFiles is object else {"maxFilesPerTrigger": "20"}  # Spark 4.1
    rows = spark.readStream.format("winkfs").options(**limit).load(str(source))
    assert set(SCHEMA) <= set(rows.columns)
    for count in (60, 90):
        pour(rows, root, tmp_path / "check")
        assert_read(load(spark, root), {f"f{i:04d}": values(i) for i in range(count)})
        with winkfs.open(source, "a") as c:
            c.put_many((f"f{i:04d}", b"x", 1e9 + i, values(i)) for i in range(count, 90))
    with winkfs.open(root) as found:
        assert found.columns == SCHEMA
        assert nulls().keys() == SCHEMA.keys()


# --- the whole way round ---

WAY = {
    "lang": ["", "de", "it's\t\n\0", "\u00fc\U0001f600\u00df", " blank ", "x" * 5000],
    "raw": [b"", b"\0", b"\xff\xc3\n=", b"12 a=b\n", b"x" * 3000],
    "good": [True, False],
    "n": [-(1 << 63), -1, 0, 1, (1 << 53) + 1, (1 << 63) - 1],
    "score": [math.nan, math.inf, -math.inf, -0.0, 0.0, 0.1, 5e-324, -1.7976931348623157e308],
    "at": [DAY, datetime(1, 1, 1, tzinfo=UTC), datetime(1677, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
           datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
           datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
    "tags": [[], [""], ["a", 'b,"c"', "\n\\"], ["\u00fc\U0001f600", ""],
             [str(i) for i in range(99)], [None], ["a", None], [None, ""]],
    "day": EDGES["day"], "local": EDGES["local"], "price": EDGES["price"], "wide": EDGES["wide"],
    "counts": [*EDGES["counts"], list(range(3000))], "vector": [*EDGES["vector"], [0.1] * 3000],
}  # fmt: skip
Truth = dict[str, dict[str, Any]]


def the_truth() -> Truth:
    """Each value of each type once at least, each null, and a file without any value."""
    most = max(map(len, WAY.values()))
    found: Truth = {}
    for i in range(3 * most):
        found[f"d{i % 3}/\u00fc f{i:02d}"] = {
            name: None if (i + k) % 7 == 0 else pool[i % len(pool)]
            for k, (name, pool) in enumerate(WAY.items())
        }
    for name, pool in WAY.items():
        for value in pool:
            assert any(same(one[name], value) for one in found.values()), (name, value)
    return found | {"d0/none": nulls()}


def content(name: str) -> bytes:
    """Of each kind that is stored in another way: none, little, and streamed."""
    number = sum(name.encode()) % 7
    return name.encode() * {0: 0, 1: 100_000}.get(number, number)


def assert_truth(path: Path, truth: Truth, stage: str) -> None:
    """Values, types and nulls, file by file, of the scan, and of the catalog."""
    with winkfs.open(path) as files:
        assert files.columns == SCHEMA, stage
        found = {e.name: e for e in files.scan() if e.ftype == FileType.FILE}
        assert found.keys() == truth.keys(), stage
        for name, one in truth.items():
            assert same(files.getcolumns(name), one), (stage, name)
            assert same({**nulls(), **found[name].columns}, one), (stage, name)
            assert found[name].read() == content(name), (stage, name)
        for column in SCHEMA:
            null = {
                entry.name
                for entry in files.scan(where=f"{column} is null and ftype = {int(FileType.FILE)}")
            }
            assert null == {name for name, one in truth.items() if one[column] is None}, stage
    assert winkfs.verify(path).problems == [], stage


def values_on_disk(root: Path, names: Iterable[str]) -> Truth:
    """What any program sees of the files in a directory."""
    found: Truth = {}
    for name in names:
        keys = os.listxattr(root / name)
        found[name] = {
            column: to_value(kind, os.getxattr(root / name, f"user.{column}"))
            if f"user.{column}" in keys
            else None
            for column, kind in SCHEMA.items()
        }
        for column, value in found[name].items():
            assert (value is None) is (f"user.{column}" not in keys), (name, column)
    return found


@pytest.mark.long
@pytest.mark.mount
def test_values_stay_as_they_are_the_whole_way_round(spark: SparkSession, tmp_path: Path) -> None:
    need("tar")
    truth = the_truth()
    names = list(truth)
    by_put, by_many, by_hand = names[::3], names[1::3], names[2::3]

    with winkfs.create(tmp_path / "first", columns=SCHEMA) as c:
        for name in by_put:
            c.put(name, content(name), columns=truth[name])
        c.put_many((name, content(name), None, truth[name]) for name in by_many)
    with mounted(tmp_path / "first") as there:
        for name in by_hand:
            (there / name).parent.mkdir(exist_ok=True)
            (there / name).write_bytes(content(name))
            for column, value in truth[name].items():
                if value is not None:
                    text = to_text(column, SCHEMA[column], value)
                    assert text is not None
                    os.setxattr(there / name, f"user.{column}", text)
        assert same(values_on_disk(there, names), truth)
        winkfs_command("pack", there, tmp_path / "packed")
    assert_truth(tmp_path / "first", truth, "mount")
    assert_truth(tmp_path / "packed", truth, "pack of a mount")

    with mounted(tmp_path / "packed", "-o", "ro") as there:
        assert same(values_on_disk(there, names), truth)
        run("tar", "--xattrs", "-cf", tmp_path / "t.tar", "-C", there, ".")
    winkfs_command("pack", tmp_path / "t.tar", tmp_path / "tarred")
    assert_truth(tmp_path / "tarred", truth, "pack of a tar file")

    winkfs_command("dataset", "create", tmp_path / "set")
    winkfs_command("dataset", "add", tmp_path / "set", tmp_path / "tarred")
    with winkfs.open(tmp_path / "set", "a") as files:  # a commit that replaces some of them
        for name in by_put:
            files.put(name, content(name), columns=truth[name])
    assert_truth(tmp_path / "set", truth, "data set")

    rows = load(spark, tmp_path / "set")
    kinds = dict(rows.dtypes)
    assert {name: kinds[name] for name in SCHEMA} == {n: DDL[kind] for n, kind in SCHEMA.items()}
    # Years 1 and 9999 are no datetime in the zone of every driver.
    there = rows.selectExpr("*", "unix_micros(at) as micros").drop("at").collect()
    found = {row.path: {name: plain(row[name], name) for name in SCHEMA if name != "at"}
             | {"at": to_time(row.micros)} for row in there}  # fmt: skip
    assert found.keys() == truth.keys()
    for name, one in truth.items():
        assert same({**nulls(), **found[name]}, one), name

    for kind in ("INT96", "TIMESTAMP_MICROS"):
        stored = tmp_path / kind
        write_parquet(spark, rows, stored, kind)
        target = tmp_path / f"{kind}.set"
        summary = ingest.run(spark, sorted(map(str, stored.glob("*.parquet"))), str(target))
        assert summary["bad"] == 0
        assert_truth(target, truth, f"ingest of Parquet, {kind}")


def to_time(micros: int | None) -> datetime | None:
    return None if micros is None else EPOCH + timedelta(microseconds=micros)


def write_parquet(spark: SparkSession, rows: DataFrame, to: Path, times: str) -> None:
    """As Spark does by itself, but for its refusal of old times."""
    settings = {"outputTimestampType": times, "int96RebaseModeInWrite": "CORRECTED",
                "datetimeRebaseModeInWrite": "CORRECTED"}  # fmt: skip
    names = [f"spark.sql.parquet.{name}" for name in settings]
    before = [spark.conf.get(name) for name in names]
    try:
        for name, value in zip(names, settings.values(), strict=True):
            spark.conf.set(name, value)
        rows.coalesce(1).write.parquet(str(to))
    finally:
        for name, value in zip(names, before, strict=True):
            spark.conf.set(name, value or "")


def test_values_stay_as_they_are_by_arrow(spark: SparkSession, tmp_path: Path) -> None:
    """From Python to Arrow, Parquet, a data set, Spark, another data set, and Arrow again."""
    truth = the_truth()
    stored.make(
        tmp_path / "first",
        (
            (name, content(name), 1_700_000_000 + i, one)
            for i, (name, one) in enumerate(truth.items())
        ),
        columns=SCHEMA,
    )

    def table(path: Path, **options: Any) -> Any:
        with winkfs.open(path) as files:
            found = files.to_arrow(order="name", **options)
        found.validate(full=True)
        return found

    first = table(tmp_path / "first")
    rows = {row["path"]: row for row in first.to_pylist()}
    assert rows.keys() == truth.keys()
    for name, one in truth.items():
        found = {column: plain(rows[name][column], column) for column in SCHEMA}
        assert same(found, one), name
        assert rows[name]["content"] == content(name)
    pq.write_table(first, tmp_path / "t.parquet")
    summary = ingest.run(spark, [str(tmp_path / "t.parquet")], str(tmp_path / "set"))
    assert (summary["bad"], summary["changed"]) == (0, 0)
    save(load(spark, tmp_path / "set"), tmp_path / "copy")
    for again in (tmp_path / "set", tmp_path / "copy"):
        there = table(again)
        assert there.schema == first.schema
        for column in first.column_names:
            assert same(there[column].to_pylist(), first[column].to_pylist()), (again, column)
        assert table(again, where="price > 0 and vector is not null").num_rows == sum(
            one["price"] is not None and one["price"] > 0 and one["vector"] is not None
            for one in truth.values()
        )
