"""Paths: which disk a path is on, and what can be done by path.

    locate("corpus")          a Directory of this machine, and "corpus"
    locate("sim:1/corpus")    one of the disk that registered the scheme "sim"

Whoever opens, names or removes a file goes through here, so that another disk can stand below.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from winkformats.disk.posix import DeviceStorage, PosixDirectory, PosixFolder
from winkformats.disk.storage import Directory, Kind, Storage

Factory = Callable[[str], Directory]
_schemes: Final[dict[str, Factory]] = {}  # by scheme and colon


def register(scheme: str, factory: Factory) -> None:
    """Have `factory` make the directories of all paths that begin with `scheme` and a colon."""
    _schemes[f"{scheme}:"] = factory


@contextlib.contextmanager
def registered(scheme: str, factory: Factory) -> Iterator[None]:
    """`register` for a `with` block. `scheme`: one that no path of this machine begins with."""
    register(scheme, factory)
    try:
        yield
    finally:
        del _schemes[f"{scheme}:"]


def scheme_of(path: str) -> str:
    """The registered scheme that a path begins with, "" for a path of this machine."""
    head, colon, _ = path.partition(":")
    return head if head + colon in _schemes else ""


def directory_of(path: str) -> Directory:
    """The directory with this path. It need not be there yet."""
    head, colon, _ = path.partition(":")
    return _schemes.get(head + colon, PosixDirectory)(path or ".")


def open_folder(path: str) -> Directory:
    """The folder of a store, open: below it no symbolic link is followed.

    It is the one way in which a store gets at its files. Raises OSError where it is not there.
    """
    return directory_of(path) if scheme_of(path) else PosixFolder.at(path or ".")


def locate(path: str | os.PathLike[str]) -> tuple[Directory, str]:
    """-> the directory that a path is in, and its name there."""
    text = os.fspath(path)
    head, slash, name = text.rpartition("/")
    return directory_of(head or slash), name


def open_file(
    path: str | os.PathLike[str], mode: str = "r", *, uncached: bool = False, device: bool = False
) -> Storage:
    """Open the file with this path, see `Directory.open`; `device`: or block device, see
    `DeviceStorage`."""
    directory, name = locate(path)
    found = directory.info(name, follow=True) if device else None
    if found is not None and found.kind is Kind.DEVICE:
        return DeviceStorage(os.fspath(path), mode)
    return directory.open(name, mode, uncached=uncached)


def is_directory(path: str) -> bool:
    """Whether there is a directory, or a symbolic link to one."""
    info = directory_of(path).info()
    return info is not None and info.kind is Kind.DIRECTORY


def make_directory(path: str) -> None:
    """Make a directory, and those that it is in, durable; one that is there stays."""
    if is_directory(path):
        return
    parent, _, name = absolute(path).rpartition("/")
    make_directory(parent or "/")
    directory = directory_of(parent or "/")
    with contextlib.suppress(FileExistsError):
        directory.mkdir(name)
        try:
            directory.sync()
        except OSError:  # it may be lost, and the next who finds it there would not know
            with contextlib.suppress(OSError):
                directory.rmdir(name)
            raise


def absolute(path: str) -> str:
    """The path from the root on."""
    return path if scheme_of(path) else os.path.abspath(path)
