"""What a writer puts, kept as columns, so that BASE.cols needs no look at what was just written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from winkformats.arrays import Int64
from winkfs.container.columns.columns import Columns
from winkfs.container.ondisk.inode import FileType

if TYPE_CHECKING:
    from winkfs.container.store import Store

PARTS: Final = 64  # of what is put together that are looked at together
READ: Final = 1 << 16  # files read at a time
MOST: Final = 1 << 21  # files remembered, 60 bytes and their name each


class Put(Protocol):
    """n files of one extent each and without attributes, as `bulkencode` has them."""

    @property
    def keys(self) -> list[bytes]: ...
    @property
    def key_lengths(self) -> Int64: ...
    @property
    def lengths(self) -> Int64: ...
    @property
    def ftypes(self) -> Sequence[int]: ...


class ColumnTrail:
    """Files put in bulk since it was made, also those that are gone by now. Beyond MOST: none."""

    def __init__(self) -> None:
        self._parts: list[Columns] = []
        self._files = 0
        self._changed: set[int] = set()

    def add(self, files: Put, positions: Int64, pointers: Int64, mtimes: Int64) -> None:
        """Files at these positions, behind all earlier ones. `mtimes`: nanoseconds.

        cost    0.1 us a file
        """
        self._files += len(positions)
        if self._files > MOST:
            self._parts = []
            return
        names = (b"\0".join(files.keys) + b"\0").replace(b"/I0\0", b"")  # NUL is in no name
        first, n = files.ftypes[0], len(positions)
        same = files.ftypes.count(first) == n  # of a tuple of one object 5 ns each, an array 60
        ftypes = np.full(n, first, np.uint8) if same else np.array(files.ftypes, np.uint8)
        ftypes[ftypes == 0] = FileType.FILE
        self._parts.append(Columns.joined(
            positions, pointers, files.lengths, mtimes, ftypes, np.zeros(len(ftypes), np.uint8),
            files.key_lengths - 3, np.frombuffer(names, np.uint8),
        ))  # fmt: skip

    def forget(self, pos: int) -> None:
        """The inode there is another by now."""
        self._changed.add(pos)

    def rows(self, store: Store) -> Iterator[Columns]:
        """All live files, in order of their inodes, in parts; what is not known here is read.

        raises  CorruptError, OSError
        """
        live = store.index.positions()
        changed = np.fromiter(self._changed, np.int64, len(self._changed))
        at = 0
        for i in range(0, len(self._parts), PARTS):
            known = Columns.concat(self._parts[i : i + PARTS])
            stop = int(np.searchsorted(live, known.pos[-1], "right"))
            wanted, at = live[at:stop], stop
            if len(changed) or not np.array_equal(wanted, known.pos):
                known = known.take(np.isin(known.pos, wanted) & ~np.isin(known.pos, changed))
                read = Columns.of(store, wanted[~np.isin(wanted, known.pos)])
                known = Columns.concat([known, read])
                known = known.take(np.argsort(known.pos))
            yield known
        for start in range(at, len(live), READ):
            yield Columns.of(store, live[start : start + READ])
