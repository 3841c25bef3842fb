"""Hugging Face datasets: tables in a store by URL, streamed or not, and documents by parts."""

from __future__ import annotations

import json
from typing import Any

import folders
import pytest
from marks import only_with
from tables import ROWS, SIZES, documents_in, run_program, tables_in

pytest.importorskip("pyarrow")
only_with("datasets")
pytestmark = [pytest.mark.slow, pytest.mark.long]
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


OWN = """import json, pickle, warnings
import datasets, winkfs, winkfs.hf
from datasets.distributed import split_dataset_by_node
def paths(found):
    return [row["path"] for row in found]
def caught(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
datasets.disable_progress_bars()
for base in BASES:
    files = winkfs.hf.iterable(base, ["path", "lang", "content"], shards=4)
    every = paths(files)
    places = iter(files)
    seen = paths(next(places) for _ in range(7))
    state = json.loads(json.dumps(files.state_dict()))
    again = winkfs.hf.iterable(base, ["path", "lang", "content"], shards=4)
    again.load_state_dict(state)
    nodes = [paths(split_dataset_by_node(files, rank, 2)) for rank in range(2)]
    both = winkfs.hf.load_dataset({"train": base, "test": base}, where="lang = 'de'")
    with winkfs.open(base) as c:
        table = c.to_arrow().to_pylist()
    print(json.dumps([
        files.num_shards > 1, len(every), seen + paths(again) == every,
        sorted(nodes[0] + nodes[1]) == sorted(every),
        paths(pickle.loads(pickle.dumps(files))) == every,
        list(winkfs.hf.load_dataset(base, split="train")) == table,
        {name: len(split) for name, split in both.items()},
        len(winkfs.hf.load_dataset(base, split="train", where="lang = 'it'")),
        list(winkfs.hf.iterable(base, where="lang = 'it'")),
        sorted(paths(files.shuffle(seed=1, buffer_size=5))) == sorted(every),
    ]))
    with winkfs.open(base, "a") as c:  # the cache is not that of another state
        c.put("docs/new.html", b"new")
    print(json.dumps(len(winkfs.hf.load_dataset(base, split="train"))))
files = winkfs.hf.iterable(base)
print(json.dumps([caught(call) for call in (
    lambda: winkfs.hf.iterable("none"), lambda: winkfs.hf.iterable(base, ["x"]),
    lambda: winkfs.hf.load_dataset(base, split="test"),
    lambda: winkfs.hf.iterable(base, shards=0))]))
with winkfs.create("bad") as c:
    c.put("a", b"hello" * 100)
    c.put("b", b"good")
with open("bad.data", "r+b") as data:
    data.seek(data.read().index(b"hello"))
    data.write(b"jelly")
print(json.dumps([caught(lambda: list(winkfs.hf.iterable("bad"))),
                  caught(lambda: winkfs.hf.load_dataset("bad"))]))
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    left = paths(winkfs.hf.iterable("bad", on_error="skip"))
    left += paths(winkfs.hf.load_dataset("bad", split="train", on_error="skip"))
print(json.dumps([left, sorted({each.category.__name__ for each in warned}),
                  caught(lambda: winkfs.hf.iterable("bad", on_error=lambda line: None)),
                  caught(lambda: winkfs.hf.iterable("bad", on_error="leave"))]))"""


KINDS = ("container", "data set")


@pytest.fixture(scope="module")
def answers() -> list[Any]:
    """What one program finds, as its imports take most of the time: in a container and a data set
    by URL, then in both by parts."""
    code = []
    with folders.in_memory() as folder:
        for make, part in ((tables_in, URLS), (documents_in, PARTS), (documents_in, OWN)):
            named = f"{make.__name__} {len(code)}"
            bases = [str(make(folder / f"{named} {kind}", kind)) for kind in KINDS]
            code.append(f"BASES = {bases}\n{part}\n")
        return [json.loads(line) for line in run_program("".join(code), folder).splitlines()]


def test_urls(answers: list[Any]) -> None:
    """If the last assertion fails, docs/tools.md can have both forms for streams. An old
    datasets needs an fsspec that knows no chains."""
    pytest.importorskip("fsspec.implementations.chained")
    for found in answers[:2]:
        for kind, rows in EXPECTED.items():
            assert [found[f"{kind}{case}"] for case in ("", " file", " stream")] == [rows] * 3
        assert "csv/none.csv" in found["missing"] and "NoSuchFile" in found["no store"]
        assert all("NoSuchFile" in found[f"{kind} stream file"] for kind in EXPECTED)


def test_documents_by_parts(answers: list[Any]) -> None:
    by_parts = [SIZES, SIZES, SIZES, SIZES, 8, SIZES, True, "timestamp[us, tz=UTC]"]
    assert answers[2:4] == [by_parts] * 2


def test_stores_as_data_sets(answers: list[Any]) -> None:
    """Streamed, resumed, divided, and copied to the cache of Hugging Face."""
    splits = {"train": 8, "test": 8}
    found = [True, 20, True, True, True, True, splits, 0, [], True]
    assert answers[4:8] == [found, 21, found, 21]


def test_stores_that_are_refused_or_damaged(answers: list[Any]) -> None:
    kinds = ["NoSuchFile", "ValueError", "ValueError", "ValueError"]
    assert [kind for kind, _ in answers[8]] == kinds
    assert [kind for kind, _ in answers[9]] == ["CorruptError"] * 2
    assert all("\n" not in line for _, line in answers[8] + answers[9])


def test_damaged_files_by_choice(answers: list[Any]) -> None:
    left, warned, *refused = answers[10]
    assert left == ["b", "b"] and "DamageWarning" in warned
    assert [kind for kind, _ in refused] == ["ValueError"] * 2
    assert "function of a module" in refused[0][1] and "'leave'" in refused[1][1]
