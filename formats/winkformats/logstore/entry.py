"""Log of a LogStore: data files of entries, which begin with the byte of their kind.

    offset  size  type  field   meaning
    0       8     8s    magic   WINKLOG1
    8       8     Q     number  of the file

    entry     kind  bytes
    INVALID   0     never written
    EOF       1     1: the rest is in the next file
    PADDING   2     1: skipped
    COMMIT    3     1, sequence: 8, durable: 8, size: 8, checksum: 4
    ROLLBACK  4     1, sequence: 8, durable: 8, size: 8, checksum: 4
    RECORD    5     1, size: 4, recid: 8, checksum: 4, body: size
    BLOB      6     1, recid: 8, blob: 8, size: 8, body checksum: 4, checksum: 4
    REMOVED   255   1: begins a file that is being removed, whose entries are void

Big-endian. The size of a record is signed: -1 is null, -2 is a deletion; both have no body. Its
checksum is CRC-32 of kind, size, recid and body; that of a blob record of all bytes before it.

A transaction is all from the end of the last commit or rollback, in one or several files.
`sequence` numbers the commits: each has that of the one before + 1; a rollback has that of the
last commit. `durable` is a position: all before it was synced before this was written. `size` is
the bytes of the transaction. The checksum of a commit is CRC-32 of the store's number (8 bytes),
the bytes of the transaction, and the commit up to the checksum; that of a rollback leaves out the
transaction. Headers of files and EOF belong to no transaction. REMOVED is one byte, which a power
cut cannot tear, and which no single flipped bit can produce from another kind.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import numpy as np

from winkformats.arrays import Int64, UInt8, UInt64
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.logstore.layout import Layout

MAGIC: Final = b"WINKLOG1"
HEADER: Final = struct.Struct(">8sQ")
START: Final = HEADER.size  # offset of the first entry
INVALID, EOF, PADDING, COMMIT, ROLLBACK, RECORD, BLOB = range(7)
NULL, DELETED = -1, -2
REMOVED: Final = 255
PART: Final = struct.Struct(">Biq")  # of a record: what its checksum covers, beside the body
HEAD: Final = struct.Struct(">BiqI")
BLOB_PART: Final = struct.Struct(">BqqqI")
BLOB_HEAD: Final = struct.Struct(">BqqqII")
MARK_PART: Final = struct.Struct(">BQQQ")
MARK: Final = struct.Struct(">BQQQI")
SUM: Final = struct.Struct(">I")
STORE: Final = struct.Struct(">Q")
RECIDS: Final = 1 << 31  # recids are less, since the table has a word for each
RESERVE: Final = MARK.size + 1  # bytes that each file has for a commit and EOF
READ_CHUNK: Final = 4 << 20  # bytes read at a time
SEARCH_FACTOR: Final = 64  # a search checks at most so many times the bytes of the rest of a file
assert (START, PART.size, HEAD.size, BLOB_HEAD.size, MARK.size) == (16, 13, 17, 33, 29)

# Length of an entry in a table: its bytes in the log, with flags of its kind.
IS_BLOB: Final = 1 << 31
IS_NULL: Final = 1 << 30
LENGTH: Final = IS_NULL - 1


def header(number: int) -> bytes:
    return HEADER.pack(MAGIC, number)


def record(recid: int, body: bytes | None) -> bytes:
    """Encode a record; body None: null."""
    if body is None:
        return _empty(recid, NULL)
    head = PART.pack(RECORD, len(body), recid)
    return HEAD.pack(RECORD, len(body), recid, zlib.crc32(body, zlib.crc32(head))) + body


def deletion(recid: int) -> bytes:
    return _empty(recid, DELETED)


def _empty(recid: int, size: int) -> bytes:
    return HEAD.pack(RECORD, size, recid, zlib.crc32(PART.pack(RECORD, size, recid)))


class Blob(NamedTuple):
    """A body in a file of its own, which contains nothing else."""

    number: int
    size: int
    checksum: int

    def encode(self, recid: int) -> bytes:
        data = BLOB_PART.pack(BLOB, recid, self.number, self.size, self.checksum)
        return data + SUM.pack(zlib.crc32(data))


def decode(data: bytes, recid: int, *, file: str, offset: int) -> bytes | Blob | None:
    """Decode the entry of a record -> its body, or the blob that has it; None: null.

    raises  CorruptError if it is no entry of this record
    """
    if len(data) >= HEAD.size and data[0] == RECORD:
        _, size, found, checksum = HEAD.unpack_from(data)
        body = data[HEAD.size :]
        if found == recid and checksum == zlib.crc32(body, zlib.crc32(data[: PART.size])):
            if size == len(body):
                return body
            if size == NULL and not body:
                return None
    elif len(data) == BLOB_HEAD.size and data[0] == BLOB:
        _, found, number, size, checksum, own = BLOB_HEAD.unpack(data)
        if found == recid and own == zlib.crc32(data[: BLOB_PART.size]) and size >= 0:
            return Blob(number, size, checksum)
    raise CorruptError(f"no whole record {recid}", file=file, offset=offset)


def seed(layout: Layout) -> int:
    """Return the initial value of the checksums of commits of a store."""
    return zlib.crc32(STORE.pack(layout.store))


def commit(sequence: int, durable: int, size: int, checksum: int) -> bytes:
    """Encode a commit; checksum: CRC-32 of the store's number and the transaction."""
    data = MARK_PART.pack(COMMIT, sequence, durable, size)
    return data + SUM.pack(zlib.crc32(data, checksum))


