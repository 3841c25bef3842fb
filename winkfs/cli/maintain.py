"""Commands for a container as a whole: verify, reindex, backup, compact, repair, salvage ..."""

from __future__ import annotations

import click

import winkfs
from winkformats.disk.schemes import is_far
from winkfs.cli._common import (
    BASE,
    COMPRESS,
    CONTAINER,
    JSON,
    Progress,
    answer,
    bytes_to_read,
    counted,
    print_report,
    warn,
)

CONTID = click.option(
    "--contid",
    type=int,
    metavar="N",
    help="CONTID of the container, if the superblock is lost and no other file contains it.",
)


@click.command()
@BASE
@JSON
def verify(base: str, as_json: bool) -> int:
    """Check every entry, inode, counter and index cell. Changes nothing.

    For a digest set or an order: its record, and every digest or row.

    Prints one line per problem; the exit status is 1 if there is any.
    """
    with Progress("verifying", "bytes", bytes_to_read(base)) as bar:
        report = winkfs.verify(base, progress=bar)
    record = {"base": base, "files": report.files, "entries": report.entries,
              "bytes": report.bytes, "problems": report.problems,
              "more_problems": report.more}  # fmt: skip
    record |= {"notes": report.notes} if report.notes else {}
    what = f"{base}: {counted(report.files, 'file')}, {counted(report.entries, 'entry')}"
    return print_report(report, record, what, as_json)


@click.command()
@BASE
@click.option("--cols", is_flag=True, hidden=True, expose_value=False)  # of older versions
@JSON
def reindex(base: str, as_json: bool) -> int:
    """Rebuild BASE.idx, BASE.cat (and BASE.time) from BASE.data alone.

    For a data set, all shards are indexed; for a digest set, the indexes of its shards are rebuilt.
    Damage is reported and skipped; the exit status is then 1.
    """
    problems: list[str] = []
    with Progress("reindexing", "bytes", bytes_to_read(base)) as bar:
        files = winkfs.reindex(base, progress=bar, problem=problems.append)
        for problem in problems:
            bar.warn(problem)
    record = {"base": base, "files": files, "problems": problems}
    answer(record, as_json, f"{counted(files, 'file')} indexed")
    return 1 if problems else 0


@click.command()
@BASE
@click.argument("dest")
@click.option("--keep", type=click.IntRange(0), default=0, show_default=True, metavar="N",
              help="Keep N earlier states in DEST.")  # fmt: skip
@click.option("--state", type=click.IntRange(0), default=0, metavar="N",
              help="Of a backup BASE, copy the state N backups before the last.")  # fmt: skip
@JSON
def backup(base: str, dest: str, keep: int, state: int, as_json: bool) -> int:
    """Copy a container or a data set to DEST, as of its last sync, while it is being written.

    A later run with the same DEST copies only what is new; after a compaction of BASE it copies
    everything. A run that is killed leaves DEST unchanged. DEST is an ordinary container or data
    set. The exit status is 1 if BASE is damaged: it is copied as it is.
    """
    total = bytes_to_read(base) if is_far(base) else None  # here only what is new is copied
    with Progress("copying", "bytes", total) as bar:
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
    answer(record, as_json, f"{dest}: {copied}{more}")
    return 1 if done.problems else 0


@click.command()
@CONTAINER
@click.option("--order", type=click.Choice(["disk", "name"]), default="disk", show_default=True,
              help="Order of the files in the new BASE.data.")  # fmt: skip
@COMPRESS
@click.option("-n", "--dry-run", is_flag=True, help="Only print how many bytes it would reclaim.")
@JSON
def compact(base: str, order: str, compress: str | None, dry_run: bool, as_json: bool) -> None:
    """Reclaim the space of deleted and replaced files.

    The live files are copied to a new BASE.data, which replaces the old one when it is durable: the
    disk needs space for both. No other process may write to the container; readers continue. A run
    that is killed leaves the container unchanged. For a data set: `winkfs dataset compact`.

    With --compress all contents are rewritten, compressed or with none not compressed, and so is
    what is put later. Without it they stay as they are.
    """
    from winkfs.container.compact import compact as run

    with Progress("compacting", "bytes", bytes_to_read(base)) as bar:
        done = run(base, order=order, dry_run=dry_run, progress=bar, compress=compress)
    record = {"base": base, "dry_run": dry_run, "bytes_before": done.before,
              "bytes_after": done.after, "files": done.files}  # fmt: skip
    verb, files = "would become" if dry_run else "became", counted(done.files, "file")
    answer(record, as_json, f"{base}: {done.before} bytes {verb} {done.after}, {files}")


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
@JSON
def salvage(file: str, out: str, contid: int | None, as_json: bool) -> int:
    """Copy every intact file of FILE, a data file in any state, into the new container OUT.

    Intact parts of damaged files, and content that belongs to no file, go to lost+found in OUT. The
    exit status is 1 if anything is missing.
    """
    from winkfs.container.salvage import salvage as run

    total = bytes_to_read(file)
    if total is not None and is_far(file):
        total *= 2  # it is copied first
    with Progress("salvaging", "bytes", total) as bar:
        done = run(file, out, contid=contid, progress=bar)
    for problem in done.problems:
        warn(problem)
    if done.guessed:
        warn(f"{file}: its superblock is lost: reconstructed from {done.guessed}")
    record = {"file": file, "out": out, "files": done.files, "partial": done.partial,
              "orphans": done.orphans, "problems": done.problems}  # fmt: skip
    partial, orphans = counted(done.partial, "part"), counted(done.orphans, "piece")
    found = f"below lost+found {partial} of files and {orphans} of content"
    answer(record, as_json, f"{out}: {counted(done.files, 'file')}; {found}")
    return 1 if done.problems else 0
