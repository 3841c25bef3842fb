"""`winkfs verify`"""

from __future__ import annotations

import sys

import click

from winkfs.cli._common import BASE, JSON, Progress, emit, say, shown, size_of


@click.command()
@BASE
@JSON
def verify(base: str, as_json: bool) -> int:
    """Check every entry, inode, counter and index cell. Changes nothing.

    For a digest set or an order: its record, and every digest or row.

    Prints one line per problem; the exit status is 1 if there is any.
    """
    import winkfs

    with Progress("verifying", "bytes", size_of(base)) as bar:
        report = winkfs.verify(base, progress=bar)
    if as_json:
        counts = {"files": report.files, "entries": report.entries, "bytes": report.bytes}
        more = report.more
        emit(
            {"base": base, **counts, "problems": report.problems, "more_problems": more}
            | ({"notes": report.notes} if report.notes else {})
        )
    else:
        for note in report.notes:
            say(note)
        for problem in report.problems:
            sys.stdout.buffer.write(shown(problem) + b"\n")
        if report.more:
            click.echo(f"and {report.more} more problems")
        click.echo(_summary(base, report.files, report.entries, len(report.problems)))
    return 1 if report.problems else 0


def _summary(base: str, files: int, entries: int, problems: int) -> str:
    state = f"{problems} problems" if problems else "sound"
    return f"{base}: {files} files, {entries} entries: {state}"
