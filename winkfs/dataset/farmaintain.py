"""Vacuum and repair of a data set on object storage.

A number of a manifest that was used stays used: vacuum puts an empty object there. A job whose base
is older than all that is kept cannot commit any more, so its files that no kept manifest names can
go, whatever the clocks say.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from winkformats.disk.objects import ObjectDirectory
from winkformats.errors import CorruptError, FormatError
from winkfs.dataset.folder import LATEST, FarFolder, far_files
from winkfs.dataset.jobfolder import JOB_MARK
from winkfs.dataset.manifest import Log, next_manifest
from winkfs.dataset.records import Manifest, State, Whole
from winkfs.errors import StalePlan
from winkfs.names import DATA


@dataclass(slots=True)
class Vacuumed:
    """Result of a vacuum, or of its dry run.

    oldest      the oldest generation that can be read afterwards
    shards      removed shards that only older generations have, paths below the data set
    leftovers   removed shards and jobs that no generation has, paths below the data set
    manifests   numbers of the removed manifests
    bytes       size on disk of all removed files
    notes       a line for each thing that was kept although unused, with the reason
    """

    oldest: int
    shards: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    manifests: list[int] = field(default_factory=list)
    bytes: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Repaired:
    """Result of a repair, or of its dry run.

    mended  a line for each damaged or lost manifest that is repaired
    copies  number of copies made, for manifests whose copy was missing or damaged
    left    a line for each generation that cannot be repaired
    """

    mended: list[str] = field(default_factory=list)
    copies: int = 0
    left: list[str] = field(default_factory=list)


def vacuum(log: Log, done: Vacuumed, keep: int, older_than: float, *, dry_run: bool) -> None:
    """Remove what `maintain.vacuum` removes, by the clock of the store.

    raises  CorruptError if a manifest that is kept, or a part of it, is damaged: it may name files
            that seem to be left over
    """
    store = log.store
    assert isinstance(store, FarFolder)
    newest = log.latest()
    oldest = _oldest(store, newest, keep, older_than, dry_run=dry_run)
    last = newest.generation
    if oldest > newest.oldest and not dry_run:
        last = log.publish(lambda before: drop_before(before, oldest))
    done.oldest = oldest
    done.manifests = _taken(store, oldest)
    older = set[str]()
    for number in done.manifests:
        with contextlib.suppress(FormatError, StalePlan):
            older |= _paths(log, log.read(number))
    kept = set[str]()
    for number in range(oldest, last + 1):
        kept |= _named(log.state(number))
    if not dry_run:
        for number in done.manifests:
            store.remove(number)
    for job, names in _unnamed(far_files(log.root), kept, done, oldest):
        shards = {f"{job}/{name.removesuffix(DATA)}" for name in names if name.endswith(DATA)}
        done.shards += sorted(shards & older)
        done.leftovers += sorted(shards - older) or ([] if shards else [job])
        if not dry_run:
            far_files(f"{log.root}/{job}").remove(names)


def drop_before(before: State, oldest: int) -> Manifest | int:
    """Return the manifest that makes `oldest` the oldest generation, or the one that did."""
    if before.oldest >= oldest:
        return before.generation
    return replace(next_manifest(before, "vacuum"), oldest=oldest)


def _oldest(store: FarFolder, newest: State, keep: int, older_than: float, *, dry_run: bool) -> int:
    """Return the oldest generation to keep, by the times that the store has."""

    @cache
    def when(number: int) -> float:
        found = store.files.known(store.name(number))
        return found.mtime if found is not None else 0.0

    now = time.time()
    if not dry_run and (data := store.stored(newest.generation)):
        store.files.put(LATEST, data)
        found = store.files.known(LATEST)
        now = found.mtime if found is not None else now
    return oldest_kept(newest, keep, now - older_than, when)


def oldest_kept(newest: State, keep: int, cutoff: float, when: Callable[[int], float]) -> int:
    """Return the oldest generation to keep: the last at the cutoff, or earlier to keep so many.

    when  returns the time of a generation, in the unit of `cutoff`; times ascend
    """
    kept = range(newest.oldest, newest.generation + 1)
    old = bisect.bisect_right(kept, cutoff, key=when)
    return max(min(kept[0] + old - 1, newest.generation - keep + 1), kept[0])


def _taken(store: FarFolder, oldest: int) -> list[int]:
    """Return the numbers of manifests that are not kept and not empty, ascending."""
    number = oldest
    while number and store.stored(number - 1):
        number -= 1
    return list(range(number, oldest))


def _paths(log: Log, manifest: Manifest) -> set[str]:
    """Return the paths of the shards that a manifest names."""
    found = {record.path for record in manifest.added} | set(manifest.removed)
    return found | {record.path for record in log.state(manifest.generation).shards}


def _named(state: State) -> set[str]:
    """Return the paths of all files that a generation has, of shards without a suffix."""
    whole = state.whole or Whole()
    files = {file.path for file in (*whole.parts, *whole.hidden) if file is not None}
    return files | {record.path for record in state.shards}


def _unnamed(
    root: ObjectDirectory, kept: set[str], done: Vacuumed, oldest: int
) -> Iterator[tuple[str, list[str]]]:
    """Yield the jobs that cannot be committed any more, and their files that are not kept."""
    for job in sorted(root.list()):
        if job[:1] in ("", ".", "_"):
            continue
        folder = root.subdirectory(job)
        sizes = folder.sizes()
        names = [name for name in sizes if name != JOB_MARK and kept.isdisjoint(
                 {f"{job}/{name}", f"{job}/{name.rpartition('.')[0]}"})]  # fmt: skip
        if JOB_MARK not in sizes or (not names and len(sizes) > 1):
            continue
        base = _base(root, job)
        if base >= oldest:
            done.notes.append(f"{root.path}/{job}: it began with generation {base}, which is kept: "
                              "it may be committed yet")  # fmt: skip
            continue
        if len(names) == len(sizes) - 1:
            names.append(JOB_MARK)
        done.bytes += sum(sizes[name] for name in names)
        yield job, names


def _base(root: ObjectDirectory, job: str) -> int:
    """Return the generation that a job began with; 0: its mark does not have it."""
    (mark,) = root.read_whole([f"{job}/{JOB_MARK}"])
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return int(json.loads(mark or b"")["base"])
    return 0


def repair(log: Log, done: Repaired, *, apply: bool) -> None:
    """Put a manifest where one is damaged or lost: that which `latest` has, or one with the state
    of the generation before."""
    store = log.store
    assert isinstance(store, FarFolder)
    known, copy = store.take_hint()
    newest = log.newest()
    for number in range(newest, max(log.head().oldest, 1) - 1, -1):
        try:
            log.read(number)
            continue
        except (CorruptError, StalePlan):
            damaged = store.files.known(store.name(number))
        if number == known:
            done.mended.append(f"{log.root}: manifest {number} from `{LATEST}`")
            if apply:
                store.files.put(store.name(number), copy, absent=damaged is None, like=damaged)
            continue
        try:
            before = log.state(number - 1)
        except (FormatError, StalePlan) as error:
            done.left.append(f"{log.root}: generation {number} cannot be read, nor the one before "
                             f"({error})")  # fmt: skip
            continue
        done.mended.append(f"{log.root}: generation {number} is given up, and is as {number - 1}")
        if apply and before.whole is not None:
            made = replace(next_manifest(before, "repair"), whole=before.whole)
            data = made.encode()
            store.files.put(store.name(number), data, absent=damaged is None, like=damaged)
            if number == newest:
                store.files.put(LATEST, data)
