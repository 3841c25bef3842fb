"""`winkfs put`"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from winkfs.cli._common import (
    BASE,
    STDIN,
    complete_file,
    is_directory,
    name_bytes,
    opened,
    place_fault,
)
from winkfs.names import text

if TYPE_CHECKING:
    from winkfs.cli._common import Files


@click.command()
@BASE
@click.argument("name")
@click.argument("file", required=False, default=STDIN, shell_complete=complete_file)
@click.option("--force", is_flag=True, help="Also under a name that no mount would show.")
def put(base: str, name: str, file: str, force: bool) -> None:
    """Create or replace the file NAME with the content of FILE, or of standard input.

    Its mtime is set to now; it can be executed if FILE can. A NAME that is no path (dir/, ../a, /a,
    a//b), or is below that of a file, is refused.
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
        raise click.ClickException(f"{container.base}: {text(name)}: {fault}")


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
