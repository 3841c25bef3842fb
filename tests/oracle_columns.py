"""Oracle, layer 3: the values of columns in the runs of a catalog."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from oracle_format import OracleError, equal, expect

Value = bytes | int | None
Read = Callable[[int, int, int], bytes]  # position, bytes, hash -> the value
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = ("bool", "int64", "float64", "timestamp")


def parse_schema(text: bytes) -> dict[str, str]:
    pairs = [word.rpartition(":") for word in text.decode().split()]
    return {name: kind for name, _, kind in pairs}


def value_of(kind: str, text: bytes | None) -> Value:
    """What a column has to hold for an attribute: an integer, or its bytes; None: null."""
    if text is None or kind == "binary":
        return text
    try:
        words = text.decode()
        if kind == "int64":
            number = int(words)
            return number if -(2**63) <= number < 2**63 else None
        if kind == "float64":
            return int.from_bytes(struct.pack(">d", float(words)), "big")
        if kind == "bool":
            return {"true": 1, "false": 0}.get(words)
        if kind == "timestamp":
            moment = datetime.strptime(words, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
            return (moment - EPOCH) // timedelta(microseconds=1)
    except ValueError:
        return None
    return text


def read_columns(
    rest: bytes, rows: list[int], read: Read, label: str
) -> dict[str, tuple[str, list[Value]]]:
    """Of the end of the index of a run: column -> its type, and the values of all rows.

    rest  what is behind the names, from a multiple of 8 on
    rows  how many each block has
    """
    if not rest:
        return {}
    size = int.from_bytes(rest[:8], "little")
    schema = parse_schema(rest[8 : 8 + size])
    table = rest[8 + size + -size % 8 :]
    equal("table of values", label, 48 * len(schema) * len(rows), len(table))
    found = {}
    for number, (name, kind) in enumerate(schema.items()):
        values: list[Value] = []
        for block, count in enumerate(rows):
            where = struct.unpack_from("<6q", table, 48 * (number * len(rows) + block))
            some = [None] * count if not where[1] else decode(kind, read(*where[:3]), label)
            equal("rows of a column", f"{label} {name}", count, len(some))
            keys = [key_of(kind, value) for value in some if value is not None] or [0]
            zone = [some.count(None), min(keys), max(keys)]
            equal("zone of a column", f"{label} {name} block {block}", zone, list(where[3:]))
            values += some
        found[name] = kind, values
    return found


def decode(kind: str, value: bytes, label: str) -> list[Value]:
    """The values of a column in a block."""
    count, flags, words, wide = struct.unpack_from("<4I", value)
    expect(flags in (0, 1), "flags of a column", label, "0 or 1", flags)
    at, there = 16, [True] * count

    def bits() -> list[bool]:
        nonlocal at
        raw = value[at : at + (count + 7) // 8]
        at += (count + 63) // 64 * 8
        return [bool(raw[i // 8] >> i % 8 & 1) for i in range(count)]

    def numbers(form: str, many: int) -> list[int]:
        nonlocal at
        found = list(struct.unpack_from(f"<{many}{form}", value, at))
        at += (many * struct.calcsize(form) + 7) // 8 * 8
        return found

    if flags:
        there = bits()
    if kind == "bool":
        cells: list[Value] = [int(bit) for bit in bits()]
    elif kind in NUMBERS:
        cells = list(numbers("Q" if kind == "float64" else "q", count))
    else:
        codes = numbers({1: "B", 2: "H"}[wide], count) if wide else list(range(count))
        ends = numbers("I", words + 1)
        texts = [value[at + a : at + b] for a, b in pairwise(ends)]
        at += (ends[-1] + 7) // 8 * 8
        cells = [texts[code] for code in codes]
    if at != len(value):
        raise OracleError("size of a column", label, str(at), str(len(value)))
    return [cell if ok else None for cell, ok in zip(cells, there, strict=True)]


def key_of(kind: str, value: bytes | int) -> int:
    """The place of a value in the zone of its block."""
    if isinstance(value, bytes):
        return int.from_bytes((value + bytes(8))[:8], "big") - 2**63
    if kind != "float64":
        return value
    number = struct.unpack(">d", value.to_bytes(8, "big"))[0]
    if number != number:
        return 2**63 - 1
    if number == 0:
        return 0
    return value if value < 2**63 else -(value - 2**63) - 1
