"""Index: from the key of an inode to its position.

    base      BASE.idx; never changed on disk, only replaced by rename
    overlay   changes since then: key -> position, 0 for a name that was removed
    bulk      (S, position) columns of files put in bulk, not yet searched for duplicate names.
              While it is not empty, base and overlay may have superseded positions

A position that a later one replaces is superseded: its delflags are set once the later one is
durable. The key of an entry that is found is compared; if the entry is damaged and no other has the
key, it counts as found, so that a read of it reports the damage. The absence of a key, and a list
of all files, rely on pages of the base whose checksums are right; if one is wrong, the base is made
anew from the data file, and used instead.

Other threads read base, overlay, bulk and stale without a lock (`short.Short`). So a key is put
into the overlay before its old position is removed from there, from bulk or from the drafts; a
position leaves the overlay only after `stale` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

import numpy as np

from winkformats import hashing
from winkformats.arrays import Int64, UInt64, among, superseded
from winkformats.errors import DerivedDamage
from winkformats.hindex import table
from winkformats.hindex.table import GrowingColumns, IndexRows, hash_rows, join_rows
from winkfs.container.ondisk.data import Settings
from winkfs.container.ondisk.idx import Base
from winkfs.names import name_of

if TYPE_CHECKING:
    from winkfs.container.gone import Gone

P = ParamSpec("P")
T = TypeVar("T")
UNSEEN: Final = -1  # for the position of an inode that was not looked up
MERGE_OVERLAY: Final = 1 << 18  # changes in memory after which the index is written anew
JOINED_ROWS: Final = 512  # bulk rows below which an array is joined with the next one
FOLD: Final = 1 << 16  # bulk rows that may go to the overlay; more make a new base
# Keeps `bulk` not empty.
NO_ROWS: Final = IndexRows(np.empty(0, np.uint64), None, np.empty(0, np.int64))


class Index:
    """Base, overlay and bulk rows as one map from keys to positions.

    key_at    returns the key of the inode entry at a position; raises CorruptError
    is_bad    returns whether the entry at a position is damaged
    distrust  called if the base is damaged; makes the index adopt a new base, or raises
    gone      positions of names whose newest inode was cut off, so that they are in no base; None:
              the data file is not truncated
    """

    def __init__(
        self,
        settings: Settings,
        base: Base | None,
        key_at: Callable[[int], bytes],
        is_bad: Callable[[int], bool],
        distrust: Callable[[DerivedDamage], None] | None = None,
    ) -> None:
        self.settings, self.base, self._key_at, self._is_bad = settings, base, key_at, is_bad
        self._distrust = distrust
        self.overlay: dict[bytes, int] = {}
        self.hidden: set[int] = set()  # positions in base that the overlay or bulk replaced
        self._gone_at: dict[bytes, int] = {}  # keys of the overlay -> tombstones that were replayed
        self._unseen: list[bytes] = []  # keys of the overlay that were not looked up in base yet
        self.bulk: list[IndexRows] = []
        self._bulk_keys: list[bytes] | None = []  # of the bulk rows; None: too many to keep
        self.stale: list[bool] = []  # shared with readers of this index; not empty: it was replaced
        self._settled = NO_ROWS  # bulk rows without duplicate names, too many to fold
        self.gone: Gone | None = None
        # Called with each name that is added or removed, except in bulk: see `assign`.
        self.trail: Callable[[bytes, int], None] | None = None

    @property
    def count(self) -> int:
        """Number of files. If there are bulk rows, `settle` must come first."""
        self._see()
        live = sum(map(bool, self.overlay.values())) + len(self._settled.pos)
        return self.base_count - len(self.hidden) + live

    @property
    def base_count(self) -> int:
        """Number of files of the base alone."""
        return self.base.live if self.base else 0

    def lookup(self, key: bytes) -> int:
        """Return the position of the inode with this key, 0: there is none."""
        found = self.overlay.get(key)
        if found is not None:
            return found
        return self._lookup_base(key)

    def lookup_many(self, keys: list[bytes]) -> list[int]:
        """Return the positions of many keys, 0: none; the pages of the base that are used are
        verified."""
        get = self.overlay.get
        found = zip(map(get, keys), self._lookup_base_many(keys), strict=True)
        return [old if new is None else new for new, old in found]

    def _lookup_base_many(self, keys: list[bytes]) -> list[int]:
        found: list[int] = self._candidates(keys, sure=True).tolist()
        for i, pos in enumerate(found):  # another key may have its hash
            if pos and (pos in self.hidden or self._key_at(pos) != keys[i]):
                found[i] = self._lookup_base(keys[i])
        return found

    def _see(self) -> None:
        """Look up what the keys replace that were assigned without a look-up."""
        if self._unseen:
            self.hidden.update(filter(None, self._lookup_base_many(self._unseen)))
            self._unseen = []

    def _lookup_base(self, key: bytes) -> int:
        if self.base is None:
            return 0
        s, bits = hashing.hash_key(self.settings.htalgo, key)
        found = self._ask(Base.find, key, s, bits, self._key_at, self.hidden, self._is_bad)
        if found or self.gone is None:
            return found
        return int(self.gone.find(np.array([s], np.uint64))[0])

    def _ask(self, question: Callable[Concatenate[Base, P], T], *args: P.args, **kw: P.kwargs) -> T:
        """Call a method of the base, which must exist; if that is damaged, it is replaced and the
        call repeated."""
        while True:
            assert self.base is not None
            try:
                return question(self.base, *args, **kw)
            except DerivedDamage as error:
                if self._distrust is None:
                    raise
                self._distrust(error)

    def recheck(self, key: bytes) -> bool:
        """Verify the cells of a key whose cell did not lead to its live inode.

        ->  whether they were wrong, so that `lookup` must be called again
        """
        base = self.base
        if base is None or key in self.overlay:
            return False
        self._ask(Base.vouch, hashing.hash_key(self.settings.htalgo, key)[1])
        return self.base is not base

    def check(self) -> None:
        """Verify all of the base; replace it if it is damaged."""
        if self.base is not None:
            self._ask(Base.check)

    def adopt(self, base: Base) -> None:
        """Replace the damaged base by one with the content it should have; keep all else."""
        self.close()
        self._outdate()
        self.base, self._unseen = base, []
        if self.hidden:  # a new base does not have inodes that were marked deleted meanwhile
            self.hidden &= set(np.concatenate(list(base.pointers())).tolist())
        self.hidden |= {pos for pos in map(self._lookup_base, self.overlay) if pos}

    def candidates(self, keys: Sequence[bytes], *, compared: bool = False) -> Int64:
        """Return the positions that most likely belong to the keys, int64[n], 0: none.

        The caller compares the keys. If one differs, two keys share a 64-bit hash, and `lookup` has
        the answer.

        compared  the caller checks keys and delflags, and calls `lookup` if they are wrong;
                  otherwise the cells are verified
        """
        found = self._candidates(keys, sure=not compared)
        if self.overlay:
            get = self.overlay.get
            over = np.fromiter((get(key, -1) for key in keys), np.int64, len(keys))
            found = np.where(over >= 0, over, found)
        return found

    def _candidates(self, keys: Sequence[bytes], *, sure: bool) -> Int64:
        """Return candidates from the base alone. `sure`: see `Base.find_many`."""
        if self.base is None or not self.base.finds_many:
            return np.fromiter(map(self._lookup_base, keys), np.int64, len(keys))
        s, bits = hashing.hash_keys(self.settings.htalgo, keys)
        found, _ = self._ask(Base.find_many, s, bits, sure=sure)
        return found if self.gone is None else np.where(found > 0, found, self.gone.find(s))

    def cells_of(self, s: UInt64) -> tuple[UInt64, Int64]:
        """Return S and position of all cells of the base with these hashes, which are distinct.

        Needs CELLSZ >= 2 and slots that follow from S.
        """
        cells = self._ask(_cells_of, s)
        if self.gone is not None:
            lost = self.gone.find(s)
            cells += zip(s[lost > 0].tolist(), lost[lost > 0].tolist(), strict=True)
        return np.array([c[0] for c in cells], np.uint64), np.array([c[1] for c in cells], np.int64)

    def assign(
        self,
        key: bytes,
        pos: int,
        *,
        new: bool = False,
        old: int | None = None,
        at: int | None = None,
    ) -> None:
        """Set the position of a key; 0 removes it.

        new  the key did not exist
        old  its old position, if known; UNSEEN: it is looked up when it is needed
        at   position of the entry, if it is replayed
        """
        if self.trail is not None:
            self.trail(name_of(key), pos)
        if not new and key not in self.overlay:
            if old is None:
                old = self._lookup_base(key)
            if old == UNSEEN:
                self._unseen.append(key)
            elif old:
                self.hidden.add(old)
            elif pos == 0 and at is None:  # a catalog that is newer than the base may have the name
                return
        self.overlay[key] = pos
        if pos == 0 and at is not None:
            self._gone_at[key] = at
        elif self._gone_at:
            self._gone_at.pop(key, None)

    def add_bulk(self, keys: list[bytes], pos: Int64) -> None:
        """Add files put in bulk; `settle` finds duplicate names."""
        rows = hash_rows(self.settings.htalgo, keys, pos)
        if self.bulk and len(self.bulk[-1].pos) < JOINED_ROWS:  # small arrays take more memory
            self.bulk[-1] = join_rows([self.bulk[-1], rows])
        else:
            self.bulk.append(rows)
        if self._bulk_keys is not None:
            self._bulk_keys += keys
            if len(self._bulk_keys) > FOLD:
                self._bulk_keys = None

    def settle(self) -> list[int]:
        """Find duplicate names of the bulk rows -> positions of superseded inodes."""
        if not self.bulk:
            return []
        parts, keys = self.bulk[:], self._bulk_keys
        self.bulk[:] = [NO_ROWS]  # in one step: readers must not see it empty yet
        rows = join_rows(parts)
        try:
            return self._settle(rows, keys) if len(rows.pos) else []
        except BaseException:  # the files are still there
            self.bulk[:] = [rows]
            raise

    def _settle(self, rows: IndexRows, keys: Iterable[bytes] | None) -> list[int]:
        """Enter rows into overlay or `_settled` -> superseded positions. `keys`: of the rows; None:
        too many for the overlay."""
        fold = not self.must_merge and keys is not None
        if not fold:
            self._outdate()
        drop = superseded(rows.s, lambda row: self._key_at(int(rows.pos[row])))
        gone: list[int] = rows.pos[drop].tolist()
        if gone:
            kept = np.ones(len(rows.pos), bool)
            kept[drop] = False
            rows, keys = rows.take(kept), keys and compress(keys, kept)
        gone += self._give_way(rows, fold=fold)
        if fold:  # from memory: their pages may not be in the page cache any more
            assert keys is not None
            self.overlay.update(zip(keys, rows.pos.tolist(), strict=True))
            self.bulk.clear()
        else:
            self._settled = join_rows([self._settled, rows])
        self._bulk_keys = []
        return gone

    def _outdate(self) -> None:
        """Invalidate the short way and other readers of this index."""
        self.stale.append(True)
        self.stale = []

    def _give_way(self, rows: IndexRows, *, fold: bool) -> list[int]:
        """Remove the names of rows from overlay and base -> the positions they had.

        fold  the caller overwrites them in the overlay
        """
        found, overlay, base = list[int](), self.overlay, self.base
        over = np.sort(hashing.hash_keys(self.settings.htalgo, overlay)[0])
        for at in range(0, len(rows.pos), table.BUCKET):
            part = rows.take(slice(at, at + table.BUCKET))
            doubtful = among(part.s, over)
            if base is not None and base.live and not base.finds_many:
                doubtful[:] = True
            elif base is not None and base.live:
                doubtful |= self._ask(Base.find_many, part.s, part.slot_bits(), sure=True)[1] >= 0
            keys = list(map(self._key_at, part.pos[doubtful].tolist()))
            for key, below in zip(keys, self._lookup_base_many(keys), strict=True):
                if key not in overlay:
                    old = below
                    self.hidden.update(filter(None, [below]))
                else:
                    old = overlay[key] if fold else overlay.pop(key)
                found += filter(None, [old])
        return found

    @property
    def pending(self) -> int:
        """Number of changes that are not in the base."""
        rows = sum(len(rows.pos) for rows in (self._settled, *self.bulk))
        return len(self.overlay) + len(self.hidden) + rows

    def changes(self, covered: int) -> dict[bytes, int] | None:
        """Return the changes of names since the data file ended at `covered`.

        ->  name -> position of its inode, 0: it was removed; None: the base is newer
        """
        if self.base is None or self.base.covered > covered or self.bulk or self.must_merge:
            return None
        gone_at, items = self._gone_at, self.overlay.items()
        return {
            name_of(key): pos for key, pos in items if (pos or gone_at.get(key, covered)) >= covered
        }

    @property
    def must_merge(self) -> bool:
        """True if there are settled rows, which only a new base can take."""
        return len(self._settled.pos) > 0

    def replaced(self) -> Int64:
        """Return the positions in the base that were superseded, int64[..]."""
        self._see()
        return np.fromiter(self.hidden, np.int64, len(self.hidden))

    def has_since(self, since: int) -> bool:
        """Return whether all inodes from `since` on are in memory: `positions` then does not read
        the base."""
        return self.base is None or self.base.covered <= since

    def positions(self, since: int = 0) -> Int64:
        """Return the positions of all inodes from `since` on, ascending: the files in disk order.

        cost    sorts them, n log n; memory: the array
        """
        found = GrowingColumns(np.int64)
        for cells in () if self.has_since(since) else self._live_cells():
            found.add(cells[cells[:, 0] >= since, 0])
        found.add(np.array([pos for pos in self.overlay.values() if pos], np.int64))
        found.add(self._settled.pos)
        (positions,) = found.take()
        positions.sort()
        return positions[int(np.searchsorted(positions, since)) :]

    def merged(self) -> tuple[IndexRows, Int64 | None]:
        """Return everything as rows for a new base, and the further words of its cells."""
        empty = np.empty((0, self.settings.cellsz), np.int64)
        cells = np.concatenate([empty, *self._live_cells()])
        if self.settings.htalgo in hashing.SLOT_FROM_S and self.settings.cellsz > 1:
            rows = IndexRows(cells[:, 1].copy().view(np.uint64), None, cells[:, 0].copy())
        else:  # a cell does not determine its slot: read the keys
            keys = map(self._key_at, cells[:, 0].tolist())
            rows = hash_rows(self.settings.htalgo, list(keys), cells[:, 0].copy())
        live = [(key, pos) for key, pos in self.overlay.items() if pos]
        over = hash_rows(
            self.settings.htalgo, [k for k, _ in live], np.array([p for _, p in live], np.int64)
        )
        extra = cells[:, 2:].copy() if cells.shape[1] > 2 else None
        del cells
        joined = join_rows([rows, over, self._settled])
        if extra is not None:
            room = np.zeros((len(joined.pos) - len(extra), extra.shape[1]), np.int64)
            extra = np.concatenate([extra, room])
        return joined, extra

    def _live_cells(self) -> Iterator[Int64]:
        """Yield the live cells of the base, int64[.., cellsz] each. Verifies that the base names
        each file once: by its page checksums or, without these, by counting."""
        if self.base is not None:
            self._ask(_whole)
            hidden = self.replaced()
            for cells in self.base.parts():
                yield cells[~np.isin(cells[:, 0], hidden)] if len(hidden) else cells

    def fold(self) -> None:
        """Put settled rows into the overlay, after a new base could not be written."""
        if self.must_merge:
            self.overlay.update((self._key_at(pos), pos) for pos in self._settled.pos.tolist())
            self._settled = NO_ROWS
            self.bulk[:] = [rows for rows in self.bulk if rows is not NO_ROWS]

    def replace(self, base: Base | None) -> None:
        """Use this base, without any changes; close the old one."""
        if base is not self.base:
            self.close()
        self.stale.append(True)
        self.base, self.stale, self.overlay, self.hidden, self._unseen = base, [], {}, set(), []
        self.bulk, self._bulk_keys, self._settled, self._gone_at = [], [], NO_ROWS, {}
        self.gone = None

    def close(self) -> None:
        self.stale.append(True)  # first: another file may get the descriptor
        if self.base is not None:
            self.base.storage.close()


def _cells_of(base: Base, s: UInt64) -> list[tuple[int, int]]:
    """Return S and position of the cells with these hashes."""
    there = base.find_many(s, table.bits_of(s))[0] > 0 if base.finds_many else slice(None)
    cells = list[tuple[int, int]]()
    for stored in s[there].tolist():
        base.vouch(stored & hashing.MASK63)
        probed = base.probe(stored & hashing.MASK63, stored.to_bytes(8, "big"))
        cells += [(stored, int.from_bytes(cell[:8], "big")) for _, cell in probed]
    return cells


def _whole(base: Base) -> None:
    """Raise DerivedDamage if cells are wrong, lost or doubled."""
    base.check()
    if base.proven:
        return
    pointers = np.sort(np.concatenate(list(base.pointers())))
    if len(pointers) != base.live or (pointers[1:] == pointers[:-1]).any():
        raise DerivedDamage(
            "the cells do not name each file once", file=base.storage.name, offset=base.offset,
            expected=base.live, found=len(np.unique(pointers)),
        )  # fmt: skip
    base.proven = True
