"""`winkfs ring`: queues of records in one file or on one block device, Ring Page buffers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from winkfs.cli._common import (
    JSON,
    SIZE,
    STDIN,
    Progress,
    complete_file,
    counted,
    say,
    say_facts,
    say_report,
    say_table,
)
from winkfs.cli.store import bodies_of, write_body
from winkfs.errors import NoSuchFile

if TYPE_CHECKING:
    from winkformats.ringpage.page import Record
    from winkfs.stores.ringpage.ring import Ring

FILE: Final = click.argument("file", shell_complete=complete_file)
COUNT: Final = click.option(
    "-n", "--count", type=click.IntRange(1), default=1, help="Up to so many records (1)."
)
ALL: Final = click.option("-a", "--all", "every", is_flag=True, help="All records.")
LINES: Final = click.option("--lines", is_flag=True, help="A line feed behind each record.")


@click.group()
def ring() -> None:
    """Create and use queues that overflow from memory to a file, or a device, of fixed size.

    FILE is a Ring Page buffer: a file, or a block device. Records are written once, a full page at
    a time, and read in their order. ls, cat, info, verify and mount show those that are unread as
    files with their numbers as names.
    """


@contextmanager
def opened(file: str, mode: str = "r") -> Iterator[Ring]:
    """The buffer, open. Damage is said, and ends the command with status 1 when its work is done.

    Where the work fails, what was popped comes again.
    """
    from winkfs.stores.ringpage.ring import Ring

    with Ring(file, "a" if mode == "a" else "r") as found:
        yield found
        problems, notes = list(found.problems), list(found.notes)
    for line in notes + problems:
        say(line)
    if problems:
        raise click.exceptions.Exit(1)


@ring.command()
@FILE
@click.option("--pages", type=click.IntRange(2), metavar="N",
              help="Pages: 2 to 65535 (1024; of a device as many as it has room for).")  # fmt: skip
@click.option("--page-size", type=SIZE, default=4096, metavar="SIZE",
              help="Bytes of a page, a multiple of 4096 (4096).")  # fmt: skip
@click.option("--record-size", type=SIZE, metavar="SIZE",
              help="Bytes of the largest record (what a page holds).")  # fmt: skip
@click.option("--full", type=click.Choice(["overwrite", "refuse"]), default="overwrite",
              help="If all is unread: overwrite the oldest (default).")  # fmt: skip
@click.option("--force", is_flag=True, help="Take a device that is not empty.")
def create(
    file: str, pages: int | None, page_size: int, record_size: int | None, full: Any, force: bool
) -> None:
    """Make an empty buffer: a new FILE, or on a block device that is there.

    On a device, the first 4096 bytes and two pages are written over; without --force only where its
    first and last megabyte are zeros.
    """
    from winkfs.stores.ringpage.ring import create as make

    made = make(
        file, pages=pages, page_size=page_size, record_size=record_size, full=full, force=force
    )
    size = f"{counted(made.page_count, 'page')} of {made.page_size} bytes"
    click.echo(f"{file}: {size}, records of up to {made.largest} bytes, when full: {full}")


@ring.command()
@FILE
@click.argument("files", metavar="[CONTENT]...", nargs=-1, shell_complete=complete_file)
@click.option("--lines", is_flag=True, help="Each line of the CONTENTs is a record.")
def push(file: str, files: tuple[str, ...], lines: bool) -> None:
    """Add a record for each CONTENT, and print their numbers when all of them are durable.

    CONTENT is standard input where there is none, or for -. Of a folder, all files below it are
    added, in byte order of their paths, and links are left out. The last page is padded: many
    records of one call take less room than many calls.
    """
    with opened(file, "a") as found:
        start = found.end
        try:
            found.push_many(bodies_of(files or (STDIN,), lines))
        finally:  # what is added has to be known
            try:
                found.flush()
            finally:
                sys.stdout.writelines(f"{number}\n" for number in range(start, found.end))
                sys.stdout.flush()


@ring.command()
@FILE
@COUNT
@ALL
@LINES
@JSON
def pop(file: str, count: int, every: bool, lines: bool, as_json: bool) -> None:
    """Take the oldest record, or more, and write it to standard output.

    They are gone when all of them are written: if that fails, they come again. --json: an object a
    line, with payload_b64. Where there is no record the exit status is 1, save with --all.
    """
    with opened(file, "a") as found:
        _write(found, None if every else count, lines, as_json, taken=found.pop)
        sys.stdout.flush()


@ring.command()
@FILE
@COUNT
@ALL
@LINES
@JSON
def peek(file: str, count: int, every: bool, lines: bool, as_json: bool) -> None:
    """Write the oldest record, or more, to standard output, as pop does. They stay."""
    with opened(file) as found:
        _write(found, None if every else count, lines, as_json)


def _write(
    found: Ring,
    count: int | None,
    lines: bool,
    as_json: bool,
    taken: Callable[[], object] | None = None,
) -> None:
    """Write up to so many of the oldest records, None: all. Raises NoSuchFile for none of some."""
    written = 0
    for record in islice(found.records(), count):
        write_body(record.body, _facts(found, record) if as_json else None, lines=lines)
        if taken is not None:
            taken()
        written += 1
    if not written and count is not None:
        raise NoSuchFile("is empty: there is no record", found.path)


def _facts(found: Ring, record: Record) -> dict[str, Any]:
    offset = found.settings.offset(record.page) + record.offset
    size = len(record.body)
    return {"id": record.number, "offset": offset, "page": record.page, "size": size}


@ring.command()
@FILE
@JSON
def ls(file: str, as_json: bool) -> None:
    """List the unread records, the oldest first. Changes nothing."""
    with opened(file) as found:
        every = (
            _facts(found, record) | {"sha256": sha256(record.body).hexdigest()}
            for record in found.records()
        )
        row = "{id:<20}  {size:12}  {page:6}  {offset:14}  {sha256}"
        header = f"{'ID':20}  {'SIZE':>12}  {'PAGE':>6}  {'OFFSET':>14}  SHA-256"
        say_table(header, ((facts, row.format(**facts)) for facts in every), as_json)


@ring.command()
@FILE
@JSON
def stats(file: str, as_json: bool) -> None:
    """Show how many records there are, what was written for them, and what was lost."""
    with opened(file) as found:
        facts = found.stats()
        del facts["notes"]  # which are said
        say_facts({"base": file, "kind": "ring buffer"} | facts, as_json)


@ring.command()
@FILE
@JSON
def verify(file: str, as_json: bool) -> int:
    """Read and check all pages. Changes nothing.

    Prints one line per problem; the exit status is 1 if there is any.
    """
    from winkfs.stores.ringpage.records import verify as check

    with Progress("verifying", "bytes") as bar:
        report = check(file, bar)
    record = {"base": file, "records": report.files, "bytes": report.bytes}
    record |= {"pages": report.entries, "problems": report.problems, "notes": report.notes}
    pages = counted(report.entries, "page")
    what = f"{file}: {counted(report.files, 'record')} in {pages}, {report.bytes} bytes"
    return say_report(report, record | {"more_problems": report.more}, what, as_json, report.more)
