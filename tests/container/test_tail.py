"""A close after few changes leaves BASE.idx as it is: who opens the container replays the tail.

Also what a close does to the catalog, and what it leaves behind.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import container_checks
import pytest
from catalog_checks import assert_catalog, check_catalog, store_of
from constants import leave_tails, shrink
from container_checks import (
    assert_sound,
    contents,
    contents_of,
    copy_files,
    names_of,
    patch,
    path_of,
    superblock_of,
)
from folders import unchanged
from oracle_read import check
from seam import disk_calls, once, refusing
from stored import make

import winkfs
from winkformats.disk.posix import FileStorage
from winkformats.kv.superblock import read_superblock
from winkfs.container.catalog import open_catalog
from winkfs.container.verify import info

pytestmark = pytest.mark.in_memory

base = container_checks.base  # fixture

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = 400
MANY = (1 << 13) + 1  # rows that no close reads
Model = dict[bytes, bytes]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 40 changes of FILES are few."""
    shrink(monkeypatch, "the index", each=10, small=100)


@pytest.fixture
def tails(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_tails(monkeypatch)


def made(base: Path, **variant: bool) -> Model:
    model = {b"d%d/f%03d" % (i % 7, i): b"first %d" % i for i in range(FILES)}
    make(base, ((name, data, 1000 + i) for i, (name, data) in enumerate(model.items())), **variant)
    return model


@pytest.fixture
def model(base: Path) -> Model:
    """What is in a container that `made` makes, under what the test shrinks by a fixture."""
    return made(base)


def tail_of(base: Path, suffix: str = ".idx") -> int:
    """Bytes of the data file that a derived file does not cover."""
    covered = superblock_of(path_of(base, suffix))["DATAEND"]
    return superblock_of(path_of(base, ".data"))["FILESIZE"] - covered


def change(base: Path, model: Model) -> None:
    with winkfs.open(base, "a") as c:
        changed(c, model)


def changed(c: winkfs.Container, model: Model) -> None:
    """A change of each kind."""
    c.put("new", b"put")
    c.put_many([("d1/f001", b"again"), ("many", b"1")])
    c.append("d2/f002", b" and more")
    c.delete("d3/f003")
    c.rename("d4/f004", "moved/f004")
    c.rename("d5/f005", "d6/f006")
    c.put("came", b"and went")
    c.delete("came")
    model |= {b"new": b"put", b"d1/f001": b"again", b"many": b"1"}
    model[b"d2/f002"] += b" and more"
    model[b"moved/f004"] = model.pop(b"d4/f004")
    model[b"d6/f006"] = model.pop(b"d5/f005")
    del model[b"d3/f003"]


def put(base: Path, *names: str | bytes) -> None:
    """Put small files in a session of their own."""
    with winkfs.open(base, "a") as c:
        for name in names:
            c.put(name, b"1")


def put_many(base: Path, names: Iterable[str | bytes]) -> None:
    with winkfs.open(base, "a") as c:
        c.put_many((name, b"1") for name in names)


def assert_listed(base: Path, names: Iterable[bytes]) -> None:
    """The catalog, with what came after it, has these names."""
    with store_of(base) as store, open_catalog(store) as catalog:
        assert_catalog(store, catalog, names)


def runs_of(base: Path) -> list[int]:
    """Rows of each run of a catalog that covers everything."""
    with store_of(base) as store, open_catalog(store) as catalog:
        assert catalog.covered == store.kv.end
        return [run.count for run in catalog.runs]


def assert_same(base: Path, model: Model) -> None:
    """For a reader, a writer, verify, info and the oracle."""
    assert_sound(base, model)
    check_catalog(base, set(model))
    with winkfs.open(base) as c:
        assert len(c) == len(model)
        assert [name.encode() for name in c.names()] == sorted(model)
        assert {e.name.encode(): e.read() for e in c.scan()} == model
        wanted = sorted(model)[::3]
        assert list(c.get_many([name.decode() for name in wanted])) == [model[n] for n in wanted]
        assert "came" not in c and ("d3/f003" in c) == (b"d3/f003" in model)
    assert info(str(base))["files"] == len(model)


# --- what is left, and what is read


@pytest.mark.usefixtures("few")
def test_few_changes_leave_the_index_and_are_seen_by_all(base: Path, model: Model) -> None:
    with unchanged(path_of(base, ".idx")):
        change(base, model)
    assert tail_of(base) > 0 and tail_of(base, ".cat") == 0
    assert info(str(base))["index"]["tail_bytes"] == tail_of(base)
    assert_same(base, model)


@pytest.mark.usefixtures("few")
def test_the_counters_are_exact_though_the_index_is_behind(base: Path, model: Model) -> None:
    change(base, model)
    assert tail_of(base) > 0
    counted = []
    for _ in range(2):
        block = superblock_of(path_of(base, ".data"))
        names = ("ENTRIES", "AENTRIES", "ITOTSZ", "DTOTSZ", "NEXTFID", "SYNCSIZE", "FILESIZE")
        counted.append([block[name] for name in names])
        winkfs.reindex(base)
    assert counted[0] == counted[1]


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_the_tail_grows_over_small_closes_until_it_is_merged(base: Path) -> None:
    model, tails = made(base), []
    for turn in range(20):
        with winkfs.open(base, "a") as c:
            for i in range(3):
                c.put(f"turn{turn}/{i}", b"%d" % turn)
                model[b"turn%d/%d" % (turn, i)] = b"%d" % turn
        tails.append(tail_of(base))
    assert tails.count(0) == 1 and tails.index(0) == 13  # 42 changes: more than a tenth of 400
    assert all(a < b for a, b in itertools.pairwise(tails[:13]))
    assert_same(base, model)


@pytest.mark.usefixtures("few")
def test_a_long_tail_is_merged_though_its_changes_are_few(base: Path, model: Model) -> None:
    with store_of(base) as store:
        assert store.index.base is not None
        size = store.index.base.size
    for length, left in ((size // 2, True), (size, False)):
        with winkfs.open(base, "a") as c:
            c.put("large", os.urandom(length))
        assert (tail_of(base) > 0) == left


def test_an_index_of_few_files_is_always_written(base: Path, model: Model) -> None:
    put(base, "new")
    assert tail_of(base) == 0


@pytest.mark.usefixtures("few")
def test_nothing_is_written_where_nothing_changed(base: Path, model: Model) -> None:
    put(base, "new")
    assert tail_of(base) > 0
    with unchanged(*(path_of(base, suffix) for suffix in (".idx", ".cat", ".data"))):
        winkfs.open(base, "a").close()


@pytest.mark.usefixtures("few")
def test_the_index_of_a_classic_container_is_always_written(base: Path) -> None:
    """For only a current one is trusted."""
    made(base, classic=True)
    put(base, "new")
    with store_of(base) as store:
        assert not store.is_behind and store.index.overlay == {}


@pytest.mark.usefixtures("tails")
def test_the_index_is_written_where_entries_have_no_checksums(tmp_path: Path) -> None:
    """For there only the index knows what is behind a broken length."""
    for name, left in (("plain", True), ("no-kvcksum", False)):
        for path in GOLDEN.glob(f"{name}.*"):
            shutil.copy(path, tmp_path / path.name)
        put(tmp_path / name, "new")
        assert (tail_of(tmp_path / name) > 0) == left


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_append_only_the_time_index_is_left_too(base: Path) -> None:
    model = made(base, ao=True)
    for turn in range(14):
        kept = [path_of(base, suffix).read_bytes() for suffix in (".idx", ".time")]
        with winkfs.open(base, "a") as c:
            for i in range(3):
                c.put(f"turn{turn}/{i}", b"x", mtime=2000 + 100 * turn + i)
                model[b"turn%d/%d" % (turn, i)] = b"x"
        now = [path_of(base, suffix).read_bytes() for suffix in (".idx", ".time")]
        assert (kept == now) == (turn < 13)
        with winkfs.open(base) as c:
            found = [entry.name for entry in c.scan(since=2000 + 100 * turn)]
            assert found == [f"turn{turn}/{i}" for i in range(3)]
        if turn % 4 == 1:
            assert winkfs.verify(base).problems == []
            check(base)
    assert_sound(base, model)


@pytest.mark.usefixtures("few")
def test_append_only_a_time_index_that_is_lost_is_written_anew(base: Path) -> None:
    made(base, ao=True)
    path_of(base, ".time").unlink()
    put(base, "new")
    assert path_of(base, ".time").exists()
    check(base)


# --- marks, damage, kills


@pytest.mark.usefixtures("few")
def test_marks_of_a_pack_are_kept_and_a_new_one_is_written(base: Path, model: Model) -> None:
    mark = {"PACKROOT": 5, "PACKTIME": 6, "PACKEND": 7}
    with winkfs.open(base, "a") as c:
        c.keep_mark(mark)
    with unchanged(path_of(base, ".idx")), winkfs.open(base, "a") as c:
        c.put("new", b"1")
        assert c.store.packed == mark
    with winkfs.open(base, "a") as c:
        c.keep_mark(mark | {"PACKTIME": 8})
        c.put("newer", b"1")
    with store_of(base) as store:
        assert store.packed["PACKTIME"] == 8
    assert tail_of(base) > 0


@pytest.mark.usefixtures("few")
def test_the_next_writer_sets_delflags_lost_in_a_power_cut(base: Path, model: Model) -> None:
    end = superblock_of(path_of(base, ".data"))["FILESIZE"]
    old = path_of(base, ".data").read_bytes()[:end]
    change(base, model)
    now = path_of(base, ".data").read_bytes()
    flags = [i for i in range(8192, end) if now[i] != old[i]]
    assert len(flags) >= 8  # of the old inodes, and their contents
    for at in flags:
        patch(path_of(base, ".data"), at, b"\0")
    assert winkfs.verify(base).problems == []
    assert contents_of(base) == model
    with unchanged(path_of(base, ".idx")):
        winkfs.open(base, "a").close()
    assert path_of(base, ".data").read_bytes()[8192:] == now[8192:]
    assert_same(base, model)


@pytest.mark.usefixtures("few")
def test_a_damaged_tail_entry_is_reported_and_the_index_written(base: Path, model: Model) -> None:
    with winkfs.open(base, "a") as c:
        c.put("good", b"1")
        c.put("hurt", b"2")
        c.put("after", b"3")
        c.sync()
        at = c.store.index.lookup(b"hurt/I0")
    assert tail_of(base) > 0
    patch(path_of(base, ".data"), at + 20, b"\xff\xff")
    with pytest.warns(winkfs.DamageWarning), winkfs.open(base) as c:
        assert c.read("good") == b"1" and c.read("after") == b"3" and "hurt" not in c
        assert len(c) == FILES + 2
    with pytest.warns(winkfs.DamageWarning):
        winkfs.open(base, "a").close()
    assert tail_of(base) == 0
    with store_of(base) as store:
        assert store.damaged == 1


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_damaged_page_below_a_tail_changes_no_answer(base: Path, mode: str, model: Model) -> None:
    change(base, model)
    for at in range(4096, 4096 + 16 * 2 * FILES, 64):
        patch(path_of(base, ".idx"), at, bytes(16))
    assert any("checksum of a page" in line for line in winkfs.verify(base).problems)
    with winkfs.open(base, mode) as c:
        assert contents(c) == model and len(c) == len(model)
    if mode == "a":
        assert_same(base, model)


@pytest.mark.usefixtures("few")
def test_verify_finds_a_lost_cell_and_one_too_many_under_a_tail(base: Path, model: Model) -> None:
    change(base, model)
    with store_of(base) as store:
        live, gone = store.index.lookup(b"d0/f000/I0"), store.index.replaced().tolist()
    path = path_of(base, ".idx")
    whole = path.read_bytes()
    pointers = {whole[at : at + 8]: at for at in range(4096, len(whole), 16)}
    assert len(gone) == 6
    for pos in (live, gone[0]):
        at = pointers[pos.to_bytes(8, "big")]
        path.write_bytes(whole[:at] + bytes(16) + whole[at + 16 :])
        with FileStorage(path, "w") as storage:
            block = read_superblock(storage)
            block["PAGESUMS"] = 0
            storage.write(0, block.images())
        (problem,) = winkfs.verify(base).problems
        assert "its cells are not those of the files" in problem
    path.write_bytes(whole)
    assert winkfs.verify(base).problems == []


@pytest.mark.slow
@pytest.mark.usefixtures("tails")
def test_lives_with_tails_show_what_they_should(
    base: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The same names again and again, for a reader that follows and for new ones."""
    shrink(monkeypatch, "the catalog", read=12, tail=3000)
    dice, model = random.Random(seed), dict[bytes, bytes]()
    winkfs.create(base).close()
    follower = winkfs.open(base)
    for _ in range(15):
        with winkfs.open(base, "a") as c:
            for _ in range(dice.choice([0, 1, 5, 30])):
                some_change(c, model, dice)
        with winkfs.open(base) as reader:
            for one in (reader, follower):
                assert len(one) == len(model)
                assert [name.encode() for name in one.names()] == sorted(model)
                assert contents(one) == model
        assert winkfs.verify(base).problems == []
        check(base)
    follower.close()


def some_change(c: winkfs.Container, model: Model, dice: random.Random) -> None:
    name, other = (b"n%d" % dice.randrange(30) for _ in range(2))
    data = b"%d" % dice.randrange(10**6)
    verb = dice.choice(["put", "many", "append", "delete", "rename", "sync"])
    if verb == "many":
        c.put_many([(name, data), (other, data), (name, data)])
        model |= {other: data, name: data}
    elif verb == "put" or name not in model:
        c.put(name, data)
        model[name] = data
    elif verb == "append":
        c.append(name, data)
        model[name] += data
    elif verb == "delete":
        c.delete(name)
        del model[name]
    elif verb == "rename":
        c.rename(name, other)
        model[other] = model.pop(name)
    else:
        c.sync()


# --- the catalog


@pytest.mark.parametrize("ao", [False, True])
def test_a_close_makes_the_catalog_of_a_small_container(base: Path, ao: bool) -> None:
    names = made(base, ao=ao)
    assert tail_of(base, ".cat") == 0
    check_catalog(base, set(names))


@pytest.mark.slow
def test_a_close_defers_the_catalog_of_many_single_puts(base: Path) -> None:
    names = [b"x%d" % i for i in range(MANY)]
    with winkfs.create(base) as c:
        for name in names:
            c.put(name, b"1")
    assert not path_of(base, ".cat").exists()
    with winkfs.open(base) as c:
        assert [name.encode() for name in c.names()] == sorted(names)
    winkfs.reindex(base)
    others = [b"y%d" % i for i in range(MANY)]
    with unchanged(path_of(base, ".cat")):
        put(base, *others)
    assert tail_of(base, ".cat") > 0
    assert_listed(base, [*names, *others])


# --- what was put in bulk: a close writes the catalog of it


@pytest.fixture
def bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read for the catalog but what was put in bulk is written, in many parts."""
    shrink(monkeypatch, "the catalog", read=0, behind=10, chunk=1500, read_back=7)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.usefixtures("bulk")
@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize("synced", [False, True])
def test_a_close_writes_the_catalog_of_what_was_put_in_bulk(
    ao: bool, synced: bool, base: Path
) -> None:
    model = {b"d%d/f%03d" % (i % 7, i): b"first %d" % i for i in range(FILES)}
    with winkfs.create(base, ao=ao) as c, disk_calls() as calls:
        names = list(model)
        for at in range(0, FILES, 9):
            c.put_many((name, model[name], 5) for name in names[at : at + 9])
        if synced:
            c.sync()
        calls.clear()
        c.close()
    assert not [call for call in calls if call.verb == "read" and call.path.endswith(".data")]
    check_catalog(base, set(model))
    assert_same(base, model)


def mixed(c: winkfs.Container, model: Model) -> None:
    """A change of each kind, though they have been done before."""
    for i in range(2, 6):
        c.put(b"d%d/f00%d" % (i, i), b"anew")
        model[b"d%d/f00%d" % (i, i)] = b"anew"
    changed(c, model)


@pytest.mark.usefixtures("bulk")
def test_a_close_defers_the_catalog_of_many_small_files(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "the catalog", bulk=FILES - 1, dense=1000)
    model = made(base)
    assert not path_of(base, ".cat").exists()
    winkfs.reindex(base)
    with unchanged(path_of(base, ".cat")):
        put_many(base, [b"x%d" % i for i in range(FILES)])
    assert_listed(base, [*model, *(b"x%d" % i for i in range(FILES))])
    large = base.with_name("large")
    make(large, ((b"x%d" % i, bytes(1000)) for i in range(FILES)))
    check_catalog(large, {b"x%d" % i for i in range(FILES)})


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.usefixtures("bulk")
@pytest.mark.parametrize("synced", [False, True])
def test_changes_around_bulk_puts_enter_the_catalog_of_the_close(
    synced: bool, base: Path, model: Model
) -> None:
    for turn in range(4):
        with winkfs.open(base, "a") as c:
            if turn % 2:
                mixed(c, model)
            names = [b"t%d/%d" % (turn, i % 150) for i in range(200)]  # some of them twice
            c.put_many((name, b"%d" % i) for i, name in enumerate(names))
            model |= {name: b"%d" % i for i, name in enumerate(names)}
            if synced:
                c.sync()
            mixed(c, model)
            c.put_many([(b"t%d/0" % turn, b"again"), ("typed", b"x")])
            model |= {b"t%d/0" % turn: b"again", b"typed": b"x"}
        assert_same(base, model)


@pytest.mark.usefixtures("bulk")
def test_puts_before_those_in_bulk_are_read_where_they_are_few(base: Path) -> None:
    with winkfs.create(base) as c:
        c.put("before", b"1")
        c.delete("before")
        c.put("kept", b"1")
        c.put_many((b"f%d" % i, b"1") for i in range(90))
    names = {b"kept", *(b"f%d" % i for i in range(90))}
    check_catalog(base, names)
    with unchanged(path_of(base, ".cat")), winkfs.open(base, "a") as c:
        c.put("before", bytes(5 << 20))  # more than is read
        c.put_many([("f0", b"2"), ("g", b"2")])
    assert tail_of(base, ".cat") > 0
    assert_listed(base, [*names, b"before", b"g"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("few", "closes", "files", "wanted", "last"),
    [  # the first run is joined with more than its half behind it; one of many rows, with as many
        (1 << 17, 30, 9, [[FILES, 9, 9, 9, 9], [FILES, 45]], [FILES + 9 * 23]),
        (100, 9, 90, [[FILES, 90, 90, 90, 90], [FILES + 450]], [FILES + 450, 90, 90, 90, 90]),
    ],
)
def test_runs_of_many_closes_are_joined_into_one(
    few: int, closes: int, files: int, wanted: list[list[int]], last: list[int], base: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    shrink(monkeypatch, "the catalog", joined=0, behind=1, bulk=few, dense=1, runs=5)
    counts = _after_closes(base, closes, files)
    assert counts[3:5] == wanted
    assert max(map(len, counts)) == 5
    assert last in counts


def _after_closes(base: Path, closes: int, files: int) -> list[list[int]]:
    """Rows of each run after each of so many closes that follow so many files put in bulk."""
    names, counts = set(made(base)), []
    for turn in range(closes):
        more = [b"t%d/%d" % (turn, i) for i in range(files)]
        put_many(base, more)
        names.update(more)
        counts.append(runs_of(base))
        if turn % 4 == 0:
            check_catalog(base, names)
    return counts


@pytest.mark.usefixtures("bulk")
def test_a_writer_limits_the_catalog_rows_it_keeps(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "the catalog", sure=50, kept=100, tail=1000)
    with winkfs.create(base) as c:
        for turn in range(9):
            c.put_many((b"t%d/%d" % (turn, i), b"1") for i in range(30))
    assert not path_of(base, ".cat").exists()
    assert len(names_of(base)) == 270


@pytest.mark.usefixtures("bulk")
def test_puts_go_on_without_memory_for_the_catalog(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("winkfs.container.bulk.column_at", table)
    model = made(base)
    assert not path_of(base, ".cat").exists()
    assert_sound(base, model)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.usefixtures("bulk")
@pytest.mark.parametrize("suffix", [".cat.tmp", "(scratch file)", ".cat"])
def test_a_full_disk_leaves_the_catalog_as_it_was_and_all_files(
    suffix: str, base: Path, model: Model
) -> None:
    before = path_of(base, ".cat").read_bytes()
    names = [b"x%d" % i for i in range(20 if suffix == ".cat" else FILES)]
    c = winkfs.open(base, "a")
    with disk_calls(refusing("write", suffix, errno.ENOSPC)) as calls:
        for at in range(0, len(names), 64):
            c.put_many((name, b"1") for name in names[at : at + 64])
        c.close()
    assert any(call.verb == "write" and call.path.endswith(suffix) for call in calls)
    model |= dict.fromkeys(names, b"1")
    assert path_of(base, ".cat").read_bytes() == before
    assert not path_of(base, ".cat.tmp").exists()
    assert tail_of(base) == 0
    assert_listed(base, list(model))
    assert_sound(base, model)
    put_many(base, [b"y%d" % i for i in range(9)])  # reads what it lacks, where that is little
    check_catalog(base, {*model, *(b"y%d" % i for i in range(9))})


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.usefixtures("bulk")
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("suffix", [".cat.tmp", ".cat"])
def test_a_death_while_writing_the_catalog_loses_no_file(
    suffix: str, nth: int, base: Path, model: Model
) -> None:
    names = [b"x%d" % i for i in range(20 if suffix == ".cat" else FILES)]
    model |= dict.fromkeys(names, b"1")
    then = base.with_name("then") / "c"
    then.parent.mkdir()
    with disk_calls(once("write", suffix, lambda: copy_files(base.parent, then.parent), nth=nth)):
        put_many(base, names)
    assert_same(base, model)
    assert_listed(then, list(model))  # as a reader at that moment
    assert_sound(then, model)
    put(then, "one more")
    assert not path_of(then, ".cat.tmp").exists()
    model[b"one more"] = b"1"
    assert_sound(then, model)
    assert_listed(then, list(model))


@pytest.mark.usefixtures("bulk")
def test_ctrl_c_while_writing_the_catalog_loses_no_file(base: Path, model: Model) -> None:
    names = [b"x%d" % i for i in range(FILES)]

    def interrupt() -> None:
        raise KeyboardInterrupt

    with disk_calls(once("write", ".cat.tmp", interrupt)), pytest.raises(KeyboardInterrupt):
        put_many(base, names)
    assert not path_of(base, ".cat.tmp").exists()
    model |= dict.fromkeys(names, b"1")
    assert_sound(base, model)
    with winkfs.open(base, "a") as c:  # nothing holds the lock
        assert len(c) == len(model)


@pytest.mark.usefixtures("bulk")
def test_a_reader_goes_on_while_closes_write_the_catalog(base: Path, model: Model) -> None:
    with winkfs.open(base) as reader:
        for turn in range(6):
            listed = reader.names()
            seen = [next(listed)]
            more = [b"t%d/%d" % (turn, i) for i in range(60)]
            put_many(base, more)
            seen += listed
            assert [name.encode() for name in seen] == sorted(model)
            model |= dict.fromkeys(more, b"1")
            assert [name.encode() for name in reader.names()] == sorted(model)


@pytest.mark.usefixtures("few")
def test_large_files_do_not_keep_a_close_from_the_catalog(base: Path, model: Model) -> None:
    """What is in memory needs not be read again."""
    with winkfs.open(base, "a") as c:
        c.put("large", bytes(6 << 20))
    assert tail_of(base, ".cat") == 0
    check_catalog(base, {*model, b"large"})


@pytest.mark.slow
def test_small_runs_that_closes_add_are_joined(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, "the catalog", joined=12, behind=1)
    names, counts = set(made(base)), []
    for turn in range(18):
        more = [b"t%d/%d" % (turn, i) for i in range(3)]
        put_many(base, more)
        names.update(more)
        counts.append(runs_of(base))
    assert max(count for runs in counts for count in runs[1:]) <= 12
    assert counts[15][0] == FILES and sum(counts[15][1:]) == 48 and len(counts[15]) > 4
    check_catalog(base, names)


def test_a_close_after_tombstones_of_names_that_were_not_there(base: Path, model: Model) -> None:
    with winkfs.open(base, "a") as c:
        c.append_tombstones(["never", "seen"])
    assert tail_of(base, ".cat") == 0
    check_catalog(base, set(model))
    assert winkfs.verify(base).problems == []


@pytest.mark.usefixtures("few")
def test_names_from_the_tail_enter_the_catalog_once(base: Path, model: Model) -> None:
    for names in (sorted(model)[:10], sorted(model)[10:11], sorted(model)[11:12]):
        with winkfs.open(base, "a") as c:
            for name in names:
                c.delete(name.decode())
                del model[name]
    assert tail_of(base) > 0
    assert runs_of(base) == [FILES, 10, 1, 1]
    check_catalog(base, set(model))


def test_a_damaged_catalog_of_many_files_is_dropped_by_a_close(base: Path) -> None:
    model = [f"f{i}" for i in range(2 * MANY)]
    make(base, ((name, b"1") for name in model))
    patch(path_of(base, ".cat"), 8192 + 40, b"\xff" * 40)
    more = [f"x{i}" for i in range(2 * MANY)]
    put_many(base, more)
    assert not path_of(base, ".cat").exists()
    assert len(names_of(base)) == len(model) + len(more)
