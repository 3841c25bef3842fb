"""The pages of the stores and the tables of the docstrings, held against what is written."""

from __future__ import annotations

import re
import struct
import zlib
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from winkformats.disk.memory import MemoryStorage
from winkformats.ledgerq import cursors
from winkformats.logstore import datafiles, entry, index, layout
from winkformats.ringpage import metadata, page
from winkfs.stores import ledgerq, messagestore, ringpage
from winkfs.stores.logstore import LogStore

pytestmark = pytest.mark.in_memory
DOCS = Path(__file__).parents[2] / "docs"
QUEUE, MESSAGES, RING, LOG = (
    DOCS.joinpath(f"{name}.md").read_text()
    for name in ("ledgerq", "messagestore", "ring", "logstore")
)
# module, a text of its docstring before the table, page, a text before the table there, struct
TABLES = [
    (layout, "", LOG, "`logstore`, 48 bytes:", layout.FORM),
    (entry, "", LOG, "A data file:", entry.HEADER),
    (index, "", LOG, "## The saved table", index.HEAD),
    (datafiles, "", LOG, "## The list of data files", datafiles.HEAD),
    (metadata, "do not change", RING, "Settings, which never change", metadata.SETTINGS),
    (metadata, "Of the two states", RING, "State; of the two", metadata.STATE),
    (page, "", RING, "A page:", page.HEAD),
]
Fields = dict[str, slice]


