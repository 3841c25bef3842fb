"""State of a message store beside its segments: a snapshot of its index, and a journal since.

`index`, the snapshot, little-endian; it belongs to `refs.GENERATION`

    offset  size  type  field       meaning
    0       8     8s    magic       WINKMSGX
    8       8     Q     generation
    16      8     q     last_v1     number of the last segment of version 1, -1: there is none
    24      8     Q     next        no segment has this number or a higher one
    32      8     Q     files       rows of segments
    40      8     Q     messages    rows of messages
    48      8     Q     flags       CHECKSUMS: messages are written with one

    a segment    number u32, bytes of each of its records beside the body i32, 0: it has none, -1:
                 not all have the same, bytes that the snapshot covers u64, SEALED: nothing is added
    a message    id 16, segment u32, offset u32, size u32, references u32
    at the end   xxh3_64 of all before, u64

`refs.GENERATION`, the journal: a header, then rows of 40 bytes

    offset  size  type  field       meaning
    0       8     8s    magic       WINKMSGJ
    8       8     Q     generation

    row          offset  size  type  field
                 0       4     I     kind: REFS, RESET, KEPT, INTENT, END
                 4       4     I     segment
                 8       4     I     offset
                 12      4     I     size
                 16      4     I     references
                 20      16    16s   id
                 36      4     I     CRC-32 of the header, and of the row before this field

    REFS    number of references of the message at this place, 0: it is removed
    RESET   all earlier rows of a segment are void; `offset` rows KEPT follow
    KEPT    a message of the segment
    INTENT  as RESET, and the segment is about to be compacted, and keeps these messages
    END     a later generation has followed

The journal ends at the first row whose checksum is wrong.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats.arrays import Int64
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.messagestore.index import MessageRows

INDEX: Final = "index"
JOURNAL: Final = "refs."
MAGIC: Final = b"WINKMSGX"
HEAD: Final = struct.Struct("<8sQqQQQQ")
CHECKSUMS: Final = 1
FILE: Final = np.dtype([("file", "<u4"), ("beside", "<i4"), ("covered", "<u8")])
MESSAGE: Final = np.dtype(
    [("id", ">u8", 2), ("file", "<u4"), ("offset", "<u4"), ("size", "<u4"), ("refs", "<u4")]
)
SUM: Final = struct.Struct("<Q")
ROWS_READ: Final = 1 << 17  # rows read at a time
JOURNAL_MAGIC: Final = b"WINKMSGJ"
JOURNAL_HEAD: Final = struct.Struct("<8sQ")
ROW: Final = struct.Struct("<5I16s")
CRC: Final = struct.Struct("<I")
STRIDE: Final = ROW.size + CRC.size
PADDED: Final = struct.Struct(f"{ROW.format}{CRC.size}x")
ENTRY: Final = np.dtype(
    [("kind", "<u4"), ("file", "<u4"), ("offset", "<u4"), ("size", "<u4"), ("refs", "<u4"),
     ("id", ">u8", 2), ("sum", "<u4")]
)  # fmt: skip
REFS, RESET, KEPT, INTENT, END = 1, 2, 3, 4, 5
SEALED: Final = (1 << 64) - 1
NO_ID: Final = bytes(16)
UInt32 = npt.NDArray[np.uint32]
assert (HEAD.size, FILE.itemsize, MESSAGE.itemsize, STRIDE) == (56, 16, 32, 40)
assert ENTRY.itemsize == PADDED.size == STRIDE


class Entry(NamedTuple):
    """A row of the journal."""

    kind: int
    file: int
    offset: int
    size: int
    refs: int
    msg_id: bytes


class Snapshot(NamedTuple):
    """The header and the segments of a snapshot. covered: segment -> bytes of a record beside its
    body, and bytes of the segment that the snapshot covers."""

    generation: int
    last_v1: int | None
    next_file: int
    covered: dict[int, tuple[int, int]]
    checksums: bool


def write_snapshot(
    storage: Storage, head: Snapshot, parts: Iterable[MessageRows], count: int
) -> None:
    """Write a snapshot of `count` messages, in parts. Cost: 32 bytes for each message."""
    last = -1 if head.last_v1 is None else head.last_v1
    listed = [(number, *facts) for number, facts in head.covered.items()]
    files = np.array(listed, FILE)
    flags = CHECKSUMS if head.checksums else 0
    numbers = head.generation, last, head.next_file, len(files), count, flags
    hashed, at = xxhash.xxh3_64(), 0

    def put(data: bytes) -> None:
        nonlocal at
        hashed.update(data)
        at += storage.write(at, [data])

    put(HEAD.pack(MAGIC, *numbers) + files.tobytes())
    for rows in parts:
        packed = np.empty(len(rows.file), MESSAGE)
        packed["id"], packed["file"], packed["offset"] = rows.ids, rows.file, rows.offset
        packed["size"], packed["refs"] = rows.size, rows.refs
        put(packed.tobytes())
    storage.write(at, [SUM.pack(hashed.intdigest())])


def read_snapshot(storage: Storage) -> tuple[Snapshot, MessageRows]:
    """Read a snapshot -> its header, and its messages, in no order.

    raises  CorruptError if it is damaged
    """
    name, size = storage.name, storage.size()

    def wrong(what: str) -> CorruptError:
        return CorruptError(what, file=name, offset=0)

    head = storage.read(0, HEAD.size)
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise wrong("no index of a message store")
    _, generation, last, next_file, files, count, flags = HEAD.unpack(head)
    end = HEAD.size + files * FILE.itemsize + count * MESSAGE.itemsize
    if size != end + SUM.size:
        raise wrong(f"an index of {size} bytes, {end + SUM.size} by its header")
    hashed = xxhash.xxh3_64(head)
    raw = storage.read(HEAD.size, files * FILE.itemsize)
    hashed.update(raw)
    listed, at = np.frombuffer(raw, FILE), HEAD.size + len(raw)
    parts = []
    while at < end:
        raw = storage.read(at, min(ROWS_READ * MESSAGE.itemsize, end - at))
        hashed.update(raw)
        parts.append(_rows(np.frombuffer(raw, MESSAGE)))
        at += len(raw)
    if storage.read(end, SUM.size) != SUM.pack(hashed.intdigest()):
        raise wrong("an index with a wrong checksum")
    covered = {number: (beside, size) for number, beside, size in listed.tolist()}
    known = generation, None if last < 0 else last, next_file, covered, bool(flags & CHECKSUMS)
    return Snapshot(*known), MessageRows.joined(parts)


def _rows(packed: np.ndarray[tuple[int], np.dtype[np.void]]) -> MessageRows:
    def column(name: str) -> Int64:
        return packed[name].astype(np.int64)

    ids = packed["id"].astype(np.uint64)
    return MessageRows(ids, column("file"), column("offset"), column("size"), column("refs"))


class Journal:
    """Writer of the journal of a generation: rows are buffered, and written by `flush`.

    size      bytes written
    unsynced  whether some of them were not synced; the caller that syncs sets it to False
    """

    def __init__(self, storage: Storage, generation: int, *, begun: bool = False) -> None:
        """Begin a journal in `storage`, which is empty or, if `begun`, has a header and no row."""
        self.storage = storage
        head = JOURNAL_HEAD.pack(JOURNAL_MAGIC, generation)
        self._seed, self._rows = zlib.crc32(head), [] if begun else [head]
        self.size = len(head) if begun else 0
        self.unsynced = False

    def add(self, kind: int, file: int, offset: int, size: int, refs: int, msg_id: bytes) -> None:
        row = ROW.pack(kind, file, offset, size, refs, msg_id)
        self._rows.append(row + CRC.pack(zlib.crc32(row, self._seed)))

    def add_all(self, kind: int, file: int, kept: MessageRows) -> None:
        """Add a row RESET or INTENT of a segment, with its messages."""
        self.add(kind, file, len(kept.file), 0, 0, NO_ID)
        rows = np.empty(len(kept.file), ENTRY)
        rows["kind"], rows["file"], rows["id"] = KEPT, file, kept.ids
        rows["offset"], rows["size"], rows["refs"] = kept.offset, kept.size, kept.refs
        rows["sum"] = _sums(rows, self._seed)
        self._rows.append(rows.tobytes())

    def flush(self) -> None:
        """Write the buffered rows. Raises OSError, and keeps the rows."""
        if self._rows:
            data = b"".join(self._rows)
            self.storage.write(self.size, [data])
            self.size, self.unsynced = self.size + len(data), True
            self._rows.clear()


def entries(storage: Storage, generation: int, start: int = 0) -> tuple[list[Entry], int]:
    """Read the rows of a journal from byte `start` on, 0: all.

    ->  rows, and the offset of their end; 0: its header is missing, or of another generation
    """
    head = JOURNAL_HEAD.pack(JOURNAL_MAGIC, generation)
    start = start or JOURNAL_HEAD.size
    if storage.read(0, len(head)) != head:
        return [], 0
    data = storage.read(start, max(storage.size() - start, 0))
    rows = np.frombuffer(data, ENTRY, len(data) // STRIDE)
    good = rows["sum"] == _sums(rows, zlib.crc32(head))
    count = len(rows) if good.all() else int(good.argmin())
    found = map(Entry._make, PADDED.iter_unpack(data[: count * STRIDE]))
    return whole(list(found), start)


def _sums(rows: np.ndarray[tuple[int], np.dtype[np.void]], seed: int) -> UInt32:
    """Return the CRC-32 of each row without its last field, computed by columns."""
    words = np.ascontiguousarray(rows).view("<u2").reshape(len(rows), STRIDE // 2)
    found = np.full(len(rows), seed ^ 0xFFFFFFFF, np.uint32)
    table = _table()
    for column in words.T[: ROW.size // 2]:
        found = table[(found ^ column) & 0xFFFF] ^ (found >> 16)
    return ~found


@cache
def _table() -> UInt32:
    """Return the table of CRC-32 for two bytes at a time, uint32[65536]."""
    found: UInt32 = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        found = ((found >> 1) ^ (found & 1) * np.uint32(0xEDB88320)).astype(np.uint32)
    return found


def whole(found: list[Entry], start: int) -> tuple[list[Entry], int]:
    """Drop a RESET or INTENT whose rows KEPT are incomplete, and what follows -> rows and end."""
    at = 0
    while at < len(found):
        if found[at].kind in (RESET, INTENT):
            rest = found[at + 1 : at + 1 + found[at].offset]
            if len(rest) < found[at].offset or any(entry.kind != KEPT for entry in rest):
                break
            at += len(rest)
        at += 1
    return found[:at], start + at * STRIDE
