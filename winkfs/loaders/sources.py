"""Sources: the containers and data sets whose files are rows, and how these are found."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

from xxhash import xxh3_64

from winkformats.disk.schemes import is_far
from winkfs.container.ondisk.typed import Schema
from winkfs.container.select import Query, all_rows
from winkfs.container.where import parse
from winkfs.dataset.records import union
from winkfs.dataset.shard import AHEAD, Shard, announce
from winkfs.dataset.snapshot import Snapshot
from winkfs.loaders.places import MOST_POSITION, Building, Places, words_of
from winkfs.reader import Problem, Reader
from winkfs.registry import AsOf, kind_of
from winkfs.units import shown

Path = str | os.PathLike[str]
Source = Path | Reader
REOPEN: Final = "sync, and open it for reading"


@dataclass(frozen=True, slots=True)
class Sources:
    """The shards of some stores, as of one moment. It can be pickled.

    snapshots  of each store
    where      a condition, None: all files
    """

    snapshots: tuple[Snapshot, ...]
    where: str | None

    @property
    def shards(self) -> list[Shard]:
        return [shard for snapshot in self.snapshots for shard in snapshot.shards]

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the user: name -> type."""
        return union(snapshot.columns for snapshot in self.snapshots)

    @property
    def counts(self) -> list[int]:
        """The number of shards of each store."""
        return [len(snapshot.shards) for snapshot in self.snapshots]

    def identity(self) -> str:
        """Return a hash of the files of the stores, wherever these are."""
        found = xxh3_64()
        for snapshot in self.snapshots:
            found.update(struct.pack("<q", len(snapshot.shards)))
            for shard in snapshot.shards:
                record = shard.record
                found.update(struct.pack("<Qq", record.contid & (1 << 64) - 1, record.size))
                found.update(shard.hidden.tobytes())
        return found.hexdigest()


def sources_of(given: Source | Sequence[Source], where: str | None, as_of: AsOf | None) -> Sources:
    """Return the stores that are given, by path or open.

    raises  NoSuchFile; ValueError; TypeError; FormatError
    """
    several = [given] if isinstance(given, str | os.PathLike | Reader) else given
    if isinstance(several, bytes) or not isinstance(several, Sequence):
        raise TypeError(f"rows are those of a path, an open store, or a list, not {shown(given)}")
    if not several:
        raise ValueError("there is no store in the list")
    if where is not None and not isinstance(where, str):
        raise TypeError(f"where is a text such as \"lang = 'de'\", not {type(where).__name__}")
    made = Sources(tuple(_snapshot(source, as_of) for source in several), where)
    if where is not None:
        parse(where).bound(made.columns)
    return made


def _snapshot(source: Source, as_of: AsOf | None) -> Snapshot:
    path: Any = source
    if isinstance(source, Reader):
        path = source.base
        if getattr(source, "writable", False):
            raise ValueError(f"{path}: a writer has no rows: {REOPEN}")
        if as_of is None:
            as_of = getattr(source, "generation", None)
    elif not isinstance(source, str | os.PathLike):
        raise TypeError(f"rows are those of a path or an open store, not {shown(source)}")
    kind, path = kind_of(os.fspath(path))
    if not kind.has("shards"):
        raise ValueError(f"{path}: is a {kind.name}: rows are for containers and data sets")
    if as_of is not None and not kind.versions:
        raise ValueError(f"{path}: as_of is for data sets: a {kind.name} has no generations")
    found: Snapshot = kind.function("shards", path)(path, as_of)
    return found


def places_of(sources: Sources, problem: Problem) -> Places:
    """Return the places of all rows.

    problem  called with each damage, whose files are left out
    raises   StalePlan; FormatError; OSError
    cost     reads the catalogs
    """
    columns = sources.columns
    condition = None if sources.where is None else parse(sources.where).bound(columns)
    query, shards = Query(where=condition), sources.shards
    building = Building()
    try:
        for number, shard in enumerate(shards):
            if number % AHEAD == 0 and is_far(shard.base):
                announce(each.base for each in shards[number : number + AHEAD])
            if shard.files:
                _add(building, shard, columns, query, problem)
            building.end_shard()
        return building.made()
    except BaseException:
        building.close()
        raise


def _add(building: Building, shard: Shard, columns: Schema, query: Query, problem: Problem) -> None:
    store = shard.open()
    try:
        if shard.record.columns:
            store.show_types(columns)
        for rows in all_rows(store, nullcontext(), problem, query):
            seen = rows.visible(shard.hidden, include_dirs=False)
            if len(seen) and int(seen.pos.max()) >= MOST_POSITION:
                raise ValueError(f"{shard.base}: has more than 16 TiB, which rows cannot number")
            building.add(words_of(seen))
    finally:
        store.abandon()
