"""Where the manifests of a data set are kept: in a folder, each with a copy.

N.json   a manifest, made by link(2), which is atomic on POSIX and on NFS
N.copy   the same bytes again, for when the first are damaged or lost; not synced
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Iterator
from typing import Final, Protocol

from winkformats.disk.directory import Directory
from winkformats.disk.paths import directory_of
from winkformats.disk.storage import Storage
from winkfs.dataset.records import is_whole
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
    """A folder of manifests.

    files  its directory
    """

    def __init__(self, path: str, files: Directory | None = None) -> None:
        self.path, self.files = path, files or directory_of(path)

    def name(self, number: int, suffix: str = MANIFEST) -> str:
        return f"{number:0{DIGITS}}{suffix}"

    def numbers(self) -> list[int]:
        """A copy alone counts if it is whole: a power cut may have left it of a commit that was
        broken off."""
        there = self.named(MANIFEST)
        alone = self.named(COPY) - there
        return sorted(there.union(n for n in alone if any(is_whole(d) for _, d in self.read(n))))

    def named(self, suffix: str) -> set[int]:
        """The numbers of the files with this suffix."""
        stems = [name[: -len(suffix)] for name in self.files.list() if name.endswith(suffix)]
        return {int(stem) for stem in stems if len(stem) == DIGITS and stem.isdecimal()}

    def read(self, number: int) -> Iterator[tuple[str, bytes]]:
        for suffix in (MANIFEST, COPY):
            name = self.name(number, suffix)
            try:
                with self.files.open(name) as storage:
                    yield f"{self.path}/{name}", storage.read(0, storage.size())
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                yield f"{self.path}/{name}", b""  # no byte of it can be had

    def model(self) -> Storage:
        """The newest manifest: what is committed gets its mode and owner. Raises OSError."""
        return self.files.open(self.name(max(self.named(MANIFEST), default=0)))

    def put_if_absent(self, number: int, data: bytes) -> bool:
        """raises  WinkError where the file system has no link(2); OSError"""
        self._settle()
        with self.written(number, data) as file, self.written(number, data, sync=False) as copy:
            try:
                self.files.link(file, self.name(number))
            except FileExistsError:
                # Over NFS the answer to a link that was made may be lost, and it is asked again
                info = self.files.info(file)
                if info is None or info.links != 2:
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
            self.files.rename(copy, self.name(number, COPY))
        self._sync(number)
        return True

    def renew(self, number: int, data: bytes) -> None:
        with self.written(number, data) as file, self.written(number, data, sync=False) as copy:
            self.files.rename(file, self.name(number))
            self.files.rename(copy, self.name(number, COPY))
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
        self.files.sync()
        _unsure.discard((self.path, number))

    @contextlib.contextmanager
    def written(self, number: int, data: bytes, *, sync: bool = True) -> Iterator[str]:
        """A file with these bytes under a name of its own; what is left of it goes at the end.

        number  that of the generation: who may read the manifest, or that before, may read this
        """
        temporary = f".{secrets.token_hex(8)}.tmp"
        try:
            with contextlib.ExitStack() as open_files:
                like = None
                for known in (number, max(number - 1, 0)):
                    with contextlib.suppress(OSError):
                        like = like or open_files.enter_context(self.files.open(self.name(known)))
                file = open_files.enter_context(self.files.create_new(temporary, like=like))
                file.write(0, [data])
                if sync:
                    file.sync()
            yield temporary
        finally:
            with contextlib.suppress(OSError):
                self.files.unlink(temporary)

    def remove(self, number: int) -> None:
        for suffix in (COPY, MANIFEST):  # a reader meanwhile finds it, or that it is gone
            self.files.unlink(self.name(number, suffix))
