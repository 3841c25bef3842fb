"""How long does Spark take to find a few documents among many?

    paths   1,000 paths among a million, with their content: a data set through its hash index,
            against Parquet with a filter on the path (files as written, and sorted by path)
    time    1 % of an append-only container by mtime, content too: seconds, and bytes that the disk
            reads when nothing is cached, against Parquet sorted by mtime; as it was written, and
            with BASE.cat (`winkfs reindex`, which shards of a data set have)

Time begins after the session has started and run a job.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import samples
from common import Case, Options, Phases, evict, interleaved, options, scratch
from report import Goal, Report
from sparkruns import COLUMNS, compare, session, timed

import winkfs
import winkfs.spark

START: Final = 1_700_000_000  # seconds since the epoch
WANTED: Final = 1_000
SIZE: Final = samples.KIB


def main() -> None:
    asked = options(__doc__)
    question = "How long does Spark take to find a few documents among many?"
    report = Report(asked, "spark-find", question, COLUMNS)
    with scratch(asked) as place, session() as spark:
        count = asked.size(1_000_000, 20_000)
        documents(place, count)
        spark.read.format("winkfs").load(str(place / "all")).write.format("winkfs").mode(
            "append"
        ).save(str(place / "dataset"))
        paths(report, spark, place, count, asked.runs)
        times(asked, report, spark, place, count)
    report.note("CPU is that of the whole application: driver, JVM and Python workers.")
    report.finish()


def documents(place: Path, count: int) -> None:
    """An append-only container, a second between two files, and the same in Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(samples.SEED)
    names = samples.names(count, shuffled=True)
    mtimes = range(START, START + count)
    with winkfs.create(place / "all", ao=True) as container:
        data = (generator.bytes(SIZE) for _ in names)
        container.put_many(zip(names, data, mtimes, strict=True))
    table = pa.table({
        "path": names, "mtime": pa.array(np.array(mtimes) * 1_000_000, pa.timestamp("us", "UTC")),
        "content": pa.array([generator.bytes(SIZE) for _ in names], pa.binary()),
    })  # fmt: skip
    for folder, rows in (("parquet", table), ("sorted", table.sort_by("path"))):
        (place / folder).mkdir()
        each = -(-count // 8)
        for part in range(8):
            piece = rows.slice(part * each, each)
            pq.write_table(piece, place / folder / f"{part}.parquet")


def total(frame: Any) -> int:
    return int(frame.selectExpr("sum(length(content))").first()[0] or 0)


def paths(report: Report, spark: Any, place: Path, count: int, runs: int) -> None:
    wanted = samples.in_random_order(samples.names(count))[:WANTED]

    def ours(where: str) -> Callable[[], int]:
        return lambda: total(winkfs.spark.read(spark, place / where, paths=wanted))

    def parquet(where: str) -> Callable[[], int]:
        from pyspark.sql.functions import col

        return lambda: total(
            spark.read.parquet(str(place / where)).filter(col("path").isin(wanted))
        )

    ways = {
        "data set": ours("dataset"), "container": ours("all"),
        "Parquet": parquet("parquet"), "Parquet, sorted by path": parquet("sorted"),
    }  # fmt: skip
    cases: dict[str, Case] = {}
    for name, query in ways.items():
        assert query() == WANTED * SIZE, name
        cases[name] = lambda query=query: timed(query)  # type: ignore[misc]
    found = interleaved(cases, runs)
    report.keep("paths", found)
    for name in ("data set", "container"):
        for rival in ("Parquet", "Parquet, sorted by path"):
            case = f"{WANTED:,} paths among {count:,}, {name}"
            compare(report, case, found[name], rival, found[rival])
    slowest = max(found["data set"]["wall"])
    verdict = report.verdict(Goal(1, at_most=True), slowest)
    report.note(f"{WANTED:,} paths: {slowest:.2f} s at most from load() to the answer: {verdict}.")


def times(asked: Options, report: Report, spark: Any, place: Path, count: int) -> None:
    low = START + count // 2
    high = low + count // 100

    def ours() -> int:
        reader = spark.read.format("winkfs").option("mtimeFrom", str(low))
        return total(reader.option("mtimeTo", str(high)).load(str(place / "all")))

    def parquet() -> int:
        frame = spark.read.parquet(str(place / "parquet"))
        return total(frame.filter(f"mtime >= timestamp_seconds({low}) and "
                                  f"mtime < timestamp_seconds({high})"))  # fmt: skip

    for query in (ours, parquet):
        assert query() == count // 100 * SIZE
    cold = [*place.glob("all.*"), *place.glob("parquet/*.parquet")]

    def run(query: Callable[[], int]) -> Phases:
        evict(*[path for path in cold if path.exists() and path.stat().st_size])
        before = _disk()
        found = timed(query)
        return {**found, "read": _disk() - before}

    cases: dict[str, Case] = {"winkfs": lambda: run(ours), "Parquet": lambda: run(parquet)}
    for name, made in (("as written", False), ("with BASE.cat", True)):
        if made:
            winkfs.reindex(place / "all")
        found = interleaved(cases, asked.runs)
        report.keep(f"time, {name}", found)
        case = f"1 % by mtime, cold, {name}"
        compare(report, case, found["winkfs"], "Parquet", found["Parquet"])
        size = sum(path.stat().st_size for path in place.glob("all.*"))
        part = median(found["winkfs"]["read"]) / size * 100
        goal = f" (goal {report.verdict(Goal(2, at_most=True), part)})" if made else ""
        report.note(
            f"{case}: the disk read {part:.2f} % of the container's {size / 2**20:,.0f} MiB{goal}; "
            f"Parquet: {median(found['Parquet']['read']) / 2**20:,.1f} MiB."
        )


def _disk() -> float:
    """Bytes that all disks have read."""
    found = 0
    for disk in Path("/sys/block").iterdir():
        found += int((disk / "stat").read_text().split()[2]) * 512
    return float(found)


if __name__ == "__main__":
    main()
