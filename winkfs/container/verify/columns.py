"""Checks of a BASE.cols against the files it should hold, in the one pass that verify makes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.paths import open_file
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.scan import Batch
from winkfs.container.columns.columns import Columns
from winkfs.container.columns.scan import InodeScan
from winkfs.container.ondisk.cols import ColumnsFile

if TYPE_CHECKING:
    from winkfs.container.store import Store


class ColumnsCheck:
    """Takes the batches of a whole data file. One that is missing, foreign or stale is no problem.

    add     is told what is wrong, at most once
    """

    def __init__(self, store: Store, add: Callable[[str], None]) -> None:
        self._store, self._add, self._path = store, add, store.base + ".cols"
        self._damaged: list[int] = []  # inodes, which are reported by who checks all entries
        self._file = self._open()
        self._scan: InodeScan | None = None
        if self._file is not None:
            self._scan = InodeScan(store, self._note)

    def _open(self) -> ColumnsFile | None:
        with suppress(FileNotFoundError):
            storage = open_file(self._path)
            try:
                found = ColumnsFile(storage)
                settings, end = self._store.settings, self._store.kv.end
                if (found.contid, found.covered) == (settings.contid, end):
                    return found
            except FormatError as error:
                self._add(f"{error}: run reindex")
            storage.close()
        return None

    def take(self, batch: Batch) -> None:
        """Compare the inodes of a batch."""
        if self._file is None or self._scan is None:
            return
        try:
            said = self._file.between(int(batch.pos[0]), int(batch.pos[-1]) + 1)
            found = Columns.joined(*self._scan.piece(said.pos, batch.data, batch.base))
            if len(found) < len(said):
                said = said.take(np.isin(said.pos, found.pos))
            if not _same(said, found):
                self._stop(f"{self._path}: does not have what the inodes say: run reindex")
        except CorruptError as error:
            self._stop(f"{error}: run reindex")

    def finish(self, live: Int64) -> None:
        """Compare which files there are. `live`: positions of their inodes, in any order."""
        if self._file is None:
            return
        try:
            differ = np.setxor1d(self._file.column("pos"), live)
            if len(np.setdiff1d(differ, self._damaged)):
                self._stop(f"{self._path}: its files are not those of the container: run reindex")
        except CorruptError as error:
            self._stop(f"{error}: run reindex")
        self.close()

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = self._scan = None

    def _note(self, error: CorruptError) -> None:
        self._damaged.append(error.offset)

    def _stop(self, what: str) -> None:
        self._add(what)
        self.close()


def _same(one: Columns, other: Columns) -> bool:
    names = [(rows.name_lengths, rows.names_joined) for rows in (one, other)]
    pairs = zip((*one.arrays()[:6], *names[0]), (*other.arrays()[:6], *names[1]), strict=True)
    return all(np.array_equal(left, right) for left, right in pairs)
