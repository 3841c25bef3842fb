"""Listing: the files of a store as paths with their metadata, in bulk from the catalog.

A path is that of `winkfs.path_of`. If a name is also a directory of other names, its file is
`@file` in that directory.
"""

from __future__ import annotations

import itertools
import stat
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from winkfs.container.container import Container
from winkfs.container.ondisk.typed import to_value
from winkfs.container.table import FileTable
from winkfs.container.where import parse
from winkfs.dataset.reading import DatasetReading
from winkfs.entry import Entry, FileType, Stat
from winkfs.errors import NoSuchFile, NotAllowed
from winkfs.names import (
    NO_NAME,
    SELF,
    after,
    name_at,
    name_below,
    shown,
    shown_all,
    to_bytes,
    to_str,
    to_strs,
)
from winkfs.reader import Reader
from winkfs.units import NANO

ENTRIES_AT_ONCE: Final = 1024  # of a store without a catalog
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


class Batch(Protocol):
    """Some files of a store: never none. `index`: of the files in question; None: all.

    ordered  whether all batches are in byte order of the names
    """

    names: list[bytes]
    ftypes: list[int]
    ordered: bool

    def facts(self, index: list[int] | None) -> list[Facts]:
        """Return the metadata of each."""

    def values(self, index: list[int] | None) -> list[dict[str, Any]]:
        """Return the values of the columns of each."""


class Rows:
    """Files of a catalog."""

    ordered = True

    def __init__(self, rows: FileTable, reader: Container | DatasetReading) -> None:
        self.names, self.ftypes = rows.names, rows.ftype.tolist()
        self._rows, self._reader = rows, reader

    def _some(self, index: list[int] | None) -> tuple[FileTable, list[int]]:
        """Return rows, and which of them are incomplete."""
        rows = self._rows if index is None else self._rows.take(np.array(index, np.int64))
        return rows, np.flatnonzero(rows.asked).tolist()

    def facts(self, index: list[int] | None) -> list[Facts]:
        (rows, asked), reader = self._some(index), self._reader
        owner = reader.store.owner if isinstance(reader, Container) else (0, 0)
        found = list(map(Facts, *(column.tolist() for column in rows.stats(owner)[1:])))
        for i in asked:
            found[i] = facts_of(reader.stat(rows.names[i]))
        return found

    def values(self, index: list[int] | None) -> list[dict[str, Any]]:
        (rows, asked), reader = self._some(index), self._reader
        schema = reader.columns
        texts = zip(schema.values(), rows.typed(schema), strict=True)
        columns = [[to_value(kind, text) for text in column] for kind, column in texts]
        found = [dict(zip(schema, row, strict=True)) for row in zip(*columns, strict=True)]
        for i in asked:
            found[i] = reader.getcolumns(rows.names[i])
        return found


