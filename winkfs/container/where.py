"""Where: a condition on names, sizes, times and columns, as WHERE of SQL has it.

    lang = 'de' and score > 0.5          = == <> != < <= > >=, and, or, not, ( )
    lang in ('de', 'fr')                 also not in
    score between 0.1 and 0.5            both inclusive
    score is null                        is not null
    path like 'docs/%.html'              % any bytes, _ one character, \\ takes the next as it is
    array_contains(tags, 'news')         of a list<string>, list<int64>, list<float64>
    fetched >= '2026-01-01'              a time: ISO 8601, UTC where it has no zone
    day < '2026-11-22'                   a date, or a datetime, which have no zone
    price = 1.5                          a decimal, by value: 1.50 is the same
    adult, not adult                     of a bool; true, false

As in SQL, null = 'de' is neither true nor false, and only what is true is chosen. Strings are
compared byte by byte, nan is above all numbers. `path`, `size`, `mtime` and `ftype` are of every
file; names of columns are in any case, and `in backquotes` where they are words of this language.

A condition is parsed, bound to the existing columns, and evaluated on many files at once; blocks of
a catalog in which no file can match are excluded first.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import reduce
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from winkformats.arrays import Bools, Int64
from winkfs.container.ondisk.column import DAY_US, Column, is_exact, key_of, keys_of
from winkfs.container.ondisk.typed import (
    EPOCH,
    EXACT,
    LEAST,
    LISTS,
    LOCAL_EPOCH,
    MICROSECOND,
    MOST,
    Schema,
    decimal_of,
    in_utc,
    is_number,
    to_value,
)
from winkfs.names import after, to_bytes, to_str

BUILTIN: Final = {"path": "string", "size": "int64", "mtime": "timestamp", "ftype": "int64"}
TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![\w.])
    |(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    |`(?P<quoted>[^`]+)`
    |(?P<word>[^\W\d][\w.]*(?:-[^\W\d][\w.]*)*)
    |(?P<sign><>|!=|<=|>=|==|[=<>(),]))""",
    re.VERBOSE,
)
WORDS: Final = frozenset(
    ["and", "or", "not", "in", "between", "is", "null", "like", "true", "false", "timestamp",
     "array_contains"]
)  # fmt: skip
SIGNS: Final[dict[str, str]] = {"==": "=", "<>": "!="}
TURNED: Final = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
CAN_BE: Final[dict[str, Callable[[Any, Any, Any], Any]]] = {
    "=": lambda low, high, value: (low <= value) & (high >= value),
    "!=": lambda low, high, value: (low != value) | (high != value),
    "<": lambda low, high, value: low < value, "<=": lambda low, high, value: low <= value,
    ">": lambda low, high, value: high > value, ">=": lambda low, high, value: high >= value,
}  # fmt: skip
"""Whether something from low to high, which both are there, can be so: of a value that is both of
them whether it is."""
BY_KEY: Final = {"<": "<=", ">": ">=", "!=": "not null"}
"""What can be asked of values by keys that some of them share."""
OPPOSITE: Final = {
    "=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "null": "not null",
    "not null": "null", "like": "not like", "not like": "like", "has": "not has", "not has": "has",
}  # fmt: skip
ONLY: Final = {
    "like": (("string",), "like is for strings"),
    "has": (("list<string>", *LISTS), "array_contains is for lists"),
}
DIGITS: Final = 300  # of a whole number that a float64 can still be nearest to
DEPTH: Final = 100  # of what stands in parentheses, or behind not
Get = Callable[[str], Column]


class Zone(NamedTuple):
    """Bounds of a column in b blocks: its type; numbers of files and of nulls, least and greatest
    key, int64[b] each."""

    kind: str
    rows: Int64
    nulls: Int64
    low: Int64
    high: Int64


