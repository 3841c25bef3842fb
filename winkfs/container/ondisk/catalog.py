"""BASE.cat: the catalog, what is known of all live files, in byte order of their names.

A kvseq of fixed 8-byte keys and 8-byte lengths, KVCKSUM 1, ALIGN 8. Its entries are blocks of rows,
the index of each run of blocks, and the list of the runs.

    key        value
    b/000000   a block: up to BLOCK rows, in byte order of their names
    i/000000   the index of a run: uint64 n, uint64 bytes of the names, int64[n, 16] (see `Part`),
               uint32[n] lengths of the names, and the names: the first one of each block
    r/000000   int64[runs, 4]: position, bytes and XXH3-64 of the index of each run, and its rows

The superblock has CONTID, DATAEND (of the data file whose files these are), RUNS, RUNBYTES and
RUNHASH (position, bytes and XXH3-64 of the list of runs). Positions are those of the values. So
each byte that is used is vouched for from the superblock on; one that is wrong is DerivedDamage
when it is first read.

A name may stand in several runs: the row in the last of them counts. A row whose KIND has GONE says
that there is no such name any more. So few changes are written as a run behind the others, and a
reader that has the file open goes on with the runs that it knows.

A block is, all little-endian:

    offset  size  field
    0       8     number of rows, n
    8       8     bytes of the names as they are stored
    16      16    for each of the COLUMNS, and for `shared` and `rest`: int64 base, uint64 width
    ...     n * w the columns, each at a multiple of 8: n numbers of `width` bytes, to which the
                  base is to be added (modulo 2^64)
    ...           the names: of each the bytes that its predecessor does not begin with

`shared` is how many bytes a name begins with that the one before it begins with, too; `rest` how
many follow.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from typing import Final, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats.arrays import Bools, Int64, UInt8, rows_at
from winkformats.disk.storage import Storage
from winkformats.errors import FormatError
from winkformats.kv.entry import MASK64, Layout
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import FILEINCR, HALF, KVSEQ, Superblock, read_superblock
from winkfs.container.ondisk.data import PURPOSE_CATALOG
from winkfs.container.ondisk.inode import DEFAULT_MODES, UINT32, FileType
from winkfs.errors import DerivedDamage

TOPS: Final = np.array([0, *((1 << 8 * width) - 1 for width in range(1, 8))], np.uint64)
"""The greatest numbers that 0 .. 7 bytes hold."""
RUNS: Final = "RUNS"
RUNBYTES: Final = "RUNBYTES"
RUNHASH: Final = "RUNHASH"
CLASHES: Final = "CLASHES"  # of the first run: files that have the name of a directory of others
FIXED: Final = 12  # KEYREPR of 8-byte keys
LONG: Final = 3  # VALREPR of 8-byte lengths
ALIGN: Final = 8
NEW: Final = {
    "FILEINCR": FILEINCR, "SYNCSIZE": 0, "SYNCTIME": 0, "KVDELFL": 0, "KEYREPR": FIXED,
    "VALREPR": LONG, "ALIGN": ALIGN, "ENTRIES": 0, "AENTRIES": 0, "KVCKSUM": 1, "INCOMPAT": 1,
    "SBCKSUM": 0, "SBSEQ": 1, "CONTID": 0, "DATAEND": 0, RUNS: 0, RUNBYTES: 0, RUNHASH: 0,
    CLASHES: 0,
}  # fmt: skip
BLOCK: Final = 1024  # rows of a block, at most
AREA: Final = 1 << 20  # rows times bytes of the longest name, at most, but for a single row
KEPT: Final = 32  # blocks kept decoded
HEAD: Final = struct.Struct("<QQ")
MOST: Final = (1 << 63) - 1
T = TypeVar("T")

COLUMNS: Final = ("pos", "fileid", "size", "mtime", "pointer", "ctime", "kind", "owner")
POS, FILEID, SIZE, MTIME, POINTER, CTIME, KIND, OWNER = range(len(COLUMNS))
STORED: Final = len(COLUMNS) + 2  # with `shared` and `rest`
GONE: Final = 1 << 8  # in KIND
SPECIAL: Final = 1 << 9
ASK: Final = 1 << 10
MODE_AT: Final = 16
MODES: Final = np.array(DEFAULT_MODES, np.int64)
"""A row of the catalog, int64[8].

