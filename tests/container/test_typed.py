"""Columns of the user: each type as value, text, block and zone; hostile bytes of all of them."""

import math
import random
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_checks import one_line
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import winkfs
from winkfs.container.ondisk.column import HEAD, Column, key_of
from winkfs.container.ondisk.typed import (
    RECORD,
    TAKEN,
    TYPES,
    canonical,
    check_schema,
    decimal_of,
    is_number,
    later_words,
    pack,
    parse_schema,
    schema_text,
    split,
    to_attributes,
    to_text,
    to_value,
    to_values,
)

pytestmark = pytest.mark.in_memory

FIRST = datetime(1, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
KINDS = (
    *TYPES,
    "decimal(5,2)",
    "decimal(18,18)",
    "decimal(19,0)",
    "decimal(38,38)",
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXT,
    "binary": st.binary(max_size=12),
    "bool": st.booleans(),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "float64": st.floats(),
    "timestamp": st.datetimes(timezones=st.just(UTC)).map(lambda t: t.replace(fold=0)),
    "list<string>": st.lists(st.none() | TEXT, max_size=4),
    "date": st.dates(),
    "datetime": st.datetimes().map(lambda t: t.replace(fold=0)),
    "list<int64>": st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1), max_size=4),
    "list<float64>": st.lists(st.none() | st.floats(), max_size=4),
}
for kind in KINDS:
    if digits := decimal_of(kind):
        most = 10 ** digits[0] - 1
        VALUES[kind] = st.integers(-most, most).map(
            lambda number, scale=digits[1]: to_value(
                f"decimal(38,{scale})", b"%de-%d" % (number, scale)
            )
        )
EDGES: list[tuple[str, Any, bytes]] = [
    ("string", "", b""),
    ("string", "a\0\t\n\u00fc\U0001f600", "a\0\t\n\u00fc\U0001f600".encode()),
    ("binary", b"\0\xff\xc3", b"\0\xff\xc3"),
    ("binary", b"", b""),
    ("bool", True, b"true"),
    ("bool", False, b"false"),
    ("int64", 0, b"0"),
    ("int64", -(1 << 63), b"-9223372036854775808"),
    ("int64", (1 << 63) - 1, b"9223372036854775807"),
    ("float64", -0.0, b"-0.0"),
    ("float64", math.inf, b"inf"),
    ("float64", -math.inf, b"-inf"),
    ("float64", 5e-324, b"5e-324"),
    ("float64", 0.1, b"0.1"),
    ("timestamp", FIRST, b"0001-01-01T00:00:00.000000Z"),
    ("timestamp", LAST, b"9999-12-31T23:59:59.999999Z"),
    ("date", date(1, 1, 1), b"0001-01-01"),
    ("date", date(9999, 12, 31), b"9999-12-31"),
    ("date", date(1969, 12, 31), b"1969-12-31"),
    ("datetime", datetime(1, 1, 1), b"0001-01-01T00:00:00.000000"),
    ("datetime", LAST.replace(tzinfo=None), b"9999-12-31T23:59:59.999999"),
    ("decimal(5,2)", Decimal("-999.99"), b"-999.99"),
    ("decimal(5,2)", Decimal("0.00"), b"0.00"),
    ("decimal(5,2)", Decimal("-0.05"), b"-0.05"),
    ("decimal(1,0)", Decimal(-7), b"-7"),
    ("decimal(18,0)", Decimal("999999999999999999"), b"999999999999999999"),
    ("decimal(19,0)", Decimal("-9999999999999999999"), b"-9999999999999999999"),
    ("decimal(19,1)", Decimal("0.1"), b"0.1"),
    ("decimal(38,38)", Decimal("0." + "9" * 38), b"0." + b"9" * 38),
    ("decimal(38,38)", Decimal("-0." + "0" * 37 + "1"), b"-0." + b"0" * 37 + b"1"),
    ("decimal(38,0)", Decimal("-" + "9" * 38), b"-" + b"9" * 38),
    ("list<int64>", [], b"[]"),
    (
        "list<int64>",
        [-(1 << 63), None, (1 << 63) - 1],
        b"[-9223372036854775808,null,9223372036854775807]",
    ),
    ("list<float64>", [], b"[]"),
    (
        "list<float64>",
        [math.nan, math.inf, -math.inf, -0.0, None, 0.1, 1e300],
        b"[NaN,Infinity,-Infinity,-0.0,null,0.1,1e+300]",
    ),
    ("list<float64>", [0.5] * 100_000, b"[" + b",".join([b"0.5"] * 100_000) + b"]"),
    ("list<int64>", list(range(100_000)), b"[%b]" % b",".join(b"%d" % i for i in range(100_000))),
    ("list<string>", ["a", None, "null"], b'["a",null,"null"]'),
    ("list<string>", [], b"[]"),
    ("list<string>", ["", 'a,"b"', "[]", "\u00fc\n"], '["","a,\\"b\\"","[]","\u00fc\\n"]'.encode()),
]


