"""Scan: all files of a container in disk order, as of one moment.

A window passes over the data file, read in large pieces that do not stay in the page cache. Plain
inodes in it, of one extent, are decoded as columns, and their attributes when they are asked for;
any other is decoded by itself, and so is one that is damaged or not in the window from end to end.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest as xxh3

from winkformats import native
from winkformats.arrays import Bools, Int64, UInt8
from winkformats.errors import CorruptError
from winkformats.kv.entry import MASK64, PREFIXES, KVEntry
from winkformats.kv.scan import Batch, entries_at
from winkfs.container.ondisk.data import Settings
from winkfs.container.ondisk.inode import (
    ATTRS,
    CTIME,
    PERMISSIONS,
    Attrs,
    Extent,
    Inode,
    assemble,
    cut,
)
from winkfs.container.ondisk.inode import UINT32 as HIGHEST_ID
from winkfs.container.ondisk.typed import Declared, is_whole, to_values
from winkfs.container.read import Content
from winkfs.container.select import Query, between_times, positions_of
from winkfs.container.survey import DENSE_BYTES, SPAN_BYTES, TABLE_FILES, Decoded, Inodes, Problem
from winkfs.container.table import FileTable
from winkfs.entry import Entry, OpenEntry, default_mode, entries
from winkfs.names import name_of, to_str, to_strs
from winkfs.units import Time, to_ns

if TYPE_CHECKING:
    from winkfs.container.store import Store

SPARSE_FACTOR: Final = 8  # times the mean distance of files, beyond which they are read one by one
INODE_READ_BYTES: Final = 512  # for an inode alone
PIECE_BYTES: Final = 1 << 20  # of a large file that are read at once, except a larger entry
COPIED_BYTES: Final = 64 << 10  # of a file, up to which copying it twice costs little
UINT32: Final = PREFIXES[2].unpack_from
RUN_FILES: Final = 8  # files in a run, below which, on average, they are read one by one
RUN_BYTES: Final = 1 << 20  # of a file in a run, at most


@dataclass(frozen=True, slots=True, eq=False)
class SpecialEntry(Entry):
    """An entry with attributes, which are decoded at their first use, holes, or several extents.

    word     the valid bytes of its attribute entry; empty: it has none
    _pieces  None: its content is plain
    _ranges  None: the same
    """

    word: bytes = field(repr=False, compare=False)
    _shown: Declared = field(repr=False, compare=False)
    _pieces: Callable[[], Iterator[tuple[int, bytes]]] | None = field(repr=False, compare=False)
    _ranges: Callable[[], list[tuple[int, int]]] | None = field(repr=False, compare=False)

    @property
    def xattrs(self) -> Mapping[bytes, bytes]:
        if not self.word:
            return {}
        return self._shown.shown(Attrs.decode(self.word, file=self.name, offset=0).xattrs)

    @property
    def columns(self) -> dict[str, Any]:
        return to_values(self.xattrs)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        return self._pieces() if self._pieces else Entry.pieces(self)

    def ranges(self) -> list[tuple[int, int]]:
        return self._ranges() if self._ranges else Entry.ranges(self)


class _OpenAttributed(Entry):
    """A SpecialEntry with plain content whose fields can still be set."""

    __slots__ = ("_pieces", "_ranges", "_shown", "word")
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    def __init__(self: Any, *fields: Any) -> None:
        OpenEntry.__init__(self, *fields[:-2])
        self.word, self._shown = fields[-2:]
        self._pieces = self._ranges = None


def attributed(*fields: Any) -> SpecialEntry:
    """Return a SpecialEntry with plain content, from its fields in order."""
    made: Any = _OpenAttributed(*fields)
    made.__class__ = SpecialEntry
    return made  # type: ignore[no-any-return]


class Run(NamedTuple):
    """Files and directories without extended attributes that follow each other in a scan.

    table    their rows
    owner    (uid, gid) of those without attributes
    data     their contents, one behind the other, intact
    entries  yields them as entries instead
    """

    table: FileTable
    owner: tuple[int, int]
    data: UInt8
    entries: Callable[[], Iterator[Entry]]

    def held(self) -> Iterator[Entry]:
        """Yield them as entries whose contents are in memory."""
        table, view = self.table, self.data.data
        fileids, sizes, times, ftypes, modes, uids, gids, ctimes = self.table.stats(self.owner)
        ends = np.cumsum(sizes)
        bounds = zip((ends - sizes).tolist(), ends.tolist(), strict=True)
        reads = [view[start:end].tobytes for start, end in bounds]
        return entries(
            to_strs(table.names), fileids.tolist(), sizes.tolist(), times.tolist(), ftypes.tolist(),
            modes.tolist(), uids.tolist(), gids.tolist(), ctimes.tolist(), reads,
        )  # fmt: skip


class Window:
    """Reads inodes and contents in disk order, from the data file that was open at the start.

    contents  whether contents have been read: if so, those of the next files are read with their
              inodes. If not, only inodes are read if files are large
    """

    def __init__(self, store: Store) -> None:
        kv = store.kv
        self.storage = kv.storage.duplicate()
        self._layout, self._contid = kv.layout, kv.layout.contid
        self._inodes = Inodes(kv, store.settings, None, storage=self.storage)
        self._start, self._end = kv.start, kv.end
        self._reader = self.storage.bulk(self._start, self._end)
        self.contents = False
        self._usual = (self._end - self._start) // max(store.index.count, 1)
        weakref.finalize(self, self.storage.close)  # entries may be read after the scan's end
        self._base = 0
        self._data = memoryview(b"")

    def batch(self, positions: Int64, at: int) -> int:
        """Read inodes, and contents if wanted, of the files from positions[at] on -> index after
        the last of them."""
        begin = self._begin(positions, at)
        limit = int(np.searchsorted(positions, begin + SPAN_BYTES))
        stop = min(max(limit, at + 1), at + TABLE_FILES, len(positions))
        self._data, self._base = memoryview(b""), begin
        span, count = int(positions[stop - 1]) - begin, stop - at
        # Selected files may be far apart; the bytes between them are then not read.
        near = span < SPARSE_FACTOR * self._usual * count
        if span < DENSE_BYTES * count or (self.contents and near):
            length = min(int(positions[stop - 1]) - begin, SPAN_BYTES) + INODE_READ_BYTES
            self._data = self._reader.read(begin, min(length, self._end - begin))
        return stop

    def _begin(self, positions: Int64, at: int) -> int:
        """Return the start of the entries of a file: after the inode before it, as all writers
        write them."""
        if at:
            return int(positions[at - 1]) + 1
        return (
            self._start if int(positions[0]) < SPAN_BYTES else int(positions[0]) - SPAN_BYTES // 8
        )

    def ordinary(self, positions: Int64) -> tuple[Decoded, Int64]:
        """Decode the inodes of the batch that are ordinary and intact: see `Inodes.ordinary`."""
        return self._inodes.ordinary(positions, self._data, self._base)

    def entries(self, positions: Int64) -> tuple[Batch, Int64]:
        """Return those of the entries at `positions` that are completely in the window, unchecked,
        and their indices; valid until the next batch."""
        at = positions - self._base
        return entries_at(self.storage, self._layout, self._data, at, positions)

    def texts(self, starts: Int64, ends: Int64) -> list[memoryview]:
        """Return views of the window from each start to its end."""
        spans = map(slice, starts.tolist(), ends.tolist())
        return list(map(self._data.__getitem__, spans))

    def value(
        self, otherwise: Callable[[int, int, int], bytes], pointer: int, size: int, pos: int
    ) -> bytes:
        """Return the first `size` bytes of the value at `pointer`: the content of a plain file with
        its inode at `pos`. Cost: one copy and one checksum.

        otherwise   reads an entry that is not wholly in the window, or not as `put` writes it
        """
        self.contents, data, at = True, self._data, pointer - self._base
        if size <= COPIED_BYTES and 0 <= at < len(data) - 7 and self._layout.standard:
            start = data[at + 2] + 6  # of the value: after a key below 256 bytes and two lengths
            end = at + 1 + start + size
            if end <= len(data) - 4 and not data[at]:
                # Copied before it is checked: another thread may move the window on meanwhile.
                body = bytes(data[at + 1 : end])
                found = xxh3(body, (self._contid + pointer) & MASK64)
                if found & 0xFFFFFFFF == UINT32(data, end)[0]:
                    return body[start:]
        return otherwise(pointer, size, pos)

    def values(self, pointers: Int64, sizes: Int64) -> tuple[UInt8, Bools]:
        """Return the contents of many files, one behind the other, and which of them are intact and
        wholly in the window, bool[n]; for another there is a gap."""
        self.contents, good = True, np.zeros(len(sizes), bool)
        into = np.empty(int(sizes.sum()), np.uint8)
        if native.code is not None and self._layout.standard:
            native.code.gather(
                self._data, pointers - self._base, pointers, sizes, self._contid & MASK64,
                into.data, good,
            )  # fmt: skip
        return into, good

    def entry(self, pos: int, least: int = 0) -> KVEntry:
        """Return the verified entry at a position, from the window if possible. See `EntryAt`."""
        name, first = self.storage.name, least + INODE_READ_BYTES
        return self._layout.read(self._read, pos, self._end, name, first)

    def _read(self, pos: int, size: int) -> bytes:
        data, at = self._data, pos - self._base
        if 0 <= at <= len(data) - size:
            found = bytes(data[at : at + size])
            if data is self._data:  # unless another thread moved the window on meanwhile
                return found
        return self.storage.read(pos, size)

    def close(self) -> None:
        """End the scan: entries are read one by one from now on."""
        self._reader.close()
        self._data = memoryview(b"")


def scan(
    store: Store,
    lock: Any,
    since: Time | None,
    until: Time | None,
    prefix: bytes,
    problem: Callable[[CorruptError], None] | None,
    without: Int64 | None = None,
    known: Int64 | None = None,
) -> Iterator[Entry]:
    """Yield entries of the files that are live at the call.

    problem  called with each damaged inode, which is skipped; None: CorruptError is raised
    without  positions to leave out, ascending
    known    positions of the files, ascending; None: they are searched
    """
    positions, found = _begun(store, lock, since, until, prefix, without, known)
    return found.entries(positions, problem)


def scan_runs(
    store: Store, lock: Any, problem: Problem | None, known: Int64 | None
) -> Iterator[Run | Entry]:
    """Yield files as `scan`, those that are plain and lie together in runs."""
    positions, found = _begun(store, lock, None, None, b"", None, known)
    return found.runs(positions, problem)


def _begun(
    store: Store,
    lock: Any,
    since: Time | None,
    until: Time | None,
    prefix: bytes,
    without: Int64 | None,
    known: Int64 | None,
) -> tuple[Int64, _Scan]:
    """Return the positions of the files of a scan, and the scan."""
    low, high = to_ns(since), to_ns(until)
    with lock:
        store.kv.show(store.kv.end - 1)  # all of it written
        timed = (low, high) != (None, None) and store.times is None
        if known is None and (prefix or timed):
            known = positions_of(store, Query.of_prefix(prefix, (low, high)))
        positions = store.index.positions() if known is None else known
        positions = between_times(positions, store, low, high)
        if without is not None and len(without):
            positions = positions[~np.isin(positions, without, assume_unique=True)]
        store.frames.load()
        window = Window(store)
        content = Content(store, window.entry, window.storage, keep=0)
        found = _Scan(window, content, store.settings, store.shown, low, high, prefix)
    return positions, found


class _Scan(NamedTuple):
    """The entries of files with mtimes in [low, high) nanoseconds and names with a prefix.

    shown   how their attributes are shown
    """

    window: Window
    content: Content
    settings: Settings
    shown: Declared
    low: int | None
    high: int | None
    prefix: bytes

    def entries(self, positions: Int64, problem: Problem | None) -> Iterator[Entry]:
        at = 0
        try:
            while at < len(positions):
                stop = self.window.batch(positions, at)
                yield from self._batch(positions[at:stop], problem)
                at = stop
        finally:
            self.window.close()

    def runs(self, positions: Int64, problem: Problem | None) -> Iterator[Run | Entry]:
        at, self.window.contents = 0, native.code is not None
        try:
            while at < len(positions):
                stop = self.window.batch(positions, at)
                yield from self._runs(positions[at:stop], problem)
                at = stop
        finally:
            self.window.close()

    def _runs(self, positions: Int64, problem: Problem | None) -> Iterator[Run | Entry]:
        """Yield the files of a batch in order."""
        found, which = self.window.ordinary(positions)
        table = found.table
        if len(which) < len(positions) or native.code is None:
            yield from self._batch(positions, problem)
            return
        few = (table.pointer >= 0) & ~table.asked & (table.size <= RUN_BYTES) & ~table.links
        few &= (table.size == 0) | ~table.directories
        few &= ~table.special | self._attributed(found)
        full = np.flatnonzero(few & (table.size > 0))
        sizes = np.where(few, table.size, 0)
        data, good = self.window.values(table.pointer[full], sizes[full])
        few[full] = good
        cuts = np.flatnonzero(np.diff(few)) + 1
        if not few.any() or len(positions) < RUN_FILES * len(cuts):
            yield from self._batch(positions, problem)
            return
        ends = np.concatenate([[0], np.cumsum(sizes)])
        bounds = [0, *cuts.tolist(), len(positions)]
        for start, stop in pairwise(bounds):
            entries = partial(self._batch, positions[start:stop], problem)
            if few[start]:
                contents = data[ends[start] : ends[stop]]
                yield Run(table.part(start, stop), self.content.owner, contents, entries)
            else:
                yield from entries()

    def _attributed(self, found: Decoded) -> Bools:
        """Fill in mode and owner of files whose attributes have nothing else -> these, bool[n]."""
        some = np.zeros(len(found.table), bool)
        if found.words is not None:
            rows = [i for i, word in enumerate(found.words) if word and len(word) == ATTRS.size]
            if rows:
                some[rows] = found.table.attribute(rows, found.words[rows].tolist())
        return some

    def _has(self, table: FileTable) -> Bools:
        """Return which of these files match, bool[n]."""
        found = table.within((self.low, self.high))
        if self.prefix:
            begins = (name.startswith(self.prefix) for name in table.names)
            found &= np.fromiter(begins, bool, len(table))
        return found

    def _batch(self, positions: Int64, problem: Problem | None) -> Iterator[Entry]:
        """Yield the matching files of a batch in order."""
        found, which = self.window.ordinary(positions)
        table = found.table
        whole = (table.pointer >= 0) & ~table.asked
        kept = whole & self._has(table)
        plain = kept & ~table.special
        if len(which) == len(positions) and plain.all():
            return self._plain_entries(table)
        made: list[Entry | int | None] = positions.tolist()
        for i in which[whole & ~kept].tolist():
            made[i] = None
        simple = self._plain_entries(table.take(plain))
        for i, entry in zip(which[plain].tolist(), simple, strict=True):
            made[i] = entry
        if found.words is not None:
            special = np.flatnonzero(kept & table.special)
            rows = table.take(special)
            columns = which[special], rows.fileid, rows.size, rows.mtime, rows.ftype, rows.pointer
            for name, word, pos, i, fileid, size, ns, ftype, pointer in zip(
                rows.names, found.words[special].tolist(), rows.pos.tolist(),
                *(column.tolist() for column in columns), strict=True,
            ):  # fmt: skip
                if word is None or CTIME in word or not is_whole(word, ATTRS.size):
                    continue
                mode, uid, gid = ATTRS.unpack_from(word)
                if 0 <= mode <= PERMISSIONS and 0 <= uid <= HIGHEST_ID and 0 <= gid <= HIGHEST_ID:
                    read = (
                        partial(self.window.value, self._read_plain, pointer, size, pos)
                        if size
                        else bytes
                    )
                    made[i] = attributed(
                        to_str(name), fileid, size, ns, ftype, mode, uid, gid, ns, read, word,
                        self.shown,
                    )  # fmt: skip
        return self._all(made, problem)

    def _all(self, made: list[Entry | int | None], problem: Problem | None) -> Iterator[Entry]:
        """Yield entries in order; one that is given by its position is read, None is skipped."""
        for found in made:
            try:
                entry = self._entry(found) if isinstance(found, int) else found
            except CorruptError as error:
                if problem is None:
                    raise
                problem(error)
                continue
            if entry is not None:
                yield entry

    def _plain_entries(self, table: FileTable) -> Iterator[Entry]:
        """Yield entries of files of at most one value, without attributes."""
        sizes, ftypes, times = table.size.tolist(), table.ftype.tolist(), table.mtime.tolist()
        modes, (uid, gid) = (
            {ftype: default_mode(ftype) for ftype in set(ftypes)},
            self.content.owner,
        )
        reads: Iterable[Callable[[], bytes]] = map(
            partial, repeat(self.window.value), repeat(self._read_plain),
            table.pointer.tolist(), sizes, table.pos.tolist(),
        )  # fmt: skip
        if 0 in sizes:
            reads = [read if size else bytes for read, size in zip(reads, sizes, strict=True)]
        return entries(
            to_strs(table.names), table.fileid.tolist(), sizes, times, ftypes,
            map(modes.__getitem__, ftypes), repeat(uid), repeat(gid), times, reads,
        )  # fmt: skip

    def _entry(self, pos: int) -> Entry | None:
        """Return the entry of any file, None if it does not match. Raises CorruptError."""
        key, inode = self.content.stored(pos)
        name, ns = name_of(key), self.settings.ns_of(inode.mtime)
        late = (self.low is not None and ns < self.low) or (
            self.high is not None and ns >= self.high
        )
        if late or not name.startswith(self.prefix):
            return None
        attrs = self.content.attrs(inode)
        fields = (
            to_str(name), inode.fileid, inode.lsize, ns, inode.ftype,
            attrs.mode, attrs.uid, attrs.gid, ns if attrs.ctime_ns is None else attrs.ctime_ns,
            partial(self._read, inode, pos),
        )  # fmt: skip
        extents = inode.extents
        if not attrs.xattrs and (not extents or (len(extents) == 1 and extents[0].pointer)):
            return Entry(*fields)
        word = attrs.encode() if inode.attrs else b""
        parts = partial(self._pieces, inode, pos), partial(self._ranges, inode, pos)
        return SpecialEntry(*fields, word, self.shown, *parts)

    # --- contents; all raise CorruptError ---

    def _read_plain(self, pointer: int, size: int, pos: int) -> bytes:
        """Read content as `Window.value`, from any entry."""
        return self.content.read((Extent(pointer, 0, size),), 0, size, holder=pos)

    def _read(self, inode: Inode, pos: int) -> bytes:
        """Return the whole content of the file with the inode at `pos`."""
        self.window.contents = True
        extents = self.content.whole(inode, pos).extents
        return self.content.read(extents, 0, inode.lsize, holder=pos)

    def _pieces(self, inode: Inode, pos: int) -> Iterator[tuple[int, bytes]]:
        """Yield the content without its holes: (offset, bytes), about PIECE_BYTES each."""
        self.window.contents = True
        inode = self.content.whole(inode, pos)
        name, at, size = self.window.storage.name, 0, 0
        value = lru_cache(1)(partial(self.content.value, pos))  # an entry may have many extents
        run: list[Extent] = []
        for extent in [*cut(inode.extents, 0, inode.lsize), Extent(0, 0, 0)]:
            if run and (extent.pointer == 0 or size + extent.size > PIECE_BYTES):
                yield at, assemble(run, lambda pos, least, framed: value(pos, 0, framed), name)
                at, size, run = at + size, 0, []
            if extent.pointer:
                run.append(extent)
                size += extent.size
            else:
                at += extent.size

    def _ranges(self, inode: Inode, pos: int) -> list[tuple[int, int]]:
        """Return the ranges of the content between its holes: (offset, bytes)."""
        found: list[tuple[int, int]] = []
        at = 0
        for extent in cut(self.content.whole(inode, pos).extents, 0, inode.lsize):
            if extent.pointer and extent.size:
                start, size = found.pop() if found and sum(found[-1]) == at else (at, 0)
                found.append((start, size + extent.size))
            at += extent.size
        return found
