"""What the tests of columns share: a container as a plain loop has it, and its columns."""

from __future__ import annotations

from pathlib import Path

import winkfs
from winkfs.container.table import FileTable
from winkfs.names import to_bytes


def listing(base: Path) -> list[tuple[bytes, int, int, int]]:
    """What a plain loop finds: name, size, mtime, ftype in disk order."""
    with winkfs.open(base) as c:
        return [(to_bytes(e.name), e.size, e.mtime_ns, e.ftype) for e in c.scan()]


def rows(columns: FileTable) -> list[tuple[bytes, int, int, int]]:
    names = [columns.name(i) for i in range(len(columns))]
    assert columns.names == names
    values = (columns.size.tolist(), columns.mtime.tolist(), columns.ftype.tolist())
    return list(zip(names, *values, strict=True))
