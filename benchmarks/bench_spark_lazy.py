"""How much does Spark spend on a query that needs few of the contents, or all of them?

    local       200,000 x 4 KiB, random bytes, with a column k: all contents; names and sizes; 1 %
                by name; 1 % by k; a join with 1,000 names
    names       1,000 names of 1,000,000 x 1 KiB, as a filter of Spark
    first       the first query of a session that has run one job: names and sizes, and all
                contents, each in a process of its own
    far         20,000 x 4 KiB on moto, a server of S3, on 127.0.0.1, with the requests of each
                query, the first time with an empty cache, and again

Rows are `read(.., content="lazy")`; rivals are the eager read (content="inline") and Parquet, as
Spark writes it (snappy, one row group in a file), and tuned for readers (not compressed, row groups
of 8 MiB). A join is made after the contents are read, by any of them; "join, contents after it"
joins references and calls `fetch_content`. On object storage Parquet needs a connector of Hadoop
that PySpark does not have, so the rival there is the eager read.

Lance's connector for Spark is a jar of Maven Central, not a package of PyPI (`lance-spark` is not
there), so it is not part of this benchmark.

We verify every checksum; Parquet has none by default. Everything is warm. Each `read` is new, so
planning is part of the time. The rounds in which the JVM compiles are not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import samples
from bench_remote import use_s3
from common import Case, Phases, interleaved, options, scratch, warm
from report import Goal, Report
from sparkruns import COLUMNS, PARTS, Corpus, compare, session, timed, write_tuned
from webstore import BUCKET, Store, moto

import winkfs.spark
from winkfs.remote.cache import DiskCache

Query = Callable[[Any], int]
Ways = Mapping[str, Callable[[], Any]]
LAZY: Final = "lazy"
EAGER: Final = "winkfs, eager"
PARQUET: Final = "Parquet"
TUNED: Final = "Parquet, tuned"
RIVALS: Final = (EAGER, PARQUET, TUNED)
SETTLE: Final = 8  # rounds before the measured ones
FIRSTS: Final = 3  # sessions for each first query
WANTED: Final = 1_000
WHEN: Final = 1_700_000_000_000_000  # microseconds
ALL: Final = "all contents"
GOALS: Final = {(ALL, EAGER): Goal(0.91), (ALL, TUNED): Goal(0.8)}
SPARING: Final = Goal(1.0)  # of queries that need few contents, beside `TUNED`


def main() -> None:
    asked = options(__doc__, runs=7, own=_own)
    if asked.own.first:
        _first_query(*asked.own.first)
        return
    question = "How much does Spark spend on a query that needs few of the contents, or all?"
    only_far = asked.own.far
    report = Report(asked, "spark-lazy" + "-far" * only_far, question, COLUMNS)
    settle = 1 if asked.quick else SETTLE
    with scratch(asked) as place, moto() as store:
        os.environ["WINKFS_CACHE"] = str(place / "cache")  # which is emptied
        use_s3(store)  # before the session, whose processes have the settings from it
        small = Corpus(*_titled(asked.size(200_000, 4_000), 4 * samples.KIB), place / "small")
        many = Corpus(*_titled(asked.size(1_000_000, 8_000), samples.KIB), place / "many")
        distant = Corpus(*_titled(asked.size(20_000, 2_000), 4 * samples.KIB), place / "far")
        with session() as spark:
            for corpus in (distant,) if only_far else (small, many, distant):
                documents(spark, corpus)
            store.fill(distant.place)
            if not only_far:
                local(report, spark, small, settle, asked.runs)
                names(report, spark, many, settle, asked.runs)
            far(report, spark, distant, store, settle, asked.runs)
        if not only_far:
            first(report, small, 1 if asked.quick else FIRSTS)
    report.note("CPU is that of the whole application: driver, JVM and Python workers.")
    report.finish()


def _own(parser: ArgumentParser) -> None:
    parser.add_argument("--far", action="store_true", help="only what is on object storage")
    parser.add_argument("--first", nargs=3, help="for itself: a query, a way, a folder")


def _titled(count: int, size: int) -> tuple[str, int, int]:
    return f"{count:,} x {size // samples.KIB} KiB", count, count * size


def documents(spark: Any, corpus: Corpus) -> None:
    """Parquet in both forms, and from it a data set."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator, size = np.random.default_rng(samples.SEED), corpus.total // corpus.count
    Path(corpus.parquet).mkdir(parents=True)
    found, each = list(samples.names(corpus.count)), -(-corpus.count // PARTS)
    for part in range(PARTS):
        some = found[part * each : (part + 1) * each]
        table = pa.table({
            "path": some, "size": pa.array([size] * len(some), pa.int64()),
            "mtime": pa.array([WHEN] * len(some), pa.timestamp("us", "UTC")),
            "content": pa.array([generator.bytes(size) for _ in some], pa.binary()),
            "k": pa.array(range(part * each, part * each + len(some)), pa.int64()),
        })  # fmt: skip
        pq.write_table(table, Path(corpus.parquet) / f"{part}.parquet", use_dictionary=False)
    write_tuned(corpus)
    rows = spark.read.parquet(corpus.parquet).select("path", "mtime", "content", "k")
    rows.write.format("winkfs").mode("append").save(corpus.dataset)


def ways_of(spark: Any, corpus: Corpus) -> Ways:
    return {
        LAZY: lambda: winkfs.spark.read(spark, corpus.dataset, content="lazy"),
        EAGER: lambda: winkfs.spark.read(spark, corpus.dataset),
        PARQUET: lambda: spark.read.parquet(corpus.parquet),
        TUNED: lambda: spark.read.parquet(corpus.tuned),
    }


# --- queries ---


def contents(frame: Any) -> int:
    return int(frame.selectExpr("sum(length(content))").first()[0] or 0)


def listed(frame: Any) -> int:
    size, length = frame.selectExpr("sum(size)", "sum(length(path))").first()
    return int(size) if length else 0


def by_name(corpus: Corpus, frame: Any) -> int:
    low, high = (sorted(samples.names(corpus.count))[i] for i in (0, corpus.count // 100))
    return contents(frame.where(f"path >= '{low}' and path < '{high}'"))


def by_column(frame: Any) -> int:
    return contents(frame.where("k % 100 = 7"))


def joined(labels: Any, frame: Any) -> int:
    return contents(frame.join(labels, "path"))


QUERIES: Final[Mapping[str, Query]] = {"names": listed, "contents": contents}


def local(report: Report, spark: Any, corpus: Corpus, settle: int, runs: int) -> None:
    labels = _labels(spark, corpus)
    queries: dict[str, Query] = {
        ALL: contents, "names and sizes": listed, "1 % by name": partial(by_name, corpus),
        "1 % by a column": by_column, f"join with {WANTED:,} names": partial(joined, labels),
    }  # fmt: skip
    for case, query in queries.items():
        ways = ways_of(spark, corpus)
        cases = {name: partial(_asked, query, way) for name, way in ways.items()}
        if query is queries[f"join with {WANTED:,} names"]:
            cases[LATE] = partial(_late, spark, corpus, labels)
        rows(report, f"{case}, {corpus.title}", measured(corpus, cases, settle, runs), case)


LATE: Final = "winkfs, references joined"


def _late(spark: Any, corpus: Corpus, labels: Any) -> int:
    refs = winkfs.spark.read(spark, corpus.dataset, content="ref").join(labels, "path")
    return contents(winkfs.spark.fetch_content(refs))


def _labels(spark: Any, corpus: Corpus) -> Any:
    chosen = samples.in_random_order(samples.names(corpus.count))[:WANTED]
    return spark.createDataFrame([(name,) for name in chosen], "path string").cache()


def names(report: Report, spark: Any, corpus: Corpus, settle: int, runs: int) -> None:
    """A filter of Spark, which no source sees; and the option of the source beside it."""
    from pyspark.sql.functions import col

    chosen = samples.in_random_order(samples.names(corpus.count))[:WANTED]

    def query(frame: Any) -> int:
        return contents(frame.where(col("path").isin(chosen)))

    cases = {name: partial(_asked, query, way) for name, way in ways_of(spark, corpus).items()}
    found = measured(corpus, cases, settle // 2, runs)
    rows(report, f"{WANTED:,} names of {corpus.title}", found, "names")


def far(report: Report, spark: Any, corpus: Corpus, store: Store, settle: int, runs: int) -> None:
    url, cache = f"s3://{BUCKET}/dataset", DiskCache.of_user()
    for case, query in (
        (ALL, contents), ("names and sizes", listed), ("1 % by name", partial(by_name, corpus)),
    ):  # fmt: skip
        cases: dict[str, Callable[[], int]] = {}
        counts = list[str]()
        for name, content in ((LAZY, "lazy"), (EAGER, "inline")):
            way = partial(winkfs.spark.read, spark, url, content=content)
            cases[name] = partial(_asked, query, way)
            if cache is not None:
                cache.clear()  # else one way would find what the other has kept
            counts += [f"{name}, {when}: {_requests(store, cases[name])}"
                       for when in ("first", "again")]  # fmt: skip
        found = measured(corpus, cases, settle // 4, runs)
        rows(report, f"{case}, {corpus.title}, object storage", found, case)
        report.note(f"{case}, {corpus.title}, object storage: {'; '.join(counts)}.")


def _requests(store: Store, case: Callable[[], int]) -> str:
    """Run a query -> what it asks of the store."""
    store.counted()
    case()
    requests, size = store.counted()
    return f"{requests:,} requests, {size / 2**20:,.1f} MiB"


def _asked(query: Query, way: Callable[[], Any]) -> int:
    return query(way())


def measured(
    corpus: Corpus, ways: Mapping[str, Callable[[], int]], settle: int, runs: int
) -> dict[str, dict[str, list[float]]]:
    """All ways in turn, after rounds in which the JVM compiles. Their answers are equal."""
    answers = set[int]()

    def case(name: str) -> Phases:
        if name != PARQUET and name != TUNED:
            warm(*corpus.data_files)

        def checked() -> None:
            answers.add(ways[name]())

        found = timed(checked)
        assert len(answers) == 1, (name, answers)
        return found

    cases: dict[str, Case] = {name: partial(case, name) for name in ways}
    interleaved(cases, settle)
    return interleaved(cases, runs)


def rows(report: Report, case: str, found: dict[str, dict[str, list[float]]], short: str) -> None:
    report.keep(case, found)
    for rival in found:
        if rival == LAZY:
            continue
        goal = GOALS.get((short, rival))
        if goal is None and rival == TUNED and not short.startswith("join"):
            goal = SPARING
        compare(report, case, found[LAZY], rival, found[rival], goal)


# --- first queries ---


def first(report: Report, corpus: Corpus, sessions: int) -> None:
    for query in QUERIES:
        found: dict[str, dict[str, list[float]]] = {}
        for _ in range(sessions):
            for way in (LAZY, *RIVALS):
                for phase, seconds in _apart(query, way, corpus).items():
                    found.setdefault(way, {}).setdefault(phase, []).append(seconds)
        rows(report, f"first query of a session: {query}, {corpus.title}", found, "join")
        slower = median(found[LAZY]["cpu"]) / median(found[TUNED]["cpu"])
        report.note(f"first query, {query}: {slower:.2f} times the CPU of {TUNED}.")


def _apart(query: str, way: str, corpus: Corpus) -> Phases:
    given = [sys.executable, __file__, "--first", query, way, str(corpus.place)]
    done = subprocess.run(given, stdout=subprocess.PIPE, check=True, text=True, env=os.environ)
    found: Phases = json.loads(done.stdout.splitlines()[-1])
    return found


def _first_query(query: str, way: str, place: str) -> None:
    with session() as spark:
        frame = ways_of(spark, Corpus("", 0, 0, Path(place)))[way]
        found = timed(lambda: QUERIES[query](frame()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
