"""Survey: the inodes of a data file as columns, by range or by positions.

inode_rows  every batch of a range with its inode entries as they are stored, all entries checked
files_at    the files whose inodes stand at given positions, as a FileTable
read_rows   the same with what their attributes say, as the catalog has them

Most inodes are decoded together (`InodeRows`), whatever the layout of their entries; one that is
large, builds on others, or is damaged is read by itself. Damage goes to a callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64, column_at, ends_of, fetch, texts_at
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.hashing import xxh3_at
from winkformats.kv.entry import Layout
from winkformats.kv.scan import Batch, entries_at, scan_intact
from winkformats.kv.sequence import KVSeq
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
    from winkfs.container.datafile import DataFile

Problem = Callable[[CorruptError], None]
HEX: Final = np.full(256, -1, np.int64)
HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
FIELDS: Final = 7  # int64 words of an inode before its pairs
SPAN: Final = 8 << 20  # bytes of the data file read at once
FILES: Final = 2048  # inodes of a piece, at most
DENSE: Final = 16 << 10  # bytes a file below which reading all beats reading inodes one by one
FEW: Final = 1024  # inodes whose pages may stay in the page cache: to find what to drop costs more
KEYS: Final = 255  # bytes of a key behind which the length of a value is looked for
APART: Final = 512  # bytes read of an entry that is read for itself
SEVERAL: Final = 8  # of these, above which the disk is asked for all before the first is waited for
LONGEST: Final = 1312  # bytes of an entry that is decoded with others, at most
POWERS: Final = np.array([16**i for i in range(1, 16)], np.int64)
ATTRS_READ: Final = 512  # bytes read first of an entry of attributes


# --- a range, as it is stored ---


class InodeRows:
    """Inode entries of a batch, as columns of n rows in file order.

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
        self.fields: Int64 = np.zeros((FIELDS, len(which)), np.int64).T  # each column in one piece
        self.fields[full] = batch.words(batch.value[which[full]], FIELDS, ">i8")

    def take(self, chosen: Int64) -> InodeRows:
        """Return some of them: ascending indices."""
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
        """Which have a name that can be."""
        ends = self.batch.key[self.which] + self.batch.key_len[self.which] - len(INODE)
        named: Bools = (ends > self.batch.key[self.which]) & (self.batch.raw[ends - 1] != 0)
        return named

    @property
    def others(self) -> Int64:
        """Indices of the entries of the batch that are not among these."""
        chosen = np.ones(len(self.batch), bool)
        chosen[self.which] = False
        return np.flatnonzero(chosen)

    def value(self, row: int) -> bytes:
        return self.batch.entry(int(self.which[row])).value

    @cached_property
    def counts(self) -> Int64:
        """How many pairs each has; 0 where it has no room for them, int64[n]."""
        count = self.fields[:, 6]
        room = (self.size - HEAD.size) // self.form.pair
        return np.where((count > 0) & (count <= room), count, 0)

    @cached_property
    def ends(self) -> Int64:
        """Where among the pairs of all inodes those of each begin, and the last ones end."""
        return ends_of(self.counts)

    @cached_property
    def places(self) -> tuple[Int64, Int64]:
        """Of the pairs of all inodes, in file order: the row of each, and where it stands in the
        window, int64[m]."""
        row = np.repeat(np.arange(len(self.counts)), self.counts)
        number = np.arange(len(row)) - self.ends[row]
        return row, self.batch.value[self.which[row]] + HEAD.size + number * self.form.pair

    @cached_property
    def pairs(self) -> tuple[Int64, Int64]:
        """The same pairs: the row of each, int64[m]; (kv_pointer, skip, size), int64[m, 3], the
        first of attributes with size < 0."""
        row, where = self.places
        pairs = np.zeros((3, len(row)), np.int64).T
        step = 1 if self.form.pairoff else 2
        pairs[:, ::step] = self.batch.words(where, self.form.pair // 8, ">i8")
        return row, pairs

    @cached_property
    def fit(self) -> Bools:
        """Which can be all of an inode, but for CKSUM: those that build on no other, and have
        fields and extents that fit together, bool[n]."""
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
        """Which of those that fit have a right CKSUM, too, bool[n]."""
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
        """Position of the first entry of each file: its inode or what it points to before that."""
        found, (row, pairs) = self.pos.copy(), self.pairs
        there = pairs[:, 0] > 0
        np.minimum.at(found, row[there], pairs[there, 0])
        return found


def is_inode(batch: Batch) -> npt.NDArray[np.bool_]:
    """Which entries of the batch are inodes: those whose key ends in "/I0"."""
    tail, raw = batch.key + batch.key_len, batch.raw
    found = (batch.key_len >= 3) & (tail <= len(raw))  # a damaged length may point anywhere
    if not batch.whole:
        return found & batch.keys(np.array([0]))[0].endswith(INODE)
    slash, i, zero = INODE_BYTES[:, None] == batch.words(tail[found] - 3, 3, "u1").T
    found[found] = slash & i & zero
    return found


def chained(batch: Batch) -> npt.NDArray[np.bool_]:
    """Which entries of the batch are inodes that build on others."""
    found = is_inode(batch) & (batch.value_len >= HEAD.size)
    found &= batch.value + HEAD.size <= len(batch.raw)
    found[found] = batch.words(batch.value[found] + 8, 1, ">i8")[:, 0] != 0
    return found


def fileids(batch: Batch, chosen: Int64) -> Int64:
    """The number in front of the / in the keys of these entries: the FILEID their keys name."""
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
    """The inode entries of a batch, each checked; a bad one is handed to `problem` and left out.

    checked  the entries of the batch were found good
    """
    which = np.flatnonzero(is_inode(batch))
    if len(which) and not batch.whole:  # one that is larger than a window
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
    wrong = []  # no checksum of entries covers them
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
    """Every batch of [start, stop) with its inode entries, all entries of it checked.

    problem  called with what is damaged, which is skipped
    raises   CorruptError where the chain of entries breaks and there are no checksums to find where
             it goes on
    """
    for batch in scan_intact(storage, layout, start, stop, problem=problem, progress=progress):
        yield batch, rows_of(batch, settings, problem, checked=True)


# --- positions, as a table ---


class Decoded(NamedTuple):
    """Some files, and where their attributes are, which the table does not have yet.

    attrs   int64[n, 2]: kv_pointer and bytes of the attributes; 0, 0: there are none
    words   object[n]: the bytes of the attributes, checked, where they lay in what was read; None:
            no file has any
    """

    table: FileTable
    attrs: Int64
    words: Blobs | None


class Inodes:
    """Decodes the inodes of a container.

    problem  called with each damaged inode, which is left out; None: CorruptError
    storage  of the data file; None: that of the handle, which may be closed before `ordinary` is
             called
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

    def near(self, positions: Int64, data: memoryview, base: int) -> Decoded:
        """The files with inodes at `positions`; `data`: bytes of the file from `base` on."""
        return self._with_words(self._all(positions, data, positions - base), data, base)

    def ordinary(self, positions: Int64, data: memoryview, base: int) -> tuple[Decoded, Int64]:
        """-> those that are ordinary and good, and their indices among the positions."""
        found, which = self.gathered(positions, data, positions - base)
        return self._with_words(found, data, base), which

    def of(self, rows: InodeRows) -> Decoded:
        """The files of checked entries."""
        found, which = self._decoded(rows)
        batch = rows.batch
        return self._with_words(self._filled(found, which, rows.pos), batch.data, batch.base)

    def apart(self, positions: Int64) -> Decoded:
        """The same where there is too much between the inodes to read it."""
        inside = np.flatnonzero((positions >= self._start) & (positions <= self._end - APART))
        # Through the view there is a page fault each: that takes 1.8 times as long.
        if len(inside) > SEVERAL:
            for start in positions[inside].tolist():
                self._storage.read_ahead(start, APART)
        at = np.full(len(positions), -1)
        data, at[inside] = fetch(self._storage, positions[inside], APART)
        return self._all(positions, data, at)

    def _all(self, positions: Int64, data: memoryview | bytes, at: Int64) -> Decoded:
        """`at`: offsets of the entries in `data`, negative for those that are not there."""
        return self._filled(*self.gathered(positions, data, at), positions)

    def _filled(self, found: Decoded, which: Int64, positions: Int64) -> Decoded:
        """Add those of the positions that are not among the found ones, `which`."""
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
        """As `ordinary`, without attributes. `at`: offsets in `data`, as `_all` takes them."""
        batch, there = entries_at(self._storage, self._layout, data, at, positions, most=LONGEST)
        rows = rows_of(batch, self._settings, lambda error: None)
        found, which = self._decoded(rows)
        return found, there[rows.which[which]]

    def _decoded(self, rows: InodeRows) -> tuple[Decoded, Int64]:
        """-> those that have a name and build on no other, and their indices among the rows."""
        which = np.flatnonzero(rows.fit & rows.named)
        return self._files(rows.take(which)), which

    def _files(self, rows: InodeRows) -> Decoded:
        """Inodes with a name and a right number of pairs."""
        fields, count, lsize, first = rows.fields, rows.counts, rows.lsize, rows.ends[:-1]
        pairs = np.concatenate([rows.pairs[1].T, np.zeros((3, 2), np.int64)], 1)  # behind the last
        special = (count > 0) & (pairs[2, first] < 0)
        attrs = np.zeros((len(count), 2), np.int64)
        attrs[special] = pairs[::2, first[special]].T * (1, -1)
        content, skip, size = pairs[:, first + special]
        plain = (count - special == 1) & (size == lsize) & (skip == 0) & (content > 0) & (lsize > 0)
        plain &= fields[:, 1] == 0
        follows = np.where(special, attrs[:, 0], rows.pos)  # attributes stand between the two
        plain &= self._is_value(content, lsize, follows, rows.fileid, plain)
        pointer = np.where(lsize == 0, EMPTY, np.where(plain, content, BY_INODE))
        unit, mtime = self._settings.mtime_unit, rows.mtime
        beyond = ((mtime > HIGHEST) | (mtime < -HIGHEST)) & (unit > 1)  # int64 does not hold it
        kind = np.where(fields[:, 4] == 0, int(FileType.FILE), fields[:, 4])
        kind += special * SPECIAL + beyond * ASK
        columns = rows.pos, rows.fileid, lsize, nanoseconds(mtime, unit), pointer, kind
        batch, which = rows.batch, rows.which
        names = column_at(batch.raw, batch.key[which], batch.key_len[which] - len(INODE))
        return Decoded(FileTable.of(names, *columns), attrs, None)

    def _with_words(self, found: Decoded, data: memoryview, base: int) -> Decoded:
        """Take the attributes of files that lie in what was read, as they do beside an inode."""
        pos, size = found.attrs.T
        mine = np.flatnonzero(pos >= max(base, 1))
        if not len(mine):
            return found
        at, pos = pos[mine] - base, pos[mine]
        batch, there = entries_at(self._storage, self._layout, data, at, pos, most=LONGEST)
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
        """Whether the value of the entry at `pointer` has `size` bytes.

        That needs no look at it where its end is `pos`, the start of the next entry of the file,
        and its key, as "<fileid>/D0", cannot be shorter.
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
        """Bytes of the values of these entries, unchecked; -1 for what is none. int64[n]"""
        found, layout = np.full(len(pointer), -1, np.int64), self._layout
        last = self._end - layout.delflag - layout.key.prefix
        which = np.flatnonzero((pointer >= self._start) & (pointer < last))
        data, at = fetch(self._storage, pointer[which], APART)
        batch, there = entries_at(self._storage, layout, data, at, pointer[which], heads=True)
        near = batch.key_len <= KEYS
        found[which[there[near]]] = batch.value_len[near]
        return found

    # --- one ---

    def _alone(self, pos: int) -> Decoded | None:
        """Any inode; None: it is damaged."""
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
        """The files with what their attributes say, those of which cannot be read to be asked.

        typed   with the values of columns of the user
        cost    reads attributes that do not lie beside their inodes
        """
        table, which = found.table, np.flatnonzero(found.table.special)
        if not len(which):
            return table
        words = [None] * len(which) if found.words is None else found.words[which].tolist()
        places, read, known = found.attrs[which].tolist(), list[int](), list[bytes]()
        for i, (pos, size), word in zip(which.tolist(), places, words, strict=True):
            # What is simple needs no dictionary: of four attributes a third of the time.
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
        return self._layout.read(read, pos, end, self._name, ATTRS_READ).value


def _surveyed(
    store: DataFile, positions: Int64, problem: Problem | None
) -> Iterator[tuple[Inodes, Decoded]]:
    """The files whose inodes stand at `positions`, ascending, int64[n], some at a time."""
    if not len(positions):
        return
    kv = store.kv
    kv.show(kv.end - 1)  # all of it written
    storage = kv.storage.duplicate()
    if len(positions) > FEW:
        storage.remember_resident()
    reader = storage.bulk(int(positions[0]), kv.end, uncached=len(positions) > FEW)
    inodes, at = Inodes(kv, store.settings, problem), 0
    try:
        while at < len(positions):
            begin, stop = int(positions[at]), min(at + FILES, len(positions))
            if int(positions[stop - 1]) - begin < DENSE * (stop - at):
                stop = max(int(np.searchsorted(positions[:stop], begin + SPAN)), at + 1)
            span = int(positions[stop - 1]) - begin
            if kv.start <= begin < kv.end and span < DENSE * (stop - at):
                data = reader.read(begin, min(span + LONGEST, kv.end - begin))
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
    """The files whose inodes stand at `positions`, ascending; None: all that are live. The table
    does not have what attributes say, but which files have some.

    problem  called with each damaged inode, which is left out; None: CorruptError
    raises   CorruptError; OSError
    cost     reads the inodes, and what is between them where that is little.
             Of more than 1,024 the page cache keeps nothing. A writer has settled what it put
    """
    if positions is None:
        positions = store.index.positions()
    return FileTable.concat([found.table for _, found in _surveyed(store, positions, problem)])


def read_rows(
    store: DataFile, positions: Int64, lost: Problem | None = None
) -> Iterator[FileTable]:
    """Rows of the files whose inodes stand at these ascending positions.

    lost  is called with each damaged inode that is left out, because not even its name is sure;
          None: those that are damaged are noted
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
