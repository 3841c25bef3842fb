"""Columns of the user: their types, and the values of files as attributes.

The value of the column `lang` of a file is its extended attribute `user.lang`, as text: any program
can read and set it, and a missing attribute is null. The attribute `user.winkfs_columns` records
which attributes are columns, and their types, as "lang:string score:float64": so types travel with
a file through a mount, tar and `cp -a`. The columns of a container are in its entry "columns/C0",
whose position is the variable COLUMNS of BASE.data, in the same form.

    type          text
    string        UTF-8
    binary        the bytes
    bool          true, false
    int64         decimal
    float64       the shortest decimal that gives the same number; nan, inf, -inf
    timestamp     UTC, microseconds: 2026-11-22T10:00:00.000000Z, years 1 to 9999
    list<string>  a JSON array
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Schema = Mapping[str, str]
Texts = list[bytes | None]
TYPES: Final = ("string", "binary", "bool", "int64", "float64", "timestamp", "list<string>")
NUMBERS: Final = ("bool", "int64", "float64", "timestamp")
USER: Final = b"user."
RECORD: Final = b"user.winkfs_columns"
KEY: Final = b"columns/C0"
COLUMNS: Final = "COLUMNS"
NAME: Final = re.compile(r"[^\W\d][\w.-]{0,199}")
TAKEN: Final = frozenset(
    ["path", "name", "size", "length", "mtime", "modificationtime", "content", "name_raw",
     "mtime_ns", "ftype", "mode", "winkfs_columns"]
)  # fmt: skip
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
LEAST, MOST = -(1 << 63), (1 << 63) - 1
INTEGER: Final = re.compile(rb"[+-]?[0-9]+")
DECIMAL: Final = re.compile(
    rb"[+-]?(?:[0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|nan|inf|infinity)",
    re.IGNORECASE,
)
BOOLS: Final = {b"true": True, b"false": False, b"1": True, b"0": False}


# --- which columns there are ---


def check_schema(columns: Mapping[str, str]) -> dict[str, str]:
    """Return columns, checked. Raises ValueError in one line; TypeError."""
    if not isinstance(columns, Mapping):
        raise TypeError(f"columns are a dict of names and types, not {type(columns).__name__}")
    seen: set[str] = set()
    for name, kind in columns.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            what = "letters, digits, _ . and -, 200 at most, and begins with a letter or _"
            raise ValueError(f"{name!r} is no name of a column: it has {what}")
        if name.lower() in TAKEN or (name.startswith("_") and name.lower() in HIDDEN):
            raise ValueError(f"a column cannot be called {name}: all files have that")
        if name.lower() in seen:
            raise ValueError(f"column {name} is there twice; case makes no difference")
        seen.add(name.lower())
        if kind not in TYPES:
            raise ValueError(f"column {name} is no {kind!r}: there are {', '.join(TYPES)}")
    return dict(columns)


HIDDEN: Final = frozenset(
    ["_error", "_container", "_contid", "_pos", "_pointer", "_generation", "_change"]
)  # of the source of Spark


def schema_text(schema: Schema) -> bytes:
    """Encode a schema as entry and attribute have it."""
    return " ".join(f"{name}:{kind}" for name, kind in schema.items()).encode()


def parse_schema(text: bytes) -> dict[str, str]:
    """Decode a schema: the inverse of `schema_text`. Raises ValueError."""
    pairs = (word.rpartition(":")[::2] for word in text.decode().split())
    return check_schema(dict(pairs))


# --- values ---


def to_text(name: str, kind: str, value: Any) -> bytes | None:
    """Return a value as text; None: null. Raises ValueError in one line for a wrong type."""
    if value is None:
        return None
    try:
        return TO_TEXT[kind](value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise ValueError(f"column {name} is {kind}, not {shown}") from None


def to_value(kind: str, text: bytes | None) -> Any:
    """Return a value from its text; None for null, and for a text that the type does not have."""
    if text is None:
        return None
    try:
        return TO_VALUE[kind](text)
    except (ValueError, OverflowError):
        return None


def canonical(kind: str, text: bytes) -> bytes | None:
    """Return the canonical text of a value from that of any program; None: it has another type."""
    if kind == "timestamp":
        text = text.decode(errors="replace").strip().encode()
    value = to_value(kind, text)
    return None if value is None else TO_TEXT[kind](value)


def to_attributes(schema: Schema, values: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return the extended attributes of a file with these values.

    raises  ValueError for a column that does not exist, or a value of a wrong type
    """
    found = {RECORD: schema_text(schema)}
    if not isinstance(values, Mapping):
        raise TypeError(f"columns are a dict of names and values, not {type(values).__name__}")
    for name, value in values.items():
        kind = schema.get(name)
        if kind is None:
            there = ", ".join(schema) or "there are none"
            raise ValueError(f"the container has no column {name!r} ({there}): add it first")
        text = to_text(name, kind, value)
        if text is not None:
            found[USER + name.encode()] = text
    return found


