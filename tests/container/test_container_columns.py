"""Columns of a container: every way to put a value, every state of the catalog, every rewrite."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalog_checks import rows_of_catalog, save_catalog, store_of, write_catalog
from container_checks import assert_sound, child, image_of, path_of, refused
from flips import flip
from oracle_format import OracleError
from oracle_read import check
from seam import Call, disk_calls
from typed_files import (
    SCHEMA,
    SOME,
    Values,
    assert_answers,
    assert_values,
    files,
    known,
    make,
    nulls,
    same,
    values,
)

import winkfs
from winkfs import Container, CorruptError, FileType, Row
from winkfs.container.catalog import open_catalog
from winkfs.container.compact import compact
from winkfs.container.ondisk import typed
from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.typed import RECORD, TYPES, schema_text
from winkfs.container.repair import repair, rollback
from winkfs.container.salvage import salvage
from winkfs.container.table import FileTable
from winkfs.errors import NotAllowed, ReadOnly, Refusal

pytestmark = pytest.mark.in_memory


def flip_behind(base: Path, text: bytes, count: int = 0) -> None:
    """Flip a bit of the data file, so many bytes behind the start of a text."""
    path = path_of(base, ".data")
    flip(path, path.read_bytes().index(text) + count)


def arrow(rows: list[tuple[str, bytes, float, Values]], columns: dict[str, str] = SCHEMA) -> Any:
    pa = pytest.importorskip("pyarrow")
    kinds = {
        "string": pa.string(), "binary": pa.binary(), "bool": pa.bool_(), "int64": pa.int64(),
        "float64": pa.float64(), "timestamp": pa.timestamp("us", "UTC"),
        "list<string>": pa.list_(pa.string()), "date": pa.date32(), "datetime": pa.timestamp("us"),
        "decimal(12,3)": pa.decimal128(12, 3), "decimal(38,10)": pa.decimal128(38, 10),
        "list<int64>": pa.list_(pa.int64()), "list<float64>": pa.list_(pa.float64()),
    }  # fmt: skip
    arrays = {
        "path": pa.array([name for name, *_ in rows]),
        "content": pa.array([data for _, data, *_ in rows], pa.binary()),
        "mtime": pa.array([float(mtime) for *_, mtime, _ in rows], pa.float64()),
    }
    for name, kind in columns.items():
        arrays[name] = pa.array([one.get(name) for *_, one in rows], kinds[kind])
    return pa.RecordBatch.from_pydict(arrays)


def put_one_by_one(c: Container, rows: list[tuple[str, bytes, float, Values]]) -> None:
    for name, data, mtime, one in rows:
        c.put(name, data, mtime, columns=one)


def put_with_attributes(c: Container, rows: list[tuple[str, bytes, float, Values]]) -> None:
    from winkfs.container.ondisk.typed import to_attributes

    c.put_rows(
        Row(name, data, mtime_ns=int(mtime * 1e9), xattrs=to_attributes(SCHEMA, one))
        for name, data, mtime, one in rows
    )


def set_afterwards(c: Container, rows: list[tuple[str, bytes, float, Values]]) -> None:
    c.put_many(row[:3] for row in rows)
    for name, _, _, one in rows:
        c.setcolumns(name, one)


WAYS: dict[str, Callable[[Container, list[Any]], object]] = {
    "put": put_one_by_one,
    "put_many": lambda c, rows: c.put_many(rows),
    "put_batch": lambda c, rows: c.put_batch(arrow(rows)),
    "put_rows": put_with_attributes,
    "setcolumns": set_afterwards,
}


# --- putting ---


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_values_come_back_whichever_way_they_are_put(way: str, ao: bool, base: Path) -> None:
    rows = list(files(40))
    wanted = {name: one for name, _, _, one in rows}
    with winkfs.create(base, ao=ao, columns=SCHEMA) as c:
        if ao and way == "setcolumns":
            with pytest.raises(PermissionError):
                WAYS[way](c, rows)
            return
        WAYS[way](c, rows)
        assert_values(c, wanted)  # of an open writer
        assert_answers(c, SOME)
    assert_sound(base, {name.encode(): data for name, data, *_ in rows})
    with winkfs.open(base) as c:
        assert c.columns == SCHEMA
        assert_values(c, wanted)
        assert assert_answers(c) > 60
        for entry in c.scan():
            assert same(nulls() | entry.columns, nulls() | wanted[entry.name])


def test_a_new_file_has_no_values_of_the_one_it_replaces(base: Path) -> None:
    with winkfs.create(base, columns=SCHEMA) as c:
        for _ in range(2):
            c.put("a", b"1", columns=values(1))
            c.sync()
            c.put("a", b"2")
            assert same(c.getcolumns("a"), nulls())
            assert list(c.names(where="n is null")) == ["a"]
            c.put("a", b"1", columns={"n": 5})
            c.put_many([("a", b"2", 5.0, {"n": 6}), ("a", b"3", 6.0)])
            assert c.getcolumns("a")["n"] is None
            c.put_many([("a", b"2", 5.0), ("a", b"3", 6.0, {"n": 6})])
            assert list(c.names(where="n = 6")) == ["a"]


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("ao", [False, True])
def test_entries_of_a_scan_have_what_the_files_have(ao: bool, base: Path) -> None:
    with winkfs.create(base, columns={"n": "int64", "lang": "string"}, ao=ao) as c:
        for i in range(400):
            c.put(f"a/{i:03}", b"x" * (i % 7), i, columns={"n": i, "lang": "de"} if i % 3 else None)
        c.put_many((f"b/{i:03}", b"y" * (i % 5), 500.0, {"n": i}) for i in range(1200))
        c.put("c/dir", b"", 600, FileType.DIR, columns={"n": 1})
        c.put("c/link", b"a/001", 600, FileType.LINK, columns={"n": 2})
        c.put("c/large", b"z" * (3 << 20), 600, columns={"n": 3})
        c.put("c/mode", b"1", 600, mode=0o600, uid=1, gid=2)
        c.put("c/exec", b"1", 600, FileType.EXEC, mode=0o755, columns={"lang": "x" * 1000})
        c.put("c/\udcff\U0001f389", b"1", -(1 << 33) if not ao else 600, columns={"n": 4})
        if not ao:
            c.setcolumns("a/001", {"n": None})  # with a ctime
            c.setxattrs("a/002", {b"user.other": b"1", b"user.n": b"7"})
            c.append("a/004", b"more")
            c.rename("a/005", "a/new")
        c.add_columns({"other": "int64"})
        c.drop_columns(["lang"])
        c.put("last", b"1", 700, columns={"other": 5})
    with winkfs.open(base) as c:
        everything = list(c.scan())
        assert {entry.name for entry in everything} == set(c.names())
        for entry in everything:
            stat = c.stat(entry.name)
            assert all(getattr(entry, k) == getattr(stat, k) for k in type(stat).__slots__)
            assert entry.xattrs == c.getxattrs(entry.name)
            assert entry.columns == (c.getcolumns(entry.name) if RECORD in entry.xattrs else {})
            assert entry.read() == c.read(entry.name) == b"".join(p for _, p in entry.pieces())
        assert list(c.scan(100, 501, "b/01")) == [
            e for e in everything if 100 <= e.mtime < 501 and e.name.startswith("b/01")
        ]
        assert list(c.scan(where="n = 17")) == [e for e in everything if e.columns.get("n") == 17]


def test_what_changes_a_file_leaves_its_values(base: Path) -> None:
    wanted = {"n": 7, "lang": "de", "raw": b"\0\xff"}
    with winkfs.create(base, columns=SCHEMA) as c:
        c.put("a", b"1", columns=wanted)
        for change in (
            lambda: c.append("a", b"more"), lambda: c.write("a", 1, b"x"), c.sync,
            lambda: c.truncate("a", 2), lambda: c.chmod("a", 0o600), lambda: c.utime("a", 5),
            lambda: c.rename("a", "b"), lambda: c.rename("b", "a"),
            lambda: c.setxattrs("a", c.getxattrs("a") | {b"user.other": b"1"}),
            lambda: c.setcolumns("a", {}), lambda: c.setcolumns("a", {"score": 1.5}),
            lambda: c.setcolumns("a", {"score": None}),
        ):  # fmt: skip
            change()
            name = "a" if "a" in c else "b"
            assert same(
                c.getcolumns(name), nulls() | wanted | {"score": c.getcolumns(name)["score"]}
            )
            assert list(c.names(where="n = 7 and lang = 'de'")) == [name]
        assert c.getcolumns("a")["score"] is None
        assert c.getxattrs("a")[b"user.other"] == b"1"
        c.setcolumns("a", dict.fromkeys(wanted))
        assert same(c.getcolumns("a"), nulls())
        c.delete("a")
        assert list(c.names(where="n is null")) == []
    assert_sound(base, {})


def test_directories_links_and_empty_files_can_have_values(base: Path) -> None:
    with winkfs.create(base, columns=SCHEMA) as c:
        c.mkdir("d")
        c.symlink("d", "l")
        c.put("e", b"", columns={"n": 1})
        c.put("x", b"x" * (3 << 20), columns={"n": 1})
        for name in "dl":
            c.setcolumns(name, {"n": 1})
        assert sorted(c.names(where="n = 1")) == ["d", "e", "l", "x"]
        assert list(c.names(where=f"n = 1 and ftype = {int(FileType.DIR)}")) == ["d"]
    with winkfs.open(base) as c:
        assert sorted(entry.name for entry in c.scan(where="n = 1")) == ["d", "e", "l", "x"]


@pytest.mark.slow
def test_mixed_rows_keep_their_order_and_their_values(base: Path) -> None:
    rng = random.Random(2)
    rows: list[tuple[Any, ...]] = []
    for i in range(1000):
        one = rng.choice([(), (values(i),), ({},), (None,)])
        size = rng.choice([0, 5, 5, 5, 700_000 if i % 500 == 0 else 1])
        rows.append((f"f{rng.randrange(300)}", b"x" * size, 5.0, *one))
    last = {row[0]: (row[3] if len(row) > 3 else {}) or {} for row in rows}
    with winkfs.create(base, columns=SCHEMA) as c:
        assert c.put_many(rows) == 1000
    with winkfs.open(base) as c:
        assert_values(c, last)
        assert_answers(c)
    sizes = {row[0].encode(): row[1] for row in rows}
    assert_sound(base, sizes)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"no": 1}, "no column 'no'"), ({"N": 1}, "no column 'N'"), ({"n": "5"}, "n is int64"),
        ({"lang": b"x"}, "lang is string"), ({"at": "2026"}, "at is timestamp"), ({5: 5}, "5"),
        ([("n", 1)], "dict"), ("n", "dict"), (5, "dict"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["put", "put_many", "setcolumns"])
def test_what_is_no_value_is_refused_and_nothing_is_put(
    way: str, columns: Any, what: str, base: Path
) -> None:
    ways: dict[str, Callable[[Container, Any], object]] = {
        "put": lambda c, columns: c.put("a", b"2", columns=columns),
        "put_many": lambda c, columns: c.put_many([("a", b"2", None, columns)]),
        "setcolumns": lambda c, columns: c.setcolumns("a", columns),
    }
    with winkfs.create(base, columns=SCHEMA) as c:
        c.put("a", b"1", columns={"n": 1})
        with refused((ValueError, TypeError), what):
            ways[way](c, columns)
        assert (c.read("a"), c.getcolumns("a")["n"]) == (b"1", 1)


def test_a_file_that_is_not_there_has_no_values(base: Path) -> None:
    with winkfs.create(base, columns=SCHEMA) as c:
        for call in (lambda: c.getcolumns("x"), lambda: c.setcolumns("x", {"n": 1})):
            with pytest.raises(FileNotFoundError):
                call()


# --- Arrow ---


def test_a_batch_is_put_in_parts_and_of_like_types(base: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    n = 5000
    names = [f"f{i}" for i in range(n)]
    batch = pa.table({
        "name": pa.chunked_array([names[:3000], names[3000:]]),
        "content": pa.array([b""] * n, pa.large_binary()),
        "lang": pa.array(["de", None] * (n // 2)).dictionary_encode(),
        "n": pa.array(range(n), pa.uint16()),
        "score": pa.array([i if i % 3 else None for i in range(n)], pa.int32()),
        "raw": pa.array([b"ab"] * n, pa.binary(2)),
        "at": pa.array([0] * n, pa.date32()),
        "tags": pa.nulls(n),
    })  # fmt: skip
    with winkfs.create(base, columns=SCHEMA) as c:
        assert c.put_batch(batch) == n
        assert len(list(c.names(where="lang = 'de' and n < 1000 and score is null"))) == 167
        assert c.getcolumns("f4001") == nulls() | {
            "n": 4001, "score": 4001.0, "raw": b"ab",
            "at": values(0)["at"] or c.getcolumns("f4001")["at"],
        }  # fmt: skip
        assert c.getcolumns("f4001")["at"].isoformat() == "1970-01-01T00:00:00+00:00"


def batches() -> dict[str, tuple[Callable[[Any], Any], str]]:
    good = {"path": ["a"], "content": [b"1"]}

    def of(**columns: Any) -> Callable[[Any], Any]:
        return lambda pa: pa.RecordBatch.from_pydict({
            key: value(pa) if callable(value) else pa.array(value)
            for key, value in (good | columns).items()
        })  # fmt: skip

    return {
        "no content": (lambda pa: pa.RecordBatch.from_pydict({"path": ["a"]}), "no column content"),
        "no name": (lambda pa: pa.RecordBatch.from_pydict({"content": [b"a"]}), "no column"),
        "null path": (of(path=lambda pa: pa.array([None], pa.string())), "nulls"),
        "null content": (of(content=lambda pa: pa.array([None], pa.binary())), "nulls"),
        "unknown": (of(extra=[1]), "no column 'extra'"),
        "float as int": (of(n=[1.5]), "n is int64"),
        "text as bool": (of(good=["x"]), "good is bool"),
        "bytes as text": (of(lang=[b"x"]), "lang is string"),
        "uint64": (of(n=lambda pa: pa.array([1 << 63], pa.uint64())), "column n"),
        "list of int": (of(tags=[[1]]), "tags is list<string>"),
        "list of float as int": (of(counts=[[1.5]]), "counts is list<int64>"),
        "list of uint64": (
            of(counts=lambda pa: pa.array([[1 << 63]], pa.list_(pa.uint64()))),
            "column counts",
        ),
        "date as datetime with a zone": (
            of(local=lambda pa: pa.array([0], pa.timestamp("us", "UTC"))),
            "local is datetime",
        ),
        "time as date": (of(day=lambda pa: pa.array([0], pa.timestamp("s"))), "day is date"),
        "date of the year 10000": (
            of(day=lambda pa: pa.array([2_932_897], pa.int32()).cast(pa.date32())),
            "column day",
        ),
        "more digits": (of(price=[Decimal("1.2345")]), "column price"),
        "larger decimal": (of(price=[Decimal("1e9")]), "column price"),
        "float as decimal": (of(price=[1.5]), "price is decimal"),
        "year 300000": (
            of(at=lambda pa: pa.array([18_446_744_073_710], pa.timestamp("s"))),
            "column at",
        ),
        "year of an mtime": (
            of(mtime=lambda pa: pa.array([253_370_764_800], pa.timestamp("s"))),
            "column mtime",
        ),
        "twice": (
            lambda pa: pa.RecordBatch.from_arrays(
                [pa.array(["a"]), pa.array([b""]), pa.array([1]), pa.array([2])],
                ["path", "content", "n", "n"],
            ),
            "there twice: path, content, n, n",
        ),
        "number as path": (of(path=[5]), "path"),
        "number as content": (of(content=[5]), "content"),
    }


@pytest.mark.parametrize("case", batches())
def test_a_batch_that_is_wrong_is_refused_in_one_line(case: str, base: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    make_batch, what = batches()[case]
    with winkfs.create(base, columns=SCHEMA) as c:
        with refused(ValueError, match=what):
            c.put_batch(make_batch(pa))
        assert len(c) == 0


def test_what_is_of_another_type_altogether_is_a_type_error(base: Path) -> None:
    pytest.importorskip("pyarrow")
    wrong: Any = ["a"]
    with pytest.raises(TypeError, match="columns are a dict"):
        winkfs.create(base, columns=wrong)
    with winkfs.create(base) as c:
        for call in (lambda: c.add_columns(wrong), lambda: c.put_batch(wrong),
                     lambda: c.put("a", b"", mtime=date(2026, 1, 1)),  # type: ignore[arg-type]
                     lambda: c.put_many([("a", b"", "now")])):  # fmt: skip
            with pytest.raises(TypeError, match=r"columns are a dict|it takes an Arrow|a time is"):
                call()
        assert len(c) == 0


# --- declaring ---


def test_columns_are_added_dropped_and_added_again(base: Path) -> None:
    with winkfs.create(base) as c:
        assert c.columns == {}
        c.put("old", b"1")
        assert c.getcolumns("old") == {}
        assert [entry.columns for entry in c.scan()] == [{}]
        c.setxattrs("old", {b"user.n": b"+7", b"user.lang": b"\xff"})
        c.add_columns({"n": "int64", "lang": "string"})
        assert c.getcolumns("old") == {"n": 7, "lang": None}
        assert list(c.names(where="n = 7 and lang is null")) == ["old"]
        c.put("new", b"2", columns={"n": 8, "lang": "de"})
        c.sync()
        c.save_catalog()
        c.drop_columns(["n"])
        assert c.getcolumns("new") == {"lang": "de"}
        with pytest.raises(ValueError, match="no column 'n'"):
            list(c.names(where="n = 7"))
        with pytest.raises(ValueError, match="no column 'n'"):
            c.put("x", b"", columns={"n": 1})
    winkfs.reindex(base)
    with winkfs.open(base, "a") as c:
        assert c.columns == {"lang": "string"}
        c.add_columns({"n": "float64"})  # of another type: the same texts
        assert c.getcolumns("new") == {"lang": "de", "n": 8.0}
        assert sorted(c.names(where="n >= 7")) == ["new", "old"]
    winkfs.reindex(base)
    with winkfs.open(base) as c:
        assert sorted(c.names(where="n >= 7")) == ["new", "old"]
        assert c.columns == {"lang": "string", "n": "float64"}
    assert_sound(base, {b"old": b"1", b"new": b"2"})


def test_dropped_columns_stay_away_when_a_file_changes(base: Path) -> None:
    with winkfs.create(base, columns={"n": "int64", "lang": "string"}) as c:
        c.put("a", b"1", columns={"n": 1, "lang": "de"})
        c.drop_columns(["n"])
        c.chmod("a", 0o600)
        c.setxattrs("a", c.getxattrs("a") | {b"user.x": b"1"})
        c.setcolumns("a", {"lang": "en"})
        assert c.columns == {"lang": "string"}
        assert c.getxattrs("a")[b"user.n"] == b"1"


@pytest.mark.parametrize("writable", [False, True])
def test_files_are_shown_with_the_columns_of_today(writable: bool, base: Path) -> None:
    record, words = b"user.winkfs_columns", b"user.winkfs_other"
    with winkfs.create(base, columns={"n": "int64", "s": "string"}) as c:
        c.put("a", b"1", columns={"n": 1, "s": "x"})
        c.put_many([("b", b"2", None, {"s": "y"}), ("d", b"3")])
        c.put("e", b"4")
        c.setxattrs("e", {b"user.later": b"5", words: b"5"})

    def shown() -> dict[str, tuple[dict[str, Any], bytes | None]]:
        """Of a scan, and the same of the file itself."""
        with winkfs.open(base, "a" if writable else "r") as c:
            found = {e.name: (e.columns, e.xattrs.get(record)) for e in c.scan()}
            assert {name: c.getxattrs(name).get(record) for name in found} == {
                name: answer for name, (_, answer) in found.items()
            }
            assert c.getxattrs("e")[words] == b"5"
            return found

    def change(call: Callable[[Container], None]) -> None:
        with winkfs.open(base, "a") as c:
            call(c)

    none: tuple[dict[str, Any], None] = ({}, None)
    both = b"n:int64 s:string"
    assert shown() == {"a": ({"n": 1, "s": "x"}, both), "b": ({"n": None, "s": "y"}, both),
                       "d": none, "e": none}  # fmt: skip
    change(lambda c: c.drop_columns(["n"]))
    assert shown() == {"a": ({"s": "x"}, b"s:string"), "b": ({"s": "y"}, b"s:string"),
                       "d": none, "e": none}  # fmt: skip
    change(lambda c: c.add_columns({"n": "bool", "later": "int64"}))  # of another type
    now = b"s:string n:bool later:int64"
    assert shown() == {
        "a": ({"s": "x", "n": True, "later": None}, now),  # 1 is a text of that type
        "b": ({"s": "y", "n": None, "later": None}, now),
        "d": none, "e": ({"s": None, "n": None, "later": 5}, now),
    }  # fmt: skip
    change(lambda c: c.drop_columns(["s", "n", "later"]))
    assert shown() == dict.fromkeys("abde", none)
    change(lambda c: c.add_columns({"s": "int64", "n": "int64"}))
    assert shown()["a"] == ({"s": None, "n": 1}, b"s:int64 n:int64")
    with winkfs.open(base) as c:
        assert c.getxattrs("a")[b"user.s"] == b"x"
        assert list(c.names(where="s is null and n = 1")) == ["a"]
    assert winkfs.verify(base).problems == []


def test_types_are_shown_as_stored_under_a_damaged_declaration(base: Path) -> None:
    with winkfs.create(base, columns={"n": "int64"}) as c:
        c.put("a", b"1", columns={"n": 1})
    flip_behind(base, b"columns/C0")
    with winkfs.open(base) as c:
        assert c.columns == {}
        assert "its columns cannot be read" in c.problems[0]
        assert [entry.columns for entry in c.scan()] == [{"n": 1}]
        assert c.getxattrs("a")[b"user.winkfs_columns"] == b"n:int64"


def test_a_file_whose_old_attribute_fits_no_column_can_change(base: Path) -> None:
    with winkfs.create(base) as c:
        c.put("a", b"1")
        c.setxattrs("a", {b"user.n": b"abc"})
        c.add_columns({"n": "int64"})
        c.chmod("a", 0o600)
        c.setxattrs("a", c.getxattrs("a") | {b"user.x": b"1"})
        assert c.getcolumns("a") == {"n": None}
        assert c.getxattrs("a")[b"user.n"] == b"abc"
        with refused(Refusal, "n is int64"):
            c.setxattrs("a", {b"user.n": b"other"})


def test_columns_travel_with_attributes(base: Path) -> None:
    record = {RECORD: b"n:int64 N2:float64", b"user.n": b"5", b"user.N2": b"0.50"}
    with winkfs.create(base, columns={"n2": "string"}) as c:
        c.put_rows([Row("a", b"1", xattrs=record)])
        assert c.columns == {"n2": "string", "n": "int64"}  # case makes no difference
        assert c.getcolumns("a") == {"n2": None, "n": 5}
        c.put("b", b"1")
        c.setxattrs("b", {RECORD: b"nonsense", b"user.n": b"6"})  # somebody else's
        assert c.columns == {"n2": "string", "n": "int64"}
        assert sorted(c.names(where="n > 4")) == ["a", "b"]


@pytest.mark.parametrize(
    "schema",
    [{"a": "string", "N": "int64"}, {"n": "int64"}, {"x": "strin"}, {"x y": "bool"},
     {"size": "int64"}],
)  # fmt: skip
def test_columns_that_cannot_be_added_change_nothing(schema: dict[str, str], base: Path) -> None:
    with winkfs.create(base, columns={"n": "int64"}) as c:
        with refused(ValueError, match="column"):
            c.add_columns(schema)
        assert c.columns == {"n": "int64"}
        with pytest.raises(ValueError, match="no column 'x'"):
            c.drop_columns(["n", "x"])
        assert c.columns == {"n": "int64"}


def test_columns_are_made_with_the_container(base: Path) -> None:
    with pytest.raises(RuntimeError), winkfs.create(base, columns=SCHEMA) as c:
        c.put("a", b"", columns={"n": 1})
        raise RuntimeError  # drops what was put, not what there is
    with winkfs.open(base) as c:
        assert (c.columns, list(c.names())) == (SCHEMA, [])


def test_a_container_that_is_not_made_is_not_there(base: Path) -> None:
    for settings in ({"columns": {"x": "text"}}, {"columns": {"x": "bool"}, "classic": True}):
        with pytest.raises(ValueError, match=r"there are|classic"):
            winkfs.create(base, **settings)  # type: ignore[arg-type]
        assert list(base.parent.iterdir()) == []


def test_classic_containers_and_readers_declare_nothing(base: Path) -> None:
    with winkfs.create(base, classic=True) as c:
        with refused(NotAllowed, "columns"):
            c.add_columns({"n": "int64"})
        assert c.columns == {}
        c.put("a", b"1")
        assert list(c.names(where="size = 1")) == ["a"]
    with winkfs.open(base) as c:
        for call in (lambda: c.add_columns({"n": "int64"}), lambda: c.drop_columns(["n"]),
                     lambda: c.setcolumns("a", {})):  # fmt: skip
            with pytest.raises(ReadOnly):
                call()


def test_many_columns_and_all_types(base: Path) -> None:
    types = (*TYPES, "decimal(18,2)", "decimal(38,2)")
    schema = {f"c{i}": types[i % len(types)] for i in range(700)} | {"c699": "list<int64>"}
    with winkfs.create(base, columns=schema) as c:
        c.put("a", b"1", columns={"c3": 3, "c699": []})
    winkfs.reindex(base)
    with winkfs.open(base) as c:
        assert c.columns == schema
        assert list(c.names(where="c3 = 3 and c10 is null")) == ["a"]


# --- the catalog ---


def behind(base: Path) -> None:
    """Changes that no catalog knows."""
    with winkfs.open(base, "a") as c:
        change(c)


def change(c: Container) -> None:
    names = list(c.names())
    c.put_many(files(20, 1000))
    c.delete(names[1])
    c.rename(names[2], "renamed")
    c.put(names[3], b"new", columns=values(8))
    c.put(names[4], b"new")
    c.setcolumns(names[5], values(9))
    c.setcolumns(names[6], nulls())
    c.chmod(names[7], 0o600)


def with_runs(base: Path) -> None:
    save_catalog(base)
    for _ in range(2):
        behind(base)
        save_catalog(base)
    with store_of(base) as store, open_catalog(store) as catalog:
        assert len(catalog.runs) > 1


def added_behind(base: Path) -> None:
    """One column is newer than the catalog."""
    save_catalog(base)
    with winkfs.open(base, "a") as c:
        c.drop_columns(["lang"])
        c.sync()
        c.save_catalog()
        c.add_columns({"lang": "string"})


def broken(base: Path) -> None:
    save_catalog(base)
    path = path_of(base, ".cat")
    for at in range(5000, path.stat().st_size, 997):
        flip(path, at)


def cut(base: Path) -> None:
    save_catalog(base)
    os.truncate(path_of(base, ".cat"), path_of(base, ".cat").stat().st_size // 2)


def of_another(base: Path) -> None:
    other = base.with_name("other")
    make(other, 60)
    winkfs.reindex(other)
    path_of(other, ".cat").rename(path_of(base, ".cat"))


def no_index(base: Path) -> None:
    path_of(base, ".idx").unlink()


STATES: dict[str, Callable[[Path], object]] = {
    "missing": lambda base: path_of(base, ".cat").unlink(missing_ok=True),
    "written": save_catalog,
    "reindexed": lambda base: winkfs.reindex(base),
    "behind": lambda base: (save_catalog(base), behind(base)),
    "runs": with_runs,
    "runs and behind": lambda base: (with_runs(base), behind(base)),
    "column behind": added_behind,
    "damaged": broken,
    "cut short": cut,
    "of another": of_another,
    "no index": no_index,
}


MANY = [pytest.param(state, 1100, marks=pytest.mark.slow)
        for state in ("written", "runs and behind", "column behind")]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(("state", "count"), [*((state, 60) for state in STATES), *MANY])
def test_answers_are_those_of_a_loop_whatever_the_catalog(
    state: str, count: int, base: Path
) -> None:
    make(base, count)
    STATES[state](base)
    with winkfs.open(base) as c:
        assert assert_answers(c) > count
    with winkfs.open(base, "a") as c:
        assert assert_answers(c, SOME) > 0
        change(c)
        assert assert_answers(c) > count
    if state not in ("damaged", "cut short", "of another"):
        assert winkfs.verify(base).problems == []


@pytest.mark.slow
def test_conditions_go_with_times_prefixes_and_globs(base: Path) -> None:
    make(base, 500)
    for step in (save_catalog, behind):
        step(base)
        with winkfs.open(base) as c:
            all_of = known(c)
            stats = {name: c.stat(name) for name in all_of}
            for since, until, prefix in ((None, 1e9 + 200, ""), (1e9 + 100, None, "d1/"),
                                         (1e9 + 50, 1e9 + 300, "d")):  # fmt: skip
                found = {e.name for e in c.scan(since, until, prefix, where="good or n = 1")}
                assert found == {
                    name for name, one in all_of.items()
                    if (one["good"] or one["n"] == 1) and name.startswith(prefix)
                    and (since is None or stats[name].mtime >= since)
                    and (until is None or stats[name].mtime < until)
                }  # fmt: skip
            assert list(c.names("d1/*7", where="good")) == [
                name for name in c.names("d1/*7") if all_of[name]["good"]
            ]


@pytest.mark.slow
def test_blocks_that_cannot_be_meant_are_not_read(base: Path) -> None:
    with winkfs.create(base, columns={"n": "int64"}) as c:
        c.put_many((f"{i:05d}", b"", 1.0, {"n": i}) for i in range(20_000))
    winkfs.reindex(base)
    with store_of(base) as store, open_catalog(store) as catalog:
        run = catalog.runs[0]
        places = np.concatenate([run.parts["pos"], run.values["n"]["pos"]]) + 40
    kept = (10, 10 + len(run.firsts))
    for at in np.delete(places, kept).tolist():
        flip(path_of(base, ".cat"), at)
    with winkfs.open(base) as c:
        assert list(c.names(where="n = 10500")) == ["10500"]
        assert c.store.remarks == []
        assert list(c.names(where="n = 500")) == ["00500"]
        assert c.store.remarks != []


@pytest.mark.slow
def test_the_oracle_reads_columns(base: Path) -> None:
    make(base, 1100)
    winkfs.reindex(base)
    tree = check(base)
    assert len(tree.files) == 1100
    behind(base)
    save_catalog(base)
    check(base)  # of two runs


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["value", "null", "zone", "type"])
def test_the_oracle_finds_what_is_wrong_with_columns(
    fault: str, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(base, 300)
    behind(base)
    of = Column.of.__func__  # type: ignore[attr-defined]

    def wrong(cls: type[Column], kind: str, texts: list[bytes | None]) -> Column:
        if kind == "string" and fault == "value":
            texts = [b"en" if text == b"de" else text for text in texts]
        if kind == "list<string>" and fault == "null":
            texts = [None] * len(texts)
        found: Column = of(cls, kind, texts)
        return found

    if fault == "zone":
        zone = Column.zone
        monkeypatch.setattr(Column, "zone", lambda column: (zone(column)[0], *zone(column)[:0:-1]))
    elif fault == "type":
        monkeypatch.setattr(
            "winkfs.container.ondisk.run.schema_text",
            lambda schema: b"lang:binary" + schema_text(schema)[len(b"lang:string") :],
        )
    else:
        monkeypatch.setattr(Column, "of", classmethod(wrong))
    winkfs.reindex(base)
    monkeypatch.undo()
    with pytest.raises(OracleError, match="column"):
        check(base)


def test_verify_finds_a_catalog_with_other_values(base: Path) -> None:
    make(base, 60)
    winkfs.reindex(base)
    assert winkfs.verify(base).problems == []
    rows, end, clashes = rows_of_catalog(base)
    wrong = rows.values.copy()
    at = next(i for i, word in enumerate(wrong) if b"de" in word)
    wrong[at] = wrong[at].replace(b"de", b"en")
    write_catalog(base, FileTable(rows.names, rows.numbers, wrong), end, clashes)
    (problem,) = winkfs.verify(base).problems
    assert "reindex" in problem


# --- what rewrites or breaks a container ---


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize(("order", "ao"), [("disk", False), ("name", False), ("disk", True)])
def test_compact_keeps_columns(order: str, ao: bool, base: Path) -> None:
    wanted = make(base, 200, ao=ao)
    with winkfs.open(base, "a") as c:
        c.drop_columns(["raw"])
        c.add_columns({"raw": "binary", "more": "string"})
        if not ao:
            for name in list(wanted)[:50]:
                c.delete(name)
                del wanted[name]
    save_catalog(base)
    compact(base, order=order)
    with winkfs.open(base) as c:
        assert c.columns == {**{k: v for k, v in SCHEMA.items() if k != "raw"}, "raw": "binary",
                             "more": "string"}  # fmt: skip
        found = known(c)
        assert found.keys() == wanted.keys()
        for name, one in wanted.items():
            assert same({k: found[name][k] for k in SCHEMA}, nulls() | one)
        assert assert_answers(c) > 0
    assert winkfs.verify(base).problems == []
    with winkfs.open(base, "a") as c:
        c.add_columns({"later": "bool"})
        c.put("z", b"", 2e9, columns={"later": True, "more": "m"})
        assert list(c.names(where="later")) == ["z"]


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize("how", ["repair", "salvage", "repair without superblocks"])
def test_columns_survive_a_damaged_file_and_what_repairs_it(how: str, ao: bool, base: Path) -> None:
    wanted = make(base, 100, ao=ao)
    flip_behind(base, b"d1/f00052/I0", 20)
    if how.endswith("superblocks"):
        with path_of(base, ".data").open("r+b") as file:
            file.write(bytes(8192))
    out = base
    if how == "salvage":
        out = base.with_name("out")
        salvage(base, out)
    else:
        repair(base, apply=True)
    with winkfs.open(out) as c:
        found = known(c)
        del wanted["d1/f00052"]
        assert c.columns == SCHEMA
        assert {n: repr(v) for n, v in found.items()} == {
            n: repr(nulls() | v) for n, v in wanted.items()
        }
        assert_answers(c)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["missing", "reindexed"])
def test_a_file_with_damaged_values_raises_and_is_never_skipped(state: str, base: Path) -> None:
    with winkfs.create(base, columns={"n": "int64"}) as c:
        c.put_many((f"{i:05d}", b"", 1.0, {"n": i}) for i in range(3000))
    flip_behind(base, b"user.n\0\0\0\x042500", 12)
    STATES[state](base)
    with winkfs.open(base) as c:
        for text in ("n = 2500", "n = 7", "n < 0", "n is null", "not n > 5", "path like '%2500'"):
            with pytest.raises(CorruptError):
                list(c.names(where=text))
            problems: list[object] = []
            found = list(c.names(where=text, problem=problems.append))
            assert len(problems) == 1, text
            assert "02500" not in found


def test_rollback_takes_columns_back(base: Path) -> None:
    with winkfs.create(base) as c:
        c.put("a", b"1")
        c.sync()
        c.add_columns({"n": "int64"})
        c.put("b", b"2", columns={"n": 1})
        second = c.store.kv.storage.read(4096, 4096)
        c.sync()
        image = path_of(base, ".data").read_bytes()
    # as a power cut leaves it between the two superblocks
    path_of(base, ".data").write_bytes(image[:4096] + second + image[8192:])
    rollback(base, previous=True)
    with winkfs.open(base, "a") as c:
        assert (c.columns, c.notes) == ({}, [])
        assert list(c.names()) == ["a"]
        c.add_columns({"n": "string"})
        c.put("b", b"2", columns={"n": "x"})
        assert list(c.names(where="n = 'x'")) == ["b"]
    assert winkfs.verify(base).problems == []


def test_a_damaged_schema_is_reported_and_declared_again(base: Path) -> None:
    wanted = make(base, 30)
    flip_behind(base, b"lang:string")
    with winkfs.open(base) as c:
        assert c.columns == {}
        assert any("columns cannot be read" in note for note in c.notes)
    assert winkfs.verify(base).problems != []
    with winkfs.open(base, "a") as c:
        c.add_columns(SCHEMA)
        assert_values(c, wanted)
    with winkfs.open(base) as c:
        assert_values(c, wanted)
        assert_answers(c)


WRITER = """
import sys, winkfs
from typed_files import SCHEMA, files
with winkfs.open(sys.argv[1], "a") as c:
    c.add_columns(SCHEMA)
    c.put_many(files(30))
    if sys.argv[2] == "synced":
        c.sync()
    c.put_many(files(30, 100))
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("when", ["synced", "not synced"])
def test_a_killed_writer_leaves_columns_as_of_its_last_sync(when: str, base: Path) -> None:
    with winkfs.create(base) as c:
        c.put("old", b"1")
    winkfs.reindex(base)
    process = child(WRITER, base, when)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    with winkfs.open(base) as reader:
        assert reader.columns == (SCHEMA if when == "synced" else {})
    process.send_signal(signal.SIGKILL)
    process.communicate()
    for mode in ("r", "a"):
        with winkfs.open(base, mode) as c:
            assert c.columns == (SCHEMA if when == "synced" else {})
            if when == "synced":
                found = known(c)
                wanted = {name: one for name, _, _, one in files(30)} | {"old": {}}
                for name, one in wanted.items():
                    assert same(found[name], nulls() | one)
                assert_answers(c)
    with winkfs.open(base, "a") as c:
        if when == "not synced":
            c.add_columns({"lang": "int64"})
            c.put("x", b"", columns={"lang": 5})
            assert list(c.names(where="lang = 5")) == ["x"]
    assert winkfs.verify(base).problems == []


