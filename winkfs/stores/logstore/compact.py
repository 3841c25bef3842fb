"""Compaction of a LogStore: live records move to the end of the log, and their file is removed.

A deletion moves, too, as long as an older file may have a version of the record, which would
reappear otherwise. Files that share a transaction are compacted together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from winkformats.arrays import Int64, UInt8, gather
from winkformats.logstore.entry import HEAD, LENGTH, START, Entries, LogScan
from winkfs.stores.logstore.log import RESERVED_GENERATIONS, Batch, Log
from winkfs.stores.logstore.table import View

MOVE_BYTES: Final = 1 << 20  # bytes that are moved at a time under the lock of writers


class Usage(NamedTuple):
    """Bytes of a data file, and bytes of its live records."""

    number: int
    size: int
    live: int


def usage(log: Log, view: View) -> list[Usage]:
    """Return the usage of all data files, the oldest first. Cost: a pass over the table."""
    numbers = log.numbers
    ages = np.array([log.age(number) for number in numbers], np.int64)
    live = np.zeros(len(numbers) + 1)
    for some in view.parts():
        where = np.searchsorted(ages, log.ages(some.positions))
        live += np.bincount(where, some.lengths & LENGTH, len(live))
    return [
        Usage(number, log.files.size(number), int(bytes_))
        for number, bytes_ in zip(numbers, live.tolist(), strict=False)
    ]


def compact(
    log: Log,
    progress: Callable[[int], None] | None,
    dry_run: bool,
    least: float,
    oldest: bool,
    taken: set[int],
    removed: Callable[[tuple[int, ...]], None],
) -> dict[str, Any]:
    """Compact as `LogStore.compact` states. taken: files that already wait to be removed."""
    view = log.table.view()
    files = usage(log, view)
    log.table.close(view)
    if not dry_run and not oldest:  # much of the file that is written to may be dead
        with log.write_lock:
            last = files[-1]
            if log.number == last.number and last.size > START and _dead(last) >= least:
                log.next_file()
    chosen = [one for one in _candidates(log, files, least, oldest) if one.number not in taken]
    if dry_run:
        return {
            "files": len(chosen), "bytes": sum(one.size for one in chosen),
            "moved": sum(one.live for one in chosen),
            "freed": sum(one.size - one.live for one in chosen),
        }  # fmt: skip
    report = dict.fromkeys(("files", "bytes", "moved", "freed"), 0)
    first, done = log.oldest, set[int]()
    many = len(log.used) > log.layout.generations // 2
    for one in chosen:
        if one.number in done or one.number not in log.numbers:
            continue
        force = (oldest or many) and log.layout.generation(one.number) == first
        group = _Group.read(log, one.number)
        done.update((one.number,) if group is None else group.numbers)
        if group is None or set(group.numbers) & taken or not (force or group.worth(least)):
            continue
        moved = group.move(progress, RESERVED_GENERATIONS if oldest and force else None)
        log.sync()
        removed(group.numbers)
        report["files"] += len(group.numbers)
        report["bytes"] += group.size
        report["moved"] += moved
        report["freed"] += group.size - moved
    return report


def _dead(one: Usage) -> float:
    return 1 - one.live / max(one.size - START, 1)


def _candidates(log: Log, files: list[Usage], least: float, oldest: bool) -> list[Usage]:
    head = log.number
    found = []
    # The oldest generation goes, whatever is in it, once half of them are in use.
    oldest = oldest or len(log.used) > log.layout.generations // 2
    for one in files:
        forced = oldest and log.layout.generation(one.number) == log.oldest
        kept = one._replace(live=max(one.live, log.kept.get(one.number, 0)))
        if one.number != head and (forced or _dead(kept) >= least):
            found.append(one)
    return found


class _Group:
    """Files that together contain only whole transactions."""

    def __init__(self, log: Log, numbers: tuple[int, ...], entries: Entries, size: int) -> None:
        self.log, self.numbers, self.entries, self.size = log, numbers, entries, size
        first = log.age(numbers[0])
        self.is_oldest = all(log.age(number) >= first for number in log.numbers)

    @classmethod
    def read(cls, log: Log, number: int) -> _Group | None:
        """Read a file and those it shares transactions with; None: damage, or one is written to."""
        known = log.numbers
        at = known.index(number)
        while True:
            scan, numbers, size = LogScan(log.layout), [known[at]], 0
            scan.resume(gap=True, first=numbers[0] == 0)
            while True:
                handle = log.files.handle(numbers[-1])
                storage = handle.storage
                wrong = scan.read(storage, numbers[-1])
                size += storage.size()
                if wrong:
                    log.note_problem(f"{storage.name}: {wrong} at byte {scan.at}: not compacted")
                    return None
                if not scan.pending:
                    break
                index = at + len(numbers)
                if index >= len(known) or known[index] == log.number:
                    return None
                numbers.append(known[index])
            if not scan.skipped or at == 0:
                return cls(log, tuple(numbers), scan.entries(), size)
            at -= 1

    def _kept(self) -> Entries:
        """Return live records, and deletions that are still needed."""
        entries = self.entries
        known = np.zeros(len(entries.recids), np.uint64)
        arrays = self.log.table.arrays
        within = entries.recids < arrays.recids
        known[within] = arrays.positions[entries.recids[within]]
        keep = known == entries.positions
        if not self.is_oldest:
            gone = np.flatnonzero((entries.lengths == 0) & (known == 0))
            _, first = np.unique(entries.recids[gone], return_index=True)
            keep[gone[first]] = True
        return entries.take(np.flatnonzero(keep))

    def worth(self, least: float) -> bool:
        """Return whether enough of the files is dead; needed deletions are not."""
        kept = int(self._kept().sizes.sum())
        if 1 - kept / max(self.size - START * len(self.numbers), 1) >= least:
            return True
        for number in self.numbers:
            self.log.kept[number] = kept
        return False

    def move(self, progress: Callable[[int], None] | None, reserve: int | None) -> int:
        """Move what is kept to the end of the log; return its bytes. Raises OSError, Full."""
        moved = 0
        for number in self.numbers:
            base = np.uint64(self.log.layout.position(number, 0))
            kept = self._kept()
            files = kept.positions >> np.uint64(self.log.layout.offset_bits)
            own = kept.take(np.flatnonzero(files == number))
            places = (own.positions - base).astype(np.int64)
            for some in _pieces(places, own.sizes):
                moved += self._move(number, places[some], own.take(some), reserve)
            if progress is not None:
                progress(self.log.files.size(number))
        return moved

    def _move(self, number: int, places: Int64, some: Entries, reserve: int | None) -> int:
        log, sizes = self.log, some.sizes
        handle, first = log.files.handle(number), int(places[0])
        # `_Group.read` has just checked them, with the checksums of their commits.
        data = handle.storage.read(first, int(places[-1] + sizes[-1]) - first)
        starts = places - first
        raw: UInt8 = np.frombuffer(data, np.uint8)
        with log.write_lock:
            now = log.table.arrays.positions[some.recids]
            # A deletion is needed unless a new record has got the recid since.
            same = now == np.where(some.lengths == 0, np.uint64(0), some.positions)
            which = np.flatnonzero(same)
            if not len(which):
                return 0
            moving = some.take(which)
            packed = gather(raw, starts[which], sizes[which])[1].tobytes()
            log.append(Batch(moving.recids, moving.lengths, packed), reserve=reserve)
            gone = int((moving.lengths == 0).sum()) * HEAD.size
            log.kept[log.number] = log.kept.get(log.number, 0) + gone
        return len(packed)


def _pieces(places: Int64, sizes: Int64) -> list[slice]:
    if not len(places):
        return []
    cuts = np.flatnonzero(np.diff(places // MOVE_BYTES)) + 1
    bounds = [0, *cuts.tolist(), len(places)]
    return list(map(slice, bounds[:-1], bounds[1:]))


def remove(log: Log, numbers: tuple[int, ...]) -> None:
    """Remove data files without live records, the oldest first. Raises OSError."""
    for number in numbers:
        log.sure(partial(log.files.remove, number))
        with log.saving, log.write_lock:
            log.numbers = tuple(one for one in log.numbers if one != number)
            log.kept.pop(number, None)
            log.free_generations()
