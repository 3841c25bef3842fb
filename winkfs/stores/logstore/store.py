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

import contextlib
import errno
import threading
import time
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

import numpy as np

from winkformats.arrays import Int64
from winkformats.closing import Closing
from winkformats.errors import CorruptError, FormatError
from winkformats.logstore import entry
from winkformats.logstore.entry import (
    HEAD,
    IS_BLOB,
    IS_NULL,
    LENGTH,
    PART,
    RECIDS,
    RECORD,
    Blob,
    Entries,
)
from winkformats.logstore.layout import Layout
from winkfs.container.ondisk.lock import WriterLock
from winkfs.errors import Closed, NoSuchFile, Refusal
from winkfs.stores.handle import StoreHandle
from winkfs.stores.logstore.compact import compact, remove
from winkfs.stores.logstore.files import Files, create, is_store
from winkfs.stores.logstore.log import Batch, Full, Log
from winkfs.stores.logstore.table import View
from winkfs.units import as_content, as_int, span_ns

TRIES: Final = 16  # of a read beside a compaction
GAP: Final = 4 << 10  # bytes between two records up to which they are read at once
RUN: Final = 1 << 20  # bytes that are read at once
FREED: Final = 1 << 20  # recids without a record that are known from the opening on
PATIENCE: Final = 5.0  # seconds that a commit waits for snapshots, where no file number is left
DELETED: Final = object()
Body = bytes | bytearray | memoryview | None


class Conflict(Refusal):
    """Another transaction that has not ended changes the record."""

    number = errno.EBUSY


class Lookups(ABC):
    """What can be read: of the newest commits, or of a snapshot."""

    _log: Log

    @abstractmethod
    def _look(self, recid: int) -> tuple[int, int]:
        """-> position, length."""

    @abstractmethod
    def _look_many(self, recids: Int64) -> Entries: ...

    @abstractmethod
    def _again(self) -> None:
        """Asked where a record is not where it was."""

    @abstractmethod
    def _view(self) -> View:
        """All records."""

    def get(self, recid: int) -> bytes | None:
        """The body of a record; None: it is null, as a preallocated one is.

        raises  NoSuchFile; CorruptError where a checksum is wrong; OSError
        cost    one read, of its bytes alone
        """
        if type(recid) is not int:
            recid = as_int(recid, "a recid")
        before, left = (0, 0), TRIES
        while (found := self._look(recid))[0]:
            left -= 1
            try:
                return self._log.read(recid, *found)
            except CorruptError:
                if found == before or not left:
                    raise
            except FileNotFoundError as error:
                if found == before or not left:
                    what = f"a file that has record {recid} is missing"
                    raise CorruptError(what, file=str(error.filename), offset=0) from None
            before = found
            self._again()
        raise NoSuchFile(f"no record {recid}", self._log.files.path)

    def get_many(self, recids: Sequence[int] | Int64) -> list[bytes | None]:
        """The bodies of many, in their order. Raises as `get` does.

        cost    records that lie close together are read at once
        """
        wanted = as_recids(recids)
        found = self._look_many(wanted)
        order = np.argsort(found.positions, kind="stable")
        found = found.take(order)
        lengths = found.lengths & LENGTH
        columns = found.recids.tolist(), found.positions.tolist(), lengths.tolist()
        read: list[bytes | None] = []
        for start, stop in self._runs(found, lengths):
            if stop - start == 1:
                read.append(self.get(columns[0][start]))
            else:
                read += self._read_run(*(column[start:stop] for column in columns))
        bodies: list[bytes | None] = [None] * len(read)
        for place, body in zip(order.tolist(), read, strict=True):
            bodies[place] = body
        return bodies

    def _runs(self, found: Entries, lengths: Int64) -> Iterator[tuple[int, int]]:
        """Cut what is sorted by position where a read ends."""
        if not len(lengths):
            return iter(())
        bits = self._log.layout.offset_bits
        begin = (found.positions & np.uint64((1 << bits) - 1)).astype(np.int64)
        stop = begin + lengths
        files = found.positions >> np.uint64(bits)
        far = (begin[1:] > stop[:-1] + GAP) | (files[1:] != files[:-1])
        far |= begin[1:] // RUN != begin[:-1] // RUN
        far |= found.positions[:-1] == 0
        ends = [*(np.flatnonzero(far) + 1).tolist(), len(begin)]
        return zip([0, *ends[:-1]], ends, strict=True)

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
        """As `recids`."""
        return self.recids()

    def __bool__(self) -> bool:
        """True, also of an empty store."""
        return True

    def recids(self) -> Iterator[int]:
        """Of all records, ascending, as of the call."""
        for some in self._view().parts():
            yield from some.recids.tolist()


