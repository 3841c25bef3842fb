"""A source tree, and a tar file of it: sources and texts of this machine, in their directories.

Where the machine has fewer, all of them come again in another top directory.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDERS: Final = (
    sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "/usr/include", "/usr/share/doc",
    "/usr/lib/python3", "/usr/share/perl", "/usr/share/zoneinfo",
)  # fmt: skip
TOP: Final = "tree"
MOST: Final = 256 << 10  # bytes of a file: no libraries or archives
COMPILED: Final = (".pyc", ".so", ".a", ".o", ".jar", ".gz")


def make(place: Path, count: int) -> tuple[Path, str]:
    """The tar file, with `count` files, and what it is made of. It is made only once."""
    tar, told = place / f"sources-{count}.tar", place / f"sources-{count}.txt"
    if not told.exists():
        told.write_text(_fill(tar, count))
    return tar, told.read_text()


def tree(place: Path, count: int) -> tuple[Path, str]:
    """The files of that tar file, in a directory. They are made only once."""
    tar, told = make(place, count)
    there = place / f"sources-{count}"
    if not there.is_dir():
        new = there.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        with tarfile.open(tar) as archive:
            archive.extractall(new, filter="tar")
        new.rename(there)
    return there, told


def _fill(tar: Path, count: int) -> str:
    files = directories = size = 0
    with tarfile.open(tar, "w", format=tarfile.GNU_FORMAT) as archive:
        for path, name in _endless():
            member = archive.gettarinfo(path, name)
            member.type = tarfile.REGTYPE if member.islnk() else member.type
            if member.isdir():
                archive.addfile(member)
                directories += 1
                continue
            member.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(member, file)
            files, size = files + 1, size + member.size
            if files == count:
                break
    return (
        f"{files:,} files, {size / 1e6:,.0f} MB, and {directories:,} directories, made of the "
        "sources and texts of this machine (Python, headers, documentation)"
    )


def _endless() -> Iterator[tuple[Path, str]]:
    """Directories and files, each with its name in the tree, a directory before what is in it."""
    for copy in itertools.count():
        for folder in FOLDERS:
            top = f"{TOP}/copy{copy:02d}{folder}"
            for parent, folders, names in os.walk(folder):
                folders[:] = sorted(set(folders) - {"__pycache__"})
                if not (folders or names):
                    continue
                within = top + parent[len(folder) :]
                yield Path(parent), within
                for name in sorted(names):
                    path = Path(parent, name)
                    if (
                        not path.is_symlink() and path.is_file()
                        and path.suffix not in COMPILED and path.stat().st_size <= MOST
                    ):  # fmt: skip
                        yield path, f"{within}/{name}"
