"""Names: of files in a container, as bytes, text, keys and paths; and of a container's own files.

A glob is the shell's (`*`, `?`, `[...]`) against the whole name; `*` also crosses `/`, as in
`tar --wildcards` and unzip: `docs/*.html` takes `docs/a.html` and `docs/old/b.html`.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable
from typing import Final

Name = str | bytes | os.PathLike[str]
MAX_NAME: Final = 65_000  # bytes of a name in a container
MAX_COMPONENT: Final = 255  # bytes of a name in a directory of the usual filesystems
MAX_PATH: Final = 4095  # bytes of a path: more, no program could say

INODE: Final = b"/I0"  # what the key of an inode has behind the name
INODE_TEXT: Final = INODE.decode()

ESCAPE: Final = re.compile(rb"\\x([0-9a-f]{2})")
MARK: Final = b"\\x"

MANIFESTS: Final = "_winkfs"  # the folder that makes a folder a data set
DATA: Final = ".data"
OLD: Final = (".cols", ".names")  # of older versions, which nobody reads any more
DERIVED: Final = (".idx", ".time", ".cat", *OLD)
"""The files that are made again from BASE.data; a new kind belongs here, and nowhere else."""
FILES: Final = (DATA, *DERIVED)
LOCK: Final = ".lock"
SUFFIXES: Final = (*FILES, LOCK)
TEMPORARIES: Final = (".tmp", ".new")
"""Behind a suffix: a file that is being written, and takes the place of the other."""
PARTIAL: Final = ".partial"
"""Between BASE and a suffix: of a container that `pack` has not finished."""

_WILD: Final = re.compile(r"[*?[]")


# --- bytes and text ---


def to_bytes(name: Name) -> bytes:
    """A name as the container has it."""
    if isinstance(name, bytes):
        return name
    if not isinstance(name, str):
        if not isinstance(name, os.PathLike):
            raise TypeError(f"a name is str, bytes or a Path, not {type(name).__name__}")
        return os.fsencode(name)
    return name.encode("utf-8", "surrogateescape")


def to_str(name: Name) -> str:
    """A name as Python has it: UTF-8, other bytes as surrogates."""
    if isinstance(name, bytes):
        return name.decode("utf-8", "surrogateescape")
    return os.fspath(name)


def to_strs(names: list[bytes]) -> list[str]:
    """`to_str` of many: one call."""
    found = to_str(b"\0".join(names)).split("\0")
    return found if len(found) == len(names) else list(map(to_str, names))


# --- keys ---


def inode_key(name: bytes) -> bytes:
    """The key of a file's inode entry in BASE.data."""
    return name + INODE


def name_of(key: bytes) -> bytes:
    """The name of the file whose inode has this key: the inverse of `inode_key`."""
    return key[: -len(INODE)]


# --- names as paths in Spark: UTF-8, and \xNN for a byte that is no part of it ---


def to_path(name: bytes) -> str:
    r"""A name, or several with NULs between them, as text that gives the name back.

    Where a name itself has a backslash, x and two digits of lower-case hex, its backslash is
    written as `\x5c`.
    """
    if MARK in name:
        name = ESCAPE.sub(rb"\\x5cx\1", name)
    return name.decode("utf-8", "backslashreplace")


def to_name(path: bytes) -> bytes:
    """The inverse of `to_path`, from the UTF-8 of the path."""
    if MARK not in path:
        return path
    return ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), path)


# --- globs ---


def is_glob(pattern: str) -> bool:
    return _WILD.search(pattern) is not None


def literal_prefix(pattern: str) -> str:
    """What every name that matches begins with."""
    return _WILD.split(pattern, maxsplit=1)[0]


def matcher(pattern: str) -> Callable[[str], object]:
    """-> a test of a whole name."""
    return re.compile(fnmatch.translate(pattern)).match


def excluder(patterns: Iterable[str]) -> Callable[[str], object] | None:
    """-> a test that is true where a pattern matches the name, a trailing part of it, or a parent
    of that: `*.pyc` and `__pycache__` match at any depth, as in tar. None without patterns."""
    parts = [
        fnmatch.translate(pattern.removeprefix("./").rstrip("/"))[:-2]  # without its \Z (\z)
        for pattern in patterns
    ]
    if not parts:
        return None
    return re.compile("(?:^|/)(?:" + "|".join(parts) + r")(?:/|\Z)").search


# --- names as paths below a directory ---


def path_fault(name: bytes) -> str | None:
    """Why a name cannot be a path below a directory, or None where it can."""
    for part in name.split(b"/"):
        if part in (b"", b".", b".."):
            return f'its name has a part "{part.decode()}"'
        if len(part) > MAX_COMPONENT:
            return f"a part of its name has {len(part):,} bytes, more than {MAX_COMPONENT}"
    return None


def bad_prefix(name: bytes) -> bytes | None:
    """None where a name can be a path, else what to pass over with it: a prefix up to a /, or more
    than the name where there is none."""
    if len(name) <= MAX_PATH and path_fault(name) is None:
        return None
    at = 0
    for part in name.split(b"/")[:-1]:
        at += len(part) + 1
        if path_fault(part):
            return name[:at]
    return name + b"\0"


def within(path: bytes, directory: bytes) -> bool:
    """Whether a path is that of a directory, or of what is below it."""
    return path == directory or path.startswith(directory + b"/")


# --- the files of a container ---


def base_of(path: str | os.PathLike[str]) -> str:
    """BASE of a container, given BASE or BASE.data."""
    text = os.fspath(path).removesuffix(DATA)
    if text.endswith("/") or not text:
        raise ValueError(f"BASE is a path with a name at its end, not {text!r}")
    return text


# --- names in byte order ---


def gallop(name_at: Callable[[int], bytes], name: bytes, low: int, high: int) -> tuple[int, int]:
    """Indices between which a name belongs, [low, high], from a `low` that is near, and not behind
    it. Cost: the steps grow with the logarithm of the distance from `low`."""
    step = 1
    while low < high:
        probe = min(low + step, high) - 1
        if name_at(probe) >= name:
            return low, probe
        low, step = probe + 1, 2 * step
    return low, high


def after(prefix: bytes) -> bytes | None:
    """The first string behind all that begin so; None: there is none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None