def as_recids(recids: Sequence[int] | Int64) -> Int64:
    """int64[n]. Raises TypeError for what are no ints: numpy would read texts and cut floats."""
    if isinstance(recids, bytes | bytearray | memoryview):  # a sequence of ints, but no recids
        raise TypeError(f"recids are ints, not {type(recids).__name__}")
    found = np.asarray(recids)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise TypeError("recids are ints")
    return found.astype(np.int64, copy=False)


class Snapshot(Lookups, Closing):
    """The records as of its making, whatever is committed or compacted since.

    Files that it needs are removed when it is closed, or nobody refers to it any more.
    """

    def __init__(self, store: LogStore) -> None:
        self._store, self._log = store, store._log
        self._is_open, self._seen = True, store._log.table.view()

    def _look(self, recid: int) -> tuple[int, int]:
        self._check()
        return self._seen.get(recid)

    def _look_many(self, recids: Int64) -> Entries:
        self._check()
        return self._seen.get_many(recids)

    def _view(self) -> View:
        self._check()
        return self._seen

    def _again(self) -> None:
        """Its files stay."""

    def _check(self) -> None:
        if not self._is_open:
            raise Closed("the snapshot is closed", self._log.files.path)

    def close(self) -> None:
        """Idempotent."""
        if self._is_open:
            self._is_open = False
            self._log.table.close(self._seen)


