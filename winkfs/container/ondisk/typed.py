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
    date          2026-11-22, years 1 to 9999
    datetime      without a zone, microseconds: 2026-11-22T10:00:00.000000, years 1 to 9999
    decimal(p,s)  -1.50: p digits at most, exactly s of them behind the point
    list<string>  a JSON array, maybe with null; list<int64>, list<float64> (NaN, Infinity)
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from winkfs.units import as_content

Schema = Mapping[str, str]
Texts = list[bytes | None]
TYPES: Final = (
    "string", "binary", "bool", "int64", "float64", "timestamp", "list<string>", "date", "datetime",
    "list<int64>", "list<float64>",
)  # fmt: skip
"""All types but decimal(p,s), see `decimal_of`."""
FIRST_TYPES: Final = frozenset(TYPES[:7])  # those that 0.2.0 knows
NUMBERS: Final = ("bool", "int64", "float64", "timestamp", "date", "datetime")
LISTS: Final = {"list<int64>": "int64", "list<float64>": "float64"}  # of numbers
OF_DECIMAL: Final = re.compile(r"decimal\(([1-9][0-9]?),(0|[1-9][0-9]?)\)")
DIGITS: Final = 38  # of a decimal, at most
NARROW: Final = 18  # digits of a decimal that int64 holds
LATER: Final = re.compile(r"[a-z][a-z0-9_]*(?:[(<][!-~]*[)>])?")  # has the form of a type
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
LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # of a datetime, which has no zone
EPOCH_DAY: Final = 719_163  # ordinal of 1970-01-01
EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
MICROSECOND: Final = timedelta(microseconds=1)
LEAST, MOST = -(1 << 63), (1 << 63) - 1
INTEGER: Final = re.compile(rb"[+-]?[0-9]+")
DECIMAL: Final = re.compile(
    rb"[+-]?(?:[0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|nan|inf|infinity)",
    re.IGNORECASE,
)
NULL: Final = type(None)
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
        if spelt(kind) is None:
            there = (
                f"{', '.join(TYPES)}, decimal(p,s) with p of 1 to 38 digits, s of them a fraction"
            )
            raise ValueError(f"column {name} is no {kind!r}: there are {there}")
    return {name: str(spelt(kind)) for name, kind in columns.items()}


def spelt(kind: Any) -> str | None:
    """Return a type as it is written, without blanks; None: there is no such type."""
    if not isinstance(kind, str):
        return None
    short = kind.replace(" ", "") if kind.startswith("decimal") else kind
    return short if short in TYPES or decimal_of(short) else None


@functools.lru_cache(1024)
def decimal_of(kind: str) -> tuple[int, int] | None:
    """Return the number of digits of a decimal type, and of those behind the point; None: it is
    another type."""
    found = OF_DECIMAL.fullmatch(kind)
    precision, scale = (int(found[1]), int(found[2])) if found else (0, 0)
    return (precision, scale) if 0 < precision <= DIGITS and scale <= precision else None


def is_number(kind: str) -> bool:
    """Return whether values of a type are numbers in a `Column`."""
    return kind in NUMBERS or decimal_of(kind) is not None


HIDDEN: Final = frozenset(
    ["_error", "_container", "_contid", "_pos", "_pointer", "_generation", "_change"]
)  # of the source of Spark


def schema_text(schema: Schema) -> bytes:
    """Encode a schema as entry and attribute have it."""
    return " ".join(f"{name}:{kind}" for name, kind in schema.items()).encode()


def parse_schema(text: bytes) -> dict[str, str]:
    """Decode a schema: the inverse of `schema_text`. A column of a type that this version does not
    know is left out: see `later_words`. Raises ValueError."""
    later = later_words(text)
    pairs = (word.rpartition(":")[::2] for word in text.decode().split() if word not in later)
    return check_schema(dict(pairs))


def later_words(text: bytes) -> list[str]:
    """Return the words of a schema whose types only a later version knows. Raises ValueError."""
    found = []
    for word in text.decode().split():
        name, _, kind = word.rpartition(":")
        if spelt(kind) is None and NAME.fullmatch(name) and LATER.fullmatch(kind):
            found.append(word)
    return found


def is_new(text: bytes) -> bool:
    """Return whether a schema has types that 0.2.0 does not know."""
    return any(word.rpartition(":")[2] not in FIRST_TYPES for word in text.decode().split())


# --- values ---


