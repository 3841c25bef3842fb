"""Orders: all files of a data set (or of one container), sorted by a key across its shards.

    ORDER/order.json              the source, the key and the parts; see `results`
    ORDER/<job>/part-00000.perm   perm, PURPOSE FSYSORDR, HTSIZE 0: one pair for each file, in order

    left   kv_pointer of the inode, in its shard
    right  number of the shard << 40 | number of the group in this part

The parts follow each other in the order. Files with equal keys are one group; a group is in one
part, and the groups of a part count from 0. A number of a shard is an index into "shards" of
order.json: [{"path", "contid", "size"}], as in the manifest (path "" for a single container).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Int64
from winkformats.disk.paths import locate, open_file
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.pagesums import PageSums
from winkformats.perm import PAIR, Perm
from winkfs.results import store as results

NAME: Final = "order"
PURPOSE: Final = "FSYSORDR"
SOURCE_FIELDS: Final = ("root", "generation", "kind", "key")
PART_NAME: Final = re.compile(r"part-[0-9]{5,}\.perm", re.ASCII)
SHARD_PATH: Final = re.compile(r"|(?!\.\.?(/|\Z))[^/\0]+(/(?!\.\.?(/|\Z))[^/\0]+)*")
GROUP_BITS: Final = 40
MAX_GROUPS: Final = 1 << GROUP_BITS
MAX_SHARDS: Final = 1 << (63 - GROUP_BITS)


@dataclass(frozen=True, slots=True)
class OrderedShard:
    """A container of an order. path: below the root; size: its FILESIZE when it was ordered."""

    path: str
    contid: int
    size: int


@dataclass(frozen=True, slots=True)
class OrderPart:
    """A perm of an order. rows: files; groups: different keys; size: bytes of content."""

    file: str
    rows: int
    groups: int
    size: int


class Range(NamedTuple):
    """Rows [start, stop) of the part with this number."""

    part: int
    start: int
    stop: int


class OrderedFiles(NamedTuple):
    """Files in order, int64[n] each: number of the shard, position of the inode, group."""

    shard: Int64
    pos: Int64
    group: Int64


@dataclass(frozen=True, slots=True)
class Order:
    """An open order.

    root        the data set or container
    generation  that was ordered; 0: a container
    kind        "sort" or "group"
    key         expression that it is sorted by
    """

    folder: Path
    root: str
    generation: int
    kind: str
    key: str
    shards: tuple[OrderedShard, ...]
    parts: tuple[OrderPart, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def groups(self) -> int:
        return sum(part.groups for part in self.parts)

    def read(self, where: Range) -> OrderedFiles:
        """Read the rows of a range. Raises FormatError; OSError."""
        return unpack(self._pairs(where.part, where.start, where.stop))

    def ranges(self, rows: int) -> list[Range]:
        """Split the order into ranges of about `rows`; if the kind is "group", only between groups.

        cost    a few reads for each range
        """
        return [found for part in range(len(self.parts)) for found in self._cut(part, rows)]

    def _cut(self, part: int, rows: int) -> list[Range]:
        total = self.parts[part].rows
        count = max(1, round(total / max(rows, 1)))
        cuts = sorted({total * i // count for i in range(count + 1)})
        if self.kind == "group" and count > 1:
            groups = unpack(self._pairs(part, 0, total)).group
            inner = [int(np.searchsorted(groups, groups[cut])) for cut in cuts[1:-1]]
            cuts = sorted({0, total, *inner})
        return [Range(part, a, b) for a, b in itertools.pairwise(cuts)]

    def _pairs(self, part: int, start: int, stop: int) -> npt.NDArray[Any]:
        """Read pairs [start, stop) -> ">i8"[n, 2]. Raises FormatError; OSError."""
        path = self.folder / self.parts[part].file
        with open_file(path) as storage:
            perm = Perm.open(storage)
            if perm.superblock.purpose != PURPOSE or len(perm) != self.parts[part].rows:
                raise CorruptError("not the part of this order", file=str(path), offset=0,
                                   expected=self.parts[part].rows, found=len(perm))  # fmt: skip
            at, length = perm.sbsize + PAIR.size * start, PAIR.size * (stop - start)
            sums = PageSums.load(storage, perm.superblock)
            if sums is not None:
                sums.check(at, at + length)
            return np.frombuffer(storage.read(at, length), ">i8").reshape(-1, 2)


def open(path: str | os.PathLike[str]) -> Order:
    """Open an order. Raises NoSuchFile; FormatError. Cost: reads one small file."""
    folder, record = results.load(path, NAME, "order")
    try:
        shards = tuple(OrderedShard(**shard) for shard in record["shards"])
        parts = tuple(OrderPart(**part) for part in record["parts"])
        head = {name: record[name] for name in SOURCE_FIELDS}
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: the record of the order lacks {error}: make it anew") from None
    sound = [_is_sound(s.path, SHARD_PATH, s.contid, s.size) for s in shards]
    sound += [_is_sound(p.file, PART_NAME, p.rows, p.groups, p.size) for p in parts]
    if not all(sound):
        raise FormatError(f"{path}: the record of the order names what it cannot have: make it "
                          "anew")  # fmt: skip
    return Order(folder, **head, shards=shards, parts=parts)


def _is_sound(path: object, form: re.Pattern[str], *numbers: object) -> bool:
    good = set(map(type, numbers)) == {int}
    return good and type(path) is str and form.fullmatch(path) is not None


def write_part(path: Path, blocks: Iterable[OrderedFiles], size: int = 0) -> OrderPart:
    """Write the perm of a part, durably. `blocks` are its rows in order; size: bytes of content.

    raises  ValueError if a number is too large; OSError
    """
    directory, name = locate(path)
    with directory.create_new(name) as storage:
        storage.remember_resident()  # no page of a new file: all are dropped below
        perm = Perm.create(storage, purpose=PURPOSE)
        last = -1
        for rows in blocks:
            perm.append_many(*pack(rows).T)
            last = int(rows.group[-1]) if len(rows.group) else last
        perm.seal()
        storage.sync()
        storage.drop_seen()
        return OrderPart(path.name, len(perm), last + 1, size)


def publish(folder: Path, order: Order) -> None:
    """Publish the parts in a folder of `results.begin` as the order, without empty parts."""
    record: dict[str, Any] = {name: getattr(order, name) for name in SOURCE_FIELDS}
    record["shards"] = [asdict(shard) for shard in order.shards]
    record["parts"] = [asdict(part) for part in order.parts if part.rows]
    results.finish(folder, NAME, record)


def pack(rows: OrderedFiles) -> Int64:
    """Encode rows as pairs of a part, int64[n, 2]. Raises ValueError if a number is too large."""
    for what, numbers, limit in (
        ("shards", rows.shard, MAX_SHARDS), ("groups in a part", rows.group, MAX_GROUPS)
    ):  # fmt: skip
        if len(numbers) and int(numbers.max()) >= limit:
            raise ValueError(f"an order takes at most {limit} {what}")
    return np.stack([rows.pos, rows.shard << GROUP_BITS | rows.group], axis=1)


def unpack(pairs: npt.NDArray[Any]) -> OrderedFiles:
    """Decode pairs, in either byte order, to rows."""
    right = pairs[:, 1].astype(np.int64)
    return OrderedFiles(right >> GROUP_BITS, pairs[:, 0].astype(np.int64), right & (MAX_GROUPS - 1))
