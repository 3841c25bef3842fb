"""Pack a directory or a tar file into the shards of a data set, published by one manifest.

From a directory each shard takes a range of the names (append-only: of the mtimes) of even size,
and is written by a process of its own. A tar file is one stream: its files go to shards by the
hashes of their names, so that files of equal names are in one shard.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from winkformats.disk.paths import locate
from winkformats.disk.schemes import is_far
from winkformats.disk.storage import Directory
from winkformats.extsort import BIAS, SortedRecords
from winkfs.archive.items import (
    MAX_RATIO,
    Copy,
    Note,
    Notes,
    Ratio,
    Seen,
    Suspect,
)
from winkfs.archive.pack import check_names, root_of, scratch_of, source_of, would_store
from winkfs.archive.packer import Line, Packer, PackReport, packer_of, put_all
from winkfs.archive.tree import OwnFolder, Tree, listed_names
from winkfs.archive.update import Finder, Known, Update, differences, now_ns, same_content
from winkfs.dataset.dataset import Dataset
from winkfs.dataset.dataset import open as open_dataset
from winkfs.dataset.manifest import Log, discard_empty, is_dataset
from winkfs.dataset.manifest import root_of as path_of
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.transaction import Transaction, begun
from winkfs.dataset.workers import Send, in_processes
from winkfs.errors import FileExists, Locked, NoSuchFile
from winkfs.names import PARTIAL, Choose, excluder, to_bytes
from winkfs.reader import each_once

PARALLEL: Final = 32 << 20  # bytes from which several processes pack
MTIME: Final = struct.Struct(">Q")  # mtime_ns + BIAS, so that bytes sort as times do
SIZE: Final = struct.Struct(">q")
MAX_SEARCHED: Final = 1000  # generations searched for the last one that packed the tree
INSIDE, MAKING = "set", "lock"  # in ROOT.partial: a new data set; what is locked meanwhile
PACKED: Final = "packed"  # key in the metrics of such a generation
PER_FILE: Final = 256  # approximate bytes of a file beside its content
Progress = Callable[[int], None]
_Packed = tuple[ShardRecord, PackReport]


def pack_shards(
    source: str | os.PathLike[str],
    root: str | os.PathLike[str],
    shards: int = 1,
    *,
    ao: bool = False,
    update: bool = False,
    checksum: bool = False,
    xattrs: bool = False,
    exclude: Sequence[str] = (),
    include: Sequence[str] = (),
    names: Iterable[bytes] | None = None,
    note: Notes | None = None,
    progress: Progress | None = None,
    stored: Line | None = None,
    dry_run: bool = False,
    compress: str | None = None,
    ignore_zeros: bool = False,
    max_ratio: int = MAX_RATIO,
) -> PackReport:
    """Pack a directory, or a tar file (`-`: standard input), into a data set: see `pack.pack`.

    shards    most containers
    include   globs: pack only these names, and what is below them
    stored    called with each name that is stored
    dry_run   change nothing; the report and `stored` are of what would be stored
    update    store only files that are missing or different in the existing data set, in new
              shards; without such files no generation is made
    compress  see `winkfs.create`; None: as the last compressed shard
    raises    FileExistsError, and what `pack` raises; then nothing is published, and a new data
              set is removed
    """
    path, where = path_of(root), os.fspath(source)
    if shards < 1:
        raise ValueError(f"the number of shards is at least 1, not {shards}")
    if not update and is_dataset(path) and Log(path).latest().shards:
        raise FileExists("the data set exists already: add to it with --update", path)
    check_names(where, names)
    scratch_of(path)
    report, lock = PackReport(), threading.Lock()

    def count(noted: Note) -> None:
        with lock:
            report.count(noted)
            if note:
                note(noted)

    def more(done: int) -> None:
        with lock:
            if progress:
                progress(done)

    began, tree = now_ns(), root_of(where, exclude, include, xattrs=xattrs)
    with contextlib.ExitStack() as stack:
        new = not is_dataset(path)
        if new and not dry_run:
            path = stack.enter_context(_unpublished(path))
        changes = None
        if update and not new:
            old = stack.enter_context(open_dataset(path))
            changes = _Changes(old, tree, more, count, checksum=checksum)
            stack.callback(changes.close)
        no, only = excluder(exclude), excluder(include)
        ratio = Ratio(max_ratio)
        if dry_run:
            reader = source_of(
                where, scratch_of(path), count, own=None if new else OwnFolder(path),
                xattrs=xattrs, exclude=no, include=only, names=names,
                ignore_zeros=ignore_zeros, ratio=ratio,
            )  # fmt: skip
            update_ = None if changes is None else changes.update
            same = None if changes is None else changes.same
            would_store(reader, update_, same, report, count, stored)
            report.unchanged += 0 if update_ is None else update_.unchanged
            return report

        def listed(name: bytes) -> None:
            with lock:
                if stored:
                    stored(name)

        transaction = stack.enter_context(begun(path))
        settings = {"ao": ao, "compress": compress}
        job = _Job(
            transaction, where, settings, xattrs, no, only, report, count, more,
            ignore_zeros, ratio, listed if stored else None,
        )  # fmt: skip
        if tree:
            records = _pack_tree(job, shards, names, changes)
        else:
            records = _pack_stream(job, shards, changes)
        if changes is not None:
            report.unchanged += changes.update.unchanged
            if not sum(record.files for record in records):
                transaction.abort()
                return report
        whole = tree and names is None and not report.failed
        seen = changes.dataset.generation if changes is not None else 0
        metrics = {PACKED: {"root": tree, "since": began, "seen": seen}} if whole else {}
        transaction.commit(records, metrics=metrics)
    return report


@contextlib.contextmanager
def _unpublished(root: str) -> Iterator[str]:
    """Yield the folder in which a new data set is made: ROOT.partial/set, which becomes ROOT at the
    end. ROOT.partial is removed then, and if the block raises; one that a killed run has left is
    replaced.

    A data set at a URL, or in a folder that has other files, is made in its place.
    raises  Locked; FileExists
    """
    if is_far(root) or (os.path.lexists(root) and not _is_empty(root)):
        folder = not is_far(root) and not os.path.lexists(root)
        try:
            yield root
        except BaseException:
            discard_empty(root, folder=folder)
            raise
        return
    directory, name = locate(root)
    partial = name + PARTIAL
    _remove_left(directory, partial, root)
    with contextlib.ExitStack() as stack:
        directory.mkdir(partial)
        stack.callback(directory.remove_tree, partial)
        made = stack.enter_context(directory.subdirectory(partial))
        made.create_new(MAKING).close()
        lock = made.lock(MAKING)
        if lock is None:
            raise Locked("another pack makes it", root)
        try:
            yield f"{root}{PARTIAL}/{INSIDE}"
            directory.rename(f"{partial}/{INSIDE}", name)
        finally:
            lock.release()
    directory.sync()


def _is_empty(path: str) -> bool:
    return not os.path.islink(path) and os.path.isdir(path) and not os.listdir(path)


def _remove_left(directory: Directory, partial: str, root: str) -> None:
    """Remove what a killed run has left. Raises Locked, FileExists."""
    if directory.info(partial) is None:
        return
    with directory.subdirectory(partial) as folder:
        entries = folder.list()
        if entries and MAKING not in entries:
            raise FileExists("no data set that a pack has left: remove it", root + PARTIAL)
        lock = folder.lock(MAKING) if entries else None
        if entries and lock is None:
            raise Locked("another pack makes it", root)
        if lock is not None:
            lock.release()
    directory.remove_tree(partial)


class _Changes:
    """Files of a source that are missing or different in a data set.

    packers  writers of the new shards
    """

    def __init__(
        self, dataset: Dataset, root: int, progress: Progress, note: Notes, *, checksum: bool
    ) -> None:
        self.dataset = dataset
        # Files of a shard that is lost count as missing: they are stored again.
        self._damage = each_once(lambda error: note(Note(b"", str(error), True)))
        self.packers: Sequence[Packer] = ()
        self._finders: dict[str, Finder] = {}
        self._since, self._seen, self._packed = last_packed(dataset, root)
        self.update = Update(self._look, self._since, checksum, False, self._stored, progress)

    def _stored(self, name: bytes) -> bool:
        """Return whether a name has been stored by this update."""
        if not self.packers:
            return False
        packer = packer_of(self.packers, name)
        return name in packer.names or name in packer.container

    def _look(self, names: Sequence[bytes]) -> Known:
        found: Known = {}
        for shard, container, some in self.dataset.homes(names, self._damage):
            generation = shard.record.rank[0]
            recent = generation > self._seen and generation != self._packed
            finder = self._finders.get(shard.base)
            if finder is None or finder.container is not container:
                finder = Finder(container, 0 if recent else shard.record.size)
                self._finders[shard.base] = finder
            found |= finder(some)
        return found

    def close(self) -> None:
        for finder in self._finders.values():
            finder.close()

    def same(self, suspect: Suspect) -> bool:
        """Return whether a file is unchanged."""
        item = suspect.item
        names = [item.name, item.target] if isinstance(item, Copy) else [item.name]
        if any(self._stored(to_bytes(name)) for name in names):
            return False
        try:
            home = self.dataset.home(item.name)
            same = not suspect.content or same_content(item, home, self.dataset)
            same = same and not differences(item, home)
        except NoSuchFile:
            same = False
        self.update.unchanged += same
        return same


def last_packed(dataset: Dataset, root: int) -> tuple[int, int, int]:
    """Return when the tree was last packed whole, the generation that it was compared with, and the
    generation that this made. 0, 0, 0: not known."""
    for manifest in islice(dataset.history(), MAX_SEARCHED):
        mark = manifest.metrics.get(PACKED)
        if isinstance(mark, dict) and mark.get("root") == root:
            return int(mark["since"]), int(mark["seen"]), manifest.generation
    return 0, 0, 0


@dataclass(frozen=True, slots=True)
class _Job:
    """Arguments common to all shards of one `pack_shards`."""

    transaction: Transaction
    source: str
    settings: dict[str, Any]
    xattrs: bool
    exclude: Choose | None
    include: Choose | None
    report: PackReport
    note: Notes
    progress: Progress
    ignore_zeros: bool
    ratio: Ratio
    stored: Line | None

    @property
    def own(self) -> str:
        """The folder that the job writes to, which is not packed."""
        root = self.transaction.scratch if self.transaction.far else self.transaction.root
        return root.removesuffix("/" + INSIDE) if root.endswith(f"{PARTIAL}/{INSIDE}") else root


# --- a directory ---


def _pack_tree(
    job: _Job, shards: int, names: Iterable[bytes] | None, changes: _Changes | None
) -> list[ShardRecord]:
    with tempfile.TemporaryDirectory(prefix="winkfs-pack-", dir=job.transaction.scratch) as scratch:
        tree = Tree(
            job.source, job.note, scratch, own=OwnFolder(job.own),
            exclude=job.exclude, include=job.include, names=names,
        )  # fmt: skip
        files = tree.sizes() if changes is None else tree.sizes(changes.update, changes.same)
        lists = split(files, shards, scratch, ao=job.settings["ao"])
        if changes is not None and not lists[0][1]:
            return []
        workers = min(len(lists), os.cpu_count() or 1)
        if workers == 1 or sum(size for _, size in lists) < PARALLEL:
            return [_pack_list(job, path, number) for number, (path, _) in enumerate(lists)]
        return _in_processes(job, [(number, path) for number, (path, _) in enumerate(lists)])


def split(files: Iterable[Seen], shards: int, scratch: str, *, ao: bool) -> list[tuple[str, int]]:
    """Write a list of names for each shard, of even size -> their paths, and bytes of files."""
    with SortedRecords(scratch) as records:
        left = 0
        for seen in files:
            order = MTIME.pack(seen.mtime_ns + BIAS) if ao else b""
            records.add(order + seen.name + b"\0" + SIZE.pack(seen.size))
            left += seen.size + PER_FILE
        lists: list[tuple[str, int]] = []
        found = iter(records)
        waiting = next(found, None)
        for number in range(shards):
            share, taken = left / (shards - number), 0
            path = f"{scratch}/{number:05}.names"
            with Path(path).open("wb") as file:
                while waiting is not None:
                    size = SIZE.unpack_from(waiting, len(waiting) - SIZE.size)[0] + PER_FILE
                    if taken and taken + size / 2 > share and number < shards - 1:
                        break
                    file.write(waiting[MTIME.size if ao else 0 : -SIZE.size])
                    taken += size
                    waiting = next(found, None)
            left -= taken
            if taken or not lists:
                lists.append((path, taken))
        return lists


def _pack_list(job: _Job, names: str, number: int) -> ShardRecord:
    """Pack the files of a list into one shard."""
    with Path(names).open("rb") as file, tempfile.TemporaryDirectory(
        prefix="winkfs-pack-", dir=os.path.dirname(names)
    ) as scratch:  # fmt: skip
        names_in = listed_names(file)
        tree = Tree(job.source, job.note, scratch, xattrs=job.xattrs, names=names_in)
        with ShardWriter(job.transaction, f"{number:05}", **job.settings) as writer:
            Packer(writer.container, job.report, job.note, job.progress, stored=job.stored).run(
                tree
            )
            return writer.finish()


def _pack_unit(common: tuple[Any, ...], unit: tuple[int, str], send: Send) -> _Packed:
    """Pack a list of names in a process of its own."""
    transaction, source, settings, xattrs, listed = common
    report = PackReport()
    job = _Job(
        transaction, source, settings, xattrs, None, None, report,
        lambda noted: send("note", tuple(noted)), lambda done: send("progress", done), False,
        Ratio(), (lambda name: send("stored", name)) if listed else None,
    )  # fmt: skip
    return _pack_list(job, unit[1], unit[0]), report


def _in_processes(job: _Job, units: list[tuple[int, str]]) -> list[ShardRecord]:
    """Pack each list of names into a shard, on all processors."""

    def heard(kind: str, value: Any) -> None:
        if kind == "note":
            job.note(Note(*value))
        elif kind == "stored":
            if job.stored:
                job.stored(value)
        else:
            job.progress(value)

    common = job.transaction, job.source, job.settings, job.xattrs, job.stored is not None
    found = in_processes(_pack_unit, common, units, os.cpu_count() or 1, heard)
    for _, report in found:
        job.report.add_stored(report)
    return [record for record, _ in found]


# --- a tar file ---


def _pack_stream(job: _Job, shards: int, changes: _Changes | None) -> list[ShardRecord]:
    source = source_of(
        job.source, scratch_of(job.transaction.root), job.note, own=None, xattrs=job.xattrs,
        exclude=job.exclude, include=job.include, names=None, ignore_zeros=job.ignore_zeros,
        ratio=job.ratio,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(ShardWriter(job.transaction, f"{number:05}", **job.settings))
            for number in range(shards)
        ]
        packers = [
            Packer(
                writer.container,
                job.report,
                job.note,
                job.progress,
                job.ratio,
                shards,
                stored=job.stored,
            )
            for writer in writers
        ]
        if changes is None:
            put_all(source.items(by_mtime=job.settings["ao"]), packers)
        else:
            changes.packers = packers
            items = source.changed(changes.update, by_mtime=job.settings["ao"])
            put_all(items, packers, changes.same)
        empty = [writer for writer in writers if writer.empty]
        records = [writer.finish() for writer in writers if not writer.empty]
        for writer in empty:
            writer.abandon()
        return records
