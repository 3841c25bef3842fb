"""Rows: the files of stores by number."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import winkfs
from winkfs.loaders import Rows

pytestmark = pytest.mark.in_memory


def made(base: Path, count: int = 50) -> str:
    """Return the path of a container with files of 0 to count - 1 bytes."""
    with winkfs.create(base, columns={"lang": "string", "n": "int64"}) as c:
        for i in range(count):
            columns = {"lang": "de" if i % 2 else "fr", "n": i} if i % 5 else {}
            c.put(f"docs/{i:03}.txt", bytes([i % 256]) * i, mtime_ns=i * 10**9, columns=columns)
        c.put("a directory/b.txt", b"inside")
        c.delete("a directory/b.txt")
        c.mkdir("empty")
    return str(base)


def test_rows_are_the_files_in_disk_order(tmp_path: Path) -> None:
    rows = Rows(made(tmp_path / "c"))
    assert len(rows) == 50
    assert rows[3] == {"path": "docs/003.txt", "content": b"\x03\x03\x03"}
    assert rows[-1]["path"] == "docs/049.txt"
    assert [row["path"] for row in rows[1:4]] == ["docs/001.txt", "docs/002.txt", "docs/003.txt"]
    assert [row["content"][:1] for row in rows.__getitems__([7, 3, 7])] == [
        b"\x07",
        b"\x03",
        b"\x07",
    ]
    assert [len(row["content"]) for row in rows] == list(range(50))
    assert rows.__getitems__(np.array([0, 49]))[0]["content"] == b""


def test_columns_and_where(tmp_path: Path) -> None:
    rows = Rows(made(tmp_path / "c"), where="lang = 'de'", columns=["n", "size"], content=False)
    assert [row["n"] for row in rows] == [i for i in range(50) if i % 2 and i % 5]
    assert rows[0] == {"path": "docs/001.txt", "n": 1, "size": 1}


def test_pickled_rows_are_the_rows(tmp_path: Path) -> None:
    rows = Rows(made(tmp_path / "c"))
    again = pickle.loads(pickle.dumps(rows))
    assert again[:] == rows[:]
    assert again.data == rows.data


@pytest.mark.parametrize("number", [50, -51])
def test_a_number_beyond_the_rows(tmp_path: Path, number: int) -> None:
    rows = Rows(made(tmp_path / "c"))
    with pytest.raises(IndexError, match=f"there is no row {number}: there are 50"):
        rows[number]
