"""winkfs: a filesystem in a container. Millions of small files in a few append-only ones."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winkfs.bulkput import Row as Row
    from winkfs.container import Container as Container
    from winkfs.container import create as create
    from winkfs.dataset.dataset import Dataset as Dataset
    from winkfs.doors import open as open
    from winkfs.doors import reindex as reindex
    from winkfs.doors import verify as verify
    from winkfs.entry import Entry as Entry
    from winkfs.entry import Stat as Stat
    from winkfs.errors import WinkError as WinkError
    from winkfs.inode import FileType as FileType
    from winkfs.verification import Report as Report

_HOMES = {
    "Container": "container",
    "Dataset": "dataset.dataset",
    "Entry": "entry",
    "FileType": "inode",
    "Report": "verification",
    "Row": "bulkput",
    "Stat": "entry",
    "WinkError": "errors",
    "create": "container",
    "open": "doors",
    "reindex": "doors",
    "verify": "doors",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import on first use: `winkfs --help` must not wait 0.3 s for numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'winkfs' has no attribute {name!r}")
    value = getattr(import_module(f"winkfs.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
