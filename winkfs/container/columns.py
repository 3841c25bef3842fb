"""Columns: what is known of many files of a container, as arrays in the order of their inodes.

`Columns.of` reads it from the data file: most inodes are gathered as rows of one matrix, whatever
the layout of their entries; one that is large, has several extents, or is damaged is read by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from winkformats.arrays import (
    Bools,
    Int64,
    UInt8,
    among,
    column_at,
    fetch,
    gather,
    rows_at,
    texts_at,
)
from winkformats.errors import CorruptError
from winkformats.kv.scan import EntryRows, entry_rows, lengths_at
from winkfs.container.derived import Opened
from winkfs.container.ondisk.data import INODE_BYTES
from winkfs.container.ondisk.inode import (
    ATTRS,
    HEAD,
    HIGHEST,
    PERMISSIONS,
    UINT32,
    Attrs,
    FileType,
    Inode,
    nanoseconds,
)
from winkfs.container.ondisk.inode import CTIME as CTIME_NAME
from winkfs.container.ondisk.typed import is_whole
from winkfs.container.rows import (
    ASK,
    CTIME,
    KIND,
    MODE_AT,
    OWNER,
    SPECIAL,
    Blobs,
    Plain,
    Rows,
    owner_word,
    owner_words,
    plain_numbers,
)
from winkfs.names import INODE, name_of

Problem = Callable[[CorruptError], None]
SPAN: Final = 8 << 20  # bytes of the data file read at once
FILES: Final = 2048  # inodes of a piece
DENSE: Final = 16 << 10  # bytes a file below which reading all beats reading inodes one by one
FEW: Final = 1024  # inodes whose pages may stay in the page cache: to find what to drop costs more
KEYS: Final = 255  # bytes of the longest key that becomes part of a row
VALUES: Final = 1024  # bytes of the largest inode that does
APART: Final = 512  # bytes read of an entry that is read for itself
SEVERAL: Final = 8  # of these, above which the disk is asked for all before the first is waited for
LONGEST: Final = KEYS + VALUES + 32  # bytes of such an entry, at most
POWERS: Final = np.array([16**i for i in range(1, 16)], np.int64)
ATTRS_READ: Final = 512  # bytes read first of an entry of attributes
_INTS, _BYTES = np.empty(0, np.int64), np.empty(0, np.uint8)
BY_INODE: Final = -1  # in `pointer`: the content is found by way of the inode
EMPTY: Final = 0  # in `pointer`: a file without content


class Piece(NamedTuple):
    """Some files: the fields of `Columns`, with the lengths of the names for their ends.

    fileid      int64[n]  FILEID
    attrs       int64[n]  kv_pointer of the attributes, 0: none; attrs_size: their bytes
    nearest     bool[n]   whether int64 cannot hold the mtime
    words       object[n] the bytes of the attributes, checked, where they lay in what was read
    """

    pos: Int64
    pointer: Int64
    size: Int64
    mtime: Int64
    ftype: UInt8
    special: UInt8
    lengths: Int64
    name_bytes: UInt8
    fileid: Int64
    attrs: Int64
    attrs_size: Int64
    nearest: Bools
    words: Blobs


NONE: Final = Piece(
    _INTS, _INTS, _INTS, _INTS, _BYTES, _BYTES, _INTS, _BYTES, _INTS, _INTS, _INTS,
    np.empty(0, np.bool_), np.empty(0, np.object_),
)  # fmt: skip


def pieces(store: Opened, positions: Int64, problem: Problem | None) -> Iterator[Piece]:
    """The files whose inodes stand at `positions`, ascending, int64[n]: see `Columns.of`."""
    if not len(positions):
        return
    kv = store.kv
    kv.show(kv.end - 1)  # all of it written
    storage = kv.storage.duplicate()
    if len(positions) > FEW:
        storage.remember_resident()
    reader = storage.bulk(int(positions[0]), kv.end, uncached=len(positions) > FEW)
    scan = InodeScan(store, problem)
    at = 0
    try:
        while at < len(positions):
            begin, stop = int(positions[at]), min(at + FILES, len(positions))
            if int(positions[stop - 1]) - begin < DENSE * (stop - at):
                stop = max(int(np.searchsorted(positions[:stop], begin + SPAN)), at + 1)
            span = int(positions[stop - 1]) - begin
            if kv.start <= begin < kv.end and span < DENSE * (stop - at):
                data = reader.read(begin, min(span + LONGEST, kv.end - begin))
                yield scan.piece(positions[at:stop], data, begin)
            else:
                yield scan.apart(positions[at:stop])
            at = stop
    finally:
        reader.close()
        storage.drop_seen()
        storage.close()


class InodeScan:
    """Decodes the inodes of a container.

    problem  called with each damaged inode, which is left out; None: CorruptError
    checked  the checksums of the entries were found right
    """

    def __init__(self, store: Opened, problem: Problem | None, *, checked: bool = False) -> None:
        kv, settings = store.kv, store.settings
        self._kv, self._storage, self._problem = kv, kv.storage, problem
        self._start, self._end, self._name = kv.start, kv.end, kv.storage.name
        self._layout, self._form, self._settings = kv.layout, settings.form, settings
        self._key_at = kv.layout.delflag + kv.layout.key.prefix  # of a key in its entry
        self._words = settings.form.pair // 8  # of a pair
        self._checked = checked

    def piece(self, positions: Int64, data: memoryview, base: int) -> Piece:
        """The files with inodes at `positions`; `data`: bytes of the file from `base` on."""
        found = self._piece(positions, data, positions - base)
        if found.special.any():
            self._add_words(found, data, base)
        return found

    def ordinary(self, positions: Int64, data: memoryview, base: int) -> tuple[Piece, Int64]:
        """-> those that are ordinary and good, and their indices among the positions."""
        found, which = self._rows(data, positions - base, positions)
        if found.special.any():
            self._add_words(found, data, base)
        return found, which

    def apart(self, positions: Int64) -> Piece:
        """The same where there is too much between the inodes to read it."""
        inside = np.flatnonzero((positions >= self._start) & (positions <= self._end - APART))
        # Through the view there is a page fault each: that takes 1.8 times as long.
        if len(inside) > SEVERAL:
            for start in positions[inside].tolist():
                self._storage.read_ahead(start, APART)
        at = np.full(len(positions), -1)
        data, at[inside] = fetch(self._storage, positions[inside], APART)
        return self._piece(positions, memoryview(data), at)

    def _piece(self, positions: Int64, data: memoryview, at: Int64) -> Piece:
        """`at`: offsets of the entries in `data`, negative for those that are not there."""
        rows, which = self._rows(data, at, positions)
        if len(which) == len(positions):
            return rows
        odd = np.ones(len(positions), bool)
        odd[which] = False
        alone = [found for pos in positions[odd].tolist() if (found := self._alone(pos))]
        return _merged(rows, alone)

    # --- many ---

    def _rows(self, data: memoryview, at: Int64, positions: Int64) -> tuple[Piece, Int64]:
        """-> the ordinary and good ones, and their indices among the positions."""
        rows = entry_rows(data, at, self._layout, (1 + len(INODE), KEYS), (HEAD.size, VALUES))
        if not len(rows.which):
            return NONE, rows.which
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
        attrs = np.where(special, first[:, 0], 0)
        follows = np.where(special, attrs, pos)  # attributes stand between content and inode
        plain &= self._is_value(extent[:, 0], lsize, follows, fields[:, 2], plain)
        pointer = np.where(lsize == 0, 0, np.where(plain, extent[:, 0], -1))
        ftype = np.where(fields[:, 4] == 0, int(FileType.FILE), fields[:, 4])
        lengths = rows.key_len - len(INODE)
        found = Piece(
            pos, pointer, lsize, self._ns(fields[:, 5]), ftype.astype(np.uint8),
            special.astype(np.uint8), lengths, self._names(rows.matrix, lengths, good),
            fields[:, 2], attrs, np.where(special, -first[:, -1], 0), self._beyond(fields[:, 5]),
            np.full(len(pos), None, np.object_),
        )  # fmt: skip
        if not good.all():
            kept = [array if array is found.name_bytes else array[good] for array in found]
            found = Piece._make(kept)
        return found, rows.which[good]

    def _add_words(self, found: Piece, data: memoryview, base: int) -> None:
        """Take the attributes of files that lie in what was read, as they do beside an inode."""
        bounds = (4, 24), (ATTRS.size, ATTRS_READ)
        mine = np.flatnonzero(found.attrs >= base)
        rows = entry_rows(data, found.attrs[mine] - base, self._layout, *bounds)
        which = mine[rows.which]
        if not len(which):
            return
        good = rows.value_len >= found.attrs_size[which]
        good &= rows.good(self._layout, found.attrs[which])  # `checked` says it of inodes only
        begin = rows.begin + rows.value
        words = rows.slices(begin, begin + found.attrs_size[which])
        for i, ok, word in zip(which.tolist(), good.tolist(), words, strict=True):
            if ok:
                found.words[i] = word

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

    def _names(self, matrix: UInt8, lengths: Int64, good: Bools) -> UInt8:
        """The names of the good ones, one behind the other."""
        longest = int(lengths.max())
        # Numbers of 2 bytes: with 8 this takes as long as a checksum.
        inside = np.arange(longest, dtype=np.uint16) < lengths.astype(np.uint16)[:, None]
        if not good.all():
            inside &= good[:, None]
        names: UInt8 = matrix[:, self._key_at : self._key_at + longest][inside]
        return names

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

    def _ns(self, mtime: Int64) -> Int64:
        return nanoseconds(mtime, self._settings.mtime_unit)

    def _beyond(self, mtime: Int64) -> Bools:
        too_far: Bools = (mtime > HIGHEST) | (mtime < -HIGHEST)
        return too_far & (not self._settings.nanoseconds)

    # --- one ---

    def _alone(self, pos: int) -> Piece | None:
        try:
            return self._decoded(pos)
        except CorruptError as error:
            if self._problem is None:
                raise
            self._problem(error)
            return None

    def _decoded(self, pos: int) -> Piece:
        """Any inode. Raises CorruptError."""
        if not self._start <= pos < self._end:
            raise CorruptError("no entry", file=self._name, offset=pos)
        entry = self._kv.get(pos)
        inode = Inode.decode(entry.value, self._form, file=self._name, offset=pos)
        name = entry.key.removesuffix(INODE)
        if not name or name == entry.key or name.endswith(b"\0") or not 0 <= inode.ftype <= 255:
            raise CorruptError("no inode with a name", file=self._name, offset=pos)
        pointer, size = -1 if inode.lsize else 0, np.array([inode.lsize])
        if len(inode.extents) == 1 and inode.lsize and not inode.nexti:
            extent = inode.extents[0]
            whole = extent.pointer > 0 and extent.skip == 0 and extent.size == inode.lsize
            if whole and self._value_sizes(np.array([extent.pointer]))[0] == inode.lsize:
                pointer = extent.pointer
        attrs, mtime = inode.attrs or (0, 0), np.array([inode.mtime])
        return Piece(
            np.array([pos]), np.array([pointer]), size, self._ns(mtime),
            np.array([inode.ftype], np.uint8), np.array([inode.attrs is not None], np.uint8),
            np.array([len(name)]), np.frombuffer(name, np.uint8), np.array([inode.fileid]),
            np.array(attrs[:1]), np.array(attrs[1:]), self._beyond(mtime),
            np.full(1, None, np.object_),
        )  # fmt: skip


def _merged(rows: Piece, alone: list[Piece]) -> Piece:
    """All of them, in the order of their positions."""
    if not alone:
        return rows
    joined = [np.concatenate(parts) for parts in zip(rows, *alone, strict=True)]
    whole = Piece._make(joined)
    order = np.argsort(whole.pos)
    starts = np.cumsum(whole.lengths) - whole.lengths
    names = gather(whole.name_bytes, starts[order], whole.lengths[order])
    return Piece._make(names if array is whole.name_bytes else array[order] for array in whole)


@dataclass(frozen=True, slots=True)
class Columns:
    """n files of one container; the arrays are not to be changed.

    pos         int64[n]  kv_pointer of the inode, ascending
    pointer     int64[n]  kv_pointer of the one data entry whose value is the whole content;
                          EMPTY for none, BY_INODE for several extents, holes, parts of a value
    size        int64[n]  bytes
    mtime       int64[n]  nanoseconds since the epoch; what int64 cannot hold: its nearest
    ftype       uint8[n]  FileType
    special     uint8[n]  1: has attributes
    name_ends   int64[n + 1], name_bytes uint8[..]: names[i] is bytes[name_ends[i]:name_ends[i + 1]]

    Whoever reads the value at `pointer` has to check its checksum, and that it is `size` bytes.
    """

    pos: Int64
    pointer: Int64
    size: Int64
    mtime: Int64
    ftype: UInt8
    special: UInt8
    name_ends: Int64
    name_bytes: UInt8

    @classmethod
    def of(
        cls,
        store: Opened,
        positions: Int64 | None = None,
        problem: Callable[[CorruptError], None] | None = None,
    ) -> Self:
        """The files whose inodes stand at `positions`, ascending; None: all that are live.

        problem  called with each damaged inode, which is left out; None: CorruptError
        raises   CorruptError; OSError
        cost     reads the inodes, and what is between them where that is little.
                 Of more than 1,024 the page cache keeps nothing. A writer has settled what it put
        """
        if positions is None:
            positions = store.index.positions()
        return cls.concat([cls.joined(*piece) for piece in pieces(store, positions, problem)])

    @classmethod
    def joined(
        cls,
        pos: Int64,
        pointer: Int64,
        size: Int64,
        mtime: Int64,
        ftype: UInt8,
        special: UInt8,
        lengths: Int64,
        name_bytes: UInt8,
        *beside: Any,
    ) -> Self:
        """From the lengths of the names, int64[n], in the place of their ends. `beside`: what else
        a `Piece` has."""
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        return cls(pos, pointer, size, mtime, ftype, special, ends, name_bytes)

    @classmethod
    def concat(cls, parts: Sequence[Columns]) -> Self:
        """Parts one behind the other."""
        if len(parts) == 1:
            return cls(*parts[0].arrays())
        if not parts:
            none, bare = np.empty(0, np.int64), np.empty(0, np.uint8)
            return cls.joined(none, none, none, none, bare, bare, none, bare)
        lengths = [part.name_lengths for part in parts]
        texts = [part.names_joined for part in parts]
        columns = list(zip(*(part.arrays()[:6] for part in parts), strict=True))
        return cls.joined(*map(np.concatenate, [*columns, lengths, texts]))

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """All arrays, in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def __len__(self) -> int:
        return len(self.pos)

    def slice(self, start: int, stop: int) -> Self:
        """The files [start, stop), 0 <= start <= stop <= n, without a copy."""
        part = slice(start, stop)
        return type(self)(
            self.pos[part], self.pointer[part], self.size[part], self.mtime[part],
            self.ftype[part], self.special[part], self.name_ends[start : stop + 1],
            self.name_bytes,
        )  # fmt: skip

    def between(self, low: int, high: int) -> Self:
        """The files whose inodes stand in [low, high), without a copy."""
        start, stop = np.searchsorted(self.pos, [low, max(low, high)]).tolist()
        return self.slice(start, stop)

    def take(self, index: npt.NDArray[Any]) -> Self:
        """The files with these indices, int64[m] in any order, or those marked, bool[n]."""
        index = np.flatnonzero(index) if index.dtype == np.bool_ else index
        starts, lengths = self.name_ends[:-1][index], self.name_lengths[index]
        return self.joined(
            self.pos[index], self.pointer[index], self.size[index], self.mtime[index],
            self.ftype[index], self.special[index], lengths,
            gather(self.name_bytes, starts, lengths),
        )  # fmt: skip

    def visible(self, hidden: Int64 | None, *, include_dirs: bool) -> Self:
        """Without files whose inodes are in `hidden`, ascending, and without directories and
        links."""
        seen = np.ones(len(self), np.bool_)
        if hidden is not None and len(hidden):
            seen = ~among(self.pos, hidden)
        if not include_dirs:
            seen &= (self.ftype != FileType.DIR) & (self.ftype != FileType.LINK)
        return self if seen.all() else self.take(seen)

    # --- names ---

    @property
    def name_lengths(self) -> Int64:
        """Bytes of each name, int64[n]."""
        return np.diff(self.name_ends)

    @property
    def names_joined(self) -> UInt8:
        """The names of just these files, one behind the other."""
        return self.name_bytes[self.name_ends[0] : self.name_ends[-1]]

    def names(self) -> list[bytes]:
        """The names of these files, one bytes object each. Cost: grows with the names."""
        return texts_at(self.name_bytes, self.name_ends[:-1], self.name_lengths)

    def name(self, index: int) -> bytes:
        """One name."""
        return self.name_bytes[self.name_ends[index] : self.name_ends[index + 1]].tobytes()


