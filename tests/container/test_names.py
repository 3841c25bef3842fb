"""The name order of a container: right, bounded, current, and never believed when it is wrong."""

import errno
import random
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from constants import shrink
from container_checks import VARIANTS, assert_sound, path_of
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupts import Interrupter
from names_checks import assert_order, check_order, clashes_of, store_of
from seam import Call, bytes_read, disk_calls, refusing

import winkfs
from winkformats.arrays import texts_at
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.posix import FileStorage
from winkformats.errors import CorruptError
from winkformats.perm import Perm
from winkfs import FileType
from winkfs.archive.pack import pack
from winkfs.container.nameorder import NameOrder, open_order
from winkfs.container.namesort import ClashFinder, NameSorter
from winkfs.container.ondisk.names import build, merge, save_order
from winkfs.container.recovery import tail
from winkfs.container.store import Store

NAMES = st.text("ab/.é", min_size=1, max_size=5).map(str.encode)
ODD = [
    b"a",
    b"a.b",
    b"a/b",
    b"a/b/c",
    b"a!x",
    b"a-b",
    b"ab",
    b"\xff\xfe",
    b"n" * 300,
    b"n" * 65_000,
]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "c"


def made(base: Path, names: list[bytes], **variant: bool | int) -> None:
    with winkfs.create(base, **variant) as container:  # type: ignore[arg-type]
        container.put_many((name, b"x" * (i % 7)) for i, name in enumerate(names))


def some_names(count: int) -> list[bytes]:
    names = [b"d%d/f%d" % (i % 37, i) for i in range(count)]
    random.Random(1).shuffle(names)
    return names + ODD


def rebuilt(base: Path) -> tuple[list[list[int]], int]:
    """What a build from nothing says: pairs, clashes."""
    with store_of(base) as store:
        order = build(store)
        return order.pairs(0, order.count).tolist(), order.clashes


# --- building and reading


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_order_has_all_names_in_byte_order(variant: str, base: Path) -> None:
    made(base, some_names(3000), **VARIANTS[variant])
    with store_of(base, writable=True) as store:
        order = build(store)
        assert_order(store, order, some_names(3000))
        assert path_of(base, ".names").exists() == ("classic" not in variant)
        order.close()
    if "classic" not in variant:
        check_order(base, set(some_names(3000)))


def test_runs_that_do_not_fit_into_memory_are_merged(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "bytes of names sorted in memory", 4000)
    shrink(monkeypatch, "inodes read together for names", 100)
    shrink(monkeypatch, "names read back at a time", 7)
    made(base, some_names(3000))
    with store_of(base) as store:
        assert_order(store, build(store), some_names(3000))


@pytest.mark.parametrize("dense", [0, 1 << 40])
def test_names_are_read_whole_or_one_by_one(
    dense: int, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "bytes a file below which all is read for names", dense)
    shrink(monkeypatch, "bytes read at once for names", 1000)
    made(base, some_names(500))
    with store_of(base) as store:
        assert_order(store, build(store), some_names(500))


def test_an_empty_container_has_an_empty_order(base: Path) -> None:
    made(base, [])
    with store_of(base, writable=True) as store:
        order = build(store)
        assert (order.count, order.names(0, 9), order.lower_bound(b"a")) == (0, [], 0)
    check_order(base, set())


