"""Vacuum: old generations, and what no generation has, are removed for good.

Nothing behind a symbolic link is removed: whoever may write to the folder may have put one there.
All that goes is reached from the folder of the data set through directories that are held open.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from winkformats.disk.directory import Directory
from winkformats.disk.paths import directory_of
from winkformats.disk.replace import TEMPORARY
from winkformats.disk.storage import Kind
from winkformats.errors import CorruptError
from winkfs.container.basepath import SUFFIXES, TEMPORARIES
from winkfs.dataset.hiddenfile import HIDDEN
from winkfs.dataset.manifest import EACH, FOLDER, PENDING, Log, next_manifest, root_of
from winkfs.dataset.manifestfolder import Folder
from winkfs.dataset.records import Manifest, State
from winkfs.dataset.transaction import MARK, remove, sweep
from winkfs.dataset.verify import listed, orphans
from winkfs.errors import StalePlan, WinkError
from winkfs.units import NANO

WEEK: Final = 7 * 86400
SKEW: Final = 300  # seconds by which clocks may differ
ALL: Final = (*SUFFIXES, *(suffix + end for suffix in SUFFIXES for end in TEMPORARIES))
"""What may stand behind the name of a shard."""


@dataclass(slots=True)
class Vacuumed:
    """What a vacuum removed, or would.

    oldest      the oldest generation that can be read afterwards
    shards      paths below the data set of those that only older generations have
    leftovers   the same of shards and jobs that no generation has
    manifests   numbers
    bytes       of all that on the disk
    notes       what was left alone, and why
    """

    oldest: int
    shards: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    manifests: list[int] = field(default_factory=list)
    bytes: int = 0
    notes: list[str] = field(default_factory=list)


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
    root = directory_of(log.root)
    with _manifests(root) as folder:
        cutoff = time.time() - older_than
        done, newest = _planned(log, root, keep, cutoff)
        jobs = dict(_by_job(root, [*done.shards, *done.leftovers]))
        derived = list(_derived(folder, done.oldest, cutoff))
        done.bytes = sum(_sizes(root, jobs, done)) + sum(_size(folder, name) for name in derived)
        if dry_run:
            return done
        if done.oldest > newest.oldest:
            log.publish(lambda before: _forget(before, done.oldest))  # readers get a clear error
        for job, files in jobs.items():
            _remove_files(root, job, files)
        for path in _pending(done.leftovers):
            sweep(log.root, path.partition("/")[2])
        for name in derived:
            folder.unlink(name)
        for number in done.manifests:
            Folder(f"{log.root}/{FOLDER}", folder).remove(number)
        return done


def _manifests(root: Directory) -> Directory:
    """The folder of the manifests. Raises WinkError where it is a symbolic link; OSError."""
    try:
        return root.subdirectory(FOLDER)
    except NotADirectoryError:
        what = f"{FOLDER} is a symbolic link, and vacuum removes nothing behind one"
        raise WinkError(what, root.path) from None


def _pending(paths: Iterable[str]) -> list[str]:
    """Those of jobs that were not committed."""
    return [path for path in paths if path.startswith(f"{PENDING}/")]


def _forget(before: State, oldest: int) -> Manifest | int:
    if before.oldest >= oldest:
        return before.generation
    return replace(next_manifest(before, "vacuum"), oldest=oldest)


# --- what goes ---


def _planned(log: Log, root: Directory, keep: int, cutoff: float) -> tuple[Vacuumed, State]:
    """-> what is to be removed, and the newest state. Raises StalePlan where one is missing."""
    while True:
        before = log.latest()
        try:
            return _plan(log, root, keep, cutoff)
        except StalePlan:
            if log.latest().oldest == before.oldest:  # else another vacuum was faster
                raise


def _plan(log: Log, root: Directory, keep: int, cutoff: float) -> tuple[Vacuumed, State]:
    known = {record.path for record in log.latest().shards}
    strange = list(orphans(log.root, known))  # before the manifests: what was committed has one
    newest = log.latest()
    oldest = _oldest(log, newest, keep, cutoff)
    gone, damaged = _removed(log, newest.oldest, oldest)
    manifests = _needless(log, oldest)
    if not gone and not damaged and len(manifests) < EACH:
        oldest, manifests = newest.oldest, []  # it would make a manifest to remove a few
    age = _Age(root)
    strange = [path for path in strange if age.youngest(path) <= cutoff and path not in gone]
    pending = _pending(strange)
    done = Vacuumed(oldest, sorted(gone), pending, manifests, notes=_links(root))
    if newest.time_ns > (time.time() + SKEW) * NANO:
        done.notes.append(f"{log.root}: generation {newest.generation} is dated in the future: "
                          "until then it is young, and those before it stay")  # fmt: skip
    if len(pending) < len(strange):
        named, damaged = _removed(log, oldest, newest.generation)
        named |= {record.path for record in newest.shards}
        if damaged:  # they may have shards that nobody else names
            done.notes += damaged
        else:
            done.leftovers = [path for path in strange if path not in named]
    return done, newest


def _oldest(log: Log, newest: State, keep: int, cutoff: float) -> int:
    """The oldest generation that stays. Cost: reads a manifest each time the range halves."""

    def when(number: int) -> int:  # of one that is damaged, the latest that can be
        try:
            return log.read(number).time_ns
        except CorruptError:
            return when(number + 1)

    kept = range(newest.oldest, newest.generation + 1)
    old = bisect.bisect_right(kept, round(cutoff * NANO), key=when)
    last = kept[0] + old - 1  # the newest one at that time
    return max(min(last, newest.generation - keep + 1), kept[0])


def _removed(log: Log, first: int, last: int) -> tuple[set[str], list[str]]:
    """Paths of the shards that `first` has and `last` has not, or one in between; and what is
    wrong with manifests that would have said it."""
    paths: set[str] = set()
    damaged = []
    for number in range(last, first, -1):
        try:
            paths |= set(log.read(number).removed)
        except CorruptError as error:
            damaged.append(f"{error}: shards that no generation names are left alone")
    return paths, damaged


def _needless(log: Log, oldest: int) -> list[int]:
    """The manifests without which all can be known that `oldest` and later ones hold."""
    number = oldest
    try:
        while log.read(number).checkpoint is None:
            number -= 1
    except CorruptError:
        return []
    return [n for n in log.store.numbers() if n < number]


def _links(root: Directory) -> list[str]:
    """What is said of links in the place of folders of jobs."""
    names = sorted(name for name in root.list() if name[0] not in "._")
    infos = {name: root.info(name) for name in names}
    return [f"{root.path}/{name}: a symbolic link, not followed: what is behind it is left alone"
            for name, info in infos.items() if info and info.kind is Kind.LINK]  # fmt: skip


class _Age:
    """When somebody last wrote to folders, each looked at once."""

    def __init__(self, root: Directory) -> None:
        self._root, self._known = root, dict[str, float]()

    def youngest(self, path: str) -> float:
        """Of the folder that a shard is in, or of a job: seconds since the epoch."""
        folder = path if path.startswith(f"{PENDING}/") else path.partition("/")[0]
        if folder not in self._known:
            try:
                self._known[folder] = max(_times(self._root, folder))
            except OSError:  # committed just now
                self._known[folder] = math.inf
        return self._known[folder]


def _times(directory: Directory, path: str) -> Iterator[float]:
    """Of a name and of what is in it, links not followed. Raises OSError where it is not there."""
    name, _, rest = path.partition("/")
    info = directory.info(name)
    if info is None:
        raise FileNotFoundError(path)
    if not rest:
        yield info.mtime
    if info.kind is Kind.DIRECTORY:
        with directory.subdirectory(name) as folder:
            if rest:
                yield from _times(folder, rest)
            else:
                found = [folder.info(entry) for entry in folder.list()]
                yield from (entry.mtime for entry in found if entry is not None)


# --- files ---


def _by_job(root: Directory, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Folders of jobs, and the files in them that belong to these shards."""
    every = list(paths)
    shards = sorted(set(every).difference(_pending(every)))
    for job, found in groupby(shards, key=lambda path: path.partition("/")[0]):
        there = set(listed(root, job))
        names = [path.partition("/")[2] for path in found]
        yield job, [name + suffix for name in names for suffix in ALL if name + suffix in there]


