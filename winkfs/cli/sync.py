"""Command that makes a container equal to a directory, a tar file or another store: sync."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from winkfs.cli._common import Progress, complete_base, complete_file, emit, glob_text, warn
from winkfs.cli.diff import write_change
from winkfs.registry import kind_of

if TYPE_CHECKING:
    from winkfs.archive.compare import Change

COUNTS = ("files", "directories", "links", "bytes", "updated", "unchanged", "removed", "failed")


@click.command()
@click.argument("source", metavar="SRC", shell_complete=complete_file)
@click.argument("base", metavar="DST", shell_complete=complete_base)
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; print what would be done.")
@click.option("-v", "--verbose", is_flag=True, help="Print each change, as diff DST SRC does.")
@click.option("--delete", is_flag=True, help="Remove from DST what SRC does not have.")
@click.option("-c", "--checksum", is_flag=True, help="Compare contents of files of equal size.")
@click.option("--xattrs", is_flag=True, help="Take all extended attributes, not only user.*.")
@click.option(
    "--include", multiple=True, metavar="PATTERN",
    help="Only matching names and everything below them, at any depth.",
)  # fmt: skip
@click.option(
    "--exclude", multiple=True, metavar="PATTERN",
    help="Not matching names and everything below them, at any depth, like tar.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="With --delete: also if SRC is empty.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress and no summary on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the counts.")
def sync(
    source: str,
    base: str,
    dry_run: bool,
    verbose: bool,
    delete: bool,
    checksum: bool,
    xattrs: bool,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    force: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Make the container DST equal to SRC: a directory, a tar file or another store.

    What is new or differs in SRC is stored: see `diff` for what is equal. Files of a directory
    whose ctime is not older than the last pack or sync, and files whose mtimes differ, are compared
    by their contents; if only mtime, mode, owner or attributes changed, no content is stored. DST
    is made if it is not there.

    With --delete, names that SRC does not have are removed at the end, but not if a file could not
    be read or stored, and not if SRC is empty, without --force. Names that --include and --exclude
    leave out stay. A name of another type is replaced only with --delete.

    The same command again finishes what was interrupted. The exit status is 1 if a file was not
    stored as it is.
    """
    from winkfs.archive.sync import Options
    from winkfs.archive.sync import sync as run

    kind, _ = kind_of(base)
    if kind.name != "container" or base.endswith("/"):
        raise click.ClickException(
            f"{base}: sync is for containers: pack --update for a data set, unpack for a directory"
        )
    options = Options(
        delete, checksum, dry_run, force, xattrs,
        tuple(map(glob_text, include)), tuple(map(glob_text, exclude)),
    )  # fmt: skip

    def changed(change: Change) -> None:
        if (verbose or dry_run) and not as_json:
            write_change(change)

    with Progress("syncing", "files", quiet=quiet) as bar:
        report = run(source, base, options, note=bar.note, changed=changed, progress=bar)
    if as_json:
        emit({"source": source, "base": base} | {name: getattr(report, name) for name in COUNTS})
    elif sys.stderr.isatty() and not quiet and not dry_run:
        parts = [f"{getattr(report, name):,} {name}" for name in COUNTS if getattr(report, name)]
        warn(", ".join(parts) or "nothing to do")
    return 1 if report.failed else 0
