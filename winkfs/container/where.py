"""Where: a condition on names, sizes, times and columns, as WHERE of SQL has it.

    lang = 'de' and score > 0.5          = == <> != < <= > >=, and, or, not, ( )
    lang in ('de', 'fr')                 also not in
    score between 0.1 and 0.5            both inclusive
    score is null                        is not null
    path like 'docs/%.html'              % any bytes, _ one character, \\ takes the next as it is
    array_contains(tags, 'news')         of a list<string>
    fetched >= '2026-01-01'              a time: ISO 8601, UTC where it has no zone
    adult, not adult                     of a bool; true, false

As in SQL, null = 'de' is neither true nor false, and only what is true is chosen. Strings are
compared byte by byte, nan is above all numbers. `path`, `size`, `mtime` and `ftype` are of every
file; names of columns are in any case, and `in backquotes` where they are words of this language.

A condition is parsed, bound to the columns that there are, and asked of many files at once; of
parts of a catalog it says first whether any of their files can be meant.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

import numpy as np

from winkformats.arrays import Bools, Int64
from winkfs.container.ondisk.typed import (
    EPOCH,
    LEAST,
    MICROSECOND,
    MOST,
    NUMBERS,
    Column,
    Schema,
    in_utc,
    key_of,
    keys_of,
    to_value,
)
from winkfs.names import after, to_bytes

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
COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
DIGITS: Final = 300  # of a whole number that a float64 can still be nearest to
DEPTH: Final = 100  # of what stands in parentheses, or behind not
Get = Callable[[str], Column]


class Zone(NamedTuple):
    """Of many blocks the files, and of a column its type, and nulls, least and greatest key,
    int64[b] each."""

    kind: str
    rows: Int64
    nulls: Int64
    low: Int64
    high: Int64


class Truth(NamedTuple):
    """Of n files, or of n blocks whether one of their files can be so: bool[n] each."""

    true: Bools
    false: Bools


class Condition:
    """A part of a condition."""

    def columns(self) -> frozenset[str]:
        """Names of the columns it asks for."""
        raise NotImplementedError

    def bound(self, schema: Schema) -> Condition:
        """With columns spelt as they are there, and values of their types. Raises ValueError."""
        raise NotImplementedError

    def named(self, read: Callable[[str], str]) -> Condition:
        """With what it compares `path` with as `read` has it, where names are written otherwise."""
        return self

    def truth(self, get: Get) -> Truth:
        """Which files it is true of, and which it is false of. `get`: the values of a column."""
        raise NotImplementedError

    def possible(self, zone: Callable[[str], Zone | None], blocks: int) -> Truth:
        """Of which blocks it can be true or false for some file. `zone`: None: not known."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Both(Condition):
    """`and` of its parts or, under `either`, `or`."""

    parts: tuple[Condition, ...]
    either: bool = False

    def columns(self) -> frozenset[str]:
        return frozenset().union(*(part.columns() for part in self.parts))

    def bound(self, schema: Schema) -> Condition:
        return replace(self, parts=tuple(part.bound(schema) for part in self.parts))

    def named(self, read: Callable[[str], str]) -> Condition:
        return replace(self, parts=tuple(part.named(read) for part in self.parts))

    def truth(self, get: Get) -> Truth:
        return reduce(self._joined, (part.truth(get) for part in self.parts))

    def _joined(self, a: Truth, b: Truth) -> Truth:
        if self.either:
            return Truth(a.true | b.true, a.false & b.false)
        return Truth(a.true & b.true, a.false | b.false)

    def possible(self, zone: Callable[[str], Zone | None], blocks: int) -> Truth:
        return reduce(self._joined, (part.possible(zone, blocks) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Not(Condition):
    part: Condition

    def columns(self) -> frozenset[str]:
        return self.part.columns()

    def bound(self, schema: Schema) -> Condition:
        return Not(self.part.bound(schema))

    def named(self, read: Callable[[str], str]) -> Condition:
        return Not(self.part.named(read))

    def truth(self, get: Get) -> Truth:
        return Truth(*self.part.truth(get)[::-1])

    def possible(self, zone: Callable[[str], Zone | None], blocks: int) -> Truth:
        return Truth(*self.part.possible(zone, blocks)[::-1])


@dataclass(frozen=True, slots=True)
class Asked(Condition):
    """A condition on one column. `kind`: its type, once it is bound; only: the one type that it is
    for, and what it is called."""

    name: str
    kind: str = ""
    only: ClassVar[tuple[str, str] | None] = None

    def columns(self) -> frozenset[str]:
        return frozenset([self.name])

    def _known(self, schema: Schema) -> tuple[str, str]:
        for name, kind in (*schema.items(), *BUILTIN.items()):
            if name.lower() == self.name.lower():
                return name, kind
        there = ", ".join([*BUILTIN, *schema])
        raise ValueError(f"there is no column {self.name!r}: there are {there}")

    def bound(self, schema: Schema) -> Condition:
        name, kind = self._known(schema)
        if self.only is not None and kind != self.only[0]:
            raise ValueError(f"{self.only[1]}, {name} is {kind}")
        return replace(self, name=name, kind=kind)

    def possible(self, zone: Callable[[str], Zone | None], blocks: int) -> Truth:
        found = zone(self.name)
        if found is None or found.kind != self.kind:
            return Truth(np.ones(blocks, bool), np.ones(blocks, bool))
        return self._possible(found, found.nulls < found.rows)

    def _possible(self, zone: Zone, some: Bools) -> Truth:
        """Of which blocks it can be so. `some`: which have values that are not null."""
        return Truth(some, some)

    def _column(self, get: Get) -> Column:
        """Its values, of the type that it was bound to: a shard of a data set may have another."""
        return get(self.name).cast(self.kind)

    def _decided(self, column: Column, found: Bools) -> Truth:
        """`found`: of each row or, where it has words, of each of these."""
        if column.kind not in NUMBERS:
            found = found[column.numbers] if len(found) else np.zeros(len(column), bool)
        return Truth(found & column.valid, ~found & column.valid)


@dataclass(frozen=True, slots=True)
class Null(Asked):
    """`name is null`."""

    def truth(self, get: Get) -> Truth:
        valid = self._column(get).valid
        return Truth(~valid, valid)

    def _possible(self, zone: Zone, some: Bools) -> Truth:
        return Truth(zone.nulls > 0, some)


@dataclass(frozen=True, slots=True)
class Compare(Asked):
    """`name sign value`. Once it is bound, a value is as `Column` has those of the type."""

    sign: str = "="
    value: Any = None

    def bound(self, schema: Schema) -> Condition:
        name, kind = self._known(schema)
        sign, value = _fitting(name, kind, self.sign, self.value)
        return replace(self, name=name, kind=kind, sign=sign, value=value)

    def named(self, read: Callable[[str], str]) -> Condition:
        of_path = self.name.lower() == "path" and isinstance(self.value, str)
        return replace(self, value=read(self.value)) if of_path else self

    def truth(self, get: Get) -> Truth:
        column, compare = self._column(get), COMPARE[self.sign]
        if self.kind not in NUMBERS:
            words = (compare(word, self.value) for word in column.words)
            return self._decided(column, np.fromiter(words, bool, len(column.words)))
        numbers, value = column.numbers, self.value
        if self.kind == "float64":
            numbers, value = keys_of("float64", numbers), key_of("float64", value)
        return self._decided(column, compare(numbers, value))

    def _possible(self, zone: Zone, some: Bools) -> Truth:
        exactly, key = self.kind in NUMBERS, key_of(self.kind, self.value)
        below, above = (zone.low < key, zone.high > key) if exactly else (
            zone.low <= key, zone.high >= key,
        )  # fmt: skip
        inside = (zone.low <= key) & (zone.high >= key)
        only = inside & (zone.low == zone.high) & exactly
        table = {
            "=": (inside, ~only), "!=": (~only, inside),
            "<": (below, zone.high >= key), ">=": (zone.high >= key, below),
            ">": (above, zone.low <= key), "<=": (zone.low <= key, above),
        }  # fmt: skip
        true, false = table[self.sign]
        return Truth(true & some, false & some)


@dataclass(frozen=True, slots=True)
class Like(Asked):
    """`name like pattern`."""

    pattern: str = ""
    only = "string", "like is for strings"

    def named(self, read: Callable[[str], str]) -> Condition:
        of_path = self.name.lower() == "path"
        return replace(self, pattern=read(self.pattern)) if of_path else self

    def truth(self, get: Get) -> Truth:
        column, match = self._column(get), re.compile(_pattern(self.pattern), re.DOTALL).fullmatch
        found = (match(w.decode("utf-8", "surrogateescape")) is not None for w in column.words)
        return self._decided(column, np.fromiter(found, bool, len(column.words)))


@dataclass(frozen=True, slots=True)
class Holds(Asked):
    """`array_contains(name, value)`."""

    value: str = ""
    only = "list<string>", "array_contains is for list<string>"

    def truth(self, get: Get) -> Truth:
        column = self._column(get)
        found = (self.value in (to_value(self.kind, word) or ()) for word in column.words)
        return self._decided(column, np.fromiter(found, bool, len(column.words)))


def span(where: Condition) -> tuple[bytes, bytes | None]:
    """Return names between which all lie that a bound condition can be true for; None: no bound."""
    if isinstance(where, Both):
        lows, highs = zip(*map(span, where.parts), strict=True)
        known = [high for high in highs if high is not None]
        if where.either:
            return min(lows), max(known) if len(known) == len(highs) else None
        return max(lows), min(known, default=None)
    if isinstance(where, Compare) and where.name == "path" and where.sign != "!=":
        low = where.value if where.sign in ("=", ">", ">=") else b""
        return low, where.value if where.sign in ("=", "<", "<=") else None
    if isinstance(where, Like) and where.name == "path":
        start = to_bytes(re.split(r"[%_\\]", where.pattern, maxsplit=1)[0])
        return start, after(start)
    return b"", None


def _pattern(text: str) -> str:
    parts, escaped = [""], False  # what stands between the %
    for char in text:
        if not escaped and char == "\\":
            escaped = True
            continue
        if char == "%" and not escaped:
            parts.append("")
        else:
            parts[-1] += "." if char == "_" and not escaped else re.escape(char)
        escaped = False
    if escaped:
        raise ValueError(f"the pattern {text!r} ends in a \\ that takes nothing")
    first, *rest = parts
    if not rest:
        return first
    # The first place of each part is as good as any: trying others would take forever.
    return first + "".join(f"(?>.*?{part})" for part in rest[:-1]) + ".*" + rest[-1]


def _fitting(name: str, kind: str, sign: str, value: Any) -> tuple[str, Any]:
    """Sign and value for a column of this type. Raises ValueError."""
    if kind in ("string", "binary") and isinstance(value, str):
        return sign, value.encode("utf-8", "surrogateescape")
    if kind == "bool" and isinstance(value, bool):
        return sign, value
    if kind == "timestamp" and isinstance(value, str):
        try:
            moment = in_utc(datetime.fromisoformat(value.strip()))
        except (ValueError, OverflowError):  # of another year than 1 to 9999
            raise ValueError(f"{value!r} is no time as 2026-11-22T10:00Z") from None
        return sign, (moment - EPOCH) // MICROSECOND
    if isinstance(value, int | float) and not isinstance(value, bool):
        if kind == "float64":
            return sign, float(value)
        if kind == "int64":
            return _whole(sign, value)
    raise ValueError(f"column {name} is {kind}, and cannot be compared with {value!r}")


def _whole(sign: str, value: int | float) -> tuple[str, int]:
    """The same condition on whole numbers; beyond int64 one that is true, or false, of all."""
    if value != value or value in (float("inf"), float("-inf")):
        value = MOST + 1 if value != float("-inf") else LEAST - 1
    low = int(value // 1)
    if low != value:
        if sign in ("=", "!="):
            return sign, MOST + 1  # none is
        sign, low = {"<": ("<", low + 1), ">=": (">=", low + 1)}.get(sign, (sign, low))
    return sign, min(max(low, LEAST - 1), MOST + 1)


# --- the language ---


def parse(text: str) -> Condition:
    """A condition of its text, not bound yet. Raises ValueError that says where it is wrong."""
    if not isinstance(text, str):
        raise TypeError(f"a condition is a str, not {type(text).__name__}")
    return _Parser(text).parsed()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._tokens: list[tuple[str, str, int]] = list(self._split())
        self._next = 0
        self._depth = 0

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
        return Both(tuple(parts), either=either) if len(parts) > 1 else parts[0]

    def _negated(self) -> Condition:
        self._depth += 1
        if self._depth > DEPTH:
            self._fail(f"has more than {DEPTH} levels")
        if self._take("key", "not"):
            found: Condition = Not(self._negated())
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
            if not isinstance(value, str):
                self._fail("asks for no string in a list")
            return Holds(name, value=value)
        kind, word, _ = self._tokens[self._next]
        if kind in ("number", "text") or (kind == "key" and word in ("true", "false", "timestamp")):
            value = self._value()
            sign = self._sign()
            return Compare(self._column(), sign=TURNED[sign], value=value)
        name = self._column()
        if self._take("key", "is"):
            negated = self._take("key", "not")
            self._need("key", "null")
            return Not(Null(name)) if negated else Null(name)
        negated = self._take("key", "not")
        found = self._range(name)
        if found is None and negated:
            self._fail("lacks in, like or between")
        if found is not None:
            return Not(found) if negated else found
        if self._tokens[self._next][0] == "sign" and self._tokens[self._next][1] not in "(),":
            return Compare(name, sign=self._sign(), value=self._value())
        return Compare(name, sign="=", value=True)

    def _range(self, name: str) -> Condition | None:
        if self._take("key", "like"):
            pattern = self._value()
            if not isinstance(pattern, str):
                self._fail("has a pattern that is no string")
            _pattern(pattern)
            return Like(name, pattern=pattern)
        if self._take("key", "between"):
            low = self._value()
            self._need("key", "and")
            high = self._value()
            return Both((Compare(name, sign=">=", value=low), Compare(name, sign="<=", value=high)))
        if self._take("key", "in"):
            self._need("sign", "(")
            values = [self._value()]
            while self._take("sign", ","):
                values.append(self._value())
            self._need("sign", ")")
            return Both(tuple(Compare(name, sign="=", value=v) for v in values), either=True)
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
            return int(number) if whole else float(number)
        if self._tokens[self._next][:2] == ("key", "null"):
            self._fail("compares with null, which is true of no file: say is null,")
        text = self._need("text")
        return text[1:-1].replace(text[0] * 2, text[0])
