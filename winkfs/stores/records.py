"""Stores of records with ids, such as message stores and LogStores: what is the same for all.

Records    such a store, open to read, or to write with mode "a"
Row        where a record is

As files the records have their ids as names; `winkfs ls`, `cat`, `verify`, mounts and Spark rows
work on them through `Reader`. `winkfs store` calls the rest.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from winkfs.container.entry import Entry
from winkfs.container.ondisk.inode import FileType
from winkfs.names import Name, to_str
from winkfs.reader import Problem, Reader
from winkfs.units import NANO

Progress = Callable[[int], None]
MODE = 0o644


class Row(NamedTuple):
    """A record: `size` bytes of its body; `offset` of the record in `file`, a path relative to the
    store; how many hold it, where references are counted."""

    id: str
    size: int
    file: str
    offset: int
    refs: int | None = None


class Part(NamedTuple):
    """A file of a store whose records can be read apart from others: relative path, bytes."""

    file: str
    size: int


class Records(Reader):
    """A store of records. The id of a record is text here: hexadecimal or decimal digits.

    Reading needs no lock and goes on while another process writes: what is seen is as of the
    opening, and of `refresh`. With mode "a" there is one writer.
    """

    changed_by = "put"

    # --- to read ---

    @abstractmethod
    def rows(self, part: Part | None = None) -> Iterator[Row]:
        """The live records, of one part or of all, in the order of the files and offsets.

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
    def mtime_ns(self, file: str) -> int:
        """When this file was last written."""

    @abstractmethod
    def refresh(self) -> bool:
        """Follow the writer to what is durable, or was written, by now -> whether that is more."""

    @abstractmethod
    def stats(self) -> Mapping[str, Any]:
        """Facts for people and JSON: records, bytes, files, those that are dead, memory, ..."""

    # --- to write, with mode "a"; in the other mode these raise ReadOnly ---

    @abstractmethod
    def put(self, id: str | None, body: bytes) -> str:
        """Add a record, or one more reference, or a new version -> its id; None: the next free."""

    @abstractmethod
    def remove(self, id: str) -> None:
        """Remove a record, or one reference. Raises NoSuchFile."""

    @abstractmethod
    def sync(self) -> None:
        """Return when all is durable."""

    @abstractmethod
    def compact(
        self, progress: Progress | None = None, *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Reclaim space -> what was done, or with `dry_run` what would be. progress: bytes."""

    # --- built on them: files ---

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
        return self._entry(self.row(to_str(name)))

    def _entry(self, row: Row) -> Entry:
        mtime = self.mtime_ns(row.file)

        def read() -> bytes:
            return next(iter(self.bodies([row])))

        return Entry(row.id, 0, row.size, mtime, FileType.FILE, MODE, 0, 0, mtime, read)

    def read(self, name: Name, offset: int = 0, size: int = -1) -> bytes:
        body = next(iter(self.bodies([self.row(to_str(name))])))
        return body[offset:] if size < 0 else body[offset : offset + size]
