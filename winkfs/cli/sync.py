"""Command that makes a container, a data set or a directory equal to something else: sync."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from winkfs.cli._common import STDIN, Progress, complete_base, complete_file, emit, glob_text, warn
from winkfs.cli.diff import write_change
from winkfs.cli.unpack import NO_SAME_OWNER, SAME_PERMISSIONS

if TYPE_CHECKING:
    from winkfs.archive.compare import Change
    from winkfs.archive.syncplan import Place

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
@SAME_PERMISSIONS
@NO_SAME_OWNER
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
    same_permissions: bool,
    no_same_owner: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Make DST equal to SRC.

    \b
      winkfs sync /srv/www corpus     a directory or an archive into a store
      winkfs sync corpus copy/        a store or an archive into a directory
      winkfs sync corpus set          a store into another one

    What is new or differs in SRC is stored: see `diff` for what is equal. Files whose mtimes differ
    are compared by their contents, and so are those of a directory SRC whose ctime is not older
    than the last pack or sync. If only mtime, mode, owner or attributes changed, no content is
    stored; a data set stores the file again. Entries of a container or a data set are copied as
    they are. A DST that is not there becomes a directory if it ends with /, otherwise a container.

    With --delete, names that SRC does not have are removed at the end, but not if a file could not
    be read or stored, and not if SRC is empty, without --force. Names that --include and --exclude
    leave out stay. A name of another type is replaced only with --delete.

    Into a directory, names, modes, owners and links are restored as by `unpack`, and nothing is
    written outside it. Each file appears when it is whole, each container or data set has its old
    state or a later one. The same command again finishes what was interrupted. The exit status is 1
    if a file was not stored as it is.
    """
    from winkfs.archive.sync import sync as run
    from winkfs.archive.syncplan import Options

    sides = _sides(source, base, xattrs, same_permissions, no_same_owner)
    options = Options(
        delete, checksum, dry_run, force, xattrs,
        tuple(map(glob_text, include)), tuple(map(glob_text, exclude)),
        same_permissions, not no_same_owner,
    )  # fmt: skip

    def changed(change: Change) -> None:
        if (verbose or dry_run) and not as_json:
            write_change(change)

    with Progress("syncing", "files", quiet=quiet) as bar:
        report = run(*sides, options, note=bar.note, changed=changed, progress=bar)
    if as_json:
        emit({"source": source, "base": base} | {name: getattr(report, name) for name in COUNTS})
    elif sys.stderr.isatty() and not quiet and not dry_run:
        parts = [f"{getattr(report, name):,} {name}" for name in COUNTS if getattr(report, name)]
        warn(", ".join(parts) or "nothing to do")
    return 1 if report.failed else 0


def _sides(
    source: str, base: str, xattrs: bool, same_permissions: bool, no_same_owner: bool
) -> tuple[Place, Place]:
    """Return what SRC and DST are. Raises UsageError for operands and options that do not go
    together."""
    from winkfs.archive.compare import what_is
    from winkfs.archive.sync import target_at
    from winkfs.archive.syncplan import Place

    if STDIN in (source, base):
        raise click.UsageError("SRC is read twice, and DST too: - is not possible")
    try:
        sides = Place(source, what_is(source)), Place(base, target_at(base))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    tree, into = (side.what == "tree" for side in sides)
    if tree and into:
        raise click.UsageError("SRC and DST are both directories: rsync -a copies these")
    if not into and (same_permissions or no_same_owner):
        raise click.UsageError("-p and --no-same-owner are for a DST that is a directory")
    if into and xattrs and not same_permissions:
        raise click.UsageError("a directory DST gets other attributes than user.* only with -p")
    return sides
