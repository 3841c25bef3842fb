"""Columns of files, from the data file and from BASE.cols, against a scan of the container."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import golden_containers
import numpy as np
import oracle_recipes
import pytest

import winkfs
from winkfs.columns import BY_INODE, EMPTY, Columns
from winkfs.columnschunks import ColumnsFile
from winkfs.columnsfile import open_columns
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


# --- what a writer puts ---


def random_life(c: winkfs.Container, rng: random.Random, times: range) -> None:
    """Files of all kinds come, change and go."""
    names = [f"d{i % 5}/{'x' * (i % 40)}ä{i}" for i in range(60)]
    for now in times:
        name, kind = rng.choice(names), rng.randrange(9)
        content = rng.randbytes(rng.choice([0, 1, 100, 5000]))
        if kind < 4:
            some = [rng.choice(names) for _ in range(rng.randrange(1, 300))]
            c.put_many((name, rng.randbytes(rng.randrange(3) * 50), now) for name in some)
        elif kind == 4:
            c.put(name, content * 300, now)
        elif kind == 5:
            c.put_rows([winkfs.Row(name, content, now * 10**9, mode=rng.choice([0o600, 0o644]))])
        elif kind == 6 and name in c:
            c.delete(name)
        elif kind == 7 and not c.ao and name in c:
            c.append(name, content)
            c.rename(name, rng.choice(names))
        elif kind == 8:
            c.put(name, content or b"x", now)
            if c.ao:
                c.append(name, content)
            c.sync()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ao", [False, True])
def test_columns_of_what_was_put_are_those_of_the_data_file(
    seed: int, ao: bool, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    base = tmp_path / "c"
    with winkfs.create(base, ao=ao) as c:
        random_life(c, rng, range(5))
        c.follow_columns()
        random_life(c, rng, range(5, 30))
        c.save_columns()
        with opened(base) as found:
            assert rows(found.slice(0, len(found))) == listing(base)
        random_life(c, rng, range(30, 45))
        c.save_columns()
    with store_of(base) as store, opened(base) as found:
        wanted = Columns.of(store)
        whole = found.slice(0, len(found))
        for field, one, other in zip(
            Columns.__slots__, whole.arrays(), wanted.arrays(), strict=True
        ):
            assert np.array_equal(one, other), field
        assert rows(whole) == listing(base)


def test_renamed_in_place_before_the_sync_is_not_the_old_name(tmp_path: Path) -> None:
    base = tmp_path / "c"
    with winkfs.create(base, ao=True) as c:
        c.follow_columns()
        c.put_many((f"name{i}", b"x", i) for i in range(5))
        c.rename("name4", "other")
        c.put_many((f"name{i}", b"x", i) for i in range(5, 9))
        c.save_columns()
    with opened(base) as found:
        assert b"other" in found.slice(0, len(found)).names()
        assert rows(found.slice(0, len(found))) == listing(base)
