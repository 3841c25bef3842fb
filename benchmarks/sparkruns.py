"""What the Spark benchmarks share: a session, its processor time, and one corpus in every form.

Time on the processor is that of all processes of the application: this one, the JVM and the Python
workers below it, also those that have ended.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import htmltree
import numpy as np
import samples
from common import Options, Phases, resident
from report import Goal, Report

from winkfs.spark import session_conf
from winkfs.spark.jobs.session import cpu_seconds

PARTS: Final = 8  # Parquet files, tar files
ROW_GROUP: Final = 8 << 20  # bytes of content; the default is 128 MiB
PER_FOLDER: Final = 1000  # of the files on ext4
SPARK_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "4",
    "spark.log.level": "ERROR",
    "spark.sql.files.archive.reader.enabled": "true",
}
COLUMNS: Final = (
    "case", "winkfs, CPU s (range)", "wall, s", "rival", "rival, CPU s (range)", "wall, s",
    "times as fast, CPU", "wall", "goal",
)  # fmt: skip


@contextmanager
def session(settings: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A session of this machine with two cores, warm: JVM and Python workers have run a job."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        sys.exit("Spark is not installed: pip install 'winkfs[spark]'")
    builder = SparkSession.builder.master("local[2]")
    spark = builder.config(map=SPARK_CONF | session_conf() | dict(settings or {})).getOrCreate()
    try:
        from winkfs.spark import register

        register(spark)
        spark.range(1000).mapInArrow(lambda batches: batches, "id long").count()
        yield spark
    finally:
        spark.stop()


# --- time ---


def timed(action: Callable[[], object]) -> Phases:
    """-> seconds: "wall", and "cpu" of the whole application."""
    cpu, start = cpu_seconds(), time.perf_counter()
    action()
    wall = time.perf_counter() - start
    return {"wall": wall, "cpu": cpu_seconds() - cpu}


def compare(
    report: Report,
    case: str,
    ours: Mapping[str, Sequence[float]],
    rival: str,
    theirs: Mapping[str, Sequence[float]],
    goal: Goal | None = None,
    by: str = "cpu",
) -> None:
    """A row of COLUMNS: how many times as fast we are, run against run; the goal is about `by`."""
    ratios = {
        key: median(b / max(a, 1e-3) for a, b in zip(ours[key], theirs[key], strict=True))
        for key in ("cpu", "wall")
    }
    report.row(
        case, _range(ours["cpu"]), f"{median(ours['wall']):.2f}", rival, _range(theirs["cpu"]),
        f"{median(theirs['wall']):.2f}", f"**{ratios['cpu']:.2f}x**", f"**{ratios['wall']:.2f}x**",
        f"{report.verdict(goal, ratios[by])} ({by})" if goal else "",
    )  # fmt: skip


def _range(runs: Sequence[float]) -> str:
    return f"{median(runs):.2f} ({min(runs):.2f}-{max(runs):.2f})"


# --- the corpus ---


@dataclass(frozen=True)
class Corpus:
    """The same documents in every form.

    title       what they are
    parquet     a folder of PARTS files: path, size, mtime, content; as Spark writes them by default
    tuned       the same in row groups of ROW_GROUP bytes, not compressed
    tars        a folder of PARTS tar files
    tree        a directory
    dataset     a winkfs data set, made by the sink from `parquet`
    """

    title: str
    count: int
    total: int
    place: Path

    @property
    def parquet(self) -> str:
        return str(self.place / "parquet")

    @property
    def tuned(self) -> str:
        return str(self.place / "tuned")

    @property
    def tars(self) -> str:
        return str(self.place / "tars")

    @property
    def tree(self) -> str:
        return str(self.place / "tree")

    @property
    def dataset(self) -> str:
        return str(self.place / "dataset")

    @property
    def data_files(self) -> list[Path]:
        return sorted(self.place.glob("dataset/*/*.data"))

    def resident(self, name: str = "dataset") -> float:
        """MiB of a data set's data files in the page cache."""
        files = self.place.glob(f"{name}/*/*.data")
        return sum(resident(path) * path.stat().st_size for path in files) / 2**20


def small_documents(asked: Options, place: Path) -> Corpus:
    """200,000 x 4 KiB, random bytes."""
    return random_documents(place, asked.size(200_000, 4_000), 4 * samples.KIB)


def random_documents(place: Path, count: int, size: int) -> Corpus:
    generator = np.random.default_rng(samples.SEED)
    documents = ((name, generator.bytes(size)) for name in samples.names(count))
    _make(place, documents, count)
    return Corpus(f"{count:,} x {size // samples.KIB} KiB", count, count * size, place)


def html_documents(asked: Options, place: Path) -> Corpus:
    """HTML files of many sizes."""
    tree, _ = htmltree.make(asked.place, asked.size(21_725, 1_000))
    paths = sorted(path for path in tree.rglob("*.html"))
    documents = ((str(path.relative_to(tree)), path.read_bytes()) for path in paths)
    _make(place, documents, len(paths))
    total = sum(path.stat().st_size for path in paths)
    return Corpus(f"{len(paths):,} HTML files, {total / 1e6:,.0f} MB", len(paths), total, place)


def write_dataset(spark: Any, corpus: Corpus, target: str | None = None) -> None:
    """Through the sink, over what is there."""
    frame = spark.read.parquet(corpus.parquet).select("path", "mtime", "content")
    frame.write.format("winkfs").mode("append").save(target or corpus.dataset)


def write_tuned(corpus: Corpus) -> None:
    """Parquet that costs a reader least, from the default one."""
    import pyarrow.parquet as pq

    rows = max(1, ROW_GROUP * corpus.count // corpus.total)
    Path(corpus.tuned).mkdir(exist_ok=True)
    for path in Path(corpus.parquet).iterdir():
        table, target = pq.read_table(path), Path(corpus.tuned) / path.name
        pq.write_table(table, target, use_dictionary=False, compression="none", row_group_size=rows)


def _make(place: Path, documents: Iterator[tuple[str, bytes]], count: int) -> None:
    """Parquet with Spark's own defaults (snappy, one row group), tar files, and a directory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("parquet", "tars", "tree"):
        shutil.rmtree(place / name, ignore_errors=True)
        (place / name).mkdir(parents=True)
    each = -(-count // PARTS)
    when = pa.scalar(1_700_000_000_000_000, pa.timestamp("us", "UTC"))
    for part in range(PARTS):
        chosen = [found for _, found in zip(range(each), documents, strict=False)]
        names, contents = [name for name, _ in chosen], [data for _, data in chosen]
        table = pa.table({
            "path": names, "size": pa.array(map(len, contents), pa.int64()),
            "mtime": pa.array([when.as_py()] * len(names), pa.timestamp("us", "UTC")),
            "content": pa.array(contents, pa.binary()),
        })  # fmt: skip
        pq.write_table(table, place / "parquet" / f"{part}.parquet", use_dictionary=False)
        with tarfile.open(place / "tars" / f"{part}.tar", "w") as tar:
            for name, data in chosen:
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(data), 1_700_000_000
                tar.addfile(info, io.BytesIO(data))
        for name, data in chosen:
            path = place / "tree" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
