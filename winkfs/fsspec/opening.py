"""Open a store as an fsspec filesystem. Light: fsspec is imported at the first call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from winkfs.errors import need

if TYPE_CHECKING:
    from winkfs.fsspec.filesystem import WinkFileSystem
    from winkfs.registry import AsOf


def fs(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    as_of: AsOf | None = None,
    where: str | None = None,
) -> WinkFileSystem:
    """Return a container, data set or other store as an fsspec filesystem.

    mode    "r" to read; "a" to read and write a container or data set
    as_of   of a data set: a generation (int), or a time: the newest generation up to then
    where   only files for which this condition is true: see `Container.scan`
    raises  as `winkfs.open`; Refusal if fsspec is not installed, or too old
    """
    need("fsspec", "winkfs.fs")
    from winkfs.fsspec.filesystem import WinkFileSystem

    made: WinkFileSystem = WinkFileSystem(os.fspath(path), mode=mode, as_of=as_of, where=where)
    return made
