"""Which path runs: the compiled one, where it was built, or the one in Python, which it follows.

`code` is the compiled module; None: there is none, or the environment has WINKFS_NATIVE=0. Who has
a fast path looks at it in each call, and gives the same answers without it, errors and bytes
included.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

VARIABLE: Final = "WINKFS_NATIVE"
VERSION: Final = 14  # of the C sources: one that was built of older ones is not used


class Read(Protocol):
    """Reads a whole file of at most `most` bytes by its name; False: there is none of that name;
    None: the ordinary way decides."""

    def __call__(self, name: object, most: int = ..., /) -> bytes | Literal[False] | None: ...


class ReadAt(Protocol):
    """The same by the position of its inode; None: the ordinary way decides."""

    def __call__(self, pos: int, most: int = ..., /) -> bytes | None: ...


Found = tuple[int, int, int, int, bytes | None, int, int]
"""FILEID, LSIZE, FTYPE, FMTIME; the bytes of the attributes, None: there are none, and where they
are; the position of the inode."""


if TYPE_CHECKING:
    from winkformats import _native

    class Native:
        """The compiled module: a module that may be missing has no type of its own."""

        hash_each = staticmethod(_native.hash_each)
        hash_at = staticmethod(_native.hash_at)
        walk = staticmethod(_native.walk)
        find_many = staticmethod(_native.find_many)
        inodes = staticmethod(_native.inodes)
        contents = staticmethod(_native.contents)
        reader = staticmethod(_native.reader)
        read_files = staticmethod(_native.read_files)
        names_in = staticmethod(_native.names_in)
        pairs = staticmethod(_native.pairs)
        encode = staticmethod(_native.encode)
        entries = staticmethod(_native.entries)


def built() -> type[Native] | None:
    """The compiled module; None: there is none for this Python, or one of other sources."""
    try:
        found = importlib.import_module("winkformats._native")
    except ImportError:
        return None
    return cast("type[Native]", found) if getattr(found, "VERSION", 0) == VERSION else None


code: type[Native] | None = None if os.environ.get(VARIABLE) == "0" else built()


def name() -> str:
    """What runs, for people."""
    return "pure Python" if code is None else "compiled"
