"""A store as a MountSource of ratarmount, beside its archives: with modes, links, attributes.

with WinkMountSource("corpus") as source:
    source.list("/")
register()                      # from now on
open_mount_source("corpus.data")    # of ratarmountcore opens containers
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

from winkfs.dataset.dataset import Dataset
from winkfs.errors import FormatError, NoSuchFile, need
from winkfs.names import DATA, name_of_path, to_bytes

need("ratarmountcore", "winkfs.fsspec.ratarmount")

from ratarmountcore.mountsource import FileInfo, MountSource  # noqa: E402  # after the check
from ratarmountcore.mountsource.archives import (  # noqa: E402
    ARCHIVE_BACKENDS,
    ArchiveBackendInfo,
)

from winkfs.fsspec.opening import fs as open_fs  # noqa: E402

if TYPE_CHECKING:
    from winkfs.registry import AsOf


class WinkMountSource(MountSource):  # type: ignore[misc]  # ratarmountcore has no types
    """The files of a container, data set or other store. Paths have a / before them."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        as_of: AsOf | None = None,
        where: str | None = None,
        **_: Any,
    ) -> None:
        """Open a store: see `winkfs.fs`. Other options of ratarmount are ignored."""
        self._fs = open_fs(path, as_of=as_of, where=where)

    def list(self, path: str) -> dict[str, FileInfo] | None:
        """Return what is in a directory, by name; None: it is no directory."""
        try:
            found = self._fs.ls(path)
            if not self._fs.isdir(path):
                return None
        except NoSuchFile:
            return None
        return {info["name"].rpartition("/")[2]: _file_info(info) for info in found}

    def lookup(self, path: str, fileVersion: int = 0) -> FileInfo | None:
        """Return the metadata of a file or directory, of a link its own; None: there is none."""
        try:
            return _file_info(self._fs.info(path))
        except NoSuchFile:
            return None

    def open(self, fileInfo: FileInfo, buffering: int = -1) -> IO[bytes]:
        """Open a file that `lookup` or `list` has returned."""
        found: IO[bytes] = self._fs.open(
            fileInfo.userdata[-1], block_size=max(buffering, 0) or None
        )
        return found

    def read(self, fileInfo: FileInfo, size: int, offset: int) -> bytes:
        """Return a part of a file."""
        found: bytes = self._fs.cat_file(fileInfo.userdata[-1], offset, offset + size)
        return found

    def is_immutable(self) -> bool:
        """Return True for a data set, which stays at its generation."""
        return isinstance(self._fs.reader, Dataset)

    def list_xattr(self, fileInfo: FileInfo) -> Iterable[str]:
        """Return the names of the extended attributes."""
        return [os.fsdecode(key) for key in self._xattrs(fileInfo)]

    def get_xattr(self, fileInfo: FileInfo, key: str) -> bytes | None:
        """Return an extended attribute; a column of the user is `user.NAME`."""
        return self._xattrs(fileInfo).get(os.fsencode(key))

    def _xattrs(self, fileInfo: FileInfo) -> dict[bytes, bytes]:
        try:
            return self._fs.reader.getxattrs(to_bytes(name_of_path(fileInfo.userdata[-1])))
        except (NoSuchFile, ValueError):  # a directory without an entry
            return {}

    def statfs(self) -> dict[str, Any]:
        return {"f_bsize": 512, "f_namemax": 255}

    def __exit__(self, *_: object) -> None:
        self._fs.close()


def _file_info(info: dict[str, Any]) -> FileInfo:
    link = info.get("destination", "")
    return FileInfo(
        size=len(os.fsencode(link)) if link else info["size"],
        mtime=info.get("mtime", 0),
        mode=info["mode"],
        linkname=link,
        uid=info.get("uid", os.getuid()),
        gid=info.get("gid", os.getgid()),
        userdata=[info["name"]],
    )


def register() -> None:
    """Have `open_mount_source` of ratarmountcore open BASE.data of a container. Idempotent.

    A folder, also that of a data set, it opens as a folder: use WinkMountSource.
    """
    ARCHIVE_BACKENDS["winkfs"] = ArchiveBackendInfo(_opened, set(), [("winkfs", "winkfs")])


def _opened(path: str | IO[bytes], **options: Any) -> WinkMountSource | None:
    """Open a container for ratarmountcore; None: it is none."""
    if not isinstance(path, str) or not path.endswith(DATA):
        return None
    try:
        return WinkMountSource(path)
    except FormatError:
        return None
