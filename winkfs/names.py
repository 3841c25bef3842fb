"""Names: of files in a container, as bytes, text, keys and paths; and of a container's own files.

A glob is the shell's (`*`, `?`, `[...]`) against the whole name; `*` also crosses `/`, as in
`tar --wildcards` and unzip: `docs/*.html` takes `docs/a.html` and `docs/old/b.html`.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

Name = str | bytes | os.PathLike[str]
Choose = Callable[[str], object]
Value = TypeVar("Value", bytes, bytes | None)
MAX_NAME: Final = 65_000  # bytes of a name in a container
MAX_COMPONENT: Final = 255  # bytes of a name in a directory of the usual filesystems
MAX_PATH: Final = 4095  # bytes of a path that a system call takes

INODE: Final = b"/I0"  # suffix of the key of an inode, after the name
INODE_TEXT: Final = INODE.decode()

ESCAPE: Final = re.compile(rb"\\x([0-9a-f]{2})")
MARK: Final = b"\\x"
RAW: Final = frozenset({"name", "name_raw"})
"""Columns of a table that have names as they are."""

MANIFESTS: Final = "_winkfs"  # the folder that makes a folder a data set
DATA: Final = ".data"
OLD: Final = (".cols", ".names")  # derived files of older versions, not read any more
DERIVED: Final = (".idx", ".time", ".cat", *OLD)
"""The files that are derived from BASE.data; the one list of them."""
FILES: Final = (DATA, *DERIVED)
LOCK: Final = ".lock"
SUFFIXES: Final = (*FILES, LOCK)
TEMPORARIES: Final = (".tmp", ".new")
"""After a suffix: a file that is being written, and will replace the one without."""
PARTIAL: Final = ".partial"
"""Between BASE and a suffix: a container that `pack` has not finished."""

_WILD: Final = re.compile(r"[*?[]")


# --- bytes and text ---


def to_bytes(name: Name) -> bytes:
    """Return a name as the bytes that a container stores. Raises TypeError."""
    if isinstance(name, bytes):
        return name
    if not isinstance(name, str):
        if not isinstance(name, os.PathLike):
            raise TypeError(f"a name is str, bytes or a Path, not {type(name).__name__}")
        return os.fsencode(name)
    return name.encode("utf-8", "surrogateescape")


def to_str(name: Name) -> str:
    """Return a name as text: UTF-8, other bytes as surrogates."""
    if isinstance(name, bytes):
        return name.decode("utf-8", "surrogateescape")
    return os.fspath(name)


def to_strs(names: list[bytes]) -> list[str]:
    """Return many names as text, in one call of the decoder."""
    found = to_str(b"\0".join(names)).split("\0")
    return found if len(found) == len(names) else list(map(to_str, names))


def printable(line: str) -> str:
    """Return a text that fits on one line and is harmless for a terminal and a page: control
    characters and bytes that are not UTF-8 are escaped."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else _escape(c) for c in line)


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: the byte itself
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def clean(name: bytes) -> bytes:
    """Return a name without empty and `.` parts: people and archives write `./a`, `/a` and `a/` for
    a."""
    return b"/".join([part for part in name.split(b"/") if part and part != b"."])


# --- keys ---


def inode_key(name: bytes) -> bytes:
    """Return the key of a file's inode entry in BASE.data."""
    return name + INODE


def inode_keys(names: Sequence[Name]) -> list[bytes]:
    """Return the inode keys of many names; more or fewer than these if one has NUL in it.

    cost  one call of the encoder for all of them
    """
    try:
        if names and isinstance(names[0], bytes):
            return (INODE + b"\0").join([*names, b""])[:-1].split(b"\0")  # type: ignore[list-item]
        text = (INODE_TEXT + "\0").join(names)  # type: ignore[arg-type]
        return (text + INODE_TEXT).encode("utf-8", "surrogateescape").split(b"\0")
    except TypeError:  # some are str and some bytes, or paths
        keys = [to_bytes(name) + INODE for name in names]
        return [key for key in keys if b"\0" not in key]


