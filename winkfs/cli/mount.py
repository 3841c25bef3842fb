"""`winkfs mount`, `umount` and `mounts`, and the state of a mounted directory for `info`."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from winkformats.disk.paths import absolute
from winkfs.cli._common import JSON, emit, printable, warn
from winkfs.errors import Locked
from winkfs.registry import kind_of
from winkfs.units import time_text
from winkmount import mounts as mount_table
from winkmount.binding import MountError
from winkmount.options import parse

if TYPE_CHECKING:
    from winkmount.source import Source

log = logging.getLogger("winkfs.mount")

KIND = "winkfs"  # fuse.winkfs in the mount table
Record = dict[str, Any]
PATIENCE: Final = 1.0  # seconds a server has to answer
STATES: Final = {
    errno.ETIMEDOUT: "no answer",
    errno.ENOTCONN: "dead",
    errno.EACCES: "another user's",
}


def _named(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if not value:  # a variable of a script that is not set
        raise click.UsageError("DIR is empty", ctx)
    return value


DIRECTORY = click.argument("directory", metavar="DIR", callback=_named)


@click.command("mount")
@click.argument("base", metavar="BASE|FOLDER")
@DIRECTORY
@click.option("--ro", is_flag=True, help="Mount read-only, without a lock.")
@click.option("--follow", is_flag=True, help="With --ro: follow the syncs of another process.")
@click.option(
    "--as-of",
    metavar="GENERATION|TIME",
    help="For a data set: mount it as of a generation or time.",
)
@click.option(
    "--cache", type=click.Choice(["kernel", "none"]),
    help="kernel: the kernel caches contents (default); none: it does not.",
)  # fmt: skip
@click.option(
    "--sync-every", metavar="SECONDS", help="Interval between automatic syncs (default: 5)."
)
@click.option("-f", "--foreground", is_flag=True, help="Run in the foreground until unmounted.")
@click.option(
    "-o", "options", multiple=True, metavar="OPT,...",
    help="ro, allow_other, default_permissions, uid=N, gid=N, umask=N, noexec, sync, timedir, "
    "spin=, timeout=, cache=, sync_every=, follow, as_of=, and options of mount(8) "
    "and fstab.",
)  # fmt: skip
@click.option(
    "--binding", type=click.Choice(["kernel", "fusepy"]),
    help="kernel: without libfuse (default); fusepy: libfuse 2. Or set $WINKMOUNT_BINDING.",
)  # fmt: skip
def mount(
    base: str,
    directory: str,
    ro: bool,
    follow: bool,
    as_of: str | None,
    cache: str | None,
    sync_every: str | None,
    foreground: bool,
    options: tuple[str, ...],
    binding: str | None,
) -> None:
    """Mount the container BASE, or a data set, on the directory DIR.

    Returns once the filesystem is ready. The server runs in the background until
    `winkfs umount DIR`, `umount` or SIGTERM. Writes are durable after fsync, and otherwise within 5
    seconds. A data set is mounted read-only.

    \b
      winkfs mount corpus mnt                      read and write, for this user
      winkfs mount --ro -o allow_other corpus mnt  read-only, for all users
      winkfs mounts                                list all mounts

    In /etc/fstab: `BASE DIR fuse.winkfs ro,nofail 0 0`. Reference: docs/mount.md.
    """
    from winkmount.service import Request, notify_systemd, serve, serve_in_background

    kind, path = kind_of(base)
    flags = ["ro"] * ro + ["follow"] * follow + [f"cache={cache}"] * bool(cache)
    flags += [] if sync_every is None else [f"sync_every={sync_every}"]
    flags += [] if as_of is None else [f"as_of={as_of}"]
    given = [item for text in (*options, *flags) for item in text.split(",")]
    try:
        parsed = parse([*given, *["ro"] * (not kind.writable)])
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    path = absolute(path)

    def opener() -> Source:
        source: Source = _when_free(path, lambda: kind.function("mount", path)(path, parsed))
        if not kind.writable and "ro" not in given:
            log.warning("%s: a %s: mounted read-only", path, kind.name)
        return source

    request = Request(opener, KIND, path, directory, parsed, binding, path if kind.folder else "")
    try:
        if foreground:
            serve(request, notify_systemd)
        else:
            for line in serve_in_background(request).splitlines():
                warn(line)
    except MountError as error:
        raise click.ClickException(str(error)) from None


def _when_free(base: str, opener: Callable[[], Source]) -> Source:
    """Open a source. If the server of an earlier mount still ends, wait for it."""
    from winkmount.service import is_ending

    chances = 2  # just after an umount the server may not have noticed yet that it ends
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


@click.command("umount")
@DIRECTORY
@click.option("-l", "--lazy", is_flag=True, help="Detach it now, and end when it is not in use.")
@click.option("-f", "--force", is_flag=True, help="Unmount even if its server does not answer.")
def umount(directory: str, lazy: bool, force: bool) -> None:
    """Unmount DIR. Returns when everything is synced and the server has ended."""
    try:
        mount_table.unmount(directory, KIND, lazy=lazy, force=force, note=warn)
    except MountError as error:
        raise click.ClickException(str(error)) from None


@click.command()
@JSON
def mounts(as_json: bool) -> None:
    """List all mounts: container, directory, mode, process, start time.

    A server that does not answer within a second is listed as "no answer", one that was killed as
    "dead": `winkfs umount` or the next mount on its directory cleans it up. A server whose sync
    failed is listed as "failed": `winkfs info DIR` shows the reason.
    """
    found = records()
    if as_json:
        for record in found:
            emit(record)
    elif found:
        _print([("BASE", "DIR", "MODE", "PID", "SINCE"), *map(_row, found)])


def records() -> list[Record]:
    """Return the records of all mounts, see `mount_record`. Cost: a second at most."""
    found = [mount for mount in mount_table.mounts() if mount.kind == f"fuse.{KIND}"]
    with ThreadPoolExecutor(max(len(found), 1)) as pool:  # a second for all, not for each
        return list(pool.map(mount_record, found))


def mounted(directory: str) -> mount_table.Mount | None:
    """Return the winkfs mount on this directory, None if there is none."""
    mount = mount_table.mount_at(mount_table.canonical(directory))
    return mount if mount is not None and mount.kind == f"fuse.{KIND}" else None


def mount_record(mount: mount_table.Mount) -> Record:
    """Return what the kernel has on a mount and what its server reports."""
    record: Record = {
        "base": mount.origin, "directory": mount.point, "mode": "ro" if mount.ro else "rw",
        "state": "serving", "pid": None, "since": None,
    }  # fmt: skip
    try:
        record["pid"] = int(mount_table.ask(mount.point, f"user.{KIND}.pid", PATIENCE))
        record |= json.loads(mount_table.ask(mount.point, f"user.{KIND}.status", PATIENCE))
        if record.get("failed"):
            record["state"] = "failed"
    except OSError as error:
        record["state"] = STATES.get(error.errno or 0, error.strerror)
    for name in ("since", "unsynced_since"):
        if isinstance(seconds := record.get(name), int | float):
            record[name] = time_text(seconds)
    return record


def _row(record: Record) -> tuple[str, ...]:
    """Return the line of a mount, with the pid of its server or the reason why it has none."""
    serving = record["state"] == "serving"
    since = record["since"]
    if since:
        since = datetime.fromisoformat(since).astimezone().strftime("%Y-%m-%d %H:%M")
    return (
        printable(record["base"]), printable(record["directory"]), record["mode"],
        str(record["pid"]) if serving else record["state"], since or "",
    )  # fmt: skip


def _print(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.buffer.write(os.fsencode(line.rstrip() + "\n"))
