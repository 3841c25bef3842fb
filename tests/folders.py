"""Where tests keep their files."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SHM: Final = Path("/dev/shm")
MEMORY: Final = SHM if os.access(SHM, os.W_OK) else None  # for files of tests that need no disk
ROOM: Final = 2 << 30  # bytes that must be free in it


@contextmanager
def in_memory() -> Iterator[Path]:
    """A new directory in memory, or on the disk where memory has no room."""
    room = MEMORY is not None and shutil.disk_usage(MEMORY).free > ROOM
    with tempfile.TemporaryDirectory(
        prefix="winkfs-test-", dir=MEMORY if room else None, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder).resolve()


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a folder, which is made; return it."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def bytes_below(*places: Path) -> dict[Path, bytes]:
    """The bytes of files, and of all below directories but the locks of writers."""
    below = [path for place in places for path in (place, *place.rglob("*")) if path.is_file()]
    return {path: path.read_bytes() for path in below if path.suffix != ".lock"}


@contextmanager
def unchanged(*places: Path) -> Iterator[None]:
    """Fail where files, or those below directories, are others afterwards."""
    before = bytes_below(*places)
    yield
    assert bytes_below(*places) == before


def times_below(*places: Path) -> dict[Path, int]:
    """When files, directories and all that is below them were changed."""
    below = [path for place in places for path in (place, *place.rglob("*"))]
    return {path: path.stat().st_mtime_ns for path in below}


@contextmanager
def untouched(*places: Path) -> Iterator[None]:
    """Fail where files, or what is below directories, are others afterwards, or were written."""
    before = times_below(*places)
    with unchanged(*places):
        yield
    assert times_below(*places) == before


def mount_disk(place: Path, kind: str, size: int, options: str = "loop") -> bool:
    """Make a directory, and mount a new filesystem of `size` bytes there, in a file beside it ->
    whether that can be done here. Who calls it has it unmounted."""
    image = place.with_name(f"{place.name}.image")
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    if not shutil.which(f"mkfs.{kind}"):
        return False
    commands: list[list[str | Path]]
    commands = [[f"mkfs.{kind}", "-q", image], ["mount", "-o", options, image, place]]
    return all(subprocess.run(how, capture_output=True).returncode == 0 for how in commands)
