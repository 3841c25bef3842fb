"""Transaction of a LogStore: changes that become visible, and durable, at once or not at all."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Collection, Iterable, Sequence
from itertools import repeat
from types import TracebackType
from typing import Any, Final, Self, cast

import numpy as np

from winkformats.arrays import Int64
from winkformats.logstore import entry
from winkformats.logstore.entry import HEAD, IS_BLOB, IS_NULL, PART, RECIDS, RECORD, Blob
from winkfs.errors import Closed, NoSuchFile, Refusal
from winkfs.stores.logstore.commits import Commits
from winkfs.stores.logstore.log import Batch
from winkfs.stores.logstore.lookups import Lookups, as_recids
from winkfs.units import as_content, as_int

DELETED: Final = object()
Body = bytes | bytearray | memoryview | None


class Conflict(Refusal):
    """Another transaction that has not ended changes the record."""

    number = errno.EBUSY


class Transaction:
    """Changes that become visible, and durable, at once or not at all. For one thread.

    A record that is changed belongs to the transaction up to its end: others that would change it
    raise Conflict at once. Leaving a `with` block commits, with sync, or after an exception rolls
    back. Memory: the bodies up to the cut-off for blobs, until the commit.
    """

    def __init__(self, newest: Lookups, commits: Commits) -> None:
        self._newest, self._commits, self._log = newest, commits, commits.log
        self._writes: dict[int, Any] = {}  # bytes, None, Blob or DELETED
        self._new: list[int] = []  # recids of this transaction
        self._owned: list[int] = []
        self._token = object()  # of its records; a reference to itself would keep it
        self._blobs: list[Blob] = []
        self.epoch = commits.recids.begin(self)
        self._state = ""

    def _check(self) -> None:
        if self._state:
            raise Closed(f"the transaction is {self._state}", self._log.files.path)
        self._commits.check()

    # --- to read ---

    def get(self, recid: int) -> bytes | None:
        """As of the newest commits, and of this transaction's own changes. See `LogStore.get`."""
        if type(recid) is not int or recid not in self._writes:
            return self._newest.get(recid)
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
        recid = self._commits.recids.take()
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
        recids = self._commits.recids.take_many(len(values))
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
        owners = self._commits.owners
        if owners.setdefault(recid, self._token) is not self._token:
            raise Conflict(f"another transaction changes record {recid}", self._log.files.path)
        if recid not in self._newest:
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
                self._commits.commit(self._batch(), bool(self._blobs), self._gone())
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
        self._commits.settle()

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
        owners = self._commits.owners
        for recid in self._owned:
            owners.pop(recid, None)
        self._commits.recids.end(self, unused)

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
        if getattr(self, "_state", "x") == "" and not self._commits.access.closed:
            self.rollback()
