"""A tree of small files like those of a system's sources, made once of what this machine has: the
libraries of Python, documentation, headers. Copies of them fill it up to the count asked for."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDERS: Final = (
    sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "/usr/lib/python3",
    "/usr/share/doc", "/usr/include", "/usr/share/man", "/usr/share/zoneinfo", "/usr/share/perl",
)  # fmt: skip
LARGEST: Final = 256 << 10  # bytes: sources have no larger ones


def make(place: Path, count: int) -> tuple[Path, str]:
    """A tree of `count` files below `place`, and what it is made of. It is made only once."""
    tree, told = place / f"sources-{count}", place / f"sources-{count}.txt"
    if not told.exists():
        shutil.rmtree(tree, ignore_errors=True)
        told.write_text(_fill(tree, count))
    return tree, told.read_text()


def _fill(tree: Path, count: int) -> str:
    found = list(dict.fromkeys(_sources()))
    total = 0
    for i in range(count):
        source = found[i % len(found)]
        path = tree / f"copy{i // len(found)}" / source.relative_to("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
        total += path.stat().st_size
    return (
        f"{count:,} files, {total / 1e6:,.0f} MB: the {len(found):,} files of at most "
        f"{LARGEST >> 10} KiB in this machine's Python, documentation and headers, and copies"
    )


def _sources() -> Iterator[Path]:
    for folder in FOLDERS:
        for parent, folders, names in os.walk(os.path.realpath(folder)):
            folders.sort()
            for name in sorted(names):
                path = Path(parent, name)
                if path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST:
                    yield path
