"""Interface of stores of records with ids, such as message stores and LogStores.

Records    an open store of records, to read, or to write with mode "a"
Arrivals   a store whose ids ascend in the order of arrival, so that a reader can resume
Row        the place of a record

As files the records have their ids as names; `winkfs ls`, `cat`, `verify`, mounts and Spark rows
work on them through `Reader`. `winkfs store` calls the rest.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Int64
from winkformats.disk.paths import directory_of, is_directory, locate
from winkfs.container.ondisk.typed import EPOCH, MICROSECOND
from winkfs.entry import Entry, FileType
from winkfs.errors import FileExists, FormatError, NoSuchFile, ReadOnly
from winkfs.names import PARTIAL, Name, to_str
from winkfs.reader import Problem, Reader
from winkfs.stores.batches import batched
from winkfs.stores.kinds import refuse_other
from winkfs.units import MICRO, NANO, Time, to_ns

Progress = Callable[[int], None]
Ids = npt.NDArray[Any]
"""int64[n] where ids are numbers, else their text: S[n]."""
MODE = 0o644
BATCH_RECORDS = 1 << 13  # records handled at a time
BATCH_BYTES = 4 << 20  # bytes of their bodies
PYTHON_VALUE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int64": int, "string": str, "timestamp": lambda ns: EPOCH + ns // MICRO * MICROSECOND,
}  # fmt: skip


@contextlib.contextmanager
def building(target: str, kind: str) -> Iterator[str]:
    """Yield TARGET.partial, where the block makes a new store; rename it to `target` at its end.

    A TARGET.partial that a killed run has left is replaced.

    raises  FileExists if the target is not empty; OSError
    """
    refuse_other(target, kind)
    directory, name = locate(target.rstrip("/"))
    if directory.exists(name) and not (is_directory(target) and not directory_of(target).list()):
        raise FileExists("is not empty: a store needs a directory of its own", target)
    made = name + PARTIAL
    directory.remove_tree(made)
    try:
        yield target.rstrip("/") + PARTIAL
        directory.rename(made, name)
    except BaseException:
        directory.remove_tree(made)
        raise
    directory.sync()


class Row(NamedTuple):
    """Place of a record, and what is known of it.

    size    bytes of the body
    file    path relative to the store; offset: of the record in that file
    refs    number of references, if they are counted
    facts   values of the columns that only this kind of store has; times in nanoseconds
    """

    id: str
    size: int
    file: str
    offset: int
    refs: int | None = None
    facts: Mapping[str, Any] | None = None


class Part(NamedTuple):
    """A file of a store whose records can be read apart from others: relative path, bytes."""

    file: str
    size: int


def values_of(row: Row) -> dict[str, Any]:
    """Return the values of a record by column."""
    return row._asdict() | dict(row.facts or {})


def batches(rows: Iterable[Row], size: int = BATCH_BYTES) -> Iterator[list[Row]]:
    """Yield at most BATCH_RECORDS rows at a time, with bodies of `size` bytes in all; a larger one
    is alone."""
    return batched(rows, attrgetter("size"), size, BATCH_RECORDS)


class Records(Reader):
    """A store of records. The id of a record is text here: hexadecimal or decimal digits.

    Reading needs no lock and goes on while another process writes: a reader sees the store as of
    the opening, or of the last `refresh`. With mode "a" there is one writer.
    """

    changed_by = "put"
    numbers: ClassVar[bool] = False
    """Whether ids are decimal numbers of 0 to 2**63 - 1; else hexadecimal digits, small letters."""
    counts: ClassVar[bool] = False
    """Whether references are counted: `Row.refs`."""
    elsewhere: ClassVar[str] = ""
    """How records come and go, if not by `put` and `remove`: for messages."""

    def __init__(self, base: str) -> None:
        super().__init__(base)
        self._mtimes: dict[str, int] = {}  # `refresh` clears it

    # --- to read ---

    @abstractmethod
    def rows(self, *parts: Part) -> Iterator[Row]:
        """Yield the live records of these parts, or of all, in the order of files and offsets.

        A part that no longer exists has none. Other calls may be made between two records.

        raises  CorruptError
        """

    @abstractmethod
    def data_files(self) -> list[Part]:
        """Return the files with records, which can be read in parallel."""

    @abstractmethod
    def row(self, id: str) -> Row:
        """Return the place of a record. Raises NoSuchFile; ValueError for a malformed id."""

    @abstractmethod
    def bodies(self, rows: Iterable[Row]) -> Iterator[bytes]:
        """Yield bodies in this order. Raises CorruptError; NoSuchFile if a record was removed."""

    @abstractmethod
    def refresh(self) -> bool:
        """Follow the writer to its present state; return whether anything has changed since the
        last call, including changes that a read has already followed."""

    @abstractmethod
    def stats(self) -> Mapping[str, Any]:
        """Return facts for people and JSON: bytes of live records, files, dead bytes, memory, ...
        The cost does not grow with the number of records."""

    # --- to write, with mode "a"; with mode "r", or if `elsewhere` is set, these raise ReadOnly ---

    def put(self, id: str | None, body: bytes) -> str:
        """Add a record, a reference or a new version; return the id. None: the next free id."""
        raise self._refusal()

    def remove(self, id: str) -> None:
        """Remove a record, or one reference. Raises NoSuchFile."""
        raise self._refusal()

    def sync(self) -> None:
        """Make all changes durable."""
        raise self._refusal()

    def compact(
        self, progress: Progress | None = None, *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Reclaim space; return what was done, or with `dry_run` what would be: the `files` that
        were compacted, their `bytes_before` and `bytes_after`, and facts of the kind. progress:
        bytes."""
        raise self._refusal()

    def _refusal(self) -> ReadOnly:
        return ReadOnly(self.elsewhere, self.base)

    # --- many at a time: defaults, which a store may override with faster ones ---

    def listing(self) -> Iterator[tuple[Ids, Int64]]:
        """Yield ids of live records and their approximate bytes, many at a time, in any order.

        A store that has them as arrays should override this: mounts and Spark list all records.
        """
        rows = self.rows()
        while some := list(islice(rows, BATCH_RECORDS)):
            ids: list[Any] = [row.id for row in some]
            kind = "i8" if self.numbers else "S"
            yield np.array(ids).astype(kind), np.array([row.size for row in some], np.int64)

    def find(self, ids: Iterable[str]) -> Iterator[Row]:
        """Yield the records of those ids that exist, in their order; ids as `rows` returns them."""
        for id in ids:
            try:
                yield self.row(id)
            except NoSuchFile:
                continue

    def contents(self, rows: Iterable[Row]) -> Iterator[tuple[Row, bytes | Exception]]:
        """Yield rows with their bodies or errors; records that have been removed are left out.

        Memory: that of `bodies`, and the rows.
        """
        wanted = list(rows)
        at = 0
        while at < len(wanted):
            try:
                for body in self.bodies(wanted[at:]):
                    yield wanted[at], body
                    at += 1
            except (OSError, ValueError):  # of this record, or of one that is read with it
                alone = wanted[at : at + BATCH_RECORDS]
                at += len(alone)
                yield from self._alone(alone)

    def _alone(self, rows: Iterable[Row]) -> Iterator[tuple[Row, bytes | Exception]]:
        for row in rows:
            try:
                body = next(iter(self.bodies([row])))
            except NoSuchFile:
                continue
            except (OSError, ValueError) as error:  # FormatError is a ValueError
                yield row, error
            else:
                yield row, body

    def mtime_ns(self, file: str) -> int:
        """Return when a file was last written, as of the last `refresh`; 0: it is gone."""
        found = self._mtimes.get(file)
        if found is None:
            info = directory_of(self.base).info(file)
            found = self._mtimes[file] = 0 if info is None else int(info.mtime * NANO)
        return found

    def mtime_of(self, row: Row) -> int:
        """Return when a record was last written; by default, when its file was."""
        return self.mtime_ns(row.file)

    def __len__(self) -> int:
        return sum(1 for _ in self.rows())

    # --- as files ---

    def names(self, glob: str | None = None, *, problem: Problem | None = None) -> Iterator[str]:
        match = re.compile(fnmatch.translate(glob)).match if glob is not None else None
        ids = (row.id for row in self.rows())
        return ids if match is None else filter(match, ids)

    @property
    def columns(self) -> dict[str, str]:
        refs = {"refs": "int64"} if self.counts else {}
        return {
            "id": "int64" if self.numbers else "string",
            "file": "string",
            "offset": "int64",
        } | refs

    def getcolumns(self, name: Name) -> dict[str, Any]:
        row = values_of(self.named(name))
        return {column: None if row[column] is None else PYTHON_VALUE[kind](row[column])
                for column, kind in self.columns.items()}  # fmt: skip

    def scan(
        self,
        since: Time | None = None,
        until: Time | None = None,
        prefix: Name = "",
        *,
        problem: Problem | None = None,
    ) -> Iterator[Entry]:
        begin, low, high = to_str(prefix), to_ns(since), to_ns(until)
        for row in self.rows():
            if row.id.startswith(begin):
                entry = self._entry(row)
                ns = entry.mtime_ns
                if (low is None or low <= ns) and (high is None or ns < high):
                    yield entry

    def stat(self, name: Name) -> Entry:
        return self._entry(self.named(name))

    def named(self, name: Name) -> Row:
        """Return the record of a name, which is the id as the store itself writes it.

        raises  NoSuchFile, also for a malformed id
        """
        id = to_str(name)
        try:
            row = self.row(id)
        except FormatError:
            raise
        except ValueError as error:
            raise NoSuchFile(str(error), id) from None
        if row.id != id:
            raise NoSuchFile("no such record", id)
        return row

    def _entry(self, row: Row) -> Entry:
        mtime = self.mtime_of(row)

        def read() -> bytes:
            return next(iter(self.bodies([row])))

        return Entry(row.id, 0, row.size, mtime, FileType.FILE, MODE, 0, 0, mtime, read)

    def read(self, name: Name, offset: int = 0, size: int = -1) -> bytes:
        body = next(iter(self.bodies([self.named(name)])))
        return body[offset:] if size < 0 else body[offset : offset + size]


