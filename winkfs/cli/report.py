"""Commands that describe a store as a whole: report, metrics."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

import winkfs
from winkfs.cli._common import JSON, STDIN, Progress, complete_file, emit, explain, warn

STDOUT: Final = STDIN  # -


@click.command()
@click.argument("base", metavar="BASE|SET|STORE", shell_complete=complete_file)
@click.option("-o", "--output", metavar="FILE", help="Write a page of HTML; - for standard output.")
@click.option(
    "--compare", metavar="OLD",
    help="Show what changed since OLD: what --json printed, or another store.",
)  # fmt: skip
@JSON
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def report(base: str, output: str | None, compare: str | None, as_json: bool, quiet: bool) -> int:
    """Describe a store on one page: space, sizes, times, types, directories, columns, index.

    \b
      winkfs report corpus -o report.html
      winkfs report corpus --json > monday.json
      winkfs report corpus -o report.html --compare monday.json

    The page is one file without scripts, and requests nothing. All comes from superblocks,
    catalogs and indexes; the data file is read if it has dead entries and at most 1 GiB. Damage is
    reported and left out; the exit status is then 1. Reference, and the schema of --json:
    docs/report.md.
    """
    from winkfs.report.facts import compared, gather, older

    if output is None and not as_json:
        raise click.UsageError("name the page with -o FILE, or add --json")
    if output == STDOUT and as_json:
        raise click.UsageError("-o - and --json both write to standard output")
    with Progress("reading", "files", quiet=quiet) as bar:
        before = None if compare is None else older(compare)
        facts = gather(base, bar)
    comparison = [] if before is None else compared(before, facts)
    if output is not None:
        from winkfs.report.page import page

        _write(output, page(facts, comparison, compare or ""))
    if as_json:
        emit(facts if before is None else facts | {"comparison": comparison})
    for problem in facts["problems"]:
        warn(problem)
    return 1 if facts["problems"] else 0


def _write(output: str, text: str) -> None:
    """Write the page: a file appears whole under its name."""
    from winkformats.disk.paths import locate
    from winkformats.disk.storage import replacing
    from winkfs.remote import refuse_far

    data = text.encode()
    if output == STDOUT:
        sys.stdout.buffer.write(data)
    elif os.path.exists(output) and not os.path.isfile(output):  # a pipe, a terminal
        with Path(output).open("wb") as file:
            file.write(data)
    else:
        refuse_far(output)
        directory, name = locate(os.path.realpath(output))
        with directory, replacing(directory, name) as storage:
            storage.write(0, [data])


@click.command()
@click.argument("operands", metavar="[BASE|DIR]...", nargs=-1, shell_complete=complete_file)
def metrics(operands: tuple[str, ...]) -> int:
    """Print figures of mounts and stores as Prometheus takes them (text format 0.0.4).

    Of a container live and dead bytes, of a data set shards and waste, of a queue the depth and age
    by consumer and priority, of a mounted DIR what its server counts. Without an operand: all
    mounts that this user may ask. For the textfile collector of node_exporter:

    \b
      winkfs metrics corpus queue > new; mv new winkfs.prom

    What cannot be read is one line on standard error; the others are printed, and the exit
    status is 1. Reference: docs/report.md.
    """
    from winkfs.report.metrics import Sample, text

    found: list[Sample] = []
    failed = 0
    for samples in _operands(operands) if operands else [_mounts]:
        try:
            found += samples()
        except (winkfs.WinkError, OSError, ValueError) as error:
            warn(explain(error))
            failed = 1
    sys.stdout.write(text(found))
    return failed


def _operands(operands: tuple[str, ...]) -> list[Callable[[], list[Any]]]:
    return [lambda operand=operand: _of(operand) for operand in operands]  # type: ignore[misc]


def _of(operand: str) -> list[Any]:
    """Return the samples of a mount or a store. Raises WinkError; OSError."""
    from winkformats.disk.schemes import is_far
    from winkfs.cli.mount import mount_record, mounted
    from winkfs.names import DATA
    from winkfs.registry import find_kind
    from winkfs.report.metrics import of_mount

    if not is_far(operand) and not Path(operand + DATA).exists() and (mount := mounted(operand)):
        return list(of_mount(mount_record(mount)))
    found = find_kind(operand.rstrip("/") or "/")
    if found is None:
        raise winkfs.NoSuchFile("no container, data set, other store or mount", operand)
    return list(found[0].function("metrics", found[1])(found[1]))


def _mounts() -> list[Any]:
    """Return the samples of all mounts but those of other users."""
    from winkfs.cli.mount import records
    from winkfs.report.metrics import of_mount

    return [
        sample for record in records() if record["state"] != "another user's"
        for sample in of_mount(record)
    ]  # fmt: skip
