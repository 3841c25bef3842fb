"""The command export: the files of a store for loaders of other tools."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

import winkfs
from winkfs.cli._common import AS_OF, BASE, SIZE, WHERE, Progress, emit, name_bytes, warn
from winkfs.names import to_str
from winkfs.units import size_text

if TYPE_CHECKING:
    from winkfs.archive.items import Note


@click.command()
@BASE
@click.option(
    "--webdataset", metavar="PATTERN",
    help="Write tar files: out/part-%06d.tar, or .tar.gz; without %06d one file.",
)  # fmt: skip
@click.option("--mds", metavar="DIR", help="Write a data set of MosaicML Streaming into DIR.")
@click.option(
    "--parquet", metavar="PATH",
    help="Write a Parquet file; if PATH has no suffix, a folder of files.",
)  # fmt: skip
@click.option(
    "--by", type=click.Choice(["stem", "file"]), default="stem", show_default=True,
    help="A sample of WebDataset: the files of one stem (a.jpg, a.txt), or each file, numbered.",
)  # fmt: skip
@click.option("--maxsize", type=SIZE, help="Bytes of a shard (default: 1G, of MDS 64M).")
@click.option("--maxcount", type=click.IntRange(1), metavar="N", help="Samples of a shard.")
@click.option(
    "--row-group", type=SIZE, default="64M", show_default=True,
    help="Bytes of a row group of Parquet.",
)  # fmt: skip
@click.option(
    "--columns", metavar="NAMES",
    help="Columns beside path and content, with commas (default: those of BASE; also size, mtime, "
    "mode); '' for none.",
)  # fmt: skip
@WHERE
@click.option("--prefix", metavar="NAME", default="", help="Only files whose names begin so.")
@AS_OF
@click.option("--force", is_flag=True, help="Replace an export that is there.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress and no summary on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the counts.")
def export(
    base: str,
    webdataset: str | None,
    mds: str | None,
    parquet: str | None,
    by: str,
    maxsize: int | None,
    maxcount: int | None,
    row_group: int,
    columns: str | None,
    where: str | None,
    prefix: str,
    as_of: str | None,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Write the files of a store for loaders of other tools.

    Contents, names and columns are kept; directories, symbolic links and modes are not. A sample of
    WebDataset has the columns in KEY.json. All files of an export take their names at its end: if
    it fails or is interrupted, nothing is left. Files that are damaged, or that the format cannot
    hold, are listed and left out, and the exit status is 1.

    \b
      winkfs export corpus --webdataset 'out/part-%06d.tar' --maxsize 500M
      winkfs export s3://bucket/set --mds out --where "lang = 'de'"
      winkfs export corpus --parquet corpus.parquet
    """
    if sum(given is not None for given in (webdataset, mds, parquet)) != 1:
        raise click.UsageError("give one of --webdataset, --mds and --parquet")
    began = time.monotonic()
    failed: list[dict[str, str]] = []
    with Progress("exporting", "files", quiet=quiet, where=base) as bar:

        def note(noted: Note) -> None:
            bar.note(noted)
            if as_json and noted.failed:
                failed.append({"name": to_str(noted.name), "reason": noted.what})

        report = winkfs.export(
            base, webdataset=webdataset, mds=mds, parquet=parquet, by=by, maxsize=maxsize,
            maxcount=maxcount, row_group=row_group,
            columns=None if columns is None else [name for name in columns.split(",") if name],
            where=where, prefix=name_bytes(prefix), as_of=as_of, force=force, note=note,
            progress=bar,
        )  # fmt: skip
    if sys.stderr.isatty() and not quiet:
        shards = f"{len(report.shards):,} file{'s' if len(report.shards) != 1 else ''}"
        seconds = time.monotonic() - began
        warn(
            f"{report.samples:,} samples in {shards}: {size_text(report.bytes)} in {seconds:.1f} s"
        )
    if as_json:
        emit({"base": base, **asdict(report), "problems": failed})
    return 1 if report.failed else 0
