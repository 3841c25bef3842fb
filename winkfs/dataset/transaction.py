"""A transaction: containers made beside a data set, and the one commit that makes them shards.

    _pending/JOB/NAME    attempts write here; `seal` looks at each that was closed
    JOB/NAME             after one rename of the folder; nothing is visible yet
    _winkfs/N.json       after one link(2): all of it is

A crash before the link leaves the data set as it was, and files that `vacuum` collects. An attempt
that lives on after the commit finds no folder to write into.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from winkformats.disk.directory import sync_directory
from winkfs.basepath import FILES
from winkfs.dataset.manifest import PENDING, Log, create, next_manifest
from winkfs.dataset.records import REWRITES, Manifest, ShardRecord, State
from winkfs.errors import DatasetConflict, FileExists, StalePlan

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}", re.ASCII)
MARK: Final = "_job"  # a file in the folder of a job: vacuum goes into no other
Streams = Mapping[str, int]


def begin(
    root: str | os.PathLike[str], operation: str = "append", job: str | None = None
) -> Transaction:
    """Begin to change a data set; it is made where there is none.

    operation  append: files are added; overwrite: they replace all that is there now
    job        letters, digits, dots and dashes; must be new; None: one is chosen
    raises     ValueError; FileExistsError (the job); OSError
    """
    log = create(os.path.abspath(root))  # attempts run in other folders
    name = job or f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(6)}"
    if not NAME.fullmatch(name):
        raise ValueError(f"a job is named by letters, digits, dots and dashes, not {name!r}")
    transaction = Transaction(log.root, name, operation, log.newest())
    if os.path.isdir(transaction.folder):
        raise FileExists("that job was committed already", transaction.folder)
    Path(transaction.pending).mkdir()
    Path(f"{transaction.pending}/{MARK}").touch()
    return transaction


def join(root: str | os.PathLike[str], operation: str, job: str) -> Transaction:
    """The same for a task that has to begin a job itself, or finds it begun by another task.

    raises  StalePlan where it was committed; NoSuchFile where there is no data set; OSError
    """
    log = Log(os.path.abspath(root))
    transaction = Transaction(log.root, job, operation, log.newest())
    if os.path.isdir(transaction.folder):
        raise StalePlan("the job was committed meanwhile", transaction.folder)
    Path(transaction.pending).mkdir(exist_ok=True)
    Path(f"{transaction.pending}/{MARK}").touch()
    return transaction


@dataclass(frozen=True, slots=True)
class Transaction:
    """Small, and the same after pickling: attempts in other processes write with it.

    base_generation  the newest one when it began
    """

    root: str
    job: str
    operation: str
    base_generation: int

    @property
    def pending(self) -> str:
        return f"{self.root}/{PENDING}/{self.job}"

    @property
    def folder(self) -> str:
        return f"{self.root}/{self.job}"

    @property
    def location(self) -> str:
        """Where the folder of its shards is now, below `root`."""
        return f"{PENDING}/{self.job}" if os.path.isdir(self.pending) else self.job

    def attempt(self, name: str) -> str:
        """Where an attempt is to make a container -> its base.

        name    one that no other attempt has: "00003-0"
        raises  ValueError; StalePlan where the job was committed or aborted meanwhile
        """
        if not NAME.fullmatch(name):
            raise ValueError(f"an attempt is named by letters, digits, dots, dashes, not {name!r}")
        if not os.path.isdir(self.pending):
            raise StalePlan("the job was committed or aborted meanwhile", self.folder)
        return f"{self.pending}/{name}"

    def seal(self, base: str, tombs_at: int = 0) -> ShardRecord:
        """What `commit` is to know of a container that an attempt made and closed.

        tombs_at  position from which its tombstones count for older shards; 0: it has none
        raises    WinkError where it was not closed; FormatError; OSError
        """
        from winkfs.dataset.survey import survey  # who only commits does without it: 50 ms

        record = survey(base, f"{self.job}/{os.path.basename(base)}", tombs_at)
        Path(base + ".lock").unlink(missing_ok=True)
        return record

    # --- the end ---

    def commit(
        self,
        records: Iterable[ShardRecord],
        streams: Streams | None = None,
        metrics: Mapping[str, Any] | None = None,
        removed: Iterable[str] | None = None,
        after: int | None = None,
        check: Callable[[State], None] | None = None,
    ) -> int:
        """Make the shards of `records`, and no other attempt, visible -> the generation.

        streams   {query: batch}: where the data set has such a batch of a query, or a later one,
                  everything is swept, and the generation returned is the one that has it
        removed   paths of the shards that these replace; None: for `overwrite` all of
                  `base_generation`, else none
        after     the generation that the commit must follow: what was decided by reading it, such
                  as deletes, may be wrong after another; None: any
        check     called with what this follows; it may refuse by raising. Again where another
                  commit came in between. `location` says where the shards are
        raises    DatasetConflict where one of them is gone, everything is swept then; StalePlan
                  where a sealed container is gone; OSError: nothing is visible then, call `abort`
        A second call after one that was broken off goes on where that ended.
        """
        log, chosen = Log(self.root), list(records)
        done = self._committed(log)
        if done is not None:
            return done
        gone = self._replaced(log) if removed is None else tuple(removed)
        checked: set[int] = set()

        def make(before: State) -> Manifest | int:
            there = _batch_done(before, streams)
            if there is not None:
                return there
            self._check_removed(before, gone)
            if after is not None and before.generation != after:
                raise DatasetConflict("was changed meanwhile: try again", self.root)
            if check is not None and before.generation not in checked:
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
                self._move(chosen)
            done = log.publish(make)
        except DatasetConflict:
            self.abort()
            raise
        self.abort()  # where another attempt had the batch already
        return done

    def abort(self) -> None:
        """Remove everything of the job that no manifest names. A second time does nothing."""
        with contextlib.suppress(FileNotFoundError):
            # Out of the way at once: an attempt that lives on finds no folder to write into.
            swept = f"{self.pending}.{secrets.token_hex(4)}"
            os.rename(self.pending, swept)
            shutil.rmtree(swept, ignore_errors=True)
        if os.path.isdir(self.folder) and self._committed(Log(self.root)) is None:
            shutil.rmtree(self.folder, ignore_errors=True)

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

    def _ranked(self, before: State, records: list[ShardRecord]) -> tuple[ShardRecord, ...]:
        if self.operation in REWRITES:
            return tuple(records)  # they have the ranks of what they replace
        generation = before.generation + 1
        if self.operation == "overwrite":  # what came meanwhile is newer than what it overwrites
            generation = self.base_generation
        return tuple(replace(r, rank=(generation, i)) for i, r in enumerate(records))

    def _move(self, records: list[ShardRecord]) -> None:
        """Give the job's folder its place, with nothing in it but the shards of `records`."""
        if not records:
            shutil.rmtree(self.pending, ignore_errors=True)
            return
        if os.path.isdir(self.pending):
            self._check_there(self.pending, records)
            os.utime(self.pending)  # young, whatever its files are: `vacuum` goes by that
            sync_directory(f"{self.pending}/.")
            os.rename(self.pending, self.folder)
            sync_directory(self.folder)
        else:
            self._check_there(self.folder, records)
        names = {os.path.basename(record.path) for record in records}
        kept = {name + suffix for name in names for suffix in FILES} | {MARK}
        with os.scandir(self.folder) as entries:  # only now: nobody can make files there any more
            for entry in entries:
                if entry.name in kept:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:  # an attempt that lost may be removing it too
                    Path(entry.path).unlink(missing_ok=True)

    def _check_there(self, folder: str, records: list[ShardRecord]) -> None:
        for record in records:
            data = f"{folder}/{os.path.basename(record.path)}.data"
            if not os.path.isfile(data) or os.path.getsize(data) < record.size:
                raise StalePlan("a container that was sealed is gone, or cut short", data)


def _batch_done(state: State, streams: Streams | None) -> int | None:
    """The generation that has all these batches already."""
    known = [state.streams.get(query, (-1, -1)) for query in streams or ()]
    if not known or any(k[0] < b for k, b in zip(known, (streams or {}).values(), strict=True)):
        return None
    return max(generation for _, generation in known)
