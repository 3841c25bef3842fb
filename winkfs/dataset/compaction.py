"""Compact and rebalance: the same files in fewer, or more even shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from winkfs.dataset.manifest import Log, root_of
from winkfs.dataset.rewrite import Group, rewrite
from winkfs.dataset.shard import Shard
from winkfs.dataset.snapshot import Snapshot, snapshot_of
from winkfs.dataset.transaction import begin
from winkfs.errors import DatasetConflict

SHARD_SIZE: Final = 1 << 30  # bytes of a shard to aim at
HIDDEN: Final = 0.25  # of the files of a shard from which it is worth a rewrite
TRIES: Final = 2
MERGED: Final = 16  # append-only shards merged at a time: each takes 8 MiB of memory
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rewrite did.

    generation      the new one; that which was there where nothing was to be done
    removed, added  numbers of shards; before, after: bytes of them
    """

    generation: int
    removed: int = 0
    added: int = 0
    before: int = 0
    after: int = 0


def compact(
    path: str | os.PathLike[str],
    *,
    shard_size: int = SHARD_SIZE,
    everything: bool = False,
    progress: Progress | None = None,
) -> Rewritten:
    """Join small shards, and drop what is hidden of those that have much of it.

    shard_size  bytes of a shard to aim at
    everything  rewrite all shards that have hidden files or tombstones, and all that are small
    progress    called with the number of files since the last call
    ->          the same files are to be seen; older generations keep their shards until a vacuum
    raises      DatasetConflict where others were faster twice; CorruptError; StalePlan; OSError
    cost        10 us a file of 4 KiB that is copied
    """
    _check_size(shard_size)
    least = 0.0 if everything else HIDDEN
    return _run(path, "compact", progress, lambda seen: compaction(seen, shard_size, least))


def rebalance(
    path: str | os.PathLike[str],
    *,
    shards: int | None = None,
    shard_size: int = SHARD_SIZE,
    progress: Progress | None = None,
) -> Rewritten:
    """Write all files anew, into shards of one size.

    shards  how many, about; None: as many as `shard_size` asks for
    Else as `compact`.
    """
    _check_size(shard_size)
    if shards is not None and shards < 1:
        raise ValueError(f"the number of shards is at least 1, not {shards}")

    def plan(seen: Snapshot) -> list[Group]:
        members = tuple(range(len(seen.shards)))
        total = sum(map(live_bytes, seen.shards))
        count = shards or -(-total // shard_size)
        return [Group(members, max(total // max(count, 1), 1), "00000")] if members else []

    return _run(path, "rebalance", progress, plan)


def _check_size(shard_size: int) -> None:
    if shard_size < 1:
        raise ValueError(f"the size of a shard is at least 1 byte, not {shard_size}")


def _run(
    path: str | os.PathLike[str],
    operation: str,
    progress: Progress | None,
    plan: Callable[[Snapshot], list[Group]],
) -> Rewritten:
    log = Log(root_of(path))
    root = log.root
    for left in reversed(range(TRIES)):
        seen = snapshot_of(log, log.latest())
        groups = plan(seen)
        if not groups:
            return Rewritten(seen.generation)
        try:
            return _attempt(root, operation, seen, groups, progress)
        except DatasetConflict:
            if not left:
                raise
    raise AssertionError("unreachable")


def _attempt(
    root: str,
    operation: str,
    seen: Snapshot,
    groups: Sequence[Group],
    progress: Progress | None,
) -> Rewritten:
    transaction = begin(root, operation)
    try:
        records = [r for group in groups for r in rewrite(transaction, seen, group, progress)]
        old = [seen.shards[number].record for group in groups for number in group.members]
        generation = transaction.commit(records, removed=[record.path for record in old])
    except BaseException:
        transaction.abort()
        raise
    before, after = sum(r.size for r in old), sum(r.size for r in records)
    return Rewritten(generation, len(old), len(records), before, after)


def live_bytes(shard: Shard) -> int:
    """Bytes of a shard without what is hidden, about."""
    record = shard.record
    return record.size * shard.files // record.files if record.files else 0


def compaction(seen: Snapshot, shard_size: int, least: float = HIDDEN) -> list[Group]:
    """What a compaction is to rewrite, in groups that can be written side by side.

    least   share of hidden files from which a shard is chosen, 0: any
    """
    chosen = [n for n, shard in enumerate(seen.shards) if _worth(shard, shard_size, least)]
    groups: list[list[int]] = []
    for ao in (False, True):  # an append-only shard stays one
        some = [number for number in chosen if seen.shards[number].record.ao == ao]
        groups += _packed(seen, some, shard_size, MERGED if ao else len(some))
    useful = [
        group for group in groups if len(group) > 1 or _wasteful(seen.shards[group[0]], least)
    ]
    return [Group(tuple(group), shard_size, f"{i:05}") for i, group in enumerate(useful)]


def _worth(shard: Shard, shard_size: int, least: float) -> bool:
    return 2 * live_bytes(shard) < shard_size or _wasteful(shard, least)


def _wasteful(shard: Shard, least: float) -> bool:
    """Whether a rewrite of it alone saves something. A tombstone may still be needed."""
    hidden = len(shard.hidden) + (shard.record.tombstones if not least else 0)
    return hidden > 0 and hidden >= least * shard.record.files


def _packed(seen: Snapshot, numbers: Iterable[int], shard_size: int, most: int) -> list[list[int]]:
    """Groups of shards in order of rank, of about the size of one shard together."""
    groups: list[list[int]] = []
    room = 0
    for number in numbers:
        size = live_bytes(seen.shards[number])
        if not groups or size > room or len(groups[-1]) >= most:
            groups.append([])
            room = shard_size
        groups[-1].append(number)
        room -= size
    return groups