def test_readers_see_columns_with_the_sync_that_adds_them(base: Path) -> None:
    with winkfs.create(base) as writer, winkfs.open(base) as one, winkfs.open(base) as two:
        for step, name in enumerate(["a", "b", "c"]):
            writer.add_columns({name: "int64"})
            writer.put(f"f{step}", b"x", columns={name: step})
            assert name not in one.columns
            writer.sync()
            assert list(one.columns) == ["a", "b", "c"][: step + 1]
            assert list(two.names(where=f"{name} = {step}")) == [f"f{step}"]
            assert [e.name for e in one.scan(where=f"{name} is null")] == [
                f"f{i}" for i in range(step)
            ]
        pending = one.scan(where="a = 0")
        writer.drop_columns(["a"])
        writer.delete("f0")
        writer.sync()
        assert [entry.columns["a"] for entry in pending] == [0]  # as of the call
        with pytest.raises(ValueError, match="no column 'a'"):
            one.scan(where="a = 0")
        assert one.columns == {"b": "int64", "c": "int64"}


def test_values_that_are_not_synced_can_be_asked_for(base: Path) -> None:
    make(base, 60)
    save_catalog(base)
    with winkfs.open(base, "a") as c:
        change(c)
        c.put("open", b"1", columns={"n": 5})
        c.append("open", b"2")
        assert list(c.names(where="n = 5")) == ["open"]
        c.setcolumns("open", {"n": 6})
        assert list(c.names(where="n = 5")) == []
        assert [e.read() for e in c.scan(where="n = 6")] == [b"12"]
        c.rename("open", "closed")
        assert list(c.names(where="n = 6")) == ["closed"]


