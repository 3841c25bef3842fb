"""Pack a directory or a tar file into the shards of a data set, published by one manifest.

Of a directory each shard takes a range of the names (or of mtimes, append-only), of even size, and
is written by a process of its own. A tar file is one stream: its files go to shards by the hashes
of their names, so that one that comes twice meets itself.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Final

import xxhash

import winkformats
import winkfs
from winkfs.bulkput import Row
from winkfs.dataset.manifest import Log, is_dataset, root_of
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.transaction import Transaction, begin
from winkfs.entry import to_bytes
from winkfs.errors import FileExists
from winkfs.items import Copy, Item, Large, Note, Notes
from winkfs.names import excluder
from winkfs.pack import BATCH, Packer, PackReport, check_names, scratch_of
from winkfs.tarball import STDIN, Tarball
from winkfs.tree import OwnFolder, Tree, listed_names

PARALLEL: Final = 32 << 20  # bytes from which it is worth to start processes, 0.3 s each
PER_FILE: Final = 256  # bytes of a file beside its content, about
Progress = Callable[[int], None]


def pack_shards(
    source: str | os.PathLike[str],
    root: str | os.PathLike[str],
    shards: int = 1,
    *,
    ao: bool = False,
    update: bool = False,
    xattrs: bool = False,
    exclude: Sequence[str] = (),
    names: Iterable[bytes] | None = None,
    note: Notes | None = None,
    progress: Progress | None = None,
) -> PackReport:
    """Pack a directory, or a tar file (`-`: standard input), into a data set: see `pack.pack`.

    shards  how many containers, at most
    update  add to the data set that is there; its files of equal names are replaced
    raises  FileExistsError, and what `pack` raises; nothing is published then
    """
    path, where = root_of(root), os.fspath(source)
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

    transaction = begin(path)
    job = _Job(transaction, where, ao, xattrs, list(exclude), report, count, more)
    try:
        if where != STDIN and Path(where).is_dir():
            records = _pack_tree(job, shards, names)
        else:
            records = _pack_stream(job, shards)
        transaction.commit(records)
    except BaseException:
        transaction.abort()
        raise
    return report


@dataclass(frozen=True, slots=True)
class _Job:
    """What all shards share."""

    transaction: Transaction
    source: str
    ao: bool
    xattrs: bool
    exclude: list[str]
    report: PackReport
    note: Notes
    progress: Progress


# --- a directory ---


def _pack_tree(job: _Job, shards: int, names: Iterable[bytes] | None) -> list[ShardRecord]:
    with tempfile.TemporaryDirectory(prefix="winkfs-pack-", dir=job.transaction.pending) as scratch:
        tree = Tree(
            job.source, job.note, scratch, own=OwnFolder(job.transaction.root),
            exclude=excluder(job.exclude), names=names,
        )  # fmt: skip
        lists = _split(tree, shards, scratch, ao=job.ao)
        workers = min(len(lists), os.cpu_count() or 1)
        if workers == 1 or sum(size for _, size in lists) < PARALLEL:
            return [_pack_list(job, path, number) for number, (path, _) in enumerate(lists)]
        shares = [[(n, path) for n, (path, _) in enumerate(lists)][k::workers]
                  for k in range(workers)]  # fmt: skip
        return _in_processes(job, shares)


def _split(tree: Tree, shards: int, scratch: str, *, ao: bool) -> list[tuple[str, int]]:
    """Write lists of names, each for one shard, of even size -> their paths and bytes of files."""
    found = list(tree.sizes())
    if ao:
        found.sort(key=lambda item: (item[2], item[0]))
    else:
        found.sort()
    left = sum(size + PER_FILE for _, size, _ in found)
    lists: list[tuple[str, int]] = []
    at = 0
    for number in range(shards):
        share, start = left / (shards - number), at
        taken = 0
        while at < len(found):
            size = found[at][1] + PER_FILE
            if at > start and taken + size / 2 > share and number < shards - 1:
                break
            taken, at = taken + size, at + 1
        left -= taken
        if at > start or not lists:
            lists.append((f"{scratch}/{number:05}.names", taken))
            with Path(lists[-1][0]).open("wb") as file:
                file.writelines(name + b"\0" for name, _, _ in found[start:at])
    return lists


def _pack_list(job: _Job, names: str, number: int) -> ShardRecord:
    """Pack the files of a list into one shard."""
    with Path(names).open("rb") as file, tempfile.TemporaryDirectory(
        prefix="winkfs-pack-", dir=os.path.dirname(names)
    ) as scratch:  # fmt: skip
        names_in = listed_names(file)
        tree = Tree(job.source, job.note, scratch, xattrs=job.xattrs, names=names_in)
        writer = ShardWriter(job.transaction, f"{number:05}", ao=job.ao)
        try:
            Packer(writer.container, job.report, job.note, job.progress).run(tree)
            return writer.finish()
        except BaseException:
            writer.abandon()
            raise


# --- processes: Python packs on one processor ---

Lists = list[tuple[int, str]]
"""number of a shard, path of its list of names"""


def _in_processes(job: _Job, shares: list[Lists]) -> list[ShardRecord]:
    """Pack each share in a process of its own."""
    running: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(len(shares)) as pool:
        try:
            futures = [pool.submit(_in_process, job, share, running) for share in shares]
            found = [item for future in as_completed(futures) for item in future.result()]
        except BaseException:
            for process in running:
                process.terminate()
            raise
    return [record for _, record in sorted(found, key=itemgetter(0))]


def _in_process(
    job: _Job, share: Lists, running: list[subprocess.Popen[bytes]]
) -> list[tuple[int, ShardRecord]]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "winkfs.dataset.packing"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": _packages()},
    )  # fmt: skip
    running.append(process)
    assert process.stdin is not None
    assert process.stdout is not None
    with process, contextlib.suppress(EOFError, pickle.UnpicklingError, BrokenPipeError):
        pickle.dump((job.transaction, job.source, job.ao, job.xattrs, share), process.stdin)
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
                _add(job.report, report)
                return records  # type: ignore[no-any-return]
    raise OSError(f"a process that packs was killed (status {process.returncode})")


def _packages() -> str:
    """PYTHONPATH of a child: ours without the current directory, whose files are data that may
    have the name of a module; with the roots of our packages, one of which may be just there."""
    here = os.getcwd()
    kept = [path for path in sys.path if os.path.isabs(path) and os.path.realpath(path) != here]
    ours = [str(Path(found.__file__ or "").resolve().parents[1]) for found in (winkfs, winkformats)]
    return os.pathsep.join(dict.fromkeys([*kept, *ours]))


def _add(total: PackReport, part: PackReport) -> None:
    total.files += part.files
    total.directories += part.directories
    total.links += part.links
    total.bytes += part.bytes


def _worker() -> None:
    """What the process does: reads its orders, writes messages."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed does not come among them
    transaction, source, ao, xattrs, share = pickle.load(sys.stdin.buffer)

    def send(kind: str, value: object) -> None:
        pickle.dump((kind, value), out)
        out.flush()

    report = PackReport()
    job = _Job(
        transaction, source, ao, xattrs, [], report,
        lambda noted: send("note", tuple(noted)), lambda done: send("progress", done),
    )  # fmt: skip
    try:
        records = [(number, _pack_list(job, names, number)) for number, names in share]
        send("done", (records, report))
    except Exception as error:
        send("error", error)
    except KeyboardInterrupt:
        sys.exit(1)


