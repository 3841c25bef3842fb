"""`winkfs put` and `winkfs append`."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import click

from winkfs.cli._common import (
    BASE,
    PIECE,
    STDIN,
    complete_file,
    is_directory,
    name_bytes,
    opened,
    place_fault,
)
from winkfs.names import to_str

if TYPE_CHECKING:
    from winkfs.cli._common import Files

IN_MEMORY: Final = 8 << 20  # bytes of standard input before they go to a temporary file


@click.command()
@BASE
@click.argument("name")
@click.argument("file", required=False, default=STDIN, shell_complete=complete_file)
@click.option("--force", is_flag=True, help="Accept a name that a mount cannot show.")
def put(base: str, name: str, file: str, force: bool) -> None:
    """Create or replace the file NAME with the content of FILE, or of standard input.

    The mtime is set to now; the executable bit is copied from FILE. A NAME that is not a path
    (dir/, ../a, /a, a//b), or is below the name of a file, is refused.
    """
    import winkfs

    with source(file) as content, opened(base, "a") as container:
        executable = file != STDIN and os.fstat(content.fileno()).st_mode & stat.S_IXUSR
        refuse_own(container, content)
        ftype = winkfs.FileType.EXEC if executable else winkfs.FileType.FILE
        key = name_bytes(name)
        if not force:
            check_place(container, key)
        container.put_file(key, content, ftype=ftype)


def check_place(container: Files, name: bytes) -> None:
    """Refuse a name that a mount would not show as a file."""
    fault = place_fault(container, name)
    if fault is None and is_directory(container, name):
        fault = "is a directory"
    if fault is not None:
        raise click.ClickException(f"{container.base}: {to_str(name)}: {fault}")


@contextlib.contextmanager
def source(file: str) -> Iterator[BinaryIO]:
    """The file to read, or standard input for `-`."""
    if file == STDIN:
        yield sys.stdin.buffer
    else:
        with Path(file).open("rb") as content:
            yield content


def refuse_own(container: Files, content: BinaryIO) -> None:
    """Refuse BASE.data itself, which would grow as it is read."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(f"{container.base}.data"), os.fstat(content.fileno())):
            raise click.ClickException(f"{container.base}.data: cannot be put into itself")


@click.command()
@BASE
@click.argument("name")
@click.argument("file", required=False, default=STDIN, shell_complete=complete_file)
def append(base: str, name: str, file: str) -> None:
    """Append the content of FILE, or of standard input, to the file NAME.

    The file is created if it does not exist. In an append-only container only the last file can
    grow, and only until the next sync.
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
