"""Which mounts there are, and how to end one."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import select
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from winkmount.binding import MountError

ANSWER: Final = 10.0  # seconds a server has to say its process id
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_MNT_DETACH: Final = 2


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    device: str  # major:minor; the minor number is that of the FUSE connection
    point: str
    kind: str
    origin: str


def mounts() -> list[Mount]:
    """All mounts this process sees, in the order they were made."""
    found = []
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        found.append(Mount(fields[2], _unescape(fields[4]), kind[0], _unescape(kind[1])))
    return found


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), text)


def mount_at(point: str) -> Mount | None:
    """The topmost mount on this path, if it is a mount point."""
    return next((mount for mount in reversed(mounts()) if mount.point == point), None)


def canonical(directory: str | os.PathLike[str]) -> str:
    """The path as the kernel tells it; a file system mounted there is not asked: it may hang."""
    path = os.path.abspath(directory)
    above, name = os.path.split(path)
    point = os.path.join(os.path.realpath(above), name)
    return point if mount_at(point) else os.path.realpath(path)


def unmount(directory: str | os.PathLike[str], name: str) -> None:
    """End a mount of kind `name`; return when its server has ended, so when everything is synced.

    raises      MountError: no such mount, busy, not allowed, a server that does not answer
    """
    point = canonical(directory)
    mount = mount_at(point)
    if mount is None:
        raise MountError(f"{directory}: nothing is mounted here")
    if mount.kind != f"fuse.{name}":
        raise MountError(f"{directory}: a {mount.kind} mount, not one of {name}")
    try:
        pid = _server(point, f"user.{name}.pid")
    except OSError as error:
        if error.errno not in (errno.ENOTCONN, errno.EACCES):
            raise MountError(f"{directory}: {error.strerror}") from None
        # the server is dead, or somebody else's and answers only them: there is no one to wait for
        _detach(point, lazy=error.errno == errno.ENOTCONN)
        return
    try:
        server = os.pidfd_open(pid)
    except OSError:  # in another pid namespace: nothing to wait for
        _detach(point)
        return
    try:
        _detach(point)
        select.select([server], [], [])
    finally:
        os.close(server)


def _server(point: str, xattr: str) -> int:
    """Process id of the server, by its own word. Raises OSError; ETIMEDOUT where none comes."""
    answer: list[int | OSError] = []

    def ask() -> None:
        try:
            answer.append(int(os.getxattr(point, xattr)))
        except OSError as error:
            answer.append(error)

    thread = threading.Thread(target=ask, daemon=True)  # a hung server would hang us too
    thread.start()
    thread.join(ANSWER)
    if not answer:
        raise OSError(errno.ETIMEDOUT, f"the server gives no answer (umount -f {point} ends it)")
    if isinstance(answer[0], OSError):
        raise answer[0]
    return answer[0]


def _detach(point: str, *, lazy: bool = False) -> None:
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(point), _MNT_DETACH if lazy else 0) == 0:
            return
        code = ctypes.get_errno()
        hint = f" (who: fuser -vm {point})" if code == errno.EBUSY else ""
        raise MountError(f"{point}: {os.strerror(code)}{hint}")
    helper = shutil.which("fusermount3") or shutil.which("fusermount")
    if helper is None:
        raise MountError(f"{point}: fusermount3 is not installed: apt install fuse3")
    command = [helper, "-uz" if lazy else "-u", "--", point]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise MountError(result.stderr.strip() or f"{point}: {helper} failed")


def connection(mount: Mount) -> Path:
    """Where the kernel shows this FUSE connection; writing to `abort` in it ends a hung server."""
    return Path("/sys/fs/fuse/connections", mount.device.partition(":")[2])