def rollback(sequence: int, durable: int, size: int, layout: Layout) -> bytes:
    data = MARK_PART.pack(ROLLBACK, sequence, durable, size)
    return data + SUM.pack(zlib.crc32(data, seed(layout)))


class Entries(NamedTuple):
    """Entries of records, in the order of the log.

    recids     int64[n]
    positions  uint64[n], of the entries, deletions included
    lengths    int64[n], bytes of the entries, with IS_BLOB and IS_NULL; 0: a deletion
    """

    recids: Int64
    positions: UInt64
    lengths: Int64

    def take(self, which: Int64 | slice | UInt8) -> Entries:
        return Entries(self.recids[which], self.positions[which], self.lengths[which])

    @property
    def sizes(self) -> Int64:
        """Bytes of each entry in the log."""
        return np.where(self.lengths == 0, HEAD.size, self.lengths & LENGTH)


NONE: Final = Entries(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.int64))


class Damage(NamedTuple):
    """Bytes of a file, from `start` on, that are no complete transaction.

    at       offset where the damage was found
    proved   True: a commit follows, and they were synced, so that it is no torn write
    """

    file: str
    start: int
    at: int
    what: str
    proved: bool

    def __str__(self) -> str:
        return f"{self.file}: {self.what} at byte {self.at}: changes from {self.start} on are lost"


