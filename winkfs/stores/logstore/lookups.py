"""Look-ups in a LogStore: of the newest commits, or as of a snapshot."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.closing import Closing
from winkformats.errors import CorruptError
from winkformats.logstore.entry import HEAD, LENGTH, PART, RECORD, Entries
from winkfs.errors import Closed, NoSuchFile
from winkfs.stores.logstore.log import Log
from winkfs.stores.logstore.table import View
from winkfs.units import as_int

TRIES: Final = 16  # of a read beside a compaction
GAP: Final = 4 << 10  # bytes between two records up to which they are read at once
RUN: Final = 1 << 20  # bytes that are read at once


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

    def __init__(self, log: Log) -> None:
        self._log, self._is_open, self._seen = log, True, log.table.view()

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
