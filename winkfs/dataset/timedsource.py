"""TimedSource: a data set with `.time`, its files by the hour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

import numpy as np

from winkfs.columns import Columns
from winkfs.dataset.shardfiles import POSITION, ShardFiles
from winkfs.dataset.snapshot import Snapshot
from winkfs.dataset.source import DatasetSource
from winkfs.places import OWN_IDS
from winkfs.rows import Int64
from winkfs.settings import NANO
from winkfs.timedir import HOUR, TOP, Timed, TimeDirectory, is_inside
from winkmount.source import Attr, DirEntry

LAST: Final = 1 << 62  # offset behind `.time` in the top directory
PIECE: Final = 1024  # files at a time


class TimedSource(DatasetSource):
    """The columns tell the times, whether or not the shards only append. Names that begin with
    `.time` are not shown."""

    def _show(self, snapshot: Snapshot) -> None:
        super()._show(snapshot)
        self._by_time = TimeDirectory(_Times(self))

    def attr(self, path: bytes) -> Attr | None:
        if not is_inside(path):
            return super().attr(path)
        attr = self._by_time.attr(path)
        if attr is not None:
            self.places.note(attr.id, path)
        return attr

    def readdir(self, handle: int, offset: int) -> Iterator[DirEntry]:
        path = self._listings[handle].path
        if is_inside(path):
            return self._by_time.entries(path, offset)
        if path:
            return super().readdir(handle, offset)
        if offset >= LAST:
            return iter(())
        others = (entry for entry in super().readdir(handle, offset) if entry.name != TOP)
        top = self.attr(TOP)
        return chain(others, () if top is None else [DirEntry(TOP, top, LAST)])

    def readlink(self, id: int) -> bytes:
        inside = id >= OWN_IDS and is_inside(self.places[id])
        return self._by_time.target(self.places[id]) if inside else super().readlink(id)

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        inside = id >= OWN_IDS and is_inside(self.places[id])
        return {} if inside else super().xattrs(id)

    def facts(self, id: int) -> Mapping[str, str]:
        inside = id >= OWN_IDS and is_inside(self.places[id])
        return {} if inside else super().facts(id)


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
