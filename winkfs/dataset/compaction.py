"""Compact and rebalance: the visible files of some shards are copied into new ones.

The new shards get the highest rank of those they replace. This does not change the visible files:
a copied file is the newest of its name, so no shard in between has that name, and shards above
still win over it. A tombstone is copied only if no shard above its own has the name, and a shard
below that is kept has a file of that name.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from winkformats.disk.paths import open_file
from winkformats.errors import FormatError
from winkformats.kv import scan as kvscan
from winkformats.kv.superblock import read_superblock
from winkfs.archive.items import STREAM_BYTES
from winkfs.container.bulk import Encoded, Row
from winkfs.container.ondisk.compressed import COMPRESSED, NONE, level_for, level_of, word_of
from winkfs.container.ondisk.inode import ATTRS, Attrs
from winkfs.container.ondisk.typed import Schema, recorded
from winkfs.container.scan import SpecialEntry, scan
from winkfs.dataset.jobfolder import remove_scratch
from winkfs.dataset.manifest import Log, root_of
from winkfs.dataset.reading import Handles
from winkfs.dataset.records import ShardRecord, union
from winkfs.dataset.shard import Shard, tombstones
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.snapshot import Snapshot, snapshot_of
from winkfs.dataset.transaction import Transaction, begun
from winkfs.entry import Entry, default_mode
from winkfs.errors import DatasetConflict, StalePlan
from winkfs.names import inode_key, to_bytes

if TYPE_CHECKING:
    from winkfs.dataset.workers import Send

BATCH: Final = 16 << 20  # bytes of content copied between two checks of the size of the new shard
PER_ROW: Final = 200  # approximate bytes of a file in a container beside name and content
Progress = Callable[[int], None]
SHARD_SIZE: Final = 1 << 30  # target size of a shard, bytes
WASTE_SHARE: Final = 0.25  # share of hidden files and dead bytes from which a shard is rewritten
PER_ENTRY: Final = 40  # approximate bytes of an entry beside its value: header, key, checksum
TRIES: Final = 2  # attempts, if other commits change the shards meanwhile
PARALLEL: Final = 512 << 20  # bytes from which more than one process pays
RECENT_BYTES: Final = 256 << 20  # bytes that a writer rewrites between two of its commits
MAX_MERGED: Final = 16  # append-only shards merged at a time: each takes 8 MiB of memory


@dataclass(frozen=True, slots=True)
class Group:
    """Shards that are replaced together; it can be pickled.

    members  their numbers in the snapshot
    size     approximate bytes of a new shard
    name     prefix of the attempts that write the new shards
    """

    members: tuple[int, ...]
    size: int
    name: str


def rewrite(
    transaction: Transaction,
    snapshot: Snapshot,
    group: Group,
    progress: Progress | None = None,
    compress: str | None = None,
) -> list[ShardRecord]:
    """Write the new shards of a group -> their records, for the commit of all groups.

    progress  called with the number of files since the last call
    compress  see `compact`
    raises    StalePlan; CorruptError at a damaged file, which is never left out silently; OSError
    cost      each file is read and written once
    """
    handles = Handles(snapshot.shards)
    try:
        # All columns of the data set: with those of one shard, values of others would become null.
        report = progress or (lambda done: None)
        run = _Rewrite(transaction, handles, group, snapshot.columns, report, compress)
        records = run.run()
    finally:
        handles.close()
    rank = snapshot.shards[group.members[-1]].record.rank
    return [replace(record, rank=rank) for record in records]


class _Rewrite:
    """The rewrite of one group."""

    def __init__(
        self,
        transaction: Transaction,
        handles: Handles,
        group: Group,
        columns: Schema,
        progress: Progress,
        compress: str | None,
    ) -> None:
        self._transaction, self._handles, self._group = transaction, handles, group
        self._columns, self._progress = columns, progress
        self._shards = [handles.shards[number] for number in group.members]
        levels = (handles.container(n).store.frames.level for n in group.members)
        level = max(levels, default=0)
        self._compress = compress or word_of(level) or transaction.compress
        others = [s.record for n, s in enumerate(handles.shards) if n not in group.members]
        # True: only these shards record the columns or the compression, so that one must be
        # written even if it has no files
        self._needed = union(record.schema for record in others) != columns
        if level_of(self._compress or NONE):
            self._needed |= not any(record.level for record in others)
        # Shards with exactly these columns: the attributes of their files are copied unchanged.
        self._same_schema = {
            n for n in group.members
            if columns and list(handles.shards[n].record.schema.items()) == list(columns.items())
        }  # fmt: skip
        self._ao = all(shard.record.ao for shard in self._shards)
        self._single: tuple[int, Entry] | None = None  # next file, which is copied by itself
        self._ended = False

    def run(self) -> list[ShardRecord]:
        records: list[ShardRecord] = []
        files = self._files()
        gone = live_tombstones(self._handles, self._group.members)
        while not self._ended or gone:
            name = f"{self._group.name}-{len(records)}"
            settings = {"ao": self._ao, "columns": self._columns, "compress": self._compress}
            writer = ShardWriter(self._transaction, name, **settings)
            try:
                self._fill(writer, files)
                if self._ended:
                    writer.gone, gone = gone, set()
                if not writer.empty or (self._needed and not records):
                    records.append(writer.finish())
                    continue
            except BaseException:
                writer.abandon()
                raise
            writer.abandon()
        return records

    def _files(self) -> Iterator[tuple[int, Entry]]:
        """Return the visible files of the group, with the numbers of their shards; ao: by mtime."""
        parts = [self._files_of(number) for number in self._group.members]
        if self._ao:
            return heapq.merge(*parts, key=lambda item: item[1].mtime_ns)
        return chain.from_iterable(parts)

    def _files_of(self, number: int) -> Iterator[tuple[int, Entry]]:
        store = self._handles.container(number).store
        hidden = self._handles.shards[number].hidden
        no_lock = contextlib.nullcontext()
        for entry in scan(store, no_lock, None, None, b"", None, without=hidden):
            yield number, entry

    def _fill(self, writer: ShardWriter, files: Iterator[tuple[int, Entry]]) -> None:
        """Copy files until the new shard is full, or no files are left."""
        owner = writer.container.store.owner
        while not self._ended:
            room = min(BATCH, self._group.size - writer.size)
            done = writer.container.put_rows(self._rows(files, room, owner))
            if self._single is not None:
                number, entry = self._single
                key = to_bytes(entry.name)
                writer.copy(self._handles.container(number), key, key)
                done += 1
            self._progress(done)
            if writer.size >= self._group.size:
                return

    def _rows(
        self,
        files: Iterator[tuple[int, Entry]],
        room: int,
        owner: tuple[int, int],
    ) -> Iterator[Row]:
        """Yield rows of `room` bytes, or up to a file that is copied by itself: a large one, one
        with holes, or one with attributes whose ctime differs from its mtime."""
        self._single = None
        record = recorded(self._columns)
        for number, entry in files:
            name, mode = entry.name, entry.mode  # str: all names are encoded together later
            usual, kept = mode == default_mode(entry.ftype), entry.ctime_ns == entry.mtime_ns
            data = None
            if entry.size < STREAM_BYTES and (kept or (usual and type(entry) is Entry)):
                data = b"".join(piece for _, piece in entry.pieces())
            if data is None or len(data) < entry.size:
                self._single = number, entry
                return
            if not kept:
                word: Any = Encoded(Attrs(mode, entry.uid, entry.gid, {}, entry.ctime_ns).encode())
                yield Row(name, data, entry.mtime_ns, entry.ftype, xattrs=word)
            elif (
                type(entry) is SpecialEntry and usual and number in self._same_schema
                and entry.word.startswith(record, ATTRS.size)
            ):  # fmt: skip
                word = Encoded(entry.word)
                yield Row(name, data, entry.mtime_ns, entry.ftype, xattrs=word)
            elif usual and owner == (entry.uid, entry.gid) and not entry.xattrs:
                yield Row(name, data, entry.mtime_ns, entry.ftype)
            else:
                attrs = mode, entry.uid, entry.gid, entry.xattrs
                yield Row(name, data, entry.mtime_ns, entry.ftype, *attrs)
            room -= entry.size + len(name) + PER_ROW
            if room <= 0:
                return
        self._ended = True


# --- tombstones ---


def live_tombstones(handles: Handles, members: Sequence[int]) -> set[bytes]:
    """Return the names that the new shards of a group must still delete from shards that are kept.

    members  numbers of the group, ascending
    """
    last: dict[bytes, int] = {}  # name -> number of the highest shard that deletes it
    for number in range(members[0], len(handles.shards)):
        for name in _gone(handles, number):
            last[name] = number
    names = [name for name, number in last.items() if number in members]
    for number in range(len(handles.shards) - 1, members[0], -1):
        has = _has(handles, number, names)
        names = [n for n, there in zip(names, has, strict=True) if not there or last[n] > number]
    needed: set[bytes] = set()
    for number in range(members[-1]):
        if number not in members:
            has = _has(handles, number, names)
            needed |= {n for n, there in zip(names, has, strict=True) if there and last[n] > number}
    return needed


def _gone(handles: Handles, number: int) -> list[bytes]:
    record = handles.shards[number].record
    if not record.tombstones:
        return []
    return tombstones(handles.container(number).store, record.tombs_at)[0]


def _has(handles: Handles, number: int, names: list[bytes]) -> Iterable[bool]:
    """Return for each name whether a shard has such a file, hidden or not."""
    if not names or not handles.shards[number].record.files:
        return [False] * len(names)
    index = handles.container(number).store.index
    keys = list(map(inode_key, names))
    found = index.candidates(keys).tolist()
    return [pos > 0 and index.lookup(key) > 0 for pos, key in zip(found, keys, strict=True)]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Result of a rewrite, or of its dry run.

    generation      the new one; the newest one if nothing was to be done
    removed, added  numbers of shards
    before, after   bytes of these shards. In a dry run `added` and `after` are estimates
    """

    generation: int
    removed: int = 0
    added: int = 0
    before: int = 0
    after: int = 0


