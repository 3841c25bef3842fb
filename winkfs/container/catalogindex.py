"""CatalogIndex: the catalog in the place of BASE.idx, for a container that is far.

A look-up in BASE.idx takes a request for a cell and one for the inode that it names, to compare the
key. A block of the catalog has the names, and where the content of each file is: so one request for
a block, and one for content and inode together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeVar, TypeVarTuple

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import DerivedDamage
from winkformats.hindex.table import IndexRows, hash_rows, join_rows
from winkformats.kv.sequence import USUAL_OVERHEAD
from winkfs.container.index import Index
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.ondisk.data import Settings
from winkfs.container.table import POINTER, POS, SIZE, FileTable
from winkfs.names import inode_keys, name_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Range = tuple[int, int]
"""Start and stop, bytes."""
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
        self.catalog: Catalog | None = catalog
        self._later: dict[bytes, Row | None] | None = None
        self._found: dict[bytes, Row | None] = {}  # of the files that are expected

    def _asked(self, question: Callable[[Catalog, *Ts], T], *given: *Ts) -> T | None:
        """Ask the catalog; None also after damage of it, and then `catalog` is None."""
        if self.catalog is not None:
            try:
                return question(self.catalog, *given)
            except DerivedDamage as error:
                if self._distrust is None:
                    raise
                self._distrust(error)
        return None

    def row(self, name: bytes) -> Row | None:
        """Return the row of a name in the catalog; None: there is none."""
        return self._found[name] if name in self._found else self._asked(self._row_in, name)

    def _row_in(self, catalog: Catalog, name: bytes) -> Row | None:
        if self._later is None:
            self._later = {
                name: None if gone else Row(*numbers)
                for rows in chain.from_iterable(run.rows() for run in catalog.runs[1:])
                for name, gone, *numbers in _rows(rows)
            }
        if name in self._later:
            return self._later[name]
        numbers = catalog.runs[0].row(name)
        return None if numbers is None else Row(numbers[POS], numbers[SIZE], numbers[POINTER])

    def _lookup_base(self, key: bytes) -> int:
        row = self.row(name_of(key))
        if self.catalog is None:
            return super()._lookup_base(key)
        return 0 if row is None or row.pos in self.hidden else row.pos

    def _lookup_base_many(self, keys: list[bytes]) -> list[int]:
        return list(map(self._lookup_base, keys))

    def _candidates(self, keys: Sequence[bytes], *, sure: bool) -> Int64:
        return np.array(self._lookup_base_many(list(keys)), np.int64)

    @property
    def base_count(self) -> int:
        if self.catalog is not None and len(self.catalog.runs) == 1:
            return self.catalog.count
        found = self._asked(_positions)
        return super().base_count if found is None else len(found)

    def has_since(self, since: int) -> bool:
        return super().has_since(since) if self.catalog is None else self.catalog.covered <= since

    def _live_cells(self) -> Iterator[Int64]:
        found = self._asked(_positions)
        if found is None:
            yield from super()._live_cells()
        else:
            yield found[~np.isin(found, self.replaced())].reshape(-1, 1)

    def merged(self) -> tuple[IndexRows, Int64 | None]:
        """Return as `Index.merged`. Cost: reads the catalog, and hashes all names."""
        algorithm = self.settings.htalgo
        found = self._asked(_hashed, algorithm)
        if found is None:
            return super().merged()
        live = {key: pos for key, pos in self.overlay.items() if pos}
        over = hash_rows(algorithm, list(live), np.array(list(live.values()), np.int64))
        return join_rows([found.take(~np.isin(found.pos, self.replaced())), over]), None

    def check(self) -> None:
        """Do nothing: what is read of a catalog is verified."""

    def recheck(self, key: bytes) -> bool:
        return False if self.catalog is not None else super().recheck(key)

    def close(self) -> None:
        super().close()
        self._found = {}
        if self.catalog is not None:
            self.catalog.close()
            self.catalog = None

    # --- what to ask for at once ---

    def expect(
        self,
        keys: Sequence[bytes],
        fetch: Callable[[list[Range]], None],
        inode_size: int,
        *,
        content: bool,
    ) -> Iterator[int]:
        """Bring what is needed to read files, a batch of them at a time -> the number of files.

        The blocks of the catalog that have them are requested together, and their rows are kept
        until the next call.

        fetch    brings ranges of the data file, see `Storage.fetch`
        content  their contents, not the inodes alone
        """
        self._found = self._asked(self._rows_in, list(map(name_of, keys))) or {}
        count, size, ranges = 0, 0, list[Range]()
        for more, parts in self._ranges(keys, inode_size, content=content):
            if size and size + more > BATCH_BYTES:
                fetch(ranges)
                yield count
                count, size, ranges = 0, 0, []
            count, size = count + 1, size + more
            ranges += parts
        fetch(ranges)
        yield count

    def _rows_in(self, catalog: Catalog, names: list[bytes]) -> dict[bytes, Row | None]:
        run = catalog.runs[0]
        numbers = np.fromiter(map(run.number_of, names), np.int64, len(names))
        run.fetch(np.unique(numbers[numbers >= 0]))
        order = np.argsort(numbers, kind="stable").tolist()
        return {names[i]: self._row_in(catalog, names[i]) for i in order}

    def _ranges(
        self, keys: Sequence[bytes], inode_size: int, *, content: bool
    ) -> Iterator[tuple[int, list[Range]]]:
        """Yield for each key the bytes of its content, and the ranges of the data file that have
        its inode and, if `content` is set, its content; no range if the catalog has no row."""
        for key in keys:
            row = None if key in self.overlay else self.row(name_of(key))
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


def _positions(catalog: Catalog) -> Int64:
    """Return the positions of the inodes of all files."""
    return np.concatenate([np.empty(0, np.int64), *(rows.pos for rows in catalog.rows())])


def _hashed(catalog: Catalog, algorithm: int) -> IndexRows:
    """Return all files as rows of an index."""
    parts = [hash_rows(algorithm, inode_keys(rows.names), rows.pos) for rows in catalog.rows()]
    return join_rows([hash_rows(algorithm, [], np.empty(0, np.int64)), *parts])


def _rows(rows: FileTable) -> Iterator[tuple[bytes, bool, int, int, int]]:
    return zip(
        rows.names, rows.gone.tolist(), rows.pos.tolist(), rows.size.tolist(),
        rows.pointer.tolist(), strict=True,
    )  # fmt: skip
