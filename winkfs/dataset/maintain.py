"""Maintenance of a data set: adopt, vacuum, repair.

adopt   copies the files of existing containers into a data set, as new shards
vacuum  removes old generations, and files that no generation names
repair  rewrites damaged and lost manifests

Vacuum removes nothing behind a symbolic link, since any user with write access to the folder may
have put one there. It reaches all that it removes through directories that it holds open, from the
folder of the data set down.

Repair restores a manifest from its copy. If the newest one and its copy are both damaged, nothing
can be committed, because a new manifest lists only changes to the previous one. Repair then
reconstructs it from what is left of its text, if the shards agree. Otherwise it gives up that
generation, and the one before is the newest. It keeps the damaged files, as `*.damaged`.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Final

from winkformats.disk.paths import directory_of, locate, open_file
from winkformats.disk.schemes import is_far
from winkformats.disk.storage import TEMPORARY, Directory, FileType
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.superblock import read_superblock
from winkfs.container.container import open as open_container
from winkfs.container.ondisk.lock import WriterLock
from winkfs.dataset.farmaintain import Repaired, Vacuumed, drop_before, oldest_kept
from winkfs.dataset.farmaintain import repair as repair_far
from winkfs.dataset.farmaintain import vacuum as vacuum_far
from winkfs.dataset.folder import COPY, MANIFEST, Folder
from winkfs.dataset.hidden import HIDDEN
from winkfs.dataset.jobfolder import JOB_MARK, remove, sweep
from winkfs.dataset.manifest import (
    CHECKPOINT_INTERVAL,
    PENDING,
    Log,
    encoded,
    is_dataset,
    root_of,
)
from winkfs.dataset.records import Manifest, ShardRecord, State
from winkfs.dataset.shard import copy_bytes, described
from winkfs.dataset.transaction import Transaction, begun
from winkfs.dataset.verify import listed, orphans
from winkfs.errors import FileExists, NoSuchFile, Refusal, StalePlan
from winkfs.names import FILES, MANIFESTS, SUFFIXES, TEMPORARIES, base_of
from winkfs.units import NANO

NOT_WRITABLE: Final = (errno.EROFS, errno.EACCES, errno.EPERM)
Progress = Callable[[int], None]
WEEK: Final = 7 * 86400  # seconds
CLOCK_SKEW: Final = 300  # seconds by which clocks may differ
SHARD_SUFFIXES: Final = (*SUFFIXES, *(suffix + end for suffix in SUFFIXES for end in TEMPORARIES))
"""Suffixes of all files that a shard may have, temporary ones included."""
DAMAGED: Final = ".damaged"
Versions = Mapping[str, tuple[bytes, bool]]
"""A manifest and its copy: suffix -> (bytes, whether they are intact)."""


def adopt(
    path: str | os.PathLike[str],
    bases: Iterable[str | os.PathLike[str]],
    progress: Progress | None = None,
) -> int:
    """Copy containers into a data set, in one commit -> the generation.

    progress  called with the number of bytes since the last call
    raises    NoSuchFile; FileExists (a container that is already a shard, or is given twice, even
              in a different state); Locked (a container has a writer); DatasetConflict (columns of
              different types, or that differ in case alone); FormatError; OSError
    """
    found = [base_of(base) for base in bases]
    ids = _identities(found)
    if is_dataset(path):
        _refuse_known(Log(root_of(path)).latest(), ids)  # before the long copy
    with begun(path) as transaction:
        records = []
        for number, base in enumerate(found):
            copy = _copy(transaction, base, f"{number:05}", progress or (lambda done: None))
            records.append(transaction.seal(copy))
        copied = dict(zip((record.contid for record in records), found, strict=True))

        return transaction.commit(records, check=lambda before: _refuse_known(before, copied))


def _identities(bases: Iterable[str]) -> dict[int, str]:
    """Return {CONTID: container}. Raises NoSuchFile; FileExists if two are equal; FormatError."""
    ids: dict[int, str] = {}
    for base in bases:
        try:
            with open_file(base + ".data") as storage:
                contid = read_superblock(storage).get("CONTID", 0)
        except FileNotFoundError:
            raise NoSuchFile("no such container (there is no BASE.data)", base) from None
        if contid and contid in ids:  # classic containers have no CONTID
            raise FileExists(f"is the same container as {ids[contid]}, in this state or another: "
                             "add one of them", base)  # fmt: skip
        ids[contid] = base
    return ids


def _refuse_known(before: State, ids: Mapping[int, str]) -> None:
    """Raise FileExists if a container is already a shard: a CONTID must identify one shard."""
    for record in before.shards:
        if record.contid and record.contid in ids:
            what = (f"is a shard of the data set already, in this state or another ({record.path}):"
                    " put the files that changed with `winkfs put`")  # fmt: skip
            raise FileExists(what, ids[record.contid])


def _copy(transaction: Transaction, base: str, name: str, progress: Progress) -> str:
    target = transaction.attempt(name)
    (old, stem), (new, new_stem) = locate(base), locate(target)
    with _alone(base):
        for suffix in FILES:
            if old.info(stem + suffix, follow=True) is None:
                continue
            with (
                old.open(stem + suffix) as source,
                new.create_new(new_stem + suffix, like=source, uncached=True) as copy,
            ):
                copy_bytes(source, copy, progress)
                copy.sync()
    new.sync()  # first: errors of derived files are ignored and would hide one of this sync
    open_container(target, "a").close()  # completes in the copy what a writer left unfinished
    return target


@contextlib.contextmanager
def _alone(base: str) -> Iterator[None]:
    """Exclude writers of a container; one that cannot be written to needs no lock."""
    with contextlib.ExitStack() as stack:
        try:
            stack.callback(WriterLock(base).release)
        except OSError as error:
            if error.errno not in NOT_WRITABLE:
                raise
        yield


def vacuum(
    path: str | os.PathLike[str],
    *,
    keep: int = 1,
    older_than: float = WEEK,
    dry_run: bool = False,
) -> Vacuumed:
    """Remove generations that are neither among the last `keep` nor younger than `older_than`.

    keep        number of generations, at least 1
    older_than  seconds: generations that were the newest at any time since then are kept, and so
                are uncommitted files that a job wrote since then. 0: no job may be running
    dry_run     only report what would be removed
    raises      NoSuchFile; ValueError; FormatError; OSError
    A later read of a removed generation raises StalePlan.
    """
    if keep < 1 or older_than < 0:
        raise ValueError(f"keep is at least 1 and older_than at least 0: {keep}, {older_than}")
    log = Log(root_of(path))
    if is_far(log.root):
        there = Vacuumed(0)
        vacuum_far(log, there, keep, older_than, dry_run=dry_run)
        return there
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
            log.publish(lambda before: drop_before(before, done.oldest))  # so that readers know
        for job, files in jobs.items():
            _remove_files(root, job, files)
        for path in _pending(done.leftovers):
            sweep(log.root, path.partition("/")[2])
        for name in derived:
            folder.unlink(name)
        for number in done.manifests:
            Folder(f"{log.root}/{MANIFESTS}", folder).remove(number)
        return done


def _manifests(root: Directory) -> Directory:
    """Open the folder of the manifests. Raises Refusal if it is a symbolic link; OSError."""
    try:
        return root.subdirectory(MANIFESTS)
    except NotADirectoryError:
        what = f"{MANIFESTS} is a symbolic link, and vacuum removes nothing behind one"
        raise Refusal(what, root.path) from None


def _pending(paths: Iterable[str]) -> list[str]:
    """Return the paths of jobs that were not committed."""
    return [path for path in paths if path.startswith(f"{PENDING}/")]


# --- the plan ---


def _planned(log: Log, root: Directory, keep: int, cutoff: float) -> tuple[Vacuumed, State]:
    """Return what to remove, and the newest state. Raises StalePlan if a manifest is missing."""
    while True:
        before = log.latest()
        try:
            return _plan(log, root, keep, cutoff)
        except StalePlan:
            if log.latest().oldest == before.oldest:  # else a concurrent vacuum removed it
                raise


def _plan(log: Log, root: Directory, keep: int, cutoff: float) -> tuple[Vacuumed, State]:
    known = {record.path for record in log.latest().shards}
    unnamed = list(orphans(log.root, known))  # listed before the manifests, against a race
    newest = log.latest()
    oldest = _oldest(log, newest, keep, cutoff)
    gone, damaged = _removed(log, newest.oldest, oldest)
    manifests = _needless(log, oldest)
    if not gone and not damaged and len(manifests) < CHECKPOINT_INTERVAL:
        oldest, manifests = newest.oldest, []  # not worth a manifest of its own
    times = _WriteTimes(root)
    unnamed = [path for path in unnamed if times.last(path) <= cutoff and path not in gone]
    pending = _pending(unnamed)
    done = Vacuumed(oldest, sorted(gone), pending, manifests, notes=_links(root))
    if newest.time_ns > (time.time() + CLOCK_SKEW) * NANO:
        done.notes.append(f"{log.root}: generation {newest.generation} is dated in the future: "
                          "until then it is young, and those before it stay")  # fmt: skip
    if len(pending) < len(unnamed):
        named, damaged = _removed(log, oldest, newest.generation)
        named |= {record.path for record in newest.shards}
        if damaged:  # a damaged manifest may name some of these shards
            done.notes += damaged
        else:
            done.leftovers = [path for path in unnamed if path not in named]
    return done, newest


def _oldest(log: Log, newest: State, keep: int, cutoff: float) -> int:
    """Return the oldest generation to keep, by binary search over the manifests."""

    def when(number: int) -> int:  # a damaged manifest counts as old as the next one
        try:
            return log.read(number).time_ns
        except CorruptError:
            return when(number + 1)

    return oldest_kept(newest, keep, round(cutoff * NANO), when)


def _removed(log: Log, first: int, last: int) -> tuple[set[str], list[str]]:
    """Return the shards that the manifests after `first`, up to `last`, removed; and a line for
    each of these manifests that is damaged."""
    paths: set[str] = set()
    damaged = []
    for number in range(last, first, -1):
        try:
            paths |= set(log.read(number).removed)
        except CorruptError as error:
            damaged.append(f"{error}: shards that no generation names are left alone")
    return paths, damaged


def _needless(log: Log, oldest: int) -> list[int]:
    """Return the manifests that are not needed to read generation `oldest` and later ones."""
    number = oldest
    try:
        while log.read(number).checkpoint is None:
            number -= 1
    except CorruptError:
        return []
    return [n for n in log.store.numbers() if n < number]


def _links(root: Directory) -> list[str]:
    """Return a note for each symbolic link where the folder of a job would be."""
    names = sorted(name for name in root.list() if name[0] not in "._")
    infos = {name: root.info(name) for name in names}
    return [f"{root.path}/{name}: a symbolic link, not followed: what is behind it is left alone"
            for name, info in infos.items() if info and info.kind is FileType.LINK]  # fmt: skip


class _WriteTimes:
    """Times of the last write to folders, each read once."""

    def __init__(self, root: Directory) -> None:
        self._root, self._known = root, dict[str, float]()

    def last(self, path: str) -> float:
        """Return when the folder of a shard or job was last written, seconds since the epoch."""
        folder = path if path.startswith(f"{PENDING}/") else path.partition("/")[0]
        if folder not in self._known:
            try:
                self._known[folder] = max(_times(self._root, folder))
            except OSError:  # it was committed just now, and moved
                self._known[folder] = math.inf
        return self._known[folder]


def _times(directory: Directory, path: str) -> Iterator[float]:
    """Yield the mtimes of a file or folder and its entries, links not followed. Raises OSError."""
    name, _, rest = path.partition("/")
    info = directory.info(name)
    if info is None:
        raise FileNotFoundError(path)
    if not rest:
        yield info.mtime
    if info.kind is FileType.DIRECTORY:
        with directory.subdirectory(name) as folder:
            if rest:
                yield from _times(folder, rest)
            else:
                found = [folder.info(entry) for entry in folder.list()]
                yield from (entry.mtime for entry in found if entry is not None)


# --- files ---


def _by_job(root: Directory, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders of jobs, each with its files that belong to these shards."""
    given = list(paths)
    shards = sorted(set(given).difference(_pending(given)))
    for job, found in groupby(shards, key=lambda path: path.partition("/")[0]):
        there = set(listed(root, job))
        names = [path.partition("/")[2] for path in found]
        files = [name + suffix for name in names for suffix in SHARD_SUFFIXES]
        yield job, [file for file in files if file in there]


