"""The lock of the one writer, and what else may stand where a writer makes its files."""

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from constants import shrink
from seam import disk_calls, once_after, refusing
from stored import make, read

import winkfs
from winkformats.disk.posix import PosixDirectory
from winkfs import Refusal
from winkfs.errors import Locked

pytestmark = pytest.mark.on_disk


@pytest.fixture
def base(tmp_path: Path) -> Path:
    make(tmp_path / "c", {"a": b"acknowledged"})
    return tmp_path / "c"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of somebody else, as it must stay."""
    path = tmp_path / "victim"
    path.write_bytes(b"secret")
    path.chmod(0o600)
    return path


def test_a_lock_that_is_a_symlink_is_refused_and_not_followed(base: Path, victim: Path) -> None:
    Path(f"{base}.lock").unlink()
    Path(f"{base}.lock").symlink_to(victim)
    before = victim.stat()
    with pytest.raises(Refusal, match=r"BASE\.lock is a symbolic link.*remove it"):
        winkfs.open(base, "a")
    with pytest.raises(Refusal, match="remove it"):
        winkfs.reindex(base)
    assert victim.read_bytes() == b"secret"
    assert (victim.stat().st_uid, victim.stat().st_mode) == (before.st_uid, before.st_mode)
    with winkfs.open(base) as reader:  # which takes no lock
        assert reader.read("a") == b"acknowledged"


def test_lock_that_is_another_name_of_a_file_is_refused(base: Path, victim: Path) -> None:
    Path(f"{base}.lock").unlink()
    os.link(victim, f"{base}.lock")
    with pytest.raises(Refusal, match="2 names: remove it"):
        winkfs.open(base, "a")
    assert victim.read_bytes() == b"secret"


@pytest.mark.parametrize("suffix", [".idx", ".cat"])
def test_temporary_file_that_is_a_symbolic_link_is_not_followed(
    base: Path, victim: Path, suffix: str
) -> None:
    Path(f"{base}{suffix}.tmp").symlink_to(victim)
    winkfs.reindex(base)
    assert victim.read_bytes() == b"secret"
    assert read(base, "a") == b"acknowledged"
    assert not os.path.lexists(f"{base}{suffix}.tmp")


def test_new_container_follows_no_link(tmp_path: Path, victim: Path) -> None:
    for name in ("new.data", "new.data.tmp", "new.idx", "new.idx.tmp"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(FileExistsError):
        winkfs.create(tmp_path / "new")
    (tmp_path / "new.data").unlink()
    winkfs.create(tmp_path / "new").close()
    assert victim.read_bytes() == b"secret"
    (tmp_path / "dangling.data").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        winkfs.create(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()


def test_a_container_that_cannot_be_made_leaves_no_lock_file(tmp_path: Path) -> None:
    (tmp_path / "dangling.data").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match="symbolic link that leads nowhere"):
        winkfs.create(tmp_path / "dangling")
    full = refusing("write", "full.data.tmp", errno.ENOSPC)
    with disk_calls(full), pytest.raises(OSError, match="No space left"):
        winkfs.create(tmp_path / "full")
    assert list(tmp_path.glob("*.lock")) == []


def test_removed_lock_file_lets_no_second_writer_in(base: Path) -> None:
    with winkfs.open(base, "a") as first:
        first.put("x", b"1")
        Path(f"{base}.lock").unlink()
        with pytest.raises(Locked):
            winkfs.open(base, "a")
        Path(f"{base}.lock").write_bytes(b"")  # another one in its place
        with pytest.raises(Locked):
            winkfs.open(base, "a")
    assert read(base, "x") == b"1"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_another_name_of_the_data_file_is_the_same_container(base: Path, link: object) -> None:
    link(f"{base}.data", f"{base}-too.data")  # type: ignore[operator]
    with winkfs.open(base, "a"), pytest.raises(Locked):
        winkfs.open(f"{base}-too", "a")
    winkfs.open(f"{base}-too", "a").close()


def test_data_file_that_is_replaced_meanwhile_is_not_written(base: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    winkfs.create(other).close()
    replaced = once_after("lock", ".data", lambda: os.replace(f"{other}.data", f"{base}.data"))
    with disk_calls(replaced), pytest.raises(Locked, match="try again"):
        winkfs.open(base, "a")


HOLDER = """
import ctypes, os, sys, time, winkfs
c = winkfs.open(sys.argv[1], "a")
if ctypes.CDLL(None).fork() == 0:  # as C code forks: Python knows nothing of it
    time.sleep(60)
    os._exit(0)
