"""Tables of a broker, of many rows: decoded block by block, with terms of each kind."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from winkformats.disk.paths import directory_of
from winkformats.errors import CorruptError
from winkformats.messagestore import ets

COUNT = 11
NAME = b"w\x03row"


def number(value: int) -> bytes:
    return bytes((ets.BYTE, value)) if 0 <= value < 256 else b"b" + struct.pack(">i", value)


def row(i: int) -> bytes:
    """(row, binary of 16 bytes, a number, an atom or a number)"""
    last = b"d\0\x05false" if i % 3 else number(-i)
    return b"\x83h\x04" + NAME + b"m\0\0\0\x10" + bytes([i]) * 16 + number(i * 100) + last


def item(term: bytes) -> bytes:
    checked = bytes(ets.SUM) if len(term) >= ets.CHECKED_FROM else b""
    return ets.ITEM.pack(len(term), ets.MARK) + checked + term


def table(rows: list[bytes], count: int | None = None) -> bytes:
    end = b"\x83l" + ets.END + b"count" + number(len(rows) if count is None else count)
    return ets.HEAD + item(b"\x83h\0") + b"".join(map(item, rows)) + item(end)


def read(folder: Path, data: bytes) -> ets.Table:
    (folder / "t").write_bytes(data)
    with directory_of(str(folder)).open("t") as storage:
        return ets.read_table(storage, "row")


@pytest.mark.parametrize("together", [1, 3, 100])
def test_rows_become_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(ets, "AT_ONCE", together)
    found = read(tmp_path, table([row(i) for i in range(COUNT)]))
    assert found.integers(1).tolist() == [i * 100 for i in range(COUNT)]
    some = np.arange(COUNT) % 3 == 0
    assert found.integers(2, some).tolist() == [-i for i in range(0, COUNT, 3)]
    assert found.binaries(0, 16, some) == b"".join(bytes([i]) * 16 for i in range(0, COUNT, 3))
    for wrong in (lambda: found.integers(2), lambda: found.binaries(0, 15, some)):
        with pytest.raises(ValueError, match="a field"):
            wrong()


def test_a_table_without_rows_has_none(tmp_path: Path) -> None:
    found = read(tmp_path, table([]))
    assert found.integers(3).tolist() == [] == list(found.binaries(0, 16, np.empty(0, bool)))


def test_a_large_row_has_a_checksum_of_its_size(tmp_path: Path) -> None:
    large = b"\x83h\x02" + NAME + b"m" + struct.pack(">I", 70_000) + b"x" * 70_000
    small = b"\x83h\x02" + NAME + b"m\0\0\0\x01x"
    found = read(tmp_path, table([small, large, small]))
    assert found.fields[0].size.tolist() == [1, 70_000, 1]


ROWS = [row(i) for i in range(COUNT)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (table(ROWS, COUNT + 1), "11 rows are there, of 12"),
        (table([*ROWS[:5], ROWS[5].replace(b"row", b"cow"), *ROWS[6:]]), "a row that is no row"),
        (table([*ROWS[:5], ROWS[5] + b"a\1", *ROWS[6:]]), "a row that is no row"),
        (table([*ROWS[:5], ROWS[5][:-3], *ROWS[6:]]), "a row that is no row"),
        (table([b"\x83h\x02" + NAME + b"m\xff\xff\xff\xffx"]), "a row that is no row"),
        (table([b"\x83h\x02" + NAME + b"n\1\0x"]), "a row that is no row"),
        (table([b"\x83h\0"]), "a row that is no row"),
        (table(ROWS)[:-9], "an item that is none"),
        (ets.HEAD + item(b"\x83h\0"), "it has no end"),
        (b"\1\2\3\4\0\0\0\0" + table(ROWS)[8:], "its header is wrong"),
    ],
)
@pytest.mark.parametrize("together", [3, 100])
def test_another_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, text: str, together: int
) -> None:
    monkeypatch.setattr(ets, "AT_ONCE", together)
    with pytest.raises(CorruptError, match=text):
        read(tmp_path, data)
