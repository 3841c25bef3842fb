"""A shard: a container, and which of its files newer shards have replaced or deleted.

`survey` builds its record for the manifest. The module imports little, like all that is needed to
plan over a data set, because Spark's planner imports it for each query.
"""

from __future__ import annotations

import contextlib
import errno
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.paths import locate
from winkformats.disk.schemes import is_far
from winkformats.errors import FormatError, NewerFormat, raise_it
from winkfs.container.ondisk.data import LAST_BYTES
from winkfs.dataset.records import MAX_RECORDED_NAME, ShardRecord
from winkfs.errors import DerivedDamage, LostShard, NoSuchFile, Refusal, StalePlan
from winkfs.names import literal_prefix, to_bytes, to_strs
from winkfs.units import MICRO

if TYPE_CHECKING:
    from winkformats.disk.storage import Storage
    from winkfs.container.ondisk.run import Run
    from winkfs.container.selection import Selection
    from winkfs.container.store import Store
    from winkfs.container.where import Condition

NOTHING: Final[Int64] = np.empty(0, np.int64)
NOTHING.flags.writeable = False
COPY_CHUNK: Final = 8 << 20  # bytes copied at a time
GONE: Final = "a shard is gone: it was vacuumed, or lost"
RESTORE: Final = "restore it from a backup, or take what is left by winkfs salvage"
SEE: Final = ": it was damaged, see winkfs verify"
AHEAD: Final = 32  # shards that are far that are opened, or read, at a time


def announce(bases: Iterable[str]) -> None:
    """Have what the next opening of containers reads requested at once, of those that are far."""
    for base in bases:
        if is_far(base):
            directory, name = locate(base)
            directory.expect([(name + ".data", 0), (name + ".cat", LAST_BYTES)])


@dataclass(frozen=True, slots=True)
class Shard:
    """A container as of a snapshot.

    base    its path without .data
    hidden  int64[n], ascending: positions of the inodes of hidden files
    grows   True: a container that is no shard, and may have grown beyond record.size
    """

    base: str
    record: ShardRecord
    hidden: Int64 = field(default_factory=lambda: NOTHING, compare=False)
    grows: bool = False

    @property
    def files(self) -> int:
        """Number of visible files; -1: not known."""
        return self.record.files - len(self.hidden) if self.record.files >= 0 else -1

    def open(self, *, load: bool = True, mapped: bool = True) -> Store:
        """Open it for reading.

        load    with its index
        mapped  see `DataFile`
        raises  StalePlan if it is gone or was replaced; FormatError; OSError
        """
        from winkfs.container.store import Store

        try:
            store = Store(self.base, writable=False, load=load, mapped=mapped)
        except NoSuchFile:
            raise StalePlan(GONE, self.base) from None
        try:
            self.check(store)
        except BaseException:
            store.abandon()
            raise
        return store

    @contextlib.contextmanager
    def pass_over(self) -> Iterator[None]:
        """Make errors of a `with` block that opens it damage: LostShard, which costs a pass over
        all files those of this shard.

        raises  LostShard; StalePlan if the newest generation does not have it: it was vacuumed;
                other errors as they are, and all errors of a container that is no shard
        """
        try:
            yield
        except (FormatError, NoSuchFile, StalePlan) as error:
            if self.grows or isinstance(error, LostShard | NewerFormat):
                raise
            gone = isinstance(error, NoSuchFile) or GONE in str(error)
            if not isinstance(error, FormatError) and not self._is_current():
                raise StalePlan(GONE, self.base) if gone else error from None
            line = f"a shard with {self.files:,} files" if self.files >= 0 else "a shard"
            if gone:
                line += " is gone: restore it from a backup"
            else:
                what = str(error).removeprefix(self.base).removeprefix(".data").removeprefix(": ")
                line += f" is damaged: {what.removesuffix(SEE)}: {RESTORE}"
            raise LostShard(line, self.base) from error

    def must_open(self) -> None:
        """Raise as `pass_over` if it cannot be opened. Cost: opens it, without its index."""
        with self.pass_over():
            self.open(load=False).abandon()

    def _is_current(self) -> bool:
        """Return whether the newest generation has it. Cost: reads a manifest."""
        from winkfs.dataset.manifest import Log, is_dataset

        root, path = self.base.removesuffix(f"/{self.record.path}"), self.record.path
        return is_dataset(root) and any(one.path == path for one in Log(root).shown().shards)

    def check(self, store: Store) -> None:
        """Raise StalePlan if an open container is not the one of the record."""
        contid, size, record = store.settings.contid, store.kv.end, self.record
        # Of a file that was cut, the end is its size, or where the last sound entry ends.
        there = store.kv.storage.size() if store.kv.truncated else size
        right = there >= record.size if self.grows else size == record.size
        if contid == record.contid and right:
            return
        if contid == record.contid and not self.grows:
            what = f"its manifest has another size of it ({record.size} bytes; found {there})"
            raise StalePlan(f"{what}{SEE}", self.base)
        found = f"CONTID {record.contid:x}, {record.size} bytes; found {contid:x}, {size}"
        what = "is another container" if contid != record.contid else "has another size"
        raise StalePlan(f"{what} than planned ({found}): plan anew", self.base)


