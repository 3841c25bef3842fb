"""`winkfs pipeline JOB`: Spark jobs, each of which is also a program for spark-submit."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from winkformats.disk.schemes import is_far
from winkformats.errors import FormatError
from winkfs.cli._common import (
    COMPRESS,
    MAX_RATIO,
    Group,
    answer,
    bad_records,
    emit,
    name_bytes,
    printable,
    warn,
)
from winkfs.cli.dataset import SHARD_SIZE
from winkfs.errors import Refusal
from winkfs.names import to_str

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from winkfs.results.digests import Digest, Digests
    from winkfs.spark.jobs.session import Report

Job = Callable[["SparkSession", "Report"], dict[str, Any]]


@click.group(cls=Group)
def pipeline() -> None:
    """Run Spark jobs over containers and data sets.

    Each job except lookup starts a session on this machine, or on --master, and prints a JSON
    summary at the end. A digest set or an order is replaced only when the new one is complete. Each
    job is also a program for spark-submit:
    spark-submit FLAGS .../winkfs/spark/jobs/digest.py SOURCE DIGESTS
    """


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every job to a command."""
    for option in (
        click.option(
            "--log", metavar="FILE", type=click.Path(dir_okay=False),
            help="Write Java and worker logs to FILE; discarded otherwise.",
        ),
        click.option(
            "--conf", multiple=True, metavar="KEY=VALUE", callback=_settings,
            help="A Spark setting, such as spark.driver.memory=8g.",
        ),
        click.option(
            "--remote", metavar="URL",
            help="A server of Spark Connect to run on: sc://HOST:PORT; local[2] starts one.",
        ),
        click.option("--master", metavar="URL", help="Where to run (default: local[*])."),
    ):  # fmt: skip
        command = option(command)
    return command


