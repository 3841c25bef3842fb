"""The catalog of a container: right, bounded, current, and never believed when it is wrong."""

import errno
import itertools
import random
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from catalog_checks import (
    above,
    assert_catalog,
    check_catalog,
    clashes_of,
    far_times,
    rows_of_catalog,
    save_catalog,
    store_of,
    write_catalog,
)
from constants import shrink
from container_checks import VARIANTS, assert_sound, delete, image_of, names_of, patch, path_of
from folders import unchanged, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupts import Interrupter
from seam import Call, bytes_read, disk_calls, refusing
from stored import make

import winkfs
from winkformats.arrays import text_column, texts_at
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.posix import FileStorage
from winkformats.kv.superblock import read_superblock
from winkfs import FileType
from winkfs.archive.pack import pack
from winkfs.container.catalog import POLICY, at_any, build, merge, open_catalog
from winkfs.container.namesorter import ClashFinder, NameSorter
from winkfs.container.ondisk.block import SLACK, Blocks, encode_blocks
from winkfs.container.ondisk.catalog import Catalog, CatalogWriter
from winkfs.container.ondisk.run import PART
from winkfs.container.recovery import tail
from winkfs.container.table import (
    ASK,
    COLUMNS,
    CTIME,
    GONE,
    KIND,
    MTIME,
    POINTER,
    POS,
    SIZE,
    FileTable,
    joined,
    live,
)
from winkfs.errors import DerivedDamage
from winkfs.units import to_ns

pytestmark = pytest.mark.in_memory

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


def made(base: Path, names: list[bytes], **variant: bool | int) -> None:
    make(base, ((name, b"x" * (i % 7)) for i, name in enumerate(names)), **variant)


@pytest.fixture
def listed(base: Path) -> None:
    """A container with the file "a", and its catalog."""
    made(base, [b"a"])
    winkfs.reindex(base)


def some_names(count: int) -> list[bytes]:
    names = [b"d%d/f%d" % (i % 37, i) for i in range(count)]
    random.Random(1).shuffle(names)
    return names + ODD


# --- building and reading


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_catalog_has_all_names_in_byte_order(variant: str, base: Path) -> None:
    made(base, some_names(1500), **VARIANTS[variant])
    with store_of(base, writable=True) as store:
        with build(store) as catalog:
            assert_catalog(store, catalog, some_names(1500))
        assert path_of(base, ".cat").exists() == ("classic" not in variant)
    if "classic" not in variant:
        check_catalog(base, set(some_names(1500)))


@pytest.mark.slow
def test_runs_that_do_not_fit_into_memory_are_merged(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "the catalog", chunk=4000, piece=100, read_back=7)
    made(base, some_names(3000))
    with store_of(base) as store:
        assert_catalog(store, build(store), some_names(3000))


def test_an_empty_container_has_an_empty_catalog(base: Path) -> None:
    made(base, [])
    with store_of(base, writable=True) as store:
        order = build(store)
        assert (order.count, order.names(0, 9), order.lower_bound(b"a")) == (0, [], 0)
    check_catalog(base, set())


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


def test_a_catalog_outlives_the_file_that_replaces_its_own(base: Path) -> None:
    made(base, [b"a", b"b"])
    with store_of(base, writable=True) as store:
        old = build(store)
    with winkfs.open(base, "a") as container:
        container.put("c", b"1")
        container.save_catalog()
    winkfs.reindex(base)
    assert old.names(0, 9) == [b"a", b"b"]
    check_catalog(base, {b"a", b"b", b"c"})


def test_a_reader_writes_no_file(base: Path) -> None:
    made(base, [b"a"])
    path_of(base, ".cat").unlink()
    with store_of(base) as store:
        build(store).close()
        with pytest.raises(ValueError, match="writer"):
            store.catalog.save()
    assert not path_of(base, ".cat").exists()


# --- what is not believed, and what is damaged


def patched(base: Path, **variables: int) -> None:
    with FileStorage(path_of(base, ".cat"), "w") as storage:
        block = read_superblock(storage)
        block.update({name: block.get(name, 0) + n for name, n in variables.items()})
        storage.write(0, block.images())


