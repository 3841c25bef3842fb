"""Which rows of shards are hidden: files of one name are found by their hashes, then by names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats import hashing
from winkformats.arrays import Int64, UInt64
from winkfs.container.store import Store
from winkfs.dataset.hiddenfile import Hidden, clusters
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shard import NOTHING, Shard
from winkfs.mounting.shardnames import NameColumn, joined, names_at, tombstones

ROWS: Final = 1 << 25  # rows looked at in one pass: 0.8 GiB of memory
FEW: Final = 8  # an index with as many times more files is asked, not read: 2 us against 0.25
Problem = Callable[[str], None]
Ranks = npt.NDArray[np.uint32]


def hidden_rows(
    root: str,
    shards: Sequence[ShardRecord],
    known: Mapping[str, Int64],
    problem: Problem = lambda line: None,
) -> Hidden:
    """The same for any shards in the order of their ranks.

    known    the hidden rows of some of them, as they are among themselves
    problem  is told of each damaged place: what it replaced or deleted is unknown, and not hidden
    raises   StalePlan; FormatError; OSError
    """
    found = {record.path: known.get(record.path, NOTHING) for record in shards}
    for cluster in clusters(shards):
        if all(record.path in known for record in cluster):
            continue
        new = [record.path not in known for record in cluster]
        opened = [Shard(f"{root}/{record.path}", record) for record in cluster]
        rows = sum(record.files for record, fresh in zip(cluster, new, strict=True) if fresh)
        parts = rows // ROWS + 1
        for part in range(parts):
            for record, more in _resolve(opened, new, part, parts, problem):
                found[record.path] = np.union1d(found[record.path], more)
    return found


# --- rows of equal names ---


class _Rows(NamedTuple):
    """What one shard says of names. S is XXH3 of the inode key; tombstones stand behind files."""

    s: UInt64
    pos: Int64


def _resolve(
    shards: list[Shard], new: list[bool], part: int, parts: int, problem: Problem
) -> Iterator[tuple[ShardRecord, Int64]]:
    """Hidden rows among the names whose hashes are in this part, of pairs with a new shard."""
    rows: list[_Rows] = [_rows_of(shard, part, parts, problem) if fresh else _Rows(_NO_S, NOTHING)
                         for shard, fresh in zip(shards, new, strict=True)]  # fmt: skip
    if not all(new):
        wanted = np.unique(np.concatenate([found.s for found in rows]))
        for i, fresh in enumerate(new):
            if not fresh:
                rows[i] = _matches(shards[i], wanted, problem)
    s = np.concatenate([found.s for found in rows])
    pos = np.concatenate([found.pos for found in rows])
    rank = np.repeat(np.arange(len(shards), dtype=np.uint32), [len(found.s) for found in rows])
    del rows
    chosen, group = _groups(s)
    if not len(chosen):
        return
    pos, rank = pos[chosen], rank[chosen]
    gone = _beaten(group, rank, _names(shards, pos, rank))
    ends = np.array([shard.record.tombs_at or shard.record.size for shard in shards])
    gone &= pos < ends[rank]
    for i in np.flatnonzero(np.bincount(rank[gone])).tolist():
        yield shards[i].record, np.sort(pos[gone & (rank == i)])


def _groups(s: UInt64) -> tuple[Int64, Int64]:
    """-> indices of the values that come twice or more, equal ones together; number of the group
    of each, ascending."""
    ordered = np.sort(s)
    if not (ordered[1:] == ordered[:-1]).any():
        return NOTHING, NOTHING
    order = np.argsort(s)
    ordered = s[order]
    first = np.ones(len(s) + 1, bool)
    first[1:-1] = ordered[1:] != ordered[:-1]
    several = ~(first[:-1] & first[1:])
    return order[several], np.cumsum(first[:-1][several]) - 1


def _beaten(group: Int64, rank: Ranks, names: NameColumn) -> npt.NDArray[np.bool_]:
    """Which rows have a name that comes again with a higher rank. A group has one hash.

    Where two names have one hash, they are told apart one by one.
    """
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    beaten: npt.NDArray[np.bool_] = rank < np.maximum.reduceat(rank, starts)[group]
    clash = names != names[starts][group]
    for number in np.unique(group[clash]).tolist():
        rows = np.flatnonzero(group == number).tolist()
        top: dict[bytes, int] = {}
        for i in rows:
            top[names[i]] = max(int(rank[i]), top.get(names[i], 0))
        for i in rows:
            beaten[i] = int(rank[i]) < top[names[i]]
    return beaten


def _names(shards: list[Shard], pos: Int64, rank: Ranks) -> NameColumn:
    """The names of rows, in their order."""
    order = np.argsort(rank.astype(np.uint16) if len(shards) < 1 << 16 else rank, kind="stable")
    edges = np.searchsorted(rank[order], np.arange(len(shards) + 1)).tolist()
    parts = []
    for shard, (a, b) in zip(shards, pairwise(edges), strict=True):
        if a < b:
            with _opened(shard) as store:
                parts.append(names_at(store, pos[order[a:b]]))
    names = joined(parts)
    found = np.empty_like(names)
    found[order] = names
    return found


@contextlib.contextmanager
def _opened(shard: Shard, problem: Problem = lambda line: None) -> Iterator[Store]:
    store = shard.open()
    try:
        yield store
        for note in store.notes:
            problem(note)
    finally:
        store.abandon()


_NO_S: Final[UInt64] = np.empty(0, np.uint64)


def _rows_of(shard: Shard, part: int, parts: int, problem: Problem) -> _Rows:
    """All rows of a shard whose hashes are in this part."""
    with _opened(shard, problem) as store:
        if _hashed(store):
            live = store.index.merged()[0]
            s, pos = live.s, live.pos
        else:
            pos = store.index.positions()
            s = _hash(names_at(store, pos).tolist())
        gone, where = tombstones(store, shard.record.tombs_at if shard.record.tombstones else 0)
        if gone:
            s, pos = np.concatenate([s, _hash(gone)]), np.concatenate([pos, where])
    if parts > 1:
        chosen = (s >> np.uint64(32)) % np.uint64(parts) == part
        s, pos = s[chosen], pos[chosen]
    return _Rows(s, pos)


def _matches(shard: Shard, wanted: UInt64, problem: Problem) -> _Rows:
    """The rows of a shard with these hashes, ascending."""
    record = shard.record
    if record.files > FEW * len(wanted) and not record.tombstones:
        with _opened(shard) as store:
            base = store.index.base
            if _hashed(store) and base is not None and not store.index.pending:
                return _Rows(*store.index.cells_of(wanted))
    rows = _rows_of(shard, 0, 1, problem)
    if not len(wanted):
        return _Rows(_NO_S, NOTHING)
    at = np.minimum(np.searchsorted(wanted, rows.s), len(wanted) - 1)
    chosen = wanted[at] == rows.s
    return _Rows(rows.s[chosen], rows.pos[chosen])


def _hashed(store: Store) -> bool:
    """Whether its index has the hashes that all shards are compared by."""
    return store.settings.htalgo == hashing.XXH3 and store.settings.cellsz > 1


def _hash(names: Iterable[bytes]) -> UInt64:
    return hashing.hash_keys(hashing.XXH3, [name + b"/I0" for name in names])[0]
