"""ShardFiles: one shard of a mounted data set: what its files are, from its columns, and what is in
them.

Only contents, attributes and what is not a plain file need its data file. Where that is lost, the
files are still listed, and reading one is EIO.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.paths import open_file
from winkformats.disk.storage import Storage
from winkformats.errors import FormatError
from winkfs.container.columns import BY_INODE, Columns
from winkfs.container.ondisk.cols import ColumnsFile
from winkfs.container.ondisk.inode import Extent
from winkfs.container.read import Content
from winkfs.container.store import Store
from winkfs.dataset.shard import Shard
from winkfs.mounting.ids import POSITION, SHARDS
from winkfs.mounting.listing import MODE_OF
from winkfs.mounting.lookup import PAGE, PAGES, Found, Lookup
from winkmount.source import Attr

log = logging.getLogger("winkfs.mount")


class Footprint:
    """Contents that were read leave the page cache when PAGES of all shards together have come;
    see `winkfs.mounting.lookup`."""

    def __init__(self) -> None:
        self._pages = 0
        self._touched: set[Storage] = set()

    def reads(self, storage: Storage, size: int) -> None:
        self._touched.add(storage)
        self._pages += size // PAGE + 1
        if self._pages > PAGES:
            self.drop()

    def drop(self) -> None:
        for storage in self._touched:
            storage.drop_seen()
        self._touched.clear()
        self._pages = 0


class ShardFiles:
    """The files of one shard.

    number  1 .. SHARDS, part of the ids of its files
    chunks  their columns, in order of their inodes
    hidden  int64[..], ascending: positions of those that are not to be seen
    owner   (uid, gid) of files that have none of their own
    error   why contents cannot be read; None where they can
    """

    def __init__(self, shard: Shard, number: int, owner: tuple[int, int], trace: Footprint) -> None:
        """What cannot be read is logged. `owner`: where the data file is lost."""
        self.record, self.base, self.number = shard.record, shard.base, number
        self.hidden, self.owner, self._trace = shard.hidden, owner, trace
        self.error: str | None = None
        self._store: Store | None = None
        self._columns: ColumnsFile | None = None
        if shard.record.size >> POSITION or number >= SHARDS:
            raise OSError(errno.EFBIG, "too large for a mount, or too many shards", shard.base)
        self._shard = shard
        try:
            self._open(shard)
            self._take(self._read_columns() or self._read_inodes(shard))
        except BaseException:
            self.close()
            raise

    def _take(self, chunks: list[Columns]) -> None:
        self.chunks = chunks
        self._first = [int(chunk.pos[0]) for chunk in chunks]

    def forget_columns(self) -> None:
        """BASE.cols cannot be read any more: go on without it."""
        self._close_columns()
        self._take(self._read_inodes(self._shard))

    # opening

    def _open(self, shard: Shard, *, load: bool = False) -> None:
        try:
            store = shard.open(load=load, mapped=False)
        except (OSError, FormatError) as error:
            self.error = str(error)
            log.error("%s: its files cannot be read", error)
            return
        store.frozen = True
        store.kv.storage.remember_resident()
        self._store, self.owner = store, store.owner
        self._lookup = Lookup(store, Content(store))

    def _read_columns(self) -> list[Columns] | None:
        """All chunks of BASE.cols, each checked; None where they cannot be believed."""
        path = self.base + ".cols"
        try:
            storage = open_file(path)
        except OSError:
            return None
        storage.mapped = False
        try:
            self._columns = columns = ColumnsFile(storage, in_file=True)
            if (columns.contid, columns.covered) == (self.record.contid, self.record.size):
                return [columns.chunk(i) for i in range(len(columns.chunks))]
            log.warning("%s: of another container, not used", path)
        except (FormatError, OSError) as error:
            log.warning("%s: not used", error)
            if self._columns is None:
                storage.close()
        return None

    def _read_inodes(self, shard: Shard) -> list[Columns]:
        """The same from the data file. Cost: a pass over its inodes. Memory: 80 bytes a file."""
        if self._store is not None:
            self._trace.drop()
            self._store.abandon()
            self._open(shard, load=True)  # with its index
        if self._store is None:
            log.error("%s: %d files are not shown", self.base, self.record.files)
            return []
        columns = Columns.of(self._store, problem=lambda e: log.error("not shown: %s", e))
        return [columns] if len(columns) else []

    def close(self) -> None:
        if self._store is not None:
            self._trace.drop()
            self._store.abandon()
            self._store = None
        self._close_columns()

    def _close_columns(self) -> None:
        if self._columns is not None:
            self._columns.close()
            self._columns = None

    # files by position

    def locate(self, pos: int) -> tuple[Columns, int] | None:
        """-> the chunk and the row that have this inode."""
        number = bisect_right(self._first, pos) - 1
        if number < 0:
            return None
        chunk = self.chunks[number]
        row = int(chunk.pos.searchsorted(pos))
        return (chunk, row) if row < len(chunk) and chunk.pos.item(row) == pos else None

    def hides(self, pos: int) -> bool:
        at = int(self.hidden.searchsorted(pos))
        return at < len(self.hidden) and self.hidden.item(at) == pos

    def visible(self, chunk: Columns) -> Int64:
        """Rows of a chunk that are to be seen."""
        if not len(self.hidden):
            return np.arange(len(chunk))
        at = np.searchsorted(self.hidden, chunk.pos)
        hidden = self.hidden[np.minimum(at, len(self.hidden) - 1)] == chunk.pos
        return np.flatnonzero(~hidden)

    def id_of(self, pos: int) -> int:
        return self.number << POSITION | pos

    def attr(self, chunk: Columns, row: int) -> Attr:
        """The attributes of a file, as a directory has them, too."""
        pos, mode = chunk.pos.item(row), MODE_OF[chunk.ftype.item(row)]
        uid, gid = self.owner
        ctime_ns = 0
        if chunk.special.item(row) and self.error is None:
            attrs = self.found(pos).attrs
            if attrs is not None:
                mode = stat.S_IFMT(mode) | stat.S_IMODE(attrs.mode)
                uid, gid, ctime_ns = attrs.uid, attrs.gid, attrs.ctime_ns or 0
        size, mtime_ns = chunk.size.item(row), chunk.mtime.item(row)
        return Attr(self.id_of(pos), mode, size, mtime_ns, uid, gid, ctime_ns)

    def found(self, pos: int) -> Found:
        """What the inode says. Raises CorruptError; OSError (EIO) where the data file is lost."""
        self._need()
        self._touch(0)
        return self._lookup.at(pos)

    def extents(self, pos: int) -> Sequence[Extent]:
        """Where the content lies. Raises as `found`."""
        self._need()
        return self._lookup.inode(pos).extents

    def bytes_shown(self) -> int:
        """The sizes of the files that are to be seen."""
        return sum(int(chunk.size[self.visible(chunk)].sum()) for chunk in self.chunks)

    # contents

    def read(self, chunk: Columns, row: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes of a file from `offset`. Raises CorruptError; OSError (EIO)."""
        self._need()
        whole, pointer = chunk.size.item(row), chunk.pointer.item(row)
        stop = min(offset + size, whole)
        if offset >= stop:
            return b""
        self._touch(stop - offset)
        if pointer == BY_INODE:
            return self._lookup.read(self._lookup.at(chunk.pos.item(row)), offset, size)
        value = self._lookup.content(pointer, whole)
        return value[offset:stop] if stop - offset < whole else value

    def _need(self) -> None:
        if self.error is not None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _touch(self, size: int) -> None:
        if self._store is not None:
            self._trace.reads(self._store.kv.storage, size)
