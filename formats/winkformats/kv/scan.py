"""Bulk scans of a kvseq: entries in windows of some MiB, as numpy arrays.

A scan reads windows that start at an entry, walks the length prefixes one by one, and does
everything else with arrays over the window.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats import native
from winkformats.arrays import Bools, Int64, UInt8, column, keep_heap, rows_at
from winkformats.disk.pagecache import WINDOW
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError, DamagedRange, FormatError
from winkformats.kv.entry import MASK64, PREFIXES, Field, KVEntry, Layout

MAX_WINDOW: Final = 64 << 20  # bytes; of a larger entry a batch has only the beginning
CHECK_CHUNK: Final = 4 << 20  # bytes read at once to check such an entry
FIRST_SEARCH: Final = 64 << 10  # bytes searched first after damage
SEARCH_STEP: Final = 1 << 20  # bytes searched at a time after that
OVERLAP: Final = (64 << 10) + 64  # bytes read beyond, so that key and lengths of an entry are there
TRUSTED_TRIES: Final = 1 << 10  # tries after which a match of 32 bits may be a coincidence
ALWAYS_CHECKED: Final = 4 << 10  # bytes of an entry that is checked even if the budget is spent
HASH_BUDGET: Final = 256 << 20  # bytes of longer entries that are hashed; it grows by window


class Batch:
    """Entries in one window, in file order.

    pos                    int64[n]  file positions
    at, key, value, end    int64[n]  offsets into `data` of the entry, key, value, and its end
    key_len, value_len     int64[n]  bytes
    flags                  uint8[n]  delflags; zeros if the file has none
    data                   the window; valid until the next batch
    raw                    the window as uint8[m]
    whole                  whether all entries are completely in `data`
    """

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        base: int,
        data: memoryview,
        at: Int64,
        lengths: tuple[Int64, Int64] | None = None,
        pos: Int64 | None = None,
    ) -> None:
        """Find the parts of the entries at offsets `at` of `data`.

        base     position of `data` in the file
        lengths  of keys and values, if known
        pos      positions of the entries, if `data` is not a range of the file
        """
        self.storage, self.layout, self.base, self.data = storage, layout, base, data
        self.raw: UInt8 = np.frombuffer(data, np.uint8)
        self.at, self.pos = at, at + base if pos is None else pos
        where = at + layout.delflag
        self.key = where + layout.key.prefix
        self.key_len = lengths[0] if lengths else lengths_at(data, where, layout.key)
        where = self.key + _taken(layout.key, self.key_len)
        self.value = where + layout.value.prefix
        self.value_len = lengths[1] if lengths else lengths_at(data, where, layout.value)
        self.end = self.value + _taken(layout.value, self.value_len) + layout.checksum
        self.flags: UInt8 = self.raw[at] if layout.delflag else np.zeros(len(at), np.uint8)
        self.whole = len(at) == 0 or bool(self.end[-1] <= len(data))

    def __len__(self) -> int:
        return len(self.at)

    def words(self, where: Int64, count: int, dtype: str) -> npt.NDArray[np.generic]:
        """Gather `count` numbers of `dtype` (like ">i8") from each offset -> [n, count]."""
        width = np.dtype(dtype).itemsize * count
        if len(where) == 0:
            return np.empty((0, count), dtype)
        return rows_at(self.raw, where, width).view(dtype)

    def keys(self, chosen: Int64) -> list[bytes]:
        """Return the keys of the entries with these indices."""
        return list(map(bytes, self.key_views(chosen)))

    def key_views(self, chosen: Int64) -> Iterator[memoryview]:
        """Yield the keys of the entries with these indices, as views of the window."""
        return self.slices(self.key[chosen], self.key[chosen] + self.key_len[chosen])

    def first(self, count: int) -> Batch:
        """Return a batch of the first `count` entries, at least 1."""
        return Batch(self.storage, self.layout, self.base, self.data, self.at[:count])

    def entry(self, i: int) -> KVEntry:
        """Return one entry as an object, unchecked."""
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
        """Return the indices, among `chosen` or all, of entries with a wrong delflag, length or
        checksum."""
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
        return self.layout.sums_at(self.pos[index], self.data, starts, ends)

    def slices(self, starts: Int64, ends: Int64) -> Iterator[memoryview]:
        """Yield views of data[starts[i]:ends[i]]."""
        return map(self.data.__getitem__, map(slice, starts.tolist(), ends.tolist()))

    def _long_sum(self) -> int:
        state = xxhash.xxh3_64(seed=(self.layout.contid + int(self.pos[0])) & MASK64)
        at, stop = int(self.pos[0]) + self.layout.delflag, int(self.base + self.end[0]) - 4
        while at < stop and (chunk := self.storage.read(at, min(CHECK_CHUNK, stop - at))):
            state.update(chunk)
            at += len(chunk)
        return state.intdigest() & 0xFFFFFFFF


def entries_at(
    storage: Storage,
    layout: Layout,
    data: memoryview | bytes,
    at: Int64,
    pos: Int64,
    *,
    most: int = 1 << 62,
    heads: bool = False,
) -> tuple[Batch, Int64]:
    """Return, of the entries at offsets `at` of `data`, those that are completely in it, unchecked,
    and their indices.

    at     int64[n]; offsets outside of `data` are left out
    pos    int64[n]: their positions in the file
    most   largest wanted entry, bytes: in a hostile file many overlap
    heads  also return entries of which only the lengths are in `data`
    """
    limit, head = len(data), layout.delflag + layout.key.prefix
    which = np.flatnonzero((at >= 0) & (at + head <= limit))
    key_len = lengths_at(data, at[which] + layout.delflag, layout.key)
    value = at[which] + head + _taken(layout.key, key_len) + layout.value.prefix
    near = (key_len >= 0) & (key_len <= limit) & (value <= limit)
    which, key_len, value = which[near], key_len[near], value[near]
    value_len = lengths_at(data, value - layout.value.prefix, layout.value)
    end = value + _taken(layout.value, value_len) + layout.checksum
    near = (value_len >= 0) & (value_len <= most) & (end - at[which] <= most)
    near &= (end <= limit) | heads
    lengths, which = (key_len[near], value_len[near]), which[near]
    return Batch(storage, layout, 0, memoryview(data), at[which], lengths, pos[which]), which


def lengths_at(data: memoryview | bytes, at: Int64, field: Field) -> Int64:
    """Return the lengths of the strings of a field whose prefixes are at offsets `at`; a length of
    2^63 or more becomes negative."""
    if not field.prefix or not len(at):
        return np.full(len(at), field.room, np.int64)
    return rows_at(data, at, field.prefix).view(f">u{field.prefix}")[:, 0].astype(np.int64)


def values_at(
    data: memoryview, at: Int64, layout: Layout, pos: Int64, sizes: Int64, *, verify: bool = True
) -> tuple[Bools, Int64]:
    """Return which entries of the standard layout at offsets `at` of `data` are intact, not marked
    deleted, and have values of these sizes; and the offsets of their values in `data`.

    at      int64[n]; entries outside of `data` count as not intact
    pos     int64[n]: their positions in the file
    verify  False: do not compare their checksums
    """
    last = len(data) - 4  # of a checksum
    good = (at >= 0) & (at <= last - 7)
    if not good.any():
        return good, at
    begin = np.where(good, at, 0)
    value = begin + 7 + lengths_at(data, begin + 1, layout.key)
    good &= value + sizes <= last
    stop = np.where(good, value + sizes, last)
    good &= lengths_at(data, np.where(good, value, 4) - 4, layout.value) == sizes
    good &= np.frombuffer(data, np.uint8)[begin] == 0
    if verify:
        sums = layout.sums_at(pos, data, begin + 1, stop)
        good &= sums == column(rows_at(data, stop, 4), ">u4", 0)
    return good, value


def _taken(field: Field, lengths: Int64) -> Int64:
    """Return the bytes that the strings of a field take after their prefixes."""
    return lengths if field.room < 0 else np.full(len(lengths), field.room, np.int64)


def scan(
    storage: Storage,
    layout: Layout,
    start: int,
    stop: int,
    *,
    uncached: bool = True,
    progress: Callable[[int], None] | None = None,
    problem: Callable[[CorruptError], None] | None = None,
) -> Iterator[Batch]:
    """Walk the entries in [start, stop) -> batches of at least one entry.

    start     position of an entry
    stop      logical end: the last entry ends there
    uncached  page-cache policy of the pass
    progress  called with the number of bytes done since the last call
    problem   called with each alignment gap that is not zero; None: raise CorruptError
    raises    CorruptError if an entry reaches past `stop`
    cost      one read for each 8 MiB; memory: one window, at most 64 MiB
    """
    keep_heap()
    walk = _walk_standard if layout.standard else partial(_walk_any, layout)
    pos, size = layout.aligned(start), WINDOW
    with contextlib.closing(storage.bulk(start, stop, uncached=uncached)) as reader:
        while pos < stop:
            asked = min(size, stop - pos)
            data = reader.read(pos, asked)
            found, end = walk(data)
            if not len(found):
                if len(data) < asked:
                    raise CorruptError("file is shorter than FILESIZE", file=storage.name,
                                       offset=pos)  # fmt: skip
                size = _needed(storage, layout, data, pos, stop)
                if size <= MAX_WINDOW:
                    continue
                found, end = [0], size
            size = WINDOW
            at, lengths = np.asarray(found, np.int64), None
            if at.ndim == 2:
                at, *known = np.ascontiguousarray(at.T)
                lengths = known[0], known[1]
            batch = Batch(storage, layout, pos, data, at, lengths)
            if layout.align > 1:
                _check_gaps(batch, min(stop, layout.aligned(pos + end)), problem)
            if progress:
                progress(end)
            pos = layout.aligned(pos + end)
            yield batch


def scan_intact(
    storage: Storage,
    layout: Layout,
    start: int,
    stop: int,
    *,
    problem: Callable[[CorruptError], None],
    uncached: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Batch]:
    """Walk the entries in [start, stop) and check them all -> batches of intact ones.

    A damaged range is skipped, up to the next intact entry that `resynchronise` finds. Since the
    checksum depends on the position, content that resembles an entry is not taken for one.

    problem  called with each damaged range
    raises   CorruptError if a length is damaged in a file without checksums
    cost     as `scan`, and one checksum for each entry; damage: see `resynchronise`
    """
    pos = start
    while pos < stop:
        try:
            for batch in scan(
                storage, layout, pos, stop, uncached=uncached, progress=progress, problem=problem
            ):
                bad = batch.bad()
                if len(bad) and int(bad[0]):
                    yield batch.first(int(bad[0]))
                if len(bad):
                    pos = int(batch.pos[bad[0]])
                    break
                yield batch
                pos = layout.aligned(int(batch.base + batch.end[-1]))
            else:
                return
        except FormatError:
            if not layout.checksum:
                raise
        found = _next_good(storage, layout, pos, stop)
        problem(DamagedRange(file=storage.name, offset=pos, stop=found, last=found >= stop))
        pos = found


def _next_good(storage: Storage, layout: Layout, pos: int, stop: int) -> int:
    """Return the position of the first intact entry after a damaged one; `stop`: there is none."""
    head = storage.read(pos, min(OVERLAP, stop - pos))
    end = min(layout.aligned(pos + max(layout.locate(head, 0).end, layout.minimum)), stop)
    if not layout.checksum:  # only the delflag is wrong, so the length can be used
        return end
    # An intact entry where its length leads is no coincidence. Others may come before that.
    near = end if end == stop or _is_good(storage, layout, end, stop) else stop
    return resynchronise(storage, layout, pos + 1, stop, near)


def resynchronise(
    storage: Storage, layout: Layout, start: int, stop: int, limit: int | None = None
) -> int:
    """Find the first position from `start` on with an intact entry.

    After more than TRUSTED_TRIES candidates the entry after it must be intact, too, unless it is
    the last. Entries with keys of more than 64 KiB are not found.
    stop    end of the last entry
    limit   where to give up; None: `stop`
    ->      its position; `limit`: there is none before
    cost    grows with the bytes searched
    """
    limit = stop if limit is None else limit
    pos, size, budget, hashed, tried = start, FIRST_SEARCH, HASH_BUDGET, 0, 0
    with contextlib.closing(storage.bulk(start, stop)) as reader:
        while pos < limit:
            data = reader.read(pos, min(size + OVERLAP, stop - pos))
            count = min(size, limit - pos)
            for at, end in _candidates(storage, layout, pos, data, count, stop):
                if end - at > ALWAYS_CHECKED and hashed > budget:  # a hostile file has many
                    continue
                hashed, tried = hashed + end - at, tried + 1
                if end <= len(data):
                    body = data[at + layout.delflag : end - 4]
                    good = layout.sum(pos + at, body) == data[end - 4 : end]
                else:
                    good = _is_good(storage, layout, pos + at, pos + end)
                following = layout.aligned(pos + end)
                sure = tried <= TRUSTED_TRIES or following >= stop
                if good and (sure or _is_good(storage, layout, following, stop)):
                    return pos + at
            pos, size, budget = pos + size, SEARCH_STEP, budget + 16 * size
        return limit


def _candidates(
    storage: Storage, layout: Layout, base: int, data: memoryview, count: int, stop: int
) -> Iterator[tuple[int, int]]:
    """Yield start and end, in a window, of possible entries, judged by delflags and lengths."""
    raw = np.frombuffer(data, np.uint8)
    step = max(layout.align, 1)
    at = np.arange(-base % step, min(count, len(raw) - layout.minimum + 1), step)
    if layout.delflag:
        at = at[raw[at] <= 1]
    # Skip zeros: an entry of zeros would be empty, and its checksum is not zero.
    set_at = np.append(np.flatnonzero(raw), len(raw) + layout.minimum)
    at = at[set_at[np.searchsorted(set_at, at)] - at < layout.minimum]
    found, _ = entries_at(storage, layout, data, at, at + base, most=stop - base, heads=True)
    at, end = found.at, found.end
    keep = (end > at) & (end + base <= stop)
    keep &= (found.key_len <= layout.key.limit) & (found.value_len <= layout.value.limit)
    if layout.delflag and layout.align <= 1:  # the next entry begins with a delflag, too
        inside = np.flatnonzero(keep & (end < len(raw)))
        keep[inside] = raw[end[inside]] <= 1
    return zip(at[keep].tolist(), end[keep].tolist(), strict=True)


def _is_good(storage: Storage, layout: Layout, pos: int, stop: int) -> bool:
    """Return whether an intact entry begins at `pos` and ends at or before `stop`."""
    try:
        layout.read(storage.read, pos, stop, storage.name, OVERLAP)
    except CorruptError:
        return False
    return True


def _walk_standard(data: memoryview) -> tuple[list[int] | Int64, int]:
    """Return the offsets of the complete entries in `data`, and the end of the last one, in the
    standard layout.

    The compiled path returns int64[n, 3]: offsets, and lengths of keys and values.
    """
    if native.code is not None:
        rows, end = native.code.walk(data)
        return np.frombuffer(rows, np.int64).reshape(-1, 3), end
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


def dead_bytes(storage: Storage, layout: Layout, start: int, stop: int) -> int:
    """Return the bytes of the entries in [start, stop) that are marked deleted.

    raises  CorruptError, see `scan`
    cost    one pass
    """
    return sum(
        int((taken * flags).sum()) for _, taken, flags in spans(storage, layout, start, stop)
    )


def spans(
    storage: Storage, layout: Layout, start: int, stop: int
) -> Iterator[tuple[Int64, Int64, UInt8]]:
    """Yield of the entries in [start, stop) positions, the bytes up to the next one, and delflags.

    raises  CorruptError, see `scan`
    cost    one pass
    """
    for batch in scan(storage, layout, start, stop):
        end = min(layout.aligned(int(batch.base + batch.end[-1])), stop)
        yield batch.pos, np.diff(batch.pos, append=end), batch.flags


def _walk_any(layout: Layout, data: memoryview) -> tuple[list[int], int]:
    """Return the offsets of the complete entries in `data`, and the end of the last one."""
    found: list[int] = []
    end = at = 0
    while (span := layout.locate(data, at)).end <= len(data):
        found.append(at)
        end = span.end
        at = layout.aligned(end)
    return found, end


def _needed(storage: Storage, layout: Layout, data: memoryview, pos: int, stop: int) -> int:
    """Return the bytes to read for the entry at `pos`, which does not fit into `data`."""
    span = layout.locate(data, 0)
    if pos + span.end > stop:
        raise CorruptError("entry reaches past the end", file=storage.name, offset=pos)
    if span.end > MAX_WINDOW and span.value > len(data):
        raise FormatError(
            f"{storage.name}: the key at byte {pos} is longer than a scan takes, {MAX_WINDOW} bytes"
        )
    return span.end


def _check_gaps(
    batch: Batch, next_pos: int, problem: Callable[[CorruptError], None] | None
) -> None:
    """Check that the bytes between entries, and up to the one after the batch, are zero."""
    gaps = batch.at[1:] - batch.end[:-1]
    wrong = [
        i
        for i in np.flatnonzero(gaps).tolist()
        if batch.raw[int(batch.end[i]) : int(batch.at[i + 1])].any()
    ]
    last = int(batch.base + batch.end[-1])
    if any(batch.storage.read(last, next_pos - last)):
        wrong.append(len(batch) - 1)
    for i in wrong:
        offset, file = int(batch.base + batch.end[i]), batch.storage.name
        error = CorruptError("padding is not zero", file=file, offset=offset)
        if problem is None:
            raise error
        problem(error)
