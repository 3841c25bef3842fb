"""Transaction: containers written beside a data set, and the one commit that makes them shards.

    _pending/JOB/NAME    attempts write here; `seal` checks each container that was closed
    JOB/NAME             after one rename of the folder; nothing is visible yet
    _winkfs/N.json       after one link(2): all of it is

A crash before the link leaves the data set as it was, and files that `vacuum` removes. An attempt
that outlives the commit finds no folder to write into.

After a failed fsync nothing is known of what it covered, and the next one may succeed all the same.
So a commit that is tried again makes anew what it finds: the folder JOB, with new names for its
files, or the manifest.

`ShardWriter` writes one container of a transaction, with the names that it deletes from older
shards. Light, for Spark's driver commits in processes of their own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

from winkformats.disk.paths import absolute, directory_of, is_directory, locate
from winkformats.disk.storage import Directory, Kind, replacing
from winkformats.errors import FormatError
from winkfs.dataset.hidden import refuse_changed
from winkfs.dataset.manifest import PENDING, Folder, Log, create, next_manifest
from winkfs.dataset.records import JOB, REWRITES, Manifest, ShardRecord, State, misfit, union
from winkfs.dataset.shard import copy_bytes, survey
from winkfs.errors import DatasetConflict, FileExists, Refusal, StalePlan, held_back
from winkfs.names import FILES, MANIFESTS

if TYPE_CHECKING:
    from winkfs.container.container import Container

MARK: Final = "_job"  # a file in the folder of a job: vacuum goes into no other
Streams = Mapping[str, int]
LOST: Final = (
    "the disk failed, and of what was put since the last commit some is lost: abort, and put the "
    "files again"
)


def begin(
    root: str | os.PathLike[str], operation: str = "append", job: str | None = None
) -> Transaction:
    """Begin to change a data set; it is made where there is none.

    operation  append: files are added; overwrite: they replace all that is there now
    job        letters, digits, dots and dashes; must be new; None: one is chosen
    raises     ValueError; FileExistsError (the job); CorruptError (the newest manifest: nothing
               can follow it); OSError
    """
    name = job or f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(6)}"
    if not JOB.fullmatch(name):
        raise ValueError(f"a job is named by letters, digits, dots and dashes, not {name!r}")
    with held_back():
        log = create(absolute(os.fspath(root)))  # attempts run in other folders
        now = log.latest()
        transaction = Transaction(log.root, name, operation, now.generation, now.compress)
        if is_directory(transaction.folder):
            raise FileExists("that job was committed already", transaction.folder)
        transaction.open()
    return transaction


@contextlib.contextmanager
def begun(root: str | os.PathLike[str], operation: str = "append") -> Iterator[Transaction]:
    """The same for a `with` block, which aborts the transaction if it is left by an exception: also
    by that of a signal, at any moment."""
    transaction = None
    try:
        with held_back():
            transaction = begin(root, operation)
        yield transaction
    except BaseException:
        if transaction is not None:
            transaction.abort()
        raise


def join(root: str | os.PathLike[str], operation: str, job: str) -> Transaction:
    """The same for a task that has to begin a job itself, or finds it begun by another task.

    raises  StalePlan where it was committed; NoSuchFile where there is no data set; OSError
    """
    log = Log(absolute(os.fspath(root)))
    now = log.latest()
    transaction = Transaction(log.root, job, operation, now.generation, now.compress)
    if is_directory(transaction.folder):
        raise StalePlan("the job was committed meanwhile", transaction.folder)
    with contextlib.suppress(FileExistsError):
        transaction.open()
    return transaction


@dataclass(frozen=True, slots=True)
class Transaction:
    """Small, and the same after pickling: attempts in other processes write with it.

    base_generation  the newest one when it began
    compress         what containers are compressed with where nothing else is said, as the data set
                     was then; None: not at all
    """

    root: str
    job: str
    operation: str
    base_generation: int
    compress: str | None = None

    @property
    def pending(self) -> str:
        return f"{self.root}/{PENDING}/{self.job}"

    @property
    def folder(self) -> str:
        return f"{self.root}/{self.job}"

    @property
    def location(self) -> str:
        """Where the folder of its shards is now, below `root`."""
        return f"{PENDING}/{self.job}" if is_directory(self.pending) else self.job

    def located(self, records: Iterable[ShardRecord]) -> list[ShardRecord]:
        """The records of its shards, with the paths where these are now."""
        place = self.location
        return [replace(r, path=f"{place}/{os.path.basename(r.path)}") for r in records]

    def open(self) -> None:
        """Make the folder for its attempts. Raises FileExistsError; OSError."""
        directory = directory_of(self.root)
        directory.mkdir(f"{PENDING}/{self.job}")
        _mark(directory, f"{PENDING}/{self.job}")

    def attempt(self, name: str) -> str:
        """Where an attempt is to make a container -> its base.

        name    one that no other attempt has: "00003-0"
        raises  ValueError; StalePlan where the job was committed or aborted meanwhile
        """
        if not JOB.fullmatch(name):
            raise ValueError(f"an attempt is named by letters, digits, dots, dashes, not {name!r}")
        if not is_directory(self.pending):
            raise StalePlan("the job was committed or aborted meanwhile", self.folder)
        return f"{self.pending}/{name}"

    def create(self, name: str, **settings: Any) -> Container:
        """Make an empty container for an attempt, and open it for writing.

        Whoever may read the manifests may read it.
        name      see `attempt`; settings: those of `winkfs.create`. Where these do not say
                  `compress`, it is compressed as the data set
        raises    as `attempt`; FileExists; OSError
        """
        from winkfs.container.container import create  # who only commits does without it

        base, columns = self.attempt(name), settings.pop("columns", None)
        compress = settings.pop("compress", None) or self.compress
        with Folder(f"{self.root}/{MANIFESTS}").model() as model:
            made = create(base, like=model, compress=compress, **settings)
        if columns:  # durable with all else
            made.add_columns(columns)
        return made

    def seal(self, base: str, tombs_at: int = 0) -> ShardRecord:
        """What `commit` is to know of a container that an attempt made and closed.

        tombs_at  position from which its tombstones count for older shards; 0: it has none
        raises    Refusal where it was not closed; FormatError; OSError
        """
        record = survey(base, f"{self.job}/{os.path.basename(base)}", tombs_at)
        directory, name = locate(base)
        directory.unlink(f"{name}.lock")
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
        """Make the shards of `records`, and no other attempt, visible -> the generation.

        streams   {query: batch}: where the data set has such a batch of a query, or a later one,
                  everything is swept, and the generation returned is the one that has it
        removed   paths of the shards that these replace; None: for `overwrite` all of
                  `base_generation`, else none
        after     the generation that the commit must follow: what was decided by reading it, such
                  as deletes, may be wrong after another; None: any
        since     the generation by whose files it was decided what to put and delete: a commit that
                  has put or deleted one of the same files since refuses this; None: none does
        check     called with what this follows; it may refuse by raising. Again where another
                  commit came in between. `located` says where the shards are
        raises    DatasetConflict where one of them is gone, or the data set has a column of another
                  type, or spelt otherwise: everything is swept then; StalePlan
                  where a sealed container is gone; OSError: call it again, or `abort`. What was to
                  be visible may be visible then, but is not known to be on the disk
        A second call after one that was broken off goes on where that ended, and makes durable what
        it finds done.
        """
        log, chosen = Log(self.root), list(records)
        done = self._committed(log)
        if done is not None:
            log.confirm(done)
            return done
        gone = self._replaced(log) if removed is None else tuple(removed)
        checked: set[int] = set()

        def make(before: State) -> Manifest | int:
            there = _batch_done(before, streams)
            if there is not None:
                return there
            self._check_removed(before, gone)
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
            early = make(log.latest())
            if isinstance(early, Manifest):
                self._place(chosen)
            done = log.publish(make)
        except DatasetConflict:
            self.abort()
            raise
        self.abort()  # where another attempt had the batch already
        return done

    def abort(self) -> None:
        """Remove everything of the job that no manifest names. Idempotent."""
        sweep(self.root, self.job)
        # Where a damaged manifest may be that of the job, its files stay.
        with contextlib.suppress(OSError, FormatError):
            if is_directory(self.folder) and self._committed(Log(self.root)) is None:
                directory_of(self.root).remove_tree(self.job)

    def _committed(self, log: Log) -> int | None:
        """A generation that has what this job committed; None: it did not."""
        newest = log.latest()
        first = max(self.base_generation, newest.oldest) + 1
        for manifest in log.manifests(newest.generation, first):
            if manifest.job == self.job:
                return manifest.generation
        kept = log.state(newest.oldest).shards if newest.oldest > self.base_generation else ()
        return newest.oldest if any(r.path.startswith(self.job + "/") for r in kept) else None

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
        lost = set(removed) - {record.path for record in before.shards}
        if self.operation == "overwrite" and not removed:  # of nothing: by another one, meanwhile
            lost = {r.path for r in before.shards if r.rank[0] <= self.base_generation}
        if lost:
            raise DatasetConflict(
                f"another commit changed {min(lost)} meanwhile, and {self.operation} was to "
                "replace it: try again", self.root,
            )  # fmt: skip

    def _check_columns(
        self, before: State, records: list[ShardRecord], removed: tuple[str, ...]
    ) -> None:
        """Raise DatasetConflict for columns that cannot be in one data set. A rewrite has those
        that were there."""
        if self.operation in REWRITES:
            return
        known = union(record.schema for record in before.shards if record.path not in removed)
        for record in records:
            if what := misfit(known, record.schema):
                raise DatasetConflict(what, self.root)
            known = union([known, record.schema])

    def _ranked(self, before: State, records: list[ShardRecord]) -> tuple[ShardRecord, ...]:
        if self.operation in REWRITES:
            return tuple(records)  # they have the ranks of what they replace
        generation = before.generation + 1
        if self.operation == "overwrite":  # what came meanwhile is newer than what it overwrites
            generation = self.base_generation
        return tuple(replace(r, rank=(generation, i)) for i, r in enumerate(records))

    def _place(self, records: list[ShardRecord]) -> None:
        """Give the job's folder its place, durable, with nothing in it but these shards."""
        if not records:
            sweep(self.root, self.job)
            return
        root, pending = directory_of(self.root), f"{PENDING}/{self.job}"
        if is_directory(self.pending):
            self._check_there(self.pending, records)
            _mark(root, pending)  # young, whatever its files are: `vacuum` goes by that
            root.rename(pending, self.job)
        else:  # after a try that failed
            self._check_there(self.folder, records)
            self._place_anew(root)
        names = {os.path.basename(record.path) for record in records}
        kept = {name + suffix for name in names for suffix in FILES} | {MARK}
        with root.subdirectory(self.job) as folder:
            for entry in folder.list():  # only now: nobody can make files there any more
                if entry not in kept:
                    remove(folder, entry)
            folder.sync()
        root.sync()

    def _place_anew(self, root: Directory) -> None:
        """Put another folder, with new names for all files, in the place of the job's."""
        name = f"{PENDING}/{self.job}.{secrets.token_hex(4)}"
        root.mkdir(name)
        _mark(root, name)
        with root.subdirectory(self.job) as folder:
            for entry in folder.list():
                info = folder.info(entry)
                if entry != MARK and info is not None and info.kind is Kind.FILE:
                    root.link(f"{self.job}/{entry}", f"{name}/{entry}")
        root.remove_tree(self.job)
        root.rename(name, self.job)

    def _check_there(self, folder: str, records: list[ShardRecord]) -> None:
        directory = directory_of(folder)
        for record in records:
            name = f"{os.path.basename(record.path)}.data"
            info = directory.info(name)
            if info is None or info.kind is not Kind.FILE or info.size < record.size:
                what = "a container that was sealed is gone, or cut short"
                raise StalePlan(what, f"{folder}/{name}")


