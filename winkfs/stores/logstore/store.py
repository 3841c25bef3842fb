"""LogStore: recid -> record, in an append-only log, with transactions, snapshots and compaction.

with LogStore.create("records") as store:
    recid = store.put(b"body")
    store.commit()                      # durable when it returns
    with store.begin() as transaction:  # for threads, one each
        transaction.update(recid, b"other")
    with store.snapshot() as snapshot:
        snapshot.get(recid)
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final, Self

import numpy as np

from winkformats.arrays import Int64
from winkformats.closing import Closing
from winkformats.logstore.entry import HEAD, LENGTH, PART, RECORD, Entries
from winkformats.logstore.layout import Layout
from winkfs.container.ondisk.lock import WriterLock
from winkfs.errors import Closed, CorruptError, FormatError, NoSuchFile
from winkfs.stores.batches import runs
from winkfs.stores.handle import StoreHandle
from winkfs.stores.logstore.files import Files, create, is_store
from winkfs.stores.logstore.log import Log
from winkfs.stores.logstore.table import View
from winkfs.stores.logstore.transaction import Body, Commits, Transaction, as_recids
from winkfs.units import as_int, span_ns

READ_ATTEMPTS: Final = 16  # reads of a record that compactions move
GAP_BYTES: Final = 4 << 10  # bytes between two records from which on each has its own read
RUN_BYTES: Final = 1 << 20  # approximate bytes of one read


class Lookups(ABC):
    """Reading of records: as of the newest commits, or of a snapshot."""

    _log: Log

    @abstractmethod
    def _view(self) -> View:
        """Return all records. Raises Closed."""

    def _look(self, recid: int) -> tuple[int, int]:
        """Return position and length; position 0: there is no record."""
        return self._view().get(recid)

    @abstractmethod
    def _again(self) -> None:
        """Follow the writer, since a record is not where it was."""

    def get(self, recid: int) -> bytes | None:
        """Return the body of a record; None: it is null, as a preallocated one is.

        raises  NoSuchFile; CorruptError if a checksum is wrong; OSError
        cost    one read of exactly its bytes
        """
        if type(recid) is not int:
            recid = as_int(recid, "a recid")
        before, attempts_left = (0, 0), READ_ATTEMPTS
        while (found := self._look(recid))[0]:
            attempts_left -= 1
            try:
                return self._log.read(recid, *found)
            except CorruptError:
                if found == before or not attempts_left:
                    raise
            except FileNotFoundError as error:
                if found == before or not attempts_left:
                    raise CorruptError(
                        f"a file that has record {recid} is missing",
                        file=str(error.filename), offset=0,
                    ) from None  # fmt: skip
            before = found
            self._again()
        raise NoSuchFile(f"no record {recid}", self._log.files.path)

    def get_many(self, recids: Sequence[int] | Int64) -> list[bytes | None]:
        """Return the bodies of many records, in their order. Raises as `get` does.

        cost    one read for records that are close together
        """
        found = self._view().get_many(as_recids(recids))
        order = np.argsort(found.positions, kind="stable")
        found = found.take(order)
        lengths = found.lengths & LENGTH
        columns = found.recids.tolist(), found.positions.tolist(), lengths.tolist()
        read: list[bytes | None] = []
        for start, stop in self._runs(found, lengths) if len(lengths) else ():
            if stop - start == 1:
                read.append(self.get(columns[0][start]))
            else:
                read += self._read_run(*(column[start:stop] for column in columns))
        bodies: list[bytes | None] = [None] * len(read)
        for place, body in zip(order.tolist(), read, strict=True):
            bodies[place] = body
        return bodies

    def _runs(self, found: Entries, lengths: Int64) -> Iterator[tuple[int, int]]:
        """Return runs [start, stop) of records, sorted by position, that one read takes."""
        bits = self._log.layout.offset_bits
        begin = (found.positions & np.uint64((1 << bits) - 1)).astype(np.int64)
        files = found.positions >> np.uint64(bits)
        first, stop = runs(files, begin, lengths, gap=GAP_BYTES, length=RUN_BYTES)
        return zip(first.tolist(), stop.tolist(), strict=True)

    def _read_run(
        self, recids: list[int], positions: list[int], lengths: list[int]
    ) -> Iterator[bytes | None]:
        number, start = self._log.layout.split(positions[0])
        try:
            handle = self._log.files.handle(number)
            data = handle.storage.read(start, positions[-1] - positions[0] + lengths[-1])
        except FileNotFoundError:
            data = b""
        pack, crc32, part, last, head = HEAD.pack, zlib.crc32, PART.size, len(data), HEAD.size
        first = positions[0]
        for recid, position, length in zip(recids, positions, lengths, strict=True):
            at = position - first
            stop = at + length
            if stop <= last:
                body = data[at + head : stop]
                checksum = crc32(body, crc32(data[at : at + part]))
                if data[at : at + head] == pack(RECORD, length - head, recid, checksum):
                    yield body
                    continue
            yield self.get(recid)  # null, a blob, moved, or damaged

    def __contains__(self, recid: object) -> bool:
        return isinstance(recid, int) and self._look(recid)[0] != 0

    def __len__(self) -> int:
        return len(self._view())

    def __iter__(self) -> Iterator[int]:
        """Iterate as `recids`."""
        return self.recids()

    def __bool__(self) -> bool:
        """Return True, also for an empty store."""
        return True

    def recids(self) -> Iterator[int]:
        """Yield the recids of all records, ascending, as of the call."""
        for some in self._view().parts():
            yield from some.recids.tolist()


class Snapshot(Lookups, Closing):
    """Records as of its creation, whatever is committed or compacted afterwards.

    The files that it needs are kept until it is closed or no reference to it is left.
    """

    def __init__(self, log: Log) -> None:
        self._log, self._is_open, self._seen = log, True, log.table.view()

    def _view(self) -> View:
        if not self._is_open:
            raise Closed("the snapshot is closed", self._log.files.path)
        return self._seen

    def _again(self) -> None:
        """Do nothing: the files of a snapshot stay."""

    def close(self) -> None:
        """Idempotent."""
        if self._is_open:
            self._is_open = False
            self._log.table.close(self._seen)


class LogStore(Lookups, StoreHandle):
    """A store of records, open to read ("r") or to write ("a").

    There is one writer, which holds a lock; its threads read and write concurrently, each with a
    transaction from `begin`. The writing methods of the store belong to one transaction that all
    threads share; `commit`, `close` (which commits) and `rollback` end it. Readers in other
    processes need no lock: they see what was committed when they opened the store, or called
    `refresh`.

    raises  NoSuchFile; Locked; CorruptError; Refusal (mode "a": synced bytes are damaged)
    cost    reads the saved table, 12 bytes a recid, and the log from there on
    """

    _read_only = "the store is open for reading"

    def __init__(self, path: str, mode: str = "r") -> None:
        super().__init__(path, mode)
        self._access.ready = self.writable
        self._news = False  # whether a read has followed the writer
        self._own: Transaction | None = None
        if self.writable:  # `Files` raises if there is no store
            self._keep_lock(WriterLock(path, (Files(path).root, "store")))
        self._open_by(self._begin)

    def _begin(self) -> None:
        self._log = Log(self.path)
        self._closing.callback(self._log.close)
        self._commits = Commits(self._log, self._access)

    @classmethod
    def create(
        cls,
        path: str,
        *,
        file_size: int = 128 << 20,
        cutoff: int = 64 << 10,
        save_every: int = 8,
        file_bits: int | None = None,
        generation_bits: int = 16,
        exist_ok: bool = False,
    ) -> Self:
        """Create an empty store, and open it to write.

        file_size        maximum bytes of a data file; up to 2 GiB
        cutoff           bytes of a body above which it gets a file of its own
        save_every       data files after which the table is saved
        file_bits        bits of a file number; None: 64 minus those of an offset
        generation_bits  bits of the generation in a file number
        exist_ok         whether an existing store is opened as it is
        raises           FileExists; ValueError for numbers that do not fit together
        """
        for what, number in (
            ("file_size", file_size), ("cutoff", cutoff), ("save_every", save_every),
            ("generation_bits", generation_bits), ("file_bits", file_bits or 0),
        ):  # fmt: skip
            as_int(number, what, 0)
        layout = Layout.new(
            file_size, cutoff, save_every, file_bits=file_bits, generation_bits=generation_bits
        )
        if not (exist_ok and is_store(path)):
            create(path, layout)
        return cls(path, "a")

    # --- to read ---

    def _look(self, recid: int) -> tuple[int, int]:
        arrays = self._log.table.arrays
        if 0 < recid < arrays.recids:
            return arrays.one_position[recid], arrays.one_length[recid]
        self._access.check_open()
        return 0, 0

    def _view(self) -> View:
        self._access.check_open()
        return self._log.table.view()

    def _again(self) -> None:
        if self.writable:  # wait for a change: both columns of the table are new then
            with self._log.write_lock:
                return
        self._news = self.refresh()

    def snapshot(self) -> Snapshot:
        """Return the records as of now. Takes no lock.

        cost  none at first; then memory: 48 KiB for each page of 4,096 recids that changes
        """
        self._access.check_open()
        return Snapshot(self._log)

    def refresh(self) -> bool:
        """Follow the writer, in mode "r"; return whether anything is new since the last call,
        including commits that a read has already followed. Raises CorruptError."""
        with self._lock:
            news, self._news = self._news, False
            return (not self.writable and self._log.refresh()) or news

    @property
    def problems(self) -> list[str]:
        """Damage of synced bytes, a line each."""
        return list(self._log.problems)

    @property
    def notes(self) -> list[str]:
        """Events without loss, a line each, such as unsynced bytes that were cut off."""
        return list(self._log.notes)

    # --- to write ---

    def begin(self) -> Transaction:
        """Begin a transaction, for one thread."""
        self._commits.check()
        return Transaction(self, self._commits)

    def _mine(self) -> Transaction:
        if self._own is None:
            self._own = self.begin()
        return self._own

    def put(self, body: Body) -> int:
        """See `Transaction.put`; so the other methods here."""
        with self._lock:
            return self._mine().put(body)

    def put_many(self, bodies: Iterable[Body]) -> list[int]:
        with self._lock:
            return self._mine().put_many(bodies)

    def preallocate(self, count: int = 1) -> list[int]:
        with self._lock:
            return self._mine().preallocate(count)

    def update(self, recid: int, body: Body) -> None:
        with self._lock:
            self._mine().update(recid, body)

    def update_many(self, recids: Sequence[int] | Int64, bodies: Iterable[Body]) -> None:
        with self._lock:
            self._mine().update_many(recids, bodies)

    def delete(self, recid: int) -> None:
        with self._lock:
            self._mine().delete(recid)

    def compare_and_swap(self, recid: int, expected: Body, body: Body) -> bool:
        with self._lock:
            return self._mine().compare_and_swap(recid, expected, body)

    def commit(self, *, sync: bool = True) -> None:
        """Commit the shared transaction. With `sync` all earlier commits are durable, too, even if
        there is nothing to commit."""
        with self._lock:
            mine = self._mine()
            try:
                mine.commit(sync=sync)
            finally:
                if mine.ended:
                    self._own = None

    def rollback(self) -> None:
        with self._lock:
            if self._own is not None:
                self._own.rollback()
                self._own = None

    # --- compaction ---

    def compact(
        self,
        progress: Callable[[int], None] | None = None,
        *,
        dry_run: bool = False,
        least: float = 0.5,
        oldest: bool = False,
    ) -> dict[str, Any]:
        """Move the live records out of data files that are mostly dead, and remove these files.

        Readers and writers go on meanwhile, also in other threads.

        progress  called with the bytes that have been processed
        dry_run   only return what would be done
        least     fraction of a file that must be dead for it to be compacted
        oldest    whether all files of the oldest generation are compacted, too
        ->        files, bytes (of these files), moved (bytes), freed (bytes)
        raises    OSError
        """
        return self._commits.compact(progress, dry_run, least, oldest)

    def start_compaction(self, seconds: float = 10.0, *, least: float = 0.5) -> None:
        """Compact in a thread, every `seconds` seconds, until the store is closed."""
        self._commits.check()
        span_ns(seconds, "seconds", zero=False)

        def run() -> bool:
            try:
                self.compact(least=least)
            except (OSError, FormatError) as error:
                self._log.notes.append(f"compaction: {error}")
                return True
            return False

        self._access.repeat(run, seconds, "compaction")

    # --- the end ---

    def _finish(self) -> None:
        """Commit the shared transaction, make all commits durable, save the table.

        Open transactions of `begin` are dropped. Raises OSError of a commit, which is lost then, or
        of a sync.
        """
        if not self._log.failed:
            with ExitStack() as stack:  # each is called, also where another one fails
                stack.callback(self._end_log)
                stack.callback(self.rollback)
                self.commit(sync=False)

    def _end_log(self) -> None:
        log = self._log
        if log.failed:
            return
        log.sync()
        with self._commits.compacting:
            self._commits.sweep()
        with log.write_lock:
            if log.saved_at != log.layout.position(log.number, log.end):
                log.plan_save()
        log.save_planned()
