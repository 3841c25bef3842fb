"""Transaction: containers written beside a data set, and the one commit that makes them shards.

    _pending/JOB/NAME    attempts write here; `seal` checks each container that was closed
    JOB/NAME             after one rename of the folder; nothing is visible yet
    _winkfs/N.json       after one link(2) all shards are visible

A crash before the link leaves the data set unchanged, with files that `vacuum` removes. An attempt
that is still running after the commit finds no folder to write into.

On object storage nothing is renamed. Attempts write to a folder of this machine; `seal` uploads a
container to JOB/NAME, and the manifest is put if there is none of its number. `JOB/_job` has the
generation that the job began with, by which `vacuum` knows whether it can still be committed.

After a failed fsync it is unknown what reached the disk, and the next fsync may succeed although
data is lost. So a commit that is tried again rewrites what it finds: the folder JOB, with new names
for its files, or the manifest.

The module imports little, because Spark commits in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from winkformats.disk.paths import absolute, directory_of, is_directory, locate
from winkformats.disk.schemes import is_far
from winkformats.disk.storage import Directory, FileType
from winkformats.errors import FormatError
from winkfs.dataset.folder import FarFolder, Folder, check_commits, far_files, tried
from winkfs.dataset.hidden import fresh_rows, refuse_changed
from winkfs.dataset.jobfolder import (
    JOB_MARK,
    mark,
    put_mark,
    remove,
    remove_scratch,
    scratch_of,
    sweep,
    uploaded,
)
from winkfs.dataset.manifest import PENDING, Log, create, new_job, next_manifest
from winkfs.dataset.records import (
    JOB,
    REWRITES,
    Manifest,
    ShardRecord,
    State,
    columns_of,
    misfit,
    union,
)
from winkfs.dataset.shard import survey
from winkfs.errors import DatasetConflict, FileExists, StalePlan, held_back
from winkfs.names import FILES, MANIFESTS

if TYPE_CHECKING:
    from winkfs.container.container import Container

Streams = Mapping[str, int]


def begin(
    root: str | os.PathLike[str],
    operation: str = "append",
    job: str | None = None,
    log: Log | None = None,
) -> Transaction:
    """Begin a change of a data set, which is created if there is none.

    operation  append: files are added; overwrite: they replace all files of the data set
    job        new name of letters, digits, dots and dashes; None: one is chosen
    log        of an existing data set, if the caller has read it
    raises     ValueError; FileExistsError (the job); CorruptError (the newest manifest is damaged,
               and no manifest can follow it); OSError
    """
    name = job or new_job()
    if not JOB.fullmatch(name):
        raise ValueError(f"a job is named by letters, digits, dots and dashes, not {name!r}")
    with held_back():
        if log is None:
            log = create(absolute(os.fspath(root)))  # attempts run in other folders
        check_commits(log.root)
        now = (log.recent() if is_far(log.root) else None) or log.latest()
        transaction = Transaction(log.root, name, operation, now.generation, now.compress, log)
        if not transaction.far and is_directory(transaction.folder):
            raise FileExists("that job was committed already", transaction.folder)
        transaction.open()
    return transaction


@contextlib.contextmanager
def begun(
    root: str | os.PathLike[str], operation: str = "append", job: str | None = None
) -> Iterator[Transaction]:
    """Begin a transaction that is aborted if an exception leaves the `with` block, also one that a
    signal raises at any moment."""
    transaction = None
    try:
        with held_back():
            transaction = begin(root, operation, job)
        yield transaction
    except BaseException:
        if transaction is not None:
            transaction.abort()
        raise


def join(root: str | os.PathLike[str], operation: str, job: str) -> Transaction:
    """Begin a job, or join it if another task has begun it.

    raises  StalePlan if it was committed; NoSuchFile if there is no data set; OSError
    """
    log = Log(absolute(os.fspath(root)))
    now = log.latest()
    transaction = Transaction(log.root, job, operation, now.generation, now.compress, log)
    if transaction.far and transaction.committed(log) is not None:
        raise StalePlan("the job was committed meanwhile", transaction.folder)
    transaction.join()
    return transaction


@dataclass(frozen=True, slots=True)
class Transaction:
    """A change of a data set that is not committed yet; it can be pickled for other processes.

    base_generation  the newest generation when it began
    compress         default compression of new containers, as of the data set at the beginning;
                     None: none
    log              of the data set, in the process that began it
    """

    root: str
    job: str
    operation: str
    base_generation: int
    compress: str | None = None
    log: Log | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Transaction, (
            self.root, self.job, self.operation, self.base_generation, self.compress
        )  # fmt: skip

    @property
    def far(self) -> bool:
        """Return whether the data set is on object storage."""
        return is_far(self.root)

    @property
    def pending(self) -> str:
        return f"{self.root}/{PENDING}/{self.job}"

    @property
    def folder(self) -> str:
        return f"{self.root}/{self.job}"

    @property
    def scratch(self) -> str:
        """A folder of this machine for temporary files."""
        return scratch_of(self.job) if self.far else self.pending

    @property
    def location(self) -> str:
        """The current folder of its shards, below `root`."""
        waits = not self.far and is_directory(self.pending)
        return f"{PENDING}/{self.job}" if waits else self.job

    def located(self, records: Iterable[ShardRecord]) -> list[ShardRecord]:
        """Return the records of its shards with their current paths."""
        place = self.location
        return [replace(r, path=f"{place}/{os.path.basename(r.path)}") for r in records]

    def join(self) -> None:
        """Create the folder for its attempts, unless another task has. Raises StalePlan if it was
        committed; OSError."""
        if not self.far and is_directory(self.folder):
            raise StalePlan("the job was committed meanwhile", self.folder)
        with contextlib.suppress(FileExistsError):
            self.open()

    def open(self) -> None:
        """Create the folder for its attempts. Raises FileExistsError; OSError."""
        if self.far:
            put_mark(self.root, self.job, self.base_generation)
            return
        directory = directory_of(self.root)
        directory.mkdir(f"{PENDING}/{self.job}")
        mark(directory, f"{PENDING}/{self.job}")

    def attempt(self, name: str) -> str:
        """Return the BASE of the container that an attempt is to create.

        name    unique among the attempts: "00003-0"
        raises  ValueError; StalePlan if the job was committed or aborted meanwhile
        """
        if not JOB.fullmatch(name):
            raise ValueError(f"an attempt is named by letters, digits, dots, dashes, not {name!r}")
        if self.far:
            return f"{scratch_of(self.job)}/{name}"
        if not is_directory(self.pending):
            raise StalePlan("the job was committed or aborted meanwhile", self.folder)
        return f"{self.pending}/{name}"

    def create(self, name: str, **settings: Any) -> Container:
        """Create an empty container for an attempt, open for writing, with the permissions of the
        manifests.

        name      see `attempt`
        settings  those of `winkfs.create`; `compress` is by default that of the data set
        raises    as `attempt`; FileExists; OSError
        """
        from winkfs.container.container import create  # not needed for a commit alone

        base, columns = self.attempt(name), settings.pop("columns", None)
        compress = settings.pop("compress", None) or self.compress
        folder = Folder(f"{self.root}/{MANIFESTS}")
        with contextlib.nullcontext() if self.far else folder.model() as model:
            made = create(base, like=model, compress=compress, **settings)
        if columns:  # durable with the rest of the container
            made.add_columns(columns)
        return made

    def seal(self, base: str, tombs_at: int = 0) -> ShardRecord:
        """Return the record, for `commit`, of a container that an attempt created and closed.

        tombs_at  position from which its tombstones count for older shards; 0: it has none
        raises    Refusal if it was not closed; FormatError; OSError
        cost      on object storage, uploads the container, and removes it here
        """
        record = survey(base, f"{self.job}/{os.path.basename(base)}", tombs_at)
        directory, name = locate(base)
        directory.unlink(f"{name}.lock")
        if self.far:
            record = uploaded(self.root, base, record)
        return record

    # --- the end ---

    def commit(
        self,
        records: Iterable[ShardRecord],
        streams: Streams | None = None,
        metrics: Mapping[str, Any] | None = None,
        removed: Iterable[str] | None = None,
        after: int | None = None,
        since: int | None = None,
        check: Callable[[State], None] | None = None,
    ) -> int:
        """Publish the shards of `records`, and no other attempt -> the generation.

        streams   {query: batch}: if the data set already has this batch of the query, or a later
                  one, the job is removed, and the generation that has the batch is returned
        removed   paths of the shards that are replaced; None: all of `base_generation` for
                  `overwrite`, else none
        after     the generation that the commit must follow, if decisions were made by reading it,
                  such as deletes; None: any
        since     the generation whose files decided what to put and delete: a later commit that
                  put or deleted one of the same files is a conflict; None: no such check
        check     called with the state that the commit follows, again after each concurrent
                  commit; it may refuse by raising. `located` returns the paths of the shards
        raises    DatasetConflict if a shard to replace is gone, or a column has a different type or
                  spelling in the data set: the job is removed; StalePlan if a sealed container is
                  gone; OSError: call it again, or `abort`. The commit may be visible then, but is
                  not known to be durable
        A second call after an interrupted one continues it, and makes durable what that has done.
        """
        chosen, before = list(records), None
        if self.far and self.log is not None and not _tried(self.root, self.job):
            log = self.log
            if after in (None, self.base_generation):  # then nothing has to be asked again
                before = log.state(self.base_generation)
        else:
            log = self.log or Log(self.root)
            if not self.far and not log.unchanged():
                log = Log(self.root)
            done = self.committed(log)
            if done is not None:
                log.confirm(done)
                return done
        gone = self._replaced(log) if removed is None else tuple(removed)
        checked: set[int] = set()
        theirs = False  # a commit that was there already, whose generation is returned

        def make(before: State) -> Manifest | int:
            if isinstance(log.store, FarFolder):  # after `before` was read: it can land late
                settled = log.store.settle(self.job)
                if settled is not None:
                    return settled
            there = _batch_done(before, streams)
            if there is not None:
                nonlocal theirs
                theirs = True
                return there
            self._check_removed(before, gone)
            if self.far and before.oldest > self.base_generation:  # vacuum may take its files
                raise DatasetConflict("took longer than vacuum keeps: run it again", self.root)
            self._check_columns(before, chosen, gone)
            if after is not None and before.generation != after:
                raise DatasetConflict("was changed meanwhile: try again", self.root)
            if before.generation not in checked:
                if since is not None:
                    refuse_changed(log, since, before, self.located(chosen))
                if check is not None:
                    check(before)
                checked.add(before.generation)
            return replace(
                next_manifest(before, self.operation),
                job=self.job, added=self._ranked(before, chosen), removed=gone,
                streams=dict(streams or {}), metrics=dict(metrics or {}),
            )  # fmt: skip

        try:
            if not self.far:
                before = log.latest()
                if isinstance(make(before), Manifest):
                    self._place(chosen)
            done = log.publish(make, partial(fresh_rows, log), before)
        except DatasetConflict:
            self.abort()
            raise
        if theirs:
            self.abort()
        else:
            self._sweep()
        return done

    def _sweep(self) -> None:
        """Remove what attempts have left beside the shards."""
        if self.far:
            remove_scratch(self.job)
        else:
            sweep(self.root, self.job)

    def abort(self) -> None:
        """Remove all files of the job that no manifest names. Idempotent.

        On object storage `vacuum` does it, unless this process began the job and tried no commit:
        its answer can be lost.
        """
        if self.far:
            remove_scratch(self.job)
            if self.log is not None and not _tried(self.root, self.job):
                with contextlib.suppress(OSError, FormatError):
                    files = far_files(f"{self.root}/{self.job}")
                    files.remove(files.list())
            return
        sweep(self.root, self.job)
        # A damaged manifest may be that of the job: then its files are kept.
        with contextlib.suppress(OSError, FormatError):
            if is_directory(self.folder) and self.committed(Log(self.root)) is None:
                directory_of(self.root).remove_tree(self.job)

    def committed(self, log: Log) -> int | None:
        """Return a generation that has the shards of this job; None: it was not committed."""
        newest = log.latest()
        first = max(self.base_generation, newest.oldest) + 1
        for manifest in log.manifests(newest.generation, first):
            if manifest.job == self.job:
                return manifest.generation
        kept = log.state(newest.oldest).shards if newest.oldest > self.base_generation else ()
        if any(record.path.startswith(self.job + "/") for record in kept):
            return newest.oldest
        return None

    def _replaced(self, log: Log) -> tuple[str, ...]:
        if self.operation != "overwrite":
            return ()
        try:
            return tuple(record.path for record in log.state(self.base_generation).shards)
        except StalePlan:
            raise DatasetConflict(
                f"generation {self.base_generation}, which this was to overwrite, was vacuumed "
                "meanwhile: try again", self.root,
            ) from None  # fmt: skip

    def _check_removed(self, before: State, removed: tuple[str, ...]) -> None:
        lost = set(removed)
        if lost:
            lost -= {record.path for record in before.shards}
        if self.operation == "overwrite" and not removed:  # an empty one, filled meanwhile
            lost = {r.path for r in before.shards if r.rank[0] <= self.base_generation}
        if lost:
            raise DatasetConflict(
                f"another commit changed {min(lost)} meanwhile, and {self.operation} was to "
                "replace it: try again", self.root,
            )  # fmt: skip

    def _check_columns(
        self, before: State, records: list[ShardRecord], removed: tuple[str, ...]
    ) -> None:
        """Raise DatasetConflict for columns that cannot be in one data set. A rewrite keeps the
        columns as they are."""
        if self.operation in REWRITES or not any(record.columns for record in records):
            return
        gone = set(removed)
        known = columns_of(record for record in before.shards if record.path not in gone)
        for record in records:
            if what := misfit(known, record.schema):
                raise DatasetConflict(what, self.root)
            known = union([known, record.schema])

    def _ranked(self, before: State, records: list[ShardRecord]) -> tuple[ShardRecord, ...]:
        if self.operation in REWRITES:
            return tuple(records)  # they have the ranks of the shards that they replace
        generation = before.generation + 1
        if self.operation == "overwrite":  # shards committed meanwhile are newer and win
            generation = self.base_generation
        return tuple(replace(r, rank=(generation, i)) for i, r in enumerate(records))

    def _place(self, records: list[ShardRecord]) -> None:
        """Move the folder of the job to its final path, durably, with only these shards in it."""
        if not records:
            sweep(self.root, self.job)
            return
        root, pending = directory_of(self.root), f"{PENDING}/{self.job}"
        if is_directory(self.pending):
            self._check_there(self.pending, records)
            mark(root, pending)  # `vacuum` takes the time of this file as that of the job
            root.rename(pending, self.job)
        else:  # after a failed attempt to commit
            self._check_there(self.folder, records)
            self._place_again(root)
        names = {os.path.basename(record.path) for record in records}
        kept = {name + suffix for name in names for suffix in FILES} | {JOB_MARK}
        with root.subdirectory(self.job) as folder:
            for entry in folder.list():  # after the rename no attempt can create files there
                if entry not in kept:
                    remove(folder, entry)
            folder.sync()
        root.sync()

    def _place_again(self, root: Directory) -> None:
        """Replace the folder of the job by a new one, with new links to all its files."""
        name = f"{PENDING}/{self.job}.{secrets.token_hex(4)}"
        root.mkdir(name)
        mark(root, name)
        with root.subdirectory(self.job) as folder:
            for entry in folder.list():
                info = folder.info(entry)
                if entry != JOB_MARK and info is not None and info.kind is FileType.FILE:
                    root.link(f"{self.job}/{entry}", f"{name}/{entry}")
        root.remove_tree(self.job)
        root.rename(name, self.job)

    def _check_there(self, folder: str, records: list[ShardRecord]) -> None:
        directory = directory_of(folder)
        for record in records:
            name = f"{os.path.basename(record.path)}.data"
            info = directory.info(name)
            if info is None or info.kind is not FileType.FILE or info.size < record.size:
                what = "a container that was sealed is gone, or cut short"
                raise StalePlan(what, f"{folder}/{name}")


def _tried(root: str, job: str) -> bool:
    """Return whether this process has put a manifest of a job, and it may be there."""
    return (f"{root}/{MANIFESTS}", job) in tried


def _batch_done(state: State, streams: Streams | None) -> int | None:
    """Return the generation that already has all these batches; None: some are missing."""
    known = [state.streams.get(query, (-1, -1)) for query in streams or ()]
    if not known or any(k[0] < b for k, b in zip(known, (streams or {}).values(), strict=True)):
        return None
    return max(generation for _, generation in known)
