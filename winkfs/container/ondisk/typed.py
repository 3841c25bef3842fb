"""Columns of the user: typed values of files, in attributes and in BASE.cat.

The value of the column `lang` of a file is its extended attribute `user.lang`, as text: any program
reads and sets it, and null is an attribute that is not there. `user.winkfs_columns` says beside it
which attributes are columns, and of which type, as "lang:string score:float64": so types travel
with a file through a mount, tar and `cp -a`. The columns of a container stand in its entry
"columns/C0", whose position is the variable COLUMNS of BASE.data, in the same words.

    type          text
    string        UTF-8
    binary        the bytes
    bool          true, false
    int64         decimal
    float64       the shortest decimal that gives the same number; nan, inf, -inf
    timestamp     UTC, microseconds: 2026-11-22T10:00:00.000000Z, years 1 to 9999
    list<string>  a JSON array

In BASE.cat the values of a block, little-endian, each part at a multiple of 8:

    uint32 n, flags (1: some are null, 2: all are), words, bytes of a code
    with nulls: a bit for each row, least first, 1: it has a value
    numbers: n of 8 bytes; bool: n bits; all else: n codes, uint32[words + 1] ends, the words
Without codes the words are those of the rows, in order.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64
from winkfs.errors import need
from winkfs.units import to_ns

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
HEAD: Final = struct.Struct("<IIII")
SOME_NULL, ALL_NULL = 1, 2
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
EARLIEST, LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999
ROWS: Final = 2048  # of an Arrow batch that are put together
LEAST, MOST = -(1 << 63), (1 << 63) - 1
INTEGER: Final = re.compile(rb"[+-]?[0-9]+")
DECIMAL: Final = re.compile(
    rb"[+-]?(?:[0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|nan|inf|infinity)",
    re.IGNORECASE,
)
BOOLS: Final = {b"true": True, b"false": False, b"1": True, b"0": False}


# --- which columns there are ---


def check_schema(columns: Mapping[str, str]) -> dict[str, str]:
    """The same, checked. Raises ValueError in one line; TypeError."""
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
    """As entry and attribute have it."""
    return " ".join(f"{name}:{kind}" for name, kind in schema.items()).encode()


def parse_schema(text: bytes) -> dict[str, str]:
    """The inverse. Raises ValueError."""
    pairs = (word.rpartition(":")[::2] for word in text.decode().split())
    return check_schema(dict(pairs))


# --- values ---


def to_text(name: str, kind: str, value: Any) -> bytes | None:
    """A value as text; None: null. Raises ValueError in one line for one of another type."""
    if value is None:
        return None
    try:
        return TO_TEXT[kind](value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise ValueError(f"column {name} is {kind}, not {shown}") from None


def to_value(kind: str, text: bytes | None) -> Any:
    """The inverse; None for null, and for what is no text of the type."""
    if text is None:
        return None
    try:
        return TO_VALUE[kind](text)
    except (ValueError, OverflowError):
        return None


def canonical(kind: str, text: bytes) -> bytes | None:
    """The text of the value that somebody else has written; None: it is none of this type."""
    if kind == "timestamp":
        text = text.decode(errors="replace").strip().encode()
    value = to_value(kind, text)
    return None if value is None else TO_TEXT[kind](value)


def to_attributes(schema: Schema, values: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The extended attributes of a file with these values.

    raises  ValueError for a column that there is not, or a value of another type
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
    """What the attributes of a file begin with that was put with columns, behind ATTRS."""
    record = schema_text(schema)
    return _head(RECORD) + len(record).to_bytes(4, "big") + record


def _head(name: bytes) -> bytes:
    """Of an extended attribute in ATTRS, before the length of its value."""
    return len(name).to_bytes(2, "big") + name


def to_values(xattrs: Mapping[bytes, bytes], schema: Schema | None = None) -> dict[str, Any]:
    """The values of a file, None: null. `schema`: None: that of the file itself."""
    if schema is None:
        try:
            schema = parse_schema(xattrs.get(RECORD, b""))
        except ValueError:
            return {}
    return {name: to_value(kind, xattrs.get(USER + name.encode())) for name, kind in schema.items()}


class Declared:
    """What a container declares, and how the extended attributes of its files are shown.

    A file is shown with the columns of today, whatever there were when it was written: one that has
    a value, or was put with columns, has the record of `schema`, or none where it is empty.

    record  the attribute RECORD of files that have a value
    known   False: nothing was declared ever, or it cannot be read: all is shown as it is stored
    """

    def __init__(self, schema: Schema, *, known: bool = True) -> None:
        self.schema, self._known = schema, known
        self.record, self._recorded = schema_text(schema), recorded(schema)
        self._keys = frozenset(USER + name.encode() for name in schema)
        self._heads = {name: _head(USER + name.encode()) for name in schema}

    def shown(self, xattrs: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Extended attributes as programs see them."""
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
        """The attributes of a new file with these values: `to_attributes` as ATTRS has them.

        raises  ValueError as `to_attributes`
        cost    3 us of three columns, a third of making and encoding a dict
        """
        parts = [self._recorded]
        try:
            for name, value in values.items():
                if value is not None:
                    text = TO_TEXT[self.schema[name]](value)
                    parts += self._heads[name], len(text).to_bytes(4, "big"), text
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            to_attributes(self.schema, values)  # says what is wrong
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
    """Of a datetime, or seconds since the epoch."""
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
    """Without a zone it is UTC, whatever the machine is set to, as Arrow and Parquet have it."""
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
    """The texts of each column, of files whose extended attributes are given as ATTRS has them, and
    `is_whole` of each.

    cost  0.5 us an attribute
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
    """Whether extended attributes stand from `at` to the end. Cost: 0.2 us an attribute."""
    size = len(attrs)
    while at + 6 <= size:
        length = attrs[at] << 8 | attrs[at + 1]
        at += 6 + length
        if not length or at > size:
            return False
        at += int.from_bytes(attrs[at - 4 : at], "big")
    return at == size


def pack(texts: Sequence[Texts], names: Iterable[str]) -> npt.NDArray[Any]:
    """The inverse: of each file its columns, as ATTRS has extended attributes, object[n]."""
    parts: list[list[bytes]] = []
    for name, column in zip(names, texts, strict=True):
        head = _head(USER + name.encode())
        parts.append(
            [b"" if t is None else b"%b%b%b" % (head, len(t).to_bytes(4, "big"), t) for t in column]
        )
    out = np.empty(len(texts[0]) if texts else 0, object)
    out[:] = list(map(b"".join, zip(*parts, strict=True)))
    return out


# --- the values of many files ---


@dataclass(frozen=True, slots=True)
class Column:
    """n values of one type.

    valid    bool[n]  which are not null
    numbers  int64[n], float64[n] or bool[n]; of types that are no numbers: which of the words
    words    texts, each of them once or once for each row
    """

    kind: str
    valid: Bools
    numbers: npt.NDArray[Any]
    words: list[bytes]

    def __len__(self) -> int:
        return len(self.valid)

    @classmethod
    def nulls(cls, kind: str, n: int) -> Column:
        return cls(kind, np.zeros(n, bool), np.zeros(n, dtype_of(kind)), [])

    @classmethod
    def of(cls, kind: str, texts: Texts) -> Column:
        """From texts; one that is none of the type is null."""
        known, words = dict.fromkeys(texts), list[bytes]()
        if known.keys() <= {None}:
            return cls.nulls(kind, len(texts))
        if kind in NUMBERS:
            values = {text: _number(kind, text) for text in known}
        else:
            words = [text for text in known if text is not None
                     and to_value(kind, text) is not None]  # fmt: skip
            values = {word: code for code, word in enumerate(words)}
        found = list(map(values.get, texts))
        valid = np.fromiter((value is not None for value in found), bool, len(found))
        numbers = np.array([0 if value is None else value for value in found], dtype_of(kind))
        return cls(kind, valid, numbers, words)

    def texts(self) -> Texts:
        """The inverse."""
        if self.kind in NUMBERS:
            numbers = self.numbers
            if self.kind == "timestamp":
                strings = np.datetime_as_string(numbers.astype("M8[us]"), unit="us")
                found: list[Any] = [b"%bZ" % text for text in strings.astype("S26").tolist()]
            elif self.kind == "bool":
                found = [b"true" if value else b"false" for value in numbers.tolist()]
            else:
                found = [repr(value).encode() for value in numbers.tolist()]
        else:
            found = list(map((list[Any](self.words) or [None]).__getitem__, self.numbers.tolist()))
        if self.valid.all():
            return found
        return [t if ok else None for t, ok in zip(found, self.valid.tolist(), strict=True)]

    def cast(self, kind: str) -> Column:
        """The same values as another type; what is none of it is null."""
        return self if kind == self.kind else Column.of(kind, self.texts())

    def take(self, chosen: npt.NDArray[Any]) -> Column:
        """Some rows, by index or by marks."""
        return Column(self.kind, self.valid[chosen], self.numbers[chosen], self.words)

    @staticmethod
    def concat(parts: Sequence[Column]) -> Column:
        """Parts of one type, at least one, one behind the other."""
        valid = np.concatenate([part.valid for part in parts])
        kind = parts[0].kind
        if kind in NUMBERS:
            return Column(kind, valid, np.concatenate([part.numbers for part in parts]), [])
        codes: dict[bytes, int] = {}
        numbers = []
        for part in parts:
            place = [codes.setdefault(word, len(codes)) for word in part.words] or [0]
            numbers.append(np.array(place, np.int64)[part.numbers])
        return Column(kind, valid, np.concatenate(numbers), list(codes))

    def encode(self) -> bytes:
        """The bytes in BASE.cat."""
        n, whole = len(self), bool(self.valid.all())
        if not self.valid.any():
            return HEAD.pack(n, ALL_NULL, 0, 0)
        parts = [] if whole else [np.packbits(self.valid, bitorder="little").tobytes()]
        words, wide = list[bytes](), 0
        if self.kind == "bool":
            parts.append(np.packbits(self.numbers, bitorder="little").tobytes())
        elif self.kind in NUMBERS:
            parts.append(self.numbers.astype(self.numbers.dtype.newbyteorder("<")).tobytes())
        else:
            order, codes = np.unique(self.numbers[self.valid], return_inverse=True)
            words = list(map(self.words.__getitem__, order.tolist()))
            if 2 * len(words) <= n:
                wide = 1 if len(words) <= 256 else 2
                row = np.zeros(n, f"<u{wide}")
                row[self.valid] = codes
                parts.append(row.tobytes())
            else:
                words = [text or b"" for text in self.texts()]
            ends = np.cumsum([0, *map(len, words)], dtype=np.int64)
            parts += [ends.astype("<u4").tobytes(), b"".join(words)]
        head = HEAD.pack(n, 0 if whole else SOME_NULL, len(words), wide)
        return head + b"".join(part + bytes(-len(part) % 8) for part in parts)

    @classmethod
    def decode(cls, kind: str, value: bytes, rows: int) -> Column:
        """The inverse. Raises ValueError for bytes that are none of so many rows."""
        try:
            return cls._decoded(kind, value, rows)
        except (struct.error, IndexError) as error:
            raise ValueError(f"values that cannot be: {error}") from None

    @classmethod
    def _decoded(cls, kind: str, value: bytes, rows: int) -> Column:
        n, flags, words, wide = HEAD.unpack_from(value)
        if n != rows:  # before there is room for them
            raise ValueError("a column of another length")
        if flags == ALL_NULL:
            return cls.nulls(kind, n)
        if flags > ALL_NULL or wide not in (0, 1, 2):
            raise ValueError("values that cannot be")
        at, valid = HEAD.size, np.ones(n, bool)
        if flags:
            valid, at = _bits(value, n, at)
        if kind == "bool":
            return cls(kind, valid, _bits(value, n, at)[0], [])
        if kind in NUMBERS:
            form = "<f8" if kind == "float64" else "<i8"
            return cls(kind, valid, np.frombuffer(value, form, n, at), [])
        numbers = np.arange(n)
        if wide:
            numbers = np.frombuffer(value, f"<u{wide}", n, at).astype(np.int64)
            at += _padded(n * wide)
        ends = np.frombuffer(value, "<u4", words + 1, at).tolist()
        at += _padded(4 * (words + 1))
        texts = [value[at + a : at + b] for a, b in itertools.pairwise(ends)]
        if len(numbers) and int(numbers.max()) >= len(texts):
            raise ValueError("values that cannot be")
        return cls(kind, valid, numbers, texts)

    def zone(self) -> tuple[int, int, int]:
        """Nulls, and the least and the greatest `key` of the others; 0, 0: all are null."""
        nulls = len(self) - int(self.valid.sum())
        if nulls == len(self):
            return nulls, 0, 0
        used = self.numbers if not nulls else self.numbers[self.valid]
        if self.kind in NUMBERS:
            keys = keys_of(self.kind, used)
            return nulls, int(keys.min()), int(keys.max())
        texts = list(map(self.words.__getitem__, np.unique(used).tolist()))
        return nulls, key_of(self.kind, min(texts)), key_of(self.kind, max(texts))


def dtype_of(kind: str) -> npt.DTypeLike:
    """Of the numbers of a `Column`."""
    return {"bool": np.bool_, "float64": np.float64}.get(kind, np.int64)


def _number(kind: str, text: bytes | None) -> Any:
    value = to_value(kind, text)
    if kind == "timestamp" and value is not None:
        return (value - EPOCH) // MICROSECOND
    return value


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def _bits(value: bytes, n: int, at: int) -> tuple[Bools, int]:
    size = -(-n // 8)
    raw = np.frombuffer(value, np.uint8, size, at)
    return np.unpackbits(raw, count=n, bitorder="little").view(bool), at + _padded(size)


# --- an order of values as int64: of numbers exactly, of texts by their first 8 bytes ---


def key_of(kind: str, value: Any) -> int:
    """Its place among others: a number as `Column.numbers` has it, or a text."""
    if kind not in NUMBERS:
        return int.from_bytes(value[:8].ljust(8, b"\0"), "big") + LEAST
    return int(keys_of(kind, np.array([value]))[0]) if kind == "float64" else int(value)


def keys_of(kind: str, numbers: npt.NDArray[Any]) -> Int64:
    """The same of many numbers, int64[n]. As Spark has it nan is above all, and 0 equals -0."""
    if kind != "float64":
        return numbers.astype(np.int64)
    bits = (numbers + 0.0).view(np.int64)
    keys = np.where(bits < 0, bits ^ MOST, bits)
    return np.where(np.isnan(numbers), MOST, keys)


# --- Arrow, which only those need who have it ---


def kind_of_arrow(kind: Any) -> str | None:
    """The type of a column for values of this Arrow type; None: there is none."""
    import pyarrow.types as of

    if of.is_dictionary(kind):
        return kind_of_arrow(kind.value_type)
    if of.is_list(kind) or of.is_large_list(kind):
        return "list<string>" if kind_of_arrow(kind.value_type) == "string" else None
    tests = (
        (of.is_string, "string"), (of.is_large_string, "string"), (of.is_binary, "binary"),
        (of.is_large_binary, "binary"), (of.is_fixed_size_binary, "binary"),
        (of.is_boolean, "bool"), (of.is_integer, "int64"), (of.is_floating, "float64"),
        (of.is_timestamp, "timestamp"), (of.is_date, "timestamp"),
    )  # fmt: skip
    return next((found for test, found in tests if test(kind)), None)


def texts_of_arrow(name: str, kind: str, array: Any) -> Texts:
    """The texts of an Arrow array for a column of this type. Raises ValueError in one line."""
    import pyarrow as pa

    if array.type == pa.null():
        return [None] * len(array)
    found = kind_of_arrow(array.type)
    if found != kind and (found, kind) not in (("int64", "float64"), ("string", "binary")):
        raise ValueError(f"column {name} is {kind}, not {array.type}: cast it")
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        if kind in ("string", "binary"):
            texts: Texts = array.cast(pa.large_binary()).to_pylist()
        elif kind == "int64":
            texts = array.cast(pa.int64()).cast(pa.string()).cast(pa.binary()).to_pylist()
        elif kind == "timestamp":
            texts = _texts_of_times(array)
        else:
            write = TO_TEXT[kind]
            texts = [None if value is None else write(value) for value in array.to_pylist()]
        return texts
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
        what = str(error).splitlines()[0] if str(error) else "a value of another type"
        raise ValueError(f"column {name}: {what}") from None


def _texts_of_times(array: Any) -> Texts:
    import pyarrow as pa

    stamped = pa.types.is_timestamp(array.type)
    finer = stamped and array.type.unit == "ns"  # the rest of them have to fit
    form = pa.timestamp("us", array.type.tz if stamped else None)
    numbers = array.cast(form, safe=not finer).cast(pa.int64())
    valid = numbers.is_valid().to_numpy(zero_copy_only=False)
    values = numbers.fill_null(0).to_numpy()
    if len(values) and not (values.min() >= EARLIEST and values.max() <= LATEST):
        raise ValueError("a time that is not in the years 1 to 9999")
    return Column("timestamp", valid, values, []).texts()


def to_arrow(column: Column) -> Any:
    """The same values as an Arrow array: of types as Spark has them."""
    import pyarrow as pa

    kind = column.kind
    if kind in NUMBERS:
        form = {"bool": pa.bool_(), "int64": pa.int64(), "float64": pa.float64()}.get(kind)
        missing = None if column.valid.all() else ~column.valid
        found = pa.array(column.numbers, mask=missing, from_pandas=False)
        return found.cast(form or pa.timestamp("us", "UTC"))
    texts = column.texts()
    if kind == "list<string>":
        return pa.array([to_value(kind, text) for text in texts], pa.list_(pa.string()))
    return pa.array(texts, pa.binary() if kind == "binary" else pa.string())


def arrow_parts(
    batch: Any, schema: Schema, entries: Callable[[Sequence[Texts]], list[bytes]]
) -> Iterator[tuple[Any, ...]]:
    """An Arrow batch in parts as `bulk.BulkPut.put_columns` takes them.

    entries  makes attribute entries of the texts of all columns
    raises   ValueError in one line for columns that are not there, or are of other types;
             TypeError; Refusal without pyarrow
    """
    pa = need("pyarrow", "put_batch")

    if isinstance(batch, pa.Table):
        for one in batch.to_batches():
            yield from arrow_parts(one, schema, entries)
        return
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"it takes an Arrow RecordBatch or Table, not {type(batch).__name__}")
    there = dict(zip(batch.schema.names, batch.columns, strict=True))
    if len(there) < batch.num_columns:
        raise ValueError(f"a column of the batch is there twice: {', '.join(batch.schema.names)}")
    name = "path" if "path" in there else "name"
    for needed in (name, "content"):
        if needed not in there:
            raise ValueError(f"the batch has no column {needed}: it has {', '.join(there)}")
        if there[needed].null_count:
            raise ValueError(f"the column {needed} of the batch has nulls")
        if kind_of_arrow(there[needed].type) not in ("string", "binary"):
            raise ValueError(f"the column {needed} of the batch is {there[needed].type}: cast it")
    for extra in there.keys() - {name, "content", "mtime"} - schema.keys():
        known = ", ".join(schema) or "there are none"
        raise ValueError(f"the container has no column {extra!r} ({known}): add it first")
    for at in range(0, batch.num_rows, ROWS):
        part = {key: column.slice(at, ROWS) for key, column in there.items()}
        names = part[name].cast(pa.large_binary()).to_pylist()
        contents = part["content"].cast(pa.large_binary())
        attrs = None
        if part.keys() & schema.keys():
            none: Texts = [None] * len(names)
            attrs = entries([
                texts_of_arrow(column, kind, part[column]) if column in part else none
                for column, kind in schema.items()
            ])  # fmt: skip
        views = [memoryview(content.as_buffer()) for content in contents]
        yield names, views, _times(part.get("mtime"), len(names)), None, attrs


def _times(array: Any, n: int) -> list[int | None]:
    """mtimes, nanoseconds; None: now. Raises ValueError for one that no file can have."""
    if array is None:
        return [None] * n
    found = times_of_arrow(array)
    if any(ns is not None and not LEAST <= ns <= MOST for ns in found):
        raise ValueError("the column mtime of the batch has a time outside 1677 to 2262")
    return found


def times_of_arrow(array: Any) -> list[int | None]:
    """Nanoseconds, of any number of bits, of timestamps or of seconds."""
    import pyarrow as pa

    if pa.types.is_timestamp(array.type):
        unit = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[array.type.unit]
        found = array.cast(pa.int64()).to_pylist()
        return [None if value is None else value * unit for value in found]
    return [None if value is None else to_ns(value) for value in array.to_pylist()]
