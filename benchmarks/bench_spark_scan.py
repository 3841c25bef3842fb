"""How much does Spark spend to read all documents, with their content, and to list them?

    content      sum(length(content)) over 200,000 x 4 KiB and over HTML files, nothing but that
                 column read: a winkfs data set, the same in Parquet with a binary column, in tar
                 files through the archive reader of Spark 4.3, and as files on ext4 through
                 binaryFile, with openCostInBytes 0 (its best) and with Spark's defaults
    all columns  sums over path, size, mtime and content: data set and Parquet; also the first query
                 again without a schema, when Spark has a Python source read all columns
    listing      sum(size) and sum(length(path)), no content: data set against Parquet

Parquet is there twice: as Spark writes it by default (snappy, row groups of up to 128 MiB), and
tuned for readers (not compressed, row groups of 8 MiB). Random bytes gain nothing from snappy.

We verify every checksum; nobody else does. Everything is warm: read before. Each `load` is new, so
planning is part of the time, as is the listing of binaryFile. The JVM compiles a query while it
runs it, and its cost falls by half or more in the first ten rounds: these are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from common import Case, Phases, evict, interleaved, options, scratch, warm
from report import Goal, Report
from sparkruns import (
    COLUMNS,
    Corpus,
    compare,
    html_documents,
    session,
    small_documents,
    timed,
    write_dataset,
    write_tuned,
)

Query = Callable[[], int]
FILES: Final = "binaryFile, ext4"
FILES_DEFAULT: Final = "binaryFile, ext4, defaults"
TAR: Final = "tar reader"
PARQUET: Final = "Parquet"
TUNED: Final = "Parquet, tuned"
SETTLE: Final = 10  # rounds before the measured ones
GOALS: Final = {
    PARQUET: Goal(0.9), TUNED: None, TAR: Goal(1.3), FILES: None, FILES_DEFAULT: Goal(30)
}  # fmt: skip
# Spark ends Python workers that were idle for a minute, as while files are read one by one.
FAST: Final = (PARQUET, TUNED, TAR)
SLOW: Final = (FILES, FILES_DEFAULT)


def main() -> None:
    asked = options(__doc__, runs=7)
    question = "How much does Spark spend to read all documents, and to list them?"
    report = Report(asked, "spark-scan", question, COLUMNS)
    for make in (small_documents, html_documents):
        with scratch(asked) as place, session() as spark:
            corpus = make(asked, place)
            write_dataset(spark, corpus)
            write_tuned(corpus)
            content(report, spark, corpus, asked.runs)
            all_columns(report, spark, corpus, asked.runs)
            listing(report, spark, corpus, asked.runs)
    report.note("CPU is that of the whole application: driver, JVM and Python workers.")
    report.finish()


def content(report: Report, spark: Any, corpus: Corpus, runs: int) -> None:
    def reader(kind: str) -> Any:
        return spark.read.format(kind)

    def files() -> int:
        return _content(reader("binaryFile").load(corpus.tree + "/*"))

    def cheap_files() -> int:
        spark.conf.set("spark.sql.files.openCostInBytes", "0")
        try:
            return files()
        finally:
            spark.conf.unset("spark.sql.files.openCostInBytes")

    ways: dict[str, Query] = {
        "winkfs": lambda: _content(reader("winkfs").schema("content binary").load(corpus.dataset)),
        PARQUET: lambda: _content(spark.read.parquet(corpus.parquet)),
        TUNED: lambda: _content(spark.read.parquet(corpus.tuned)),
        TAR: lambda: _content(reader("binaryFile").option("wholeFile", "false").load(corpus.tars)),
        FILES: cheap_files,
        FILES_DEFAULT: files,
    }
    case = f"content, {corpus.title}"
    for rivals in (FAST, SLOW):
        chosen = {name: ways[name] for name in ("winkfs", *rivals)}
        found = measured(corpus, chosen, corpus.total, runs)
        report.keep(f"{case}, {rivals[0]}", found)
        for rival in rivals:
            compare(report, case, found["winkfs"], rival, found[rival], GOALS[rival])
    evict(*corpus.data_files)
    ways["winkfs"]()
    left = corpus.resident()
    report.note(f"{corpus.title}: a cold scan leaves {left:.1f} MiB of the data in the page cache.")


def all_columns(report: Report, spark: Any, corpus: Corpus, runs: int) -> None:
    def ways(query: Callable[[Any], int]) -> dict[str, Query]:
        return {
            "winkfs": lambda: query(spark.read.format("winkfs").load(corpus.dataset)),
            PARQUET: lambda: query(spark.read.parquet(corpus.parquet)),
            TUNED: lambda: query(spark.read.parquet(corpus.tuned)),
        }

    for name, query in (("all columns", _all), ("content, no schema given", _content)):
        case = f"{name}, {corpus.title}"
        found = measured(corpus, ways(query), corpus.total, runs)
        report.keep(case, found)
        for rival in (PARQUET, TUNED):
            goal = GOALS[rival] if query is _all else None
            compare(report, case, found["winkfs"], rival, found[rival], goal)


def _content(frame: Any) -> int:
    return int(frame.selectExpr("sum(length(content))").first()[0])


def _all(frame: Any) -> int:
    sums = ("sum(length(content))", "sum(length(path))", "sum(size)", "max(mtime)")
    found = frame.selectExpr(*sums).first()
    assert found[0] == found[2] and found[1] and found[3], found
    return int(found[0])


def listing(report: Report, spark: Any, corpus: Corpus, runs: int) -> None:
    def total(frame: Any) -> int:
        size, length = frame.selectExpr("sum(size)", "sum(length(path))").first()
        return int(size) if length else 0

    def ours() -> int:
        frame = spark.read.format("winkfs").schema("path string, size long")
        return total(frame.load(corpus.dataset))

    ways: dict[str, Query] = {
        "winkfs": ours,
        PARQUET: lambda: total(spark.read.parquet(corpus.parquet)),
    }
    found = measured(corpus, ways, corpus.total, runs)
    report.keep(f"listing, {corpus.title}", found)
    case = f"listing, {corpus.title}"
    compare(report, case, found["winkfs"], PARQUET, found[PARQUET], Goal(0.5), "wall")


def measured(
    corpus: Corpus, ways: dict[str, Query], answer: int, runs: int
) -> dict[str, dict[str, list[float]]]:
    """All ways in turn, after rounds in which the JVM compiles. Each answer is checked."""

    def case(name: str) -> Phases:
        def checked() -> None:
            got = ways[name]()
            assert got == answer, (name, got, answer)

        if name == "winkfs":  # its readers leave nothing in the page cache
            warm(*corpus.data_files)
        return timed(checked)

    cases: dict[str, Case] = {name: partial(case, name) for name in ways}
    interleaved(cases, 1 if FILES in ways else SETTLE)
    return interleaved(cases, runs)


if __name__ == "__main__":
    main()
