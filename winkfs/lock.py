"""The lock of the one writer: flock on BASE.lock, with the holder's pid inside."""

from __future__ import annotations

import contextlib
import fcntl
import os

from winkfs.errors import Locked


class WriterLock:
    """Held from construction to `release`; the kernel lets go of it when the process dies."""

    def __init__(self, base: str) -> None:
        """Raises Locked, naming the holder's pid; OSError where the directory is not writable."""
        self.path = base + ".lock"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):  # the data file may not be there yet
                data = os.stat(base + ".data")
                os.fchown(self.fd, data.st_uid, data.st_gid)  # or its owner could not write again
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self.fd, 32, 0).split(b"\n")[0].decode("ascii", "replace") or "unknown"
            self.forget()
            raise Locked(
                f"another writer has it open (process {pid}); wait for it or stop it", base
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the pid is a courtesy
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        if self.fd >= 0:
            os.ftruncate(self.fd, 0)
            fcntl.flock(self.fd, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Close without unlocking: what a forked child does with its parent's lock."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1  # first: a second time must not close a stranger's file
            os.close(fd)
