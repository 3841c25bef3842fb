"""The command sync into a directory: it becomes equal to a store or an archive, and nothing else is
touched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import stored
import trees
from commands import Done, Run, one_line
from flips import flip
from trees import DIR, LINK, snapshot

import winkfs
from winkfs.archive import unpacker

pytestmark = [pytest.mark.slow, pytest.mark.in_memory]

tree = trees.tree  # fixtures
small_disk = trees.small_disk
NOTHING = Done(0, b"", "")
TAR = ["tar", "--format=pax", "-cf", "t.tar", "-C", "tree", "."]


def agree(tree: Path, copy: Path) -> None:
    """Check that a directory is a copy, and that rsync has nothing to do."""
    assert snapshot(copy) == snapshot(tree)
    if shutil.which("rsync"):
        command = ["rsync", "-aciXn", "--delete", f"{tree}/", f"{copy}/"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert [line for line in done.stdout.splitlines() if not line.endswith(" ./")] == []


def identities(root: Path) -> dict[str, tuple[int, int]]:
    """The inodes and ctimes of all files."""
    found = {}
    for path in root.rglob("*"):
        status = path.lstat()
        found[str(path.relative_to(root))] = (status.st_ino, status.st_ctime_ns)
    return found


def mark(path: Path) -> None:
    """Give a file an attribute, which tmpfs takes since Linux 6.6."""
    try:
        os.setxattr(path, "user.note", b"1")
    except OSError:
        pytest.skip("no extended attributes here")


def mutate(tree: Path) -> None:
    """Change a tree in each way."""
    mark(tree / "secret")
    (tree / "docs/a.html").write_bytes(b"<p>b</p>")
    (tree / "empty").unlink()
    shutil.rmtree(tree / "docs/old")
    (tree / "docs/new\nline").mkdir(mode=0o711)
    (tree / "docs/new\nline/b").write_bytes(b"b" * 5000)
    Path(os.fsdecode(bytes(tree) + b"/caf\xe9")).write_bytes(b"longer")
    (tree / "run.sh").chmod(0o640)
    os.utime(tree / "large", ns=(1, 1))
    os.utime(tree / "dangling", ns=(2, 2), follow_symlinks=False)
    (tree / "link").unlink()
    (tree / "link").symlink_to("docs")
    if os.geteuid() == 0:
        os.chown(tree / "docs", 7, 8)


@pytest.mark.parametrize("kind", ["container", "data set", "tar"])
def test_a_directory_becomes_equal_and_again_nothing_is_touched(
    run: Run, tree: Path, tmp_path: Path, kind: str
) -> None:
    os.link(tree / "large", tree / "zlarge")

    def update() -> str:
        if kind == "tar":
            subprocess.run([*TAR, "--xattrs"], check=True)
            return "t.tar"
        if kind == "data set" and not Path("set").exists():
            assert run("pack", tree, "set", "--shards", "2").status == 0
        target = "c" if kind == "container" else "set"
        assert run("sync", tree, target, "--delete").status == 0
        return target

    copy = tmp_path / "copy"
    assert run("sync", update(), "copy/") == NOTHING
    (copy / "zlarge").exists()
    agree(tree, copy)
    mutate(tree)
    source = update()
    before = snapshot(copy)
    planned = run("sync", source, "copy", "-n", "--delete")
    assert planned.status == 0 and snapshot(copy) == before
    assert run("sync", source, "copy", "--delete", "-v") == planned
    agree(tree, copy)
    assert os.getxattr(copy / "secret", "user.note") == b"1"
    before_all = identities(copy)
    assert run("sync", source, "copy", "--delete", "-v") == NOTHING
    assert identities(copy) == before_all


def test_only_metadata_are_written_if_the_content_is_there(
    run: Run, tree: Path, tmp_path: Path
) -> None:
    assert run("pack", tree, "c").status == 0
    assert run("sync", "c", "copy/").status == 0
    copy = tmp_path / "copy"
    expected = snapshot(copy)
    (copy / "large").chmod(0o600)
    os.utime(copy / "large", ns=(5, 5))
    mark(copy / "large")
    mark(copy / "docs")
    inode = (copy / "large").stat().st_ino
    done = run("sync", "c", "copy", "-v")
    assert done == Done(0, b"M docs\txattrs\nM large\tmtime, mode, xattrs\n", "")
    assert snapshot(copy) == expected
    assert (copy / "large").stat().st_ino == inode
    assert os.listxattr(copy / "large") == os.listxattr(copy / "docs") == []


def test_checksum_finds_a_change_of_the_content_alone(run: Run, tree: Path, tmp_path: Path) -> None:
    assert run("pack", tree, "c").status == 0
    assert run("sync", "c", "copy/").status == 0
    path = tmp_path / "copy/docs/a.html"
    status = path.stat()
    path.write_bytes(b"<p>z</p>")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run("sync", "c", "copy", "-v") == NOTHING
    assert run("sync", "c", "copy", "-vc").out == b"M docs/a.html\tcontent\n"
    agree(tree, tmp_path / "copy")


def put_all(base: str) -> None:
    with winkfs.create(base) as c:
        c.put("dir", b"", ftype=DIR, mtime=1)
        c.put("dir/file", b"1", mtime=1)
        c.put("file", b"2", mtime=1)
        c.put("link", b"file", ftype=LINK, mtime=1)


@pytest.mark.parametrize("old", ["dir", "file", "link"])
@pytest.mark.parametrize("new", ["dir", "file", "link"])
def test_another_type_is_replaced_only_with_delete(
    run: Run, tmp_path: Path, old: str, new: str
) -> None:
    if old == new:
        return
    put_all("c")
    assert run("sync", "c", "copy/").status == 0
    with winkfs.open("c", "a") as c:
        c.delete(old)
        if old == "dir":
            c.delete("dir/file")
        c.rename(new, old)
        if new == "dir":
            c.rename("dir/file", f"{old}/file")
    before = snapshot(tmp_path / "copy")
    names = {"dir": "directory"}
    done = run("sync", "c", "copy")
    assert done.status == 1
    assert f"{old}: a {names.get(old, old)} is in the place of this" in done.err
    assert snapshot(tmp_path / "copy") == before
    assert run("sync", "c", "copy", "--delete").status == 0
    assert run("unpack", "c", "all").status == 0
    assert snapshot(tmp_path / "copy") == snapshot(tmp_path / "all")


def test_names_stay_without_delete_and_what_is_left_out(
    run: Run, tree: Path, tmp_path: Path
) -> None:
    assert run("pack", tree, "c").status == 0
    assert run("sync", "c", "copy/", "--exclude", "docs").status == 0
    copy = tmp_path / "copy"
    assert not (copy / "docs").exists() and (copy / "large").exists()
    (copy / "mine").write_bytes(b"1")
    (copy / "gone/deep").mkdir(parents=True)
    (copy / "gone/deep/kept.log").write_bytes(b"1")
    (copy / "gone/deep/file").write_bytes(b"1")
    assert run("sync", "c", "copy").status == 0
    assert (copy / "mine").exists() and (copy / "docs/a.html").exists()
    done = run("sync", "c", "copy", "--delete", "--exclude", "*.log", "-v")
    assert done == Done(0, b"- gone/deep/file\n- mine\n", "")
    assert (copy / "gone/deep/kept.log").exists()
    done = run("sync", "c", "copy", "--delete", "-v")
    assert done.out == b"- gone\n- gone/deep\n- gone/deep/kept.log\n"
    agree(tree, copy)


def test_nothing_is_written_or_removed_outside(run: Run, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"mine")
    with winkfs.create("c") as c:
        c.put("../outside/f", b"1")
        c.put("/etc/x", b"2")
        c.put("dir/f", b"3")
        c.put("dir/g", b"4")
        c.put("to/here", b"../../outside", ftype=LINK)
        c.put("up", b"../outside", ftype=LINK)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "dir").symlink_to("../outside")
    (copy / "more").symlink_to("../outside")
    done = run("sync", "c", "copy", "--delete")
    assert done.status == 1
    assert sorted(p.name for p in outside.iterdir()) == ["f"]
    assert (outside / "f").read_bytes() == b"mine"
    assert (copy / "@../outside/f").read_bytes() == b"1"
    assert (copy / "@/etc/x").read_bytes() == b"2"
    assert not (copy / "up").is_symlink() and not (copy / "more").is_symlink()
    assert done.err.count("leads out") == 1
    assert sorted(os.listdir(copy / "dir")) == ["f", "g"]
    again = run("sync", "c", "copy", "--delete", "-v")
    assert (again.status, again.out) == (1, b"")
    assert run("sync", "c", "copy", "-p", "-v").out == b"+ to/here\n+ up\n"
    assert os.readlink(copy / "up") == "../outside"
    assert run("sync", "c", "copy", "-p", "-v") == NOTHING


def contents(root: Path) -> dict[str, object]:
    """The contents of all files; directories without an entry have the time of their making."""
    return {name: found[0] for name, found in snapshot(root).items()}


def test_odd_names_become_the_paths_of_unpack(run: Run, tmp_path: Path) -> None:
    with winkfs.create("c") as c:
        c.put_many((name, b"1") for name in ["a", "a/b", "a//x", "new\nline", "@file", "a b", "a!"])
        c.put(b"\xff/\xfe", b"2")
    copy = tmp_path / "copy"
    assert run("unpack", "c", "all").status == 0
    assert run("sync", "c", "copy/") == NOTHING
    assert contents(copy) == contents(tmp_path / "all")
    assert run("sync", "c", "copy", "-v", "--delete") == NOTHING
    with winkfs.open("c", "a") as c:
        c.delete("a")
        c.put("a!/b", b"3")
    assert run("sync", "c", "copy", "-v", "--delete").status == 0
    assert run("unpack", "c", "more").status == 0
    assert contents(copy) == contents(tmp_path / "more")
    assert run("sync", "c", "copy", "-v", "--delete") == NOTHING


def test_what_no_container_holds_stays(run: Run, tmp_path: Path) -> None:
    put_all("c")
    copy = tmp_path / "copy"
    (copy / "old").mkdir(parents=True)
    os.mkfifo(copy / "file")
    os.mkfifo(copy / "old/pipe")
    done = run("sync", "c", "copy", "--delete", "-v")
    assert (done.status, done.out) == (1, b"+ dir\n+ dir/file\n+ link\n")
    assert "file: a file of a kind that no container holds is in the place of this file" in done.err
    assert stat.S_ISFIFO((copy / "file").stat().st_mode)
    (copy / "file").unlink()
    assert run("sync", "c", "copy", "--delete", "-v") == Done(0, b"+ file\n", "")
    assert os.listdir(copy / "old") == ["pipe"]


@pytest.mark.parametrize("kind", ["container", "data set", "tar"])
def test_a_source_in_the_directory_stays(run: Run, tree: Path, tmp_path: Path, kind: str) -> None:
    copy = tmp_path / "copy"
    (copy / "below").mkdir(parents=True)
    options = ["--shards", "1"] if kind == "data set" else []
    source = "copy/below/t.tar" if kind == "tar" else "copy/below/c"
    if kind == "tar":
        subprocess.run([*TAR[:3], source, *TAR[4:]], check=True)
    else:
        assert run("pack", tree, source, *options).status == 0
    (copy / "below/other").write_bytes(b"1")
    done = run("sync", source, "copy", "--delete", "-v")
    assert (done.status, done.err) == (0, "")
    assert b"- below/other\n" in done.out and b"- below\n" not in done.out
    assert run("sync", source, "copy", "--delete", "-v") == NOTHING
    assert run("diff", source, tree, "-c").status == 0


def test_a_store_is_not_synced_into_itself(run: Run, tree: Path) -> None:
    assert run("pack", tree, "set", "--shards", "1").status == 0
    assert run("pack", tree, "c").status == 0
    assert "is in the source" in one_line(run("sync", "set", "set/copy/"))
    assert "nothing is synced with itself" in one_line(run("sync", "set", "set/"))
    assert "nothing is synced with itself" in one_line(run("sync", "c", "c.data"))
    assert not Path("set/copy").exists()


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (("tree", "copy/"), 2),
        (("tree", "c", "-p"), 2),
        (("c", "copy/", "--xattrs"), 2),
        (("-", "copy/"), 2),
        (("c", "-"), 2),
        (("c", "tree/empty"), 1),
        (("c", "tree/empty/below/"), 1),
        (("c", "/proc/nowhere/"), 1),
        (("none", "copy/"), 1),
        (("c", "s3://bucket/copy/"), 1),
    ],
)
def test_wrong_arguments_are_one_line(
    run: Run, tree: Path, args: tuple[str, ...], status: int
) -> None:
    assert run("pack", tree, "c").status == 0
    assert one_line(run("sync", *args), status)
    assert not Path("copy").exists() or os.listdir("copy") == []


def test_nothing_is_deleted_for_an_empty_source(run: Run, tmp_path: Path) -> None:
    assert run("create", "none").status == 0
    (tmp_path / "copy/dir").mkdir(parents=True)
    assert "--force removes all files" in one_line(run("sync", "none", "copy", "--delete"))
    assert (tmp_path / "copy/dir").exists()
    assert run("sync", "none", "copy", "--delete", "--force") == NOTHING
    assert os.listdir("copy") == []


def test_nothing_is_deleted_after_damage(run: Run, tmp_path: Path) -> None:
    stored.make("c", {"good": b"1" * 50, "bad": b"2" * 50})
    flip("c.data", Path("c.data").read_bytes().index(b"2" * 50))
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/mine").write_bytes(b"1")
    done = run("sync", "c", "copy", "--delete")
    assert done.status == 1 and "nothing is removed, because of these errors" in done.err
    assert sorted(os.listdir("copy")) == ["good", "mine"]


def test_set_id_bits_and_times_are_compared_as_they_are_restored(run: Run, tmp_path: Path) -> None:
    with winkfs.create("c", classic=True) as c:
        c.put("seconds", b"1", mtime=5)
    with winkfs.create("d") as d:
        d.put("run", b"1", mode=0o4755, mtime=1)
        d.put("tmp", b"", ftype=DIR, mode=0o1777, mtime=1)
    for source in ("c", "d"):
        assert run("sync", source, f"{source}copy/").status == 0
        assert run("sync", source, f"{source}copy/", "-v") == NOTHING
    assert stat.S_IMODE(os.stat("dcopy/run").st_mode) == 0o755
    assert stat.S_IMODE(os.stat("dcopy/tmp").st_mode) == 0o755
    assert run("sync", "d", "dcopy", "-vp").out == b"M run\tmode\nM tmp\tmode\n"
    assert stat.S_IMODE(os.stat("dcopy/run").st_mode) == 0o4755
    assert run("sync", "d", "dcopy", "-vp") == NOTHING


def test_a_filesystem_that_rounds_times_has_them_equal(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utime = os.utime

    def rounded(path: object, *, ns: tuple[int, int], **more: object) -> None:
        utime(path, ns=(ns[0] // 10**9 * 10**9, ns[1] // 10**9 * 10**9), **more)  # type: ignore

    monkeypatch.setattr(os, "utime", rounded)
    stored.make("c", [("a", b"1", 1.5), ("b", b"2", 2.5)])
    assert run("sync", "c", "copy/").status == 0
    assert os.stat("copy/a").st_mtime_ns == 10**9
    assert run("sync", "c", "copy/", "-v") == NOTHING


def test_a_zip_file_is_synced(run: Run, tmp_path: Path) -> None:
    with zipfile.ZipFile("z.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("a", "dir/b"):
            file.writestr(zipfile.ZipInfo(name, (2001, 2, 3, 4, 5, 6)), name * 100)
    assert run("sync", "z.zip", "copy/").status == 0
    assert (tmp_path / "copy/dir/b").read_text() == "dir/b" * 100
    assert run("sync", "z.zip", "copy", "-v", "--delete") == NOTHING


def test_a_hard_link_is_written_though_its_file_is_there(
    run: Run, tree: Path, tmp_path: Path
) -> None:
    os.link(tree / "large", tree / "zlarge")
    subprocess.run(TAR, check=True)
    assert run("sync", "t.tar", "copy/").status == 0
    (tmp_path / "copy/zlarge").unlink()
    inode = (tmp_path / "copy/large").stat().st_ino
    assert run("sync", "t.tar", "copy", "-v").out == b"+ zlarge\n"
    assert snapshot(tmp_path / "copy") == snapshot(tree)
    assert (tmp_path / "copy/large").stat().st_ino == inode


def test_a_full_disk_leaves_no_half_file_and_the_old_ones(run: Run, small_disk: Path) -> None:
    names = [f"{i}" for i in range(6)]
    stored.make("c", {name: name.encode() * 100_000 for name in names})
    assert run("sync", "c", f"{small_disk}/copy/").status == 0
    stored.change("c", {name: name.encode() * 300_000 for name in names})
    (small_disk / "copy/mine").write_bytes(b"1")
    done = run("sync", "c", f"{small_disk}/copy", "--delete")
    assert done.status == 1 and "No space left" in done.err and done.err.count("\n") == 1
    sizes = {p.stat().st_size for p in (small_disk / "copy").iterdir()}
    assert sizes <= {100_000, 300_000, 1}
    assert sorted(os.listdir(small_disk / "copy")) == [*names, "mine"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sync_is_finished_by_the_next(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    stored.make("c", {f"{i:03}": b"%03d" % i * 1000 for i in range(40)})
    copy = tmp_path / "copy"
    copy.mkdir()
    for i in range(40):
        (copy / f"{i:03}").write_bytes(b"old")
    (copy / "mine").write_bytes(b"1")
    named, link = [0], unpacker.link_open

    def stop(*args: Any) -> None:
        named[0] += 1
        if named[0] == 20:
            signal.raise_signal(number)
        link(*args)

    with monkeypatch.context() as patch:
        patch.setattr(unpacker, "link_open", stop)
        assert run("sync", "c", "copy", "--delete").status == 128 + number
    sizes = [path.stat().st_size for path in copy.iterdir()]
    assert sorted(set(sizes)) == [1, 3, 3000] and sizes.count(3000) >= 19
    assert run("sync", "c", "copy", "--delete").status == 0
    assert run("unpack", "c", "all").status == 0
    assert snapshot(copy) == snapshot(tmp_path / "all")


def test_json_has_the_counts(run: Run, tree: Path) -> None:
    assert run("pack", tree, "c").status == 0
    assert json.loads(run("sync", "c", "copy/", "--json").out)["files"] == 8
    Path("copy/secret").chmod(0o644)
    Path("copy/mine").write_bytes(b"1")
    record = json.loads(run("sync", "c", "copy/", "--delete", "--json").out)
    counts = {name: record[name] for name in ("files", "updated", "removed", "failed")}
    assert counts == {"files": 0, "updated": 1, "removed": 1, "failed": 0}
    assert record["unchanged"] == 12
