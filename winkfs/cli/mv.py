"""`winkfs mv`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from winkfs.cli._common import (
    BASE,
    as_path,
    is_directory,
    missing,
    name_bytes,
    opened,
    place_fault,
)
from winkfs.names import raw, within

if TYPE_CHECKING:
    from winkfs.cli._common import Files

TAKEN = "is a directory: give the new name in full"


@click.command()
@BASE
@click.argument("old")
@click.argument("new")
@click.option("--force", is_flag=True, help="Accept a name that a mount cannot show.")
def mv(base: str, old: str, new: str, force: bool) -> None:
    """Rename a file, or a directory with everything below it.

    If NEW is a file, it is replaced; if NEW is a directory, the command fails. An interrupted run
    changes nothing.
    """
    with opened(base, "a") as container:
        source, target = _name(container, old), name_bytes(new).rstrip(b"/")
        below = _below(container, source)
        exists = source in container
        if not exists and not below:
            raise _error(base, old, missing(container))
        if below and within(target, source):
            raise _error(base, old, "a directory cannot be moved into itself")
        fault = TAKEN if is_directory(container, target) else None
        if target != source and not force:
            fault = fault or _fault(container, target)
        if fault:
            raise _error(base, new, fault)
        if exists:
            container.rename(source, target)
        for name in below:
            container.rename(name, target + name[len(source) :])


def _name(container: Files, argument: str) -> bytes:
    name = name_bytes(argument).rstrip(b"/")
    return name if name in container else as_path(argument) or name


def _below(container: Files, name: bytes) -> list[bytes]:
    """All names below a directory; no scan for what is a file."""
    if name in container and not is_directory(container, name):
        return []
    return [raw(entry.name) for entry in container.scan(prefix=name + b"/")]


def _fault(container: Files, target: bytes) -> str | None:
    """Why no mount would show what gets this name."""
    fault = place_fault(container, target)
    if fault is None and target not in container and _has_below(container, target):
        return TAKEN
    return fault


def _has_below(container: Files, name: bytes) -> bool:
    """Whether any name is below this one. Cost: without BASE.names a pass over all inodes."""
    from winkfs.container.container import Container
    from winkfs.container.select import by_prefix

    if isinstance(container, Container):
        found = by_prefix(container.engine.store, name + b"/")
        if found is not None:
            return len(found) > 0
    return any(True for _ in container.scan(prefix=name + b"/"))


def _error(base: str, name: str, what: str) -> click.ClickException:
    return click.ClickException(f"{base}: {name}: {what}")