@pytest.mark.slow
@pytest.mark.in_memory
def test_flipped_bytes_of_a_catalog_change_no_answer(
    base: Path, every: Callable[[str], slice]
) -> None:
    make(base, 24)
    winkfs.reindex(base)
    behind(base)
    save_catalog(base)
    path = path_of(base, ".cat")
    raw = path.read_bytes()
    with winkfs.open(base) as c:
        all_of = known(c)
    questions = {"n > 0 or n is null": lambda v: v["n"] is None or v["n"] > 0,
                 "lang = 'de' or good": lambda v: v["lang"] == "de" or v["good"]}  # fmt: skip
    for at in range(len(raw))[every("catalog bytes")]:
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        with winkfs.open(base) as c:
            for text, test in questions.items():
                wanted = sorted(name for name, one in all_of.items() if test(one))
                assert sorted(c.names(where=text)) == wanted, at
                assert sorted(e.name for e in c.scan(where=text)) == wanted, at


def test_info_prints_columns(base: Path) -> None:
    from winkfs.container.verify import info

    make(base, 5)
    assert json.loads(json.dumps(info(str(base))))["fields"] == SCHEMA


@pytest.mark.parametrize("change", ["add", "drop"])
@pytest.mark.parametrize("indexed", [True, False])
def test_the_next_writer_marks_columns_replaced_before_a_kill(
    change: str, indexed: bool, base: Path
) -> None:
    """The kill comes between the superblock, which has counted them off, and their delflag."""
    with winkfs.create(base, columns={"a": "int64", "b": "int64"}) as c:
        c.put("x", b"1", columns={"a": 1})
    if not indexed:
        path_of(base, ".idx").unlink()

    def stop(call: Call) -> None:
        if call.verb == "patch":
            raise KeyboardInterrupt

    c = winkfs.open(base, "a")
    c.add_columns({"c": "int64"}) if change == "add" else c.drop_columns(["b"])
    with disk_calls(stop), pytest.raises(KeyboardInterrupt):
        c.sync()
    image = image_of(base)
    c.close()
    assert winkfs.verify(image).problems == []
    with winkfs.open(image, "a") as c:
        assert c.columns == {"a": "int64"} | (
            {"b": "int64", "c": "int64"} if change == "add" else {}
        )
        c.put("y", b"2", columns={"a": 2})
    assert winkfs.verify(image).problems == []
    check(image)
    with winkfs.open(image) as c:
        live = [e for e in c.store.kv.iterate() if e.key == b"columns/C0" and not e.deleted]
        assert len(live) == 1
        assert [entry.name for entry in c.scan(where="a > 0")] == ["x", "y"]