class Entries:
    """Files of a scan."""

    ordered = False

    def __init__(self, entries: list[Entry]) -> None:
        self.names = [to_bytes(entry.name) for entry in entries]
        self.ftypes, self._entries = [entry.ftype for entry in entries], entries

    def _some(self, index: list[int] | None) -> list[Entry]:
        return self._entries if index is None else [self._entries[i] for i in index]

    def facts(self, index: list[int] | None) -> list[Facts]:
        return list(map(facts_of, self._some(index)))

    def values(self, index: list[int] | None) -> list[dict[str, Any]]:
        return [entry.columns for entry in self._some(index)]


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
        if self._where is not None and not self._first(name, name + b"\0"):
            raise NoSuchFile("no such file for which the condition is true", path)
        return found

    def columns(self, path: str) -> dict[str, Any] | None:
        """Return the values of the columns of a file; None: the store has no columns."""
        return self._reader.getcolumns(self.name(path)) if self._reader.columns else None

    def has_below(self, path: str) -> bool:
        """Return whether there are files below a path. Cost: one block of the catalog."""
        below = name_below(to_bytes(path)) + b"/" if path else b""
        return self._first(below, after(below))

    def _first(self, low: bytes, high: bytes | None) -> bool:
        """Return whether there is a name that begins with `low`, below `high`."""
        for batch in self._batches(low, at_once=1):
            found = high is None or min(batch.names) < high
            if found or batch.ordered:
                return found
        return False

    # --- many ---

    def tree(
        self, path: str, depth: int | None = None, *, detail: bool = False, columns: bool = True
    ) -> Tree:
        """Return all files and directories below a path.

        depth   levels, at least 1; None: all
        detail  with the metadata of each, links not followed
        cost    reads the part of the catalog with these names once; memory: the paths
        """
        start = path + "/" if path else ""
        found = self.matching(start, depth, detail=detail, columns=columns)
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
        self, start: str, depth: int | None = None, *, detail: bool = False, columns: bool = True
    ) -> Tree:
        """Return the files and directories whose paths begin with `start`.

        depth    levels below the last / in `start`; None: all
        columns  whether the metadata have the values of the columns
        """
        top, _, part = start.rpartition("/")
        begin = name_below(to_bytes(top)) + b"/" if top else b""
        odd = part.startswith("@")  # the name may begin otherwise
        begin += b"" if odd else to_bytes(part)
        level, found, at = start.count("/"), Tree(), b""
        values = detail and columns and bool(self._reader.columns)
        while True:
            for batch in self._batches(begin, at, columns=values):
                index, above, at = None, set[bytes](), b""
                if depth is not None:
                    index, above, at = _shallow(batch, level + depth)
                names = batch.names if index is None else [batch.names[i] for i in index]
                ftypes = batch.ftypes if index is None else [batch.ftypes[i] for i in index]
                infos: list[Any] = [None] * len(names)
                paths = to_strs(shown_all(names)) if names else []
                if detail and names:
                    some = batch.values(index) if values else itertools.repeat(None)
                    infos = list(map(info_of, paths, batch.facts(index), some))
                _add(found, paths, ftypes, infos, start if odd else "")
                over = {path.rpartition("/")[0] for path in paths}
                over.update(to_str(shown(name)) for name in above)
                _add_directories(found, over, start, detail=detail)
                if at:  # the rest of the catalog from here on
                    break
            else:
                return found

    def _batches(
        self,
        prefix: bytes,
        start: bytes = b"",
        *,
        columns: bool = False,
        at_once: int | None = None,
    ) -> Iterator[Batch]:
        """Yield the files with a prefix; if there is a catalog, from the name `start` on."""
        reader = self._reader
        if isinstance(reader, Container | DatasetReading):
            names = tuple(reader.columns) if columns else ()
            found = reader.rows(
                prefix, None, where=self._where, columns=names, start=start, at_once=at_once
            )
            if found is not None:
                for rows in found:
                    if len(rows):
                        yield Rows(rows, reader)
                return
            entries = reader.scan(prefix=prefix, where=self._where)
        else:
            entries = reader.scan(prefix=prefix)
        while some := list(itertools.islice(entries, ENTRIES_AT_ONCE)):
            yield Entries(some)


def _shallow(batch: Batch, most: int) -> tuple[list[int], set[bytes], bytes]:
    """Return the files whose names have at most `most` parts.

    ->  their indices; the directories with that many parts that have deeper files; the name from
        which on to continue if the batch ends amid such a directory, else b""
    """
    names, index, above, i = batch.names, list[int](), set[bytes](), 0
    while i < len(names):
        parts = names[i].split(b"/")
        if len(parts) <= most:
            index.append(i)
            i += 1
            continue
        directory = b"/".join(parts[:most])
        above.add(directory)
        if not batch.ordered:
            i += 1
            continue
        behind = after(directory + b"/") or b""
        i = bisect_left(names, behind, i) if behind else len(names)
        if i == len(names):
            return index, above, behind
    return index, above, b""


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
    """Add directories, and those above them, whose paths begin with `start`."""
    for path in over:
        while len(path) >= len(start) and path and path not in found.directories:
            if not path.startswith(start):
                break
            found.directories[path] = directory_info(path) if detail else None
            path = path.rpartition("/")[0]


def clashing(found: Tree, top: str = "", depth: int | None = None) -> None:
    """Move each file with the name of a directory into that directory, as `@file`, unless that is
    more than `depth` levels below `top`."""
    for both in found.files.keys() & found.directories.keys():
        _add_own(found, both, found.files.pop(both), top, depth)


def _add_own(found: Tree, path: str, info: Info | None, top: str, depth: int | None) -> None:
    inside = f"{path}/{to_str(SELF)}"
    if depth is None or inside.count("/") - top.count("/") - bool(top) < depth:
        found.files[inside] = info and info | {"name": inside}