pos      kv_pointer of the inode
fileid   FILEID
size     bytes
mtime    nanoseconds since the epoch
pointer  kv_pointer of the one data entry whose value is the whole content; 0: there is no content;
         -1: the inode has to be asked
ctime    nanoseconds since the epoch
kind     bits 0..7: FTYPE; GONE; SPECIAL: the file has attributes; ASK: int64 does not hold what
         the inode says; from MODE_AT on: permission bits, of a file that has attributes
owner    uid + (gid << 32), of a file that has attributes
"""


Times = tuple[int | None, int | None]
"""[since, until), nanoseconds since the epoch; None: no bound."""
ALWAYS: Final[Times] = (None, None)


class Rows(NamedTuple):
    """n files in byte order of their names, and their COLUMNS, int64[n, 8]."""

    names: list[bytes]
    numbers: Int64

    @property
    def pos(self) -> Int64:
        """Positions of the inodes, int64[n]."""
        return self.numbers[:, POS]

    @property
    def asked(self) -> Bools:
        """Which rows do not say all: their inodes have to be asked, bool[n]."""
        asked: Bools = self.numbers[:, KIND] & ASK != 0
        return asked

    @property
    def directories(self) -> Bools:
        """Which are directories, bool[n]."""
        directories: Bools = self.numbers[:, KIND] & 255 == FileType.DIR
        return directories

    @property
    def links(self) -> Bools:
        """Which are symbolic links, bool[n]."""
        links: Bools = self.numbers[:, KIND] & 255 == FileType.LINK
        return links

    def within(self, times: Times) -> Bools:
        """Which have an mtime in these times, bool[n]."""
        found, (since, until) = np.ones(len(self.names), bool), times
        if since is not None:
            found &= self.numbers[:, MTIME] >= since
        if until is not None:
            found &= self.numbers[:, MTIME] < until
        return found

    def stats(self, owner: tuple[int, int]) -> tuple[Int64, ...]:
        """FILEIDs, sizes, mtimes, FTYPEs, permission bits, uids, gids and ctimes, int64[n] each.
        `owner`: of files without attributes."""
        kind = self.numbers[:, KIND]
        ftype, special = kind & 255, kind & SPECIAL != 0
        mode = np.where(special, kind >> MODE_AT, MODES[ftype])
        words = np.where(special, self.numbers[:, OWNER], owner_word(*owner))
        fileid, size, mtime, ctime = self.numbers[:, [FILEID, SIZE, MTIME, CTIME]].T
        return fileid, size, mtime, ftype, mode, words & UINT32, words >> 32 & UINT32, ctime

    @property
    def gone(self) -> Bools:
        """Which rows say that there is no such name any more, bool[n]."""
        gone: Bools = self.numbers[:, KIND] & GONE != 0
        return gone

    def part(self, start: int, stop: int | None = None) -> Rows:
        """The rows [start, stop), without a copy of the numbers."""
        return Rows(self.names[start:stop], self.numbers[start:stop])

    def take(self, chosen: Bools) -> Rows:
        """The chosen ones, bool[n]."""
        return Rows(list(compress(self.names, chosen.tolist())), self.numbers[chosen])

    @staticmethod
    def concat(parts: list[Rows]) -> Rows:
        """Parts one behind the other; at least one."""
        if len(parts) == 1:
            return parts[0]
        names = [name for part in parts for name in part.names]
        return Rows(names, np.concatenate([part.numbers for part in parts]))


def owner_word(uid: int, gid: int) -> int:
    """The `owner` of a row."""
    return uid | (gid - (gid >> 31 << 32)) << 32


def plain_numbers(
    pos: Int64,
    fileid: Int64 | int = 0,
    size: Int64 | int = 0,
    mtime: Int64 | int = 0,
    pointer: Int64 | int = 0,
    kind: npt.NDArray[np.integer] | int = 0,
) -> Int64:
    """The COLUMNS of files without attributes, last changed at their mtime, int64[n, 8]."""
    numbers = np.zeros((len(pos), len(COLUMNS)), np.int64)
    for column, values in (
        (POS, pos), (FILEID, fileid), (SIZE, size), (MTIME, mtime), (POINTER, pointer),
        (CTIME, mtime), (KIND, kind),
    ):  # fmt: skip
        numbers[:, column] = values
    return numbers


class Part(NamedTuple):
    """What the index of a run says of a block.

    pos, length, hash   where its value lies, bytes, XXH3-64
    rows, gone          number of rows, and of those that are GONE
    content             sum of the sizes, at most 2^63 - 1
    """

    pos: int
    length: int
    hash: int
    rows: int
    gone: int
    content: int
    pos_min: int
    pos_max: int
    size_min: int
    size_max: int
    mtime_min: int
    mtime_max: int
    kinds: int  # FTYPEs as bits, modulo 64
    spare0: int
    spare1: int
    spare2: int


# --- a block ---


def encode_block(names: list[bytes], numbers: Int64) -> bytes:
    """The value of a block: n >= 1 different names in byte order, and int64[n, 8].

    cost    array operations on a matrix of n times the longest name
    """
    n = len(names)
    lengths = np.fromiter(map(len, names), np.int64, n)
    width = int(lengths.max())
    matrix = np.array(names, f"S{width}").view(np.uint8).reshape(n, width)
    stored = np.empty((STORED, n), np.int64)
    stored[: len(COLUMNS)] = numbers.T
    shared, rest = stored[-2:]
    shared[0] = 0
    np.argmin(matrix[1:] == matrix[:-1], axis=1, out=shared[1:])
    np.subtract(lengths, shared, out=rest)
    column = np.arange(width)
    tails = matrix[(column >= shared[:, None]) & (column < lengths[:, None])].tobytes()
    # What mostly follows from others is stored as the difference. An entry at `pointer` with `size`
    # bytes ends at or before `pos`, or begins behind it: so 0 and -1 are never one.
    plain = stored[POINTER] > 0
    stored[POINTER][plain] = (stored[POS] - stored[POINTER] - stored[SIZE])[plain]
    stored[CTIME] -= stored[MTIME]
    base = stored.min(1)
    stored -= base[:, None]
    widths = np.searchsorted(TOPS, stored.view(np.uint64).max(1)).tolist()
    little = stored.astype("<i8", copy=False).view(np.uint8).reshape(STORED, n, 8)
    head = np.stack([base, widths], 1).astype("<i8", copy=False)
    parts = [HEAD.pack(n, len(tails)), head.tobytes()]
    for number, wide in enumerate(widths):
        parts += little[number, :, :wide].tobytes(), bytes(-n * wide % 8)
    return b"".join([*parts, tails])


class Block:
    """A block that was read. Columns and names are decoded when they are asked for."""

    def __init__(self, value: bytes) -> None:
        """Raises ValueError for bytes that are no block."""
        self._raw = np.frombuffer(value, np.uint8)
        if len(value) < HEAD.size + 16 * STORED:
            raise ValueError("a block is cut short")
        self.count, self._tails = HEAD.unpack_from(value)
        head = np.frombuffer(value, "<i8", 2 * STORED, HEAD.size).reshape(STORED, 2)
        self._base, self._width = head[:, 0].tolist(), head[:, 1].tolist()
        at, self._at = HEAD.size + 16 * STORED, list[int]()
        for width in self._width:
            self._at.append(at)
            at += -(-self.count * width // 8) * 8
        wrong = min(self._width) < 0 or max(self._width) > 8 or not 1 <= self.count <= BLOCK
        if wrong or at + self._tails != len(value):
            raise ValueError("a block of another size")
        self._names: list[bytes] | None = None
        self._numbers: Int64 | None = None

    @property
    def numbers(self) -> Int64:
        """int64[n, 8], the COLUMNS of all rows."""
        if self._numbers is None:
            found = np.empty((self.count, len(COLUMNS)), np.int64)
            for number in range(len(COLUMNS)):
                found[:, number] = self._column(number)
            found[:, CTIME] += found[:, MTIME]
            plain = np.flatnonzero((found[:, POINTER] != 0) & (found[:, POINTER] != -1))
            back = found[plain, POINTER] + found[plain, SIZE]
            found[plain, POINTER] = found[plain, POS] - back
            self._numbers = found
        return self._numbers

    @property
    def names(self) -> list[bytes]:
        """The names. Raises ValueError."""
        if self._names is None:
            rows = self._matrix()
            self._names = rows.view(f"S{rows.shape[1]}").ravel().tolist()
        return self._names

    def _matrix(self) -> UInt8:
        """The names as rows of a matrix, uint8[n, longest], with zeros behind them.

        raises  ValueError for lengths that cannot be
        """
        shared, rest = self._column(STORED - 2), self._column(STORED - 1)
        lengths = shared + rest
        wide, longest = int(shared.max()), int(lengths.max())
        ends = np.cumsum(rest)
        if (
            min(int(shared.min()), int(rest.min())) < 0
            or shared[0]
            or int(ends[-1]) != self._tails
            or (shared[1:] > lengths[:-1]).any()
            or self.count * longest > max(AREA, longest)
        ):
            raise ValueError("names that cannot be")
        raw = np.zeros(wide + self._tails + longest, np.uint8)
        raw[wide : wide + self._tails] = self._raw[len(self._raw) - self._tails :]
        rows = rows_at(raw, ends - rest - shared + wide, longest)
        # Of what a name shares with others each byte stands in the last row that does not share it.
        row = np.arange(self.count, dtype=np.int32)[:, None]
        owner = np.where(shared[:, None] <= np.arange(wide), row, np.int32(0))
        np.maximum.accumulate(owner, axis=0, out=owner)
        rows[:, :wide] = np.take_along_axis(rows[:, :wide], owner, axis=0)
        rows *= np.arange(longest) < lengths[:, None]
        return rows

    def _column(self, number: int) -> Int64:
        width, at = self._width[number], self._at[number]
        if width == 0:
            return np.full(self.count, self._base[number], np.int64)
        rows = np.zeros((self.count, 8), np.uint8)
        rows[:, :width] = self._raw[at : at + self.count * width].reshape(-1, width)
        found: Int64 = rows.view("<i8")[:, 0] + self._base[number]
        return found


# --- the file ---


class Run:
    """A run of blocks, names ascending from each to the next.

    parts   int64[b, 16], rows of `Part`
    firsts  the first name of each block
    starts  which rows a block has, [starts[i], starts[i + 1])
    count   rows, with those that are GONE
    """

    def __init__(self, storage: Storage, value: bytes) -> None:
        """Raises ValueError for bytes that are no index."""
        count, size = HEAD.unpack_from(value)
        width = 8 * len(Part._fields)
        if len(value) != HEAD.size + count * (width + 4) + size:
            raise ValueError("an index of another size")
        self._storage = storage
        at = HEAD.size + count * width
        self.parts = np.frombuffer(value, "<i8", count * len(Part._fields), HEAD.size).reshape(
            count, len(Part._fields)
        )
        ends = np.cumsum(np.frombuffer(value, "<u4", count, at), dtype=np.int64).tolist()
        texts = value[at + 4 * count :]
        self.firsts = [texts[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        rows = np.cumsum(self._field("rows"))
        self.starts: list[int] = [0, *rows.tolist()]
        self.count = self.starts[-1]
        if (ends[-1] if ends else 0) != size or (self.parts[:, :2] < 0).any():
            raise ValueError("an index that cannot be")
        self._blocks: dict[int, Block] = {}

    def _field(self, name: str) -> Int64:
        """A field of `Part`, of all blocks."""
        field: Int64 = self.parts[:, Part._fields.index(name)]
        return field

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

        cost    decodes the names of one block
        raises  DerivedDamage
        """
        number = bisect_right(self.firsts, name) - 1
        if number < 0:
            return 0
        return self.starts[number] + bisect_left(self.names(number), name)

    def rows(
        self, low: bytes = b"", high: bytes | None = None, times: Times = ALWAYS
    ) -> Iterator[Rows]:
        """The rows with names in [low, high), a block at a time. Raises DerivedDamage.

        times  blocks that have no mtime in it are left out
        """
        first_block = max(bisect_right(self.firsts, low) - 1, 0)
        stop = len(self.firsts) if high is None else bisect_left(self.firsts, high)
        wanted = np.arange(first_block, stop)
        since, until = times
        if since is not None:  # an mtime at either end may be one beyond it
            wanted = wanted[self._field("mtime_max")[wanted] >= min(since, MOST)]
        if until is not None:
            wanted = wanted[self._field("mtime_min")[wanted] < max(until, -MOST)]
        for i in wanted.tolist():
            names = self.names(i)
            first = bisect_left(names, low)
            last = len(names) if high is None else bisect_left(names, high)
            if first < last:
                yield Rows(names[first:last], self.block(i).numbers[first:last])

    def block(self, number: int) -> Block:
        """A block; the last KEPT ones stay in memory. Raises DerivedDamage. Cost: one read."""
        found = self._blocks.get(number)
        if found is None:
            found = _checked(self._storage, self.parts[number, :3].tolist(), Block)
            if len(self._blocks) >= KEPT:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = found
        return found

    def names(self, number: int) -> list[bytes]:
        """The names of a block. Raises DerivedDamage."""
        try:
            return self.block(number).names
        except ValueError as error:
            raise self.damage(number, error) from None

    def damage(self, number: int, error: ValueError) -> DerivedDamage:
        """What to raise for a block that cannot be decoded."""
        return DerivedDamage(str(error), file=self._storage.name, offset=int(self.parts[number, 0]))