@pytest.mark.parametrize("change", ["CONTID", "DATAEND", "PURPOSE", "cut", "garbage", "none"])
def test_a_catalog_that_cannot_be_believed_is_none(change: str, base: Path) -> None:
    made(base, [b"a"])
    save_catalog(base)
    path = path_of(base, ".cat")
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif change == "garbage":
        path.write_bytes(b"#!WINKME" + random.Random(1).randbytes(9000))
    elif change == "none":
        path.unlink()
    else:
        patched(base, **{change: 1})
    with store_of(base) as store:
        assert open_catalog(store) is None
    problems = winkfs.verify(base).problems
    assert len(problems) == (change == "cut") and all("c.cat" in line for line in problems)
    save_catalog(base)
    check_catalog(base, {b"a"})


def test_an_inode_that_cannot_be_read_is_left_out_and_noted(base: Path) -> None:
    made(base, [b"a", b"b", b"c"])
    with store_of(base) as store:
        pos = store.index.lookup(b"b/I0")
    patch(path_of(base, ".data"), pos + 1, b"\xff\xff")  # length of the key
    with store_of(base) as store:
        with build(store) as catalog:
            assert catalog.names(0, 9) == [b"a", b"c"]
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


@pytest.mark.few(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_runs_and_the_tail_make_the_catalog_of_today(
    seed: int, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "the catalog", block=3, behind=6 if seed % 3 else 10**6)
    chance, model = random.Random(seed), dict[bytes, bytes]()
    with winkfs.create(base) as container:
        container.put("a/a", b"")
        model[b"a/a"] = b""
    winkfs.reindex(base)
    runs = set()
    for _ in range(6):
        with winkfs.open(base, "a") as container:
            if seed % 2:
                container.follow_files()
            changed(container, model, chance)
            if seed % 2:
                container.save_catalog()
        with store_of(base, writable=True) as store, open_catalog(store) as catalog:
            changes = dict(tail(store, catalog.covered))
            assert changes == {name: store.index.lookup(name + b"/I0") for name in changes}
            assert_catalog(store, catalog, model)
            store.catalog.save()
        check_catalog(base, set(model))
        with Catalog(FileStorage(path_of(base, ".cat"))) as file:
            runs.add(len(file.runs))
            sizes = [run.count for run in file.runs[1:]]
            few = POLICY.few - 1  # that a close leaves as they are
            assert all(a > 2 * b for a, b in itertools.pairwise(sizes[few:]))
            assert len(sizes) < POLICY.runs
    assert max(runs) > 1
    assert_sound(base, model)
    with (
        store_of(base, writable=True) as store,
        open_catalog(store) as catalog,
        merge(store, catalog.runs, {}) as whole,
    ):
        assert len(whole.runs) == 1
        assert_catalog(store, whole, model)


def reads_of(calls: list[Call], suffix: str) -> int:
    """Bytes read behind the superblocks."""
    reads = [c for c in calls if c.verb == "read" and c.path.endswith(suffix)]
    return sum(c.length for c in reads if c.offset >= 8192)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 100])
@pytest.mark.parametrize("followed", [False, True])
def test_few_changes_are_added_and_many_are_not(
    count: int, followed: bool, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "the catalog", changes=30, behind=30)
    old, new = some_names(2000)[: -len(ODD)], [b"new%d" % i for i in range(count)]
    made(base, old)
    winkfs.reindex(base)
    size, before = path_of(base, ".data").stat().st_size, path_of(base, ".cat").stat()
    with winkfs.open(base, "a") as container:
        if followed:
            container.follow_files()
        container.put_many((name, b"") for name in new)
        container.sync()
        with disk_calls() as calls:
            container.save_catalog()
    after = path_of(base, ".cat").stat()
    assert (after.st_ino == before.st_ino) == (count == 3)
    if count == 3:
        assert reads_of(calls, ".cat") < before.st_size // 4
        assert after.st_size < before.st_size + 3000
    if count == 3 or followed:
        assert bytes_read(calls, ".data", 8192) < size // 4
    check_catalog(base, {*old, *new})


