"""The checks of verify, in little memory and one pass over the data file.

- Extents: inodes must point to data entries of their own. Mostly a data entry is just before its
  inode, in the same batch, and is checked there. The pointers of all other inodes are kept until
  all entries are known.
- Index and catalog: they must have exactly the live files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from winkformats.arrays import Bools, Int64, among
from winkformats.errors import CorruptError
from winkformats.hindex import table
from winkformats.hindex.table import IndexRows
from winkformats.kv.scan import Batch
from winkfs.container.namesorter import ClashFinder
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.ondisk.chain import whole
from winkfs.container.ondisk.idx import Base
from winkfs.container.ondisk.inode import FRAME, Inode, attributes
from winkfs.container.ondisk.run import Run
from winkfs.container.select import Query, rows_now
from winkfs.container.store import Store
from winkfs.container.survey import InodeRows, fileids
from winkfs.container.table import NOTHING, FileTable
from winkfs.names import name_of, to_str

FAULTS: Final = (
    "extent points to no data entry",
    "extent is longer than its entry",
    "data of a live file is marked deleted",
    "extent points to data of another file",
)


def described(store: Store, pos: int) -> str:
    """Return an inode for a message, with the name of its file. Raises OSError."""
    name = to_str(name_of(store.key_at(pos)))
    return f"{store.kv.storage.name}: inode at byte {pos} ({name})"


class Extents:
    """Checks the inodes of a whole data file, batch by batch, and reports wrong extents.

    problem  called with each wrong inode or extent, in a line
    frames   whether to decompress the content of files that are not deleted
    marked   positions of entries of live files that are marked deleted
    doubtful positions of inodes that build on others, or have a wrong extent
    cost     memory: 8 bytes a data entry, and 32 an extent of an inode with data in another batch
    """

    def __init__(
        self, store: Store, problem: Callable[[str], None], *, frames: bool = True
    ) -> None:
        self._store, self._report, self._frames = store, problem, frames
        self._name = store.kv.storage.name
        self._places = table.GrowingColumns(np.int64)  # positions of data entries
        self._left: list[Int64] = []  # claims of inodes, for each batch
        self.marked: list[int] = []
        self.doubtful: list[int] = []

    def take(self, rows: InodeRows) -> None:
        """Check the extents within a batch; keep the others for `check`."""
        batch, claims, chosen = rows.batch, self._claims(rows), rows.others
        self._places.add(batch.pos[chosen])
        self.doubtful += rows.pos[rows.fields[:, 1] != 0].tolist()
        missing, short, dead, alien = _faults(batch, chosen, claims)
        deleted = rows.deleted[np.searchsorted(rows.pos, claims[:, 0])]  # also if it is live
        doubt = (missing | short | alien | (dead & ~deleted)) & (claims[:, 1] != 0)
        if doubt.any():
            inodes = claims[:, 0]
            self._left.append(claims[np.isin(inodes, inodes[doubt]) & (claims[:, 1] != 0)])

    def check(self, live: Int64, *, beyond: bool = False) -> None:
        """Check that every extent of a live file points to an entry of its own that is long enough.

        live    int64[n], ascending: positions of the inodes of the live files
        beyond  not all entries were taken: others are read
        """
        (places,), kv = self._places.take(), self._store.kv
        for left in self._left:
            claims = left[among(left[:, 0], live)]
            pointers = np.unique(claims[:, 1])
            there = among(pointers, places)
            if beyond:
                there[~there] = [self._is_entry(at) for at in pointers[~there].tolist()]
            data = memoryview(kv.view(kv.end - 1))
            batch = Batch(kv.storage, kv.layout, 0, data, pointers[there])
            self._report_faults(claims, _faults(batch, np.arange(len(batch)), claims))

    def _is_entry(self, at: int) -> bool:
        """Return whether there is an intact entry at a position."""
        try:
            self._store.entry_at(at)
        except CorruptError:
            return False
        return True

    def _report_faults(self, claims: Int64, faults: Bools) -> None:
        missing, short, dead, alien = faults
        self.marked += claims[dead & ~(missing | short | alien), 1].tolist()
        self.doubtful += claims[faults.any(0), 0].tolist()
        for what, wrong in zip(FAULTS, faults, strict=True):
            for inode, pointer, *_ in claims[wrong].tolist():
                self._report(f"{described(self._store, inode)}: {what} (at {pointer})")

    # --- the claims of inodes ---

    def _claims(self, rows: InodeRows) -> Int64:
        """Return what inodes point to, int64[n, 4]: position of the inode, kv_pointer (0: a hole),
        bytes of the value that it needs, FILEID."""
        row, pairs = rows.pairs
        odd = (rows.size > 0) & ~rows.sound
        parts = [(row[~odd[row]], pairs[~odd[row]])]
        for one in np.flatnonzero(odd).tolist():
            found = self._decoded(rows, one)
            parts.append((np.full(len(found), one), found))
        row, pairs = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        if (rows.fields[:, 6] > 1).any():  # in the order in which they are reported
            order = np.lexsort((pairs[:, 2] < 0, row, rows.fields[row, 6] != 1))
            row, pairs = row[order], pairs[order]
        pointer, skip, size = pairs.T
        for i in np.flatnonzero((size < 0) & ~rows.deleted[row]).tolist():
            self._check_attrs(int(rows.pos[row[i]]), int(pointer[i]), -int(size[i]))
        need = np.where(size < 0, -size, skip + size)
        if self._store.settings.compressed:
            framed = (skip >= FRAME) & (size >= 0)
            if self._frames:
                self._check_frames(rows, row[framed], pointer[framed], need[framed] - FRAME)
            need[framed] = 1
        return np.stack([rows.pos[row], pointer, need, rows.fileid[row]], 1)

    def _decoded(self, rows: InodeRows, row: int) -> Int64:
        """Return the pairs of an unusual inode, int64[m, 3]; a damaged one is reported, and has
        none."""
        pos = int(rows.pos[row])
        try:
            inode = Inode.decode(rows.value(row), rows.form, file=self._name, offset=pos)
            if not rows.deleted[row]:  # a deleted one may still be a part of others
                inode = whole(inode, pos, self._store.entry_at, rows.form, self._name)
        except CorruptError as error:
            self._report(str(error))
            return np.empty((0, 3), np.int64)
        pairs = np.array(inode.triples, np.int64).reshape(-1, 3)
        return pairs[pairs[:, 0] > 0]

    def _check_attrs(self, pos: int, at: int, size: int) -> None:
        store, inode = self._store, Inode(0, 0, 0, 0, attrs=(at, size))
        try:
            attributes(inode, store.owner, store.entry_at, self._name)
        except CorruptError as error:
            self._report(f"{described(self._store, pos)}: {error}")

    def _check_frames(self, rows: InodeRows, row: Int64, pointers: Int64, needs: Int64) -> None:
        """Check that frames of live inodes have at least the needed bytes in them, int64[m] all.

        cost  decompresses each frame once for each inode
        """
        wanted: dict[tuple[int, int], int] = {}  # the row of an inode and a pointer -> bytes
        for i, pointer, need in zip(row.tolist(), pointers.tolist(), needs.tolist(), strict=True):
            if not rows.deleted[i]:
                wanted[i, pointer] = max(need, wanted.get((i, pointer), need))
        batch = rows.batch
        for (i, pointer), need in sorted(wanted.items()):
            at = int(np.searchsorted(batch.pos, pointer))
            near = at < len(batch) and batch.pos[at] == pointer
            with contextlib.suppress(CorruptError):  # reported as an entry that is missing
                entry = batch.entry(at) if near else self._store.entry_at(pointer)
                self._check_frame(entry.value, int(rows.pos[i]), pointer, need)

    def _check_frame(self, value: bytes, pos: int, pointer: int, need: int) -> None:
        try:
            found = len(self._store.frames.content(value, pointer))
            if found < need:
                raise CorruptError("content of a frame", file=self._name, offset=pointer,
                                   expected=need, found=found)  # fmt: skip
        except CorruptError as error:
            self._report(f"{described(self._store, pos)}: {error}")


def _faults(batch: Batch, chosen: Int64, claims: Int64) -> Bools:
    """Return which FAULTS each claim has, bool[4, n].

    chosen  indices of the data entries of the batch
    """
    found = np.zeros((len(FAULTS), len(claims)), bool)
    pos = batch.pos[chosen]
    there = among(claims[:, 1], pos)
    entry = chosen[np.searchsorted(pos, claims[there, 1])]
    found[0] = ~there
    found[1:, there] = (
        batch.value_len[entry] < claims[there, 2],
        batch.flags[entry] == 1,
        fileids(batch, entry) != claims[there, 3],
    )
    return found


def lost_rows(base: Base, rows: IndexRows) -> list[int]:
    """Return the indices of the files that a look-up does not find. Needs CELLSZ >= 2.

    cost    one look-up a file, in batches
    """
    lost = []
    alike: dict[int, set[int]] = {}  # where cells with one S point: names can be made to share it
    for at in range(0, len(rows.pos), table.BUCKET):
        some = rows.take(slice(at, at + table.BUCKET))
        bits = some.slot_bits()
        pos, _ = base.find_many(some.s, bits)
        for i in np.flatnonzero(pos != some.pos).tolist():
            s = int(some.s[i])
            if s not in alike:
                cells = base.probe(int(bits[i]), s.to_bytes(8, "big"))
                alike[s] = {int.from_bytes(cell[:8], "big", signed=True) for _, cell in cells}
            if int(some.pos[i]) not in alike[s]:
                lost.append(at + i)
    return lost


def count_used(base: Base) -> int:
    """Return the number of cells that point to a file."""
    return sum(len(part) for part in base.pointers())


def same_files(base: Base, pos: Int64) -> bool:
    """Return whether the cells point to these positions, once each."""
    return np.array_equal(np.sort(np.concatenate(list(base.pointers()))), np.sort(pos))


def same_rows(store: Store, catalog: Catalog, true: Iterator[FileTable]) -> bool:
    """Return whether a catalog, with the changes since it was written, has exactly these rows.

    true    the rows of all live files, in byte order of their names
    raises  CorruptError
    cost    reads the catalog
    """
    runs, query = catalog.runs, Query(columns=tuple(store.schema))
    alone = catalog.covered == store.kv.end and len(runs) == 1
    if not (alone or all(map(_ascends, runs))):  # one alone has to be equal to what ascends
        return False
    known, true = rows_now(store, catalog, query), filter(len, true)
    finder, one, other = ClashFinder(), NOTHING, NOTHING
    while True:
        one = one if len(one) else next(known, NOTHING)
        other = other if len(other) else next(true, NOTHING)
        count = min(len(one), len(other))
        if not count:
            break
        left, right = one.part(0, count), other.part(0, count)
        same = (left.column == right.column).all() and np.array_equal(left.numbers, right.numbers)
        if not same or left.typed(store.schema) != right.typed(store.schema):
            return False
        finder.add(left.column, left.directories)
        one, other = one.part(count), other.part(count)
    if len(one) or len(other):
        return False
    if not alone:
        return True  # clashes are those of another moment
    return catalog.clashes == len(finder.found)


def _ascends(run: Run) -> bool:
    last = b""
    for rows in run.rows():
        names = rows.column
        if not (last < rows.name(0) and (names[:-1] < names[1:]).all()):
            return False
        last = rows.last
    return True
