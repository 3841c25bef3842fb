"""The lock of the one writer: on BASE.lock, which names the holder's pid, and on BASE.data itself.

A writer needs both. That on BASE.data holds even if BASE.lock is removed: a container has one data
file, under any names. BASE.lock is for other programs that know these formats, and for messages.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from winkformats.disk.paths import locate
from winkformats.disk.storage import Directory, FileType, Info, Lock
from winkfs.errors import Locked, Refusal
from winkfs.remote import refuse_far

SUFFIX: Final = ".lock"


class WriterLock:
    """A lock from construction to `release`; the kernel releases it when the process ends.

    identity   of the data file that is locked, see `Info`; None while there is none
    """

    def __init__(self, base: str, place: tuple[Directory, str] | None = None) -> None:
        """Take the lock. `place`: result of `locate`, if the caller has it.

        raises  Locked, naming the holder's pid; OSError if the directory is not writable
        """
        refuse_far(base)
        self.base = base
        self._directory, self._name = place or locate(base)
        self._locks: list[Lock] = []
        self.identity: tuple[int, int] | None = None
        try:
            self._make()
            self._locks.append(self._lock(SUFFIX))
            with contextlib.suppress(FileNotFoundError):  # the container is new
                self._locks.append(self._lock(".data"))
                self.identity = self._locks[-1].identity
            self._write_holder(b"%d\n" % os.getpid())
        except BaseException:
            self.release()
            raise

    def _make(self) -> None:
        """Create BASE.lock. Raises Refusal if another user of the directory put a link there."""
        name = self._name + SUFFIX
        there = self._directory.info(name)
        if there is None:
            with contextlib.ExitStack() as opened:
                model = None
                with contextlib.suppress(OSError):  # the data file may not be there yet
                    model = opened.enter_context(self._directory.open(self._name + ".data"))
                with contextlib.suppress(FileExistsError):  # another writer was faster
                    self._directory.create_new(name, like=model).close()
            there = self._directory.info(name)
        if there is not None and not _is_plain(there):
            what = f"BASE.lock is a {there.kind.value} with {there.links} names: remove it"
            raise Refusal(what, self.base)

    def _lock(self, suffix: str) -> Lock:
        lock = self._directory.lock(self._name + suffix)
        if lock is None:
            raise Locked(f"another writer has it open {self._holder()}", self.base)
        return lock

    def _holder(self) -> str:
        """Return a text that names the holder, and what to do."""
        pid = ""
        with (
            contextlib.suppress(OSError),
            self._directory.open(self._name + SUFFIX, follow=False) as storage,
        ):
            pid = storage.read(0, 32).split(b"\n")[0].decode("ascii", "replace")
        if pid == str(os.getpid()):
            return f"(this process, {pid}); use that one, or close it"
        if point := self._mounted_at():
            where = f"it is mounted at {point}: write there, or winkfs umount {point}"
            return f"(process {pid or 'unknown'}): {where}"
        return f"(process {pid or 'unknown'}); wait for it or stop it"

    def _mounted_at(self) -> str:
        """Return where this process sees the container mounted for writing; "": nowhere."""
        from winkmount.mounts import mounts

        with contextlib.suppress(OSError):
            places = os.path.realpath(self.base), os.path.abspath(self.base)
            for mount in mounts():
                if mount.kind == "fuse.winkfs" and not mount.ro and mount.origin in places:
                    return mount.point
        return ""

    def _write_holder(self, text: bytes) -> None:
        """Write a text to BASE.lock, for messages; errors are ignored."""
        with (
            contextlib.suppress(OSError),
            self._directory.open(self._name + SUFFIX, "w", follow=False) as storage,
        ):
            if _is_plain(storage.info()):
                storage.truncate(0)
                storage.write(0, [text] if text else [])

    def release(self) -> None:
        """Release the locks. Idempotent."""
        try:
            if self._locks:
                self._write_holder(b"")
        finally:
            while self._locks:
                self._locks[-1].release()
                self._locks.pop()

    def forget(self) -> None:
        """Forget the lock, in a forked child: it is the parent's."""
        self._locks = []


def _is_plain(info: Info) -> bool:
    return info.kind is FileType.FILE and info.links <= 1
