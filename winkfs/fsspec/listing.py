"""Listing: the files of a store as paths with their metadata, in bulk from the catalog.

A path is that of `winkfs.path_of`. If a name is also a directory of other names, its file is
`@file` in that directory.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from winkfs.container.container import Container
from winkfs.container.table import FileTable
from winkfs.container.where import parse
from winkfs.dataset.reading import DatasetReading
from winkfs.entry import FileType, Stat
from winkfs.errors import NoSuchFile, NotAllowed
from winkfs.names import (
    NO_NAME,
    SELF,
    name_at,
    name_below,
    shown,
    shown_all,
    to_bytes,
    to_str,
    to_strs,
)
from winkfs.reader import Problem, Reader
from winkfs.tables import is_listed, one, shallow, tables, values_of
from winkfs.units import NANO

KINDS: Final = {
    FileType.DIR: ("directory", stat.S_IFDIR),
    FileType.LINK: ("link", stat.S_IFLNK),
}  # FTYPE -> type for fsspec, type in st_mode; all others are files
FILE_KIND: Final = ("file", stat.S_IFREG)

Info = dict[str, Any]


class Facts(NamedTuple):
    """Metadata of a file: times in nanoseconds, `size` in bytes."""

    size: int
    mtime_ns: int
    ftype: int
    mode: int
    uid: int
    gid: int
    ctime_ns: int


@dataclass(slots=True)
class Tree:
    """Files and directories below a path: path -> Info, or None if these were not requested."""

    files: dict[str, Info | None] = field(default_factory=dict)
    directories: dict[str, Info | None] = field(default_factory=dict)


def info_of(path: str, facts: Facts, columns: dict[str, Any] | None = None) -> Info:
    """Return the metadata of a file as fsspec has it. Times: seconds since the epoch."""
    kind, bits = KINDS.get(facts.ftype, FILE_KIND)  # type: ignore[call-overload]
    found = {
        "name": path,
        "size": facts.size,
        "type": kind,
        "created": facts.ctime_ns / NANO,
        "mtime": facts.mtime_ns / NANO,
        "mode": bits | facts.mode,
        "uid": facts.uid,
        "gid": facts.gid,
        "islink": facts.ftype == FileType.LINK,
    }
    if columns is not None:
        found["columns"] = columns
    return found


def directory_info(path: str) -> Info:
    """Return the metadata of a directory without an entry of its own."""
    return {"name": path, "size": 0, "type": "directory", "mode": stat.S_IFDIR | 0o755,
            "islink": False}  # fmt: skip


def facts_of(found: Stat) -> Facts:
    return Facts(found.size, found.mtime_ns, found.ftype, found.mode, found.uid, found.gid,
                 found.ctime_ns)  # fmt: skip


class Listing:
    """The files of an open store by their paths."""

    def __init__(self, reader: Reader, where: str | None) -> None:
        """Raises NotAllowed: a condition, and the store has no columns; ValueError for a wrong
        one."""
        self._reader, self._where = reader, where
        if where is not None:
            if not isinstance(reader, Container | DatasetReading):
                raise NotAllowed("where is for containers and data sets", reader.base)
            parse(where).bound(reader.columns)

    # --- one path ---

    def name(self, path: str) -> bytes:
        """Return the name of the file at a path. Raises NoSuchFile if no name can have it."""
        name = name_at(to_bytes(path))
        if not name or NO_NAME in name:
            raise NoSuchFile("no such file", path)
        return name

    def stat(self, path: str) -> Stat:
        """Return the metadata of the file at a path, a link itself.

        raises  NoSuchFile, also if `where` is false for it
        cost    one look-up; with `where`, one block of the catalog
        """
        name = self.name(path)
        try:
            found = self._reader.stat(name)
        except NoSuchFile:
            raise NoSuchFile("no such file", path) from None
        if self._where is not None:
            met = one(self._reader, name, where=self._where)
            if not any(map(len, met)):
                raise NoSuchFile("no such file for which the condition is true", path)
        return found

    def columns(self, path: str) -> dict[str, Any] | None:
        """Return the values of the columns of a file; None: the store has no columns."""
        return self._reader.getcolumns(self.name(path)) if self._reader.columns else None

    def has_below(self, path: str) -> bool:
        """Return whether there are files below a path. Cost: one block of the catalog."""
        below = name_below(to_bytes(path)) + b"/" if path else b""
        found = tables(self._reader, below, where=self._where, at_once=1)
        return next(found, None) is not None

    # --- many ---

    def tree(
        self,
        path: str,
        depth: int | None = None,
        *,
        detail: bool = False,
        columns: bool = True,
        problem: Problem | None = None,
    ) -> Tree:
        """Return all files and directories below a path.

        depth   levels, at least 1; None: all
        detail  with the metadata of each, links not followed
        problem  see `tables.tables`
        cost    reads the part of the catalog with these names once; memory: the paths
        """
        start = path + "/" if path else ""
        found = self.matching(start, depth, detail=detail, columns=columns, problem=problem)
        clashing(found, path, depth)
        if path and (found.files or found.directories):
            own = self._own(path)
            if own is not None:
                _add_own(found, path, own if detail else None, path, depth)
        return found

    def _own(self, path: str) -> Info | None:
        """Return the metadata of the file, not a directory, whose name is that of a directory."""
        try:
            stat = self.stat(path)
        except NoSuchFile:
            return None
        return None if stat.ftype == FileType.DIR else info_of(path, facts_of(stat))

    def matching(
        self,
        start: str,
        depth: int | None = None,
        *,
        detail: bool = False,
        columns: bool = True,
        problem: Problem | None = None,
    ) -> Tree:
        """Return the files and directories whose paths begin with `start`.

        depth    levels below the last / in `start`; None: all
        columns  whether the metadata have the values of the columns
        """
        top, _, part = start.rpartition("/")
        begin = name_below(to_bytes(top)) + b"/" if top else b""
        odd = part.startswith("@")  # the name may begin otherwise
        begin += b"" if odd else to_bytes(part)
        found, values = Tree(), detail and columns and bool(self._reader.columns)
        asked = tuple(self._reader.columns) if values else ()
        for rows, begun in shallow(
            self._reader, begin, problem, depth=depth, where=self._where, columns=asked
        ):
            paths = to_strs(shown_all(rows.names)) if len(rows) else []
            infos: list[Any] = [None] * len(paths)
            if detail and paths:
                infos = self._infos(rows, paths, columns=values)
            _add(found, paths, rows.ftype.tolist(), infos, start if odd else "")
            # Above a name that begins with a slash is the directory without a name.
            over = (b"" if name == b"/" and not begin else name for name in begun.names)
            _add_directories(found, map(to_str, map(shown, over)), start, detail=detail)
        return found

    def _infos(self, rows: FileTable, paths: list[str], *, columns: bool) -> list[Info]:
        """Return the metadata of complete rows."""
        facts = map(Facts, *(column.tolist() for column in rows.stats((0, 0))[1:]))
        if not columns:
            return list(map(info_of, paths, facts))
        names = tuple(self._reader.columns)
        values = values_of(self._reader, rows, names, listed=is_listed(self._reader))
        return list(map(info_of, paths, facts, values))


def _add(
    found: Tree, paths: list[str], ftypes: list[int], infos: list[Info | None], start: str
) -> None:
    """Add files, and directories with entries, whose paths begin with `start`."""
    if start or FileType.DIR in ftypes:
        for path, ftype, info in zip(paths, ftypes, infos, strict=True):
            if path.startswith(start):
                (found.directories if ftype == FileType.DIR else found.files)[path] = info
    else:
        found.files.update(zip(paths, infos, strict=True))


def _add_directories(found: Tree, over: Iterable[str], start: str, *, detail: bool) -> None:
    """Add directories without an entry whose paths begin with `start`."""
    for path in over:
        if path.startswith(start) and path not in found.directories:
            found.directories[path] = directory_info(path) if detail else None


def clashing(found: Tree, top: str = "", depth: int | None = None) -> None:
    """Move each file with the name of a directory into that directory, as `@file`, unless that is
    more than `depth` levels below `top`."""
    for both in found.files.keys() & found.directories.keys():
        _add_own(found, both, found.files.pop(both), top, depth)


def _add_own(found: Tree, path: str, info: Info | None, top: str, depth: int | None) -> None:
    inside = f"{path}/{to_str(SELF)}"
    if depth is None or inside.count("/") - top.count("/") - bool(top) < depth:
        found.files[inside] = info and info | {"name": inside}
