"""Survey: the inodes of a data file as columns, by range or by positions.

inode_rows  every batch of a range with its inode entries as they are stored, all entries checked
files_at    the files whose inodes stand at given positions, as a FileTable
read_rows   the same with what their attributes say, as the catalog has them

Most inodes are gathered as rows of one matrix, whatever the layout of their entries; one that is
large, has several extents, or is damaged is read by itself. Damage goes to a callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64, column_at, fetch, rows_at, texts_at
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.kv.entry import Layout
from winkformats.kv.scan import Batch, EntryRows, entry_rows, lengths_at, scan_intact
from winkformats.kv.sequence import KVSeq
from winkfs.container.ondisk.data import INODE_BYTES, Settings
from winkfs.container.ondisk.inode import (
    ATTRS,
    HEAD,
    HIGHEST,
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
    NOTHING,
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
NONE: Final = np.empty(0, np.int64)
FIELDS: Final = 7  # int64 words of an inode before its pairs
SPAN: Final = 8 << 20  # bytes of the data file read at once
FILES: Final = 2048  # inodes of a piece, at most
DENSE: Final = 16 << 10  # bytes a file below which reading all beats reading inodes one by one
FEW: Final = 1024  # inodes whose pages may stay in the page cache: to find what to drop costs more
KEYS: Final = 255  # bytes of the longest key that becomes part of a row
VALUES: Final = 1024  # bytes of the largest inode that does
APART: Final = 512  # bytes read of an entry that is read for itself
SEVERAL: Final = 8  # of these, above which the disk is asked for all before the first is waited for
LONGEST: Final = KEYS + VALUES + 32  # bytes of such an entry, at most
POWERS: Final = np.array([16**i for i in range(1, 16)], np.int64)
ATTRS_READ: Final = 512  # bytes read first of an entry of attributes


# --- a range, as it is stored ---


@dataclass(frozen=True, slots=True)
class InodeRows:
    """The inode entries of one batch, as columns of n rows in file order.

    which     int64[n]  their indices in the batch
    pos       int64[n]  kv_pointers
    deleted   bool[n]   delflag
    fields    int64[n, 7]  CKSUM .. DCOUNT; zeros for a tombstone
    size      int64[n]  bytes of the inode's value; 0 for a tombstone
    """

    batch: Batch
    which: Int64
    pos: Int64
    deleted: npt.NDArray[np.bool_]
    fields: Int64
    size: Int64

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
    def others(self) -> Int64:
        """Indices of the entries of the batch that are not among these."""
        chosen = np.ones(len(self.batch), bool)
        chosen[self.which] = False
        return np.flatnonzero(chosen)

    def value(self, row: int) -> bytes:
        return self.batch.entry(int(self.which[row])).value

    def places(self, form: InodeForm) -> tuple[Int64, Int64]:
        """Of the pairs of all inodes that have room for theirs, in file order: the row of each, and
        where it stands in the window, int64[m]."""
        count = self.fields[:, 6]
        count = np.where((count > 0) & (count <= (self.size - HEAD.size) // form.pair), count, 0)
        row = np.repeat(np.arange(len(count)), count)
        number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        return row, self.batch.value[self.which[row]] + HEAD.size + number * form.pair

    def pairs(self, form: InodeForm) -> tuple[Int64, Int64]:
        """The same pairs: the row of each, int64[m]; (kv_pointer, skip, size), int64[m, 3], the
        first of attributes with size < 0."""
        row, where = self.places(form)
        pairs = self.batch.words(where, form.pair // 8, ">i8").astype(np.int64)
        return row, pairs if form.pairoff else np.insert(pairs, 1, 0, axis=1)

    def firsts(self, settings: Settings) -> Int64:
        """Position of the first entry of each file: its inode or what it points to before that."""
        found, (row, pairs) = self.pos.copy(), self.pairs(settings.form)
        there = pairs[:, 0] > 0
        np.minimum.at(found, row[there], pairs[there, 0])
        return found


def is_inode(batch: Batch) -> npt.NDArray[np.bool_]:
    """Which entries of the batch are inodes: those whose key ends in "/I0"."""
    tail = batch.key + batch.key_len
    raw = batch.raw
    found = (batch.key_len >= 3) & (tail <= len(raw))  # a damaged length may point anywhere
    if not found.any():
        return found
    if not batch.whole:
        key = batch.keys(np.array([0]))[0]
        return found & key.endswith(INODE)
    last = np.where(found, tail, 3)
    found &= (raw[last - 1] == 0x30) & (raw[last - 2] == 0x49) & (raw[last - 3] == 0x2F)
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
    known_bad: Int64 | None = None,
) -> InodeRows:
    """The inode entries of a batch, each checked; a bad one is handed to `problem` and left out.

    known_bad  indices of the bad entries of the batch, where they are known already
    """
    which = np.flatnonzero(is_inode(batch))
    if len(which) and not batch.whole:  # one that is larger than a window
        data = memoryview(batch.storage.read(batch.base, int(batch.end[0])))
        batch = Batch(batch.storage, batch.layout, batch.base, data, batch.at)
    bad = set((batch.bad(which) if known_bad is None else known_bad).tolist())
    bad &= set(which.tolist()) if bad else bad
    size = batch.value_len[which]
    short = (size != 0) & (size < HEAD.size)
    for i in [*bad, *which[short].tolist()]:
        problem(CorruptError("bad inode entry", file=batch.storage.name, offset=int(batch.pos[i])))
    keep = ~short
    if bad:
        keep &= ~np.isin(which, list(bad))
    which, size = which[keep], size[keep]
    full = size > 0
    fields = np.zeros((len(which), FIELDS), np.int64)
    fields[full] = batch.words(batch.value[which[full]], FIELDS, ">i8")
    deleted = batch.flags[which] == 1
    rows = InodeRows(batch, which, batch.pos[which], deleted, fields, size)
    return rows if batch.layout.checksum else _check_inodes(rows, settings, problem)


def _check_inodes(rows: InodeRows, settings: Settings, problem: Problem) -> InodeRows:
    """Check CKSUM one by one, where no entry checksum covers the inode already."""
    good = np.ones(len(rows.which), bool)
    for i in np.flatnonzero(rows.size).tolist():
        try:
            offset, file = int(rows.pos[i]), rows.batch.storage.name
            Inode.decode(rows.value(i), settings.form, file=file, offset=offset)
        except CorruptError as error:
            problem(error)
            good[i] = False
    return InodeRows(
        rows.batch, rows.which[good], rows.pos[good], rows.deleted[good], rows.fields[good],
        rows.size[good],
    )  # fmt: skip


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
        yield batch, rows_of(batch, settings, problem, NONE)


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

    def take(self, index: Int64) -> Decoded:
        words = None if self.words is None else self.words[index]
        return Decoded(self.table.take(index), self.attrs[index], words)

    @classmethod
    def concat(cls, parts: list[Decoded]) -> Decoded:
        words = [np.full(len(p.attrs), None, object) if p.words is None else p.words for p in parts]
        return cls(
            FileTable.concat([part.table for part in parts]),
            np.concatenate([part.attrs for part in parts]), np.concatenate(words),
        )  # fmt: skip


NONE_DECODED: Final = Decoded(NOTHING, np.empty((0, 2), np.int64), None)


class Inodes:
    """Decodes the inodes of a container.

    problem  called with each damaged inode, which is left out; None: CorruptError
    checked  the checksums of the entries were found right
    storage  of the data file; None: that of the handle, which may be closed before `ordinary` is
             called
    """

    def __init__(
        self,
        kv: KVSeq,
        settings: Settings,
        problem: Problem | None,
        *,
        checked: bool = False,
        storage: Storage | None = None,
    ) -> None:
        self._kv, self._storage, self._problem = kv, storage or kv.storage, problem
        self._start, self._end, self._name = kv.start, kv.end, kv.storage.name
        self._layout, self._form, self._settings = kv.layout, settings.form, settings
        self._key_at = kv.layout.delflag + kv.layout.key.prefix  # of a key in its entry
        self._words = settings.form.pair // 8  # of a pair
        self._checked = checked

    def near(self, positions: Int64, data: memoryview, base: int) -> Decoded:
        """The files with inodes at `positions`; `data`: bytes of the file from `base` on."""
        found = self._all(positions, data, positions - base)
        return self._with_words(found, data, base)

    def ordinary(self, positions: Int64, data: memoryview, base: int) -> tuple[Decoded, Int64]:
        """-> those that are ordinary and good, and their indices among the positions."""
        found, which = self.gathered(positions, data, positions - base)
        return self._with_words(found, data, base), which

    def apart(self, positions: Int64) -> Decoded:
        """The same where there is too much between the inodes to read it."""
        inside = np.flatnonzero((positions >= self._start) & (positions <= self._end - APART))
        # Through the view there is a page fault each: that takes 1.8 times as long.
        if len(inside) > SEVERAL:
            for start in positions[inside].tolist():
                self._storage.read_ahead(start, APART)
        at = np.full(len(positions), -1)
        data, at[inside] = fetch(self._storage, positions[inside], APART)
        return self._all(positions, memoryview(data), at)

    def _all(self, positions: Int64, data: memoryview, at: Int64) -> Decoded:
        """`at`: offsets of the entries in `data`, negative for those that are not there."""
        found, which = self.gathered(positions, data, at)
        if len(which) == len(positions):
            return found
        odd = np.ones(len(positions), bool)
        odd[which] = False
        alone = [one for pos in positions[odd].tolist() if (one := self._alone(pos))]
        if not alone:
            return found
        whole = Decoded.concat([found, *alone])
        return whole.take(np.argsort(whole.table.pos))

    # --- many ---

    def gathered(
        self, positions: Int64, data: memoryview | bytes, at: Int64
    ) -> tuple[Decoded, Int64]:
        """As `ordinary`, without attributes. `at`: offsets in `data`, as `_all` takes them."""
        rows = entry_rows(data, at, self._layout, (1 + len(INODE), KEYS), (HEAD.size, VALUES))
        if not len(rows.which):
            return NONE_DECODED, rows.which
        pos, words = positions[rows.which], 8 * (7 + 2 * self._words)
        wide = rows_at(rows.raw + bytes(words), rows.begin + rows.value, words)
        # CKSUM .. DCOUNT and two pairs, which may lie behind the end of an inode
        fields = wide.view(">i8").astype(np.int64)
        lsize = fields[:, 3]
        special, extents, extent = self._extents(fields)
        skip = extent[:, 1] if self._form.pairoff else np.zeros_like(lsize)
        one = (extents == 1) & (extent[:, -1] >= lsize) & (skip >= 0)
        good = self._sound(rows, pos, fields) & (one | ((extents == 0) & (lsize == 0)))
        plain = one & (extent[:, -1] == lsize) & (skip == 0) & (extent[:, 0] > 0) & (lsize > 0)
        plain &= good
        first = fields[:, 7 : 7 + self._words]
        attrs = np.where(special[:, None], first[:, [0, -1]], 0)
        follows = np.where(special, attrs[:, 0], pos)  # attributes stand between content and inode
        plain &= self._is_value(extent[:, 0], lsize, follows, fields[:, 2], plain)
        pointer = np.where(lsize == 0, EMPTY, np.where(plain, extent[:, 0], BY_INODE))
        kind = np.where(fields[:, 4] == 0, int(FileType.FILE), fields[:, 4]) + special * SPECIAL
        times, beyond = self._times(fields[:, 5])
        kind += beyond * ASK
        attrs[:, 1] = -attrs[:, 1]
        which, names_at, lengths = rows.which, rows.begin + self._key_at, rows.key_len - len(INODE)
        columns = [pos, fields[:, 2], lsize, times, pointer, kind]
        if not good.all():
            columns, attrs = [column[good] for column in columns], attrs[good]
            which, names_at, lengths = which[good], names_at[good], lengths[good]
        names = column_at(np.frombuffer(rows.raw, np.uint8), names_at, lengths)
        return Decoded(FileTable.of(names, *columns), attrs, None), which

    def _with_words(self, found: Decoded, data: memoryview, base: int) -> Decoded:
        """Take the attributes of files that lie in what was read, as they do beside an inode."""
        pos, size = found.attrs.T
        mine = np.flatnonzero(pos >= max(base, 1))
        if not len(mine):
            return found
        bounds = (4, 24), (ATTRS.size, ATTRS_READ)
        rows = entry_rows(data, pos[mine] - base, self._layout, *bounds)
        which = mine[rows.which]
        if not len(which):
            return found
        good = rows.value_len >= size[which]
        good &= rows.good(self._layout, pos[which])  # `checked` says it of inodes only
        begin = rows.begin + rows.value
        known = np.full(len(pos), None, object) if found.words is None else found.words
        words = rows.slices(begin, begin + size[which])
        for i, ok, word in zip(which.tolist(), good.tolist(), words, strict=True):
            if ok:
                known[i] = word
        return found._replace(words=known)

    def _sound(self, rows: EntryRows, pos: Int64, fields: Int64) -> Bools:
        """Which are inodes with a name and a right checksum, and fields that can be: bool[n]."""
        layout, form = self._layout, self._form
        tails = rows_at(rows.raw, rows.begin + self._key_at + rows.key_len - 4, 4)
        good: Bools = (tails[:, 1:] == INODE_BYTES).all(1) & (tails[:, 0] != 0)
        count = fields[:, 6]
        pairs_end = HEAD.size + count * form.pair
        good &= (count >= 0) & (count <= VALUES) & (pairs_end <= rows.value_len)
        good &= (fields[:, 1] == 0) & (fields[:, 2] >= 1) & (fields[:, 3] >= 0)
        good &= (fields[:, 4] >= 0) & (fields[:, 4] <= 255)
        if self._checked:
            return good
        good &= rows.good(layout, pos)
        if not layout.checksum:
            where = rows.begin + rows.value
            stops = where + np.clip(pairs_end, 8, rows.value_len)
            sums = np.fromiter(map(form.sum, rows.slices(where + 8, stops)), np.uint64, len(good))
            good &= sums.view(np.int64) == fields[:, 0]
        return good

    def _extents(self, fields: Int64) -> tuple[Bools, Int64, Int64]:
        """-> which have attributes, how many extents, the first of these: int64[n, 2 or 3]."""
        words, count = self._words, fields[:, 6]
        first, second = fields[:, 7 : 7 + words], fields[:, 7 + words :]
        special = (count > 0) & (first[:, -1] < 0)
        if not special.any():
            return special, count, first
        return special, count - special, np.where(special[:, None], second, first)

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
        layout, limit = self._layout, self._end
        found = np.full(len(pointer), -1, np.int64)
        which = np.flatnonzero((pointer >= self._start) & (pointer < limit - self._key_at))
        data, at = fetch(self._storage, pointer[which], APART)
        at += layout.delflag
        length = lengths_at(data, at, layout.key)
        value = at + layout.key.size(0) + (length if layout.key.room < 0 else 0)
        near = (length >= 0) & (length <= KEYS)
        near &= pointer[which] + value - at + layout.delflag + layout.value.prefix <= limit
        found[which[near]] = lengths_at(data, value[near], layout.value)
        return found

    def _times(self, mtime: Int64) -> tuple[Int64, Bools]:
        """-> mtimes in nanoseconds, and which of them int64 does not hold."""
        unit = self._settings.mtime_unit
        return nanoseconds(mtime, unit), ((mtime > HIGHEST) | (mtime < -HIGHEST)) & (unit > 1)

    # --- one ---

    def _alone(self, pos: int) -> Decoded | None:
        try:
            return self._decoded(pos)
        except CorruptError as error:
            if self._problem is None:
                raise
            self._problem(error)
            return None

    def _decoded(self, pos: int) -> Decoded:
        """Any inode. Raises CorruptError."""
        if not self._start <= pos < self._end:
            raise CorruptError("no entry", file=self._name, offset=pos)
        entry = self._kv.get(pos)
        inode = Inode.decode(entry.value, self._form, file=self._name, offset=pos)
        name = entry.key.removesuffix(INODE)
        if not name or name == entry.key or name.endswith(b"\0") or not 0 <= inode.ftype <= 255:
            raise CorruptError("no inode with a name", file=self._name, offset=pos)
        pointer, size = BY_INODE if inode.lsize else EMPTY, np.array([inode.lsize])
        if len(inode.extents) == 1 and inode.lsize and not inode.nexti:
            extent = inode.extents[0]
            whole = extent.pointer > 0 and extent.skip == 0 and extent.size == inode.lsize
            if whole and self._value_sizes(np.array([extent.pointer]))[0] == inode.lsize:
                pointer = extent.pointer
        times, beyond = self._times(np.array([inode.mtime]))
        kind = inode.ftype + (inode.attrs is not None) * SPECIAL + int(beyond[0]) * ASK
        names = np.array([0, len(name)]), np.frombuffer(name, np.uint8)
        table = FileTable.of(names, np.array([pos]), inode.fileid, size, times, pointer, kind)
        return Decoded(table, np.array([inode.attrs or (0, 0)]), None)

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
