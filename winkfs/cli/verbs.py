"""Options and verbs that `winkfs store`, `queue` and `ring` share; each group declares its own
options and columns."""

from __future__ import annotations

import contextlib
import os
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from winkfs.cli._common import (
    PIECE,
    STDIN,
    Progress,
    answer,
    complete_file,
    complete_folder,
    counted,
    emit,
    print_facts,
    print_report,
    warn,
)

if TYPE_CHECKING:
    from winkfs.container.verify import Report
    from winkfs.stores.ledgerq.queue import Queue
    from winkfs.stores.records import Records
    from winkfs.stores.ringpage.ring import Ring

SYNC: Final = 4096  # records that are put before they are synced and their ids printed
SYNC_BYTES: Final = 16 << 20  # or bytes of them
Facts = dict[str, Any]
Opened = TypeVar("Opened", "Queue", "Ring")
Item = TypeVar("Item")


DIR: Final = click.argument("base", metavar="DIR", shell_complete=complete_folder)
CONTENTS: Final = click.argument(
    "files", metavar="[CONTENT]...", nargs=-1, shell_complete=complete_file
)
COUNT: Final = click.option(
    "-n", "--count", type=click.IntRange(1), default=1, help="Up to this many records (default 1)."
)
ALL: Final = click.option("-a", "--all", "every", is_flag=True, help="All records.")
LINES: Final = click.option("--lines", is_flag=True, help="Write a line feed after each record.")


@contextlib.contextmanager
def reporting(found: Opened) -> Iterator[Opened]:
    """Close a store at the end of the block. Report damage then, and end the command with status 1
    if there is any."""
    with found:
        yield found
    for line in [*getattr(found, "notes", ()), *found.problems]:
        warn(line)
    if found.problems:
        raise click.exceptions.Exit(1)


# --- what is there ---


def report_check(
    base: str, noun: str, check: Callable[[str, Progress], Report], as_json: bool,
    record: Callable[[Report], Facts] | None = None, *, pages: str = "",
) -> int:  # fmt: skip
    """Check a store, and print what was found -> exit status.

    noun    what the store contains
    record  makes the record of a report, if it is not the usual one
    pages   a noun for the units that are counted beside the records, if any
    """
    with Progress("verifying", "bytes") as bar:
        report = check(base, bar)
    facts: Facts = {
        "base": base, "records": report.files, "bytes": report.bytes,
        **({f"{pages}s": report.entries} if pages else {}),
        "problems": report.problems, "notes": report.notes, "more_problems": report.more,
    }  # fmt: skip
    within = f" in {counted(report.entries, pages)}" if pages else ""
    what = f"{base}: {counted(report.files, noun)}{within}, {report.bytes} bytes"
    return print_report(report, record(report) if record else facts, what, as_json, report.more)


def show_stats(found: Queue | Ring, kind: str, reported: str, as_json: bool) -> None:
    """Print the facts of a store, except for one, which `reporting` prints."""
    facts = {"base": found.path, "kind": kind} | found.stats()
    del facts[reported]
    print_facts(facts, as_json)


def show_rows(
    header: str, line: Callable[[Facts], str], rows: Iterable[Facts], as_json: bool
) -> None:
    """Print rows below a header for people, or as records."""
    if not as_json:
        click.echo(header)
    for facts in rows:
        answer(facts, as_json, line(facts))


# --- what is put, and written ---


def written(
    items: Iterable[Item], body: str, facts: Callable[[Item], Facts] | None, lines: bool
) -> Iterator[Item]:
    """Write items to standard output, and yield each when it is written.

    body   the attribute that is the body of an item
    facts  makes the record of an item, to be written with its body; None: the body alone
    lines  write a line feed after each
    """
    for item in items:
        data: bytes = getattr(item, body)
        if facts is not None:
            emit(facts(item) | {"payload_b64": b64encode(data).decode()})
        else:
            sys.stdout.buffer.write(data + b"\n" * lines)
        yield item


def put_all(
    found: Records | Queue,
    batches: Iterable[list[bytes]],
    put: Callable[[list[bytes]], Iterable[str | int]],
) -> None:
    """Put bodies, and print their ids, one a line, when they are durable."""
    made: list[str | int] = []
    size = 0
    try:
        for batch in batches:
            made += put(batch)
            size += sum(map(len, batch))
            if len(made) >= SYNC or size >= SYNC_BYTES:
                _acknowledge(found, made)
                made, size = [], 0
    except BaseException:  # the ids of what was put have to be printed
        with contextlib.suppress(OSError):
            _acknowledge(found, made)
        raise
    _acknowledge(found, made)


def _acknowledge(found: Records | Queue, ids: list[str | int]) -> None:
    found.sync()
    sys.stdout.write("".join(f"{id}\n" for id in ids))
    sys.stdout.flush()


def bodies_of(files: tuple[str, ...], lines: bool) -> Iterator[bytes]:
    """Yield the bodies one by one: see `batches_of`. Raises OSError."""
    return chain.from_iterable(batches_of(files, lines))


def batches_of(files: tuple[str, ...], lines: bool) -> Iterator[list[bytes]]:
    """Yield the bodies in lists: one for a file, or the lines of a read, not waiting for a pipe.

    files   paths; none: standard input
    raises  OSError
    """
    for file in files or (STDIN,):
        for path in _below(file) if os.path.isdir(file) else [file]:
            with click.open_file(path, "rb") as content:
                if lines:
                    yield from _lines(content)
                else:
                    yield [content.read()]


def _lines(content: Any) -> Iterator[list[bytes]]:
    begun: list[bytes] = []  # of a line whose end is not read yet
    while data := content.read1(PIECE):
        first, *more = data.split(b"\n")
        begun.append(first)
        if more:
            yield [b"".join(begun), *more[:-1]]
            begun = [more[-1]]
    if last := b"".join(begun):
        yield [last]


def _below(folder: str) -> Iterator[str]:
    """Yield the files below a folder, in byte order."""
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)
        elif entry.is_file(follow_symlinks=False):
            yield entry.path
