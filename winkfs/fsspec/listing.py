"""Listing: the files of a store as paths with their metadata, in bulk from the catalog.

A path is that of `winkfs.path_of`. If a name is also a directory of other names, its file is
`@file` in that directory.
"""

from __future__ import annotations

import itertools
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from winkfs.container.handle import Handle
from winkfs.container.ondisk.typed import to_value
from winkfs.container.table import FileTable
from winkfs.dataset.reading import DatasetReading
from winkfs.entry import Entry, FileType, Stat
from winkfs.errors import NoSuchFile, NotAllowed
from winkfs.names import (
    NO_NAME,
    SELF,
    after,
    name_at,
    name_below,
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


@dataclass(frozen=True, slots=True)
class Batch:
    """Some files: names, FTYPEs, and functions for what costs more.

    ordered whether all batches are in byte order of the names
    facts   () -> the Facts of each
    values  () -> the values of the columns of each; None: there are no columns
    """

    names: list[bytes]
    ftypes: list[int]
    ordered: bool
    facts: Callable[[], list[Facts]]
    values: Callable[[], list[dict[str, Any]]] | None


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
        """Raises NotAllowed: a condition, and the store has no columns."""
        self._reader, self._where = reader, where
        if where is not None and not isinstance(reader, Handle | DatasetReading):
            raise NotAllowed("where is for containers and data sets", reader.base)

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

    def tree(self, path: str, depth: int | None = None, *, detail: bool = False) -> Tree:
        """Return all files and directories below a path.

        depth   levels, at least 1; None: all
        detail  with the metadata of each, links not followed
        cost    reads the part of the catalog with these names once; memory: the paths
        """
        found = self.matching(path + "/" if path else "", depth, detail=detail)
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

    def matching(self, start: str, depth: int | None = None, *, detail: bool = False) -> Tree:
        """Return the files and directories whose paths begin with `start`.

        depth  levels below the last / in `start`; None: all
        """
        top, _, part = start.rpartition("/")
        begin = name_below(to_bytes(top)) + b"/" if top else b""
        if not part.startswith("@"):  # else the name may begin otherwise
            begin += to_bytes(part)
        level = start.count("/")
        found, at = Tree(), b""
        while True:
            for batch in self._batches(begin, at, columns=detail):
                self._take(found, batch, start, level, depth, detail)
                at = self._beyond(batch, level, depth)
                if at:
                    break
            else:
                return found

    @staticmethod
    def _beyond(batch: Batch, level: int, depth: int | None) -> bytes:
        """Return from which name on to continue if a batch ends amid a directory that is too deep,
        b"": with the next batch."""
        if depth is None or not batch.ordered:
            return b""
        parts = batch.names[-1].split(b"/")
        if len(parts) <= level + depth:
            return b""
        return after(b"/".join(parts[: level + depth]) + b"/") or b""

    def _take(
        self, found: Tree, batch: Batch, start: str, level: int, depth: int | None, detail: bool
    ) -> None:
        """Add the files of a batch, and the directories above them."""
        files, directories = found.files, found.directories
        paths, infos = to_strs(shown_all(batch.names)), itertools.repeat(None)
        if detail:
            facts = batch.facts()
            values = batch.values() if batch.values else itertools.repeat(None)
            infos = map(info_of, paths, facts, values)  # type: ignore[assignment]
        for path, ftype, info in zip(paths, batch.ftypes, infos, strict=False):
            if not path.startswith(start):
                continue
            parts = path.count("/") - level + 1
            if depth is None or parts <= depth:
                if ftype == FileType.DIR:
                    directories[path] = info
                else:
                    files[path] = info
            above = path.rpartition("/")[0]
            while len(above) >= len(start) and above and above not in directories:
                if depth is None or above.count("/") - level + 1 <= depth:
                    directories[above] = directory_info(above) if detail else None
                above = above.rpartition("/")[0]

    def _batches(
        self,
        prefix: bytes,
        start: bytes = b"",
        *,
        columns: bool = False,
        at_once: int | None = None,
    ) -> Iterator[Batch]:
        """Yield the files with a prefix, from the name `start` on, in byte order if there is a
        catalog; none of them is empty."""
        reader = self._reader
        if isinstance(reader, Handle | DatasetReading):
            names = tuple(reader.columns) if columns else ()
            found = reader.rows(
                prefix, None, where=self._where, columns=names, start=start, at_once=at_once
            )
            if found is not None:
                for rows in found:
                    if len(rows):
                        yield self._of_rows(rows, columns)
                return
            entries = reader.scan(prefix=prefix, where=self._where)
        else:
            entries = reader.scan(prefix=prefix)
        while some := list(itertools.islice(entries, ENTRIES_AT_ONCE)):
            yield _of_entries(some, columns and bool(reader.columns))

    def _of_rows(self, rows: FileTable, columns: bool) -> Batch:
        reader = self._reader
        owner = reader.store.owner if isinstance(reader, Handle) else (0, 0)
        schema = reader.columns if columns else {}
        names = rows.names
        asked = rows.asked.nonzero()[0].tolist()

        def facts() -> list[Facts]:
            numbers = rows.stats(owner)[1:]
            found = list(map(Facts, *(column.tolist() for column in numbers)))
            for i in asked:
                found[i] = facts_of(reader.stat(names[i]))
            return found

        def values() -> list[dict[str, Any]]:
            texts = zip(schema.items(), rows.typed(schema), strict=True)
            parts = [[to_value(kind, text) for text in column] for (_, kind), column in texts]
            found = [dict(zip(schema, row, strict=True)) for row in zip(*parts, strict=True)]
            for i in asked:
                found[i] = reader.getcolumns(names[i])
            return found

        return Batch(names, rows.ftype.tolist(), True, facts, values if schema else None)


def clashing(found: Tree, top: str = "", depth: int | None = None) -> None:
    """Move each file with the name of a directory into that directory, as `@file`, unless that is
    more than `depth` levels below `top`."""
    for both in found.files.keys() & found.directories.keys():
        _add_own(found, both, found.files.pop(both), top, depth)


def _add_own(found: Tree, path: str, info: Info | None, top: str, depth: int | None) -> None:
    inside = f"{path}/{to_str(SELF)}"
    if depth is None or inside.count("/") - top.count("/") - bool(top) < depth:
        found.files[inside] = info and info | {"name": inside}


def _of_entries(some: list[Entry], columns: bool) -> Batch:
    names, ftypes = [to_bytes(entry.name) for entry in some], [entry.ftype for entry in some]

    def values() -> list[dict[str, Any]]:
        return [entry.columns for entry in some]

    def facts() -> list[Facts]:
        return list(map(facts_of, some))

    return Batch(names, ftypes, False, facts, values if columns else None)
