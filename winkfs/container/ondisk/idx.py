"""BASE.idx: validates the index on disk, searches it, and writes a new one.

`Base` is a table, on disk or in memory.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np

from winkformats.arrays import Int64, UInt64
from winkformats.disk.paths import open_file
from winkformats.disk.storage import Directory, Lookups, Storage
from winkformats.errors import CorruptError, DerivedDamage, FormatError
from winkformats.hindex import table
from winkformats.hindex.table import IndexRows
from winkformats.kv import pagesums
from winkformats.kv.pagesums import PageSums
from winkformats.kv.superblock import HINDEX, SBSIZE, Superblock, read_superblock
from winkformats.lazy import cached_property
from winkfs.container.ondisk.data import PURPOSE_INDEX, Settings

NEXTFID: Final = "NEXTFID"  # in BASE.idx: the first FILEID not in use when it was written
ALIKE: Final = 64  # cells that a search passes; at this load factor, more indicate equal hashes
BAD: Final = b""  # in place of the key of a damaged entry
MAX_ALIKE_KEYS: Final = 1 << 16  # of names with equal hashes, kept in memory
DAMAGED: Final = "DAMAGED"  # extension: damaged places whose files were left out of the index
PACKED: Final = ("PACKROOT", "PACKTIME", "PACKEND")  # extension: see `winkfs.archive.update.Mark`
PAIRS: Final = struct.Struct(">qQ").iter_unpack  # cells of two words
MAX_COPIED_BYTES: Final = 8 << 20  # of an index that is copied to memory


@dataclass
class Base:
    """A table on disk (or rebuilt in memory), and the part of the data file that it covers.

    covered  bytes: FILESIZE of the data file whose files are all in it
    nextfid  first FILEID unknown to it; 0: not recorded
    live     number of files
    packed   the variables of PACKED, if it has them
    damaged  number of damaged places whose files are not in it
    sums     page checksums, until all are verified; None: all are, or the file has none
    proven   whether all cells are known to be as they were written

    A cell that is found needs no checksum, for the key is compared. The absence of a key is certain
    if the pages that the search passed are right.
    """

    storage: Storage
    shape: table.Shape
    offset: int
    covered: int
    nextfid: int
    live: int
    packed: dict[str, int] = field(default_factory=dict)
    damaged: int = 0
    sums: PageSums | None = None
    proven: bool = True

    def __post_init__(self) -> None:
        self.size = self.shape.htsize * self.shape.width  # bytes of the table
        self._alike: dict[tuple[int, int], dict[bytes, int]] = {}  # by S and slot bits: see `find`
        self._copy: bytes | None = None
        self.finds_many = self.storage.mapped and self.shape.cellsz > 1

    @cached_property
    def looks(self) -> Lookups | None:
        """The mapped file; None if it is not mapped. Raises DerivedDamage."""
        try:
            return Lookups(self.storage, self.offset + self.size) if self.storage.mapped else None
        except ValueError:
            raise self._cut(0) from None

    @classmethod
    def of(
        cls, storage: Storage, shape: table.Shape, live: int, variables: Mapping[str, int]
    ) -> Base:
        """Return a base with the variables of its superblock: DATAEND, NEXTFID and so on."""
        start, nextfid = variables.get("SBSIZE", SBSIZE), variables.get(NEXTFID, 0)
        packed = {name: variables[name] for name in PACKED if name in variables}
        damaged = variables.get(DAMAGED, 0)
        return cls(storage, shape, start, variables["DATAEND"], nextfid, live, packed, damaged)

    def in_memory(self, *, make: bool) -> bytes | None:
        """Return a copy of the file up to the end of the table, or None. `make`: make one if there
        is none, unless the file is large or truncated.

        Look-ups in a copy need no system call for the size of the file.
        """
        if make and self._copy is None and self.offset + self.size <= MAX_COPIED_BYTES:
            with contextlib.suppress(DerivedDamage, OSError):
                self._copy = self.read(0, self.offset + self.size)
        return self._copy

    def read(self, at: int, length: int) -> bytes:
        """Return bytes of the file. Raises DerivedDamage if it has been truncated."""
        data = self.storage.read(at, length)
        if len(data) < length:
            raise self._cut(at + len(data))
        return data

    def _cut(self, offset: int) -> DerivedDamage:
        return DerivedDamage("the index is cut short", file=self.storage.name, offset=offset)

    # --- searches; all raise DerivedDamage ---

    def probe(self, bits: int, stored: bytes | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield cells, see `table.probe`. A caller that finds nothing must call `vouch`."""
        return table.probe(self.shape, self.read, self.offset, bits, stored)

    def vouch(self, bits: int) -> None:
        """Verify the pages of the cells that a search passes, up to the free one."""
        if self.sums is None:
            return
        shape, home = self.shape, bits % self.shape.htsize
        small = len(self.sums.good) <= pagesums.SMALL_FILE
        end = -1 if small else table.end_of_run(shape, self.read, self.offset, home)
        if not home <= end <= home + ALIKE:  # many cells, or the search wraps around
            self.check()
            return
        start, width = self.offset + home * shape.width, shape.width
        self.sums.check(start, start + (end + 1 - home) * width)
        self._drop_sums()

    def find(
        self,
        key: bytes,
        s: int,
        bits: int,
        key_at: Callable[[int], bytes],
        hidden: Container[int],
        is_bad: Callable[[int], bool] = lambda pos: False,
    ) -> int:
        """Return the position of a key; 0: there is none.

        key_at  returns the key at a position
        hidden  positions to ignore
        is_bad  returns whether the entry at a position is damaged; if no entry has the key, a
                damaged one is returned, as the key may be its
        cost    for the first of many names with one hash, which an attacker can make: the keys of
                all of them are read, and kept, so that they are not read for each
        """
        known = self._alike.get((s, bits)) if self._alike else None
        shape = self.shape
        if known is None and shape.cellsz == 2:  # the first cells mostly suffice
            home = bits % shape.htsize
            near = min(table.PROBED, shape.htsize - home)
            others: list[int] = []
            for pos, stored in PAIRS(self.read(self.offset + 16 * home, 16 * near)):
                if pos == shape.htfree:
                    if self.sums is not None:
                        self.vouch(bits)
                    return next(filter(is_bad, others), 0) if others else 0
                if stored == s and pos != shape.htdel and pos not in hidden:
                    if key_at(pos) == key:
                        return int(pos)
                    others.append(pos)
        return self._find_all(key, s, bits, key_at, hidden, is_bad)

    def _find_all(
        self,
        key: bytes,
        s: int,
        bits: int,
        key_at: Callable[[int], bytes],
        hidden: Container[int],
        is_bad: Callable[[int], bool],
    ) -> int:
        """Search all cells, see `find`."""
        known = self._alike.get((s, bits))
        if known is None:
            cells = self.probe(bits, s.to_bytes(8, "big"))
            positions = (int.from_bytes(cell[:8], "big", signed=True) for _, cell in cells)
            first = list(islice(positions, ALIKE))
            others = [pos for pos in first if pos not in hidden]
            for pos in others:
                if key_at(pos) == key:
                    return pos
            more = list(positions)
            if not more:
                self.vouch(bits)
                return next(filter(is_bad, others), 0)
            self.check()
            if sum(map(len, self._alike.values())) > MAX_ALIKE_KEYS:
                self._alike.clear()
            known = self._alike[s, bits] = {}
            for pos in (*first, *more):
                known.setdefault(BAD if is_bad(pos) else key_at(pos), pos)
        pos = known.get(key) or known.get(BAD, 0)
        return 0 if pos in hidden else pos

    def find_many(self, s: UInt64, bits: UInt64, *, sure: bool = False) -> tuple[Int64, Int64]:
        """Search many keys, see `table.find_many`. Keys that are not found do not exist.

        Needs `finds_many`.
        sure  verify found cells, too, so that only keys with equal hashes must be compared
        """
        assert self.looks is not None
        try:
            self.looks.check(self.offset + self.size)
        except CorruptError as error:
            raise self._cut(error.offset) from None
        width = self.shape.width
        if self.looks.advise():
            starts = self.offset + width * (bits % np.uint64(self.shape.htsize)).astype(np.int64)
            self.looks.fetch(starts, starts + width)
        cells = table.cells_of(self.shape, self.looks.view, self.offset)
        pointers, slots = table.find_many(self.shape, cells, s, bits)
        if self.sums is not None:
            rows = slice(None) if sure else np.flatnonzero(slots < 0)
            home = (bits[rows] % np.uint64(self.shape.htsize)).astype(np.int64)
            end = np.where(slots < 0, ~slots, slots)[rows]
            if ((end < home) | (end == self.shape.htsize)).any():
                self.check()
            else:
                self.sums.check_spans(self.offset + home * width, self.offset + (end + 1) * width)
                self._drop_sums()
        return pointers, slots

    def check(self) -> None:
        """Verify all pages."""
        if self.sums is not None:
            self.sums.check_all()
            self._drop_sums()

    def _drop_sums(self) -> None:
        if self.sums is not None and self.sums.whole:
            self.sums, self.proven = None, True

    # --- all cells, unverified ---

    def used(self, start: int, stop: int) -> tuple[table.Cells, int]:
        """Return the used cells of a range, see `table.used`. Raises DerivedDamage."""
        width = self.shape.width
        data = self.read(self.offset + start * width, (stop - start) * width)
        return table.used(self.shape, np.frombuffer(data, f"V{width}"), 0, stop - start)

    def pointers(self) -> Iterator[Int64]:
        """Yield the positions in all used cells, int64[..] each."""
        return (part[:, 0] for part in self.parts())

    def parts(self) -> Iterator[Int64]:
        """Yield all used cells, int64[.., cellsz] each."""
        for at in range(0, self.shape.htsize, table.BUCKET):
            stop = min(at + table.BUCKET, self.shape.htsize)
            yield self.used(at, stop)[0]


