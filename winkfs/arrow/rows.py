"""Reading a container in a task: its files as columns, and their contents as an Arrow column.

`Source` takes the columns from the catalog if no contents are needed, else from the inodes, just
before the contents around them are read. `Contents` reads the entries of a batch in a few large
reads into one buffer, or maps a file whose pages are all in the page cache; compiled code checks
and copies the contents in one pass. Without it they are checked together, and Arrow copies them
from between the headers.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from winkformats import native
from winkformats.arrays import Bools, Int64, keep_heap
from winkformats.disk.pagecache import BulkReader, Dropper
from winkformats.errors import CorruptError, raise_it
from winkformats.kv.entry import MASK64, KVEntry
from winkformats.kv.scan import values_at
from winkformats.lazy import cached_property
from winkfs.arrow import arrays
from winkfs.arrow.pieces import Chosen, Listed, Piece, unpack
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
    in_order,
    listed,
    query_of,
    rows_now,
    select,
    values_between,
)
from winkfs.container.store import Store
from winkfs.container.survey import MAX_BATCH_ENTRY, Inodes, files_at
from winkfs.container.table import BY_INODE, EMPTY, FileTable
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shard import NOTHING, Shard
from winkfs.errors import DerivedDamage, LostShard, StalePlan

# Bytes between two entries that one read covers; a smaller gap is tried if it reads too much.
MAX_GAPS: Final = (64 << 10, 4 << 10, 0)
MAX_READ: Final = 16 << 20  # bytes that a batch reads if this includes gaps
SLACK: Final = 64  # bytes of an entry beside its value: a usual key and its lengths
FIRST_READ: Final = 512  # bytes of the first read of an entry whose size is not known
READ_AHEAD_FROM: Final = 8  # reads of a batch above which they are requested together
MARGIN: Final = 1 << 20  # bytes after a range that the kernel may have read ahead
FILES_AT_ONCE: Final = 1 << 16
MAX_ATTRIBUTE_READS: Final = 4096  # files of a piece up to which attributes are read one by one
WINDOW: Final = 4 << 20  # bytes of the data file read for inodes and contents at a time
MAPPED_WINDOW: Final = 32 << 20  # the same where they are mapped
MAX_CONTENT_BEFORE: Final = 1 << 20  # bytes before the first inode that are read with it
DENSE: Final = 64 << 10  # bytes for each file, with its content, below which windows are read
Problem = Callable[[CorruptError], None]

if TYPE_CHECKING:
    from winkformats.native import Native


class Contents:
    """Reader of contents, mostly in [low, high) of a data file; it restores the page cache.

    verify  False: do not compare the checksums of entries
    """

    def __init__(self, store: Store, low: int, high: int, *, verify: bool = True) -> None:
        storage = store.kv.storage
        self.store, self._storage, self._name = store, storage, storage.name
        self._layout, self._end = store.kv.layout, store.kv.end
        self._content = Content(store, self._entry, keep=0)
        layout = self._layout
        parts = (layout.delflag, layout.key.code, layout.value.code, layout.align)
        self._usual = parts == (1, 1, 2, 0)  # the layout that is read as columns
        self._verify = verify and layout.checksum > 0
        self._compiled = native.code if self._verify else None
        self._low, self._high = low, min(high + MARGIN, self._end)
        self._map: mmap.mmap | memoryview | None = None
        self._pass: tuple[int, BulkReader] | None = None  # over an object, and its last offset
        self._seen: dict[Dropper, list[tuple[int, int]]] = {}  # ranges read since the last `drop`
        self._buffer = memoryview(b"")
        self._window: tuple[int, memoryview] | None = None  # its offset, and its bytes

    @cached_property
    def _drop(self) -> Dropper | None:
        return self._storage.dropper(self._low, self._high)

    @cached_property
    def mapped(self) -> bool:
        """Return whether ranges are mapped, not read: all of the file is in the page cache."""
        return self.store.mapped and self._drop is None

    @property
    def window_bytes(self) -> int:
        return MAPPED_WINDOW if self.mapped else WINDOW

    # --- columns ---

    def of(self, rows: FileTable) -> tuple[pa.Array, dict[int, Exception]]:
        """Read the contents of files: see `read`."""
        return self.read(rows.pos, rows.pointer, rows.size)

    def read(
        self, pos: Int64, pointer: Int64, size: Int64
    ) -> tuple[pa.Array, dict[int, Exception]]:
        """Read the contents of n files, in any order: positions of their inodes, `pointer` and
        `size` as in `FileTable`.

        ->      binary[n], less than 2 GiB in all, with null after an error; the errors by index
        """
        found = pa.nulls(len(pos), pa.binary())
        inside = (pointer > EMPTY) & (size >= 0) & (size <= self._end - pointer)
        chosen = np.flatnonzero(inside) if self._usual else np.empty(0, np.int64)
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
        errors: dict[int, Exception] = {}
        values = [self._alone(i, pos, pointer, size, errors) for i in rest.tolist()]
        if len(pos) == 1:
            return _single(values[0]), errors
        place = np.empty(len(pos), np.int64)
        place[np.concatenate([chosen, rest])] = np.arange(len(pos))
        joined = pa.concat_arrays([whole, arrays.binaries(values)])
        return arrays.taken(joined, place), errors

    def _plain(self, pointer: Int64, size: Int64) -> tuple[pa.Array, Bools]:
        """Read plain contents -> those that are intact, and which these are."""
        if (pointer[1:] > pointer[:-1]).all():
            view, at = self._load(pointer, size)
            if self._compiled is not None and len(at) > 1:
                whole, good = self._gathered(self._compiled, view, at, pointer, size)
                if good.all():
                    return whole, good
            value, good = self._checked(view, at, pointer, size)
            if not good.all():
                value, size = value[good], size[good]
            return _between(view, value, size, np.arange(len(value))), good
        ascending, first, index = np.unique(pointer, return_index=True, return_inverse=True)
        sizes = size[first]
        view, at = self._load(ascending, sizes)
        value, good = self._checked(view, at, ascending, sizes)
        fits = good[index] & (sizes[index] == size)
        place = np.cumsum(good) - 1
        return _between(view, value[good], sizes[good], place[index[fits]]), fits

    def _gathered(
        self, code: type[Native], view: memoryview, at: Int64, pointer: Int64, size: Int64
    ) -> tuple[pa.Array, Bools]:
        """Check and copy the values of entries at offsets `at` of a buffer in a pass -> binary[n],
        and which are intact; the others may be anything."""
        ends = np.zeros(len(at) + 1, np.int64)
        np.cumsum(size, out=ends[1:])
        into, good = pa.allocate_buffer(int(ends[-1])), np.zeros(len(at), bool)
        code.gather(view, at, pointer, size, self._layout.contid & MASK64, into, good)
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), into]
        return pa.BinaryArray.from_buffers(pa.binary(), len(at), buffers), good

    def _checked(
        self, view: memoryview, at: Int64, pointer: Int64, size: Int64
    ) -> tuple[Int64, Bools]:
        """Check entries at offsets `at` of a buffer -> offsets of their values, which are
        intact."""
        layout = self._layout
        good, value = values_at(view, at, layout, pointer, size, verify=self._verify)
        good &= value - at <= SLACK - 4  # a longer key has no room in `view`
        good &= pointer - at + value + size + layout.checksum <= self._end
        return value, good

    def _load(self, pointer: Int64, size: Int64) -> tuple[memoryview, Int64]:
        """Read entries, ascending -> a buffer, and the offset of each in it."""
        if self._window is not None:
            begin, view = self._window
            end = begin + len(view) - SLACK
            if int(pointer[0]) >= begin and int((pointer + size).max()) <= end:
                return view, pointer - begin
            self._window = None  # its buffer is reused from here on
        ends = np.maximum.accumulate(np.minimum(pointer + size + SLACK, self._end))
        for gap in MAX_GAPS:
            first = np.flatnonzero(np.concatenate([[True], pointer[1:] - ends[:-1] > gap]))
            starts = pointer[first]
            lengths = ends[np.append(first[1:], len(ends)) - 1] - starts
            if lengths.sum() <= max(MAX_READ, 2 * int(size.sum())):
                break
        places = np.cumsum(lengths) - lengths
        view = self._room(int(lengths.sum()) + SLACK, reuse=len(pointer) > 1)
        pieces = list(zip(starts.tolist(), lengths.tolist(), places.tolist(), strict=True))
        if self._drop is not None and len(pieces) > READ_AHEAD_FROM:
            for start, length, _ in pieces:
                self._storage.read_ahead(start, length)
        for start, length, place in pieces:
            self._fill(view[place : place + length], start)
        counts = np.diff(np.append(first, len(pointer)))
        return view, pointer + np.repeat(places - starts, counts)

    def _room(self, length: int, *, reuse: bool) -> memoryview:
        """Return a buffer; a reused one stays in the L2 cache."""
        if not reuse:
            return np.empty(length, np.uint8).data
        if length > len(self._buffer):
            self._buffer = np.empty(length, np.uint8).data
        return self._buffer[:length]

    # --- one at a time ---

    def _alone(
        self, i: int, pos: Int64, pointer: Int64, size: Int64, errors: dict[int, Exception]
    ) -> bytes | None:
        try:
            return self.one(int(pos[i]), int(pointer[i]), int(size[i]))
        except CorruptError as error:
            errors[i] = error
            return None

    def one(self, pos: int, pointer: int, size: int) -> bytes:
        """Read one content, whatever its layout. Raises CorruptError."""
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

    def mode(self, rows: FileTable, i: int) -> int:
        """Return the permission bits of a file with attributes. Raises CorruptError."""
        return self.attributes(int(rows.pos[i])).mode

    def attributes(self, pos: int) -> Attrs:
        """Return the attributes of a file. Raises CorruptError."""
        return self._content.attrs(self._content.stored(pos)[1])

    def _entry(self, pos: int, least: int = 0) -> KVEntry:
        """Read and check any entry. See `EntryAt`."""
        first = (least or FIRST_READ) + SLACK
        return self._layout.read(self._bytes, pos, self._end, self._name, first)

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
        """Read a range of the data file, from which contents are taken, too; valid until the next
        read."""
        if self.mapped:
            self._unmap_window()
            self._map = self.store.kv.view(offset)
            view = memoryview(self._map)[offset : min(offset + length, self._end)]
        elif self._storage.far:
            view = self._passed(offset, min(length, self._end - offset))
        else:
            view = self._room(min(length, self._end - offset), reuse=True)
            self._fill(view, offset)
        self._window = offset, view
        return view

    def expect(self, start: int, stop: int) -> None:
        """Have windows in [start, stop) of an object, nearly all of which are read, requested
        ahead: in the pass that is there, if it goes on there."""
        if self._pass is None or not self._pass[1].expect(start, stop):
            self.end_pass()
            self._pass = start, self._storage.bulk(start, self._end)
            self._pass[1].expect(start, stop)

    def _passed(self, offset: int, length: int) -> memoryview:
        """Read a range of an object in a pass, which asks for the next ones meanwhile."""
        last, reader = self._pass or (0, None)
        if reader is None or offset < last:
            self.end_pass()
            reader = self._storage.bulk(offset, self._high + MAX_BATCH_ENTRY)
        self._pass = offset, reader
        return reader.read(offset, length)

    def end_pass(self) -> None:
        """Forget what a pass over an object has read and asked for. Idempotent."""
        if self._pass is not None:
            self._pass[1].close()
        self._pass = None

    def _unmap_window(self) -> None:
        """Unmap the pages of the last window, which would count as memory of this process."""
        if self._window is not None and isinstance(self._map, mmap.mmap):
            begin, view = self._window
            start = begin - begin % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, begin + len(view) - start)

    def drop(self) -> None:
        """Drop the ranges that were read from the page cache."""
        for drop, ranges in self._seen.items():
            if len(ranges) > READ_AHEAD_FROM:
                drop.ranges(ranges)
            else:
                for start, stop in ranges:
                    drop(start, stop)
        self._seen = {}

    def close(self) -> None:
        """Restore the page cache: drop also what the kernel has read ahead."""
        self.drop()
        self._unmap_window()
        self._buffer, self._window, self._map = memoryview(b""), None, None  # frees the memory
        self.end_pass()
        drop = self.__dict__.get("_drop")  # not asked for if nothing was read
        if drop is not None:
            drop(self._low, self._high)


def _between(view: memoryview, start: Int64, size: Int64, rows: Int64) -> pa.Array:
    """Return view[start[i] : start[i] + size[i]] for each of `rows`, binary[len(rows)].

    start   ascending. A single value is not copied.
    """
    if len(start) == 1 and len(rows) == 1:
        return _single(view[int(start[0]) : int(start[0] + size[0])])
    # An array over the buffer with values gap, content, gap, content, of which every second one is
    # taken: faster than joining slices.
    offsets = np.zeros(2 * len(start) + 1, np.int32)
    offsets[1::2], offsets[2::2] = start, start + size
    both = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * len(start), [None, pa.py_buffer(offsets), pa.py_buffer(view)]
    )
    return arrays.taken(both, 2 * rows + 1)


def _single(value: Any) -> pa.Array:
    if value is None:
        return pa.nulls(1, pa.binary())
    offsets = np.array([0, len(value)], np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(value)]
    )


def _together(found: Iterator[FileTable]) -> Iterator[list[FileTable]]:
    """Yield groups of parts with at least FILES_AT_ONCE rows each, except the last one."""
    some, count = list[FileTable](), 0
    for part in found:
        some.append(part)
        count += len(part.pos)
        if count >= FILES_AT_ONCE:
            yield some
            some, count = [], 0
    if some:
        yield some


def _ignored(error: CorruptError) -> None:
    """Ignore a damaged inode, whose name is unknown."""


def _shard_of(piece: Piece) -> Shard:
    path = "/".join(piece.base.split("/")[-2:])  # below a data set
    return Shard(piece.base, ShardRecord(path, piece.contid, piece.size), grows=piece.grows)


def lost(piece: Piece, error: Exception) -> LostShard:
    """Return the damage because of which a piece could not be opened. Raises the error if that is
    no damage: see `Shard.pass_over`."""
    try:
        _shard_of(piece).must_open()
    except LostShard as found:
        return found
    raise error


def open_planned(piece: Piece, *, load: bool = False) -> Store:
    """Open a container; load: with its index. Raises StalePlan if it is not that of the plan."""
    try:
        return _shard_of(piece).open(load=load, mapped=True)
    except StalePlan as error:
        raise StalePlan(f"{error.strerror}; call load() again", piece.base) from None


class PieceSource:
    """The open container of a piece.

    verify        compare checksums of contents
    include_dirs  False: without directories and links
    typed         requested columns of the user
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
        """Open the container. Raises StalePlan, FormatError, OSError."""
        self.piece, self.problem, self._typed = piece, problem, typed
        self.store = open_planned(piece)
        self._include_dirs, self._with_contents = include_dirs, contents
        low = max(piece.low, self.store.kv.start)
        self.contents = Contents(self.store, low, min(piece.high, piece.size), verify=verify)
        self._prepared: FileTable | None = None
        self._values: tuple[Int64, dict[str, Column]] | None = None
        self._few = False  # the task has chosen so few files that their attributes are read
        self._named = False  # these are of all files of the piece
        self._hidden = None if piece.hidden is None else unpack(piece.hidden)

    def __exit__(self, *exc: object) -> None:
        self.contents.close()
        self.store.abandon()

    def chunks(self) -> Iterator[FileTable]:
        """Yield the files of the piece, in parts; with contents in the order of the inodes.

        raises  CorruptError; OSError
        """
        piece = self.piece
        if isinstance(piece, Listed):
            yield from map(self._seen, self._listed(piece))
            return
        if isinstance(piece, Chosen):
            positions = self._chosen(piece)
            self._few = len(positions) < MAX_ATTRIBUTE_READS
        elif piece.rows is not None:
            positions = unpack(piece.rows)
        else:
            self.store.load()
            positions = between(self.store, piece.low, piece.high)
        if self._hidden is not None:
            positions = np.setdiff1d(positions, self._hidden, assume_unique=True)
        yield from map(self._seen, self._at(positions))

    def _listed(self, piece: Listed) -> Iterator[FileTable]:
        """Yield the selected files with names of the piece."""
        assert piece.selection is not None
        keep_heap()  # for the arrays of each part
        query = query_of(piece.selection)._replace(
            low=piece.first, high=piece.stop, columns=tuple(self._typed)
        )
        chosen = partial(
            listed, self.store, query=query, selection=piece.selection, problem=self.problem
        )
        yield from self._columns(self._as_planned(piece, query, self.problem), chosen)

    def _chosen(self, piece: Chosen) -> Int64:
        """Return the positions of the selected files of the piece, ascending."""
        problem = raise_it if piece.strict else _ignored
        if piece.selection.paths is not None:  # of a shard of a data set, which does not grow
            self.store.load()
            pos = select(self.store, piece.selection, problem).pos
            return pos[(pos >= piece.low) & (pos < piece.high)]
        query = query_of(piece.selection)._replace(between=(piece.low, piece.high))
        found = [
            listed(self.store, rows, query, piece.selection, problem).pos
            for rows in self._as_planned(piece, query, problem)
        ]
        return np.sort(np.concatenate([NOTHING, *found]))

    def _as_planned(
        self, piece: Listed | Chosen, query: Query, problem: Problem
    ) -> Iterator[FileTable]:
        """Yield rows as of the plan, from the catalog of that time, or from one built now."""
        store, size = self.store, piece.size
        if piece.grows:
            catalog = open_older(store, size, piece.place)
        else:
            catalog = open_catalog(store, behind=0)
        if catalog is not None:
            with catalog:
                try:
                    native = isinstance(piece, Listed) and query.where is None
                    if self._typed and native and len(catalog.runs) == 1:
                        parts = catalog.runs[0].values_named(query.low, query.high, self._typed)
                        self._values, self._named = in_order(parts, self._typed), True
                        query = query._replace(columns=())
                    for rows in rows_now(store, catalog, query, end=size):
                        yield rows
                        query = query._replace(low=rows.last + b"\0")
                    return
                except DerivedDamage as error:
                    store.remark(error)
        positions = self._live_then(size, problem)
        with build(store, save=False, lost=problem, positions=positions) as made:
            yield from rows_now(store, made, query)

    def _live_then(self, size: int, problem: Problem) -> Int64:
        """Return the positions, ascending, of the files live when the data file had `size` bytes.

        cost  opens the index; if the container has grown since, reads all of the file up to `size`
        """
        with open_planned(self.piece, load=True) as store:
            if store.kv.end == size:
                return store.index.positions()
            found = rebuild(store.kv, store.settings, problem=problem, stop=size, marked=True)
            return np.sort(found.rows.pos)

    def _columns(
        self, found: Iterator[FileTable], chosen: Callable[[FileTable], FileTable]
    ) -> Iterator[FileTable]:
        """Yield the selected rows, FILES_AT_ONCE or so at a time, and set `_values` for them."""
        for some in _together(found):
            if self._typed and not self._named:
                self._values = self._values_of(FileTable.concat(some))
            yield FileTable.concat(list(map(chosen, some)))

    def _values_of(self, rows: FileTable) -> tuple[Int64, dict[str, Column]]:
        """Return ascending positions and their values, without files whose inodes must be read."""
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
        """Read the columns for all positions, ascending, of later calls of `at`. Memory: 100 bytes
        each."""
        self._prepared = columns_at(self.store, positions, self.problem)

    def at(self, positions: Int64) -> FileTable:
        """Return the visible files with inodes at these positions, ascending."""
        assert self._prepared is not None
        known = self._prepared.pos
        index = np.minimum(np.searchsorted(known, positions), max(len(known) - 1, 0))
        there = known[index] == positions if len(known) else index < 0
        return self._seen(self._prepared.take(index[there]))

    # --- columns of the user ---

    def values(self, rows: FileTable) -> dict[str, Column]:
        """Return the values of files in the columns of the user: name -> n values.

        raises  CorruptError
        cost    reads the attributes of a few files, else the columns of the catalog, once
        """
        typed, chosen = self._typed, self.piece.rows
        many = chosen is None or len(unpack(chosen)) >= MAX_ATTRIBUTE_READS
        if self._values is None and many and not self._few:
            self._values = values_between(self.store, self.piece.low, self.piece.high, typed)
        pos, known = self._values or (np.empty(0, np.int64), {})
        at = np.minimum(np.searchsorted(pos, rows.pos), max(len(pos) - 1, 0))
        there = pos[at] == rows.pos if len(pos) else np.zeros(len(rows), bool)
        there |= ~rows.special  # files without attributes have no values
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
        """Yield the files with inodes at these positions; with contents in their order."""
        if not self._with_contents:
            known = [NOTHING]
            for rows in catalogued(self.store, positions):
                known.append(rows.pos)
                yield rows
            positions = np.setdiff1d(positions, np.concatenate(known), assume_unique=True)
        elif len(positions) and int(positions[-1] - positions[0]) < DENSE * len(positions):
            yield from self._windows(positions)
            return
        for at in range(0, len(positions), FILES_AT_ONCE):
            yield files_at(self.store, positions[at : at + FILES_AT_ONCE], self.problem)

    def _windows(self, positions: Int64) -> Iterator[FileTable]:
        """Yield files from windows that contain inodes and the contents before them."""
        kv = self.store.kv
        inodes = Inodes(kv, self.store.settings, self.problem)
        # of an object the content before the first inode costs a request, here it is cached
        before = DENSE if kv.storage.far else 0
        at, begin = 0, max(self.piece.low - before, kv.start)
        while at < len(positions):
            first = int(positions[at])
            if first - begin > MAX_CONTENT_BEFORE:
                begin = first - before  # a large content, or files that are not requested
            stop = int(
                np.searchsorted(positions, max(begin + self.contents.window_bytes, first + 1))
            )
            last = int(positions[stop - 1])
            data = self.contents.window(begin, min(last + MAX_BATCH_ENTRY, kv.end) - begin)
            yield inodes.table(positions[at:stop], data, begin)
            at, begin = stop, last

    def _seen(self, rows: FileTable) -> FileTable:
        hidden = self._hidden if isinstance(self.piece, Listed) else None  # else left out before
        return rows.visible(hidden, include_dirs=self._include_dirs)
