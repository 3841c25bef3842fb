"""Encoding of many plain files at once: a data entry and an inode each.

Headers and inodes are byte matrices, positions a cumulative sum, and one join makes the chunk that
a thread writes while the next is made. Per 1 KiB file: 1.6 us; a loop with struct: 3 us.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats.arrays import Int64, UInt8, row_bytes
from winkformats.kv.entry import Layout
from winkfs.container.draft import Draft
from winkfs.container.ondisk.inode import CK_XXH3, InodeForm
from winkfs.container.store import Store

BATCH: Final = 2 << 20  # bytes of content of drafts that become one chunk, about
HEX: Final = [np.array([b"%0*x" % (k, i) for i in range(16**k)]) for k in range(1, 4)]


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


def append_plain(store: Store, files: Plain, fileids: Int64, mtimes: Int64) -> tuple[Int64, Int64]:
    """Append the entries of files and count them -> positions of inodes and of data, int64[n].

    fileids, mtimes  int64[n]; all fileids with as many hex digits
    raises           OSError
    """
    kv = store.kv
    n, base = len(files.keys), kv.end
    lengths, key_lengths = files.lengths, files.key_lengths
    form, isz = store.settings.form, store.inode_size
    head = len(f"{int(fileids[0]):x}") + 10  # delflag, key length, "<hex>/D0", value length
    sizes = np.empty(2 * n, np.int64)
    sizes[0::2], sizes[1::2] = head + lengths + 4, 3 + key_lengths + 4 + isz + 4
    ends = np.cumsum(sizes)
    at = ends - sizes
    headers = _data_headers(fileids, head, lengths)
    pointers = at[0::2] + base
    tails = _inodes(form, isz, fileids, lengths, files.ftypes, mtimes, pointers)
    middles = np.zeros((n, 7), np.uint8)  # checksum of the data, delflag, length of the key
    middles[:, 5:7] = key_lengths.astype(">u2").view(np.uint8).reshape(n, 2)
    # The end of an inode entry and the head of the next data entry are one part: -40 ns a file.
    between = np.zeros((n, isz + 8 + head), np.uint8)
    between[:, : isz + 8] = tails
    between[:-1, isz + 8 :] = headers[1:]
    parts: list[Any] = [None] * (4 * n + 1)
    parts[0], parts[1::4], parts[2::4] = headers[0].tobytes(), files.data, row_bytes(middles)
    parts[3::4], parts[4::4] = files.keys, row_bytes(between)
    parts[-1] = parts[-1][:-head]
    chunk = bytearray().join(parts)
    _seal(chunk, at, ends, base, kv.layout)
    kv.append_encoded(chunk, 2 * n)
    store.itotsz += n * isz
    store.dtotsz += int(lengths.sum())
    positions = at[1::2] + base
    if store.columns is not None:
        store.columns.add(files, positions, pointers, mtimes)
    return positions, pointers


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

    cost    4 us each; one by one it takes 25
    """
    batch: list[Draft] = []
    digits = size = 0
    for draft in list(drafts):
        if not draft.plain:
            continue
        wide = len(f"{draft.fileid:x}")
        if batch and (wide != digits or size > BATCH):
            yield _append_batch(store, batch)
            batch, size = [], 0
        batch.append(draft)
        digits, size = wide, size + len(draft.tail)
    if batch:
        yield _append_batch(store, batch)


def _append_batch(store: Store, batch: list[Draft]) -> list[bytes]:
    files = _Tails.of(batch)
    fileids = np.array([draft.fileid for draft in batch], np.int64)
    mtimes = np.array([draft.mtime for draft in batch], np.int64)
    positions, _ = append_plain(store, files, fileids, mtimes)
    store.index.assign_new(files.keys, positions)
    return files.keys


def _data_headers(fileids: Int64, head: int, lengths: Int64) -> UInt8:
    """delflag, key length, "<hex>/D0", value length of each data entry: uint8[n, head]."""
    width = head - 10
    starts = range(width % 3 - 3 if width % 3 else 0, width, 3)  # three digits at a time
    digits = [(max(at, 0), at + 3) for at in starts]
    fields = {f"{a}": (f"S{b - a}", 3 + a) for a, b in digits}
    fields |= {"key": (">u2", 1), "D0": ("S3", 3 + width), "value": (">u4", 6 + width)}
    names, (formats, offsets) = list(fields), zip(*fields.values(), strict=True)
    form = {"names": names, "formats": formats, "offsets": offsets, "itemsize": head}
    out: npt.NDArray[Any] = np.zeros(len(fileids), np.dtype(form))  # type: ignore[call-overload]
    for a, b in digits:
        out[f"{a}"] = HEX[b - a - 1][(fileids >> (4 * (width - b))) & (16 ** (b - a) - 1)]
    out["key"], out["D0"], out["value"] = width + 3, b"/D0", lengths
    return out.view(np.uint8).reshape(len(fileids), head)


def _inodes(
    form: InodeForm,
    isz: int,
    fileids: Int64,
    lengths: Int64,
    ftypes: Sequence[int],
    mtimes: Int64,
    pointers: Int64,
) -> UInt8:
    """Value length, inode, room for the checksum of each inode entry: uint8[n, isz + 8]."""
    n, pair = len(lengths), form.pair
    words = np.zeros((n, (56 + pair) // 8), ">i8")
    words[:, 2] = fileids
    words[:, 3] = lengths
    words[:, 4] = ftypes[0] if ftypes.count(ftypes[0]) == n else np.array(ftypes)
    words[:, 5] = mtimes
    words[:, 6] = 1
    words[:, 7] = pointers
    words[:, -1] = lengths
    body = np.ascontiguousarray(words[:, 1:]).view(np.uint8)
    sums = np.fromiter(map(xxhash.xxh3_64_intdigest, row_bytes(body)), np.uint64, n)
    words[:, 0] = sums.view(np.int64)
    out = np.zeros((n, isz + 8), np.uint8)
    out[:, :4] = np.frombuffer(isz.to_bytes(4, "big"), np.uint8)
    out[:, 4 : 60 + pair] = words.view(np.uint8)
    return out


def _seal(chunk: bytearray, at: Int64, ends: Int64, base: int, layout: Layout) -> None:
    """Fill in the checksums of the entries at [at, ends) of a chunk for position `base`."""
    view = memoryview(chunk)
    pairs = zip((at + 1).tolist(), (ends - 4).tolist(), strict=True)
    bodies = (view[a:b] for a, b in pairs)
    sums = layout.sums(at + base, bodies).astype(">u4")
    raw = np.frombuffer(chunk, np.uint8)
    raw[(ends - 4)[:, None] + np.arange(4)] = sums.view(np.uint8).reshape(-1, 4)
