"""Survey: the inodes of a data file as columns, by range or by positions.

inode_rows  yields each batch of a range with its inode entries as stored, all entries verified
files_at    returns the files whose inodes are at given positions, as a FileTable
with_attributes  yields them with all their attributes
read_rows   yields them with their attributes, as rows for the catalog

Most inodes are decoded together (`InodeRows`), in any layout of entries; an inode that is large,
builds on others, or is damaged is read by itself. Damage is passed to a callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats import native
from winkformats.arrays import Bools, Int64, column_at, ends_of, fetch, texts_at
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.hashing import xxh3_at
from winkformats.kv.entry import MASK64, Layout
from winkformats.kv.scan import Batch, entries_at, scan_intact
from winkformats.kv.sequence import KVSeq
from winkformats.lazy import cached_property
from winkfs.container.ondisk.data import INODE_BYTES, Settings
from winkfs.container.ondisk.inode import (
    ATTRS,
    BELOW,
    CK_XXH3,
    HEAD,
    HIGHEST,
    INT64,
    Attrs,
    Inode,
    InodeForm,
    nanoseconds,
)
from winkfs.container.ondisk.inode import CTIME as CTIME_NAME
from winkfs.container.ondisk.typed import is_whole
from winkfs.container.table import (
    ASK,
    BY_INODE,
    COLUMNS,
    CTIME,
    EMPTY,
    KIND,
    SPECIAL,
    Blobs,
    FileTable,
)
from winkfs.entry import FileType
from winkfs.names import INODE, name_of

if TYPE_CHECKING:
    from winkformats.native import Native
    from winkfs.container.datafile import DataFile

Problem = Callable[[CorruptError], None]
HEX: Final = np.full(256, -1, np.int64)
HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
FIELDS: Final = 7  # int64 words of an inode before its pairs
SPAN_BYTES: Final = 8 << 20  # of the data file read at once
TABLE_FILES: Final = 2048  # files of a table, at most
DENSE_BYTES: Final = 16 << 10  # a file, below which it is faster to read everything between inodes
CACHED_INODES: Final = 1024  # whose pages may stay in the page cache: finding them costs more
MAX_KEY: Final = 255  # bytes of a key after which the length of a value is read
ENTRY_READ_BYTES: Final = 512  # of an entry that is read by itself
READ_AHEAD_FROM: Final = 8  # such entries, from which all are requested before the first is read
MAX_BATCH_ENTRY: Final = 1312  # bytes of an entry that is decoded with others
POWERS: Final = np.array([16**i for i in range(1, 16)], np.int64)
ATTRS_READ_BYTES: Final = 512  # read first of an entry of attributes


# --- a range, as it is stored ---


class InodeRows:
    """The inode entries of a batch, as columns of n rows in file order.

    which     int64[n]  their indices in the batch
    pos       int64[n]  kv_pointers
    deleted   bool[n]   delflag
    size      int64[n]  bytes of the inode's value; 0 for a tombstone
    fields    int64[n, 7]  CKSUM .. DCOUNT; zeros for a tombstone
    """

    def __init__(self, batch: Batch, form: InodeForm, which: Int64) -> None:
        self.batch, self.form, self.which = batch, form, which
        self.pos, self.deleted = batch.pos[which], batch.flags[which] == 1
        self.size = batch.value_len[which]
        full = self.size > 0
        self.fields: Int64 = np.zeros((FIELDS, len(which)), np.int64).T  # columns are contiguous
        self.fields[full] = batch.words(batch.value[which[full]], FIELDS, ">i8")

    def take(self, chosen: Int64) -> InodeRows:
        """Return the rows with these indices, ascending."""
        if len(chosen) == len(self.which):
            return self
        return InodeRows(self.batch, self.form, self.which[chosen])

    @property
    def fileid(self) -> Int64:
        return self.fields[:, 2]

    @property
    def lsize(self) -> Int64:
        """Bytes of the file."""
        return self.fields[:, 3]

    @property
    def mtime(self) -> Int64:
        """As stored: seconds, or nanoseconds under MTIMENS."""
        return self.fields[:, 5]

    @property
    def keys(self) -> list[bytes]:
        """The keys, "<name>/I0"."""
        batch, which = self.batch, self.which
        return texts_at(batch.raw, batch.key[which], batch.key_len[which])

    @property
    def names(self) -> list[bytes]:
        batch, which = self.batch, self.which
        return texts_at(batch.raw, batch.key[which], batch.key_len[which] - len(INODE))

    @property
    def named(self) -> Bools:
        """True for inodes with a valid name, bool[n]."""
        ends = self.batch.key[self.which] + self.batch.key_len[self.which] - len(INODE)
        named: Bools = (ends > self.batch.key[self.which]) & (self.batch.raw[ends - 1] != 0)
        return named

    @property
    def others(self) -> Int64:
        """Indices of the other entries of the batch."""
        chosen = np.ones(len(self.batch), bool)
        chosen[self.which] = False
        return np.flatnonzero(chosen)

    def value(self, row: int) -> bytes:
        return self.batch.entry(int(self.which[row])).value

    @cached_property
    def counts(self) -> Int64:
        """Number of pairs of each inode; 0 if the pairs would exceed it, int64[n]."""
        count = self.fields[:, 6]
        room = (self.size - HEAD.size) // self.form.pair
        return np.where((count > 0) & (count <= room), count, 0)

    @cached_property
    def ends(self) -> Int64:
        """int64[n + 1]: the pairs of inode i are those from ends[i] to ends[i + 1] of all pairs."""
        return ends_of(self.counts)

    @cached_property
    def places(self) -> tuple[Int64, Int64]:
        """The m pairs of all inodes, in file order: row of each, and its offset in the window,
        int64[m]."""
        row = np.repeat(np.arange(len(self.counts)), self.counts)
        number = np.arange(len(row)) - self.ends[row]
        return row, self.batch.value[self.which[row]] + HEAD.size + number * self.form.pair

    @cached_property
    def pairs(self) -> tuple[Int64, Int64]:
        """The m pairs of all inodes: row of each, int64[m]; (kv_pointer, skip, size), int64[m, 3].
        A pair of attributes comes first in its inode, and has size < 0."""
        row, where = self.places
        pairs = np.zeros((3, len(row)), np.int64).T
        step = 1 if self.form.pairoff else 2
        pairs[:, ::step] = self.batch.words(where, self.form.pair // 8, ">i8")
        return row, pairs

    @cached_property
    def first(self) -> tuple[Int64, Int64, Int64]:
        """Of each inode the number of its extents, int64[n]; (kv_pointer, bytes) of its attributes,
        int64[2, n], zeros: none; its first extent, (kv_pointer, skip, size), int64[3, n]."""
        # Padded, so that an index after the last pair is valid.
        pairs = np.concatenate([self.pairs[1].T, np.zeros((3, 2), np.int64)], 1)
        first, count = self.ends[:-1], self.counts
        special = (count > 0) & (pairs[2, first] < 0)
        attrs = np.zeros((2, len(count)), np.int64)
        attrs[:, special] = pairs[::2, first[special]] * [[1], [-1]]
        return count - special, attrs, pairs[:, first + special]

    @cached_property
    def fit(self) -> Bools:
        """True for inodes that build on no other and whose fields and extents are consistent,
        bool[n]. CKSUM is not verified."""
        row, (pointer, skip, size) = self.pairs[0], self.pairs[1].T
        named = np.zeros(len(row), bool)  # attributes
        first = self.ends[:-1][self.counts > 0]
        named[first] = size[first] < 0
        reach = np.diff(ends_of(np.where(named, 0, size))[self.ends])
        fit: Bools = (self.size > 0) & (self.counts == self.fields[:, 6])
        fit &= (self.fields[:, 1] == 0) & (self.fileid >= 1) & (self.lsize >= 0)
        fit &= (self.fields[:, 4] >= 0) & (self.fields[:, 4] <= 255) & (reach >= self.lsize)
        wrong = (pointer == BELOW) | (skip < 0) | (size < 0) | (skip > INT64 - size)
        fit[row[wrong & ~named]] = False
        return fit

    @cached_property
    def sound(self) -> Bools:
        """True for inodes that `fit` and have a right CKSUM, bool[n]."""
        found = self.fit.copy()
        begin = self.batch.value[self.which[found]]
        end = begin + HEAD.size + self.counts[found] * self.form.pair
        if self.form.ckalgo == CK_XXH3:
            sums = xxh3_at(self.batch.data, begin + 8, end)
        else:
            bodies = self.batch.slices(begin + 8, end)
            sums = np.fromiter(map(self.form.sum, bodies), np.uint64, len(begin))
        found[found] = sums.view(np.int64) == self.fields[found, 0]
        return found

    @property
    def firsts(self) -> Int64:
        """Position of the first entry of each file: its inode, or an entry that it points to."""
        found, (row, pairs) = self.pos.copy(), self.pairs
        there = pairs[:, 0] > 0
        np.minimum.at(found, row[there], pairs[there, 0])
        return found


def is_inode(batch: Batch) -> npt.NDArray[np.bool_]:
    """Return which entries of a batch are inodes: their keys end in "/I0"."""
    tail, raw = batch.key + batch.key_len, batch.raw
    found = (batch.key_len >= 3) & (tail <= len(raw))  # a damaged length may point anywhere
    if not batch.whole:
        return found & batch.keys(np.array([0]))[0].endswith(INODE)
    slash, i, zero = INODE_BYTES[:, None] == batch.words(tail[found] - 3, 3, "u1").T
    found[found] = slash & i & zero
    return found


def chained(batch: Batch) -> npt.NDArray[np.bool_]:
    """Return which entries of a batch are inodes that build on others."""
    found = is_inode(batch) & (batch.value_len >= HEAD.size)
    found &= batch.value + HEAD.size <= len(batch.raw)
    found[found] = batch.words(batch.value[found] + 8, 1, ">i8")[:, 0] != 0
    return found


def fileids(batch: Batch, chosen: Int64) -> Int64:
    """Return the FILEIDs that the keys of these entries begin with, int64[n]; 0: none."""
    found, at = np.zeros(len(chosen), np.int64), batch.key[chosen]
    end = np.minimum(at + batch.key_len[chosen], len(batch.raw))
    going = np.ones(len(chosen), bool)
    for digit in range(16):
        where = at + digit
        value = HEX[batch.raw[np.minimum(where, len(batch.raw) - 1)]]
        going &= (where < end) & (value >= 0)
        if not going.any():
            break
        found = np.where(going, found << 4 | value, found)
    return found


def rows_of(
    batch: Batch,
    settings: Settings,
    problem: Problem,
    *,
    checked: bool = False,
) -> InodeRows:
    """Return the inode entries of a batch, verified; a bad one is passed to `problem` and left out.

    checked  the entries of the batch were verified already
    """
    which = np.flatnonzero(is_inode(batch))
    if len(which) and not batch.whole:  # an entry larger than a window
        data = memoryview(batch.storage.read(batch.base, int(batch.end[0])))
        batch = Batch(batch.storage, batch.layout, batch.base, data, batch.at)
    size = batch.value_len[which]
    short = which[(size != 0) & (size < HEAD.size)]
    bad = short if checked else np.union1d(short, batch.bad(which))
    for offset in batch.pos[bad].tolist():
        problem(CorruptError("bad inode entry", file=batch.storage.name, offset=offset))
    if len(bad):
        which = np.setdiff1d(which, bad, assume_unique=True)
    rows = InodeRows(batch, settings.form, which)
    if batch.layout.checksum:
        return rows
    wrong = []  # without checksums of entries, that of the inode is verified
    for row in np.flatnonzero((rows.size > 0) & ~rows.sound).tolist():
        try:
            offset, file = int(rows.pos[row]), batch.storage.name
            Inode.decode(rows.value(row), settings.form, file=file, offset=offset)
        except CorruptError as error:
            problem(error)
            wrong.append(row)
    return rows.take(np.delete(np.arange(len(rows.pos)), wrong))


def inode_rows(
    storage: Storage,
    layout: Layout,
    settings: Settings,
    start: int,
    stop: int,
    *,
    problem: Problem,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[Batch, InodeRows]]:
    """Yield every batch of [start, stop) with its inode entries; all its entries are verified.

    problem  called with each damage, which is skipped
    raises   CorruptError if a length is damaged in a file without checksums: the next entry is
             not known
    """
    for batch in scan_intact(storage, layout, start, stop, problem=problem, progress=progress):
        yield batch, rows_of(batch, settings, problem, checked=True)


# --- positions, as a table ---


class Decoded(NamedTuple):
    """Decoded files, and positions of their attributes, which the table does not have yet.

    attrs   int64[n, 2]: kv_pointer and bytes of the attributes; 0, 0: there are none
    words   object[n]: the verified bytes of attributes that were read with the inodes, else None;
            None: no file has any
    """

    table: FileTable
    attrs: Int64
    words: Blobs | None


class Inodes:
    """Decodes the inodes of a container.

    problem  called with each damaged inode, which is left out; None: CorruptError is raised
    storage  of the data file; None: that of `kv`
    """

    def __init__(
        self,
        kv: KVSeq,
        settings: Settings,
        problem: Problem | None,
        *,
        storage: Storage | None = None,
    ) -> None:
        self._kv, self._storage, self._problem = kv, storage or kv.storage, problem
        self._start, self._end, self._name = kv.start, kv.end, kv.storage.name
        self._layout, self._settings = kv.layout, settings
        self._compiled = kv.layout.standard and settings.form.ckalgo == CK_XXH3

    def near(self, positions: Int64, data: memoryview, base: int) -> Decoded:
        """Decode the inodes at `positions`; `data`: bytes of the file from `base` on."""
        return self._with_words(self._all(positions, data, positions - base), data, base)

    def table(self, positions: Int64, data: memoryview, base: int) -> FileTable:
        """Decode as `near`, without attributes."""
        return self._all(positions, data, positions - base).table

    def ordinary(self, positions: Int64, data: memoryview, base: int) -> tuple[Decoded, Int64]:
        """Decode the inodes at `positions` that are ordinary and intact -> these, and their indices
        among the positions."""
        found, which = self.gathered(positions, data, positions - base)
        return self._with_words(found, data, base), which

    def of(self, rows: InodeRows) -> Decoded:
        """Decode verified entries."""
        found, which = self._decoded(rows)
        batch = rows.batch
        return self._with_words(self._filled(found, which, rows.pos), batch.data, batch.base)

    def apart(self, positions: Int64) -> Decoded:
        """Decode the inodes at `positions`, which are far apart: each is read by itself."""
        last = self._end - ENTRY_READ_BYTES
        inside = np.flatnonzero((positions >= self._start) & (positions <= last))
        # Read, not mapped: a mapping would take a page fault for each.
        if len(inside) > READ_AHEAD_FROM:
            for start in positions[inside].tolist():
                self._storage.read_ahead(start, ENTRY_READ_BYTES)
        at = np.full(len(positions), -1)
        data, at[inside] = fetch(self._storage, positions[inside], ENTRY_READ_BYTES)
        return self._all(positions, data, at)

    def _all(self, positions: Int64, data: memoryview | bytes, at: Int64) -> Decoded:
        """Decode the inodes at `positions`. `at`: their offsets in `data`, negative: not in it."""
        return self._filled(*self.gathered(positions, data, at), positions)

    def _filled(self, found: Decoded, which: Int64, positions: Int64) -> Decoded:
        """Add the inodes at the positions other than `which`, read one by one."""
        if len(which) == len(positions):
            return found
        alone = [one for pos in np.delete(positions, which).tolist() if (one := self._alone(pos))]
        tables, attrs, _ = zip(found, *alone, strict=True)
        table = FileTable.concat(tables)
        order = np.argsort(table.pos)
        return Decoded(table.take(order), np.concatenate(attrs)[order], None)

    # --- many ---

    def gathered(
        self, positions: Int64, data: memoryview | bytes, at: Int64
    ) -> tuple[Decoded, Int64]:
        """Decode as `ordinary`, without attributes. `at`: offsets in `data`, as in `_all`."""
        if native.code is not None and self._compiled and len(positions):
            found = self._rows(native.code, positions, data, at)
            if found is not None:
                return found, np.arange(len(positions))
        batch, there = entries_at(
            self._storage, self._layout, data, at, positions, most=MAX_BATCH_ENTRY
        )
        rows = rows_of(batch, self._settings, lambda error: None)
        found, which = self._decoded(rows)
        return found, there[rows.which[which]]

    def _rows(
        self, code: type[Native], positions: Int64, data: memoryview | bytes, at: Int64
    ) -> Decoded | None:
        """Decode inodes in one compiled pass; None: one of them is not ordinary, or is damaged."""
        n, settings = len(positions), self._settings
        numbers, attrs = np.empty((len(COLUMNS), n), np.int64), np.empty((n, 2), np.int64)
        ends = np.empty(n + 1, np.int64)
        names = code.table(
            data, np.ascontiguousarray(at), np.ascontiguousarray(positions), settings.pairoff,
            self._layout.contid & MASK64, settings.mtime_unit, numbers, attrs, ends,
        )  # fmt: skip
        if names is None:
            return None
        return Decoded(FileTable((ends, np.frombuffer(names, np.uint8)), numbers.T), attrs, None)

    def _decoded(self, rows: InodeRows) -> tuple[Decoded, Int64]:
        """Return the files that have a name and whose inodes fit, and their indices among the
        rows."""
        which = np.flatnonzero(rows.fit & rows.named)
        return self._files(rows.take(which)), which

    def _files(self, rows: InodeRows) -> Decoded:
        """Return the files of inodes that have a name and a right number of pairs."""
        fields, lsize, (extents, attrs, first) = rows.fields, rows.lsize, rows.first
        content, skip, size = first
        plain = (extents == 1) & (size == lsize) & (skip == 0) & (content > 0) & (lsize > 0)
        plain &= fields[:, 1] == 0
        special = attrs[1] > 0
        follows = np.where(special, attrs[0], rows.pos)  # attributes are between the two
        plain &= self._is_value(content, lsize, follows, rows.fileid, plain)
        pointer = np.where(lsize == 0, EMPTY, np.where(plain, content, BY_INODE))
        unit, mtime = self._settings.mtime_unit, rows.mtime
        beyond = ((mtime > HIGHEST) | (mtime < -HIGHEST)) & (unit > 1)  # as ns, not in int64
        kind = np.where(fields[:, 4] == 0, int(FileType.FILE), fields[:, 4])
        kind += special * SPECIAL + beyond * ASK
        columns = rows.pos, rows.fileid, lsize, nanoseconds(mtime, unit), pointer, kind
        batch, which = rows.batch, rows.which
        names = column_at(batch.raw, batch.key[which], batch.key_len[which] - len(INODE))
        return Decoded(FileTable.of(names, *columns), attrs.T, None)

    def _with_words(self, found: Decoded, data: memoryview, base: int) -> Decoded:
        """Add the attributes that are in `data`, as those beside their inode are."""
        pos, size = found.attrs.T
        mine = np.flatnonzero(pos >= max(base, 1))
        if not len(mine):
            return found
        at, pos = pos[mine] - base, pos[mine]
        batch, there = entries_at(self._storage, self._layout, data, at, pos, most=MAX_BATCH_ENTRY)
        mine = mine[there]
        good = batch.value_len >= size[mine]
        good[batch.bad()] = False
        mine, begin = mine[good], batch.value[good]
        known = np.full(len(size), None, object)
        for i, word in zip(mine.tolist(), batch.slices(begin, begin + size[mine]), strict=True):
            known[i] = bytes(word)
        return found._replace(words=known)

    def _is_value(
        self, pointer: Int64, size: Int64, pos: Int64, fileid: Int64, asked: Bools
    ) -> Bools:
        """Return whether the value of the entry at `pointer` has `size` bytes, bool[n].

        The entry need not be read if `pos`, the start of the next entry of the file, is its end
        with the shortest possible key, "<fileid>/D0".
        """
        layout = self._layout
        found = np.zeros(len(pos), bool)
        if layout.key.room < 0 and layout.value.room < 0 and layout.align <= 1:
            digits = 1 + np.searchsorted(POWERS, fileid, "right")
            found = asked & (pointer + layout.size(3, 0) + digits + size == pos)
        left = np.flatnonzero(asked & ~found)
        if len(left):
            found[left] = self._value_sizes(pointer[left]) == size[left]
        return found

    def _value_sizes(self, pointer: Int64) -> Int64:
        """Return the sizes of the values of these entries, unverified; -1: no entry. int64[n]"""
        found, layout = np.full(len(pointer), -1, np.int64), self._layout
        last = self._end - layout.delflag - layout.key.prefix
        which = np.flatnonzero((pointer >= self._start) & (pointer < last))
        data, at = fetch(self._storage, pointer[which], ENTRY_READ_BYTES)
        batch, there = entries_at(self._storage, layout, data, at, pointer[which], heads=True)
        near = batch.key_len <= MAX_KEY
        found[which[there[near]]] = batch.value_len[near]
        return found

    # --- one ---

    def _alone(self, pos: int) -> Decoded | None:
        """Decode any inode by itself; None: it is damaged."""
        try:
            if not self._start <= pos < self._end:
                raise CorruptError("no entry", file=self._name, offset=pos)
            entry, form = self._kv.get(pos), self._settings.form
            inode = Inode.decode(entry.value, form, file=self._name, offset=pos)
            data, place = self._kv.storage.read(pos, entry.size), np.array([pos])
            batch, which = entries_at(self._storage, self._layout, data, np.array([0]), place)
            rows = InodeRows(batch, form, which[is_inode(batch)])
            if not rows.named.any() or not 0 <= inode.ftype <= 255:
                raise CorruptError("no inode with a name", file=self._name, offset=pos)
            return self._files(rows)
        except CorruptError as error:
            if self._problem is None:
                raise
            self._problem(error)
            return None

    # --- attributes ---

    def complete(self, found: Decoded, *, typed: bool) -> FileTable:
        """Return the files with mode, owner and ctime; ASK is set if attributes cannot be read.

        typed   with the values of columns of the user
        cost    reads attributes that are not beside their inodes
        """
        table, which = found.table, np.flatnonzero(found.table.special)
        if not len(which):
            return table
        words = [None] * len(which) if found.words is None else found.words[which].tolist()
        places, read, known = found.attrs[which].tolist(), list[int](), list[bytes]()
        for i, (pos, size), word in zip(which.tolist(), places, words, strict=True):
            # Attributes of the usual form need no slow decoding.
            if word is None or CTIME_NAME in word or not is_whole(word, ATTRS.size):
                try:
                    word = word or self._attrs_at(pos)[:size]
                    attrs = Attrs.decode(word, file=self._name, offset=pos)
                except CorruptError:
                    table.numbers[i, KIND] |= ASK
                    continue
                if attrs.ctime_ns is not None:
                    table.numbers[i, CTIME] = attrs.ctime_ns
            read.append(i)
            known.append(word)
        good = table.attribute(read, known)
        if typed:
            table.values = np.full(len(table), b"", object)
            for i, word, sound in zip(read, known, good.tolist(), strict=True):
                if sound:
                    table.values[i] = word[ATTRS.size :]
        return table

    def _attrs_at(self, pos: int) -> bytes:
        read, end = self._storage.read, self._end
        return self._layout.read(read, pos, end, self._name, ATTRS_READ_BYTES).value


def _surveyed(
    store: DataFile, positions: Int64, problem: Problem | None
) -> Iterator[tuple[Inodes, Decoded]]:
    """Yield the files whose inodes are at `positions`, ascending, int64[n], some at a time."""
    if not len(positions):
        return
    kv = store.kv
    kv.show(kv.end - 1)  # all of it written
    storage = kv.storage.duplicate()
    many = len(positions) > CACHED_INODES
    if many:
        storage.remember_resident()
    reader = storage.bulk(int(positions[0]), kv.end, uncached=many)
    inodes, at = Inodes(kv, store.settings, problem), 0
    try:
        while at < len(positions):
            begin, stop = int(positions[at]), min(at + TABLE_FILES, len(positions))
            if int(positions[stop - 1]) - begin < DENSE_BYTES * (stop - at):
                stop = max(int(np.searchsorted(positions[:stop], begin + SPAN_BYTES)), at + 1)
            span = int(positions[stop - 1]) - begin
            if kv.start <= begin < kv.end and span < DENSE_BYTES * (stop - at):
                data = reader.read(begin, min(span + MAX_BATCH_ENTRY, kv.end - begin))
                yield inodes, inodes.near(positions[at:stop], data, begin)
            else:
                yield inodes, inodes.apart(positions[at:stop])
            at = stop
    finally:
        reader.close()
        storage.drop_seen()
        storage.close()


def files_at(
    store: DataFile, positions: Int64 | None = None, problem: Problem | None = None
) -> FileTable:
    """Return the files whose inodes are at `positions`, ascending; None: all live files.

    The table has no modes, owners and ctimes, but which files have attributes. A writer has settled
    its changes before.

    problem  called with each damaged inode, which is left out; None: CorruptError is raised
    raises   CorruptError; OSError
    cost     reads the inodes, and the bytes between them if these are few. The page cache keeps
             none of more than CACHED_INODES inodes
    """
    if positions is None:
        positions = store.index.positions()
    return FileTable.concat([found.table for _, found in _surveyed(store, positions, problem)])


def with_attributes(
    store: DataFile, positions: Int64, problem: Problem | None = None
) -> Iterator[FileTable]:
    """Yield the files whose inodes are at these ascending positions, with mode, owner and ctime.

    Their `values` are all their extended attributes; ASK is set if these cannot be read.
    problem, raises, cost  as `files_at`
    """
    for inodes, found in _surveyed(store, positions, problem):
        yield inodes.complete(found, typed=True)


def read_rows(
    store: DataFile, positions: Int64, lost: Problem | None = None
) -> Iterator[FileTable]:
    """Yield rows of the files whose inodes are at these ascending positions.

    lost  called with each damaged inode that is left out, because even its name is uncertain; None:
          all damage is recorded in `store.notes`
    """
    damaged: list[CorruptError] = []
    for inodes, found in _surveyed(store, positions, damaged.append):
        yield inodes.complete(found, typed=bool(store.schema))
    sure = list[tuple[bytes, int]]()
    for error in damaged:
        key = store.key_at(error.offset)
        if key and store.index.lookup(key) == error.offset:
            sure.append((name_of(key), error.offset))
        elif lost is not None:
            lost(error)
        if lost is None:
            store.note(error)
    places = np.array([pos for _, pos in sure], np.int64)
    yield FileTable.of([name for name, _ in sure], places, kind=ASK | FileType.UNKNOWN)
