"""`winkfs dataset`: data sets and their generations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from winkfs.cli._common import (
    COMPRESS,
    DURATION,
    JSON,
    SIZE,
    Group,
    Progress,
    answer,
    counted,
    printable,
    warn,
)
from winkfs.units import NANO, time_text

if TYPE_CHECKING:
    from winkfs.dataset.compaction import Rewritten
    from winkfs.dataset.records import Manifest

ROOT: Final = click.argument("root", metavar="DIR")
SHARD_SIZE: Final = click.option(
    "--shard-size", type=SIZE, default="1G", show_default=True,
    help="Target size of a shard: 500M, 2G.",
)  # fmt: skip


@click.group(cls=Group)
def dataset() -> None:
    """Create and maintain data sets: folders of containers (shards) with many concurrent writers.

    Each commit creates a generation; the newest file of a name wins. ls, cat, stat, put, rm, mv,
    unpack, info, verify, reindex, mount and `pack --shards` accept the folder like a container.
    """


@dataset.command()
@ROOT
def create(root: str) -> None:
    """Make an empty data set. An existing one is not changed."""
    from winkfs.dataset.manifest import create as run

    run(root)


@dataset.command()
@ROOT
@click.argument("bases", metavar="BASE...", nargs=-1, required=True)
@JSON
def add(root: str, bases: tuple[str, ...], as_json: bool) -> None:
    """Copy containers into a data set as new shards.

    The data set is created if it does not exist. All shards are added in one generation. If several
    contain a file of one name, the last BASE wins. Files that were deleted in a BASE are not
    deleted in other shards.
    """
    from winkfs.dataset.maintain import adopt

    with Progress("copying", "bytes") as bar:
        generation = adopt(root, bases, progress=bar)
    answer({"base": root, "generation": generation, "shards": len(bases)}, as_json)


@dataset.command()
@ROOT
@SHARD_SIZE
@click.option("--all", "everything", is_flag=True,
              help="Include shards of which less than a quarter is waste.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), metavar="N",
              help="Write N shards at once (default: one for each core).")  # fmt: skip
@COMPRESS
@click.option("-n", "--dry-run", is_flag=True, help="Only print an estimate.")
@JSON
def compact(
    root: str,
    shard_size: int,
    everything: bool,
    jobs: int | None,
    compress: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Merge small shards, and reclaim dead bytes.

    Rewrites small shards, and those of which a quarter or more is waste: replaced or deleted files.
    The visible files do not change. The old shards stay for older generations until
    `winkfs dataset vacuum`.

    With --compress, shards that are not compressed so are rewritten too, and what is put later is
    compressed so. Without it, rewritten shards are compressed as the data set is.
    """
    from winkfs.dataset.compaction import compact as run

    with Progress("compacting", "files") as bar:
        done = run(root, shard_size=shard_size, everything=everything, dry_run=dry_run,
                   progress=bar, compress=compress, jobs=jobs)  # fmt: skip
    _print_rewritten(root, done, as_json, dry_run=dry_run)


@dataset.command()
@ROOT
@SHARD_SIZE
@click.option("--shards", type=click.IntRange(1), metavar="N", help="Make about N shards.")
@JSON
def rebalance(root: str, shard_size: int, shards: int | None, as_json: bool) -> None:
    """Rewrite all files into shards of equal size."""
    from winkfs.dataset.compaction import rebalance as run

    with Progress("rebalancing", "files") as bar:
        done = run(root, shards=shards, shard_size=shard_size, progress=bar)
    _print_rewritten(root, done, as_json)


def _print_rewritten(root: str, done: Rewritten, as_json: bool, *, dry_run: bool = False) -> None:
    record = {
        "base": root, "generation": done.generation, "removed": done.removed, "added": done.added,
        "bytes_before": done.before, "bytes_after": done.after, "dry_run": dry_run,
    }  # fmt: skip
    before = f"{counted(done.removed, 'shard')} of {done.before} bytes"
    after = f"{done.added} of {done.after}"
    line = f"generation {done.generation}: {before} became {after}"
    if dry_run:
        line = f"{before} would become about {after}"
    answer(record, as_json, line if done.removed else "nothing to do")