def columns_of(rows: Rows | Plain) -> Columns:
    """What rows of the catalog say, in their order."""
    if isinstance(rows, Rows):
        rows = Plain.of(rows)
    return Columns.joined(
        rows.pos, rows.pointer, rows.size, rows.mtime, (rows.kind & 255).astype(np.uint8),
        (rows.kind & SPECIAL != 0).astype(np.uint8), rows.lengths, rows.name_bytes,
    )  # fmt: skip


def rows_of(store: Opened, piece: Piece) -> Rows:
    """Some files that were read, in the order of their inodes."""
    starts = np.cumsum(piece.lengths) - piece.lengths
    numbers, values = numbers_of(store, piece)
    return Rows(column_at(piece.name_bytes, starts, piece.lengths), numbers, values)


def read_rows(store: Opened, positions: Int64, lost: Problem | None = None) -> Iterator[Rows]:
    """Rows of the files whose inodes stand at these ascending positions.

    lost  is called with each damaged inode that is left out, because not even its name is sure;
          None: those that are damaged are noted
    """
    damaged: list[CorruptError] = []
    for piece in pieces(store, positions, damaged.append):
        yield rows_of(store, piece)
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
    yield Rows([name for name, _ in sure], plain_numbers(places, kind=ASK | FileType.UNKNOWN))


