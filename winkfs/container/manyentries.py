"""Entries of many plain files, encoded together as byte matrices, or of one by itself.

A plain file is a data entry and an inode of one extent, without attributes or with an entry of
them between the two; where it has no content the data entry is left out. Positions are a cumulative
sum, and one join makes a chunk of entries that a thread writes while the next is made.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats import native
from winkformats.arrays import Bools, Int64, UInt8, row_bytes
from winkformats.kv.entry import MASK64, Layout
from winkfs.container.draft import COMPRESSIBLE, Draft
from winkfs.container.frames import Compressor
from winkfs.container.ondisk.compressed import PIECE
from winkfs.container.ondisk.inode import CK_XXH3, FRAME, InodeForm
from winkfs.container.table import Placed

if TYPE_CHECKING:
    from winkfs.container.store import Store

BATCH: Final = 2 << 20  # bytes of content of drafts that become one chunk, about
SMALL: Final = 32 << 10  # bytes of content that are copied with their entries
HEADS: Final = 128  # bytes of three entries without inode key, values and inode, at most
FIELDS: Final = [struct.Struct(f">{6 + n}q") for n in range(7)]  # NEXTI .. DCOUNT, and so many
HEX: Final = [np.array([b"%0*x" % (k, i) for i in range(16**k)]) for k in range(1, 4)]
APART: Final = 4096  # bytes of a content, in the mean, from which on contents are not copied
JOINED: Final = 512  # bytes of a value, in the mean, up to which it is copied to be hashed
Data = bytes | bytearray | memoryview


class Columns(NamedTuple):
    """A batch: n files. `keys` are inode keys; `ns` are nanoseconds, None: now.

    key_lengths, lengths    int64[n], bytes of keys and data
    attrs                   `Attrs`, or the bytes of an attribute entry of mode 0644; None: none
    framed                  bool[n], which of `data` are frames of the content; None: none
    """

    keys: list[bytes]
    key_lengths: Int64
    data: Sequence[Data]
    lengths: Int64
    ns: Sequence[int | None] | Int64
    ftypes: Sequence[int]
    attrs: Sequence[Any]
    framed: Bools | None = None

    def part(self, a: int, b: int) -> Columns:
        """The files [a, b)."""
        if (a, b) == (0, len(self.keys)):
            return self
        return Columns(*(column if column is None else column[a:b] for column in self))  # type: ignore[arg-type]


def can_append(store: Store) -> bool:
    """Whether files of this container can be encoded so."""
    return store.kv.layout.standard and store.settings.ckalgo == CK_XXH3


class OneFile:
    """Encodes a file by itself, as `append_plain` does many: data entry, attributes, inode entry.

    beside  bytes that the entries take beside key, content and attributes, at most
    """

    def __init__(self, store: Store) -> None:
        self._contid, self._pairoff = store.kv.layout.contid & MASK64, store.settings.pairoff
        self._least = -(-store.settings.isz // 8) * 8
        self.beside = max(self._least, 56 + 2 * store.settings.form.pair) + HEADS

    def encode(
        self,
        pos: int,
        fileid: int,
        key: bytes,
        data: bytes,
        mtime: int,
        ftype: int,
        word: bytes = b"",
        frame: bytes | None = None,
    ) -> tuple[bytes, int, int]:
        """The bytes of all entries for position `pos`, the position of the inode, and the bytes of
        that.

        key, data  of the inode; the content, SMALL at most
        mtime      as stored
        word       the value of the attribute entry; empty: there is none
        frame      of the content, which is stored in its place
        """
        if native.code is not None:
            return native.code.entries(
                pos, self._least, self._pairoff, self._contid, fileid, mtime, ftype, key, data,
                word, frame,
            )  # fmt: skip
        at, entries, numbers = pos, b"", tuple[int, ...]()
        if data:
            entries = self._entry(b"%x/D0" % fileid, data if frame is None else frame, pos)
            skip = 0 if frame is None else FRAME
            numbers = (pos, skip, len(data)) if self._pairoff else (pos, len(data))
            at += len(entries)
        if word:
            entries += self._entry(b"%x/A0" % fileid, word, at)
            numbers = (at, 0, -len(word), *numbers) if self._pairoff else (at, -len(word), *numbers)
            at = pos + len(entries)
        n = len(numbers)
        count = n // 3 if self._pairoff else n // 2
        fields = FIELDS[n].pack(0, fileid, len(data), ftype, mtime, count, *numbers)
        inode = (xxhash.xxh3_64_digest(fields) + fields).ljust(self._least, b"\0")
        return entries + self._entry(key, inode, at), at, len(inode)

    def _entry(self, key: bytes, value: bytes, pos: int) -> bytes:
        body = b"".join((
            len(key).to_bytes(2, "big"), key, len(value).to_bytes(4, "big"), value,
        ))  # fmt: skip
        return b"\0%b%b" % (body, xxhash.xxh3_64_digest(body, (self._contid + pos) & MASK64)[4:])


def append_plain(
    store: Store,
    files: Columns,
    fileids: Int64,
    mtimes: Int64,
    attrs: Sequence[bytes] | None = None,
) -> tuple[Int64, Int64]:
    """Append the entries of files and count them -> positions of inodes and of the first entry of
    each, which is its data if it has any, int64[n].

    files            all with content, or all without
    fileids, mtimes  int64[n]; all fileids with as many hex digits
    attrs            the values of their attribute entries; None: none of them has one
    raises           OSError
    """
    kv, n = store.kv, len(files.keys)
    lengths = files.lengths
    if files.framed is not None:
        lengths = np.fromiter(map(len, files.data), np.int64, n)
    form, isz, bare = store.settings.form, store.inode_size, not lengths[0]
    head = len(f"{int(fileids[0]):x}") + 10  # delflag, key length, "<hex>/D0", value length
    each = 2 - bare + (attrs is not None)  # entries of a file
    sizes = np.empty((n, each), np.int64)
    sizes[:, 0] = head + lengths + 4
    if attrs is not None:
        sizes[:, -2] = head + np.fromiter(map(len, attrs), np.int64, n) + 4
        isz = max(isz, -(-(56 + (2 - bare) * form.pair) // 8) * 8)
    sizes[:, -1] = 3 + files.key_lengths + 4 + isz + 4
    ends = np.cumsum(sizes).reshape(n, each)
    keys = b"".join(files.keys)
    places = (ends - sizes + kv.end).T
    if native.code is not None and files.framed is None and not bare:
        types = np.full(n, files.ftypes[0], np.int64)
        if files.ftypes.count(files.ftypes[0]) < n:
            types[:] = files.ftypes
        # To copy contents of 16 KiB would take as long as to write them.
        apart = int(lengths.min()) > 240 and int(lengths.sum()) > APART * n
        parts = native.code.encode(
            kv.end, isz, form.pairoff, kv.layout.contid & MASK64, ends, fileids, mtimes, types,
            files.keys, files.data, attrs, apart,
        )  # fmt: skip
    else:
        chunk = _encoded(
            kv.layout, form, isz, files, lengths, keys, fileids, mtimes, places, ends - sizes, ends,
            attrs,
        )  # fmt: skip
        parts = [chunk]
    kv.append_encoded(parts, each * n)
    store.itotsz += n * isz
    store.dtotsz += int(files.lengths.sum())
    pointers = np.zeros(n, np.int64) if bare else places[0]
    if files.framed is not None:
        pointers = np.where(files.framed, -1, pointers)
    positions = places[-1].copy()  # it is kept, and would keep all of them
    store.catalog.put_many(Placed(files, keys, positions, pointers, fileids, mtimes), attrs)
    return positions, places[0]


def _encoded(
    layout: Layout,
    form: InodeForm,
    isz: int,
    files: Columns,
    lengths: Int64,
    keys: bytes,
    fileids: Int64,
    mtimes: Int64,
    places: Int64,
    at: Int64,
    ends: Int64,
    attrs: Sequence[bytes] | None,
) -> bytearray:
    """The entries of files, those of each one behind the other, as `_native.encode` makes them.

    lengths   of what is stored of each: a frame is shorter than its content
    keys      of the files, joined
    places    int64[m, n]: positions of the m entries of each file
    at, ends  int64[n, m]: where in the chunk each begins and ends
    """
    head, entries = len(f"{int(fileids[0]):x}") + 10, list[_Entries]()
    named = pointers = None
    if lengths[0]:
        pointers, headers = places[0], _headers(fileids, head, lengths, b"/D0")
        entries.append(_values(layout, pointers, headers, files.data, lengths))
    if attrs is not None:
        named = np.fromiter(map(len, attrs), np.int64, len(attrs))
        headers = _headers(fileids, head, named, b"/A0")
        entries.append(_values(layout, places[-2], headers, attrs, named))
    inodes = _inodes(
        form, isz, fileids, files.lengths, files.ftypes, mtimes, pointers,
        None if named is None else (places[-2], named), files.framed,
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


def _keyed(layout: Layout, places: Int64, files: Columns, keys: bytes, inodes: UInt8) -> _Entries:
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


def with_frames(
    compressor: Compressor, data: Sequence[Any], ftypes: Sequence[int], chosen: Bools
) -> tuple[list[Any], Bools]:
    """Contents with frames in the place of those of the chosen files, where that pays, and which
    these are, bool[n]."""
    kinds = np.fromiter((ftype in COMPRESSIBLE for ftype in ftypes), bool, len(chosen))
    which = np.flatnonzero(chosen & kinds).tolist()
    found, framed = list(data), np.zeros(len(chosen), bool)
    for i, frame in zip(which, compressor.many([found[i] for i in which]), strict=True):
        if frame is not None:
            found[i], framed[i] = frame, True
    return found, framed


def append_drafts(
    store: Store, drafts: Iterable[Draft], compressor: Compressor | None
) -> Iterator[list[bytes]]:
    """Append those drafts that are plain, with index and counters -> the keys of each batch.

    compressor  makes frames of their content, None: nobody does
    cost        a sixth of writing them one by one
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
            yield _append_batch(store, batches.pop(kind), compressor)
            del sizes[kind]
    for batch in batches.values():
        yield _append_batch(store, batch, compressor)