def test_an_empty_catalog_and_the_tail_make_one_with_clashes(base: Path) -> None:
    winkfs.create(base).close()
    winkfs.reindex(base)
    with winkfs.open(base, "a") as container:
        for name in (b"a/b", b"gone", b"c", b"a", b"gone/f"):
            container.put(name, b"x")
        container.delete(b"gone")
    model = dict.fromkeys((b"a", b"a/b", b"c", b"gone/f"), b"x")
    with store_of(base, writable=True) as store, open_catalog(store) as catalog:
        assert catalog.count == 0
        merge(store, catalog.runs, dict(tail(store, catalog.covered))).close()
    check_catalog(base, set(model))
    assert clashes_in(base) == 1


def clashes_in(base: Path) -> int:
    with store_of(base) as store, open_catalog(store) as catalog:
        return catalog.clashes


def test_directories_with_an_entry_are_no_clashes(base: Path) -> None:
    winkfs.create(base).close()
    for made_now, clashes in (
        ({"d": FileType.DIR, "d/f": FileType.FILE, "f": FileType.FILE}, 0),
        ({"d": FileType.FILE, "f/g": FileType.FILE}, 2),
        ({"d": FileType.DIR, "f": FileType.DIR}, 0),
    ):
        with winkfs.open(base, "a") as container:
            for name, ftype in made_now.items():
                container.put(name, b"", ftype=ftype)
        winkfs.reindex(base)
        assert clashes_in(base) == clashes
        assert winkfs.verify(base).problems == []


@pytest.mark.usefixtures("listed")
def test_a_current_catalog_is_not_written_again(base: Path) -> None:
    with unchanged(path_of(base, ".cat")):
        save_catalog(base)


@pytest.mark.usefixtures("listed")
def test_a_new_index_leaves_the_catalog_where_it_is(base: Path) -> None:
    with winkfs.open(base, "a") as container:
        container.put("b", b"1")
        container.sync()
        container.store.merge()
        container.abort()
    with store_of(base) as store, open_catalog(store) as catalog:
        assert dict(tail(store, catalog.covered)) == {b"b": store.index.lookup(b"b/I0")}
    assert winkfs.verify(base).problems == []


def test_a_reader_lists_its_own_moment_after_a_rewrite(base: Path) -> None:
    """What is marked deleted in its tail is so for entries that it does not see."""
    made(base, [b"a"])
    with winkfs.open(base, "a") as writer:
        writer.put("b", b"1")
        writer.sync()
        with winkfs.open(base) as reader:
            reader.freeze()
            writer.put("b", b"2")
            writer.delete("a")
            writer.sync()
            assert list(reader.names()) == ["a", "b"]


@pytest.mark.usefixtures("listed")
def test_the_catalog_of_a_longer_container_is_removed_on_open(base: Path) -> None:
    patched(base, DATAEND=1000)
    with winkfs.open(base, "a") as container:
        assert not path_of(base, ".cat").exists()
        container.put("b", b"1" * 5000)
    check_catalog(base, {b"a", b"b"})


@pytest.mark.slow
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
            container.save_catalog()
        check_catalog(base, names)
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
            assert open_catalog(store) is None
            with build(store) as catalog:
                assert_catalog(store, catalog, [b"b", b"z"])
    check_catalog(base, {b"b", b"z"})


LIVES = {  # before a kill, and then: the index has nothing of this
    "only the catalog knew": ("put a, sync, save, delete a, sync", "put b", ["b", "z"]),
    "again before": ("put a, sync, delete a, sync, put a, sync, save", "delete a", ["z"]),
    "again before, and renamed": (
        "put a, sync, delete a, sync, put a, sync, save", "rename a b", ["b", "z"],
    ),
    "put again": ("put a, sync, delete a, sync", "put a, sync, save, delete a", ["z"]),
    "put again, and renamed": (
        "put a, sync, delete a, sync", "put a, sync, save, rename a b", ["b", "z"],
    ),
    "put in bulk": ("put a, sync, delete a, sync", "many a, sync, save, delete a", ["z"]),
    "put in bulk, and renamed": (
        "put a, sync, delete a, sync", "many a, sync, save, rename a b", ["b", "z"],
    ),
}  # fmt: skip


