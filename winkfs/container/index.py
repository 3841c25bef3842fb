"""Index: from the key of an inode to its position.

    base      BASE.idx; never changed on disk, only replaced by rename
    overlay   what changed since: key -> position, 0 for a name that is gone
    bulk      (S, position) columns of files put in bulk, not yet looked at for duplicate names.
              While it is not empty, base and overlay may hold what is superseded

A position that a later one replaces is superseded: its delflags are set once that is durable. A key
that is found is compared with the entry; where that is damaged, and nothing else has the key, it is
taken for it: a read of it reports the damage. That a key is not there, and what it has of all
files, comes from pages of the base whose checksums are right; where one is wrong, the base is made
anew from the data file, and asked again.

Other threads look at base, overlay, bulk and stale without a lock (`read.Short`). So a key
is in the overlay before what it superseded is gone from there, from bulk or from the drafts; a
position leaves the overlay only behind `stale`.
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
from winkformats.hindex.table import Columns, Rows, hash_rows, join_rows
from winkfs.container.ondisk.data import Settings
from winkfs.container.ondisk.idx import Base
from winkfs.names import name_of

if TYPE_CHECKING:
    from winkfs.container.gone import Gone

P = ParamSpec("P")
T = TypeVar("T")
UNSEEN: Final = -1  # for the position of an inode that was not looked up
MERGE_OVERLAY: Final = 1 << 18  # changes in memory after which the index is written anew
JOINED: Final = 512  # bulk rows that are joined with those that come next
FOLD: Final = 1 << 16  # bulk rows that may go to the overlay; more make a new base
NO_ROWS: Final = Rows(np.empty(0, np.uint64), None, np.empty(0, np.int64))  # keeps `bulk` not empty


class Index:
    """Base, overlay and bulk rows as one map from keys to positions.

    key_at    gives the key of the inode entry at a position; raises CorruptError
    is_bad    whether the entry there is damaged
    distrust  is told that the base is damaged, and has another one adopted, or raises
    gone      positions that a name has that is in no base, for the part where its inode was is cut
              off; None: nothing is
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
        self._unseen: list[bytes] = []  # keys of the overlay of which these are not known yet
        self.bulk: list[Rows] = []
        self._bulk_keys: list[bytes] | None = []  # of the bulk rows; None: too many to keep
        self.stale: list[bool] = []  # what was made from this index holds it; not empty: replaced
        self._settled = NO_ROWS  # bulk rows without double names, too many to fold
        self.gone: Gone | None = None
        # Is called with each name that comes and goes, but for those put in bulk: see `assign`.
        self.trail: Callable[[bytes, int], None] | None = None

    @property
    def count(self) -> int:
        """Number of files. Needs `settle` first where there are bulk rows."""
        self._see()
        live = sum(map(bool, self.overlay.values())) + len(self._settled.pos)
        return (self.base.live if self.base else 0) - len(self.hidden) + live

    def lookup(self, key: bytes) -> int:
        """Position of the inode with this key, 0 where there is none."""
        found = self.overlay.get(key)
        if found is not None:
            return found
        return self._lookup_base(key)

    def lookup_many(self, keys: list[bytes]) -> list[int]:
        """The same of many keys; the pages of the base that say so are checked."""
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
        """Look up what was assigned before anybody asked what it replaces."""
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
        """Ask the base, which there must be; one that is damaged is replaced, and the other asked.

        args  of the question, behind the base
        """
        while True:
            assert self.base is not None
            try:
                return question(self.base, *args, **kw)
            except DerivedDamage as error:
                if self._distrust is None:
                    raise
                self._distrust(error)

    def recheck(self, key: bytes) -> bool:
        """Look again at the cells of a key whose inode was not what its cell had promised.

        ->  whether they were wrong: `lookup` then has another answer
        """
        base = self.base
        if base is None or key in self.overlay:
            return False
        self._ask(Base.vouch, hashing.hash_key(self.settings.htalgo, key)[1])
        return self.base is not base

    def check(self) -> None:
        """Have all of the base be right."""
        if self.base is not None:
            self._ask(Base.check)

    def adopt(self, base: Base) -> None:
        """Go on with a base that holds what the damaged one should, all else as it is."""
        self.close()
        self._outdate()
        self.base, self._unseen = base, []
        if self.hidden:  # what was marked deleted meanwhile is in no base made anew
            self.hidden &= set(np.concatenate(list(base.pointers())).tolist())
        self.hidden |= {pos for pos in map(self._lookup_base, self.overlay) if pos}

    def candidates(self, keys: Sequence[bytes], *, compared: bool = False) -> Int64:
        """Positions that most likely belong to the keys, int64[n], 0: none. Compare the keys.

        Where a key differs, `lookup` has the answer: two keys then share a 64-bit hash.

        compared  the caller looks at keys and delflags, and asks `lookup` where they are not right;
                  else the cells are checked
        """
        found = self._candidates(keys, sure=not compared)
        if self.overlay:
            get = self.overlay.get
            over = np.fromiter((get(key, -1) for key in keys), np.int64, len(keys))
            found = np.where(over >= 0, over, found)
        return found

    def _candidates(self, keys: Sequence[bytes], *, sure: bool) -> Int64:
        """The same of the base alone. `sure`: see `Base.find_many`."""
        if self.base is None or not self.base.finds_many:
            return np.fromiter(map(self._lookup_base, keys), np.int64, len(keys))
        s, bits = hashing.hash_keys(self.settings.htalgo, keys)
        found, _ = self._ask(Base.find_many, s, bits, sure=sure)
        return found if self.gone is None else np.where(found > 0, found, self.gone.find(s))

    def cells_of(self, s: UInt64) -> tuple[UInt64, Int64]:
        """S and position of all cells of the base with these hashes, each of them given once.

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
        """The key now belongs to `pos`; 0 removes it.

        new  there was no such key
        old  its position as far as that is known; UNSEEN: it is looked up when that matters
        at   of an entry that is replayed: its position
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
        """Files put in bulk; whether their names are double is looked at by `settle`."""
        rows = hash_rows(self.settings.htalgo, keys, pos)
        if self.bulk and len(self.bulk[-1].pos) < JOINED:  # each array has 112 bytes more
            self.bulk[-1] = join_rows([self.bulk[-1], rows])
        else:
            self.bulk.append(rows)
        if self._bulk_keys is not None:
            self._bulk_keys += keys
            if len(self._bulk_keys) > FOLD:
                self._bulk_keys = None

    def settle(self) -> list[int]:
        """Find double names among the bulk rows -> positions of inodes that were superseded."""
        if not self.bulk:
            return []
        parts, keys = self.bulk[:], self._bulk_keys
        self.bulk[:] = [NO_ROWS]  # in one step: it must not be empty yet
        rows = join_rows(parts)
        try:
            return self._settle(rows, keys) if len(rows.pos) else []
        except BaseException:  # damage that was met: the files are still there
            self.bulk[:] = [rows]
            raise

    def _settle(self, rows: Rows, keys: Iterable[bytes] | None) -> list[int]:
        """`keys`: of the rows; None: they are too many for the overlay."""
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
        if fold:  # from memory: the pages may be gone
            assert keys is not None
            self.overlay.update(zip(keys, rows.pos.tolist(), strict=True))
            self.bulk.clear()
        else:
            self._settled = join_rows([self._settled, rows])
        self._bulk_keys = []
        return gone

    def _outdate(self) -> None:
        """What was made from this index answers nothing any more."""
        self.stale.append(True)
        self.stale = []

    def _give_way(self, rows: Rows, *, fold: bool) -> list[int]:
        """Have the rows replace what overlay and base hold under their names -> its positions.

        fold  the caller writes them over it in the overlay
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
        """Changes that the base does not hold."""
        rows = sum(len(rows.pos) for rows in (self._settled, *self.bulk))
        return len(self.overlay) + len(self.hidden) + rows

    def changes(self, covered: int) -> dict[bytes, int] | None:
        """What happened to names since the data file ended at `covered`.

        ->  name -> position of its inode, 0: it is gone; None: the base is newer
        """
        if self.base is None or self.base.covered > covered or self.bulk or self.must_merge:
            return None
        gone_at, items = self._gone_at, self.overlay.items()
        return {
            name_of(key): pos for key, pos in items if (pos or gone_at.get(key, covered)) >= covered
        }

    @property
    def must_merge(self) -> bool:
        """Whether there are settled rows that only a new base can hold."""
        return len(self._settled.pos) > 0

    def replaced(self) -> Int64:
        """Positions in the base that do not count any more, int64[..]."""
        self._see()
        return np.fromiter(self.hidden, np.int64, len(self.hidden))

    def has_since(self, since: int) -> bool:
        """Whether what is put from `since` on is in memory: `positions` need not read the base."""
        return self.base is None or self.base.covered <= since

    def positions(self, since: int = 0) -> Int64:
        """Positions of all inodes from `since` on, ascending: the files in disk order.

        cost    sorts them, n log n; memory: the array
        """
        found = Columns(np.int64)
        for cells in () if self.has_since(since) else self._live_cells():
            found.add(cells[cells[:, 0] >= since, 0])
        found.add(np.array([pos for pos in self.overlay.values() if pos], np.int64))
        found.add(self._settled.pos)
        (positions,) = found.take()
        positions.sort()
        return positions[int(np.searchsorted(positions, since)) :]

    def merged(self) -> tuple[Rows, Int64 | None]:
        """Everything as rows for a new base, and the user's words of its cells."""
        empty = np.empty((0, self.settings.cellsz), np.int64)
        cells = np.concatenate([empty, *self._live_cells()])
        if self.settings.htalgo in hashing.SLOT_FROM_S and self.settings.cellsz > 1:
            rows = Rows(cells[:, 1].copy().view(np.uint64), None, cells[:, 0].copy())
        else:  # the slot does not follow from the cell: ask the keys
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
        """The cells of the base that count, in pieces, int64[.., cellsz]. It is made sure that it
        names each file once: by its sums or, where it has none, by counting."""
        if self.base is not None:
            self._ask(_whole)
            hidden = self.replaced()
            for cells in self.base.parts():
                yield cells[~np.isin(cells[:, 0], hidden)] if len(hidden) else cells

    def fold(self) -> None:
        """Keep settled rows in memory after all, where no new base could be written."""
        if self.must_merge:
            self.overlay.update((self._key_at(pos), pos) for pos in self._settled.pos.tolist())
            self._settled = NO_ROWS
            self.bulk[:] = [rows for rows in self.bulk if rows is not NO_ROWS]

    def replace(self, base: Base | None) -> None:
        """Go on with this base alone; another one is closed."""
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
    """S and position of the cells with these hashes."""
    there = base.find_many(s, table.bits_of(s))[0] > 0 if base.finds_many else slice(None)
    cells = list[tuple[int, int]]()
    for stored in s[there].tolist():
        base.vouch(stored & hashing.MASK63)
        probed = base.probe(stored & hashing.MASK63, stored.to_bytes(8, "big"))
        cells += [(stored, int.from_bytes(cell[:8], "big")) for _, cell in probed]
    return cells


def _whole(base: Base) -> None:
    """Raises DerivedDamage where cells are wrong, lost or doubled."""
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