def _settings(
    ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> list[tuple[str, str]]:
    for setting in given:
        if "=" not in setting:
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE")
    return [(key, value) for key, _, value in (setting.partition("=") for setting in given)]


MAY_BE_FAR: Final = {"source", "dataset", "into"}  # parameters that may be URLs
BAD = click.option(
    "--bad-list", metavar="FILE", type=click.Path(dir_okay=False),
    help="Write the bad records to FILE, one JSON object per line.",
)  # fmt: skip
FAIL_FAST = click.option("--fail-fast", is_flag=True, help="Fail at the first bad record.")


def run(
    name: str,
    job: Job,
    *,
    master: str | None,
    conf: list[tuple[str, str]],
    log: str | None,
    remote: str | None = None,
    bad_list: str | None = None,
    show: Callable[[dict[str, Any]], None] = emit,
) -> int:
    """Run a job in the session of this process, or a new one, and print its summary -> exit status:
    1 if there were bad records."""
    for parameter, given in click.get_current_context().params.items():
        for text in given if isinstance(given, tuple) else (given,):
            if isinstance(text, str) and is_far(text) and parameter not in MAY_BE_FAR:
                what = "has to be a path of a file system: containers and data sets may be URLs"
                raise Refusal(what, text)  # before Spark is started
    from winkfs.spark.jobs.session import cpu_seconds, session
    from winkfs.spark.session import context_of

    # PySpark 4.3 warns of pandas 3; no job uses a frame of pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    start = time.monotonic()
    with _bad_list(bad_list) as report, session(name, master, conf, log, remote) as spark:
        began, cpu = time.monotonic(), cpu_seconds()
        summary = job(spark, report)
        context = context_of(spark)
        local = context is not None and context.master.startswith("local[")
        summary["seconds"] = round(time.monotonic() - began, 3)
        if local:
            summary["cpu_seconds"] = round(cpu_seconds() - cpu, 2)
        summary["start_seconds"] = round(began - start, 3)
    for line in summary.pop("lines", ()):
        warn(f"{name}: {line}")
    if summary.get("bad") and not bad_list:
        warn(f"{name}: {summary['bad']} bad records: --bad-list FILE lists them")
    show(summary)
    return 1 if summary.get("bad") else 0


@contextlib.contextmanager
def _bad_list(path: str | None) -> Iterator[Report]:
    with bad_records(path) as report:
        yield lambda bad: report(bad._asdict())


# --- the jobs ---


@pipeline.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.argument("dataset")
@click.option(
    "--kind", type=click.Choice(
        ["tree", "tar", "warc", "parquet", "webdataset", "mds", "records"]
    ),
    help="Kind of the inputs (default: detected). For a directory: read its files of that kind.",
)  # fmt: skip
@click.option("--path-column", default="path", show_default=True, help="Of Parquet and MDS.")
@click.option("--content-column", default="content", show_default=True, help="Of Parquet and MDS.")
@click.option("--mtime-column", default="mtime", show_default=True, help="Of Parquet files.")
@click.option(
    "--html", is_flag=True, help="Store title and language of HTML as columns `title` and `lang`."
)
@click.option("--again", is_flag=True, help="Read inputs again that DATASET already contains.")
@click.option(
    "--latest", is_flag=True, help="Keep only the newest capture of each URL of web documents."
)
@click.option(
    "--ignore-zeros", is_flag=True,
    help="Read tar files beyond their end marker, as of concatenated archives, like tar -i.",
)  # fmt: skip
@MAX_RATIO
@FAIL_FAST
@BAD
@options
def ingest(
    inputs: tuple[str, ...],
    dataset: str,
    kind: str | None,
    path_column: str,
    content_column: str,
    mtime_column: str,
    html: bool,
    again: bool,
    latest: bool,
    ignore_zeros: bool,
    max_ratio: int,
    fail_fast: bool,
    bad_list: str | None,
    **where: Any,
) -> int:
    """Read directories, archives and stores into a data set.

    INPUT is a directory, a tar, WARC, ARC or Parquet file, or a store of records. Names are
    relative to the directory, those in the archive, or the ids of records. From WARC and ARC files
    come responses with an HTTP status of 200 to 299, resources and conversions: they are named
    host/path?query, and the column url contains their URL. The newest capture of a URL has that
    name; older ones are followed by @YYYYMMDDhhmmss. An interrupted run resumes: inputs that are in
    DATASET and have not changed are skipped.

    --kind webdataset reads tar files, also as 'shard-{000..099}.tar', by samples: the JSON of a
    sample becomes columns of its files. --kind mds reads folders with an index.json of MosaicML
    Streaming: numbers and texts become columns, all other values files.

    With --html, `winkfs ls DATASET --columns title,lang --where "lang = 'de'"` shows the title and
    language that the documents state.
    """
    from winkfs.spark.jobs import ingest as job
    from winkfs.spark.jobs.ingest import ParquetColumns, TarOptions

    columns = ParquetColumns(path_column, content_column, mtime_column)
    return run(
        "ingest",
        lambda spark, bad: job.run(
            spark, inputs, dataset, kind=kind, columns=columns, html=html, again=again,
            latest=latest, fail_fast=fail_fast, bad=bad,
            tar=TarOptions(ignore_zeros, max_ratio),
        ),
        bad_list=bad_list, **where,
    )  # fmt: skip


SOURCE = click.argument("source")
AS_OF = click.option("--as-of", metavar="WHEN", help="Generation of the data set, or a time.")
PARTS = click.option("--parts", type=click.IntRange(1), metavar="N", help="Parts of the order.")
KEY = click.option(
    "--key", required=True, metavar="SQL",
    help="Expression of path, size, mtime, content ...: \"mtime\", \"split(path, '/')[0]\".",
)  # fmt: skip


@pipeline.command()
@SOURCE
@click.argument("digests")
@click.option(
    "--shards", type=click.IntRange(1), metavar="N",
    help="Number of shards (default: one per 500,000 documents).",
)  # fmt: skip
@AS_OF
@FAIL_FAST
@BAD
@options
def digest(
    source: str,
    digests: str,
    shards: int | None,
    as_of: str | None,
    fail_fast: bool,
    bad_list: str | None,
    **where: Any,
) -> int:
    """Make a digest set: hashes, size, time, title, language.

    SOURCE is a container or a data set. `winkfs pipeline lookup DIGESTS PATH` finds a document. An
    existing digest set is replaced when the new one is complete.
    """
    from winkfs.spark.jobs import digest as job

    return run(
        "digest",
        lambda spark, bad: job.run(
            spark, source, digests, shards=shards, as_of=as_of, fail_fast=fail_fast, bad=bad
        ),
        bad_list=bad_list, **where,
    )  # fmt: skip


@pipeline.command()
@SOURCE
@click.argument("order")
@KEY
@click.option("--descending", is_flag=True, help="Sort in descending order.")
@PARTS
@AS_OF
@options
def sort(
    source: str,
    order: str,
    key: str,
    descending: bool,
    parts: int | None,
    as_of: str | None,
    **where: Any,
) -> int:
    """Sort all files by a key into an order.

    Spark reads it without a shuffle:
    spark.read.format("winkfs").option("orderBy", "perm:ORDER").load(SOURCE)
    """
    from winkfs.spark.jobs import sort as job

    return run(
        "sort",
        lambda spark, _: job.run(
            spark, source, order, key, descending=descending, parts=parts, as_of=as_of
        ),
        **where,
    )


@pipeline.command()
@SOURCE
@click.argument("order")
@KEY
@PARTS
@AS_OF
@options
def group(
    source: str, order: str, key: str, parts: int | None, as_of: str | None, **where: Any
) -> int:
    """Group files with equal keys into an order.

    Spark reads it like an order made by `sort`; a group is never split between partitions.
    """
    from winkfs.spark.jobs import group as job

    return run(
        "group",
        lambda spark, _: job.run(spark, source, order, key, parts=parts, as_of=as_of),
        **where,
    )


@pipeline.command()
@SOURCE
@click.option("--near", is_flag=True, help="Find similar text by MinHash; otherwise equal bytes.")
@click.option(
    "--threshold", type=click.FloatRange(0.5, 1), default=0.8, show_default=True,
    help="With --near: least Jaccard index of the word shingles.",
)  # fmt: skip
@click.option("--min-size", type=click.IntRange(0), default=1, show_default=True, metavar="BYTES",
              help="Ignore smaller documents.")  # fmt: skip
@click.option("--table", metavar="DIR", help="Write a table of the duplicates, as Parquet.")
@click.option("--delete", is_flag=True, help="Delete the duplicates from the data set SOURCE.")
@click.option("--into", metavar="DATASET", help="Copy all other documents to DATASET.")
@FAIL_FAST
@BAD
@options
def dedup(
    source: str,
    near: bool,
    threshold: float,
    min_size: int,
    table: str | None,
    delete: bool,
    into: str | None,
    fail_fast: bool,
    bad_list: str | None,
    **where: Any,
) -> int:
    """Find exact or near duplicates.

    The oldest document of each set is kept.
    """
    from winkfs.spark.jobs import dedup as job

    return run(
        "dedup",
        lambda spark, bad: job.run(
            spark, source, table=table, delete=delete, into=into,
            threshold=threshold if near else None, min_size=min_size, fail_fast=fail_fast, bad=bad,
        ),
        bad_list=bad_list, **where,
    )  # fmt: skip


@pipeline.command()
@click.argument("dataset")
@SHARD_SIZE
@click.option(
    "--all", "everything", is_flag=True,
    help="Rewrite every shard with hidden files, not only those with many.",
)  # fmt: skip
@COMPRESS
@options
def compact(
    dataset: str, shard_size: int, everything: bool, compress: str | None, **where: Any
) -> int:
    """Merge small shards and drop hidden files.

    Does what `winkfs dataset compact` does, on many cores or machines.
    """
    from winkfs.spark.jobs import compact as job

    return run(
        "compact",
        lambda spark, _: job.run(
            spark, dataset, shard_size=shard_size, everything=everything, compress=compress
        ),
        **where,
    )


@pipeline.command()
@SOURCE
@click.option("--plot", metavar="PNG", type=click.Path(dir_okay=False), help="Also draw a plot.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@AS_OF
@options
def stats(source: str, plot: str | None, as_json: bool, as_of: str | None, **where: Any) -> int:
    """Show files and bytes by type, size, day, and site."""
    from winkfs.spark.jobs import stats as job

    return run(
        "stats", lambda spark, _: job.run(spark, source, plot=plot, as_of=as_of),
        show=lambda summary: answer(summary, as_json, *map(printable, job.lines(summary))),
        **where,
    )  # fmt: skip


@pipeline.command()
@click.argument("digests")
@click.argument("paths", nargs=-1, metavar="PATH...")
@click.option(
    "--from", "listed", metavar="FILE",
    help="Read paths from FILE, one per line; - is standard input.",
)  # fmt: skip
def lookup(digests: str, paths: tuple[str, ...], listed: str | None) -> int:
    """Look up documents in a digest set.

    Prints one JSON object each. Does not start Spark. The exit status is 1 if a document is
    missing.
    """
    import winkfs.digests

    names = [name_bytes(path) for path in paths]
    if listed is not None:
        with click.open_file(listed, "rb") as file:
            names += [line.rstrip(b"\n") for line in file]
    missing = 0
    with winkfs.digests.open(digests) as found:
        for name, digest in zip(names, _look_up(found, names), strict=True):
            shown = to_str(name)
            if not isinstance(digest, winkfs.digests.Digest):
                missing += 1
                warn(f"{digests}: {shown}: {digest or 'no such document'}")
            else:
                record = digest._asdict() | {
                    "xxh3": f"{digest.xxh3:016x}",
                    "mmh3": digest.mmh3.hex(),
                }
                emit({"path": shown} | record)
    return 1 if missing else 0


def _look_up(digests: Digests, names: list[bytes]) -> Iterable[Digest | FormatError | None]:
    """Return the digest of each name, None if there is none, or the error that prevents reading."""
    try:
        return digests.get_many(names)
    except FormatError:
        return (_get(digests, name) for name in names)


def _get(digests: Digests, name: bytes) -> Digest | FormatError | None:
    try:
        return digests.get(name)
    except FormatError as error:
        return error