# --- a tar file ---


def _pack_stream(job: _Job, shards: int) -> list[ShardRecord]:
    root = job.transaction.root
    source = Tarball(
        job.source, job.note, os.path.dirname(root) or ".", xattrs=job.xattrs,
        exclude=excluder(job.exclude),
    )  # fmt: skip
    writers = [ShardWriter(job.transaction, f"{n:05}", ao=job.ao) for n in range(shards)]
    try:
        with contextlib.closing(source.items(by_mtime=job.ao)) as items:
            _Stream(job, writers).put(items)
        return [writer.finish() for writer in writers if not writer.empty]
    except BaseException:
        for writer in writers:
            writer.abandon()
        raise


class _Stream:
    """Gives the items of a stream to shards, many rows at a time."""

    def __init__(self, job: _Job, writers: list[ShardWriter]) -> None:
        self._containers = [writer.container for writer in writers]
        self._packers = [
            Packer(container, job.report, job.note, job.progress) for container in self._containers
        ]
        self._waiting: list[list[Row]] = [[] for _ in writers]
        self._held = 0

    def put(self, items: Iterable[Item]) -> None:
        for item in items:
            number = self._number(item.name)
            if isinstance(item, Row):
                self._waiting[number].append(item)
                self._held += len(item.data) + PER_FILE
                if self._held >= BATCH:
                    self._flush()
                continue
            target = item.target if isinstance(item, Copy) else item.name
            try:
                self._flush()
                self._packers[number].stream(item, self._containers[self._number(target)])
            finally:
                if isinstance(item, Large):
                    item.file.close()
        self._flush()

    def _number(self, name: str | bytes) -> int:
        return xxhash.xxh3_64_intdigest(to_bytes(name)) % len(self._packers)

    def _flush(self) -> None:
        for packer, rows in zip(self._packers, self._waiting, strict=True):
            if rows:
                packer.put(rows)
        self._waiting, self._held = [[] for _ in self._packers], 0


if __name__ == "__main__":
    _worker()
