"""winkfs.polars.scan: lazy frames that read only what a query needs."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import stored
from refusals import each_raises

import winkfs
import winkfs.dataset
from winkfs.errors import NoSuchFile, Refusal

pl = pytest.importorskip("polars")

from winkfs.polars import BUILT_IN, condition, scan  # noqa: E402 - needs polars

pytestmark = pytest.mark.in_memory
NEW_YEAR = datetime(2026, 1, 1)
COLUMNS = {
    "lang": "string", "score": "float64", "n": "int64", "ok": "bool", "at": "timestamp",
    "day": "date", "local": "datetime", "price": "decimal(9,2)", "tags": "list<string>",
}  # fmt: skip


def values(i: int) -> dict[str, Any] | None:
    if i % 5 == 0:
        return None
    hours = timedelta(hours=i)
    return {
        "lang": ["de", "e'n", "f%r"][i % 3], "score": math.nan if i == 7 else i / 10, "n": i,
        "ok": bool(i % 2), "at": NEW_YEAR.replace(tzinfo=UTC) + hours, "local": NEW_YEAR + hours,
        "day": date(2026, 1, 1) + timedelta(days=i), "price": Decimal(i) / 4,
        "tags": ["a", str(i)],
    }  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [(f"d{i % 7}/{i:03}.txt", b"x" * i, 1_700_000_000 + i, values(i)) for i in range(120)]
    base = tmp_path_factory.mktemp("polars") / "c"
    stored.make(base, rows, columns=COLUMNS)
    stored.change(base, {b"\xff.txt": b"odd", "back\\slash": b"1"})
    return base


C = pl.col
FILTERS = {
    "equal": (C("lang") == "de", "(`lang` = 'de')"),
    "quote": (C("lang") == "e'n", "(`lang` = 'e''n')"),
    "not equal": (C("n") != 5, "(`n` != 5)"),
    "and": ((C("lang") == "de") & (C("n") > 30), "(`lang` = 'de') and (`n` > 30)"),
    "or": ((C("lang") == "de") | C("ok"), "((`lang` = 'de') or `ok`)"),
    "turned": (pl.lit(30) < C("size"), "(30 < `size`)"),
    "not": (~(C("lang") == "de"), "(not (`lang` = 'de'))"),
    "not ok": (~C("ok"), "(not `ok`)"),
    "in": (C("lang").is_in(["de", "xx"]), "(`lang` in ('de', 'xx'))"),
    "in numbers": (C("n").is_in([1, 2, 300]), "(`n` in (1, 2, 300))"),
    "between": (C("score").is_between(1.5, 5), "(`score` between 1.5 and 5)"),
    "open between": (C("n").is_between(1, 5, closed="left"), None),
    "null": (C("lang").is_null(), "(`lang` is null)"),
    "not null": (C("tags").is_not_null(), "(`tags` is not null)"),
    "equal to null": (C("lang") == pl.lit(None, pl.String), None),
    "nan": (C("score") > math.nan, None),
    "above": (C("score") > 5, "(`score` > 5)"),
    "time": (C("at") >= datetime(2026, 1, 3, tzinfo=UTC), "(`at` >= '2026-01-03T00:00:00+00:00')"),
    "local": (C("local") < datetime(2026, 1, 2), "(`local` < '2026-01-02T00:00:00')"),
    "day": (C("day") == date(2026, 1, 12), "(`day` = '2026-01-12')"),
    "decimal": (C("price") == Decimal("2.75"), "(`price` = 2.75)"),
    "decimal and number": (C("price") > 3, "(`price` > 3)"),
    "mtime": (C("mtime") > datetime(2023, 11, 14, 22, 14, tzinfo=UTC),
              "(`mtime` > '2023-11-14T22:14:00+00:00')"),
    "begins": (C("path").str.starts_with("d1/"), "(`path` like 'd1/%')"),
    "begins with signs": (C("lang").str.starts_with("f%"), "(`lang` like 'f\\%%')"),
    "ends": (C("lang").str.ends_with("n"), "(`lang` like '%n')"),
    "path ends": (C("path").str.ends_with("7.txt"), None),
    "odd path": (C("path") == "\\xff.txt", "(`path` = '\udcff.txt')"),
    "path in": (C("path").is_in(["\\xff.txt", "d1/001.txt"]),
                "(`path` in ('\udcff.txt', 'd1/001.txt'))"),
    "path begins oddly": (C("path").str.starts_with("\\"), None),
    "path above": (C("path") > "d3", None),
    "sum": (C("n") + 1 == 7, None),
    "list": (C("tags").list.contains("7"), None),
    "content": (C("content").bin.size() > 100, None),
    "part of it": ((C("n") + 1 > 6) & (C("lang") == "de"), "(`lang` = 'de')"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", FILTERS)
def test_a_filter_chooses_what_polars_chooses(base: Path, what: str) -> None:
    predicate, text = FILTERS[what]
    assert condition(predicate, {**COLUMNS, **BUILT_IN}) == text
    with winkfs.open(base) as c:
        whole = pl.DataFrame(c)
    found = scan(base).filter(predicate).collect()
    assert found.sort("path").equals(whole.filter(predicate).sort("path"))


@pytest.mark.slow
def test_each_filter_chooses_some_and_leaves_some(base: Path) -> None:
    counts = {what: scan(base).filter(p).select(pl.len()).collect().item() for what, (p, _) in
              FILTERS.items()}  # fmt: skip
    none = {"equal to null", "nan", "path begins oddly"}
    assert {what for what, count in counts.items() if not 0 < count < 122} <= none


def test_columns_are_read_as_they_are_used(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = winkfs.Reader.to_batches
    monkeypatch.setattr(
        winkfs.Reader, "to_batches",
        lambda self, columns=None, **how: asked.append(columns) or real(self, columns, **how),
    )  # fmt: skip
    lazy = scan(base)
    asked.clear()
    lazy.select("path").collect()
    lazy.filter(C("lang") == "de").select(C("size").sum()).collect()
    assert lazy.select(pl.len()).collect().item() == 122
    assert [sorted(columns) for columns in asked[:2]] == [["path"], ["lang", "size"]]
    assert "content" not in asked[2]
    assert lazy.head(3).collect().height == 3


def test_where_and_the_choice_of_columns(base: Path) -> None:
    lazy = scan(base, ["path", "n"], where="n > 100", prefix="d1/")
    assert lazy.collect_schema().names() == ["path", "n"]
    assert lazy.filter(C("n") < 110).collect()["n"].to_list() == [106]


def test_generations_of_a_data_set(tmp_path: Path) -> None:
    winkfs.dataset.create(tmp_path / "set").close()
    for i in range(3):
        stored.change(tmp_path / "set", {f"f{i}": b"x" * i})
    newest, second = scan(tmp_path / "set"), scan(tmp_path / "set", as_of=2)
    assert newest.select("path").collect()["path"].sort().to_list() == ["f0", "f1", "f2"]
    assert second.collect().height == 2
    stored.change(tmp_path / "set", {"more": b""})
    assert newest.collect().height == 4


def test_what_is_wrong(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each_raises(
        (NoSuchFile, "no such container", lambda: scan(tmp_path / "none")),
        (ValueError, "no column 'nope'", lambda: scan(base, ["nope"])),
        (ValueError, "no column 'nope'", lambda: scan(base, where="nope = 1")),
    )
    made = stored.make(tmp_path / "c", {"x": b"damaged text"})
    stored.flip_text(f"{made}.data", b"damaged")
    with pytest.raises(Exception, match=r"c\.data: entry checksum"):
        scan(made).collect()
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(Refusal, match=r"needs winkfs\[polars\]: pip install"):
        scan(base)


def test_filters_of_a_store_without_conditions(tmp_path: Path) -> None:
    from winkfs.stores import messagestore
    from winkfs.stores.messagestore import MessageStore

    messagestore.create(str(tmp_path / "box"))
    with MessageStore(str(tmp_path / "box"), "a") as box:
        box.write(b"1" * 16, b"one")
        box.write(b"2" * 16, b"three")
    assert scan(tmp_path / "box").filter(pl.col("size") > 3).collect()["size"].to_list() == [5]