def live_through(container: winkfs.Container, steps: str) -> None:
    verbs = {
        "put": lambda name: container.put(name, b"1"),
        "many": lambda name: container.put_many([(name, b"1")]),
        "save": container.save_catalog,
        "sync": container.sync,
        "delete": container.delete,
        "rename": container.rename,
    }
    for step in steps.split(", "):
        verb, *names = step.split()
        verbs[verb](*names)


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES)
def test_a_name_that_came_and_went_around_a_kill_is_gone(life: str, base: Path) -> None:
    before, behind, left = LIVES[life]
    made(base, [b"z"])
    with winkfs.open(base, "a") as container:
        live_through(container, before)
        image = image_of(base)
    with winkfs.open(image, "a") as container:
        live_through(container, behind)
    assert names_of(image) == left
    assert winkfs.verify(image).problems == []


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["order", "missing", "twice", "number", "clashes", "alien"])
@pytest.mark.parametrize("older", [False, True])
def test_verify_reports_a_wrong_catalog(fault: str, older: bool, base: Path) -> None:
    made(base, [b"a", b"a/b", b"c", b"d"])
    delete(base, "d")
    winkfs.reindex(base)
    rows, end, clashes = rows_of_catalog(base)
    if older:
        with winkfs.open(base, "a") as container:
            container.put_many([("c", b"2"), ("e", b"3")])
            container.delete("a")
    assert winkfs.verify(base).problems == []
    which = {"order": [1, 0, 2], "missing": [0, 1], "twice": [0, 1, 1, 2]}.get(fault, [0, 1, 2])
    names, numbers = [rows.names[i] for i in which], rows.numbers[which].copy()
    if fault == "number":
        numbers[1, CTIME] += 1
    elif fault == "alien":
        names[1] = b"alien"
    write_catalog(base, FileTable(names, numbers), end, clashes + (fault == "clashes"))
    if fault in ("clashes", "missing") and older:  # of a moment that is no more; c came again
        assert winkfs.verify(base).problems == []
        return
    (problem,) = winkfs.verify(base).problems
    assert "c.cat" in problem
    assert "reindex" in problem
    winkfs.reindex(base)
    assert winkfs.verify(base).problems == []


# --- who writes it


def tree_of(folder: Path, names: list[str]) -> Path:
    write_files(folder, {name: name.encode() for name in names})
    return folder


@pytest.mark.parametrize("ao", [False, True])
def test_pack_writes_the_catalog_without_reading_inodes_again(
    ao: bool, tmp_path: Path, base: Path
) -> None:
    tree = tree_of(tmp_path / "tree", [f"d{i % 7}/f{i}.txt" for i in range(300)])
    with disk_calls() as calls:
        pack(tree, base, ao=ao)
    assert bytes_read(calls, ".data", 8192) < path_of(base, ".data").stat().st_size // 4
    names = {b"d%d/f%d.txt" % (i % 7, i) for i in range(300)} | {b"d%d" % i for i in range(7)}
    check_catalog(base, names)
    if ao:
        return
    (tree / "d0/f0.txt").write_bytes(b"changed")
    tree_of(tree, ["d9/new", "a"])
    pack(tree, base, update=True)
    check_catalog(base, names | {b"d9", b"d9/new", b"a"})


def test_pack_over_an_older_catalog_brings_it_up_to_date(tmp_path: Path, base: Path) -> None:
    pack(tree_of(tmp_path / "tree", ["a", "b"]), base)
    with winkfs.open(base, "a") as container:
        container.rename("a", "c")
    pack(tree_of(tmp_path / "more", ["d", "b"]), base, update=True)
    check_catalog(base, {b"b", b"c", b"d"})


