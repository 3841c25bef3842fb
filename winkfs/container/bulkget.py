"""Bulk get: the contents of many files, looked up, gathered and checked as columns.

Per batch: one look-up for all names, the inodes gathered as columns, the data entries as a slice
each. (A matrix for data of one size was no faster: it copies once more.) Whatever is not plain,
with several extents, holes, attributes or another layout, goes the ordinary way, file by file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import getitem
from typing import Any, Final

import numpy as np

from winkformats.arrays import Int64, column, rows_at
from winkfs.container.content import Content
from winkfs.container.entry import to_bytes, to_str
from winkfs.container.store import Store

ROWS: Final = 1024  # of a batch: what it touches stays in the L2 cache
LONG: Final = 255  # bytes of the longest key in a batch that is read as columns
SUFFIX: Final = "/I0"
VALUES: Final = [slice(start, None) for start in range(32)]  # each a slice made once
POWERS: Final = np.array([16**i for i in range(1, 15)], np.int64)


class BulkGet:
    """Reads batches of files by name."""

    def __init__(self, store: Store, content: Content) -> None:
        self._store, self._content = store, content
        self._fast = store.kv.layout.standard and store.mapped

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
            pos = store.index.candidates(keys, compared=True)
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
        """Read the files of `rows` whose inodes are plain and good."""
        kv, pos = self._store.kv, pos[rows]
        view, isz = kv.view(0), self._store.inode_size
        end = min(kv.end, len(view))  # a reader's view may be older: it holds just what was asked
        lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        lengths = lengths if len(rows) == len(keys) else lengths[rows]
        longest = int(lengths.max())
        inside = (pos >= kv.superblock["SBSIZE"]) & (pos + 11 + longest + isz <= end)
        if longest > LONG or not inside.any():
            return
        if not inside.all():
            rows, pos, lengths = rows[inside], pos[inside], lengths[inside]
        # A copy of each whole entry overlaps their cache misses: then slices cost half (-200 ns).
        head = rows_at(view, pos, 11 + longest + isz)
        ends = pos + 7 + lengths + isz
        bodies = [view[a:b] for a, b in zip((pos + 1).tolist(), ends.tolist(), strict=True)]
        if len(rows) < len(keys):
            keys = [keys[i] for i in rows.tolist()]
        pairs = zip(bodies, keys, strict=True)
        same = np.array([body.startswith(key, 2) for body, key in pairs])  # type: ignore[union-attr]
        good = same & (head[:, 0] == 0) & (column(head, ">u2", 1) == lengths)
        tail = rows_at(view, ends - isz - 4, isz + 8)
        good &= kv.layout.sums(pos, bodies) == column(tail, ">u4", isz + 4)
        good &= column(tail, ">u4", 0) == isz
        pair = self._store.settings.form.pair
        shape, strides = (len(rows), (56 + pair) // 8), (isz + 8, 8)
        words = np.ndarray(shape, ">i8", tail, 4, strides).astype(np.int64)
        # One extent from the start of one entry, no attributes: what put and put_many write.
        good &= (words[:, 6] == 1) & (words[:, 7] > 0) & (words[:, -1] == words[:, 3])
        if self._store.settings.pairoff:
            good &= words[:, 8] == 0
        starts = 10 + np.searchsorted(POWERS, words[:, 2], "right")  # "<hex>/D0" and two lengths
        # The entry of `put` with key "<hex>/D0" and all of its value; else its checksum is wrong.
        size, room = words[:, 3], end - 5 - starts - words[:, 7]
        good &= (words[:, 7] <= end) & (size >= 0) & (size <= room)
        if good.all():
            self._data(rows, words[:, 7], starts, words[:, 3], found)
        else:
            self._data(rows[good], words[good, 7], starts[good], words[good, 3], found)

    def _data(
        self, rows: Int64, pos: Int64, starts: Int64, sizes: Int64, found: list[bytes | None]
    ) -> None:
        """Read and check the data entries of `rows`: `starts`: of the value, from pos + 1."""
        if not len(rows):
            return
        kv = self._store.kv
        view = kv.view(0)
        ends = pos + 1 + starts + sizes
        bodies = [view[a:b] for a, b in zip((pos + 1).tolist(), ends.tolist(), strict=True)]
        good = kv.layout.sums(pos, bodies) == column(rows_at(view, ends, 4), ">u4", 0)
        values: Iterable[Any] = map(getitem, bodies, map(VALUES.__getitem__, starts.tolist()))
        if len(rows) == len(found) and good.all():
            found[:] = values
            return
        for ok, row, value in zip(good.tolist(), rows.tolist(), values, strict=True):
            if ok:
                found[row] = value


def _keys(names: list[Any]) -> list[bytes]:
    try:
        text = (SUFFIX + "\0").join(names) + SUFFIX
        keys = text.encode("utf-8", "surrogateescape").split(b"\0")
        if len(keys) == len(names):
            return keys
    except TypeError:
        pass
    return [to_bytes(name) + b"/I0" for name in names]
