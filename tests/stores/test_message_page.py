"""The page of the message store: its tables of bytes, and its example."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from winkfs.stores.messagestore import MessageStore, create

pytestmark = pytest.mark.in_memory
PAGE = (Path(__file__).parents[2] / "docs/messagestore.md").read_text()


def fields(heading: str) -> dict[str, tuple[int, int]]:
    """name -> offset and size, of the first table with offsets behind a text."""
    lines = PAGE[PAGE.index(heading) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| offset "))
    found = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        offset, size, name, _ = (cell.strip() for cell in line.strip("|").split("|", 3))
        found[name] = int(offset), int(size)
    return found


def cut_out(data: bytes, where: tuple[int, int]) -> bytes:
    return data[where[0] : where[0] + where[1]]


def test_the_tables_of_the_page_are_what_is_written(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    create(path)
    with MessageStore(path, "a") as store:
        store.write_many([(b"i" * 16, b"body"), (b"j" * 16, b"x")])
        store.write(b"i" * 16, b"")
        store.sync()
        store.remove(b"j" * 16)
        store.sync()
        journal = next(Path(path).glob("refs.*")).read_bytes()
        generation = store.core.generation
    raw, index = Path(path, "0.sqs").read_bytes(), Path(path, "index").read_bytes()
    head = fields("A segment of version 2 begins")
    assert cut_out(raw, head["magic"]) == b"RSQS" and cut_out(raw, head["version"]) == b"\2"
    assert sum(head["reserved"]) == 64 and not any(cut_out(raw, head["reserved"]))
    assert raw[64:] == b"\3" + (25).to_bytes(4) + b"i" * 16 + b"body" + (
        b"\3" + (22).to_bytes(4) + b"j" * 16 + b"x"
    )  # fmt: skip

    def number(data: bytes, where: tuple[int, int]) -> int:
        return int.from_bytes(cut_out(data, where), "little", signed=where[1] == 8)

    head = fields("Little-endian, save ids")
    assert cut_out(index, head["magic"]) == b"WINKMSGX"
    names = "generation", "last_v1", "next", "files", "messages", "flags"
    assert [number(index, head[name]) for name in names] == [generation + 1, -1, 1, 1, 1, 0]
    assert len(index) == sum(head["flags"]) + 16 + 32 + 8
    assert journal[:16] == b"WINKMSGJ" + generation.to_bytes(8, "little")
    row = fields("`refs.G` has a header")
    last = journal[-sum(row["checksum"]) :]
    names = "kind", "segment", "offset", "size", "references"
    assert [number(last, row[name]) for name in names] == [1, 0, 64 + 25, 22, 0]
    assert cut_out(last, row["id"]) == b"j" * 16
    assert number(last, row["checksum"]) == zlib.crc32(last[:36], zlib.crc32(journal[:16]))


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(PAGE.split("```python\n")[1].split("```")[0], {})