def _sizes(root: Directory, jobs: Mapping[str, list[str]], done: Vacuumed) -> Iterator[int]:
    if pending := _pending(done.leftovers):
        with root.subdirectory(PENDING) as folder:
            yield from (_size(folder, path.partition("/")[2]) for path in pending)
    for job, files in jobs.items():
        if files:  # an empty list: the folder may be a symbolic link
            with contextlib.suppress(FileNotFoundError), root.subdirectory(job) as folder:
                yield from (_size(folder, file) for file in files)


def _size(folder: Directory, name: str) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    info = folder.info(name)
    if info is None or info.kind is not FileType.DIRECTORY:
        return info.size if info else 0
    return sum(_size(folder, f"{name}/{entry}") for entry in listed(folder, name))


def _derived(folder: Directory, oldest: int, cutoff: float) -> Iterator[str]:
    """Yield the files of hidden rows of removed generations, and old temporary files."""
    for name in folder.list():
        stem, dot, kind = name.rpartition(".")
        info = folder.info(name)  # None: removed meanwhile by a commit
        old = dot + kind == HIDDEN and stem.isdecimal() and int(stem) < oldest
        if old or (dot + kind == TEMPORARY and info and info.mtime <= cutoff):
            yield name


def _remove_files(root: Directory, job: str, files: list[str]) -> None:
    """Remove files of a job, and its folder if nothing is left in it."""
    if not listed(root, job):  # a symbolic link, or a concurrent vacuum removed it
        return
    with contextlib.suppress(FileNotFoundError), root.subdirectory(job) as folder:
        for file in files:
            remove(folder, file)
        if set(folder.list()) - {JOB_MARK}:
            return
        folder.unlink(JOB_MARK)
    with contextlib.suppress(OSError):  # a concurrent vacuum removed it
        root.rmdir(job)


