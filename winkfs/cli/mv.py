"""`winkfs mv`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from winkfs.cli._common import BASE, missing, name_bytes, opened
from winkfs.names import raw, within

if TYPE_CHECKING:
    from winkfs.cli._common import Files


@click.command()
@BASE
@click.argument("old")
@click.argument("new")
def mv(base: str, old: str, new: str) -> None:
    """Rename a file, or a directory with all below it.

    A file NEW is replaced; a directory NEW is not.
    """
    source, target = name_bytes(old).rstrip(b"/"), name_bytes(new).rstrip(b"/")
    with opened(base, "a") as container:
        below = _below(container, source)
        exists = source in container
        if not exists and not below:
            raise _error(base, old, missing(container))
        if below and within(target, source):
            raise _error(base, old, "a directory cannot be moved into itself")
        if _is_directory(container, target):
            raise _error(base, new, "is a directory: give the new name in full")
        if exists:
            container.rename(source, target)
        for name in below:
            container.rename(name, target + name[len(source) :])


def _below(container: Files, name: bytes) -> list[bytes]:
    """All names below a directory; no scan for what is a file."""
    from winkfs.inode import FileType

    if name in container and container.stat(name).ftype != FileType.DIR:
        return []
    return [raw(entry.name) for entry in container.scan(prefix=name + b"/")]


def _is_directory(container: Files, name: bytes) -> bool:
    from winkfs.inode import FileType

    return name in container and container.stat(name).ftype == FileType.DIR


def _error(base: str, name: str, what: str) -> click.ClickException:
    return click.ClickException(f"{base}: {name}: {what}")
