"""Choice between the compiled path, if it was built, and the one in Python, its reference.

`code` is the compiled module; None: it is missing, or the environment has WINKFS_NATIVE=0. A
function with a fast path looks at `code` in each call; both paths give equal results, errors and
bytes included.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

VARIABLE: Final = "WINKFS_NATIVE"
VERSION: Final = 22  # of the C sources: a module built from others is not used


class Read(Protocol):
    """Function that reads a whole file of at most `most` bytes by its name -> False if there is
    none of that name; None: use the ordinary way."""

    def __call__(self, name: object, most: int = ..., /) -> bytes | Literal[False] | None: ...


class ReadAt(Protocol):
    """Function that reads a whole file of at most `most` bytes by the position of its inode; None:
    use the ordinary way."""

    def __call__(self, pos: int, most: int = ..., /) -> bytes | None: ...


Found = tuple[int, int, int, int, bytes | None, int, int]
"""FILEID, LSIZE, FTYPE, FMTIME; the bytes of the attributes, None: there are none, and where they
are; the position of the inode."""


if TYPE_CHECKING:
    from winkformats import _native

    class Native:
        """Type of the compiled module, which may be missing."""

        hash_each = staticmethod(_native.hash_each)
        hash_at = staticmethod(_native.hash_at)
        walk = staticmethod(_native.walk)
        lines = staticmethod(_native.lines)
        headed = staticmethod(_native.headed)
        find_many = staticmethod(_native.find_many)
        blocks = staticmethod(_native.blocks)
        paths = staticmethod(_native.paths)
        inodes = staticmethod(_native.inodes)
        contents = staticmethod(_native.contents)
        gather = staticmethod(_native.gather)
        table = staticmethod(_native.table)
        files = staticmethod(_native.files)
        reader = staticmethod(_native.reader)
        read_files = staticmethod(_native.read_files)
        names_in = staticmethod(_native.names_in)
        pairs = staticmethod(_native.pairs)
        encode = staticmethod(_native.encode)
        entries = staticmethod(_native.entries)


def built() -> type[Native] | None:
    """Return the compiled module; None if there is none for this Python and these sources."""
    try:
        found = importlib.import_module("winkformats._native")
    except ImportError:
        return None
    return cast("type[Native]", found) if getattr(found, "VERSION", 0) == VERSION else None


code: type[Native] | None = None if os.environ.get(VARIABLE) == "0" else built()


def name() -> str:
    """Return the name of the path that runs, for messages."""
    return "pure Python" if code is None else "compiled"
