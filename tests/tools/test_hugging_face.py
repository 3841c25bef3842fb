"""Hugging Face datasets: tables in a store by URL, streamed or not, and documents by parts."""

from __future__ import annotations

import json
from typing import Any

import folders
import pytest
from tables import ROWS, SIZES, documents_in, run_program, tables_in

pytest.importorskip("pyarrow")
pytest.importorskip("datasets")
pytestmark = pytest.mark.slow
URLS = """import json
import datasets
datasets.disable_progress_bars()
def load(kind, files, streaming):
    try:
        found = datasets.load_dataset(kind, data_files=files, split="train", streaming=streaming)
        return list(found)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
FILES = {"csv": "csv/*.csv", "parquet": "pq/a.parquet", "text": "text/*"}
for base in BASES:
    found = {"missing": load("csv", f"wink://csv/none.csv::{base}", False),
             "no store": load("csv", f"wink://csv/a.csv::{base}-none", True)}
    for kind, files in FILES.items():
        found[kind] = load(kind, f"wink://{files}::{base}", False)
        found[kind, "file"] = load(kind, f"wink://{files}::file://{base}", False)
        found[kind, "stream"] = load(kind, f"wink://{files}::{base}", True)
        found[kind, "stream", "file"] = load(kind, f"wink://{files}::file://{base}", True)
    print(json.dumps({" ".join([key] if isinstance(key, str) else key): value
                      for key, value in found.items()}))"""
EXPECTED = {"csv": ROWS, "parquet": ROWS[:5], "text": [{"text": "one"}, {"text": "two"}]}
PARTS = """import json
import datasets, polars as pl, winkfs
def rows(parts):
    for part in parts:
        for batch in part.to_batches():
            yield from batch.to_pylist()
def sizes(found):
    return sum(row["size"] for row in found)
datasets.disable_progress_bars()
for base in BASES:
    with winkfs.open(base) as c:
        parts = c.parts(3)
        table = datasets.Dataset(c.to_arrow())
        polars = datasets.Dataset.from_polars(pl.DataFrame(c))
    stream = datasets.IterableDataset.from_generator(rows, gen_kwargs={"parts": parts})
    copied = datasets.Dataset.from_generator(rows, gen_kwargs={"parts": parts})
    german = stream.filter(lambda row: row["lang"] == "de")
    shares = [list(stream.shard(2, i)) for i in range(2)]
    assert shares[0] and shares[1]
    print(json.dumps([sizes(table), sizes(polars), sizes(stream), sizes(copied),
                      len(list(german)), sizes(shares[0] + shares[1]),
                      stream.num_shards == len(parts), str(table.features["mtime"].dtype)]))"""


KINDS = ("container", "data set")


@pytest.fixture(scope="module")
def answers() -> list[Any]:
    """What one program finds, as its imports take most of the time: in a container and a data set
    by URL, then in both by parts."""
    code = []
    with folders.in_memory() as folder:
        for make, part in ((tables_in, URLS), (documents_in, PARTS)):
            bases = [str(make(folder / f"{make.__name__} {kind}", kind)) for kind in KINDS]
            code.append(f"BASES = {bases}\n{part}\n")
        return [json.loads(line) for line in run_program("".join(code), folder).splitlines()]


def test_urls(answers: list[Any]) -> None:
    """If the last assertion fails, docs/tools.md can have both forms for streams."""
    for found in answers[:2]:
        for kind, rows in EXPECTED.items():
            assert [found[f"{kind}{case}"] for case in ("", " file", " stream")] == [rows] * 3
        assert "csv/none.csv" in found["missing"] and "NoSuchFile" in found["no store"]
        assert all("NoSuchFile" in found[f"{kind} stream file"] for kind in EXPECTED)


def test_documents_by_parts(answers: list[Any]) -> None:
    by_parts = [SIZES, SIZES, SIZES, SIZES, 8, SIZES, True, "timestamp[us, tz=UTC]"]
    assert answers[2:] == [by_parts] * 2
