"""The schemes of URLs that are read over a network."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Final

SCHEMES: Final = ("s3", "gs", "az", "https", "http")  # with requests of our own
OURS: Final = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}  # what they are called here
NO_PASSWORD: Final = ("github",)  # ORGANISATION:REPOSITORY@BRANCH
USUAL: Final = ("ftp", "github", "hdfs", "hf", "memory", "sftp", "smb", "ssh", "webhdfs")
NOT: Final = frozenset({  # this machine, ours, and what is about another filesystem
    "file", "local", "asynclocal", "wink", "data", "dir", "generic", "reference", "cached",
    "blockcache", "filecache", "simplecache", "zip", "tar", "libarchive",
})  # fmt: skip


def is_known(scheme: str) -> bool:
    """Return whether fsspec has a filesystem for a scheme. Cost: imports fsspec, if it is there."""
    if scheme in OURS or scheme in USUAL:
        return True
    if scheme in NOT or find_spec("fsspec") is None:
        return False
    found = import_module("fsspec.registry")
    return scheme in found.known_implementations or scheme in found.registry
