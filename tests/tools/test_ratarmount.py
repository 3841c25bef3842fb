"""WinkMountSource: ratarmount sees the files of a store as those of an unpacked copy."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from marks import only_with

import winkfs
import winkfs.dataset
from winkfs.archive.unpack import unpack

if TYPE_CHECKING:
    from ratarmountcore.mountsource import MountSource

only_with("ratarmountcore")
pytestmark = pytest.mark.in_memory


@pytest.fixture
def base(tmp_path: Path) -> Path:
    with winkfs.create(tmp_path / "c", columns={"lang": "string"}) as made:
        made.put("a.txt", b"one", mtime=5.5, columns={"lang": "de"})
        made.put("d/e/x", b"0123456789", mode=0o640)
        made.put(b"d/\xff", b"odd")
        made.mkdir("empty")
        made.symlink("d/e/x", "link")
        made.symlink("gone", "broken")
    return tmp_path / "c"


def walked(source: MountSource, path: str = "/") -> dict[str, tuple[object, ...]]:
    """Return size, mode, link and content of all that is below a path."""
    found: dict[str, tuple[object, ...]] = {}
    listed = source.list(path)
    assert isinstance(listed, dict)
    for name, info in listed.items():
        below = f"{path.rstrip('/')}/{name}"
        looked = source.lookup(below)
        assert looked is not None
        assert (looked.size, looked.mode) == (info.size, info.mode)
        size, content = info.size, b""
        if not stat.S_ISREG(info.mode):
            size = 0
        if stat.S_ISDIR(info.mode):
            found |= walked(source, below)
        elif stat.S_ISREG(info.mode):
            with source.open(looked) as file:
                content = file.read()
            assert source.read(looked, 3, 1) == content[1:4]
        mode = info.mode if stat.S_ISREG(info.mode) else stat.S_IFMT(info.mode)
        found[below] = size, mode, looked.linkname, content
    return found


def test_it_is_that_of_an_unpacked_copy(base: Path, tmp_path: Path) -> None:
    from ratarmountcore.mountsource.formats.folder import FolderMountSource

    from winkfs.fsspec.ratarmount import WinkMountSource

    unpack(base, tmp_path / "out")
    with WinkMountSource(base) as source:
        found = walked(source)
        assert found == walked(FolderMountSource(str(tmp_path / "out")))
        assert source.list("/")["broken"].linkname == "gone"
        assert len(found) == 8
        assert source.list_mode("/d").keys() == {"e", "\udcff"}
        info = source.lookup("/a.txt")
        assert info.mtime == 5.5 and source.get_xattr(info, "user.lang") == b"de"
        assert "user.lang" in source.list_xattr(info)
        assert source.get_xattr(source.lookup("/d"), "user.lang") is None
        assert source.lookup("/none") is source.list("/none") is source.list("/a.txt") is None
        assert source.is_dir("/d") and source.exists("/") and not source.is_immutable()


def test_ratarmount_opens_a_container(base: Path) -> None:
    from ratarmountcore.mountsource.factory import open_mount_source

    from winkfs.fsspec.ratarmount import WinkMountSource, register

    register()
    with open_mount_source(f"{base}.data") as source:
        assert (
            isinstance(source, WinkMountSource)
            and source.read(source.lookup("/a.txt"), 9, 0) == b"one"
        )


def test_a_data_set_never_changes(tmp_path: Path) -> None:
    from winkfs.fsspec.ratarmount import WinkMountSource

    with winkfs.dataset.create(tmp_path / "set") as made:
        made.put("a", b"1")
    with WinkMountSource(tmp_path / "set") as source:
        assert source.is_immutable() and list(source.list("/")) == ["a"]


@pytest.mark.slow
def test_without_ratarmount_one_line_names_the_extra() -> None:
    code = """import sys
sys.modules["ratarmountcore"] = None
import winkfs
try:
    import winkfs.fsspec.ratarmount
except winkfs.Refusal as error:
    print(error)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == (
        "winkfs.fsspec.ratarmount needs winkfs[ratarmount]: pip install 'winkfs[ratarmount]'\n"
    )