def sweep(root: str, job: str) -> None:
    """Remove what attempts of a job wrote that has not been committed, as far as the disk lets us.

    It is out of the way at once: an attempt that lives on finds no folder to write into.
    """
    swept = f"{job}.{secrets.token_hex(4)}"
    with contextlib.suppress(OSError), directory_of(root).subdirectory(PENDING) as pending:
        pending.rename(job, swept)
        remove(pending, swept)


def sweep_all(root: str, prefix: str) -> None:
    """The same for all jobs whose names begin so."""
    with contextlib.suppress(OSError), directory_of(root).subdirectory(PENDING) as pending:
        for name in pending.list():
            if name.startswith(prefix):
                sweep(root, name)


def remove(folder: Directory, name: str) -> None:
    """Remove a file or a folder, as far as the disk lets us. Somebody else may be at it, too."""
    with contextlib.suppress(OSError):
        info = folder.info(name)
        if info is not None and info.kind is Kind.DIRECTORY:
            folder.remove_tree(name)
        else:
            folder.unlink(name)


def _mark(root: Directory, job: str) -> None:
    """Make the file by which a folder is known as that of a job, anew where it is there."""
    root.unlink(f"{job}/{MARK}")
    root.create_new(f"{job}/{MARK}").close()
    root.take_after(job)


