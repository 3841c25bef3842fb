"""What a task reads of one container: its files as columns, and their contents as an Arrow column.

`Source` takes the columns from the catalog where no contents are asked for, else from the inodes,
just before the contents around them are read. `Contents` reads the entries of a batch in a few
large pieces into one buffer and checks them with a `map` of C functions; Arrow then copies the
contents from between the headers, in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from winkformats.arrays import Bools, Int64, keep_heap
from winkformats.disk.pagecache import Dropper
from winkformats.errors import CorruptError
from winkformats.kv.entry import KVEntry
from winkformats.kv.scan import values_at
from winkfs.container.catalog import build, open_catalog, open_older
from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.inode import Attrs
from winkfs.container.ondisk.typed import USER, Texts
from winkfs.container.read import Content
from winkfs.container.recovery import rebuild
from winkfs.container.select import (
    Query,
    between,
    catalogued,
    columns_at,
    listed,
    query_of,
    rows_now,
    values_between,
)
from winkfs.container.store import Store
from winkfs.container.survey import MAX_BATCH_ENTRY, Inodes, files_at
from winkfs.container.table import BY_INODE, EMPTY, FileTable
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shard import NOTHING, Shard
from winkfs.errors import DerivedDamage, StalePlan
from winkfs.spark import arrow
from winkfs.spark.reading.partition import Listed, Piece, unpack

GAPS: Final = (64 << 10, 4 << 10, 0)  # bytes that are read rather than begin another read
READ: Final = 16 << 20  # bytes of a batch's reads, at most, where they hold gaps
SLACK: Final = 64  # bytes of an entry beside its value: an ordinary key and its lengths
HEAD: Final = 512  # bytes of the first read of an entry whose size is not known
FEW: Final = 8  # reads of a batch that wait for the disk one after the other
MARGIN: Final = 1 << 20  # bytes behind a range that the kernel may have read ahead
ROWS: Final = 1 << 16  # files at a time
FEW_VALUES: Final = 4096  # files of a piece, up to which their attributes are read
SPAN: Final = 4 << 20  # bytes of the data file read for inodes and contents at a time
GAP: Final = 1 << 20  # bytes before the first of them that are read with them
DENSE: Final = 64 << 10  # bytes a file, with its content, below which that is done
Problem = Callable[[CorruptError], None]


class Contents:
    """Reads from [low, high) of a data file above all; the page cache stays as it was.

    verify  False: entries are not checked against their checksums
    """

    def __init__(self, store: Store, low: int, high: int, *, verify: bool = True) -> None:
        storage = store.kv.storage
        self.store, self._storage, self._name = store, storage, storage.name
        self._layout, self._end = store.kv.layout, store.kv.end
        self._content = Content(store, self._entry, keep=0)
        layout = self._layout
        parts = (layout.delflag, layout.key.code, layout.value.code, layout.align)
        self._ordinary = parts == (1, 1, 2, 0)  # the layout that is read as columns
        self._verify = verify and layout.checksum > 0
        self._low, self._high = low, min(high + MARGIN, self._end)
        self._drop = storage.dropper(low, self._high)
        self._seen: dict[Dropper, list[tuple[int, int]]] = {}  # was read since the last `drop`
        self._buffer = memoryview(b"")
        self._window: tuple[int, memoryview] | None = None  # where it begins, what was read

    # --- columns ---

    def read(self, pos: Int64, pointer: Int64, size: Int64) -> tuple[pa.Array, dict[int, str]]:
        """Contents of n files, in any order: positions of their inodes, `pointer`, `size` as in
        `FileTable`.

        ->      binary[n], less than 2 GiB in all; null where there is none, and why: index -> line
        """
        found = pa.nulls(len(pos), pa.binary())
        inside = (pointer > EMPTY) & (size >= 0) & (size <= self._end - pointer)
        chosen = np.flatnonzero(inside) if self._ordinary else np.empty(0, np.int64)
        if len(chosen):
            whole, good = self._plain(pointer[chosen], size[chosen])
            if len(whole) == len(pos):
                return whole, {}
            chosen = chosen[good]
        else:
            whole = found[:0]
        alone = np.ones(len(pos), bool)
        alone[chosen] = False
        rest = np.flatnonzero(alone)
        errors: dict[int, str] = {}
        values = [self._alone(i, pos, pointer, size, errors) for i in rest.tolist()]
        if len(pos) == 1:
            return _single(values[0]), errors
        place = np.empty(len(pos), np.int64)
        place[np.concatenate([chosen, rest])] = np.arange(len(pos))
        joined = pa.concat_arrays([whole, arrow.binaries(values)])
        return arrow.taken(joined, place), errors

    def _plain(self, pointer: Int64, size: Int64) -> tuple[pa.Array, Bools]:
        """-> contents of those that are good, and which these are."""
        if (pointer[1:] > pointer[:-1]).all():
            view, value, good = self._checked(pointer, size)
            if not good.all():
                value, size = value[good], size[good]
            return _between(view, value, size, np.arange(len(value))), good
        ascending, first, index = np.unique(pointer, return_index=True, return_inverse=True)
        sizes = size[first]
        view, value, good = self._checked(ascending, sizes)
        fits = good[index] & (sizes[index] == size)
        place = np.cumsum(good) - 1
        return _between(view, value[good], sizes[good], place[index[fits]]), fits

    def _checked(self, pointer: Int64, size: Int64) -> tuple[memoryview, Int64, Bools]:
        """Read entries, ascending -> a buffer, where in it their values begin, which are good."""
        view, at = self._load(pointer, size)
        layout = self._layout
        good, value = values_at(view, at, layout, pointer, size, verify=self._verify)
        good &= value - at <= SLACK - 4  # a longer key has no room in `view`
        good &= pointer - at + value + size + layout.checksum <= self._end
        return view, value, good

    def _load(self, pointer: Int64, size: Int64) -> tuple[memoryview, Int64]:
        """Read the entries, ascending -> a buffer, and where in it each of them begins."""
        if self._window is not None:
            begin, view = self._window
            end = begin + len(view) - SLACK
            if int(pointer[0]) >= begin and int((pointer + size).max()) <= end:
                return view, pointer - begin
            self._window = None  # the buffer is another's from here on
        ends = np.maximum.accumulate(np.minimum(pointer + size + SLACK, self._end))
        for gap in GAPS:
            first = np.flatnonzero(np.concatenate([[True], pointer[1:] - ends[:-1] > gap]))
            starts = pointer[first]
            lengths = ends[np.append(first[1:], len(ends)) - 1] - starts
            if lengths.sum() <= max(READ, 2 * int(size.sum())):
                break
        places = np.cumsum(lengths) - lengths
        view = self._room(int(lengths.sum()) + SLACK, reuse=len(pointer) > 1)
        pieces = list(zip(starts.tolist(), lengths.tolist(), places.tolist(), strict=True))
        if self._drop is not None and len(pieces) > FEW:
            for start, length, _ in pieces:
                self._storage.read_ahead(start, length)
        for start, length, place in pieces:
            self._fill(view[place : place + length], start)
        counts = np.diff(np.append(first, len(pointer)))
        return view, pointer + np.repeat(places - starts, counts)

    def _room(self, length: int, *, reuse: bool) -> memoryview:
        """A buffer; reused, it stays in the L2 cache."""
        if not reuse:
            return np.empty(length, np.uint8).data
        if length > len(self._buffer):
            self._buffer = np.empty(length, np.uint8).data
        return self._buffer[:length]

    # --- one at a time ---

    def _alone(
        self, i: int, pos: Int64, pointer: Int64, size: Int64, errors: dict[int, str]
    ) -> bytes | None:
        try:
            return self.one(int(pos[i]), int(pointer[i]), int(size[i]))
        except CorruptError as error:
            errors[i] = str(error)
            return None

    def one(self, pos: int, pointer: int, size: int) -> bytes:
        """One content, whatever its layout. Raises CorruptError."""
        if pointer == EMPTY:
            return b""
        content = self._content
        if pointer == BY_INODE:
            inode = content.whole(content.stored(pos)[1], pos)
            self._check_size(inode.lsize, size, pos)
            return content.read(inode.extents, 0, size, holder=pos)
        value = content.value(pos, pointer, size, False)
        self._check_size(len(value), size, pointer)
        return value

    def _check_size(self, found: int, size: int, pos: int) -> None:
        if found != size:
            raise CorruptError(
                "bytes of content", file=self._name, offset=pos, expected=size, found=found
            )

    def mode(self, pos: int) -> int:
        """The permission bits of a file with attributes. Raises CorruptError."""
        return self.attributes(pos).mode

    def attributes(self, pos: int) -> Attrs:
        """The attributes of a file. Raises CorruptError."""
        return self._content.attrs(self._content.stored(pos)[1])

    def _entry(self, pos: int, least: int = 0) -> KVEntry:
        """Any entry, checked. See `EntryAt`."""
        return self._layout.read(self._bytes, pos, self._end, self._name, (least or HEAD) + SLACK)

    def _bytes(self, offset: int, length: int) -> memoryview:
        if self._window is not None:
            at = offset - self._window[0]
            if 0 <= at <= len(self._window[1]) - length:
                return self._window[1][at : at + length]
        view = np.empty(max(min(length, self._end - offset), 0), np.uint8).data
        self._fill(view, offset)
        return view

    # --- the disk ---

    def _fill(self, view: memoryview, offset: int) -> None:
        stop = offset + len(view)
        drop = self._drop
        if offset < self._low or stop > self._high:
            drop = self._storage.dropper(offset, stop + MARGIN)
        if drop is not None:
            self._seen.setdefault(drop, []).append((offset, stop))
        if self._storage.read_into(view, offset) < len(view):
            raise CorruptError("the file is cut short", file=self._name, offset=offset)

    def window(self, offset: int, length: int) -> memoryview:
        """Bytes of the data file, of which contents are taken, too; valid until others are read."""
        view = self._room(min(length, self._end - offset), reuse=True)
        self._fill(view, offset)
        self._window = offset, view
        return view

    def drop(self) -> None:
        """Drop what was read from the page cache."""
        for drop, ranges in self._seen.items():
            if len(ranges) > FEW:
                drop.ranges(ranges)
            else:
                for start, stop in ranges:
                    drop(start, stop)
        self._seen = {}

    def close(self) -> None:
        """Leave the page cache as it was: drop what the kernel has read ahead, too."""
        self.drop()
        self._buffer, self._window = memoryview(b""), None  # now, not when it is collected
        if self._drop is not None:
            self._drop(self._low, self._high)


def _between(view: memoryview, start: Int64, size: Int64, rows: Int64) -> pa.Array:
    """view[start[i] : start[i] + size[i]] for each of `rows`, binary[len(rows)].

    start   ascending. A single value is not copied.
    """
    if len(start) == 1 and len(rows) == 1:
        return _single(view[int(start[0]) : int(start[0] + size[0])])
    # Every second value of an array over the buffer, whose values are gap, content, gap, content:
    # Cheaper than a join of slices.
    offsets = np.zeros(2 * len(start) + 1, np.int32)
    offsets[1::2], offsets[2::2] = start, start + size
    both = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * len(start), [None, pa.py_buffer(offsets), pa.py_buffer(view)]
    )
    return arrow.taken(both, 2 * rows + 1)


def _single(value: Any) -> pa.Array:
    if value is None:
        return pa.nulls(1, pa.binary())
    offsets = np.array([0, len(value)], np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(value)]
    )


def _together(found: Iterator[FileTable]) -> Iterator[list[FileTable]]:
    """Parts of at least ROWS rows each, but for the last one."""
    some, count = list[FileTable](), 0
    for part in found:
        some.append(part)
        count += len(part.pos)
        if count >= ROWS:
            yield some
            some, count = [], 0
    if some:
        yield some


def open_planned(piece: Piece, *, load: bool = False) -> Store:
    """A container, with its index or without. Raises StalePlan where it is not that of the plan."""
    record = ShardRecord(piece.base, piece.contid, piece.size)
    try:
        return Shard(piece.base, record, grows=piece.grows).open(load=load, mapped=False)
    except StalePlan as error:
        raise StalePlan(f"{error.strerror}; call load() again", piece.base) from None


class Source:
    """An open container of a piece.

    verify        of contents
    include_dirs  False: neither directories nor links
    typed         columns of the user that are asked for
    problem       called with damaged inodes
    """

    def __init__(
        self,
        piece: Piece,
        *,
        verify: bool,
        include_dirs: bool,
        contents: bool,
        typed: Mapping[str, str],
        problem: Problem,
    ) -> None:
        """Raises StalePlan, FormatError, OSError."""
        self.piece, self.problem, self._typed = piece, problem, typed
        self.store = open_planned(piece)
        self._include_dirs, self._with_contents = include_dirs, contents
        low = max(piece.low, self.store.kv.start)
        self.contents = Contents(self.store, low, min(piece.high, piece.size), verify=verify)
        self._prepared: FileTable | None = None
        self._values: tuple[Int64, dict[str, Column]] | None = None
        self._hidden = None if piece.hidden is None else unpack(piece.hidden)

    def __exit__(self, *exc: object) -> None:
        self.contents.close()
        self.store.abandon()

    def chunks(self) -> Iterator[FileTable]:
        """The files of the piece, some at a time: with contents in the order of the inodes.

        raises  CorruptError; OSError
        """
        piece = self.piece
        if isinstance(piece, Listed):
            yield from map(self._seen, self._listed(piece))
            return
        if piece.rows is not None:
            positions = unpack(piece.rows)
        else:
            self.store.load()
            positions = between(self.store, piece.low, piece.high)
        if self._hidden is not None:
            positions = np.setdiff1d(positions, self._hidden, assume_unique=True)
        yield from map(self._seen, self._at(positions))

    def _listed(self, piece: Listed) -> Iterator[FileTable]:
        """The chosen files with names of the piece."""
        assert piece.selection is not None
        keep_heap()  # of the same arrays again and again
        query = query_of(piece.selection)._replace(
            low=piece.first, high=piece.stop, columns=tuple(self._typed)
        )
        chosen = partial(
            listed, self.store, query=query, selection=piece.selection, problem=self.problem
        )
        yield from self._columns(self._as_planned(piece, query), chosen)

    def _as_planned(self, piece: Listed, query: Query) -> Iterator[FileTable]:
        """Rows as of the plan, from the catalog of that time; where it is gone, one is made."""
        store, size = self.store, piece.size
        if piece.grows:
            catalog = open_older(store, size, piece.place)
        else:
            catalog = open_catalog(store, behind=0)
        if catalog is not None:
            with catalog:
                try:
                    for rows in rows_now(store, catalog, query, end=size):
                        yield rows
                        query = query._replace(low=rows.last + b"\0")
                    return
                except DerivedDamage as error:
                    store.remark(error)
        with build(store, save=False, lost=self.problem, positions=self._live_then(size)) as made:
            yield from rows_now(store, made, query)

    def _live_then(self, size: int) -> Int64:
        """Positions of the files that were live when the data file ended there, ascending.

        cost  opens the index; where the container has grown, all of that part of it is read
        """
        with open_planned(self.piece, load=True) as store:
            if store.kv.end == size:
                return store.index.positions()
            found = rebuild(store.kv, store.settings, problem=self.problem, stop=size, marked=True)
            return np.sort(found.rows.pos)

    def _columns(
        self, found: Iterator[FileTable], chosen: Callable[[FileTable], FileTable]
    ) -> Iterator[FileTable]:
        """What is chosen of rows, ROWS or so at a time, whose values are known meanwhile."""
        for some in _together(found):
            if self._typed:
                self._values = self._values_of(FileTable.concat(some))
            yield FileTable.concat(list(map(chosen, some)))

    def _values_of(self, rows: FileTable) -> tuple[Int64, dict[str, Column]]:
        """Positions, ascending, and the values there; without those that have to be asked."""
        rows = rows.take(~rows.asked)
        order = np.argsort(rows.pos)
        known = self.store.schema
        texts = dict(zip(known, rows.typed(known), strict=True))
        none: Texts = [None] * len(order)
        columns = {}
        for name, kind in self._typed.items():
            column = Column.of(known.get(name, kind), texts.get(name, none))
            columns[name] = column.take(order).cast(kind)
        return rows.pos[order], columns

    def prepare(self, positions: Int64) -> None:
        """Before `at`: all positions, ascending, that will be asked for. Memory: 100 bytes each."""
        self._prepared = columns_at(self.store, positions, self.problem)

    def at(self, positions: Int64) -> FileTable:
        """The files with these inodes, ascending, that are to be seen."""
        assert self._prepared is not None
        known = self._prepared.pos
        index = np.minimum(np.searchsorted(known, positions), max(len(known) - 1, 0))
        there = known[index] == positions if len(known) else index < 0
        return self._seen(self._prepared.take(index[there]))

    # --- columns of the user ---

    def values(self, rows: FileTable) -> dict[str, Column]:
        """The values of files in the columns of the user: name -> n values.

        cost  of few files their attributes are read, else the columns of the catalog, once
        raises  CorruptError
        """
        typed, chosen = self._typed, self.piece.rows
        if self._values is None and (chosen is None or len(unpack(chosen)) >= FEW_VALUES):
            self._values = values_between(self.store, self.piece.low, self.piece.high, typed)
        pos, known = self._values or (np.empty(0, np.int64), {})
        at = np.minimum(np.searchsorted(pos, rows.pos), max(len(pos) - 1, 0))
        there = pos[at] == rows.pos if len(pos) else np.zeros(len(rows), bool)
        there |= ~rows.special  # they have none
        if there.all() and len(pos):
            found = {name: known[name].take(at) for name in typed}
            if not rows.special.all():
                found = {name: replace(c, valid=c.valid & rows.special)
                         for name, c in found.items()}  # fmt: skip
            return found
        texts: dict[str, Texts] = {name: [None] * len(rows) for name in typed}
        for i in np.flatnonzero(rows.special).tolist():
            xattrs = self.contents.attributes(int(rows.pos[i])).xattrs
            for name in typed.keys() & self.store.schema.keys():
                texts[name][i] = xattrs.get(USER + name.encode())
        return {name: Column.of(kind, texts[name]) for name, kind in typed.items()}

    def _at(self, positions: Int64) -> Iterator[FileTable]:
        """The files with these inodes, ascending; with contents in that order."""
        if not self._with_contents:
            known = [NOTHING]
            for rows in catalogued(self.store, positions):
                known.append(rows.pos)
                yield rows
            positions = np.setdiff1d(positions, np.concatenate(known), assume_unique=True)
        elif len(positions) and int(positions[-1] - positions[0]) < DENSE * len(positions):
            yield from self._windows(positions)
            return
        for at in range(0, len(positions), ROWS):
            yield files_at(self.store, positions[at : at + ROWS], self.problem)

    def _windows(self, positions: Int64) -> Iterator[FileTable]:
        """Inodes with the contents before them, which are read together, and once."""
        kv = self.store.kv
        inodes = Inodes(kv, self.store.settings, self.problem)
        at, begin = 0, max(self.piece.low, kv.start)
        while at < len(positions):
            first = int(positions[at])
            if first - begin > GAP:
                begin = first  # a large content, or what is not asked for
            stop = int(np.searchsorted(positions, max(begin + SPAN, first + 1)))
            last = int(positions[stop - 1])
            data = self.contents.window(begin, min(last + MAX_BATCH_ENTRY, kv.end) - begin)
            yield inodes.near(positions[at:stop], data, begin).table
            at, begin = stop, last

    def _seen(self, rows: FileTable) -> FileTable:
        hidden = self._hidden if isinstance(self.piece, Listed) else None  # else it is not read
        return rows.visible(hidden, include_dirs=self._include_dirs)
