"""Command that compares two stores, directories or tar files: diff."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final

import click

from winkfs.cli._common import (
    EXCLUDE,
    INCLUDE,
    STDIN,
    Failures,
    complete_file,
    emit,
    glob_text,
    opened,
    short_name,
    shown,
    warn,
)
from winkfs.names import excluder, to_str
from winkfs.units import size_text

if TYPE_CHECKING:
    from winkfs.archive.compare import Change, Side, Totals
    from winkfs.archive.items import Note
    from winkfs.names import Choose

SIGNS: Final = {"+": "added", "-": "removed", "M": "modified", "T": "type"}
RANGE: Final = ".."


@click.command()
@click.argument("a", metavar="A", shell_complete=complete_file)
@click.argument("b", metavar="B", required=False, shell_complete=complete_file)
@click.option(
    "--as-of", metavar="G|G..H",
    help="A as of generation or time G; B, or A itself without B, as of H. None: the newest.",
)  # fmt: skip
@click.option("-c", "--checksum", is_flag=True, help="Compare contents of files of equal size.")
@click.option("--content-only", is_flag=True, help="Ignore times, modes, owners and attributes.")
@click.option("--xattrs", is_flag=True, help="Compare all extended attributes, not only user.*.")
@INCLUDE
@EXCLUDE
@click.option("--stat", is_flag=True, help="Print only counts and bytes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def diff(
    a: str,
    b: str | None,
    as_of: str | None,
    checksum: bool,
    content_only: bool,
    xattrs: bool,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    stat: bool,
    as_json: bool,
) -> int:
    """List what differs between A and B: containers, data sets, directories or tar files.

    \b
      + NAME        only in B
      - NAME        only in A
      M NAME  WHAT  in both: content, size, mtime, mode, owner, xattrs, columns
      T NAME  WHAT  of another type: file, directory, link

    Files are equal if type, size, mtime, mode, owner, extended attributes and columns are, as far
    as both sides can have them; with -c also if their contents are. Names are in byte order; WHAT
    follows a tab. A directory without an entry of its own is not reported if names are below it.
    A TAR may be compressed; - is standard input. Of a folder and a container with the same path, X/
    is the folder, X.data the container. `winkfs diff SET --as-of 3..5` compares two generations.

    Names come from catalogs, and no content is read without -c; attributes are read of those files
    that have any. The exit status is 0 if both are equal, 1 if they differ, or if something is
    damaged or cannot be read, which is reported.
    """
    from winkfs.archive.compare import Comparison
    from winkfs.names import chooser

    first, second = _generations(as_of)
    if b is None and first == second:
        raise click.UsageError("name B, or two generations of A: --as-of 3..5")
    failures = Failures(a)
    include_text = [glob_text(pattern) for pattern in include]
    exclude_text = [glob_text(pattern) for pattern in exclude]
    chosen = chooser(excluder(include_text), excluder(exclude_text))
    options: dict[str, Any] = {
        "contents": checksum, "attributes": not content_only, "everything": xattrs,
        "exclude": excluder(exclude_text),
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        one = _side(a, first, stack, failures, **options)
        other = _side(a if b is None else b, second, stack, failures, **options)
        stores = b is None or not (_is_files(one) or _is_files(other))
        comparison = Comparison(
            one, other, checksum=checksum, content_only=content_only,
            everything=xattrs or stores, chosen=chosen,
        )  # fmt: skip
        write = _nothing if stat else _write_json if as_json else write_change
        for change in comparison.changes():
            write(change)
    if stat:
        _print_totals(comparison.totals, as_json)
    return 1 if comparison.totals.differences or failures.count else 0


def _generations(as_of: str | None) -> tuple[str | None, str | None]:
    if as_of is None:
        return None, None
    first, _, second = as_of.partition(RANGE)
    return first or None, second or None


def _is_files(side: Side) -> bool:
    from winkfs.archive.compare import StoreSide

    return not isinstance(side, StoreSide)


def _side(
    path: str,
    as_of: str | None,
    stack: contextlib.ExitStack,
    failures: Failures,
    *,
    contents: bool,
    attributes: bool,
    everything: bool,
    exclude: Choose | None,
) -> Side:
    """Open what is at a path. Raises UsageError if two things are."""
    from winkfs.archive.compare import StoreSide, TarSide, TreeSide, what_is

    def note(noted: Note) -> None:
        name = f"{short_name(noted.name)}: " if noted.name else ""
        if noted.failed:
            failures.count += 1
        warn(f"{'standard input' if path == STDIN else path}: {name}{noted.what}")

    def problem(line: str) -> None:
        failures.count += 1
        warn(line)

    scratch = tempfile.gettempdir()
    try:
        what = what_is(path)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if what == "store":
        return StoreSide(stack.enter_context(opened(path, as_of=as_of)), problem)
    if as_of is not None:
        raise click.UsageError(f"--as-of is for data sets, and {path} is none")
    if what == "tree":
        return TreeSide(
            path, note, scratch, attributes=attributes, everything=everything, exclude=exclude
        )
    return TarSide(path, note, scratch, contents=contents, xattrs=everything, exclude=exclude)


# --- output ---


def _nothing(change: Change) -> None:
    """Print nothing: only the totals are wanted."""


def write_change(change: Change) -> None:
    what = ", ".join(change.what)
    if change.sign == "T" and change.old and change.new:
        what = f"{change.old.type} -> {change.new.type}"
    behind = f"\t{what}".encode() if what else b""
    line = change.sign.encode() + b" " + shown(to_str(change.name)) + behind + b"\n"
    sys.stdout.buffer.write(line)


def _write_json(change: Change) -> None:
    record: dict[str, Any] = {"change": SIGNS[change.sign], "name": to_str(change.name)}
    if change.what:
        record["what"] = change.what
    for side, file in ("a", change.old), ("b", change.new):
        if file is not None:
            record[side] = file._asdict() | {"mode": f"{file.mode:04o}"}
    emit(record)


def _print_totals(totals: Totals, as_json: bool) -> None:
    if as_json:
        emit({
            "added": totals.added, "removed": totals.removed, "modified": totals.modified,
            "type": totals.retyped, "equal": totals.equal, "added_bytes": totals.added_bytes,
            "removed_bytes": totals.removed_bytes, "modified_bytes": totals.modified_bytes,
        })  # fmt: skip
        return
    rows = [
        (totals.added, "added", totals.added_bytes),
        (totals.removed, "removed", totals.removed_bytes),
        (totals.modified + totals.retyped, "modified", totals.modified_bytes),
    ]
    parts = [f"{count:,} {what} ({size_text(size)})" for count, what, size in rows]
    click.echo(", ".join([*parts, f"{totals.equal:,} equal"]))
