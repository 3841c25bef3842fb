"""A run of blocks of BASE.cat, and its index.

The index of a run, little-endian: uint64 n, uint64 bytes of the names, int64[n, 16] (see PART),
uint32[n] lengths of the names, and the names: the first one of each block. Where there are columns
of the user, behind that at multiples of 8: uint64 bytes of their schema, the schema,
int64[columns, n, 6] (see VALUES). Positions are those of values.

The brief index has what a look-up by name needs, for readers to whom each byte costs. A raw deflate
stream of: uint64 n, int64[4, n], each row but that of the hashes as differences: pos, length, hash,
rows of the blocks; uint32[n] bytes of the first names, uint32[n] how many of them are those of the
first name before it; the others.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, pairwise
from operator import add
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64, among, text_column
from winkformats.disk.storage import Storage
from winkformats.hashing import xxh3_signed
from winkfs.container.ondisk.block import ALIGN, HEAD, MOST, SLACK, Blocks
from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.typed import Schema, later_words, pack, parse_schema, schema_text
from winkfs.container.table import ALWAYS, ASK, COLUMNS, GONE, KIND, POS, FileTable, Times
from winkfs.errors import DerivedDamage
from winkfs.units import MICRO

if TYPE_CHECKING:
    from winkfs.container.where import Condition

KEPT_BLOCKS: Final = 64  # in memory, as look-ups after a listing return to its blocks
AT_ONCE: Final = 16  # blocks that are decoded together: more would leave the cache of a core
GAP_BYTES: Final = 4 << 10  # between two blocks, in the mean, that are read with them
CACHED_BYTES: Final = 64 << 20  # that a pass leaves in the page cache; what was there stays
FAR_STEPS: Final = 32  # times as many blocks are requested at once of a file that is far
DROP_BYTES: Final = 4 << 20  # beyond these, that are dropped at a time
T = TypeVar("T")
Place = tuple[int, int, int]
"""Of a value: position, bytes and hash."""
NO_NUMBERS: Final = np.empty(0, np.int64)
PART: Final = np.dtype([(name, "<i8") for name in (
    "pos", "length", "hash", "rows", "gone", "content", "pos_min", "pos_max", "size_min",
    "size_max", "mtime_min", "mtime_max", "kinds", "asked", "spare1", "spare2",
)])  # fmt: skip
"""A block in the index of a run.

