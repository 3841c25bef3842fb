"""Sources: what `pack` reads at a path that is no directory, by its first bytes."""

from __future__ import annotations

import stat
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from zipfile import is_zipfile

from winkformats.disk.paths import open_file
from winkfs.archive.decompress import compression_of
from winkfs.archive.items import STDIN, ChangingItemSource, Notes, Ratio
from winkfs.archive.magic import HEAD_BYTES, kind_of_start, reader_of
from winkfs.archive.members import Archive
from winkfs.archive.tar import Tarball, may_be_tar


def archive(
    path: str,
    note: Notes,
    scratch: str,
    *,
    xattrs: bool = False,
    exclude: Callable[[str], object] | None = None,
    ignore_zeros: bool = False,
    ratio: Ratio | None = None,
) -> ChangingItemSource:
    """Return the archive at a path as a source: a zip file, a SquashFS image, an SQLite archive; of
    all else, and of `-`, a tar file, which refuses what is none. For the options see `Tarball`.

    raises  OSError
    """
    if module := _module(path):
        opened = import_module(f"winkfs.archive.{module}").opened
        return Archive(path, opened, note, exclude=exclude, ratio=ratio)
    return Tarball(
        path, note, scratch, xattrs=xattrs, exclude=exclude, ignore_zeros=ignore_zeros, ratio=ratio
    )


def _module(path: str) -> str | None:
    """Return the module that reads the archive at a path; None: `tar`."""
    if path == STDIN or not stat.S_ISREG(Path(path).stat().st_mode):
        return None
    with open_file(path) as storage:
        storage.remember_resident()
        start = storage.read(0, min(HEAD_BYTES, storage.size()))
        storage.drop_seen()
    if (module := reader_of(start)) or may_be_tar(start) or kind_of_start(start):
        return module
    if compression_of(start):  # a zip file may be in it
        return None
    return "zip" if is_zipfile(path) else None  # behind a program that extracts it
