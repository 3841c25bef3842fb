"""Columns of files from the data file, and of what a writer puts, against a scan."""

from __future__ import annotations

import random
from pathlib import Path

import golden_containers
import numpy as np
import oracle_recipes
import pytest
from catalog_checks import check_catalog, store_of

import winkfs
from winkformats.errors import CorruptError
from winkfs import FileType
from winkfs.container.ondisk.inode import Extent, Inode
from winkfs.container.survey import files_at
from winkfs.container.table import BY_INODE, EMPTY, FileTable
from winkfs.names import to_bytes

pytestmark = pytest.mark.in_memory

RECIPES = {f"golden {name}": make for name, make in golden_containers.RECIPES.items()}
RECIPES |= {f"oracle {name}": make for name, make in oracle_recipes.RECIPES.items()}


def listing(base: Path) -> list[tuple[bytes, int, int, int]]:
    """What a plain loop finds: name, size, mtime, ftype in disk order."""
    with winkfs.open(base) as c:
        return [(to_bytes(e.name), e.size, e.mtime_ns, e.ftype) for e in c.scan()]


def rows(columns: FileTable) -> list[tuple[bytes, int, int, int]]:
    names = [columns.name(i) for i in range(len(columns))]
    assert columns.names == names
    values = (columns.size.tolist(), columns.mtime.tolist(), columns.ftype.tolist())
    return list(zip(names, *values, strict=True))


@pytest.mark.few(15)
@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_columns_of_every_kind_of_container(recipe: str, base: Path) -> None:
    RECIPES[recipe](base)
    wanted = listing(base)
    with store_of(base) as store, winkfs.open(base) as c:
        columns = files_at(store)
        assert rows(columns) == wanted
        assert columns.pos.tolist() == store.index.positions().tolist()
        for i, entry in enumerate(c.scan()):
            pos, pointer, content = int(columns.pos[i]), int(columns.pointer[i]), entry.read()
            assert columns.special[i] == (store.inode_at(pos)[1].attrs is not None)
            if pointer == EMPTY:
                assert content == b""
            elif pointer != BY_INODE:
                assert store.entry_at(pointer).value == content


# --- what a writer puts ---


def random_life(c: winkfs.Container, rng: random.Random, times: range) -> None:
    """Files of all kinds come, change and go."""
    names = [f"d{i % 5}/{'x' * (i % 40)}ä{i}" for i in range(60)]
    for now in times:
        name, kind = rng.choice(names), rng.randrange(9)
        content = rng.randbytes(rng.choice([0, 1, 100, 5000]))
        if kind < 4:
            some = [rng.choice(names) for _ in range(rng.randrange(1, 80))]
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


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ao", [False, True])
def test_catalog_of_what_was_put_is_that_of_the_data_file(seed: int, ao: bool, base: Path) -> None:
    rng = random.Random(seed)
    with winkfs.create(base, ao=ao) as c:
        random_life(c, rng, range(5))
        c.follow_files()
        random_life(c, rng, range(5, 30))
        c.save_catalog()
        check_catalog(base, {name for name, *_ in listing(base)})
        random_life(c, rng, range(30, 45))
        c.save_catalog()
    check_catalog(base, {name for name, *_ in listing(base)})


def test_renamed_in_place_before_the_sync_is_not_the_old_name(base: Path) -> None:
    with winkfs.create(base, ao=True) as c:
        c.follow_files()
        c.put_many((f"name{i}", b"x", i) for i in range(5))
        c.rename("name4", "other")
        c.put_many((f"name{i}", b"x", i) for i in range(5, 9))
        c.save_catalog()
    names = {name for name, *_ in listing(base)}
    assert b"other" in names
    check_catalog(base, names)


# --- damage of the data file ---


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["plain", "no-kvcksum", "align-64", "md5-inodes"])
def test_each_flipped_byte_of_an_inode_is_reported(recipe: str, base: Path) -> None:
    golden_containers.RECIPES[recipe](base)
    path = Path(f"{base}.data")
    good = path.read_bytes()
    with store_of(base) as store:
        positions, layout = store.index.positions(), store.kv.layout
        wanted = files_at(store)
    pos = int(wanted.pos[np.argmax(wanted.pointer > 0)])
    span = layout.locate(good, pos)
    assert span
    others = [row for row, at in zip(rows(wanted), wanted.pos.tolist(), strict=True) if at != pos]
    # Without a checksum of the entry only what CKSUM covers is known to be as it was.
    covered = range(pos + 1, span.end) if layout.checksum else range(span.value, span.value + 70)
    for at in covered:
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        with store_of(base) as store:
            damage: list[CorruptError] = []
            assert rows(files_at(store, positions, damage.append)) == others, at - pos
            assert [error.offset for error in damage] == [pos]
            with pytest.raises(CorruptError, match=f"at byte {pos}"):
                files_at(store, positions)


def test_part_of_a_value_is_read_by_way_of_the_inode(base: Path) -> None:
    with winkfs.create(base) as c:
        c.put_many((f"{i}", b"0123456789") for i in range(4))
        c.sync()
        c.truncate("1", 5)
        c.sync()
        store = c.store
        skipped = Inode(9, 6, FileType.FILE, 0, [Extent(8192, 4, 6)])
        first = Inode(10, 10, FileType.FILE, 0, [Extent(8192, 0, 10)])
        for name, inode in ((b"skipped", skipped), (b"first", first)):
            value = inode.encode(store.settings.form, 128)
            store.index.assign(name + b"/I0", store.kv.append(name + b"/I0", value))
        c.put("last", b"0123456789")  # what ends with the file is decoded in another way
    with store_of(base) as store:
        found = files_at(store)
        kinds = {found.name(i): int(found.pointer[i]) for i in range(len(found))}
    assert kinds[b"1"] == kinds[b"skipped"] == BY_INODE
    assert kinds[b"first"] == kinds[b"0"] == 8192  # each had its own entry in a sound container


def test_positions_that_are_none_are_corrupt(base: Path) -> None:
    golden_containers.RECIPES["plain"](base)
    with store_of(base) as store:
        good = store.index.positions()
        for wrong in (-5, 0, 4095, int(good[0]) + 1, store.kv.end - 1, store.kv.end, 1 << 62):
            damage: list[CorruptError] = []
            positions = np.sort(np.append(good, wrong))
            assert files_at(store, positions, damage.append).pos.tolist() == good.tolist()
            assert len(damage) == 1
