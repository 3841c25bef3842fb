"""Forks: what is open is told when it finds itself in a forked child.

Face: what can be asked by name of whatever has files, on top of `read`, `stat` and `scan`.
"""

from __future__ import annotations

import errno
import fnmatch
import io
import os
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal, Protocol, overload

from winkformats.errors import CorruptError
from winkfs.container.entry import Entry, FileReader, Stat, to_str
from winkfs.container.ondisk.inode import FileType
from winkfs.errors import WinkError


class Forked(Protocol):
    """What cannot go on in a child as it is: other threads held its lock, and are no more."""

    def after_fork(self) -> None: ...


_told: weakref.WeakSet[Forked] = weakref.WeakSet()


def tell_of_forks(handle: Forked) -> None:
    """Call `after_fork` of this one in each child, as long as anybody has it."""
    _told.add(handle)


def _after_fork() -> None:
    for handle in list(_told):
        handle.after_fork()


os.register_at_fork(after_in_child=_after_fork)


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

    @abstractmethod
    def read_into(self, name: Name, offset: int, into: memoryview) -> int:
        """Fill a buffer of bytes from `offset` -> how many, fewer only at the end of the file."""

    @overload
    def open_file(  # type: ignore[overload-overlap]  # of all ints 0 alone makes no buffer
        self, name: Name, mode: str = ..., *, buffering: Literal[0]
    ) -> FileReader: ...
    @overload
    def open_file(self, name: Name, mode: str = ..., buffering: int = ...) -> io.BufferedReader: ...
    def open_file(
        self, name: Name, mode: str = "rb", buffering: int = -1
    ) -> FileReader | io.BufferedReader:
        """A seekable binary file object for reading.

        buffering  bytes of its buffer; 0: none, each read asks the container; -1: as many as suit
        raises     FileNotFoundError; CorruptError; ValueError for another mode
        """
        if mode not in ("rb", "br"):
            use = f"use {self.changed_by}" if set(mode) & set("wax+") else "text: io.TextIOWrapper"
            raise ValueError(f"mode must be 'rb', not {mode!r}: {use}")
        raw = FileReader(self, to_str(name), self.stat(name).size)
        if buffering == 0:
            return raw
        return io.BufferedReader(raw, buffering if buffering > 1 else raw.best_buffer)

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
