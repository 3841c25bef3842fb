"""Bulk scans of a kvseq: entries found by the thousand, with numpy, one Python step an entry.

A scan reads windows that start at an entry, walks the length prefixes (150 ns an entry warm, 300 ns
from cold memory), and leaves everything else to arrays over the window.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats.disk.posix import WINDOW
from winkformats.disk.storage import Storage
from winkformats.entry import MASK64, PREFIXES, KVEntry, Layout
from winkformats.errors import CorruptError, FormatError
from winkformats.gather import rows_at
from winkformats.heap import keep_heap

Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
MAX_WINDOW: Final = 64 << 20  # bytes; a larger entry is handed out as its head alone
PIECE: Final = 4 << 20  # bytes read at once to check such an entry


class Batch:
    """Entries that lie in one window, in file order.

    pos                    int64[n]  file positions
    at, key, value, end    int64[n]  offsets into `data` of the entry, key, value, and its end
    key_len, value_len     int64[n]  bytes
    data                   the window; valid until the next batch
    raw                    uint8[..] the same bytes
    """

    def __init__(self, storage: Storage, layout: Layout, base: int, data: memoryview, at: Int64):
        self.storage, self.layout, self.base, self.data = storage, layout, base, data
        self.raw: UInt8 = np.frombuffer(data, np.uint8)
        self.at, self.pos = at, at + base
        key_field, value_field = layout.key, layout.value
        where = at + layout.delflag
        self.key_len = self._lengths(where, key_field.prefix, key_field.room)
        self.key = where + key_field.prefix
        where = self.key + (self.key_len if key_field.room < 0 else key_field.room)
        self.value_len = self._lengths(where, value_field.prefix, value_field.room)
        self.value = where + value_field.prefix
        where = self.value + (self.value_len if value_field.room < 0 else value_field.room)
        self.end = where + layout.checksum

    def __len__(self) -> int:
        return len(self.at)

    def _lengths(self, where: Int64, prefix: int, room: int) -> Int64:
        if prefix == 0:
            return np.full(len(where), room, np.int64)
        total = np.zeros(len(where), np.int64)
        for i in range(prefix):
            total = total << 8 | self.raw[where + i]
        return total

    @property
    def whole(self) -> bool:
        """Whether the entries lie in `data` from end to end."""
        return len(self.end) == 0 or bool(self.end[-1] <= len(self.data))

    @property
    def flags(self) -> UInt8:
        """Delflags, uint8[n]; zeros where the file has none."""
        return self.raw[self.at] if self.layout.delflag else np.zeros(len(self.at), np.uint8)

    def words(self, where: Int64, count: int, dtype: str) -> npt.NDArray[np.generic]:
        """Gather `count` numbers of `dtype` (like ">i8") from each offset -> [n, count]."""
        width = np.dtype(dtype).itemsize * count
        if len(where) == 0:
            return np.empty((0, count), dtype)
        return rows_at(self.raw, where, width).view(dtype)

    def keys(self, chosen: Int64) -> list[bytes]:
        """The keys of the entries with these indices."""
        return list(map(bytes, self.key_views(chosen)))

    def key_views(self, chosen: Int64) -> Iterator[memoryview]:
        """The same as views of the window: 70 ns less a key."""
        return self.slices(self.key[chosen], self.key[chosen] + self.key_len[chosen])

    def entry(self, i: int) -> KVEntry:
        """One entry as an object, unchecked."""
        if not self.whole:
            data = self.storage.read(int(self.pos[i]), int(self.end[i] - self.at[i]))
            return self.layout.decode(data, 0, int(self.pos[i]), self.storage.name)
        a, b = int(self.key[i]), int(self.value[i])
        key = bytes(self.data[a : a + int(self.key_len[i])])
        value = bytes(self.data[b : b + int(self.value_len[i])])
        at = int(self.at[i])
        deleted = bool(self.layout.delflag and self.raw[at])
        return KVEntry(int(self.pos[i]), deleted, key, value, int(self.end[i]) - at)

    def bad(self, chosen: Int64 | None = None) -> Int64:
        """Indices, among `chosen` or all, of entries with a wrong delflag, length or checksum."""
        index = np.arange(len(self.at)) if chosen is None else chosen
        wrong = self.flags[index] > 1
        wrong |= self.key_len[index] > self.layout.key.limit
        wrong |= self.value_len[index] > self.layout.value.limit
        if self.layout.checksum:
            wrong |= self._sums(index) != self._stored(index)
        return index[wrong]

    def check(self, chosen: Int64 | None = None) -> None:
        """Raise CorruptError for the first bad entry among `chosen` or all."""
        bad = self.bad(chosen)
        if len(bad):
            raise CorruptError(
                "bad entry (delflag, length or checksum)",
                file=self.storage.name, offset=int(self.pos[bad[0]]),
            )  # fmt: skip

    def _stored(self, index: Int64) -> npt.NDArray[np.uint32]:
        if not self.whole:
            tail = self.storage.read(int(self.base + self.end[0]) - 4, 4)
            return np.frombuffer(tail, ">u4").astype(np.uint32)
        return self.words(self.end[index] - 4, 1, ">u4")[:, 0].astype(np.uint32)

    def _sums(self, index: Int64) -> npt.NDArray[np.uint32]:
        if not self.whole:
            return np.array([self._long_sum()], np.uint32)
        starts, ends = self.at[index] + self.layout.delflag, self.end[index] - 4
        return self.layout.sums(self.pos[index], self.slices(starts, ends))

    def slices(self, starts: Int64, ends: Int64) -> Iterator[memoryview]:
        """Views of data[starts[i]:ends[i]], one at a time: a list of them costs 130 ns a view."""
        data = self.data
        return (data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True))

    def _long_sum(self) -> int:
        state = xxhash.xxh3_64(seed=(self.layout.contid + int(self.pos[0])) & MASK64)
        at, stop = int(self.pos[0]) + self.layout.delflag, int(self.base + self.end[0]) - 4
        while at < stop and (piece := self.storage.read(at, min(PIECE, stop - at))):
            state.update(piece)
            at += len(piece)
        return state.intdigest() & 0xFFFFFFFF


def scan(
    storage: Storage,
    layout: Layout,
    start: int,
    stop: int,
    *,
    uncached: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Batch]:
    """Walk the entries in [start, stop) -> batches of at least one entry.

    start     position of an entry
    stop      logical end: the last entry ends there
    uncached  page-cache policy of the pass
    progress  called with the number of bytes done since the last call
    raises    CorruptError where an entry reaches past `stop`, or an alignment gap is not zero
    cost      one read per 8 MiB; memory: one window, at most 64 MiB
    """
    keep_heap()
    walk = _walk_standard if layout.standard else _walk_any(layout)
    reader = storage.bulk(start, stop, uncached=uncached)
    pos, size = layout.aligned(start), WINDOW
    try:
        while pos < stop:
            asked = min(size, stop - pos)
            data = reader.read(pos, asked)
            found, end = walk(data)
            if not found:
                if len(data) < asked:
                    raise CorruptError("file is shorter than FILESIZE", file=storage.name,
                                       offset=pos)  # fmt: skip
                size = _needed(storage, layout, data, pos, stop)
                if size <= MAX_WINDOW:
                    continue
                found, end = [0], size
            size = WINDOW
            batch = Batch(storage, layout, pos, data, np.array(found, np.int64))
            if layout.align > 1:
                _check_gaps(batch, min(stop, layout.aligned(pos + end)))
            if progress:
                progress(end)
            pos = layout.aligned(pos + end)
            yield batch
    finally:
        reader.close()


def _walk_standard(data: memoryview) -> tuple[list[int], int]:
    """Offsets of the whole entries in `data` and the end of the last, in the default layout."""
    found: list[int] = []
    add, limit, at = found.append, len(data), 0
    key_len, value_len = PREFIXES[1].unpack_from, PREFIXES[2].unpack_from
    try:
        while True:
            value = at + 3 + key_len(data, at + 1)[0]
            end = value + 8 + value_len(data, value)[0]
            if end > limit:
                return found, at
            add(at)
            at = end
    except struct.error:  # the window ends inside a length
        return found, at


def _walk_any(layout: Layout) -> Callable[[memoryview], tuple[list[int], int]]:
    def walk(data: memoryview) -> tuple[list[int], int]:
        found: list[int] = []
        end = at = 0
        while (span := layout.locate(data, at)) and span.end <= len(data):
            found.append(at)
            end = span.end
            at = layout.aligned(end) if layout.align > 1 else end
        return found, end

    return walk


def _needed(storage: Storage, layout: Layout, data: memoryview, pos: int, stop: int) -> int:
    """Bytes to read for the entry at `pos`, which does not fit into `data`."""
    need = layout.reach(data)
    if pos + need > stop:
        raise CorruptError("entry reaches past the end", file=storage.name, offset=pos)
    if need > MAX_WINDOW and layout.locate(data, 0) is None:
        raise FormatError(
            f"{storage.name}: the key at byte {pos} is longer than a scan takes, {MAX_WINDOW} bytes"
        )
    return need


def _check_gaps(batch: Batch, next_pos: int) -> None:
    """The bytes between the entries, and up to the one after the batch, are zero."""
    gaps = batch.at[1:] - batch.end[:-1]
    for i in np.flatnonzero(gaps).tolist():
        if batch.raw[int(batch.end[i]) : int(batch.at[i + 1])].any():
            raise _bad_gap(batch, i)
    last = int(batch.base + batch.end[-1])
    if any(batch.storage.read(last, next_pos - last)):
        raise _bad_gap(batch, len(batch) - 1)


def _bad_gap(batch: Batch, i: int) -> CorruptError:
    offset = int(batch.base + batch.end[i])
    return CorruptError("padding is not zero", file=batch.storage.name, offset=offset)
