"""Paths of names, by the text of docs/mount.md, without the product; and names that are odd."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TypeVar

File = TypeVar("File")
ITSELF = b"@file"  # what a file is called in the directory of its name


def part_of(part: bytes) -> bytes:
    bare = part.lstrip(b"@")
    odd = bare in (b"", b".", b"..") or (bare == b"file" and bare != part)
    return b"@" + part if odd else part


def path_of(name: bytes) -> bytes:
    return b"/".join(part_of(part) for part in name.split(b"/"))


def fits(path: bytes) -> bool:
    return len(path) < 4096 and all(len(part) < 256 for part in path.split(b"/"))


def shown(files: Mapping[bytes, File], directories: Iterable[bytes]) -> dict[bytes, File | None]:
    """What is at each path; None: a directory without an entry.

    directories  which of the names are entries of directories
    """
    entries = set(directories)
    paths = {path_of(name): name for name in files if fits(path_of(name))}
    above = {path[:at] for path in paths for at in range(len(path)) if path[at : at + 1] == b"/"}
    found: dict[bytes, File | None] = dict.fromkeys(above)
    for path, name in paths.items():
        inside = path in above and name not in entries
        found[path + b"/" + ITSELF if inside else path] = files[name]
    return found


# --- names that are odd ---

PARTS = [
    b"", b".", b"..", b"@", b"@@", b"@.", b"@..", b"@...", b"...", b"@file", b"@@file", b"file",
    b"@files", b"a", b".a", b"-", b"*", b"\xff\xfe", b" ", b"http:", b"@types",
]  # fmt: skip
URLS = [
    b"http://a.org", b"http://a.org/", b"http://a.org//", b"http://a.org/b", b"http://a.org/b/",
    b"http://a.org/b/c?d=e/f", b"https://a.org/../b", b"//a.org/b", b"s3://bucket/./key",
]  # fmt: skip
LONG = [  # parts that are as long as can be, or too long
    b"a" * 255, b"@" * 254, b"@" * 255, b"a" * 256, b"a/" + b"@" * 254 + b"/b",
]  # fmt: skip


def odd_names() -> list[bytes]:
    """Some hundreds that no two of are equal: all of one and two of these parts, and some of
    three."""
    ones = [(part,) for part in PARTS if part]
    twos = itertools.product(PARTS, PARTS)
    threes = itertools.product([b"", b"..", b"@", b"a", b"@file"], repeat=3)
    made = [b"/".join(parts) for parts in itertools.chain(ones, twos, threes)]
    return list(dict.fromkeys([*made, *URLS, *LONG]))
