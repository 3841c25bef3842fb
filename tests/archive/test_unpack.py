"""unpack: a container into a directory, and never out of it."""

from __future__ import annotations

import io
import itertools
import os
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import stored
from folders import write_files
from trees import DIR, LINK, snapshot

import winkfs
from winkformats import native
from winkfs.archive.items import Note
from winkfs.archive.pack import pack
from winkfs.archive.unpack import unpack
from winkfs.archive.unpacker import (
    DIRECTORY_THERE,
    LEADS_OUT,
    NO_SPECIAL,
    OPEN_PARENTS,
    THERE,
    Unpacker,
)
from winkfs.container.scan import Run
from winkfs.dataset.maintain import adopt


def container(folder: Path, *files: tuple[Any, ...], **options: int) -> Path:
    """A container of files: name, content, type, mode."""
    with winkfs.create(folder / "c") as c:
        for name, data, *more in files:
            c.put(name, data, **dict(zip(("ftype", "mode"), more, strict=False)), **options)
    return folder / "c"


@pytest.mark.skipif(native.code is None, reason="runs are read by the compiled module")
@pytest.mark.parametrize("damaged", [False, True])
def test_files_in_runs_are_unpacked_as_one_by_one(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    for i in range(200):
        path = tree / "many" / f"d{i // 50}" / f"f{i}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%04d" % i * (i * 7 % 600))
        path.chmod(0o755 if i % 3 else 0o640)
        os.utime(path, ns=(0, (1_700_000_000 + i) * 10**9 + i % 2 * 123))
    base = tmp_path / "many"
    pack(tree, base)
    if damaged:
        stored.flip_text(f"{base}.data", b"0123" * 50)
    whole, files, found = Unpacker.put_run, 0, []

    def counted(unpacker: Unpacker, run: Run, paths: list[bytes]) -> bool:
        nonlocal files
        files += len(paths)
        return whole(unpacker, run, paths)

    for put_run in (counted, lambda unpacker, run, paths: False):
        monkeypatch.setattr(Unpacker, "put_run", put_run)
        out, notes = tmp_path / f"out{len(found)}", list[Note]()
        report = unpack(base, out, note=notes.append)
        found.append((snapshot(out), report, notes))
    assert found[0] == found[1]
    assert found[0][1].failed == damaged
    assert files > 150


FILE = winkfs.FileType.FILE
NO_PATHS = {
    "../up": "@../up", "/abs": "@/abs", "a/../../up": "a/@../@../up", "a//b": "a/@/b",
    "./a": "@./a", "a/.": "a/@.", "..": "@..", ".": "@.", "a/": "a/@", "@": "@@", "@file": "@@file",
    "http://a.org/": "http:/@/a.org/@",
}  # fmt: skip


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("kind", [FILE, LINK, DIR])
@pytest.mark.parametrize("name", NO_PATHS)
def test_a_name_that_is_no_path_leads_out_of_no_directory(
    tmp_path: Path, name: str, kind: winkfs.FileType, notes: list[Note]
) -> None:
    if kind == DIR and name.endswith("/"):
        pytest.skip("no directory has such a name")
    data = b"" if kind == DIR else b"target"
    base = container(tmp_path, (name, data, kind), ("good", b"1"))
    report = unpack(base, tmp_path / "in/out", note=notes.append)
    assert (notes, report.failed, report.files) == ([], 0, 2 if kind == FILE else 1)
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".lock") == [
        "c.cat", "c.data", "c.idx", "in",
    ]  # fmt: skip
    out = tmp_path / "in/out"
    assert os.listdir(tmp_path / "in") == ["out"]
    made = NO_PATHS[name]
    assert {str(path.relative_to(out)) for path in out.rglob("*")} == (
        {"good", made} | {str(parent) for parent in Path(made).parents} - {"."}
    )
    if kind == DIR:
        assert (out / made).is_dir()
    elif kind == LINK:
        assert os.readlink(out / made) == "target"
    else:
        assert (out / made).read_bytes() == data


