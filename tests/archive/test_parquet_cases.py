"""Parquet files as they are in the wild: a row or a value costs itself, a column is named.

| inputs | made by |
|---|---|
| `tables/case-*` | pyarrow: what other projects report |
| `tables/duckdb*.parquet` | DuckDB, COPY .. TO |
| PANDAS | pandas `to_parquet`, when the test runs |
| TIMES, VALUES, REFUSED, others | pyarrow `write_table`, when the test runs |
| a folder with partitions | Spark, in tests/spark/test_jobs_ingest.py |
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from winkformats.errors import FormatError
from winkfs.archive.items import Note
from winkfs.archive.parquet import BATCH_ROWS, ParquetColumns, Table, partition_of
from winkfs.container.bulk import Row
from winkfs.container.ondisk.typed import to_values
from winkfs.errors import Refusal
from winkfs.units import CLAMPED

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

from winkfs.spark.jobs.units import kind_of, units  # noqa: E402

HERE = Path(__file__).parent / "tables"
T = 1_704_164_645  # 2024-01-02T03:04:05Z
NS = T * 10**9
MOMENT = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)


def read(path: Path, same: dict[str, str | None] | None = None) -> tuple[list[Row], list[Note]]:
    notes: list[Note] = []
    table = Table(str(path), notes.append, ParquetColumns(), same or {})
    rows = [row for row in table.items(by_mtime=False) if isinstance(row, Row)]
    return rows, notes


def written(folder: Path, **columns: Any) -> Path:
    n = max(len(column) for column in columns.values())
    columns = {"path": [f"p{i}" for i in range(n)], "content": [b"c"] * n} | columns
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


TIMES = {
    "s": pa.array([T, None], pa.int64()), "s, 32 bits": pa.array([T, None], pa.int32()),
    "unsigned s": pa.array([T, None], pa.uint64()), "ms": pa.array([T * 10**3, None], pa.int64()),
    "us": pa.array([T * 10**6, None], pa.int64()), "ns": pa.array([NS, None], pa.int64()),
    "float s": pa.array([float(T), None]), "float ms": pa.array([T * 1e3, None]),
    "timestamp s": pa.array([T, None], pa.timestamp("s")),
    "timestamp ms": pa.array([T * 10**3, None], pa.timestamp("ms", "UTC")),
    "timestamp ns": pa.array([NS, None], pa.timestamp("ns", "Europe/Berlin")),
    "text Z": pa.array(["2024-01-02T03:04:05Z", None]),
    "text zone": pa.array(["2024-01-02T05:04:05+02:00", None], pa.large_string()),
    "text without a zone": pa.array(["2024-01-02 03:04:05", None]),
    "text digits": pa.array([b"20240102030405", None]),
    "categories": pa.array(["2024-01-02T03:04:05Z", None]).dictionary_encode(),
}  # fmt: skip


@pytest.mark.parametrize("kind", TIMES)
def test_a_time_is_that_time_in_any_type(tmp_path: Path, kind: str) -> None:
    rows, notes = read(written(tmp_path, mtime=TIMES[kind]))
    assert [row.mtime_ns for row in rows] == [NS, None] and not notes


@pytest.mark.parametrize("form", [pa.date32(), pa.date64()])
def test_days_are_times(tmp_path: Path, form: pa.DataType) -> None:
    midnight = NS - (3 * 3600 + 4 * 60 + 5) * 10**9
    rows, _ = read(written(tmp_path, mtime=pa.array([date(2024, 1, 2), None], form)))
    assert [row.mtime_ns for row in rows] == [midnight, None]


def test_one_unit_of_numbers_is_that_of_the_whole_file(tmp_path: Path) -> None:
    """A small one among milliseconds is not taken for seconds, also not in another batch."""
    small = [5000, -5000] + [0] * BATCH_ROWS
    rows, _ = read(written(tmp_path, mtime=[*small, T * 10**3]))
    assert [row.mtime_ns for row in rows[:2]] == [5 * 10**9, -5 * 10**9]
    assert rows[-1].mtime_ns == NS


def test_a_time_that_is_none_or_far_away_is_counted(tmp_path: Path) -> None:
    rows, notes = read(written(tmp_path, mtime=["yesterday", "", "9999-01-01T00:00:00Z"]))
    assert [row.mtime_ns for row in rows] == [None, None, (1 << 63) - 1]
    assert [(note.name, note.kept, note.failed) for note in notes] == [
        (b"p0", True, False), (b"p2", True, False)
    ]  # fmt: skip
    assert "column mtime: a text that is no time" in notes[0].what and notes[1].what == CLAMPED


VALUES = {
    "null in a list": (pa.array([["x", None], ["y"], None]), [["x", None], ["y"], None], 0),
    "days": (pa.array([0, 2_932_897, None], pa.int32()).cast(pa.date32()),
             [date(1970, 1, 1), None, None], 1),
    "times without a zone": (pa.array([T * 10**9, None, 10**15], pa.timestamp("ms")),
                             [None, None, None], 2),
    "decimals": (pa.array([Decimal("1.50"), None, Decimal("-0.05")], pa.decimal128(5, 2)),
                 [Decimal("1.50"), None, Decimal("-0.05")], 0),
    "vectors": (pa.array([[0.5, None], None, []], pa.large_list(pa.float32())),
                [[0.5, None], None, []], 0),
    "unsigned in lists": (pa.array([[1 << 63], [5], None], pa.list_(pa.uint64())),
                          [None, [5], None], 1),
    "uint64": (pa.array([1 << 63, 5, None], pa.uint64()), [None, 5, None], 1),
    "uint64, all": (pa.array([(1 << 64) - 1] * 3, pa.uint64()), [None] * 3, 3),
    "times": (
        pa.array([10**18, T * 10**6, None], pa.timestamp("us", "UTC")), [None, MOMENT, None], 1,
    ),
    "list": (pa.array([["x", ""], [], None]), [["x", ""], [], None], 0),
    "large list": (pa.array([["x"], [], None], pa.large_list(pa.string())), [["x"], [], None], 0),
    "categories": (pa.array(["x", "y", None]).dictionary_encode(), ["x", "y", None], 0),
    "bool": (pa.array([True, False, None]), [True, False, None], 0),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_a_value_that_does_not_fit_is_null_and_counted(tmp_path: Path, case: str) -> None:
    values, wanted, odd = VALUES[case]
    rows, notes = read(written(tmp_path, v=values))
    assert [to_values(row.xattrs or {})["v"] for row in rows] == wanted
    assert [(note.kept, note.failed) for note in notes] == [(True, False)] * odd
    assert all("column v: a value that does not fit" in note.what for note in notes)


REFUSED = {
    "int64 path": ({"path": [1, 2]}, "column path is int64, not text"),
    "path of a struct": ({"path": [{"a": 1}] * 2}, "column path is struct<a: int64>, not text"),
    "content of numbers": ({"content": [1.5, 2]}, "column content is double, not text"),
    "content of lists": ({"content": [["a"], []]}, "column content is list<.*>, not text"),
    "bool mtime": ({"mtime": [True, False]}, "column mtime is bool, not a time"),
    "decimal mtime": ({"mtime": [Decimal("1.5")] * 2}, r"column mtime is decimal.*, not a time"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_column_of_the_wrong_type_is_refused_by_name(tmp_path: Path, case: str) -> None:
    columns, line = REFUSED[case]
    with pytest.raises(Refusal, match=line):
        read(written(tmp_path, **columns))


def test_a_row_that_cannot_be_a_file_costs_itself(tmp_path: Path) -> None:
    paths = ["", "ok", "n\0ul", None, "x" * 70_000, "no content"]
    contents = [b"1"] * 5 + [None]
    rows, notes = read(written(tmp_path, path=paths, content=contents))
    assert [row.name for row in rows] == [b"ok"]
    assert [note.what.split(":")[0] for note in notes] == [f"row {i}" for i in (0, 2, 3, 4, 5)]
    assert all(note.failed for note in notes)
    late = ["x"] * (2 * BATCH_ROWS) + [""]
    _, notes = read(written(tmp_path, path=late))
    assert notes[0].what == f"row {2 * BATCH_ROWS}: a row without a path"


def test_columns_that_no_file_has_are_left_out_and_counted(tmp_path: Path) -> None:
    rows, notes = read(written(tmp_path, deep=[{"a": 1}], size=[5], ok=["x"]))
    assert to_values(rows[0].xattrs or {}) == {"ok": "x"}
    assert [(note.failed, note.what) for note in notes] == [
        (False, "column deep is struct<a: int64>: left out")
    ]  # fmt: skip


def test_types_are_those_of_columns_that_are_there(tmp_path: Path) -> None:
    path = written(
        tmp_path, day=pa.array([0], pa.int32()).cast(pa.date32()),
        local=pa.array([T], pa.timestamp("s")),
    )  # fmt: skip
    local = MOMENT.replace(tzinfo=None)
    rows, notes = read(path)
    assert to_values(rows[0].xattrs or {}) == {"day": date(1970, 1, 1), "local": local}
    for known, wanted in (
        (dict.fromkeys(("day", "local"), "timestamp"), (datetime(1970, 1, 1, tzinfo=UTC), MOMENT)),
        ({"day": "datetime", "local": "string"}, (datetime(1970, 1, 1), local)),
    ):
        table = Table(str(path), notes.append, ParquetColumns(), {}, known)
        (row,) = table.items(by_mtime=False)
        assert isinstance(row, Row) and not notes
        assert tuple(to_values(row.xattrs or {}).values()) == wanted


def test_times_of_96_bits_are_utc_as_spark_writes_them(tmp_path: Path) -> None:
    table = pa.table({"path": ["a"], "content": [b""], "t": pa.array([T], pa.timestamp("s"))})
    pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    rows, _ = read(tmp_path / "t.parquet")
    assert to_values(rows[0].xattrs or {}) == {"t": MOMENT}


@pytest.mark.parametrize("cut", [0, 3, 50, 200])
def test_a_file_that_is_cut_is_no_whole_parquet_file(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path, x=["y"] * 99)
    path.write_bytes(path.read_bytes()[:cut])
    assert kind_of(str(path)) == "parquet"
    with pytest.raises(FormatError, match="not a whole Parquet file"):
        read(path)


def test_damage_in_a_page_is_no_fault_of_the_program(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"path": [f"p{i}" for i in range(5000)], "content": [b"c" * 50] * 5000})
    pq.write_table(table, path, compression="snappy", row_group_size=1000)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = b"\xff" * 200
    path.write_bytes(data)
    with pytest.raises(FormatError, match="not a whole Parquet file"):
        read(path)


# --- other tools, and folders ---


def test_what_duckdb_wrote_is_read() -> None:
    rows, notes = read(HERE / "duckdb.parquet")
    assert [(row.name, row.data, row.mtime_ns) for row in rows] == [
        (b"a", b"one", NS), (b"b", b"two", None), (b"c", b"three", -157_766_400 * 10**9)
    ]  # fmt: skip
    assert [to_values(row.xattrs or {}) for row in rows] == [
        {"big": 1, "words": ["x", "y"], "price": Decimal("1.50")},
        {"big": None, "words": ["x", None], "price": None},
        {"big": None, "words": None, "price": Decimal("2.50")},
    ]  # fmt: skip
    assert sorted(note.what for note in notes if note.kept) == [
        "column big: a value that does not fit int64, so it is null",
    ]
    assert sorted(note.what.split(" is ")[0] for note in notes if not note.kept) == [
        "column deep"
    ]  # fmt: skip
    rows, _ = read(HERE / "duckdb-text.parquet")
    assert [row.mtime_ns for row in rows] == [NS - 7200 * 10**9] * 3


def test_what_pandas_wrote_is_read(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({
        "path": pandas.Categorical(["a", "b"]), "content": ["text", "ü"],
        "mtime": pandas.to_datetime(["2024-01-02T03:04:05Z", None]), "lang": ["de", None],
    }, index=["x", "y"])  # fmt: skip
    frame.to_parquet(tmp_path / "t.parquet")
    rows, _ = read(tmp_path / "t.parquet")
    assert [(row.name, row.data, row.mtime_ns) for row in rows] == [
        (b"a", b"text", NS), (b"b", "ü".encode(), None)
    ]  # fmt: skip
    assert [to_values(row.xattrs or {})["lang"] for row in rows] == ["de", None]


def test_folders_are_columns_and_hidden_ones_are_not_read(tmp_path: Path) -> None:
    data = written(tmp_path, x=["y"]).read_bytes()
    (tmp_path / "t.parquet").unlink()
    names = ["lang=de/year=2024/0.parquet", "lang=__HIVE_DEFAULT_PARTITION__/1.parquet",
             "a%2Fb=x%20y/2.parquet", "_temporary/3.parquet", ".hidden/4.parquet",
             "lang=de/_5.parquet", "lang=de/.6.parquet",
             "lang=de/_temporary/0/7.parquet"]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    found = {Path(unit.path).name: unit.columns for unit in units([str(tmp_path)], "parquet", "")}
    assert found == {
        "0.parquet": (("lang", "de"), ("year", "2024")), "1.parquet": (("lang", None),),
        "2.parquet": (("a/b", "x y"),),
    }  # fmt: skip
    assert partition_of("part-0.parquet") == ()
    rows, notes = read(tmp_path / names[0], {"lang": "de", "x": "other", "path": "no"})
    assert to_values(rows[0].xattrs or {}) == {"x": "y", "lang": "de"} and not notes


# --- cases from reports of other projects ---


def test_the_cases_are_read() -> None:
    rows, notes = read(HERE / "case-bad-row-name.parquet")
    assert [row.name for row in rows] == [b"ok"]
    assert [note.what.split(":")[0] for note in notes] == ["row 0", "row 2"]
    rows, notes = read(HERE / "case-int-time.parquet")
    assert [row.mtime_ns for row in rows] == [1_700_000_000 * 10**9] * 3 and not notes
    rows, notes = read(HERE / "case-null-in-list.parquet")
    assert [to_values(row.xattrs or {})["l"] for row in rows] == [["x", None], None, []]
    assert not notes
    rows, notes = read(HERE / "case-text-time.parquet")
    assert [row.mtime_ns for row in rows] == [1_704_067_200 * 10**9] * 2 and not notes
    with pytest.raises(Refusal, match="column path is int64, not text"):
        read(HERE / "case-int-path.parquet")
    (unit,) = units([str(HERE / "case-spark-output")], "parquet", "")
    assert (Path(unit.path).name, unit.columns) == ("0.parquet", (("lang", "de"),))
