"""A store as a dict: keys, items, values, get on each reader; changes on those that are written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drawn import examples
from folders import in_memory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import winkfs
import winkfs.dataset
from winkfs.pythonic import views
from winkfs.stores.ledgerq import Queue

FILES = {"a": b"1", "b/c": b"22", "b/d": b"", "é": b"4", "\udcff": b"5"}


def made(kind: str, base: Path) -> Any:
    if kind == "data set":
        return winkfs.dataset.create(base)
    return winkfs.create(base, ao=kind == "append-only")


@pytest.fixture(params=["container", "append-only", "data set"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with made(request.param, tmp_path / "c") as opened:
        yield opened


@pytest.fixture(
    params=["container", "container that is written", "data set", "data set as written"]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    kind = request.param
    with made("data set" if kind.startswith("data") else "container", tmp_path / "c") as opened:
        opened.update(FILES)
    with winkfs.open(tmp_path / "c", "a" if "written" in kind else "r") as opened:
        if "written" in kind:
            opened["b/d"] = b"3"
            opened["b/d"] = b""
        yield opened


def test_a_store_reads_as_a_dict(store: Any) -> None:
    assert dict(store) == FILES == {**store} == dict(store.items())
    assert list(store.keys()) == list(store) == [name for name, _ in store.items()]
    assert list(store.values()) == [FILES[name] for name in store]
    assert len(store.keys()) == len(store.items()) == len(store.values()) == len(FILES)
    assert "a" in store.keys() and "x" not in store.keys()  # noqa: SIM118
    assert ("a", b"1") in store.items() and ("a", b"2") not in store.items()
    assert b"22" in store.values() and b"x" not in store.values()
    assert store.keys() & {"a", "x"} == {"a"} and store.keys() - FILES.keys() == set()
    assert "Items(<winkfs" in repr(store.items())


def test_get_returns_a_default_for_a_missing_file_alone(store: Any) -> None:
    assert store.get("a") == store.get(b"a") == store.get(Path("a")) == b"1"
    assert store.get("x") is None and store.get("x", 5) == 5
    assert store.get("b/d", b"default") == b""
    with pytest.raises(TypeError, match="a name is str, bytes or a Path"):
        store.get(5)


def test_damage_is_no_missing_file(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c["a"] = b"content" * 100
    data = (tmp_path / "c.data").read_bytes()
    (tmp_path / "c.data").write_bytes(data.replace(b"contentcontent", b"contentconTent", 1))
    with winkfs.open(tmp_path / "c") as c:
        for look in (lambda: c.get("a", b""), lambda: list(c.items()), lambda: list(c.values())):
            with pytest.raises(winkfs.CorruptError):
                look()


def test_a_store_is_equal_to_itself_only(store: Any) -> None:
    assert store == store and store != dict(store)
    assert {store: 1}[store] == 1


def test_records_read_as_a_dict(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", "a", make=True) as queue:
        queue.push_many([b"one", b"two"])
    with winkfs.open(tmp_path / "q") as records:
        assert dict(records) == dict(records.items()) == {"1": b"one", "2": b"two"}
        assert records.get("3") is None
        with pytest.raises(TypeError):
            records["3"] = b"x"  # type: ignore[index]


def test_changes_are_those_of_a_dict(writer: Any) -> None:
    writer["a"] = b"1"
    writer["a"] = bytearray(b"2")
    assert writer.setdefault("a", b"3") == b"2" and writer.setdefault("b", b"3") == b"3"
    writer.update({"c": b"4"}, d=b"5")
    writer.update([("e", b"6")])
    writer.update(writer)
    assert dict(writer) == {"a": b"2", "b": b"3", "c": b"4", "d": b"5", "e": b"6"}
    del writer["a"]
    assert writer.pop("b") == b"3"
    assert writer.pop("b", None) is None
    for look in (lambda: writer.pop("b"), lambda: writer.__delitem__("b"), lambda: writer["b"]):
        with pytest.raises(KeyError, match="b") as raised:
            look()
        assert isinstance(raised.value, winkfs.NoSuchFile)
    assert sorted(writer) == ["c", "d", "e"]


def test_an_update_takes_what_has_keys_alone(writer: Any) -> None:
    class Keyed:
        def keys(self) -> list[str]:
            return ["a", "b"]

        def __getitem__(self, name: str) -> bytes:
            return name.encode()

    writer.update(Keyed())
    assert dict(writer) == {"a": b"a", "b": b"b"}


def test_a_reader_refuses_changes(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c["a"] = b"1"
    with winkfs.open(tmp_path / "c") as reader:
        assert isinstance(reader, winkfs.Container)
        for change in (
            lambda: reader.__setitem__("a", b"2"),
            lambda: reader.__delitem__("a"),
            lambda: reader.pop("a"),
            lambda: reader.update(b=b"2"),
        ):
            with pytest.raises(winkfs.ReadOnly):
                change()


def test_a_closed_store_refuses_in_one_line(store: Any) -> None:
    views_of = store.items(), store.values(), store.keys()
    store.close()
    for view in views_of:
        with pytest.raises(winkfs.Closed):
            list(view)
    with pytest.raises(winkfs.Closed):
        store.get("a")


def test_items_leave_out_what_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "AT_ONCE_FILES", 3)
    with winkfs.create(tmp_path / "c") as c:
        c.update({f"{i}": b"%d" % i for i in range(9)})
        found = []
        for name, _ in c.items():
            found.append(name)
            if name == "0":
                for gone in ("4", "5", "7"):
                    del c[gone]
                c["9"] = b"later"
        assert found == ["0", "1", "2", "3", "6", "8"]


def test_items_hold_few_contents_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "AT_ONCE_BYTES", 250)
    with winkfs.create(tmp_path / "c") as c:
        c.update({f"{i:02}": bytes(100 if i != 5 else 1000) for i in range(10)})
    with winkfs.open(tmp_path / "c") as c:
        taken: list[int] = []
        monkeypatch.setattr(
            type(c),
            "get_many",
            lambda self, names: taken.append(len(names)) or map(self.read, names),
        )
        assert len(list(c.items())) == 10
        assert taken == [2, 2, 1, 1, 2, 2]


def test_two_threads_set_a_default_once(writer: Any) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda i=i: found.append(writer.setdefault("a", b"%d" % i)))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and set(found) == {writer["a"]}


NAMES = st.sampled_from(["a", "b", "a/b", "é"])
STEP = st.one_of(
    st.tuples(st.just("set"), NAMES, st.binary(max_size=3)),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("pop"), NAMES),
    st.tuples(st.just("setdefault"), NAMES, st.binary(max_size=3)),
    st.tuples(st.just("update"), st.dictionaries(NAMES, st.binary(max_size=3))),
    st.tuples(st.just("sync")),
)


def step(target: Any, what: str, *given: Any) -> object:
    try:
        if what == "set":
            return target.__setitem__(*given)
        if what == "delete":
            return target.__delitem__(*given)
        if what == "sync":
            getattr(target, "sync", int)()
            return None
        return getattr(target, what)(*given)
    except KeyError:
        return "KeyError"


@settings(max_examples=examples(80), deadline=None, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(steps=st.lists(STEP, max_size=12), kind=st.sampled_from(["container", "data set"]))
def test_it_behaves_as_a_dict(steps: list[tuple[Any, ...]], kind: str) -> None:
    model: dict[str, bytes] = {}
    with in_memory() as folder, made(kind, folder / "c") as store:
        for one in steps:
            assert step(store, *one) == step(model, *one), one
            assert dict(store.items()) == model
            assert len(store) == len(model)
            assert {name: store.get(name) for name in "ab"} == {n: model.get(n) for n in "ab"}
        assert dict(store) == model