def same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)  # nan, and which zero it is


def decimals(kind: str, number: int) -> Decimal:
    """A decimal of a type that has these digits, as far as it has room for them."""
    precision, scale = decimal_of(kind) or (0, 0)
    shorter = abs(number) % 10**precision * (-1 if number < 0 else 1)
    return Decimal((number < 0, tuple(map(int, str(abs(shorter)))), -scale))


# --- values and texts ---


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "value", "text"), EDGES)
def test_a_value_is_its_text_and_back(kind: str, value: Any, text: bytes) -> None:
    assert to_text("x", kind, value) == text
    assert same(to_value(kind, text), value)
    assert canonical(kind, text) == text


def test_null_has_no_text_in_any_type() -> None:
    for kind in KINDS:
        assert to_text("x", kind, None) is None
        assert to_value(kind, None) is None


def test_nan_stays_nan() -> None:
    assert to_text("x", "float64", math.nan) == b"nan"
    assert math.isnan(to_value("float64", b"nan"))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_any_value_comes_back_from_its_text(kind: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind])
    text = to_text("x", kind, value)
    assert text is not None
    assert same(to_value(kind, text), value)
    assert canonical(kind, text) == text


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("int64", 7.0, b"7"),
        ("int64", np.int64(7), b"7"),
        ("float64", 7, b"7.0"),
        ("float64", np.float32(0.5), b"0.5"),
        ("bool", np.bool_(True), b"true"),
        ("binary", bytearray(b"ab"), b"ab"),
        ("binary", memoryview(b"ab"), b"ab"),
        ("timestamp", 0, b"1970-01-01T00:00:00.000000Z"),
        ("timestamp", -1.5, b"1969-12-31T23:59:58.500000Z"),
        ("timestamp", datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
         b"2026-01-01T00:00:00.000000Z"),
        ("decimal(5,2)", 7, b"7.00"),
        ("decimal(5,2)", np.int64(-7), b"-7.00"),
        ("decimal(5,2)", Decimal("1.5000"), b"1.50"),
        ("decimal(5,2)", Decimal("-0"), b"0.00"),
        ("decimal(5,2)", Decimal("0e999999"), b"0.00"),
        ("decimal(5,2)", Decimal("1e2"), b"100.00"),
        ("list<int64>", (1, np.int8(2)), b"[1,2]"),
        ("list<int64>", np.arange(3), b"[0,1,2]"),
        ("list<int64>", [1.0], b"[1]"),
        ("list<float64>", [1, np.float32(0.5)], b"[1.0,0.5]"),
        ("list<float64>", np.array([0.5, math.nan], np.float32), b"[0.5,NaN]"),
        ("list<string>", ("a", "b"), b'["a","b"]'),
        ("list<string>", iter(["a", "b"]), b'["a","b"]'),
    ],
)  # fmt: skip
def test_what_is_as_good_as_a_value_is_taken(kind: str, value: Any, text: bytes) -> None:
    assert to_text("x", kind, value) == text


