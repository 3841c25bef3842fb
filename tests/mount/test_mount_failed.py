"""A disk that fails below a mount: what was synced is read, nothing is acknowledged."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from container_checks import names_of
from folders import mount_disk
from mounting import command, forget, refused, sync, watched
from mounting import there as there  # a fixture

import winkfs
from winkfs.cli.mount import mount_record, mounted

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]


class Disk:
    """An ext4 with errors=remount-ro, as Debian has it for its root."""

    def __init__(self, place: Path, device: str) -> None:
        self.place, self._device = place, device

    def fail(self) -> None:
        (Path("/sys/fs/ext4") / self._device / "trigger_fs_error").write_text("1")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    place = tmp_path / "disk"
    if not mount_disk(place, "ext4", 60 << 20, "loop,errors=remount-ro"):
        assert os.environ.get("CI") != "true", "CI must be able to mount an ext4"
        pytest.skip("only root can mount an ext4")
    source = subprocess.run(
        ["findmnt", "-no", "SOURCE", place], capture_output=True, text=True, check=True
    ).stdout.strip()
    yield Disk(place, Path(source).name)
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def mount(disk: Disk, there: Path) -> Iterator[Path]:
    """A container on that disk, mounted, with `old` synced, `precious` not."""
    winkfs.create(disk.place / "c").close()
    assert command("mount", disk.place / "c", there, "-osync_every=3600") == (0, "")
    with watched(there):
        (there / "old").write_bytes(b"old" * 3000)
        sync(there)
        (there / "precious").write_bytes(b"precious")
        yield there
        if os.path.ismount(there):
            command("umount", "--lazy", there)


def stored(disk: Disk) -> list[str]:
    return sorted(names_of(disk.place / "c"))


def test_umount_reports_a_failed_last_sync_and_stays(disk: Disk, mount: Path) -> None:
    disk.fail()
    for _ in range(2):
        status, answer = command("umount", mount)
        assert status == 1 and "\n" not in answer
        assert "not unmounted" in answer and "--lazy" in answer
        assert os.path.ismount(mount)
    assert (mount / "old").read_bytes() == b"old" * 3000


@pytest.mark.parametrize("how", ["--lazy", "--force"])
def test_a_forced_umount_reports_what_is_lost(disk: Disk, mount: Path, how: str) -> None:
    disk.fail()
    status, answer = command("umount", how, mount)
    assert status == 1 and "\n" not in answer
    assert "unmounted, but not all is on the disk" in answer
    assert not os.path.ismount(mount)
    assert stored(disk) == ["old"]


def test_reading_goes_on_when_the_disk_is_read_only_by_an_error(disk: Disk, mount: Path) -> None:
    sync(mount)
    disk.fail()
    for cold in (False, True):
        if cold:
            forget(mount)
            for path in (mount / "old", *disk.place.glob("c.*")):
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert sorted(os.listdir(mount)) == ["old", "precious"]
        assert (mount / "old").read_bytes() == b"old" * 3000
        assert (mount / "precious").stat().st_size == 8


def test_nothing_is_acknowledged_after_a_failed_sync(disk: Disk, mount: Path) -> None:
    file = os.open(mount / "open", os.O_RDWR | os.O_CREAT)
    os.write(file, b"before")
    disk.fail()
    with refused(errno.EIO, errno.EROFS):
        sync(mount)
    attempts: list[Callable[[], object]] = [
        lambda: os.fsync(file),
        lambda: sync(mount),
        lambda: (mount / "new").write_bytes(b"x"),
        lambda: (mount / "d").mkdir(),
        lambda: (mount / "old").unlink(),
        lambda: (mount / "old").rename(mount / "older"),
        lambda: (mount / "old").chmod(0o600),
        lambda: os.truncate(mount / "old", 0),
        lambda: os.setxattr(mount / "old", "user.x", b""),
        lambda: os.write(file, b"after"),
    ]
    for attempt in attempts * 3:
        with refused(errno.EIO, errno.EROFS):
            attempt()
    assert (mount / "old").read_bytes() == b"old" * 3000
    os.close(file)


def test_a_mount_that_has_failed_is_listed_so(disk: Disk, mount: Path) -> None:
    disk.fail()
    with refused(errno.EIO, errno.EROFS):
        sync(mount)
    found = mounted(str(mount))
    assert found is not None
    record = mount_record(found)
    assert record["state"] == "failed"
    assert record["failed"]
