"""Conditions: what they say of files, beside plain Python and SQLite; what zones say of blocks."""

from __future__ import annotations

import functools
import math
import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from container_checks import one_line

from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.typed import to_text
from winkfs.container.where import BUILTIN, Zone, parse

SCHEMA = {
    "lang": "string", "raw": "binary", "good": "bool", "n": "int64", "score": "float64",
    "at": "timestamp", "tags": "list<string>",
}  # fmt: skip
DAY = datetime(2026, 1, 1, tzinfo=UTC)
POOL: dict[str, list[Any]] = {
    "lang": ["", "d", "de", "de-AT", "longer than eight", "longer than nine", "it's", "\u00fc%_"],
    "raw": [b"", b"d", b"de", b"\xff\x00", b"longer than eight"],
    "good": [True, False],
    "n": [-(1 << 63), -2, -1, 0, 1, 2, 3, (1 << 53) + 1, (1 << 63) - 1],
    "score": [math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, 1.0, -1.5, 1e300],
    "at": [DAY + timedelta(hours=hours) for hours in (-400_000, -1, 0, 1, 25)],
    "tags": [[], ["a"], ["a", "b,c"], ["it's", "\u00fc"]],
}
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
    value = rng.choice(POOL[name])
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
    if name == "tags":
        value = rng.choice(["a", "b,c", "it's", "", "\u00fc"])
        words = f"array_contains({spelt}, {quoted(value)})"
        return words, lambda row: None if row[name] is None else value in row[name]
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


def test_random_conditions_agree_with_plain_python() -> None:
    rng = random.Random(3)
    rows = some_rows(rng, 400)
    columns = columns_of(rows)
    seen: set[bool | None] = set()
    for _ in range(1200):
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
        chosen = 0
        for _ in range(600):
            text, _ = some_condition(rng, rng.randrange(4), names)
            if "\\" in text:  # SQLite has no escape but one that is asked for
                continue
            found = [i for i, true in enumerate(truth_of(text, rows)) if true is True]
            wanted = [i for (i,) in db.execute(f"select i from t where {text} order by i")]
            assert found == wanted, text
            chosen += len(found)
    assert chosen > 10_000


# --- zones ---


def zone_of(blocks: list[Column]) -> Zone:
    table = np.array([column.zone() for column in blocks], np.int64).reshape(-1, 3)
    rows = np.array([len(column) for column in blocks], np.int64)
    return Zone(blocks[0].kind, rows, *table.T)


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
    for _ in range(400):
        text, _ = some_condition(rng, rng.randrange(3), list(SCHEMA))
        for words in (text, f"not ({text})"):
            bound = parse(words).bound(SCHEMA)
            possible = bound.possible(zones.get, len(blocks))
            for i, block in enumerate(columns):
                assert possible[i] or not bound.met(block.__getitem__).any(), (words, blocks[i])
            left_out += int((~possible).sum())
    assert left_out > 6000


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
        {"lang": "de", "raw": b"de", "good": True, "n": 1, "score": 0.5, "at": DAY, "tags": ["a"]},
        {"lang": "de", "raw": b"d", "good": False, "n": 2, "score": -1.0, "at": None, "tags": []},
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
        ("array_contains(tags, 5)", "no string"), ("array_contains(lang, 'a')", "lang is string"),
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
