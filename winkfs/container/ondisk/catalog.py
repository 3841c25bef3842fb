"""BASE.cat: the catalog, what is known of all live files, in byte order of their names.

A kvseq of fixed 8-byte keys and 8-byte lengths, KVCKSUM 1, ALIGN 8. Its entries are blocks of rows,
the index of each run of blocks, and the list of the runs.

    key        value
    b/000000   a block: up to BLOCK rows, in byte order of their names
    c/000000   the values of a column of the user of the rows of a block: see `typed`
    i/000000   the index of a run: uint64 n, uint64 bytes of the names, int64[n, 16] (see PART),
               uint32[n] lengths of the names, and the names: the first one of each block. Where
               there are columns of the user, behind that at multiples of 8: uint64 bytes of their
               schema, the schema, int64[columns, n, 6] (see VALUES)
    r/000000   int64[runs, 4]: position, bytes and XXH3-64 of the index of each run, and its rows

The superblock has CONTID, DATAEND (of the data file whose files these are), RUNS, RUNBYTES and
RUNHASH (position, bytes and XXH3-64 of the list of runs). Positions are those of the values. So
each byte that is used is vouched for from the superblock on; one that is wrong is DerivedDamage
when it is first read.

A name may stand in several runs: the row in the last of them counts. A row whose KIND has GONE says
that there is no such name any more. So few changes are written as a run behind the others, and a
reader that has the file open goes on with the runs that it knows.
"""

from __future__ import annotations

import struct
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, chain, pairwise
from operator import add
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats.arrays import Bools, Int64, among
from winkformats.closing import Closing
from winkformats.disk.storage import Buffer, Storage
from winkformats.errors import FormatError
from winkformats.kv.entry import MASK64, Layout
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import FILEINCR, HALF, KVSEQ, Superblock, read_superblock
from winkfs.container.ondisk.block import (
    ALIGN,
    AREA,
    BLOCK,
    HEAD,
    MOST,
    SLACK,
    Blocks,
    encode_blocks,
)
from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.data import PURPOSE_CATALOG
from winkfs.container.ondisk.typed import Schema, pack, parse_schema, schema_text
from winkfs.container.table import ALWAYS, POS, FileTable, Times, joined, live
from winkfs.container.where import BUILTIN, Condition, Zone
from winkfs.errors import DerivedDamage
from winkfs.units import MICRO

RUNS: Final = "RUNS"
RUNBYTES: Final = "RUNBYTES"
RUNHASH: Final = "RUNHASH"
CLASHES: Final = "CLASHES"  # of the first run: files that have the name of a directory of others
FIXED: Final = 12  # KEYREPR of 8-byte keys
LONG: Final = 3  # VALREPR of 8-byte lengths
NEW: Final = {
    "FILEINCR": FILEINCR, "SYNCSIZE": 0, "SYNCTIME": 0, "KVDELFL": 0, "KEYREPR": FIXED,
    "VALREPR": LONG, "ALIGN": ALIGN, "ENTRIES": 0, "AENTRIES": 0, "KVCKSUM": 1, "INCOMPAT": 1,
    "SBCKSUM": 0, "SBSEQ": 1, "CONTID": 0, "DATAEND": 0, RUNS: 0, RUNBYTES: 0, RUNHASH: 0,
    CLASHES: 0,
}  # fmt: skip
TOGETHER: Final = 8  # blocks that are written together
KEPT: Final = 64  # blocks kept: `find` comes back to those that showed a directory
AT_ONCE: Final = 16  # blocks that are decoded together: more would leave the cache of a core
GAP: Final = 4 << 10  # bytes between two blocks, in the mean, that are read with them
BUDGET: Final = 64 << 20  # bytes that a pass leaves in the page cache; what was there stays
STEP: Final = 4 << 20  # bytes beyond, that are dropped at a time
T = TypeVar("T")
Place = tuple[int, int, int]
"""Of a value: position, bytes and hash."""
NO_NUMBERS: Final = np.empty(0, np.int64)


PART: Final = np.dtype([(name, "<i8") for name in (
    "pos", "length", "hash", "rows", "gone", "content", "pos_min", "pos_max", "size_min",
    "size_max", "mtime_min", "mtime_max", "kinds", "asked", "spare1", "spare2",
)])  # fmt: skip
"""What the index of a run says of a block.

pos, length, hash   where its value lies, bytes, XXH3-64
rows, gone          number of rows, and of those that are GONE
content             sum of the sizes, at most 2^63 - 1
.._min, .._max      bounds of the live rows
kinds               their FTYPEs as bits, modulo 64
asked               rows that have ASK; 0 in files of older versions
"""
VALUES: Final = np.dtype([(name, "<i8") for name in (
    "pos", "length", "hash", "nulls", "low", "high",
)])  # fmt: skip
"""What it says of the values of a column in a block: where they lie as in PART, `Column.zone`."""


