"""Tools that take documents and their columns as Arrow: a reader, its tables or its parts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tables import COLUMNS, DOCUMENTS, SIZES, documents_in, run_program, tables_in

import winkfs
from winkfs.stores import messagestore

pa = pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.in_memory, pytest.mark.slow]
NAMES = ["path", "size", "mtime", *COLUMNS, "content"]
RECORDS = [
    {"path": name, "size": len(content), "mtime": datetime.fromtimestamp(mtime, UTC),
     **(columns or dict.fromkeys(COLUMNS)), "content": content}
    for name, content, mtime, columns in DOCUMENTS
]  # fmt: skip
GERMAN = [record["path"] for record in RECORDS if record["lang"] == "de"]


@pytest.fixture(params=["container", "data set"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return documents_in(tmp_path / "documents", request.param)


@pytest.fixture
def c(base: Path) -> Iterator[winkfs.Reader]:
    with winkfs.open(base) as c:
        yield c


def test_arrow_takes_a_reader(c: winkfs.Reader) -> None:
    assert pa.table(c).sort_by("path").to_pylist() == RECORDS
    with pa.RecordBatchReader.from_stream(c) as stream:
        assert sum(len(batch) for batch in stream) == len(RECORDS)


# --- Polars ---


@pytest.fixture
def pl() -> Any:
    return pytest.importorskip("polars")


def test_polars_takes_a_reader(pl: Any, c: winkfs.Reader) -> None:
    for frame in (pl.DataFrame(c), pl.from_arrow(c.to_batches()), pl.from_arrow(c.to_arrow())):
        assert frame.sort("path").to_dicts() == RECORDS
    found = pl.from_arrow(c)  # a series of structs since Polars 2
    frame = found if isinstance(found, pl.DataFrame) else found.struct.unnest()
    assert frame.sort("path").to_dicts() == RECORDS


def test_polars_takes_parts(pl: Any, c: winkfs.Reader) -> None:
    found = pl.concat([pl.DataFrame(part) for part in c.parts(3, ["path", "size"])])
    assert found["size"].sum() == SIZES and len(found) == len(RECORDS)


# --- DuckDB ---


@pytest.fixture
def duckdb() -> Any:
    return pytest.importorskip("duckdb")


def test_duckdb_takes_a_reader(duckdb: Any, c: winkfs.Reader) -> None:
    assert duckdb.sql("select count(*) from c").fetchall() == [(len(RECORDS),)]
    found = duckdb.sql("from c select path, content where lang = 'de' order by path").fetchall()
    assert [row[0] for row in found] == GERMAN and found[0][1] == RECORDS[1]["content"]
    joined = duckdb.sql("select count(*) from c a join c b using (lang)").fetchall()
    assert joined == [(8 * 8 * 2,)]


def test_duckdb_takes_batches_and_parts(duckdb: Any, c: winkfs.Reader) -> None:
    files = c.to_batches(["lang", "size"])  # noqa: F841  # DuckDB finds it by its name
    found = duckdb.sql("select lang, sum(size) from files group by lang order by 1 nulls last")
    assert [row[0] for row in found.fetchall()] == ["de", "fr", None]
    with pytest.raises(duckdb.Error, match="already been consumed"):
        duckdb.sql("select count(*) from files").fetchall()
    part = c.parts(1)[0]  # noqa: F841
    for _ in range(2):
        assert duckdb.sql("select sum(size) from part").fetchall() == [(SIZES,)]


def test_duckdb_stops_in_the_middle(duckdb: Any, c: winkfs.Reader) -> None:
    assert len(duckdb.sql("select content from c limit 1").fetchall()) == 1
    assert c.read("docs/01.html") == RECORDS[1]["content"]


def test_a_closed_store_is_one_line_in_duckdb(duckdb: Any, base: Path) -> None:
    with winkfs.open(base) as c:  # noqa: F841
        pass
    with pytest.raises(duckdb.Error, match=r"the (container|data set) is closed$") as caught:
        duckdb.sql("select count(*) from c").fetchall()
    assert "\n" not in str(caught.value)


# --- pandas ---


def test_pandas_takes_a_table(c: winkfs.Reader) -> None:
    pd = pytest.importorskip("pandas")
    frame = c.to_arrow(order="name").to_pandas()
    assert list(frame.columns) == NAMES and list(frame["content"]) == [
        record["content"] for record in RECORDS
    ]
    assert list(frame["lang"].dropna()) == [r["lang"] for r in RECORDS if r["lang"]]
    same = c.to_arrow(order="name").to_pandas(types_mapper=pd.ArrowDtype)
    assert list(same["content"]) == list(frame["content"])
    assert str(same.dtypes["content"]) == "binary[pyarrow]"


def test_pandas_takes_a_reader(c: winkfs.Reader) -> None:
    pd = pytest.importorskip("pandas", "3")
    frame = pd.DataFrame.from_arrow(c).sort_values("path")
    assert list(frame["path"]) == [record["path"] for record in RECORDS]
    assert frame["size"].sum() == SIZES


# --- Dask ---


@pytest.mark.few(1)
@pytest.mark.slow
def test_dask_takes_parts(c: winkfs.Reader) -> None:
    dd = pytest.importorskip("dask.dataframe")
    import pandas as pd

    files = dd.from_map(lambda part: part.to_arrow().to_pandas(types_mapper=pd.ArrowDtype),
                        c.parts(3))  # fmt: skip
    assert files.npartitions >= 2
    found = files.compute(scheduler="synchronous").sort_values("path")
    assert list(found["content"]) == [record["content"] for record in RECORDS]
    counts = files.groupby("lang").size().compute(scheduler="synchronous")
    assert counts.to_dict() == {"de": 8, "fr": 8}


@pytest.mark.long
@pytest.mark.slow
def test_processes_of_dask_take_parts_and_urls(tmp_path: Path) -> None:
    pytest.importorskip("dask.dataframe")
    documents_in(tmp_path / "documents", "data set")
    tables_in(tmp_path / "tables", "container")
    code = f"""import dask, dask.dataframe as dd, pandas as pd, winkfs
def frame(part):
    return part.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)
if __name__ == "__main__":
    with winkfs.open("documents") as c:
        files = dd.from_map(frame, c.parts(2, ["path", "size"]))
    tables = dd.read_csv("wink://csv/*.csv::{tmp_path}/tables")
    sums = [files["size"].sum(), tables["x"].sum()]
    print(*dask.compute(*sums, scheduler="processes", num_workers=1))"""
    assert run_program(code, tmp_path) == f"{SIZES} 45\n"


# --- other stores ---


def test_messages_for_polars_and_duckdb(pl: Any, duckdb: Any, tmp_path: Path) -> None:
    messagestore.create(str(tmp_path / "box"))
    with winkfs.open(tmp_path / "box", "a") as store:
        ids = [store.put(None, b"%d" % i * i) for i in range(9)]
    with winkfs.open(tmp_path / "box") as c:
        assert pl.DataFrame(c)["content"].bin.size().sum() == 36
        assert duckdb.sql("select count(*) from c").fetchall() == [(len(ids),)]
