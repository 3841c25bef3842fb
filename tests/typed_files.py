"""Files with columns of all types, questions to them, and the answers of a plain loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import winkfs
from winkfs import Container

SCHEMA = {
    "lang": "string", "raw": "binary", "good": "bool", "n": "int64", "score": "float64",
    "at": "timestamp", "tags": "list<string>", "day": "date", "local": "datetime",
    "price": "decimal(12,3)", "wide": "decimal(38,10)", "counts": "list<int64>",
    "vector": "list<float64>",
}  # fmt: skip
DAY = datetime(2026, 1, 1, tzinfo=UTC)
Values = dict[str, Any]

EDGES: dict[str, list[Any]] = {
    "lang": ["", "de", "en", "fr", "it's\t\n", "\u00fc\U0001f600", "a longer word",
             "a longer word too"],
    "raw": [b"", b"\0", b"\xff\xc3", b"plain", b"x" * 3000],
    "good": [True, False],
    "n": [-(1 << 63), -1, 0, 1, 1000, (1 << 63) - 1],
    "score": [math.nan, math.inf, -math.inf, -0.0, 0.0, 0.1, 1e300],
    "at": [DAY, DAY + timedelta(microseconds=1), datetime(1, 1, 1, tzinfo=UTC),
           datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
    "tags": [[], [""], ["a", 'b,"c"'], ["\u00fc"], ["a", None], [None]],
    "day": [date(2026, 1, 1), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31)],
    "local": [datetime(2026, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999),
              datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)],
    "price": [Decimal("0.000"), Decimal("19.990"), Decimal("-19.990"), Decimal("999999999.999")],
    "wide": [Decimal("0E-10"), Decimal("0.0000000001"), Decimal("-0.0000000001"),
             Decimal(f"{'9' * 28}.{'9' * 10}"), Decimal(f"-{'9' * 28}.{'9' * 10}"),
             Decimal(f"{'9' * 28}.{'9' * 9}8")],
    "counts": [[], [0], [-(1 << 63), None, (1 << 63) - 1], [7, 7], [None]],
    "vector": [[], [0.5], [math.nan, math.inf, -math.inf, None], [-0.0, 1e300]],
}  # fmt: skip


def values(i: int) -> Values:
    """Of the i-th file: edge values in turn, some of them null."""
    found: Values = {}
    for number, (name, pool) in enumerate(EDGES.items()):
        at = i * (number + 3) // 2 + number
        found[name] = None if (i + number) % 5 == 0 else pool[at % len(pool)]
    return found


def files(count: int, start: int = 0) -> Iterator[tuple[str, bytes, float, Values]]:
    """For put_many; every seventh has no values."""
    for i in range(start, start + count):
        yield f"d{i % 3}/f{i:05d}", b"%d" % i * (i % 4), 1e9 + i, values(i) if i % 7 else {}


def nulls() -> Values:
    return dict.fromkeys(SCHEMA)


def same(a: Any, b: Any) -> bool:
    """Equal, and nan is nan."""
    return repr(a) == repr(b)


def known(container: Any) -> dict[str, Values]:
    """The values of all files, one by one."""
    return {entry.name: container.getcolumns(entry.name) for entry in container.scan()}


def assert_values(container: Any, wanted: dict[str, Values]) -> None:
    found = known(container)
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        assert same(found[name], nulls() | one), name


QUESTIONS: list[tuple[str, Callable[[str, Values], bool | None]]] = [
    ("lang = 'de'", lambda name, v: v["lang"] == "de"),
    ("lang > 'a longer word' and not good", lambda name, v: v["lang"] is not None
     and v["lang"].encode() > b"a longer word" and v["good"] is False),
    ("raw is not null and raw <= 'p'", lambda name, v: v["raw"] is not None and v["raw"] <= b"p"),
    ("good", lambda name, v: v["good"]),
    ("n > 0 or n is null", lambda name, v: v["n"] is None or v["n"] > 0),
    ("n in (0, 1000, -9223372036854775808)", lambda name, v: v["n"] in (0, 1000, -(1 << 63))),
    ("score > 1e308", lambda name, v: v["score"] is not None
     and (math.isnan(v["score"]) or v["score"] > 1e308)),
    ("score = 0", lambda name, v: v["score"] == 0),
    ("score between -1 and 0.5",
     lambda name, v: v["score"] is not None and -1 <= v["score"] <= 0.5),
    ("at > '2026-01-01T00:00Z'", lambda name, v: v["at"] is not None and v["at"] > DAY),
    ("at < '1900-01-01'", lambda name, v: v["at"] is not None and v["at"].year < 1900),
    ("array_contains(tags, 'a')", lambda name, v: v["tags"] is not None and "a" in v["tags"]),
    ("day >= '2026-01-01'", lambda name, v: v["day"] is not None and v["day"] >= date(2026, 1, 1)),
    ("day between '1900-01-01' and '2026-01-01T12:00'",
     lambda name, v: v["day"] is not None and 1900 <= v["day"].year <= 2026),
    ("local < '2026-01-01'",
     lambda name, v: v["local"] is not None and v["local"] < datetime(2026, 1, 1)),
    ("price = 19.99", lambda name, v: v["price"] == Decimal("19.99")),
    ("price <= -19.9899999", lambda name, v: v["price"] is not None and v["price"] < -19),
    ("wide != 0.00000000010", lambda name, v: v["wide"] is not None
     and v["wide"] != Decimal("1e-10")),
    ("wide > 9999999999999999999999999999.9999999998",
     lambda name, v: v["wide"] == EDGES["wide"][3]),
    ("array_contains(counts, 7)", lambda name, v: v["counts"] is not None and 7 in v["counts"]),
    ("not array_contains(vector, 0.5)",
     lambda name, v: v["vector"] is not None and not {0.5, None} & {*v["vector"]}),
    ("tags is null", lambda name, v: v["tags"] is None),
    ("path like 'd1/%' and lang is not null",
     lambda name, v: name.startswith("d1/") and v["lang"] is not None),
    ("lang = 'nowhere'", lambda name, v: False),
]  # fmt: skip


SOME = [text for text, _ in QUESTIONS[::4]]


def assert_answers(container: Any, questions: Iterable[str] | None = None) -> int:
    """`scan`, and `names` of a container, choose what a loop over all files does -> how many."""
    all_of, total = known(container), 0
    for text, test in QUESTIONS:
        if questions is not None and text not in questions:
            continue
        wanted = sorted(name for name, one in all_of.items() if test(name, one))
        assert sorted(entry.name for entry in container.scan(where=text)) == wanted, text
        if isinstance(container, Container):
            names = list(container.names(where=text))
            assert sorted(names) == wanted, text
            assert names == sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape"))
        total += len(wanted)
    return total


def make(base: Any, count: int = 60, **settings: Any) -> dict[str, Values]:
    """A container with such files -> what it has."""
    with winkfs.create(base, columns=SCHEMA, **settings) as container:
        container.put_many(files(count))
    return {name: one for name, _, _, one in files(count)}