@pytest.mark.parametrize("name", ["a/" + "n" * 256, "@" * 255])
def test_names_too_long_for_a_path_are_skipped_and_reported(
    tmp_path: Path, name: str, notes: list[Note]
) -> None:
    base = container(tmp_path, (name, b"1"), ("good", b"1"))
    report = unpack(base, tmp_path / "out", note=notes.append)
    assert [n.name for n in notes] == [name.encode()] and "bytes, more than" in notes[0].what
    assert (report.files, report.failed) == (1, 1)
    assert os.listdir(tmp_path / "out") == ["good"]


@pytest.mark.slow
@pytest.mark.parametrize("order", [*itertools.permutations(["a", "a/b", "a/b/c"])])
@pytest.mark.parametrize("link", [False, True])
def test_a_file_goes_into_the_directory_of_its_name(
    tmp_path: Path, order: tuple[str, ...], link: bool
) -> None:
    kind = LINK if link else FILE
    base = container(tmp_path, *((name, name.encode(), kind) for name in order))
    for force in (False, True):
        notes: list[Note] = []
        report = unpack(base, tmp_path / "out", force=force, note=notes.append)
        assert report.failed == len(notes) == 0
        found = {
            str(path.relative_to(tmp_path / "out")): os.readlink(path) if link else path.read_text()
            for path in (tmp_path / "out").rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
        assert found == {"a/@file": "a", "a/b/@file": "a/b", "a/b/c": "a/b/c"}
    report = unpack(base, tmp_path / "out", note=notes.append)
    assert (report.failed, report.unchanged, notes) == (0, 3, [])


def beside_a_file(tmp_path: Path, order: str) -> tuple[Path, Path]:
    """Return a container, and a directory that has a file `a` of the size of the one in it."""
    base = container(tmp_path, *((name, b"1") for name in ("first", *order.split())))
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_bytes(b"x")
    return base, out


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("order", ["a a/b", "a/b a"])
def test_a_file_of_an_earlier_run_goes_into_its_directory(
    tmp_path: Path, order: str, force: bool
) -> None:
    base, out = beside_a_file(tmp_path, order)
    with winkfs.open(base) as c:
        at = c.stat("a").mtime_ns
    os.utime(out / "a", ns=(at, at))
    assert unpack(base, out, force=force).failed == 0
    assert (out / "a/@file").read_bytes() == (b"1" if force else b"x")
    assert (out / "a/b").read_bytes() == b"1"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("order", ["a a/b", "a/b a"])
def test_a_file_that_was_there_goes_into_no_directory(
    tmp_path: Path, order: str, force: bool
) -> None:
    base, out = beside_a_file(tmp_path, order)
    time.sleep(0.02)  # the clock of files is a coarse one
    report = unpack(base, out, force=force, note=lambda note: None)
    if force and order == "a a/b":
        assert report.failed == 0 and (out / "a/@file").read_bytes() == b"1"
    else:
        assert report.failed == (1 if force else 2)
        assert (out / "a").read_bytes() == (b"1" if force else b"x")
    assert sorted(os.listdir(out)) == ["a", "first"]


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_link_in_the_container_is_not_followed(
    tmp_path: Path, swap: bool, force: bool, notes: list[Note]
) -> None:
    (tmp_path / "outside").mkdir()
    files = [("a", bytes(tmp_path / "outside"), LINK), ("a/b", b"evil"), ("a/d", b"", DIR)]
    base = container(tmp_path, *(reversed(files) if swap else files))
    unpack(base, tmp_path / "out", force=force, note=notes.append)
    assert notes
    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "outside").stat().st_mode & 0o777 != 0o700


@pytest.mark.parametrize("target", ["file", "missing"])
def test_link_that_was_there_is_replaced_and_not_written_through(
    tmp_path: Path, target: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "out/a").symlink_to(tmp_path / target)
    base = container(tmp_path, ("a", b"new"))
    assert unpack(base, tmp_path / "out").failed == 1
    assert (tmp_path / "out/a").is_symlink()
    assert unpack(base, tmp_path / "out", force=True).failed == 0
    assert (tmp_path / "out/a").read_bytes() == b"new"
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert not (tmp_path / "missing").exists()