def test_a_time_without_a_zone_is_utc_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pa = pytest.importorskip("pyarrow")
    naive, noon = datetime(2026, 7, 1, 12), datetime(2026, 7, 1, 12, tzinfo=UTC)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert to_value("timestamp", b"2026-07-01T12:00") == noon
        assert canonical("timestamp", b"2026-07-01T12:00") == b"2026-07-01T12:00:00.000000Z"
        with winkfs.create(tmp_path / "c", columns={"t": "timestamp"}) as c:
            c.put("put", b"1", columns={"t": naive})
            c.put_many([("many", b"1", None, {"t": naive})])
            c.put("set", b"1")
            c.setcolumns("set", {"t": naive})
            c.put("attribute", b"1")
            c.setxattrs("attribute", {b"user.t": b"2026-07-01 12:00"})
            c.put("seconds", b"1", columns={"t": noon.timestamp()})
            for name, zone in (("naive", None), ("utc", "UTC"), ("tokyo", "Asia/Tokyo")):
                times = pa.array([noon if zone else naive], pa.timestamp("us", zone))
                c.put_batch(pa.table({"path": [name], "content": [b"1"], "t": times}))
            names = set(c.names())
            assert len(names) == 8
            assert {name: c.getcolumns(name)["t"] for name in names} == dict.fromkeys(names, noon)
            for text in ("2026-07-01T12:00", "2026-07-01T12:00Z", "2026-07-01T21:00+09:00"):
                assert set(c.names(where=f"t = '{text}'")) == names
            c.put("m", b"", mtime=noon.timestamp())
            assert list(c.names(where="mtime = '2026-07-01T12:00'")) == ["m"]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", b"a"), ("string", 5), ("string", "\ud800"),
        ("binary", "a"), ("binary", 5), ("binary", [1]),
        ("bool", 1), ("bool", "true"), ("bool", 0.0),
        ("int64", 1 << 63), ("int64", -(1 << 63) - 1), ("int64", 1.5), ("int64", True),
        ("int64", np.bool_(True)), ("int64", "1"), ("int64", math.nan), ("int64", math.inf),
        ("float64", "1"), ("float64", b"1"), ("float64", True), ("float64", np.bool_(True)),
        ("float64", 10**400), ("float64", []),
        ("timestamp", "2026-01-01"), ("timestamp", True), ("timestamp", math.nan),
        ("timestamp", 1e300), ("timestamp", math.inf), ("timestamp", 253_402_300_800),
        ("date", datetime(2026, 1, 1)), ("date", "2026-01-01"), ("date", 5),
        ("datetime", FIRST), ("datetime", date(2026, 1, 1)), ("datetime", 5.0),
        ("datetime", "2026-01-01"), ("timestamp", date(2026, 1, 1)),
        ("decimal(5,2)", Decimal("0.001")), ("decimal(5,2)", Decimal(1000)), ("decimal(5,2)", 0.5),
        ("decimal(5,2)", "1"), ("decimal(5,2)", True), ("decimal(5,2)", Decimal("nan")),
        ("decimal(5,2)", Decimal("-inf")), ("decimal(5,2)", Decimal("1e999999999")),
        ("decimal(38,38)", Decimal("1e-999999999")), ("decimal(38,38)", 1),
        ("decimal(38,0)", 10**38), ("decimal(18,0)", -(10**18)),
        ("list<int64>", [1.5]), ("list<int64>", [True]), ("list<int64>", ["1"]),
        ("list<int64>", [1 << 63]), ("list<int64>", 5), ("list<int64>", [[1]]),
        ("list<int64>", b"ab"), ("list<float64>", ["1"]), ("list<float64>", [True]),
        ("list<float64>", np.zeros((2, 2))), ("list<float64>", [10**400]),
        ("list<string>", "ab"), ("list<string>", b"ab"), ("list<string>", ["a", 5]),
        ("list<string>", [1]), ("list<string>", {"a": 1}), ("list<string>", ["\ud800"]),
        ("list<string>", 5), ("int64", "x" * 10_000),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_in_one_line(kind: str, value: Any) -> None:
    with pytest.raises(ValueError, match="column x is ") as caught:
        to_text("x", kind, value)
    one_line(caught.value, kind)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("int64", b"+7", b"7"), ("int64", b" 7", None), ("int64", b"007", b"7"),
        ("int64", b"7.0", None),
        ("int64", b"9223372036854775808", None), ("int64", b"", None), ("int64", b"9" * 5000, None),
        ("float64", b"1", b"1.0"), ("float64", b"1e999", b"inf"), ("float64", b"x", None),
        ("bool", b" TRUE", b"true"), ("bool", b"1", b"true"), ("bool", b"0", b"false"),
        ("bool", b"yes", None), ("bool", b"", None), ("string", b"\xff", None),
        ("timestamp", b"2026-01-01T01:00+01:00", b"2026-01-01T00:00:00.000000Z"),
        ("timestamp", b"0001-01-01T00:00+01:00", None), ("timestamp", b"\xff", None),
        ("timestamp", b"9999-12-31T23:59-01:00", None), ("timestamp", b"12", None),
        ("list<string>", b' [ "a" ] ', b'["a"]'), ("list<string>", b'{"a":1}', None),
        ("list<string>", b"[1]", None), ("list<string>", b'["\\ud800"]', None),
        ("date", b" 2026-01-02 ", b"2026-01-02"), ("date", b"2026-01-02T00:00", None),
        ("date", b"0000-01-01", None), ("date", b"2026-02-30", None), ("date", b"\xff", None),
        ("datetime", b"2026-01-02 10:00", b"2026-01-02T10:00:00.000000"),
        ("datetime", b"2026-01-02T10:00Z", None), ("datetime", b"2026-01-02T10:00+00:00", None),
        ("datetime", b"2026-01-02", b"2026-01-02T00:00:00.000000"),
        ("decimal(5,2)", b"+007.5", b"7.50"), ("decimal(5,2)", b"-0", b"0.00"),
        ("decimal(5,2)", b"7.505", None), ("decimal(5,2)", b"7.5000", b"7.50"),
        ("decimal(5,2)", b"75e-1", b"7.50"), ("decimal(5,2)", b"1000", None),
        ("decimal(5,2)", b"nan", None), ("decimal(5,2)", b"inf", None), ("decimal(5,2)", b"", None),
        ("decimal(5,2)", b"1e999999999", None), ("decimal(5,2)", b"1e-999999999", None),
        ("decimal(5,2)", b"1e99999999999999999999", None), ("decimal(5,2)", b"1_0", None),
        ("decimal(5,2)", b"0e99999999999999999999", None), ("decimal(5,2)", b" 1", None),
        ("list<int64>", b" [ 1, null ] ", b"[1,null]"), ("list<int64>", b"[1.0]", None),
        ("list<int64>", b"[true]", None), ("list<int64>", b"[9223372036854775808]", None),
        ("list<int64>", b"[NaN]", None), ("list<int64>", b"{}", None), ("list<int64>", b"1", None),
        ("list<int64>", b"[[1]]", None), ("list<int64>", b"[" + b"9" * 5000 + b"]", None),
        ("list<float64>", b"[1, 1e999]", b"[1.0,Infinity]"), ("list<float64>", b"[true]", None),
        ("list<float64>", b'["1"]', None), ("list<float64>", b"[1" + b"0" * 400 + b"]", None),
        ("list<float64>", b"[" * 100_000, None), ("list<string>", b"[null]", b"[null]"),
        ("list<string>", b"[" * 100_000, None), ("list<string>", b"\xff", None),
        ("list<string>", '["a"]'.encode("utf-16"), None),
        ("binary", b"\xff", b"\xff"),
    ],
)  # fmt: skip
def test_foreign_attributes_are_a_value_or_null(
    kind: str, text: bytes, wanted: bytes | None
) -> None:
    assert canonical(kind, text) == wanted
    if wanted is None:
        assert to_value(kind, text) is None
        assert Column.of(kind, [text]).texts() == [None]