def name_of(key: bytes) -> bytes:
    """Return the name of the file whose inode has this key: the inverse of `inode_key`."""
    return key[: -len(INODE)]


# --- names as paths in Spark: UTF-8, and \xNN for any other byte ---


def to_path(name: bytes) -> str:
    r"""Return a name, or several with NULs between them, as text from which `to_name` restores it.

    If a name itself has a backslash, x and two digits of lower-case hex, its backslash is written
    as `\x5c`.
    """
    if MARK in name:
        name = ESCAPE.sub(rb"\\x5cx\1", name)
    return name.decode("utf-8", "backslashreplace")


def to_name(path: bytes) -> bytes:
    """Return the name of a path, given in UTF-8: the inverse of `to_path`."""
    if MARK not in path:
        return path
    return ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), path)


def names_in(column: str, values: Iterable[Value]) -> list[Value]:
    r"""Return the names that a column of a table has, as text in UTF-8 or as bytes: the one rule of
    all that takes files from tables.

    column  `name` and `name_raw` have the names themselves; any other has paths, in which \xNN is
            a byte: see `to_name`
    """
    if column in RAW:
        return list(values)
    return [to_name(value) if value is not None else value for value in values]


# --- globs ---


def is_glob(pattern: str) -> bool:
    return _WILD.search(pattern) is not None


def literal_prefix(pattern: str) -> str:
    """Return the literal prefix that every matching name has."""
    return _WILD.split(pattern, maxsplit=1)[0]


def matcher(pattern: str) -> Callable[[str], object]:
    """Return a function that tests a whole name."""
    return re.compile(fnmatch.translate(pattern)).match


def excluder(patterns: Iterable[str]) -> Callable[[str], object] | None:
    """Return a function that tests whether a pattern matches the name, a trailing part of it, or a
    parent of that: `*.pyc` and `__pycache__` match at any depth, as in tar. None without patterns.
    """
    parts = [
        fnmatch.translate(pattern.removeprefix("./").rstrip("/"))[:-2]  # without its \Z (\z)
        for pattern in patterns
    ]
    if not parts:
        return None
    return re.compile("(?:^|/)(?:" + "|".join(parts) + r")(?:/|\Z)").search


def chooser(include: Choose | None, exclude: Choose | None) -> Choose | None:
    """Return a function that tests whether a name is included and not excluded; None: all are."""
    if include is None and exclude is None:
        return None

    def chosen(name: str) -> bool:
        return (include is None or bool(include(name))) and not (exclude and exclude(name))

    return chosen


# --- names as paths below a directory: of mounts, listdir and walk, and unpack ---
#
# A part of a name that no directory can have, b"", b"." or b"..", is prefixed with @; so is a part
# that looks as if it had been. A file whose name is also a directory of other names is called @file
# in that directory.

SELF: Final = b"@file"
OWN: Final = b"/" + SELF
AT: Final = ord("@")  # in a path that has none, nothing is escaped
NO_NAME: Final = b"\0"  # a byte that no name has

_ODD: Final = re.compile(rb"@*\.{0,2}|@+file")
_ODD_BETWEEN: Final = re.compile(rb"/(?:@*\.{0,2}|@+file)/")
_ESCAPED: Final = re.compile(rb"@+\.{0,2}|@+file")


def shown_part(part: bytes) -> bytes:
    """Return how a part of a name is called in a directory."""
    return b"@" + part if part[:1] in b"@." and _ODD.fullmatch(part) else part


def part_shown(shown: bytes) -> bytes:
    """Return the part of a name, the inverse of `shown_part`; NO_NAME for @file."""
    if shown[:1] != b"@" or not _ESCAPED.fullmatch(shown):
        return shown
    return NO_NAME if shown == SELF else shown[1:]


def shown(name: bytes) -> bytes:
    """Return the path of a name that is not a directory of other names: see `name_at`."""
    if not is_odd(name):
        return name
    return b"/".join(map(shown_part, name.split(b"/")))


