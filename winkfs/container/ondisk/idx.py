"""BASE.idx: when the index on disk is believed, how it is searched, and how a new one is written.

`Base` is a table, on disk or in memory.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
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
from winkfs.container.ondisk.data import PURPOSE_INDEX, Settings

NEXTFID: Final = "NEXTFID"  # in BASE.idx: the first FILEID not in use when it was written
ALIKE: Final = 64  # cells that a search passes; more are no accident at this load factor
BAD: Final = b""  # in the place of the key of an entry that is damaged
MOST: Final = 1 << 16  # keys of names with equal hashes that are kept
DAMAGED: Final = "DAMAGED"  # extension: damaged places whose files were left out of the index
PACKED: Final = ("PACKROOT", "PACKTIME", "PACKEND")  # extension: see `winkfs.archive.update.Mark`
PAIRS: Final = struct.Struct(">qQ").iter_unpack  # cells of two words
SHORT: Final = 8 << 20  # bytes of an index that is copied, at most


@dataclass
class Base:
    """A table on disk (or rebuilt in memory), and what it covers.

    covered  bytes: FILESIZE of the data file whose files are all in it
    nextfid  first FILEID unknown to it; 0: not recorded
    live     number of files
    packed   the variables of PACKED, if it has them
    damaged  damaged places whose files are not in it
    sums     of its pages, as long as not all were found right; None: of a file that has none, too
    proven   whether all cells are known to be as they were written

    What is found needs no sums, for its key is compared. What is not found is believed where the
    pages that the search passed are right.
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
        """The mapped file; None where it is not mapped. Raises DerivedDamage."""
        try:
            return Lookups(self.storage, self.offset + self.size) if self.storage.mapped else None
        except ValueError:
            raise self._cut(0) from None

    @classmethod
    def of(
        cls, storage: Storage, shape: table.Shape, live: int, variables: Mapping[str, int]
    ) -> Base:
        """Return a base of what its superblock has beside the shape: DATAEND, NEXTFID and so on."""
        start, nextfid = variables.get("SBSIZE", SBSIZE), variables.get(NEXTFID, 0)
        packed = {name: variables[name] for name in PACKED if name in variables}
        damaged = variables.get(DAMAGED, 0)
        return cls(storage, shape, start, variables["DATAEND"], nextfid, live, packed, damaged)

    def in_memory(self, *, make: bool) -> bytes | None:
        """All of the file up to the end of the table, kept; None of one that is long or cut short,
        or where no copy is there and none is to be made.

        Frequent look-ups in a short one need no system call for its size each time.
        """
        if make and self._copy is None and self.offset + self.size <= SHORT:
            with contextlib.suppress(DerivedDamage, OSError):
                self._copy = self.read(0, self.offset + self.size)
        return self._copy

    def read(self, at: int, length: int) -> bytes:
        """Bytes of the file. Raises DerivedDamage where it does not have them any more."""
        data = self.storage.read(at, length)
        if len(data) < length:
            raise self._cut(at + len(data))
        return data

    def _cut(self, offset: int) -> DerivedDamage:
        return DerivedDamage("the index is cut short", file=self.storage.name, offset=offset)

    # --- searches; all raise DerivedDamage ---

    def probe(self, bits: int, stored: bytes | None = None) -> Iterator[tuple[int, bytes]]:
        """See `table.probe`. Who finds nothing asks `vouch`."""
        return table.probe(self.shape, self.read, self.offset, bits, stored)

    def vouch(self, bits: int) -> None:
        """Check the cells that a search passes, up to the free one."""
        if self.sums is None:
            return
        shape, home = self.shape, bits % self.shape.htsize
        small = len(self.sums.good) <= pagesums.SMALL_FILE
        end = -1 if small else table.end_of_run(shape, self.read, self.offset, home)
        if not home <= end <= home + ALIKE:  # it is long, or goes on with the first cell
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
        """The position of a key; 0: none has it.

        key_at  gives the key at a position
        hidden  positions that do not count
        is_bad  whether the entry there is damaged: where none has the key, it may be that of one
        cost    of the first of many names with one hash: the keys of all of them. They can be made
                so; who looks for each would else read the keys of all others.
        """
        known = self._alike.get((s, bits)) if self._alike else None
        shape = self.shape
        if known is None and shape.cellsz == 2:  # the first cells mostly say it
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
        """`find` in all cells."""
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
            if sum(map(len, self._alike.values())) > MOST:
                self._alike.clear()
            known = self._alike[s, bits] = {}
            for pos in (*first, *more):
                known.setdefault(BAD if is_bad(pos) else key_at(pos), pos)
        pos = known.get(key) or known.get(BAD, 0)
        return 0 if pos in hidden else pos

    def find_many(self, s: UInt64, bits: UInt64, *, sure: bool = False) -> tuple[Int64, Int64]:
        """See `table.find_many`. What it did not find is not there. Needs `finds_many`.

        sure  what it found is right, too, except for two keys with one hash: not to be compared
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
        """Check all cells."""
        if self.sums is not None:
            self.sums.check_all()
            self._drop_sums()

    def _drop_sums(self) -> None:
        if self.sums is not None and self.sums.whole:
            self.sums, self.proven = None, True

    # --- all cells, unchecked ---

    def used(self, start: int, stop: int) -> tuple[table.Cells, int]:
        """See `table.used`. Raises DerivedDamage."""
        width = self.shape.width
        data = self.read(self.offset + start * width, (stop - start) * width)
        return table.used(self.shape, np.frombuffer(data, f"V{width}"), 0, stop - start)

    def pointers(self) -> Iterator[Int64]:
        """The positions in all used cells, in pieces."""
        return (part[:, 0] for part in self.parts())

    def parts(self) -> Iterator[Int64]:
        """All used cells in pieces, int64[.., cellsz]."""
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
    """BASE.idx, if it can be believed for a data file with superblock `block` and FILESIZE `end`.

    name    BASE without its directory
    note    called with damage that the checksums show
    mapped  see `Storage.mapped`
    ->      None where it is missing, short, foreign, damaged, or newer than the data file
    cost    two reads; a classic one is counted through, for nothing else tells a stale one
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
    """DATAEND of a BASE.idx of this container, 0 where there is none to go by."""
    with contextlib.suppress(FormatError, OSError), open_file(path) as storage:
        mine = read_superblock(storage)
        if settings.contid and settings.made(mine) and "SBCKSUM" in mine:
            return mine.get("DATAEND", 0)
    return 0


def named_positions(path: str, settings: Settings) -> list[int]:
    """What the cells of a BASE.idx point to, ascending, whether it is to be believed or not."""
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
    """The classic rule: a clean close, and counters that fit the cells."""
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
    """Write a whole table into an empty storage, not synced.

    extra      int64[n, cellsz - 2]: the user's words of each cell, or None
    variables  DATAEND, NEXTFID, SYNCTIME, PACKED as they apply
    sums       write checksums of its pages, too, but not in classic layout
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
