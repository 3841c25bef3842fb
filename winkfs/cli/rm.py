"""`winkfs rm`"""

from __future__ import annotations

import click

from winkfs.cli._common import BASE, Failures, expand, opened


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
            container.delete(name)
    return failures.status
