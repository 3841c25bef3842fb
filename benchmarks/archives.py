"""A tree of files as one archive: ours, and the rivals, each written until it is durable.

    python archives.py {zip,deflate,sqlar} TREE TARGET

writes a zip file (contents stored, or deflated) or an SQLite archive (contents stored; one
transaction): a process of its own, as the tools of the others are.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filesystems import WINKFS

Command = list[str | Path]
SQLAR: Final = """CREATE TABLE sqlar(
    name TEXT PRIMARY KEY, mode INT, mtime INT, sz INT, data BLOB)"""


@dataclass(frozen=True)
class Maker:
    """program: what must be installed, "" where nothing; command: from tree and target."""

    program: str
    command: Callable[[Path, Path], Command]

    def make(self, tree: Path, target: Path) -> None:
        """Write the archive, durable."""
        subprocess.run(self.command(tree, target), check=True, stdout=subprocess.DEVNULL)
        for path in target.parent.glob(f"{target.name}*"):
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _ours(tree: Path, target: Path) -> Command:
    return [WINKFS, "pack", tree, target]


def _tar(tree: Path, target: Path) -> Command:
    return ["tar", "cf", target, "-C", tree, "."]


def _squashfs(*options: str) -> Callable[[Path, Path], Command]:
    return lambda tree, target: [
        "mksquashfs", tree, target, "-quiet", "-no-progress", "-noappend", *options,
    ]  # fmt: skip


def _erofs(*options: str) -> Callable[[Path, Path], Command]:
    return lambda tree, target: ["mkfs.erofs", *options, target, tree]


def _here(kind: str) -> Callable[[Path, Path], Command]:
    return lambda tree, target: [sys.executable, __file__, kind, tree, target]


STORED: Final = ("-noI", "-noD", "-noF", "-noX")
MAKERS: Final[Mapping[str, Maker]] = {
    "winkfs": Maker("", _ours),
    "tar": Maker("tar", _tar),
    "zip, stored": Maker("", _here("zip")),
    "zip, deflate": Maker("", _here("deflate")),
    "SQLite archive, stored": Maker("", _here("sqlar")),
    "SquashFS, stored": Maker("mksquashfs", _squashfs(*STORED)),
    "SquashFS, gzip": Maker("mksquashfs", _squashfs()),
    "EROFS, stored": Maker("mkfs.erofs", _erofs()),
    "EROFS, lz4": Maker("mkfs.erofs", _erofs("-zlz4")),
}


def _files(tree: Path) -> Iterator[tuple[str, Path]]:
    """Paths below the tree, in the order of their names."""
    for parent, folders, names in os.walk(tree):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            yield path.relative_to(tree).as_posix(), path


def write_zip(tree: Path, target: Path, method: int) -> None:
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, path in _files(tree):
            archive.write(path, name)


def write_sqlar(tree: Path, target: Path) -> None:
    """As `sqlite3 -A` does, save that nothing is compressed."""
    target.unlink(missing_ok=True)
    database = sqlite3.connect(target)
    with database:
        database.execute(SQLAR)
        database.executemany("INSERT INTO sqlar VALUES (?, ?, ?, ?, ?)", map(_row, _files(tree)))
    database.close()


def _row(file: tuple[str, Path]) -> tuple[str, int, int, int, bytes]:
    name, path = file
    found, data = path.stat(), path.read_bytes()
    return name, found.st_mode, int(found.st_mtime), len(data), data


if __name__ == "__main__":
    kind, tree, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if kind == "sqlar":
        write_sqlar(tree, target)
    else:
        write_zip(tree, target, {"zip": zipfile.ZIP_STORED, "deflate": zipfile.ZIP_DEFLATED}[kind])