def compact(
    path: str | os.PathLike[str],
    *,
    shard_size: int = SHARD_SIZE,
    everything: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    compress: str | None = None,
    jobs: int | None = None,
) -> Rewritten:
    """Join small shards, and rewrite those with many hidden files or dead bytes.

    The visible files stay the same. Older generations keep their shards until a vacuum.
    shard_size  target size of a shard, bytes
    everything  rewrite all shards that have hidden files, tombstones or dead bytes, and all that
                are small
    dry_run     only report what would be done
    progress    called with the number of files since the last call
    compress    "zstd", "zstd:LEVEL" or "none": shards that are stored otherwise are rewritten, too,
                and later shards are stored so. None: if a rewritten shard is compressed, all of
                its group are. `dry_run` does not estimate the effect of compression
    jobs        processes that write, each a shard at a time; None: one for each core if there is
                enough to do. The shards are those that one process makes
    raises      DatasetConflict if other commits changed the shards twice; CorruptError; StalePlan;
                ValueError; Refusal if the library is missing; OSError
    cost        each file that is copied is read and written once
    """
    _check_size(shard_size)
    if jobs is not None and jobs < 1:
        raise ValueError(f"the number of jobs is at least 1, not {jobs}")
    least = 0.0 if everything else WASTE_SHARE
    level = checked_level(compress, path)
    plan = partial(compaction, shard_size=shard_size, least=least, level=level)
    return _run(path, "compact", progress, plan, dry_run=dry_run, compress=compress, jobs=jobs)


