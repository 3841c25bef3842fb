"""Pack a directory or a tar file into the shards of a data set, published by one manifest.

Of a directory each shard takes a range of the names (or of mtimes, append-only), of even size, and
is written by a process of its own. A tar file is one stream: its files go to shards by the hashes
of their names, so that one that comes twice meets itself.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import winkformats
import winkfs
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
from winkfs.archive.tar import Tarball
from winkfs.archive.tree import OwnFolder, Tree, listed_names
from winkfs.archive.update import Finder, Known, Update, differences, now_ns, same_content
from winkfs.dataset.dataset import Dataset
from winkfs.dataset.dataset import open as open_dataset
from winkfs.dataset.manifest import Log, discard_empty, is_dataset
from winkfs.dataset.manifest import root_of as path_of
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.transaction import ShardWriter, Transaction, begun
from winkfs.errors import FileExists, NoSuchFile
from winkfs.names import excluder, to_bytes

PARALLEL: Final = 32 << 20  # bytes from which starting processes is worth it
MTIME: Final = struct.Struct(">Q")  # mtime_ns + BIAS, so that bytes sort as times do
SIZE: Final = struct.Struct(">q")
MARKS: Final = 1000  # generations that are looked through for the last that packed the tree
MARK: Final = "packed"  # in the metrics of such a generation
PER_FILE: Final = 256  # bytes of a file beside its content, about
Progress = Callable[[int], None]


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

    shards  how many containers, at most
    update  store what the data set that is there does not have, or has otherwise, in shards of
            their own; where there is nothing no generation is made
    compress  see `winkfs.create`; None: as the last shard that is compressed
    raises  FileExistsError, and what `pack` raises; nothing is published then, and a data set
            that was not there before is not there
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
        said = {MARK: {"root": tree, "since": began, "seen": seen}} if whole else {}
        transaction.commit(records, metrics=said)
    return report


def _discarding(root: str) -> Callable[..., None]:
    """Return an exit of a `with` block that, where it raised, removes the data set it made."""
    folder = not os.path.lexists(root)

    def leave(kind: object, *_: object) -> None:
        if kind is not None:
            discard_empty(root, folder=folder)

    return leave


class _Changes:
    """What of a source a data set does not have, or has otherwise.

    packers  what new shards are written with
    """

    def __init__(self, dataset: Dataset, root: int, progress: Progress, *, checksum: bool) -> None:
        self.dataset = dataset
        self.packers: Sequence[Packer] = ()
        self._finders: dict[str, Finder] = {}
        self._since, self._seen, self._mark = _mark_of(dataset, root)
        self.update = Update(self._look, self._since, checksum, False, self._stored, progress)

    def _stored(self, name: bytes) -> bool:
        """Whether a name was stored since this began."""
        if not self.packers:
            return False
        packer = packer_of(self.packers, name)
        return name in packer.names or name in packer.container

    def _look(self, names: Sequence[bytes]) -> Known:
        found: Known = {}
        for shard, container, some in self.dataset.homes(names):
            generation = shard.record.rank[0]
            recent = generation > self._seen and generation != self._mark
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
        """Whether a file is as it was."""
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


def _mark_of(dataset: Dataset, root: int) -> tuple[int, int, int]:
    """When the tree was last packed whole, the generation that was compared with it then, and the
    one that this made. 0, 0, 0: not known."""
    for manifest in islice(dataset.history(), MARKS):
        mark = manifest.metrics.get(MARK)
        if isinstance(mark, dict) and mark.get("root") == root:
            return int(mark["since"]), int(mark["seen"]), manifest.generation
    return 0, 0, 0


@dataclass(frozen=True, slots=True)
class _Job:
    """What all shards share."""

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


# --- a directory ---


def _pack_tree(
    job: _Job, shards: int, names: Iterable[bytes] | None, changes: _Changes | None
) -> list[ShardRecord]:
    with tempfile.TemporaryDirectory(prefix="winkfs-pack-", dir=job.transaction.pending) as scratch:
        tree = Tree(
            job.source, job.note, scratch, own=OwnFolder(job.transaction.root),
            exclude=excluder(job.exclude), names=names,
        )  # fmt: skip
        files = tree.sizes() if changes is None else tree.sizes(changes.update, changes.same)
        lists = split(files, shards, scratch, ao=job.settings["ao"])
        if changes is not None and not lists[0][1]:
            return []
        workers = min(len(lists), os.cpu_count() or 1)
        if workers == 1 or sum(size for _, size in lists) < PARALLEL:
            return [_pack_list(job, path, number) for number, (path, _) in enumerate(lists)]
        shares = [[(n, path) for n, (path, _) in enumerate(lists)][k::workers]
                  for k in range(workers)]  # fmt: skip
        return _in_processes(job, shares)


def split(files: Iterable[Seen], shards: int, scratch: str, *, ao: bool) -> list[tuple[str, int]]:
    """Write lists of names, each for one shard, of even size -> their paths and bytes of files."""
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


# --- processes: Python packs on one processor ---

Lists = list[tuple[int, str]]
"""number of a shard, path of its list of names"""


def _in_processes(job: _Job, shares: list[Lists]) -> list[ShardRecord]:
    """Pack each share in a process of its own."""
    running: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(len(shares)) as pool:
        try:
            for _ in shares:  # none gets the Ctrl-C of a terminal: it would show its imports
                running.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-m", "winkfs.dataset.packing"],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0,
                        env=os.environ | {"PYTHONPATH": _packages()},
                    )
                )  # fmt: skip
            work = zip(shares, running, strict=True)
            futures = [pool.submit(_in_process, job, *each) for each in work]
            found = [item for future in as_completed(futures) for item in future.result()]
        except BaseException:
            for process in running:
                process.terminate()
            raise
    return [record for _, record in sorted(found, key=itemgetter(0))]


def _in_process(
    job: _Job, share: Lists, process: subprocess.Popen[bytes]
) -> list[tuple[int, ShardRecord]]:
    assert process.stdin is not None
    assert process.stdout is not None
    with process, contextlib.suppress(EOFError, pickle.UnpicklingError, BrokenPipeError):
        orders = job.transaction, job.source, job.settings, job.xattrs, share
        pickle.dump(orders, process.stdin)
        process.stdin.close()
        while True:
            kind, value = pickle.load(process.stdout)
            if kind == "note":
                job.note(Note(*value))
            elif kind == "progress":
                job.progress(value)
            elif kind == "error":
                raise value
            else:
                records, report = value
                for name in ("files", "directories", "links", "bytes"):
                    setattr(job.report, name, getattr(job.report, name) + getattr(report, name))
                return records  # type: ignore[no-any-return]
    raise OSError(f"a process that packs was killed (status {process.returncode})")


def _packages() -> str:
    """PYTHONPATH of a child: ours without the current directory, whose files are data that may
    have the name of a module; with the roots of our packages, one of which may be just there."""
    here = os.getcwd()
    kept = [path for path in sys.path if os.path.isabs(path) and os.path.realpath(path) != here]
    ours = [str(Path(found.__file__ or "").resolve().parents[1]) for found in (winkfs, winkformats)]
    return os.pathsep.join(dict.fromkeys([*kept, *ours]))


def _worker() -> None:
    """What the process does: reads its orders, writes messages."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed does not come among them
    try:
        transaction, source, settings, xattrs, share = pickle.load(sys.stdin.buffer)
    except EOFError:  # whoever started this was stopped meanwhile
        return

    def send(kind: str, value: object) -> None:
        pickle.dump((kind, value), out)
        out.flush()

    report = PackReport()
    job = _Job(
        transaction, source, settings, xattrs, [], report,
        lambda noted: send("note", tuple(noted)), lambda done: send("progress", done), False,
        Ratio(),
    )  # fmt: skip
    try:
        records = [(number, _pack_list(job, names, number)) for number, names in share]
        send("done", (records, report))
    except Exception as error:
        send("error", error)


# --- a tar file ---


def _pack_stream(job: _Job, shards: int, changes: _Changes | None) -> list[ShardRecord]:
    root = job.transaction.root
    source = Tarball(
        job.source, job.note, os.path.dirname(root) or ".", xattrs=job.xattrs,
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


if __name__ == "__main__":
    _worker()
