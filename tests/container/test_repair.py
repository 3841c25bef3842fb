"""Repair, rollback, salvage: what is intact comes back, what is taken out is kept."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Run
from commands import run as run
from container_checks import ROOT, VARIANTS, drop, files_of, patch, path_of, put
from container_checks import variant as variant  # a fixture
from folders import unchanged
from oracle_read import check
from seam import CHANGES, disk_calls, once
from stored import read

import winkfs
from winkformats.disk.schemes import scheme_of
from winkformats.errors import CorruptError, FormatError
from winkfs import Refusal
from winkfs.container.repair import repair, rollback
from winkfs.container.salvage import salvage
from winkfs.errors import Locked, NoSuchFile

pytestmark = pytest.mark.slow

Files = dict[str, bytes]
Options = dict[str, Any]


def make(base: Path, **options: Any) -> Files:
    dice, files = random.Random(3), {}
    with winkfs.create(base, **options) as c:
        for i in range(100):
            files[f"d/{i:02}"] = dice.randbytes(dice.choice([0, 10, 3000]))
            c.put(f"d/{i:02}", files[f"d/{i:02}"], mtime=i)
        files["large"] = dice.randbytes(2_500_000)
        c.put("large", files["large"], mtime=1000)
        c.delete("d/03")
    del files["d/03"]
    return files


def entry_of(base: Path, key: bytes) -> tuple[int, int]:
    """Start and end of the last entry with a key."""
    with winkfs.open(base) as c:
        found = [e for e in c.store.kv.iterate() if e.key == key]
    return found[-1].pos, found[-1].pos + found[-1].size


def change(base: Path, at: int, data: bytes) -> None:
    patch(path_of(base, ".data"), at, data)


@pytest.fixture
def files(base: Path) -> Files:
    """What is in a container that `make` makes."""
    return make(base)


def assert_mended(base: Path) -> None:
    assert winkfs.verify(base).problems == []
    assert repair(base).steps == []


# --- salvage ---


def test_salvage_of_a_sound_container_copies_it(variant: Options, tmp_path: Path) -> None:
    files = make(tmp_path / "c", **variant)
    with unchanged(path_of(tmp_path / "c", ".data")):
        done = salvage(tmp_path / "c", tmp_path / "out")
    assert (done.files, done.partial, done.orphans) == (len(files), 0, 0)
    assert (done.problems, done.guessed) == ([], "")
    assert files_of(tmp_path / "out") == files
    with winkfs.open(tmp_path / "c") as old, winkfs.open(tmp_path / "out") as new:
        assert [old.stat(n).mtime_ns for n in files] == [new.stat(n).mtime_ns for n in files]
        assert old.ao == new.ao
    assert winkfs.verify(tmp_path / "out").problems == []


@pytest.mark.few
@pytest.mark.parametrize("how", ["index", "readable", "given"])
@pytest.mark.parametrize("variant", ["plain", "ao"])
def test_salvage_without_superblocks(variant: str, how: str, tmp_path: Path, base: Path) -> None:
    files = make(base, **VARIANTS[variant])
    with winkfs.open(base) as c:
        contid = c.superblock["CONTID"]
    if how == "readable":
        for half in (0, 4096):
            change(base, half + 40, b"\xff")
    else:
        change(base, 0, bytes(8192))
    if how != "index":
        drop(base)
    if how == "given":
        with pytest.raises(FormatError, match="CONTID"):
            salvage(base, tmp_path / "out")
        assert not path_of(tmp_path / "out", ".data").exists()
    done = salvage(f"{base}.data", tmp_path / "out", contid=contid if how == "given" else None)
    assert done.guessed
    assert files_of(tmp_path / "out") == files


@pytest.mark.few
@pytest.mark.parametrize("damage", ["hole", "garbage", "cut", "more"])
def test_salvage_gets_what_is_intact(
    variant: Options, damage: str, tmp_path: Path, base: Path
) -> None:
    files = make(base, **variant)
    drop(base)
    data = bytearray(path_of(base, ".data").read_bytes())
    dice = random.Random(1)
    if damage == "cut":
        del data[60_000:]
    elif damage == "more":
        data += dice.randbytes(5000)
    else:
        data[30_000:50_000] = bytes(20_000) if damage == "hole" else dice.randbytes(20_000)
    path_of(base, ".data").write_bytes(data)
    done = salvage(base, tmp_path / "out")
    found = files_of(tmp_path / "out")
    whole = {n: c for n, c in found.items() if not n.startswith("lost+found/")}
    if damage == "cut":  # the file is as it was then, with what was deleted behind the cut
        files |= {name: content for name, content in whole.items() if name not in files}
    assert all(files[name] == content for name, content in whole.items())
    least = {"hole": 60, "garbage": 60, "cut": 30, "more": len(files)}[damage]
    assert len(whole) == done.files >= least
    assert done.problems


def test_salvage_keeps_what_is_left_of_a_file(tmp_path: Path, base: Path, files: Files) -> None:
    with winkfs.open(base) as c:
        second = c.extents("large")[1]
    change(base, second.pointer + 500_000, b"!")
    done = salvage(base, tmp_path / "out")
    assert done.partial == 1
    left = files_of(tmp_path / "out")["lost+found/large"]
    size = second.size
    assert left[:size] == files["large"][:size]
    assert left[size : 2 * size] == bytes(size)
    assert left[2 * size :] == files["large"][2 * size :]


def test_salvage_keeps_the_content_of_a_lost_inode(
    tmp_path: Path, base: Path, files: Files
) -> None:
    start, _ = entry_of(base, b"d/02/I0")
    change(base, start + 5, b"!")
    done = salvage(base, tmp_path / "out")
    assert done.orphans == 1
    orphan = [c for n, c in files_of(tmp_path / "out").items() if n.startswith("lost+found/")]
    assert orphan == [files["d/02"]]


def test_salvage_refuses(tmp_path: Path) -> None:
    make(tmp_path / "c")
    with pytest.raises(NoSuchFile):
        salvage(tmp_path / "none", tmp_path / "out")
    with pytest.raises(FileExistsError):
        salvage(tmp_path / "c", tmp_path / "c")
    (tmp_path / "text").write_text("no container at all\n" * 1000)
    with pytest.raises(FormatError):
        salvage(tmp_path / "text", tmp_path / "out")
    assert not path_of(tmp_path / "out", ".data").exists()


# --- repair ---


def test_nothing_to_repair(tmp_path: Path) -> None:
    make(tmp_path / "c")
    for apply in (False, True):
        with unchanged(path_of(tmp_path / "c", ".data")):
            done = repair(tmp_path / "c", apply=apply)
        assert (done.steps, done.lost, done.removed) == ([], [], "")


DAMAGES = ["inode", "content", "length", "first superblock", "both superblocks", "cut", "zeros"]


def damage(base: Path, what: str) -> set[str]:
    """Damage a container made by `make` -> the names that are lost, at most."""
    if what == "inode":
        change(base, entry_of(base, b"d/10/I0")[0] + 9, b"!")
        return {"d/10"}
    if what == "content":
        with winkfs.open(base) as c:
            change(base, c.extents("large")[0].pointer + 1000, b"!")
        return {"large"}
    if what == "length":
        change(base, entry_of(base, b"d/10/I0")[0] + 2, b"\xf0")
        return {"d/10"}
    if what == "cut":
        start, end = entry_of(base, b"large/I0")
        os.truncate(f"{base}.data", (start + end) // 2)
        return {"large"}
    if what == "zeros":
        change(base, 20_000, bytes(512))
        return {f"d/{i:02}" for i in range(100)}
    change(base, 100, b"!")
    if what == "both superblocks":
        change(base, 4096 + 300, b"!")
    return set()


@pytest.mark.few(5)
@pytest.mark.parametrize("variant", ["plain", "ao"])
@pytest.mark.parametrize("what", DAMAGES)
def test_repair_makes_it_sound(variant: str, what: str, base: Path) -> None:
    files = make(base, **VARIANTS[variant])
    lost = damage(base, what)
    with unchanged(path_of(base, ".data")):
        plan = repair(base)
    assert plan.steps and not plan.removed
    done = repair(base, apply=True)
    assert (done.steps, done.lost) == (plan.steps, plan.lost)
    found = files_of(base)
    if what == "cut":  # it was deleted behind the cut
        del found["d/03"]
    assert set(files) - set(found) <= lost
    assert len(files) - len(found) <= 3
    assert all(files[name] == content for name, content in found.items())
    assert_mended(base)
    check(base)  # by the oracle
    put(base, "new", b"it goes on", mtime=2000)
    assert winkfs.verify(base).problems == []


def test_repair_keeps_what_it_takes_out(base: Path, files: Files) -> None:
    with winkfs.open(base) as c:
        first = c.extents("large")[0]
    start, end = entry_of(base, b"d/10/I0")
    change(base, first.pointer + 1000, b"!")
    change(base, start + 9, b"!")
    raw = path_of(base, ".data").read_bytes()
    done = repair(base, apply=True)
    assert done.lost == ["large"] and done.removed
    kept = files_of(done.removed)
    assert kept[f"ranges/{start}-{end}"] == raw[start:end]
    left = kept["files/large"]
    assert left[first.size :] == files["large"][first.size :]
    assert left[: first.size] == bytes(first.size)


BROKEN: dict[str, tuple[str, ...]] = {
    "a content": ("content",),
    "a content, no index": ("content",),
    "the end": ("cut", "content"),
    "superblocks": ("both superblocks", "content"),
    "attributes": ("attributes",),
}


@pytest.mark.few(1)
@pytest.mark.in_memory
@pytest.mark.parametrize("what", BROKEN)
def test_no_zeros_are_content_after_a_repair_that_was_killed(
    what: str, tmp_path: Path, every: Callable[[str], slice]
) -> None:
    """Stopped before any change of any file; and after the second repair all is well."""
    files = {f"f{i}": b"%d" % i * 100 for i in range(9)}
    base = tmp_path / "whole" / "c"
    base.parent.mkdir()
    with winkfs.create(base) as c:
        c.put_many(files.items())
        c.setxattrs("f5", {b"user.x": b"xx5" * 9})
        c.put("large", b"large" * 100)
    files["large"] = b"large" * 100
    lost = {"f4"} if "attributes" not in BROKEN[what] else set()
    for kind in BROKEN[what]:
        data = path_of(base, ".data").read_bytes()
        if kind == "content":
            change(base, data.index(files["f4"]) + 7, b"!")
        elif kind == "attributes":
            change(base, data.index(b"xx5") + 7, b"!")
        else:
            lost |= damage(base, kind) | ({"f5"} if kind == "cut" else set())
    if "no index" in what:
        drop(base)
    for at in range(1, 200)[every("stops")]:
        folder = tmp_path / f"{at}"
        shutil.copytree(base.parent, folder)
        stopped = stopped_at(lambda folder=folder: repair(folder / "c", apply=True), at)
        for again in (False, True):
            if again:
                repair(folder / "c", apply=True)
            try:
                found = right_of(folder / "c", files)
            except FormatError:  # no superblock yet
                assert not again and what == "superblocks"
                continue
            assert files.keys() - found <= lost, (at, again)
        assert_mended(folder / "c")
        shutil.rmtree(folder)
        if not stopped:
            break
    assert 50 < at < 190


def stopped_at(call: Callable[[], object], at: int) -> bool:
    """Run something that is stopped before its change of the disk number `at`."""

    def stop() -> None:
        raise KeyboardInterrupt

    with disk_calls(once(CHANGES, "", stop, nth=at), reads=False):
        try:
            call()
        except KeyboardInterrupt:
            return True
    return False


def right_of(base: Path, files: Files) -> set[str]:
    """The names whose content is there; a wrong one fails the test."""
    found = set()
    with winkfs.open(base) as c:
        for name, content in files.items():
            try:
                assert c.read(name) == content, name
                found.add(name)
            except (CorruptError, NoSuchFile):
                pass
    return found


def with_filler(base: Path, name: str, **options: Any) -> Files:
    """A container as a repair of an older version left it, if it was killed at that moment."""
    files = {f"f{i}": b"%d" % i * 100 for i in range(9)}
    files["two"] = b"1" * 100 + b"2" * 100
    with winkfs.create(base, **options) as c:
        c.put_many([(name, content) for name, content in files.items() if name != "two"])
        c.put("two", b"1" * 100)
        if not c.ao:
            c.append("two", b"2" * 100)
        else:
            c.put("two", files["two"])
    with winkfs.open(base) as c:
        kv = c.store.kv
        entry = kv.get(c.extents(name)[-1].pointer)
    filler = kv.layout.encode(entry.pos, entry.key, bytes(len(entry.value)), deleted=True)
    change(base, entry.pos, filler)
    drop(base)
    del files[name]
    return files


@pytest.mark.few
@pytest.mark.parametrize("which_path", ["compiled", "python"], indirect=True)
@pytest.mark.parametrize("name", ["f4", "two"])
@pytest.mark.parametrize("variant", ["plain", "ao"])
def test_zeros_of_an_older_repair_are_reported(
    variant: str, name: str, which_path: None, base: Path
) -> None:
    files = with_filler(base, name, **VARIANTS[variant])
    for mode in ("r", "a"):
        with winkfs.open(base, mode) as c:
            for _ in range(3):  # the fast ways come with use
                with pytest.raises(CorruptError, match="winkfs repair"):
                    c.read(name)
                with pytest.raises(CorruptError):
                    list(c.get_many([*files, name]))
            with pytest.raises(CorruptError):
                c.read(name, 190 if name == "two" else 90, 5)
            errors = []
            for entry in c.scan():
                try:
                    assert entry.read() == files[entry.name]
                except CorruptError:
                    errors.append(entry.name)
            assert errors == [name]
    assert any("marked deleted" in line for line in winkfs.verify(base).problems)
    assert repair(base).lost == [name]
    done = repair(base, apply=True)
    assert done.lost == [name]
    assert files_of(base) == files
    assert_mended(base)


def test_an_open_handle_reads_zeros_of_a_removed_file(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("zeros", bytes(100))
        c.sync()
        with winkfs.open(tmp_path / "c") as other:
            entries = {entry.name: entry for entry in other.scan()}
            stream, reading = c.open_file("zeros"), c.files.reader(b"zeros/I0")
            c.delete("zeros")
            c.sync()
            assert reading(0, 100) == entries["zeros"].read() == bytes(100)
        stream.close()
    assert repair(tmp_path / "c").steps == []


def test_a_file_with_damaged_attributes_keeps_its_content(base: Path) -> None:
    with winkfs.create(base, columns={"lang": "string"}) as c:
        c.put_many([(f"f{i}", b"%d" % i * 900, None, {"lang": f"xx{i}"}) for i in range(9)])
    change(base, path_of(base, ".data").read_bytes().index(b"xx5"), b"!")
    done = repair(base, apply=True)
    assert (done.lost, done.bare) == ([], ["f5"])
    with winkfs.open(base) as c:
        assert {name: c.read(name) for name in c.names()} == {
            f"f{i}": b"%d" % i * 900 for i in range(9)
        }
        assert c.getcolumns("f5") == {"lang": None}
        assert c.getcolumns("f4") == {"lang": "xx4"}
    assert_mended(base)


def test_repair_ends_a_file_where_readers_do(base: Path) -> None:
    """The disk lost the superblocks of two syncs, and the index is that of the first of them."""
    images: list[bytes] = []
    for name in ("a", "b", "c"):
        with winkfs.open(base, "a") if images else winkfs.create(base) as c:
            c.put(name, name.encode() * 100)
        images.append(path_of(base, ".data").read_bytes())
        if name == "b":
            index = path_of(base, ".idx").read_bytes()
    drop(base)
    change(base, 0, images[0][:8192])
    path_of(base, ".idx").write_bytes(index)
    assert files_of(base).keys() == {"a", "b", "c"}
    repair(base, apply=True)
    assert files_of(base).keys() == {"a", "b", "c"}
    assert winkfs.verify(base).problems == []


def test_repair_names_what_only_salvage_can_save(base: Path) -> None:
    make(base, classic=True)
    damage(base, "length")
    drop(base)
    with unchanged(path_of(base, ".data")), pytest.raises(Refusal, match="salvage"):
        repair(base, apply=True)


def test_repair_waits_for_no_writer(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c"), pytest.raises(Locked):
        repair(tmp_path / "c", apply=True)
    with pytest.raises(NoSuchFile):
        repair(tmp_path / "none")


# --- rollback ---


@pytest.mark.few(2)
def test_rollback_of_what_was_not_synced(variant: Options, base: Path) -> None:
    files = make(base, **variant)
    with winkfs.open(base, "a") as c:
        kv = c.store.kv
        c.put("new", b"x", mtime=5000)
        kv.flush()
        image = path_of(base, ".data").read_bytes()  # as a kill leaves it
    path_of(base, ".data").write_bytes(image)
    drop(base)
    done = rollback(base)
    assert files_of(base) == files
    assert path_of(base, ".data").stat().st_size == done.after < done.before
    assert winkfs.verify(base).problems == []


def test_rollback_to_the_sync_before(base: Path, files: Files) -> None:
    c = winkfs.open(base, "a")
    kv = c.store.kv
    c.put("d/01", b"replaced")
    c.delete("d/02")
    c.rename("d/04", "renamed")
    c.put("new", b"1")
    second = kv.storage.read(4096, 4096)
    c.sync()
    image = path_of(base, ".data").read_bytes()
    c.close()
    # As a power cut leaves it between the two superblocks; the delflags may be there already.
    path_of(base, ".data").write_bytes(image[:4096] + second + image[8192:])
    drop(base)
    would = rollback(base, previous=True, dry_run=True)
    assert would.names == ["d/01", "d/02", "d/04", "new", "renamed"]
    assert files_of(base).keys() == (files.keys() | {"new", "renamed"}) - {"d/02", "d/04"}
    done = rollback(base, previous=True)
    assert done.names == would.names
    assert files_of(base) == files
    assert winkfs.verify(base).problems == []
    check(base)
    assert Path(done.removed).read_bytes() == image[done.after :].rstrip(b"\0") or done.removed
    with pytest.raises(Refusal, match="nothing is known"):
        rollback(base, previous=True)


def test_rollback_of_a_sound_container_changes_nothing(base: Path, files: Files) -> None:
    with unchanged(path_of(base, ".data")):
        done = rollback(base)
    assert done.before == done.after and not done.removed
    assert files_of(base) == files


# --- the commands ---


def test_commands(run: Run) -> None:
    files = make(Path("c"))
    damage(Path("c"), "inode")
    dry = run("repair", "c")
    assert dry.status == 1 and b"would take out" in dry.out and b"--apply" in dry.out
    done = run("repair", "--apply", "--json", "c")
    record = json.loads(done.out)
    assert done.status == 0 and record["applied"] and record["steps"] and record["removed"]
    assert run("repair", "c").out == b"c: nothing to repair\n"
    assert run("verify", "c").status == 0
    assert run("rollback", "-n", "c").status == 0
    assert run("salvage", "c.data", "copy").status == 0
    assert files_of("copy").keys() == files.keys() - {"d/10"}
    damage(Path("c"), "content")
    kept = run("salvage", "c", "copy2")
    assert kept.status == 1 and "large" in kept.err
    for args in (["repair", "none"], ["rollback", "none"], ["salvage", "none", "x"]):
        bad = run(*args)
        assert bad.status == 1 and bad.err.count("\n") == 1, args


def test_a_damaged_container_names_what_to_do(run: Run) -> None:
    make(Path("c"))
    for half in (0, 4096):
        change(Path("c"), half + 100, b"!")
    with pytest.raises(CorruptError):
        winkfs.open("c")
    assert "winkfs repair" in run("ls", "c").err
    assert run("repair", "--apply", "c").status == 0
    assert run("verify", "c").status == 0


# --- both superblocks ---

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "columns": {"columns": {"n": "int64"}},
    "zstd": {"compress": "zstd"},
    "ao": {"ao": True, "timemp": 7},
    "md5": {"htalgo": 1},
}


def shown(base: Path) -> tuple[bool, dict[str, Any]]:
    with winkfs.open(base) as c:
        return c.ao, {n: (c.read(n), c.stat(n).mtime_ns, c.getcolumns(n)) for n in c.names()}


@pytest.mark.few(2)
@pytest.mark.in_memory
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bit_of_both_superblocks_costs_nothing(
    kind: str, tmp_path: Path, every: Callable[[str], slice]
) -> None:
    """The index has the CONTID; nothing that is read of a superblock is believed unseen."""
    base = tmp_path / "whole"
    with winkfs.create(base, **KINDS[kind]) as c:
        for i in range(20):
            columns = {"n": i} if kind == "columns" else None
            c.put(f"f{i:02}", b"%d" % i * 30, mtime=1000 + i, columns=columns)
    truth, data = shown(base), path_of(base, ".data").read_bytes()
    index = path_of(base, ".idx").read_bytes()
    end = data.index(bytes(16), 8)
    for bit in range(8 * end)[every("superblock bits")]:
        broken = bytearray(data)
        for half in (0, 4096):
            broken[half + bit // 8] ^= 1 << bit % 8
        for path in tmp_path.iterdir():
            if path.stem != "whole":
                path.unlink()
        path_of(tmp_path / "c", ".data").write_bytes(broken)
        path_of(tmp_path / "c", ".idx").write_bytes(index)
        salvage(tmp_path / "c", tmp_path / "out")
        assert shown(tmp_path / "out") == truth, (kind, bit)
        repair(tmp_path / "c", apply=True)
        assert shown(tmp_path / "c") == truth, (kind, bit)
        assert winkfs.verify(tmp_path / "c").problems == [], (kind, bit)


@pytest.mark.parametrize("kind", ["plain", "ao"])
def test_entries_at_the_second_superblock_s_place_are_left_alone(kind: str, base: Path) -> None:
    """Containers of old versions have one superblock, of 4096 bytes."""
    for suffix in (".data", ".idx"):
        shutil.copyfile(ROOT / f"tests/golden/{kind}{suffix}", path_of(base, suffix))
    truth = files_of(base)
    with winkfs.open(base) as c:
        assert c.superblock["SBSIZE"] == 4096
    change(base, 0, bytes(512))
    repair(base, apply=True)
    assert files_of(base) == truth
    assert winkfs.verify(base).problems == []


def test_a_path_that_begins_like_a_scheme_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a salvage, which leaves nothing behind it."""
    monkeypatch.chdir(tmp_path)
    for base in ("salvage:x", "salvage:0", "other:x"):
        with winkfs.create(base) as c:
            c.put("a", b"1")
        assert salvage(f"{base}.data", f"{base}2").files == 1
        assert not scheme_of(f"{base}.data")
        assert read(f"{base}2", "a") == b"1"
