"""Object storage: stores below s3://, gs://, az:// and https:// are read in place.

The transport of a URL (`find`), one a process and store, makes requests for ranges over HTTP, on
signed URLs (`ranges`); listing and signing need credentials (`control`). Other schemes are those of
fsspec (`filesystems`). What was read is kept on the disk (`cache`).
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from winkformats.disk.schemes import Factory, is_far, register, register_others
from winkfs.errors import ReadOnly, Refusal
from winkfs.remote.schemes import SCHEMES, is_known

if TYPE_CHECKING:
    from winkformats.disk.objects import ObjectDirectory


def directory(path: str) -> ObjectDirectory:
    """Return the directory with this URL."""
    from winkfs.remote.find import directory_at  # late: most programs need none

    return directory_at(path)


def refuse_far(path: str) -> None:
    """Raise ReadOnly for a URL, where a file of this machine is to be written."""
    if is_far(path):
        raise ReadOnly("what is on object storage can only be read", path)


def install() -> None:
    """Let all paths that begin with one of the schemes and `://` be on object storage."""
    for scheme in SCHEMES:
        register(scheme, directory, url=True)
    register_others(_other)


def _other(scheme: str) -> Factory | None:
    """Return what makes the directories of another scheme; None: a folder here has its name.

    raises  Refusal for a scheme that nothing knows: a folder `scheme:` must not be made of it
    """
    if is_known(scheme):
        return directory
    if os.path.isdir(f"{scheme}:"):
        return None
    known = ", ".join(f"{name}://" for name in SCHEMES)
    what = "write the path alone" if scheme == "file" else f"there are {known}, and those of fsspec"
    raise Refusal(f"no store is at such URLs: {what}", f"{scheme}://", number=errno.EINVAL)
