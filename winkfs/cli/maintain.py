"""Commands for a container as a whole: verify, reindex, backup, compact, repair, salvage ..."""

from __future__ import annotations

from typing import Final

import click

import winkfs
from winkformats.disk.schemes import is_far
from winkfs.cli._common import (
    BASE,
    COMPRESS,
    CONTAINER,
    DURATION,
    JSON,
    Progress,
    Quantity,
    answer,
    bytes_to_read,
    counted,
    print_report,
    warn,
)

QUIET = click.option("-q", "--quiet", is_flag=True, help="Show no progress and no summary.")
CONTID = click.option(
    "--contid",
    type=int,
    metavar="N",
    help="CONTID of the container, if the superblock is lost and no other file contains it.",
)


def _share(text: str) -> float | None:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        return None
    return share if text.endswith("%") and 0 < share <= 1 else None


def _part(text: str) -> tuple[int, int] | None:
    number, slash, parts = text.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal()):
        return None
    found = int(number), int(parts)
    return found if 1 <= found[0] <= found[1] else None


SHARE: Final = Quantity("share", _share, "a percentage, as 5% or 0.5%")
PART: Final = Quantity("part", _part, "K/N with K from 1 to N, as 1/7")
CHECKSUMS: Final = (
    "sha256", "md5", "sha1", "sha224", "sha384", "sha512", "sha3_224", "sha3_256", "sha3_384",
    "sha3_512", "blake2b", "blake2s",
)  # fmt: skip


@click.command()
@BASE
@click.option("--quick", is_flag=True, help="Check superblock, index and catalog; read no entry.")
@click.option("--sample", type=SHARE, metavar="P%", help="Read so much of the entries: 5%.")
@click.option("--part", type=PART, metavar="K/N",
              help="Read the K-th of N equal parts of the entries: 1/7.")  # fmt: skip
@click.option("--max-duration", type=DURATION, metavar="TIME",
              help="Read entries for so long: 90s, 10m, 2h.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), metavar="N",
              help="With --sample and --max-duration: another choice. [default: 0]")  # fmt: skip
@click.option("-j", "--jobs", type=click.IntRange(1), default=1, metavar="N",
              help="Processes: for the shards of a data set, and for a part.")  # fmt: skip
@click.option("--checksum", type=click.Choice(CHECKSUMS), metavar="NAME",
              help="List checksums as sha256sum does: sha256, md5, blake2b ...")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print problems only.")
