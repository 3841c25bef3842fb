"""Commands that copy files of containers into others: cp, split."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from winkfs.cli._common import (
    EXCLUDE,
    INCLUDE,
    NO_SUMMARY,
    SIZE,
    WHERE,
    Progress,
    complete_base,
    emit,
    glob_text,
    name_bytes,
    shown,
    store_names,
    warn,
)
from winkfs.names import to_str
from winkfs.units import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from winkfs.archive.items import Note

COUNTS: Final = ("files", "directories", "links", "bytes", "unchanged", "failed")
CP_COUNTS: Final = (*COUNTS[:-1], "updated", "failed")


@click.command()
@click.argument("stores", metavar="A... OUT", nargs=-1, required=True, shell_complete=complete_base)
@INCLUDE
@EXCLUDE
@click.option(
    "--files-from", metavar="FILE",
    help="Only the names listed in FILE (- for standard input), one per line or terminated by NUL.",
)  # fmt: skip
@WHERE
@click.option("--prefix", metavar="DIR/", default="", help="Put DIR/ before each name.")
@click.option(
    "--no-clobber", is_flag=True,
    help="Keep files that are in OUT; of several with one name copy the first.",
)  # fmt: skip
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; print what would be done.")
@click.option("-v", "--verbose", is_flag=True, help="Print + or M and the name of each file.")
@NO_SUMMARY
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the counts.")
def cp(
    stores: tuple[str, ...],
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    files_from: str | None,
    where: str | None,
    prefix: str,
    no_clobber: bool,
    dry_run: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Copy files of containers and data sets A... into the container or data set OUT.

    Files keep all their metadata. Entries are copied as they are, each is verified, and nothing is
    decompressed, unless OUT compresses otherwise. A may be a URL. Of several files with one name
    that of the last A counts.

    A new OUT has the variant and the compression of the first A, and the columns of all; it is
    written as OUT.partial and renamed when it is complete. Of an OUT that is there, files that are
    equal, in contents too, stay as they are; the others are added or replaced, or get only their
    metadata if a container has their contents, and the same command again finishes what was
    interrupted. A data set gets all files in one commit.

    A column that has two types is refused, before anything is written. Damaged files are listed and
    left out; the exit status is then 1.
    """
    from winkfs.archive.copyfiles import copy

    if len(stores) < 2:
        raise click.UsageError("name one source at least, and OUT")
    *sources, out = stores
    problems: list[dict[str, str]] = []
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(Progress("copying", "files", quiet=quiet))

        def note(noted: Note) -> None:
            bar.note(noted)
            if as_json:
                problems.append({"name": to_str(noted.name), "reason": noted.what})

        def changed(sign: str, name: bytes) -> None:
            sys.stdout.buffer.write(f"{sign} ".encode() + shown(to_str(name)) + b"\n")

        report = copy(
            sources, out, include=list(map(glob_text, include)),
            exclude=list(map(glob_text, exclude)), names=store_names(files_from, stack),
            where=where,
            prefix=name_bytes(prefix), no_clobber=no_clobber, dry_run=dry_run, note=note,
            changed=changed if (verbose or dry_run) and not as_json else None, progress=bar,
        )  # fmt: skip
    record = {"sources": sources, "out": out}
    _print_counts(report, CP_COUNTS, record, problems, as_json, quiet or dry_run)
    return 1 if report.failed else 0


def _print_counts(
    report: Any,
    names: Sequence[str],
    record: dict[str, Any],
    problems: list[Any],
    as_json: bool,
    quiet: bool,
) -> None:
    if as_json:
        counts = {name: getattr(report, name) for name in names}
        emit(record | counts | {"problems": problems})
    elif sys.stderr.isatty() and not quiet:
        parts = [f"{getattr(report, name):,} {name}" for name in names if name != "bytes"]
        warn(f"{', '.join(p for p in parts if p[:2] != '0 ')}: {size_text(report.bytes)}")


@click.command()
@click.argument("base", shell_complete=complete_base)
@click.argument("out")
@click.option("--size", type=SIZE, help="Containers of about SIZE bytes: OUT-0, OUT-1 ...")
@click.option("--files", type=click.IntRange(1), metavar="N", help="Containers of N files.")
@click.option(
    "--depth", type=click.IntRange(1), metavar="N",
    help="A container for each of the first N directories: OUT-docs, OUT-_top ...",
)  # fmt: skip
@click.option("--by", metavar="COLUMN", help="A container for each value: OUT-de, OUT-_null ...")
@click.option(
    "--shards", type=click.IntRange(1), metavar="N", help="One data set OUT of N even shards."
)
@click.option("-v", "--verbose", is_flag=True, help="Print the name of each container made.")
@NO_SUMMARY
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the counts.")
def split(
    base: str,
    out: str,
    size: int | None,
    files: int | None,
    depth: int | None,
    by: str | None,
    shards: int | None,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Split a container or a data set into containers OUT-0, OUT-1 ... or OUT-VALUE, by one rule.

    Entries are copied as they are: see `cp`. A file larger than SIZE has a container for itself. Of
    VALUE all but letters, digits, . and - becomes %XX; files without a value are in OUT-_null.

    Each container appears under its name when it is complete. The same command again begins with
    the first one that is missing; a container of another split is refused. A data set gets its
    shards in one commit. Damaged files are listed and left out; the exit status is then 1.
    """
    from winkfs.archive.split import split as run

    rules = {"size": size, "files": files, "depth": depth, "by": by, "shards": shards}
    if len([rule for rule in rules.values() if rule is not None]) != 1:
        raise click.UsageError("give one of --size, --files, --depth, --by and --shards")
    problems: list[dict[str, str]] = []
    containers: list[str] = []

    def made(path: str) -> None:
        containers.append(path)
        if verbose and not as_json:
            sys.stdout.buffer.write(shown(path) + b"\n")

    with Progress("splitting", "files", quiet=quiet) as bar:

        def note(noted: Note) -> None:
            bar.note(noted)
            if as_json:
                problems.append({"name": to_str(noted.name), "reason": noted.what})

        report = run(
            base, out, size=size, files=files, depth=depth, by=by, shards=shards, note=note,
            made=made, progress=bar,
        )  # fmt: skip
    record = {"source": base, "made": containers}
    _print_counts(report, COUNTS, record, problems, as_json, quiet)
    return 1 if report.failed else 0
