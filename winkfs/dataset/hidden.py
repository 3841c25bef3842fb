"""Hidden rows: the files of each shard that a shard of a higher rank has replaced or deleted.

They are found by equal hashes of names, from the indexes, and then by comparing these names. The
result is kept in a derived file of the generation, `_winkfs/<generation>.hidden`, which is rebuilt
if it is missing or damaged:

    offset  size  type  field    meaning
    0       8           magic    WINKHID1
    8       8     Q     cksum    XXH3-64 of all that follows
    16      8     q     length   bytes of the header
    24      ..          header   JSON: {"manifest": checksum of the manifest of that generation,
                                 "shards": [[path of a shard, number of its hidden rows], ...]}
    ..      8n    q     rows     positions of inodes, ascending, shard by shard

Little-endian. The file is valid only if it has the checksum of the manifest, since a repair may
give the number of a generation to another one. The file of a later generation is computed from it,
and reads only shards that were added since.

The module imports little, because Spark's planner imports it for each query; what opens containers
is imported when it is used.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats import hashing
from winkformats.arrays import (
    Int64,
    TextColumn,
    UInt64,
    alike,
    among,
    column_at,
    outranked,
)
from winkformats.disk.schemes import is_far
from winkformats.errors import CorruptError, FormatError
from winkfs.dataset.folder import Folder
from winkfs.dataset.manifest import Log
from winkfs.dataset.records import REWRITES, Manifest, ShardRecord, State
from winkfs.dataset.shard import NOTHING, Shard, tombstones
from winkfs.errors import DatasetConflict, LostShard, StalePlan
from winkfs.names import INODE, inode_key, name_of, to_path

if TYPE_CHECKING:
    from winkfs.container.store import Store

MAGIC: Final = b"WINKHID1"
HIDDEN: Final = ".hidden"
HEADER_START: Final = 24  # offset of the JSON header
INCREMENTAL: Final = REWRITES | {"append", "delete"}  # operations that keep hidden rows hidden
ROWS_PER_PASS: Final = 1 << 25  # rows compared in one pass: 0.8 GiB of memory
SPARSE_RATIO: Final = 64  # files for each wanted name from which names are read one by one
LOOKUP_RATIO: Final = 8  # files for each wanted hash from which an index is probed, not read whole
MOST_HELD: Final = 32  # shards on object storage that are open at once
_NO_S: Final[UInt64] = np.empty(0, np.uint64)
Hidden = dict[str, Int64]
"""Path of a shard -> positions of its hidden rows, ascending; shards without any may be missing."""
Problem = Callable[[str, str], None]
"""Called with a line on damage, and the path of the shard."""
Ranks = npt.NDArray[np.uint32]


def hidden_of(log: Log, state: State) -> Hidden:
    """Return the hidden rows of a generation.

    cost    none if the names of shards do not overlap; else reads the derived file, or the indexes
            of the shards that were added since the last one
    """
    if state.whole is not None:
        from winkfs.dataset.checkpoint import hidden_rows_of

        for path in state.whole.unsure:
            log.note(f"{log.root}/{path}: was damaged when files were replaced or deleted there: "
                     "older ones may be seen again")  # fmt: skip
        return hidden_rows_of(log.root, state.whole)
    if not clusters(state.shards):
        return {}
    generation, known = _nearest(log, state)
    if generation == state.generation:
        return known

    damage: list[str] = []
    made = hidden_rows(log.root, state.shards, known, lambda line, path: damage.append(line))
    for line in damage:
        log.note(f"{line}: older files that were replaced or deleted there may be seen again")
    if not damage:  # else a repair would have no effect on the stored rows
        write_hidden(log.store, state, made)
    return made


def fresh_rows(log: Log, before: State, made: Manifest) -> tuple[Hidden, list[str]]:
    """Return the rows that a commit hides, of the shards before and of its own, and the paths of
    damaged shards, where it may hide more.

    cost    none if the names of its shards do not overlap those of others
    """
    shards = made.apply(before).shards
    new = {record.path for record in made.added}
    if not any(new.intersection(r.path for r in cluster) for cluster in clusters(shards)):
        return {}, []
    known = {record.path: NOTHING for record in before.shards} | dict(hidden_of(log, before))
    unsure = set[str]()
    found = hidden_rows(log.root, shards, known, lambda line, path: unsure.add(path))
    more = {path: np.setdiff1d(rows, known.get(path, NOTHING)) for path, rows in found.items()}
    return {path: rows for path, rows in more.items() if len(rows)}, sorted(unsure)


def clusters(shards: Sequence[ShardRecord]) -> list[list[ShardRecord]]:
    """Return groups of two or more shards that may share names, each in the order of ranks."""
    ranges = [(record.names or (b"", None), i) for i, record in enumerate(shards)
              if record.files or record.tombstones]  # fmt: skip
    groups: list[list[int]] = []
    end: bytes | None = b""
    for (first, last), i in sorted(ranges, key=lambda item: item[0][0]):
        if groups and (end is None or first <= end):
            groups[-1].append(i)
            end = None if end is None or last is None else max(end, last)
        else:
            groups.append([i])
            end = last
    return [[shards[i] for i in sorted(group)] for group in groups if len(group) > 1]


def _nearest(log: Log, state: State) -> tuple[int, Hidden]:
    """Read the newest derived file, up to that of a generation, that its rows can be computed from.

    ->  its generation and rows; -1 and none if there is no such file
    """
    upper = state.generation
    for number in sorted(log.store.named(HIDDEN), reverse=True):
        if not state.oldest <= number <= state.generation:
            continue
        try:
            if any(m.operation not in INCREMENTAL for m in log.manifests(upper, number + 1)):
                break
            digest = state.digest if number == state.generation else log.read(number).digest
        except (StalePlan, FormatError):
            break
        upper = number
        with contextlib.suppress(OSError, FormatError):
            return number, read_hidden(log.store, number, digest)
    return -1, {}


def read_hidden(folder: Folder, number: int, digest: str) -> Hidden:
    """Read the derived file that was made for the manifest with this checksum.

    raises  FormatError if it is damaged, or belongs to a different manifest; OSError
    """
    name = folder.name(number, HIDDEN)
    path = f"{folder.path}/{name}"
    try:
        with folder.files.open(name) as storage:
            return _decoded(storage.read(0, storage.size()), digest, path)
    except FormatError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise FormatError(f"{path}: {error}") from None


def _decoded(data: bytes, digest: str, path: str) -> Hidden:
    length = int.from_bytes(data[16:24], "little")
    cksum = int.from_bytes(data[8:16], "little")
    if data[:8] != MAGIC or xxhash.xxh3_64_intdigest(memoryview(data)[16:]) != cksum:
        raise FormatError(f"{path}: damaged")
    header = json.loads(data[HEADER_START : HEADER_START + length])
    if header["manifest"] != digest:
        raise FormatError(f"{path}: of another manifest")
    counts = header["shards"]
    rows = np.frombuffer(data, "<i8", offset=HEADER_START + length)
    ends = np.cumsum([0, *(count for _, count in counts)])
    if ends[-1] != len(rows) or (np.diff(ends) < 0).any():
        raise FormatError(f"{path}: damaged")
    return dict(zip([path for path, _ in counts], np.split(rows, ends[1:-1]), strict=True))


def write_hidden(folder: Folder, state: State, hidden: Mapping[str, Int64]) -> None:
    """Write the derived file; errors are ignored, since it can be computed again."""
    counts = [[name, len(rows)] for name, rows in hidden.items()]
    header = json.dumps({"manifest": state.digest, "shards": counts}).encode()
    header += b" " * (-len(header) % 8)
    parts = [len(header).to_bytes(8, "little"), header]
    body = b"".join([*parts, *(rows.astype("<i8").tobytes() for rows in hidden.values())])
    cksum = xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
    with (
        contextlib.suppress(OSError),
        folder.written(state.generation, MAGIC + cksum + body, sync=False) as file,
    ):
        folder.files.rename(file, folder.name(state.generation, HIDDEN))


def hidden_rows(
    root: str,
    shards: Sequence[ShardRecord],
    known: Mapping[str, Int64],
    problem: Problem | None = None,
) -> Hidden:
    """Compute the hidden rows of shards in the order of their ranks.

    known    hidden rows of some of the shards, computed among these
    problem  called with each damaged place and its shard, and each lost shard; files that it
             replaced or deleted are not hidden; None: a lost shard raises
    raises   StalePlan; FormatError; OSError
    """
    found = {record.path: known.get(record.path, NOTHING) for record in shards}
    for cluster in clusters(shards):
        if all(record.path in known for record in cluster):
            continue
        new = [record.path not in known for record in cluster]
        opened = [Shard(f"{root}/{record.path}", record) for record in cluster]
        rows = sum(record.files for record, fresh in zip(cluster, new, strict=True) if fresh)
        parts = rows // ROWS_PER_PASS + 1
        with _holding():
            for part in range(parts):
                for record, more in _resolve(opened, new, part, parts, problem):
                    found[record.path] = np.union1d(found[record.path], more)
    return found


def refuse_changed(log: Log, since: int, before: State, shards: Sequence[ShardRecord]) -> None:
    """Raise DatasetConflict if a commit after generation `since` has put or deleted a file that one
    of these shards puts or deletes.

    before  the state that the shards are to follow
    shards  with their current paths
    cost    none without such a commit; else reads the indexes of shards whose names overlap
    """
    if before.generation == since:
        return
    theirs: list[ShardRecord] = []
    try:
        for manifest in log.manifests(before.generation, since + 1):
            if not manifest.rewrites:
                if manifest.removed:
                    raise DatasetConflict("all was overwritten meanwhile: try again", log.root)
                theirs += manifest.added
        names = (_common_name(log.root, shard, theirs) for shard in shards)
        name = next((name for name in names if name is not None), None)
    except StalePlan:
        name = "a later commit cannot be read any more"
    if name is not None:
        raise DatasetConflict(f"was changed meanwhile ({name}): try again", log.root)


def _common_name(root: str, shard: ShardRecord, others: Sequence[ShardRecord]) -> str | None:
    """Return a name that a shard and one of the others change, unless both only delete it."""
    known = {record.path: NOTHING for record in others}
    for ranked in ([shard, *others], [*others, shard]):
        found = hidden_rows(root, ranked, known, _refuse_damage)
        for record in ranked:
            if len(found[record.path]):
                with _opened(Shard(f"{root}/{record.path}", record)) as store:
                    return to_path(name_of(store.key_at(int(found[record.path][0]))))
    return None


def _refuse_damage(line: str, path: str) -> None:
    raise StalePlan(line)


# --- equal names ---


class _HashedNames(NamedTuple):
    """Names of one shard: XXH3 of the inode key, position of the inode; files, then tombstones."""

    s: UInt64
    pos: Int64


def _ignored(line: str, path: str) -> None:
    """Ignore damage: a `problem`."""


def _resolve(
    shards: list[Shard], new: list[bool], part: int, parts: int, problem: Problem | None
) -> Iterator[tuple[ShardRecord, Int64]]:
    """Yield the hidden rows among the names whose hashes are in this part, of pairs with a new
    shard."""
    none, report = _HashedNames(_NO_S, NOTHING), problem or _ignored

    def read(shard: Shard, rows_of: Callable[[], _HashedNames]) -> _HashedNames:
        try:
            return rows_of()
        except LostShard as error:
            if problem is None:
                raise
            problem(str(error), shard.record.path)
            return none

    rows = [read(shard, partial(_rows_of, shard, part, parts, report)) if fresh else none
            for shard, fresh in zip(shards, new, strict=True)]  # fmt: skip
    if not all(new):
        wanted = np.unique(np.concatenate([found.s for found in rows]))
        far = any(is_far(shard.base) for shard in shards)
        names = _own_names(shards, rows) if far else []
        for i, fresh in enumerate(new):
            if not fresh:
                rows[i] = read(shards[i], partial(_matches, shards[i], wanted, names, report))
    s = np.concatenate([found.s for found in rows])
    pos = np.concatenate([found.pos for found in rows])
    rank = np.repeat(np.arange(len(shards), dtype=np.uint32), [len(found.s) for found in rows])
    del rows
    chosen, group = alike(s)
    if not len(chosen):
        return
    pos, rank = pos[chosen], rank[chosen]
    gone = outranked(group, rank, _names(shards, pos, rank))
    ends = np.array([shard.record.tombs_at or shard.record.size for shard in shards])
    gone &= pos < ends[rank]
    for i in np.flatnonzero(np.bincount(rank[gone])).tolist():
        yield shards[i].record, np.sort(pos[gone & (rank == i)])


def _names(shards: list[Shard], pos: Int64, rank: Ranks) -> TextColumn:
    """Return the names of rows, in their order."""
    order = np.argsort(rank.astype(np.uint16) if len(shards) < 1 << 16 else rank, kind="stable")
    edges = np.searchsorted(rank[order], np.arange(len(shards) + 1)).tolist()
    parts = []
    for shard, (a, b) in zip(shards, pairwise(edges), strict=True):
        if a < b:
            with _opened(shard) as store:
                parts.append(_names_at(store, pos[order[a:b]]))
    names = _joined(parts)
    found = np.empty_like(names)
    found[order] = names
    return found


_held: ContextVar[dict[str, Store] | None] = ContextVar("held", default=None)


@contextlib.contextmanager
def _holding() -> Iterator[None]:
    """Keep some shards on object storage open for a `with` block: each is opened by requests."""
    held: dict[str, Store] = {}
    mark = _held.set(held)
    try:
        yield
    finally:
        _held.reset(mark)
        for store in held.values():
            store.close()


@contextlib.contextmanager
def _opened(shard: Shard, problem: Problem = _ignored) -> Iterator[Store]:
    held = _held.get()
    store = None if held is None else held.get(shard.base)
    with contextlib.ExitStack() as closing:
        if store is None:
            with shard.pass_over():
                store = shard.open()
            if held is not None and is_far(shard.base) and len(held) < MOST_HELD:
                held[shard.base] = store
            else:
                closing.enter_context(store)
        yield store
        for note in store.notes:
            problem(note, shard.record.path)


def _rows_of(shard: Shard, part: int, parts: int, problem: Problem) -> _HashedNames:
    """Return all rows of a shard whose hashes are in this part."""
    with _opened(shard, problem) as store:
        if _hashed(store):
            live = store.index.merged()[0]
            s, pos = live.s, live.pos
        else:
            pos = store.index.positions()
            s = _hash(_names_at(store, pos).tolist())
        gone, where = tombstones(store, shard.record.tombs_at if shard.record.tombstones else 0)
        if gone:
            s, pos = np.concatenate([s, _hash(gone)]), np.concatenate([pos, where])
    if parts > 1:
        chosen = (s >> np.uint64(32)) % np.uint64(parts) == part
        s, pos = s[chosen], pos[chosen]
    return _HashedNames(s, pos)


def _own_names(shards: list[Shard], rows: list[_HashedNames]) -> list[bytes]:
    """Return the names of rows."""
    found = set[bytes]()
    for shard, (_, pos) in zip(shards, rows, strict=True):
        if len(pos):
            with _opened(shard) as store:
                found.update(_names_at(store, pos).tolist())
    return sorted(found)


def _matches(shard: Shard, wanted: UInt64, names: list[bytes], problem: Problem) -> _HashedNames:
    """Return the rows of a shard with these hashes, ascending.

    names  those of the hashes, by which a shard on object storage is asked
    """
    record = shard.record
    if is_far(shard.base) and names:
        ends = record.names
        near = [name for name in names if ends is None or ends[0] <= name <= ends[1]]
        return _matches_far(shard, near, problem)
    if record.files > LOOKUP_RATIO * len(wanted) and not record.tombstones:
        with _opened(shard) as store:
            base = store.index.base
            if _hashed(store) and base is not None and not store.index.pending:
                return _HashedNames(*store.index.cells_of(wanted))
    rows = _rows_of(shard, 0, 1, problem)
    chosen = among(rows.s, wanted)
    return _HashedNames(rows.s[chosen], rows.pos[chosen])


def _matches_far(shard: Shard, names: list[bytes], problem: Problem) -> _HashedNames:
    """Return the rows of a shard with these names. Cost: the blocks of its catalog that may have
    them."""
    from winkfs.container.catalogindex import CatalogIndex

    with _opened(shard, problem) as store:
        keys, index = [inode_key(name) for name in names], store.index
        if isinstance(index, CatalogIndex):
            for _ in index.expect(keys, lambda ranges: None, 0, content=False):
                """Have the blocks brought, and not the inodes."""
        pos = index.candidates(keys)
        gone, where = tombstones(store, shard.record.tombs_at if shard.record.tombstones else 0)
    there = pos > 0
    found = [name for name, ok in zip(names, there.tolist(), strict=True) if ok]
    return _HashedNames(_hash([*found, *gone]), np.concatenate([pos[there], where]))


def _hashed(store: Store) -> bool:
    """Return whether the index of a shard has the hashes that shards are compared by."""
    return store.settings.htalgo == hashing.XXH3 and store.settings.cellsz > 1


def _hash(names: Iterable[bytes]) -> UInt64:
    return hashing.hash_keys(hashing.XXH3, [name + INODE for name in names])[0]


# --- names by position ---


def _names_at(store: Store, positions: Int64) -> TextColumn:
    """Return the names of inodes and tombstones at these positions, in their order.

    raises  CorruptError
    cost    few names, and those of tombstones, are read from the data file, a page each; else one
            pass over the blocks of BASE.cat that may have some
    """
    from winkfs.container.select import catalogued

    parts, places = list[TextColumn](), [NOTHING]
    far = store.kv.storage.far
    if far or len(positions) * SPARSE_RATIO > store.index.count:
        order = np.argsort(positions)
        wanted = positions[order]
        for rows in catalogued(store, wanted, dense=not far):
            parts.append(rows.column)
            places.append(order[np.searchsorted(wanted, rows.pos)])
    left = np.setdiff1d(np.arange(len(positions)), np.concatenate(places), assume_unique=True)
    if len(left) or not parts:
        parts.append(_from_data(store, positions[left]))
        places.append(left)
    names = _joined(parts)
    found = np.empty_like(names)
    found[np.concatenate(places)] = names
    return found


def _joined(parts: list[TextColumn]) -> TextColumn:
    """Join the names of all parts into one column."""
    if any(part.dtype == object for part in parts):
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts)


def _from_data(store: Store, positions: Int64) -> TextColumn:
    from winkfs.container.datafile import KEY_READ_BYTES

    kv, suffix = store.kv, len(INODE)
    if kv.storage.far:
        kv.storage.fetch([(pos, pos + KEY_READ_BYTES) for pos in positions.tolist()])
    if kv.storage.far or not kv.layout.standard or not len(positions):
        return np.array([name_of(store.key_at(p)) for p in positions.tolist()], object)
    if int(positions.min()) < kv.start or int(positions.max()) + suffix > kv.end:
        raise CorruptError("the index points outside", file=kv.storage.name, offset=kv.end)
    view = np.frombuffer(kv.view(kv.end - 1), np.uint8)
    lengths = view[positions + 1].astype(np.int64) << 8 | view[positions + 2]
    return column_at(view, positions + 3, np.maximum(lengths - suffix, 0))