# --- which columns there are ---


def test_a_schema_is_its_text_and_back() -> None:
    schema = {f"c{i}": kind for i, kind in enumerate(KINDS)} | {
        "a.b-c_d": "string",
        "größe": "bool",
    }
    assert parse_schema(schema_text(schema)) == schema
    assert parse_schema(b"") == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"": "string"}, {"a b": "string"}, {"1a": "string"}, {"a:b": "string"}, {"a/b": "string"},
        {"a" * 201: "string"}, {5: "string"}, {"a": "text"}, {"a": None}, {"a": ""}, {"-a": "bool"},
        {"a": "string", "A": "string"}, {"Path": "string"}, {"_pos": "int64"}, {"a\n": "string"},
        {"winkfs_columns": "string"}, {"a=b": "string"}, {"a": "decimal"}, {"a": "decimal(39,0)"},
        {"a": "decimal(5,6)"}, {"a": "decimal(0,0)"}, {"a": "decimal(05,2)"}, {"a": "decimal(5)"},
        {"a": "decimal(5,-2)"}, {"a": "decimal(5,2,1)"}, {"a": "list<date>"}, {"a": "list"},
        {"a": "Date"}, {"a": "decimal(٥,2)"},
    ],
)  # fmt: skip
def test_a_column_that_cannot_be_is_refused_in_one_line(schema: Any) -> None:
    with pytest.raises(ValueError, match="column") as caught:
        check_schema(schema)
    one_line(caught.value)


