"""What a user sees of a file: its Stat, and an Entry of a scan, which can also be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from winkfs.settings import NANO


def to_bytes(name: str | bytes) -> bytes:
    """A name as the container has it."""
    if isinstance(name, bytes):
        return name
    if not isinstance(name, str):
        raise TypeError(f"a name is str or bytes, not {type(name).__name__}")
    return name.encode("utf-8", "surrogateescape")


def to_str(name: bytes | str | os.PathLike[str]) -> str:
    """A name as Python has it: UTF-8, other bytes as surrogates."""
    if isinstance(name, bytes):
        return name.decode("utf-8", "surrogateescape")
    return os.fspath(name)


@dataclass(frozen=True, slots=True)
class Stat:
    """A file's metadata.

    size      bytes
    mtime_ns  nanoseconds since the epoch; whole seconds in containers without MTIMENS
    ftype     winkfs.FileType
    mode      permission bits
    """

    name: str
    fileid: int
    size: int
    mtime_ns: int
    ftype: int
    mode: int
    uid: int
    gid: int

    @property
    def mtime(self) -> float:
        """Seconds since the epoch; an int where it is a whole number of them."""
        whole, rest = divmod(self.mtime_ns, NANO)
        return whole if rest == 0 else self.mtime_ns / NANO


@dataclass(frozen=True, slots=True)
class Entry(Stat):
    """A file met by a scan. `read` gives its content as of the scan."""

    _read: Callable[[], bytes] = field(repr=False, compare=False)

    def read(self) -> bytes:
        """The whole content. Raises CorruptError."""
        return self._read()
