"""Names of a mount: an order on disk, what changed since, and directories made of both."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from catalog_checks import store_of
from constants import shrink
from container_checks import put_many
from mounting import all_refused, cool, refused
from seam import Call, bytes_read, disk_calls
from sources import DIR, assert_resumable, at, entries, listed, made, opened, walk
from sources import sources_end as sources_end  # a fixture
from stored import make

import winkfs
from winkformats import native
from winkformats.disk import pagecache
from winkformats.disk.posix import FileStorage
from winkformats.errors import CorruptError
from winkformats.kv.superblock import read_superblock
from winkfs import FileType
from winkfs.container.catalog import open_catalog
from winkfs.mounting import ids as places
from winkfs.mounting.container import ContainerSource
from winkfs.names import bad_prefix
from winkmount.source import Amendment, run_steps

pytestmark = pytest.mark.in_memory


@pytest.fixture
def base(tmp_path: Path) -> str:
    return str(tmp_path / "c")


def test_prefixes_are_directories(base: str) -> None:
    view = opened(made(base, "a/b/c", "a/d", "e", ("a/f", DIR), ("a/f0", DIR), "a/f/g", "a/f!"))
    assert walk(view) == {
        b"a/", b"a/b/", b"a/b/c", b"a/d", b"a/f/", b"a/f/g", b"a/f!", b"a/f0/", b"e",
    }  # fmt: skip
    with refused(errno.ENOENT):
        view.lookup(view.root, b"nothing")


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("late", [False, True])
def test_a_file_is_in_the_directory_of_its_name(base: str, mode: str, late: bool) -> None:
    """late: the names below came after the order was made."""
    made(base, "a/b", "a/x", *(() if late else ("a/b/c", "a/b/d")))
    if late:
        opened(base).close()
        put_many(base, [("a/b/c", b""), ("a/b/d", b"")])
    view = opened(base, mode)
    assert walk(view) == {b"a/", b"a/b/", b"a/b/@file", b"a/b/c", b"a/b/d", b"a/x"}
    assert view.read(at(view, "a/b/@file"), 0, 9) == b"a/b"


def test_a_directory_with_the_file_of_its_name_is_not_empty(base: str) -> None:
    view = opened(made(base, "a", "a/b"))
    view.unlink(at(view, "a"), b"b")
    assert walk(view) == {b"a/", b"a/@file"}
    with refused(errno.ENOTEMPTY):
        view.rmdir(view.root, b"a")
    view.rename(at(view, "a"), b"@file", view.root, b"c")
    view.rmdir(view.root, b"a")
    assert walk(view) == {b"c"}
    view.close()
    assert contents(base) == {"c": b"a"}


def contents(base: str) -> dict[str, bytes]:
    assert winkfs.verify(base).problems == []
    with winkfs.open(base) as container:
        return {name: container.read(name) for name in container.names()}


@pytest.mark.parametrize("synced", [False, True])
def test_files_move_with_the_directory_of_their_name(base: str, synced: bool) -> None:
    view = opened(made(base, "top", "top/a", "top/a/b", "x"))
    view.rename(view.root, b"top", view.root, b"new")
    assert walk(view) == {b"new/", b"new/@file", b"new/a/", b"new/a/@file", b"new/a/b", b"x"}
    if synced:
        run_steps(view.syncing(None))
    view.rename(at(view, "new"), b"a", view.root, b"b")
    view.unlink(at(view, "b"), b"b")
    assert walk(view) == {b"new/", b"new/@file", b"b/", b"b/@file", b"x"}
    view.close()
    assert contents(base) == {"new": b"top", "b": b"top/a", "x": b"x"}
    assert walk(opened(base, "r")) == {b"new", b"b", b"x"}


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("entry", [False, True])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_file_of_its_name_comes_into_a_directory(
    base: str, entry: bool, moved: bool, empty: bool
) -> None:
    view = opened(made(base, *([("a", DIR)] if entry else []), "a/b", "x"))
    if empty:
        view.unlink(at(view, "a"), b"b")
    new = (at(view, "a"), b"@file")
    with refused(errno.EPERM):
        view.mkdir(*new, 0o755, 0, 0)
    with refused(errno.EPERM):
        view.create(view.root, b"@file", 0o644, 0, 0)
    with refused(errno.EPERM):
        view.rename(view.root, b"x", view.root, b"@file")
    if moved:
        view.rename(view.root, b"x", *new)
    else:
        id = view.create(*new, 0o644, 0, 0).id
        view.write(id, [(0, b"x")], 5)
        with refused(errno.EEXIST):
            view.create(*new, 0o644, 0, 0)
    there = {b"a/", b"a/@file", *([] if empty else [b"a/b"]), *([] if moved else [b"x"])}
    assert walk(view) == there
    view.amend(at(view, "a"), Amendment(mtime_ns=7), 8)
    assert view.stat(at(view, "a")).mtime_ns == 7
    with refused(errno.EPERM):
        view.amend(at(view, "a"), Amendment(mode=0o700), time.time_ns())
    run_steps(view.syncing(None))
    assert walk(view) == there
    view.amend(at(view, "a/@file"), Amendment(mtime_ns=7), 8)
    view.close()
    assert contents(base) == (
        {"a": b"x"} | ({} if empty else {"a/b": b"a/b"}) | ({} if moved else {"x": b"x"})
    )
    view = opened(base)
    if empty:
        there = there - {b"a/", b"a/@file"} | {b"a"}
    assert walk(view) == there


def test_file_of_a_directory_is_removed_and_comes_again(base: str) -> None:
    view = opened(made(base, "a", "a/b"))
    for _ in range(2):
        view.unlink(at(view, "a"), b"@file")
        assert walk(view) == {b"a/", b"a/b"}
        with refused(errno.ENOENT):
            view.lookup(at(view, "a"), b"@file")
        view.create(at(view, "a"), b"@file", 0o644, 0, 0)
        assert walk(view) == {b"a/", b"a/b", b"a/@file"}
    view.close()
    assert contents(base) == {"a": b"", "a/b": b"a/b"}


@pytest.mark.parametrize("order", [False, True])
def test_followed_file_goes_into_a_directory_and_comes_out_again(base: str, order: bool) -> None:
    made(base, "a", "x")
    if order:
        opened(base).close()
    view = opened(base, "r")
    with winkfs.open(base, "a") as container:
        container.put("a/b", b"1")
        container.sync()
        view.refresh()
        assert walk(view) == {b"a/", b"a/@file", b"a/b", b"x"}
        assert view.read(at(view, "a/@file"), 0, 9) == b"a"
        container.delete("a/b")
        container.sync()
        view.refresh()
        assert walk(view) == {b"a", b"x"}


@pytest.mark.parametrize(
    "name", ["n" * 256, "a/" + "n" * 256 + "/b", "@" * 255, "a/" * 2047 + "bc"]
)
def test_names_that_are_too_long_for_a_path_are_not_shown(base: str, name: str) -> None:
    view = opened(made(base, name, "good"))
    assert walk(view) == {b"good"}
    with refused(errno.ENOENT):
        view.lookup(view.root, b"a")


@pytest.mark.slow
def test_a_million_names_no_path_can_have_do_not_hide_a_good_one(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking through them one by one would take seconds at each look-up."""
    with winkfs.create(base) as container:
        container.put_many((f"a/{'n' * 256}/{i}", b"") for i in range(20_000))
        container.put("a/good", b"")
    monkeypatch.setattr(native, "code", None)  # what is compiled reads by itself
    view = opened(base)
    with disk_calls() as calls:
        assert view.lookup(view.root, b"a").is_dir
    assert 0 < sum(call.verb == "read" for call in calls) < 100
    assert bytes_read(calls, ".data") < 60_000 < Path(base + ".data").stat().st_size // 20


