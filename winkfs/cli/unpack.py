"""`winkfs unpack`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from winkfs.cli._common import AS_OF, BASE, Progress, emit, glob_text
from winkfs.names import text

if TYPE_CHECKING:
    from winkfs.archive.items import Note


@click.command()
@BASE
@click.argument("directory", metavar="DIR")
@click.argument("glob", required=False)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option(
    "-p", "--same-permissions", is_flag=True,
    help="Trust BASE: set-id and sticky bits, and links that lead out of DIR, are kept.",
)  # fmt: skip
@click.option("--no-same-owner", is_flag=True, help="All files are yours, also for root.")
@AS_OF
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the counts.")
def unpack(
    base: str,
    directory: str,
    glob: str | None,
    force: bool,
    same_permissions: bool,
    no_same_owner: bool,
    as_of: str | None,
    as_json: bool,
) -> int:
    """Unpack a container or a data set into a directory.

    DIR is made if it is not there. GLOB takes only the names that match; * crosses /, so
    'docs/*' is all below docs; docs itself gets its mode and mtime too. Modes and mtimes come back,
    owners too for root.

    Nothing is written outside DIR: names with empty, . or .. parts are listed and left out, and
    links on the way are not followed. Links to an absolute path, or with more .. than they are
    deep in DIR, or .. behind another name, are left out, and set-id and sticky bits taken off,
    unless --same-permissions is given: do that only where you trust who made BASE. A file that
    exists stays as it is unless --force is given. The exit status is 1 if a file or link was not
    unpacked.
    """
    from winkfs.archive.unpack import unpack as run

    if directory == "-":
        raise click.UsageError("unpack makes files: - is no directory (./- is one of that name)")
    problems: list[dict[str, str]] = []
    pattern = None if glob is None else glob_text(glob)
    with Progress("unpacking", "files") as bar:

        def note(noted: Note) -> None:
            bar.note(noted)
            if as_json and noted.failed:
                problems.append({"name": text(noted.name), "reason": noted.what})

        report = run(
            base, directory, pattern, force=force, same_permissions=same_permissions,
            same_owner=not no_same_owner, as_of=as_of, note=note, progress=bar,
        )  # fmt: skip
    if as_json:
        counts = {"files": report.files, "directories": report.directories}
        counts |= {"links": report.links, "bytes": report.bytes}
        emit(
            {"base": base, "directory": directory, **counts, "failed": report.failed}
            | {"problems": problems}
        )
    done = report.files + report.directories + report.links + report.failed
    if glob is not None and not done:
        raise click.ClickException(f"{base}: no name matches {glob}")
    return 1 if report.failed else 0
