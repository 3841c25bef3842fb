"""Dataset: the files of many containers, read and written by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from winkfs.access import close_at_end
from winkfs.container.bulk import Row
from winkfs.container.container import Container
from winkfs.container.ondisk.compressed import NONE, level_of
from winkfs.container.table import ALWAYS, FileTable, Times, joined
from winkfs.dataset.manifest import AsOf
from winkfs.dataset.manifest import create as create_log
from winkfs.dataset.reading import DatasetReading, checked
from winkfs.dataset.records import union
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.transaction import Transaction, begin
from winkfs.entry import Entry, FileType
from winkfs.errors import Busy, DatasetConflict, FileExists, NoSuchFile, NotAllowed, ReadOnly
from winkfs.names import Name, to_bytes, to_str
from winkfs.pythonic.writer import Writer
from winkfs.reader import Problem
from winkfs.units import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Data

    from winkfs.dataset.compaction import Rewritten

WHOLE_FILES_ONLY = "a data set takes whole files only: put the file anew"


def create(
    path: str | os.PathLike[str], *, ao: bool | None = None, compress: str | None = None
) -> Dataset:
    """Create an empty data set, or use the existing one, and open it for writing: see `open`."""
    level_of(compress or NONE)  # raises before anything is created
    return Dataset(create_log(path).root, "a", ao=ao, compress=compress)


def open(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    as_of: AsOf = None,
    ao: bool | None = None,
    compress: str | None = None,
) -> Dataset:
    """Open a data set: "r" to read, "a" to read and write.

    as_of     a generation, or a time: the newest generation up to then; see `parse_as_of`
    ao        whether new shards are append-only containers; None: if all existing shards are
    compress  compression of new shards: see `winkfs.create`; None: as the last compressed shard
    raises    NoSuchFile; StalePlan (vacuumed); ValueError; FormatError. If the newest manifest is
              damaged, writing raises it, and reading opens the generation before: see `notes`
    """
    if mode not in ("r", "a"):
        raise ValueError(f"mode must be 'r' or 'a', not {mode!r}")
    if mode == "a" and as_of not in (None, ""):
        raise ValueError("as_of is for reading: an older generation cannot be written to")
    return Dataset(path, mode, as_of=as_of, ao=ao, compress=compress)


class Dataset(DatasetReading, Writer):
    """An open data set, for any number of writers and readers in processes of their own.

    `sync` or `close` publishes all changes as one shard and one generation, atomically; before that
    only this handle sees them. A `with` block that ends with an exception discards the changes.
    """

    drops_on_exception: Final = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str = "r",
        *,
        as_of: AsOf = None,
        ao: bool | None = None,
        compress: str | None = None,
    ) -> None:
        level_of(compress or NONE)
        super().__init__(path, as_of, newest=mode == "a")
        self._mode, self._compress = mode, compress
        self._made_ao = self.ao if ao is None else ao
        self._transaction: Transaction | None = None
        self._writer: ShardWriter | None = None
        self._decided: int | None = None  # see `expect_unchanged`
        if mode == "a":
            close_at_end(self, self.base, self._lock)

    @property
    def writable(self) -> bool:
        return self._mode == "a"

    @property
    def closed(self) -> bool:
        return self._closed

    def after_fork(self) -> None:
        """Leave the unpublished changes to the parent process."""
        super().after_fork()
        self._transaction = self._writer = None

    # --- the end of changes ---

    def sync(self) -> int:
        """Publish the changes -> the generation, which readers see when they open or refresh.

        raises  OSError: the changes may not be durable. Call sync again: until it succeeds nothing
                can be added. If the disk has lost what was put, each call raises: `abort`, and put
                it again. DatasetConflict: a concurrent commit added a column with a different type
                or spelling; the changes are discarded
        """
        with self._lock:
            self._check()
            if self._writer is None or self._transaction is None:
                return self.generation
            self._writer.container.check_idle()
            if self._writer.empty and self.columns == super().columns:
                self.abort()
                return self.generation
            record = self._writer.finish()
            try:
                generation = self._transaction.commit([record], since=self._decided)
            except DatasetConflict:  # the commit has removed all files of the job
                self.abort()
                raise
            self._writer = self._transaction = None
            if self._decided is not None:  # its own commit is no conflict with the next one
                self._decided = generation
            self._switch(generation)
            return generation

    def compact(
        self,
        *,
        shard_size: int = 1 << 30,
        everything: bool = False,
        jobs: int | None = None,
        compress: str | None = None,
    ) -> Rewritten:
        """Sync, and join small shards into shards of about `shard_size` bytes: see
        `winkfs.dataset.compaction.compact`. Afterwards the handle reads the new ones."""
        from winkfs.dataset.compaction import compact

        with self._lock:
            self.sync()
            done = compact(
                self.base, shard_size=shard_size, everything=everything, jobs=jobs,
                compress=compress,
            )  # fmt: skip
            self._switch(done.generation)
            return done

    def expect_unchanged(self) -> None:
        """Make `sync` raise DatasetConflict if another commit after this generation puts or deletes
        one of the files that are changed from now on."""
        with self._lock:
            self._decided = self.generation

    def abort(self) -> None:
        """Discard the changes since the last sync."""
        with self._lock:
            if self._writer is not None:
                self._writer.container.check_idle()
                self._writer.abandon()
            if self._transaction is not None:
                self._transaction.abort()
            self._writer = self._transaction = None

    def close(self) -> None:
        """Sync, and close the containers. Idempotent."""
        with self._lock:
            if self._closed:
                return
            try:
                if not self._forked:
                    self.sync()
            finally:
                try:
                    self.abort()
                except Busy:  # a call of this handle goes on
                    raise
                except BaseException:
                    super().close()
                    raise
                super().close()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is not None:
                self.abort()
        finally:
            self.close()

    def _open_writer(self) -> ShardWriter:
        self._check()
        if not self.writable:
            raise ReadOnly("opened for reading: open it with mode 'a' to write", self.base)
        if self._writer is None:
            self._transaction = begin(self.base, log=self._log)
            settings = {"ao": self._made_ao, "columns": self.columns, "compress": self._compress}
            try:
                self._writer = ShardWriter(self._transaction, "00000", **settings)
            except BaseException:
                self.abort()
                raise
        self._writer.container.check_idle()
        self._writer.check()
        return self._writer

    # --- columns ---

    @property
    def columns(self) -> dict[str, str]:
        """The columns that files can have, with those not published yet."""
        with self._lock:
            if self._writer is None:
                return super().columns
            return union([super().columns, self._writer.container.columns])

    def add_columns(self, columns: Mapping[str, str]) -> None:
        """Add columns that files can have: see `Container.add_columns`. The next `sync` publishes
        them, in a shard without files if none are put."""
        with self._lock:
            self._open_writer().container.add_columns(columns)

    # --- whole files ---

    def put(
        self,
        name: Name,
        data: Data,
        mtime: Time | None = None,
        ftype: int = FileType.FILE,
        exclusive: bool = False,
        **attributes: Any,
    ) -> None:
        """Create or replace a file with this content: see `Container.put`."""
        with self._lock:
            writer = self._open_writer()
            if exclusive and name in self:
                raise FileExists("exists already", to_str(name))
            writer.container.put(name, data, mtime, ftype, **attributes)

    def put_many(self, files: Iterable[tuple[Any, ...]]) -> int:
        """Create or replace many files: see `Container.put_many`."""
        with self._lock:
            return self._open_writer().container.put_many(files)

    def put_batch(self, batch: Any) -> int:
        """Create or replace the files of an Arrow batch: see `Container.put_batch`."""
        with self._lock:
            return self._open_writer().container.put_batch(batch)

    def put_rows(self, rows: Iterable[Row]) -> int:
        """Create or replace many files with all their metadata -> number of files."""
        with self._lock:
            return self._open_writer().container.put_rows(rows)

    def put_file(self, name: Name, source: Any, **attributes: Any) -> int:
        """Create or replace a file from `source.read` -> bytes: see `Container.put_file`."""
        with self._lock:
            return self._open_writer().container.put_file(name, source, **attributes)

    def check_writable(
        self, name: Name, columns: Mapping[str, Any] | None = None, *, append: bool = False
    ) -> None:
        with self._lock:
            self._open_writer().container.check_writable(name, columns)
            if append:
                self._whole_only()

    def locked(self) -> AbstractContextManager[object]:
        return self._lock

    def mkdir(self, name: Name) -> None:
        """Create an entry for a directory. Directories also exist through the names below them."""
        self.put(to_bytes(name).rstrip(b"/"), b"", ftype=FileType.DIR, exclusive=True)

    def symlink(self, target: Name, name: Name) -> None:
        """Create a symbolic link `name` that points to `target`."""
        self.put(name, to_bytes(target), ftype=FileType.LINK, exclusive=True)

    # --- names ---

    def delete(self, name: Name) -> None:
        """Remove a file. Raises FileNotFoundError."""
        raw = checked(name)
        with self._lock:
            writer = self._open_writer()
            older = raw not in writer.gone and self._handles.find(raw) >= 0
            if raw in writer.container:
                writer.container.delete(raw)
            elif not older:
                raise NoSuchFile("no such file in the data set", to_str(raw))
            if older:
                writer.gone.add(raw)

    def rename(self, old: Name, new: Name) -> None:
        """Rename a file, replacing a file of the new name; a published file is copied."""
        with self._lock:
            writer = self._open_writer()
            source, target = checked(old), checked(new)
            if source == target:
                self.stat(source)
            elif source in writer.container:
                writer.container.rename(source, target)
                if source not in writer.gone and self._handles.find(source) >= 0:
                    writer.gone.add(source)
            else:
                writer.copy(self._home(source), source, target)
                self.delete(source)

    def _whole_only(self, *_: Any, **__: Any) -> NoReturn:
        """Raise PermissionError: a file of a data set can only be replaced as a whole."""
        raise NotAllowed(WHOLE_FILES_ONLY, self.base)

    append = write = write_many = punch = truncate = _whole_only
    utime = chmod = chown = setxattrs = _whole_only

    # --- reading, with unpublished changes ---

    def _home(self, name: Name) -> Container:
        writer, raw = self._writer, checked(name)
        if writer is not None:
            self._check()
            if raw in writer.container:
                return writer.container
            if raw in writer.gone:
                raise NoSuchFile("no such file in the data set", to_str(raw))
        return super()._home(raw)

    def _get(self, names: list[bytes]) -> tuple[list[bytes], bytes | None]:
        if self._writer is None:
            return super()._get(names)
        found: list[bytes] = []
        for name in names:
            try:
                found.append(self._home(name).read(name))
            except NoSuchFile:
                return found, name
        return found, None

    def __contains__(self, name: object) -> bool:
        with self._lock:
            writer = self._writer
            if writer is None or not isinstance(name, str | bytes | os.PathLike):
                return super().__contains__(name)
            if name in writer.container:
                return True
            return to_bytes(name) not in writer.gone and super().__contains__(name)

    def __len__(self) -> int:
        with self._lock:
            if self._writer is None:
                return super().__len__()
            own = {to_bytes(name) for name in self._writer.container.names()}
            over = [name for name in own if self._handles.find(name) >= 0]
            return super().__len__() + len(own) - len(self._writer.gone | set(over))

    def scan(
        self,
        since: Time | None = None,
        until: Time | None = None,
        prefix: Name = "",
        *,
        where: str | None = None,
        problem: Problem | None = None,
    ) -> Iterator[Entry]:
        """Yield the files, shard by shard in disk order, as of the call: see `Container.scan`."""
        with self._lock:
            found = super().scan(since, until, prefix, where=where, problem=problem)
            if self._writer is None:
                return found
            own = set(self._writer.container.names())
            gone = own | set(map(to_str, self._writer.gone))
            rest = self._writer.container.scan(since, until, prefix, where=where, problem=problem)
        return chain((entry for entry in found if entry.name not in gone), rest)

    def rows(
        self,
        prefix: bytes,
        problem: Problem | None,
        times: Times = ALWAYS,
        where: str | None = None,
        columns: Sequence[str] = (),
        start: bytes = b"",
        at_once: int | None = None,
    ) -> Iterator[FileTable] | None:
        """Return as `DatasetReading.rows`, with unpublished changes."""
        with self._lock:
            found = super().rows(prefix, problem, times, where, columns, start, at_once)
            if self._writer is None or found is None:
                return found
            own, gone, schema = self._writer.container, set(self._writer.gone), self.columns
            gone.update(name for rows in own.rows(prefix, problem, start=start)
                        for name in rows.names)  # fmt: skip
            rest = own.rows(prefix, problem, times, where, columns, schema, start, at_once)
            owner = own.store.owner
        return joined([_without(gone, found), (rows.owned(owner) for rows in rest)])


def _without(gone: Set[bytes], found: Iterator[FileTable]) -> Iterator[FileTable]:
    """Yield rows without those of some names."""
    for rows in found:
        kept = np.array([name not in gone for name in rows.names], np.bool_)
        yield rows if kept.all() else rows.take(kept)