def repair(path: str | os.PathLike[str], *, apply: bool = False) -> Repaired:
    """Restore manifests from their copies, and make the newest generation readable.

    apply   False: only report what would be done
    raises  NoSuchFile; FormatError; OSError
    """
    log, done = Log(root_of(path)), Repaired()
    if is_far(log.root):
        repair_far(log, done, apply=apply)
        return done
    folder, numbers = log.store, log.store.numbers()
    newest = True
    for number in reversed(numbers):
        versions = _versions(folder, number)
        whole = [data for data, good in versions.values() if good]
        if not whole and newest and number > numbers[0]:
            _mend_newest(log, number, versions, done, apply=apply)
            continue
        newest = False
        if not whole:
            done.left.append(f"{log.root}: generation {number} is damaged, and so is its copy: it "
                             "cannot be read, others can; vacuum removes it in time")  # fmt: skip
        elif not all(good for _, good in versions.values()) or len(versions) < 2:
            if versions.get(MANIFEST, (b"", False))[1]:
                done.copies += 1
            else:
                done.mended.append(f"{log.root}: manifest {number} from its copy")
            if apply:
                _set_aside(folder, number, versions)
                folder.renew(number, whole[0])
    return done


def _versions(folder: Folder, number: int) -> Versions:
    found = {}
    for file, data in folder.read(number):
        good = False
        with contextlib.suppress(CorruptError):
            good = Manifest.decode(data, file=file).generation == number
        found[COPY if file.endswith(COPY) else MANIFEST] = data, good
    return found