def test_lower_bound_is_where_bisect_would_put_it(base: Path) -> None:
    made(base, some_names(200))
    names = sorted(some_names(200))
    with store_of(base) as store:
        order = build(store)
        for name in [*names, b"", b"d1", b"d1/", b"d5/f0", b"zz", b"\xff\xff"]:
            wanted = bisect_left(names, name)
            assert order.lower_bound(name) == wanted
            for low in {0, 1, wanted // 2, max(wanted - 3, 0), wanted}:
                assert order.lower_bound(name, low) == max(wanted, low), (name, low)
        assert order.lower_bound(b"a", 50) == 50


def test_an_order_outlives_the_file_that_replaces_its_own(base: Path) -> None:
    made(base, [b"a", b"b"])
    with store_of(base, writable=True) as store:
        old = build(store)
    with winkfs.open(base, "a") as container:
        container.put("c", b"1")
        container.engine.save_names()
    assert old.names(0, 9) == [b"a", b"b"]
    check_order(base, {b"a", b"b", b"c"})


def test_a_reader_writes_no_file(base: Path) -> None:
    made(base, [b"a"])
    with store_of(base) as store:
        build(store)
        with pytest.raises(ValueError, match="writer"):
            save_order(store)
    assert not path_of(base, ".names").exists()


# --- what is not believed, and what is damaged


def patched(base: Path, **variables: int) -> None:
    with Perm.open(FileStorage(path_of(base, ".names"), "w"), writable=True) as perm:
        forged = {name: perm.superblock.get(name, 0) + n for name, n in variables.items()}
        perm.sync(forged | {"PAGESUMS": 0})  # sums are not what these tests are about


@pytest.mark.parametrize(
    "change", ["CONTID", "DATAEND", "HTALGO", "HTSIZE", "PURPOSE", "cut", "garbage", "none"]
)
def test_an_order_that_cannot_be_believed_is_none(change: str, base: Path) -> None:
    made(base, [b"a"])
    with winkfs.open(base, "a") as container:
        container.engine.save_names()
    path = path_of(base, ".names")
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif change == "garbage":
        path.write_bytes(b"#!WINKME" + random.Random(1).randbytes(5000))
    elif change == "none":
        path.unlink()
    else:
        patched(base, **{change: 1})
    with store_of(base) as store:
        assert open_order(store) is None
    problems = winkfs.verify(base).problems
    assert len(problems) == (change == "cut") and all("c.names" in line for line in problems)
    with winkfs.open(base, "a") as container:
        container.engine.save_names()
    check_order(base, {b"a"})


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6), st.randoms())
def test_positions_that_point_anywhere_are_corrupt(
    tmp_path_factory: pytest.TempPathFactory, found: list[int], chance: random.Random
) -> None:
    base = tmp_path_factory.mktemp("any") / "c"
    made(base, [b"a", b"b"])
    with store_of(base) as store:
        end = store.kv.end
        found += [end, end - 1, end - 5, store.kv.start, store.kv.start - 1, chance.randrange(end)]
        for pos in found:
            order = NameOrder(store, np.array([pos], np.int64), end, 0)
            for read in (lambda o: o.names(0, 1), lambda o: o.lower_bound(b"a")):
                try:
                    read(order)
                except CorruptError as error:
                    assert "c.data" in str(error)
                else:
                    assert pos in store.index.positions()


def test_an_inode_that_cannot_be_read_is_left_out_and_noted(base: Path) -> None:
    made(base, [b"a", b"b", b"c"])
    with store_of(base) as store:
        pos = store.index.lookup(b"b/I0")
    with path_of(base, ".data").open("r+b") as file:
        file.seek(pos + 1)
        file.write(b"\xff\xff")  # length of the key
    with store_of(base) as store:
        order = build(store)
        assert order.names(0, 9) == [b"a", b"c"]
        assert any(str(pos) in note for note in store.notes)


# --- changes


