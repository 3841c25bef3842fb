"""The page of the queue: its tables of bytes, its example, and the modules that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_message_page import cut_out

from winkformats.ledgerq import cursors
from winkfs.stores.ledgerq import HIGH, Queue, create

pytestmark = pytest.mark.in_memory
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/ledgerq.md").read_text()


def fields(heading: str) -> dict[str, tuple[int, int]]:
    """name -> offset and size, of the first table with offsets behind a text."""
    lines = PAGE[PAGE.index(heading) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| offset "))
    found, at = {}, 0
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        offset, size, name, _ = (cell.strip() for cell in line.strip("|").split("|", 3))
        assert int(offset) == at, name
        found[name] = at, int(size)
        at += int(size)
    return found


def numbers(data: bytes, table: dict[str, tuple[int, int]]) -> dict[str, int]:
    return {name: int.from_bytes(cut_out(data, where), "little") for name, where in table.items()}


def test_the_tables_of_the_page_are_what_is_written(tmp_path: Path) -> None:
    path = str(tmp_path / "q")
    create(path)
    with Queue(path, "a") as queue:
        queue.push(b"body", priority=HIGH)
        assert queue.pop() is not None
        queue.push(b"x")
        sent = queue.read(1)
    raw = {file.name[-4:]: file.read_bytes() for file in Path(path).iterdir()}
    table = fields("A segment begins")
    head = numbers(raw[".log"], table)
    assert sum(table["checksum"]) == 64 and head["magic"] == 0x4C445151
    wanted = {"version": 1, "flags": 0, "base": 1, "min_id": 1, "max_id": 2, "reserved": 0}
    assert {name: head[name] for name in wanted} == wanted
    table = fields("An entry is")
    entry = raw[".log"][64:]
    assert numbers(entry, table) == {
        "length": 31, "kind": 1, "flags": 16, "id": 1, "timestamp": sent.timestamp,
    }  # fmt: skip
    assert entry[sum(table["timestamp"]) :][:5] == b"\2body" and entry[31:35] == bytes(4)
    table = fields("`BASE.idx` has 32 bytes")
    found = numbers(raw[".idx"], table)
    assert sum(table["checksum"]) == 32 and len(raw[".idx"]) == 32 + 24
    assert (found["magic"], found["version"], found["count"]) == (0x4C445149, 1, 1)
    table = fields("`metadata.dat`:")
    metadata = numbers((tmp_path / "q/metadata.dat").read_bytes(), table)
    assert metadata == {"version": 1, "next_id": 3, "read_id": 2, "reserved": 0}
    table = fields("`cursors.dat` has a header of 20 bytes")
    assert sum(table["checksum"]) == cursors.STRIDE and cursors.HEADER.size == 20
    rows = (tmp_path / "q/cursors.dat").read_bytes()[20:]
    kinds = [numbers(rows[at:], table)["kind"] for at in range(0, len(rows), cursors.STRIDE)]
    assert cursors.AT in kinds and cursors.WRITTEN in kinds


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(PAGE.split("```python\n")[1].split("```")[0], {})


def test_the_modules_of_the_page_exist() -> None:
    named = re.findall(r"`((?:winkfs|formats)/[\w/]+\.py)`", PAGE)
    assert len(named) > 5 and all((ROOT / path).exists() for path in named)
