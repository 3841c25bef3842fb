"""Arguments of the Python face: what is wrong with them is said before anything is changed."""

from __future__ import annotations

import errno
import math
from typing import Any

from winkfs.container.ondisk.inode import CTIME, INT64, UINT32, Attrs, FileType
from winkfs.errors import Refusal
from winkfs.names import Name, to_bytes, to_str
from winkfs.units import NANO


def as_content(data: Any) -> bytes:
    """Bytes-like -> bytes; anything else is a TypeError, for bytes(5) is five NULs."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"content is bytes, not {type(data).__name__}")
    return bytes(data)


def to_ns(mtime: float | None) -> int | None:
    """Seconds -> nanoseconds, the nearest one. Raises ValueError for NaN and infinity."""
    if mtime is None or isinstance(mtime, int):
        return None if mtime is None else mtime * NANO
    if not -INT64 < mtime < INT64:
        raise ValueError(f"{mtime} is no time")
    whole = math.floor(mtime)  # a float holds today's nanoseconds to the next 256 only
    return whole * NANO + round((mtime - whole) * NANO)


def checked_ns(ns: int | None) -> int | None:
    """Nanoseconds, None: now. Raises ValueError beyond 64 bits (the years 1677 to 2262)."""
    if ns is not None and not -INT64 - 1 <= ns <= INT64:
        raise ValueError(f"mtime of {ns} ns does not fit into 64 bits (the years 1677 to 2262)")
    return ns


def nearest_ns(ns: int) -> int:
    """The time nearest to this one that a file can have, as other file systems do it."""
    return min(max(ns, -INT64 - 1), INT64)


def check_ftype(ftype: int) -> int:
    if not 0 <= ftype <= 255:
        raise ValueError(f"ftype is 0 to 255, not {ftype}")
    return ftype


def check_directory(ftype: int, name: Name, size: int) -> None:
    """A directory has no content, and its name no slash at the end. Raises OSError EISDIR."""
    if ftype == FileType.DIR and (size or to_bytes(name).endswith(b"/")):
        what = "a directory has no content, and no / at the end of its name"
        raise Refusal(what, to_str(name), number=errno.EISDIR)


def check_size(size: int, name: Name) -> None:
    if size > INT64:
        raise Refusal("a file cannot be that large", to_str(name), number=errno.EFBIG)


def check_attrs(attrs: Attrs) -> Attrs:
    """Raises ValueError or TypeError for attributes that no inode can hold."""
    for what, number in (("uid", attrs.uid), ("gid", attrs.gid)):
        if not 0 <= number <= UINT32:
            raise ValueError(f"{what} is 0 to {UINT32}, not {number}")
    if CTIME in attrs.xattrs:
        raise ValueError(f"{CTIME.decode()} is no extended attribute: the time of the last change")
    for name, value in attrs.xattrs.items():
        if not isinstance(name, bytes) or not isinstance(value, bytes):
            raise TypeError("names and values of extended attributes are bytes")
        if not 1 <= len(name) <= 65_535 or len(value) > UINT32:
            raise ValueError(f"extended attribute {name[:40]!r} is too long")
    return attrs
