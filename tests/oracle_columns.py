"""Oracle, layer 3: the values of columns in the runs of a catalog."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise

from oracle_format import OracleError, equal, expect

Value = bytes | int | tuple[int | None, ...] | None
Read = Callable[[int, int, int], bytes]  # position, bytes, hash -> the value
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = ("bool", "int64", "float64", "timestamp", "date", "datetime")


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
        if kind == "date":
            return (datetime.strptime(words, "%Y-%m-%d").replace(tzinfo=UTC) - EPOCH).days
        if kind == "datetime":
            moment = datetime.strptime(words, "%Y-%m-%dT%H:%M:%S.%f").replace(tzinfo=UTC)
            return (moment - EPOCH) // timedelta(microseconds=1)
        if digits := digits_of(kind):
            number = Fraction(words) * 10 ** digits[1]
            fits = number.denominator == 1 and abs(number) < 10 ** digits[0]
            return number.numerator if fits else None
        if kind in ("list<int64>", "list<float64>"):
            return tuple(element_of(kind, item) for item in json.loads(words))
    except ValueError:
        return None
    return text


def digits_of(kind: str) -> tuple[int, int] | None:
    """Of a decimal: how many digits, and how many behind the point."""
    found = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    return (int(found[1]), int(found[2])) if found else None


def element_of(kind: str, item: float | None) -> int | None:
    """The 8 bytes of an element, as a number of the same sign or, of a float, as its bits."""
    if item is None or kind == "list<int64>":
        return None if item is None else int(item)
    return int.from_bytes(struct.pack(">d", float(item)), "big")


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
            if kind in ("list<int64>", "list<float64>"):
                keys = [0]
            zone = [some.count(None), min(keys), max(keys)]
            equal("zone of a column", f"{label} {name} block {block}", zone, list(where[3:]))
            values += some
        found[name] = kind, values
    return found


def decode(kind: str, value: bytes, label: str) -> list[Value]:
    """The values of a column in a block."""
    count, flags, words, wide = struct.unpack_from("<4I", value)
    of_lists = kind in ("list<int64>", "list<float64>")
    allowed = (0, 1, 4, 5) if of_lists else (0, 1)
    expect(flags in allowed, "flags of a column", label, str(allowed), flags)
    at, there = 16, [True] * count

    def bits(many: int) -> list[bool]:
        nonlocal at
        raw = value[at : at + (many + 7) // 8]
        at += (many + 63) // 64 * 8
        return [bool(raw[i // 8] >> i % 8 & 1) for i in range(many)]

    def numbers(form: str, many: int) -> list[int]:
        nonlocal at
        found = list(struct.unpack_from(f"<{many}{form}", value, at))
        at += (many * struct.calcsize(form) + 7) // 8 * 8
        return found

    digits = digits_of(kind)
    if flags & 1:
        there = bits(count)
    if kind == "bool":
        cells: list[Value] = [int(bit) for bit in bits(count)]
    elif digits and digits[0] > 18:
        cells = [int.from_bytes(value[at + i : at + i + 16], "little", signed=True)
                 for i in range(0, 16 * count, 16)]  # fmt: skip
        at += 16 * count
    elif of_lists:
        equal("bytes of an element", label, 8, wide)
        ends = numbers("I", count + 1)
        known = bits(words) if flags & 4 else [True] * words
        expect(flags & 4 == 0 or not all(known), "flags of a column", label, "a null", flags)
        items = numbers("Q" if kind == "list<float64>" else "q", words)
        equal("ends of lists", label, [0, words], [ends[0], ends[-1]])
        zeros = [item for item, ok in zip(items, known, strict=True) if not ok]
        equal("null elements", label, [0] * len(zeros), zeros)
        found = [item if ok else None for item, ok in zip(items, known, strict=True)]
        cells = [tuple(found[a:b]) for a, b in pairwise(ends)]
    elif digits or kind in NUMBERS:
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


def key_of(kind: str, value: Value) -> int:
    """The place of a value in the zone of its block."""
    if value is None or isinstance(value, tuple):
        return 0
    if isinstance(value, bytes):
        return int.from_bytes((value + bytes(8))[:8], "big") - 2**63
    if (digits := digits_of(kind)) and digits[0] > 18:
        return value // 10 ** (digits[0] - 18)
    if kind != "float64":
        return value
    number = struct.unpack(">d", value.to_bytes(8, "big"))[0]
    if number != number:
        return 2**63 - 1
    if number == 0:
        return 0
    return value if value < 2**63 else -(value - 2**63) - 1
