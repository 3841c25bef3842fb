"""Columns of all types as Arrow arrays and back: what is put, refused, and returned."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_checks import refused

import winkfs
from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.typed import to_text

pa = pytest.importorskip("pyarrow")

from winkfs.arrow import arrays  # noqa: E402
from winkfs.container.arrow import (  # noqa: E402
    arrow_type,
    kind_of_arrow,
    texts_of_arrow,
)

DIGITS = "9" * 38
VALUES: dict[str, list[Any]] = {
    "date": [date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), date(1969, 12, 31)],
    "datetime": [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999),
                 datetime(1969, 12, 31, 23, 59, 59, 999_999)],
    "decimal(18,0)": [Decimal(DIGITS[:18]), Decimal("-" + DIGITS[:18]), Decimal(0), Decimal(-1)],
    "decimal(18,18)": [Decimal("0." + DIGITS[:18]), Decimal("-0." + "0" * 17 + "1")],
    "decimal(19,0)": [Decimal(DIGITS[:19]), Decimal("-" + DIGITS[:19]), Decimal(0), Decimal(-1)],
    "decimal(38,38)": [Decimal("0." + DIGITS), Decimal("-0." + DIGITS), Decimal("0E-38")],
    "decimal(38,0)": [Decimal(DIGITS), Decimal("-" + DIGITS), Decimal(1 << 64), Decimal(-1 << 63)],
    "list<int64>": [[], [-(1 << 63), None, (1 << 63) - 1], [None], list(range(1000))],
    "list<float64>": [[], [math.inf, -math.inf, None, 5e-324], [-0.0], [0.1] * 1000],
    "list<string>": [[], ["a", None], [None], ["", "\u00fc"]],
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("nulls", ["no", "some", "all"])
def test_arrays_of_all_types_come_back(kind: str, nulls: str) -> None:
    values = VALUES[kind] if nulls == "no" else [None for _ in VALUES[kind]]
    if nulls == "some":
        values = [None, *VALUES[kind], None]
    given = pa.array(values, arrow_type(kind))
    assert kind_of_arrow(given.type) == kind
    texts = texts_of_arrow("x", kind, given)
    assert texts == [to_text("x", kind, value) for value in values]
    assert texts_of_arrow("x", kind, given[1:]) == texts[1:]
    column = Column.of(kind, texts)
    for one in (column, Column.decode(kind, column.encode(), len(texts))):
        found = arrays.of_column(one)
        found.validate(full=True)
        assert found.type == given.type and found.equals(given)
        assert arrays.of_column(one.take(np.arange(len(texts))[::-1])).equals(given.take(
            pa.array(range(len(texts) - 1, -1, -1))))  # fmt: skip


@pytest.mark.parametrize("kind", ["string", "binary", "list<string>"])
def test_a_part_of_a_column_converts_its_own_words_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch of a scan is such a part: with all words, a scan would be quadratic."""
    column = Column.of(kind, [b'["%d"]' % i if "<" in kind else b"%d" % i for i in range(1000)])
    made, converted = arrays.binaries, list[int]()

    def counted(values: Any) -> Any:
        converted.append(len(values))
        return made(values)

    monkeypatch.setattr(arrays, "binaries", counted)
    found = arrays.of_column(column.take(np.array([7, 999, 7])))
    wanted = [["7"], ["999"], ["7"]] if "<" in kind else ["7", "999", "7"]
    assert found.to_pylist() == ([w.encode() for w in wanted] if kind == "binary" else wanted)
    assert converted == [2]


