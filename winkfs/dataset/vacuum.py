"""Vacuum: old generations, and what no generation has, are removed for good."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from winkfs.basepath import SUFFIXES, TEMPORARIES
from winkfs.dataset.check import orphans
from winkfs.dataset.manifest import EACH, FOLDER, PENDING, Log, next_manifest, root_of
from winkfs.dataset.records import Manifest, State
from winkfs.dataset.transaction import MARK
from winkfs.units import NANO

WEEK: Final = 7 * 86400


@dataclass(slots=True)
class Vacuumed:
    """What a vacuum removed, or would.

    oldest      the oldest generation that can be read afterwards
    shards      paths below the data set of those that only older generations have
    leftovers   the same of shards and jobs that no generation has
    manifests   numbers
    bytes       of all that on the disk
    """

    oldest: int
    shards: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    manifests: list[int] = field(default_factory=list)
    bytes: int = 0


def vacuum(
    path: str | os.PathLike[str],
    *,
    keep: int = 1,
    older_than: float = WEEK,
    dry_run: bool = False,
) -> Vacuumed:
    """Remove generations that are neither among the last `keep` nor younger than `older_than`.

    keep        generations, 1 at least
    older_than  seconds: a generation stays that was the newest at any time since then, and so does
                what a job wrote since then without a commit. 0: no job may be running
    dry_run     only say what would be removed
    raises      NoSuchFile; ValueError; FormatError; OSError
    A reader of a removed generation that comes later gets a StalePlan.
    """
    if keep < 1 or older_than < 0:
        raise ValueError(f"keep is at least 1 and older_than at least 0: {keep}, {older_than}")
    log = Log(root_of(path))
    cutoff = time.time() - older_than
    left = [path for path in _leftovers(log) if _youngest(path) <= cutoff]  # before the manifests
    newest = log.latest()
    oldest = _oldest(log, newest, keep, cutoff)
    kept = _paths(log, oldest, newest.generation)
    gone = _paths(log, newest.oldest, oldest) - kept
    manifests = [n for n in log.store.numbers() if n < _checkpoint(log, oldest)]
    if not gone and len(manifests) < EACH:  # it would make a manifest to remove a few
        oldest, manifests = newest.oldest, []
    left = [path for path in left if path not in kept]
    done = Vacuumed(oldest, manifests=manifests)
    done.leftovers = [os.path.relpath(path, log.root) for path in left]
    done.shards = sorted(os.path.relpath(path, log.root) for path in gone)
    files = [*_files(gone), *_files(left), *_derived(log, oldest, cutoff)]
    done.bytes = sum(_size(file) for file in files)
    if dry_run:
        return done
    if oldest > newest.oldest:
        log.publish(lambda before: _forget(before, oldest))  # first: readers get a clear error
    for file in files:
        Path(file).unlink(missing_ok=True)
    _remove_folders({os.path.dirname(path) for path in gone} | set(left) | set(_folders(left)))
    for number in done.manifests:
        log.store.remove(number)
    return done


def _forget(before: State, oldest: int) -> Manifest | int:
    if before.oldest >= oldest:
        return before.generation
    return replace(next_manifest(before, "vacuum"), oldest=oldest)


def _oldest(log: Log, newest: State, keep: int, cutoff: float) -> int:
    """The oldest generation that stays."""
    number = newest.generation
    while number > newest.oldest:
        young = log.read(number).time_ns / NANO > cutoff  # the one before was the newest until then
        if not young and newest.generation - number + 1 >= keep:
            break
        number -= 1
    return number


def _checkpoint(log: Log, oldest: int) -> int:
    """The manifest from which on all are needed to know what `oldest` holds."""
    number = oldest
    while log.read(number).checkpoint is None:
        number -= 1
    return number


def _paths(log: Log, first: int, last: int) -> set[str]:
    """Paths of all shards of the generations first .. last."""
    records = {record.path for record in log.state(first).shards}
    for manifest in log.manifests(last, first + 1):
        records |= {record.path for record in manifest.added}
    return {f"{log.root}/{path}" for path in records}


def _leftovers(log: Log) -> list[str]:
    """Paths of shards and jobs that no generation has that can be read."""
    newest = log.latest()
    named = _paths(log, newest.oldest, newest.generation)
    return list(orphans(log.root, {os.path.relpath(path, log.root) for path in named}))


def _youngest(path: str) -> float:
    """When somebody last wrote to the folder of a shard or a job, seconds since the epoch."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    try:
        times = [os.stat(folder).st_mtime]
        with os.scandir(folder) as entries:
            times += [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    except FileNotFoundError:  # committed just now
        return math.inf
    return max(times)


def _files(paths: Iterable[str]) -> Iterator[str]:
    """The files of shards and of jobs that were not committed."""
    for path in paths:
        if os.path.isdir(path):
            yield from (f"{path}/{name}" for name in os.listdir(path))
        else:
            yield from (path + suffix for suffix in (*SUFFIXES, *_TEMPORARY))


_TEMPORARY: Final = tuple(suffix + end for suffix in SUFFIXES for end in TEMPORARIES)


def _derived(log: Log, oldest: int, cutoff: float) -> Iterator[str]:
    """Hidden rows of generations that go, and temporary files of writers that died."""
    for name in os.listdir(f"{log.root}/{FOLDER}"):
        stem, _, kind = name.rpartition(".")
        file = f"{log.root}/{FOLDER}/{name}"
        old = kind == "hidden" and stem.isdecimal() and int(stem) < oldest
        if old or (kind == "tmp" and os.stat(file).st_mtime <= cutoff):
            yield file


def _folders(paths: Iterable[str]) -> Iterator[str]:
    return (os.path.dirname(path) for path in paths if f"/{PENDING}/" not in path)


def _remove_folders(folders: Iterable[str]) -> None:
    """Remove those of jobs that have nothing left in them."""
    for folder in folders:
        if not os.path.isdir(folder) or set(os.listdir(folder)) - {MARK}:
            continue
        Path(folder, MARK).unlink(missing_ok=True)
        os.rmdir(folder)


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size
    except OSError:
        return 0