class LogScan:
    """Pass over the log, from file to file, that collects the entries of complete transactions.

    number, end  file and offset of the end of the last commit; -1: nothing was read
    sequence     of that commit; None: not known yet
    durable      the position up to which all is known to be synced
    ended        the last file read has its EOF
    skipped      the log began with the rest of a transaction whose start was removed
    cost         a step for each entry, and CRC-32 of all bytes
    """

    def __init__(self, layout: Layout, sequence: int | None = None) -> None:
        self.layout, self.sequence = layout, sequence
        self._seed = seed(layout)
        self.number, self.end, self.durable = -1, START, 0
        self.ended = False
        self._at, self._gap, self._first, self.skipped = 0, False, False, False
        self._recids: list[int] = []
        self._positions: list[int] = []
        self._lengths: list[int] = []
        self._packed: list[Entries] = []  # earlier entries, as arrays
        self._before = 0  # number of these
        self._good = 0  # number of entries that are committed
        self._restart()

    def _restart(self) -> None:
        """Begin a transaction, after a commit."""
        self._sum, self._size = self._seed, 0

    def forget(self) -> None:
        """Drop the entries of a transaction that has not ended."""
        if self._count() > self._good:
            self._pack()
            self._keep(self._joined().take(slice(self._good)))
        self._restart()

    def _count(self) -> int:
        return self._before + len(self._recids)

    def _pack(self) -> None:
        """Convert the lists to arrays, which need much less memory."""
        if self._recids:
            positions = np.array(self._positions, np.uint64)
            lengths = np.array(self._lengths, np.int64)
            self._packed.append(Entries(np.array(self._recids, np.int64), positions, lengths))
            self._before += len(positions)
            for values in (self._recids, self._positions, self._lengths):
                values.clear()

    def _keep(self, some: Entries) -> None:
        self._packed, self._before = [some], len(some.recids)

    def _joined(self) -> Entries:
        return Entries(*map(np.concatenate, zip(NONE, *self._packed, strict=True)))

    @property
    def pending(self) -> bool:
        """True if a transaction has begun and not ended."""
        return self._size > 0

    def entries(self) -> Entries:
        """Return the entries committed since the last call.

        raises  CorruptError for a recid that is out of range
        """
        self._pack()
        known = self._joined()
        found, rest = known.take(slice(self._good)), known.take(slice(self._good, None))
        self._keep(rest)
        self._good = 0
        recids = found.recids
        wrong = (recids <= 0) | (recids >= RECIDS)
        if wrong.any():
            at = int(wrong.argmax())
            number, offset = self.layout.split(int(found.positions[at]))
            what = f"recid {recids[at]} of a record"
            raise CorruptError(what, file=f"data/{number:016x}", offset=offset)
        return found

    def read(
        self, storage: Storage, number: int, start: int = START, *, headed: bool = True
    ) -> str:
        """Read a file, or its rest from a commit on.

        headed  check its header
        ->      the damage at offset `at`, "" at EOF or at the end of the file
        raises  OSError
        """
        self._at, self.ended = start, False
        if start == START and headed:
            head = storage.read(0, START)
            if head != header(number):
                self._at = 0
                return "no header of this file"
        if not self.pending:
            self.number, self.end = number, start
        return self._follow(storage, number, storage.size())

    @property
    def at(self) -> int:
        """The offset at which the last `read` ended."""
        return self._at

    def _follow(self, storage: Storage, number: int, size: int) -> str:
        base = self.layout.position(number, 0)
        unpack = HEAD.unpack_from
        add_recid, add_position = self._recids.append, self._positions.append
        add_length = self._lengths.append
        need = READ_CHUNK
        while True:
            at = self._at
            data = storage.read(at, min(need, size - at) if size > at else 0)
            stop = len(data)
            size = at + stop if stop < need else size  # it may have been truncated meanwhile
            rest = memoryview(data)
            last = stop - BLOB_HEAD.size
            if at + stop >= size:
                data, last = data + bytes(BLOB_HEAD.size), stop
            place = summed = 0
            need, base_at = READ_CHUNK, base + at
            self._pack()
            while place <= last:
                kind, length, recid, _ = unpack(data, place)
                if kind == RECORD:
                    if length >= 0:
                        following = place + HEAD.size + length
                        if following > stop:
                            need = max(READ_CHUNK, HEAD.size + length + BLOB_HEAD.size)
                            if at + following > size:
                                return self._cut(rest[summed:place], at + place, "a torn record")
                            break
                        add_length(following - place)
                    else:
                        if length < DELETED:
                            what = f"size {length} of a record"
                            return self._cut(rest[summed:place], at + place, what)
                        following = place + HEAD.size
                        if following > stop:
                            return self._cut(rest[summed:place], at + place, "a torn record")
                        add_length(HEAD.size | IS_NULL if length == NULL else 0)
                    add_recid(recid)
                    add_position(base_at + place)
                    place = following
                elif kind in (COMMIT, ROLLBACK):
                    if place + MARK.size > stop:
                        return self._cut(rest[summed:place], at + place, "a torn commit")
                    self._add(rest[summed:place])
                    if wrong := self._mark(data, place):
                        self._at = at + place
                        return wrong
                    place += MARK.size
                    summed, self.number, self.end = place, number, at + place
                elif kind == BLOB:
                    following = place + BLOB_HEAD.size
                    if following > stop:
                        return self._cut(rest[summed:place], at + place, "a torn record")
                    add_recid(BLOB_HEAD.unpack_from(data, place)[1])
                    add_position(base_at + place)
                    add_length(BLOB_HEAD.size | IS_BLOB)
                    place = following
                elif kind == PADDING and place < stop:
                    place += stop - place - len(data[place:stop].lstrip(b"\2"))
                elif kind == EOF and place < stop:
                    if at + place == START:
                        return self._cut(rest[summed:place], START, "no entry but EOF")
                    self.ended = True
                    return self._cut(rest[summed:place], at + place, "")
                elif at + place >= size:
                    return self._cut(rest[summed:place], at + place, "")
                else:
                    return self._cut(rest[summed:place], at + place, f"an entry of kind {kind}")
            self._cut(rest[summed:place], at + place, "")

    def _add(self, data: memoryview) -> None:
        self._sum, self._size = zlib.crc32(data, self._sum), self._size + len(data)

    def _cut(self, data: memoryview, at: int, what: str) -> str:
        self._add(data)
        self._at = at
        return what

    def _mark(self, data: bytes, place: int) -> str:
        """Check and apply a commit or rollback -> its damage, "" if there is none."""
        kind, sequence, durable, size, checksum = MARK.unpack_from(data, place)
        part = data[place : place + MARK_PART.size]
        known, gap = self.sequence, self._gap
        self._gap = False
        begun = not (self._first and sequence <= (kind == COMMIT))
        if gap and size > self._size and begun:  # it began in a removed file
            self.resume()
            self.skipped = True
            return ""
        if zlib.crc32(part, self._sum if kind == COMMIT else self._seed) != checksum:
            return "checksum of a commit" if kind == COMMIT else "checksum of a rollback"
        if size != self._size:
            return f"a commit of {size} bytes, not {self._size},"
        if known is not None and sequence != known + (kind == COMMIT):
            return f"commit {sequence} after commit {known}"
        self.sequence, self.durable = sequence, durable
        if kind == COMMIT:
            self._good = self._count()
        self.forget()
        return ""

    def find(self, storage: Storage, number: int, start: int) -> tuple[int, int] | None:
        """Search a file for the next complete transaction after damage.

        ->    its offset, and `durable` of its commit; None: there is none
        cost  up to SEARCH_FACTOR times the rest of the file
        """
        data = storage.read(start, max(storage.size() - start, 0))
        raw = np.frombuffer(data, np.uint8)
        heads = np.flatnonzero(raw[: max(len(raw) - MARK.size + 1, 0)] == COMMIT)
        if not len(heads):
            return None
        marks = np.ndarray((len(raw) - MARK.size + 1,), f"V{MARK.size}", data, 0, (1,))[heads]
        fields = np.frombuffer(marks.tobytes(), ">u1, >u8, >u8, >u8, >u4")
        sequence, size = fields["f1"].astype(np.uint64), fields["f3"].astype(np.uint64)
        known = np.uint64(self.sequence or 0)
        may = (sequence > known) & (size <= heads.astype(np.uint64))
        left = SEARCH_FACTOR * len(data)
        for at, length in zip(heads[may].tolist(), size[may].tolist(), strict=True):
            left -= length + MARK.size
            if left < 0:
                return None
            whole = memoryview(data)[at - length : at + MARK_PART.size]
            _, _, durable, _, checksum = MARK.unpack_from(data, at)
            if zlib.crc32(whole, self._seed) == checksum:
                return start + at - length, durable
        return None

    def resume(self, *, gap: bool = False, first: bool = False) -> None:
        """Accept any sequence of the next commit, after damage or a removed file.

        gap    a file was removed: skip the rest of a transaction that began in it
        first  the next file has number 0, so that no file before the first commit was removed
        """
        self.forget()
        self.sequence, self._gap, self._first, self.skipped = None, gap, first, False