def to_text(name: str, kind: str, value: Any) -> bytes | None:
    """Return a value as text; None: null. Raises ValueError in one line for a wrong type."""
    if value is None:
        return None
    try:
        return TO_TEXT[kind](value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        shown = " ".join(repr(value).split())
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
    if kind in ("timestamp", "date", "datetime"):
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
    later   words for columns of types that only a later version knows
    """

    def __init__(self, schema: Schema, *, known: bool = True, later: Sequence[str] = ()) -> None:
        self.schema, self._known, self.later = schema, known, later
        self.record = b" ".join(filter(None, [schema_text(schema), " ".join(later).encode()]))
        self._recorded = _head(RECORD) + len(self.record).to_bytes(4, "big") + self.record
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


def _date_text(value: Any) -> bytes:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError
    return value.isoformat().encode()


def _datetime_text(value: Any) -> bytes:
    if not isinstance(value, datetime) or value.tzinfo is not None or value != value:  # NaT
        raise TypeError
    return value.isoformat(timespec="microseconds").encode()


def _decimal_text(value: Any, precision: int, scale: int) -> bytes:
    if isinstance(value, bool) or not isinstance(value, Decimal | int | np.integer):
        raise TypeError
    exact = value if isinstance(value, Decimal) else Decimal(int(value))
    return decimal_text(scaled(exact, precision, scale), scale)


def decimal_text(number: int, scale: int) -> bytes:
    """Return the text of a decimal, of which `number` is 10 ** scale times as large."""
    if not scale:
        return b"%d" % number
    whole, rest = divmod(abs(number), 10**scale)
    return b"%s%d.%0*d" % (b"-" if number < 0 else b"", whole, scale, rest)


def scaled(value: Decimal, precision: int, scale: int) -> int:
    """Return a decimal times 10 ** scale. Raises ValueError if it has more digits than the type."""
    if not value:
        return 0
    if not value.is_finite() or value.adjusted() >= DIGITS:  # before a number is made of it
        raise ValueError
    moved = EXACT.scaleb(value, scale)
    number = int(moved) if moved.adjusted() >= 0 else 0
    if number != moved or abs(number) >= 10**precision:
        raise ValueError
    return number


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str | bytes | Mapping):
        raise TypeError
    return value.tolist() if isinstance(value, np.ndarray) else list(value)


def _list_text(value: Any) -> bytes:
    items = _listed(value)
    if not all(item is None or isinstance(item, str) for item in items):
        raise TypeError
    return json_of(items)


def _numbers_text(value: Any) -> bytes:
    items = _listed(value)
    for item in items:
        if item is not None:
            _number_text(item)
    return json_of([None if item is None else int(item) for item in items])


def _floats_text(value: Any) -> bytes:
    items = _listed(value)
    if any(isinstance(item, str | bytes | bool | np.bool_) for item in items):
        raise TypeError
    return json_of([None if item is None else float(item) for item in items])


ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def json_of(items: list[Any]) -> bytes:
    """Return the text of a list of strings or numbers, None: null."""
    return ENCODER.encode(items).encode()


def _bytes_text(value: Any) -> bytes:
    return as_content(value)


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


def _to_date(text: bytes) -> date:
    return date.fromisoformat(text.decode())


def _to_datetime(text: bytes) -> datetime:
    found = datetime.fromisoformat(text.decode())
    if found.tzinfo is not None:
        raise ValueError
    return found


def _to_decimal(text: bytes, precision: int, scale: int) -> Decimal:
    if not DECIMAL.fullmatch(text):
        raise ValueError
    try:
        number = scaled(Decimal(text.decode()), precision, scale)
    except ArithmeticError:  # an exponent of another size
        raise ValueError from None
    return EXACT.scaleb(Decimal(number), -scale)


def _items(text: bytes) -> list[Any]:
    try:
        found = json.loads(text.decode())
    except RecursionError:  # a thousand lists in each other
        raise ValueError from None
    if not isinstance(found, list):
        raise ValueError
    return found


def _to_list(text: bytes) -> list[str | None]:
    found = _items(text)
    if not {str, NULL}.issuperset(map(type, found)):
        raise ValueError
    "".join(filter(None, found)).encode()  # half a surrogate pair, which JSON can write, is no text
    return found


def _to_numbers(text: bytes) -> list[int | None]:
    found = _items(text)
    for item in found:
        if item is not None and (type(item) is not int or not LEAST <= item <= MOST):
            raise ValueError
    return found


def _to_floats(text: bytes) -> list[float | None]:
    found = _items(text)
    if not {float, int, NULL}.issuperset(map(type, found)):
        raise ValueError
    return [None if item is None else float(item) for item in found]


class _ByType(dict[str, Callable[[Any], Any]]):
    """A function for each type, also for those that have parameters."""

    def __init__(self, of: Mapping[str, Callable[[Any], Any]], decimal: Callable[..., Any]) -> None:
        super().__init__(of)
        self._decimal = decimal

    def __missing__(self, kind: str) -> Callable[[Any], Any]:
        parameters = decimal_of(kind)
        if parameters is None:
            raise KeyError(kind)
        precision, scale = parameters
        self[kind] = functools.partial(self._decimal, precision=precision, scale=scale)
        return self[kind]


TO_TEXT: Final[Mapping[str, Callable[[Any], bytes]]] = _ByType({
    "string": str.encode, "binary": _bytes_text, "bool": _bool_text, "int64": _number_text,
    "float64": _float_text, "timestamp": _time_text, "date": _date_text,
    "datetime": _datetime_text, "list<string>": _list_text, "list<int64>": _numbers_text,
    "list<float64>": _floats_text,
}, _decimal_text)  # fmt: skip
TO_VALUE: Final[Mapping[str, Callable[[bytes], Any]]] = _ByType({
    "string": bytes.decode, "binary": bytes, "bool": _to_bool, "int64": _to_int,
    "float64": _to_float, "timestamp": _to_time, "date": _to_date, "datetime": _to_datetime,
    "list<string>": _to_list, "list<int64>": _to_numbers, "list<float64>": _to_floats,
}, _to_decimal)  # fmt: skip


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
