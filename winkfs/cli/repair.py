"""`winkfs repair`, `winkfs rollback` and `winkfs salvage`"""

from __future__ import annotations

import sys

import click

from winkfs.cli._common import BASE, JSON, Progress, emit, say, shown, size_of

CONTID = click.option(
    "--contid",
    type=int,
    metavar="N",
    help="CONTID of the container, if the superblock is lost and no other file has it.",
)


@click.command()
@BASE
@click.option("--apply", is_flag=True, help="Do it; otherwise only list the steps.")
@CONTID
@JSON
def repair(base: str, apply: bool, contid: int | None, as_json: bool) -> int:
    """Repair a damaged container. Without --apply it changes nothing.

    Rewrites the superblocks, takes out damaged ranges, removes files that have lost content, and
    recounts everything. Everything taken out is kept in the container BASE.removed-TIME. The exit
    status is 1 if files were lost or if there is something to do.
    """
    from winkfs.container.repair import repair as run

    done = run(base, apply=apply, contid=contid)
    if as_json:
        emit({"base": base, "applied": apply, "steps": done.steps, "lost": done.lost,
              "removed": done.removed})  # fmt: skip
    else:
        for step in done.steps:
            sys.stdout.buffer.write(shown(step if apply else f"would {step}") + b"\n")
        if done.removed:
            click.echo(f"what was taken out is in {done.removed}")
        if not done.steps:
            click.echo(f"{base}: nothing to repair")
        elif not apply:
            click.echo("nothing was changed: --apply does it")
    return 1 if done.lost or (done.steps and not apply) else 0


@click.command()
@BASE
@click.option(
    "--previous", is_flag=True,
    help="To the sync before the last, if the second superblock still holds it.",
)  # fmt: skip
@click.option("-n", "--dry-run", is_flag=True, help="Only list what would be removed.")
@JSON
def rollback(base: str, previous: bool, dry_run: bool, as_json: bool) -> None:
    """Return to the state of the last sync: everything written after it is removed.

    The removed bytes are kept in the file BASE.removed-TIME.
    """
    from winkfs.container.repair import rollback as run

    done = run(base, previous=previous, dry_run=dry_run)
    if as_json:
        emit({"base": base, "dry_run": dry_run, "bytes_before": done.before,
              "bytes_after": done.after, "files": done.names, "removed": done.removed})  # fmt: skip
        return
    for name in done.names:
        sys.stdout.buffer.write(shown(name) + b"\n")
    verb = "would go" if dry_run else "went"
    click.echo(f"{base}: {verb} back from {done.before} bytes to {done.after}")


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

    with Progress("salvaging", "bytes", size_of(file)) as bar:
        done = run(file, out, contid=contid, progress=bar)
    for problem in done.problems:
        say(problem)
    if done.guessed:
        say(f"{file}: its superblock is lost: made up from {done.guessed}")
    if as_json:
        counts = {"files": done.files, "partial": done.partial, "orphans": done.orphans}
        emit({"file": file, "out": out, **counts, "problems": done.problems})
    else:
        click.echo(f"{out}: {done.files} files; below lost+found {done.partial} parts of files and "
                   f"{done.orphans} pieces of content")  # fmt: skip
    return 1 if done.problems else 0
