"""docs/json.md: the fields of what commands print with --json, and their types."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs/json.md"
TYPES = {
    "string": str, "int": int, "bool": bool, "object": dict, "list": list, "null": type(None),
    "number": (int, float),
}  # fmt: skip
FREE = {"store stats", "store salvage", "store compact"}  # with further fields of the kind
ANY = " or ".join(TYPES)
Fields = dict[str, str]


def tables() -> dict[str, Fields]:
    """-> heading -> field -> type"""
    found: dict[str, Fields] = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)
        found[heading] = dict(rows)
        assert len(rows) == len(found[heading]) > 0, heading
    return found


def is_of(value: Any, kinds: str) -> bool:
    """Return whether a value has one of the types, as "int or null" or "list of string"."""
    for kind in kinds.rstrip("?").split(" or "):
        outer, _, inner = kind.partition(" of ")
        if isinstance(value, bool) != (outer == "bool") or not isinstance(value, TYPES[outer]):
            continue
        if not inner or all(is_of(each, inner) for each in value):
            return True
    return False


def objects(text: str | bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def faults(heading: str, records: Sequence[dict[str, Any]]) -> list[str]:
    """What of these records is not as the table of a heading has it."""
    documented = tables()[heading]
    always = {field for field, kind in documented.items() if not kind.endswith("?")}
    wrong = [f"{heading}: no {field}" for record in records for field in always - record.keys()]
    for record in records:
        for field, value in record.items():
            kinds = documented.get(field, ANY if heading in FREE else "")
            if not kinds or not is_of(value, kinds):
                wrong.append(f"{heading}: {field} is no {kinds or 'field'}: {value!r}")
    return wrong
