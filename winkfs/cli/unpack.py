"""`winkfs unpack`"""

from __future__ import annotations

import click

from winkfs.cli._common import AS_OF, BASE, Progress, emit, glob_text


@click.command()
@BASE
@click.argument("directory", metavar="DIR")
@click.argument("glob", required=False)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@AS_OF
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the counts.")
def unpack(
    base: str, directory: str, glob: str | None, force: bool, as_of: str | None, as_json: bool
) -> int:
    """Unpack a container or a data set into a directory.

    DIR is made if it is not there. GLOB takes only the names that match; * crosses /, so
    'docs/*' is all below docs. Modes and mtimes come back, owners too for root.

    Nothing is written outside DIR: names with empty, . or .. parts are listed and left out, and
    links on the way are not followed. A file that exists stays as it is unless --force is given.
    The exit status is 1 if a file was not unpacked.
    """
    from winkfs.unpack import unpack as run

    pattern = None if glob is None else glob_text(glob)
    with Progress("unpacking", "files") as bar:
        report = run(
            base, directory, pattern, force=force, as_of=as_of, note=bar.note, progress=bar
        )
    if as_json:
        counts = {"files": report.files, "directories": report.directories}
        counts |= {"links": report.links, "bytes": report.bytes}
        emit({"base": base, "directory": directory, **counts, "failed": report.failed})
    done = report.files + report.directories + report.links + report.failed
    if glob is not None and not done:
        raise click.ClickException(f"{base}: no name matches {glob}")
    return 1 if report.failed else 0
