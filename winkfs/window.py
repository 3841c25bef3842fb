"""Window: the part of the data file that a scan is passing over, read in large pieces, uncached."""

from __future__ import annotations

import weakref
from typing import Final

import numpy as np
import numpy.typing as npt

from winkformats.entry import KVEntry
from winkformats.errors import CorruptError
from winkfs.content import attributes
from winkfs.draft import cut
from winkfs.inode import Attrs, Inode
from winkfs.store import Store

Int64 = npt.NDArray[np.int64]
SPAN: Final = 8 << 20  # bytes read at once
FILES: Final = 1024  # files of a batch, at most
DENSE: Final = 16 << 10  # bytes a file below which reading all beats reading inodes one by one
HEAD: Final = 512  # bytes read for an inode alone


class Window:
    """Reads inodes and contents in disk order; it keeps the files it began with open.

    Listing reads only the inodes where files are large; from the first `read` on, the contents of
    the files to come are read along with them.
    """

    def __init__(self, store: Store) -> None:
        kv = store.kv
        self._storage = kv.storage.duplicate()
        self._layout, self._form = kv.layout, store.settings.form
        self._start, self._end = kv.start, kv.end
        self._reader = self._storage.bulk(self._start, self._end)
        self._contents = False
        weakref.finalize(self, self._storage.close)  # entries may be read after the scan's end
        self._base = 0
        self._data = memoryview(b"")

    def batch(self, positions: Int64, at: int) -> int:
        """Read what the files from positions[at] on need -> index after the last of them."""
        begin = self._begin(positions, at)
        limit = int(np.searchsorted(positions, begin + SPAN))
        stop = min(max(limit, at + 1), at + FILES, len(positions))
        self._data, self._base = memoryview(b""), begin
        if self._contents or int(positions[stop - 1]) - begin < DENSE * (stop - at):
            length = min(int(positions[stop - 1]) + HEAD - begin, SPAN + HEAD)
            self._data = self._reader.read(begin, min(length, self._end - begin))
        return stop

    def _begin(self, positions: Int64, at: int) -> int:
        """Where the entries of a file begin: after the inode before it, as we and others write."""
        if at:
            return int(positions[at - 1]) + 1
        return self._start if int(positions[0]) < SPAN else int(positions[0]) - SPAN // 8

    def inode(self, pos: int) -> tuple[bytes, Inode]:
        """-> (key, inode). Raises CorruptError."""
        entry = self._entry(pos)
        name = self._storage.name
        return entry.key, Inode.decode(entry.value, self._form, file=name, offset=pos)

    def read(self, inode: Inode) -> bytes:
        """The whole content of a file. Raises CorruptError."""
        self._contents = True
        parts = []
        for pointer, skip, size in cut(list(inode.extents), 0, inode.lsize):
            if pointer == 0:
                parts.append(bytes(size))
                continue
            value = self._entry(pointer).value
            if skip + size > len(value):
                raise CorruptError(
                    "extent is longer than its entry", file=self._storage.name, offset=pointer
                )
            parts.append(value[skip : skip + size] if (skip, size) != (0, len(value)) else value)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _entry(self, pos: int) -> KVEntry:
        """The checked entry at a position, from the window where it holds it."""
        name, layout = self._storage.name, self._layout
        if not 0 < pos < self._end:
            raise CorruptError("no entry", file=name, offset=pos)
        at = pos - self._base
        if 0 <= at < len(self._data):
            span = layout.locate(self._data, at)
            if span and span.end <= len(self._data):
                return layout.decode(self._data, at, pos, name)
        head = self._storage.read(pos, min(HEAD, self._end - pos))
        span = layout.locate(head, 0)
        if span is None:  # a long key
            head = self._storage.read(pos, min(HEAD + layout.key.limit, self._end - pos))
            span = layout.locate(head, 0)
        if span is None or pos + span.end > self._end:
            raise CorruptError("entry reaches past the end", file=name, offset=pos)
        if span.end > len(head):
            head = self._storage.read(pos, span.end)
        return layout.decode(head, 0, pos, name)

    def attrs(self, inode: Inode, owner: tuple[int, int]) -> Attrs:
        """The attributes of a file. Raises CorruptError."""
        return attributes(inode, owner, self._entry, self._storage.name)

    def close(self) -> None:
        """The scan is over: nothing more is read in large pieces."""
        self._reader.close()
        self._data = memoryview(b"")
