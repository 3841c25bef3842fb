"""BASE.time as the original format has it: a mark only where an mtime is a multiple of TIMEMP."""

from __future__ import annotations

import struct
from collections.abc import Container
from pathlib import Path

from container_checks import path_of

from winkformats.disk.paths import open_file
from winkformats.kv.superblock import Superblock, read_superblock


def read_superblock_of(path: Path) -> Superblock:
    with open_file(str(path)) as storage:
        return read_superblock(storage)


def original_marks(
    base: Path, files: list[tuple[int, int]], timemp: int, only: Container[int] | None = None
) -> None:
    """Write BASE.time.

    files  of each: its mtime, and the position of its first entry
    only   mtimes that may be marked; None: all
    """
    marks, since = [], 0
    for mtime, position in files:
        may = mtime % timemp == 0 and (only is None or mtime in only)
        if may and (not marks or marks[-1][0] < mtime):
            marks.append((mtime, position))
            since = 0
        else:
            since += 1
    path = path_of(base, ".time")
    block = read_superblock_of(path)
    block |= {"ENTRIES": len(marks), "AENTRIES": len(marks), "TIMEMN": since}
    block |= {"TIMEMARK": marks[-1][0] if marks else 0, "LASTMT": files[-1][0]}
    block["FILESIZE"] = block["SYNCSIZE"] = block["SBSIZE"] + 16 * len(marks)
    path.write_bytes(block.encode() + b"".join(struct.pack(">qq", *mark) for mark in marks))