# --- columns of a later version ---


def test_columns_of_a_later_version_cost_themselves_alone(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"a": "string", "day": "date", "n": "int64", "wide": "decimal(38,2)"}
    with winkfs.create(base, columns=schema) as c:
        c.put("f", b"1", columns={"a": "x", "day": date(2026, 1, 1), "n": 5})
    winkfs.reindex(base)
    known = typed.spelt
    with monkeypatch.context() as older:
        later = ("date", "decimal(38,2)")
        older.setattr(typed, "spelt", lambda kind: None if kind in later else known(kind))
        with winkfs.open(base, "a") as c:
            assert c.columns == {"a": "string", "n": "int64"} and c.problems == []
            assert list(c.names(where="n = 5 and a = 'x'")) == ["f"]
            assert any("day:date wide:decimal(38,2)" in text for text in c.store.remarks)
            assert c.getxattrs("f")[b"user.day"] == b"2026-01-01"
            assert c.getxattrs("f")[RECORD] == b"a:string n:int64 day:date wide:decimal(38,2)"
            c.put("g", b"2", columns={"n": 6})
            c.add_columns({"b": "bool"})
        assert winkfs.verify(base).problems == []
    with winkfs.open(base) as c:
        assert c.columns == schema | {"b": "bool"}
        assert c.getcolumns("f")["day"] == date(2026, 1, 1)
        assert list(c.names(where="day is null and n = 6")) == ["g"]
    assert winkfs.verify(base).problems == []
