"""docs/logstore.md and the tables of the docstrings, held against the code."""

from __future__ import annotations

import re
import struct
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from winkformats.disk.memory import MemoryStorage
from winkformats.logstore import datafiles, entry, index, layout

PAGE = (Path(__file__).parents[2] / "docs/logstore.md").read_text()
FORMS = {
    layout: ("`logstore`, 48 bytes:", layout.FORM),
    entry: ("A data file:", entry.HEADER),
    index: ("## The saved table", index.HEAD),
    datafiles: ("## The list of data files", datafiles.HEAD),
}


def docstring_rows(module: ModuleType) -> list[list[str]]:
    """The rows of offsets at the beginning of a docstring."""
    lines = module.__doc__.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == ["offset"])
    return [
        re.split(r" {2,}", line.strip())
        for line in lines[start + 1 :][: lines[start + 1 :].index("")]
    ]


def page_rows(heading: str) -> list[list[str]]:
    """The rows of the first table of the page behind a heading."""
    rows = PAGE.partition(heading)[2].partition("|---|\n")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.parametrize("module", FORMS, ids=lambda module: module.__name__)
def test_the_offsets_are_those_of_the_struct(module: ModuleType) -> None:
    heading, form = FORMS[module]
    rows = docstring_rows(module)
    assert form.format == ">" + "".join(row[2] for row in rows)
    for row, following in pairwise(rows):
        assert int(row[0]) + int(row[1]) == int(following[0])
        assert struct.calcsize(">" + row[2]) == int(row[1])
    assert int(rows[-1][0]) + int(rows[-1][1]) == form.size
    told = [(row[0], row[1], row[2]) for row in page_rows(heading)]
    assert told[: len(rows)] == [(row[0], row[1], row[3]) for row in rows]


def test_the_entries_are_those_of_the_code() -> None:
    rows = page_rows("begin with the byte of their kind")
    kinds = {row[0]: int(row[1]) for row in rows}
    assert kinds == {name: getattr(entry, name) for name in kinds} and len(kinds) == 8
    sizes = {name: 1 + sum(map(int, re.findall(r": (\d+)", text))) for name, _, text in rows}
    assert sizes["COMMIT"] == sizes["ROLLBACK"] == entry.MARK.size
    assert sizes["RECORD"] == entry.HEAD.size == len(entry.record(1, b""))
    assert sizes["BLOB"] == entry.BLOB_HEAD.size == len(entry.Blob(1, 2, 3).encode(4))
    assert len(entry.commit(1, 2, 3, 4)) == entry.MARK.size
    said = [
        line.split()[:2] for line in entry.__doc__.splitlines() if re.match(r"    [A-Z]+ ", line)
    ]
    assert {name: int(kind) for name, kind in said} == kinds


def test_the_tables_of_the_index_are_laid_out_as_documented() -> None:
    import numpy as np

    positions, lengths = np.arange(5, dtype=np.uint64) + 7, np.arange(5, dtype=np.uint32) + 9
    storage = MemoryStorage()
    index.write(storage, index.Head(1, 2, 3, 5, 4), positions, lengths)
    data = bytes(storage.data)
    assert struct.unpack_from(">5Q", data, 52) == (7, 8, 9, 10, 11)
    assert struct.unpack_from(">5I", data, 52 + 8 * 5) == (9, 10, 11, 12, 13)
    assert len(data) == 52 + 12 * 5 + 4
    assert [row[0] for row in page_rows("## The saved table")][-3:] == ["52", "52 + 8n", "52 + 12n"]
    assert (entry.IS_BLOB, entry.IS_NULL) == (1 << 31, 1 << 30)


def test_the_numbers_of_the_page_are_those_of_a_new_store() -> None:
    made = layout.Layout.new()
    assert (made.offset_bits, made.file_bits, made.generation_bits) == (27, 37, 16)
    assert (made.largest, made.cutoff, made.every) == (128 << 20, 64 << 10, 8)
    assert layout.LARGEST == 2 << 30 and entry.RECIDS == 1 << 31


@pytest.mark.parametrize("used, files, oldest", [
    ([], [], 0),
    ([0], [0], 0),
    ([0, 1], [0, 1], 0),
    ([0, 1, 15], [0, 1, 15], 15),
    ([14, 15, 0], [14, 15], 14),
    ([3, 5], [5], 5),  # 3 is what a power cut brought back
    ([5, 3], [3, 5], None),
    ([1], [0], None),
    (list(range(16)), [0], None),
])  # fmt: skip
def test_the_oldest_generation_is_the_one_behind_the_hole(
    used: list[int], files: list[int], oldest: int | None
) -> None:
    made = layout.Layout.new(1 << 20, file_bits=8, generation_bits=4)
    numbers = [16 * generation + 3 for generation in files]
    if oldest is None:
        with pytest.raises(ValueError):
            made.oldest(used, numbers)
    else:
        assert made.oldest(used, numbers) == oldest


def test_positions_and_ages_are_cyclic() -> None:
    made = layout.Layout.new(1 << 20, file_bits=8, generation_bits=4)
    assert made.split(made.position(200, 12345)) == (200, 12345)
    assert made.following(255) == 0
    assert [made.age(number, 15) for number in (240, 255, 0, 3)] == [0, 15, 16, 19]
    assert [made.generation(number) for number in (0, 15, 16, 255)] == [0, 0, 1, 15]


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(PAGE.partition("```python\n")[2].partition("```")[0], {})
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == sorted(
        re.findall(r"^\| `([a-z.]+)(?:/\w)?` \|", PAGE, re.MULTILINE)
    )


@pytest.mark.parametrize("bit", range(0, 8 * 48, 5))
def test_a_flipped_bit_of_the_settings_is_reported(bit: int) -> None:
    data = bytearray(layout.Layout.new().encode())
    data[bit >> 3] ^= 1 << (bit & 7)
    with pytest.raises(layout.FormatError):
        layout.Layout.decode(bytes(data), file="logstore")
