"""A second decoder of LedgerQ's files, which shares nothing with winkfs. It is strict."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = _table()


def crc32c(data: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in data:
        found = TABLE[(found ^ byte) & 255] ^ found >> 8
    return found ^ 0xFFFFFFFF


def number(data: bytes, at: int, size: int) -> int:
    assert at + size <= len(data), "a number behind the end"
    return int.from_bytes(data[at : at + size], "little")


def entry(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """The message at a byte of a segment, and where the next one begins."""
    length = number(data, at, 4)
    whole = data[at : at + length]
    assert len(whole) == length >= 26
    assert number(whole, length - 4, 4) == crc32c(whole[:-4])
    assert not any(data[at + length : at + length + 4])
    kind, flags = whole[4], whole[5]
    assert kind == 1 and not flags & ~0x1D
    found = {"id": number(whole, 6, 8), "offset": at, "timestamp": number(whole, 14, 8)}
    place, found["priority"], found["expires"] = 22, 0, None
    if flags & 16:
        found["priority"], place = whole[22], 23
        assert found["priority"] in (1, 2)
    if flags & 4:
        found["expires"], place = number(whole, place, 8), place + 8
        assert found["expires"] > found["timestamp"] > 0
    headers = {}
    if flags & 8:
        count, place = number(whole, place, 2), place + 2
        texts = []
        for _ in range(2 * count):
            size = number(whole, place, 2)
            texts.append(whole[place + 2 : place + 2 + size].decode())
            place += 2 + size
        headers = dict(zip(texts[::2], texts[1::2], strict=True))
    payload = whole[place:-4]
    if flags & 1:
        assert payload[0] == 1
        payload = gzip.decompress(payload[1:])
        assert length - 4 - place - 1 < len(payload) * 0.95
    return {**found, "headers": headers, "payload": payload}, at + length + 4


def segment(data: bytes, base: int, index_file: bytes | None) -> list[dict[str, Any]]:
    """`index_file`: of a segment that is closed."""
    assert number(data, 0, 4) == 0x4C445151 and number(data, 4, 4) == 1
    assert number(data, 8, 8) == base and number(data, 60, 4) == crc32c(data[:60])
    assert not any(data[40:60])
    found, at = [], 64
    while at < len(data):
        row, at = entry(data, at)
        found.append(row)
    if index_file is not None:
        ids = [row["id"] for row in found]
        assert [number(data, 24, 8), number(data, 32, 8)] == [ids[0], ids[-1]]
        index(index_file, base, found)
    return found


def index(data: bytes, base: int, rows: list[dict[str, Any]]) -> None:
    assert number(data, 0, 4) == 0x4C445149 and number(data, 4, 4) == 1
    assert number(data, 8, 8) == base and not number(data, 24, 4)
    assert number(data, 28, 4) == crc32c(data[:28])
    wanted, last = [], -4096
    for row in rows:
        if row["offset"] - last >= 4096:
            wanted.append((row["id"], row["offset"], row["timestamp"]))
            last = row["offset"]
    assert number(data, 16, 8) == len(wanted) and len(data) == 32 + 24 * len(wanted)
    found = [tuple(number(data, at + i, 8) for i in (0, 8, 16)) for at in range(32, len(data), 24)]
    assert found == wanted


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def queue(files: dict[str, bytes], *, step: int | None = None) -> tuple[list[Any], int, int]:
    """The messages of a queue that was closed, by the names of its files, and next and read id.

    step  by which the numbers of its segments grow
    """
    names = sorted(name for name in files if name.endswith(".log"))
    found = []
    for i, name in enumerate(names):
        assert len(name) == 24
        base = int(name[:20])
        rows = segment(files[name], base, files[name.replace(".log", ".idx")])
        found += [{**row, "segment": base} for row in rows]
        assert step is None or (base - int(names[0][:20])) == i * step
    data = files["metadata.dat"]
    assert len(data) == 24 and number(data, 0, 4) == 1 and not number(data, 20, 4)
    next_id, read_id = number(data, 4, 8), number(data, 12, 8)
    ids = [row["id"] for row in found]
    assert ids == sorted(set(ids))
    assert [id for id in ids if id >= read_id] == list(range(read_id, next_id)), "id by id"
    return found, next_id, read_id
