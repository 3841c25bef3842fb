"""The time of the last change on a mount: what backup programs go by."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from catalog_checks import store_of
from model_operations import LIBC
from mounting import base as base  # a fixture
from mounting import mounted, mounted_on, run, sync
from mounting import there as there  # a fixture

import winkfs
from winkmount.binding import BINDINGS

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]
OLD = 1_577_836_800 * 10**9  # 2020-01-01
FUTURE = 4_102_444_800 * 10**9  # 2100-01-01


def status(file: Path | int) -> os.stat_result:
    return os.stat(file, follow_symlinks=isinstance(file, int))


def ctime(file: Path | int) -> int:
    return status(file).st_ctime_ns


def is_now(ns: int, begun: int) -> bool:
    return begun <= ns <= time.time_ns()


def has_attributes(base: str, name: str) -> bool:
    with store_of(Path(base)) as store:
        return store.inode_at(store.index.lookup(name.encode() + b"/I0"))[1].attrs is not None


CHANGES: dict[str, Callable[[Path], object]] = {
    "chmod": lambda f: f.chmod(0o600),
    "chmod to a program": lambda f: f.chmod(0o755),
    "chown": lambda f: os.chown(f, 65534, -1),
    "chgrp": lambda f: os.chown(f, -1, 65534),
    "utimens": lambda f: os.utime(f, ns=(OLD, OLD)),
    "utimens into the future": lambda f: os.utime(f, ns=(FUTURE, FUTURE)),
    "setxattr": lambda f: os.setxattr(f, "user.x", b"1"),
    "removexattr": lambda f: os.removexattr(f, "user.there"),
    "write": lambda f: f.write_bytes(b"bbbb"),
    "append": lambda f: run("sh", "-c", f"echo x >> {f}"),
    "truncate": lambda f: os.truncate(f, 1),
    "write and utimens": lambda f: (f.write_bytes(b"bbbb"), os.utime(f, ns=(OLD, OLD))),
}


def times(file: Path | os.DirEntry[str]) -> tuple[int, int]:
    found = file.stat()
    return found.st_ctime_ns, found.st_mtime_ns


def make(there: Path, name: str = "f") -> Path:
    file = there / name
    file.write_bytes(b"aaaa")
    os.setxattr(file, "user.there", b"y")
    os.utime(file, ns=(OLD, OLD))
    return file


def test_a_change_moves_ctime_to_now_also_for_the_next_mount(base: str) -> None:
    """Each change on a file of its own, named after it."""
    with mounted(base) as there:
        for change in CHANGES:
            make(there, change)
    wanted: dict[str, tuple[int, int]] = {}
    with mounted(base) as there:
        for change, do in CHANGES.items():
            file = there / change
            before, begun = ctime(file), time.time_ns()
            do(file)
            after = ctime(file)
            assert is_now(after, begun) and after > before, change
            sync(there)
            assert ctime(file) == after, change
            wanted[change] = times(file)
            if "utimens" in change:
                assert wanted[change][1] in (OLD, FUTURE), change
            assert sorted(os.listxattr(file)) == (
                ["user.there", "user.x"] if change == "setxattr" else []
                if change == "removexattr" else ["user.there"]
            ), change  # fmt: skip
    with mounted(base, "--ro") as there:
        assert {change: times(there / change) for change in CHANGES} == wanted
    with mounted(base, "--ro") as there:
        listed = {entry.name: times(entry) for entry in os.scandir(there)}
        assert listed.items() >= wanted.items()
    with winkfs.open(base) as container:
        for change in CHANGES:
            assert container.stat(change).ctime_ns == wanted[change][0], change
            assert set(container.getxattrs(change)) <= {b"user.there", b"user.x"}, change


@pytest.mark.parametrize("binding", BINDINGS)
def test_an_access_time_that_is_set_moves_ctime(base: str, binding: str) -> None:
    """Access times are not kept."""
    with winkfs.open(base, "a") as container:
        container.put("stored", b"1", mtime_ns=OLD)
        container.put("implied/f", b"1", mtime_ns=OLD)
    with mounted(base, "--binding", binding) as there:
        (there / "link").symlink_to("nowhere")
        (there / "d2").mkdir()
        make(there, "new")
        with (there / "gone").open("w+b") as opened:
            (there / "gone").unlink()
            for name in ("stored", "new", "d2", "link", "implied", "", opened.fileno()):
                file = name if isinstance(name, int) else there / name
                before, begun, mtime = ctime(file), time.time_ns(), status(file).st_mtime_ns
                set_atime(file)
                assert is_now(ctime(file), begun) and ctime(file) > before, name
                assert status(file).st_mtime_ns == mtime, name


def set_atime(file: Path | int) -> None:
    """As `touch -a` does, without the mtime, which Python cannot leave out."""
    times = (ctypes.c_long * 4)(OLD // 10**9, 0, 0, (1 << 30) - 2)
    if isinstance(file, int):
        code = LIBC.futimens(file, times)
    else:
        code = LIBC.utimensat(-100, os.fsencode(file), times, 0x100)
    assert code == 0, os.strerror(ctypes.get_errno())


def test_a_rename_moves_ctime_of_the_file_alone(base: str) -> None:
    with mounted(base) as there:
        make(there)
        (there / "d2").mkdir()
        make(there / "d2", "below")
    time.sleep(2.1)  # until then it counts as a part of writing the file
    with mounted(base) as there:
        below, begun = ctime(there / "d2/below"), time.time_ns()
        (there / "f").rename(there / "g")
        (there / "d2").rename(there / "e2")
        after = ctime(there / "g")
        assert is_now(after, begun)
        assert is_now(ctime(there / "e2"), begun)
        assert ctime(there / "e2/below") == below
    with mounted(base) as there:
        assert ctime(there / "g") == after
        assert ctime(there / "e2/below") == below


def test_what_is_written_later_than_noted_is_newer(base: str) -> None:
    """Writes that wait have an older time than a chmod that came behind them."""
    with mounted(base, "--sync-every", "60") as there:
        path = there / "f"
        file = os.open(path, os.O_WRONLY)
        os.write(file, b"1")
        path.chmod(0o600)
        changed = ctime(path)
        os.fsync(file)
        assert ctime(path) == changed
        os.write(file, b"2")
        assert ctime(path) > changed
        os.fsync(file)
        assert ctime(path) == path.stat().st_mtime_ns
        os.close(file)


def test_an_open_file_that_loses_its_name_has_changed(base: str) -> None:
    with mounted(base) as there:
        file = make(there)
        with file.open("rb") as opened:
            begun = time.time_ns()
            file.unlink()
            assert is_now(ctime(opened.fileno()), begun)
            assert os.fstat(opened.fileno()).st_mtime_ns == OLD


def test_directories_change_with_their_names_and_attributes(base: str) -> None:
    with mounted(base) as there:
        (there / "x").mkdir()
        for change in (
            lambda: (there / "x/f").write_bytes(b"1"),
            lambda: (there / "x/f").rename(there / "x/g"),
            lambda: (there / "x/g").unlink(),
            lambda: (there / "x").chmod(0o700),
            lambda: os.utime(there / "x", ns=(OLD, OLD)),
            lambda: there.chmod(0o700),
            lambda: os.utime(there, ns=(OLD, OLD)),
        ):
            begun = time.time_ns()
            change()
            assert is_now(max(ctime(there / "x"), ctime(there)), begun)
        assert (there / "x").stat().st_mtime_ns == OLD
        after = ctime(there / "x")
    with mounted(base) as there:
        assert ctime(there / "x") == after


def test_ordinary_files_store_no_attributes_for_it(base: str) -> None:
    with mounted(base) as there:
        (there / "new").write_bytes(b"data")
        (there / "touched").touch()
        (there / "dir").mkdir()
        (there / "dir/f").write_bytes(b"data")
        (there / "temporary").write_bytes(b"data")
        (there / "temporary").rename(there / "final")
        run("touch", there / "touched")
        os.truncate(there / "new", 2)
        for path in there.rglob("*"):
            assert path.stat().st_ctime_ns >= path.stat().st_mtime_ns
    for name in ("new", "touched", "dir", "dir/f", "final"):
        assert not has_attributes(base, name), name


def test_a_later_write_takes_the_attributes_away_again(base: str) -> None:
    with mounted(base) as there:
        (there / "f2").write_bytes(b"data")
        os.utime(there / "f2", ns=(OLD, OLD))
    assert has_attributes(base, "f2")
    with mounted(base) as there:
        (there / "f2").write_bytes(b"more")
    assert not has_attributes(base, "f2")


@pytest.mark.parametrize("variant", [{"ao": True}, {"classic": True}])
def test_variants_without_ctime_keep_it_while_mounted(
    tmp_path: Path, variant: dict[str, bool]
) -> None:
    base = tmp_path / "other"
    winkfs.create(base, **variant).close()  # type: ignore[arg-type]
    with mounted(base) as there:
        file = there / "f"
        with file.open("wb") as writer:
            writer.write(b"data")
            writer.flush()
            begun = time.time_ns()
            os.utime(file, ns=(begun - 1000 * 10**9, begun - 1000 * 10**9))
            assert is_now(ctime(file), begun)
        assert is_now(ctime(file), begun)
        mtime = file.stat().st_mtime_ns
    with mounted(base) as there:
        assert ctime(there / "f") == (there / "f").stat().st_mtime_ns == mtime


def test_it_is_no_extended_attribute_anywhere(base: str, tmp_path: Path) -> None:
    with mounted(base) as there:
        file = make(there)
        assert os.listxattr(file) == ["user.there"]
        with pytest.raises(OSError):
            os.getxattr(file, "system.winkfs.ctime")
        with pytest.raises(OSError):
            os.setxattr(file, "system.winkfs.ctime", bytes(8))
    with winkfs.open(base, "a") as container:
        with pytest.raises(ValueError, match="time of the last change"):
            container.setxattrs("f", {b"system.winkfs.ctime": bytes(8)})
        before = container.stat("f").ctime_ns
        [entry] = [entry for entry in container.scan() if entry.name == "f"]
        assert entry.ctime_ns == before != entry.mtime_ns
    assert winkfs.verify(base).problems == []


# --- pjdfstest chmod/00 and chown/00 ---


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_chown_and_chmod_as_pjdfstest_asks(base: str, kind: str) -> None:
    with mounted(base, "-o", "allow_other") as there:
        path = there / "n"
        if kind == "file":
            path.touch()
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to("f")
        owner = [(65534, 65533), (1234, 1234), (-1, 65533), (65534, -1), (0, 0)]
        for uid, gid in owner:
            before = ctime(path)
            time.sleep(0.01)
            os.chown(path, uid, gid, follow_symlinks=False)
            assert ctime(path) > before, (uid, gid)
        if kind != "link":
            for mode in (0o711, 0o755, 0o1777, 0o6755, 0o644):
                before = ctime(path)
                time.sleep(0.01)
                path.chmod(mode)
                assert stat.S_IMODE(path.stat().st_mode) == mode
                assert ctime(path) > before
        before = ctime(path)
        for refused in (f"chmod 700 {path}", f"chown -h 65534 {path}"):
            done = subprocess.run(
                ["setpriv", "--reuid=65532", "--clear-groups", "sh", "-c", refused],
                capture_output=True,
            )
            if kind != "link" or "chown" in refused:
                assert done.returncode, refused
        assert ctime(path) == before


# --- backup programs: a file of the same size, whose mtime was put back ---


def backed_up_twice(base: str, there: Path, backup: Callable[[Path], object]) -> None:
    """`backup` is called before and after the change, the second time on another mount there."""
    with mounted_on(there, base):
        (there / "x").mkdir()
        (there / "x/f").write_bytes(b"aaaa\n")
        (there / "x/same").write_bytes(b"same\n")
        os.utime(there / "x/f", ns=(OLD, OLD))
        os.utime(there / "x/same", ns=(OLD, OLD))
        (there / "x/newer").write_bytes(b"borg forgets the newest file of a backup")
        time.sleep(0.1)
        backup(there / "x")
        time.sleep(1.1)
        (there / "x/f").write_bytes(b"bbbb\n")
        os.utime(there / "x/f", ns=(OLD, OLD))
    with mounted_on(there, base):
        assert (there / "x/f").stat().st_mtime_ns == OLD
        backup(there / "x")


def test_tar_finds_a_changed_file_with_its_old_mtime(
    base: str, there: Path, tmp_path: Path
) -> None:
    archives: list[Path] = []

    def backup(tree: Path) -> None:
        archives.append(tmp_path / f"{len(archives)}.tar")
        run("tar", "-C", tree, "--no-check-device", "-g", tmp_path / "snar", "-cf", archives[-1],
            ".")  # fmt: skip

    backed_up_twice(base, there, backup)
    assert set(run("tar", "-tf", archives[0]).split()) == {"./", "./f", "./same", "./newer"}
    assert set(run("tar", "-tf", archives[1]).split()) == {"./", "./f"}
    assert run("tar", "-xOf", archives[1], "./f") == "bbbb\n"


@pytest.mark.long
def test_restic_finds_a_changed_file_with_its_old_mtime(
    base: str, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("restic"):
        pytest.skip("restic is not installed")
    monkeypatch.setenv("RESTIC_PASSWORD", "x")
    monkeypatch.setenv("RESTIC_REPOSITORY", str(tmp_path / "repository"))
    monkeypatch.setenv("RESTIC_CACHE_DIR", str(tmp_path / "cache"))
    run("restic", "init")
    backed_up_twice(base, there, lambda tree: run("restic", "backup", ".", cwd=tree))
    assert run("restic", "dump", "latest", "/f") == "bbbb\n"


@pytest.mark.long
def test_borg_finds_a_changed_file_with_its_old_mtime(
    base: str, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("borg"):
        pytest.skip("borg is not installed")
    repository = tmp_path / "repository"
    monkeypatch.setenv("BORG_BASE_DIR", str(tmp_path / "borg"))
    monkeypatch.setenv("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes")
    run("borg", "init", "-e", "none", repository)
    names = iter("12")
    backed_up_twice(
        base,
        there,
        lambda tree: run("borg", "create", f"{repository}::{next(names)}", ".", cwd=tree),
    )
    assert run("borg", "extract", "--stdout", f"{repository}::2", "f") == "bbbb\n"