class Run:
    """A run of blocks, names ascending from each to the next.

    parts   PART[b], of the blocks
    firsts  the first name of each block
    starts  which rows a block has, [starts[i], starts[i + 1])
    count   rows, with those that are GONE
    schema  the columns of the user; values: of each VALUES[b]
    """

    def __init__(self, storage: Storage, value: bytes) -> None:
        """Raises ValueError for bytes that are no index."""
        count, size = HEAD.unpack_from(value)
        at = HEAD.size + count * PART.itemsize
        end = at + 4 * count + size
        if len(value) < end:
            raise ValueError("an index of another size")
        self._storage = storage
        self.schema, table = _typed(value, end, count)
        self.values = dict(zip(self.schema, table, strict=True))
        self.parts = np.frombuffer(value, PART, count, HEAD.size)
        lengths = np.frombuffer(value, "<u4", count, at)
        ends = list(accumulate(lengths.tolist(), initial=at + 4 * count))
        self.firsts = [value[a:b] for a, b in pairwise(ends)]
        self.starts: list[int] = [0, *np.cumsum(self.parts["rows"]).tolist()]
        self.count = self.starts[-1]
        if ends[-1] != end or (self.parts["pos"] | self.parts["length"] < 0).any():
            raise ValueError("an index that cannot be")
        self._blocks: dict[int, Blocks] = {}

    def totals(self) -> tuple[int, int, int, int]:
        """Of the live rows number and sum of the sizes, least and greatest mtime; 0, 0: no rows."""
        parts = self.parts[self.parts["rows"] > self.parts["gone"]]
        if not len(parts):
            return 0, 0, 0, 0
        times = int(parts["mtime_min"].min()), int(parts["mtime_max"].max())
        return int((parts["rows"] - parts["gone"]).sum()), sum(parts["content"].tolist()), *times

    def asked(self) -> list[int]:
        """Positions of the inodes that have to be asked. Raises DerivedDamage. Cost: reads the
        blocks that have some."""
        found = self._tables(np.flatnonzero(self.parts["asked"]))
        return [pos for _, rows in found for pos in rows.pos[rows.asked].tolist()]

    def find(self, index: int) -> int:
        """Number of the block that has this row."""
        return bisect_right(self.starts, index) - 1

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, slice]]:
        """The blocks that have some of the rows [start, stop), and which of theirs these are."""
        stop = min(stop, self.count)
        number = self.find(start)
        while start < stop:
            first, end = self.starts[number], self.starts[number + 1]
            yield number, slice(start - first, min(stop, end) - first)
            start, number = end, number + 1

    def lower_bound(self, name: bytes) -> int:
        """Index of the first row whose name is >= `name`; `count`: there is none.

        cost    decodes one block
        raises  DerivedDamage
        """
        number = bisect_right(self.firsts, name) - 1
        if number < 0:
            return 0
        return self.starts[number] + bisect_left(self.block(number).texts, name)

    # --- many blocks ---

    def rows(
        self,
        low: bytes = b"",
        high: bytes | None = None,
        times: Times = ALWAYS,
        where: Condition | None = None,
        columns: Sequence[str] = (),
        at_once: int | None = None,
    ) -> Iterator[FileTable]:
        """The rows with names in [low, high), many blocks at a time. Raises DerivedDamage.

        times    blocks that have no mtime in it are left out
        where    rows of which it is not true are left out, but for those that have to be asked;
                 blocks where it cannot be true are not read
        columns  of the user, whose values the rows are to have
        at_once  blocks; None: AT_ONCE
        """
        wanted = self.wanted(low, high, times)
        if where is not None:
            wanted = wanted[self._possible(where)[wanted]]
        there = [name for name in columns if name in self.schema]
        needed = {*there, *(() if where is None else where.columns() & self.schema.keys())}
        for numbers, rows in self._tables(wanted, at_once):
            start = bisect_left(range(len(rows)), low, key=rows.name) if low else 0
            stop = len(rows) if high is None else bisect_left(range(len(rows)), high, key=rows.name)
            typed = {name: self._column(numbers, name, self.schema[name]) for name in needed}
            found, kept = rows.part(start, stop), np.arange(start, stop)
            if where is not None:
                true = rows.asked | rows.met(where, typed)
                kept = np.flatnonzero(true[start:stop]) + start
                found = found if len(kept) == len(found) else rows.take(kept)
            if there and found:
                found.values = pack([typed[name].take(kept).texts() for name in there], there)
            if found:
                yield found

    def wanted(self, low: bytes = b"", high: bytes | None = None, times: Times = ALWAYS) -> Int64:
        """The blocks that may have names in [low, high), and such mtimes, int64[..]."""
        first = max(bisect_right(self.firsts, low) - 1, 0)
        stop = len(self.firsts) if high is None else bisect_left(self.firsts, high)
        parts, (since, until) = self.parts[first:stop], times
        wanted = np.ones(len(parts), bool)
        if since is not None:  # an mtime at either end may be one beyond it
            wanted &= parts["mtime_max"] >= min(since, MOST)
        if until is not None:
            wanted &= parts["mtime_min"] < max(until, -MOST)
        return first + np.flatnonzero(wanted | (parts["asked"] > 0))

    def near(self, positions: Int64) -> Int64:
        """The blocks that may have one of these ascending positions, int64[b]."""
        low = np.searchsorted(positions, self.parts["pos_min"])
        high = np.searchsorted(positions, self.parts["pos_max"], "right")
        return np.flatnonzero((low < high) & (self.parts["gone"] < self.parts["rows"]))

    def positions(self) -> Int64:
        """Positions of all inodes, in order. Raises DerivedDamage. Cost: reads all blocks."""
        found = (blocks.column(POS) for _, blocks in self.decoded(self.wanted()))
        return np.concatenate([NO_NUMBERS, *found])

    def at(self, positions: Int64, blocks: Int64) -> Iterator[FileTable]:
        """The rows of these blocks that have one of these ascending positions, and are complete.

        raises  DerivedDamage
        """
        for _, rows in self._tables(blocks):
            chosen = among(rows.pos, positions) & ~(rows.gone | rows.asked)
            if chosen.any():
                yield rows.take(chosen)

    def values_between(
        self, low: int, high: int, typed: Mapping[str, str]
    ) -> Iterator[tuple[Int64, dict[str, Column]]]:
        """Of files whose inodes stand in [low, high) positions and values, many blocks at a time; a
        column that there is not is null. Raises DerivedDamage."""
        near = (self.parts["pos_max"] >= low) & (self.parts["pos_min"] < high)
        near &= self.parts["gone"] < self.parts["rows"]
        for numbers, rows in self._tables(np.flatnonzero(near)):
            chosen = np.flatnonzero((rows.pos >= low) & (rows.pos < high) & ~rows.gone)
            yield (
                rows.pos[chosen],
                {
                    name: self._column(numbers, name, kind).take(chosen).cast(kind)
                    for name, kind in typed.items()
                },
            )

    def _possible(self, where: Condition) -> Bools:
        """Of which blocks a condition can be true for some file, or nobody knows: bool[b]."""
        rows, none = self.parts["rows"], np.zeros(len(self.firsts), np.int64)
        zones = {
            name: Zone(self.schema[name], rows, *(table[key] for key in ("nulls", "low", "high")))
            for name, table in self.values.items()
        }
        for name, unit in (("size", 1), ("mtime", MICRO)):
            low, high = (self.parts[f"{name}_{end}"] // unit for end in ("min", "max"))
            zones[name] = Zone(BUILTIN[name], rows, none, low, high)
        # A block that has only rows of GONE has no bounds, and nothing to choose.
        possible = where.possible(zones.get, len(rows)) & (self.parts["gone"] < rows)
        return possible | (self.parts["asked"] > 0)

    # --- reading ---

    def block(self, number: int) -> Blocks:
        """A block; the last KEPT ones stay in memory.

        raises  DerivedDamage
        cost    one read
        """
        found = self._blocks.get(number)
        if found is None:
            found = self.read(np.array([number]))
            if len(self._blocks) >= KEPT:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = found
        return found

    def _tables(
        self, wanted: Int64, at_once: int | None = None
    ) -> Iterator[tuple[Int64, FileTable]]:
        """These blocks, some at a time, and all their rows. Raises DerivedDamage."""
        for numbers, blocks in self.decoded(wanted, at_once):
            yield numbers, blocks.table

    def decoded(self, wanted: Int64, at_once: int | None = None) -> Iterator[tuple[Int64, Blocks]]:
        """These blocks, ascending, some at a time; no more than BUDGET of them stays in the page
        cache. Raises DerivedDamage."""
        step = at_once or AT_ONCE
        pos, size = self.parts["pos"][wanted], self.parts["length"][wanted]
        beyond = np.flatnonzero(np.cumsum(size) > BUDGET)
        at = int(pos[beyond[0]]) if len(beyond) else 0
        drop = self._storage.dropper(at, int((pos + size).max())) if at else None
        try:
            for first in range(0, len(wanted), step):
                numbers = wanted[first : first + step]
                yield numbers, self.read(numbers)
                here = int(pos[first + len(numbers) - 1])
                if drop is not None and here > at + STEP:
                    drop(at, here)
                    at = here
        finally:
            if drop is not None:
                with suppress(OSError):  # it may have been closed before all was read
                    drop(at, self._storage.size())

    def read(self, numbers: Int64) -> Blocks:
        """Some blocks, that are not kept. Raises DerivedDamage."""
        storage, name = self._storage, self._storage.name
        places, sizes, hashes, counts = (
            self.parts[field][numbers].tolist() for field in ("pos", "length", "hash", "rows")
        )
        low, high = min(places), max(map(add, places, sizes))
        if high > storage.size():
            raise DerivedDamage("the catalog is cut short", file=name, offset=low)
        if high - low <= sum(sizes) + GAP * len(places):  # one read instead of many
            at, size = [place - low for place in places], high - low + SLACK
            data = storage.read(low, size).ljust(size, b"\0")
        else:
            at = list(accumulate(sizes[:-1], initial=0))
            data = b"".join([*map(storage.read, places, sizes), bytes(SLACK)])
        view = memoryview(data)
        for place, size, hashed, start in zip(places, sizes, hashes, at, strict=True):
            if _hash(view[start : start + size]) != hashed:
                raise DerivedDamage("a block of the catalog is wrong", file=name, offset=place)
        raw = np.frombuffer(data, np.uint8)
        found = Blocks(raw, np.array(at), np.array(sizes), name, low)
        if found.counts.tolist() != counts:
            what = "blocks with other rows than the index says"
            raise DerivedDamage(what, file=name, offset=low)
        return found

    def _column(self, numbers: Int64, name: str, kind: str) -> Column:
        """The values of a column in some blocks; one that there is not is null, of this `kind`.

        raises  DerivedDamage
        cost    a read for each block
        """
        if name not in self.schema:
            return Column.nulls(kind, int(self.parts["rows"][numbers].sum()))
        kind, parts = self.schema[name], list[Column]()
        counts, table = self.parts["rows"][numbers].tolist(), self.values[name][numbers].tolist()
        for rows, (pos, length, hashed, *_) in zip(counts, table, strict=True):
            decode = partial(Column.decode, kind, rows=rows)
            parts.append(_checked(self._storage, (pos, length, hashed), decode) if length > 0 else
                         Column.nulls(kind, rows))  # fmt: skip
        return Column.concat(parts)


class Catalog(Closing):
    """The rows of a BASE.cat, or of a scratch file, in byte order of their names; immutable.

    contid, covered  whose it is: CONTID, and FILESIZE of the data file whose live files these are
    clashes          of the first run: files, not directories, with whose name and a / another
                     begins; -1: not known
    place            of the list of the runs: position, bytes and hash
    runs             the oldest first; at least one
    count            rows of the first run

    A newer file renamed over its own does not matter to it, nor do runs that are added. An index is
    that of a row of the first run; `changes` has the rows of the runs behind it.
    """

    def __init__(self, storage: Storage, place: Place | None = None) -> None:
        """Takes the storage; it is closed where this raises. Raises FormatError; OSError.

        place  of an older list, which runs that are added leave where it is; None: the one of today
        """
        self.storage = storage
        try:
            self.superblock = block = read_superblock(storage)
            _check_form(block, storage)
            self.contid, self.covered = block.get("CONTID", 0), block.get("DATAEND", -1)
            self.clashes = block.get(CLASHES, -1)
            today = block.get(RUNS, 0), block.get(RUNBYTES, 0), block.get(RUNHASH, 0)
            self.place: Place = today if place is None else place
            words = np.frombuffer(_checked(storage, self.place, bytes), "<i8")
            self.listed: list[list[int]] = words.reshape(-1, 4).tolist()
            make = partial(Run, storage)
            self.runs = [_checked(storage, row[:3], make) for row in self.listed]
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

    @property
    def row_count(self) -> int:
        """Rows of all runs."""
        return sum(run.count for run in self.runs)

    # --- by index, of the first run ---

    def name(self, index: int) -> bytes:
        """The name with this index. Raises DerivedDamage."""
        number = self._base.find(index)
        return bytes(self._base.block(number).texts[index - self._base.starts[number]])

    def names(self, start: int, stop: int) -> list[bytes]:
        """The names with these indices. Raises DerivedDamage. Cost: decodes their blocks."""
        return self.part(start, stop).names

    def part(self, start: int, stop: int) -> FileTable:
        """The rows with these indices. Raises DerivedDamage. Cost: decodes their blocks."""
        found = self._base.blocks(start, stop)
        return FileTable.concat(
            [self._base.block(i).table.part(at.start, at.stop) for i, at in found]
        )

    def block(self, index: int) -> tuple[int, FileTable]:
        """The block that has the row with this index: index of its first row, and its rows, not to
        be changed. Raises DerivedDamage."""
        number = self._base.find(index)
        return self._base.starts[number], self._base.block(number).table

    def lower_bound(self, name: bytes, low: int = 0) -> int:
        """Index of the first name >= `name`, at or after `low`; `count` where there is none.

        cost    decodes one block
        raises  DerivedDamage
        """
        return max(low, self._base.lower_bound(name))

    # --- by name, of all runs ---

    def changes(self) -> dict[bytes, int]:
        """Read the runs behind the first: name -> FTYPE, 0: it is gone, -1: ask the inode."""
        found: dict[bytes, int] = {}
        for rows in chain.from_iterable(run.rows() for run in self.runs[1:]):
            ftypes = np.where(rows.asked, -1, rows.kind & 255)
            found.update(zip(rows.names, np.where(rows.gone, 0, ftypes).tolist(), strict=True))
        return found

    def rows(self, wanted_columns: Sequence[str] = ()) -> Iterator[FileTable]:
        """The live rows, some thousand at a time. Raises DerivedDamage.

        wanted_columns  of the user, whose values they are to have
        """
        return live(joined([run.rows(columns=wanted_columns) for run in self.runs]))

    def at(self, positions: Int64, sparse: int) -> Iterator[FileTable]:
        """Rows of the inodes at these ascending positions that are complete, also of replaced ones.

        sparse  none where more rows than this would be decoded for each position
        cost    decodes the blocks that may have them
        raises  DerivedDamage
        """
        near = [(run, run.near(positions)) for run in self.runs]
        rows = sum(int(run.parts["rows"][blocks].sum()) for run, blocks in near)
        if rows <= sparse * len(positions):
            for run, blocks in near:
                yield from run.at(positions, blocks)


def _check_form(block: Superblock, storage: Storage) -> None:
    """Refuse what is no kvseq in the form of BASE.cat, or not all of it.

    raises  FormatError
    """
    layout = Layout.of(block, storage.name)
    shape = (layout.delflag, layout.key.code, layout.value.code, layout.align, layout.checksum)
    whole = block["SBSIZE"] <= block.get("FILESIZE", 0) <= storage.size()
    mine = (block["FORMAT"], block.purpose) == (KVSEQ, PURPOSE_CATALOG) and "SBCKSUM" in block
    if not (mine and whole and shape == (0, FIXED, LONG, ALIGN, 4)):
        raise FormatError(f"{storage.name}: not {PURPOSE_CATALOG} of a container, or not all of it")
    block.check_known(storage.name)


def _checked(storage: Storage, where: Sequence[int], make: Callable[[bytes], T]) -> T:
    """What is made of a value. `where`: its position, bytes and hash. Raises DerivedDamage."""
    pos, length, hashed = where
    if pos < 0 or not 0 <= length <= storage.size() - pos:
        raise DerivedDamage("the catalog is cut short", file=storage.name, offset=pos)
    value = storage.read(pos, length)
    if _hash(value) != hashed:
        raise DerivedDamage("a block of the catalog is wrong", file=storage.name, offset=pos)
    try:
        return make(value)
    except (ValueError, struct.error) as error:
        raise DerivedDamage(str(error), file=storage.name, offset=pos) from None


def _typed(value: bytes, at: int, blocks: int) -> tuple[dict[str, str], npt.NDArray[np.void]]:
    """The end of the index of a run, from `at` on -> its schema, VALUES[columns, blocks]."""
    if len(value) == at:
        return {}, np.empty((0, blocks), VALUES)
    at += -at % ALIGN
    size = int.from_bytes(value[at : at + 8], "little")
    schema = parse_schema(value[at + 8 : at + 8 + size])
    at += 8 + size + -size % ALIGN
    if len(value) != at + len(schema) * blocks * VALUES.itemsize:
        raise ValueError("an index of another size")
    return schema, np.frombuffer(value, VALUES, -1, at).reshape(len(schema), blocks)


def _hash(value: Buffer) -> int:
    return int.from_bytes(xxhash.xxh3_64_digest(value), "little", signed=True)


class CatalogWriter:
    """Writes a BASE.cat, or more runs behind those of one."""

    def __init__(self, kv: KVSeq, runs: list[list[int]], schema: Schema) -> None:
        self._kv, self._runs, self._schema = kv, runs, schema

    @classmethod
    def create(cls, storage: Storage, ids: Mapping[str, int], schema: Schema) -> Self:
        """A new file in an empty storage. `ids`: see `Settings.ids`; `schema`: the columns of the
        user."""
        block = Superblock.new(KVSEQ, PURPOSE_CATALOG, {**NEW, **ids}, 2 * HALF).note_writer()
        storage.write(0, block.images())
        return cls(KVSeq(storage, block, writable=True), [], schema)

    @classmethod
    def append_to(cls, catalog: Catalog, kept: int, schema: Schema) -> Self:
        """More runs behind the first `kept` of a file that is open for writing."""
        kv = KVSeq(catalog.storage, catalog.superblock.note_writer(), writable=True)
        return cls(kv, catalog.listed[:kept], schema)

    def release(self) -> None:
        """Give back the room on the disk that was not used."""
        self._kv.release()

    def write_run(self, rows: Iterable[FileTable]) -> None:
        """A run of rows in byte order of their names, given in parts of any size.

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
        index = _index(table, firsts, self._schema, np.array(values, VALUES))
        self._runs.append([*self._append(b"i/000000", index), int(table["rows"].sum())])

    def _write_values(self, rows: FileTable) -> list[tuple[int, ...]]:
        found = list[tuple[int, ...]]()
        for column in rows.columns(self._schema).values():
            some = column.valid.any()
            place = self._append(b"c/000000", column.encode()) if some else (0, 0, 0)
            found.append((*place, *column.zone()))
        return found

    def _append(self, key: bytes, value: bytes) -> Place:
        """Add an entry."""
        kv = self._kv
        padding = -kv.end % ALIGN
        pos, head = kv.end + padding, key + len(value).to_bytes(8, "big")
        state = xxhash.xxh3_64(head, seed=(kv.layout.contid + pos) & MASK64)  # as a kvseq has it
        state.update(value)
        kv.append_parts([bytes(padding), head, value, state.digest()[-4:]], 1, 1)
        return pos + len(head), len(value), _hash(value)

    def finish(self, covered: int, now: int, clashes: int | None = None) -> None:
        """Write the list of the runs and the superblock. Raises OSError.

        A new file is to be synced by the caller, one that has grown is durable on return.

        covered  DATAEND
        clashes  of the first run; None: it is as before
        """
        place = self._append(b"r/000000", np.array(self._runs, "<i8").tobytes())
        places = dict(zip((RUNS, RUNBYTES, RUNHASH), place, strict=True)) | {"DATAEND": covered}
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
    """Rows given in parts as whole blocks, the last one of what is left, and rows of a block."""
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
    """The same rows, so that no block is larger than AREA."""
    if rows.column.dtype != object:
        yield rows, BLOCK
        return
    for start in range(0, len(rows), BLOCK):
        part = rows.part(start, start + BLOCK)
        step = max(AREA // max(map(len, part.column)), 1)
        for low in range(0, len(part), step):
            yield part.part(low, low + step), step


def _index(
    parts: npt.NDArray[np.void],
    firsts: Sequence[bytes],
    schema: Schema,
    values: npt.NDArray[np.void],
) -> bytes:
    """The index of a run. `values`: VALUES[blocks, columns]."""
    lengths = np.array(list(map(len, firsts)), "<u4")
    head = HEAD.pack(len(parts), int(lengths.sum()))
    value = b"".join([head, parts.tobytes(), lengths.tobytes(), *firsts])
    if schema:
        text = schema_text(schema)
        value += bytes(-len(value) % ALIGN) + len(text).to_bytes(8, "little") + text
        value += bytes(-len(value) % ALIGN)
        value += values.reshape(len(parts), len(schema)).T.tobytes()
    return value
