"""A container on a small disk that gets full under its mount."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_checks import names_of
from folders import mount_disk
from mounting import TESTS, mounted, refused

import winkfs

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]

SIZE = 40 << 20  # bytes of the disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 in a file; a tmpfs where the machine has no loop devices."""
    place = tmp_path / "disk"
    tmpfs = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", place]
    if (
        not mount_disk(place, "ext4", SIZE)
        and subprocess.run(tmpfs, capture_output=True).returncode
    ):
        assert os.environ.get("CI") != "true", "CI must be able to mount a small disk"
        pytest.skip("only root can mount a small disk")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def base(disk: Path) -> Iterator[str]:
    """Yield the path for a container on the disk; it is verified at the end."""
    yield str(disk / "corpus")
    assert winkfs.verify(disk / "corpus").problems == []


@pytest.fixture
def ballast(disk: Path) -> Path:
    return disk / "ballast"


def fill(there: Path, names: str, seed: int) -> dict[str, bytes]:
    """Several processes write until there is no room -> the files that no call refused."""
    writers = [
        subprocess.Popen(
            [sys.executable, TESTS / "disk_writer.py", there, name, str(seed)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in names
    ]  # fmt: skip
    kept = {}
    for writer in writers:
        out, err = writer.communicate(timeout=100)
        assert writer.returncode == 0, err
        kept |= {
            name: random.Random(number).randbytes(size) for name, size, number in json.loads(out)
        }
    return kept


def differing(there: Path, kept: dict[str, bytes]) -> list[str]:
    """What was lost, a line each."""
    lost = []
    for name, data in kept.items():
        found = (there / name).read_bytes()
        if found != data:
            lost.append(f"{name}: {len(found)} bytes, not those {len(data)} that were written")
    return lost


@pytest.mark.few(1)
@pytest.mark.parametrize("ao", [False, True])
def test_full_disk_refuses_writers_and_loses_nothing_it_took(
    base: str, ballast: Path, seed: int, ao: bool
) -> None:
    winkfs.create(base, ao=ao).close()
    ballast.write_bytes(bytes(12 << 20))
    with mounted(base, "-o", "sync_every=0.5", patience=200) as there:
        kept = fill(there, "abc", seed)
        assert len(kept) > 20
        assert differing(there, kept) == []
        for name in list(kept)[::2]:  # also when there is no room
            (there / name).unlink()
            del kept[name]
        assert differing(there, kept) == []
        ballast.unlink()
        kept |= fill(there, "def", seed + 1)
        assert differing(there, kept) == []
        assert len([name for name in kept if name[0] in "def"]) > 10
    with mounted(base, "--ro") as there:
        assert differing(there, kept) == []


def fill_up(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, refused(errno.ENOSPC):
        while True:
            file.write(bytes(4096))


@pytest.mark.few(1)
@pytest.mark.parametrize("ao", [False, True])
def test_what_was_taken_is_kept_when_a_stranger_fills_the_disk(
    base: str, ballast: Path, ao: bool
) -> None:
    winkfs.create(base, ao=ao).close()
    kept = {f"f{n}": random.Random(n).randbytes(n * 300) for n in range(200)}
    kept["large"] = random.Random(0).randbytes(3 << 20)
    with mounted(base, "-o", "sync_every=1000", patience=200) as there:
        files = [os.open(there / name, os.O_CREAT | os.O_WRONLY) for name in kept]
        for file, data in zip(files, kept.values(), strict=True):
            assert os.write(file, data) == len(data)
        fill_up(ballast)
        with pytest.raises(OSError), (there / "later").open("wb", buffering=0) as file:
            file.write(bytes(1 << 20))
        for file in files:
            os.fsync(file)
            os.close(file)
        assert differing(there, kept) == []
    with mounted(base, "--ro") as there:
        assert differing(there, kept) == []


def test_fsync_on_a_full_disk_is_refused_or_durable(base: str) -> None:
    """A file that grows by small writes until there is no room: what fsync took stays."""
    winkfs.create(base).close()
    line = b"%063d\n" % 7
    with mounted(base, "-o", "sync_every=1000", patience=200) as there:
        synced = written = 0
        with (there / "log").open("ab", buffering=0) as file:
            try:
                for number in range(1, 10**7):
                    written += file.write(line * 64)
                    if number % 50 == 0:
                        os.fsync(file.fileno())
                        synced = written
            except OSError as error:
                assert error.errno == errno.ENOSPC
        assert synced > SIZE // 3
        assert (there / "log").stat().st_size >= synced
    with mounted(base, "--ro") as there:
        data = (there / "log").read_bytes()
        assert len(data) >= synced and data == line * (len(data) // 64)


def test_open_file_that_is_removed_needs_no_room(base: str, ballast: Path) -> None:
    data = random.Random(1).randbytes(8 << 20)
    with winkfs.create(base) as container:
        container.put("large", data)
        container.put("other", data[:100])
    with (
        mounted(base, "--cache", "none", patience=200) as there,
        (there / "large").open("r+b", buffering=0) as file,
    ):
        fill_up(ballast)
        (there / "large").unlink()
        assert os.listdir(there) == ["other"]
        (there / "other").unlink()
        os.fsync(file.fileno())
        assert file.read() == data
        with refused(errno.ENOSPC):
            os.pwrite(file.fileno(), b"x", 5)
        assert os.pread(file.fileno(), 100, 0) == data[:100]
        ballast.unlink()
        time.sleep(0.1)  # how long it is believed that the disk is full
        assert os.pwrite(file.fileno(), b"x", 5) == 1
        assert os.pread(file.fileno(), len(data), 0) == data[:5] + b"x" + data[6:]
    assert names_of(base) == []
