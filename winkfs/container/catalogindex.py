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

from winkformats.arrays import Bools, Int64
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
SIZE_AT, POINTER_AT = 1, 2  # in a Row
NO_ROWS: Final = np.zeros((0, 3), np.int64)
BATCH_BYTES: Final = 32 << 20  # of content that is held for a batch of files
FARTHEST: Final = 1 << 60  # bytes: no file is that long
FEW: Final = 8  # names that are looked up one by one


class Row(NamedTuple):
    """The row of a file: position of the inode, bytes, position of the data entry."""

    pos: int
    size: int
    pointer: int


class Expected(NamedTuple):
    """Files that are expected to be read: of each the row in the catalog, see `Row`, int64[n, 3],
    zeros if it has none; and the ranges of the data file that were brought, ascending."""

    rows: Int64
    ranges: list[Range]


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
        self._found: dict[bytes, int] = {}  # of the files that are expected: where in `_rows`
        self._rows = NO_ROWS

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
        at = self._found.get(name)
        if at is None:
            return self._asked(self._row_in, name)
        found = Row(*self._rows[at].tolist())
        return found if found.pos else None

    def _row_in(self, catalog: Catalog, name: bytes) -> Row | None:
        later = self._after(catalog)
        if name in later:
            return later[name]
        numbers = catalog.runs[0].row(name)
        return None if numbers is None else Row(numbers[POS], numbers[SIZE], numbers[POINTER])

    def _after(self, catalog: Catalog) -> dict[bytes, Row | None]:
        """Return the rows of the later runs, by name."""
        if self._later is None:
            self._later = {
                name: None if gone else Row(*numbers)
                for rows in chain.from_iterable(run.rows() for run in catalog.runs[1:])
                for name, gone, *numbers in _rows(rows)
            }
        return self._later

    def _lookup_base(self, key: bytes) -> int:
        row = self.row(name_of(key))
        if self.catalog is None:
            return super()._lookup_base(key)
        return 0 if row is None or row.pos in self.hidden else row.pos

    def _lookup_base_many(self, keys: list[bytes]) -> list[int]:
        rows = None if len(keys) < FEW else self._asked(self._rows_in, list(map(name_of, keys)))
        if rows is None:
            return list(map(self._lookup_base, keys))
        return [0 if pos in self.hidden else pos for pos in rows[:, 0].tolist()]

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
        self._found, self._rows = {}, NO_ROWS
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
    ) -> Iterator[Expected]:
        """Bring what is needed to read files, and yield them, a batch at a time.

        The blocks of the catalog that have them are requested together, and their rows are kept
        until the next call.

        fetch    brings ranges of the data file, see `Storage.fetch`
        content  their contents, not the inodes alone
        """
        names = list(map(name_of, keys))
        rows = self._asked(self._rows_in, names)
        self._found, self._rows = {}, np.zeros((len(names), 3), np.int64) if rows is None else rows
        if rows is not None:
            self._found = dict(zip(names, range(len(names)), strict=True))
        rows = self._rows
        if self.overlay:
            over = [i for i, key in enumerate(keys) if key in self.overlay]
            rows = rows.copy()
            rows[over] = 0
        lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        overhead = inode_size + np.maximum(INODE_OVERHEAD + lengths, USUAL_OVERHEAD)
        sizes = np.where(with_content(rows), rows[:, SIZE_AT], 0) if content else lengths * 0
        start, ends = 0, np.cumsum(sizes)
        while start < len(keys):
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + BATCH_BYTES, "right")), start + 1)
            part = rows[start:stop]
            ranges = ranges_of(part, overhead[start:stop], content=content)
            fetch(ranges)
            yield Expected(part, ranges)
            start = stop

    def _rows_in(self, catalog: Catalog, names: list[bytes]) -> Int64:
        """Return the row of each name, int64[n, 3], zeros if there is none."""
        run, later = catalog.runs[0], self._after(catalog)
        numbers = np.fromiter(map(run.number_of, names), np.int64, len(names))
        run.fetch(np.unique(numbers[numbers >= 0]))
        if len(names) < FEW or b"\0" in b"/".join(names):
            nothing = Row(0, 0, 0)
            order = np.argsort(numbers, kind="stable").tolist()
            found = {i: self._row_in(catalog, names[i]) or nothing for i in order}
            return np.array([found[i] for i in range(len(names))], np.int64).reshape(-1, 3)
        rows = run.rows_of(names, numbers)[:, [POS, SIZE, POINTER]]
        for i, name in enumerate(names) if later else ():
            if name in later:
                rows[i] = later[name] or 0
        return rows


def with_content(rows: Int64) -> Bools:
    """Return which files have their content in one entry that is brought with them."""
    pointer, size = rows[:, POINTER_AT], rows[:, SIZE_AT]
    return (pointer > 0) & (pointer < FARTHEST) & (size >= 0) & (size <= BATCH_BYTES) & _there(rows)


def _there(rows: Int64) -> Bools:
    """Return which rows have an inode at a position that a file can have."""
    return (rows[:, 0] > 0) & (rows[:, 0] < FARTHEST)


def ranges_of(rows: Int64, overhead: Int64, *, content: bool) -> list[Range]:
    """Return the ranges of the data file that have the inodes of files and, if `content` is set,
    their contents, in file order; what overlaps is joined."""
    there = _there(rows)
    rows, overhead = rows[there], overhead[there]
    pos, size, pointer = rows.T
    low, high = pos, pos + overhead
    if content:
        chosen = with_content(rows)
        end = pointer + size + DATA_OVERHEAD
        near = chosen & (pointer < pos) & (pos <= end + BETWEEN) & (size <= TOGETHER)
        apart = chosen & ~near
        low = np.concatenate([np.where(near, pointer, pos), pointer[apart]])
        high = np.concatenate([np.where(near, np.maximum(high, end), high), end[apart]])
    if not len(low):
        return []
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    heads = np.flatnonzero(np.append(True, low[1:] > high[:-1]))
    return list(zip(low[heads].tolist(), high[np.append(heads[1:], len(low)) - 1].tolist(),
                    strict=True))  # fmt: skip


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
