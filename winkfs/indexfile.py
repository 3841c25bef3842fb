"""BASE.idx on disk: when it is believed, and how a new one is written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from winkformats import table
from winkformats.disk.directory import open_file
from winkformats.disk.storage import Storage
from winkformats.errors import FormatError
from winkformats.superblock import HINDEX, SBSIZE, Superblock, read_superblock
from winkfs.rows import Int64, Rows
from winkfs.settings import PURPOSE_INDEX, Settings

NEXTFID: Final = "NEXTFID"  # in BASE.idx: the first FILEID not in use when it was written
PACKED: Final = ("PACKROOT", "PACKTIME", "PACKEND")  # extension: see `winkfs.update.Mark`


@dataclass
class Base:
    """A table on disk (or rebuilt in memory), and what it covers.

    covered  bytes: FILESIZE of the data file whose files are all in it
    nextfid  first FILEID unknown to it; 0: not recorded
    live     number of files
    packed   the variables of PACKED, if it has them
    """

    storage: Storage
    shape: table.Shape
    offset: int
    covered: int
    nextfid: int
    live: int
    packed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.view = self.storage.view(self.offset + self.shape.htsize * self.shape.width)
        self.cells = table.cells_of(self.shape, self.view, self.offset)

    @property
    def size(self) -> int:
        return self.shape.htsize * self.shape.width

    def words(self) -> Int64:
        """All used cells, int64[live, cellsz]."""
        return np.concatenate(list(self._parts()))

    def pointers(self) -> Iterator[Int64]:
        """The positions in all used cells, in pieces."""
        return (part[:, 0] for part in self._parts())

    def _parts(self) -> Iterator[Int64]:
        for at in range(0, self.shape.htsize, table.BUCKET):
            stop = min(at + table.BUCKET, self.shape.htsize)
            yield table.used(self.shape, self.cells, at, stop)[0]


def open_base(path: str, settings: Settings, block: Mapping[str, int], end: int) -> Base | None:
    """BASE.idx, if it can be believed for a data file with superblock `block` and FILESIZE `end`.

    ->      None where it is missing, short, foreign, damaged, or newer than the data file
    cost    one read; a classic one is counted through, for nothing else tells a stale one
    """
    try:
        storage = open_file(path)
    except OSError:
        return None
    try:
        base = _believe(storage, settings, block, end)
    except (FormatError, OSError, KeyError, ValueError):
        base = None
    if base is None:
        storage.close()
    return base


def covered_by(path: str, settings: Settings) -> int:
    """DATAEND of a BASE.idx of this container, 0 where there is none to go by."""
    with contextlib.suppress(FormatError, OSError), open_file(path) as storage:
        mine = read_superblock(storage)
        if settings.contid and mine.get("CONTID") == settings.contid and "SBCKSUM" in mine:
            return mine.get("DATAEND", 0)
    return 0


def named_positions(path: str, settings: Settings) -> list[int]:
    """What the cells of a BASE.idx point to, ascending, whether it is to be believed or not."""
    with contextlib.suppress(FormatError, OSError, KeyError), open_file(path) as storage:
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
        and mine.get("CONTID", 0) == settings.contid
        and mine.get("FILESIZE") == size <= storage.size()
        and mine.get("HTALGO", 1) == settings.htalgo
        and (shape.cellsz, shape.htfree, shape.htdel)
        == (settings.cellsz, settings.htfree, settings.htdel)
    )
    if not same:
        return None
    covered = mine.get("DATAEND", end)
    base = Base(storage, shape, mine["SBSIZE"], covered, mine.get(NEXTFID, 0), mine["AENTRIES"])
    if not 0 <= covered <= end:
        return None
    base.packed = {name: mine[name] for name in PACKED if name in mine}
    if "DATAEND" not in mine and not _classic_is_current(base, mine, block):
        return None
    return base


def _classic_is_current(base: Base, mine: Superblock, block: Mapping[str, int]) -> bool:
    """The classic rule: a clean close, and counters that fit the cells."""
    if mine.get("SYNCTIME") != block.get("SYNCTIME") or block.get("SYNCTIME") is None:
        return False
    if block.get("SYNCSIZE", block["FILESIZE"]) != block["FILESIZE"]:
        return False
    taken = live = 0
    for at in range(0, base.shape.htsize, table.BUCKET):
        words, count = table.used(base.shape, base.cells, at, at + table.BUCKET)
        inside = (words[:, 0] >= block["SBSIZE"]) & (words[:, 0] < block["FILESIZE"])
        if not inside.all():
            return False
        taken, live = taken + count, live + len(words)
    return (mine.get("ENTRIES"), mine.get("AENTRIES")) == (taken, live)


def write_base(
    storage: Storage, settings: Settings, rows: Rows, extra: Int64 | None, variables: dict[str, int]
) -> Base:
    """Write a whole table into an empty storage, not synced.

    extra      int64[n, cellsz - 2]: the user's words of each cell, or None
    variables  DATAEND, NEXTFID, SYNCTIME, PACKED as they apply
    """
    n = len(rows.pos)
    shape = table.Shape(table.size_for(n), settings.cellsz, settings.htfree, settings.htdel)
    block = Superblock.new(HINDEX, PURPOSE_INDEX, {})
    block["FILESIZE"] = block["SYNCSIZE"] = SBSIZE + shape.htsize * shape.width
    block["SYNCTIME"] = variables.get("SYNCTIME", int(time.time()))
    block.update({"HTSIZE": shape.htsize, "HTALGO": settings.htalgo, "CELLSZ": shape.cellsz})
    block.update({"HTFREE": shape.htfree, "HTDEL": shape.htdel, "ENTRIES": n, "AENTRIES": n})
    if not settings.classic:
        block.update({"SBCKSUM": 0, "DATAEND": variables["DATAEND"]})
        block.update({NEXTFID: variables["NEXTFID"]} if "NEXTFID" in variables else {})
        block.update({"CONTID": settings.contid} if settings.contid else {})
        block.update({name: variables[name] for name in PACKED if name in variables})
    storage.write(0, [block.encode()])

    def words(chosen: table.Indices) -> Int64:
        cells = np.zeros((len(chosen), shape.cellsz), np.int64)
        cells[:, 0] = rows.pos[chosen]
        if shape.cellsz > 1:
            cells[:, 1] = rows.s[chosen].view(np.int64)
        if extra is not None:
            cells[:, 2:] = extra[chosen]
        return cells

    bits = rows.s if rows.bits is None else rows.bits
    table.build(storage, SBSIZE, shape, bits, words)
    covered = variables.get("DATAEND", 0)
    return Base(storage, shape, SBSIZE, covered, variables.get("NEXTFID", 0), n)