class Transaction:
    """Changes that become visible, and durable, at once or not at all. For one thread.

    A record that is changed belongs to the transaction up to its end: others that would change it
    raise Conflict at once. Leaving a `with` block commits, with sync, or after an exception rolls
    back. Memory: the bodies up to the cut-off for blobs, until the commit.
    """

    def __init__(self, store: LogStore) -> None:
        self._store, self._log = store, store._log
        self._writes: dict[int, Any] = {}  # bytes, None, Blob or DELETED
        self._new: list[int] = []  # recids of this transaction
        self._owned: list[int] = []
        self._token = object()  # of its records; a reference to itself would keep it
        self._blobs: list[Blob] = []
        self.epoch = store._recids.begin(self)
        self._state = ""

    def _check(self) -> None:
        if self._state:
            raise Closed(f"the transaction is {self._state}", self._log.files.path)
        self._store._check_writable()

    # --- to read ---

    def get(self, recid: int) -> bytes | None:
        """As of the newest commits, and of this transaction's own changes. See `LogStore.get`."""
        if type(recid) is not int or recid not in self._writes:
            return self._store.get(recid)
        found = self._writes[recid]
        if found is DELETED:
            raise NoSuchFile(f"no record {recid}", self._log.files.path)
        if isinstance(found, Blob):
            return self._log.files.read_blob(found)
        return cast("bytes | None", found)

    # --- to write ---

    def _take(self, body: Body) -> Any:
        if body is None:
            return None
        data = body if type(body) is bytes else as_content(body, "a record")
        if len(data) <= self._log.layout.cutoff:
            return data
        blob = self._log.files.write_blob(self._log.new_blob(), data)
        self._blobs.append(blob)
        return blob

    def put(self, body: Body) -> int:
        """Add a record -> its recid, which may be one of a record that was deleted."""
        self._check()
        taken = self._take(body)
        recid = self._store._recids.take()
        self._new.append(recid)
        self._writes[recid] = taken
        return recid

    def put_many(self, bodies: Iterable[Body]) -> list[int]:
        """Add many records -> their recids, in the order of the bodies."""
        self._check()
        values = list(bodies)
        cutoff = self._log.layout.cutoff
        if not all(type(value) is bytes and len(value) <= cutoff for value in values):
            values = [self._take(value) for value in values]
        recids = self._store._recids.take_many(len(values))
        self._new += recids
        self._writes.update(zip(recids, values, strict=True))
        return recids

    def preallocate(self, count: int = 1) -> list[int]:
        """Add records that are null -> their recids."""
        if as_int(count, "count", 0) >= RECIDS:
            raise Refusal(f"no recids for {count} records", self._log.files.path)
        return self.put_many(repeat(None, count))

    def restore(self, recid: int, body: Body) -> None:
        """Add a record that had this recid, to a store that has none of its own."""
        self._check()
        self._writes[recid] = self._take(body)

    def update(self, recid: int, body: Body) -> None:
        """Give a record another body. Raises NoSuchFile; Conflict."""
        self._check()
        self._own(recid)
        self._writes[recid] = self._take(body)

    def update_many(self, recids: Sequence[int] | Int64, bodies: Iterable[Body]) -> None:
        """The same of many; nothing is changed where one raises."""
        self._check()
        wanted = as_recids(recids).tolist()
        for recid in wanted:
            self._own(recid)
        self._writes.update(dict(zip(wanted, map(self._take, bodies), strict=True)))

    def delete(self, recid: int) -> None:
        """Raises NoSuchFile; Conflict."""
        self._check()
        self._own(recid)
        self._writes[recid] = DELETED

    def compare_and_swap(self, recid: int, expected: Body, body: Body) -> bool:
        """Give a record another body where it has the expected one -> whether it had."""
        self._check()
        self._own(recid)
        if self.get(recid) != (None if expected is None else as_content(expected, "a record")):
            return False
        self._writes[recid] = self._take(body)
        return True

    def _own(self, recid: int) -> None:
        if type(recid) is not int:
            recid = as_int(recid, "a recid")
        if recid in self._writes:
            if self._writes[recid] is DELETED:
                raise NoSuchFile(f"no record {recid}", self._log.files.path)
            return
        owners = self._store._owners
        if owners.setdefault(recid, self._token) is not self._token:
            raise Conflict(f"another transaction changes record {recid}", self._log.files.path)
        if recid not in self._store:
            del owners[recid]
            raise NoSuchFile(f"no record {recid}", self._log.files.path)
        self._owned.append(recid)

    # --- its end ---

    @property
    def ended(self) -> bool:
        return self._state != ""

    def commit(self, *, sync: bool = True) -> None:
        """Make the changes visible at once, and with `sync` durable.

        raises  OSError, Full: nothing is changed, and the transaction goes on; OSError of a sync:
                the handle writes nothing any more, and what it did not acknowledge may be lost
        """
        self._check()
        if self._writes:
            self._drop_blobs({id(value) for value in self._writes.values()})
            try:
                self._store._commit(self._batch(), bool(self._blobs), self._gone())
            except OSError:
                raise
            except BaseException:  # it may be in the log: nothing of it is given back
                self._end("interrupted", [])
                raise
        upto = self._log.written
        self._blobs = []
        self._end("committed", [])
        if sync:
            self._log.sync(upto)
        self._store._settle()

    def _drop_blobs(self, kept: Collection[int]) -> None:
        """Remove the files of blobs of this transaction other than those with these ids."""
        drop = [blob for blob in self._blobs if id(blob) not in kept]
        self._blobs = [blob for blob in self._blobs if id(blob) in kept]
        for blob in drop:
            self._log.files.blob.unlink(f"{blob.number:016x}")

    def _gone(self) -> list[int]:
        return [recid for recid, value in self._writes.items() if value is DELETED]

    def _batch(self) -> Batch:
        """Memory: once more the bodies."""
        parts: list[bytes] = []
        lengths: list[int] = []
        add, crc32, part = parts.append, zlib.crc32, PART.pack
        head, record, width = HEAD.pack, RECORD, HEAD.size
        for recid, body in self._writes.items():
            if type(body) is bytes:
                size = len(body)
                checksum = crc32(body, crc32(part(record, size, recid)))
                add(head(record, size, recid, checksum))
                add(body)
                lengths.append(width + size)
            elif body is None:
                add(entry.record(recid, None))
                lengths.append(width | IS_NULL)
            elif body is DELETED:
                add(entry.deletion(recid))
                lengths.append(0)
            else:
                add(body.encode(recid))
                lengths.append(entry.BLOB_HEAD.size | IS_BLOB)
        count = len(lengths)
        recids = np.fromiter(self._writes, np.int64, count)
        return Batch(recids, np.array(lengths, np.int64), b"".join(parts))

    def rollback(self) -> None:
        """Forget the changes. Idempotent, and after a commit without effect."""
        if not self._state:
            self._drop_blobs(())
            self._end("rolled back", self._new)

    def _end(self, state: str, unused: list[int]) -> None:
        self._state = state
        owners = self._store._owners
        for recid in self._owned:
            owners.pop(recid, None)
        self._store._recids.end(self, unused)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None and not self._state:
            try:
                self.commit()
            finally:
                self.rollback()
        else:
            self.rollback()

    def __del__(self) -> None:
        if getattr(self, "_state", "x") == "" and not self._store.closed:
            self.rollback()