def _append_batch(store: Store, batch: list[Draft], compressor: Compressor | None) -> list[bytes]:
    keys, data = [draft.key for draft in batch], [draft.tail for draft in batch]
    ftypes, n, framed = [draft.ftype for draft in batch], len(batch), None
    lengths = np.fromiter(map(len, data), np.int64, n)
    if compressor is not None:
        data, framed = with_frames(compressor, data, ftypes, lengths <= PIECE)
    key_lengths = np.fromiter(map(len, keys), np.int64, n)
    files = Columns(keys, key_lengths, data, lengths, (), ftypes, (), framed)
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
    pointers: Int64 | None,
    attrs: tuple[Int64, Int64] | None,
    framed: Bools | None,
) -> UInt8:
    """Value length and inode of each inode entry: uint8[n, isz + 4].

    pointers  positions of their contents; None: none has any
    attrs     positions and bytes of their attributes; None: none has any
    """
    n, pairs = len(lengths), (pointers is not None) + (attrs is not None)
    words = np.zeros((n, 7 + pairs * form.pair // 8), ">i8")
    words[:, 2] = fileids
    words[:, 3] = lengths
    words[:, 4] = ftypes[0] if ftypes.count(ftypes[0]) == n else np.array(ftypes)
    words[:, 5] = mtimes
    words[:, 6] = pairs
    if attrs is not None:
        words[:, 7], words[:, 6 + form.pair // 8] = attrs[0], -attrs[1]
    if pointers is not None:
        words[:, -form.pair // 8], words[:, -1] = pointers, lengths
        if framed is not None:
            words[:, -2] = np.where(framed, FRAME, 0)
    body = np.ascontiguousarray(words[:, 1:]).view(np.uint8)
    words[:, 0] = np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, row_bytes(body))), ">i8")
    out = np.zeros((n, isz + 4), np.uint8)
    out[:, :4] = np.frombuffer(isz.to_bytes(4, "big"), np.uint8)
    out[:, 4 : 4 + words.itemsize * words.shape[1]] = words.view(np.uint8)
    return out


def _seal(chunk: bytearray, at: Int64, ends: Int64, places: Int64, layout: Layout) -> None:
    """Fill in the checksums of the entries at [at, ends) of a chunk, `places` in the file."""
    sums = layout.sums_at(places, memoryview(chunk), at + 1, ends - 4)
    raw = np.frombuffer(chunk, np.uint8)
    raw[(ends - 4)[:, None] + np.arange(4)] = sums.astype(">u4").view(np.uint8).reshape(-1, 4)