def _batch_done(state: State, streams: Streams | None) -> int | None:
    """The generation that has all these batches already."""
    known = [state.streams.get(query, (-1, -1)) for query in streams or ()]
    if not known or any(k[0] < b for k, b in zip(known, (streams or {}).values(), strict=True)):
        return None
    return max(generation for _, generation in known)


class ShardWriter:
    """One container of an attempt. A `with` block that is left by an exception abandons it.

    container  open for writing, until `finish` was called and everything is in it
    gone       names that it deletes from shards of lower ranks, unless it has a file of that name
    """

    def __init__(self, transaction: Transaction, name: str, **settings: Any) -> None:
        """`settings`: see `Transaction.create`. Raises StalePlan where the job is over; OSError."""
        self._transaction = transaction
        self.container: Container = transaction.create(name, **settings)
        self.container.follow_files()
        self.gone: set[bytes] = set()
        self.complete = False  # nothing can be added any more
        self._tried = False
        self._tombs_at = 0
        self._record: ShardRecord | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            self.abandon()

    @property
    def size(self) -> int:
        """Bytes of the container so far."""
        return self.container.store.kv.end

    @property
    def empty(self) -> bool:
        """Whether there is nothing to be published."""
        # After a try that failed the container may show nothing of what was put.
        return not self._tried and not self.gone and not len(self.container)

    def copy(self, source: Container, name: bytes, new: bytes) -> None:
        """Copy a file with all its metadata, but for the FILEID. Raises CorruptError; OSError."""
        from winkfs.container.copier import FileCopier  # who only commits does without it

        key = source.key(name)
        with source.lock:
            copier = FileCopier(source.settled(), self.container)
            pos, inode = source.files.inode(key)
            copier.copy(pos, inode, source.files.attrs(key), source.key(new))

    def check(self) -> None:
        """Raise Refusal where nothing can be added, after a `finish` that failed."""
        if self._lost:
            raise Refusal(LOST, self.container.base)
        if self.complete:
            what = "the last sync failed: sync again, or abort, before going on"
            raise Refusal(what, self.container.base)

    def finish(self) -> ShardRecord:
        """Close it -> its record. Raises OSError; then it can be called again, or `abandon`."""
        if self._record is None:
            again, self._tried = self._tried, True
            if not self.complete:
                self._complete()
            if again:
                self._make_anew()
            self._record = self._transaction.seal(self.container.base, self._tombs_at)
        return self._record

    @property
    def _lost(self) -> bool:
        """Whether a write or a sync has failed, and the container goes on without what it lost."""
        return not self.complete and (self.container.losses > 0 or not self.container.writable)

    def _complete(self) -> None:
        """Put everything into the container, durable, and close it."""
        if self._lost:
            raise Refusal(LOST, self.container.base)
        try:
            gone = [name for name in sorted(self.gone) if name not in self.container]
            # Behind all else, and anew after a try that failed: those from then do not count.
            self._tombs_at = self.container.append_tombstones(gone) if gone else 0
            self.container.save_catalog()
        except OSError as error:
            if self._lost:
                raise Refusal(LOST, self.container.base, number=error.errno) from None
            raise
        self.complete = True
        self.container.close()

    def _make_anew(self) -> None:
        """After a try that failed: write all files once more, for what was not synced may be lost.

        raises  Refusal where it was lost
        """
        from winkfs.container.container import open as open_container
        from winkfs.container.verify import verify

        base = self.container.base
        directory, name = locate(base)
        for suffix in FILES:
            if not directory.exists(name + suffix):
                continue
            with (
                directory.open(name + suffix) as old,
                replacing(directory, name + suffix, like=old, uncached=True) as new,
            ):
                copy_bytes(old, new)
        open_container(base, "a").close()
        if problems := verify(base).problems:
            what = f"what was written was lost in a failed sync ({problems[0]}): put it again"
            raise Refusal(what, base)

    def abandon(self) -> None:
        """Close it as it is, and remove it."""
        from winkfs.container.datafile import remove_files

        with contextlib.suppress(OSError):
            self.container.abort()
        remove_files(self.container.base)