def recorded(schema: Schema) -> bytes:
    """Return the record of columns, with which the extended attributes of a file with columns
    begin."""
    record = schema_text(schema)
    return _head(RECORD) + len(record).to_bytes(4, "big") + record


def _head(name: bytes) -> bytes:
    """Return the start of an encoded extended attribute, up to the length of its value."""
    return len(name).to_bytes(2, "big") + name


def to_values(xattrs: Mapping[bytes, bytes], schema: Schema | None = None) -> dict[str, Any]:
    """Return the values of a file, None: null. `schema`: None: that of the file itself."""
    if schema is None:
        try:
            schema = parse_schema(xattrs.get(RECORD, b""))
        except ValueError:
            return {}
    return {name: to_value(kind, xattrs.get(USER + name.encode())) for name, kind in schema.items()}


class Declared:
    """The columns that a container declares, and how extended attributes of its files are shown.

    A file is shown with the columns of now, not with those of the time at which it was written: if
    it has a value, or was put with columns, its RECORD is that of `schema`; none if that is empty.

    record  the attribute RECORD of files that have a value
    known   False: no columns were ever declared, or they cannot be read: attributes are shown as
            they are stored
    """

    def __init__(self, schema: Schema, *, known: bool = True) -> None:
        self.schema, self._known = schema, known
        self.record, self._recorded = schema_text(schema), recorded(schema)
        self._keys = frozenset(USER + name.encode() for name in schema)
        self._heads = {name: _head(USER + name.encode()) for name in schema}

    def shown(self, xattrs: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Return extended attributes as programs see them."""
        record = xattrs.get(RECORD)
        if not xattrs or record == self.record or not self._known:
            return xattrs
        if record is None and self._keys.isdisjoint(xattrs):
            return xattrs
        try:
            parse_schema(record or b"")
        except ValueError:  # an attribute of another program
            return xattrs
        rest = {key: value for key, value in xattrs.items() if key != RECORD}
        return rest | {RECORD: self.record} if self.record else rest

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Encode the extended attributes of a new file with these values, without making a dict.

        raises  ValueError as `to_attributes`
        """
        parts = [self._recorded]
        try:
            for name, value in values.items():
                if value is not None:
                    text = TO_TEXT[self.schema[name]](value)
                    parts += self._heads[name], len(text).to_bytes(4, "big"), text
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            to_attributes(self.schema, values)  # raises an error with the reason
            raise
        return b"".join(parts)


UNDECLARED: Final = Declared({}, known=False)


def _number_text(value: Any) -> bytes:
    if isinstance(value, bool | np.bool_) or not LEAST <= value <= MOST or value != int(value):
        raise ValueError
    return b"%d" % int(value)


def _float_text(value: Any) -> bytes:
    if isinstance(value, str | bytes | bool | np.bool_):
        raise TypeError
    return repr(float(value)).encode()


def _bool_text(value: Any) -> bytes:
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return b"true" if value else b"false"


def _time_text(value: Any) -> bytes:
    """Return the text of a datetime, or of seconds since the epoch."""
    if isinstance(value, datetime):
        moment = in_utc(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        moment = EPOCH + timedelta(seconds=value)
    else:
        raise TypeError
    return moment.strftime("%%04d-%m-%dT%H:%M:%S.%f").encode() % moment.year + b"Z"


def _list_text(value: Any) -> bytes:
    if isinstance(value, str | bytes | Mapping):
        raise TypeError
    items = list(value)
    if None in items:
        raise TypeError("a list with a null in it (array_compact drops nulls)")
    if not all(isinstance(item, str) for item in items):
        raise TypeError
    return json.dumps(items, ensure_ascii=False, separators=(",", ":")).encode()


def _bytes_text(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError
    return bytes(value)


def _to_int(text: bytes) -> int:
    value = int(text) if INTEGER.fullmatch(text) else MOST + 1
    if not LEAST <= value <= MOST:
        raise ValueError
    return value


def _to_float(text: bytes) -> float:
    if not DECIMAL.fullmatch(text):
        raise ValueError
    return float(text)


def _to_bool(text: bytes) -> bool:
    word = text.strip().lower()
    if word not in BOOLS:
        raise ValueError
    return BOOLS[word]


def _to_time(text: bytes) -> datetime:
    return in_utc(datetime.fromisoformat(text.decode()))


def in_utc(moment: datetime) -> datetime:
    """Return a datetime in UTC; one without a zone is UTC, as in Arrow and Parquet."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _to_list(text: bytes) -> list[str]:
    try:
        found = json.loads(text.decode())
    except RecursionError:  # a thousand lists in each other
        raise ValueError from None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ValueError
    "".join(found).encode()  # half a surrogate pair, which JSON can write, is no text
    return found


TO_TEXT: Final[dict[str, Callable[[Any], bytes]]] = {
    "string": str.encode, "binary": _bytes_text, "bool": _bool_text, "int64": _number_text,
    "float64": _float_text, "timestamp": _time_text, "list<string>": _list_text,
}  # fmt: skip
TO_VALUE: Final[dict[str, Callable[[bytes], Any]]] = {
    "string": bytes.decode, "binary": bytes, "bool": _to_bool, "int64": _to_int,
    "float64": _to_float, "timestamp": _to_time, "list<string>": _to_list,
}  # fmt: skip


# --- the attributes of many files ---


def split(attributes: Iterable[bytes], schema: Schema) -> list[Texts]:
    """Return the texts of each column, of files whose encoded extended attributes are given.

    All must be valid, see `is_whole`.
    """
    wanted = {USER + name.encode(): number for number, name in enumerate(schema)}
    all_of = list(attributes)
    found: list[Texts] = [[None] * len(all_of) for _ in wanted]
    for row, blob in enumerate(all_of):
        at, size = 0, len(blob)
        while at < size:
            key_end = at + 2 + (blob[at] << 8 | blob[at + 1])
            number = wanted.get(blob[at + 2 : key_end])
            end = key_end + 4 + int.from_bytes(blob[key_end : key_end + 4], "big")
            if number is not None:
                found[number][row] = blob[key_end + 4 : end]
            at = end
    return found


def is_whole(attrs: bytes, at: int) -> bool:
    """Return whether the bytes from `at` to the end are valid extended attributes."""
    size = len(attrs)
    while at + 6 <= size:
        length = attrs[at] << 8 | attrs[at + 1]
        at += 6 + length
        if not length or at > size:
            return False
        at += int.from_bytes(attrs[at - 4 : at], "big")
    return at == size


def pack(texts: Sequence[Texts], names: Iterable[str]) -> npt.NDArray[Any]:
    """Encode the columns of each file as extended attributes: the inverse of `split`. object[n]"""
    parts: list[list[bytes]] = []
    for name, column in zip(names, texts, strict=True):
        head = _head(USER + name.encode())
        parts.append(
            [b"" if t is None else b"%b%b%b" % (head, len(t).to_bytes(4, "big"), t) for t in column]
        )
    out = np.empty(len(texts[0]) if texts else 0, object)
    out[:] = list(map(b"".join, zip(*parts, strict=True)))
    return out
