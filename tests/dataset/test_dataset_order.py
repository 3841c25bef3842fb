"""The order of the names of all shards, beside a sorted list."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import commands
import data_sets
import pytest
from commands import run as run  # a fixture
from constants import shrink
from flips import flip

import winkfs
from winkfs.container.container import Container
from winkfs.dataset.snapshot import snapshot
from winkfs.mounting.dataset import DatasetSource
from winkfs.mounting.datasetnames import MergedOrder
from winkfs.names import to_bytes

pytestmark = pytest.mark.in_memory

LETTERS = "ab/.0-\xff\u1234"
DEEP = "abcdefgh" * 12  # words that all names have in common


def names(chance: random.Random, count: int) -> list[str]:
    """Names of which many begin alike, end where another goes on, or are directories of others."""
    made = set()
    for _ in range(count):
        start = chance.choice(["", "", "a/", DEEP, DEEP[:7], DEEP[:8], DEEP[:9]])
        name = start + "".join(chance.choices(LETTERS, k=chance.randint(1, 12)))
        made.update(
            [name, *(name + more for more in ("/b", "-", ".a", "0") if chance.random() < 0.1)]
        )
    return chance.sample(sorted(made), len(made))


def order_of(view: DatasetSource) -> MergedOrder:
    order = view.tree.overlay.order
    assert isinstance(order, MergedOrder)
    return order


def check(view: DatasetSource, expected: list[bytes]) -> None:
    order, expected = order_of(view), sorted(expected)
    assert order.names(0, order.count) == expected
    assert [order.find(name) for name in expected] == list(range(len(expected)))
    assert all(order.find(name + b"\x01") == -1 for name in expected[:50])
    assert [order.lower_bound(name, max(i - 5, 0)) for i, name in enumerate(expected)] == list(
        range(len(expected))
    )
    clashes = sum(any(n.startswith(name + b"/") for n in expected) for name in expected)
    assert order.clashes == clashes


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("some", [1 << 14, 130])
@pytest.mark.parametrize("number", range(6))
def test_names_of_several_shards_are_sorted(
    tmp_path: Path, number: int, some: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, or some at a time."""
    shrink(monkeypatch, "an order", merged=some)
    chance = random.Random(number)
    chosen = names(chance, chance.choice([3, 40, 400]))
    shards = chance.randint(1, 5)
    data_sets.add(tmp_path / "set", *(dict.fromkeys(chosen[k::shards], b"") for k in range(shards)))
    view = DatasetSource(str(tmp_path / "set"))
    check(view, [name.encode() for name in chosen])
    view.close()


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("few", [0, 1 << 10])
@pytest.mark.parametrize("number", range(8))
def test_order_follows_the_generations(
    tmp_path: Path, number: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorted anew, or with what came and without what went."""
    shrink(monkeypatch, "an order", added=few, small=0)
    chance, root = random.Random(number), tmp_path / "set"
    expected = dict.fromkeys(names(chance, 60), b"0")
    if number % 2:  # none is a directory of others, for a while
        expected = {
            n: d for n, d in expected.items() if not any(m.startswith(n + "/") for m in expected)
        }
    data_sets.add(root, *(dict(list(expected.items())[k::2]) for k in range(2)))
    view = DatasetSource(str(root))
    for step in range(1, 7):
        if step == 4:  # all that there was in other shards
            removed = [shard.record.path for shard in snapshot(root).shards[:-1]]
            kept = {name: data for name, data in expected.items() if data != b"%d" % (step - 1)}
            fill = [lambda c, kept=kept: c.put_many(kept.items())]
            data_sets.commit(root, fill, operation="compact", removed=removed)
        elif step == 3:
            gone = chance.sample(sorted(expected), 9)
            data_sets.delete(root, *gone)
            for name in gone:
                del expected[name]
        else:
            again = chance.sample(sorted(expected), 5)
            come = dict.fromkeys([*again, *names(chance, 4)], b"%d" % step)
            data_sets.add(root, come)
            expected |= come
        assert view.refresh()
        check(view, [name.encode() for name in expected])
    for name, data in expected.items():
        found = view.find(name.encode())
        assert found is not None
        files, row = found
        assert files.read(row, 0, 9) == data
    view.close()


@pytest.mark.parametrize(
    ("come", "clashes"),
    [({"a": b""}, 1), ({"b/y": b""}, 1), ({"b/y/z": b"", "c": b""}, 2), ({"a.": b""}, 0)],
)
def test_clash_with_what_came_is_counted(
    tmp_path: Path, come: dict[str, bytes], clashes: int
) -> None:
    data_sets.add(tmp_path / "set", {"a/x": b"", "b": b"", "c/d/e": b"", "c-": b""})
    view = DatasetSource(str(tmp_path / "set"))
    assert order_of(view).clashes == 0
    data_sets.add(tmp_path / "set", come)
    assert view.refresh() and order_of(view).clashes == clashes
    view.close()


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("open_at_once", [100, 1])
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_rows_of_all_shards_are_one_list(
    shards: int,
    damaged: bool,
    open_at_once: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: commands.Run,
) -> None:
    """Names, what is known of them, and what `ls` prints, beside a dictionary; with a catalog that
    is damaged, and where the shards are too many to be open at once, too."""
    shrink(monkeypatch, "a data set", open=open_at_once)
    chance, root = random.Random(shards), str(tmp_path / "set")
    wanted: dict[str, tuple[int, int, int | None]] = {}  # size, mtime, mode
    for turn in range(2):
        fills = []
        for shard in range(shards):
            some = names(chance, 20) + chance.sample(sorted(wanted), min(len(wanted), 3))
            come = {n: (chance.randrange(9), 10 * turn + shard, chance.choice([None, 0o600]))
                    for n in dict.fromkeys(some)}  # fmt: skip

            def fill(container: Container, come: Any = come) -> None:
                for name, (size, mtime, mode) in come.items():
                    container.put(name, b"x" * size, mtime, mode=mode)

            fills.append(fill)
            wanted |= come
        data_sets.commit(root, fills)
        gone = chance.sample(sorted(wanted), 4)
        data_sets.delete(root, *gone)
        wanted = {name: known for name, known in wanted.items() if name not in gone}
    if damaged:
        path = Path(snapshot(root).shards[0].base + ".cat")
        flip(path, *range(8192, path.stat().st_size, 40))
    with winkfs.open(root) as opened:
        found = list(opened.names())
        assert sorted(found) == sorted(wanted)
        assert sorted(opened.names("a/*")) == sorted(n for n in wanted if n.startswith("a/"))
        late = sorted(n for n, known in wanted.items() if known[0] > 4)
        assert sorted(opened.names(where="size > 4")) == late
    if open_at_once > 1:
        assert found == sorted(wanted, key=to_bytes)
    done = run("ls", "--json", root)
    assert done.status == 0
    answer = [json.loads(line) for line in done.out.decode().splitlines()]
    assert {one["name"]: (one["size"], int(one["mtime"]), one["mode"]) for one in answer} == {
        name: (size, mtime, "0644" if mode is None else "0600")
        for name, (size, mtime, mode) in wanted.items()
    }
