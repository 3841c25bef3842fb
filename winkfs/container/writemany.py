"""Writing many files: one call of put_many or put_rows.

Runs of plain files become chunks of entries (`manyentries`), the others are written one by one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from winkformats import native
from winkformats.arrays import Bools, Int64, keep_heap
from winkformats.disk.room import has_ample_memory
from winkfs.container.draft import CHUNK
from winkfs.container.frames import ENOUGH, FEWEST, SAMPLE_FILES, Compressor
from winkfs.container.manyentries import Columns, Data, append_plain, can_append, with_frames
from winkfs.container.ondisk.compressed import PIECE
from winkfs.container.ondisk.inode import Attrs, check_directory, check_ftype
from winkfs.entry import FileType, default_mode
from winkfs.errors import NameTooLong, Refusal
from winkfs.names import INODE, INODE_TEXT, Name, to_bytes
from winkfs.units import as_content, is_time, shown, to_ns

if TYPE_CHECKING:
    from winkformats.native import Native
    from winkfs.container.handle import Handle
    from winkfs.container.store import Store
    from winkfs.container.write import Changes

ROWS: Final = 2048  # of a batch; 512 are 15 % slower, 1024 5 %
STEP: Final = 256  # rows taken before their size is looked at
FEW_BARE: Final = 16  # files without content that are written one by one: a run takes as long
FIRST: Final = 64  # rows of the first batch, for their size is not known
BYTES: Final = 2 << 20  # content of a batch, about; where memory is not ample
FEW_BYTES: Final = 512 << 10
LARGE: Final = 16 << 20  # where files suddenly become larger, a batch ends here
CONTENT: Final = itemgetter(1)  # of a row
NAME_LIMIT: Final = 65_000
LONG: Final = 1 << 20  # bytes of attributes that are written by themselves
ODD: Final = object()
BUFFERS: Final = (bytes, bytearray, memoryview)


class Encoded(bytes):
    """In a Row in the place of mode, owner and xattrs: the bytes of an attribute entry, good, of
    the mode that is usual, and as this container would write them."""


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


class BulkPut:
    """One call of put_many or put_rows."""

    def __init__(self, store: Store, changes: Changes) -> None:
        keep_heap()
        self._store, self._changes = store, changes
        store.catalog.follow_bulk()
        self._fast = can_append(store)
        self._longest = min(NAME_LIMIT, store.kv.layout.key.limit - 3)  # bytes of a name
        # Without delflags a name that exists must be refused at once.
        self._put = changes.put_bulk if store.kv.layout.delflag else changes.put
        self._rows = FIRST
        self._done = 0  # files of the batch that are written

    def put(self, files: Iterable[tuple[Any, ...]]) -> int:
        """(name, data), (name, data, mtime) or (name, data, mtime, columns) each -> how many."""
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
        """Files as columns -> how many. One batch: BYTES of content, ROWS files, about.

        data    memoryviews are of bytes; they are not copied before they are written
        ns      mtimes, int64[n] where all are known
        """
        n = len(names)
        self._changes.settle_drafts()
        self._learn(data)
        self._write(
            self._columns(names, data, ns, ftypes or (FileType.FILE,) * n, attrs or (None,) * n)
        )
        return n

    def _run(self, items: Iterable[Any], columns: Any) -> int:
        self._changes.settle_drafts()
        source, total = iter(items), 0
        while True:
            batch: list[Any] = []
            error: BaseException | None = None
            try:
                if self._changes.may_learn:
                    self._rows = SAMPLE_FILES
                    self._gather(source, batch)
                    self._learn([item[1] for item in batch if len(item) > 1])
                else:
                    self._gather(source, batch)
            except BaseException as caught:
                error = caught  # what came before it is kept
            if batch:
                size = self._write_batch(batch, columns)
                total += len(batch)
                self._rows = min(max(BYTES // (size // len(batch) + 1), 16), ROWS)
            if error is not None:
                raise error
            if not batch:
                return total

    def _learn(self, contents: Sequence[Any]) -> None:
        """Try a dictionary for content like this, if that has not been done and there is enough."""
        if self._changes.may_learn:
            given = (data for data in contents if isinstance(data, BUFFERS) and len(data))
            samples = [bytes(data[:PIECE]) for data in given]
            size = sum(map(len, samples))
            if len(samples) >= FEWEST and size >= ENOUGH:
                self._changes.learn(samples, size)

    def _gather(self, source: Iterator[Any], batch: list[Any]) -> None:
        """Take the rows of a batch: as many as the last one says, but no more than LARGE bytes."""
        size = 0
        while len(batch) < self._rows and size < LARGE:
            start = len(batch)
            batch.extend(islice(source, min(STEP, self._rows - start)))
            if len(batch) == start:
                return
            if native.code is not None and (known := native.code.size_of(batch, start)) >= 0:
                size += known
                continue
            try:
                size += sum(map(len, map(CONTENT, batch[start:])))
            except (TypeError, IndexError):  # no bytes: the columns will say so
                return

    def _write_batch(self, batch: list[Any], columns: Any) -> int:
        """-> bytes of content. What comes before a file that is refused is written."""
        self._done = 0
        try:
            made = columns(batch)
            self._write(made)
            return int(made.lengths.sum())
        except (ValueError, TypeError, Refusal):
            if self._store.kv.broken or len(batch) == 1:
                raise
            for item in batch[self._done :]:
                self._write_batch([item], columns)
            raise

    # --- columns ---

    def _columns_of_tuples(self, batch: list[tuple[Any, ...]]) -> Columns:
        if native.code is not None and (pairs := self._pairs(native.code, batch)) is not None:
            return pairs
        try:
            lengths = set(map(len, batch))
        except TypeError:
            lengths = {0}
        attrs: Sequence[bytes | None] = (None,) * len(batch)
        if lengths == {2}:
            names, data = zip(*batch, strict=True)
            ns: Sequence[int | None] = (None,) * len(batch)
        elif lengths <= {2, 3, 4}:
            names, data = zip(*[item[:2] for item in batch], strict=True)
            ns = [to_ns(item[2]) if len(item) > 2 else None for item in batch]
            ns = self._clamped(names, ns)
            if 4 in lengths:
                made = self._changes.column_attributes
                attrs = [made(item[3]) if len(item) == 4 and item[3] else None for item in batch]
        else:
            raise ValueError(
                "put_many takes (name, data), (name, data, mtime) or (name, data, mtime, columns)"
            )
        plain = (FileType.FILE,) * len(batch)
        return self._columns(names, _contents(data), ns, plain, attrs)

    def _pairs(self, code: type[Native], batch: list[tuple[Any, ...]]) -> Columns | None:
        """Of pairs of name and bytes, compiled; None: what is not so plain, or is to be refused."""
        n = len(batch)
        sizes = np.empty((2, n), np.int64)
        found = code.pairs(batch, sizes[0], sizes[1])
        least, most = int(sizes[0].min()), int(sizes[0].max())
        if found is None or least < 4 or most > self._longest + 3:
            return None
        none, plain = (None,) * n, (FileType.FILE,) * n
        return Columns(found[0], sizes[0], found[1], sizes[1], none, plain, none)

    def _columns_of_rows(self, batch: list[Row]) -> Columns:
        if set(map(type, batch)) != {Row}:
            for row in batch:
                if not isinstance(row, Row):
                    raise TypeError(f"put_rows takes a Row for each file, not {shown(row)}")
        names, data, ns, ftypes, *owners = zip(*batch, strict=True)
        attrs: Sequence[Any] = (None,) * len(batch)
        for ftype in set(ftypes):
            check_ftype(ftype)
        times = self._clamped(names, ns)
        if FileType.DIR in ftypes:
            for row in batch:
                check_directory(row.ftype, row.name, len(row.data))
        if any(column.count(None) != len(batch) for column in owners):
            attrs = list(map(self._attributes, batch))
        return self._columns(names, _contents(data), times, ftypes, attrs)

    def _clamped(self, names: Sequence[Name], ns: Sequence[int | None]) -> Sequence[int | None]:
        """Return the times that files can have."""
        if all(map(is_time, ns)):
            return ns
        nearest = self._changes.clamped.nearest
        return [nearest(one, name) for one, name in zip(ns, names, strict=True)]

    def _attributes(self, row: Row) -> Attrs | bytes | None:
        given: Any = row.xattrs
        if type(given) is Encoded:
            return bytes(given)
        return self._changes.attrs_for(row.ftype, row.mode, row.uid, row.gid, given)

    def _columns(
        self,
        names: Sequence[Name],
        data: Sequence[Data],
        ns: Sequence[int | None] | Int64,
        ftypes: Sequence[int],
        attrs: Sequence[Any],
    ) -> Columns:
        n, keys = len(names), self._keys(names)
        key_lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        if len(keys) != n or int(key_lengths.min()) < 4:
            raise ValueError("a name must not be empty or have NUL in it")
        if int(key_lengths.max()) > self._longest + 3:
            raise NameTooLong(f"a name may have {self._longest} bytes", self._store.base)
        lengths = np.fromiter(map(len, data), np.int64, n)
        return Columns(keys, key_lengths, data, lengths, ns, ftypes, attrs)

    def _keys(self, names: Sequence[Name]) -> list[bytes]:
        """Names -> inode keys; more or fewer than names where one has NUL in it."""
        try:  # one encode for all of them: a quarter of one by one
            if names and isinstance(names[0], bytes):
                return (INODE_TEXT.encode() + b"\0").join([*names, b""])[:-1].split(b"\0")  # type: ignore[list-item]
            text = (INODE_TEXT + "\0").join(names)  # type: ignore[arg-type]
            return (text + INODE_TEXT).encode("utf-8", "surrogateescape").split(b"\0")
        except TypeError:
            keys = [to_bytes(name) + INODE for name in names]
            return [key for key in keys if b"\0" not in key]

    # --- writing ---

    def _write(self, columns: Columns) -> None:
        """Write a batch in order: runs of ordinary files as columns, the others one by one."""
        given = columns
        compressor = self._changes.compressor
        most = CHUNK if compressor is None else PIECE
        bare = columns.lengths == 0
        ordinary = (columns.lengths <= most) & self._fast
        kinds = np.zeros(len(ordinary), np.int8)
        if any(columns.attrs):
            words = list(map(self._word, columns.ftypes, columns.attrs))
            ordinary &= np.fromiter((word is not ODD for word in words), bool, len(words))
            kinds = np.fromiter((type(word) is bytes for word in words), np.int8, len(words))
            columns = columns._replace(attrs=words)
        if compressor is not None:
            columns = self._compressed(columns, ordinary & ~bare, compressor)
        start = 0
        # runs of files that are written together end where one is not, or where content or
        # attributes begin or end
        kinds += 2 * bare
        ends = np.flatnonzero(~ordinary | (np.diff(kinds, prepend=kinds[:1]) != 0)).tolist()
        for i in [*ends, len(ordinary)]:
            if start < i and bare[start] and i - start < FEW_BARE:
                for number in range(start, i):
                    self._write_one(given, number)
                    self._done = number + 1
            elif start < i:
                self._write_run(columns, start, i)
            start = i
            if i < len(ordinary) and not ordinary[i]:
                self._write_one(given, i)
                self._done = start = i + 1

    def _compressed(self, columns: Columns, chosen: Bools, compressor: Compressor) -> Columns:
        """The same with frames in the place of the content of the chosen files, where that pays."""
        data, framed = with_frames(compressor, columns.data, columns.ftypes, chosen)
        return columns._replace(data=data, framed=framed)

    def _write_one(self, columns: Columns, i: int) -> None:
        attrs = columns.attrs[i]
        if type(attrs) is bytes:
            attrs = Attrs.decode(attrs, file=self._store.base, offset=0)
        self._put(columns.keys[i], bytes(columns.data[i]), columns.ns[i], columns.ftypes[i], attrs)

    def _word(self, ftype: int, attrs: Any) -> Any:
        """The attribute entry of a file; None: it needs none; ODD: it is written by itself."""
        if attrs is None or type(attrs) is bytes:
            return attrs if attrs is None or len(attrs) < LONG else ODD
        if self._changes.is_default(ftype, attrs):
            return None
        typed = ftype in (FileType.FILE, FileType.EXEC) and attrs.mode in (0o644, 0o755)
        if (typed and attrs.mode != default_mode(ftype)) or attrs.ctime_ns is not None:
            return ODD  # another type goes with that mode
        word = attrs.encode()
        return word if len(word) < LONG else ODD

    def _write_run(self, columns: Columns, start: int, stop: int) -> None:
        """Cut a run where the width of the FILEID in hex changes, so that headers are a matrix."""
        while start < stop:
            fileid = self._store.new_fileid()
            room = 16 ** len(f"{fileid:x}") - fileid
            end = min(stop, start + room)
            self._encode(columns.part(start, end), fileid)
            self._done = start = end

    def _encode(self, columns: Columns, fileid: int) -> None:
        store, mtimes = self._store, self._mtimes(columns)
        fileids = np.arange(fileid, fileid + len(columns.keys))
        attrs = columns.attrs if type(columns.attrs[0]) is bytes else None
        store.nextfid = fileid + len(fileids)  # first: a call that is broken off uses none twice
        positions, pointers = append_plain(store, columns, fileids, mtimes, attrs)
        self._changes.last = int(positions[-1])
        if store.times is not None:
            store.times.add_many(mtimes, pointers)
        store.index.add_bulk(columns.keys, positions)

    def _mtimes(self, columns: Columns) -> Int64:
        """FMTIMEs, int64[n]. ao: raises NotAllowed where one lies before its predecessor."""
        settings, times = self._store.settings, self._store.times
        n, now = len(columns.ns), None
        if isinstance(columns.ns, np.ndarray):
            mtimes = settings.mtimes_of(columns.ns)
        else:
            if None in columns.ns:
                now = self._changes.new_mtime(None)
            if columns.ns[0] is None and columns.ns.count(None) == n:
                return np.full(n, now, np.int64)
            given = [settings.mtime_of(time.time_ns() if ns is None else ns) for ns in columns.ns]
            mtimes = np.array(given, np.int64)
        if times is not None:
            floor = mtimes[0] if times.last is None else times.last
            if (np.diff(mtimes, prepend=floor) < 0).any():
                low = int(np.argmax(np.diff(mtimes, prepend=floor) < 0))
                self._changes.new_mtime(columns.ns[low])
                raise self._changes.disorder(int(mtimes[low]))
        return mtimes


class Gatherer:
    """Files that wait to be put together, in their order."""

    def __init__(self, container: Handle) -> None:
        self._container = container
        self._most = BYTES if has_ample_memory() else FEW_BYTES
        self._clear()

    def _clear(self) -> None:
        self._names: list[bytes] = []
        self._data: list[bytes | memoryview] = []
        self._mtimes: list[int | None] = []
        self._ftypes: list[int] = []
        self._attrs: list[Attrs | None] = []
        self._size = 0

    def add_row(self, row: Row) -> None:
        name, data, mtime_ns, ftype, mode, uid, gid, xattrs = row
        attrs = self._container.changes.attrs_for(ftype, mode, uid, gid, xattrs)
        self.add([to_bytes(name)], [data], [mtime_ns], [ftype], [attrs])

    def add(
        self,
        names: list[bytes],
        data: Sequence[bytes | memoryview],
        mtimes: Sequence[int | None],
        ftypes: list[int],
        attrs: Sequence[Attrs | None],
    ) -> None:
        self._names += names
        self._data += data
        self._mtimes += mtimes
        self._ftypes += ftypes
        self._attrs += attrs
        self._size += sum(map(len, data))
        if self._size >= self._most or len(self._names) >= ROWS:
            self.put()

    def put(self) -> None:
        """Put them. Raises what the container raises."""
        if not self._names:
            return
        columns = self._names, self._data, self._mtimes, self._ftypes, self._attrs
        self._clear()
        with self._container.lock:
            bulk = BulkPut(self._container.store, self._container.changes)
            self._container.change(bulk.put_columns, *columns)


def _contents(data: Sequence[Any]) -> Sequence[bytes]:
    if set(map(type, data)) == {bytes}:
        return data
    return list(map(as_content, data))
