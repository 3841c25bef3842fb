"""Containers and data sets by their path: made, changed, read or damaged in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flips import flip

import winkfs

Files = Mapping[str, bytes] | Mapping[bytes, bytes] | Mapping[str | bytes, bytes]


def make(base: str | Path, files: Files | Iterable[Any] = (), **settings: Any) -> Path:
    """Make a container of these files, or of rows as `put_many` takes them; return its path."""
    with winkfs.create(base, **settings) as container:
        container.put_many(files.items() if isinstance(files, Mapping) else files)
    return Path(base)


def change(path: str | Path, files: Mapping[Any, bytes | None], **how: Any) -> None:
    """Open a container or data set, put these files one by one, and delete those that are None."""
    with winkfs.open(path, "a", **how) as opened:
        for name, data in files.items():
            if data is None:
                opened.delete(name)
            else:
                opened.put(name, data)


def files(path: str | Path, **how: Any) -> dict[str, bytes]:
    """Return the contents of all files, as a scan has them."""
    with winkfs.open(path, **how) as opened:
        return {entry.name: entry.read() for entry in opened.scan()}


def facts(path: str | Path) -> dict[str, tuple[Any, ...]]:
    """Return all that a container has of its files, but what depends on the moment."""
    with winkfs.open(path) as opened:
        return {
            entry.name: (
                entry.read(), entry.mtime_ns, entry.ftype, entry.mode, entry.uid, entry.gid,
                dict(entry.xattrs), entry.ranges(),
            )
            for entry in opened.scan()
        }  # fmt: skip


def names(path: str | Path, **how: Any) -> list[str]:
    """Return the names of all files, sorted."""
    with winkfs.open(path, **how) as opened:
        return sorted(opened.names())


def read(path: str | Path, name: str | bytes, **how: Any) -> bytes:
    """Return the content of one file."""
    with winkfs.open(path, **how) as opened:
        return opened.read(name)


def columns(path: str | Path, **how: Any) -> dict[str, str]:
    """Return the types of the columns, by name."""
    with winkfs.open(path, **how) as opened:
        return opened.columns


def stat(path: str | Path, name: str | bytes) -> winkfs.Stat:
    """Return the metadata of one file."""
    with winkfs.open(path) as opened:
        return opened.stat(name)


def documents(path: str | Path) -> dict[str, bytes]:
    """Return the contents of all regular files: no directories, no links."""
    kinds = (winkfs.FileType.FILE, winkfs.FileType.EXEC)
    with winkfs.open(path) as opened:
        return {entry.name: entry.read() for entry in opened.scan() if entry.ftype in kinds}


def paths(folder: str | Path) -> set[str]:
    """Return the paths of all that is below a folder, relative to it."""
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*")}


def flip_text(path: str | Path, text: bytes, at: int = 0) -> int:
    """Flip a bit of the byte `at` bytes behind the start of the first such text of a file; return
    the position of the byte."""
    pos = Path(path).read_bytes().index(text) + at
    flip(path, pos)
    return pos
