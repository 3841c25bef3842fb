"""The section of the suite about Spark: documents scanned and written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import samples
from common import Case, Options, Phases, scratch, warm
from sparkruns import Corpus, random_documents, session, timed, write_dataset
from suite_run import Section, Step

Query = Callable[[], object]


@contextmanager
def spark(asked: Options) -> Iterator[Section]:
    """CPU seconds of the whole application, and none where Spark is not installed."""
    count = asked.size(50_000, 8_000)
    steps = {
        "columns": Step("scan of all columns", "s of CPU", 0),
        "content": Step("scan of contents", "s of CPU", 0),
        "write": Step("write", "s of CPU", 0),
    }
    question = (f"Spark: {count:,} documents of 4 KiB; winkfs verifies and is durable; the CPU of "
                "driver, JVM and Python workers")  # fmt: skip
    if not (find_spec("pyspark") and shutil.which("java")):
        yield Section(question, steps, {}, {"Spark": "pip install 'winkfs[spark]', and Java 17"})
        return
    with scratch(asked) as place, session() as running:
        running.conf.set("spark.sql.files.openCostInBytes", "0")  # the best for binaryFile
        corpus = random_documents(place, count, 4 * samples.KIB)
        write_dataset(running, corpus)
        yield Section(question, steps, _cases(running, corpus))


def _cases(spark: Any, corpus: Corpus) -> dict[str, Case]:
    target = str(corpus.place / "written")

    def load(kind: str, path: str, schema: str = "") -> Any:
        reader = spark.read.format(kind)
        return (reader.schema(schema) if schema else reader).load(path)

    def parquet() -> Any:
        return load("parquet", corpus.parquet)

    ways: dict[str, dict[str, Query]] = {
        "winkfs": {
            "columns": lambda: _all(load("winkfs", corpus.dataset), corpus.total),
            "content": lambda: _content(
                load("winkfs", corpus.dataset, "content binary"), corpus.total
            ),
            "write": lambda: write_dataset(spark, corpus, target),
        },
        "Parquet": {
            "columns": lambda: _all(parquet(), corpus.total),
            "content": lambda: _content(parquet(), corpus.total),
            "write": lambda: parquet().select("path", "mtime", "content").write.parquet(target),
        },
        "binaryFile, ext4": {
            "content": lambda: _content(load("binaryFile", corpus.tree + "/*"), corpus.total)
        },
    }
    for steps in list(ways.values())[:2]:  # the JVM compiles
        _round(corpus, target, steps)
    return {name: partial(_round, corpus, target, steps) for name, steps in ways.items()}


def _round(corpus: Corpus, target: str, steps: dict[str, Query]) -> Phases:
    found: Phases = {}
    for step, query in steps.items():
        shutil.rmtree(target, ignore_errors=True)
        warm(*corpus.data_files)  # our readers leave nothing in the page cache
        found[step] = timed(query)["cpu"]
    return found


def _content(frame: Any, total: int) -> None:
    assert int(frame.selectExpr("sum(length(content))").first()[0]) == total


def _all(frame: Any, total: int) -> None:
    sums = ("sum(length(content))", "sum(length(path))", "sum(size)", "max(mtime)")
    found = frame.selectExpr(*sums).first()
    assert found[0] == found[2] == total and found[1] and found[3], found
