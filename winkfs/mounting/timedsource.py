"""TimedSource: a data set with `.time`, its files by the hour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from winkformats.arrays import Int64
from winkfs.container.columns.columns import Columns
from winkfs.dataset.snapshot import Snapshot
from winkfs.mounting.dataset import DatasetSource
from winkfs.mounting.shardfiles import POSITION, ShardFiles
from winkfs.mounting.timedir import HOUR, Timed, TimeDirectory
from winkfs.mounting.timeview import TimeView
from winkfs.units import NANO

PIECE: Final = 1024  # files at a time


class TimedSource(TimeView, DatasetSource):
    """The columns tell the times, whether or not the shards only append. Names that begin with
    `.time` are not shown."""

    def _show(self, snapshot: Snapshot) -> None:
        super()._show(snapshot)
        self._by_time = TimeDirectory(_Times(self), self.places.seed)


class _Times:
    """The files of all shards, for `timedir`. An offset is the id of a file + 1."""

    def __init__(self, view: DatasetSource) -> None:
        self._view = view
        self.owner = view.owner
        self._hours: list[int] | None = None

    def starts(self, unit: int) -> list[int]:
        if self._hours is None:
            hours = [
                np.unique(chunk.mtime[rows] // (HOUR * NANO)) for _, chunk, rows in self._all()
            ]
            self._hours = np.unique(np.concatenate([np.empty(0, np.int64), *hours])).tolist()
        return sorted({hour * HOUR // unit * unit for hour in self._hours})

    def _all(self) -> Iterator[tuple[ShardFiles, Columns, Int64]]:
        """All that is shown: chunks, and which of their rows."""
        for files in self._view.shown.values():
            for chunk in files.chunks:
                yield files, chunk, files.visible(chunk)

    def find(self, name: bytes) -> Timed | None:
        found = self._view.find(name)
        if found is None:
            return None
        files, chunk, at = found
        id = files.id_of(chunk.pos.item(at))
        return Timed(name, id, chunk.mtime.item(at), chunk.ftype.item(at), id + 1)

    def between(self, start: int, stop: int, offset: int) -> Iterator[Timed]:
        for files, chunk, rows in self._all():
            times, ids = chunk.mtime[rows], chunk.pos[rows] | files.number << POSITION
            rows = rows[(times >= start * NANO) & (times < stop * NANO) & (ids >= offset)]
            for at in range(0, len(rows), PIECE):
                part = chunk.take(rows[at : at + PIECE])
                columns = part.pos.tolist(), part.mtime.tolist(), part.ftype.tolist()
                for name, pos, mtime, ftype in zip(part.names(), *columns, strict=True):
                    id = files.id_of(pos)
                    yield Timed(name, id, mtime, ftype, id + 1)
