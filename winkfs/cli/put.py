"""`winkfs put`"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from winkfs.cli._common import BASE, STDIN, complete_file, name_bytes, opened


@click.command()
@BASE
@click.argument("name")
@click.argument("file", required=False, default=STDIN, shell_complete=complete_file)
def put(base: str, name: str, file: str) -> None:
    """Create or replace the file NAME with the content of FILE, or of standard input.

    Its mtime is now; it can be executed if FILE can.
    """
    import winkfs

    with source(file) as content, opened(base, "a") as container:
        executable = file != STDIN and os.fstat(content.fileno()).st_mode & stat.S_IXUSR
        ftype = winkfs.FileType.EXEC if executable else winkfs.FileType.FILE
        container.put_file(name_bytes(name), content, ftype=ftype)


@contextlib.contextmanager
def source(file: str) -> Iterator[BinaryIO]:
    """The file to read, or standard input for `-`."""
    if file == STDIN:
        yield sys.stdin.buffer
    else:
        with Path(file).open("rb") as content:
            yield content
