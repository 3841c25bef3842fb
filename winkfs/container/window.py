"""Window: the part of the data file that a scan is passing over, read in large pieces, uncached."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest as xxh3

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkformats.kv.entry import MASK64, PREFIXES, KVEntry
from winkfs.container.content import attributes
from winkfs.container.ondisk.extent import Extent, assemble, check_size, cut
from winkfs.container.ondisk.inode import Attrs, Inode
from winkfs.container.plain import PlainInodes, plain_inodes
from winkfs.container.store import Store

SPAN: Final = 8 << 20  # bytes read at once
FILES: Final = 1024  # files of a batch, at most
DENSE: Final = 16 << 10  # bytes a file below which reading all beats reading inodes one by one
HEAD: Final = 512  # bytes read for an inode alone
PIECE: Final = 1 << 20  # bytes of a large file that are read at once, but for a larger entry
SMALL: Final = 64 << 10  # bytes of a file up to which copying it twice does not matter
UINT32: Final = PREFIXES[2].unpack_from


class Window:
    """Reads inodes and contents in disk order; it keeps the files it began with open.

    Listing reads only the inodes where files are large; from the first `read` on, the contents of
    the files to come are read along with them.
    """

    def __init__(self, store: Store) -> None:
        kv = store.kv
        self._storage = kv.storage.duplicate()
        self._layout, self._form = kv.layout, store.settings.form
        self._contid = kv.layout.contid
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

    def plain(self, positions: Int64) -> PlainInodes:
        """The plain and good ones among the inodes of the batch, as columns."""
        return plain_inodes(self._data, self._base, positions, self._layout, self._form)

    def read_plain(self, pointer: int, size: int) -> bytes:
        """The first `size` bytes of the value at `pointer`: the content of a plain file.

        raises  CorruptError
        cost    1 us from the window, for an entry as `put` writes it
        """
        self._contents = True
        data, at = self._data, pointer - self._base
        if size <= SMALL and 0 <= at < len(data) - 7:
            start = data[at + 2] + 6  # of the value: after a key below 256 bytes and two lengths
            end = at + 1 + start + size
            if end <= len(data) - 4 and data[at] <= 1:
                # Copied before it is checked: another thread may move the window on meanwhile.
                body = bytes(data[at + 1 : end])
                found = xxh3(body, (self._contid + pointer) & MASK64)
                if found & 0xFFFFFFFF == UINT32(data, end)[0]:
                    return body[start:]
        return self._read((Extent(pointer, 0, size),), size)

    def read(self, inode: Inode) -> bytes:
        """The whole content of a file. Raises CorruptError."""
        return self._read(inode.extents, inode.lsize)

    def pieces(self, inode: Inode) -> Iterator[tuple[int, bytes]]:
        """The content without its holes: (offset, bytes), about PIECE of them. CorruptError."""
        self._contents = True
        name, at, size = self._storage.name, 0, 0
        value = lru_cache(1)(lambda pos: self._entry(pos).value)  # an entry may have many extents
        run: list[Extent] = []
        for extent in [*cut(inode.extents, 0, inode.lsize), Extent(0, 0, 0)]:
            if run and (extent.pointer == 0 or size + extent.size > PIECE):
                yield at, assemble(run, lambda pos, least: value(pos), name)
                at, size, run = at + size, 0, []
            if extent.pointer:
                run.append(extent)
                size += extent.size
            else:
                at += extent.size

    def _read(self, extents: Sequence[Extent], lsize: int) -> bytes:
        self._contents = True
        check_size(lsize, self._end, self._storage.name)
        return assemble(cut(extents, 0, lsize), self._value, self._storage.name)

    def _value(self, pos: int, least: int) -> bytes:
        return self._entry(pos).value

    def _entry(self, pos: int) -> KVEntry:
        """The checked entry at a position, from the window where it holds it."""
        name, layout = self._storage.name, self._layout
        if not 0 < pos < self._end:
            raise CorruptError("no entry", file=name, offset=pos)
        data, at = self._data, pos - self._base
        if 0 <= at < len(data):
            span = layout.locate(data, at)
            if span and span.end <= len(data):
                with contextlib.suppress(CorruptError):  # what is wrong in the file is met below
                    found = layout.decode(data, at, pos, name)
                    if data is self._data:  # else another thread moved the window on meanwhile
                        return found
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