def may_have(shards: Sequence[Shard], selection: Selection) -> list[bool]:
    """Return for each shard whether it may have selected files, by names and mtimes of its record.

    selection  its condition, if it has one, is bound
    """
    if selection.paths is not None:
        selection = replace(selection, paths=tuple(sorted(selection.paths)))
    starts = [to_bytes(literal_prefix(pattern)) for pattern in selection.globs] or [b""]
    found = [_may_have(shard.record, selection, starts) for shard in shards]
    if selection.where is None or not any(found):
        return found
    return [a and b for a, b in zip(found, _may_meet(shards, selection.where), strict=True)]


def _may_have(record: ShardRecord, selection: Selection, starts: list[bytes]) -> bool:
    """Return whether a shard may have selected files.

    selection  its paths are sorted
    starts     a selected name begins with one of these
    """
    if not may_be_from(record, selection.since, selection.until):
        return False
    names = record.names
    if names is None:
        return True
    if selection.paths is not None:
        at = bisect_left(selection.paths, names[0])
        if at == len(selection.paths) or selection.paths[at] > names[1]:
            return False
    return may_begin(names, selection.prefix) and any(may_begin(names, start) for start in starts)


def may_be_from(record: ShardRecord, since: int | None, until: int | None) -> bool:
    """Return whether a shard may have files with an mtime in [since, until), nanoseconds."""
    least, most = record.mtime_min, record.mtime_max
    if least is None or most is None:
        return True
    return (since is None or most >= since) and (until is None or least < until)


def may_begin(names: tuple[bytes, bytes], start: bytes) -> bool:
    """Return whether a name from the first to the second can begin so."""
    return names[0][: len(start)] <= start <= names[1]


def _may_meet(shards: Sequence[Shard], where: Condition) -> list[bool]:
    """Return for each shard whether a condition can be true for one of its files."""
    from winkfs.container.where import BUILTIN, Zone, span

    first, last = span(where)
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    mtimes = np.full((2, len(shards)), [[least], [most]], np.int64)
    fits = []
    for number, shard in enumerate(shards):
        record, names = shard.record, shard.record.names
        fits.append(names is None or (names[1] >= first and (last is None or names[0] <= last)))
        if record.mtime_min is not None and record.mtime_max is not None:
            mtimes[:, number] = record.mtime_min // MICRO, record.mtime_max // MICRO
    some = np.ones(len(shards), np.int64)
    zone = Zone(BUILTIN["mtime"], some, 0 * some, *mtimes)
    possible = where.possible({"mtime": zone}.get, len(shards)) & np.array(fits, bool)
    found: list[bool] = possible.tolist()
    return found


def tombstones(store: Store, tombs_at: int) -> tuple[list[bytes], Int64]:
    """Return the names that a shard deletes from older ones, and the positions of their entries.

    tombs_at  position of the first tombstone; 0: it has none
    """
    from winkfs.container.survey import inode_rows

    names: list[bytes] = []
    positions = [NOTHING]
    if tombs_at:
        for _, rows in inode_rows(
            store.kv.storage, store.kv.layout, store.settings, tombs_at, store.kv.end,
            problem=store.note,
        ):  # fmt: skip
            gone = rows.deleted & (rows.size == 0)
            names += [name for name, ok in zip(rows.names, gone.tolist(), strict=True) if ok]
            positions.append(rows.pos[gone])
    return names, np.concatenate(positions)


# --- the record of a shard ---