def test_what_to_pass_over_with_a_bad_name() -> None:
    assert bad_prefix(b"a/b") is None
    long = b"n" * 256
    assert bad_prefix(b"a//b/../c/") is None
    assert bad_prefix(b"a/%b/b/c" % long) == b"a/%b/" % long
    assert bad_prefix(b"a/%b" % long) == b"a/%b\0" % long
    assert bad_prefix(b"@" * 255 + b"/a") == b"@" * 255 + b"/"
    assert bad_prefix(b"@" * 254) is None


@pytest.fixture
def changes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A sync writes a new order of the names after so many changes."""
    shrink(monkeypatch, "a mount", changes=request.param)
    return int(request.param)


@pytest.mark.parametrize("changes", [1, 1000], indirect=True)
def test_implied_directories_stay_until_they_are_removed(base: str, changes: int) -> None:
    view = opened(made(base, "a/b/f", "a/c/f", "x/f"))
    for path in ("a/b", "a/c", "x"):
        view.unlink(at(view, path), b"f")
    view.rmdir(at(view, "a"), b"b")
    if changes == 1:
        with disk_calls() as calls:
            run_steps(view.syncing(None))
        assert order_written(calls)
    assert walk(view) == {b"a/", b"a/c/", b"x/"}
    with refused(errno.ENOTEMPTY):
        view.rmdir(view.root, b"a")
    view.rmdir(at(view, "a"), b"c")
    view.rmdir(view.root, b"a")
    assert walk(view) == {b"x/"}
    view.mkdir(view.root, b"a", 0o755, 0, 0)
    assert walk(view) == {b"a/", b"x/"}
    view.close()
    again = opened(base, "r")
    assert walk(again) == {b"a/"}  # x was only kept by the mount


@pytest.mark.parametrize("changes", [3], indirect=True)
def test_fsync_waits_for_no_order_of_the_names(base: str, changes: int) -> None:
    view = opened(made(base, "a/b"))
    for number in range(9):
        id = view.create(view.root, b"new%d" % number, 0o644, 0, 0).id
        view.open(id, write=True, truncate=False)
        view.write(id, [(0, b"x" * 9000)], 0)
    view.unlink(at(view, "a"), b"b")
    with disk_calls() as calls:
        run_steps(view.syncing(id))
    assert not order_written(calls)
    with disk_calls() as calls:
        run_steps(view.syncing(None))
    assert order_written(calls)
    assert walk(view) == {b"a/", *(b"new%d" % number for number in range(9))}
    view.close()
    assert winkfs.verify(base).problems == []


def order_written(calls: list[Call]) -> bool:
    """Return whether BASE.cat got a run, or another took its place."""
    return any(call.verb in ("write", "rename") and ".cat" in call.path for call in calls)


def behind_the_order(base: str) -> int:
    """Bytes of the data file that BASE.cat does not cover."""
    with FileStorage(base + ".cat") as names, FileStorage(base + ".data") as data:
        return read_superblock(data)["FILESIZE"] - read_superblock(names)["DATAEND"]


def test_names_that_went_before_the_mount_leave_no_directory(base: str) -> None:
    opened(made(base, "a/b/f", "a/g", "x/f")).close()
    with winkfs.open(base, "a") as container:
        container.delete("a/b/f")
        container.delete("x/f")
        container.put("x", b"now a file")
        container.sync()
        container.abort()  # a close would bring the order up to date
    for mode in "r", "a":
        assert behind_the_order(base) > 0
        view = opened(base, mode)
        assert walk(view) == {b"a/", b"a/g", b"x"}
        view.close()


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_closes_leave_the_mount_what_a_reindex_would(base: str, seed: int) -> None:
    """Each close adds a run to BASE.cat: what the later ones say needs no look-up at the start."""
    chance = random.Random(seed)
    letters = "a", "b", "b!", "c0", "d"
    some = ["/".join(chance.choices(letters, k=chance.randint(1, 4))) for _ in range(200)]
    made(base, *some, *(f"more/{i}" for i in range(500)))
    for _ in range(4):
        with winkfs.open(base, "a") as container:
            for _ in range(15):
                name = "/".join(chance.choices(letters, k=chance.randint(1, 5)))
                if chance.random() < 0.6:
                    ftype = DIR if chance.random() < 0.2 else FileType.FILE
                    container.put(name, b"" if ftype == DIR else b"new", ftype=ftype)
                elif name in container:
                    container.delete(name)
    with store_of(Path(base)) as store:
        catalog = open_catalog(store)
        assert catalog is not None and len(catalog.runs) > 1
        catalog.close()
    found = walk(opened(base, "r"))
    winkfs.reindex(base)
    assert found == walk(opened(base, "r"))


def test_a_mount_asks_no_index_for_names_that_a_close_added(base: str) -> None:
    made(base, *(f"{i % 9}/{i}" for i in range(900)))
    with winkfs.open(base, "a") as container:
        for i in range(50):
            container.put(f"{i}/new/{i}", b"")
            container.put(f"{i % 9}/{i}", b"changed")
    with disk_calls() as calls:
        winkfs.open(base).close()
    least = len([c for c in calls if c.path.endswith(".idx")])
    with disk_calls() as calls:
        view = opened(base, "r")
    assert len([c for c in calls if c.path.endswith(".idx")]) <= least + 2
    assert len(walk(view)) == 900 + 50 + 50 + 50


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".cat", ".idx"])
def test_a_mount_starts_over_derived_files_that_are_damaged(base: str, suffix: str) -> None:
    """Damaged is what is read while the mount finds out what later runs changed."""
    names = {b"%d/%05d" % (i % 9, i) for i in range(30_000)}
    make(base, ((name, b"x") for name in sorted(names)))
    with winkfs.open(base, "a") as container:
        for i in range(50):
            container.put(f"{i % 9}/{i}-", b"")
            container.delete(f"0/{i * 90:05}")
    names |= {b"%d/%d-" % (i % 9, i) for i in range(50)}
    names -= {b"0/%05d" % (i * 90) for i in range(50)}
    path = Path(base + suffix)
    raw = bytearray(path.read_bytes())
    for place in range(len(raw) // 4, len(raw) * 3 // 4, 1000):
        raw[place] ^= 1
    path.write_bytes(raw)
    view = opened(base, "r")
    shown = {b"%d/" % i + name for i in range(9) for name in listed(view, at(view, str(i)))}
    assert shown == names


def test_forgotten_ids_are_stale_and_return_on_lookup(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "a mount", remembered=100)
    view = opened(made(base, "kept", "d/file", *(f"f{i}" for i in range(500))))
    ids = {name: view.lookup(view.root, name).id for name in (b"kept", b"d", b"f1")}
    view.open(ids[b"kept"], write=False, truncate=False)
    for i in range(500):
        view.lookup(view.root, b"f%d" % i)
    assert view.read(ids[b"kept"], 0, 10) == b"kept"
    all_refused(
        errno.ESTALE,
        lambda: view.stat(ids[b"d"]),
        lambda: view.lookup(ids[b"d"], b"file"),
        lambda: view.read(ids[b"f1"], 0, 10),
        lambda: view.amend(ids[b"f1"], Amendment(mode=0o600), time.time_ns()),
        lambda: view.opendir(ids[b"d"]),
    )
    assert {name: view.lookup(view.root, name).id for name in ids} == ids
    view.release(ids[b"kept"])


def test_id_of_a_name_that_another_file_has_now_is_stale(base: str) -> None:
    view = opened(made(base, "a", "b"))
    a, b = at(view, "a"), at(view, "b")
    view.rename(view.root, b"a", view.root, b"b")
    assert view.stat(a).id == a and view.read(a, 0, 9) == b"a"
    with refused(errno.ESTALE):
        view.stat(b)


def test_file_ids_that_are_not_unique_do_not_mix_two_open_files(base: str) -> None:
    made(base, "a", "b")
    with store_of(Path(base)) as store:
        a_at, b_at = (store.index.lookup(key) for key in (b"a/I0", b"b/I0"))
        double = replace(store.inode_at(b_at)[1], fileid=store.inode_at(a_at)[1].fileid)
        value = double.encode(store.settings.form, double.size)
        entry = store.kv.layout.encode(b_at, b"b/I0", value, deleted=False)
    with FileStorage(base + ".data", "w") as data:
        data.write(b_at, [entry])
    view = opened(base)
    a = view.lookup(view.root, b"a")
    view.open(a.id, write=False, truncate=False)
    b = view.lookup(view.root, b"b")
    assert b.id != a.id and b.id >= places.OWN_IDS
    assert (view.read(a.id, 0, 9), view.read(b.id, 0, 9)) == (b"a", b"b")
    view.release(a.id)


@pytest.mark.slow
def test_very_deep_and_very_long_names(base: str) -> None:
    longest = "/".join(["d" * 255] * 15 + ["e" * 255])
    view = opened(made(base, "/".join("d" * 2000), longest, longest + "e/f"))
    top, id, depth = view.root, view.root, 0
    while id is not None:
        (*inner, _) = [n for n in listed(view, id) if len(n) == 1] + [None]
        id, depth = (view.lookup(id, inner[0]).id, depth + 1) if inner else (None, depth)
    assert depth == 2000
    id = top
    for part in longest.encode().split(b"/"):
        attr = view.lookup(id, part)
        id = attr.id
    assert attr.size == len(longest)
    assert listed(view, at(view, "/".join(["d" * 255] * 15))) == [b"e" * 255]


def test_a_listing_goes_on_from_every_offset(base: str) -> None:
    view = opened(made(base, *(f"{i % 7}/{i}" for i in range(50)), *(f"f{i}" for i in range(20)),
                       ("3", DIR), ("f7!", DIR)))  # fmt: skip
    for i in range(5):
        view.create(view.root, b"late%d" % i, 0o644, 0, 0)
    names = assert_resumable(view, view.root)
    assert len(set(names)) == len(names) == 7 + 21 + 5


@pytest.mark.slow
@pytest.mark.parametrize("changes", [1000], indirect=True)
def test_many_names_listed_while_others_come_go_and_change(
    base: str, changes: int, seed: int, amount: Callable[[str], int]
) -> None:
    """What is there all the time comes once, also over a new order in the middle: three changes at
    every 20th name must be more than 1000 before it."""
    count, chance = amount("names"), random.Random(seed)
    make(base, ((f"d/{i:06}", b"x") for i in range(count)))
    view = opened(base)
    directory, first = at(view, "d"), view.names.tree.overlay
    handle, offset = view.opendir(directory), 0
    gone: set[bytes] = set()
    seen: list[bytes] = []
    entries: Iterator[object] = iter(())
    for step in range(count // 2):
        if step % 300 == 0:  # as the kernel asks: some at a time
            entries = view.readdir(handle, offset)
        entry = next(entries, None)
        if entry is None:
            break
        offset = entry.offset  # type: ignore[attr-defined]
        seen.append(entry.name)  # type: ignore[attr-defined]
        assert seen[-1] not in gone
        if step % 20 == 0:
            _disturb(view, directory, chance, gone, step, count)
            if step == count * 3 // 10:
                run_steps(view.syncing(None))
    assert view.names.tree.overlay is not first
    seen += [entry.name for entry in view.readdir(handle, offset)]
    view.releasedir(handle)
    always = {b"%06d" % i for i in range(count)} - gone
    assert len(seen) == len(set(seen))
    assert always <= set(seen)
    shown = set(listed(view, at(view, "d")))
    assert {name for name in shown if not name.startswith(b"n")} == always


def _disturb(
    view: ContainerSource,
    directory: int,
    chance: random.Random,
    gone: set[bytes],
    step: int,
    count: int,
) -> None:
    view.create(directory, b"n%d" % step, 0o644, 0, 0)
    name = b"%06d" % chance.randrange(count)
    if name not in gone:
        view.unlink(directory, name)
        gone.add(name)
    other = b"%06d" % chance.randrange(count)
    if other not in gone:
        view.amend(view.lookup(directory, other).id, Amendment(mode=0o600), time.time_ns())


@pytest.mark.parametrize("middle", [0, 10, 70, 81])
def test_a_directory_that_is_renamed_is_listed_to_its_end(base: str, middle: int) -> None:
    """Also below a renamed one, half-way or from the start."""
    view = opened(made(base, *(f"a/b/{i:02}" for i in range(70)), "a/b/sub/x", ("z", DIR)))
    directory = at(view, "a/b")
    for i in range(10):
        view.create(directory, b"late%d" % i, 0o644, 0, 0)
    handle = view.opendir(directory)
    entries = view.readdir(handle, 0)
    before = [next(entries) for _ in range(middle)]
    view.rename(view.root, b"a", at(view, "z"), b"new")
    left = [entry.name for entry in entries]
    assert len(before) + len(left) == 81
    assert len({entry.name for entry in before} | set(left)) == 81
    if before:
        assert [entry.name for entry in view.readdir(handle, before[-1].offset)] == left
    view.unlink(at(view, "z/new/b"), b"05")
    assert len(list(view.readdir(handle, 0))) == 80
    view.releasedir(handle)


def test_a_change_while_a_batch_is_handed_out_is_seen(base: str) -> None:
    """The kernel keeps what a listing says for an hour."""
    view = opened(made(base, *(f"{i:03}" for i in range(60))))
    handle = view.opendir(view.root)
    entries = view.readdir(handle, 0)
    assert next(entries).name == b"000"
    view.unlink(view.root, b"001")
    view.write(at(view, "002"), [(0, b"longer than before")], 5)
    assert [(e.name, e.attr.size, e.attr.mtime_ns) for e in (next(entries),)] == [(b"002", 18, 5)]
    view.releasedir(handle)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [150], indirect=True)
def test_tree_against_a_set_of_names(base: str, changes: int) -> None:
    """Random changes, syncs, new orders and remounts; a set of paths is the model."""
    chance = random.Random(11)
    view = opened(made(base, *(f"{i % 3}/{i % 5}/{i}" for i in range(40)), "0/1/x/y"))
    for round in range(12):
        model = walk(view)
        for _ in range(120):
            _change(view, model, chance)
        assert walk(view) == model, round
        if chance.random() < 0.3:
            for path in sorted(model):
                if path.endswith(b"/"):  # or it would go with the mount, if it is empty
                    view.amend(at(view, os.fsdecode(path[:-1])), Amendment(mtime_ns=1), 2)
            view.close()
            assert walk(opened(base, "r")) == model
            view = opened(base)
        else:
            run_steps(view.syncing(None))
    view.close()
    assert winkfs.verify(base).problems == []


def _change(view: ContainerSource, model: set[bytes], chance: random.Random) -> None:
    dirs = [b"", *sorted(path for path in model if path.endswith(b"/"))]
    parent, target = chance.choice(dirs), chance.choice(dirs)
    name = b"%d" % chance.randrange(9)
    ids = [at(view, os.fsdecode(d[:-1])) if d else view.root for d in (parent, target)]
    what, path = chance.choice(["create", "mkdir", "remove", "rename"]), parent + name
    if what in ("create", "mkdir") and not {path, path + b"/"} & model:
        if what == "create":
            view.create(ids[0], name, 0o644, 0, 0)
            model.add(path)
        elif path.count(b"/") < 4:
            view.mkdir(ids[0], name, 0o755, 0, 0)
            model.add(path + b"/")
    elif what == "remove" and path in model:
        view.unlink(ids[0], name)
        model.discard(path)
    elif what == "remove" and path + b"/" in model:
        if any(other.startswith(path + b"/") and other != path + b"/" for other in model):
            with refused(errno.ENOTEMPTY):
                view.rmdir(ids[0], name)
        else:
            view.rmdir(ids[0], name)
            model.discard(path + b"/")
    elif what == "rename":
        _rename(view, model, (path, ids[0], name), (target + b"t", ids[1], b"t"))


def _rename(
    view: ContainerSource,
    model: set[bytes],
    old: tuple[bytes, int, bytes],
    new: tuple[bytes, int, bytes],
) -> None:
    (path, parent, name), (target, new_parent, new_name) = old, new
    if {target, target + b"/"} & model or target.startswith(path + b"/"):
        return
    if path in model:
        view.rename(parent, name, new_parent, new_name)
        model -= {path}
        model |= {target}
    elif path + b"/" in model:
        view.rename(parent, name, new_parent, new_name)
        below = {other for other in model if other.startswith(path + b"/")}
        model -= below
        model |= {target + other[len(path) :] for other in below}


def test_a_writing_mount_leaves_an_order_a_reading_one_none(base: str) -> None:
    made(base, "a/b", "c")
    names = Path(base + ".cat")
    names.unlink(missing_ok=True)
    view = opened(base, "r")
    assert walk(view) == {b"a/", b"a/b", b"c"}
    view.close()
    assert not names.exists()
    view = opened(base)
    assert names.exists()  # made at once, so that a kill does not cost the next mount the same
    view.create(view.root, b"new", 0o644, 0, 0)
    view.close()
    assert behind_the_order(base) == 0
    view = opened(base, "r")
    assert walk(view) == {b"a/", b"a/b", b"c", b"new"}


def test_the_order_has_a_directory_that_replaced_another(base: str) -> None:
    view = opened(made(base, ("a", DIR), ("b", DIR)))
    view.rename(view.root, b"a", view.root, b"b")
    view.close()
    assert winkfs.verify(base).problems == []


def test_every_kind_of_inode_is_listed_as_it_is_found(base: str) -> None:
    with winkfs.create(base) as container:
        container.put("empty", b"")
        container.put("program", b"#!", ftype=FileType.EXEC, mtime_ns=5)
        container.put("secret", b"x", mode=0o600, uid=7)
        container.put("link", b"to", ftype=FileType.LINK)
        container.put("several", b"1" * 3_000_000)
        container.put("long" * 70, b"shown nowhere")
        container.put("folder", b"", ftype=DIR)
        container.put("damaged", b"which has a bad inode")
        container.sync()
        at = container.store.index.lookup(b"damaged/I0")
    with Path(base + ".data").open("r+b") as data:
        data.seek(at + 60)
        data.write(b"\xff")
    Path(base + ".cat").unlink()  # which knows nothing of that
    view = opened(base, "r")
    assert walk(view) == {
        b"empty", b"program", b"secret", b"link", b"several", b"folder/", b"damaged"
    }  # fmt: skip
    with pytest.raises(CorruptError):
        view.lookup(view.root, b"damaged")
    assert view.left_out == {b"damaged", b"long" * 70}


@pytest.mark.parametrize("files", [5, 100])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_with_attributes_are_listed_for_any_owner(base: str, files: int) -> None:
    with winkfs.create(base) as container:
        for i in range(files):
            container.put(f"{i:03}", b"x", mode=0o600, uid=4_000_000_000, gid=2**32 - 1)
            container.put(f"{i:03}-plain", b"x")
    winkfs.reindex(base)
    os.chown(f"{base}.data", 3_000_000_000, 4_100_000_000)
    view = opened(base, "r")
    found = {name: (attr.uid, attr.gid) for name, attr, _ in entries(view, view.root)}
    assert set(found.values()) == {(4_000_000_000, 2**32 - 1), (3_000_000_000, 4_100_000_000)}
    assert len(found) == 2 * files


def test_directory_in_the_place_of_another_keeps_its_time(base: str) -> None:
    view = opened(made(base, ("a", DIR), ("b", DIR), "b/f"))
    view.amend(at(view, "a"), Amendment(mtime_ns=5_000_000_000), 6_000_000_000)
    view.unlink(at(view, "b"), b"f")
    view.rename(view.root, b"a", view.root, b"b")
    assert view.stat(at(view, "b")).mtime_ns == 5_000_000_000


def test_looking_and_reading_leave_few_pages_of_the_container(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = str(tmp_path_factory.mktemp("disk") / "c")
    shrink(monkeypatch, "a mount", cached=64)
    make(base, ((f"d/{i:03}", bytes(20_000)) for i in range(400)))
    cool(base + ".data")
    if held(base) > 0.1:
        pytest.skip("this filesystem does not drop pages")
    Path(base + ".cat").unlink()  # so that the inodes are read
    view = opened(base, "r")
    directory = view.lookup(view.root, b"d").id
    assert len(listed(view, directory)) == 400
    assert held(base) > 0.1
    look(view, directory)
    assert held(base) < 0.1
    for i in range(400):
        view.read(view.lookup(directory, b"%03d" % i).id, 0, 20_000)
        if i % 100 == 99:
            look(view, directory)
            assert held(base) < 0.1


def look(view: ContainerSource, directory: int) -> None:
    """Often enough for what was read to go."""
    for _ in range(65):
        view.lookup(directory, b"000")


def held(base: str) -> float:
    """The part of the data file that is in the page cache."""
    with FileStorage(base + ".data") as storage:
        absent = pagecache.absent(storage.fd, storage.size())
    assert absent is not None
    return 1 - float(absent.mean())


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_concurrent_path_lookups_find_directories(base: str, seed: int) -> None:
    """A search goes on from the last one: see `Overlay.implies`."""
    chance = random.Random(seed)
    letters = "a", "b", "b!", "c0", "d", "e"
    names = {"/".join(chance.choices(letters, k=chance.randint(1, 5))) for _ in range(1500)}
    names |= {f"a/f{i}" for i in range(600)}
    make(base, ((name, b"") for name in names))
    implied = {name[:at].encode() for name in names for at in range(len(name)) if name[at] == "/"}
    asked = [name.encode() for name in names] + [b"/".join((path, b"x")) for path in implied]
    asked += [path + b"!" for path in implied] + [b"0", b"zz", b"a/f", b"a/f599", b"e/e/e/e/e/e"]
    view = opened(base)
    for order in (sorted(asked), chance.sample(asked, len(asked))):
        for path in order:
            for each in (path, path + b"/y", path.rpartition(b"/")[0] or b"a"):
                assert view.names.tree.implied(each) == (each in implied), each


def test_a_name_with_a_leading_slash_has_its_own_directory(base: str) -> None:
    with winkfs.open(made(base, "a", "b", "/a", "c/d"), "a"):
        pass
    winkfs.reindex(base)
    with winkfs.open(base, "a") as container:  # behind the catalog
        container.delete("/a")
        container.put("/c", b"")
    view = opened(base, "r")
    assert listed(view, view.root) == [b"@", b"a", b"b", b"c"]
    assert walk(view) == {b"@/", b"@/c", b"a", b"b", b"c/", b"c/d"}


def test_a_directory_in_the_place_of_a_file_comes_once(base: str) -> None:
    made(base, "a", "b")
    winkfs.reindex(base)
    with winkfs.open(base, "a") as container:  # behind the catalog
        container.put("a/x", b"")
        container.delete("a")
    view = opened(base, "r")
    assert sorted(listed(view, view.root)) == [b"a", b"b"]
