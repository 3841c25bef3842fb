"""Paths: the disk of a path, and operations by path.

    locate("corpus")          a Directory of this machine, and "corpus"
    locate("sim:1/corpus")    one of the disk that registered the scheme "sim"
    locate("s3://b/corpus")   one of object storage, if that registered "s3://"

All files are opened, renamed and removed through this module, so that tests can use other disks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from winkformats.disk.posix import DeviceStorage, PosixDirectory, PosixFolder
from winkformats.disk.schemes import Factory, factory_of, register, scheme_of, unregister
from winkformats.disk.storage import Directory, FileType, Storage


@contextlib.contextmanager
def registered(scheme: str, factory: Factory) -> Iterator[None]:
    """Register a scheme for a `with` block; no path of this machine may begin with it."""
    register(scheme, factory)
    try:
        yield
    finally:
        unregister(scheme)


def directory_of(path: str) -> Directory:
    """Return the directory with this path, which need not exist yet."""
    make = factory_of(path) if ":" in path else None
    return (make or PosixDirectory)(path or ".")


def open_folder(path: str) -> Directory:
    """Open the folder of a store: below it no symbolic link is followed.

    Stores access their files only through it. Raises OSError if it is missing.
    """
    return directory_of(path) if scheme_of(path) else PosixFolder.at(path or ".")


def locate(path: str | os.PathLike[str]) -> tuple[Directory, str]:
    """Return the directory that a path is in, and its name there."""
    text = os.fspath(path)
    head, slash, name = text.rpartition("/")
    return directory_of(head or slash), name


def open_file(
    path: str | os.PathLike[str], mode: str = "r", *, uncached: bool = False, device: bool = False
) -> Storage:
    """Open the file with this path, see `Directory.open`; device: it may be a block device, see
    `DeviceStorage`."""
    directory, name = locate(path)
    found = directory.info(name, follow=True) if device else None
    if found is not None and found.kind is FileType.DEVICE:
        return DeviceStorage(os.fspath(path), mode)
    return directory.open(name, mode, uncached=uncached)


def is_directory(path: str) -> bool:
    """Return whether there is a directory, or a symbolic link to one."""
    info = directory_of(path).info()
    return info is not None and info.kind is FileType.DIRECTORY


def make_directory(path: str) -> None:
    """Create a directory and its parents, durably, unless they exist."""
    if is_directory(path):
        return
    parent, _, name = absolute(path).rpartition("/")
    make_directory(parent or "/")
    directory = directory_of(parent or "/")
    with contextlib.suppress(FileExistsError):
        directory.mkdir(name)
        try:
            directory.sync()
        except OSError:  # it may be lost, which the next process to find it would not know
            with contextlib.suppress(OSError):
                directory.rmdir(name)
            raise


def absolute(path: str) -> str:
    """Return the absolute path."""
    return path if scheme_of(path) else os.path.abspath(path)
