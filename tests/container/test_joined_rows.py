"""Rows of files that are in tables: merged runs, and metadata that no inode should have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from winkfs import FileType, Stat
from winkfs.container.table import FileTable, joined
from winkfs.tables import table_of


def test_runs_are_closed_when_one_of_them_fails() -> None:
    """Not when the collector comes: a run has an open container."""
    left: list[str] = []

    def run(names: list[bytes], error: bool) -> Iterator[FileTable]:
        try:
            for name in names:
                yield FileTable.of([name], np.zeros(1, np.int64))
            if error:
                raise KeyError(name)
        finally:
            left.append(name.decode())

    each = [run([b"a", b"d"], False), run([b"b"], True), run([b"c"], False)]
    try:
        list(joined([*each]))
    except KeyError as error:
        assert sorted(left) == ["b", "c", "d"], error
    else:
        pytest.fail("no error")


@pytest.mark.parametrize("ftype", [-2, 256, 515, (1 << 63) - 1])
def test_a_type_that_cannot_be_is_an_unknown_one(ftype: int) -> None:
    """It leaves the other metadata of a row as they are."""
    rows = table_of([Stat("a", 3, 5, 7, ftype, 0o640, 11, 13, 17)])
    found = [column.item() for column in rows.stats((0, 0))]
    assert found == [3, 5, 7, FileType.UNKNOWN, 0o640, 11, 13, 17]
