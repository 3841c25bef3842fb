"""Tools that read tables in a store by fsspec: URLs, filesystems and open files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stored
from tables import ROWS, tables_in

import winkfs

pa = pytest.importorskip("pyarrow")
pytest.importorskip("fsspec")
pytestmark = [pytest.mark.in_memory, pytest.mark.slow]


@pytest.fixture(params=["container", "data set"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tables_in(tmp_path / "tables", request.param)


@pytest.fixture
def fs(base: Path) -> Iterator[Any]:
    with winkfs.fs(base) as fs:
        yield fs


# --- pandas ---


@pytest.fixture
def pd() -> Any:
    return pytest.importorskip("pandas")


@pytest.mark.parametrize("form", ["file://{}", "{}"])
def test_pandas_reads_urls(pd: Any, base: Path, form: str) -> None:
    store = form.format(base)
    frames = [
        pd.concat([pd.read_csv(f"wink://csv/{name}.csv::{store}") for name in "ab"]),
        pd.read_json(f"wink://json/a.json::{store}", lines=True),
        pd.concat([pd.read_parquet(f"wink://pq/{name}.parquet::{store}") for name in "ab"]),
        pd.read_parquet(f"wink://pq::{store}"),
    ]
    assert [frame.to_dict("records") for frame in frames] == [ROWS] * len(frames)


def test_pandas_writes_a_url(pd: Any, base: Path) -> None:
    frame = pd.DataFrame(ROWS)
    options = {"wink": {"mode": "a"}}
    frame.to_csv(f"wink://new/c.csv::{base}", index=False, storage_options=options)
    frame.to_parquet(f"wink://new/c.parquet::file://{base}", storage_options=options)
    with winkfs.fs(base) as fs:
        assert pd.read_csv(fs.open("new/c.csv")).to_dict("records") == ROWS
        assert pd.read_parquet(fs.open("new/c.parquet")).to_dict("records") == ROWS


def test_pandas_without_the_option_cannot_write(pd: Any, base: Path) -> None:
    with pytest.raises(OSError, match=r"opened for reading: .* wink=\{'mode': 'a'\}"):
        pd.DataFrame(ROWS).to_csv(f"wink://new.csv::{base}")
    assert "new.csv" not in stored.names(base)


def test_pandas_of_a_missing_file_or_store(pd: Any, base: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"csv/c\.csv: no such file"):
        pd.read_csv(f"wink://csv/c.csv::{base}")
    with pytest.raises(FileNotFoundError, match=r"none: no such"):
        pd.read_csv(f"wink://csv/a.csv::{base.parent}/none")


# --- Arrow ---


def test_datasets_of_arrow(fs: Any) -> None:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    for folder, kind in (("csv", "csv"), ("pq", "parquet"), ("json", "json")):
        found = ds.dataset(folder, filesystem=fs, format=kind)
        assert found.to_table().sort_by("x").to_pylist() == ROWS
        assert found.count_rows(filter=pc.field("x") >= 7) == 3


def test_parquet_of_arrow(fs: Any, base: Path) -> None:
    import pyarrow.parquet as pq

    assert pq.read_table("pq/a.parquet", filesystem=fs).to_pylist() == ROWS[:5]
    assert pq.read_table("pq", filesystem=fs, filters=[("x", ">", 7)]).to_pylist() == ROWS[8:]
    assert pq.ParquetFile(fs.open("pq/b.parquet")).metadata.num_rows == 5
    with pytest.raises(FileNotFoundError):
        pq.read_table("pq/none.parquet", filesystem=fs)


def test_arrow_writes_a_dataset(base: Path) -> None:
    import pyarrow.dataset as ds

    with winkfs.fs(base, "a") as fs, fs.transaction:
        parts = ds.partitioning(pa.schema([("y", pa.string())]))
        table = pa.Table.from_pylist(ROWS)
        ds.write_dataset(table, "new", format="parquet", filesystem=fs, partitioning=parts)
    with winkfs.fs(base) as fs:
        assert ds.dataset("new", filesystem=fs, partitioning=parts).count_rows() == 10
        assert len(fs.glob("new/*/*.parquet")) == 10


# --- DuckDB ---


@pytest.fixture
def connection(fs: Any) -> Iterator[Any]:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        yield connection


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    ["read_csv('wink://csv/*.csv')", "read_parquet('wink://pq/*.parquet')",
     "'wink://pq/**/*.parquet'", "'wink://csv/[ab].csv'", "read_json('wink://json/a.json')"],
)  # fmt: skip
def test_duckdb_reads_by_patterns(connection: Any, source: str) -> None:
    found = connection.sql(f"select x, y from {source} order by x").fetchall()
    assert found == [(row["x"], row["y"]) for row in ROWS]


def test_duckdb_reads_texts(connection: Any) -> None:
    found = connection.sql("from read_text('wink://**/*.txt') select filename, content order by 1")
    assert found.fetchall() == [("wink://text/a.txt", "one\n"), ("wink://text/b.txt", "two\n")]


def test_duckdb_of_a_missing_file(connection: Any) -> None:
    import duckdb

    for name in ("none.csv", "none/*.csv"):
        with pytest.raises((duckdb.Error, FileNotFoundError), match=r"(?i)no (such )?files?"):
            connection.sql(f"from read_csv('wink://{name}')").fetchall()


def test_duckdb_writes_into_a_store(base: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    with winkfs.fs(base, "a") as fs, duckdb.connect() as connection:
        connection.register_filesystem(fs)
        connection.execute(
            "copy (from 'wink://csv/*.csv') to 'wink://new/all.parquet' (format parquet)"
        )
        found = connection.sql("select count(*), sum(x) from 'wink://new/all.parquet'")
        assert found.fetchall() == [(10, 45)]
    assert "new/all.parquet" in stored.names(base)


# --- Polars ---


def test_polars_reads_open_files(fs: Any) -> None:
    pl = pytest.importorskip("polars")
    assert pl.read_csv(fs.open("csv/a.csv")).to_dicts() == ROWS[:5]
    assert pl.read_parquet(fs.open("pq/b.parquet")).to_dicts() == ROWS[5:]
    both = pl.scan_parquet([fs.open(name) for name in fs.glob("pq/*")])
    assert both.filter(pl.col("x") > 3).select("y").collect()["y"].to_list() == list("efghij")


def test_polars_takes_no_urls_of_fsspec(base: Path) -> None:
    """If this fails, docs/tools.md can say so."""
    pl = pytest.importorskip("polars")
    with pytest.raises(Exception, match=r"(?i)no such file|unknown|unsupported|scheme"):
        pl.scan_parquet(f"wink://pq/a.parquet::file://{base}").collect()


# --- Dask ---


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas 3, that Dask uses
def test_dask_reads_urls(base: Path, fs: Any) -> None:
    dd = pytest.importorskip("dask.dataframe")
    for frame in (
        dd.read_csv(f"wink://csv/*.csv::file://{base}"),
        dd.read_csv([f"wink://csv/{name}.csv::{base}" for name in "ab"]),
        dd.read_json(f"wink://json/*.json::{base}"),
        dd.read_parquet(f"wink://pq::{base}"),
        dd.read_parquet("pq", filesystem=fs),
    ):
        assert frame.compute(scheduler="synchronous").to_dict("records") == ROWS