class HandleRecords(Records):
    """Records of a store that has its own handle, `store`."""

    store: Any

    @property
    def problems(self) -> list[str]:
        return self.store.problems  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.store)

    def refresh(self) -> bool:
        self._mtimes.clear()
        return self.store.refresh()  # type: ignore[no-any-return]

    def stats(self) -> Mapping[str, Any]:
        return self.store.stats()  # type: ignore[no-any-return]

    def close(self) -> None:
        self.store.close()


class Run(NamedTuple):
    """A file of a store with the records [first, stop).

    mark  differs if a different file gets the same name later
    """

    file: str
    size: int
    first: int
    stop: int
    mark: int


class Arrivals(Records):
    """A store whose ids ascend in the order of arrival; no id is used again.

    `rows` are the records that some consumer has not read yet; `between` are all that exist.
    """

    numbers = True

    @property
    @abstractmethod
    def next_id(self) -> int:
        """The id above those of all records so far; as of the last `refresh`."""

    @abstractmethod
    def runs(self) -> list[Run]:
        """Return the files with records, the oldest first."""

    @abstractmethod
    def between(self, first: int, stop: int, lost: Callable[[str], object]) -> Iterator[Row]:
        """Yield the records with ids in [first, stop), whether or not they have been read.

        lost  called with a line for ids of that range that have no record any more
        """