def test_linked_directory_that_was_there_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "out/a").symlink_to(tmp_path / "outside")
    base = container(tmp_path, ("a/b", b"1"), ("a", b"", DIR))
    assert unpack(base, tmp_path / "out", force=True).failed == 2
    assert list((tmp_path / "outside").iterdir()) == []


def test_existing_files_stay_unless_forced(tmp_path: Path, notes: list[Note]) -> None:
    base = container(tmp_path, ("a", b"new"), ("l", b"a", LINK), ("d", b"", DIR), ("x", b"1"))
    out = tmp_path / "out"
    (out / "d").mkdir(parents=True)
    (out / "x").mkdir()
    write_files(out, {"a": b"old", "l": b"old"})
    unpack(base, out, note=notes.append)
    what = {b"a": THERE, b"l": THERE, b"x": DIRECTORY_THERE}
    assert {n.name: n.what for n in notes} == what
    assert (out / "a").read_bytes() == (out / "l").read_bytes() == b"old"
    notes.clear()
    unpack(base, out, force=True, note=notes.append)
    assert notes == [Note(b"x", "a directory is in its place", True, often=True)]
    assert (out / "a").read_bytes() == b"new"
    assert os.readlink(out / "l") == "a"


def test_hard_link_to_a_file_outside_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "file").write_bytes(b"precious")
    os.link(tmp_path / "file", tmp_path / "out/a")
    unpack(container(tmp_path, ("a", b"new")), tmp_path / "out", force=True)
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    base = container(
        tmp_path, ("a", b"1", FILE, 0o666), ("b", b"1", FILE, 0o400), ("s", b"1", FILE, 0o4711),
        ("d", b"", DIR, 0o1777), ("d/closed", b"", DIR, 0o555), ("d/closed/inside", b"1"),
    )  # fmt: skip
    old = os.umask(0o077)
    try:
        unpack(base, tmp_path / "out", same_permissions=True)
    finally:
        os.umask(old)
    assert modes(tmp_path / "out", "a", "b", "s", "d", "d/closed") == [
        0o666, 0o400, 0o4711, 0o1777, 0o555,
    ]  # fmt: skip


def modes(root: Path, *names: str) -> list[int]:
    return [stat.S_IMODE((root / name).stat().st_mode) for name in names]


def test_set_id_and_sticky_bits_are_kept_only_when_asked(tmp_path: Path, notes: list[Note]) -> None:
    base = container(
        tmp_path, ("u", b"1", FILE, 0o4755), ("g", b"1", FILE, 0o2711), ("t", b"1", FILE, 0o1644),
        ("d", b"", DIR, 0o2775), ("tmp", b"", DIR, 0o1777),
    )  # fmt: skip
    names = ("u", "g", "t", "d", "tmp")
    report = unpack(base, tmp_path / "out", note=notes.append)
    assert modes(tmp_path / "out", *names) == [0o755, 0o711, 0o644, 0o775, 0o755]
    assert sorted(n.name.decode() for n in notes) == sorted(names)
    assert {(n.what, n.failed, n.often) for n in notes} == {(NO_SPECIAL, False, True)}
    assert report.failed == 0
    assert unpack(tmp_path / "c", tmp_path / "all", same_permissions=True).failed == 0
    assert modes(tmp_path / "all", *names) == [0o4755, 0o2711, 0o1644, 0o2775, 0o1777]


@pytest.mark.parametrize(
    ("name", "target", "stays"),
    [
        ("l", "a", True),
        ("l", "./a//b/.", True),
        ("d/e/l", "../../a", True),
        ("d/l", "..", True),
        ("l", ".", True),
        ("l", "/etc/passwd", False),
        ("l", "//etc", False),
        ("l", "..", False),
        ("l", "./../a", False),
        ("d/l", "../../a", False),
        ("d/l", "../x/..", False),  # x may be a link to a place less deep
    ],
)
def test_link_that_may_lead_out_is_made_only_when_asked(
    tmp_path: Path, name: str, target: str, stays: bool, notes: list[Note]
) -> None:
    base = container(tmp_path, (name, target.encode(), LINK), ("file", b"1"))
    report = unpack(base, tmp_path / "out", note=notes.append)
    assert os.path.lexists(tmp_path / "out" / name) is stays
    assert notes == ([] if stays else [Note(name.encode(), LEADS_OUT, True, often=True)])
    assert (report.files, report.links, report.failed) == (1, stays, not stays)
    assert unpack(base, tmp_path / "all", same_permissions=True).failed == 0
    assert os.readlink(tmp_path / "all" / name) == target