def changed(container: winkfs.Container, model: dict[bytes, bytes], chance: random.Random) -> None:
    """A few changes of every kind."""
    for _ in range(chance.randrange(1, 12)):
        names = sorted(model)
        name = b"/".join(chance.choices([b"a", b"b", b"a.b", b"c" * 40], k=chance.randrange(1, 4)))
        deed = chance.choice(["put", "put_many", "delete", "rename", "append", "utime"])
        if deed in ("put", "put_many") or not names:
            container.put_many([(name, b"1")]) if deed == "put_many" else container.put(name, b"1")
            model[name] = b"1"
            continue
        old = chance.choice(names)
        if deed == "delete":
            container.delete(old)
            del model[old]
        elif deed == "rename":
            container.rename(old, name)
            model[name] = model.pop(old)
        elif deed == "append":
            container.append(old, b"2")
            model[old] += b"2"
        else:
            container.utime(old, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_an_old_order_and_the_tail_make_the_order_of_today(
    seed: int, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "pairs merged at a time", 3)
    shrink(monkeypatch, "names to a rare change", 1 if seed % 2 else 10**9)
    chance, model = random.Random(seed), dict[bytes, bytes]()
    with winkfs.create(base) as container:
        container.put("a/a", b"")
        model[b"a/a"] = b""
    winkfs.reindex(base)
    for _ in range(4):
        with winkfs.open(base, "a") as container:
            changed(container, model, chance)
        with store_of(base, writable=True) as store:
            order = open_order(store)
            assert order is not None
            changes = dict(tail(store, order.covered))
            positions = {name: store.index.lookup(name + b"/I0") for name in changes}
            assert changes == positions
            in_memory = merge(store, order, changes, save=False)
            assert_order(store, in_memory, model)
            with disk_calls() as calls:
                save_order(store)
            assert pairs_read(calls, order) >= 16 * order.count
        check_order(base, set(model))
        found = open_pairs(base)
        assert found == rebuilt(base)
    assert_sound(base, model)


def pairs_read(calls: list[Call], order: NameOrder) -> int:
    """Bytes read of the pairs of BASE.names: an order that is built anew reads none."""
    end = 4096 + 16 * order.count
    reads = [c for c in calls if c.verb == "read" and c.path.endswith(".names")]
    return sum(c.length for c in reads if 4096 <= c.offset < end)


@pytest.mark.parametrize("count", [3, 50])
def test_few_changes_are_merged_and_many_are_not(
    count: int, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "changed names that are merged", 30)
    old, new = some_names(2000)[: -len(ODD)], [b"new%d" % i for i in range(count)]
    made(base, old)
    winkfs.reindex(base)
    size = path_of(base, ".data").stat().st_size
    with winkfs.open(base, "a") as container:
        container.put_many((name, b"") for name in new)
        container.sync()
        with disk_calls() as calls:
            container.engine.save_names()
    with store_of(base) as store:
        order = open_order(store)
        assert order is not None
        merged = pairs_read(calls, order) >= 16 * len(old)
    assert merged == (count == 3)
    assert (bytes_read(calls, ".data", 8192) < size // 4) == merged
    check_order(base, {*old, *new})


def test_an_empty_order_and_the_tail_make_one_with_clashes(base: Path) -> None:
    winkfs.create(base).close()
    winkfs.reindex(base)
    with winkfs.open(base, "a") as container:
        for name in (b"a/b", b"gone", b"c", b"a", b"gone/f"):
            container.put(name, b"x")
        container.delete(b"gone")
    model = dict.fromkeys((b"a", b"a/b", b"c", b"gone/f"), b"x")
    with store_of(base, writable=True) as store:
        order = open_order(store)
        assert order is not None
        assert order.count == 0
        changes = dict(tail(store, order.covered))
        assert_order(store, merge(store, order, changes, save=False), model)
        merge(store, order, changes).close()
    assert open_pairs(base) == rebuilt(base)
    assert open_pairs(base)[1] == 1


def open_pairs(base: Path) -> tuple[list[list[int]], int]:
    with store_of(base) as store:
        order = open_order(store)
        assert order is not None
        return order.pairs(0, order.count).tolist(), order.clashes


def test_directories_with_an_entry_are_no_clashes(base: Path) -> None:
    with winkfs.create(base) as container:
        container.mkdir("d")
        container.put("d/f", b"")
        container.put("f", b"")
    winkfs.reindex(base)
    assert open_pairs(base)[1] == 0
    with winkfs.open(base, "a") as container:
        container.put("d", b"now a file")
        container.put("f/g", b"")
        container.engine.save_names()
    assert open_pairs(base)[1] == 2
    assert winkfs.verify(base).problems == []
    with winkfs.open(base, "a") as container:
        for name in ("d", "f"):
            container.put(name, b"", ftype=FileType.DIR)
        container.engine.save_names()
    assert open_pairs(base)[1] == 0
    assert winkfs.verify(base).problems == []


def test_clashes_that_were_not_known_are_counted_by_a_merge(base: Path) -> None:
    made(base, [b"a", b"a/b", b"c"])
    winkfs.reindex(base)
    patched(base, CLASHES=-2)  # 1 - 2: what a foreign file without it says
    with winkfs.open(base, "a") as container:
        container.put("c/d", b"")
        container.engine.save_names()
    check_order(base, {b"a", b"a/b", b"c", b"c/d"})


def test_a_current_order_is_not_written_again(base: Path) -> None:
    made(base, [b"a"])
    winkfs.reindex(base)
    before = path_of(base, ".names").stat().st_ino
    with winkfs.open(base, "a") as container:
        container.engine.save_names()
    assert path_of(base, ".names").stat().st_ino == before


def test_a_new_index_leaves_the_order_where_it_is(base: Path) -> None:
    made(base, [b"a"])
    winkfs.reindex(base)
    with winkfs.open(base, "a") as container:
        container.put("b", b"1")
    with store_of(base) as store:
        order = open_order(store)
        assert order is not None
        assert dict(tail(store, order.covered)) == {b"b": store.index.lookup(b"b/I0")}
    assert winkfs.verify(base).problems == []


def test_an_order_of_a_container_that_was_longer_is_gone_before_it_grows(base: Path) -> None:
    made(base, [b"a"])
    winkfs.reindex(base)
    patched(base, DATAEND=1000)
    with winkfs.open(base, "a") as container:
        container.put("b", b"1" * 5000)
    assert not path_of(base, ".names").exists()


def test_half_a_rename_is_no_tail_to_go_by(tmp_path: Path) -> None:
    """An interrupt, also between the new inode and the tombstone of the old name."""
    half, done, at = False, False, 0
    while not done:
        at += 60
        base = tmp_path / f"{at}"
        made(base, [b"a", b"z"])
        winkfs.reindex(base)
        with winkfs.open(base, "a") as container:
            with Interrupter(at) as interrupter, suppress(KeyboardInterrupt):
                container.rename("a", "b")
            done = not interrupter.fired
            names = {name.encode() for name in container.names()}
            container.engine.save_names()
        check_order(base, names)
        assert winkfs.verify(base).problems == []
        with store_of(base) as store:
            olds = [e for e in store.kv.iterate() if e.key == b"a/I0"]
        half = half or (b"b" in names and len(olds) == 1)
    assert half


def test_a_rename_without_a_tombstone_is_no_tail_to_go_by(base: Path) -> None:
    made(base, [b"a", b"z"])
    winkfs.reindex(base)
    with store_of(base, writable=True) as store:
        value = store.entry_at(store.index.lookup(b"a/I0")).value
        store.kv.append(b"b/I0", value)
        store.sync_data()
    for writable in (False, True):
        with store_of(base, writable=writable) as store:
            assert open_order(store) is None
            assert_order(store, build(store), [b"b", b"z"])
    check_order(base, {b"b", b"z"})


@pytest.mark.parametrize("fault", ["order", "missing", "twice", "hash", "clashes", "alien"])
@pytest.mark.parametrize("older", [False, True])
def test_verify_reports_a_wrong_order(fault: str, older: bool, base: Path) -> None:
    made(base, [b"a", b"a/b", b"c", b"d"])
    with winkfs.open(base, "a") as container:
        container.delete("d")
    winkfs.reindex(base)
    if older:
        with winkfs.open(base, "a") as container:
            container.put_many([("c", b"2"), ("e", b"3")])
            container.delete("a")
    assert winkfs.verify(base).problems == []
    path = path_of(base, ".names")
    with Perm.open(FileStorage(path)) as perm:
        data = path.read_bytes()[: perm.superblock["FILESIZE"]]
    pairs = [data[i : i + 16] for i in range(4096, len(data), 16)]
    with store_of(base) as store:
        dead = next(pos for pos in dead_inodes(store) if pos not in (0,))
    if fault == "order":
        pairs[0], pairs[1] = pairs[1], pairs[0]
    elif fault == "missing":
        del pairs[1]
    elif fault == "twice":
        pairs.insert(1, pairs[1])
    elif fault == "hash":
        pairs[1] = pairs[1][:8] + bytes(8)
    elif fault == "alien":
        pairs[1] = dead.to_bytes(8, "big") + pairs[1][8:]
    path.write_bytes(data[:4096] + b"".join(pairs))
    patch_size(base, len(pairs))
    patched(base, CLASHES=fault == "clashes")
    (problem,) = winkfs.verify(base).problems
    assert "c.names" in problem
    assert "reindex" in problem
    winkfs.reindex(base)
    assert winkfs.verify(base).problems == []


def dead_inodes(store: Store) -> list[int]:
    live = set(store.index.positions().tolist())
    entries = [e for e in store.kv.iterate() if e.key.endswith(b"/I0") and e.value]
    return [e.pos for e in entries if e.pos not in live]


def patch_size(base: Path, count: int) -> None:
    from winkformats.kv.superblock import read_superblock

    with FileStorage(path_of(base, ".names"), "w") as storage:
        block = read_superblock(storage)
        block["PERMSIZE"], block["FILESIZE"] = count, 4096 + 16 * count
        block["PAGESUMS"] = 0
        storage.write(0, [block.encode()])


# --- who writes it


def tree_of(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.mark.parametrize("ao", [False, True])
def test_pack_writes_the_order_without_reading_names_again(
    ao: bool, tmp_path: Path, base: Path
) -> None:
    tree = tree_of(tmp_path / "tree", [f"d{i % 7}/f{i}.txt" for i in range(300)])
    with disk_calls() as calls:
        pack(tree, base, ao=ao)
    assert bytes_read(calls, ".data", 8192) < path_of(base, ".data").stat().st_size // 4
    names = {b"d%d/f%d.txt" % (i % 7, i) for i in range(300)} | {b"d%d" % i for i in range(7)}
    check_order(base, names)
    if ao:
        return
    (tree / "d0/f0.txt").write_bytes(b"changed")
    tree_of(tree, ["d9/new", "a"])
    pack(tree, base, update=True)
    check_order(base, names | {b"d9", b"d9/new", b"a"})


def test_pack_over_an_older_order_brings_it_up_to_date(tmp_path: Path, base: Path) -> None:
    pack(tree_of(tmp_path / "tree", ["a", "b"]), base)
    with winkfs.open(base, "a") as container:
        container.rename("a", "c")
    pack(tree_of(tmp_path / "more", ["d", "b"]), base, update=True)
    check_order(base, {b"b", b"c", b"d"})


def test_a_full_disk_leaves_the_old_order(base: Path) -> None:
    made(base, [b"a"])
    winkfs.reindex(base)
    before = path_of(base, ".names").read_bytes()
    with winkfs.open(base, "a") as container:
        container.put("b", b"1")
        container.sync()
        with disk_calls(refusing("write", ".names.tmp", errno.ENOSPC)) as calls:
            container.engine.save_names()
        assert any(call.path.endswith(".names.tmp") for call in calls)
        assert list(container.names()) == ["a", "b"]
    assert path_of(base, ".names").read_bytes() == before
    assert not path_of(base, ".names.tmp").exists()


# --- the parts


class Full(MemoryStorage):
    def write(self, offset: int, buffers: object) -> int:
        raise OSError(errno.ENOSPC, "full")


def test_a_scratch_file_that_cannot_be_written_does_not_stop_the_puts() -> None:
    sorter = NameSorter(Full, 100)
    for i in range(10):
        sorter.add([b"%d" % i], np.array([1]), np.array([[i, 0]]))
    with pytest.raises(OSError, match="full"):
        list(sorter.pairs())


@given(st.lists(NAMES), st.integers(1, 600), st.sets(st.integers(0, 40)))
def test_sorted_names_are_those_of_sorted(names: list[bytes], chunk: int, live: set[int]) -> None:
    sorter = NameSorter(MemoryStorage, chunk)
    for at in range(0, len(names), 3):
        part = names[at : at + 3]
        pairs = np.array([[at + k, 7] for k in range(len(part))], np.int64)
        sorter.add(part, np.array(list(map(len, part)), np.int64), pairs)
    found = [pair for block in sorter.pairs() for pair in block.tolist()]
    assert [names[pos] for pos, _ in found] == sorted(names)
    assert sorted(pos for pos, _ in found) == list(range(len(names)))
    chosen = np.array(sorted(live), np.int64)
    kept = [name for block in sorter.blocks(chosen) for name in block.names]
    assert kept == sorted(names[pos] for pos in live if pos < len(names))


@given(st.sets(NAMES), st.lists(st.integers(1, 5)))
def test_clashes_are_counted_across_pieces(names: set[bytes], cuts: list[int]) -> None:
    finder, ordered = ClashFinder(), sorted(names)
    for cut in [*cuts, len(ordered)]:
        finder.add(ordered[:cut])
        ordered = ordered[cut:]
    assert len(finder.found) == clashes_of(names)


@given(st.binary(max_size=700), st.lists(st.tuples(st.integers(0, 700), st.integers(0, 300))))
def test_texts_are_what_slices_give(data: bytes, spans: list[tuple[int, int]]) -> None:
    whole = data.replace(b"\0", b"1")
    spans = [(min(a, len(whole)), n) for a, n in spans]
    spans = [(a, min(n, len(whole) - a)) for a, n in spans]
    at, lengths = np.array(spans, np.int64).reshape(-1, 2).T
    raw = np.frombuffer(whole, np.uint8)
    assert texts_at(raw, at, lengths) == [whole[a : a + n] for a, n in spans]
