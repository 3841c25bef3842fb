"""BASE.cat: the catalog, what is known of all live files, in byte order of their names.

A kvseq of fixed 8-byte keys and 8-byte lengths, KVCKSUM 1, ALIGN 8. Its entries are blocks of rows,
the index of each run of blocks, and the list of the runs.

    key        value
    b/000000   a block: up to BLOCK rows, in byte order of their names
    c/000000   the values of a column of the user of the rows of a block: see `column`
    i/000000   the index of a run, which has the first name of each block: see `run`
    k/000000   the brief index of the first run, if that is large: see `run`
    r/000000   int64[runs, 4]: position, bytes and XXH3-64 of the index of each run, and its rows
    t/000000   int64[10], the last entry of a file of more than LAST_BYTES: see TRAILER

The superblock has CONTID, DATAEND (of the data file whose files these are), RUNS, RUNBYTES and
RUNHASH (position, bytes and XXH3-64 of the list of runs), and the same of the brief index: BRIEF,
BRIEFLEN, BRIEFSUM. Positions are those of the values. So each byte that is used is vouched for from
the superblock on; one that is wrong is DerivedDamage when it is first read. The trailer has what
else only the superblock has, so that of a file that is far the last bytes are enough.

A name may be in several runs: the row in the last of them counts. A row whose KIND has GONE records
that the name was removed. So a few changes are written as a run after the others, and a reader that
has the file open continues with the runs that it knows.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, Self

import numpy as np
import xxhash

from winkformats.arrays import Int64
from winkformats.closing import Closing
from winkformats.disk.storage import Storage
from winkformats.errors import FormatError
from winkformats.hashing import xxh3_signed
from winkformats.kv.entry import MASK64, Layout
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import FILEINCR, HALF, KVSEQ, Superblock, read_superblock
from winkfs.container.ondisk.block import ALIGN, AREA, BLOCK, encode_blocks
from winkfs.container.ondisk.data import CUTID, LAST_BYTES, PURPOSE_CATALOG
from winkfs.container.ondisk.run import (
    PART,
    VALUES,
    BriefRun,
    Place,
    Run,
    checked,
    encode_brief,
    encode_index,
)
from winkfs.container.ondisk.typed import Schema
from winkfs.container.table import FileTable, joined, live
from winkfs.errors import DerivedDamage

RUNS: Final = "RUNS"
RUNBYTES: Final = "RUNBYTES"
RUNHASH: Final = "RUNHASH"
CLASHES: Final = "CLASHES"  # of the first run: files that have the name of a directory of others
BRIEF: Final = ("BRIEF", "BRIEFLEN", "BRIEFSUM")
BRIEF_FROM: Final = 256  # blocks of a run that has a brief index: that of fewer is short anyway
NOWHERE: Final[Place] = (0, 0, 0)
TRAILER: Final = ("CONTID", CUTID, "DATAEND", RUNS, RUNBYTES, RUNHASH, CLASHES, *BRIEF)
TRAILER_BYTES: Final = 16 + 8 * len(TRAILER) + 4  # of the entry
FIXED: Final = 12  # KEYREPR of 8-byte keys
LONG: Final = 3  # VALREPR of 8-byte lengths
NEW: Final = {
    "FILEINCR": FILEINCR, "SYNCSIZE": 0, "SYNCTIME": 0, "KVDELFL": 0, "KEYREPR": FIXED,
    "VALREPR": LONG, "ALIGN": ALIGN, "ENTRIES": 0, "AENTRIES": 0, "KVCKSUM": 1, "INCOMPAT": 1,
    "SBCKSUM": 0, "SBSEQ": 1, "CONTID": 0, "DATAEND": 0, RUNS: 0, RUNBYTES: 0, RUNHASH: 0,
    CLASHES: 0,
}  # fmt: skip
TOGETHER: Final = 8  # blocks that are written together


class Catalog(Closing):
    """The rows of a BASE.cat, or of a scratch file, in byte order of their names; immutable.

    contid, covered  CONTID of its container, and FILESIZE of the data file whose live files it has
    clashes          of the first run: number of files, not directories, such that another name
                     begins with their name and a /; -1: not known
    place            of the list of the runs: position, bytes and hash
    runs             the oldest first; at least one
    count            rows of the first run

    It stays valid if a newer file is renamed over its own, or if runs are added. An index is that
    of a row of the first run; `changes` has the rows of later runs.
    """

    def __init__(self, storage: Storage, place: Place | None = None) -> None:
        """Open a catalog; close the storage if that fails. Raises FormatError; OSError.

        place  of an older list, which stays valid when runs are added; None: the current one
        """
        self.storage = storage
        try:
            self.superblock = block = _trailer(storage) or read_superblock(storage)
            if "FORMAT" in block:
                _check_form(block, storage)
            self.contid, self.covered = block.get("CONTID", 0), block.get("DATAEND", -1)
            self.clashes = block.get(CLASHES, -1)
            today = block.get(RUNS, 0), block.get(RUNBYTES, 0), block.get(RUNHASH, 0)
            self.place: Place = today if place is None else place
            words = np.frombuffer(checked(storage, self.place, bytes), "<i8")
            self.listed: list[list[int]] = words.reshape(-1, 4).tolist()
            self.runs = list(map(self._open_run, range(len(self.listed))))
            if not self.runs:
                raise DerivedDamage("a catalog without a run", file=storage.name, offset=0)
        except BaseException as error:
            storage.close()
            if isinstance(error, DerivedDamage) or not isinstance(error, ValueError):
                raise
            raise DerivedDamage(str(error), file=storage.name, offset=0) from None
        self._base, self.count = self.runs[0], self.runs[0].count
        self._close = weakref.finalize(self, storage.close)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._close()

    def _open_run(self, number: int) -> Run:
        brief = _brief_of(self.superblock)
        place, make = self.listed[number][:3], partial(Run, self.storage)
        if number or not (self.storage.far and brief[1]):
            return checked(self.storage, place, make)
        whole = partial(checked, self.storage, place, make)
        return checked(self.storage, brief, partial(BriefRun, self.storage, whole=whole))

    @property
    def row_count(self) -> int:
        """Rows of all runs."""
        return sum(run.count for run in self.runs)

    # --- by index, of the first run ---

    def name(self, index: int) -> bytes:
        """Return the name with this index. Raises DerivedDamage."""
        number = self._base.find(index)
        return bytes(self._base.block(number).texts[index - self._base.starts[number]])

    def names(self, start: int, stop: int) -> list[bytes]:
        """Return the names with these indices. Raises DerivedDamage. Cost: decodes their blocks."""
        return self.part(start, stop).names

    def part(self, start: int, stop: int) -> FileTable:
        """Return the rows with these indices. Raises DerivedDamage. Cost: decodes their blocks."""
        found = self._base.blocks(start, stop)
        return FileTable.concat(
            [self._base.block(i).table.part(at.start, at.stop) for i, at in found]
        )

    def block(self, index: int) -> tuple[int, FileTable]:
        """Return the block of the row with this index: index of its first row, and its rows, which
        must not be changed. Raises DerivedDamage."""
        number = self._base.find(index)
        return self._base.starts[number], self._base.block(number).table

    def lower_bound(self, name: bytes, low: int = 0) -> int:
        """Return the index of the first name >= `name`, at or after `low`; `count`: there is none.

        cost    decodes one block
        raises  DerivedDamage
        """
        return max(low, self._base.lower_bound(name))

    # --- by name, of all runs ---

    def changes(self) -> dict[bytes, int]:
        """Read the runs after the first: name -> FTYPE, 0: it was removed, -1: read the inode."""
        found: dict[bytes, int] = {}
        for rows in chain.from_iterable(run.rows() for run in self.runs[1:]):
            ftypes = np.where(rows.asked, -1, rows.kind & 255)
            found.update(zip(rows.names, np.where(rows.gone, 0, ftypes).tolist(), strict=True))
        return found

    def rows(self, wanted_columns: Sequence[str] = ()) -> Iterator[FileTable]:
        """Yield the live rows, some thousand at a time. Raises DerivedDamage.

        wanted_columns  columns of the user whose values the rows contain
        """
        return live(joined([run.rows(columns=wanted_columns) for run in self.runs]))

    def at(self, positions: Int64, sparse: int) -> Iterator[FileTable]:
        """Yield complete rows of the inodes at these ascending positions, also of replaced ones.

        sparse  yield none if more rows than this would be decoded for each position
        cost    decodes the blocks that may have them
        raises  DerivedDamage
        """
        near = [(run, run.near(positions)) for run in self.runs]
        rows = sum(int(run.parts["rows"][blocks].sum()) for run, blocks in near)
        if rows <= sparse * len(positions):
            for run, blocks in near:
                yield from run.at(positions, blocks)


def _check_form(block: Superblock, storage: Storage) -> None:
    """Raise FormatError for a file that is not a kvseq in the form of BASE.cat, or is truncated."""
    layout = Layout.of(block, storage.name)
    shape = (layout.delflag, layout.key.code, layout.value.code, layout.align, layout.checksum)
    whole = block["SBSIZE"] <= block.get("FILESIZE", 0) <= storage.size()
    mine = (block["FORMAT"], block.purpose) == (KVSEQ, PURPOSE_CATALOG) and "SBCKSUM" in block
    if not (mine and whole and shape == (0, FIXED, LONG, ALIGN, 4)):
        raise FormatError(f"{storage.name}: not {PURPOSE_CATALOG} of a container, or not all of it")
    block.check_known(storage.name)


def _brief_of(block: Superblock) -> Place:
    """Return the place of the brief index, NOWHERE: there is none."""
    pos, length, hashed = (block.get(name, 0) for name in BRIEF)
    return pos, length, hashed


def _trailer(storage: Storage) -> Superblock | None:
    """Return the trailer of a file that is far; None: it has none, or is near."""
    if not storage.far:
        return None
    at = storage.begin(LAST_BYTES).size - TRAILER_BYTES
    data = storage.read(max(at, 0), TRAILER_BYTES)
    if at < 2 * HALF or data[:16] != b"t/000000" + (8 * len(TRAILER)).to_bytes(8, "big"):
        return None
    words = np.frombuffer(data, "<i8", len(TRAILER), 16).tolist()
    found = Superblock(zip(TRAILER, words, strict=True))
    return found if _sum(data[:-4], found["CONTID"] + at) == data[-4:] else None


def _sum(entry: bytes, seed: int) -> bytes:
    """Return the checksum of an entry, as a kvseq has it."""
    return xxhash.xxh3_64_digest(entry, seed & MASK64)[-4:]


class CatalogWriter:
    """Writes a BASE.cat, or adds runs to one. `brief`: place of the brief index."""

    def __init__(
        self, kv: KVSeq, runs: list[list[int]], schema: Schema, brief: Place = NOWHERE
    ) -> None:
        self._kv, self._runs, self._schema, self._brief = kv, runs, schema, brief

    @classmethod
    def create(cls, storage: Storage, ids: Mapping[str, int], schema: Schema) -> Self:
        """Begin a new file in an empty storage. `ids`: see `Settings.ids`; `schema`: the columns of
        the user."""
        block = Superblock.new(KVSEQ, PURPOSE_CATALOG, {**NEW, **ids}, 2 * HALF).note_writer()
        storage.write(0, block.images())
        return cls(KVSeq(storage, block, writable=True), [], schema)

    @classmethod
    def append_to(cls, catalog: Catalog, kept: int, schema: Schema) -> Self:
        """Add runs after the first `kept` ones of a file that is open for writing."""
        kv = KVSeq(catalog.storage, catalog.superblock.note_writer(), writable=True)
        brief = _brief_of(catalog.superblock) if kept else NOWHERE
        return cls(kv, catalog.listed[:kept], schema, brief)

    def release(self) -> None:
        """Release preallocated space."""
        self._kv.release()

    def write_run(self, rows: Iterable[FileTable]) -> None:
        """Write a run of rows in byte order of their names, given in tables of any size.

        raises  OSError
        cost    one write; memory: a few blocks
        """
        parts, firsts, values = list[tuple[int, ...]](), list[bytes](), []
        for piece, each in _pieces(rows):
            starts = range(0, len(piece), each)
            for at, (value, figures) in zip(starts, encode_blocks(piece, each), strict=True):
                parts.append((*self._append(b"b/000000", value), *figures))
                firsts.append(bytes(piece.column[at]))
                if self._schema:
                    values.append(self._write_values(piece.part(at, at + each)))
        table = np.array(parts, PART)
        index = encode_index(table, firsts, self._schema, np.array(values, VALUES))
        self._runs.append([*self._append(b"i/000000", index), int(table["rows"].sum())])
        if len(self._runs) == 1 and len(table) >= BRIEF_FROM:
            self._brief = self._append(b"k/000000", encode_brief(table, firsts))

    def _write_values(self, rows: FileTable) -> list[tuple[int, ...]]:
        found = list[tuple[int, ...]]()
        for column in rows.columns(self._schema).values():
            some = column.valid.any()
            place = self._append(b"c/000000", column.encode()) if some else (0, 0, 0)
            found.append((*place, *column.zone()))
        return found

    def _append(self, key: bytes, value: bytes) -> Place:
        """Append an entry -> place of its value."""
        kv = self._kv
        padding = -kv.end % ALIGN
        pos, head = kv.end + padding, key + len(value).to_bytes(8, "big")
        total = _sum(head + value, kv.layout.contid + pos)
        kv.append_parts([bytes(padding), head, value, total], 1, 1)
        return pos + len(head), len(value), xxh3_signed(value)

    def finish(self, covered: int, now: int, clashes: int | None = None) -> None:
        """Write the list of the runs and the superblock. Raises OSError.

        The caller must sync a new file; one to which runs were added is durable on return.

        covered  DATAEND
        clashes  of the first run; None: unchanged
        """
        place = self._append(b"r/000000", np.array(self._runs, "<i8").tobytes())
        places = dict(zip((RUNS, RUNBYTES, RUNHASH), place, strict=True)) | {"DATAEND": covered}
        block = self._kv.superblock
        if self._brief[1] or BRIEF[0] in block:
            places |= dict(zip(BRIEF, self._brief, strict=True))
        if self._kv.end > LAST_BYTES:  # else the last bytes have the superblock
            last = block | places | ({} if clashes is None else {CLASHES: clashes})
            words = np.array([last.get(name, 0) for name in TRAILER], "<i8")
            self._append(b"t/000000", words.tobytes())
        if clashes is None:
            self._kv.sync(places, now=now)
        else:
            self._kv.flush()
            self._kv.drain()
            counts = {"ENTRIES": self._kv.entries, "AENTRIES": self._kv.aentries, CLASHES: clashes}
            ends = {"FILESIZE": self._kv.end, "SYNCSIZE": self._kv.end, "SYNCTIME": now}
            self._kv.superblock.update(places | counts | ends)
            self._kv.storage.write(0, self._kv.superblock.images())
            self._kv.release()


def _pieces(rows: Iterable[FileTable]) -> Iterator[tuple[FileTable, int]]:
    """Yield rows, given in tables, as whole blocks, and the number of rows of a block; the last
    ones may be fewer."""
    waiting, count = list[FileTable](), 0
    for part in rows:
        waiting.append(part)
        count += len(part)
        if count >= TOGETHER * BLOCK or (count >= BLOCK and part.column.dtype == object):
            joined = FileTable.concat(waiting)
            whole = count - count % BLOCK
            yield from _of_area(joined.part(0, whole))
            waiting, count = [joined.part(whole)], count - whole
    if count:
        yield from _of_area(FileTable.concat(waiting))


def _of_area(rows: FileTable) -> Iterator[tuple[FileTable, int]]:
    """Split rows so that no block is larger than AREA -> rows, and the number for each block."""
    if rows.column.dtype != object:
        yield rows, BLOCK
        return
    for start in range(0, len(rows), BLOCK):
        part = rows.part(start, start + BLOCK)
        step = max(AREA // max(map(len, part.column)), 1)
        for low in range(0, len(part), step):
            yield part.part(low, low + step), step
