"""How much does Spark spend to write documents, and to sort them?

write   Parquet -> winkfs data set (durable, checksums, index) against Parquet -> Parquet
        (snappy); reading the source is in both
sort    by a key, everything read in order: metadata shuffled and contents fetched late from a
        data set, against whole rows shuffled from the same data set, and from Parquet
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from common import Case, Options, Phases, interleaved, options, scratch, warm
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
)

KEY = "xxhash64(path)"


def main() -> None:
    asked = options(__doc__)
    report = Report(
        asked, "spark-write", "How much does Spark spend to write documents, and to sort them?",
        COLUMNS,
    )  # fmt: skip
    for make in (small_documents, html_documents):
        with scratch(asked) as place, session() as spark:
            corpus = make(asked, place)
            write(asked, report, spark, corpus)
            write_dataset(spark, corpus)
            sort(report, spark, corpus, asked.runs)
    report.note("CPU is that of the whole application: driver, JVM and Python workers.")
    report.finish()


def write(asked: Options, report: Report, spark: Any, corpus: Corpus) -> None:
    target = str(corpus.place / "written")

    def fresh(action: Callable[[], object]) -> Phases:
        shutil.rmtree(target, ignore_errors=True)
        return timed(action)

    def parquet() -> None:
        frame = spark.read.parquet(corpus.parquet).select("path", "mtime", "content")
        frame.write.parquet(target)

    cases: dict[str, Case] = {
        "winkfs": lambda: fresh(lambda: write_dataset(spark, corpus, target)),
        "Parquet": lambda: fresh(parquet),
    }
    interleaved(cases, 1)
    found = interleaved(cases, asked.runs)
    shutil.rmtree(target)
    write_dataset(spark, corpus, target)
    report.keep(f"write, {corpus.title}", found)
    case = f"write, {corpus.title}"
    compare(report, case, found["winkfs"], "Parquet", found["Parquet"], Goal(0.85))
    report.note(
        f"{corpus.title}: writing leaves {corpus.resident('written'):.1f} MiB of the data in the "
        "page cache."
    )
    shutil.rmtree(target)


def sort(report: Report, spark: Any, corpus: Corpus, runs: int) -> None:
    from winkfs.spark import fetch_content

    def consume(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def ordered(frame: Any) -> Any:
        keyed = frame.selectExpr("*", f"{KEY} AS key")
        return keyed.repartitionByRange(4, "key").sortWithinPartitions("key")

    def late() -> None:
        refs = spark.read.format("winkfs").option("content", "ref").load(corpus.dataset)
        consume(fetch_content(ordered(refs)))

    def whole() -> None:
        consume(ordered(spark.read.format("winkfs").load(corpus.dataset)))

    def parquet() -> None:
        consume(ordered(spark.read.parquet(corpus.parquet)))

    check(fetch_content(ordered(spark.read.format("winkfs").option("content", "ref")
                                .load(corpus.dataset))), corpus)  # fmt: skip

    def cached(action: Callable[[], object]) -> Phases:
        warm(*corpus.data_files)  # our readers leave nothing in the page cache, Spark's do
        return timed(action)

    cases: dict[str, Case] = {
        "late": lambda: cached(late),
        "whole rows": lambda: cached(whole),
        "Parquet": lambda: timed(parquet),
    }
    interleaved(cases, 1)
    found = interleaved(cases, runs)
    report.keep(f"sort, {corpus.title}", found)
    for rival, title in (("whole rows", "winkfs, whole rows"), ("Parquet", "Parquet, whole rows")):
        case = f"sort with late fetch, {corpus.title}"
        goal = Goal(3) if rival == "whole rows" else None
        compare(report, case, found["late"], title, found[rival], goal, "wall")


def check(frame: Any, corpus: Corpus) -> None:
    """Every document once, with its content."""
    count, total = frame.selectExpr("count(distinct path)", "sum(length(content))").first()
    assert (count, total) == (corpus.count, corpus.total), (count, total)


if __name__ == "__main__":
    main()