class CatalogFile:
    """BASE.cat, open for reading.

    contid, covered  whose it is: CONTID, and FILESIZE of the data file
    clashes          of the first run: files, not directories, with whose name and a / another
                     begins; -1: not known
    runs             the oldest first; at least one
    """

    def __init__(self, storage: Storage) -> None:
        """Takes the storage; it is closed where this raises. Raises FormatError; OSError."""
        self.storage = storage
        try:
            self.superblock = block = read_superblock(storage)
            check_form(block, storage, PURPOSE_CATALOG)
            self.contid, self.covered = block.get("CONTID", 0), block.get("DATAEND", -1)
            self.clashes = block.get(CLASHES, -1)
            where = [block.get(name, 0) for name in (RUNS, RUNBYTES, RUNHASH)]
            words = _checked(storage, where, _words)
            self.listed: list[list[int]] = words.reshape(-1, 4).tolist()
            make = partial(Run, storage)
            self.runs = [_checked(storage, row[:3], make) for row in self.listed]
            if not self.runs:
                raise DerivedDamage("a catalog without a run", file=storage.name, offset=0)
        except ValueError as error:
            storage.close()
            raise DerivedDamage(str(error), file=storage.name, offset=0) from None
        except BaseException:
            storage.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.storage.close()

    @property
    def rows(self) -> int:
        """Rows of all runs."""
        return sum(run.count for run in self.runs)


