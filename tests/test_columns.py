"""Columns of files, from the data file and from BASE.cols, against a scan of the container."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import golden_containers
import oracle_recipes
import pytest

import winkfs
from winkfs.columns import BY_INODE, EMPTY, Columns
from winkfs.columnsfile import ColumnsFile, open_columns
from winkfs.entry import to_bytes
from winkfs.store import Store

RECIPES = {f"golden {name}": make for name, make in golden_containers.RECIPES.items()}
RECIPES |= {f"oracle {name}": make for name, make in oracle_recipes.RECIPES.items()}


@contextmanager
def store_of(base: Path, *, writable: bool = False) -> Iterator[Store]:
    store = Store(str(base), writable=writable)
    try:
        yield store
    finally:
        store.abandon()


def listing(base: Path) -> list[tuple[bytes, int, int, int]]:
    """What a plain loop finds: name, size, mtime, ftype in disk order."""
    with winkfs.open(base) as c:
        return [(to_bytes(e.name), e.size, e.mtime_ns, e.ftype) for e in c.scan()]


def rows(columns: Columns) -> list[tuple[bytes, int, int, int]]:
    names = [columns.name(i) for i in range(len(columns))]
    assert columns.names() == names
    values = (columns.size.tolist(), columns.mtime.tolist(), columns.ftype.tolist())
    return list(zip(names, *values, strict=True))


@pytest.mark.parametrize("recipe", RECIPES)
def test_columns_of_every_kind_of_container(recipe: str, tmp_path: Path) -> None:
    base = tmp_path / "c"
    RECIPES[recipe](base)
    wanted = listing(base)
    with store_of(base) as store, winkfs.open(base) as c:
        columns = Columns.of(store)
        assert rows(columns) == wanted
        assert columns.pos.tolist() == store.index.positions().tolist()
        for i, entry in enumerate(c.scan()):
            pos, pointer, content = int(columns.pos[i]), int(columns.pointer[i]), entry.read()
            assert columns.special[i] == (store.inode_at(pos)[1].attrs is not None)
            if pointer == EMPTY:
                assert content == b""
            elif pointer != BY_INODE:
                assert store.entry_at(pointer).value == content


def opened(base: Path) -> ColumnsFile:
    found = open_columns(str(base))
    assert found is not None
    return found


def test_reindex_writes_columns_that_any_slice_can_be_had_of(tmp_path: Path) -> None:
    base = tmp_path / "c"
    golden_containers.RECIPES["plain"](base)
    assert open_columns(str(base)) is None
    winkfs.reindex(base, cols=True)
    with store_of(base) as store, opened(base) as found:
        whole = Columns.of(store)
        assert rows(found.slice(0, len(found))) == rows(whole) == listing(base)
        assert (found.files, found.content) == (len(whole), int(whole.size.sum()))
        for a in range(len(whole) + 1):
            for b in range(a, len(whole) + 1):
                assert rows(found.slice(a, b)) == rows(whole)[a:b]
