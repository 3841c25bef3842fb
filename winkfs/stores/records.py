"""Stores of records with ids, such as message stores and LogStores: what is the same for all.

Records    such a store, open to read, or to write with mode "a"
Arrivals   one whose ids ascend by arrival, so that who reads it can go on where he stopped
Row        where a record is

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
from winkfs.units import MICRO, NANO

Progress = Callable[[int], None]
Ids = npt.NDArray[Any]
"""int64[n] where ids are numbers, else their text: S[n]."""
MODE = 0o644
MANY = 1 << 13  # records at a time
MUCH = 4 << 20  # bytes of their bodies, about
OF_KIND: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int64": int, "string": str, "timestamp": lambda ns: EPOCH + ns // MICRO * MICROSECOND,
}  # fmt: skip


@contextlib.contextmanager
def building(target: str, kind: str) -> Iterator[str]:
    """Have a new store of a kind made as TARGET.partial, the folder yielded, which becomes `target`
    when the block ends well.

    raises  FileExists where something is in the target; OSError
    What a killed run has left as TARGET.partial is replaced.
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
    """A record: `size` bytes of its body; `offset` of the record in `file`, a path relative to the
    store; how many hold it, where references are counted; values of columns that this kind of store
    has of its own, times in nanoseconds since the epoch."""

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
    """What is known of a record, by column."""
    return row._asdict() | dict(row.facts or {})


def batches(rows: Iterable[Row], size: int = MUCH) -> Iterator[list[Row]]:
    """Rows, MANY at most at a time, with bodies of so many bytes; a larger one is alone."""
    return batched(rows, attrgetter("size"), size, MANY)


class Records(Reader):
    """A store of records. The id of a record is text here: hexadecimal or decimal digits.

    Reading needs no lock and goes on while another process writes: what is seen is as of the
    opening, and of `refresh`. With mode "a" there is one writer.
    """

    changed_by = "put"
    numbers: ClassVar[bool] = False
    """Whether ids are decimal numbers of 0 to 2**63 - 1; else hexadecimal digits, small letters."""
    counts: ClassVar[bool] = False
    """Whether references are counted: `Row.refs`."""
    elsewhere: ClassVar[str] = ""
    """How records come and go, where not by `put` and `remove`."""

    def __init__(self, base: str) -> None:
        super().__init__(base)
        self._mtimes: dict[str, int] = {}  # `refresh` clears it

    # --- to read ---

    @abstractmethod
    def rows(self, *parts: Part) -> Iterator[Row]:
        """The live records, of these parts or of all, in the order of the files and offsets.

        A part that is gone by now has none. Other calls may come between two records.

        raises  CorruptError
        """

    @abstractmethod
    def parts(self) -> list[Part]:
        """The files with records, for those who read them side by side."""

    @abstractmethod
    def row(self, id: str) -> Row:
        """Raises NoSuchFile; ValueError for what can be no id."""

    @abstractmethod
    def bodies(self, rows: Iterable[Row]) -> Iterator[bytes]:
        """Their bodies, in this order. Raises CorruptError; NoSuchFile for one that went since."""

    @abstractmethod
    def refresh(self) -> bool:
        """Follow the writer to what is durable, or was written, by now -> whether anything has
        changed since the last call, also where a read had to follow the writer before."""

    @abstractmethod
    def stats(self) -> Mapping[str, Any]:
        """Facts for people and JSON: bytes (those of live records), files, bytes that are dead,
        memory, ... Cost: little, also with many records."""

    # --- to write, with mode "a"; in the other mode, and where `elsewhere` is said, these raise
    # ReadOnly ---

    def put(self, id: str | None, body: bytes) -> str:
        """Add a record, or one more reference, or a new version -> its id; None: the next free."""
        raise self._refusal()

    def remove(self, id: str) -> None:
        """Remove a record, or one reference. Raises NoSuchFile."""
        raise self._refusal()

    def sync(self) -> None:
        """Return when all is durable."""
        raise self._refusal()

    def compact(
        self, progress: Progress | None = None, *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Reclaim space -> what was done, or with `dry_run` what would be. progress: bytes."""
        raise self._refusal()

    def _refusal(self) -> ReadOnly:
        return ReadOnly(self.elsewhere, self.base)

    # --- built on them, a store may have better ones: many at a time ---

    def listing(self) -> Iterator[tuple[Ids, Int64]]:
        """The ids of all live records, and their bytes, about; some at a time, in any order.

        A store that has them as arrays should say them so: mounts and Spark list all records.
        """
        rows = self.rows()
        while some := list(islice(rows, MANY)):
            ids: list[Any] = [row.id for row in some]
            kind = "i8" if self.numbers else "S"
            yield np.array(ids).astype(kind), np.array([row.size for row in some], np.int64)

    def find(self, ids: Iterable[str]) -> Iterator[Row]:
        """Those of these ids that are there, in their order; ids as `rows` has them."""
        for id in ids:
            try:
                yield self.row(id)
            except NoSuchFile:
                continue

    def contents(self, rows: Iterable[Row]) -> Iterator[tuple[Row, bytes | Exception]]:
        """Rows with their bodies, or with what is wrong with them; records that went are left out.

        Memory: what `bodies` needs, and the rows.
        """
        left = list(rows)
        at = 0
        while at < len(left):
            try:
                for body in self.bodies(left[at:]):
                    yield left[at], body
                    at += 1
            except (OSError, ValueError):  # of this one, or of one that is read together with it
                alone = left[at : at + MANY]
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
        """When this file was last written, as of the last `refresh`; 0: it is gone."""
        found = self._mtimes.get(file)
        if found is None:
            info = directory_of(self.base).info(file)
            found = self._mtimes[file] = 0 if info is None else int(info.mtime * NANO)
        return found

    def mtime_of(self, row: Row) -> int:
        """When a record was last written, as far as that is known: its file."""
        return self.mtime_ns(row.file)

    def __len__(self) -> int:
        return sum(1 for _ in self.rows())

    # --- built on them: files ---

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
        return {column: None if row[column] is None else OF_KIND[kind](row[column])
                for column, kind in self.columns.items()}  # fmt: skip

    def scan(
        self,
        since: float | None = None,
        until: float | None = None,
        prefix: Name = "",
        *,
        problem: Problem | None = None,
    ) -> Iterator[Entry]:
        begin = to_str(prefix)
        for row in self.rows():
            if row.id.startswith(begin):
                entry = self._entry(row)
                seconds = entry.mtime_ns / NANO
                if (since is None or since <= seconds) and (until is None or seconds < until):
                    yield entry

    def stat(self, name: Name) -> Entry:
        return self._entry(self.named(name))

    def named(self, name: Name) -> Row:
        """The record of a name, which is the id as the store itself writes it.

        raises  NoSuchFile, also for what can be no id
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
    """The records of a store that has a handle of its own kind, `store`."""

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

    mark  another file that has the name later has another one
    """

    file: str
    size: int
    first: int
    stop: int
    mark: int


class Arrivals(Records):
    """A store whose ids ascend in the order of arrival; no id is used again.

    `rows` are the records that wait to be read by somebody; `between` all that are there.
    """

    numbers = True

    @property
    @abstractmethod
    def next_id(self) -> int:
        """Above the ids of all records that are, or were, there; as of the last `refresh`."""

    @abstractmethod
    def runs(self) -> list[Run]:
        """The files with records, the oldest first."""

    @abstractmethod
    def between(self, first: int, stop: int, lost: Callable[[str], object]) -> Iterator[Row]:
        """The records with ids in [first, stop), whoever has read them.

        lost  called with a line for ids of that range of which there is no record any more
        """