def check_form(block: Superblock, storage: Storage, purpose: str) -> Layout:
    """Refuse what is no kvseq in the form of BASE.cat and BASE.cols, or not all of it.

    raises  FormatError
    """
    layout = Layout.of(block, storage.name)
    shape = (layout.delflag, layout.key.code, layout.value.code, layout.align, layout.checksum)
    whole = block["SBSIZE"] <= block.get("FILESIZE", 0) <= storage.size()
    mine = (block["FORMAT"], block.purpose) == (KVSEQ, purpose) and "SBCKSUM" in block
    if not (mine and whole and shape == (0, FIXED, LONG, ALIGN, 4)):
        raise FormatError(f"{storage.name}: not {purpose} of a container, or not all of it")
    block.check_known(storage.name)
    return layout


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


def _words(value: bytes) -> Int64:
    return np.frombuffer(value, "<i8").astype(np.int64)


def _hash(value: bytes) -> int:
    return int.from_bytes(xxhash.xxh3_64_digest(value), "little", signed=True)


class CatalogWriter:
    """Writes a BASE.cat, or more runs behind those of one."""

    def __init__(self, kv: KVSeq, runs: list[list[int]]) -> None:
        self._kv, self._runs = kv, runs
        self._parts: list[Part] = []
        self._firsts: list[bytes] = []

    @classmethod
    def create(cls, storage: Storage, contid: int) -> Self:
        """A new file in an empty storage."""
        block = Superblock.new(KVSEQ, PURPOSE_CATALOG, NEW | {"CONTID": contid}, 2 * HALF)
        storage.write(0, block.images())
        return cls(KVSeq(storage, block, writable=True), [])

    @classmethod
    def append_to(cls, storage: Storage, file: CatalogFile, kept: int) -> Self:
        """More runs behind the first `kept` of a file; `storage`: the same, open for writing.

        raises  DerivedDamage where it is not the same any more; the storage is closed then
        """
        try:
            kv = KVSeq.open(storage, writable=True)
            if kv.superblock != file.superblock:
                raise DerivedDamage("somebody has changed it", file=storage.name, offset=0)
        except BaseException:
            storage.close()
            raise
        return cls(kv, file.listed[:kept])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file; what was not finished is dropped."""
        self._kv.release()
        self._kv.storage.close()

    def write_run(self, rows: Iterable[Rows]) -> int:
        """A run of rows in byte order of their names, given in parts of any size -> rows.

        raises  OSError
        cost    one write; memory: a block
        """
        names: list[bytes] = []
        numbers: list[Int64] = []
        for part in rows:
            names += part.names
            numbers.append(part.numbers)
            if len(names) >= BLOCK:
                joined = np.concatenate(numbers)
                whole = len(names) - len(names) % BLOCK
                self._write_blocks(names[:whole], joined[:whole])
                names, numbers = names[whole:], [joined[whole:]]
        if names:
            self._write_blocks(names, np.concatenate(numbers))
        return self._end_run()

    def _write_blocks(self, names: list[bytes], numbers: Int64) -> None:
        for at in range(0, len(names), BLOCK):
            part = names[at : at + BLOCK]
            step = max(AREA // max(map(len, part)), 1)
            for low in range(0, len(part), step):
                rows = slice(at + low, min(at + low + step, at + len(part)))
                self._write_block(names[rows], numbers[rows])

    def _write_block(self, names: list[bytes], numbers: Int64) -> None:
        value = encode_block(names, numbers)
        self._parts.append(_part(self._append(b"b/000000", value), value, numbers))
        self._firsts.append(names[0])

    def _append(self, key: bytes, value: bytes) -> int:
        """Add an entry -> the position of its value."""
        kv = self._kv
        padding = -kv.end % ALIGN
        pos, head = kv.end + padding, key + len(value).to_bytes(8, "big")
        state = xxhash.xxh3_64(head, seed=(kv.layout.contid + pos) & MASK64)  # as a kvseq has it
        state.update(value)
        kv.append_parts([bytes(padding), head, value, state.digest()[-4:]], 1, 1)
        return pos + len(head)

    def _end_run(self) -> int:
        parts, firsts = self._parts, self._firsts
        self._parts, self._firsts = [], []
        lengths = np.fromiter(map(len, firsts), "<u4", len(firsts))
        texts = b"".join(firsts)
        words = np.array(parts, "<i8").tobytes()
        value = HEAD.pack(len(parts), len(texts)) + words + lengths.tobytes() + texts
        count = sum(part.rows for part in parts)
        pos = self._append(b"i/000000", value)
        self._runs.append([pos, len(value), _hash(value), count])
        return count

    def finish(self, covered: int, now: int, clashes: int | None = None) -> None:
        """Write the list of the runs and the superblock. Raises OSError.

        A new file is to be synced by the caller, one that has grown is durable on return.

        covered  DATAEND
        clashes  of the first run; None: it is as before
        """
        value = np.array(self._runs, "<i8").tobytes()
        pos = self._append(b"r/000000", value)
        places = {RUNS: pos, RUNBYTES: len(value), RUNHASH: _hash(value)}
        places["DATAEND"] = covered
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


def _sum_of(sizes: Int64) -> int:
    """Their sum, also where int64 cannot hold it."""
    if int(sizes.max()) > MOST // len(sizes):
        return sum(sizes.tolist())
    return int(sizes.sum())


def _part(pos: int, value: bytes, numbers: Int64) -> Part:
    gone = (numbers[:, KIND] & GONE) != 0
    live = numbers[~gone] if gone.any() else numbers
    if not len(live):
        return Part(pos, len(value), _hash(value), len(numbers), len(numbers), *[0] * 11)
    low, high = live.min(0).tolist(), live.max(0).tolist()
    kinds = int(np.bitwise_or.reduce(np.uint64(1) << (live[:, KIND] & 63).astype(np.uint64)))
    return Part(
        pos, len(value), _hash(value), len(numbers), len(numbers) - len(live),
        min(_sum_of(live[:, SIZE]), MOST), low[POS], high[POS], low[SIZE], high[SIZE],
        low[MTIME], high[MTIME], kinds - (kinds >> 63 << 64), 0, 0, 0,
    )  # fmt: skip
