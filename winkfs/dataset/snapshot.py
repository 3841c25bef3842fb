"""A snapshot: the shards of one generation, or a single container, for reading and planning."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from winkformats.disk.paths import absolute
from winkfs.dataset.hidden import hidden_of
from winkfs.dataset.manifest import AsOf, Log, is_dataset
from winkfs.dataset.records import ShardRecord, State, columns_of
from winkfs.dataset.shard import NOTHING, Shard
from winkfs.names import base_of

if TYPE_CHECKING:
    from winkfs.container.datafile import DataFile


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The shards that are visible at one moment. It can be pickled.

    root        absolute path of the data set, or BASE of a single container
    generation  0 for a single container
    time_ns     time of the commit; 0 for a single container
    shards      by rank, the winner last
    """

    root: str
    generation: int
    time_ns: int
    shards: tuple[Shard, ...]

    @property
    def columns(self) -> dict[str, str]:
        """Columns of the user that files can have: name -> type."""
        return columns_of(shard.record for shard in self.shards)

    @property
    def files(self) -> int:
        """Number of visible files; -1: not known."""
        counts = [shard.files for shard in self.shards]
        return -1 if -1 in counts else sum(counts)


def snapshot(path: str | os.PathLike[str], as_of: AsOf = None) -> Snapshot:
    """Return the newest generation of a data set, or that of `as_of` (see `parse_as_of`), or a
    container.

    raises  NoSuchFile; StalePlan if the generation was vacuumed; ValueError; FormatError
    cost    reads manifests and one derived file, and no shard; if that file is missing, also the
            indexes of shards whose names overlap
    """
    if is_dataset(path):
        log = Log(absolute(os.fspath(path)))
        return snapshot_of(log, log.at(as_of))
    return single(path, as_of)


def single(path: str | os.PathLike[str], as_of: AsOf = None) -> Snapshot:
    """Return a container, known to be one, as of now. Raises as `snapshot`. Cost: opens it."""
    if as_of not in (None, ""):
        raise ValueError(f"{os.fspath(path)}: a single container has no generations: as_of is for "
                         "a data set")  # fmt: skip
    return _single(absolute(base_of(path)))


def snapshot_of(log: Log, state: State) -> Snapshot:
    """Return the snapshot of a generation whose state is known."""
    hidden = hidden_of(log, state)
    shards = tuple(
        Shard(f"{log.root}/{record.path}", record, hidden.get(record.path, NOTHING))
        for record in state.shards
    )
    return Snapshot(log.root, state.generation, state.time_ns, shards)


def _single(base: str) -> Snapshot:
    from winkfs.container.store import Store

    with Store(base, writable=False, load=False) as data:
        return Snapshot(base, 0, 0, (plain_shard(data),))


def plain_shard(data: DataFile) -> Shard:
    """Return a container outside of data sets, in its current state, as a shard."""
    from winkfs.container.ondisk.typed import schema_text

    record = ShardRecord(
        os.path.basename(data.base), data.settings.contid, data.kv.end,
        content=data.dtotsz, tombs_at=data.kv.end, ao=data.settings.ao,
        columns=schema_text(data.schema).decode(),
    )  # fmt: skip
    return Shard(data.base, record, grows=True)
