"""`winkfs append`"""

from __future__ import annotations

import tempfile
from typing import BinaryIO, Final, cast

import click

from winkfs.cli._common import BASE, PIECE, STDIN, complete_file, name_bytes, opened
from winkfs.cli.put import check_place, refuse_own, source

IN_MEMORY: Final = 8 << 20  # bytes of standard input before they go to a temporary file


@click.command()
@BASE
@click.argument("name")
@click.argument("file", required=False, default=STDIN, shell_complete=complete_file)
def append(base: str, name: str, file: str) -> None:
    """Add the content of FILE, or of standard input, to the end of the file NAME.

    The file is created if it is not there. In an append-only container only the last file can
    still grow, and only until the next sync.
    """
    with source(file) as content, tempfile.SpooledTemporaryFile(IN_MEMORY) as spool:
        whole = _read(content, cast(BinaryIO, spool)) if file == STDIN else content
        with opened(base, "a") as container:
            refuse_own(container, content)
            key = name_bytes(name)
            if key not in container:
                check_place(container, key)
                container.put_file(key, whole)
                return
            while data := whole.read(PIECE):  # where that fails, nothing is appended
                container.append(key, data)


def _read(content: BinaryIO, spool: BinaryIO) -> BinaryIO:
    """All of standard input first: it may take hours, and may be interrupted."""
    while data := content.read(PIECE):
        spool.write(data)
    spool.seek(0)
    return spool
