"""Where a store is: a path of this machine, or a copy of it from another fsspec filesystem."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any, Final

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import filesystem

from winkformats.disk.schemes import is_far
from winkfs.errors import NoSuchFile
from winkfs.names import DATA, FILES
from winkfs.remote.schemes import OURS, SCHEMES

LOCAL: Final = (None, "", "file", "local")
log = logging.getLogger("winkfs.fsspec")


def find(
    fo: Any, protocol: str | None, options: Mapping[str, Any] | None, fs: Any
) -> tuple[Any, str]:
    """Return the filesystem that has a store, and the path in it; None: this machine.

    raises  ValueError without a path
    """
    if fo is None or not os.fspath(fo):
        raise ValueError("wink:// needs the path of a store: wink://FILE::/PATH/OF/STORE, or fo=")
    path, given = os.fspath(fo), dict(options or {})
    if fs is None and not given and "::" not in path:  # read in place, with our own requests
        scheme = OURS.get(protocol or "", protocol or "")
        url = path if "://" in path or scheme not in SCHEMES else f"{scheme}://{path}"
        if is_far(url):
            return None, url
    if fs is None and protocol in LOCAL and ("://" in path or "::" in path):
        fs, path = url_to_fs(path, **given)
    elif fs is None and protocol not in LOCAL:
        fs = filesystem(protocol, **given)
        path = fs._strip_protocol(path)
    if fs is None or isinstance(fs, LocalFileSystem):
        return None, os.path.abspath(LocalFileSystem._strip_protocol(path))
    return fs, path


class Copied:
    """A copy of a store of another filesystem, in a temporary folder that `remove` removes."""

    def __init__(self, fs: Any, path: str) -> None:
        """Copy a container, by its files, or the folder of any other store.

        raises  NoSuchFile
        cost    reads all of it once
        """
        path = path.rstrip("/")
        base = path.removesuffix(DATA)
        folder = tempfile.mkdtemp(prefix="winkfs-")
        self._finalizer = weakref.finalize(self, _remove, folder, os.getpid())
        self.path = os.path.join(folder, base.rpartition("/")[2] or "store")
        try:
            if fs.exists(base + DATA):
                for suffix in FILES:
                    if fs.exists(base + suffix):
                        fs.get_file(base + suffix, self.path + suffix)
            elif fs.isdir(path):
                fs.get(path + "/", self.path + "/", recursive=True)
            else:
                raise NoSuchFile("there is no store", f"{path} ({_protocol(fs)})")
        except BaseException:
            self.remove()
            raise
        log.info("%s (%s): copied to %s, and read there", path, _protocol(fs), self.path)

    def remove(self) -> None:
        """Remove the copy. Idempotent."""
        self._finalizer()


def _protocol(fs: Any) -> str:
    return fs.protocol if isinstance(fs.protocol, str) else str(fs.protocol[0])


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
