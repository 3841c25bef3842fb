"""`winkfs unpack`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from winkfs.cli._common import AS_OF, BASE, Progress, emit, glob_text
from winkfs.names import to_str

if TYPE_CHECKING:
    from winkfs.archive.items import Note


@click.command()
@BASE
@click.argument("directory", metavar="DIR")
@click.argument("glob", required=False)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option(
    "-p", "--same-permissions", is_flag=True,
    help="Trust BASE: restore set-id and sticky bits, and links that lead out of DIR.",
)  # fmt: skip
@click.option("--no-same-owner", is_flag=True, help="Do not restore owners, even as root.")
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

    DIR is created if it does not exist. GLOB selects matching names; * matches / too, so 'docs/*'
    selects everything below docs; docs itself also gets its mode and mtime. Modes and mtimes are
    restored, and for root the owners.

    Nothing is written outside DIR: names with empty, . or .. components are listed and skipped, and
    links on the way are not followed. Links to an absolute path, links with more .. than they are
    deep in DIR, and links with .. after another component are skipped, and set-id and sticky bits
    are cleared, unless you give --same-permissions: do so only if you trust the author of BASE.
    Existing files are kept unless you give --force. The exit status is 1 if a file or link was not
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
                problems.append({"name": to_str(noted.name), "reason": noted.what})

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
