"""Push of a data set: what is new in its newest generation goes to object storage.

Shards keep their paths, and the generation its number. It is put there before the empty manifests
of the numbers that were made meanwhile, and those from the highest on: so a reader, who counts
upwards, sees the generation that was there until the last of them is put, and then the new one.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Final

from winkformats.disk.paths import open_file
from winkformats.errors import FormatError
from winkfs.archive.copying import Progress
from winkfs.dataset.checkpoint import put_hidden, put_parts
from winkfs.dataset.folder import LATEST, FarFolder, check_commits, far_files
from winkfs.dataset.hidden import hidden_of
from winkfs.dataset.jobfolder import UPLOADED, put_mark
from winkfs.dataset.manifest import Log, check_free, is_dataset, new_job, root_of
from winkfs.dataset.records import Manifest, ShardRecord, State, Whole
from winkfs.errors import FileExists, StalePlan
from winkfs.names import DATA, MANIFESTS
from winkfs.remote.pushcontainer import Pushed, is_equal

TRIES: Final = 3  # while the data set is vacuumed


def push_set(
    root: str, url: str, *, dry_run: bool = False, progress: Progress | None = None
) -> Pushed:
    """Copy the newest generation of a data set to object storage: see `push.push`.

    raises  FileExists if something else is there, or this data set was changed there; Refusal: the
            store has not passed `winkfs remote check`; OSError
    """
    target = root_of(url)
    done = Pushed(target)
    for left in range(TRIES, 0, -1):
        try:
            _Push(Log(root), target, done, progress or (lambda size: None)).run(dry_run=dry_run)
            break
        except (FileNotFoundError, StalePlan):
            if left == 1:
                raise
    return done


class _Push:
    """there: the state that the target has; None: it is not there yet."""

    def __init__(self, log: Log, target: str, done: Pushed, progress: Progress) -> None:
        self.log, self.done, self.progress = log, done, progress
        self.target, self.files = target, far_files(target)
        self.store = FarFolder(f"{target}/{MANIFESTS}")
        self.there: State | None = None

    def run(self, *, dry_run: bool) -> None:
        state = self.log.latest()
        self.done.size = sum(record.size for record in state.shards)
        if is_dataset(self.target):
            self.there = self._same(state)
        else:
            check_free(self.target)
        known = {r.path: r for r in self.there.shards} if self.there is not None else {}
        new = [record for record in state.shards if record.path not in known]
        self.done.replaces = self.there is not None
        self.done.same = self.there is not None and self.there.generation == state.generation
        if dry_run:
            self.done.sent = sum(record.size for record in new)
        if dry_run or self.done.same:
            return
        check_commits(self.target)
        sent = known | {record.path: self._sent(record) for record in new}
        self._publish(state, [replace(r, etag=sent[r.path].etag) for r in state.shards])

    def _same(self, state: State) -> State:
        """Return the newest state there. Raises FileExists if it is not one of this data set."""
        found = Log(self.target).latest()
        if found.generation <= state.generation:
            with contextlib.suppress(StalePlan, FormatError):
                if self.log.read(found.generation).time_ns == found.time_ns:
                    return found
            shared = {r.path for r in found.shards} & {r.path for r in state.shards}
            if state.oldest > found.generation and shared:
                return found
        what = "another data set is there, or it was changed there since: choose another name"
        raise FileExists(what, self.target)

    def _sent(self, record: ShardRecord) -> ShardRecord:
        """Upload a shard, unless it is there."""
        with contextlib.suppress(FileExistsError):
            put_mark(self.target, record.path.partition("/")[0], 0)
        etag = ""
        for suffix in UPLOADED:
            path = f"{self.log.root}/{record.path}{suffix}"
            try:
                storage = open_file(path, uncached=True)
            except FileNotFoundError:
                if suffix == DATA:
                    raise
                continue
            with storage:
                key, size = self.files.key(record.path + suffix), storage.size()
                known = self.files.transport.head(key)
                if known is None or not is_equal(known, size, storage.read):
                    known, sent = self.files.transport.put_from(
                        key, size, storage.read, self.progress
                    )  # fmt: skip
                    self.done.sent += sent
                else:
                    self.progress(size)
                etag = known.etag
        return replace(record, etag=etag)

    def _publish(self, state: State, records: list[ShardRecord]) -> None:
        number, job = state.generation, new_job()
        first = self.there.generation + 1 if self.there is not None else 0
        old = {record.path for record in self.there.shards} if self.there is not None else set()
        follows = number == first and self.there is not None
        added = tuple(record for record in records if follows and record.path not in old)
        removed = old - {record.path for record in records} if follows else set[str]()
        put_mark(self.target, job, number)
        parts = put_parts(self.files, f"{job}/{max(number - 1, 0):020}", records)
        hidden = put_hidden(self.files, f"{job}/{number:020}", hidden_of(self.log, state))
        source = self.log.read(number)
        data = Manifest(
            number, state.time_ns, source.operation, job, added, tuple(sorted(removed)),
            metrics=source.metrics, oldest=number,
            whole=Whole(number - 1, tuple(part for part, _ in parts) if number else (), added,
                        hidden=(None, hidden), streams=dict(state.streams)),
        ).encode()  # fmt: skip
        self._put(number, data)
        for empty in range(number - 1, first - 1, -1):
            with contextlib.suppress(FileExistsError):
                self.store.files.put(self.store.name(empty), b"", absent=True)
        with contextlib.suppress(OSError):  # a hint
            self.store.files.put(LATEST, data)

    def _put(self, number: int, data: bytes) -> None:
        """Put the manifest, unless a push that was stopped has put one of this generation."""
        for left in range(TRIES, 0, -1):
            try:
                self.store.files.put(self.store.name(number), data, absent=True)
                return
            except OSError:  # an answer can be lost
                found = self.store.stored(number)
                if found:
                    there = Manifest.decode(found, file=f"{self.store.path}/{number}")
                    if there.time_ns != Manifest.decode(data, file="").time_ns:
                        raise FileExists("another program writes there", self.target) from None
                    return
                if left == 1:
                    raise
