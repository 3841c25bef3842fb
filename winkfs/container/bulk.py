"""Writing many files: the batches of put_many, put_rows and put_batch.

Files become columns. Runs of plain files are encoded together, by the compiled path or here, and
appended as one chunk, which a thread writes while the next one is made. A plain file is a data
entry and an inode of one extent, with or without an attribute entry between the two; an empty file
has no data entry. All other files are written one by one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, repeat, starmap, zip_longest
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import xxhash

from winkformats import native
from winkformats.arrays import Bools, Int64, column_at, ends_of, keep_heap, number_bytes, row_bytes
from winkformats.hashing import xxh3_many
from winkformats.kv.entry import MASK64
from winkfs.container.draft import COMPRESSIBLE, VALUE_BYTES, entries, is_usual
from winkfs.container.frames import ENOUGH_BYTES, MIN_SAMPLE_FILES, SAMPLE_BYTES, SAMPLE_FILES
from winkfs.container.ondisk.compressed import FRAME_CONTENT_BYTES
from winkfs.container.ondisk.inode import (
    ATTRS,
    FRAME,
    HEAD,
    JUST_CTIME,
    Attrs,
    check_directory,
    check_ftype,
    nanoseconds,
)
from winkfs.container.table import CTIME, FileTable
from winkfs.entry import FileType
from winkfs.errors import NameTooLong, Refusal
from winkfs.names import INODE, Name, inode_keys
from winkfs.units import as_content, byte_count, shown, to_ns

if TYPE_CHECKING:
    from winkformats.disk.storage import Buffer
    from winkformats.native import Native
    from winkfs.container.store import Store
    from winkfs.container.write import Changes

BATCH_ROWS: Final = 2048  # of a batch, at most
BATCH_BYTES: Final = 2 << 20  # content of a batch, about
FIRST_ROWS: Final = 16  # taken before their size is counted; then the batch doubles
MAX_STEP_ROWS: Final = 256  # by which it grows, at most
CONTENT: Final = itemgetter(1)  # of a row
NAME_LIMIT: Final = 65_000
LONG_ATTRS_BYTES: Final = 1 << 20  # attributes of a file that is written by itself
UNCOPIED_BYTES: Final = 4096  # mean content from which contents are written without a copy
Data = bytes | bytearray | memoryview


class Encoded(bytes):
    """The bytes of a valid attribute entry, as this container would write it, with the usual mode.
    A Row has it in place of `xattrs`."""


class Row(NamedTuple):
    """A file with all its metadata; None: the default."""

    name: Name
    data: bytes
    mtime_ns: int | None = None
    ftype: int = FileType.FILE
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    xattrs: Mapping[bytes, bytes] | None = None


class FileBatch(NamedTuple):
    """A batch of n files as columns. `keys` are inode keys; `ns` are nanoseconds, None: now.

    key_lengths, lengths, ftypes    int64[n]; lengths in bytes, of keys and contents
    attrs   `Attrs`, or the bytes of an attribute entry of mode 0644; None: none
    framed  bool[n], which of `data` are frames of the content; None: none
    """

    keys: list[bytes]
    key_lengths: Int64
    data: Sequence[Data]
    lengths: Int64
    ns: Sequence[int | None] | Int64
    ftypes: Int64
    attrs: Sequence[Any]
    framed: Bools | None = None

    def part(self, a: int, b: int) -> FileBatch:
        """Return the files [a, b)."""
        return FileBatch(*(column if column is None else column[a:b] for column in self))  # type: ignore[arg-type]


class BulkPut:
    """A call of put_many, put_rows or put_batch."""

    def __init__(self, store: Store, changes: Changes) -> None:
        keep_heap()
        self._store, self._changes = store, changes
        store.catalog.follow_bulk()
        self._fast = is_usual(store)
        self._longest = min(NAME_LIMIT, store.kv.layout.key.limit - 3)  # bytes of a name
        # Without delflags a name that exists must be refused at once.
        self._put = partial(changes.put, bulk=store.kv.layout.delflag > 0)
        self._done = 0  # files of the batch that are written

    def put(self, files: Iterable[tuple[Any, ...]]) -> int:
        """Put files, each (name, data), (name, data, mtime) or (name, data, mtime, columns) -> how
        many."""
        return self._run(files, self._columns_of_tuples)

    def put_rows(self, rows: Iterable[Row]) -> int:
        return self._run(rows, self._columns_of_rows)

    def put_columns(
        self,
        names: Sequence[str] | Sequence[bytes],
        data: Sequence[Data],
        ns: Sequence[int | None] | Int64,
        ftypes: Sequence[int] | None = None,
        attrs: Sequence[Any] | None = None,
    ) -> int:
        """Put files that are columns -> how many. It is one batch: BATCH_BYTES, BATCH_ROWS, about.

        data    memoryviews are of bytes; they are not copied before they are written
        ns      mtimes, int64[n] if all are known
        """
        n = len(names)
        self._changes.settle_drafts()
        self._write(self._columns(names, data, ns, ftypes, attrs or (None,) * n))
        return n

    def _run(self, items: Iterable[Any], columns: Any) -> int:
        self._changes.settle_drafts()
        source, total = iter(items), 0
        while True:
            batch: list[Any] = []
            try:
                self._gather(source, batch)
            finally:  # files that came before an error are kept
                if batch:
                    self._write_batch(batch, columns)
                    total += len(batch)
            if not batch:
                return total

    def _gather(self, source: Iterator[Any], batch: list[Any]) -> None:
        """Take the rows of a batch; the first batch is large enough to train a dictionary."""
        rows, most = (
            (SAMPLE_FILES, SAMPLE_BYTES) if self._changes.may_learn else (BATCH_ROWS, BATCH_BYTES)
        )
        size = 0
        while len(batch) < rows and size < most:
            start = len(batch)
            batch.extend(islice(source, min(max(FIRST_ROWS, start), MAX_STEP_ROWS)))
            if len(batch) == start:
                return
            try:
                plain = isinstance(CONTENT(batch[start]), bytes | bytearray)
                size += sum(map(len if plain else byte_count, map(CONTENT, batch[start:])))
            except (TypeError, IndexError):  # not bytes: making columns raises
                return

    def _write_batch(self, batch: list[Any], columns: Any) -> None:
        """Write a batch; if a file is refused, write those before it, and raise the error."""
        self._done = 0
        try:
            self._write(columns(batch))
        except (ValueError, TypeError, Refusal):
            if self._store.kv.broken or len(batch) == 1:
                raise
            for item in batch[self._done :]:
                self._write_batch([item], columns)
            raise

    # --- columns ---

    def _columns_of_tuples(self, batch: list[tuple[Any, ...]]) -> FileBatch:
        if native.code is not None and (plain := self._pairs(native.code, batch)) is not None:
            return plain
        try:
            lengths = set(map(len, batch))
        except TypeError:
            lengths = {0}
        if not lengths <= {2, 3, 4}:
            raise ValueError(
                "put_many takes (name, data), (name, data, mtime) or (name, data, mtime, columns)"
            )
        none = (None,) * len(batch)
        names, data, times, values = islice(chain(zip_longest(*batch), repeat(none)), 4)
        ns: Sequence[int | None] = none
        if times is not none:
            ns = list(map(self._changes.clamped.nearest, map(to_ns, times), names))
        attrs: Sequence[bytes | None] = none
        if values is not none:
            made = self._changes.metadata.column_attributes
            attrs = [made(one) if one else None for one in values]
        return self._columns(names, list(map(as_content, data)), ns, None, attrs)

    def _pairs(self, code: type[Native], batch: list[tuple[Any, ...]]) -> FileBatch | None:
        """Make a batch of (name, bytes), compiled; None: an item is different, or invalid."""
        n = len(batch)
        sizes = np.empty((2, n), np.int64)
        found = code.pairs(batch, sizes[0], sizes[1])
        if found is None or sizes[0].min() < 4 or sizes[0].max() > self._longest + 3:
            return None
        none, plain = (None,) * n, np.full(n, FileType.FILE)
        return FileBatch(found[0], sizes[0], found[1], sizes[1], none, plain, none)

    def _columns_of_rows(self, batch: list[Row]) -> FileBatch:
        for row in batch:
            if not isinstance(row, Row):
                raise TypeError(f"put_rows takes a Row for each file, not {shown(row)}")
        names, data, ns, ftypes, *owners = zip(*batch, strict=True)
        for ftype in set(ftypes):
            check_ftype(ftype)
        times = list(map(self._changes.clamped.nearest, ns, names))
        if FileType.DIR in ftypes:
            for row in batch:
                check_directory(row.ftype, row.name, len(row.data))
        attrs: Sequence[Any] = (None,) * len(batch)
        if any(column.count(None) != len(batch) for column in owners):
            made = self._changes.metadata.attrs_for
            given: Iterable[tuple[Any, Any]] = ((row.xattrs, row[3:]) for row in batch)
            attrs = [bytes(x) if type(x) is Encoded else made(*owner) for x, owner in given]
        return self._columns(names, list(map(as_content, data)), times, ftypes, attrs)

    def _columns(
        self,
        names: Sequence[Name],
        data: Sequence[Data],
        ns: Sequence[int | None] | Int64,
        ftypes: Sequence[int] | None,
        attrs: Sequence[Any],
    ) -> FileBatch:
        """Make a batch of columns. `ftypes`: None: all are FILE."""
        n, keys = len(names), inode_keys(names)
        key_lengths = _lengths(keys)
        if len(keys) != n or int(key_lengths.min()) < 4:
            raise ValueError("a name must not be empty or have NUL in it")
        if int(key_lengths.max()) > self._longest + 3:
            raise NameTooLong(f"a name may have {self._longest} bytes", self._store.base)
        lengths = _lengths(data)
        kinds = np.full(n, FileType.FILE) if ftypes is None else np.array(ftypes, np.int64)
        return FileBatch(keys, key_lengths, data, lengths, ns, kinds, attrs)

    def _mtimes(self, columns: FileBatch) -> Int64:
        """Return FMTIMEs, int64[n]. ao: raises NotAllowed if one is before its predecessor."""
        times, ns = self._store.times, columns.ns
        if not isinstance(ns, np.ndarray):
            if ns[0] is None and ns.count(None) == len(ns):
                return np.full(len(ns), self._changes.new_mtime(None), np.int64)
            now = time.time_ns()
            ns = np.array([now if one is None else one for one in ns], np.int64)
        mtimes: Int64 = ns // self._store.settings.mtime_unit
        if times is not None:
            floor = mtimes[0] if times.last is None else times.last
            behind = np.diff(mtimes, prepend=floor) < 0
            if behind.any():
                raise self._changes.disorder(int(mtimes[np.argmax(behind)]))
        return mtimes

    # --- writing ---

    def _write(self, columns: FileBatch) -> None:
        """Write a batch in order: plain files together, the others one by one."""
        if self._changes.may_learn:
            self._learn(columns.data)
        given, compressor = columns, self._changes.compressor
        most = VALUE_BYTES if compressor is None else FRAME_CONTENT_BYTES
        plain = self._fast & (columns.lengths <= most)
        if any(columns.attrs):
            files = zip(columns.keys, columns.ftypes.tolist(), columns.attrs, strict=True)
            ftypes, words = zip(*starmap(self._word, files), strict=True)
            plain &= _lengths(words) < LONG_ATTRS_BYTES
            columns = columns._replace(ftypes=np.array(ftypes, np.int64), attrs=words)
        if compressor is not None:
            columns = self._compressed(columns, plain)
        start = 0
        for i in [*np.flatnonzero(~plain).tolist(), len(plain)]:
            if start < i:
                self._append(columns.part(start, i))
                self._done = start = i
            if i < len(plain):
                self._write_one(given, i)
                self._done = start = i + 1

    def _learn(self, contents: Sequence[Data]) -> None:
        """Train a dictionary on these contents, if they are enough."""
        samples = [bytes(data[:FRAME_CONTENT_BYTES]) for data in contents if len(data)]
        size = sum(map(len, samples))
        if len(samples) >= MIN_SAMPLE_FILES and size >= ENOUGH_BYTES:
            self._changes.learn(samples, size)

    def _compressed(self, columns: FileBatch, chosen: Bools) -> FileBatch:
        """Return the batch with contents of the chosen files compressed, if they become smaller."""
        assert self._changes.compressor is not None
        which = np.flatnonzero(chosen & np.isin(columns.ftypes, COMPRESSIBLE)).tolist()
        data, framed = list(columns.data), np.zeros(len(chosen), bool)
        frames = self._changes.compressor.many([data[i] for i in which])
        for i, frame in zip(which, frames, strict=True):
            if frame is not None:
                data[i], framed[i] = frame, True
        return columns._replace(data=data, framed=framed)

    def _write_one(self, columns: FileBatch, i: int) -> None:
        attrs, ftype = columns.attrs[i], int(columns.ftypes[i])
        if type(attrs) is bytes:
            attrs = Attrs.decode(attrs, file=self._store.base, offset=0)
        self._put(columns.keys[i], bytes(columns.data[i]), columns.ns[i], ftype, attrs)

    def _word(self, key: bytes, ftype: int, attrs: Any) -> tuple[int, bytes]:
        """Return the type of a file and the value of its attribute entry, empty: it needs none."""
        if attrs is not None and type(attrs) is not bytes:
            ftype, attrs = self._changes.metadata.stored(key, ftype, attrs)
            attrs = None if attrs is None else attrs.encode()
        return ftype, attrs or b""

    def copy(self, files: FileBatch, fileids: Int64, *, anew: bool) -> None:
        """Put plain files of another container with these FILEIDs, which no other file has.

        files  names are valid, `ns` int64[n], and `attrs` values of attribute entries, or empty
        anew   compress the contents as this container does; False: frames are copied as they are
        """
        self._changes.settle_drafts()
        if anew:
            if self._changes.may_learn:
                self._learn(files.data)
            if self._changes.compressor is not None:
                files = self._compressed(files, np.ones(len(fileids), np.bool_))
        self._append(files, fileids)

    def _append(self, files: FileBatch, fileids: Int64 | None = None) -> None:
        """Append the entries of files, and count them.

        files    `attrs` are values of attribute entries, or all None
        fileids  their FILEIDs, and `data` is valid during the call only; None: new ones
        """
        store, kv, n = self._store, self._store.kv, len(files.keys)
        mtimes, least = self._mtimes(files), store.inode_size
        words = files.attrs if any(files.attrs) else None
        # Copying large contents would take as long as writing them.
        apart = fileids is None and int(files.lengths.sum()) > UNCOPIED_BYTES * n
        if fileids is None:
            first = store.new_fileid()
            store.nextfid = first + n  # first, so that an interrupted call uses no FILEID twice
            fileids = np.arange(first, first + n)
        positions, firsts = np.empty(n, np.int64), np.empty(n, np.int64)
        encode = encoded if native.code is None else native.code.encode
        parts = encode(
            kv.end, least, store.settings.pairoff, kv.layout.contid & MASK64, fileids, mtimes,
            files.ftypes, files.lengths, files.keys, files.data, words, files.framed, apart,
            positions, firsts,
        )  # fmt: skip
        full, named = files.lengths > 0, np.zeros(n, np.int64)
        if words is not None:
            named = 1 * (_lengths(words) > 0)
        kv.append_encoded(parts, n + int((full + named).sum()))
        sizes = np.maximum(least, HEAD.size + (full + named) * store.settings.form.pair)
        store.itotsz += int(sizes.sum())
        store.dtotsz += int(files.lengths.sum())
        pointers = np.where(full, firsts, 0)
        if files.framed is not None:
            pointers[files.framed] = -1
        store.catalog.put_many(
            partial(self._table, files, words, positions, pointers, fileids, mtimes)
        )
        self._changes.last = int(positions[-1])
        if store.times is not None:
            store.times.add_many(mtimes, firsts)
        store.index.add_bulk(files.keys, positions)

    def _table(
        self,
        files: FileBatch,
        words: Sequence[bytes] | None,
        positions: Int64,
        pointers: Int64,
        fileids: Int64,
        mtimes: Int64,
    ) -> FileTable:
        """Return rows of the catalog for files; their attributes are extended ones, or a ctime."""
        settings, raw = self._store.settings, np.frombuffer(b"".join(files.keys), np.uint8)
        starts = ends_of(files.key_lengths)[:-1]
        names = column_at(raw, starts, files.key_lengths - len(INODE))
        kinds = np.where(files.ftypes == 0, FileType.FILE, files.ftypes)
        times = nanoseconds(mtimes, settings.mtime_unit)
        table = FileTable.of(names, positions, fileids, files.lengths, times, pointers, kinds)
        if words is None:
            return table
        named = [i for i, word in enumerate(words) if word]
        table.attribute(named, [words[i] for i in named])
        for i in named:
            if words[i][ATTRS.size : -8] == JUST_CTIME:
                table.numbers[i, CTIME] = int.from_bytes(words[i][-8:], "big", signed=True)
        if self._store.schema:
            table.values = np.array([word[ATTRS.size :] for word in words], object)
        return table


def encoded(
    base: int, least: int, pairoff: bool, contid: int, fileids: Int64, mtimes: Int64, ftypes: Int64,
    lengths: Int64, keys: Sequence[Any], data: Sequence[Any], words: Sequence[Any] | None,
    framed: Bools | None, apart: bool, positions: Int64, firsts: Int64, /,
) -> list[Buffer]:  # fmt: skip
    """Encode the entries of many files: the reference of `encode` of the compiled module."""
    stored, named = _lengths(data), _lengths(words or [b""] * len(keys))
    kinds = 2 * (stored > 0) + (named > 0)
    parts: list[Buffer] = []
    digits = {len(f"{fileid:x}") for fileid in (int(fileids.min()), int(fileids.max()))}
    if (kinds == kinds[0]).all() and len(digits) == 1:
        parts = _alike(
            base, least, pairoff, contid, fileids, mtimes, ftypes, lengths, keys, data, words,
            framed, positions, firsts, stored, named,
        )  # fmt: skip
        return parts if apart else [b"".join(parts)]
    files = zip(
        fileids.tolist(), mtimes.tolist(), ftypes.tolist(), keys, data,
        words or [b""] * len(keys), lengths.tolist(),
        repeat(False) if framed is None else framed.tolist(), strict=False,
    )  # fmt: skip
    for i, file in enumerate(files):
        part, positions[i], _ = entries(base, least, pairoff, contid, *file)
        firsts[i], base = base, base + len(part)
        parts.append(part)
    return [b"".join(parts)]


def _alike(
    base: int, least: int, pairoff: bool, contid: int, fileids: Int64, mtimes: Int64, ftypes: Int64,
    lengths: Int64, keys: Sequence[Any], data: Sequence[Any], words: Sequence[Any] | None,
    framed: Bools | None, positions: Int64, firsts: Int64, stored: Int64, named: Int64,
) -> list[Buffer]:  # fmt: skip
    """Encode, with numpy, files of one kind: all have content or none, and all have attributes or
    none. All FILEIDs have the same number of hex digits.

    stored, named  bytes of the stored content, and of attributes
    """
    n, own, none = len(keys), _lengths(keys), np.zeros(len(keys), np.int64)
    beside = 14 + len(f"{int(fileids[0]):x}")
    pairs = (stored[0] > 0) + 1 * (named[0] > 0)
    isz = max(least, HEAD.size + int(pairs) * (24 if pairoff else 16))
    values = [(b"/D0", data, stored), (b"/A0", words or (), named)]
    values = [value for value in values if value[2][0]]
    sizes = np.stack([*(beside + size for _, _, size in values), 11 + own + isz], axis=1)
    places = (np.cumsum(sizes).reshape(sizes.shape) - sizes + base).T
    firsts[:], positions[:] = places[0], places[-1]
    bodies = [list(map(add, _heads(fileids, kind, size), of)) for kind, of, size in values]
    fields = [none, fileids, lengths, ftypes, mtimes, none + pairs]
    if named[0]:
        fields += [places[-2], none, -named]
    if stored[0]:
        fields += [places[0], none if framed is None else np.where(framed, FRAME, 0), lengths]
    if not pairoff:
        del fields[7::3]
    inodes = row_bytes(np.stack(fields, axis=1).astype(">i8"))
    five = zip(
        row_bytes(number_bytes(own, ">u2")), keys, repeat(isz.to_bytes(4, "big")),
        map(xxhash.xxh3_64_digest, inodes), inodes, repeat(bytes(isz - 8 - len(inodes[0]))),
        strict=False,
    )  # fmt: skip
    bodies.append(list(map(b"".join, five)))
    each = 2 * len(bodies)
    parts: list[Buffer] = [b"\0"] * (each * n + 1)
    for i, (body, at) in enumerate(zip(bodies, places, strict=True)):
        ends = np.zeros((n, 5), np.uint8)  # checksum, and the delflag of the next entry
        seeds = at.astype(np.uint64) + np.uint64(contid)
        ends[:, :4] = number_bytes(xxh3_many(body, seeds), ">u4")
        parts[1 + 2 * i :: each], parts[2 + 2 * i :: each] = body, row_bytes(ends)
    parts[-1] = parts[-1][:4]
    return parts


def _heads(fileids: Int64, kind: bytes, lengths: Int64) -> list[bytes]:
    """Return the starts of entries: key length, key and value length."""
    digits = len(f"{int(fileids[0]):x}")
    hexed = np.frombuffer(fileids.astype(">i8").tobytes().hex().encode(), np.uint8)
    heads = np.empty((len(fileids), digits + 9), np.uint8)
    heads[:, :2], heads[:, -7:-4] = (0, digits + 3), list(kind)
    heads[:, 2:-7] = hexed.reshape(-1, 16)[:, 16 - digits :]
    heads[:, -4:] = number_bytes(lengths, ">u4")
    return row_bytes(heads)


def _lengths(items: Sequence[Any]) -> Int64:
    return np.fromiter(map(len, items), np.int64, len(items))
