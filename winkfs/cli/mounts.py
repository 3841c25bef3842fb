"""winkfs mounts, and what info says of a mounted directory."""

from __future__ import annotations

import errno
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from winkfs.cli._common import JSON, emit, printable
from winkfs.cli.mount import KIND

if TYPE_CHECKING:
    from winkmount.mounts import Mount

Record = dict[str, Any]
PATIENCE: Final = 1.0  # seconds a server has to answer
STATES: Final = {
    errno.ETIMEDOUT: "no answer",
    errno.ENOTCONN: "dead",
    errno.EACCES: "another user's",
}


@click.command()
@JSON
def mounts(as_json: bool) -> None:
    """List what is mounted, where, read-only or not, by which process, since when.

    A server that does not answer within a second is listed as "no answer"; one that was killed as
    "dead": `winkfs umount` clears it away, and so does the next mount on its directory. One that
    could not make durable what was written is "failed": `winkfs info DIR` says why.
    """
    from winkmount.mounts import mounts as all_mounts

    found = [mount for mount in all_mounts() if mount.kind == f"fuse.{KIND}"]
    with ThreadPoolExecutor(max(len(found), 1)) as pool:  # a second for all, not for each
        records = list(pool.map(mount_record, found))
    if as_json:
        for record in records:
            emit(record)
    elif records:
        _print([("BASE", "DIR", "MODE", "PID", "SINCE"), *map(_row, records)])


def mounted(directory: str) -> Mount | None:
    """The mount of ours whose top directory this is."""
    from winkmount.mounts import canonical, mount_at

    mount = mount_at(canonical(directory))
    return mount if mount is not None and mount.kind == f"fuse.{KIND}" else None


def mount_record(mount: Mount) -> Record:
    """What a mount says of itself, after what the kernel says of it."""
    from winkmount.mounts import ask

    record: Record = {"base": mount.origin, "directory": mount.point}
    record |= {"mode": "ro" if mount.ro else "rw", "state": "serving", "pid": None, "since": None}
    try:
        record["pid"] = int(ask(mount.point, f"user.{KIND}.pid", PATIENCE))
        record |= json.loads(ask(mount.point, f"user.{KIND}.status", PATIENCE))
        if record.get("failed"):
            record["state"] = "failed"
    except OSError as error:
        record["state"] = STATES.get(error.errno or 0, error.strerror)
    for name in ("since", "unsynced_since"):
        if isinstance(seconds := record.get(name), int | float):
            record[name] = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return record


def _row(record: Record) -> tuple[str, ...]:
    """The line of a mount; who serves it, or why nobody says so."""
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
