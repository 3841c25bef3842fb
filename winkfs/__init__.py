"""winkfs: a filesystem in a container. Millions of small files in a few append-only ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from winkfs.lazy import exports

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
    from winkfs.errors import Busy as Busy
    from winkfs.errors import Closed as Closed
    from winkfs.errors import CorruptError as CorruptError
    from winkfs.errors import DamageWarning as DamageWarning
    from winkfs.errors import DatasetConflict as DatasetConflict
    from winkfs.errors import FileExists as FileExists
    from winkfs.errors import FormatError as FormatError
    from winkfs.errors import Locked as Locked
    from winkfs.errors import NameTooLong as NameTooLong
    from winkfs.errors import NoSuchFile as NoSuchFile
    from winkfs.errors import NotAllowed as NotAllowed
    from winkfs.errors import ReadOnly as ReadOnly
    from winkfs.errors import StalePlan as StalePlan
    from winkfs.errors import WinkError as WinkError
    from winkfs.inode import FileType as FileType
    from winkfs.verification import Report as Report

_HOMES = {
    "Busy": "errors",
    "Closed": "errors",
    "Container": "container",
    "CorruptError": "errors",
    "DamageWarning": "errors",
    "Dataset": "dataset.dataset",
    "DatasetConflict": "errors",
    "Entry": "entry",
    "FileExists": "errors",
    "FileType": "inode",
    "FormatError": "errors",
    "Locked": "errors",
    "NameTooLong": "errors",
    "NoSuchFile": "errors",
    "NotAllowed": "errors",
    "ReadOnly": "errors",
    "Report": "verification",
    "Row": "bulkput",
    "StalePlan": "errors",
    "Stat": "entry",
    "WinkError": "errors",
    "create": "container",
    "open": "doors",
    "reindex": "doors",
    "verify": "doors",
}
__all__ = list(_HOMES)
__getattr__ = exports(globals(), _HOMES)
