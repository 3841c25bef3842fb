"""Columns of data sets: shards with different ones, conditions, and what rewrites shards."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import stored
from container_checks import one_line
from data_sets import commit, delete, forge, sealed
from data_sets import root as root
from flips import flip
from seam import disk_calls, once
from typed_files import (
    SCHEMA,
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
from winkfs import Container, Row
from winkfs.archive.unpack import unpack
from winkfs.container.ondisk.typed import RECORD
from winkfs.dataset.compaction import compact, rebalance
from winkfs.dataset.maintain import adopt
from winkfs.dataset.manifest import Log
from winkfs.dataset.transaction import Transaction, begin
from winkfs.errors import DatasetConflict

pytestmark = pytest.mark.in_memory


def shard(columns: dict[str, str], rows: list[tuple[Any, ...]]) -> Any:
    def fill(container: Container) -> None:
        container.add_columns(columns)
        container.put_many(rows)

    return fill


def write(root: str, columns: dict[str, str], *rows: tuple[Any, ...], **settings: Any) -> None:
    commit(root, [shard(columns, list(rows))], **settings)


def chosen(root: str, where: str) -> list[str]:
    with winkfs.open(root) as files:
        return sorted(entry.name for entry in files.scan(where=where))


def values_of(root: str) -> dict[str, Any]:
    with winkfs.open(root) as files:
        return known(files)


def whole(root: str) -> dict[str, Any]:
    return {name: repr(one) for name, one in values_of(root).items()}


@pytest.mark.slow
@pytest.mark.parametrize("ao", [False, True])
def test_values_come_back_from_all_shards(ao: bool, root: str) -> None:
    for start in (0, 100, 200):
        commit(root, [shard(SCHEMA, list(files(50, start)))], ao=ao)
    if not ao:
        delete(root, "d1/f00001")
    with winkfs.open(root) as found:
        assert found.columns == SCHEMA
        wanted = {name: one for at in (0, 100, 200) for name, _, _, one in files(50, at)}
        if not ao:
            del wanted["d1/f00001"]
        assert_values(found, wanted)
        assert assert_answers(found) > 150
    assert winkfs.verify(root).problems == []


def test_what_a_shard_lacks_is_null(root: str) -> None:
    write(root, {"a": "int64"}, ("x", b"", 1.0, {"a": 1}))
    write(root, {"b": "string"}, ("y", b"", 1.0, {"b": "t"}))
    write(root, {}, ("z", b"", 1.0))
    assert stored.columns(root) == {"a": "int64", "b": "string"}
    assert values_of(root) == {"x": {"a": 1, "b": None}, "y": {"a": None, "b": "t"},
                               "z": {"a": None, "b": None}}  # fmt: skip
    assert chosen(root, "a is null") == ["y", "z"]
    assert chosen(root, "a = 1 or b = 't'") == ["x", "y"]
    assert chosen(root, "not a = 2") == ["x"]


def test_an_attribute_is_no_value_if_its_shard_lacks_the_column(root: str) -> None:
    def fill(container: Container) -> None:
        container.put_rows([Row("old", b"1", xattrs={b"user.n": b"5"})])

    commit(root, [fill])
    write(root, {"n": "int64"}, ("new", b"", 1.0, {"n": 5}))
    loop = sorted(name for name, one in values_of(root).items() if one["n"] == 5)
    assert chosen(root, "n = 5") == loop == ["new"]


def test_int64_and_float64_are_float64(root: str) -> None:
    write(root, {"n": "int64"}, ("i", b"", 1.0, {"n": 2}), ("j", b"", 1.0, {"n": 1 << 40}))
    write(root, {"n": "float64"}, ("f", b"", 1.0, {"n": 2.5}), ("g", b"", 1.0, {"n": 2.0}))
    write(root, {"n": "int64"}, ("k", b"", 1.0, {"n": 3}))
    for _ in range(2):
        assert stored.columns(root) == {"n": "float64"}
        values = {name: one["n"] for name, one in values_of(root).items()}
        assert values == {"i": 2.0, "j": float(1 << 40), "f": 2.5, "g": 2.0, "k": 3.0}
        assert chosen(root, "n = 2") == ["g", "i"]
        assert chosen(root, "n > 2.2") == ["f", "j", "k"]
        rebalance(root, shards=1)


@pytest.mark.parametrize("kinds", [("int64", "float64"), ("float64", "int64")])
def test_what_is_made_of_a_data_set_has_its_types(
    kinds: tuple[str, str], root: str, tmp_path: Path
) -> None:
    """Files of both types travel with one, which holds all values."""
    for kind in kinds:
        write(root, {"n": kind}, (kind, b"", 1.0, {"n": 2 if kind == "int64" else 1.5}))
    wanted = {"int64": {"n": 2.0}, "float64": {"n": 1.5}}
    with winkfs.open(root) as found:
        for entry in found.scan():
            assert (entry.columns, found.getxattrs(entry.name)[RECORD]) == (
                wanted[entry.name], b"n:float64",
            )  # fmt: skip
    unpack(root, tmp_path / "tree")
    winkfs.pack(tmp_path / "tree", tmp_path / "c")
    with winkfs.open(tmp_path / "c") as found:
        assert found.columns == {"n": "float64"}
        assert {e.name: e.columns for e in found.scan()} == wanted


def test_writers_without_columns_refuse_newer_manifests(root: str) -> None:
    """A checkpoint of version 1 has records without columns: its writer must not follow these."""
    write(root, {}, ("plain", b"", 1.0, {}))
    write(root, {"n": "int64"}, ("a", b"", 1.0, {"n": 1}))
    write(root, {}, ("plain too", b"", 1.0, {}))
    pages = sorted(Path(root, "_winkfs").glob("*.json"))
    assert [json.loads(page.read_bytes())["version"] for page in pages] == [1, 1, 1.1, 1.1]


@pytest.mark.parametrize("kind", ["date", "decimal(9,2)", "list<float64>"])
def test_versions_without_a_type_refuse_manifests_that_have_it(root: str, kind: str) -> None:
    """0.2.0 would call such a manifest damaged."""
    write(root, {"n": "int64"}, ("a", b"", 1.0, {"n": 1}))
    write(root, {"d": kind}, ("b", b"", 1.0, {}))
    write(root, {"n": "int64"}, ("c", b"", 1.0, {"n": 2}))
    pages = sorted(Path(root, "_winkfs").glob("*.json"))
    assert [json.loads(page.read_bytes())["version"] for page in pages] == [1, 1.1, 1.2, 1.2]
    assert stored.columns(root) == {"n": "int64", "d": kind}


def test_a_word_of_a_later_version_costs_its_column_alone(root: str) -> None:
    write(root, {"n": "int64", "d": "date"}, ("a", b"", 1.0, {"n": 1, "d": date(2026, 1, 1)}))

    def later(values: dict[str, Any]) -> None:
        for record in (*values["added"], *values["checkpoint"]["shards"]):
            record["columns"] = "n:int64 d:geo(4326)"

    forge(root, 1, later)
    assert stored.columns(root) == {"n": "int64"}
    assert chosen(root, "n = 1") == ["a"]


def test_of_other_types_the_last_counts(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, {"n": "string"}, ("a", b"", 1.0, {"n": "x"}), ("b", b"", 1.0, {"n": "5"}))
    with monkeypatch.context() as older:  # versions that committed that
        older.setattr(Transaction, "_check_columns", lambda *_: None)
        write(root, {"n": "int64"}, ("c", b"", 1.0, {"n": 5}))
    write(root, {"n": "int64"}, ("d", b"", 1.0, {"n": 6}))
    for _ in range(2):
        assert stored.columns(root) == {"n": "int64"}
        assert values_of(root) == {"a": {"n": None}, "b": {"n": 5}, "c": {"n": 5}, "d": {"n": 6}}
        with winkfs.open(root) as found:
            assert found.getxattrs("a")[b"user.n"] == b"x"
        assert chosen(root, "n = 5") == ["b", "c"]
        assert chosen(root, "n is null") == ["a"]
        rebalance(root, shards=1)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize("how", ["compact", "one shard", "five shards"])
def test_rewritten_shards_keep_values_types_and_nulls(how: str, ao: bool, root: str) -> None:
    commit(root, [shard(SCHEMA | {"unused": "bool"}, list(files(40)))], ao=ao)
    commit(root, [shard(SCHEMA, list(files(40, 40)))], ao=ao)
    commit(root, [shard({"later": "string"}, [("later", b"x" * (9 << 20), 2e9, {"later": "v"})])],
           ao=ao)  # fmt: skip
    if not ao:
        delete(root, "d1/f00001", "d2/f00002")
    before = whole(root)
    columns = stored.columns(root)
    {"compact": lambda: compact(root), "one shard": lambda: rebalance(root, shards=1),
     "five shards": lambda: rebalance(root, shards=5)}[how]()  # fmt: skip
    assert whole(root) == before
    with winkfs.open(root) as found:
        assert found.columns == columns
        assert_answers(found)
    assert chosen(root, "later = 'v'") == ["later"]
    assert winkfs.verify(root).problems == []


def test_attributes_are_copied_only_between_equal_columns(root: str) -> None:
    def words() -> dict[str, bytes]:
        with winkfs.open(root) as found:
            return {e.name: getattr(e, "word", b"") for e in found.scan()}

    write(root, {"n": "int64", "a": "string"}, *((f"{i}", b"x", 1.0, {"n": i}) for i in range(50)))
    write(root, {"n": "int64", "a": "string"}, *((f"{i}", b"y", 2.0, {"a": "z"}) for i in range(9)))
    before = words()
    assert compact(root, everything=True).removed == 2
    same = [before[name] == word for name, word in words().items() if word and before[name]]
    assert len(same) > 40 and all(same)  # one at the end of what is read at once has none
    write(root, {"n": "float64"}, ("f", b"x", 3.0, {"n": 0.5}), ("none", b"x", 3.0))
    assert compact(root, everything=True).removed == 2
    with winkfs.open(root) as found:
        assert found.columns == {"n": "float64", "a": "string"}
        assert found.getcolumns("f") == {"n": 0.5, "a": None}
        assert found.getcolumns("12") == {"n": 12.0, "a": None}
        assert found.getcolumns("3") == {"n": None, "a": "z"}
        assert [e.columns["n"] for e in found.scan(where="n > 48")] == [49.0]
        texts = {e.xattrs[b"user.n"] for e in found.scan(where="n = 12")}
    assert texts == {b"12.0"}  # of the type that the column has now
    assert winkfs.verify(root).problems == []


@pytest.mark.slow
def test_a_writer_of_a_data_set_puts_values(root: str) -> None:
    write(root, SCHEMA, *files(30))
    with winkfs.open(root, "a") as found:
        assert found.columns == SCHEMA
        found.put("new", b"1", columns=values(3))
        found.put_many([("many", b"2", 5.0, values(4)), ("d1/f00001", b"", 5.0)])
        found.add_columns({"more": "int64"})
        found.put("more", b"", columns={"more": 7})
        assert found.columns == SCHEMA | {"more": "int64"}
        assert same(found.getcolumns("new"), nulls() | values(3) | {"more": None})
        assert [e.name for e in found.scan(where="more = 7")] == ["more"]
        assert same(found.getcolumns("d1/f00001"), nulls() | {"more": None})
        assert_answers(found)
        with pytest.raises(ValueError, match="no column 'zz'") as caught:
            found.put("x", b"", columns={"zz": 1})
        one_line(caught.value)
        with pytest.raises(ValueError, match="has a column"):
            found.add_columns({"more": "int64"})
    with winkfs.open(root) as found:
        assert found.columns == SCHEMA | {"more": "int64"}
        assert same(found.getcolumns("new"), nulls() | values(3) | {"more": None})
        assert_answers(found)
    assert winkfs.verify(root).problems == []


def test_a_writer_that_fails_leaves_no_columns(root: str) -> None:
    write(root, {"n": "int64"}, ("a", b"", 1.0, {"n": 1}))
    with pytest.raises(RuntimeError), winkfs.open(root, "a") as found:
        found.add_columns({"more": "int64"})
        found.put("b", b"", columns={"more": 1})
        raise RuntimeError
    assert stored.columns(root) == {"n": "int64"}
    assert stored.names(root) == ["a"]


def test_columns_are_published_without_files_and_stay(root: str) -> None:
    for more in ({"n": "int64"}, {"lang": "string"}):
        with winkfs.open(root, "a") as found:
            found.add_columns(more)
    assert compact(root, everything=True).added == 1
    assert compact(root, everything=True).removed == 0
    with winkfs.open(root, "a") as found:
        assert found.columns == {"n": "int64", "lang": "string"}
        assert list(found.names(where="n is null")) == []
        found.put("a", b"1", columns={"n": 1})
    with winkfs.open(root, "a") as found:
        assert list(found.names(where="n = 1")) == ["a"]
        found.delete("a")
    assert compact(root, everything=True).added == 1  # of no file any more
    assert compact(root, everything=True).removed == 0
    with winkfs.open(root) as found:
        assert (found.columns, len(found)) == ({"n": "int64", "lang": "string"}, 0)
    assert winkfs.verify(root).problems == []
    before = Log(root).newest()
    winkfs.open(root, "a").close()  # nothing to be published
    assert Log(root).newest() == before


def test_adopted_containers_bring_their_columns(root: str, tmp_path: Path) -> None:
    wanted = make(tmp_path / "c", 40)
    adopt(root, [tmp_path / "c"])
    with winkfs.open(root) as found:
        assert found.columns == SCHEMA
        assert_values(found, wanted)
        assert assert_answers(found) > 40


def test_an_older_generation_has_its_own_columns(root: str) -> None:
    write(root, {"n": "int64"}, ("a", b"", 1.0, {"n": 1}))
    write(root, {"n": "float64", "s": "string"}, ("a", b"", 1.0, {"n": 1.5, "s": "x"}))
    with winkfs.open(root) as found:
        assert found.columns == {"n": "float64", "s": "string"}
        assert found.getcolumns("a") == {"n": 1.5, "s": "x"}
        generation = found.generation
    with winkfs.open(root, as_of=str(generation - 1)) as found:
        assert found.columns == {"n": "int64"}
        assert [e.name for e in found.scan(where="n = 1")] == ["a"]
        with pytest.raises(ValueError, match="no column 's'"):
            found.scan(where="s = 'x'")


@pytest.mark.slow
def test_shards_without_a_catalog_answer_alike(root: str) -> None:
    write(root, SCHEMA, *files(60))
    write(root, SCHEMA, *files(60, 30))
    with winkfs.open(root) as found:
        count = assert_answers(found)
    for harm in (lambda path: flip(path, *range(5000, 7000, 100), bits=0x55), Path.unlink):
        for path in Path(root).rglob("*.cat"):
            harm(path)
        with winkfs.open(root) as found:
            assert assert_answers(found) == count


def test_names_that_differ_in_case_alone_are_refused(root: str) -> None:
    write(root, {"lang": "string"}, ("a", b"", 1.0, {"lang": "de"}))
    with winkfs.open(root, "a") as found, pytest.raises(ValueError, match="Lang"):
        found.add_columns({"Lang": "string"})
    other = Path(root).with_name("other")
    winkfs.create(other, columns={"LANG": "string"}).close()
    with pytest.raises(DatasetConflict, match="'LANG' is 'lang' in the data set"):
        adopt(root, [other])
    stored.change(root, {"b": b""})
    assert stored.columns(root) == {"lang": "string"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        ({"lang": "string"}, {"Lang": "string"}, "'Lang' is 'lang' in the data set"),
        ({"lang": "string"}, {"lang": "int64"}, "'lang' is string in the data set, not int64"),
        ({"n": "int64"}, {"n": "float64"}, ""),
        ({"lang": "string"}, {"n": "string"}, ""),
    ],
)
def test_columns_of_two_commits_at_once(
    first: dict[str, str], second: dict[str, str], answer: str, root: str
) -> None:
    jobs = [begin(root), begin(root)]
    records = []
    for job, columns in zip(jobs, (first, second), strict=True):
        records.append(sealed(job, {next(iter(columns)): b"1"}, columns=columns))
    assert jobs[0].commit(records[:1]) == 1
    if answer:
        with pytest.raises(DatasetConflict, match=answer):
            jobs[1].commit(records[1:])
    else:
        assert jobs[1].commit(records[1:]) == 2
    assert stored.columns(root) == (first if answer else first | second)
    assert len(stored.names(root)) == (1 if answer else len(first | second))
    assert os.listdir(f"{root}/_pending") == []
    write(root, first, ("more", b""))
    compact(root, everything=True)
    assert winkfs.verify(root).problems == []


def test_columns_added_between_look_and_commit_conflict(
    root: str,
) -> None:
    """The check is made again on what the commit follows."""
    late = begin(root)
    record = sealed(late, {"a": b"1"}, columns={"Lang": "string"})
    other = once("rename", f"/{late.job}", lambda: write(root, {"lang": "string"}, ("b", b"")))
    with disk_calls(other), pytest.raises(DatasetConflict, match="rename it"):
        late.commit([record])
    assert stored.names(root) == ["b"]


def test_a_writer_goes_on_after_a_late_column_conflict(root: str) -> None:
    with winkfs.open(root, "a") as found:
        found.add_columns({"Lang": "string"})
        found.put("a", b"1")
        write(root, {"lang": "string"}, ("b", b""))
        with pytest.raises(DatasetConflict):
            found.sync()
        found.refresh()
        found.put("c", b"2")
    assert stored.names(root) == ["b", "c"]
