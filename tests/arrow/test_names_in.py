r"""Names from tables: in a path \xNN is a byte, in whatever form the table comes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stored

import winkfs
from winkfs.archive.items import Note, Ratio
from winkfs.archive.packer import Packer, PackReport
from winkfs.archive.parquet import ParquetColumns, Table
from winkfs.names import to_str
from winkfs.samples import intake

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.in_memory
PATHS = ["plain", r"odd \xff\x2e", r"itself \x5cx41", "ü"]
NAMES = [b"plain", b"odd \xff.", rb"itself \x41", "ü".encode()]
TABLE = pa.table({"path": PATHS, "content": [path.encode() for path in PATHS]})


def put(base: Path, table: Any) -> None:
    with winkfs.create(base) as made:
        made.put_batch(table)


def packed(base: Path, source: Any) -> None:
    notes: list[Note] = []
    with winkfs.create(base) as made:
        Packer(made, PackReport(), notes.append, None).run(source)
    assert notes == []


def by_parquet(base: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(TABLE, f"{base}.parquet")
    packed(base, Table(f"{base}.parquet", print, ParquetColumns(), {}))


def by_mds(base: Path) -> None:
    put(base.with_name("before"), TABLE)
    folder = base.with_name("mds")
    winkfs.export(base.with_name("before"), mds=folder)
    for shard in intake.shards_in(str(folder)):
        source = intake.MdsSamples(
            str(folder), shard, "", print, str(folder), ParquetColumns(), Ratio(), {}
        )
        packed(base, source)


def by_webdataset(base: Path) -> None:
    from winkfs.archive.tar import Tarball

    put(base.with_name("before"), TABLE)
    tar = base.with_name("all.tar")
    winkfs.export(base.with_name("before"), webdataset=tar, by="file")
    packed(base, intake.WebSamples(Tarball(str(tar), print, str(base.parent)), print, {}))


def by_csv(base: Path) -> None:
    from pyarrow import csv

    lines = "".join(f'"{path}","{path}"\n' for path in PATHS)
    put(base, csv.read_csv(io.BytesIO(f"path,content\n{lines}".encode())))


def by_json(base: Path) -> None:
    from pyarrow import json as reading

    rows = [json.dumps({"path": path, "content": path}) for path in PATHS]
    put(base, reading.read_json(io.BytesIO("\n".join(rows).encode())))


def by_duckdb(base: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register("given", TABLE)
    put(base, connection.sql("select * from given"))


def by_pandas(base: Path) -> None:
    pytest.importorskip("pandas")
    put(base, TABLE.to_pandas())


def by_polars(base: Path) -> None:
    put(base, pytest.importorskip("polars").DataFrame(TABLE))


def by_hugging_face(base: Path) -> None:
    put(base, pytest.importorskip("datasets").Dataset(TABLE).with_format("arrow")[:])


def by_ray(base: Path) -> None:
    pytest.importorskip("ray")
    from winkfs.ray.datasink import _put

    with winkfs.create(base) as made:
        writer: Any = type("Writer", (), {"container": made})
        _put(writer, TABLE)


WAYS: dict[str, Callable[[Path], None]] = {
    "Arrow": lambda base: put(base, TABLE), "stream": lambda base: put(base, TABLE.to_reader()),
    "pandas": by_pandas, "Polars": by_polars, "DuckDB": by_duckdb, "CSV": by_csv, "JSON": by_json,
    "Hugging Face": by_hugging_face, "Ray": by_ray, "Parquet": by_parquet, "MDS": by_mds,
    "WebDataset": by_webdataset,
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_bytes_of_a_path(tmp_path: Path, way: str) -> None:
    WAYS[way](tmp_path / "c")
    assert stored.names(tmp_path / "c") == sorted(map(to_str, NAMES))


@pytest.mark.parametrize("column", ["name", "name_raw"])
def test_names_themselves(tmp_path: Path, column: str) -> None:
    import pyarrow.parquet as pq

    pq.write_table(TABLE.rename_columns([column, "content"]), tmp_path / "t.parquet")
    columns = ParquetColumns(path=column)
    packed(tmp_path / "c", Table(str(tmp_path / "t.parquet"), print, columns, {}))
    assert stored.names(tmp_path / "c") == sorted(PATHS)