def open_base(
    directory: Directory,
    name: str,
    settings: Settings,
    block: Mapping[str, int],
    end: int,
    note: Callable[[DerivedDamage], None] = lambda error: None,
    *,
    mapped: bool = True,
) -> Base | None:
    """Open BASE.idx, if it is valid for a data file with superblock `block` and FILESIZE `end`.

    name    BASE without its directory
    note    called with damage that the checksums show
    mapped  see `Storage.mapped`
    ->      None if it is missing, short, foreign, damaged, or newer than the data file
    cost    two reads; in classic layout, all cells are read, as only their count shows a stale file
    """
    try:
        storage = directory.open(name + ".idx")
    except OSError:
        return None
    storage.mapped = mapped
    try:
        base = _believe(storage, settings, block, end)
    except DerivedDamage as error:
        note(error)
        base = None
    except (FormatError, OSError, KeyError, ValueError):
        base = None
    if base is None:
        storage.close()
    return base


def covered_by(path: str, settings: Settings) -> int:
    """Return DATAEND of the BASE.idx of this container, 0 if it cannot be used."""
    with contextlib.suppress(FormatError, OSError), open_file(path) as storage:
        mine = read_superblock(storage)
        if settings.contid and settings.made(mine) and "SBCKSUM" in mine:
            return mine.get("DATAEND", 0)
    return 0


