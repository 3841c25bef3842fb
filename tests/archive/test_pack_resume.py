"""pack: the same command goes on after a kill or a signal; killed --shards leave no data set."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Run
from commands import run as run
from trees import snapshot

import winkfs
from winkfs.archive.pack import pack
from winkfs.archive.packer import Packer
from winkfs.archive.unpack import unpack

SYNC_BYTES = 1 << 20
FILES = 40
HALF = 4 << 20
PROGRAM = f"""
import os, sys
from winkfs.__main__ import main
from winkfs.archive import packer
packer.BUILD_BYTES, packer.BATCH_BYTES = {SYNC_BYTES}, packer.SMALL_BATCH_BYTES
last, number = int(sys.argv.pop(1)), int(sys.argv.pop(1))
sync = packer.Packer._sync
def watched(self):
    if not last:
        os.kill(os.getpid(), number)
    sync(self)
    if self.container.stored_bytes >= last:
        os.kill(os.getpid(), number)
packer.Packer._sync = watched
sys.exit(main())
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for folder in "abcd":
        (root / folder).mkdir(parents=True)
        for i in range(FILES // 4):
            data = hashlib.shake_256(f"{folder}{i}".encode()).digest(120_000)
            (root / folder / f"{i}").write_bytes(data)
    (root / "big").write_bytes(b"big" * 700_000)
    (root / "link").symlink_to("a/1")
    return root


def stopped(size: int, number: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command that a signal stops when so many bytes are stored; 0: at once."""
    command = [sys.executable, "-c", PROGRAM, str(size), str(number), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=60)


def check(base: Path, source: Path, out: Path) -> None:
    """Compare a container with the tree, and check its files."""
    assert winkfs.verify(base).problems == []
    unpack(base, out, same_permissions=True)
    assert snapshot(out) == snapshot(source)
    assert not list(base.parent.glob("*.partial*"))


def change(source: Path) -> None:
    """Change the tree: files removed, added, and changed without a new size or mtime."""
    (source / "a/0").unlink()
    (source / "b").rename(source / "e")
    before = (source / "a/1").stat().st_mtime_ns
    data = bytearray((source / "a/1").read_bytes())
    data[5] ^= 1
    (source / "a/1").write_bytes(data)
    os.utime(source / "a/1", ns=(before, before))
    (source / "new").write_bytes(b"new")
    (source / "link").unlink()
    (source / "link").mkdir()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("mib", "changed", "compress"),
    [(5, False, None), (3, True, None), (2, True, "zstd")],
)
def test_a_killed_pack_goes_on(
    tmp_path: Path, source: Path, mib: int, changed: bool, compress: str | None
) -> None:
    more = ["--compress", compress] if compress else []
    base = tmp_path / "c"
    done = stopped(mib << 20, signal.SIGKILL, "pack", *more, source, base)
    assert done.returncode == -signal.SIGKILL and not (tmp_path / "c.data").exists()
    if changed:
        change(source)
    report = pack(source, base, compress=compress)
    assert report.resumed
    check(base, source, tmp_path / "out")
    again = pack(source, base, update=True)
    assert again.files == again.updated == 0


def test_only_what_is_missing_is_stored(tmp_path: Path, source: Path) -> None:
    stopped(HALF, signal.SIGKILL, "pack", source, tmp_path / "c")
    report = pack(source, tmp_path / "c")
    assert report.resumed and report.unchanged > 10 and report.files < FILES - 10
    check(tmp_path / "c", source, tmp_path / "out")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [{"exclude": ["a"]}, {"include": ["b"]}, {"compress": "zstd"}, {"ao": True}],
    ids=["exclude", "include", "zstd", "ao"],
)
def test_with_other_options_it_begins_anew(
    tmp_path: Path, source: Path, options: dict[str, Any]
) -> None:
    stopped(HALF, signal.SIGKILL, "pack", source, tmp_path / "c")
    assert (tmp_path / "c.partial.data").exists()
    report = pack(source, tmp_path / "c", **options)
    assert not report.resumed and report.unchanged == 0
    pack(source, tmp_path / "new", **options)
    with winkfs.open(tmp_path / "c") as c, winkfs.open(tmp_path / "new") as new:
        assert sorted(c) == sorted(new)


def test_a_signal_leaves_it_to_be_continued(tmp_path: Path, source: Path, run: Run) -> None:
    done = stopped(HALF, signal.SIGTERM, "pack", source, tmp_path / "c")
    assert done.returncode == 128 + signal.SIGTERM and "goes on with it" in done.stderr
    assert (tmp_path / "c.partial.data").exists()
    again = run("pack", source, tmp_path / "c")
    assert again.status == 0 and "went on" in again.err
    check(tmp_path / "c", source, tmp_path / "out")


def test_a_signal_before_the_first_sync_leaves_nothing(tmp_path: Path, source: Path) -> None:
    done = stopped(0, signal.SIGINT, "pack", source, tmp_path / "c")
    assert done.returncode == 130 and not list(tmp_path.glob("c*"))


def test_an_error_removes_it(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(packer: Packer) -> None:
        raise OSError(28, "No space left on device")

    stopped(HALF, signal.SIGKILL, "pack", source, tmp_path / "c")
    (source / "zzz").write_bytes(b"1")
    monkeypatch.setattr(Packer, "flush", fail)
    with pytest.raises(OSError, match="No space"):
        pack(source, tmp_path / "c")
    assert not list(tmp_path.glob("c*"))


@pytest.mark.parametrize("size", [100, 2_000_000])
def test_a_rest_that_is_cut_does_no_harm(tmp_path: Path, source: Path, size: int) -> None:
    stopped(HALF, signal.SIGKILL, "pack", source, tmp_path / "c")
    os.truncate(tmp_path / "c.partial.data", size)
    pack(source, tmp_path / "c")
    check(tmp_path / "c", source, tmp_path / "out")


SHARDS = """
import os, sys
from winkfs.__main__ import main
from winkfs.dataset import packing, transaction
name = sys.argv.pop(1)
owner = transaction.Transaction if name == "commit" else packing
real = getattr(owner, name)
def killed(*args, **kwargs):
    os.kill(os.getpid(), 9)
setattr(owner, name, killed)
sys.exit(main())
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("where", ["begun", "_pack_list", "commit"])
def test_killed_shards_leave_nothing_under_the_name(
    tmp_path: Path, source: Path, where: str
) -> None:
    target = tmp_path / "set"
    command = [sys.executable, "-c", SHARDS, where, "pack", "--shards", "2", source, target]
    done = subprocess.run(command, env=os.environ, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists() and (tmp_path / "set.partial").exists()
    assert winkfs.pack(source, target, shards=2).files == FILES + 1
    assert not (tmp_path / "set.partial").exists() and winkfs.verify(target).problems == []
    with winkfs.open(target) as found:
        assert len(found) == FILES + 6


def test_a_folder_of_others_beside_is_not_removed(tmp_path: Path, source: Path) -> None:
    (tmp_path / "set.partial").mkdir()
    (tmp_path / "set.partial/mine").write_bytes(b"1")
    with pytest.raises(FileExistsError, match=r"set\.partial"):
        winkfs.pack(source, tmp_path / "set", shards=2)
    assert (tmp_path / "set.partial/mine").exists()