def _sizes(root: Directory, jobs: Mapping[str, list[str]], done: Vacuumed) -> Iterator[int]:
    if pending := _pending(done.leftovers):
        with root.subdirectory(PENDING) as folder:
            yield from (_size(folder, path.partition("/")[2]) for path in pending)
    for job, files in jobs.items():
        if files:  # else it may be a link
            with contextlib.suppress(FileNotFoundError), root.subdirectory(job) as folder:
                yield from (_size(folder, file) for file in files)


def _size(folder: Directory, name: str) -> int:
    """Bytes of a file, or of all that is below a folder."""
    info = folder.info(name)
    if info is None or info.kind is not Kind.DIRECTORY:
        return info.size if info else 0
    return sum(_size(folder, f"{name}/{entry}") for entry in listed(folder, name))


def _derived(folder: Directory, oldest: int, cutoff: float) -> Iterator[str]:
    """Hidden rows of generations that go, and temporary files of writers that died."""
    for name in folder.list():
        stem, dot, kind = name.rpartition(".")
        info = folder.info(name)  # None: a commit that ended just now
        old = dot + kind == HIDDEN and stem.isdecimal() and int(stem) < oldest
        if old or (dot + kind == TEMPORARY and info and info.mtime <= cutoff):
            yield name


def _remove_files(root: Directory, job: str, files: list[str]) -> None:
    """Remove files of a job, and its folder where nothing is left in it."""
    if not listed(root, job):  # a link, or another vacuum was faster
        return
    with contextlib.suppress(FileNotFoundError), root.subdirectory(job) as folder:
        for file in files:
            remove(folder, file)
        if set(folder.list()) - {MARK}:
            return
        folder.unlink(MARK)
    with contextlib.suppress(OSError):  # another vacuum has
        root.rmdir(job)