def named_positions(path: str, settings: Settings) -> list[int]:
    """Return the positions in the cells of a BASE.idx, ascending, even if it is not valid."""
    with contextlib.suppress(FormatError, OSError, KeyError), open_file(path) as storage:
        storage.mapped = False
        mine = read_superblock(storage)
        shape = table.Shape.of(mine)
        size = storage.size() - mine["SBSIZE"]
        if 1 <= shape.cellsz <= 1024 and 0 < shape.htsize * shape.width <= size:
            base = Base(storage, shape, mine["SBSIZE"], 0, 0, 0)
            marks = (settings.htfree, settings.htdel)
            return sorted({pos for part in base.pointers() for pos in part.tolist()} - set(marks))
    return []


def _believe(
    storage: Storage, settings: Settings, block: Mapping[str, int], end: int
) -> Base | None:
    mine = read_superblock(storage)
    mine.check_known(storage.name)
    shape = table.Shape.of(mine)
    if shape.htsize < 1 or not 1 <= shape.cellsz <= 1024:
        return None
    size = mine["SBSIZE"] + shape.htsize * shape.width
    same = (
        mine["FORMAT"] == HINDEX
        and mine.purpose == PURPOSE_INDEX
        and settings.made(mine)
        and mine.get("FILESIZE") == size <= storage.size()
        and mine.get("HTALGO", 1) == settings.htalgo
        and (shape.cellsz, shape.htfree, shape.htdel)
        == (settings.cellsz, settings.htfree, settings.htdel)
    )
    if not same:
        return None
    base = Base.of(storage, shape, mine["AENTRIES"], {"DATAEND": end, **mine})
    if not 0 <= base.covered <= end or not 0 <= base.live <= shape.htsize:
        return None
    if "DATAEND" not in mine and not _classic_is_current(base, mine, block):
        return None
    base.sums, base.proven = PageSums.load(storage, mine), False
    return base