@pytest.mark.parametrize("name", sorted(TAKEN))
def test_what_all_files_have_is_no_name_of_a_column(name: str) -> None:
    for spelt in (name, name.upper()):
        with pytest.raises(ValueError, match="column"):
            check_schema({spelt: "string"})


@pytest.mark.parametrize("text", [b"\xff", b"a", b"a:string a:string:int64", b":"])
def test_a_record_that_is_none_has_no_columns(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"column|decode"):
        parse_schema(text)
    assert to_values({RECORD: text, b"user.a": b"1"}) == {}


def test_blanks_in_a_decimal_do_not_count() -> None:
    assert check_schema({"a": "decimal(10, 2)"}) == {"a": "decimal(10,2)"}


def test_words_of_a_later_version_cost_their_columns_alone() -> None:
    text = b"a:string b:geo(4326) c:list<date> d:decimal(76,2) e:decimal(5,2) f:map<string,int64>"
    assert parse_schema(text) == {"a": "string", "e": "decimal(5,2)"}
    later = ["b:geo(4326)", "c:list<date>", "d:decimal(76,2)", "f:map<string,int64>"]
    assert later_words(text) == later
    assert to_values({RECORD: text, b"user.a": b"1", b"user.b": b"2"}) == {"a": "1", "e": None}


# --- attributes of many files ---


def test_attributes_have_the_types_beside_the_values() -> None:
    schema = {"lang": "string", "score": "float64"}
    found = to_attributes(schema, {"score": 0.5, "lang": None})
    assert found == {RECORD: b"lang:string score:float64", b"user.score": b"0.5"}
    assert to_values(found) == {"lang": None, "score": 0.5}
    assert to_values(found, {"score": "string", "other": "bool"}) == {"score": "0.5", "other": None}


def test_split_is_the_inverse_of_pack() -> None:
    schema = {"a": "binary", "ab": "string", "c": "int64"}
    texts = [[b"", None, b"\xff" * 70_000], [b"x", None, b"user.a"], [None, None, b"5"]]
    blobs = pack(texts, schema).tolist()
    assert split(blobs, schema) == texts
    assert split(blobs, {"c": "int64", "b": "string"}) == [texts[2], [None] * 3]
    assert blobs[1] == b""


# --- blocks ---


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nulls", ["no", "some", "all"])
@pytest.mark.parametrize("distinct", [1, 3, 300, 1024])
def test_a_block_gives_back_what_was_put_in(kind: str, nulls: str, distinct: int) -> None:
    rng = random.Random(f"{kind} {nulls} {distinct}")
    made = {
        "string": lambda i: f"w{i}\0" * (i % 4), "binary": lambda i: bytes([i & 255]) * (i % 9),
        "bool": lambda i: i % 2 == 0, "int64": lambda i: (i << 54) - (1 << 63),
        "float64": lambda i: [math.inf, -0.0, i / 7][i % 3],
        "timestamp": lambda i: FIRST + timedelta(days=3000 * i, microseconds=i),
        "list<string>": lambda i: [f"{i}", None] * (i % 3),
        "date": lambda i: date(1, 1, 1) + timedelta(3000 * i),
        "datetime": lambda i: datetime(1, 1, 1) + timedelta(days=3000 * i, microseconds=i),
        "list<int64>": lambda i: [(i << 54) - (1 << 63), None][: i % 3],
        "list<float64>": lambda i: [i / 7, math.inf, -0.0][: i % 4],
    }.get(kind, lambda i: decimals(kind, (i - 500) * 987654321987654321))  # fmt: skip
    values = [made(rng.randrange(distinct)) for _ in range(1021)]
    texts = [to_text("x", kind, value) for value in values]
    if nulls != "no":
        texts = [None if nulls == "all" or rng.random() < 0.3 else text for text in texts]
    column = Column.of(kind, texts)
    assert column.texts() == texts
    raw = column.encode()
    assert Column.decode(kind, raw, 1021).texts() == texts
    assert len(raw) % 8 == 0
    flags, words = HEAD.unpack_from(raw)[1:3]
    assert flags & 3 == {"no": 0, "some": 1, "all": 2}[nulls]
    assert flags & 4 == 4 * (kind == "list<int64>" and nulls != "all" and distinct > 1)
    if nulls == "all":
        assert len(raw) == HEAD.size
    elif not is_number(kind) and "64" not in kind:  # words once where that is shorter
        used = set(texts) - {None}
        assert words == (len(used) if 2 * len(used) <= 1021 else 1021)


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_parts_of_columns_are_those_of_their_texts(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=20))
    texts = [to_text("x", kind, value) for value in values]
    column = Column.of(kind, texts)
    cut = data.draw(st.integers(0, len(texts)))
    decoded = Column.decode(kind, column.encode(), len(texts))
    joined = Column.concat([decoded.take(np.arange(cut)), column.take(np.arange(cut, len(texts)))])
    assert joined.texts() == texts
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))),
                      bool)  # fmt: skip
    kept = [text for text, ok in zip(texts, chosen.tolist(), strict=True) if ok]
    assert column.take(chosen).texts() == kept
    least = [to_value(kind, text) for text in texts if text is not None]
    nulls, low, high = column.zone()
    assert nulls == len(texts) - len(least)
    for text in texts:
        if text is not None:
            value = Column.of(kind, [text]).numbers[0] if is_number(kind) else text
            assert "64>" in kind or low <= key_of(kind, value) <= high