class Recids:
    """Which recids are free. One of a deleted record is given away again when every transaction
    that may know it from before has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._next = 1
        self._freed: list[tuple[int, list[int]]] = []  # epoch, recids
        self._epoch = 0
        self._open: dict[int, int] = {}  # transaction -> epoch of its beginning

    def load(self, log: Log) -> None:
        """Find those without a record. Cost: 1 ns a recid."""
        table = log.table
        self._next = table.top
        found = np.empty(0, np.int64)
        for start in range(1, table.top, FREED):
            part = table.arrays.positions[start : min(start + FREED, table.top)]
            found = np.append(found, np.flatnonzero(part == 0) + start)
            if len(found) >= FREED:
                break
        self._free = found[:FREED][::-1].tolist()

    def begin(self, transaction: Transaction) -> int:
        with self._lock:
            self._open[id(transaction)] = self._epoch
            return self._epoch

    def end(self, transaction: Transaction, unused: list[int]) -> None:
        """unused: recids that no record got."""
        with self._lock:
            self._open.pop(id(transaction), None)
            self._free += unused

    def free(self, recids: list[int]) -> None:
        """These have been deleted."""
        with self._lock:
            self._epoch += 1
            self._freed.append((self._epoch, recids))

    def _refill(self) -> None:
        known = min(self._open.values(), default=self._epoch)
        while self._freed and self._freed[0][0] <= known:
            self._free += self._freed.pop(0)[1]

    def take(self) -> int:
        with self._lock:
            if not self._free and self._freed:
                self._refill()
            if self._free:
                return self._free.pop()
            return self._fresh(1)

    def _fresh(self, count: int) -> int:
        first, self._next = self._next, self._next + count
        if self._next > RECIDS:
            self._next = first
            raise Refusal(f"no recids left: all are less than {RECIDS}")
        return first

    def take_many(self, count: int) -> list[int]:
        with self._lock:
            self._refill()
            old = self._free[len(self._free) - min(count, len(self._free)) :]
            first = self._fresh(count - len(old))
            del self._free[len(self._free) - len(old) :]
            return [*old, *range(first, first + count - len(old))]


class Doomed(NamedTuple):
    """Files that nobody needs once these views are closed, and so much is synced."""

    views: list[weakref.ref[View]]
    synced: int
    remove: Callable[[], None]
    files: tuple[int, ...] = ()


class LogStore(Lookups, StoreHandle):
    """A store of records, open to read ("r") or to write ("a").

    One writer, which holds a lock; its threads read and write at once, each with a transaction of
    its own from `begin`. The methods that write here are those of one transaction that all threads
    share, which `commit` and `rollback` end. Readers in other processes need no lock: they see
    what was committed when they opened it, or called `refresh`.

    raises  NoSuchFile; Locked; CorruptError; Refusal (mode "a": what was synced is damaged)
    cost    the saved table is read, 12 bytes a recid, and the log from there on
    """

    _read_only = "the store is open for reading"

    def __init__(self, path: str, mode: str = "r") -> None:
        super().__init__(path, mode)
        self.mode = mode
        self._access.ready = self.writable
        self._news = False  # whether a read has followed the writer
        self._own: Transaction | None = None
        self._owners: dict[int, object] = {}
        self._recids = Recids()
        self._doomed: list[Doomed] = []
        self._dooming, self._compacting = threading.Lock(), threading.Lock()
        if self.writable:  # `Files` raises where there is none
            self._keep_lock(WriterLock(path, (Files(path).root, "store")))
        with self._opening():
            self._log = Log(path)
            self._closing.callback(self._log.close)
            if self.writable:
                self._log.start_writing()
                self._recids.load(self._log)

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
        """Make an empty store, and open it to write.

        file_size        bytes of a data file, at most; up to 2 GiB
        cutoff           bytes of a body above which it gets a file of its own
        save_every       data files after which the table is saved
        file_bits        bits of a file number; None: 64 less those of an offset
        generation_bits  of these, bits of the generation
        exist_ok         a store that is there stays as it is, and is opened
        raises           FileExists; ValueError for numbers that do not go together
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

    def _look_many(self, recids: Int64) -> Entries:
        return self._view().get_many(recids)

    def _view(self) -> View:
        self._access.check_open()
        return self._log.table.view()

    def _again(self) -> None:
        if self.mode == "r":
            self._news = self.refresh()
        else:  # behind a change that is under way both columns of the table are new
            with self._log.write_lock:
                pass

    def snapshot(self) -> Snapshot:
        """The records as of now. Takes no lock; cost: microseconds, then 48 KiB of memory for
        each 4,096 recids near which one changes."""
        self._access.check_open()
        return Snapshot(self)

    def refresh(self) -> bool:
        """Follow the writer, in mode "r" -> whether there was anything new since the last call; a
        read may have followed it, too. Raises CorruptError."""
        with self._lock:
            news, self._news = self._news, False
            return (self.mode == "r" and self._log.refresh()) or news

    @property
    def problems(self) -> list[str]:
        """Damage of what was synced, a line each."""
        return list(self._log.problems)

    @property
    def notes(self) -> list[str]:
        """What was cut off at the opening because it was not synced, and the like."""
        return list(self._log.notes)

    # --- to write ---

    def _check_writable(self) -> None:
        self._access.check_writable()
        self._log.check()

    def begin(self) -> Transaction:
        """A transaction, for one thread."""
        self._check_writable()
        return Transaction(self)

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
        """End the shared transaction. With `sync` all commits before are durable, too, also where
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

    def _commit(self, batch: Batch, blobs: bool, gone: list[int]) -> None:
        log = self._log
        if blobs:
            log.sure(log.files.blob.sync)
        for _ in range(log.layout.generations):
            with log.write_lock:
                try:
                    old = log.append(batch)
                except Full:
                    oldest = log.oldest
                else:
                    if (old.lengths & IS_BLOB).any():
                        self._doom_blobs(old)
                    break
            self._make_room(oldest)
        else:
            raise Full("no file numbers left for records that are live", self.path)
        if gone:
            self._recids.free(gone)

    def _make_room(self, oldest: int) -> None:
        """Free the oldest generation, if it still is this one. Raises Full."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with self._compacting:
                if self._log.oldest == oldest:
                    with contextlib.suppress(Full):
                        self._compact(None, False, 1.0, True)
                    self._sweep()
                if self._log.oldest != oldest:
                    return
                waits = bool(self._doomed)
            if not waits or time.monotonic() > deadline:
                raise Full("no file numbers left; close old snapshots", self.path)
            time.sleep(0.01)  # for the snapshots of other threads

    def _doom_blobs(self, old: Entries) -> None:
        """Have the files of blobs that were replaced removed."""
        log, which = self._log, np.flatnonzero(old.lengths & IS_BLOB)
        recids, positions = old.recids[which].tolist(), old.positions[which].tolist()
        for recid, position in zip(recids, positions, strict=True):
            with contextlib.suppress(OSError, FormatError):  # then the next opening finds it
                number = log.blob_at(recid, position).number
                self._doom(partial(log.files.blob.unlink, f"{number:016x}"))

    def _doom(self, remove: Callable[[], None], files: tuple[int, ...] = ()) -> None:
        refs = list(self._log.table._views.values())
        views = [ref for ref in refs if (view := ref()) is not None and view.needs_files]
        with self._dooming:
            self._doomed.append(Doomed(views, self._log.written, remove, files))

    def _sweep(self) -> None:
        """Remove the files that nobody needs any more."""
        if not self._doomed:
            return
        known = self._log.table._views
        with self._dooming:
            due: list[Doomed] = []
            kept: list[Doomed] = []
            for one in self._doomed:
                needed = any(ref is known.get(id(ref())) for ref in one.views)
                wait = needed or one.synced > self._log.synced
                (kept if wait else due).append(one)
            self._doomed = kept
        for one in due:
            one.remove()

    def _settle(self) -> None:
        """What is due after a commit."""
        self._log.settle()
        if self._doomed and self._compacting.acquire(blocking=False):
            try:
                self._sweep()
            except OSError as error:  # the commit has been done
                self._log.notes.append(f"files that nobody needs: {error}")
            finally:
                self._compacting.release()

    # --- compaction ---

    def compact(
        self,
        progress: Callable[[int], None] | None = None,
        *,
        dry_run: bool = False,
        least: float = 0.5,
        oldest: bool = False,
    ) -> dict[str, Any]:
        """Move the records out of data files that are mostly dead, and remove these.

        Readers and writers go on meanwhile, also in other threads.

        progress  called with bytes that have been gone through
        dry_run   only say what would be done
        least     a file is taken where at least this part of it is dead
        oldest    take all files of the oldest generation, too
        ->        files, bytes (of them), moved (bytes), freed (bytes)
        raises    OSError
        """
        self._check_writable()
        with self._compacting:
            self._sweep()
            run = partial(self._compact, progress, dry_run, least)
            try:
                found = run(oldest)
            except Full:
                if oldest:
                    raise
                found = run(True)
            self._sweep()
        self._log.settle()
        return found

    def _compact(
        self, progress: Callable[[int], None] | None, dry_run: bool, least: float, oldest: bool
    ) -> dict[str, Any]:
        taken = {number for one in self._doomed for number in one.files}
        return compact(self._log, progress, dry_run, least, oldest, taken, self._removed)

    def _removed(self, group: tuple[int, ...]) -> None:
        """These data files are compacted."""
        self._doom(lambda: remove(self._log, group), group)
        self._sweep()

    def start_compaction(self, seconds: float = 10.0, *, least: float = 0.5) -> None:
        """Compact in a thread, each so many seconds, until the store is closed."""
        self._check_writable()
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
        """Commit the shared transaction, make all commits durable, save the table. Transactions of
        `begin` are forgotten. Raises OSError of a commit, which is lost then, or of a sync."""
        if not self._log.failed:
            try:
                self._commit_own()
            finally:
                self._end_log()

    def _commit_own(self) -> None:
        """What the methods of the store itself have changed: the caller has the recids."""
        with self._lock:
            try:
                if self._own is not None:
                    self._own.commit(sync=False)
            finally:
                self.rollback()

    def _end_log(self) -> None:
        log = self._log
        if log.failed:
            return
        log.sync()
        with self._compacting:
            self._sweep()
        with log.write_lock:
            if log.saved_at != log.position(log.number, log.end):
                log.plan_save()
        log.settle()