def compact_recent(root: str, most: int, job: str, added: int) -> Rewritten | None:
    """Join small shards after a commit of a stream -> what was done; None: nothing.

    most    as many small shards as stay: it works each time when they have become so many more
    job     name of the job
    added   shards of the commit before
    raises  DatasetConflict; CorruptError; OSError and others: then nothing is changed
    cost    at most RECENT_BYTES, and what is left after the next commit. A shard is not written
            again before others have become as large
    """
    log = Log(root)
    now = log.latest()
    small = [n for n, record in enumerate(now.shards) if 2 * record.size < SHARD_SIZE]
    times, before = ((count - 1) // most for count in (len(small), len(small) - added))
    if times < 1 or (times == before and not _left(log, now.generation - 1)):
        return None
    sizes = [record.size for record in now.shards]
    small.sort(key=lambda number: sizes[number])
    chosen, total = list[int](), 0
    for at, number in enumerate(small):
        few = 2 * (len(small) - at) <= most
        if total + sizes[number] > RECENT_BYTES or (few and sizes[number] > total):
            break
        chosen.append(number)
        total += sizes[number]
    seen = snapshot_of(log, now)
    groups = _groups(seen, sizes, sorted(chosen), SHARD_SIZE, lambda number: False)
    if not groups:
        return None
    left = 2 * (len(small) - len(chosen)) > most
    return _attempt(root, "compact", seen, groups, None, None, 1, job, {"left": left})


def _left(log: Log, generation: int) -> bool:
    """Return whether a generation is that of a `compact_recent` that left some."""
    try:
        return generation > 0 and bool(log.read(generation).metrics.get("left"))
    except (FormatError, StalePlan):
        return False


def checked_level(compress: str | None, path: str | os.PathLike[str]) -> int | None:
    """Return the level of `compress`; None if that is None.

    raises  ValueError; Refusal if the library is missing
    """
    return None if compress is None else level_for(compress, os.fspath(path), classic=False)


def rebalance(
    path: str | os.PathLike[str],
    *,
    shards: int | None = None,
    shard_size: int = SHARD_SIZE,
    progress: Progress | None = None,
) -> Rewritten:
    """Rewrite all files into shards of equal size.

    shards      approximate number of shards; None: by `shard_size`
    shard_size  target size of a shard, bytes
    progress    called with the number of files since the last call
    raises      as `compact`
    """
    _check_size(shard_size)
    if shards is not None and shards < 1:
        raise ValueError(f"the number of shards is at least 1, not {shards}")

    def plan(seen: Snapshot) -> list[Group]:
        members = tuple(range(len(seen.shards)))
        total = sum(live_bytes(shard, dead_bytes(shard)) for shard in seen.shards)
        count = shards or -(-total // shard_size)
        return [Group(members, max(total // max(count, 1), 1), "00000")] if members else []

    return _run(path, "rebalance", progress, plan)


def _check_size(shard_size: int) -> None:
    if shard_size < 1:
        raise ValueError(f"the size of a shard is at least 1 byte, not {shard_size}")


def _run(
    path: str | os.PathLike[str],
    operation: str,
    progress: Progress | None,
    plan: Callable[[Snapshot], list[Group]],
    *,
    dry_run: bool = False,
    compress: str | None = None,
    jobs: int | None = 1,
) -> Rewritten:
    log = Log(root_of(path))
    root = log.root
    for left in reversed(range(TRIES)):
        seen = snapshot_of(log, log.latest())
        groups = plan(seen)
        if not groups:
            return Rewritten(seen.generation)
        if dry_run:
            return _estimate(seen, groups)
        try:
            return _attempt(root, operation, seen, groups, progress, compress, jobs)
        except DatasetConflict:
            if not left:
                raise
    raise AssertionError("unreachable")


def _attempt(
    root: str,
    operation: str,
    seen: Snapshot,
    groups: Sequence[Group],
    progress: Progress | None,
    compress: str | None,
    jobs: int | None = 1,
    job: str | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> Rewritten:
    size = sum(seen.shards[number].record.size for group in groups for number in group.members)
    if jobs is None:
        jobs = os.cpu_count() or 1 if size >= PARALLEL else 1
    with begun(root, operation, job) as transaction:
        if jobs == 1 or len(groups) == 1:
            made = [rewrite(transaction, seen, group, progress, compress) for group in groups]
        else:
            made = _in_processes(transaction, seen, groups, progress, compress, jobs)
        records = list(chain.from_iterable(made))
        old = [seen.shards[number].record for group in groups for number in group.members]
        removed = [record.path for record in old]
        generation = transaction.commit(records, metrics=metrics, removed=removed)
    before, after = sum(r.size for r in old), sum(r.size for r in records)
    return Rewritten(generation, len(old), len(records), before, after)


def _in_processes(
    transaction: Transaction,
    seen: Snapshot,
    groups: Sequence[Group],
    progress: Progress | None,
    compress: str | None,
    jobs: int,
) -> list[list[ShardRecord]]:
    """Write the new shards of each group, several groups at once."""
    from winkfs.dataset.workers import in_processes

    lock = threading.Lock()

    def heard(_: str, done: Any) -> None:
        with lock:
            if progress:
                progress(done)

    return in_processes(_in_process, (transaction, seen, compress), groups, jobs, heard, own=True)


def _in_process(common: tuple[Any, ...], group: Group, send: Send) -> list[ShardRecord]:
    transaction, seen, compress = common
    try:
        return rewrite(transaction, seen, group, lambda done: send("progress", done), compress)
    except BaseException:
        if transaction.far:
            remove_scratch(transaction.job)
        raise


def _estimate(seen: Snapshot, groups: Sequence[Group]) -> Rewritten:
    """Estimate the result of a rewrite of these groups."""
    added = after = 0
    for group in groups:
        live = sum(live_bytes(shard, dead_bytes(shard)) for shard in
                   (seen.shards[number] for number in group.members))  # fmt: skip
        added, after = added + -(-live // group.size), after + live
    old = [seen.shards[number].record for group in groups for number in group.members]
    return Rewritten(seen.generation, len(old), added, sum(record.size for record in old), after)


def live_bytes(shard: Shard, dead: int = 0) -> int:
    """Estimate the bytes of a shard without hidden files and without `dead` bytes."""
    record = shard.record
    return (record.size - dead) * shard.files // record.files if record.files else 0


def dead_bytes(shard: Shard, least: float = math.inf) -> int:
    """Return the bytes of files that were replaced or deleted inside a shard, without tombstones
    for other shards.

    least  share of all its bytes: an estimate above it is replaced by an exact count
    cost   reads the superblock; an exact count reads the data file once
    """
    record = shard.record
    with contextlib.suppress(FormatError, OSError):  # reported when the shard is copied
        with open_file(f"{shard.base}.data") as storage:
            block = read_superblock(storage)
        live = block.get("AENTRIES", 0)
        if block.get("ENTRIES", 0) - live - record.tombstones <= 0:
            return 0
        end = record.tombs_at if record.tombstones else record.size
        used = end - block["SBSIZE"]
        known = block.get("DTOTSZ", 0) + block.get("ITOTSZ", 0) + PER_ENTRY * live
        guess = max(used - known, 0)
        if block.get("INCOMPAT", 0) & COMPRESSED:  # the stored size of contents is not known
            return _counted_dead_bytes(shard, end)
        return guess if guess < least * record.size else _counted_dead_bytes(shard, end)
    return 0


def _counted_dead_bytes(shard: Shard, end: int) -> int:
    """Count the bytes of the dead entries before `end`. Raises FormatError; OSError."""
    with shard.open(load=False) as store:
        return kvscan.dead_bytes(store.kv.storage, store.kv.layout, store.kv.start, end)


def compaction(
    seen: Snapshot, shard_size: int, least: float = WASTE_SHARE, level: int | None = None
) -> list[Group]:
    """Return the shards that a compaction rewrites, in groups that can be written in parallel.

    least   share of hidden files and dead bytes from which a shard is chosen, 0: any
    level   also choose shards of a different level; 0: all compressed shards; None: no others
    """
    dead = [dead_bytes(shard, least) for shard in seen.shards]
    wasteful = [
        _wasteful(*pair, least) or _has_other_level(pair[0], level)
        for pair in zip(seen.shards, dead, strict=True)
    ]
    size = [live_bytes(*pair) for pair in zip(seen.shards, dead, strict=True)]
    chosen = [n for n in range(len(size)) if wasteful[n] or 2 * size[n] < shard_size]
    return _groups(seen, size, chosen, shard_size, wasteful.__getitem__)


def _groups(
    seen: Snapshot,
    sizes: Sequence[int],
    chosen: Sequence[int],
    shard_size: int,
    alone: Callable[[int], bool],
) -> list[Group]:
    """Return chosen shards in groups of about the size of a new shard.

    alone  returns whether a shard is rewritten also if it is the only one of its group
    """
    groups: list[list[int]] = []
    for ao in (False, True):  # in groups of their own, so that append-only shards stay so
        some = [number for number in chosen if seen.shards[number].record.ao == ao]
        groups += _packed(sizes, some, shard_size, MAX_MERGED if ao else len(some))
    useful = [group for group in groups if len(group) > 1 or alone(group[0])]
    return [Group(tuple(group), shard_size, f"{i:05}") for i, group in enumerate(useful)]


def _wasteful(shard: Shard, dead: int, least: float) -> bool:
    """Return whether a rewrite of the shard alone saves space. Tombstones count only if `least` is
    0, since they may still be needed."""
    record = shard.record
    hidden = len(shard.hidden) + (record.tombstones if not least else 0)
    share = hidden / max(record.files, 1) + dead / record.size
    return share > 0 and share >= least


def _has_other_level(shard: Shard, level: int | None) -> bool:
    """Return whether the content of a shard is not stored with this level of compression."""
    if level:
        return shard.record.level != level
    if level is None:
        return False
    with contextlib.suppress(FormatError, OSError), open_file(f"{shard.base}.data") as storage:
        return bool(read_superblock(storage).get("INCOMPAT", 0) & COMPRESSED)
    return False


def _packed(
    sizes: Sequence[int], numbers: Iterable[int], shard_size: int, most: int
) -> list[list[int]]:
    """Return groups of shards in order of rank, each with about the size of one new shard."""
    groups: list[list[int]] = []
    room = 0
    for number in numbers:
        size = sizes[number]
        if not groups or size > room or len(groups[-1]) >= most:
            groups.append([])
            room = shard_size
        groups[-1].append(number)
        room -= size
    return groups