@dataclass(frozen=True, slots=True)
class Compound:
    """`and` of its parts or, under `either`, `or`."""

    parts: tuple[Condition, ...]
    either: bool = False

    def columns(self) -> frozenset[str]:
        """Return the names of its columns."""
        return frozenset().union(*(part.columns() for part in self.parts))

    def bound(self, schema: Schema) -> Condition:
        """Return it with columns as the schema spells them, and values of their types.

        raises  ValueError
        """
        return replace(self, parts=tuple(part.bound(schema) for part in self.parts))

    def named(self, read: Callable[[str], str]) -> Condition:
        """Return it with the values that are compared with `path` converted by `read`, for names in
        another notation."""
        return replace(self, parts=tuple(part.named(read) for part in self.parts))

    def opposite(self) -> Condition:
        """Return its negation."""
        return Compound(tuple(part.opposite() for part in self.parts), not self.either)

    def met(self, get: Get) -> Bools:
        """Return for which files it is true, bool[n]. `get`: returns the values of a column."""
        return self._joined([part.met(get) for part in self.parts])

    def possible(self, zone: Callable[[str], Zone | None], blocks: int) -> Bools:
        """Return in which blocks it can be true for some file, bool[b]. `zone`: returns the bounds
        of a column, None: not known."""
        return self._joined([part.possible(zone, blocks) for part in self.parts])

    def _joined(self, parts: list[Bools]) -> Bools:
        return reduce(operator.or_ if self.either else operator.and_, parts)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition on one column, with the methods of `Compound`.

    sign   one of OPPOSITE: `has` is array_contains
    value  of the comparison; once bound, as in a `Column` of the type
    kind   type of the column, once bound: in a shard of a data set it may differ
    """

    name: str
    sign: str
    value: Any = None
    kind: str = ""

    def columns(self) -> frozenset[str]:
        return frozenset([self.name])

    def bound(self, schema: Schema) -> Condition:
        name, kind = self._known(schema)
        only, what = ONLY.get(self.sign.removeprefix("not "), ((kind,), ""))
        if kind not in only:
            raise ValueError(f"{what}, {name} is {kind}")
        value = self.value
        if self.sign in CAN_BE:
            value = _fitting(name, kind, self.sign, value)
        elif self.sign.endswith("has"):
            value = _element(name, kind, value)
        return Comparison(name, self.sign, value, kind)

    def _known(self, schema: Schema) -> tuple[str, str]:
        for name, kind in (*schema.items(), *BUILTIN.items()):
            if name.lower() == self.name.lower():
                return name, kind
        there = ", ".join([*BUILTIN, *schema])
        raise ValueError(f"there is no column {self.name!r}: there are {there}")

    def named(self, read: Callable[[str], str]) -> Condition:
        of_path = self.name.lower() == "path" and isinstance(self.value, str)
        return replace(self, value=read(self.value)) if of_path else self

    def opposite(self) -> Condition:
        return replace(self, sign=OPPOSITE[self.sign])

    def met(self, get: Get) -> Bools:
        column = get(self.name).cast(self.kind)
        if column.lists is not None and self.sign.endswith("has"):
            met = np.append(column.lists.having(self.value, self.sign == "has"), False)
            found: Bools = column.valid & met[column.numbers]
            return found
        if self.sign in CAN_BE and not is_exact(self.kind):
            each: Bools = CAN_BE[self.sign](column.numbers, column.numbers, self.value)
            return each.astype(bool) & column.valid
        if is_number(self.kind) or self.sign in ("null", "not null"):
            keys = keys_of(self.kind, column.numbers)
            zone = Zone(self.kind, np.ones(len(keys), np.int64), 1 - column.valid, keys, keys)
            return self.possible(lambda name: zone, len(keys))  # each file is a block
        words = column.words or [b""]
        found = np.fromiter(map(self._of_text(), words), bool, len(words))[column.numbers]
        return found & column.valid

    def _of_text(self) -> Callable[[bytes], bool]:
        """Return the test of a text."""
        negated = self.sign.startswith("not ")
        if self.sign in CAN_BE:
            return lambda text: CAN_BE[self.sign](text, text, self.value)
        if self.sign.endswith("like"):
            match = re.compile(_pattern(self.value), re.DOTALL).fullmatch
            return lambda text: (match(to_str(text)) is None) == negated
        return self._of_list

    def _of_list(self, text: bytes) -> bool:
        """Return whether a list has the value or, negated, has neither it nor a null: as in SQL."""
        items = to_value(self.kind, text) or ()
        if self.sign == "has":
            return self.value in items
        return self.value not in items and None not in items

    def possible(self, zone: Callable[[str], Zone | None], blocks: int) -> Bools:
        found = zone(self.name)
        if found is None or found.kind != self.kind:
            return np.ones(blocks, bool)
        if self.sign == "null":
            return found.nulls > 0
        some: Bools = found.nulls < found.rows
        exact = is_number(self.kind) and is_exact(self.kind)
        sign = self.sign if exact else BY_KEY.get(self.sign, self.sign)
        if sign in CAN_BE:
            some &= CAN_BE[sign](found.low, found.high, key_of(self.kind, self.value))
        return some


Condition = Compound | Comparison


def span(where: Condition) -> tuple[bytes, bytes | None]:
    """Return names between which all lie that a bound condition can be true for; None: no bound."""
    if isinstance(where, Compound):
        lows, highs = zip(*map(span, where.parts), strict=True)
        known = [high for high in highs if high is not None]
        if where.either:
            return min(lows), max(known) if len(known) == len(highs) else None
        return max(lows), min(known, default=None)
    if where.name == "path" and where.sign == "like":
        start = to_bytes(re.split(r"[%_\\]", where.value, maxsplit=1)[0])
        return start, after(start)
    of_path = where.name == "path"
    low = where.value if of_path and where.sign in ("=", ">", ">=") else b""
    return low, where.value if of_path and where.sign in ("=", "<", "<=") else None


def _pattern(text: str) -> str:
    parts = [""]  # expressions between the %
    for token in re.findall(r"\\?.", text, re.DOTALL):
        if token == "\\":
            raise ValueError(f"the pattern {text!r} ends in a \\ that takes nothing")
        if token == "%":
            parts.append("")
        else:
            parts[-1] += "." if token == "_" else re.escape(token[-1])
    first, *rest = parts
    if not rest:
        return first
    # The first match of each part suffices; backtracking could take exponential time.
    return first + "".join(f"(?>.*?{part})" for part in rest[:-1]) + ".*" + rest[-1]


def _fitting(name: str, kind: str, sign: str, value: Any) -> Any:
    """Return a literal as a value of a column's type. Raises ValueError."""
    if kind in ("string", "binary") and isinstance(value, str):
        return to_bytes(value)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "timestamp" and isinstance(value, str):
        try:
            moment = in_utc(datetime.fromisoformat(value.strip()))
        except (ValueError, OverflowError):  # of another year than 1 to 9999
            raise ValueError(f"{value!r} is no time as 2026-11-22T10:00Z") from None
        return (moment - EPOCH) // MICROSECOND
    if kind in ("date", "datetime") and isinstance(value, str):
        us = _local(kind, value)
        return us if kind == "datetime" else _whole(sign, Fraction(us, DAY_US))
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        if kind == "float64":
            return float(value)
        if kind == "int64":
            return _whole(sign, value)
        if parameters := decimal_of(kind):
            least = 10 ** parameters[0]
            some = min(max(Decimal(value), Decimal(-least)), Decimal(least))
            many = EXACT.scaleb(some, parameters[1])
            return _whole(sign, many, -least, least)
    shown = str(value) if isinstance(value, Decimal) else repr(value)
    raise ValueError(f"column {name} is {kind}, and cannot be compared with {shown}")


