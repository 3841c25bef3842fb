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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from winkformats.disk.schemes import is_far
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
from winkfs.archive.pack import (
    Packer,
    PackReport,
    check_names,
    packer_of,
    put_all,
    root_of,
    scratch_of,
)
from winkfs.archive.sources import archive
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
from winkfs.errors import FileExists, NoSuchFile
from winkfs.names import excluder, to_bytes

PARALLEL: Final = 32 << 20  # bytes from which several processes pack
MTIME: Final = struct.Struct(">Q")  # mtime_ns + BIAS, so that bytes sort as times do
SIZE: Final = struct.Struct(">q")
MAX_SEARCHED: Final = 1000  # generations searched for the last one that packed the tree
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
    names: Iterable[bytes] | None = None,
    note: Notes | None = None,
    progress: Progress | None = None,
    compress: str | None = None,
    ignore_zeros: bool = False,
    max_ratio: int = MAX_RATIO,
) -> PackReport:
    """Pack a directory, or a tar file (`-`: standard input), into a data set: see `pack.pack`.

    shards    most containers
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

    began, tree = now_ns(), root_of(where, exclude, xattrs=xattrs)
    with contextlib.ExitStack() as stack:
        if not is_dataset(path):
            stack.push(_discarding(path))
        changes = None
        if update and is_dataset(path):
            old = stack.enter_context(open_dataset(path))
            changes = _Changes(old, tree, more, checksum=checksum)
            stack.callback(changes.close)
        transaction = stack.enter_context(begun(path))
        settings = {"ao": ao, "compress": compress}
        job = _Job(
            transaction, where, settings, xattrs, list(exclude), report, count, more,
            ignore_zeros, Ratio(max_ratio),
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


def _discarding(root: str) -> Callable[..., None]:
    """Return the exit of a `with` block that removes a new data set if the block raised."""
    folder = not is_far(root) and not os.path.lexists(root)

    def leave(kind: object, *_: object) -> None:
        if kind is not None:
            discard_empty(root, folder=folder)

    return leave


class _Changes:
    """Files of a source that are missing or different in a data set.

    packers  writers of the new shards
    """

    def __init__(self, dataset: Dataset, root: int, progress: Progress, *, checksum: bool) -> None:
        self.dataset = dataset
        self.packers: Sequence[Packer] = ()
        self._finders: dict[str, Finder] = {}
        self._since, self._seen, self._packed = _last_packed(dataset, root)
        self.update = Update(self._look, self._since, checksum, False, self._stored, progress)

    def _stored(self, name: bytes) -> bool:
        """Return whether a name has been stored by this update."""
        if not self.packers:
            return False
        packer = packer_of(self.packers, name)
        return name in packer.names or name in packer.container

    def _look(self, names: Sequence[bytes]) -> Known:
        found: Known = {}
        for shard, container, some in self.dataset.homes(names):
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


def _last_packed(dataset: Dataset, root: int) -> tuple[int, int, int]:
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
    exclude: list[str]
    report: PackReport
    note: Notes
    progress: Progress
    ignore_zeros: bool
    ratio: Ratio

    @property
    def own(self) -> str:
        """The folder that the job writes to, which is not packed."""
        return self.transaction.scratch if self.transaction.far else self.transaction.root


# --- a directory ---


def _pack_tree(
    job: _Job, shards: int, names: Iterable[bytes] | None, changes: _Changes | None
) -> list[ShardRecord]:
    with tempfile.TemporaryDirectory(prefix="winkfs-pack-", dir=job.transaction.scratch) as scratch:
        tree = Tree(
            job.source, job.note, scratch, own=OwnFolder(job.own),
            exclude=excluder(job.exclude), names=names,
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
            Packer(writer.container, job.report, job.note, job.progress).run(tree)
            return writer.finish()


def _pack_unit(common: tuple[Any, ...], unit: tuple[int, str], send: Send) -> _Packed:
    """Pack a list of names in a process of its own."""
    transaction, source, settings, xattrs = common
    report = PackReport()
    job = _Job(
        transaction, source, settings, xattrs, [], report,
        lambda noted: send("note", tuple(noted)), lambda done: send("progress", done), False,
        Ratio(),
    )  # fmt: skip
    return _pack_list(job, unit[1], unit[0]), report


def _in_processes(job: _Job, units: list[tuple[int, str]]) -> list[ShardRecord]:
    """Pack each list of names into a shard, on all processors."""

    def heard(kind: str, value: Any) -> None:
        if kind == "note":
            job.note(Note(*value))
        else:
            job.progress(value)

    common = job.transaction, job.source, job.settings, job.xattrs
    found = in_processes(_pack_unit, common, units, os.cpu_count() or 1, heard)
    for _, report in found:
        for name in ("files", "directories", "links", "bytes"):
            setattr(job.report, name, getattr(job.report, name) + getattr(report, name))
    return [record for record, _ in found]


# --- a tar file ---


def _pack_stream(job: _Job, shards: int, changes: _Changes | None) -> list[ShardRecord]:
    source = archive(
        job.source, job.note, scratch_of(job.transaction.root), xattrs=job.xattrs,
        exclude=excluder(job.exclude), ignore_zeros=job.ignore_zeros, ratio=job.ratio,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(ShardWriter(job.transaction, f"{number:05}", **job.settings))
            for number in range(shards)
        ]
        packers = [
            Packer(writer.container, job.report, job.note, job.progress, job.ratio, shards)
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
