"""winkfs mount and winkfs umount."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winkfs.cli._common import BASE, say

if TYPE_CHECKING:
    from winkmount.options import Options
    from winkmount.source import Source

KIND = "winkfs"  # fuse.winkfs in the mount table


def _named(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if not value:  # a variable of a script that is not set
        raise click.UsageError("DIR is empty", ctx)
    return value


DIRECTORY = click.argument("directory", metavar="DIR", callback=_named)


@click.command("mount")
@BASE
@DIRECTORY
@click.option("--ro", is_flag=True, help="Read only: takes no lock.")
@click.option("--follow", is_flag=True, help="With --ro: show what another process syncs.")
@click.option(
    "--cache", type=click.Choice(["kernel", "none"]),
    help="Whether the kernel keeps what was read (it does).",
)  # fmt: skip
@click.option(
    "--sync-every", metavar="SECONDS", help="How often what was written is made durable (5)."
)
@click.option("-f", "--foreground", is_flag=True, help="Serve in this process until unmounted.")
@click.option(
    "-o", "options", multiple=True, metavar="OPT,...",
    help="ro, allow_other, default_permissions, uid=N, gid=N, umask=N, noexec, sync, timedir, "
    "low_latency, cache=, sync_every=, follow; and what mount(8) and fstab say.",
)  # fmt: skip
@click.option(
    "--binding", type=click.Choice(["mfusepy", "fusepy"]),
    help="mfusepy: libfuse 3 (the default), fusepy: libfuse 2. Else $WINKMOUNT_BINDING.",
)  # fmt: skip
def mount(
    base: str,
    directory: str,
    ro: bool,
    follow: bool,
    cache: str | None,
    sync_every: str | None,
    foreground: bool,
    options: tuple[str, ...],
    binding: str | None,
) -> None:
    """Mount the container BASE on the directory DIR, / in names as directories.

    Returns when the mount answers; it serves in the background until `winkfs umount DIR`, `umount`,
    or SIGTERM. What is written is on the disk after fsync, and else within 5 seconds.

    \b
      winkfs mount corpus mnt                      read and write, only for me
      winkfs mount --ro -o allow_other corpus mnt  for everybody, as modes and owners allow
      winkfs mounts                                what is mounted where

    In /etc/fstab: `BASE DIR fuse.winkfs ro,nofail 0 0`. All of it: docs/mount.md.
    """
    from winkfs.datafile import base_of
    from winkmount.background import serve_in_background
    from winkmount.binding import MountError
    from winkmount.options import parse
    from winkmount.service import Request, serve, tell_systemd

    flags = ["ro"] * ro + ["follow"] * follow + [f"cache={cache}"] * bool(cache)
    flags += [] if sync_every is None else [f"sync_every={sync_every}"]
    try:
        parsed = parse([*options, *flags])
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    base = os.path.abspath(base_of(base))

    def opener() -> Source:
        return _when_free(base, lambda: _open(base, parsed))

    request = Request(opener, KIND, base, directory, parsed, binding)
    try:
        if foreground:
            serve(request, tell_systemd)
        else:
            for line in serve_in_background(request).splitlines():
                say(line)
    except MountError as error:
        raise click.ClickException(str(error)) from None


def _when_free(base: str, opener: Callable[[], Source]) -> Source:
    """Open it, after the server of an earlier mount, if `umount` did not wait for its end."""
    from winkfs.errors import Locked
    from winkmount.service import is_ending

    chances = 2  # just after an umount it may not know itself that it ends
    while True:
        try:
            return opener()
        except Locked:
            try:
                ending = is_ending(int(Path(f"{base}.lock").read_bytes()))
            except (OSError, ValueError):
                ending = False
            chances -= not ending
            if not chances:
                raise
        time.sleep(0.1)


def _open(path: str, options: Options) -> Source:
    """The container as a Source. In the process that serves: a handle does not survive a fork."""
    from winkfs.aosource import AppendOnlySource
    from winkfs.container import open as open_container
    from winkfs.source import ContainerSource
    from winkmount.binding import MountError

    try:
        container = open_container(path, "r" if options.ro else "a")
    except OSError as error:
        if not options.ro and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise MountError(
                f"{error.filename}: {error.strerror}: mount it with --ro to read only"
            ) from None
        raise
    log = logging.getLogger("winkfs.mount")
    for note in container.notes:
        log.warning("%s", note)
    try:
        if container.ao and "sync" in options.fuse:  # each write would store the whole file anew
            raise MountError(f"{path}: files enter an append-only container whole: leave out sync")
        if container.ao:
            return AppendOnlySource(container, timedir=options.timedir)
        if options.timedir:
            raise MountError(f"{path}: timedir is for append-only containers")
        return ContainerSource(container)
    except BaseException:
        container.close()
        raise


@click.command("umount")
@DIRECTORY
@click.option("-l", "--lazy", is_flag=True, help="Also while it is in use: it ends with that.")
@click.option("-f", "--force", is_flag=True, help="Also if its server gives no answer.")
def umount(directory: str, lazy: bool, force: bool) -> None:
    """Unmount DIR; returns when everything is synced and the server has ended."""
    from winkmount.binding import MountError
    from winkmount.mounts import unmount

    try:
        unmount(directory, KIND, lazy=lazy, force=force)
    except MountError as error:
        raise click.ClickException(str(error)) from None
