"""`winkfs rm`"""

from __future__ import annotations

import click

from winkformats.errors import FormatError
from winkfs.cli._common import BASE, Failures, expand, opened
from winkfs.names import text


@click.command()
@BASE
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def rm(base: str, names: tuple[str, ...]) -> int:
    """Remove files. A NAME may be a glob: * crosses /.

    A directory is an entry of its own: remove docs and 'docs/*' for all of it. A name that is
    not there is an error (exit status 1); the others are removed.
    """
    failures = Failures(base)
    with opened(base, "a") as container:
        for name in expand(container, names, failures):
            try:
                container.delete(name)
            except FormatError as error:
                failures.add(text(name), str(error))
    return failures.status