def page_rows(text: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table of a page behind a heading."""
    table = text.partition(heading)[2].partition("|---|\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def docstring_rows(module: ModuleType, behind: str) -> list[list[str]]:
    """Return the rows with an offset and a size of the first such table behind a text."""
    text = module.__doc__ or ""
    table = re.split(r"\n +offset +size +type .*\n", text[text.index(behind) :])[1]
    rows = [re.split(r" {2,}", line.strip()) for line in table.partition("\n\n")[0].splitlines()]
    return [row for row in rows if row[0].isdecimal() and row[1].isdecimal()]


def fields(text: str, heading: str) -> Fields:
    """Return where each field is, by the first table behind a heading; none leaves a gap."""
    found, at = {}, 0
    for offset, size, name, *_ in page_rows(text, heading):
        assert int(offset) == at, name
        at += int(size)
        found[name] = slice(int(offset), at)
    return found


def numbers(data: bytes, table: Fields) -> dict[str, int]:
    return {name: int.from_bytes(data[where], "little") for name, where in table.items()}


@pytest.mark.parametrize(("module", "behind", "text", "heading", "form"), TABLES)
def test_the_tables_are_those_of_the_structs(
    module: ModuleType, behind: str, text: str, heading: str, form: struct.Struct
) -> None:
    rows = docstring_rows(module, behind)
    order = form.format[0]
    for row, following in pairwise(rows):
        assert int(row[0]) + int(row[1]) == int(following[0])
    for row in rows:
        assert struct.calcsize(order + row[2]) == int(row[1])
    types = re.sub(r"(\d)([BHIQ])", lambda found: found[2] * int(found[1]), form.format)
    assert order + "".join(row[2] for row in rows) in (types, types + "I")  # a checksum behind it
    assert [row[3] for row in rows if int(row[0]) >= form.size] in ([], ["crc"])
    reported = [row[:3] for row in page_rows(text, heading)]
    assert reported[: len(rows)] == [[row[0], row[1], row[3]] for row in rows]


# --- queue ---


def test_the_tables_of_the_queue_are_what_is_written(tmp_path: Path) -> None:
    path = str(tmp_path / "q")
    ledgerq.create(path)
    with ledgerq.Queue(path, "a") as queue:
        queue.push(b"body", priority=ledgerq.HIGH)
        assert queue.pop() is not None
        queue.push(b"x")
        sent = queue.read(1)
    raw = {file.name[-4:]: file.read_bytes() for file in Path(path).iterdir()}
    table = fields(QUEUE, "A segment begins")
    head = numbers(raw[".log"], table)
    assert table["checksum"].stop == 64 and head["magic"] == 0x4C445151
    wanted = {"version": 1, "flags": 0, "base": 1, "min_id": 1, "max_id": 2, "reserved": 0}
    assert {name: head[name] for name in wanted} == wanted
    table = fields(QUEUE, "An entry is")
    message = raw[".log"][64:]
    assert numbers(message, table) == {
        "length": 31, "kind": 1, "flags": 16, "id": 1, "timestamp": sent.timestamp,
    }  # fmt: skip
    assert message[table["timestamp"].stop :][:5] == b"\2body" and message[31:35] == bytes(4)
    table = fields(QUEUE, "`BASE.idx` has 32 bytes")
    found = numbers(raw[".idx"], table)
    assert table["checksum"].stop == 32 and len(raw[".idx"]) == 32 + 24
    assert (found["magic"], found["version"], found["count"]) == (0x4C445149, 1, 1)
    found = numbers(Path(path, "metadata.dat").read_bytes(), fields(QUEUE, "`metadata.dat`:"))
    assert found == {"version": 1, "next_id": 3, "read_id": 2, "reserved": 0}
    table = fields(QUEUE, "`cursors.dat` has a header of 20 bytes")
    assert table["checksum"].stop == cursors.STRIDE and cursors.HEADER.size == 20
    rows = Path(path, "cursors.dat").read_bytes()[20:]
    kinds = [numbers(rows[at:], table)["kind"] for at in range(0, len(rows), cursors.STRIDE)]
    assert cursors.AT in kinds and cursors.WRITTEN in kinds


# --- message store ---


def test_the_tables_of_the_message_store_are_what_is_written(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    messagestore.create(path)
    with messagestore.MessageStore(path, "a") as store:
        store.write_many([(b"i" * 16, b"body"), (b"j" * 16, b"x")])
        store.write(b"i" * 16, b"")
        store.sync()
        store.remove(b"j" * 16)
        store.sync()
        journal = next(Path(path).glob("refs.*")).read_bytes()
        generation = store.core.generation
    raw, saved = Path(path, "0.sqs").read_bytes(), Path(path, "index").read_bytes()
    table = fields(MESSAGES, "A segment of version 2 begins")
    assert raw[table["magic"]] == b"RSQS" and raw[table["version"]] == b"\2"
    assert table["reserved"].stop == 64 and not any(raw[table["reserved"]])
    assert raw[64:] == b"\3" + (25).to_bytes(4) + b"i" * 16 + b"body" + (
        b"\3" + (22).to_bytes(4) + b"j" * 16 + b"x"
    )  # fmt: skip
    table = fields(MESSAGES, "Little-endian, save ids")
    assert numbers(saved, table) == {
        "magic": int.from_bytes(b"WINKMSGX", "little"), "generation": generation + 1,
        "last_v1": (1 << 64) - 1, "next": 1, "files": 1, "messages": 1, "flags": 0,
    }  # fmt: skip
    assert len(saved) == table["flags"].stop + 16 + 32 + 8
    assert journal[:16] == b"WINKMSGJ" + generation.to_bytes(8, "little")
    table = fields(MESSAGES, "`refs.G` has a header")
    last = journal[-table["checksum"].stop :]
    assert numbers(last, table) == {
        "kind": 1, "segment": 0, "offset": 64 + 25, "size": 22, "references": 0,
        "id": int.from_bytes(b"j" * 16, "little"),
        "checksum": zlib.crc32(last[:36], zlib.crc32(journal[:16])),
    }  # fmt: skip


# --- ring ---


def test_the_tables_of_the_ring_are_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    made = ringpage.create(path, pages=3, page_size=8192, record_size=99, full="refuse")
    with ringpage.Ring(path, "a") as ring:
        ring.push_many([b"abc", b"de"])
        ring.flush()
        ring.pop()
    raw = path.read_bytes()
    table = fields(RING, "Settings, which never change")
    for start in (0, 2048):
        assert numbers(raw[start:], table) == {
            "magic": int.from_bytes(b"WINKRING", "little"), "version": 1, "page_size": 8192,
            "page_count": 3, "largest": 99, "flags": 1, "ring": made.ring,
            "crc": numbers(raw, table)["crc"],
        }  # fmt: skip
    table = fields(RING, "State; of the two")
    states = [numbers(raw[start:], table) for start in (1024, 3072)]
    state = max(states, key=lambda state: state["turn"])
    assert state["turn"] % 2 == states.index(state)
    assert state | {"turn": 0, "crc": 0} == {
        "ring": made.ring, "num_pages": 1, "looped": 0, "clean": 1, "reserved": 0, "turn": 0,
        "tail": 1, "next": 2, "written": 8192 + 2 * 4096, "stored": 5, "overwritten": 0, "crc": 0,
    }  # fmt: skip
    assert numbers(raw[4096:], fields(RING, "A page:")) | {"crc": 0} == {
        "sequence": 1, "flags": 0, "crc": 0, "ring": made.ring, "records": 2, "number": 0,
        "first": 0, "used": 9,
    }  # fmt: skip
    assert raw[4096 + 32 :] == b"\3\0abc\2\0de".ljust(8192 - 32, b"\0")
    for at, size, _ in page_rows(RING, "## Bytes"):
        assert (int(at), int(size)) in {(at, 512) for at in (*metadata.PLACES, *metadata.TURNS)}


# --- log store ---


def test_the_entries_of_the_log_are_those_of_the_code() -> None:
    rows = page_rows(LOG, "begin with the byte of their kind")
    kinds = {row[0]: int(row[1]) for row in rows}
    assert kinds == {name: getattr(entry, name) for name in kinds} and len(kinds) == 8
    sizes = {name: 1 + sum(map(int, re.findall(r": (\d+)", text))) for name, _, text in rows}
    assert sizes["COMMIT"] == sizes["ROLLBACK"] == entry.MARK.size
    assert sizes["RECORD"] == entry.HEAD.size == len(entry.record(1, b""))
    assert sizes["BLOB"] == entry.BLOB_HEAD.size == len(entry.Blob(1, 2, 3).encode(4))
    assert len(entry.commit(1, 2, 3, 4)) == entry.MARK.size
    answer = re.findall(r"^    ([A-Z]+) +(\d+) ", entry.__doc__ or "", re.MULTILINE)
    assert {name: int(kind) for name, kind in answer} == kinds


def test_the_tables_of_the_index_are_laid_out_as_documented() -> None:
    positions, lengths = np.arange(5, dtype=np.uint64) + 7, np.arange(5, dtype=np.uint32) + 9
    storage = MemoryStorage()
    index.write(storage, index.Head(1, 2, 3, 5, 4), positions, lengths)
    data = bytes(storage.data)
    assert struct.unpack_from(">5Q", data, 52) == (7, 8, 9, 10, 11)
    assert struct.unpack_from(">5I", data, 52 + 8 * 5) == (9, 10, 11, 12, 13)
    assert len(data) == 52 + 12 * 5 + 4
    rows = page_rows(LOG, "## The saved table")
    assert [row[0] for row in rows][-3:] == ["52", "52 + 8n", "52 + 12n"]
    assert (entry.IS_BLOB, entry.IS_NULL) == (1 << 31, 1 << 30)


def test_the_numbers_of_the_page_are_those_of_a_new_log() -> None:
    made = layout.Layout.new()
    assert (made.offset_bits, made.file_bits, made.generation_bits) == (27, 37, 16)
    assert (made.largest, made.cutoff, made.every) == (128 << 20, 64 << 10, 8)
    assert layout.LARGEST == 2 << 30 and entry.RECIDS == 1 << 31


def test_the_page_has_the_files_of_a_log(tmp_path: Path) -> None:
    with LogStore.create(str(tmp_path / "s")) as store:
        store.put(b"1")
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == sorted(
        re.findall(r"^\| `([a-z.]+)(?:/\w)?` \|", LOG, re.MULTILINE)
    )