def survey(base: str, path: str, tombs_at: int = 0) -> ShardRecord:
    """Build the manifest record of a closed container. Writes BASE.cat if it is missing or has
    several runs, and BASE.idx if it does not cover the data file.

    path      of the shard below the data set
    tombs_at  position from which its tombstones count; 0: it has none
    raises    Refusal if it was not closed; FormatError; OSError
    cost      see `describe`
    """
    from winkfs.container.catalog import build
    from winkfs.container.ondisk.idx import open_base
    from winkfs.container.store import Store

    with Store(base, writable=False, load=False) as store:
        _check_closed(store)
        index = open_base(
            store.directory, store.name, store.settings, store.kv.superblock, store.kv.end
        )
        whole = index is not None and index.covered == store.kv.end
        if index is not None:
            index.storage.close()
        found = _catalogued_record(store, path, tombs_at) if whole else None
    if found is not None:
        return found
    made = Store(base, writable=True)  # builds a missing index
    with contextlib.closing(made) as store:
        _check_closed(store)
        build(store, lost=raise_it).close()
        if store.is_behind:  # a close may leave a tail, which each reader would replay
            store.merge()
    return describe(base, path, tombs_at)


def _check_closed(store: Store) -> None:
    kv = store.kv
    if kv.truncated or kv.superblock.get("SYNCSIZE", kv.end) != kv.end or store.notes:
        what = store.notes[0] if store.notes else "it was not closed"
        raise Refusal(f"cannot become a shard: {what}", store.base, number=errno.EINVAL)


def describe(base: str, path: str, tombs_at: int) -> ShardRecord:
    """Return the record of an undamaged container: see `survey`.

    raises  FormatError; OSError
    cost    reads the index of BASE.cat and a block, or else all inodes
    """
    from winkfs.container.catalog import build
    from winkfs.container.store import Store

    with Store(base, writable=False, load=False) as store:
        found = _catalogued_record(store, path, tombs_at)
    if found is not None:
        return found
    reading = Store(base, writable=False)  # classic layout, or no current catalog
    with reading as store, build(store, save=False, lost=raise_it) as catalog:
        return _record(store, catalog.runs[0], path, tombs_at)


def described(root: str, record: ShardRecord) -> ShardRecord:
    """Return the record of a shard of a data set from its current files. Raises as `describe`."""
    tombs_at = record.tombs_at if record.tombstones else 0
    return replace(describe(f"{root}/{record.path}", record.path, tombs_at), rank=record.rank)


def _catalogued_record(store: Store, path: str, tombs_at: int) -> ShardRecord | None:
    """Return the record from BASE.cat; None if that is not intact, current and of one run."""
    from winkfs.container.catalog import open_catalog

    catalog = open_catalog(store, behind=0)
    if catalog is None:
        return None
    with catalog:
        try:
            runs = catalog.runs
            return _record(store, runs[0], path, tombs_at) if len(runs) == 1 else None
        except DerivedDamage:
            return None


def _record(store: Store, run: Run, path: str, tombs_at: int) -> ShardRecord:
    """Return the record from the run of a catalog. Raises DerivedDamage; CorruptError; OSError."""
    from winkfs.container.ondisk.compressed import word_of
    from winkfs.container.ondisk.typed import schema_text

    files, content, low, high = run.totals()
    gone, end = tombstones(store, tombs_at)[0], store.kv.end
    for pos in run.asked():
        store.inode_at(pos)  # raises for a damaged inode, which no shard may have
    record = ShardRecord(
        path, store.settings.contid, end, files, content, len(gone),
        tombs_at if gone else end, ao=store.settings.ao, columns=schema_text(store.schema).decode(),
        compress=word_of(store.frames.level),
    )  # fmt: skip
    ends = gone
    if files:
        record = replace(record, mtime_min=low, mtime_max=high)
        ends = [*gone, run.firsts[0], run.block(len(run.firsts) - 1).table.last]
    if ends and max(map(len, (min(ends), max(ends)))) <= MAX_RECORDED_NAME:
        first, last = to_strs([min(ends), max(ends)])
        record = replace(record, first=first, last=last)
    return record


# --- its files ---


def copy_bytes(
    source: Storage, target: Storage, progress: Callable[[int], None] | None = None
) -> None:
    """Copy a file into an empty one. `progress`: see `adopt`. Raises OSError."""
    at = 0
    while data := source.read(at, COPY_CHUNK):
        at += target.write(at, [data])
        if progress:
            progress(len(data))
