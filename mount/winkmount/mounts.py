"""The mounts of this machine: listing, asking and ending them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from winkmount.binding import BusyError, MountError

R = TypeVar("R")

ANSWER: Final = 10.0  # seconds that a server has to return its process id
SLOW: Final = 3.0  # seconds after which the caller is informed why a server has not ended
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_PIDFD_INFO: Final = struct.Struct("=Q52xi")  # linux/pidfd.h: mask .. exit_code
_INFO_EXIT: Final = 8  # of the mask
_GET_INFO: Final = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_MNT_FORCE: Final = 1
_MNT_DETACH: Final = 2


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    device: str  # major:minor; the minor number is that of the FUSE connection
    point: str
    kind: str
    origin: str
    ro: bool


def mounts() -> list[Mount]:
    """Return all mounts that this process sees, in the order they were made."""
    found = []
    table = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    for line in table.rstrip("\n").split("\n"):  # other line ends and spaces may be in a name
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        ro = "ro" in fields[5].split(",")
        found.append(Mount(fields[2], _unescape(fields[4]), kind[0], _unescape(kind[1]), ro))
    return found


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), text)


def mount_at(point: str) -> Mount | None:
    """Return the topmost mount on this path, if it is a mount point."""
    return next((mount for mount in reversed(mounts()) if mount.point == point), None)


def canonical(directory: str | os.PathLike[str]) -> str:
    """Return the path as the kernel has it; a file system mounted there, which may hang, is not
    asked."""
    path = os.path.abspath(directory)
    above, name = os.path.split(path)
    point = os.path.join(os.path.realpath(above), name)
    return point if mount_at(point) else os.path.realpath(path)


def ask(point: str, xattr: str, seconds: float | None = None) -> bytes:
    """Return what the server of a mount reports of itself. `seconds`: to wait; None: ANSWER.

    raises  OSError: ETIMEDOUT where nothing comes, ENOTCONN where it is dead
    """
    try:
        return _within(
            ANSWER if seconds is None else seconds, point, lambda: os.getxattr(point, xattr)
        )
    except ConnectionAbortedError:  # it died while it was asked
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN)) from None


def _within(seconds: float | None, point: str, call: Callable[[], R]) -> R:
    """Return what a call to a mount returns. Raises OSError; ETIMEDOUT if it does not return."""
    answer: list[R | OSError] = []

    def wait() -> None:
        try:
            answer.append(call())
        except OSError as error:
            answer.append(error)

    thread = threading.Thread(target=wait, daemon=True)  # a hung server would hang us too
    thread.start()
    thread.join(seconds)
    if not answer:
        hint = f"the server gives no answer: winkfs umount --force {point} ends it"
        raise OSError(errno.ETIMEDOUT, hint)
    if isinstance(answer[0], OSError):
        raise answer[0]
    return answer[0]


def unmount(
    directory: str | os.PathLike[str], name: str, *, lazy: bool = False, force: bool = False,
    note: Callable[[str], object] = lambda line: None,
) -> None:  # fmt: skip
    """End a mount of kind `name`; return when its server has ended, so when everything is synced.

    lazy        also one that is in use: it goes from the directory at once, its server with the
                last user, which is not waited for
    force       also one whose server gives no answer; its users get errors
    note        is called with the reason if it takes long
    raises      MountError: no such mount, busy, not allowed, a server that does not answer; what
                was written cannot be synced: then it stays mounted, save with lazy and force
    """
    point = canonical(directory)
    mount = mount_at(point)
    if mount is None:
        raise MountError(f"{directory}: nothing is mounted here")
    if mount.kind != f"fuse.{name}":
        raise MountError(f"{directory}: a {mount.kind} mount, not one of {name}")
    server = None
    try:
        pid = int(ask(point, f"user.{name}.pid", ANSWER / 10 if force else ANSWER))
        server = os.pidfd_open(pid)
    except ProcessLookupError:
        pass  # in another pid namespace: nothing to wait for
    except OSError as error:
        if error.errno == errno.ENOTCONN:  # the server is dead
            lazy = True
        elif error.errno != errno.EACCES and not force:  # EACCES: it answers only its owner
            raise MountError(f"{directory}: {error.strerror}") from None
    try:
        lost = None
        if server is not None and not mount.ro:
            lost = _sync(point, name, ANSWER if force else None)
            if lost and not (lazy or force):
                raise MountError(f"{directory}: not unmounted: {lost}: --lazy unmounts it as it is")
        _detach_soon(mount, lazy=lazy, force=force)
        if server is not None and not lazy:
            _wait_for_the_end(mount, pid, server, note)
            if _exit_status(pid, server) and not lost:
                lost = "its server ended with an error, which it has logged"
        if lost:
            raise MountError(f"{directory}: unmounted, but not all is on the disk: {lost}")
    finally:
        if server is not None:
            os.close(server)


def _sync(point: str, name: str, seconds: float | None) -> str | None:
    """Have everything on the disk -> why it is not, None: it is."""

    def sync() -> None:
        directory = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    try:
        _within(seconds, point, sync)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.ENOTCONN):  # not for us to ask; it is dead
            return None
        with contextlib.suppress(OSError, ValueError):
            reason = json.loads(ask(point, f"user.{name}.status")).get("failed")
            if reason:
                return str(reason)
        return error.strerror
    return None


def _wait_for_the_end(mount: Mount, pid: int, pidfd: int, note: Callable[[str], object]) -> None:
    """Wait for the end of a server that was unmounted; note why it takes long."""
    ended = select.poll()  # select() takes no descriptor above 1023
    ended.register(pidfd, select.POLLIN)
    if not ended.poll(SLOW * 1000):
        why = _keeper(mount) or "it has not ended yet"
        note(f"{mount.point}: unmounted; waiting for its server, process {pid}: {why}")
        ended.poll()


def _keeper(mount: Mount) -> str:
    """Return where a mount is still mounted: on another directory, or in another mount namespace,
    as that of a container that was started meanwhile; "": none is to be seen."""
    for other in mounts():
        if other.device == mount.device:
            return f"it is mounted on {other.point} too"
    device = os.fsencode(f" {mount.device} ")
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            if device in table.read_bytes():
                name = (table.parent / "comm").read_text().rstrip("\n")
                return f"process {table.parent.name} ({name}) has it mounted too"
    return ""


def _exit_status(pid: int, pidfd: int) -> int:
    """Return the status of a process that has ended, child or not; 0 also if it is not known.

    As long as it is a zombie /proc knows, after that (Linux 6.15) its pidfd.
    """
    info = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(info, 0, _INFO_EXIT, 0)
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        if fields[0] == b"Z":
            return int(fields[-1])
    with contextlib.suppress(OSError):
        fcntl.ioctl(pidfd, _GET_INFO, info)
        mask, status = _PIDFD_INFO.unpack(info)
        return int(status) if mask & _INFO_EXIT else 0
    return 0


def _detach_soon(mount: Mount, *, lazy: bool, force: bool) -> None:
    """`detach`, again for half a second: what looks at all mounts keeps one busy for a moment."""
    for _ in range(5):
        try:
            detach(mount, lazy=lazy, force=force)
            return
        except BusyError:
            time.sleep(0.1)
    detach(mount, lazy=lazy, force=force)


def detach(mount: Mount, *, lazy: bool = False, force: bool = False) -> None:
    """Take a mount from its directory; its server ends later. Raises MountError."""
    point = mount.point
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        flags = _MNT_FORCE | _MNT_DETACH if force else _MNT_DETACH if lazy else 0
        if libc.umount2(os.fsencode(point), flags) == 0:
            return
        code = ctypes.get_errno()
        if code == errno.EBUSY:
            raise BusyError(_busy(point))
        if code != errno.EPERM:  # root without the right to mounts has those of the helper
            raise MountError(f"{point}: {os.strerror(code)}")
    helper = shutil.which("fusermount3") or shutil.which("fusermount")
    if helper is None:
        raise MountError(f"{point}: fusermount3 is not installed: apt install fuse3")
    if force:
        with contextlib.suppress(OSError):  # not there in some containers, not ours
            (connection(mount) / "abort").write_text("1")
    command = [helper, "-uz" if lazy or force else "-u", "--", point]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = result.stderr.strip()
        if reason.endswith(os.strerror(errno.EBUSY)):
            raise BusyError(_busy(point))
        if reason.endswith("not found in /etc/mtab"):  # it finds those of this user
            raise MountError(f"{point}: mounted by another user: that user or root can unmount it")
        raise MountError(reason or f"{point}: {helper} failed")


def _busy(point: str) -> str:
    """Why, and what to do."""
    for mount in mounts():
        if mount.point.startswith(point + "/"):
            return f"{point}: busy: {mount.point} is mounted in it"
    return f"{point}: busy: `fuser -vm {point}` lists its users; --lazy takes it away all the same"


def connection(mount: Mount) -> Path:
    """Return where the kernel shows this FUSE connection; writing to `abort` in it ends a hung
    server."""
    return Path("/sys/fs/fuse/connections", mount.device.partition(":")[2])
