"""Conditions: what they say of files, beside plain Python and SQLite; what zones say of blocks."""

from __future__ import annotations

import functools
import math
import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from container_checks import one_line

from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.typed import to_text
from winkfs.container.where import BUILTIN, Zone, parse

SCHEMA = {
    "lang": "string", "raw": "binary", "good": "bool", "n": "int64", "score": "float64",
    "at": "timestamp", "tags": "list<string>", "day": "date", "local": "datetime",
    "price": "decimal(9,2)", "wide": "decimal(38,10)", "counts": "list<int64>",
    "vector": "list<float64>",
}  # fmt: skip
DAY = datetime(2026, 1, 1, tzinfo=UTC)
POOL: dict[str, list[Any]] = {
    "lang": ["", "d", "de", "de-AT", "longer than eight", "longer than nine", "it's", "\u00fc%_"],
    "raw": [b"", b"d", b"de", b"\xff\x00", b"longer than eight"],
    "good": [True, False],
    "n": [-(1 << 63), -2, -1, 0, 1, 2, 3, (1 << 53) + 1, (1 << 63) - 1],
    "score": [math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, 1.0, -1.5, 1e300],
    "at": [DAY + timedelta(hours=hours) for hours in (-400_000, -1, 0, 1, 25)],
    "tags": [[], ["a"], ["a", "b,c"], ["it's", "\u00fc"], ["a", None], [None]],
    "day": [date(2026, 1, 1) + timedelta(days) for days in (-40_000, -1, 0, 1, 2)],
    "local": [datetime(2026, 1, 1) + timedelta(hours=hours) for hours in (-400_000, -1, 0, 1, 25)],
    "price": [Decimal(text) for text in ("-9999999.99", "-1.50", "0", "1.5", "1.51", "9999999.99")],
    "wide": [
        Decimal(text)
        for text in (
            "-1",
            "-0.0000000001",
            "0",
            "0.0000000001",
            "1.5",
            f"{'9' * 28}.{'9' * 9}8",
            f"{'9' * 28}.{'9' * 10}",
            f"-{'9' * 28}.{'9' * 10}",
        )
    ],
    "counts": [[], [1], [1, 2, 1], [None], [2, None], [(1 << 63) - 1, -(1 << 63)]],
    "vector": [[], [0.5], [0.5, math.inf], [None, -1.5], [math.nan], [-0.0]],
}
LISTED = {"tags": ["a", "b,c", "it's", "", "\u00fc"], "counts": [1, 2, 3, 1.5, -(1 << 63)],
          "vector": [0.5, -1.5, 0, 7]}  # fmt: skip
Row = dict[str, Any]
Test = Callable[[Row], bool | None]


def columns_of(rows: list[Row]) -> dict[str, Column]:
    return {
        name: Column.of(kind, [to_text(name, kind, row[name]) for row in rows])
        for name, kind in SCHEMA.items()
    }


def some_rows(rng: random.Random, count: int, nulls: float = 0.3) -> list[Row]:
    return [
        {name: None if rng.random() < nulls else rng.choice(POOL[name]) for name in SCHEMA}
        for _ in range(count)
    ]


def truth_of(text: str, rows: list[Row]) -> list[bool | None]:
    return truth_in(columns_of(rows), text)


def truth_in(columns: dict[str, Column], text: str) -> list[bool | None]:
    """True: it is true of a file, False: its opposite is."""
    found, other = (
        parse(words).bound(SCHEMA).met(columns.__getitem__) for words in (text, f"not ({text})")
    )
    assert not (found & other).any()
    pairs = zip(found.tolist(), other.tolist(), strict=True)
    return [True if true else False if false else None for true, false in pairs]


# --- the same in plain Python, and the words for it ---


