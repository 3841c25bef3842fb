"""Bulk get: the contents of many files, looked up, gathered and checked as columns.

Per batch: one look-up for all names, inode entries gathered by length of their key as one matrix,
data entries as one matrix where their shapes agree and as slices where not. Whatever is not plain
(several extents, holes, attributes, another layout) goes the ordinary way, file by file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from winkformats.entry import MASK64
from winkformats.hashing import xxh3_many
from winkfs.content import Content
from winkfs.entry import to_bytes, to_str
from winkfs.store import Store

Int64 = npt.NDArray[np.int64]
ROWS: Final = 1024  # of a batch: what it touches stays in the L2 cache
GROUP: Final = 32  # files of one shape from which a matrix pays
WIDE: Final = 64 << 10  # bytes of an entry from which a matrix does not pay
SUFFIX: Final = "/I0"


class BulkGet:
    """Reads batches of files by name."""

    def __init__(self, store: Store, content: Content) -> None:
        self._store, self._content = store, content
        self._fast = store.kv.layout.standard

    @staticmethod
    def batches(names: Iterable[str | bytes]) -> Iterator[list[str | bytes]]:
        source = iter(names)
        while batch := list(islice(source, ROWS)):
            yield batch

    def get(self, names: list[Any]) -> tuple[list[bytes], str | None]:
        """-> contents in the order of the names up to the first missing one, and that name."""
        keys = _keys(names)
        store = self._store
        found: list[bytes | None] = [None] * len(keys)
        if self._fast:
            pos = store.index.candidates(keys)
            rows = np.flatnonzero(pos)
            if len(rows):
                store.kv.view(int(pos.max()))
                self._gather(keys, pos, rows, found)
        for i, value in enumerate(found):
            if value is None:
                value = found[i] = self._content.read_whole(keys[i])
            if value is None:
                return found[:i], to_str(names[i])  # type: ignore[return-value]
        return found, None  # type: ignore[return-value]

    def _gather(
        self, keys: list[bytes], pos: Int64, rows: Int64, found: list[bytes | None]
    ) -> None:
        """Read the inodes of `rows`, group by length of key, then the data of the plain ones."""
        lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        pointers, sizes = np.zeros(len(keys), np.int64), np.full(len(keys), -1, np.int64)
        for length in np.unique(lengths[rows]).tolist():
            group = rows[lengths[rows] == length]
            self._inodes(keys, pos[group], group, length, pointers, sizes)
        self._data(np.flatnonzero(sizes >= 0), pointers, sizes, found)

    def _inodes(
        self,
        keys: list[bytes],
        pos: Int64,
        group: Int64,
        length: int,
        pointers: Int64,
        sizes: Int64,
    ) -> None:
        """Note pointer and size of the files of `group` whose inodes are plain and good."""
        store = self._store
        view, isz = store.kv.view(0), store.inode_size
        width = 11 + length + isz
        inside = (pos >= store.kv.superblock["SBSIZE"]) & (pos + width <= store.kv.end)
        if not inside.all():
            group, pos = group[inside], pos[inside]
        if not len(group):
            return
        matrix = _rows_at(view, pos, width)
        body = np.ascontiguousarray(matrix[:, 1:-4])
        wanted = np.frombuffer(b"".join([keys[i] for i in group.tolist()]), np.uint8)
        good = (matrix[:, 0] == 0) & (body[:, 2 : 2 + length] == wanted.reshape(-1, length)).all(1)
        size_at = 2 + length
        good &= _number(body[:, :2], ">u2") == length
        good &= _number(body[:, size_at : size_at + 4], ">u4") == isz
        seeds = (pos.astype(np.uint64) + np.uint64(store.kv.layout.contid & MASK64)).tolist()
        texts = body.view(f"V{width - 5}").ravel().tolist()
        sums = xxh3_many(texts, seeds, len(texts)).astype(np.uint32)
        good &= sums == _number(matrix[:, -4:], ">u4")
        pair = store.settings.form.pair
        start = size_at + 4
        words = np.ascontiguousarray(body[:, start : start + 56 + pair]).view(">i8")
        lsize = words[:, 3].astype(np.int64)
        # One extent from the start of one entry, no attributes: what put and put_many write.
        good &= (words[:, 6] == 1) & (words[:, 7] > 0) & (words[:, -1] == lsize)
        if store.settings.pairoff:
            good &= words[:, 8] == 0
        chosen = group[good]
        pointers[chosen], sizes[chosen] = words[good, 7], lsize[good]

    def _data(self, rows: Int64, pointers: Int64, sizes: Int64, found: list[bytes | None]) -> None:
        """Read and check the data entries of `rows`."""
        store = self._store
        view = store.kv.view(0)
        pos = pointers[rows]
        inside = (pos >= store.kv.superblock["SBSIZE"]) & (pos + 11 <= store.kv.end)
        rows, pos = rows[inside], pos[inside]
        key_len = _number(_rows_at(view, pos + 1, 2), ">u2").astype(np.int64)
        inside = pos + 11 + key_len <= store.kv.end
        rows, pos, key_len = rows[inside], pos[inside], key_len[inside]
        value_len = _number(_rows_at(view, pos + 3 + key_len, 4), ">u4").astype(np.int64)
        good = (sizes[rows] <= value_len) & (pos + 11 + key_len + value_len <= store.kv.end)
        rows, pos, key_len, value_len = rows[good], pos[good], key_len[good], value_len[good]
        shape = key_len << 40 | value_len
        order = np.argsort(shape, kind="stable")
        edges = np.flatnonzero(np.diff(shape[order], prepend=-1, append=-1))
        rest = []
        for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            part = order[a:b]
            if b - a < GROUP or value_len[part[0]] > WIDE:
                rest.append(part)
                continue
            self._data_matrix(
                rows[part], pos[part], int(key_len[part[0]]), int(value_len[part[0]]), sizes, found
            )
        if rest:
            part = np.concatenate(rest)
            self._data_slices(rows[part], pos[part], key_len[part], value_len[part], sizes, found)

    def _data_matrix(
        self,
        rows: Int64,
        pos: Int64,
        key_len: int,
        value_len: int,
        sizes: Int64,
        found: list[bytes | None],
    ) -> None:
        """Entries of one shape: one gather, one column of checksums."""
        width = 11 + key_len + value_len
        matrix = _rows_at(self._store.kv.view(0), pos, width)
        flat = matrix.data.cast("B")
        starts = range(1, width * len(rows) + 1, width)
        bodies = [flat[a : a + width - 5] for a in starts]
        good = self._sums(bodies, pos) == _number(matrix[:, -4:], ">u4")
        start = 7 + key_len
        values = np.ascontiguousarray(matrix[:, start : start + value_len])
        texts = values.view(f"V{value_len}").ravel().tolist()
        want = sizes[rows].tolist()
        for i, row in enumerate(rows.tolist()):
            if good[i]:
                found[row] = texts[i] if want[i] == value_len else texts[i][: want[i]]

    def _data_slices(
        self,
        rows: Int64,
        pos: Int64,
        key_len: Int64,
        value_len: Int64,
        sizes: Int64,
        found: list[bytes | None],
    ) -> None:
        """Entries of many shapes: a slice of the view each."""
        view = self._store.kv.view(0)
        ends = pos + 7 + key_len + value_len
        bodies = [view[a:b] for a, b in zip((pos + 1).tolist(), ends.tolist(), strict=True)]
        stored = _number(_rows_at(view, ends, 4), ">u4")
        good = (self._sums(bodies, pos) == stored).tolist()
        starts = key_len + 6
        stops = (starts + sizes[rows]).tolist()
        for ok, row, body, a, b in zip(
            good, rows.tolist(), bodies, starts.tolist(), stops, strict=True
        ):
            if ok:
                found[row] = bytes(body[a:b])

    def _sums(self, bodies: list[Any], pos: Int64) -> npt.NDArray[np.uint32]:
        seeds = (pos.astype(np.uint64) + np.uint64(self._store.kv.layout.contid & MASK64)).tolist()
        return xxh3_many(bodies, seeds, len(bodies)).astype(np.uint32)


def _rows_at(view: Any, pos: Int64, width: int) -> npt.NDArray[np.uint8]:
    """Gather `width` bytes from each position -> uint8[n, width]: one memcpy a row."""
    rows = np.ndarray((len(view) - width + 1,), f"V{width}", view, 0, (1,))[pos]
    return rows.view(np.uint8).reshape(len(pos), width)


def _number(columns: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(columns).view(dtype)[:, 0]


def _keys(names: list[Any]) -> list[bytes]:
    try:
        text = (SUFFIX + "\0").join(names) + SUFFIX
        keys = text.encode("utf-8", "surrogateescape").split(b"\0")
        if len(keys) == len(names):
            return keys
    except TypeError:
        pass
    return [to_bytes(name) + b"/I0" for name in names]
