"""Files of a store that is read by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from winkfs.arrow.pieces import OPEN, Named, PlannedPiece, Recorded, weights_of
from winkfs.container.ondisk.column import Column
from winkfs.container.selection import Selection
from winkfs.names import Name

if TYPE_CHECKING:
    import pyarrow as pa

    from winkfs.container.table import FileTable
    from winkfs.reader import Reader
    from winkfs.registry import Kind

FoundStore = tuple["Kind", str]
"""Kind and absolute path of a store."""


def part_of(
    store: FoundStore, selection: Selection, contents: bool, *, refs: bool = False
) -> PlannedPiece | None:
    """Return the selected files of a store; None: there are none.

    raises  ValueError for `where` and `refs`
    cost    a scan; of a store of records a listing
    """
    kind, path = store
    if selection.where is not None:
        raise ValueError(f"is a {kind.name}: where is for containers and data sets")
    opener = kind.function("open", path)
    with opener(path) as reader:
        if is_records(reader):
            if refs:
                raise ValueError("content=ref is for containers and data sets")
            from winkfs.arrow.records import part_of as part_of_records

            piece = Recorded(path, 0, 0, True, 0, 0, opener=opener, selection=selection)
            return part_of_records(reader, piece, contents)
        found = list(reader.scan())
    if not selection.everything:
        from winkfs.tables import table_of  # late: the planner of a data set needs no containers

        good = selection.chosen(table_of(found)).tolist()
        found = [stat for stat, one in zip(found, good, strict=True) if one]
    if not found:
        return None
    sizes = np.array([stat.size for stat in found], np.int64)
    names = tuple(stat.name for stat in found)
    named = Named(path, 0, 0, False, 0, len(names), names=names, opener=opener)
    return PlannedPiece(named, OPEN + int(weights_of(sizes, contents).sum()), np.empty(0, np.int64))


def is_records(reader: Reader) -> bool:
    """Return whether a store has records, not files."""
    from winkfs.stores.records import Records  # late: most queries do not need it

    return isinstance(reader, Records)


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
        from winkfs.tables import table_of

        yield table_of(self._stats).visible(None, include_dirs=self._include_dirs)

    def of(self, rows: FileTable) -> tuple[pa.Array, dict[int, Exception]]:
        """Read contents by name: see `rows.Contents.of`."""
        from winkfs.arrow import arrays  # late: planners import this module

        return arrays.contents([self._content(self._stats[at].name) for at in rows.pos.tolist()])

    def _content(self, name: Name) -> bytes | Exception:
        try:
            return self._store.read(name)
        except (OSError, ValueError) as error:  # FormatError is a ValueError
            return error

    def values(self, rows: FileTable) -> dict[str, Column]:
        """Return nulls, because such stores have no columns of the user: see
        `rows.PieceSource.values`."""
        return {name: Column.nulls(kind, len(rows)) for name, kind in self._typed.items()}

    def mode(self, rows: FileTable, i: int) -> int:
        return self._stats[int(rows.pos[i])].mode

    def drop(self) -> None:
        """Do nothing: no pages are kept."""
