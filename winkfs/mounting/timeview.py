"""TimeView: `.time` laid over what a Source shows, in the place of names that begin with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from winkfs.mounting.ids import OWN_IDS
from winkfs.mounting.pathview import PathView
from winkfs.mounting.timedir import TOP, TimeDirectory, is_inside
from winkmount.source import Attr, DirEntry

LAST: Final = 1 << 62  # offset behind `.time` in the top directory


class TimeView(PathView):
    """To stand before the class that it is laid over."""

    _by_time: TimeDirectory | None = None  # None: it is not shown

    def attr(self, path: bytes) -> Attr | None:
        if self._by_time is None or not is_inside(path):
            return super().attr(path)
        attr = self._by_time.attr(path)
        if attr is not None:
            self.places.note(attr.id, path)
        return attr

    def readdir(self, handle: int, offset: int) -> Iterator[DirEntry]:
        path = self._listings[handle].path
        if self._by_time is None or not (path == b"" or is_inside(path)):
            return super().readdir(handle, offset)
        if path:
            return self._by_time.entries(path, offset)
        return self._top(super().readdir(handle, offset)) if offset < LAST else iter(())

    def _top(self, others: Iterator[DirEntry]) -> Iterator[DirEntry]:
        for entry in others:
            if entry.name != TOP:
                yield entry
        top = self.attr(TOP)
        if top is not None:
            yield DirEntry(TOP, top, LAST)

    def _timed(self, id: int) -> bytes | None:
        """The path of what is below `.time`; None for all else."""
        if self._by_time is None or id < OWN_IDS:
            return None
        path = self.places[id]
        return path if is_inside(path) else None

    def readlink(self, id: int) -> bytes:
        path = self._timed(id)
        if path is None or self._by_time is None:
            return super().readlink(id)
        return self._by_time.target(path)

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        return super().xattrs(id) if self._timed(id) is None else {}

    def facts(self, id: int) -> Mapping[str, str]:
        return super().facts(id) if self._timed(id) is None else {}
