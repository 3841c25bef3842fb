"""Writing many plain files: their entries encoded together, as byte matrices, or one by one.

A plain file is a data entry and an inode of one extent, without attributes or with an entry of
them between the two. Positions are a cumulative sum, and one join makes a chunk of entries that a
thread writes while the next is made.
`BulkPut` is one call of put_many or put_rows, `OneFile` encodes the file of a put.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats import native
from winkformats.arrays import Int64, UInt8, keep_heap, row_bytes
from winkformats.kv.entry import MASK64, Layout
from winkfs.container.draft import CHUNK, Draft
from winkfs.container.ondisk.inode import (
    CK_XXH3,
    Attrs,
    FileType,
    InodeForm,
    check_directory,
    check_ftype,
    default_mode,
)
from winkfs.container.rows import Placed
from winkfs.errors import NameTooLong, NotAllowed, Refusal
from winkfs.names import INODE, INODE_TEXT, Name, to_bytes
from winkfs.units import checked_ns, to_ns

if TYPE_CHECKING:
    from winkfs.container.store import Store

BATCH: Final = 2 << 20  # bytes of content of drafts that become one chunk, about
SMALL: Final = 32 << 10  # bytes of content that are copied with their entries
HEADS: Final = 64  # bytes of two entries without inode key, content and inode, at most
PLACED: Final = struct.Struct(">9q")  # NEXTI .. DCOUNT and a triple
PAIRED: Final = struct.Struct(">8q")  # the same with a pair
HEX: Final = [np.array([b"%0*x" % (k, i) for i in range(16**k)]) for k in range(1, 4)]
ROWS: Final = 2048  # of a batch; 512 are 15 % slower, 1024 5 %
STEP: Final = 256  # rows taken before their size is looked at
FIRST: Final = 64  # rows of the first batch, for their size is not known
BYTES: Final = 2 << 20  # content of a batch, about
LARGE: Final = 16 << 20  # where files suddenly become larger, a batch ends here
CONTENT: Final = itemgetter(1)  # of a row
JOINED: Final = 512  # bytes of a value, in the mean, up to which it is copied to be hashed
NAME_LIMIT: Final = 65_000
LONG: Final = 1 << 20  # bytes of attributes that are written by themselves
ODD: Final = object()
Data = bytes | memoryview


class Plain(Protocol):
    """n files of one extent each, without attributes.

    keys                    of their inodes
    key_lengths, lengths    int64[n], bytes of keys and data
    data                    bytes-like, not empty, 1 MiB at most
    """

    @property
    def keys(self) -> list[bytes]: ...
    @property
    def key_lengths(self) -> Int64: ...
    @property
    def data(self) -> Sequence[Any]: ...
    @property
    def lengths(self) -> Int64: ...
    @property
    def ftypes(self) -> Sequence[int]: ...


def can_append(store: Store) -> bool:
    """Whether files of this container can be encoded so."""
    return store.kv.layout.standard and store.settings.ckalgo == CK_XXH3


class OneFile:
    """Encodes a plain file by itself, as `append_plain` does many: data entry and inode entry.

    inode_size  bytes of the inode
    beside      bytes that the two entries take beside key and content, at most
    """

    def __init__(self, store: Store) -> None:
        self._contid, self._pairoff = store.kv.layout.contid, store.settings.form.pairoff
        self._pad = bytes(store.inode_size - 56 - store.settings.form.pair)
        self.inode_size, self.beside = store.inode_size, store.inode_size + HEADS

    def encode(
        self, pos: int, fileid: int, key: bytes, data: bytes, mtime: int, ftype: int
    ) -> tuple[bytes, int]:
        """The bytes of both entries for position `pos`, and the position of the inode.

        key, data  of the inode; the content: 1 byte to SMALL
        mtime      as stored
        """
        own = b"%x/D0" % fileid
        first = b"".join((
            len(own).to_bytes(2, "big"), own, len(data).to_bytes(4, "big"), data,
        ))  # fmt: skip
        at = pos + len(first) + 5
        place = (pos, 0, len(data)) if self._pairoff else (pos, len(data))
        form = PLACED if self._pairoff else PAIRED
        fields = form.pack(0, fileid, len(data), ftype, mtime, 1, *place)
        last = b"".join((
            len(key).to_bytes(2, "big"), key, self.inode_size.to_bytes(4, "big"),
            xxhash.xxh3_64_digest(fields), fields, self._pad,
        ))  # fmt: skip
        sums = self._sum(first, pos), self._sum(last, at)
        return b"\0%b%b\0%b%b" % (first, sums[0], last, sums[1]), at

    def _sum(self, body: bytes, pos: int) -> bytes:
        return xxhash.xxh3_64_digest(body, (self._contid + pos) & MASK64)[4:]


def append_plain(
    store: Store,
    files: Plain,
    fileids: Int64,
    mtimes: Int64,
    attrs: Sequence[bytes] | None = None,
) -> tuple[Int64, Int64]:
    """Append the entries of files and count them -> positions of inodes and of data, int64[n].

    fileids, mtimes  int64[n]; all fileids with as many hex digits
    attrs            the values of their attribute entries; None: none of them has one
    raises           OSError
    """
    kv, n = store.kv, len(files.keys)
    form, isz = store.settings.form, store.inode_size
    head = len(f"{int(fileids[0]):x}") + 10  # delflag, key length, "<hex>/D0", value length
    each = 2 if attrs is None else 3  # entries of a file
    sizes = np.empty((n, each), np.int64)
    sizes[:, 0] = head + files.lengths + 4
    if attrs is not None:
        sizes[:, 1] = head + np.fromiter(map(len, attrs), np.int64, n) + 4
        isz = max(isz, -(-(56 + 2 * form.pair) // 8) * 8)
    sizes[:, -1] = 3 + files.key_lengths + 4 + isz + 4
    ends = np.cumsum(sizes).reshape(n, each)
    keys = b"".join(files.keys)
    places = (ends - sizes + kv.end).T
    if native.code is not None:
        types = np.full(n, files.ftypes[0], np.int64)
        if files.ftypes.count(files.ftypes[0]) < n:
            types[:] = files.ftypes
        chunk = native.code.encode(
            kv.end, isz, form.pairoff, kv.layout.contid & MASK64, ends, fileids, mtimes, types,
            files.keys, files.data, attrs,
        )  # fmt: skip
    else:
        chunk = _encoded(
            kv.layout, form, isz, files, keys, fileids, mtimes, places, ends - sizes, ends, attrs
        )
    kv.append_encoded(chunk, each * n)
    store.itotsz += n * isz
    store.dtotsz += int(files.lengths.sum())
    put = Placed(files, keys, places[-1], places[0], fileids, mtimes)
    store.catalog.put_many(put, attrs)
    return places[-1], places[0]


def _encoded(
    layout: Layout,
    form: InodeForm,
    isz: int,
    files: Plain,
    keys: bytes,
    fileids: Int64,
    mtimes: Int64,
    places: Int64,
    at: Int64,
    ends: Int64,
    attrs: Sequence[bytes] | None,
) -> bytearray:
    """The entries of files, those of each one behind the other, as `_native.encode` makes them.

    keys      of the files, joined
    places    int64[2, n] or [3, n]: positions of the entries
    at, ends  int64[n, 2] or [n, 3]: where in the chunk each begins and ends
    """
    lengths, named = files.lengths, None
    head = len(f"{int(fileids[0]):x}") + 10
    headers = _headers(fileids, head, lengths, b"/D0")
    entries = [_values(layout, places[0], headers, files.data, lengths)]
    if attrs is not None:
        named = np.fromiter(map(len, attrs), np.int64, len(attrs))
        headers = _headers(fileids, head, named, b"/A0")
        entries.append(_values(layout, places[1], headers, attrs, named))
    inodes = _inodes(
        form, isz, fileids, lengths, files.ftypes, mtimes, places[0],
        None if named is None else (places[1], named),
    )  # fmt: skip
    entries.append(_keyed(layout, places[-1], files, keys, inodes))
    chunk = _joined(entries)
    for i, entry in enumerate(entries):
        if not entry.sealed:
            _seal(chunk, at[:, i], ends[:, i], places[i], layout)
    return chunk


class _Entries(NamedTuple):
    """An entry of each of n files, in parts.

    head    uint8[n, h], the delflag and what else is no part of `body`
    body    uint8[n, w], where all are equally long, or n bytes-like
    sums    uint8[n, 4]
    sealed  whether these are right: else they are to be filled in
    """

    head: UInt8
    body: UInt8 | Sequence[Any]
    sums: UInt8
    sealed: bool


def _values(
    layout: Layout, places: Int64, heads: UInt8, values: Sequence[Any], lengths: Int64
) -> _Entries:
    """Entries at these places, of heads up to the length of the value, and values."""
    if int(lengths.sum()) > JOINED * len(values):
        return _Entries(heads, values, np.zeros((len(heads), 4), np.uint8), sealed=False)
    bodies = list(
        map(add, row_bytes(heads[:, 1:].copy()), values)
    )  # cheaper than slices of a chunk
    return _Entries(heads[:, :1], bodies, _sums(layout, places, bodies), sealed=True)


def _keyed(layout: Layout, places: Int64, files: Plain, keys: bytes, inodes: UInt8) -> _Entries:
    """Inode entries at these places. `keys`: of the files, joined; `inodes`: see `_inodes`."""
    n, lengths = len(places), files.key_lengths
    sizes = lengths.astype(">u2").view(np.uint8).reshape(n, 2)
    body: UInt8 | Sequence[bytes]
    if int(lengths.min()) == int(lengths.max()):
        body = np.concatenate([sizes, np.frombuffer(keys, np.uint8).reshape(n, -1), inodes], 1)
        bodies = row_bytes(body)
    else:
        three = zip(row_bytes(sizes), files.keys, row_bytes(inodes), strict=True)
        body = bodies = list(map(b"".join, three))
    return _Entries(np.zeros((n, 1), np.uint8), body, _sums(layout, places, bodies), sealed=True)


def _sums(layout: Layout, places: Int64, bodies: Iterable[Any]) -> UInt8:
    return layout.sums(places, bodies).astype(">u4").view(np.uint8).reshape(-1, 4)


def _joined(entries: list[_Entries]) -> bytearray:
    """The bytes of all entries, file by file."""
    n, first = len(entries[0].head), entries[0].head
    columns: list[UInt8 | Sequence[Any]] = []
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        columns += [entry.body, entry.sums]
        columns.append(following.head if following else np.concatenate([first[1:], first[:1]]))
    # What stands in rows side by side is one part: fewer to join.
    grouped: list[Sequence[Any]] = []
    rows: list[UInt8] = []
    for column in [*columns, []]:
        if isinstance(column, np.ndarray):
            rows.append(column)
            continue
        grouped += [row_bytes(np.concatenate(rows, 1)), column] if rows else [column]
        rows = []
    grouped.pop()
    parts: list[Any] = [None] * (len(grouped) * n + 1)
    parts[0] = first[0].tobytes()
    for i, column in enumerate(grouped, 1):
        parts[i :: len(grouped)] = column
    parts[-1] = parts[-1][: -first.shape[1]]
    return bytearray().join(parts)


class _Tails(NamedTuple):
    """Drafts as `append_plain` wants them."""

    keys: list[bytes]
    key_lengths: Int64
    data: list[bytearray]
    lengths: Int64
    ftypes: list[int]

    @classmethod
    def of(cls, batch: list[Draft]) -> Self:
        keys, data = [draft.key for draft in batch], [draft.tail for draft in batch]
        n = len(batch)
        return cls(
            keys, np.fromiter(map(len, keys), np.int64, n),
            data, np.fromiter(map(len, data), np.int64, n), [draft.ftype for draft in batch],
        )  # fmt: skip


def append_drafts(store: Store, drafts: Iterable[Draft]) -> Iterator[list[bytes]]:
    """Append those drafts that are plain, with index and counters -> the keys of each batch.

    cost    a sixth of writing them one by one
    """
    batches: dict[tuple[int, bool], list[Draft]] = {}  # by digits of the FILEIDs, attributes
    sizes: dict[tuple[int, bool], int] = {}
    for draft in list(drafts):
        if not draft.plain:
            continue
        kind = len(f"{draft.fileid:x}"), draft.attrs is not None
        batch = batches.setdefault(kind, [])
        batch.append(draft)
        sizes[kind] = sizes.get(kind, 0) + len(draft.tail)
        if sizes[kind] > BATCH:
            yield _append_batch(store, batches.pop(kind))
            del sizes[kind]
    for batch in batches.values():
        yield _append_batch(store, batch)


def _append_batch(store: Store, batch: list[Draft]) -> list[bytes]:
    files = _Tails.of(batch)
    fileids = np.array([draft.fileid for draft in batch], np.int64)
    mtimes = np.array([draft.mtime for draft in batch], np.int64)
    attrs = [draft.attrs.encode() for draft in batch if draft.attrs]
    positions, _ = append_plain(store, files, fileids, mtimes, attrs or None)
    store.index.assign_new(files.keys, positions)
    return files.keys


def _headers(fileids: Int64, head: int, lengths: Int64, kind: bytes) -> UInt8:
    """delflag, key length, "<hex>" and `kind`, value length of each entry: uint8[n, head]."""
    width = head - 10
    starts = range(width % 3 - 3 if width % 3 else 0, width, 3)  # three digits at a time
    digits = [(max(at, 0), at + 3) for at in starts]
    fields = {f"{a}": (f"S{b - a}", 3 + a) for a, b in digits}
    fields |= {"key": (">u2", 1), "kind": ("S3", 3 + width), "value": (">u4", 6 + width)}
    names, (formats, offsets) = list(fields), zip(*fields.values(), strict=True)
    form = {"names": names, "formats": formats, "offsets": offsets, "itemsize": head}
    out: npt.NDArray[Any] = np.zeros(len(fileids), np.dtype(form))  # type: ignore[call-overload]
    for a, b in digits:
        out[f"{a}"] = HEX[b - a - 1][(fileids >> (4 * (width - b))) & (16 ** (b - a) - 1)]
    out["key"], out["kind"], out["value"] = width + 3, kind, lengths
    return out.view(np.uint8).reshape(len(fileids), head)


def _inodes(
    form: InodeForm,
    isz: int,
    fileids: Int64,
    lengths: Int64,
    ftypes: Sequence[int],
    mtimes: Int64,
    pointers: Int64,
    attrs: tuple[Int64, Int64] | None,
) -> UInt8:
    """Value length and inode of each inode entry: uint8[n, isz + 4].

    attrs  positions and bytes of their attributes; None: none has any
    """
    n, pair = len(lengths), form.pair if attrs is None else 2 * form.pair
    words = np.zeros((n, (56 + pair) // 8), ">i8")
    words[:, 2] = fileids
    words[:, 3] = lengths
    words[:, 4] = ftypes[0] if ftypes.count(ftypes[0]) == n else np.array(ftypes)
    words[:, 5] = mtimes
    words[:, 6] = pair // form.pair
    if attrs is not None:
        words[:, 7], words[:, 6 + form.pair // 8] = attrs[0], -attrs[1]
    words[:, 7 + (pair - form.pair) // 8] = pointers
    words[:, -1] = lengths
    body = np.ascontiguousarray(words[:, 1:]).view(np.uint8)
    words[:, 0] = np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, row_bytes(body))), ">i8")
    out = np.zeros((n, isz + 4), np.uint8)
    out[:, :4] = np.frombuffer(isz.to_bytes(4, "big"), np.uint8)
    out[:, 4 : 60 + pair] = words.view(np.uint8)
    return out


def _seal(chunk: bytearray, at: Int64, ends: Int64, places: Int64, layout: Layout) -> None:
    """Fill in the checksums of the entries at [at, ends) of a chunk, `places` in the file."""
    sums = layout.sums_at(places, memoryview(chunk), at + 1, ends - 4)
    raw = np.frombuffer(chunk, np.uint8)
    raw[(ends - 4)[:, None] + np.arange(4)] = sums.astype(">u4").view(np.uint8).reshape(-1, 4)


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


class Columns(NamedTuple):
    """A batch: n files. `keys` are inode keys; `ns` are nanoseconds, None: now.

    key_lengths, lengths    int64[n], bytes of keys and data
    attrs                   `Attrs`, or the bytes of an attribute entry of mode 0644; None: none
    """

    keys: list[bytes]
    key_lengths: Int64
    data: Sequence[Data]
    lengths: Int64
    ns: Sequence[int | None] | Int64
    ftypes: Sequence[int]
    attrs: Sequence[Any]

    def part(self, a: int, b: int) -> Columns:
        """The files [a, b)."""
        if (a, b) == (0, len(self.keys)):
            return self
        return Columns(*(column[a:b] for column in self))  # type: ignore[arg-type]


class Writer(Protocol):
    """What a call of put_many asks of `write.Changes`, which has all of it."""

    last: int

    def settle_drafts(self) -> None: ...

    def put(
        self, key: bytes, data: bytes, ns: int | None, ftype: int, attrs: Attrs | None
    ) -> None: ...

    def put_bulk(
        self, key: bytes, data: bytes, ns: int | None, ftype: int, attrs: Attrs | None
    ) -> None: ...

    def column_attributes(self, values: Mapping[str, Any]) -> bytes: ...

    def attrs_for(
        self,
        ftype: int,
        mode: int | None,
        uid: int | None,
        gid: int | None,
        xattrs: Mapping[bytes, bytes] | None,
    ) -> Attrs | None: ...

    def is_default(self, ftype: int, attrs: Attrs) -> bool: ...

    def new_mtime(self, ns: int | None) -> int: ...

    def disorder(self, mtime: int) -> NotAllowed: ...


class BulkPut:
    """One call of put_many or put_rows."""

    def __init__(self, store: Store, changes: Writer) -> None:
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
        if native.code is not None and (pairs := self._pairs(batch)) is not None:
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
            ns = [checked_ns(to_ns(item[2])) if len(item) > 2 else None for item in batch]
            if 4 in lengths:
                made = self._changes.column_attributes
                attrs = [made(item[3]) if len(item) == 4 and item[3] else None for item in batch]
        else:
            raise ValueError(
                "put_many takes (name, data), (name, data, mtime) or (name, data, mtime, columns)"
            )
        plain = (FileType.FILE,) * len(batch)
        return self._columns(names, _contents(data), ns, plain, attrs)

    def _pairs(self, batch: list[tuple[Any, ...]]) -> Columns | None:
        """Of pairs of name and bytes, compiled; None: what is not so plain, or is to be refused."""
        n = len(batch)
        sizes = np.empty((2, n), np.int64)
        found = native.code.pairs(batch, sizes[0], sizes[1])
        least, most = int(sizes[0].min()), int(sizes[0].max())
        if found is None or least < 4 or most > self._longest + 3:
            return None
        none, plain = (None,) * n, (FileType.FILE,) * n
        return Columns(found[0], sizes[0], found[1], sizes[1], none, plain, none)

    def _columns_of_rows(self, batch: list[Row]) -> Columns:
        names, data, ns, ftypes, *owners = zip(*batch, strict=True)
        attrs: Sequence[Any] = (None,) * len(batch)
        for ftype in set(ftypes):
            check_ftype(ftype)
        list(map(checked_ns, ns))
        if FileType.DIR in ftypes:
            for row in batch:
                check_directory(row.ftype, row.name, len(row.data))
        if any(column.count(None) != len(batch) for column in owners):
            attrs = list(map(self._attributes, batch))
        return self._columns(names, _contents(data), ns, ftypes, attrs)

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
        ordinary = (columns.lengths > 0) & (columns.lengths <= CHUNK) & self._fast
        kinds = np.zeros(len(ordinary), bool)
        if any(columns.attrs):
            words = list(map(self._word, columns.ftypes, columns.attrs))
            ordinary &= np.fromiter((word is not ODD for word in words), bool, len(words))
            kinds = np.fromiter((type(word) is bytes for word in words), bool, len(words))
            columns = columns._replace(attrs=words)
        start = 0
        # runs of files that are written together end where one is not, or has attributes or none
        ends = np.flatnonzero(~ordinary | (np.diff(kinds, prepend=kinds[:1]) != 0)).tolist()
        for i in [*ends, len(ordinary)]:
            if start < i:
                self._write_run(columns, start, i)
                start = i
            if i < len(ordinary) and not ordinary[i]:
                self._write_one(given, i)
                self._done = start = i + 1

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
        positions, pointers = append_plain(store, columns, fileids, mtimes, attrs)
        self._changes.last = int(positions[-1])
        store.nextfid = fileid + len(fileids)
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


def _contents(data: Sequence[Any]) -> Sequence[bytes]:
    if set(map(type, data)) == {bytes}:
        return data
    return list(map(as_content, data))


def as_content(data: Any) -> bytes:
    """Bytes-like -> bytes; anything else is a TypeError, for bytes(5) is five NULs."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"content is bytes, not {type(data).__name__}")
    return bytes(data)