@dataset.command()
@ROOT
@JSON
def history(root: str, as_json: bool) -> int:
    """List the generations that can still be read, newest first."""
    from winkformats.errors import FormatError
    from winkfs.dataset.manifest import Log, root_of

    log, damaged = Log(root_of(root)), False
    for generation, found in log.history():
        if isinstance(found, FormatError):
            damaged = True
            record: dict[str, Any] = {"generation": generation, "damaged": str(found)}
            line = f"{generation:6}  damaged: {found}"
        else:
            record = _record(found)
            line = (
                f"{generation:6}  {record['time']}  {record['operation']:10} "
                f"+{record['added']} -{record['removed']} shards, {record['files']} files, "
                f"{record['tombstones']} deletes, {record['bytes']} bytes"
            )
        answer(record, as_json, printable(line))
    for problem in log.problems:
        warn(problem)
    return 1 if damaged or log.problems else 0


def _record(manifest: Manifest) -> dict[str, Any]:
    return {
        "generation": manifest.generation,
        "time": time_text(manifest.time_ns // NANO),
        "time_ns": manifest.time_ns,
        "operation": manifest.operation,
        "job": manifest.job,
        "added": len(manifest.added),
        "removed": len(manifest.removed),
        "files": sum(record.files for record in manifest.added),
        "tombstones": sum(record.tombstones for record in manifest.added),
        "bytes": sum(record.size for record in manifest.added),
        "streams": dict(manifest.streams),
        "metrics": dict(manifest.metrics),
    }


@dataset.command()
@ROOT
@click.option(
    "--keep", type=click.IntRange(1), default=1, show_default=True, metavar="N",
    help="Number of generations to keep, whatever their age.",
)  # fmt: skip
@click.option(
    "--older-than", type=DURATION, default="7d", show_default=True, metavar="AGE",
    help="Keep what is younger: 90m, 36h, 7d. Use 0 only while no process writes.",
)  # fmt: skip
@click.option("-n", "--dry-run", is_flag=True, help="Only list what would be removed.")
@JSON
def vacuum(root: str, keep: int, older_than: float, dry_run: bool, as_json: bool) -> None:
    """Remove old generations, and files of dead jobs.

    Shards that only these generations use are removed too. A removed generation cannot be read.
    """
    from winkfs.dataset.maintain import vacuum as run

    done = run(root, keep=keep, older_than=older_than, dry_run=dry_run)
    for note in done.notes:
        warn(note)
    record = {
        "base": root, "oldest_generation": done.oldest, "shards": done.shards,
        "leftovers": done.leftovers, "manifests": done.manifests, "bytes": done.bytes,
        "notes": done.notes, "dry_run": dry_run,
    }  # fmt: skip
    what = "would be removed" if dry_run else "removed"
    shards, leftovers = counted(len(done.shards), "shard"), counted(len(done.leftovers), "leftover")
    manifests = counted(len(done.manifests), "manifest")
    line = f"{shards}, {leftovers}, {manifests}, {done.bytes} bytes {what}; the oldest generation "
    paths = map(printable, done.shards + done.leftovers)
    answer(record, as_json, *paths, f"{line}is {done.oldest}")


@dataset.command()
@ROOT
@click.option("--apply", is_flag=True, help="Make the changes; otherwise only list the steps.")
@JSON
def repair(root: str, apply: bool, as_json: bool) -> int:
    """Restore damaged manifests from their copies.

    If the newest manifest and its copy are damaged, nothing can be committed. It is rebuilt if the
    shards confirm every field; otherwise that generation is abandoned. Damaged files are kept as
    *.damaged. The exit status is 1 while something has to be repaired.
    """
    from winkfs.dataset.maintain import repair as run

    done = run(root, apply=apply)
    record = {"base": root, "mended": done.mended, "copies": done.copies, "left": done.left,
              "applied": apply}  # fmt: skip
    lines = [printable(line if apply else f"would be repaired: {line}") for line in done.mended]
    if done.copies:
        lines.append(f"{done.copies} copies of manifests {'made' if apply else 'are missing'}")
    answer(record, as_json, *lines, *([] if lines or done.left else ["nothing to repair"]))
    for line in [] if as_json else done.left:
        warn(line)
    return 1 if done.left or (done.mended and not apply) else 0