def test_a_cast_that_does_not_fit_is_null() -> None:
    texts = [b"1", b"1.5", b"true", b"x", None]
    column = Column.of("string", texts)
    assert column.cast("int64").texts() == [b"1", None, None, None, None]
    assert column.cast("float64").texts() == [b"1.0", b"1.5", None, None, None]
    assert column.cast("bool").texts() == [b"true", None, b"true", None, None]
    assert Column.of("int64", [b"5", None]).cast("float64").texts() == [b"5.0", None]


@pytest.mark.few(8)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distinct", [2, 40])
def test_hostile_blocks_are_refused_or_of_the_right_length(
    kind: str, distinct: int, every: Callable[[str], slice]
) -> None:
    values = {
        "string": lambda i: f"{i}", "binary": lambda i: b"%d" % i, "bool": lambda i: i == 1,
        "int64": lambda i: i, "float64": lambda i: i / 3, "timestamp": lambda i: i,
        "list<string>": lambda i: [str(i)], "list<int64>": lambda i: [i, None],
        "list<float64>": lambda i: [i / 3], "date": lambda i: date(2026, 1, 1) + timedelta(i),
        "datetime": lambda i: datetime(2026, 1, 1) + timedelta(i),
    }.get(kind, lambda i: decimals(kind, i))  # fmt: skip
    texts = [None if i % 7 == 0 else to_text("x", kind, values(i % distinct)) for i in range(64)]
    raw = Column.of(kind, texts).encode()
    images = [raw[:cut] for cut in range(len(raw))]
    for bit in range(8 * len(raw))[every("block bits")]:
        at = bit // 8
        images.append(raw[:at] + bytes([raw[at] ^ 1 << bit % 8]) + raw[at + 1 :])
    images += [HEAD.pack(1 << 31, flags, words, wide) for flags in range(4)
               for words in (0, 1 << 31) for wide in range(4)]  # fmt: skip
    refused = 0
    for image in images:
        try:
            column = Column.decode(kind, image, 64)
        except ValueError:
            refused += 1
            continue
        assert len(column) == len(column.texts()) == 64
    assert refused > len(raw) / 2


@pytest.mark.parametrize(
    ("kind", "text"),
    [("int64", text) for text in
     (b"1_000", b" 1", b"1 ", b"1_0", b"", b"\xd9\xa1", b"0x1", b"1.0", b"--1")]
    + [("float64", text) for text in
       (b"1_0.5", b" 1.5", b"1.5\n", b"1e1_0", b"", b".", b"in f", b"\xd9\xa1")],
)  # fmt: skip
def test_a_text_that_python_takes_for_a_number_is_none(kind: str, text: bytes) -> None:
    assert canonical(kind, text) is None
    assert to_value(kind, text) is None


def test_numbers_are_decimal() -> None:
    assert [to_value("int64", text) for text in (b"0", b"-7", b"+7", b"007")] == [0, -7, 7, 7]
    for text in (b"1", b"-1.5", b"+.5", b"5.", b"1e-3", b"1E400", b"inf", b"-inf", b"nan"):
        assert canonical("float64", text) is not None, text
