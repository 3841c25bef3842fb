"""Wrong arguments to a container or a data set: one clear error, and nothing else is lost."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arguments import Call, attempt, one_wrong, some_wrong
from container_checks import refused
from drawn import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import make

import winkfs
import winkfs.dataset
from winkfs import Container, Row, WinkError
from winkfs.container.handle import Handle
from winkfs.container.ondisk.inode import Attrs

COLUMNS = {
    "s": "string", "n": "int64", "f": "float64", "b": "bool", "t": "timestamp", "l": "list<string>",
}  # fmt: skip
GOOD: dict[str, Any] = {
    "name": "f", "path": "f", "old": "f", "new": "g", "target": "f", "data": b"new", "offset": 1,
    "size": 2, "into": lambda: memoryview(bytearray(5)), "names": lambda: ["f"], "mtime": 5.0,
    "pieces": lambda: [(0, b"1"), (1, b"2")], "mode": 0o600, "uid": 1, "gid": 2, "object": "f",
    "xattrs": lambda: {b"user.a": b"1"}, "values": lambda: {"s": "x"}, "columns": dict,
    "files": lambda: [("f", b"1"), ("h", b"2", 5.0)], "rows": lambda: [Row("f", b"1", mode=0o640)],
    "batch": None, "source": lambda: io.BytesIO(b"12"), "n": 2, "refs": list,
}  # fmt: skip
# The last are of this library.
SKIP = ("close", "abort", "after_fork", "rows", "home", "homes", *(vars(Handle).keys() - {"sync"}))
KEPT = {f"kept/{i}": b"%d" % i * 100 for i in range(50)}


def container(path: Path) -> Container:
    return winkfs.create(path, columns=COLUMNS)


def ao(path: Path) -> Container:
    return winkfs.create(path, ao=True)


def dataset(path: Path) -> winkfs.Dataset:
    return winkfs.dataset.create(path)


# Times are among the arguments: which were clamped is a warning at the end.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*the nearest one in them is stored:UserWarning"),
    pytest.mark.in_memory,
]
MAKE: list[Callable[[Path], Any]] = [container, ao, dataset]


def begin(make: Callable[[Path], Any], path: Path) -> Any:
    """A handle with files of which nothing is synced: in bulk, put and appended to."""
    handle = make(path)
    if make is ao:
        handle.put_many((name, data, 1) for name, data in KEPT.items())
        return handle
    handle.put_many(list(KEPT.items())[10:])
    for name, data in list(KEPT.items())[:10]:
        handle.put(name, data if make is dataset else data[:50])
        if make is not dataset:
            handle.append(name, data[50:])
    return handle


def holds(handle: Any) -> None:
    assert {name: handle.read(name) for name in KEPT} == KEPT


def finish(handle: Any, path: Path) -> None:
    handle.sync()
    handle.close()
    assert winkfs.verify(path).problems == []
    with winkfs.open(path) as reader:
        holds(reader)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("make", MAKE)
def test_a_wrong_argument_is_one_clear_error_and_loses_nothing(
    make: Callable[[Path], Any], tmp_path: Path, every: Callable[[str], slice]
) -> None:
    handle = begin(make, tmp_path / "c")
    method, refused = "", 0
    for call in one_wrong(handle, GOOD, SKIP, every("wrong values").step):
        if call.method != method:
            holds(handle)
            if make is not dataset:
                handle.sync()
            method = call.method
        if "f" not in handle:
            handle.put("f", b"content")
        refused += attempt(handle, call) is not None
    assert refused > 500
    finish(handle, tmp_path / "c")


@pytest.mark.slow
@pytest.mark.parametrize("make", [container, dataset])
def test_wrong_arguments_raise_one_error_and_lose_nothing(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    handle = begin(make, tmp_path / "c")
    handle.put("f", b"content")
    wrong = some_wrong(handle, GOOD, SKIP)

    @settings(max_examples=examples(40), deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.data())
    def calls(data: st.DataObject) -> None:
        call: Call = data.draw(wrong)
        attempt(handle, call)

    calls()
    finish(handle, tmp_path / "c")


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("others", [2, 100])  # settled one by one, or together
@pytest.mark.parametrize("end", ["sync", "close"])
@pytest.mark.parametrize("field", ["mtime", "attrs", "ftype"])
def test_a_draft_that_cannot_be_written_costs_itself_alone(
    field: str, end: str, others: int, tmp_path: Path
) -> None:
    """A fault of ours: no argument gets so far. It is reported, all else is kept."""
    make(tmp_path / "c", ((f"{i}", b"old") for i in range(others)))
    c = winkfs.open(tmp_path / "c", "a")
    assert isinstance(c, Container)
    for i in range(others):
        c.append(f"{i}", b"+")
        c.change(c.changes.begin, b"new%d/I0" % i, None, winkfs.FileType.FILE, None)
        c.append(f"new{i}", b"1")
    wrong = {"mtime": 1 << 70, "attrs": Attrs(0o600, 1 << 70, 0), "ftype": 1 << 70}[field]
    for key in (b"1/I0", b"new1/I0"):
        draft = c.changes.drafts[key]
        setattr(draft, field, wrong)
        draft.attrs_at = None
    with refused(WinkError, match=r"1: its last changes cannot.*and 1 more"):
        getattr(c, end)()
    if end == "sync":
        assert sum("cannot be written" in line for line in c.problems) == 2
        assert c.read("1") == b"old" and "new1" not in c
        c.append("1", b"-")
        c.sync()
        c.close()
    assert winkfs.verify(tmp_path / "c").problems == []
    with winkfs.open(tmp_path / "c") as r:
        found = {entry.name: entry.read() for entry in r.scan()}
    assert found.pop("1") == (b"old-" if end == "sync" else b"old")
    rest = [i for i in range(others) if i != 1]
    assert found == {f"{i}": b"old+" for i in rest} | {f"new{i}": b"1" for i in rest}


def test_a_buffer_that_is_filled_is_the_one_that_was_given(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("f", b"abc")
        into = bytearray(5)
        assert c.read_into("f", 1, into) == 2  # type: ignore[arg-type]
        assert into == b"bc\0\0\0"
