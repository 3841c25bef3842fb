"""`winkfs cat`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from winkformats.errors import FormatError
from winkfs.cli._common import AS_OF, BASE, PIECE, Failures, expand, opened
from winkfs.names import is_glob, to_str

if TYPE_CHECKING:
    from winkfs.reader import Reader


@click.command()
@BASE
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@AS_OF
def cat(base: str, names: tuple[str, ...], as_of: str | None) -> int:
    """Write the content of files to standard output, one after another.

    A NAME may be a glob: * matches / too. The content of a symbolic link is its target. A missing
    or damaged file is an error (exit status 1); all others are written.
    """
    failures = Failures(base)
    with opened(base, as_of=as_of) as container:
        for argument in names:
            for name in expand(container, (argument,), failures):
                try:
                    if not _write(container, name) and not is_glob(argument):
                        failures.add(to_str(name), "is a directory")
                except FormatError as error:
                    failures.add(to_str(name), str(error))
    return failures.status


def _write(container: Reader, name: bytes) -> bool:
    """-> False for a directory."""
    from winkfs.container.ondisk.inode import FileType

    if container.stat(name).ftype == FileType.DIR:
        return False
    with container.open_file(name) as file:
        while data := file.read(PIECE):
            sys.stdout.buffer.write(data)
    return True