def _classic_is_current(base: Base, mine: Superblock, block: Mapping[str, int]) -> bool:
    """Return whether a classic index is current: a clean close, and counters that fit the cells."""
    if mine.get("SYNCTIME") != block.get("SYNCTIME") or block.get("SYNCTIME") is None:
        return False
    if block.get("SYNCSIZE", block["FILESIZE"]) != block["FILESIZE"]:
        return False
    taken = live = 0
    for at in range(0, base.shape.htsize, table.BUCKET):
        words, count = base.used(at, min(at + table.BUCKET, base.shape.htsize))
        inside = (words[:, 0] >= block["SBSIZE"]) & (words[:, 0] < block["FILESIZE"])
        if not inside.all():
            return False
        taken, live = taken + count, live + len(words)
    return (mine.get("ENTRIES"), mine.get("AENTRIES")) == (taken, live)


def write_base(
    storage: Storage,
    settings: Settings,
    rows: IndexRows,
    extra: Int64 | None,
    variables: dict[str, int],
    *,
    sums: bool = True,
) -> Base:
    """Write a whole table into an empty storage, without a sync.

    extra      int64[n, cellsz - 2]: further words of each cell, or None
    variables  DATAEND, NEXTFID, SYNCTIME, PACKED as they apply
    sums       write page checksums, too, but not in classic layout
    """
    n = len(rows.pos)
    block = Superblock.new(HINDEX, PURPOSE_INDEX, {
        "FILESIZE": 0, "SYNCSIZE": 0, "SYNCTIME": variables.get("SYNCTIME", int(time.time())),
        "HTSIZE": 0, "HTALGO": settings.htalgo, "CELLSZ": settings.cellsz,
        "HTFREE": settings.htfree, "HTDEL": settings.htdel, "ENTRIES": n, "AENTRIES": n,
    })  # fmt: skip
    if not settings.classic:
        covered: dict[str, int] = {
            name: variables[name] for name in ("DATAEND", NEXTFID) if name in variables
        }
        block.update({"SBCKSUM": 0, **covered, **settings.ids})
        block.update({name: variables[name] for name in (*PACKED, DAMAGED) if name in variables})
        block.update({pagesums.VARIABLE: 0} if sums else {})
        block.note_writer()

    def words(chosen: table.Indices) -> Int64:
        cells = np.zeros((len(chosen), settings.cellsz), np.int64)
        cells[:, 0] = rows.pos[chosen]
        if settings.cellsz > 1:
            cells[:, 1] = rows.s[chosen].view(np.int64)
        if extra is not None:
            cells[:, 2:] = extra[chosen]
        return cells

    shape = table.write(storage, block, rows.s if rows.bits is None else rows.bits, words)
    return Base.of(storage, shape, n, variables)