def _exact(number: str) -> Decimal | float:
    """Return the value of a number, exactly; a float if its exponent is beyond that of decimals."""
    try:
        return Decimal(number)
    except InvalidOperation:
        return float(number)


def _local(kind: str, text: str) -> int:
    """Return microseconds of a time without a zone. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            return (moment - LOCAL_EPOCH) // MICROSECOND
    except ValueError:
        pass
    form = "2026-11-22" if kind == "date" else "2026-11-22T10:00"
    raise ValueError(f"{text!r} is no {kind} as {form}, without a zone")


def _element(name: str, kind: str, value: Any) -> Any:
    """Return a literal as an element of a list. Raises ValueError."""
    if kind not in LISTS and isinstance(value, str):
        return value
    if kind in LISTS and isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return float(value) if LISTS[kind] == "float64" else _whole("=", value)
    raise ValueError(f"column {name} is {kind}, and has no element {value!r}")


def _whole(
    sign: str, value: float | Decimal | Fraction, least: int = LEAST, most: int = MOST
) -> int:
    """The whole number for the same condition on whole numbers; beyond the least and the most one
    that makes it true, or false, of all."""
    value = min(max(value, least - 1), most + 1)
    low = math.floor(value)
    if low == value or sign in ("<=", ">"):
        return low
    return low + 1 if sign in ("<", ">=") else most + 1  # none equals it


# --- the language ---


def parse(text: str) -> Condition:
    """Parse a condition, which is not bound yet. Raises ValueError with the place of the error."""
    if not isinstance(text, str):
        raise TypeError(f"a condition is a str, not {type(text).__name__}")
    return _Parser(text).parsed()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = list(self._split())
        self._next, self._depth = 0, 0

    def _split(self) -> Iterator[tuple[str, str, int]]:
        text, at = self._text.rstrip(), 0
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None:
                raise self._fault("cannot be read", at)
            kind = str(found.lastgroup)
            value, start = found[kind], found.start(kind)
            if kind == "word" and value.lower() in WORDS:
                kind, value = "key", value.lower()
            yield kind, value, start
            at = found.end()
        yield "end", "", len(text)

    def _fail(self, what: str) -> NoReturn:
        raise self._fault(what, self._tokens[self._next][2])

    def _fault(self, what: str, at: int) -> ValueError:
        rest = self._text[at : at + 30].strip()
        where = f"at {rest!r}" if rest else "at its end"
        return ValueError(f"the condition {what} {where}; it is like lang = 'de' and size > 0")

    def _take(self, kind: str, *values: str) -> str | None:
        found, value, _ = self._tokens[self._next]
        if found != kind or (values and value not in values):
            return None
        self._next += 1
        return value

    def _need(self, kind: str, *values: str) -> str:
        found = self._take(kind, *values)
        if found is None:
            wanted = {"word": "the name of a column", "text": "a value"}.get(kind, kind)
            self._fail(f"lacks {' or '.join(values) or wanted}")
        return found

    def parsed(self) -> Condition:
        found = self._joined(either=True)
        if self._tokens[self._next][0] != "end":
            self._fail("goes on after its end")
        return found

    def _joined(self, *, either: bool) -> Condition:
        """Parts between `or` or, in each of these, between `and`."""
        word, parts = "or" if either else "and", list[Condition]()
        while not parts or self._take("key", word):
            parts.append(self._joined(either=False) if either else self._negated())
        return Compound(tuple(parts), either=either) if len(parts) > 1 else parts[0]

    def _negated(self) -> Condition:
        self._depth += 1
        if self._depth > DEPTH:
            self._fail(f"has more than {DEPTH} levels")
        if self._take("key", "not"):
            found = self._negated().opposite()
        elif self._take("sign", "("):
            found = self._joined(either=True)
            self._need("sign", ")")
        else:
            found = self._asked()
        self._depth -= 1
        return found

    def _asked(self) -> Condition:
        if self._take("key", "array_contains"):
            self._need("sign", "(")
            name = self._column()
            self._need("sign", ",")
            value = self._value()
            self._need("sign", ")")
            return Comparison(name, "has", value)
        kind, word, _ = self._tokens[self._next]
        if kind in ("number", "text") or (kind == "key" and word in ("true", "false", "timestamp")):
            value = self._value()
            sign = self._sign()
            return Comparison(self._column(), TURNED[sign], value)
        name = self._column()
        null = self._take("key", "is")
        negated = self._take("key", "not")
        if null:
            self._need("key", "null")
        found = Comparison(name, "null") if null else self._range(name)
        if found is not None:
            return found.opposite() if negated else found
        if negated:
            self._fail("lacks in, like or between")
        if self._tokens[self._next][0] == "sign" and self._tokens[self._next][1] not in "(),":
            return Comparison(name, self._sign(), self._value())
        return Comparison(name, "=", True)

    def _range(self, name: str) -> Condition | None:
        if self._take("key", "like"):
            pattern = self._value()
            if not isinstance(pattern, str):
                self._fail("has a pattern that is no string")
            _pattern(pattern)
            return Comparison(name, "like", pattern)
        if self._take("key", "between"):
            low = self._value()
            self._need("key", "and")
            return Compound((Comparison(name, ">=", low), Comparison(name, "<=", self._value())))
        if self._take("key", "in"):
            self._need("sign", "(")
            values = [self._value()]
            while self._take("sign", ","):
                values.append(self._value())
            self._need("sign", ")")
            return Compound(tuple(Comparison(name, "=", value) for value in values), either=True)
        return None

    def _column(self) -> str:
        return self._take("quoted") or self._need("word")

    def _sign(self) -> str:
        sign = self._need("sign", "=", "==", "<>", "!=", "<", "<=", ">", ">=")
        return SIGNS.get(sign, sign)

    def _value(self) -> Any:
        self._take("key", "timestamp")
        if word := self._take("key", "true", "false"):
            return word == "true"
        if (number := self._take("number")) is not None:
            whole = re.fullmatch(r"[+-]?[0-9]+", number) and len(number) <= DIGITS
            return int(number) if whole else _exact(number)
        if self._tokens[self._next][:2] == ("key", "null"):
            self._fail("compares with null, which is true of no file: write is null,")
        text = self._need("text")
        return text[1:-1].replace(text[0] * 2, text[0])
