"""Sources of `ingest`: the files of a unit, of whatever kind."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import NamedTuple

from winkfs.archive.items import MAX_RATIO, Item, ItemSource, Note, Notes, Ratio
from winkfs.archive.parquet import ParquetColumns, Table
from winkfs.archive.tar import Tarball
from winkfs.archive.tree import Tree
from winkfs.archive.warc import Warc
from winkfs.container.bulk import Row
from winkfs.container.ondisk.typed import Schema
from winkfs.errors import NoSuchFile
from winkfs.samples.intake import MdsSamples, WebSamples
from winkfs.spark.jobs.units import Unit, records_at
from winkfs.stores.records import Arrivals, Records, batches
from winkfs.stores.records import Row as Record


class TarOptions(NamedTuple):
    """Options of reading tar files: see `winkfs.archive.pack.pack`."""

    ignore_zeros: bool = False
    max_ratio: int = MAX_RATIO


def source_of(
    unit: Unit, note: Notes, scratch: str, columns: ParquetColumns, tar: TarOptions, known: Schema
) -> ItemSource:
    """Open the files of a unit, for a data set with the columns `known`. Reading them raises
    FormatError, Refusal, OSError."""
    ratio = Ratio(tar.max_ratio)
    if unit.kind == "tree":
        return Tree(unit.path, note, scratch, names=unit.names)
    if unit.kind in ("tar", "webdataset"):
        plain = Tarball(unit.path, note, scratch, ignore_zeros=tar.ignore_zeros, ratio=ratio)
        return plain if unit.kind == "tar" else WebSamples(plain, note, known)
    if unit.shard is not None:
        return MdsSamples(unit.path, unit.shard, unit.below, note, scratch, columns, ratio, known)
    if unit.kind == "warc":
        return Warc(unit.path, note, ratio)
    if unit.kind == "records":
        return RecordFiles(unit, note)
    return Table(unit.path, note, columns, dict(unit.columns), known)


class RecordFiles:
    """Records of a unit, with their ids as names; damaged ones are reported."""

    def __init__(self, unit: Unit, note: Notes) -> None:
        self._unit, self._note = unit, note

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        """Yield the records. Raises NoSuchFile if the store is gone; FormatError, OSError."""
        store = records_at(self._unit.path)
        if store is None:
            raise NoSuchFile("no such store", self._unit.path)
        with store:
            for rows in batches(self._found(store)):
                yield from self._rows(store, rows)

    def _found(self, store: Records) -> Iterator[Record]:
        unit = self._unit
        if unit.ids is not None and isinstance(store, Arrivals):
            where = os.fsencode(unit.path)
            yield from store.between(*unit.ids, lambda what: self._note(Note(where, what, True)))
            return
        files = set(map(os.fsdecode, unit.names))
        parts = [part for part in store.data_files() if part.file in files]
        if parts:
            yield from store.rows(*parts)

    def _rows(self, store: Records, rows: list[Record]) -> Iterator[Row]:
        for row, body in store.contents(rows):
            if isinstance(body, Exception):
                self._note(Note(row.id.encode(), str(body), True))
            else:
                yield Row(row.id.encode(), body, store.mtime_of(row))
