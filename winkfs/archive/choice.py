"""Choice: which files of a store are unpacked, by names, globs and directories; found through the
index and the catalog where there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from winkformats.arrays import Bools, Int64
from winkformats.errors import CorruptError
from winkfs.container.container import Container
from winkfs.container.scan import Run, scan, scan_runs
from winkfs.container.select import by_paths
from winkfs.container.selection import matches, starting
from winkfs.container.table import FileTable
from winkfs.entry import Entry, Stat
from winkfs.names import excluder, inode_keys, literal_prefix, to_bytes, to_str, to_strs
from winkfs.reader import Problem, Reader
from winkfs.tables import ENTRIES_AT_ONCE, is_dataset, table_of

if TYPE_CHECKING:
    from winkfs.dataset.reading import DatasetReading

NAMES_AT_ONCE: Final = 1 << 16  # looked up together in a data set

Rows = Callable[[bytes], Iterator[FileTable]]


class Choice:
    """Files that one of these has, and that are not excluded.

    globs    patterns of names; * crosses /
    names    single names; None: there are no such
    trees    directories, of which all is chosen that is below them
    exclude  patterns of names to leave out, with all below them, as `names.excluder` takes them
    """

    def __init__(
        self,
        globs: Sequence[str] = (),
        names: Iterable[bytes] | None = None,
        trees: Sequence[bytes] = (),
        exclude: Iterable[str] = (),
    ) -> None:
        self._globs, self._trees = tuple(globs), tuple(trees)
        self._names = None if names is None else dict.fromkeys(names, False)
        self._found = dict.fromkeys(self._globs, False)
        self._excluded = excluder(exclude)
        self.some = bool(self._globs or self._trees or self._names is not None)

    @property
    def everything(self) -> bool:
        """True if all files are chosen."""
        return not self.some and self._excluded is None

    def missing(self) -> list[bytes]:
        """Return the names and globs that no file had, after `entries` has ended."""
        globs = [to_bytes(glob) for glob, found in self._found.items() if not found]
        return [*globs, *(name for name, found in (self._names or {}).items() if not found)]

    def entries(self, reader: Reader, problem: Problem) -> Iterator[Entry]:
        """Yield the chosen files, in the order of the disk.

        problem  called with each damaged file, which is left out
        cost     a look-up a name; for globs and directories the part of the catalog with their
                 literal start, and 8 bytes a file. A store without a catalog is scanned
        """
        if self.everything:
            yield from reader.scan(problem=problem)
            return
        if isinstance(reader, Container):
            known = self._positions(reader, problem)
            yield from scan(reader.store, reader.lock, None, None, b"", problem, known=known)
            return
        if is_dataset(reader) and reader.rows(b"", problem) is not None:
            names = (name for rows in self._rows_of(reader, problem) for name in rows.names)
            while some := list(islice(names, NAMES_AT_ONCE)):
                yield from _entries_of(reader, list(dict.fromkeys(some)), problem)
            return
        found_entries = reader.scan(problem=problem)
        while entries := list(islice(found_entries, ENTRIES_AT_ONCE)):
            kept = self._chosen(table_of(entries)).tolist()
            yield from (entry for entry, keep in zip(entries, kept, strict=True) if keep)

    def runs(self, reader: Reader, problem: Problem) -> Iterator[Run | Entry]:
        """Yield files as `entries`, those of a container in runs."""
        if not isinstance(reader, Container):
            return self.entries(reader, problem)
        if not self.everything:
            known = self._positions(reader, problem)
            return scan_runs(reader.store, reader.lock, problem, known)
        with reader.lock:
            return scan_runs(reader.settled(), reader.lock, problem, None)

    def _positions(self, reader: Container, problem: Problem) -> Int64:
        """Return the positions of the chosen files, ascending."""
        found = [rows.pos for rows in self._rows_of(reader, problem)]
        return np.unique(np.concatenate([np.empty(0, np.int64), *found]))

    def names(self, reader: Reader, problem: Problem) -> Iterator[Sequence[bytes]]:
        """Yield the chosen names, many at a time. Cost: see `entries`."""
        if isinstance(reader, Container) or (
            is_dataset(reader) and reader.rows(b"", problem) is not None
        ):
            yield from (rows.names for rows in self._rows_of(reader, problem))
            return
        yield [to_bytes(entry.name) for entry in self.entries(reader, problem)]

    def _rows_of(self, reader: Container | DatasetReading, problem: Problem) -> Iterator[FileTable]:
        """Yield the chosen rows; one may come several times."""
        for rows in self._parts(reader, problem):
            if len(kept := self._kept(rows)):
                yield kept

    def _parts(self, reader: Container | DatasetReading, problem: Problem) -> Iterator[FileTable]:
        def rows_of(prefix: bytes) -> Iterator[FileTable]:
            return reader.rows(prefix, problem) or iter(())

        if not self.some:
            yield from rows_of(b"")
        if self._names:
            yield from self._by_name(reader, problem)
        for tree in self._trees:
            yield from rows_of(tree + b"/")
        for glob in self._globs:
            for rows in rows_of(to_bytes(literal_prefix(glob))):
                yield rows.take(self._matching(rows, glob))

    def _by_name(self, reader: Container | DatasetReading, problem: Problem) -> Iterator[FileTable]:
        names = tuple(self._names or ())
        if isinstance(reader, Container):
            with reader.lock:
                parts = [by_paths(reader.settled(), names, problem)]
        else:
            stats = list[Stat]()
            for name in names:
                try:
                    stats += [reader.stat(name)] if name in reader else []
                except CorruptError as error:
                    problem(error)
            parts = [table_of(stats)] if stats else []
        for rows in parts:
            self._note_names(rows)
            yield rows

    def _note_names(self, rows: FileTable) -> None:
        for name in rows.names if self._names else ():
            if name in (self._names or ()):
                self._names[name] = True  # type: ignore[index]

    def _matching(self, rows: FileTable, glob: str) -> Bools:
        found = matches(rows, glob)
        self._found[glob] = self._found[glob] or bool(found.any())
        return found

    def _kept(self, rows: FileTable) -> FileTable:
        """Return the rows that are not excluded."""
        if self._excluded is None or not len(rows):
            return rows
        excluded = map(bool, map(self._excluded, to_strs(rows.names)))
        out = np.fromiter(excluded, np.bool_, len(rows))
        return rows.take(~out) if out.any() else rows

    def _chosen(self, rows: FileTable) -> Bools:
        """Return which rows of any store are chosen, bool[n]."""
        found = np.full(len(rows), not self.some)
        if self._names is not None:
            self._note_names(rows)
            found |= np.fromiter(map(self._names.__contains__, rows.names), np.bool_, len(rows))
        for tree in self._trees:
            found |= starting(rows, tree + b"/")
        for glob in self._globs:
            found |= self._matching(rows, glob)
        if self._excluded is not None:
            texts = to_strs(rows.names)
            found &= ~np.fromiter(map(bool, map(self._excluded, texts)), np.bool_, len(rows))
        return found


def _entries_of(reader: DatasetReading, names: list[bytes], problem: Problem) -> Iterator[Entry]:
    """Yield files of a data set by their names."""
    for shard, container, some in reader.homes(names):
        wanted = frozenset(map(to_str, some))
        pos: Int64 = container.store.index.candidates(inode_keys(some))
        known = np.unique(pos[pos > 0])
        for entry in scan(
            container.store, container.lock, None, None, b"", problem, without=shard.hidden,
            known=known,
        ):  # fmt: skip
            if entry.name in wanted:
                yield entry


def directories_of(names: Iterable[Sequence[bytes]]) -> set[bytes]:
    """Return the paths of all directories above some paths."""
    found: set[bytes] = set()
    for some in names:
        found.update([name.rpartition(b"/")[0] for name in some])
    for path in list(found):
        while path and (path := path.rpartition(b"/")[0]) not in found:
            found.add(path)
    found.discard(b"")
    return found
