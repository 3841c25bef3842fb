"""Where the manifests of a data set are kept: in a folder, each with a copy.

    N.json   a manifest, made by link(2), which is atomic on POSIX and on NFS
    N.copy   the same bytes again, for when the first are damaged or lost; not synced
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from winkformats.storage import sync_directory
from winkfs.errors import WinkError

DIGITS: Final = 20
MANIFEST: Final = ".json"
COPY: Final = ".copy"
NO_LINK: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
_unsure: set[tuple[str, int]] = set()  # manifests that are there, but perhaps not on the disk


class Store(Protocol):
    """Where manifests are kept. An object store with conditional put can be one."""

    def numbers(self) -> list[int]:
        """Those there are, ascending."""

    def read(self, number: int) -> Iterator[tuple[str, bytes]]:
        """-> name and bytes of a manifest, then of its copy; nothing where it is not there."""

    def put_if_absent(self, number: int, data: bytes) -> bool:
        """Durable and whole, or an error -> False where somebody else has put it.

        After an error it may be there all the same: `renew` makes it durable.
        """

    def renew(self, number: int, data: bytes) -> None:
        """Write what is there, or was, once more, durable."""

    def remove(self, number: int) -> None:
        """A missing one is none to remove."""


class Folder:
    """A folder of manifests."""

    def __init__(self, path: str) -> None:
        self.path = path

    def file(self, number: int, suffix: str = MANIFEST) -> str:
        return f"{self.path}/{number:0{DIGITS}}{suffix}"

    def numbers(self) -> list[int]:
        return sorted(self.named(MANIFEST) | self.named(COPY))

    def named(self, suffix: str) -> set[int]:
        """The numbers of the files with this suffix."""
        stems = [name[: -len(suffix)] for name in os.listdir(self.path) if name.endswith(suffix)]
        return {int(stem) for stem in stems if len(stem) == DIGITS and stem.isdecimal()}

    def read(self, number: int) -> Iterator[tuple[str, bytes]]:
        for suffix in (MANIFEST, COPY):
            path = self.file(number, suffix)
            try:
                yield path, Path(path).read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                yield path, b""  # no byte of it can be had

    def put_if_absent(self, number: int, data: bytes) -> bool:
        """raises  WinkError where the file system has no link(2); OSError"""
        self._settle()
        with self._written(data) as file, self._written(data, durable=False) as copy:
            try:
                os.link(file, self.file(number))
            except FileExistsError:
                # Over NFS the answer to a link that was made may be lost, and it is asked again
                if os.stat(file).st_nlink != 2:
                    return False
            except OSError as error:
                if error.errno in NO_LINK:
                    raise WinkError(
                        "this file system has no hard links, and without them a commit is not "
                        "all or nothing: keep data sets on another one", self.path,
                        number=error.errno,
                    ) from None  # fmt: skip
                raise
            _unsure.add((self.path, number))
            os.replace(copy, self.file(number, COPY))
        self._sync(number)
        return True

    def renew(self, number: int, data: bytes) -> None:
        with self._written(data) as file, self._written(data, durable=False) as copy:
            os.replace(file, self.file(number))
            os.replace(copy, self.file(number, COPY))
        self._sync(number)

    def _settle(self) -> None:
        """Make durable what an earlier commit could not: this one is worth nothing without it.

        After a failed fsync the system may have dropped the name of a manifest that is still to be
        seen, and the next fsync says nothing of it.
        """
        for path, number in sorted(_unsure):
            if path != self.path:
                continue
            for _, data in self.read(number):
                self.renew(number, data)
                break
            _unsure.discard((path, number))

    def _sync(self, number: int) -> None:
        sync_directory(self.path)
        _unsure.discard((self.path, number))

    @contextlib.contextmanager
    def _written(self, data: bytes, *, durable: bool = True) -> Iterator[str]:
        """A file with these bytes under a name of its own; what is left of it goes at the end."""
        temporary = f"{self.path}/.{secrets.token_hex(8)}.tmp"
        try:
            with open(temporary, "xb") as file:  # noqa: PTH123 - not a method of a new Path
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            yield temporary
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def remove(self, number: int) -> None:
        for suffix in (COPY, MANIFEST):  # a reader meanwhile finds it, or that it is gone
            Path(self.file(number, suffix)).unlink(missing_ok=True)