def test_links_through_links_do_not_lead_out(tmp_path: Path) -> None:
    """Each is harmless by its letters: here/here/here is the root, three levels above it is not."""
    base = container(
        tmp_path, ("here", b".", LINK), ("out", b"here/here/here/../../..", LINK),
        ("d/e/up", b"../..", LINK), ("d/e/out", b"up/../..", LINK),
    )  # fmt: skip
    unpack(base, tmp_path / "x/out")
    for path in (tmp_path / "x/out").rglob("*"):
        assert path.resolve().is_relative_to(tmp_path / "x/out")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_owners_are_not_given_where_they_are_not_wanted(tmp_path: Path) -> None:
    files = (("a", b"1"), ("l", b"a", LINK), ("d", b"", DIR))
    base = container(tmp_path, *files, uid=1234, gid=5678)
    unpack(base, tmp_path / "out")
    unpack(base, tmp_path / "mine", same_owner=False)
    for name in ("a", "l", "d"):
        assert (tmp_path / "out" / name).lstat().st_uid == 1234
        assert (tmp_path / "mine" / name).lstat().st_gid == 0


def test_a_link_target_with_nul_is_skipped_and_the_rest_unpacked(tmp_path: Path) -> None:
    base = container(tmp_path, ("l", b"a\0b", LINK), ("z", b"1"))
    report = unpack(base, tmp_path / "out")
    assert (report.files, report.links, report.failed) == (1, 0, 1)


def test_files_in_many_directories_and_deep_ones(tmp_path: Path) -> None:
    """More directories than are kept open, and a path longer than the kernel takes at once."""
    deep = "/".join(["d" * 200] * 30) + "/end"
    wide = [f"{i:03d}/{j}/file" for j in range(3) for i in range(100)]
    base = container(tmp_path, *((name, name.encode()) for name in [*wide, deep]))
    out = tmp_path / "out"
    try:
        assert unpack(base, out).failed == 0
        assert all((out / name).read_bytes() == name.encode() for name in wide)
        notes: list[Note] = []
        pack(out, tmp_path / "again", note=notes.append)
        assert notes == []
        assert stored.read(tmp_path / "again", deep) == deep.encode()
    finally:
        subprocess.run(["rm", "-rf", out], check=True)


def test_glob_crosses_the_slash(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "c")
    report = unpack(tmp_path / "c", tmp_path / "out", "docs/*.html")
    assert report.files == 2
    found = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*"))
    assert found == ["docs", "docs/a.html", "docs/old", "docs/old/b.html"]


def test_damaged_file_is_not_unpacked_and_the_others_are(tmp_path: Path, notes: list[Note]) -> None:
    base = container(tmp_path, ("a", b"A" * 500), ("bad", b"B" * 500), ("z", b"Z" * 500))
    stored.flip_text(f"{base}.data", b"BBBB")
    unpack(base, tmp_path / "out", note=notes.append)
    assert [n.name for n in notes] == [b"bad"]
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "z"]


def test_unpack_by_a_user_closes_directories_and_drops_set_id(place: Path) -> None:
    with winkfs.create(place / "c") as c:
        c.put("d", b"", ftype=DIR, mode=0o500, mtime=5)
        c.put("d/file", b"1", mode=0o400)
        c.put("d/root", b"1", mode=0o4755, uid=0, gid=0)
    assert unpack(place / "c", place / "out", same_permissions=True).failed == 0
    out = place / "out/d"
    assert (stat.S_IMODE(out.stat().st_mode), out.stat().st_mtime) == (0o500, 5)
    assert stat.S_IMODE((out / "root").stat().st_mode) == 0o755
    assert (out / "file").read_bytes() == b"1"
    out.chmod(0o700)