def _set_aside(folder: Folder, number: int, versions: Versions) -> None:
    """Rename damaged files, to keep them. Durable with the next sync."""
    for suffix, (_, good) in versions.items():
        if not good:
            name = folder.name(number, suffix)
            folder.files.rename(name, f"{name}.{secrets.token_hex(4)}{DAMAGED}")


def _mend_newest(log: Log, number: int, versions: Versions, done: Repaired, *, apply: bool) -> None:
    before: State | None = None
    with contextlib.suppress(FormatError, StalePlan):
        before = log.state(number - 1)
    proven = [_reconstructed(log.root, before, data) for data, _ in versions.values() if before]
    made = next((found for found in proven if found is not None), None)
    if made is not None and before is not None:
        done.mended.append(f"{log.root}: manifest {number} from the shards of {made.job}")
    else:
        known = {record.path for record in before.shards} if before else set()
        known |= {record.path for _, found in log.history() if isinstance(found, Manifest)
                  for record in found.added}  # fmt: skip
        lost = [path for path in orphans(log.root, known) if path[0] != "_"]
        there = f": its shards may be {', '.join(lost)}" if lost and before else ""
        done.mended.append(f"{log.root}: generation {number} is given up, {number - 1} is the "
                           f"newest{there} (`winkfs dataset add` takes them, vacuum removes "
                           "them)")  # fmt: skip
    if apply:
        _set_aside(log.store, number, versions)
        if made is not None and before is not None:
            log.store.renew(number, encoded(made, made.apply(before)))
        log.store.files.sync()


def _reconstructed(root: str, before: State, data: bytes) -> Manifest | None:
    """Return the manifest of an append from damaged bytes, if the shards on disk prove it."""
    try:
        read = Manifest.parse(data, file=root)
    except FormatError:
        return None
    generation = before.generation + 1
    ranks = [(generation, place) for place in range(len(read.added))]
    batches = [before.streams.get(query, (-1, -1))[0] + 1 for query in read.streams]
    if (
        (read.generation, read.operation) != (generation, "append")
        or (read.removed, read.oldest) != ((), before.oldest)
        or [record.rank for record in read.added] != ranks
        or list(read.streams.values()) != batches
        or {record.path.partition("/")[0] for record in read.added} - {read.job}
        or {record.path for record in read.added} & {record.path for record in before.shards}
        or not all(_matches(root, record) for record in read.added)
    ):
        return None
    when = read.time_ns if before.time_ns < read.time_ns <= time.time_ns() else before.time_ns + 1
    return replace(read, time_ns=when, metrics={}, checkpoint=None)


def _matches(root: str, record: ShardRecord) -> bool:
    """Return whether a shard exists and agrees with its record."""
    try:
        return described(root, record) == record
    except (FormatError, Refusal, OSError):
        return False