@pytest.mark.slow
@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("whole", [False, True])
def test_a_full_disk_leaves_the_old_catalog(whole: bool, base: Path) -> None:
    before = path_of(base, ".cat").read_bytes()
    suffix = ".cat.tmp" if whole else ".cat"
    new = [f"b{i}" for i in range(20_000 if whole else 1)]
    with winkfs.open(base, "a") as container:
        container.put_many((name, b"1") for name in new)
        container.sync()
        with disk_calls(refusing("write", suffix, errno.ENOSPC)) as calls:
            container.save_catalog()
        assert any(call.path.endswith(suffix) for call in calls)
        assert list(container.names()) == ["a", *sorted(new)]
        assert path_of(base, ".cat").read_bytes() == before
        assert not path_of(base, ".cat.tmp").exists()
    with store_of(base) as store, open_catalog(store) as catalog:
        assert_catalog(store, catalog, [b"a", *(name.encode() for name in new)])


@pytest.mark.usefixtures("listed")
def test_a_symlink_at_the_catalog_path_is_not_written_through(base: Path) -> None:
    path, other = path_of(base, ".cat"), base.with_name("other")
    path.rename(other)
    path.symlink_to(other)
    before = other.read_bytes()
    with winkfs.open(base, "a") as container:
        container.put("b", b"1")
        container.save_catalog()
    assert other.read_bytes() == before and not path.is_symlink()
    check_catalog(base, {b"a", b"b"})


# --- the parts


class Full(MemoryStorage):
    def write(self, offset: int, buffers: object) -> int:
        raise OSError(errno.ENOSPC, "full")


def numbered(names: list[bytes], first: int = 0) -> FileTable:
    """Rows with these names, at positions from `first` on."""
    numbers = np.zeros((len(names), len(COLUMNS)), np.int64)
    numbers[:, POS] = range(first, first + len(names))
    return FileTable(names, numbers)


def test_puts_go_on_without_a_writable_scratch_file() -> None:
    sorter = NameSorter(Full, 100)
    for i in range(100):
        sorter.add(numbered([b"%d" % i]))
    with pytest.raises(OSError, match="full"):
        list(sorter.rows())


@given(st.lists(NAMES), st.integers(1, 2000), st.sets(st.integers(0, 40)))
def test_sorted_rows_are_those_of_sorted(names: list[bytes], chunk: int, live: set[int]) -> None:
    last = {name: pos for pos, name in enumerate(names)}  # of several with a name one is wanted
    for chosen in (set(last.values()), live & set(last.values())):
        sorter = NameSorter(MemoryStorage, chunk)
        for at in range(0, len(names), 3):
            sorter.add(numbered(names[at : at + 3], at))
        rows = FileTable.concat(list(sorter.rows(at_any(np.array(sorted(chosen), np.int64)))))
        assert rows.names == sorted(names[pos] for pos in chosen)
        assert sorted(rows.pos.tolist()) == sorted(chosen)
    alone = NameSorter(MemoryStorage, chunk)
    for name, pos in last.items():
        alone.add(numbered([name], pos))
    assert [name for rows in alone.rows() for name in rows.names] == sorted(last)


INTS = st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1))


