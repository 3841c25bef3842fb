"""`winkfs ring`: queues of records in one file or on one block device, Ring Page buffers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from winkfs.cli._common import JSON, SIZE, Group, complete_file, counted
from winkfs.cli.verbs import (
    ALL,
    CONTENTS,
    COUNT,
    LINES,
    bodies_of,
    report_check,
    reporting,
    show_rows,
    show_stats,
    written,
)
from winkfs.errors import NoSuchFile
from winkfs.stores import ringpage

if TYPE_CHECKING:
    from winkformats.ringpage.page import Record

FILE: Final = click.argument("base", metavar="FILE", shell_complete=complete_file)


@click.group(cls=Group)
def ring() -> None:
    """Create and use queues that overflow from memory to a file, or a device, of fixed size.

    FILE is a Ring Page buffer: a file, or a block device. Records are written once, a full page at
    a time, and read in their order. ls, cat, info, verify and mount show unread records as files,
    named by their numbers.
    """


def opened(file: str, mode: Literal["r", "a"] = "r") -> AbstractContextManager[ringpage.Ring]:
    """Return the buffer, open. If the command fails, records that were popped come again."""
    return reporting(ringpage.Ring(file, mode))


def _facts(found: ringpage.Ring, record: Record) -> dict[str, Any]:
    offset = found.settings.offset(record.page) + record.offset
    return {"id": record.number, "offset": offset, "page": record.page, "size": len(record.body)}


def _written(
    found: ringpage.Ring, count: int | None, lines: bool, as_json: bool
) -> Iterator[Record]:
    """Write up to `count` of the oldest records, None: all. Raises NoSuchFile if none is there."""
    facts, none = (partial(_facts, found) if as_json else None), count is not None
    for record in written(islice(found.records(), count), "body", facts, lines):
        none = False
        yield record
    if none:
        raise NoSuchFile("is empty: there is no record", found.path)


@ring.command()
@FILE
@click.option("--pages", type=click.IntRange(2), metavar="N",
              help="Pages: 2 to 65535 (1024; on a device as many as fit).")  # fmt: skip
@click.option("--page-size", type=SIZE, default=4096, metavar="SIZE",
              help="Bytes of a page, a multiple of 4096 (4096).")  # fmt: skip
@click.option("--record-size", type=SIZE, metavar="SIZE",
              help="Bytes of the largest record (what a page holds).")  # fmt: skip
@click.option("--full", type=click.Choice(["overwrite", "refuse"]), default="overwrite",
              help="If all pages are unread: overwrite the oldest (default).")  # fmt: skip
@click.option("--force", is_flag=True, help="Use a device that is not empty.")
def create(
    base: str, pages: int | None, page_size: int, record_size: int | None, full: Any, force: bool
) -> None:
    """Make an empty buffer: a new FILE, or on an existing block device.

    On a device, the first 4096 bytes and two pages are overwritten; without --force only if its
    first and last megabyte are zeros.
    """
    made = ringpage.create(
        base, pages=pages, page_size=page_size, record_size=record_size, full=full, force=force
    )
    size = f"{counted(made.page_count, 'page')} of {made.page_size} bytes"
    click.echo(f"{base}: {size}, records of up to {made.largest} bytes, when full: {full}")


@ring.command()
@FILE
@CONTENTS
@click.option("--lines", is_flag=True, help="Add each line of the CONTENTs as a record.")
def push(base: str, files: tuple[str, ...], lines: bool) -> None:
    """Add a record for each CONTENT; print their numbers.

    The numbers come when all records are durable. Without CONTENT, and for -, standard input is
    read. Of a folder, all files below it are added, in byte order of their paths, without
    links. The last page is padded: many records of one call take less room than many calls.
    """
    with opened(base, "a") as found:
        start = found.end
        try:
            found.push_many(bodies_of(files, lines))
        finally:  # the caller has to know which were added
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
def pop(base: str, count: int, every: bool, lines: bool, as_json: bool) -> None:
    """Take the oldest record, or more, and write it to standard output.

    They are consumed when all of them are written: if that fails, they come again. --json: an
    object a line, with payload_b64. Without a record the exit status is 1, except with --all.
    """
    with opened(base, "a") as found:
        for _ in _written(found, None if every else count, lines, as_json):
            found.pop()
        sys.stdout.flush()


@ring.command()
@FILE
@COUNT
@ALL
@LINES
@JSON
def peek(base: str, count: int, every: bool, lines: bool, as_json: bool) -> None:
    """Write the oldest record, or more, to standard output, as pop does. They stay."""
    with opened(base) as found:
        for _ in _written(found, None if every else count, lines, as_json):
            pass


@ring.command()
@FILE
@JSON
def ls(base: str, as_json: bool) -> None:
    """List the unread records, the oldest first. Changes nothing."""
    with opened(base) as found:
        header = f"{'ID':20}  {'SIZE':>12}  {'PAGE':>6}  {'OFFSET':>14}  SHA-256"
        row = "{id:<20}  {size:12}  {page:6}  {offset:14}  {sha256}".format_map
        rows = (
            _facts(found, one) | {"sha256": sha256(one.body).hexdigest()} for one in found.records()
        )
        show_rows(header, row, rows, as_json)


@ring.command()
@FILE
@JSON
def stats(base: str, as_json: bool) -> None:
    """Show counts of records, bytes written, and records lost."""
    with opened(base) as found:
        show_stats(found, "ring buffer", "notes", as_json)


@ring.command()
@FILE
@JSON
def verify(base: str, as_json: bool) -> int:
    """Read and check all pages. Changes nothing.

    Prints one line per problem; the exit status is 1 if there is any.
    """
    from winkfs.stores.ringpage.records import verify as check

    return report_check(base, "record", check, as_json, pages="page")
