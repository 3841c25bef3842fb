"""One bit of the key of an inode: the file is damaged, not absent, however it is asked for."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data_sets
import pytest
from commands import Run, one_line
from commands import run as run
from container_checks import path_of, put_many
from flips import flip
from mounting import mounted
from stored import make

import winkfs
from winkformats.errors import CorruptError
from winkfs.dataset.manifest import create

pytestmark = [
    pytest.mark.in_memory,
    pytest.mark.filterwarnings("ignore::winkfs.DamageWarning"),
]
NAME = "d/f42"
FILES = {f"d/f{i:02}": b"%d" % i * 40 for i in range(60)}
ASKED: dict[str, Callable[[Any], object]] = {
    "read": lambda c: c.read(NAME),
    "read of a part": lambda c: c.read(NAME, 1, 2),
    "get_many": lambda c: list(c.get_many(FILES)),
    "stat": lambda c: c.stat(NAME),
    "open_file": lambda c: c.open_file(NAME),
    "extents": lambda c: c.extents(NAME),
    "xattrs": lambda c: c.getxattrs(NAME),
    "scan": lambda c: list(c.scan()),
    "scan of a prefix": lambda c: list(c.scan(prefix="d/f4")),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A container, and a data set of three shards that has the same files."""
    folder = tmp_path_factory.mktemp("whole")
    make(folder / "c", FILES)
    root = create(folder / "ds").root
    names = list(FILES)
    for part in (names[:20], names[20:50], names[50:]):
        data_sets.add(root, {name: FILES[name] for name in part})
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    return tmp_path


def flip_name(file: Path, bit: int) -> None:
    """`bit` from the start of the key of NAME, its length before that."""
    at = file.read_bytes().index(f"{NAME}/I0".encode())
    flip(file, at + bit // 8, bits=1 << bit % 8)


def data_of(folder: Path, kind: str) -> Path:
    if kind == "container":
        return path_of(folder / "c", ".data")
    found = [p for p in (folder / "ds").rglob("*.data") if NAME.encode() in p.read_bytes()]
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["container", "data set"])
def test_any_bit_of_a_name_is_damage_and_no_absence(
    kind: str, folder: Path, every: Callable[[str], slice]
) -> None:
    file = data_of(folder, kind)
    good = file.read_bytes()
    for bit in range(-16, 8 * len(NAME) + 24)[every("name bits")]:
        flip_name(file, bit)
        with winkfs.open(folder / ("c" if kind == "container" else "ds")) as c:
            for what, ask in ASKED.items():
                with pytest.raises(CorruptError):
                    print(bit, what, ask(c))
            with contextlib.suppress(CorruptError):  # a data set looks into no inode
                assert NAME in c
            assert c.read("d/f41") == FILES["d/f41"]
            assert "d/none" not in c
        file.write_bytes(good)


def test_commands_report_it(folder: Path, run: Run) -> None:
    flip_name(data_of(folder, "container"), 3)
    for command in ("cat", "stat"):
        assert "checksum" in one_line(run(command, folder / "c", NAME))


@pytest.mark.mount
def test_mounts_do_not_miss_it(folder: Path) -> None:
    """That of a data set goes by its catalogs, which say where the content is."""
    flip_name(data_of(folder, "container"), 3)
    flip_name(data_of(folder, "data set"), 3)
    with mounted(folder / "c", "--ro") as there:
        with pytest.raises(OSError, check=lambda error: error.errno == errno.EIO):
            (there / NAME).read_bytes()
        assert (there / "d/f41").read_bytes() == FILES["d/f41"]
        assert not os.path.lexists(there / "d/none")
    with mounted(folder / "ds", "--ro") as there:
        assert (there / NAME).read_bytes() == FILES[NAME]


def test_what_is_put_with_it_is_not_lost(folder: Path) -> None:
    flip_name(data_of(folder, "container"), 3)
    put_many(folder / "c", [("new", b"1"), (NAME, b"2"), ("newer", b"3")])
    with winkfs.open(folder / "c") as c:
        assert [c.read(name) for name in ("new", NAME, "newer")] == [b"1", b"2", b"3"]
