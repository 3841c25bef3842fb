"""The half of a Source that a read-only one does not have."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import NoReturn

from winkmount.source import Attr


def _refuse() -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


class ReadOnlySource:
    """Refuses every change with EROFS; the engine does so before it asks."""

    writable = False
    failed = ""
    gather = False

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        _refuse()

    def mkdir(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> Attr:
        _refuse()

    def symlink(self, parent: int, name: bytes, target: bytes, uid: int, gid: int) -> Attr:
        _refuse()

    def unlink(self, parent: int, name: bytes) -> None:
        _refuse()

    def promise_unlink(self, id: int) -> None:
        _refuse()

    def rmdir(self, parent: int, name: bytes) -> None:
        _refuse()

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> None:
        _refuse()

    def chmod(self, id: int, mode: int) -> None:
        _refuse()

    def chown(self, id: int, uid: int, gid: int) -> None:
        _refuse()

    def utime(self, id: int, mtime_ns: int, now_ns: int) -> None:
        _refuse()

    def set_xattrs(self, id: int, xattrs: Mapping[bytes, bytes]) -> None:
        _refuse()

    def write(self, id: int, pieces: Sequence[tuple[int, bytes]], mtime_ns: int) -> None:
        _refuse()

    def truncate(self, id: int, size: int) -> None:
        _refuse()

    def punch(self, id: int, offset: int, size: int) -> None:
        _refuse()

    def allocate(self, id: int, size: int) -> None:
        _refuse()

    def promise(self, id: int, size: int) -> bool:
        _refuse()

    def flush(self, id: int) -> None:
        """There is nothing to refuse."""

    def fsync(self, id: int) -> None:
        """Everything is on the disk."""

    def sync(self) -> None:
        """Everything is on the disk."""
