"""docs/ring.md and the tables of the docstrings, held against the code."""

from __future__ import annotations

import re
import struct
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from winkformats.ringpage import metadata, page
from winkformats.ringpage.metadata import SETTINGS, STATE
from winkformats.ringpage.page import HEAD
from winkfs.stores.ringpage import Ring, create

pytestmark = pytest.mark.in_memory
PAGE = (Path(__file__).parents[2] / "docs/ring.md").read_text()
FORMS = [
    (metadata, "The settings do not change", "Settings, which never change", SETTINGS),
    (metadata, "Of the two states", "State; of the two", STATE),
    (page, "", "A page:", HEAD),
]


def of_docstring(module: ModuleType, behind: str) -> list[list[str]]:
    """The rows of the first table with types of a docstring behind a text."""
    lines = (
        module.__doc__.partition(behind)[2].splitlines() if behind else module.__doc__.splitlines()
    )
    start = next(
        i for i, line in enumerate(lines) if line.split()[:3] == ["offset", "size", "type"]
    )
    rows = lines[start + 1 : start + 1 + lines[start + 1 :].index("")]
    cut = [re.split(r" {2,}", row.strip()) for row in rows]
    return [row for row in cut if row[0].isdecimal() and row[1].isdecimal()]


def of_page(behind: str) -> list[list[str]]:
    """The rows of the first table of the page behind a text."""
    lines = PAGE[PAGE.index(behind) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| offset "))
    rows = lines[start + 2 :]
    count = next(i for i, line in enumerate([*rows, ""]) if not line.startswith("|"))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[:count]]


@pytest.mark.parametrize(
    ("module", "behind", "heading", "form"), FORMS, ids=lambda one: str(one)[:9]
)
def test_the_tables_are_those_of_the_structs(
    module: ModuleType, behind: str, heading: str, form: struct.Struct
) -> None:
    rows = of_docstring(module, behind)
    last = rows[-1] if rows[-1][3] == "crc" else None
    fields = rows[:-1] if last else rows
    assert sum(struct.calcsize("<" + row[2]) for row in fields) == form.size
    assert struct.Struct("<" + "".join(row[2] for row in fields)).size == form.size
    for row, following in pairwise(rows):
        assert int(row[0]) + int(row[1]) == int(following[0])
        assert struct.calcsize("<" + row[2]) == int(row[1])
    assert [(row[0], row[1], row[3]) for row in rows] == [
        tuple(row[:3]) for row in of_page(heading)
    ]


def test_the_fields_are_laid_out_as_documented(tmp_path: Path) -> None:
    made = create(tmp_path / "ring", pages=3, page_size=8192, record_size=99, full="refuse")
    with Ring(tmp_path / "ring", "a") as ring:
        ring.push_many([b"abc", b"de"])
        ring.flush()
        ring.pop()
    raw = (tmp_path / "ring").read_bytes()

    def read(heading: str, start: int) -> dict[str, int]:
        rows = of_page(heading)
        return {
            name: int.from_bytes(raw[start + int(at) : start + int(at) + int(size)], "little")
            for at, size, name, *_ in rows
        }

    for start in (0, 2048):
        assert read("Settings, which never change", start) == {
            "magic": int.from_bytes(b"WINKRING", "little"), "version": 1, "page_size": 8192,
            "page_count": 3, "largest": 99, "flags": 1, "ring": made.ring,
            "crc": read("Settings, which never change", 0)["crc"],
        }  # fmt: skip
    states = [read("State; of the two", start) for start in (1024, 3072)]
    state = max(states, key=lambda state: state["turn"])
    assert state["turn"] % 2 == states.index(state)
    del state["turn"], state["crc"]
    assert state == {
        "ring": made.ring, "num_pages": 1, "looped": 0, "clean": 1, "reserved": 0, "tail": 1,
        "next": 2, "written": 8192 + 2 * 4096, "stored": 5, "overwritten": 0,
    }  # fmt: skip
    head = read("A page:", 4096)
    del head["crc"]
    assert head == {
        "sequence": 1, "flags": 0, "ring": made.ring, "records": 2, "number": 0, "first": 0,
        "used": 9,
    }  # fmt: skip
    assert raw[4096 + 32 :] == b"\3\0abc\2\0de".ljust(8192 - 32, b"\0")
    for at, size, _ in of_page("## Bytes"):
        assert (int(at), int(size)) in {(at, 512) for at in (*metadata.PLACES, *metadata.TURNS)}


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(PAGE.split("```python\n")[1].split("```")[0], {})
