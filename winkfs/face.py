"""Face: what can be asked by name of whatever has files, on top of `read`, `stat` and `scan`."""

from __future__ import annotations

import errno
import fnmatch
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

from winkformats.errors import CorruptError
from winkfs.entry import Entry, Stat, to_str
from winkfs.errors import WinkError
from winkfs.fileobject import FileReader
from winkfs.inode import FileType

Name = str | bytes
Problem = Callable[[CorruptError], None]


class Face(ABC):
    """Containers and data sets."""

    changed_by: ClassVar[str]  # the methods that write, for a message

    @abstractmethod
    def read(self, name: Name, offset: int = 0, size: int = -1) -> bytes: ...

    @abstractmethod
    def stat(self, name: Name) -> Stat: ...

    @abstractmethod
    def scan(self, *, problem: Problem | None = None) -> Iterator[Entry]: ...

    def open_file(self, name: Name, mode: str = "rb") -> io.RawIOBase:
        """A seekable binary file object for reading; io.BufferedReader makes small reads fast."""
        if mode != "rb":
            raise ValueError(f"mode must be 'rb', not {mode!r}: use {self.changed_by}")
        return FileReader(self, to_str(name), self.stat(name).size)

    def readlink(self, name: Name) -> str:
        """raises  FileNotFoundError; OSError (EINVAL) where it is no symbolic link"""
        if self.stat(name).ftype != FileType.LINK:
            raise WinkError("not a symbolic link", to_str(name), number=errno.EINVAL)
        return to_str(self.read(name))

    def __iter__(self) -> Iterator[str]:
        return self.names()

    def names(self, glob: str | None = None, *, problem: Problem | None = None) -> Iterator[str]:
        """The names in the order of `scan`; `glob`: those that match, * also crossing /.

        problem  is told of each damaged inode, which is passed over; None: CorruptError
        """
        match = re.compile(fnmatch.translate(glob)).match if glob is not None else None
        for entry in self.scan(problem=problem):
            if match is None or match(entry.name):
                yield entry.name