pos, length, hash   position of its value, bytes, XXH3-64
rows, gone          number of rows, and of those that are GONE
content             sum of the sizes, at most 2^63 - 1
.._min, .._max      bounds of the live rows
kinds               their FTYPEs as bits, modulo 64
asked               rows that have ASK; 0 in files of older versions
"""
BRIEF_FIELDS: Final = ("pos", "length", "hash", "rows")
MOST_BRIEF: Final = 1 << 28  # bytes of a brief index, not deflated
VALUES: Final = np.dtype([(name, "<i8") for name in (
    "pos", "length", "hash", "nulls", "low", "high",
)])  # fmt: skip
"""The values of a column in a block: their place as in PART, then `Column.zone`."""


class Run:
    """A run of blocks, names ascending from each to the next.

    parts   PART[b], of the blocks
    places  of them `pos`, `length`, `hash` and `rows`
    firsts  the first name of each block
    starts  block i has the rows [starts[i], starts[i + 1])
    count   number of rows, including those that are GONE
    schema  the columns of the user; values: of each VALUES[b]
    """

    def __init__(self, storage: Storage, value: bytes) -> None:
        """Decode the index of a run. Raises ValueError."""
        count, size = HEAD.unpack_from(value)
        at = HEAD.size + count * PART.itemsize
        end = at + 4 * count + size
        if len(value) < end:
            raise ValueError("an index of another size")
        self._storage = storage
        self.schema, table = _typed(value, end, count)
        self.values = dict(zip(self.schema, table, strict=True))
        # Any: mypy tries each overload of NumPy for fields, whose types it does not know anyway.
        self.parts: Any = np.frombuffer(value, PART, count, HEAD.size)
        self.places: Any = self.parts
        lengths = np.frombuffer(value, "<u4", count, at)
        ends = list(accumulate(lengths.tolist(), initial=at + 4 * count))
        self.firsts = [value[a:b] for a, b in pairwise(ends)]
        self.starts: list[int] = [0, *np.cumsum(self.parts["rows"]).tolist()]
        self.count = self.starts[-1]
        if ends[-1] != end or (self.parts["pos"] | self.parts["length"] < 0).any():
            raise ValueError("an index that cannot be")
        self._blocks: dict[int, Blocks] = {}

    def totals(self) -> tuple[int, int, int, int]:
        """Return number and sum of the sizes of the live rows, least and greatest mtime; zeros: no
        rows."""
        parts = self.parts[self.parts["rows"] > self.parts["gone"]]
        if not len(parts):
            return 0, 0, 0, 0
        times = int(parts["mtime_min"].min()), int(parts["mtime_max"].max())
        return int((parts["rows"] - parts["gone"]).sum()), sum(parts["content"].tolist()), *times

    def asked(self) -> list[int]:
        """Return positions of the inodes that must be read (ASK). Raises DerivedDamage.

        cost  reads the blocks that have such rows
        """
        found = self._tables(np.flatnonzero(self.parts["asked"]))
        return [pos for _, rows in found for pos in rows.pos[rows.asked].tolist()]

    def find(self, index: int) -> int:
        """Return the number of the block that has this row."""
        return bisect_right(self.starts, index) - 1

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, slice]]:
        """Yield the blocks that have some of the rows [start, stop), and which of their rows."""
        stop = min(stop, self.count)
        number = self.find(start)
        while start < stop:
            first, end = self.starts[number], self.starts[number + 1]
            yield number, slice(start - first, min(stop, end) - first)
            start, number = end, number + 1

    def lower_bound(self, name: bytes) -> int:
        """Return the index of the first row whose name is >= `name`; `count`: there is none.

        cost    decodes one block
        raises  DerivedDamage
        """
        number = self.number_of(name)
        if number < 0:
            return 0
        return self.starts[number] + bisect_left(self.block(number).texts, name)

    def row(self, name: bytes) -> list[int] | None:
        """Return the COLUMNS of the row of a name; None: there is none. Raises DerivedDamage.

        cost    decodes one block
        """
        number = self.number_of(name)
        if number < 0:
            return None
        block = self.block(number)
        index = bisect_left(block.texts, name)
        found = index < len(block.texts) and block.texts[index] == name
        return block.row(index) if found else None

    def rows_of(self, names: list[bytes], numbers: Int64) -> Int64:
        """Return the COLUMNS of the rows of many names, int64[n, 8], zeros if there is none.

        numbers  of their blocks, see `number_of`
        raises   DerivedDamage
        cost     decodes each of the blocks once
        """
        found = np.zeros((len(names), len(COLUMNS)), np.int64)
        order = np.argsort(numbers, kind="stable")
        order = order[numbers[order] >= 0]
        blocks, starts = np.unique(numbers[order], return_index=True)
        starts = np.append(starts, len(order))
        for first in range(0, len(blocks), AT_ONCE):
            part = blocks[first : first + AT_ONCE]
            which = order[starts[first] : starts[first + len(part)]]
            table = self.read(part).table
            asked = text_column([names[i] for i in which.tolist()])
            texts = table.column
            if object in (texts.dtype, asked.dtype):  # long names
                texts, asked = texts.astype(object), asked.astype(object)
            at = np.minimum(np.searchsorted(texts, asked), len(texts) - 1)
            same = texts[at] == asked
            found[which[same]] = table.numbers[at[same]]
        return found

    def number_of(self, name: bytes) -> int:
        """Return the number of the block that has a name, if one has; -1: none can."""
        return bisect_right(self.firsts, name) - 1

    def fetch(self, numbers: Int64) -> None:
        """Announce blocks that will be read, see `Storage.fetch`."""
        places = self.places[["pos", "length", "hash"]][numbers].tolist()
        ranges = [(pos, pos + length) for pos, length, _ in places]
        self._storage.fetch(ranges, [hashed for *_, hashed in places])

    # --- many blocks ---

    def rows(
        self,
        low: bytes = b"",
        high: bytes | None = None,
        times: Times = ALWAYS,
        where: Condition | None = None,
        columns: Sequence[str] = (),
        at_once: int | None = None,
        between: tuple[int, int] | None = None,
    ) -> Iterator[FileTable]:
        """Yield the rows with names in [low, high), many blocks at a time. Raises DerivedDamage.

        times    blocks without an mtime in it are left out
        where    rows for which it is not true are left out, except those with ASK; blocks in which
                 it cannot be true are not read
        columns  columns of the user whose values the rows contain
        at_once  blocks read together; None: AT_ONCE
        between  blocks without a position in it are left out
        """
        wanted = self.wanted(low, high, times)
        if between is not None:
            parts = self.parts[wanted]
            near = (parts["pos_max"] >= between[0]) & (parts["pos_min"] < between[1])
            wanted = wanted[near | (parts["asked"] > 0)]
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
        """Return the blocks that may have names in [low, high), and such mtimes, int64[..]."""
        first = max(bisect_right(self.firsts, low) - 1, 0)
        stop = len(self.firsts) if high is None else bisect_left(self.firsts, high)
        if times == ALWAYS:
            return np.arange(first, max(stop, first))
        parts, (since, until) = self.parts[first:stop], times
        wanted = np.ones(len(parts), bool)
        if since is not None:  # an mtime at either end may be one beyond it
            wanted &= parts["mtime_max"] >= min(since, MOST)
        if until is not None:
            wanted &= parts["mtime_min"] < max(until, -MOST)
        return first + np.flatnonzero(wanted | (parts["asked"] > 0))

    def near(self, positions: Int64) -> Int64:
        """Return the blocks that may have one of these ascending positions, int64[b]."""
        low = np.searchsorted(positions, self.parts["pos_min"])
        high = np.searchsorted(positions, self.parts["pos_max"], "right")
        return np.flatnonzero((low < high) & (self.parts["gone"] < self.parts["rows"]))

    def positions(self) -> Int64:
        """Return positions of all inodes, in order. Raises DerivedDamage. Reads all blocks."""
        found = (blocks.column(POS) for _, blocks in self.decoded(self.wanted()))
        return np.concatenate([NO_NUMBERS, *found])

    def at(self, positions: Int64, blocks: Int64) -> Iterator[FileTable]:
        """Yield the complete rows of these blocks that have one of these ascending positions.

        raises  DerivedDamage
        """
        for _, rows in self._tables(blocks):
            chosen = among(rows.pos, positions) & ~(rows.gone | rows.asked)
            if chosen.any():
                yield rows.take(chosen)

    def values_between(
        self, low: int, high: int, typed: Mapping[str, str]
    ) -> Iterator[tuple[Int64, dict[str, Column]]]:
        """Yield positions and values of files whose inodes are in [low, high), many blocks at a
        time; a missing column is null. Raises DerivedDamage."""
        near = (self.parts["pos_max"] >= low) & (self.parts["pos_min"] < high)
        near &= self.parts["gone"] < self.parts["rows"]
        for numbers, blocks in self.decoded(np.flatnonzero(near)):
            pos = blocks.column(POS)
            chosen = (pos >= low) & (pos < high) & (blocks.column(KIND) & GONE == 0)
            yield self._values(numbers, pos, np.flatnonzero(chosen), typed)

    def values_named(
        self, low: bytes, high: bytes | None, typed: Mapping[str, str]
    ) -> Iterator[tuple[Int64, dict[str, Column]]]:
        """Yield as `values_between` for files with names in [low, high), and others of their
        blocks, without those whose inodes must be read."""
        for numbers, blocks in self.decoded(self.wanted(low, high)):
            chosen = np.flatnonzero(blocks.column(KIND) & (GONE | ASK) == 0)
            yield self._values(numbers, blocks.column(POS), chosen, typed)

    def _values(
        self, numbers: Int64, pos: Int64, chosen: Int64, typed: Mapping[str, str]
    ) -> tuple[Int64, dict[str, Column]]:
        """Return positions and values of some rows of blocks; `pos`: of all their rows."""
        columns = {
            name: self._column(numbers, name, kind).take(chosen).cast(kind)
            for name, kind in typed.items()
        }
        return pos[chosen], columns

    def _possible(self, where: Condition) -> Bools:
        """Return the blocks in which a condition can be true for some file, bool[b]."""
        from winkfs.container.where import BUILTIN, Zone  # late: most commands have no condition

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
        found: Bools = possible | (self.parts["asked"] > 0)
        return found

    # --- reading ---

    def block(self, number: int) -> Blocks:
        """Return a block; the last KEPT_BLOCKS ones stay in memory.

        raises  DerivedDamage
        cost    one read
        """
        found = self._blocks.get(number)
        if found is None:
            found = self.read(np.array([number]))
            if len(self._blocks) >= KEPT_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = found
        return found

    def _tables(
        self, wanted: Int64, at_once: int | None = None
    ) -> Iterator[tuple[Int64, FileTable]]:
        """Yield these blocks, some at a time, and all their rows. Raises DerivedDamage."""
        for numbers, blocks in self.decoded(wanted, at_once):
            yield numbers, blocks.table

    def decoded(self, wanted: Int64, at_once: int | None = None) -> Iterator[tuple[Int64, Blocks]]:
        """Yield these blocks, ascending, some at a time; at most CACHED_BYTES of them stay in the
        page cache. Raises DerivedDamage."""
        step = at_once or AT_ONCE
        pos, size = self.places["pos"][wanted], self.places["length"][wanted]
        beyond = np.flatnonzero(np.cumsum(size) > CACHED_BYTES)
        at = int(pos[beyond[0]]) if len(beyond) else 0
        drop = self._storage.dropper(at, int((pos + size).max())) if at else None
        try:
            for first in range(0, len(wanted), step):
                numbers = wanted[first : first + step]
                if self._storage.far and not first % (FAR_STEPS * step):
                    self.fetch(wanted[first : first + FAR_STEPS * step])
                yield numbers, self.read(numbers)
                here = int(pos[first + len(numbers) - 1])
                if drop is not None and here > at + DROP_BYTES:
                    drop(at, here)
                    at = here
        finally:
            if drop is not None:
                with suppress(OSError):  # it may have been closed before all was read
                    drop(at, self._storage.size())

    def read(self, numbers: Int64) -> Blocks:
        """Read blocks, which are not kept. Raises DerivedDamage."""
        storage, name = self._storage, self._storage.name
        places, sizes, hashes, counts = (
            self.places[field][numbers].tolist() for field in ("pos", "length", "hash", "rows")
        )
        low, high = min(places), max(map(add, places, sizes))
        if high > storage.size():
            raise DerivedDamage("the catalog is cut short", file=name, offset=low)
        near = high - low <= sum(sizes) + GAP_BYTES * len(places)
        if near and not storage.far:  # one read instead of many
            at, size = [place - low for place in places], high - low + SLACK
            data = storage.read(low, size).ljust(size, b"\0")
        else:
            self.fetch(numbers)
            at = list(accumulate(sizes[:-1], initial=0))
            data = b"".join([*map(storage.read, places, sizes), bytes(SLACK)])
        view = memoryview(data)
        for place, size, hashed, start in zip(places, sizes, hashes, at, strict=True):
            if xxh3_signed(view[start : start + size]) != hashed:
                raise DerivedDamage("a block of the catalog is wrong", file=name, offset=place)
        raw = np.frombuffer(data, np.uint8)
        found = Blocks(raw, np.array(at), np.array(sizes), name, low)
        if found.counts.tolist() != counts:
            what = "blocks with other rows than the index has"
            raise DerivedDamage(what, file=name, offset=low)
        return found

    def _column(self, numbers: Int64, name: str, kind: str) -> Column:
        """Return the values of a column in some blocks; a missing column is null, of this `kind`.

        raises  DerivedDamage
        cost    a read for each block
        """
        if name not in self.schema:
            return Column.nulls(kind, int(self.parts["rows"][numbers].sum()))
        kind, parts = self.schema[name], list[Column]()
        counts, table = self.parts["rows"][numbers].tolist(), self.values[name][numbers].tolist()
        for rows, (pos, length, hashed, *_) in zip(counts, table, strict=True):
            decode = partial(Column.decode, kind, rows=rows)
            parts.append(checked(self._storage, (pos, length, hashed), decode) if length > 0 else
                         Column.nulls(kind, rows))  # fmt: skip
        return Column.concat(parts)


class BriefRun(Run):
    """A run of which the brief index was read; its other numbers are read when they are needed."""

    def __init__(self, storage: Storage, value: bytes, *, whole: Callable[[], Run]) -> None:
        """Decode a brief index. Raises ValueError. `whole`: reads the index of the run."""
        self._storage, self._whole = storage, whole
        self.places, self.firsts = decode_brief(value)
        self.starts = [0, *np.cumsum(self.places["rows"]).tolist()]
        self.count = self.starts[-1]
        self._blocks = {}

    def __getattr__(self, name: str) -> Any:
        if name not in ("parts", "schema", "values"):
            raise AttributeError(name)
        whole = self._whole()
        self.parts, self.schema, self.values = whole.parts, whole.schema, whole.values
        return getattr(self, name)


def encode_brief(parts: npt.NDArray[np.void], firsts: Sequence[bytes]) -> bytes:
    """Encode the brief index of a run."""
    words = np.array([parts[name] for name in BRIEF_FIELDS], "<i8")
    plain = [name == "hash" for name in BRIEF_FIELDS]
    words = np.where(np.array(plain)[:, None], words, np.diff(words, prepend=0))
    shared = [_shared(*pair) for pair in pairwise([b"", *firsts])]
    lengths = np.array([list(map(len, firsts)), shared], "<u4")
    rest = [name[skip:] for name, skip in zip(firsts, shared, strict=True)]
    whole = [len(parts).to_bytes(8, "little"), words.astype("<i8").tobytes(), lengths.tobytes()]
    coder = zlib.compressobj(wbits=-15)
    return coder.compress(b"".join([*whole, *rest])) + coder.flush()


def _shared(one: bytes, other: bytes) -> int:
    """Return how many bytes both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def decode_brief(value: bytes) -> tuple[npt.NDArray[np.void], list[bytes]]:
    """Decode a brief index -> PART[b] with its fields, and the first names. Raises ValueError."""
    try:
        decoder = zlib.decompressobj(wbits=-15)
        data = decoder.decompress(value, MOST_BRIEF)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    count = int.from_bytes(data[:8], "little")
    at = 8 + 32 * count
    if not decoder.eof or decoder.unused_data or not 0 < count <= len(data) // 40:
        raise ValueError("a brief index of another size")
    words = np.frombuffer(data, "<i8", 4 * count, 8).reshape(4, count)
    lengths, shared = np.frombuffer(data, "<u4", 2 * count, at).reshape(2, count).tolist()
    at += 8 * count
    parts, firsts, last = np.zeros(count, PART), list[bytes](), b""
    for field, row in zip(BRIEF_FIELDS, words, strict=True):
        parts[field] = row if field == "hash" else np.cumsum(row)
    for length, skip in zip(lengths, shared, strict=True):
        last = last[:skip] + data[at : at + length - skip]
        at += length - skip
        firsts.append(last)
    if at != len(data) or list(map(len, firsts)) != lengths:
        raise ValueError("names that cannot be")
    if (parts["pos"] | parts["length"] | parts["rows"] < 0).any():
        raise ValueError("an index that cannot be")
    return parts, firsts


