"""BASE.cols: the columns of all live files on disk, so that nobody need read inodes to list them.

A kvseq of fixed 8-byte keys and 8-byte lengths, KVCKSUM 1, ALIGN 8. A chunk is FILES files, and an
entry for each of their columns; the last entry of the file, at the position that the variable
CHUNKS has, is the table of the chunks.

    key        value
    p/%06x     int64[n]  `pos` of chunk number %06x; each column has a letter of its own
    i, s, m    int64[n]  `pointer`, `size`, `mtime`
    f, a       uint8[n]  `ftype`, `special`
    e          int64[n + 1]  `name_ends`, from 0
    n          uint8[..]  `name_bytes`
    k/000000   uint32[chunks, 8]  the checksums that the entries above have
    t/000000   int64[chunks, 16], see `Chunk`

Values are little-endian, unlike all else, and begin at a multiple of 8: numpy and Arrow take them
as they lie there. Believed only where CONTID and DATAEND are those of the data file; each entry is
checked when it is first used. A new file is written beside the old one, synced and renamed over it.

`ColumnsFile` reads it, `FileArray` is a column that stays in the file.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats.arrays import Int64, fetch, texts_at
from winkformats.disk.paths import open_file
from winkformats.disk.storage import TEMPORARY, Storage, check_view
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.entry import MASK64
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import SBSIZE, read_superblock
from winkfs.container.columns import Columns
from winkfs.container.derived import Opened
from winkfs.container.ondisk.catalog import ALIGN, FIXED, LONG, check_form
from winkfs.container.ondisk.data import PURPOSE_COLUMNS
from winkfs.errors import DerivedDamage
from winkfs.names import base_of

Array = npt.NDArray[Any]
CHUNKS: Final = "CHUNKS"  # position of the table of chunks
COLSUMS: Final = "COLSUMS"  # position of the entry before it, with checksums of the columns
COLHASH: Final = "COLHASH"  # XXH3-64 of the values of both: an older file's are none of this one's
LETTERS: Final = "pismfaen"  # of the columns, in the order of the fields of `Columns`
TYPES: Final = ("<i8", "<i8", "<i8", "<i8", "u1", "u1", "<i8", "u1")
VALUE_AT: Final = 16  # bytes of an entry before its value
MOST: Final = (1 << 63) - 1
READ: Final = 1 << 16  # files read at a time
FILES: Final = 1 << 16  # of a chunk
NAMES: Final = 1 << 28  # bytes of the names of a chunk, about: int32 offsets hold them


class OpenFile:
    """A file that stays open as long as an array is in it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        weakref.finalize(self, storage.close)