def key(value: Any) -> Any:
    """Nan is above all numbers; strings are bytes."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    if isinstance(value, int):
        return (0, value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value.encode() if isinstance(value, str) else value


SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b, "==": lambda a, b: a == b, "<>": lambda a, b: a != b,
    "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literal(rng: random.Random, name: str) -> tuple[str, Any]:
    """A value as the language writes it, and the same for `key`."""
    kind = SCHEMA[name]
    if kind in ("int64", "float64"):
        value = rng.choice(
            [v for v in POOL[name] if v == v and abs(v) != math.inf] + [2.5, -0.5, 9]
        )
        return repr(value), value
    if kind.startswith("decimal"):
        step = Decimal(rng.choice(["0", "0", "0.004", "-1e-11", "1e40", "-1e40"]))
        with localcontext(prec=100):
            value = rng.choice(POOL[name]) + step
        return rng.choice(["{}", "{:f}", "{:.60f}"]).format(value), value
    value = rng.choice(POOL[name])
    if kind == "date" and rng.random() < 0.5:
        value = datetime(value.year, value.month, value.day, rng.choice([0, 12]))
    if kind in ("date", "datetime"):
        return quoted(value.isoformat()), value
    if kind == "bool":
        return rng.choice(["true", "TRUE"]) if value else "false", value
    if kind == "timestamp":
        return quoted(value.isoformat()), value
    return quoted(
        value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
    ), value


def not_(found: bool | None) -> bool | None:
    return None if found is None else not found


def both(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def either(a: bool | None, b: bool | None) -> bool | None:
    return not_(both(not_(a), not_(b)))


def compare(name: str, sign: str, value: Any) -> Test:
    def test(row: Row) -> bool | None:
        return None if row[name] is None else SIGNS[sign](key(row[name]), key(value))

    return test


def like(name: str, pattern: str) -> Test:
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    regex = "".join(wild.get(part) or re.escape(part[-1]) for part in parts)

    def test(row: Row) -> bool | None:
        value = row[name]
        return None if value is None else re.fullmatch(regex, value, re.DOTALL) is not None

    return test


def contains(items: list[Any] | None, value: Any) -> bool | None:
    """As in SQL: not known of a list that has a null and not the value."""
    if items is None:
        return None
    return True if value in items else None if None in items else False


def some_condition(rng: random.Random, depth: int, names: list[str]) -> tuple[str, Test]:
    """Words, and what they mean."""
    if depth and rng.random() < 0.7:
        a, one = some_condition(rng, depth - 1, names)
        b, other = some_condition(rng, depth - 1, names)
        form = rng.randrange(3)
        if form == 0:
            return f"not ({a})", lambda row: not_(one(row))
        join, word = ((both, "and"), (either, "OR"))[form - 1]
        return f"({a}) {word} ({b})", lambda row: join(one(row), other(row))
    name = rng.choice(names)
    spelt = rng.choice([name, name.upper(), f"`{name}`"])
    form = rng.randrange(8)
    if form == 0:
        negated = rng.random() < 0.5
        words = f"{spelt} is {'NOT ' if negated else ''}null"
        return words, lambda row: (row[name] is None) != negated
    if name in LISTED:
        value = rng.choice(LISTED[name])
        words = f"array_contains({spelt}, {quoted(value) if name == 'tags' else value})"
        return words, lambda row: contains(row[name], value)
    if form == 1 and name == "lang":
        pattern = rng.choice(
            ["de%", "%e%", "_e", "%", "", "l%\\%_", "it's", "\\\u00fc\\%\\_", "__"]
        )
        test = like(name, pattern)
        if rng.random() < 0.5:
            return f"{spelt} not like {quoted(pattern)}", lambda row: not_(test(row))
        return f"{spelt} like {quoted(pattern)}", test
    if form == 2:
        (a, low), (b, high) = literal(rng, name), literal(rng, name)
        one, other = compare(name, ">=", low), compare(name, "<=", high)
        words = rng.choice(["", "not "])
        found: Test = lambda row: both(one(row), other(row))  # noqa: E731
        inside = found if not words else lambda row: not_(both(one(row), other(row)))
        return f"{spelt} {words}between {a} and {b}", inside
    if form == 3:
        pairs = [literal(rng, name) for _ in range(rng.randrange(1, 4))]
        tests = [compare(name, "=", value) for _, value in pairs]
        answer = f"({', '.join(text for text, _ in pairs)})"
        found = lambda row: functools.reduce(either, [test(row) for test in tests])  # noqa: E731
        if rng.random() < 0.5:
            return f"{spelt} not in {answer}", lambda row: not_(found(row))
        return f"{spelt} in{answer}", found
    if form == 4 and name == "good":
        return spelt, lambda row: row[name]
    sign = rng.choice(list(SIGNS))
    text, value = literal(rng, name)
    if form == 5:
        turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(sign, sign)
        return f"{text}{turned}{spelt}", compare(name, sign, value)
    return f"{spelt}{sign}{text}", compare(name, sign, value)


@pytest.mark.slow
def test_random_conditions_agree_with_plain_python() -> None:
    rng = random.Random(3)
    rows = some_rows(rng, 400)
    columns = columns_of(rows)
    seen: set[bool | None] = set()
    for _ in range(500):
        text, test = some_condition(rng, rng.randrange(4), list(SCHEMA))
        found = truth_in(columns, text)
        assert found == [test(row) for row in rows], text
        seen.update(found)
    assert seen == {True, False, None}


@pytest.mark.slow
def test_random_conditions_choose_what_sqlite_chooses() -> None:
    rng = random.Random(4)
    rows = [
        row | {"score": None if row["score"] is None or math.isnan(row["score"]) else row["score"]}
        for row in some_rows(rng, 300)
    ]
    names = ["lang", "good", "n", "score"]
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("pragma case_sensitive_like = on")
        db.execute("create table t (i integer, lang text, good boolean, n integer, score real)")
        db.executemany(
            "insert into t values (?, ?, ?, ?, ?)",
            [(i, *(row[name] for name in names)) for i, row in enumerate(rows)],
        )
        chosen, columns = 0, columns_of(rows)
        for _ in range(600):
            text, _ = some_condition(rng, rng.randrange(4), names)
            if "\\" in text:  # SQLite has no escape but one that is asked for
                continue
            found = [i for i, true in enumerate(truth_in(columns, text)) if true is True]
            wanted = [i for (i,) in db.execute(f"select i from t where {text} order by i")]
            assert found == wanted, text
            chosen += len(found)
    assert chosen > 10_000


# --- zones ---


def zone_of(blocks: list[Column]) -> Zone:
    table = np.array([column.zone() for column in blocks], np.int64).reshape(-1, 3)
    rows = np.array([len(column) for column in blocks], np.int64)
    return Zone(blocks[0].kind, rows, *table.T)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_block_with_a_file_that_is_meant_is_left_out(seed: int) -> None:
    rng = random.Random(seed)
    blocks = []
    for _ in range(60):  # few values each, so that zones are narrow
        few = {name: rng.sample(pool, min(len(pool), rng.randrange(1, 3))) for name, pool in
               POOL.items()}  # fmt: skip
        nulls = rng.choice([0, 0, 0.5, 1])
        blocks.append([
            {name: None if rng.random() < nulls else rng.choice(few[name]) for name in SCHEMA}
            for _ in range(rng.randrange(1, 5))
        ])  # fmt: skip
    columns = [columns_of(block) for block in blocks]
    zones = {name: zone_of([block[name] for block in columns]) for name in SCHEMA}
    left_out = 0
    for _ in range(200):
        text, _ = some_condition(rng, rng.randrange(3), list(SCHEMA))
        for words in (text, f"not ({text})"):
            bound = parse(words).bound(SCHEMA)
            possible = bound.possible(zones.get, len(blocks))
            for i, block in enumerate(columns):
                assert possible[i] or not bound.met(block.__getitem__).any(), (words, blocks[i])
            left_out += int((~possible).sum())
    assert left_out > 3000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("n = 5", [1, 0, 0]), ("n > 9", [0, 1, 0]), ("n >= 9", [1, 1, 0]), ("n < 1", [0, 0, 0]),
        ("n != 5", [1, 1, 0]), ("not n > 0", [0, 0, 0]), ("n is null", [0, 1, 1]),
        ("n is not null", [1, 1, 0]), ("n in (0, 100)", [0, 1, 0]),
        ("n between 8 and 30", [1, 1, 0]),
        ("n > 99 and n < 10", [0, 0, 0]), ("n > 99 or n < 10", [1, 1, 0]),
        ("n < 99999999999999999999", [1, 1, 0]), ("n > 99999999999999999999", [0, 0, 0]),
        ("n > -1e400", [1, 1, 0]), ("n = 5.5", [0, 0, 0]),
    ],
)  # fmt: skip
def test_zones_leave_blocks_out(text: str, wanted: list[int]) -> None:
    blocks = [[1, 5, 9], [10, None, 100], [None, None]]
    made = [Column.of("int64", [to_text("n", "int64", v) for v in block]) for block in blocks]
    zone = zone_of(made)
    found = parse(text).bound(SCHEMA).possible({"n": zone}.get, 3)
    assert found.astype(int).tolist() == wanted


def test_a_zone_of_another_type_leaves_nothing_out() -> None:
    zone = zone_of([Column.of("string", [b"5"])])
    for text in ("n = 7", "n is null", "not n = 7"):
        for words in (text, f"not ({text})"):
            assert parse(words).bound(SCHEMA).possible({"n": zone}.get, 1).tolist() == [True]


def test_a_zone_does_not_separate_strings_with_one_prefix() -> None:
    zone = zone_of([Column.of("string", [b"longer than eight"])])
    for text in ("lang = 'longer than nine'", "lang != 'longer than eight'", "lang < 'longer th'"):
        assert parse(text).bound(SCHEMA).possible({"lang": zone}.get, 1).all()


# --- the language ---


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("price = 1.500", "x"), ("price = 1.505", ""), ("price < 1.505", "xy"),
        ("price > 1e999999999", ""), ("price < 1e999999999999", "xy"),
        ("price > -1e-999999999", "xy"), ("price != 15e-1", "y"),
        ("price >= 0", "xy"), ("price > 0", "x"), ("price = 0.00", "y"), ("price <= 1e-99999", "y"),
        ("price < 1" + 5000 * "0", "xy"), ("wide = 1e99999999999999999999", ""),
        ("wide = 1e-10", "x"), ("wide < 1e-10", "y"), ("day = '2026-01-01'", "x"),
        ("day < '2026-01-01T00:00:00.000001'", "xy"), ("day = '2026-01-01T12:00'", ""),
        ("local = '2026-01-01 00:00'", "x"), ("local <= '2026-01-01'", "x"),
        ("array_contains(counts, 2)", "x"), ("not array_contains(counts, 2)", ""),
        ("array_contains(vector, 1)", "x"), ("not array_contains(vector, 1)", "y"),
        ("lang='de'and n>0", "xy"), ('"de" = lang', "xy"), ("not not lang = 'de'", "xy"),
        ("n = 1 or n = 2 and lang = 'fr'", "x"), ("(n = 1 or n = 2) and lang = 'de'", "xy"),
        ("not n = 1 and lang = 'de'", "y"), ("good", "x"), ("not good", "y"), ("GOOD = True", "x"),
        ("n>-1", "xy"), ("n = +1", "x"), ("n = 1.0", "x"), ("n < 1.5", "x"), ("score > .25", "x"),
        ("score >= 5e-1", "x"), ("at = timestamp '2026-01-01T00:00Z'", "x"), ("n IN(1,2)", "xy"),
        ("at < '2026-01-01T01:00+01:00'", ""), ("lang like 'd_'", "xy"), ("lang like 'D%'", ""),
        ("array_contains(tags,'a')", "x"), ("raw = 'de'", "x"), ("true = good", "x"),
        ("timestamp '2026-01-01T00:00Z' <= at", "x"),
        ("lang = null_", None),
        ("score < 1" + 400 * "0", "xy"), ("score > -1" + 5000 * "0", "xy"),
        ("n < 1" + 5000 * "0", "xy"), ("n > 1" + 400 * "0", ""), ("n = 0" + 5000 * "0", ""),
        ("\n lang\t= 'de' ", "xy"), ("n is not null and not n = 2", "x"),
    ],
)  # fmt: skip
def test_the_language(text: str, wanted: str | None) -> None:
    rows = [
        {
            "lang": "de",
            "raw": b"de",
            "good": True,
            "n": 1,
            "score": 0.5,
            "at": DAY,
            "tags": ["a"],
            "price": Decimal("1.5"),
            "wide": Decimal("1e-10"),
            "day": date(2026, 1, 1),
            "local": datetime(2026, 1, 1),
            "counts": [2, None],
            "vector": [1.0],
        },
        {
            "lang": "de",
            "raw": b"d",
            "good": False,
            "n": 2,
            "score": -1.0,
            "at": None,
            "tags": [],
            "price": Decimal(0),
            "wide": Decimal(-1),
            "day": date(2025, 1, 1),
            "local": None,
            "counts": [None],
            "vector": [],
        },
        dict.fromkeys(SCHEMA),
    ]
    if wanted is None:
        with pytest.raises(ValueError, match="condition lacks a value at 'null_'"):
            parse(text)
        return
    found = truth_of(text, rows)
    assert "".join(name for name, true in zip("xyz", found, strict=True) if true) == wanted


def test_words_of_the_language_name_columns_in_backquotes() -> None:
    column = Column.of("int64", [b"1", b"2"])
    for name in ("select", "null", "in", "a-1", "größe"):
        met = parse(f"`{name}` = 2").bound({name: "int64"}).met(lambda _: column)
        assert met.tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "at its end"), ("  ", "at its end"), ("lang", "compared with True"),
        ("lang = ", "a value at its end"), ("lang = 'de", "read at \"'de\""),
        ("lang = de", "a value at 'de'"), ("lang = 'de' and", "column at its end"),
        ("lang = 'de' n = 1", "after its end at 'n = 1'"), ("(n = 1", "lacks ) at its end"),
        ("n = 1)", "after its end at ')'"), ("n = 1 ; drop", "at '; drop'"), ("n in ()", "at ')'"),
        ("n in 1", "lacks ( at '1'"), ("n is 5", "lacks null at '5'"), ("n not 5", "at '5'"),
        ("n between 1", "lacks and at its end"), ("n == = 1", "at '= 1'"), ("1 = 2", "at '2'"),
        ("n = 1x", "at '1x'"), ("n = 1.2.3", "at '1.2.3'"), ("lang like 5", "no string"),
        (r"lang like 'a\'", "takes nothing"), ("array_contains(tags)", "lacks , at ')'"),
        ("array_contains(lang, 'a')", "lang is string"), ("array_contains(tags, 5)", "element 5"),
        ("array_contains(counts, '1')", "no element '1'"), ("counts = 1", "counts is list<int64>"),
        ("array_contains(vector, true)", "no element True"), ("price = '1'", "price is decimal"),
        ("price = true", "price is decimal"), ("n = 'x'", "n is int64"), ("day = 5", "day is date"),
        ("day = '2026-13-01'", "no date as 2026-11-22"), ("local = 1.5", "compared with 1.5"),
        ("day = '2026-01-01T00:00Z'", "without a zone"), ("local = ''", "no datetime as"),
        ("local > '2026-01-01T00:00+01:00'", "without a zone"), ("lang = 1.50", "with 1.50"),
        ("n like '1'", "n is int64"), ("tags = 'a'", "tags is list<string>"),
        ("n = 'x'", "n is int64"),
        ("lang = 5", "lang is string"), ("good = 1", "good is bool"), ("n = true", "n is int64"),
        ("at = 5", "at is timestamp"), ("at > 'x'", "no time"),
        ("at > '0001-01-01T00:00+09:00'", "no time"),
        ("at > '9999-12-31T23:00-09:00'", "no time"), ("nope = 1", "there is no column 'nope'"),
        ("n = null", "write is null, at 'null'"), ("and", "at 'and'"), ("``=1", "at '``=1'"),
        ("(" * 5000 + "n = 1" + ")" * 5000, "100 levels"), ("not " * 5000 + "n = 1", "100 levels"),
        ("n = 1 \N{MICRO SIGN}m", "after its end"), ("n = \0", "at '"),
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused_with_its_place(text: str, where: str) -> None:
    with pytest.raises(ValueError, match=re.escape(where)) as caught:
        parse(text).bound(SCHEMA)
    one_line(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("what", [5, b"n = 1", ["n = 1"]])
def test_a_condition_is_text(what: Any) -> None:
    with pytest.raises(TypeError, match="a condition is a str, not"):
        parse(what)


@pytest.mark.slow
def test_many_words_are_no_levels() -> None:
    many = " or ".join(f"n = {i}" for i in range(3000))
    assert truth_of(many, [dict.fromkeys(SCHEMA) | {"n": 2}, dict.fromkeys(SCHEMA)]) == [True, None]
    flat = " and ".join(["(not n = 7)"] * 2000)
    assert truth_of(flat, [dict.fromkeys(SCHEMA) | {"n": 2}]) == [True]


def test_a_pattern_of_many_parts_takes_no_forever() -> None:
    rows = [dict.fromkeys(SCHEMA) | {"lang": "a" * 20_000}]
    assert truth_of("lang like '%a%a%a%a%a%b'", rows) == [False]
    assert truth_of("lang like '%a%a_a%a%a%a'", rows) == [True]


def test_what_every_file_has_can_be_asked_of_without_columns() -> None:
    for name, kind in BUILTIN.items():
        value = {"string": "'a'", "timestamp": "'2026-01-01'"}.get(kind, "1")
        assert parse(f"{name.upper()} = {value}").bound({}).columns() == {name}