def checked(storage: Storage, where: Sequence[int], make: Callable[[bytes], T]) -> T:
    """Verify a value, and decode it with `make`. `where`: its position, bytes and hash.

    raises  DerivedDamage
    """
    pos, length, hashed = where
    if pos < 0 or not 0 <= length <= storage.size() - pos:
        raise DerivedDamage("the catalog is cut short", file=storage.name, offset=pos)
    storage.fetch([(pos, pos + length)], [hashed])
    value = storage.read(pos, length)
    if xxh3_signed(value) != hashed:
        raise DerivedDamage("a block of the catalog is wrong", file=storage.name, offset=pos)
    try:
        return make(value)
    except (ValueError, struct.error) as error:
        raise DerivedDamage(str(error), file=storage.name, offset=pos) from None


def _typed(value: bytes, at: int, blocks: int) -> tuple[dict[str, str], npt.NDArray[np.void]]:
    """Decode the end of the index of a run, from `at` on -> its schema, VALUES[columns, blocks].

    Columns of types that this version does not know are left out.
    """
    if len(value) == at:
        return {}, np.empty((0, blocks), VALUES)
    at += -at % ALIGN
    size = int.from_bytes(value[at : at + 8], "little")
    text = value[at + 8 : at + 8 + size]
    schema, later, words = parse_schema(text), later_words(text), text.decode().split()
    at += 8 + size + -size % ALIGN
    if len(value) != at + len(words) * blocks * VALUES.itemsize:
        raise ValueError("an index of another size")
    values = np.frombuffer(value, VALUES, -1, at).reshape(len(words), blocks)
    return schema, values[[word not in later for word in words]] if later else values


def encode_index(
    parts: npt.NDArray[np.void],
    firsts: Sequence[bytes],
    schema: Schema,
    values: npt.NDArray[np.void],
) -> bytes:
    """Encode the index of a run. `values`: VALUES[blocks, columns]."""
    lengths = np.array(list(map(len, firsts)), "<u4")
    head = HEAD.pack(len(parts), int(lengths.sum()))
    value = b"".join([head, parts.tobytes(), lengths.tobytes(), *firsts])
    if schema:
        text = schema_text(schema)
        value += bytes(-len(value) % ALIGN) + len(text).to_bytes(8, "little") + text
        value += bytes(-len(value) % ALIGN)
        value += values.reshape(len(parts), len(schema)).T.tobytes()
    return value