@settings(deadline=None)
@given(
    st.sets(NAMES | st.binary(min_size=1, max_size=40), min_size=1, max_size=30),
    st.integers(1, 30),
    st.data(),
)
def test_blocks_give_back_what_was_put_in(
    found: set[bytes], each: int, data: st.DataObject
) -> None:
    names = sorted({name.replace(b"\0", b"1") for name in found})
    row = st.lists(INTS, min_size=len(COLUMNS), max_size=len(COLUMNS))
    numbers = np.array([data.draw(row) for _ in names], np.int64)
    numbers[:, POINTER] = data.draw(st.lists(st.sampled_from([0, -1]), min_size=len(names),
                                             max_size=len(names)))  # fmt: skip
    numbers[:, KIND] = data.draw(st.lists(st.sampled_from([1, 2, 1 | GONE, 1 | ASK]),
                                          min_size=len(names), max_size=len(names)))  # fmt: skip
    numbers[:, SIZE] &= 2**63 - 1
    blocks = list(encode_blocks(FileTable(names, numbers), each))
    assert len(blocks) == -(-len(names) // each)
    for at, (value, figures) in zip(range(0, len(names), each), blocks, strict=True):
        raw, some = np.frombuffer(value + bytes(SLACK), np.uint8), numbers[at : at + each]
        rows = Blocks(raw, np.array([0]), np.array([len(value)])).table
        assert rows.names == names[at : at + each]
        assert np.array_equal(rows.numbers, some)
        live = [row for row in some.tolist() if not row[KIND] & GONE]
        part = dict(zip(PART.names, (0, 0, 0, *figures), strict=True))
        assert (part["rows"], part["gone"]) == (len(some), len(some) - len(live))
        assert part["content"] == min(sum(row[SIZE] for row in live), 2**63 - 1)
        for field, column in (("pos", POS), ("size", SIZE), ("mtime", MTIME)):
            for edge in (min, max):
                wanted = edge((row[column] for row in live), default=0)
                assert part[f"{field}_{edge.__name__}"] == wanted
        assert part["kinds"] == sum({1 << (row[KIND] & 63) for row in live})
        assert part["asked"] == sum(row[KIND] & ASK != 0 for row in live)


def test_blocks_of_long_names_are_cut_up(tmp_path: Path) -> None:
    names = sorted([b"%05d" % i * (200 if i % 100 else 13_000) for i in range(2100)])
    with FileStorage(tmp_path / "c.cat", "x") as storage:
        writer = CatalogWriter.create(storage, {"CONTID": 5}, {})
        writer.write_run([numbered(names[:7]), numbered(names[7:], 7)])
        writer.finish(9, 9, 0)
    with Catalog(FileStorage(tmp_path / "c.cat")) as file:
        (run,) = file.runs
        assert run.count == 2100
        assert [name for rows in run.rows() for name in rows.names] == names
        assert [pos for rows in run.rows() for pos in rows.pos.tolist()] == list(range(2100))
        for i, name in enumerate(names):
            assert run.lower_bound(name) == i


@settings(deadline=None)
@given(st.lists(st.dictionaries(NAMES, st.booleans()), min_size=1, max_size=5), st.integers(1, 5))
def test_runs_are_joined_and_the_last_row_of_a_name_counts(
    runs: list[dict[bytes, bool]], size: int
) -> None:
    model, parts, at = dict[bytes, int](), list[list[FileTable]](), 0
    for run in runs:
        rows = numbered(sorted(run), at)
        rows.numbers[:, KIND] = [0 if run[name] else GONE for name in rows.names]
        parts.append([rows.part(i, i + size) for i in range(0, len(rows.names), size)])
        for name, pos in zip(rows.names, rows.pos.tolist(), strict=True):
            model[name] = pos if run[name] else -1
        at += len(run)
    found = list(live(joined([iter(part) for part in parts])))
    assert [(name, pos) for rows in found for name, pos in zip(
        rows.names, rows.pos.tolist(), strict=True
    )] == [(name, pos) for name, pos in sorted(model.items()) if pos >= 0]  # fmt: skip


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("variant", ["plain", "classic xxh3"])
def test_files_of_some_time_are_those_of_today(variant: str, base: Path) -> None:
    """Blocks with other mtimes are passed over, but never one that hides an older row."""
    times = {f"{i % 7}/{i:02}": i for i in range(60)}
    make(base, ((name, b"x", mtime) for name, mtime in times.items()), **VARIANTS[variant])
    winkfs.reindex(base)
    for changed, mtime in (("3/10", 500), ("4/11", 7), ("5/12", -5)):
        with winkfs.open(base, "a") as container:
            container.put(changed, b"yy", mtime)
            container.delete("0/07") if changed == "3/10" else None
            container.save_catalog()
        times[changed] = mtime
    del times["0/07"]
    with winkfs.open(base, "a") as container:
        container.put("6/13", b"z", 40)  # behind the catalog
        times["6/13"] = 40
        for since, until in ((None, 8), (5, 20), (30, None), (499, 501), (41, 42), (600, None)):
            wanted = {
                name for name, mtime in times.items()
                if (since is None or mtime >= since) and (until is None or mtime < until)
            }  # fmt: skip
            assert {entry.name for entry in container.scan(since, until)} == wanted
            assert {e.name for e in container.scan(since, until, "3/")} == {
                name for name in wanted if name.startswith("3/")
            }


def test_a_time_that_int64_does_not_hold_is_asked_of_the_inode(base: Path) -> None:
    far_times(base)
    with winkfs.open(base) as container:
        for since, until, wanted in (
            (10**11, None, {"far"}),
            (10**13, None, set()),
            (None, -(10**11), {"past"}),
            (None, -(10**13), set()),
            (0, 10, {"near"}),
        ):
            assert {entry.name for entry in container.scan(since, until)} == wanted
            times = (to_ns(since), to_ns(until))
            found = container.rows(b"", None, times)
            assert {name.decode() for rows in found for name in rows.names} == wanted


def test_a_directory_is_listed_from_the_catalog(base: Path) -> None:
    with winkfs.create(base) as container:
        container.mkdir("d")
        container.put_many((f"d/e{i}/f", b"x" * 5000) for i in range(50))
        container.put("top", b"")
        assert container.listdir() == ["d", "top"]
    winkfs.reindex(base)
    with winkfs.open(base) as container:
        container.read("top")
        with disk_calls() as calls:
            assert container.listdir() == ["d", "top"]
            assert container.listdir("d") == sorted(f"e{i}" for i in range(50))
            assert [len(files) for _, _, files in container.walk("d")] == [0] + [1] * 50
            assert container.exists("d/e7") and not container.exists("d/e77")
        # the entry of d, twice: it could be a file, which is shown in the directory of its name
        assert bytes_read(calls, ".data", 8192) < 20_000


@pytest.mark.slow
def test_every_flipped_byte_of_a_catalog_is_no_wrong_answer(
    base: Path, every: Callable[[str], slice]
) -> None:
    made(base, [b"d%d/%d" % (i % 3, i) for i in range(40)])
    winkfs.reindex(base)
    with winkfs.open(base, "a") as container:
        container.put("new", b"")
        container.delete("d1/1")
        container.save_catalog()
    path = path_of(base, ".cat")
    good = path.read_bytes()
    with store_of(base) as store, open_catalog(store) as catalog:
        assert len(catalog.runs) == 2
        right = [(rows.names, rows.numbers.tolist()) for rows in catalog.rows()]
        damaged = 0
        places = [*range(0, 8192, 37), *range(8192, len(good))][every("catalog places")]
        for at in places:
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
            found = open_catalog(store)
            if found is None:
                continue
            with found:
                try:
                    assert [(rows.names, rows.numbers.tolist()) for rows in found.rows()] == right
                except DerivedDamage:
                    damaged += 1
    assert damaged > len(places) / 3


@given(st.sets(NAMES), st.lists(st.integers(1, 5)), st.sets(NAMES))
def test_clashes_are_counted_across_pieces(
    names: set[bytes], cuts: list[int], directories: set[bytes]
) -> None:
    finder, ordered = ClashFinder(), sorted(names)
    for cut in [*cuts, len(ordered)]:
        part, ordered = ordered[:cut], ordered[cut:]
        finder.add(text_column(part), np.array([name in directories for name in part], bool))
    assert len(finder.found) == clashes_of(names) - len(directories & above(names) & names)


@given(st.binary(max_size=700), st.lists(st.tuples(st.integers(0, 700), st.integers(0, 300))))
def test_texts_are_what_slices_give(data: bytes, spans: list[tuple[int, int]]) -> None:
    whole = data.replace(b"\0", b"1")
    spans = [(min(a, len(whole)), n) for a, n in spans]
    spans = [(a, min(n, len(whole) - a)) for a, n in spans]
    at, lengths = np.array(spans, np.int64).reshape(-1, 2).T
    raw = np.frombuffer(whole, np.uint8)
    assert texts_at(raw, at, lengths) == [whole[a : a + n] for a, n in spans]