@JSON
def verify(
    base: str,
    quick: bool,
    sample: float | None,
    part: tuple[int, int] | None,
    max_duration: float | None,
    seed: int | None,
    jobs: int,
    checksum: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Check every entry, inode, counter and index cell. Changes nothing.

    For a digest set or an order: its record, and every digest or row.

    Prints one line per problem; the exit status is 1 if there is any. The last line states what was
    checked, if not all. With --sample, --part and --max-duration the entries of blocks of the data
    file are read, and what their inodes point to; index, catalog and counters are not compared with
    them. The blocks of a sample are the same in each run with one --seed; all parts K/N together
    have each entry once, as long as nothing is written. Of a data set manifests are checked, too.

    --checksum reads all files, in the order in which they lie: `sha256sum -c` checks the list in a
    directory that was unpacked. Directories and links are left out. A damaged file is reported, and
    has no line.
    """
    chosen = [quick, sample is not None or part is not None, max_duration is not None]
    if (quick and any(chosen[1:])) or (checksum and (any(chosen) or jobs > 1)):
        raise click.UsageError("--quick and --checksum go with no other choice")
    if seed is not None and sample is None and max_duration is None:
        raise click.UsageError("--seed goes with --sample or --max-duration")
    if checksum:
        from winkfs.cli.checksum import print_checksums

        return print_checksums(base, checksum, as_json, quiet)
    total = None if any(chosen) and sample is None and part is None else bytes_to_read(base)
    if total is not None and any(chosen):
        total = int(total * (sample or 1) / (part or (1, 1))[1])
    with Progress("verifying", "bytes", total, quiet=quiet) as bar:
        report = winkfs.verify(
            base, bar, quick=quick, part=part or (1, 1), share=sample or 1.0, seed=seed or 0,
            seconds=max_duration, jobs=jobs,
        )  # fmt: skip
    record = {"base": base, "files": report.files, "entries": report.entries,
              "bytes": report.bytes, "scope": report.scope or "all", "problems": report.problems,
              "more_problems": report.more, "notes": report.notes}  # fmt: skip
    what = f"{base}: {counted(report.files, 'file')}, {counted(report.entries, 'entry')}"
    if quiet and not report.problems:
        return 0
    return print_report(report, record, what, as_json)


@click.command()
@BASE
@click.option("--cols", is_flag=True, hidden=True, expose_value=False)  # of older versions
@QUIET
@JSON
def reindex(base: str, quiet: bool, as_json: bool) -> int:
    """Rebuild BASE.idx, BASE.cat (and BASE.time) from BASE.data alone.

    For a data set, all shards are indexed; for a digest set, the indexes of its shards are rebuilt.
    Damage is reported and skipped; the exit status is then 1.
    """
    problems: list[str] = []
    with Progress("reindexing", "bytes", bytes_to_read(base), quiet=quiet) as bar:
        files = winkfs.reindex(base, progress=bar, problem=problems.append)
        for problem in problems:
            bar.warn(problem)
    record = {"base": base, "files": files, "problems": problems}
    answer(record, as_json, *([] if quiet else [f"{counted(files, 'file')} indexed"]))
    return 1 if problems else 0


@click.command()
@BASE
@click.argument("dest")
@click.option("--keep", type=click.IntRange(0), default=0, show_default=True, metavar="N",
              help="Keep N earlier states in DEST.")  # fmt: skip
@click.option("--state", type=click.IntRange(0), default=0, metavar="N",
              help="Of a backup BASE, copy the state N backups before the last.")  # fmt: skip
@QUIET
@JSON
def backup(base: str, dest: str, keep: int, state: int, quiet: bool, as_json: bool) -> int:
    """Copy a container or a data set to DEST, as of its last sync, while it is being written.

    A later run with the same DEST copies only what is new; after a compaction of BASE it copies
    everything. A run that is killed leaves DEST unchanged. DEST is an ordinary container or data
    set. The exit status is 1 if BASE is damaged: it is copied as it is.
    """
    total = bytes_to_read(base) if is_far(base) else None  # here only what is new is copied
    with Progress("copying", "bytes", total, quiet=quiet) as bar:
        done = winkfs.backup(base, dest, keep=keep, state=state, progress=bar)
        for problem in done.problems:
            bar.warn(problem)
    record = {"base": base, "dest": dest, "kind": done.kind, "whole": done.whole,
              "bytes_copied": done.copied, "bytes": done.size, "states": done.states,
              "states_removed": done.removed, "problems": done.problems}  # fmt: skip
    what = "all" if done.whole else "what is new"
    more = f", {done.states} states" if done.states > 1 else ""
    if done.removed:
        more += f", {counted(done.removed, 'earlier state')} removed (--keep {keep})"
    copied = f"{done.copied} bytes copied ({what}), {done.size} bytes"
    answer(record, as_json, *([] if quiet else [f"{dest}: {copied}{more}"]))
    return 1 if done.problems else 0


@click.command()
@CONTAINER
@click.option("--order", type=click.Choice(["disk", "name"]), default="disk", show_default=True,
              help="Order of the files in the new BASE.data.")  # fmt: skip
@COMPRESS
@click.option("-n", "--dry-run", is_flag=True, help="Only print how many bytes it would reclaim.")
@QUIET
@JSON
def compact(
    base: str, order: str, compress: str | None, dry_run: bool, quiet: bool, as_json: bool
) -> None:
    """Reclaim the space of deleted and replaced files.

    The live files are copied to a new BASE.data, which replaces the old one when it is durable: the
    disk needs space for both. No other process may write to the container; readers continue. A run
    that is killed leaves the container unchanged. For a data set: `winkfs dataset compact`.

    With --compress all contents are rewritten, compressed or with none not compressed, and so is
    what is put later. Without it they stay as they are.
    """
    from winkfs.container.compact import compact as run

    with Progress("compacting", "bytes", bytes_to_read(base), quiet=quiet) as bar:
        done = run(base, order=order, dry_run=dry_run, progress=bar, compress=compress)
    record = {"base": base, "dry_run": dry_run, "bytes_before": done.before,
              "bytes_after": done.after, "files": done.files}  # fmt: skip
    verb, files = "would become" if dry_run else "became", counted(done.files, "file")
    answer(
        record,
        as_json,
        *([] if quiet else [f"{base}: {done.before} bytes {verb} {done.after}, {files}"]),
    )


@click.command()
@CONTAINER
@click.option("--apply", is_flag=True, help="Make the changes; otherwise only list the steps.")
@CONTID
@JSON
def repair(base: str, apply: bool, contid: int | None, as_json: bool) -> int:
    """Repair a damaged container. Without --apply it changes nothing.

    Rewrites the superblocks, removes damaged ranges and files that have lost content, gives files
    that have only lost their attributes the default ones, and corrects all counters. Everything
    removed is kept in the container BASE.removed-TIME. The exit status is 1 if files or attributes
    were lost, if files went back to an older version, or if there is something to do.
    """
    from winkfs.container.repair import repair as run

    done = run(base, apply=apply, contid=contid)
    record = {"base": base, "applied": apply, "steps": done.steps, "lost": done.lost,
              "bare": done.bare, "older": done.older, "removed": done.removed}  # fmt: skip
    lines = [step if apply else f"would {step}" for step in done.steps]
    lines += [f"what was removed is in {done.removed}"] if done.removed else []
    end = f"{base}: nothing to repair" if not done.steps else "nothing was changed: see --apply"
    answer(record, as_json, *lines, *([] if apply and done.steps else [end]))
    return 1 if done.lost or done.bare or done.older or (done.steps and not apply) else 0


@click.command()
@CONTAINER
@click.option(
    "--previous", is_flag=True,
    help="Return to the sync before the last, if the second superblock still contains it.",
)  # fmt: skip
@click.option("-n", "--dry-run", is_flag=True, help="Only list what would be removed.")
@JSON
def rollback(base: str, previous: bool, dry_run: bool, as_json: bool) -> None:
    """Return to the state of the last sync: everything written after it is removed.

    The removed bytes are kept in the file BASE.removed-TIME.
    """
    from winkfs.container.repair import rollback as run

    done = run(base, previous=previous, dry_run=dry_run)
    record = {"base": base, "dry_run": dry_run, "bytes_before": done.before,
              "bytes_after": done.after, "files": done.names, "removed": done.removed}  # fmt: skip
    verb = "would go" if dry_run else "went"
    line = f"{base}: {verb} back from {done.before} bytes to {done.after}"
    if done.before == done.after:
        line = f"{base}: nothing was written after the last sync"
    answer(record, as_json, *done.names, line)


@click.command()
@click.argument("file")
@click.argument("out")
@CONTID
@QUIET
@JSON
def salvage(file: str, out: str, contid: int | None, quiet: bool, as_json: bool) -> int:
    """Copy every intact file of FILE, a data file in any state, into the new container OUT.

    Intact parts of damaged files, and content that belongs to no file, go to lost+found in OUT. The
    exit status is 1 if anything is missing.
    """
    from winkfs.container.salvage import salvage as run

    total = bytes_to_read(file)
    if total is not None and is_far(file):
        total *= 2  # it is copied first
    with Progress("salvaging", "bytes", total, quiet=quiet) as bar:
        done = run(file, out, contid=contid, progress=bar)
    for problem in done.problems:
        warn(problem)
    if done.guessed:
        warn(f"{file}: its superblock is lost: reconstructed from {done.guessed}")
    record = {"file": file, "out": out, "files": done.files, "partial": done.partial,
              "orphans": done.orphans, "problems": done.problems}  # fmt: skip
    partial, orphans = counted(done.partial, "part"), counted(done.orphans, "piece")
    found = f"below lost+found {partial} of files and {orphans} of content"
    answer(record, as_json, *([] if quiet else [f"{out}: {counted(done.files, 'file')}; {found}"]))
    return 1 if done.problems else 0