def test_nan_in_a_list_stays_nan_and_not_null() -> None:
    column = Column.of("list<float64>", [b"[NaN,null,NaN]"])
    (found,) = arrays.of_column(column).to_pylist()
    assert [found[0] != found[0], found[1], found[2] != found[2]] == [True, None, True]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.date32(), "date"), (pa.date64(), "date"), (pa.timestamp("ns"), "datetime"),
        (pa.timestamp("s", "UTC"), "timestamp"), (pa.timestamp("us", "Asia/Tokyo"), "timestamp"),
        (pa.decimal128(38, 38), "decimal(38,38)"), (pa.decimal256(38, 2), "decimal(38,2)"),
        (pa.decimal256(39, 2), None), (pa.decimal128(5, -2), None),
        (pa.list_(pa.int8()), "list<int64>"), (pa.large_list(pa.uint32()), "list<int64>"),
        (pa.list_(pa.float32(), 3), "list<float64>"), (pa.list_(pa.float16()), "list<float64>"),
        (pa.list_(pa.date32()), None), (pa.list_(pa.list_(pa.int64())), None),
        (pa.list_(pa.bool_()), None), (pa.list_(pa.null()), None), (pa.duration("s"), None),
        (pa.time64("us"), None), (pa.struct([("a", pa.int64())]), None),
        (pa.dictionary(pa.int8(), pa.date32()), "date"),
    ],
)  # fmt: skip
def test_a_type_of_arrow_is_the_column_that_holds_it(given: Any, kind: str | None) -> None:
    assert kind_of_arrow(given) == kind


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        ("timestamp", pa.array([1], pa.int32()).cast(pa.date32()), b"1970-01-02T00:00:00.000000Z"),
        ("timestamp", pa.array([1], pa.timestamp("s")), b"1970-01-01T00:00:01.000000Z"),
        ("datetime", pa.array([1], pa.int32()).cast(pa.date32()), b"1970-01-02T00:00:00.000000"),
        ("datetime", pa.array([1999], pa.timestamp("ns")), b"1970-01-01T00:00:00.000001"),
        ("date", pa.array([86_400_000], pa.date64()), b"1970-01-02"),
        ("decimal(5,2)", pa.array([-7], pa.int8()), b"-7.00"),
        ("decimal(5,2)", pa.array([Decimal("1.5")]), b"1.50"),
        ("decimal(5,2)", pa.array([Decimal("1.5000")], pa.decimal256(60, 4)), b"1.50"),
        ("decimal(38,0)", pa.array([Decimal("1.0")]).dictionary_encode(), b"1"),
        ("list<float64>", pa.array([[1, None]], pa.list_(pa.int16())), b"[1.0,null]"),
        ("list<float64>", pa.array([[0.5, 1]], pa.list_(pa.float32(), 2)), b"[0.5,1.0]"),
        ("list<int64>", pa.array([[None]], pa.list_(pa.null())), b"[null]"),
        ("list<string>", pa.array([[]], pa.list_(pa.null())), b"[]"),
    ],
)  # fmt: skip
def test_a_column_takes_what_fits_it_exactly(kind: str, given: Any, wanted: bytes) -> None:
    assert texts_of_arrow("x", kind, given) == [wanted]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("date", pa.array([0], pa.timestamp("s"))),
        ("datetime", pa.array([0], pa.timestamp("s", "UTC"))),
        ("date", pa.array([2_932_897], pa.int32()).cast(pa.date32())), ("date", pa.array([5])),
        ("datetime", pa.array([10**18], pa.timestamp("us"))), ("decimal(5,2)", pa.array([0.5])),
        ("decimal(5,2)", pa.array([Decimal("0.001")])), ("decimal(5,2)", pa.array([1000])),
        ("decimal(38,0)", pa.array([Decimal(10) ** 60], pa.decimal256(61, 0))),
        ("decimal(5,2)", pa.array(["1.5"])), ("int64", pa.array([Decimal(1)])),
        ("list<int64>", pa.array([[0.5]])), ("list<int64>", pa.array([1])),
        ("list<int64>", pa.array([[1 << 63]], pa.list_(pa.uint64()))),
        ("list<string>", pa.array([[1]])), ("list<int64>", pa.array([["1"]])),
        ("timestamp", pa.array([Decimal(1)])), ("string", pa.array([date(2026, 1, 1)])),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(kind: str, given: Any) -> None:
    with refused(ValueError, match="column x"):
        texts_of_arrow("x", kind, given)


def test_a_batch_of_all_types_is_put_and_read(tmp_path: Path) -> None:
    schema = {f"c{i}": kind for i, kind in enumerate(VALUES)}
    rows = 4
    columns = {
        name: pa.array([*VALUES[kind], *[None] * rows][:rows], arrow_type(kind))
        for name, kind in schema.items()
    }
    names = pa.array([f"f{i}" for i in range(rows)])
    with winkfs.create(tmp_path / "c", columns=schema) as c:
        c.put_batch(pa.table({"path": names, "content": pa.array([b""] * rows), **columns}))
    winkfs.reindex(tmp_path / "c")
    with winkfs.open(tmp_path / "c") as c:
        for i in range(rows):
            wanted = {name: column[i].as_py() for name, column in columns.items()}
            assert c.getcolumns(f"f{i}") == wanted
    assert winkfs.verify(tmp_path / "c").problems == []


def test_dates_and_local_times_go_into_timestamps_as_before(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c", columns={"t": "timestamp"}) as c:
        for name, array in (
            ("day", pa.array([date(2026, 1, 2)])), ("local", pa.array([datetime(2026, 1, 2)])),
        ):  # fmt: skip
            c.put_batch(pa.table({"path": [name], "content": [b""], "t": array}))
            assert c.getcolumns(name) == {"t": datetime(2026, 1, 2, tzinfo=UTC)}
