"""The house: what its plan bounds, how far a call goes through it, and the page that shows it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import stored
import walks

import winkfs
from scripts import house
from winkformats import native

pytestmark = pytest.mark.slow

# How many modules there are has no bound: one that is full decides where code goes. The picture
# has which package imports which, the walks how far a call goes.
BOUNDS = {
    "flat in winkfs/": 12,
    "import cycles": 0,
    "longest chain of imports": 20,
    "files of the machine made outside disk/": 0,
}
# what -> (calls of own functions, files they are in)
WALKS = {
    walks.put: (20, 10) if native.code else (22, 11),
    walks.put_mode: (40, 15),
    walks.put_over: (56, 16),
    walks.open_close: (150, 28),
    walks.open_put_close: (850, 46),
    walks.stat: (5, 5) if native.code else (24, 7),
    walks.contains: (4, 4) if native.code else (32, 7),
    walks.read_two_extents: (2, 2) if native.code else (39, 7),
    walks.read_part: (2, 2) if native.code else (32, 7),
    walks.mount_create: (80, 18) if native.code else (90, 20),
    walks.mount_read: (10, 9) if native.code else (40, 12),
    walks.reindex: (475, 36),  # 463; on overlayfs each of two locks takes a second attempt
    walks.queue_push: (3, 2),
}
# What binds tests to the inside of the product: it has to be moved with it.
INSIDES = {
    "private attributes of others": 62,
    "constants that are shrunk": 59,
}
PAGE = (house.ROOT / "docs/architecture.md").read_text()


@pytest.fixture(scope="module")
def figures() -> dict[str, int]:
    found = house.figures()
    for what, count in found.items():
        print(f"{count:5} {what}, at most {BOUNDS.get(what, 'any')}")
    return found


@pytest.mark.parametrize("what", BOUNDS)
def test_the_house_keeps_its_plan(figures: dict[str, int], what: str) -> None:
    assert figures[what] <= BOUNDS[what]


@functools.cache
def insides() -> dict[str, int]:
    """-> how often tests use `x._y`, not of `self`, and `shrink`, alone or in a policy."""
    inside = re.compile(r"(?<!self)(?<!cls)\._[a-z]|\b(shrink|make_chains|leave_tails)\(", re.I)
    texts = (path.read_text() for path in house.ROOT.joinpath("tests").rglob("*.py"))
    nodes = [
        node for text in texts if inside.search(text) for node in ast.walk(ast.parse(text))
    ]  # a fifth of the files
    private = [
        node
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in ("_asdict", "_exit", "_fields", "_make", "_replace")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
    shrunk = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("shrink", "make_chains", "leave_tails")
    ]
    counts = (len(private), len(shrunk))
    return dict(zip(INSIDES, counts, strict=True))


@pytest.mark.parametrize("what", INSIDES)
def test_tests_use_little_of_the_inside(what: str) -> None:
    found = insides()[what]
    print(f"{found} {what}, at most {INSIDES[what]}")
    assert 0 < found <= INSIDES[what]


@pytest.mark.parametrize("walk", WALKS)
def test_a_call_takes_a_short_way(walk: Callable[[Path], walks.Walk], tmp_path: Path) -> None:
    """The shortest of three: a reader that was away for long looks for a sync of the writer."""
    (tmp_path / "0").mkdir()
    found = walk(tmp_path / "0")
    for number in range(1, 3):
        (tmp_path / f"{number}").mkdir()
        found = min(found, walk(tmp_path / f"{number}"), key=lambda walk: walk.calls)
    print(f"{walk.__name__}: {found.calls} calls, {found.files} files")
    calls, files = WALKS[walk]
    assert 0 < found.calls <= calls
    assert found.files <= files


def test_the_picture_is_that_of_the_code() -> None:
    assert house.PICTURE.read_text() == house.picture(), "run: python -m scripts.house --draw"


def test_the_modules_of_the_page_exist() -> None:
    """Also in the table of the files on disk."""
    named = re.findall(r"`((?:winkfs|formats|mount)/[\w/]+\.py)`", PAGE)
    assert len(named) > 20
    assert [path for path in named if not (house.ROOT / path).exists()] == []


def test_each_file_of_a_container_is_in_the_table(tmp_path: Path) -> None:
    """The module says in its first lines which file it is about."""
    stored.make(tmp_path / "c", [("a", b"1"), ("b", b"2")], ao=True)
    winkfs.reindex(tmp_path / "c")
    made = {path.suffix for path in tmp_path.iterdir()}
    assert made == {".data", ".idx", ".time", ".cat", ".lock"}
    for suffix in made:
        row = re.search(rf"^\| `BASE\{suffix}` \|.*?`(winkfs/\S+\.py)`", PAGE, re.MULTILINE)
        assert row, f"{suffix} has no row"
        first = (house.ROOT / row[1]).read_text()[:400]
        assert f"BASE{suffix}" in first, f"{row[1]} does not say that it is about BASE{suffix}"