def whole_records(storage: Storage, layout: Layout, number: int, start: int, stop: int) -> Entries:
    """Find the intact records in a damaged range of a file. Raises OSError.

    cost  up to SEARCH_FACTOR times these bytes
    """
    data = storage.read(start, max(stop - start, 0))
    padded = data + bytes(BLOB_HEAD.size)
    raw = np.frombuffer(data, np.uint8)
    heads = np.flatnonzero((raw == RECORD) | (raw == BLOB))
    rows: list[tuple[int, int, int]] = []
    at, left = 0, SEARCH_FACTOR * len(data)
    for head in heads.tolist():
        kind, size, recid, _ = HEAD.unpack_from(padded, head)
        width = HEAD.size + max(size, 0) if kind == RECORD else BLOB_HEAD.size
        if head < at or head + width > len(data) or left < 0:
            continue
        if kind == BLOB:
            recid = BLOB_HEAD.unpack_from(padded, head)[1]
        left -= width
        length = known_length(data[head : head + width], recid)
        if length is not None and 0 < recid < RECIDS:
            rows.append((recid, layout.position(number, start + head), length))
            at = head + width
    columns = np.array(rows, np.uint64).reshape(-1, 3)
    recids, lengths = columns[:, 0].astype(np.int64), columns[:, 2].astype(np.int64)
    return Entries(recids, columns[:, 1].copy(), lengths)


def known_length(data: bytes, recid: int) -> int | None:
    """Return the length, as in `Entries`, of an entry of this record; None: it is damaged."""
    if data == deletion(recid):
        return 0
    try:
        found = decode(data, recid, file="", offset=0)
    except CorruptError:
        return None
    return len(data) | (IS_BLOB if isinstance(found, Blob) else IS_NULL if found is None else 0)
