"""Sync: makes a container, a data set or a directory equal to a directory, an archive or a store.

Both sides are compared first, see `winkfs.archive.compare`; then what differs is stored, and last,
if wanted, what the source does not have is removed. Contents are read where metadata leave a doubt.

    sync      into a container and into a data set
    syncplan  the source, and the changes to be made
    synctree  into a directory
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Final, Literal

import numpy as np

from winkformats.disk.schemes import is_far
from winkfs.archive.compare import Change, StoreSide, what_is
from winkfs.archive.items import Note, Notes
from winkfs.archive.pack import scratch_of
from winkfs.archive.packer import Packer, Progress
from winkfs.archive.syncplan import NONE_REMOVED, Options, Origin, Place, SyncReport, compared
from winkfs.archive.tree import OwnFiles, OwnFolder
from winkfs.archive.update import Mark, now_ns
from winkfs.container.building import building
from winkfs.container.container import Container
from winkfs.container.container import open as open_container
from winkfs.container.ondisk.inode import INT64
from winkfs.container.table import POS, FileTable
from winkfs.dataset.dataset import Dataset
from winkfs.dataset.dataset import open as open_dataset
from winkfs.errors import Refusal
from winkfs.names import DATA, base_of
from winkfs.registry import kind_of
from winkfs.remote import refuse_far

RECENT: Final = INT64  # a position that no file has


def target_at(path: str) -> Literal["container", "data set", "tree"]:
    """Return what a sync makes equal at a path, where nothing may be.

    raises  ValueError if it is a folder and a container; Refusal of what takes no files
    """
    what = what_is(path)
    if what == "tree":
        return "tree"
    if what == "tar":
        raise Refusal("is a file, no container, data set or directory: name another target", path)
    kind, base = kind_of(path.rstrip("/") or path)
    if kind.name == "data set":
        return "data set"
    if kind.name != "container":
        raise Refusal(f"a {kind.name} is there, which takes no files", base)
    refuse_far(base)
    return "tree" if path.endswith("/") else "container"


def sync(
    source: Place,
    target: Place,
    options: Options,
    *,
    note: Notes,
    changed: Callable[[Change], None],
    progress: Progress | None = None,
) -> SyncReport:
    """Make a target equal to a source: an existing data set, a directory, which is made if its path
    ends with a slash, or a container, which is made if there is nothing.

    note      called with each file that was not stored as it is
    changed   called with each difference before it is carried out
    progress  called with the number of files since the last call
    raises    NoSuchFile; Refusal (an empty source); Locked; FormatError; OSError; ValueError; of a
              data set DatasetConflict
    """
    base, report, damages = target.path, SyncReport(), set[str]()

    def count(noted: Note) -> None:
        if not noted.name:  # damage of a store, which several may notice
            if noted.what in damages:
                return
            damages.add(noted.what)
        report.count(noted)
        note(noted)

    if target.what == "tree":
        from winkfs.archive.synctree import into_tree  # late, as few write into one

        into_tree(source, base, options, report, count, changed, progress)
    elif target.what == "data set":
        _into_dataset(source, base, options, report, count, changed, progress)
    else:
        _into_container(source, base_of(base), options, report, count, changed, progress)
    return report


def _into_container(
    source: Place,
    target: str,
    options: Options,
    report: SyncReport,
    note: Notes,
    changed: Callable[[Change], None],
    progress: Progress | None,
) -> None:
    exists = os.path.lexists(target + DATA)
    with contextlib.ExitStack() as stack:
        scratch = scratch_of(target)
        origin = Origin(source, target + DATA, OwnFiles(target), scratch, options, note, stack)
        if exists and options.dry:
            container = stack.enter_context(contextlib.closing(open_container(target)))
        elif exists:
            container = stack.enter_context(_changing(target))
        elif options.dry:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="winkfs-"))
            container = stack.enter_context(building(os.path.join(scratch, "none")))
        else:
            container = stack.enter_context(building(target, **origin.like()))
        began = now_ns()
        mark = Mark.of(container, options.root(source.path))
        side = StoreSide(container, origin.problem)
        origin.set_since(mark.since)
        work = compared(side, origin, (mark.since, mark.end), options, note, changed)
        if progress:
            progress(work.equal)
        if options.dry:
            return
        if not exists:
            origin.adopt(container)
        if work.decisions:
            origin.declare(container)
        for name in work.replaced:
            container.delete(name)
        packer = Packer(container, report, note, progress)
        origin.put(packer, work.decisions, report, progress, sync=exists)
        if not report.failed:
            for name in work.gone:
                container.delete(name)
            report.removed = len(work.gone)
        elif work.gone:
            note(NONE_REMOVED)
        report.unchanged += work.equal
        container.save_catalog()
        stored = bool(work.decisions or work.gone or not exists)
        if origin.what == "tree" and not report.failed and (stored or work.doubts):
            Mark(mark.root, began, 0).keep(container)


@contextlib.contextmanager
def _changing(target: str) -> Iterator[Container]:
    """Open a container for changes, which stay if an error ends them: the next sync goes on."""
    with contextlib.closing(open_container(target, "a")) as container:
        try:
            yield container
        except Exception:
            raise
        except BaseException:  # a signal: recovering the interrupted call would take long
            container.abort()
            raise


def _into_dataset(
    source: Place,
    target: str,
    options: Options,
    report: SyncReport,
    note: Notes,
    changed: Callable[[Change], None],
    progress: Progress | None,
) -> None:
    """Add a shard with what differs, and with the tombstones of what is removed: one commit."""
    from winkfs.archive.copyfiles import joined_columns
    from winkfs.dataset.packing import PACKED, last_packed
    from winkfs.dataset.shardwriter import ShardWriter
    from winkfs.dataset.transaction import begun

    with contextlib.ExitStack() as stack:
        old = stack.enter_context(contextlib.closing(open_dataset(target)))
        own = None if is_far(old.base) else OwnFolder(old.base)
        origin = Origin(source, old.base, own, scratch_of(old.base), options, note, stack)
        began, tree = now_ns(), options.root(source.path)
        since, seen, packed = last_packed(old, tree)
        side = _DatasetSide(old, origin.problem, seen, packed)
        origin.set_since(since)
        work = compared(side, origin, (since, RECENT), options, note, changed)
        report.unchanged += work.equal
        if progress:
            progress(work.equal)
        if options.dry or not (work.decisions or work.gone):
            return
        decisions = dict.fromkeys(origin.with_targets(work.decisions))
        settings = {"ao": old.ao, "columns": joined_columns([old.columns, origin.columns])}
        with begun(old.base) as transaction:
            with ShardWriter(transaction, "00000", **settings) as writer:
                packer = Packer(writer.container, report, note, progress)
                origin.put(packer, decisions, report, progress, sync=False)
                if not report.failed:
                    writer.gone = set(work.gone)
                    report.removed = len(work.gone)
                elif work.gone:
                    note(NONE_REMOVED)
                if writer.empty:
                    writer.abandon()
                    transaction.abort()
                    return
                record = writer.finish()
            whole = origin.what == "tree" and not report.failed
            mark = {"root": tree, "since": began, "seen": old.generation}
            metrics = {PACKED: mark} if whole else {}
            transaction.commit([record], metrics=metrics, since=old.generation)


class _DatasetSide(StoreSide):
    """A data set as the target. Files of shards that others have added since a tree was packed are
    at the position RECENT, so that their contents are compared.

    seen, packed  see `packing.last_packed`
    """

    def __init__(
        self, dataset: Dataset, problem: Callable[[str], None], seen: int, packed: int
    ) -> None:
        super().__init__(dataset, problem)
        self._dataset = dataset
        ranks = {shard.record.rank[0] for shard in dataset.shards}
        recent = {rank for rank in ranks if rank > seen and rank != packed}
        self._recent = recent if packed else set()  # without a mark all contents are compared

    def tables(self) -> Iterator[FileTable]:
        for rows in super().tables():
            yield self._placed(rows) if self._recent else rows

    def _placed(self, rows: FileTable) -> FileTable:
        recent = [
            set(some)
            for shard, _, some in self._dataset.homes(rows.names)
            if shard.record.rank[0] in self._recent
        ]
        if not recent:
            return rows
        names, numbers = set[bytes]().union(*recent), rows.numbers.copy()
        found = np.fromiter(map(names.__contains__, rows.names), np.bool_, len(rows))
        numbers[found, POS] = RECENT
        return rows.with_numbers(numbers)
