"""Files of an export, which take their names together when all of them are whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from winkformats.disk.paths import directory_of, is_directory, make_directory
from winkformats.disk.storage import TEMPORARY, Directory
from winkfs.archive.archivewriter import NewFile
from winkfs.errors import FileExists, held_back

BUFFER: Final = 1 << 20  # bytes written at a time


class Outputs:
    """New files in one folder, under temporary names until `publish`.

    mine   returns whether a name is one that such an export makes; a file of such a name is in the
           way
    last   name of the file that makes the others valid, and is renamed last; None: there is none
    force  replace what is in the way
    """

    def __init__(
        self, folder: str, mine: Callable[[str], object], last: str | None, *, force: bool
    ) -> None:
        """Look at the folder. Raises FileExists; OSError."""
        self.folder, self._mine, self._last, self._force = folder or ".", mine, last, force
        self._new_folder = not is_directory(self.folder)
        if (old := self._old()) and not force:
            what = "is there already: name another place, or replace it with --force (force=True)"
            raise FileExists(what, os.path.join(folder, old[0]))
        self._made: list[str] = []
        self._open: NewFile | None = None

    def _old(self) -> list[str]:
        found = [] if self._new_folder else os.listdir(self.folder)
        return sorted(filter(self._mine, found))

    @property
    def _directory(self) -> Directory:
        return directory_of(self.folder)

    def create(self, name: str) -> NewFile:
        """Create the next file; the one before must be closed. Raises OSError."""
        directory = self._directory
        with held_back():
            make_directory(self.folder)
            directory.unlink(name + TEMPORARY)
            storage = directory.create_new(name + TEMPORARY)
            self._made.append(name)
            self._open = NewFile(storage)
        return self._open

    def finish(self, file: NewFile) -> None:
        """Make a file durable, and close it. Raises OSError."""
        file.storage.sync()
        file.close()

    def publish(self) -> None:
        """Give all files their names, the last one last. Raises FileExists; OSError."""
        directory, old = self._directory, self._old() if self._force else []
        if self._last in old:
            directory.unlink(self._last)
        for name in sorted(self._made, key=lambda name: name == self._last):
            if self._force:
                directory.rename(name + TEMPORARY, name)
                continue
            try:
                directory.give(name + TEMPORARY, name)
            except FileExistsError:
                where = os.path.join(self.folder, name)
                raise FileExists("another process has made it meanwhile", where) from None
        for name in set(old) - {*self._made, self._last}:
            directory.unlink(name)
        directory.sync()

    def abort(self) -> None:
        """Remove what has no name yet, and the folder if it is new and empty."""
        if self._open is not None:
            self._open.close()
        directory = self._directory
        for name in self._made:
            with contextlib.suppress(OSError):
                directory.unlink(name + TEMPORARY)
        if self._new_folder:
            with contextlib.suppress(OSError):
                os.rmdir(self.folder)