def numbers_of(store: Opened, piece: Piece) -> tuple[Int64, Blobs | None]:
    """The COLUMNS of some files, int64[n, 8], and the `values` of their rows.

    cost    reads the attributes of files that have some, where they do not lie beside the inodes
    """
    numbers = plain_numbers(
        piece.pos, piece.fileid, piece.size, piece.mtime, piece.pointer, piece.ftype
    )
    numbers[piece.nearest, KIND] |= ASK
    which = np.flatnonzero(piece.special)
    if not len(which):
        return numbers, None
    values = np.full(len(numbers), b"", object)
    _add_attributes(store, numbers, values, which, piece)
    return numbers, values if store.schema else None


def _add_attributes(
    store: Opened, numbers: Int64, values: Blobs, which: Int64, piece: Piece
) -> None:
    """Fill in what the attributes of these rows say; where they cannot be read, the inode has to
    be asked."""
    storage, end = store.kv.storage, store.kv.end
    name, layout = storage.name, store.kv.layout
    words = piece.words[which].tolist()
    # What is simple needs no dictionary: of four attributes a third of the time.
    simple = [w is not None and CTIME_NAME not in w and is_whole(w, ATTRS.size) for w in words]
    heads = b"".join(w[: ATTRS.size] for w, ok in zip(words, simple, strict=True) if ok)
    mode, uid, gid = np.frombuffer(heads, ">i8").astype(np.int64).reshape(-1, 3).T
    good = (mode >= 0) & (mode <= PERMISSIONS) & (uid >= 0) & (uid <= UINT32)
    good &= (gid >= 0) & (gid <= UINT32)
    rows = which[np.array(simple, bool)]
    if not good.all():
        simple, rows, good = [False] * len(words), which[:0], good[:0]
        mode, uid, gid = mode[:0], uid[:0], gid[:0]
    numbers[rows, KIND] |= mode << MODE_AT
    numbers[rows, OWNER] = owner_words(uid, gid)
    numbers[which, KIND] |= SPECIAL
    places = zip(piece.attrs[which].tolist(), piece.attrs_size[which].tolist(), strict=True)
    for i, (pos, size), known, ok in zip(which.tolist(), places, words, simple, strict=True):
        if ok:
            values[i] = known[ATTRS.size :]
            continue
        try:
            word = known or layout.read(storage.read, pos, end, name, ATTRS_READ).value[:size]
            attrs = Attrs.decode(word, file=name, offset=pos)
        except CorruptError:
            numbers[i, KIND] |= ASK
            continue
        values[i] = word[ATTRS.size :]
        numbers[i, KIND] |= attrs.mode << MODE_AT
        numbers[i, OWNER] = owner_word(attrs.uid, attrs.gid)
        if attrs.ctime_ns is not None:
            numbers[i, CTIME] = attrs.ctime_ns
