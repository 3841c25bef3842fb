"""The names of a mounted data set in one order, over the catalogs of its shards.

The rows of each shard are in the order of their names. So of the order of all only whose turn it
is is kept: which shard has the next name.

Chain        the shards one behind the other
Turns        any other order of the shards
MergedOrder  the names in that order: what a `Catalog` is for one container
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64, Strings, trim_heap
from winkformats.kv.entry import MASK64
from winkfs.container.namesorter import ClashFinder
from winkfs.container.ondisk.block import Blocks
from winkfs.container.table import COLUMNS, KIND, FileTable
from winkfs.entry import FileType
from winkfs.mounting.shards import Row, Seen

MERGED_NAMES: Final = 1 << 14  # names that are merged at once, about, or for each shard:
MERGED_SHARD_NAMES: Final = 1 << 6
ADDED_NAMES: Final = 1 << 10  # names that are put into an order one by one, or a part of all names:
ADDED_PART: Final = 64
SMALL_ORDER: Final = 1 << 16  # names of an order that is always made anew
SAMPLED_NAMES: Final = 1 << 14  # names remembered for searches, at most
TURNS_COUNTED: Final = 1 << 12  # turns that are counted together, at least, or for each shard:
TURNS_COUNTED_A_SHARD: Final = 16
ROWS_READ: Final = 1 << 10  # rows that are read together, at least, or for each shard:
ROWS_READ_A_SHARD: Final = 16
NEAR_ROWS: Final = 64  # rows from one that was asked for to the next that are close together
ROWS_FOR_ONE: Final = 4  # times the shards: rows that may be read for one that is asked for, about
KEPT_ROWS: Final = 1 << 14  # rows kept that were read together, or two sheets
KEPT_NAMES: Final = 1 << 12  # single names kept
KEPT_BLOCKS: Final = 256  # blocks kept of which single names are read: 40 KiB each

POWERS: Final = [pow(0x9E3779B97F4A7C15, n, 1 << 64) for n in range(1, (1 << 13) + 1)]
"""Odd numbers, one for each word of a name: see `_mark`."""
ShardNumbers = npt.NDArray[np.unsignedinteger]
"""Numbers of shards, uint8 or uint16[n]."""


class Chain:
    """Shards one behind the other.

    place    number of the shard that has a name, and its rank there
    spans    by shard: its number, the rank of the first of its names among the indices [start,
             stop), and where these are in it, ascending. Their ranks follow each other
    numbers  the shard of each name
    """

    def __init__(self, counts: Sequence[int]) -> None:
        """`counts`: of the names of each."""
        self._counts = counts
        self._starts = [0, *accumulate(counts)]

    def place(self, index: int) -> tuple[int, int]:
        shard = bisect.bisect_right(self._starts, index) - 1
        return shard, index - self._starts[shard]

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, Int64]]:
        at = start
        while at < stop:
            shard, rank = self.place(at)
            end = min(self._starts[shard + 1], stop)
            yield shard, rank, np.arange(at - start, end - start)
            at = end

    def numbers(self) -> ShardNumbers:
        return np.repeat(np.arange(len(self._counts), dtype=_width(self._counts)), self._counts)


class Turns:
    """Shards in any order, like `Chain`. Memory: 1 byte a name, 2 from 257 shards on."""

    def __init__(self, numbers: ShardNumbers, shards: int) -> None:
        self._numbers, self._shards = numbers, shards
        self._step = max(TURNS_COUNTED, TURNS_COUNTED_A_SHARD * shards)
        counts = [self._count(at, at + self._step) for at in range(0, len(numbers), self._step)]
        self._before = np.cumsum([np.zeros(shards, np.int64), *counts], axis=0)

    def _count(self, start: int, stop: int) -> Int64:
        """Return how often it is the turn of each shard, int64[shards]."""
        return np.bincount(self._numbers[start:stop], minlength=self._shards)

    def place(self, index: int) -> tuple[int, int]:
        shard = self._numbers.item(index)
        step = index // self._step
        before = self._numbers[step * self._step : index]
        return shard, self._before.item(step, shard) + int(np.count_nonzero(before == shard))

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, Int64]]:
        step, part = start // self._step, self._numbers[start:stop]
        ranks = self._before[step] + self._count(step * self._step, start)
        order = np.argsort(part, kind="stable")
        ends = np.cumsum(np.bincount(part, minlength=self._shards)).tolist()
        for shard, (low, high) in enumerate(pairwise([0, *ends])):
            if low < high:
                yield shard, int(ranks[shard]), order[low:high]

    def numbers(self) -> ShardNumbers:
        return self._numbers


class Sample(NamedTuple):
    """Some names, and how many of the order come before each: that many are less."""

    names: list[bytes]
    at: Int64


class MergedOrder:
    """Has what listings ask of a `winkfs.container.catalog.Catalog`, and `row`.

    count    names
    clashes  files, not directories, with whose name and a / another begins
    cost     memory: 3 bytes a name, 4 from 257 shards on; none where shards are one behind the
             other; SAMPLED_NAMES names; KEPT_ROWS and KEPT_BLOCKS that were read
    """

    def __init__(
        self,
        shards: Sequence[Seen],
        order: Chain | Turns,
        sample: Sample,
        owner: tuple[int, int],
        marks: npt.NDArray[np.uint16] | None = None,
    ) -> None:
        """Take all names: see `of`, `updated`.

        owner  user and group of files without an owner, in a shard that has no other one
        marks  bits of the hashes of the names, in order; None: names are found by searches alone
        """
        self.shards, self._order, self._sample, self._marks = shards, order, sample, marks
        self._owner = owner
        self.count = sum(shard.count for shard in shards)
        self.clashes = 0
        self._step = max(ROWS_READ, ROWS_READ_A_SHARD * len(shards))
        # by index // step, the last one read behind the others
        self._sheets: dict[int, FileTable] = {}
        self._sheet: tuple[int, list[bytes]] = 0, []  # the last one that was used: first, names
        self._blocks: dict[tuple[int, int], Blocks] = {}
        self._single_names: dict[int, bytes] = {}
        self._asked, self._many = 0, 0  # behind the last row asked for; how many lay close to it

    # --- how it is made ---

    @classmethod
    def of(cls, shards: Sequence[Seen], owner: tuple[int, int]) -> Self:
        """Make an order of all names; only one of several files with a name is visible. Raises
        DerivedDamage.

        shards  by rank
        cost    a merge of all names; nothing if the names of the shards are one behind the other.
                Memory while it runs: 200 bytes for each of MERGED_NAMES names, or of
                MERGED_SHARD_NAMES of each shard
        """
        shards = [shard for shard in shards if shard.count]
        return cls._chain(shards, owner) or cls._merged(shards, owner)

    @classmethod
    def _chain(cls, shards: Sequence[Seen], owner: tuple[int, int]) -> Self | None:
        """Make an order of shards one behind the other; None if they are not, or there are
        clashes."""
        if any(shard.catalog.clashes for shard in shards):
            return None
        shards = sorted(shards, key=lambda shard: shard.run.firsts[0])
        pairs = []
        for shard, following in pairwise(shards):
            block = shard.block(len(shard.run.firsts) - 1)
            last = block.name(block.starts[-1] - 1)  # maybe of one that is hidden
            pairs.append((last, following.run.firsts[0]))
            if pairs[-1][0] >= pairs[-1][1]:
                return None
        chain, names, at, start = Chain([shard.count for shard in shards]), [], [], 0
        for shard in shards:
            names += shard.run.firsts
            starts = np.array(shard.run.starts[:-1], np.int64)
            at.append(starts - np.searchsorted(shard.hidden, starts) + start)
            start += shard.count
        sample = Sample(names, np.concatenate([np.empty(0, np.int64), *at]))
        made = cls(shards, chain, sample, owner)
        found = {name for pair in pairs for name in _above(*pair)}
        return None if any(made._is_clash(made.find(name)) for name in found) else made

    @classmethod
    def _merged(cls, shards: Sequence[Seen], owner: tuple[int, int]) -> Self:
        total = sum(shard.count for shard in shards)
        numbers = np.empty(total, _width(shards))
        marks, finder = np.empty(total, np.uint16), ClashFinder()
        each, names, at = total // SAMPLED_NAMES + 1, list[bytes](), 0
        for part in _parts(shards):
            stop = at + len(part.names)
            numbers[at:stop] = part.shards
            marks[at:stop] = _marks(part.names)
            names += part.names[-at % each :: each].tolist()
            finder.add(part.names, part.directories)
            at = stop
        trim_heap()
        sample = Sample(names, np.arange(0, total, each))
        made = cls(shards, Turns(numbers, len(shards)), sample, owner, marks)
        made.clashes = len(finder.found)
        return made

    def updated(self, shards: Sequence[Seen]) -> MergedOrder:
        """Return an order for other shards. Those that this one has are not merged again.

        cost    as `of`, but where few names come a copy, and a search for each that comes
        """
        shards = [shard for shard in shards if shard.count]
        chain = MergedOrder._chain(shards, self._owner)
        if chain is not None:
            return chain
        old = None if self.clashes else self._kept(shards)
        known = {id(shard.catalog) for shard in self.shards}
        new = [(i, shard) for i, shard in enumerate(shards) if id(shard.catalog) not in known]
        come = sum(shard.count for _, shard in new)
        if old is None or old.count < SMALL_ORDER or come > ADDED_NAMES + old.count // ADDED_PART:
            return MergedOrder._merged(shards, self._owner)
        added = sorted(
            (name, i) for i, shard in new for names, _ in shard.names() for name in names.tolist()
        )
        return old._with(added)

    def _kept(self, shards: Sequence[Seen]) -> MergedOrder | None:
        """Return the part of this order that these shards still have; None if they have more."""
        numbers = self._order.numbers()
        known = {id(shard.catalog): i for i, shard in enumerate(shards)}
        now, kept = np.full(len(self.shards), -1), np.ones(len(numbers), bool)
        for i, shard in enumerate(self.shards):
            now[i] = known.get(id(shard.catalog), -1)
            if now[i] < 0:
                continue
            hidden = shards[now[i]].hidden
            if not np.isin(shard.hidden, hidden).all():
                return None
            gone = np.setdiff1d(hidden, shard.hidden, assume_unique=True)
            if len(gone):
                ranks = gone - np.searchsorted(shard.hidden, gone)
                kept[np.flatnonzero(numbers == i)[ranks]] = False
        kept &= (now >= 0)[numbers]
        names, at = self._sample
        sample = Sample(names, np.concatenate([[0], np.cumsum(kept)])[at])
        marks = None if self._marks is None else self._marks[kept]
        numbers_kept = now[numbers[kept]].astype(_width(shards))
        made = MergedOrder(shards, Turns(numbers_kept, len(shards)), sample, self._owner, marks)
        made.count = len(numbers_kept)
        return made

    def _with(self, added: Sequence[tuple[bytes, int]]) -> MergedOrder:
        """Return this order with more names: ascending, each with the number of its shard."""
        at, places, names = 0, list[int](), [name for name, _ in added]
        for name in names:
            places.append(at := self.lower_bound(name, at))
        numbers = np.insert(self._order.numbers(), places, [number for _, number in added])
        marks = self._marks
        if marks is not None:
            marks = np.insert(marks, places, list(map(_mark, names)))
        before = np.array(
            [bisect.bisect_left(names, name) for name in self._sample.names], np.int64
        )
        sample = Sample(self._sample.names, self._sample.at + before)
        made = MergedOrder(
            self.shards, Turns(numbers, len(self.shards)), sample, self._owner, marks
        )
        made.clashes = made._clashes_of(place + i for i, place in enumerate(places))
        return made

    def replace(self, old: Seen, new: Seen) -> bool:
        """Go on with another catalog of a shard -> False: it has other files."""
        if (old.run.count, old.count) != (new.run.count, new.count):
            return False
        self.shards = [new if shard is old else shard for shard in self.shards]
        self._blocks.clear()
        return True

    # --- clashes ---

    def _clashes_of(self, indices: Iterable[int]) -> int:
        """Count the clashes among these names and the names above them."""
        found, seen = set(), {b""}
        for index in indices:
            found.add(index)
            path = self.name(index).rpartition(b"/")[0]
            while path not in seen:
                seen.add(path)
                found.add(self.find(path))
                path = path.rpartition(b"/")[0]
        return sum(map(self._is_clash, found))

    def _is_clash(self, index: int) -> bool:
        """Return whether there is a file with this index, and names below it."""
        if index < 0 or self.row(index)[KIND] & 255 == FileType.DIR:
            return False
        below = self.name(index) + b"/"
        at = self.lower_bound(below, index + 1)
        return at < self.count and self.name(at).startswith(below)

    # --- what is asked of it ---

    def find(self, name: bytes) -> int:
        """Return the index of a name, -1: there is none. Raises DerivedDamage. Cost: reads one
        block, or as `lower_bound`."""
        if self._marks is None or self._in_sheet(name):
            at = self.lower_bound(name)
            return at if at < self.count and self.name(at) == name else -1
        low, high = self._near(name)
        alike = np.flatnonzero(self._marks[low : high + 1] == _mark(name))
        return next((low + i for i in alike.tolist() if self.name(low + i) == name), -1)

    def lower_bound(self, name: bytes, low: int = 0) -> int:
        """See `Catalog.lower_bound`. Cost: reads some blocks."""
        first, names = self._sheet
        if self._in_sheet(name):
            return max(low, first + bisect.bisect_left(names, name))
        least, high = self._near(name)
        least, high = max(least, low), max(high, low)
        return bisect.bisect_left(range(self.count), name, least, high, key=self.name)

    def _in_sheet(self, name: bytes) -> bool:
        """Return whether a name belongs into the rows that were used last."""
        _, names = self._sheet
        return bool(names) and names[0] <= name <= names[-1]

    def _near(self, name: bytes) -> tuple[int, int]:
        """Return indices between which the first name is that is not less."""
        names, at = self._sample
        i = bisect.bisect_left(names, name)
        return at.item(i - 1) if i else 0, at.item(i) if i < len(names) else self.count

    def name(self, index: int) -> bytes:
        """Return the name with this index. Raises DerivedDamage."""
        first, names = self._sheet
        if first <= index < first + len(names):
            return names[index - first]
        name = self._single_names.get(index)
        if name is None:
            _, block, at = self._single(index)
            if len(self._single_names) >= KEPT_NAMES:
                self._single_names.clear()
            name = self._single_names[index] = block.name(at)
        return name

    def row(self, index: int) -> Row:
        """Return the row with this index, without the owner of its shard. Raises DerivedDamage."""
        shard, block, at = self._single(index)
        return shard.single(block, at)

    def _single(self, index: int) -> tuple[Seen, Blocks, int]:
        """Return the shard that has this name, the block, and which of its rows it is."""
        which, rank = self._order.place(index)
        shard = self.shards[which]
        row = shard.row(rank)
        number = shard.run.find(row)
        return shard, self._block(which, number), row - shard.run.starts[number]

    def _block(self, which: int, number: int) -> Blocks:
        """Return a block of a shard. The last ones of all stay in memory."""
        found = self._blocks.pop((which, number), None) or self.shards[which].block(number)
        self._blocks[which, number] = found
        if len(self._blocks) > KEPT_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        return found

    def names(self, start: int, stop: int) -> list[bytes]:
        """Return the names with these indices. Raises DerivedDamage."""
        if not self.near(start, stop, self._step):
            return [self.name(index) for index in range(start, stop)]
        names = list[bytes]()
        while start < stop:
            first, rows = self.block(start)
            names += rows.names[start - first : stop - first]
            start = first + len(rows)
        return names

    def near(self, start: int, stop: int, many: int) -> bool:
        """Note which rows are asked for -> whether they are kept with those around them: if they
        are so many, or many were asked for that lie close together."""
        number, few = start // self._step, ROWS_FOR_ONE * len(self.shards)
        close = abs(start - self._asked) <= NEAR_ROWS
        self._many = min(self._many if close else 0, few) + stop - start
        self._asked = stop
        if number not in self._sheets:
            if self._many < few and stop - start < many:
                return False
            self._many -= few
        self.block(start)
        return True

    def block(self, index: int) -> tuple[int, FileTable]:
        """Return the rows that are read together with that of this index: index of the first of
        them, and the rows, not to be changed. Raises DerivedDamage."""
        number = index // self._step
        start = number * self._step
        rows = self._sheets.pop(number, None) or self._read(
            start, min(start + self._step, self.count)
        )
        self._sheets[number] = rows
        if len(self._sheets) > max(KEPT_ROWS // self._step, 2):
            del self._sheets[next(iter(self._sheets))]
        self._sheet = start, rows.names
        return start, rows

    def _read(self, start: int, stop: int) -> FileTable:
        """Read rows with ids, see `shards.Row`. Memory: 150 bytes a name, and the name."""
        texts: npt.NDArray[np.object_] = np.empty(stop - start, object)
        numbers = np.empty((stop - start, len(COLUMNS)), np.int64)
        for which, rank, at in self._order.spans(start, stop):
            shard = self.shards[which]
            low, high = shard.row(rank), shard.row(rank + len(at) - 1) + 1
            parts = [
                shard.rows(self._block(which, i), i, low_, high_)
                for i, low_, high_ in _within(shard, low, high)
            ]
            rows = FileTable.concat(parts)
            if shard.owner != self._owner:
                rows = rows.owned(shard.owner)
            texts[at], numbers[at] = rows.names, rows.numbers
        return FileTable(texts.tolist(), numbers)


def _within(shard: Seen, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """Yield the blocks that have some of the rows [low, high) of a shard, and which."""
    for number, part in shard.run.blocks(low, high):
        first = shard.run.starts[number]
        yield number, first + part.start, first + part.stop


def _above(last: bytes, first: bytes) -> Iterator[bytes]:
    """Yield the names of files that may be among those up to `last` and have names below them from
    `first` on, the next one.

    All that is between such a file and the first name below it begins with its name; what follows
    that there is less than a /, or, behind the last of them, no more.
    """
    for i in range(1, len(first)):
        if last[:i] != first[:i]:
            return
        if first[i] <= ord("/") and last[i : i + 1] < b"/":
            yield first[:i]


def _width(shards: Sequence[object]) -> type[np.unsignedinteger]:
    """Return the integer type for their numbers."""
    return np.uint8 if len(shards) <= 1 << 8 else np.uint16 if len(shards) <= 1 << 16 else np.uint32


def _mark(name: bytes) -> int:
    """Bits of a hash: the words of the name times the POWERS, added up."""
    words = (int.from_bytes(name[at : at + 8], "little") for at in range(0, len(name), 8))
    total: int = sum(map(mul, words, POWERS))
    return (total & MASK64) >> 48


def _marks(names: Strings) -> npt.NDArray[np.uint16]:
    """Return the marks of many names at once, see `_mark`."""
    if names.dtype.kind != "S":
        return np.fromiter(map(_mark, names), np.uint16, len(names))
    words = names.astype(f"S{names.itemsize + -names.itemsize % 8}").view("<u8")
    words = words.reshape(len(names), -1)
    found = words @ np.array(POWERS[: words.shape[1]], np.uint64)
    return (found >> np.uint64(48)).astype(np.uint16)


# --- merging ---


class _Merged(NamedTuple):
    """Names in order: of which shard each is, and whether it is the entry of a directory."""

    names: Strings
    shards: Int64
    directories: Bools


class _Cursor:
    """The names of a shard that were not taken yet: of these, `names` and which of them are entries
    of directories are in memory."""

    def __init__(self, shard: Seen) -> None:
        self._blocks = shard.names()
        self.names: Strings = np.empty(0, "S1")
        self.directories = np.empty(0, bool)

    def ahead(self, count: int) -> bytes | None:
        """Return the name behind so many, which are in memory then; None: there are no more."""
        found, n = [(self.names, self.directories)], len(self.names)
        while n <= count and (block := next(self._blocks, None)) is not None:
            found.append(block)
            n += len(block[0])
        if len(found) > 1:
            self.names, self.directories = map(np.concatenate, zip(*found, strict=True))
        return self.names.item(count) if count < n else None

    def take(self, last: bytes | None) -> tuple[Strings, Bools]:
        """Take the names up to the last one that is wanted; None: all in memory."""
        stop = len(self.names) if last is None else bisect.bisect_right(self.names, last)
        taken = self.names[:stop], self.directories[:stop]
        self.names, self.directories = self.names[stop:], self.directories[stop:]
        return taken


def _parts(shards: Sequence[Seen]) -> Iterator[_Merged]:
    """Yield the names of all shards in order. Of those with one name that of the last shard is
    last."""
    cursors = [_Cursor(shard) for shard in shards]
    each = max(MERGED_NAMES // max(len(shards), 1), MERGED_SHARD_NAMES)
    last: bytes | None = b""
    while last is not None:
        last = min(filter(None, (cursor.ahead(each) for cursor in cursors)), default=None)
        parts = [cursor.take(last) for cursor in cursors]
        names, directories = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(names, kind="stable")  # joins runs: timsort
        numbers = np.repeat(np.arange(len(parts)), [len(part) for part, _ in parts])
        if len(names):
            yield _Merged(names[order], numbers[order], directories[order])