def test_a_directory_closed_to_its_owner_gets_its_mode_last(place: Path, notes: list[Note]) -> None:
    others = [(f"{i}", b"", DIR) for i in range(2 * OPEN_PARENTS)]  # `below` is opened anew
    closed = ("shut", b"", DIR, 0), ("shut/below", b"", DIR, 0o500)
    base = container(place, *closed, *others, mtime=7)
    unpack(base, place / "out", note=notes.append)
    assert notes == []
    shut = place / "out/shut"
    assert stat.S_IMODE(shut.stat().st_mode) == 0
    shut.chmod(0o700)
    assert stat.S_IMODE((shut / "below").stat().st_mode) == 0o500
    assert (shut / "below").stat().st_mtime == 7


def test_unpack_onto_a_full_disk_stops_and_leaves_no_half_file(
    tmp_path: Path, small_disk: Path
) -> None:
    base = container(tmp_path, *((f"{i}", bytes([i]) * 300_000) for i in range(6)))
    with pytest.raises(OSError, match="No space left"):
        unpack(base, small_disk / "out")
    assert {p.stat().st_size for p in (small_disk / "out").iterdir()} == {300_000}


@pytest.mark.on_disk
def test_parents_of_globbed_files_get_their_modes_and_times(tree: Path, tmp_path: Path) -> None:
    (tree / "docs").chmod(0o710)
    os.setxattr(tree / "docs", "user.note", b"1")
    os.utime(tree / "docs", ns=(5, 7))
    (tmp_path / "out/docs/old").mkdir(parents=True)
    (tmp_path / "out/docs").chmod(0o701)
    pack(tree, tmp_path / "c")
    for out in ("new", "out"):
        unpack(tmp_path / "c", tmp_path / out, "docs/old/*")
    new, old = tmp_path / "new", tmp_path / "out"
    assert (stat.S_IMODE((new / "docs").stat().st_mode), (new / "docs").stat().st_mtime_ns) == (
        0o710, 7,
    )  # fmt: skip
    assert os.getxattr(new / "docs", "user.note") == b"1"
    assert (new / "docs/old").stat().st_mtime_ns == (tree / "docs/old").stat().st_mtime_ns
    assert modes(new, "docs/old") == [0o700]
    assert modes(old, "docs") == [0o701]  # was there, and is not ours


@pytest.mark.parametrize("lost", [[], [".cat"], [".idx", ".cat"]])
@pytest.mark.parametrize("to", ["container", "data set"])
def test_damaged_inode_is_a_failure_with_and_without_an_index(
    tmp_path: Path, lost: list[str], to: str, notes: list[Note]
) -> None:
    """Without one the inode is left out where the index is made in memory."""
    base = container(tmp_path, ("a", b"A" * 500), ("bad", b"B" * 500), ("z", b"Z" * 500))
    source = base
    if to == "data set":
        adopt(tmp_path / "ds", [base])
        with winkfs.open(tmp_path / "ds") as opened:
            base = Path(opened.shards[0].base)
        source = tmp_path / "ds"
    stored.flip_text(f"{base}.data", b"bad/I0", 40)
    for suffix in lost:
        Path(f"{base}{suffix}").unlink(missing_ok=True)
    report = unpack(source, tmp_path / "out", note=notes.append)
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "z"]
    assert report.failed == len(notes) == 1
    assert ".data" in notes[0].what and notes[0].failed
    assert unpack(source, tar=io.BytesIO()).failed == 1


def test_container_cut_short_is_a_failure(tmp_path: Path) -> None:
    base = container(tmp_path, *((f"{i}", bytes([i]) * 5000) for i in range(9)))
    data = Path(f"{base}.data")
    os.truncate(data, data.stat().st_size // 2)
    for _ in range(2):
        notes: list[Note] = []
        report = unpack(base, tmp_path / "out", force=True, note=notes.append)
        assert 0 < report.files < 9
        assert report.failed == len(notes) > 0
        Path(f"{base}.idx").unlink(missing_ok=True)
