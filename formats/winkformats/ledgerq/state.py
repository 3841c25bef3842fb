"""State files of a queue beside its segments, as LedgerQ has them.

`metadata.dat`

    offset  size  type  field    meaning
    0       4     I     version  1
    4       8     Q     next_id  of the next message that is enqueued
    12      8     Q     read_id  of the next one that is dequeued
    20      4     I     zero

`.dedup_state.json`, `.retry_state.json`: `version` 1 and a list `entries`; see `Dedup`, `Retry`.

Little-endian.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from winkformats.errors import CorruptError

METADATA: Final = "metadata.dat"
DEDUP: Final = ".dedup_state.json"
RETRY: Final = ".retry_state.json"
LAYOUT: Final = struct.Struct("<IQQI")
VERSION: Final = 1
MAX_STATE_BYTES: Final = 64 << 20  # of a state file
TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
assert LAYOUT.size == 24


class Metadata(NamedTuple):
    next_id: int = 1
    read_id: int = 1

    def encode(self) -> bytes:
        return LAYOUT.pack(VERSION, *self, 0)

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> Metadata:
        """Decode metadata. Raises CorruptError."""
        if len(data) < LAYOUT.size:
            raise CorruptError(
                "metadata of a queue", file=file, offset=0, expected=f"{LAYOUT.size} bytes",
                found=len(data),
            )  # fmt: skip
        version, next_id, read_id, _ = LAYOUT.unpack_from(data)
        if version != VERSION or not next_id or not read_id or max(next_id, read_id) >> 63:
            raise CorruptError("metadata of a queue", file=file, offset=0)
        return cls(next_id, read_id)


class Dedup(NamedTuple):
    """A message enqueued under an id of the user, kept until the window of deduplication ends.
    Times are nanoseconds since the epoch."""

    key: str  # SHA-256 of the id, hexadecimal
    message_id: int
    enqueued: int
    expires: int
    offset: int = 0


class Retry(NamedTuple):
    """Failures of a message: their number, time (nanoseconds since the epoch) and reason of the
    last one."""

    message_id: int
    failures: int
    failed: int
    reason: str = ""


def encode_dedup(entries: Iterable[Dedup]) -> bytes:
    rows = [
        {
            "dedup_id": entry.key, "message_id": entry.message_id, "offset": entry.offset,
            "enqueued_at": entry.enqueued, "expires_at": entry.expires,
        }
        for entry in entries
    ]  # fmt: skip
    return json.dumps({"version": VERSION, "entries": rows}, indent=2).encode()


def decode_dedup(data: bytes, *, file: str) -> list[Dedup]:
    """Decode the state of deduplication. Raises CorruptError."""
    return [
        Dedup(
            _text(row, "dedup_id", file), _number(row, "message_id", file),
            _number(row, "enqueued_at", file), _number(row, "expires_at", file),
            _number({"offset": 0, **row}, "offset", file),
        )
        for row in _rows(data, file)
    ]  # fmt: skip


def encode_retry(entries: Iterable[Retry], most: int) -> bytes:
    """Encode failures; most: failures until a message moves to the dead letter queue, 0: never."""
    rows: list[dict[str, Any]] = []
    for entry in entries:
        row = {
            "msg_id": entry.message_id, "retry_count": entry.failures,
            "last_failure": time_text(entry.failed),
        }  # fmt: skip
        rows.append(row | ({"failure_reason": entry.reason} if entry.reason else {}))
    head = {"version": VERSION, "max_retries": most, "entries": rows}
    return json.dumps(head, indent=2).encode()


def decode_retry(data: bytes, *, file: str) -> list[Retry]:
    """Decode failures of messages. Raises CorruptError."""
    return [
        Retry(
            _number(row, "msg_id", file), _number(row, "retry_count", file),
            time_of(_text(row, "last_failure", file), file),
            _text({"failure_reason": "", **row}, "failure_reason", file),
        )
        for row in _rows(data, file)
    ]  # fmt: skip


def time_text(nanoseconds: int, digits: int = 9) -> str:
    """Format a time as RFC 3339, in UTC."""
    seconds, rest = divmod(nanoseconds, 10**9)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest:09d}"[: len(text) + 1 + digits] + "Z"


def time_of(text: str, file: str) -> int:
    match = TIME.fullmatch(text)
    if match:
        try:
            when = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00"))
            return int(when.timestamp()) * 10**9 + int((match[2] or "0").ljust(9, "0"))
        except (ValueError, OverflowError):
            pass
    raise CorruptError(f"time {text[:40]!r} in the state of a queue", file=file, offset=0)


def _rows(data: bytes, file: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and found.get("version") == VERSION:
        rows = found.get("entries") or []
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            return rows
    raise CorruptError("state of a queue", file=file, offset=0)


def _number(row: dict[str, Any], name: str, file: str) -> int:
    value = row.get(name)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise CorruptError(f"{name} in the state of a queue", file=file, offset=0, found=value)
    return value


def _text(row: dict[str, Any], name: str, file: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise CorruptError(f"{name} in the state of a queue", file=file, offset=0, found=value)
    return value
