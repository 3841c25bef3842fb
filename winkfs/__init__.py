"""winkfs: a filesystem in a container. Millions of small files in a few append-only ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from winkformats.version import VERSION
from winkfs.remote import install

if TYPE_CHECKING:
    from winkfs.archive.backup import backup as backup
    from winkfs.archive.copyfiles import copy as copy
    from winkfs.archive.split import split as split
    from winkfs.arrow.query import query as query
    from winkfs.container.bulk import Row as Row
    from winkfs.container.container import Container as Container
    from winkfs.container.container import create as create
    from winkfs.container.verify import Report as Report
    from winkfs.dataset.dataset import Dataset as Dataset
    from winkfs.entry import Entry as Entry
    from winkfs.entry import FileType as FileType
    from winkfs.entry import Stat as Stat
    from winkfs.errors import Busy as Busy
    from winkfs.errors import Closed as Closed
    from winkfs.errors import CorruptError as CorruptError
    from winkfs.errors import DamageWarning as DamageWarning
    from winkfs.errors import DatasetConflict as DatasetConflict
    from winkfs.errors import FileExists as FileExists
    from winkfs.errors import FormatError as FormatError
    from winkfs.errors import IsDirectory as IsDirectory
    from winkfs.errors import Locked as Locked
    from winkfs.errors import LostShard as LostShard
    from winkfs.errors import NameTooLong as NameTooLong
    from winkfs.errors import NoSuchFile as NoSuchFile
    from winkfs.errors import NoSuchKey as NoSuchKey
    from winkfs.errors import NotAllowed as NotAllowed
    from winkfs.errors import NotDirectory as NotDirectory
    from winkfs.errors import ReadOnly as ReadOnly
    from winkfs.errors import Refusal as Refusal
    from winkfs.errors import StalePlan as StalePlan
    from winkfs.errors import WinkError as WinkError
    from winkfs.fsspec.opening import fs as fs
    from winkfs.loaders.rows import Rows as Rows
    from winkfs.loaders.sampler import Sampler as Sampler
    from winkfs.loaders.stream import Stream as Stream
    from winkfs.names import name_of_path as name_of_path
    from winkfs.names import path_of as path_of
    from winkfs.pythonic.path import WinkPath as WinkPath
    from winkfs.reader import Reader as Reader
    from winkfs.registry import open as open
    from winkfs.registry import pack as pack
    from winkfs.registry import reindex as reindex
    from winkfs.registry import verify as verify
    from winkfs.remote.pull import pull as pull
    from winkfs.remote.push import push as push
    from winkfs.remote.signed import sign as sign
    from winkfs.samples.export import export as export

__version__ = VERSION
_HOMES = {
    "Busy": "errors",
    "Closed": "errors",
    "Container": "container.container",
    "CorruptError": "errors",
    "DamageWarning": "errors",
    "Dataset": "dataset.dataset",
    "DatasetConflict": "errors",
    "Entry": "entry",
    "FileExists": "errors",
    "FileType": "entry",
    "FormatError": "errors",
    "IsDirectory": "errors",
    "Locked": "errors",
    "LostShard": "errors",
    "NameTooLong": "errors",
    "NoSuchFile": "errors",
    "NoSuchKey": "errors",
    "NotAllowed": "errors",
    "NotDirectory": "errors",
    "ReadOnly": "errors",
    "Refusal": "errors",
    "Reader": "reader",
    "Report": "container.verify",
    "Row": "container.bulk",
    "Rows": "loaders.rows",
    "Sampler": "loaders.sampler",
    "StalePlan": "errors",
    "Stat": "entry",
    "Stream": "loaders.stream",
    "WinkError": "errors",
    "WinkPath": "pythonic.path",
    "backup": "archive.backup",
    "copy": "archive.copyfiles",
    "create": "container.container",
    "export": "samples.export",
    "fs": "fsspec.opening",
    "name_of_path": "names",
    "open": "registry",
    "pack": "registry",
    "path_of": "names",
    "pull": "remote.pull",
    "push": "remote.push",
    "query": "arrow.query",
    "reindex": "registry",
    "sign": "remote.signed",
    "split": "archive.split",
    "verify": "registry",
}


def exports(namespace: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports its names at their first use, and set its
    `__dir__`: `winkfs --help` must not wait for numpy.

    namespace  its `globals()`, where imported names are kept
    homes      name -> the module of the package that has it
    """

    def find(name: str) -> Any:
        package = namespace["__name__"]
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        namespace[name] = value
        return value

    def names() -> list[str]:
        return sorted({*homes, *(name for name in namespace if name.startswith("__"))})

    namespace["__dir__"] = names
    return find


install()
__all__ = list(_HOMES)
__getattr__ = exports(globals(), _HOMES)
