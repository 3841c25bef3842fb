"""CatalogIndex: the catalog in the place of BASE.idx, for a container that is far.

A look-up in BASE.idx takes a request for a cell and one for the inode that it names, to compare the
key. A block of the catalog has the names, and where the content of each file is: so one request for
a block, and one for content and inode together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import DerivedDamage
from winkformats.hindex.table import IndexRows, hash_rows, join_rows
from winkformats.kv.sequence import USUAL_OVERHEAD
from winkfs.container.index import Index
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.ondisk.data import Settings
from winkfs.container.table import GONE, KIND, POINTER, POS, SIZE, FileTable
from winkfs.names import inode_keys, name_of

TOGETHER: Final = 256 << 10  # bytes of content that are requested with their inode
BETWEEN: Final = 64 << 10  # bytes between content and inode that are requested, too
INODE_OVERHEAD: Final = 11  # bytes of an inode's entry beside its key and value, at most
DATA_OVERHEAD: Final = USUAL_OVERHEAD  # of a data entry beside its value, at most, with its key
BATCH_BYTES: Final = 32 << 20  # of content that is held for a batch of files


class Row(NamedTuple):
    """The row of a file: position of the inode, bytes, position of the data entry."""

    pos: int
    size: int
    pointer: int


class CatalogIndex(Index):
    """The rows of a catalog as a map from keys to positions, and changes after it in `overlay`.

    When a block of the catalog is damaged, `distrust` replaces it by an index in memory, `base`.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        key_at: Callable[[int], bytes],
        is_bad: Callable[[int], bool],
        distrust: Callable[[DerivedDamage], None],
    ) -> None:
        super().__init__(settings, None, key_at, is_bad, distrust)
        self._heal = distrust
        self.catalog: Catalog | None = catalog
        self._later: dict[bytes, Row | None] | None = None
        self._found: dict[bytes, Row | None] = {}  # what the last announcement has found

    def row(self, name: bytes) -> Row | None:
        """Return the row of a name in the catalog; None: there is none. Raises DerivedDamage."""
        if name in self._found:
            return self._found[name]
        return self._row(name) if self.catalog is not None else None

    def _row(self, name: bytes) -> Row | None:
        assert self.catalog is not None
        later = self._changes(self.catalog)
        if name in later:
            return later[name]
        numbers = self.catalog.runs[0].row(name)
        if numbers is None or numbers[KIND] & GONE:
            return None
        return Row(numbers[POS], numbers[SIZE], numbers[POINTER])

    def _changes(self, catalog: Catalog) -> dict[bytes, Row | None]:
        """Return the rows of the runs after the first; None: the name was removed."""
        if self._later is None:
            self._later = {
                name: None if gone else Row(*numbers)
                for rows in chain.from_iterable(run.rows() for run in catalog.runs[1:])
                for name, gone, *numbers in _rows(rows)
            }
        return self._later

    def _lookup_base(self, key: bytes) -> int:
        while self.catalog is not None:
            try:
                row = self.row(name_of(key))
                return row.pos if row is not None and row.pos not in self.hidden else 0
            except DerivedDamage as error:
                self._heal(error)
        return super()._lookup_base(key)

    def _candidates(self, keys: Sequence[bytes], *, sure: bool) -> Int64:
        if self.catalog is None:
            return super()._candidates(keys, sure=sure)
        return np.fromiter(map(self._lookup_base, keys), np.int64, len(keys))

    @property
    def count(self) -> int:
        if self.catalog is None:
            return super().count
        return len(self.positions())

    def has_since(self, since: int) -> bool:
        return super().has_since(since) if self.catalog is None else self.catalog.covered <= since

    def _live_cells(self) -> Iterator[Int64]:
        while self.catalog is not None:
            try:
                found = [rows.pos for rows in self.catalog.rows()]
                pos = np.concatenate([np.empty(0, np.int64), *found])
                yield pos[~np.isin(pos, list(self.hidden))].reshape(-1, 1)
                return
            except DerivedDamage as error:
                self._heal(error)
        yield from super()._live_cells()

    def positions(self, since: int = 0) -> Int64:
        if self.catalog is None:
            return super().positions(since)
        cells = () if self.has_since(since) else self._live_cells()
        over = np.array([pos for pos in self.overlay.values() if pos], np.int64)
        found = np.sort(np.concatenate([over, *(part[:, 0] for part in cells)]))
        return found[int(np.searchsorted(found, since)) :]

    def merged(self) -> tuple[IndexRows, Int64 | None]:
        """Return as `Index.merged`. Cost: reads the catalog, and hashes all names."""
        if self.catalog is None:
            return super().merged()
        algorithm, parts = self.settings.htalgo, list[IndexRows]()
        for rows in self.catalog.rows():
            found = hash_rows(algorithm, inode_keys(rows.names), rows.pos)
            parts.append(found.take(~np.isin(rows.pos, list(self.hidden))))
        live = {key: pos for key, pos in self.overlay.items() if pos}
        over = hash_rows(algorithm, list(live), np.array(list(live.values()), np.int64))
        return join_rows([*parts, over]), None

    def check(self) -> None:
        """Do nothing: what is read of a catalog is verified."""

    def recheck(self, key: bytes) -> bool:
        return False if self.catalog is not None else super().recheck(key)

    def close(self) -> None:
        super().close()
        if self.catalog is not None:
            self.catalog.close()
            self.catalog = None

    # --- what to ask for at once ---

    def announce(self, keys: Iterable[bytes]) -> None:
        """Look up many keys, whose rows are kept until the next call; the blocks of the catalog
        that have them are requested together."""
        self._found = {}
        if self.catalog is None:
            return
        names, run = list(map(name_of, keys)), self.catalog.runs[0]
        numbers = np.fromiter(map(run.number_of, names), np.int64, len(names))
        run.fetch(np.unique(numbers[numbers >= 0]))
        order = np.argsort(numbers, kind="stable").tolist()
        self._found = {names[i]: self._row(names[i]) for i in order}

    def ranges(
        self, keys: Iterable[bytes], inode_size: int, *, content: bool
    ) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield for each key the bytes of its content, and the ranges of the data file that have
        its inode and, if `content` is set, its content; no range if the catalog has no row."""
        for key in keys:
            row = None if key in self.overlay or self.catalog is None else self.row(name_of(key))
            if row is None:
                yield 0, []
                continue
            start = row.pos
            stop = start + inode_size + max(INODE_OVERHEAD + len(key), USUAL_OVERHEAD)
            if row.pointer <= 0 or not content:
                yield 0, [(start, stop)]
                continue
            end = row.pointer + row.size + DATA_OVERHEAD
            if row.pointer < start <= end + BETWEEN and row.size <= TOGETHER:
                yield row.size, [(row.pointer, stop)]
            else:
                yield row.size, [(row.pointer, end), (start, stop)]


def _rows(rows: FileTable) -> Iterator[tuple[bytes, bool, int, int, int]]:
    return zip(
        rows.names, rows.gone.tolist(), rows.pos.tolist(), rows.size.tolist(),
        rows.pointer.tolist(), strict=True,
    )  # fmt: skip
