"""winkfs mount and winkfs umount."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import click

from winkfs.cli._common import BASE, say

if TYPE_CHECKING:
    from winkmount.source import Source

KIND = "winkfs"  # fuse.winkfs in the mount table
DIRECTORY = click.argument("directory", metavar="DIR")


@click.command("mount")
@BASE
@DIRECTORY
@click.option("--ro", is_flag=True, help="Read only; takes no lock.")
@click.option("-f", "--foreground", is_flag=True, help="Serve in this process until unmounted.")
@click.option(
    "-o", "options", multiple=True, metavar="OPTS",
    help="ro, allow_other, default_permissions, uid=N, gid=N, umask=N, sync_every=SECONDS; "
    "separated by commas.",
)  # fmt: skip
@click.option(
    "--binding", type=click.Choice(["mfusepy", "fusepy"]),
    help="mfusepy: libfuse 3 (the default), fusepy: libfuse 2. Else $WINKMOUNT_BINDING.",
)  # fmt: skip
def mount(
    base: str,
    directory: str,
    ro: bool,
    foreground: bool,
    options: tuple[str, ...],
    binding: str | None,
) -> None:
    """Mount the container BASE on the directory DIR, / in names as directories.

    Returns when the mount answers; it serves in the background until `winkfs umount DIR`, `umount`,
    or SIGTERM. What is written is on disk after fsync, and else within sync_every seconds (5).
    """
    from winkmount.binding import MountError
    from winkmount.options import parse
    from winkmount.service import Request, serve, serve_in_background

    try:
        parsed = parse(options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    parsed.ro = parsed.ro or ro
    path = os.path.abspath(base)
    request = Request(
        lambda: _open(path, parsed.ro), KIND, path.removesuffix(".data"), directory, parsed, binding
    )
    try:
        if foreground:
            serve(request)
        else:
            for line in serve_in_background(request).splitlines():
                say(line)
    except MountError as error:
        raise click.ClickException(str(error)) from None


def _open(path: str, ro: bool) -> Source:
    """The container as a Source. In the process that serves: a handle does not survive a fork."""
    from winkfs.aosource import AppendOnlySource
    from winkfs.container import open as open_container
    from winkfs.source import ContainerSource
    from winkmount.binding import MountError

    try:
        container = open_container(path, "r" if ro else "a")
    except OSError as error:
        if not ro and isinstance(error, PermissionError):
            raise MountError(
                f"{error.filename}: {error.strerror}: mount it with --ro to read only"
            ) from None
        raise
    log = logging.getLogger("winkfs.mount")
    for note in container.notes:
        log.warning("%s", note)
    try:
        return AppendOnlySource(container) if container.ao else ContainerSource(container)
    except BaseException:
        container.close()
        raise


@click.command("umount")
@DIRECTORY
def umount(directory: str) -> None:
    """Unmount DIR; returns when everything is synced and the server has ended."""
    from winkmount.binding import MountError
    from winkmount.mounts import unmount

    try:
        unmount(directory, KIND)
    except MountError as error:
        raise click.ClickException(str(error)) from None