class FileArray:
    """What a mount asks of a one-dimensional numpy array, whose bytes stay in the file.

    Numpy takes it for an array and reads all of it. Raises DerivedDamage where the file has been
    cut short.
    """

    def __init__(self, file: OpenFile, offset: int, dtype: str, count: int) -> None:
        """`count` numbers from byte `offset` of the file on."""
        self.dtype = np.dtype(dtype)
        self._file, self._storage = file, file.storage
        self._offset, self._count = offset, count

    def __len__(self) -> int:
        return self._count

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self._slice(0, self._count)
        return found if dtype is None else found.astype(dtype)

    def item(self, index: int) -> int:
        """One number. Cost: one read."""
        return self._slice(index, index + 1).item()  # type: ignore[no-any-return]

    def __getitem__(self, key: Any) -> Any:
        """A number, those of a slice, or those at some indices: int64[n]. Cost: one read each,
        one for all where they lie close together."""
        if isinstance(key, slice):
            return self._slice(*key.indices(self._count)[:2])
        if isinstance(key, np.ndarray):
            return self._gather(key)
        return self._slice(int(key), int(key) + 1)[0]

    def searchsorted(self, wanted: int) -> int:
        """Of ascending numbers: the index of the first that is not less."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.item(middle) < wanted else (low, middle)
        return low

    def texts(self, begin: Int64, lengths: Int64) -> list[bytes]:
        """Bytes [begin, begin + length) of an array of bytes; none of them may end in NUL."""
        width = int(lengths.max(initial=1))
        self._check(int((begin + lengths).max(initial=0)))
        data, at = fetch(self._storage, begin + self._offset, width)
        return texts_at(np.frombuffer(data, np.uint8), at, lengths)

    def _gather(self, index: Int64) -> Array:
        width = self.dtype.itemsize
        self._check((int(index.max(initial=-1)) + 1) * width)
        data, at = fetch(self._storage, index * width + self._offset, width)
        return np.frombuffer(data, self.dtype)[at // width]

    def _slice(self, start: int, stop: int) -> Array:
        width, stop = self.dtype.itemsize, max(start, stop)
        at, length = self._offset + start * width, (stop - start) * width
        data = self._storage.read(at, length)
        if len(data) < length:
            raise self._cut(at + len(data))
        return np.frombuffer(data, self.dtype)

    def _check(self, length: int) -> None:
        """That the file has so many bytes of the array."""
        if length and not self._storage.read(self._offset + length - 1, 1):
            raise self._cut(self._offset + length - 1)

    def _cut(self, at: int) -> DerivedDamage:
        return DerivedDamage("the columns are cut short", file=self._storage.name, offset=at)


class Chunk(NamedTuple):
    """A row of the table: a chunk, what is in it, and where its columns are.

    files, content          number of files, sum of their sizes (at most 2^63 - 1)
    first, last             positions of its first and its last inode
    mtime_min .. size_max   what is in the columns
    pos .. name_bytes       kv_pointers of the entries
    """

    files: int
    content: int
    first: int
    last: int
    mtime_min: int
    mtime_max: int
    size_min: int
    size_max: int
    pos: int
    pointer: int
    size: int
    mtime: int
    ftype: int
    special: int
    name_ends: int
    name_bytes: int


STATS: Final = len(Chunk._fields) - len(LETTERS)


class ColumnsFile:
    """BASE.cols, open: the columns of a container, of which only what is asked for is read.

    contid, covered   whose they are: CONTID, and FILESIZE of the data file
    chunks            int64[.., 16], rows of `Chunk`
    files, content    number of files, sum of their sizes

    Arrays that were handed out stay good after `close`. A damaged entry is a CorruptError when it
    is first used. Where the storage is not mapped, each call reads anew; of `chunk` the last one is
    kept.
    """

    def __init__(self, storage: Storage, *, in_file: bool = False) -> None:
        """`in_file`: `chunk` has a `FileArray` for each array; the storage is not mapped then.

        raises  FormatError, OSError
        """
        self._storage = storage
        self.superblock = block = read_superblock(storage)
        size = block.get("FILESIZE", 0)
        layout = check_form(block, storage, PURPOSE_COLUMNS)
        self.contid, self.covered = block.get("CONTID", 0), block.get("DATAEND", -1)
        self._layout, self._end = layout, size
        storage.remember_resident()
        self._view = memoryview(storage.view(size, sparse=True)) if storage.mapped else None
        self._file = OpenFile(storage) if in_file else None
        self._good: dict[int, npt.NDArray[Any]] = {}  # entries that were checked, by position
        self._chunks: dict[int, Columns] = {}
        self._sums: dict[int, int] = {}  # of the values, by position; empty: of an older version
        self.chunks = self._table(block.get(CHUNKS, 0))
        if COLSUMS in block:
            self._sums = self._read_sums(block[COLSUMS])
        self._starts = np.concatenate([[0], np.cumsum(self.chunks[:, 0])])
        self.files = int(self._starts[-1])
        self.content = sum(self.chunks[:, 1].tolist())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and take what was read of it out of the page cache again."""
        self._storage.drop_seen()
        if self._file is None:
            self._storage.close()
        self._view = self._file = None  # both hold the file open
        self._good, self._chunks = {}, {}

    def __len__(self) -> int:
        return self.files

    # --- rows ---

    def slice(self, start: int, stop: int) -> Columns:
        """The files [start, stop); reads only the chunks they lie in. Raises CorruptError."""
        return self._joined(
            self.chunk(i).slice(max(start, low) - low, min(stop, high) - low)
            for i, low, high in self._touched(start, stop)
        )

    def between(self, low: int, high: int) -> Columns:
        """The files whose inodes stand in [low, high). Raises CorruptError."""
        first = int(np.searchsorted(self.chunks[:, 3], low))
        stop = int(np.searchsorted(self.chunks[:, 2], high))
        return self._joined(self.chunk(i).between(low, high) for i in range(first, stop))

    def take(self, index: Int64) -> Columns:
        """The files with these indices, ascending. Raises CorruptError."""
        ends = np.searchsorted(index, self._starts)
        return self._joined(
            self.chunk(i).take(index[ends[i] : ends[i + 1]] - self._starts[i])
            for i in np.flatnonzero(np.diff(ends)).tolist()
        )

    def column(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """One column, `pos` to `special`, of the files [start, stop), and nothing else read."""
        number = Chunk._fields.index(name) - STATS
        stop = self.files if stop is None else stop
        parts = [
            self._column(i, number)[max(start, low) - low : min(stop, high) - low]
            for i, low, high in self._touched(start, stop)
        ]
        return np.concatenate(parts) if parts else np.empty(0, TYPES[number])

    def column_of(self, number: int, name: str) -> npt.NDArray[Any]:
        """One column, `pos` to `special`, of a chunk. Raises CorruptError."""
        return self._column(number, Chunk._fields.index(name) - STATS)

    def chunk(self, number: int) -> Columns:
        """All files of a chunk, without a copy where they are mapped. Raises CorruptError."""
        found = self._chunks.get(number)
        if found is None:
            found = Columns(*(self._column(number, column) for column in range(len(LETTERS))))
            row, ends = Chunk(*self.chunks[number].tolist()), found.name_ends
            bounds = (int(found.pos[0]), int(found.pos[-1]), int(ends[0]), int(ends[-1]))
            rising = (np.diff(found.pos) > 0).all() and (np.diff(ends) > 0).all()
            if bounds != (row.first, row.last, 0, len(found.name_bytes)) or not rising:
                raise CorruptError("chunk of columns", file=self._storage.name, offset=row.pos)
            if self._file is not None:
                found = self._in_file(number, found)
            if self._view is None and self._file is None:
                self._chunks.clear()  # else all of it would come to be in memory
            self._chunks[number] = found
        return found

    def _in_file(self, number: int, chunk: Columns) -> Columns:
        """The same files, with arrays that stay in the file."""
        assert self._file is not None
        arrays: list[Any] = []
        for column, array in enumerate(chunk.arrays()):
            value = int(self.chunks[number][STATS + column]) + VALUE_AT
            arrays.append(FileArray(self._file, value, TYPES[column], len(array)))
        return Columns(*arrays)

    def _touched(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Chunks that have some of the files [start, stop): number, first file, and after last."""
        if start >= stop:
            return
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        for i in range(first, len(self.chunks)):
            low, high = int(self._starts[i]), int(self._starts[i + 1])
            if low >= stop:
                return
            yield i, low, high

    @staticmethod
    def _joined(parts: Iterable[Columns]) -> Columns:
        return Columns.concat([part for part in parts if len(part)])

    # --- entries ---

    def _table(self, pos: int) -> Int64:
        """The table of chunks. Raises CorruptError for one that cannot be."""
        words: Int64 = self._value(b"t/000000", pos, "<i8")
        if len(words) % len(Chunk._fields) == 0:
            table = words.reshape(-1, len(Chunk._fields))
            files, first, last = table[:, 0], table[:, 2], table[:, 3]
            if (files >= 1).all() and (first <= last).all() and (first[1:] > last[:-1]).all():
                return table
        raise CorruptError("table of chunks", file=self._storage.name, offset=pos)

    def _read_sums(self, pos: int) -> dict[int, int]:
        """Checksums of the columns. Raises CorruptError where they are not those of this file."""
        sums = self._value(b"k/000000", pos, "<u4")
        places = self.chunks[:, STATS:].ravel()
        both = sums.tobytes() + self.chunks.tobytes()
        if len(sums) != len(places) or _hash64(both) != self.superblock.get(COLHASH):
            raise CorruptError("checksums of the columns", file=self._storage.name, offset=pos)
        return dict(zip(places.tolist(), sums.tolist(), strict=True))

    def _column(self, chunk: int, column: int) -> npt.NDArray[Any]:
        row = self.chunks[chunk]
        key = b"%c/%06x" % (ord(LETTERS[column]), chunk)
        pos = int(row[STATS + column])
        found = self._value(key, pos, TYPES[column])
        count = int(row[0]) + (LETTERS[column] == "e")
        if LETTERS[column] != "n" and len(found) != count:
            raise CorruptError(
                "column", file=self._storage.name, offset=pos, expected=count, found=len(found)
            )
        return found

    def _value(self, key: bytes, pos: int, dtype: str) -> npt.NDArray[Any]:
        """The value of the entry at a position, checked. Raises CorruptError."""
        name = self._storage.name
        if self._view is not None:
            check_view(self._view, self._end, name)
        known = self._good.get(pos)
        if known is not None:
            return known
        if not self.superblock["SBSIZE"] <= pos < self._end:
            raise CorruptError("entry reaches past the end", file=name, offset=pos)
        data, at = self._entry(pos)
        span = self._layout.locate(data, at)
        if span is None or span.end - at + pos > self._end:
            raise CorruptError("entry reaches past the end", file=name, offset=pos)
        self._layout.check(data, at, span, pos, name)
        own = int.from_bytes(data[span.end - 4 : span.end], "big")
        if self._sums.get(pos, own) != own:
            raise CorruptError("column of an older file", file=name, offset=pos)
        size = np.dtype(dtype).itemsize
        if data[span.key : span.key + span.key_len] != key or span.value_len % size:
            raise CorruptError(f"not the entry {key.decode()}", file=name, offset=pos)
        found = np.frombuffer(data, dtype, span.value_len // size, span.value)
        if self._view is not None:
            self._good[pos] = found
        return found

    def _entry(self, pos: int) -> tuple[memoryview | bytes, int]:
        """-> bytes in which the entry at a position is whole, if the file has it, and where."""
        if self._view is None:
            head = self._storage.read(pos, VALUE_AT)
            return self._storage.read(pos, min(self._layout.reach(head), self._end - pos)), 0
        span = self._layout.locate(self._view, pos)
        if span is not None and span.end <= self._end:
            self._storage.read_ahead(pos, span.end - pos)
        return self._view, pos


class ColumnsWriter:
    """Writes the entries of a BASE.cols."""

    def __init__(self, storage: Storage, contid: int) -> None:
        self._kv = KVSeq.create(
            storage, purpose=PURPOSE_COLUMNS, keyrepr=FIXED, valrepr=LONG, kvdelfl=0, align=ALIGN,
            sbsize=SBSIZE, contid=contid, extra={"DATAEND": 0, CHUNKS: 0, COLSUMS: 0, COLHASH: 0},
        )  # fmt: skip
        self._contid = contid
        self._table: list[Chunk] = []
        self._sums: list[int] = []

    def add(self, rows: Columns) -> None:
        """A chunk: not empty, its files behind those of the chunk before."""
        number = len(self._table)
        arrays = list(rows.arrays())
        arrays[6:] = rows.name_ends - rows.name_ends[0], rows.names_joined
        places = [
            self._append(b"%c/%06x" % (ord(letter), number), _bytes(array, dtype))
            for letter, dtype, array in zip(LETTERS, TYPES, arrays, strict=True)
        ]
        stats = [
            len(rows), min(sum_of(rows.size), MOST), rows.pos[0], rows.pos[-1],
            rows.mtime.min(), rows.mtime.max(), rows.size.min(), rows.size.max(),
        ]  # fmt: skip
        self._table.append(Chunk(*map(int, stats), *places))

    def _append(self, key: bytes, value: bytes) -> int:
        pos = self._kv.append(key, value)
        state = xxhash.xxh3_64(key, seed=(self._contid + pos) & MASK64)  # as the kvseq has it
        state.update(len(value).to_bytes(8, "big"))
        state.update(value)
        self._sums.append(state.intdigest() & 0xFFFF_FFFF)
        return pos

    def finish(self, covered: int, now: int) -> None:
        """Write the table; durable on return. `covered`: DATAEND."""
        sums, table = np.array(self._sums, "<u4").tobytes(), np.array(self._table, "<i8").tobytes()
        places = {COLSUMS: self._kv.append(b"k/000000", sums)}
        places[CHUNKS] = self._kv.append(b"t/000000", table)
        places[COLHASH] = _hash64(sums + table)
        self._kv.sync({"DATAEND": covered, **places}, now=now)
        self._kv.release()


def sum_of(sizes: Int64) -> int:
    """Their sum, also where int64 cannot hold it."""
    if len(sizes) and int(sizes.max()) > MOST // len(sizes):
        return sum(sizes.tolist())
    return int(sizes.sum())


def _hash64(data: bytes) -> int:
    """XXH3-64 as a variable has it."""
    return int.from_bytes(xxhash.xxh3_64_digest(data), "big", signed=True)


def _bytes(array: npt.NDArray[Any], dtype: str) -> bytes:
    return array.astype(dtype, copy=False).tobytes()


def open_columns(store: Opened | str, *, mapped: bool = True) -> ColumnsFile | None:
    """BASE.cols of a container, by its store or BASE, if it can be believed.

    mapped  False: it is read by pread, for servers; the last chunk stays in memory
    ->      None where it is missing, foreign, damaged, or not of just what the data file holds
    raises  FormatError, OSError where the superblock of BASE.data cannot be read
    cost    reads the superblock and the table of chunks, no column
    """
    if isinstance(store, str):
        with open_file(base_of(store) + ".data") as data:
            block = read_superblock(data)
            contid, end = block.get("CONTID", 0), block.get("FILESIZE", -1)
            if end > data.size():  # cut short: the columns would name what is not there
                return None
        base, note = base_of(store), None
    else:
        contid, end = store.settings.contid, store.kv.end
        base, note = store.base, store.note
    return _open(base + ".cols", contid, end, note, mapped=mapped)


def _open(
    path: str,
    contid: int,
    end: int,
    note: Callable[[CorruptError], None] | None,
    *,
    mapped: bool,
) -> ColumnsFile | None:
    try:
        storage = open_file(path)
    except OSError:
        return None
    storage.mapped = mapped
    try:
        found = ColumnsFile(storage)
    except (FormatError, OSError, ValueError) as error:
        storage.close()
        if note is not None and isinstance(error, CorruptError):
            note(error)
        return None
    if contid and (found.contid, found.covered) == (contid, end):
        return found
    found.close()
    return None


class DerivedColumns:
    """BASE.cols of an open container."""

    suffix = ".cols"

    def __init__(self, store: Opened) -> None:
        self._store = store

    def sweep(self) -> None:
        """Also one that the data file, growing, might come to fit by chance."""
        store, name = self._store, self._store.name + self.suffix
        store.directory.unlink(name + TEMPORARY)  # of a writer that was killed
        try:
            with store.directory.open(name) as storage:
                block = read_superblock(storage)
            foreign = block.get("CONTID") != store.settings.contid
            if foreign or not 0 <= block.get("DATAEND", -1) <= store.kv.end:
                store.directory.unlink(name)
        except FileNotFoundError:
            return
        except (FormatError, OSError):
            store.directory.unlink(name)

    def rewritten(self, pos: int) -> None:
        pass

    def drop(self) -> None:
        pass

    def save(self) -> None:
        write_columns(self._store)


def write_columns(store: Opened, rows: Iterable[Columns] | None = None) -> None:
    """Write BASE.cols for all live files. The writer has synced.

    Nothing is done in classic layout, which has no CONTID, and where the disk is full.

    rows    their columns, in order of their inodes, in parts of any size; None: all are read
    raises  ValueError (there is something to sync); CorruptError (a damaged inode); OSError
    cost    one write of the file; the inodes are read where `rows` is None; memory: a chunk
    """
    if not store.settings.contid:
        return
    if not store.writable or store.kv.end != store.synced:
        raise ValueError("columns are written by a writer that has synced")
    try:
        with store.deriving(".cols", uncached=True) as storage:
            writer = ColumnsWriter(storage, store.settings.contid)
            for chunk in _chunks(_all(store) if rows is None else rows):
                writer.add(chunk)
            now = store.kv.superblock.get("SYNCTIME", int(time.time()))
            writer.finish(store.kv.end, now)
        storage.close()
    except OSError as error:
        store.excuse(error)


def _all(store: Opened) -> Iterator[Columns]:
    live = store.index.positions()
    for start in range(0, len(live), READ):
        yield Columns.of(store, live[start : start + READ])


def _chunks(parts: Iterable[Columns]) -> Iterator[Columns]:
    """The same files in chunks of FILES, or less where their names are long."""
    waiting: list[Columns] = []
    files = names = 0
    for whole in parts:
        at = 0
        while at < len(whole):
            limit = int(whole.name_ends[at]) + NAMES - names
            fits = int(np.searchsorted(whole.name_ends, limit, "right")) - 1
            stop = min(len(whole), at + FILES - files, max(fits, at + (files == 0)))
            part = whole.slice(at, stop)
            waiting += [part] if len(part) else []
            files, names, at = files + len(part), names + len(part.names_joined), stop
            if at < len(whole):
                yield Columns.concat(waiting)
                waiting, files, names = [], 0, 0
    if waiting:
        yield Columns.concat(waiting)
