"""Plain files of a tree, put as columns: without an object for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from winkformats.arrays import Bools, Int64
from winkfs.archive.items import PERMISSIONS, Block
from winkfs.container.container import Container
from winkfs.container.ondisk.inode import DEFAULT_MODES, Attrs, FileType
from winkfs.container.writemany import BYTES, ROWS, BulkPut, Row
from winkfs.names import to_bytes

EXECUTABLE: Final = 0o755
MODES: Final = np.array(DEFAULT_MODES, np.int64)


class Columns:
    """Files that wait to be put together, in their order."""

    def __init__(self, container: Container) -> None:
        self._engine = container.engine
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
        attrs = self._engine.changes.attrs_for(ftype, mode, uid, gid, xattrs)
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
        if self._size >= BYTES or len(self._names) >= ROWS:
            self.put()

    def put(self) -> None:
        """Put them. Raises what the container raises."""
        if not self._names:
            return
        columns = self._names, self._data, self._mtimes, self._ftypes, self._attrs
        self._clear()
        with self._engine.lock:
            self._engine.need_writable()
            bulk = BulkPut(self._engine.store, self._engine.changes)
            self._engine.consume("put_rows", partial(bulk.put_columns, *columns))


def types_of(block: Block, *, attrs: bool) -> Int64:
    """FileTypes, int64[n], as `Packer` keeps them. attrs: whether modes are kept beside them."""
    modes = block.facts[2] & PERMISSIONS
    run = modes == EXECUTABLE if attrs else (modes & 0o100) != 0
    return np.where(block.folders, FileType.DIR, np.where(run, FileType.EXEC, FileType.FILE))


def usual(block: Block, ftypes: Int64, owner: tuple[int, int]) -> Bools:
    """Which have this owner, and the mode that is the default of their type: bool[n]."""
    _, _, modes, uids, gids = block.facts
    found: Bools = (uids == owner[0]) & (gids == owner[1]) & (modes & PERMISSIONS == MODES[ftypes])
    return found