print("forked", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_lock_goes_with_its_process_whatever_children_live(base: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(base)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"forked\n"
        with pytest.raises(Locked, match=f"process {holder.pid}"):
            winkfs.open(base, "a")
        holder.kill()
        holder.wait()
        deadline = time.monotonic() + 10
        while True:  # the kernel tears the process down
            try:
                winkfs.open(base, "a").close()
                break
            except Locked:
                assert time.monotonic() < deadline, "the child holds the lock"
                time.sleep(0.05)
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()


def test_lock_is_kept_where_a_mapping_does_not_keep_it(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the kernel does not say: on overlayfs a mapping refers to the file below."""
    opened = open

    def unknown(path: str, *args: Any, **options: Any) -> Any:
        if path == "/proc/locks":
            raise PermissionError(path)
        return opened(path, *args, **options)

    shrink(monkeypatch, "the disk", keeping=())
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", unknown)
        with winkfs.open(base, "a"), pytest.raises(Locked):
            winkfs.open(base, "a")
    with winkfs.open(base, "a"), pytest.raises(Locked):
        winkfs.open(base, "a")
    winkfs.open(base, "a").close()


@pytest.mark.parametrize("folder", ["/dev/shm", None])
def test_kernel_lists_the_lock_that_a_mapping_keeps(folder: str | None, tmp_path: Path) -> None:
    """It is not asked on filesystems where that is certain."""
    kind = subprocess.check_output(["stat", "-f", "-c", "%T", folder or tmp_path], text=True)
    if kind.strip() not in ("ext2/ext3", "xfs", "tmpfs"):
        pytest.skip(f"on {kind.strip()} it is asked")
    with tempfile.NamedTemporaryFile(dir=folder or tmp_path) as file:
        found = os.stat(file.name)
        lock = PosixDirectory(os.path.dirname(file.name)).lock(os.path.basename(file.name))
        assert lock is not None
        held = [line.split()[1:6] for line in Path("/proc/locks").read_text().splitlines()]
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        assert ["FLOCK", "ADVISORY", "WRITE", str(os.getpid()), device] in held
        lock.release()


def test_lock_of_a_read_only_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    (tmp_path / "f").chmod(0o400)
    lock = PosixDirectory(str(tmp_path)).lock("f")
    assert lock is not None
    assert PosixDirectory(str(tmp_path)).lock("f") is None
    lock.release()
    lock.release()
    again = PosixDirectory(str(tmp_path)).lock("f")
    assert again is not None
    again.release()


def test_data_file_that_is_a_fifo_is_refused(tmp_path: Path, base: Path) -> None:
    os.mkfifo(tmp_path / "pipe.data")
    for mode in ("r", "a"):
        with pytest.raises(OSError, match="not a regular file") as caught:
            winkfs.open(tmp_path / "pipe", mode)
        assert caught.value.errno == errno.EINVAL
    Path(f"{base}.idx").unlink()
    os.mkfifo(f"{base}.idx")
    with winkfs.open(base) as reader:  # without the index
        assert reader.read("a") == b"acknowledged"
    (tmp_path / "folder.data").mkdir()
    with pytest.raises(IsADirectoryError):
        winkfs.open(tmp_path / "folder")


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_derived_files_have_the_mode_of_the_data_file(base: Path, umask: int) -> None:
    for mode in (0o600, 0o640, 0o664):
        for suffix in (".idx", ".cat", ".lock"):
            Path(f"{base}{suffix}").unlink(missing_ok=True)
        Path(f"{base}.data").chmod(mode)
        old = os.umask(umask)
        try:
            winkfs.reindex(base)
        finally:
            os.umask(old)
        for suffix in (".idx", ".cat", ".lock"):
            found = stat.S_IMODE(Path(f"{base}{suffix}").stat().st_mode)
            assert found == mode, (suffix, oct(found))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_derived_files_have_the_owner_of_the_data_file(base: Path) -> None:
    Path(f"{base}.lock").unlink()
    os.chown(f"{base}.data", 12_345, 23_456)
    winkfs.open(base, "a").close()
    winkfs.reindex(base)
    for suffix in (".lock", ".idx", ".cat"):
        found = Path(f"{base}{suffix}").stat()
        assert (found.st_uid, found.st_gid) == (12_345, 23_456), suffix