def shown_all(names: list[bytes]) -> list[bytes]:
    """Return the paths of many names; the list itself if none is odd."""
    return list(map(shown, names)) if any_odd(names) else names


def name_below(path: bytes) -> bytes:
    """Return the prefix, without the last /, of the names below a directory: the inverse of
    `shown`; if no name can have this path, a prefix that no name has."""
    return b"/".join(map(part_shown, path.split(b"/"))) if AT in path else path


def name_at(path: bytes) -> bytes:
    """Return the name of the file at a path: the inverse of `shown`, also for a file that is in the
    directory of its name."""
    return name_below(path.removesuffix(OWN)) if AT in path else path


def key_at(path: bytes) -> bytes:
    """Return the key of the inode of the file at a path, see `inode_key`."""
    return (name_at(path) if AT in path else path) + INODE


def is_odd(name: bytes) -> bool:
    """Return whether a name differs from its path."""
    return any_odd([name])


def any_odd(names: list[bytes]) -> bool:
    """Return whether one of these names differs from its path. Cost: a few searches for all."""
    text = b"/" + b"/\0/".join(names) + b"/"
    if b"//" in text or b"/./" in text or b"/../" in text:
        return True
    return b"/@" in text and _ODD_BETWEEN.search(text) is not None


def path_of(name: Name) -> str:
    """Return the path that a name has on a mount, and unpacked. If other names are below it, the
    file is `@file` in the directory with this path."""
    if (
        type(name) is str
        and "/." not in name
        and "/@" not in name
        and "//" not in name
        and name[:1] not in ("", ".", "@", "/")
        and name[-1] != "/"
    ):  # true for most names, and quicker
        return name
    return to_str(shown(to_bytes(name)))


def name_of_path(path: Name) -> str:
    """Return the name of the file with this path on a mount, in `walk`, or unpacked: the inverse of
    `path_of`."""
    if type(path) is str and "@" not in path:  # true for most paths, and quicker
        return path
    return to_str(name_at(to_bytes(path)))


def part_fault(path: bytes) -> str | None:
    """Return why a part of a path is too long for a directory, or None."""
    longest = len(path)
    if longest > MAX_COMPONENT:
        longest = max(map(len, path.split(b"/")))
    if longest <= MAX_COMPONENT:
        return None
    return f"a part of its name has {longest:,} bytes, more than {MAX_COMPONENT}"


def length_fault(path: bytes) -> str | None:
    """Return why a path is too long for a mount, or None."""
    if len(path) > MAX_PATH:
        return f"its path has {len(path):,} bytes, more than {MAX_PATH:,}"
    return part_fault(path)


def path_fault(name: bytes) -> str | None:
    """Return why a name cannot be a path below a directory as it is, or None if it can."""
    for part in name.split(b"/"):
        if part in (b"", b".", b".."):
            return f'its name has a part "{part.decode()}"'
    return part_fault(name)


def bad_prefix(name: bytes) -> bytes | None:
    """Return None if a name has a path, else the prefix of names to skip: up to a /, or longer than
    the name if only its last part is too long."""
    if len(name) < MAX_COMPONENT or length_fault(shown(name)) is None:
        return None
    at = 0
    for part in name.split(b"/")[:-1]:
        at += len(part) + 1
        if len(shown_part(part)) > MAX_COMPONENT:
            return name[:at]
    return name + b"\0"


def within(path: bytes, directory: bytes) -> bool:
    """Return whether a path is that of a directory, or below it."""
    return path == directory or path.startswith(directory + b"/")


# --- the files of a container ---


def base_of(path: str | os.PathLike[str]) -> str:
    """Return BASE of a container, given BASE or BASE.data. Raises ValueError."""
    text = os.fspath(path).removesuffix(DATA)
    if text.endswith("/") or not text:
        raise ValueError(f"BASE is a path with a name at its end, not {text!r}")
    return text


# --- names in byte order ---


def after(prefix: bytes) -> bytes | None:
    """Return the first string after all that begin with a prefix; None: there is none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None
