"""Files of a store that is read by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from winkformats.arrays import Int64
from winkfs.arrow import arrays
from winkfs.arrow.pieces import Named
from winkfs.container.ondisk.column import Column
from winkfs.container.table import SPECIAL, FileTable
from winkfs.entry import Stat, default_mode
from winkfs.names import Name, to_bytes


def table_of(stats: Sequence[Stat]) -> FileTable:
    """Return files as a table whose positions are their numbers."""
    names = [to_bytes(stat.name) for stat in stats]

    def column(value: Callable[[Stat], int]) -> Int64:
        return np.array([value(stat) for stat in stats], np.int64)

    special = np.array([stat.mode != default_mode(stat.ftype) for stat in stats], bool)
    return FileTable.of(
        names, np.arange(len(stats)), 0, column(lambda s: s.size), column(lambda s: s.mtime_ns),
        kind=column(lambda s: s.ftype) + special * SPECIAL,
    )  # fmt: skip


class NamedSource:
    """An open store in a task: the counterpart of `rows.PieceSource`."""

    def __init__(self, piece: Named, *, include_dirs: bool, typed: Mapping[str, str]) -> None:
        assert piece.opener is not None
        self._typed = typed
        self._store, self._include_dirs = piece.opener(piece.base), include_dirs
        self._stats = [self._store.stat(name) for name in piece.names]
        self.contents = self

    def __exit__(self, *exc: object) -> None:
        self._store.close()

    def chunks(self) -> Iterator[FileTable]:
        """Yield the files of the piece."""
        yield table_of(self._stats).visible(None, include_dirs=self._include_dirs)

    def read(self, pos: Int64, pointer: Int64, size: Int64) -> tuple[pa.Array, dict[int, str]]:
        """Read contents by name: see `rows.Contents.read`."""
        return arrays.contents([self._content(self._stats[at].name) for at in pos.tolist()])

    def _content(self, name: Name) -> bytes | Exception:
        try:
            return self._store.read(name)
        except (OSError, ValueError) as error:  # FormatError is a ValueError
            return error

    def values(self, rows: FileTable) -> dict[str, Column]:
        """Return nulls, because such stores have no columns of the user: see
        `rows.PieceSource.values`."""
        return {name: Column.nulls(kind, len(rows)) for name, kind in self._typed.items()}

    def mode(self, pos: int) -> int:
        return self._stats[pos].mode

    def drop(self) -> None:
        """Do nothing: no pages are kept."""
